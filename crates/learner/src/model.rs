//! Names, dtypes and shapes of a model's parameters, and where each lies when all are packed.
//!
//! A gradient travels packed: all parameters of one dtype lie one behind the other, in the order of their names, in one
//! flat tensor, a *segment*. So a sum is one pass over memory however many parameters there are, and a message has a
//! part for each dtype. Two models are the same if their parameters are; a *fingerprint* says so in eight bytes.

use sheave_base::{Error, ErrorKind, Result, limits};
use sheave_tensor::{Arena, Dtype, Shape, Tensor};
use sheave_wire::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tensors by the names of their parameters.
pub type Tensors = BTreeMap<String, Tensor>;

/// The dtypes that gradients have.
const DTYPES: [Dtype; 4] = [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64];

/// Names, dtypes and shapes of all parameters of a model; a handle, cheap to clone.
///
/// ```
/// use sheave_learner::Model;
/// use sheave_tensor::{Dtype, Tensor};
/// use std::collections::BTreeMap;
///
/// let model = Model::new([("bias", Dtype::F32, [2].into()), ("weight", Dtype::F32, [2, 3].into())])?;
/// let bias = Tensor::from_slice(&[1.0_f32, 2.0], [2])?;
/// let error = model.check(&BTreeMap::from([("bias".to_owned(), bias)])).unwrap_err();
/// assert!(error.to_string().contains("nothing for \"weight\""), "{error}");
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Model(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// In the order of their names.
    parameters: BTreeMap<String, Parameter>,
    /// Of each segment its dtype and its elements.
    segments: Vec<(Dtype, usize)>,
    fingerprint: u64,
}

/// One parameter, and where it lies in a segment.
#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) dtype: Dtype,
    shape: Shape,
    pub(crate) segment: usize,
    pub(crate) first: usize,
    pub(crate) elements: usize,
}

impl PartialEq for Model {
    fn eq(&self, other: &Self) -> bool {
        self.0.fingerprint == other.0.fingerprint
    }
}

impl Model {
    /// Returns the model that has these parameters: of each its name, its dtype and its shape.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for no parameters at all, and for a name that comes twice; `Unsupported` for a dtype that is
    /// none of `f16`, `bf16`, `f32` and `f64`; `LimitExceeded` for more than
    /// [`LEARNER_PARAMETERS_MAX`](limits::LEARNER_PARAMETERS_MAX) parameters, and for shapes that are too large.
    pub fn new<N: Into<String>>(parameters: impl IntoIterator<Item = (N, Dtype, Shape)>) -> Result<Self> {
        let mut by_name = BTreeMap::new();
        for (name, dtype, shape) in parameters {
            let name = name.into();
            if !DTYPES.contains(&dtype) {
                let what = format!("parameter \"{name}\" is {dtype}; expected one of f16, bf16, f32 and f64");
                return Err(Error::new(ErrorKind::Unsupported, what).operation("describe model"));
            }
            if by_name.insert(name.clone(), (dtype, shape)).is_some() {
                let what = format!("two parameters have the name \"{name}\"");
                return Err(Error::new(ErrorKind::InvalidArgument, what).operation("describe model"));
            }
        }
        Self::placed(by_name).map_err(|error| error.operation("describe model"))
    }

    /// Returns the model whose parameters these tensors are.
    ///
    /// # Errors
    ///
    /// As [`Model::new`].
    pub fn of(parameters: &Tensors) -> Result<Self> {
        Self::new(parameters.iter().map(|(name, tensor)| (name.as_str(), tensor.dtype(), tensor.shape().clone())))
    }

