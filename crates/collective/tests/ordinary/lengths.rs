//! Operations whose pieces differ in length, with lengths drawn at random: zeros, single elements, and more than a
//! segment, among any number of ranks.

use crate::common::oracle::{Memory, encode, numbers, width};
use crate::common::{together, wait};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseResult};
use sheave_collective::Communicator;
use sheave_net::Medium;
use sheave_tensor::{Arena, Dtype, Tensor};

const RANKS_MAX: usize = 6;

#[derive(Clone, Debug)]
struct Case {
    medium: Medium,
    dtype: Dtype,
    memory: Memory,
    /// What each rank has for each, of which all_gather_v takes the first column.
    lengths: Vec<Vec<usize>>,
}

fn length() -> impl Strategy<Value = usize> {
    // A segment has 256 KiB, and all pieces of one rank go into its arena.
    prop_oneof![4 => Just(0), 2 => Just(1), 6 => 0..300_usize, 2 => 4000..40_000_usize, 1 => 100_000..140_000_usize]
}

fn case() -> impl Strategy<Value = Case> {
    (1..=RANKS_MAX).prop_flat_map(|ranks| {
        let lengths = prop::collection::vec(prop::collection::vec(length(), ranks), ranks);
        let medium = prop_oneof![Just(Medium::InProcess), Just(Medium::SharedMemory), Just(Medium::Tcp)];
        let dtype = prop_oneof![Just(Dtype::U8), Just(Dtype::I16), Just(Dtype::F32), Just(Dtype::Complex64)];
        let memory = prop_oneof![Just(Memory::Arena), Just(Memory::Private), Just(Memory::Mixed)];
        (medium, dtype, memory, lengths).prop_map(|(medium, dtype, memory, lengths)| Case {
            medium,
            dtype,
            memory,
            lengths,
        })
    })
}

/// What rank `from` has for rank `to`.
fn piece(case: &Case, from: usize, to: usize) -> Vec<f64> {
    numbers(case.dtype, from as u32, case.lengths[from][to], to as u64)
}

fn is(case: &Case, tensor: &Tensor, expected: &[f64]) -> bool {
    tensor.elements() == expected.len() / width(case.dtype)
        && *tensor.bytes().expect("nobody writes it") == encode(case.dtype, expected)[..]
}

fn gathers(case: &Case, world: &Communicator, arena: &Arena) -> bool {
    let rank = world.rank().0 as usize;
    let lengths: Vec<usize> = case.lengths.iter().map(|lengths| lengths[0]).collect();
    let own = piece(case, rank, 0);
    let input = case.memory.filled(arena, rank as u32, case.dtype, &own);
    let output = case.memory.tensor(arena, rank as u32, case.dtype, lengths.iter().sum());
    wait(&world.all_gather_v(&input, &output, &lengths)).expect("all come");
    let all: Vec<f64> = (0..lengths.len()).flat_map(|from| piece(case, from, 0)).collect();
    is(case, &output, &all) && is(case, &input, &own)
}

fn exchanges(case: &Case, world: &Communicator, arena: &Arena) -> bool {
    let (rank, size) = (world.rank().0 as usize, world.size() as usize);
    let sent = &case.lengths[rank];
    let received: Vec<usize> = (0..size).map(|from| case.lengths[from][rank]).collect();
    let own: Vec<f64> = (0..size).flat_map(|to| piece(case, rank, to)).collect();
    let input = case.memory.filled(arena, rank as u32, case.dtype, &own);
    let output = case.memory.tensor(arena, rank as u32 + 1, case.dtype, received.iter().sum());
    wait(&world.all_to_all_v(&input, sent, &output, &received)).expect("all come");
    let all: Vec<f64> = (0..size).flat_map(|from| piece(case, from, rank)).collect();
    is(case, &output, &all) && is(case, &input, &own)
}

/// Both operations, twice, so that the second ones meet links that stand and memory that was used.
fn run(case: Case) -> TestCaseResult {
    let outcomes = together(case.lengths.len() as u32, case.medium, move |mesh, world| {
        let arena = mesh.node().arena();
        (0..2).all(|_| gathers(&case, world, arena) && exchanges(&case, world, arena))
    });
    prop_assert!(outcomes.iter().all(|is_right| *is_right), "{outcomes:?}");
    Ok(())
}

fn config(cases: u32) -> Config {
    let failure_persistence = Some(Box::new(FileFailurePersistence::Off) as _);
    Config { cases, max_shrink_iters: 40, failure_persistence, ..Config::default() }
}

proptest! {
    #![proptest_config(config(48))]

    #[test]
    fn pieces_of_any_length_arrive_where_they_belong(case in case()) {
        run(case)?;
    }
}

proptest! {
    #![proptest_config(config(600))]

    #[test]
    #[ignore = "soak suite: takes a minute"]
    fn pieces_of_any_length_arrive_where_they_belong_very_often(case in case()) {
        run(case)?;
    }
}
