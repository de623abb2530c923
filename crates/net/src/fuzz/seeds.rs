//! The corpus of links: what the two media carry, written as they write it.

use super::replay::Target;
use super::{address, ring, shm_records, tcp_stream};
use crate::Address;
use crate::message::{Envelope, Outgoing};
use crate::shm::{brief_fuzz, plain_fuzz};
use sheave_base::{NodeId, Tag};
use sheave_tensor::{Dtype, Mode, Tensor};
use sheave_wire::{Header, Kind, Part, Placement, TensorSpec, parts};
use std::slice::from_ref;

const ADDRESS: Target = Target { name: "address", run: address, fixed_bytes: 32 << 10, ratio: 64 };
const RING: Target = Target { name: "ring", run: ring, fixed_bytes: 64 << 10, ratio: 4 << 10 };
const RECORDS: Target = Target { name: "shm_records", run: shm_records, fixed_bytes: 512 << 10, ratio: 8 << 10 };
const STREAM: Target = Target { name: "tcp_stream", run: tcp_stream, fixed_bytes: 512 << 10, ratio: 1 << 10 };

#[test]
fn f43_addresses_replay() {
    let tcp = "127.0.0.1:4711".parse().ok();
    let full = Address {
        node: NodeId(0xff00_0000_0000_0001),
        name: "worker 0/ż".into(),
        boot_id: "11111111-2222-3333-4444-555555555555.4026531840".into(),
        unix: Some("sheave#1&2".into()),
        tcp: "[fe80::1]:65535".parse().ok(),
    };
    let unix = Address { unix: Some("name".into()), ..Address::default() };
    let seeds = [
        ("tcp", Address { tcp, ..Address::default() }.to_string()),
        ("unix", unix.to_string()),
        ("full", full.to_string()),
        ("unknown", "sheave://1.2.3.4:5/?later=x&name=%41".to_owned()),
    ];
    ADDRESS.seeds_are_current(&seeds.map(|(name, text)| (name, text.into_bytes())));
    ADDRESS.replay();
}

/// The steps of the ring's target, by their numbers there.
fn push(kind: u8, length: u16, first: u8) -> Vec<u8> {
    let [low, high] = length.to_le_bytes();
    vec![kind << 3, low, high, first]
}

#[test]
fn f43_rings_replay() {
    let (take, sleep, wake) = (vec![1], vec![5], vec![5 | 1 << 3]);
    let spoil = |index: u16, value: u64| [&[3][..], &index.to_le_bytes(), &value.to_le_bytes()].concat();
    let look = |at: u16, length: u16| [&[2][..], &at.to_le_bytes(), &length.to_le_bytes()].concat();
    let shape = |kind: u64, lines: u64, body_bytes: u64| kind | lines << 8 | body_bytes << 32;
    // The ready word that the consumer expects, with that shape.
    let forged = |shape: u64| [&[4 | 8 << 3][..], &shape.to_le_bytes()].concat();
    let largest = (crate::shm::BODY_BYTES_MAX as u16).to_le_bytes();
    let fill = [vec![0, largest[0], largest[1], 7], vec![0, largest[0], largest[1], 9]].concat();
    let said = vec![6, 3, 6 | 1 << 3, 6 | 2 << 3, 1, 0, 0, 0, 0, 0, 0, 0, 6 | 3 << 3];
    let wrapped = [push(0, 4000, 1), take.clone(), push(1, 4000, 2), take.clone(), push(2, 4000, 3), take.clone()];
    let wrapped = [wrapped.concat(), push(3, 4000, 4), push(4, 4000, 5), push(5, 40, 6)].concat();
    RING.seeds_are_current(&[
        ("in_order", [push(0, 5, 1), push(5, 48, 2), take.clone(), look(0, 8), take.clone()].concat()),
        ("wraps", [wrapped.clone(), wrapped.clone(), wrapped].concat()),
        ("is_full", [fill.clone(), fill, take.clone(), push(1, 9, 1), wake.clone(), take.clone()].concat()),
        ("sleeps", [sleep.clone(), push(0, 8, 3), sleep, wake, take.clone()].concat()),
        ("says", said),
        ("ready_word_of_nobody", [push(0, 5, 1), spoil(32, 99)].concat()),
        ("forged_message", [forged(shape(2, 1, 48)), look(0, 48), take.clone()].concat()),
        ("forged_pads", [forged(shape(1, 1, 0)), forged(shape(1, 1, 0)), take.clone()].concat()),
        ("forged_length", [forged(shape(2, 1, 49)), take.clone()].concat()),
        ("beyond_the_end", [forged(shape(2, 257, 48)), take.clone()].concat()),
        ("consumer_index", [push(0, 5, 1), vec![7 | 31 << 3], push(0, 16_000, 1), push(0, 8000, 1)].concat()),
    ]);
    RING.replay();
}

