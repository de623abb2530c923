//! Whatever is written is read as it was.

use proptest::prelude::*;
use sheave_base::{NodeId, Secret, limits};
use sheave_wire::handshake::{Hello, Initiator, Medium, Responder, Step};
use sheave_wire::{Header, Kind, Part, Placement, TensorSpec, Value, codec, from_control, parts, to_control};

fn header() -> impl Strategy<Value = Header> {
    let numbers = any::<[u64; 4]>();
    let lengths = (0..=limits::PARTS_MAX as u16, 0..=limits::CONTROL_BYTES_MAX as u32, 0..=limits::PART_BYTES_MAX);
    let small = (any::<u16>(), any::<u32>(), 0..limits::ENDPOINTS_MAX as u8);
    (prop::sample::select(Kind::ALL), small, numbers, lengths).prop_map(|(kind, small, numbers, lengths)| {
        let (flags, aux, endpoint) = small;
        let [sequence, tag, context, correlation] = numbers;
        let (part_count, control_bytes, payload_bytes) = lengths;
        let header = Header { kind, flags, part_count, sequence, tag, context, correlation, ..Header::new(kind) };
        Header { control_bytes, aux, payload_bytes, endpoint, ..header }
    })
}

fn part() -> impl Strategy<Value = Part> {
    let placement = prop_oneof![
        Just(Placement::Inline),
        Just(Placement::Stream),
        any::<u64>().prop_map(|loan| Placement::Home { loan }),
        (any::<u64>(), 0..u64::MAX >> 1, any::<u64>()).prop_map(|(segment, offset, loan)| Placement::Block {
            segment,
            offset,
            loan
        }),
    ];
    let dims = prop_oneof![
        prop::collection::vec(0..40u64, 0..=7),
        prop::collection::vec(0..=1u64, 0..=limits::DIMENSIONS_MAX),
        (0..=limits::PART_BYTES_MAX / 16).prop_map(|dim| vec![dim]),
    ];
    (0..14u8, dims, placement, any::<bool>()).prop_map(|(dtype, dims, placement, shared)| Part {
        spec: TensorSpec::new(dtype, &dims),
        placement,
        shared,
    })
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::None),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        any::<u64>().prop_map(|bits| Value::Float(f64::from_bits(bits))),
        any::<String>().prop_map(Value::Str),
        any::<Vec<u8>>().prop_map(Value::Bytes),
        any::<Vec<u8>>().prop_map(Value::Pickle),
        (0..14u8).prop_map(Value::Dtype),
        any::<(u8, u32)>().prop_map(|(kind, index)| Value::Device { kind, index }),
        prop::collection::vec(any::<u64>(), 0..=limits::DIMENSIONS_MAX).prop_map(Value::Shape),
        any::<u32>().prop_map(Value::Tensor),
        any::<(u64, u64)>().prop_map(|(node, id)| Value::Ref { node: NodeId(node), id }),
        prop::collection::vec(any::<u8>(), 9..40).prop_filter_map("a shorter form", integer),
        (0..14u8, any::<[u8; 16]>()).prop_map(scalar),
    ];
    leaf.prop_recursive(6, 60, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::List),
            prop::collection::vec((any::<String>(), inner.clone()), 0..8).prop_map(Value::Map),
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::Tuple),
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::Set),
            prop::collection::vec((inner.clone(), inner.clone()), 0..8).prop_map(Value::Dict),
            [inner.clone(), inner.clone(), inner.clone()].prop_map(|bounds| Value::Slice(Box::new(bounds))),
            (any::<String>(), inner).prop_map(|tagged| Value::Tagged(Box::new(tagged))),
        ]
    })
}

/// A whole number of these bytes, if it has no shorter form.
fn integer(bytes: Vec<u8>) -> Option<Value> {
    let value = Value::Integer(bytes);
    codec::encode(&value).is_ok().then_some(value)
}

