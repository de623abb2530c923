//! Bytes that peers have announced and not sent yet.
//!
//! A header says how large a message is before a byte of it has come, and a peer may say anything. Where the receiver
//! has named a place the bytes land there. All other messages, whatever their kind, are counted from the header on,
//! until they are whole or their link has ended; beyond the limit a message stays on its link. What waits for that goes
//! on as soon as another is whole, which does not depend on those that wait.
//!
//! What a header costs besides is bounded by [`crate::entry::place_announced`]: memory is taken as the bytes come.

use crate::link::Arrival;
use parking_lot::Mutex;
use sheave_base::collections::HashMap;
use sheave_base::limits::{ANNOUNCED_BYTES_MAX, ANNOUNCED_BYTES_MIN};
use sheave_base::{Error, ErrorKind, LinkId, Result};
use sheave_wire::Placement;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// The messages of a node that have begun to arrive, by their links: each carries one at a time.
#[derive(Default)]
pub(crate) struct Announced {
    by_link: Mutex<HashMap<LinkId, u64>>,
    /// Of all links. Written under the lock.
    bytes: AtomicU64,
    has_made_room: AtomicBool,
    /// Somebody has found no room. Written under the lock.
    has_refused: AtomicBool,
}

/// The bytes of a message that are still to come, if they are many: those of short ones and of lent blocks are here.
pub(crate) fn bytes_to_come(arrival: &Arrival<'_>) -> Result<u64> {
    if arrival.payload_bytes < ANNOUNCED_BYTES_MIN {
        return Ok(0);
    }
    let mut bytes = 0_u64;
    for part in arrival.parts {
        if matches!(part.placement, Placement::Inline | Placement::Stream) {
            bytes = bytes.saturating_add(part.spec.length_bytes()?);
        }
    }
    Ok(if bytes < ANNOUNCED_BYTES_MIN { 0 } else { bytes })
}

/// Refuses more than this host could ever hold.
pub(crate) fn check_host(bytes: u64) -> Result<()> {
    let host_bytes = memory_of_host();
    if bytes <= host_bytes {
        return Ok(());
    }
    let what = format!("a message of {bytes} bytes; this host has {host_bytes} bytes of memory");
    Err(Error::new(ErrorKind::LimitExceeded, what).hint("send it in pieces, or receive it into a buffer of its size"))
}

impl Announced {
    /// Counts a message of so many bytes that is about to arrive, if there is room for it or it is let in anyway. It
    /// may be larger than the limit where nothing else is announced.
    pub(crate) fn reserve(&self, link: LinkId, bytes: u64, anyway: bool) -> bool {
        if bytes == 0 {
            return true;
        }
        let mut by_link = self.by_link.lock();
        let before = by_link.get(&link).copied().unwrap_or(0);
        let others = self.bytes.load(SeqCst) - before;
        if !anyway && others > 0 && others.saturating_add(bytes) > ANNOUNCED_BYTES_MAX {
            self.has_refused.store(true, SeqCst);
            return false;
        }
        by_link.insert(link, bytes);
        self.bytes.store(others.saturating_add(bytes), SeqCst);
        true
    }

    /// The message that was counted has places of its own, or does not begin. Who has found no room meanwhile is asked
    /// again.
    pub(crate) fn give_back(&self, link: LinkId) {
        let mut by_link = self.by_link.lock();
        if let Some(bytes) = by_link.remove(&link) {
            self.bytes.fetch_sub(bytes, SeqCst);
            if self.has_refused.swap(false, SeqCst) {
                self.has_made_room.store(true, SeqCst);
            }
        }
    }

    /// The message of this link is whole, or will never be.
    pub(crate) fn end(&self, link: LinkId) {
        if self.bytes.load(SeqCst) == 0 {
            return;
        }
        let mut by_link = self.by_link.lock();
        if let Some(bytes) = by_link.remove(&link) {
            self.bytes.fetch_sub(bytes, SeqCst);
            self.has_refused.store(false, SeqCst);
            self.has_made_room.store(true, SeqCst);
        }
    }

