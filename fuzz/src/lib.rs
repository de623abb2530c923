//! What each fuzz target does with its input. The normal tests run the same functions over the corpus.
//!
//! Every function takes any bytes and panics only if sheave is wrong: a decoder panicked, or what it accepted does not
//! encode to what it was read from.

use sheave_base::{Error, NodeId, Secret, limits};
use sheave_wire::handshake::{Hello, Initiator, Medium, Refusal, Responder, Step};
use sheave_wire::{HEADER_BYTES, Header, Value, codec, from_control, parts, to_control};

/// A control message with the shapes that real ones have.
pub type Control = (String, u32, Vec<Value>, Option<Vec<u8>>);

/// A frame header.
pub fn header(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<HEADER_BYTES>() else { return };
    if let Ok(header) = Header::decode_with(bytes, false) {
        assert_eq!(header.encode_unsummed()[..HEADER_BYTES - 4], bytes[..HEADER_BYTES - 4]);
        assert_eq!(Header::decode(&header.encode()).ok(), Some(header));
    }
    if let Ok(header) = Header::decode(bytes) {
        assert_eq!(header.encode(), *bytes);
    }
}

/// A part table: two bytes of part count, then the control area.
pub fn parts(data: &[u8]) {
    let Some((count, control)) = data.split_first_chunk::<2>() else { return };
    let count = usize::from(u16::from_le_bytes(*count));
    if let Ok((table, rest)) = parts::decode(control, count) {
        assert_eq!(table.len(), count);
        let mut encoded = Vec::new();
        parts::encode(&table, &mut encoded).expect("what was decoded can be encoded");
        assert_eq!(encoded, control[..control.len() - rest.len()]);
        parts::inline_bytes(&table).expect("lengths were checked");
    }
}

/// A value, and the same bytes as a control message.
pub fn value(data: &[u8]) {
    if let Ok((value, rest)) = codec::decode_first(data) {
        let encoded = codec::encode(&value).expect("what was decoded can be encoded");
        assert_eq!(encoded, data[..data.len() - rest.len()]);
        let _ = value.check_tensors(1);
    }
    if let Ok(control) = from_control::<Control>(data) {
        let encoded = to_control(&control).expect("what was decoded can be encoded");
        let again = from_control::<Control>(&encoded).expect("what was encoded can be decoded");
        // Bytes, not values: a NaN differs from itself.
        assert_eq!(to_control(&again).ok(), Some(encoded));
    }
}

/// An error, as the answers of calls, refusals and the words of engines carry them.
pub fn error(data: &[u8]) {
    let Ok(error) = from_control::<Error>(data) else { return };
    assert!(error.causes().count() <= limits::ERROR_CAUSES_MAX);
    let encoded = to_control(&error).expect("what was decoded can be encoded");
    assert!(encoded.len() <= limits::ERROR_BYTES_MAX);
    assert_eq!(from_control::<Error>(&encoded).expect("what was encoded can be decoded"), error);
    // Whatever it says, it can be shown, and grow by what this node adds.
    let _ = error.to_string();
    let grown = error.clone().context("a call").cause(error.clone()).origin(error.about().cloned().unwrap_or_default());
    let encoded = to_control(&grown).expect("an error is never too long");
    assert_eq!(from_control::<Error>(&encoded).expect("and never too long to be read"), grown);
}

/// The hellos that the handshake target knows; whoever gets through must be one of them.
pub fn hellos() -> [Hello; 2] {
    let hello = |node, name: &str, pid| Hello {
        role: "worker".into(),
        host: "example".into(),
        boot_id: "11111111-2222-3333-4444-555555555555".into(),
        pid,
        limits_hash: 0x0123_4567_89ab_cdef,
        secret_source: "SHEAVE_SECRET".into(),
        ..Hello::new(NodeId(node), name, Medium::Tcp)
    };
    [hello(1, "worker-0", 100), Hello { payload: b"extra".to_vec(), ..hello(2, "server-0", 200) }]
}

/// The secret of the handshake target.
pub fn secret() -> Secret {
    Secret::new(b"a secret for fuzzing only").expect("it is long enough")
}

/// Both sides before the first byte, and the initiator's first bytes.
pub fn both_sides() -> (Initiator, Responder, Vec<u8>) {
    let [initiator, responder] = hellos();
    let (initiator, first_bytes) = Initiator::new(initiator, secret(), [1; 32]).expect("the hello is short");
    let responder = Responder::new(responder, secret(), [2; 32]).expect("the hello is short");
    (initiator, responder, first_bytes)
}

/// The bytes of a [`Step::Send`].
fn sent(outcome: Result<sheave_wire::handshake::Progress, Refusal>) -> Vec<u8> {
    match outcome.map(|progress| progress.step) {
        Ok(Step::Send(bytes) | Step::Done { send: Some(bytes), .. }) => bytes,
        other => panic!("an honest side must go on: {other:?}"),
    }
}

/// A handshake against either side. The first byte says which side (bit 0), whether it is past its first message
/// (bit 1), whether the rest is laid over what an honest peer would say (bit 2), and in what pieces it comes (the
/// other bits).
pub fn handshake(data: &[u8]) {
    let Some((&mode, data)) = data.split_first() else { return };
    let (mut initiator, mut responder, hello) = both_sides();
    let challenge = sent(responder.feed(&hello));
    let (is_responder, is_late, is_overlaid) = (mode & 1 != 0, mode & 2 != 0, mode & 4 != 0);
    let honest = match (is_responder, is_late) {
        (true, false) => {
            responder = both_sides().1;
            hello
        }
        (true, true) => sent(initiator.feed(&challenge)),
        (false, false) => challenge,
        (false, true) => sent(responder.feed(&sent(initiator.feed(&challenge)))),
    };
    let input = if is_overlaid { overlay(honest, data) } else { data.to_vec() };
    let piece_bytes = usize::from(mode >> 3) + 1;
    let [hello_of_initiator, hello_of_responder] = hellos();
    if is_responder {
        run(&input, piece_bytes, &hello_of_initiator, |piece| responder.feed(piece));
    } else {
        run(&input, piece_bytes, &hello_of_responder, |piece| initiator.feed(piece));
    }
}

fn overlay(mut honest: Vec<u8>, data: &[u8]) -> Vec<u8> {
    for (byte, change) in honest.iter_mut().zip(data) {
        *byte ^= change;
    }
    honest
}

fn run(
    input: &[u8],
    piece_bytes: usize,
    honest: &Hello,
    mut feed: impl FnMut(&[u8]) -> Result<sheave_wire::handshake::Progress, Refusal>,
) {
    for mut piece in input.chunks(piece_bytes) {
        while !piece.is_empty() {
            let Ok(progress) = feed(piece) else {
                assert!(feed(piece).is_err(), "a handshake that failed stays so");
                return;
            };
            assert!(progress.consumed_bytes <= piece.len());
            assert!(progress.consumed_bytes > 0, "a handshake that goes on takes something");
            piece = &piece[progress.consumed_bytes..];
            if let Step::Done { peer, .. } = progress.step {
                assert_eq!(*peer, *honest, "only an honest peer gets through");
                return;
            }
        }
    }
}
