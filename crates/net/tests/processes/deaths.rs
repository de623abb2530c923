//! Processes that die, stop and come back.

use crate::common;
use crate::common::{
    accepted, address, config, failure, hear, job, listening, number, number_in, receive, say, send, soon, start,
};
use sheave_base::{ErrorKind, LinkId};
use sheave_net::Transport;
use sheave_net::{Node, NodeConfig};
use sheave_process::Status;
use sheave_tensor::Mode;
use std::time::{Duration, Instant};

const OPERATIONS: u64 = 1000;
const SILENCE: Duration = Duration::from_millis(1500);
const BEAT: Duration = Duration::from_millis(300);

/// What another copy of this binary does.
#[test]
fn actor() {
    let Some(role) = common::role() else { return };
    match role.as_str() {
        "forker" => fork_and_wait(),
        "survivor" => survive(),
        "sleeper-shm" => sleep(Transport::Shm),
        "sleeper-tcp" => sleep(Transport::Tcp),
        "counter-shm" => count(Transport::Shm),
        "counter-tcp" => count(Transport::Tcp),
        other if other.starts_with("idler") => idle(other),
        other => panic!("unknown part {other}"),
    }
}

fn quick(name: &str, transport: Transport, kill_silent: bool) -> NodeConfig {
    let mut config = config(name, transport);
    config.liveness.beat = BEAT;
    config.liveness.timeout = SILENCE;
    config.liveness.kill_silent = kill_silent;
    config
}

fn fork_and_wait() {
    let transport = if std::env::var("SHEAVE_TEST_TCP").is_ok() { Transport::Tcp } else { Transport::Shm };
    let node = Node::start(config("victim", transport)).expect("a node");
    let links = [0, 1].map(|index| node.connect(&address(index), soon()).expect("somebody listens"));
    // SAFETY: the child only sleeps in a system call until it is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: `pause` has no preconditions.
            unsafe { libc::pause() };
        }
    }
    say("forked");
    let _ = receive(&node, Some(links[0]), 1);
}

fn survive() {
    let (node, own) = listening(config("survivor", Transport::Auto));
    say(&format!("address {own}"));
    let link = accepted(&node);
    say("linked");
    let (error, _) = failure(|| receive(&node, Some(link), 1));
    assert_eq!(error.kind(), ErrorKind::PeerLost);
    say(&format!("lost {error}"));
    let (error, after) = failure(|| send(&node, link, 1, number(&node, 1), Mode::Copy));
    assert!(after < Duration::from_secs(1), "{error} after {after:?}");
    say("next failed too");
}

/// A killed process is known to be dead although a child of it holds its sockets and its memory.
#[test]
fn a_killed_peer_is_noticed_even_with_a_forked_child() {
    let (node, own) = listening(config("test", Transport::Auto));
    let job = job();
    let survivor = start(&job, "survivor", &[]);
    let other = hear(&survivor, "address").parse().expect("an address");
    let victim = start(&job, "forker", &[&own, &other]);
    let link = accepted(&node);
    hear(&victim, "forked");
    hear(&survivor, "linked");
    let waiting = node.irecv(common::wanted(Some(link), 1), smallvec::SmallVec::new()).expect("posted");
    let killed = Instant::now();
    // Only the process itself: the child that it forked lives on.
    // SAFETY: no memory is involved; the process is our own actor.
    assert_eq!(unsafe { libc::kill(victim.pid() as i32, libc::SIGKILL) }, 0);
    let error = waiting.join_timeout(Duration::from_secs(10)).expect_err("the peer is dead");
    let after = killed.elapsed();
    common::note(&format!("killed peer: {error} ({after:?})"));
    assert_eq!(error.kind(), ErrorKind::PeerLost);
    assert!(after < Duration::from_secs(1), "noticed after {after:?}");
    let about = error.about().expect("it names somebody");
    assert_eq!((about.name.as_str(), about.pid), ("victim", Some(victim.pid())));
    let told = hear(&survivor, "lost");
    assert!(killed.elapsed() < Duration::from_secs(1), "the other survivor knew after {:?}", killed.elapsed());
    assert!(told.contains("victim"), "{told}");
    hear(&survivor, "next failed too");
}

/// A stopped process: connected to the test and to the counter, it lends a tensor to the test and sleeps.
fn sleep(transport: Transport) {
    let node = Node::start(quick("sleeper", transport, false)).expect("a node");
    let links = [0, 1].map(|index| node.connect(&address(index), soon()).expect("somebody listens"));
    say("ready");
    for link in links {
        let (error, _) = failure(|| receive(&node, Some(link), 1));
        say(&format!("learned {:?} {error}", error.kind()));
    }
    let (error, _) = failure(|| send(&node, links[0], 1, number(&node, 1), Mode::Copy));
    say(&format!("and then {:?}", error.kind()));
}

/// Answers every number with its successor, whatever happens to others.
fn count(transport: Transport) {
    let (node, own) = listening(quick("counter", transport, false));
    say(&format!("address {own}"));
    let links = [accepted(&node), accepted(&node)];
    let (counted, slept) = if node.link(links[0]).expect("alive").peer().name == "test" {
        (links[0], links[1])
    } else {
        (links[1], links[0])
    };
    let count = || {
        for _ in 0..OPERATIONS / 2 {
            let value = number_in(&receive(&node, Some(counted), 5).expect("the test lives"));
            send(&node, counted, 5, number(&node, value + 1), Mode::Copy).expect("the test lives");
        }
    };
    count();
    // It may have had the last sign of life up to a beat later than the test.
    let (error, _) = failure(|| receive(&node, Some(slept), 1));
    say(&format!("lost {:?}", error.kind()));
    count();
}

