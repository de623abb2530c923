//! Times an epoch of an ensemble of perceptrons on the digits, whose members live on all processes of a job:
//!
//! ```text
//! cargo build --release -p sheave-posterior --example ensemble_time
//! RAYON_NUM_THREADS=1 taskset -c 0 target/release/examples/ensemble_time
//! RAYON_NUM_THREADS=1 sheave launch -n 2 -- target/release/examples/ensemble_time
//! ```
//!
//! Takes the number of members, 8 by default, and of epochs, 20. Prints the shortest and the median epoch.
#![expect(clippy::print_stdout, reason = "a program of its own")]

use std::time::{Duration, Instant};

use sheave_base::config::Endpoint;
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::{Config, Expected, Mesh, Role};
use sheave_nn::{Digits, Loss, Network, mlp};
use sheave_optim::Rule;
use sheave_particle::Particles;
use sheave_posterior::{Batches, Ensemble, EnsembleSettings, Inference};

const BATCH_ROWS: usize = 64;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |name: &str, otherwise: usize| match arguments.next().map(|text| (text.parse(), text)) {
        None => Ok(otherwise),
        Some((Ok(number), _)) if number > 0 => Ok(number),
        Some((_, text)) => {
            let what = format!("the number of {name} is {text}; expected a whole number above zero");
            Err(Error::new(ErrorKind::InvalidArgument, what))
        }
    };
    let (members, epochs) = (next("members", 8)?, next("epochs", 20)?);
    let mesh = Mesh::join(match Config::from_env()? {
        Some(config) => config,
        None => {
            let root = Endpoint { host: "127.0.0.1".into(), port: sheave_base::port::free()? };
            Config::new(Role::Rank, Some(0), Expected::ranks(1), root)
        }
    })?;
    let particles = Particles::new(&mesh, "particles")?;
    let network = Network::new(mlp(&[64, 128, 128, 10])?, 64, Loss::CrossEntropy)?;
    let inference = Inference::new(&particles, "digits", network, Digits::embedded()?.training().dataset()?)?;
    mesh.world().barrier()?;
    if mesh.me().rank.0 == 0 {
        let nodes: Vec<_> = mesh.members().iter().map(|member| member.node).collect();
        let settings = EnsembleSettings::new(members, BATCH_ROWS, Rule::adam(0.001));
        let settings = EnsembleSettings { batches: Batches::Own, ..settings };
        let ensemble = Ensemble::new(&inference.on(&nodes)?, &settings)?;
        ensemble.fit(2, |_| ())?;
        let (mut times, mut begun) = (Vec::new(), Instant::now());
        ensemble.fit(epochs, |_| {
            times.push(begun.elapsed());
            begun = Instant::now();
        })?;
        let (shortest, median) = summary(&mut times);
        println!("{members} members on {} processes: {shortest:.1?} an epoch, median {median:.1?}", nodes.len());
    }
    mesh.world().barrier()?;
    mesh.finish()
}

fn summary(times: &mut [Duration]) -> (Duration, Duration) {
    times.sort_unstable();
    (times[0], times[times.len() / 2])
}
