//! Thousands of jobs and their troubles, each from a seed. `SHEAVE_SIM_SEEDS` says how many.

#[path = "../../crates/mesh/tests/common/seeds.rs"]
mod seeds;

use seeds::fresh_seeds;
use sheave_sim::{Faults, Scenario, World, run};
use std::time::Duration;

fn seeds() -> u64 {
    match std::env::var("SHEAVE_SIM_SEEDS") {
        Ok(count) => count.parse().expect("SHEAVE_SIM_SEEDS is a number"),
        Err(_) => 1500,
    }
}

fn log_of(seed: u64) -> String {
    let mut world = World::new(Scenario::from_seed(seed), Faults::default());
    world.log = Some(String::new());
    let end = world.run();
    format!("{}{end:?}", world.log.unwrap_or_default())
}

#[test]
fn a_seed_run_twice_gives_the_same_log() {
    for seed in 0..20 {
        let (one, other) = (log_of(seed), log_of(seed));
        assert!(one.len() > 10_000, "seed {seed}: a run must have something to tell, this has {} bytes", one.len());
        assert!(one == other, "seed {seed}: two runs differ");
    }
    assert_ne!(log_of(1), log_of(2));
}

#[test]
fn every_promise_holds_for_every_seed() {
    let (mut passed, mut failed, mut left, mut wrong) = (0, 0, 0, Vec::new());
    for seed in 0..seeds() {
        match run(seed, Faults::default()) {
            Ok(world) => {
                passed += world.check.passed;
                failed += world.check.failed;
                left += world.check.left;
            }
            Err(message) => wrong.push(message),
        }
    }
    assert!(wrong.is_empty(), "{} of {} seeds are wrong:\n{}", wrong.len(), seeds(), wrong.join("\n"));
    assert!(passed > 10 * seeds() && failed > seeds(), "{passed} barriers passed and {failed} failed: too few to tell");
    assert!(left > seeds(), "{left} nodes left: too few to tell");
    println!("{} seeds: {passed} barriers passed, {failed} failed, {left} nodes left", seeds());
}

fn any(seed: u64) {
    if let Err(message) = run(seed, Faults::default()) {
        panic!("seed {seed} is wrong: {message}");
    }
}

#[test]
fn fresh_seeds_of_jobs() {
    fresh_seeds(Duration::from_secs(2), 2, any);
}

#[test]
#[ignore = "chaos suite: takes minutes"]
fn many_fresh_seeds_of_jobs() {
    fresh_seeds(Duration::from_secs(120), 2, any);
}

/// The first seed that a planted bug makes fail, and how.
fn caught(faults: Faults) -> String {
    let found = (0..seeds()).find_map(|seed| run(seed, faults).err());
    found.unwrap_or_else(|| panic!("{faults:?} was not caught in {} seeds", seeds()))
}

#[test]
fn a_skipped_epoch_check_is_caught() {
    let how = caught(Faults { skip_epoch_check: true, ..Faults::default() });
    println!("{how}");
    assert!(how.contains("epoch"), "{how}");
}

#[test]
fn counting_messages_instead_of_members_is_caught() {
    let how = caught(Faults { count_messages: true, ..Faults::default() });
    println!("{how}");
    assert!(how.contains("never entered"), "{how}");
}

#[test]
fn a_dropped_death_notice_is_caught() {
    println!("{}", caught(Faults { drop_one_death_notice: true, ..Faults::default() }));
}

#[test]
fn a_barrier_released_one_early_is_caught() {
    let how = caught(Faults { release_one_early: true, ..Faults::default() });
    println!("{how}");
    assert!(how.contains("never entered"), "{how}");
}

#[test]
fn a_leave_without_a_decision_is_caught() {
    let how = caught(Faults { leave_undecided: true, ..Faults::default() });
    println!("{how}");
    assert!(how.contains("left") || how.contains("majority"), "{how}");
}
