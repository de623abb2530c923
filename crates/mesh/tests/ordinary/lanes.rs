//! Lanes: each service has threads of its own, mailboxes keep their order, circles end, and what nobody waits for any
//! more does not begin.

use crate::common::{PATIENCE, together, until, wait};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, NodeId, Rank, Result, Work, limits};
use sheave_mesh::{Answer, ArgList, Call, Expected, Lane, Mesh, Request, Service};
use sheave_net::Part;
use sheave_tensor::{Mode, Tensor};
use sheave_wire::Value;
use smallvec::smallvec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];

fn other(mesh: &Mesh) -> NodeId {
    mesh.members()[usize::from(mesh.me().rank == Rank(0))].node
}

fn send(mesh: &Mesh, service: &'static str, method: &str, args: impl Into<Call>) -> Work<Answer> {
    mesh.call(other(mesh), service, method, args).expect("it is sent")
}

fn number(answer: &Answer) -> i64 {
    match answer.value {
        Value::Int(number) => number,
        ref other => panic!("{other:?} where a number was expected"),
    }
}

/// A service on a lane.
struct On<F>(Lane, F);

impl<F: Fn(Request) + Send + Sync + 'static> Service for On<F> {
    fn handle(&self, request: Request) {
        (self.1)(request);
    }

    fn lane(&self) -> Lane {
        self.0
    }

    fn mailbox(&self, request: &Request) -> u64 {
        request.method.len() as u64
    }
}

/// Two members; rank 1 serves, rank 0 asks, and both finish.
fn asked(
    transport: Transport,
    serve: impl Fn(&Mesh) + Clone + Send + 'static,
    ask: impl Fn(&Mesh) + Clone + Send + 'static,
) {
    together(Expected::ranks(2), transport, move |mesh| {
        if mesh.me().rank == Rank(1) {
            serve(&mesh);
        }
        mesh.world().barrier().expect("both are there");
        if mesh.me().rank == Rank(0) {
            ask(&mesh);
        }
        mesh.finish().expect("all are well");
    });
}

/// Handlers of one service keep their threads for as long as nobody has asked the other one.
#[test]
fn f20_busy_handlers_of_one_service_keep_no_other_waiting() {
    for transport in TRANSPORTS {
        let quick_was_asked = Arc::new(AtomicBool::new(false));
        let serve = move |mesh: &Mesh| {
            let (seen, said) = (Arc::clone(&quick_was_asked), Arc::clone(&quick_was_asked));
            mesh.serve("slow", move |request: Request| {
                until("the quick one was asked", || seen.load(SeqCst));
                request.reply.value(1);
            })
            .expect("the name is free");
            mesh.serve("quick", move |request: Request| {
                said.store(true, SeqCst);
                request.reply.value(2);
            })
            .expect("the name is free");
        };
        asked(transport, serve, |mesh| {
            let slow: Vec<_> = (0..100).map(|_| send(mesh, "slow", "x", Value::None)).collect();
            assert_eq!(number(&wait(&send(mesh, "quick", "x", Value::None)).expect("it has its own threads")), 2);
            assert!(slow.iter().all(|work| number(&wait(work).expect("they end then")) == 1));
        });
    }
}

/// Serves "down": a call of the other node for each number down to zero.
fn serve_circles(mesh: &Mesh) {
    let own = mesh.clone();
    let down = move |request: Request| {
        let Value::Int(depth) = request.args else { return };
        if depth == 0 {
            return request.reply.value(0);
        }
        let answer: Result<Answer> = own
            .call(request.from, "circle", "down", Value::Int(depth - 1))
            .and_then(|work| work.wait_timeout(PATIENCE));
        request.reply.send(answer.map(|answer| (Value::Int(number(&answer) + 1), smallvec![])));
    };
    mesh.serve("circle", down).expect("the name is free");
}

