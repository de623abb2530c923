//! Works that are made of works: one after the other, all of several, the first of several.
//!
//! Nothing here has a thread: what is to be done when a work ends is done by whoever ends it, with no lock held, as
//! [`Work::on_complete`] says. Waiters of the new work drive the node of the works that it is made of.
//!
//! **Ends.** Each callback holds the [`Joint`], which holds the works, and a work drops its callbacks when it ends; so
//! nothing is kept beyond the last end. A work whose completer is dropped ends with an error, and a function that
//! panics drops the completer that it was to serve; so the new work ends however its parts do.
//!
//! **Cancelling** the new work cancels those of its parts that have not ended, and a part that is begun later at once.
//! It ends when they have: until then they may use their buffers.

use super::awaited::{Account, Awaited, Describe, Which, joined, listed};
use super::{Completer, Drive, Work, driven, nested};
use crate::sync::{Arc, Mutex};
use crate::{Error, ErrorKind, LinkId, Result};
use std::sync::Weak;

/// A part of a joint work: of any type.
trait Part: Send + Sync {
    fn cancel(&self);
    fn awaited(&self) -> Option<Awaited>;
}

impl<T: Send> Part for Work<T> {
    fn cancel(&self) {
        Work::cancel(self);
    }

    fn awaited(&self) -> Option<Awaited> {
        Work::awaited(self)
    }
}

/// The parts of a work that have not ended.
#[derive(Default)]
struct Parts {
    list: Vec<(usize, std::sync::Arc<dyn Part>)>,
    is_cancelled: bool,
}

/// Knows the parts of a work.
#[derive(Default)]
struct Joint {
    parts: Mutex<Parts>,
}

impl Joint {
    /// Adds a part; one that comes after the cancellation is cancelled.
    fn add<T: Send + 'static>(&self, number: usize, work: &Work<T>) {
        let is_late = {
            let mut parts = self.parts.lock();
            parts.list.push((number, std::sync::Arc::new(work.clone())));
            parts.is_cancelled
        };
        if is_late {
            work.cancel();
        }
    }

    fn ended(&self, number: usize) {
        let gone = {
            let mut parts = self.parts.lock();
            let at = parts.list.iter().position(|(other, _)| *other == number);
            at.map(|at| parts.list.swap_remove(at))
        };
        drop(gone);
    }

    /// Cancels what has not ended. With no lock held: each part may end here.
    fn cancel(&self) {
        let parts: Vec<_> = {
            let mut parts = self.parts.lock();
            parts.is_cancelled = true;
            parts.list.iter().map(|(_, part)| std::sync::Arc::clone(part)).collect()
        };
        parts.iter().for_each(|part| part.cancel());
    }

    /// Of the parts that have not ended, in their order.
    fn awaited(&self) -> Vec<Awaited> {
        let parts = self.parts.lock();
        let mut awaited: Vec<_> =
            parts.list.iter().filter_map(|(number, part)| Some((*number, part.awaited()?))).collect();
        drop(parts);
        awaited.sort_by_key(|(number, _)| *number);
        awaited.into_iter().map(|(_, awaited)| awaited).collect()
    }
}

impl Describe for Joint {
    fn describe(&self, _: Which) -> Option<Account> {
        let whom = listed(self.awaited().iter().filter_map(|awaited| awaited.describe()?.whom));
        Some(Account { what: None, whom: Some(whom).filter(|whom| !whom.is_empty()) })
    }

    fn ask(&self, _: Which) -> Option<Work<String>> {
        let awaited = self.awaited();
        let asked = awaited.iter().filter_map(|awaited| Some((awaited.describe()?.whom?, awaited.ask())));
        Some(joined(asked.collect()))
    }
}

type Driver = Option<std::sync::Arc<dyn Drive>>;

