//! Calls between nodes: a named method of a named service, with a value and tensors, and one answer.
//!
//! A request is a message for the endpoint [`REQUESTS`]. Its context names the service, its correlation pairs it with
//! its answer, its control part is the method and the arguments. The answer, for [`ANSWERS`], carries either a value
//! and tensors or the handler's [`Error`] whole, with the answering node as its origin. Words about calls, for
//! [`CALLS`], have no control part: their envelope says it all.
//!
//! **On the calling side** a table holds every call that is not answered. A call leaves it exactly once: with its
//! answer, when the link that carried it ends, at its deadline, when it is cancelled, or when the mesh ends. An answer
//! that finds no call is dropped.
//!
//! **Places.** Nobody but the link that carries an answer writes to a call's places. Until the answer begins to land
//! the call holds their write leases; from then on the landing does, which the link owns until the message is whole or
//! the link has given up writing it. So however a call ends, its places stay leased while a link may write to them. And
//! they are free when a call is seen to have ended: a call whose answer is landing outlives its deadline, a
//! cancellation and the end of the mesh. It cannot outlive its link: the end of a link is told once, after the link was
//! taken out of the node's table, and a call is noted before its request is sent, which fails on a link that is not in
//! the table. A node that leaves the mesh ends all its links right after its other calls, and so does one that failed.
//!
//! References in arguments and answers are counted where they leave and adopted where they arrive, see
//! [`crate::reference`]; a message's tag is the number of them.
//!
//! **Deadlines and cancellations travel.** A request says how long its caller waits, and a call that ends before its
//! answer says so on its link: what has not begun then never begins, and a handler that runs can ask
//! ([`Request::is_wanted`]). A call that [runs anyway](Call::runs_anyway) says neither.
//!
//! **On the answering side** each service has a [`Lane`] on which its handlers run; [`serving`] says how requests get
//! there. News of members that have left wait in the same queue, see [`leavers`].

mod answer;
mod callers;
pub(crate) mod executor;
mod guests;
mod here;
mod lane;
mod leavers;
mod pending;
mod service;
mod serving;
#[cfg(test)]
mod strangers;
mod window;

use crate::awaited::Sort;
use crate::driver::Shared;
use crate::endpoints::{ANSWERS, CALLS, REQUESTS};
use crate::engine::Member;
use crate::reference::{Brought, Mention, names_in};
use crate::runtime::Timer;
pub(crate) use leavers::HANDSHAKE_LOOK;
use leavers::Leavers;
use parking_lot::{Mutex, RwLock};
use pending::{Pending, ServiceName};
use serving::Requests;
use sha2::{Digest, Sha256};
use sheave_base::work::Completer;
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Result, Tag, Work, contain, limits};
use sheave_net::{Admission, Arrival, Envelope, Message, Outgoing, Parts, Tensors, WriteLeases};
use sheave_tensor::{Tensor, WriteLease};
use sheave_wire::Value;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
pub(crate) use window::Size;
use window::{Leaving, Windows};

pub use answer::Answer;
pub use callers::Callers;
pub use lane::Lane;
pub use service::{Reply, Request, Service};

