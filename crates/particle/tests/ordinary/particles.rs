//! Particles of nodes of one process: order, waits, circles, errors, and what becomes of them.

use crate::common::{PATIENCE, failed, together, until};
use sheave_base::config::Transport;
use sheave_base::work::pair;
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::{Expected, Mesh};
use sheave_particle::{Answer, Behavior, Context, Message, ParticleId, Particles};
use sheave_tensor::Tensor;
use sheave_wire::Value;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::time::Duration;

/// How handlers run: as futures, or on threads that may block.
const KINDS: [Kind; 2] = [Kind::Task, Kind::Blocking];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Task,
    Blocking,
}

/// A handler that sends a message on and returns the answer, or returns its own.
type Next = fn(&Context, &Message) -> Option<(ParticleId, &'static str, Message)>;

/// A behaviour that passes messages of this name on as `next` says; answers them itself where it says nothing.
fn passes(behavior: Behavior, kind: Kind, name: &str, next: Next) -> Behavior {
    match kind {
        Kind::Task => behavior.on(name, move |context, message| async move {
            match next(&context, &message) {
                Some((to, name, message)) => context.send(to, name, message).await,
                None => Ok(message),
            }
        }),
        Kind::Blocking => behavior.on_blocking(name, move |context, message| match next(context, &message) {
            Some((to, name, message)) => context.send(to, name, message).wait(),
            None => Ok(message),
        }),
    }
}

fn alone(act: impl Fn(Mesh, Particles) + Clone + Send + 'static) {
    together(Expected::ranks(1), Transport::Auto, move |mesh| {
        let particles = Particles::new(&mesh, "test").expect("once");
        act(mesh.clone(), particles);
        mesh.finish().expect("all end");
    });
}

fn answered(answer: &Answer) -> Result<Value> {
    answer.wait_timeout(PATIENCE).map(|message| message.value)
}

fn int(value: &Value) -> i64 {
    let Value::Int(number) = value else { panic!("{value:?}") };
    *number
}

/// Particles that know each other, set when all are made.
type Known = Arc<OnceLock<Vec<ParticleId>>>;

fn known(context: &Context) -> Result<&Vec<ParticleId>> {
    context.state::<Known>()?.get().ok_or_else(|| Error::new(ErrorKind::NotFound, "not yet"))
}

/// As many particles as this, each of which knows all.
fn circle(particles: &Particles, count: usize, make: impl Fn(Behavior) -> Behavior) -> Vec<ParticleId> {
    let all = Known::default();
    let ids: Vec<_> =
        (0..count).map(|_| particles.create(make(Behavior::new(Arc::clone(&all)))).expect("there is room")).collect();
    all.set(ids.clone()).expect("once");
    ids
}

/// The next particle of a circle, while the number that is passed on is not 0.
fn on(context: &Context, message: &Message) -> Option<(ParticleId, &'static str, Message)> {
    let (left, ids) = (int(&message.value), known(context).expect("all are made"));
    let at = ids.iter().position(|id| *id == context.id()).expect("it is one of them");
    (left > 0).then(|| (ids[(at + 1) % ids.len()], "pass", Message::from(left - 1)))
}

#[test]
fn messages_of_one_sender_are_handled_in_their_order() {
    for kind in KINDS {
        alone(move |_, particles| {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let note = {
                let seen = Arc::clone(&seen);
                move |message: Message| {
                    seen.lock().expect("no panics").push(int(&message.value));
                    Ok(message)
                }
            };
            let behavior = match kind {
                Kind::Task => Behavior::new(()).on("note", move |_, message| std::future::ready(note(message))),
                Kind::Blocking => Behavior::new(()).on_blocking("note", move |_, message| note(message)),
            };
            let id = particles.create(behavior).expect("there is room");
            let answers: Vec<_> = (0..2000_i64).map(|number| particles.send(id, "note", number)).collect();
            let heard: Vec<i64> = answers.iter().map(|answer| int(&answered(answer).expect("handled"))).collect();
            assert_eq!(heard, (0..2000).collect::<Vec<_>>());
            assert_eq!(*seen.lock().expect("no panics"), heard);
            assert_eq!(int(&answered(&answers[7]).expect("again and again")), 7);
        });
    }
}

#[test]
fn a_message_that_nobody_waits_for_is_handled() {
    for kind in KINDS {
        alone(move |_, particles| {
            let (done, heard) = channel();
            let done = Mutex::new(done);
            let tell = move |message: Message| {
                done.lock().expect("no panics").send(message.value.clone()).expect("somebody listens");
                Ok(message)
            };
            let behavior = match kind {
                Kind::Task => Behavior::new(()).on("tell", move |_, message| std::future::ready(tell(message))),
                Kind::Blocking => Behavior::new(()).on_blocking("tell", move |_, message| tell(message)),
            };
            let id = particles.create(behavior).expect("there is room");
            for number in 0..20_i64 {
                drop(particles.send(id, "tell", number));
                assert_eq!(heard.recv_timeout(PATIENCE).expect("it is handled"), Value::Int(number));
            }
        });
    }
}

#[test]
fn a_thousand_particles_wait_for_each_other_in_a_row() {
    for kind in KINDS {
        alone(move |_, particles| {
            let ids = circle(&particles, 1000, |behavior| passes(behavior, kind, "pass", on));
            for _ in 0..3 {
                assert_eq!(answered(&particles.send(ids[0], "pass", 999)).expect("it goes round once"), Value::Int(0));
                assert_eq!(particles.send(ids[500], "pass", 999).wait().expect("from anywhere").value, Value::Int(0));
            }
            let error = failed(answered(&particles.send(ids[0], "pass", 1000)));
            assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
            // Whoever closes the circle is told: that need not be the last.
            assert!(error.to_string().contains("which waits for 991 others, which waits for particle "), "{error}");
            assert_eq!(answered(&particles.send(ids[999], "pass", 5)).expect("all go on"), Value::Int(0));
            until("no wait is left", || particles.waiting() == 0);
        });
    }
}

#[test]
fn a_circle_of_two_is_an_error_that_names_them() {
    for kind in KINDS {
        alone(move |_, particles| {
            let ids = circle(&particles, 2, |behavior| passes(behavior, kind, "pass", on));
            let error = failed(answered(&particles.send(ids[0], "pass", 2)));
            assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
            let what = |one, other| {
                format!(
                    "particle {one} (\"pass\") waits for particle {other} (\"pass\"), which waits for particle {one}"
                )
            };
            let text = error.to_string();
            assert!(text.contains(&what(1, 0)) || text.contains(&what(0, 1)), "{error}");
            let own = circle(&particles, 1, |behavior| passes(behavior, kind, "pass", on));
            let error = failed(answered(&particles.send(own[0], "pass", 1)));
            assert!(
                error.to_string().contains("particle 2 (\"pass\") waits for particle 2, which it keeps itself"),
                "{error}"
            );
        });
    }
}

#[test]
fn re_entrant_particles_wait_for_themselves() {
    for kind in KINDS {
        alone(move |_, particles| {
            let ids = circle(&particles, 3, |behavior| passes(behavior.reentrant(), kind, "pass", on));
            assert_eq!(answered(&particles.send(ids[0], "pass", 100)).expect("round and round"), Value::Int(0));
            assert_eq!(particles.send(ids[2], "pass", 100).wait().expect("round and round").value, Value::Int(0));
        });
    }
}

#[test]
fn a_circle_that_closes_between_threads_is_found() {
    alone(|_, particles| {
        for _ in 0..50 {
            let both = Arc::new(Barrier::new(2));
            let handle = move |context: &Context, message: Message| {
                if message.value == Value::None {
                    return Ok(message);
                }
                both.wait();
                let ids = known(context)?;
                let other = if ids[0] == context.id() { ids[1] } else { ids[0] };
                context.send(other, "meet", Value::None).wait()
            };
            let ids = circle(&particles, 2, |behavior| behavior.on_blocking("meet", handle.clone()));
            let answers = ids.iter().map(|id| particles.send(*id, "meet", 1)).collect::<Vec<_>>();
            let outcomes: Vec<_> = answers.iter().map(answered).collect();
            let errors: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
            assert_eq!(errors.len(), 1, "{outcomes:?}");
            assert_eq!(errors[0].kind(), ErrorKind::Deadlock, "{}", errors[0]);
        }
    });
}

#[test]
fn errors_and_panics_are_answers_and_the_particle_goes_on() {
    for kind in KINDS {
        alone(move |_, particles| {
            let act = |message: &Message| match int(&message.value) {
                0 => Err(Error::new(ErrorKind::InvalidArgument, "zero")),
                1 => panic!("one"),
                _ => Ok(message.clone()),
            };
            let behavior = match kind {
                Kind::Task => Behavior::new(()).on("act", move |_, message| async move { act(&message) }),
                Kind::Blocking => Behavior::new(()).on_blocking("act", move |_, message| act(&message)),
            };
            let id = particles.create(behavior).expect("there is room");
            let error = failed(answered(&particles.send(id, "act", 0)));
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            let error = failed(answered(&particles.send(id, "act", 1)));
            assert_eq!(error.kind(), ErrorKind::Remote, "{error}");
            assert!(error.to_string().contains("handler \"act\" of particle 0 panicked: one"), "{error}");
            assert_eq!(answered(&particles.send(id, "act", 2)).expect("it goes on"), Value::Int(2));
            let error = failed(answered(&particles.send(id, "other", 2)));
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            assert!(error.to_string().contains("no handler of \"other\"; it has \"act\""), "{error}");
            let nobody = ParticleId { number: 7, ..id };
            let error = failed(answered(&particles.send(nobody, "act", 2)));
            assert!(error.to_string().contains("no particle 7 on this node, which has 1"), "{error}");
            let later = Behavior::new(()).on("other", |_, message| std::future::ready(Ok(message)));
            particles.register(id, later).expect("it is here");
            assert_eq!(answered(&particles.send(id, "other", 2)).expect("it is known now"), Value::Int(2));
            assert_eq!(particles.names(id).expect("it is here").len(), 2);
        });
    }
}

#[test]
fn what_has_not_begun_can_be_cancelled_and_ends_with_its_particle() {
    alone(|_, particles| {
        let (free, held) = channel::<()>();
        let held = Mutex::new(held);
        let handled = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&handled);
        let behavior = Behavior::new(()).on_blocking("hold", move |_, message| {
            held.lock().expect("no panics").recv_timeout(PATIENCE).expect("it is let go");
            count.fetch_add(1, SeqCst);
            Ok(message)
        });
        let id = particles.create(behavior).expect("there is room");
        let answers: Vec<_> = (0..4).map(|number| particles.send(id, "hold", number)).collect();
        until("the first has begun", || answers[0].wait_timeout(Duration::from_millis(1)).is_err());
        let error = failed(answers[0].wait_timeout(Duration::from_millis(20)));
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
        answers[2].cancel();
        assert_eq!(failed(answered(&answers[2])).kind(), ErrorKind::Cancelled);
        for _ in 0..2 {
            free.send(()).expect("it waits");
        }
        assert_eq!(answered(&answers[1]).expect("it was not cancelled"), Value::Int(1));
        free.send(()).expect("it waits");
        assert_eq!(answered(&answers[3]).expect("nor was this one"), Value::Int(3));
        let (first, second) = (particles.send(id, "hold", 4), particles.send(id, "hold", 5));
        until("it has begun", || {
            second.cancel();
            second.is_done() && first.wait_timeout(Duration::from_millis(1)).is_err()
        });
        let third = particles.send(id, "hold", 6);
        drop(third);
        assert!(particles.remove(id) && !particles.remove(id));
        free.send(()).expect("it waits");
        let outcome = answered(&first);
        assert!(outcome.is_ok() || failed(outcome).kind() == ErrorKind::NotFound);
        assert_eq!(failed(answered(&particles.send(id, "hold", 7))).kind(), ErrorKind::NotFound);
        particles.stop();
        particles.stop();
        assert_eq!(failed(particles.create(Behavior::new(()))).kind(), ErrorKind::Closed);
    });
}

