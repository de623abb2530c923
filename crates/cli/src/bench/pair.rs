//! Two nodes and a link between them: two threads, or two processes.

use super::Transport;
use super::child::{Follower, Invitation};
use super::traffic::Side;
use sheave_base::config::Settings;
use sheave_base::secret::Resolved;
use sheave_base::{Error, ErrorKind, Result, Secret};
use sheave_fleet::draw_secret;
use sheave_net::{ListenConfig, Node, NodeConfig, inproc};
use std::thread::JoinHandle;

/// This side, and whoever follows at the other end.
pub(super) struct Pair {
    pub(super) side: Side,
    other: Other,
}

enum Other {
    Thread(JoinHandle<Result<()>>),
    Process(Follower),
}

impl Pair {
    /// Starts both sides and links them. The calling thread must outlive the pair.
    pub(super) fn make(transport: Transport, pin: bool) -> Result<Self> {
        if transport == Transport::Inproc { Self::of_threads(pin) } else { Self::of_processes(transport, pin) }
    }

    fn of_threads(pin: bool) -> Result<Self> {
        let start = |name: &str| Node::start(NodeConfig::with_settings(name, &settings()?));
        let (node, other) = (start("leader")?, start("follower")?);
        let (link, back) = inproc::connect(&node, &other)?;
        let follower = Side { node: other, link: back };
        let follow = move || {
            if pin {
                pin_to_core(1)?;
            }
            follower.follow()
        };
        let other = std::thread::Builder::new().name("follower".into()).spawn(follow)?;
        Ok(Self { side: Side { node, link }, other: Other::Thread(other) })
    }

    fn of_processes(transport: Transport, pin: bool) -> Result<Self> {
        let secret = draw_secret()?;
        let node = Node::start(node_config("leader", transport, &secret)?)?;
        let over_tcp = transport == Transport::Tcp;
        let tcp = ListenConfig::default().tcp.filter(|_| over_tcp);
        let address = node.listen(ListenConfig { tcp, unix: !over_tcp, ..ListenConfig::default() })?;
        let accepting = node.accept();
        let mut follower =
            Follower::start("link-child", &Invitation { address: address.to_string(), secret, transport, pin })?;
        let link = follower.link(&accepting)?;
        Ok(Self { side: Side { node, link }, other: Other::Process(follower) })
    }

    /// Ends the link and waits for the other side.
    pub(super) fn finish(self) -> Result<()> {
        drop(self.side);
        match self.other {
            Other::Thread(thread) => {
                thread.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "the follower panicked")))
            }
            Other::Process(follower) => follower.finish(),
        }
    }
}

/// The settings of a node whose links run over `transport` to a node with the same secret.
pub(super) fn node_config(name: &str, transport: Transport, secret: &str) -> Result<NodeConfig> {
    let transport = if transport == Transport::Tcp { sheave_net::Transport::Tcp } else { sheave_net::Transport::Shm };
    let secret = Resolved { secret: Secret::new(secret.as_bytes())?, source: "the measurement".to_owned() };
    Ok(NodeConfig { transport, secret: Some(secret), ..NodeConfig::with_settings(name, &settings()?) })
}

/// What the user has set up in the environment.
fn settings() -> Result<Settings> {
    Settings::from_lookup(|name| std::env::var_os(name))
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
