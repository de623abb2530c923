//! Whole nodes in lockstep: thousands of jobs and their troubles, each from a seed, and bugs that they must find.
//!
//! A simulated process that is killed leaves threads and descriptors behind, so seeds run in children of this test,
//! some dozens in each. `SHEAVE_SIM_WHOLE_SEEDS` says how many there are, `SHEAVE_TEST_SEED` and `SHEAVE_TEST_SEEDS`
//! which of the fresh ones.

#[path = "../../crates/mesh/tests/common/seeds.rs"]
mod seeds;

use seeds::fresh_seeds;
use sheave_sim::lockstep::World;
use sheave_sim::whole::{Bug, Program, run, shrink};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// What a child does: its first seed, how many, and the bug that is planted, or the log of one seed.
const CHUNK: &str = "SHEAVE_SIM_CHUNK";
/// What stands around a log.
const LOG: &str = "-- log --";
/// Seeds of a child.
const CHUNK_SEEDS: u64 = 50;
/// A child that takes longer hangs.
const CHUNK_LIMIT: Duration = Duration::from_secs(120);

const BUGS: [Bug; 23] = [
    Bug::CreditForgotten,
    Bug::CreditTwice,
    Bug::AnswerLost,
    Bug::CancelIgnored,
    Bug::TimerLost,
    Bug::TimerEarly,
    Bug::PermitKept,
    Bug::MailboxTurned,
    Bug::MailboxShared,
    Bug::FreedEarly,
    Bug::ReleaseLost,
    Bug::PromiseTwice,
    Bug::PromiseOpen,
    Bug::EndUnheard,
    Bug::CallsOutlive,
    Bug::GuestStays,
    Bug::GateOpen,
    Bug::WakeLost,
    Bug::LastWordEarly,
    Bug::CancelUnsaid,
    Bug::TaskKept,
    Bug::FailureLost,
    Bug::OneWayLost,
];

const BUGS_OF_GROUPS: [Bug; 8] = [
    Bug::ReportUnheard,
    Bug::EntryUntold,
    Bug::EntryOutlives,
    Bug::EntryTwice,
    Bug::GenerationOld,
    Bug::EnteredEarly,
    Bug::LeaverBlamed,
    Bug::LostUnknown,
];

/// Seeds of jobs that make groups.
const SEEDS_OF_GROUPS: u64 = 500;

/// Seeds of jobs that are sessions.
const SEEDS_OF_SESSIONS: u64 = 300;

const BUGS_OF_SESSIONS: [Bug; 6] =
    [Bug::DeskTurned, Bug::DeskLost, Bug::FailureKept, Bug::PoisonLost, Bug::NameUndrawn, Bug::MissingUntold];

/// Seeds of jobs that are pools.
const SEEDS_OF_POOLS: u64 = 500;

const BUGS_OF_POOLS: [Bug; 16] = [
    Bug::OutcomeTurned,
    Bug::PlaceTurned,
    Bug::OutcomeKept,
    Bug::RevokedBegun,
    Bug::RevokedLost,
    Bug::LongUnseen,
    Bug::PassedOver,
    Bug::UnbegunFailed,
    Bug::OrphanLost,
    Bug::NotesUnread,
    Bug::LeaveUnheard,
    Bug::FunctionUnsent,
    Bug::EndForgotten,
    Bug::TriesUncounted,
    Bug::RoomUntold,
    Bug::PoolEndUntold,
];

/// Seeds of jobs that are queues.
const SEEDS_OF_QUEUES: u64 = 400;

const BUGS_OF_QUEUES: [Bug; 5] = [Bug::GetterUntold, Bug::AheadKept, Bug::RevokedTaken, Bug::BackLost, Bug::LossUntold];

/// Seeds of jobs that are tables of versioned objects.
const SEEDS_OF_VERSIONS: u64 = 300;