    fn placed(by_name: BTreeMap<String, (Dtype, Shape)>) -> Result<Self> {
        if by_name.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "a model without parameters; expected one at least"));
        }
        if by_name.len() > limits::LEARNER_PARAMETERS_MAX {
            let what = format!("{} parameters; the limit is {}", by_name.len(), limits::LEARNER_PARAMETERS_MAX);
            return Err(Error::new(ErrorKind::LimitExceeded, what));
        }
        let (mut segments, mut parameters): (Vec<(Dtype, usize)>, _) = (Vec::new(), BTreeMap::new());
        let mut print = Fingerprint::default();
        for (name, (dtype, shape)) in by_name {
            let segment = segments.iter().position(|(other, _)| *other == dtype).unwrap_or_else(|| {
                segments.push((dtype, 0));
                segments.len() - 1
            });
            let (_, end) = &mut segments[segment];
            let elements = shape.elements().and_then(|elements| usize::try_from(elements).ok());
            let fits =
                |end: usize| end.checked_mul(dtype.size_bytes()).is_some_and(|bytes| bytes < isize::MAX as usize);
            let placed = elements.and_then(|count| Some((count, end.checked_add(count).filter(|end| fits(*end))?)));
            let Some((elements, new_end)) = placed else {
                let what = format!("parameter \"{name}\" of {dtype}{shape} has no place in an address space");
                return Err(Error::new(ErrorKind::LimitExceeded, what));
            };
            print.add(&name, dtype, &shape);
            parameters.insert(name, Parameter { dtype, shape, segment, first: *end, elements });
            *end = new_end;
        }
        Ok(Self(Arc::new(Inner { parameters, segments, fingerprint: print.0 })))
    }

    /// Returns the names of the parameters, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.parameters.keys().map(String::as_str)
    }

    /// Returns the number of bytes that one gradient has.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.0.segments.iter().map(|(dtype, elements)| dtype.size_bytes() * elements).sum()
    }

    /// Checks that there is a tensor for each parameter, of its dtype and shape, and none for anything else.
    ///
    /// # Errors
    ///
    /// `Mismatch` that names the parameter, what came and what was expected.
    pub fn check(&self, tensors: &Tensors) -> Result<()> {
        let mismatch = |what: String| {
            Err(Error::new(ErrorKind::Mismatch, what).hint("push one tensor for each parameter of the model"))
        };
        for (name, parameter) in &self.0.parameters {
            let (dtype, shape) = (parameter.dtype, &parameter.shape);
            match tensors.get(name) {
                None => return mismatch(format!("nothing for \"{name}\"; expected {dtype}{shape}")),
                Some(tensor) if (tensor.dtype(), tensor.shape()) != (dtype, shape) => {
                    let (other, other_shape) = (tensor.dtype(), tensor.shape());
                    return mismatch(format!("{other}{other_shape} for \"{name}\"; expected {dtype}{shape}"));
                }
                Some(_) => {}
            }
        }
        match tensors.keys().find(|name| !self.0.parameters.contains_key(*name)) {
            Some(name) => mismatch(format!("a tensor for \"{name}\", which the model does not have")),
            None => Ok(()),
        }
    }

    /// Copies tensors into segments of an arena.
    pub(crate) fn pack(&self, tensors: &Tensors, arena: &Arena) -> Result<Vec<Tensor>> {
        self.check(tensors)?;
        let mut segments = self.empty(arena)?;
        for (at, segment) in segments.iter_mut().enumerate() {
            let bytes = segment.bytes_mut()?;
            for (name, parameter) in self.0.parameters.iter().filter(|(_, parameter)| parameter.segment == at) {
                let size = parameter.dtype.size_bytes();
                let range = parameter.first * size..(parameter.first + parameter.elements) * size;
                bytes[range].copy_from_slice(&tensors[name].bytes().map_err(|error| error.context(name))?);
            }
        }
        Ok(segments)
    }

    /// Segments of an arena, with whatever lay there.
    fn empty(&self, arena: &Arena) -> Result<Vec<Tensor>> {
        self.0.segments.iter().map(|(dtype, elements)| Tensor::empty(arena, *dtype, [*elements as u64])).collect()
    }

    /// The tensors of all parameters, which are views of these segments.
    pub(crate) fn split(&self, segments: &[Tensor]) -> Result<Tensors> {
        let view = |(name, parameter): (&String, &Parameter)| {
            let segment = &segments[parameter.segment];
            let offset = segment.offset_bytes() + parameter.first * parameter.dtype.size_bytes();
            let tensor = Tensor::from_buffer(segment.buffer().clone(), offset, parameter.dtype, &parameter.shape)?;
            Ok((name.clone(), tensor))
        };
        self.0.parameters.iter().map(view).collect()
    }

    pub(crate) fn parameters(&self) -> impl Iterator<Item = (&str, &Parameter)> {
        self.0.parameters.iter().map(|(name, parameter)| (name.as_str(), parameter))
    }

    pub(crate) fn fingerprint(&self) -> u64 {
        self.0.fingerprint
    }

    /// Refuses segments that are not those of this model.
    pub(crate) fn check_segments(&self, fingerprint: u64, segments: &[Tensor]) -> Result<()> {
        let expected = self.0.segments.iter().map(|(dtype, elements)| (*dtype, Shape::from([*elements as u64])));
        let is_ours = fingerprint == self.0.fingerprint
            && segments.iter().map(|segment| (segment.dtype(), segment.shape().clone())).eq(expected);
        if is_ours {
            return Ok(());
        }
        let what = "a gradient of another model than that of this server";
        Err(Error::new(ErrorKind::Mismatch, what)
            .hint("give all servers of one name the same model, and connect again"))
    }

    pub(crate) fn to_value(&self) -> Value {
        let listed = |(name, parameter): (&String, &Parameter)| {
            let shape = Value::Shape(parameter.shape.dimensions().to_vec());
            Value::List(vec![Value::from(name.as_str()), Value::Int(parameter.dtype.code().into()), shape])
        };
        Value::List(self.0.parameters.iter().map(listed).collect())
    }

    pub(crate) fn read(value: Value) -> Option<Self> {
        let Value::List(items) = value else { return None };
        let parameter = |item: Value| {
            let Value::List(item) = item else { return None };
            match <[Value; 3]>::try_from(item).ok()? {
                [Value::Str(name), Value::Int(code), Value::Shape(shape)] => {
                    let dtype = Dtype::from_code(u8::try_from(code).ok()?)?;
                    Some((name, dtype, Shape::new(&shape).ok()?))
                }
                _ => None,
            }
        };
        Self::new(items.into_iter().map(parameter).collect::<Option<Vec<_>>>()?).ok()
    }
}

