//! New keys and old ones: what all workers do together.

use super::batch::{Batch, in_chunks};
use super::{Client, Known};
use crate::compress::Compression;
use crate::key::Key;
use crate::layout::KEYS_MAX;
use crate::local::{exists, unknown};
use crate::protocol::SERVICE;
use crate::protocol::{self, DELETE, DESCRIBE, Delete, Describe, Described, DescribedSlice, INIT, Init, OnWorkerLoss};
use crate::slot::Meta;
use parking_lot::Mutex;
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::Call;
use sheave_tensor::{Dtype, Shape, Tensor};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

impl Client {
    /// Blocks until all workers have come. The first one's values count; the others learn what it said.
    pub(crate) fn init(&self, pairs: &[(Key, Option<Tensor>)]) -> Result<()> {
        self.check_usable("init")?;
        let checked = self.check_new(pairs);
        let sent = match self.is_chosen()? {
            true => checked.and_then(|()| self.send_first_values(pairs)),
            false => checked,
        };
        // Also after a failure: the others wait here.
        self.barrier()?;
        sent?;
        self.learn(pairs)?;
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
        let sent = match self.is_chosen()? {
            true => waited.and_then(|found| self.send_delete(&found)),
            false => waited.and_then(|found| self.visit_servers_of(&found)),
        };
        self.barrier()?;
        sent?;
        let mut known = self.known.write();
        keys.iter().for_each(|key| drop(known.remove(key)));
        Ok(())
    }

    /// Whether this worker does what one of them must do. All agree on who that is.
    fn is_chosen(&self) -> Result<bool> {
        match self.open.on_worker_loss {
            OnWorkerLoss::Fail => Ok(self.rank == 0),
            // Who is gone may be known here and not there, but all pass one barrier.
            OnWorkerLoss::Shrink => Ok(self.barrier()? == self.rank),
        }
    }

    fn outstanding_on(&self, keys: &[Arc<Known>]) -> Result<()> {
        let numbers: Vec<u64> = keys.iter().map(|known| known.number).collect();
        self.outstanding.wait(Some(&numbers))
    }

    fn send_delete(&self, keys: &[Arc<Known>]) -> Result<()> {
        let mut numbers: Vec<Vec<u64>> = self.servers.iter().map(|_| Vec::new()).collect();
        for known in keys {
            for slice in self.open.cutting.slices(known.number, known.meta.shape.elements().unwrap_or(0)) {
                numbers[slice.server].push(slice.number);
            }
        }
        let mut calls = Vec::new();
        for (server, numbers) in self.servers.iter().zip(numbers) {
            for chunk in numbers.chunks(KEYS_MAX) {
                let args = protocol::encode(&Delete { store: self.open.store, numbers: chunk.to_vec() })?;
                calls.push(self.mesh.call(*server, SERVICE, DELETE, args)?);
            }
        }
        calls.iter().try_for_each(|call| call.wait().map(drop))
    }

    /// Whether the servers that hold something of these keys live: all workers hear of one that is gone, not only the
    /// one that tells it something.
    fn visit_servers_of(&self, keys: &[Arc<Known>]) -> Result<()> {
        let slices = |known: &Arc<Known>| {
            let elements = known.meta.shape.elements().unwrap_or(0);
            self.open.cutting.slices(known.number, elements).into_iter().map(|slice| slice.server)
        };
        let servers: HashSet<usize> = keys.iter().flat_map(slices).collect();
        let args = protocol::encode(&Describe { store: self.open.store, numbers: Vec::new() })?;
        let call = |server: &usize| self.mesh.call(self.servers[*server], SERVICE, DESCRIBE, args.clone());
        let calls = servers.iter().map(call).collect::<Result<Vec<_>>>()?;
        calls.iter().try_for_each(|call| call.wait().map(drop))
    }

    /// Refuses keys that are there.
    fn check_new(&self, pairs: &[(Key, Option<Tensor>)]) -> Result<()> {
        let known = self.known.read();
        let mut seen = HashSet::with_capacity(pairs.len());
        for (key, _) in pairs {
            key.check()?;
            if known.contains_key(key) || !seen.insert(key) {
                return Err(exists(key));
            }
        }
        Ok(())
    }

