//! The settings of one node: its links, its memory, its signs of life, its waiting.

use super::{PATIENCE, Variables, node_config, soon};
use crate::checks;
use sheave_base::{ErrorKind, LinkId, Tag};
use sheave_net::{Address, Envelope, ListenConfig, Medium, Node, Outgoing, Wanted};
use sheave_tensor::{Dtype, Mode, Tensor};
use smallvec::SmallVec;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

fn start(name: &str, variables: Variables<'_>) -> Node {
    Node::start(node_config(name, variables)).expect("a node")
}

struct Pair {
    left: Node,
    to_right: LinkId,
    right: Node,
    to_left: LinkId,
}

/// Two nodes with these settings, and the link that they make.
fn pair(left: Variables<'_>, right: Variables<'_>) -> Pair {
    let (left, right) = (start("left", left), start("right", right));
    let address = right.listen(ListenConfig::default()).expect("a free port");
    let accepting = right.accept();
    let to_right = left.connect(&address, soon()).expect("it listens");
    let to_left = accepting.join_timeout(PATIENCE).expect("it connects");
    Pair { left, to_right, right, to_left }
}

fn wanted(link: LinkId) -> Wanted {
    Wanted { source: Some(link), context: 0, tag: Tag(1) }
}

fn outgoing(tensor: Tensor, mode: Mode) -> Outgoing {
    Outgoing::tensor(Envelope::data(0, Tag(1)), tensor, mode)
}

/// A node that beats so seldom, and one that beats often; both are patient.
const RARELY: Variables<'_> = &[("SHEAVE_LIVENESS_BEAT_MS", "20000"), ("SHEAVE_LIVENESS_TIMEOUT_MS", "60000")];
const OFTEN: Variables<'_> = &[("SHEAVE_LIVENESS_BEAT_MS", "50"), ("SHEAVE_LIVENESS_TIMEOUT_MS", "60000")];
/// A node that declares a peer dead soon.
const STRICT: Variables<'_> = &[("SHEAVE_LIVENESS_BEAT_MS", "50"), ("SHEAVE_LIVENESS_TIMEOUT_MS", "1000")];

/// Signs of life that a node with these settings shows over an idle connection within a second, in bytes.
fn bytes_shown(variables: Variables<'_>) -> usize {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let through = listener.local_addr().expect("it is bound");
    let tcp = ("SHEAVE_TRANSPORT", "tcp");
    let (left, right) = (start("left", &[RARELY, &[tcp]].concat()), start("right", &[variables, &[tcp]].concat()));
    let mut address = right.listen(ListenConfig::default()).expect("a free port");
    let accepted = right.accept();
    let target = address.tcp.replace(through).expect("it listens");
    // What goes from right to left goes through this thread, which counts it.
    let shown = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&shown);
    std::thread::spawn(move || {
        let (near, far) =
            (listener.accept().expect("left connects").0, TcpStream::connect(target).expect("it listens"));
        let (mut back, mut back_to) = (far.try_clone().expect("a socket"), near.try_clone().expect("a socket"));
        let forth = std::thread::spawn(move || std::io::copy(&mut &near, &mut &far));
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = back.read(&mut bytes) {
            counter.fetch_add(count, SeqCst);
            if back_to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = forth.join();
    });
    left.connect(&address, soon()).expect("it is passed on");
    accepted.join_timeout(PATIENCE).expect("it connects");
    let before = shown.load(SeqCst);
    std::thread::sleep(Duration::from_secs(1));
    shown.load(SeqCst) - before
}

/// A copy of this binary that links itself and is stopped then.
fn stopped_child(address: &Address) -> Child {
    let own = std::env::current_exe().expect("this binary");
    Command::new(own)
        .args(["--exact", "settings::node::a_child_that_stops_itself", "--nocapture", "--test-threads=1"])
        .env("SHEAVE_TEST_ADDRESS", address.to_string())
        .stdout(Stdio::null())
        .spawn()
        .expect("a process")
}

#[test]
fn a_child_that_stops_itself() {
    let Ok(address) = std::env::var("SHEAVE_TEST_ADDRESS") else { return };
    let node = start("child", &[("SHEAVE_TRANSPORT", "shm")]);
    node.connect(&address.parse().expect("an address"), soon()).expect("it listens");
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP).expect("it is this one");
    // The signal may reach another thread first.
    loop {
        std::thread::park();
    }
}

/// What ends a wait of `limit` for a child that was stopped, and the state of the child then.
fn of_the_silent(settings: Variables<'_>, kill_silent: &str, limit: Duration) -> (ErrorKind, char) {
    let settings = [settings, &[("SHEAVE_TRANSPORT", "shm"), ("SHEAVE_KILL_SILENT", kill_silent)]].concat();
    let node = start("parent", &settings);
    let address = node.listen(ListenConfig::default()).expect("a socket");
    let accepting = node.accept();
    let mut child = stopped_child(&address);
    let link = accepting.join_timeout(PATIENCE).expect("it connects");
    let ended = node.recv(wanted(link), SmallVec::new(), Some(Instant::now() + limit), None);
    // A signal that was sent is seen at once: what is killed is a zombie until it is waited for.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("it is not waited for yet");
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).expect("a state");
    child.kill().expect("it is our child");
    child.wait().expect("it has ended");
    (ended.expect_err("it is stopped").kind(), state)
}

