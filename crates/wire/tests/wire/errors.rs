//! Errors travel whole, are never too long to travel, and are read from nothing else than what could have been written.

use proptest::prelude::*;
use sheave_base::config::Role;
use sheave_base::{Error, ErrorKind, NodeId, Peer, ProcessEnd, UserError, limits};
use sheave_wire::{from_control, to_control};
use std::time::Duration;

use crate::allocation::requested_bytes;

/// Texts around every limit, with characters of several bytes.
fn text(bytes_max: usize) -> impl Strategy<Value = String> {
    let long = (0..6usize, 0..4usize)
        .prop_map(move |(more, shift)| format!("{}{}", "x".repeat(shift), "🐢".repeat(bytes_max / 4 + more - 2)));
    prop_oneof![6 => ".{0,20}", 1 => long]
}

fn peer() -> impl Strategy<Value = Peer> {
    let names = (text(limits::ERROR_NAME_BYTES_MAX), prop::option::of(text(limits::ERROR_NAME_BYTES_MAX)));
    let numbers = any::<(Option<u64>, Option<u32>, Option<u32>)>();
    (names, numbers, prop::option::of(prop::sample::select(&Role::ALL[..]))).prop_map(
        |((name, host), (node, rank, pid), role)| Peer { name, node: node.map(NodeId), role, rank, host, pid },
    )
}

/// What an error is to say besides.
#[derive(Clone, Debug)]
enum Change {
    Operation(String),
    Group(String),
    Hint(String),
    Context(String),
    Peer(Peer),
    Origin(Peer),
    Sequence(u64),
    Elapsed(Duration),
    Ended(ProcessEnd),
    User(UserError),
}

fn changed(error: Error, change: Change) -> Error {
    match change {
        Change::Operation(text) => error.operation(text),
        Change::Group(text) => error.group(text),
        Change::Hint(text) => error.hint(text),
        Change::Context(text) => error.context(text),
        Change::Peer(peer) => error.peer(peer),
        Change::Origin(peer) => error.origin(peer),
        Change::Sequence(number) => error.sequence(number),
        Change::Elapsed(span) => error.elapsed(span),
        Change::Ended(end) => error.ended(end),
        Change::User(user) => error.user(user),
    }
}

fn change() -> impl Strategy<Value = Change> {
    let (name, long) = (limits::ERROR_NAME_BYTES_MAX, limits::ERROR_TEXT_BYTES_MAX);
    let lines = || text(limits::ERROR_LONG_TEXT_BYTES_MAX);
    let pickled = prop::option::of((0..limits::ERROR_PICKLED_BYTES_MAX + 3).prop_map(|length| vec![7; length]));
    prop_oneof![
        text(name).prop_map(Change::Operation),
        text(name).prop_map(Change::Group),
        text(long).prop_map(Change::Hint),
        text(long).prop_map(Change::Context),
        peer().prop_map(Change::Peer),
        peer().prop_map(Change::Origin),
        any::<u64>().prop_map(Change::Sequence),
        any::<Duration>().prop_map(Change::Elapsed),
        (any::<Option<i32>>(), lines()).prop_map(|(status, lines)| Change::Ended(ProcessEnd::new(status, lines))),
        (text(name), lines(), pickled).prop_map(|(class, traceback, pickled)| {
            let user = UserError::new(class, traceback);
            Change::User(pickled.into_iter().fold(user, UserError::with_pickled))
        }),
    ]
}

/// One error without causes.
fn link() -> impl Strategy<Value = Error> {
    let first = (prop::sample::select(ErrorKind::ALL), text(limits::ERROR_TEXT_BYTES_MAX));
    (first, prop::collection::vec(change(), 0..6))
        .prop_map(|((kind, what), changes)| changes.into_iter().fold(Error::new(kind, what), changed))
}

