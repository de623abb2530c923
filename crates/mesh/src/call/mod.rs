//! Calls between nodes: a named method of a named service, with a value and tensors, and one answer.
//!
//! A request is a message of kind `Request`. Its context names the service, its correlation pairs it with its answer,
//! its control part is the method and the arguments. The answer, of kind `Response`, carries either a value and tensors
//! or the handler's [`Error`] whole, with the answering node as its origin.
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
//! **On the answering side** requests are taken off a link only while there is room ([`limits::REQUESTS_PENDING_MAX`],
//! [`limits::REQUEST_BYTES_MAX`]); beyond it they stay there and push back. An inline service handles its requests on
//! the thread that found them, one at a time per node and in the order of each link; any other service on the node's
//! [`executor`], several at once. News of members that have left wait in the same queue, see [`leavers`].

mod answer;
pub(crate) mod executor;
mod here;
mod leavers;
mod pending;
mod service;

use crate::driver::Shared;
use crate::engine::Member;
use crate::reference::{Brought, names_in};
use executor::Executor;
pub(crate) use leavers::HANDSHAKE_LOOK;
use leavers::Leavers;
use parking_lot::{Mutex, RwLock};
use pending::Pending;
use sha2::{Digest, Sha256};
use sheave_base::work::Completer;
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Result, Tag, Work, contain, limits};
use sheave_net::{Admission, Arrival, Envelope, Ground, Hold, Kind, Message, Outgoing, Parts, Tensors, WriteLeases};
use sheave_tensor::{Tensor, WriteLease};
use sheave_wire::Value;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

pub use answer::Answer;
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
    /// lives.
    pub deadline: Option<Duration>,
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

