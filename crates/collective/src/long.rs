//! Work that takes longer than a call that begins an operation may.
//!
//! Ranks of one host move each other's bytes themselves, and many bytes take long. The call that begins an operation
//! leaves that to whoever polls the node: the thread that waits for the operation, which does it at once and without a
//! pause, or else the node's progress thread. Either works for a turn at a time
//! ([`sheave_base::limits::COLLECTIVE_TURN_BYTES`]) and looks at the links in between. Short operations go on in their
//! call for as long as a wait spins, as ever.
//!
//! **Nothing is left lying.** A thread that polls the node goes on until nothing moves. Any other that leaves work
//! rings for one that does. A call rings when it has let go of what it has begun, once: a thread that polled before may
//! have found the operation in its hands, and gone to sleep.

use std::cell::Cell;

thread_local! {
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

/// An operation that this thread has polled has work to do and waits for nobody. True if nobody may know.
pub(crate) fn leave() -> bool {
    let here = HERE.get();
    if here.calls {
        HERE.set(Here { has_left: true, ..here });
    }
    !here.calls && !here.polls
}
