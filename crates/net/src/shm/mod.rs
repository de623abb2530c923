//! Links between processes of one host.
//!
//! Two nodes that have authenticated each other over a Unix socket exchange descriptors: the initiator offers a sealed
//! memfd with both rings and its doorbell, the responder answers with its own doorbell. From then on messages go
//! through the rings (`ring`), large tensors through the arenas (`sending` says how), and the socket carries only
//! further descriptors and the news of its own end.

mod brief;
mod channel;
mod link;
mod loans;
mod memory;
mod process;
mod receiving;
mod ring;
mod sending;

use crate::node::{Inner, Node};
use channel::{Packet, Received};
use link::{Material, ShmLink};
use memory::{Pair, Which};
use process::PeerProcess;
pub(crate) use process::{check_user, tracer_of};
use sheave_base::{Error, ErrorKind, LinkId, Peer, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The initiator's half of the exchange, begun.
pub(crate) struct Offer {
    pair: Arc<Pair>,
    socket: OwnedFd,
    peer: Peer,
    process: (Arc<PeerProcess>, u32),
    /// Keeps a descriptor for the doorbell that the answer brings. What is lacking must be known before the peer has
    /// made its end of the link, which would look like one that was dropped.
    spare: OwnedFd,
}

/// Offers rings over an authenticated socket.
pub(crate) fn offer(node: &Arc<Inner>, socket: OwnedFd, peer: Peer) -> Result<Offer> {
    let process = PeerProcess::of_socket(socket.as_fd())?;
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
            let process = PeerProcess::of_socket(socket.as_fd())?;
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

fn add(node: &Arc<Inner>, mut material: Material, (process, pid): (Arc<PeerProcess>, u32)) -> Result<LinkId> {
    material.peer.pid = Some(pid);
    let from_peer = material.outbound == Which::FromResponder;
    let make = |id| Ok(Arc::new(ShmLink::new(id, node, material, Arc::clone(&process))) as Arc<dyn crate::Link>);
    let entry = node.add_link(make)?;
    PeerProcess::watch(&process, node, &entry)?;
    if from_peer {
        node.announce_arrival(entry.id);
    }
    Ok(entry.id)
}
