//! What the threads of a node wait for: one table, and the notices about it.
//!
//! A wait enters the table when it parks and leaves it when it ends, so there are as many entries as threads. An entry
//! has no text: that is made when somebody asks, by who knows ([`sheave_base::work::awaited`]). A wait that lasts looks
//! at itself when the next notice is due ([`limits::WAIT_NOTICES`]). It then asks those who know better whom it waits
//! for, goes on waiting, and gives the notice when they have answered, or after [`limits::WAIT_ANSWER`] without them.

use crate::node::{Inner, Node};
use parking_lot::Mutex;
use sheave_base::clock;
use sheave_base::limits;
use sheave_base::park::Parker;
use sheave_base::work::awaited::{Account, Awaited, Describe, Which};
use sheave_base::work::{IDLE, Target};
use sheave_base::{LinkId, Work};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A wait, as [`Node::waits`] tells of it.
#[derive(Clone, Debug)]
pub struct Wait {
    /// The operation's name.
    pub operation: &'static str,
    /// The operation with its group, number and the like.
    pub what: String,
    /// Who is waited for, as far as this node knows.
    pub whom: String,
    /// How long it has lasted.
    pub elapsed: Duration,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let comma = if self.what.contains(',') { "," } else { "" };
        write!(f, "{}{comma} has been waiting for {}, for {}", self.what, self.whom, Span(self.elapsed))
    }
}

/// When the notices of one wait are due.
#[derive(Clone, Debug)]
pub struct Notices {
    spans: &'static [Duration],
    begun: Instant,
    given: u32,
}

impl Notices {
    /// Of a wait that has begun then: after each of `spans`, and whenever the last of them has passed again.
    #[must_use]
    pub fn new(spans: &'static [Duration], begun: Instant) -> Self {
        Self { spans, begun, given: 0 }
    }

    /// How long the wait has lasted when the next one is due; `None` if there are none.
    fn next_span(&self) -> Option<Duration> {
        let repeated = |last: &Duration| last.saturating_mul(self.given + 2 - self.spans.len() as u32);
        self.spans.get(self.given as usize).copied().or_else(|| self.spans.last().map(repeated))
    }

    /// When the next one is due.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.begun.checked_add(self.next_span()?)
    }

    /// How long the wait has lasted, if a notice is due. Of several that are due it is the last.
    pub fn due(&mut self, now: Instant) -> Option<Span> {
        let mut due = None;
        while let Some(span) = self.next_span().filter(|span| now.saturating_duration_since(self.begun) >= *span) {
            due = Some(Span(span));
            self.given += 1;
            if span.is_zero() {
                break;
            }
        }
        due
    }
}

/// A span of time as notices say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.as_secs(), self.0.subsec_millis()) {
            (0, millis) => write!(f, "{millis} ms"),
            (seconds, _) if seconds >= 60 && seconds.is_multiple_of(60) => write!(f, "{} min", seconds / 60),
            (seconds, _) => write!(f, "{seconds} s"),
        }
    }
}

#[derive(Clone)]
struct Entry {
    operation: &'static str,
    begun: Instant,
    link: Option<LinkId>,
    awaited: Option<Awaited>,
}

impl Entry {
    fn told(&self, inner: &Inner, now: Instant) -> Wait {
        let account = self.awaited.as_ref().and_then(Awaited::describe).unwrap_or_default();
        let peer = || self.link.map_or_else(|| "any peer".to_owned(), |link| inner.peer_of(link).to_string());
        Wait {
            operation: self.operation,
            what: account.what.unwrap_or_else(|| self.operation.to_owned()),
            whom: account.whom.unwrap_or_else(peer),
            elapsed: now.saturating_duration_since(self.begun),
        }
    }
}

/// What the threads of a node wait for.
#[derive(Default)]
pub(crate) struct Waits {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    last: u64,
    entries: Vec<(u64, Entry)>,
}

/// A notice that waits for the answer of those who know better.
struct Asked {
    span: Span,
    until: Instant,
    answer: Work<String>,
}

/// A wait that is in the table while this lives.
pub struct Waiting<'a> {
    inner: &'a Inner,
    number: u64,
    entry: Entry,
    notices: Notices,
    asked: Option<Asked>,
}

impl fmt::Debug for Waiting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").field("operation", &self.entry.operation).finish_non_exhaustive()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut table = self.inner.waits.table.lock();
        let at = table.entries.iter().position(|(number, _)| *number == self.number);
        let gone = at.map(|at| table.entries.swap_remove(at));
        drop(table);
        drop(gone);
    }
}

