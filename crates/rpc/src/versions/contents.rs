//! Values with their tensors, as they are pushed, kept and pulled.
//!
//! A map is kept entry by entry, each with its own tensors and behind an [`Arc`], so that versions share what has not
//! changed between them, and two versions differ in just those entries whose handles do. An [`Item`] never changes once
//! it is made, so what a reader was given stays what it was, whatever becomes of the version.

use crate::values::IntoValue;
use sheave_base::collections::{HashMap, HashSet};
use sheave_base::{Error, ErrorKind, Result};
use sheave_net::{Parts, Tensors};
use sheave_tensor::Tensor;
use sheave_wire::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What a value in memory takes beside its texts, bytes and tensors, about.
const VALUE_BYTES: u64 = 32;

/// A value and its tensors, on their way to a table. A [`Value::Tensor`] is an index into `tensors`.
#[derive(Debug, Default)]
pub struct Entry {
    /// The value.
    pub value: Value,
    /// Its tensors, and how they leave.
    pub tensors: Parts,
}

impl Entry {
    /// Returns an entry of a value and its tensors.
    #[must_use]
    pub fn new(value: impl Into<Value>, tensors: Parts) -> Self {
        Self { value: value.into(), tensors }
    }

    /// Returns an entry of a value without tensors.
    #[must_use]
    pub fn from_value(value: impl Into<Value>) -> Self {
        Self::new(value, Parts::new())
    }

    /// Returns the entry of a value of Rust, whose tensors go by copy.
    ///
    /// ```
    /// use sheave_rpc::Entry;
    /// use sheave_tensor::Tensor;
    /// use std::collections::BTreeMap;
    ///
    /// let weights = Tensor::from_slice(&[0.5_f32, -1.0], [2])?;
    /// let entry = Entry::of(BTreeMap::from([("weights".to_owned(), weights)]));
    /// assert_eq!((entry.value.kind_name(), entry.tensors.len()), ("map", 1));
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    #[must_use]
    pub fn of(value: impl IntoValue) -> Self {
        let mut tensors = Parts::new();
        let value = value.into_value(&mut tensors);
        Self { value, tensors }
    }
}

/// A part of a version: the value of one entry of a map, or a whole value that is none.
#[derive(Debug)]
pub(super) struct Item {
    value: Value,
    tensors: Tensors,
    bytes: u64,
    /// How many versions of the table have it. Read and written under the lock of the table alone.
    versions: AtomicUsize,
}

impl Item {
    fn new(value: &Value, tensors: &[Tensor]) -> Result<Arc<Self>> {
        let mut own = Tensors::new();
        let mut missing = None;
        let value = value.clone().with_tensors_at(&mut |index| {
            match tensors.get(index as usize) {
                Some(tensor) => own.push(tensor.clone()),
                None => missing = Some(index),
            }
            own.len().saturating_sub(1) as u32
        });
        if let Some(index) = missing {
            let what = format!("tensor {index} of an entry with {} tensors", tensors.len());
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let bytes = weight_bytes(&value)? + own.iter().map(|tensor| tensor.len_bytes() as u64).sum::<u64>();
        Ok(Arc::new(Self { value, tensors: own, bytes, versions: AtomicUsize::new(0) }))
    }

    /// One version more has it. Returns the bytes that it takes if it is the first.
    pub(super) fn enter(&self) -> u64 {
        if self.versions.fetch_add(1, Relaxed) == 0 { self.bytes } else { 0 }
    }

    /// One version less has it. Returns the bytes that are free if it was the last.
    pub(super) fn leave(&self) -> u64 {
        if self.versions.fetch_sub(1, Relaxed) == 1 { self.bytes } else { 0 }
    }
}

pub(super) type Named = (Arc<str>, Arc<Item>);

/// The value of a version.
#[derive(Clone, Debug)]
pub(super) enum Stored {
    Whole(Arc<Item>),
    /// The entries of a map, in their order.
    Map(Arc<Vec<Named>>),
}

/// What has changed in a map.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    pub(super) changed: Vec<Named>,
    pub(super) removed: Vec<Arc<str>>,
}

