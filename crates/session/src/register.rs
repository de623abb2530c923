//! Names of results that stay on the workers.

use crate::held::{Held, Slot};
use crate::results::Results;
use crate::session::Shared;
use sheave_base::work::Interrupt;
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::{Call, Ref};
use sheave_net::{Part, Parts};
use sheave_rpc::{FromValue, IntoValue};
use sheave_tensor::{Mode, Tensor};
use sheave_wire::Value;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The result of a command: one value on each worker, which stays there until the last clone of this is dropped.
/// Dropping never blocks, and says nothing: the next command does.
///
/// It keeps the session's workers running for as long as it lives, unless that is
/// [shut down](crate::Session::shutdown).
#[derive(Clone)]
pub struct Register {
    // Its drop is said before the session may end.
    results: Arc<Results>,
    session: Arc<Shared>,
}

impl Register {
    pub(crate) fn new(session: &Arc<Shared>, results: Arc<Results>) -> Self {
        Self { results, session: Arc::clone(session) }
    }

    pub(crate) fn results(&self) -> &Arc<Results> {
        &self.results
    }

    /// Fetches the value that a worker has there, once the worker has done all commands that were issued before.
    /// Blocks; after `timeout` it fails, and the commands go on.
    ///
    /// # Errors
    ///
    /// What commands have failed with since somebody was told, and what has poisoned this register, which name the
    /// worker, the function and the number of the command; `Unsupported` if it is a function or an object of the
    /// worker's own, `InvalidArgument` for a value of another type or a worker that there is not, `WorkerDied` or
    /// `PeerLost` if the worker is gone, `DeadlineExceeded`, and `Closed` after the session was shut down.
    pub fn get<T: FromValue>(&self, worker: u32, timeout: Option<Duration>) -> Result<T> {
        let (value, tensors) = self.fetch(worker, timeout)?;
        T::from_value(value, &tensors).map_err(|error| error.operation("get"))
    }

    /// As [`Register::get`], whatever value it is, and the tensors in it.
    ///
    /// # Errors
    ///
    /// As [`Register::get`].
    pub fn fetch(&self, worker: u32, timeout: Option<Duration>) -> Result<(Value, Vec<Tensor>)> {
        self.fetch_interruptible(worker, timeout, None)
    }

    /// As [`Register::fetch`]; `interrupt` is asked at least every 100 ms, and its error ends the wait.
    ///
    /// # Errors
    ///
    /// As [`Register::get`], and what `interrupt` says.
    pub fn fetch_interruptible(
        &self,
        worker: u32,
        timeout: Option<Duration>,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<(Value, Vec<Tensor>)> {
        self.asked("get", worker, timeout, interrupt)
    }

    fn asked(
        &self,
        method: &str,
        worker: u32,
        timeout: Option<Duration>,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<(Value, Vec<Tensor>)> {
        let name = self.name(worker)?;
        let answer = self.session.ask(worker, method, Call::of(name), timeout, interrupt)?;
        Ok((answer.value, answer.tensors))
    }

    /// As [`Register::fetch`], and tensors that lie in the arena of a worker on this host are not copied: both sides
    /// see the same memory from then on, and what one writes the other sees at an unknown time ([`Mode::Share`]). So no
    /// safe slice of such a tensor exists any more, on the worker either.
    ///
    /// # Errors
    ///
    /// As [`Register::get`].
    pub fn fetch_shared(&self, worker: u32, timeout: Option<Duration>) -> Result<(Value, Vec<Tensor>)> {
        self.fetch_shared_interruptible(worker, timeout, None)
    }

    /// As [`Register::fetch_shared`]; `interrupt` is asked at least every 100 ms, and its error ends the wait.
    ///
    /// # Errors
    ///
    /// As [`Register::get`], and what `interrupt` says.
    pub fn fetch_shared_interruptible(
        &self,
        worker: u32,
        timeout: Option<Duration>,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<(Value, Vec<Tensor>)> {
        self.asked("share", worker, timeout, interrupt)
    }

    /// What worker 0 has there itself, once it has done all commands that were issued before: the worker is a thread of
    /// this process, so that functions and objects are had too. Blocks; `interrupt` is asked at least every 100 ms, and
    /// its error ends the wait.
    ///
    /// # Errors
    ///
    /// As [`Register::get`] but for what cannot be fetched, and what `interrupt` says.
    pub fn local(&self, timeout: Option<Duration>, interrupt: Option<Interrupt<'_>>) -> Result<Held> {
        self.name(0)?;
        self.session.ask(0, "sync", Call::default(), timeout, interrupt)?;
        let Some(own) = self.results.of(0) else { return Err(self.session.gone(0)) };
        let slot: Arc<Slot> = own.get().map_err(|error| error.operation("local"))?;
        let held = slot.0.lock().clone();
        Ok(held)
    }

    /// Gives the register another value on one worker, once that has done all commands that were issued before.
    /// Blocks.
    ///
    /// # Errors
    ///
    /// As [`Register::get`].
    pub fn set(&self, worker: u32, value: impl IntoValue, timeout: Option<Duration>) -> Result<()> {
        self.set_interruptible(worker, value, timeout, None)
    }

    /// As [`Register::set`]; `interrupt` is asked at least every 100 ms, and its error ends the wait.
    ///
    /// # Errors
    ///
    /// As [`Register::get`], and what `interrupt` says.
    pub fn set_interruptible(
        &self,
        worker: u32,
        value: impl IntoValue,
        timeout: Option<Duration>,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<()> {
        let name = self.name(worker)?;
        let Held::Value(value, tensors) = Held::of(value) else { unreachable!("values are made of values") };
        let tensors: Parts = tensors.into_iter().map(|tensor| Part::new(tensor, Mode::Copy)).collect();
        let call = Call { tensors, ..Call::of(Value::List(vec![name, value])) };
        self.session.ask(worker, "set", call, timeout, interrupt).map(drop)
    }

    /// What names it on this worker.
    fn name(&self, worker: u32) -> Result<Value> {
        self.session.check(worker)?;
        match self.results.refs(&self.session.commands)?.get(worker as usize) {
            Some(Some(held)) => Ok(held.value()),
            _ => Err(self.session.gone(worker)),
        }
    }

    /// As [`Register::name`], for a command, once there are names; nothing of a worker that is gone.
    pub(crate) fn value(&self, worker: usize) -> Value {
        self.results.of(worker).map_or(Value::None, Ref::value)
    }

    /// Refuses a register of another session.
    pub(crate) fn check(&self, session: &Arc<Shared>) -> Result<()> {
        if Arc::ptr_eq(&self.session, session) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::InvalidArgument, "a register of another session")
            .hint("fetch its value, and give that to this one"))
    }
}

impl fmt::Debug for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Register").field("workers", &self.session.commands.workers().len()).finish_non_exhaustive()
    }
}
