//! What holds whatever goes wrong, and what several operations at once may do; ranks are threads.

use crate::common::{MEDIA, together, together_with, wait};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, Rank, Work};
use sheave_collective::{Communicator, Operator, Table};
use sheave_mesh::{Config, Mesh};
use sheave_net::Medium;
use sheave_tensor::{Dtype, Tensor};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

fn floats(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, [values.len() as u64]).expect("memory")
}

fn failed(work: &Work<()>) -> Error {
    wait(work).expect_err("it cannot succeed")
}

/// Everybody fails with both sides' words, and so does the next operation.
fn disagree(ranks: u32, words: &[&str], act: impl Fn(&Communicator) -> Work<()> + Clone + Send + 'static) {
    for medium in MEDIA {
        let act = act.clone();
        let errors = together(ranks, medium, move |_, world| {
            for _ in 0..3 {
                wait(&world.barrier()).expect("they agree");
            }
            let error = failed(&act(world));
            let next = failed(&world.barrier());
            assert_eq!(next.kind(), ErrorKind::Mismatch, "{next}");
            error
        });
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            for word in words {
                assert!(error.what().contains(word), "{word:?} is missing in: {error}");
            }
            assert!(error.what().contains("sequence 3"), "{error}");
        }
    }
}

#[test]
fn another_operation_is_told_to_all() {
    let words = ["rank 1 called all_reduce sum f32[4]", "called broadcast f32[4] with root 0"];
    for ranks in [2, 3, 5] {
        disagree(ranks, &words, |world| match world.rank().0 {
            1 => world.all_reduce(&floats(&[1.0; 4]), &floats(&[0.0; 4]), Operator::Sum),
            _ => world.broadcast(&floats(&[1.0; 4]), Rank(0)),
        });
    }
}

#[test]
fn another_length_dtype_or_operator_is_told_to_all() {
    disagree(3, &["all_reduce sum f32[5]", "all_reduce sum f32[4]"], |world| {
        let tensor = floats(&vec![1.0; if world.rank().0 == 2 { 5 } else { 4 }]);
        world.all_reduce(&tensor, &tensor, Operator::Sum)
    });
    // Of other lengths another algorithm is chosen.
    disagree(4, &["all_reduce sum f32[100000]", "all_reduce sum f32[100001]"], |world| {
        let tensor = floats(&vec![1.0; if world.rank().0 == 2 { 100_001 } else { 100_000 }]);
        world.all_reduce(&tensor, &tensor, Operator::Sum)
    });
    disagree(4, &["all_gather f32[100]", "all_gather f32[70000]"], |world| {
        let count = if world.rank().0 == 1 { 100 } else { 70_000 };
        world.all_gather(&floats(&vec![1.0; count]), &floats(&vec![1.0; 4 * count]))
    });
    disagree(4, &["all_reduce max f32[1]", "all_reduce min f32[1]"], |world| {
        let tensor = floats(&[1.0]);
        world.all_reduce(&tensor, &tensor, if world.rank().0 == 0 { Operator::Max } else { Operator::Min })
    });
    disagree(2, &["reduce sum f32[1]", "reduce sum i32[1]"], |world| {
        let tensor = match world.rank().0 {
            0 => floats(&[1.0]),
            _ => Tensor::from_slice(&[1_i32], [1]).expect("memory"),
        };
        world.reduce(&tensor, (world.rank().0 == 0).then_some(&tensor), Operator::Sum, Rank(0))
    });
}

#[test]
fn another_root_is_told_to_all() {
    // Ranks 0 and 1 wait for each other at first.
    disagree(3, &["broadcast f32[1] with root 0", "broadcast f32[1] with root 1"], |world| {
        world.broadcast(&floats(&[1.0]), Rank(u32::from(world.rank().0 == 1)))
    });
    disagree(4, &["broadcast f32[200000] with root 0", "broadcast f32[200000] with root 3"], |world| {
        world.broadcast(&floats(&vec![1.0; 200_000]), Rank(if world.rank().0 == 3 { 3 } else { 0 }))
    });
}

