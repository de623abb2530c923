//! Groups as their members hold them.

use crate::group::State;
use crate::group::start::Conditions;
use crate::hub::{Hub, Known};
use crate::table::Table;
use sheave_base::{Error, ErrorKind, NodeId, Rank, Result, Work, limits};
use sheave_mesh::{Group, Mesh};
use sheave_tensor::{Dtype, Tensor};
use std::sync::Arc;
use std::time::Duration;

/// Groups at a time that one node has for operations, or others still have: more are a leak.
const GROUPS_MAX: usize = 4096;

/// Collective operations on one node of a mesh: where its groups come from. Clones are handles to the same.
///
/// ```
/// use sheave_collective::{Collectives, Operator};
/// use sheave_mesh::{Config, Expected, Mesh, Role};
/// use sheave_tensor::Tensor;
/// # use sheave_base::config::Endpoint;
/// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
/// # let secret = sheave_base::Secret::new(b"only this example knows it")?;
/// # let secret = Some(sheave_base::secret::Resolved { secret, source: "an example".into() });
/// # let root = Endpoint { host: "127.0.0.1".into(), port };
/// let rank = |rank: u32| {
///     let mut config = Config::new(Role::Rank, Some(rank), Expected::ranks(2), root.clone());
///     # config.node.secret = secret.clone();
///     std::thread::spawn(move || {
///         let mesh = Mesh::join(config)?;
///         let world = Collectives::new(&mesh)?.group(&mesh.world())?;
///         let tensor = Tensor::from_slice(&[rank as f32, 1.0], [2])?;
///         world.all_reduce(&tensor, &tensor, Operator::Sum).wait()?;
///         assert_eq!(tensor.to_vec::<f32>()?, [1.0, 2.0]);
///         mesh.finish()
///     })
/// };
/// let (one, other) = (rank(0), rank(1));
/// one.join().unwrap()?;
/// other.join().unwrap()?;
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone)]
pub struct Collectives(Arc<Hub>);

impl Collectives {
    /// Makes them, with the table that the mesh was configured with (`SHEAVE_COLLECTIVE_TABLE`), or the default one.
    /// Once for each node.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if this node has made them before; `InvalidArgument` or `Io` for a table that cannot be read.
    pub fn new(mesh: &Mesh) -> Result<Self> {
        Self::with_table(mesh, mesh.collective_table().map_or_else(|| Ok(Table::default()), Table::read)?)
    }

    /// As [`Collectives::new`], with a table of algorithms that all members must have.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if this node has made them before.
    pub fn with_table(mesh: &Mesh, table: Table) -> Result<Self> {
        Hub::new(mesh, table).map(Self)
    }

    /// The operations of a group. Nobody else is asked. Handles of the same group share its sequence numbers. What a
    /// group needs, shared memory above all, is given back when all its members have dropped their handles.
    ///
    /// # Errors
    ///
    /// `LimitExceeded` for too many groups at a time. A group with a dead member is made, and its operations fail.
    pub fn group(&self, group: &Group) -> Result<Communicator> {
        Communicator::of(&self.0, group)
    }

    /// The table by which algorithms are chosen.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.0.table
    }
}

impl std::fmt::Debug for Collectives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collectives").finish_non_exhaustive()
    }
}

/// The operations of one group. Clones are handles to the same group.
///
/// **Calls.** All members make the same calls in the same order, from any thread. Each call returns a
/// [`sheave_base::Work`]: `wait` on it blocks until this rank's part is done, from any thread. A call itself may work
/// for as long as a wait spins, and have ended when it returns. Several operations may be in flight; they are numbered
/// in the order of the calls and end independently. Dropping a work does not end its operation. Ranks are ranks of the
/// group. The barriers of its [`Group`] are in the same order as its operations.
///
/// **Threads.** The order of operations is the group's and not a thread's: what the threads of a member begin is one
/// sequence, in which each operation meets those of the same place on the other members. So threads that use one group
/// must begin operations in the same order on all members, as with MPI's `MPI_THREAD_MULTIPLE` or NCCL. Calls of which
/// nobody can know which comes first are `Mismatch`, and break the group on all members: two that begin at the same
/// time, and one that begins while another thread waits for an operation that it has begun itself
/// ([`Communicator::ordered_by_caller`] is for programs that see to the order of these). Operations that meet and are
/// of another kind or length are `Mismatch` too. **What cannot be seen:** threads that call in another order on each
/// member, with tensors of the same length and without any two calls overlapping on any of them, get sums of each
/// other's tensors. A group for each thread ([`Communicator::subgroup`]) needs no order among them.
///
/// **Tensors** are flat: shapes do not matter, numbers of elements do. They are borrowed until the work ends: nobody
/// may write what an operation reads, nor touch what it writes (`BufferInUse`). Input and output may be the same tensor
/// where both have the same length; otherwise they must not overlap. Operations without an operator carry every dtype.
///
/// **Errors.** Wrong arguments are refused on the spot, and then this rank has not entered. Whatever fails later breaks
/// the group, on all members: `Mismatch` that shows both sides when ranks disagree, `PeerLost` that names who died,
/// `DeadlineExceeded` that names who is missing, `Cancelled`. Every later operation of the group fails too. After an
/// error outputs are undefined; inputs are untouched unless they are the output. Whoever gets no error has the whole
/// result, and every member had entered and meant the same.
///
/// **Waiting** has no limit while all members live, unless [`Communicator::within`] sets one; after 10 s it says whom
/// it waits for.
#[derive(Clone)]
pub struct Communicator {
    state: Arc<State>,
    conditions: Conditions,
}

