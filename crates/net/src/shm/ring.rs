//! One direction of a shared-memory link: a single-producer, single-consumer ring of records.
//!
//! The ring is made of 64-byte lines and seen as atomic words, so that a peer that breaks the protocol can corrupt what
//! it says but never cause a data race here. A record is `[number, kind and length, body …]`, contiguous, rounded up to
//! whole lines. Its first word is the *ready* word: the record's number, stored last with release ordering. The
//! consumer looks at exactly one place, the line after the last record, and finds either zero or the number that it
//! expects, because the producer has cleared the ready word of the *next* line when it publishes a record; old payload
//! bytes can never pass for a record. One line is always left free for that. Where there is more room, the producer
//! clears a little ahead, once a record is published, so that no record waits for a line that is not its own. A small
//! message thus moves one cache line and no index; the consumer's index is read by the producer only when its own copy
//! of it says that the ring is full.
//!
//! Sleeping: each side announces that it sleeps by a flag (`armed`) and looks once more; the other side changes the
//! ring and then looks at the flag, with a sequentially consistent fence between the two steps on both sides (Dekker).
//! So one of them always sees the other.
//!
//! **Cores.** The producer's side says in its ring on which core it is when it sends, and when it gives its core away
//! in vain. The word is a hint about where the other side may be kept from a core, right or not, and orders nothing.
//!
//! **Two rings.** Each direction of a link has a ring for data, of [`LINES`] lines, and a small one for what is urgent,
//! of [`URGENT_LINES`]. A record of data that was put into its ring after something urgent, as the first one, says so
//! by a bit ([`Record::follows_urgent`]): the consumer then takes what is in the other ring before it. Both were
//! published with release ordering, the urgent one first, so whoever sees the bit sees what it stands for. So nothing
//! urgent is overtaken, and a record without that bit costs no look at the other ring.
//!
//! Everything read from the ring is copied out before it is looked at, and every length and index is checked.

#[cfg(all(test, loom))]
mod explored;
pub(super) mod fuzz;

use sheave_base::sync::{AtomicU64, Ordering, fence};
use sheave_base::{Error, ErrorKind, Result};

/// Lines of a ring for data. Under loom so few that a model goes round with a handful of records, of two lines at most.
pub(crate) const LINES: u64 = if cfg!(loom) { 8 } else { 256 };
/// Lines of a ring for what is urgent: some dozens of short messages, or one piece of a long one.
pub(crate) const URGENT_LINES: u64 = 64;
const LINE_WORDS: usize = 8;
/// Lines behind a record that the producer clears once it has published it.
const AHEAD: u64 = 2;
const HEAD: usize = 0;
const CONSUMER_ARMED: usize = 8;
const PRODUCER_ARMED: usize = 16;
const CHUNKS: usize = 24;
// Beside the producer's flag, which changes as rarely.
const CLOSED: usize = 17;
const BEAT: usize = 18;
const CORE: usize = 19;
const DATA: usize = 32;
/// Set in the word of a record's shape if it is the first after something urgent.
const FOLLOWS_URGENT: u64 = 1 << 31;
/// Largest body of a record of data in bytes.
pub(crate) const BODY_BYTES_MAX: usize = body_bytes_max(LINES);
/// Largest body of a record of the urgent ring in bytes.
pub(crate) const URGENT_BODY_BYTES_MAX: usize = body_bytes_max(URGENT_LINES);

/// Words of a ring of so many lines, control included.
pub(crate) const fn words(lines: u64) -> usize {
    DATA + lines as usize * LINE_WORDS
}

/// Largest body of a record in bytes, so that any record and its padding fit together.
const fn body_bytes_max(lines: u64) -> usize {
    (lines as usize / 2 - 2) * 64 - 16
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Fills the end of the ring; carries nothing.
    Pad = 1,
    /// A message: wire header, part table, control, inline payload. In the urgent ring it has no parts.
    Message = 2,
    /// A slot of the stream in progress is filled.
    Chunk = 3,
    /// Loans that come home; in the urgent ring.
    Returns = 4,
    /// A piece of the next message's control area.
    Area = 5,
    /// Where the slots of the following streams are.
    Slots = 6,
    /// A message in its short form.
    Brief = 7,
    /// A message without tensors in its short form.
    Plain = 8,
}

