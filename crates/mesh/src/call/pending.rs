//! A call that is not answered.

use super::Leases;
use super::answer::{Answer, decode};
use crate::reference::Brought;
use crate::runtime::Timer;
use sheave_base::work::Completer;
use sheave_base::{Error, LinkId, NodeId, Peer, Result};
use sheave_net::{Arrival, Ground, Message, Tensors, WriteLeases, check_places};
use smallvec::SmallVec;
use std::time::Instant;

/// The name of a service. Short ones are not allocated.
pub(super) type ServiceName = SmallVec<[u8; 24]>;

pub(super) struct Pending {
    /// Who is to answer.
    pub(super) to: NodeId,
    pub(super) link: LinkId,
    pub(super) completer: Completer<Answer>,
    pub(super) places: Tensors,
    pub(super) leases: (WriteLeases, Option<Leases>),
    /// Why the answer's tensors could not land where they should.
    pub(super) refusal: Option<Error>,
    /// The answer is being written to the places, and its link has them and their leases. What ends the call would not
    /// end that, so nothing does but the answer or the end of its link.
    pub(super) is_landing: bool,
    pub(super) service: ServiceName,
    pub(super) method: String,
    /// Ends it at its deadline.
    pub(super) timer: Option<Timer>,
    pub(super) begun: Instant,
    /// Its callee does not hear that it has ended before its answer.
    pub(super) runs_anyway: bool,
}

impl Pending {
    /// Where the tensors of the arriving answer go. One that does not fit, or brings an error instead of tensors, is
    /// received elsewhere.
    pub(super) fn admit(&mut self, arrival: &Arrival<'_>) -> Ground {
        if self.places.is_empty() || arrival.parts.is_empty() {
            return Ground::default();
        }
        match check_places(&self.places, arrival) {
            Ok(()) => {
                self.is_landing = true;
                let (leases, common) = std::mem::take(&mut self.leases);
                Ground { places: std::mem::take(&mut self.places), leases, common }
            }
            Err(refusal) => {
                self.refusal = Some(refusal);
                Ground::default()
            }
        }
    }

    /// Ends with the answer. An error in it is shown to `note` before.
    pub(super) fn answered(
        mut self,
        message: Message,
        brought: Brought,
        origin: Option<Peer>,
        note: impl FnOnce(&Error),
    ) {
        let asked_for_tensors = !self.places.is_empty() && !self.is_landing;
        let outcome = match (self.refusal.take(), decode(message, brought)) {
            (_, Err(error)) => Err(match origin {
                Some(origin) => error.origin(origin),
                None => error,
            }),
            (Some(refusal), Ok(_)) => Err(refusal),
            (None, Ok(answer)) if asked_for_tensors && answer.tensors.is_empty() => Err(Error::new(
                sheave_base::ErrorKind::Mismatch,
                format!("the answer has no tensors where {} were asked for", self.places.len()),
            )),
            (None, Ok(answer)) => Ok(answer),
        };
        if let Err(error) = &outcome {
            note(error);
        }
        self.end(outcome);
    }

    /// Frees the places, then tells whoever waits.
    pub(super) fn end(self, outcome: Result<Answer>) {
        let Self { completer, places, leases, method, begun, timer, .. } = self;
        drop((places, leases, timer));
        completer.complete(outcome.map_err(|error| {
            let error = error.operation(method);
            if error.after().is_none() { error.elapsed(begun.elapsed()) } else { error }
        }));
    }
}
