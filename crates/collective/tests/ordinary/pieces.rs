//! Lists of one tensor for each rank, over all media: that results land in the listed tensors, wherever these lie; that
//! members may give lists or whole tensors; and what wrong lists are told.

use crate::common::oracle::{Memory, encode, numbers, reduced, unsigned_zeros};
use crate::common::player::{PIECES, Player};
use crate::common::{MEDIA, together, wait};
use sheave_base::{ErrorKind, Rank, Work};
use sheave_collective::{Communicator, Operator};
use sheave_net::Medium;
use sheave_tensor::{Arena, Dtype, Tensor};

/// Of nothing, of a few bytes, and of more than a slot holds.
const COUNTS: [usize; 4] = [0, 1, 300, 20_000];

/// Of which a list is more than a call works on.
const LONG: usize = 400_000;

const DTYPES: [Dtype; 4] = [Dtype::U8, Dtype::Bf16, Dtype::I64, Dtype::Complex64];

fn floats(count: usize) -> Tensor {
    Tensor::from_slice(&vec![1.0_f32; count], [count as u64]).expect("memory")
}

fn play(player: &Player, count: usize, salt: u64) {
    for operation in PIECES {
        (0..2).for_each(|turn| operation(player, 2 * salt + turn, count).expect("all come"));
    }
}

#[test]
fn lists_of_any_length_land_in_their_tensors() {
    for (ranks, medium) in [1, 2, 3, 5].into_iter().flat_map(|ranks| MEDIA.map(|medium| (ranks, medium))) {
        together(ranks, medium, |mesh, world| {
            for memory in Memory::ALL {
                let player = Player::new(world, mesh.node().arena(), memory);
                COUNTS.into_iter().zip(0..).for_each(|(count, salt)| play(&player, count, salt));
            }
        });
    }
}

#[test]
fn long_lists_land_in_their_tensors() {
    for medium in MEDIA {
        together(3, medium, |mesh, world| {
            play(&Player::new(world, mesh.node().arena(), Memory::Mixed), LONG, 7);
        });
    }
}

fn every_dtype(world: &Communicator, arena: &Arena, dtype: Dtype) {
    let (rank, size) = (world.rank().0, world.size());
    let filled = |numbers: &[f64]| Memory::Private.filled(arena, rank, dtype, numbers);
    let given = |rank: u32, to: u32| numbers(dtype, rank, 9, u64::from(to));
    let is = |tensor: &Tensor, expected: &[f64]| {
        let found = tensor.bytes().expect("nobody writes it").to_vec();
        assert_eq!(unsigned_zeros(dtype, found), unsigned_zeros(dtype, encode(dtype, expected)), "{dtype}");
    };
    let inputs: Vec<_> = (0..size).map(|to| filled(&given(rank, to))).collect();
    let sum = filled(&given(rank, 0));
    wait(&world.reduce_scatter_pieces(&inputs, &sum, Operator::Sum)).expect("all come");
    is(&sum, &reduced(dtype, Operator::Sum, &(0..size).map(|from| given(from, rank)).collect::<Vec<_>>()));
    // In place.
    wait(&world.all_to_all_pieces(&inputs, &inputs)).expect("all come");
    (0..size).for_each(|from| is(&inputs[from as usize], &given(from, rank)));
    inputs[rank as usize].overwrite(&encode(dtype, &given(rank, 7)), "test").expect("nobody uses it");
    wait(&world.all_gather_pieces(&inputs[rank as usize], &inputs)).expect("all come");
    (0..size).for_each(|from| is(&inputs[from as usize], &given(from, 7)));
    wait(&world.reduce_scatter_pieces(&inputs, &inputs[rank as usize], Operator::Sum)).expect("all come");
    is(&inputs[rank as usize], &reduced(dtype, Operator::Sum, &vec![given(rank, 7); size as usize]));
}

#[test]
fn lists_of_any_dtype_may_be_input_and_output() {
    for medium in MEDIA {
        together(3, medium, |mesh, world| {
            DTYPES.into_iter().for_each(|dtype| every_dtype(world, mesh.node().arena(), dtype));
        });
    }
}

#[test]
fn tensors_that_follow_each_other_in_one_buffer_are_used_where_they_lie() {
    together(3, Medium::SharedMemory, |mesh, world| {
        let (rank, count) = (u64::from(world.rank().0), 50_000_u64);
        let flat = Tensor::empty(mesh.node().arena(), Dtype::F32, [3 * count]).expect("memory");
        let rows: Vec<_> = (0..3).map(|at| flat.slice_rows(at * count..(at + 1) * count).expect("rows")).collect();
        let fill = |value: u64| {
            let values = vec![value as f32; count as usize];
            rows[rank as usize].overwrite(&bytes_of(&values), "test").expect("nobody uses it");
        };
        let all = |expected: [u64; 3]| {
            let found = flat.to_vec::<f32>().expect("free");
            let found: Vec<_> = found.chunks(count as usize).map(|row| (row[0], row[row.len() - 1])).collect();
            assert_eq!(found, expected.map(|value| (value as f32, value as f32)));
        };
        fill(rank + 1);
        wait(&world.all_gather_pieces(&rows[rank as usize], &rows)).expect("all come");
        all([1, 2, 3]);
        wait(&world.all_to_all_pieces(&rows, &rows)).expect("all come");
        all([rank + 1; 3]);
        wait(&world.reduce_scatter_pieces(&rows, &rows[rank as usize], Operator::Sum)).expect("all come");
        assert_eq!(rows[rank as usize].to_vec::<f32>().expect("free")[0], 6.0);
        let reversed: Vec<_> = rows.iter().rev().cloned().collect();
        let own = floats(count as usize);
        wait(&world.all_gather_pieces(&own, &reversed)).expect("all come");
        all([1; 3]);
    });
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

#[test]
fn members_may_give_lists_or_whole_tensors() {
    for medium in MEDIA {
        together(3, medium, |_, world| {
            let rank = world.rank().0 as usize;
            let (whole, list) = (floats(30), [floats(10), floats(10), floats(10)]);
            let own = Tensor::from_slice(&[rank as f32; 10], [10]).expect("memory");
            let inputs = [floats(10), floats(10), floats(10)];
            let gathered = match rank {
                0 => world.all_gather(&own, &whole),
                _ => world.all_gather_pieces(&own, &list),
            };
            wait(&gathered).expect("all come");
            let scattered = match rank {
                0 => world.reduce_scatter(&floats(30), &own, Operator::Sum),
                _ => world.reduce_scatter_pieces(&inputs, &own, Operator::Sum),
            };
            wait(&scattered).expect("all come");
            assert_eq!(own.to_vec::<f32>().expect("free"), [3.0; 10]);
            if rank > 0 {
                assert_eq!(list[2].to_vec::<f32>().expect("free"), [2.0; 10]);
            }
        });
    }
}

/// This rank is refused with these words, and nobody has entered.
fn is_refused(work: &Work<()>, words: &str) {
    let error = wait(work).expect_err("it is wrong");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains(words), "{words:?} is missing in: {error}");
}

