//! The handshake: both sides prove that they know the job's secret before either believes a byte of the other.
//!
//! ```text
//! initiator                                            responder
//!     hello_I                                   ─────▶
//!            ◀───── hello_R, HMAC("responder", hello_I ‖ hello_R)
//!     HMAC("initiator", hello_I ‖ hello_R ‖ …)  ─────▶
//!            ◀───── HMAC("accepted", hello_I ‖ hello_R ‖ …)
//! ```
//!
//! [`Initiator`] and [`Responder`] are state machines without I/O: they eat what was read and say what to write. They
//! never block and never read a clock; whoever drives them ends a handshake that takes longer than
//! [`HANDSHAKE_TIMEOUT`](sheave_base::limits::HANDSHAKE_TIMEOUT) by dropping it.
//!
//! **Why it holds.** A proof covers a label for its sender's side and the exact bytes of both hellos, each with a fresh
//! nonce. *Replay*: an old proof was made for an old nonce of this side. *Reflection*: this side's own proof carries
//! the other label; and a hello with this side's node id or nonce is refused before anything is proven. *Downgrade*:
//! the versions stand in the hellos. *Relay* between two honest holders of the secret is not prevented, and gains
//! nothing but what cutting the cable gains as long as nobody changes a byte; whoever fears changed bytes uses TLS.
//!
//! **What a stranger learns**: the hello of the side that it talks to, a reason code, and, if it initiates, one proof,
//! against which it can try guesses at home. That is why a [`Secret`] has a least length.

mod hello;
mod message;
mod proof;

use sheave_base::{Error, ErrorKind, Result, Secret};

pub use hello::{Hello, Medium, NONCE_BYTES, limits_hash};
use hello::{Preamble, decode_rest};
use message::{HELLO_BYTES_MAX, Inbox, Message};
pub use message::{RejectReason, reject};
use proof::{Label, Proof, Transcript};

use crate::reader::{Reader, protocol};

/// What to do next.
#[derive(Debug)]
pub enum Step {
    /// Read more and feed it.
    Need,
    /// Write these bytes, then go on feeding.
    Send(Vec<u8>),
    /// The other side is who it says it is: write `send` if there is something, and the link may begin.
    Done {
        /// What the other side says of itself, now proven to come from a holder of the secret.
        peer: Box<Hello>,
        /// The protocol version that both speak.
        version: u8,
        /// Bytes to write before the first message.
        send: Option<Vec<u8>>,
        /// 32 bytes that only these two sides know, fresh for this link.
        session_key: Secret,
    },
}

/// The outcome of feeding.
#[derive(Debug)]
pub struct Progress {
    /// How many bytes of the input belong to the handshake so far. What follows them is to be fed next, or, after
    /// [`Step::Done`], belongs to the link.
    pub consumed_bytes: usize,
    /// What to do next.
    pub step: Step,
}

/// The handshake failed. `send` is what to write before closing, so that the other side can say why.
///
/// It converts into its error, for callers that close without a word.
#[derive(Debug)]
pub struct Refusal {
    /// A rejection to write, with a limit on time, before closing.
    pub send: Option<Vec<u8>>,
    /// What went wrong.
    pub error: Error,
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        refusal.error
    }
}

type Outcome<T> = std::result::Result<T, Refusal>;

/// What both sides have in common.
struct Side {
    hello: Hello,
    encoded: Vec<u8>,
    nonce: [u8; NONCE_BYTES],
    secret: Secret,
    inbox: Inbox,
}

impl Side {
    fn new(hello: Hello, secret: Secret, nonce: [u8; NONCE_BYTES]) -> Result<Self> {
        let encoded = hello.encode(&nonce, HELLO_BYTES_MAX)?;
        Ok(Self { hello, encoded, nonce, secret, inbox: Inbox::default() })
    }

    fn refuse(&self, reason: RejectReason, error: Error) -> Refusal {
        Refusal { send: Some(reject(reason, &self.hello)), error: error.operation("handshake") }
    }

    fn malformed(&self, error: Error) -> Refusal {
        self.refuse(RejectReason::Malformed, error)
    }

    /// A fault of this side's own; the other side is told nothing.
    fn broken(&self, error: Error) -> Refusal {
        Refusal { send: None, error: error.operation("handshake") }
    }

