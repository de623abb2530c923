//! What an exchange promises besides the right numbers: what is refused, what waits, what ends.

use crate::common;
use crate::common::{MEDIA, done, echo, floats, next_batch, play, says, soon, values, zeros};
use sheave_base::{Error, ErrorKind};
use sheave_exchange::{Answer, Batch, Config, Handle, Handler, Pull, Push, Scope, Server, Terms, Worker};
use sheave_mesh::Mesh;
use sheave_net::Medium;
use sheave_tensor::{Dtype, Shape, Tensor};
use std::time::{Duration, Instant};

const SHM: Medium = Medium::SharedMemory;

fn plain() -> Config {
    Config::default()
}

fn meet(worker: &Worker) {
    worker.barrier(Scope::All, false, Some(soon()), None).expect("everybody comes");
}

fn meet_there(server: &Server) {
    server.barrier(Scope::All, false, Some(soon()), None).expect("everybody comes");
}

/// A request that pushes and pulls these under key 0.
fn simple(worker: &Worker, push: &Tensor, pull: &Tensor) -> Handle {
    worker.push_pull([Push::new(0, push)], [Pull::into(0, pull)]).expect("it is valid")
}

fn shortly() -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(50))
}

#[test]
fn requests_without_meaning_are_refused_and_nothing_is_sent() {
    play(
        (2, 1),
        SHM,
        plain(),
        |_, worker| {
            let (x, y) = (floats(&[1.0]), [zeros(1), zeros(1), zeros(1)]);
            let refused = |pushes: Vec<Push>, pulls: Vec<Pull>, word: &str| {
                let error = worker.push_pull(pushes, pulls).expect_err(word);
                says(&error, ErrorKind::InvalidArgument, &["push_pull", word]);
            };
            let into = |index: usize| Pull::into(index as u64, &y[index]);
            refused(vec![], vec![], "no tensors");
            refused(vec![Push::new(3, &x), Push::new(4, &x), Push::new(3, &x)], vec![], "key 3 is pushed twice");
            refused(vec![], vec![into(0), Pull::into(0, &y[1]), into(2), Pull::into(3, &zeros(1))], "key 0 is pulled");
            refused(vec![], vec![into(0)], "1 pulls cannot be shared by 2 servers");
            refused(vec![Push::moved(0, floats(&[1.0]))], vec![], "cannot be moved to 2 servers");
            refused(vec![], vec![into(0), Pull::into(5, &y[0])], "same memory");
            let held = y[0].read_lease("somebody").expect("it is free");
            let error = worker.push_pull([], [into(0), into(1)]).expect_err("it is in use");
            says(&error, ErrorKind::BufferInUse, &["push_pull", "read by somebody"]);
            drop(held);
            // The same keys may be pushed and pulled, and pulled of both servers.
            let request = worker.push_pull([Push::new(0, &x)], [into(0), Pull::into(0, &y[1])]).expect("it is valid");
            assert_eq!(request, Handle(0), "nothing counted before");
            done(worker, request).expect("both answer");
            assert_eq!((values(&y[0]), values(&y[1])), (vec![1.0], vec![1.0]));
        },
        |_, server| echo(server),
    );
}

#[test]
fn answers_without_meaning_are_refused_and_the_right_one_still_counts() {
    play(
        (1, 1),
        SHM,
        plain(),
        |_, worker| {
            let (x, y) = (floats(&[1.0, 2.0]), zeros(2));
            let request = simple(worker, &x, &y);
            done(worker, request).expect("the server gets it right");
            assert_eq!(values(&y), [1.0, 2.0]);
            done(worker, request).expect("waiting again is harmless");
        },
        |_, server| {
            let batch = next_batch(server).expect("a request");
            let request = &batch[0];
            let wrong = |answers: Vec<&Tensor>, word: &str| {
                let error = server.respond(request.handler, answers).expect_err(word);
                says(&error, ErrorKind::Mismatch, &["respond", word]);
            };
            wrong(vec![], "0 answers for 1 pulls");
            wrong(vec![&floats(&[1.0]), &floats(&[1.0])], "2 answers for 1 pulls");
            wrong(vec![&floats(&[1.0])], "f32[1] for key 0, which the worker pulls as f32[2]");
            wrong(vec![&Tensor::from_slice(&[1_i32, 2], [2]).expect("memory")], "i32[2]");
            let written = floats(&[0.0, 0.0]);
            let lease = written.write_lease("a writer").expect("it is free");
            let error = server.respond(request.handler, [&written]).expect_err("it is being written");
            says(&error, ErrorKind::BufferInUse, &["a writer"]);
            drop(lease);
            let error = server.respond(Handler(77), [&written]).expect_err("nobody asked");
            says(&error, ErrorKind::NotFound, &["no request 77"]);
            server.respond(request.handler, &request.tensors).expect("it fits");
            let error = server.respond(request.handler, &request.tensors).expect_err("twice");
            says(&error, ErrorKind::NotFound, &["answer each request of a batch once"]);
            assert!(next_batch(server).is_none());
        },
    );
}

