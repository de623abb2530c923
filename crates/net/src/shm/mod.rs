//! Links between processes of one host.
//!
//! Two nodes that have authenticated each other over a Unix socket exchange descriptors: the initiator offers a sealed
//! memfd with both rings and its doorbell, the responder answers with its own doorbell. From then on messages go
//! through the rings (`ring`), urgent ones ahead of the others (`urgent`), large tensors through the arenas (`sending`
//! says how), and the socket carries only further descriptors and the news of its own end.

mod brief;
mod channel;
mod fuzz;
mod link;
mod loans;
mod memory;
mod plain;
mod process;
mod receiving;
mod ring;
mod sending;
mod shown;
mod urgent;

use crate::farewell::code_for;
use crate::node::{Inner, Node};
#[cfg(all(test, not(loom)))]
pub(crate) use brief::tests::body as brief_fuzz;
use channel::{Packet, Received};
pub(crate) use fuzz::records as records_fuzz;
use link::{Material, ShmLink};
use memory::{Pair, Which};
#[cfg(all(test, not(loom)))]
pub(crate) use plain::tests::body as plain_fuzz;
use process::ProcessOfLink;
pub(crate) use process::{PeerProcesses, check_user, tracer_of};
#[cfg(all(test, not(loom)))]
pub(crate) use ring::BODY_BYTES_MAX;
use ring::Producer;
pub(crate) use ring::fuzz::ring as ring_fuzz;
use sheave_base::{Error, ErrorKind, LinkId, Peer, Result};
use sheave_wire::CloseReason;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The initiator's half of the exchange, begun.
pub(crate) struct Offer {
    pair: Arc<Pair>,
    socket: OwnedFd,
    peer: Peer,
    process: ProcessOfLink,
    /// Keeps a descriptor for the doorbell that the answer brings. What is lacking must be known before the peer has
    /// made its end of the link, which would look like one that was dropped.
    spare: OwnedFd,
}

/// Offers rings over an authenticated socket.
pub(crate) fn offer(node: &Arc<Inner>, socket: OwnedFd, peer: Peer) -> Result<Offer> {
    let process = PeerProcesses::of_socket(node, socket.as_fd())?;
    let (pair, rings) = Pair::create()?;
    let spare = spare(&socket)?;
    if !channel::send_offer(socket.as_fd(), rings.as_fd(), node.progress.doorbell.as_fd())? {
        return Err(Error::new(ErrorKind::PeerLost, "the peer's socket takes no offer").peer(peer));
    }
    Ok(Offer { pair, socket, peer, process, spare })
}

fn spare(socket: &OwnedFd) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(socket, 0).map_err(|errno| Error::from(errno).context("preparing a link"))
}

impl Offer {
    /// The socket, to wait for the answer on.
    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Gives the link up in order: the peer may have answered, and take it for made.
    pub(crate) fn withdraw(&self) {
        Producer::new(self.pair.ring(Which::FromInitiator)).close(CloseReason::Finished.code());
    }

    /// Takes the answer and adds the link; gives the offer back while there is no answer.
    pub(crate) fn finish(self, node: &Arc<Inner>) -> Result<std::result::Result<LinkId, Self>> {
        let Self { pair, socket, peer, process, spare: kept } = self;
        drop(kept);
        let bell = match channel::receive(&socket)? {
            Received::Empty => {
                let spare = spare(&socket)?;
                return Ok(Err(Self { pair, socket, peer, process, spare }));
            }
            Received::Packet(Packet::Answer { bell }) => bell,
            Received::Packet(_) => return Err(Error::new(ErrorKind::Protocol, "the peer did not answer the offer")),
            Received::End => {
                return Err(Error::new(ErrorKind::PeerLost, "it closed the link while it was made").peer(peer));
            }
        };
        let outbound = Which::FromInitiator;
        add(node, Material { pair, outbound, socket, bell, peer }, process).map(Ok)
    }
}

