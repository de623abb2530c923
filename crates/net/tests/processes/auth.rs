//! Strangers at a real listener: nobody gets in, nobody gets in the way.

use crate::support::stranger::*;
use crate::support::*;
use sheave_base::{Error, ErrorKind};
use sheave_net::{Address, ListenConfig, Node, NodeConfig, Transport};
use sheave_wire::handshake::{Responder, Step};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Waits until the listener has turned `count` handshakes away; the last reason.
fn refused(node: &Node, count: u64) -> Error {
    eventually("a refusal", || node.refusals().count >= count);
    node.refusals().last.back().unwrap().clone()
}

fn node_of(name: &str, secret_text: &str, source: &str, transport: Transport) -> Node {
    Node::start(NodeConfig { secret: secret(secret_text, source), transport, ..config(name) }).unwrap()
}

/// An honest node still gets in.
fn still_open(address: &Address) {
    let honest = Node::start(NodeConfig { transport: Transport::Tcp, ..config("honest") }).unwrap();
    honest.connect(address, soon()).unwrap();
}

#[test]
fn a_wrong_secret_is_named_on_both_sides() {
    for transport in [Transport::Tcp, Transport::Shm] {
        let (server, address) = listening("server");
        let worker = node_of("worker", "another secret entirely", "a stale file", transport);
        let begun = Instant::now();
        let error = worker.connect(&address, soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
        assert!(begun.elapsed() < Duration::from_secs(5), "a wrong secret does not get better by waiting");
        for error in [error, refused(&server, 1)] {
            assert_eq!(error.kind(), ErrorKind::Unauthenticated);
            let text = error.to_string();
            assert!(text.contains("the test") && text.contains("a stale file"), "{text}");
        }
        assert!(server.links().is_empty() && worker.links().is_empty());
    }
}

#[test]
fn f32_a_stranger_is_told_no_path_and_no_boot_id() {
    let server = node_of("server", SECRET, "SHEAVE_SECRET_FILE ~/secrets/of the job/key", Transport::Tcp);
    let address = server.listen(ListenConfig { unix: false, ..ListenConfig::default() }).unwrap();
    let mut stream = dial(&address);
    stream.write_all(&initiator("a guess of many bytes", |_| {}).1).unwrap();
    let answer = read_message(&mut stream).unwrap();
    let told = String::from_utf8_lossy(&answer);
    assert!(told.contains("SHEAVE_SECRET_FILE") && !told.contains("secrets") && !told.contains("key"), "{told}");
    assert!(!address.boot_id.is_empty() && !told.contains(&address.boot_id[..36]), "{told}");
}

#[test]
fn a_wrong_version_is_refused_on_both_sides() {
    let (server, address) = listening("server");
    let mut stream = dial(&address);
    let (mut initiator, hello) = initiator(SECRET, |hello| (hello.version_min, hello.version_max) = (9, 9));
    stream.write_all(&hello).unwrap();
    let error = initiator.feed(&read_message(&mut stream).unwrap()).unwrap_err().error;
    assert!(error.kind() == ErrorKind::Protocol && error.what().contains("version"), "{error}");
    let error = refused(&server, 1);
    assert!(error.kind() == ErrorKind::Protocol && error.what().contains("version 9"), "{error}");

    let (fake, address) = fake_listener();
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = fake.accept().unwrap();
        let hello = sheave_wire::handshake::Hello {
            version_min: 9,
            version_max: 9,
            ..sheave_wire::handshake::Hello::new(sheave_base::NodeId(3), "old", sheave_wire::handshake::Medium::Tcp)
        };
        let mut responder =
            Responder::new(hello, sheave_base::Secret::new(SECRET.as_bytes()).unwrap(), [1; 32]).unwrap();
        let refusal = responder.feed(&read_message(&mut stream).unwrap()).unwrap_err();
        stream.write_all(&refusal.send.unwrap()).unwrap();
    });
    let error = Node::start(config("worker")).unwrap().connect(&address, soon()).unwrap_err();
    assert!(error.kind() == ErrorKind::Protocol && error.what().contains("version 9"), "{error}");
    answer.join().unwrap();
}

