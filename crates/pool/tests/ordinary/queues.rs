//! Queues among nodes of one process, over real links.

use crate::common::{PATIENCE, attach, failed, host, together, until};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, NodeId, Result};
use sheave_mesh::{Expected, Mesh, Request};
use sheave_net::{Part, Parts};
use sheave_pool::{Packet, Put, Queue};
use sheave_tensor::{Mode, Tensor};
use sheave_wire::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const TRANSPORTS: [Transport; 3] = [Transport::Auto, Transport::Shm, Transport::Tcp];
const LONG: Option<Duration> = Some(PATIENCE);
const SHORT: Option<Duration> = Some(Duration::from_millis(50));

fn packet(number: i64) -> Packet {
    Packet::new(&Value::Int(number), Default::default()).expect("it is short")
}

fn put(queue: &Queue, number: i64) {
    queue.put(packet(number), LONG, None).expect("there is room");
}

fn number(packet: &Packet) -> i64 {
    match packet.value() {
        Ok(Value::Int(number)) => number,
        other => panic!("{other:?}"),
    }
}

fn taken(queue: &Queue) -> Result<i64> {
    queue.get(LONG, None).map(|item| number(&item))
}

fn home(mesh: &Mesh) -> NodeId {
    mesh.members()[0].node
}

/// The queue of rank 0, at all ranks.
fn queue(mesh: &Mesh, capacity: Option<usize>) -> Queue {
    let own = (mesh.me().rank.0 == 0).then(|| Queue::new(mesh, "jobs", capacity).expect("the name is free"));
    mesh.world().barrier().expect("all are there");
    own.unwrap_or_else(|| Queue::attach(mesh, home(mesh), "jobs", None).expect("it is there"))
}

#[test]
fn items_come_in_their_order() {
    const COUNT: i64 = 2_000;
    for transport in TRANSPORTS {
        for puts in [0, 1] {
            together(Expected::ranks(2), transport, move |mesh| {
                let queue = queue(&mesh, None);
                if mesh.me().rank.0 == puts {
                    (0..COUNT).for_each(|number| put(&queue, number));
                } else {
                    (0..COUNT).for_each(|number| assert_eq!(taken(&queue).expect("it comes"), number));
                    assert!(queue.is_empty().expect("the home is there"));
                }
                mesh.finish().expect("all end");
            });
        }
    }
}

#[test]
fn each_item_is_taken_once() {
    const COUNT: i64 = 600;
    for transport in TRANSPORTS {
        together(Expected::ranks(4), transport, move |mesh| {
            let (queue, rank) = (queue(&mesh, None), i64::from(mesh.me().rank.0));
            let sums = match rank {
                0 => Some(Queue::new(&mesh, "sums", None).expect("the name is free")),
                _ => None,
            };
            mesh.world().barrier().expect("all are there");
            let sums = sums.unwrap_or_else(|| Queue::attach(&mesh, home(&mesh), "sums", None).expect("it is there"));
            // All of them put, and all take.
            (0..COUNT).for_each(|number| put(&queue, COUNT * rank + number));
            // An end has the answer of the home behind all that it has put.
            queue.len().expect("the home is there");
            mesh.world().barrier().expect("all have put");
            if rank == 0 {
                queue.close();
            }
            let (mut sum, mut count) = (0, 0);
            let error = loop {
                match queue.get(LONG, None) {
                    Ok(item) => (sum, count) = (sum + number(&item), count + 1),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            put(&sums, sum);
            put(&sums, -count);
            if rank == 0 {
                let told: Vec<i64> = (0..8).map(|_| taken(&sums).expect("all tell")).collect();
                let total = 4 * COUNT;
                assert_eq!(told.iter().sum::<i64>(), total * (total - 1) / 2 - total, "{transport:?}: {told:?}");
            }
            mesh.finish().expect("all end");
        });
    }
}

#[test]
fn tensors_travel_and_are_captured() {
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            let queue = queue(&mesh, None);
            let answers = Queue::new(&mesh, "answers", None).expect("the name is free");
            mesh.world().barrier().expect("all are there");
            let other = mesh.members()[1 - mesh.me().rank.0 as usize].node;
            let others = Queue::attach(&mesh, other, "answers", None).expect("it is there");
            for elements in [1_u64, 1 << 10, 1 << 20] {
                let tensor = Tensor::from_slice(&vec![1.0_f32; elements as usize], [elements]).expect("memory");
                let parts: Parts = [Part::new(tensor.clone(), Mode::Copy)].into_iter().collect();
                let packet = others.packet(&Value::Tensor(0), parts).expect("memory");
                tensor.overwrite(&vec![0; 4 * elements as usize], "test").expect("it is captured");
                others.put(packet, LONG, None).expect("there is room");
                let item = answers.get(LONG, None).expect("it comes");
                let sum: f32 = item.tensors()[0].to_vec::<f32>().expect("floats").iter().sum();
                assert_eq!(sum, elements as f32);
            }
            drop(queue);
            mesh.finish().expect("all end");
        });
    }
}

