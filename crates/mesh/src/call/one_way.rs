//! One-way calls: requests whose callers want no answer.
//!
//! A one-way call is a request of number 0, which no call has. It goes the way of every request, so it keeps its place
//! among the calls of the same service and obeys the same window. Nothing comes back while all goes well, and its
//! caller keeps nothing of it but, until the callee has begun with it, what it was to fill.
//!
//! **A failure is told once,** to those who can do something about it. What a failed handler leaves unfilled is
//! poisoned with its error, and that is all, for whoever uses the object learns of it. A failure that poisons nothing
//! goes back to the caller in a message of number 0 for [`ANSWERS`]: one for each link and service at a time, behind
//! which the callee keeps the first of the later ones. It says how many have failed in all, as words of room do of what
//! has begun, so that one that comes twice changes nothing. The caller notes it; the next one-way call of this service
//! on this node returns it and is not made, or [`check`](crate::Mesh::check_one_way) returns it. An answer takes along,
//! in front of it, what its caller was not told of; so whoever has the answer of a call knows of all failures that came
//! before in its mailbox.
//!
//! **A link that ends** takes with it what it had not delivered. Its window knows which one-way calls the callee has
//! not said to have begun with: what they were to fill is broken, and the others count as failed. Some of those may
//! have begun; the error says so. Of what has begun nobody hears more than that the callee is gone.
//!
//! **Bounds.** What waits for room counts as calls do; what has begun is the callee's own, by its lane or by the
//! [`Room`](crate::Room) that it keeps. A node's one-way calls of itself have no window: it has at most as many of them
//! as pending calls. The drawer of a promise counts it as open until its request has begun, and the owner until it is
//! filled.

use super::asking::Asking;
use super::form::{RequestTag, no_service};
use super::name::{ServiceName, Text};
use super::serving::{Begins, Counted, Delivery};
use super::window::Leaving;
use super::{Calls, HERE, Reply};
use crate::driver::Shared;
use crate::endpoints::{ANSWERS, REQUESTS};
use crate::reference::{Brought, Fills, Mention, Promises, Refs};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sheave_base::collections::HashMap;
use sheave_base::planted::{self, Bug};
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Result, Tag, Work, limits};
use sheave_net::{Envelope, Message, Outgoing};
use sheave_wire::{from_control, to_control};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};

/// The number of all one-way calls.
pub(super) const ONE_WAY: u64 = 0;

/// A one-way call as its caller keeps it, until its callee has begun with it.
pub(super) struct OneWay {
    to: NodeId,
    service: ServiceName,
    method: Text,
    fills: Fills,
}

impl OneWay {
    fn title(&self) -> String {
        format!("{} of {}", self.method.as_str(), self.service.as_str())
    }

    /// The promises that it was to fill.
    pub(super) fn into_fills(self) -> Fills {
        self.fills
    }
}

/// A one-way call as its callee keeps it.
pub(super) struct Heard {
    service: u64,
    /// As soon as the service has looked.
    pub(super) method: Text,
    /// Its place among those of this node to itself.
    _place: Option<Place>,
}

impl Heard {
    pub(super) fn of(service: u64) -> Self {
        Self { service, method: Text::Constant("one-way call"), _place: None }
    }
}

/// Frees a place among the one-way calls of a node to itself.
struct Place(Weak<Shared>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.calls.failures.here.fetch_sub(1, SeqCst);
        }
    }
}

/// The first of some failures, and how many there are.
struct Failure {
    error: Error,
    count: u64,
}

impl Failure {
    fn add(self, slot: &mut Option<Self>) {
        match slot {
            Some(first) => first.count = first.count.saturating_add(self.count),
            None => *slot = Some(self),
        }
    }

    fn into_error(self) -> Error {
        let error = match self.count {
            0 | 1 => self.error,
            count => self.error.context(format_args!("the first of {count} that failed")),
        };
        error.context("an earlier one-way call of this service")
    }
}

