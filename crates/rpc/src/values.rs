//! Values of Rust on their way to other nodes and back, whatever language those speak.
//!
//! | in Rust | in Python |
//! |---|---|
//! | `()` | `None` |
//! | `bool`, integers, `f32`, `f64`, `String` | `bool`, `int`, `float`, `str` |
//! | `Option<T>` | `None`, or what `T` is |
//! | `Vec<T>` | `list`; a `tuple` or a `set` is taken too |
//! | `(A, B, …)` | `tuple`; a `list` is taken too |
//! | `BTreeMap<String, T>` | `dict` with texts as keys |
//! | [`Tensor`] | an array of numpy; one of torch is taken too |
//! | [`Value`] | whatever it is |

use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::Call;
use sheave_net::{Part, Parts};
use sheave_tensor::{Mode, Tensor};
use sheave_wire::Value;
use std::collections::BTreeMap;

/// A type that values of other nodes are read as.
pub trait FromValue: Sized {
    /// Returns what is expected, for errors: "an int".
    fn expected() -> String;

    /// Reads a value, whose tensors are these.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that says what was expected.
    fn from_value(value: Value, tensors: &[Tensor]) -> Result<Self>;
}

/// A type that is written as values for other nodes.
pub trait IntoValue {
    /// Writes it. Its tensors go to `parts`, by copy.
    fn into_value(self, parts: &mut Parts) -> Value;
}

/// Types that arguments of a call are read as: tuples, of which the empty one is no argument.
pub trait FromArguments: Sized {
    /// Reads the arguments of a call, as [`FromValue::from_value`] does.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for another number of arguments or another type, and for arguments by name.
    fn from_arguments(args: Value, tensors: &[Tensor]) -> Result<Self>;
}

fn refused<T: FromValue>(value: &Value) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("a {}; expected {}", value.kind_name(), T::expected()))
}

/// The values of a list, or of what is taken for one.
fn items(value: Value) -> Result<Vec<Value>, Value> {
    match value {
        Value::List(items) | Value::Tuple(items) | Value::Set(items) => Ok(items),
        Value::Tagged(tagged) if tagged.0 == "frozenset" => items(tagged.1),
        other => Err(other),
    }
}

impl FromValue for Value {
    fn expected() -> String {
        "any value".into()
    }

    fn from_value(value: Value, _: &[Tensor]) -> Result<Self> {
        Ok(value)
    }
}

impl IntoValue for Value {
    fn into_value(self, _: &mut Parts) -> Value {
        self
    }
}

impl FromValue for () {
    fn expected() -> String {
        "nothing".into()
    }

    fn from_value(value: Value, _: &[Tensor]) -> Result<Self> {
        if value == Value::None { Ok(()) } else { Err(refused::<Self>(&value)) }
    }
}

impl FromValue for bool {
    fn expected() -> String {
        "a bool".into()
    }

    fn from_value(value: Value, _: &[Tensor]) -> Result<Self> {
        match value {
            Value::Bool(truth) => Ok(truth),
            other => Err(refused::<Self>(&other)),
        }
    }
}

macro_rules! integers {
    ($($kind:ty),*) => {
        $(impl FromValue for $kind {
            fn expected() -> String {
                concat!("an int that is one of ", stringify!($kind)).into()
            }

            fn from_value(value: Value, _: &[Tensor]) -> Result<Self> {
                match value {
                    Value::Int(number) => number.try_into().map_err(|_| {
                        let what = format!("the int {number}; expected {}", Self::expected());
                        Error::new(ErrorKind::InvalidArgument, what)
                    }),
                    other => Err(refused::<Self>(&other)),
                }
            }
        })*
    };
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64, usize);

impl FromValue for f64 {
    fn expected() -> String {
        "a float".into()
    }

    fn from_value(value: Value, _: &[Tensor]) -> Result<Self> {
        match value {
            Value::Float(number) => Ok(number),
            // As in arithmetic, an int is a float.
            Value::Int(number) => Ok(number as Self),
            other => Err(refused::<Self>(&other)),
        }
    }
}

impl FromValue for f32 {
    fn expected() -> String {
        f64::expected()
    }

    fn from_value(value: Value, tensors: &[Tensor]) -> Result<Self> {
        f64::from_value(value, tensors).map(|number| number as Self)
    }
}

impl FromValue for String {
    fn expected() -> String {
        "a str".into()
    }

    fn from_value(value: Value, tensors: &[Tensor]) -> Result<Self> {
        match value {
            Value::Str(text) => Ok(text),
            // One that is too long for a value travels beside it.
            Value::Tagged(tagged) if tagged.0 == "str" => {
                let bytes = Tensor::from_value(tagged.1, tensors)?.bytes()?.to_vec();
                Self::from_utf8(bytes).map_err(|_| Error::new(ErrorKind::Protocol, "a text that is no UTF-8"))
            }
            other => Err(refused::<Self>(&other)),
        }
    }
}

