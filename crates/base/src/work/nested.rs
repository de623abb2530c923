//! Callbacks that end works whose callbacks end works, and cancellations of works that cancel what they are made of:
//! the stack does not grow with the length of such a chain.
//!
//! A callback runs at once within those that have led to it, up to [`NESTED_MAX`] of them. Beyond, it is put off until
//! the outermost has returned, or until a work is waited for on this thread, which may be for what it brings about. The
//! order of the callbacks that are put off stays. Nothing else runs between, so whoever completes a work finds the
//! callbacks run when it goes on, unless it is one itself, that deep. Whatever runs within such a wait counts anew: it
//! must not be put off until the wait is over.

use crate::contain;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Callbacks within each other: a few hundred bytes of stack each, and those of users may need more.
const NESTED_MAX: u32 = 32;

/// A callback, and the operation of its work.
type PutOff = (&'static str, Box<dyn FnOnce() + Send>);

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static PUT_OFF: RefCell<VecDeque<PutOff>> = const { RefCell::new(VecDeque::new()) };
}

/// Runs a callback of a work of this operation, now or soon.
pub(super) fn run(operation: &'static str, act: impl FnOnce() + Send + 'static) {
    let depth = DEPTH.get();
    if depth == NESTED_MAX {
        PUT_OFF.with_borrow_mut(|put_off| put_off.push_back((operation, Box::new(act))));
        return;
    }
    DEPTH.set(depth + 1);
    told(operation, act);
    if depth == 0 {
        run_put_off();
    }
    DEPTH.set(depth);
}

/// Runs what is put off on this thread. True if something was.
pub(super) fn catch_up() -> bool {
    if DEPTH.get() == 0 || PUT_OFF.with_borrow(VecDeque::is_empty) {
        return false;
    }
    // It is as deep as the wait is, which is a callback's own affair; the count begins anew.
    let depth = DEPTH.replace(1);
    run_put_off();
    DEPTH.set(depth);
    true
}

/// This thread waits for a work, until this is dropped.
pub(super) struct Waits(u32);

impl Waits {
    pub(super) fn begin() -> Self {
        Self(DEPTH.replace(0))
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        DEPTH.set(self.0);
    }
}

fn run_put_off() {
    // Where the thread is ending there is no such list any more, and nothing was put on it.
    let next = || PUT_OFF.try_with(|put_off| put_off.borrow_mut().pop_front()).ok().flatten();
    while let Some((operation, act)) = next() {
        told(operation, act);
    }
}

fn told(operation: &str, act: impl FnOnce()) {
    contain::told(format_args!("a callback of {operation}"), act);
}