#[test]
fn a_capacity_is_kept() {
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            let queue = queue(&mesh, Some(2));
            if mesh.me().rank.0 == 1 {
                put(&queue, 0);
                put(&queue, 1);
                let began = Instant::now();
                let error = failed(queue.put(packet(2), SHORT, None));
                assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
                assert!(error.to_string().contains("no room in queue jobs"), "{error}");
                assert!(began.elapsed() < Duration::from_secs(5));
                mesh.world().barrier().expect("it is full");
                // Waits until the other side takes one.
                put(&queue, 3);
                mesh.world().barrier().expect("both have seen it");
            } else {
                mesh.world().barrier().expect("it is full");
                assert_eq!(queue.len().expect("it is here"), 2, "what was withdrawn is not there");
                let error = failed(queue.put(packet(9), SHORT, None));
                assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
                assert_eq!(taken(&queue).expect("it is there"), 0);
                mesh.world().barrier().expect("both have seen it");
                assert_eq!([1, 3].map(|_| taken(&queue).expect("it is there")), [1, 3]);
                assert!(queue.is_empty().expect("it is here"));
            }
            mesh.finish().expect("all end");
        });
    }
}

/// Who is interrupted has taken nothing, whatever comes in that moment.
#[test]
fn what_comes_while_a_get_is_interrupted_is_taken_by_the_next() {
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            let queue = queue(&mesh, None);
            if mesh.me().rank.0 == 1 {
                let mut interrupt = || {
                    put(&queue, 7);
                    Err(sheave_base::Error::new(ErrorKind::Interrupted, "enough"))
                };
                assert_eq!(failed(queue.get(None, Some(&mut interrupt))).kind(), ErrorKind::Interrupted);
                assert_eq!(taken(&queue).expect("it is there"), 7);
            }
            mesh.finish().expect("all end");
        });
    }
}

/// Whoever waits for room has it as soon as something was taken, also by an end that does not come back.
#[test]
fn what_an_end_takes_leaves_room() {
    for transport in TRANSPORTS {
        for capacity in [2, 9] {
            together(Expected::ranks(3), transport, move |mesh| {
                let (queue, rank) = (queue(&mesh, Some(capacity)), mesh.me().rank.0);
                if rank == 0 {
                    (0..capacity as i64).for_each(|number| put(&queue, number));
                }
                mesh.world().barrier().expect("it is full");
                if rank == 1 {
                    (0..2).for_each(|number| assert_eq!(taken(&queue).expect("it is there"), number));
                } else {
                    put(&queue, 100);
                }
                mesh.world().barrier().expect("both have put theirs");
                assert_eq!(queue.len().expect("the home is there"), capacity);
                mesh.finish().expect("all end");
            });
        }
    }
}

#[test]
fn who_does_not_wait_hears_whether_there_is_room_or_an_item() {
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            let (bounded, rank) = (queue(&mesh, Some(1)), mesh.me().rank.0);
            if rank == 1 {
                assert!(bounded.is_strict());
                assert!(bounded.get_now(None).expect("it is open").is_none());
                let put = |number| bounded.put_now(packet(number), None).expect("it is open");
                assert_eq!((put(7), put(8)), (true, false));
                assert_eq!(bounded.get_now(None).expect("it is open").map(|item| number(&item)), Some(7));
                assert!(put(9));
                mesh.world().barrier().expect("both are there");
                mesh.world().barrier().expect("the other has taken it");
                assert!(bounded.get_now(None).expect("it is open").is_none());
                bounded.close();
                assert_eq!(failed(bounded.put_now(packet(1), None)).kind(), ErrorKind::Closed);
            } else {
                assert!(!bounded.is_strict());
                mesh.world().barrier().expect("the other has put one");
                assert!(!bounded.put_now(packet(1), None).expect("it is open"));
                assert_eq!(bounded.get_now(None).expect("it is open").map(|item| number(&item)), Some(9));
                assert!(bounded.get_now(None).expect("it is open").is_none());
                mesh.world().barrier().expect("both are there");
            }
            mesh.finish().expect("all end");
        });
    }
}