#[test]
fn other_lengths_of_pieces_are_told_to_all() {
    disagree(3, &["rank 1 sends f32[2] to rank 2, which expects f32[3]"], |world| {
        let expected = if world.rank().0 == 2 { [2, 3, 2] } else { [2; 3] };
        let input = floats(&[1.0; 6]);
        world.all_to_all_v(&input, &[2; 3], &floats(&vec![0.0; expected.iter().sum()]), &expected)
    });
    disagree(2, &["other lengths"], |world| {
        let lengths = if world.rank().0 == 0 { [1, 2] } else { [2, 1] };
        world.all_gather_v(&floats(&[1.0]), &floats(&[0.0; 3]), &lengths)
    });
}

#[test]
fn other_tables_are_told_to_all() {
    let errors = together_with(
        3,
        Medium::SharedMemory,
        |_, _| (),
        |rank| if rank == 1 { "all_reduce ring".parse().expect("a table") } else { Table::default() },
        |_, world| {
            let tensor = floats(&[1.0]);
            failed(&world.all_reduce(&tensor, &tensor, Operator::Sum))
        },
    );
    for error in errors {
        assert!(error.kind() == ErrorKind::Mismatch && error.what().contains("by table"), "{error}");
    }
}

#[test]
fn wrong_arguments_are_refused_and_nobody_has_entered() {
    together(2, Medium::SharedMemory, |_, world| {
        let (one, two) = (floats(&[1.0]), floats(&[1.0, 2.0]));
        let whole = Tensor::from_slice(&[1_i32], [1]).expect("memory");
        let root = (world.rank().0 == 0).then_some(&one);
        for work in [
            world.all_reduce(&one, &two, Operator::Sum),
            world.all_reduce(&one, &whole, Operator::Sum),
            world.broadcast(&one, Rank(2)),
            world.all_gather(&one, &one),
            world.gather(&one, if root.is_some() { None } else { Some(&two) }, Rank(0)),
            world.all_to_all(&one, &floats(&[0.0])),
            world.all_gather_v(&one, &two, &[2, 1, 1]),
            world.all_reduce(
                &two.slice_rows(0..1).expect("a row"),
                &two.slice_rows(0..1).expect("a row").reshape([1]).expect("one"),
                Operator::Band,
            ),
        ] {
            let kind = failed(&work).kind();
            assert!(matches!(kind, ErrorKind::InvalidArgument | ErrorKind::Unsupported), "{kind:?}");
        }
        assert_eq!(failed(&world.all_reduce(&whole, &whole, Operator::Avg)).kind(), ErrorKind::Unsupported);
        let held = one.read_lease("somebody else").expect("it is free");
        assert_eq!(failed(&world.all_reduce(&one, &one, Operator::Sum)).kind(), ErrorKind::BufferInUse);
        drop(held);
        wait(&world.all_reduce(&one, &one, Operator::Sum)).expect("the group is whole");
        assert_eq!(one.to_vec::<f32>().expect("it is free"), [2.0]);
    });
}

#[test]
fn buffers_are_held_until_the_work_ends() {
    together(2, Medium::SharedMemory, |_, world| {
        let (input, output) = (floats(&[1.0]), floats(&[0.0]));
        if world.rank().0 == 0 {
            let work = world.all_reduce(&input, &output, Operator::Sum);
            assert_eq!(output.bytes().expect_err("it is written").kind(), ErrorKind::BufferInUse);
            assert_eq!(input.write_lease("test").expect_err("it is read").kind(), ErrorKind::BufferInUse);
            assert!(input.bytes().is_ok());
            wait(&world.send(&input, Rank(1), 1)).expect("it goes");
            wait(&work).expect("both come");
        } else {
            assert_eq!(wait(&world.recv(&input, None, 1)).expect("it comes"), Rank(0));
            wait(&world.all_reduce(&input, &output, Operator::Sum)).expect("both come");
        }
        assert_eq!(output.to_vec::<f32>().expect("it is free"), [2.0]);
        assert!(input.write_lease("test").is_ok());
        wait(&world.barrier()).expect("both come");
    });
}

#[test]
fn several_operations_are_in_flight_and_end_in_any_order() {
    for medium in MEDIA {
        together(3, medium, |_, world| {
            let rank = world.rank().0 as f32;
            let tensors: Vec<_> =
                (0..40_u16).map(|at| floats(&vec![rank + f32::from(at); 1 + 997 * usize::from(at)])).collect();
            let works: Vec<_> = tensors.iter().map(|tensor| world.all_reduce(tensor, tensor, Operator::Sum)).collect();
            let order: Vec<usize> = if world.rank().0 == 0 { (0..40).rev().collect() } else { (0..40).collect() };
            for at in order {
                // From any thread.
                let (work, tensor) = (works[at].clone(), tensors[at].clone());
                std::thread::spawn(move || wait(&work).expect("all come")).join().expect("no panic");
                assert!(tensor.to_vec::<f32>().expect("free").iter().all(|value| *value == 3.0 + 3.0 * at as f32));
            }
        });
    }
}

