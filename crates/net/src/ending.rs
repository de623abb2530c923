//! The end of a node in order: nothing that its links took is lost with it.
//!
//! First the node *flushes*: it serves its links, as in any wait, until their queues are empty. Then it is shut down:
//! its links close, and it *lingers* until every byte is safe, with the end of the stream behind it: in memory that the
//! peer maps too, or acknowledged by the peer's kernel. From then on the peer reads all of it, whatever becomes of this
//! process. A peer that has ended has nothing to lose.
//!
//! A link that is being made may stand for the other side already. A side that stops, or gives up, before it has seen
//! the link closes it in order too, so that no peer ever sees a link of a node that ends dropped without a word.
//!
//! **No time is guessed.** Both steps last for as long as something moves, however slowly. They give up when nothing
//! has moved for a span that the caller names, or, sooner, when a peer is found dead, which ends its link.

use crate::entry::Entry;
use crate::node::{Inner, Node};
use sheave_base::clock;
use sheave_base::work::IDLE;
use sheave_base::work::awaited::{Account, Awaited, Describe, Which};
use sheave_base::{Error, ErrorKind, Result};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often it is looked whether a peer has taken what is left; longer after a while.
const LOOK_MIN: Duration = Duration::from_micros(200);
const LOOK_MAX: Duration = Duration::from_millis(10);

/// Whether something that should move does so.
struct Stall {
    longest: Duration,
    seen: u64,
    since: Instant,
    look: Duration,
}

impl Stall {
    fn new(longest: Duration) -> Self {
        Self { longest, seen: u64::MAX, since: clock::now(), look: LOOK_MIN }
    }

    /// Takes note of a figure that changes while something moves. True once it has not for too long.
    fn notes(&mut self, figure: u64) -> bool {
        self.look = (self.look * 2).min(LOOK_MAX);
        if self.seen != figure {
            (self.seen, self.since) = (figure, clock::now());
        }
        clock::since(self.since) >= self.longest
    }
}

impl Node {
    /// Blocks until every message that the node's links took has left its queues, or its link has ended. Serves the
    /// links meanwhile. Says now and then which peer it waits for, as every wait does.
    ///
    /// # Errors
    ///
    /// `DeadlineExceeded` that names the peer if nothing has moved for `stalled`.
    pub fn flush(&self, stalled: Duration) -> Result<()> {
        let begun = clock::now();
        let mut stall = Stall::new(stalled);
        let slow: Arc<dyn Describe> = Arc::new(Slow(self.inner.weak.clone()));
        let mut waiting = self.enter_wait("the end of this node", Some(Awaited::new(Arc::downgrade(&slow), [0; 2])));
        loop {
            let Some((slow, unsent)) = self.inner.unsent() else { return Ok(()) };
            let counts = self.counts();
            let is_stalled = stall.notes(unsent as u64 ^ (counts.bytes_streamed + counts.bytes_copied) << 16);
            let peer = slow.link.peer();
            if is_stalled {
                return Err(Error::new(
                    ErrorKind::DeadlineExceeded,
                    format!("{} messages are unsent", slow.link.unsent()),
                )
                .peer(peer.clone())
                .elapsed(clock::since(begun))
                .hint("the peer lives and takes nothing; receive there what is sent here"));
            }
            waiting.look(clock::now(), None);
            // Nobody completes it: its wait serves the links.
            let (_completer, never) = self.pair::<()>(IDLE, None);
            never.wait_until(Some(clock::now() + stall.look), None)?;
        }
    }
}

/// The first peer with messages that it has not taken.
struct Slow(Weak<Inner>);

impl Describe for Slow {
    fn describe(&self, _: Which) -> Option<Account> {
        let (slow, _) = self.0.upgrade()?.unsent()?;
        Some(Account { what: None, whom: Some(format!("{} to take messages", slow.link.peer())) })
    }
}