impl Waiting<'_> {
    /// When [`Waiting::look`] has something to do.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.asked.as_ref().map(|asked| asked.until).or_else(|| self.notices.next_at())
    }

    /// Whether [`Waiting::look`] has something to do.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next_at().is_some_and(|next| now >= next)
            || self.asked.as_ref().is_some_and(|asked| asked.answer.is_done())
    }

    /// Gives a notice, if one is due: to be called now and then by a wait that is not a work's. May take the locks of
    /// whoever knows what is waited for; `parker` is unparked when somebody else has answered.
    pub fn look(&mut self, now: Instant, parker: Option<&Arc<Parker>>) {
        if let Some(asked) = self.asked.take_if(|asked| asked.answer.is_done() || now >= asked.until) {
            self.give(asked.span, asked.answer.result().and_then(Result::ok));
        }
        // One after the other, so that none is lost.
        if self.asked.is_some() {
            return;
        }
        let Some(span) = self.notices.due(now) else { return };
        let Some(answer) = self.entry.awaited.as_ref().and_then(Awaited::ask) else {
            return self.give(span, None);
        };
        if let Some(parker) = parker.cloned() {
            answer.on_complete(move |_| parker.unpark());
        }
        self.asked = Some(Asked { span, until: now + limits::WAIT_ANSWER, answer });
    }

    fn give(&self, span: Span, whom: Option<String>) {
        let mut wait = self.entry.told(self.inner, clock::now());
        wait.elapsed = span.0;
        wait.whom = whom.unwrap_or(wait.whom);
        self.inner.notice(&wait.to_string());
    }
}

/// A receive, by the context and the tag that it names.
impl Describe for Inner {
    fn describe(&self, [context, tag]: Which) -> Option<Account> {
        Some(Account { what: Some(format!("recv of tag {tag} in context {context}")), whom: None })
    }
}

impl Inner {
    fn enter(&self, operation: &'static str, link: Option<LinkId>, awaited: Option<Awaited>) -> Waiting<'_> {
        let begun = clock::now();
        let entry = Entry { operation, begun, link, awaited };
        let mut table = self.waits.table.lock();
        table.last += 1;
        let number = table.last;
        table.entries.push((number, entry.clone()));
        drop(table);
        Waiting { inner: self, number, entry, notices: Notices::new(self.config.notices, begun), asked: None }
    }

    /// A thread parks until `target` is done; none of whoever has nothing else to do.
    pub(crate) fn enter_wait(&self, target: &dyn Target) -> Option<Waiting<'_>> {
        let operation = target.operation();
        (operation != IDLE).then(|| self.enter(operation, target.link(), target.awaited()))
    }
}

impl Node {
    /// What the threads of this node wait for at this moment, those that have nothing else to do left out.
    #[must_use]
    pub fn waits(&self) -> Vec<Wait> {
        let entries = self.inner.waits.table.lock().entries.clone();
        let now = clock::now();
        entries.iter().map(|(_, entry)| entry.told(&self.inner, now)).collect()
    }

    /// Notes a wait of this thread that is not that of a work.
    #[must_use]
    pub fn enter_wait(&self, operation: &'static str, awaited: Option<Awaited>) -> Waiting<'_> {
        self.inner.enter(operation, None, awaited)
    }

    /// When the notices of a wait are due that has begun then.
    #[must_use]
    pub fn notices(&self, begun: Instant) -> Notices {
        Notices::new(self.inner.config.notices, begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f89_notices_are_due_after_ten_seconds_a_minute_ten_minutes_and_each_ten_from_then_on() {
        let begun = Instant::now();
        let mut notices = Notices::new(&limits::WAIT_NOTICES, begun);
        let mut said = Vec::new();
        for second in 0..=3700 {
            let now = begun + Duration::from_secs(second);
            let is_due = notices.next_at().is_some_and(|next| now >= next);
            let due = notices.due(now);
            assert_eq!(is_due, due.is_some());
            said.extend(due.map(|span| (second, span.to_string())));
        }
        let said: Vec<_> = said.iter().map(|(second, text)| (*second, text.as_str())).collect();
        let first = [(10, "10 s"), (60, "1 min"), (600, "10 min"), (1200, "20 min"), (1800, "30 min")];
        assert_eq!(said[..5], first);
        assert_eq!(said[5..], [(2400, "40 min"), (3000, "50 min"), (3600, "60 min")]);
    }

    #[test]
    fn a_wait_that_has_slept_through_several_notices_gives_the_last() {
        let begun = Instant::now();
        let mut notices = Notices::new(&limits::WAIT_NOTICES, begun);
        assert_eq!(notices.due(begun + Duration::from_secs(700)), Some(Span(Duration::from_secs(600))));
        assert_eq!(notices.due(begun + Duration::from_secs(701)), None);
        assert_eq!(Notices::new(&[], begun).due(begun + Duration::from_secs(700)), None, "none are wanted");
    }
}
