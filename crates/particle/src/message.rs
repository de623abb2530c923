//! What particles send each other.

use sheave_base::Result;
use sheave_net::{Part, Parts, Tensors};
use sheave_tensor::{Mode, Tensor};
use sheave_wire::Value;

/// A type of messages and answers. Between particles of one node it is handed over as it is; to another node it goes as
/// a value with tensors.
pub trait Payload: Clone + Send + 'static {
    /// Writes it for another node.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for what cannot travel.
    fn write(self) -> Result<(Value, Parts)>;

    /// Reads what another node has written.
    ///
    /// # Errors
    ///
    /// `Mismatch` for what cannot be read.
    fn read(value: Value, tensors: Tensors) -> Result<Self>;
}

/// A value and its tensors. A [`Value::Tensor`] in it is an index into `tensors`. Within a node tensors are handles to
/// the same memory; to another node they go by copy.
///
/// ```
/// use sheave_particle::Message;
/// use sheave_tensor::Tensor;
/// use sheave_wire::Value;
///
/// let loss = Message::from(0.25);
/// let gradient = Message::of(Value::Tensor(0)).tensor(Tensor::from_slice(&[1.0_f32, 2.0], [2])?);
/// assert_eq!((loss.value, gradient.tensors.len()), (Value::Float(0.25), 1));
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// The value.
    pub value: Value,
    /// Its tensors.
    pub tensors: Tensors,
}

impl Message {
    /// Returns a message of this value.
    #[must_use]
    pub fn of(value: impl Into<Value>) -> Self {
        Self { value: value.into(), tensors: Tensors::new() }
    }

    /// Takes one tensor more along. The first one is `Value::Tensor(0)` in the value.
    #[must_use]
    pub fn tensor(mut self, tensor: Tensor) -> Self {
        self.tensors.push(tensor);
        self
    }
}

impl<T: Into<Value>> From<T> for Message {
    fn from(value: T) -> Self {
        Self::of(value)
    }
}

impl Payload for Message {
    fn write(self) -> Result<(Value, Parts)> {
        let parts = self.tensors.into_iter().map(|tensor| Part::new(tensor, Mode::Copy)).collect();
        Ok((self.value, parts))
    }

    fn read(value: Value, tensors: Tensors) -> Result<Self> {
        Ok(Self { value, tensors })
    }
}
