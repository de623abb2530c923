//! What the peer of a shared-memory link has shown: segments, mapped when it shows them, once, and kept by the link. A
//! tensor that is dropped unmaps nothing, so that memory which is lent again and again costs a system call and page
//! faults the first time alone.
//!
//! * *How long.* As long as the link and the peer's interest in the segment. The peer says that it has given one up
//!   ([`Packet::Forget`]) with the first beat after its arena has done so, and the link lets go of it then, or when the
//!   link ends; what tensors are left in it hold it for themselves. So the system gets memory back that its owner has
//!   given up within a beat, and there is no other bound to keep: what a link has mapped is what its peer has.
//! * *Which.* A segment's number is drawn at random by its owner and never used for another one. A peer that shows
//!   different memory by the same number deceives itself alone: ranges are checked against the mapping that is used.
//! * *How many.* [`SEGMENTS_SHOWN_MAX`]; a peer that shows more ends the link. The descriptor is closed once the
//!   segment is mapped, so they cost none.
//! * *Rights.* Mappings are always for reading and writing, for a lent block may be its receiver's to write. What is
//!   lent to be read only is so by the face that hands it out.
//! * *Forks.* A child has the mappings too, and none of the link's threads; it holds the memory until it ends or runs
//!   another program, as all shared memory of its parent's.
//!
//! **A lock of its own**, which is held for one turn of reading and no user's code: whoever asks for a segment keeps
//! nobody from polling the link, who might leave to him what has arrived meanwhile.
//!
//! **Turns.** A peer may send packets as fast as they are read, so each turn takes [`PACKETS_PER_TURN`] at most. The
//! rest is found again: whoever looks for a segment hears that there may be more ([`Look::Later`]), and what nobody
//! looks for is in the socket, whose descriptor is watched for as long as there is something to read.

use super::channel::{self, Packet, Received};
use super::receiving::impossible;
use parking_lot::Mutex;
use sheave_base::collections::HashMap;
use sheave_base::limits::SEGMENTS_SHOWN_MAX;
use sheave_base::{Error, Result};
use sheave_tensor::{Segment, SegmentId};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Packets that are taken before others get a turn.
const PACKETS_PER_TURN: usize = 64;

/// Turns of a caller that asks for a segment and may not come again: more packets than the socket of a peer holds that
/// has sent them before.
const TURNS_PER_CALL: usize = 16;

/// The segments that the peer has shown and not given up, and the end of its socket.
#[derive(Default)]
pub(crate) struct Shown {
    known: Mutex<Known>,
    /// The peer's socket is closed; read by every poll, without the lock.
    has_ended: AtomicBool,
}

#[derive(Default)]
struct Known {
    segments: HashMap<u64, Arc<Segment>>,
    /// Trouble with something that the socket brought, which it brings once: whoever comes next hears of it.
    trouble: Option<Error>,
}

/// Outcome of a look for a segment.
pub(crate) enum Look {
    /// It is mapped here.
    Found(Arc<Segment>),
    /// The turn was over before all was read.
    Later,
    /// The peer has not shown it.
    Missing,
}

impl Shown {
    /// True once the peer's socket is closed, and all that came before was read.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(SeqCst)
    }

    /// Reads what the peer has sent beside the rings, for one turn.
    pub(crate) fn read(&self, socket: &OwnedFd) -> Result<()> {
        self.turn(&mut self.known.lock(), socket, None).map(drop)
    }

    /// Looks for a segment, for one turn if it must be read of first.
    pub(crate) fn look(&self, id: u64, socket: &OwnedFd) -> Result<Look> {
        let mut known = self.known.lock();
        let is_over = known.segments.contains_key(&id) || self.turn(&mut known, socket, Some(id))?;
        Ok(match known.segments.get(&id) {
            Some(segment) => Look::Found(Arc::clone(segment)),
            None if is_over => Look::Missing,
            None => Look::Later,
        })
    }

    /// A segment that the peer has shown. Trouble with the socket is left to whoever polls.
    pub(crate) fn segment(&self, id: SegmentId, socket: &OwnedFd) -> Option<Arc<Segment>> {
        for _ in 0..TURNS_PER_CALL {
            match self.look(id.0, socket).ok()? {
                Look::Found(segment) => return Some(segment),
                Look::Missing => return None,
                Look::Later => {}
            }
        }
        None
    }

    /// Reads until the segment that is wanted is there. False if there may be more to read.
    fn turn(&self, known: &mut Known, socket: &OwnedFd, wanted: Option<u64>) -> Result<bool> {
        if let Some(trouble) = &known.trouble {
            return Err(trouble.clone());
        }
        for _ in 0..PACKETS_PER_TURN {
            if self.has_ended() || wanted.is_some_and(|id| known.segments.contains_key(&id)) {
                return Ok(true);
            }
            let taken = channel::receive(socket).and_then(|received| match received {
                Received::Empty => Ok(false),
                Received::End => {
                    self.has_ended.store(true, SeqCst);
                    Ok(false)
                }
                Received::Packet(packet) => known.take(packet).map(|()| true),
            });
            match taken {
                Ok(true) => {}
                Ok(false) => return Ok(true),
                Err(trouble) => {
                    known.trouble = Some(trouble.clone());
                    return Err(trouble);
                }
            }
        }
        Ok(false)
    }
}

