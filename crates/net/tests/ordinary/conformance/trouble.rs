//! What the chaos link does on purpose.

use super::content::{anywhere, check, message, only, private, wanted};
use super::pairs::{Inproc, Pair, Pairs, Shm, Tcp};
use super::watch::{limited, soon};
use sheave_base::ErrorKind;
use sheave_net::chaos::{ChaosConfig, Direction, Trouble};
use sheave_net::{Liveness, NodeConfig};
use sheave_tensor::Mode;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

fn quick(name: &str, chaos: Option<ChaosConfig>) -> NodeConfig {
    let liveness =
        Liveness { beat: Duration::from_millis(50), timeout: Duration::from_millis(400), kill_silent: false };
    NodeConfig { chaos, liveness, ..NodeConfig::named(name) }
}

#[test]
fn a_cut_link_ends_on_both_sides() {
    limited("trouble::a_cut_link_ends_on_both_sides", 30, || {
        for pairs in [&Inproc as &dyn Pairs, &Shm, &Tcp] {
            let chaos = ChaosConfig { cut_after_messages: Some(10), ..ChaosConfig::default() };
            let Pair { left, to_right, right, to_left } =
                pairs.connect(quick("left", Some(chaos)), quick("right", None));
            for seed in 0..10 {
                left.send(to_right, message(1, private(100, seed), Mode::Copy), soon(), None).unwrap();
            }
            let refused = left.send(to_right, message(1, private(100, 10), Mode::Copy), soon(), None);
            assert_eq!(refused.expect_err("the link is cut").kind(), ErrorKind::PeerLost);
            let here = left.recv(wanted(Some(to_right), 1), anywhere(), soon(), None);
            assert_eq!(here.expect_err("the link is cut").kind(), ErrorKind::PeerLost);
            for seed in 0..10 {
                let got = right.recv(wanted(Some(to_left), 1), anywhere(), soon(), None).unwrap();
                check(only(&got), 100, seed);
            }
            let there = right.recv(wanted(Some(to_left), 1), anywhere(), soon(), None);
            assert_eq!(there.expect_err("the link is cut").kind(), ErrorKind::PeerLost);
        }
    });
}

#[test]
fn a_deaf_node_declares_its_peer_dead() {
    limited("trouble::a_deaf_node_declares_its_peer_dead", 30, || {
        for pairs in [&Inproc as &dyn Pairs, &Shm, &Tcp] {
            let partition_after_messages = Some((Direction::Inbound, 3));
            let chaos = ChaosConfig { partition_after_messages, ..ChaosConfig::default() };
            let Pair { left, to_right, right, to_left } =
                pairs.connect(quick("left", Some(chaos)), quick("right", None));
            for seed in 0..4 {
                right.send(to_left, message(1, private(100, seed), Mode::Copy), soon(), None).unwrap();
            }
            let begun = Instant::now();
            for seed in 0..3 {
                check(only(&left.recv(wanted(None, 1), anywhere(), soon(), None).unwrap()), 100, seed);
            }
            left.send(to_right, message(1, private(100, 9), Mode::Copy), soon(), None).expect("that way is open");
            check(only(&right.recv(wanted(None, 1), anywhere(), soon(), None).unwrap()), 100, 9);
            let end = left.recv(wanted(Some(to_right), 1), anywhere(), soon(), None).expect_err("it hears nothing");
            assert_eq!(end.kind(), ErrorKind::PeerLost, "{end}");
            assert_eq!(end.about().map(|peer| peer.name.as_str()), Some("right"));
            assert!(begun.elapsed() < Duration::from_secs(2), "it took {:?}", begun.elapsed());
            right.recv(wanted(Some(to_left), 1), anywhere(), soon(), None).expect_err("it was declared dead");
        }
    });
}

#[test]
fn a_mute_node_is_declared_dead() {
    limited("trouble::a_mute_node_is_declared_dead", 30, || {
        let partition_after_messages = Some((Direction::Outbound, 3));
        let chaos = ChaosConfig { partition_after_messages, ..ChaosConfig::default() };
        for pairs in [&Shm as &dyn Pairs, &Tcp] {
            let Pair { left, to_right, right, to_left } =
                pairs.connect(quick("left", Some(chaos)), quick("right", None));
            for seed in 0..3 {
                left.send(to_right, message(1, private(100, seed), Mode::Copy), soon(), None).unwrap();
            }
            let swallowed = left.isend(to_right, message(1, private(100, 3), Mode::Copy)).unwrap();
            for seed in 0..3 {
                check(only(&right.recv(wanted(None, 1), anywhere(), soon(), None).unwrap()), 100, seed);
            }
            let begun = Instant::now();
            let end = right.recv(wanted(Some(to_left), 1), anywhere(), soon(), None).expect_err("it hears nothing");
            assert_eq!(end.kind(), ErrorKind::PeerLost, "{end}");
            assert!(begun.elapsed() < Duration::from_secs(2), "it took {:?}", begun.elapsed());
            let end = left.recv(wanted(Some(to_right), 1), anywhere(), soon(), None).expect_err("it was declared dead");
            assert_eq!(end.kind(), ErrorKind::DeclaredDead, "{end}");
            swallowed.join().expect_err("it never left");
        }
    });
}

#[test]
fn throttle_and_stall_take_their_time_and_sleepers_wake_for_it() {
    limited("trouble::throttle_and_stall_take_their_time_and_sleepers_wake_for_it", 60, || {
        let slow = [
            Trouble { throttle_bytes_per_s: NonZeroU64::new(1_000_000), ..Trouble::default() },
            Trouble { stall_per_mille: 1000, stall: Duration::from_millis(30), ..Trouble::default() },
        ];
        for (trouble, outbound) in slow.into_iter().flat_map(|trouble| [(trouble, true), (trouble, false)]) {
            let chaos = if outbound {
                ChaosConfig { outbound: trouble, ..ChaosConfig::default() }
            } else {
                ChaosConfig { inbound: trouble, ..ChaosConfig::default() }
            };
            let (left, right) = if outbound { (Some(chaos), None) } else { (None, Some(chaos)) };
            let Pair { left, to_right, right, to_left } = Shm.connect(quick("left", left), quick("right", right));
            let begun = Instant::now();
            let works: Vec<_> = (0..10)
                .map(|seed| left.isend(to_right, message(1, private(30_000, seed), Mode::Copy)).unwrap())
                .collect();
            for seed in 0..10 {
                check(only(&right.recv(wanted(Some(to_left), 1), anywhere(), soon(), None).unwrap()), 30_000, seed);
            }
            let took = begun.elapsed();
            assert!(took >= Duration::from_millis(290), "{trouble:?} took {took:?}");
            assert!(took < Duration::from_secs(5), "{trouble:?} took {took:?}");
            works.into_iter().for_each(|work| work.join().unwrap());
        }
    });
}
