//! Clients that wait until what was taken before has left a queue.
//!
//! One that has given up keeps its place until what it waited for is gone, or its place is wanted by another one: so
//! there are never more of them than places, however often clients ask of a server that stands still.

use sheave_base::{Error, ErrorKind, limits};

/// Those who wait, each until so many have left the queue. `R` is what they are answered by.
pub(crate) struct Flushes<R>(Vec<(u64, R)>);

impl<R> Flushes<R> {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds one that waits until `target` have left. If too many still wait, as `is_wanted` says, it is given back.
    pub(crate) fn add(&mut self, target: u64, reply: R, is_wanted: impl Fn(&R) -> bool) -> Result<(), (R, Error)> {
        let most = limits::LEARNER_CLIENTS_MAX;
        if self.0.len() >= most {
            self.0.retain(|(_, reply)| is_wanted(reply));
        }
        if self.0.len() >= most {
            let what = format!("{most} others wait until the gradients are applied");
            return Err((reply, Error::new(ErrorKind::LimitExceeded, what).hint("wait for one flush before the next")));
        }
        self.0.push((target, reply));
        Ok(())
    }

    /// Takes out those who wait for no more than have `gone`.
    pub(crate) fn flushed(&mut self, gone: u64) -> Vec<R> {
        self.0.extract_if(.., |(target, _)| *target <= gone).map(|(_, reply)| reply).collect()
    }

    /// Takes out all of them.
    pub(crate) fn clear(&mut self) -> Vec<R> {
        std::mem::take(&mut self.0).into_iter().map(|(_, reply)| reply).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_answered_when_all_before_it_are_gone() {
        let mut flushes = Flushes::new();
        for target in [2, 1, 3] {
            flushes.add(target, target, |_| true).expect("there is room");
        }
        assert_eq!(flushes.flushed(2), [2, 1]);
        assert_eq!((flushes.flushed(2), flushes.clear(), flushes.clear()), (vec![], vec![3], vec![]));
    }

    #[test]
    fn those_who_have_given_up_make_room_and_others_do_not() {
        let mut flushes = Flushes::new();
        let most = limits::LEARNER_CLIENTS_MAX as u64;
        for number in 0..most {
            flushes.add(1, number, |_| true).expect("there is room");
        }
        let (number, error) = flushes.add(1, most, |_| true).expect_err("all of them wait");
        assert!(number == most && error.kind() == ErrorKind::LimitExceeded, "{number}: {error}");
        flushes.add(1, most, |number| number % 2 == 0).expect("every other one has given up");
        assert_eq!(flushes.flushed(1).len() as u64, most / 2 + 1);
    }
}