impl FromValue for Tensor {
    fn expected() -> String {
        "an array".into()
    }

    fn from_value(value: Value, tensors: &[Tensor]) -> Result<Self> {
        match value {
            Value::Tensor(index) => {
                let found = usize::try_from(index).ok().and_then(|index| tensors.get(index));
                let what = || format!("tensor {index} of {}", tensors.len());
                found.cloned().ok_or_else(|| Error::new(ErrorKind::Protocol, what()))
            }
            Value::Tagged(tagged) => Self::from_value(tagged.1, tensors),
            other => Err(refused::<Self>(&other)),
        }
    }
}

impl<T: FromValue> FromValue for Option<T> {
    fn expected() -> String {
        format!("none or {}", T::expected())
    }

    fn from_value(value: Value, tensors: &[Tensor]) -> Result<Self> {
        if value == Value::None { Ok(None) } else { T::from_value(value, tensors).map(Some) }
    }
}

impl<T: FromValue> FromValue for Vec<T> {
    fn expected() -> String {
        format!("a list, each of it {}", T::expected())
    }

    fn from_value(value: Value, tensors: &[Tensor]) -> Result<Self> {
        let items = items(value).map_err(|other| refused::<Self>(&other))?;
        items.into_iter().map(|item| T::from_value(item, tensors)).collect()
    }
}

impl<T: FromValue> FromValue for BTreeMap<String, T> {
    fn expected() -> String {
        format!("a dict with texts as keys, each value {}", T::expected())
    }

    fn from_value(value: Value, tensors: &[Tensor]) -> Result<Self> {
        match value {
            Value::Map(entries) => {
                entries.into_iter().map(|(name, item)| Ok((name, T::from_value(item, tensors)?))).collect()
            }
            other => Err(refused::<Self>(&other)),
        }
    }
}

macro_rules! atoms {
    ($($kind:ty => $value:expr),*) => {
        $(impl IntoValue for $kind {
            fn into_value(self, _: &mut Parts) -> Value {
                let make: fn($kind) -> Value = $value;
                make(self)
            }
        })*
    };
}

atoms!(
    () => |()| Value::None,
    bool => Value::Bool,
    i8 => |number| Value::Int(number.into()),
    i16 => |number| Value::Int(number.into()),
    i32 => |number| Value::Int(number.into()),
    i64 => Value::Int,
    u8 => |number| Value::Int(number.into()),
    u16 => |number| Value::Int(number.into()),
    u32 => |number| Value::Int(number.into()),
    u64 => unsigned,
    usize => |number| unsigned(number as u64),
    f32 => |number| Value::Float(number.into()),
    f64 => Value::Float,
    String => Value::Str,
    &str => |text| Value::Str(text.to_owned())
);

/// A number that may be too large for [`Value::Int`].
fn unsigned(number: u64) -> Value {
    let wide = || Value::Integer([&number.to_le_bytes()[..], &[0]].concat());
    i64::try_from(number).map_or_else(|_| wide(), Value::Int)
}

impl IntoValue for Tensor {
    fn into_value(self, parts: &mut Parts) -> Value {
        let index = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        parts.push(Part::new(self, Mode::Copy));
        Value::Tensor(index)
    }
}

impl<T: IntoValue> IntoValue for Option<T> {
    fn into_value(self, parts: &mut Parts) -> Value {
        self.map_or(Value::None, |value| value.into_value(parts))
    }
}

impl<T: IntoValue> IntoValue for Vec<T> {
    fn into_value(self, parts: &mut Parts) -> Value {
        Value::List(self.into_iter().map(|item| item.into_value(parts)).collect())
    }
}

impl<T: IntoValue> IntoValue for BTreeMap<String, T> {
    fn into_value(self, parts: &mut Parts) -> Value {
        Value::Map(self.into_iter().map(|(name, item)| (name, item.into_value(parts))).collect())
    }
}

impl FromArguments for () {
    fn from_arguments(args: Value, _: &[Tensor]) -> Result<Self> {
        let count = arguments(args)?.len();
        if count == 0 { Ok(()) } else { Err(miscounted(count, 0)) }
    }
}

