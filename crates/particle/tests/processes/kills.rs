//! Particles of real processes, one of which is killed: whoever waits for its particles is told within a second who it
//! was, through however many handlers, and all others go on.

use crate::common;
use crate::common::{PATIENCE, failed, free_port, hear, job, note, park, part, say, start_with, until};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::{Expected, Mesh};
use sheave_particle::{Behavior, Message, ParticleId, Particles};
use sheave_wire::Value;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The bound of the design for everything that a killed process is needed for.
const BOUND: Duration = Duration::from_secs(1);
const RANKS: u32 = 3;
const VICTIM: usize = 1;
const SIGKILL: i32 = 9;

/// Passes a message on along a list of particles, each of which waits for the next; the last one holds or echoes it.
fn behavior(mesh: &Mesh, is_blocking: bool) -> Behavior {
    let holds = mesh.name() == format!("rank-{VICTIM}");
    let held = AtomicUsize::new(0);
    let last = move |message: Message| -> Result<Message> {
        if holds && message.value == Value::from("hold") {
            if held.fetch_add(1, SeqCst) == 0 {
                say("holding");
            }
            park();
        }
        Ok(message)
    };
    let next = |message: Message| -> Result<(Option<ParticleId>, Message)> {
        let Value::List(mut items) = message.value else { return Ok((None, message)) };
        let first = ParticleId::from_value(&items.remove(0))?;
        let rest = if items.len() == 1 { items.remove(0) } else { Value::List(items) };
        Ok((Some(first), Message::from(rest)))
    };
    match is_blocking {
        true => Behavior::new(()).on_blocking("pass", move |context, message| match next(message)? {
            (None, message) => last(message),
            (Some(to), message) => context.send(to, "pass", message).wait(),
        }),
        false => Behavior::new(()).on("pass", move |context, message| async move {
            match next(message)? {
                // The victim has none that are futures.
                (None, message) => Ok(message),
                (Some(to), message) => context.send(to, "pass", message).await,
            }
        }),
    }
}

/// A message that goes to these particles, one after the other, with this word.
fn along(ids: &[ParticleId], word: &str) -> Message {
    Message::from(Value::List(ids.iter().map(|id| Value::from(*id)).chain([word.into()]).collect()))
}

fn about(error: &Error) -> (ErrorKind, Option<&str>) {
    (error.kind(), error.about().map(|peer| peer.name.as_str()))
}

/// Each has particles for its own messages, and others for those of other nodes: for a circle between nodes nobody
/// ends. Of two the first one's handlers are futures, and the second one's block.
#[test]
fn actor() {
    let Some(config) = part(Expected::ranks(RANKS)) else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    let particles: Particles = Particles::new(&mesh, "test").expect("once");
    let own: Vec<_> = [false, true, false, true]
        .map(|blocks| particles.create(behavior(&mesh, blocks)).expect("there is room"))
        .into();
    mesh.world().barrier().expect("all are there");
    let rank = mesh.me().rank.0 as usize;
    let echoed = || mesh.world().barrier().expect("all live");
    if rank == VICTIM {
        echoed();
        park();
    }
    let of = |rank: usize| {
        let ids = particles.ids_on(mesh.members()[rank].node).expect("begun").wait_timeout(PATIENCE);
        ids.expect("it lives").split_off(2)
    };
    let (victims, others) = (of(VICTIM), of(2 - rank));
    let echo = |ids: &[ParticleId]| {
        let answer = particles.send(ids[0], "pass", along(&ids[1..], "echo"));
        answer.wait_timeout(PATIENCE).map(|message| message.value)
    };
    assert_eq!(echo(&[own[0], own[1], victims[0], victims[1]]).expect("all live"), Value::from("echo"));
    echoed();
    let ways = [vec![victims[1]], vec![own[0], own[1], victims[1]], vec![others[0], victims[1]]];
    let send = |ids: &Vec<ParticleId>| {
        let message = if ids.len() == 1 { "hold".into() } else { along(&ids[1..], "hold") };
        particles.send(ids[0], "pass", message)
    };
    let answers: Vec<_> = ways.iter().map(send).collect();
    until("they wait", || particles.waiting() > 0);
    say("waiting");
    for (way, answer) in ways.iter().zip(&answers) {
        let error = failed(answer.wait_timeout(PATIENCE));
        assert_eq!(about(&error), (ErrorKind::PeerLost, Some("rank-1")), "{way:?}: {error}");
    }
    say("told");
    let error = failed(echo(&[victims[0]]));
    assert_eq!(about(&error), (ErrorKind::PeerLost, Some("rank-1")), "{error}");
    assert_eq!(echo(&[own[0], own[1], others[0], others[1]]).expect("they go on"), Value::from("echo"));
    until("nobody waits, of the others either", || particles.waiting() == 0);
    let left = [mesh.members()[0].node, mesh.members()[2].node];
    mesh.group("left", &left).and_then(|left| left.barrier()).expect("nobody leaves before the other is through");
    say("done");
    mesh.finish().expect_err("one is gone");
}

fn kill(transport: Transport) {
    let (job, port) = (job(), free_port());
    let victim = format!("rank-{VICTIM}");
    let start = |rank: u32| start_with(&job, &format!("rank-{rank}"), port, transport, &victim);
    let children: Vec<_> = (0..RANKS).map(start).collect();
    let survivors = [&children[0], &children[2]];
    survivors.iter().for_each(|child| drop(hear(child, "waiting")));
    hear(&children[VICTIM], "holding");
    let killed = Instant::now();
    children[VICTIM].kill(SIGKILL).expect("it runs");
    survivors.iter().for_each(|child| drop(hear(child, "told")));
    let told = killed.elapsed();
    note(&format!("rank {VICTIM} killed: told within {told:?}"));
    assert!(told < BOUND, "told {told:?}");
    for child in survivors {
        hear(child, "done");
        let exit = child.wait(Some(common::soon())).expect("it ends").expect("in time");
        assert!(exit.status.success(), "{exit:?}: {}", child.stderr_lines().join("\n"));
    }
}

#[test]
fn a_node_dies() {
    kill(Transport::Auto);
}

#[test]
fn a_node_dies_behind_tcp() {
    kill(Transport::Tcp);
}
