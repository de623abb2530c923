//! What the fuzz targets of versioned objects do with their input. The tests here replay the corpus.
//!
//! Each takes any bytes and panics only if sheave is wrong: a decoder panicked, what it accepted is read otherwise than
//! it is written, what it refused is no error of a peer's, or changes do not make of one map what they were made from.

use super::contents::{Changes, Stored};
use super::protocol::{pushed, read_found, read_optional, read_pull, read_pushed, read_report, report, texts};
use sheave_base::{ErrorKind, Result};
use sheave_wire::{Value, codec};
use std::collections::BTreeMap;

/// The value of a message, which is read as each of those that clients and the table write.
pub fn version_words(data: &[u8]) {
    let Ok((value, _)) = codec::decode_first(data) else { return };
    if let Some(answer) = sound(read_pushed(value.clone())) {
        // Bytes, not values: a NaN differs from itself.
        let written = pushed(answer);
        let again = pushed(read_pushed(written.clone()).expect("what was written can be read"));
        assert_eq!(codec::encode(&again).ok(), codec::encode(&written).ok());
    }
    if let Some(figures) = sound(read_report(value.clone())) {
        assert_eq!(read_report(report(&figures)).expect("what was written can be read"), figures);
    }
    sound(read_pull(value.clone()));
    sound(read_optional(value.clone()));
    sound(texts(value.clone()));
    sound(read_found(value, Vec::new()));
}

/// Three values one behind the other: a map, entries that have changed, and a list of names that are removed.
pub fn version_changes(data: &[u8]) {
    let Ok((before, rest)) = codec::decode_first(data) else { return };
    let Ok((changed, rest)) = codec::decode_first(rest) else { return };
    let Ok((removed, _)) = codec::decode_first(rest) else { return };
    let (Ok(removed), Ok(stored)) = (texts(removed), Stored::of(&before, &[])) else { return };
    let Ok(changes) = Changes::of(&changed, removed.clone(), &[]) else { return };
    let Ok(after) = stored.with(&changes) else { return };
    let (Value::Map(before), Value::Map(changed)) = (before, changed) else { panic!("changes of what is no map") };
    let mut expected: BTreeMap<String, Value> = before.into_iter().collect();
    removed.iter().for_each(|name| drop(expected.remove(name)));
    expected.extend(changed);
    assert_eq!(bytes_of(&after), written(&expected), "the changes of {removed:?} were misapplied");
    if let Some(changes) = after.since(&stored) {
        let again = stored.with(&changes).expect("they are changes of it");
        assert_eq!(bytes_of(&again), written(&expected), "what has changed since is something else");
    }
}

fn sound<T>(outcome: Result<T>) -> Option<T> {
    let of_a_peer = |kind| matches!(kind, ErrorKind::Protocol | ErrorKind::InvalidArgument | ErrorKind::LimitExceeded);
    outcome.inspect_err(|error| assert!(of_a_peer(error.kind()), "{error}")).ok()
}

fn bytes_of(stored: &Stored) -> BTreeMap<String, Vec<u8>> {
    let Value::Map(entries) = stored.composed().0 else { panic!("changes made something else of a map") };
    let count = entries.len();
    let entries: BTreeMap<String, Value> = entries.into_iter().collect();
    assert_eq!(entries.len(), count, "a name is there twice");
    written(&entries)
}

fn written(entries: &BTreeMap<String, Value>) -> BTreeMap<String, Vec<u8>> {
    let bytes = |value| codec::encode(value).expect("what was read can be written");
    entries.iter().map(|(name, value)| (name.clone(), bytes(value))).collect()
}

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::super::protocol::pull;
    use super::super::{Dropped, PushOutcome, Pushed, VersionsReport, Wanted};
    use super::replay::Target;
    use super::*;

    const WORDS: Target = Target { name: "version_words", run: version_words, fixed_bytes: 64 << 10, ratio: 4096 };
    const CHANGES: Target =
        Target { name: "version_changes", run: version_changes, fixed_bytes: 64 << 10, ratio: 8192 };

    fn bytes(value: &Value) -> Vec<u8> {
        codec::encode(value).expect("it can be written")
    }

    #[test]
    fn words_about_versions_replay() {
        let dropped = vec![Dropped { key: Value::from("w"), version: Value::Int(1) }];
        let answer = |outcome, newest| pushed(Pushed { outcome, newest, dropped: dropped.clone() });
        let names = || Value::List(vec![Value::from("a"), Value::from("b")]);
        let found = |kind, value, removed| Value::List(vec![Value::Int(7), Value::Int(kind), value, removed]);
        let map = Value::Map(vec![("c".to_owned(), Value::Int(3))]);
        let seeds = [
            ("accepted", answer(PushOutcome::Accepted, Some(Value::Int(2)))),
            ("stale", answer(PushOutcome::Stale, None)),
            ("pull", pull(Value::from("w"), Wanted::Newest, true)),
            ("pull_newer", pull(Value::from("w"), Wanted::NewerThan(Value::Int(6)), false)),
            ("found", found(1, map.clone(), Value::List(Vec::new()))),
            ("found_changes", found(2, map, names())),
            ("names", names()),
            ("report", report(&VersionsReport { keys: 1, bytes: 1 << 40, removed: 7, ..VersionsReport::default() })),
        ];
        WORDS.seeds_are_current(&seeds.map(|(name, value)| (name, bytes(&value))));
        WORDS.replay();
    }

    #[test]
    fn changes_of_maps_replay() {
        let map = |entries: &[(&str, i64)]| {
            Value::Map(entries.iter().map(|(name, number)| ((*name).to_owned(), Value::Int(*number))).collect())
        };
        let seed = |before: &[(&str, i64)], changed: &[(&str, i64)], removed: &[&str]| {
            let removed = Value::List(removed.iter().map(|name| Value::from(*name)).collect());
            [map(before), map(changed), removed].iter().flat_map(bytes).collect::<Vec<u8>>()
        };
        let seeds = [
            ("none", seed(&[("a", 1)], &[], &[])),
            ("replaced", seed(&[("a", 1), ("b", 2)], &[("b", 5)], &[])),
            ("added", seed(&[("a", 1)], &[("b", 2), ("c", 3)], &[])),
            ("removed", seed(&[("a", 1), ("b", 2), ("c", 3)], &[("d", 4)], &["b", "c"])),
        ];
        CHANGES.seeds_are_current(&seeds);
        CHANGES.replay();
    }
}
