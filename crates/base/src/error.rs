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
//!
//! **Causes.** An error may have been caused by another one, and that by a third: [`Error::cause`] says so,
//! [`Error::causes`] and [`source`](std::error::Error::source) walk them. The line of an error names the last of them,
//! the root cause, unless it says the same anyway; what takes several lines, such as the traceback of user code
//! ([`UserError`]), is never part of it.
//!
//! **Bounds.** Texts, details and chains are as long as [`limits`](crate::limits) lets them be; what is cut says so.
//! An error travels to other nodes whole, and what comes from one is held against the same bounds.

mod bounds;
mod detail;
mod kind;
mod peer;
mod written;

pub use detail::{ProcessEnd, UserError};
pub use kind::ErrorKind;
pub use peer::Peer;

use detail::Detail;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The result of everything that can fail in sheave.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Inner {
    kind: ErrorKind,
    #[serde(deserialize_with = "written::text")]
    what: Cow<'static, str>,
    #[serde(deserialize_with = "written::optional_name")]
    operation: Option<Cow<'static, str>>,
    #[serde(deserialize_with = "written::optional_name")]
    group: Option<String>,
    peer: Option<Peer>,
    origin: Option<Peer>,
    sequence: Option<u64>,
    elapsed: Option<Duration>,
    #[serde(deserialize_with = "written::optional_text")]
    hint: Option<Cow<'static, str>>,
    #[serde(with = "written::shared")]
    detail: Option<Arc<Detail>>,
    /// Causes between the error that this one caused and this one, of which there were too many.
    left_out: u32,
    /// Written behind the error itself, with the causes that it has in its turn.
    #[serde(skip)]
    cause: Option<Error>,
    /// To another node it is an error like any other.
    #[serde(skip)]
    is_shortage: bool,
    /// As this node knows it of its own call; passed on, it says nothing about that of another.
    #[serde(skip)]
    has_not_begun: bool,
}

/// What happened, to whom, during what, and what to do. One pointer wide and cheap to clone.
///
/// Two errors are equal if they say the same.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Arc<Inner>);

