//! A rank's desk: the words in shared memory by which the ranks of one host agree and say how far they are.
//!
//! Each rank has one desk for a group. It alone writes it, all others read it; only the word by which a rank says that
//! it sleeps is taken back by whoever wakes it. So there is no lock, and each word has one writer.
//!
//! | words | what |
//! |---|---|
//! | 0 | *armed*: the rank sleeps or is about to; whoever changes a word takes it back and rings |
//! | 8 | *finished*: all operations with a smaller number are over for this rank |
//! | 9 | *quit*: this rank touches nobody's memory any more, for the group is broken or dropped |
//! | 16 … | [`SLOTS`] slots of two lines each |
//! | then | [`SLOTS`] payloads of [`PAYLOAD_BYTES`] |
//!
//! Operation number q of the group uses slot q mod [`SLOTS`]. The first line of a slot is the *entry*: the flag, the
//! header (three words), and where memory is or, for up to [`BRIEF_BYTES`], the bytes themselves (four words). Header
//! and payload are written first and the flag last, with release; a reader that sees the flag of q (acquire) finds the
//! rest. The second line holds three counters that say how far the rank is with q's data. They are stored with release
//! after the data they speak of, carry q above the count, so that those of an earlier operation mean nothing, and
//! never decrease.
//!
//! **Reuse.** A rank enters q only when every rank has finished q − [`SLOTS`]; so nobody reads the slot any more, and
//! no counter of a slot is overwritten while somebody waits for it. That others have finished is known without another
//! line from the flag, whose low byte says how many operations before q were not yet finished.
//!
//! **Sleeping** is as in the rings of links: the sleeper stores *armed* and looks once more; the writer stores and then
//! looks at *armed*; both with a sequentially consistent fence in between (Dekker).

use sheave_base::sync::{AtomicU64, Ordering, fence};

/// Operations of a group that may be under way at a time.
pub(crate) const SLOTS: u64 = 8;
/// Bytes that travel in a slot's payload.
pub(crate) const PAYLOAD_BYTES: usize = 8 << 10;
/// Bytes that travel beside the flag, in the same cache line.
pub(crate) const BRIEF_BYTES: usize = 32;

const ARMED: usize = 0;
const FINISHED: usize = 8;
const QUIT: usize = 9;
const FIRST_SLOT: usize = 16;
const SLOT_WORDS: usize = 16;
const PROGRESS: usize = 8;
/// Words of a desk, without the payloads.
pub(crate) const WORDS: usize = FIRST_SLOT + SLOTS as usize * SLOT_WORDS;
/// Where the payloads begin.
pub(crate) const PAYLOADS_AT_BYTES: usize = (WORDS * 8).next_multiple_of(64);
/// Bytes of a desk.
pub(crate) const DESK_BYTES: usize = PAYLOADS_AT_BYTES + SLOTS as usize * PAYLOAD_BYTES;

const LAG_BITS: u32 = 8;
const COUNT_BITS: u32 = 24;
/// The largest count that a counter holds.
pub(crate) const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// The words of a desk.
pub(crate) trait Words {
    /// The word at `index`, which is below [`WORDS`].
    fn word(&self, index: usize) -> &AtomicU64;
}

/// What a rank counts while it works on an operation's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Counter {
    /// Rounds of which this rank's input is there to be read.
    Filled = 0,
    /// Rounds of which this rank's piece is reduced.
    Reduced = 1,
    /// Rounds of which this rank has taken what is for it; one more when it is through.
    Taken = 2,
}

/// What a rank has entered an operation with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The header, as the operation packs it.
    pub(crate) header: [u64; 3],
    /// Addresses, or bytes.
    pub(crate) words: [u64; 4],
}

/// The entry of another operation stands where this one's should be: the peer breaks the protocol.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overtaken;

/// A desk, one's own or another rank's.
pub(crate) struct Desk<W>(W);

impl<W: Words> Desk<W> {
    pub(crate) fn new(words: W) -> Self {
        Self(words)
    }

    pub(crate) fn words(&self) -> &W {
        &self.0
    }

    fn slot(sequence: u64) -> usize {
        FIRST_SLOT + (sequence % SLOTS) as usize * SLOT_WORDS
    }

