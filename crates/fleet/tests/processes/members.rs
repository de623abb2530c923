//! Fleets of members that are processes: what they return, who failed first, and what is left.

use crate::common::{PART, PATIENCE, SIGKILL, lives, playing, refused};
use sheave_base::{Error, ErrorKind, ProcessEnd};
use sheave_fleet::{Answer, JobMember, JobPlan, MemberFleet, Sheet};
use sheave_mesh::{Config, Mesh, Role};
use sheave_process::{Child, Job};
use std::time::Duration;

/// The part of a process that a test has started.
#[test]
fn actor() {
    let part = std::env::var(PART).unwrap_or_default();
    if !part.is_empty() {
        std::process::exit(if part == "answers" { answer() } else { be_member(&part) });
    }
}

#[expect(clippy::print_stderr, reason = "it is what the test looks for")]
fn be_member(part: &str) -> i32 {
    let mesh = Mesh::join(Config::from_env().expect("it makes sense").expect("it has a place")).expect("all come");
    let is_first = mesh.name() == "rank-0" || mesh.name() == "worker-0";
    match part {
        "fails" if is_first => {
            eprintln!("out of data");
            return 5;
        }
        "dies" if is_first => {
            // Nobody is left to say anything.
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::KILL).expect("it is this process");
        }
        "vanishes" if is_first => return 0,
        "stays" if is_first => std::thread::sleep(PATIENCE),
        _ => {}
    }
    let done = match mesh.role() {
        Role::Rank => mesh.world().barrier().and_then(|()| mesh.finish()),
        Role::Worker => mesh.leave(),
        Role::Scheduler | Role::Server => {
            let gone = mesh.until_gone(|member| member.introduction.role == Role::Worker);
            gone.and_then(|()| mesh.leave())
        }
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            1
        }
    }
}

/// Answers as its order says.
fn answer() -> i32 {
    let sheet = Sheet::of_this_process().expect("it was given one");
    assert_eq!(Sheet::of_this_process().expect_err("it has it").kind(), ErrorKind::NotFound);
    let order = String::from_utf8(sheet.take_order().expect("it was not taken")).expect("it is a text");
    match &*order {
        "return and crash" => {
            sheet.write_answer(&Answer::Returned(vec![7; 10 << 20])).expect("there is room");
            9
        }
        "fail" => {
            sheet.write_answer(&Answer::Failed(b"for a reason".to_vec())).expect("there is room");
            6
        }
        "say nothing" => 0,
        _ => {
            std::thread::sleep(PATIENCE);
            2
        }
    }
}

/// A fleet of processes with these orders, and their sheets.
fn ordered(orders: &[&str]) -> (MemberFleet, Vec<Sheet>) {
    let sheets: Vec<Sheet> = orders.iter().map(|order| Sheet::new(order.as_bytes()).expect("memory")).collect();
    let plan = JobPlan::new(orders.len() as u32, 0).expect("a port and a secret");
    let mut handed = sheets.iter().map(|sheet| sheet.hand(playing("answers")).expect("there are descriptors"));
    let started = MemberFleet::start(plan, Job::start().expect("a job"), |_| handed.next().expect("one for each"));
    (started.expect("they start"), sheets)
}

fn fleet(part: &'static str, workers: u32, servers: u32) -> MemberFleet {
    let plan = JobPlan::new(workers, servers).expect("a port and a secret");
    MemberFleet::start(plan, Job::start().expect("a job"), |_| playing(part)).expect("they start")
}

fn failure(part: &'static str) -> (Error, Vec<u32>) {
    let fleet = fleet(part, 3, 0);
    let pids = fleet.children().iter().map(Child::pid).collect();
    let (kind, error) = refused(fleet.wait(Some(PATIENCE)));
    assert_eq!(kind, ErrorKind::WorkerDied, "{error}");
    assert_eq!(fleet.living(), "", "all have ended");
    (error, pids)
}

fn status(error: &Error) -> Option<i32> {
    error.process_end().and_then(ProcessEnd::status)
}

