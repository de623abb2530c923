//! What must cost nothing costs nothing, between real processes.

use crate::common;
use crate::common::{
    accepted, config, hear, job, listening, number, number_in, receive, receive_into, say, send, soon, start,
};
use sheave_base::{ErrorKind, LinkId};
use sheave_net::Node;
use sheave_net::Transport;
use sheave_tensor::{ArenaConfig, Dtype, Mode, Tensor};
use std::time::Instant;

const LARGE_BYTES: u64 = 64 << 20;
const LARGE_ROUNDS: u64 = 1000;
const SMALL_ROUNDS: u64 = 200_000;
const WARM_ROUNDS: u64 = 2000;
const KEPT: u64 = 2000;
const ATTEMPTS: u64 = 5;
const DISTURBED_NS: u64 = 50_000_000;
/// Whoever was kept from its core for so long at a time leaves it to strangers, and sleeps.
const STRANGERS_TURN_NS: u64 = 500_000;

/// What another copy of this binary does.
#[test]
fn actor() {
    let Some(role) = common::role() else { return };
    let node = Node::start(config(&role, Transport::Shm)).expect("a node");
    let link = node.connect(&common::address(0), soon()).expect("the test listens");
    match role.as_str() {
        "mover" => move_back(&node, link),
        "ponger" => pong(&node, link),
        "keeper" => keep(&node, link),
        "overwriter" => overwrite(&node, link),
        other => panic!("unknown part {other}"),
    }
}

fn inode(tensor: &Tensor) -> u64 {
    tensor.buffer().location().map_or(0, |location| location.segment.inode())
}

fn move_back(node: &Node, link: LinkId) {
    for window in 0..=ATTEMPTS {
        let before = common::page_faults();
        for round in 0..LARGE_ROUNDS {
            let mut tensor = receive(node, Some(link), 1).expect("a tensor").into_tensor().expect("one");
            if (window, round) == (0, 0) {
                send(node, link, 2, number(node, inode(&tensor)), Mode::Copy).expect("sent");
            }
            tensor.as_mut_slice::<u8>().expect("it is ours alone")[round as usize] = round as u8;
            send(node, link, 1, tensor, Mode::Move).expect("sent");
        }
        send(node, link, 2, number(node, common::page_faults() - before), Mode::Copy).expect("sent");
        if number_in(&receive(node, Some(link), 3).expect("the verdict")) == 1 {
            break;
        }
    }
    say(&format!("received by copy {}", node.counts().bytes_copied));
}

/// A tensor of 64 MiB changes hands 2,000 times in a window: nobody copies a byte of it, nobody faults a page in. The
/// first window warms up; one that the system disturbs (it may move pages at any time) is followed by another.
#[test]
fn a_moved_tensor_is_the_same_memory_in_both_processes() {
    let (node, address) = listening(config("test", Transport::Shm));
    let job = job();
    let child = start(&job, "mover", &[&address]);
    let link = accepted(&node);
    let mut tensor = Tensor::empty(node.arena(), Dtype::U8, [LARGE_BYTES]).expect("room");
    tensor.as_mut_slice::<u8>().expect("fresh").fill(7);
    let (own_inode, own_place) = (inode(&tensor), tensor.ptr());
    assert_ne!(own_inode, 0, "it lies in shared memory");
    let mut times_us = vec![-1.0; LARGE_ROUNDS as usize];
    let mut numbers = 0;
    let mut faults = (1.0, 1.0);
    for window in 0..=ATTEMPTS {
        let before = common::page_faults();
        for (round, time_us) in times_us.iter_mut().enumerate() {
            let begun = Instant::now();
            send(&node, link, 1, tensor, Mode::Move).expect("sent");
            tensor = receive(&node, Some(link), 1).expect("it comes back").into_tensor().expect("one");
            *time_us = begun.elapsed().as_secs_f64() * 1e6;
            assert_eq!(tensor.as_slice::<u8>().expect("ours again")[round], round as u8, "its owner wrote it");
        }
        let own_faults = common::page_faults() - before;
        assert_eq!(tensor.ptr(), own_place, "the block came home");
        if window == 0 {
            let peer_inode = number_in(&receive(&node, Some(link), 2).expect("told"));
            assert_eq!(peer_inode, own_inode, "the peer's tensor lay in our memfd");
            numbers += 1;
        }
        let peer_faults = number_in(&receive(&node, Some(link), 2).expect("told"));
        faults = (own_faults as f64 / LARGE_ROUNDS as f64, peer_faults as f64 / LARGE_ROUNDS as f64);
        let good = window > 0 && faults.0 < 0.01 && faults.1 < 0.01;
        send(&node, link, 3, number(&node, u64::from(good)), Mode::Copy).expect("sent");
        numbers += 2;
        if good {
            break;
        }
    }
    times_us.sort_by(f64::total_cmp);
    let p50_us = times_us[times_us.len() / 2];
    common::note(&format!(
        "64 MiB by move: round trip p50 {p50_us:.2} µs, page faults per round trip {} + {}",
        faults.0, faults.1
    ));
    assert!(faults.0 < 0.01 && faults.1 < 0.01, "{faults:?} page faults per round trip");
    // The numbers that the two told each other are all that was copied.
    assert_eq!(node.counts().bytes_copied, numbers * 8);
    assert_eq!(hear(&child, "received by copy"), (numbers * 8).to_string());
}