#[test]
fn many_threads_and_particles_lose_nothing() {
    for kind in KINDS {
        alone(move |_, particles| {
            let count = Arc::new(AtomicI64::new(0));
            let counted = Arc::clone(&count);
            let ids = circle(&particles, 16, |behavior| {
                let counted = Arc::clone(&counted);
                passes(behavior, kind, "pass", on).on("count", move |_, message| {
                    std::future::ready(Ok(Message::from(counted.fetch_add(int(&message.value), SeqCst))))
                })
            });
            std::thread::scope(|scope| {
                for thread in 0..6_usize {
                    let (particles, ids) = (&particles, &ids);
                    scope.spawn(move || {
                        for round in 0..300_usize {
                            let at = (7 * round + thread) % ids.len();
                            let passed = particles.send(ids[at], "pass", 3);
                            let counts: Vec<_> = ids.iter().map(|id| particles.send(*id, "count", 1)).collect();
                            // Several at once pass each other on in a circle, which may close.
                            match passed.wait() {
                                Ok(message) => assert_eq!(message.value, Value::Int(0)),
                                Err(error) => assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}"),
                            }
                            counts.iter().for_each(|answer| drop(answered(answer).expect("it is handled")));
                        }
                    });
                }
            });
            assert_eq!(count.load(SeqCst), 6 * 300 * 16);
            assert_eq!(particles.waiting(), 0);
        });
    }
}

