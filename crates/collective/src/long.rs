//! Work that takes longer than a call that begins an operation may.
//!
//! Ranks of one host move each other's bytes themselves, and many bytes take long. The call that begins an operation
//! leaves that to whoever polls the node: the thread that waits for the operation, which does it at once and without a
//! pause, or else the node's progress thread. Either works for a turn at a time
//! ([`sheave_base::limits::COLLECTIVE_TURN_BYTES`]) and looks at the links in between. Short operations go on in their
//! call for as long as a wait spins, as ever. Over links it is the same: a call sends the entry of a long operation,
//! and neither sends nor takes its bytes.
//!
//! **Nothing is left lying.** A thread that polls the node goes on until nothing moves. Any other that leaves work
//! rings for one that does. A call rings when it has let go of what it has begun, once: a thread that polled before may
//! have found the operation in its hands, and gone to sleep. What waits for the end of the call is woken by that.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

thread_local! {
    /// What the call of this thread is not to go on with.
    static PAUSED: RefCell<Vec<Waker>> = const { RefCell::new(Vec::new()) };
    static HERE: Cell<Here> = const { Cell::new(Here { calls: false, polls: false, has_left: false }) };
}

#[derive(Clone, Copy)]
struct Here {
    /// This thread begins an operation.
    calls: bool,
    /// This thread polls the node, and goes on until nothing moves.
    polls: bool,
    /// The call has left work.
    has_left: bool,
}

/// What this thread is about, until this is dropped.
pub(crate) struct Scope(Here);

impl Scope {
    /// Whether work was left within this call.
    pub(crate) fn has_left(&self) -> bool {
        HERE.get().has_left
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // What was left within is for the call around it too.
        let has_left = self.0.has_left || HERE.get().has_left;
        HERE.set(Here { has_left, ..self.0 });
        if may_work() {
            PAUSED.take().into_iter().for_each(Waker::wake);
        }
    }
}

/// This thread begins an operation: it does no long work.
pub(crate) fn calls() -> Scope {
    let here = HERE.get();
    Scope(HERE.replace(Here { calls: true, has_left: false, ..here }))
}

/// This thread polls the node.
pub(crate) fn polls() -> Scope {
    let here = HERE.get();
    Scope(HERE.replace(Here { polls: true, ..here }))
}

/// Whether this thread may do long work.
pub(crate) fn may_work() -> bool {
    !HERE.get().calls
}

/// What is polled within a call goes on when the call is over.
pub(crate) fn pause(waker: &Waker) {
    PAUSED.with_borrow_mut(|paused| {
        if !paused.last().is_some_and(|last| last.will_wake(waker)) {
            paused.push(waker.clone());
        }
    });
}

/// Waits for a thread that may do long work.
pub(crate) async fn outside_calls() {
    poll_fn(|context| match may_work() {
        true => Poll::Ready(()),
        false => {
            pause(context.waker());
            Poll::Pending
        }
    })
    .await;
}

/// An operation that this thread has polled has work to do and waits for nobody. True if nobody may know.
pub(crate) fn leave() -> bool {
    let here = HERE.get();
    if here.calls {
        HERE.set(Here { has_left: true, ..here });
    }
    !here.calls && !here.polls
}
