//! Who is told when a thread blocks.
//!
//! A thread that runs other people's code under a permit wants to give the permit back while that code waits. Every
//! wait for a [`Work`](super::Work) that is about to sleep says so here.

use std::cell::RefCell;
use std::rc::Rc;

type Listener = Rc<dyn Fn(bool)>;

thread_local! {
    static LISTENER: RefCell<Option<Listener>> = const { RefCell::new(None) };
}

/// From now on, whenever this thread begins to block `listener` is called with true, and with false when it goes on.
/// `None` ends that.
pub fn tell(listener: Option<Rc<dyn Fn(bool)>>) {
    LISTENER.replace(listener);
}

/// A wait that has begun to block; dropped when it goes on.
pub struct Blocked {
    listener: Option<Listener>,
}

/// Says that this thread is about to block.
#[must_use]
pub fn begin() -> Blocked {
    // While the listener is told it is not told again of waits of its own.
    let listener = LISTENER.take();
    if let Some(listener) = &listener {
        listener(true);
    }
    Blocked { listener }
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