/// Adds a number of its own to what it is sent, and sums up what others say.
fn adder(kind: Kind, arguments: &Message) -> Result<Behavior> {
    let offset = int(&arguments.value);
    let add = move |message: &Message| Ok(Message::from(int(&message.value) + offset));
    Ok(match kind {
        Kind::Task => Behavior::new(()).on("add", move |_, message| async move { add(&message) }),
        Kind::Blocking => Behavior::new(()).on_blocking("add", move |_, message| add(&message)),
    }
    .on("sum", |context, message| async move {
        let Value::List(ids) = message.value else { panic!("a list") };
        let mut sum = 0;
        for id in &ids {
            sum += int(&context.send(ParticleId::from_value(id)?, "add", 0).await?.value);
        }
        Ok(Message::from(sum))
    })
    .on("first", |_, message| async move {
        let values = message.tensors[0].to_vec::<f32>()?;
        Ok(Message::of(Value::Tensor(0)).tensor(Tensor::from_slice(&values[..1], [1])?))
    })
    .on("fail", |_, _| async move { Err(Error::new(ErrorKind::Mismatch, "as it was told")) }))
}

#[test]
fn particles_of_other_nodes_are_reached_in_the_same_way() {
    for transport in [Transport::Shm, Transport::Tcp] {
        for kind in KINDS {
            together(Expected::ranks(3), transport, move |mesh| {
                let particles: Particles = Particles::new(&mesh, "test").expect("once");
                particles.offer("adder", move |arguments| adder(kind, &arguments));
                mesh.world().barrier().expect("all offer");
                if mesh.me().rank.0 == 0 {
                    let mut ids = Vec::new();
                    for (number, member) in mesh.members().iter().enumerate() {
                        let created = particles.create_on(member.node, "adder", 10_i64.pow(number as u32));
                        ids.push(created.expect("begun").wait_timeout(PATIENCE).expect("it is offered"));
                    }
                    for (id, offset) in ids.iter().zip([1, 10, 100]) {
                        let answers: Vec<_> = (0..50_i64).map(|number| particles.send(*id, "add", number)).collect();
                        for (number, answer) in answers.iter().enumerate() {
                            assert_eq!(int(&answered(answer).expect("handled")), number as i64 + offset);
                        }
                    }
                    let sum_of = |asked: ParticleId, ids: &[ParticleId]| {
                        let list = Value::List(ids.iter().map(|id| Value::from(*id)).collect());
                        answered(&particles.send(asked, "sum", Message::of(list)))
                    };
                    for (id, others, sum) in [(ids[1], [ids[0], ids[2]], 101), (ids[2], [ids[0], ids[1]], 11)] {
                        // Which asks this node in turn.
                        assert_eq!(int(&sum_of(id, &others).expect("all answer")), sum);
                        let error = failed(sum_of(id, &ids));
                        assert_eq!(error.kind(), ErrorKind::Deadlock, "it waits for itself: {error}");
                    }
                    let tensor = Tensor::from_slice(&[4.0_f32, 5.0], [2]).expect("memory");
                    let answer = particles.send(ids[2], "first", Message::of(Value::Tensor(0)).tensor(tensor));
                    let first = answer.wait_timeout(PATIENCE).expect("handled");
                    assert_eq!(first.tensors[0].to_vec::<f32>().expect("floats"), [4.0]);
                    let error = failed(answered(&particles.send(ids[1], "fail", 0)));
                    assert_eq!(
                        (error.kind(), error.to_string().contains("as it was told")),
                        (ErrorKind::Mismatch, true)
                    );
                    let error = failed(answered(&particles.send(ids[1], "nothing", 0)));
                    assert!(error.to_string().contains("no handler of \"nothing\"; it has \"add\""), "{error}");
                    let listed = particles.ids_on(ids[2].node).expect("begun").wait_timeout(PATIENCE);
                    assert_eq!(listed.expect("it answers"), [ids[2]]);
                    let removed = particles.remove_on(ids[2]).expect("begun").wait_timeout(PATIENCE);
                    assert!(removed.expect("it answers"));
                    let error = failed(answered(&particles.send(ids[2], "add", 0)));
                    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                    let unknown = particles.create_on(ids[1].node, "nothing", 0).expect("begun");
                    let error = failed(unknown.wait_timeout(PATIENCE));
                    assert!(error.to_string().contains("no kind \"nothing\""), "{error}");
                }
                mesh.world().barrier().expect("all come");
                mesh.finish().expect("all end");
            });
        }
    }
}

