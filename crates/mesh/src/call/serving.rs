//! The answering side of calls: what was asked of this node's services, from the link to the handler.
//!
//! A service lets in so many requests of each link before it has begun with them: the caller's window, which
//! [`window`](super::window) explains and a caller that keeps to it never fills; one that does not is held up on its
//! link. Whoever serves takes one thing after the other out of one queue: an inline service handles its request there
//! and then, any other one on a lane of the node's [`executor`](super::executor).
//!
//! **Answers** are bounded by what callers remember of their calls ([`limits::CALLS_PENDING_MAX`]): a link with as many
//! requests that are not answered, or whose answers wait for room on it, is held up too.
//!
//! **Cancelled calls.** The word that a call is cancelled, or that its time is up, comes on the call's own link behind
//! the request. While the request waits in the queue, the word is noted beside the queue, for whoever takes the request
//! out; the word waits in the queue too, and is forgotten when its turn comes. From its turn on a request of a lane
//! stands in a table until it is answered, where the word's turn finds it. So a request that has not begun when its
//! word is heard never begins, and a handler that runs can ask.

use super::HERE;
use super::desk::Desks;
use super::executor::{Executor, Job, Pace};
use super::form::RequestTag;
use super::lane::Lane;
use super::name::ServiceName;
use super::one_way::{FailuresOut, Heard, ONE_WAY};
use super::service::{self, Replies, Reply};
use super::window::Size;
use crate::driver::Shared;
use crate::endpoints::{REQUESTS, ROOM};
use crate::engine::Member;
use crate::guest::AttachedGuest;
use crate::reference::Brought;
use parking_lot::{Mutex, RwLock};
use sheave_base::clock;
use sheave_base::collections::{HashMap, HashSet};
use sheave_base::planted::{self, Bug};
use sheave_base::{Error, LinkId, NodeId, Result, Tag, limits};
use sheave_net::{Admission, Arrival, Envelope, Ground, Hold, Message, Outgoing, Tensors};
use std::collections::VecDeque;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Release, Ordering::SeqCst,
};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A call as its callee knows it: its link, or that of this node to itself, and its number.
pub(super) type CallId = (LinkId, u64);

/// What this node's services have been asked and have not done.
pub(crate) struct Requests {
    queue: Mutex<Queue>,
    /// How many things wait in it. Written under its lock; who has added some sees them, and serves.
    waiting: AtomicUsize,
    /// Held by whoever takes things out of the queue.
    serving: Mutex<()>,
    /// By link and service, one for each service of this node that a link has called.
    counted: RwLock<CountedRequests>,
    /// A request had to stay on its link.
    choked: AtomicBool,
    /// Requests of lanes that are not answered, and whether they are cancelled.
    unanswered: Mutex<HashMap<CallId, Arc<AtomicBool>>>,
    /// Callers whose one-way calls have failed, and for whom the word of the next failures has waited.
    failures: Mutex<Vec<Arc<Counted>>>,
    /// There may be some. Written under the lock; who has added some has the node reminded.
    has_failures: AtomicBool,
    shared: Weak<Shared>,
    pub(super) executor: Executor,
    pub(super) desks: Desks,
}

#[derive(Default)]
struct CountedRequests {
    by_service: HashMap<(LinkId, u64), Arc<Counted>>,
    /// Services of each link, and the first of them.
    links: HashMap<LinkId, (usize, Arc<Counted>)>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Queued>,
    /// Calls whose word stands in `waiting`.
    cancelled: HashSet<CallId>,
}

/// The requests that one link has brought for one service; counts are modulo 2³².
pub(super) struct Counted {
    pub(super) shared: Weak<Shared>,
    pub(super) link: LinkId,
    pub(super) service: u64,
    /// The window, where it does not follow from the number of members.
    window: Option<Size>,
    /// Written by whoever takes the link's messages, who are one at a time.
    received: AtomicU32,
    begun: AtomicU32,
    /// As many of those as the caller was told of.
    told: AtomicU32,
    /// Bytes of those that it was not told of.
    untold_bytes: AtomicU64,
    /// The caller has asked, and there was no news.
    is_asked: AtomicBool,
    /// Those that want an answer, written as `received` is, and as many of them as are answered and whose answers do
    /// not wait for room on the link.
    asking: AtomicU32,
    answered: AtomicU32,
    pub(super) failures: FailuresOut,
}

