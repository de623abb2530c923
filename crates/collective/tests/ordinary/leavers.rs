//! Ranks that leave as soon as their own part of an operation is done: everybody who had entered ends well.

use crate::common::oracle::Memory;
use crate::common::player::{MESSAGES, OPERATIONS, Operation, PIECES, Player};
use crate::common::{MEDIA, config_over, free_port, fresh_seeds, until, wait};
use sheave_base::Rank;
use sheave_base::clock::SeededEntropy;
use sheave_collective::{Collectives, Communicator};
use sheave_mesh::Mesh;
use sheave_net::Neighbourhood;
use sheave_net::chaos::{ChaosConfig, Trouble};
use sheave_tensor::Tensor;
use std::num::NonZeroU64;
use std::time::Duration;

/// One operation among a few ranks, after which everybody goes at once. Some ranks are slow.
fn one(seed: u64, drawn: usize) {
    one_of(&OPERATIONS, seed, drawn);
}

/// As [`one`], of some operations.
fn one_of(operations: &'static [Operation], seed: u64, drawn: usize) {
    let mut entropy = SeededEntropy::new(seed);
    let ranks = 2 + entropy.below(4) as u32;
    let medium = MEDIA[entropy.below(3) as usize];
    let count = [1, 300, 30_000, 200_000][entropy.below(4) as usize];
    let slow = entropy.below(u64::from(ranks)) as u32;
    let rate = [None, NonZeroU64::new(8 << 20), NonZeroU64::new(2 << 20)][entropy.below(3) as usize];
    let is_smooth = entropy.below(2) == 0;
    let (port, neighbourhood) = (free_port(), Neighbourhood::default());
    let start = |rank: u32| {
        let mut config = config_over(rank, ranks, port, medium, &neighbourhood);
        let throttle_bytes_per_s = rate.filter(|_| rank == slow);
        let trouble = Trouble { delay_max: Duration::from_micros(500), throttle_bytes_per_s, ..Trouble::default() };
        let chaos = ChaosConfig { seed, outbound: trouble, inbound: trouble, ..ChaosConfig::default() };
        config.node.chaos = (!is_smooth).then_some(chaos);
        let body = move || {
            let mesh = Mesh::join(config).expect("everybody comes");
            let world = Collectives::new(&mesh).expect("the first").group(&mesh.world()).expect("few");
            let player = Player::new(&world, mesh.node().arena(), Memory::Mixed);
            let outcome = operations[drawn](&player, seed, count);
            drop((player, world));
            // Nobody may be left to agree; that is not what this is about.
            drop(mesh.leave());
            outcome
        };
        std::thread::spawn(body)
    };
    let threads: Vec<_> = (0..ranks).map(start).collect();
    // Of all, so that a failure shows what became of the others.
    let outcomes: Vec<_> = threads.into_iter().map(std::thread::JoinHandle::join).collect();
    assert!(
        outcomes.iter().all(|outcome| matches!(outcome, Ok(Ok(())))),
        "seed {seed}, operation {drawn} of {count} among {ranks} over {medium:?} at {rate:?}: {outcomes:?}"
    );
}

fn all(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        (0..MESSAGES).for_each(|drawn| one(seed * 100 + drawn as u64, drawn));
    }
}

#[test]
fn whoever_leaves_at_once_fails_nobody() {
    all(0..4);
}

#[test]
fn whoever_leaves_after_an_exchange_of_lists_fails_nobody() {
    (0..25).for_each(|seed| one_of(&PIECES, seed, seed as usize % PIECES.len()));
}

/// A message takes longer than any patience with a group that a member has left: its bytes arrive, and that counts.
#[test]
fn f01_a_slow_message_outlasts_the_leave_of_others() {
    one(2507, 7);
}

/// Any number is a seed here; the operation is a part of it.
fn any(seed: u64) {
    one(seed, (seed % 100) as usize % MESSAGES);
}

#[test]
fn fresh_seeds_of_leavers() {
    fresh_seeds(Duration::from_secs(3), 1, any);
}

#[test]
#[ignore = "chaos suite: takes minutes"]
fn many_fresh_seeds_of_leavers() {
    fresh_seeds(Duration::from_secs(180), 2, any);
}

#[test]
#[ignore = "chaos suite: takes a minute"]
fn whoever_leaves_at_once_fails_nobody_ever() {
    all(10..30);
}

/// Runs `act` as each of so many ranks, and waits for all.
fn ranks_over(medium: sheave_net::Medium, ranks: u32, act: impl Fn(&Mesh, &Communicator) + Clone + Send + 'static) {
    let (port, neighbourhood) = (free_port(), Neighbourhood::default());
    let start = |rank: u32| {
        let (config, act) = (config_over(rank, ranks, port, medium, &neighbourhood), act.clone());
        std::thread::spawn(move || {
            let mesh = Mesh::join(config).expect("everybody comes");
            let world = Collectives::new(&mesh).expect("the first").group(&mesh.world()).expect("few");
            act(&mesh, &world);
            mesh.leave().expect("the others agree");
        })
    };
    let threads: Vec<_> = (0..ranks).map(start).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

fn number(value: f32) -> Tensor {
    Tensor::from_slice(&[value], [1]).expect("memory")
}

/// What was sent before a leave is received after it, however late; what was not sent is an error at once.
#[test]
fn f67_f82_a_message_is_received_after_its_sender_has_left() {
    for medium in MEDIA {
        ranks_over(medium, 3, |mesh, world| match world.rank().0 {
            0 => world.send(&number(7.0), Rank(1), 3).wait().expect("it is on its way"),
            1 => {
                until("rank 0 has left", || mesh.deaths().iter().any(|gone| gone.left));
                let place = number(0.0);
                wait(&world.recv(&place, Some(Rank(0)), 3)).expect("it was sent");
                assert_eq!(place.to_vec::<f32>().expect("one"), [7.0]);
                let error = wait(&world.recv(&place, Some(Rank(0)), 3)).expect_err("nothing more was sent");
                assert!(error.to_string().contains("rank-0 left the mesh"), "{error}");
                wait(&world.send(&number(1.0), Rank(2), 0)).expect("rank 2 is there");
            }
            _ => wait(&world.recv(&number(0.0), Some(Rank(1)), 0)).map(drop).expect("rank 1 tells when it is done"),
        });
    }
}

/// Messages need their two ends only: short and long ones, named senders and any.
#[test]
fn f82_two_members_exchange_messages_after_a_third_has_left() {
    for medium in MEDIA {
        ranks_over(medium, 3, |mesh, world| {
            if world.rank() == Rank(2) {
                return;
            }
            until("rank 2 has left", || mesh.deaths().iter().any(|gone| gone.left));
            for count in [1, 100_000] {
                let tensor = Tensor::from_slice(&vec![f32::from(count != 1); count], [count as u64]).expect("memory");
                let place = Tensor::from_slice(&vec![9.0f32; count], [count as u64]).expect("memory");
                if world.rank() == Rank(0) {
                    wait(&world.send(&tensor, Rank(1), 0)).expect("rank 1 is there");
                    wait(&world.recv(&place, None, 1)).expect("rank 1 answers");
                } else {
                    wait(&world.recv(&place, Some(Rank(0)), 0)).expect("rank 0 sends");
                    wait(&world.send(&tensor, Rank(0), 1)).expect("rank 0 is there");
                }
                assert_eq!(place.to_vec::<f32>().expect("floats"), tensor.to_vec::<f32>().expect("floats"));
            }
            let error = wait(&world.barrier()).expect_err("rank 2 enters no more");
            assert!(error.to_string().contains("rank-2 left the mesh"), "{error}");
        });
    }
}
