//! What answers calls.

use super::HERE;
use super::answer::encode;
use super::callers::Callers;
use super::lane::Lane;
use super::serving::{CallId, Counted, Incoming, reply_to};
use crate::driver::Shared;
use crate::endpoints::ANSWERS;
use crate::engine::Member;
use crate::guest::AttachedGuest;
use crate::reference::{Promises, Ref, names_in};
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Result, Tag, contain, limits};
use sheave_net::{Envelope, Hold, Outgoing, Part, Parts, Tensors};
use sheave_tensor::{Mode, Tensor};
use sheave_wire::{Value, codec};
use smallvec::{SmallVec, smallvec};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Something on a node that others call by name.
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

pub(super) fn encode_request(method: &str, args: &Value) -> Result<Vec<u8>> {
    if method.len() > limits::HANDSHAKE_TEXT_BYTES_MAX {
        let what =
            format!("a method's name of {} bytes; the limit is {}", method.len(), limits::HANDSHAKE_TEXT_BYTES_MAX);
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    let mut control = Vec::with_capacity(64);
    codec::encode_to(&Value::Str(method.to_owned()), &mut control)?;
    codec::encode_to(args, &mut control)?;
    Ok(control)
}

impl Request {
    /// Whether the caller still waits for the answer, see [`Reply::is_wanted`].
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.reply.is_wanted()
    }

    /// The request in a message; `None` if it is none, and then it was answered so.
    pub(super) fn read(shared: &Arc<Shared>, incoming: Incoming, service: Option<&dyn Service>) -> Option<Self> {
        let reply = reply_to(shared, &incoming, service).filling(&incoming.brought.promises);
        let Incoming { from, message, brought, .. } = incoming;
        let read = || {
            let (method, rest) = codec::decode_first(&message.control)?;
            let Value::Str(method) = method else {
                return Err(Error::new(ErrorKind::Protocol, "a request without a method"));
            };
            if let Some(service) = service {
                shared.check_caller(service.callers(&method), &method, (from, message.source))?;
            }
            let args = codec::decode(rest)?;
            args.check_tensors(message.parts.len())?;
            match brought.error {
                Some(error) => Err(error),
                None => Ok((method, args, brought.refs, brought.promises)),
            }
        };
        match read() {
            Ok((method, args, refs, promises)) => {
                Some(Self { from, method, args, tensors: message.parts, refs, promises, reply })
            }
            Err(error) => {
                reply.error(error);
                None
            }
        }
    }
}

struct Way {
    shared: Weak<Shared>,
    call: CallId,
    /// When the caller waits no longer.
    until: Option<Instant>,
    /// Whether the call is cancelled; noted beside the queue of requests until it is answered.
    cancelled: Option<Arc<AtomicBool>>,
    /// The requests that it is one of; none where a node calls itself.
    counted: Option<Arc<Counted>>,
    /// What the call is to fill.
    promises: Promises,
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
        let promises = Promises::default();
        Self { way: Some(Way { shared: Arc::downgrade(shared), call, until, cancelled, counted, promises }) }
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
            way.why_not().is_none() && way.shared.upgrade().is_some_and(|shared| is_there(&shared))
        })
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
        self.send(Err(error));
    }

    /// As [`Reply::ok`], but tensors that are sent by copy are borrowed, not captured, until the answer has left: who
    /// writes them before is refused.
    pub fn ok_borrowed(mut self, value: Value, tensors: Parts) {
        if let Some(way) = self.way.take() {
            way.answer(Ok((value, tensors)), Hold::Borrow);
        }
    }

    /// Answers with what a handler returned.
    pub fn send(mut self, outcome: Result<(Value, Parts)>) {
        if let Some(way) = self.way.take() {
            way.answer(outcome, Hold::Capture);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let Some(way) = self.way.take() else { return };
        if !std::thread::panicking() {
            return way.end_without_an_answer("the handler ended without an answer".to_owned());
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
    /// Why the handler need not begin.
    fn why_not(&self) -> Option<Error> {
        if self.cancelled.as_ref().is_some_and(|cancelled| cancelled.load(SeqCst)) {
            return Some(cancelled());
        }
        let is_late = self.until.is_some_and(|until| until <= Instant::now());
        is_late.then(|| Error::new(ErrorKind::DeadlineExceeded, "the call's time was up before its handler began"))
    }

    fn end_without_an_answer(self, what: String) {
        let error = Error::new(ErrorKind::Remote, what).hint("look at the output of the node that was called");
        self.answer(Err(error), Hold::Capture);
    }

    fn answer(self, outcome: Result<(Value, Parts)>, hold: Hold) {
        let outcome = outcome.and_then(|(value, parts)| {
            value.check_tensors(parts.len())?;
            Ok((value, parts))
        });
        if let Err(error) = &outcome {
            self.promises.fail(error);
        }
        let Some(shared) = self.shared.upgrade() else { return };
        let (link, correlation) = self.call;
        if self.cancelled.is_some() {
            shared.calls.requests.forget(self.call);
        }
        if link == HERE {
            return shared.answered_here(correlation, outcome);
        }
        let Err(error) = self.send(&shared, outcome, hold) else { return };
        // What cannot be written is said. One that cannot be told would wait for ever.
        let Err(error) = self.send(&shared, Err(error), hold) else { return };
        // A caller that has left or died knows it already. What it has said before that may not have been read yet: the
        // link ends when it has.
        if !error.kind().is_loss() {
            let _ = shared.node.close_because(link, &error);
        }
    }

    fn send(&self, shared: &Arc<Shared>, outcome: Result<(Value, Parts)>, hold: Hold) -> Result<()> {
        let mut names = Vec::new();
        let (control, parts) = match outcome {
            Ok((value, parts)) => {
                names = names_in(&value);
                (encode(Ok(&value))?, parts)
            }
            Err(error) => (encode(Err(&error))?, SmallVec::new()),
        };
        let (link, correlation) = self.call;
        let (context, aux) = self.counted.as_ref().map_or((0, 0), |counted| counted.tell());
        let envelope = Envelope { correlation, aux, ..Envelope::of(ANSWERS, Tag(names.len() as u64), context) };
        let message = Outgoing { envelope, control, parts };
        shared.words_ride_on(link);
        if names.is_empty() {
            return shared.send_answer(link, message, hold, self.counted.as_ref());
        }
        let to = shared.node.link(link)?.peer().node.unwrap_or_default();
        shared.check_passing(to, names.iter().map(|mention| mention.name.owner))?;
        let refs = shared.references.pass(to, &names)?;
        let sent = shared.send_answer(link, message, hold, self.counted.as_ref());
        sent.inspect_err(|_| shared.references.take_back(to, &refs))
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
pub(super) fn run(service: &dyn Service, request: Request) {
    if let Some(error) = request.reply.way.as_ref().and_then(Way::why_not) {
        return request.reply.error(error);
    }
    DROPPED.with_borrow_mut(|handlers| handlers.push(Vec::new()));
    let outcome = contain::run(|| service.handle(request));
    // Taken out before anybody is answered, which may run other handlers here.
    let dropped = DROPPED.with_borrow_mut(Vec::pop).unwrap_or_default();
    for way in dropped {
        way.end_without_an_answer(match &outcome {
            Err(text) => format!("the handler panicked: {text}"),
            Ok(()) => "the handler ended without an answer, after a panic that it caught itself".to_owned(),
        });
    }
}
