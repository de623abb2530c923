//! Links over TCP: one connection per pair of nodes.
//!
//! A message is its 64-byte header with a check sum, its control area, and the bytes of its tensors, handed to the
//! kernel in one gathered write ([`writing`]) and received straight into the memory that the receiver named
//! ([`reading`]). What does not fit in the socket waits in the sender's outbox.
//!
//! **Life.** A side that has sent nothing for a beat sends a frame of kind `Beat`; every byte that arrives is a sign of
//! life. **End.** The last frame is of kind `Close` and says why; an end of the stream without one is a lost peer.

mod link;
mod reading;
mod writing;

use crate::node::Inner;
use link::TcpLink;
use sheave_base::{Error, LinkId, Peer, Result};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Makes a link of a connected and authenticated socket. `early` is what was read from it beyond the handshake.
pub(crate) fn add(node: &Arc<Inner>, socket: OwnedFd, peer: Peer, early: &[u8]) -> Result<LinkId> {
    rustix::net::sockopt::set_tcp_nodelay(&socket, true)
        .map_err(|errno| Error::from(errno).context("asking the socket for low latency"))?;
    rustix::io::ioctl_fionbio(&socket, true)
        .map_err(|errno| Error::from(errno).context("asking the socket never to block"))?;
    let make = |id| Ok(Arc::new(TcpLink::new(id, node, socket, peer, early)?) as Arc<dyn crate::Link>);
    Ok(node.add_link(make)?.id)
}
