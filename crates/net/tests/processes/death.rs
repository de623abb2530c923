//! Peers in processes of their own that are killed or stopped.

use crate::support::*;
use rustix::process::{Pid, Signal, kill_process};
use sheave_base::{ErrorKind, LinkId};
use sheave_net::{Address, ListenConfig, Liveness, Node, NodeConfig, Transport};
use smallvec::SmallVec;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ADDRESS_VARIABLE: &str = "SHEAVE_TEST_ADDRESS";
const TRANSPORT_VARIABLE: &str = "SHEAVE_TEST_TRANSPORT";
/// How the child ends when it hears that it was declared dead.
const HEARD_OF_ITS_DEATH: i32 = 42;

/// The other process: connects, says that it is there, and listens until its link ends.
#[test]
fn child() {
    let Ok(address) = std::env::var(ADDRESS_VARIABLE) else { return };
    let transport = if std::env::var(TRANSPORT_VARIABLE).unwrap() == "tcp" { Transport::Tcp } else { Transport::Shm };
    let node = Node::start(NodeConfig { transport, ..config("child") }).unwrap();
    let link = node.connect(&address.parse().unwrap(), soon()).unwrap();
    node.send(link, copied(1, &bytes_tensor(8, 1)), Some(soon()), None).unwrap();
    let error = receive(&node, link, 9, SmallVec::new()).unwrap_err();
    if error.kind() == ErrorKind::DeclaredDead {
        std::process::exit(HEARD_OF_ITS_DEATH);
    }
    panic!("the link ended with {error:?}");
}

/// A child process that is killed when the test is done with it.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Other {
    fn start(address: &Address, transport: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "death::child"])
            .env(ADDRESS_VARIABLE, address.to_string())
            .env(TRANSPORT_VARIABLE, transport)
            .arg("--nocapture")
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

fn with_child(transport: &str, liveness: Liveness) -> (Node, LinkId, Other) {
    let server = Node::start(NodeConfig { liveness, ..config("server") }).unwrap();
    let address = server.listen(ListenConfig::default()).unwrap();
    let child = Other::start(&address, transport);
    let link = server.accept().wait_timeout(LIMIT).unwrap();
    receive(&server, link, 1, SmallVec::new()).unwrap();
    (server, link, child)
}

#[test]
fn a_killed_peer_is_missed_within_a_second() {
    for transport in ["tcp", "shm"] {
        let (server, link, child) = with_child(transport, Liveness::default());
        let waiting = server.irecv(wanted(link, 2), SmallVec::new()).unwrap();
        child.signal(Signal::KILL);
        let begun = Instant::now();
        let error = waiting.join_timeout(LIMIT).unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        assert_eq!(error.kind(), ErrorKind::PeerLost);
        let pid = child.0.id().to_string();
        assert!(error.to_string().contains("child") && error.to_string().contains(&pid), "{error}");
    }
}

#[test]
fn a_sender_to_a_killed_peer_fails() {
    let (server, link, child) = with_child("tcp", Liveness::default());
    let killer = std::thread::spawn(move || {
        eventually("traffic", || child.0.id() > 0);
        child.signal(Signal::KILL);
    });
    let tensor = bytes_tensor(4 << 20, 1);
    let error = loop {
        if let Err(error) = server.send(link, copied(3, &tensor), Some(soon()), None) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
    killer.join().unwrap();
}

#[test]
fn a_stopped_peer_is_declared_dead_and_told_so() {
    let liveness =
        Liveness { beat: Duration::from_millis(100), timeout: Duration::from_millis(2500), kill_silent: false };
    for transport in ["tcp", "shm"] {
        let (server, link, mut child) = with_child(transport, liveness);
        child.signal(Signal::STOP);
        let begun = Instant::now();
        let error = receive(&server, link, 2, SmallVec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
        child.signal(Signal::CONT);
        let mut code = None;
        eventually("the end of the child", || {
            code = child.0.try_wait().unwrap();
            code.is_some()
        });
        assert_eq!(code.unwrap().code(), Some(HEARD_OF_ITS_DEATH), "{transport}");
    }
}

/// What a debugger does with a process: attaches, and stops it. From one thread, as the system asks.
fn trace(child: &Child, request: libc::c_uint) {
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    // SAFETY: both requests that are used here read no memory of this process.
    let outcome = unsafe { libc::ptrace(request, pid, 0, 0) };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn f27_a_peer_in_a_debugger_is_neither_killed_nor_declared_dead() {
    let liveness = Liveness { beat: Duration::from_millis(50), timeout: Duration::from_millis(600), kill_silent: true };
    for transport in ["shm", "tcp"] {
        let (server, link, child) = with_child(transport, liveness);
        trace(&child.0, libc::PTRACE_SEIZE);
        child.signal(Signal::STOP);
        let waiting = server.irecv(wanted(link, 2), SmallVec::new()).unwrap();
        let has_ended = waiting.wait_until(Some(Instant::now() + liveness.timeout * 4), None).unwrap();
        assert!(!has_ended, "{transport}: it was declared dead: {:?}", waiting.taken().unwrap_err());
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.0.id())).unwrap();
        assert!(status.contains("stop"), "{transport}: it was killed: {status}");
        // Whoever stops and is not traced is as dead as before.
        let mut status = 0;
        // SAFETY: the process is ours, and the status is writable. A tracee must have been seen to stop.
        unsafe { libc::waitpid(child.0.id() as libc::pid_t, &raw mut status, libc::WUNTRACED) };
        trace(&child.0, libc::PTRACE_DETACH);
        child.signal(Signal::STOP);
        assert_eq!(waiting.join_timeout(LIMIT).unwrap_err().kind(), ErrorKind::PeerLost, "{transport}");
    }
}