/// Links two nodes of one process through shared memory, as if they were two processes. Returns the link as each of
/// them knows it.
pub fn connect(one: &Node, other: &Node) -> Result<(LinkId, LinkId)> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let (left, right) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|errno| Error::from(errno).context("making a socket pair"))?;
    let offer = offer(&one.inner, left, other.peer().clone())?;
    let unfinished = || Error::new(ErrorKind::Internal, "a socket pair lost a packet");
    let at_other = answer(&other.inner, right, one.peer().clone())?.map_err(|_| unfinished())?;
    let at_one = offer.finish(&one.inner)?.map_err(|_| unfinished())?;
    Ok((at_one, at_other))
}

/// Answers the offer on an authenticated socket and adds the link; gives socket and peer back while there is no offer.
pub(crate) fn answer(
    node: &Arc<Inner>,
    socket: OwnedFd,
    peer: Peer,
) -> Result<std::result::Result<LinkId, (OwnedFd, Peer)>> {
    match channel::receive(&socket)? {
        Received::Empty => Ok(Err((socket, peer))),
        Received::Packet(Packet::Offer { rings, bell }) => {
            let pair = Pair::import(rings)?;
            let process = PeerProcesses::of_socket(node, socket.as_fd())?;
            if !channel::send_answer(socket.as_fd(), node.progress.doorbell.as_fd())? {
                return Err(Error::new(ErrorKind::PeerLost, "the peer's socket takes no answer").peer(peer));
            }
            let outbound = Which::FromResponder;
            add(node, Material { pair, outbound, socket, bell, peer }, process).map(Ok)
        }
        Received::Packet(_) => Err(Error::new(ErrorKind::Protocol, "the peer made no offer")),
        Received::End => Err(Error::new(ErrorKind::PeerLost, "it closed the link while it was made").peer(peer)),
    }
}

/// Adds the link, which the peer may take for made already. If none is made the peer is told why in its ring, as a link
/// would that stands and fails; the end of the socket, of which a copy is kept until then, has it look there.
fn add(node: &Arc<Inner>, mut material: Material, process: ProcessOfLink) -> Result<LinkId> {
    material.peer.pid = Some(process.pid());
    let (pair, outbound) = (Arc::clone(&material.pair), material.outbound);
    let from_peer = outbound == Which::FromResponder;
    // Where there is no descriptor for it the peer may find the end first, and nothing in its ring.
    let _socket = spare(&material.socket).ok();
    let link = |id| ShmLink::new(id, node, material, process).map(Arc::new);
    let mut made = None;
    let make = |id| link(id).map(|link| Arc::clone(made.insert(link)) as Arc<dyn crate::Link>);
    let entry = match node.add_link(make) {
        Ok(entry) => entry,
        Err(error) => {
            if made.is_none() {
                Producer::new(pair.ring(outbound)).close(code_of_none(&error).code());
            }
            return Err(error);
        }
    };
    if let Some(link) = made {
        link.serve_to_the_end(node, &entry);
    }
    if from_peer {
        node.announce_arrival(entry.id);
    }
    Ok(entry.id)
}

