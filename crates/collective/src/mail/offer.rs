//! Announcements as they travel.
//!
//! A short message that is not empty is its own announcement: its tensor, with tag and sender in the envelope, where
//! data messages have no other use for correlation and aux. Without a control part a link takes it in its shortest
//! form. Any other announcement is a control part of [`OFFER_BYTES`]; an empty message is no more than that. So is the
//! news that a longer one, which was announced before, does not come.

use sheave_base::{Error, ErrorKind, Result, Tag};
use sheave_net::{Envelope, Message, Outgoing, Part};
use sheave_tensor::{Dtype, Mode, Tensor};

const OFFER_BYTES: usize = 32;
/// Where in an announcement stands what it is.
const SORT_AT: usize = 5;
/// Two bytes that mean nothing yet, and are zero.
const RESERVED: std::ops::Range<usize> = 6..8;
const ANNOUNCED: u8 = 0;
const WITHDRAWN: u8 = 1;

/// A message that is announced.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) rank: u32,
    pub(crate) tag: u64,
    pub(crate) dtype: Dtype,
    pub(crate) count: u64,
    /// By which the bytes of a longer one are asked for.
    pub(crate) serial: u64,
    /// The message of that serial number does not come after all.
    pub(crate) is_withdrawn: bool,
    /// Its bytes, if they came along.
    pub(crate) message: Message,
}

/// A message that brings its bytes along.
pub(crate) fn whole(context: u64, rank: u32, tag: u64, tensor: &Tensor) -> Outgoing {
    if tensor.len_bytes() == 0 {
        return announcement(context, rank, tag, tensor, 0);
    }
    let envelope = Envelope { correlation: tag, aux: rank, ..Envelope::data(context, Tag(0)) };
    Outgoing::tensor(envelope, tensor.clone(), Mode::Copy)
}

/// A message whose bytes are asked for by `serial`.
pub(crate) fn announcement(context: u64, rank: u32, tag: u64, tensor: &Tensor, serial: u64) -> Outgoing {
    offer(context, rank, [tensor.dtype().code(), ANNOUNCED], [tag, tensor.elements() as u64, serial])
}

/// The news that the message of this serial number does not come.
pub(crate) fn withdrawal(context: u64, rank: u32, serial: u64) -> Outgoing {
    offer(context, rank, [Dtype::U8.code(), WITHDRAWN], [0, 0, serial])
}

/// The announcement, as whoever made it has written it, of one that is a control part.
pub(crate) fn written(offer: &Offer) -> Outgoing {
    let &Offer { rank, tag, dtype, count, serial, is_withdrawn, ref message } = offer;
    let sort = if is_withdrawn { WITHDRAWN } else { ANNOUNCED };
    self::offer(message.envelope.context, rank, [dtype.code(), sort], [tag, count, serial])
}

fn offer(context: u64, rank: u32, [dtype, sort]: [u8; 2], numbers: [u64; 3]) -> Outgoing {
    let mut bytes = Vec::with_capacity(OFFER_BYTES);
    bytes.extend(rank.to_le_bytes());
    bytes.extend([dtype, sort, 0, 0]);
    numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    Outgoing::control(Envelope::data(context, Tag(0)), bytes)
}

/// The bytes of a tensor, as the receiver names their place.
pub(crate) fn bytes(tensor: &Tensor) -> Result<Part> {
    let bytes = [tensor.len_bytes() as u64];
    let flat = Tensor::from_buffer(tensor.buffer().clone(), tensor.offset_bytes(), Dtype::U8, bytes)?;
    Ok(Part::new(flat, Mode::Copy))
}

/// What a member of a group of `size` announces.
pub(crate) fn decode(message: Message, size: u32) -> Result<Box<Offer>> {
    let strange = || Error::new(ErrorKind::Protocol, "an announcement that is none");
    let offer = match &message.parts[..] {
        [part] if message.control.is_empty() => {
            let (dtype, count) = (part.dtype(), part.elements() as u64);
            let Envelope { correlation, aux, .. } = message.envelope;
            Offer { rank: aux, tag: correlation, dtype, count, serial: 0, is_withdrawn: false, message }
        }
        _ => {
            let bytes: &[u8; OFFER_BYTES] = message.control.as_slice().try_into().map_err(|_| strange())?;
            let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
            let dtype = Dtype::from_code(bytes[4]).ok_or_else(strange)?;
            if bytes[RESERVED] != [0; 2] {
                return Err(strange());
            }
            let is_withdrawn = match bytes[SORT_AT] {
                ANNOUNCED => false,
                WITHDRAWN => true,
                _ => return Err(strange()),
            };
            Offer { rank: word(0), tag: long(8), dtype, count: long(16), serial: long(24), is_withdrawn, message }
        }
    };
    if offer.rank < size { Ok(Box::new(offer)) } else { Err(strange()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_base::LinkId;

    #[test]
    fn f43_bytes_that_nobody_writes_are_refused() {
        let tensor = Tensor::from_slice(&[1_i16, 2, 3], [3]).expect("memory");
        let good = announcement(1, 2, 300, &tensor, 7);
        let read = |control: Vec<u8>| {
            let message = Message {
                envelope: good.envelope,
                source: LinkId(1),
                sequence: 1,
                control,
                parts: sheave_net::Tensors::new(),
            };
            decode(message, 4).map(|offer| (offer.rank, offer.tag, offer.count, offer.serial))
        };
        assert_eq!(read(good.control.clone()).expect("it is sound"), (2, 300, 3, 7));
        for (at, byte) in [(0, 4), (4, 17), (SORT_AT, 2), (6, 1), (7, 0x80)] {
            let mut bad = good.control.clone();
            bad[at] = byte;
            assert_eq!(read(bad).expect_err("nobody writes it").kind(), ErrorKind::Protocol, "{at}");
        }
    }
}
