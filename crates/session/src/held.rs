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
    /// An object of another language.
    Foreign(Arc<dyn Foreign>),
}

/// An object of another language: functions of that language get it as it is, all others get what it stands for.
pub trait Foreign: Any + Send + Sync {
    /// What it is, for errors, with its article: `a dict`.
    fn kind_name(&self) -> String;

    /// Returns the value that it stands for, whose tensors are the object's own memory where it has some: who writes
    /// them writes the object.
    ///
    /// # Errors
    ///
    /// `Unsupported` if it stands for none.
    fn value(&self) -> Result<(Value, Vec<Tensor>)>;

    /// Returns the tensor that it stands for, to be written: the memory is the object's own.
    ///
    /// # Errors
    ///
    /// As [`Foreign::value`], and what says why its memory cannot be written as a tensor.
    fn target(&self) -> Result<Tensor> {
        let (value, tensors) = self.value()?;
        Tensor::from_value(value, &tensors)
    }

    /// Returns the function that it is, if it can be called.
    fn function(&self) -> Option<Function>;
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
            Self::Foreign(object) => {
                let (value, tensors) = object.value()?;
                T::from_value(value, &tensors)
            }
            other => {
                let what = format!("{}; expected {}", other.kind_name(), T::expected());
                Err(Error::new(ErrorKind::InvalidArgument, what))
            }
        }
    }

    /// The value that it is or stands for, and its tensors, which are its own memory.
    ///
    /// # Errors
    ///
    /// `Unsupported` if it is something that stays where it is.
    pub fn to_value(&self) -> Result<(Value, Vec<Tensor>)> {
        match self {
            Self::Value(value, tensors) => Ok((value.clone(), tensors.clone())),
            Self::Foreign(object) => object.value(),
            other => Err(Error::new(ErrorKind::Unsupported, format!("{} stays where it is", other.kind_name()))
                .hint("call a function on the worker that makes a value of it")),
        }
    }

    /// The tensor that it is or stands for, to be written in place.
    pub(crate) fn to_target(&self) -> Result<Tensor> {
        match self {
            Self::Foreign(object) => object.target(),
            other => other.read(),
        }
    }

    /// The function that it is, if it can be called.
    pub fn to_function(&self) -> Option<Function> {
        match self {
            Self::Function(function) => Some(function.clone()),
            Self::Foreign(object) => object.function(),
            _ => None,
        }
    }

    /// What it is, for errors.
    pub(crate) fn kind_name(&self) -> String {
        match self {
            Self::Value(value, _) => format!("a {}", value.kind_name()),
            Self::Function(function) => format!("the function {}", function.name()),
            Self::Object(_) => "an object of the worker's own".to_owned(),
            Self::Foreign(object) => object.kind_name(),
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
    if by == 0 { value } else { value.with_tensors_at(&mut |index| index + by) }
}

/// A value of a message, with those of the message's tensors that it has in it.
pub(crate) fn picked(value: &Value, tensors: &[Tensor]) -> Held {
    let mut own = Vec::new();
    let value = value.clone().with_tensors_at(&mut |index| {
        own.extend(tensors.get(index as usize).cloned());
        own.len().saturating_sub(1) as u32
    });
    Held::Value(value, own)
}
