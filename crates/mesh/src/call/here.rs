//! Calls of a node to itself: the same services, without a link.

use super::form::{RequestTag, Written, no_service};
use super::pending::Pending;
use super::serving::{Begins, Delivery, Serves};
use super::{HERE, Lane, Reply};
use crate::driver::Shared;
use crate::endpoints::ANSWERS;
use crate::reference::{Brought, Mention, Promises, Ref, Refs};
use sheave_base::{Error, ErrorKind, Result, Tag};
use sheave_net::{Envelope, Message, Outgoing, Part, Parts, Tensors};
use sheave_tensor::{Mode, Tensor, copy_bytes};
use std::sync::Arc;
use std::time::Instant;

impl Shared {
    /// Delivers a request of this node to itself, which is read as one that came over a link.
    pub(super) fn call_here(
        self: &Arc<Self>,
        message: Outgoing,
        pending: Box<Pending>,
        (names, held): (&[Mention], Option<Refs>),
        until: Option<Instant>,
    ) -> Result<()> {
        let Envelope { tag, context: service, correlation, .. } = message.envelope;
        let refs = self.held_here(names, held)?;
        let tensors = self.captured_here(message.parts)?;
        let Some(found) = self.service_here(service) else {
            return Err(no_service(pending.service.as_str()).operation(pending.method.to_cow()));
        };
        let patience = until.filter(|_| !pending.runs_anyway);
        let method = pending.method.clone();
        self.remember(correlation, pending, until)?;
        let promises = match names.iter().any(|mention| mention.fills) {
            true => self.references.promises_here(names, &refs, correlation, method.as_str()),
            false => Promises::default(),
        };
        let mark = (found.lane() != Lane::Inline).then(|| self.calls.requests.note((HERE, correlation)));
        let reply = Reply::to(self, (HERE, correlation), patience, mark, None).filling(&promises);
        let brought = Brought { refs, promises, error: None };
        let (tag, control, begins) = (RequestTag::of(tag), message.control, Begins(None));
        found.deliver(self, Delivery { service, from: self.me, tag, control, tensors, brought, reply, begins });
        Ok(())
    }

    /// The service of this number.
    pub(super) fn service_here(&self, number: u64) -> Option<Arc<dyn Serves>> {
        self.calls.services.read().get(&number).map(|(_, service)| Arc::clone(service))
    }

    /// The references of these names, unless they are at hand.
    pub(super) fn held_here(&self, names: &[Mention], held: Option<Refs>) -> Result<Vec<Ref>> {
        let find = || names.iter().map(|mention| self.references.find(mention.name)).collect();
        held.map_or_else(find, |held| Ok(held.into_vec()))
    }

    pub(super) fn captured_here(&self, parts: Parts) -> Result<Tensors> {
        parts.into_iter().map(|part| self.capture(part)).collect()
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

    /// The answer of this node to itself, which is read as one that came over a link.
    pub(super) fn answered_here(&self, correlation: u64, written: Result<Written>) {
        let Some(call) = self.calls.take(correlation) else { return };
        let answer = written.and_then(|Written { control, names, parts }| {
            let mut parts = self.captured_here(parts)?;
            // An error comes in place of tensors, and a call that asks for some ends with it.
            if let Some(ground) = call.ground.as_ref().filter(|_| !parts.is_empty()) {
                fill(&ground.places, &mut parts)?;
            }
            let brought = Brought { refs: self.held_here(&names, None)?, ..Brought::default() };
            let envelope = Envelope { correlation, ..Envelope::of(ANSWERS, Tag(names.len() as u64), 0) };
            Ok((Message { envelope, source: HERE, sequence: 0, control, parts }, brought))
        });
        match answer {
            Ok((message, brought)) => call.answered(message, brought, || None, |_| {}),
            Err(error) => call.end(error),
        }
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