#[test]
fn requests_that_nobody_made_are_not_found() {
    play(
        (1, 1),
        SHM,
        Config { window: 4, ..plain() },
        |_, worker| {
            let (x, y) = (floats(&[1.0]), zeros(1));
            let error = worker.wait(Handle(0), shortly(), None).expect_err("none was made");
            says(&error, ErrorKind::NotFound, &["no request 0"]);
            for _ in 0..9 {
                done(worker, simple(worker, &x, &y)).expect("an answer");
            }
            worker.wait(Handle(0), shortly(), None).expect("it was answered long ago");
            let error = worker.wait(Handle(9), shortly(), None).expect_err("not yet made");
            says(&error, ErrorKind::NotFound, &["no request 9", "9 were made"]);
            assert_eq!(worker.stamps(Handle(1)).expect_err("forgotten").kind(), ErrorKind::NotFound);
        },
        |_, server| echo(server),
    );
}

#[test]
fn a_step_that_differs_is_refused_to_all_and_the_next_batch_is_whole() {
    let outcomes = play(
        (1, 3),
        SHM,
        plain(),
        |_, worker| {
            let (x, y) = (floats(&[worker.rank() as f32]), zeros(1));
            let ask = |step| {
                let terms = Terms { step, ..Terms::default() };
                let request = worker.push_pull_on([Push::new(0, &x)], [Pull::into(0, &y)], terms, None);
                done(worker, request.expect("it is valid"))
            };
            let error = ask(Some(6 + u32::from(worker.rank() == 2))).expect_err("worker 2 is one ahead");
            ask(Some(7)).expect("all agree");
            ask(None).expect("all name none");
            error
        },
        |_, server| {
            let error = server.get_batch(Some(soon()), None).expect_err("the steps differ");
            says(&error, ErrorKind::Mismatch, &["get_batch", "worker-2", "step 7 at worker 2", "step 6 at worker 0"]);
            let batch = next_batch(server).expect("the next one");
            assert!(batch.iter().all(|request| request.step == Some(7)));
            for request in &batch {
                server.respond(request.handler, &request.tensors).expect("one each");
            }
            echo(server);
        },
    );
    for error in outcomes {
        says(&error, ErrorKind::Mismatch, &["push_pull", "step 7 at worker 2", "step 6 at worker 0", "worker-2"]);
        assert_eq!(error.at_sequence(), Some(0));
    }
}

#[test]
fn a_push_larger_than_its_place_writes_nothing_and_a_smaller_one_lands() {
    for medium in MEDIA {
        play(
            (1, 2),
            medium,
            plain(),
            |_, worker| {
                meet(worker);
                let ask = |count: usize| {
                    let (x, y) = (floats(&vec![5.0; count]), zeros(count));
                    let outcome = done(worker, simple(worker, &x, &y));
                    outcome.map(|()| values(&y))
                };
                assert_eq!(ask(4).expect("it fits"), [5.0; 4]);
                let error = ask(4 + worker.rank() as usize).expect_err("worker 1's does not fit");
                says(&error, ErrorKind::Mismatch, &["key 0 has 20 bytes, and its registered place 16", "worker-1"]);
                assert_eq!(ask(3).expect("a smaller one"), [5.0; 3]);
                assert_eq!(ask(0).expect("nothing at all"), [0.0; 0]);
            },
            |mesh, server| {
                let memory = Tensor::empty(mesh.node().arena(), Dtype::F32, [3, 4]).expect("room");
                memory.overwrite(&[0; 48], "a test").expect("it is free");
                let other = server.register(&memory, &[(0, 0), (1, 0), (1, 9)]).expect("free places");
                meet_there(server);
                let answer = |batch: Batch| {
                    for request in &batch {
                        server.respond(request.handler, &request.tensors).expect("one each");
                    }
                };
                answer(next_batch(server).expect("a whole one"));
                let error = server.get_batch(Some(soon()), None).expect_err("worker 1's does not fit");
                says(&error, ErrorKind::Mismatch, &["its registered place 16", "worker-1"]);
                let batch = next_batch(server).expect("the next one");
                assert_eq!(batch[0].tensors[0].shape().dimensions(), [3]);
                answer(batch);
                answer(next_batch(server).expect("an empty one"));
                assert!(next_batch(server).is_none());
                server.unregister(&other).expect("nothing lies there");
                let landed = memory.to_vec::<f32>().expect("it is free again");
                assert_eq!(landed, [5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 0.0, 0.0, 0.0, 0.0]);
            },
        );
    }
}

