//! Links that delay and cut, by seeds: whoever ends well has the whole correct result, everybody else an error in time,
//! and nothing more is possible on the group afterwards.

mod common;

use common::{together_with, wait};
use sheave_base::config::Transport;
use sheave_base::{Rank, Result};
use sheave_collective::{Communicator, Operator, Table};
use sheave_net::chaos::{ChaosConfig, Trouble};
use sheave_tensor::Tensor;
use std::time::Duration;

const RANKS: u32 = 3;

fn trouble() -> Trouble {
    Trouble { delay_max: Duration::from_micros(300), ..Trouble::default() }
}

/// Some operations in turn, each checked; the first error ends them.
fn go(world: &Communicator, count: usize) -> Result<()> {
    let own = world.rank().0 as f32;
    for round in 0..12_u16 {
        let input = Tensor::from_slice(&vec![own + f32::from(round); count], [count as u64])?;
        let output = Tensor::from_slice(&vec![-1.0_f32; count], [count as u64])?;
        let reduced = wait(&world.all_reduce(&input, &output, Operator::Sum));
        assert!(input.to_vec::<f32>()?.iter().all(|value| *value == own + f32::from(round)), "the input was touched");
        reduced?;
        let expected = 3.0 + 3.0 * f32::from(round);
        assert!(output.to_vec::<f32>()?.iter().all(|value| *value == expected), "a wrong sum");
        let root = u32::from(round) % RANKS;
        wait(&world.broadcast(&input, Rank(root)))?;
        let expected = root as f32 + f32::from(round);
        assert!(input.to_vec::<f32>()?.iter().all(|value| *value == expected), "a wrong tensor");
        wait(&world.barrier())?;
    }
    Ok(())
}

fn chaos(seed: u64, cut: Option<u64>) -> Vec<Result<()>> {
    let transport = if seed.is_multiple_of(2) { Transport::Shm } else { Transport::Tcp };
    let count = [1, 3000, 80_000][seed as usize % 3];
    together_with(
        RANKS,
        transport,
        move |rank, config| {
            let cut_after_messages = cut.filter(|_| u64::from(rank) == seed % u64::from(RANKS));
            config.node.chaos = Some(ChaosConfig {
                seed: seed * 31 + u64::from(rank),
                outbound: trouble(),
                inbound: trouble(),
                short_polls: seed.is_multiple_of(5),
                cut_after_messages,
                partition_after_messages: None,
            });
        },
        |_| Table::default(),
        move |_, world| {
            let outcome = go(world, count);
            if outcome.is_err() {
                assert!(wait(&world.barrier()).is_err(), "the group is broken");
            }
            outcome
        },
    )
}

#[test]
fn delays_change_no_result() {
    for seed in 0..12 {
        for outcome in chaos(seed, None) {
            outcome.expect("nothing is lost");
        }
    }
}

#[test]
fn cuts_end_operations_on_all_ranks_and_never_with_half_a_result() {
    let mut failures = 0;
    for seed in 0..24 {
        let begun = std::time::Instant::now();
        let outcomes = chaos(seed, Some(40 + seed * 13 % 150));
        failures += outcomes.iter().filter(|outcome| outcome.is_err()).count();
        // Nobody is left waiting for whoever is cut off.
        assert!(begun.elapsed() < Duration::from_secs(20), "seed {seed}");
    }
    assert!(failures > 24, "{failures} failures: the cuts must come in the middle");
}
