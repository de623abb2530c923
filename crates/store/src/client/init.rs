//! New keys and old ones: what all workers do together.

use super::batch::{Pieces, in_chunks};
use super::{Client, Known};
use crate::compress::Compression;
use crate::key::Key;
use crate::layout::{KEYS_MAX, Slice};
use crate::local::{exists, unknown};
use crate::protocol::{Delete, Describe, Described, DescribedSlice, Init, OnWorkerLoss};
use crate::rows::Rows;
use crate::slot::Meta;
use parking_lot::Mutex;
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::CallOptions;
use sheave_tensor::{Shape, Tensor};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// What a worker gives for a new key.
pub(crate) enum First {
    /// Nothing, where it does not count anyway.
    Nothing,
    Dense(Tensor),
    /// The shape of a table, and its rows that are not zero.
    Rows(Shape, Rows),
}

impl First {
    /// Checks it, and says what it makes of the key.
    fn meta(&self, key: &Key) -> Result<Option<Meta>> {
        Ok(match self {
            Self::Nothing => None,
            Self::Dense(value) => Some(Meta::of(key, value)),
            Self::Rows(shape, rows) => {
                let meta = Meta::of_rows(key, shape, rows);
                meta.check_rows("init_rows", rows)?;
                Some(meta)
            }
        })
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Dense(value) => value.elements() == 0,
            Self::Rows(_, rows) => rows.is_empty(),
        }
    }
}

/// What a worker does where one of them must act.
#[derive(Clone, Copy)]
enum Turn {
    /// It is another one's.
    Others,
    /// It acts.
    First,
    /// It acts in place of one that has died, and may have acted in part.
    Again,
}

/// Messages of a worker that has died which may come late while another one acts in its place: as many as 1 GiB of
/// small first values are on two servers.
const LATE_MESSAGES_MAX: usize = 64;

impl Client {
    /// Blocks until all workers have come. The first one's values count; the others learn what it said.
    pub(crate) fn init(&self, pairs: &[(Key, First)]) -> Result<()> {
        self.check_usable("init")?;
        let checked = self.check_new(pairs);
        self.let_one(|turn| {
            checked.clone()?;
            match turn {
                Turn::Others => Ok(()),
                Turn::First => self.send_first_values(pairs),
                Turn::Again => self.send_first_values_again(pairs),
            }
        })?;
        self.learn(pairs).or_else(|error| {
            // What the first worker could not initialise for the loss of a server is that loss to all.
            if error.kind() == ErrorKind::NotFound {
                self.visit(0..self.servers.len())?;
            }
            Err(error)
        })?;
        let found = pairs.iter().map(|(key, _)| self.find("init", key)).collect::<Result<Vec<_>>>()?;
        self.visit_servers_of(&found)
    }

    /// Takes keys out of the store, which may be initialised anew then. Blocks until all workers have come.
    pub(crate) fn delete(&self, keys: &[Key]) -> Result<()> {
        self.check_usable("delete")?;
        let found = keys.iter().map(|key| self.find("delete", key)).collect::<Result<Vec<_>>>();
        // What this worker has pushed must be there before the slots are gone, and so must what the others have.
        let waited = found.and_then(|found| self.outstanding_on(&found).map(|()| found));
        self.barrier()?;
        self.let_one(|turn| {
            let found = waited.as_ref().map_err(Error::clone)?;
            match turn {
                Turn::Others => self.visit_servers_of(found),
                // What is gone already is no matter.
                Turn::First | Turn::Again => self.send_delete(found),
            }
        })?;
        let mut known = self.known.write();
        keys.iter().for_each(|key| drop(known.remove(key)));
        Ok(())
    }

    /// Lets one worker act, and all others wait for it. All agree on who that is. If it dies meanwhile, another one
    /// acts in its place. The outcome is that of this worker's last turn.
    fn let_one(&self, act: impl Fn(Turn) -> Result<()>) -> Result<()> {
        let mut chosen = match self.open.on_worker_loss {
            OnWorkerLoss::Fail => 0,
            // Who is gone may be known here and not there, but all pass one barrier.
            OnWorkerLoss::Shrink => self.barrier()?,
        };
        let mut own = Turn::First;
        loop {
            let acted = act(if chosen == self.rank { own } else { Turn::Others });
            // Also after a failure: the others wait here.
            let first = self.barrier()?;
            if first == chosen || self.open.on_worker_loss == OnWorkerLoss::Fail {
                return acted;
            }
            // It may have reached some servers and not others.
            (chosen, own) = (first, Turn::Again);
        }
    }

