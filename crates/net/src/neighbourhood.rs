//! Nodes of one process that find each other without sockets.
//!
//! A [`Neighbourhood`] is a handle that its nodes start with. Whoever connects to an address that names one of them is
//! linked to it in process. Whoever knows a socket but not who listens there, as at a rendezvous, shakes hands over it
//! first; if it turns out that a neighbour listens, the link is made in process as well, and the socket is given up.
//!
//! **Both ends decide alike**: who is in a neighbourhood is fixed from a node's start to its end, so the two sides of a
//! handshake find each other there, or neither does. The one that accepted then makes no link, and the other makes the
//! only one. It looks before it says its last word, for with that the other may have its link, use it, and be gone.
//! Where one side stops before it has heard that word they may differ, and what comes of it ends with that node, like
//! any link to it.

use crate::node::Inner;
use parking_lot::Mutex;
use sheave_base::collections::HashMap;
use sheave_base::config::Transport;
use sheave_base::limits::LINKS_MAX;
use sheave_base::{Error, ErrorKind, NodeId, Result};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};

/// The nodes of this process that were started with clones of one handle. Clones mean the same neighbourhood; it does
/// not keep its nodes alive, and who is shut down is no part of it any more.
///
/// A node can link to all others, so there are at most as many as a node can have links.
///
/// ```
/// use sheave_net::{ListenConfig, Medium, Neighbourhood, Node, NodeConfig};
/// use std::time::{Duration, Instant};
///
/// let neighbourhood = Some(Neighbourhood::default());
/// let secret = sheave_base::Secret::new(b"only this example knows it")?;
/// let secret = Some(sheave_base::secret::Resolved { secret, source: "an example".into() });
/// let start = |name| {
///     let (secret, neighbourhood) = (secret.clone(), neighbourhood.clone());
///     Node::start(NodeConfig { secret, neighbourhood, ..NodeConfig::named(name) })
/// };
/// let (server, worker) = (start("server")?, start("worker")?);
/// let address = server.listen(ListenConfig::default())?;
/// let link = worker.connect(&address, Instant::now() + Duration::from_secs(10))?;
/// assert_eq!(worker.link(link)?.medium(), Medium::InProcess);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Neighbourhood(Arc<Mutex<HashMap<NodeId, Weak<Inner>>>>);

impl Neighbourhood {
    /// How many nodes live there now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().values().filter(|node| node.strong_count() > 0).count()
    }

    /// Whether no node lives there now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn enter(&self, node: &Arc<Inner>) -> Result<()> {
        let mut nodes = self.0.lock();
        if nodes.len() >= LINKS_MAX {
            let what = format!("a neighbourhood has at most {LINKS_MAX} nodes");
            return Err(Error::new(ErrorKind::LimitExceeded, what).operation("start"));
        }
        nodes.insert(node.id, Arc::downgrade(node));
        Ok(())
    }

    pub(crate) fn leave(&self, node: NodeId) {
        self.0.lock().remove(&node);
    }

    fn find(&self, node: NodeId) -> Option<Arc<Inner>> {
        self.0.lock().get(&node)?.upgrade()
    }
}

impl std::fmt::Debug for Neighbourhood {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Neighbourhood").field("nodes", &self.len()).finish_non_exhaustive()
    }
}

impl Inner {
    /// Where this node's neighbours are, if its links may run within the process.
    pub(crate) fn neighbourhood(&self) -> Option<&Neighbourhood> {
        self.config.neighbourhood.as_ref().filter(|_| self.config.transport == Transport::Auto)
    }

    /// The neighbour of this identity, unless it is stopping.
    pub(crate) fn find_neighbour(&self, node: NodeId) -> Option<Arc<Self>> {
        let found = self.neighbourhood()?.find(node)?;
        (found.id != self.id && !found.stopping.load(SeqCst)).then_some(found)
    }

    /// What a handshake would find out.
    pub(crate) fn check_secret_of(&self, other: &Self) -> Result<()> {
        let (own, theirs) = (self.secret()?, other.secret()?);
        if own.secret.expose() == theirs.secret.expose() {
            return Ok(());
        }
        let (own, theirs) = (own.source, theirs.source);
        Err(Error::new(ErrorKind::Unauthenticated, "the neighbour has another secret")
            .hint(format!("this side's secret came from {own}, the other's from {theirs}; give both the same"))
            .peer(other.peer.clone()))
    }
}