const BUGS_OF_VERSIONS: [Bug; 9] = [
    Bug::CompareSkipped,
    Bug::PushLost,
    Bug::PullStale,
    Bug::WatchForgotten,
    Bug::WatchOutlives,
    Bug::PinIgnored,
    Bug::PinOutlives,
    Bug::DeltaMisapplied,
    Bug::ChangeOmitted,
];

/// Seeds of jobs that have gradient servers.
const SEEDS_OF_GRADIENTS: u64 = 300;

const BUGS_OF_GRADIENTS: [Bug; 11] = [
    Bug::SumTwice,
    Bug::SumLost,
    Bug::MeanOfSums,
    Bug::StepUncounted,
    Bug::FlushForgotten,
    Bug::FlushEarly,
    Bug::BatchOverdue,
    Bug::VersionTwice,
    Bug::DropUncounted,
    Bug::DropUntold,
    Bug::LossUnsaid,
];

/// Seeds of jobs that have particles.
const SEEDS_OF_PARTICLES: u64 = 300;

const BUGS_OF_PARTICLES: [Bug; 11] = [
    Bug::ParticleTurned,
    Bug::ParticleShared,
    Bug::ParticleAnswersSwapped,
    Bug::ParticleForgotten,
    Bug::ParticleUnseen,
    Bug::ParticleCancelIgnored,
    Bug::ParticleRemovalUntold,
    Bug::CycleUnseen,
    Bug::CycleOutlives,
    Bug::ReentryLost,
    Bug::ReentryOutlives,
];

fn seeds_count() -> u64 {
    match std::env::var("SHEAVE_SIM_WHOLE_SEEDS") {
        Ok(count) => count.parse().expect("SHEAVE_SIM_WHOLE_SEEDS is a number"),
        Err(_) => 1000,
    }
}

/// Whatever is wrong with a seed, and the smallest scenario with which something is.
fn examine(program: Program, seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let scenario = program.scenario(seed);
    let Err(wrong) = run(program, &scenario, bug, false).0 else { return Ok(()) };
    if bug.is_some() {
        return Err(wrong);
    }
    let smallest = shrink(&scenario, |smaller| run(program, smaller, None, false).0.is_err());
    let wrong_there = run(program, &smallest, None, false).0.err().unwrap_or_default();
    Err(format!("{wrong}\nshrunk to {smallest:?}:\n{wrong_there}"))
}

/// Seeds of jobs that have devices with models.
const SEEDS_OF_CACHES: u64 = 150;

const BUGS_OF_CACHES: [Bug; 4] = [Bug::CachePinKept, Bug::CachePinIgnored, Bug::CacheRoomUntold, Bug::CacheRoomTwice];

/// Seeds of jobs that infer posteriors.
const SEEDS_OF_POSTERIORS: u64 = 50;

/// The part of a child.
#[test]
fn chunk() {
    let Ok(chunk) = std::env::var(CHUNK) else { return };
    let mut words = chunk.split(' ');
    let first: u64 = words.next().and_then(|word| word.parse().ok()).expect("a seed");
    let count: u64 = words.next().and_then(|word| word.parse().ok()).expect("a number of seeds");
    let what = words.next().expect("what to do");
    World::keep_to_core(words.next().and_then(|word| word.parse().ok()).expect("a core"));
    let (program, what) = match what.split_once(':') {
        Some(("groups", what)) => (Program::Groups, what),
        Some(("sessions", what)) => (Program::Sessions, what),
        Some(("pools", what)) => (Program::Pools, what),
        Some(("queues", what)) => (Program::Queues, what),
        Some(("versions", what)) => (Program::Versions, what),
        Some(("gradients", what)) => (Program::Gradients, what),
        Some(("particles", what)) => (Program::Particles, what),
        Some(("caches", what)) => (Program::Caches, what),
        Some(("posteriors", what)) => (Program::Posteriors, what),
        _ => (Program::Nodes, what),
    };
    match what {
        "log" => println!("{LOG}{}{LOG}", run(program, &program.scenario(first), None, true).1),
        name => {
            let bugs = BUGS.into_iter().chain(BUGS_OF_GROUPS).chain(BUGS_OF_SESSIONS).chain(BUGS_OF_POOLS);
            let bugs = bugs.chain(BUGS_OF_QUEUES).chain(BUGS_OF_VERSIONS).chain(BUGS_OF_GRADIENTS);
            let bugs = bugs.chain(BUGS_OF_PARTICLES).chain(BUGS_OF_CACHES);
            let bug = bugs.into_iter().find(|bug| format!("{bug:?}") == name);
            for seed in first..first + count {
                println!("seed {seed}");
                if let Err(wrong) = examine(program, seed, bug) {
                    println!("seed {seed} is WRONG: {wrong}");
                    if bug.is_some() {
                        return;
                    }
                }
            }
        }
    }
}

