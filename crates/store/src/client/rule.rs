//! What pushes do: an updater, and an optimizer's learning rate.
//!
//! Only the first worker's word counts. It is said when none of its pushes is on its way, and none leaves before all
//! servers have heard it; and no round is complete without a push of that worker. So in a synchronous store every round
//! of a tensor is merged in the same way on all servers, however they hear of a change.

use super::{Client, has_closed};
use crate::protocol::{self, SetUpdater};
use crate::updater::{Spec, Updater, no_optimizer, with_learning_rate};
use parking_lot::RwLockReadGuard;
use sheave_base::{Error, ErrorKind, Result};
use sheave_optim::Optimizer;
use std::sync::atomic::Ordering::SeqCst;

impl Client {
    /// Keeps what pushes do from changing while one leaves.
    pub(super) fn turn(&self, operation: &'static str) -> Result<RwLockReadGuard<'_, ()>> {
        let turn = self.pushes.try_read().filter(|_| !self.is_closed.load(SeqCst));
        turn.ok_or_else(|| match self.is_closed.load(SeqCst) {
            // Since it was looked at.
            true => has_closed(operation),
            false => Error::new(ErrorKind::InvalidArgument, "what pushes do is being changed by another thread")
                .operation(operation)
                .hint("let one thread set the updater and push"),
        })
    }

    /// Blocks until this worker's operations have ended and all servers have heard it.
    pub(crate) fn set_updater(&self, updater: &Updater) -> Result<()> {
        self.check_usable("set_updater")?;
        let updater = updater.to_spec()?;
        if !self.is_first() {
            return Ok(());
        }
        self.change("set_updater", || Ok(updater))
    }

    pub(crate) fn set_learning_rate(&self, learning_rate: f64) -> Result<()> {
        self.check_usable("set_learning_rate")?;
        if !self.is_first() {
            return Ok(());
        }
        self.change("set_learning_rate", || {
            let optimizer = with_learning_rate(self.optimizer()?, learning_rate)?;
            Ok(Spec::Optimizer(Box::new(optimizer)))
        })
    }

    fn change(&self, operation: &'static str, updater: impl FnOnce() -> Result<Spec>) -> Result<()> {
        if self.is_done.load(SeqCst) {
            let what = "this worker has said that it is done, so others push without it";
            return Err(Error::new(ErrorKind::InvalidArgument, what)
                .operation(operation)
                .hint("wait for the work of done first"));
        }
        let _turn = self.pushes.write();
        // Who waits for them learns of their errors.
        let _ = self.outstanding.wait(None);
        self.tell_updater(&updater()?)
    }

    /// All servers are asked whether they can before one of them does.
    pub(super) fn tell_updater(&self, updater: &Spec) -> Result<()> {
        for is_trial in [true, false] {
            let change = SetUpdater { store: self.open.store, updater: updater.clone(), is_trial };
            let calls = self.ask_all::<SetUpdater>(&change)?;
            calls.iter().try_for_each(|call| call.wait().map(drop))?;
        }
        Ok(())
    }

    /// The optimizer as the first server has it.
    pub(crate) fn optimizer(&self) -> Result<Optimizer> {
        self.check_usable("learning_rate")?;
        match self.mesh.ask::<protocol::Updater>(self.servers[0], &self.of_store())?.join()?.value {
            Spec::Optimizer(optimizer) => Ok(*optimizer),
            _ => Err(no_optimizer()),
        }
    }
}
