//! A listener in a process that has no descriptors left. Alone in its file, for the limit is the whole process's.

use crate::support::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use sheave_net::{Node, NodeConfig, Transport};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_shortage_of_descriptors_neither_spins_nor_stays() {
    let (server, address) = listening("server");
    let worker = Node::start(NodeConfig { transport: Transport::Tcp, ..config("worker") }).unwrap();
    let make = || socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let strangers: Vec<OwnedFd> = (0..20).map(|_| make()).collect();
    let limit = getrlimit(Resource::Nofile);
    let highest = strangers.iter().map(AsRawFd::as_raw_fd).max().unwrap();
    setrlimit(Resource::Nofile, Rlimit { current: Some(highest as u64 + 4), ..limit }).unwrap();
    for stranger in &strangers {
        connect(stranger, &address.tcp.unwrap()).unwrap();
    }
    let before = processor_time();
    assert!(server.accept().wait_timeout(Duration::from_secs(2)).is_err());
    let spent = processor_time() - before;
    assert!(server.handshakes_pending() < strangers.len(), "the shortage did not happen");
    assert!(spent < Duration::from_millis(500), "{spent:?} of processor time while nothing could be done");
    setrlimit(Resource::Nofile, limit).unwrap();
    drop(strangers);
    worker.connect(&address, soon()).unwrap();
}
