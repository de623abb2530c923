//! Several threads of each rank that use one group; ranks are threads too.
//!
//! What the threads of a rank begin is one sequence, and the same one on all ranks, or else somebody is told.

use crate::common::{MEDIA, together, wait};
use sheave_base::{Error, ErrorKind, Result};
use sheave_collective::{Communicator, Operator};
use sheave_tensor::Tensor;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const THREADS: u32 = 4;
const ROUNDS: u32 = 500;
const LONG: Duration = Duration::from_secs(20);

fn floats(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, [values.len() as u64]).expect("memory")
}

/// Runs `act` as so many threads of one rank at once.
fn threads<T: Send + 'static>(
    world: &Communicator,
    act: impl Fn(u32, &Communicator) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let start = |thread: u32| {
        let (world, act) = (world.clone(), act.clone());
        std::thread::spawn(move || act(thread, &world))
    };
    let running: Vec<_> = (0..THREADS).map(start).collect();
    running.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
}

/// What a thread gives in a round, and what comes of it among so many ranks.
fn given(rank: u32, thread: u32, round: u32) -> f32 {
    (thread * ROUNDS * 16 + round * 16 + rank) as f32
}

fn sum(ranks: u32, thread: u32, round: u32) -> f32 {
    (0..ranks).map(|rank| given(rank, thread, round)).sum()
}

/// Whether the sum of this round is right.
fn reduce(world: &Communicator, thread: u32, round: u32, length: usize) -> Result<bool> {
    let tensor = floats(&vec![given(world.rank().0, thread, round); length]);
    wait(&world.all_reduce(&tensor, &tensor, Operator::Sum))?;
    let expected = sum(world.size(), thread, round);
    Ok(tensor.to_vec::<f32>()?.iter().all(|value| *value == expected))
}

#[test]
fn f68_threads_that_call_as_they_like_are_told_so_on_all_ranks() {
    for medium in MEDIA {
        for length in [1, 5_000] {
            let outcomes = together(2, medium, move |_, world| {
                threads(world, move |thread, world| {
                    let mut wrong = 0;
                    for round in 0..ROUNDS {
                        match reduce(world, thread, round, length) {
                            Ok(is_right) => wrong += u32::from(!is_right),
                            Err(error) => return (wrong, Some(error)),
                        }
                    }
                    (wrong, None)
                })
            });
            for (rank, outcomes) in outcomes.iter().enumerate() {
                let wrong: u32 = outcomes.iter().map(|(wrong, _)| wrong).sum();
                let errors: Vec<&Error> = outcomes.iter().filter_map(|(_, error)| error.as_ref()).collect();
                let seen = format!("{medium:?}, rank {rank}: {wrong} wrong sums and {} errors", errors.len());
                assert!(wrong == 0 || !errors.is_empty(), "{seen}");
                assert!(errors.is_empty() || errors.len() == THREADS as usize, "{seen}");
                for error in errors {
                    assert!(error.kind() == ErrorKind::Mismatch && error.what().contains("thread"), "{error}");
                }
            }
        }
    }
}

fn is_told(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    let words = "rank 0 called barrier on one thread while another one was in all_reduce, sequence 0";
    assert!(error.what().contains(words), "{error}");
}

#[test]
fn f68_a_call_beside_a_thread_that_blocks_is_refused_and_told_to_all() {
    for medium in MEDIA {
        let (tell, told) = channel();
        let (tell, told) = (Mutex::new(tell), Arc::new(Mutex::new(told)));
        let tell = Arc::new(tell);
        together(2, medium, move |_, world| {
            if world.rank().0 == 1 {
                // It enters when the other rank is through with both of its calls.
                told.lock().expect("no panic").recv_timeout(LONG).expect("it is told");
                let tensor = floats(&[1.0]);
                let first = wait(&world.all_reduce(&tensor, &tensor, Operator::Sum));
                // Both had entered that one, and the news may come behind the result.
                if first.is_ok() {
                    assert_eq!(tensor.to_vec::<f32>().expect("it is free"), [2.0]);
                }
                let error = first.and_then(|()| wait(&world.barrier()));
                return is_told(&error.expect_err("the group is broken"));
            }
            let (block, blocks) = channel();
            let other = world.clone();
            let blocked = std::thread::spawn(move || {
                let tensor = floats(&[1.0]);
                let work = other.all_reduce(&tensor, &tensor, Operator::Sum);
                let mut look = || {
                    // The other end goes away after the first time.
                    let _ = block.send(());
                    Ok(())
                };
                work.wait_until(None, Some(&mut look)).expect("no signal");
                work.result().expect("it has ended").expect_err("its group was broken")
            });
            blocks.recv_timeout(LONG).expect("it blocks");
            drop(blocks);
            is_told(&wait(&world.barrier()).expect_err("another thread is in a call"));
            is_told(&blocked.join().expect("no panic"));
            tell.lock().expect("no panic").send(()).expect("it waits");
        });
    }
}

/// Threads that take turns.
#[derive(Default)]
struct Turn(Mutex<u32>, Condvar);

impl Turn {
    /// Runs `act` when this number's turn has come.
    fn take<T>(&self, number: u32, act: impl FnOnce() -> T) -> T {
        let turn = self.0.lock().expect("no panic");
        let (mut turn, waited) =
            self.1.wait_timeout_while(turn, LONG, |turn| *turn != number).expect("no thread panics");
        assert!(!waited.timed_out(), "turn {number} does not come");
        let outcome = act();
        *turn += 1;
        self.1.notify_all();
        outcome
    }
}

#[test]
fn f68_threads_that_begin_in_one_order_get_their_own_sums() {
    for medium in MEDIA {
        for length in [1, 5_000, 400_000] {
            together(2, medium, move |_, world| {
                let (world, turn) = (world.ordered_by_caller(), Arc::new(Turn::default()));
                let rounds = if length > 5_000 { 10 } else { 100 };
                threads(&world, move |thread, world| {
                    for round in 0..rounds {
                        let tensor = floats(&vec![given(world.rank().0, thread, round); length]);
                        let begin = || world.all_reduce(&tensor, &tensor, Operator::Sum);
                        let work = turn.take(round * THREADS + thread, begin);
                        // Others begin theirs meanwhile.
                        wait(&work).expect("the order is the same on both");
                        let expected = sum(world.size(), thread, round);
                        let found = tensor.to_vec::<f32>().expect("it is free");
                        assert!(found.iter().all(|value| *value == expected), "{medium:?}, {length}: {round}");
                    }
                });
            });
        }
    }
}

#[test]
fn f68_threads_that_begin_other_operations_first_are_told_both_sides() {
    for medium in MEDIA {
        let errors = together(2, medium, |_, world| {
            let (world, turn) = (world.ordered_by_caller(), Arc::new(Turn::default()));
            threads(&world, move |thread, world| {
                let tensor = floats(&vec![1.0; 1 + thread as usize]);
                // The threads of one rank begin in the order of their numbers, those of the other one backwards.
                let number = if world.rank().0 == 0 { thread } else { THREADS - 1 - thread };
                let work = turn.take(number, || world.all_reduce(&tensor, &tensor, Operator::Sum));
                wait(&work).expect_err("the order is another one")
            })
        });
        for error in errors.into_iter().flatten() {
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            assert!(error.what().contains("rank 0 called") && error.what().contains("rank 1 called"), "{error}");
        }
    }
}
