//! A ring in the memory of one process, whose words an input may change at any time.

use super::{
    BODY_BYTES_MAX, CONSUMER_ARMED, Consumer, DATA, HEAD, Kind, LINE_WORDS, LINES, Memory, PRODUCER_ARMED, Producer,
    Record, line_word, words,
};
use sheave_base::fuzz::Input;
use sheave_base::sync::{AtomicU64, Ordering};
use sheave_base::{Error, ErrorKind};
use std::collections::VecDeque;
use std::sync::Arc;

/// An index outside of the ring is one outside of the vector, and panics.
struct Words(Vec<AtomicU64>);

impl Memory for Arc<Words> {
    const LINES: u64 = LINES;

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[index]
    }
}

/// Drives both ends of a ring through the steps that the input says: pushes, looks, releases, sleeps, and words that a
/// peer writes which breaks the protocol. Until it does, everything arrives once, whole and in order, and nobody sleeps
/// through anything; from then on each end finds a record that is inside of the ring, or `Protocol`.
pub(crate) fn ring(data: &[u8]) {
    let memory = Arc::new(Words((0..words(LINES)).map(|_| AtomicU64::new(0)).collect()));
    let (producer, consumer) = (Producer::new(Arc::clone(&memory)), Consumer::new(Arc::clone(&memory)));
    let sent = VecDeque::new();
    let mut ends = Ends { memory, producer, consumer, sent, is_sound: true, beats: 0 };
    let mut input = Input::new(data);
    while !input.is_empty() {
        if let Err(error) = ends.step(&mut input) {
            assert!(!ends.is_sound, "both ends keep to the protocol: {error}");
            return assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        }
    }
    ends.drain();
}

struct Ends {
    memory: Arc<Words>,
    producer: Producer<Arc<Words>>,
    consumer: Consumer<Arc<Words>>,
    /// Kind, length and first byte of what is in the ring.
    sent: VecDeque<(Kind, usize, u8)>,
    /// Nobody has broken the protocol yet.
    is_sound: bool,
    beats: u64,
}

impl Ends {
    fn step(&mut self, input: &mut Input<'_>) -> Result<(), Error> {
        let what = input.byte();
        match what % 8 {
            0 => self.push(what >> 3, input)?,
            1 => drop(self.take()?),
            2 => {
                if let Some(record) = self.consumer.peek()? {
                    self.look(&record, input);
                }
            }
            3 => self.spoil(usize::from(input.short()) % words(LINES), input.word()),
            // Where the consumer looks next: a number near to what it expects, and any shape.
            4 => {
                let base = line_word::<Arc<Words>>(self.consumer.head);
                let near = u64::from(what >> 3).wrapping_sub(8);
                self.spoil(base + 1, input.word());
                self.spoil(base, self.consumer.number.wrapping_add(near));
            }
            5 => self.sleep(what >> 3)?,
            6 => self.say(what >> 3, input),
            _ => {
                let near = u64::from(what >> 3).wrapping_sub(16);
                self.spoil(HEAD, self.consumer.head.wrapping_add(near));
            }
        }
        Ok(())
    }

    fn spoil(&mut self, index: usize, value: u64) {
        self.is_sound = false;
        self.memory.word(index).store(value, Ordering::Relaxed);
    }