impl Inner {
    /// A link with messages in its queues, and how many all links have; `None` if all are empty.
    fn unsent(&self) -> Option<(Arc<Entry>, usize)> {
        let entries = self.links.all();
        let total = entries.iter().map(|entry| entry.link.unsent()).sum();
        let first = entries.iter().find(|entry| entry.link.unsent() > 0)?;
        Some((Arc::clone(first), total))
    }
}

/// Waits until nothing of these links, which are closed, is at risk, for as long as something moves within `stalled`.
pub(crate) fn linger(entries: &[Arc<Entry>], stalled: Duration) {
    let mut stall = Stall::new(stalled);
    loop {
        let at_risk_bytes = entries.iter().map(|entry| entry.link.at_risk_bytes()).sum();
        if at_risk_bytes == 0 || stall.notes(at_risk_bytes) {
            return;
        }
        sheave_base::thread::sleep(stall.look);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::farewell::was_closed_in_order;
    use crate::{NodeConfig, Wanted, shm, tcp};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use sheave_base::LinkId;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::sync::atomic::Ordering::SeqCst;

    fn node(name: &str) -> Node {
        Node::start(NodeConfig::named(name)).expect("a node")
    }

    fn connection() -> (OwnedFd, OwnedFd) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let one = TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
        let (other, _) = listener.accept().expect("one has connected");
        (one.into(), other.into())
    }

    fn sockets() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets")
    }

    fn assert_ends_in_order(node: &Node, link: LinkId) {
        let until = Instant::now() + Duration::from_secs(30);
        let wanted = Wanted { source: Some(link), context: 0, tag: sheave_base::Tag(0) };
        let reason = node.recv(wanted, crate::message::Tensors::new(), Some(until), None).expect_err("the link ends");
        let reason = node.link(link).map(|_| ()).expect_err(&format!("it has ended: {reason}"));
        assert!(was_closed_in_order(&reason), "{reason}");
    }

    /// Makes a link with `other` in the moment when that node begins to stop.
    fn while_stopping<T>(other: &Node, make: impl FnOnce() -> Result<T>) {
        other.inner.stopping.store(true, SeqCst);
        let refused = make().map(drop).expect_err("it stops");
        assert_eq!(refused.kind(), ErrorKind::Closed, "{refused}");
        assert!(other.links().is_empty());
        other.inner.stopping.store(false, SeqCst);
    }

    #[test]
    fn a_link_that_is_made_while_its_node_stops_is_closed_in_order() {
        let (one, other) = (node("one"), node("other"));
        let (left, right) = connection();
        let link = tcp::add(&one.inner, left, other.peer().clone(), &[], None).expect("it stands here");
        while_stopping(&other, || tcp::add(&other.inner, right, one.peer().clone(), &[], None));
        assert_ends_in_order(&one, link);

        let (left, right) = sockets();
        let offer = shm::offer(&one.inner, left, other.peer().clone()).expect("there is room");
        while_stopping(&other, || shm::answer(&other.inner, right, one.peer().clone()).map(drop));
        let link = offer.finish(&one.inner).expect("it was answered").unwrap_or_else(|_| panic!("no answer"));
        assert_ends_in_order(&one, link);
    }

    #[test]
    fn a_link_that_its_maker_gives_up_is_closed_in_order() {
        let (one, other) = (node("one"), node("other"));
        let (left, right) = connection();
        let link = tcp::add(&other.inner, right, one.peer().clone(), &[], None).expect("it stands there");
        tcp::withdraw(&left);
        drop(left);
        assert_ends_in_order(&other, link);

        let (left, right) = sockets();
        let offer = shm::offer(&one.inner, left, other.peer().clone()).expect("there is room");
        let link = shm::answer(&other.inner, right, one.peer().clone()).expect("sound");
        offer.withdraw();
        drop(offer);
        assert_ends_in_order(&other, link.unwrap_or_else(|_| panic!("no offer")));
    }
}