#[test]
fn places_are_given_once_and_taken_back() {
    play(
        (1, 1),
        SHM,
        plain(),
        |_, worker| {
            meet(worker);
            for _ in 0..2 {
                done(worker, simple(worker, &floats(&[1.0]), &zeros(1))).expect("an answer");
            }
        },
        |_, server| {
            let memory = zeros(2);
            let refused = |places: &[(u32, u64)], kind, word: &str| {
                says(&server.register(&memory, places).expect_err(word), kind, &["register", word]);
            };
            refused(&[], ErrorKind::InvalidArgument, "no worker and no key");
            refused(&[(1, 0)], ErrorKind::InvalidArgument, "no worker 1");
            refused(&[(0, 0), (0, 0)], ErrorKind::AlreadyExists, "key 0 of worker 0");
            refused(&[(0, 0), (0, 1), (0, 2)], ErrorKind::InvalidArgument, "8 bytes cannot be cut into 3");
            let registration = server.register(&memory, &[(0, 0), (0, 1)]).expect("free places");
            says(&memory.bytes().map(drop).expect_err("in use"), ErrorKind::BufferInUse, &["written by register"]);
            refused(&[(0, 1)], ErrorKind::AlreadyExists, "key 1 of worker 0");
            meet_there(server);
            let batch = next_batch(server).expect("a request");
            assert_eq!(batch[0].tensors[0].ptr(), memory.ptr());
            let error = server.unregister(&registration).expect_err("a request lies there");
            says(&error, ErrorKind::BufferInUse, &["request 0 of worker 0"]);
            server.respond(batch[0].handler, &batch[0].tensors).expect("one");
            server.unregister(&registration).expect("it is answered");
            server.unregister(&registration).expect("again is harmless");
            drop(batch);
            let batch = next_batch(server).expect("another one");
            assert_ne!(batch[0].tensors[0].ptr(), memory.ptr());
            server.respond(batch[0].handler, &batch[0].tensors).expect("one");
            assert!(next_batch(server).is_none());
            assert_eq!(values(&memory), [1.0, 0.0]);
        },
    );
}

#[test]
fn a_view_of_an_old_batch_is_an_error_and_never_new_data() {
    for medium in MEDIA {
        play(
            (1, 1),
            medium,
            plain(),
            |_, worker| {
                meet(worker);
                for value in [1.0, 2.0, 3.0] {
                    done(worker, simple(worker, &floats(&[value]), &zeros(1))).expect("an answer");
                }
            },
            |_, server| {
                let memory = zeros(1);
                server.register(&memory, &[(0, 0)]).expect("a free place");
                meet_there(server);
                let first = next_batch(server).expect("a request");
                let old = &first[0].tensors[0];
                server.respond(first[0].handler, [&floats(&[0.0])]).expect("one");
                let second = next_batch(server).expect("a request");
                says(&old.to_vec::<f32>().expect_err("old"), ErrorKind::BufferInUse, &["the next push has landed"]);
                let looked_at = second[0].tensors[0].bytes().expect("it is current");
                server.respond(second[0].handler, [&floats(&[0.0])]).expect("one");
                let error = server.get_batch(Some(soon()), None).expect_err("somebody looks");
                says(&error, ErrorKind::BufferInUse, &["key 0 by worker 0 cannot land", "drop the views"]);
                assert_eq!(looked_at[..], 2.0_f32.to_ne_bytes(), "nothing has landed");
                drop(looked_at);
                let third = next_batch(server).expect("a request");
                assert_eq!(values(&third[0].tensors[0]), [3.0]);
                server.respond(third[0].handler, [&floats(&[0.0])]).expect("one");
                assert!(next_batch(server).is_none());
            },
        );
    }
}

