//! Answers that are made of answers, waits whose time is up, and errors that nobody looks at.

use crate::common::{PATIENCE, failed, together, together_with, until};
use sheave_base::config::Transport;
use sheave_base::work::pair;
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::{Config, Expected, Mesh};
use sheave_particle::{Answer, Behavior, Context, Message, ParticleId, Particles};
use sheave_wire::Value;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::ThreadId;
use std::time::Duration;

fn alone(act: impl Fn(Mesh, Particles) + Clone + Send + 'static) {
    together(Expected::ranks(1), Transport::Auto, move |mesh| {
        let particles = Particles::new(&mesh, "test").expect("once");
        act(mesh.clone(), particles);
        mesh.finish().expect("all end");
    });
}

fn int(message: &Message) -> i64 {
    let Value::Int(number) = message.value else { panic!("{message:?}") };
    number
}

/// Adds one; refuses what is negative.
fn add(message: &Message) -> Result<Message> {
    match int(message) {
        number if number < 0 => Err(Error::new(ErrorKind::Mismatch, format!("{number} is below zero"))),
        number => Ok(Message::from(number + 1)),
    }
}

fn adder() -> Behavior {
    Behavior::new(())
        .on("poll", |_, message| async move { add(&message) })
        .on_blocking("block", |_, message| add(&message))
}

const NAMES: [&str; 2] = ["poll", "block"];

#[test]
fn an_answer_that_is_made_of_one_ends_with_what_the_function_returns() {
    alone(|_, particles| {
        let id = particles.create(adder()).expect("there is room");
        for name in NAMES {
            let doubled = particles.send(id, name, 20).map(|message| Ok(Message::from(2 * int(&message))));
            assert_eq!(int(&doubled.wait().expect("handled")), 42);
            assert_eq!(int(&doubled.wait_timeout(PATIENCE).expect("again")), 42);
            let calls = Arc::new(AtomicUsize::new(0));
            let counts = Arc::clone(&calls);
            let refused = particles.send(id, name, -1).map(move |message| {
                counts.fetch_add(1, SeqCst);
                Ok(message)
            });
            assert_eq!(failed(refused.wait()).kind(), ErrorKind::Mismatch);
            assert_eq!(calls.load(SeqCst), 0, "an error stays what it is");
            let failing = particles.send(id, name, 1).map(|_| Err(Error::new(ErrorKind::NotFound, "of the function")));
            assert_eq!(failed(failing.wait()).what(), "of the function");
            // It is there already.
            let sent = particles.send(id, name, 3);
            sent.wait().expect("handled");
            let late = sent.map(|message| Ok(Message::from(int(&message) + 100)));
            assert!(late.is_done());
            assert_eq!(int(&late.wait().expect("it is there")), 104);
        }
    });
}

#[test]
fn the_function_runs_where_the_answer_arrives() {
    alone(|_, particles| {
        let threads: Arc<Mutex<[Option<ThreadId>; 2]>> = Arc::default();
        let note = |place: usize| {
            let threads = Arc::clone(&threads);
            move || threads.lock().expect("no panic")[place] = Some(std::thread::current().id())
        };
        let seen = || *threads.lock().expect("no panic");
        let (handles, (open, gate)) = (note(0), pair("gate"));
        let behavior = Behavior::new(()).on_blocking("block", move |_, message| {
            if int(&message) == 0 {
                gate.wait()?;
            }
            handles();
            Ok(message)
        });
        let id = particles.create(behavior).expect("there is room");
        let made = |number: i64| {
            let makes = note(1);
            particles.send(id, "block", number).map(move |message| {
                makes();
                Ok(message)
            })
        };
        // Nobody waits: the thread of the node that has handled the message calls it.
        drop(made(0));
        open.complete(Ok(()));
        until("the function has run", || seen()[1].is_some());
        assert_eq!(seen()[0], seen()[1]);
        assert_ne!(seen()[1], Some(std::thread::current().id()));
        // Whoever waits handles the message, unless another thread has come first.
        until("this thread handles it", || {
            made(1).wait().expect("handled");
            let [handled, own] = seen();
            let here = Some(std::thread::current().id());
            assert!(own == handled || own == here, "{handled:?} and {own:?}");
            handled == here && own == here
        });
    });
}

#[test]
fn messages_follow_each_other_within_one_answer() {
    alone(|_, particles| {
        let ids: Vec<_> = (0..3).map(|_| particles.create(adder()).expect("there is room")).collect();
        for name in NAMES {
            let (second, third, again, once_more) = (ids[1], ids[2], particles.clone(), particles.clone());
            let row = particles
                .send(ids[0], name, 0)
                .then(move |message| Ok(again.send(second, name, message)))
                .map(|message| Ok(Message::from(int(&message) * 10)))
                .then(move |message| Ok(once_more.send(third, name, message)));
            assert_eq!(int(&row.wait().expect("all answer")), 21);
            let again = particles.clone();
            let fails = particles.send(ids[0], name, 0).then(move |_| Ok(again.send(second, name, -5)));
            assert!(failed(fails.wait()).what().contains("-5 is below zero"));
            let refuses = particles.send(ids[0], name, 0).then(|_| Err(Error::new(ErrorKind::NotFound, "no next one")));
            assert_eq!(failed(refuses.wait()).what(), "no next one");
        }
        let sent: Vec<_> = (0..100).map(|number| particles.send(ids[0], NAMES[number % 2], number as i64)).collect();
        let heard = Answer::wait_all(&sent, Some(PATIENCE)).expect("all answer");
        assert_eq!(heard.iter().map(int).collect::<Vec<_>>(), (1..=100).collect::<Vec<_>>());
    });
}