/// FNV-1a over the parameters in their order.
struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    fn add(&mut self, name: &str, dtype: Dtype, shape: &Shape) {
        let dimensions = shape.dimensions();
        let lengths = [name.len() as u64, dimensions.len() as u64, dtype.code().into()];
        let numbers = lengths.iter().chain(dimensions).flat_map(|number| number.to_le_bytes());
        for byte in numbers.chain(name.bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_tensor::ArenaConfig;

    fn floats(values: &[f32]) -> Tensor {
        Tensor::from_slice(values, [values.len() as u64]).unwrap()
    }

    #[test]
    fn what_is_packed_is_found_again() {
        let double = Tensor::from_slice(&[0.5_f64, 0.25], [2, 1]).unwrap();
        let tensors = Tensors::from([
            ("b".to_owned(), double),
            ("a".to_owned(), floats(&[1.0, 2.0])),
            ("c".to_owned(), floats(&[3.0])),
            ("d".to_owned(), floats(&[])),
        ]);
        let model = Model::of(&tensors).unwrap();
        let arena = Arena::new(ArenaConfig::default());
        let segments = model.pack(&tensors, &arena).unwrap();
        assert_eq!(segments.len(), 2);
        assert_eq!(segments[0].to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
        let split = model.split(&segments).unwrap();
        assert_eq!(Model::of(&split).unwrap(), model);
        assert_eq!(split["b"].to_vec::<f64>().unwrap(), [0.5, 0.25]);
        assert_eq!((split["c"].to_vec::<f32>().unwrap(), split["d"].elements()), (vec![3.0], 0));
        assert_eq!(Model::read(model.to_value()).unwrap(), model);
        model.check_segments(model.fingerprint(), &segments).unwrap();
        assert!(model.check_segments(model.fingerprint(), &segments[..1]).is_err());
        assert!(model.check_segments(model.fingerprint() + 1, &segments).is_err());
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let model = Model::new([("a", Dtype::F32, [2].into()), ("b", Dtype::F64, [1].into())]).unwrap();
        let b = Tensor::from_slice(&[0.5_f64], [1]).unwrap();
        let error = |a: Option<Tensor>, more: Option<&str>| {
            let a = a.map(|a| ("a".to_owned(), a));
            let more = more.map(|name| (name.to_owned(), b.clone()));
            let tensors = a.into_iter().chain(more).chain([("b".to_owned(), b.clone())]).collect();
            let error = model.check(&tensors).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch);
            error.what().to_owned()
        };
        assert_eq!(error(None, None), "nothing for \"a\"; expected f32[2]");
        assert_eq!(error(Some(floats(&[1.0])), None), "f32[1] for \"a\"; expected f32[2]");
        let doubles = Tensor::from_slice(&[1.0_f64; 2], [2]).unwrap();
        assert_eq!(error(Some(doubles), None), "f64[2] for \"a\"; expected f32[2]");
        let more = error(Some(floats(&[1.0; 2])), Some("c"));
        assert_eq!(more, "a tensor for \"c\", which the model does not have");
    }

    #[test]
    fn what_is_no_model_is_refused() {
        let kind = |parameters: &[(&str, Dtype, Shape)]| Model::new(parameters.iter().cloned()).unwrap_err().kind();
        assert_eq!(kind(&[]), ErrorKind::InvalidArgument);
        assert_eq!(kind(&[("a", Dtype::I32, [1].into())]), ErrorKind::Unsupported);
        let (one, huge): (Shape, Shape) = ([1].into(), [u64::MAX / 16].into());
        assert_eq!(kind(&[("a", Dtype::F32, one.clone()), ("a", Dtype::F32, one)]), ErrorKind::InvalidArgument);
        assert_eq!(kind(&[("a", Dtype::F64, huge.clone()), ("b", Dtype::F64, huge)]), ErrorKind::LimitExceeded);
        assert!(Model::read(Value::List(vec![Value::None])).is_none() && Model::read(Value::None).is_none());
    }
}
