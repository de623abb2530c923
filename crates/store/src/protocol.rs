//! What workers ask of servers. Each is the argument of the method of that name of the service [`SERVICE`].

use crate::key::Key;
use crate::kind::Kind;
use crate::updater::Spec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind, Result};
use sheave_wire::{Value, from_control, to_control};

/// The name of the service.
pub(crate) const SERVICE: &str = "store";

pub(crate) const OPEN: &str = "open";
pub(crate) const INIT: &str = "init";
pub(crate) const DESCRIBE: &str = "describe";
pub(crate) const UPDATE: &str = "update";
pub(crate) const SET_UPDATER: &str = "set_updater";

/// A worker opens a store. All workers must say the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Open {
    /// Stores of one job are numbered in the order in which every worker opens them.
    pub(crate) store: u32,
    pub(crate) kind: Kind,
    pub(crate) cut_elements: u64,
}

/// A piece of a key's tensor in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Piece {
    pub(crate) number: u64,
    pub(crate) len_bytes: u64,
    /// Whether it lies in the packed tensor.
    pub(crate) packed: bool,
}

/// New keys and their first values.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Init {
    pub(crate) store: u32,
    pub(crate) keys: Vec<Described>,
    pub(crate) pieces: Vec<Piece>,
}

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Described {
    pub(crate) key: Key,
    pub(crate) dtype: u8,
    /// Of the whole tensor.
    pub(crate) shape: Vec<u64>,
}

/// Asks for the [`Described`] of keys; the answer has one for each, or none.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Describe {
    pub(crate) store: u32,
    pub(crate) numbers: Vec<u64>,
}

/// Values to merge and values to send. What is sent includes all that the worker has pushed before, and in this
/// request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Update {
    pub(crate) store: u32,
    pub(crate) push: Vec<Piece>,
    pub(crate) pull: Vec<Piece>,
}

/// Another updater for all keys of a store.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SetUpdater {
    pub(crate) store: u32,
    pub(crate) updater: Spec,
    /// Only says whether it could be done: all servers change, or none.
    pub(crate) is_trial: bool,
}

pub(crate) fn encode<T: Serialize>(head: &T) -> Result<Value> {
    to_control(head).map(Value::Bytes)
}

pub(crate) fn decode<T: DeserializeOwned>(args: &Value) -> Result<T> {
    match args {
        Value::Bytes(bytes) => from_control(bytes),
        other => Err(Error::new(ErrorKind::Protocol, format!("a {} in place of a request", other.kind_name()))),
    }
}