/// The code for a peer with which no link was made because of `error`.
fn code_of_none(error: &Error) -> CloseReason {
    match code_for(error) {
        // A limit of this side's, and nothing that the peer has sent.
        CloseReason::Protocol if error.kind() == ErrorKind::LimitExceeded => CloseReason::Failed,
        code => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeConfig;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// A peer's descriptor that blocks makes no link, which whoever sends over it would wait on for ever.
    #[test]
    fn f26_an_offer_with_a_doorbell_that_blocks_makes_no_link() {
        let node = Node::start(NodeConfig::named("test")).expect("a node");
        let (_pair, rings) = Pair::create().expect("memory");
        let flags = SocketFlags::CLOEXEC;
        let (theirs, ours) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("sockets");
        let bell = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        assert!(channel::send_offer(theirs.as_fd(), rings.as_fd(), bell.as_fd()).expect("there is room"));
        let refused = answer(&node.inner, ours, Peer::named("stranger")).map(|_| ()).expect_err("it may block");
        assert_eq!(refused.kind(), ErrorKind::Protocol, "{refused}");
        assert_eq!(node.links().len(), 0);
    }

    fn sockets() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets")
    }

    fn blocking_bell() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd")
    }

    /// That the link ends because the other side could not make it, and not without a word.
    fn assert_told(node: &Node, link: LinkId) {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while node.link(link).is_ok() {
            assert!(std::time::Instant::now() < until, "the link stands");
            std::thread::yield_now();
        }
        let reason = node.close(link).expect_err("it has ended");
        assert!(reason.kind() == ErrorKind::Protocol && reason.to_string().contains("make sense"), "{reason}");
    }

    /// One side has made its link when the other finds that it cannot. Somebody between them spoils what they send.
    #[test]
    fn a_link_that_only_one_side_has_made_ends_with_the_cause() {
        let node = |name: &str| Node::start(NodeConfig::named(name)).expect("a node");
        for is_answer_spoilt in [false, true] {
            let (one, other) = (node("one"), node("other"));
            let ((left, to_one), (to_other, right)) = (sockets(), sockets());
            let offered = offer(&one.inner, left, Peer::named("other")).expect("memory");
            let Received::Packet(Packet::Offer { rings, bell }) = channel::receive(&to_one).expect("sound") else {
                panic!("no offer");
            };
            let bell = if is_answer_spoilt { bell } else { blocking_bell() };
            assert!(channel::send_offer(to_other.as_fd(), rings.as_fd(), bell.as_fd()).expect("there is room"));
            let answered = answer(&other.inner, right, Peer::named("one"));
            let Received::Packet(Packet::Answer { bell }) = channel::receive(&to_other).expect("sound") else {
                panic!("no answer");
            };
            let bell = if is_answer_spoilt { blocking_bell() } else { bell };
            assert!(channel::send_answer(to_one.as_fd(), bell.as_fd()).expect("there is room"));
            let finished = offered.finish(&one.inner);
            drop((to_one, to_other));
            if is_answer_spoilt {
                assert!(finished.is_err(), "its bell may block");
                let link = answered.expect("sound").unwrap_or_else(|_| panic!("there was an offer"));
                assert_told(&other, link);
            } else {
                assert!(answered.is_err(), "its bell may block");
                let link = finished.expect("sound").unwrap_or_else(|_| panic!("there was an answer"));
                assert_told(&one, link);
            }
        }
    }

    /// A peer that shows one segment after the other, and takes none back, is told to stop.
    #[test]
    fn f16_a_peer_shows_a_bounded_number_of_segments() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("up to the hard limit");
        let node = Node::start(NodeConfig::named("test")).expect("a node");
        let (_pair, rings) = Pair::create().expect("memory");
        let flags = SocketFlags::CLOEXEC;
        let (theirs, ours) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("sockets");
        let bell = crate::doorbell::Doorbell::new().expect("a doorbell");
        assert!(channel::send_offer(theirs.as_fd(), rings.as_fd(), bell.as_fd()).expect("there is room"));
        let link =
            answer(&node.inner, ours, Peer::named("shower")).expect("sound").unwrap_or_else(|_| panic!("no offer"));
        let segment = sheave_tensor::Segment::create(1).expect("memory");
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let mut shown = 0;
        while node.link(link).is_ok() {
            assert!(std::time::Instant::now() < until, "{shown} segments, and the link stands");
            match channel::send_segment(theirs.as_fd(), shown, segment.len_bytes(), segment.fd().expect("its own")) {
                Ok(true) => shown += 1,
                Ok(false) => std::thread::yield_now(),
                Err(_) => break,
            }
        }
        let reason = node.close(link).expect_err("it has ended");
        assert!(reason.to_string().contains("more than 4096 segments"), "{reason}");
        assert!(shown as usize > sheave_base::limits::SEGMENTS_SHOWN_MAX, "{shown} segments");
    }
}
