//! What one worker has been given: which tasks, in which order, and how many more it should have.
//!
//! **How many.** Giving costs a message, so short tasks go many at a time; but what lies with one worker another one
//! cannot do. So a worker has tasks for about [`AHEAD`] of its time at most, as far as its pace is known, and two at
//! least: the next one lies there when one ends. Near the end, when few are left, they are shared out among all; and
//! what lies behind a long task is taken back for whoever has nothing to do.

use crate::turn::is_begun;
use sheave_base::planted::{self, Bug};
use std::collections::VecDeque;
use std::time::Duration;

/// For about so long a worker has tasks at most, if they are short.
const AHEAD: Duration = Duration::from_micros(400);

/// Tasks for less are not shared out: a message would cost more than waiting for them.
const WORTH: Duration = Duration::from_micros(50);

/// Tasks that a worker has, at least and at most.
const TASKS_MIN: usize = 2;
const TASKS_MAX: usize = 64;

/// Bytes of several tasks in one message at most.
const MESSAGE_BYTES_MAX: usize = 256 << 10;

/// Tensors of several tasks in one message at most.
const MESSAGE_TENSORS_MAX: usize = 256;

/// Something that is given.
pub(crate) trait Load {
    /// How much of a message it takes, bytes and tensors.
    fn load(&self) -> (usize, usize);
}

/// The tasks of one worker.
pub(crate) struct Hand<T> {
    given: VecDeque<(u32, T)>,
    /// The number of the next one.
    next: u32,
    /// How long one takes, if that is known.
    pace_ns: Option<u64>,
    /// It is to get nothing until it has ended a task: what it had was taken back.
    is_passed_over: bool,
}

impl<T> Default for Hand<T> {
    fn default() -> Self {
        Self { given: VecDeque::new(), next: 0, pace_ns: None, is_passed_over: false }
    }
}

impl<T: Load> Hand<T> {
    /// How many it should have.
    fn window(&self) -> usize {
        self.tasks_for(AHEAD).map_or(TASKS_MIN, |tasks| tasks.clamp(TASKS_MIN, TASKS_MAX))
    }

    /// How many it does in that time, if its pace is known.
    fn tasks_for(&self, span: Duration) -> Option<usize> {
        Some((span.as_nanos() as u64 / self.pace_ns?.max(1)) as usize)
    }

    /// Whether it should have more.
    pub(crate) fn is_needy(&self) -> bool {
        !self.is_passed_over && self.given.len() <= self.window() / 2
    }

    /// Takes from the front of `waiting` what it is to be given now, `most` at most, where so many hands share them.
    /// Returns the first number and how many.
    pub(crate) fn draw(&mut self, waiting: &mut VecDeque<T>, hands: usize, most: usize) -> Option<(u32, usize)> {
        let (window, has) = (self.window(), self.given.len());
        if waiting.is_empty() || !self.is_needy() {
            return None;
        }
        let share = (waiting.len() / (2 * hands.max(1))).max(self.tasks_for(WORTH).unwrap_or(0)).max(1);
        let count_max = share.min(window - has).min(most);
        let (first, mut bytes, mut tensors) = (self.next, 0, 0);
        let mut count = 0;
        while count < count_max {
            let Some(task) = waiting.front() else { break };
            let load = task.load();
            (bytes, tensors) = (bytes + load.0, tensors + load.1);
            if count > 0 && (bytes > MESSAGE_BYTES_MAX || tensors > MESSAGE_TENSORS_MAX) {
                break;
            }
            self.given.extend(waiting.pop_front().map(|task| (self.next, task)));
            self.next = self.next.wrapping_add(1);
            count += 1;
        }
        (count > 0).then_some((first, count))
    }

    /// The last tasks that were given.
    pub(crate) fn last(&self, count: usize) -> impl Iterator<Item = &T> {
        self.given.range(self.given.len() - count.min(self.given.len())..).map(|(_, task)| task)
    }

    /// The task of this number has ended. It is the first that has not: whoever says another one has not run it.
    pub(crate) fn settle(&mut self, number: u32) -> Option<T> {
        let is_first = self.given.front().is_some_and(|(first, _)| *first == number);
        if is_first && self.given.len() > 1 && planted::strikes(Bug::OutcomeTurned) {
            self.given.swap(0, 1);
        }
        let (_, task) = if is_first { self.given.pop_front()? } else { return None };
        if !planted::strikes(Bug::PassedOver) {
            self.is_passed_over = false;
        }
        Some(task)
    }

    /// So many tasks took that long together.
    pub(crate) fn note_pace(&mut self, count: usize, spent_ns: u64) {
        let Some(mean_ns) = spent_ns.checked_div(count as u64) else { return };
        self.pace_ns = Some(match self.pace_ns {
            // A long one shows at once, short ones by and by.
            Some(pace_ns) if mean_ns < pace_ns => pace_ns - (pace_ns - mean_ns) / 2,
            _ => mean_ns,
        });
    }

