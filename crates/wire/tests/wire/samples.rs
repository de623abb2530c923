//! Named samples of everything that is written on the wire; golden files and fuzz seeds are made of them.

use std::time::Duration;

use sheave_base::config::Role;
use sheave_base::{Error, ErrorKind, NodeId, Peer, ProcessEnd, UserError};
use sheave_wire::handshake::{RejectReason, Step, reject};
use sheave_wire::{Header, Kind, Part, Placement, TensorSpec, Value, codec, parts, to_control};

use crate::fuzz;

pub(crate) type Named<T> = Vec<(&'static str, T)>;

pub(crate) fn headers() -> Named<Header> {
    let full = Header {
        flags: 0x0201,
        part_count: 0x0403,
        sequence: 0x0807_0605_0403_0201,
        tag: 0x1817_1615_1413_1211,
        context: 0x2827_2625_2423_2221,
        correlation: 0x3837_3635_3433_3231,
        control_bytes: 0x0042_4241,
        aux: 0x5453_5251,
        payload_bytes: 0x0000_0066_6564_6362,
        endpoint: 0x07,
        ..Header::new(Kind::Data)
    };
    let largest = Header {
        flags: u16::MAX,
        part_count: 4096,
        sequence: u64::MAX,
        tag: u64::MAX,
        context: u64::MAX,
        correlation: u64::MAX,
        control_bytes: 16 << 20,
        aux: u32::MAX,
        payload_bytes: 1 << 52,
        endpoint: 15,
        ..Header::new(Kind::Stream)
    };
    let endpoint = Header { endpoint: 1, ..Header::new(Kind::Data) };
    let mut headers = vec![("full", full), ("largest", largest), ("endpoint", endpoint)];
    let names = ["data", "beat", "return", "close", "segment", "chunk", "stream", "urgent", "room"];
    headers.extend(names.into_iter().zip(Kind::ALL.iter().map(|kind| Header::new(*kind))));
    headers
}

fn part(dtype: u8, dims: &[u64], placement: Placement, shared: bool) -> Part {
    Part { spec: TensorSpec::new(dtype, dims), placement, shared }
}

pub(crate) fn tables() -> Named<Vec<Part>> {
    let block = Placement::Block { segment: 0x1112, offset: 0x2122_2324, loan: 0x3132 };
    vec![
        ("none", vec![]),
        ("scalar", vec![part(9, &[], Placement::Inline, false)]),
        ("matrix_inline", vec![part(8, &[3, 5], Placement::Inline, false)]),
        ("block_shared", vec![part(7, &[2, 3, 4, 5], block, true)]),
        ("home", vec![part(5, &[64 << 20], Placement::Home { loan: u64::MAX }, false)]),
        ("stream_empty", vec![part(11, &[0, 7], Placement::Stream, false)]),
        ("every_dtype", (0..14).map(|code| part(code, &[u64::from(code)], Placement::Inline, false)).collect()),
        ("mixed", vec![part(8, &[1], block, false), part(0, &[1; 64], Placement::Stream, true)]),
    ]
}

/// A control area, and the part count before it, as the fuzz target wants them.
pub(crate) fn table_bytes(table: &[Part]) -> Vec<u8> {
    let mut bytes = Vec::new();
    parts::encode(table, &mut bytes).unwrap();
    bytes
}

pub(crate) fn values() -> Named<Value> {
    let mixed = Value::Map(vec![
        ("key".into(), Value::Str("fc1.weight".into())),
        ("grads".into(), Value::List(vec![Value::Tensor(0), Value::Tensor(1)])),
        ("".into(), Value::Map(vec![])),
    ]);
    vec![
        ("none", Value::None),
        ("false", Value::Bool(false)),
        ("true", Value::Bool(true)),
        ("int_zero", Value::Int(0)),
        ("int_minus_one", Value::Int(-1)),
        ("int_least", Value::Int(i64::MIN)),
        ("int_greatest", Value::Int(i64::MAX)),
        ("float", Value::Float(-1.5)),
        ("float_minus_zero", Value::Float(-0.0)),
        ("float_nan_payload", Value::Float(f64::from_bits(0xfff4_dead_beef_0001))),
        ("str", Value::Str("żółw 🐢".into())),
        ("str_empty", Value::Str(String::new())),
        ("bytes", Value::Bytes(vec![0, 255, 128])),
        ("dtype", Value::Dtype(13)),
        ("device", Value::Device { kind: 2, index: 300 }),
        ("shape", Value::Shape(vec![1, 0, 1 << 40])),
        ("tensor", Value::Tensor(200)),
        ("ref", Value::Ref { node: NodeId(0x0102_0304_0506_0708), id: 1 << 33 }),
        ("list_empty", Value::List(vec![])),
        ("list_nested", Value::List(vec![Value::List(vec![Value::None]), Value::Int(7)])),
        ("map", mixed),
        ("pickle", Value::Pickle(b"\x80\x05N.".to_vec())),
        ("tuple", Value::Tuple(vec![Value::Int(1), Value::Tuple(vec![])])),
        ("set", Value::Set(vec![Value::Str("b".into()), Value::Str("a".into())])),
        ("dict", Value::Dict(vec![(Value::Int(1), Value::None), (Value::Tuple(vec![]), Value::Int(2))])),
        ("integer", Value::Integer(vec![0, 0, 0, 0, 0, 0, 0, 0x80, 0])),
        ("integer_below", Value::Integer(vec![0, 0, 0, 0, 0, 0, 0, 0, 0x80])),
        ("slice", Value::Slice(Box::new([Value::Int(1), Value::None, Value::Int(-2)]))),
        ("scalar", Value::Scalar { dtype: 8, bytes: [1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] }),
        ("scalar_widest", Value::Scalar { dtype: 11, bytes: [255; 16] }),
        ("tagged", Value::Tagged(Box::new(("torch".into(), Value::Tensor(0))))),
    ]
}

pub(crate) fn control() -> fuzz::Control {
    let nan = Value::Float(f64::from_bits(0x7ff8_0000_0000_0001));
    ("push".into(), 300, vec![Value::Tensor(0), nan], Some(vec![1, 2, 3]))
}

pub(crate) fn control_bytes() -> Vec<u8> {
    to_control(&control()).unwrap()
}

/// Errors with everything that one can say, and one of each kind.
pub(crate) fn errors() -> Named<Error> {
    let server = Peer::named("server-0").node(NodeId(0x0102)).role(Role::Server).rank(4).host("here").pid(77);
    let full = Error::new(ErrorKind::PeerLost, "its process ended")
        .operation("push")
        .group("workers")
        .peer(Peer::named("worker-1").node(NodeId(9)))
        .origin(server.clone())
        .sequence(300)
        .elapsed(Duration::new(5, 7_000_000))
        .hint("look at its output");
    let user = UserError::new("ZeroDivisionError", "Traceback (most recent call last):\n  ...\n");
    let raised = Error::new(ErrorKind::Remote, "division by zero").user(user.clone().with_pickled(vec![0x80, 4, 0x2e]));
    let disk = Error::new(ErrorKind::Io, "no space left on device");
    let failed = Error::new(ErrorKind::Remote, "the updater failed on key 3");
    let died = Error::new(ErrorKind::WorkerDied, "killed").ended(ProcessEnd::new(Some(-9), "a last line\n"));
    let deep = (0..20).map(|link| Error::new(ErrorKind::Remote, format!("link {link}")));
    let mut errors = vec![
        ("plain", Error::new(ErrorKind::Closed, "the link was closed")),
        ("full", full),
        ("caused_by_user_code", failed.clone().cause(raised).cause(disk.clone()).origin(server)),
        ("cause", failed.cause(disk)),
        ("worker_died", died),
        ("pickle_left_out", Error::new(ErrorKind::Remote, "").user(user.with_pickled(vec![0; 1 << 20]))),
        ("deep", deep.reduce(Error::cause).unwrap()),
    ];
    // What code a kind has is a promise, too.
    errors.extend(ErrorKind::ALL.iter().map(|kind| (&*format!("kind_{kind:?}").leak(), Error::new(*kind, ""))));
    errors
}

/// An honest handshake between the fuzz target's two sides, message by message, and the key that comes of it.
pub(crate) fn conversation() -> Named<Vec<u8>> {
    let (mut initiator, mut responder, hello) = fuzz::both_sides();
    let Step::Send(challenge) = responder.feed(&hello).unwrap().step else { panic!("a challenge") };
    let Step::Send(proof) = initiator.feed(&challenge).unwrap().step else { panic!("a proof") };
    let Step::Done { send: Some(accepted), session_key, .. } = responder.feed(&proof).unwrap().step else {
        panic!("an acceptance")
    };
    vec![
        ("hello", hello),
        ("challenge", challenge),
        ("proof", proof),
        ("accepted", accepted),
        ("session_key", session_key.expose().to_vec()),
        ("reject_version", reject(RejectReason::Version, &fuzz::hellos()[1])),
    ]
}

/// Inputs of a fuzz target, by name.
pub(crate) type Seeds = Vec<(String, Vec<u8>)>;

/// The seeds of each fuzz target.
pub(crate) fn seeds() -> Named<Seeds> {
    let headers = headers().into_iter().map(|(name, header)| (name.to_owned(), header.encode().to_vec()));
    let tables = tables().into_iter().map(|(name, table)| {
        let mut input = (table.len() as u16).to_le_bytes().to_vec();
        input.extend(table_bytes(&table));
        (name.to_owned(), input)
    });
    let values = values().into_iter().map(|(name, value)| (name.to_owned(), codec::encode(&value).unwrap()));
    let errors = errors().into_iter().filter(|(name, _)| !name.starts_with("kind_"));
    let errors = errors.map(|(name, error)| (name.to_owned(), to_control(&error).unwrap()));
    let control = std::iter::once(("control".to_owned(), control_bytes()));
    vec![
        ("header", headers.collect()),
        ("parts", tables.collect()),
        ("value", values.chain(control).collect()),
        ("error", errors.collect()),
        ("handshake", handshake_seeds()),
    ]
}

/// Each message to the side and stage that waits for it, and an overlay that changes nothing, in one and many pieces.
fn handshake_seeds() -> Seeds {
    let modes = [("hello", 1u8), ("challenge", 0), ("proof", 3), ("accepted", 2), ("reject_version", 2)];
    let conversation = conversation();
    let mut seeds = Vec::new();
    for (name, mode) in modes {
        let (_, message) = conversation.iter().find(|(other, _)| *other == name).unwrap();
        let whole = 31 << 3;
        seeds.push((name.to_owned(), [&[mode | whole], message.as_slice()].concat()));
        seeds.push((format!("{name}_in_pieces"), [&[mode | 2 << 3], message.as_slice()].concat()));
        if name != "reject_version" {
            seeds.push((format!("{name}_overlaid"), vec![mode | 4 | whole, 0, 0, 0, 0]));
        }
    }
    seeds
}