/// A handler that waits for a row of two messages, of which the second one goes to its own particle.
#[test]
fn a_circle_that_the_second_message_of_an_answer_closes_is_found() {
    alone(|_, particles| {
        let other = particles.create(adder()).expect("there is room");
        let row = move |context: &Context, name: &'static str| {
            let (own, particles) = (context.id(), context.particles());
            context.send(other, name, 1).then(move |message| Ok(particles.send(own, "poll", message)))
        };
        let lead = Behavior::new(())
            .on("poll", move |context, message| async move {
                if int(&message) == 0 { row(&context, "poll").await } else { Ok(message) }
            })
            .on_blocking("block", move |context, _| row(context, "block").wait());
        let lead = particles.create(lead).expect("there is room");
        for name in NAMES {
            let error = failed(particles.send(lead, name, 0).wait_timeout(PATIENCE));
            assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
        }
        until("nobody waits any more", || particles.waiting() == 0);
    });
}

#[test]
fn waits_for_several_have_one_time() {
    alone(|_, particles| {
        let (open, gate) = pair("gate");
        let held = Behavior::new(()).on("hold", move |_, message| {
            let gate = gate.clone();
            async move { gate.await.map(|()| message) }
        });
        let (id, held) = (particles.create(adder()).expect("room"), particles.create(held).expect("room"));
        let sent = [particles.send(id, "poll", 1), particles.send(held, "hold", 2), particles.send(held, "hold", 3)];
        let error = failed(Answer::wait_all(&sent, Some(Duration::from_millis(20))));
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
        assert!(error.what().contains("\"hold\" of particle 1 is still running"), "{error}");
        assert!(error.after().is_some_and(|elapsed| elapsed >= Duration::from_millis(20)), "{error}");
        let error = failed(sent[2].wait_timeout(Duration::from_millis(1)));
        assert!(error.what().contains("\"hold\" of particle 1, which is at \"hold\""), "{error}");
        open.complete(Ok(()));
        let heard = Answer::wait_all(&sent, Some(PATIENCE)).expect("all answer");
        assert_eq!(heard.iter().map(int).collect::<Vec<_>>(), [2, 2, 3]);
    });
}

/// Each waits for the other; only the first one for a while.
#[test]
fn a_circle_between_nodes_ends_by_its_timeout_which_says_who_waits_for_whom() {
    together(Expected::ranks(2), Transport::Auto, |mesh| {
        let particles: Particles = Particles::new(&mesh, "test").expect("once");
        let rank = mesh.me().rank.0 as usize;
        let other = ParticleId { node: mesh.members()[1 - rank].node, number: 0 };
        let behavior = Behavior::new(())
            .on_blocking("ask", move |context, message| {
                context.send(other, "ask back", message).wait_timeout(Duration::from_millis(100))
            })
            .on("ask back", move |context, message| async move { context.send(other, "echo", message).await })
            .on("echo", |_, message| async move { Ok(message) });
        let own = particles.create(behavior).expect("there is room");
        mesh.world().barrier().expect("all are there");
        if rank == 0 {
            let error = failed(particles.send(own, "ask", 1).wait());
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
            let expected = "particle 0 (\"ask\") still waits for \"ask back\" of particle 0 of rank-1";
            assert!(error.what().starts_with(expected), "{error}");
            assert!(error.after().is_some_and(|elapsed| elapsed >= Duration::from_millis(100)), "{error}");
            assert!(error.advice().is_some_and(|hint| hint.contains("in a circle")), "{error}");
            // The circle is over: all go on.
            assert_eq!(int(&particles.send(own, "echo", 7).wait_timeout(PATIENCE).expect("it is free")), 7);
            assert_eq!(int(&particles.send(other, "echo", 8).wait_timeout(PATIENCE).expect("it is free")), 8);
        }
        mesh.finish().expect("all end");
    });
}

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn note(text: &str) {
    SAID.lock().expect("no panic").push(text.to_owned());
}

/// What was said of answers, when this is part of it.
fn said(last: &str) -> Vec<String> {
    let told = || -> Vec<String> {
        let all = SAID.lock().expect("no panic");
        all.iter().filter(|text| text.contains("nobody looked")).cloned().collect()
    };
    until("the last one is told", || told().iter().any(|text| text.contains(last)));
    told()
}