#[test]
fn a_push_waits_until_the_request_in_its_place_is_answered() {
    play(
        (1, 1),
        SHM,
        plain(),
        |_, worker| {
            meet(worker);
            let pulled: Vec<Tensor> = (0..3).map(|_| zeros(1)).collect();
            let ask = |index: usize| simple(worker, &floats(&[index as f32]), &pulled[index]);
            let requests: Vec<Handle> = (0..3).map(ask).collect();
            for (request, place) in requests.into_iter().zip(&pulled) {
                done(worker, request).expect("an answer");
                assert_eq!(values(place), [request.0 as f32]);
            }
        },
        |_, server| {
            server.register(&zeros(1), &[(0, 0)]).expect("a free place");
            meet_there(server);
            let first = next_batch(server).expect("a request");
            let error = server.get_batch(shortly(), None).expect_err("its place is taken");
            says(&error, ErrorKind::DeadlineExceeded, &["key 0 waits until the request in the same place", "worker-0"]);
            assert_eq!(values(&first[0].tensors[0]), [0.0]);
            server.respond(first[0].handler, &first[0].tensors).expect("one");
            echo(server);
        },
    );
}

#[test]
fn a_server_that_takes_no_batches_holds_its_worker_back() {
    play(
        (1, 1),
        SHM,
        Config { window: 3, ..plain() },
        |_, worker| {
            let pulled: Vec<Tensor> = (0..4).map(|_| zeros(1)).collect();
            let requests: Vec<Handle> =
                pulled[..3].iter().map(|place| simple(worker, &floats(&[1.0]), place)).collect();
            let terms = Terms { until: shortly(), ..Terms::default() };
            let error = worker
                .push_pull_on([Push::new(0, &floats(&[1.0]))], [Pull::into(0, &pulled[3])], terms, None)
                .expect_err("the window is full");
            says(&error, ErrorKind::DeadlineExceeded, &["3 requests are in flight", "server-0"]);
            let error = worker.wait(requests[0], shortly(), None).expect_err("nobody answers");
            says(&error, ErrorKind::DeadlineExceeded, &["push_pull", "no answer came", "server-0"]);
            assert!(!worker.is_done(requests[0]));
            says(&worker.take(requests[0]).expect_err("not yet"), ErrorKind::InvalidArgument, &["is not done"]);
            let mut interrupt = || Err(Error::new(ErrorKind::Interrupted, "ctrl-c"));
            let error = worker.wait(requests[0], None, Some(&mut interrupt)).expect_err("interrupted");
            assert_eq!(error.kind(), ErrorKind::Interrupted);
            meet(worker);
            // Who leaves before its last answer has the server fail.
            let last = simple(worker, &floats(&[1.0]), &pulled[3]);
            let works: Vec<_> = requests.iter().chain([&last]).map(|request| worker.work(*request)).collect();
            works.iter().for_each(|work| common::wait(work).expect("an answer"));
        },
        |_, server| {
            meet_there(server);
            echo(server);
        },
    );
}

#[test]
fn pushes_alone_and_pulls_alone_are_answered() {
    play(
        (2, 2),
        SHM,
        plain(),
        |_, worker| {
            let alone = worker.push_pull([Push::new(1, &floats(&[1.0])), Push::new(2, &floats(&[2.0]))], []);
            done(worker, alone.expect("it is valid")).expect("acknowledged");
            let pulled = [zeros(1), zeros(1)];
            let alone = worker.push_pull([], [Pull::into(0, &pulled[0]), Pull::into(0, &pulled[1])]);
            done(worker, alone.expect("it is valid")).expect("answered");
            assert_eq!((values(&pulled[0]), values(&pulled[1])), (vec![10.0], vec![11.0]));
        },
        |_, server| {
            let pushes = next_batch(server).expect("pushes");
            for request in &pushes {
                assert_eq!((request.keys(), request.pulls().len()), (&[1, 2][..], 0));
                assert_eq!(request.tensors.iter().map(values).collect::<Vec<_>>(), [[1.0], [2.0]]);
                server.respond(request.handler, [] as [&Tensor; 0]).expect("nothing is pulled");
            }
            for request in &next_batch(server).expect("pulls") {
                assert!(request.tensors.is_empty() && request.keys().is_empty());
                assert_eq!(request.pulls().collect::<Vec<_>>(), [(0, Dtype::F32, &Shape::from([1]))]);
                server.respond(request.handler, [&floats(&[10.0 + server.rank() as f32])]).expect("one");
            }
            assert!(next_batch(server).is_none());
        },
    );
}

