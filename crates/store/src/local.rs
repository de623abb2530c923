//! The store of one process.

use crate::compress::Compression;
use crate::device::Devices;
use crate::key::Key;
use crate::kind::Kind;
use crate::slot::{Merge, Meta, Slot, flat_copy, guarded};
use crate::sum::Total;
use crate::updater::{Function, Updater, no_optimizer};
use sheave_base::{Error, ErrorKind, Result};
use sheave_optim::Optimizer;
use sheave_tensor::{Arena, ArenaConfig, Op, Tensor};
use std::collections::HashMap;

pub(crate) struct Local {
    arena: Arena,
    slots: HashMap<Key, Slot>,
    merge: Merge,
    functions: HashMap<String, Function>,
    /// Of the kind `device`.
    devices: Option<Devices>,
}

impl Local {
    pub(crate) fn new(kind: Kind) -> Self {
        let arena = Arena::new(ArenaConfig::default());
        let devices = (kind == Kind::Device).then(Devices::default);
        Self { arena, slots: HashMap::new(), merge: Merge::Assign, functions: HashMap::new(), devices }
    }

    pub(crate) fn init(&mut self, pairs: &[(Key, Tensor)]) -> Result<()> {
        let mut fresh = HashMap::with_capacity(pairs.len());
        for (key, value) in pairs {
            key.check()?;
            let slot = Slot::new(Meta::of(key, value), 0, value, &self.arena)?;
            if self.slots.contains_key(key) || fresh.insert(key.clone(), slot).is_some() {
                return Err(exists(key));
            }
        }
        if let Some(devices) = &mut self.devices {
            pairs.iter().for_each(|(key, value)| devices.add(key, value.len_bytes()));
        }
        self.slots.extend(fresh);
        Ok(())
    }

    pub(crate) fn push(&mut self, pairs: &[(Key, Tensor)]) -> Result<()> {
        for (key, value) in pairs {
            self.slots.get(key).ok_or_else(|| unknown(key, "push"))?.meta.check("push", value)?;
        }
        // A key whose updater fails does not keep the others from being merged, as on servers.
        let mut outcome = Ok(());
        let sums = match &mut self.devices {
            Some(devices) => devices.sums(pairs, &self.arena)?,
            None => grouped(pairs, &self.arena)?,
        };
        for (key, sum) in sums {
            let slot = self.slots.get_mut(key).ok_or_else(|| unknown(key, "push"))?;
            if slot.value.device() != sum.device() {
                // The value lives where its sums do.
                slot.value = slot.value.clone().on(sum.device());
            }
            let mut total = Total::Dense(sum.reshape([sum.elements() as u64])?);
            drop(sum);
            outcome = outcome.and(guarded(slot, &self.merge, &mut total, &self.arena).map(drop));
        }
        outcome
    }

    pub(crate) fn pull(&self, pairs: &[(Key, Tensor)]) -> Result<()> {
        for (key, place) in pairs {
            self.slots.get(key).ok_or_else(|| unknown(key, "pull"))?.meta.check("pull", place)?;
        }
        check_apart("pull", pairs.iter().map(|(_, place)| place))?;
        for (key, place) in pairs {
            let slot = self.slots.get(key).ok_or_else(|| unknown(key, "pull"))?;
            place.overwrite(&slot.value.bytes()?, "pull")?;
        }
        Ok(())
    }

    /// Refuses keys that are not there.
    pub(crate) fn check_known(&self, keys: &[Key], operation: &'static str) -> Result<()> {
        match keys.iter().find(|key| !self.slots.contains_key(key)) {
            Some(key) => Err(unknown(key, operation)),
            None => Ok(()),
        }
    }

    pub(crate) fn delete(&mut self, keys: &[Key]) -> Result<()> {
        self.check_known(keys, "delete")?;
        for key in keys {
            drop(self.slots.remove(key));
            self.devices.iter_mut().for_each(|devices| devices.remove(key));
        }
        Ok(())
    }

    pub(crate) fn set_compression(&mut self, compression: Compression) -> Result<()> {
        compression.check()?;
        if let Some(devices) = &mut self.devices {
            devices.set_compression(compression);
            return Ok(());
        }
        Err(Error::new(ErrorKind::InvalidArgument, "nothing travels in a local store")
            .operation("set_gradient_compression")
            .hint("compression is for the kinds device and dist_*"))
    }

    pub(crate) fn register(&mut self, name: &str, function: Function) {
        self.functions.insert(name.to_owned(), function);
    }

    pub(crate) fn set_updater(&mut self, updater: Updater) -> Result<()> {
        self.merge = Merge::of(updater, |name| self.functions.get(name).cloned())?;
        if let Merge::Optimizer(optimizer) = &self.merge {
            self.slots.values_mut().for_each(|slot| slot.memory.retain(&optimizer.rule));
        }
        Ok(())
    }

    pub(crate) fn optimizer(&self) -> Result<&Optimizer> {
        match &self.merge {
            Merge::Optimizer(optimizer) => Ok(optimizer),
            _ => Err(no_optimizer()),
        }
    }
}

pub(crate) fn unknown(key: &Key, operation: &'static str) -> Error {
    Error::new(ErrorKind::NotFound, format!("key {key} was not initialised"))
        .operation(operation)
        .hint("call init with it first, on every worker")
}

pub(crate) fn exists(key: &Key) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("key {key} was initialised before")).operation("init")
}

/// Refuses places that overlap: what would be there in the end?
pub(crate) fn check_apart<'a>(operation: &'static str, places: impl Iterator<Item = &'a Tensor>) -> Result<()> {
    let range = |place: &Tensor| (place.ptr() as usize, place.ptr() as usize + place.len_bytes());
    let mut ranges: Vec<(usize, usize)> = places.map(range).filter(|range| range.0 < range.1).collect();
    ranges.sort_unstable();
    if ranges.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        return Err(Error::new(ErrorKind::BufferInUse, "two places of one operation overlap").operation(operation));
    }
    Ok(())
}

/// Sums the values of equal keys in the order in which they are given; keys keep the order of their first value.
pub(crate) fn grouped<'a>(pairs: &'a [(Key, Tensor)], arena: &Arena) -> Result<Vec<(&'a Key, Tensor)>> {
    let mut place: HashMap<&Key, usize> = HashMap::with_capacity(pairs.len());
    let mut sums: Vec<(&Key, Tensor, bool)> = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        let Some(at) = place.get(key).copied() else {
            place.insert(key, sums.len());
            sums.push((key, value.clone(), false));
            continue;
        };
        let (_, sum, is_own) = &mut sums[at];
        if !*is_own {
            *sum = flat_copy(sum, arena)?.reshape(sum.shape().clone())?;
            *is_own = true;
        }
        sum.reduce_from(Op::Sum, value)?;
    }
    Ok(sums.into_iter().map(|(key, sum, _)| (key, sum)).collect())
}