#[test]
fn two_groups_are_used_from_two_threads_at_once() {
    for medium in MEDIA {
        together(4, medium, |_, world| {
            let all: Vec<_> = (0..4).map(Rank).collect();
            let back: Vec<_> = all.iter().rev().copied().collect();
            let groups = [world.subgroup("one", &all).expect("all"), world.subgroup("other", &back).expect("all")];
            let threads = groups.map(|group| {
                std::thread::spawn(move || {
                    for round in 0..100_u16 {
                        let tensor =
                            floats(&vec![f32::from(round) + group.rank().0 as f32; 1 + usize::from(round) * 100]);
                        wait(&group.all_reduce(&tensor, &tensor, Operator::Sum)).expect("all come");
                        let expected = 4.0 * f32::from(round) + 6.0;
                        assert!(tensor.to_vec::<f32>().expect("free").iter().all(|value| *value == expected));
                    }
                })
            });
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            wait(&world.barrier()).expect("all come");
        });
    }
}

#[test]
fn groups_are_split_by_colour_and_may_overlap() {
    together(5, Medium::SharedMemory, |_, world| {
        let rank = world.rank().0;
        let color = if rank == 4 { None } else { Some(rank % 2) };
        let half = world.split(color, -i64::from(rank)).expect("all come");
        assert_eq!(half.is_none(), rank == 4);
        let neighbours = [Rank(rank), Rank((rank + 1) % 5)];
        if let Some(half) = half {
            // In the order of the keys: backwards.
            assert_eq!((half.size(), half.rank().0), (2, 1 - rank / 2));
            let tensor = floats(&[rank as f32]);
            wait(&half.all_reduce(&tensor, &tensor, Operator::Max)).expect("both come");
            assert_eq!(tensor.to_vec::<f32>().expect("free"), [2.0 + (rank % 2) as f32]);
        }
        let before = world.subgroup("pair", &[Rank((rank + 4) % 5), Rank(rank)]).expect("it is in it");
        let after = world.subgroup("pair", &neighbours).expect("it is in it");
        let (one, other) = (floats(&[1.0]), floats(&[1.0]));
        let works = [before.all_reduce(&one, &one, Operator::Sum), after.all_reduce(&other, &other, Operator::Sum)];
        works.iter().for_each(|work| wait(work).expect("both come"));
        let alone = world.subgroup("alone", &[Rank(rank)]).expect("it is in it");
        wait(&alone.all_reduce(&one, &one, Operator::Sum)).expect("nobody else is needed");
        assert_eq!(one.to_vec::<f32>().expect("free"), [2.0]);
        assert!(world.subgroup("others", &[Rank((rank + 1) % 5)]).is_err());
        wait(&world.barrier()).expect("all come");
    });
}

#[test]
fn a_deadline_names_who_is_missing() {
    for medium in MEDIA {
        together(3, medium, |_, world| {
            wait(&world.barrier()).expect("all come");
            if world.rank().0 == 1 {
                while world.broken().is_none() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            } else {
                let (input, output) = (floats(&[7.0; 3]), floats(&[0.0; 3]));
                let begun = Instant::now();
                let hasty = world.within(Duration::from_millis(if world.rank().0 == 0 { 200 } else { 20_000 }));
                let error = failed(&hasty.all_reduce(&input, &output, Operator::Sum));
                assert!(begun.elapsed() < Duration::from_secs(5), "{error}");
                let kind = if world.rank().0 == 0 { ErrorKind::DeadlineExceeded } else { ErrorKind::Cancelled };
                assert_eq!(error.kind(), kind, "{error}");
                assert!(error.what().contains("not entered: rank 1 (rank-1)"), "{error}");
                if kind == ErrorKind::Cancelled {
                    // F48: the error because of which it is cancelled travels along, whatever way the news takes.
                    let cause = error.causes().last().expect("it says why");
                    assert_eq!(cause.kind(), ErrorKind::DeadlineExceeded, "{cause}");
                    assert_eq!(cause.happened_on().map(|peer| &*peer.name), Some("rank-0"), "{cause}");
                    assert!(!error.to_string().contains("caused by"), "the line says it already: {error}");
                }
                assert_eq!(input.to_vec::<f32>().expect("free"), [7.0; 3]);
            }
            assert!(failed(&world.barrier()).what().contains("not entered"));
        });
    }
}

