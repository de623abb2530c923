//! Processes that are stopped: every node counts them as dead after the time that it chooses, and nobody else.

use crate::common::{ended_well, hear, job, note, part, parts, roles, say, start_all, until};
use sheave_base::config::Transport;
use sheave_mesh::{Mesh, Role};
use sheave_store::num_dead_node;
use std::time::{Duration, Instant};

const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// What the askers choose: shorter and longer than the liveness timeout.
const SHORT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(60);
/// The default of the design.
const LIVENESS_TIMEOUT: Duration = Duration::from_secs(5);
/// For a loaded machine; whoever lives answers in much less.
const SLACK: Duration = Duration::from_millis(500);

const SERVERS: u32 = 2;
const WORKERS: u32 = 2;
/// The scheduler, all servers and all workers.
const ALL: i32 = 7;

const VICTIM: &str = "SHEAVE_TEST_VICTIM";
const GOES_ON: &str = "SHEAVE_TEST_GOES_ON";

fn number_of(part: &str) -> i32 {
    let (role, rank) = part.split_once('-').expect("a role and a rank");
    let rank: i32 = rank.parse().expect("a number");
    match Role::from_name(role).expect("a role") {
        Role::Server => 8 + 2 * rank,
        Role::Worker => 9 + 2 * rank,
        _ => 1,
    }
}

struct Asker {
    mesh: Mesh,
    victim: String,
}

impl Asker {
    fn count(&self, node: i32, timeout: Duration) -> usize {
        num_dead_node(&self.mesh, node, timeout).expect("this node is a member")
    }

    /// Nobody is dead or silent, and that is known at once.
    fn check_calm(&self) {
        let begun = Instant::now();
        assert_eq!((self.count(ALL, SHORT), self.count(ALL, LONG), self.count(ALL, Duration::ZERO)), (0, 0, 0));
        assert!(begun.elapsed() < SHORT, "{:?}", begun.elapsed());
    }

    /// The victim is silent, for so long and not longer.
    fn check_silent(&self) {
        until("it is silent", || {
            let begun = Instant::now();
            let (count, took) = (self.count(ALL, SHORT), begun.elapsed());
            assert!(took < SHORT + SLACK && (count == 0 || took >= SHORT), "{count} after {took:?}");
            count == 1
        });
        for part in parts(roles(SERVERS, WORKERS)).iter().filter(|part| **part != self.victim) {
            let begun = Instant::now();
            assert_eq!((self.count(number_of(part), SHORT), self.count(ALL, LONG)), (0, 0), "{part} lives");
            assert!(begun.elapsed() < SHORT, "{part} is slow: {:?}", begun.elapsed());
        }
    }
}

#[test]
fn actor() {
    let Some(config) = part() else { return };
    assert_eq!(config.node.liveness.timeout, LIVENESS_TIMEOUT);
    let victim = std::env::var(VICTIM).expect("the test names it");
    let goes_on = std::env::var(GOES_ON).is_ok();
    let mesh = Mesh::join(config).expect("everybody comes");
    if std::env::var("SHEAVE_TEST_PART").is_ok_and(|me| me == victim) {
        say("calm");
        if goes_on {
            mesh.until_gone(|_| true).expect("nobody dies");
            return mesh.leave().expect("it is alone");
        }
        loop {
            std::thread::park();
        }
    }
    let asker = Asker { mesh, victim };
    (0..3).for_each(|_| asker.check_calm());
    say("calm");
    asker.check_silent();
    say("silent");
    if goes_on {
        until("it goes on", || asker.count(ALL, SHORT) == 0);
        asker.check_calm();
        say("well");
    } else {
        until("it is dead", || asker.count(ALL, LONG) == 1);
        assert_eq!((asker.count(ALL, SHORT), asker.count(number_of(&asker.victim), Duration::ZERO)), (1, 1));
        say("dead");
        // It ends well where the others have been faster.
        let _ = asker.mesh.until_gone_tolerating(|_| true, |_| true, Some(&mut enough()));
    }
    // Of the last ones not all can be told.
    let _ = asker.mesh.leave();
}

/// Lets the others see what they have to see before this node goes.
fn enough() -> impl FnMut() -> sheave_base::Result<()> {
    let until = Instant::now() + LIVENESS_TIMEOUT / 5;
    move || match Instant::now() < until {
        true => Ok(()),
        false => Err(sheave_base::Error::new(sheave_base::ErrorKind::DeadlineExceeded, "it was enough")),
    }
}

fn stop(victim: &str, goes_on: bool, transport: Transport) {
    let job = job();
    let expected = roles(SERVERS, WORKERS);
    let mut variables = vec![(VICTIM, victim)];
    if goes_on {
        variables.push((GOES_ON, "yes"));
    }
    let mut children = start_all(&job, expected, transport, &variables);
    children.iter().for_each(|child| drop(hear(child, "calm")));
    let at = parts(expected).iter().position(|part| part == victim).expect("it is one of them");
    let begun = Instant::now();
    let stopped = children.remove(at);
    stopped.kill(SIGSTOP).expect("it lives");
    children.iter().for_each(|child| drop(hear(child, "silent")));
    let known = begun.elapsed();
    if goes_on {
        stopped.kill(SIGCONT).expect("it lives");
        children.iter().for_each(|child| drop(hear(child, "well")));
        children.push(stopped);
        return ended_well(&children);
    }
    children.iter().for_each(|child| drop(hear(child, "dead")));
    let dead = begun.elapsed();
    note(&format!("{transport:?}: {victim} stopped: silent after {known:?}, dead after {dead:?}"));
    // The first question may have been asked just before, so two take their whole time; and about four more nodes the
    // scheduler is asked in vain for half of it.
    assert!(known < SHORT * 4 + SLACK, "{known:?}");
    assert!(dead < LIVENESS_TIMEOUT + SHORT + SLACK, "{dead:?}");
    stopped.kill(SIGKILL).expect("it is there");
    ended_well(&children);
}

#[test]
fn a_stopped_worker_is_found_silent_by_every_node() {
    stop("worker-1", false, Transport::Shm);
}

#[test]
fn a_stopped_server_is_found_silent_by_every_node() {
    stop("server-1", false, Transport::Tcp);
}

#[test]
fn a_stopped_scheduler_is_found_silent_by_every_node() {
    stop("scheduler-0", false, Transport::Shm);
    stop("scheduler-0", false, Transport::Tcp);
}

#[test]
fn whoever_goes_on_in_time_lives() {
    for victim in ["worker-1", "server-1", "scheduler-0"] {
        stop(victim, true, Transport::Shm);
    }
}
