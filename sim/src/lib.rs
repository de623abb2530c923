//! Whole meshes on a simulated clock and network, driven by one seed: every run of a seed is the same run.
//!
//! [`scenario`] draws a job and its troubles from a seed, [`world`] runs the shipped engines through them, and
//! [`check`] says whether what they reported was right. [`linearizable`] says it of histories of objects.

pub mod check;
pub mod jobs;
pub mod linearizable;
pub mod lockstep;
pub mod network;
pub mod scenario;
pub mod whole;
pub mod world;

pub use scenario::Scenario;
pub use sheave_mesh::engine::Faults;
pub use world::World;

/// Runs a seed.
///
/// # Errors
///
/// What was wrong, with the seed in it.
pub fn run(seed: u64, faults: Faults) -> Result<World, String> {
    let mut world = World::new(Scenario::from_seed(seed), faults);
    world.run().map_err(|message| format!("seed {seed}: {message}"))?;
    Ok(world)
}
