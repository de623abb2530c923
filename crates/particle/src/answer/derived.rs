//! Answers that are made of answers: what a function makes of one, and what comes of a message that is sent when
//! another one was answered.
//!
//! **The function has no thread.** It runs where the first answer arrives: on the thread that has handled the message,
//! which is the waiter's own for most, or on the one that has read the answer of another node; at once if the answer is
//! there. So it must not block.
//!
//! **Nothing is waited for unseen.** A wait for such an answer waits for the first message, and runs its handler, and
//! then for the next one: each of these is an edge of its own in the graph of waits, so circles through them are found.
//! Between the two it waits for the function alone, which does not wait.

use super::{Answer, Shared, Source};
use crate::message::Payload;
use sheave_base::{Result, Work};
use std::sync::{Arc, OnceLock};

pub(crate) struct Derived<M: Payload> {
    first: Answer<M>,
    /// What a function has returned, once the work is done.
    next: Option<(Work<()>, Place<M>)>,
}

/// Where a function puts the answer to the next message.
type Place<M> = Arc<OnceLock<Answer<M>>>;

/// What is to be waited for next.
pub(super) enum Next<M: Payload> {
    Message(Answer<M>),
    Function(Work<()>),
    /// What is left is done by whoever has ended the last.
    Nothing,
}

impl<M: Payload> Answer<M> {
    /// Returns an answer that ends with what `change` makes of this one. An error stays what it is, and `change` is
    /// not called. Does not block.
    ///
    /// `change` is called once, whether anybody waits or not, by the thread that this answer comes from: the one that
    /// has handled the message, or has read what another node has answered; by the caller if the answer is there. It
    /// must not block.
    ///
    /// ```
    /// # use sheave_mesh::{Config, Expected, Mesh, Role};
    /// # use sheave_base::config::Endpoint;
    /// # use sheave_particle::{Behavior, Message, Particles};
    /// # use sheave_wire::Value;
    /// # let root = Endpoint { host: "127.0.0.1".into(), port: sheave_base::port::free()? };
    /// # let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
    /// # let particles: Particles = Particles::new(&mesh, "echoes")?;
    /// let echo = particles.create(Behavior::new(()).on("echo", |_, message| async move { Ok(message) }))?;
    /// let text = particles.send(echo, "echo", 21).map(|message| Ok(Message::from(format!("{:?}", message.value))));
    /// assert_eq!(text.wait()?.value, Value::from("Int(21)"));
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    #[must_use]
    pub fn map(&self, change: impl FnOnce(M) -> Result<M> + Send + 'static) -> Self {
        self.derived(self.work().map(change), None)
    }

    /// Returns an answer that ends with the one that `next` returns, which is called when this one has ended well, as
    /// [`Answer::map`] calls its function: with the answer to the next message, for example, or with one that came in
    /// another way. An error of either is its error. Does not block.
    ///
    /// ```
    /// # use sheave_mesh::{Config, Expected, Mesh, Role};
    /// # use sheave_base::config::Endpoint;
    /// # use sheave_particle::{Behavior, Particles};
    /// # use sheave_wire::Value;
    /// # let root = Endpoint { host: "127.0.0.1".into(), port: sheave_base::port::free()? };
    /// # let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
    /// # let particles: Particles = Particles::new(&mesh, "echoes")?;
    /// let echo = particles.create(Behavior::new(()).on("echo", |_, message| async move { Ok(message) }))?;
    /// let again = particles.clone();
    /// let twice = particles.send(echo, "echo", 21).then(move |message| Ok(again.send(echo, "echo", message)));
    /// assert_eq!(twice.wait()?.value, Value::Int(21));
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    #[must_use]
    pub fn then(&self, next: impl FnOnce(M) -> Result<Self> + Send + 'static) -> Self {
        let place: Place<M> = Arc::default();
        let filled = Arc::clone(&place);
        let begun = self.work().map(move |message| {
            let answer = next(message)?;
            let _ = filled.set(answer);
            Ok(())
        });
        let taken = Arc::clone(&place);
        let work = begun.then(move |()| match taken.get() {
            Some(answer) => Ok(answer.work().clone()),
            // It is set before this is called.
            None => unreachable!("the next answer is there when it has begun"),
        });
        self.derived(work, Some((begun, place)))
    }

    fn derived(&self, work: Work<M>, next: Option<(Work<()>, Place<M>)>) -> Self {
        let Shared { runtime, to, name, .. } = &*self.0;
        let source = Source::Derived(Derived { first: self.clone(), next });
        Self::new(work, Arc::clone(runtime), (*to, Arc::clone(name)), source)
    }

    /// Returns what a wait for this one, which is not there, waits for now.
    pub(super) fn next(&self) -> Next<M> {
        if self.0.work.is_done() {
            return Next::Nothing;
        }
        let Source::Derived(Derived { first, next }) = &self.0.source else { return Next::Message(self.clone()) };
        match (first.next(), next) {
            (Next::Nothing, Some((begun, _))) if !begun.is_done() => Next::Function(begun.clone()),
            (Next::Nothing, Some((_, place))) => place.get().map_or(Next::Nothing, Self::next),
            (found, _) => found,
        }
    }
}
