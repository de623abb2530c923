//! What answers calls.

use super::HERE;
use super::callers::Callers;
use super::form::Written;
use super::lane::Lane;
use super::name::Text;
use super::one_way::Heard;
use super::serving::{Begins, CallId, Counted, Delivery, Serves};
use crate::driver::Shared;
use crate::endpoints::ANSWERS;
use crate::engine::Member;
use crate::guest::AttachedGuest;
use crate::reference::{Promises, Ref};
use sheave_base::clock;
use sheave_base::planted::{self, Bug};
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Result, Tag, contain};
use sheave_net::{Envelope, Hold, Medium, Outgoing, Part, Parts, Tensors};
use sheave_tensor::{Mode, Tensor};
use sheave_wire::{Value, codec};
use smallvec::{SmallVec, smallvec};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Something on a node that others call by name, with methods whose names are known at run time. Those that are known
/// when the program is compiled have numbers: [`TypedService`](crate::TypedService).
///
/// A handler takes the [`Request`] and answers through its [`Reply`], at once or later and from any thread. A request
/// that is dropped without an answer, or whose handler panics, is answered with an error.
pub trait Service: Send + Sync + 'static {
    /// Handles one request.
    fn handle(&self, request: Request);

    /// Where handlers run: on threads of the node, several at a time, unless the service says otherwise. Always the
    /// same.
    fn lane(&self) -> Lane {
        Lane::default()
    }

    /// For how long a handler runs on its lane before another one begins beside it, though there are threads for it:
    /// not at all, unless the service says otherwise. Worth some 100 µs where short handlers share a lock, which
    /// threads that run at the same time would only hand to each other. Always the same.
    fn patience(&self) -> Duration {
        Duration::ZERO
    }

    /// The mailbox of a request, where handlers run one at a time of each ([`Lane::Serial`]): all are in one unless the
    /// service says otherwise. Must not block.
    fn mailbox(&self, request: &Request) -> u64 {
        let _ = request;
        0
    }

    /// Who may call this method: all members, unless the service says otherwise. Nobody else's arguments are decoded.
    fn callers(&self, method: &str) -> Callers {
        let _ = method;
        Callers::Members
    }

    /// All survivors agree that this member is gone. Called once for each, on any thread; must not block. A death is
    /// told at once. Of a member that left in order an inline service hears after it has handled all requests that the
    /// member sent on its link to this node; for any other service they were handed to its lane.
    fn lost(&self, member: &Member, error: &Error) {
        let _ = (member, error);
    }

    /// A guest has been taken in by this node. Called on any thread; must not block.
    fn guest_attached(&self, guest: &AttachedGuest) {
        let _ = guest;
    }

    /// A guest of this node is gone: `error` says whether it has left or how it was lost. Called once for each, on any
    /// thread; must not block. All requests that the guest has sent were handled before by an inline service, and
    /// handed to the lane of any other one.
    fn guest_lost(&self, guest: &AttachedGuest, error: &Error) {
        let _ = (guest, error);
    }

    /// What the call of this number ([`Reply::number`]) that `from` has made waits for, if it is not answered and that
    /// is known: "key w, round 7: worker-2 has not pushed it". Asked on any thread for whoever has waited long; must
    /// not block.
    fn awaited(&self, from: NodeId, number: u64) -> Option<String> {
        let _ = (from, number);
        None
    }
}

impl<F: Fn(Request) + Send + Sync + 'static> Service for F {
    fn handle(&self, request: Request) {
        self(request);
    }
}

/// A call that has arrived.
#[derive(Debug)]
pub struct Request {
    /// Who calls.
    pub from: NodeId,
    /// The method.
    pub method: String,
    /// The arguments. [`Value::Tensor`] is an index into `tensors`, and in range.
    pub args: Value,
    /// The tensors that came along; they belong to this node.
    pub tensors: Tensors,
    /// The references in the arguments. They are this node's for as long as the request lives; [`crate::Mesh::hold`]
    /// makes more handles to them.
    pub refs: Vec<Ref>,
    /// Those of them that the caller asks to be filled. They may be kept and filled after the answer.
    pub promises: Promises,
    /// How it is answered.
    pub reply: Reply,
}

impl Request {
    /// Whether the caller still waits for the answer, see [`Reply::is_wanted`].
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.reply.is_wanted()
    }

    /// The method and the arguments of a request whose caller may make it.
    fn read(shared: &Shared, service: &impl Service, delivery: &Delivery) -> Result<(String, Value)> {
        if delivery.tag.method != 0 {
            let what = format!("the methods of this service have names; none has the number {}", delivery.tag.method);
            return Err(Error::new(ErrorKind::NotFound, what).hint("run the same release of sheave on all sides"));
        }
        let (method, rest) = codec::decode_first(&delivery.control)?;
        let Value::Str(method) = method else {
            return Err(Error::new(ErrorKind::Protocol, "a request without a method"));
        };
        shared.check_caller(service.callers(&method), &method, delivery.caller())?;
        let args = codec::decode(rest)?;
        args.check_tensors(delivery.tensors.len())?;
        match &delivery.brought.error {
            Some(error) => Err(error.clone()),
            None => Ok((method, args)),
        }
    }
}

