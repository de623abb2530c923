//! Ranks that leave as soon as their own part of an operation is done: everybody who had entered ends well.

mod common;

use common::oracle::Memory;
use common::player::{MESSAGES, OPERATIONS, Player};
use common::{MEDIA, config_over, free_port, fresh_seeds};
use sheave_base::clock::SeededEntropy;
use sheave_collective::Collectives;
use sheave_mesh::Mesh;
use sheave_net::Neighbourhood;
use sheave_net::chaos::{ChaosConfig, Trouble};
use std::num::NonZeroU64;
use std::time::Duration;

/// One operation among `ranks`, after which everybody goes at once. Some ranks are slow.
fn one(seed: u64, drawn: usize) {
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
            let outcome = OPERATIONS[drawn](&player, seed, count);
            drop((player, world));
            // Nobody may be left to agree; that is not what this is about.
            drop(mesh.leave());
            outcome
        };
        std::thread::spawn(body)
    };
    let threads: Vec<_> = (0..ranks).map(start).collect();
    let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
    assert!(
        outcomes.iter().all(Result::is_ok),
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