/// Failures of one-way calls, as the caller keeps them until somebody asks.
#[derive(Default)]
pub(super) struct Failures {
    by_service: Mutex<HashMap<(NodeId, u64), Failure>>,
    /// How many services have some.
    count: AtomicUsize,
    /// One-way calls of this node to itself.
    here: AtomicUsize,
}

impl Failures {
    fn note(&self, to: NodeId, service: u64, failure: Failure) {
        if planted::strikes(Bug::FailureLost) {
            return;
        }
        let mut by_service = self.by_service.lock();
        let mut slot = by_service.remove(&(to, service));
        failure.add(&mut slot);
        by_service.extend(slot.map(|failure| ((to, service), failure)));
        self.count.store(by_service.len(), SeqCst);
    }

    fn take(&self, to: NodeId, service: u64) -> Option<Error> {
        if self.count.load(SeqCst) == 0 {
            return None;
        }
        let mut by_service = self.by_service.lock();
        let failure = by_service.remove(&(to, service));
        self.count.store(by_service.len(), SeqCst);
        failure.map(Failure::into_error)
    }

    /// A node is gone, which tells more than its failures.
    pub(super) fn forget(&self, node: NodeId) {
        let mut by_service = self.by_service.lock();
        by_service.retain(|(to, _), _| *to != node);
        self.count.store(by_service.len(), SeqCst);
    }
}

/// The failures of one link's one-way calls of one service, for their caller.
#[derive(Default)]
pub(super) struct FailuresOut {
    /// There are some that the caller was not told of.
    is_due: AtomicBool,
    state: Mutex<Out>,
}

#[derive(Default)]
struct Out {
    /// A message with some has not left.
    is_under_way: bool,
    total: u64,
    /// The first one that the caller was not told of and the last one, by their numbers.
    first: Option<(u64, Error)>,
    last: Option<(u64, Error)>,
}

/// The word that tells a caller how many have failed in all, and with what the first one did of which it did not know.
#[derive(Serialize, Deserialize)]
struct Word {
    total: u64,
    error: Error,
}

impl FailuresOut {
    fn add(&self, error: Error) {
        let mut state = self.state.lock();
        state.total += 1;
        let one = (state.total, error);
        match state.first {
            Some(_) => state.last = Some(one),
            None => state.first = Some(one),
        }
        self.is_due.store(true, SeqCst);
    }

    fn word(&self) -> Option<Word> {
        self.state.lock().word()
    }

    /// As [`FailuresOut::word`], unless one is under way, as this one is from now on.
    fn next_word(&self) -> Option<Word> {
        let mut state = self.state.lock();
        let word = state.word().filter(|_| !state.is_under_way)?;
        state.is_under_way = true;
        Some(word)
    }

    fn has_left(&self) {
        self.state.lock().is_under_way = false;
    }

    /// The caller is told of so many.
    fn told(&self, total: u64) {
        let mut state = self.state.lock();
        if state.first.as_ref().is_some_and(|(number, _)| *number <= total) {
            state.first = state.last.take().filter(|(number, _)| *number > total);
            self.is_due.store(state.first.is_some(), SeqCst);
        }
    }
}

impl Out {
    fn word(&self) -> Option<Word> {
        self.first.as_ref().map(|(_, error)| Word { total: self.total, error: error.clone() })
    }
}

fn answerless(what: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("a one-way call has no answer, and so no {what}"))
        .hint("make a call that is answered")
}