impl Counted {
    fn of(shared: Weak<Shared>, link: LinkId, service: u64, window: Option<Size>) -> Self {
        let (received, begun, told, asking, answered) = Default::default();
        let (untold_bytes, is_asked, failures) = Default::default();
        Self {
            shared,
            link,
            service,
            window,
            received,
            begun,
            told,
            untold_bytes,
            is_asked,
            asking,
            answered,
            failures,
        }
    }

    /// One more has come.
    fn receive(&self, wants_an_answer: bool) {
        // Nobody else writes them meanwhile.
        let one_more = |count: &AtomicU32| count.store(count.load(SeqCst).wrapping_add(1), Release);
        one_more(&self.received);
        if wants_an_answer {
            one_more(&self.asking);
        }
    }

    fn unanswered(&self) -> u32 {
        self.asking.load(SeqCst).wrapping_sub(self.answered.load(SeqCst))
    }

    fn is_full(&self, size: Size) -> bool {
        self.is_beyond_its_window(size) || self.unanswered() as usize >= limits::CALLS_PENDING_MAX
    }

    /// Whether one more request would be one too many.
    fn is_beyond_its_window(&self, size: Size) -> bool {
        let size = self.window.unwrap_or(size);
        self.received.load(SeqCst).wrapping_sub(self.begun.load(SeqCst)) >= size.requests
    }

    /// The service, and how many have begun, for the caller who is told now.
    pub(super) fn tell(&self) -> (u64, u32) {
        // The bytes of a request are added when it is counted, so those that are taken here are of requests that are
        // counted below. One that begins meanwhile may be told of twice.
        self.untold_bytes.store(0, SeqCst);
        let begun = self.begun.load(SeqCst);
        self.told.store(begun, SeqCst);
        (self.service, begun)
    }
}

/// What a node keeps of a service, however its methods are found.
pub(super) trait Serves: Send + Sync + 'static {
    /// Always the same.
    fn lane(&self) -> Lane;

    /// Answers one request: checks who calls, then reads the arguments, and then runs the handler on its lane.
    fn deliver(self: Arc<Self>, shared: &Arc<Shared>, delivery: Delivery);

    fn lost(&self, member: &Member, error: &Error);

    fn guest_attached(&self, guest: &AttachedGuest);

    fn guest_lost(&self, guest: &AttachedGuest, error: &Error);

    fn awaited(&self, from: NodeId, number: u64) -> Option<String>;
}

/// A request on its way to a service that has not looked at it yet.
pub(super) struct Delivery {
    /// The service's number.
    pub(super) service: u64,
    pub(super) from: NodeId,
    pub(super) tag: RequestTag,
    pub(super) control: Vec<u8>,
    pub(super) tensors: Tensors,
    pub(super) brought: Brought,
    pub(super) reply: Reply,
    pub(super) begins: Begins,
}

impl Delivery {
    /// Who has sent it, and over which link.
    pub(super) fn caller(&self) -> (NodeId, LinkId) {
        (self.from, self.reply.link().unwrap_or(HERE))
    }

    /// Answers with an error in place of the handler.
    pub(super) fn refuse(self, error: Error) {
        self.reply.error(error);
    }
}

/// A place in the window of a request's caller, if it came over a link. It is free when this is dropped: the request
/// begins, or never will.
pub(super) struct Begins(pub(super) Option<(Arc<Counted>, u64)>);

impl Begins {
    /// The request begins now, at this node.
    fn now(mut self, shared: &Shared) {
        if let Some((counted, bytes)) = self.0.take() {
            shared.begun(&counted, bytes);
        }
    }
}

impl Drop for Begins {
    fn drop(&mut self) {
        if let Some((counted, bytes)) = self.0.take()
            && let Some(shared) = counted.shared.upgrade()
        {
            shared.begun(&counted, bytes);
        }
    }
}

/// What services are given, in the order in which it came.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each message")]
pub(super) enum Queued {
    Request(Incoming),
    Cancelled(CallId),
    /// This member has left, and its links have ended.
    Leave(NodeId, Error),
    /// This attached node is gone, and its link has ended.
    Departure(NodeId, Error),
}

