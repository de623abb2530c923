//! The ways to wait.

use super::content::{anywhere, check, message, only, private, wanted};
use super::pairs::{Pair, Pairs};
use super::watch::{soon, until};
use sheave_base::{Error, ErrorKind};
use sheave_tensor::Mode;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake};
use std::thread;
use std::time::{Duration, Instant};

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread; nothing but its waker makes it go on.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

pub(crate) fn works_are_awaited_and_call_back(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    let called = Arc::new(AtomicUsize::new(0));
    for seed in 0..20 {
        let lengths = [100, 3_000_000];
        let works: Vec<_> = lengths
            .iter()
            .map(|length| left.isend(to_right, message(1, private(*length, seed), Mode::Copy)).unwrap())
            .collect();
        for work in &works {
            let called = Arc::clone(&called);
            work.on_complete(move |outcome| {
                outcome.as_ref().expect("it was sent");
                called.fetch_add(1, SeqCst);
            });
        }
        for work in works {
            block_on(work).expect("the node's own thread makes progress");
        }
        for length in lengths {
            let work = right.irecv(wanted(Some(to_left), 1), anywhere()).unwrap();
            until("nobody waits, and still it is received", || work.is_done());
            check(only(&work.join().unwrap()), length, seed);
        }
    }
    until("every callback ran", || called.load(SeqCst) == 40);
    let lost = right.accept();
    if !lost.is_done() {
        drop(right);
        assert_eq!(block_on(lost).expect_err("the node is gone").kind(), ErrorKind::Closed);
    }
}

/// Callbacks run with no lock of the link held, so that they may use it; on several threads, so in no order.
pub(crate) fn a_callback_may_send_again(pairs: &dyn Pairs) {
    const COUNT: u64 = 3000;
    let Pair { left, to_right, right, to_left } = pairs.pair();
    let length = |seed: u64| if seed.is_multiple_of(10) { 400_000 } else { 3_000 };
    let works: Vec<_> = (0..COUNT)
        .map(|seed| {
            let work = left.isend(to_right, message(1, private(length(seed), seed), Mode::Copy)).unwrap();
            let left = left.clone();
            work.on_complete(move |outcome| {
                outcome.as_ref().expect("it was sent");
                let again = message(10 + seed, private(10, seed), Mode::Copy);
                drop(left.isend(to_right, again).expect("the link is alive"));
            });
            work
        })
        .collect();
    for seed in 0..COUNT {
        let got = right.recv(wanted(Some(to_left), 1), anywhere(), soon(), None).unwrap();
        check(only(&got), length(seed), seed);
    }
    for work in works {
        work.join().unwrap();
    }
    for seed in 0..COUNT {
        let got = right.recv(wanted(Some(to_left), 10 + seed), anywhere(), soon(), None).unwrap();
        check(only(&got), 10, seed);
    }
}

pub(crate) fn an_interrupt_ends_the_wait_alone(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    let work = right.irecv(wanted(Some(to_left), 1), anywhere()).unwrap();
    let begun = Instant::now();
    let mut interrupt = || match begun.elapsed() > Duration::from_millis(150) {
        true => Err(Error::new(ErrorKind::Interrupted, "somebody is in a hurry")),
        false => Ok(()),
    };
    let ended = work.wait_until(None, Some(&mut interrupt));
    assert_eq!(ended.expect_err("interrupted").kind(), ErrorKind::Interrupted);
    assert!(begun.elapsed() < Duration::from_secs(5));
    left.send(to_right, message(1, private(50, 1), Mode::Copy), soon(), None).unwrap();
    check(only(&work.join().unwrap()), 50, 1);
}