#[test]
fn very_many_items_wait_at_their_putter() {
    const COUNT: i64 = 3 * (1 << 16);
    for puts in [0, 1] {
        together(Expected::ranks(2), Transport::Shm, move |mesh| {
            let queue = queue(&mesh, None);
            if mesh.me().rank.0 == puts {
                (0..COUNT).for_each(|number| put(&queue, number));
            } else {
                for number in 0..COUNT {
                    assert_eq!(taken(&queue).expect("it comes"), number);
                    if number % 1_000 == 0 {
                        let there = queue.len().expect("the home is there");
                        assert!(there < 2 << 16, "{there} items were there at a time");
                    }
                }
            }
            mesh.finish().expect("all end");
        });
    }
}

#[test]
fn who_waits_for_room_gets_it_when_others_take() {
    for transport in TRANSPORTS {
        for puts in [0, 1, 2] {
            together(Expected::ranks(3), transport, move |mesh| {
                let queue = queue(&mesh, Some(3));
                if mesh.me().rank.0 == puts {
                    // The last ones tell each of the others that there are no more.
                    (0..202).for_each(|number| put(&queue, number));
                    mesh.world().barrier().expect("all were taken");
                } else {
                    let mut last = -1;
                    while last < 200 {
                        let number = taken(&queue).expect("it comes");
                        assert!(number > last, "each taker sees them in their order");
                        last = number;
                    }
                    mesh.world().barrier().expect("all were taken");
                }
                assert!(queue.is_empty().expect("the home is there"));
                mesh.finish().expect("all end");
            });
        }
    }
}

#[test]
fn a_get_ends_after_its_time_and_leaves_nothing_behind() {
    for transport in TRANSPORTS {
        together(Expected::ranks(3), transport, |mesh| {
            let queue = queue(&mesh, None);
            if mesh.me().rank.0 > 0 {
                let error = failed(queue.get(SHORT, None));
                assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
                assert!(error.to_string().contains("nothing came in queue jobs"), "{error}");
                let mut asked = 0;
                let mut interrupt = || {
                    asked += 1;
                    if asked > 2 { Err(sheave_base::Error::new(ErrorKind::Interrupted, "enough")) } else { Ok(()) }
                };
                assert_eq!(failed(queue.get(None, Some(&mut interrupt))).kind(), ErrorKind::Interrupted);
                // Answered behind the word that it has given up, which a barrier may overtake.
                assert_eq!(queue.len().expect("its home is there"), 0);
            }
            mesh.world().barrier().expect("both have given up");
            match mesh.me().rank.0 {
                0 => (0..3).for_each(|number| put(&queue, number)),
                // Rank 2 asks for nothing more: what comes is not kept for it.
                1 => (0..3).for_each(|number| assert_eq!(taken(&queue).expect("it comes"), number)),
                _ => {}
            }
            mesh.finish().expect("all end");
        });
    }
}

/// Threads of one end wait and give up, each in its own time.
#[test]
fn threads_of_one_end_take_beside_each_other() {
    const COUNT: i64 = 4_000;
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            let queue = queue(&mesh, None);
            if mesh.me().rank.0 == 0 {
                for number in 0..COUNT {
                    put(&queue, number);
                    if number % 16 == 0 {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                }
                mesh.world().barrier().expect("all was taken");
                assert_eq!(queue.len().expect("it is here"), 0);
            } else {
                let left = std::sync::atomic::AtomicI64::new(COUNT);
                let begun = Instant::now();
                let (left, queue) = (&left, &queue);
                let take = move |wait: Duration| {
                    let mut sum = 0;
                    while left.load(std::sync::atomic::Ordering::SeqCst) > 0 {
                        assert!(begun.elapsed() < PATIENCE, "{left:?} have not come");
                        if let Ok(item) = queue.get(Some(wait), None) {
                            left.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                            sum += number(&item);
                        }
                    }
                    sum
                };
                let waits = [0, 20, 100, 1_000].map(Duration::from_micros);
                let sum: i64 = std::thread::scope(|scope| {
                    let threads = waits.map(|wait| scope.spawn(move || take(wait)));
                    threads.map(|thread| thread.join().expect("no panic")).into_iter().sum()
                });
                assert_eq!(sum, COUNT * (COUNT - 1) / 2);
                mesh.world().barrier().expect("all was taken");
            }
            mesh.finish().expect("all end");
        });
    }
}

