//! `Value`: everything that may cross a process border as an argument or a result.

use sheave_base::NodeId;

use crate::reader::protocol;

type Result<T, E = sheave_base::Error> = std::result::Result<T, E>;

/// An argument or a result of a call. One calling convention for every service.
///
/// Tensors are not in the value but beside it: `Tensor` is an index into the message's [part table](crate::parts).
/// Comparing two values compares floats as numbers, so that a NaN differs from itself; their encodings compare bits.
///
/// ```
/// use sheave_wire::{Value, codec};
///
/// let value = Value::List(vec![Value::Int(-3), Value::Str("lr".into()), Value::Tensor(0)]);
/// let bytes = codec::encode(&value).unwrap();
/// assert_eq!(codec::decode(&bytes).unwrap(), value);
/// assert!(value.check_tensors(0).is_err(), "there is no part 0 in a message without parts");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// Nothing.
    #[default]
    None,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A floating-point number; every bit of it is kept.
    Float(f64),
    /// A text.
    Str(String),
    /// Bytes without meaning to sheave.
    Bytes(Vec<u8>),
    /// An element type, see [`dtype_size`](crate::dtype_size).
    Dtype(u8),
    /// A place where tensors live.
    Device {
        /// Kind of device, by its DLPack number: 1 is the CPU, 2 is CUDA.
        kind: u8,
        /// Which one of that kind.
        index: u32,
    },
    /// A shape.
    Shape(Vec<u64>),
    /// A tensor: the index of its part in the message.
    Tensor(u32),
    /// An object that lives on a node.
    Ref {
        /// The node that owns it.
        node: NodeId,
        /// Its name there.
        id: u64,
    },
    /// Values in order.
    List(Vec<Value>),
    /// Named values in order. Names may repeat; [`Value::get`] finds the first.
    Map(Vec<(String, Value)>),
    /// Values in order that belong together: Python's tuple.
    Tuple(Vec<Value>),
    /// Values of which each is meant once, in no order.
    Set(Vec<Value>),
    /// Pairs of a key and a value in order, where keys are not all texts.
    Dict(Vec<(Value, Value)>),
    /// A whole number that [`Value::Int`] has no room for: two's complement in little-endian bytes, as few as it takes.
    Integer(Vec<u8>),
    /// The bounds of a slice: start, stop and step.
    Slice(Box<[Value; 3]>),
    /// One element of a dtype, as its bytes lie in memory; those behind the dtype's size are zero.
    Scalar {
        /// The element type, see [`dtype_size`](crate::dtype_size).
        dtype: u8,
        /// The element.
        bytes: [u8; 16],
    },
    /// A value that one language has a class of its own for: where that is not known it is the inner one.
    Tagged(Box<(String, Value)>),
    /// A pickled object, from Python to Python only. Sheave never looks inside.
    Pickle(Vec<u8>),
}

