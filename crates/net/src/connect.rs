//! Connecting to a node that listens.
//!
//! A node of the same [`crate::Neighbourhood`] is linked in process, one of the same host (the same boot id, and its
//! abstract Unix socket answers, and belongs to this user) through shared memory, every other one over TCP. Every step
//! waits in `poll(2)` with what is left of the caller's time. What may get better by itself is tried again until then:
//! nobody listens yet, too many strangers at the door, a connection that broke. What cannot is reported at once:
//! another secret, another version, another node.

use crate::address::Address;
use crate::greeting::{nonce, peer_of};
use crate::node::{Inner, Node};
use crate::probe::PAYLOAD;
use crate::{inproc, shm, tcp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, getpeername, getsockname,
    recv, send, socket_with, sockopt,
};
use sheave_base::clock;
use sheave_base::config::Transport;
use sheave_base::limits::HANDSHAKE_BYTES_MAX;
use sheave_base::work::Interrupt;
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Peer, Result};
use sheave_wire::handshake::{Hello, Initiator, Medium, Step};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// First and longest wait between two attempts.
const RETRY_MIN: Duration = Duration::from_millis(5);
const RETRY_MAX: Duration = Duration::from_millis(320);
/// How long this process may lack descriptors or memory before an attempt is given up: others may be about to free
/// some.
pub(crate) const SHORTAGE_PATIENCE: Duration = Duration::from_secs(1);
/// How long one sleep lasts at most before the interrupt is asked.
const SLICE: Duration = Duration::from_millis(100);

impl Node {
    /// Links this node to the one that listens at `address`. Blocks until the link is ready, for at most until `until`.
    ///
    /// # Errors
    ///
    /// `DeadlineExceeded` if nobody answered in time, with the last cause; `Unauthenticated` if the two sides hold
    /// different secrets, naming where each came from; `Protocol` for another version; `Mismatch` if another node than
    /// the address names listens there; `InvalidArgument` or `Unsupported` if the address has nothing that the
    /// configured transport can use; `LimitExceeded`, as a shortage, if this process has no descriptors or no memory
    /// for a link and gets none within a second.
    pub fn connect(&self, address: &Address, until: Instant) -> Result<LinkId> {
        self.connect_interruptible(address, until, None)
    }

    /// Like [`Node::connect`]; `interrupt` is asked at least every 100 ms, and its error ends the attempt.
    ///
    /// # Errors
    ///
    /// As [`Node::connect`], and whatever `interrupt` says.
    pub fn connect_interruptible(
        &self,
        address: &Address,
        until: Instant,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<LinkId> {
        self.attempt(address, until, interrupt, false)
    }

    /// Like [`Node::connect_interruptible`], to a node that is known to have listened there: if nobody listens any more
    /// it is gone, and waiting for it is in vain.
    ///
    /// # Errors
    ///
    /// As [`Node::connect_interruptible`], and `NotFound` if nobody listens there.
    pub fn connect_known(&self, address: &Address, until: Instant, interrupt: Option<Interrupt<'_>>) -> Result<LinkId> {
        self.attempt(address, until, interrupt, true)
    }

    fn attempt(
        &self,
        address: &Address,
        until: Instant,
        interrupt: Option<Interrupt<'_>>,
        is_known: bool,
    ) -> Result<LinkId> {
        self.inner.fork.check("node")?;
        let begun = clock::now();
        let mut attempt = Attempt { node: &self.inner, address, deadline: Deadline { until, interrupt } };
        let mut pause = RETRY_MIN;
        let mut short_since: Option<Instant> = None;
        loop {
            let cause = match attempt.once() {
                Ok(link) => return Ok(link),
                Err(Failure::Passing(cause)) if cause.is_shortage() => {
                    let since = *short_since.get_or_insert_with(clock::now);
                    if clock::since(since) >= SHORTAGE_PATIENCE || clock::now() >= until {
                        return Err(cause.operation("connect").elapsed(clock::since(begun)));
                    }
                    cause
                }
                Err(Failure::Absent(cause)) if !is_known => cause,
                Err(Failure::Absent(error)) => return Err(error.operation("connect").elapsed(clock::since(begun))),
                Err(Failure::Final(error)) => {
                    let error = error.operation("connect");
                    return Err(if error.after().is_none() { error.elapsed(clock::since(begun)) } else { error });
                }
                Err(Failure::Passing(cause)) => cause,
            };
            let rest = until.saturating_duration_since(clock::now());
            if rest.is_zero() {
                return Err(self.inner.gave_up(address, &cause).elapsed(clock::since(begun)));
            }
            attempt.deadline.pause(pause.min(rest))?;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }
}

/// Has the node at `address` prove over a fresh connection that it is alive, and proves the same to it.
pub(crate) fn probe(
    node: &Arc<Inner>,
    address: &Address,
    connected_by: Instant,
    until: Instant,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let tcp = address.tcp.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "no TCP address to probe"))?;
    let mut attempt = Attempt { node, address, deadline: Deadline { until: connected_by, interrupt: Some(interrupt) } };
    let socket = attempt.connect_tcp(tcp)?;
    attempt.deadline.until = until;
    attempt.shake(&socket, Medium::Tcp, Some(PAYLOAD)).map(drop)
}

