//! Operations that go on one after the other, in the order of their numbers.
//!
//! An operation over several hosts is made of operations of other groups: that of its host, and that of the leaders.
//! These are matched by numbers of their own, given in the order in which they begin, and an operation of two that are
//! in flight goes from step to step as its messages come, at another pace on each rank. So that all ranks begin the
//! steps in one order, an operation begins its first step only when all before it have ended.
//!
//! **No circle.** An operation takes its place when it gets its number, and waits for those with smaller numbers alone.
//! It gives its place back when it is dropped, whatever became of it.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// Those that have a place, by their numbers, with what wakes them. There are no more than operations in flight.
#[derive(Default)]
pub(crate) struct Turns(Mutex<BTreeMap<u64, Option<Waker>>>);

impl Turns {
    /// Takes the place of this number.
    pub(crate) fn place(self: &Arc<Self>, number: u64) -> Place {
        self.0.lock().insert(number, None);
        Place { turns: Arc::clone(self), number }
    }
}

/// The place of one operation, until it is dropped.
pub(crate) struct Place {
    turns: Arc<Turns>,
    number: u64,
}

impl Place {
    /// Waits until nobody with a smaller number has a place.
    pub(crate) async fn first(&self) {
        poll_fn(|context| {
            let mut places = self.turns.0.lock();
            if places.first_key_value().is_none_or(|(number, _)| *number >= self.number) {
                return Poll::Ready(());
            }
            let former = places.insert(self.number, Some(context.waker().clone()));
            drop(places);
            drop(former);
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.turns.0.lock();
        let own = places.remove(&self.number);
        let next = places.first_entry().and_then(|mut first| first.get_mut().take());
        drop(places);
        drop(own);
        if let Some(next) = next {
            next.wake();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::task::{Context, Wake};

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn places_come_first_in_the_order_of_their_numbers_and_are_woken_for_it() {
        let turns = Arc::new(Turns::default());
        let [three, one, two] = [3, 1, 2].map(|number| turns.place(number));
        let (wakes, waker) = (Arc::new(Wakes::default()), Arc::new(Wakes::default()));
        let (last, woken) = (Waker::from(Arc::clone(&waker)), Waker::from(Arc::clone(&wakes)));
        assert!(pin!(one.first()).poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert!(pin!(two.first()).poll(&mut Context::from_waker(&woken)).is_pending());
        assert!(pin!(three.first()).poll(&mut Context::from_waker(&last)).is_pending());
        drop(one);
        assert_eq!((wakes.0.load(SeqCst), waker.0.load(SeqCst)), (1, 0));
        assert!(pin!(two.first()).poll(&mut Context::from_waker(&woken)).is_ready());
        assert!(pin!(three.first()).poll(&mut Context::from_waker(&last)).is_pending());
        drop(two);
        assert_eq!(waker.0.load(SeqCst), 1);
        assert!(pin!(three.first()).poll(&mut Context::from_waker(&last)).is_ready());
    }
}