    /// Reads the other side's hello and refuses one that no honest peer of this node can have sent.
    fn read_hello(&self, encoded: &[u8]) -> Outcome<(Box<Hello>, u8)> {
        let mut reader = Reader::new(encoded);
        let preamble = Preamble::decode(&mut reader).map_err(|error| self.malformed(error))?;
        let Some(version) = preamble.agree(&self.hello) else {
            let error = wrong_version(preamble.version_min, preamble.version_max, &self.hello);
            return Err(self.refuse(RejectReason::Version, error));
        };
        let (peer, nonce) = decode_rest(preamble, reader).map_err(|error| self.malformed(error))?;
        if nonce == self.nonce || peer.node == self.hello.node {
            return Err(self.refuse(RejectReason::Reflected, reflected()));
        }
        Ok((Box::new(peer), version))
    }

    fn check_proof(&self, label: Label, transcript: &Transcript, proof: &Proof, peer: &Hello) -> Outcome<()> {
        match transcript.is_proven(label, &self.secret, proof) {
            Ok(true) => Ok(()),
            Ok(false) => {
                let error = unauthenticated("it does not know this side's secret", &self.hello, Some(peer));
                Err(self.refuse(RejectReason::Unauthenticated, error))
            }
            Err(error) => Err(self.broken(error)),
        }
    }

    /// What holders of one secret must agree on. The responder decides, and after the proof: a stranger need not know
    /// what was wrong.
    fn check_agreement(&self, peer: &Hello) -> Outcome<()> {
        if peer.medium != self.hello.medium {
            let what = format!("this side opens a link over {:?}, the other over {:?}", self.hello.medium, peer.medium);
            let error = Error::new(ErrorKind::Mismatch, what).peer(peer.peer());
            return Err(self.refuse(RejectReason::Medium, error));
        }
        if peer.limits_hash != self.hello.limits_hash {
            let error = differing_limits().peer(peer.peer());
            return Err(self.refuse(RejectReason::Limits, error));
        }
        Ok(())
    }

    fn prove(&self, label: Label, transcript: &Transcript) -> Outcome<Proof> {
        transcript.prove(label, &self.secret).map_err(|error| self.broken(error))
    }

    fn done(&self, shaken: Shaken, send: Option<Vec<u8>>) -> Outcome<Step> {
        let key = self.prove(Label::Session, &shaken.transcript)?;
        let session_key = Secret::new(&key).map_err(|error| self.broken(error))?;
        Ok(Step::Done { peer: shaken.peer, version: shaken.version, send, session_key })
    }

    fn unexpected(&self, wanted: &str, message: &Message<'_>, peer: Option<&Hello>) -> Refusal {
        if let Message::Reject { reason, version_min, version_max } = *message {
            return self.broken(self.rejected(reason, version_min, version_max, peer));
        }
        self.malformed(protocol(format!("{} arrived in place of {wanted}", message.name())))
    }

    /// What this side says when the other has ended the handshake.
    fn rejected(&self, reason: Option<RejectReason>, min: u8, max: u8, peer: Option<&Hello>) -> Error {
        let error = match reason {
            Some(RejectReason::Version) => wrong_version(min, max, &self.hello),
            Some(RejectReason::Unauthenticated) => {
                unauthenticated("it says that this side does not know its secret", &self.hello, peer)
            }
            Some(RejectReason::Reflected) => reflected(),
            Some(RejectReason::Medium) => {
                Error::new(ErrorKind::Mismatch, "the other side opens a link over another medium")
            }
            Some(RejectReason::Limits) => differing_limits(),
            Some(RejectReason::Malformed) => protocol("the other side could not read this side's handshake"),
            Some(RejectReason::Busy) => {
                Error::new(ErrorKind::LimitExceeded, "the other side has too many handshakes in progress")
                    .hint("try again a little later")
            }
            None => protocol("the other side refused for a reason that this version does not know"),
        };
        match peer {
            Some(peer) if error.about().is_none() => error.peer(peer.peer()),
            _ => error,
        }
    }
}

/// What is known once both hellos are.
struct Shaken {
    peer: Box<Hello>,
    version: u8,
    transcript: Transcript,
}

