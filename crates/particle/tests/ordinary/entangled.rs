//! Waits that stand on the stacks of others, and particles that go while somebody waits for them.

use crate::common::{PATIENCE, failed, together, until};
use sheave_base::config::Transport;
use sheave_base::work::pair;
use sheave_base::{ErrorKind, Result, Work, limits};
use sheave_mesh::{Expected, Mesh};
use sheave_particle::{Answer, Behavior, Context, Message, ParticleId, Particles};
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier, OnceLock};

fn alone(act: impl Fn(Mesh, Particles) + Clone + Send + 'static) {
    together(Expected::ranks(1), Transport::Auto, move |mesh| {
        let particles = Particles::new(&mesh, "test").expect("once");
        act(mesh.clone(), particles);
        mesh.finish().expect("all end");
    });
}

fn ended(answer: &Answer) -> Result<Message> {
    answer.wait_timeout(PATIENCE)
}

/// A handler that waits for this work.
fn held(work: Work<()>) -> impl Fn(Context, Message) -> Pin<Box<dyn Future<Output = Result<Message>> + Send>> {
    move |_, message| {
        let work = work.clone();
        Box::pin(async move { work.await.map(|()| message) })
    }
}

/// A handler that may block and waits for what it sends to the particle that is known by then.
fn asks(whom: &Arc<OnceLock<ParticleId>>, name: &'static str) -> impl Fn(&Context, Message) -> Result<Message> + use<> {
    let whom = Arc::clone(whom);
    move |context, message| context.send(*whom.get().expect("all are made"), name, message).wait()
}

#[test]
fn a_task_that_the_thread_of_a_handler_polls_does_not_wait_for_it() {
    alone(|mesh, particles| {
        for _ in 0..40 {
            let (open, gate) = pair("gate");
            let other = particles.create(Behavior::new(()).on("gate", held(gate))).expect("there is room");
            let behavior = Behavior::new(())
                .on_blocking("hold", move |context, message| context.send(other, "gate", message).wait())
                .on("echo", |_, message| std::future::ready(Ok(message)));
            let keeper = particles.create(behavior).expect("there is room");
            let (told, heard) = pair("told");
            std::thread::scope(|scope| {
                let holding = particles.send(keeper, "hold", 1);
                let waiter = scope.spawn(move || holding.wait());
                until("the handler waits", || particles.waiting() == 1);
                let (sender, is_polled) = (particles.clone(), Arc::new(AtomicBool::new(false)));
                let polled = Arc::clone(&is_polled);
                let task = mesh.runtime().spawn(async move {
                    let mut echo = sender.send(keeper, "echo", 2).into_future();
                    let outcome = poll_fn(|context| {
                        let polled_now = Pin::new(&mut echo).poll(context);
                        polled.store(true, SeqCst);
                        polled_now
                    });
                    told.complete(outcome.await.map(drop));
                });
                let _task = task.expect("there is room");
                until("it is polled", || is_polled.load(SeqCst));
                open.complete(Ok(()));
                waiter.join().expect("no panic").expect("it is let go");
                heard.wait_timeout(PATIENCE).expect("it waits for nobody who waits for it");
            });
        }
    });
}

#[test]
fn a_waiter_does_not_run_what_a_re_entrant_particle_was_sent_before() {
    alone(|_, particles| {
        for _ in 0..20 {
            let lead = Arc::new(OnceLock::new());
            let behavior = Behavior::new(())
                .on_blocking("ask", asks(&lead, "ping"))
                .on_blocking("echo", |_, message| Ok(message))
                .reentrant();
            let other = particles.create(behavior).expect("there is room");
            let asked = Arc::new(OnceLock::new());
            let kept = Arc::clone(&asked);
            let behavior = Behavior::new(())
                .on_blocking("lead", move |context, message| {
                    kept.set(context.send(other, "ask", 1)).expect("once");
                    context.send(other, "echo", message).wait()
                })
                .on_blocking("ping", |_, message| Ok(message));
            lead.set(particles.create(behavior).expect("there is room")).expect("once");
            ended(&particles.send(*lead.get().expect("made"), "lead", 7)).expect("nobody waits for it who keeps it");
            ended(asked.get().expect("it was sent")).expect("the other is free");
        }
    });
}

#[test]
fn a_waiter_does_not_run_what_comes_after_its_message_has_begun() {
    alone(|_, particles| {
        let (open, gate) = pair("gate");
        let last = particles.create(Behavior::new(()).on("gate", held(gate))).expect("there is room");
        let (lead, has_asked) = (Arc::new(OnceLock::new()), Arc::new(AtomicBool::new(false)));
        let (asks, begun) = (asks(&lead, "ping"), Arc::clone(&has_asked));
        let behavior = Behavior::new(())
            .on("pass", move |context, message| async move { context.send(last, "gate", message).await })
            .on_blocking("ask", move |context, message| {
                begun.store(true, SeqCst);
                asks(context, message)
            })
            .reentrant();
        let other = particles.create(behavior).expect("there is room");
        let asked = Arc::new(OnceLock::new());
        let kept = Arc::clone(&asked);
        let behavior = Behavior::new(())
            .on_blocking("lead", move |context, message| {
                let passed = context.send(other, "pass", message);
                kept.set(context.send(other, "ask", 1)).expect("once");
                passed.wait()
            })
            .on_blocking("ping", |_, message| Ok(message));
        lead.set(particles.create(behavior).expect("there is room")).expect("once");
        let led = particles.send(*lead.get().expect("made"), "lead", 7);
        until("the second has begun", || has_asked.load(SeqCst));
        open.complete(Ok(()));
        ended(&led).expect("what it waited for has ended");
        ended(asked.get().expect("it was sent")).expect("the other is free");
    });
}

