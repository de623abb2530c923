//! The short form of a message: one tensor of few dimensions that is not empty, its bytes with it, and no control part.
//!
//! Such messages are told from others by the kind of their record. The body of the record is
//!
//! | words | field |
//! |---|---|
//! | 1 | tag |
//! | 1 | context |
//! | 1 | correlation |
//! | 1 | aux (32 bits), endpoint, dtype, number of dimensions, zero (8 bits each) |
//! | as many | dimensions |
//! | the rest | the elements, rounded up to a whole word |
//!
//! so that a tensor of one dimension and eight bytes fills one cache line together with the record's own two words. The
//! sequence number is left out: a ring is in order, and both sides count.

use super::ring::{BODY_BYTES_MAX, Consumer, Memory, Record};
use crate::message::{Envelope, Outgoing, Part};
use sheave_base::limits::ENDPOINTS_MAX;
use sheave_base::{Error, ErrorKind, Result, Tag};
use sheave_tensor::{Dtype, Mode};
use sheave_wire::TensorSpec;

/// Dimensions of a tensor that travels in the short form.
const DIMENSIONS_MAX: usize = 4;
const FIXED_WORDS: usize = 4;

/// What stands before the elements.
pub(crate) struct Head {
    words: [[u8; 8]; FIXED_WORDS + DIMENSIONS_MAX],
    count: usize,
}

impl Head {
    /// The head of a message that can take the short form; the caller knows that its bytes fit into a record.
    #[inline]
    pub(crate) fn of(message: &Outgoing) -> Option<(Self, &Part)> {
        let [part] = &message.parts[..] else { return None };
        let dimensions = part.tensor.shape().dimensions();
        let is_plain = message.control.is_empty() && part.mode != Mode::Share;
        if !is_plain || part.tensor.len_bytes() == 0 || dimensions.len() > DIMENSIONS_MAX {
            return None;
        }
        let Envelope { endpoint, tag, context, correlation, aux } = message.envelope;
        let mixed = u64::from(aux)
            | u64::from(endpoint) << 32
            | u64::from(part.tensor.dtype().code()) << 40
            | (dimensions.len() as u64) << 48;
        let mut words = [[0; 8]; FIXED_WORDS + DIMENSIONS_MAX];
        for (word, value) in words.iter_mut().zip([tag.0, context, correlation, mixed].iter().chain(dimensions)) {
            *word = value.to_ne_bytes();
        }
        Some((Self { words, count: FIXED_WORDS + dimensions.len() }, part))
    }

    /// The words as they go into the record.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.words[..self.count].as_flattened()
    }
}

/// A message that was read, except for its elements.
pub(crate) struct Brief {
    pub(crate) envelope: Envelope,
    pub(crate) dtype: Dtype,
    pub(crate) length_bytes: usize,
    /// Where the elements stand in the record's body.
    pub(crate) offset_bytes: usize,
    dimensions: [u64; DIMENSIONS_MAX],
    dimension_count: usize,
}

impl Brief {
    /// Reads and checks everything that stands before the elements, and that they are all there.
    ///
    /// Inlined for the reason that [`Consumer::peek`] is.
    #[inline(always)]
    pub(crate) fn read<M: Memory>(consumer: &Consumer<M>, record: &Record) -> Result<Self> {
        let [tag, context, correlation, mixed] = consumer.words(record, 0)?;
        let [endpoint, dtype, dimension_count, zero] = [32, 40, 48, 56].map(|shift| (mixed >> shift) as u8);
        let dimension_count = usize::from(dimension_count);
        let is_known = usize::from(endpoint) < ENDPOINTS_MAX && zero == 0;
        let dtype = Dtype::from_code(dtype).filter(|_| is_known).ok_or_else(wrong)?;
        let mut dimensions = [0; DIMENSIONS_MAX];
        let mut length_bytes = Some(dtype.size_bytes());
        for (index, dimension) in dimensions.get_mut(..dimension_count).ok_or_else(wrong)?.iter_mut().enumerate() {
            [*dimension] = consumer.words(record, 8 * (FIXED_WORDS + index))?;
            length_bytes = usize::try_from(*dimension)
                .ok()
                .and_then(|dimension| length_bytes?.checked_mul(dimension))
                .filter(|length_bytes| (1..=BODY_BYTES_MAX).contains(length_bytes));
        }
        let offset_bytes = 8 * (FIXED_WORDS + dimension_count);
        let length_bytes = length_bytes.ok_or_else(wrong)?;
        if offset_bytes + length_bytes.next_multiple_of(8) != record.body_bytes {
            return Err(wrong());
        }
        let envelope = Envelope { endpoint, tag: Tag(tag), context, correlation, aux: mixed as u32 };
        Ok(Self { envelope, dtype, length_bytes, offset_bytes, dimensions, dimension_count })
    }

    /// The tensor as the wire describes it.
    pub(crate) fn spec(&self) -> TensorSpec {
        TensorSpec::new(self.dtype.code(), &self.dimensions[..self.dimension_count])
    }
}