#[test]
fn rows_of_one_tensor_answer_several_workers() {
    play(
        (1, 3),
        SHM,
        plain(),
        |_, worker| {
            let rows = u64::from(worker.rank()) + 1;
            let place = Tensor::private(Dtype::F32, [rows, 2]).expect("memory");
            done(worker, simple(worker, &floats(&[0.0]), &place)).expect("its rows");
            let before: u64 = (1..rows).sum();
            let wanted: Vec<f32> = (before * 2..(before + rows) * 2).map(|value| value as f32).collect();
            assert_eq!(values(&place), wanted);
        },
        |_, server| {
            let values: Vec<f32> = (0..12).map(|value| value as f32).collect();
            let all = Tensor::from_slice(&values, [6, 2]).expect("memory");
            let batch = next_batch(server).expect("a request");
            let answered = || batch.iter().zip(1_u64..).map(|(request, rows)| (request.handler, rows));
            let short = Tensor::from_slice(&values[..2], [1, 2]).expect("memory");
            let error = server.respond_rows(&short, answered().skip(1)).expect_err("too few rows");
            says(&error, ErrorKind::InvalidArgument, &["respond"]);
            server.respond_rows(&all, answered()).expect("six rows");
            assert!(next_batch(server).is_none());
        },
    );
}

#[test]
fn a_refusal_reaches_its_worker_alone() {
    let outcomes = play(
        (1, 2),
        SHM,
        plain(),
        |_, worker| done(worker, simple(worker, &floats(&[1.0]), &zeros(1))),
        |_, server| {
            let batch = next_batch(server).expect("requests");
            server.refuse(batch[1].handler, "it is not finite").expect("it is open");
            assert_eq!(server.refuse(batch[1].handler, "again").expect_err("twice").kind(), ErrorKind::NotFound);
            server.respond(batch[0].handler, &batch[0].tensors).expect("one");
            assert!(next_batch(server).is_none());
        },
    );
    outcomes[0].as_ref().expect("it was answered");
    let error = outcomes[1].as_ref().expect_err("it was refused");
    says(error, ErrorKind::Mismatch, &["server 0 refused it: it is not finite"]);
}

#[test]
fn whoever_has_left_is_named() {
    play(
        (1, 2),
        SHM,
        plain(),
        |_, worker| {
            let (x, y) = (floats(&[1.0]), zeros(1));
            done(worker, simple(worker, &x, &y)).expect("an answer");
            if worker.rank() == 1 {
                worker.close();
                let error = worker.push_pull([Push::new(0, &x)], []).expect_err("it has left");
                says(&error, ErrorKind::Closed, &["this worker has left"]);
            } else {
                let error = done(worker, simple(worker, &x, &y)).expect_err("worker 1 has left");
                says(&error, ErrorKind::Closed, &["worker 1 has left the exchange"]);
            }
            meet(worker);
        },
        |_, server| {
            for request in &next_batch(server).expect("both") {
                server.respond(request.handler, &request.tensors).expect("one");
            }
            let error = server.get_batch(Some(soon()), None).expect_err("worker 1 has left");
            says(&error, ErrorKind::Closed, &["worker 1 has left the exchange", "worker-1"]);
            meet_there(server);
        },
    );
}

#[test]
fn workers_may_leave_one_after_the_other() {
    play(
        (1, 2),
        SHM,
        plain(),
        |_, worker| {
            let (x, y) = (floats(&[1.0]), zeros(1));
            done(worker, simple(worker, &x, &y)).expect("an answer");
            if worker.rank() == 0 {
                let error = done(worker, simple(worker, &x, &y)).expect_err("worker 1 has left");
                says(&error, ErrorKind::Closed, &["worker 1 has left the exchange"]);
            }
            worker.close();
        },
        |_, server| {
            let batch = server.next_batch(Some(soon()), None).expect("nobody is gone").expect("both");
            for request in &batch {
                server.respond(request.handler, &request.tensors).expect("one");
            }
            assert!(server.next_batch(Some(soon()), None).expect("all leave in order").is_none());
            server.close();
            let error = server.next_batch(Some(soon()), None).expect_err("it has left itself");
            says(&error, ErrorKind::Closed, &["this server has left"]);
        },
    );
}