/// Who has been given many items, and is busy with one, keeps the others from nobody.
#[test]
fn what_lies_with_a_busy_end_goes_to_others() {
    for transport in TRANSPORTS {
        together(Expected::ranks(3), transport, |mesh| {
            let (queue, rank) = (queue(&mesh, None), mesh.me().rank.0);
            if rank == 1 {
                // Learns that items come in numbers, and has some ahead in the end.
                (0..200).for_each(|number| assert_eq!(taken(&queue).expect("it comes"), number));
            } else if rank == 0 {
                (0..220).for_each(|number| put(&queue, number));
            }
            mesh.world().barrier().expect("rank 1 is busy");
            if rank == 2 {
                let rest: Vec<i64> = (0..20).map(|_| taken(&queue).expect("rank 1 takes none")).collect();
                let mut sorted = rest.clone();
                sorted.sort_unstable();
                assert!(sorted.iter().copied().eq(200..220), "{rest:?}");
            }
            mesh.world().barrier().expect("all were taken");
            if rank == 0 {
                assert_eq!(queue.len().expect("it is here"), 0);
                put(&queue, 500);
            } else if rank == 1 {
                assert_eq!(taken(&queue).expect("it goes on"), 500);
            }
            mesh.finish().expect("all end");
        });
    }
}

#[test]
fn a_closed_queue_is_emptied_and_then_says_so() {
    for transport in TRANSPORTS {
        together(Expected::ranks(3), transport, |mesh| {
            let (queue, rank) = (queue(&mesh, None), mesh.me().rank.0);
            if rank == 0 {
                (0..300).for_each(|number| put(&queue, number));
                queue.close();
                queue.close();
                assert_eq!(failed(queue.put(packet(1), LONG, None)).kind(), ErrorKind::Closed);
            }
            let mut count = 0;
            let error = loop {
                match taken(&queue) {
                    Ok(_) => count += 1,
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            assert!(error.to_string().contains("queue jobs was closed"), "{error}");
            if rank > 0 {
                assert_eq!(failed(queue.put(packet(1), LONG, None)).kind(), ErrorKind::Closed);
            }
            let all = Queue::attach(&mesh, home(&mesh), "counts", None);
            assert!(all.is_err(), "there is no such queue, {count}");
            mesh.finish().expect("all end");
        });
    }
}

/// An item that has come for somebody who gives up goes to whoever waits, who is not told that there is nothing.
#[test]
fn what_comes_for_one_who_gives_up_is_taken_by_others_though_the_queue_is_closed() {
    for (transport, capacity) in TRANSPORTS.into_iter().flat_map(|transport| [(transport, None), (transport, Some(3))])
    {
        for taker in [0, 2] {
            together(Expected::ranks(3), transport, move |mesh| {
                let (queue, rank) = (queue(&mesh, capacity), mesh.me().rank.0);
                let waits = (rank == 1).then(|| queue.available().expect("the home is there"));
                queue.len().expect("the home is there");
                mesh.world().barrier().expect("rank 1 waits");
                if rank == 0 {
                    put(&queue, 7);
                    queue.close();
                }
                if let Some(waits) = waits {
                    waits.wait_timeout(PATIENCE).expect("it has come");
                    mesh.world().barrier().expect("the item is with rank 1");
                    queue.give_up();
                } else {
                    mesh.world().barrier().expect("the item is with rank 1");
                }
                if rank == taker {
                    assert_eq!(taken(&queue).expect("it is given back"), 7);
                }
                mesh.world().barrier().expect("it was taken");
                assert_eq!(failed(taken(&queue)).kind(), ErrorKind::Closed);
                mesh.finish().expect("all end");
            });
        }
    }
}

#[test]
fn a_closed_end_gives_back_what_it_has() {
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            let queue = queue(&mesh, None);
            if mesh.me().rank.0 == 0 {
                (0..100).for_each(|number| put(&queue, number));
                mesh.world().barrier().expect("the other has some");
                mesh.world().barrier().expect("it has gone");
                (30..100).for_each(|number| assert_eq!(taken(&queue).expect("it is back"), number));
                assert_eq!(queue.lost().expect("it is here").0, 0);
            } else {
                mesh.world().barrier().expect("it is full");
                (0..30).for_each(|number| assert_eq!(taken(&queue).expect("it comes"), number));
                let error = failed(queue.lost());
                assert!(error.to_string().contains("known to its home alone"), "{error}");
                queue.close();
                assert_eq!(failed(queue.try_get()).kind(), ErrorKind::Closed);
                assert_eq!(failed(queue.put(packet(1), LONG, None)).kind(), ErrorKind::Closed);
                // Answered behind the word that it has gone, which a barrier may overtake.
                queue.len().expect("the home is there");
                mesh.world().barrier().expect("both are there");
            }
            mesh.finish().expect("all end");
        });
    }
}