/// A request as it came.
pub(super) struct Incoming {
    pub(super) from: NodeId,
    pub(super) message: Message,
    pub(super) brought: Brought,
    /// When its caller waits no longer.
    pub(super) until: Option<Instant>,
    counted: Arc<Counted>,
}

impl Incoming {
    fn id(&self) -> CallId {
        (self.message.source, self.message.envelope.correlation)
    }
}

fn bytes_of(message: &Message) -> u64 {
    message.parts.iter().map(|part| part.len_bytes() as u64).sum::<u64>() + message.control.len() as u64
}

impl Requests {
    pub(super) fn new(shared: Weak<Shared>) -> Self {
        Self {
            queue: Mutex::default(),
            waiting: AtomicUsize::new(0),
            serving: Mutex::default(),
            counted: RwLock::default(),
            choked: AtomicBool::new(false),
            unanswered: Mutex::default(),
            failures: Mutex::default(),
            has_failures: AtomicBool::new(false),
            shared: shared.clone(),
            executor: Executor::new(shared),
            desks: Desks::default(),
        }
    }

    pub(super) fn admit(&self, link: LinkId, arrival: &Arrival<'_>, size: Size) -> Admission {
        let all = self.counted.read();
        let Some(counted) = all.by_service.get(&(link, arrival.envelope.context)) else {
            return Admission::Land(Ground::default());
        };
        if counted.is_full(size) {
            if counted.is_beyond_its_window(size) {
                planted::must_not_be("a request came for which its caller's window has no room");
            }
            self.choked.store(true, SeqCst);
            // Whoever made room in between has not seen the mark.
            if counted.is_full(size) {
                return Admission::Pause;
            }
        }
        Admission::Land(Ground::default())
    }

    fn counted_of(&self, link: LinkId, service: u64) -> Option<Arc<Counted>> {
        self.counted.read().by_service.get(&(link, service)).map(Arc::clone)
    }

    /// The counts of a service that a link calls; of the first one where there are more than a caller may call.
    fn count(&self, link: LinkId, service: u64, window: impl FnOnce() -> Option<Size>) -> Arc<Counted> {
        if let Some(counted) = self.counted_of(link, service) {
            return counted;
        }
        let made = Arc::new(Counted::of(self.shared.clone(), link, service, window()));
        let mut all = self.counted.write();
        let (count, first) = all.links.entry(link).or_insert_with(|| (0, Arc::clone(&made)));
        if *count >= limits::SERVICES_MAX {
            return Arc::clone(first);
        }
        *count += 1;
        Arc::clone(all.by_service.entry((link, service)).or_insert(made))
    }

    /// Forgets the counts of a link that has ended.
    pub(super) fn link_ended(&self, link: LinkId) {
        let mut all = self.counted.write();
        let forgotten: Vec<_> = all.by_service.extract_if(|(of, _), _| *of == link).collect();
        all.links.remove(&link);
        drop(all);
        drop(forgotten);
    }

    pub(super) fn take(&self, from: NodeId, message: Message, brought: Brought, window: impl FnOnce() -> Option<Size>) {
        let counted = self.count(message.source, message.envelope.context, window);
        counted.receive(message.envelope.correlation != ONE_WAY);
        let millis = message.envelope.aux;
        let until = (millis > 0).then(|| clock::now() + Duration::from_millis(millis.into()));
        self.push(Queued::Request(Incoming { from, message, brought, until, counted }));
    }

    /// A call of that link is cancelled.
    pub(super) fn take_cancelled(&self, call: CallId) {
        let mut queue = self.queue.lock();
        // Who cancels more than it can have called is not believed.
        if queue.cancelled.len() < limits::CALLS_PENDING_MAX && queue.cancelled.insert(call) {
            queue.waiting.push_back(Queued::Cancelled(call));
            self.waiting.store(queue.waiting.len(), Release);
        }
    }

    pub(super) fn push(&self, queued: Queued) {
        let mut queue = self.queue.lock();
        queue.waiting.push_back(queued);
        self.waiting.store(queue.waiting.len(), Release);
    }

    /// Whether there may be something, for who has added nothing that it does not see.
    fn may_have_some(&self) -> bool {
        self.waiting.load(Acquire) > 0
    }

    fn is_empty(&self) -> bool {
        self.queue.lock().waiting.is_empty()
    }