/// A new work over a joint. loom's `Arc` is not that of the handles to who knows, and no model asks.
fn over<T>(
    operation: &'static str,
    driver: Driver,
    link: Option<LinkId>,
    joint: &std::sync::Arc<Joint>,
) -> (Completer<T>, Work<T>) {
    let (completer, work) = driven(operation, driver, link);
    let knows: Weak<Joint> = std::sync::Arc::downgrade(joint);
    let cancels = Weak::clone(&knows);
    completer.awaits(Awaited::new(knows, [0; 2]));
    completer.on_cancel(move || {
        if let Some(joint) = cancels.upgrade() {
            // What it cancels may be joint too, and so on.
            nested::run(operation, move || joint.cancel());
        }
    });
    (completer, work)
}

impl<T: Clone + Send + 'static> Work<T> {
    /// A work that ends with what `change` makes of this one's outcome. An error stays what it is, and `change` is not
    /// called. It is called by whoever ends this work, so it must not block.
    ///
    /// ```
    /// use sheave_base::work::pair;
    /// let (completer, work) = pair::<u32>("count");
    /// let text = work.map(|count| Ok(format!("{count} nodes")));
    /// completer.complete(Ok(3));
    /// assert_eq!(text.wait().unwrap(), "3 nodes");
    /// ```
    #[must_use]
    pub fn map<U: Send + 'static>(&self, change: impl FnOnce(T) -> Result<U> + Send + 'static) -> Work<U> {
        let joint = std::sync::Arc::new(Joint::default());
        let (completer, work) = over(self.0.operation, self.0.driver.clone(), self.0.link, &joint);
        joint.add(0, self);
        self.on_complete(move |outcome| {
            joint.ended(0);
            completer.complete(outcome.clone().and_then(change));
        });
        work
    }

    /// A work that begins another one when this one has ended well, and ends with that one. An error of either is its
    /// error. `next` is called by whoever ends this work, so it must not block.
    ///
    /// ```
    /// use sheave_base::work::{Work, pair};
    /// let (first, number) = pair::<u32>("number");
    /// let text = number.then(|number| Ok(Work::ready("name", Ok(format!("worker-{number}")))));
    /// first.complete(Ok(2));
    /// assert_eq!(text.wait().unwrap(), "worker-2");
    /// ```
    #[must_use]
    pub fn then<U: Clone + Send + 'static>(&self, next: impl FnOnce(T) -> Result<Work<U>> + Send + 'static) -> Work<U> {
        self.followed(|outcome| outcome.and_then(next).map_err(Err))
    }

    /// A work that begins another one when this one has ended, and ends with that one; or with the outcome that `next`
    /// returns in its place.
    fn followed<U: Clone + Send + 'static>(
        &self,
        next: impl FnOnce(Result<T>) -> Result<Work<U>, Result<U>> + Send + 'static,
    ) -> Work<U> {
        let joint = std::sync::Arc::new(Joint::default());
        // The next one may come over another link.
        let (completer, work) = over(self.0.operation, self.0.driver.clone(), None, &joint);
        joint.add(0, self);
        self.on_complete(move |outcome| {
            joint.ended(0);
            match next(outcome.clone()) {
                Err(outcome) => completer.complete(outcome),
                Ok(second) => {
                    joint.add(1, &second);
                    second.on_complete(move |outcome| {
                        joint.ended(1);
                        completer.complete(outcome.clone());
                    });
                }
            }
        });
        work
    }

    /// A work that begins another one when this one has failed, and ends with that one; it ends as this one does if
    /// that ends well. `next` is called by whoever ends this work, so it must not block.
    ///
    /// ```
    /// use sheave_base::work::{Work, pair};
    /// use sheave_base::{Error, ErrorKind};
    /// let (first, number) = pair::<u32>("number");
    /// let number = number.or_else(|_| Ok(Work::ready("number", Ok(7))));
    /// first.complete(Err(Error::new(ErrorKind::NotFound, "no such number")));
    /// assert_eq!(number.wait().unwrap(), 7);
    /// ```
    #[must_use]
    pub fn or_else(&self, next: impl FnOnce(Error) -> Result<Self> + Send + 'static) -> Self {
        self.followed(|outcome| match outcome {
            Ok(value) => Err(Ok(value)),
            Err(error) => next(error).map_err(Err),
        })
    }

    /// Ends a work that somebody has already, with what `change` makes of this one's outcome, as [`Work::map`] does.
    /// That work waits for whom this one does. Cancelling it does not reach this one: for what cannot be taken back.
    ///
    /// ```
    /// use sheave_base::work::pair;
    /// let (inner, call) = pair::<u32>("call");
    /// let (outer, push) = pair::<String>("push");
    /// call.pass_to(outer, |count| Ok(format!("{count} keys")));
    /// push.cancel();
    /// inner.complete(Ok(3));
    /// assert_eq!(push.wait().unwrap(), "3 keys");
    /// ```
    pub fn pass_to<U: Send + 'static>(
        &self,
        completer: Completer<U>,
        change: impl FnOnce(T) -> Result<U> + Send + 'static,
    ) {
        self.awaited().into_iter().for_each(|awaited| completer.awaits(awaited));
        self.on_complete(move |outcome| completer.complete(outcome.clone().and_then(change)));
    }
}

