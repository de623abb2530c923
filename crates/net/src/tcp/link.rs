//! The TCP link: a socket, what waits to be written and what is half read.

use super::reading::{self, Reading, Taken, has_hung_up};
use super::stays_on_this_host;
use super::writing::{self, Finished, Rooms, Writing};
use crate::counters::Counters;
use crate::farewell::code_for;
use crate::link::{Handover, Hold, Link, Medium, Polled, Readiness, Sink};
use crate::message::Outgoing;
use crate::node::Inner;
use crate::outbox::SendDriver;
use crate::shm::tracer_of;
use parking_lot::{Mutex, MutexGuard};
use rustix::net::{RecvFlags, Shutdown};
use sheave_base::clock;
use sheave_base::{Error, LinkId, Peer, Result};
use sheave_wire::CloseReason;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

pub(crate) struct TcpLink {
    id: LinkId,
    peer: Peer,
    socket: OwnedFd,
    /// Where this side has connected to, if it was this side.
    made_to: Option<SocketAddr>,
    /// When the peer was last found alive beside this connection.
    vouched: Mutex<Option<Instant>>,
    writing: Mutex<Writing>,
    /// Whether `writing` waits for room; only a hint for those who do not hold its lock.
    waits: AtomicBool,
    /// Whether the next poll must begin another turn of `writing`; a hint as well.
    has_had_its_turn: AtomicBool,
    /// Whether what waits goes on when the socket has room, and not only when the peer says that it has.
    wants_socket: AtomicBool,
    /// Whether the stream is read on though its next message waits for its receiver.
    reads_on: AtomicBool,
    reading: Mutex<Reading>,
    rooms: Rooms,
    ended: OnceLock<Error>,
    counters: Arc<Counters>,
    driver: SendDriver,
    node: Weak<Inner>,
}

impl TcpLink {
    /// The beginning of what the kernel knows about the connection, laid out as its `tcp_info`.
    fn kernel_info(&self) -> Option<[u8; 72]> {
        let mut info = [0_u8; 72];
        let mut length = info.len() as libc::socklen_t;
        // SAFETY: the option writes at most as many bytes as it is told, into memory of that size.
        let outcome = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        (outcome == 0 && length as usize == info.len()).then_some(info)
    }

    pub(crate) fn new(
        id: LinkId,
        node: &Inner,
        (socket, made_to): (OwnedFd, Option<SocketAddr>),
        peer: Peer,
        early: &[u8],
    ) -> Result<Self> {
        Ok(Self {
            id,
            peer,
            socket,
            made_to,
            vouched: Mutex::new(None),
            writing: Mutex::default(),
            waits: AtomicBool::new(false),
            has_had_its_turn: AtomicBool::new(false),
            wants_socket: AtomicBool::new(false),
            reads_on: AtomicBool::new(true),
            reading: Mutex::new(Reading::new(early)?),
            rooms: Rooms::default(),
            ended: OnceLock::new(),
            counters: Arc::clone(&node.counters),
            driver: SendDriver::new(node, id),
            node: node.weak.clone(),
        })
    }

