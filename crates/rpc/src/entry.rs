//! Names of entries in a directory.

use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind, NodeId, Result, limits};
use sheave_mesh::ServiceName;
use sheave_wire::{Value, codec};
use std::fmt;

/// Kinds of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Sort {
    /// Something that is called.
    Service,
    /// Something that is held.
    Value,
}

impl fmt::Display for Sort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Service => "service",
            Self::Value => "value",
        })
    }
}

/// A group of one time: its name, the first of its members, and the number that this one has given it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct GroupName {
    pub(crate) name: String,
    pub(crate) first: NodeId,
    pub(crate) generation: u64,
}

/// The sort and the key of an entry. Keys are values: two are the same if they are written alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct EntryName {
    pub(crate) sort: Sort,
    key: Vec<u8>,
}

impl EntryName {
    /// The name of an entry with this key.
    ///
    /// Fails with `InvalidArgument` for a key of more than [`limits::RPC_KEY_BYTES_MAX`] bytes, or with tensors or
    /// references in it.
    pub(crate) fn new(sort: Sort, key: &Value) -> Result<Self> {
        Ok(Self { sort, key: plain("key", key)? })
    }

    /// The bytes that it takes in a message, about.
    pub(crate) fn len_bytes(&self) -> usize {
        self.key.len() + 16
    }

    fn key_text(&self) -> String {
        codec::decode(&self.key).map_or_else(|_| format!("{:?}", self.key), |key| text_of(&key))
    }

    /// The name under which a member serves it. It is the same in later groups of the name: each name that is called
    /// has a window for as long as its link lasts.
    pub(crate) fn service(&self, group: &str) -> ServiceName {
        // The length tells where the group's name ends, which may have any characters.
        ServiceName::from(format!("rpc.{}.{group}/{}", group.len(), self.key_text()))
    }
}

/// How a plain value is written, which says what it is the same as. `what` is what it is used as, for errors.
pub(crate) fn plain(what: &str, value: &Value) -> Result<Vec<u8>> {
    value.try_visit(&mut |value| match value {
        Value::Tensor(_) | Value::Ref { .. } => {
            let error = Error::new(ErrorKind::InvalidArgument, format!("a {what} with a {} in it", value.kind_name()));
            Err(error.hint(format!("a {what} is a plain value, such as a text, a number or a tuple of them")))
        }
        _ => Ok(()),
    })?;
    let bytes = codec::encode(value)?;
    if bytes.len() > limits::RPC_KEY_BYTES_MAX {
        let what = format!("a {what} of {} bytes; the limit is {}", bytes.len(), limits::RPC_KEY_BYTES_MAX);
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    Ok(bytes)
}

/// The text of a key. Those of keys that differ do too.
pub(crate) fn text_of(key: &Value) -> String {
    let listed = |items: &[Value]| items.iter().map(text_of).collect::<Vec<_>>().join(", ");
    match key {
        Value::None => "none".to_owned(),
        Value::Bool(truth) => truth.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => format!("{number:?}"),
        Value::Str(text) => format!("{text:?}"),
        // One of a single item is no item in brackets.
        Value::Tuple(items) if items.len() == 1 => format!("({},)", listed(items)),
        Value::Tuple(items) => format!("({})", listed(items)),
        Value::List(items) => format!("[{}]", listed(items)),
        other => format!("{other:?}"),
    }
}

impl fmt::Display for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.sort, self.key_text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_differ_are_served_under_names_that_differ() {
        let name = |group: &str, key: &Value| {
            let entry = EntryName::new(Sort::Service, key).expect("a key");
            entry.service(group).as_str().to_owned()
        };
        let one = || vec![Value::Int(1)];
        let keys = [
            Value::from("1"),
            Value::Int(1),
            Value::Float(1.0),
            Value::Bool(true),
            Value::from("true"),
            Value::Tuple(one()),
            Value::List(one()),
            Value::List(vec![Value::Tuple(one())]),
            Value::None,
        ];
        let mut names: Vec<String> = keys.iter().map(|key| name("g", key)).collect();
        let pair = Value::Tuple(vec![Value::from("a"), Value::Int(1)]);
        assert_eq!(name("g", &pair), "rpc.1.g/(\"a\", 1)");
        names.extend([name("g/", &keys[0]), name("g/\"1", &Value::from("2"))]);
        let distinct: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let refused = |key: &Value| EntryName::new(Sort::Value, key).expect_err("no key").kind();
        assert_eq!(refused(&Value::Tensor(0)), ErrorKind::InvalidArgument);
        assert_eq!(refused(&Value::Bytes(vec![0; limits::RPC_KEY_BYTES_MAX + 1])), ErrorKind::InvalidArgument);
    }
}
