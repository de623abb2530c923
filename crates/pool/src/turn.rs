//! Which tasks a worker may begin, and which it has begun: memory that it shares with its host.
//!
//! The host numbers the tasks that it gives to one worker, 0, 1, 2, and the worker runs them in that order. One word
//! has two halves: how far the worker has *begun*, and the *limit* that it may begin up to. The worker moves the one,
//! the host the other, each by comparing and exchanging the whole word; so either the worker has begun with a task, or
//! the host has taken it back, and both know which.
//!
//! **Numbers are used once.** Tasks that were taken back lie with the worker still, under their numbers. The host then
//! moves *begun* behind them before it gives more, which it may: the limit says that there is nothing to begin. The
//! worker finds that they are not what is next, and drops them.
//!
//! **After a death** the word says which tasks the worker had begun, whatever it was doing when it died. The others
//! nobody has seen; they are given to another worker. Outcomes that it had kept, to send them together, it has noted
//! beside the word.
//!
//! Numbers wrap. No two that are compared are 2³¹ apart, for no worker has so many tasks at a time.

use crate::queue::Words;
use parking_lot::Mutex;
use sheave_process::Slate;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The memory that one worker and its host share; a handle.
#[derive(Clone, Debug)]
pub struct Turn(Memory);

#[derive(Clone, Debug)]
enum Memory {
    Process(Slate),
    Here(Arc<(AtomicU64, Mutex<Vec<u8>>)>),
    /// Of an end of a queue, which notes nothing.
    Queue(Words),
}

impl Turn {
    /// Returns what a process shares with the one that started it.
    #[must_use]
    pub fn shared(slate: Slate) -> Self {
        Self(Memory::Process(slate))
    }

    /// Returns what a worker in this process shares with it.
    #[must_use]
    pub fn here() -> Self {
        Self(Memory::Here(Arc::default()))
    }

    /// What an end of a queue shares with its home.
    pub(crate) fn on(words: Words) -> Self {
        Self(Memory::Queue(words))
    }

    fn word(&self) -> &AtomicU64 {
        match &self.0 {
            Memory::Queue(words) => words.turn_word(),
            Memory::Process(slate) => slate.word(),
            Memory::Here(here) => &here.0,
        }
    }

    /// Notes something that the host finds if the worker dies; false if there is no room for it.
    pub(crate) fn note(&self, bytes: &[u8]) -> bool {
        match &self.0 {
            Memory::Process(slate) => slate.note(bytes),
            Memory::Here(here) => {
                here.1.lock().extend_from_slice(bytes);
                true
            }
            Memory::Queue(_) => false,
        }
    }

    /// Forgets what was noted.
    pub(crate) fn clear_notes(&self) {
        match &self.0 {
            Memory::Process(slate) => slate.clear(),
            Memory::Here(here) => here.1.lock().clear(),
            Memory::Queue(_) => {}
        }
    }

    /// What was noted.
    pub(crate) fn notes(&self) -> Vec<u8> {
        match &self.0 {
            Memory::Process(slate) => slate.notes(),
            Memory::Here(here) => here.1.lock().clone(),
            Memory::Queue(_) => Vec::new(),
        }
    }

    /// Lets the worker begin with so many tasks more, the first of which has this number. The host calls it, before
    /// they leave.
    pub(crate) fn give(&self, first: u32, count: u32) {
        self.change(|now| {
            // Behind tasks that were taken back there is nothing that could begin meanwhile.
            let begun = if now.limit == first { now.begun } else { first };
            Some(Halves { begun, limit: first.wrapping_add(count) })
        });
    }

    /// Lets it begin with no more. Returns the number of the first task that it has not begun.
    pub(crate) fn take_back(&self) -> u32 {
        self.change(|now| Some(Halves { limit: now.begun, ..now })).map_or(0, |now| now.begun)
    }

    /// Lets it begin with no more but this task, if it has not begun with that. Returns the number of the first task
    /// that it may not begin.
    pub(crate) fn take_back_behind(&self, first: u32) -> u32 {
        let kept = |begun: u32| if is_begun(first, begun) { begun } else { first.wrapping_add(1) };
        self.change(|now| Some(Halves { limit: kept(now.begun), ..now })).map_or(0, |now| kept(now.begun))
    }

    /// Lets it begin up to this task and no further, which has not left for it.
    pub(crate) fn take_back_from(&self, first: u32) {
        self.change(|now| Some(Halves { limit: if is_begun(first, now.limit) { first } else { now.limit }, ..now }));
    }

