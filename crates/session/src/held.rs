//! What the registers of a worker hold.

use crate::functions::Function;
use parking_lot::Mutex;
use sheave_base::{Error, ErrorKind, Result};
use sheave_net::{Part, Parts};
use sheave_rpc::{FromValue, IntoValue};
use sheave_tensor::Tensor;
use sheave_wire::Value;
use std::any::Any;
use std::sync::Arc;

/// Something that a register holds, or an argument of a function.
#[derive(Clone)]
pub enum Held {
    /// A value and the tensors in it, which can be fetched.
    Value(Value, Vec<Tensor>),
    /// A function that later commands call.
    Function(Function),
    /// An object of the worker's own, which later commands use.
    Object(Arc<dyn Any + Send + Sync>),
}

impl Held {
    /// Makes one of a value of Rust.
    #[must_use]
    pub fn of(value: impl IntoValue) -> Self {
        let mut parts = Parts::new();
        let value = value.into_value(&mut parts);
        Self::Value(value, parts.into_iter().map(Part::into_tensor).collect())
    }

    /// Reads it as a value of Rust.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that says what it is and what was expected.
    pub fn read<T: FromValue>(&self) -> Result<T> {
        match self {
            Self::Value(value, tensors) => T::from_value(value.clone(), tensors),
            other => {
                let what = format!("{}; expected {}", other.kind_name(), T::expected());
                Err(Error::new(ErrorKind::InvalidArgument, what))
            }
        }
    }

    /// What it is, for errors.
    pub(crate) fn kind_name(&self) -> String {
        match self {
            Self::Value(value, _) => format!("a {}", value.kind_name()),
            Self::Function(function) => format!("the function {}", function.name()),
            Self::Object(_) => "an object of the worker's own".to_owned(),
        }
    }
}

impl Default for Held {
    fn default() -> Self {
        Self::Value(Value::None, Vec::new())
    }
}

/// The place of a register on a worker.
pub(crate) struct Slot(pub(crate) Mutex<Held>);

impl Slot {
    pub(crate) fn new(held: Held) -> Arc<Self> {
        Arc::new(Self(Mutex::new(held)))
    }
}

/// The same value, whose tensors stand `by` places later.
pub(crate) fn shifted(value: Value, by: u32) -> Value {
    if by == 0 { value } else { moved(value, &mut |index| index + by) }
}

/// A value of a message, with those of the message's tensors that it has in it.
pub(crate) fn picked(value: &Value, tensors: &[Tensor]) -> Held {
    let mut own = Vec::new();
    let value = moved(value.clone(), &mut |index| {
        own.extend(tensors.get(index as usize).cloned());
        own.len().saturating_sub(1) as u32
    });
    Held::Value(value, own)
}

/// The same value, whose tensors stand elsewhere.
fn moved(value: Value, place: &mut dyn FnMut(u32) -> u32) -> Value {
    let mut all = |items: Vec<Value>| items.into_iter().map(|item| moved(item, place)).collect();
    match value {
        Value::Tensor(index) => Value::Tensor(place(index)),
        Value::List(items) => Value::List(all(items)),
        Value::Tuple(items) => Value::Tuple(all(items)),
        Value::Set(items) => Value::Set(all(items)),
        Value::Map(pairs) => Value::Map(pairs.into_iter().map(|(key, item)| (key, moved(item, place))).collect()),
        Value::Dict(pairs) => {
            Value::Dict(pairs.into_iter().map(|(key, item)| (moved(key, place), moved(item, place))).collect())
        }
        Value::Slice(bounds) => Value::Slice(Box::new(bounds.map(|bound| moved(bound, place)))),
        Value::Tagged(tagged) => Value::Tagged(Box::new((tagged.0, moved(tagged.1, place)))),
        other => other,
    }
}