    /// The next thing, and whether it is a request that is cancelled.
    fn next(&self) -> Option<(Queued, bool)> {
        let mut queue = self.queue.lock();
        let queued = queue.waiting.pop_front()?;
        self.waiting.store(queue.waiting.len(), Release);
        let is_cancelled = match &queued {
            Queued::Request(incoming) => !queue.cancelled.is_empty() && queue.cancelled.contains(&incoming.id()),
            Queued::Cancelled(call) => queue.cancelled.remove(call),
            Queued::Leave(..) | Queued::Departure(..) => false,
        };
        Some((queued, is_cancelled))
    }

    /// Notes a request of a lane until it is answered; what tells whether it is cancelled.
    pub(super) fn note(&self, call: CallId) -> Arc<AtomicBool> {
        let mark = Arc::new(AtomicBool::new(false));
        self.unanswered.lock().insert(call, Arc::clone(&mark));
        mark
    }

    pub(super) fn forget(&self, call: CallId) {
        self.unanswered.lock().remove(&call);
    }

    /// There may be failures of one-way calls to be sent, once no link's lock is held.
    pub(super) fn note_failures(&self, counted: &Arc<Counted>) {
        let mut failures = self.failures.lock();
        failures.push(Arc::clone(counted));
        self.has_failures.store(true, Release);
    }

    pub(super) fn take_failures(&self) -> Vec<Arc<Counted>> {
        if !self.has_failures.load(Acquire) {
            return Vec::new();
        }
        let mut failures = self.failures.lock();
        self.has_failures.store(false, Release);
        std::mem::take(&mut *failures)
    }

    /// Marks a request that has left the queue, if it is not answered.
    pub(super) fn cancel(&self, call: CallId) {
        if let Some(mark) = self.unanswered.lock().get(&call) {
            mark.store(true, SeqCst);
        }
    }
}

impl Shared {
    /// Runs what was asked for, once this node knows who the members are: others may have met all a moment earlier.
    pub(super) fn serve_requests(&self) {
        let requests = &self.calls.requests;
        if !requests.may_have_some() || !self.has_met_all() {
            return;
        }
        let Some(this) = self.this() else { return };
        loop {
            // In order, so one at a time; the holder looks again after it has let go, under the lock under which
            // whoever finds this one taken has added something.
            let Some(turn) = requests.serving.try_lock() else { return };
            while requests.may_have_some()
                && let Some((queued, is_cancelled)) = requests.next()
            {
                match queued {
                    Queued::Request(incoming) => this.dispatch(incoming, is_cancelled),
                    Queued::Cancelled(call) => requests.cancel(call),
                    Queued::Leave(node, error) => self.calls.member_lost(self.member(node), &error),
                    Queued::Departure(node, error) => self.departed(node, &error),
                }
            }
            drop(turn);
            if requests.is_empty() {
                return;
            }
        }
    }

    fn dispatch(self: &Arc<Self>, incoming: Incoming, is_cancelled: bool) {
        if incoming.id().1 == ONE_WAY && planted::strikes(Bug::OneWayLost) {
            return;
        }
        let context = incoming.message.envelope.context;
        let found = self.service_here(context);
        let reply = reply_to(self, &incoming, found.as_deref()).filling(&incoming.brought.promises);
        let Incoming { from, message, brought, counted, .. } = incoming;
        let begins = Begins(Some((counted, bytes_of(&message))));
        let (tag, control, tensors) = (RequestTag::of(message.envelope.tag), message.control, message.parts);
        let delivery = Delivery { service: context, from, tag, control, tensors, brought, reply, begins };
        match found {
            Some(service) if !is_cancelled => service.deliver(self, delivery),
            Some(_) => delivery.refuse(service::cancelled()),
            None => delivery.reply.no_service(),
        }
    }

    /// Runs a handler on this thread.
    pub(super) fn run_inline<R: Replies>(&self, begins: Begins, request: R, handle: impl FnOnce(R)) {
        begins.now(self);
        service::run(request, handle);
    }

    /// Runs a handler on the lane of the service of this number, in that mailbox if the lane has them.
    pub(super) fn submit<R: Replies>(
        self: &Arc<Self>,
        (service, pace, mailbox): (u64, Pace, Option<u64>),
        begins: Begins,
        request: R,
        handle: impl FnOnce(R) + Send + 'static,
    ) {
        let act = Box::new(move |refusal: Option<Error>| {
            drop(begins);
            match refusal {
                Some(error) => request.into_reply().error(error),
                None => service::run(request, handle),
            }
        });
        let job = Job { act, mailbox };
        if pace.is_own {
            return self.calls.requests.desks.submit(service, job);
        }
        self.calls.requests.executor.submit(&self.node, service, pace, job);
    }

