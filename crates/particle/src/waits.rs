//! Who waits for whom, among the handlers of one node.
//!
//! An *edge* says that a handler waits for the answer to a message. That message is kept from being answered by the
//! handler that has begun with it, if it waits too, or by the one that keeps its particle. A cycle of such waits never
//! ends, unless somebody gives up.
//!
//! **Every cycle is found.** A handler that is part of one stays so: nothing of a cycle changes by itself. So the last
//! wait that closes it sees all others, for edges are added under one lock, and the search follows them under it. What
//! changes meanwhile, by messages that begin and end, is no part of a cycle.
//!
//! **Only cycles are.** A handler waits for all of its edges, whoever waits for the first of several does so by a
//! [`Work`](sheave_base::Work), which is no edge. Waits for other nodes are none either: a deadline ends them.

use crate::current::Current;
use crate::message::Payload;
use crate::particle::Particle;
use parking_lot::Mutex;
use sheave_base::collections::{HashMap, HashSet};
use sheave_base::planted::{self, Bug};
use sheave_base::{Error, ErrorKind, Result};
use smallvec::SmallVec;
use std::sync::Arc;

/// A message by the number of its particle and its own.
type Key = (u64, u64);

/// Handlers, by their particles and names.
type Cycle<M> = Vec<(Arc<Particle<M>>, Arc<str>)>;

/// The messages that a handler waits for, each as often as it does.
type Targets<M> = SmallVec<[(Arc<Particle<M>>, u64); 1]>;

pub(crate) struct Waits<M: Payload> {
    edges: Mutex<HashMap<Key, Targets<M>>>,
}

impl<M: Payload> Default for Waits<M> {
    fn default() -> Self {
        Self { edges: Mutex::default() }
    }
}

/// A handler on the way of a search: its particle, its name, and where the search came from.
struct Seen<M: Payload> {
    particle: Arc<Particle<M>>,
    name: Arc<str>,
    key: Key,
    before: Option<usize>,
}

impl<M: Payload> Waits<M> {
    /// The handler waits for the answer to this message from now on. Fails with `Deadlock`, and then it does not, if
    /// that would never end.
    pub(crate) fn begin(&self, waiter: (&Arc<Particle<M>>, Current), target: (&Arc<Particle<M>>, u64)) -> Result<()> {
        let (own, current) = waiter;
        let key = (current.particle, current.number);
        let mut edges = self.edges.lock();
        let cycle = search(&edges, key, target);
        if let Some(cycle) = cycle.filter(|_| !planted::strikes(Bug::CycleUnseen)) {
            drop(edges);
            return Err(deadlock(own, current, target.0, &cycle));
        }
        edges.entry(key).or_default().push((Arc::clone(target.0), target.1));
        Ok(())
    }

    /// One such wait is over.
    pub(crate) fn end(&self, current: Current, target: (&Arc<Particle<M>>, u64)) {
        if planted::strikes(Bug::CycleOutlives) {
            return;
        }
        let mut edges = self.edges.lock();
        let key = (current.particle, current.number);
        let Some(targets) = edges.get_mut(&key) else { return };
        let is_it =
            |(particle, number): &(Arc<Particle<M>>, u64)| Arc::ptr_eq(particle, target.0) && *number == target.1;
        let gone = targets.iter().position(is_it).map(|at| targets.swap_remove(at));
        if targets.is_empty() {
            edges.remove(&key);
        }
        drop(edges);
        drop(gone);
    }

    /// How many handlers wait.
    pub(crate) fn len(&self) -> usize {
        self.edges.lock().len()
    }
}

/// The handlers from the one that keeps the target to the one before the waiter, if the target waits for that.
fn search<M: Payload>(
    edges: &HashMap<Key, Targets<M>>,
    waiter: Key,
    target: (&Arc<Particle<M>>, u64),
) -> Option<Cycle<M>> {
    let mut seen: Vec<Seen<M>> = Vec::new();
    let mut known: HashSet<Key> = HashSet::default();
    let mut look_at = |seen: &mut Vec<Seen<M>>, (particle, number): (&Arc<Particle<M>>, u64), before: Option<usize>| {
        for (keeper, name) in particle.keepers(number) {
            let key = (particle.id().number, keeper);
            if known.insert(key) {
                seen.push(Seen { particle: Arc::clone(particle), name, key, before });
            }
        }
    };
    look_at(&mut seen, target, None);
    let mut at = 0;
    while at < seen.len() {
        if seen[at].key == waiter {
            return Some(path(&seen, at));
        }
        let next = edges.get(&seen[at].key).into_iter().flatten();
        next.for_each(|(particle, number)| look_at(&mut seen, (particle, *number), Some(at)));
        at += 1;
    }
    None
}

fn path<M: Payload>(seen: &[Seen<M>], end: usize) -> Cycle<M> {
    let mut path = Vec::new();
    let mut at = seen[end].before;
    while let Some(place) = at {
        path.push((Arc::clone(&seen[place].particle), Arc::clone(&seen[place].name)));
        at = seen[place].before;
    }
    path.reverse();
    path
}

/// How many handlers of a cycle an error names.
const NAMED: usize = 8;

fn deadlock<M: Payload>(
    own: &Particle<M>,
    current: Current,
    target: &Particle<M>,
    cycle: &[(Arc<Particle<M>>, Arc<str>)],
) -> Error {
    let written = |particle: &Particle<M>, name: &str| format!("{particle} (\"{name}\")");
    let own_name = own.name_of(current.number).unwrap_or_else(|| "?".into());
    let first = written(own, &own_name);
    let mut names: Vec<String> = cycle.iter().take(NAMED).map(|(particle, name)| written(particle, name)).collect();
    if cycle.len() > NAMED {
        names.push(format!("{} others", cycle.len() - NAMED));
    }
    let what = match names.is_empty() {
        // It waits for what it keeps itself.
        true => format!("{first} waits for {target}, which it keeps itself"),
        false => format!("{first} waits for {}, which waits for {own}", names.join(", which waits for ")),
    };
    Error::new(ErrorKind::Deadlock, what)
        .operation("wait")
        .hint("send without waiting, or let one of the particles be re-entrant")
}
