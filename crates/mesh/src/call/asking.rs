//! The calling side: how a call leaves, and what ends it before its answer.

use super::form::{Read, RequestTag, named_request, numbered_request, read_numbered};
use super::name::{ServiceName, Text};
use super::pending::{Pending, Reading};
use super::window::Leaving;
use super::{Answer, CANCELLED, Call, CallOptions, HERE, Leases, Method, UNLINKED, answer};
use crate::awaited::Sort;
use crate::driver::Shared;
use crate::endpoints::{CALLS, REQUESTS};
use crate::reference::{Mention, Ref, Refs, names_in};
use crate::runtime::Timer;
use sheave_base::clock;
use sheave_base::planted::{self, Bug};
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Result, Tag, Work, limits};
use sheave_net::{Envelope, Ground, Outgoing, Parts, Tensors};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// A call that is about to be made.
pub(super) struct Asking {
    pub(super) service: ServiceName,
    pub(super) method: Text,
    /// The method's number; zero if it has a name alone.
    pub(super) number: u32,
    /// What the waits for it are called.
    operation: &'static str,
    pub(super) control: Vec<u8>,
    /// The references in it.
    pub(super) names: Vec<Mention>,
    /// The references themselves, where they are at hand.
    pub(super) held: Option<Refs>,
    pub(super) tensors: Parts,
    pub(super) places: Tensors,
    leases: Option<Leases>,
    pub(super) deadline: Option<Duration>,
    pub(super) runs_anyway: bool,
}

impl Asking {
    /// A call of a method by its name.
    fn named(service: ServiceName, method: &str, call: Call) -> Result<Self> {
        let Call { args, tensors, places, leases, deadline, runs_anyway } = call;
        args.check_tensors(tensors.len())?;
        let control = named_request(method, &args)?;
        // A service that is called without a method is what errors name.
        let method = if method.is_empty() { service.text() } else { Text::Shared(method.into()) };
        let names = names_in(&args);
        let asking = Self::of_list(service, method, control, names);
        Ok(Self { tensors, places, leases, deadline, runs_anyway, ..asking })
    }

    /// A call of a method by its name that takes nothing along beside these arguments.
    pub(super) fn of_list(service: ServiceName, method: Text, control: Vec<u8>, names: Vec<Mention>) -> Self {
        let (number, operation, held, leases, deadline) = (0, "call", None, None, None);
        let (tensors, places, runs_anyway) = (Parts::new(), Tensors::default(), false);
        Self {
            service,
            method,
            number,
            operation,
            control,
            names,
            held,
            tensors,
            places,
            leases,
            deadline,
            runs_anyway,
        }
    }

    /// A call of a method by its number.
    fn numbered<M: Method>(args: &M::Args, options: CallOptions) -> Result<Self> {
        let CallOptions { tensors, refs, fills, places, leases, deadline } = options;
        let names: Vec<Mention> = refs.iter().map(Ref::mention).chain(fills.iter().map(Ref::mention_to_fill)).collect();
        let control = numbered_request(&names, args).map_err(|error| error.operation(M::NAME))?;
        Ok(Self {
            service: const { ServiceName::new(M::SERVICE) },
            method: Text::Constant(M::NAME),
            number: M::ID,
            operation: M::NAME,
            control,
            names,
            held: None,
            tensors,
            places,
            leases,
            deadline,
            runs_anyway: M::runs_anyway(args),
        })
    }
}

/// What a request says of the time for which its caller waits: in milliseconds, and zero for ever. Of one that has
/// begun it counts the whole, or the callee would give up before the caller does.
pub(super) fn patience_ms(until: Option<Instant>, now: Instant) -> u32 {
    let left = until.map(|until| until.saturating_duration_since(now).as_nanos().div_ceil(1_000_000));
    left.map_or(0, |left| u32::try_from(left).unwrap_or(u32::MAX).max(1))
}

/// Whether a call that ends so may leave its handler running.
fn ends_alone(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Cancelled | ErrorKind::DeadlineExceeded)
}

impl Shared {
    /// Calls a method by its name.
    pub(crate) fn call(
        self: &Arc<Self>,
        to: NodeId,
        service: ServiceName,
        method: &str,
        call: Call,
    ) -> Result<Work<Answer>> {
        self.ask(to, Asking::named(service, method, call)?, answer::decode)
    }