    fn push(&mut self, which: u8, input: &mut Input<'_>) -> Result<(), Error> {
        let kind = Kind::from_code(2 + which % 6).expect("there are so many");
        let (length, first) = (usize::from(input.short()) % (BODY_BYTES_MAX + 9), input.byte());
        let body: Vec<u8> = (0..length).map(|at| first.wrapping_add(at as u8)).collect();
        match self.producer.push(kind, &[&body]) {
            Ok(true) => self.sent.push_back((kind, length, first)),
            Ok(false) => assert!(!self.is_sound || !self.sent.is_empty(), "no room in an empty ring"),
            Err(error) if error.kind() == ErrorKind::Internal => {
                assert!(length.next_multiple_of(8) > BODY_BYTES_MAX, "{length} bytes: {error}");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn take(&mut self) -> Result<Option<Record>, Error> {
        let Some(record) = self.consumer.peek()? else {
            assert!(!self.is_sound || self.sent.is_empty(), "what was sent is not there");
            return Ok(None);
        };
        let mut body = vec![0; record.body_bytes];
        self.consumer.read(&record, 0, &mut body).expect("it is as long as it says");
        if self.is_sound {
            let (kind, length, first) = self.sent.pop_front().expect("nothing was sent");
            assert_eq!((record.kind, record.body_bytes), (kind, length.next_multiple_of(8)));
            assert!(body[..length].iter().enumerate().all(|(at, byte)| *byte == first.wrapping_add(at as u8)));
        }
        self.consumer.release(record);
        assert!(!self.is_sound || self.memory.word(HEAD).load(Ordering::Relaxed) <= self.producer.end_line());
        Ok(Some(record))
    }

    /// Fields of a record, inside of it and beyond.
    fn look(&self, record: &Record, input: &mut Input<'_>) {
        assert!(record.base >= DATA && record.base + record.lines as usize * LINE_WORDS <= words(LINES), "{record:?}");
        assert!(record.body_bytes + 16 <= record.lines as usize * LINE_WORDS * 8, "{record:?}");
        assert!(record.body_bytes <= BODY_BYTES_MAX && record.kind != Kind::Pad, "{record:?}");
        let (at, length) = (usize::from(input.short()), usize::from(input.short()) % 4096);
        let is_inside = at.is_multiple_of(8) && at + length <= record.body_bytes.next_multiple_of(8);
        let mut field = vec![0; length];
        let read = self.consumer.read(record, at, &mut field);
        assert_eq!(read.is_ok(), is_inside, "{length} bytes at {at} of {record:?}");
        let words = self.consumer.words::<2>(record, at);
        let are_inside = at.is_multiple_of(8) && at + 16 <= record.body_bytes.next_multiple_of(8);
        assert_eq!(words.is_ok(), are_inside, "two words at {at} of {record:?}");
    }

    /// Either end goes to sleep, and the other one wakes it if there is something for it.
    fn sleep(&mut self, which: u8) -> Result<(), Error> {
        if which & 1 == 0 {
            self.consumer.arm();
            if self.consumer.peek()?.is_none() && self.producer.push(Kind::Returns, &[&[1; 8]])? {
                assert!(self.producer.must_ring(), "the consumer sleeps, and something has come");
                self.sent.push_back((Kind::Returns, 8, 1));
                // The eight bytes are all the same.
                if self.is_sound {
                    let record = self.consumer.peek()?.expect("it has come");
                    self.consumer.release(record);
                    self.sent.pop_back();
                }
            }
            self.consumer.disarm();
            assert_eq!(self.memory.word(CONSUMER_ARMED).load(Ordering::Relaxed), 0);
        } else {
            self.producer.arm();
            let was_owed = self.take()?.is_some();
            assert!(!was_owed || self.consumer.owes_a_look() || !self.is_sound);
            assert!(self.consumer.must_ring(), "the producer sleeps, and there may be room");
            assert!(!self.consumer.must_ring() && !self.consumer.owes_a_look(), "it is rung once");
            assert_eq!(self.memory.word(PRODUCER_ARMED).load(Ordering::Relaxed), 0);
        }
        Ok(())
    }

    /// The words beside the records.
    fn say(&mut self, which: u8, input: &mut Input<'_>) {
        match which % 4 {
            0 => {
                let code = input.byte();
                self.producer.close(code);
                let expected = (code != 0).then_some(code);
                assert_eq!((self.consumer.closed(), self.consumer.closed_meanwhile()), (expected, expected));
            }
            1 => {
                self.producer.beat();
                let beats = self.consumer.beats();
                assert!(!self.is_sound || beats == self.beats + 1);
                self.beats = beats;
            }
            2 => {
                let chunks = input.word();
                self.consumer.chunk_taken(chunks);
                assert_eq!(self.producer.chunks_taken(), chunks);
            }
            _ => {
                let has_room = self.producer.has_room_for_any();
                assert!(!self.is_sound || has_room.is_ok_and(|has_room| has_room || !self.sent.is_empty()));
            }
        }
    }

    /// What is left is all there, or the peer has broken the protocol; in either case it ends.
    fn drain(&mut self) {
        for _ in 0..=LINES {
            match self.take() {
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(error) => {
                    assert!(!self.is_sound, "{error}");
                    return assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
                }
            }
        }
        panic!("more records than there are lines, and nobody writes");
    }
}