#[test]
fn every_thread_that_waits_for_a_batch_hears_of_the_end() {
    play(
        (1, 1),
        SHM,
        plain(),
        |_, worker| {
            done(worker, simple(worker, &floats(&[1.0]), &zeros(1))).expect("an answer");
            meet(worker);
        },
        |_, server| {
            let batch = next_batch(server).expect("a request");
            server.respond(batch[0].handler, &batch[0].tensors).expect("one");
            std::thread::scope(|scope| {
                let waits = || server.get_batch(Some(soon()), None).map(drop).expect_err("all leave");
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(waits)).collect();
                meet_there(server);
                for thread in threads {
                    let error = thread.join().expect("no panic");
                    says(&error, ErrorKind::Closed, &["all workers have left"]);
                }
            });
        },
    );
}

#[test]
fn lanes_have_nothing_to_do_with_each_other() {
    let lanes = Config { lanes: 2, ..plain() };
    let heard = play(
        (2, 4),
        SHM,
        lanes,
        |mesh, worker| {
            assert_eq!((worker.rank(), worker.servers()), (mesh.me().role_rank / 2, 1));
            let (x, y) = (floats(&[mesh.me().role_rank as f32]), zeros(1));
            // One lane makes more requests than the other.
            for _ in 0..=mesh.me().role_rank % 2 {
                done(worker, simple(worker, &x, &y)).expect("the sum of the lane");
            }
            worker.barrier(Scope::Workers, false, Some(soon()), None).expect("the workers of the lane");
            worker.barrier(Scope::Workers, true, Some(soon()), None).expect("all workers");
            let error = worker.barrier(Scope::Servers, true, None, None).expect_err("a worker is no server");
            says(&error, ErrorKind::InvalidArgument, &["a worker has no part"]);
            values(&y)[0]
        },
        |_, server| {
            assert_eq!(server.workers(), 2);
            while let Some(batch) = next_batch(server) {
                let sum: f32 = batch.iter().map(|request| values(&request.tensors[0])[0]).sum();
                for request in &batch {
                    server.respond(request.handler, [&floats(&[sum])]).expect("one");
                }
            }
            server.barrier(Scope::Servers, true, Some(soon()), None).expect("all servers");
        },
    );
    assert_eq!(heard, [2.0, 4.0, 2.0, 4.0]);
}

#[test]
fn eight_points_in_time_are_there_on_every_medium() {
    for medium in MEDIA {
        play(
            (2, 1),
            medium,
            Config { stamps: true, ..plain() },
            |_, worker| {
                let (x, y) = (floats(&[1.0]), [zeros(1), zeros(1)]);
                let pulls = [Pull::into(0, &y[0]), Pull::into(0, &y[1])];
                let request = worker.push_pull([Push::new(0, &x)], pulls).expect("it is valid");
                done(worker, request).expect("both answer");
                let stamps = worker.stamps(request).expect("it is the last one");
                assert_eq!(stamps.len(), 2);
                for stamps in stamps {
                    // One host, one clock: they are in order.
                    let all = stamps.as_array();
                    assert!(all[0] > 0 && all.is_sorted(), "{all:?}");
                }
            },
            |_, server| echo(server),
        );
    }
}

