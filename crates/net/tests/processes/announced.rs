//! Peers that announce more than they send: what a node takes for it is bounded by what has come.

use crate::support::stranger::{join, write_message};
use crate::support::*;
use sheave_base::LinkId;
use sheave_net::{Address, Node};
use sheave_tensor::Dtype;
use sheave_wire::{Header, Kind, Part, TensorSpec};
use smallvec::SmallVec;
use std::net::TcpStream;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// One number of this process's status, in bytes.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// The header and the table of a message of one tensor.
fn announcement(sequence: u64, length_bytes: u64) -> (Header, Vec<u8>) {
    let mut area = Vec::new();
    let spec = TensorSpec::new(Dtype::U8.code(), &[length_bytes]);
    sheave_wire::parts::encode(&[Part::inline(spec)], &mut area).unwrap();
    let (control_bytes, payload_bytes) = (area.len() as u32, length_bytes);
    let header = Header { sequence, tag: 1, part_count: 1, control_bytes, payload_bytes, ..Header::new(Kind::Data) };
    (header, area)
}

/// Says that a message comes, and sends none of its bytes.
fn announce(stream: &mut TcpStream, sequence: u64, length_bytes: u64) {
    let (header, area) = announcement(sequence, length_bytes);
    write_message(stream, header, &area, &[]);
}

/// Sends a message whole. Returns the number of the next frame.
fn send(stream: &mut TcpStream, sequence: u64, bytes: &[u8]) -> u64 {
    let (header, area) = announcement(sequence, bytes.len() as u64);
    write_message(stream, header, &area, bytes)
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
    announce(&mut stream, 1, GIB);
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
    let mut sequence = 1;
    for is_in_arena in [false, true, true] {
        sequence = send(&mut stream, sequence, &bytes);
        let got = receive(&server, link, 1, SmallVec::new()).unwrap();
        assert_eq!(got.buffer().location().is_some(), is_in_arena, "before frame {sequence}");
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
    announce(&mut large, 1, GIB);
    eventually("the announcement", || status("VmSize") >= size + GIB);
    send(&mut small, 1, &vec![5; MIB as usize]);
    drop(large);
    let got = receive(&server, link, 1, SmallVec::new()).unwrap();
    assert!(got.as_slice::<u8>().unwrap().iter().all(|byte| *byte == 5));
}
