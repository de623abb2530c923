//! Threads that wait for other members to go.
//!
//! Such a thread has nothing else to do, so its work is idle and driven by the node: it serves the links. Every turn of
//! the engine that takes somebody out looks at all waits; one that begins looks once itself, after it was noted, so
//! that nobody's end falls between the two.

use crate::driver::Shared;
use crate::engine::{Death, Engine, FIRST_EPOCH};
use parking_lot::Mutex;
use sheave_base::work::{Completer, IDLE, Interrupt};
use sheave_base::{Error, ErrorKind, NodeId, Result};

/// One thread's wait.
struct Wait {
    number: u64,
    nodes: Vec<NodeId>,
    /// Those of them who may die as well as leave.
    tolerated: Vec<NodeId>,
    completer: Completer<()>,
}

/// The waits of a node: one per thread that waits.
#[derive(Default)]
pub(crate) struct Departures {
    waits: Mutex<Waits>,
}

#[derive(Default)]
struct Waits {
    last: u64,
    waiting: Vec<Wait>,
    /// What ended this node's membership.
    ended: Option<Error>,
}

impl Departures {
    /// This node is no member any more.
    pub(crate) fn end(&self, error: &Error) {
        let waiting = {
            let mut waits = self.waits.lock();
            waits.ended.get_or_insert_with(|| error.clone());
            std::mem::take(&mut waits.waiting)
        };
        waiting.into_iter().for_each(|wait| wait.completer.complete(Err(error.clone())));
    }
}

impl Wait {
    /// Whether all are gone, or who of those that may not die died first.
    fn look(&self, gone: &[Death]) -> Option<std::result::Result<(), NodeId>> {
        let is_missed =
            |death: &&Death| !death.left && self.nodes.contains(&death.node) && !self.tolerated.contains(&death.node);
        if let Some(dead) = gone.iter().find(is_missed) {
            return Some(Err(dead.node));
        }
        let is_gone = |node: &NodeId| gone.iter().any(|death| death.node == *node);
        self.nodes.iter().all(is_gone).then_some(Ok(()))
    }
}

impl Shared {
    /// Blocks until all of `nodes` are gone, one that is not among `tolerated` has died, or this node is no member any
    /// more.
    pub(crate) fn wait_for_departures(
        &self,
        nodes: Vec<NodeId>,
        tolerated: Vec<NodeId>,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<()> {
        let (completer, work) = self.node.pair(IDLE, None);
        let number = {
            let mut waits = self.departures.waits.lock();
            if let Some(error) = &waits.ended {
                return Err(error.clone());
            }
            waits.last += 1;
            let number = waits.last;
            waits.waiting.push(Wait { number, nodes, tolerated, completer });
            number
        };
        self.tell_departures();
        let waited = work.wait_until(None, interrupt);
        if waited.is_err() {
            let mut waits = self.departures.waits.lock();
            let interrupted = waits.waiting.iter().position(|wait| wait.number == number);
            let interrupted = interrupted.map(|at| waits.waiting.swap_remove(at));
            drop(waits);
            drop(interrupted);
        }
        waited.and_then(|_| work.wait())
    }

    /// Ends the waits that are over.
    pub(crate) fn tell_departures(&self) {
        if let Some(error) = self.failure() {
            return self.departures.end(error);
        }
        let mut gone = self.look(|engine: &Engine| engine.deaths().to_vec());
        let host = self.attached.end_of_host();
        gone.extend(host.map(|(node, left, error)| Death {
            node,
            epoch: FIRST_EPOCH,
            left,
            reason: error.what().to_owned(),
        }));
        let mut over = Vec::new();
        {
            let mut waits = self.departures.waits.lock();
            let mut at = 0;
            while let Some(wait) = waits.waiting.get(at) {
                match wait.look(&gone) {
                    Some(outcome) => over.push((waits.waiting.swap_remove(at).completer, outcome)),
                    None => at += 1,
                }
            }
        }
        for (completer, outcome) in over {
            completer.complete(outcome.map_err(|node| self.loss(node, Error::new(ErrorKind::PeerLost, "it died"))));
        }
    }
}