impl Communicator {
    pub(crate) fn of(hub: &Arc<Hub>, group: &Group) -> Result<Self> {
        let mut groups = hub.groups.lock();
        if let Some(state) = groups.get(&group.id()).and_then(|known| known.state.upgrade()) {
            return Ok(Self { state, conditions: Conditions::default() });
        }
        if groups.len() >= GROUPS_MAX {
            groups.retain(|_, known| known.record.strong_count() > 0);
        }
        if groups.len() >= GROUPS_MAX {
            let what = format!("{GROUPS_MAX} groups are there for collective operations on this node or on others");
            let error = Error::new(ErrorKind::LimitExceeded, what).operation("group").group(group.label());
            return Err(error.hint("let groups go, on all their members"));
        }
        let state = State::new(Arc::clone(hub), group.clone());
        let record = Arc::downgrade(group.record());
        groups.insert(group.id(), Known { state: Arc::downgrade(&state), record });
        drop(groups);
        // What broke it in between was told to those that were known.
        state.look();
        Ok(Self { state, conditions: Conditions::default() })
    }

    /// This group, with operations that end after `limit` if they have not ended before. That breaks the group.
    #[must_use]
    pub fn within(&self, limit: Duration) -> Self {
        let conditions = Conditions { limit: Some(limit), ..self.conditions };
        Self { state: Arc::clone(&self.state), conditions }
    }

    /// This group, for threads that begin operations in an order which the program sees to, and which is the same on
    /// all members: by a lock that they take in turn, say. Without it a call is refused while another thread waits for
    /// what it has begun. Calls that begin operations at the same time are refused all the same.
    ///
    /// ```
    /// # use sheave_collective::{Collectives, Operator};
    /// # use sheave_mesh::{Config, Expected, Mesh, Role};
    /// # use sheave_tensor::Tensor;
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let root = sheave_base::config::Endpoint { host: "127.0.0.1".into(), port };
    /// # let mut config = Config::new(Role::Rank, Some(0), Expected::ranks(1), root);
    /// # let secret = sheave_base::Secret::new(b"only this example knows it")?;
    /// # config.node.secret = Some(sheave_base::secret::Resolved { secret, source: "an example".into() });
    /// # let mesh = Mesh::join(config)?;
    /// let world = Collectives::new(&mesh)?.group(&mesh.world())?.ordered_by_caller();
    /// let first = Tensor::from_slice(&[1.0_f32], [1])?;
    /// let work = world.all_reduce(&first, &first, Operator::Sum);
    /// // It begins after the first on every member, for each starts this thread then.
    /// let other = world.clone();
    /// let second = std::thread::spawn(move || other.barrier().wait());
    /// work.wait()?;
    /// second.join().unwrap()?;
    /// # mesh.finish()?;
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    #[must_use]
    pub fn ordered_by_caller(&self) -> Self {
        let conditions = Conditions { is_ordered: true, ..self.conditions };
        Self { state: Arc::clone(&self.state), conditions }
    }