/// A request as its handler gets it.
pub(super) trait Replies: Send + 'static {
    fn reply(&self) -> &Reply;

    fn into_reply(self) -> Reply;
}

impl Replies for Request {
    fn reply(&self) -> &Reply {
        &self.reply
    }

    fn into_reply(self) -> Reply {
        self.reply
    }
}

impl Replies for Delivery {
    fn reply(&self) -> &Reply {
        &self.reply
    }

    fn into_reply(self) -> Reply {
        self.reply
    }
}

/// A service of named methods as the node keeps it.
pub(super) struct ByName<S>(pub(super) S);

impl<S: Service> ByName<S> {
    /// Reads a request on the thread of the service, and handles it: whoever has brought it, which may be its caller,
    /// has other things to do.
    fn handle_own(&self, mut delivery: Delivery) {
        let Some(shared) = delivery.reply.way.as_ref().and_then(Way::shared) else { return };
        let read = Request::read(&shared, &self.0, &delivery);
        drop(shared);
        match read {
            Ok((method, args)) => {
                delivery.reply.is_of(&method);
                let Delivery { from, tensors, brought, reply, .. } = delivery;
                let (refs, promises) = (brought.refs, brought.promises);
                self.0.handle(Request { from, method, args, tensors, refs, promises, reply });
            }
            Err(error) => delivery.refuse(error),
        }
    }
}

impl<S: Service> Serves for ByName<S> {
    fn lane(&self) -> Lane {
        self.0.lane()
    }

    fn deliver(self: Arc<Self>, shared: &Arc<Shared>, mut delivery: Delivery) {
        let (lane, number) = (self.0.lane(), delivery.service);
        if lane == Lane::Own {
            let begins = std::mem::replace(&mut delivery.begins, Begins(None));
            let pace = lane.pace(Duration::ZERO);
            return shared.submit((number, pace, None), begins, delivery, move |delivery| self.handle_own(delivery));
        }
        let (method, args) = match Request::read(shared, &self.0, &delivery) {
            Ok(read) => read,
            Err(error) => return delivery.refuse(error),
        };
        delivery.reply.is_of(&method);
        let Delivery { from, tensors, brought, reply, begins, .. } = delivery;
        let (refs, promises) = (brought.refs, brought.promises);
        let request = Request { from, method, args, tensors, refs, promises, reply };
        let mailbox = match lane {
            Lane::Inline => return shared.run_inline(begins, request, |request| self.0.handle(request)),
            Lane::Serial => match contain::run(|| self.0.mailbox(&request)) {
                Ok(mailbox) => Some(mailbox),
                Err(text) => return request.reply.error(panicked(&text)),
            },
            Lane::Concurrent(_) | Lane::Own => None,
        };
        let pace = lane.pace(self.0.patience());
        shared.submit((number, pace, mailbox), begins, request, move |request| self.0.handle(request));
    }

    fn lost(&self, member: &Member, error: &Error) {
        self.0.lost(member, error);
    }

    fn guest_attached(&self, guest: &AttachedGuest) {
        self.0.guest_attached(guest);
    }

    fn guest_lost(&self, guest: &AttachedGuest, error: &Error) {
        self.0.guest_lost(guest, error);
    }

    fn awaited(&self, from: NodeId, number: u64) -> Option<String> {
        self.0.awaited(from, number)
    }
}

struct Way {
    /// The node, where `counted` does not know it.
    here: Weak<Shared>,
    call: CallId,
    /// When the caller waits no longer.
    until: Option<Instant>,
    /// Whether the call is cancelled; noted beside the queue of requests until it is answered.
    cancelled: Option<Arc<AtomicBool>>,
    /// The requests that it is one of; none where a node calls itself.
    counted: Option<Arc<Counted>>,
    /// What the call is to fill.
    promises: Promises,
    /// The one-way call that it is of: nobody waits for an answer.
    one_way: Option<Box<Heard>>,
}

thread_local! {
    /// The ways back that a panic took from the handlers that run on this thread, each handler's in a list of its own.
    static DROPPED: RefCell<Vec<Vec<Way>>> = const { RefCell::new(Vec::new()) };
}

/// The way back to the caller. Answered once; dropped without an answer it says so.
pub struct Reply {
    way: Option<Way>,
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply").finish_non_exhaustive()
    }
}

