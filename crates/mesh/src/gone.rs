//! Waiting for others to leave: what a server's main thread does all day.

use crate::driver::Shared;
use crate::engine::Member;
use crate::mesh::Mesh;
use parking_lot::Mutex;
use sheave_base::work::{Completer, IDLE, Interrupt};
use sheave_base::{Error, NodeId, Result, Work};

/// Those who wait for members to be gone.
#[derive(Default)]
pub(crate) struct Gone {
    waiting: Mutex<Vec<(Vec<NodeId>, Completer<()>)>>,
}

impl Mesh {
    /// Blocks until every other member that `picks` picks has left in order. Serves this node's links meanwhile, so
    /// that inline services run on this thread.
    ///
    /// # Errors
    ///
    /// `PeerLost` as soon as one of them has died, naming it; what ended this node's membership, if anything did.
    pub fn until_gone(&self, picks: impl Fn(&Member) -> bool) -> Result<()> {
        self.until_gone_interruptible(picks, None)
    }

    /// Like [`Mesh::until_gone`]; `interrupt` is asked at least every 100 ms, and its error ends the wait.
    ///
    /// # Errors
    ///
    /// As [`Mesh::until_gone`], and whatever `interrupt` says.
    pub fn until_gone_interruptible(
        &self,
        picks: impl Fn(&Member) -> bool,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<()> {
        let picked = self.members().iter().filter(|member| member.node != self.me().node && picks(member));
        let work = self.shared.gone(picked.map(|member| member.node).collect());
        work.wait_until(None, interrupt)?;
        work.wait()
    }
}

impl Shared {
    /// A work that ends when all of these have left, or one of them has died.
    pub(crate) fn gone(&self, nodes: Vec<NodeId>) -> Work<()> {
        let (completer, work) = self.node.pair(IDLE, None);
        self.gone.waiting.lock().push((nodes, completer));
        self.tell_gone();
        work
    }

    /// Somebody is gone: ends the waits that this ends.
    pub(crate) fn tell_gone(&self) {
        let mut ended = Vec::new();
        {
            // Held over the look at the engine: whoever finds the list empty meanwhile would miss its own news.
            let mut waiting = self.gone.waiting.lock();
            for (nodes, completer) in std::mem::take(&mut *waiting) {
                match self.fate(&nodes) {
                    Some(outcome) => ended.push((completer, outcome)),
                    None => waiting.push((nodes, completer)),
                }
            }
        }
        for (completer, outcome) in ended {
            completer.complete(outcome);
        }
    }

    /// This node is gone itself.
    pub(crate) fn end_waits(&self, reason: &Error) {
        let waiting = std::mem::take(&mut *self.gone.waiting.lock());
        for (_, completer) in waiting {
            completer.complete(Err(reason.clone()));
        }
    }

    fn fate(&self, nodes: &[NodeId]) -> Option<Result<()>> {
        if let Some(error) = self.failure() {
            return Some(Err(error.clone()));
        }
        self.look(|engine| {
            let is_picked = |node: &NodeId| nodes.contains(node);
            let died = engine.deaths().iter().find(|death| !death.left && is_picked(&death.node));
            if let Some(death) = died {
                return engine.why_lost(death.node).map(Err);
            }
            let left = engine.deaths().iter().filter(|death| is_picked(&death.node)).count();
            (left == nodes.len()).then_some(Ok(()))
        })
    }
}