    /// The number of the first task that it has not begun.
    pub(crate) fn begun(&self) -> u32 {
        Halves::of(self.word().load(SeqCst)).begun
    }

    /// Begins with this task; false if it was taken back. The worker calls it.
    pub(crate) fn begin(&self, number: u32) -> bool {
        let may_begin = |now: Halves| now.begun == number && now.begun != now.limit;
        self.change(|now| may_begin(now).then(|| Halves { begun: number.wrapping_add(1), ..now })).is_some()
    }

    /// Changes the word, unless there is nothing to change. Returns what it was.
    fn change(&self, next: impl Fn(Halves) -> Option<Halves>) -> Option<Halves> {
        let word = self.word();
        let changed = word.fetch_update(SeqCst, SeqCst, |now| next(Halves::of(now)).map(Halves::to_word));
        changed.ok().map(Halves::of)
    }
}

/// Whether the task of this number was begun, of a worker that has begun up to `begun`.
pub(crate) fn is_begun(number: u32, begun: u32) -> bool {
    number != begun && begun.wrapping_sub(number) < 1 << 31
}

#[derive(Clone, Copy)]
struct Halves {
    begun: u32,
    limit: u32,
}

impl Halves {
    fn of(word: u64) -> Self {
        Self { begun: word as u32, limit: (word >> 32) as u32 }
    }

    fn to_word(self) -> u64 {
        u64::from(self.limit) << 32 | u64::from(self.begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn tasks_begin_in_order_up_to_the_limit() {
        let turn = Turn::here();
        assert!(!turn.begin(0), "nothing was given");
        turn.give(0, 2);
        assert!(!turn.begin(1), "it is not its turn");
        assert!(turn.begin(0) && turn.begin(1) && !turn.begin(2));
        assert_eq!(turn.begun(), 2);
    }

    #[test]
    fn what_was_taken_back_never_begins() {
        let turn = Turn::here();
        turn.give(0, 4);
        assert!(turn.begin(0));
        assert_eq!(turn.take_back(), 1);
        assert!(!turn.begin(1));
        turn.give(4, 2);
        assert!(!turn.begin(1) && !turn.begin(2) && !turn.begin(3));
        assert!(turn.begin(4) && turn.begin(5) && !turn.begin(6));
        let begun = turn.begun();
        assert!(is_begun(5, begun) && !is_begun(6, begun));
    }

    #[test]
    fn what_lies_behind_a_task_is_taken_back() {
        let turn = Turn::here();
        turn.give(0, 4);
        assert_eq!(turn.take_back_behind(0), 1);
        assert!(turn.begin(0) && !turn.begin(1), "it keeps the first one, though it had not begun");
        turn.give(4, 4);
        assert!(turn.begin(4) && turn.begin(5));
        assert_eq!(turn.take_back_behind(4), 6);
        assert!(!turn.begin(6));
    }

    #[test]
    fn numbers_wrap() {
        let turn = Turn::here();
        turn.word().store(Halves { begun: u32::MAX, limit: u32::MAX }.to_word(), SeqCst);
        turn.give(u32::MAX, 2);
        assert!(turn.begin(u32::MAX) && turn.begin(0) && !turn.begin(1));
        assert!(is_begun(u32::MAX, turn.begun()) && is_begun(0, turn.begun()) && !is_begun(1, turn.begun()));
    }

    /// Each task is begun by the worker or taken back by the host, and never both, in whatever order they come.
    #[test]
    fn a_task_is_begun_or_taken_back() {
        for round in 0..200 {
            let turn = Turn::here();
            let worker = turn.clone();
            let run = thread::spawn(move || {
                let mut begun = Vec::new();
                let mut idle = 0;
                let mut next = 0;
                while idle < 10_000 && next < 4_000 {
                    match worker.begin(next) {
                        true => begun.push(next),
                        // What was taken back is skipped, as it would be for the next task on the link.
                        false if is_begun(next, worker.begun()) => {}
                        false => {
                            idle += 1;
                            continue;
                        }
                    }
                    next += 1;
                }
                begun
            });
            let (mut next, mut taken) = (0, Vec::new());
            for step in 0..400_u32 {
                turn.give(next, 10);
                next += 10;
                if (step + round) % 3 == 0 {
                    taken.extend(turn.take_back()..next);
                }
            }
            let begun = run.join().expect("the worker ends");
            assert!(begun.iter().all(|number| !taken.contains(number)), "one was both begun and taken back");
        }
    }
}
