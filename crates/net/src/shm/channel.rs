//! The Unix socket beside the rings: carries descriptors, and its end says that the peer let go.
//!
//! It is a sequenced-packet socket, so that a descriptor always arrives with the few words that describe it.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use sheave_base::{Error, ErrorKind, Result};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What a packet is.
#[derive(Debug)]
pub(crate) enum Packet {
    /// The initiator's rings and its doorbell.
    Offer { rings: OwnedFd, bell: OwnedFd },
    /// The responder's doorbell.
    Answer { bell: OwnedFd },
    /// A segment of the sender's memory that later messages refer to.
    Segment { id: u64, length_bytes: u64, file: OwnedFd },
    /// A segment that no later message refers to.
    Forget { id: u64 },
}

/// What was found on the socket.
#[derive(Debug)]
pub(crate) enum Received {
    Packet(Packet),
    /// Nothing yet.
    Empty,
    /// The peer closed its end.
    End,
}

const OFFER: u64 = 1;
const ANSWER: u64 = 2;
const SEGMENT: u64 = 3;
const FORGET: u64 = 4;
const PACKET_BYTES: usize = 24;

/// Descriptors that are looked at in one packet, two more than any packet brings.
const DESCRIPTORS_MAX: usize = 4;

fn encode(kind: u64, id: u64, length_bytes: u64) -> [u8; PACKET_BYTES] {
    let mut bytes = [0; PACKET_BYTES];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip([kind, id, length_bytes]) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<bool> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags) {
        Ok(_) => Ok(true),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOBUFS | rustix::io::Errno::TOOMANYREFS) => Ok(false),
        Err(errno) => Err(Error::new(ErrorKind::PeerLost, format!("the peer's socket is closed ({errno})"))),
    }
}

/// Offers the rings. False when the socket has no room.
pub(crate) fn send_offer(socket: BorrowedFd<'_>, rings: BorrowedFd<'_>, bell: BorrowedFd<'_>) -> Result<bool> {
    send(socket, &encode(OFFER, 0, 0), &[rings, bell])
}

/// Answers an offer. False when the socket has no room.
pub(crate) fn send_answer(socket: BorrowedFd<'_>, bell: BorrowedFd<'_>) -> Result<bool> {
    send(socket, &encode(ANSWER, 0, 0), &[bell])
}

/// Announces a segment. False when the socket has no room.
pub(crate) fn send_segment(socket: BorrowedFd<'_>, id: u64, length_bytes: u64, file: BorrowedFd<'_>) -> Result<bool> {
    send(socket, &encode(SEGMENT, id, length_bytes), &[file])
}

/// Says that a segment is gone. False when the socket has no room.
pub(crate) fn send_forget(socket: BorrowedFd<'_>, id: u64) -> Result<bool> {
    send(socket, &encode(FORGET, id, 0), &[])
}

/// Takes the next packet, without blocking.
pub(crate) fn receive(socket: impl AsFd) -> Result<Received> {
    // One byte more than any packet, so that a longer one is noticed.
    let mut bytes = [0; PACKET_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
        Ok(received) => received,
        Err(rustix::io::Errno::AGAIN) => return Ok(Received::Empty),
        Err(rustix::io::Errno::CONNRESET) => return Ok(Received::End),
        Err(errno) => return Err(Error::from(errno).context("reading a link's socket")),
    };
    let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
    let descriptors = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let descriptors: Vec<OwnedFd> = descriptors.collect();
    if received.bytes == 0 {
        return Ok(Received::End);
    }
    let wrong = || Error::new(ErrorKind::Protocol, "the peer sent an impossible packet beside a shared-memory link");
    if received.bytes != PACKET_BYTES {
        return Err(wrong());
    }
    // Where fewer arrived than there was room for, the kernel found no number for one: this process has too many.
    if is_cut && descriptors.len() < DESCRIPTORS_MAX {
        return Err(Error::from(rustix::io::Errno::MFILE).context("taking a descriptor that a peer has sent"));
    }
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at * 8 + index]));
    let mut descriptors = descriptors.into_iter();
    let packet = match (word(0), descriptors.next(), descriptors.next()) {
        (OFFER, Some(rings), Some(bell)) => Packet::Offer { rings, bell },
        (ANSWER, Some(bell), None) => Packet::Answer { bell },
        (SEGMENT, Some(file), None) => Packet::Segment { id: word(1), length_bytes: word(2), file },
        (FORGET, None, None) => Packet::Forget { id: word(1) },
        _ => return Err(wrong()),
    };
    Ok(Received::Packet(packet))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket pair")
    }

    #[test]
    fn descriptors_arrive_with_their_words() {
        let (one, other) = pair();
        let file = rustix::fs::memfd_create("sent", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        assert!(send_segment(one.as_fd(), 7, 4096, file.as_fd()).expect("open"));
        let Ok(Received::Packet(Packet::Segment { id: 7, length_bytes: 4096, file: got })) = receive(&other) else {
            panic!("another packet");
        };
        let inode = |file: &OwnedFd| rustix::fs::fstat(file).expect("a file").st_ino;
        assert_eq!(inode(&got), inode(&file));
        assert!(matches!(receive(&other), Ok(Received::Empty)));
        drop(one);
        assert!(matches!(receive(&other), Ok(Received::End)));
    }

    #[test]
    fn nonsense_is_a_protocol_error() {
        for nonsense in [&b"x"[..], &[0xff; 24], &[1; 200]] {
            let (one, other) = pair();
            rustix::net::send(&one, nonsense, SendFlags::empty()).expect("open");
            assert_eq!(receive(&other).expect_err("nonsense").kind(), ErrorKind::Protocol);
        }
        let (one, other) = pair();
        rustix::net::send(&one, &encode(SEGMENT, 1, 1), SendFlags::empty()).expect("open");
        assert_eq!(receive(&other).expect_err("no descriptor").kind(), ErrorKind::Protocol);
    }
}
