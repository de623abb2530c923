//! Addresses, listeners and connections, and peers that misbehave after they have proven themselves.

use crate::support::stranger::{join, read_frame};
use crate::support::*;
use sheave_base::limits::LINK_WINDOW_BYTES;
use sheave_base::{ErrorKind, LinkId, NodeId};
use sheave_net::{Address, Admission, Arrival, Endpoint, ListenConfig, Medium, Node, NodeConfig, Transport};
use sheave_wire::{CloseReason, HEADER_BYTES, Header, Kind, PIECE_BYTES, Part, Placement, TensorSpec};
use smallvec::SmallVec;
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A node and the raw stream of a peer that has proven itself.
fn joined() -> (Node, LinkId, TcpStream) {
    let (server, address) = listening("server");
    let stream = join(&address, SECRET);
    let link = server.accept().wait_timeout(LIMIT).unwrap();
    (server, link, stream)
}

/// The link ends with this kind, and the peer hears `Protocol` if that is what it was.
fn ends_with(server: &Node, link: LinkId, stream: &mut TcpStream, kind: ErrorKind) -> sheave_base::Error {
    let error = receive(server, link, 1, SmallVec::new()).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    if kind == ErrorKind::Protocol || kind == ErrorKind::LimitExceeded {
        // Before it the peer hears of room.
        let last = std::iter::repeat_with(|| read_frame(stream)).find(|frame| frame.kind != Kind::Room).unwrap();
        assert_eq!((last.kind, last.tag), (Kind::Close, CloseReason::Protocol.code().into()));
    }
    error
}

/// Such words end a link.
fn makes_no_sense(what: &str, words: &[u8]) {
    let (server, link, mut stream) = joined();
    stream.write_all(words).unwrap();
    let error = ends_with(&server, link, &mut stream, ErrorKind::Protocol);
    assert!(error.to_string().contains("stranger"), "{what}: {error}");
}

fn data(sequence: u64) -> Header {
    Header { sequence, tag: 1, ..Header::new(Kind::Data) }
}

#[test]
fn an_honest_raw_peer_is_understood() {
    let (server, link, mut stream) = joined();
    stream.write_all(&Header { sequence: 1, ..Header::new(Kind::Beat) }.encode()).unwrap();
    let mut area = Vec::new();
    sheave_wire::parts::encode(&[Part::inline(TensorSpec::new(sheave_tensor::Dtype::U8.code(), &[3]))], &mut area)
        .unwrap();
    let header = Header { part_count: 1, control_bytes: area.len() as u32, payload_bytes: 3, ..data(2) };
    for byte in [&header.encode()[..], &area, &[7, 8, 9]].concat() {
        stream.write_all(&[byte]).unwrap();
    }
    let got = receive(&server, link, 1, SmallVec::new()).unwrap();
    assert_eq!(got.to_vec::<u8>().unwrap(), [7, 8, 9]);
}

#[test]
fn garbage_after_the_handshake_ends_the_link() {
    let (server, link, mut stream) = joined();
    stream.write_all(&[0xaa; 500]).unwrap();
    ends_with(&server, link, &mut stream, ErrorKind::Protocol);
}

#[test]
fn frames_that_no_peer_sends_end_the_link() {
    let mut damaged = data(1).encode();
    damaged[20] ^= 1;
    let mut block = Vec::new();
    let placement = Placement::Block { segment: 1, offset: 0, loan: 1 };
    let part = Part { spec: TensorSpec::new(sheave_tensor::Dtype::U8.code(), &[3]), placement, shared: false };
    sheave_wire::parts::encode(&[part], &mut block).unwrap();
    let blocked = Header { part_count: 1, control_bytes: block.len() as u32, payload_bytes: 3, ..data(1) };
    let frames: [(&str, Vec<u8>); 6] = [
        ("a wrong check sum", damaged.to_vec()),
        ("a gap", data(2).encode().to_vec()),
        ("payload of nothing", Header { payload_bytes: 5, ..data(1) }.encode().to_vec()),
        ("parts of nothing", Header { part_count: 3, ..data(1) }.encode().to_vec()),
        ("a block", [&blocked.encode()[..], &block].concat()),
        ("a segment", Header { sequence: 1, ..Header::new(Kind::Segment) }.encode().to_vec()),
    ];
    frames.iter().for_each(|(what, frame)| makes_no_sense(what, frame));
    let (server, link, mut stream) = joined();
    stream.write_all(&Header { control_bytes: u32::MAX, ..data(1) }.encode()).unwrap();
    ends_with(&server, link, &mut stream, ErrorKind::LimitExceeded);
}

