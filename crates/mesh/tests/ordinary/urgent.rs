//! Words of the mesh do not wait for messages of its users, but for those by which something ends.

use crate::common;
use crate::common::{soon, together_with, until};
use sheave_base::config::Transport;
use sheave_base::limits::UNEXPECTED_MESSAGES_MAX;
use sheave_base::{ErrorKind, Tag};
use sheave_mesh::{Config, Expected, Mesh};
use sheave_net::{Envelope, Neighbourhood, Outgoing};
use sheave_tensor::{Mode, Tensor};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The bound of the design: who needs a node that has died learns it within this time.
const BOUND: Duration = Duration::from_secs(1);

/// A context that no group has.
const NOBODYS: u64 = 18;

fn message(length_bytes: usize) -> Outgoing {
    let tensor = Tensor::from_slice(&vec![1_u8; length_bytes], [length_bytes as u64]).expect("memory");
    Outgoing::tensor(Envelope::data(NOBODYS, Tag(1)), tensor, Mode::Copy)
}

/// Sends rank 1 as many messages as it may keep that nobody receives, and some more, which hold up the link.
fn fill(mesh: &Mesh, is_full: &AtomicBool) {
    let link = mesh.link_to(mesh.members()[1].node).expect("it lives");
    let end = soon();
    let mut more = 0;
    while more < 2000 {
        assert!(Instant::now() < end, "rank 1 was never full");
        match mesh.node().isend(link, message(8)) {
            Ok(_) => more += u32::from(is_full.load(SeqCst)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
                // It may have filled this node's queue too before it said so.
                if is_full.load(SeqCst) {
                    return;
                }
                std::thread::yield_now();
            }
        }
    }
}

fn unread_messages(transport: Transport, change: impl Fn(&mut Config)) {
    let is_full = Arc::new(AtomicBool::new(false));
    let died = Arc::new(Mutex::new(None));
    let took = together_with(Expected::ranks(3), transport, change, move |mesh| {
        let world = mesh.world();
        world.barrier().expect("all are there");
        match mesh.me().rank.0 {
            0 => fill(&mesh, &is_full),
            1 => {
                until("rank 1 is full", || mesh.node().unexpected().0 == UNEXPECTED_MESSAGES_MAX);
                is_full.store(true, SeqCst);
            }
            _ => {}
        }
        // Rank 0 releases rank 1 over the link that is held up.
        let passed = world.begin_barrier(None);
        passed.wait_timeout(Duration::from_secs(30)).expect("unread messages hold up no barrier");
        assert_eq!(mesh.node().unexpected().0, if mesh.me().rank.0 == 1 { UNEXPECTED_MESSAGES_MAX } else { 0 });
        if mesh.me().rank.0 == 2 {
            *died.lock().expect("no panic") = Some(Instant::now());
            mesh.abandon();
            return Duration::ZERO;
        }
        let error = world.begin_barrier(None).wait_timeout(Duration::from_secs(30)).expect_err("rank 2 has died");
        let took = died.lock().expect("no panic").expect("rank 2 has died").elapsed();
        assert!(error.to_string().contains("rank-2"), "{error}");
        mesh.fail("the test is over");
        took
    });
    assert!(took.iter().all(|took| *took < BOUND), "{took:?}");
}

#[test]
fn f18_unread_messages_hold_up_neither_barriers_nor_news_of_deaths_in_shared_memory() {
    unread_messages(Transport::Shm, |_| ());
}

#[test]
fn f18_unread_messages_hold_up_neither_barriers_nor_news_of_deaths_in_one_process() {
    let neighbourhood = Neighbourhood::default();
    unread_messages(Transport::Auto, |config| config.node.neighbourhood = Some(neighbourhood.clone()));
}

#[test]
fn f18_unread_messages_hold_up_neither_barriers_nor_news_of_deaths_over_tcp() {
    unread_messages(Transport::Tcp, |_| ());
}

/// Whoever finishes has had all that was sent to it by those who say that they are about to finish.
#[test]
fn f18_the_barrier_before_the_end_stays_behind_what_was_sent() {
    const COUNT: usize = 64;
    for transport in [Transport::Shm, Transport::Tcp] {
        common::together(Expected::ranks(3), transport, move |mesh| {
            mesh.world().barrier().expect("all are there");
            let coordinator = mesh.members()[0].node;
            if mesh.me().rank.0 == 0 {
                mesh.begin_finish().wait().expect("all are well");
                assert_eq!(mesh.node().unexpected().0, 2 * COUNT, "over {transport:?}");
            } else {
                let link = mesh.link_to(coordinator).expect("it lives");
                (0..COUNT).for_each(|_| drop(mesh.node().isend(link, message(1 << 20)).expect("there is room")));
            }
            mesh.finish().expect("all are well");
        });
    }
}