    /// Calls a method by its number.
    pub(crate) fn call_typed<M: Method>(
        self: &Arc<Self>,
        to: NodeId,
        args: &M::Args,
        options: CallOptions,
    ) -> Result<Work<Answer<M::Answer>>> {
        self.ask(to, Asking::numbered::<M>(args, options)?, read_numbered)
    }

    /// Calls a method by its name and wants no answer.
    pub(crate) fn cast(self: &Arc<Self>, to: NodeId, service: ServiceName, method: &str, call: Call) -> Result<()> {
        self.send_one_way(to, Asking::named(service, method, call)?)
    }

    /// Calls a method by its number and wants no answer.
    pub(crate) fn tell_typed<M: Method>(
        self: &Arc<Self>,
        to: NodeId,
        args: &M::Args,
        options: CallOptions,
    ) -> Result<()> {
        self.send_one_way(to, Asking::numbered::<M>(args, options)?)
    }

    pub(super) fn ask<T: Clone + Send + 'static>(
        self: &Arc<Self>,
        to: NodeId,
        asking: Asking,
        read: Read<T>,
    ) -> Result<Work<Answer<T>>> {
        match asking.names.iter().any(|mention| mention.fills) {
            true => self.ask_to_fill(to, asking, read),
            false => self.ask_alone(to, asking, read),
        }
    }

    /// Makes a call that is to fill promises.
    fn ask_to_fill<T: Clone + Send + 'static>(
        self: &Arc<Self>,
        to: NodeId,
        asking: Asking,
        read: Read<T>,
    ) -> Result<Work<Answer<T>>> {
        let begun = self.references.begin_filling(to, &asking.names);
        let fills = begun.map_err(|error| error.operation(asking.method.to_cow()))?;
        let title = format!("{} of {}", asking.method.as_str(), asking.service.as_str());
        let runs_anyway = asking.runs_anyway;
        let called = self.ask_alone(to, asking, read);
        let references = Arc::clone(&self.references);
        match &called {
            Err(error) => references.filling_failed(&fills, &title, error, false),
            Ok(work) => work.on_complete(move |outcome| match outcome {
                // Its handler goes on, and fills them or not.
                Err(error) if runs_anyway && error.happened_on().is_none() && ends_alone(error.kind()) => {
                    references.filling_ended(&fills);
                }
                Err(error) => references.filling_failed(&fills, &title, error, true),
                Ok(_) => references.filling_ended(&fills),
            }),
        }
        called
    }

    fn ask_alone<T: Send + 'static>(
        self: &Arc<Self>,
        to: NodeId,
        asking: Asking,
        read: Read<T>,
    ) -> Result<Work<Answer<T>>> {
        let begun = clock::now();
        let link = self.link_for(to, &asking.method)?;
        let correlation = self.calls.correlation.fetch_add(1, SeqCst) + 1;
        let Asking {
            service,
            method,
            number,
            operation,
            control,
            names,
            tensors,
            places,
            leases,
            deadline,
            runs_anyway,
            held,
        } = asking;
        let only = link.filter(|link| *link != HERE);
        let (completer, work) = self.node.governed(operation, only, self.awaited(Sort::Call, correlation));
        let context = service.number();
        let pending = Box::new(Pending {
            to,
            link: link.unwrap_or(UNLINKED),
            ground: (!places.is_empty()).then(|| Box::new(Ground { places, common: leases, ..Ground::default() })),
            refusal: None,
            is_landing: false,
            service,
            method,
            timer: None,
            begun,
            runs_anyway,
            end: Reading { completer: Some(completer), read },
        });
        let tag = RequestTag { method: number, references: names.len() as u32 }.to_tag();
        let envelope = Envelope { correlation, ..Envelope::of(REQUESTS, tag, context) };
        let until = deadline.map(|deadline| begun + deadline);
        self.send_call(Outgoing { envelope, control, parts: tensors }, pending, (&names, held), until)?;
        Ok(work)
    }

    fn send_call(
        self: &Arc<Self>,
        mut message: Outgoing,
        mut pending: Box<Pending>,
        (names, held): (&[Mention], Option<Refs>),
        until: Option<Instant>,
    ) -> Result<()> {
        pending.lease_the_rest()?;
        if pending.link == HERE {
            return self.call_here(message, pending, (names, held), until);
        }
        let link = Some(pending.link).filter(|link| *link != UNLINKED);
        let (to, runs_anyway) = (pending.to, pending.runs_anyway);
        let (method, correlation) = (pending.method.clone(), message.envelope.correlation);
        let patience = until.filter(|_| !runs_anyway);
        message.envelope.aux = patience_ms(patience, pending.begun);
        let passed = self.check_passing(to, names.iter().map(|mention| mention.name.owner));
        let passed = passed.and_then(|()| self.pass(to, names, held));
        let refs = passed.map_err(|error| error.operation(method.to_cow()))?;
        self.words_ride(to);
        let sent = self.remember(correlation, pending, until).and_then(|()| {
            let request = Leaving { to, message, until: patience, runs_anyway, refs, one_way: None };
            self.send_request(link, request).map_err(|error| {
                drop(self.calls.take(correlation));
                self.explain(self.death_of(to).unwrap_or(error)).asked_for(method.to_cow())
            })
        });
        if sent.is_err() {
            self.references.take_back(to, names.iter().map(|mention| mention.name));
        }
        sent
    }

    /// The references of these names, which a message to that node takes along.
    pub(super) fn pass(self: &Arc<Self>, to: NodeId, names: &[Mention], held: Option<Refs>) -> Result<Refs> {
        match held {
            Some(held) => self.references.pass_held(to, &held).map(|()| held),
            None => self.references.pass(to, names),
        }
    }

    /// Notes a call until it ends.
    pub(super) fn remember(
        self: &Arc<Self>,
        correlation: u64,
        mut call: Box<Pending>,
        until: Option<Instant>,
    ) -> Result<()> {
        let mut pending = self.calls.pending.lock();
        if pending.len() >= limits::CALLS_PENDING_MAX {
            let what = format!("{} calls of this node wait for their answers", limits::CALLS_PENDING_MAX);
            let error = Error::new(ErrorKind::LimitExceeded, what).hint("wait for some before calling again");
            drop(pending);
            return Err(error.operation(call.method.to_cow()));
        }
        // Its action looks for the call, for which it must wait until this lock is let go.
        call.timer = until.map(|until| self.expires(correlation, until)).transpose()?;
        pending.insert(correlation, call);
        Ok(())
    }

    /// Ends a call whose work is cancelled.
    pub(crate) fn cancel_call(&self, correlation: u64) {
        let Some(call) = self.calls.take_unless_landing(correlation) else { return };
        self.withdraw(&call, correlation);
        let error = Error::new(ErrorKind::Cancelled, "the call was cancelled; its handler may still run");
        let to = call.to;
        call.end(self.about(error, to));
    }

    /// Tells the callee that nobody waits for this call any more.
    fn withdraw(&self, call: &Pending, correlation: u64) {
        if call.runs_anyway || call.link == UNLINKED {
            return;
        }
        if call.link == HERE {
            return self.calls.requests.cancel((HERE, correlation));
        }
        self.say_cancelled(call.link, correlation);
    }

    pub(super) fn say_cancelled(&self, link: LinkId, correlation: u64) {
        if planted::strikes(Bug::CancelUnsaid) {
            return;
        }
        let envelope = Envelope { correlation, ..Envelope::of(CALLS, Tag(0), CANCELLED) };
        // With its link the call ends on the other side too.
        let _ = self.node.isend(link, Outgoing::control(envelope, Vec::new()));
    }

    /// Ends a call at its deadline, if it is not answered by then.
    fn expires(self: &Arc<Self>, correlation: u64, until: Instant) -> Result<Timer> {
        let shared = Arc::downgrade(self);
        let at = self.deadline(until.saturating_duration_since(clock::now()));
        self.ticker.at(at, move || {
            let Some(shared) = shared.upgrade() else { return };
            let Some(call) = shared.calls.take_unless_landing(correlation) else { return };
            shared.withdraw(&call, correlation);
            let (what, hint) = match call.link {
                UNLINKED => ("no link to the node yet", "it may be busy or stopped; give the call more time"),
                _ => ("the node has not answered", "it may be busy; give the call more time, or look at what it does"),
            };
            let error = Error::new(ErrorKind::DeadlineExceeded, what).hint(hint);
            let to = call.to;
            call.end(shared.about(error, to));
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callee_is_not_told_of_less_time_than_there_is() {
        let now = Instant::now();
        let told = |micros: u64| patience_ms(Some(now + Duration::from_micros(micros)), now);
        assert_eq!([0, 1, 1000, 1001, 3999, 4000].map(told), [1, 1, 1, 2, 4, 4]);
        assert_eq!((patience_ms(None, now), told(u64::MAX >> 12)), (0, u32::MAX));
    }
}