struct All<T> {
    left: usize,
    values: Vec<Option<T>>,
    error: Option<Error>,
    completer: Option<Completer<Vec<T>>>,
}

impl<T> All<T> {
    /// One has ended; who ended last gets what completes the whole.
    fn end(&mut self, number: usize, outcome: Result<T>) -> Option<impl FnOnce() + use<T>> {
        match outcome {
            Ok(value) => self.values[number] = Some(value),
            Err(error) => drop(self.error.get_or_insert(error)),
        }
        self.left -= 1;
        if self.left > 0 {
            return None;
        }
        let values = std::mem::take(&mut self.values).into_iter().flatten().collect();
        let (completer, outcome) = (self.completer.take()?, self.error.take().map_or(Ok(values), Err));
        Some(move || completer.complete(outcome))
    }
}

/// A work that ends when all of `works` have ended: with their outcomes in their order, or with the first error. The
/// first error cancels those that have not ended, so that nothing waits for what is needed no more; still all have
/// ended when this one has, and their buffers are free.
///
/// ```
/// use sheave_base::work::{join_all, pair};
/// let (completers, works): (Vec<_>, Vec<_>) = (0..3).map(|_| pair::<u32>("part")).unzip();
/// let all = join_all("whole", works);
/// completers.into_iter().zip([5, 6, 7]).for_each(|(completer, value)| completer.complete(Ok(value)));
/// assert_eq!(all.wait().unwrap(), [5, 6, 7]);
/// ```
#[must_use]
pub fn join_all<T: Clone + Send + 'static>(operation: &'static str, works: Vec<Work<T>>) -> Work<Vec<T>> {
    join_all_with(operation, works, Ok)
}

/// As [`join_all`], of what `look` makes of each outcome: it is called as soon as that work has ended well, by whoever
/// ends it, so it must not block. An error of it counts as one of the work.
///
/// ```
/// use sheave_base::work::{join_all_with, pair};
/// let (completers, works): (Vec<_>, Vec<_>) = (0..3).map(|_| pair::<u32>("part")).unzip();
/// let all = join_all_with("whole", works, |value| Ok(value * 2));
/// completers.into_iter().zip([5, 6, 7]).for_each(|(completer, value)| completer.complete(Ok(value)));
/// assert_eq!(all.wait().unwrap(), [10, 12, 14]);
/// ```
#[must_use]
pub fn join_all_with<T: Clone + Send + 'static, U: Clone + Send + 'static>(
    operation: &'static str,
    works: Vec<Work<T>>,
    look: impl Fn(T) -> Result<U> + Send + Sync + 'static,
) -> Work<Vec<U>> {
    let Some(first) = works.first() else { return Work::ready(operation, Ok(Vec::new())) };
    let link = first.0.link.filter(|link| works.iter().all(|work| work.0.link == Some(*link)));
    let joint = std::sync::Arc::new(Joint::default());
    let (completer, all) = over(operation, driver_of(&works), link, &joint);
    let state = All { left: works.len(), values: vec![None; works.len()], error: None, completer: Some(completer) };
    let (state, look) = (Arc::new(Mutex::new(state)), std::sync::Arc::new(look));
    // All are known before the first is heard: its error cancels the others.
    works.iter().enumerate().for_each(|(number, work)| joint.add(number, work));
    for (number, work) in works.into_iter().enumerate() {
        let (joint, state, look) = (std::sync::Arc::clone(&joint), Arc::clone(&state), std::sync::Arc::clone(&look));
        work.on_complete(move |outcome| {
            joint.ended(number);
            let outcome = outcome.clone().and_then(|value| look(value));
            let has_failed = outcome.is_err();
            let ended = state.lock().end(number, outcome);
            if has_failed {
                joint.cancel();
            }
            ended.into_iter().for_each(|complete| complete());
        });
    }
    all
}

