//! A process that lacks descriptors, memory or threads says so and ends, and nobody else is harmed or accused.

use crate::common::{PATIENCE, actor as command, free_port, hear, job, note, part, say, until, wait};
use crate::shortages::{leave_descriptors, leave_no_memory};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, Rank};
use sheave_mesh::{Call, Expected, Mesh, Request};
use sheave_net::Part;
use sheave_tensor::{Dtype, Mode, Tensor};
use smallvec::smallvec;
use std::time::Instant;

const RANKS: u32 = 4;
const SHORT: usize = 3;
const CASE: &str = "SHEAVE_TEST_CASE";

/// What the short rank lacks, how the others make it need that, and what all of them read.
fn be_short(mesh: &Mesh, case: &str) {
    let me = mesh.me().rank.0 as usize;
    let (what, who) = case.split_once(' ').expect("a case");
    if me == SHORT {
        match what {
            "memory" => leave_no_memory(),
            free => leave_descriptors(free.parse().expect("a number")),
        }
        say("short");
    }
    // Over the links that there are: nobody needs anything of it before it is short.
    mesh.world().barrier().expect("all are there");
    let member = |rank: usize| mesh.members()[rank].node;
    match (who, me) {
        ("calls", SHORT) => {
            let error = mesh.link_to(member(1)).expect_err("there is nothing to make it of");
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
        }
        ("called", 1) => {
            let error = mesh.link_to(member(SHORT)).expect_err("there is nothing to make it of");
            assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        }
        ("shown", 0) => {
            let tensor = Tensor::empty(mesh.node().arena(), Dtype::F32, [1 << 20]).expect("there is room");
            let call = Call { tensors: smallvec![Part::new(tensor, Mode::Copy)], ..Call::default() };
            let error = wait(&mesh.call(member(SHORT), "it", "take", call).expect("it is sent"));
            assert_eq!(error.expect_err("it cannot take it").kind(), ErrorKind::PeerLost);
        }
        _ => {}
    }
}

#[test]
fn actor() {
    let Some(config) = part(Expected::ranks(RANKS)) else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    mesh.serve("it", |request: Request| request.reply.value(true)).expect("the name is free");
    mesh.world().barrier().expect("all are there");
    // The last one knows that all are through before it takes something away from itself.
    mesh.world().barrier().expect("all are there");
    be_short(&mesh, &std::env::var(CASE).expect("a case"));
    if mesh.me().rank == Rank(SHORT as u32) {
        until("the end of this membership", || !mesh.is_member());
        let error = mesh.world().barrier().expect_err("this node is no member any more");
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
        assert!(error.advice().is_some_and(|hint| hint.contains("ulimit")), "{error}");
        say(&format!("failed {error}"));
        return;
    }
    until("the news of the death", || !mesh.deaths().is_empty());
    let deaths = mesh.deaths();
    assert_eq!(deaths.len(), 1, "{deaths:?}");
    assert_eq!(deaths[0].node, mesh.members()[SHORT].node, "{deaths:?}");
    let error = mesh.world().barrier().expect_err("one is gone");
    assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
    say(&format!("lost {error}"));
    let rest: Vec<_> = mesh.members()[..SHORT].iter().map(|member| member.node).collect();
    mesh.group("the rest", &rest).expect("all live").barrier().expect("all are there");
    assert!(mesh.is_member(), "{:?}", mesh.deaths());
    mesh.leave().expect("the rest agrees");
    say("left");
}

fn who_is_short_says_so(case: &str, lacks: &str, others_read: &str) {
    let (job, port) = (job(), free_port());
    let begun = Instant::now();
    let start = |rank| command(&format!("rank-{rank}"), port, Transport::Shm).env(CASE, case);
    let children: Vec<_> = (0..RANKS).map(|rank| job.spawn(start(rank)).expect("a process")).collect();
    drop(hear(&children[SHORT], "short"));
    let took = Instant::now();
    let own = hear(&children[SHORT], "failed");
    note(&format!("{case}: {own}"));
    assert!(own.contains(lacks), "{case}: {own}");
    for child in &children[..SHORT] {
        let lost = hear(child, "lost");
        note(&format!("{case}: {lost}"));
        assert!(lost.contains(others_read) && lost.contains("rank-3"), "{case}: {lost}");
        drop(hear(child, "left"));
    }
    for child in &children {
        let exit = child.wait(Some(begun + PATIENCE)).expect("it is ours").expect("it ends");
        assert!(exit.status.success(), "{case}: {}: {exit:?}\n{}", child.name(), child.stderr_lines().join("\n"));
    }
    note(&format!("{case}: {:.1} s", took.elapsed().as_secs_f64()));
}

#[test]
fn f86_who_has_no_descriptor_for_a_link_that_it_makes_says_so() {
    for free in 0..4 {
        who_is_short_says_so(&format!("{free} calls"), "no file descriptor left", "no file descriptor left");
    }
}

#[test]
fn f86_who_has_no_descriptor_for_a_link_that_a_peer_makes_says_so() {
    for free in [0, 1, 2] {
        who_is_short_says_so(&format!("{free} called"), "no file descriptor left", "no file descriptor left");
    }
}

#[test]
fn f86_who_has_no_descriptor_for_the_memory_that_a_peer_shows_says_so() {
    // The link that failed was the only one, so its last word is all that can be known.
    who_is_short_says_so("0 shown", "no file descriptor left", "it lacks file descriptors");
}

#[test]
fn f21_who_has_no_memory_for_a_thread_says_so() {
    who_is_short_says_so("memory calls", "no more", "no more");
}