    /// Enters an operation. Its payload has been written.
    pub(crate) fn enter(&self, sequence: u64, finished: u64, entry: &Entry) {
        let slot = Self::slot(sequence);
        for (at, word) in entry.header.iter().chain(&entry.words).enumerate() {
            self.0.word(slot + 1 + at).store(*word, Ordering::Relaxed);
        }
        let lag = sequence.saturating_sub(finished).min((1 << LAG_BITS) - 1);
        self.0.word(slot).store((sequence + 1) << LAG_BITS | lag, Ordering::Release);
    }

    /// What its rank has entered this operation with, once it has; with how many operations it has finished.
    pub(crate) fn entered(&self, sequence: u64) -> Result<Option<(Entry, u64)>, Overtaken> {
        let slot = Self::slot(sequence);
        let flag = self.0.word(slot).load(Ordering::Acquire);
        let number = flag >> LAG_BITS;
        if number < sequence + 1 {
            return Ok(None);
        }
        if number > sequence + 1 {
            return Err(Overtaken);
        }
        let word = |at: usize| self.0.word(slot + 1 + at).load(Ordering::Relaxed);
        let entry = Entry { header: [word(0), word(1), word(2)], words: [word(3), word(4), word(5), word(6)] };
        Ok(Some((entry, sequence.saturating_sub(flag & ((1 << LAG_BITS) - 1)))))
    }

    /// Says how far this rank is.
    pub(crate) fn count(&self, sequence: u64, counter: Counter, count: u64) {
        let word = self.0.word(Self::slot(sequence) + PROGRESS + counter as usize);
        word.store(sequence << COUNT_BITS | count.min(COUNT_MAX), Ordering::Release);
    }

    /// Clears the counters of an operation that this rank is about to enter.
    pub(crate) fn clear(&self, sequence: u64) {
        for counter in [Counter::Filled, Counter::Reduced, Counter::Taken] {
            let word = self.0.word(Self::slot(sequence) + PROGRESS + counter as usize);
            word.store(sequence << COUNT_BITS, Ordering::Relaxed);
        }
    }

    /// How far its rank is.
    pub(crate) fn counted(&self, sequence: u64, counter: Counter) -> u64 {
        let word = self.0.word(Self::slot(sequence) + PROGRESS + counter as usize).load(Ordering::Acquire);
        if word >> COUNT_BITS == sequence & (u64::MAX >> COUNT_BITS) { word & COUNT_MAX } else { 0 }
    }

    /// Operations below this number are over.
    pub(crate) fn set_finished(&self, finished: u64) {
        self.0.word(FINISHED).store(finished, Ordering::Release);
    }

    pub(crate) fn finished(&self) -> u64 {
        self.0.word(FINISHED).load(Ordering::Acquire)
    }

    /// This rank touches nobody's memory any more.
    pub(crate) fn quit(&self) {
        self.0.word(QUIT).store(1, Ordering::Release);
    }

    pub(crate) fn has_quit(&self) -> bool {
        self.0.word(QUIT).load(Ordering::Acquire) != 0
    }