/// A service and the number that it has on the wire.
pub(crate) fn number_of(service: &str) -> u64 {
    let digest = Sha256::digest(service.as_bytes());
    digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A service and its name.
type Named = (String, Arc<dyn Service>);

/// What the table of calls keeps of one.
struct Asked {
    method: String,
    places: Tensors,
    leases: Option<Leases>,
    until: Option<Instant>,
    begun: Instant,
}

impl Asked {
    /// New leases for the places that those which came along do not cover.
    fn lease_the_rest(&self) -> Result<WriteLeases> {
        let held = self.leases.as_deref().map_or(&[][..], Vec::as_slice);
        let is_covered = |place: &&Tensor| held.iter().any(|lease| lease.buffer().is_same(place.buffer()));
        self.places.iter().filter(|place| !is_covered(place)).map(|place| place.write_lease("call")).collect()
    }
}

/// Both sides of a node's calls.
#[derive(Default)]
pub(crate) struct Calls {
    services: RwLock<HashMap<u64, Named>>,
    pending: Mutex<HashMap<u64, Pending>>,
    correlation: AtomicU64,
    /// Answers and ended links, in the order in which they came.
    arrived: Mutex<VecDeque<Arrived>>,
    /// What nobody has looked at.
    requests: Mutex<VecDeque<Queued>>,
    pub(crate) leavers: Leavers,
    /// Held by whoever runs inline handlers.
    serving: Mutex<()>,
    load: Load,
    executor: Executor,
}

/// Requests that were let in and whose handlers have not returned, and answers that wait for room on their link.
#[derive(Default)]
pub(crate) struct Load {
    count: AtomicUsize,
    bytes: AtomicU64,
    choked: AtomicBool,
}

/// What services are given, in the order in which it came.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each message")]
enum Queued {
    Request(NodeId, Message, Brought),
    /// This member has left, and its links have ended.
    Leave(NodeId, Error),
}

#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each message")]
enum Arrived {
    Answer(Message, Brought),
    Ended(LinkId, Error),
}

fn bytes_of(message: &Message) -> u64 {
    message.parts.iter().map(|part| part.len_bytes() as u64).sum::<u64>() + message.control.len() as u64
}

impl Calls {
    pub(crate) fn admit(&self, link: LinkId, arrival: &Arrival<'_>) -> Admission {
        if arrival.envelope.kind == Kind::Response {
            let mut pending = self.pending.lock();
            let call = pending.get_mut(&arrival.envelope.correlation).filter(|call| call.link == link);
            return Admission::Land(call.map(|call| call.admit(arrival)).unwrap_or_default());
        }
        let bytes = self.load.bytes.load(SeqCst).saturating_add(arrival.payload_bytes);
        let count = self.load.count.load(SeqCst);
        if count > 0 && (count >= limits::REQUESTS_PENDING_MAX || bytes > limits::REQUEST_BYTES_MAX) {
            self.load.choked.store(true, SeqCst);
            // Whoever made room in between has not seen the mark.
            if self.load.count.load(SeqCst) == count {
                return Admission::Pause;
            }
        }
        Admission::Land(Ground::default())
    }

    pub(crate) fn take(&self, from: NodeId, message: Message, brought: Brought) {
        if message.envelope.kind == Kind::Response {
            return self.arrived.lock().push_back(Arrived::Answer(message, brought));
        }
        self.load.count.fetch_add(1, SeqCst);
        self.load.bytes.fetch_add(bytes_of(&message), SeqCst);
        self.requests.lock().push_back(Queued::Request(from, message, brought));
    }

    pub(crate) fn link_ended(&self, link: LinkId, reason: &Error) {
        self.arrived.lock().push_back(Arrived::Ended(link, reason.clone()));
    }

    /// All survivors agree that this member is gone, and nothing more of it will come.
    pub(crate) fn member_lost(&self, member: Option<&Member>, error: &Error) {
        let Some(member) = member else { return };
        let services: Vec<_> = self.services.read().values().map(|(_, service)| Arc::clone(service)).collect();
        for service in services {
            contain::told("a service that heard of a loss", || service.lost(member, error));
        }
    }

    /// The mesh has ended for this node: so have its calls, but for those whose answers are landing. They end with
    /// their links, which whoever calls this ends too.
    pub(crate) fn fail_all(&self, error: &Error) {
        for call in self.drain(|call| !call.is_landing) {
            call.end(Err(error.clone()));
        }
        self.executor.stop();
    }

    /// Takes the calls out of which `is_over` is true.
    fn drain(&self, is_over: impl Fn(&Pending) -> bool) -> Vec<Pending> {
        let mut pending = self.pending.lock();
        pending.extract_if(|_, call| is_over(call)).map(|(_, call)| call).collect()
    }

    /// The first deadline of a call that is not answered.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.pending.lock().values().filter(|call| !call.is_landing).filter_map(|call| call.until).min()
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
        let begun = Instant::now();
        if let Some(error) = self.failure() {
            return Err(error.clone().operation(method.to_owned()));
        }
        let Call { args, tensors, places, leases, deadline } = call;
        let control = service::encode_request(method, &args)?;
        args.check_tensors(tensors.len())?;
        let correlation = self.calls.correlation.fetch_add(1, SeqCst) + 1;
        let names = names_in(&args);
        let (tag, context) = (Tag(names.len() as u64), number_of(service));
        let envelope = Envelope { kind: Kind::Request, tag, context, correlation, epoch: 0 };
        let message = Outgoing { envelope, control, parts: tensors };
        let until = deadline.map(|deadline| begun + deadline);
        let asked = Asked { method: method.to_owned(), places, leases, until, begun };
        if to == self.me {
            let refs = names.into_iter().map(|name| self.references.find(name)).collect::<Result<_>>()?;
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
        let refs = self.references.pass(to, &names).map_err(|error| error.operation(method.to_owned()))?;
        let sent = self.remember(correlation, (to, link), asked).and_then(|work| {
            self.node.isend(link, message).map(|_| work).map_err(|error| {
                self.calls.pending.lock().remove(&correlation);
                self.explain(self.death_of(to).unwrap_or(error)).operation(method.to_owned())
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
        let Asked { method, places, until, begun, .. } = asked;
        let (completer, work): (Completer<Answer>, _) = self.node.pair("call", Some(link).filter(|link| *link != HERE));
        let weak = Arc::downgrade(self);
        completer.on_cancel(move || {
            let Some(shared) = weak.upgrade() else { return };
            let call = {
                let mut pending = shared.calls.pending.lock();
                if pending.get(&correlation).is_some_and(|call| call.is_landing) {
                    None
                } else {
                    pending.remove(&correlation)
                }
            };
            if let Some(call) = call {
                let error = Error::new(ErrorKind::Cancelled, "the call was cancelled; its handler may still run");
                call.end(Err(shared.about(error, to)));
            }
        });
        let call =
            Pending { to, link, completer, places, leases, refusal: None, is_landing: false, method, until, begun };
        let mut pending = self.calls.pending.lock();
        if pending.len() >= limits::CALLS_PENDING_MAX {
            let what = format!("{} calls of this node wait for their answers", limits::CALLS_PENDING_MAX);
            return Err(Error::new(ErrorKind::LimitExceeded, what).hint("wait for some before calling again"));
        }
        pending.insert(correlation, call);
        drop(pending);
        if let Some(until) = until {
            self.calls_until(until);
        }
        Ok(work)
    }

    /// Ends the calls whose time is up.
    pub(crate) fn expire_calls(&self, now: Instant) {
        for call in self.calls.drain(|call| call.until.is_some_and(|until| until <= now) && !call.is_landing) {
            let error = Error::new(ErrorKind::DeadlineExceeded, "the node has not answered");
            let error = error.hint("it may be busy; give the call more time, or look at what the node does");
            let to = call.to;
            call.end(Err(self.about(error, to)));
        }
    }

    /// Ends calls that were answered and runs what was asked for.
    pub(crate) fn serve(self: &Arc<Self>) {
        loop {
            let Some(arrived) = self.calls.arrived.lock().pop_front() else { break };
            match arrived {
                Arrived::Answer(message, brought) => self.answered(message, brought),
                Arrived::Ended(link, reason) => self.ended(link, &reason),
            }
        }
        self.let_in();
        while !self.calls.requests.lock().is_empty() {
            // In order, so one at a time; the holder looks again after it has let go.
            let Some(_turn) = self.calls.serving.try_lock() else { return };
            loop {
                let Some(queued) = self.calls.requests.lock().pop_front() else { break };
                match queued {
                    Queued::Request(from, message, brought) => self.dispatch(from, message, brought),
                    Queued::Leave(node, error) => self.calls.member_lost(self.member(node), &error),
                }
            }
        }
    }

    fn answered(&self, message: Message, brought: Brought) {
        let correlation = message.envelope.correlation;
        let call = {
            let mut pending = self.calls.pending.lock();
            // The number alone would let one peer answer for another.
            if pending.get(&correlation).is_none_or(|call| call.link != message.source) {
                return;
            }
            pending.remove(&correlation)
        };
        if let Some(call) = call {
            let origin = self.node.link(call.link).map(|link| link.peer().clone()).ok();
            let origin = origin.and_then(|peer| peer.node).and_then(|node| self.member(node)).map(Member::peer);
            call.answered(message, brought, origin, |error| self.note_error(error));
        }
    }

    fn ended(&self, link: LinkId, reason: &Error) {
        let reason = self.explain(reason.clone());
        for call in self.calls.drain(|call| call.link == link) {
            call.end(Err(reason.clone()));
        }
    }

    /// An answer goes out. Until it has, it counts like the request did, so that answers cannot pile up either.
    pub(crate) fn send_answer(self: &Arc<Self>, link: LinkId, message: Outgoing, hold: Hold) -> Result<()> {
        let work = match hold {
            Hold::Capture => self.node.isend(link, message)?,
            Hold::Borrow => self.node.isend_borrowed(link, message)?,
        };
        if !work.is_done() {
            self.calls.load.count.fetch_add(1, SeqCst);
            let shared = Arc::clone(self);
            work.on_complete(move |_| {
                shared.calls.load.count.fetch_sub(1, SeqCst);
                // The link's locks may be held: what has room now is looked at after the poll.
                shared.node.remind_observer();
            });
        }
        Ok(())
    }

    fn dispatch(self: &Arc<Self>, from: NodeId, message: Message, brought: Brought) {
        let bytes = bytes_of(&message);
        let found = self.calls.services.read().get(&message.envelope.context).map(|(_, service)| Arc::clone(service));
        let request = Request::read(self, from, message, brought);
        let Some(request) = request else { return self.unload(bytes) };
        let Some(service) = found else {
            let method = request.method.clone();
            let what = format!("this node has no service for \"{method}\"");
            let hint = "is the node of the right role, and was its service started?";
            request.reply.error(Error::new(ErrorKind::NotFound, what).hint(hint));
            return self.unload(bytes);
        };
        if service.is_inline() {
            service::run(&*service, request);
            return self.unload(bytes);
        }
        let shared = Arc::clone(self);
        let job = Box::new(move || {
            service::run(&*service, request);
            shared.unload(bytes);
        });
        self.calls.executor.submit(&self.node, job);
    }

    /// A request's handler has returned.
    fn unload(&self, bytes: u64) {
        let load = &self.calls.load;
        load.bytes.fetch_sub(bytes, SeqCst);
        load.count.fetch_sub(1, SeqCst);
        self.let_in();
    }

    /// Requests that found no room are let in, if there is some now.
    fn let_in(&self) {
        let load = &self.calls.load;
        if load.choked.load(SeqCst) && load.choked.swap(false, SeqCst) {
            self.node.resume();
        }
    }
}
