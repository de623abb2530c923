//! Several processes are killed at once, and in the worst moments: while all join, while groups are made, while the
//! survivors shrink, while all leave. Whoever is left knows who it was, and goes on.

use crate::common;
use crate::common::{PATIENCE, actor as command, free_port, hear, job, note, part, say, until};
use sheave_base::config::Transport;
use sheave_base::{Error, NodeId, Rank};
use sheave_mesh::{Expected, Group, Mesh};
use sheave_process::{Child, Job};
use std::time::{Duration, Instant};

/// The bound of the design for everything that a killed process is needed for.
const BOUND: Duration = Duration::from_secs(1);

const SIGKILL: i32 = 9;
const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;
const RANKS: u32 = 5;
const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];
const MOMENT: &str = "SHEAVE_TEST_MOMENT";

/// After so long a silence a member is dead.
const SILENCE: Duration = Duration::from_secs(2);

#[test]
fn actor() {
    let Some(mut config) = part(Expected::ranks(RANKS)) else { return };
    let moment = std::env::var(MOMENT).expect("a moment");
    if moment == "link" {
        (config.node.liveness.timeout, config.node.liveness.beat) = (SILENCE, SILENCE / 5);
    }
    let mesh = Mesh::join(config).expect("everybody comes");
    say("joined");
    mesh.world().barrier().expect("all are there");
    say("ready");
    let whole = mesh.world();
    match moment.as_str() {
        "join" => {
            mesh.leave().expect("all agree");
            return say("left");
        }
        "link" => {
            if mesh.me().rank == Rank(1) {
                link_while_all_are_stopped(&mesh);
            }
            mesh.world().barrier().expect("nobody is lost");
            mesh.leave().expect("all agree");
            return say("left");
        }
        // The first victim never enters.
        "shrink" if is_first() => until("it is killed", || false),
        "groups" => {
            tell(&groups(&mesh));
            // The turn in which a group fails is another one on each member: all go on with what they share, which is
            // broken when a death is known.
            until("a death is known", || !mesh.deaths().is_empty());
        }
        "shrink" => tell(&mesh.world().barrier().expect_err("the victims never enter")),
        _ => {
            mesh.leave().expect("the rest agrees");
            return say("left");
        }
    }
    let size = go_on(whole);
    say(&format!("goes-on {size}"));
    mesh.leave().expect("the rest agrees");
    say("left");
}

/// Makes a link to rank 2, which is stopped by then, and says so.
fn link_while_all_are_stopped(mesh: &Mesh) {
    let other = &mesh.members()[2];
    let status = format!("/proc/{}/stat", other.introduction.pid);
    until("it is stopped", || std::fs::read_to_string(&status).is_ok_and(|status| status.contains(") T ")));
    std::thread::scope(|scope| {
        let linking = scope.spawn(|| mesh.link_to(other.node));
        let is_linking =
            || mesh.node().waits().iter().any(|wait| wait.to_string().contains("connect has been waiting"));
        until("the link is being made", is_linking);
        say("linking");
        linking.join().expect("no panic").expect("a stop is no silence");
    });
    say("linked");
}

fn is_first() -> bool {
    std::env::var("SHEAVE_TEST_VICTIM") == std::env::var(common::PART)
}

fn tell(error: &Error) {
    say(&format!("lost {:?} {error}", error.kind()));
}

/// Makes groups of all and of neighbours, one after the other, until one of them fails.
fn groups(mesh: &Mesh) -> Error {
    let nodes: Vec<NodeId> = mesh.members().iter().map(|member| member.node).collect();
    let end = Instant::now() + PATIENCE;
    for turn in 0.. {
        assert!(Instant::now() < end, "nobody was killed");
        let group = match mesh.group(&format!("turn {turn}"), &nodes) {
            Ok(group) => group,
            Err(error) => return error,
        };
        if let Err(error) = group.barrier() {
            return error;
        }
    }
    unreachable!("there are always more turns")
}

/// Shrinks the group until the living are whole; returns how many those are.
fn go_on(mut group: Group) -> usize {
    let end = Instant::now() + PATIENCE;
    loop {
        let rest = group.shrink().expect("it has lost somebody");
        match rest.barrier() {
            Ok(()) => return rest.size(),
            // One more has died meanwhile.
            Err(error) => assert!(error.kind().is_loss() && Instant::now() < end, "{error}"),
        }
        group = rest;
    }
}

fn start(job: &Job, rank: usize, port: u16, transport: Transport, (moment, first): (&str, usize)) -> Child {
    let command = command(&format!("rank-{rank}"), port, transport).env(MOMENT, moment);
    job.spawn(command.env("SHEAVE_TEST_VICTIM", format!("rank-{first}"))).expect("a process")
}

fn start_all(job: &Job, transport: Transport, moment: &str, first: usize) -> Vec<Child> {
    let port = free_port();
    (0..RANKS as usize).map(|rank| start(job, rank, port, transport, (moment, first))).collect()
}

/// Kills all victims at once: none of them does anything between the first kill and the last.
fn kill(children: &[Child], victims: &[usize]) {
    for signal in [SIGSTOP, SIGKILL] {
        victims.iter().for_each(|victim| children[*victim].kill(signal).expect("it lives"));
    }
}