impl Known {
    fn take(&mut self, packet: Packet) -> Result<()> {
        match packet {
            Packet::Segment { .. } if self.segments.len() >= SEGMENTS_SHOWN_MAX => {
                return Err(impossible(format!("more than {SEGMENTS_SHOWN_MAX} segments")));
            }
            Packet::Segment { id, length_bytes, file } => {
                let segment = Segment::import(file, SegmentId(id), length_bytes)?;
                self.segments.insert(id, segment);
            }
            Packet::Forget { id } => {
                self.segments.remove(&id);
            }
            Packet::Offer { .. } | Packet::Answer { .. } => return Err(impossible("a second offer")),
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
    use sheave_base::ErrorKind;
    use std::os::fd::AsFd;

    fn sockets() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets")
    }

    /// A caller that asks for a segment does not end the link; the poll that does must still hear why.
    #[test]
    fn trouble_with_the_socket_is_not_forgotten() {
        let shown = Shown::default();
        let (ours, theirs) = sockets();
        assert!(shown.segment(SegmentId(7), &ours).is_none());
        rustix::net::send(&theirs, b"nonsense", SendFlags::empty()).expect("there is room");
        for _ in 0..2 {
            assert!(shown.segment(SegmentId(7), &ours).is_none());
            let trouble = shown.read(&ours).expect_err("it was nonsense");
            assert!(trouble.kind() == ErrorKind::Protocol && trouble.what().contains("impossible packet"), "{trouble}");
        }
    }

    /// A peer that sends packets all the time gets its turn and no more, and what is behind them is found all the same.
    #[test]
    fn a_turn_takes_a_bounded_number_of_packets() {
        let shown = Shown::default();
        let (ours, theirs) = sockets();
        let forget = |count: usize| {
            (0..count).for_each(|_| assert!(channel::send_forget(theirs.as_fd(), 1).expect("open"), "there is room"));
        };
        let show = |id| {
            let segment = Segment::create(4096).expect("memory");
            let file = segment.fd().expect("its own");
            assert!(channel::send_segment(theirs.as_fd(), id, segment.len_bytes(), file).expect("open"));
        };
        forget(PACKETS_PER_TURN);
        show(7);
        shown.read(&ours).expect("sound");
        assert!(!shown.known.lock().segments.contains_key(&7), "a turn without end");
        shown.read(&ours).expect("sound");
        assert!(shown.known.lock().segments.contains_key(&7), "the next turn finds it");
        forget(PACKETS_PER_TURN);
        show(8);
        assert!(matches!(shown.look(8, &ours).expect("sound"), Look::Later), "a turn without end");
        assert!(matches!(shown.look(8, &ours).expect("sound"), Look::Found(_)), "the next turn finds it");
        assert!(matches!(shown.look(9, &ours).expect("sound"), Look::Missing));
        forget(PACKETS_PER_TURN);
        show(9);
        assert!(shown.segment(SegmentId(9), &ours).is_some(), "who asks once is answered");
        drop(theirs);
        shown.read(&ours).expect("sound");
        assert!(shown.has_ended());
    }
}