#[test]
fn a_reserved_name_is_known_before_its_particle() {
    alone(|_, particles| {
        let own = |id: ParticleId| {
            Behavior::new(id)
                .on_blocking("own", |context, _| Ok(Message::from(Value::from(*context.state::<ParticleId>()?))))
        };
        let (early, apart) = (particles.reserve(), particles.reserve_apart());
        let later = particles.create(own(early)).expect("there is room");
        assert_eq!((early.number, later.number), (0, 1));
        for id in [early, apart] {
            assert_eq!(failed(answered(&particles.send(id, "own", 0))).kind(), ErrorKind::NotFound);
            particles.create_as(id, own(id).labelled("the keeper")).expect("it is free");
            assert_eq!(answered(&particles.send(id, "own", 0)).expect("it is there"), Value::from(id));
            let twice = particles.create_as(id, own(id)).expect_err("it is taken");
            assert_eq!(twice.kind(), ErrorKind::AlreadyExists);
        }
        assert_eq!(particles.ids(), [early, later], "what stands apart is not listed");
        let unknown = failed(answered(&particles.send(apart, "other", 0)));
        assert!(unknown.to_string().contains("the keeper: no handler of \"other\""), "{unknown}");
        // That of an earlier run; later ones have higher numbers.
        particles.create_as(ParticleId { number: 9, ..early }, own(early)).expect("it is free");
        assert_eq!(particles.create(own(early)).expect("there is room").number, 10);
    });
}

