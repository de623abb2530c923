//! Operations that take long: the call that begins one does not do its work, nobody needs to wait for it, and whoever
//! waits does it at once.

use crate::common::oracle::Memory;
use crate::common::player::{OPERATIONS, Player};
use crate::common::{MEDIA, note, together, until, wait};
use sheave_collective::{Communicator, Operator};
use sheave_mesh::Mesh;
use sheave_net::Medium;
use sheave_tensor::{Dtype, Shape, Tensor};
use std::time::Duration;

const HERE: [Medium; 2] = [Medium::InProcess, Medium::SharedMemory];

/// Elements of 32 MiB.
const COUNT: usize = 8 << 20;

/// What a call may cost that does not do such an operation's work, which takes 4 ms and more.
const CALL: Duration = Duration::from_millis(1);

/// For how long this thread has had a core.
fn core_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is this function's own.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn filled(mesh: &Mesh, count: usize, value: f32) -> Tensor {
    let shape = Shape::new(&[count as u64]).expect("one dimension");
    let mut tensor = Tensor::empty(mesh.node().arena(), Dtype::F32, shape).expect("there is room");
    tensor.as_mut_slice::<f32>().expect("nobody else has it").fill(value);
    tensor
}

fn holds(tensor: &Tensor, value: f32) -> bool {
    tensor.to_vec::<f32>().expect("it is free").iter().all(|found| *found == value)
}

/// What a rank gives in a round, and what comes of it with two ranks.
fn given(world: &Communicator, round: u8) -> f32 {
    f32::from(round) + world.rank().0 as f32
}

#[test]
fn f56_a_call_leaves_long_work_to_others() {
    for medium in MEDIA {
        let costs = together(2, medium, |mesh, world| {
            let (input, output) = (filled(mesh, COUNT, 1.0), filled(mesh, COUNT, 0.0));
            let cost = |_| {
                wait(&world.barrier()).expect("both come");
                let begun = core_time();
                let work = world.all_reduce(&input, &output, Operator::Sum);
                let cost = core_time() - begun;
                wait(&work).expect("both come");
                assert!(holds(&output, 2.0));
                cost
            };
            // The other one is ready in most rounds.
            (0..6).map(cost).collect::<Vec<_>>()
        });
        for costs in costs {
            note(&format!("{medium:?}: {costs:?}"));
            assert!(costs[1..].iter().all(|cost| *cost < CALL), "{medium:?}: {costs:?}");
        }
    }
}

#[test]
fn f56_a_call_does_none_of_the_long_work_that_is_under_way() {
    for medium in HERE {
        together(2, medium, move |mesh, world| {
            let tensors: Vec<_> = (0..3).map(|round| filled(mesh, COUNT / 4, given(world, round))).collect();
            let small = filled(mesh, 1, 1.0);
            wait(&world.barrier()).expect("both come");
            let begun = core_time();
            let works: Vec<_> = tensors.iter().map(|tensor| world.all_reduce(tensor, tensor, Operator::Sum)).collect();
            let message = world.send(&small, sheave_base::Rank(1 - world.rank().0), 3);
            let last = world.all_reduce(&small, &small, Operator::Max);
            let cost = core_time() - begun;
            let place = filled(mesh, 1, 0.0);
            wait(&world.recv(&place, None, 3)).expect("it comes");
            wait(&message).expect("it was taken");
            wait(&last).expect("both come");
            for (round, (work, tensor)) in (0_u8..).zip(works.iter().zip(&tensors)) {
                wait(work).expect("both come");
                assert!(holds(tensor, 2.0 * f32::from(round) + 1.0));
            }
            assert!(cost < CALL, "{medium:?}: {cost:?}");
        });
    }
}

#[test]
fn f56_long_work_is_done_though_nobody_waits() {
    for medium in MEDIA {
        together(2, medium, |mesh, world| {
            for round in 0..4 {
                let tensors: Vec<_> = (0..3).map(|_| filled(mesh, COUNT / 8, given(world, round))).collect();
                let works: Vec<_> =
                    tensors.iter().map(|tensor| world.all_reduce(tensor, tensor, Operator::Sum)).collect();
                until("the work is done", || works.iter().all(sheave_base::Work::is_done));
                for (work, tensor) in works.iter().zip(&tensors) {
                    wait(work).expect("both come");
                    assert!(holds(tensor, 2.0 * f32::from(round) + 1.0));
                }
            }
        });
    }
}

/// Neither does a call pack a long list, nor does anybody need to wait for that.
#[test]
fn f56_a_call_leaves_the_packing_of_a_long_list_to_others() {
    for medium in MEDIA {
        let costs = together(2, medium, |mesh, world| {
            let rank = world.rank().0 as f32;
            // Apart in memory, by another one in between.
            let [inputs, _between, outputs] =
                [0.0, 1.0, 2.0].map(|add| [0.0, 1.0].map(|to| filled(mesh, COUNT / 4, 10.0 * add + 2.0 * rank + to)));
            let inputs = [inputs[1].clone(), inputs[0].clone()];
            let cost = |round: u32| {
                wait(&world.barrier()).expect("both come");
                let begun = core_time();
                let work = world.all_to_all_pieces(&inputs, &outputs);
                let cost = core_time() - begun;
                match round % 2 {
                    0 => wait(&work).expect("both come"),
                    _ => until("the work is done", || work.is_done()),
                }
                // Rank 0 has 1 for rank 0 and 0 for rank 1, and rank 1 has 3 and 2.
                assert!(holds(&outputs[0], 1.0 - rank) && holds(&outputs[1], 3.0 - rank));
                cost
            };
            (0..6).map(cost).collect::<Vec<_>>()
        });
        for costs in costs {
            note(&format!("{medium:?}: {costs:?}"));
            assert!(costs[1..].iter().all(|cost| *cost < CALL), "{medium:?}: {costs:?}");
        }
    }
}

#[test]
fn f56_every_operation_may_be_long() {
    for (ranks, memory) in [(2, Memory::Arena), (3, Memory::Private), (3, Memory::Arena)] {
        for medium in MEDIA {
            together(ranks, medium, move |mesh, world| {
                let player = Player::new(world, mesh.node().arena(), memory);
                for (salt, operation) in (1..).zip(OPERATIONS) {
                    operation(&player, salt, 700_001).expect("all come");
                }
            });
        }
    }
}