impl Error {
    /// An error of `kind`; `what` is a lower-case phrase without a full stop.
    #[must_use]
    pub fn new(kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Self {
        Self(Arc::new(Inner {
            kind,
            what: bounds::cut(what, bounds::TEXT),
            operation: None,
            group: None,
            peer: None,
            origin: None,
            sequence: None,
            elapsed: None,
            hint: None,
            detail: None,
            left_out: 0,
            cause: None,
            is_shortage: false,
            has_not_begun: false,
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
        self.with(|inner| inner.operation = Some(bounds::cut(operation, bounds::NAME)))
    }

    /// Names the operation that the caller has asked for, in place of one that served it.
    #[must_use]
    pub fn asked_for(self, operation: impl Into<Cow<'static, str>>) -> Self {
        self.with(|inner| inner.operation = Some(bounds::cut(operation, bounds::NAME)))
    }

    /// Names the group in which the operation ran.
    #[must_use]
    pub fn group(self, group: impl Into<String>) -> Self {
        self.with(|inner| inner.group = Some(bounds::cut(group.into(), bounds::NAME).into_owned()))
    }

    /// Names the peer that the error is about. A shortage of this process is about nobody else, whomever it met.
    #[must_use]
    pub fn peer(self, peer: Peer) -> Self {
        if self.0.is_shortage {
            return self;
        }
        self.with(|inner| inner.peer = Some(peer.bounded()))
    }

    /// Names the node on which it happened, if that is not this one. The first to say so stays. Causes that name none
    /// have happened there too: those that came from elsewhere have said so then.
    #[must_use]
    pub fn origin(self, origin: Peer) -> Self {
        if self.links().all(|link| link.0.origin.is_some()) {
            return self;
        }
        self.with(|inner| {
            let origin = origin.bounded();
            inner.cause = inner.cause.take().map(|cause| cause.origin(origin.clone()));
            inner.origin.get_or_insert(origin);
        })
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
        self.with(|inner| inner.hint = Some(bounds::cut(hint, bounds::TEXT)))
    }

    /// Says that this process itself lacks what the system gives: nobody else is to blame.
    #[must_use]
    pub fn shortage(self) -> Self {
        self.with(|inner| inner.is_shortage = true)
    }

    /// Says that the call failed before its handler began, so that making it again does nothing twice.
    #[must_use]
    pub fn not_begun(self) -> Self {
        self.with(|inner| inner.has_not_begun = true)
    }

    /// The same error without the names of operation and group and the numbers in them: they are those of the node, or
    /// of the part of an operation, that has failed, and whoever passes the error on gives it their own.
    #[must_use]
    pub fn unnamed(self) -> Self {
        self.with(|inner| {
            (inner.operation, inner.group, inner.sequence, inner.elapsed) = (None, None, None, None);
        })
    }

    /// Puts `context` before what happened, as in `reading weights.safetensors: no such file`.
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> Self {
        self.with(|inner| inner.what = bounds::cut(format!("{context}: {}", inner.what), bounds::TEXT))
    }

    /// Says what has caused it, or, if that is known already, what has caused the last of its causes. Of too many the
    /// first ones and the last one stay, and [`Error::left_out`] of that counts the others.
    ///
    /// ```
    /// use sheave_base::{Error, ErrorKind};
    ///
    /// let disk = Error::new(ErrorKind::Io, "no space left on device");
    /// let error = Error::new(ErrorKind::Remote, "the checkpoint was not written").operation("save").cause(disk);
    /// assert_eq!(error.to_string(), "save: the checkpoint was not written; caused by: no space left on device");
    /// assert_eq!(error.causes().count(), 1);
    /// ```
    #[must_use]
    pub fn cause(self, cause: Self) -> Self {
        Self::chained(self.into_links().chain(cause.into_links()).collect())
    }

    /// Gives it the causes of another error, which it takes the place of.
    #[must_use]
    pub fn causes_of(self, other: &Self) -> Self {
        match &other.0.cause {
            Some(cause) => self.cause(cause.clone()),
            None => self,
        }
    }

    /// Says that user code has failed with this.
    #[must_use]
    pub fn user(self, error: UserError) -> Self {
        self.detailed(Detail::User(error))
    }

    /// Says how the process ended that it is about.
    #[must_use]
    pub fn ended(self, end: ProcessEnd) -> Self {
        self.detailed(Detail::Process(end))
    }

    fn detailed(self, detail: Detail) -> Self {
        let error = self.with(|inner| inner.detail = Some(Arc::new(detail)));
        // There is room for so many details of all of them together.
        if error.0.cause.is_some() { Self::chained(error.into_links().collect()) } else { error }
    }

    /// The first one, caused by the second, and so on, within the bounds of a chain.
    fn chained(mut links: Vec<Self>) -> Self {
        bounds::chain(&mut links);
        let behind = links.split_off(1);
        let cause = behind.into_iter().rev().fold(None, |cause, link| Some(link.with(|inner| inner.cause = cause)));
        match links.pop() {
            Some(first) => first.with(|inner| inner.cause = cause),
            None => Self::new(ErrorKind::Internal, "an error without itself"),
        }
    }

    /// The error and its causes, each for itself. What nobody else has is not copied.
    fn into_links(self) -> impl Iterator<Item = Self> {
        let mut next = Some(self);
        std::iter::from_fn(move || {
            let mut link = next.take()?;
            next = match Arc::get_mut(&mut link.0) {
                Some(inner) => inner.cause.take(),
                None => link.0.cause.clone(),
            };
            Some(link)
        })
    }

    /// The error and its causes.
    fn links(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |link| link.0.cause.as_ref())
    }

    /// Returns what has caused it, what has caused that, and so on: the last one is the root cause.
    pub fn causes(&self) -> impl Iterator<Item = &Self> {
        self.links().skip(1)
    }

    /// Returns how many causes are left out between this cause and the error before it.
    #[must_use]
    pub fn left_out(&self) -> u32 {
        self.0.left_out
    }

    /// Returns what is known of the user code that has failed, if that is what this error itself, not a cause, says.
    #[must_use]
    pub fn user_error(&self) -> Option<&UserError> {
        match self.0.detail.as_deref() {
            Some(Detail::User(user)) => Some(user),
            _ => None,
        }
    }

    /// Returns how the process ended that this error itself is about, if it is known.
    #[must_use]
    pub fn process_end(&self) -> Option<&ProcessEnd> {
        match self.0.detail.as_deref() {
            Some(Detail::Process(end)) => Some(end),
            _ => None,
        }
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

    /// Returns whether the handler of the call that failed is known not to have begun.
    #[must_use]
    pub fn has_not_begun(&self) -> bool {
        self.0.has_not_begun
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
        write!(f, "{}", Core(inner))?;
        if let Some(origin) = &inner.origin {
            write!(f, " (said by {origin})")?;
        }
        match (inner.sequence, inner.elapsed) {
            (Some(sequence), Some(elapsed)) => write!(f, " [sequence {sequence}, after {}]", Span(elapsed))?,
            (Some(sequence), None) => write!(f, " [sequence {sequence}]")?,
            (None, Some(elapsed)) => write!(f, " [after {}]", Span(elapsed))?,
            (None, None) => {}
        }
        if let Some(root) = self.causes().last() {
            // A text that repeats what its cause says, as texts of user code do, says it already.
            if !inner.what.contains(&root.0.said()) {
                let text = Core(&root.0).to_string();
                let (line, more) = text.split_once('\n').map_or((&*text, ""), |(line, _)| (line, " …"));
                write!(f, "; caused by: {line}{more}")?;
            }
        }
        if let Some(hint) = &inner.hint {
            write!(f, "; hint: {hint}")?;
        }
        Ok(())
    }
}

impl Inner {
    /// Returns what happened as the error of another one may repeat it.
    fn said(&self) -> String {
        match self.detail.as_deref() {
            Some(Detail::User(user)) => {
                let class = user.class().rsplit('.').next().unwrap_or_default();
                if self.what.is_empty() { class.to_owned() } else { format!("{class}: {}", self.what) }
            }
            _ => self.what.clone().into_owned(),
        }
    }
}

/// Shows what happened and to whom, with neither operation and numbers before and behind it nor the hint.
struct Core<'a>(&'a Inner);

impl fmt::Display for Core<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.0;
        if let Some(Detail::User(user)) = inner.detail.as_deref() {
            // As its own language shows it.
            let separator = if inner.what.is_empty() { "" } else { ": " };
            return write!(f, "{}{separator}{}", user.class(), inner.what);
        }
        match (&inner.peer, inner.kind) {
            (Some(peer), kind) if kind.is_loss() => {
                write!(f, "peer {peer} {}: ", kind.phrase())?;
            }
            (Some(peer), kind) => write!(f, "{}, peer {peer}: ", kind.phrase())?,
            (None, ErrorKind::InvalidArgument | ErrorKind::NotFound | ErrorKind::Io | ErrorKind::Remote) => {}
            (None, kind) => write!(f, "{}: ", kind.phrase())?,
        }
        f.write_str(&inner.what)?;
        match inner.detail.as_deref() {
            Some(Detail::Process(end)) => write!(f, " ({end})"),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self})", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.cause.as_ref().map(|cause| cause as _)
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        use rustix::io::Errno;
        let errno = Errno::from_io_error(&error);
        let told = || Self::new(ErrorKind::Io, error.to_string());
        errno.and_then(crate::shortage::of).unwrap_or_else(|| match errno {
            Some(Errno::NOSPC | Errno::DQUOT) => told().hint("free room on the disk, or write to another one"),
            Some(Errno::FBIG) => told().hint("raise the limit, with `ulimit -f` for example"),
            _ => told(),
        })
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
    use crate::NodeId;
    use crate::config::Role;

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
    fn f59_the_source_of_an_error_is_its_cause() {
        use std::error::Error as _;

        let root = Error::new(ErrorKind::Io, "no space left on device");
        let middle = Error::new(ErrorKind::Remote, "the checkpoint was not written").cause(root.clone());
        let error = Error::new(ErrorKind::Cancelled, "rank 1 gave up save").cause(middle.clone());
        let mut texts = Vec::new();
        let mut next = error.source();
        while let Some(cause) = next {
            texts.push(cause.to_string());
            next = cause.source();
        }
        assert_eq!(texts, [middle.to_string(), root.to_string()]);
        assert!(error.causes().eq([&middle, &root]));
        let line = "cancelled: rank 1 gave up save; caused by: no space left on device";
        assert_eq!(error.to_string(), line);
        assert_eq!(error.hint("look there").to_string(), format!("{line}; hint: look there"));
    }

    #[test]
    fn a_cause_is_added_behind_those_that_are_known() {
        let link = |number| Error::new(ErrorKind::Remote, format!("link {number}"));
        let error = link(0).cause(link(1).cause(link(2))).cause(link(3));
        let texts: Vec<_> = error.causes().map(Error::what).collect();
        assert_eq!(texts, ["link 1", "link 2", "link 3"]);
        assert!(link(9).causes_of(&error).causes().eq(error.causes()));
        assert_eq!(link(9).causes_of(&link(8)).causes().count(), 0);
    }

    #[test]
    fn a_chain_keeps_its_beginning_and_its_root() {
        let link = |number: usize| Error::new(ErrorKind::Remote, format!("link {number}"));
        for causes in 1..40 {
            let from_the_front = (1..=causes).map(link).fold(link(0), Error::cause);
            let from_the_root = (0..=causes).rev().map(link).reduce(|cause, link| link.cause(cause)).expect("some");
            for error in [from_the_front, from_the_root] {
                let texts: Vec<_> = error.causes().map(|cause| cause.what().to_owned()).collect();
                let left_out = error.causes().last().map(Error::left_out);
                assert_eq!(texts.len(), causes.min(crate::limits::ERROR_CAUSES_MAX));
                assert_eq!(left_out, Some((causes - texts.len()) as u32), "of {causes}");
                assert_eq!(texts.last(), Some(&format!("link {causes}")));
                let kept = texts.len() - 1;
                assert!(texts[..kept].iter().enumerate().all(|(at, text)| *text == format!("link {}", at + 1)));
            }
        }
    }

    #[test]
    fn the_line_of_an_error_stays_one() {
        let user = UserError::new("package.Bad", "Traceback (most recent call last):\n  File ...\n");
        let raised = Error::new(ErrorKind::Remote, "first line\nsecond line").user(user.clone());
        let error = Error::new(ErrorKind::Remote, "the updater failed on key 3").cause(raised.clone());
        assert_eq!(error.to_string(), "the updater failed on key 3; caused by: package.Bad: first line …");
        // Whoever says the same does not say it twice.
        let short = Error::new(ErrorKind::Remote, "no luck").user(user);
        let error = Error::new(ErrorKind::Remote, "the updater failed: Bad: no luck (file x)").cause(short);
        assert_eq!(error.to_string(), "the updater failed: Bad: no luck (file x)");
        let end = ProcessEnd::new(Some(-9), "last\nwords\n");
        let died = Error::new(ErrorKind::WorkerDied, "it ended").peer(Peer::named("pool-1").pid(7)).ended(end);
        assert_eq!(died.to_string(), "peer pool-1 (pid 7) died: it ended (signal 9)");
        assert_eq!(died.process_end().map(ProcessEnd::last_lines), Some("last\nwords\n"));
    }

    #[test]
    fn what_names_no_origin_has_happened_where_it_comes_from() {
        let (here, there) = (Peer::named("rank-0"), Peer::named("rank-1"));
        let elsewhere = Error::new(ErrorKind::Io, "disk").origin(there.clone());
        let error = Error::new(ErrorKind::Remote, "it failed").cause(elsewhere).origin(here.clone());
        let origins: Vec<_> = error.links().map(Error::happened_on).collect();
        assert_eq!(origins, [Some(&here), Some(&there)]);
        // Passed on with a cause that the second node adds.
        let error = error.cause(Error::new(ErrorKind::Io, "net")).origin(there.clone());
        let origins: Vec<_> = error.links().map(Error::happened_on).collect();
        assert_eq!(origins, [Some(&here), Some(&there), Some(&there)]);
    }

    #[test]
    fn what_is_too_long_is_cut() {
        let long = "x".repeat(1 << 20);
        let peer = Peer::named(long.clone()).host(long.clone());
        let error = Error::new(ErrorKind::Io, long.clone()).operation(long.clone()).group(long.clone());
        let error = error.peer(peer.clone()).origin(peer).hint(long.clone());
        let (name, text) = (crate::limits::ERROR_NAME_BYTES_MAX, crate::limits::ERROR_TEXT_BYTES_MAX);
        let about = error.about().expect("it is about somebody");
        let texts = [(error.operation_name(), name), (error.group_name(), name), (error.advice(), text)];
        let peers = [(Some(&*about.name), name), (about.host.as_deref(), name), (Some(error.what()), text)];
        for (cut, limit) in texts.into_iter().chain(peers) {
            let cut = cut.expect("it is there");
            assert!(cut.len() <= limit && cut.ends_with("bytes left out]"), "{} bytes of {limit}", cut.len());
        }
        let user = UserError::new(long.clone(), long.clone()).with_pickled(vec![0; 1 << 20]);
        assert_eq!((user.pickled(), user.left_out_bytes()), (None, 1 << 20));
        assert!(user.class().len() <= name);
        assert!(user.traceback().len() <= crate::limits::ERROR_LONG_TEXT_BYTES_MAX);
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
}