/// The header and the control area of a message of one tensor of so many bytes.
fn head(sequence: u64, payload_bytes: u64) -> Vec<u8> {
    let mut area = Vec::new();
    let spec = TensorSpec::new(sheave_tensor::Dtype::U8.code(), &[payload_bytes]);
    sheave_wire::parts::encode(&[Part::inline(spec)], &mut area).unwrap();
    let header = Header { part_count: 1, control_bytes: area.len() as u32, payload_bytes, ..data(sequence) };
    [&header.encode()[..], &area].concat()
}

fn piece(sequence: u64, payload_bytes: usize) -> Vec<u8> {
    Header { sequence, payload_bytes: payload_bytes as u64, ..Header::new(Kind::Chunk) }.encode().to_vec()
}

fn urgent(sequence: u64) -> Header {
    Header { sequence, endpoint: 3, ..Header::new(Kind::Urgent) }
}

/// So much of a message's control area and payload comes in its first piece.
fn first_piece_bytes(head: &[u8]) -> usize {
    PIECE_BYTES - (head.len() - HEADER_BYTES)
}

#[test]
fn f18_a_message_comes_in_pieces_with_urgent_ones_between() {
    let (server, link, mut stream) = joined();
    let payload: Vec<u8> = (0..(2 * PIECE_BYTES + 100) as u32).map(|at| (at / 7) as u8).collect();
    let start = head(1, payload.len() as u64);
    let (first, rest) = payload.split_at(first_piece_bytes(&start));
    let (second, third) = rest.split_at(PIECE_BYTES);
    let word = [&Header { control_bytes: 5, ..urgent(2) }.encode()[..], b"hello"].concat();
    let beat = Header { sequence: 4, ..Header::new(Kind::Beat) }.encode();
    for part in [&start, first, &word, &piece(3, second.len()), second, &beat, &piece(5, third.len()), third] {
        stream.write_all(part).unwrap();
    }
    let got = receive(&server, link, 1, SmallVec::new()).unwrap();
    assert_eq!(got.to_vec::<u8>().unwrap(), payload);
}

#[test]
fn f18_pieces_that_no_peer_sends_end_the_link() {
    let start = head(1, 2 * PIECE_BYTES as u64);
    let begun = [&start[..], &vec![7; first_piece_bytes(&start)]].concat();
    let behind = |frame: &[u8]| [&begun, frame].concat();
    let frames: [(&str, Vec<u8>); 10] = [
        ("a piece of nothing", piece(1, 10)),
        ("a short piece", behind(&piece(2, PIECE_BYTES - 1))),
        ("a long piece", behind(&piece(2, PIECE_BYTES + 1))),
        ("an empty piece", behind(&piece(2, 0))),
        ("a piece with a control area", behind(&Header { control_bytes: 1, ..chunk() }.encode())),
        ("a piece with tensors", behind(&Header { part_count: 1, ..chunk() }.encode())),
        ("another message in between", behind(&head(2, 3))),
        ("an urgent one with tensors", Header { part_count: 1, ..urgent(1) }.encode().to_vec()),
        ("an urgent one with payload", Header { payload_bytes: 1, ..urgent(1) }.encode().to_vec()),
        ("an urgent one for a receive", Header { endpoint: 0, ..urgent(1) }.encode().to_vec()),
    ];
    frames.iter().for_each(|(what, frame)| makes_no_sense(what, frame));
    let (server, link, mut stream) = joined();
    stream.write_all(&begun).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let error = ends_with(&server, link, &mut stream, ErrorKind::PeerLost);
    assert!(error.what().contains("in the middle"), "{error}");
}

