//! One particle: its mailbox, and the turns in which its messages are handled.
//!
//! A *turn* takes messages out of a mailbox and runs their handlers on the thread that has it, while the mailbox may
//! begin any. Several threads may try: what has begun is noted under the mailbox's lock, so of a particle that is not
//! re-entrant one handler runs at a time, whoever runs it, and messages begin in their order. A handler that is a
//! future is polled here for the first time, and goes on as a task of the node if it is suspended.
//!
//! **Nothing waits unseen.** A message that is put into a mailbox, and one that may begin because another has ended or
//! waits, has its particle *listed* at the runtime, which starts it, unless the thread that did it has the turn and
//! looks again itself: of that particle alone, and not while it waits. `is_listed` is set and cleared under the
//! mailbox's lock, before whoever has cleared it looks. A thread that was asked for comes, or what it would have begun
//! is refused.

use crate::behavior::{Behavior, Handler, Steps, unknown};
use crate::context::Context;
use crate::current::{self, Current};
use crate::id::ParticleId;
use crate::mailbox::{Begun, Mailbox, Waiting};
use crate::message::Payload;
use crate::particles::Inner;
use parking_lot::{Mutex, RwLock};
use sheave_base::planted::{self, Bug};
use sheave_base::work::{Completer, pair};
use sheave_base::{Error, ErrorKind, Result, contain, limits};
use sheave_mesh::Reply;
use smallvec::SmallVec;
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Poll;

/// Who waits for the answer.
pub(crate) enum End<M> {
    Here(Completer<M>),
    There(Reply),
}

impl<M: Payload> End<M> {
    pub(crate) fn send(self, outcome: Result<M>) {
        match self {
            Self::Here(completer) => completer.complete(outcome),
            Self::There(reply) => reply.send(outcome.and_then(M::write)),
        }
    }

    /// False if somebody on another node has called and does not want it any more. Within a node it is taken out of
    /// the mailbox then.
    fn is_wanted(&self) -> bool {
        match self {
            Self::Here(_) => true,
            Self::There(reply) => reply.is_wanted(),
        }
    }
}

/// A message in a mailbox.
pub(crate) struct Delivery<M: Payload> {
    number: u64,
    name: Arc<str>,
    handler: Arc<Handler<M>>,
    message: M,
    end: End<M>,
}

impl<M: Payload> Waiting for Delivery<M> {
    fn number(&self) -> u64 {
        self.number
    }

    fn swap_ends(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.end, &mut other.end);
    }
}

/// Why a turn is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// There is nothing that this one is for, or another thread is at it.
    Over,
    /// What is next must have a thread that may block.
    Blocks,
    /// It has run as many as it may.
    Long,
}

pub(crate) struct Particle<M: Payload> {
    id: ParticleId,
    runtime: Weak<Inner<M>>,
    handlers: RwLock<BTreeMap<Arc<str>, Arc<Handler<M>>>>,
    pub(crate) state: Arc<dyn Any + Send + Sync>,
    pub(crate) is_reentrant: bool,
    label: Option<Arc<str>>,
    mailbox: Mutex<Mailbox<Delivery<M>>>,
}

impl<M: Payload> Particle<M> {
    pub(crate) fn new(id: ParticleId, runtime: Weak<Inner<M>>, behavior: Behavior<M>) -> Arc<Self> {
        let Behavior { handlers, state, is_reentrant, label } = behavior;
        let mailbox = Mutex::new(Mailbox::new(is_reentrant));
        Arc::new(Self { id, runtime, handlers: RwLock::new(handlers), state, is_reentrant, label, mailbox })
    }

    pub(crate) fn id(&self) -> ParticleId {
        self.id
    }

