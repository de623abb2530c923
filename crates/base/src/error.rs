//! One error type for every room.
//!
//! An error says what happened, during which operation, to whom, after how long, and what to do about it. Its
//! [`ErrorKind`] is the only thing a program needs to match on; faces map each kind to one exception class or exit
//! code. Messages are lower case and carry no full stop, so that they compose.
//!
//! ```
//! use sheave_base::{Error, ErrorKind, Peer};
//! use std::time::Duration;
//!
//! let error = Error::new(ErrorKind::PeerLost, "the process ended (signal 9)")
//!     .operation("recv")
//!     .peer(Peer::named("worker-1").rank(1).pid(4242))
//!     .sequence(17)
//!     .elapsed(Duration::from_millis(12))
//!     .hint("look at the output of worker-1 for its last words");
//! assert_eq!(
//!     error.to_string(),
//!     "recv: peer worker-1 (rank 1, pid 4242) was lost: the process ended (signal 9) \
//!      [sequence 17, after 12 ms]; hint: look at the output of worker-1 for its last words"
//! );
//! ```

use crate::NodeId;
use crate::config::Role;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The result of everything that can fail in sheave.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as far as a program can act on it. The order of the kinds is their code on the wire: new ones come
/// last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A peer that the operation needs ended, cut its link or stopped beating.
    PeerLost,
    /// This process was declared dead by its peers while it was silent; it must join again.
    DeclaredDead,
    /// The operation's deadline passed.
    DeadlineExceeded,
    /// The operation was cancelled by its owner.
    Cancelled,
    /// A blocking wait was interrupted by a signal (Ctrl-C).
    Interrupted,
    /// Two sides disagree about shape, dtype, operation, length or sequence.
    Mismatch,
    /// The caller's argument has no meaning here.
    InvalidArgument,
    /// The operation has no meaning on this medium, device or dtype.
    Unsupported,
    /// A named thing does not exist.
    NotFound,
    /// A named thing exists already.
    AlreadyExists,
    /// The other side could not prove that it knows the job's secret.
    Unauthenticated,
    /// The other side sent bytes that are not the protocol.
    Protocol,
    /// A limit was reached; the message names it.
    LimitExceeded,
    /// A buffer is held by an operation in flight.
    BufferInUse,
    /// The local end was closed.
    Closed,
    /// The handle was made in another process, before a fork.
    Forked,
    /// User code on another node failed; the message carries its text and origin.
    Remote,
    /// The operating system refused.
    Io,
    /// An invariant of sheave itself does not hold: a bug.
    Internal,
    /// The other side is not one of those who may ask for that.
    NotPermitted,
}

impl ErrorKind {
    /// The kind as one lower-case phrase.
    #[must_use]
    pub fn phrase(self) -> &'static str {
        match self {
            Self::PeerLost => "was lost",
            Self::DeclaredDead => "was declared dead",
            Self::DeadlineExceeded => "deadline exceeded",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
            Self::Mismatch => "mismatch",
            Self::InvalidArgument => "invalid argument",
            Self::Unsupported => "unsupported",
            Self::NotFound => "not found",
            Self::AlreadyExists => "already exists",
            Self::Unauthenticated => "not authenticated",
            Self::Protocol => "protocol violated",
            Self::LimitExceeded => "limit exceeded",
            Self::BufferInUse => "buffer in use",
            Self::Closed => "closed",
            Self::Forked => "used in a forked child",
            Self::Remote => "remote error",
            Self::Io => "system error",
            Self::Internal => "internal error",
            Self::NotPermitted => "not permitted",
        }
    }

    /// Every kind, for faces that map them one to one.
    pub const ALL: [ErrorKind; 20] = [
        Self::PeerLost,
        Self::DeclaredDead,
        Self::DeadlineExceeded,
        Self::Cancelled,
        Self::Interrupted,
        Self::Mismatch,
        Self::InvalidArgument,
        Self::Unsupported,
        Self::NotFound,
        Self::AlreadyExists,
        Self::Unauthenticated,
        Self::Protocol,
        Self::LimitExceeded,
        Self::BufferInUse,
        Self::Closed,
        Self::Forked,
        Self::Remote,
        Self::Io,
        Self::Internal,
        Self::NotPermitted,
    ];
}

/// Who an error is about. Fields that are not known are left out of the text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Peer {
    /// Unique name in the mesh, such as `worker-1`.
    pub name: String,
    /// Its identity; not shown.
    pub node: Option<NodeId>,
    /// What it is there for.
    pub role: Option<Role>,
    /// Rank in the mesh.
    pub rank: Option<u32>,
    /// Host name.
    pub host: Option<String>,
    /// Process id on that host.
    pub pid: Option<u32>,
}

impl Peer {
    /// A peer of which only the name is known.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Adds the identity.
    #[must_use]
    pub fn node(mut self, node: NodeId) -> Self {
        self.node = Some(node);
        self
    }

