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
//!
//! **Answers that are made of answers** ([`derived`]) are waited for one message after the other, so a wait for them
//! is a wait for each of these.

mod derived;

use crate::current::{self, Current};
use crate::id::ParticleId;
use crate::message::{Message, Payload};
use crate::particle::Particle;
use crate::particles::Inner;
use crate::unseen;
use derived::{Derived, Next};
use sheave_base::work::{Interrupt, reborrowed};
use sheave_base::{Error, ErrorKind, Result, Work, clock, limits};
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The answer to a message. Clones are handles to the same; dropping them does not keep the message from being
/// handled. It can be waited for again and again.
///
/// An error that nobody has looked at when the last handle is dropped, or that comes later, is told as a notice of the
/// node, once, unless the message was cancelled or its particles were ended.
/// [Only so many](sheave_base::limits::PARTICLE_UNSEEN_TOLD) are.
pub struct Answer<M: Payload = Message>(Arc<Shared<M>>);

struct Shared<M: Payload> {
    work: Work<M>,
    runtime: Arc<Inner<M>>,
    to: ParticleId,
    name: Arc<str>,
    source: Source<M>,
    /// Somebody knows the outcome, or has the work and may.
    is_seen: AtomicBool,
}

/// Where an answer comes from.
pub(crate) enum Source<M: Payload> {
    /// The message in a mailbox of this node.
    Here(Arc<Particle<M>>, u64),
    /// Another node, or nobody.
    There,
    /// Other answers.
    Derived(Derived<M>),
}

impl<M: Payload> Clone for Answer<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M: Payload> Answer<M> {
    pub(crate) fn new(
        work: Work<M>,
        runtime: Arc<Inner<M>>,
        (to, name): (ParticleId, Arc<str>),
        source: Source<M>,
    ) -> Self {
        Self(Arc::new(Shared { work, runtime, to, name, source, is_seen: AtomicBool::new(false) }))
    }

    /// Returns the work behind it. To wait for it alone is not seen as a wait of the handler that does so: a circle is
    /// ended by nobody, and the particle is not re-entered. Good for whoever takes the first of several. Its error
    /// counts as looked at.
    #[must_use]
    pub fn work(&self) -> &Work<M> {
        self.0.is_seen.store(true, Relaxed);
        &self.0.work
    }

