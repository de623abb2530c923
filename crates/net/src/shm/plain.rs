//! The short form of a message without tensors: most calls and their answers.
//!
//! Such messages are told from others by the kind of their record. The body of the record is
//!
//! | words | field |
//! |---|---|
//! | 1 | tag |
//! | 1 | context |
//! | 1 | correlation |
//! | 1 | aux (32 bits), endpoint (8), bytes of the control part (16), zero (8) |
//! | the rest | the control part, rounded up to a whole word |
//!
//! so that up to 16 bytes of it fill one cache line together with the record's own two words. The sequence number is
//! left out: a ring is in order, and both sides count.

use super::ring::{Consumer, Memory, Record};
use crate::message::{Envelope, Outgoing};
use sheave_base::limits::ENDPOINTS_MAX;
use sheave_base::{Error, ErrorKind, Result, Tag};

const FIXED_WORDS: usize = 4;

/// Head of a message, which stands before its control part; `None` for one that cannot take the short form. The caller
/// knows that its bytes fit into a record.
#[inline]
pub(crate) fn head_of(message: &Outgoing) -> Option<[[u8; 8]; FIXED_WORDS]> {
    let length_bytes = u16::try_from(message.control.len()).ok().filter(|_| message.parts.is_empty())?;
    let Envelope { endpoint, tag, context, correlation, aux } = message.envelope;
    let mixed = u64::from(aux) | u64::from(endpoint) << 32 | u64::from(length_bytes) << 40;
    Some([tag.0, context, correlation, mixed].map(u64::to_ne_bytes))
}

/// Head of a message that was read.
pub(crate) struct Plain {
    pub(crate) envelope: Envelope,
    pub(crate) control_bytes: usize,
}

impl Plain {
    /// Offset of the control part in the record's body.
    pub(crate) const OFFSET_BYTES: usize = 8 * FIXED_WORDS;

    /// Reads and checks everything that stands before the control part, and that it is all there.
    #[inline]
    pub(crate) fn read<M: Memory>(consumer: &Consumer<M>, record: &Record) -> Result<Self> {
        let [tag, context, correlation, mixed] = consumer.words(record, 0)?;
        let (endpoint, control_bytes, zero) = ((mixed >> 32) as u8, usize::from((mixed >> 40) as u16), mixed >> 56);
        let is_known = usize::from(endpoint) < ENDPOINTS_MAX && zero == 0;
        if !is_known || Self::OFFSET_BYTES + control_bytes.next_multiple_of(8) != record.body_bytes {
            return Err(wrong());
        }
        let envelope = Envelope { endpoint, tag: Tag(tag), context, correlation, aux: mixed as u32 };
        Ok(Self { envelope, control_bytes })
    }
}

#[cold]
fn wrong() -> Error {
    Error::new(ErrorKind::Protocol, "the peer sent a message without tensors that says something impossible")
        .hint("the peer runs another version or its memory is damaged; restart it")
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use super::super::ring::tests::ring;
    use super::super::ring::{Kind as RecordKind, LINES};
    use super::*;
    use sheave_tensor::{Mode, Tensor};

    fn message(control: &[u8]) -> Outgoing {
        let endpoint = ENDPOINTS_MAX as u8 - 1;
        let envelope = Envelope { endpoint, tag: Tag(u64::MAX), context: 2, correlation: 3, aux: u32::MAX };
        Outgoing::control(envelope, control.to_vec())
    }

    /// The body of a record of this message.
    pub(crate) fn body(message: &Outgoing) -> Vec<u8> {
        [head_of(message).expect("it has no tensors").as_flattened(), &message.control].concat()
    }

    #[test]
    fn what_is_written_is_read() {
        for length in [0, 1, 7, 8, 9, 16, 17, 1000] {
            let message = message(&vec![7; length]);
            let head = head_of(&message).expect("it has no tensors");
            let (_, mut producer, mut consumer) = ring();
            assert!(producer.push(RecordKind::Plain, &[head.as_flattened(), &message.control]).unwrap());
            let record = consumer.peek().unwrap().expect("it was pushed");
            let plain = Plain::read(&consumer, &record).unwrap();
            assert_eq!((plain.envelope, plain.control_bytes), (message.envelope, length));
            let mut control = vec![0; length];
            consumer.read(&record, Plain::OFFSET_BYTES, &mut control).unwrap();
            assert_eq!(control, message.control);
        }
    }

    #[test]
    fn sixteen_bytes_fill_one_line() {
        let message = message(&[1; 16]);
        let head = head_of(&message).expect("it has no tensors");
        let (_, mut producer, _) = ring();
        for _ in 1..LINES {
            assert!(producer.push(RecordKind::Plain, &[head.as_flattened(), &message.control]).unwrap());
        }
        assert!(!producer.push(RecordKind::Plain, &[head.as_flattened(), &message.control]).unwrap());
    }

    #[test]
    fn other_messages_take_the_long_form() {
        assert!(head_of(&message(&[0; 65_535])).is_some());
        assert!(head_of(&message(&[0; 65_536])).is_none());
        let tensor = Tensor::from_slice(&[1u8], [1]).unwrap();
        assert!(head_of(&Outgoing::tensor(Envelope::data(1, Tag(1)), tensor, Mode::Copy)).is_none());
    }

    #[test]
    fn every_field_that_lies_is_refused() {
        let head = head_of(&message(&[1; 12])).expect("it has no tensors").map(u64::from_ne_bytes);
        let read = |mixed: u64, body_bytes: usize| {
            let words = [head[0], head[1], head[2], mixed].map(u64::to_ne_bytes);
            let body = [words.as_flattened(), &[0; 64]].concat();
            let (_, mut producer, mut consumer) = ring();
            assert!(producer.push(RecordKind::Plain, &[&body[..body_bytes]]).unwrap());
            let record = consumer.peek().unwrap().expect("it was pushed");
            Plain::read(&consumer, &record).map(|plain| plain.control_bytes).map_err(|error| error.kind())
        };
        let wrong = Err(ErrorKind::Protocol);
        let field = |shift: u64, bits: u64, value: u64| head[3] & !(bits << shift) | value << shift;
        assert_eq!(read(head[3], 48), Ok(12));
        for endpoint in [ENDPOINTS_MAX as u64, 255] {
            assert_eq!(read(field(32, 0xff, endpoint), 48), wrong, "{endpoint}");
        }
        for control_bytes in [0, 8, 17, 65_535] {
            assert_eq!(read(field(40, 0xffff, control_bytes), 48), wrong, "{control_bytes}");
        }
        assert_eq!(read(field(56, 0xff, 1), 48), wrong);
        for body_bytes in [0, 24, 32, 40, 56] {
            assert_eq!(read(head[3], body_bytes), wrong, "{body_bytes}");
        }
    }
}
