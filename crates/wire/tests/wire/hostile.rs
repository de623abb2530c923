//! No input makes a decoder panic or ask for more memory than it may.

use proptest::prelude::*;
use sheave_base::{Error, limits};
use sheave_wire::{HEADER_BYTES, Header, Part, TensorSpec, Value, codec, from_control, parts};

use crate::allocation::requested_bytes;
use crate::fuzz;

/// What an error may take for its text.
const ERROR_BYTES: usize = 8 << 10;

/// What serde may reserve for a list of announced length before it has seen the items, for each list of `Control`.
const SERDE_RESERVE_BYTES: usize = 2 << 20;

/// A decoded list item is 32 bytes and one byte of input at least.
const VALUE_RATIO: usize = 32;

/// A decoded part is some 100 bytes and eight bytes of input at least; spilled dimensions may be reserved twice over.
const PARTS_RATIO: usize = 16;

/// Bytes of a text are copied once; those of a pickled exception come one by one into memory that grows.
const ERROR_RATIO: usize = 4;

/// The links of a chain, in a list that grows and then one by one.
const ERROR_LINKS_BYTES: usize = 4 * (1 + limits::ERROR_CAUSES_MAX) * 512;

/// Two whole messages, each held once as it arrives piece by piece, once decoded and once in the transcript.
const HANDSHAKE_BYTES: usize = 16 * limits::HANDSHAKE_BYTES_MAX;

/// Runs every decoder over `input` and holds what it asks for against what it may.
pub(crate) fn check_allocations(input: &[u8]) {
    let length_bytes = input.len();
    if let Some(bytes) = input.first_chunk::<HEADER_BYTES>() {
        let (outcome, requested) = requested_bytes(|| Header::decode_with(bytes, false));
        assert!(requested <= if outcome.is_ok() { 0 } else { ERROR_BYTES }, "header: {requested} bytes");
    }

    for count in [1, 2, length_bytes / 8, length_bytes] {
        let requested = requested_bytes(|| parts::decode(input, count).is_ok()).1;
        assert!(requested <= PARTS_RATIO * length_bytes + ERROR_BYTES, "parts: {requested} for {length_bytes} bytes");
    }

    let requested = requested_bytes(|| codec::decode_first(input).is_ok()).1;
    assert!(requested <= VALUE_RATIO * length_bytes + ERROR_BYTES, "value: {requested} for {length_bytes} bytes");

    let requested = requested_bytes(|| from_control::<fuzz::Control>(input).is_ok()).1;
    let allowed = VALUE_RATIO * length_bytes + ERROR_BYTES + SERDE_RESERVE_BYTES;
    assert!(requested <= allowed, "control: {requested} for {length_bytes} bytes");

    let requested = requested_bytes(|| from_control::<Error>(input).is_ok()).1;
    let allowed = ERROR_RATIO * length_bytes + ERROR_LINKS_BYTES + ERROR_BYTES;
    assert!(requested <= allowed, "error: {requested} for {length_bytes} bytes");

    let (mut initiator, mut responder, hello) = fuzz::both_sides();
    let requested = requested_bytes(|| {
        let _ = initiator.feed(input);
        let _ = responder.feed(input);
    })
    .1;
    assert!(requested <= HANDSHAKE_BYTES, "handshake, first message: {requested}");

    let (_, mut responder, _) = fuzz::both_sides();
    responder.feed(&hello).unwrap();
    let requested = requested_bytes(|| input.chunks(7).try_for_each(|piece| responder.feed(piece).map(drop)).is_ok()).1;
    assert!(requested <= HANDSHAKE_BYTES, "handshake, second message: {requested}");
}

fn every_target(input: &[u8]) {
    fuzz::header(input);
    fuzz::parts(input);
    fuzz::value(input);
    fuzz::error(input);
    fuzz::handshake(input);
    check_allocations(input);
}

proptest! {
    #[test]
    fn random_bytes_do_no_harm(input in prop::collection::vec(any::<u8>(), 0..300)) {
        every_target(&input);
    }

    /// Small bytes are tags, counts and lengths, so these inputs get far into the decoders.
    #[test]
    fn random_small_bytes_do_no_harm(input in prop::collection::vec(0u8..16, 0..200)) {
        every_target(&input);
    }
}

/// Lists that each announce as many items as there can be, inside each other.
#[test]
fn nested_announcements_do_not_multiply() {
    const LIST: u8 = 12;
    const MAP: u8 = 13;
    let length_bytes = 1 << 20;
    for tag in [LIST, MAP] {
        for announced in [&[0xff, 0xff, 0x3f][..], &[0x80, 0x80, 0x20], &[0x80, 0x10], &[0x7f]] {
            let mut bomb = Vec::new();
            for _ in 0..limits::VALUE_DEPTH_MAX {
                bomb.push(tag);
                bomb.extend_from_slice(announced);
                if tag == MAP {
                    bomb.push(0);
                }
            }
            bomb.resize(length_bytes, 0);
            check_allocations(&bomb);
        }
    }
}

#[test]
fn announced_lengths_are_not_believed() {
    for tag in 0..=20u8 {
        for length in [&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01][..], &[0xff, 0xff, 0xff, 0x7f]] {
            check_allocations(&[&[tag], length, &[0; 16]].concat());
        }
    }
    for first in 0..=u8::MAX {
        check_allocations(&[first, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    }
}

#[test]
fn small_messages_need_no_memory_at_all() {
    let table = [Part::inline(TensorSpec::new(8, &[1, 2, 3, 4])), Part::inline(TensorSpec::new(8, &[9]))];
    let header = Header { part_count: 2, ..Header::new(sheave_wire::Kind::Data) };
    let (mut control, mut written) = (smallvec::SmallVec::<[u8; 128]>::new(), [0; HEADER_BYTES]);
    let requested = requested_bytes(|| {
        written = header.encode();
        parts::encode(&table, &mut control).unwrap();
        assert!(Header::decode(&written).is_ok());
        assert!(parts::decode(&control, 2).is_ok());
        assert!(matches!(codec::decode(&[3, 5]), Ok(Value::Int(-3))));
    })
    .1;
    assert_eq!(requested, 0);
}