fn chunk() -> Header {
    Header { sequence: 2, payload_bytes: PIECE_BYTES as u64, ..Header::new(Kind::Chunk) }
}

/// Has no room.
struct Full;

impl Endpoint for Full {
    fn admit(&self, _link: LinkId, _arrival: &Arrival<'_>) -> Admission {
        Admission::Pause
    }
}

/// What comes behind a message without a receiver is kept up to the window, and not beyond.
#[test]
fn f18_a_peer_that_exceeds_its_window_ends_the_link() {
    let (server, link, mut stream) = joined();
    let full: Arc<dyn Endpoint> = Arc::new(Full);
    assert!(server.register(5, &full));
    stream.write_all(&Header { endpoint: 5, ..data(1) }.encode()).unwrap();
    let most = (LINK_WINDOW_BYTES as usize / PIECE_BYTES + 3) as u64;
    let sender = std::thread::spawn(move || {
        // The other side stops reading when it has had enough.
        let payload = vec![7; PIECE_BYTES / 2];
        for sequence in 2..2 + 2 * most {
            if stream.write_all(&[&head(sequence, payload.len() as u64)[..], &payload].concat()).is_err() {
                break;
            }
        }
        stream
    });
    let error = receive(&server, link, 99, SmallVec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    assert!(error.what().contains("window"), "{error}");
    drop(sender.join().unwrap());
}

#[test]
fn f18_nonsense_about_room_ends_the_link() {
    for header in [
        Header { tag: 1, ..Header::new(Kind::Room) },
        Header { tag: u64::MAX, ..Header::new(Kind::Room) },
        Header { control_bytes: 1, ..Header::new(Kind::Room) },
    ] {
        makes_no_sense("room", &Header { sequence: 1, ..header }.encode());
    }
}

#[test]
fn half_closed_connections_are_lost_peers() {
    for (bytes, words) in [(0, "without a word"), (17, "in the middle"), (64, "in the middle")] {
        let (server, link, mut stream) = joined();
        let header = Header { control_bytes: 100, ..data(1) }.encode();
        stream.write_all(&header[..bytes]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let error = ends_with(&server, link, &mut stream, ErrorKind::PeerLost);
        assert!(error.what().contains(words), "{error}");
    }
}

#[test]
fn the_last_word_of_a_peer_is_heard() {
    let said = [(CloseReason::Finished, ErrorKind::PeerLost), (CloseReason::DeclaredDead, ErrorKind::DeclaredDead)];
    for (reason, kind) in said {
        let (server, link, mut stream) = joined();
        let close = Header { sequence: 1, tag: reason.code().into(), ..Header::new(Kind::Close) };
        stream.write_all(&close.encode()).unwrap();
        ends_with(&server, link, &mut stream, kind);
    }
}

#[test]
fn a_peer_that_falls_silent_is_declared_dead() {
    let liveness = sheave_net::Liveness {
        beat: Duration::from_millis(50),
        timeout: Duration::from_millis(400),
        kill_silent: false,
    };
    let server = Node::start(NodeConfig { liveness, ..config("server") }).unwrap();
    let address = server.listen(ListenConfig::default()).unwrap();
    let mut stream = join(&address, SECRET);
    let link = server.accept().wait_timeout(LIMIT).unwrap();
    let begun = Instant::now();
    ends_with(&server, link, &mut stream, ErrorKind::PeerLost);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    let last = read_frame(&mut stream);
    assert_eq!((last.kind, last.tag), (Kind::Close, CloseReason::DeclaredDead.code().into()));
}

#[test]
fn a_busy_port_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let node = Node::start(config("node")).unwrap();
    let tcp = taken.local_addr().unwrap();
    let error = node.listen(ListenConfig { tcp: Some(tcp), ..ListenConfig::default() }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(error.what().contains(&tcp.port().to_string()) && error.advice().is_some(), "{error}");
}

#[test]
fn other_hosts_must_be_asked_for() {
    let node = Node::start(config("node")).unwrap();
    let everybody = ListenConfig { tcp: Some(SocketAddr::from(([0, 0, 0, 0], 0))), ..ListenConfig::default() };
    let error = node.listen(everybody.clone()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.advice().unwrap().contains("SHEAVE_INSECURE=1"));
    node.listen(ListenConfig { insecure: true, ..everybody }).unwrap();
}

#[test]
fn a_port_is_free_again_when_its_node_is_gone() {
    let (node, address) = listening("node");
    drop(node);
    TcpListener::bind(address.tcp.unwrap()).unwrap();
    let error = TcpStream::connect(address.tcp.unwrap()).map(drop);
    assert!(error.is_err());
}

#[test]
fn nobody_there_is_said_with_the_address() {
    let (node, address) = listening("gone");
    drop(node);
    let worker = Node::start(config("worker")).unwrap();
    let begun = Instant::now();
    let error = worker.connect(&address, begun + Duration::from_millis(200)).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(2));
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    let text = error.to_string();
    assert!(
        text.contains(&address.to_string()) && text.contains("nobody listens") && text.contains("the test"),
        "{text}"
    );
}

#[test]
fn whoever_comes_first_waits_for_the_listener() {
    let place = TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = place.local_addr().unwrap();
    drop(place);
    let worker = Node::start(config("worker")).unwrap();
    let connecting = std::thread::spawn(move || worker.connect(&Address::of_socket(tcp), soon()).map(|_| worker));
    let server = Node::start(config("server")).unwrap();
    server.listen(ListenConfig { tcp: Some(tcp), ..ListenConfig::default() }).unwrap();
    server.accept().wait_timeout(LIMIT).unwrap();
    connecting.join().unwrap().unwrap();
}

#[test]
fn without_the_unix_socket_there_is_tcp() {
    let (server, mut address) = listening("server");
    address.unix = Some("nobody-listens-here".into());
    let worker = Node::start(config("worker")).unwrap();
    let link = worker.connect(&address, soon()).unwrap();
    assert_eq!(worker.link(link).unwrap().medium(), Medium::Tcp);
    drop(server);
}

#[test]
fn another_node_at_the_address_is_an_error() {
    for transport in [Transport::Tcp, Transport::Shm] {
        let (_server, mut address) = listening("server");
        address.node = NodeId(5);
        let worker = Node::start(NodeConfig { transport, ..config("worker") }).unwrap();
        assert_eq!(worker.connect(&address, soon()).unwrap_err().kind(), ErrorKind::Mismatch);
    }
}

#[test]
fn fifty_nodes_meet_one() {
    let (server, address) = listening("server");
    let workers: Vec<_> = (0..50)
        .map(|at| {
            let address = address.clone();
            std::thread::spawn(move || {
                let transport = if at % 2 == 0 { Transport::Tcp } else { Transport::Shm };
                let name = format!("worker-{at}");
                let worker = Node::start(NodeConfig { transport, rank: Some(at), ..config(&name) }).unwrap();
                let link = worker.connect(&address, soon()).unwrap();
                worker.send(link, copied(1, &bytes_tensor(100, at as u8)), Some(soon()), None).unwrap();
                receive(&worker, link, 2, SmallVec::new()).unwrap();
            })
        })
        .collect();
    for _ in 0..50 {
        let link = server.accept().wait_timeout(LIMIT).unwrap();
        let rank = server.link(link).unwrap().peer().rank.unwrap();
        let got = receive(&server, link, 1, SmallVec::new()).unwrap();
        assert_eq!(got.bytes().unwrap()[..], bytes_tensor(100, rank as u8).bytes().unwrap()[..]);
        server.send(link, copied(2, &got), Some(soon()), None).unwrap();
    }
    workers.into_iter().for_each(|worker| worker.join().unwrap());
}
