//! Signals of the supervisor reach its children, when it asks for that.

use crate::common::{Actor, lives, new_tag, part, send_signal, soon, tagged, until};
use sheave_base::ErrorKind;
use sheave_process::{Command, Job, Outcome, Output};
use std::time::Duration;

/// A child that says which signal it got, then ends; it is deaf to the first `SIGINT` if told so.
const LISTENER: &str = "
    trap 'echo got TERM; exit 0' TERM
    trap 'echo got HUP; exit 0' HUP
    trap 'echo got INT; [ $DEAF ] || exit 0' INT
    echo ready
    while :; do sleep 0.01; done";

#[test]
fn role_forwarder() {
    let Some((part, tag)) = part() else { return };
    let job = Job::builder().output(Output::Prefixed { colour: Default::default() }).start().unwrap();
    let forwarding = job.forward_signals().unwrap();
    assert_eq!(job.forward_signals().unwrap_err().kind(), ErrorKind::AlreadyExists);
    let deaf = if part == "deaf" { "1" } else { "" };
    println!();
    job.spawn(Command::new("sh").args(["-c", LISTENER]).env("DEAF", deaf).name("worker-0")).unwrap();
    let background = Command::new("sh").args(["-c", &format!("trap '' INT TERM HUP; sleep {tag} & wait; sleep {tag}")]);
    job.spawn(background.name("worker-1")).unwrap();
    let outcome = job.wait_first_failure_or_all(Some(soon())).unwrap();
    assert!(matches!(outcome, Some(Outcome::Signal(_))), "{outcome:?}");
    println!("signal seen");
    let grace = if part == "deaf" { Duration::from_secs(60) } else { Duration::from_millis(300) };
    // While a deaf child has a long time to follow, the second interrupt must be what ends it.
    let report = if part == "deaf" { wait_then_end(&job, grace) } else { job.end(grace) };
    assert!(tagged(&tag).is_empty());
    drop(forwarding);
    drop(job.forward_signals().unwrap());
    std::process::exit(report.exit_code());
}

fn wait_then_end(job: &Job, grace: Duration) -> sheave_process::Report {
    let started = std::time::Instant::now();
    let report = job.end(grace);
    assert!(started.elapsed() < Duration::from_secs(30), "the second interrupt did not shorten the grace");
    report
}

#[test]
fn each_signal_arrives_and_makes_the_exit_code() {
    for (signal, name) in [(libc::SIGINT, "INT"), (libc::SIGTERM, "TERM"), (libc::SIGHUP, "HUP")] {
        let tag = new_tag();
        let mut actor = Actor::start("signals::role_forwarder", "listen", &tag);
        actor.line_after("worker-0 | ready");
        until("the background runs", soon(), || tagged(&tag).len() == 1);
        send_signal(actor.pid(), signal);
        let mut lines = [actor.line_after(""), actor.line_after("")];
        lines.sort();
        assert_eq!(lines, ["signal seen".to_owned(), format!("worker-0 | got {name}")]);
        assert_eq!(actor.wait().code(), Some(128 + signal));
        assert!(tagged(&tag).is_empty());
    }
}

#[test]
fn the_second_interrupt_kills() {
    let tag = new_tag();
    let mut actor = Actor::start("signals::role_forwarder", "deaf", &tag);
    actor.line_after("worker-0 | ready");
    until("the background runs", soon(), || tagged(&tag).len() == 1);
    send_signal(actor.pid(), libc::SIGINT);
    actor.line_after("signal seen");
    assert!(lives(actor.pid()));
    send_signal(actor.pid(), libc::SIGINT);
    assert_eq!(actor.wait().code(), Some(128 + libc::SIGINT));
    assert!(tagged(&tag).is_empty());
}

#[test]
fn without_being_asked_the_job_changes_no_handler() {
    let handlers = || std::fs::read_to_string("/proc/self/status").unwrap();
    let caught = |status: &str| status.lines().find(|line| line.starts_with("SigCgt")).unwrap().to_owned();
    let before = caught(&handlers());
    let job = Job::start().unwrap();
    job.spawn(Command::new("true")).unwrap();
    assert_eq!(caught(&handlers()), before);
    let forwarding = job.forward_signals().unwrap();
    assert_ne!(caught(&handlers()), before);
    drop(forwarding);
    assert_eq!(caught(&handlers()), before);
}