fn scalar((dtype, mut bytes): (u8, [u8; 16])) -> Value {
    let size = usize::from(sheave_wire::dtype_size(dtype).expect("it is one of them"));
    bytes[size..].fill(0);
    Value::Scalar { dtype, bytes }
}

fn hello(node: u64) -> impl Strategy<Value = Hello> {
    let text = || "[^\\p{Cc}]{0,40}";
    let texts = (text(), text(), text(), text(), text());
    (texts, any::<u32>(), prop::collection::vec(any::<u8>(), 0..500)).prop_map(
        move |((name, role, host, boot_id, secret_source), pid, payload)| Hello {
            role,
            host,
            boot_id,
            pid,
            secret_source,
            payload,
            ..Hello::new(NodeId(node), name, Medium::SharedMemory)
        },
    )
}

/// Feeds `input` in pieces of `piece_bytes` until the handshake asks for something; returns that and what is left.
fn feed_in_pieces(
    input: &[u8],
    piece_bytes: usize,
    mut feed: impl FnMut(&[u8]) -> Result<sheave_wire::handshake::Progress, sheave_wire::handshake::Refusal>,
) -> (Step, &[u8]) {
    let mut fed_bytes = 0;
    loop {
        let piece = &input[fed_bytes..(fed_bytes + piece_bytes).min(input.len())];
        let progress = feed(piece).unwrap();
        fed_bytes += progress.consumed_bytes;
        match progress.step {
            Step::Need => assert!(!piece.is_empty(), "all was fed, and it wants more"),
            step => return (step, &input[fed_bytes..]),
        }
    }
}