    fn outstanding_on(&self, keys: &[Arc<Known>]) -> Result<()> {
        let numbers: Vec<u64> = keys.iter().map(|known| known.number).collect();
        self.outstanding.wait(Some(&numbers))
    }

    fn send_delete(&self, keys: &[Arc<Known>]) -> Result<()> {
        let mut numbers: Vec<Vec<u64>> = self.servers.iter().map(|_| Vec::new()).collect();
        for known in keys {
            for slice in known.meta.slices(known.number, &self.open.cutting) {
                numbers[slice.server].push(slice.number);
            }
        }
        self.send_delete_of(numbers)
    }

    /// Deletes slices of these numbers, by server.
    fn send_delete_of(&self, numbers: Vec<Vec<u64>>) -> Result<()> {
        let mut calls = Vec::new();
        for (server, numbers) in self.servers.iter().zip(numbers) {
            for chunk in numbers.chunks(KEYS_MAX) {
                let delete = Delete { store: self.open.store, numbers: chunk.to_vec() };
                calls.push(self.mesh.ask::<Delete>(*server, &delete)?);
            }
        }
        calls.iter().try_for_each(|call| call.wait().map(drop))
    }

    /// Whether the servers that hold something of these keys live: all workers hear of one that is gone, not only the
    /// one that tells it something.
    fn visit_servers_of(&self, keys: &[Arc<Known>]) -> Result<()> {
        let slices = |known: &Arc<Known>| {
            known.meta.slices(known.number, &self.open.cutting).into_iter().map(|slice| slice.server)
        };
        self.visit(keys.iter().flat_map(slices).collect::<HashSet<usize>>())
    }

    /// Whether these servers live.
    fn visit(&self, servers: impl IntoIterator<Item = usize>) -> Result<()> {
        let describe = Describe { store: self.open.store, numbers: Vec::new() };
        let call = |server: usize| self.mesh.ask::<Describe>(self.servers[server], &describe);
        let calls = servers.into_iter().map(call).collect::<Result<Vec<_>>>()?;
        calls.iter().try_for_each(|call| call.wait().map(drop))
    }

    /// Refuses keys that are there, and rows that their tables do not have.
    fn check_new(&self, pairs: &[(Key, First)]) -> Result<()> {
        let known = self.known.read();
        let mut seen = HashSet::with_capacity(pairs.len());
        for (key, first) in pairs {
            key.check()?;
            if self.rank == 0 || !first.is_empty() {
                first.meta(key)?.map_or(Ok(()), |meta| meta.check_slices(&self.open.cutting))?;
            }
            if known.contains_key(key) || !seen.insert(key) {
                return Err(exists(key));
            }
        }
        Ok(())
    }

    fn send_first_values(&self, pairs: &[(Key, First)]) -> Result<()> {
        let mut inits: Vec<Vec<(DescribedSlice, Pieces)>> = self.servers.iter().map(|_| Vec::new()).collect();
        for (key, first) in pairs {
            let meta = first.meta(key)?.ok_or_else(|| {
                Error::new(ErrorKind::InvalidArgument, format!("key {key} has no value on the first worker"))
                    .operation("init")
            })?;
            for (at, (slice, pieces)) in self.first_pieces(&meta, first)?.into_iter().enumerate() {
                let described = meta.described();
                let slice_of = DescribedSlice { described, slice: at as u64, start: slice.range.start };
                inits[slice.server].push((slice_of, pieces));
            }
        }
        let mut calls = Vec::new();
        for (server, slices) in self.servers.iter().zip(inits) {
            for (slices, chunk) in in_chunks(slices) {
                let pieces = chunk.iter().map(|(piece, _)| *piece).collect::<Vec<_>>();
                let tensors = self.pack(chunk, |_| false)?;
                let init = Init { store: self.open.store, slices, pieces };
                let options = CallOptions { tensors, ..CallOptions::default() };
                calls.push(self.mesh.ask_with::<Init>(*server, &init, options)?);
            }
        }
        calls.iter().try_for_each(|call| call.wait().map(drop))
    }

