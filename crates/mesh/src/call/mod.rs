//! Calls between nodes: a method of a named service, with arguments and tensors, and one answer.
//!
//! A request is a message for the endpoint [`REQUESTS`](crate::endpoints::REQUESTS). Its context is the service's
//! number, its correlation pairs it with its answer; its tag is the number of the [`Method`], or says that the control
//! part gives a name. The answer, for [`ANSWERS`], carries either a result and tensors or the handler's [`Error`]
//! whole, with the answering node as its origin. How both are written stands in [`form`]. Words about calls, for
//! [`CALLS`](crate::endpoints::CALLS) and [`ROOM`](crate::endpoints::ROOM), have no control part: their envelope says
//! it all.
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
//! [`crate::reference`]; the tag says how many there are.
//!
//! **One-way calls** have no entry in that table and no answer, see [`one_way`].
//!
//! **Deadlines and cancellations travel.** A request says how long its caller waits, and a call that ends before its
//! answer says so on its link: what has not begun then never begins, and a handler that runs can ask
//! ([`Request::is_wanted`]). A call that [runs anyway](Call::runs_anyway) says neither.
//!
//! **On the answering side** each service has a [`Lane`] on which its handlers run; [`serving`] says how requests get
//! there. News of members that have left wait in the same queue, see [`leavers`].

mod answer;
mod asking;
mod callers;
mod contents;
mod desk;
pub(crate) mod executor;
mod form;
mod guests;
mod here;
mod lane;
mod leavers;
mod list;
mod method;
mod name;
mod one_way;
mod pending;
mod room;
mod service;
mod serving;
#[cfg(test)]
mod strangers;
mod unlinked;
mod window;

use crate::driver::Shared;
use crate::endpoints::ANSWERS;
use crate::engine::Member;
use crate::reference::Brought;
use asking::patience_ms;
pub(crate) use form::{method_of, references_in};
pub(crate) use leavers::HANDSHAKE_LOOK;
use leavers::Leavers;
use method::ByNumber;
use one_way::{Failures, ONE_WAY};
use parking_lot::{Mutex, RwLock};
use pending::Pending;
use service::ByName;
use serving::{Requests, Serves};
use sheave_base::numbers::Numbered;
use sheave_base::planted::{self, Bug};
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Result, contain, limits};
use sheave_net::{Admission, Arrival, Envelope, Ground, Message};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Weak};
use std::time::Instant;
pub(crate) use window::Size;
use window::{Begun, Windows};

pub use answer::Answer;
pub use callers::Callers;
pub use contents::{Call, Leases};
pub use lane::Lane;
pub use list::{ArgList, Mark, Written};
pub use method::{AnswerOf, CallOptions, Method, Methods, Room, TypedReply, TypedRequest, TypedService};
pub use name::ServiceName;
pub use service::{Reply, Request, Service};

/// Stands for the link of a node to itself; links are numbered from 1.
const HERE: LinkId = LinkId(0);

/// Stands for the link of a call that waits until there is one.
const UNLINKED: LinkId = LinkId(u32::MAX);

/// The context of words for [`CALLS`] that a call is cancelled. They follow their request on its link.
const CANCELLED: u64 = 1;

/// The correlation of a word of room that asks for one.
pub(crate) const ASKS: u64 = 1;

/// A service and its name.
type Named = (String, Arc<dyn Serves>);

/// Both sides of a node's calls.
pub(crate) struct Calls {
    services: RwLock<Numbered<u64, Named>>,
    pending: Mutex<Numbered<u64, Box<Pending>>>,
    correlation: AtomicU64,
    /// Answers and ended links, in the order in which they came. Each does what it does to the tables under the lock.
    arrived: Mutex<VecDeque<Arrived>>,
    /// How many those are. Written under the lock; who has added some sees them, and serves.
    arrived_count: AtomicUsize,
    requests: Requests,
    windows: Windows,
    failures: Failures,
    pub(crate) leavers: Leavers,
}

#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each message")]
enum Arrived {
    Answer(Message, Brought),
    /// So many requests of this link have begun at that service.
    Begun(LinkId, u64, u32),
    /// The other end asks that of this one.
    Asked(LinkId, u64),
    Ended(LinkId, Error),
}

