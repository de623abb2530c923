//! The shared-memory link: its rings, a socket for descriptors, the peer's doorbell and its process.

use super::loans::{Borrowed, Debts, Lent, SetAside};
use super::memory::{DataMemory, Pair, Which};
use super::process::ProcessOfLink;
use super::receiving::{self, NotTaken, Receiving, Step, Taken};
use super::ring::{self, Consumer, Producer};
use super::sending::{self, Ended, Sending};
use super::shown::Shown;
use super::urgent::{RETURNS_PER_RECORD, UrgentReceiving, UrgentSending};
use crate::cores;
use crate::counters::Counters;
use crate::doorbell::Doorbell;
use crate::entry::Entry;
use crate::farewell::{DROPPED, PROCESS_ENDED, closed_by_peer, code_for};
use crate::link::{Handover, Hold, Link, Medium, Polled, Readiness, Sink};
use crate::matching::Wanted;
use crate::message::{Envelope, Outgoing, Tensors};
use crate::node::Inner;
use crate::outbox::SendDriver;
use parking_lot::Mutex;
use sheave_base::clock;
use sheave_base::park::Bell;
use sheave_base::{Error, ErrorKind, LinkId, Peer, Result};
use sheave_tensor::{Arena, Lender, Segment, SegmentId};
use sheave_wire::CloseReason;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Looks for a short message after which whoever waits for one looks whether something urgent is there.
const ROUNDS_PER_LOOK: u32 = 8;

pub(crate) struct ShmLink {
    id: LinkId,
    peer: Peer,
    socket: OwnedFd,
    peer_bell: Doorbell,
    process: ProcessOfLink,
    sending: Mutex<Sending>,
    receiving: Mutex<Receiving>,
    shown: Shown,
    lent: Mutex<Lent>,
    debts: Arc<Debts>,
    cores: Cores,
    life: Mutex<Life>,
    /// The rings may be armed: set under the lock of who receives, as the rings are.
    is_armed: AtomicBool,
    /// Messages wait for room; read without the lock by every poll.
    outbound_waits: AtomicBool,
    ended: OnceLock<Error>,
    arena: Arena,
    slots: Arena,
    counters: Arc<Counters>,
    driver: SendDriver,
    kill_silent: bool,
}

/// The rings in which both sides say on which cores they run.
struct Cores {
    own: DataMemory,
    peers: DataMemory,
}

impl Cores {
    /// Says where this thread runs.
    #[inline]
    fn note(&self) {
        if let Some(core) = cores::current() {
            ring::note_core(&self.own, core);
        }
    }
}

/// The peer's signs of life.
struct Life {
    beats: u64,
    seen: Instant,
}

/// What a link is made from, once both sides have the same rings.
pub(crate) struct Material {
    pub(crate) pair: Arc<Pair>,
    pub(crate) outbound: Which,
    pub(crate) socket: OwnedFd,
    pub(crate) bell: OwnedFd,
    pub(crate) peer: Peer,
}

impl ShmLink {
    /// Fails where the peer has sent something else than a doorbell.
    pub(crate) fn new(id: LinkId, node: &Inner, material: Material, process: ProcessOfLink) -> Result<Self> {
        let Material { pair, outbound, socket, bell, peer } = material;
        let inbound = match outbound {
            Which::FromInitiator => Which::FromResponder,
            Which::FromResponder => Which::FromInitiator,
        };
        let urgent = UrgentSending::new(Producer::new(pair.urgent(outbound)));
        let sending = Sending::new(Producer::new(pair.ring(outbound)), urgent);
        let urgent = UrgentReceiving::new(Consumer::new(pair.urgent(inbound)));
        let receiving = Receiving::new(Consumer::new(pair.ring(inbound)), urgent);
        let cores = Cores { own: pair.ring(outbound), peers: pair.ring(inbound) };
        Ok(Self {
            id,
            peer,
            socket,
            peer_bell: Doorbell::of_peer(bell)?,
            process,
            sending: Mutex::new(sending),
            receiving: Mutex::new(receiving),
            shown: Shown::default(),
            lent: Mutex::default(),
            debts: Arc::default(),
            cores,
            life: Mutex::new(Life { beats: 0, seen: clock::now() }),
            is_armed: AtomicBool::new(false),
            outbound_waits: AtomicBool::new(false),
            ended: OnceLock::new(),
            arena: node.arena.clone(),
            slots: node.slots.clone(),
            counters: Arc::clone(&node.counters),
            driver: SendDriver::new(node, id),
            kill_silent: node.config.liveness.kill_silent,
        })
    }

