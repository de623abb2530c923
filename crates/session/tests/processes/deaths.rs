//! Workers that die, alone and together, and controllers that do.

use crate::common;
use crate::common::{PATIENCE, functions, playing};
use sheave_base::{Error, ErrorKind};
use sheave_session::{Args, Session};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Not a test, but what this binary's child processes run.
#[test]
fn actor() {
    common::act();
}

fn session(workers: u32) -> Session {
    functions();
    Session::processes(workers, 1, &playing("worker")).expect("there is room for some workers")
}

#[test]
fn a_worker_that_dies_is_told_with_its_end_and_the_others_go_on() {
    let session = session(3);
    let [die, add] = ["die on", "add one"].map(|name| session.function(name).unwrap());
    session.sync_all(PATIENCE).unwrap();
    let begun = Instant::now();
    session.call(&die, &Args::new().value(2)).unwrap();
    let error = session.sync(2, PATIENCE).unwrap_err();
    let took = begun.elapsed();
    assert_eq!(error.kind(), ErrorKind::WorkerDied, "{error}");
    assert!(took < Duration::from_secs(1), "{took:?}");
    let end = error.process_end().expect("it is known");
    assert_eq!((end.status(), end.last_lines().contains("the last words of 2")), (Some(7), true), "{error}");
    assert!(error.to_string().contains("worker 2"), "{error}");
    let number = session.call(&add, &Args::new().value(1)).unwrap();
    for worker in [0, 1] {
        assert_eq!(number.get::<i64>(worker, PATIENCE).unwrap(), 2, "the others go on");
    }
    assert_eq!(number.get::<i64>(2, PATIENCE).unwrap_err().kind(), ErrorKind::WorkerDied);
    session.shutdown().expect("it was told");
}

#[test]
fn all_workers_but_the_first_die_at_once() {
    let session = session(4);
    let [pid, add] = ["pid", "add one"].map(|name| session.function(name).unwrap());
    let pids = session.call(&pid, &Args::new()).unwrap();
    let pids: Vec<u32> = (1..4).map(|worker| pids.get(worker, PATIENCE).unwrap()).collect();
    let begun = Instant::now();
    for pid in &pids {
        // SAFETY: it is a process of this test's own.
        let killed = unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
        assert_eq!(killed, 0);
    }
    let mut told: Vec<_> = (1..4).map(|worker| session.sync(worker, PATIENCE).unwrap_err()).collect();
    // Whoever waits for one of them may have been told of another one before, and is told of its own after that.
    let named = |told: &[Error]| told.iter().filter_map(Error::about).map(|peer| peer.rank).collect::<BTreeSet<_>>();
    while named(&told) != [1, 2, 3].map(Some).into() {
        assert!(begun.elapsed() < Duration::from_secs(2), "{told:?}");
        told.extend(session.sync(0, PATIENCE).err());
    }
    for error in &told {
        assert_eq!(error.kind(), ErrorKind::WorkerDied, "{error}");
        assert_eq!(error.process_end().and_then(sheave_base::ProcessEnd::status), Some(-libc::SIGKILL), "{error}");
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let number = session.call(&add, &Args::new().value(1)).unwrap();
    assert_eq!(number.get::<i64>(0, PATIENCE).unwrap(), 2, "the first goes on");
    session.shutdown().expect("they were told");
}

/// Whoever waits for another worker is told, once.
#[test]
fn a_death_is_told_by_whatever_waits_next() {
    let session = session(3);
    let die = session.function("die on").unwrap();
    session.call(&die, &Args::new().value(1)).unwrap();
    let begun = Instant::now();
    let error = loop {
        match session.sync(0, PATIENCE) {
            Ok(()) => assert!(begun.elapsed() < Duration::from_secs(5), "nobody is told"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::WorkerDied, "{error}");
    session.sync(0, PATIENCE).expect("it was told");
    session.sync(2, PATIENCE).expect("it lives");
    session.shutdown().expect("it was told");
}

/// Whether a process is there and not a zombie.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).is_some_and(|state| !"ZX".contains(state))
}

#[test]
fn workers_do_not_outlive_a_controller_that_is_killed() {
    let program = std::env::current_exe().expect("this program has a path");
    let mut controller = std::process::Command::new(program)
        .args(["--exact", "deaths::actor", "--nocapture", "--quiet"])
        .env("SHEAVE_TEST_PART", "controller")
        .stdout(Stdio::piped())
        .spawn()
        .expect("there is room for a process");
    let said = BufReader::new(controller.stdout.take().expect("it is piped")).lines();
    let pids = said.map_while(Result::ok).find_map(|line| {
        let (_, pids) = line.split_once("workers ")?;
        Some(pids.split(' ').map(|pid| pid.parse().expect("a number")).collect::<Vec<u32>>())
    });
    let pids = pids.expect("it says who works for it");
    assert!(pids.iter().all(|pid| lives(*pid)));
    controller.kill().expect("it is ours");
    controller.wait().expect("it was killed");
    let begun = Instant::now();
    while pids.iter().any(|pid| lives(*pid)) {
        assert!(begun.elapsed() < Duration::from_secs(10), "they live on");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_process_that_ends_before_it_has_joined_is_named() {
    let begun = Instant::now();
    let error = Session::processes(3, 1, &playing("early")).expect_err("nobody joins");
    assert_eq!(error.kind(), ErrorKind::WorkerDied, "{error}");
    let end = error.process_end().expect("it is known");
    assert_eq!((end.status(), end.last_lines().contains("no luck")), (Some(5), true), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}
