//! Several groups at once: overlapping, split and reversed, from threads of their own and with many operations in
//! flight, whatever the order in which a rank uses them.

mod common;

use common::oracle::Memory;
use common::player::{OPERATIONS, Player};
use common::{together, wait};
use sheave_base::clock::SeededEntropy;
use sheave_base::{Rank, Work};
use sheave_collective::{Communicator, Operator};
use sheave_net::Medium;
use sheave_tensor::Tensor;

const RANKS: u32 = 5;

/// The groups that this rank is in, each with a number that is the same on all its members.
fn groups(world: &Communicator) -> Vec<(u64, Communicator)> {
    let rank = world.rank().0;
    let lists: [&[u32]; 5] = [&[4, 3, 2, 1, 0], &[0, 1, 2], &[2, 3, 4], &[1, 3], &[3, 0]];
    let mine = lists.iter().zip(1..).filter(|(ranks, _)| ranks.contains(&rank));
    let subgroup = |(ranks, number): (&&[u32], u64)| {
        let ranks: Vec<Rank> = ranks.iter().copied().map(Rank).collect();
        (number, world.subgroup(&format!("group {number}"), &ranks).expect("it is in it"))
    };
    let mut groups: Vec<_> = mine.map(subgroup).collect();
    let half = world.split(Some(rank % 2), i64::from(rank)).expect("all come").expect("it has a colour");
    groups.push((10 + u64::from(rank % 2), half.clone()));
    // A split of a split.
    let quarter = half.split((half.rank().0 < 2).then_some(7), -i64::from(rank)).expect("all come");
    groups.extend(quarter.map(|quarter| (20 + u64::from(rank % 2), quarter)));
    groups.push((30, world.clone()));
    groups
}

#[test]
fn every_group_has_a_thread_and_all_go_on_at_once() {
    for medium in [Medium::SharedMemory, Medium::Tcp] {
        together(RANKS, medium, |mesh, world| {
            let threads: Vec<_> = groups(world)
                .into_iter()
                .map(|(number, group)| {
                    let arena = mesh.node().arena().clone();
                    std::thread::spawn(move || {
                        let player = Player::new(&group, &arena, Memory::ALL[number as usize % 3]);
                        let mut entropy = SeededEntropy::new(number);
                        for salt in 0..60 {
                            let drawn = entropy.below(OPERATIONS.len() as u64) as usize;
                            let count = [1, 64, 5000, 40_000][entropy.below(4) as usize];
                            OPERATIONS[drawn](&player, salt, count).expect("all come");
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            wait(&world.barrier()).expect("all come");
        });
    }
}

/// One operation on a group, the same on all its members, and what its tensor holds afterwards.
fn begin(group: &Communicator, number: u64, round: u64) -> (Work<()>, Tensor, f32) {
    let size = group.size() as f32;
    let count = 1 + (number * 37 + round * 1009) % 30_000;
    let own = group.rank().0 as f32 + round as f32;
    let tensor = Tensor::from_slice(&vec![own; count as usize], [count]).expect("memory");
    match (number + round) % 3 {
        0 => {
            (group.all_reduce(&tensor, &tensor, Operator::Sum), tensor, size * (size - 1.0) / 2.0 + size * round as f32)
        }
        1 => (group.broadcast(&tensor, Rank(group.size() - 1)), tensor, size - 1.0 + round as f32),
        _ => {
            let list = [tensor.clone()];
            (group.all_reduce_list(&list, &list, Operator::Max), tensor, size - 1.0 + round as f32)
        }
    }
}

#[test]
fn many_operations_of_all_groups_are_in_flight() {
    for medium in [Medium::SharedMemory, Medium::Tcp] {
        together(RANKS, medium, |_, world| {
            let groups = groups(world);
            let mut works = Vec::new();
            for round in 0..15 {
                // Each rank uses its groups in an order of its own; within a group all have the same.
                let first = (round as usize + world.rank().0 as usize) % groups.len();
                for (number, group) in groups[first..].iter().chain(&groups[..first]) {
                    works.push(begin(group, *number, round));
                }
            }
            for (work, tensor, expected) in works.iter().rev() {
                wait(work).expect("all come");
                let found = tensor.to_vec::<f32>().expect("free");
                assert!(found.iter().all(|value| value == expected), "{:?}, not {expected}", &found[..1]);
            }
            wait(&world.barrier()).expect("all come");
        });
    }
}