impl Changes {
    /// Reads entries to be replaced or added, and the names of those to be removed.
    pub(super) fn of(changed: &Value, removed: Vec<String>, tensors: &[Tensor]) -> Result<Self> {
        let Value::Map(entries) = changed else {
            let what = format!("changes that are a {}; expected a map", changed.kind_name());
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        };
        let changed = named(entries, tensors)?;
        let names: HashSet<&str> = changed.iter().map(|(name, _)| &**name).collect();
        if let Some(name) = removed.iter().find(|name| names.contains(name.as_str())) {
            let what = format!("changes that both set and remove {name:?}");
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let removed = removed.into_iter().map(Arc::from).collect();
        Ok(Self { changed, removed })
    }
}

fn named(entries: &[(String, Value)], tensors: &[Tensor]) -> Result<Vec<Named>> {
    let mut names = HashSet::default();
    entries
        .iter()
        .map(|(name, value)| {
            if !names.insert(name.as_str()) {
                return Err(Error::new(ErrorKind::InvalidArgument, format!("a map that names {name:?} twice")));
            }
            Ok((Arc::from(name.as_str()), Item::new(value, tensors)?))
        })
        .collect()
}

impl Stored {
    pub(super) fn of(value: &Value, tensors: &[Tensor]) -> Result<Self> {
        match value {
            Value::Map(entries) => Ok(Self::Map(Arc::new(named(entries, tensors)?))),
            other => Ok(Self::Whole(Item::new(other, tensors)?)),
        }
    }

    /// Its items.
    pub(super) fn items(&self) -> impl Iterator<Item = &Arc<Item>> {
        let (whole, entries) = match self {
            Self::Whole(item) => (Some(item), &[][..]),
            Self::Map(entries) => (None, entries.as_slice()),
        };
        whole.into_iter().chain(entries.iter().map(|(_, item)| item))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.items().map(|item| item.bytes).sum()
    }

    pub(super) fn tensors_count(&self) -> usize {
        self.items().map(|item| item.tensors.len()).sum()
    }