/// Both members serve circles, rank 0 does `act`.
fn in_circles(transport: Transport, act: impl Fn(&Mesh) + Clone + Send + 'static) {
    together(Expected::ranks(2), transport, move |mesh| {
        serve_circles(&mesh);
        mesh.world().barrier().expect("both are there");
        if mesh.me().rank == Rank(0) {
            act(&mesh);
        }
        mesh.world().barrier().expect("both are done");
        mesh.serve_no_more("circle");
        mesh.finish().expect("all are well");
    });
}

#[test]
fn f54_a_hundred_calls_that_are_called_back_end() {
    for transport in TRANSPORTS {
        in_circles(transport, |mesh| {
            let works: Vec<_> = (0..100).map(|_| send(mesh, "circle", "down", Value::Int(3))).collect();
            assert!(works.iter().all(|work| number(&wait(work).expect("it comes back")) == 3));
        });
    }
}

#[test]
fn calls_nest_a_thousand_deep() {
    in_circles(Transport::Shm, |mesh| {
        let answer = wait(&send(mesh, "circle", "down", Value::Int(1000))).expect("it comes back");
        assert_eq!(number(&answer), 1000);
    });
}

/// Deeper than there are threads for.
#[test]
fn a_circle_that_never_ends_is_an_error() {
    in_circles(Transport::Shm, |mesh| {
        let deep = i64::try_from(3 * limits::LANE_THREADS_MAX).expect("it is small");
        let error = wait(&send(mesh, "circle", "down", Value::Int(deep))).expect_err("there are no more threads");
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
        assert!(error.advice().is_some(), "{error}");
        // And both are well.
        assert_eq!(number(&wait(&send(mesh, "circle", "down", Value::Int(5))).expect("it comes back")), 5);
    });
}

/// What ends the wait of the handler at the top of a chain while the handler at its bottom runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Answer,
    Deadline,
    Failure,
}

/// Long enough for a chain to begin on a busy machine.
const CHAIN_DEADLINE: Duration = Duration::from_secs(3);

/// A chain of three handlers: rank 0's at the top waits for rank 1's, with a lock held, and that one calls back without
/// waiting.
struct Chain {
    mesh: sheave_mesh::WeakMesh,
    end: End,
    lock: Mutex<()>,
    bottom_runs: Arc<AtomicBool>,
    top_goes_on: Arc<AtomicBool>,
}

impl Service for Chain {
    fn handle(&self, request: Request) {
        let Some(mesh) = self.mesh.upgrade() else { return };
        let call =
            |method: &str, deadline| mesh.call(other(&mesh), "chain", method, Call { deadline, ..Call::default() });
        match request.method.as_str() {
            "top" => {
                let held = self.lock.lock().expect("no panic");
                let deadline = (self.end == End::Deadline).then_some(CHAIN_DEADLINE);
                let outcome = call("middle", deadline).and_then(|work| work.wait());
                self.top_goes_on.store(true, SeqCst);
                drop(held);
                request.reply.send(outcome.map(|answer| (answer.value, smallvec![])));
            }
            "middle" => {
                drop(call("bottom", None).expect("it is sent"));
                until("the bottom runs", || self.bottom_runs.load(SeqCst));
                match self.end {
                    End::Answer => request.reply.value(1),
                    End::Deadline => until("the top goes on", || self.top_goes_on.load(SeqCst)),
                    End::Failure => mesh.fail("its middle broke"),
                }
            }
            _ => {
                self.bottom_runs.store(true, SeqCst);
                until("the top goes on", || self.top_goes_on.load(SeqCst));
                drop(self.lock.lock().expect("no panic"));
            }
        }
    }
}

