//! Signs of life beside a connection that is stuck.
//!
//! What the network loses the kernel sends again, but each time later than the time before: after a cut of four
//! seconds nothing may come through for another two, though all is well, and a peer would be declared dead that could
//! be reached. So while bytes are stuck on the way to a peer, or it has been silent for two beats, the side that has
//! made the link tries to reach it over a fresh connection, where it has made the link to, many times in a second.
//! Both sides prove there who they are, as at the beginning of a link; nothing else is said, and no link comes of it.
//! Who has proven itself is alive: its links count as heard of, until the kernel gets through again.
//!
//! A peer that is stopped, or whose host is gone, answers no such probe, so no death is found any later.

use crate::address::Address;
use crate::connect;
use crate::entry::Entry;
use crate::node::Inner;
use sheave_base::clock;
use sheave_base::{Error, ErrorKind, NodeId, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// What a hello says that makes no link.
pub(crate) const PAYLOAD: &[u8] = b"?";

/// What lies between two attempts to connect, and how long one may take beyond two round trips.
const PAUSE: Duration = Duration::from_millis(10);
const ATTEMPT: Duration = Duration::from_millis(20);

/// The longest attempt, on the slowest of networks.
const ATTEMPT_MAX: Duration = Duration::from_secs(1);

/// How long the peer may take to prove who it is.
const PROOF: Duration = Duration::from_secs(1);

impl Inner {
    /// Probes the peer of a link, if it should be, on a thread of its own.
    pub(crate) fn probe(&self, entry: &Arc<Entry>, silence: Duration) {
        let is_suspicious = silence > self.config.liveness.beat * 2 || entry.link.is_stuck();
        let Some(address) = entry.link.made_to().filter(|_| is_suspicious) else { return };
        if entry.is_probed.swap(true, SeqCst) {
            return;
        }
        let (node, probed) = (self.weak.clone(), Arc::clone(entry));
        let probe = move || {
            while let Some(node) = node.upgrade().filter(|node| !node.stopping.load(SeqCst)) {
                if node.links.get(probed.id).is_err() || probe_once(&node, &probed, address).is_ok() {
                    break;
                }
                drop(node);
                sheave_base::thread::sleep(PAUSE);
            }
            probed.is_probed.store(false, SeqCst);
        };
        if sheave_base::thread::spawn("sheave-probe", probe).is_err() {
            // Then the kernel alone decides when the peer is heard of again.
            entry.is_probed.store(false, SeqCst);
        }
    }

    /// This node has proven over another connection that it is alive.
    pub(crate) fn vouched_for(&self, peer: NodeId) {
        self.links.all().iter().filter(|entry| entry.link.peer().node == Some(peer)).for_each(|entry| {
            entry.link.vouch();
        });
    }
}

/// How long an attempt to reach the peer of a link takes at most. What is lost is not sent again within one, so the
/// shorter it is, the sooner a peer is found that can be reached again.
pub(crate) fn attempt(entry: &Entry) -> Duration {
    (PAUSE + ATTEMPT + 2 * entry.link.round_trip()).min(ATTEMPT_MAX)
}

fn probe_once(node: &Arc<Inner>, entry: &Entry, address: SocketAddr) -> Result<()> {
    let peer = entry.link.peer().node.unwrap_or_default();
    let address = Address { node: peer, ..Address::of_socket(address) };
    let mut interrupt = || match node.stopping.load(SeqCst) {
        true => Err(Error::new(ErrorKind::Closed, "the node was shut down")),
        false => Ok(()),
    };
    let until = clock::now() + attempt(entry);
    connect::probe(node, &address, until, until + PROOF, &mut interrupt)?;
    node.vouched_for(peer);
    Ok(())
}
