//! What lies between the sockets of processes.
//!
//! A connection is two sockets of the kernel: one between its first process and the world, one between the world and
//! its second. What the world reads from one *end* it writes to the other when it has arrived there. It reads no more
//! from an end of which much is under way, so that the socket fills up and its process feels it.

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen,
    recv, send, shutdown, socket_with, socketpair,
};
use sheave_base::clock::SeededEntropy;
use sheave_base::simulated::Dial;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes that may be under way from one end.
const WINDOW_BYTES: usize = 256 << 10;
/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;

/// How one host reaches another.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// The shortest time that something takes.
    pub delay_ns: u64,
    /// How much longer it may take.
    pub jitter_ns: u64,
    /// What passes in a second.
    pub bytes_per_s: u64,
}

/// Something that arrives.
pub(super) enum Arrival {
    Bytes {
        end: usize,
        bytes: Vec<u8>,
    },
    /// The other side has ended its stream.
    Fin {
        end: usize,
    },
    /// The other side is not there.
    Reset {
        end: usize,
    },
    /// Somebody wants to connect.
    Syn {
        dial: u64,
        to: SocketAddr,
    },
    /// The answer to that.
    Answer {
        dial: u64,
        outcome: Result<OwnedFd, Errno>,
    },
}

/// What is to happen at a time: an arrival, on its way from one host to another.
pub(super) struct Sent {
    pub(super) at_ns: u64,
    pub(super) way: (usize, usize),
    pub(super) arrival: Arrival,
}

/// One end of a connection, as the world has it.
struct End {
    socket: OwnedFd,
    process: usize,
    other: usize,
    /// Arrived, and not yet taken by the socket.
    waiting: Vec<u8>,
    /// What was read here and has not arrived, or waits there.
    under_way_bytes: usize,
    /// Nothing more is read here.
    is_over: bool,
    /// The stream to the process ends behind what waits.
    is_ending: bool,
    /// Nothing more is written here.
    is_ended: bool,
    interest: epoll::EventFlags,
}

struct Dialling {
    process: usize,
    outcome: Option<Result<OwnedFd, Errno>>,
}

pub(super) struct Network {
    epoll: OwnedFd,
    name: String,
    dice: SeededEntropy,
    usual: Way,
    /// By process, its host.
    pub(super) hosts: Vec<usize>,
    /// By process, whether it has ended.
    pub(super) has_ended: Vec<bool>,
    ends: Vec<End>,
    listeners: BTreeMap<SocketAddr, usize>,
    next_port: u16,
    dials: BTreeMap<u64, Dialling>,
    next_dial: u64,
    /// When the last thing on a way between two ends arrives.
    latest_ns: BTreeMap<(usize, usize), u64>,
    silent: BTreeSet<(usize, usize)>,
    held: BTreeMap<(usize, usize), Vec<Arrival>>,
    /// To be handed to the world.
    pub(super) sent: Vec<Sent>,
    /// Processes of which a descriptor has become ready.
    pub(super) stirred: Vec<usize>,
}

/// Worlds of this program.
static WORLDS: AtomicU64 = AtomicU64::new(0);