/// What a call takes along.
#[derive(Default)]
pub struct Call {
    /// The arguments. [`Value::Tensor`] is an index into `tensors`; a [`Value::Ref`] must be held by the caller until
    /// the call is made, and is held by the callee from then on.
    pub args: Value,
    /// Tensors, and how they leave.
    pub tensors: Parts,
    /// Where the tensors of the answer are to land: one contiguous tensor for each, of the same dtype and size. Nobody
    /// may write to them until the call ends. Without any they land in the node's arena.
    pub places: Tensors,
    /// Write leases that the caller holds already, for places of several calls in one buffer. For all others the call
    /// takes its own.
    pub leases: Option<Leases>,
    /// The call ends with [`ErrorKind::DeadlineExceeded`] after this time; without one it may take as long as the peer
    /// lives. Its handler does not begin after it.
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

impl From<Value> for Call {
    fn from(args: Value) -> Self {
        Self { args, ..Self::default() }
    }
}

/// Stands for the link of a node to itself; links are numbered from 1.
const HERE: LinkId = LinkId(0);

/// The context of words for [`CALLS`] that a call is cancelled. They follow their request on its link.
const CANCELLED: u64 = 1;

/// The context of words for [`CALLS`] that so many requests have begun; the tag is the service's number, aux the count.
const BEGUN: u64 = 2;

/// A service and the number that it has on the wire.
pub(crate) fn number_of(service: &str) -> u64 {
    let digest = Sha256::digest(service.as_bytes());
    digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A service and its name.
type Named = (String, Arc<dyn Service>);

/// What the table of calls keeps of one.
struct Asked {
    service: ServiceName,
    method: String,
    places: Tensors,
    leases: Option<Leases>,
    until: Option<Instant>,
    begun: Instant,
    runs_anyway: bool,
}

impl Asked {
    /// When its caller waits no longer, where the callee is to know.
    fn patience(&self) -> Option<Instant> {
        self.until.filter(|_| !self.runs_anyway)
    }

    /// New leases for the places that those which came along do not cover.
    fn lease_the_rest(&self) -> Result<WriteLeases> {
        let held = self.leases.as_deref().map_or(&[][..], Vec::as_slice);
        let is_covered = |place: &&Tensor| held.iter().any(|lease| lease.buffer().is_same(place.buffer()));
        self.places.iter().filter(|place| !is_covered(place)).map(|place| place.write_lease("call")).collect()
    }
}

/// What a request says of the time for which its caller waits: in milliseconds, and zero for ever.
fn patience_ms(until: Option<Instant>, now: Instant) -> u32 {
    let left = until.map(|until| until.saturating_duration_since(now).as_millis());
    left.map_or(0, |left| u32::try_from(left).unwrap_or(u32::MAX).max(1))
}

/// Both sides of a node's calls.
pub(crate) struct Calls {
    services: RwLock<HashMap<u64, Named>>,
    pending: Mutex<HashMap<u64, Pending>>,
    correlation: AtomicU64,
    /// Answers and ended links, in the order in which they came.
    arrived: Mutex<VecDeque<Arrived>>,
    requests: Requests,
    windows: Windows,
    pub(crate) leavers: Leavers,
}

#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each message")]
enum Arrived {
    Answer(Message, Brought),
    /// So many requests of this link have begun at that service.
    Begun(LinkId, u64, u32),
    Ended(LinkId, Error),
}

impl Calls {
    pub(crate) fn new(shared: Weak<Shared>) -> Self {
        Self {
            services: RwLock::default(),
            pending: Mutex::default(),
            correlation: AtomicU64::new(0),
            arrived: Mutex::default(),
            requests: Requests::new(shared),
            windows: Windows::default(),
            leavers: Leavers::default(),
        }
    }

    pub(crate) fn admit(&self, link: LinkId, arrival: &Arrival<'_>, members: usize) -> Admission {
        if arrival.envelope.endpoint == ANSWERS {
            let mut pending = self.pending.lock();
            let call = pending.get_mut(&arrival.envelope.correlation).filter(|call| call.link == link);
            return Admission::Land(call.map(|call| call.admit(arrival)).unwrap_or_default());
        }
        self.requests.admit(link, arrival, Size::among(members))
    }

    /// Takes a message. `window` is that of the link it came over, where it is another one than that of members.
    pub(crate) fn take(&self, from: NodeId, message: Message, brought: Brought, window: impl FnOnce() -> Option<Size>) {
        if message.envelope.endpoint == ANSWERS {
            return self.arrived.lock().push_back(Arrived::Answer(message, brought));
        }
        self.requests.take(from, message, brought, window);
    }

    /// Takes a word about calls: the peer at the other end of that link waits no longer for one of its own, or has
    /// begun so many requests of this node's at one of its services.
    pub(crate) fn take_word(&self, link: LinkId, word: &Envelope) {
        match word.context {
            CANCELLED => self.requests.take_cancelled((link, word.correlation)),
            BEGUN => self.arrived.lock().push_back(Arrived::Begun(link, word.tag.0, word.aux)),
            _ => {}
        }
    }

    pub(crate) fn link_ended(&self, link: LinkId, reason: &Error) {
        self.arrived.lock().push_back(Arrived::Ended(link, reason.clone()));
    }

    /// All survivors agree that this member is gone, and nothing more of it will come.
    pub(crate) fn member_lost(&self, member: Option<&Member>, error: &Error) {
        let Some(member) = member else { return };
        for service in self.all_services() {
            contain::told("a service that heard of a loss", || service.lost(member, error));
        }
    }

    fn all_services(&self) -> Vec<Arc<dyn Service>> {
        self.services.read().values().map(|(_, service)| Arc::clone(service)).collect()
    }

    /// The mesh has ended for this node: so have its calls, but for those whose answers are landing. They end with
    /// their links, which whoever calls this ends too.
    pub(crate) fn fail_all(&self, error: &Error) {
        for (_, call) in self.drain(|call| !call.is_landing) {
            call.end(Err(error.clone()));
        }
        self.requests.executor.stop();
    }

    /// Takes a call out, unless its answer is being written to its places.
    fn take_unless_landing(&self, correlation: u64) -> Option<Pending> {
        let mut pending = self.pending.lock();
        if pending.get(&correlation)?.is_landing { None } else { pending.remove(&correlation) }
    }

    /// Takes the calls out of which `is_over` is true.
    fn drain(&self, is_over: impl Fn(&Pending) -> bool) -> Vec<(u64, Pending)> {
        self.pending.lock().extract_if(|_, call| is_over(call)).collect()
    }

    /// To whom, which service and which method a call is that is not answered.
    pub(crate) fn asked(&self, correlation: u64) -> Option<(NodeId, String, String)> {
        let pending = self.pending.lock();
        let call = pending.get(&correlation)?;
        Some((call.to, String::from_utf8_lossy(&call.service).into_owned(), call.method.clone()))
    }

    /// What a call waits for that `from` has made to a service of this node.
    pub(crate) fn awaited(&self, service: &str, from: NodeId, correlation: u64) -> Option<String> {
        let found = self.services.read().get(&number_of(service)).map(|(_, service)| Arc::clone(service));
        found?.awaited(from, correlation)
    }
}

impl Shared {
    /// Adds a service under its name.
    pub(crate) fn serve_as(&self, name: &str, service: Arc<dyn Service>) -> Result<()> {
        let mut services = self.calls.services.write();
        if services.len() >= limits::SERVICES_MAX {
            return Err(Error::new(
                ErrorKind::LimitExceeded,
                format!("a node has at most {} services", limits::SERVICES_MAX),
            ));
        }
        match services.entry(number_of(name)) {
            std::collections::hash_map::Entry::Occupied(taken) => {
                let what = format!("this node has a service \"{}\" already", taken.get().0);
                Err(Error::new(ErrorKind::AlreadyExists, what).operation("serve"))
            }
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert((name.to_owned(), service));
                Ok(())
            }
        }
    }

    /// Takes a service away; its requests are refused from now on.
    pub(crate) fn serve_no_more(&self, name: &str) {
        let removed = self.calls.services.write().remove(&number_of(name));
        // Not under the lock: its drop may do anything.
        drop(removed);
    }

    /// Calls a method on `to`.
    pub(crate) fn call(self: &Arc<Self>, to: NodeId, service: &str, method: &str, call: Call) -> Result<Work<Answer>> {
        let names = names_in(&call.args);
        if names.iter().any(|mention| mention.fills) {
            return self.call_to_fill(to, service, method, call, names);
        }
        self.call_with(to, service, method, call, names)
    }

    /// As [`Shared::call`], with the references in its arguments.
    pub(crate) fn call_with(
        self: &Arc<Self>,
        to: NodeId,
        service: &str,
        method: &str,
        call: Call,
        names: Vec<Mention>,
    ) -> Result<Work<Answer>> {
        let begun = Instant::now();
        if let Some(error) = self.failure() {
            return Err(error.clone().operation(method.to_owned()));
        }
        let Call { args, tensors, places, leases, deadline, runs_anyway } = call;
        let control = service::encode_request(method, &args)?;
        args.check_tensors(tensors.len())?;
        let correlation = self.calls.correlation.fetch_add(1, SeqCst) + 1;
        let (tag, context) = (Tag(names.len() as u64), number_of(service));
        let until = deadline.map(|deadline| begun + deadline);
        let service = ServiceName::from_slice(service.as_bytes());
        let asked = Asked { service, method: method.to_owned(), places, leases, until, begun, runs_anyway };
        let aux = patience_ms(asked.patience(), begun);
        let envelope = Envelope { correlation, aux, ..Envelope::of(REQUESTS, tag, context) };
        let message = Outgoing { envelope, control, parts: tensors };
        if to == self.me {
            let refs = names.into_iter().map(|mention| self.references.find(mention.name)).collect::<Result<_>>()?;
            return self.call_here(message, asked, refs);
        }
        let linking = match self.routes.get(to) {
            Some(link) => Work::ready("connect", Ok(link)),
            None => self.link_or_loss(to)?,
        };
        if !linking.wait_until(until, None)? {
            let error = Error::new(ErrorKind::DeadlineExceeded, "no link to the node yet").operation(method.to_owned());
            let error = error.hint("it may be busy or stopped; give the call more time");
            return Err(self.about(error.elapsed(begun.elapsed()), to));
        }
        let link = linking.wait().map_err(|error| error.operation(method.to_owned()))?;
        self.check_passing(to, names.iter().map(|mention| mention.name.owner))
            .map_err(|error| error.operation(method.to_owned()))?;
        let refs = self.references.pass(to, &names).map_err(|error| error.operation(method.to_owned()))?;
        self.words_ride(to);
        let until = asked.patience();
        let sent = self.remember(correlation, (to, link), asked).and_then(|work| {
            let request = Leaving { to, message, until, runs_anyway, refs: refs.clone() };
            self.send_request(link, request).map(|()| work).map_err(|error| {
                self.calls.pending.lock().remove(&correlation);
                self.explain(self.death_of(to).unwrap_or(error)).asked_for(method.to_owned())
            })
        });
        if sent.is_err() {
            self.references.take_back(to, &refs);
        }
        sent
    }

    /// Makes a link to a node that has none, unless it is known to be gone.
    fn link_or_loss(self: &Arc<Self>, to: NodeId) -> Result<Work<LinkId>> {
        match self.death_of(to) {
            Some(error) => Err(error),
            None => Ok(self.link_to(to)),
        }
    }

    fn remember(
        self: &Arc<Self>,
        correlation: u64,
        (to, link): (NodeId, LinkId),
        asked: Asked,
    ) -> Result<Work<Answer>> {
        let leases = (asked.lease_the_rest()?, asked.leases);
        let Asked { service, method, places, until, begun, runs_anyway, .. } = asked;
        let only = Some(link).filter(|link| *link != HERE);
        let (completer, work): (Completer<Answer>, _) =
            self.node.described("call", only, self.awaited(Sort::Call, correlation));
        let weak = Arc::downgrade(self);
        completer.on_cancel(move || {
            let Some(shared) = weak.upgrade() else { return };
            if let Some(call) = shared.calls.take_unless_landing(correlation) {
                shared.withdraw(&call, correlation);
                let error = Error::new(ErrorKind::Cancelled, "the call was cancelled; its handler may still run");
                call.end(Err(shared.about(error, to)));
            }
        });
        let mut call = Pending {
            to,
            link,
            completer,
            places,
            leases,
            refusal: None,
            is_landing: false,
            service,
            method,
            timer: None,
            begun,
            runs_anyway,
        };
        let mut pending = self.calls.pending.lock();
        if pending.len() >= limits::CALLS_PENDING_MAX {
            let what = format!("{} calls of this node wait for their answers", limits::CALLS_PENDING_MAX);
            return Err(Error::new(ErrorKind::LimitExceeded, what).hint("wait for some before calling again"));
        }
        // Its action looks for the call, for which it must wait until this lock is let go.
        call.timer = until.map(|until| self.expires(correlation, until)).transpose()?;
        pending.insert(correlation, call);
        Ok(work)
    }

    /// Tells the callee that nobody waits for this call any more.
    fn withdraw(&self, call: &Pending, correlation: u64) {
        if call.runs_anyway {
            return;
        }
        if call.link == HERE {
            return self.calls.requests.cancel((HERE, correlation));
        }
        self.say_cancelled(call.link, correlation);
    }

    fn say_cancelled(&self, link: LinkId, correlation: u64) {
        let envelope = Envelope { correlation, ..Envelope::of(CALLS, Tag(0), CANCELLED) };
        // With its link the call ends on the other side too.
        let _ = self.node.isend(link, Outgoing::control(envelope, Vec::new()));
    }

    /// Looks at lanes whose threads all wait.
    pub(crate) fn look_at_lanes(&self, now: Instant) {
        if let Some(next) = self.calls.requests.executor.look_at_stuck(now) {
            self.ticker.ring_at(self.deadline(next.saturating_duration_since(now)));
        }
    }

    /// Ends a call at its deadline, if it is not answered by then.
    fn expires(self: &Arc<Self>, correlation: u64, until: Instant) -> Result<Timer> {
        let shared = Arc::downgrade(self);
        let at = self.deadline(until.saturating_duration_since(Instant::now()));
        self.ticker.at(at, move || {
            let Some(shared) = shared.upgrade() else { return };
            let Some(call) = shared.calls.take_unless_landing(correlation) else { return };
            shared.withdraw(&call, correlation);
            let error = Error::new(ErrorKind::DeadlineExceeded, "the node has not answered");
            let error = error.hint("it may be busy; give the call more time, or look at what the node does");
            let to = call.to;
            call.end(Err(shared.about(error, to)));
        })
    }

    /// Ends calls that were answered and runs what was asked for.
    pub(crate) fn serve(self: &Arc<Self>) {
        loop {
            let Some(arrived) = self.calls.arrived.lock().pop_front() else { break };
            match arrived {
                Arrived::Answer(message, brought) => self.answered(message, brought),
                Arrived::Begun(link, service, total) => self.requests_begun(link, service, total),
                Arrived::Ended(link, reason) => self.ended(link, &reason),
            }
        }
        self.let_in();
        self.serve_requests();
    }

    fn answered(&self, message: Message, brought: Brought) {
        let correlation = message.envelope.correlation;
        self.requests_begun(message.source, message.envelope.context, message.envelope.aux);
        let call = {
            let mut pending = self.calls.pending.lock();
            // The number alone would let one peer answer for another.
            if pending.get(&correlation).is_none_or(|call| call.link != message.source) {
                return;
            }
            pending.remove(&correlation)
        };
        if let Some(call) = call {
            // By the call, not by its link: that may have ended behind the answer.
            let origin = self.peer_of(call.to);
            call.answered(message, brought, origin, |error| self.note_error(error));
        }
    }

    fn ended(&self, link: LinkId, reason: &Error) {
        let reason = self.explain(reason.clone());
        self.calls.requests.link_ended(link);
        self.end_windows(link);
        for (_, call) in self.calls.drain(|call| call.link == link) {
            call.end(Err(reason.clone()));
        }
    }
}