#[cold]
fn wrong() -> Error {
    Error::new(ErrorKind::Protocol, "the peer sent a short message that says something impossible")
        .hint("the peer runs another version or its memory is damaged; restart it")
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use super::super::ring::tests::ring;
    use super::super::ring::{Kind as RecordKind, LINES};
    use super::*;
    use sheave_tensor::{Shape, Tensor};

    fn message(tensor: Tensor, mode: Mode) -> Outgoing {
        let endpoint = ENDPOINTS_MAX as u8 - 1;
        let envelope = Envelope { endpoint, tag: Tag(u64::MAX), context: 2, correlation: 3, aux: 4 };
        Outgoing::tensor(envelope, tensor, mode)
    }

    /// The body of a short message's record.
    pub(crate) fn body(message: &Outgoing) -> Vec<u8> {
        let (head, part) = Head::of(message).expect("it is plain");
        [head.bytes(), &part.tensor.bytes().expect("nobody writes it")].concat()
    }

    fn words_of(head: &Head) -> Vec<u64> {
        head.bytes().as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        for (dtype, shape) in [
            (Dtype::U8, &[8][..]),
            (Dtype::F64, &[]),
            (Dtype::Bool, &[3]),
            (Dtype::F32, &[2, 3]),
            (Dtype::I16, &[1, 5, 1, 7]),
            (Dtype::Complex128, &[100]),
        ] {
            let mut tensor = Tensor::private(dtype, Shape::new(shape).unwrap()).unwrap();
            tensor.bytes_mut().unwrap().iter_mut().zip((1..=251).cycle()).for_each(|(byte, value)| *byte = value);
            let sent = tensor.bytes().unwrap().to_vec();
            let message = message(tensor.clone(), Mode::Copy);
            let (head, _) = Head::of(&message).expect("it is plain");
            let (_, mut producer, mut consumer) = ring();
            assert!(producer.push(RecordKind::Brief, &[head.bytes(), &sent]).unwrap());
            let record = consumer.peek().unwrap().expect("it was pushed");
            let brief = Brief::read(&consumer, &record).unwrap();
            assert_eq!((brief.envelope, brief.dtype, brief.length_bytes), (message.envelope, dtype, sent.len()));
            assert_eq!(brief.spec(), TensorSpec::new(dtype.code(), shape));
            let mut received = vec![0; sent.len()];
            consumer.read(&record, brief.offset_bytes, &mut received).unwrap();
            assert_eq!(received, sent);
        }
    }

    #[test]
    fn eight_bytes_of_one_dimension_fill_one_line() {
        let message = message(Tensor::from_slice(&[1.0], [1]).unwrap(), Mode::Copy);
        let (head, _) = Head::of(&message).expect("it is plain");
        let (_, mut producer, _) = ring();
        for _ in 1..LINES {
            assert!(producer.push(RecordKind::Brief, &[head.bytes(), &[0; 8]]).unwrap());
        }
        assert!(!producer.push(RecordKind::Brief, &[head.bytes(), &[0; 8]]).unwrap());
    }

    #[test]
    fn other_messages_take_the_long_form() {
        let tensor = || Tensor::from_slice(&[1u8, 2], [2]).unwrap();
        assert!(Head::of(&message(tensor(), Mode::Copy)).is_some());
        assert!(Head::of(&message(tensor(), Mode::Share)).is_none());
        assert!(Head::of(&message(tensor().reshape([1, 1, 1, 1, 2]).unwrap(), Mode::Copy)).is_none());
        assert!(Head::of(&message(Tensor::private(Dtype::U8, [1 << 30, 0]).unwrap(), Mode::Copy)).is_none());
        assert!(Head::of(&Outgoing { control: vec![1], ..message(tensor(), Mode::Copy) }).is_none());
        assert!(Head::of(&Outgoing::control(Envelope::data(1, Tag(1)), Vec::new())).is_none());
    }

    #[test]
    fn every_field_that_lies_is_refused() {
        let message = message(Tensor::from_slice(&[1.0f32; 6], [2, 3]).unwrap(), Mode::Copy);
        let (head, _) = Head::of(&message).expect("it is plain");
        let read = |change: &dyn Fn(&mut Vec<u64>), payload_bytes: usize| {
            let mut words = words_of(&head);
            change(&mut words);
            let words: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let (_, mut producer, mut consumer) = ring();
            assert!(producer.push(RecordKind::Brief, &[&words, &vec![0; payload_bytes]]).unwrap());
            let record = consumer.peek().unwrap().expect("it was pushed");
            Brief::read(&consumer, &record).map(|brief| brief.length_bytes).map_err(|error| error.kind())
        };
        let field = |shift: u64, value: u64| {
            move |words: &mut Vec<u64>| words[3] = words[3] & !(0xff << shift) | value << shift
        };
        assert_eq!(read(&|_| (), 24), Ok(24));
        let wrong = Err(ErrorKind::Protocol);
        for (shift, value) in
            [(32, ENDPOINTS_MAX as u64), (32, 200), (40, 17), (48, 1), (48, 3), (48, 5), (48, 255), (56, 1)]
        {
            assert_eq!(read(&field(shift, value), 24), wrong, "{shift} {value}");
        }
        for (index, value) in [(4, 0), (4, 1), (4, 4), (4, u64::MAX), (5, 1 << 62), (5, 1 << 63)] {
            assert_eq!(read(&|words| words[index] = value, 24), wrong, "{index} {value}");
        }
        for payload_bytes in [0, 16, 32, 4096] {
            assert_eq!(read(&|_| (), payload_bytes), wrong, "{payload_bytes}");
        }
        for kept in 0..6 {
            assert_eq!(read(&|words| words.truncate(kept), 0), wrong, "{kept}");
        }
    }
}