/// Bytes that a sender still counts as lent while the receiver holds what it was sent.
fn lent_bytes(fraction: &str) -> u64 {
    let pair = pair(&[("SHEAVE_ARENA_LENT_FRACTION", fraction)], &[]);
    let tensor = Tensor::empty(pair.left.arena(), Dtype::U8, [1 << 20]).expect("room");
    pair.left.send(pair.to_right, outgoing(tensor, Mode::Move), Some(soon()), None).expect("it is linked");
    let held = pair.right.recv(wanted(pair.to_left), SmallVec::new(), Some(soon()), None).expect("it comes");
    let lent = pair.left.arena().stats().lent_bytes;
    drop(held);
    lent
}

/// Whether a wait of half a millisecond has slept, on nodes that have learnt nothing yet.
fn sleeps(spin_us: &str, yield_us: &str) -> bool {
    let settings = [("SHEAVE_WAIT_SPIN_US", spin_us), ("SHEAVE_WAIT_YIELD_US", yield_us)];
    let pair = pair(&settings, &[]);
    let (right, to_left) = (pair.right.clone(), pair.to_left);
    let begun = Instant::now();
    let sender = std::thread::spawn(move || {
        while begun.elapsed() < Duration::from_micros(500) {
            std::thread::yield_now();
        }
        let number = Tensor::from_slice(&[1_i64], [1]).expect("room");
        right.send(to_left, outgoing(number, Mode::Copy), Some(soon()), None).expect("it is linked");
    });
    let before = pair.left.counts().waits_parked;
    pair.left.recv(wanted(pair.to_right), SmallVec::new(), Some(soon()), None).expect("it comes");
    sender.join().expect("it sends");
    pair.left.counts().waits_parked > before
}

/// On a busy machine a wait may be longer than it should; soon one is as it should be.
fn soon_does_not_sleep(spin_us: &str, yield_us: &str) -> bool {
    let until = soon();
    while Instant::now() < until {
        if !sleeps(spin_us, yield_us) {
            return true;
        }
    }
    false
}

/// How many ranks of a host the only member of a mesh knows.
fn local_ranks(variables: Variables<'_>) -> usize {
    let alone = [&[("SHEAVE_RANK", "0"), ("SHEAVE_WORLD_SIZE", "1")], variables].concat();
    *super::join_all(&[&alone], |mesh| mesh.node().local_ranks())[0].as_ref().expect("it is alone")
}

checks! {
    "SHEAVE_LOCAL_RANKS" local_ranks_say_how_many_share_the_cores {
        assert_eq!(local_ranks(&[]), 1);
        assert_eq!(local_ranks(&[("SHEAVE_LOCAL_RANKS", "8")]), 8);
    }

    "SHEAVE_WAIT_SPIN_US" wait_spin_is_how_long_a_wait_keeps_its_core {
        assert!((0..5).any(|_| sleeps("0", "0")));
        assert!(soon_does_not_sleep("2000", "0"));
    }

    "SHEAVE_WAIT_YIELD_US" wait_yield_is_how_long_a_wait_polls_beyond {
        assert!((0..5).any(|_| sleeps("0", "0")));
        assert!(soon_does_not_sleep("0", "2000"));
    }

    "SHEAVE_TRANSPORT" transport_is_what_links_run_over {
        for (transport, medium) in [("tcp", Medium::Tcp), ("shm", Medium::SharedMemory), ("", Medium::SharedMemory)] {
            let settings = [("SHEAVE_TRANSPORT", transport)];
            let pair = pair(&settings, &settings);
            assert_eq!(pair.left.link(pair.to_right).expect("alive").medium(), medium, "{transport}");
        }
    }

    "SHEAVE_HANDSHAKE_TIMEOUT_MS" handshake_timeout_ends_a_stranger_who_says_nothing {
        let node = start("host", &[("SHEAVE_HANDSHAKE_TIMEOUT_MS", "100"), ("SHEAVE_TRANSPORT", "tcp")]);
        let address = node.listen(ListenConfig::default()).expect("a free port");
        let mut stranger = TcpStream::connect(address.tcp.expect("it listens")).expect("it listens");
        // It is 5 s unless set.
        stranger.set_read_timeout(Some(Duration::from_secs(3))).expect("a socket");
        let mut told = Vec::new();
        let ended = stranger.read_to_end(&mut told);
        assert!(!ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "it was let stand");
    }

    "SHEAVE_LIVENESS_BEAT_MS" liveness_beat_shows_life {
        assert_eq!(bytes_shown(RARELY), 0);
        assert_ne!(bytes_shown(OFTEN), 0);
    }

    "SHEAVE_LIVENESS_TIMEOUT_MS" liveness_timeout_is_how_long_silence_may_last {
        assert_eq!(of_the_silent(STRICT, "0", PATIENCE), (ErrorKind::PeerLost, 'T'));
        assert_eq!(of_the_silent(OFTEN, "0", Duration::from_millis(1500)), (ErrorKind::DeadlineExceeded, 'T'));
    }

    "SHEAVE_KILL_SILENT" kill_silent_kills_a_stopped_peer {
        assert_eq!(of_the_silent(STRICT, "0", PATIENCE), (ErrorKind::PeerLost, 'T'));
        assert_ne!(of_the_silent(STRICT, "1", PATIENCE), (ErrorKind::PeerLost, 'T'));
    }

    "SHEAVE_ARENA_BYTES" arena_bytes_bound_the_arena {
        let place = |settings: Variables<'_>| Tensor::empty(start("one", settings).arena(), Dtype::U8, [2 << 20]);
        place(&[]).expect("there is room");
        let error = place(&[("SHEAVE_ARENA_BYTES", "1MiB")]).expect_err("there is none");
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    }

    "SHEAVE_ARENA_LENT_FRACTION" arena_lent_fraction_bounds_what_peers_hold {
        assert!(lent_bytes("0.5") >= 1 << 20);
        assert_eq!(lent_bytes("0"), 0);
    }
}
