//! A receiver that takes nothing.

use super::content::{anywhere, message, message_of, private, wanted};
use super::pairs::{Pair, Pairs};
use super::watch::{soon, until};
use sheave_base::limits::{OUTBOUND_BYTES_MAX, OUTBOUND_MESSAGES_MAX, UNEXPECTED_MESSAGES_MAX};
use sheave_base::{Error, ErrorKind, Tag, Work};
use sheave_net::{Envelope, Outgoing};
use sheave_tensor::{Dtype, Mode, Tensor};
use std::time::{Duration, Instant};

/// More than any medium holds on its way: a socket's buffers have room for some ten million bytes of small frames.
const ON_THE_WAY_MAX: usize = 200_000;

fn numbered(number: u64) -> Outgoing {
    // Large enough that a socket's buffers do not take more messages than everything else together.
    let tensor = Tensor::from_slice(&[number as i64], [1]).expect("memory");
    message_of(1, [tensor], vec![0; 512])
}

struct Flood<'a> {
    pair: &'a Pair,
    works: Vec<Work<()>>,
    sent: u64,
}

impl Flood<'_> {
    fn send(&mut self) -> Result<(), Error> {
        self.works.push(self.pair.left.isend(self.pair.to_right, numbered(self.sent))?);
        self.sent += 1;
        Ok(())
    }

    /// Sends while there is room; the receiver's node takes what it may in the meantime.
    fn fill(&mut self, enough: impl Fn(&Self) -> bool) {
        while !enough(self) {
            if let Err(error) = self.send() {
                assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

pub(crate) fn a_receiver_that_takes_nothing_pushes_back(pairs: &dyn Pairs) {
    let pair = pairs.pair();
    let Pair { left, to_right, right, to_left } = &pair;
    let mut flood = Flood { pair: &pair, works: Vec::new(), sent: 0 };
    flood.fill(|flood| flood.sent as usize >= UNEXPECTED_MESSAGES_MAX);
    until("the receiver is full", || {
        flood.works.iter().all(Work::is_done) || right.unexpected().0 == UNEXPECTED_MESSAGES_MAX
    });
    // The way to it fills up too; a message that is still on its way after a while is one that finds no room.
    flood.fill(|flood| {
        let asks = flood.sent.is_multiple_of(256) && right.unexpected().0 == UNEXPECTED_MESSAGES_MAX;
        let last = flood.works.last().filter(|_| asks);
        last.is_some_and(|work| !work.wait_until(Some(Instant::now() + Duration::from_millis(100)), None).unwrap())
    });

    // On a busy machine the receiver's node may have been slow, and takes one more after all: then there is a next one.
    let late = loop {
        let until = Some(Instant::now() + Duration::from_millis(100));
        match left.send(*to_right, numbered(flood.sent), until, None) {
            Ok(()) => flood.sent += 1,
            Err(late) => break late,
        }
        assert!(flood.sent as usize <= UNEXPECTED_MESSAGES_MAX + OUTBOUND_MESSAGES_MAX + ON_THE_WAY_MAX, "no limit");
    };
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded, "{late}");
    assert_eq!(late.about().map(|peer| peer.name.as_str()), Some("right"));
    // The wait ended, not the send.
    flood.sent += 1;

    let full = loop {
        if let Err(error) = flood.send() {
            break error;
        }
        assert!(flood.sent as usize <= UNEXPECTED_MESSAGES_MAX + OUTBOUND_MESSAGES_MAX + ON_THE_WAY_MAX, "no limit");
    };
    assert_eq!(full.kind(), ErrorKind::LimitExceeded);
    assert_eq!(full.about().map(|peer| peer.name.as_str()), Some("right"), "{full}");
    assert!(flood.sent as usize >= UNEXPECTED_MESSAGES_MAX + OUTBOUND_MESSAGES_MAX);
    assert_eq!(right.unexpected(), (UNEXPECTED_MESSAGES_MAX, UNEXPECTED_MESSAGES_MAX as u64 * (8 + 512)));

    for number in 0..flood.sent {
        let got = right.recv(wanted(Some(*to_left), 1), anywhere(), soon(), None).unwrap();
        assert_eq!(got.into_tensor().unwrap().to_vec::<i64>().unwrap(), [number as i64]);
    }
    for work in flood.works {
        work.join().unwrap();
    }
    left.send(*to_right, message(2, private(9, 9), Mode::Copy), soon(), None).unwrap();
    assert_eq!(right.recv(wanted(None, 2), anywhere(), soon(), None).unwrap().parts[0].dtype(), Dtype::U8);
    assert_eq!(right.unexpected(), (0, 0));
}

/// What is given away to a link that takes nothing is bounded in bytes.
pub(crate) fn f15_what_waits_for_room_is_bounded_in_bytes(pairs: &dyn Pairs) {
    const GIB: u64 = 1 << 30;
    let Pair { left, to_right, right, .. } = &pairs.pair();
    // Nobody is there for these yet.
    right.expect(5);
    let mut sent_bytes = 0;
    let full = loop {
        // Nobody writes to it, so it takes no memory.
        let tensor = Tensor::private(Dtype::U8, [GIB]).expect("it is only reserved");
        match left.isend(*to_right, Outgoing::tensor(Envelope::of(5, Tag(1), 0), tensor, Mode::Move)) {
            Ok(_) => sent_bytes += GIB,
            Err(error) => break error,
        }
        assert!(sent_bytes <= OUTBOUND_BYTES_MAX + 3 * GIB, "no limit");
    };
    assert_eq!(full.kind(), ErrorKind::LimitExceeded, "{full}");
    assert!(sent_bytes >= OUTBOUND_BYTES_MAX, "{sent_bytes} bytes");
    // A short one is refused too; the limit is that of the queue.
    let full = left.isend(*to_right, Outgoing::control(Envelope::of(5, Tag(1), 0), vec![0; 8])).unwrap_err();
    assert!(full.what().contains("bytes"), "{full}");
}