#[test]
fn wrong_lists_are_refused_by_index_and_nobody_has_entered() {
    together(2, Medium::SharedMemory, |_, world| {
        let (rank, other) = (world.rank(), Rank(1 - world.rank().0));
        let whole = Tensor::from_slice(&[1_i32], [1]).expect("memory");
        let [one, two] = [floats(1), floats(2)];
        let pair = [floats(1), floats(1)];
        let mixed = [floats(1), whole.clone()];
        let uneven = [floats(1), floats(2)];
        let twice = [one.clone(), one.clone()];
        let own = |list: &[Tensor; 2]| list[rank.0 as usize].elements();
        for (work, words) in [
            (world.all_gather_pieces(&one, &pair[..1]), "a list of 1 outputs was given to a group of 2 ranks"),
            (world.all_gather_pieces(&floats(1), &mixed), "output 1 is i32; expected f32"),
            (
                world.all_gather_pieces(&floats(3), &uneven),
                if own(&uneven) == 1 { "output 0 has 1" } else { "output 1 has 2" },
            ),
            (world.all_gather_pieces(&floats(1), &twice), "tensors 0 and 1 overlap"),
            (world.gather_pieces(&one, Some(&uneven), rank), "output 1 has 2 elements; expected 1"),
            (world.gather_pieces(&one, Some(&pair), other), "only the root gives outputs"),
            (world.gather_pieces(&one, None, rank), "the root gives a list of outputs"),
            (world.gather_pieces(&one, Some(&pair), Rank(2)), "root 2 is outside"),
            (world.gather_pieces(&pair[0], Some(&pair), rank), "overlaps input"),
            (world.scatter_pieces(Some(&pair), &two, rank), "input 0 has 1 elements; expected 2"),
            (world.scatter_pieces(Some(&mixed), &one, rank), "input 1 is i32; expected f32"),
            (world.scatter_pieces(None, &one, rank), "the root gives a list of inputs"),
            (world.scatter_pieces(Some(&pair), &one, other), "only the root gives inputs"),
            (world.reduce_scatter_pieces(&uneven, &one, Operator::Sum), "input 1 has 2 elements; expected 1"),
            (world.reduce_scatter_pieces(&pair, &pair[other.0 as usize], Operator::Sum), "overlaps input"),
            (world.all_to_all_pieces(&pair, &pair[..1]), "a list of 1 outputs"),
            (world.all_to_all_pieces(&mixed, &pair), "input 1 is i32; expected f32"),
            (world.all_to_all_pieces(&pair, &[floats(5), floats(5)]), "has 5 elements; expected 1"),
        ] {
            is_refused(&work, words);
        }
        let error = wait(&world.reduce_scatter_pieces(&pair, &one, Operator::Band)).expect_err("it means nothing");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        wait(&world.all_to_all_pieces(&pair, &[floats(1), floats(1)])).expect("nobody has entered");
    });
}

#[test]
fn ranks_that_disagree_are_told_both_sides() {
    type Act = fn(&Communicator) -> Work<()>;
    let acts: [(Act, [&str; 2]); 3] = [
        (
            |world| {
                let lengths = if world.rank().0 == 1 { [2, 3, 2] } else { [2, 2, 2] };
                let own = floats(lengths[world.rank().0 as usize]);
                world.all_gather_pieces(&own, &lengths.map(floats))
            },
            ["rank 1 called all_gather_v f32", "all_gather f32[2]"],
        ),
        (
            |world| {
                let count = if world.rank().0 == 2 { 3 } else { 2 };
                world.reduce_scatter_pieces(&[count; 3].map(floats), &floats(count), Operator::Sum)
            },
            ["rank 2 called reduce_scatter sum f32[3]", "reduce_scatter sum f32[2]"],
        ),
        (
            |world| {
                let sent = if world.rank().0 == 0 { [1, 2, 1] } else { [1, 1, 1] };
                world.all_to_all_pieces(&sent.map(floats), &[1, 1, 1].map(floats))
            },
            ["", ""],
        ),
    ];
    for (medium, (act, words)) in MEDIA.into_iter().flat_map(|medium| acts.map(|act| (medium, act))) {
        for error in together(3, medium, move |_, world| {
            let error = wait(&act(world)).expect_err("they disagree");
            wait(&world.barrier()).expect_err("the group is broken");
            error
        }) {
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            assert!(words.iter().all(|word| error.what().contains(word)), "{words:?} are missing in: {error}");
        }
    }
}