impl Shared {
    /// Makes a one-way call.
    pub(super) fn send_one_way(self: &Arc<Self>, to: NodeId, asking: Asking) -> Result<()> {
        let named = |error: Error, method: &Text| error.operation(method.to_cow());
        for (is_asked, what) in [(!asking.places.is_empty(), "places"), (asking.deadline.is_some(), "deadline")] {
            if is_asked {
                return Err(named(answerless(what), &asking.method));
            }
        }
        self.check_one_way(to, &asking.service)?;
        let link = self.link_for(to, &asking.method)?;
        let Asking { service, method, number, control, names, held, tensors, .. } = asking;
        let fills = self.references.begin_filling(to, &names).map_err(|error| named(error, &method))?;
        let tag = RequestTag { method: number, references: names.len() as u32 }.to_tag();
        let envelope = Envelope { correlation: ONE_WAY, ..Envelope::of(REQUESTS, tag, service.number()) };
        let message = Outgoing { envelope, control, parts: tensors };
        let one_way = OneWay { to, service: service.clone(), method: method.clone(), fills: fills.clone() };
        let sent = match link {
            Some(HERE) => self.one_way_here(message, &one_way, &names, held),
            link => self.pass_and_send(link, message, one_way, (&names, held)),
        };
        sent.map_err(|error| {
            if !fills.is_empty() {
                let title = OneWay { to, service, method: method.clone(), fills: Fills::new() }.title();
                self.references.filling_failed(&fills, &title, &error, false);
            }
            named(error, &method)
        })
    }

    fn pass_and_send(
        self: &Arc<Self>,
        link: Option<LinkId>,
        message: Outgoing,
        one_way: OneWay,
        (names, held): (&[Mention], Option<Refs>),
    ) -> Result<()> {
        let to = one_way.to;
        self.check_passing(to, names.iter().map(|mention| mention.name.owner))?;
        let refs = self.pass(to, names, held)?;
        self.words_ride(to);
        let one_way = Some(Box::new(one_way));
        let request = Leaving { to, message, until: None, runs_anyway: true, refs, one_way };
        self.send_request(link, request).map_err(|error| {
            self.references.take_back(to, names.iter().map(|mention| mention.name));
            self.explain(self.death_of(to).unwrap_or(error))
        })
    }

    fn one_way_here(
        self: &Arc<Self>,
        message: Outgoing,
        one_way: &OneWay,
        names: &[Mention],
        held: Option<Refs>,
    ) -> Result<()> {
        let refs = self.held_here(names, held)?;
        let tensors = self.captured_here(message.parts)?;
        let service = message.envelope.context;
        let found = self.service_here(service).ok_or_else(|| no_service(one_way.service.as_str()))?;
        if self.calls.failures.here.fetch_add(1, SeqCst) >= limits::CALLS_PENDING_MAX {
            self.calls.failures.here.fetch_sub(1, SeqCst);
            let what = format!("{} one-way calls of this node to itself have not ended", limits::CALLS_PENDING_MAX);
            return Err(Error::new(ErrorKind::LimitExceeded, what).hint("wait for some, by a call that is answered"));
        }
        let heard = Heard { _place: Some(Place(Arc::downgrade(self))), ..Heard::of(service) };
        let promises = match one_way.fills.is_empty() {
            false => self.references.promises_here(names, &refs, ONE_WAY, one_way.method.as_str()),
            true => Promises::default(),
        };
        let reply = Reply::to(self, (HERE, ONE_WAY), None, None, None).filling(&promises).one_way(heard);
        let brought = Brought { refs, promises, error: None };
        let (tag, control, begins) = (RequestTag::of(message.envelope.tag), message.control, Begins(None));
        found.deliver(self, Delivery { service, from: self.me, tag, control, tensors, brought, reply, begins });
        Ok(())
    }

    /// A one-way call of this node will not be begun, or nobody knows whether it was; `was_sent` is false where its
    /// callee has never heard of it.
    pub(super) fn one_way_failed(&self, one_way: &OneWay, error: &Error, was_sent: bool) {
        if !one_way.fills.is_empty() {
            return self.references.filling_failed(&one_way.fills, &one_way.title(), error, was_sent);
        }
        // The death of its callee tells more, and is told by whatever needs that next.
        if self.death_of(one_way.to).is_some() {
            return;
        }
        let error = match was_sent {
            true => error.clone().context("its callee may have begun with it or not"),
            false => error.clone(),
        };
        let error = error.operation(one_way.method.to_cow());
        self.calls.failures.note(one_way.to, one_way.service.number(), Failure { error, count: 1 });
    }