impl Value {
    /// What kind of value this is, for messages.
    #[must_use]
    pub fn kind_name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::Dtype(_) => "dtype",
            Self::Device { .. } => "device",
            Self::Shape(_) => "shape",
            Self::Tensor(_) => "tensor",
            Self::Ref { .. } => "reference",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Tuple(_) => "tuple",
            Self::Set(_) => "set",
            Self::Dict(_) => "dict",
            Self::Integer(_) => "integer",
            Self::Slice(_) => "slice",
            Self::Scalar { .. } => "scalar",
            Self::Tagged(_) => "tagged value",
            Self::Pickle(_) => "pickle",
        }
    }

    /// The first value of that name, if this is a map that has one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        match self {
            Self::Map(entries) => entries.iter().find(|(key, _)| key == name).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Checks that every tensor in the value is one of the message's `part_count` parts. A receiver does this once,
    /// before anything indexes the parts.
    ///
    /// # Errors
    ///
    /// `Protocol`, naming the first index that is out of range.
    pub fn check_tensors(&self, part_count: usize) -> Result<()> {
        self.try_visit(&mut |value| match value {
            Self::Tensor(index) if usize::try_from(*index).is_ok_and(|index| index < part_count) => Ok(()),
            Self::Tensor(index) => Err(protocol(format!("tensor {index} of a message with {part_count} parts"))),
            _ => Ok(()),
        })
    }

    /// Returns the same value with its tensors at other places: `place` is given the index of each, in the order in
    /// which they are written, and returns the new one.
    ///
    /// ```
    /// use sheave_wire::Value;
    ///
    /// let value = Value::List(vec![Value::Tensor(0), Value::from("text"), Value::Tensor(1)]);
    /// let later = value.with_tensors_at(&mut |index| index + 5);
    /// assert_eq!(later, Value::List(vec![Value::Tensor(5), Value::from("text"), Value::Tensor(6)]));
    /// ```
    #[must_use]
    pub fn with_tensors_at(self, place: &mut dyn FnMut(u32) -> u32) -> Self {
        let mut all = |items: Vec<Self>| items.into_iter().map(|item| item.with_tensors_at(place)).collect();
        match self {
            Self::Tensor(index) => Self::Tensor(place(index)),
            Self::List(items) => Self::List(all(items)),
            Self::Tuple(items) => Self::Tuple(all(items)),
            Self::Set(items) => Self::Set(all(items)),
            Self::Map(entries) => {
                Self::Map(entries.into_iter().map(|(key, item)| (key, item.with_tensors_at(place))).collect())
            }
            Self::Dict(entries) => {
                let placed = |(key, item): (Self, Self)| (key.with_tensors_at(place), item.with_tensors_at(place));
                Self::Dict(entries.into_iter().map(placed).collect())
            }
            Self::Slice(bounds) => Self::Slice(Box::new(bounds.map(|bound| bound.with_tensors_at(place)))),
            Self::Tagged(tagged) => Self::Tagged(Box::new((tagged.0, tagged.1.with_tensors_at(place)))),
            other => other,
        }
    }

    /// Calls `look` with this value and every one in it, in the order in which they are written, until it fails.
    ///
    /// # Errors
    ///
    /// What `look` fails with.
    pub fn try_visit<E>(&self, look: &mut impl FnMut(&Self) -> Result<(), E>) -> Result<(), E> {
        look(self)?;
        match self {
            Self::List(items) | Self::Tuple(items) | Self::Set(items) => {
                items.iter().try_for_each(|item| item.try_visit(look))
            }
            Self::Map(entries) => entries.iter().try_for_each(|(_, value)| value.try_visit(look)),
            Self::Dict(entries) => entries.iter().try_for_each(|(key, value)| {
                key.try_visit(look)?;
                value.try_visit(look)
            }),
            Self::Slice(bounds) => bounds.iter().try_for_each(|bound| bound.try_visit(look)),
            Self::Tagged(tagged) => tagged.1.try_visit(look),
            _ => Ok(()),
        }
    }
}

macro_rules! from {
    ($($source:ty => $variant:ident,)*) => {
        $(impl From<$source> for Value {
            fn from(value: $source) -> Self {
                Self::$variant(value.into())
            }
        })*
    };
}

impl From<()> for Value {
    fn from((): ()) -> Self {
        Self::None
    }
}

from! {
    bool => Bool,
    i64 => Int,
    f64 => Float,
    &str => Str,
    String => Str,
    Vec<Value> => List,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_found_at_any_depth() {
        let value = Value::Map(vec![("inner".into(), Value::List(vec![Value::Tensor(1), Value::Tensor(2)]))]);
        assert!(value.check_tensors(3).is_ok());
        let error = value.check_tensors(2).unwrap_err();
        assert!(error.what().contains("tensor 2"), "{error}");
        let tensor = || Value::Tensor(7);
        let holders = [
            Value::Tuple(vec![tensor()]),
            Value::Set(vec![tensor()]),
            Value::Dict(vec![(tensor(), Value::None)]),
            Value::Dict(vec![(Value::None, tensor())]),
            Value::Slice(Box::new([Value::None, Value::None, tensor()])),
            Value::Tagged(Box::new(("torch".into(), tensor()))),
        ];
        for value in holders {
            assert!(value.check_tensors(8).is_ok() && value.check_tensors(7).is_err(), "{value:?}");
        }
    }

    #[test]
    fn the_first_of_equal_names_is_found() {
        let value = Value::Map(vec![("a".into(), true.into()), ("a".into(), false.into())]);
        assert_eq!(value.get("a"), Some(&Value::Bool(true)));
        assert_eq!(value.get("b"), None);
        assert_eq!(Value::None.get("a"), None);
    }
}
