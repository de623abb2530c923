//! What supervisor and guard say to each other: fixed records over a `SOCK_SEQPACKET` pair, so that a record arrives
//! whole or not at all, with up to three descriptors. Both sides run from one program image: there is no version.
//!
//! Nothing here allocates, because the guard must not.

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Most descriptors of one record: exec status, standard output, standard error.
pub(crate) const DESCRIPTORS_MAX: usize = 3;

const RECORD_BYTES: usize = 16;

/// The meaning of a [`Record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Verb {
    /// Guard: set up; `value` is 0 or the error number for which it gave up.
    Ready = 1,
    /// Supervisor: start the child `id` from the image in the first descriptor; a second one is its standard input.
    Spawn,
    /// Supervisor: signal `value` to the child `id` and its process group.
    Signal,
    /// Supervisor: signal `value` to every child and adopted descendant.
    SignalAll,
    /// Supervisor: kill all descendants, then end.
    End,
    /// Guard: the child `id` was forked as process `value`; the descriptors tell of its exec and its output.
    Spawned,
    /// Guard: the child `id` could not be forked; `value` is the error number.
    Refused,
    /// Guard: the child `id` ended with the raw wait status `value`.
    Exited,
    /// Guard: no descendant is left (`value` 0), or the time for killing was over (`value` 1).
    Ended,
}

impl Verb {
    fn from_number(number: u32) -> Option<Self> {
        use Verb::{End, Ended, Exited, Ready, Refused, Signal, SignalAll, Spawn, Spawned};
        [Ready, Spawn, Signal, SignalAll, End, Spawned, Refused, Exited, Ended]
            .into_iter()
            .find(|verb| *verb as u32 == number)
    }
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) verb: Verb,
    pub(crate) id: u32,
    pub(crate) value: i32,
}

impl Record {
    pub(crate) fn new(verb: Verb, id: u32, value: i32) -> Self {
        Self { verb, id, value }
    }

    fn encode(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[0..4].copy_from_slice(&(self.verb as u32).to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.id.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.value.to_ne_bytes());
        bytes
    }

    fn decode(bytes: [u8; RECORD_BYTES]) -> Option<Self> {
        let word = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let verb = Verb::from_number(u32::from_ne_bytes(word(0)))?;
        Some(Self { verb, id: u32::from_ne_bytes(word(4)), value: i32::from_ne_bytes(word(8)) })
    }
}

/// Descriptors that came with a record, in the order of sending.
pub(crate) type Descriptors = [Option<OwnedFd>; DESCRIPTORS_MAX];

/// Sends one record; never blocks (`EAGAIN`) and never raises SIGPIPE (`EPIPE`).
pub(crate) fn send(socket: BorrowedFd<'_>, record: Record, descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let bytes = record.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags)).map(drop)
}

/// Receives one record; never blocks (`EAGAIN`). `None`: the other side is closed.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> Result<Option<(Record, Descriptors)>, Errno> {
    let mut bytes = [0; RECORD_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = loop {
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut descriptors = [const { None }; DESCRIPTORS_MAX];
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            for (slot, descriptor) in descriptors.iter_mut().zip(rights) {
                *slot = Some(descriptor);
            }
        }
    }
    match received.bytes {
        0 => Ok(None),
        RECORD_BYTES => Record::decode(bytes).map(|record| Some((record, descriptors))).ok_or(Errno::PROTO),
        _ => Err(Errno::PROTO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;

    #[test]
    fn records_and_descriptors_arrive_whole_and_the_end_is_seen() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        assert_eq!(receive(theirs.as_fd()).unwrap_err(), Errno::AGAIN);
        let sent = Record::new(Verb::Exited, 7, -9);
        send(ours.as_fd(), sent, &[ours.as_fd(), theirs.as_fd()]).unwrap();
        let (record, descriptors) = receive(theirs.as_fd()).unwrap().unwrap();
        assert_eq!(record, sent);
        assert_eq!(descriptors.iter().flatten().count(), 2);
        drop(descriptors);
        rustix::net::send(&ours, b"short", SendFlags::empty()).unwrap();
        assert_eq!(receive(theirs.as_fd()).unwrap_err(), Errno::PROTO);
        drop(ours);
        assert!(receive(theirs.as_fd()).unwrap().is_none());
    }
}