#[test]
fn cancelling_breaks_the_group_for_all() {
    together(3, Medium::SharedMemory, |_, world| {
        wait(&world.barrier()).expect("all come");
        let tensor = floats(&[1.0]);
        let error = match world.rank().0 {
            2 => {
                while world.broken().is_none() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                failed(&world.all_reduce(&tensor, &tensor, Operator::Sum))
            }
            0 => {
                let work = world.all_reduce(&tensor, &tensor, Operator::Sum);
                work.cancel();
                failed(&work)
            }
            _ => failed(&world.all_reduce(&tensor, &tensor, Operator::Sum)),
        };
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    });
}

#[test]
fn a_group_that_is_cancelled_ends_all_that_is_on_its_way_and_no_other_group() {
    for medium in MEDIA {
        let has_ended = Arc::new(AtomicBool::new(false));
        together(3, medium, move |_, world| {
            let all = [Rank(0), Rank(1), Rank(2)];
            let group = world.subgroup("given up", &all).expect("all");
            wait(&group.barrier()).expect("all come");
            let (sum, word) = (floats(&[1.0; 5]), floats(&[0.0]));
            // What all have entered is no part of what is given up, whoever hears of that first.
            wait(&group.all_reduce(&sum, &sum, Operator::Sum)).expect("all come");
            let received = group.recv(&word, Some(Rank((world.rank().0 + 1) % 3)), 4);
            let await_rank_0 = || {
                let until = Instant::now() + Duration::from_secs(20);
                while !has_ended.load(SeqCst) {
                    assert!(Instant::now() < until, "rank 0 waits for the others");
                    std::thread::sleep(Duration::from_millis(1));
                }
            };
            if world.rank().0 == 2 {
                // What it does not enter can end well nowhere, and it does nothing before that has ended on rank 0.
                await_rank_0();
                while group.broken().is_none() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            let begun = [group.all_reduce(&floats(&[1.0]), &floats(&[0.0]), Operator::Sum), group.barrier()];
            if world.rank().0 == 0 {
                group.cancel();
                // A thread that looks after one of them at this moment lets go of it first.
                let soon = Some(Instant::now() + Duration::from_secs(1));
                let all_end = begun.iter().all(|work| work.wait_until(soon, None).expect("no interrupt"));
                assert!(all_end && received.wait_until(soon, None).expect("no interrupt"), "it waits for the others");
                has_ended.store(true, SeqCst);
                group.cancel();
            }
            await_rank_0();
            let later = failed(&group.barrier());
            let errors = begun.iter().map(failed).chain([wait(&received).expect_err("nobody sends"), later]);
            for error in errors {
                assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
                assert!(error.what().contains("rank 0 has cancelled the group"), "{error}");
                assert_eq!(error.group_name(), Some("given up"), "{error}");
            }
            assert_eq!(sum.to_vec::<f32>().expect("free"), [3.0; 5]);
            wait(&world.barrier()).expect("it is another group");
        });
    }
}

/// Works end before `cancel` returns, save where a thread looks after one of them at that moment, which is rare.
#[test]
fn what_is_given_up_ends_at_once() {
    const ROUNDS: u32 = 20;
    together(2, Medium::InProcess, |_, world| {
        let mut at_once = 0;
        for round in 0..ROUNDS {
            let group = world.subgroup(&format!("given up {round}"), &[Rank(0), Rank(1)]).expect("both");
            wait(&group.barrier()).expect("both come");
            if world.rank().0 == 0 {
                let word = floats(&[0.0]);
                let received = group.recv(&word, Some(Rank(1)), 4);
                let begun = [group.all_reduce(&floats(&[1.0]), &floats(&[0.0]), Operator::Sum), group.barrier()];
                group.cancel();
                at_once += u32::from(received.is_done() && begun.iter().all(Work::is_done));
                assert!(begun.iter().map(failed).all(|error| error.kind() == ErrorKind::Cancelled));
                assert_eq!(wait(&received).expect_err("nobody sends").kind(), ErrorKind::Cancelled);
            }
            wait(&world.barrier()).expect("it is another group");
        }
        assert!(world.rank().0 == 1 || at_once > ROUNDS / 2, "{at_once} of {ROUNDS}");
    });
}

/// Each round has an operation that is being begun while another thread cancels its group, which nobody else enters.
#[test]
fn what_begins_while_its_group_is_cancelled_ends() {
    const ROUNDS: u32 = 150;
    together(2, Medium::InProcess, |_, world| {
        for round in 0..ROUNDS {
            let group = world.subgroup(&format!("given up {round}"), &[Rank(0), Rank(1)]).expect("both");
            wait(&group.barrier()).expect("both come");
            if world.rank().0 == 0 {
                let ready = std::sync::Barrier::new(2);
                let work = std::thread::scope(|scope| {
                    let begun = scope.spawn(|| {
                        ready.wait();
                        group.all_reduce(&floats(&[1.0]), &floats(&[0.0]), Operator::Sum)
                    });
                    ready.wait();
                    (0..round % 30 * 40).for_each(|_| std::hint::spin_loop());
                    group.cancel();
                    begun.join().expect("no panic")
                });
                assert_eq!(failed(&work).kind(), ErrorKind::Cancelled, "round {round}");
            }
            wait(&world.barrier()).expect("it is another group");
        }
    });
}

#[test]
fn the_same_inputs_give_the_same_bits_on_all_ranks_and_in_every_run() {
    for (ranks, count) in [(3, 100), (5, 100), (7, 40_000), (4, 40_000)] {
        let run = |medium: Medium| {
            together(ranks, medium, move |_, world| {
                let value = |at: u32| ((at * 7919 + world.rank().0 * 104_729) % 1000) as f32 * 0.001 - 0.3;
                let tensor = floats(&(0..count).map(value).collect::<Vec<_>>());
                wait(&world.all_reduce(&tensor, &tensor, Operator::Sum)).expect("all come");
                tensor.bytes().expect("free").to_vec()
            })
        };
        for medium in MEDIA {
            let (first, second) = (run(medium), run(medium));
            assert!(first.iter().chain(&second).all(|bytes| *bytes == first[0]), "{ranks} ranks by {medium:?}");
        }
    }
}

#[test]
fn halves_are_accumulated_in_single_precision_across_all_hops() {
    // 2048 + 1 is 2048 in f16, and 8 times 1 must not be lost.
    for count in [3, 50_000] {
        together(5, Medium::SharedMemory, move |_, world| {
            let own = if world.rank().0 == 0 { 2048.0 } else { 1.0 };
            let tensor = Tensor::from_slice(&vec![half::f16::from_f32(own); count], [count as u64]).expect("memory");
            wait(&world.all_reduce(&tensor, &tensor, Operator::Sum)).expect("all come");
            assert!(tensor.to_vec::<half::f16>().expect("free").iter().all(|sum| sum.to_f32() == 2052.0));
        });
    }
}

#[test]
fn messages_are_matched_by_tag_and_sender_or_from_anybody() {
    for medium in MEDIA {
        together(4, medium, |_, world| {
            let rank = world.rank().0;
            for (tag, count) in [(10, 0), (20, 1), (30, 1000), (40, 300_000)] {
                let mine = floats(&vec![rank as f32; count]);
                if rank > 0 {
                    let works = [tag + 7, tag + 8].map(|tag| world.send(&mine, Rank(0), tag));
                    works.iter().for_each(|work| wait(work).expect("it goes"));
                    continue;
                }
                let place = floats(&vec![9.0; count]);
                let is_from = |sender: Rank| place.to_vec::<f32>().expect("free").iter().all(|v| *v == sender.0 as f32);
                // Tag 8 first, and by name; then 7 from whoever comes.
                for from in [3, 1, 2].map(Rank) {
                    assert_eq!(wait(&world.recv(&place, Some(from), tag + 8)).expect("it comes"), from);
                    assert!(is_from(from));
                }
                let mut senders: Vec<_> = (0..3)
                    .map(|_| {
                        let sender = wait(&world.recv(&place, None, tag + 7)).expect("it comes");
                        assert!(is_from(sender));
                        sender.0
                    })
                    .collect();
                senders.sort_unstable();
                assert_eq!(senders, [1, 2, 3]);
            }
            wait(&world.barrier()).expect("all come");
        });
    }
}

#[test]
fn messages_of_one_tag_keep_their_order_whichever_way_they_come() {
    const TIMES: u32 = 400;
    // Some come with their announcement, some are asked for.
    let count = |time: u32| if time % 37 == 5 { 30_000 } else { 1 + time as usize % 3000 };
    for transport in MEDIA {
        together(2, transport, move |_, world| {
            let exchange = |tag: u64| {
                for time in 0..TIMES {
                    let mine = floats(&vec![time as f32 + tag as f32; count(time)]);
                    let place = floats(&vec![-1.0; count(time)]);
                    let other = Rank(1 - world.rank().0);
                    // The receive is there before the message, after it, or both come at once.
                    let early = (time % 3 == 0).then(|| world.recv(&place, Some(other), tag));
                    let sent = world.send(&mine, other, tag);
                    let came = early.unwrap_or_else(|| world.recv(&place, (time % 2 == 0).then_some(other), tag));
                    assert_eq!(wait(&came).expect("it comes"), other);
                    wait(&sent).expect("it goes");
                    let found = place.to_vec::<f32>().expect("free");
                    assert!(found.iter().all(|value| *value == time as f32 + tag as f32), "tag {tag}, time {time}");
                }
            };
            // Each thread may take in what is for the other.
            std::thread::scope(|scope| {
                scope.spawn(|| exchange(1000));
                exchange(5000);
            });
            wait(&world.barrier()).expect("all come");
        });
    }
}

#[test]
fn a_receive_meets_its_message_behind_more_than_may_wait() {
    const MESSAGES: u32 = 1500;
    for transport in MEDIA {
        together(2, transport, |_, world| {
            if world.rank().0 == 0 {
                (0..MESSAGES).for_each(|value| {
                    wait(&world.send(&floats(&[value as f32]), Rank(1), 1)).expect("it goes");
                });
                wait(&world.send(&floats(&[0.5]), Rank(1), 2)).expect("it goes");
            } else {
                let (last, place) = (floats(&[0.0]), floats(&[0.0]));
                let coming = world.recv(&last, Some(Rank(0)), 2);
                for value in 0..MESSAGES {
                    wait(&world.recv(&place, Some(Rank(0)), 1)).expect("it comes");
                    assert_eq!(place.to_vec::<f32>().expect("free"), [value as f32]);
                }
                wait(&coming).expect("it comes");
                assert_eq!(last.to_vec::<f32>().expect("free"), [0.5]);
            }
            wait(&world.barrier()).expect("all come");
        });
    }
}

#[test]
fn a_message_that_does_not_fit_fails_alone() {
    together(2, Medium::SharedMemory, |_, world| {
        for count in [4_usize, 40_000] {
            if world.rank().0 == 0 {
                let sent = wait(&world.send(&floats(&vec![1.0; count]), Rank(1), 1));
                assert_eq!(sent.is_err(), count > 5000, "who waits for an answer is told");
                wait(&world.send(&floats(&[5.0]), Rank(1), 2)).expect("it goes");
            } else {
                let error = wait(&world.recv(&floats(&[0.0; 3]), None, 1)).expect_err("it does not fit");
                let expected = format!("rank 0 sends f32[{count}] with tag 1, rank 1 receives f32[3]");
                assert_eq!((error.kind(), error.what()), (ErrorKind::Mismatch, &*expected));
                let place = floats(&[0.0]);
                wait(&world.recv(&place, Some(Rank(0)), 2)).expect("it comes");
                assert_eq!(place.to_vec::<f32>().expect("free"), [5.0]);
            }
        }
        wait(&world.barrier()).expect("the group is whole");
        let place = Tensor::private(Dtype::F32, [1]).expect("memory");
        let error = wait(&world.within(Duration::from_millis(30)).recv(&place, None, 99)).expect_err("nobody sends");
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        wait(&world.barrier()).expect("the group is whole");
    });
}

#[test]
fn messages_begun_before_there_is_a_link_arrive_in_order() {
    const MESSAGES: usize = 200;
    // Some bring their bytes along, others are asked for theirs.
    let length = |at: usize| if at.is_multiple_of(3) { 5000 } else { 1 };
    for medium in MEDIA {
        for _ in 0..5 {
            together(3, medium, move |_, world| match world.rank().0 {
                1 => {
                    let send = |at: usize| world.send(&floats(&vec![at as f32; length(at)]), Rank(2), 5);
                    let works: Vec<_> = (0..MESSAGES).map(send).collect();
                    works.iter().for_each(|work| wait(work).expect("it goes"));
                }
                2 => {
                    for at in 0..MESSAGES {
                        let place = floats(&vec![-1.0; length(at)]);
                        assert_eq!(wait(&world.recv(&place, Some(Rank(1)), 5)).expect("it comes"), Rank(1));
                        assert!(place.to_vec::<f32>().expect("free").iter().all(|value| *value == at as f32), "{at}");
                    }
                }
                _ => {}
            });
        }
    }
}

/// Four ranks on two hosts, as far as their nodes know.
fn on_two_hosts<T: Send + 'static>(act: impl Fn(&Mesh, &Communicator) -> T + Clone + Send + 'static) -> Vec<T> {
    let change = |rank: u32, config: &mut Config| {
        config.node.host_id = Some(format!("host {}", rank / 2));
        (config.node.transport, config.node.neighbourhood) = (Transport::Auto, None);
    };
    together_with(4, Medium::SharedMemory, change, |_| Table::default(), act)
}