    /// From now on the link ends with the peer's process, if it has not ended already.
    pub(crate) fn serve_to_the_end(&self, node: &Inner, entry: &Arc<Entry>) {
        self.process.serve(entry);
        if self.process.is_known_to_have_ended() {
            while node.poll(entry) {}
            node.progress.ring();
        }
    }

    fn shore(&self) -> sending::Shore<'_> {
        sending::Shore {
            socket: &self.socket,
            lent: &self.lent,
            arena: &self.arena,
            slots: &self.slots,
            counters: &self.counters,
            home_token: self.debts.token(),
            driver: &self.driver,
            bell: &self.peer_bell,
        }
    }

    /// Sends what waits: loans that are done with, then messages.
    fn push_out(&self) -> Result<bool> {
        let (outcome, finished) = {
            let mut sending = self.sending.lock();
            (self.push_out_locked(&mut sending), sending.take_finished())
        };
        finished.into_iter().for_each(|done| done.complete(Ok(())));
        outcome
    }

    fn push_out_locked(&self, sending: &mut Sending) -> Result<bool> {
        let Returned { all, mut moved } = self.return_loans(sending)?;
        if sending.waits() {
            moved |= sending.flush(&self.shore(), all)?;
        }
        self.outbound_waits.store(sending.waits(), SeqCst);
        if moved && sending.must_ring() {
            self.shore().ring();
        }
        Ok(moved)
    }

    /// Gives back the peer's loans that are done with, as far as there is room. They go ahead of messages, which wait
    /// where there is no room for loans: who hears from a peer that it has a tensor may write there again.
    fn return_loans(&self, sending: &mut Sending) -> Result<Returned> {
        let mut moved = false;
        while !self.debts.is_empty() {
            let numbers = self.debts.take(RETURNS_PER_RECORD);
            let words: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
            if !sending.put_returns(&words)? {
                self.debts.put_back(numbers);
                return Ok(Returned { all: false, moved });
            }
            moved = true;
        }
        Ok(Returned { all: true, moved })
    }

    fn take_in(&self, receiving: &mut Receiving, sink: &dyn Sink, budget: usize, ending: bool) -> Result<Taken> {
        let shore = receiving::Shore {
            id: self.id,
            peer: &self.peer,
            socket: &self.socket,
            shown: &self.shown,
            lent: &self.lent,
            debts: &self.debts,
            arena: &self.arena,
            counters: &self.counters,
            sink,
            ending,
        };
        let mut taken = receiving.take_urgent(&shore)?;
        for _ in 0..if taken.paused { 0 } else { budget } {
            match receiving.step(&shore)? {
                Step::Nothing => break,
                Step::Paused => {
                    taken.paused = true;
                    break;
                }
                Step::Moved => taken.moved = true,
            }
        }
        let is_awaited = receiving.consumer.owes_a_look() && receiving.consumer.must_ring();
        if receiving.urgent.must_ring() | is_awaited {
            self.shore().ring();
        }
        Ok(taken)
    }

    /// Asks to be rung when there is room for what waits. False when there is some now.
    fn arm_outbound(&self) -> bool {
        let mut sending = self.sending.lock();
        let has_debts = !self.debts.is_empty();
        if !has_debts && !sending.waits() {
            return true;
        }
        sending.arm();
        matches!(sending.can_move(has_debts), Ok(false))
    }

    /// Why the link is over, if it is and nothing more can be read.
    fn find_end(&self, receiving: &Receiving) -> Option<Error> {
        if let Some(code) = receiving.consumer.closed() {
            return Some(closed_by_peer(code.into(), &self.peer));
        }
        if self.process.is_known_to_have_ended() {
            return Some(self.process_ended());
        }
        if self.shown.has_ended() {
            // A peer that ends the link in order closes its ring first, perhaps since the look above.
            if let Some(code) = receiving.consumer.closed() {
                return Some(closed_by_peer(code.into(), &self.peer));
            }
            // The process may have died, which its pidfd says better and a moment later.
            return Some(if self.process.has_ended() { self.process_ended() } else { self.let_go() });
        }
        None
    }

    fn process_ended(&self) -> Error {
        Error::new(ErrorKind::PeerLost, PROCESS_ENDED)
            .peer(self.peer.clone())
            .hint("its own output or exit status says why")
    }

    fn let_go(&self) -> Error {
        Error::new(ErrorKind::PeerLost, DROPPED).peer(self.peer.clone())
    }

    /// Waits for whoever polls; from then on, since the link has a reason to have ended, nobody receives anything.
    fn give_up_landing(&self, reason: &Error) {
        let landing = self.receiving.lock().end();
        if let Some(landing) = landing {
            landing.fail(reason);
        }
    }

    /// Ends this side because of trouble with the link.
    fn fail(&self, error: Error) -> Polled {
        let code = code_for(&error);
        let reason = error.peer(self.peer.clone());
        self.end(&reason, code);
        Polled::Ended(reason)
    }

    /// Ends this side: everything that waits fails, the peer is told, and what it may still write is set aside.
    fn end(&self, reason: &Error, code: CloseReason) {
        if self.ended.set(reason.clone()).is_err() {
            // Somebody else ends it; but whoever has called this may rely on it that nobody writes to places any more.
            return self.give_up_landing(reason);
        }
        let (Ended { waiting, segments, slots }, read_up_to) = {
            let mut sending = self.sending.lock();
            let ended = sending.end();
            // What the peer reads after the close it does not copy any more, so this is asked before.
            let read_up_to = sending.producer.read_up_to();
            sending.producer.close(code.code());
            (ended, read_up_to)
        };
        self.peer_bell.ring();
        self.give_up_landing(reason);
        for done in waiting {
            done.complete(Err(reason.clone()));
        }
        let (lent, borrowed) = {
            let mut lent = self.lent.lock();
            let borrowed = lent.take_borrowed(&self.arena);
            (std::mem::take(&mut *lent), borrowed)
        };
        for (buffer, Borrowed { done, lease, behind }) in borrowed {
            // What the peer has read it has copied before the ring was closed.
            let is_copied = behind.is_some_and(|line| line <= read_up_to);
            drop((buffer, lease));
            done.complete(if is_copied { Ok(()) } else { Err(reason.clone()) });
        }
        let retired = if code == CloseReason::DeclaredDead { segments } else { Vec::new() };
        let aside = SetAside::new(lent, slots, retired, &self.arena);
        if !aside.is_empty() {
            self.process.keep_until_end(aside);
        }
        if code != CloseReason::DeclaredDead {
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
        }
    }
}