/// A call that descends from the one that a handler waits for may outlast the wait, and needs what the handler holds.
/// So it has a thread of its own: on that of the waiter it would end all this.
#[test]
fn a_handler_s_wait_ends_in_time_while_calls_that_descend_from_it_run() {
    for end in [End::Answer, End::Deadline, End::Failure] {
        let (bottom_runs, top_goes_on) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let act = move |mesh: Mesh| {
            let (bottom_runs, top_goes_on) = (Arc::clone(&bottom_runs), Arc::clone(&top_goes_on));
            let (seen, lock) = (Arc::clone(&bottom_runs), Mutex::new(()));
            let chain = Chain { mesh: mesh.downgrade(), end, lock, bottom_runs, top_goes_on };
            mesh.serve("chain", chain).expect("the name is free");
            mesh.world().barrier().expect("all are there");
            if mesh.me().rank == Rank(0) {
                let top = mesh.call(mesh.me().node, "chain", "top", Value::None).expect("it is on its way");
                until("the bottom runs", || seen.load(SeqCst));
                let begun = Instant::now();
                match (end, wait(&top)) {
                    (End::Answer, Ok(answer)) => assert_eq!(number(&answer), 1),
                    (End::Deadline, Err(error)) => assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}"),
                    (End::Failure, Err(error)) => assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}"),
                    (_, outcome) => panic!("{end:?}: {outcome:?}"),
                }
                let bound = CHAIN_DEADLINE + Duration::from_secs(7);
                assert!(begun.elapsed() < bound, "{end:?}: {:?}", begun.elapsed());
            }
            if end == End::Failure {
                until("one is gone", || !mesh.is_member() || !mesh.deaths().is_empty());
            } else {
                mesh.world().barrier().expect("all are through");
            }
            let left = mesh.leave();
            assert!(left.is_ok() || mesh.me().rank == Rank(1), "{left:?}");
        };
        together(Expected::ranks(3), Transport::Shm, act);
    }
}

/// Mailboxes are told apart by the length of the method's name.
#[test]
fn a_mailbox_runs_one_handler_at_a_time_in_order_and_others_beside_it() {
    const EACH: i64 = 300;
    let notes: Arc<Mutex<HashMap<String, Vec<i64>>>> = Arc::default();
    let (seen, checked) = (Arc::clone(&notes), Arc::clone(&notes));
    let (running, most) = (Arc::new(Mutex::new(HashMap::new())), Arc::new(AtomicUsize::new(0)));
    let (begun, most_seen) = (Arc::clone(&running), Arc::clone(&most));
    let serve = move |mesh: &Mesh| {
        let (seen, begun, most) = (Arc::clone(&seen), Arc::clone(&begun), Arc::clone(&most_seen));
        let service = move |request: Request| {
            let Value::Int(number) = request.args else { return };
            {
                let mut begun = begun.lock().unwrap();
                assert!(begun.insert(request.method.clone(), ()).is_none(), "two of one mailbox");
                most.fetch_max(begun.len(), SeqCst);
            }
            seen.lock().unwrap().entry(request.method.clone()).or_default().push(number);
            if number == 0 {
                // Until both have begun: one mailbox does not wait for another.
                until("another mailbox runs", || most.load(SeqCst) > 1);
            }
            begun.lock().unwrap().remove(&request.method);
            request.reply.value(number);
        };
        mesh.serve("it", On(Lane::Serial, service)).expect("the name is free");
    };
    asked(Transport::Tcp, serve, |mesh| {
        let works: Vec<_> = (0..EACH)
            .flat_map(|number| ["a", "bb"].map(|method| send(mesh, "it", method, Value::Int(number))))
            .collect();
        works.iter().for_each(|work| assert!(number(&wait(work).expect("it answers")) >= 0));
    });
    let notes = checked.lock().unwrap();
    for method in ["a", "bb"] {
        assert!(notes[method].iter().copied().eq(0..EACH), "{method} in another order");
    }
    assert_eq!(most.load(SeqCst), 2);
}

/// A service whose handlers run alone for a while.
struct Patient<F>(Duration, F);