impl Reply {
    pub(super) fn to(
        shared: &Arc<Shared>,
        call: CallId,
        until: Option<Instant>,
        cancelled: Option<Arc<AtomicBool>>,
        counted: Option<Arc<Counted>>,
    ) -> Self {
        let here = if counted.is_some() { Weak::new() } else { Arc::downgrade(shared) };
        let promises = Promises::default();
        Self { way: Some(Way { here, call, until, cancelled, counted, promises, one_way: None }) }
    }

    /// The same, of a one-way call, for whose answer nobody waits.
    pub(super) fn one_way(mut self, heard: Heard) -> Self {
        if let Some(way) = &mut self.way {
            way.one_way = Some(Box::new(heard));
        }
        self
    }

    /// Notes which method a one-way call is of, for the error that it may end with.
    pub(super) fn is_for(&mut self, method: impl FnOnce() -> Text) {
        if let Some(heard) = self.way.as_mut().and_then(|way| way.one_way.as_mut()) {
            heard.method = method();
        }
    }

    /// As [`Reply::is_for`], of a method that has a name.
    fn is_of(&mut self, method: &str) {
        if !method.is_empty() {
            self.is_for(|| Text::Shared(method.into()));
        }
    }

    /// An answer that is an error poisons these.
    pub(super) fn filling(mut self, promises: &Promises) -> Self {
        self.way.iter_mut().for_each(|way| way.promises = promises.clone());
        self
    }

    /// Whether the caller still waits for the answer: false once its deadline has passed, the call was cancelled, or
    /// its link has ended. That a call of an inline service was cancelled is not known here: its handler has begun
    /// before the word of it could be heard.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.way.as_ref().is_some_and(|way| {
            let is_there = |shared: &Shared| match way.call.0 {
                HERE => shared.failure().is_none(),
                link => shared.node.link(link).is_ok(),
            };
            way.why_not().is_none() && way.shared().is_some_and(|shared| is_there(&shared))
        })
    }

    /// Whether the caller can have this tensor by [`Mode::Share`]: it reaches this node's memory, and there it lies.
    #[must_use]
    pub fn can_share(&self, tensor: &Tensor) -> bool {
        let Some((way, shared)) = self.way.as_ref().and_then(|way| Some((way, way.shared()?))) else {
            return false;
        };
        let reaches = |link: LinkId| shared.node.link(link).is_ok_and(|link| link.medium() != Medium::Tcp);
        // Blocks are counted in these.
        let is_there = shared.node.arena().owns(tensor.buffer()) && tensor.offset_bytes().is_multiple_of(64);
        way.call.0 == HERE || (reaches(way.call.0) && is_there)
    }

    /// The number that the caller has given to the call: with the caller it names the call.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.way.as_ref().map_or(0, |way| way.call.1)
    }

    /// The link on which the request came; none where a node calls itself.
    pub(crate) fn link(&self) -> Option<LinkId> {
        self.way.as_ref().map(|way| way.call.0).filter(|link| *link != HERE)
    }

    /// Answers with a value and tensors. References in the value must be held by this node. Does not block. That
    /// the caller is gone is no error.
    pub fn ok(self, value: Value, tensors: Parts) {
        self.send(Ok((value, tensors)));
    }

    /// Answers with a value alone.
    pub fn value(self, value: impl Into<Value>) {
        self.ok(value.into(), SmallVec::new());
    }

    /// Answers with one tensor, by copy.
    pub fn tensor(self, tensor: Tensor) {
        self.ok(Value::Tensor(0), smallvec![Part::new(tensor, Mode::Copy)]);
    }

    /// Answers with an error, which keeps its kind and text.
    pub fn error(self, error: Error) {
        self.written(Err(error), Hold::Capture);
    }

    /// Answers with what a handler returned.
    pub fn send(self, outcome: Result<(Value, Parts)>) {
        self.written(outcome.and_then(|(value, tensors)| Written::value(&value, tensors)), Hold::Capture);
    }

    /// Answers that the node has no such service.
    pub(super) fn no_service(self) {
        let Some(way) = &self.way else { return };
        let error = Error::new(ErrorKind::NotFound, "the node has no such service");
        if way.one_way.is_some() {
            return self.error(error.hint("is the node of the right role, and was its service started?"));
        }
        way.promises.fail(&error);
        self.written(Ok(Written::no_service()), Hold::Capture);
    }

    pub(super) fn written(mut self, outcome: Result<Written>, hold: Hold) {
        if let Some(way) = self.way.take() {
            way.answer(outcome, hold);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let Some(way) = self.way.take() else { return };
        if !std::thread::panicking() {
            // Nobody waits for an answer of a one-way call. What it has not filled is poisoned with the last handle.
            if way.one_way.is_none() {
                way.end_without_an_answer("the handler ended without an answer".to_owned());
            }
            return;
        }
        // What the panic says is known to whoever catches it.
        let mut way = Some(way);
        // A thread that ends has no such list any more.
        let _ = DROPPED.try_with(|handlers| {
            if let Some(dropped) = handlers.borrow_mut().last_mut() {
                dropped.extend(way.take());
            }
        });
        if let Some(way) = way {
            way.end_without_an_answer("the thread that was to answer panicked".to_owned());
        }
    }
}

