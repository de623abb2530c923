//! Who is told when a thread blocks.
//!
//! A thread that runs other people's code under a permit wants to give the permit back while that code waits. Every
//! wait for a [`Work`](super::Work) that is about to sleep says so here.
//!
//! A thread that polls for others comes to sleep too, in a wait of something that its poll has found, and polls nothing
//! meanwhile. Whoever keeps account of who polls is [called](put_aside_with) before every such sleep, on that thread.

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

static PUT_ASIDE: OnceLock<PutAside> = OnceLock::new();

/// Has `put_aside` called by each thread of this process that is about to block. There is one such function: of those
/// that are set, the first.
pub fn put_aside_with(put_aside: PutAside) {
    let _ = PUT_ASIDE.set(put_aside);
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
    aside: Option<Box<dyn Any>>,
}

/// Says that this thread is about to block.
#[must_use]
pub fn begin() -> Blocked {
    // While the listener is told it is not told again of waits of its own.
    let listener = LISTENER.take();
    if let Some(listener) = &listener {
        listener(true);
    }
    let mut blocked = Blocked { listener, aside: None };
    blocked.aside = PUT_ASIDE.get().and_then(|put_aside| put_aside());
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
