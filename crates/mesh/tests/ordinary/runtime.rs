//! Tasks and timers of a mesh: who polls them, and what ends them.

use crate::common::{PATIENCE, soon, together, until, wait};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, Result};
use sheave_mesh::{Call, Expected, Mesh, Request};
use sheave_wire::Value;
use std::future::{pending, poll_fn};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// One node, which has no links.
fn alone(act: impl Fn(&Mesh) + Clone + Send + 'static) {
    together(Expected::ranks(1), Transport::Auto, move |mesh| {
        act(&mesh);
        mesh.finish().expect("nobody else is there");
    });
}

/// What a task waits for: another thread sets it.
#[derive(Clone, Default)]
struct Flag(Arc<(AtomicBool, Mutex<Option<Waker>>)>);

impl Flag {
    fn set(&self) {
        self.0.0.store(true, SeqCst);
        let waker = self.0.1.lock().expect("nobody panics").take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    async fn wait(&self) {
        poll_fn(|context| {
            *self.0.1.lock().expect("nobody panics") = Some(context.waker().clone());
            if self.0.0.load(SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// A wake from a strange thread reaches the node, whether its own thread polls or sleeps, or somebody waits.
#[test]
fn f48_a_task_is_woken_from_any_thread_though_its_node_has_no_links() {
    for is_waited_for in [false, true] {
        alone(move |mesh| {
            let (wake, wakes) = sync_channel::<Flag>(0);
            let other = std::thread::spawn(move || wakes.iter().for_each(|flag| flag.set()));
            for round in 0..200 {
                let flag = Flag::default();
                let own = flag.clone();
                let work = mesh.spawn("round", async move {
                    own.wait().await;
                    Ok(round)
                });
                let work = work.expect("there is room");
                wake.send(flag).expect("it is there");
                if is_waited_for {
                    assert_eq!(wait(&work).expect("it was woken"), round);
                    continue;
                }
                let (tell, told) = channel();
                work.on_complete(move |outcome| tell.send(outcome.clone()).expect("it waits"));
                let outcome = told.recv_timeout(PATIENCE).expect("the node's own thread polls it");
                assert_eq!(outcome.expect("it was woken"), round);
            }
            drop(wake);
            other.join().expect("no panic");
            until("all have ended", || mesh.runtime().tasks() == 0);
        });
    }
}

/// Calls in tasks: each waits for an answer, and asks again.
#[test]
fn tasks_wait_for_calls() {
    for transport in [Transport::Shm, Transport::Tcp] {
        together(Expected::ranks(2), transport, |mesh| {
            mesh.serve("count", |request: Request| {
                let Value::Int(count) = request.args else { return };
                request.reply.value(Value::Int(count + 1));
            })
            .expect("the name is free");
            mesh.world().barrier().expect("both are there");
            let to = mesh.members()[1 - mesh.me().rank.0 as usize].node;
            mesh.link_to(to).expect("it is there");
            let own = mesh.downgrade();
            let works: Vec<_> = (0..8)
                .map(|_| {
                    let own = own.clone();
                    mesh.spawn("counting", async move {
                        let mut count = 0;
                        while count < 50 {
                            let call = own.upgrade().expect("it is there").call(to, "count", "", Value::Int(count))?;
                            let Value::Int(next) = call.await?.value else { return Ok(-1) };
                            count = next;
                        }
                        Ok(count)
                    })
                    .expect("there is room")
                })
                .collect();
            for work in works {
                assert_eq!(wait(&work).expect("all are answered"), 50);
            }
            mesh.finish().expect("all are well");
        });
    }
}

/// Sets its mark when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn a_task_ends_by_cancellation_by_panic_and_with_its_node() {
    let ends: [fn(&Mesh, &sheave_base::Work<()>); 3] =
        [|_, work| work.cancel(), |_, _| (), |mesh, _| mesh.leave().expect("nobody else is there")];
    for (which, end) in ends.into_iter().enumerate() {
        together(Expected::ranks(1), Transport::Auto, move |mesh| {
            let is_dropped = Arc::new(AtomicBool::new(false));
            let held = Dropped(Arc::clone(&is_dropped));
            let work = mesh.spawn::<()>("task", async move {
                let _held = held;
                assert!(which != 1, "a task of a test");
                pending().await
            });
            let work = work.expect("there is room");
            end(&mesh, &work);
            let error = wait(&work).expect_err("it came to no end");
            let expected = if which == 0 { ErrorKind::Cancelled } else { ErrorKind::Closed };
            assert_eq!((error.kind(), is_dropped.load(SeqCst)), (expected, true), "{error}");
            until("it has ended", || mesh.runtime().tasks() == 0);
            if which < 2 {
                let fine = mesh.spawn("task", async { Ok(1) }).expect("there is room");
                assert_eq!(wait(&fine).expect("others go on"), 1);
                mesh.leave().expect("nobody else is there");
            }
            let refused: Result<_> = mesh.spawn("task", async { Ok(()) });
            assert_eq!(refused.expect_err("it has left").kind(), ErrorKind::Closed);
        });
    }
}

#[test]
fn timers_act_at_their_times_and_end_with_the_node() {
    together(Expected::ranks(1), Transport::Auto, |mesh| {
        let (tell, told) = channel();
        let begun = Instant::now();
        let mut timers = Vec::new();
        for (name, ms) in [("late", 30), ("early", 10), ("cancelled", 20)] {
            let tell = tell.clone();
            let at = mesh.runtime().after(Duration::from_millis(ms));
            timers.push(mesh.at(at, move || tell.send((name, begun.elapsed())).expect("it waits")).expect("room"));
        }
        assert!(timers.pop().is_some_and(sheave_mesh::Timer::cancel));
        for (name, ms) in [("early", 10), ("late", 30)] {
            let (which, after) = told.recv_timeout(PATIENCE).expect("its time comes");
            assert!(which == name && after >= Duration::from_millis(ms), "{which} after {after:?}");
        }
        let held = Arc::new(());
        let inside = Arc::clone(&held);
        let never = mesh.at(mesh.runtime().after(PATIENCE), move || drop(inside)).expect("room");
        mesh.leave().expect("nobody else is there");
        assert_eq!(Arc::strong_count(&held), 1, "what never acts is dropped");
        assert!(!never.cancel());
        assert_eq!(mesh.at(mesh.runtime().now(), || ()).expect_err("it has left").kind(), ErrorKind::Closed);
    });
}

#[test]
fn a_future_is_waited_for_until_a_time() {
    alone(|mesh| {
        let runtime = mesh.runtime().clone();
        let work = mesh.spawn("until", async move {
            let soon = runtime.after(Duration::from_millis(5));
            let late = runtime.until(soon, pending::<()>()).await?;
            let early = runtime.until(runtime.after(PATIENCE), async { 3 }).await?;
            Ok((late, early))
        });
        assert_eq!(wait(&work.expect("there is room")).expect("time goes on"), (None, Some(3)));
    });
}

/// Calls that nobody answers end at their own deadlines, in their order, whatever the order of their making.
#[test]
fn f48_deadlines_of_calls_end_in_their_order() {
    together(Expected::ranks(2), Transport::Shm, |mesh| {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let keeps = Arc::clone(&kept);
        let service = move |request: Request| keeps.lock().expect("nobody panics").push(request.reply);
        mesh.serve("never", service).expect("the name is free");
        mesh.world().barrier().expect("both are there");
        if mesh.me().rank.0 == 0 {
            let to = mesh.members()[1].node;
            let order = Arc::new(Mutex::new(Vec::new()));
            let ended = Arc::new(AtomicUsize::new(0));
            let spans = [80_u64, 20, 60, 40];
            let calls = spans.map(|ms| {
                let deadline = Some(Duration::from_millis(ms));
                let call = Call { deadline, ..Call::default() };
                let work = mesh.call(to, "never", "", call).expect("it is there");
                let (order, ended) = (Arc::clone(&order), Arc::clone(&ended));
                work.on_complete(move |outcome| {
                    let kind = outcome.as_ref().expect_err("nobody answers").kind();
                    assert_eq!(kind, ErrorKind::DeadlineExceeded);
                    order.lock().expect("nobody panics").push(ms);
                    ended.fetch_add(1, SeqCst);
                });
                work
            });
            for call in &calls {
                assert!(call.wait_until(Some(soon()), None).expect("nothing interrupts it"));
            }
            until("all are told", || ended.load(SeqCst) == spans.len());
            assert_eq!(*order.lock().expect("nobody panics"), [20, 40, 60, 80]);
        }
        mesh.world().barrier().expect("both are there");
        kept.lock().expect("nobody panics").clear();
        mesh.finish().expect("all are well");
    });
}

/// A task may call a member to which no link stands, and so wait, on the thread that leads the node just then: nobody
/// else serves the node, and links that others make to it meanwhile would never stand.
#[test]
fn a_task_that_waits_for_a_link_does_not_stop_its_node() {
    for transport in [Transport::Tcp, Transport::Shm] {
        together(Expected::ranks(6), transport, move |mesh| {
            mesh.serve("echo", |request: Request| request.reply.value(request.args)).expect("the name is free");
            // Everybody has a link to the first one alone.
            mesh.world().barrier().expect("all are there");
            let (flag, caller) = (Flag::default(), mesh.clone());
            let own = flag.clone();
            let task = async move {
                own.wait().await;
                for member in caller.members() {
                    caller.call(member.node, "echo", "say", Value::Int(7))?.await?;
                }
                Ok(())
            };
            let work = mesh.spawn("a task", task).expect("there is room");
            let node = mesh.node().clone();
            let waker = std::thread::spawn(move || {
                // The thread that waits for the task leads by then.
                until("the wait sleeps", || !node.waits().is_empty());
                flag.set();
            });
            let begun = Instant::now();
            wait(&work).expect("all are called");
            assert!(begun.elapsed() < sheave_base::limits::LIVENESS_TIMEOUT / 2, "{:?}", begun.elapsed());
            waker.join().expect("no panic");
            mesh.finish().expect("all are well");
        });
    }
}

/// What a node needs that cannot reach the others any more, and that nobody has dropped.
#[test]
fn a_node_that_is_no_member_any_more_rests() {
    let spent = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("less than a second"))
    };
    together(Expected::ranks(3), Transport::Tcp, move |mesh| {
        mesh.world().barrier().expect("all are there");
        if mesh.me().rank.0 > 0 {
            return mesh.abandon();
        }
        until("it has no majority", || !mesh.is_member());
        let before = spent();
        std::thread::sleep(Duration::from_millis(400));
        let used = spent() - before;
        assert!(used < Duration::from_millis(100), "{used:?} of a core in 400 ms in which there is nothing to do");
    });
}