    /// Adds the role.
    #[must_use]
    pub fn role(mut self, role: Role) -> Self {
        self.role = Some(role);
        self
    }

    /// Adds the mesh rank.
    #[must_use]
    pub fn rank(mut self, rank: u32) -> Self {
        self.rank = Some(rank);
        self
    }

    /// Adds the host name.
    #[must_use]
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// Adds the process id.
    #[must_use]
    pub fn pid(mut self, pid: u32) -> Self {
        self.pid = Some(pid);
        self
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.name.is_empty() { "(unnamed)" } else { &self.name })?;
        let mut separator = " (";
        // A plain rank is told by its rank.
        if let Some(role) = self.role.filter(|role| *role != Role::Rank) {
            write!(f, "{separator}{role}")?;
            separator = ", ";
        }
        if let Some(rank) = self.rank {
            write!(f, "{separator}rank {rank}")?;
            separator = ", ";
        }
        if let Some(host) = &self.host {
            write!(f, "{separator}host {host}")?;
            separator = ", ";
        }
        if let Some(pid) = self.pid {
            write!(f, "{separator}pid {pid}")?;
            separator = ", ";
        }
        if separator == ", " { f.write_str(")") } else { Ok(()) }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Inner {
    kind: ErrorKind,
    what: Cow<'static, str>,
    operation: Option<Cow<'static, str>>,
    group: Option<String>,
    peer: Option<Peer>,
    origin: Option<Peer>,
    sequence: Option<u64>,
    elapsed: Option<Duration>,
    hint: Option<Cow<'static, str>>,
    /// To another node it is an error like any other.
    #[serde(skip)]
    is_shortage: bool,
}

/// What happened, to whom, during what, and what to do. One pointer wide and cheap to clone.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

/// Written and read as it is, so that an error keeps everything that it says when it travels to another node.
impl Serialize for Error {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Error {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        Inner::deserialize(deserializer).map(|inner| Self(Arc::new(inner)))
    }
}

impl Error {
    /// An error of `kind`; `what` is a lower-case phrase without a full stop.
    #[must_use]
    pub fn new(kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Self {
        Self(Arc::new(Inner {
            kind,
            what: what.into(),
            operation: None,
            group: None,
            peer: None,
            origin: None,
            sequence: None,
            elapsed: None,
            hint: None,
            is_shortage: false,
        }))
    }

    fn with(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Names the operation that failed, unless a deeper floor has named it already.
    #[must_use]
    pub fn operation(self, operation: impl Into<Cow<'static, str>>) -> Self {
        if self.0.operation.is_some() {
            return self;
        }
        self.with(|inner| inner.operation = Some(operation.into()))
    }

    /// Names the operation that the caller has asked for, in place of one that served it.
    #[must_use]
    pub fn asked_for(self, operation: impl Into<Cow<'static, str>>) -> Self {
        self.with(|inner| inner.operation = Some(operation.into()))
    }

    /// Names the group in which the operation ran.
    #[must_use]
    pub fn group(self, group: impl Into<String>) -> Self {
        self.with(|inner| inner.group = Some(group.into()))
    }

    /// Names the peer that the error is about. A shortage of this process is about nobody else, whomever it met.
    #[must_use]
    pub fn peer(self, peer: Peer) -> Self {
        if self.0.is_shortage {
            return self;
        }
        self.with(|inner| inner.peer = Some(peer))
    }

    /// Names the node on which it happened, if that is not this one. The first to say so stays.
    #[must_use]
    pub fn origin(self, origin: Peer) -> Self {
        if self.0.origin.is_some() {
            return self;
        }
        self.with(|inner| inner.origin = Some(origin))
    }

    /// Gives the operation's sequence number.
    #[must_use]
    pub fn sequence(self, sequence: u64) -> Self {
        self.with(|inner| inner.sequence = Some(sequence))
    }

    /// Says how long the operation had been running.
    #[must_use]
    pub fn elapsed(self, elapsed: Duration) -> Self {
        self.with(|inner| inner.elapsed = Some(elapsed))
    }

    /// Says what the user can do.
    #[must_use]
    pub fn hint(self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.with(|inner| inner.hint = Some(hint.into()))
    }

    /// Says that this process itself lacks what the system gives: nobody else is to blame.
    #[must_use]
    pub fn shortage(self) -> Self {
        self.with(|inner| inner.is_shortage = true)
    }

    /// Puts `context` before what happened, as in `reading weights.safetensors: no such file`.
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> Self {
        self.with(|inner| inner.what = format!("{context}: {}", inner.what).into())
    }

    /// The kind, to match on.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What happened, without peer, operation and hint.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// Whether this process lacks what the system gives, as [`crate::shortage`] says.
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        self.0.is_shortage
    }

    /// The operation that failed.
    #[must_use]
    pub fn operation_name(&self) -> Option<&str> {
        self.0.operation.as_deref()
    }

    /// The group in which the operation ran.
    #[must_use]
    pub fn group_name(&self) -> Option<&str> {
        self.0.group.as_deref()
    }

    /// The peer that the error is about.
    #[must_use]
    pub fn about(&self) -> Option<&Peer> {
        self.0.peer.as_ref()
    }

    /// The node on which it happened, if that is another one.
    #[must_use]
    pub fn happened_on(&self) -> Option<&Peer> {
        self.0.origin.as_ref()
    }

    /// The operation's sequence number.
    #[must_use]
    pub fn at_sequence(&self) -> Option<u64> {
        self.0.sequence
    }

    /// How long the operation had been running.
    #[must_use]
    pub fn after(&self) -> Option<Duration> {
        self.0.elapsed
    }

    /// What the user can do.
    #[must_use]
    pub fn advice(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        if let Some(operation) = &inner.operation {
            write!(f, "{operation}")?;
            if let Some(group) = &inner.group {
                write!(f, " on group {group}")?;
            }
            f.write_str(": ")?;
        }
        match (&inner.peer, inner.kind) {
            (Some(peer), ErrorKind::PeerLost | ErrorKind::DeclaredDead) => {
                write!(f, "peer {peer} {}: ", inner.kind.phrase())?;
            }
            (Some(peer), kind) => write!(f, "{}, peer {peer}: ", kind.phrase())?,
            (None, ErrorKind::InvalidArgument | ErrorKind::NotFound | ErrorKind::Io | ErrorKind::Remote) => {}
            (None, kind) => write!(f, "{}: ", kind.phrase())?,
        }
        f.write_str(&inner.what)?;
        if let Some(origin) = &inner.origin {
            write!(f, " (said by {origin})")?;
        }
        match (inner.sequence, inner.elapsed) {
            (Some(sequence), Some(elapsed)) => write!(f, " [sequence {sequence}, after {}]", Span(elapsed))?,
            (Some(sequence), None) => write!(f, " [sequence {sequence}]")?,
            (None, Some(elapsed)) => write!(f, " [after {}]", Span(elapsed))?,
            (None, None) => {}
        }
        if let Some(hint) = &inner.hint {
            write!(f, "; hint: {hint}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self})", self.0.kind)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        let shortage = rustix::io::Errno::from_io_error(&error).and_then(crate::shortage::of);
        shortage.unwrap_or_else(|| Self::new(ErrorKind::Io, error.to_string()))
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Self {
        std::io::Error::from(errno).into()
    }
}

/// A duration as people write it: `850 µs`, `12 ms`, `3.2 s`.
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        match seconds {
            s if s < 1e-3 => write!(f, "{:.0} µs", s * 1e6),
            s if s < 1.0 => write!(f, "{:.0} ms", s * 1e3),
            s => write!(f, "{s:.1} s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_leave_no_trace_in_the_text() {
        let error = Error::new(ErrorKind::InvalidArgument, "rank 7 is outside a group of 4");
        assert_eq!(error.to_string(), "rank 7 is outside a group of 4");
        assert_eq!(Peer::named("").to_string(), "(unnamed)");
    }

    #[test]
    fn an_error_travels_whole() {
        let peer = Peer::named("server-0").node(NodeId(9)).role(Role::Server).rank(1).host("here").pid(7);
        let error = Error::new(ErrorKind::Mismatch, "key 3 has 4 elements, not 5")
            .operation("push")
            .group("workers")
            .peer(Peer::named("worker-1"))
            .origin(peer.clone())
            .sequence(5)
            .elapsed(Duration::from_millis(3))
            .hint("look at the shapes");
        let text = serde_json::to_string(&error).expect("it can be written");
        let back: Error = serde_json::from_str(&text).expect("it can be read");
        assert_eq!(back.to_string(), error.to_string());
        assert_eq!((back.kind(), back.happened_on()), (ErrorKind::Mismatch, Some(&peer)));
        assert!(back.to_string().contains("(said by server-0 (server, rank 1, host here, pid 7))"), "{back}");
    }

    #[test]
    fn the_deepest_operation_name_stays() {
        let error = Error::new(ErrorKind::Closed, "the link was closed").operation("recv").operation("pull");
        assert_eq!(error.operation_name(), Some("recv"));
    }

    #[test]
    fn spans_read_like_people_write_them() {
        assert_eq!(Span(Duration::from_micros(850)).to_string(), "850 µs");
        assert_eq!(Span(Duration::from_millis(12)).to_string(), "12 ms");
        assert_eq!(Span(Duration::from_millis(3200)).to_string(), "3.2 s");
    }

    #[test]
    fn every_kind_has_a_phrase_of_its_own() {
        let phrases: std::collections::HashSet<_> = ErrorKind::ALL.iter().map(|kind| kind.phrase()).collect();
        assert_eq!(phrases.len(), ErrorKind::ALL.len());
    }
}