impl Kind {
    fn from_code(code: u8) -> Result<Self> {
        Ok(match code {
            1 => Self::Pad,
            2 => Self::Message,
            3 => Self::Chunk,
            4 => Self::Returns,
            5 => Self::Area,
            6 => Self::Slots,
            7 => Self::Brief,
            8 => Self::Plain,
            other => return Err(strange_kind(other)),
        })
    }
}

#[cold]
fn strange_kind(code: u8) -> Error {
    corrupt(format!("record kind {code}"))
}

#[cold]
fn strange_number(ready: u64) -> Error {
    corrupt(format!("record number {ready}"))
}

#[cold]
fn strange_shape(lines: u64, body_bytes: usize) -> Error {
    corrupt(format!("a record of {lines} lines and {body_bytes} bytes"))
}

#[cold]
fn strange_field(offset_bytes: usize, record: &Record) -> Error {
    corrupt(format!("a field at {offset_bytes} in a body of {}", record.body_bytes))
}

fn corrupt(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Protocol, format!("the shared ring holds an impossible value: {what}"))
        .hint("the peer runs another version or its memory is damaged; restart it")
}

/// The words that both sides see.
pub(crate) trait Memory {
    /// Lines of the ring.
    const LINES: u64;

    /// The word at `index`, which is below what [`words`] says of that many lines.
    fn word(&self, index: usize) -> &AtomicU64;
}

/// The writing side. Callers serialise access.
pub(crate) struct Producer<M> {
    memory: M,
    tail: u64,
    seen_head: u64,
    number: u64,
    /// The first line whose ready word was not cleared since the consumer gave it back.
    cleared: u64,
    /// What the next record says besides its shape.
    mark: u64,
    /// Lines that the last record needed, padding included, if there was no room for it.
    wanted: u64,
}

impl<M: Memory> Producer<M> {
    /// The producer of a fresh, zeroed ring.
    pub(crate) fn new(memory: M) -> Self {
        Self { memory, tail: 0, seen_head: 0, number: 1, cleared: 0, mark: 0, wanted: 0 }
    }

    /// Appends a record whose body is `pieces`, each rounded up to whole words. False when there is no room now.
    pub(crate) fn push(&mut self, kind: Kind, pieces: &[&[u8]]) -> Result<bool> {
        let body_words: usize = pieces.iter().map(|piece| piece.len().div_ceil(8)).sum();
        if body_words * 8 > body_bytes_max(M::LINES) {
            return Err(Error::new(ErrorKind::Internal, format!("a ring record of {} bytes", body_words * 8)));
        }
        let lines = (2 + body_words).div_ceil(LINE_WORDS) as u64;
        let at = self.tail % M::LINES;
        let pad = if at + lines > M::LINES { M::LINES - at } else { 0 };
        if !self.has_room(pad + lines)? {
            self.wanted = pad + lines;
            return Ok(false);
        }
        self.wanted = 0;
        if pad > 0 {
            self.publish(Kind::Pad, pad, 0, &[]);
        }
        self.publish(kind, lines, body_words * 8, pieces);
        Ok(true)
    }

    /// Something urgent went into the other ring: the next record says so.
    pub(crate) fn follow_urgent(&mut self) {
        self.mark = FOLLOWS_URGENT;
    }

    fn has_room(&mut self, lines: u64) -> Result<bool> {
        let fits = |head: u64| self.tail + lines < head + M::LINES;
        if fits(self.seen_head) {
            return Ok(true);
        }
        let head = self.memory.word(HEAD).load(Ordering::Acquire);
        if head < self.seen_head || head > self.tail {
            return Err(corrupt(format!("consumer index {head} with producer index {}", self.tail)));
        }
        self.seen_head = head;
        Ok(fits(head))
    }