fn fake_listener() -> (TcpListener, Address) {
    let fake = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::of_socket(fake.local_addr().unwrap());
    (fake, address)
}

#[test]
fn an_echo_is_not_a_peer() {
    let (fake, address) = fake_listener();
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = fake.accept().unwrap();
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut bytes) {
            if stream.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
    });
    let worker = Node::start(config("worker")).unwrap();
    let error = worker.connect(&address, soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
    echo.join().unwrap();

    let (server, address) = listening("server");
    let mut stream = dial(&address);
    stream.write_all(&initiator(SECRET, |_| {}).1).unwrap();
    let challenge = read_message(&mut stream).unwrap();
    stream.write_all(&challenge).unwrap();
    refused(&server, 1);
    assert!(server.links().is_empty());
    read_to_end(&mut stream);
}

/// The victim listens too; whoever it connects to passes its words on to itself and its answers back.
#[test]
fn a_victim_does_not_answer_its_own_challenge() {
    let (victim, door) = listening("victim");
    let (fake, address) = fake_listener();
    let thief = std::thread::spawn(move || {
        let (mut outer, _) = fake.accept().unwrap();
        let mut inner = dial(&door);
        while let Some(words) = read_message(&mut outer) {
            inner.write_all(&words).unwrap();
            let Some(answer) = read_message(&mut inner) else { break };
            if outer.write_all(&answer).is_err() {
                break;
            }
        }
    });
    let error = victim.connect(&address, soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
    assert_eq!(refused(&victim, 1).kind(), ErrorKind::Unauthenticated);
    thief.join().unwrap();

    // And a second connection with the very hello that the first one was answered with.
    let (victim, door) = listening("victim");
    let mut first = dial(&door);
    first.write_all(&initiator(SECRET, |_| {}).1).unwrap();
    let challenge = read_message(&mut first).unwrap();
    let mut second = dial(&door);
    second.write_all(&message(1, &challenge[4 + 1 + 32..])).unwrap();
    assert_eq!(refused(&victim, 1).kind(), ErrorKind::Unauthenticated);
    assert!(victim.links().is_empty());
}

#[test]
fn a_recorded_handshake_is_worth_nothing() {
    let (server, address) = listening("server");
    let (fake, through) = fake_listener();
    let door = address.clone();
    let recorder = std::thread::spawn(move || {
        let (mut outer, _) = fake.accept().unwrap();
        let mut inner = dial(&door);
        let mut recorded = Vec::new();
        for _ in 0..2 {
            let words = read_message(&mut outer).unwrap();
            inner.write_all(&words).unwrap();
            recorded.push(words);
            outer.write_all(&read_message(&mut inner).unwrap()).unwrap();
        }
        recorded
    });
    let worker = Node::start(config("worker")).unwrap();
    worker.connect(&through, soon()).unwrap();
    let recorded = recorder.join().unwrap();
    server.accept().wait_timeout(LIMIT).unwrap();

    let mut stream = dial(&address);
    stream.write_all(&recorded[0]).unwrap();
    read_message(&mut stream).unwrap();
    stream.write_all(&recorded[1]).unwrap();
    assert_eq!(refused(&server, 1).kind(), ErrorKind::Unauthenticated);
    assert!(server.accept().wait_timeout(Duration::ZERO).is_err(), "a second link came of it");
    read_to_end(&mut stream);
}

#[test]
fn garbage_before_the_handshake() {
    let (server, address) = listening("server");
    let texts: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        &[0; 64],
        &u32::MAX.to_le_bytes(),
        &[5, 0, 0, 0, 77, 1, 2, 3, 4],
        &[1; 9000],
    ];
    for (at, text) in texts.iter().enumerate() {
        let mut stream = dial(&address);
        // The last one may be refused before it is written whole.
        let _ = stream.write_all(text);
        let error = refused(&server, at as u64 + 1);
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        read_to_end(&mut stream);
    }
    assert_eq!(server.handshakes_pending(), 0);
    still_open(&address);
}

