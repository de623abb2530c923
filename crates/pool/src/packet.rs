//! What travels: a value that is written already, and its tensors.

use sheave_base::{Error, ErrorKind, Result};
use sheave_net::{Node, Part, Parts, Tensors};
use sheave_tensor::{Mode, Tensor};
use sheave_wire::{Value, codec};

/// Tensors of fewer bytes travel in the message. Those of more lie in the arena, and the worker gets the memory itself.
const LENT_BYTES_MIN: usize = 64 << 10;

/// Memory that is lent begins at one of these.
const LENT_ALIGNMENT_BYTES: usize = 64;

/// A value and its tensors: arguments, a result, a function, what a worker is set up with. The value is written once,
/// by whoever makes it, and read by whoever wants it.
#[derive(Clone, Debug, Default)]
pub struct Packet {
    pub(crate) bytes: Vec<u8>,
    pub(crate) tensors: Tensors,
}

impl Packet {
    /// Writes a value, with tensors that are kept as they are.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a reference in it: those travel in calls alone, where they are counted;
    /// [`codec::encode`]'s.
    pub fn new(value: &Value, tensors: Tensors) -> Result<Self> {
        value.check_tensors(tensors.len())?;
        value.try_visit(&mut |value| match value {
            Value::Ref { .. } => {
                let error = Error::new(ErrorKind::InvalidArgument, "a reference in a task of a pool");
                Err(error.hint("references travel in calls alone, where they are counted; send the value"))
            }
            _ => Ok(()),
        })?;
        Ok(Self { bytes: codec::encode(value)?, tensors })
    }

    /// Writes a value, and captures the tensors that are sent by copy: their owners may write them from then on.
    ///
    /// # Errors
    ///
    /// As [`Packet::new`]; `LimitExceeded` if there is no memory for the copies; `BufferInUse` for a tensor that is
    /// being written; `InvalidArgument` for one that is to be shared and lies where no other process reaches it.
    pub fn captured(node: &Node, value: &Value, parts: Parts) -> Result<Self> {
        let capture = |part: Part| match part.mode() {
            Mode::Copy => node.capture(part.tensor()),
            Mode::Move => Ok(part.into_tensor()),
            Mode::Share => shared(node, part.into_tensor()),
        };
        Self::new(value, parts.into_iter().map(capture).collect::<Result<_>>()?)
    }

    /// Reads the value.
    ///
    /// # Errors
    ///
    /// `Protocol` for what nobody has written.
    pub fn value(&self) -> Result<Value> {
        let value = codec::decode(&self.bytes)?;
        value.check_tensors(self.tensors.len())?;
        Ok(value)
    }

    /// The tensors.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The value, and the tensors that are in it.
    ///
    /// # Errors
    ///
    /// As [`Packet::value`].
    pub fn into_value(self) -> Result<(Value, Tensors)> {
        Ok((self.value()?, self.tensors))
    }

    /// How much it is, about.
    pub(crate) fn weight_bytes(&self) -> usize {
        let tensors: usize = self.tensors.iter().map(Tensor::len_bytes).sum();
        self.bytes.len() + tensors
    }
}

/// How a tensor of a task leaves for a worker, which may reach this node's memory. What is captured or shared belongs
/// to nobody who would write it, so such a worker gets the memory as it is; and if it dies before it has begun, so does
/// the next one.
pub(crate) fn leaving(node: &Node, tensor: &Tensor, reaches: bool) -> Part {
    let is_there = tensor.offset_bytes().is_multiple_of(LENT_ALIGNMENT_BYTES) && node.arena().owns(tensor.buffer());
    let is_worth = tensor.len_bytes() >= LENT_BYTES_MIN || tensor.buffer().is_shared_alias();
    let mode = if reaches && is_there && is_worth { Mode::Share } else { Mode::Copy };
    Part::new(tensor.clone(), mode)
}

/// A tensor that its owner and the workers see at the same time.
fn shared(node: &Node, tensor: Tensor) -> Result<Tensor> {
    if !node.arena().owns(tensor.buffer()) || !tensor.offset_bytes().is_multiple_of(LENT_ALIGNMENT_BYTES) {
        let what = format!(
            "an array of {} bytes that is to be shared lies in memory of this process alone",
            tensor.len_bytes()
        );
        let error = Error::new(ErrorKind::InvalidArgument, what);
        return Err(error.hint("make it with `empty` of the mesh, or send it by copy"));
    }
    tensor.buffer().share()?;
    Ok(tensor)
}
