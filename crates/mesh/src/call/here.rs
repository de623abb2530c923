//! Calls of a node to itself: the same services, without a link.

use super::{Answer, Asked, HERE, Lane, Reply, Request};
use crate::driver::Shared;
use crate::reference::{Promises, Ref, names_in};
use sheave_base::{Error, ErrorKind, Result, Tag, Work};
use sheave_net::{Outgoing, Part, Parts};
use sheave_tensor::{Mode, Tensor, copy_bytes};
use sheave_wire::codec;
use smallvec::SmallVec;
use std::sync::Arc;

impl Shared {
    pub(super) fn call_here(self: &Arc<Self>, message: Outgoing, asked: Asked, refs: Vec<Ref>) -> Result<Work<Answer>> {
        let correlation = message.envelope.correlation;
        let method = asked.method.clone();
        let (_, rest) = codec::decode_first(&message.control)?;
        let args = codec::decode(rest)?;
        let tensors = message.parts.into_iter().map(|part| self.capture(part)).collect::<Result<_>>()?;
        let found = self.calls.services.read().get(&message.envelope.context).map(|(_, service)| Arc::clone(service));
        let Some(service) = found else {
            let what = format!("this node has no service for \"{method}\"");
            return Err(Error::new(ErrorKind::NotFound, what).operation(method));
        };
        self.check_caller(service.callers(&method), &method, (self.me, HERE))?;
        let until = asked.patience();
        let work = self.remember(correlation, (self.me, HERE), asked)?;
        let has_references = message.envelope.tag != Tag(0);
        let promises = if has_references {
            self.references.promises_here(&args, correlation, &method)
        } else {
            Promises::default()
        };
        let call = (HERE, correlation);
        let mark = (service.lane() != Lane::Inline).then(|| self.calls.requests.note(call));
        let reply = Reply::to(self, call, until, mark, None).filling(&promises);
        let request = Request { from: self.me, method, args, tensors, refs, promises, reply };
        self.start(message.envelope.context, service, request, None);
        Ok(work)
    }

    /// What a receiver would have got.
    pub(super) fn capture(&self, part: Part) -> Result<Tensor> {
        let mode = part.mode();
        let tensor = part.into_tensor();
        match mode {
            Mode::Copy => self.copy_of(&tensor),
            Mode::Move if !tensor.buffer().is_unique() => {
                Err(Error::new(ErrorKind::BufferInUse, "a tensor sent by move has other handles")
                    .hint("drop the other handles and views first, or send by copy"))
            }
            Mode::Move => Ok(tensor),
            Mode::Share => {
                tensor.buffer().share()?;
                Ok(tensor)
            }
        }
    }

    fn copy_of(&self, tensor: &Tensor) -> Result<Tensor> {
        let _lease = tensor.read_lease("call")?;
        let copy = match Tensor::empty(self.node.arena(), tensor.dtype(), tensor.shape().clone()) {
            Err(error) if error.kind() == ErrorKind::LimitExceeded => {
                Tensor::private(tensor.dtype(), tensor.shape().clone())?
            }
            other => other?,
        };
        // SAFETY: both are contiguous and of the same length; the copy is ours alone, and the lease keeps writers away
        // from the source.
        unsafe { copy_bytes(copy.ptr(), tensor.ptr(), tensor.len_bytes()) };
        Ok(copy)
    }

    /// The answer of this node to itself.
    pub(super) fn answered_here(&self, correlation: u64, outcome: Result<(sheave_wire::Value, Parts)>) {
        let Some(call) = self.calls.pending.lock().remove(&correlation) else { return };
        let answer = outcome.and_then(|(value, parts)| {
            let mut tensors = parts.into_iter().map(|part| self.capture(part)).collect::<Result<SmallVec<_>>>()?;
            if !call.places.is_empty() {
                fill(&call.places, &mut tensors)?;
            }
            let refs = names_in(&value)
                .into_iter()
                .map(|mention| self.references.find(mention.name))
                .collect::<Result<_>>()?;
            Ok(Answer { value, tensors, refs })
        });
        call.end(answer);
    }
}

/// Copies an answer into the places that its caller holds the leases of.
fn fill(places: &[Tensor], tensors: &mut [Tensor]) -> Result<()> {
    let fits =
        |place: &Tensor, tensor: &Tensor| place.dtype() == tensor.dtype() && place.len_bytes() == tensor.len_bytes();
    if places.len() != tensors.len() || !places.iter().zip(&*tensors).all(|(place, tensor)| fits(place, tensor)) {
        return Err(Error::new(
            ErrorKind::Mismatch,
            "the answer's tensors do not fit into the buffers that were given",
        ));
    }
    for (place, tensor) in places.iter().zip(tensors) {
        // SAFETY: the lengths are equal, the call holds the write lease of the place, and the tensor is this answer's.
        unsafe { copy_bytes(place.ptr(), tensor.ptr(), tensor.len_bytes()) };
        *tensor = place.clone();
    }
    Ok(())
}
