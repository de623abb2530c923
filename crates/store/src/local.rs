//! The store of one process.

use crate::client::Wanted;
use crate::compress::Compression;
use crate::device::Devices;
use crate::key::Key;
use crate::kind::Kind;
use crate::rows::Rows;
use crate::rows::gradient::RowTotal;
use crate::rows::want::{gather_under, wanted_ids};
use crate::slot::{Merge, Meta, Slot, flat_copy, guarded};
use crate::sum::Total;
use crate::updater::{Function, Updater, no_optimizer};
use sheave_base::{Error, ErrorKind, Result};
use sheave_optim::Optimizer;
use sheave_tensor::{Arena, ArenaConfig, Op, Shape, Tensor};
use std::collections::HashMap;

pub(crate) struct Local {
    pub(crate) arena: Arena,
    pub(crate) slots: HashMap<Key, Slot>,
    pub(crate) merge: Merge,
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

    pub(crate) fn init_rows(&mut self, tables: &[(Key, Shape, Rows)]) -> Result<()> {
        let mut fresh = HashMap::with_capacity(tables.len());
        for (key, shape, rows) in tables {
            key.check()?;
            let meta = Meta::of_rows(key, shape, rows);
            meta.check_rows("init_rows", rows)?;
            let whole = 0..shape.elements().unwrap_or(0);
            let initial = rows.normal(&self.arena)?.part(&whole, &self.arena)?;
            let slot = Slot::of_rows(meta, &whole, initial)?;
            if self.slots.contains_key(key) || fresh.insert(key.clone(), slot).is_some() {
                return Err(exists(key));
            }
        }
        self.slots.extend(fresh);
        Ok(())
    }

    pub(crate) fn push_rows(&mut self, operation: &'static str, pairs: &[(Key, Rows)]) -> Result<()> {
        for (key, rows) in pairs {
            self.slots.get(key).ok_or_else(|| unknown(key, operation))?.meta.check_rows(operation, rows)?;
        }
        let mut outcome = Ok(());
        for (key, rows) in grouped_rows(pairs, &self.arena)? {
            let slot = self.slots.get_mut(key).ok_or_else(|| unknown(key, operation))?;
            let whole = 0..slot.value.elements() as u64;
            let mut total = Total::Rows(RowTotal::One(rows.part(&whole, &self.arena)?));
            outcome = outcome.and(guarded(slot, &self.merge, &mut total, &self.arena).map(drop));
        }
        outcome
    }

    pub(crate) fn pull_rows(&self, operation: &'static str, wanted: &[Wanted]) -> Result<()> {
        check_apart(operation, wanted.iter().map(|(_, _, place)| place))?;
        let found = |(key, ids, place): &Wanted| {
            let slot = self.slots.get(key).ok_or_else(|| unknown(key, operation))?;
            Ok((slot, wanted_ids(operation, &slot.meta, ids, place)?))
        };
        let found = wanted.iter().map(found).collect::<Result<Vec<_>>>()?;
        for ((_, _, place), (slot, ids)) in wanted.iter().zip(found) {
            let row_bytes = slot.meta.row_elements() as usize * slot.meta.dtype.size_bytes();
            let mut lease = place.write_lease(operation)?;
            gather_under(&mut lease, place, &slot.value.bytes()?, row_bytes, &ids)?;
        }
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

    /// The slot of a key that is there.
    pub(crate) fn slot(&self, key: &Key) -> Result<&Slot> {
        self.slots.get(key).ok_or_else(|| unknown(key, "save"))
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

/// Brings the rows of each key into normal form, as if those of equal keys were given one after the other; keys keep
/// the order of their first rows.
pub(crate) fn grouped_rows<'a>(pairs: &'a [(Key, Rows)], arena: &Arena) -> Result<Vec<(&'a Key, Rows)>> {
    let mut place: HashMap<&Key, usize> = HashMap::with_capacity(pairs.len());
    let mut groups: Vec<(&Key, Vec<&Rows>)> = Vec::with_capacity(pairs.len());
    for (key, rows) in pairs {
        let at = *place.entry(key).or_insert(groups.len());
        match groups.get_mut(at) {
            Some((_, group)) => group.push(rows),
            None => groups.push((key, vec![rows])),
        }
    }
    let normal = |(key, group): (&'a Key, Vec<&Rows>)| Ok((key, Rows::concatenated(&group, arena)?.normal(arena)?));
    groups.into_iter().map(normal).collect()
}