    fn send_first_values(&self, pairs: &[(Key, Option<Tensor>)]) -> Result<()> {
        let mut inits: Vec<(Vec<DescribedSlice>, Batch)> = self.servers.iter().map(|_| Default::default()).collect();
        for (key, value) in pairs {
            let value = value.as_ref().ok_or_else(|| {
                Error::new(ErrorKind::InvalidArgument, format!("key {key} has no value on the first worker"))
                    .operation("init")
            })?;
            let described =
                Described { key: key.clone(), dtype: value.dtype().code(), shape: value.shape().dimensions().to_vec() };
            for (at, (slice, piece, value)) in
                self.pieces(key.number(), value, Compression::None)?.into_iter().enumerate()
            {
                let (slices, batch) = &mut inits[slice.server];
                let described = described.clone();
                slices.push(DescribedSlice { described, slice: at as u64, start: slice.range.start });
                batch.push.push((piece, value));
            }
        }
        let mut calls = Vec::new();
        for (server, (slices, batch)) in self.servers.iter().zip(inits) {
            for (slices, chunk) in in_chunks(slices, batch.push) {
                let pieces = chunk.iter().map(|(piece, _)| *piece).collect::<Vec<_>>();
                let tensors = self.pack(chunk, |_| false)?;
                let args = protocol::encode(&Init { store: self.open.store, slices, pieces })?;
                calls.push(self.mesh.call(*server, SERVICE, INIT, Call { args, tensors, ..Call::default() })?);
            }
        }
        calls.iter().try_for_each(|call| call.wait().map(drop))
    }

    /// Asks the servers what they hold, and compares.
    fn learn(&self, pairs: &[(Key, Option<Tensor>)]) -> Result<()> {
        for (at, server) in self.servers.iter().enumerate() {
            let numbered = pairs.iter().map(|(key, value)| (key, value, key.number()));
            let own: Vec<_> = numbered.filter(|(_, _, number)| self.open.cutting.home(*number) == at).collect();
            for chunk in own.chunks(KEYS_MAX) {
                let numbers = chunk.iter().map(|(_, _, number)| *number).collect();
                let args = protocol::encode(&Describe { store: self.open.store, numbers })?;
                let answer = self.mesh.call(*server, SERVICE, DESCRIBE, args)?.wait()?;
                let known: Vec<Option<Described>> = protocol::decode(&answer.value)?;
                if known.len() != chunk.len() {
                    return Err(Error::new(
                        ErrorKind::Protocol,
                        "a server that describes other keys than it was asked",
                    ));
                }
                for ((key, value, number), described) in chunk.iter().zip(known) {
                    self.remember(key, *number, value.as_ref(), described)?;
                }
            }
        }
        Ok(())
    }

    fn remember(&self, key: &Key, number: u64, value: Option<&Tensor>, described: Option<Described>) -> Result<()> {
        let Some(Described { key: known, dtype, shape }) = described else {
            return Err(unknown(key, "init").hint("the first worker could not initialise it; look at its error"));
        };
        let dtype = Dtype::from_code(dtype)
            .ok_or_else(|| Error::new(ErrorKind::Protocol, format!("key {key} has the unknown dtype {dtype}")))?;
        let meta = Meta { key: known, dtype, shape: Shape::new(&shape)? };
        if meta.key != *key {
            let what = format!("keys {key} and {} have the same number", meta.key);
            return Err(Error::new(ErrorKind::AlreadyExists, what).operation("init").hint("rename one of them"));
        }
        // Another worker than the first may give nothing for it.
        if let Some(value) = value.filter(|value| self.rank == 0 || value.elements() > 0) {
            meta.check("init", value)?;
        }
        let known = Known { number, meta, ahead: AtomicUsize::new(0), coding: Mutex::default() };
        self.known.write().insert(key.clone(), Arc::new(known));
        Ok(())
    }
}