    /// Runs a job that no request has brought on the serial lane of this name.
    pub(crate) fn submit_job(
        self: &Arc<Self>,
        lane: &ServiceName,
        mailbox: u64,
        job: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        let act = Box::new(move |refusal: Option<Error>| job(refusal.map_or(Ok(()), Err)));
        let job = Job { act, mailbox: Some(mailbox) };
        self.calls.requests.executor.submit(&self.node, lane.number(), Lane::Serial.pace(Duration::ZERO), job);
    }

    /// A request begins, or never will: its place in the window is free, and the caller is told if much is.
    fn begun(&self, counted: &Counted, bytes: u64) {
        let begun = counted.begun.fetch_add(1, SeqCst).wrapping_add(1);
        let untold_bytes = counted.untold_bytes.fetch_add(bytes, SeqCst).saturating_add(bytes);
        let size = counted.window.unwrap_or_else(|| Size::among(self.table().len()));
        let untold = begun.wrapping_sub(counted.told.load(SeqCst));
        let is_much = untold >= size.requests / 2 || untold_bytes >= size.bytes / 2;
        if is_much || counted.is_asked.load(SeqCst) && counted.is_asked.swap(false, SeqCst) {
            self.say_begun(counted);
        }
        self.let_in();
    }

    /// A caller asks how many of its requests have begun: it is told of news now, or when there are some.
    pub(super) fn tell_begun(&self, link: LinkId, service: u64) {
        let Some(counted) = self.calls.requests.counted_of(link, service) else { return };
        // Whoever begins with one looks for the mark then.
        counted.is_asked.store(true, SeqCst);
        let is_news = counted.begun.load(SeqCst) != counted.told.load(SeqCst);
        if is_news && counted.is_asked.swap(false, SeqCst) {
            self.say_begun(&counted);
        }
    }

    fn say_begun(&self, counted: &Counted) {
        let (service, aux) = counted.tell();
        let envelope = Envelope { aux, ..Envelope::of(ROOM, Tag(service), 0) };
        // Where the link has ended nobody waits for room.
        let _ = self.node.isend(counted.link, Outgoing::control(envelope, Vec::new()));
    }

    /// An answer goes out. Its request counts as not answered until it has.
    pub(super) fn send_answer(
        self: &Arc<Self>,
        link: LinkId,
        message: Outgoing,
        hold: Hold,
        counted: Option<&Arc<Counted>>,
    ) -> Result<()> {
        if planted::strikes(Bug::AnswerLost) {
            return Ok(());
        }
        let queued = self.node.dispatch(link, message, hold)?;
        let Some(counted) = counted else { return Ok(()) };
        let Some(work) = queued.filter(|work| !work.is_done()) else {
            counted.answered.fetch_add(1, SeqCst);
            self.let_in();
            return Ok(());
        };
        let (shared, counted) = (Arc::clone(self), Arc::clone(counted));
        work.on_complete(move |_| {
            counted.answered.fetch_add(1, SeqCst);
            // The link's locks may be held: what has room now is looked at after the poll.
            shared.node.remind(REQUESTS);
        });
        Ok(())
    }

    /// Requests that found no room are let in, if there is some now.
    pub(super) fn let_in(&self) {
        let choked = &self.calls.requests.choked;
        if choked.load(SeqCst) && choked.swap(false, SeqCst) {
            self.node.resume();
        }
    }
}

/// How a reply finds the way back.
fn reply_to(shared: &Arc<Shared>, incoming: &Incoming, service: Option<&dyn Serves>) -> Reply {
    let (call, counted) = (incoming.id(), Arc::clone(&incoming.counted));
    if call.1 == ONE_WAY {
        let heard = Heard::of(incoming.message.envelope.context);
        return Reply::to(shared, call, None, None, Some(counted)).one_way(heard);
    }
    let is_noted = service.is_some_and(|service| service.lane() != Lane::Inline);
    let mark = is_noted.then(|| shared.calls.requests.note(call));
    Reply::to(shared, call, incoming.until, mark, Some(counted))
}