    /// Returns whether it is there, and then its error counts as looked at. Does not block.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let is_done = self.0.work.is_done();
        if is_done {
            self.0.is_seen.store(true, Relaxed);
        }
        is_done
    }

    /// Returns whether it is there, as for texts that show it: its error does not count as looked at. Does not block.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.work.is_done()
    }

    /// Returns the answer if it is there. Does not block.
    #[must_use]
    pub fn result(&self) -> Option<Result<M>> {
        if self.is_done() { self.0.work.result() } else { None }
    }

    /// Ends it with `Cancelled` if its handler has not begun, which then never does. Does not block.
    pub fn cancel(&self) {
        self.work().cancel();
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
        self.0.work.wait()
    }

    /// Like [`Answer::wait`], for at most `timeout`; then an error of kind `DeadlineExceeded`, and the message is
    /// handled all the same.
    ///
    /// # Errors
    ///
    /// As [`Answer::wait`], and `DeadlineExceeded`, as [`Answer::late`] has it.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<M> {
        if self.wait_until(Some(clock::now() + timeout), None)? {
            return self.0.work.wait();
        }
        Err(self.late(timeout))
    }

    /// Waits for all answers, one after the other, for at most `timeout` altogether, and returns them in their order.
    ///
    /// ```
    /// # use sheave_mesh::{Config, Expected, Mesh, Role};
    /// # use sheave_base::config::Endpoint;
    /// use sheave_particle::{Answer, Behavior, Message, Particles};
    ///
    /// # let root = Endpoint { host: "127.0.0.1".into(), port: sheave_base::port::free()? };
    /// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
    /// let particles: Particles = Particles::new(&mesh, "echoes")?;
    /// let echo = particles.create(Behavior::new(()).on("echo", |_, message| async move { Ok(message) }))?;
    /// let sent = [1, 2, 3].map(|number| particles.send(echo, "echo", number));
    /// let heard = Answer::wait_all(&sent, None)?;
    /// let values: Vec<_> = heard.into_iter().map(|message| message.value).collect();
    /// assert_eq!(values, [1.into(), 2.into(), 3.into()]);
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// That of the first one that has failed, in their order, as [`Answer::wait_timeout`].
    pub fn wait_all<'a>(answers: impl IntoIterator<Item = &'a Self>, timeout: Option<Duration>) -> Result<Vec<M>> {
        let begun = clock::now();
        let until = timeout.map(|timeout| begun + timeout);
        let wait = |answer: &&Self| match answer.wait_until(until, None)? {
            true => answer.0.work.wait(),
            false => Err(answer.late(clock::since(begun))),
        };
        let answers: Vec<&Self> = answers.into_iter().collect();
        let outcome: Result<Vec<M>> = answers.iter().map(wait).collect();
        if outcome.is_err() {
            // Who waits for all is told of the first, and has looked at the others.
            answers.iter().for_each(|answer| answer.0.is_seen.store(true, Relaxed));
        }
        outcome
    }

    /// Blocks until the message is handled or `until` has passed; true if it was. `interrupt` is asked now and then.
    ///
    /// # Errors
    ///
    /// `Deadlock`, and those of `interrupt`.
    pub fn wait_until(&self, until: Option<Instant>, mut interrupt: Option<Interrupt<'_>>) -> Result<bool> {
        while !self.is_done() {
            let asked = reborrowed(&mut interrupt);
            let has_ended = match self.next() {
                Next::Message(answer) => answer.wait_for_message(until, asked)?,
                Next::Function(begun) => begun.wait_until(until, asked)?,
                Next::Nothing => self.0.work.wait_until(until, asked)?,
            };
            if !has_ended {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits for one message.
    fn wait_for_message(&self, until: Option<Instant>, interrupt: Option<Interrupt<'_>>) -> Result<bool> {
        let _waits = self.begin_wait()?;
        if until.is_none() {
            self.handle(true);
        }
        if self.0.work.is_done() {
            return Ok(true);
        }
        self.0.runtime.start_all();
        // Whatever this thread does meanwhile, it takes nobody's turn.
        current::turn(0, || self.0.work.wait_until(until, interrupt))
    }

    /// Handles the message on this thread, as a wait without a timeout begins, and returns whether the answer is there
    /// then. Does not sleep; handlers that it runs may. For callers that hold what they would let go of for a sleep.
    ///
    /// # Errors
    ///
    /// `Deadlock`.
    pub fn help(&self) -> Result<bool> {
        if !self.is_done()
            && let Next::Message(answer) = self.next()
        {
            let _waits = answer.begin_wait()?;
            answer.handle(true);
        }
        Ok(self.is_done())
    }

    /// Returns the error of a wait that has lasted for so long in vain: it names the handler that waits, if there is
    /// one, and whom it waits for.
    #[must_use]
    pub fn late(&self, elapsed: Duration) -> Error {
        let answer = match self.next() {
            Next::Message(answer) => answer,
            Next::Function(_) | Next::Nothing => self.clone(),
        };
        let Shared { runtime, to, name, source, .. } = &*answer.0;
        let (whom, is_there) = match source {
            Source::Here(particle, number) => (particle.told_of(*number), false),
            Source::There | Source::Derived(_) => (runtime.shown(*to), to.node != runtime.node),
        };
        let waiter = current::handler::<M>(runtime.address());
        let (what, hint) = match waiter {
            Some((current, own)) => {
                let own_name = own.name_of(current.number).unwrap_or_else(|| "?".into());
                let what = format!("{own} (\"{own_name}\") still waits for \"{name}\" of {whom}");
                (what, if is_there { CIRCLE_BETWEEN_NODES } else { AGAIN })
            }
            None => (format!("\"{name}\" of {whom} is still running, or waits for its turn"), AGAIN),
        };
        Error::new(ErrorKind::DeadlineExceeded, what).operation("send").elapsed(elapsed).hint(hint)
    }

    /// The handler of this thread begins to wait.
    fn begin_wait(&self) -> Result<Option<Edge<M>>> {
        let runtime = &self.0.runtime;
        let Some((current, waiter)) = current::handler(runtime.address()) else { return Ok(None) };
        if let Source::Here(particle, number) = &self.0.source {
            // Who is told of a circle knows that this one was not waited for.
            let refused = |_: &Error| self.0.is_seen.store(true, Relaxed);
            runtime.waits.begin((&waiter, current), (particle, *number)).inspect_err(refused)?;
        }
        let edge = Edge { answer: self.clone(), waiter, current };
        if edge.waiter.is_reentrant {
            edge.waiter.waits(current.number);
        }
        Ok(Some(edge))
    }

    /// Handles what it waits for.
    fn handle(&self, may_block: bool) {
        if let Source::Here(particle, number) = &self.0.source {
            let turned = current::nested(limits::PARTICLE_NESTED_MAX, || particle.turn(may_block, Some(*number)));
            if turned.is_some() {
                particle.look();
            }
        }
    }
}

/// What to do about a wait that takes long.
const AGAIN: &str = "wait again, or cancel it";

/// What to do if it is one of a handler for another node.
const CIRCLE_BETWEEN_NODES: &str = "if that particle waits for this one, directly or through others, they wait in a \
                                    circle: one between nodes is ended by a timeout alone; send without waiting, or \
                                    let one of the particles be re-entrant";

impl<M: Payload> Drop for Shared<M> {
    fn drop(&mut self) {
        if !*self.is_seen.get_mut() {
            unseen::watch(&self.work, &self.runtime, (self.to, Arc::clone(&self.name)));
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
        if let Source::Here(particle, number) = &answer.0.source {
            answer.0.runtime.waits.end(*current, (particle, *number));
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
        Awaiting { answer: self, message: None }
    }
}

/// An [`Answer`] that is awaited; by a handler, in a way that is seen as a wait of it. It fails as [`Answer::wait`].
pub struct Awaiting<M: Payload> {
    answer: Answer<M>,
    /// The message that it waits for now.
    message: Option<(Answer<M>, Option<Edge<M>>)>,
}

impl<M: Payload> Future for Awaiting<M> {
    type Output = Result<M>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<M>> {
        loop {
            if let Some((message, _)) = &self.message {
                if message.0.work.poll_done(context).is_pending() {
                    return Poll::Pending;
                }
                self.message = None;
            }
            if self.answer.is_done() {
                return Poll::Ready(self.answer.0.work.wait());
            }
            let is_pending = match self.answer.next() {
                Next::Message(message) => {
                    let edge = message.begin_wait()?;
                    message.handle(false);
                    self.message = Some((message, edge));
                    continue;
                }
                Next::Function(begun) => begun.poll_done(context).is_pending(),
                Next::Nothing => self.answer.0.work.poll_done(context).is_pending(),
            };
            if is_pending {
                return Poll::Pending;
            }
        }
    }
}

impl<M: Payload> fmt::Debug for Answer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("is_done", &self.0.work.is_done()).finish_non_exhaustive()
    }
}

impl<M: Payload> fmt::Debug for Awaiting<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Awaiting").field("answer", &self.answer).finish_non_exhaustive()
    }
}