#[test]
fn over_several_hosts_disagreement_is_told_to_all_with_both_sides() {
    let errors = on_two_hosts(|_, world| {
        let tensor = floats(&[1.0; 4]);
        wait(&world.all_reduce(&tensor, &tensor, Operator::Sum)).expect("all come");
        let error = failed(&match world.rank().0 {
            2 => world.broadcast(&tensor, Rank(0)),
            _ => world.all_reduce(&tensor, &tensor, Operator::Sum),
        });
        assert!(failed(&world.barrier()).kind() == error.kind(), "the group is broken");
        error
    });
    for (rank, error) in errors.iter().enumerate() {
        assert_eq!(error.kind(), ErrorKind::Mismatch, "rank {rank}: {error}");
        assert!(error.what().contains("broadcast") && error.what().contains("all_reduce sum f32[4]"), "{error}");
    }
}

#[test]
fn over_several_hosts_nobody_passes_a_barrier_before_the_last_has_come() {
    let come = Arc::new(AtomicU32::new(0));
    on_two_hosts(move |_, world| {
        for round in 0..20 {
            if world.rank().0 == round % 4 {
                std::thread::sleep(Duration::from_millis(2));
            }
            come.fetch_add(1, SeqCst);
            wait(&world.barrier()).expect("all come");
            assert!(come.load(SeqCst) >= 4 * (round + 1));
            // A root of a broadcast waits for all too.
            come.fetch_add(1, SeqCst);
            let tensor = floats(&[round as f32]);
            wait(&world.broadcast(&tensor, Rank(round % 4))).expect("all come");
            assert!(come.load(SeqCst) >= 4 * (round + 2));
            wait(&world.barrier()).expect("all come");
            if world.rank().0 == 0 {
                come.fetch_sub(4, SeqCst);
            }
            wait(&world.barrier()).expect("all come");
        }
    });
}

