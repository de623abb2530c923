//! Who is told when a thread blocks.
//!
//! A thread that runs other people's code under a permit wants to give the permit back while that code waits. Every
//! wait for a [`Work`](super::Work) that is about to sleep says so here.
//!
//! A thread that works for others, by polling links or running tasks, comes to sleep too, in a wait of something that
//! it has found, and does nothing for them meanwhile. Whoever keeps account of who does what is
//! [called](put_aside_with) before every such sleep, on that thread.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::OnceLock;

type Listener = Rc<dyn Fn(bool)>;

/// Puts aside what the calling thread does for others, until the value that it returns is dropped.
pub type PutAside = fn() -> Option<Box<dyn Any>>;

thread_local! {
    static LISTENER: RefCell<Option<Listener>> = const { RefCell::new(None) };
}

/// A kind of work that a thread does for others.
#[derive(Clone, Copy, Debug)]
pub enum Duty {
    /// It polls links.
    Links,
    /// It runs tasks.
    Tasks,
}

const DUTIES: usize = 2;

static PUT_ASIDE: [OnceLock<PutAside>; DUTIES] = [const { OnceLock::new() }; DUTIES];

/// Has `put_aside` called by each thread of this process that is about to block, for what it does of this kind. There
/// is one such function for each: of those that are set, the first.
pub fn put_aside_with(duty: Duty, put_aside: PutAside) {
    let _ = PUT_ASIDE[duty as usize].set(put_aside);
}

/// From now on, whenever this thread begins to block `listener` is called with true, and with false when it goes on.
/// `None` ends that.
pub fn tell(listener: Option<Rc<dyn Fn(bool)>>) {
    LISTENER.replace(listener);
}

/// A wait that has begun to block; dropped when it goes on.
pub struct Blocked {
    listener: Option<Listener>,
    /// Dropped after the listener was told.
    aside: [Option<Box<dyn Any>>; DUTIES],
}

/// Says that this thread is about to block.
#[must_use]
pub fn begin() -> Blocked {
    // While the listener is told it is not told again of waits of its own.
    let listener = LISTENER.take();
    if let Some(listener) = &listener {
        listener(true);
    }
    let mut blocked = Blocked { listener, aside: [const { None }; DUTIES] };
    for (aside, put_aside) in blocked.aside.iter_mut().zip(&PUT_ASIDE) {
        *aside = put_aside.get().and_then(|put_aside| put_aside());
    }
    blocked
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.take() {
            listener(false);
            LISTENER.replace(Some(listener));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_told_once_when_it_begins_and_once_when_it_ends() {
        let heard = Rc::new(RefCell::new(Vec::new()));
        let ears = Rc::clone(&heard);
        drop(begin());
        tell(Some(Rc::new(move |blocks| ears.borrow_mut().push(blocks))));
        let outer = begin();
        drop(begin());
        drop(outer);
        drop(begin());
        tell(None);
        drop(begin());
        assert_eq!(*heard.borrow(), [true, false, true, false]);
    }
}
