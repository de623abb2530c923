//! Order and wholeness.

use super::content::{Lengths, anywhere, check, message, only, private, wanted};
use super::pairs::{Pair, Pairs};
use super::watch::soon;
use sheave_base::LinkId;
use sheave_net::Node;
use sheave_tensor::Mode;
use std::thread;

fn send_all(node: &Node, link: LinkId, tag: u64, count: usize, seed: u64) {
    for (at, length_bytes) in Lengths::new(seed).take(count).enumerate() {
        let outgoing = message(tag, private(length_bytes, seed + at as u64), Mode::Copy);
        node.send(link, outgoing, soon(), None).expect("the peer receives");
    }
}

fn receive_all(node: &Node, link: LinkId, tag: u64, count: usize, seed: u64) {
    let mut last = 0;
    for (at, length_bytes) in Lengths::new(seed).take(count).enumerate() {
        let got = node.recv(wanted(Some(link), tag), anywhere(), soon(), None).expect("the peer sends");
        assert!(got.sequence > last, "message {} after message {last}", got.sequence);
        assert_eq!(got.source, link);
        last = got.sequence;
        check(only(&got), length_bytes, seed + at as u64);
    }
}

pub(crate) fn mixed_sizes_both_ways_at_once(pairs: &dyn Pairs) {
    let count = pairs.many_messages();
    let Pair { left, to_right, right, to_left } = &pairs.pair();
    thread::scope(|scope| {
        scope.spawn(|| send_all(left, *to_right, 7, count, 1_000_000));
        scope.spawn(|| send_all(right, *to_left, 7, count, 2_000_000));
        scope.spawn(|| receive_all(left, *to_right, 7, count, 2_000_000));
        scope.spawn(|| receive_all(right, *to_left, 7, count, 1_000_000));
    });
    assert_eq!(left.counts().messages_received, count as u64);
    assert_eq!(right.counts().messages_received, count as u64);
    assert_eq!(right.unexpected(), (0, 0));
}

pub(crate) fn four_senders_and_four_receivers(pairs: &dyn Pairs) {
    const COUNT: usize = 500;
    let Pair { left, to_right, right, to_left } = &pairs.pair();
    thread::scope(|scope| {
        for tag in 0..4 {
            scope.spawn(move || send_all(left, *to_right, tag, COUNT, tag * 1_000_000));
            scope.spawn(move || receive_all(right, *to_left, tag, COUNT, tag * 1_000_000));
        }
    });
}

pub(crate) fn both_sides_send_64_mib_before_either_receives(pairs: &dyn Pairs) {
    const LENGTH_BYTES: usize = 64 << 20;
    let Pair { left, to_right, right, to_left } = &pairs.pair();
    thread::scope(|scope| {
        for (node, link, own, other) in [(left, to_right, 1, 2), (right, to_left, 2, 1)] {
            scope.spawn(move || {
                let outgoing = message(3, private(LENGTH_BYTES, own), Mode::Copy);
                node.send(*link, outgoing, soon(), None).expect("the other side takes it, asked for or not");
                let got = node.recv(wanted(Some(*link), 3), anywhere(), soon(), None).expect("it was sent");
                check(only(&got), LENGTH_BYTES, other);
            });
        }
    });
}
