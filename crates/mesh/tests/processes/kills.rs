//! Real processes of every role, killed one after the other: who is left must know within a second who it was.

use crate::common;
use crate::common::{free_port, hear, job, note, part, roles, say, start_with, until};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, NodeId};
use sheave_mesh::{Expected, Group, Lane, Mesh, Request, Role, Service};
use sheave_process::Child;
use sheave_wire::Value;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The bound of the design: who needs a process that was killed learns it within this time.
const BOUND: Duration = Duration::from_secs(1);

const SIGKILL: i32 = 9;

const WITH_ROLES: &[&str] = &["scheduler-0", "server-0", "server-1", "worker-0", "worker-1"];
const RANKS: &[&str] = &["rank-0", "rank-1", "rank-2"];

/// Keeps every request, so that its caller waits.
#[derive(Default)]
struct Keeper(Mutex<Vec<Request>>);

impl Service for Keeper {
    fn handle(&self, request: Request) {
        self.0.lock().expect("nobody panics").push(request);
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }
}

#[test]
fn actor() {
    let is_role = std::env::var("SHEAVE_TEST_PART").is_ok_and(|part| !part.starts_with("rank"));
    let Some(config) = part(if is_role { roles(2, 2) } else { Expected::ranks(3) }) else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    mesh.serve("it", Keeper::default()).expect("the name is free");
    let world = mesh.world();
    world.barrier().expect("all are there");
    // One call to everybody, for ever pending, and a barrier that one member never enters.
    let others: Vec<NodeId> =
        mesh.members().iter().map(|member| member.node).filter(|node| *node != mesh.me().node).collect();
    let calls: Vec<_> =
        others.iter().map(|to| (*to, mesh.call(*to, "it", "keep", Value::None).expect("it is sent"))).collect();
    world.barrier().expect("all are there");
    say(&format!("ready {}", std::process::id()));
    if std::env::var("SHEAVE_TEST_VICTIM") == std::env::var("SHEAVE_TEST_PART") {
        loop {
            std::thread::park();
        }
    }
    let error = world.barrier().expect_err("the victim never enters");
    say(&format!("barrier {} {error}", kind(&error)));
    // Exactly the calls to the victim have ended.
    let victim = error.about().and_then(|peer| peer.node).expect("the error says who");
    for (to, work) in &calls {
        if *to == victim {
            let error = work.wait_timeout(common::PATIENCE).expect_err("it is gone");
            say(&format!("call {} {error}", kind(&error)));
        } else {
            assert!(!work.is_done(), "{to} lives");
        }
    }
    next_operations(&mesh, &world, victim);
}

/// What is tried after the loss fails at once where it needs the victim, and works where it does not.
fn next_operations(mesh: &Mesh, world: &Group, victim: NodeId) {
    let error = world.barrier().expect_err("the group is broken");
    say(&format!("next-barrier {} {error}", kind(&error)));
    let error = mesh.call(victim, "it", "again", Value::None).map(|work| work.wait()).and_then(|answer| answer);
    let error = error.expect_err("nobody is there");
    say(&format!("next-call {} {error}", kind(&error)));
    let rest = world.shrink().expect("the rest is a majority");
    let epoch = mesh.epoch();
    rest.barrier().expect("the rest is whole");
    assert_eq!(mesh.num_dead_node(|_| true), 1);
    assert_eq!(mesh.num_dead_node(|member| member.node == victim), 1);
    assert_eq!(mesh.num_dead_node(|member| member.node != victim), 0);
    say(&format!("shrunk {} epoch {}", rest.size(), epoch));
    mesh.leave().expect("the rest agrees");
    say("left");
}

fn kind(error: &Error) -> String {
    format!("{:?}", error.kind())
}

struct Killing {
    slowest: Duration,
    slowest_next: Duration,
}

/// Starts `parts`, kills `victim` while everybody waits, and checks what the others say.
fn kill(parts: &[&str], victim: &str, transport: Transport) -> Killing {
    let job = job();
    let port = free_port();
    let children: Vec<Child> = parts.iter().map(|part| start_with(&job, part, port, transport, victim)).collect();
    let pids: Vec<String> = children.iter().map(|child| hear(child, "ready")).collect();
    let at = parts.iter().position(|part| *part == victim).expect("it is one of them");
    let begun = Instant::now();
    children[at].kill(SIGKILL).expect("it lives");
    let mut killing = Killing { slowest: Duration::ZERO, slowest_next: Duration::ZERO };
    let (role, _) = victim.split_once('-').expect("a role and a rank");
    let name = if role == "scheduler" { role } else { victim };
    let mesh_rank = parts.iter().position(|part| *part == victim).expect("it is one of them");
    for (child, _) in children.iter().zip(parts).filter(|(_, part)| **part != victim) {
        for word in ["barrier", "call", "next-barrier", "next-call"] {
            let said = hear(child, word);
            let took = begun.elapsed();
            let mut wanted = vec![name.to_owned(), format!("rank {mesh_rank}"), format!("pid {}", pids[at])];
            if Role::from_name(role) != Some(Role::Rank) {
                wanted.push(format!("({role}, "));
            }
            assert!(said.starts_with(&format!("{:?}", ErrorKind::PeerLost)), "{word}: {said}");
            for part in wanted {
                assert!(said.contains(&part), "{word} of {} does not say {part}: {said}", child.name());
            }
            let slowest = if word.starts_with("next") { &mut killing.slowest_next } else { &mut killing.slowest };
            *slowest = took.max(*slowest);
        }
    }
    assert!(killing.slowest < BOUND, "{victim} over {transport:?}: {:?}", killing.slowest);
    assert!(killing.slowest_next < BOUND, "{victim} over {transport:?}: {:?}", killing.slowest_next);
    for (child, _) in children.iter().zip(parts).filter(|(_, part)| **part != victim) {
        assert_eq!(hear(child, "shrunk"), format!("{} epoch 2", parts.len() - 1));
        hear(child, "left");
        until("it has ended well", || child.exit().is_some_and(|exit| exit.status.success()));
    }
    killing
}

fn kill_each(parts: &[&str], transport: Transport) {
    for victim in parts {
        let Killing { slowest, slowest_next } = kill(parts, victim, transport);
        note(&format!(
            "{transport:?}: {victim} killed; all pending operations ended in {:.1} ms, the next in {:.1} ms",
            slowest.as_secs_f64() * 1e3,
            slowest_next.as_secs_f64() * 1e3
        ));
    }
}

#[test]
fn a_kill_in_every_role_is_known_to_all_over_shm() {
    kill_each(WITH_ROLES, Transport::Shm);
}

#[test]
fn a_kill_in_every_role_is_known_to_all_over_tcp() {
    kill_each(WITH_ROLES, Transport::Tcp);
}

#[test]
fn a_kill_of_any_rank_is_known_to_all_over_shm() {
    kill_each(RANKS, Transport::Shm);
}

#[test]
fn a_kill_of_any_rank_is_known_to_all_over_tcp() {
    kill_each(RANKS, Transport::Tcp);
}
