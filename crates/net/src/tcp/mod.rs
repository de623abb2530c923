//! Links over TCP: one connection per pair of nodes.
//!
//! A message is its 64-byte header with a check sum, its control area, and the bytes of its tensors, handed to the
//! kernel in one gathered write ([`writing`]) and received straight into the memory that the receiver named
//! ([`reading`]). A long one is cut into pieces, between which urgent messages go. What does not fit in the socket
//! waits in the sender's outbox.
//!
//! **Windows.** A sender is at most [`LINK_WINDOW_BYTES`](sheave_base::limits::LINK_WINDOW_BYTES) of data ahead of what
//! its peer says that it has used, by frames of kind `Room`. So a receiver whose next message waits can read on and
//! keep what comes behind it, for the sake of the urgent messages in between.
//!
//! **Life.** A side that has sent nothing for a beat sends a frame of kind `Beat`; every byte that arrives is a sign of
//! life, and so is a probe of [`crate::probe`].
//!
//! **End.** The last frame is of kind `Close` and says why; an end of the stream without one is a lost peer.

mod fuzz;
mod link;
mod machine;
mod reading;
mod writing;

use crate::node::Inner;
pub(crate) use fuzz::stream as stream_fuzz;
use link::TcpLink;
use rustix::net::{SendFlags, Shutdown};
use sheave_base::{Error, LinkId, Peer, Result};
use sheave_wire::{CloseReason, Header, Kind};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes that a link writes, or reads, before it turns to the other, as far as pieces may be cut: so both directions
/// move at once, and nobody writes for long to a peer that waits until it may write itself.
const TURN_BYTES: usize = 1 << 20;

/// What the kernel holds of a stream that stays on this host; it takes twice as much. Such a stream needs no more to be
/// never idle, and left to itself the kernel holds megabytes, which have left the cache when they are read.
const LOCAL_SEND_BUFFER_BYTES: usize = 512 << 10;

/// Makes a link of a connected and authenticated socket. `early` is what was read from it beyond the handshake, and
/// `made_to` where this side has connected to, if it was this side.
pub(crate) fn add(
    node: &Arc<Inner>,
    socket: OwnedFd,
    peer: Peer,
    early: &[u8],
    made_to: Option<SocketAddr>,
) -> Result<LinkId> {
    prepare(&socket)?;
    let make = |id| Ok(Arc::new(TcpLink::new(id, node, (socket, made_to), peer, early)?) as Arc<dyn crate::Link>);
    Ok(node.add_link(make)?.id)
}

fn prepare(socket: &OwnedFd) -> Result<()> {
    rustix::io::ioctl_fionbio(socket, true)
        .map_err(|errno| Error::from(errno).context("asking the socket never to block"))?;
    #[cfg(feature = "simulated")]
    if sheave_base::simulated::current().is_some() {
        // It is one of another family, which knows no such options.
        return Ok(());
    }
    rustix::net::sockopt::set_tcp_nodelay(socket, true)
        .map_err(|errno| Error::from(errno).context("asking the socket for low latency"))?;
    if stays_on_this_host(socket) {
        rustix::net::sockopt::set_socket_send_buffer_size(socket, LOCAL_SEND_BUFFER_BYTES)
            .map_err(|errno| Error::from(errno).context("bounding what the socket holds"))?;
    }
    Ok(())
}

/// Says on a connection that no link was made of at this end that it ends in order.
pub(crate) fn withdraw(socket: &OwnedFd) {
    let code = CloseReason::Finished.code().into();
    let words = Header { sequence: 1, tag: code, ..Header::new(Kind::Close) }.encode();
    // What cannot be said is the loss of a link that hardly was one.
    let _ = rustix::net::send(socket, &words, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    let _ = rustix::net::shutdown(socket, Shutdown::Write);
}

/// Whether both ends of a connection have one address. Where that cannot be told, the kernel's own bounds are right.
fn stays_on_this_host(socket: &OwnedFd) -> bool {
    let here = rustix::net::getsockname(socket).ok().and_then(|address| SocketAddr::try_from(address).ok());
    let there = rustix::net::getpeername(socket).ok().flatten().and_then(|address| SocketAddr::try_from(address).ok());
    here.zip(there).is_some_and(|(here, there)| here.ip() == there.ip())
}
