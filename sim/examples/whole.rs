//! Runs one whole job: `whole SEED [COUNT]`.

use sheave_sim::whole::{Scenario, run};

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let first = arguments.next().unwrap_or(1);
    let count = arguments.next().unwrap_or(1);
    let begun = std::time::Instant::now();
    let mut switches = 0;
    for seed in first..first + count {
        let scenario = Scenario::from_seed(seed);
        let (outcome, log) = run(&scenario, None, count == 1 && std::env::var_os("LOG").is_some());
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
