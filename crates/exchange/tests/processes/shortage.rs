//! A worker or a server of an exchange that lacks descriptors, memory or a thread says so, and what raises it. The
//! others lose it for that reason, and nobody else is accused or harmed.

use crate::common::{PART, actor as command, free_port, hear, job, note, part_of, roles, say, soon, until};
use crate::shortages::{LACKS, LACKS_SOMETHING, NO_DESCRIPTOR, NO_MEMORY, NO_THREAD, SHORT, WHEN, be_short, variable};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, Result};
use sheave_exchange::{Config, Pull, Push, Server, Worker};
use sheave_mesh::{Member, Mesh, Role};
use sheave_process::Child;
use sheave_tensor::{Dtype, Tensor};
use std::time::Duration;

const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];
const SERVERS: u32 = 2;
const WORKERS: u32 = 2;
const PARTS: [&str; 5] = ["scheduler-0", "server-0", "server-1", "worker-0", "worker-1"];
const SMALL: u64 = 1000;
/// 32 MiB.
const BIG: u64 = 8 << 20;
/// Of a node whose arena is full.
const ARENA_BYTES: u64 = 1 << 20;

/// After so long a silence a member is dead: no test waits for that.
const SILENCE: Duration = Duration::from_secs(30);

/// Before there are links.
const LINKS: &str = "links";
/// Between two requests.
const USE: &str = "use";

fn is_short() -> bool {
    variable(SHORT) == variable(PART)
}

fn filled(count: u64, value: f32) -> Result<Tensor> {
    let mut tensor = Tensor::private(Dtype::F32, [count])?;
    tensor.as_mut_slice::<f32>()?.fill(value);
    Ok(tensor)
}

/// A small request and a big one, which all servers echo.
fn work(mesh: &Mesh) -> Result<()> {
    be_short(mesh, LINKS, is_short())?;
    let worker = Worker::open(mesh, Config::default())?;
    for count in [SMALL, BIG] {
        let (own, places) = (filled(count, 7.0)?, [filled(count, 0.0)?, filled(count, 0.0)?]);
        if count == BIG {
            be_short(mesh, USE, is_short())?;
        }
        let pulls = [Pull::into(0, &places[0]), Pull::into(0, &places[1])];
        worker.wait(worker.push_pull([Push::new(0, &own)], pulls)?, Some(soon()), None)?;
        for place in &places {
            assert!(place.to_vec::<f32>()?.iter().all(|value| *value == 7.0), "a wrong answer");
        }
    }
    worker.close();
    Ok(())
}

fn serve(mesh: &Mesh) -> Result<()> {
    be_short(mesh, LINKS, is_short())?;
    let server = Server::open(mesh, Config::default())?;
    for count in [SMALL, BIG] {
        if count == BIG {
            be_short(mesh, USE, is_short())?;
        }
        for request in &server.get_batch(Some(soon()), None)? {
            server.respond(request.handler, &request.tensors)?;
        }
    }
    // All have what they wanted, and leave.
    let closed = server.get_batch(Some(soon()), None).map(drop).expect_err("there are no more requests");
    server.close();
    if closed.kind() == ErrorKind::Closed { Ok(()) } else { Err(closed) }
}

#[test]
fn actor() {
    let Some(mut config) = part_of(roles(SERVERS, WORKERS)) else { return };
    config.node.liveness.timeout = SILENCE;
    if variable(LACKS) == "arena" && is_short() {
        config.node.arena.capacity_bytes = ARENA_BYTES;
    }
    let mesh = Mesh::join(config).expect("everybody comes");
    mesh.world().barrier().expect("all are there");
    let role = mesh.me().introduction.role;
    let others = |member: &Member| member.introduction.role != Role::Scheduler;
    let outcome = match role {
        Role::Worker => work(&mesh),
        Role::Server => serve(&mesh),
        _ => [LINKS, USE].iter().try_for_each(|when| be_short(&mesh, when, is_short())),
    };
    if variable(LACKS) == "arena" {
        outcome.expect("there is other memory");
    } else if is_short() {
        until("the end of this membership", || !mesh.is_member());
        let error = mesh.world().barrier().expect_err("this node is no member any more");
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
        assert!(error.advice().is_some_and(|hint| hint.contains("raise the limit")), "{error}");
        return say(&format!("failed {error}"));
    } else {
        lose_it(&mesh, outcome);
    }
    if role == Role::Scheduler {
        mesh.until_gone_tolerating(others, |_| true, None).expect("the others leave");
    }
    mesh.leave().expect("the others agree");
    say("left");
}