    /// A one-way call that came to this node over a link, or from itself, has ended. `error` is why it failed, if that
    /// has poisoned nothing.
    pub(super) fn one_way_ended(self: &Arc<Self>, heard: &Heard, error: Option<Error>, counted: Option<&Arc<Counted>>) {
        let Some(error) = error else { return };
        let error = error.operation(heard.method.to_cow());
        match counted {
            Some(counted) => {
                counted.failures.add(error);
                self.send_failures_of(counted);
            }
            None => self.calls.failures.note(self.me, heard.service, Failure { error, count: 1 }),
        }
    }

    /// Sends what there is to say of failures, unless something is on its way.
    fn send_failures_of(self: &Arc<Self>, counted: &Arc<Counted>) {
        while let Some(word) = counted.failures.next_word() {
            match self.say_failures(counted, &word) {
                Ok(work) if !work.is_done() => {
                    let (shared, counted) = (Arc::clone(self), Arc::clone(counted));
                    work.on_complete(move |_| {
                        counted.failures.has_left();
                        // The link's locks may be held.
                        shared.calls.requests.note_failures(&counted);
                        shared.node.remind(REQUESTS);
                    });
                    return;
                }
                // With its link all its calls have ended at the caller.
                _ => counted.failures.has_left(),
            }
        }
    }

    fn say_failures(&self, counted: &Counted, word: &Word) -> Result<Work<()>> {
        let envelope = Envelope::of(ANSWERS, Tag(0), counted.service);
        let sent =
            to_control(word).and_then(|control| self.node.isend(counted.link, Outgoing::control(envelope, control)));
        counted.failures.told(word.total);
        sent
    }

    /// An answer goes out next: the word of what failed before it goes first, though another thread may just be sending
    /// the same.
    pub(super) fn failures_go_first(&self, counted: &Counted) {
        if counted.failures.is_due.load(SeqCst)
            && let Some(word) = counted.failures.word()
        {
            // With its link the answer is lost too.
            drop(self.say_failures(counted, &word));
        }
    }

    /// Sends what has waited for the way.
    pub(super) fn send_failures(&self) {
        let counted = self.calls.requests.take_failures();
        if counted.is_empty() {
            return;
        }
        if let Some(this) = self.this() {
            counted.iter().for_each(|counted| this.send_failures_of(counted));
        }
    }

    /// The failures of one-way calls of that service on that node that have been heard and not told.
    pub(crate) fn check_one_way(&self, to: NodeId, service: &ServiceName) -> Result<()> {
        let Some(error) = self.calls.failures.take(to, service.number()) else { return Ok(()) };
        let is_elsewhere = to != self.me && error.about().is_none();
        let error = self.peer_of(to).filter(|_| is_elsewhere).into_iter().fold(error, Error::origin);
        self.note_error(&error);
        Err(error)
    }
}

impl Calls {
    /// A callee says that one-way calls of this node have failed. Called in the order of its link, so before anybody
    /// sees an answer that has come behind it.
    pub(super) fn hear_of_failures(&self, message: &Message) {
        let (link, service) = (message.source, message.envelope.context);
        // Who was asked for nothing has nothing to say.
        let Some(window) = self.windows.find(link, service) else { return };
        let word = from_control(&message.control);
        let (to, count, error) = {
            let mut window = window.lock();
            // A word that cannot be read is about one at least.
            let Word { total, error } = word.unwrap_or_else(|error| Word { total: window.failed + 1, error });
            let count = total.saturating_sub(window.failed);
            window.failed += count;
            (window.to, count, error)
        };
        if count > 0 {
            self.failures.note(to, service, Failure { error, count });
        }
    }
}
