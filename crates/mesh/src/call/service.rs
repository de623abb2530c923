//! What answers calls.

use super::HERE;
use super::answer::encode;
use crate::driver::Shared;
use crate::engine::Member;
use crate::reference::{Brought, Ref, names_in};
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Result, Tag, contain, limits};
use sheave_net::{Envelope, Hold, Kind, Message, Outgoing, Part, Parts, Tensors};
use sheave_tensor::{Mode, Tensor};
use sheave_wire::{Value, codec};
use smallvec::{SmallVec, smallvec};
use std::cell::RefCell;
use std::sync::{Arc, Weak};

/// Something on a node that others call by name.
///
/// A handler takes the [`Request`] and answers through its [`Reply`], at once or later and from any thread. A request
/// that is dropped without an answer, or whose handler panics, is answered with an error.
pub trait Service: Send + Sync + 'static {
    /// Handles one request.
    fn handle(&self, request: Request);

    /// Whether handlers run on the thread that finds the request, one at a time and in the order of each link. They
    /// must not block and must not wait for other calls. If not, they run on the node's executor, several at once.
    fn is_inline(&self) -> bool {
        false
    }

    /// All survivors agree that this member is gone. Called once for each, on any thread; must not block. A death is
    /// told at once. Of a member that left in order an inline service hears after it has handled all requests that the
    /// member sent on its link to this node; for any other service they were handed to the executor.
    fn lost(&self, member: &Member, error: &Error) {
        let _ = (member, error);
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
    /// The request in a message; `None` if it is none, and then it was answered so.
    pub(super) fn read(shared: &Arc<Shared>, from: NodeId, message: Message, brought: Brought) -> Option<Self> {
        let (link, correlation) = (message.source, message.envelope.correlation);
        let reply = Reply::to(shared, link, correlation);
        let read = || {
            let (method, rest) = codec::decode_first(&message.control)?;
            let Value::Str(method) = method else {
                return Err(Error::new(ErrorKind::Protocol, "a request without a method"));
            };
            let args = codec::decode(rest)?;
            args.check_tensors(message.parts.len())?;
            match brought.error {
                Some(error) => Err(error),
                None => Ok((method, args, brought.refs)),
            }
        };
        match read() {
            Ok((method, args, refs)) => Some(Self { from, method, args, tensors: message.parts, refs, reply }),
            Err(error) => {
                reply.error(error);
                None
            }
        }
    }
}

/// A link, or [`HERE`], and the call's number.
struct Way {
    shared: Weak<Shared>,
    link: LinkId,
    correlation: u64,
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
    pub(super) fn to(shared: &Arc<Shared>, link: LinkId, correlation: u64) -> Self {
        Self { way: Some(Way { shared: Arc::downgrade(shared), link, correlation }) }
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
    fn end_without_an_answer(self, what: String) {
        let error = Error::new(ErrorKind::Remote, what).hint("look at the output of the node that was called");
        self.answer(Err(error), Hold::Capture);
    }

    fn answer(self, outcome: Result<(Value, Parts)>, hold: Hold) {
        let outcome = outcome.and_then(|(value, parts)| {
            value.check_tensors(parts.len())?;
            Ok((value, parts))
        });
        let Some(shared) = self.shared.upgrade() else { return };
        if self.link == HERE {
            return shared.answered_here(self.correlation, outcome);
        }
        let Err(error) = send(&shared, self.link, self.correlation, outcome, hold) else { return };
        // What cannot be written is said; a caller whose link has ended knows it already. One that cannot be told
        // would wait for ever.
        if let Err(error) = send(&shared, self.link, self.correlation, Err(error), hold) {
            let _ = shared.node.close_because(self.link, &error);
        }
    }
}

fn send(
    shared: &Arc<Shared>,
    link: LinkId,
    correlation: u64,
    outcome: Result<(Value, Parts)>,
    hold: Hold,
) -> Result<()> {
    let mut names = Vec::new();
    let (control, parts) = match outcome {
        Ok((value, parts)) => {
            names = names_in(&value);
            (encode(Ok(&value))?, parts)
        }
        Err(error) => (encode(Err(&error))?, SmallVec::new()),
    };
    let tag = Tag(names.len() as u64);
    let envelope = Envelope { kind: Kind::Response, tag, context: 0, correlation, epoch: 0 };
    let message = Outgoing { envelope, control, parts };
    if names.is_empty() {
        return shared.send_answer(link, message, hold);
    }
    let to = shared.node.link(link)?.peer().node.unwrap_or_default();
    let refs = shared.references.pass(to, &names)?;
    shared.send_answer(link, message, hold).inspect_err(|_| shared.references.take_back(to, &refs))
}

/// Runs a handler; a panic becomes an error on the caller's side, with its text.
pub(super) fn run(service: &dyn Service, request: Request) {
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
