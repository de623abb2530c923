//! Runs one whole job: `whole SEED [COUNT]`; with `GROUPS` in the environment one that makes groups of rpc, with
//! `SESSIONS` a session, with `POOLS` a pool, with `VERSIONS` a table of versioned objects,
//! with `GRADIENTS` gradient servers, with `PARTICLES` particles, with `CACHES` devices and their models, with
//! `POSTERIORS` a posterior.

use sheave_sim::whole::{Program, run};

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let first = arguments.next().unwrap_or(1);
    let count = arguments.next().unwrap_or(1);
    let begun = std::time::Instant::now();
    let mut switches = 0;
    let is_asked_for = |name: &str| std::env::var_os(name).is_some();
    let program = match () {
        () if is_asked_for("GROUPS") => Program::Groups,
        () if is_asked_for("SESSIONS") => Program::Sessions,
        () if is_asked_for("POOLS") => Program::Pools,
        () if is_asked_for("VERSIONS") => Program::Versions,
        () if is_asked_for("GRADIENTS") => Program::Gradients,
        () if is_asked_for("PARTICLES") => Program::Particles,
        () if is_asked_for("CACHES") => Program::Caches,
        () if is_asked_for("POSTERIORS") => Program::Posteriors,
        () => Program::Nodes,
    };
    for seed in first..first + count {
        let scenario = program.scenario(seed);
        let (outcome, log) = run(program, &scenario, None, count == 1 && std::env::var_os("LOG").is_some());
        println!("{log}");
        match outcome {
            Ok(report) => {
                switches += report.switches;
                println!("{seed}: {report}");
            }
            Err(wrong) => println!("{seed} WRONG: {wrong}\n{scenario:?}"),
        }
    }
    println!("{:?}, {switches} switches", begun.elapsed());
}