impl Inner {
    fn gave_up(&self, address: &Address, cause: &Error) -> Error {
        let source = self.secret().map_or_else(|_| "nowhere".to_owned(), |secret| secret.source);
        Error::new(ErrorKind::DeadlineExceeded, format!("no link to {address}; last of all: {cause}"))
            .operation("connect")
            .hint(format!("is the process there, and reachable from here? this side's secret came from {source}"))
    }
}

/// Why an attempt made no link.
enum Failure {
    /// Another attempt may succeed.
    Passing(Error),
    /// Nobody listens there; another attempt may succeed if somebody is about to.
    Absent(Error),
    /// None will.
    Final(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound => Self::Absent(error),
            ErrorKind::PeerLost | ErrorKind::Io | ErrorKind::DeadlineExceeded | ErrorKind::LimitExceeded => {
                Self::Passing(error)
            }
            _ => Self::Final(error),
        }
    }
}

/// A caller's deadline, and what may interrupt it.
struct Deadline<'a> {
    until: Instant,
    interrupt: Option<Interrupt<'a>>,
}

impl Deadline<'_> {
    /// Waits until the socket is ready, or fails when the time is up.
    fn ready(&mut self, socket: &OwnedFd, flags: PollFlags, until: Instant) -> Result<()> {
        let until = until.min(self.until);
        loop {
            let rest = until.saturating_duration_since(clock::now());
            if self.sleep(&mut [PollFd::new(socket, flags)], rest)? {
                return Ok(());
            }
            if rest.is_zero() {
                return Err(Error::new(ErrorKind::DeadlineExceeded, "the other side did not answer in time"));
            }
        }
    }

    fn pause(&mut self, span: Duration) -> Result<()> {
        let until = clock::now() + span;
        loop {
            let rest = until.saturating_duration_since(clock::now());
            if rest.is_zero() {
                return Ok(());
            }
            self.sleep(&mut [], rest)?;
        }
    }

    /// One sleep of at most `limit`; true when a descriptor is ready.
    fn sleep(&mut self, descriptors: &mut [PollFd<'_>], limit: Duration) -> Result<bool> {
        if let Some(interrupt) = self.interrupt.as_mut() {
            interrupt()?;
        }
        wait_for(descriptors, limit.min(SLICE))
    }
}

/// Waits for any of these, for at most `limit`, which is less than a second. True when one is ready.
fn wait_for(descriptors: &mut [PollFd<'_>], limit: Duration) -> Result<bool> {
    #[cfg(feature = "simulated")]
    if let Some(system) = sheave_base::simulated::current() {
        if !limit.is_zero() && !look_at(descriptors, Duration::ZERO)? {
            system.wait_for_descriptors(sheave_base::simulated::until(&*system, Some(limit)));
        }
        return look_at(descriptors, Duration::ZERO);
    }
    look_at(descriptors, limit)
}

fn look_at(descriptors: &mut [PollFd<'_>], limit: Duration) -> Result<bool> {
    let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) as _ };
    match poll(descriptors, Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(Error::from(errno).context("waiting for a socket")),
    }
}

/// One caller's attempts.
struct Attempt<'a, 'i> {
    node: &'a Arc<Inner>,
    address: &'a Address,
    deadline: Deadline<'i>,
}

impl Attempt<'_, '_> {
    fn once(&mut self) -> std::result::Result<LinkId, Failure> {
        let address = self.address;
        if let Some(neighbour) = self.node.find_neighbour(address.node) {
            return self.link_within(&neighbour);
        }
        let transport = self.node.config.transport;
        if let Some(socket) = self.connect_near()? {
            return self.link_shm(socket);
        }
        match address.tcp {
            Some(tcp) if transport != Transport::Shm => self.link_tcp(tcp),
            _ => Err(Failure::Final(
                Error::new(
                    ErrorKind::Unsupported,
                    format!("{address} has nothing that transport {transport:?} can use"),
                )
                .hint("let the other side listen on TCP too, or choose another transport"),
            )),
        }
    }