impl<F: Fn(Request) + Send + Sync + 'static> Service for Patient<F> {
    fn handle(&self, request: Request) {
        (self.1)(request);
    }

    fn patience(&self) -> Duration {
        self.0
    }
}

#[test]
fn a_lane_with_patience_runs_short_handlers_one_after_the_other() {
    for transport in TRANSPORTS {
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let most_seen = Arc::clone(&most);
        let serve = move |mesh: &Mesh| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most_seen));
            let short = move |request: Request| {
                most.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
                std::thread::yield_now();
                running.fetch_sub(1, SeqCst);
                request.reply.value(1);
            };
            mesh.serve("it", Patient(PATIENCE, short)).expect("the name is free");
        };
        asked(transport, serve, |mesh| {
            let works: Vec<_> = (0..500).map(|_| send(mesh, "it", "x", Value::None)).collect();
            assert!(works.iter().all(|work| number(&wait(work).expect("it answers")) == 1));
        });
        assert_eq!(most.load(SeqCst), 1, "handlers ran beside each other");
    }
}

/// Each handler takes until the last one begins, which so many permits allow.
#[test]
fn a_lane_with_patience_begins_beside_handlers_that_take_long() {
    for transport in TRANSPORTS {
        let begun = Arc::new(AtomicUsize::new(0));
        let serve = move |mesh: &Mesh| {
            let begun = Arc::clone(&begun);
            let long = move |request: Request| {
                begun.fetch_add(1, SeqCst);
                until("all have begun", || begun.load(SeqCst) >= limits::LANE_PERMITS);
                request.reply.value(1);
            };
            mesh.serve("it", Patient(Duration::from_millis(5), long)).expect("the name is free");
        };
        asked(transport, serve, |mesh| {
            let works: Vec<_> = (0..100).map(|_| send(mesh, "it", "x", Value::None)).collect();
            assert!(works.iter().all(|work| number(&wait(work).expect("it answers")) == 1));
        });
    }
}

/// A handler that waits makes room at once: its patience is longer than the test may take.
#[test]
fn a_lane_with_patience_begins_when_a_handler_waits() {
    together(Expected::ranks(2), Transport::Shm, |mesh| {
        let own = mesh.clone();
        let down = move |request: Request| {
            let Value::Int(depth) = request.args else { return };
            let answer = match depth {
                0 => Ok(0),
                _ => own
                    .call(request.from, "down", "x", Value::Int(depth - 1))
                    .and_then(|work| work.wait_timeout(PATIENCE))
                    .map(|answer| number(&answer) + 1),
            };
            request.reply.send(answer.map(|depth| (Value::Int(depth), smallvec![])));
        };
        mesh.serve("down", Patient(10 * PATIENCE, down)).expect("the name is free");
        mesh.world().barrier().expect("both are there");
        let works: Vec<_> = (0..20).map(|_| send(&mesh, "down", "x", Value::Int(20))).collect();
        assert!(works.iter().all(|work| number(&wait(work).expect("it answers")) == 20));
        mesh.world().barrier().expect("both are done");
        mesh.serve_no_more("down");
        mesh.finish().expect("all are well");
    });
}

/// Serves "it" on one thread at a time: "hold" holds it until `go`, everything else counts.
fn serve_gate(mesh: &Mesh, lane: Lane, go: &Arc<AtomicBool>, count: &Arc<AtomicUsize>) {
    let (go, count) = (Arc::clone(go), Arc::clone(count));
    let service = move |request: Request| {
        if request.method == "hold" {
            until("the sign", || go.load(SeqCst));
        } else {
            count.fetch_add(1, SeqCst);
        }
        request.reply.value(1);
    };
    mesh.serve("it", On(lane, service)).expect("the name is free");
    let fence = |request: Request| request.reply.value(2);
    mesh.serve("fence", On(Lane::Inline, fence)).expect("the name is free");
}

