//! A peer at the other end of a connection that writes whatever an input says, in pieces of any size.

use super::reading::{Reading, Shore};
use crate::counters::Counters;
use crate::fuzz::sink::{Delivered, Manner, PLACED_BYTES_MAX, Recorder};
use crate::message::Envelope;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, send, shutdown, socketpair};
use sheave_base::fuzz::Input;
use sheave_base::{Error, ErrorKind, LinkId, Peer};
use sheave_wire::{HEADER_BYTES, Header, Kind, Placement, parts};
use std::os::fd::AsFd;

/// Messages that a turn takes.
const BUDGET: usize = 2;

/// How a stream ends, as far as its bytes say.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// Between two frames, or in the middle of one.
    Open,
    /// The peer has closed it in order.
    Closed,
    /// With what no peer says.
    Refused,
}

/// Reads a stream. The first byte says in what pieces it comes (0: all at once), the second how the receiver behaves
/// and whether the stream ends behind the last piece, and the third how much of it was read before the link was
/// made. However it comes, the same messages arrive, whole and in order, up to the first byte that no peer writes.
pub(crate) fn stream(data: &[u8]) {
    let mut input = Input::new(data);
    let (piece_bytes, flags, early) = (usize::from(input.byte()), input.byte(), usize::from(input.byte()));
    let stream = input.bytes(usize::MAX);
    let (messages, end) = expected(stream);
    let flags_of_socket = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, flags_of_socket, None).expect("there are descriptors");
    let sink = Recorder::default();
    sink.behave(Manner { pauses: flags & 1 != 0, has_places: flags & 2 != 0 });
    let (peer, counters) = (Peer::named("peer"), Counters::default());
    let shore = Shore { id: LinkId(1), socket: ours.as_fd(), peer: &peer, counters: &counters, sink: &sink };
    let (early, rest) = stream.split_at(early.min(stream.len()));
    let mut reading = Reading::new(early).expect("it is short");
    let mut outcome = take_all(&mut reading, &shore);
    for piece in rest.chunks(if piece_bytes == 0 { usize::MAX } else { piece_bytes }) {
        if outcome.is_err() {
            break;
        }
        assert_eq!(send(&theirs, piece, SendFlags::NOSIGNAL), Ok(piece.len()), "an empty socket takes it");
        outcome = take_all(&mut reading, &shore);
    }
    assert_eq!(sink.delivered(), messages, "in pieces of {piece_bytes} bytes");
    if outcome.is_ok() && flags & 4 != 0 {
        assert_eq!(end, End::Open);
        shutdown(&theirs, Shutdown::Write).expect("it is open");
        let lost = take_all(&mut reading, &shore).expect_err("the stream has ended");
        assert_eq!(lost.kind(), ErrorKind::PeerLost, "{lost}");
    }
    match &outcome {
        Ok(()) => assert_eq!(end, End::Open),
        Err(error) if end == End::Closed => {
            assert!(error.about().is_some() || error.kind() != ErrorKind::Protocol, "{error}");
        }
        Err(error) => {
            assert_eq!(end, End::Refused, "{error}");
            assert!([ErrorKind::Protocol, ErrorKind::LimitExceeded].contains(&error.kind()), "{error}");
        }
    }
    if let Err(error) = outcome {
        let again = reading.take_in(&shore, BUDGET).map(|_| ()).expect_err("an error is final");
        assert_eq!((again.kind(), again.what()), (error.kind(), error.what()));
    }
    assert_eq!(sink.delivered(), messages, "nothing comes behind the end");
    if let Some(landing) = reading.end() {
        landing.fail(&Error::new(ErrorKind::PeerLost, "the run is over"));
    }
}

/// Takes in whatever is there.
fn take_all(reading: &mut Reading, shore: &Shore<'_>) -> Result<(), Error> {
    loop {
        let taken = reading.take_in(shore, BUDGET)?;
        if !taken.moved && !taken.paused && !reading.is_ready() {
            return Ok(());
        }
    }
}

/// What a stream brings, read as one piece.
fn expected(stream: &[u8]) -> (Vec<Delivered>, End) {
    let (mut messages, mut rest, mut sequence, mut placed_bytes) = (Vec::new(), stream, 0, 0);
    loop {
        let Some((header, behind)) = rest.split_first_chunk::<HEADER_BYTES>() else { return (messages, End::Open) };
        let Ok(header) = Header::decode(header) else { return (messages, End::Refused) };
        rest = behind;
        if header.sequence != sequence + 1 {
            return (messages, End::Refused);
        }
        sequence = header.sequence;
        let is_empty = header.part_count == 0 && header.control_bytes == 0 && header.payload_bytes == 0;
        match header.kind {
            kind if kind.is_message() => match message(&header, rest, &mut placed_bytes) {
                Ok(Some((message, behind))) => {
                    messages.push(message);
                    rest = behind;
                }
                Ok(None) => return (messages, End::Open),
                Err(()) => return (messages, End::Refused),
            },
            Kind::Beat | Kind::Room if is_empty => {}
            Kind::Close => return (messages, End::Closed),
            _ => return (messages, End::Refused),
        }
    }
}

/// The message of this header, and what stands behind it; `None` if it is not whole.
fn message<'a>(header: &Header, rest: &'a [u8], placed_bytes: &mut u64) -> Result<Option<(Delivered, &'a [u8])>, ()> {
    let Some((area, mut rest)) = rest.split_at_checked(header.control_bytes as usize) else { return Ok(None) };
    let (table, control) = parts::decode(area, header.part_count.into()).map_err(drop)?;
    let is_inline = |part: &sheave_wire::Part| part.placement == Placement::Inline && !part.shared;
    if !table.iter().all(is_inline) || parts::inline_bytes(&table).map_err(drop)? != header.payload_bytes {
        return Err(());
    }
    *placed_bytes += header.payload_bytes;
    if *placed_bytes > PLACED_BYTES_MAX {
        return Err(());
    }
    let mut tensors = Vec::new();
    for part in &table {
        let length_bytes = part.spec.length_bytes().map_err(drop)? as usize;
        let Some((bytes, behind)) = rest.split_at_checked(length_bytes) else { return Ok(None) };
        tensors.push(bytes.to_vec());
        rest = behind;
    }
    let (envelope, control) = (Envelope::of_header(header), control.to_vec());
    Ok(Some((Delivered { envelope, sequence: header.sequence, control, parts: tensors }, rest)))
}