    /// A connection to the Unix socket of the other side, if that is on this host and TCP is not the way.
    fn connect_near(&self) -> Result<Option<OwnedFd>> {
        let (address, transport) = (self.address, self.node.config.transport);
        let same_host = !address.boot_id.is_empty() && address.boot_id == self.node.boot_id();
        let forced = transport == Transport::Shm;
        let Some(name) = address.unix.as_deref().filter(|_| transport != Transport::Tcp && (same_host || forced))
        else {
            return Ok(None);
        };
        match connect_unix(name) {
            Err(error) if forced || address.tcp.is_none() || error.kind() == ErrorKind::LimitExceeded => Err(error),
            // Another network namespace of this host, or another user's: there is still TCP.
            outcome => Ok(outcome.ok()),
        }
    }

    fn link_within(&self, neighbour: &Arc<Inner>) -> std::result::Result<LinkId, Failure> {
        self.node.check_secret_of(neighbour)?;
        match inproc::link(self.node, neighbour) {
            Ok((link, _)) => Ok(link),
            Err(_) if neighbour.stopping.load(SeqCst) => {
                let what = format!("{} has ended: nobody listens there", neighbour.peer);
                Err(Failure::Absent(Error::new(ErrorKind::NotFound, what)))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The neighbour that has turned out to listen where the address says. It makes no link of the socket either.
    fn neighbour(&self, peer: &Peer) -> Option<Arc<Inner>> {
        self.node.find_neighbour(peer.node?)
    }

    fn link_shm(&mut self, socket: OwnedFd) -> std::result::Result<LinkId, Failure> {
        let (peer, early) = self.shake(&socket, Medium::SharedMemory, None)?;
        if let Some(neighbour) = self.neighbour(&peer) {
            return self.link_within(&neighbour);
        }
        if !early.is_empty() {
            return Err(Failure::Final(Error::new(ErrorKind::Protocol, "the peer sent more than its handshake")));
        }
        let until = clock::now() + self.node.config.handshake_timeout;
        let mut offer = shm::offer(self.node, socket, peer)?;
        loop {
            self.deadline.ready(offer.socket(), PollFlags::IN, until).inspect_err(|_| offer.withdraw())?;
            match offer.finish(self.node)? {
                Ok(link) => return Ok(link),
                Err(again) => offer = again,
            }
        }
    }

    fn link_tcp(&mut self, tcp: SocketAddr) -> std::result::Result<LinkId, Failure> {
        let socket = self.connect_tcp(tcp)?;
        // Whoever has just begun to listen did so on its Unix socket first; the look before was a moment too early.
        if let Some(near) = self.connect_near()? {
            return self.link_shm(near);
        }
        let (peer, early) = self.shake(&socket, Medium::Tcp, None)?;
        if let Some(neighbour) = self.neighbour(&peer) {
            return self.link_within(&neighbour);
        }
        Ok(tcp::add(self.node, socket, peer, &early, Some(tcp))?)
    }

    fn connect_tcp(&mut self, tcp: SocketAddr) -> Result<OwnedFd> {
        #[cfg(feature = "simulated")]
        if let Some(system) = sheave_base::simulated::current() {
            return self.connect_simulated(&*system, tcp);
        }
        let family = if tcp.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
            .map_err(|errno| Error::from(errno).context("making a socket"))?;
        let refused = |errno: Errno| failed_to_connect(errno, format!("connecting to {tcp}"));
        match connect(&socket, &tcp) {
            Ok(()) => {}
            Err(Errno::INPROGRESS | Errno::INTR) => {
                self.deadline.ready(&socket, PollFlags::OUT, self.deadline.until)?;
                sockopt::socket_error(&socket).and_then(|outcome| outcome).map_err(refused)?;
            }
            Err(errno) => return Err(refused(errno)),
        }
        // The kernel connects a socket to itself when it draws the very port that it is to connect to.
        if getpeername(&socket).map_err(refused)? == Some(getsockname(&socket).map_err(refused)?) {
            return Err(refused(Errno::CONNREFUSED));
        }
        Ok(socket)
    }

    #[cfg(feature = "simulated")]
    fn connect_simulated(&mut self, system: &dyn sheave_base::simulated::System, tcp: SocketAddr) -> Result<OwnedFd> {
        let dial = system.dial(tcp);
        loop {
            if let Some(outcome) = system.dialled(dial) {
                return outcome.map_err(|errno| failed_to_connect(errno, format!("connecting to {tcp}")));
            }
            let rest = self.deadline.until.saturating_duration_since(clock::now());
            if rest.is_zero() {
                return Err(Error::new(ErrorKind::DeadlineExceeded, "the other side did not answer in time"));
            }
            self.deadline.sleep(&mut [], rest)?;
        }
    }

    /// Proves to the other side that this one knows the secret, and the reverse. Returns who it is, and what it sent
    /// beyond the handshake. `payload` takes the place of what a hello says otherwise.
    fn shake(&mut self, socket: &OwnedFd, medium: Medium, payload: Option<&[u8]>) -> Result<(Peer, Vec<u8>)> {
        let until = clock::now() + self.node.config.handshake_timeout;
        let secret = self.node.secret()?;
        let mut hello = self.node.hello(medium, &secret);
        hello.payload = payload.map_or(hello.payload, Vec::from);
        let (mut initiator, words) = Initiator::new(hello, secret.secret, nonce()?)?;
        self.say(socket, &words, until)?;
        let mut has_proven = false;
        let shaken = self.prove(socket, &mut initiator, until, &mut has_proven);
        if shaken.is_err() && has_proven && medium == Medium::Tcp && payload.is_none() {
            // The other side may have had the proof, and take the link for made.
            tcp::withdraw(socket);
        }
        shaken
    }

    /// The rest of the handshake, after this side's first words. Says whether the other side has this side's proof.
    fn prove(
        &mut self,
        socket: &OwnedFd,
        initiator: &mut Initiator,
        until: Instant,
        has_proven: &mut bool,
    ) -> Result<(Peer, Vec<u8>)> {
        let mut bytes = [0; HANDSHAKE_BYTES_MAX + 4];
        loop {
            self.deadline.ready(socket, PollFlags::IN, until)?;
            let length = match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(hung_up("closed the connection")),
                Ok((length, _)) => length,
                Err(Errno::AGAIN | Errno::INTR) => continue,
                Err(errno) => return Err(hung_up(&format!("broke the connection ({errno})"))),
            };
            let mut rest = &bytes[..length];
            while !rest.is_empty() {
                let progress = match initiator.feed(rest) {
                    Ok(progress) => progress,
                    Err(refusal) => {
                        // Nobody left to tell is no reason to report another error.
                        let _ = refusal.send.map(|words| self.say(socket, &words, until));
                        return Err(refusal.error);
                    }
                };
                rest = &rest[progress.consumed_bytes..];
                match progress.step {
                    Step::Need => {}
                    Step::Send(words) => {
                        *has_proven = true;
                        self.say(socket, &words, until)?;
                    }
                    Step::Done { peer, .. } => {
                        self.check_identity(&peer)?;
                        return Ok((peer_of(&peer), rest.to_vec()));
                    }
                }
            }
        }
    }

    fn check_identity(&self, peer: &Hello) -> Result<()> {
        if self.address.node == NodeId::default() || self.address.node == peer.node {
            return Ok(());
        }
        let what = format!("another node listens at {} now", self.address);
        Err(Error::new(ErrorKind::Mismatch, what).peer(peer_of(peer)).hint("ask the node for its present address"))
    }

    fn say(&mut self, socket: &OwnedFd, words: &[u8], until: Instant) -> Result<()> {
        let mut rest = words;
        while !rest.is_empty() {
            match send(socket, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(length) => rest = &rest[length..],
                Err(Errno::AGAIN | Errno::INTR) => self.deadline.ready(socket, PollFlags::OUT, until)?,
                // It may have said why before it hung up; reading finds that.
                Err(Errno::PIPE | Errno::CONNRESET) => return Ok(()),
                Err(errno) => return Err(hung_up(&format!("broke the connection ({errno})"))),
            }
        }
        Ok(())
    }
}

/// Connects to a process of this host and user. A Unix socket connects at once or not at all.
fn connect_unix(name: &str) -> Result<OwnedFd> {
    let failed = |errno: Errno| failed_to_connect(errno, format!("connecting to the Unix socket @{name}"));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(failed)?;
    match connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed)?) {
        Ok(()) => {}
        Err(Errno::AGAIN) => {
            return Err(Error::new(ErrorKind::LimitExceeded, "too many others connect to the peer at this moment"));
        }
        Err(errno) => return Err(failed(errno)),
    }
    shm::check_user(socket.as_fd())?;
    Ok(socket)
}

fn failed_to_connect(errno: Errno, context: String) -> Error {
    match errno {
        Errno::CONNREFUSED => Error::new(ErrorKind::NotFound, format!("{context}: nobody listens there")),
        errno => Error::from(errno).context(context),
    }
}

fn hung_up(what: &str) -> Error {
    Error::new(ErrorKind::PeerLost, format!("it {what} during the handshake")).operation("handshake")
}