#[test]
fn f25_what_is_cancelled_or_late_before_it_begins_never_begins() {
    for (transport, lane) in [(Transport::Shm, Lane::Concurrent(1)), (Transport::Tcp, Lane::Serial)] {
        let (go, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (sign, begun) = (Arc::clone(&go), Arc::clone(&count));
        let serve = move |mesh: &Mesh| serve_gate(mesh, lane, &sign, &begun);
        let ran = Arc::clone(&count);
        asked(transport, serve, move |mesh| {
            // All of one mailbox, behind this one.
            let held = send(mesh, "it", "hold", Value::None);
            let cancelled: Vec<_> = (0..10).map(|_| send(mesh, "it", "four", Value::None)).collect();
            let late = || Call { deadline: Some(Duration::from_millis(30)), ..Call::default() };
            let lost: Vec<_> = (0..10).map(|_| send(mesh, "it", "four", late())).collect();
            let anyway: Vec<_> =
                (0..3).map(|_| send(mesh, "it", "four", Call { runs_anyway: true, ..late() })).collect();
            let (mut list, brief) = (ArgList::default(), late().deadline);
            list.push(&Value::Int(4)).expect("it is short");
            let listed = mesh.call_list(other(mesh), "it", "four", &mut list, brief).expect("it is sent");
            cancelled.iter().for_each(Work::cancel);
            for work in cancelled.iter() {
                assert_eq!(wait(work).expect_err("cancelled").kind(), ErrorKind::Cancelled);
            }
            for work in lost.iter().chain(&anyway).chain([&listed]) {
                assert_eq!(wait(work).expect_err("late").kind(), ErrorKind::DeadlineExceeded);
            }
            let last = send(mesh, "it", "four", Value::None);
            // The sign does not go over the link. Behind this answer the callee has heard all words.
            wait(&send(mesh, "fence", "x", Value::None)).expect("it answers");
            go.store(true, SeqCst);
            assert_eq!(number(&wait(&held).expect("it ends")), 1);
            assert_eq!(number(&wait(&last).expect("it ends")), 1);
            assert_eq!(ran.load(SeqCst), 5, "four that run anyway, and the last one");
        });
    }
}

#[test]
fn f25_a_handler_that_runs_knows_whether_it_is_still_wanted() {
    for transport in TRANSPORTS {
        let (begun, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (begins, sees) = (Arc::clone(&begun), Arc::clone(&seen));
        let serve = move |mesh: &Mesh| {
            let (begins, sees) = (Arc::clone(&begins), Arc::clone(&sees));
            let service = move |request: Request| {
                assert!(request.is_wanted(), "nobody has cancelled it");
                begins.fetch_add(1, SeqCst);
                until("it is not wanted", || !request.is_wanted());
                sees.fetch_add(1, SeqCst);
                request.reply.value(1);
            };
            mesh.serve("it", service).expect("the name is free");
        };
        asked(transport, serve, move |mesh| {
            let work = send(mesh, "it", "x", Value::None);
            until("it runs", || begun.load(SeqCst) == 1);
            work.cancel();
            until("it has seen it", || seen.load(SeqCst) == 1);
            let at = Instant::now();
            let late = Call { deadline: Some(Duration::from_millis(50)), ..Call::default() };
            // The answer of a handler that has seen it may come before the caller's own clock is looked at.
            let _ = wait(&send(mesh, "it", "x", late));
            until("it has seen it", || seen.load(SeqCst) == 2);
            assert!(at.elapsed() >= Duration::from_millis(50));
        });
    }
}

/// More than are let in at a time, and each handler needs an answer that comes over the same link.
#[test]
fn f19_calls_back_get_through_however_many_requests_wait() {
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            let own = mesh.clone();
            let asks_back = move |request: Request| {
                let answer =
                    own.call(request.from, "back", "x", Value::None).and_then(|work| work.wait_timeout(PATIENCE));
                request.reply.send(answer.map(|answer| (answer.value, smallvec![])));
            };
            mesh.serve("there", asks_back).expect("the name is free");
            mesh.serve("back", |request: Request| request.reply.value(7)).expect("the name is free");
            mesh.world().barrier().expect("both are there");
            // From both sides at once.
            let works: Vec<_> =
                (0..limits::REQUESTS_PENDING_MAX + 2000).map(|_| send(&mesh, "there", "x", Value::None)).collect();
            assert!(works.iter().all(|work| number(&wait(work).expect("it comes back")) == 7));
            mesh.world().barrier().expect("both are done");
            mesh.serve_no_more("there");
            mesh.finish().expect("all are well");
        });
    }
}

