//! Which receive takes which message.

use super::content::{anywhere, at, check, message, only, place, private, wanted};
use super::pairs::{Pair, Pairs};
use super::watch::{soon, until};
use sheave_base::{ErrorKind, Tag};
use sheave_net::{Envelope, Node, NodeConfig, Outgoing, Wanted};
use sheave_tensor::Mode;
use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) fn any_source_takes_from_every_link(pairs: &dyn Pairs) {
    const COUNT: u64 = 100;
    let node = |name: &str| Node::start(pairs.adjust(NodeConfig::named(name))).unwrap();
    let middle = node("middle");
    let around: Vec<_> = ["one", "two", "three"]
        .into_iter()
        .map(|name| {
            let node = node(name);
            let (to_middle, from_middle) = pairs.link(&node, &middle);
            (node, to_middle, from_middle)
        })
        .collect();
    thread::scope(|scope| {
        for (node, to_middle, _) in &around {
            scope.spawn(move || {
                for seed in 0..COUNT {
                    let outgoing = message(1, private(seed as usize * 300, seed), Mode::Copy);
                    node.send(*to_middle, outgoing, soon(), None).unwrap();
                }
            });
        }
        let mut next: HashMap<_, u64> = around.iter().map(|(_, _, from_middle)| (*from_middle, 0)).collect();
        for _ in 0..COUNT * 3 {
            let got = middle.recv(wanted(None, 1), anywhere(), soon(), None).unwrap();
            let seed = next.get_mut(&got.source).expect("one of the three links");
            check(only(&got), *seed as usize * 300, *seed);
            *seed += 1;
        }
        assert!(next.values().all(|count| *count == COUNT));
    });
}

pub(crate) fn tags_and_contexts_are_kept_apart(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    let names = [(0, 1), (0, 2), (1, 1), (u64::MAX, u64::MAX)];
    for posted_before in [true, false] {
        let want = |(context, tag)| Wanted { source: Some(to_left), context, tag: Tag(tag) };
        let works: Vec<_> = names
            .iter()
            .rev()
            .filter(|_| posted_before)
            .map(|name| right.irecv(want(*name), anywhere()).unwrap())
            .collect();
        for (seed, (context, tag)) in names.into_iter().enumerate() {
            let outgoing = Outgoing::tensor(Envelope::data(context, Tag(tag)), private(99, seed as u64), Mode::Copy);
            left.send(to_right, outgoing, soon(), None).unwrap();
        }
        if posted_before {
            for (seed, work) in works.into_iter().rev().enumerate() {
                check(only(&work.join().unwrap()), 99, seed as u64);
            }
        } else {
            for (seed, name) in names.into_iter().enumerate().rev() {
                let got = right.recv(want(name), anywhere(), soon(), None).unwrap();
                check(only(&got), 99, seed as u64);
                assert_eq!((got.envelope.context, got.envelope.tag), (name.0, Tag(name.1)));
            }
        }
    }
}

pub(crate) fn unexpected_messages_wait_in_order(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    let lengths = [10, 200_000, 0, 3_000_000, 5_000, 1];
    for (seed, length_bytes) in lengths.into_iter().enumerate() {
        left.send(to_right, message(1, private(length_bytes, seed as u64), Mode::Copy), soon(), None).unwrap();
    }
    until("all messages have arrived", || right.unexpected() == (6, lengths.iter().sum::<usize>() as u64));
    for (seed, length_bytes) in lengths.into_iter().enumerate() {
        let got = right.recv(wanted(Some(to_left), 1), anywhere(), soon(), None).unwrap();
        check(only(&got), length_bytes, seed as u64);
    }
    assert_eq!(right.unexpected(), (0, 0));
}

pub(crate) fn a_cancelled_receive_takes_nothing(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    let place = place(1000);
    let first = right.irecv(wanted(Some(to_left), 1), at(&place)).unwrap();
    let second = right.irecv(wanted(Some(to_left), 1), anywhere()).unwrap();
    first.cancel();
    assert_eq!(first.join().expect_err("cancelled").kind(), ErrorKind::Cancelled);
    assert!(place.write_lease("test").is_ok(), "the place is free");
    left.send(to_right, message(1, private(1000, 4), Mode::Copy), soon(), None).unwrap();
    second.wait_until(soon(), None).unwrap();
    second.cancel();
    let got = second.taken().expect("a finished receive cannot be cancelled");
    check(only(&got), 1000, 4);
}

pub(crate) fn a_late_receive_is_taken_back(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    let place = place(200_000);
    let span = Duration::from_millis(50);
    for source in [Some(to_left), None] {
        let mut begun = Instant::now();
        let receive = || {
            begun = Instant::now();
            let late = right.recv(wanted(source, 1), at(&place), Some(begun + span), None);
            let late = late.expect_err("nothing was sent");
            assert!(begun.elapsed() >= span && late.after() <= Some(begun.elapsed()), "{late}");
            late
        };
        // The time that it tells is counted from the call, before which this thread may have lost its core.
        let mut attempts = std::iter::repeat_with(receive).take(10);
        let late = attempts.find(|late| late.after() >= Some(span)).expect("it tells how long it has waited");
        drop(attempts);
        assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
        assert!(late.advice().is_some());
        assert_eq!(late.about().and_then(|peer| peer.name.as_str().into()), source.map(|_| "left"));
        assert!(begun.elapsed() < Duration::from_secs(5));
        left.send(to_right, message(1, private(200_000, 4), Mode::Copy), soon(), None).unwrap();
        let got = right.recv(wanted(source, 1), at(&place), soon(), None).unwrap();
        check(only(&got), 200_000, 4);
    }
}
