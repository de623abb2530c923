//! A call that is not answered.

use super::answer::Answer;
use super::form::{Read, no_service, says_no_service};
use super::name::{ServiceName, Text};
use crate::reference::Brought;
use crate::runtime::Timer;
use sheave_base::clock;
use sheave_base::work::Completer;
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Peer, Result};
use sheave_net::{Arrival, Ground, Message, check_places};
use sheave_tensor::{Tensor, WriteLease};
use std::time::Instant;

/// A call that is not answered. Calls of all types of results are kept in one table, each in one piece of memory.
pub(super) struct Pending<E: ?Sized = dyn End> {
    /// Who is to answer.
    pub(super) to: NodeId,
    pub(super) link: LinkId,
    /// The places of the answer's tensors and their leases, if there are any: few calls have some.
    pub(super) ground: Option<Box<Ground>>,
    /// Why the answer's tensors could not land where they should.
    pub(super) refusal: Option<Error>,
    /// The answer is being written to the places, and its link has them and their leases. What ends the call would not
    /// end that, so nothing does but the answer or the end of its link.
    pub(super) is_landing: bool,
    pub(super) service: ServiceName,
    pub(super) method: Text,
    /// Ends it at its deadline.
    pub(super) timer: Option<Timer>,
    pub(super) begun: Instant,
    /// Its callee does not hear that it has ended before its answer.
    pub(super) runs_anyway: bool,
    pub(super) end: E,
}

/// Completes the work of a call.
pub(super) trait End: Send {
    /// Completes it with what the answer says. `judge` hears first whether that can be read, and has the last word on
    /// errors; it makes none good.
    fn end(&mut self, outcome: Result<(Message, Brought)>, judge: &dyn Fn(Result<()>) -> Result<()>);
}

/// A work, and how its result is read.
pub(super) struct Reading<T> {
    pub(super) completer: Option<Completer<Answer<T>>>,
    pub(super) read: Read<T>,
}

impl<T: Send> End for Reading<T> {
    fn end(&mut self, outcome: Result<(Message, Brought)>, judge: &dyn Fn(Result<()>) -> Result<()>) {
        let Some(completer) = self.completer.take() else { return };
        let read = outcome.and_then(|(message, brought)| (self.read)(message, brought));
        let judged = judge(read.as_ref().map(drop).map_err(Error::clone));
        completer.complete(judged.and(read));
    }
}

impl Pending {
    /// Takes leases of the places that those which came along do not cover.
    pub(super) fn lease_the_rest(&mut self) -> Result<()> {
        let Some(ground) = &mut self.ground else { return Ok(()) };
        let held = ground.common.as_deref().map_or(&[][..], Vec::as_slice);
        let is_covered = |place: &&Tensor| held.iter().any(|lease: &WriteLease| lease.buffer().is_same(place.buffer()));
        let rest = ground.places.iter().filter(|place| !is_covered(place));
        ground.leases = rest.map(|place| place.write_lease("call")).collect::<Result<_>>()?;
        Ok(())
    }

    /// Where the tensors of the arriving answer go. One that does not fit, or brings an error instead of tensors, is
    /// received elsewhere.
    pub(super) fn admit(&mut self, arrival: &Arrival<'_>) -> Ground {
        let Some(ground) = self.ground.as_deref().filter(|_| !arrival.parts.is_empty()) else {
            return Ground::default();
        };
        match check_places(&ground.places, arrival) {
            Ok(()) => {
                self.is_landing = true;
                self.ground.take().map(|ground| *ground).unwrap_or_default()
            }
            Err(refusal) => {
                self.refusal = Some(refusal);
                Ground::default()
            }
        }
    }

    /// Ends with the answer. An error in it is shown to `note` before.
    pub(super) fn answered(
        self: Box<Self>,
        message: Message,
        brought: Brought,
        origin: impl Fn() -> Option<Peer>,
        note: impl Fn(&Error),
    ) {
        let (has_tensors, refusal) = (!message.parts.is_empty(), self.refusal.clone());
        // Of one that landed its link had them.
        let asked = self.ground.as_ref().map_or(0, |ground| ground.places.len());
        let outcome = match says_no_service(&message) {
            true => Err(no_service(self.service.as_str())),
            false => Ok((message, brought)),
        };
        self.finish(outcome, &|read| {
            let judged = match (read, &refusal) {
                (Err(error), _) => Err(origin().into_iter().fold(error, Error::origin)),
                (Ok(()), Some(refusal)) => Err(refusal.clone()),
                (Ok(()), None) if asked > 0 && !has_tensors => {
                    let what = format!("the answer has no tensors where {asked} were asked for");
                    Err(Error::new(ErrorKind::Mismatch, what))
                }
                (Ok(()), None) => Ok(()),
            };
            judged.inspect_err(&note)
        });
    }

    /// Ends with an error of this node.
    pub(super) fn end(self: Box<Self>, error: Error) {
        self.finish(Err(error), &|judged| judged);
    }

    /// Frees the places, then tells whoever waits.
    #[expect(clippy::boxed_local, reason = "its size is not known")]
    fn finish(mut self: Box<Self>, outcome: Result<(Message, Brought)>, judge: &dyn Fn(Result<()>) -> Result<()>) {
        drop((self.ground.take(), self.timer.take()));
        let (method, begun) = (self.method.clone(), self.begun);
        self.end.end(outcome, &|read| {
            judge(read).map_err(|error| {
                let error = error.operation(method.to_cow());
                if error.after().is_none() { error.elapsed(clock::since(begun)) } else { error }
            })
        });
    }
}
