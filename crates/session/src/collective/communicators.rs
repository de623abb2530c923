//! The groups of a worker, and the limit of their operations.

use super::Scope;
use crate::abort::ABORT;
use parking_lot::Mutex;
use sheave_base::collections::HashMap;
use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_collective::{Collectives, Communicator};
use sheave_mesh::{Mesh, WeakMesh};
use sheave_wire::Value;
use std::fmt;
use std::time::Duration;

/// What a worker needs to meet the others.
pub(crate) struct Communicators {
    mesh: WeakMesh,
    collectives: Collectives,
    id: u32,
    /// By worker.
    nodes: Vec<NodeId>,
    groups: u32,
    made: Mutex<Made>,
}

/// What changes, with commands that all workers get.
#[derive(Default)]
struct Made {
    /// How often the groups were made again.
    generation: u64,
    limit: Option<Duration>,
    world: Option<Communicator>,
    group: Option<Communicator>,
    /// By the number of the other worker.
    pairs: HashMap<u32, Communicator>,
    /// Why there are none any more.
    parted: Option<Error>,
}

impl Made {
    fn check(&self) -> Result<()> {
        self.parted.as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }
}

impl Communicators {
    /// Those of worker `id`, of workers that have these ranks in the mesh.
    pub(crate) fn new(mesh: &Mesh, collectives: Collectives, id: u32, ranks: &[u32], groups: u32) -> Result<Self> {
        let node = |rank: &u32| {
            let strange = || Error::new(ErrorKind::Protocol, format!("a worker of rank {rank}; expected a member"));
            mesh.members().get(*rank as usize).map(|member| member.node).ok_or_else(strange)
        };
        let nodes = ranks.iter().map(node).collect::<Result<_>>()?;
        Ok(Self { mesh: mesh.downgrade(), collectives, id, nodes, groups, made: Mutex::default() })
    }

    /// The number of this worker.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// The workers of each group.
    pub(crate) fn group_size(&self) -> u32 {
        self.nodes.len() as u32 / self.groups
    }

    /// The number of the first worker of an operation of this worker.
    pub(crate) fn first(&self, scope: Scope) -> u32 {
        match scope {
            Scope::World => 0,
            Scope::Group => self.id - self.id % self.group_size(),
        }
    }

    pub(crate) fn mesh(&self) -> Result<Mesh> {
        self.mesh.upgrade().ok_or_else(|| Error::new(ErrorKind::Closed, "this node has left the session"))
    }

    /// The workers of a scope, by rank; made when they are first asked for, which asks nobody.
    pub(crate) fn get(&self, scope: Scope) -> Result<Communicator> {
        // One group is all workers: they need not meet twice.
        let scope = if self.groups == 1 { Scope::World } else { scope };
        let mut made = self.made.lock();
        made.check()?;
        let Made { generation, limit, .. } = *made;
        let known = match scope {
            Scope::World => &mut made.world,
            Scope::Group => &mut made.group,
        };
        let communicator = match known {
            Some(communicator) => communicator.clone(),
            None => known.insert(self.make(scope, generation)?).clone(),
        };
        drop(made);
        Ok(limit.map_or(communicator.clone(), |limit| communicator.within(limit)))
    }

    /// This worker and another one, of which the lower number has rank 0. Messages between two go there, so that no
    /// third one that dies ends them.
    pub(crate) fn pair(&self, other: u32) -> Result<Communicator> {
        let mut made = self.made.lock();
        made.check()?;
        let Made { generation, limit, .. } = *made;
        let communicator = match made.pairs.get(&other) {
            Some(communicator) => communicator.clone(),
            None => {
                let ends = [self.id.min(other), self.id.max(other)];
                let strange =
                    || Error::new(ErrorKind::InvalidArgument, format!("worker {other}; expected another one"));
                let nodes = ends.map(|worker| self.nodes.get(worker as usize).copied());
                let [Some(one), Some(two)] = nodes else { return Err(strange()) };
                let name = format!("workers {} and {}", ends[0], ends[1]);
                let pair = self.of(name, generation, &[one, two])?;
                made.pairs.insert(other, pair.clone());
                pair
            }
        };
        drop(made);
        Ok(limit.map_or(communicator.clone(), |limit| communicator.within(limit)))
    }

    fn make(&self, scope: Scope, generation: u64) -> Result<Communicator> {
        let (first, size) = (self.first(scope), self.group_size());
        let (name, nodes) = match scope {
            Scope::World => ("workers".to_owned(), &self.nodes[..]),
            Scope::Group => {
                (format!("workers {first} to {}", first + size - 1), &self.nodes[first as usize..][..size as usize])
            }
        };
        self.of(name, generation, nodes)
    }

    fn of(&self, name: String, generation: u64, nodes: &[NodeId]) -> Result<Communicator> {
        let label = if generation == 0 { name } else { format!("{name}, made again {generation}") };
        self.collectives.group(&self.mesh()?.group(&label, nodes)?)
    }

    /// Ends operations that begin from now on after so long.
    pub(crate) fn limit(&self, limit: Option<Duration>) {
        self.made.lock().limit = limit;
    }

    /// Gives the groups up for all their members, and makes none any more, for this reason. Others may wait in those
    /// that this worker has not made yet.
    pub(crate) fn cancel(&self, why: &Error) {
        drop((self.get(Scope::World), self.get(Scope::Group)));
        let (world, group, pairs) = {
            let mut made = self.made.lock();
            made.parted.get_or_insert_with(|| why.clone());
            let pairs: Vec<Communicator> = made.pairs.values().cloned().collect();
            (made.world.clone(), made.group.clone(), pairs)
        };
        // Not under the lock: what ends calls back.
        world.into_iter().chain(group).chain(pairs).for_each(|communicator| communicator.cancel());
    }

    /// Tells the other workers that this one meets them no more, for what it is worth.
    pub(crate) fn tell_others(&self, why: &str) {
        let Ok(mesh) = self.mesh() else { return };
        let why = format!("worker {}: {why}", self.id);
        for node in self.nodes.iter().filter(|node| **node != mesh.me().node) {
            let _ = mesh.cast(*node, ABORT, "", Value::from(why.as_str()));
        }
    }

    /// Lets the groups go; others take their place.
    pub(crate) fn renew(&self) {
        let mut made = self.made.lock();
        let gone = (made.world.take(), made.group.take(), std::mem::take(&mut made.pairs));
        made.generation += 1;
        drop(made);
        drop(gone);
    }
}

impl fmt::Debug for Communicators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicators").field("workers", &self.nodes.len()).finish_non_exhaustive()
    }
}