fn silent_peer(transport: Transport, kind: &str) {
    let (node, own) = listening(quick("test", transport, false));
    let job = job();
    let counter = start(&job, &format!("counter-{kind}"), &[]);
    let other: sheave_net::Address = hear(&counter, "address").parse().expect("an address");
    let counted = node.connect(&other, soon()).expect("it listens");
    let sleeper = start(&job, &format!("sleeper-{kind}"), &[&own, &other]);
    let slept = accepted(&node);
    hear(&sleeper, "ready");
    let stopped = Instant::now();
    sleeper.kill(libc::SIGSTOP).expect("it lives");
    let (error, _) = failure(|| receive(&node, Some(slept), 1));
    let after = stopped.elapsed();
    common::note(&format!("stopped peer over {kind}: {error} ({after:?})"));
    assert_eq!(error.kind(), ErrorKind::PeerLost);
    assert!(after > SILENCE - BEAT && after < SILENCE + BEAT * 4, "declared dead after {after:?}");
    count_on(&node, counted, 0..OPERATIONS / 2);
    assert_eq!(hear(&counter, "lost"), "PeerLost");
    sleeper.kill(libc::SIGCONT).expect("it lives");
    count_on(&node, counted, OPERATIONS / 2..OPERATIONS);
    assert!(hear(&sleeper, "learned").starts_with("DeclaredDead"));
    assert_eq!(hear(&sleeper, "and then"), "DeclaredDead");
}

fn count_on(node: &Node, link: LinkId, range: std::ops::Range<u64>) {
    for value in range {
        send(node, link, 5, number(node, value * 3), Mode::Copy).expect("the counter lives");
        assert_eq!(number_in(&receive(node, Some(link), 5).expect("the counter lives")), value * 3 + 1);
    }
}

#[test]
fn a_stopped_peer_is_declared_dead_and_learns_it_over_shared_memory() {
    silent_peer(Transport::Shm, "shm");
}

#[test]
fn a_stopped_peer_is_declared_dead_and_learns_it_over_tcp() {
    silent_peer(Transport::Tcp, "tcp");
}

/// By default a silent process of this host is killed, so that it can never write into the survivors' memory again.
#[test]
fn a_stopped_peer_is_killed_where_that_is_permitted() {
    let (node, own) = listening(quick("test", Transport::Shm, true));
    let (_other, other_address) = listening(quick("other", Transport::Shm, false));
    let job = job();
    let sleeper = start(&job, "sleeper-shm", &[&own, &other_address]);
    let slept = accepted(&node);
    hear(&sleeper, "ready");
    sleeper.kill(libc::SIGSTOP).expect("it lives");
    let (error, _) = failure(|| receive(&node, Some(slept), 1));
    assert_eq!(error.kind(), ErrorKind::PeerLost);
    let exit = sleeper.wait(Some(soon())).expect("the guard lives").expect("it was killed");
    assert_eq!(exit.status, Status::Signal(libc::SIGKILL));
}

fn idle(role: &str) {
    let own: usize = role.rsplit('-').next().and_then(|number| number.parse().ok()).expect("a number");
    let (node, address_here) = listening(config(role, Transport::Auto));
    for index in 0..own {
        node.connect(&address(index), soon()).expect("an earlier one listens");
    }
    say(&format!("address {address_here}"));
    for _ in own + 1..IDLERS {
        accepted(&node);
    }
    say("linked");
    let _ = node.accept().wait_timeout(Duration::from_secs(100));
}

const IDLERS: usize = 8;

/// Processor time that a process has used, in seconds.
fn processor_seconds(pid: u32) -> f64 {
    let line = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("it lives");
    line.split(' ').next().and_then(|field| field.parse::<f64>().ok()).expect("a number") / 1e9
}

/// Time of every thread: the main file counts only the first one.
fn processor_seconds_of_all_threads(pid: u32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
    tasks
        .flatten()
        .filter_map(|task| task.file_name().to_str().and_then(|id| id.parse().ok()))
        .map(processor_seconds)
        .sum()
}

/// Eight nodes, each linked with each: when nobody talks, nobody works.
#[test]
fn an_idle_mesh_of_eight_uses_no_processor() {
    let job = job();
    let mut nodes = Vec::new();
    let mut addresses: Vec<sheave_net::Address> = Vec::new();
    for index in 0..IDLERS {
        let child = start(&job, &format!("idler-{index}"), &addresses.iter().collect::<Vec<_>>());
        addresses.push(hear(&child, "address").parse().expect("an address"));
        nodes.push(child);
    }
    for child in &nodes {
        hear(child, "linked");
    }
    let used = || nodes.iter().map(|child| processor_seconds_of_all_threads(child.pid())).sum::<f64>();
    // One beat to settle, then several beats measured: this is a measurement of time, not a wait for luck.
    std::thread::sleep(Duration::from_secs(1));
    let (begun, before) = (Instant::now(), used());
    std::thread::sleep(Duration::from_secs(5));
    let share = (used() - before) / begun.elapsed().as_secs_f64();
    common::note(&format!("idle mesh of {IDLERS}: {:.3} % of a core", share * 100.0));
    assert!(share < 0.01, "an idle mesh uses {:.3} % of a core", share * 100.0);
}