impl Network {
    pub(super) fn new(seed: u64, usual: Way) -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("there are descriptors");
        let name = format!("sheave-sim-{}-{}", std::process::id(), WORLDS.fetch_add(1, Relaxed));
        Self {
            epoll,
            name,
            dice: SeededEntropy::new(seed ^ 0x6e65_7477),
            usual,
            hosts: Vec::new(),
            has_ended: Vec::new(),
            ends: Vec::new(),
            listeners: BTreeMap::new(),
            next_port: 40_000,
            dials: BTreeMap::new(),
            next_dial: 0,
            latest_ns: BTreeMap::new(),
            silent: BTreeSet::new(),
            held: BTreeMap::new(),
            sent: Vec::new(),
            stirred: Vec::new(),
        }
    }

    fn way(&self, from: usize, to: usize) -> (usize, usize) {
        (self.hosts[from], self.hosts[to])
    }

    fn delay_ns(&mut self, length_bytes: usize) -> u64 {
        let jitter_ns = self.dice.below(self.usual.jitter_ns + 1);
        // Now and then something takes much longer than its neighbours.
        let late_ns = if self.dice.below(32) == 0 { self.dice.below(8 * self.usual.jitter_ns + 1) } else { 0 };
        let length_ns = (length_bytes as u64).saturating_mul(1_000_000_000) / self.usual.bytes_per_s.max(1);
        self.usual.delay_ns + jitter_ns + late_ns + length_ns
    }

    /// Sends something to the other end, behind what was sent before.
    fn send_on(&mut self, now_ns: u64, from_end: usize, length_bytes: usize, arrival: Arrival) {
        let other = self.ends[from_end].other;
        let after_ns = self.latest_ns.get(&(from_end, other)).copied().unwrap_or(0);
        let at_ns = (now_ns + self.delay_ns(length_bytes)).max(after_ns);
        self.latest_ns.insert((from_end, other), at_ns);
        let way = self.way(self.ends[from_end].process, self.ends[other].process);
        self.sent.push(Sent { at_ns, way, arrival });
    }

    /// Takes what processes have written.
    pub(super) fn look(&mut self, now_ns: u64) {
        let mut events: [MaybeUninit<epoll::Event>; 64] = [const { MaybeUninit::uninit() }; 64];
        loop {
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let ready = epoll::wait(&self.epoll, events.as_mut_slice(), Some(&now));
            let Ok((ready, _)) = ready else { return };
            let mut ends: Vec<usize> = ready.iter().map(|event| event.data.u64() as usize).collect();
            if ends.is_empty() {
                return;
            }
            ends.sort_unstable();
            for end in ends {
                self.flush(end);
                self.read(now_ns, end);
                self.watch(end);
            }
        }
    }

    fn read(&mut self, now_ns: u64, end: usize) {
        while !self.ends[end].is_over && self.ends[end].under_way_bytes < WINDOW_BYTES {
            let mut bytes = vec![0; READ_BYTES];
            match recv(&self.ends[end].socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    self.ends[end].is_over = true;
                    let other = self.ends[end].other;
                    self.send_on(now_ns, end, 0, Arrival::Fin { end: other });
                }
                Ok((length_bytes, _)) => {
                    if length_bytes == READ_BYTES {
                        // The socket may have been full, and its process waits for room.
                        self.stirred.push(self.ends[end].process);
                    }
                    bytes.truncate(length_bytes);
                    self.ends[end].under_way_bytes += length_bytes;
                    let other = self.ends[end].other;
                    self.send_on(now_ns, end, length_bytes, Arrival::Bytes { end: other, bytes });
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.ends[end].is_over = true,
            }
        }
    }

    /// Writes what waits for the process.
    fn flush(&mut self, end: usize) {
        let other = self.ends[end].other;
        while !self.ends[end].waiting.is_empty() {
            let entry = &mut self.ends[end];
            match send(&entry.socket, &entry.waiting, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(length_bytes) => {
                    entry.waiting.drain(..length_bytes);
                    self.ends[other].under_way_bytes = self.ends[other].under_way_bytes.saturating_sub(length_bytes);
                    self.stirred.push(self.ends[end].process);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    entry.waiting.clear();
                    entry.is_ended = true;
                    self.ends[other].under_way_bytes = 0;
                }
            }
        }
        let entry = &mut self.ends[end];
        if entry.waiting.is_empty() && entry.is_ending && !entry.is_ended {
            entry.is_ended = true;
            let _ = shutdown(&entry.socket, Shutdown::Write);
            self.stirred.push(self.ends[end].process);
        }
        self.watch(other);
    }

    /// Watches an end for what is wanted of it now.
    fn watch(&mut self, end: usize) {
        let entry = &mut self.ends[end];
        let mut wanted = epoll::EventFlags::empty();
        if !entry.is_over && entry.under_way_bytes < WINDOW_BYTES {
            wanted |= epoll::EventFlags::IN;
        }
        if !entry.waiting.is_empty() && !entry.is_ended {
            wanted |= epoll::EventFlags::OUT;
        }
        if wanted == entry.interest {
            return;
        }
        let data = epoll::EventData::new_u64(end as u64);
        // One that hung up is reported whatever is asked for, so it is not watched for nothing.
        let _ = match (entry.interest.is_empty(), wanted.is_empty()) {
            (true, _) => epoll::add(&self.epoll, &entry.socket, data, wanted),
            (false, true) => epoll::delete(&self.epoll, &entry.socket),
            (false, false) => epoll::modify(&self.epoll, &entry.socket, data, wanted),
        };
        entry.interest = wanted;
    }

    /// Something arrives, unless its way is silent: then it is held until that is over.
    pub(super) fn arrive(&mut self, now_ns: u64, way: (usize, usize), arrival: Arrival) {
        if self.silent.contains(&way) {
            self.held.entry(way).or_default().push(arrival);
            return;
        }
        match arrival {
            Arrival::Bytes { end, bytes } => {
                let is_gone = self.has_ended[self.ends[end].process] || self.ends[end].is_ended;
                if is_gone {
                    let other = self.ends[end].other;
                    self.ends[other].under_way_bytes = 0;
                    self.send_on(now_ns, end, 0, Arrival::Reset { end: other });
                    return;
                }
                self.ends[end].waiting.extend_from_slice(&bytes);
                self.flush(end);
                self.watch(end);
            }
            Arrival::Fin { end } => {
                self.ends[end].is_ending = true;
                self.flush(end);
                self.watch(end);
            }
            Arrival::Reset { end } => self.reset(end),
            Arrival::Syn { dial, to } => self.answer(now_ns, dial, to),
            Arrival::Answer { dial, outcome } => {
                if let Some(dialling) = self.dials.get_mut(&dial) {
                    dialling.outcome = Some(outcome);
                    self.stirred.push(dialling.process);
                }
            }
        }
    }

    fn reset(&mut self, end: usize) {
        let entry = &mut self.ends[end];
        entry.waiting.clear();
        (entry.is_over, entry.is_ending, entry.is_ended) = (true, true, true);
        let _ = shutdown(&entry.socket, Shutdown::Both);
        self.stirred.push(self.ends[end].process);
        self.watch(end);
    }

    /// A process has ended: the system of its host closes its sockets.
    pub(super) fn end(&mut self, now_ns: u64, process: usize) {
        self.look(now_ns);
        self.has_ended[process] = true;
        self.listeners.retain(|_, of| *of != process);
        for end in 0..self.ends.len() {
            if self.ends[end].process == process && !self.ends[end].is_over {
                self.ends[end].is_over = true;
                let other = self.ends[end].other;
                self.send_on(now_ns, end, 0, Arrival::Fin { end: other });
                self.watch(end);
            }
        }
    }

    /// Ends all connections, for a world that is over.
    pub(super) fn close(&mut self) {
        self.ends.clear();
        self.dials.clear();
        self.held.clear();
        self.sent.clear();
    }

    /// Nothing passes on this way between hosts until [`Network::heal`].
    pub(super) fn silence(&mut self, way: (usize, usize)) {
        self.silent.insert(way);
    }

    pub(super) fn heal(&mut self, now_ns: u64) {
        self.silent.clear();
        for (way, held) in std::mem::take(&mut self.held) {
            for arrival in held {
                let at_ns = now_ns + self.usual.delay_ns;
                self.sent.push(Sent { at_ns, way, arrival });
            }
        }
    }

    /// Breaks the connections between two processes.
    pub(super) fn cut(&mut self, one: usize, other: usize) {
        for end in 0..self.ends.len() {
            let (here, there) = (self.ends[end].process, self.ends[self.ends[end].other].process);
            if (here, there) == (one, other) || (here, there) == (other, one) {
                self.reset(end);
            }
        }
    }

    pub(super) fn listen(&mut self, process: usize, at: SocketAddr) -> Result<(OwnedFd, SocketAddr), Errno> {
        let mut at = at;
        if at.port() == 0 {
            at.set_port(self.next_port);
            self.next_port += 1;
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        bind(&socket, &SocketAddrUnix::new_abstract_name(self.name_of(at).as_bytes())?)?;
        listen(&socket, 1024)?;
        self.listeners.insert(at, process);
        Ok((socket, at))
    }

    fn name_of(&self, at: SocketAddr) -> String {
        format!("{}-{at}", self.name)
    }

    pub(super) fn dial(&mut self, now_ns: u64, process: usize, to: SocketAddr) -> Dial {
        self.next_dial += 1;
        let dial = self.next_dial;
        self.dials.insert(dial, Dialling { process, outcome: None });
        let at_ns = now_ns + self.delay_ns(0);
        // A host that nobody listens on answers all the same.
        let there = self.listeners.get(&to).map_or(self.hosts[process], |listener| self.hosts[*listener]);
        let way = (self.hosts[process], there);
        self.sent.push(Sent { at_ns, way, arrival: Arrival::Syn { dial, to } });
        Dial(dial)
    }

    pub(super) fn dialled(&mut self, dial: Dial) -> Option<Result<OwnedFd, Errno>> {
        self.dials.get(&dial.0)?.outcome.as_ref()?;
        self.dials.remove(&dial.0)?.outcome
    }

    fn answer(&mut self, now_ns: u64, dial: u64, to: SocketAddr) {
        let Some(process) = self.dials.get(&dial).map(|dialling| dialling.process) else { return };
        let outcome = self.make(process, to);
        let listener = self.listeners.get(&to).copied();
        self.stirred.extend(listener);
        let at_ns = now_ns + self.delay_ns(0);
        let way = (listener.map_or(self.hosts[process], |listener| self.hosts[listener]), self.hosts[process]);
        self.sent.push(Sent { at_ns, way, arrival: Arrival::Answer { dial, outcome } });
    }

    /// Makes a connection from this process to whoever listens there.
    fn make(&mut self, process: usize, to: SocketAddr) -> Result<OwnedFd, Errno> {
        let listener = *self.listeners.get(&to).ok_or(Errno::CONNREFUSED)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let there = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&there, &SocketAddrUnix::new_abstract_name(self.name_of(to).as_bytes())?)
            .map_err(|_| Errno::CONNREFUSED)?;
        let (here, socket) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let first = self.ends.len();
        for (socket, process, other) in [(here, process, first + 1), (there, listener, first)] {
            self.ends.push(End {
                socket,
                process,
                other,
                waiting: Vec::new(),
                under_way_bytes: 0,
                is_over: false,
                is_ending: false,
                is_ended: false,
                interest: epoll::EventFlags::empty(),
            });
        }
        self.watch(first);
        self.watch(first + 1);
        Ok(socket)
    }
}