macro_rules! tuples {
    ($($count:literal: $($name:ident)*;)*) => {
        $(
            impl<$($name: FromValue),*> FromValue for ($($name,)*) {
                fn expected() -> String {
                    let parts = [$($name::expected()),*];
                    format!("a tuple of {}", parts.join(", "))
                }

                fn from_value(value: Value, tensors: &[Tensor]) -> Result<Self> {
                    let items = items(value).map_err(|other| refused::<Self>(&other))?;
                    if items.len() != $count {
                        let what = format!("a tuple of {}; expected {}", items.len(), Self::expected());
                        return Err(Error::new(ErrorKind::InvalidArgument, what));
                    }
                    let mut items = items.into_iter();
                    Ok(($($name::from_value(items.next().unwrap_or_default(), tensors)?,)*))
                }
            }

            impl<$($name: IntoValue),*> IntoValue for ($($name,)*) {
                #[expect(non_snake_case, reason = "each element is called as its type")]
                fn into_value(self, parts: &mut Parts) -> Value {
                    let ($($name,)*) = self;
                    Value::Tuple(vec![$($name.into_value(parts)),*])
                }
            }

            impl<$($name: FromValue),*> FromArguments for ($($name,)*) {
                fn from_arguments(args: Value, tensors: &[Tensor]) -> Result<Self> {
                    let args = arguments(args)?;
                    if args.len() != $count {
                        return Err(miscounted(args.len(), $count));
                    }
                    let mut args = args.into_iter().enumerate();
                    Ok(($(argument::<$name>(args.next(), tensors)?,)*))
                }
            }
        )*
    };
}

tuples! {
    1: A;
    2: A B;
    3: A B C;
    4: A B C D;
    5: A B C D E;
    6: A B C D E F;
}

/// The arguments by their places, as Rust or Python has sent them.
fn arguments(args: Value) -> Result<Vec<Value>> {
    match args {
        Value::None => Ok(Vec::new()),
        Value::Tuple(args) => Ok(args),
        // What Python tags so has its arguments behind what is to be filled.
        Value::Tagged(mut tagged) if tagged.0 == "remote" => match &mut tagged.1 {
            Value::Tuple(items) => arguments(items.pop().unwrap_or_default()),
            _ => arguments(tagged.1),
        },
        ref by_name @ Value::Map(_) if by_name.get("**").is_some() => {
            let what = "arguments by name, which functions of Rust do not take";
            Err(Error::new(ErrorKind::InvalidArgument, what).hint("give them by their places"))
        }
        single => Ok(vec![single]),
    }
}

fn argument<T: FromValue>(given: Option<(usize, Value)>, tensors: &[Tensor]) -> Result<T> {
    let (at, value) = given.unwrap_or_default();
    T::from_value(value, tensors).map_err(|error| error.context(format!("argument {}", at + 1)))
}

fn miscounted(given: usize, expected: usize) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("{given} arguments; expected {expected}"))
}

/// A call with these arguments: a tuple, of which the empty one is no argument.
pub(crate) fn call_of(args: impl IntoValue) -> Call {
    let mut parts = Parts::new();
    let args = match args.into_value(&mut parts) {
        Value::None => Value::Tuple(Vec::new()),
        args => args,
    };
    Call { args, tensors: parts, ..Call::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let map = BTreeMap::from([("a".to_owned(), vec![Some(1.5), None])]);
        let tensor = Tensor::from_slice(&[1_i32, 2], [2]).expect("it fits");
        let written = (map.clone(), "text", u64::MAX - 1, tensor, (true, -7_i32));
        let mut parts = Parts::new();
        let value = written.into_value(&mut parts);
        let tensors: Vec<Tensor> = parts.into_iter().map(Part::into_tensor).collect();
        type Read = (BTreeMap<String, Vec<Option<f64>>>, String, Value, Tensor, (bool, i64));
        let read = Read::from_value(value, &tensors).expect("it is that");
        assert_eq!((read.0, read.1.as_str(), read.4), (map, "text", (true, -7)));
        assert_eq!(read.2, Value::Integer(vec![0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0]));
        assert_eq!(read.3.to_vec::<i32>().expect("it is i32"), [1, 2]);
    }

    #[test]
    fn what_is_not_expected_is_named() {
        let error = |value: Value| <(i64, String)>::from_arguments(value, &[]).expect_err("it is not that").to_string();
        let one = Value::Tuple(vec![Value::Int(1)]);
        assert_eq!(error(one), "1 arguments; expected 2");
        let wrong = Value::Tuple(vec![Value::Float(1.0), Value::from("x")]);
        assert!(error(wrong).contains("argument 1: a float; expected an int"), "{}", error(Value::None));
        let by_name = Value::Map(vec![("*".into(), Value::Tuple(Vec::new())), ("**".into(), Value::Map(Vec::new()))]);
        assert!(error(by_name).contains("by name"));
        assert_eq!(u8::from_value(Value::Int(7), &[]).expect("it fits"), 7);
        assert!(u8::from_value(Value::Int(-1), &[]).is_err() && u8::from_value(Value::Int(256), &[]).is_err());
    }
}