#[test]
fn ranks_meet_and_end_well() {
    let fleet = fleet("works", 3, 0);
    fleet.wait(Some(PATIENCE)).expect("all is well");
    fleet.wait(Some(PATIENCE)).expect("it may be waited for again");
    assert!(fleet.children().iter().all(|child| child.exit().is_some_and(|exit| exit.status.success())));
}

#[test]
fn the_first_who_failed_is_the_error_and_not_those_who_failed_for_it() {
    let (error, pids) = failure("fails");
    assert_eq!(status(&error), Some(5));
    let about = error.about().expect("it names the process");
    assert_eq!((&*about.name, about.rank, about.pid), ("rank-0", Some(0), Some(pids[0])), "{error}");
    assert_eq!(error.process_end().map(ProcessEnd::last_lines), Some("out of data"));
    assert!(error.to_string().contains("out of data") && error.after().is_some(), "{error}");
    assert!(!pids.into_iter().any(lives));
    let (error, _) = failure("dies");
    assert_eq!((status(&error), error.about().and_then(|peer| peer.rank)), (Some(-SIGKILL), Some(0)), "{error}");
    let (error, _) = failure("vanishes");
    assert_eq!((status(&error), error.about().and_then(|peer| peer.rank)), (Some(0), Some(0)), "{error}");
    assert!(error.to_string().contains("without leaving the mesh"), "{error}");
}

#[test]
fn a_wait_that_is_over_ends_nobody_and_a_drop_ends_all() {
    let fleet = fleet("stays", 2, 0);
    let pids: Vec<u32> = fleet.children().iter().map(Child::pid).collect();
    let (kind, error) = refused(fleet.wait(Some(Duration::from_millis(200))));
    assert!(kind == ErrorKind::DeadlineExceeded && error.to_string().contains("rank-0 (pid "), "{error}");
    let mut interrupt = || Err(Error::new(ErrorKind::Interrupted, "enough"));
    let (kind, error) = refused(fleet.wait_interruptible(Some(PATIENCE), Some(&mut interrupt)));
    assert_eq!(kind, ErrorKind::Interrupted, "{error}");
    assert!(pids.iter().all(|pid| lives(*pid)));
    drop(fleet);
    assert!(!pids.into_iter().any(lives));
}

#[test]
fn a_process_that_has_answered_is_done_however_it_ends() {
    let (fleet, sheets) = ordered(&["return and crash", "return and crash"]);
    fleet.wait(Some(PATIENCE)).expect("both have answered");
    for sheet in &sheets {
        assert_eq!(sheet.answer().expect("it is read"), Some(Answer::Returned(vec![7; 10 << 20])));
    }
}

#[test]
fn a_process_that_has_not_answered_has_failed_even_if_it_ends_well() {
    let (fleet, sheets) = ordered(&["sleep", "say nothing"]);
    let (kind, error) = refused(fleet.wait(Some(PATIENCE)));
    assert_eq!((kind, status(&error)), (ErrorKind::WorkerDied, Some(0)), "{error}");
    assert_eq!(error.about().and_then(|peer| peer.rank), Some(1), "{error}");
    assert_eq!(sheets[1].answer().expect("it is read"), None);
    let (fleet, sheets) = ordered(&["sleep", "fail"]);
    let (kind, error) = refused(fleet.wait(Some(PATIENCE)));
    assert_eq!((kind, status(&error)), (ErrorKind::WorkerDied, Some(6)), "{error}");
    assert_eq!(sheets[1].answer().expect("it is read"), Some(Answer::Failed(b"for a reason".to_vec())));
}

#[test]
fn servers_and_scheduler_are_waited_for() {
    let fleet = fleet("works", 2, 1);
    let names: Vec<String> = fleet.plan().members().iter().map(JobMember::name).collect();
    assert_eq!(names, ["scheduler", "server-0", "worker-0", "worker-1"]);
    fleet.wait(Some(PATIENCE)).expect("all is well");
    assert!(fleet.children().iter().all(|child| child.exit().is_some_and(|exit| exit.status.success())));
}
