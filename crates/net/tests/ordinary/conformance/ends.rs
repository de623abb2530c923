//! How links end.

use super::content::{Lengths, anywhere, at, check, message, only, place, private, wanted};
use super::pairs::{Pair, Pairs};
use super::watch::{soon, until};
use sheave_base::{Error, ErrorKind};
use sheave_net::NodeConfig;
use sheave_tensor::Mode;
use std::thread;
use std::time::{Duration, Instant};

#[track_caller]
fn is_about(error: &Error, kind: ErrorKind, name: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    assert_eq!(error.about().map(|peer| peer.name.as_str()), Some(name), "{error}");
}

pub(crate) fn what_was_sent_before_the_close_arrives(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    let lengths: Vec<_> = Lengths::new(5).take(200).chain([3_000_000, 0, 700]).collect();
    for (seed, length_bytes) in lengths.iter().enumerate() {
        left.send(to_right, message(1, private(*length_bytes, seed as u64), Mode::Copy), soon(), None).unwrap();
    }
    left.close(to_right).unwrap();
    for (seed, length_bytes) in lengths.iter().enumerate() {
        let got = right.recv(wanted(Some(to_left), 1), anywhere(), soon(), None).unwrap();
        check(only(&got), *length_bytes, seed as u64);
    }
    let end = right.recv(wanted(Some(to_left), 1), anywhere(), soon(), None).expect_err("the link is closed");
    is_about(&end, ErrorKind::PeerLost, "left");
    let sent = right.send(to_left, message(1, private(1, 1), Mode::Copy), soon(), None).expect_err("closed");
    is_about(&sent, ErrorKind::PeerLost, "left");
    let sent = left.send(to_right, message(1, private(1, 1), Mode::Copy), soon(), None).expect_err("closed");
    is_about(&sent, ErrorKind::Closed, "right");
    assert_eq!((left.links().len(), right.links().len()), (0, 0));
    assert_eq!((left.counts().links_ended, right.counts().links_ended), (1, 1));
}

pub(crate) fn close_ends_everything_that_waits(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    let place = place(100);
    let here = left.irecv(wanted(Some(to_right), 1), at(&place)).unwrap();
    let there = right.irecv(wanted(Some(to_left), 1), anywhere()).unwrap();
    let any = right.irecv(wanted(None, 1), anywhere()).unwrap();
    let waiting = {
        let right = right.clone();
        thread::spawn(move || right.recv(wanted(Some(to_left), 2), anywhere(), soon(), None).map(|_| ()))
    };
    until("the receiver sleeps", || right.counts().waits_parked > 0);
    left.close(to_right).unwrap();
    assert_eq!(here.join().expect_err("closed").kind(), ErrorKind::Closed);
    assert!(place.write_lease("test").is_ok(), "the place is free");
    for end in [there.join().map(|_| ()), any.join().map(|_| ()), waiting.join().unwrap()] {
        assert_eq!(end.expect_err("the peer closed the link").kind(), ErrorKind::PeerLost);
    }
    let again = left.close(to_right).expect_err("it is closed");
    assert_eq!(again.kind(), ErrorKind::Closed);
}

pub(crate) fn a_dropped_peer_is_named(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    right.send(to_left, message(1, private(5_000, 1), Mode::Copy), soon(), None).unwrap();
    let waiting = {
        let left = left.clone();
        thread::spawn(move || left.recv(wanted(Some(to_right), 2), anywhere(), soon(), None).map(|_| ()))
    };
    until("the receiver sleeps", || left.counts().waits_parked > 0);
    let dropped = Instant::now();
    drop(right);
    let end = waiting.join().unwrap().expect_err("the peer is gone");
    assert!(dropped.elapsed() < Duration::from_secs(1), "it took {:?}", dropped.elapsed());
    is_about(&end, ErrorKind::PeerLost, "right");
    assert_eq!(end.operation_name(), Some("recv"));
    let got = left.recv(wanted(Some(to_right), 1), anywhere(), soon(), None).expect("it was sent before");
    check(only(&got), 5_000, 1);
    let sent = left.send(to_right, message(1, private(1, 1), Mode::Copy), soon(), None).expect_err("nobody is there");
    is_about(&sent, ErrorKind::PeerLost, "right");
}

pub(crate) fn a_close_in_the_middle_of_traffic_loses_nothing_that_was_sent(pairs: &dyn Pairs) {
    for round in 0..20 {
        let Pair { left, to_right, right, to_left } =
            &pairs.connect(NodeConfig::named("left"), NodeConfig::named("right"));
        let sent = thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let lengths = Lengths::new(round).map(|length| length * 4);
                let refused = lengths.enumerate().find(|(seed, length_bytes)| {
                    let outgoing = message(1, private(*length_bytes, *seed as u64), Mode::Copy);
                    left.send(*to_right, outgoing, soon(), None).is_err()
                });
                refused.map_or(0, |(seed, _)| seed)
            });
            until("traffic", || right.unexpected().0 as u64 > 10 + round * 10);
            left.close(*to_right).unwrap();
            sender.join().unwrap()
        });
        let mut lengths = Lengths::new(round).map(|length| length * 4);
        for seed in 0..sent {
            let got = right.recv(wanted(Some(*to_left), 1), anywhere(), soon(), None);
            let got = got.unwrap_or_else(|error| panic!("message {seed} of {sent} was sent: {error}"));
            check(only(&got), lengths.next().unwrap(), seed as u64);
        }
    }
}