#[test]
fn a_circle_through_a_particle_that_was_removed_is_found() {
    for name in ["block", "poll"] {
        alone(move |_, particles| {
            let (lead, other) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
            let (asks_lead, asks_other) = (asks(&lead, "ping"), asks(&other, "block"));
            let behavior = Behavior::new(())
                .on_blocking("block", move |context, message| {
                    assert!(context.particles().remove(context.id()));
                    asks_lead(context, message)
                })
                .on("poll", |context, message| async move {
                    assert!(context.particles().remove(context.id()));
                    let lead = ParticleId { number: context.id().number + 1, ..context.id() };
                    context.send(lead, "ping", message).await
                });
            other.set(particles.create(behavior).expect("there is room")).expect("once");
            let behavior = Behavior::new(())
                .on_blocking("block", asks_other)
                .on("poll", |context, message| async move {
                    let other = ParticleId { number: context.id().number - 1, ..context.id() };
                    context.send(other, "poll", message).await
                })
                .on("ping", |_, message| std::future::ready(Ok(message)));
            lead.set(particles.create(behavior).expect("there is room")).expect("once");
            let error = failed(ended(&particles.send(*lead.get().expect("made"), name, 1)));
            assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
        });
    }
}

#[test]
fn a_message_that_is_cancelled_leaves_nobody_below_the_one_before_it() {
    alone(|_, particles| {
        for _ in 0..20 {
            let (lead, has_begun) = (Arc::new(OnceLock::new()), Arc::new(AtomicBool::new(false)));
            let (open, gate) = pair("gate");
            let (asks, begun) = (asks(&lead, "ping"), Arc::clone(&has_begun));
            let behavior = Behavior::new(())
                .on_blocking("first", move |context, message| {
                    begun.store(true, SeqCst);
                    gate.wait()?;
                    asks(context, message)
                })
                .on("second", |_, message| std::future::ready(Ok(message)));
            let other = particles.create(behavior).expect("there is room");
            let sent = Arc::new(OnceLock::new());
            let kept = Arc::clone(&sent);
            let behavior = Behavior::new(())
                .on_blocking("lead", move |context, message| {
                    let first = context.send(other, "first", 1);
                    let second = context.send(other, "second", message);
                    kept.set((first, second.clone())).expect("once");
                    second.wait()
                })
                .on_blocking("ping", |_, message| Ok(message));
            lead.set(particles.create(behavior).expect("there is room")).expect("once");
            let led = particles.send(*lead.get().expect("made"), "lead", 7);
            until("the first has begun", || has_begun.load(SeqCst));
            until("both are sent", || sent.get().is_some());
            let (first, second) = sent.get().expect("just now");
            second.cancel();
            open.complete(Ok(()));
            assert_eq!(failed(ended(&led)).kind(), ErrorKind::Cancelled);
            ended(first).expect("nobody waits for it any more");
        }
    });
}

/// Threads that make particles, and so wait for each other.
const MAKERS: usize = 4;
/// Particles that each of them makes at most.
const MADE_MAX: usize = 500;

#[test]
fn no_particle_is_made_behind_the_end_of_all() {
    alone(|mesh, _| {
        for round in 0..200 {
            let particles: Particles = Particles::new(&mesh, &format!("round {round}")).expect("a new name");
            let all = Barrier::new(MAKERS + 1);
            let behavior = || Behavior::new(()).on("echo", |_, message: Message| std::future::ready(Ok(message)));
            let make = || {
                all.wait();
                std::iter::from_fn(|| particles.create(behavior()).ok()).take(MADE_MAX).collect::<Vec<ParticleId>>()
            };
            let ids: Vec<ParticleId> = std::thread::scope(|scope| {
                let makers: Vec<_> = (0..MAKERS).map(|_| scope.spawn(make)).collect();
                all.wait();
                particles.stop();
                makers.into_iter().flat_map(|maker| maker.join().expect("no panic")).collect()
            });
            for id in ids {
                assert_eq!(failed(ended(&particles.send(id, "echo", 1))).kind(), ErrorKind::Closed, "round {round}");
            }
        }
    });
}

#[test]
fn a_handler_for_which_there_is_no_room_fails_for_that() {
    alone(|mesh, particles| {
        let behavior = Behavior::new(()).on("echo", |_, message: Message| std::future::ready(Ok(message)));
        let id = particles.create(behavior).expect("there is room");
        let runtime = mesh.runtime();
        let tasks: Vec<_> = std::iter::from_fn(|| runtime.prepare(pending()).ok()).collect();
        assert!(tasks.len() < limits::TASKS_MAX, "the node has some of its own");
        let error = failed(ended(&particles.send(id, "echo", 1)));
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
        drop(tasks);
        ended(&particles.send(id, "echo", 2)).expect("there is room again");
    });
}
