//! A stored value, or a server's slice of one, and how sums are merged into it.

use crate::key::Key;
use crate::learn::{Extent, Memory};
use crate::sum::Total;
use crate::updater::{Function, Updater};
use sheave_base::{Error, ErrorKind, Result};
use sheave_optim::{BlockSums, Norms, Optimizer};
use sheave_tensor::{Arena, Dtype, Op, Shape, Tensor};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What all nodes know of a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Meta {
    pub(crate) key: Key,
    pub(crate) dtype: Dtype,
    /// Of the whole tensor.
    pub(crate) shape: Shape,
}

impl Meta {
    pub(crate) fn of(key: &Key, tensor: &Tensor) -> Self {
        Self { key: key.clone(), dtype: tensor.dtype(), shape: tensor.shape().clone() }
    }

    /// Refuses a tensor of another dtype or number of elements.
    pub(crate) fn check(&self, operation: &'static str, tensor: &Tensor) -> Result<()> {
        if tensor.dtype() == self.dtype && tensor.shape() == &self.shape {
            return Ok(());
        }
        let what = format!(
            "key {} holds {}{}, and {}{} was given",
            self.key,
            self.dtype,
            self.shape,
            tensor.dtype(),
            tensor.shape()
        );
        Err(Error::new(ErrorKind::Mismatch, what).operation(operation))
    }
}

/// The updater as it runs: functions are found.
#[derive(Clone)]
pub(crate) enum Merge {
    Assign,
    Sum,
    Optimizer(Box<Optimizer>),
    Function(Function),
}

impl Merge {
    /// Finds the function of a named updater with `find`.
    pub(crate) fn of(updater: Updater, find: impl FnOnce(&str) -> Option<Function>) -> Result<Self> {
        Ok(match updater {
            Updater::Assign => Self::Assign,
            Updater::Sum => Self::Sum,
            Updater::Optimizer(optimizer) => {
                optimizer.check()?;
                Self::Optimizer(optimizer)
            }
            Updater::Function(function) => Self::Function(function),
            Updater::Named(name) => Self::Function(find(&name).ok_or_else(|| {
                Error::new(ErrorKind::NotFound, format!("no updater is registered as \"{name}\""))
                    .operation("set_updater")
                    .hint("register it on every server before the workers name it")
            })?),
        })
    }
}

impl Merge {
    /// Whether it needs norms of whole tensors.
    pub(crate) fn needs_norms(&self) -> bool {
        matches!(self, Self::Optimizer(optimizer) if optimizer.rule.needs_norms())
    }
}

/// A stored value. Its elements lie flat in memory of its own.
pub(crate) struct Slot {
    pub(crate) meta: Meta,
    /// The index of its first element in the tensor.
    pub(crate) start: u64,
    pub(crate) value: Tensor,
    pub(crate) memory: Memory,
}

impl Slot {
    /// A slot that holds a copy of `initial`, which is the whole tensor or a slice of it.
    pub(crate) fn new(meta: Meta, start: u64, initial: &Tensor, arena: &Arena) -> Result<Self> {
        Ok(Self { meta, start, value: flat_copy(initial, arena)?, memory: Memory::default() })
    }

    /// Merges a sum, which has as many elements as the value and its dtype. It may be left with other contents.
    /// A merge that needs norms of the whole tensor is half done then, and returns the sums for them; [`Slot::finish`]
    /// must follow.
    fn merge(&mut self, merge: &Merge, total: &mut Total, arena: &Arena) -> Result<Option<BlockSums>> {
        let Total::Dense(sum) = total;
        if !matches!(merge, Merge::Optimizer(_)) {
            self.memory.forget_master();
        }
        match merge {
            Merge::Assign => self.assign(sum, arena),
            Merge::Sum => self.value.reduce_from(Op::Sum, sum),
            Merge::Function(function) => function(&self.meta.key, sum, &mut self.value),
            Merge::Optimizer(optimizer) => {
                let extent = if self.is_whole() { Extent::Whole } else { Extent::Slice(self.start) };
                return self.memory.step(optimizer, &mut self.value, sum, extent);
            }
        }
        .map(|()| None)
    }

    /// Ends a merge that is half done.
    pub(crate) fn finish(&mut self, norms: &Norms) -> Result<()> {
        self.memory.finish(&mut self.value, norms)
    }

    /// Whether this is all of its tensor.
    pub(crate) fn is_whole(&self) -> bool {
        self.meta.shape.elements() == Some(self.value.elements() as u64)
    }

    /// Whether this is a slice that cannot be merged alone.
    pub(crate) fn needs_others(&self, merge: &Merge) -> bool {
        merge.needs_norms() && !self.is_whole()
    }

    /// The sum becomes the value. If its memory is the server's own the two change places, and nothing is copied.
    fn assign(&mut self, sum: &mut Tensor, arena: &Arena) -> Result<()> {
        if !is_own(sum, arena) || !is_own(&self.value, arena) || sum.dtype() != self.value.dtype() {
            return overwrite(&mut self.value, sum);
        }
        std::mem::swap(&mut self.value, sum);
        Ok(())
    }
}

/// Merges; user code that panics fails this merge and nothing else.
pub(crate) fn guarded(slot: &mut Slot, merge: &Merge, total: &mut Total, arena: &Arena) -> Result<Option<BlockSums>> {
    catch_unwind(AssertUnwindSafe(|| slot.merge(merge, total, arena))).unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Remote, format!("the updater panicked on key {}", slot.meta.key)))
    })
}

/// Whether nobody else has a part in the memory of a tensor: no other node, no other tensor.
pub(crate) fn is_own(tensor: &Tensor, arena: &Arena) -> bool {
    let buffer = tensor.buffer();
    arena.owns(buffer) && buffer.is_unique() && tensor.offset_bytes() == 0 && buffer.len_bytes() == tensor.len_bytes()
}

/// A copy of a tensor in memory of its own, with one dimension.
pub(crate) fn flat_copy(source: &Tensor, arena: &Arena) -> Result<Tensor> {
    let mut copy = empty(arena, source.dtype(), source.elements() as u64)?;
    overwrite(&mut copy, &source.reshape([source.elements() as u64])?)?;
    Ok(copy)
}

/// Memory in the arena while it has room, private beyond.
pub(crate) fn empty(arena: &Arena, dtype: Dtype, elements: u64) -> Result<Tensor> {
    match Tensor::empty(arena, dtype, [elements]) {
        Err(error) if error.kind() == ErrorKind::LimitExceeded => Tensor::private(dtype, [elements]),
        other => other,
    }
}

/// Copies the bytes of one tensor over those of another of the same size, whose only handle this is.
pub(crate) fn overwrite(target: &mut Tensor, source: &Tensor) -> Result<()> {
    let bytes = source.bytes()?;
    let target = target.bytes_mut()?;
    if target.len() != bytes.len() {
        let what = format!("{} bytes were given for a value of {}", bytes.len(), target.len());
        return Err(Error::new(ErrorKind::Mismatch, what));
    }
    target.copy_from_slice(&bytes);
    Ok(())
}
