//! A receiver of messages that remembers what it was given.

use crate::link::{Arrival, Ground, Landing, Sink, Verdict};
use crate::message::{Envelope, Message, Tensors};
use parking_lot::Mutex;
use sheave_base::limits::{CONTROL_BYTES_MAX, PARTS_MAX};
use sheave_base::{Error, ErrorKind, LinkId, Result};
use sheave_tensor::{Dtype, Shape, Tensor};
use sheave_wire::TensorSpec;

/// Bytes of tensors that a run may be given: more are refused, as a node refuses what it has no memory for.
pub(crate) const PLACED_BYTES_MAX: u64 = 64 << 10;

/// A message that arrived, in a form that can be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) envelope: Envelope,
    pub(crate) sequence: u64,
    pub(crate) control: Vec<u8>,
    /// The bytes of each tensor.
    pub(crate) parts: Vec<Vec<u8>>,
}

/// What a receiver does with messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    /// Each waits once before it may land.
    pub(crate) pauses: bool,
    /// It names the places of tensors itself.
    pub(crate) has_places: bool,
}

#[derive(Default)]
struct State {
    manner: Manner,
    /// The number of the message that has waited.
    paused: Option<u64>,
    /// The tensors of the message that is about to come.
    coming: Option<(u64, Vec<TensorSpec>, usize)>,
    placed_bytes: u64,
    delivered: Vec<Delivered>,
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Recorder(Mutex<State>);

impl Recorder {
    pub(crate) fn behave(&self, manner: Manner) {
        self.0.lock().manner = manner;
    }

    /// All messages so far, in their order.
    pub(crate) fn delivered(&self) -> Vec<Delivered> {
        self.0.lock().delivered.clone()
    }
}

/// Memory for a tensor, within what a run may be given.
fn memory(state: &mut State, spec: &TensorSpec) -> Result<Tensor> {
    state.placed_bytes = state.placed_bytes.saturating_add(spec.length_bytes()?);
    if state.placed_bytes > PLACED_BYTES_MAX {
        return Err(Error::new(ErrorKind::LimitExceeded, format!("tensors of {} bytes", state.placed_bytes)));
    }
    let dtype = Dtype::from_code(spec.dtype).ok_or_else(|| Error::new(ErrorKind::Protocol, "an unknown dtype"))?;
    Tensor::private(dtype, Shape::new(&spec.dims)?)
}

impl Sink for Recorder {
    fn begin(&self, _: LinkId, arrival: &Arrival<'_>) -> Result<Verdict> {
        let mut state = self.0.lock();
        assert!(arrival.parts.len() <= PARTS_MAX && arrival.control_bytes <= CONTROL_BYTES_MAX, "{arrival:?}");
        if state.manner.pauses && state.paused != Some(arrival.sequence) {
            state.paused = Some(arrival.sequence);
            return Ok(Verdict::Pause);
        }
        let mut places = Tensors::new();
        if state.manner.has_places {
            for part in arrival.parts {
                places.push(memory(&mut state, &part.spec)?);
            }
        }
        let specs = arrival.parts.iter().map(|part| part.spec.clone()).collect();
        state.coming = Some((arrival.sequence, specs, arrival.control_bytes));
        Ok(Verdict::Land(Landing::at(Ground { places, ..Ground::default() })))
    }

    fn deliver(&self, landing: Landing, message: Message) {
        drop(landing);
        let mut state = self.0.lock();
        let (sequence, specs, control_bytes) = state.coming.take().expect("a message that has not begun");
        assert_eq!((message.sequence, message.control.len()), (sequence, control_bytes));
        assert_eq!(message.parts.len(), specs.len());
        for (tensor, spec) in message.parts.iter().zip(&specs) {
            assert_eq!((tensor.dtype().code(), tensor.shape().dimensions()), (spec.dtype, &spec.dims[..]));
        }
        let bytes = |tensor: &Tensor| {
            // SAFETY: what a message brings is alive while it is, that long, and in a fuzz target nobody writes it.
            let bytes = unsafe { std::slice::from_raw_parts(tensor.ptr(), tensor.len_bytes()) };
            // What is longer lies in memory that the peer has shown, of which the ends are enough.
            if bytes.len() as u64 <= PLACED_BYTES_MAX { bytes.to_vec() } else { vec![bytes[0], bytes[bytes.len() - 1]] }
        };
        let Message { envelope, control, .. } = message;
        let parts = message.parts.iter().map(bytes).collect();
        state.delivered.push(Delivered { envelope, sequence, control, parts });
    }

    fn place(&self, spec: &TensorSpec) -> Result<Tensor> {
        memory(&mut self.0.lock(), spec)
    }

    fn is_empty(&self) -> bool {
        true
    }
}
