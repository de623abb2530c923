//! Every interleaving of the two ends of a ring, as far as it matters where it wraps, is full or falls asleep.
//!
//! Most of what a model begins with happens before its threads do, on one of them, so that loom explores the few steps
//! that are the model's matter.

use super::tests::{Heap, ring};
use super::{Consumer, Kind, LINES, Producer};
use loom::sync::Notify;
use loom::thread;
use std::sync::Arc;

/// Words of a body that takes two lines.
const TWO_LINES: usize = 7;

/// Where in such a body the ready word of its second line is.
const SECOND_READY: usize = 6;

type Sender = Producer<Arc<Heap>>;
type Receiver = Consumer<Arc<Heap>>;

/// A body that says which record it is of, and holds, where a later record's ready word will be, what that will say:
/// were it not cleared, it would pass for one.
fn body(number: u64, words: usize) -> Vec<u8> {
    let mut body = vec![number; words];
    if let Some(lookalike) = body.get_mut(SECOND_READY) {
        *lookalike = number + LINES;
    }
    body.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn push(producer: &mut Sender, number: u64, words: usize) -> bool {
    producer.push(Kind::Message, &[&body(number, words)]).expect("it is small")
}

/// Takes the next record, which is this one, if it is there.
fn take(consumer: &mut Receiver, number: u64, words: usize) -> bool {
    let Some(record) = consumer.peek().expect("the ring is sound") else { return false };
    let mut found = vec![0; record.body_bytes];
    consumer.read(&record, 0, &mut found).expect("it is as long as it says");
    assert_eq!((record.kind, found), (Kind::Message, body(number, words)), "record {number}");
    consumer.release(record);
    true
}

fn await_record(consumer: &mut Receiver, number: u64, words: usize) {
    while !take(consumer, number, words) {
        thread::yield_now();
    }
}

/// A ring that both ends have gone through for so many lines, one record after the other. Where they are even all lines
/// have held a record of two.
fn worn(lines: u64) -> (Sender, Receiver) {
    let (_, mut producer, mut consumer) = ring();
    for number in 1..=lines / 2 {
        assert!(push(&mut producer, number, TWO_LINES) && take(&mut consumer, number, TWO_LINES));
    }
    if lines % 2 == 1 {
        assert!(push(&mut producer, lines, 1) && take(&mut consumer, lines, 1));
    }
    assert_eq!(producer.tail, lines);
    (producer, consumer)
}

#[test]
fn loom_ring_delivers_whole_records_in_order() {
    loom::model(|| {
        let (mut producer, mut consumer) = worn(0);
        let thread = thread::spawn(move || (1..=2).for_each(|number| assert!(push(&mut producer, number, 1))));
        (1..=2).for_each(|number| await_record(&mut consumer, number, 1));
        thread.join().expect("no panic");
    });
}

/// Two lines do not fit behind the seventh: a pad fills the eighth, and the record lies at the beginning, over old ones
/// whose payload looks like what is to come.
#[test]
fn loom_a_record_that_wraps_comes_whole_behind_its_pad() {
    loom::model(|| {
        let (mut producer, mut consumer) = worn(2 * LINES - 1);
        let thread = thread::spawn(move || {
            assert!(push(&mut producer, 100, TWO_LINES));
            assert!(push(&mut producer, 101, 1));
        });
        await_record(&mut consumer, 100, TWO_LINES);
        await_record(&mut consumer, 101, 1);
        assert!(consumer.peek().expect("sound").is_none(), "nothing was pushed behind it");
        thread.join().expect("no panic");
    });
}

/// The ring is nearly full, so the lines that the producer would clear beforehand are just being read.
#[test]
fn loom_what_is_cleared_ahead_was_given_back() {
    loom::model(|| {
        let (mut producer, mut consumer) = worn(LINES);
        let filled = LINES - 3;
        (0..filled).for_each(|number| assert!(push(&mut producer, number, 1)));
        let thread = thread::spawn(move || {
            // Whether there is room for the last depends on how far the consumer is.
            let fit = (filled..LINES).take_while(|number| push(&mut producer, *number, 1)).count() as u64;
            assert!(fit >= 2, "one line alone stays free");
            filled + fit
        });
        (0..filled).for_each(|number| assert!(take(&mut consumer, number, 1), "record {number} was cleared"));
        let sent = thread.join().expect("no panic");
        (filled..sent).for_each(|number| assert!(take(&mut consumer, number, 1), "record {number} was cleared"));
        assert!(consumer.peek().expect("sound").is_none());
    });
}

/// A producer that finds no room says so, looks once more and sleeps; a consumer that stops reading looks and rings.
#[test]
fn loom_a_producer_that_waits_for_room_is_woken() {
    loom::model(|| {
        let (mut producer, mut consumer) = worn(LINES);
        let filled = LINES - 1;
        (0..filled).for_each(|number| assert!(push(&mut producer, number, 1)));
        let bell = Arc::new(Notify::new());
        let own = Arc::clone(&bell);
        let thread = thread::spawn(move || {
            while !push(&mut producer, filled, 1) {
                producer.arm();
                if push(&mut producer, filled, 1) {
                    return;
                }
                own.wait();
            }
        });
        assert!(take(&mut consumer, 0, 1));
        if consumer.owes_a_look() && consumer.must_ring() {
            bell.notify();
        }
        thread.join().expect("no panic");
        (1..=filled).for_each(|number| assert!(take(&mut consumer, number, 1)));
    });
}

/// A producer waits until half of the ring is free, and a consumer that goes on reading looks when it is late to.
#[test]
fn loom_a_producer_is_woken_while_there_is_something_to_read() {
    loom::model(|| {
        let (mut producer, mut consumer) = worn(0);
        let (filled, taken) = (LINES - 1, LINES / 4);
        (0..filled).for_each(|number| assert!(push(&mut producer, number, 1)));
        (0..taken).for_each(|number| assert!(take(&mut consumer, number, 1)));
        assert!(!consumer.must_ring(), "nobody waits yet");
        let bell = Arc::new(Notify::new());
        let own = Arc::clone(&bell);
        let thread = thread::spawn(move || {
            producer.arm();
            while !producer.has_room_for_any().expect("sound") {
                own.wait();
                producer.arm();
            }
        });
        for number in taken..2 * taken {
            assert!(take(&mut consumer, number, 1));
            if consumer.is_late_to_look() && consumer.must_ring() {
                bell.notify();
            }
        }
        thread.join().expect("no panic");
        assert!(take(&mut consumer, 2 * taken, 1), "there is something to read");
    });
}

/// A consumer falls asleep whenever it finds nothing, while records come in behind the end of the ring.
#[test]
fn loom_a_record_that_comes_while_its_consumer_falls_asleep_is_seen_or_wakes() {
    let mut builder = loom::model::Builder::new();
    // More switches between the two than these take minutes, and both go the same way round again.
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let (mut producer, mut consumer) = worn(LINES - 1);
        let bell = Arc::new(Notify::new());
        let rings = Arc::clone(&bell);
        let thread = thread::spawn(move || {
            for number in [100, 101] {
                assert!(push(&mut producer, number, if number == 100 { TWO_LINES } else { 1 }));
                if producer.must_ring() {
                    rings.notify();
                }
            }
        });
        for (number, words) in [(100, TWO_LINES), (101, 1)] {
            while !take(&mut consumer, number, words) {
                consumer.arm();
                if take(&mut consumer, number, words) {
                    break;
                }
                bell.wait();
            }
            consumer.disarm();
        }
        thread.join().expect("no panic");
    });
}

