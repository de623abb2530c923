//! What a particle does with what it is sent.

use crate::context::Context;
use crate::message::{Message, Payload};
use sheave_base::{Error, ErrorKind, Result};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// What a handler that may wait comes to.
pub(crate) type Steps<M> = Pin<Box<dyn Future<Output = Result<M>> + Send>>;

type Begin<M> = dyn Fn(Context<M>, M) -> Steps<M> + Send + Sync;
type Act<M> = dyn Fn(&Context<M>, M) -> Result<M> + Send + Sync;

/// Code that a message of one name runs.
pub(crate) enum Handler<M: Payload> {
    Task(Box<Begin<M>>),
    Blocking(Box<Act<M>>),
}

impl<M: Payload> Handler<M> {
    pub(crate) fn is_blocking(&self) -> bool {
        matches!(self, Self::Blocking(_))
    }
}

/// A particle before it lives: its state, and the handlers of the messages that it knows.
///
/// ```
/// use sheave_particle::{Behavior, Message};
/// use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
///
/// let counter = Behavior::new(AtomicI64::new(0))
///     .on("add", |context, message: Message| async move {
///         let sheave_wire::Value::Int(number) = message.value else { return Ok(Message::default()) };
///         let count = context.state::<AtomicI64>()?;
///         Ok(Message::from(count.fetch_add(number, SeqCst) + number))
///     })
///     .on_blocking("get", |context, _| Ok(Message::from(context.state::<AtomicI64>()?.load(SeqCst))));
/// assert_eq!(counter.names().collect::<Vec<_>>(), ["add", "get"]);
/// ```
pub struct Behavior<M: Payload = Message> {
    pub(crate) handlers: BTreeMap<Arc<str>, Arc<Handler<M>>>,
    pub(crate) state: Arc<dyn Any + Send + Sync>,
    pub(crate) is_reentrant: bool,
    pub(crate) label: Option<Arc<str>>,
}

impl<M: Payload> Behavior<M> {
    /// Returns the behaviour of a particle of this state, which knows no message yet.
    #[must_use]
    pub fn new(state: impl Any + Send + Sync) -> Self {
        Self { handlers: BTreeMap::new(), state: Arc::new(state), is_reentrant: false, label: None }
    }

    /// Handles messages of this name by a future, which may wait for other particles and for works of any kind. It is
    /// polled by whoever waits for it, or polls the node: so what it does between its waits must be short.
    #[must_use]
    pub fn on<F, R>(mut self, name: &str, handler: F) -> Self
    where
        F: Fn(Context<M>, M) -> R + Send + Sync + 'static,
        R: Future<Output = Result<M>> + Send + 'static,
    {
        let handler = move |context: Context<M>, message: M| -> Steps<M> { Box::pin(handler(context, message)) };
        self.handlers.insert(name.into(), Arc::new(Handler::Task(Box::new(handler))));
        self
    }

    /// Handles messages of this name by a function that may take long and may block. It runs on the thread of who waits
    /// for it, or on one of the node's.
    #[must_use]
    pub fn on_blocking<F>(mut self, name: &str, handler: F) -> Self
    where
        F: Fn(&Context<M>, M) -> Result<M> + Send + Sync + 'static,
    {
        self.handlers.insert(name.into(), Arc::new(Handler::Blocking(Box::new(handler))));
        self
    }

    /// Lets the next message begin while all handlers that have begun wait. Otherwise a particle handles one message
    /// after the other, and a handler that waits keeps the particle.
    #[must_use]
    pub fn reentrant(mut self) -> Self {
        self.is_reentrant = true;
        self
    }

    /// Has errors call the particle so, in place of its number.
    #[must_use]
    pub fn labelled(mut self, label: &str) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Returns the names of the messages that are handled, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.handlers.keys().map(|name| &**name)
    }
}

impl<M: Payload> fmt::Debug for Behavior<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Behavior").field("handlers", &self.handlers.keys()).finish_non_exhaustive()
    }
}

/// A particle does not know this message.
pub(crate) fn unknown<M: Payload>(name: &str, handlers: &BTreeMap<Arc<str>, Arc<Handler<M>>>) -> Error {
    let known: Vec<&str> = handlers.keys().map(|name| &**name).collect();
    let known =
        if known.is_empty() { "it has none".to_owned() } else { format!("it has \"{}\"", known.join("\", \"")) };
    Error::new(ErrorKind::NotFound, format!("no handler of \"{name}\"; {known}"))
        .hint("register one on the particle before it is sent such a message")
}