    fn shore(&self) -> writing::Shore<'_> {
        let (socket, counters, driver) = (self.socket.as_fd(), &*self.counters, &self.driver);
        writing::Shore { socket, counters, driver, reading: &self.reading, rooms: &self.rooms }
    }

    /// Lets those know who do not hold the lock.
    fn note(&self, writing: &Writing) {
        self.waits.store(writing.waits(), SeqCst);
        self.has_had_its_turn.store(writing.has_had_its_turn(), SeqCst);
        self.wants_socket.store(writing.wants_socket(), SeqCst);
    }

    /// Calls `act` with the writing side.
    fn write<R>(&self, act: impl FnOnce(&mut Writing, &writing::Shore<'_>) -> R) -> R {
        let mut writing = self.writing.lock();
        let outcome = act(&mut writing, &self.shore());
        self.let_go(writing);
        outcome
    }

    fn let_go(&self, writing: MutexGuard<'_, Writing>) {
        self.note(&writing);
        drop(writing);
        if self.rooms.take_missed()
            && let Some(node) = self.node.upgrade()
        {
            node.progress.call();
        }
        if !self.rooms.wait() {
            return;
        }
        // What is wrong with it is kept, and the next poll says so.
        let _ = self.pass_on_rooms();
        // Whoever read of the room found the lock taken, and may sleep by now without an eye on the socket.
        if self.wants_socket.load(SeqCst)
            && let Some(node) = self.node.upgrade()
        {
            node.progress.call();
        }
    }

    /// Writes what waits, as far as the socket takes it, for one turn, unless a sender is writing: what is left of its
    /// message is polled for after it has let go.
    fn push_out(&self) -> Result<bool> {
        if !self.waits.load(SeqCst) && !self.has_had_its_turn.load(SeqCst) {
            return Ok(false);
        }
        self.writing.try_lock().map_or(Ok(false), |writing| self.flush(writing))
    }

    fn flush(&self, mut writing: MutexGuard<'_, Writing>) -> Result<bool> {
        let mut finished = Finished::new();
        let outcome = writing.flush(&self.shore(), &mut finished);
        self.let_go(writing);
        for (done, outcome) in finished {
            done.complete(outcome);
        }
        outcome
    }

    fn take_in(&self, reading: &mut Reading, sink: &dyn Sink, budget: usize) -> Result<Taken> {
        let shore = reading::Shore {
            id: self.id,
            socket: self.socket.as_fd(),
            peer: &self.peer,
            counters: &self.counters,
            sink,
        };
        let mut taken = reading.take_in(&shore, budget)?;
        self.reads_on.store(reading.reads_on(), SeqCst);
        let (heard, to_tell) = (reading.take_room(), reading.room_to_tell());
        if heard.is_some() || to_tell.is_some() {
            self.rooms.note(heard, to_tell);
            self.pass_on_rooms()?;
            taken.moved |= heard.is_some();
        }
        Ok(taken)
    }

    /// Tells the writing side what the reading side has for it, unless somebody holds its lock: that one looks after
    /// letting it go.
    fn pass_on_rooms(&self) -> Result<()> {
        while self.rooms.wait() {
            let Some(mut writing) = self.writing.try_lock() else { return Ok(()) };
            let outcome = writing.pass_on(&self.shore());
            self.note(&writing);
            outcome?;
        }
        Ok(())
    }

    /// What `is_quiet` says of the reading side, for whoever arms. Where another thread has the token it is quiet: one
    /// that polls looks at the link afterwards, and one that looks for [room](Writing::send) is told to call for
    /// somebody who does. Of what was read ahead the descriptor tells nobody.
    fn look_at_reading(&self, is_quiet: impl Fn(&Reading) -> bool) -> bool {
        let look = || self.reading.try_lock().map(|reading| is_quiet(&reading));
        look().unwrap_or_else(|| {
            self.rooms.note_missed();
            // It may have been let go of before that.
            look().unwrap_or(true)
        })
    }

    /// Waits for whoever polls; from then on, since the link has a reason to have ended, nobody receives anything.
    fn give_up_landing(&self, reason: &Error) {
        let landing = self.reading.lock().end();
        if let Some(landing) = landing {
            landing.fail(reason);
        }
    }

    /// Ends this side: the peer is told, and everything that waits fails.
    fn end(&self, reason: &Error, code: CloseReason) {
        if self.ended.set(reason.clone()).is_err() {
            // Somebody else ends it; but whoever has called this may rely on it that nobody writes to places any more.
            return self.give_up_landing(reason);
        }
        let unsent = self.write(|writing, shore| writing.end(code, shore));
        // The connection may be gone already, which is what is wanted.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
        self.discard_arrived();
        self.give_up_landing(reason);
        for done in unsent {
            done.complete(Err(reason.clone()));
        }
    }

    /// Throws away what has arrived: a socket that is closed with unread bytes resets the connection, and with it what
    /// the peer has not taken yet. True when the peer has ended the stream too.
    fn discard_arrived(&self) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return true,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return errno != rustix::io::Errno::AGAIN,
            }
        }
    }

    /// Counts the bytes that the kernel keeps because the peer's has not acknowledged them, the end of the stream among
    /// them. What is acknowledged reaches the peer even if this side's socket is closed and answers with a reset.
    fn unacknowledged_bytes(&self) -> u64 {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the request writes one int to the address that it is given.
        let outcome = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        if outcome == 0 { u64::try_from(bytes).unwrap_or(0) } else { 0 }
    }
}

