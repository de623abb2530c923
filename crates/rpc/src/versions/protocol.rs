//! What clients and the table say to each other.
//!
//! | method | arguments | answer |
//! |---|---|---|
//! | `push` | key, version, previous version or none, value | outcome, newest version or none, what was dropped |
//! | `changes` | the same with a map as the value, and names of removed entries | the same |
//! | `pull` | key, which kind of version, that version, whether memory may be shared | nothing, or what was found |
//! | `watch` | number, key, version that the caller has or none, whether memory may be shared | as `pull`, later |
//! | `unwatch` | number, key | nothing |
//! | `pin` | number, key, version or none, lease in nanoseconds | the version or none |
//! | `release` | number | whether there was such a pin |
//! | `versions` | key | a list of them |
//! | `remove` | key | whether it was there |
//! | `report` | nothing | a list of numbers |
//!
//! A version or none is a list of one or of nothing, for none is a version. What was found is a list: the version, the
//! kind, the value or the changed entries, and the names of the removed ones.

use super::contents::{self, Contents, Pulled};
use super::table::{Found, Name, Want};
use super::{Dropped, PushOutcome, Pushed, VersionsReport, Wanted};
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::Tensor;
use sheave_wire::Value;

pub(super) const PUSH: &str = "push";
pub(super) const CHANGES: &str = "changes";
pub(super) const PULL: &str = "pull";
pub(super) const WATCH: &str = "watch";
pub(super) const UNWATCH: &str = "unwatch";
pub(super) const PIN: &str = "pin";
pub(super) const RELEASE: &str = "release";
pub(super) const VERSIONS: &str = "versions";
pub(super) const REMOVE: &str = "remove";
pub(super) const REPORT: &str = "report";

/// Kinds of wanted versions.
const NEWEST: i64 = 0;
const VERSION: i64 = 1;
const NEWER_THAN: i64 = 2;

/// Kinds of what was found.
const UNCHANGED: i64 = 0;
const WHOLE: i64 = 1;
const SOME: i64 = 2;

/// By its number, how a push may end.
const OUTCOMES: [PushOutcome; 5] = [
    PushOutcome::Accepted,
    PushOutcome::Overwritten,
    PushOutcome::Stale,
    PushOutcome::AlreadyExists,
    PushOutcome::Pinned,
];

pub(super) fn unreadable() -> Error {
    Error::new(ErrorKind::Protocol, "a message about versions that no table has written")
        .hint("run the same release of sheave on all sides")
}

pub(super) fn listed<const COUNT: usize>(value: Value) -> Result<[Value; COUNT]> {
    let Value::List(items) = value else { return Err(unreadable()) };
    items.try_into().map_err(|_| unreadable())
}

pub(super) fn optional(value: Option<Value>) -> Value {
    Value::List(value.into_iter().collect())
}

pub(super) fn read_optional(value: Value) -> Result<Option<Value>> {
    match value {
        Value::List(items) if items.len() < 2 => Ok(items.into_iter().next()),
        _ => Err(unreadable()),
    }
}

pub(super) fn number(value: &Value) -> Result<u64> {
    match value {
        Value::Int(number) => Ok(number.cast_unsigned()),
        _ => Err(unreadable()),
    }
}

pub(super) fn truth(value: &Value) -> Result<bool> {
    match value {
        Value::Bool(truth) => Ok(*truth),
        _ => Err(unreadable()),
    }
}

pub(super) fn texts(value: Value) -> Result<Vec<String>> {
    let Value::List(items) = value else { return Err(unreadable()) };
    let text = |item| match item {
        Value::Str(text) => Ok(text),
        _ => Err(unreadable()),
    };
    items.into_iter().map(text).collect()
}

fn list_of_texts(texts: impl IntoIterator<Item = impl Into<String>>) -> Value {
    Value::List(texts.into_iter().map(|text| Value::Str(text.into())).collect())
}

pub(super) fn push(key: Value, version: Value, previous: Option<Value>, value: Value) -> Value {
    Value::List(vec![key, version, optional(previous), value])
}

pub(super) fn changes(
    (key, version): (Value, Value),
    previous: Value,
    changed: Value,
    removed: impl IntoIterator<Item = impl Into<String>>,
) -> Value {
    Value::List(vec![key, version, optional(Some(previous)), changed, list_of_texts(removed)])
}

/// The answer to a push.
pub(super) fn pushed(pushed: Pushed) -> Value {
    let at = OUTCOMES.iter().position(|outcome| *outcome == pushed.outcome).unwrap_or(OUTCOMES.len());
    let dropped = pushed.dropped.into_iter().flat_map(|dropped| [dropped.key, dropped.version]).collect();
    Value::List(vec![Value::Int(at as i64), optional(pushed.newest), Value::List(dropped)])
}

pub(super) fn read_pushed(value: Value) -> Result<Pushed> {
    let [outcome, newest, dropped] = listed(value)?;
    let outcome = *usize::try_from(number(&outcome)?).ok().and_then(|at| OUTCOMES.get(at)).ok_or_else(unreadable)?;
    let Value::List(names) = dropped else { return Err(unreadable()) };
    let (mut names, mut dropped) = (names.into_iter(), Vec::new());
    while let Some(key) = names.next() {
        dropped.push(Dropped { key, version: names.next().ok_or_else(unreadable)? });
    }
    Ok(Pushed { outcome, newest: read_optional(newest)?, dropped })
}