    /// This rank is about to sleep; it must look once more.
    pub(crate) fn arm(&self) {
        self.0.word(ARMED).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn disarm(&self) {
        self.0.word(ARMED).store(0, Ordering::Relaxed);
    }

    /// Whether the desk's rank must be rung, after [`words_changed`] was called. Says so once.
    pub(crate) fn must_be_rung(&self) -> bool {
        let armed = self.0.word(ARMED);
        armed.load(Ordering::Relaxed) != 0 && armed.swap(0, Ordering::Relaxed) != 0
    }
}

/// Stands between a change of one's own words and the look whether others sleep.
pub(crate) fn words_changed() {
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    impl Words for Memory {
        fn word(&self, index: usize) -> &AtomicU64 {
            &self[index]
        }
    }

    /// Words in the memory of this process.
    pub(super) type Memory = Arc<Vec<AtomicU64>>;

    pub(super) fn desk() -> (Desk<Memory>, Desk<Memory>) {
        let words: Memory = Arc::new((0..WORDS).map(|_| AtomicU64::new(0)).collect());
        (Desk::new(Arc::clone(&words)), Desk::new(words))
    }

    #[cfg(not(loom))]
    #[test]
    fn entries_and_counters_belong_to_one_operation() {
        let (own, seen) = desk();
        let entry = Entry { header: [1, 2, 3], words: [4, 5, 6, 7] };
        assert_eq!(seen.entered(5), Ok(None));
        own.clear(5);
        own.enter(5, 3, &entry);
        assert_eq!(seen.entered(5), Ok(Some((entry, 3))));
        assert_eq!(seen.entered(5 + SLOTS), Ok(None));
        own.count(5, Counter::Reduced, 9);
        assert_eq!((seen.counted(5, Counter::Reduced), seen.counted(5, Counter::Filled)), (9, 0));
        assert_eq!(seen.counted(5 + SLOTS, Counter::Reduced), 0);
        own.clear(5 + SLOTS);
        own.enter(5 + SLOTS, 5 + SLOTS, &entry);
        assert_eq!(seen.entered(5), Err(Overtaken));
        assert_eq!(seen.entered(5 + SLOTS), Ok(Some((entry, 5 + SLOTS))));
    }

    #[cfg(not(loom))]
    #[test]
    fn slots_do_not_overlap_and_fit() {
        let at: Vec<_> = (0..SLOTS).map(Desk::<Memory>::slot).collect();
        assert!(at.windows(2).all(|pair| pair[0] + SLOT_WORDS <= pair[1]));
        assert!(at.last().is_some_and(|last| last + SLOT_WORDS <= WORDS));
        assert!(at.iter().all(|slot| slot % 8 == 0) && PAYLOADS_AT_BYTES >= WORDS * 8);
    }

    #[cfg(loom)]
    mod explored {
        use super::*;

        #[test]
        fn loom_an_entry_is_seen_whole() {
            loom::model(|| {
                let (own, seen) = desk();
                let entry = Entry { header: [1, 2, 3], words: [4, 5, 6, 7] };
                let thread = loom::thread::spawn(move || own.enter(0, 0, &entry));
                if let Some((found, _)) = seen.entered(0).expect("nobody overtakes") {
                    assert_eq!(found, entry);
                }
                thread.join().expect("no panic");
            });
        }

        #[test]
        fn loom_a_counter_is_stored_after_its_data() {
            loom::model(|| {
                let data = loom::sync::Arc::new(loom::cell::UnsafeCell::new(0));
                let (own, seen) = desk();
                let written = loom::sync::Arc::clone(&data);
                let thread = loom::thread::spawn(move || {
                    written.with_mut(|value| {
                        // SAFETY: loom checks that nobody reads it meanwhile.
                        unsafe { *value = 7 }
                    });
                    own.count(3, Counter::Filled, 1);
                });
                if seen.counted(3, Counter::Filled) == 1 {
                    // SAFETY: as above.
                    assert_eq!(data.with(|value| unsafe { *value }), 7);
                }
                thread.join().expect("no panic");
            });
        }

        /// Two ranks go through as many operations as share a slot, and never read each other's next one.
        #[test]
        fn loom_a_slot_is_reused_only_when_all_have_read_it() {
            loom::model(|| {
                let ((one, one_seen), (two, two_seen)) = (desk(), desk());
                let go = |own: Desk<Memory>, other: Desk<Memory>| {
                    for sequence in [0, SLOTS] {
                        while other.finished() + SLOTS <= sequence {
                            loom::thread::yield_now();
                        }
                        own.enter(sequence, sequence, &Entry { header: [sequence; 3], words: [sequence; 4] });
                        let found = loop {
                            match other.entered(sequence).expect("a slot was overwritten before it was read") {
                                Some((entry, _)) => break entry,
                                None => loom::thread::yield_now(),
                            }
                        };
                        assert_eq!(found.header, [sequence; 3]);
                        own.set_finished(sequence + 1);
                    }
                };
                let thread = loom::thread::spawn(move || go(two, one_seen));
                go(one, two_seen);
                thread.join().expect("no panic");
            });
        }

        #[test]
        fn loom_nobody_sleeps_through_a_change() {
            loom::model(|| {
                let ((own, own_seen), (sleeper, sleeper_seen)) = (desk(), desk());
                let thread = loom::thread::spawn(move || {
                    own.count(0, Counter::Filled, 1);
                    words_changed();
                    sleeper_seen.must_be_rung()
                });
                sleeper.arm();
                let seen = own_seen.counted(0, Counter::Filled) == 1;
                let rung = thread.join().expect("no panic");
                assert!(seen || rung, "the change was neither seen nor rung");
            });
        }
    }
}