/// One after the other, for they share what was said.
#[test]
fn errors_that_nobody_looks_at_are_told() {
    let change = |config: &mut Config| config.node.notice = note;
    together_with(Expected::ranks(2), Transport::Auto, change, |mesh| {
        let particles: Particles = Particles::new(&mesh, "test").expect("once");
        particles.create(adder()).expect("there is room");
        mesh.world().barrier().expect("all are there");
        if mesh.me().rank.0 == 0 {
            tells_of_what_nobody_saw(&mesh, &particles);
        }
        mesh.finish().expect("all end");
    });
    together_with(Expected::ranks(1), Transport::Auto, change, |mesh| {
        let particles: Particles = Particles::new(&mesh, "test").expect("once");
        let id = particles.create(adder()).expect("there is room");
        SAID.lock().expect("no panic").clear();
        refuses_to_wait_for_itself(&particles);
        (1..200).for_each(|number| drop(particles.send(id, "poll", -number)));
        let told = said("further ones are not told");
        assert_eq!((told.len(), told.iter().filter(|text| text.contains("again")).count()), (100, 0), "{told:?}");
        mesh.finish().expect("all end");
    });
}

/// Messages of a particle to itself, for each of which it is refused to wait, and which fail by that themselves.
fn refuses_to_wait_for_itself(particles: &Particles) {
    let is_last = Arc::new(AtomicBool::new(false));
    let last = Arc::clone(&is_last);
    let behavior = Behavior::new(()).on("again", move |context, message| {
        let last = Arc::clone(&last);
        async move {
            match int(&message) {
                0 => {
                    last.store(true, SeqCst);
                    Ok(message)
                }
                left => context.send(context.id(), "again", left - 1).await,
            }
        }
    });
    let own = particles.create(behavior).expect("there is room");
    assert_eq!(failed(particles.send(own, "again", 3).wait()).kind(), ErrorKind::Deadlock);
    until("the last one is handled", || is_last.load(SeqCst));
}

fn tells_of_what_nobody_saw(mesh: &Mesh, particles: &Particles) {
    let (here, there) = (particles.ids()[0], ParticleId { node: mesh.members()[1].node, number: 0 });
    for name in NAMES {
        SAID.lock().expect("no panic").clear();
        // Seen, or well: nothing is told.
        failed(particles.send(here, name, -1).wait());
        let sent = particles.send(here, name, -2);
        until("it has failed", || sent.is_done());
        drop(sent);
        let sent = particles.send(here, name, -3);
        drop(sent.map(Ok).work().clone());
        drop(particles.send(here, name, 4));
        failed(Answer::wait_all(&[-5, -15].map(|number| particles.send(there, name, number)), None));
        assert!(particles.send(here, name, -6).clone().wait_until(None, None).expect("no circle"));
        // Waited for in vain, and dropped.
        drop(particles.send(here, name, -7).wait_timeout(Duration::ZERO));
        drop(particles.send(here, name, -8));
        said("-8 is below zero");
        drop(particles.send(here, "nothing", 9));
        let told = said("nothing");
        assert!(told.iter().any(|text| text.contains("rank-0: \"nothing\" of particle 0 failed")), "{told:?}");
        drop(particles.send(there, name, -10));
        let told = said("-10 is below zero");
        let expected = format!("rank-0: \"{name}\" of particle 0 of rank-1 failed, and nobody looked at its answer: ");
        assert!(told.iter().any(|text| text.contains(&expected) && text.contains("-10 is below")), "{told:?}");
        let count = |number: &str| told.iter().filter(|text| text.contains(number)).count();
        assert_eq!([-1, -2, -3, -5, -15, -6].map(|number| count(&format!("{number} is below"))), [0; 6], "{told:?}");
        assert_eq!(["-8 is below", "-10 is below"].map(count), [1, 1], "{told:?}");
    }
    SAID.lock().expect("no panic").clear();
    let has_begun = Arc::new(AtomicBool::new(false));
    let (open, gate) = pair("gate");
    let (begun, opened) = (Arc::clone(&has_begun), Arc::new(OnceLock::from(gate)));
    let behavior = Behavior::new(())
        .on_blocking("hold", move |_, message| {
            begun.store(true, SeqCst);
            opened.get().map_or(Ok(()), sheave_base::Work::wait).map(|()| message)
        })
        .on("poll", |_, message| async move { add(&message) });
    let held = particles.create(behavior).expect("there is room");
    let holds = particles.send(held, "hold", 0);
    until("it holds", || has_begun.load(SeqCst));
    let cancelled = particles.send(held, "poll", -11);
    cancelled.cancel();
    drop(cancelled);
    drop(particles.send(held, "poll", -12));
    open.complete(Ok(()));
    holds.wait().expect("it is let go");
    let told = said("-12 is below");
    assert_eq!(told.len(), 1, "what was cancelled was to end: {told:?}");
    // So is what ends with its particles.
    let (_open, gate) = pair::<()>("gate");
    let behavior = Behavior::new(()).on("wait", move |_, message| {
        let gate = gate.clone();
        async move { gate.await.map(|()| message) }
    });
    let held = particles.create(behavior).expect("there is room");
    (0..2).for_each(|number| drop(particles.send(held, "wait", number)));
    particles.stop();
    assert_eq!(said("-12 is below").len(), 1);
}