/// Whoever comes while a request is on its way out leaves its own to whoever sends that, also if it cannot be sent.
#[test]
fn a_request_that_cannot_be_sent_leaves_none_behind() {
    let serve = |mesh: &Mesh| {
        mesh.serve("it", |request: Request| request.reply.value(1)).expect("the name is free");
    };
    asked(Transport::Shm, serve, |mesh| {
        let (own, is_over) = (mesh.clone(), Arc::new(AtomicBool::new(false)));
        let stop = Arc::clone(&is_over);
        let refused = std::thread::spawn(move || {
            let tensor = Tensor::from_slice(&[1_u8], [1]).expect("it fits");
            while !stop.load(SeqCst) {
                let tensors = smallvec![Part::new(tensor.clone(), Mode::Move)];
                let call = own.call(other(&own), "it", "x", Call { tensors, ..Call::default() });
                assert_eq!(call.expect_err("it has other handles").kind(), ErrorKind::BufferInUse);
            }
        });
        for _ in 0..5000 {
            wait(&send(mesh, "it", "x", Value::None)).expect("it is answered");
        }
        is_over.store(true, SeqCst);
        refused.join().expect("no panic");
    });
}

/// What waits for room has been taken over: its caller may change it, and leave.
#[test]
fn what_waits_for_room_is_as_it_was_and_comes_before_the_leave() {
    const REQUESTS: usize = 60;
    const ELEMENTS: usize = 4 << 20;
    let sums: Arc<Mutex<Vec<i64>>> = Arc::default();
    for transport in TRANSPORTS {
        let (notes, go) = (Arc::clone(&sums), Arc::new(AtomicBool::new(false)));
        notes.lock().unwrap().clear();
        together(Expected::ranks(2), transport, move |mesh| {
            let (seen, sign) = (Arc::clone(&notes), Arc::clone(&go));
            if mesh.me().rank == Rank(1) {
                let note = move |request: Request| {
                    until("all are sent", || sign.load(SeqCst));
                    let first = request.tensors[0].as_slice::<i32>().expect("numbers")[0];
                    seen.lock().unwrap().push(first.into());
                    request.reply.value(1);
                };
                mesh.serve("it", On(Lane::Serial, note)).expect("the name is free");
                mesh.world().barrier().expect("both are there");
                until("all have come", || notes.lock().unwrap().len() == REQUESTS);
                let _ = mesh.until_gone(|member| member.rank != Rank(1));
                return mesh.leave().expect("alone");
            }
            mesh.world().barrier().expect("both are there");
            let mut tensor = Tensor::from_slice(&vec![0i32; ELEMENTS], [ELEMENTS as u64]).expect("it fits");
            for number in 0..REQUESTS {
                tensor.as_mut_slice::<i32>().expect("nobody holds it")[0] = i32::try_from(number).expect("small");
                let tensors = smallvec![Part::new(tensor.clone(), Mode::Copy)];
                drop(send(&mesh, "it", "x", Call { tensors, ..Call::default() }));
            }
            go.store(true, SeqCst);
            mesh.leave().expect("the other one agrees");
        });
        assert!(sums.lock().unwrap().iter().copied().eq(0..REQUESTS as i64), "{:?}", sums.lock().unwrap());
    }
}
