//! Answers to messages, and waiting for them.
//!
//! **Who waits works.** The answer to a message of this node is often not being made yet when somebody begins to wait
//! for it. So a waiter takes the turn of that particle itself, on its own stack: handlers that may block too, if it is
//! a thread that waits. That costs no hand-over, and as many threads as wait at once are enough. Waits within such
//! turns do the same, to a [fixed depth](sheave_base::limits::PARTICLE_NESTED_MAX); below that a thread sleeps, and the
//! next handler has another one. A wait with a timeout does not, for somebody else's handler may take longer.
//!
//! **Nobody waits for what stands below it on its stack**, unless the graph of waits knows. A waiter can go on when the
//! handler that it runs has ended, even if its answer was there before, or its message was cancelled. So a handler that
//! waits runs the handler of its own message alone, for which it waits anyhow: those that may block and stand before it
//! have threads of their own. Whoever waits elsewhere keeps no particle, and runs those too, unless they are of a
//! re-entrant particle, whose next message may begin while they wait.

use crate::current::{self, Current};
use crate::message::{Message, Payload};
use crate::particle::Particle;
use crate::particles::Inner;
use sheave_base::work::Interrupt;
use sheave_base::{ErrorKind, Result, Work, clock, limits};
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// What will come of a message. Clones are handles to the same; dropping them does not keep the message from being
/// handled. It can be waited for again and again.
pub struct Answer<M: Payload = Message> {
    work: Work<M>,
    runtime: Arc<Inner<M>>,
    /// The message in a mailbox of this node.
    place: Option<Place<M>>,
}

type Place<M> = (Arc<Particle<M>>, u64);

impl<M: Payload> Clone for Answer<M> {
    fn clone(&self) -> Self {
        Self { work: self.work.clone(), runtime: Arc::clone(&self.runtime), place: self.place.clone() }
    }
}

impl<M: Payload> Answer<M> {
    pub(crate) fn new(work: Work<M>, runtime: Arc<Inner<M>>, place: Option<Place<M>>) -> Self {
        Self { work, runtime, place }
    }

    /// Returns the work behind it. To wait for it alone is not seen as a wait of the handler that does so: a circle is
    /// ended by nobody, and the particle is not re-entered. Good for whoever takes the first of several.
    #[must_use]
    pub fn work(&self) -> &Work<M> {
        &self.work
    }

    /// Returns whether it is there. Does not block.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.work.is_done()
    }

    /// Returns the answer if it is there. Does not block.
    #[must_use]
    pub fn result(&self) -> Option<Result<M>> {
        self.work.result()
    }

    /// Ends it with `Cancelled` if its handler has not begun, which then never does. Does not block.
    pub fn cancel(&self) {
        self.work.cancel();
    }

    /// Blocks until the message is handled, and returns the answer. The calling thread may run handlers of other
    /// particles meanwhile. For threads and for handlers that may block; a future awaits the answer.
    ///
    /// # Errors
    ///
    /// The error of the handler; `Remote` if it panicked; `NotFound` for a particle or a message that is not known;
    /// `Deadlock` if this handler waits, through others, for itself; `PeerLost` when the node of the particle dies;
    /// `Closed` when it leaves.
    pub fn wait(&self) -> Result<M> {
        self.wait_until(None, None)?;
        self.work.wait()
    }

    /// Like [`Answer::wait`], for at most `timeout`; then an error of kind `DeadlineExceeded`, and the message is
    /// handled all the same.
    ///
    /// # Errors
    ///
    /// As [`Answer::wait`], and `DeadlineExceeded`.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<M> {
        self.wait_until(Some(clock::now() + timeout), None)?;
        self.work.wait_timeout(Duration::ZERO).map_err(|error| match error.kind() {
            ErrorKind::DeadlineExceeded if !self.is_done() => error.elapsed(timeout),
            _ => error,
        })
    }

    /// Blocks until the message is handled or `until` has passed; true if it was. `interrupt` is asked now and then.
    ///
    /// # Errors
    ///
    /// `Deadlock`, and those of `interrupt`.
    pub fn wait_until(&self, until: Option<Instant>, interrupt: Option<Interrupt<'_>>) -> Result<bool> {
        if self.is_done() {
            return Ok(true);
        }
        let _waits = self.begin_wait()?;
        if until.is_none() {
            self.handle(true);
        }
        if self.is_done() {
            return Ok(true);
        }
        self.runtime.start_all();
        // Whatever this thread does meanwhile, it takes nobody's turn.
        current::turn(0, || self.work.wait_until(until, interrupt))
    }

    /// Handles the message on this thread, as a wait without a timeout begins, and returns whether the answer is there
    /// then. Does not sleep; handlers that it runs may. For callers that hold what they would let go of for a sleep.
    ///
    /// # Errors
    ///
    /// `Deadlock`.
    pub fn help(&self) -> Result<bool> {
        if !self.is_done() {
            let _waits = self.begin_wait()?;
            self.handle(true);
        }
        Ok(self.is_done())
    }

    /// The handler of this thread begins to wait.
    fn begin_wait(&self) -> Result<Option<Edge<M>>> {
        let Some((current, waiter)) = current::handler(self.runtime.address()) else { return Ok(None) };
        if let Some((particle, number)) = &self.place {
            self.runtime.waits.begin((&waiter, current), (particle, *number))?;
        }
        let edge = Edge { answer: self.clone(), waiter, current };
        if edge.waiter.is_reentrant {
            edge.waiter.waits(current.number);
        }
        Ok(Some(edge))
    }

    /// Handles what it waits for.
    fn handle(&self, may_block: bool) {
        if let Some((particle, number)) = &self.place {
            let turned = current::nested(limits::PARTICLE_NESTED_MAX, || particle.turn(may_block, Some(*number)));
            if turned.is_some() {
                particle.look();
            }
        }
    }
}

/// A wait of a handler.
struct Edge<M: Payload> {
    answer: Answer<M>,
    waiter: Arc<Particle<M>>,
    current: Current,
}

impl<M: Payload> Drop for Edge<M> {
    fn drop(&mut self) {
        let Self { answer, waiter, current } = self;
        if let Some((particle, number)) = &answer.place {
            answer.runtime.waits.end(*current, (particle, *number));
        }
        if waiter.is_reentrant {
            waiter.waits_no_more(current.number);
        }
    }
}

impl<M: Payload> IntoFuture for Answer<M> {
    type Output = Result<M>;
    type IntoFuture = Awaiting<M>;

    fn into_future(self) -> Awaiting<M> {
        Awaiting { answer: self, edge: None, has_begun: false }
    }
}

/// An [`Answer`] that is awaited; by a handler, in a way that is seen as a wait of it. It fails as [`Answer::wait`].
pub struct Awaiting<M: Payload> {
    answer: Answer<M>,
    edge: Option<Edge<M>>,
    has_begun: bool,
}

impl<M: Payload> Future for Awaiting<M> {
    type Output = Result<M>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<M>> {
        if !self.has_begun && !self.answer.is_done() {
            self.has_begun = true;
            self.edge = self.answer.begin_wait()?;
            self.answer.handle(false);
        }
        match self.answer.work.poll_done(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                self.edge = None;
                Poll::Ready(self.answer.work.wait())
            }
        }
    }
}

impl<M: Payload> fmt::Debug for Answer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

impl<M: Payload> fmt::Debug for Awaiting<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Awaiting").field("answer", &self.answer).finish_non_exhaustive()
    }
}