/// Where a side stands.
enum State {
    /// The other side's hello is to come.
    Greeting,
    /// The other side's last proof is to come.
    Proving(Shaken),
    /// Done or failed.
    Over,
}

/// The side that opened the connection.
///
/// ```
/// use sheave_base::{NodeId, Secret};
/// use sheave_wire::handshake::{Hello, Initiator, Medium, Responder, Step};
///
/// # fn main() -> sheave_base::Result<()> {
/// let secret = Secret::new(b"shared by the whole job")?;
/// let worker = Hello::new(NodeId(1), "worker-0", Medium::Tcp);
/// let server = Hello::new(NodeId(2), "server-0", Medium::Tcp);
/// // Nonces come from the system's randomness; here they are fixed.
/// let (mut initiator, to_server) = Initiator::new(worker, secret.clone(), [1; 32])?;
/// let mut responder = Responder::new(server, secret, [2; 32])?;
///
/// let Step::Send(to_worker) = responder.feed(&to_server)?.step else { unreachable!() };
/// let Step::Send(to_server) = initiator.feed(&to_worker)?.step else { unreachable!() };
/// let Step::Done { peer, send: Some(to_worker), .. } = responder.feed(&to_server)?.step else { unreachable!() };
/// assert_eq!(peer.name, "worker-0");
/// let Step::Done { peer, send: None, .. } = initiator.feed(&to_worker)?.step else { unreachable!() };
/// assert_eq!(peer.name, "server-0");
/// # Ok(())
/// # }
/// ```
pub struct Initiator {
    side: Side,
    state: State,
}

impl Initiator {
    /// Starts a handshake; the bytes are the first to write. `nonce` must be fresh randomness.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` or `LimitExceeded` if `hello` has a text or payload that is too long or not printable.
    pub fn new(hello: Hello, secret: Secret, nonce: [u8; NONCE_BYTES]) -> Result<(Self, Vec<u8>)> {
        let side = Side::new(hello, secret, nonce)?;
        let first_bytes = message::hello(&side.encoded);
        Ok((Self { side, state: State::Greeting }, first_bytes))
    }

    /// Takes bytes that the other side sent, at most up to the end of one message.
    ///
    /// # Errors
    ///
    /// A [`Refusal`]; the handshake is over then.
    pub fn feed(&mut self, input: &[u8]) -> Outcome<Progress> {
        feed(&mut self.side, &mut self.state, input, |side, state, message| match (state, message) {
            (State::Greeting, Message::Challenge { proof, hello }) => challenged(side, &proof, hello),
            (State::Greeting, Message::Hello { hello }) if hello == side.encoded => {
                Err(side.refuse(RejectReason::Reflected, reflected()))
            }
            (State::Proving(shaken), Message::Accepted { proof }) => {
                side.check_proof(Label::Accepted, &shaken.transcript, &proof, &shaken.peer)?;
                Ok((State::Over, side.done(shaken, None)?))
            }
            (State::Proving(shaken), other) => Err(side.unexpected("an acceptance", &other, Some(&shaken.peer))),
            (_, other) => Err(side.unexpected("a challenge", &other, None)),
        })
    }
}

fn challenged(side: &Side, proof: &Proof, hello: &[u8]) -> Outcome<(State, Step)> {
    let (peer, version) = side.read_hello(hello)?;
    let mut transcript = Transcript::new(&side.encoded, hello);
    side.check_proof(Label::Responder, &transcript, proof, &peer)?;
    transcript.push(proof);
    let own_proof = side.prove(Label::Initiator, &transcript)?;
    transcript.push(&own_proof);
    Ok((State::Proving(Shaken { peer, version, transcript }), Step::Send(message::proof(&own_proof))))
}

/// The side that accepted the connection. See [`Initiator`] for an example.
pub struct Responder {
    side: Side,
    state: State,
}

impl Responder {
    /// Waits for a hello. `nonce` must be fresh randomness.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` or `LimitExceeded` if `hello` has a text or payload that is too long or not printable.
    pub fn new(hello: Hello, secret: Secret, nonce: [u8; NONCE_BYTES]) -> Result<Self> {
        Ok(Self { side: Side::new(hello, secret, nonce)?, state: State::Greeting })
    }