    /// Whether one that `is_meant` is among those that a worker has begun with, which has begun up to `begun`.
    pub(crate) fn has_begun(&self, begun: u32, is_meant: impl Fn(&T) -> bool) -> bool {
        self.given.iter().take_while(|(number, _)| is_begun(*number, begun)).any(|(_, task)| is_meant(task))
    }

    /// The number of the first task that has not ended.
    pub(crate) fn first(&self) -> Option<u32> {
        self.given.front().map(|(number, _)| *number)
    }

    /// Takes back the tasks from number `kept` on, in order. It gets nothing until it has ended a task.
    pub(crate) fn take_back(&mut self, kept: u32) -> Vec<T> {
        let taken = self.split(kept);
        self.is_passed_over = !taken.is_empty() && !self.given.is_empty();
        taken
    }

    /// Takes back the tasks from number `first` on, which have not left: their numbers are used again.
    pub(crate) fn undo(&mut self, first: u32) -> Vec<T> {
        let taken = self.split(first);
        self.next = first;
        taken
    }

    fn split(&mut self, begun: u32) -> Vec<T> {
        let kept = self.given.partition_point(|(number, _)| is_begun(*number, begun));
        self.given.split_off(kept).into_iter().map(|(_, task)| task).collect()
    }

    /// The worker is gone: what it had begun, and what it had not.
    pub(crate) fn end(&mut self, begun: u32) -> (Vec<T>, Vec<T>) {
        let waiting = self.split(begun);
        (std::mem::take(&mut self.given).into_iter().map(|(_, task)| task).collect(), waiting)
    }

    /// How many it has.
    pub(crate) fn len(&self) -> usize {
        self.given.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Load for usize {
        fn load(&self) -> (usize, usize) {
            (*self, 0)
        }
    }

    fn waiting(count: usize, bytes: usize) -> VecDeque<usize> {
        vec![bytes; count].into()
    }

    #[test]
    fn a_worker_of_unknown_pace_has_two() {
        let (mut hand, mut waiting) = (Hand::default(), waiting(100, 10));
        assert_eq!(hand.draw(&mut waiting, 2, 64), Some((0, 2)));
        assert_eq!(hand.draw(&mut waiting, 2, 64), None);
        assert_eq!(hand.settle(1), None, "the first has not ended");
        assert_eq!(hand.settle(0), Some(10));
        assert_eq!(hand.draw(&mut waiting, 2, 64), Some((2, 1)));
        assert_eq!((hand.len(), waiting.len()), (2, 97));
    }

    #[test]
    fn short_tasks_go_many_at_a_time_and_long_ones_do_not() {
        let (mut hand, mut queue) = (Hand::default(), waiting(1000, 10));
        hand.note_pace(10, 20_000);
        assert_eq!(hand.draw(&mut queue, 2, 64), Some((0, 64)));
        let mut slow = Hand::default();
        slow.note_pace(1, 1_000_000);
        assert_eq!(slow.draw(&mut queue, 2, 64), Some((0, 2)));
        let (mut few, mut hand) = (waiting(40, 10), Hand::default());
        hand.note_pace(1, 20_000);
        assert_eq!(hand.draw(&mut few, 4, 64), Some((0, 5)), "the others are to have some of them");
    }

    #[test]
    fn a_message_has_bounds() {
        let (mut hand, mut queue) = (Hand::default(), waiting(10, MESSAGE_BYTES_MAX));
        hand.note_pace(10, 20_000);
        assert_eq!(hand.draw(&mut queue, 1, 64), Some((0, 1)), "one goes in any case");
        assert_eq!(hand.draw(&mut queue, 1, 0), None, "it has had all that it may have");
    }

    #[test]
    fn what_was_not_begun_comes_back_in_order() {
        let (mut hand, mut queue) = (Hand::default(), VecDeque::from([1, 2, 3, 4, 5, 6, 7, 8]));
        hand.note_pace(1, 100_000);
        assert_eq!(hand.draw(&mut queue, 1, 64), Some((0, 4)));
        assert_eq!(hand.take_back(1), [2, 3, 4]);
        assert_eq!(hand.draw(&mut queue, 1, 64), None, "it runs something long");
        assert_eq!(hand.settle(0), Some(1));
        assert_eq!(hand.draw(&mut queue, 1, 64), Some((4, 2)), "the numbers of those are not used again");
        assert!(hand.has_begun(5, |task| *task == 5) && !hand.has_begun(5, |task| *task == 6));
        let (begun, left) = hand.end(5);
        assert_eq!((begun, left), (vec![5], vec![6]));
    }
}
