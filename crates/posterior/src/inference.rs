//! What a posterior is inferred from: a network, data, and nodes where particles of them can be made.

use std::fmt;
use std::sync::Arc;

use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_nn::{Dataset, Network};
use sheave_particle::{CacheOptions, CacheStatistics, Particles};

use crate::behavior;
use crate::home::Room;
use crate::member::Member;
use crate::settings::MemberSettings;

/// A network and the data that it is trained on.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) network: Network,
    pub(crate) data: Dataset,
}

/// A network, data and the nodes on which the members of posteriors live. Clones are handles to the same.
///
/// Each node that shall have members makes one, with the same name, network and data: they are not sent. A posterior is
/// then made on one of the nodes, and its members on all [`nodes`](Self::on), in turn. What members are sent is in
/// [`messages`](crate#messages).
///
/// ```
/// use sheave_mesh::{Config, Expected, Mesh, Role};
/// use sheave_nn::{Dataset, Loss, Network, Targets, mlp};
/// use sheave_optim::Rule;
/// use sheave_particle::Particles;
/// use sheave_posterior::{Ensemble, EnsembleSettings, Inference};
/// # use sheave_base::{Secret, config::Endpoint, secret::Resolved};
///
/// # let root = Endpoint { host: "127.0.0.1".into(), port: sheave_base::port::free()? };
/// # let mut config = Config::new(Role::Rank, Some(0), Expected::ranks(1), root);
/// # let secret = Secret::new(b"of this example alone")?;
/// # config.node.secret = Some(Resolved { secret, source: "the example".into() });
/// let mesh = Mesh::join(config)?;
/// let particles = Particles::new(&mesh, "particles")?;
/// let inputs: Vec<f32> = (0..64).map(|place| place as f32 / 32.0 - 1.0).collect();
/// let targets = Targets::Values(inputs.iter().map(|input| input * input).collect());
/// let network = Network::new(mlp(&[1, 16, 1])?, 1, Loss::Gaussian { deviation: 0.1 })?;
/// let inference = Inference::new(&particles, "squares", network, Dataset::new(inputs, 1, targets)?)?;
///
/// let ensemble = Ensemble::new(&inference, &EnsembleSettings::new(4, 16, Rule::adam(0.02)))?;
/// ensemble.fit(60, |progress| assert_eq!(progress.losses.len(), 4))?;
/// let (mean, variance) = ensemble.predict(&[0.5, 3.0])?.normal()?;
/// assert!((mean[0] - 0.25).abs() < 0.1, "it knows what it was told");
/// assert!(variance[1] > variance[0], "and that it does not know the rest");
/// # mesh.finish()?;
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone)]
pub struct Inference {
    pub(crate) particles: Particles,
    pub(crate) problem: Arc<Problem>,
    pub(crate) kind: Arc<str>,
    room: Room,
    pub(crate) node: NodeId,
    pub(crate) nodes: Vec<NodeId>,
}

impl Inference {
    /// Makes members possible on this node, for posteriors that are made here or on another node. Members of posteriors
    /// that are made here live here, unless [`on`](Self::on) says otherwise. Does not block.
    ///
    /// # Errors
    /// `InvalidArgument` where the data do not fit the network; `Closed` once the particles are stopped.
    pub fn new(particles: &Particles, name: &str, network: Network, data: Dataset) -> Result<Self> {
        Self::within(particles, name, network, data, CacheOptions::default())
    }

    /// As [`new`](Self::new), with room for some of the members that live on this node, of all its posteriors. Others
    /// are parked: what they remember, such as the moments of an optimizer, is one block of bytes then, and neither
    /// gradients nor batches are kept. A member is brought when it is sent a message other than `parameters`, and
    /// waits while all room is taken by others that compute. Each node decides about its own room. Nothing that a
    /// member computes depends on it.
    ///
    /// The bytes of a member are those of its parameters, gradient, batch, buffers, moments and samples.
    ///
    /// ```
    /// use sheave_mesh::{Config, Expected, Mesh, Role};
    /// use sheave_nn::{Dataset, Loss, Network, Targets, mlp};
    /// use sheave_optim::Rule;
    /// use sheave_particle::{CacheOptions, Particles};
    /// use sheave_posterior::{Ensemble, EnsembleSettings, Inference};
    /// # use sheave_base::{Secret, config::Endpoint, secret::Resolved};
    ///
    /// # let root = Endpoint { host: "127.0.0.1".into(), port: sheave_base::port::free()? };
    /// # let mut config = Config::new(Role::Rank, Some(0), Expected::ranks(1), root);
    /// # let secret = Secret::new(b"of this example alone")?;
    /// # config.node.secret = Some(Resolved { secret, source: "the example".into() });
    /// let mesh = Mesh::join(config)?;
    /// let particles = Particles::new(&mesh, "particles")?;
    /// let network = Network::new(mlp(&[1, 4, 1])?, 1, Loss::MeanSquared)?;
    /// let data = Dataset::new(vec![-1.0, 0.0, 1.0], 1, Targets::Values(vec![1.0, 0.0, 1.0]))?;
    /// let room = CacheOptions { device: "the host".into(), particles: Some(2), ..CacheOptions::default() };
    /// let inference = Inference::within(&particles, "squares", network, data, room)?;
    /// let ensemble = Ensemble::new(&inference, &EnsembleSettings::new(5, 3, Rule::adam(0.1)))?;
    /// ensemble.fit(2, |_| ())?;
    /// let statistics = inference.room();
    /// assert_eq!((statistics.known, statistics.resident), (5, 2));
    /// assert!(statistics.evictions >= 3);
    /// # mesh.finish()?;
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`new`](Self::new); `InvalidArgument` for no room. A posterior fails with `LimitExceeded` where a
    /// member of it takes more bytes than there are.
    pub fn within(
        particles: &Particles,
        name: &str,
        network: Network,
        data: Dataset,
        room: CacheOptions,
    ) -> Result<Self> {
        network.check(&data)?;
        let room = Room::new(room)?;
        let problem = Arc::new(Problem { network, data });
        let kind: Arc<str> = format!("posterior {name}").into();
        let (made, seats) = (Arc::clone(&problem), room.clone());
        particles.offer(&kind, move |message| {
            let settings = MemberSettings::read(&message.value)?;
            let number = settings.member;
            Ok(behavior::of(seats.seat(number, Member::new(Arc::clone(&made), settings)?)?))
        });
        let node = particles.node();
        Ok(Self { particles: particles.clone(), problem, kind, room, node, nodes: vec![node] })
    }

    /// Returns one whose posteriors have their members on these nodes, in turn: member `i` on `nodes[i % nodes.len()]`.
    ///
    /// # Errors
    /// `InvalidArgument` for no nodes.
    pub fn on(&self, nodes: &[NodeId]) -> Result<Self> {
        if nodes.is_empty() {
            let what = "the number of nodes is 0; expected one at least";
            return Err(Error::new(ErrorKind::InvalidArgument, what).operation("posterior"));
        }
        Ok(Self { nodes: nodes.to_vec(), ..self.clone() })
    }

    /// Returns who is in the room of this node, and what was moved so far.
    #[must_use]
    pub fn room(&self) -> CacheStatistics {
        self.room.statistics()
    }

    /// Returns the network.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.problem.network
    }

    /// Returns the data.
    #[must_use]
    pub fn data(&self) -> &Dataset {
        &self.problem.data
    }
}

impl fmt::Debug for Inference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inference").field("kind", &self.kind).field("nodes", &self.nodes).finish_non_exhaustive()
    }
}