    /// The same map with these changes: replaced entries stay in their places, new ones come last.
    pub(super) fn with(&self, changes: &Changes) -> Result<Self> {
        let Self::Map(entries) = self else {
            return Err(Error::new(ErrorKind::InvalidArgument, "changes of a value that is no map")
                .hint("push the whole value"));
        };
        let mut changed: HashMap<&str, &Arc<Item>> =
            changes.changed.iter().map(|(name, item)| (&**name, item)).collect();
        let mut removed: HashSet<&str> = changes.removed.iter().map(|name| &**name).collect();
        let mut made = Vec::with_capacity(entries.len() + changed.len());
        for (name, item) in entries.iter() {
            if !removed.remove(&**name) {
                made.push((Arc::clone(name), Arc::clone(changed.remove(&**name).unwrap_or(item))));
            }
        }
        if let Some(name) = removed.iter().min() {
            let what = format!("entry {name:?}, which is to be removed, is not in the version before");
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        let is_new = |(name, _): &&Named| changed.contains_key(&**name);
        made.extend(changes.changed.iter().filter(is_new).cloned());
        Ok(Self::Map(Arc::new(made)))
    }

    /// What has changed from `before` to this, if both are maps that have an entry in common.
    pub(super) fn since(&self, before: &Self) -> Option<Changes> {
        let (Self::Map(entries), Self::Map(before)) = (self, before) else { return None };
        let mut known: HashMap<&str, &Arc<Item>> = before.iter().map(|(name, item)| (&**name, item)).collect();
        let mut changed = Vec::new();
        for (name, item) in entries.iter() {
            if known.remove(&**name).is_none_or(|known| !Arc::ptr_eq(known, item)) {
                changed.push((Arc::clone(name), Arc::clone(item)));
            }
        }
        if changed.len() == entries.len() {
            return None;
        }
        // In their order there.
        let removed = before.iter().map(|(name, _)| name).filter(|name| known.contains_key(&***name));
        Some(Changes { changed, removed: removed.cloned().collect() })
    }

    /// The value and its tensors.
    pub(super) fn composed(&self) -> (Value, Vec<Tensor>) {
        match self {
            Self::Whole(item) => (item.value.clone(), item.tensors.to_vec()),
            Self::Map(entries) => composed(entries),
        }
    }
}

/// The map of these entries, and its tensors.
pub(super) fn composed(entries: &[Named]) -> (Value, Vec<Tensor>) {
    let mut tensors = Vec::new();
    let entries = entries.iter().map(|(name, item)| {
        let first = tensors.len() as u32;
        tensors.extend(item.tensors.iter().cloned());
        (name.to_string(), item.value.clone().with_tensors_at(&mut |index| first + index))
    });
    (Value::Map(entries.collect()), tensors)
}

/// How much memory a value takes beside its tensors, about. Fails for references, which a table cannot hold.
fn weight_bytes(value: &Value) -> Result<u64> {
    let mut bytes = 0;
    value.try_visit(&mut |value| {
        bytes += VALUE_BYTES;
        bytes += match value {
            Value::Str(text) => text.len() as u64,
            Value::Bytes(own) | Value::Pickle(own) | Value::Integer(own) => own.len() as u64,
            Value::Shape(dimensions) => 8 * dimensions.len() as u64,
            Value::Map(entries) => entries.iter().map(|(name, _)| VALUE_BYTES + name.len() as u64).sum(),
            Value::Tagged(tagged) => tagged.0.len() as u64,
            Value::Ref { .. } => {
                let error = Error::new(ErrorKind::InvalidArgument, "a reference in a value with versions");
                return Err(error.hint("references travel in calls alone, where they are counted; push the value"));
            }
            _ => 0,
        };
        Ok(())
    })?;
    Ok(bytes)
}

/// What was pulled.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// The version.
    pub version: Value,
    /// Its contents, or what of them has moved.
    pub contents: Contents,
}

/// What of a version has moved.
#[derive(Clone, Debug)]
pub enum Contents {
    /// Nothing: it is the one that the reader has.
    Unchanged,
    /// All of it.
    Whole {
        /// The value. A [`Value::Tensor`] in it is an index into `tensors`.
        value: Value,
        /// Its tensors.
        tensors: Vec<Tensor>,
    },
    /// The entries of a map that have changed since the version that the reader has.
    Changes {
        /// Entries to be replaced or added: a map, whose tensors are indices into `tensors`.
        changed: Value,
        /// Their tensors.
        tensors: Vec<Tensor>,
        /// The names of entries that are not there any more.
        removed: Vec<String>,
    },
}

impl Pulled {
    /// Returns whether nothing has moved, because the reader has the newest version.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        matches!(self.contents, Contents::Unchanged)
    }

