//! A wire between two hosts that delays, loses, reorders, throttles, blocks and rewrites packets, as a test wants it.
//!
//! Kernels often lack the queueing disciplines and the packet filters that do such things, so this is a router of our
//! own: each host has a tunnel device, and two threads carry the packets between them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Packets on one way that are not due yet; a router's queue is finite, and what comes on top is lost.
const QUEUE_BYTES_MAX: usize = 1 << 20;

/// What happens to the packets of one way. The default is nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Trouble {
    pub(crate) delay: Duration,
    /// Added to the delay of each packet at random: packets overtake each other.
    pub(crate) jitter: Duration,
    pub(crate) loss_per_mille: u64,
    pub(crate) bytes_per_s: Option<u64>,
    pub(crate) is_blocked: bool,
    /// Addresses that are rewritten: the receiver's on the way there, the sender's on the way back.
    pub(crate) rewrites: Option<Rewrite>,
}

/// What a router that translates addresses does on one way.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rewrite {
    Source(Ipv4Addr),
    Destination(Ipv4Addr),
}

struct Packet {
    due: Instant,
    number: u64,
    bytes: Vec<u8>,
}

impl PartialEq for Packet {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Packet {}
impl PartialOrd for Packet {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Packet {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

#[derive(Default)]
struct State {
    trouble: Trouble,
    waiting: BinaryHeap<Reverse<Packet>>,
    waiting_bytes: usize,
    /// When the last packet has passed a throttled way.
    free: Option<Instant>,
    number: u64,
    random: u64,
}

/// One direction of a wire.
#[derive(Clone, Default)]
pub(crate) struct Way(Arc<(Mutex<State>, Condvar)>);

impl Way {
    /// What happens to the packets that come from now on. Those that wait already arrive, unless the way is blocked.
    pub(crate) fn set(&self, trouble: Trouble) {
        let mut state = self.0.0.lock().unwrap();
        if trouble.is_blocked {
            state.waiting.clear();
            state.waiting_bytes = 0;
        }
        state.trouble = trouble;
    }

    /// Carries packets from one device to the other for as long as the test lives.
    pub(crate) fn carry(&self, from: File, to: File, seed: u64) {
        self.0.0.lock().unwrap().random = seed;
        let (reads, writes) = (self.clone(), self.clone());
        std::thread::spawn(move || reads.read(from));
        std::thread::spawn(move || writes.write(to));
    }

    fn read(&self, mut from: File) {
        let mut bytes = [0; 65_536];
        while let Ok(length) = from.read(&mut bytes) {
            self.take(&bytes[..length]);
        }
    }

    fn take(&self, bytes: &[u8]) {
        let (lock, changed) = &*self.0;
        let mut state = lock.lock().unwrap();
        let trouble = state.trouble;
        let is_lost = state.draw(1000) < trouble.loss_per_mille;
        if trouble.is_blocked || is_lost || state.waiting_bytes + bytes.len() > QUEUE_BYTES_MAX {
            return;
        }
        let now = Instant::now();
        let width = trouble.bytes_per_s.map_or(0, |rate| bytes.len() as u64 * 1_000_000_000 / rate);
        let passed = state.free.map_or(now, |free| free.max(now)) + Duration::from_nanos(width);
        state.free = trouble.bytes_per_s.map(|_| passed);
        let jitter = Duration::from_nanos(state.draw(trouble.jitter.as_nanos() as u64 + 1));
        let mut bytes = bytes.to_vec();
        if let Some(rewrite) = trouble.rewrites {
            rewrite.apply(&mut bytes);
        }
        state.number += 1;
        state.waiting_bytes += bytes.len();
        let packet = Packet { due: passed + trouble.delay + jitter, number: state.number, bytes };
        state.waiting.push(Reverse(packet));
        changed.notify_one();
    }

    fn write(&self, mut to: File) {
        let (lock, changed) = &*self.0;
        let mut state = lock.lock().unwrap();
        loop {
            let now = Instant::now();
            match state.waiting.peek().map(|packet| packet.0.due) {
                None => state = changed.wait(state).unwrap(),
                Some(due) if due > now => state = changed.wait_timeout(state, due - now).unwrap().0,
                Some(_) => {
                    let Some(Reverse(packet)) = state.waiting.pop() else { continue };
                    state.waiting_bytes -= packet.bytes.len();
                    drop(state);
                    // A device that is down loses it, as a cable does.
                    let _ = to.write(&packet.bytes);
                    state = lock.lock().unwrap();
                }
            }
        }
    }
}

impl State {
    /// The next of a row of numbers that the seed decides, below `bound`.
    fn draw(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % bound.max(1)
    }
}

impl Rewrite {
    /// Rewrites the packet and mends its checksums.
    fn apply(self, packet: &mut [u8]) {
        let header_bytes = usize::from(packet[0] & 0x0f) * 4;
        if packet[0] >> 4 != 4 || packet.len() < header_bytes + 18 {
            return;
        }
        let (at, address) = match self {
            Rewrite::Source(address) => (12, address),
            Rewrite::Destination(address) => (16, address),
        };
        let before: [u8; 4] = packet[at..at + 4].try_into().unwrap();
        let after = address.octets();
        packet[at..at + 4].copy_from_slice(&after);
        mend(&mut packet[10..12], before, after);
        // The checksum of TCP covers the addresses too.
        if packet[9] == 6 {
            mend(&mut packet[header_bytes + 16..header_bytes + 18], before, after);
        }
    }
}

/// What a checksum becomes when these four bytes of what it covers change (RFC 1624).
fn mend(checksum: &mut [u8], before: [u8; 4], after: [u8; 4]) {
    let word = |bytes: &[u8]| u32::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    let mut sum = word(checksum) ^ 0xffff;
    for half in [0, 2] {
        sum += (word(&before[half..]) ^ 0xffff) + word(&after[half..]);
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    checksum.copy_from_slice(&((sum as u16) ^ 0xffff).to_be_bytes());
}

#[test]
fn a_rewritten_packet_has_right_checksums() {
    let sum = |bytes: &[u8]| {
        let words = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
        let sum = words.sum::<u32>();
        (sum & 0xffff) + (sum >> 16)
    };
    let mut packet = vec![0x45, 0, 0, 40, 1, 2, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let missing = 0xffff - sum(&packet) as u16;
    packet[10..12].copy_from_slice(&missing.to_be_bytes());
    packet.extend([0; 20]);
    Rewrite::Source(Ipv4Addr::new(192, 168, 255, 254)).apply(&mut packet);
    assert_eq!((&packet[12..16], sum(&packet[..20])), (&[192, 168, 255, 254][..], 0xffff));
}