fn names_one_of(said: &str, victims: &[usize]) -> bool {
    victims.iter().any(|victim| said.contains(&format!("rank-{victim} ")))
}

/// Those who are not among the victims.
fn survivors<'a>(children: &'a [Child], victims: &'a [usize]) -> impl Iterator<Item = &'a Child> {
    children.iter().enumerate().filter(|(rank, _)| !victims.contains(rank)).map(|(_, child)| child)
}

fn end_well(children: &[Child], victims: &[usize]) {
    for child in survivors(children, victims) {
        hear(child, "left");
        until("it has ended well", || child.exit().is_some_and(|exit| exit.status.success()));
    }
}

/// The coordinator and its successor among them, and two others: always fewer than half.
const VICTIMS: [&[usize]; 2] = [&[3, 4], &[0, 1]];

#[test]
fn f42_two_that_die_while_groups_are_made_are_named_and_done_without() {
    for transport in TRANSPORTS {
        for victims in VICTIMS {
            let job = job();
            let children = start_all(&job, transport, "groups", victims[0]);
            children.iter().for_each(|child| drop(hear(child, "ready")));
            let begun = Instant::now();
            kill(&children, victims);
            for child in survivors(&children, victims) {
                let said = hear(child, "lost");
                let took = begun.elapsed();
                note(&format!("{transport:?}, {victims:?}: {:.1} ms: {said}", took.as_secs_f64() * 1e3));
                assert!(said.starts_with("PeerLost") && names_one_of(&said, victims), "{said}");
                assert!(took < BOUND, "{took:?}");
            }
            survivors(&children, victims).for_each(|child| {
                let size = hear(child, "goes-on");
                assert_eq!(size, "3", "{}: {}", child.name(), child.stdout_lines().join("\n"));
            });
            end_well(&children, victims);
        }
    }
}

#[test]
fn f42_one_more_that_dies_while_the_rest_shrinks_is_done_without() {
    for transport in TRANSPORTS {
        for [first, second] in [[4, 3], [0, 1], [1, 0]] {
            let job = job();
            let children = start_all(&job, transport, "shrink", first);
            children.iter().for_each(|child| drop(hear(child, "ready")));
            kill(&children, &[first]);
            let witness = (0..RANKS as usize).find(|rank| *rank != first && *rank != second).expect("there are five");
            let said = hear(&children[witness], "lost");
            assert!(said.starts_with("PeerLost") && names_one_of(&said, &[first]), "{said}");
            kill(&children, &[second]);
            let victims = [first, second];
            for child in survivors(&children, &victims) {
                // All may have met the second before it was killed, or some of them, who have left then.
                let size: usize = hear(child, "goes-on").parse().expect("a number");
                assert!((1..=4).contains(&size), "{size}");
            }
            end_well(&children, &victims);
        }
    }
}

#[test]
fn f42_who_dies_while_all_join_is_replaced() {
    for transport in TRANSPORTS {
        let job = job();
        let port = free_port();
        let mut children: Vec<Child> = (0..4).map(|rank| start(&job, rank, port, transport, ("join", 0))).collect();
        // Some have introduced themselves by then and some have not, which is as good: the join waits for the last one.
        let at = Instant::now() + Duration::from_millis(60);
        until("a moment has passed", || Instant::now() > at);
        kill(&children, &[2, 3]);
        until("they have ended", || [2, 3].iter().all(|rank: &usize| children[*rank].exit().is_some()));
        children.truncate(2);
        children.extend((2..RANKS as usize).map(|rank| start(&job, rank, port, transport, ("join", 0))));
        children.iter().for_each(|child| drop(hear(child, "ready")));
        end_well(&children, &[]);
    }
}

/// The deadline of the connecting passes while nobody runs.
#[test]
fn f42_a_job_that_is_stopped_while_a_link_is_made_goes_on() {
    for transport in TRANSPORTS {
        let job = job();
        let children = start_all(&job, transport, "link", 0);
        children.iter().for_each(|child| drop(hear(child, "ready")));
        let tell = |ranks: &[usize], signal| ranks.iter().for_each(|at| children[*at].kill(signal).expect("it lives"));
        tell(&[2], SIGSTOP);
        hear(&children[1], "linking");
        tell(&[0, 1, 3, 4], SIGSTOP);
        std::thread::sleep(2 * SILENCE);
        tell(&[2, 0, 1, 3, 4], SIGCONT);
        hear(&children[1], "linked");
        end_well(&children, &[]);
    }
}

#[test]
fn f42_two_that_die_while_all_leave_keep_nobody() {
    for transport in TRANSPORTS {
        for victims in VICTIMS {
            let job = job();
            let children = start_all(&job, transport, "leave", victims[0]);
            children.iter().for_each(|child| drop(hear(child, "ready")));
            kill(&children, victims);
            for child in survivors(&children, victims) {
                hear(child, "left");
                until("it has ended well", || child.exit().is_some_and(|exit| exit.status.success()));
            }
        }
    }
}