/// Errors with causes that are changed afterwards, so that nothing depends on the order of building one.
fn error() -> impl Strategy<Value = Error> {
    let causes = prop::collection::vec(link(), 0..2 * limits::ERROR_CAUSES_MAX);
    (link(), causes, prop::collection::vec(change(), 0..3)).prop_map(|(first, causes, changes)| {
        let error = causes.into_iter().fold(first, Error::cause);
        changes.into_iter().fold(error, changed)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_error_travels_whole(error in error()) {
        let bytes = to_control(&error).unwrap();
        prop_assert!(bytes.len() <= limits::ERROR_BYTES_MAX, "{} bytes", bytes.len());
        let read: Error = from_control(&bytes).unwrap();
        prop_assert!(read == error);
        prop_assert_eq!(read.to_string(), error.to_string());
        prop_assert!(error.causes().count() <= limits::ERROR_CAUSES_MAX);
    }

    #[test]
    fn an_error_that_is_cut_off_is_none(error in error()) {
        let bytes = to_control(&error).unwrap();
        // Every byte of what is short, and as many of what is long.
        let step = (bytes.len() / 2000).max(1);
        for length_bytes in (0..bytes.len()).step_by(step) {
            let read = from_control::<Error>(&bytes[..length_bytes]);
            prop_assert_eq!(read.map_err(|error| error.kind()), Err(ErrorKind::Protocol));
        }
        prop_assert!(from_control::<Error>(&[&bytes[..], &[0]].concat()).is_err());
    }
}

/// The bytes of an error before its list of causes, and those of a cause.
fn plain(what: &str) -> Vec<u8> {
    let mut bytes = to_control(&Error::new(ErrorKind::Io, what.to_owned())).unwrap();
    assert_eq!(bytes.pop(), Some(0), "no causes");
    bytes
}

#[test]
fn an_error_without_causes_is_as_short_as_it_can_be() {
    // The kind, the text behind its length, seven fields that are not there; and three bytes for causes and details.
    assert_eq!(to_control(&Error::new(ErrorKind::Closed, "gone")).unwrap().len(), 1 + 5 + 7 + 3);
}

#[test]
fn a_chain_that_is_too_long_is_refused_before_it_is_read() {
    let chain = |count: u8, links: usize| [plain("head"), vec![count], plain("cause").repeat(links)].concat();
    let longest = limits::ERROR_CAUSES_MAX;
    let error: Error = from_control(&chain(longest as u8, longest)).unwrap();
    assert_eq!(error.causes().count(), longest);
    assert!(from_control::<Error>(&chain(longest as u8 + 1, longest + 1)).is_err());
    // Announced and not there, by a list whose count has nine more bytes.
    for announced in [&[0x7f][..], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]] {
        let bytes = [&plain("head"), announced].concat();
        let (is_read, requested) = requested_bytes(|| from_control::<Error>(&bytes).is_ok());
        assert!(!is_read && requested < 8 << 10, "{requested} bytes");
    }
    // As many links as fit into a control part.
    let links = limits::CONTROL_BYTES_MAX / plain("").len() - 8;
    let bytes = [plain("head"), vec![0xff, 0xff, 0x3f], plain("").repeat(links)].concat();
    let (is_read, requested) = requested_bytes(|| from_control::<Error>(&bytes).is_ok());
    assert!(!is_read && requested < 8 << 10, "{requested} bytes");
}

/// A number in groups of seven bits.
fn varint(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

#[test]
fn a_text_that_is_too_long_is_refused_before_it_is_copied() {
    let with_text = |length: usize| {
        let bytes = to_control(&Error::new(ErrorKind::Io, "")).unwrap();
        [&bytes[..1], &varint(length), &vec![b'x'; length], &bytes[2..]].concat()
    };
    let longest = limits::ERROR_TEXT_BYTES_MAX;
    assert_eq!(from_control::<Error>(&with_text(longest)).unwrap().what().len(), longest);
    for length in [longest + 1, 1 << 20] {
        let bytes = with_text(length);
        let (is_read, requested) = requested_bytes(|| from_control::<Error>(&bytes).is_ok());
        assert!(!is_read && requested < 4 << 10, "{requested} bytes for a text of {length}");
    }
}

#[test]
fn details_that_are_too_long_are_refused() {
    let user = UserError::new("", "").with_pickled(vec![]);
    let bytes = to_control(&Error::new(ErrorKind::Remote, "").user(user)).unwrap();
    // Behind: the length of what is left out, what is left out before it, no causes.
    let (before, after) = bytes.split_at(bytes.len() - 4);
    let with_pickled = |length: usize| [before, &varint(length), &vec![7; length], &after[1..]].concat();
    let longest = limits::ERROR_PICKLED_BYTES_MAX;
    let error: Error = from_control(&with_pickled(longest)).unwrap();
    assert_eq!(error.user_error().and_then(UserError::pickled).map(<[u8]>::len), Some(longest));
    let bytes = with_pickled(longest + 1);
    let (is_read, requested) = requested_bytes(|| from_control::<Error>(&bytes).is_ok());
    assert!(!is_read && requested < 4 << 10, "{requested} bytes");
    // Each for itself is short enough, and all of them together are not.
    let link = &with_pickled(longest)[..];
    let link = &link[..link.len() - 1];
    let chain = |count: u8| [link, &[count], &link.repeat(usize::from(count))].concat();
    assert!(from_control::<Error>(&chain(1)).is_ok());
    assert!(from_control::<Error>(&chain(2)).is_err());
}

#[test]
fn details_beyond_the_limit_are_left_out_and_said_so() {
    let traceback = "line\n".repeat(6000);
    let user = UserError::new("ValueError", traceback.clone()).with_pickled(vec![1; 60 << 10]);
    let link = |number: u32| Error::new(ErrorKind::Remote, format!("link {number}")).user(user.clone());
    let error = (1..6).map(link).reduce(Error::cause).unwrap();
    let users: Vec<_> = error.causes().filter_map(Error::user_error).collect();
    let root = users[users.len() - 1];
    assert_eq!((root.traceback(), root.pickled().map(<[u8]>::len)), (&*traceback, Some(60 << 10)), "the root has all");
    let first = error.user_error().unwrap();
    assert_eq!((first.pickled(), first.left_out_bytes()), (None, 60 << 10));
    assert!(first.traceback().contains("bytes left out"), "{}", first.traceback());
    assert_eq!(from_control::<Error>(&to_control(&error).unwrap()).unwrap(), error);
}

#[test]
fn an_unknown_kind_is_an_error() {
    let mut bytes = to_control(&Error::new(ErrorKind::Deadlock, "circle")).unwrap();
    assert_eq!(usize::from(bytes[0]), ErrorKind::ALL.len() - 1);
    bytes[0] += 1;
    assert_eq!(from_control::<Error>(&bytes).unwrap_err().kind(), ErrorKind::Protocol);
}