/// A message with this control part and these tensors, whose elements are ones where they are on the link itself: its
/// area, and its payload.
fn pieces(control: &[u8], table: &[Part]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let mut area = Vec::new();
    parts::encode(table, &mut area).expect("it is short");
    area.extend_from_slice(control);
    let inline = table.iter().filter(|part| part.placement == Placement::Inline);
    let payload = inline.map(|part| vec![1; part.spec.length_bytes().expect("it is short") as usize]);
    (area, payload.collect())
}

fn header(sequence: u64, table: &[Part], control_bytes: usize) -> Header {
    let length = |part: &Part| part.spec.length_bytes().expect("it is short");
    let envelope = Envelope { correlation: 5, aux: 6, ..Envelope::data(3, Tag(4)) };
    Header {
        sequence,
        part_count: table.len() as u16,
        control_bytes: control_bytes as u32,
        payload_bytes: table.iter().map(length).sum(),
        ..envelope.header()
    }
}

fn part(dtype: Dtype, dims: &[u64], placement: Placement) -> Part {
    Part { spec: TensorSpec::new(dtype.code(), dims), placement, shared: false }
}

/// A step of the records' target: a record of this kind with this body.
fn record(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind << 3][..], &(body.len() as u16).to_le_bytes(), body].concat()
}

const PAD: u8 = 0;
const MESSAGE: u8 = 1;
const CHUNK: u8 = 2;
const RETURNS: u8 = 3;
const AREA: u8 = 4;
const SLOTS: u8 = 5;
const BRIEF: u8 = 6;
const PLAIN: u8 = 7;

/// As many steps of the receiver as there are.
const STEPS: u8 = 1 | 31 << 3;