    /// The mesh's group.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.state.group
    }

    /// This node's rank in the group.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.state.group.rank()
    }

    /// How many members the group has.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.state.size()
    }

    /// Why its operations fail, if they do.
    #[must_use]
    pub fn broken(&self) -> Option<Error> {
        self.state.broken().cloned().or_else(|| self.state.group.broken())
    }

    /// Gives the group up for all its members. What is on its way in it ends with `Cancelled`, messages too: here at
    /// once, or if a thread looks after it at this moment, when that lets go of it; and on the others as soon as they
    /// hear of it, from the first collective operation that has not ended here on. All later operations fail so too.
    /// Other groups of the same members go on. Does not block, and may be called from any thread, again too. Works that
    /// have ended keep their outcome.
    ///
    /// ```
    /// # use sheave_base::{ErrorKind, Rank};
    /// # use sheave_collective::Collectives;
    /// # use sheave_mesh::{Config, Expected, Mesh, Role};
    /// # use sheave_tensor::Tensor;
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let root = sheave_base::config::Endpoint { host: "127.0.0.1".into(), port };
    /// # let mut config = Config::new(Role::Rank, Some(0), Expected::ranks(1), root);
    /// # let secret = sheave_base::Secret::new(b"only this example knows it")?;
    /// # config.node.secret = Some(sheave_base::secret::Resolved { secret, source: "an example".into() });
    /// # let mesh = Mesh::join(config)?;
    /// let world = Collectives::new(&mesh)?.group(&mesh.world())?;
    /// let part = world.subgroup("part", &[Rank(0)])?;
    /// let never = part.recv(&Tensor::from_slice(&[0.0_f32], [1])?, None, 7);
    /// part.cancel();
    /// assert_eq!(never.wait().unwrap_err().kind(), ErrorKind::Cancelled);
    /// assert_eq!(part.barrier().wait().unwrap_err().kind(), ErrorKind::Cancelled);
    /// world.barrier().wait()?;
    /// # mesh.finish()?;
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    pub fn cancel(&self) {
        self.state.cancel();
    }

    /// The table by which algorithms are chosen.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.state.hub.table
    }

    pub(crate) fn state(&self) -> &Arc<State> {
        &self.state
    }

    pub(crate) fn conditions(&self) -> Conditions {
        self.conditions
    }

    fn mesh(&self) -> Result<Mesh> {
        self.state.hub.mesh().ok_or_else(|| Error::new(ErrorKind::Closed, "this node has left the mesh"))
    }

    /// The group of some members, in this order; each of them calls it. Nobody is asked.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the ranks are not distinct ranks of this group with this one among them; what
    /// [`Mesh::group`] says.
    pub fn subgroup(&self, label: &str, ranks: &[Rank]) -> Result<Self> {
        let node = |rank: &Rank| {
            let what = || format!("rank {rank} is outside a group of {}", self.size());
            self.state.group.node(*rank).ok_or_else(|| Error::new(ErrorKind::InvalidArgument, what()))
        };
        let nodes = ranks.iter().map(node).collect::<Result<Vec<NodeId>>>()?;
        Self::of(&self.state.hub, &self.mesh()?.group(label, &nodes)?)
    }

    /// The group of those who give the same colour, in the order of their keys and then of their ranks; none for those
    /// who give none. Every member calls it; blocks until all have.
    ///
    /// # Errors
    ///
    /// As every operation.
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>> {
        self.begin_split(color, key)?.join()
    }

    /// As [`Communicator::split`]. Does not block: the work ends with the group. Cancelling it before all have come
    /// breaks this group, as that of any operation does.
    ///
    /// # Errors
    ///
    /// `LimitExceeded` where there is no memory; all others are the work's.
    pub fn begin_split(&self, color: Option<u32>, key: i64) -> Result<Work<Option<Self>>> {
        let own = [color.map_or(-1, i64::from), key];
        let input = Tensor::from_slice(&own, [2])?;
        let all = Tensor::private(Dtype::I64, [2 * u64::from(self.size())])?;
        let number = self.state.group.record().next_split();
        let communicator = self.clone();
        Ok(self.all_gather(&input, &all).then(move |()| match color {
            Some(color) => communicator.of_color(&all, color, number),
            None => Ok(Work::ready("split", Ok(None))),
        }))
    }

    /// The group of those who have told that they have this colour.
    fn of_color(&self, all: &Tensor, color: u32, number: u64) -> Result<Work<Option<Self>>> {
        let told = all.to_vec::<i64>()?;
        let mut members: Vec<(i64, u32)> = (0..self.size())
            .zip(told.chunks_exact(2))
            .filter(|(_, told)| told[0] == i64::from(color))
            .map(|(rank, told)| (told[1], rank))
            .collect();
        members.sort_unstable();
        let nodes: Vec<NodeId> =
            members.into_iter().filter_map(|(_, rank)| self.state.group.node(Rank(rank))).collect();
        let label = format!("{}/split {number}/{color}", self.state.group.label());
        let (group, ready) = self.mesh()?.begin_group(&label, &nodes)?;
        let state = Arc::clone(&self.state);
        Ok(ready.map(move |()| {
            let made = Self::of(&state.hub, &group)?;
            // While it lives its label means it, so this group goes on counting.
            made.state.keep_parent(&state.group);
            Ok(Some(made))
        }))
    }

    /// The group of the survivors after a death, once all agree who they are. Blocks until then.
    ///
    /// # Errors
    ///
    /// As [`Group::shrink`].
    pub fn shrink(&self) -> Result<Self> {
        self.begin_shrink().join()
    }

    /// As [`Communicator::shrink`]. Does not block: the work ends with the group. Cancelling it changes nothing for the
    /// others, and it may be begun again.
    #[must_use]
    pub fn begin_shrink(&self) -> Work<Self> {
        let state = Arc::clone(&self.state);
        let spawned = self.mesh().and_then(|mesh| {
            let runtime = mesh.runtime().clone();
            let until = runtime.after(limits::LIVENESS_TIMEOUT);
            mesh.spawn("shrink", async move {
                // Without a verdict in time the mesh itself says what is wrong.
                if let Some(verdict) = state.verdict_to_come() {
                    let _ = runtime.until(until, verdict).await?;
                }
                let group = state.group.begin_shrink().await?;
                // Tensors of failed operations are free again, unless a stopped process may still write there.
                if let Some(deserted) = state.desertion() {
                    let _ = runtime.until(until, deserted).await?;
                }
                Self::of(&state.hub, &group)
            })
        });
        let state = Arc::clone(&self.state);
        // A node that runs no tasks any more knows why.
        spawned.unwrap_or_else(|_| state.group.begin_shrink().map(move |group| Self::of(&state.hub, &group)))
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Communicator").field("group", &self.state.group).finish_non_exhaustive()
    }
}
