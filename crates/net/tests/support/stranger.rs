//! A raw client that speaks the handshake, or something else, over a plain socket.

use super::LIMIT;
use sheave_base::{NodeId, Secret};
use sheave_net::Address;
use sheave_wire::handshake::{Hello, Initiator, Medium, Step};
use sheave_wire::{HEADER_BYTES, Header, PIECE_BYTES};
use std::io::{Read, Write};
use std::net::TcpStream;

pub(crate) fn dial(address: &Address) -> TcpStream {
    let stream = TcpStream::connect(address.tcp.unwrap()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// One handshake message with its length; `None` at the end of the stream.
pub(crate) fn read_message(stream: &mut impl Read) -> Option<Vec<u8>> {
    let mut message = vec![0; 4];
    stream.read_exact(&mut message).ok()?;
    let length_bytes = u32::from_le_bytes(message[..].try_into().unwrap()) as usize;
    assert!(length_bytes <= 4096);
    message.resize(4 + length_bytes, 0);
    stream.read_exact(&mut message[4..]).ok()?;
    Some(message)
}

/// A message of the handshake with this type byte.
pub(crate) fn message(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = (1 + content.len() as u32).to_le_bytes().to_vec();
    bytes.push(kind);
    bytes.extend_from_slice(content);
    bytes
}

pub(crate) fn initiator(secret: &str, change: impl FnOnce(&mut Hello)) -> (Initiator, Vec<u8>) {
    let mut hello = Hello::new(NodeId(0xbad), "stranger", Medium::Tcp);
    hello.secret_source = "the stranger's head".into();
    change(&mut hello);
    Initiator::new(hello, Secret::new(secret.as_bytes()).unwrap(), [9; 32]).unwrap()
}

/// Goes through the whole handshake; the stream then is a link.
pub(crate) fn join(address: &Address, secret: &str) -> TcpStream {
    let mut stream = dial(address);
    let (mut initiator, hello) = initiator(secret, |_| {});
    stream.write_all(&hello).unwrap();
    loop {
        let message = read_message(&mut stream).expect("an answer");
        match initiator.feed(&message).expect("an honest answer").step {
            Step::Send(words) => stream.write_all(&words).unwrap(),
            Step::Done { .. } => return stream,
            Step::Need => {}
        }
    }
}

/// Sends a message: its header and control area, and its payload in pieces. Returns the number of the next frame.
pub(crate) fn write_message(stream: &mut TcpStream, header: Header, area: &[u8], payload: &[u8]) -> u64 {
    stream.write_all(&[&header.encode()[..], area].concat()).unwrap();
    let (first, mut rest) = payload.split_at((PIECE_BYTES - area.len()).min(payload.len()));
    stream.write_all(first).unwrap();
    let mut sequence = header.sequence + 1;
    while !rest.is_empty() {
        let (piece, later) = rest.split_at(PIECE_BYTES.min(rest.len()));
        let payload_bytes = piece.len() as u64;
        let header = Header { sequence, payload_bytes, ..Header::new(sheave_wire::Kind::Chunk) };
        stream.write_all(&header.encode()).unwrap();
        stream.write_all(piece).unwrap();
        (rest, sequence) = (later, sequence + 1);
    }
    sequence
}

/// The header of the next frame that is no sign of life.
pub(crate) fn read_frame(stream: &mut TcpStream) -> Header {
    loop {
        let mut bytes = [0; HEADER_BYTES];
        stream.read_exact(&mut bytes).unwrap();
        let header = Header::decode(&bytes).unwrap();
        if header.kind != sheave_wire::Kind::Beat {
            return header;
        }
    }
}

/// Reads until the other side ends the connection, in order or not.
pub(crate) fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("the other side never hung up"),
        _ => bytes,
    }
}
