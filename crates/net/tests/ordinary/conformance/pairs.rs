//! What a link must offer to be tested.

use sheave_base::LinkId;
use sheave_base::Secret;
use sheave_base::secret::Resolved;
use sheave_net::chaos::{ChaosConfig, Trouble};
use sheave_net::{ListenConfig, Liveness, Medium, Node, NodeConfig, Transport, inproc, shm};
use std::time::{Duration, Instant};

/// A medium, and how two nodes are linked over it.
pub(crate) trait Pairs: Sync {
    /// The medium.
    fn medium(&self) -> Medium;

    /// Links two nodes. Returns the link as each of them knows it.
    fn link(&self, left: &Node, right: &Node) -> (LinkId, LinkId);

    /// What nodes need beside their defaults.
    fn adjust(&self, config: NodeConfig) -> NodeConfig {
        config
    }

    /// Largest message that is worth the time.
    fn largest_bytes(&self) -> usize {
        1 << 30
    }

    /// Messages that are worth the time.
    fn many_messages(&self) -> usize {
        10_000
    }

    /// Two linked nodes.
    fn pair(&self) -> Pair {
        self.connect(NodeConfig::named("left"), NodeConfig::named("right"))
    }

    /// Two nodes made as told and linked.
    fn connect(&self, left: NodeConfig, right: NodeConfig) -> Pair {
        let left = Node::start(self.adjust(left)).expect("a node");
        let right = Node::start(self.adjust(right)).expect("a node");
        let (to_right, to_left) = self.link(&left, &right);
        Pair { left, to_right, right, to_left }
    }
}

/// Two nodes and the link between them, as each knows it.
pub(crate) struct Pair {
    pub(crate) left: Node,
    pub(crate) to_right: LinkId,
    pub(crate) right: Node,
    pub(crate) to_left: LinkId,
}

/// Threads of one process.
pub(crate) struct Inproc;

impl Pairs for Inproc {
    fn medium(&self) -> Medium {
        Medium::InProcess
    }

    fn link(&self, left: &Node, right: &Node) -> (LinkId, LinkId) {
        inproc::connect(left, right).expect("two nodes of one process")
    }
}

/// Shared memory, between two nodes of one process.
pub(crate) struct Shm;

impl Pairs for Shm {
    fn medium(&self) -> Medium {
        Medium::SharedMemory
    }

    fn link(&self, left: &Node, right: &Node) -> (LinkId, LinkId) {
        shm::connect(left, right).expect("two nodes of one host")
    }

    fn adjust(&self, config: NodeConfig) -> NodeConfig {
        // A test that stops a node's progress is to fail by itself, not to be killed: both nodes are this process.
        NodeConfig { liveness: Liveness { kill_silent: false, ..config.liveness }, ..config }
    }
}

/// A socket on the loopback address.
pub(crate) struct Tcp;

impl Pairs for Tcp {
    fn medium(&self) -> Medium {
        Medium::Tcp
    }

    fn link(&self, left: &Node, right: &Node) -> (LinkId, LinkId) {
        let address = right.listen(ListenConfig { unix: false, ..ListenConfig::default() }).expect("a free port");
        let to_right = left.connect(&address, Instant::now() + Duration::from_secs(20)).expect("it listens");
        // Links of other media, which were made from both ends at once, are announced too.
        let is_socket = |link: &LinkId| right.link(*link).is_ok_and(|link| link.medium() == Medium::Tcp);
        let mut arrivals = std::iter::repeat_with(|| right.accept().join_timeout(Duration::from_secs(20)));
        let to_left = arrivals.find_map(|link| Some(link.expect("somebody connected")).filter(is_socket));
        (to_right, to_left.expect("there is no end of arrivals"))
    }

    fn adjust(&self, config: NodeConfig) -> NodeConfig {
        let secret = Secret::new(b"the secret of the conformance suite").expect("long enough");
        let secret = Some(Resolved { secret, source: "the suite".into() });
        NodeConfig { transport: Transport::Tcp, secret, ..config }
    }
}

/// Another medium with delays, stalls and short polls.
pub(crate) struct Chaotic<P>(pub(crate) P);

impl<P: Pairs> Pairs for Chaotic<P> {
    fn medium(&self) -> Medium {
        self.0.medium()
    }

    fn link(&self, left: &Node, right: &Node) -> (LinkId, LinkId) {
        self.0.link(left, right)
    }

    fn adjust(&self, config: NodeConfig) -> NodeConfig {
        let outbound = Trouble {
            delay_max: Duration::from_millis(2),
            stall_per_mille: 1,
            stall: Duration::from_millis(5),
            ..Trouble::default()
        };
        let inbound = Trouble { stall_per_mille: 5, stall: Duration::from_millis(1), ..Trouble::default() };
        let chaos = ChaosConfig { seed: 20, outbound, inbound, short_polls: true, ..ChaosConfig::default() };
        NodeConfig { chaos: Some(chaos), ..self.0.adjust(config) }
    }

    fn largest_bytes(&self) -> usize {
        64 << 20
    }

    fn many_messages(&self) -> usize {
        2_000
    }
}
