//! Norms of tensors that are cut over servers, for optimizers that need them.
//!
//! A slice whose round is complete takes the first half of its step and says its sums to the server that has the first
//! slice of the key. That one puts the sums of all slices together, in the order of the slices, and answers each; then
//! they take the second half. All slices of a key merge the same rounds in the same way ([`super::settle`], and the
//! workers' side of a change of what pushes do), so each of them says something once for every round, even if only that
//! its half has failed. A slice of the same server says it in the same way.
//!
//! What waits here ends when a server dies, because no tensor is whole any more, and when the store fails, because
//! rounds that were not complete never will be. Calls are made and answered with no lock held, and over links that were
//! made before such an optimizer is used: requests are handled where they are found, and must not wait for a link.

use super::{Holder, of};
use crate::held::Held;
use crate::protocol::{Open, Sums};
use sheave_base::{Error, ErrorKind, Result, Work};
use sheave_mesh::{AnswerOf, Role, ServiceName, TypedReply};
use sheave_optim::{BlockSums, Norms};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The lane on which links are made: that may take time.
const LINKS: ServiceName = ServiceName::new("store.links");

/// By store and key, what the slices have said so far, by their first element.
pub(super) type Gatherings = HashMap<(u32, u64), BTreeMap<u64, Said>>;

/// What one slice has said.
pub(super) struct Said {
    sums: Option<BlockSums>,
    pub(super) reply: TypedReply<Norms>,
}

/// A slice whose merge is half done.
pub(super) struct Halfway {
    /// The rank of the server that puts the norms together.
    home: usize,
    /// The slice's number.
    slice: u64,
    sums: Sums,
}

impl Halfway {
    pub(super) fn new(open: &Open, held: &Held, sums: Option<BlockSums>) -> Self {
        let key = held.slot.meta.key.number();
        let sums = Sums { store: open.store, key, start: held.slot.start, sums };
        Self { home: open.cutting.home(key), slice: held.number, sums }
    }
}

impl Holder {
    /// Makes links to all other servers, and answers when they stand.
    pub(super) fn link_servers(&self, reply: TypedReply<()>) {
        let Some(mesh) = self.mesh.upgrade() else { return reply.error(closed()) };
        let linker = mesh.clone();
        let link = move |turn: Result<()>| {
            let mut others = linker.of_role(Role::Server).filter(|member| member.node != linker.me().node);
            reply.send(turn.and_then(|()| others.try_for_each(|member| linker.link_to(member.node).map(drop))));
        };
        mesh.submit(&LINKS, 0, link);
    }

    pub(super) fn ask_norms(self: &Arc<Self>, halfway: Halfway) {
        let Halfway { home, slice, sums } = halfway;
        let (store, key, start) = (sums.store, sums.key, sums.start);
        // Sums that cannot travel are as good as a failure, which the others must hear of.
        let failed = Sums { store, key, start, sums: None };
        match self.call_home(home, &sums).or_else(|_| self.call_home(home, &failed)) {
            Ok(call) => {
                let holder = Arc::clone(self);
                call.on_complete(move |outcome| {
                    let norms = outcome.as_ref().map(|answer| answer.value.clone());
                    holder.finish(store, slice, norms.map_err(Error::clone));
                });
            }
            Err(error) => self.finish(store, slice, Err(error)),
        }
    }

    fn call_home(&self, home: usize, sums: &Sums) -> Result<Work<AnswerOf<Sums>>> {
        let mesh = self.mesh.upgrade().ok_or_else(closed)?;
        let server = mesh.of_role(Role::Server).nth(home).map(|member| member.node);
        let server = server.ok_or_else(|| Error::new(ErrorKind::Internal, "a key without a home"))?;
        mesh.ask::<Sums>(server, sums)
    }

    fn finish(self: &Arc<Self>, store: u32, slice: u64, norms: Result<Norms>) {
        self.with_store(store, |store| store.finish(slice, norms));
    }

    /// The home of a key hears what one of its slices has to say.
    pub(super) fn gather(&self, Sums { store, key, start, sums }: Sums, reply: TypedReply<Norms>) {
        let mut table = self.table.lock();
        let known = of(&mut table, store).and_then(|store| store.whole(key));
        let (slices, elements) = match table.server_lost.clone().map_or(known, Err) {
            Ok(known) => known,
            Err(error) => {
                drop(table);
                return reply.error(error);
            }
        };
        let said = table.gatherings.entry((store, key)).or_default();
        if said.contains_key(&start) {
            drop(table);
            return reply.error(Error::new(ErrorKind::Protocol, "a slice has said its sums twice"));
        }
        said.insert(start, Said { sums, reply });
        if said.len() < slices {
            return;
        }
        let said = table.gatherings.remove(&(store, key)).unwrap_or_default();
        drop(table);
        let outcome = combine(&said, elements);
        for one in said.into_values() {
            match &outcome {
                Ok(norms) => one.reply.ok(norms),
                Err(error) => one.reply.error(error.clone()),
            }
        }
    }
}

/// The norms of a tensor of so many elements.
fn combine(said: &BTreeMap<u64, Said>, elements: u64) -> Result<Norms> {
    let failed = || Error::new(ErrorKind::Remote, "the merge of another slice of this key has failed");
    let sums: Vec<&BlockSums> =
        said.values().map(|said| said.sums.as_ref().ok_or_else(failed)).collect::<Result<_>>()?;
    let norms = Norms::combine(sums.iter().copied())?;
    if norms.elements() != elements {
        let what = format!("sums of {} elements came for a tensor of {elements}", norms.elements());
        return Err(Error::new(ErrorKind::Mismatch, what));
    }
    Ok(norms)
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "this server has left the mesh, or the store is closed")
}