#[test]
fn a_run_is_written_down_for_perfetto() {
    let files: Vec<std::path::PathBuf> = ["worker", "server"]
        .iter()
        .map(|end| std::env::temp_dir().join(format!("sheave-exchange-{end}-{}.json", std::process::id())))
        .collect();
    let [at_worker, at_server] = [files[0].clone(), files[1].clone()];
    play(
        (1, 1),
        SHM,
        Config { trace: true, ..plain() },
        move |_, worker| {
            for _ in 0..3 {
                done(worker, simple(worker, &floats(&[1.0]), &zeros(1))).expect("an answer");
            }
            worker.write_trace(&at_worker).expect("there is room on the disk");
        },
        move |_, server| {
            echo(server);
            server.write_trace(&at_server).expect("there is room on the disk");
        },
    );
    let exports: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).expect("it was written")).collect();
    files.iter().for_each(|file| std::fs::remove_file(file).expect("it is there"));
    let mut merged = Vec::new();
    sheave_base::trace::merge(&exports, &mut merged).expect("they are traces");
    let text = String::from_utf8(merged).expect("it is JSON");
    for (what, count) in [("push_pull", 3), ("is on its way and answered", 3), ("waits", 3), ("is worked on", 3)] {
        assert_eq!(text.matches(&format!(r#""name":"{what}","ph":"X""#)).count(), count, "{what} in {text}");
    }
    assert!(text.contains("worker-0") && text.contains("server-0"));
}

/// Time that the calling thread has had of a core.
fn thread_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[test]
fn nobody_spins_while_nothing_is_in_flight() {
    const IDLE: Duration = Duration::from_millis(400);
    play(
        (1, 1),
        SHM,
        plain(),
        |_, worker| {
            done(worker, simple(worker, &floats(&[1.0]), &zeros(1))).expect("an answer");
            meet(worker);
            let (begun, y) = (thread_time(), zeros(1));
            let request = simple(worker, &floats(&[1.0]), &y);
            let error = worker.wait(request, Some(Instant::now() + IDLE), None).expect_err("nobody answers");
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
            let used = thread_time() - begun;
            assert!(used < IDLE / 10, "the worker was busy for {used:?}");
            meet(worker);
            done(worker, request).expect("an answer");
        },
        |_, server| {
            let first = next_batch(server).expect("a request");
            server.respond(first[0].handler, &first[0].tensors).expect("one");
            meet_there(server);
            meet_there(server);
            let second = next_batch(server).expect("a request");
            server.respond(second[0].handler, &second[0].tensors).expect("one");
            let begun = thread_time();
            assert!(next_batch(server).is_none());
            let error = server.get_batch(Some(Instant::now() + IDLE), None).expect_err("all have left");
            assert_eq!(error.kind(), ErrorKind::Closed);
            let used = thread_time() - begun;
            assert!(used < IDLE / 10, "the server was busy for {used:?}");
        },
    );
}

#[test]
fn tensors_of_any_shape_and_dtype_come_back_as_they_were() {
    for medium in MEDIA {
        play(
            (1, 1),
            medium,
            plain(),
            |_, worker| {
                let shapes = [&[][..], &[0], &[3, 0, 2], &[1; 64], &[2, 1, 3, 1, 2, 1], &[7]];
                for dtype in [Dtype::Bool, Dtype::I8, Dtype::Bf16, Dtype::F64, Dtype::Complex128] {
                    for shape in shapes {
                        let shape = Shape::new(shape).expect("few dimensions");
                        let mut x = Tensor::private(dtype, shape.clone()).expect("memory");
                        let bytes = x.bytes_mut().expect("the only handle");
                        bytes.iter_mut().zip((0..2).cycle()).for_each(|(byte, value)| *byte = value);
                        let y = Tensor::private(dtype, shape).expect("memory");
                        done(worker, simple(worker, &x, &y)).expect("an answer");
                        assert_eq!(x.bytes().expect("free")[..], y.bytes().expect("free")[..]);
                    }
                }
            },
            |_, server| {
                while let Some(batch) = next_batch(server) {
                    let request = &batch[0];
                    let (_, dtype, shape) = request.pulls().next().expect("one");
                    assert_eq!((request.tensors[0].dtype(), request.tensors[0].shape()), (dtype, shape));
                    server.respond(request.handler, &request.tensors).expect("one");
                }
            },
        );
    }
}

#[test]
fn what_was_moved_comes_back_as_the_same_memory() {
    play(
        (1, 1),
        SHM,
        plain(),
        |mesh, worker| {
            let shape = [100_000_u64];
            let mut tensor = Tensor::empty(mesh.node().arena(), Dtype::F32, shape).expect("room");
            let address = tensor.ptr();
            let copied = mesh.node().counts().bytes_copied;
            for round in 0..5 {
                tensor.as_mut_slice::<f32>().expect("the only handle")[0] = round as f32;
                let pull = Pull::taken(0, Dtype::F32, shape);
                let request = worker.push_pull([Push::moved(0, tensor)], [pull]).expect("it is valid");
                done(worker, request).expect("an answer");
                tensor = worker.take(request).expect("an answer").pop().expect("one");
                assert_eq!(tensor.as_slice::<f32>().expect("f32")[0], round as f32 + 1.0);
                assert!(worker.take(request).expect("it is done").is_empty(), "it is there once");
            }
            assert_eq!(tensor.ptr(), address);
            assert!(mesh.node().counts().bytes_copied - copied < 4096);
            let kept = tensor.clone();
            let error = worker.push_pull([Push::moved(0, tensor)], []).expect_err("somebody keeps it");
            says(&error, ErrorKind::BufferInUse, &["push_pull", "key 0 has other handles"]);
            drop(kept);
        },
        |_, server| {
            while let Some(batch) = next_batch(server) {
                for mut request in batch {
                    let Some(mut tensor) = request.tensors.pop() else { continue };
                    tensor.as_mut_slice::<f32>().expect("the only handle")[0] += 1.0;
                    server.respond(request.handler, [Answer::moved(tensor)]).expect("one");
                }
            }
        },
    );
}

#[test]
fn many_plans_are_told_again_when_their_numbers_are_needed() {
    play(
        (1, 1),
        SHM,
        plain(),
        |_, worker| {
            for round in 0..2 {
                for key in 0..600_u64 {
                    let (x, y) = (floats(&[key as f32 + round as f32]), zeros(1));
                    let request = worker.push_pull([Push::new(key, &x)], [Pull::into(key, &y)]).expect("it is valid");
                    done(worker, request).expect("an answer");
                    assert_eq!(values(&y), values(&x));
                }
            }
        },
        |_, server| echo(server),
    );
}

#[test]
fn an_end_is_opened_once_at_a_time() {
    play(
        (1, 1),
        SHM,
        plain(),
        |mesh: &Mesh, worker| {
            let error = Worker::open(mesh, plain()).expect_err("there is one");
            says(&error, ErrorKind::AlreadyExists, &["has an open end"]);
            let error = Server::open(mesh, plain()).expect_err("another role");
            says(&error, ErrorKind::InvalidArgument, &["this node is a worker and not a server"]);
            for wrong in
                [Config { lanes: 0, ..plain() }, Config { window: 0, ..plain() }, Config { lanes: 2, ..plain() }]
            {
                assert_eq!(Worker::open(mesh, wrong).expect_err("no lane").kind(), ErrorKind::InvalidArgument);
            }
            worker.close();
        },
        |_, server| assert!(next_batch(server).is_none()),
    );
}

#[test]
fn a_mesh_has_one_exchange_after_the_other() {
    play(
        (1, 1),
        SHM,
        plain(),
        |mesh, first| {
            done(first, simple(first, &floats(&[1.0]), &zeros(1))).expect("an answer");
            first.close();
            let second = Worker::open(mesh, Config { stamps: true, ..plain() }).expect("the first is closed");
            let (x, y) = (floats(&[2.0]), zeros(1));
            let request = simple(&second, &x, &y);
            assert_eq!(request, Handle(0));
            done(&second, request).expect("an answer");
            assert_eq!(values(&y), [2.0]);
        },
        |mesh, first| {
            echo(first);
            first.close();
            echo(&Server::open(mesh, plain()).expect("the first is closed"));
        },
    );
}

#[test]
fn f07_an_echo_of_registered_memory_waits_until_its_answer_has_left() {
    const COUNT: usize = 1 << 20;
    for medium in MEDIA {
        play(
            (1, 1),
            medium,
            plain(),
            move |_, worker| {
                meet(worker);
                let places: Vec<Tensor> = (0..4).map(|_| zeros(COUNT)).collect();
                let ask = |(at, place)| simple(worker, &floats(&vec![at as f32; COUNT]), place);
                let requests: Vec<Handle> = places.iter().enumerate().map(ask).collect();
                for (at, request) in requests.into_iter().enumerate() {
                    done(worker, request).expect("an answer");
                    assert!(values(&places[at]).iter().all(|value| *value == at as f32), "answer {at} over {medium:?}");
                }
            },
            |_, server| {
                server.register(&zeros(COUNT), &[(0, 0)]).expect("a free place");
                meet_there(server);
                echo(server);
            },
        );
    }
}
