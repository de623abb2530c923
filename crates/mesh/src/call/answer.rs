//! What comes back from a call, and how it is written.

use crate::reference::{Brought, Ref};
use sheave_base::{Error, ErrorKind, Result};
use sheave_net::Message;
use sheave_tensor::Tensor;
use sheave_wire::{Value, codec, from_control, to_control};

/// First byte of an answer's control part.
const FINE: u8 = 0;
const FAILED: u8 = 1;

/// What a handler returned: a [`Value`], or the result of a [`Method`](crate::Method).
#[derive(Clone, Debug, Default)]
pub struct Answer<T = Value> {
    /// The result. A [`Value::Tensor`] in it is an index into `tensors`.
    pub value: T,
    /// Its tensors. Those that were received in place are handles to the memory that the caller named.
    pub tensors: Vec<Tensor>,
    /// The references in the value, or those that came along with it. They are this node's for as long as the answer
    /// lives; [`crate::Mesh::hold`] makes more handles to them.
    pub refs: Vec<Ref>,
}

/// The control part of an answer.
pub(super) fn encode(outcome: Result<&Value, &Error>) -> Result<Vec<u8>> {
    match outcome {
        Ok(value) => {
            let mut control = vec![FINE];
            codec::encode_to(value, &mut control)?;
            Ok(control)
        }
        Err(error) => {
            let mut control = vec![FAILED];
            control.extend(to_control(error)?);
            Ok(control)
        }
    }
}

pub(super) fn decode(message: Message, brought: Brought) -> Result<Answer> {
    match message.control.split_first() {
        Some((&FINE, rest)) => {
            let value = codec::decode(rest)?;
            value.check_tensors(message.parts.len())?;
            match brought.error {
                Some(error) => Err(error),
                None => Ok(Answer { value, tensors: message.parts.into_vec(), refs: brought.refs }),
            }
        }
        Some((&FAILED, rest)) => Err(from_control::<Error>(rest)?),
        _ => Err(Error::new(ErrorKind::Protocol, "an answer that neither succeeded nor failed")),
    }
}
