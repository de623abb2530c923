//! What traffic and idleness cost.

use super::content::{anywhere, check, in_arena, message, only, private, wanted};
use super::pairs::{Pair, Pairs};
use super::watch::soon;
use sheave_net::{Medium, Node, NodeConfig};
use sheave_tensor::{ArenaConfig, Mode};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) fn two_thousand_kept_tensors_do_not_stop_the_traffic(pairs: &dyn Pairs) {
    const LENGTH_BYTES: usize = 32 << 10;
    const CAPACITY_BYTES: u64 = 16 << 20;
    let small = |name: &str| NodeConfig {
        arena: ArenaConfig { capacity_bytes: CAPACITY_BYTES, ..ArenaConfig::default() },
        ..NodeConfig::named(name)
    };
    let Pair { left, to_right, right, to_left } = pairs.connect(small("left"), small("right"));
    let mut kept = Vec::new();
    for seed in 0..2000 {
        let (tensor, mode) = match seed % 3 {
            0 => (private(LENGTH_BYTES, seed), Mode::Copy),
            1 => (private(LENGTH_BYTES, seed), Mode::Move),
            _ => (in_arena_or_private(&left, LENGTH_BYTES, seed), Mode::Move),
        };
        left.send(to_right, message(1, tensor, mode), soon(), None).unwrap();
        kept.push(right.recv(wanted(Some(to_left), 1), anywhere(), soon(), None).unwrap());
    }
    for (seed, got) in kept.iter().enumerate() {
        check(only(got), LENGTH_BYTES, seed as u64);
    }
    for node in [&left, &right] {
        let stats = node.arena().stats();
        assert!(stats.mapped_bytes <= CAPACITY_BYTES, "{stats:?}");
        assert!(stats.lent_bytes <= CAPACITY_BYTES / 2, "{stats:?}");
    }
    right.send(to_left, message(2, private(3_000_000, 1), Mode::Copy), soon(), None).unwrap();
    check(only(&left.recv(wanted(None, 2), anywhere(), soon(), None).unwrap()), 3_000_000, 1);
    drop(kept);
    left.send(to_right, message(2, private(LENGTH_BYTES, 2), Mode::Copy), soon(), None).unwrap();
    check(only(&right.recv(wanted(None, 2), anywhere(), soon(), None).unwrap()), LENGTH_BYTES, 2);
}

fn in_arena_or_private(node: &Node, length_bytes: usize, seed: u64) -> sheave_tensor::Tensor {
    // A capacity of 512 such blocks is used up by what the receiver keeps.
    if node.arena().stats().used_bytes < 8 << 20 {
        in_arena(node.arena(), length_bytes, seed)
    } else {
        private(length_bytes, seed)
    }
}

pub(crate) fn an_idle_node_is_not_woken(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    for seed in 0..100 {
        left.send(to_right, message(1, private(5_000, seed), Mode::Copy), soon(), None).unwrap();
        let got = right.recv(wanted(Some(to_left), 1), anywhere(), soon(), None).unwrap();
        right.send(to_left, message(1, got.into_tensor().unwrap(), Mode::Move), soon(), None).unwrap();
        check(only(&left.recv(wanted(None, 1), anywhere(), soon(), None).unwrap()), 5_000, seed);
    }
    // A quiet stretch longer than a beat must come, and traffic's last echoes may take a moment.
    let counts = || {
        // Signs of life travel as bytes on a socket and are read when they come.
        let wakeups = |node: &Node| if pairs.medium() == Medium::Tcp { 0 } else { node.counts().progress_wakeups };
        [&left, &right].map(|node| (node.counts().doorbells_rung, wakeups(node)))
    };
    let begun = Instant::now();
    loop {
        let before = counts();
        thread::sleep(Duration::from_millis(1500));
        if counts() == before {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(12), "still woken: {before:?}, {:?}", counts());
    }
}