/// What has arrived, when it was taken out, with what that has changed in the tables.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each message")]
enum Taken {
    /// An answer and, if it is known, the call that it ends.
    Answer(Message, Brought, Option<Box<Pending>>, Begun),
    Begun(LinkId, u64, Begun),
    Asked(LinkId, u64),
    Ended(LinkId, Error),
}

impl Calls {
    pub(crate) fn new(shared: Weak<Shared>) -> Self {
        Self {
            services: RwLock::default(),
            pending: Mutex::default(),
            correlation: AtomicU64::new(0),
            arrived: Mutex::default(),
            arrived_count: AtomicUsize::new(0),
            requests: Requests::new(shared),
            windows: Windows::default(),
            failures: Failures::default(),
            leavers: Leavers::default(),
        }
    }

    pub(crate) fn admit(&self, link: LinkId, arrival: &Arrival<'_>, members: usize) -> Admission {
        if arrival.envelope.endpoint == ANSWERS {
            // An answer without tensors needs no places.
            if arrival.parts.is_empty() {
                return Admission::Land(Ground::default());
            }
            let mut pending = self.pending.lock();
            let call = pending.get_mut(&arrival.envelope.correlation).filter(|call| call.link == link);
            return Admission::Land(call.map(|call| call.admit(arrival)).unwrap_or_default());
        }
        self.requests.admit(link, arrival, Size::among(members))
    }

    /// Takes a message. `window` is that of the link it came over, where it is another one than that of members.
    pub(crate) fn take_message(
        &self,
        from: NodeId,
        message: Message,
        brought: Brought,
        window: impl FnOnce() -> Option<Size>,
    ) {
        if message.envelope.endpoint == ANSWERS {
            if message.envelope.correlation == ONE_WAY {
                return self.hear_of_failures(&message);
            }
            return self.push(Arrived::Answer(message, brought));
        }
        self.requests.take(from, message, brought, window);
    }

    /// Takes a word about calls: the peer at the other end of that link waits no longer for one of its own.
    pub(crate) fn take_word(&self, link: LinkId, word: &Envelope) {
        if word.context == CANCELLED {
            self.requests.take_cancelled((link, word.correlation));
        }
    }

    /// Takes the word that the peer at the other end of that link has begun so many requests of this node's at one of
    /// its services; or asks how many of its own this node has begun.
    pub(crate) fn take_room(&self, link: LinkId, word: &Envelope) {
        let service = word.tag.0;
        self.push(match word.correlation {
            ASKS => Arrived::Asked(link, service),
            _ => Arrived::Begun(link, service, word.aux),
        });
    }

    pub(crate) fn link_ended(&self, link: LinkId, reason: &Error) {
        if planted::strikes(Bug::CallsOutlive) {
            return;
        }
        self.push(Arrived::Ended(link, reason.clone()));
    }

    fn push(&self, arrived: Arrived) {
        let mut queue = self.arrived.lock();
        queue.push_back(arrived);
        self.arrived_count.store(queue.len(), Release);
    }

    /// Takes out what has arrived first. What it ends leaves the tables with it, under the lock: another thread
    /// may take out the end of its link next, and that must not find the calls that were answered before.
    fn next_arrived(&self) -> Option<Taken> {
        if self.arrived_count.load(Acquire) == 0 {
            return None;
        }
        let mut queue = self.arrived.lock();
        let arrived = queue.pop_front();
        self.arrived_count.store(queue.len(), Release);
        let windows = &self.windows;
        arrived.map(|arrived| match arrived {
            Arrived::Answer(message, brought) => {
                let (link, Envelope { context: service, aux, .. }) = (message.source, message.envelope);
                let begun = windows.note_begun(link, service, aux);
                let call = self.take_answered(link, message.envelope.correlation);
                Taken::Answer(message, brought, call, begun)
            }
            Arrived::Begun(link, service, total) => {
                Taken::Begun(link, service, windows.note_begun(link, service, total))
            }
            Arrived::Asked(link, service) => Taken::Asked(link, service),
            Arrived::Ended(link, reason) => Taken::Ended(link, reason),
        })
    }