/// What spinning must not cost: sleeps, cores that others took, wake-ups of the progress thread; and for how many
/// nanoseconds this thread wanted a core that others had.
fn costs(node: &Node) -> [u64; 4] {
    let [slept, taken] = common::switches();
    [slept, taken, node.counts().progress_wakeups, common::kept_waiting_ns()]
}

fn since(node: &Node, before: [u64; 4]) -> [u64; 4] {
    let now = costs(node);
    std::array::from_fn(|at| now[at] - before[at])
}

fn pong(node: &Node, link: LinkId) {
    let place = number(node, 0);
    for _ in 0..ATTEMPTS {
        let mut before = [0; 4];
        for round in 0..WARM_ROUNDS + SMALL_ROUNDS {
            if round == WARM_ROUNDS {
                before = costs(node);
            }
            receive_into(node, Some(link), 1, &place).expect("a ping");
            send(node, link, 1, place.clone(), Mode::Copy).expect("sent");
        }
        for cost in since(node, before) {
            send(node, link, 2, number(node, cost), Mode::Copy).expect("sent");
        }
        if number_in(&receive(node, Some(link), 3).expect("the verdict")) == 1 {
            return;
        }
    }
}

/// Two threads that wait for each other by spinning: nobody sleeps, and the progress threads stay out of it, unless
/// another program took a core from one of the two, whom the other then does not wait for. A reading that was disturbed
/// for long may be taken again.
#[test]
fn a_spinning_ping_pong_switches_no_threads() {
    let (node, address) = listening(config("test", Transport::Shm));
    let job = job();
    let _child = start(&job, "ponger", &[&address]);
    let link = accepted(&node);
    let (ball, place) = (number(&node, 42), number(&node, 0));
    for _ in 0..ATTEMPTS {
        let mut before = [0; 4];
        for round in 0..WARM_ROUNDS + SMALL_ROUNDS {
            if round == WARM_ROUNDS {
                before = costs(&node);
            }
            send(&node, link, 1, ball.clone(), Mode::Copy).expect("sent");
            receive_into(&node, Some(link), 1, &place).expect("a pong");
        }
        let own = since(&node, before);
        let [slept, taken, wakeups, kept_ns] =
            own.map(|own| own + number_in(&receive(&node, Some(link), 2).expect("told")));
        let per_message = slept as f64 / (2 * SMALL_ROUNDS) as f64;
        common::note(&format!(
            "8 B ping-pong: {per_message:.5} sleeps per message, {wakeups} wake-ups; cores taken {taken} times, \
             for {kept_ns} ns"
        ));
        // Only another program keeps the two from their cores for so long, and who finds that sleeps.
        let (naps, allowed) = if kept_ns > DISTURBED_NS { (kept_ns / STRANGERS_TURN_NS, taken) } else { (0, 0) };
        let good = slept < 2 * SMALL_ROUNDS / 100 + naps && wakeups <= allowed;
        send(&node, link, 3, number(&node, u64::from(good)), Mode::Copy).expect("sent");
        if good {
            return;
        }
    }
    panic!("threads were switched in each of {ATTEMPTS} readings");
}