/// The others lose the short one and nobody else.
fn lose_it(mesh: &Mesh, outcome: Result<()>) {
    let died = || mesh.deaths().into_iter().filter(|death| !death.left).collect::<Vec<_>>();
    until("the news of the death", || !died().is_empty());
    let short = variable(SHORT);
    match outcome {
        // Another one that has heard of it may have left before.
        Err(error) => {
            let (kind, text) = (error.kind(), error.to_string());
            let is_gone = matches!(kind, ErrorKind::PeerLost | ErrorKind::Closed);
            assert!(is_gone && (text.contains(&short) || text.contains("left")), "{text}");
        }
        Ok(()) => assert_eq!(mesh.me().introduction.role, Role::Scheduler, "it needs {short}"),
    }
    let [death] = &died()[..] else { panic!("more than one: {:?}", mesh.deaths()) };
    assert_eq!(mesh.member(death.node).expect("it was one").introduction.name, short, "{death:?}");
    assert!(mesh.is_member(), "{:?}", mesh.deaths());
    say(&format!("lost {}", death.reason));
}

fn start(transport: Transport, (short, when, lacks): (&str, &str, &str)) -> (sheave_process::Job, Vec<Child>) {
    let (job, port) = (job(), free_port());
    let start = |part: &&str| {
        let command = command(part, port, transport).env(SHORT, short).env(WHEN, when).env(LACKS, lacks);
        job.spawn(command).expect("a process")
    };
    let children = PARTS.iter().map(start).collect();
    (job, children)
}

fn end_well(children: &[Child]) {
    for child in children {
        until("it has ended", || child.exit().is_some());
        let exit = child.exit().expect("it has ended");
        assert!(exit.status.success(), "{}: {exit:?}\n{}", child.name(), child.stderr_lines().join("\n"));
    }
}

/// The short one says what it lacks, and the others read one of these reasons.
fn is_short_alone(transport: Transport, case: (&str, &str, &str), says: &[&str]) {
    let (_job, children) = start(transport, case);
    let what = format!("{transport:?}, {case:?}");
    for child in &children {
        let word = if child.name() == case.0 { "failed" } else { "lost" };
        let said = hear(child, word);
        note(&format!("{what}: {} {word}: {said}", child.name()));
        let is_last_word = word == "lost" && said.contains(LACKS_SOMETHING);
        let is_told = says.iter().any(|reason| said.contains(reason)) || is_last_word;
        assert!(is_told, "{what}: {} {word}: {said}", child.name());
    }
    end_well(&children);
}

#[test]
fn f86_who_has_no_descriptors_for_the_links_of_an_exchange_says_so() {
    for short in ["worker-1", "server-1"] {
        for (transport, free) in [(Transport::Shm, 0), (Transport::Shm, 3), (Transport::Tcp, 0)] {
            is_short_alone(transport, (short, LINKS, &format!("descriptors {free}")), &[NO_DESCRIPTOR]);
        }
    }
}

#[test]
fn f21_who_has_no_memory_for_the_links_of_an_exchange_says_so() {
    for short in ["worker-1", "server-1"] {
        // Over TCP who is asked for a link needs no thread, and what comes first is small.
        is_short_alone(Transport::Shm, (short, LINKS, "memory"), &[NO_THREAD, NO_MEMORY]);
    }
    is_short_alone(Transport::Tcp, ("worker-1", LINKS, "memory"), &[NO_THREAD, NO_MEMORY]);
}

#[test]
fn f21_who_has_no_memory_for_what_it_is_sent_says_so() {
    for transport in TRANSPORTS {
        is_short_alone(transport, ("server-1", USE, "MiB 4"), &[NO_MEMORY]);
    }
}

#[test]
fn f21_who_has_no_room_in_its_arena_takes_other_memory() {
    for transport in TRANSPORTS {
        for short in ["worker-1", "server-1"] {
            let (_job, children) = start(transport, (short, "never", "arena"));
            children.iter().for_each(|child| drop(hear(child, "left")));
            end_well(&children);
        }
    }
}