pub(super) fn pull(key: Value, wanted: Wanted, may_share: bool) -> Value {
    let (kind, version) = match wanted {
        Wanted::Newest => (NEWEST, Value::None),
        Wanted::Version(version) => (VERSION, version),
        Wanted::NewerThan(version) => (NEWER_THAN, version),
    };
    Value::List(vec![key, Value::Int(kind), version, Value::Bool(may_share)])
}

pub(super) fn read_pull(args: Value) -> Result<(Name, Want, bool)> {
    let [key, kind, version, may_share] = listed(args)?;
    let wanted = match kind {
        Value::Int(NEWEST) => Wanted::Newest,
        Value::Int(VERSION) => Wanted::Version(version),
        Value::Int(NEWER_THAN) => Wanted::NewerThan(version),
        _ => return Err(unreadable()),
    };
    Ok((Name::key(key)?, want(wanted)?, truth(&may_share)?))
}

pub(super) fn want(wanted: Wanted) -> Result<Want> {
    Ok(match wanted {
        Wanted::Newest => Want::Newest,
        Wanted::Version(version) => Want::Version(Name::version(version)?),
        Wanted::NewerThan(version) => Want::NewerThan(Name::version(version)?),
    })
}

/// The answer to a pull, and its tensors.
pub(super) fn found(found: Option<(Name, Found)>) -> (Value, Vec<Tensor>) {
    let Some((version, found)) = found else { return (Value::None, Vec::new()) };
    let (kind, (value, tensors), removed) = match found {
        Found::Unchanged => (UNCHANGED, (Value::None, Vec::new()), Vec::new()),
        Found::Whole(stored) => (WHOLE, stored.composed(), Vec::new()),
        Found::Changes(changes) => (SOME, contents::composed(&changes.changed), changes.removed),
    };
    let removed = list_of_texts(removed.iter().map(|name| &**name));
    (Value::List(vec![version.value, Value::Int(kind), value, removed]), tensors)
}

pub(super) fn read_found(value: Value, tensors: Vec<Tensor>) -> Result<Option<Pulled>> {
    if value == Value::None {
        return Ok(None);
    }
    let [version, kind, value, removed] = listed(value)?;
    let contents = match kind {
        Value::Int(UNCHANGED) => Contents::Unchanged,
        Value::Int(WHOLE) => Contents::Whole { value, tensors },
        Value::Int(SOME) => Contents::Changes { changed: value, tensors, removed: texts(removed)? },
        _ => return Err(unreadable()),
    };
    Ok(Some(Pulled { version, contents }))
}

pub(super) fn report(report: &VersionsReport) -> Value {
    let numbers = [
        report.keys as u64,
        report.versions as u64,
        report.bytes,
        report.watches as u64,
        report.pins as u64,
        report.accepted,
        report.refused,
        report.dropped_for_depth,
        report.dropped_for_bytes,
        report.removed,
    ];
    Value::List(numbers.into_iter().map(|number| Value::Int(number.cast_signed())).collect())
}

pub(super) fn read_report(value: Value) -> Result<VersionsReport> {
    let numbers: [Value; 10] = listed(value)?;
    let numbers: Vec<u64> = numbers.iter().map(number).collect::<Result<_>>()?;
    Ok(VersionsReport {
        keys: numbers[0] as usize,
        versions: numbers[1] as usize,
        bytes: numbers[2],
        watches: numbers[3] as usize,
        pins: numbers[4] as usize,
        accepted: numbers[5],
        refused: numbers[6],
        dropped_for_depth: numbers[7],
        dropped_for_bytes: numbers[8],
        removed: numbers[9],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_arrive_as_they_were_sent() {
        let dropped = vec![Dropped { key: Value::from("w"), version: Value::None }];
        for outcome in OUTCOMES {
            for newest in [None, Some(Value::None), Some(Value::Int(3))] {
                let sent = Pushed { outcome, newest, dropped: dropped.clone() };
                assert_eq!(read_pushed(pushed(sent.clone())).expect("it was written so"), sent);
            }
        }
        let sent = VersionsReport { keys: 1, bytes: u64::MAX, removed: 7, ..VersionsReport::default() };
        assert_eq!(read_report(report(&sent)).expect("it was written so"), sent);
        let (key, want, may_share) =
            read_pull(pull(Value::from("w"), Wanted::NewerThan(Value::None), true)).expect("it was written so");
        assert!(matches!(want, Want::NewerThan(version) if version.value == Value::None));
        assert_eq!((key.value, may_share), (Value::from("w"), true));
        assert!(read_found(found(None).0, Vec::new()).expect("it was written so").is_none());
    }

    #[test]
    fn nonsense_is_refused() {
        for value in [Value::Int(1), Value::List(Vec::new()), Value::List(vec![Value::Bool(true); 4])] {
            assert!(read_pull(value.clone()).is_err() && read_pushed(value.clone()).is_err());
            assert!(read_found(value.clone(), Vec::new()).is_err() && read_report(value).is_err());
        }
    }
}