fn message(sequence: u64, control: &[u8], table: &[Part]) -> Vec<u8> {
    let (area, payload) = pieces(control, table);
    let mut body = header(sequence, table, area.len()).encode_unsummed().to_vec();
    for piece in std::iter::once(&area).chain(&payload) {
        body.extend_from_slice(piece);
        body.resize(body.len().next_multiple_of(8), 0);
    }
    record(MESSAGE, &body)
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn f43_records_in_shared_memory_replay() {
    let plain = part(Dtype::F32, &[2, 3], Placement::Inline);
    let (segment, offset) = (7, 64);
    let block = |loan| part(Dtype::F32, &[16], Placement::Block { segment, offset, loan });
    let borrow = |loan| part(Dtype::U8, &[3], Placement::Borrow { segment, offset, loan });
    let streamed = part(Dtype::U8, &[300], Placement::Stream);
    let show = vec![3, segment as u8];
    let short =
        Outgoing::tensor(Envelope::data(3, Tag(4)), Tensor::from_slice(&[1.5_f32, 2.0], [2]).unwrap(), Mode::Copy);
    let short = || record(BRIEF, &brief_fuzz(&short));
    let worded =
        |control: &[u8]| record(PLAIN, &plain_fuzz(&Outgoing::control(Envelope::of(1, Tag(4), 5), control.to_vec())));
    let (far, near) = ([1; 800], [2; 8]);
    let in_pieces = {
        let mut body = header(1, &[], 808).encode_unsummed().to_vec();
        body.extend_from_slice(&near);
        [record(AREA, &far), record(MESSAGE, &body)].concat()
    };
    let chunks = [record(CHUNK, &words(&[200])), record(CHUNK, &words(&[100]))].concat();
    let slots = record(SLOTS, &words(&[segment, 4096]));
    let places = vec![5 | 2 << 3];
    let end = |steps: &[Vec<u8>]| [&steps.concat()[..], &[STEPS]].concat();
    RECORDS.seeds_are_current(&[
        ("control", end(&[message(1, b"hello", &[])])),
        ("inline", end(&[message(1, b"x", &[plain.clone(), plain.clone()]), message(2, &[], from_ref(&plain))])),
        ("inline_in_places", end(&[places.clone(), message(1, b"x", &[plain])])),
        ("brief", end(&[short(), vec![STEPS], short(), vec![7, 3, 4], short(), vec![7 | 1 << 3, 3, 4]])),
        ("plain", end(&[worded(b"0123456789abcdef"), worded(&[]), short(), worded(b"abc")])),
        ("waits", end(&[vec![5 | 1 << 3], short(), vec![STEPS]])),
        ("in_pieces", end(&[in_pieces])),
        ("block", end(&[show.clone(), message(1, &[], &[block(1), block(2)])])),
        ("block_in_place", end(&[show.clone(), places, message(1, &[], &[block(1)])])),
        ("borrowed", end(&[show.clone(), message(1, &[], &[borrow(9)])])),
        ("borrowed_and_closed", end(&[show.clone(), message(1, &[], &[borrow(9)]), vec![5 | 8 << 3]])),
        ("home", end(&[message(1, &[], &[part(Dtype::U8, &[256], Placement::Home { loan: 1 })])])),
        ("home_borrowed", end(&[message(1, &[], &[part(Dtype::U8, &[256], Placement::Home { loan: 2 })])])),
        ("returns", end(&[record(RETURNS, &words(&[2, 1])), vec![STEPS], record(RETURNS, &words(&[1]))])),
        ("streamed", end(&[show.clone(), slots, message(1, &[], &[streamed]), chunks])),
        ("forgotten", end(&[show, vec![4, segment as u8], message(1, &[], &[block(1)])])),
        ("padded", end(&[record(PAD, &[]), vec![STEPS]])),
        ("packet", end(&[vec![6, 24, 0], words(&[4, 1, 0]), vec![6, 3, 0, 1, 2, 3], message(1, &[], &[block(1)])])),
    ]);
    RECORDS.replay();
}

fn frame(sequence: u64, control: &[u8], table: &[Part]) -> Vec<u8> {
    let (area, payload) = pieces(control, table);
    [header(sequence, table, area.len()).encode().to_vec(), area, payload.concat()].concat()
}

#[test]
fn f43_tcp_streams_replay() {
    let short = part(Dtype::F32, &[2, 3], Placement::Inline);
    let long = part(Dtype::I16, &[9, 7], Placement::Inline);
    let empty = part(Dtype::Bool, &[0], Placement::Inline);
    let elsewhere = part(Dtype::U8, &[4], Placement::Stream);
    let bare = |kind, sequence, tag| Header { sequence, tag, ..Header::new(kind) }.encode().to_vec();
    let traffic = [
        frame(1, b"control", &[]),
        bare(Kind::Beat, 2, 0),
        frame(3, &[], &[short.clone(), empty, long.clone()]),
        frame(4, &[3; 20], from_ref(&short)),
    ];
    let traffic = traffic.concat();
    let seed = |piece_bytes: u8, flags: u8, early: u8, stream: &[Vec<u8>]| {
        [&[piece_bytes, flags, early][..], &stream.concat()].concat()
    };
    let open = |piece_bytes, flags, early| seed(piece_bytes, flags, early, from_ref(&traffic));
    STREAM.seeds_are_current(&[
        ("at_once", open(0, 0, 0)),
        ("in_pieces", open(7, 0, 0)),
        ("in_places", open(90, 2, 70)),
        ("waits", open(33, 1, 0)),
        ("waits_and_ends", open(0, 7, 200)),
        ("room", seed(4, 1, 52, &[frame(1, b"x", from_ref(&short)), bare(Kind::Room, 2, 1 << 20), frame(3, &[], &[])])),
        ("closed", seed(0, 0, 0, &[frame(1, b"x", from_ref(&short)), bare(Kind::Close, 2, 1), frame(3, &[], &[])])),
        ("cut_off", seed(0, 4, 0, &[frame(1, b"x", &[long])[..150].to_vec()])),
        ("elsewhere", seed(0, 0, 0, &[frame(1, &[], &[elsewhere])])),
        ("out_of_order", seed(0, 0, 0, &[frame(1, &[], from_ref(&short)), frame(3, &[], &[short])])),
    ]);
    STREAM.replay();
}
