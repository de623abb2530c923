//! How parameters are cut.

use crate::collective::{dtype_named, shape_value};
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{Dtype, Shape};
use sheave_wire::Value;
use std::collections::BTreeMap;

/// How one parameter is cut into one shard for each worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardInfo {
    /// In equal parts of one of its dimensions, the outermost of which is 0.
    Dimension(u32),
    /// By functions, each of what the one before has made. What the last makes has one row for each worker.
    Functions(Vec<ShardFunction>),
}

/// A function that worker 0 makes shards by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardFunction {
    /// The name under which worker 0 finds it.
    pub name: String,
    /// The shape of what it makes.
    pub shape: Shape,
    /// The dtype of what it makes.
    pub dtype: Dtype,
    /// Numbers that it is given behind the tensor.
    pub numbers: Vec<i64>,
}

/// Infos by the name of the parameter.
pub(super) type Infos = BTreeMap<String, ShardInfo>;

impl ShardInfo {
    /// As the built-in function takes it.
    pub(super) fn to_value(&self) -> Value {
        match self {
            Self::Dimension(dimension) => Value::Int((*dimension).into()),
            Self::Functions(functions) => Value::List(functions.iter().map(ShardFunction::to_value).collect()),
        }
    }

    fn from_value(value: &Value) -> Result<Self> {
        match value {
            Value::Int(dimension) => u32::try_from(*dimension).map(Self::Dimension).map_err(|_| strange(value)),
            Value::List(functions) | Value::Tuple(functions) => {
                Ok(Self::Functions(functions.iter().map(ShardFunction::from_value).collect::<Result<_>>()?))
            }
            other => Err(strange(other)),
        }
    }
}

impl ShardFunction {
    fn to_value(&self) -> Value {
        let extent = Value::List(vec![shape_value(&self.shape), self.dtype.name().into()]);
        let numbers = self.numbers.iter().map(|number| Value::Int(*number));
        Value::List([Value::from(&*self.name), extent].into_iter().chain(numbers).collect())
    }

    fn from_value(value: &Value) -> Result<Self> {
        let items = |value: &Value| match value {
            Value::List(items) | Value::Tuple(items) => Ok(items.clone()),
            other => Err(strange(other)),
        };
        let all = items(value)?;
        let [Value::Str(name), extent, numbers @ ..] = all.as_slice() else { return Err(strange(value)) };
        let extent = items(extent)?;
        let [shape, Value::Str(dtype)] = extent.as_slice() else { return Err(strange(value)) };
        let number = |value: &Value| if let Value::Int(number) = value { Ok(*number) } else { Err(strange(value)) };
        let dimension = |value: &Value| number(value).and_then(|it| u64::try_from(it).map_err(|_| strange(value)));
        let dimensions = items(shape)?.iter().map(dimension).collect::<Result<Vec<_>>>()?;
        Ok(Self {
            name: name.clone(),
            shape: Shape::new(&dimensions)?,
            dtype: dtype_named(dtype)?,
            numbers: numbers.iter().map(number).collect::<Result<_>>()?,
        })
    }
}

/// Infos as the built-in function takes them.
pub(super) fn to_value(infos: &Infos) -> Value {
    Value::Map(infos.iter().map(|(name, info)| (name.clone(), info.to_value())).collect())
}

pub(super) fn from_value(value: &Value) -> Result<Infos> {
    let named = |name: &str, info: &Value| {
        let info = ShardInfo::from_value(info).map_err(|error| error.context(format!("parameter {name}")))?;
        Ok((name.to_owned(), info))
    };
    match value {
        Value::None => Ok(Infos::new()),
        Value::Map(pairs) => pairs.iter().map(|(name, info)| named(name, info)).collect(),
        Value::Dict(pairs) if pairs.is_empty() => Ok(Infos::new()),
        other => Err(strange(other)),
    }
}

fn strange(value: &Value) -> Error {
    let what =
        format!("a {} in the shard info; expected functions as [name, [shape, dtype], number…]", value.kind_name());
    Error::new(ErrorKind::InvalidArgument, what).hint("or the dimension to cut, by the name of the parameter")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infos_survive_the_way() {
        let function =
            |numbers| ShardFunction { name: "cut".into(), shape: Shape::from([2, 3]), dtype: Dtype::F16, numbers };
        let infos = Infos::from([
            ("a".to_owned(), ShardInfo::Dimension(1)),
            ("b".to_owned(), ShardInfo::Functions(vec![function(vec![]), function(vec![4, -5])])),
        ]);
        assert_eq!(from_value(&to_value(&infos)).unwrap(), infos);
        assert_eq!(from_value(&Value::None).unwrap(), Infos::new());
        let bad = [
            Value::Int(-1),
            Value::List(vec![Value::Int(1)]),
            Value::List(vec![Value::List(vec!["cut".into(), Value::List(vec![Value::List(vec![]), "f31".into()])])]),
            Value::List(vec![Value::List(vec!["cut".into(), Value::List(vec!["f32".into(), Value::List(vec![])])])]),
            Value::Str("0".into()),
        ];
        for bad in bad {
            let error = from_value(&Value::Map(vec![("c".into(), bad.clone())])).unwrap_err();
            assert!(error.to_string().contains("parameter c"), "{bad:?}: {error}");
        }
    }
}
