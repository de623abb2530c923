//! Contents of a call.

use sheave_net::{Part, Parts, Tensors};
use sheave_tensor::{Mode, Tensor, WriteLease};
use sheave_wire::Value;
use std::sync::Arc;
use std::time::Duration;

/// Contents of a call of a method that has a name.
#[derive(Default)]
pub struct Call {
    /// The arguments. [`Value::Tensor`] is an index into `tensors`; a [`Value::Ref`] must be held by the caller until
    /// the call is made, and is held by the callee from then on.
    pub args: Value,
    /// Tensors, and how they leave.
    pub tensors: Parts,
    /// Places in which the tensors of the answer are to land: one contiguous tensor for each, of the same dtype and
    /// size. Nobody may write to them until the call ends. Without any they land in the node's arena.
    pub places: Tensors,
    /// Write leases that the caller holds already, for places of several calls in one buffer. For all others the call
    /// takes its own.
    pub leases: Option<Leases>,
    /// The call ends with [`DeadlineExceeded`](sheave_base::ErrorKind::DeadlineExceeded) after this time; without one
    /// it may take as long as the peer lives. Its handler does not begin after it.
    pub deadline: Option<Duration>,
    /// The handler runs though the call ends before it has begun, by its deadline or by a cancellation: for parts of
    /// something that others see whole or not at all.
    pub runs_anyway: bool,
}

/// Leases that several calls hold together.
pub type Leases = Arc<Vec<WriteLease>>;

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("args", &self.args).field("places", &self.places.len()).finish_non_exhaustive()
    }
}

impl Call {
    /// Returns a call with these arguments and nothing else; what else it takes along is added to it. It is made by
    /// [`Mesh::call`](crate::Mesh::call).
    ///
    /// ```
    /// use sheave_mesh::Call;
    /// use sheave_tensor::{Mode, Tensor};
    /// use sheave_wire::Value;
    /// use std::time::Duration;
    ///
    /// # fn main() -> sheave_base::Result<()> {
    /// let gradient = Tensor::from_slice(&[0.5_f32, -1.0], [2])?;
    /// let args = Value::List(vec!["layer1".into(), Value::Tensor(0)]);
    /// let call = Call::of(args).tensor(gradient, Mode::Copy).deadline(Duration::from_secs(5));
    /// assert_eq!((call.tensors.len(), call.deadline), (1, Some(Duration::from_secs(5))));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn of(args: impl Into<Value>) -> Self {
        Self { args: args.into(), ..Self::default() }
    }

    /// Takes one tensor more along, which leaves by `mode`. The first one is `Value::Tensor(0)` in the arguments.
    #[must_use]
    pub fn tensor(mut self, tensor: Tensor, mode: Mode) -> Self {
        self.tensors.push(Part::new(tensor, mode));
        self
    }

    /// Names where one more tensor of the answer is to land, see [`Call::places`].
    #[must_use]
    pub fn place(mut self, place: Tensor) -> Self {
        self.places.push(place);
        self
    }

    /// Ends the call after `span`, if it is not answered by then, see [`Call::deadline`].
    #[must_use]
    pub fn deadline(mut self, span: Duration) -> Self {
        self.deadline = Some(span);
        self
    }
}

impl From<Value> for Call {
    fn from(args: Value) -> Self {
        Self::of(args)
    }
}