impl Link for TcpLink {
    fn medium(&self) -> Medium {
        Medium::Tcp
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn send(&self, message: Outgoing, hold: Hold) -> Result<Handover> {
        if let Some(reason) = self.ended.get() {
            return Err(reason.clone());
        }
        let handover = self.write(|writing, shore| writing.send(message, hold, shore));
        handover.map_err(|error| if error.about().is_some() { error } else { error.peer(self.peer.clone()) })
    }

    fn capture(&self) -> Result<()> {
        self.write(|writing, shore| writing.capture(shore.driver))
    }

    fn poll(&self, sink: &dyn Sink, budget: usize) -> Polled {
        let Some(mut reading) = self.reading.try_lock() else { return Polled::Busy };
        if let Some(reason) = self.ended.get() {
            // Whoever ends the link may not have come to this yet, and who polls tells of the end.
            drop(reading);
            self.give_up_landing(reason);
            return Polled::Ended(reason.clone());
        }
        let pushed = self.push_out();
        let taken = pushed.and_then(|pushed| Ok((pushed, self.take_in(&mut reading, sink, budget)?)));
        drop(reading);
        match taken {
            Err(error) => {
                let code = code_for(&error);
                let reason = if error.about().is_some() { error } else { error.peer(self.peer.clone()) };
                self.end(&reason, code);
                Polled::Ended(reason)
            }
            Ok((pushed, taken)) if pushed || taken.moved => Polled::Moved,
            Ok((_, Taken { paused: true, .. })) => Polled::Paused,
            Ok(_) => Polled::Idle,
        }
    }

    fn arm(&self) -> bool {
        // The descriptor is watched as long as the link lives, for room too while bytes wait.
        self.look_at_reading(|reading| !reading.is_ready())
    }

    fn arm_urgent(&self) -> bool {
        self.look_at_reading(|reading| !reading.has_urgent())
    }

    fn disarm(&self) {}

    fn readiness(&self) -> Option<Readiness<'_>> {
        let (writable, while_paused) = (self.wants_socket.load(SeqCst), self.reads_on.load(SeqCst));
        Some(Readiness { descriptor: self.socket.as_fd(), writable, while_paused })
    }

    fn beat(&self) -> Option<Duration> {
        // To a peer that has ended the stream a beat says nothing, and the reset that answers it may throw away the
        // last words that are still to be read here.
        if !has_hung_up(self.socket.as_fd())
            && let Some(mut writing) = self.writing.try_lock()
        {
            writing.beat(&self.shore());
            self.let_go(writing);
        }
        let silence = self.reading.try_lock()?.silence(self.socket.as_fd());
        let vouched = self.vouched.lock().map(clock::since);
        Some(vouched.into_iter().fold(silence, Duration::min))
    }

    fn is_stuck(&self) -> bool {
        // The third byte counts how often the kernel has sent the same again, since the peer's last sign of having it.
        const RETRANSMITS: usize = 2;
        self.kernel_info().is_some_and(|info| info[RETRANSMITS] > 1)
    }