impl Way {
    /// The node, while it lives.
    fn shared(&self) -> Option<Arc<Shared>> {
        self.counted.as_ref().map_or(&self.here, |counted| &counted.shared).upgrade()
    }

    /// Why the handler need not begin.
    fn why_not(&self) -> Option<Error> {
        if self.cancelled.as_ref().is_some_and(|cancelled| cancelled.load(SeqCst)) {
            return Some(cancelled());
        }
        let is_late = self.until.is_some_and(|until| until <= clock::now());
        is_late.then(|| Error::new(ErrorKind::DeadlineExceeded, "the call's time was up before its handler began"))
    }

    fn end_without_an_answer(self, what: String) {
        let error = Error::new(ErrorKind::Remote, what).hint("look at the output of the node that was called");
        self.answer(Err(error), Hold::Capture);
    }

    fn answer(self, outcome: Result<Written>, hold: Hold) {
        let poisons = outcome.as_ref().is_err_and(|error| self.promises.fail(error));
        let Some(shared) = self.shared() else { return };
        let (link, correlation) = self.call;
        if let Some(heard) = &self.one_way {
            return shared.one_way_ended(heard, outcome.err().filter(|_| !poisons), self.counted.as_ref());
        }
        if self.cancelled.is_some() {
            shared.calls.requests.forget(self.call);
        }
        let written = outcome.or_else(|error| Written::error(&error));
        if link == HERE {
            return shared.answered_here(correlation, written);
        }
        let Err(error) = written.and_then(|written| self.send(&shared, written, hold)) else { return };
        // What cannot be written is said. One that cannot be told would wait for ever.
        let told = Written::error(&error).and_then(|written| self.send(&shared, written, hold));
        let Err(error) = told else { return };
        // A caller that has left or died knows it already. What it has said before that may not have been read yet: the
        // link ends when it has.
        if !error.kind().is_loss() {
            let _ = shared.node.close_because(link, &error);
        }
    }

    fn send(&self, shared: &Arc<Shared>, written: Written, hold: Hold) -> Result<()> {
        let Written { control, names, parts } = written;
        let (link, correlation) = self.call;
        self.counted.iter().for_each(|counted| shared.failures_go_first(counted));
        let (context, aux) = self.counted.as_ref().map_or((0, 0), |counted| counted.tell());
        let envelope = Envelope { correlation, aux, ..Envelope::of(ANSWERS, Tag(names.len() as u64), context) };
        let message = Outgoing { envelope, control, parts };
        shared.words_ride_on(link);
        if names.is_empty() {
            return shared.send_answer(link, message, hold, self.counted.as_ref());
        }
        let to = shared.node.link(link)?.peer().node.unwrap_or_default();
        shared.check_passing(to, names.iter().map(|mention| mention.name.owner))?;
        let kept = shared.references.pass(to, &names)?;
        let sent = shared.send_answer(link, message, hold, self.counted.as_ref());
        drop(kept);
        sent.inspect_err(|_| shared.references.take_back(to, names.iter().map(|mention| mention.name)))
    }
}

/// The error of a call whose handler need not begin.
pub(super) fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the call was cancelled before its handler began")
}

/// The error of a call whose handler has panicked with this text.
pub(super) fn panicked(text: &str) -> Error {
    Error::new(ErrorKind::Remote, format!("the handler panicked: {text}"))
        .hint("look at the output of the node that was called")
}

/// Runs a handler whose caller waits; a panic becomes an error on the caller's side, with its text.
pub(super) fn run<R: Replies>(request: R, handle: impl FnOnce(R)) {
    let why_not = request.reply().way.as_ref().and_then(Way::why_not);
    if let Some(error) = why_not.filter(|_| !planted::strikes(Bug::CancelIgnored)) {
        return request.into_reply().error(error);
    }
    DROPPED.with_borrow_mut(|handlers| handlers.push(Vec::new()));
    let outcome = contain::run(|| handle(request));
    // Taken out before anybody is answered, which may run other handlers here.
    let dropped = DROPPED.with_borrow_mut(Vec::pop).unwrap_or_default();
    for way in dropped {
        way.end_without_an_answer(match &outcome {
            Err(text) => format!("the handler panicked: {text}"),
            Ok(()) => "the handler ended without an answer, after a panic that it caught itself".to_owned(),
        });
    }
}