#[test]
fn who_helps_handles_the_message_and_never_sleeps() {
    alone(|_, particles| {
        let (sender, gate) = channel::<()>();
        let gate = Mutex::new(gate);
        let hold = Behavior::new(())
            .on_blocking("hold", move |_, _| {
                let _ = gate.lock().expect("nobody panics").recv();
                Ok(Message::default())
            })
            .on_blocking("go", |_, message| Ok(message));
        let id = particles.create(hold).expect("there is room");
        let answer = particles.send(id, "go", 7);
        if !answer.help().expect("no circle") {
            until("a thread of the node has come before", || answer.is_done());
        }
        let (held, later) = (particles.send(id, "hold", 0), particles.send(id, "go", 8));
        until("a thread of the node is at the first", || particles.queued(id).expect("it is here") == 1);
        assert!(!later.help().expect("no circle") && !held.help().expect("no circle"));
        drop(sender);
        assert_eq!(answered(&later).expect("it is answered"), Value::Int(8));
        assert!(later.help().expect("it is over"));
    });
}

#[test]
fn what_is_run_is_handled_by_its_caller_and_nobody_is_kept_waiting_for_it() {
    alone(|_, particles| {
        let (sender, gate) = channel::<()>();
        let gate = Mutex::new(gate);
        let told = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&told);
        let behavior = Behavior::new(())
            .on_blocking("thread", |_, _| Ok(Message::from(format!("{:?}", std::thread::current().id()))))
            .on_blocking("hold", move |_, message| {
                let _ = gate.lock().expect("nobody panics").recv();
                Ok(message)
            })
            .on_blocking("tell", move |_, message| {
                counted.fetch_add(1, SeqCst);
                Ok(message)
            });
        let id = particles.create(behavior).expect("there is room");
        let own = Value::from(format!("{:?}", std::thread::current().id()));
        for _ in 0..500 {
            let answer = particles.run(id, "thread", 0);
            assert!(answer.is_done());
            assert_eq!(answered(&answer).expect("it is handled"), own);
        }
        std::thread::scope(|scope| {
            let busy = scope.spawn(|| particles.run(id, "hold", 0).wait().expect("it is handled"));
            let mut before = 0;
            until("it is held", || {
                // Behind it nobody may begin, and nobody is kept.
                before = told.load(SeqCst);
                !particles.run(id, "tell", 1).is_done()
            });
            drop(particles.send(id, "tell", 2));
            drop(sender);
            busy.join().expect("it goes on");
            // Nobody waits for those.
            until("all are handled", || told.load(SeqCst) == before + 2);
        });
    });
}

#[test]
fn a_re_entrant_particle_that_is_run_handles_others_while_it_waits() {
    alone(|_, particles| {
        let (open, shut) = pair("gate");
        let open = Mutex::new(Some(open));
        let behavior = Behavior::new(())
            .reentrant()
            .on_blocking("ask", |context, message| {
                context.send(context.id(), "answer", message).wait()?;
                context.send(context.id(), "wait", 0).wait()
            })
            .on_blocking("answer", |_, message| Ok(message))
            .on("wait", move |_, message| {
                let shut = shut.clone();
                async move { shut.await.map(|()| message) }
            })
            .on_blocking("open", move |_, message| {
                open.lock().expect("nobody panics").take().expect("once").complete(Ok(()));
                Ok(message)
            });
        let id = particles.create(behavior).expect("there is room");
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| answered(&particles.run(id, "ask", 3)));
            // Nobody waits for it, and it may begin only while the other one waits.
            drop(particles.send(id, "open", 0));
            asks.join().expect("it goes on").expect("it is answered");
        });
        let missing = particles.run(id, "nothing", 0);
        assert_eq!(failed(answered(&missing)).kind(), ErrorKind::NotFound);
    });
}
