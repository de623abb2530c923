//! Processes that disagree about an operation: every one of them gets the error that shows both sides, soon.

use crate::common;
use crate::common::{hear, job, part, say, start_all, until};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, Rank, Result, Work};
use sheave_collective::{Collectives, Communicator, Operator};
use sheave_mesh::Mesh;
use sheave_tensor::Tensor;
use std::time::{Duration, Instant};

const RANKS: u32 = 3;

/// How soon everybody knows, though two of three may wait for each other.
const BOUND: Duration = Duration::from_secs(1);

type Act = fn(&Communicator) -> Work<()>;

fn floats(count: usize) -> Tensor {
    Tensor::from_slice(&vec![1.0_f32; count], [count as u64]).expect("memory")
}

fn reduce(world: &Communicator, tensor: &Tensor, operator: Operator) -> Work<()> {
    world.all_reduce(tensor, tensor, operator)
}

/// What is called, and what the error shows of both sides.
const CASES: [(&str, Act, [&str; 2]); 8] = [
    (
        "kind",
        |world| match world.rank().0 {
            1 => reduce(world, &floats(4), Operator::Sum),
            _ => world.broadcast(&floats(4), Rank(0)),
        },
        ["rank 1 called all_reduce sum f32[4]", "called broadcast f32[4] with root 0"],
    ),
    (
        "barrier",
        |world| if world.rank().0 == 2 { world.barrier() } else { reduce(world, &floats(100_000), Operator::Sum) },
        ["rank 2 called barrier", "called all_reduce sum f32[100000]"],
    ),
    (
        "operator",
        |world| reduce(world, &floats(1), [Operator::Sum, Operator::Avg, Operator::Sum][world.rank().0 as usize]),
        ["all_reduce sum f32[1]", "rank 1 called all_reduce avg f32[1]"],
    ),
    (
        "dtype",
        |world| match world.rank().0 {
            0 => reduce(world, &Tensor::from_slice(&[1_i32; 9], [9]).expect("memory"), Operator::Sum),
            _ => reduce(world, &floats(9), Operator::Sum),
        },
        ["rank 0 called all_reduce sum i32[9]", "all_reduce sum f32[9]"],
    ),
    (
        "count",
        |world| {
            let count = if world.rank().0 == 2 { 300_001 } else { 300_000 };
            let input = floats(count);
            world.all_gather(&input, &floats(count * RANKS as usize))
        },
        ["all_gather f32[300000]", "rank 2 called all_gather f32[300001]"],
    ),
    (
        // Another algorithm for another length.
        "length",
        |world| reduce(world, &floats(if world.rank().0 == 0 { 10 } else { 200_000 }), Operator::Max),
        ["rank 0 called all_reduce max f32[10]", "all_reduce max f32[200000]"],
    ),
    (
        // Two of them wait for each other at first.
        "root",
        |world| world.broadcast(&floats(70_000), Rank(u32::from(world.rank().0 == 1))),
        ["broadcast f32[70000] with root 0", "rank 1 called broadcast f32[70000] with root 1"],
    ),
    (
        "list",
        |world| {
            let list = [floats(5), floats(5), floats(1)];
            world.broadcast_list(&list[..if world.rank().0 == 0 { 3 } else { 2 }], Rank(1))
        },
        ["broadcast_list of 2 tensors with 10 elements", "rank 0 called broadcast_list of 3 tensors"],
    ),
];

fn play(mesh: &Mesh) -> Result<()> {
    let world = Collectives::new(mesh)?.group(&mesh.world())?;
    let all: Vec<Rank> = (0..RANKS).map(Rank).collect();
    for (name, act, _) in CASES {
        // Only this group breaks.
        let group = world.subgroup(name, &all)?;
        group.barrier().wait()?;
        world.barrier().wait()?;
        let begun = Instant::now();
        let error = act(&group).wait_timeout(common::PATIENCE).expect_err("they disagree");
        let elapsed = begun.elapsed();
        let next = group.barrier().wait().expect_err("the group is broken");
        assert_eq!(next.kind(), ErrorKind::Mismatch, "{next}");
        say(&format!("{name} {} {:?} {}", elapsed.as_millis(), error.kind(), error.what()));
    }
    world.barrier().wait()
}

#[test]
fn actor() {
    let Some(config) = part() else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    play(&mesh).expect("the world is whole");
    mesh.finish().expect("all come");
}

fn all_disagree(transport: Transport) {
    let job = job();
    let children = start_all(&job, RANKS, transport, &[]);
    for (name, _, sides) in CASES {
        for child in &children {
            let words = hear(child, name);
            let (elapsed_ms, what) = words.split_once(' ').expect("a time and an error");
            let elapsed = Duration::from_millis(elapsed_ms.parse().expect("a time"));
            assert!(elapsed < BOUND, "{name} after {elapsed:?}: {what}");
            assert!(what.starts_with("Mismatch") && sides.iter().all(|side| what.contains(side)), "{name}: {what}");
        }
    }
    for child in &children {
        until("it has ended", || child.exit().is_some());
        assert!(child.exit().is_some_and(|exit| exit.status.success()), "{:?}", child.stderr_lines());
    }
}

#[test]
fn every_process_is_told_through_shared_memory() {
    all_disagree(Transport::Shm);
}

#[test]
fn every_process_is_told_over_tcp() {
    all_disagree(Transport::Tcp);
}