/// Whoever sees that the producer has ended finds all that it had sent.
#[test]
fn loom_what_was_sent_before_the_end_is_there() {
    loom::model(|| {
        let (mut producer, mut consumer) = worn(LINES - 1);
        let thread = thread::spawn(move || {
            assert!(push(&mut producer, 100, TWO_LINES));
            producer.close(3);
        });
        if consumer.closed().is_some() {
            assert!(take(&mut consumer, 100, TWO_LINES), "its last record");
            assert!(consumer.peek().expect("sound").is_none());
        }
        thread.join().expect("no panic");
    });
}

/// What is read of the producer's memory is read before it may be written again, or seen to be over.
#[test]
fn loom_what_is_copied_after_the_end_is_not_believed() {
    loom::model(|| {
        let (producer, consumer) = worn(0);
        let theirs = loom::sync::Arc::new(loom::sync::atomic::AtomicU64::new(1));
        let owner = loom::sync::Arc::clone(&theirs);
        let thread = thread::spawn(move || {
            producer.close(3);
            owner.store(2, loom::sync::atomic::Ordering::Relaxed);
        });
        let copied = theirs.load(loom::sync::atomic::Ordering::Relaxed);
        assert!(copied == 1 || consumer.closed_meanwhile().is_some(), "it is its owner's again");
        thread.join().expect("no panic");
    });
}
