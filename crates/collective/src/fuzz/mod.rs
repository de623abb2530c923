//! What the fuzz targets of collectives do with their input. The tests here replay the corpus.
//!
//! Each takes any bytes and panics only if sheave is wrong: a decoder panicked, what it accepted is not what it would
//! write itself, or what it refused it for is no error of a peer's.

mod control_block;

use crate::mail::offer;
use crate::operation::Header;
use sheave_base::fuzz::Input;
use sheave_base::{ErrorKind, LinkId, Tag};
use sheave_net::{Envelope, Message};
use sheave_tensor::{Dtype, Tensor};

pub use control_block::control_block;

/// The header of an operation, and whether it fits another one.
pub fn collective_header(data: &[u8]) {
    let header = match Header::decode(data) {
        Ok(header) => header,
        Err(error) => return assert_eq!(error.kind(), ErrorKind::Protocol, "{error}"),
    };
    assert_eq!(header.encode(), data, "{header} has one form");
    header.check(&header, 7).expect("it fits itself");
    let other = Header { count: header.count ^ 1, ..header };
    assert_eq!(header.check(&other, 7).expect_err("they differ").kind(), ErrorKind::Mismatch);
}

/// An announcement to a group of as many members as the first byte says. If the second byte is 0 the rest is its
/// control part. Otherwise it is its own announcement: a byte for the dtype of its tensor, one for how many elements
/// that has, eight for the envelope's correlation and as many for its `aux`.
pub fn collective_offer(data: &[u8]) {
    let mut input = Input::new(data);
    let (size, is_whole) = (u32::from(input.byte()), input.byte() != 0);
    let mut envelope = Envelope::data(9, Tag(0));
    let (mut control, mut parts) = (Vec::new(), Vec::new());
    if is_whole {
        let Some(dtype) = Dtype::from_code(input.byte()) else { return };
        parts.push(Tensor::private(dtype, [u64::from(input.byte())]).expect("there is memory"));
        (envelope.correlation, envelope.aux) = (input.word(), input.word() as u32);
    } else {
        control = input.bytes(usize::MAX).to_vec();
    }
    let message = Message { envelope, source: LinkId(1), sequence: 1, control: control.clone(), parts: parts.into() };
    let offer = match offer::decode(message, size) {
        Ok(offer) => offer,
        Err(error) => return assert_eq!(error.kind(), ErrorKind::Protocol, "{error}"),
    };
    assert!(offer.rank < size, "rank {} of {size}", offer.rank);
    if is_whole {
        assert_eq!((offer.tag, offer.rank, offer.serial), (envelope.correlation, envelope.aux, 0));
        assert_eq!(offer.count, offer.message.parts[0].elements() as u64);
    } else {
        assert_eq!(offer::written(&offer).control, control, "{offer:?} has one form");
    }
}

#[cfg(all(test, not(loom)))]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::replay::Target;
    use super::*;
    use crate::operation::{Form, Kind, Operator};

    const HEADER: Target =
        Target { name: "collective_header", run: collective_header, fixed_bytes: 16 << 10, ratio: 16 };
    const OFFER: Target = Target { name: "collective_offer", run: collective_offer, fixed_bytes: 16 << 10, ratio: 16 };

    fn header(kind: Kind, operator: Option<Operator>) -> Header {
        Header {
            kind,
            operator,
            dtype: Dtype::F32,
            root: 1,
            form: Form::One,
            tensors: 0,
            count: 1 << 20,
            digest: 0x0102_0304_0506_0708,
            table: 9,
            rank: 3,
            part: 0,
        }
    }

    #[test]
    fn f43_collective_headers_replay() {
        let list = Header { form: Form::List, tensors: 7, ..header(Kind::AllReduce, Some(Operator::Avg)) };
        HEADER.seeds_are_current(&[
            ("barrier", header(Kind::Barrier, None).encode()),
            ("all_reduce", header(Kind::AllReduce, Some(Operator::Sum)).encode()),
            ("all_to_all_v", Header { part: 99, ..header(Kind::AllToAllV, None) }.encode()),
            ("list", list.encode()),
            ("devices", Header { form: Form::Devices, ..list }.encode()),
        ]);
        HEADER.replay();
    }

    #[test]
    fn f43_collective_offers_replay() {
        let tensor = Tensor::from_slice(&[1_i16, 2, 3], [3]).expect("memory");
        let announced = |message: sheave_net::Outgoing| [vec![4, 0], message.control].concat();
        let whole = offer::whole(9, 3, 300, &tensor).envelope;
        let whole = [&[4, 1, Dtype::I16.code(), 3][..], &whole.correlation.to_le_bytes(), &[3, 0, 0, 0, 0, 0, 0, 0]];
        OFFER.seeds_are_current(&[
            ("announcement", announced(offer::announcement(9, 3, 300, &tensor, 1 << 40))),
            ("withdrawal", announced(offer::withdrawal(9, 2, u64::MAX))),
            ("whole", whole.concat()),
        ]);
        OFFER.replay();
    }
}
