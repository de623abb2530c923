//! Whole nodes and what their users make of them: a seed draws a job and its troubles, its processes run in lockstep
//! ([`crate::lockstep`]), and a ledger of all that they did is held against models of what may be.

mod caches;
mod entries;
mod fates;
mod gradients;
mod groups;
mod guests;
mod ledger;
mod particles;
mod pools;
mod posteriors;
mod program;
mod queues;
mod scenario;
mod services;
mod sessions;
mod shrink;
mod start;
mod versions;

pub use ledger::Report;
pub use scenario::{Hit, Scenario};
pub use shrink::shrink;

use crate::lockstep::World;
use ledger::Ledger;
pub use sheave_base::planted::Bug;
use std::sync::Arc;
use std::time::Duration;

/// Longer than any job may last.
const LIMIT: Duration = Duration::from_secs(120);

/// The program that the ranks of a job run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Calls, references, tasks, barriers, guests.
    Nodes,
    /// Groups of rpc and their directories.
    Groups,
    /// A session: its commands, registers and failures.
    Sessions,
    /// A pool, whose workers are guests of the one rank.
    Pools,
    /// A queue, whose ends are guests of the one rank.
    Queues,
    /// A table of versioned objects, whose clients are guests of the one rank.
    Versions,
    /// Gradient servers and their learners.
    Gradients,
    /// Particles of all ranks, which send each other messages.
    Particles,
    /// Devices of all ranks with room for some of their models, and particles that use them.
    Caches,
    /// Posteriors with members on all ranks.
    Posteriors,
}

impl Program {
    /// The scenario of a seed. Only jobs of nodes alone have guests, and those whose host starts them.
    #[must_use]
    pub fn scenario(self, seed: u64) -> Scenario {
        match self {
            Self::Nodes => Scenario::from_seed(seed),
            Self::Groups | Self::Sessions | Self::Particles | Self::Caches => {
                Scenario::from_seed(seed).without_guests()
            }
            Self::Posteriors => Scenario::of_three(seed),
            Self::Gradients => Scenario::of_learners(seed),
            Self::Pools | Self::Queues | Self::Versions => Scenario::of_pool(seed),
        }
    }
}

/// Runs a job to its end.
///
/// # Errors
///
/// What was wrong, a line each.
pub fn run(
    program: Program,
    scenario: &Scenario,
    bug: Option<Bug>,
    keeps_log: bool,
) -> (Result<Report, String>, String) {
    let world = World::new(scenario.seed, scenario.way);
    if keeps_log {
        world.keep_log();
    }
    bug.into_iter().for_each(|bug| world.plant(bug));
    let ledger = Arc::new(Ledger::new(scenario));
    let entries = Arc::new(entries::Entries::default());
    let steps = Arc::new(sessions::Steps::default());
    let gradients = Arc::new(gradients::Book::new(scenario, &ledger));
    let particles = Arc::new(particles::Book::new(&ledger));
    // The host of a pool starts its workers itself, the home of a queue its ends, the server of a table its clients.
    let started =
        if matches!(program, Program::Pools | Program::Queues | Program::Versions) { 1 } else { scenario.hosts.len() };
    for process in 0..started {
        let (own, scenario, host) = (Arc::clone(&ledger), scenario.clone(), scenario.hosts[process]);
        let (entries, steps, own_world) = (Arc::clone(&entries), Arc::clone(&steps), world.clone());
        let gradients = Arc::clone(&gradients);
        let particles = Arc::clone(&particles);
        let program = move || match (scenario.host_of(process), program) {
            (None, Program::Nodes) => program::run(&scenario, process, &own),
            (None, Program::Groups) => groups::run(&scenario, process, &own, &entries),
            (None, Program::Pools) => pools::run(&scenario, &own_world, &own),
            (None, Program::Queues) => queues::run(&scenario, &own_world, &own),
            (None, Program::Versions) => versions::run(&scenario, &own_world, &own),
            (None, Program::Gradients) => gradients::run(&scenario, process, &own, &gradients),
            (None, Program::Particles) => particles::run(&scenario, process, &own, &particles),
            (None, Program::Caches) => caches::run(&scenario, process, &own, &particles),
            (None, Program::Posteriors) => posteriors::run(&scenario, process, &own),
            (None, Program::Sessions) => sessions::run(&scenario, process, &own, &steps),
            (Some(_), _) => guests::run(&scenario, process, &own),
        };
        world.start(&format!("process {process}"), host, program);
    }
    for Hit { at, trouble } in &scenario.hits {
        world.trouble(*at, trouble.clone());
    }
    let outcome = world.run(LIMIT);
    let wrong = [outcome.failures.clone(), ledger.settle()].concat();
    let report = ledger.report(&outcome);
    (if wrong.is_empty() { Ok(report) } else { Err(wrong.join("\n")) }, outcome.log)
}