    /// Takes bytes that the other side sent, at most up to the end of one message.
    ///
    /// # Errors
    ///
    /// A [`Refusal`]; the handshake is over then.
    pub fn feed(&mut self, input: &[u8]) -> Outcome<Progress> {
        feed(&mut self.side, &mut self.state, input, |side, state, message| match (state, message) {
            (State::Greeting, Message::Hello { hello }) => greeted(side, hello),
            (State::Proving(shaken), Message::Proof { proof }) => proven(side, shaken, &proof),
            (State::Proving(shaken), other) => Err(side.unexpected("a proof", &other, Some(&shaken.peer))),
            (_, other) => Err(side.unexpected("a hello", &other, None)),
        })
    }
}

fn greeted(side: &Side, hello: &[u8]) -> Outcome<(State, Step)> {
    let (peer, version) = side.read_hello(hello)?;
    let mut transcript = Transcript::new(hello, &side.encoded);
    let own_proof = side.prove(Label::Responder, &transcript)?;
    transcript.push(&own_proof);
    let challenge = message::challenge(&own_proof, &side.encoded);
    Ok((State::Proving(Shaken { peer, version, transcript }), Step::Send(challenge)))
}

fn proven(side: &Side, mut shaken: Shaken, proof: &Proof) -> Outcome<(State, Step)> {
    side.check_proof(Label::Initiator, &shaken.transcript, proof, &shaken.peer)?;
    side.check_agreement(&shaken.peer)?;
    shaken.transcript.push(proof);
    let own_proof = side.prove(Label::Accepted, &shaken.transcript)?;
    let step = side.done(shaken, Some(message::accepted(&own_proof)))?;
    Ok((State::Over, step))
}

/// Cuts one message out of `input` and lets `handle` make the next state of it. Any error leaves the handshake over.
fn feed(
    side: &mut Side,
    state: &mut State,
    input: &[u8],
    handle: impl FnOnce(&Side, State, Message<'_>) -> Outcome<(State, Step)>,
) -> Outcome<Progress> {
    let current = std::mem::replace(state, State::Over);
    if matches!(current, State::Over) {
        return Err(side.broken(Error::new(ErrorKind::Closed, "the handshake is over")));
    }
    let (consumed_bytes, body) = match side.inbox.feed(input) {
        Ok((consumed_bytes, Some(body))) => (consumed_bytes, body),
        Ok((consumed_bytes, None)) => {
            *state = current;
            return Ok(Progress { consumed_bytes, step: Step::Need });
        }
        Err(error) => return Err(side.malformed(error)),
    };
    let message = Message::decode(&body).map_err(|error| side.malformed(error))?;
    let (next, step) = handle(side, current, message)?;
    *state = next;
    Ok(Progress { consumed_bytes, step })
}

fn wrong_version(theirs_min: u8, theirs_max: u8, own: &Hello) -> Error {
    let versions = |min: u8, max: u8| if min == max { format!("{min}") } else { format!("{min} to {max}") };
    let theirs = versions(theirs_min, theirs_max);
    let ours = versions(own.version_min, own.version_max);
    protocol(format!("the other side speaks protocol version {theirs}, this process speaks version {ours}"))
        .hint("run the same release of sheave on all sides")
}

fn unauthenticated(what: &'static str, own: &Hello, peer: Option<&Hello>) -> Error {
    let named = |source: &str| if source.is_empty() { "an unnamed source".to_owned() } else { source.to_owned() };
    let ours = named(&own.secret_source);
    let error = Error::new(ErrorKind::Unauthenticated, what);
    match peer {
        Some(peer) => {
            let theirs = named(&peer.secret_source);
            error
                .hint(format!("this side's secret came from {ours}, the other's from {theirs}; give both the same"))
                .peer(peer.peer())
        }
        None => error.hint(format!("this side's secret came from {ours}; give both sides the same")),
    }
}

fn reflected() -> Error {
    Error::new(ErrorKind::Unauthenticated, "the other side is this node itself, or sends its own words back")
        .hint("does the address lead back to this process?")
}

fn differing_limits() -> Error {
    Error::new(ErrorKind::Mismatch, "the two sides were built with different limits")
        .hint("run the same release of sheave on all sides")
}
