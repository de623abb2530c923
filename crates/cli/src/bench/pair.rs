//! Two nodes and a link between them.

use super::Transport;
use super::traffic::Side;
use sheave_base::{Error, ErrorKind, Result};
use sheave_net::{Node, NodeConfig, inproc, shm};
use std::thread::JoinHandle;

/// This side, and whoever follows at the other end.
pub(super) struct Pair {
    pub(super) side: Side,
    other: JoinHandle<Result<()>>,
}

impl Pair {
    /// Starts both sides and links them.
    pub(super) fn make(transport: Transport, pin: bool) -> Result<Self> {
        let (node, other) = (Node::start(NodeConfig::named("leader"))?, Node::start(NodeConfig::named("follower"))?);
        let (link, back) = match transport {
            Transport::Shm => shm::connect(&node, &other)?,
            _ => inproc::connect(&node, &other)?,
        };
        let follower = Side { node: other, link: back };
        let follow = move || {
            if pin {
                pin_to_core(1)?;
            }
            follower.follow()
        };
        let other = std::thread::Builder::new().name("follower".into()).spawn(follow)?;
        Ok(Self { side: Side { node, link }, other })
    }

    /// Ends the link and waits for the other side.
    pub(super) fn finish(self) -> Result<()> {
        drop(self.side);
        self.other.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "the follower panicked")))
    }
}

/// Keeps the calling thread on the `index`th core that it may use, counted round.
pub(super) fn pin_to_core(index: usize) -> Result<()> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let allowed = sched_getaffinity(None)?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let mut one = CpuSet::new();
    one.set(cores[index % cores.len()]);
    sched_setaffinity(None, &one).map_err(|errno| Error::from(errno).context("pinning a thread to a core"))
}
