//! What must cost nothing costs nothing, between real processes.

mod common;

use common::{
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
    let mut warm = (0, 0);
    for round in 0..LARGE_ROUNDS {
        if round == LARGE_ROUNDS / 10 {
            warm = (common::page_faults(), round);
        }
        let mut tensor = receive(node, Some(link), 1).expect("a tensor").into_tensor().expect("one");
        if round == 0 {
            send(node, link, 2, number(node, inode(&tensor)), Mode::Copy).expect("sent");
        }
        tensor.as_mut_slice::<u8>().expect("it is ours alone")[round as usize] = round as u8;
        send(node, link, 1, tensor, Mode::Move).expect("sent");
    }
    let faults = common::page_faults() - warm.0;
    let counts = node.counts();
    say(&format!("faults {}", faults * 1_000_000 / (LARGE_ROUNDS - warm.1)));
    say(&format!("copied {}", counts.bytes_copied));
}

/// A tensor of 64 MiB changes hands 2,000 times: nobody copies a byte of it, nobody faults a page in.
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
    let mut times_us = vec![0.0; LARGE_ROUNDS as usize];
    let mut warm_faults = 0;
    for round in 0..LARGE_ROUNDS {
        if round == LARGE_ROUNDS / 10 {
            warm_faults = common::page_faults();
        }
        let begun = Instant::now();
        send(&node, link, 1, tensor, Mode::Move).expect("sent");
        tensor = receive(&node, Some(link), 1).expect("it comes back").into_tensor().expect("one");
        times_us[round as usize] = begun.elapsed().as_secs_f64() * 1e6;
        assert_eq!(tensor.as_slice::<u8>().expect("ours again")[round as usize], round as u8, "its owner wrote it");
    }
    let faults = (common::page_faults() - warm_faults) as f64 / (LARGE_ROUNDS * 9 / 10) as f64;
    assert_eq!(tensor.ptr(), own_place, "the block came home");
    let peer_inode = number_in(&receive(&node, Some(link), 2).expect("told"));
    assert_eq!(peer_inode, own_inode, "the peer's tensor lay in our memfd");
    // The peer's inode itself is the only thing that was copied.
    assert_eq!(node.counts().bytes_copied, 8);
    assert_eq!(hear(&child, "copied"), "8");
    let peer_faults = hear(&child, "faults").parse::<f64>().expect("a number") / 1e6;
    times_us.sort_by(f64::total_cmp);
    println!(
        "64 MiB by move: round trip p50 {:.2} µs, page faults per round trip {faults} here, {peer_faults} there",
        times_us[times_us.len() / 2]
    );
    assert!(faults < 0.01, "{faults} page faults per round trip");
    assert!(peer_faults < 0.01, "{peer_faults} page faults per round trip at the peer");
}

fn pong(node: &Node, link: LinkId) {
    let place = number(node, 0);
    let mut before = (0, 0);
    for round in 0..WARM_ROUNDS + SMALL_ROUNDS {
        if round == WARM_ROUNDS {
            before = (common::voluntary_switches(), node.counts().progress_wakeups);
        }
        receive_into(node, Some(link), 1, &place).expect("a ping");
        send(node, link, 1, place.clone(), Mode::Copy).expect("sent");
    }
    let switches = common::voluntary_switches() - before.0;
    say(&format!("switches {switches}"));
    say(&format!("wakeups {}", node.counts().progress_wakeups - before.1));
    receive(node, Some(link), 3).expect("the end");
}

/// Two threads that wait for each other by spinning: nobody sleeps, and the progress threads stay out of it.
#[test]
fn a_spinning_ping_pong_switches_no_threads() {
    let (node, address) = listening(config("test", Transport::Shm));
    let job = job();
    let child = start(&job, "ponger", &[&address]);
    let link = accepted(&node);
    let (ball, place) = (number(&node, 42), number(&node, 0));
    let mut before = (0, 0);
    for round in 0..WARM_ROUNDS + SMALL_ROUNDS {
        if round == WARM_ROUNDS {
            before = (common::voluntary_switches(), node.counts().progress_wakeups);
        }
        send(&node, link, 1, ball.clone(), Mode::Copy).expect("sent");
        receive_into(&node, Some(link), 1, &place).expect("a pong");
    }
    let own_switches = common::voluntary_switches() - before.0;
    let own_wakeups = node.counts().progress_wakeups - before.1;
    let peer_switches: u64 = hear(&child, "switches").parse().expect("a number");
    let peer_wakeups: u64 = hear(&child, "wakeups").parse().expect("a number");
    send(&node, link, 3, number(&node, 0), Mode::Copy).expect("sent");
    let per_message = (own_switches + peer_switches) as f64 / (2 * SMALL_ROUNDS) as f64;
    println!("8 B ping-pong: {per_message:.5} voluntary switches per message, wake-ups {own_wakeups} + {peer_wakeups}");
    assert!(per_message < 0.01, "{per_message} voluntary context switches per message");
    assert_eq!((own_wakeups, peer_wakeups), (0, 0), "the progress threads were woken");
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
    println!("2,000 kept tensors: {stats:?}, private memory grown by {grown} bytes");
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