fn keep(node: &Node, link: LinkId) {
    let mut kept = Vec::new();
    for round in 0..KEPT {
        let tensor = receive(node, Some(link), 1).expect("a tensor").into_tensor().expect("one");
        assert_eq!(tensor.as_slice::<u8>().expect("ours")[4096], round as u8);
        kept.push(tensor);
    }
    for (round, tensor) in kept.iter().enumerate() {
        let bytes = tensor.as_slice::<u8>().expect("ours");
        assert!(bytes.iter().all(|byte| *byte == round as u8), "tensor {round} was overwritten");
    }
    say("kept");
    receive(node, Some(link), 3).expect("the end");
}

/// A user who keeps every tensor that it receives stops nobody: what exceeds the lending cap is copied.
#[test]
fn kept_tensors_do_not_stop_the_traffic() {
    let mut config = config("test", Transport::Shm);
    config.arena = ArenaConfig { capacity_bytes: 256 << 20, ..ArenaConfig::default() };
    let (node, address) = listening(config);
    let job = job();
    let child = start(&job, "keeper", &[&address]);
    let link = accepted(&node);
    let mut resident_at_500 = 0;
    for round in 0..KEPT {
        let mut tensor = Tensor::empty(node.arena(), Dtype::U8, [1 << 20]).expect("lent blocks leave room");
        tensor.as_mut_slice::<u8>().expect("fresh").fill(round as u8);
        send(&node, link, 1, tensor, Mode::Move).expect("sent");
        if round == 500 {
            resident_at_500 = common::resident_bytes();
        }
    }
    hear(&child, "kept");
    let stats = node.arena().stats();
    let grown = common::resident_bytes().saturating_sub(resident_at_500);
    common::note(&format!("2,000 kept tensors: {stats:?}, private memory grown by {grown} bytes"));
    assert!(stats.lent_bytes <= 128 << 20, "{} bytes are lent", stats.lent_bytes);
    assert!(stats.mapped_bytes <= 256 << 20, "{} bytes are mapped", stats.mapped_bytes);
    assert!(grown < 16 << 20, "private memory grew by {grown} bytes");
    assert_eq!(node.unexpected(), (0, 0));
    send(&node, link, 3, number(&node, 0), Mode::Copy).expect("sent");
}

fn overwrite(node: &Node, link: LinkId) {
    for size in [8u64, 4096, 100_000, 3 << 20] {
        let mut tensor = Tensor::empty(node.arena(), Dtype::U8, [size]).expect("room");
        tensor.as_mut_slice::<u8>().expect("fresh").fill(1);
        send(node, link, size, tensor.clone(), Mode::Copy).expect("sent");
        tensor.as_mut_slice::<u8>().expect("the send is over").fill(2);
        send(node, link, size, number(node, 0), Mode::Copy).expect("sent");
    }
    receive(node, Some(link), 3).expect("the end");
}

/// `copy` means captured: what the sender writes after the call is not what the receiver reads.
#[test]
fn a_source_that_is_overwritten_after_a_copy_arrives_as_it_was() {
    let (node, address) = listening(config("test", Transport::Shm));
    let job = job();
    let _child = start(&job, "overwriter", &[&address]);
    let link = accepted(&node);
    for size in [8u64, 4096, 100_000, 3 << 20] {
        let old = receive(&node, Some(link), size).expect("a tensor").into_tensor().expect("one");
        receive(&node, Some(link), size).expect("the overwriting is over");
        assert!(old.as_slice::<u8>().expect("ours").iter().all(|byte| *byte == 1), "{size} bytes changed");
    }
    send(&node, link, 3, number(&node, 0), Mode::Copy).expect("sent");
    let lost = receive(&node, Some(link), 9).expect_err("the peer is done");
    assert_eq!(lost.kind(), ErrorKind::PeerLost);
}