/// Outcome of giving back the loans that are done with.
struct Returned {
    /// None is left.
    all: bool,
    /// Some went.
    moved: bool,
}

impl Link for ShmLink {
    fn medium(&self) -> Medium {
        Medium::SharedMemory
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn send(&self, message: Outgoing, hold: Hold) -> Result<Handover> {
        // Before the peer is rung, which may take this thread's core from it.
        self.cores.note();
        let mut sending = self.sending.lock();
        // Under the lock under which the ring is closed, so that no message is taken after the end.
        if let Some(reason) = self.ended.get() {
            return Err(reason.clone());
        }
        let returned = self.return_loans(&mut sending).map_err(|error| error.peer(self.peer.clone()))?;
        let at_once = if returned.all { sending.send_at_once(&message, &self.shore()) } else { Ok(false) };
        if let Ok(true) = at_once {
            if sending.must_ring() {
                self.shore().ring();
            }
            return Ok(Handover::Sent);
        }
        let queued = at_once.and_then(|_| sending.queue(message, hold, &self.shore(), returned.all));
        self.outbound_waits.store(sending.waits(), SeqCst);
        if sending.must_ring() {
            self.shore().ring();
        }
        let finished = sending.take_finished();
        drop(sending);
        finished.into_iter().for_each(|done| done.complete(Ok(())));
        let work = queued.map_err(|error| error.peer(self.peer.clone()))?;
        if work.is_done() { work.taken().map(|()| Handover::Sent) } else { Ok(Handover::Queued(work)) }
    }

    fn capture(&self) -> Result<()> {
        self.sending.lock().capture(&self.driver)
    }

    fn poll(&self, sink: &dyn Sink, budget: usize) -> Polled {
        let Some(mut receiving) = self.receiving.try_lock() else { return Polled::Busy };
        if let Some(reason) = self.ended.get() {
            // Whoever ends the link may not have come to this yet, and who polls tells of the end.
            drop(receiving);
            self.give_up_landing(reason);
            return Polled::Ended(reason.clone());
        }
        // Read before the ring is: what was sent before the end is in the ring now.
        let end = self.find_end(&receiving);
        let taken = self.take_in(&mut receiving, sink, budget, end.is_some());
        let returned = receiving.take_returned();
        drop(receiving);
        // Also where the link fails: the peer has copied them.
        returned.into_iter().for_each(|done| done.complete(Ok(())));
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) => return self.fail(error),
        };
        if let Some(reason) = end.filter(|_| !taken.moved && !taken.paused) {
            self.end(&reason, CloseReason::Finished);
            return Polled::Ended(reason);
        }
        if !self.outbound_waits.load(SeqCst) && self.debts.is_empty() {
            return match (taken.moved, taken.paused) {
                (true, _) => Polled::Moved,
                (false, true) => Polled::Paused,
                (false, false) => Polled::Idle,
            };
        }
        match self.push_out() {
            Err(error) => self.fail(error),
            Ok(pushed) if pushed || taken.moved => Polled::Moved,
            Ok(_) if taken.paused => Polled::Paused,
            Ok(_) => Polled::Idle,
        }
    }

    fn take(&self, sink: &dyn Sink, wanted: &Wanted, places: &mut Tensors, rounds: u32) -> Option<(Envelope, u64)> {
        let mut receiving = self.receiving.try_lock()?;
        // The sink is asked under the token: nothing of this link's can be delivered to it from here on.
        let is_idle = self.ended.get().is_none() && !self.outbound_waits.load(SeqCst) && self.debts.is_empty();
        if !is_idle || !sink.is_empty() {
            return None;
        }
        for round in 1..=rounds {
            match receiving.take(self.id, wanted, places, sink) {
                Ok(Some(taken)) => {
                    if receiving.consumer.is_late_to_look() && receiving.consumer.must_ring() {
                        self.shore().ring();
                    }
                    drop(receiving);
                    Counters::add(&self.counters.bytes_copied, places[0].len_bytes() as u64);
                    Counters::add(&self.counters.messages_received, 1);
                    return Some(taken);
                }
                // A loan that comes home is seen to while there is nothing else to do, not when the answer is here.
                Ok(None) if round % ROUNDS_PER_LOOK == 0 && receiving.urgent.has_news() => return None,
                Ok(None) => std::hint::spin_loop(),
                Err(NotTaken) => return None,
            }
        }
        None
    }

    fn look(&self, rounds: u32, is_over: &dyn Fn() -> bool) {
        let Some(receiving) = self.receiving.try_lock() else { return };
        for _ in 0..rounds {
            if receiving.consumer.has_something() || receiving.urgent.has_something() || is_over() {
                return;
            }
            std::hint::spin_loop();
        }
    }

    fn shares_core(&self, core: u32) -> bool {
        ring::note_core(&self.cores.own, core);
        ring::is_on_core(&self.cores.peers, core) && !ring::is_consumer_armed(&self.cores.own)
    }

    fn arm(&self) -> bool {
        // A poller holds the token for the time of a few messages at most.
        let mut receiving = self.receiving.lock();
        self.is_armed.store(true, SeqCst);
        receiving.consumer.arm();
        receiving.urgent.arm();
        // What was taken past the sink may have made room for a peer that waits.
        if receiving.consumer.owes_a_look() && receiving.consumer.must_ring() {
            self.shore().ring();
        }
        let over = receiving.consumer.closed().is_some() || self.process.is_known_to_have_ended();
        let arrived = over || !receiving.urgent.is_empty() || !matches!(receiving.consumer.peek(), Ok(None));
        drop(receiving);
        // In any case: what has arrived may find no room, and then nobody arms this again.
        let is_quiet = self.arm_outbound();
        !arrived && is_quiet
    }

    fn arm_urgent(&self) -> bool {
        let mut receiving = self.receiving.lock();
        self.is_armed.store(true, SeqCst);
        receiving.urgent.arm();
        let arrived = receiving.urgent.has_news();
        drop(receiving);
        let is_quiet = self.arm_outbound();
        !arrived && is_quiet
    }

    fn next_due(&self) -> Option<Instant> {
        self.sending.lock().next_try()
    }

    fn disarm(&self) {
        // Who misses that it is being armed is rung once more than need be.
        if self.is_armed.load(SeqCst)
            && let Some(mut receiving) = self.receiving.try_lock()
        {
            self.is_armed.store(false, SeqCst);
            receiving.consumer.disarm();
            receiving.urgent.disarm();
        }
    }

    fn readiness(&self) -> Option<Readiness<'_>> {
        Some(Readiness { descriptor: self.socket.as_fd(), writable: false, while_paused: false })
    }

    fn is_neighbourly(&self) -> bool {
        true
    }

    fn introduce(&self, segment: &Arc<Segment>) -> Result<bool> {
        let mut sending = self.sending.lock();
        match self.ended.get() {
            Some(reason) => Err(reason.clone()),
            None => sending.introduce(segment, &self.shore()),
        }
    }

    fn shown(&self, id: SegmentId) -> Option<Arc<Segment>> {
        self.shown.segment(id, &self.socket)
    }

    fn ring(&self) {
        self.shore().ring();
    }

    fn tracer(&self) -> Option<u32> {
        self.process.tracer()
    }

    fn is_peer_gone(&self) -> bool {
        self.process.is_known_to_have_ended() || self.process.has_ended()
    }

    fn attend(&self) {
        if let Err(error) = self.shown.read(&self.socket) {
            let _ = self.fail(error);
        }
    }

    fn beat(&self) -> Option<Duration> {
        {
            let mut sending = self.sending.lock();
            sending.producer.beat();
            sending.rest(self.socket.as_fd());
        }
        let receiving = self.receiving.try_lock()?;
        let mut life = self.life.lock();
        let beats = receiving.consumer.beats();
        if beats != life.beats {
            *life = Life { beats, seen: clock::now() };
        }
        Some(clock::since(life.seen))
    }

    fn close(&self, reason: &Error) {
        // Sent a last time, as far as the ring takes it: a close comes after what was sent before.
        let _ = self.push_out();
        self.end(reason, CloseReason::Finished);
    }

    fn give_up(&self, reason: &Error) {
        self.end(reason, code_for(reason));
    }

    fn unsent(&self) -> usize {
        let sending = self.sending.lock();
        sending.unsent() + self.lent.lock().uncopied(sending.producer.read_up_to())
    }

    fn abandon(&self, reason: &Error) {
        if self.process.has_ended() {
            self.end(reason, CloseReason::Failed);
            return;
        }
        self.end(reason, CloseReason::DeclaredDead);
        if self.kill_silent {
            self.process.kill();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::process::PeerProcesses;
    use super::*;
    use crate::{Node, NodeConfig};
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::sync::mpsc::channel;

    /// A poller that finds the link busy leaves what is in it to the thread that has it, which would look at nothing
    /// but segments.
    #[test]
    fn whoever_asks_for_a_segment_keeps_nobody_from_polling() {
        let node = Node::start(NodeConfig::named("test")).expect("a node");
        let (pair, _) = Pair::create().expect("memory");
        let (socket, _theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets");
        let process = PeerProcesses::of_socket(&node.inner, socket.as_fd()).expect("it is this one");
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        let (peer, outbound) = (Peer::named("peer"), Which::FromInitiator);
        let material = Material { pair, outbound, socket, bell, peer };
        let link = ShmLink::new(LinkId(1), &node.inner, material, process).expect("a link");
        let (tell, told) = channel();
        let polls = link.receiving.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(link.shown(SegmentId(7)).is_none());
                tell.send(()).expect("somebody listens");
            });
            let is_free = told.recv_timeout(Duration::from_secs(10)).is_ok();
            drop(polls);
            assert!(is_free, "it takes the token");
        });
    }
}