    fn publish(&mut self, kind: Kind, lines: u64, body_bytes: usize, pieces: &[&[u8]]) {
        let base = line_word::<M>(self.tail);
        let mut next = base + 2;
        for piece in pieces {
            let (words, rest) = piece.as_chunks::<8>();
            for word in words {
                self.memory.word(next).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
                next += 1;
            }
            if !rest.is_empty() {
                let mut last = [0; 8];
                last[..rest.len()].copy_from_slice(rest);
                self.memory.word(next).store(u64::from_ne_bytes(last), Ordering::Relaxed);
                next += 1;
            }
        }
        let mark = if kind == Kind::Pad { 0 } else { std::mem::take(&mut self.mark) };
        let shape = u64::from(kind as u8) | lines << 8 | mark | (body_bytes as u64) << 32;
        self.memory.word(base + 1).store(shape, Ordering::Relaxed);
        // Its own lines are not to be cleared any more.
        self.cleared = self.cleared.max(self.tail + lines);
        self.clear_up_to(self.tail + lines);
        self.memory.word(base).store(self.number, Ordering::Release);
        self.tail += lines;
        self.number += 1;
        // Beforehand where that is possible, so that the next record does not wait for the line behind it.
        if self.tail + AHEAD < self.seen_head + M::LINES {
            self.clear_up_to(self.tail + AHEAD);
        }
    }

    /// Clears the ready words of the lines up to and including `line`.
    fn clear_up_to(&mut self, line: u64) {
        while self.cleared <= line {
            self.memory.word(line_word::<M>(self.cleared)).store(0, Ordering::Relaxed);
            self.cleared += 1;
        }
    }

    /// After a push: true when the consumer sleeps and must be rung. Clears its flag.
    pub(crate) fn must_ring(&self) -> bool {
        fence(Ordering::SeqCst);
        take_flag(self.memory.word(CONSUMER_ARMED))
    }

    /// Announces that this side waits for room.
    pub(crate) fn arm(&self) {
        set_flag(self.memory.word(PRODUCER_ARMED));
        fence(Ordering::SeqCst);
    }