#[test]
fn f68_over_several_hosts_operations_in_flight_keep_their_order() {
    let given = |rank: u32, at: u32, round: u32| (at * 1000 + round * 10 + rank) as f32;
    on_two_hosts(move |_, world| {
        let own = world.rank().0;
        for round in 0..40 {
            let begin = |at: u32| {
                let root = Rank((at + round) % 4);
                let giver = if at % 3 == 1 { root.0 } else { own };
                let tensor = floats(&vec![given(giver, at, round); 1 + 300 * (at as usize / 6)]);
                let work = match at % 3 {
                    0 => world.all_reduce(&tensor, &tensor, Operator::Sum),
                    1 => world.broadcast(&tensor, root),
                    _ => world.barrier(),
                };
                (work, tensor)
            };
            let works: Vec<(Work<()>, Tensor)> = (0..24).map(begin).collect();
            for (at, (work, tensor)) in works.iter().enumerate() {
                wait(work).unwrap_or_else(|error| panic!("rank {own}, round {round}, {at}: {error}"));
                let at = at as u32;
                let expected = match at % 3 {
                    0 => (0..4).map(|rank| given(rank, at, round)).sum(),
                    1 => given((at + round) % 4, at, round),
                    _ => given(own, at, round),
                };
                let found = tensor.to_vec::<f32>().expect("it is free");
                assert!(found.iter().all(|value| *value == expected), "rank {own}, round {round}, {at}: {found:?}");
            }
        }
    });
}
