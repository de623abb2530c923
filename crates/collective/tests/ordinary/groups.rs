//! Several groups at once: overlapping, split and reversed, from threads of their own and with many operations in
//! flight, whatever the order in which a rank uses them.

use crate::common::oracle::Memory;
use crate::common::player::{OPERATIONS, Player};
use crate::common::{PATIENCE, together, wait};
use sheave_base::clock::SeededEntropy;
use sheave_base::{Error, ErrorKind, Rank, Work};
use sheave_collective::{Communicator, Operator};
use sheave_net::Medium;
use sheave_tensor::Tensor;
use std::time::Duration;

const RANKS: u32 = 5;

fn failed<T: Clone>(work: &Work<T>) -> Error {
    work.wait_timeout(PATIENCE).err().expect("it cannot succeed")
}

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

#[test]
fn groups_are_begun_without_waiting() {
    for medium in [Medium::SharedMemory, Medium::Tcp] {
        let late = together(RANKS, medium, |mesh, world| {
            let rank = world.rank().0;
            let whole = failed(&world.begin_shrink());
            assert_eq!(whole.kind(), ErrorKind::InvalidArgument, "{whole}");
            let halves = world.begin_split(Some(rank % 2), 0).expect("there is memory");
            let turned = world.begin_split(Some(0), -i64::from(rank)).expect("there is memory");
            let some = world.begin_split((rank > 0).then_some(7), 0).expect("there is memory");
            // They are awaited by a task as well as by a thread.
            let made = mesh.spawn("groups", async move { Ok((halves.await?, turned.await?)) }).expect("there is room");
            let (half, turned) = made.wait_timeout(PATIENCE).expect("all come");
            let (half, turned) = (half.expect("it has a colour"), turned.expect("it has a colour"));
            assert_eq!((half.size(), half.rank().0), (3 - rank % 2, rank / 2));
            assert_eq!(turned.rank().0, RANKS - 1 - rank);
            let some = some.wait_timeout(PATIENCE).expect("all come");
            assert_eq!(some.map(|some| some.size()), (rank > 0).then_some(RANKS - 1));
            wait(&half.barrier()).expect("all come");
            wait(&turned.barrier()).expect("all come");
            // One does not come. The first whose time is up ends it for all, and all are told who is missing.
            let late = turned.within(Duration::from_millis(200));
            let late = (rank > 0).then(|| failed(&late.begin_split(None, 0).expect("there is memory")));
            wait(&world.barrier()).expect("all come");
            late
        });
        let late: Vec<Error> = late.into_iter().flatten().collect();
        assert!(late.iter().any(|error| error.kind() == ErrorKind::DeadlineExceeded), "{late:?}");
        for error in &late {
            assert!(matches!(error.kind(), ErrorKind::DeadlineExceeded | ErrorKind::Cancelled), "{error}");
            assert!(error.to_string().contains("rank-0"), "{error}");
        }
    }
}

#[test]
fn a_group_that_is_begun_is_cancelled() {
    together(2, Medium::SharedMemory, |_, world| {
        if world.rank().0 == 0 {
            let split = world.begin_split(Some(1), 0).expect("there is memory");
            split.cancel();
            assert_eq!(failed(&split).kind(), ErrorKind::Cancelled);
        }
        let error = failed(&world.begin_split(Some(1), 0).expect("there is memory"));
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    });
}

/// All ranks come to the first operation of a group at once, and two of them that both connected would have two links.
#[test]
fn ranks_of_one_host_make_one_link_for_each_pair() {
    for _ in 0..5 {
        let links = together(RANKS, Medium::SharedMemory, |mesh, world| {
            mesh.world().barrier().expect("all live");
            wait(&world.barrier()).expect("all come");
            mesh.node().links().len()
        });
        assert_eq!(links, [RANKS as usize - 1; RANKS as usize]);
    }
}