    /// Takes out the call of this number, if it went over this link: the number alone would let one peer answer for
    /// another.
    fn take_answered(&self, link: LinkId, correlation: u64) -> Option<Box<Pending>> {
        let mut pending = self.pending.lock();
        if pending.get(&correlation)?.link == link { pending.remove(&correlation) } else { None }
    }

    /// All survivors agree that this member is gone, and nothing more of it will come.
    pub(crate) fn member_lost(&self, member: Option<&Member>, error: &Error) {
        let Some(member) = member else { return };
        self.failures.forget(member.node);
        for service in self.all_services() {
            contain::told("a service that heard of a loss", || service.lost(member, error));
        }
    }

    fn all_services(&self) -> Vec<Arc<dyn Serves>> {
        self.services.read().values().map(|(_, service)| Arc::clone(service)).collect()
    }

    /// The mesh has ended for this node: so have its calls, but for those whose answers are landing. They end with
    /// their links, which whoever calls this ends too.
    pub(crate) fn fail_all(&self, error: &Error) {
        for (_, call) in self.drain(|call| !call.is_landing) {
            call.end(error.clone());
        }
        self.windows.end_all_rooms(error);
        self.requests.executor.stop();
        self.requests.desks.close_all();
    }

    /// Takes a call out, unless its answer is being written to its places.
    fn take_unless_landing(&self, correlation: u64) -> Option<Box<Pending>> {
        let mut pending = self.pending.lock();
        if pending.get(&correlation)?.is_landing { None } else { pending.remove(&correlation) }
    }

    /// Takes a call out.
    fn take(&self, correlation: u64) -> Option<Box<Pending>> {
        self.pending.lock().remove(&correlation)
    }

    /// These calls go over that link, if they have waited for one.
    fn over_link(&self, correlations: &[u64], link: LinkId) {
        let mut pending = self.pending.lock();
        for correlation in correlations {
            if let Some(call) = pending.get_mut(correlation).filter(|call| call.link == UNLINKED) {
                call.link = link;
            }
        }
    }

    /// Takes the calls out of which `is_over` is true.
    fn drain(&self, is_over: impl Fn(&Pending) -> bool) -> Vec<(u64, Box<Pending>)> {
        self.pending.lock().extract_if(|_, call| is_over(call)).collect()
    }

    /// Whether a call waits for the link to its callee.
    pub(crate) fn is_unlinked(&self, correlation: u64) -> bool {
        self.pending.lock().get(&correlation).is_some_and(|call| call.link == UNLINKED)
    }

    /// To whom, which service and which method a call is that is not answered.
    pub(crate) fn asked(&self, correlation: u64) -> Option<(NodeId, ServiceName, String)> {
        let pending = self.pending.lock();
        let call = pending.get(&correlation)?;
        Some((call.to, call.service.clone(), call.method.as_str().to_owned()))
    }

    /// What a call waits for that `from` has made to the service of this number on this node.
    pub(crate) fn awaited(&self, service: u64, from: NodeId, correlation: u64) -> Option<String> {
        let found = self.services.read().get(&service).map(|(_, service)| Arc::clone(service));
        found?.awaited(from, correlation)
    }
}

impl Shared {
    /// Adds a service of named methods.
    pub(crate) fn serve_named(&self, name: &str, service: impl Service) -> Result<()> {
        self.serve_as(name, Arc::new(ByName(service)))
    }

    /// Adds a service of numbered methods.
    pub(crate) fn serve_typed<S: TypedService>(&self, service: Arc<S>) -> Result<()> {
        self.serve_as(S::NAME, Arc::new(ByNumber::new(service)))
    }

    fn serve_as(&self, name: &str, service: Arc<dyn Serves>) -> Result<()> {
        let mut services = self.calls.services.write();
        if services.len() >= limits::SERVICES_MAX {
            return Err(Error::new(
                ErrorKind::LimitExceeded,
                format!("a node has at most {} services", limits::SERVICES_MAX),
            ));
        }
        match services.entry(name::number_of(name)) {
            std::collections::hash_map::Entry::Occupied(taken) => {
                let what = format!("this node has a service \"{}\" already", taken.get().0);
                Err(Error::new(ErrorKind::AlreadyExists, what).operation("serve"))
            }
            std::collections::hash_map::Entry::Vacant(free) => {
                if service.lane() == Lane::Own {
                    self.calls.requests.desks.open(*free.key());
                }
                free.insert((name.to_owned(), service));
                Ok(())
            }
        }
    }