    /// As [`Client::send_first_values`], in place of what a worker that has died may have sent of its own.
    ///
    /// What that has sent last may still be on its way to a server that has not heard of the death, and come between
    /// the deletion and the new values. Each of its messages does so once at most.
    fn send_first_values_again(&self, pairs: &[(Key, First)]) -> Result<()> {
        let mut late = 0;
        loop {
            self.send_delete_of_new(pairs)?;
            match self.send_first_values(pairs) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists && late < LATE_MESSAGES_MAX => late += 1,
                outcome => return outcome,
            }
        }
    }

    fn send_delete_of_new(&self, pairs: &[(Key, First)]) -> Result<()> {
        let mut numbers: Vec<Vec<u64>> = self.servers.iter().map(|_| Vec::new()).collect();
        for (key, first) in pairs {
            let number = key.number();
            if self.known.read().values().any(|known| known.number == number) {
                return Err(exists(key));
            }
            let slices = first.meta(key)?.map(|meta| meta.slices(number, &self.open.cutting));
            slices.into_iter().flatten().for_each(|slice| numbers[slice.server].push(slice.number));
        }
        self.send_delete_of(numbers)
    }

    fn first_pieces(&self, meta: &Meta, first: &First) -> Result<Vec<(Slice, Pieces)>> {
        let number = meta.key.number();
        match first {
            First::Nothing => Ok(Vec::new()),
            First::Dense(value) => {
                let pieces = self.pieces(number, meta, value, Compression::None)?.into_iter();
                Ok(pieces.map(|(slice, piece, value)| (slice, vec![(piece, value)])).collect())
            }
            First::Rows(_, rows) => self.row_pieces(number, meta, &rows.normal(self.mesh.node().arena())?),
        }
    }

    /// Asks the servers what they hold, and compares.
    fn learn(&self, pairs: &[(Key, First)]) -> Result<()> {
        for (at, server) in self.servers.iter().enumerate() {
            let numbered = pairs.iter().map(|(key, value)| (key, value, key.number()));
            let own: Vec<_> = numbered.filter(|(_, _, number)| self.open.cutting.home(*number) == at).collect();
            for chunk in own.chunks(KEYS_MAX) {
                let numbers = chunk.iter().map(|(_, _, number)| *number).collect();
                let describe = Describe { store: self.open.store, numbers };
                let known = self.mesh.ask::<Describe>(*server, &describe)?.join()?.value;
                if known.len() != chunk.len() {
                    return Err(Error::new(
                        ErrorKind::Protocol,
                        "a server that describes other keys than it was asked",
                    ));
                }
                for ((key, value, number), described) in chunk.iter().zip(known) {
                    self.remember(key, *number, value, described)?;
                }
            }
        }
        Ok(())
    }

    fn remember(&self, key: &Key, number: u64, first: &First, described: Option<Described>) -> Result<()> {
        let Some(described) = described else {
            return Err(unknown(key, "init").hint("the first worker could not initialise it; look at its error"));
        };
        let meta = Meta::from_described(described)?;
        if meta.key != *key {
            let what = format!("keys {key} and {} have the same number", meta.key);
            return Err(Error::new(ErrorKind::AlreadyExists, what).operation("init").hint("rename one of them"));
        }
        // Another worker than the first may give nothing for it.
        match first {
            First::Rows(shape, rows) if rows.is_empty() && self.rank != 0 => {
                // No row says what the others are.
                meta.check_same(&Meta { dtype: meta.dtype, ..Meta::of_rows(key, shape, rows) })?;
            }
            _ if first.is_empty() && self.rank != 0 => {}
            _ => first.meta(key)?.map_or(Ok(()), |given| meta.check_same(&given))?,
        }
        let known = Known { number, meta, ahead: AtomicUsize::new(0), coding: Mutex::default() };
        self.known.write().insert(key.clone(), Arc::new(known));
        Ok(())
    }
}