    /// Whether something has ended since the last time, so that what waits is to be asked again.
    pub(crate) fn take_room(&self) -> bool {
        self.has_made_room.load(SeqCst) && self.has_made_room.swap(false, SeqCst)
    }
}

/// All memory of this host, in bytes.
fn memory_of_host() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let info = rustix::system::sysinfo();
        (info.totalram as u64).saturating_add(info.totalswap as u64).saturating_mul(u64::from(info.mem_unit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use crate::inproc;
    use crate::intake::Intake;
    use crate::link::{Sink, Verdict};
    use crate::message::Envelope;
    use crate::{Node, NodeConfig};
    use sheave_base::Tag;
    use sheave_tensor::Dtype;
    use sheave_wire::{Part, TensorSpec};
    use std::sync::Arc;

    /// Lets everything in.
    struct Open;

    impl Endpoint for Open {}

    fn begins(node: &Node, link: u32, endpoint: u8, bytes: u64) -> Result<bool> {
        let envelope = Envelope::of(endpoint, Tag(1), 0);
        let parts = [Part::inline(TensorSpec::new(Dtype::U8.code(), &[bytes]))];
        let arrival = Arrival {
            envelope,
            sequence: 1,
            parts: &parts,
            payload_bytes: bytes,
            control_bytes: 0,
            is_urgent: false,
            ending: false,
        };
        let all = node.inner.links.all();
        Ok(matches!(Intake::new(&node.inner, &all[0]).begin(LinkId(link), &arrival)?, Verdict::Land(_)))
    }

    /// Messages that have begun, for receives and for endpoints, are counted and held against one limit together.
    #[test]
    fn f14_what_is_announced_is_counted_before_it_has_come() {
        let [node, other] = ["test", "other"].map(|name| Node::start(NodeConfig::named(name)).expect("a node"));
        inproc::connect(&node, &other).expect("a link");
        let open: Arc<dyn Endpoint> = Arc::new(Open);
        assert!(node.register(1, &open) && node.register(2, &open));
        for endpoint in 0..=2 {
            let most = ANNOUNCED_BYTES_MAX;
            assert!(begins(&node, 1, endpoint, most - 1).expect("sound"), "a first for {endpoint}");
            assert!(!begins(&node, 2, endpoint, 1 << 20).expect("sound"), "a second for {endpoint} beyond the limit");
            assert!(begins(&node, 3, endpoint, 1024).expect("sound"), "a short for {endpoint}");
            node.inner.announced.end(LinkId(1));
            assert!(begins(&node, 2, endpoint, 1 << 20).expect("sound"), "a second for {endpoint} after the first");
            node.inner.announced.end(LinkId(2));
        }
    }

    /// What is given back is no end of a message; who was refused because of it is asked again all the same.
    #[test]
    fn what_is_counted_before_it_has_room_elsewhere_refuses_nobody_for_good() {
        let announced = Announced::default();
        let [one, other] = [LinkId(1), LinkId(2)];
        assert!(announced.reserve(one, ANNOUNCED_BYTES_MAX, false) && announced.reserve(one, 1, false));
        announced.give_back(one);
        assert!(!announced.take_room(), "nobody was refused");
        assert!(announced.reserve(one, ANNOUNCED_BYTES_MAX, false) && !announced.reserve(other, 1, false));
        announced.give_back(one);
        assert!(announced.take_room() && !announced.take_room(), "one was refused");
        assert!(announced.reserve(other, 1, false) && announced.reserve(one, ANNOUNCED_BYTES_MAX, true));
        announced.end(other);
        announced.end(one);
        assert!(announced.take_room() && announced.bytes.load(SeqCst) == 0);
    }

    #[test]
    fn f14_more_than_the_host_holds_is_refused() {
        let [node, other] = ["test", "other"].map(|name| Node::start(NodeConfig::named(name)).expect("a node"));
        inproc::connect(&node, &other).expect("a link");
        let refused = begins(&node, 1, 0, 1 << 40).expect_err("no test machine has so much");
        assert_eq!(refused.kind(), ErrorKind::LimitExceeded, "{refused}");
    }
}