    /// Takes a service away; its requests are refused from now on.
    pub(crate) fn serve_no_more(&self, name: &str) {
        let number = name::number_of(name);
        let removed = self.calls.services.write().remove(&number);
        self.calls.requests.desks.close(number);
        // Not under the lock: its drop may do anything.
        drop(removed);
    }

    /// Looks at lanes whose handlers take long, or whose threads all wait.
    pub(crate) fn look_at_lanes(&self, now: Instant) {
        if let Some(next) = self.calls.requests.executor.look_at_lanes(&self.node, now) {
            self.ticker.ring_at(self.deadline(next.saturating_duration_since(now)));
        }
    }

    /// Ends calls that were answered and runs what was asked for.
    pub(crate) fn serve(&self) {
        while let Some(arrived) = self.calls.next_arrived() {
            match arrived {
                Taken::Answer(message, brought, call, begun) => self.answered(message, brought, call, &begun),
                Taken::Begun(link, service, begun) => self.requests_begun(link, service, &begun),
                Taken::Asked(link, service) => self.tell_begun(link, service),
                Taken::Ended(link, reason) => self.ended(link, &reason),
            }
        }
        self.let_in();
        self.send_failures();
        self.serve_requests();
    }

    fn answered(&self, message: Message, brought: Brought, call: Option<Box<Pending>>, begun: &Begun) {
        self.requests_begun(message.source, message.envelope.context, begun);
        if let Some(call) = call {
            // By the call, not by its link: that may have ended behind the answer.
            let to = call.to;
            call.answered(message, brought, || self.peer_of(to), |error| self.note_error(error));
        }
    }

    fn ended(&self, link: LinkId, reason: &Error) {
        let reason = self.explain(reason.clone());
        self.calls.requests.link_ended(link);
        self.end_windows(link, &reason);
        for (_, call) in self.calls.drain(|call| call.link == link) {
            call.end(reason.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::pending::Reading;
    use super::*;
    use name::Text;
    use sheave_base::{ErrorKind, Tag, work};
    use sheave_wire::Value;

    /// One thread takes an answer out and comes to no more, and another one takes out the end of the answer's link.
    #[test]
    fn an_answer_that_was_taken_out_is_its_call_s_though_its_link_has_ended() {
        const CALL: u64 = 7;
        let (calls, link) = (Calls::new(Weak::new()), LinkId(1));
        let (completer, called) = work::pair("call");
        let call: Box<Pending> = Box::new(Pending {
            to: NodeId(1),
            link,
            ground: None,
            refusal: None,
            is_landing: false,
            service: ServiceName::new("it"),
            method: Text::Constant("it"),
            timer: None,
            begun: Instant::now(),
            runs_anyway: true,
            end: Reading::<Value> { completer: Some(completer), read: answer::decode },
        });
        calls.pending.lock().insert(CALL, call);
        let envelope = Envelope { correlation: CALL, ..Envelope::of(ANSWERS, Tag(0), 0) };
        let control = answer::encode(Ok(&Value::Int(1))).expect("it is small");
        let message = Message { envelope, source: link, sequence: 1, control, parts: Default::default() };
        calls.push(Arrived::Answer(message, Brought::default()));
        calls.link_ended(link, &Error::new(ErrorKind::PeerLost, "it has ended"));

        let taken = calls.next_arrived();
        assert!(matches!(calls.next_arrived(), Some(Taken::Ended(ended, _)) if ended == link));
        assert_eq!(calls.drain(|call| call.link == link).len(), 0, "the end finds no call");
        let Some(Taken::Answer(message, brought, Some(call), _)) = taken else { panic!("the answer has its call") };
        call.answered(message, brought, || None, |_| ());
        assert_eq!(called.wait().expect("it was answered").value, Value::Int(1));
    }
}