#[test]
fn guests_are_refused_that_the_home_does_not_trust() {
    let mesh = host(Transport::Shm);
    let (_programs, _plain) = (Queue::of_trusted(&mesh, "programs", None), Queue::new(&mesh, "plain", None));
    let (guest, _) = attach(&mesh, Transport::Shm);
    let error = failed(Queue::attach_guest(&guest, "programs", None));
    assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
    put(&Queue::attach_guest(&guest, "plain", None).expect("it is for all"), 1);
    guest.leave().expect("its host is there");
}

#[test]
fn what_makes_no_sense_is_refused() {
    together(Expected::ranks(2), Transport::Auto, |mesh| {
        let refused = |made: Result<Queue>, kind| assert_eq!(failed(made).kind(), kind);
        refused(Queue::new(&mesh, "none", Some(0)), ErrorKind::InvalidArgument);
        let queue = Queue::new(&mesh, "own", None).expect("the name is free");
        refused(Queue::new(&mesh, "own", None), ErrorKind::AlreadyExists);
        refused(Queue::attach(&mesh, mesh.me().node, "own", None), ErrorKind::InvalidArgument);
        mesh.world().barrier().expect("both are there");
        let other = mesh.members()[1 - mesh.me().rank.0 as usize].node;
        refused(Queue::attach(&mesh, other, "unknown", None), ErrorKind::NotFound);
        let text = Value::from("x".repeat(sheave_base::limits::CONTROL_BYTES_MAX));
        assert_eq!(failed(Packet::new(&text, Default::default())).kind(), ErrorKind::LimitExceeded);
        let long =
            Packet::new(&Value::from("x".repeat(sheave_base::limits::CONTROL_BYTES_MAX * 3 / 4)), Default::default());
        if let Ok(long) = long {
            assert_eq!(failed(queue.put(long, LONG, None)).kind(), ErrorKind::InvalidArgument);
        }
        mesh.world().barrier().expect("both are there");
        drop(queue);
        mesh.finish().expect("all end");
    });
}

/// The handle at home is the queue.
#[test]
fn a_queue_ends_with_its_home() {
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            let queue = queue(&mesh, None);
            if mesh.me().rank.0 == 0 {
                put(&queue, 1);
                mesh.world().barrier().expect("it was taken");
                drop(queue);
            } else {
                assert_eq!(taken(&queue).expect("it is there"), 1);
                mesh.world().barrier().expect("it was taken");
                let error = failed(taken(&queue));
                assert_eq!(error.kind(), ErrorKind::Closed);
                assert!(error.to_string().contains("its home has dropped it"), "{error}");
            }
            mesh.finish().expect("all end");
        });
    }
}