proptest! {
    #[test]
    fn headers(header in header()) {
        prop_assert_eq!(Header::decode(&header.encode()).unwrap(), header);
        prop_assert_eq!(Header::decode_with(&header.encode_unsummed(), false).unwrap(), header);
        header.check_limits().unwrap();
    }

    #[test]
    fn part_tables(table in prop::collection::vec(part(), 0..6), follows: Vec<u8>) {
        let mut control = Vec::new();
        parts::encode(&table, &mut control).unwrap();
        let table_bytes = control.len();
        control.extend_from_slice(&follows);
        let (decoded, rest) = parts::decode(&control, table.len()).unwrap();
        prop_assert_eq!(decoded.as_slice(), table.as_slice());
        prop_assert_eq!(rest, &follows[..]);
        for length_bytes in 0..table_bytes {
            prop_assert!(parts::decode(&control[..length_bytes], table.len()).is_err());
        }
    }

    #[test]
    fn a_length_is_the_product(dims in prop::collection::vec(0..9u64, 0..8), dtype in 0..14u8) {
        let elements: u64 = dims.iter().product();
        let size_bytes = u64::from(sheave_wire::dtype_size(dtype).unwrap());
        prop_assert_eq!(TensorSpec::new(dtype, &dims).length_bytes().unwrap(), elements * size_bytes);
    }

    #[test]
    fn values(value in value(), follows: Vec<u8>) {
        let bytes = codec::encode(&value).unwrap();
        let decoded = codec::decode(&bytes).unwrap();
        // Equal bytes mean equal bits, NaN included.
        prop_assert_eq!(codec::encode(&decoded).unwrap(), &bytes[..]);
        prop_assert_eq!(format!("{decoded:?}"), format!("{value:?}"));
        let longer = [&bytes[..], &follows].concat();
        let (_, rest) = codec::decode_first(&longer).unwrap();
        prop_assert_eq!(rest, &follows[..]);
        prop_assert_eq!(codec::decode(&longer).is_ok(), follows.is_empty());
        for length_bytes in 0..bytes.len() {
            prop_assert!(codec::decode(&bytes[..length_bytes]).is_err());
        }
    }

    #[test]
    fn references_are_found_without_the_value(value in value(), noise: Vec<u8>) {
        let references = |bytes: &[u8]| {
            let mut seen = Vec::new();
            codec::visit_references(bytes, &mut |node, id| seen.push(Value::Ref { node, id })).map(|()| seen)
        };
        let listed = |value: &Value| {
            let mut seen = Vec::new();
            let Ok(()) = value.try_visit(&mut |value| {
                seen.extend(matches!(value, Value::Ref { .. }).then(|| value.clone()));
                Ok::<_, std::convert::Infallible>(())
            });
            seen
        };
        let bytes = codec::encode(&value).unwrap();
        prop_assert_eq!(format!("{:?}", references(&bytes).unwrap()), format!("{:?}", listed(&value)));
        let text = codec::first_text(&bytes).map(|(text, rest)| (text.to_owned(), rest.len()));
        let is_text = if let Value::Str(text) = &value { Some((text.clone(), 0)) } else { None };
        prop_assert_eq!(text, is_text);
        // What is refused there is refused here, and the other way round.
        let mut torn = bytes.clone();
        if let (Some(first), false) = (noise.first(), torn.is_empty()) {
            let at = usize::from(*first) % torn.len();
            torn[at] ^= noise.get(1).copied().unwrap_or(1);
        }
        for bytes in [&torn[..], &noise, &[&bytes[..], &noise].concat()] {
            match (codec::decode(bytes), references(bytes)) {
                (Ok(value), Ok(seen)) => prop_assert_eq!(format!("{:?}", seen), format!("{:?}", listed(&value))),
                (decoded, seen) => prop_assert_eq!(decoded.is_ok(), seen.is_ok()),
            }
        }
    }

    #[test]
    fn control_messages(name: String, numbers: Vec<i32>, value in value()) {
        let bytes = to_control(&(&name, &numbers, &value)).unwrap();
        let (name_again, numbers_again, value_again): (String, Vec<i32>, Value) = from_control(&bytes).unwrap();
        prop_assert_eq!((name_again, numbers_again), (name, numbers));
        prop_assert_eq!(codec::encode(&value_again).unwrap(), codec::encode(&value).unwrap());
        let longer = [&bytes[..], &[0]].concat();
        prop_assert!(from_control::<(String, Vec<i32>, Value)>(&longer).is_err());
    }

    #[test]
    fn handshakes(
        (worker, server) in (hello(1), hello(2)),
        (nonce, piece_bytes) in (any::<[u8; 32]>(), 1..200usize),
        link_bytes: Vec<u8>,
    ) {
        let secret = Secret::new(b"the secret of this job").unwrap();
        let (mut initiator, first) = Initiator::new(worker.clone(), secret.clone(), nonce).unwrap();
        let mut responder = Responder::new(server.clone(), secret, nonce.map(|byte| !byte)).unwrap();
        let (Step::Send(challenge), []) = feed_in_pieces(&first, piece_bytes, |piece| responder.feed(piece)) else {
            panic!("a challenge")
        };
        let (Step::Send(proof), []) = feed_in_pieces(&challenge, piece_bytes, |piece| initiator.feed(piece)) else {
            panic!("a proof")
        };
        // An initiator that trusts its responder may write its first message right behind its proof.
        let proof = [&proof[..], &link_bytes].concat();
        let (done, rest) = feed_in_pieces(&proof, piece_bytes, |piece| responder.feed(piece));
        let Step::Done { peer, send: Some(accepted), session_key, .. } = done else { panic!("done") };
        prop_assert_eq!(*peer, worker);
        prop_assert_eq!(rest, &link_bytes[..]);
        let accepted = [&accepted[..], &link_bytes].concat();
        let (done, rest) = feed_in_pieces(&accepted, piece_bytes, |piece| initiator.feed(piece));
        let Step::Done { peer, send: None, session_key: same_key, .. } = done else { panic!("done") };
        prop_assert_eq!(*peer, server);
        prop_assert_eq!(rest, &link_bytes[..]);
        prop_assert_eq!(session_key.expose(), same_key.expose());
    }
}