    fn round_trip(&self) -> Duration {
        // In microseconds, smoothed.
        const ROUND_TRIP: std::ops::Range<usize> = 68..72;
        let info = self.kernel_info();
        let of_kernel = info.and_then(|info| info[ROUND_TRIP].try_into().ok()).map_or(0, u32::from_ne_bytes);
        Duration::from_micros(of_kernel.into())
    }

    fn tracer(&self) -> Option<u32> {
        // Both ends of a connection that has one address are on one host, and see each other's processes.
        let pid = self.peer.pid.filter(|_| stays_on_this_host(&self.socket))?;
        tracer_of(pid)
    }

    fn made_to(&self) -> Option<SocketAddr> {
        self.made_to
    }

    fn vouch(&self) {
        *self.vouched.lock() = Some(clock::now());
    }

    fn close(&self, reason: &Error) {
        // A socket that fails here ends the link all the same.
        let _ = self.flush(self.writing.lock());
        self.end(reason, CloseReason::Finished);
    }

    fn give_up(&self, reason: &Error) {
        self.end(reason, code_for(reason));
    }

    fn unsent(&self) -> usize {
        self.write(|writing, _| writing.unsent())
    }

    fn at_risk_bytes(&self) -> u64 {
        // What arrives now is for nobody; it is taken so that it cannot keep the peer from going on.
        if self.discard_arrived() { 0 } else { self.unacknowledged_bytes() }
    }

    fn abandon(&self, reason: &Error) {
        self.end(reason, CloseReason::DeclaredDead);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::progress::Watched;
    use crate::{Node, NodeConfig};
    use sheave_wire::{Header, Kind};
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    fn eventually(what: &str, condition: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(20);
        while !condition() {
            assert!(Instant::now() < until, "never: {what}");
            std::thread::yield_now();
        }
    }

    /// What was read ahead is in no socket, so nobody is told of it who has taken the link for quiet because a sender
    /// looked for room just then. Whoever sleeps as leader by now is rung.
    #[test]
    fn a_link_that_is_busy_while_it_is_armed_is_looked_at_afterwards() {
        let mut config = NodeConfig::named("test");
        config.liveness.beat = Duration::from_secs(600);
        let node = Node::start(config).expect("a node");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let _theirs = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (ours, _) = listener.accept().expect("it has connected");
        let early = Header { sequence: 1, ..Header::new(Kind::Beat) }.encode();
        let link = TcpLink::new(LinkId(1), &node.inner, (ours.into(), None), Peer::named("peer"), &early);
        let link = link.expect("a link");
        assert!(!link.arm(), "something was read ahead");
        eventually("the progress thread leads", || node.inner.progress.is_led());
        let wakeups = node.counts().progress_wakeups;
        let busy = link.reading.lock();
        assert!(link.arm(), "nobody waits for the token");
        drop(busy);
        // As a sender does that has looked for room.
        assert_eq!(link.unsent(), 0);
        eventually("a ring for the leader", || node.counts().progress_wakeups > wakeups);
    }

    struct Nobody;

    impl Watched for Nobody {
        fn ready(&self) {}
    }

    #[test]
    fn a_peer_is_told_that_its_link_cannot_be_watched() {
        let node = Node::start(NodeConfig::named("test")).expect("a node");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut theirs = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        theirs.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        let (ours, _) = listener.accept().expect("it has connected");
        let ours = OwnedFd::from(ours);
        // Nobody can watch it twice.
        node.inner.progress.watch(ours.as_fd(), Arc::new(Nobody)).expect("there is room");
        crate::tcp::add(&node.inner, ours, Peer::named("peer"), &[], None).expect_err("it is watched");
        let mut words = Vec::new();
        theirs.read_to_end(&mut words).expect("it is closed");
        let last = words.last_chunk::<64>().expect("a last word");
        let last = Header::decode(last).expect("it is whole");
        let code = u8::try_from(last.tag).ok().and_then(CloseReason::from_code);
        assert_eq!((last.kind, code), (Kind::Close, Some(CloseReason::Failed)), "no end in order");
    }
}