#[test]
fn works_wake_who_waits() {
    together(Expected::ranks(2), Transport::Shm, |mesh| {
        let queue = queue(&mesh, Some(1));
        if mesh.me().rank.0 == 0 {
            let available = queue.available().expect("the node is there");
            mesh.world().barrier().expect("both are there");
            available.wait_timeout(PATIENCE).expect("one comes");
            let room = queue.room(&packet(2)).expect("the node is there");
            let refused = queue.try_put(packet(2)).expect("it is open");
            assert!(!room.is_done() && matches!(refused, Put::Refused(_)));
            assert_eq!(queue.try_get().expect("it is open").map(|item| (item.number(), number(&item))), Some((0, 1)));
            room.wait_timeout(PATIENCE).expect("there is room");
            mesh.world().barrier().expect("both are there");
        } else {
            mesh.world().barrier().expect("both are there");
            let Put::Begun(put) = queue.try_put(packet(1)).expect("it is open") else { panic!("it waits there") };
            put.wait_timeout(PATIENCE).expect("it is in");
            mesh.world().barrier().expect("both are there");
            assert!(queue.try_get().expect("it is open").is_none());
        }
        mesh.finish().expect("all end");
    });
}

/// A word of the home's to an end is not sent, because an earlier one has failed.
#[test]
fn an_end_hears_that_its_home_is_full_though_a_word_of_that_was_lost() {
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            let own = (mesh.me().rank.0 == 0).then(|| Queue::new(&mesh, "jobs", None).expect("the name is free"));
            if let Some(queue) = &own {
                while let Put::Begun(_) = queue.try_put(packet(0)).expect("it is open") {}
                let (end, service) = (mesh.members()[1].node, "sheave.queue.end.0");
                mesh.cast(end, service, "state", Value::None).expect("it is on its way");
                let answer = mesh.call(end, service, "state", Value::None).and_then(|work| work.wait());
                assert_eq!(failed(answer).kind(), ErrorKind::NotFound, "the end is not there yet");
            }
            mesh.world().barrier().expect("the queue is full");
            if let Some(queue) = own {
                mesh.world().barrier().expect("the other one waits");
                while queue.get_now(None).expect("it is open").is_some() {}
                mesh.world().barrier().expect("there was room");
            } else {
                let queue = Queue::attach(&mesh, home(&mesh), "jobs", None).expect("it is there");
                let room = || queue.room(&packet(1)).expect("the node is there");
                until("it hears that there is none", || !room().is_done());
                let waits = room();
                assert_eq!(failed(waits.wait_timeout(SHORT.unwrap_or_default())).kind(), ErrorKind::DeadlineExceeded);
                assert!(matches!(queue.try_put(packet(1)).expect("it is open"), Put::Refused(_)));
                mesh.world().barrier().expect("both are there");
                waits.wait_timeout(PATIENCE).expect("the other one takes all");
                mesh.world().barrier().expect("both are there");
            }
            mesh.finish().expect("all end");
        });
    }
}

/// A home that answers when nobody waits for it any more.
#[test]
fn an_end_that_is_interrupted_while_it_attaches_says_that_it_is_not_there() {
    for (transport, late) in TRANSPORTS.into_iter().flat_map(|transport| [(transport, "attach"), (transport, "enter")])
    {
        let has_come = Arc::new(AtomicBool::new(false));
        together(Expected::ranks(2), transport, move |mesh| {
            if mesh.me().rank.0 == 0 {
                let (heard, requests) = channel();
                mesh.serve("sheave.queue.jobs", move |request: Request| _ = heard.send(request)).expect("once");
                mesh.world().barrier().expect("both are there");
                loop {
                    let Request { method, args, reply, .. } = requests.recv_timeout(PATIENCE).expect("it says so");
                    if method.as_str() == late {
                        has_come.store(true, SeqCst);
                        mesh.world().barrier().expect("it was interrupted");
                    }
                    match method.as_str() {
                        "attach" => reply.value(Value::List(vec![Value::Int(7), Value::Bool(false), Value::None])),
                        "enter" => reply.value(Value::Bool(false)),
                        method => {
                            let expected = Value::List(vec![Value::Int(7), Value::Int(0), Value::Int(0)]);
                            assert_eq!((method, args), ("detach", expected));
                            break;
                        }
                    }
                }
            } else {
                mesh.world().barrier().expect("both are there");
                let mut interrupt = || match has_come.load(SeqCst) {
                    true => Err(sheave_base::Error::new(ErrorKind::Interrupted, "enough")),
                    false => Ok(()),
                };
                let attached = Queue::attach(&mesh, home(&mesh), "jobs", Some(&mut interrupt));
                assert_eq!(failed(attached).kind(), ErrorKind::Interrupted);
                mesh.world().barrier().expect("both are there");
            }
            mesh.finish().expect("all end");
        });
    }
}