    /// How many messages have not begun.
    pub(crate) fn queued(&self) -> usize {
        self.mailbox.lock().queue.len()
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Handles messages of this name in another way from now on: those that are sent later.
    pub(crate) fn register(&self, name: Arc<str>, handler: Arc<Handler<M>>) {
        let before = self.handlers.write().insert(name, handler);
        drop(before);
    }

    pub(crate) fn names(&self) -> Vec<Arc<str>> {
        self.handlers.read().keys().cloned().collect()
    }

    /// Puts a message at the end of the mailbox; `end` makes who waits for it of its number and name. Returns whether
    /// somebody is to start the particle.
    pub(crate) fn push(
        &self,
        name: &str,
        message: M,
        end: impl FnOnce(u64, &Arc<str>) -> End<M>,
    ) -> Result<bool, (Error, M)> {
        let found =
            self.handlers.read().get_key_value(name).map(|(name, handler)| (Arc::clone(name), Arc::clone(handler)));
        let Some((name, handler)) = found else {
            let error = unknown(name, &self.handlers.read());
            return Err((error.context(self), message));
        };
        let mut mailbox = self.mailbox.lock();
        if let Some(error) = &mailbox.over {
            return Err((error.clone(), message));
        }
        if mailbox.queue.len() >= limits::PARTICLE_MESSAGES_MAX {
            let what = format!("{self} has {} messages that have not begun", mailbox.queue.len());
            let error = Error::new(ErrorKind::LimitExceeded, what).hint("wait for answers before sending more");
            return Err((error, message));
        }
        mailbox.push(|number| {
            let end = end(number, &name);
            Delivery { number, name, handler, message, end }
        });
        Ok(!current::has_turn_of(self.address()) && mailbox.is_to_be_listed())
    }

    /// It stands in the list of the runtime no more.
    pub(crate) fn unlist(&self) {
        self.mailbox.lock().is_listed = false;
    }

    /// Whether something may begin. If not, it stands in the list of the runtime no more.
    pub(crate) fn stays_listed(&self) -> bool {
        let mut mailbox = self.mailbox.lock();
        mailbox.is_listed = mailbox.is_ready();
        mailbox.is_listed
    }

    /// Whether there is a next message that may begin, and must have a thread that may block.
    pub(crate) fn is_blocking_next(&self) -> bool {
        let mailbox = self.mailbox.lock();
        mailbox.may_begin() && mailbox.queue.front().is_some_and(|next| next.handler.is_blocking())
    }

    /// A thread is to come for it. False if one does already.
    pub(crate) fn submits(&self) -> bool {
        !std::mem::replace(&mut self.mailbox.lock().is_submitted, true)
    }

    /// The thread has come.
    pub(crate) fn unsubmit(&self) {
        self.mailbox.lock().is_submitted = false;
    }

    /// Handles messages on this thread, until that of this number has ended, or for a while. The caller looks for what
    /// is left. `until` is the message that the thread waits for, if it waits.
    pub(crate) fn turn(self: &Arc<Self>, may_block: bool, until: Option<u64>) -> Turn {
        current::turn(self.address(), || {
            for _ in 0..limits::PARTICLE_TURN_MESSAGES {
                let delivery = {
                    let mut mailbox = self.mailbox.lock();
                    if until.is_some_and(|number| !mailbox.has(number)) || !mailbox.may_begin() {
                        return Turn::Over;
                    }
                    match mailbox.queue.front() {
                        None => return Turn::Over,
                        Some(next) if next.handler.is_blocking() => {
                            // See the module of answers: whoever waits stands below what it runs.
                            let is_other = until.is_some_and(|number| number != next.number);
                            if !may_block || is_other && (self.is_reentrant || current::has_handler()) {
                                return Turn::Blocks;
                            }
                        }
                        Some(_) => {}
                    }
                    let Some(delivery) = mailbox.next() else { return Turn::Over };
                    let (number, name) = (delivery.number, Arc::clone(&delivery.name));
                    mailbox.begun.push(Begun { number, name, waits: 0, task: None });
                    delivery
                };
                self.begin(delivery);
            }
            Turn::Long
        })
    }

    /// Has the runtime start what may begin: behind a turn, what came while nobody but this thread was to look.
    pub(crate) fn look(self: &Arc<Self>) {
        let is_to_be_listed = self.mailbox.lock().is_to_be_listed();
        if is_to_be_listed && let Some(runtime) = self.runtime.upgrade() {
            runtime.list(self);
        }
    }

    fn begin(self: &Arc<Self>, delivery: Delivery<M>) {
        let Delivery { number, handler, message, end, .. } = delivery;
        let runtime = self.runtime.upgrade().filter(|_| end.is_wanted());
        let Some(runtime) = runtime else { return self.end(number, end, Err(gone())) };
        let context = Context::new(&runtime, self, number);
        let current = context.current();
        match &*handler {
            Handler::Blocking(act) => {
                let ran = contain::run(|| current::within(current, self, || act(&context, message)));
                self.end(number, end, ran.unwrap_or_else(|text| Err(self.panicked(number, &text))));
            }
            Handler::Task(act) => {
                let begun = contain::run(|| current::within(current, self, || act(context, message)));
                match begun {
                    Ok(steps) => self.run(&runtime, current, steps, end),
                    Err(text) => self.end(number, end, Err(self.panicked(number, &text))),
                }
            }
        }
    }

    /// Runs a handler that is a future, as far as it goes now.
    fn run(self: &Arc<Self>, runtime: &Inner<M>, current: Current, steps: Steps<M>, end: End<M>) {
        let mut parts = Some((steps, end));
        let prepared = runtime.prepare(|| {
            let (steps, end) = parts.take().unwrap_or_else(|| unreachable!("it is made once"));
            Running { particle: Arc::clone(self), current, steps, end: Some(end) }
        });
        let task = match (prepared, parts) {
            (Ok(task), _) => task,
            (Err(error), Some((steps, end))) => {
                contain::told("the drop of a handler", || drop(steps));
                return self.end(current.number, end, Err(error));
            }
            (Err(_), None) => return,
        };
        task.run();
        if task.has_ended() {
            return;
        }
        let mut mailbox = self.mailbox.lock();
        let task = match mailbox.begun(current.number) {
            Some(begun) => begun.task.replace(task),
            // It has ended meanwhile.
            None => Some(task),
        };
        drop(mailbox);
        drop(task);
    }

    /// A handler has ended: the next one may begin.
    fn end(self: &Arc<Self>, number: u64, end: End<M>, outcome: Result<M>) {
        let task = self.mailbox.lock().end(number);
        // Its future is being polled, or is gone.
        drop(task);
        contain::told("whoever waits for a particle", || end.send(outcome));
        if !current::has_turn_of(self.address()) && !planted::strikes(Bug::ParticleUnseen) {
            self.look();
        }
    }

    fn panicked(&self, number: u64, text: &str) -> Error {
        let name = self.name_of(number).unwrap_or_else(|| "?".into());
        Error::new(ErrorKind::Remote, format!("handler \"{name}\" of {self} panicked: {text}"))
    }

    /// A handler of this particle begins to wait: a re-entrant one may begin the next message.
    pub(crate) fn waits(self: &Arc<Self>, number: u64) {
        let is_unsaid = planted::strikes(Bug::ReentryLost);
        if let Some(begun) = self.mailbox.lock().begun(number).filter(|_| !is_unsaid) {
            begun.waits += 1;
        }
        self.look();
    }

    /// It goes on.
    pub(crate) fn waits_no_more(&self, number: u64) {
        if planted::strikes(Bug::ReentryOutlives) {
            return;
        }
        if let Some(begun) = self.mailbox.lock().begun(number) {
            begun.waits = begun.waits.saturating_sub(1);
        }
    }

    /// The name of a message that has begun.
    pub(crate) fn name_of(&self, number: u64) -> Option<Arc<str>> {
        self.mailbox.lock().begun(number).map(|begun| Arc::clone(&begun.name))
    }

    /// The messages that keep one from being answered, see [`Mailbox::keepers`].
    pub(crate) fn keepers(&self, number: u64) -> SmallVec<[(u64, Arc<str>); 1]> {
        self.mailbox.lock().keepers(number)
    }

    /// What a message is, for those who look on: its name, and what keeps it.
    pub(crate) fn describe(&self, number: u64) -> Option<(String, Vec<Arc<str>>)> {
        let mut mailbox = self.mailbox.lock();
        if let Some(begun) = mailbox.begun(number) {
            return Some((begun.name.to_string(), Vec::new()));
        }
        let at = mailbox.queue.iter().find(|delivery| delivery.number == number)?;
        Some((at.name.to_string(), mailbox.begun.iter().map(|begun| Arc::clone(&begun.name)).collect()))
    }

    /// The particle of this message, and what it does in its stead.
    pub(crate) fn told_of(&self, number: u64) -> String {
        let keepers = self.describe(number).map_or_else(Vec::new, |(_, keepers)| keepers);
        match keepers.is_empty() {
            true => self.to_string(),
            false => {
                let keepers: Vec<String> = keepers.iter().map(|name| format!("\"{name}\"")).collect();
                format!("{self}, which is at {}", keepers.join(" and "))
            }
        }
    }

    /// Takes out a message that has not begun, which nobody wants.
    pub(crate) fn cancel(self: &Arc<Self>, number: u64) {
        let taken = self.mailbox.lock().remove(number);
        if let Some(mut delivery) = taken {
            if planted::strikes(Bug::ParticleCancelIgnored) {
                let nobody = End::Here(pair("send").0);
                let told = std::mem::replace(&mut delivery.end, nobody);
                self.mailbox.lock().queue.push_front(delivery);
                told.send(Err(Error::new(ErrorKind::Cancelled, "planted")));
                return self.look();
            }
            let what = format!("the message to {self} was cancelled before it began");
            delivery.end.send(Err(Error::new(ErrorKind::Cancelled, what)));
        }
    }

    /// Ends all messages that have not begun with this error. Once it is `over` no others come.
    pub(crate) fn refuse(&self, error: &Error, is_over: bool) {
        let refused = {
            let mut mailbox = self.mailbox.lock();
            if is_over {
                mailbox.over.get_or_insert_with(|| error.clone());
            }
            std::mem::take(&mut mailbox.queue)
        };
        for delivery in refused {
            match planted::strikes(Bug::ParticleRemovalUntold) {
                true => std::mem::forget(delivery),
                false => delivery.end.send(Err(error.clone())),
            }
        }
    }
}

impl<M: Payload> fmt::Display for Particle<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.label {
            Some(label) => f.write_str(label),
            None => self.id.fmt(f),
        }
    }
}

pub(crate) fn gone() -> Error {
    Error::new(ErrorKind::Closed, "the node of the particle has left")
}

/// A handler that is a future, on its way.
struct Running<M: Payload> {
    particle: Arc<Particle<M>>,
    current: Current,
    steps: Steps<M>,
    end: Option<End<M>>,
}

impl<M: Payload> Future for Running<M> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<()> {
        let Self { particle, current, steps, end } = &mut *self;
        let polled = contain::run(|| current::within(*current, particle, || steps.as_mut().poll(context)));
        let outcome = match polled {
            Ok(Poll::Pending) => {
                // What it has sent is started by whoever has the turn, if somebody has.
                if !current::has_turn()
                    && let Some(runtime) = particle.runtime.upgrade()
                {
                    runtime.start_soon();
                }
                return Poll::Pending;
            }
            Ok(Poll::Ready(outcome)) => outcome,
            Err(text) => Err(particle.panicked(current.number, &text)),
        };
        if let Some(end) = end.take() {
            particle.end(current.number, end, outcome);
        }
        Poll::Ready(())
    }
}

impl<M: Payload> Drop for Running<M> {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            self.particle.end(self.current.number, end, Err(gone()));
        }
    }
}