#[test]
fn a_length_beyond_the_limit_is_refused_before_its_bytes_come() {
    let (server, address) = listening("server");
    let mut stream = dial(&address);
    stream.write_all(&4097u32.to_le_bytes()).unwrap();
    let error = refused(&server, 1);
    assert!(error.what().contains("the limit is 4096"), "{error}");
    read_to_end(&mut stream);
}

#[test]
fn a_handshake_may_come_byte_by_byte() {
    let (server, address) = listening("server");
    let mut stream = dial(&address);
    stream.set_nodelay(true).unwrap();
    let (mut initiator, hello) = initiator(SECRET, |_| {});
    hello.iter().for_each(|byte| stream.write_all(&[*byte]).unwrap());
    let Step::Send(proof) = initiator.feed(&read_message(&mut stream).unwrap()).unwrap().step else { panic!() };
    proof.iter().for_each(|byte| stream.write_all(&[*byte]).unwrap());
    let accepted = initiator.feed(&read_message(&mut stream).unwrap()).unwrap().step;
    assert!(matches!(accepted, Step::Done { .. }));
    server.accept().wait_timeout(LIMIT).unwrap();
}

fn impatient(name: &str) -> (Node, Address) {
    let liveness = sheave_net::Liveness { beat: Duration::from_millis(50), ..Default::default() };
    let node =
        Node::start(NodeConfig { handshake_timeout: Duration::from_millis(300), liveness, ..config(name) }).unwrap();
    let address = node.listen(ListenConfig::default()).unwrap();
    (node, address)
}

#[test]
fn a_silent_stranger_is_shown_the_door() {
    let (server, address) = impatient("server");
    let begun = Instant::now();
    let mut stream = dial(&address);
    assert!(read_to_end(&mut stream).is_empty());
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_millis(250) && waited < Duration::from_secs(5), "{waited:?}");
    assert_eq!(refused(&server, 1).kind(), ErrorKind::DeadlineExceeded);
    assert_eq!(server.handshakes_pending(), 0);
}

#[test]
fn a_silent_stranger_on_the_unix_socket_too() {
    use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with};
    let (server, address) = impatient("server");
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let name = SocketAddrUnix::new_abstract_name(address.unix.as_ref().unwrap().as_bytes()).unwrap();
    connect(&socket, &name).unwrap();
    // Blocks until the server hangs up.
    assert_eq!(recv(&socket, &mut [0; 64][..], RecvFlags::empty()).unwrap().1, 0);
    assert_eq!(refused(&server, 1).kind(), ErrorKind::DeadlineExceeded);
}

#[test]
fn a_listener_that_never_answers_does_not_hold_a_caller() {
    let (fake, address) = fake_listener();
    let worker = Node::start(config("worker")).unwrap();
    let begun = Instant::now();
    let error = worker.connect(&address, begun + Duration::from_millis(300)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert!(begun.elapsed() < Duration::from_secs(3));
    drop(fake);
}

#[test]
fn a_thousand_strangers_do_not_block_a_join() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let (server, address) = listening("server");
    let strangers: Vec<TcpStream> = (0..1000).map(|_| dial(&address)).collect();
    let begun = Instant::now();
    let worker = Node::start(NodeConfig { transport: Transport::Tcp, ..config("worker") }).unwrap();
    worker.connect(&address, soon()).unwrap();
    server.accept().wait_timeout(LIMIT).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(server.handshakes_pending() <= sheave_base::limits::HANDSHAKES_PENDING_MAX);
    drop(strangers);
}

#[test]
fn an_interrupt_ends_a_connect() {
    let (fake, address) = fake_listener();
    let worker = Node::start(config("worker")).unwrap();
    let mut asked = 0;
    let mut interrupt = || {
        asked += 1;
        if asked < 3 { Ok(()) } else { Err(Error::new(ErrorKind::Interrupted, "enough")) }
    };
    let begun = Instant::now();
    let error = worker.connect_interruptible(&address, soon(), Some(&mut interrupt)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    assert!(begun.elapsed() < Duration::from_secs(3));
    drop(fake);
}