/// Which of several works has ended first, and how.
#[derive(Clone, Debug)]
pub struct Selected<T> {
    /// Its place among the works.
    pub index: usize,
    /// Its outcome.
    pub outcome: Result<T>,
}

/// A work that ends when the first of `works` has ended, well or not. The others go on. Cancelling it cancels all.
///
/// # Errors
///
/// [`ErrorKind::InvalidArgument`] where there are no works: it would never end.
///
/// ```
/// use sheave_base::work::{pair, select};
/// let (_slow, one) = pair::<u32>("slow");
/// let (fast, other) = pair::<u32>("fast");
/// let first = select("either", vec![one, other])?;
/// fast.complete(Ok(1));
/// let selected = first.wait()?;
/// assert_eq!((selected.index, selected.outcome?), (1, 1));
/// # Ok::<(), sheave_base::Error>(())
/// ```
pub fn select<T: Clone + Send + 'static>(operation: &'static str, works: Vec<Work<T>>) -> Result<Work<Selected<T>>> {
    if works.is_empty() {
        let what = "a choice among no works; expected one at least";
        return Err(Error::new(ErrorKind::InvalidArgument, what).operation(operation));
    }
    let joint = std::sync::Arc::new(Joint::default());
    let (completer, first) = over(operation, driver_of(&works), None, &joint);
    let completer = Arc::new(Mutex::new(Some(completer)));
    works.iter().enumerate().for_each(|(number, work)| joint.add(number, work));
    for (index, work) in works.into_iter().enumerate() {
        let (joint, completer) = (std::sync::Arc::clone(&joint), Arc::clone(&completer));
        work.on_complete(move |outcome| {
            joint.ended(index);
            let completer = completer.lock().take();
            if let Some(completer) = completer {
                completer.complete(Ok(Selected { index, outcome: outcome.clone() }));
            }
        });
    }
    Ok(first)
}