/// What a child has printed; an error if it has not come to its end.
fn child(first: u64, count: u64, what: &str) -> Result<String, String> {
    static CHILDREN: AtomicUsize = AtomicUsize::new(0);
    let core = CHILDREN.fetch_add(1, SeqCst);
    let own = std::env::current_exe().expect("it runs");
    let mut command = Command::new(own);
    command.args(["--exact", "chunk", "--nocapture"]).env(CHUNK, format!("{first} {count} {what} {core}"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("there is room for a process");
    let pipe = child.stdout.take().expect("it is piped");
    let reader = std::thread::spawn(move || std::io::read_to_string(pipe).expect("it prints text"));
    let end = Instant::now() + CHUNK_LIMIT;
    let status = loop {
        match child.try_wait().expect("it is ours") {
            Some(status) => break Some(status),
            None if Instant::now() > end => break None,
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    if status.is_none() {
        child.kill().expect("it is ours");
        child.wait().expect("it was killed");
    }
    let text = reader.join().expect("no panic");
    match status {
        Some(status) if status.success() => Ok(text),
        Some(status) => {
            Err(format!("{what}, seeds from {first}: the child ended with {status}: {}", last_lines(&text)))
        }
        None => Err(format!("{what}, seeds from {first}: the child hangs: {}", last_lines(&text))),
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join(" / ")
}

/// Runs these seeds in children, two at a time; returns what is wrong.
fn run_seeds(what: &str, first: u64, count: u64) -> Vec<String> {
    let next = AtomicU64::new(0);
    let work = || {
        let mut wrong = Vec::new();
        loop {
            let from = next.fetch_add(CHUNK_SEEDS, SeqCst);
            if from >= count {
                return wrong;
            }
            match child(first + from, CHUNK_SEEDS.min(count - from), what) {
                Ok(text) if text.contains("WRONG") => wrong.push(text),
                Ok(_) => {}
                Err(error) => wrong.push(error),
            }
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let mut wrong = work();
        wrong.extend(other.join().expect("no panic"));
        wrong
    })
}

#[test]
fn a_seed_gives_the_same_log_in_different_processes() {
    for (seed, what) in (0..12).map(|seed| (seed, "log")).chain((0..4).flat_map(|seed| {
        ["groups", "sessions", "pools", "queues", "versions", "gradients", "particles", "caches", "posteriors"]
            .map(|program| (seed, program))
    })) {
        let what = if what == "log" { what.to_owned() } else { format!("{what}:log") };
        let what = what.as_str();
        let log = || child(seed, 1, what).expect("it ends").split(LOG).nth(1).map(str::to_owned);
        let (one, other) = (log().expect("a log"), log().expect("a log"));
        assert!(one.len() > 1000, "seed {seed}: a run must have something to tell, this has {} bytes", one.len());
        assert!(one == other, "seed {seed}: two runs differ");
    }
}

#[test]
fn every_promise_of_whole_nodes_holds_for_every_seed() {
    let wrong = run_seeds("seeds", 0, seeds_count());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_promise_of_groups_holds_for_every_seed() {
    let wrong = run_seeds("groups:seeds", 0, SEEDS_OF_GROUPS.min(seeds_count()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_promise_of_sessions_holds_for_every_seed() {
    let wrong = run_seeds("sessions:seeds", 0, SEEDS_OF_SESSIONS.min(seeds_count()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_promise_of_pools_holds_for_every_seed() {
    let wrong = run_seeds("pools:seeds", 0, SEEDS_OF_POOLS.min(seeds_count()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn planted_bugs_of_pools_are_found() {
    hunt_for(&BUGS_OF_POOLS, "pools:", SEEDS_OF_POOLS.min(seeds_count()));
}

#[test]
fn fresh_seeds_of_pools() {
    fresh_seeds(Duration::from_secs(2), 1, |seed| some(seed, "pools:seeds"));
}

#[test]
fn every_promise_of_queues_holds_for_every_seed() {
    let wrong = run_seeds("queues:seeds", 0, SEEDS_OF_QUEUES.min(seeds_count()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn planted_bugs_of_queues_are_found() {
    hunt_for(&BUGS_OF_QUEUES, "queues:", SEEDS_OF_QUEUES.min(seeds_count()));
}

#[test]
fn fresh_seeds_of_queues() {
    fresh_seeds(Duration::from_secs(2), 1, |seed| some(seed, "queues:seeds"));
}

#[test]
fn every_promise_of_versions_holds_for_every_seed() {
    let wrong = run_seeds("versions:seeds", 0, SEEDS_OF_VERSIONS.min(seeds_count()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn planted_bugs_of_versions_are_found() {
    hunt_for(&BUGS_OF_VERSIONS, "versions:", SEEDS_OF_VERSIONS.min(seeds_count()));
}

#[test]
fn fresh_seeds_of_versions() {
    fresh_seeds(Duration::from_secs(2), 1, |seed| some(seed, "versions:seeds"));
}

#[test]
fn every_promise_of_gradient_servers_holds_for_every_seed() {
    let wrong = run_seeds("gradients:seeds", 0, SEEDS_OF_GRADIENTS.min(seeds_count()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_promise_of_particles_holds_for_every_seed() {
    let wrong = run_seeds("particles:seeds", 0, SEEDS_OF_PARTICLES.min(seeds_count()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_promise_of_caches_holds_for_every_seed() {
    let wrong = run_seeds("caches:seeds", 0, SEEDS_OF_CACHES.min(seeds_count()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn planted_bugs_of_caches_are_found() {
    hunt_for(&BUGS_OF_CACHES, "caches:", SEEDS_OF_CACHES.min(seeds_count()));
}

#[test]
fn fresh_seeds_of_caches() {
    fresh_seeds(Duration::from_secs(1), 1, |seed| some(seed, "caches:seeds"));
}

#[test]
fn every_promise_of_posteriors_holds_for_every_seed() {
    let wrong = run_seeds("posteriors:seeds", 0, SEEDS_OF_POSTERIORS.min(seeds_count()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn fresh_seeds_of_posteriors() {
    fresh_seeds(Duration::from_secs(1), 1, |seed| some(seed, "posteriors:seeds"));
}

/// Seeds that have failed once, by a fault of the product or of its books.
#[test]
fn every_promise_holds_for_seeds_that_failed_once() {
    let gradients = [1406, 2420, 5022, 5695, 6441, 9181, 110_577, 426_833_319, 927_031_984];
    let mut wrong = run_seeds("seeds", 1_485_091_295, 1);
    wrong.extend(gradients.iter().flat_map(|seed| run_seeds("gradients:seeds", *seed, 1)));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn planted_bugs_of_gradient_servers_are_found() {
    hunt_for(&BUGS_OF_GRADIENTS, "gradients:", SEEDS_OF_GRADIENTS.min(seeds_count()));
}

#[test]
fn fresh_seeds_of_gradient_servers() {
    fresh_seeds(Duration::from_secs(2), 1, |seed| some(seed, "gradients:seeds"));
}

#[test]
fn planted_bugs_of_particles_are_found() {
    hunt_for(&BUGS_OF_PARTICLES, "particles:", SEEDS_OF_PARTICLES.min(seeds_count()));
}

#[test]
fn fresh_seeds_of_particles() {
    fresh_seeds(Duration::from_secs(2), 1, |seed| some(seed, "particles:seeds"));
}

#[test]
fn planted_bugs_of_sessions_are_found() {
    hunt_for(&BUGS_OF_SESSIONS, "sessions:", SEEDS_OF_SESSIONS.min(seeds_count()));
}

#[test]
fn fresh_seeds_of_sessions() {
    fresh_seeds(Duration::from_secs(2), 1, |seed| some(seed, "sessions:seeds"));
}

#[test]
fn fresh_seeds_of_whole_nodes() {
    fresh_seeds(Duration::from_secs(4), 1, |seed| some(seed, "seeds"));
}

#[test]
fn fresh_seeds_of_groups() {
    fresh_seeds(Duration::from_secs(2), 1, |seed| some(seed, "groups:seeds"));
}

#[test]
#[ignore = "chaos suite: takes minutes"]
fn many_fresh_seeds_of_whole_nodes() {
    fresh_seeds(Duration::from_secs(180), 2, |seed| some(seed, "seeds"));
    fresh_seeds(Duration::from_secs(60), 2, |seed| some(seed, "groups:seeds"));
    fresh_seeds(Duration::from_secs(60), 2, |seed| some(seed, "sessions:seeds"));
    fresh_seeds(Duration::from_secs(60), 2, |seed| some(seed, "pools:seeds"));
    fresh_seeds(Duration::from_secs(60), 2, |seed| some(seed, "queues:seeds"));
    fresh_seeds(Duration::from_secs(60), 2, |seed| some(seed, "versions:seeds"));
    fresh_seeds(Duration::from_secs(60), 2, |seed| some(seed, "gradients:seeds"));
    fresh_seeds(Duration::from_secs(60), 2, |seed| some(seed, "particles:seeds"));
    fresh_seeds(Duration::from_secs(60), 2, |seed| some(seed, "caches:seeds"));
    fresh_seeds(Duration::from_secs(60), 2, |seed| some(seed, "posteriors:seeds"));
}

fn some(seed: u64, what: &str) {
    let text = child(seed, 1, what).unwrap_or_else(|error| panic!("{error}"));
    assert!(!text.contains("WRONG"), "{text}");
}

/// Each bug is found by the seeds that the test command runs.
#[test]
fn planted_bugs_are_found() {
    hunt_for(&BUGS, "", seeds_count());
}

#[test]
fn planted_bugs_of_groups_are_found() {
    hunt_for(&BUGS_OF_GROUPS, "groups:", SEEDS_OF_GROUPS.min(seeds_count()));
}

fn hunt_for(bugs: &[Bug], program: &str, seeds: u64) {
    let next = AtomicU64::new(0);
    let hunt = || {
        let mut missed = Vec::new();
        while let Some(bug) = bugs.get(next.fetch_add(1, SeqCst) as usize) {
            let found = (0..seeds / CHUNK_SEEDS).find_map(|part| {
                let text = child(part * CHUNK_SEEDS, CHUNK_SEEDS, &format!("{program}{bug:?}"));
                // The world itself finds who goes round for ever: a child that hangs has found nothing.
                let text = text.unwrap_or_else(|error| panic!("{error}"));
                let at = text.find("WRONG")?;
                let seeds = part * CHUNK_SEEDS + text.matches("seed ").count() as u64 - 1;
                Some(format!("{bug:?} after {seeds} seeds: {}", text[at..].lines().next().unwrap_or_default()))
            });
            match found {
                Some(found) => println!("{found}"),
                None => missed.push(*bug),
            }
        }
        missed
    };
    let missed = std::thread::scope(|scope| {
        let other = scope.spawn(hunt);
        let mut missed = hunt();
        missed.extend(other.join().expect("no panic"));
        missed
    });
    assert!(missed.is_empty(), "{missed:?} were not found by {seeds} seeds");
}
