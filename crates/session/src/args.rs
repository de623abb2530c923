//! Arguments of commands.

use crate::collective::Placement;
use crate::register::Register;
use sheave_base::{Error, ErrorKind, Result, limits};
use sheave_net::{Part, Parts};
use sheave_rpc::IntoValue;
use sheave_tensor::{Mode, ReadLease, Tensor};
use sheave_wire::Value;
use std::convert::Infallible;

/// Short arguments are so many at most.
const SHORT_COUNT_MAX: usize = 16;

/// A short text has so many bytes at most.
const SHORT_BYTES_MAX: usize = 64;

/// Bytes of a written value at most, beside texts, bytes and what else has no fixed length.
const ITEM_BYTES_MAX: usize = 32;

/// Returns how many bytes a value takes at most when it is written.
fn bytes_max(value: &Value) -> usize {
    let mut bytes = 0;
    let Ok(()) = value.try_visit(&mut |value| {
        bytes += ITEM_BYTES_MAX;
        bytes += match value {
            Value::Str(text) => text.len(),
            Value::Bytes(long) | Value::Pickle(long) | Value::Integer(long) => long.len(),
            Value::Shape(dimensions) => ITEM_BYTES_MAX * dimensions.len(),
            Value::Map(entries) => entries.iter().map(|(name, _)| name.len() + ITEM_BYTES_MAX).sum(),
            Value::Tagged(tagged) => tagged.0.len(),
            _ => 0,
        };
        Ok::<_, Infallible>(())
    });
    bytes
}

/// The arguments of a command: values, which are the same for all workers, and registers, of which each worker takes
/// its own.
///
/// ```
/// use sheave_session::Args;
///
/// let args = Args::new().value(1).value("text").value(vec![1.5, 2.0]);
/// assert_eq!(args.len(), 3);
/// ```
#[derive(Clone, Default)]
pub struct Args {
    items: Vec<Item>,
    tensors: Vec<Tensor>,
}

#[derive(Clone)]
pub(crate) enum Item {
    Value(Value),
    Register(Register),
    /// A tensor for some workers, in groups of this size.
    Placed(Tensor, Placement, u32),
}

impl Args {
    /// Makes arguments without any.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value. Its tensors are captured when the command is issued.
    #[must_use]
    pub fn value(mut self, value: impl IntoValue) -> Self {
        let mut parts = Parts::new();
        let value = value.into_value(&mut parts);
        let by = u32::try_from(self.tensors.len()).unwrap_or(u32::MAX);
        self.items.push(Item::Value(crate::held::shifted(value, by)));
        self.tensors.extend(parts.into_iter().map(Part::into_tensor));
        self
    }

    /// Adds a register.
    #[must_use]
    pub fn register(mut self, register: &Register) -> Self {
        self.items.push(Item::Register(register.clone()));
        self
    }

    /// Adds a tensor for some workers of a session with groups of this size; the others get none. It is captured when
    /// the command is issued.
    #[must_use]
    pub fn placed(mut self, tensor: &Tensor, placement: Placement, group_size: u32) -> Self {
        self.items.push(Item::Placed(tensor.clone(), placement, group_size));
        self
    }

    /// Returns how many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) fn items(&self) -> &[Item] {
        &self.items
    }

    /// The registers in them.
    pub(crate) fn registers(&self) -> impl Iterator<Item = &Register> {
        self.items.iter().filter_map(|item| match item {
            Item::Register(register) => Some(register),
            Item::Value(_) | Item::Placed(..) => None,
        })
    }

    /// Whether all are registers, or values that are short however they are written.
    pub(crate) fn are_short(&self) -> bool {
        let is_short = |item: &Item| match item {
            Item::Register(_) | Item::Value(Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_)) => true,
            Item::Value(Value::Str(text)) => text.len() <= SHORT_BYTES_MAX,
            Item::Value(_) | Item::Placed(..) => false,
        };
        self.items.len() <= SHORT_COUNT_MAX && self.items.iter().all(is_short)
    }

    /// Returns how many bytes they take at most when they are written.
    pub(crate) fn bytes_max(&self) -> usize {
        let bytes = |item: &Item| match item {
            Item::Value(value) => bytes_max(value),
            Item::Register(_) | Item::Placed(..) => ITEM_BYTES_MAX,
        };
        self.items.iter().map(bytes).sum()
    }

    /// Keeps others from writing the tensors until all workers have got the same; refuses those that are being written,
    /// and more of them than a message may have, before any worker has got one.
    pub(crate) fn hold(&self) -> Result<Vec<ReadLease>> {
        let placed = self.items.iter().filter_map(|item| match item {
            Item::Placed(tensor, ..) => Some(tensor),
            Item::Value(_) | Item::Register(_) => None,
        });
        let leases: Vec<ReadLease> =
            self.tensors.iter().chain(placed).map(|tensor| tensor.read_lease("call")).collect::<Result<_>>()?;
        if leases.len() > limits::PARTS_MAX {
            let what = format!("a command with {} tensors; expected at most {}", leases.len(), limits::PARTS_MAX);
            let error = Error::new(ErrorKind::LimitExceeded, what).operation("call");
            return Err(error.hint("put them together, or send them by several commands"));
        }
        Ok(leases)
    }

    /// What this worker gets.
    pub(crate) fn of_worker(&self, worker: usize) -> (Vec<Value>, Parts) {
        let part = |tensor: &Tensor| Part::new(tensor.clone(), Mode::Copy);
        let mut parts: Parts = self.tensors.iter().map(part).collect();
        let items = self.items.iter().map(|item| match item {
            Item::Value(value) => value.clone(),
            Item::Register(register) => register.value(worker),
            Item::Placed(tensor, placement, group_size) if placement.holds(worker as u32, *group_size) => {
                parts.push(part(tensor));
                Value::Tensor(parts.len() as u32 - 1)
            }
            Item::Placed(..) => Value::None,
        });
        let items = items.collect();
        (items, parts)
    }
}