fn driver_of<T>(works: &[Work<T>]) -> Driver {
    works.iter().find_map(|work| work.0.driver.clone())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{Interrupt, Target, pair};
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Instant;

    fn error(kind: ErrorKind) -> Error {
        Error::new(kind, "on purpose")
    }

    /// A completer until it is used.
    type Unused = std::sync::Arc<Mutex<Option<Completer<u8>>>>;

    /// A work that ends when it is cancelled, which the log counts.
    fn cancellable(log: &std::sync::Arc<AtomicUsize>) -> (Unused, Work<u8>) {
        let (completer, work) = pair::<u8>("part");
        let kept = Unused::default();
        // Weakly: the completer has the action.
        let (own, log) = (std::sync::Arc::downgrade(&kept), std::sync::Arc::clone(log));
        completer.on_cancel(move || {
            log.fetch_add(1, SeqCst);
            let completer: Option<Completer<u8>> = own.upgrade().and_then(|own| own.lock().take());
            completer.into_iter().for_each(|completer| completer.complete(Err(error(ErrorKind::Cancelled))));
        });
        *kept.lock() = Some(completer);
        (kept, work)
    }

    fn complete(kept: &Mutex<Option<Completer<u8>>>, outcome: Result<u8>) {
        let completer = kept.lock().take().expect("it is not done");
        completer.complete(outcome);
    }

    #[test]
    fn an_error_passes_map_and_then_without_a_call() {
        let (completer, work) = pair::<u8>("first");
        let mapped = work.map(|_| -> Result<u8> { panic!("nothing to change") });
        let chained = work.then(|_| -> Result<Work<u8>> { panic!("nothing to begin") });
        completer.complete(Err(error(ErrorKind::Mismatch)));
        assert_eq!(mapped.wait().expect_err("it failed").kind(), ErrorKind::Mismatch);
        assert_eq!(chained.wait().expect_err("it failed").kind(), ErrorKind::Mismatch);
    }

    #[test]
    fn a_function_that_panics_ends_the_work() {
        let (completer, work) = pair::<u8>("first");
        let mapped = work.map(|_| -> Result<u8> { panic!("on purpose") });
        let chained = work.then(|_| -> Result<Work<u8>> { panic!("on purpose") });
        completer.complete(Ok(1));
        assert_eq!(mapped.wait().expect_err("it panicked").kind(), ErrorKind::Closed);
        assert_eq!(chained.wait().expect_err("it panicked").kind(), ErrorKind::Closed);
        assert_eq!(work.wait().expect("it costs the first nothing"), 1);
    }

    #[test]
    fn cancelling_a_chain_reaches_whichever_part_runs() {
        for cancelled_first in [true, false] {
            let log = std::sync::Arc::new(AtomicUsize::new(0));
            let (first, work) = cancellable(&log);
            let (_second, next) = cancellable(&log);
            let chained = work.then(move |_| Ok(next));
            if !cancelled_first {
                complete(&first, Ok(1));
            }
            assert!(!chained.is_done());
            chained.cancel();
            assert_eq!(chained.wait().expect_err("cancelled").kind(), ErrorKind::Cancelled);
            assert_eq!(log.load(SeqCst), 1, "{cancelled_first}");
        }
    }

    #[test]
    fn a_part_that_begins_after_the_cancellation_is_cancelled() {
        let log = std::sync::Arc::new(AtomicUsize::new(0));
        // One that cannot be stopped any more.
        let (first, work) = pair::<u8>("first");
        let (_second, next) = cancellable(&log);
        let chained = work.then(move |_| Ok(next));
        chained.cancel();
        assert!(!chained.is_done(), "its first part uses its buffers still");
        first.complete(Ok(1));
        assert_eq!(chained.wait().expect_err("cancelled").kind(), ErrorKind::Cancelled);
        assert_eq!(log.load(SeqCst), 1);
    }

    #[test]
    fn the_first_error_cancels_the_rest_and_is_told_when_all_have_ended() {
        let log = std::sync::Arc::new(AtomicUsize::new(0));
        let (kept, mut works): (Vec<_>, Vec<_>) = (0..3).map(|_| cancellable(&log)).unzip();
        let (stubborn, last) = pair::<u8>("stubborn");
        works.push(last);
        let all = join_all("whole", works);
        complete(&kept[0], Ok(1));
        complete(&kept[2], Err(error(ErrorKind::Mismatch)));
        assert_eq!(log.load(SeqCst), 1, "only the one that had not ended and can be stopped");
        assert!(!all.is_done(), "one still uses its buffer");
        stubborn.complete(Ok(4));
        assert_eq!(all.wait().expect_err("one failed").kind(), ErrorKind::Mismatch);
        assert!(join_all::<u8>("nothing", Vec::new()).wait().is_ok_and(|values| values.is_empty()));
    }

    #[test]
    fn parts_that_have_ended_before_count() {
        let works = vec![Work::ready("part", Ok(1)), Work::ready("part", Ok(2))];
        assert_eq!(join_all("whole", works.clone()).wait().expect("both are done"), [1, 2]);
        let selected = select("either", works).expect("there are some").wait().expect("one is done");
        assert_eq!((selected.index, selected.outcome.expect("it succeeded")), (0, 1));
    }

    #[test]
    fn the_first_of_several_is_told_also_where_it_failed_and_the_others_go_on() {
        let (slow, one) = pair::<u8>("slow");
        let (fast, other) = pair::<u8>("fast");
        let first = select("either", vec![one.clone(), other]).expect("there are some");
        fast.complete(Err(error(ErrorKind::Remote)));
        let selected = first.wait().expect("one has ended");
        assert_eq!((selected.index, selected.outcome.expect_err("it failed").kind()), (1, ErrorKind::Remote));
        slow.complete(Ok(3));
        assert_eq!(one.wait().expect("it went on"), 3);
        let none = select::<u8>("either", Vec::new()).expect_err("it would never end");
        assert_eq!(none.kind(), ErrorKind::InvalidArgument);
    }

    struct Knows;

    impl Describe for Knows {
        fn describe(&self, [number, _]: Which) -> Option<Account> {
            Some(Account { what: None, whom: Some(format!("server-{number}")) })
        }
    }

    #[test]
    fn a_joint_work_waits_for_those_of_its_parts_that_have_not_ended() {
        let knows: std::sync::Arc<dyn Describe> = std::sync::Arc::new(Knows);
        let (completers, works): (Vec<_>, Vec<_>) = (0..3).map(|_| pair::<u8>("part")).unzip();
        let all = join_all("whole", works);
        let whom = |work: &Work<Vec<u8>>| work.awaited().expect("it is not done").describe().expect("it lives").whom;
        for (number, completer) in completers.iter().enumerate() {
            // What is said later counts too.
            completer.awaits(Awaited::new(std::sync::Arc::downgrade(&knows), [number as u64, 0]));
        }
        assert_eq!(whom(&all).as_deref(), Some("server-0, server-1, server-2"));
        let mut completers = completers.into_iter();
        completers.next().expect("three").complete(Ok(1));
        assert_eq!(whom(&all).as_deref(), Some("server-1, server-2"));
        drop(completers);
        assert!(all.wait().is_err() && all.awaited().is_none());
    }

    #[test]
    fn an_error_of_who_looks_at_an_outcome_cancels_the_rest() {
        let log = std::sync::Arc::new(AtomicUsize::new(0));
        let (kept, works): (Vec<_>, Vec<_>) = (0..3).map(|_| cancellable(&log)).unzip();
        let looked = std::sync::Arc::new(AtomicUsize::new(0));
        let seen = std::sync::Arc::clone(&looked);
        let all = join_all_with("whole", works, move |value| {
            seen.fetch_add(1, SeqCst);
            if value == 2 { Err(error(ErrorKind::Protocol)) } else { Ok(value) }
        });
        complete(&kept[1], Ok(1));
        assert!(!all.is_done() && looked.load(SeqCst) == 1 && log.load(SeqCst) == 0);
        complete(&kept[0], Ok(2));
        let outcome = all.wait_timeout(std::time::Duration::from_secs(10));
        assert_eq!(outcome.expect_err("it was not liked").kind(), ErrorKind::Protocol);
        assert_eq!((looked.load(SeqCst), log.load(SeqCst)), (2, 1));
    }

    #[test]
    fn what_a_work_is_passed_to_does_not_cancel_it_and_waits_for_the_same() {
        let log = std::sync::Arc::new(AtomicUsize::new(0));
        let (kept, works): (Vec<_>, Vec<_>) = (0..2).map(|_| cancellable(&log)).unzip();
        let knows: std::sync::Arc<dyn Describe> = std::sync::Arc::new(Knows);
        works[1].awaits(Awaited::new(std::sync::Arc::downgrade(&knows), [1, 0]));
        let (completer, passed) = pair("passed");
        join_all("whole", works).pass_to(completer, |values| Ok(values.len()));
        passed.cancel();
        let whom = passed.awaited().expect("it is not done").describe().expect("it lives").whom;
        assert_eq!((log.load(SeqCst), whom.as_deref()), (0, Some("server-1")));
        kept.iter().for_each(|kept| complete(kept, Ok(1)));
        let outcome = passed.wait_timeout(std::time::Duration::from_secs(10));
        assert_eq!(outcome.expect("nobody cancelled it"), 2);
    }

    #[test]
    fn nothing_is_kept_when_all_have_ended() {
        let held = std::sync::Arc::new(());
        let (completer, work) = pair::<u8>("first");
        let (mine, other) = (std::sync::Arc::clone(&held), std::sync::Arc::clone(&held));
        let chained = work.map(move |value| Ok((value, mine))).map(move |(value, _)| Ok((value, other)));
        drop(chained);
        assert_eq!(std::sync::Arc::strong_count(&held), 3);
        completer.complete(Ok(1));
        drop(work);
        assert_eq!(std::sync::Arc::strong_count(&held), 1);
    }

    /// A thread of the size that Rust gives, as the ones that complete works have.
    fn on_a_thread(act: impl FnOnce() + Send + 'static) {
        assert!(std::thread::spawn(act).join().is_ok(), "the thread has died");
    }

    const LONG: u32 = 100_000;

    #[test]
    fn a_long_chain_ends_well() {
        on_a_thread(|| {
            let (first, mut work) = pair::<u32>("count");
            for _ in 0..LONG {
                work = work.then(|count| Ok(Work::ready("count", Ok(count + 1))));
            }
            first.complete(Ok(0));
            assert_eq!(work.wait().unwrap(), LONG, "complete returns when all is done");
        });
    }

    #[test]
    fn a_long_chain_fails() {
        on_a_thread(|| {
            let (first, mut work) = pair::<u32>("count");
            for _ in 0..LONG {
                work = work.map(|count| Ok(count + 1));
            }
            drop(first);
            assert_eq!(work.wait().unwrap_err().kind(), ErrorKind::Closed);
        });
    }

    #[test]
    fn a_long_chain_is_cancelled() {
        on_a_thread(|| {
            let (first, mut work) = pair::<u32>("count");
            let (says, hears) = std::sync::mpsc::channel();
            first.on_cancel(move || says.send(()).unwrap());
            for _ in 0..LONG {
                work = work.map(|count| Ok(count + 1));
            }
            work.cancel();
            assert!(hears.try_recv().is_ok(), "the first is told");
        });
    }

    #[test]
    fn a_loop_of_callbacks_of_works_that_are_done_ends() {
        fn step(work: Work<u32>, left: u32, says: std::sync::mpsc::Sender<u32>) {
            match left {
                0 => says.send(left).unwrap(),
                _ => work.clone().on_complete(move |_| step(work, left - 1, says)),
            }
        }
        on_a_thread(|| {
            let (says, hears) = std::sync::mpsc::channel();
            step(Work::ready("count", Ok(0)), LONG, says);
            assert_eq!(hears.try_recv(), Ok(0));
        });
    }

    #[test]
    fn a_wait_in_a_deep_callback_gets_what_is_put_off() {
        on_a_thread(|| {
            let (says, hears) = std::sync::mpsc::channel();
            let (first, work) = pair::<u32>("count");
            let mut deep = work.clone();
            for _ in 0..LONG {
                deep = deep.map(|count| Ok(count + 1));
            }
            let mut at = work;
            for _ in 0..100 {
                at = at.map(Ok);
            }
            at.on_complete(move |_| says.send(deep.wait().unwrap()).unwrap());
            first.complete(Ok(0));
            assert_eq!(hears.try_recv(), Ok(LONG));
        });
    }

    /// A driver that completes a work on the thread that waits.
    struct Completes(Mutex<Option<Completer<u32>>>);

    impl Drive for Completes {
        fn drive(&self, target: &dyn Target, _: Option<Instant>, _: Option<Interrupt<'_>>) -> Result<bool> {
            self.0.lock().take().into_iter().for_each(|completer| completer.complete(Ok(7)));
            Ok(target.is_done())
        }
    }

    #[test]
    fn a_wait_in_a_deep_callback_ends_by_callbacks_of_its_own() {
        on_a_thread(|| {
            let (says, hears) = std::sync::mpsc::channel();
            let (first, mut work) = pair::<u32>("count");
            for _ in 0..31 {
                work = work.map(Ok);
            }
            work.on_complete(move |_| {
                let driver = std::sync::Arc::new(Completes(Mutex::new(None)));
                let (completer, other) = driven("other", Some(driver.clone()), None);
                *driver.0.lock() = Some(completer);
                let waited = (0..100).fold(other, |other, _| other.map(Ok));
                says.send(waited.wait()).unwrap();
            });
            first.complete(Ok(0));
            assert_eq!(hears.try_recv().unwrap().unwrap(), 7);
        });
    }
}
