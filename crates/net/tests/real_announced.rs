//! Peers that announce more than they send: what a node takes for it is bounded by what has come.

#![allow(clippy::unwrap_used, reason = "helpers of tests too may fail a test")]

mod support;

use sheave_base::LinkId;
use sheave_net::{Address, Node};
use sheave_tensor::Dtype;
use sheave_wire::{Header, Kind, Part, TensorSpec};
use smallvec::SmallVec;
use std::io::Write;
use std::net::TcpStream;
use support::stranger::join;
use support::*;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// One number of this process's status, in bytes.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// The header and the table of a message of one tensor, without its bytes.
fn announcement(sequence: u64, length_bytes: u64) -> Vec<u8> {
    let mut area = Vec::new();
    let spec = TensorSpec::new(Dtype::U8.code(), &[length_bytes]);
    sheave_wire::parts::encode(&[Part::inline(spec)], &mut area).unwrap();
    let (control_bytes, payload_bytes) = (area.len() as u32, length_bytes);
    let header = Header { sequence, tag: 1, part_count: 1, control_bytes, payload_bytes, ..Header::new(Kind::Data) };
    [&header.encode()[..], &area].concat()
}

fn joined(server: &Node, address: &Address) -> (TcpStream, LinkId) {
    let stream = join(address, SECRET);
    (stream, server.accept().wait_timeout(LIMIT).unwrap())
}

/// A header is believed when its bytes come: until then a node neither takes memory nor maps its arena for it.
#[test]
fn f14_a_header_alone_takes_no_memory() {
    let (server, address) = listening("server");
    let (mut stream, _) = joined(&server, &address);
    let (size, resident) = (status("VmSize"), status("VmRSS"));
    stream.write_all(&announcement(1, GIB)).unwrap();
    eventually("the announcement", || status("VmSize") >= size + GIB);
    let (grown, stats) = (status("VmRSS").saturating_sub(resident), server.arena().stats());
    assert!(stats.mapped_bytes <= 64 * MIB, "the arena has mapped {} bytes", stats.mapped_bytes);
    assert!(grown <= 64 * MIB, "{grown} bytes more are resident");
}

/// What has come once may be prepared for the next time: the arena serves large messages of a peer that sends them.
#[test]
fn f14_what_came_before_lies_in_the_arena_again() {
    let (server, address) = listening("server");
    let (mut stream, link) = joined(&server, &address);
    let bytes = vec![5; 32 << 20];
    for (sequence, is_in_arena) in [(1, false), (2, true), (3, true)] {
        stream.write_all(&announcement(sequence, bytes.len() as u64)).unwrap();
        stream.write_all(&bytes).unwrap();
        let got = receive(&server, link, 1, SmallVec::new()).unwrap();
        assert_eq!(got.buffer().location().is_some(), is_in_arena, "message {sequence}");
        assert!(got.as_slice::<u8>().unwrap().iter().all(|byte| *byte == 5));
    }
}

/// A message that waits because another peer has announced all that a node takes goes on when that peer is gone.
#[test]
fn f14_what_waits_for_anothers_announcement_goes_on_after_it() {
    let (server, address) = listening("server");
    let (mut large, _) = joined(&server, &address);
    let (mut small, link) = joined(&server, &address);
    let size = status("VmSize");
    large.write_all(&announcement(1, GIB)).unwrap();
    eventually("the announcement", || status("VmSize") >= size + GIB);
    small.write_all(&announcement(1, MIB)).unwrap();
    small.write_all(&vec![5; MIB as usize]).unwrap();
    drop(large);
    let got = receive(&server, link, 1, SmallVec::new()).unwrap();
    assert!(got.as_slice::<u8>().unwrap().iter().all(|byte| *byte == 5));
}
