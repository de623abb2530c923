//! What servers agree on when a worker is lost and its stores go on without it.
//!
//! A push of a key that is cut goes to several servers, and a worker that dies may have reached some of them. Then the
//! rounds of one key would not contain the same pushes on every server, and nobody could tell. So each server says to
//! the first one how often it has heard the lost worker push each such key, and takes nothing more of it. If all have
//! heard the same the worker is taken out of the rounds, else the store fails. Until then the worker is waited for, so
//! that no round is merged without it.
//!
//! A worker may also have died while it told the servers what pushes do from now on. They say that too: rounds of one
//! key that are merged in different ways have no meaning, and some ways wait for each other.
//!
//! A server that dies meanwhile, or has died before, ends it with an error; a store without one of its servers is of no
//! more use anyway.

use super::{Holder, Table};
use crate::protocol::Settle;
use crate::updater::Spec;
use sha2::{Digest, Sha256};
use sheave_base::{Error, ErrorKind, NodeId, Result, Work};
use sheave_mesh::{AnswerOf, Role, TypedReply};
use sheave_wire::to_control;
use std::collections::HashMap;
use std::sync::Arc;

/// By store and worker, what the servers have said so far.
pub(super) type Settlements = HashMap<(u32, u64), Vec<Said>>;

/// What one server has said.
pub(super) struct Said {
    server: NodeId,
    heard: [u8; 32],
    pub(super) reply: TypedReply<()>,
}

/// A loss that a store can bear if the servers agree: what this one has heard, or why it cannot be borne.
pub(super) struct Loss {
    pub(super) store: u32,
    pub(super) worker: usize,
    /// Whether it left in order.
    pub(super) has_left: bool,
    pub(super) error: Error,
    pub(super) heard: Result<Vec<(u64, u64)>>,
    /// What pushes do here.
    pub(super) updater: Spec,
}

impl Holder {
    /// Asks the other servers, and then lets the store go on or fail.
    pub(super) fn settle(self: &Arc<Self>, loss: Loss) {
        let Loss { store, worker, has_left, error, heard, updater } = loss;
        let about = (worker, has_left);
        let asked = heard.and_then(|heard| {
            let mut digest = Sha256::new_with_prefix(to_control(&updater)?);
            for (number, count) in heard {
                digest.update(number.to_le_bytes());
                digest.update(count.to_le_bytes());
            }
            self.ask_first_server(&Settle { store, worker: worker as u64, heard: digest.finalize().into() })
        });
        match asked {
            Ok(Some(call)) => {
                let holder = Arc::clone(self);
                call.on_complete(move |outcome| {
                    holder.settled(store, about, &error, outcome.as_ref().map(drop).map_err(Error::clone));
                });
            }
            Ok(None) => self.settled(store, about, &error, Ok(())),
            Err(reason) => self.settled(store, about, &error, Err(reason)),
        }
    }

    /// None if there is no other server.
    fn ask_first_server(&self, settle: &Settle) -> Result<Option<Work<AnswerOf<Settle>>>> {
        let Some(mesh) = self.mesh.upgrade() else {
            return Err(Error::new(ErrorKind::Closed, "this server has left the mesh"));
        };
        let servers: Vec<NodeId> = mesh.of_role(Role::Server).map(|member| member.node).collect();
        match servers.first().filter(|_| servers.len() > 1) {
            Some(first) => mesh.ask::<Settle>(*first, settle).map(Some),
            None => Ok(None),
        }
    }

    fn settled(self: &Arc<Self>, store: u32, (worker, has_left): (usize, bool), error: &Error, outcome: Result<()>) {
        let mut table = self.table.lock();
        let Table { stores, unborne, .. } = &mut *table;
        let Some(held) = stores.get_mut(&store) else { return };
        match outcome {
            Ok(()) => held.shrink(worker),
            Err(reason) => {
                let error = error.clone().context(format!("the store cannot go on without it: {reason}"));
                if !has_left {
                    unborne.get_or_insert_with(|| error.clone());
                }
                held.fail_in_part(&error);
            }
        }
        let after = held.take_after();
        self.release(table, after);
    }

    /// The first server hears what another one, or itself, has to say.
    pub(super) fn hear(&self, from: NodeId, settle: &Settle, reply: TypedReply<()>) {
        let is_known = (settle.worker as usize) < self.workers.len();
        let mut table = self.table.lock();
        if !is_known {
            drop(table);
            return reply.error(Error::new(ErrorKind::InvalidArgument, "there is nothing to settle"));
        }
        // Stores are opened here first: everybody has closed this one, so nobody will push.
        if !table.stores.contains_key(&settle.store) {
            drop(table);
            return reply.ok(&());
        }
        if let Some(error) = table.server_lost.clone() {
            drop(table);
            return reply.error(error);
        }
        let key = (settle.store, settle.worker);
        let said = table.settlements.entry(key).or_default();
        said.retain(|one| one.server != from);
        said.push(Said { server: from, heard: settle.heard, reply });
        if said.len() < self.servers.len() {
            return;
        }
        let said = table.settlements.remove(&key).unwrap_or_default();
        drop(table);
        let first = said.first().map(|one| one.heard);
        let agree = said.iter().all(|one| Some(one.heard) == first);
        for one in said {
            match agree {
                true => one.reply.ok(&()),
                false => one
                    .reply
                    .error(Error::new(ErrorKind::PeerLost, "its last push has reached some servers and not others")),
            }
        }
    }
}