    /// Returns the value and its tensors, of which `before` is what the reader has. Entries that have not changed keep
    /// their places in a map, and their tensors are those of `before`.
    ///
    /// ```
    /// use sheave_rpc::{Contents, Pulled};
    /// use sheave_wire::Value;
    ///
    /// let map = |entries: &[(&str, i64)]| {
    ///     Value::Map(entries.iter().map(|(name, number)| ((*name).to_owned(), Value::Int(*number))).collect())
    /// };
    /// let changed = map(&[("b", 5)]);
    /// let contents = Contents::Changes { changed, tensors: Vec::new(), removed: vec!["c".to_owned()] };
    /// let pulled = Pulled { version: Value::Int(2), contents };
    /// let (value, _) = pulled.applied_to((map(&[("a", 1), ("b", 2), ("c", 3)]), Vec::new()))?;
    /// assert_eq!(value, map(&[("a", 1), ("b", 5)]));
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidArgument` or `NotFound` for a `before` that is not what the changes are of.
    pub fn applied_to(self, before: (Value, Vec<Tensor>)) -> Result<(Value, Vec<Tensor>)> {
        match self.contents {
            Contents::Unchanged => Ok(before),
            Contents::Whole { value, tensors } => Ok((value, tensors)),
            Contents::Changes { changed, tensors, removed } => {
                let changes = Changes::of(&changed, removed, &tensors)?;
                Ok(Stored::of(&before.0, &before.1)?.with(&changes)?.composed())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(number: i64) -> Tensor {
        Tensor::from_slice(&[number], [1]).expect("it fits")
    }

    fn map(entries: &[(&str, u32)]) -> Value {
        Value::Map(entries.iter().map(|(name, at)| ((*name).to_owned(), Value::Tensor(*at))).collect())
    }

    fn read(stored: &Stored) -> Vec<(String, i64)> {
        let (value, tensors) = stored.composed();
        let Value::Map(entries) = value else { panic!("a map") };
        let number = |value: &Value| match value {
            Value::Tensor(at) => tensors[*at as usize].to_vec::<i64>().expect("it is i64")[0],
            other => panic!("{other:?}"),
        };
        entries.iter().map(|(name, value)| (name.clone(), number(value))).collect()
    }

    #[test]
    fn versions_share_what_has_not_changed() {
        let first = Stored::of(&map(&[("a", 0), ("b", 1), ("c", 0)]), &[tensor(1), tensor(2)]).expect("a map");
        let changes = Changes::of(&map(&[("d", 0), ("b", 1)]), vec!["c".into()], &[tensor(4), tensor(5)]);
        let second = first.with(&changes.expect("a map")).expect("both are maps");
        let pairs = |list: &[(&str, i64)]| list.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect::<Vec<_>>();
        assert_eq!(read(&first), pairs(&[("a", 1), ("b", 2), ("c", 1)]));
        assert_eq!(read(&second), pairs(&[("a", 1), ("b", 5), ("d", 4)]));
        let since = second.since(&first).expect("one entry is the same");
        let names: Vec<&str> = since.changed.iter().map(|(name, _)| &**name).collect();
        assert_eq!((names, since.removed), (vec!["b", "d"], vec![Arc::from("c")]));
        let again = first.with(&second.since(&first).expect("as above")).expect("both are maps");
        assert_eq!(read(&again), read(&second));
        assert!(second.since(&Stored::of(&map(&[]), &[]).expect("a map")).is_none(), "all of it is new");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let kind = |outcome: Result<Stored>| outcome.map(drop).expect_err("it makes no sense").kind();
        assert_eq!(kind(Stored::of(&map(&[("a", 0), ("a", 0)]), &[tensor(1)])), ErrorKind::InvalidArgument);
        assert_eq!(kind(Stored::of(&Value::Tensor(1), &[tensor(1)])), ErrorKind::InvalidArgument);
        let reference = Value::Ref { node: sheave_base::NodeId(1), id: 2 };
        assert_eq!(kind(Stored::of(&reference, &[])), ErrorKind::InvalidArgument);
        let whole = Stored::of(&Value::Int(1), &[]).expect("a value");
        assert_eq!(kind(whole.with(&Changes::default())), ErrorKind::InvalidArgument);
        let missing = Changes { removed: vec![Arc::from("x")], ..Changes::default() };
        assert_eq!(kind(Stored::of(&map(&[]), &[]).expect("a map").with(&missing)), ErrorKind::NotFound);
        let both = Changes::of(&map(&[("a", 0)]), vec!["a".into()], &[tensor(1)]);
        assert_eq!(both.map(drop).expect_err("both").kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn bytes_count_once_however_many_versions_have_an_item() {
        let stored = Stored::of(&Value::Tensor(0), &[tensor(1)]).expect("a tensor");
        let item = stored.items().next().expect("one");
        assert_eq!((item.enter(), item.enter(), item.leave(), item.leave()), (40, 0, 0, 40));
        assert_eq!(stored.bytes(), 40);
    }
}