    /// Says that nothing more comes, and why (a close reason's code, never zero). A consumer sees it before it sees
    /// anything that this side writes afterwards.
    pub(crate) fn close(&self, code: u8) {
        self.memory.word(CLOSED).store(u64::from(code), Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// The line behind the last record.
    pub(crate) fn end_line(&self) -> u64 {
        self.tail
    }

    /// The line up to which the consumer has read and released, as it says.
    pub(crate) fn read_up_to(&self) -> u64 {
        self.memory.word(HEAD).load(Ordering::SeqCst)
    }

    /// Shows a sign of life.
    pub(crate) fn beat(&self) {
        let beat = self.memory.word(BEAT);
        beat.store(beat.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Chunks of streams that the consumer has taken, over the life of the link.
    pub(crate) fn chunks_taken(&self) -> u64 {
        self.memory.word(CHUNKS).load(Ordering::Acquire)
    }

    /// True when half of the ring is free, and as much as the last record needed that found no room.
    pub(crate) fn has_room_for_any(&mut self) -> Result<bool> {
        let needed = self.wanted.max(M::LINES / 2);
        self.has_room(M::LINES - 1).map(|all| all || self.tail + needed < self.seen_head + M::LINES)
    }
}

/// A record that was found but not yet released.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    pub(crate) body_bytes: usize,
    /// What is in the urgent ring goes before it.
    pub(crate) follows_urgent: bool,
    base: usize,
    lines: u64,
}

/// The reading side. Callers serialise access.
pub(crate) struct Consumer<M> {
    memory: M,
    head: u64,
    number: u64,
    /// `head` at the last look at the producer's flag.
    looked_at: u64,
}

impl<M: Memory> Consumer<M> {
    /// The consumer of a fresh, zeroed ring.
    pub(crate) fn new(memory: M) -> Self {
        Self { memory, head: 0, number: 1, looked_at: 0 }
    }

    /// The next record, if there is one.
    ///
    /// Inlined: what it returns is taken apart at once, and putting it together in memory costs more than finding it.
    #[inline(always)]
    pub(crate) fn peek(&mut self) -> Result<Option<Record>> {
        loop {
            let base = line_word::<M>(self.head);
            let ready = self.memory.word(base).load(Ordering::Acquire);
            if ready != self.number {
                return if ready == 0 { Ok(None) } else { Err(strange_number(ready)) };
            }
            let shape = self.memory.word(base + 1).load(Ordering::Relaxed);
            let kind = Kind::from_code(shape as u8)?;
            let lines = (shape >> 8) & 0x7f_ffff;
            let body_bytes = (shape >> 32) as usize;
            let fits = lines >= 1
                && self.head % M::LINES + lines <= M::LINES
                && (body_bytes + 16).div_ceil(64) as u64 <= lines
                && body_bytes <= body_bytes_max(M::LINES);
            if !fits {
                return Err(strange_shape(lines, body_bytes));
            }
            let follows_urgent = shape & FOLLOWS_URGENT != 0;
            let record = Record { kind, body_bytes, follows_urgent, base, lines };
            if kind != Kind::Pad {
                return Ok(Some(record));
            }
            // It fills the end of the ring; so there is one in a row, and a peer that writes others is not read for as
            // long as it does.
            if self.head.is_multiple_of(M::LINES) || self.head % M::LINES + lines != M::LINES {
                return Err(strange_shape(lines, body_bytes));
            }
            self.release(record);
        }
    }

    /// Whether [`Consumer::peek`] finds something, be it impossible.
    #[inline]
    pub(crate) fn has_something(&self) -> bool {
        self.memory.word(line_word::<M>(self.head)).load(Ordering::Relaxed) != 0
    }

    /// Copies body bytes from `offset_bytes` (a multiple of 8) into `target`. The range was checked by the caller's
    /// own arithmetic against `body_bytes`; beyond it is an error.
    #[inline]
    pub(crate) fn read(&self, record: &Record, offset_bytes: usize, target: &mut [u8]) -> Result<()> {
        let end = offset_bytes.checked_add(target.len()).filter(|end| *end <= record.body_bytes.next_multiple_of(8));
        if end.is_none() || !offset_bytes.is_multiple_of(8) {
            return Err(strange_field(offset_bytes, record));
        }
        let mut next = record.base + 2 + offset_bytes / 8;
        let (words, rest) = target.as_chunks_mut::<8>();
        for word in words {
            *word = self.memory.word(next).load(Ordering::Relaxed).to_ne_bytes();
            next += 1;
        }
        if !rest.is_empty() {
            let last = self.memory.word(next).load(Ordering::Relaxed).to_ne_bytes();
            let length = rest.len();
            rest.copy_from_slice(&last[..length]);
        }
        Ok(())
    }

    /// Body words from `offset_bytes` on, which is a multiple of 8.
    #[inline]
    pub(crate) fn words<const N: usize>(&self, record: &Record, offset_bytes: usize) -> Result<[u64; N]> {
        if !offset_bytes.is_multiple_of(8) || offset_bytes.saturating_add(8 * N) > record.body_bytes.next_multiple_of(8)
        {
            return Err(strange_field(offset_bytes, record));
        }
        let first = record.base + 2 + offset_bytes / 8;
        Ok(std::array::from_fn(|index| self.memory.word(first + index).load(Ordering::Relaxed)))
    }

    /// Gives the record's lines back to the producer.
    #[inline]
    pub(crate) fn release(&mut self, record: Record) {
        self.head += record.lines;
        self.number += 1;
        self.memory.word(HEAD).store(self.head, Ordering::Release);
    }

    /// Why nothing more comes; `None` while something may. What was sent before is still in the ring.
    pub(crate) fn closed(&self) -> Option<u8> {
        let code = self.memory.word(CLOSED).load(Ordering::Acquire);
        (code != 0).then_some(code as u8)
    }

    /// As [`Consumer::closed`], for memory of the producer's: where nothing is said, what was read there before is what
    /// the producer has sent.
    pub(crate) fn closed_meanwhile(&self) -> Option<u8> {
        fence(Ordering::SeqCst);
        self.closed()
    }

    /// The producer's signs of life, counted.
    pub(crate) fn beats(&self) -> u64 {
        self.memory.word(BEAT).load(Ordering::Acquire)
    }

    /// Tells the producer that one more chunk of its stream was taken.
    pub(crate) fn chunk_taken(&self, total: u64) {
        self.memory.word(CHUNKS).store(total, Ordering::Release);
    }

    /// True when something was released since the last look at the producer's flag. Whoever stops reading looks.
    pub(crate) fn owes_a_look(&self) -> bool {
        self.looked_at != self.head
    }

    /// True when so much was released since the last look at the producer's flag that whoever goes on reading looks.
    ///
    /// A producer that waits for room finds enough when at most half of the ring is still to be read, so that it is
    /// rung while there is something to read.
    pub(crate) fn is_late_to_look(&self) -> bool {
        self.head - self.looked_at >= M::LINES / 4
    }

    /// After releasing: true when the producer waits for room and must be rung. Clears its flag.
    pub(crate) fn must_ring(&mut self) -> bool {
        self.looked_at = self.head;
        fence(Ordering::SeqCst);
        take_flag(self.memory.word(PRODUCER_ARMED))
    }

    /// Announces that this side is about to sleep. The caller looks once more afterwards.
    pub(crate) fn arm(&self) {
        set_flag(self.memory.word(CONSUMER_ARMED));
        fence(Ordering::SeqCst);
    }

    /// Takes the announcement back.
    pub(crate) fn disarm(&self) {
        let armed = self.memory.word(CONSUMER_ARMED);
        if armed.load(Ordering::Relaxed) != 0 {
            armed.store(0, Ordering::Relaxed);
        }
    }
}

/// Says on which core the producer's side runs, in a ring that it writes. Costs no write while that stays so.
#[inline]
pub(crate) fn note_core<M: Memory>(ring: &M, core: u32) {
    let word = ring.word(CORE);
    // Zero stands for a side that has not said anything.
    let said = u64::from(core) + 1;
    if word.load(Ordering::Relaxed) != said {
        word.store(said, Ordering::Relaxed);
    }
}

/// Whether the producer's side has said last that it runs on this core.
pub(crate) fn is_on_core<M: Memory>(ring: &M, core: u32) -> bool {
    ring.word(CORE).load(Ordering::Relaxed) == u64::from(core) + 1
}

/// Whether the consumer's side has announced that it sleeps, and was not rung since.
pub(crate) fn is_consumer_armed<M: Memory>(ring: &M) -> bool {
    ring.word(CONSUMER_ARMED).load(Ordering::Relaxed) != 0
}

/// Sets a flag that the other side takes by an exchange.
fn set_flag(flag: &AtomicU64) {
    if cfg!(loom) {
        // To loom a store may come before an exchange that has read what was there before it, which no machine allows.
        flag.swap(1, Ordering::Relaxed);
    } else {
        flag.store(1, Ordering::Relaxed);
    }
}

fn take_flag(flag: &AtomicU64) -> bool {
    flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::AcqRel) != 0
}

fn line_word<M: Memory>(line: u64) -> usize {
    DATA + (line % M::LINES) as usize * LINE_WORDS
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::sync::Arc;

    /// A ring on the heap, for tests of the protocol alone.
    pub(in crate::shm) struct Heap(pub(in crate::shm) Vec<AtomicU64>);

    impl Memory for Arc<Heap> {
        const LINES: u64 = LINES;

        fn word(&self, index: usize) -> &AtomicU64 {
            &self.0[index]
        }
    }

    pub(in crate::shm) fn ring() -> (Arc<Heap>, Producer<Arc<Heap>>, Consumer<Arc<Heap>>) {
        let memory = Arc::new(Heap((0..words(LINES)).map(|_| AtomicU64::new(0)).collect()));
        (memory.clone(), Producer::new(memory.clone()), Consumer::new(memory))
    }

    #[cfg(not(loom))]
    mod plain {
        use super::*;
        use proptest::prelude::*;

        /// Records of one case, and rounds of a loop; both go round the ring several times. Under miri each takes long.
        const RECORDS_MAX: usize = if cfg!(miri) { 40 } else { 200 };
        const ROUNDS: u64 = if cfg!(miri) { 200 } else { 10_000 };

        /// Whoever was told of room for it would try again and again.
        #[test]
        fn there_is_no_room_for_a_record_whose_padding_does_not_fit() {
            let (_, mut producer, mut consumer) = ring();
            let mut take = |records: u64| {
                for _ in 0..records {
                    let record = consumer.peek().expect("sound").expect("it is there");
                    consumer.release(record);
                }
            };
            let before = LINES / 2 + 8;
            (0..before).for_each(|_| assert!(producer.push(Kind::Chunk, &[&[0; 8]]).expect("it is small")));
            take(LINES / 2 - 8);
            let largest = vec![0; BODY_BYTES_MAX];
            assert!(producer.has_room_for_any().expect("sound"), "no record has found none yet");
            assert!(!producer.push(Kind::Chunk, &[&largest]).expect("it is not too large"), "it goes into neither end");
            assert!(!producer.has_room_for_any().expect("sound"), "half of the ring is free, and it needs more");
            take(before - (LINES / 2 - 8));
            assert!(producer.has_room_for_any().expect("sound"));
            assert!(producer.push(Kind::Chunk, &[&largest]).expect("it is not too large"));
        }

        #[test]
        fn each_side_says_on_which_core_it_is() {
            let (memory, _, consumer) = ring();
            assert!(!is_on_core(&memory, 0), "nothing is said");
            for core in [0, 5, u32::MAX, 0] {
                note_core(&memory, core);
                assert!(is_on_core(&memory, core) && !is_on_core(&memory, core ^ 1), "core {core}");
            }
            assert!(!is_consumer_armed(&memory));
            consumer.arm();
            assert!(is_consumer_armed(&memory), "it sleeps");
            consumer.disarm();
            assert!(!is_consumer_armed(&memory));
        }

        fn take(consumer: &mut Consumer<Arc<Heap>>) -> Option<Vec<u8>> {
            let record = consumer.peek().expect("the ring is sound")?;
            let mut body = vec![0; record.body_bytes];
            consumer.read(&record, 0, &mut body).expect("the range is inside");
            consumer.release(record);
            Some(body)
        }

        proptest! {
            #[test]
            fn what_goes_in_comes_out_in_order(
                sizes in prop::collection::vec(0usize..BODY_BYTES_MAX, 1..RECORDS_MAX),
                drain_every in 1usize..8,
            ) {
                let (_, mut producer, mut consumer) = ring();
                let (mut sent, mut received) = (std::collections::VecDeque::new(), 0usize);
                for (index, size) in sizes.iter().enumerate() {
                    let body: Vec<u8> = (0..*size).map(|byte| (byte * 7 + index) as u8).collect();
                    while !producer.push(Kind::Message, &[&body]).expect("it is small enough") {
                        let expected: Vec<u8> = sent.pop_front().expect("a full ring holds something");
                        prop_assert_eq!(&take(&mut consumer).expect("it was pushed")[..expected.len()], &expected[..]);
                        received += 1;
                    }
                    sent.push_back(body);
                    if index % drain_every == 0 && let Some(body) = take(&mut consumer) {
                        let expected = sent.pop_front().expect("it was pushed");
                        prop_assert_eq!(&body[..expected.len()], &expected[..]);
                        received += 1;
                    }
                }
                while let Some(body) = take(&mut consumer) {
                    let expected = sent.pop_front().expect("it was pushed");
                    prop_assert_eq!(&body[..expected.len()], &expected[..]);
                    received += 1;
                }
                prop_assert_eq!(received, sizes.len());
            }
        }

        #[test]
        fn payload_that_looks_like_a_ready_word_is_not_a_record() {
            let (_, mut producer, mut consumer) = ring();
            for number in 1..ROUNDS {
                let lookalike: Vec<u8> = (0..40).flat_map(|ahead| (number + ahead).to_ne_bytes()).collect();
                assert!(producer.push(Kind::Message, &[&lookalike]).expect("it is small"));
                assert_eq!(take(&mut consumer).expect("one record"), lookalike);
                assert!(consumer.peek().expect("the ring is sound").is_none(), "nothing was pushed after it");
            }
        }

        #[test]
        fn impossible_values_are_errors() {
            for (word, value) in [(DATA, 99), (DATA + 1, 0xff), (DATA + 1, 2 | 9 << 8 | 5000 << 32), (DATA + 1, 2)] {
                let (memory, mut producer, mut consumer) = ring();
                producer.push(Kind::Message, &[b"hello"]).expect("it is small");
                memory.0[word].store(value, Ordering::SeqCst);
                assert_eq!(consumer.peek().expect_err("it is damaged").kind(), ErrorKind::Protocol);
            }
            let (memory, mut producer, _) = ring();
            memory.0[HEAD].store(10_000, Ordering::SeqCst);
            let filled = (0..LINES).try_for_each(|_| producer.push(Kind::Chunk, &[&[0; 48]]).map(|_| ()));
            assert_eq!(filled.expect_err("the index is impossible").kind(), ErrorKind::Protocol);
        }

        #[test]
        fn a_reader_that_looks_when_it_is_late_leaves_no_producer_asleep() {
            for body_bytes in [8, 100, 1000, 2048] {
                let (_, mut producer, mut consumer) = ring();
                for _ in 0..3 {
                    while producer.push(Kind::Message, &[&vec![1; body_bytes]]).expect("it is small") {}
                    producer.arm();
                    let mut rung = false;
                    while !rung {
                        let record = consumer.peek().expect("sound").expect("rung while there is something to read");
                        consumer.release(record);
                        rung = consumer.is_late_to_look() && consumer.must_ring();
                    }
                    assert!(producer.push(Kind::Message, &[&vec![1; body_bytes]]).expect("it is small"));
                }
            }
        }

        /// The memory of a peer that writes one pad record after the other, each where its reader looks next.
        struct Padding {
            words: Vec<AtomicU64>,
            written: AtomicU64,
        }

        impl Memory for &Padding {
            const LINES: u64 = LINES;

            fn word(&self, index: usize) -> &AtomicU64 {
                if index >= DATA && (index - DATA).is_multiple_of(LINE_WORDS) {
                    let number = self.written.fetch_add(1, Ordering::SeqCst) + 1;
                    assert!(number < 10_000, "its reader reads on as long as it writes");
                    self.words[index + 1].store(Kind::Pad as u64 | 1 << 8, Ordering::SeqCst);
                    self.words[index].store(number, Ordering::SeqCst);
                }
                &self.words[index]
            }
        }

        #[test]
        fn f43_a_peer_that_writes_nothing_but_pads_keeps_nobody_reading() {
            let words = (0..words(LINES)).map(|_| AtomicU64::new(0)).collect();
            let padding = Padding { words, written: AtomicU64::new(0) };
            let refused = Consumer::new(&padding).peek().expect_err("the end of the ring is filled once, if at all");
            assert_eq!(refused.kind(), ErrorKind::Protocol);
        }

        #[test]
        fn a_sleeper_is_rung_once() {
            let (_, mut producer, mut consumer) = ring();
            consumer.arm();
            producer.push(Kind::Message, &[b"x"]).expect("it is small");
            assert!(producer.must_ring());
            assert!(!producer.must_ring());
            producer.arm();
            let record = consumer.peek().expect("sound").expect("one record");
            consumer.release(record);
            assert!(consumer.must_ring());
            assert!(!consumer.must_ring());
        }
    }
}
