//! What the requests of a worker have in common, said once.
//!
//! A program pushes and pulls the same keys again and again. Keys and the dtypes and shapes of the answers make a
//! *plan*; it travels before its first request and has a small number from then on. The shapes of the pushed tensors
//! are no part of it, since every message tells them anyway.

use serde::{Deserialize, Serialize};
use sheave_base::limits::PARTS_MAX;
use sheave_base::numbers::{Numbered, Spread};
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{Dtype, Shape, Tensor};
use std::hash::{BuildHasher, BuildHasherDefault};

/// Plans of one worker that its servers remember. A program that needs more has its plans said again.
pub(crate) const PLANS_MAX: usize = 256;

/// Where an answer goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slot {
    pub(crate) key: u64,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Shape,
}

impl Slot {
    /// Refuses an answer that does not fill the slot exactly.
    pub(crate) fn check(&self, tensor: &Tensor) -> Result<()> {
        if tensor.dtype() == self.dtype && Some(tensor.elements() as u64) == self.shape.elements() {
            return Ok(());
        }
        let Self { key, dtype, shape } = self;
        let what = format!(
            "an answer of {}{} for key {key}, which the worker pulls as {dtype}{shape}",
            tensor.dtype(),
            tensor.shape()
        );
        Err(Error::new(ErrorKind::Mismatch, what).hint("answer with as many elements of the same dtype"))
    }
}

/// A plan as one server knows it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) push_keys: Box<[u64]>,
    pub(crate) pulls: Box<[Slot]>,
}

#[derive(Serialize, Deserialize)]
struct Written {
    push_keys: Vec<u64>,
    pulls: Vec<(u64, u8, Vec<u64>)>,
}

pub(crate) fn encode(push_keys: &[u64], pulls: &[Slot]) -> Result<Vec<u8>> {
    let pulls = pulls.iter().map(|slot| (slot.key, slot.dtype.code(), slot.shape.dimensions().to_vec())).collect();
    postcard::to_allocvec(&Written { push_keys: push_keys.to_vec(), pulls })
        .map_err(|error| Error::new(ErrorKind::Internal, format!("writing a plan: {error}")))
}

pub(crate) fn decode(bytes: &[u8]) -> Result<Plan> {
    let strange = |what: &str| Error::new(ErrorKind::Protocol, format!("a plan of an exchange {what}"));
    let (Written { push_keys, pulls }, rest) =
        postcard::take_from_bytes(bytes).map_err(|_| strange("that cannot be read"))?;
    if !rest.is_empty() || push_keys.len() > PARTS_MAX || pulls.len() > PARTS_MAX {
        return Err(strange("with too much in it"));
    }
    let pulls = pulls.into_iter().map(|(key, dtype, dimensions)| {
        let dtype = Dtype::from_code(dtype).ok_or_else(|| strange("with an unknown dtype"))?;
        let shape = Shape::new(&dimensions)
            .map_err(|error| strange(&format!("with a shape that is none: {}", error.what())))?;
        Ok(Slot { key, dtype, shape })
    });
    Ok(Plan { push_keys: push_keys.into(), pulls: pulls.collect::<Result<_>>()? })
}

/// The plans that a worker has told all its servers.
#[derive(Default)]
pub(crate) struct Told {
    plans: Vec<(u64, Vec<u64>, Vec<Slot>)>,
    by_hash: Numbered<u64, u16>,
    hasher: BuildHasherDefault<Spread>,
    next: usize,
}

impl Told {
    /// The number of a plan, if the servers know it.
    pub(crate) fn find(&self, hash: u64, push_keys: &[u64], pulls: &[Slot]) -> Option<u16> {
        let number = *self.by_hash.get(&hash)?;
        let (_, keys, slots) = self.plans.get(usize::from(number))?;
        (keys == push_keys && slots == pulls).then_some(number)
    }

    pub(crate) fn hash(&self, push_keys: &[u64], pulls: &[Slot]) -> u64 {
        self.hasher.hash_one((push_keys, pulls))
    }

    /// A number for a plan that the servers are told now. It may have stood for another one.
    pub(crate) fn add(&mut self, hash: u64, push_keys: &[u64], pulls: &[Slot]) -> u16 {
        let plan = (hash, push_keys.to_vec(), pulls.to_vec());
        let at = self.next % PLANS_MAX;
        self.next += 1;
        let number = at as u16;
        match self.plans.get_mut(at) {
            None => self.plans.push(plan),
            Some(place) => {
                let (before, ..) = std::mem::replace(place, plan);
                if self.by_hash.get(&before) == Some(&number) {
                    self.by_hash.remove(&before);
                }
            }
        }
        self.by_hash.insert(hash, number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(key: u64, shape: &[u64]) -> Slot {
        Slot { key, dtype: Dtype::F32, shape: Shape::new(shape).expect("few dimensions") }
    }

    #[test]
    fn a_plan_arrives_as_it_was() {
        let (keys, pulls) = ([3, u64::MAX], [slot(1, &[2, 3]), slot(2, &[]), slot(3, &[0; 64])]);
        let plan = decode(&encode(&keys, &pulls).expect("it can be written")).expect("it can be read");
        assert_eq!((&*plan.push_keys, &*plan.pulls), (&keys[..], &pulls[..]));
    }

    #[test]
    fn f43_nonsense_is_an_error_of_the_peers() {
        let good = encode(&[1], &[slot(1, &[2])]).expect("it can be written");
        for end in 0..good.len() {
            assert_eq!(decode(&good[..end]).expect_err("cut off").kind(), ErrorKind::Protocol);
        }
        let longer = [&good[..], &[0]].concat();
        assert_eq!(decode(&longer).expect_err("too long").kind(), ErrorKind::Protocol);
        let deep = postcard::to_allocvec(&Written { push_keys: vec![1], pulls: vec![(1, 8, vec![1; 65])] });
        let refused = decode(&deep.expect("it can be written")).expect_err("f43: no tensor has so many dimensions");
        assert_eq!(refused.kind(), ErrorKind::Protocol, "{refused}");
        let keys = vec![0; PARTS_MAX + 1];
        assert!(decode(&encode(&keys, &[]).expect("it can be written")).is_err());
    }

    #[test]
    fn plans_are_found_until_their_number_is_needed() {
        let mut told = Told::default();
        let find = |told: &Told, key| told.find(told.hash(&[key], &[]), &[key], &[]);
        for key in 0..PLANS_MAX as u64 {
            assert_eq!(find(&told, key), None);
            let hash = told.hash(&[key], &[]);
            assert_eq!(u64::from(told.add(hash, &[key], &[])), key);
        }
        assert_eq!((find(&told, 0), find(&told, 255)), (Some(0), Some(255)));
        let hash = told.hash(&[1000], &[]);
        assert_eq!(told.add(hash, &[1000], &[]), 0);
        assert_eq!((find(&told, 0), find(&told, 1000), find(&told, 1)), (None, Some(0), Some(1)));
        // The same hash by chance is not the same plan.
        assert_eq!(told.find(hash, &[1001], &[]), None);
    }
}
