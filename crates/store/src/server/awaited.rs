//! What the requests of workers wait for, for whoever has waited long: of a synchronous store, which key in which
//! round, and who has not pushed it.

use super::Holder;
use super::store::Store;
use crate::held::Lack;
use crate::key::Key;
use sheave_base::NodeId;
use sheave_base::work::awaited::listed;
use sheave_mesh::Role;

/// Keys that an answer names; of the others it says how many, so that it stays one line.
const NAMED_KEYS_MAX: usize = 4;

/// The workers' names, by rank.
struct Names(Vec<String>);

impl Names {
    /// That these workers have not done something.
    fn have_not(&self, workers: &[usize], done: &str) -> String {
        let named = workers.iter().map(|rank| self.0.get(*rank).cloned().unwrap_or_else(|| format!("worker {rank}")));
        let has = if workers.len() == 1 { "has" } else { "have" };
        format!("{} {has} not {done}", listed(named))
    }

    fn lack(&self, key: &Key, lack: &Lack) -> String {
        match lack {
            Lack::Round { number, missing } => {
                format!("key {key}, round {number}: {}", self.have_not(missing, "pushed it"))
            }
            Lack::Norms { number } => format!("key {key}, round {number}: the norms of its other slices have not come"),
            Lack::Code { number } => format!("key {key}, round {number}: its updater runs"),
            Lack::Turn { before: 0 } => format!("key {key}: the updater runs on this push"),
            Lack::Turn { before } => format!("key {key}: the updater has {before} earlier pushes to merge"),
            Lack::Clock { count, missing } => {
                format!("key {key}, push {count} of each: {}", self.have_not(missing, "come so far"))
            }
        }
    }
}

impl Holder {
    /// What the call of this number of a worker waits for.
    pub(super) fn lacks(&self, from: NodeId, number: u64) -> Option<String> {
        let worker = self.workers.get(&from).copied()?;
        let mesh = self.mesh.upgrade()?;
        let names = Names(mesh.of_role(Role::Worker).map(|member| member.introduction.name.clone()).collect());
        let table = self.table.lock();
        table.stores.values().find_map(|store| store.awaited(worker, number, &names))
    }
}

impl Store {
    fn awaited(&self, worker: usize, number: u64, names: &Names) -> Option<String> {
        let request = self.waiting.find(worker, number)?;
        if let Some((barrier, missing)) = self.members.lacks_at_barrier(request) {
            return Some(format!("barrier {barrier}: {}", names.have_not(&missing, "come")));
        }
        if let Some(missing) = self.members.not_done(request) {
            return Some(names.have_not(&missing, "said that it is done"));
        }
        let mut lacks: Vec<String> = Vec::new();
        for held in &self.slots {
            let lack = held.lack(self.members.counted(), request);
            let text = lack.map(|lack| names.lack(&held.slot.meta.key, &lack));
            // Slices of a key say the same.
            lacks.extend(text.filter(|text| !lacks.contains(text)));
        }
        let more = lacks.len().saturating_sub(NAMED_KEYS_MAX);
        lacks.truncate(NAMED_KEYS_MAX);
        if more > 0 {
            lacks.push(format!("{more} more"));
        }
        if let Some(left) = self.slices_to_come(request) {
            lacks.push(format!("{left} slices of its own push have not come"));
        }
        (!lacks.is_empty()).then(|| lacks.join("; "))
    }
}
