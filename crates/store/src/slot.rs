//! A stored value, or a server's slice of one, and how sums are merged into it.

use crate::key::Key;
use crate::layout::{Cutting, SLICES_MAX, Slices};
use crate::learn::{Extent, Memory, Outline, Picked};
use crate::protocol::{Described, Head, Storage};
use crate::rows::Rows;
use crate::rows::cut::Grid;
use crate::rows::gradient::{RowGradient, RowTotal};
use crate::rows::merge;
use crate::rows::present::Present;
use crate::sum::Total;
use crate::updater::{Function, Updater, Within};
use sheave_base::{Error, ErrorKind, Result, contain};
use sheave_optim::{BlockSums, Norms, Optimizer};
use sheave_tensor::{Arena, Dtype, Op, Shape, Tensor};
use std::ops::Range;

/// What all nodes know of a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Meta {
    pub(crate) key: Key,
    pub(crate) dtype: Dtype,
    /// Of the whole tensor.
    pub(crate) shape: Shape,
    pub(crate) storage: Storage,
}

impl Meta {
    pub(crate) fn of(key: &Key, tensor: &Tensor) -> Self {
        let (dtype, shape) = (tensor.dtype(), tensor.shape().clone());
        Self { key: key.clone(), dtype, shape, storage: Storage::Dense }
    }

    /// That of a table of this shape.
    pub(crate) fn of_rows(key: &Key, shape: &Shape, rows: &Rows) -> Self {
        Self { key: key.clone(), dtype: rows.values().dtype(), shape: shape.clone(), storage: Storage::Rows }
    }

    /// As it travels.
    pub(crate) fn described(&self) -> Described {
        let (dtype, shape) = (self.dtype.code(), self.shape.dimensions().to_vec());
        Described { key: self.key.clone(), dtype, shape, storage: self.storage }
    }

    /// # Errors
    ///
    /// `Protocol` for a dtype that there is not, `LimitExceeded` for a shape beyond all memory.
    pub(crate) fn from_described(described: Described) -> Result<Self> {
        let Described { key, dtype, shape, storage } = described;
        let dtype = Dtype::from_code(dtype)
            .ok_or_else(|| Error::new(ErrorKind::Protocol, format!("key {key} has the unknown dtype {dtype}")))?;
        Ok(Self { key, dtype, shape: Shape::new(&shape)?, storage })
    }

    /// The elements of one row, which is all of a tensor without dimensions. Rows of which there are none may be of any
    /// length.
    pub(crate) fn row_elements(&self) -> u64 {
        self.shape.dimensions().iter().skip(1).fold(1, |elements, dimension| elements.saturating_mul(*dimension))
    }

    /// The slices of the tensor, as ranges of its elements. `number` is the key's.
    pub(crate) fn slices(&self, number: u64, cutting: &Cutting) -> Slices {
        match self.storage {
            Storage::Dense => cutting.slices(number, self.shape.elements().unwrap_or(0)),
            Storage::Rows => {
                let (rows, row_elements) = (self.shape.dimensions().first().copied().unwrap_or(1), self.row_elements());
                let mut slices = cutting.row_slices(number, rows, row_elements);
                for slice in &mut slices {
                    slice.range = slice.range.start * row_elements..slice.range.end * row_elements;
                }
                slices
            }
        }
    }

    /// Returns how many slices the tensor has.
    pub(crate) fn slice_count(&self, number: u64, cutting: &Cutting) -> u64 {
        match self.storage {
            Storage::Dense => cutting.count(number, self.shape.elements().unwrap_or(0)),
            Storage::Rows => self.slices(number, cutting).len() as u64,
        }
    }

    /// Refuses a tensor that would be cut into too many slices.
    pub(crate) fn check_slices(&self, cutting: &Cutting) -> Result<()> {
        let count = self.slice_count(self.key.number(), cutting);
        if count <= SLICES_MAX {
            return Ok(());
        }
        let what = format!("key {} of shape {} has {count} slices; at most {SLICES_MAX}", self.key, self.shape);
        Err(Error::new(ErrorKind::LimitExceeded, what)
            .operation("init")
            .hint("open the store with more slice_elements, or give the tensor in parts"))
    }

    /// Refuses rows that the tensor does not have.
    pub(crate) fn check_rows(&self, operation: &'static str, rows: &Rows) -> Result<()> {
        rows.check(&self.key, self.dtype, &self.shape).map_err(|error| error.operation(operation))
    }

    /// Refuses a key that another worker has initialised as something else.
    pub(crate) fn check_same(&self, given: &Self) -> Result<()> {
        if self == given {
            return Ok(());
        }
        let what = format!("key {} holds {}, and {} was given", self.key, self.stored(), given.stored());
        Err(Error::new(ErrorKind::Mismatch, what).operation("init"))
    }

    fn stored(&self) -> String {
        let table = if self.storage == Storage::Rows { "rows of " } else { "" };
        format!("{table}{}{}", self.dtype, self.shape)
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
    /// The slice as a table.
    pub(crate) grid: Grid,
    present: Present,
    /// How often it was changed, or was to be.
    pub(crate) version: u64,
}

impl Slot {
    /// A slot that holds a copy of `initial`, which is the whole tensor or a slice of it.
    pub(crate) fn new(meta: Meta, start: u64, initial: &Tensor, arena: &Arena) -> Result<Self> {
        let grid = Grid::of(meta.row_elements(), &(start..start + initial.elements() as u64));
        let (value, memory) = (flat_copy(initial, arena)?, Memory::default());
        Ok(Self { meta, start, value, memory, grid, present: Present::All, version: 0 })
    }

    /// A slot for a slice of a table, with these rows and zeros. Memory is used for what is written.
    pub(crate) fn of_rows(meta: Meta, slice: &Range<u64>, initial: RowGradient) -> Result<Self> {
        let mut value = Tensor::private(meta.dtype, [slice.end - slice.start])?;
        let grid = initial.grid;
        let mut present = Present::Some(Vec::new());
        merge::assign(&mut value, &mut present, &RowTotal::One(initial))?;
        Ok(Self { meta, start: slice.start, value, memory: Memory::default(), grid, present, version: 0 })
    }

    /// Of a row of the grid.
    pub(crate) fn row_bytes(&self) -> usize {
        self.grid.row_elements as usize * self.meta.dtype.size_bytes()
    }

    /// Merges a sum, which has as many elements as the value and its dtype. It may be left with other contents.
    /// A merge that needs norms of the whole tensor is half done then, and returns the sums for them; [`Slot::finish`]
    /// must follow.
    fn merge(&mut self, merge: &Merge, total: &mut Total, arena: &Arena) -> Result<Option<BlockSums>> {
        match merge {
            Merge::Optimizer(_) => self.version += 1,
            _ => self.changes(),
        }
        if !matches!((merge, &*total), (Merge::Assign, Total::Dense(_))) {
            self.own(arena)?;
        }
        let sum = match total {
            Total::Dense(sum) => sum,
            Total::Rows(rows) => return self.merge_rows(merge, rows, arena).map(|()| None),
        };
        self.present = Present::All;
        match merge {
            Merge::Assign => self.assign(sum, arena),
            Merge::Sum => self.value.reduce_from(Op::Sum, sum),
            Merge::Function(function) => {
                let _within = Within::slice(self.start);
                function(&self.meta.key, sum, &mut self.value)
            }
            Merge::Optimizer(optimizer) => {
                let extent = if self.is_whole() { Extent::Whole } else { Extent::Slice(self.start) };
                return self.memory.step(optimizer, &mut self.value, sum, extent);
            }
        }
        .map(|()| None)
    }

    /// Notes a change that no optimizer makes.
    pub(crate) fn changes(&mut self) {
        self.version += 1;
        self.memory.forget_master();
    }

    /// Puts another tensor, of the same size, in the place of the value, which answers may hold.
    pub(crate) fn replace(&mut self, value: &Tensor) -> Result<()> {
        if value.dtype() != self.value.dtype() || value.len_bytes() != self.value.len_bytes() {
            let what = format!(
                "the updater left {}{} as the value of key {}; expected {}{}",
                value.dtype(),
                value.shape(),
                self.meta.key,
                self.value.dtype(),
                self.value.shape()
            );
            return Err(Error::new(ErrorKind::Mismatch, what));
        }
        self.value = value.reshape([self.value.elements() as u64])?;
        Ok(())
    }

    /// Notes that every row may differ from zero.
    pub(crate) fn is_all_present(&mut self) {
        self.present = Present::All;
    }

    /// How this slot stands.
    pub(crate) fn head(&self, merge: &Merge) -> Head {
        let outline = match merge {
            Merge::Optimizer(_) => self.memory.outline(),
            _ => Outline::default(),
        };
        Head { version: self.version, outline }
    }

    /// Its value, if that is asked for, and what the optimizer remembers; copies.
    pub(crate) fn export(&self, merge: &Merge, with_value: bool, arena: &Arena) -> Result<(Head, Vec<Tensor>)> {
        let head = self.head(merge);
        let mut tensors = Vec::new();
        if with_value {
            tensors.push(flat_copy(&self.value, arena)?);
        }
        if head.outline.steps.is_some() {
            tensors.extend(self.memory.export()?);
        }
        Ok((head, tensors))
    }

    /// Becomes what was exported; nothing changes if it does not fit.
    pub(crate) fn import(
        &mut self,
        merge: &Merge,
        with_value: bool,
        outline: &Outline,
        tensors: &[Tensor],
        arena: &Arena,
    ) -> Result<()> {
        let (values, rest) = tensors.split_at(usize::from(with_value).min(tensors.len()));
        let memory = match merge {
            Merge::Optimizer(optimizer) => {
                Memory::import(&optimizer.rule, self.meta.dtype, self.value.elements(), outline, rest)?
            }
            _ => Memory::Nothing,
        };
        if with_value {
            let value = values.first().filter(|value| value.dtype() == self.meta.dtype);
            let value = value.ok_or_else(|| Error::new(ErrorKind::Mismatch, "a value of another dtype"))?;
            self.own(arena)?;
            overwrite(&mut self.value, value)?;
            self.present = Present::All;
        }
        self.memory = memory;
        self.version += 1;
        Ok(())
    }

    /// Ends a merge that is half done: with norms, or not at all. After an error it is as if there had been none.
    pub(crate) fn finish(&mut self, norms: Result<Norms>) -> Result<()> {
        let finished = norms.and_then(|norms| self.memory.finish(&mut self.value, &norms));
        if finished.is_err() {
            self.memory.abandon();
        }
        finished
    }

    /// Whether this is all of its tensor.
    pub(crate) fn is_whole(&self) -> bool {
        self.meta.shape.elements() == Some(self.value.elements() as u64)
    }

    /// Whether this is a slice that cannot be merged alone.
    pub(crate) fn needs_others(&self, merge: &Merge) -> bool {
        merge.needs_norms() && !self.is_whole()
    }

    /// Merges a sum of rows. All others stay as they are, except that without an updater they become zero.
    fn merge_rows(&mut self, merge: &Merge, rows: &RowTotal, arena: &Arena) -> Result<()> {
        if let Merge::Assign = merge {
            return merge::assign(&mut self.value, &mut self.present, rows);
        }
        self.present = Present::All;
        match merge {
            Merge::Assign | Merge::Sum => merge::add(&mut self.value, rows),
            Merge::Function(function) => {
                let _within = Within::slice(self.start);
                merge::call(function, &self.meta.key, &mut self.value, rows, arena)
            }
            Merge::Optimizer(optimizer) => {
                let gradient = rows.packed(self.meta.dtype, arena)?;
                let ids = rows.read(|rows| Ok(rows.ids.iter().map(|id| *id as u64).collect::<Vec<_>>()))?;
                let rows = Picked { row_elements: self.grid.row_elements as usize, ids: &ids };
                self.memory.step_rows(optimizer, &mut self.value, &gradient, rows)
            }
        }
    }

    /// The value as it is now, for an answer. Memory of the arena is not copied: whoever changes the value while
    /// answers hold it makes a new one ([`Slot::own`]).
    pub(crate) fn snapshot(&self, arena: &Arena) -> Result<Tensor> {
        if arena.owns(self.value.buffer()) { Ok(self.value.clone()) } else { flat_copy(&self.value, arena) }
    }

    /// The value as it is now, whatever is written to the slot's own memory. One that answers hold is left to them by
    /// whoever writes next; any other one stays where it is.
    fn kept_aside(&self, arena: &Arena) -> Result<Tensor> {
        let is_held = arena.owns(self.value.buffer()) && !self.value.buffer().is_unique();
        if is_held { Ok(self.value.clone()) } else { flat_copy(&self.value, arena) }
    }

    /// Leaves the value to the answers that hold it, if any do, and goes on with a copy.
    pub(crate) fn own(&mut self, arena: &Arena) -> Result<()> {
        if arena.owns(self.value.buffer()) && !self.value.buffer().is_unique() {
            self.value = flat_copy(&self.value, arena)?;
        }
        Ok(())
    }

    /// The sum becomes the value. If its memory is the server's own the two change places, and nothing is copied.
    fn assign(&mut self, sum: &mut Tensor, arena: &Arena) -> Result<()> {
        let is_ours = arena.owns(self.value.buffer()) && self.value.len_bytes() == sum.len_bytes();
        if is_ours && is_own(sum, arena) && sum.dtype() == self.value.dtype() {
            std::mem::swap(&mut self.value, sum);
            return Ok(());
        }
        self.own(arena)?;
        overwrite(&mut self.value, sum)
    }
}

/// Merges; user code that panics fails this merge and nothing else. A function that fails half-way leaves the value as
/// it was.
pub(crate) fn guarded(slot: &mut Slot, merge: &Merge, total: &mut Total, arena: &Arena) -> Result<Option<BlockSums>> {
    let before = match merge {
        Merge::Function(_) => Some((slot.kept_aside(arena)?, slot.present.clone())),
        _ => None,
    };
    let merged = contain::run(|| slot.merge(merge, total, arena));
    let merged = merged.unwrap_or_else(|text| Err(panicked(&slot.meta.key, text)));
    if let (Err(_), Some((value, present))) = (&merged, before) {
        slot.present = present;
        match arena.owns(slot.value.buffer()) {
            true => slot.value = value,
            false => overwrite(&mut slot.value, &value)?,
        }
    }
    merged
}

/// Says that user code has panicked, with this text.
pub(crate) fn panicked(key: &Key, text: String) -> Error {
    let what = format!("the updater panicked on key {key}");
    Error::new(ErrorKind::Remote, what).cause(Error::new(ErrorKind::Remote, text))
}

/// Whether nobody else has a part in the memory of a tensor: no other node, no other tensor.
pub(crate) fn is_own(tensor: &Tensor, arena: &Arena) -> bool {
    let buffer = tensor.buffer();
    arena.owns(buffer) && buffer.is_unique() && tensor.offset_bytes() == 0 && buffer.len_bytes() == tensor.len_bytes()
}

/// A copy of a tensor in memory of its own, on the same device, with one dimension.
pub(crate) fn flat_copy(source: &Tensor, arena: &Arena) -> Result<Tensor> {
    let mut copy = empty(arena, source.dtype(), source.elements() as u64)?;
    overwrite(&mut copy, &source.reshape([source.elements() as u64])?)?;
    Ok(copy.on(source.device()))
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

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_optim::Rule;
    use sheave_tensor::ArenaConfig;

    #[test]
    fn an_answer_keeps_the_value_that_it_was_given() {
        let arena = Arena::new(ArenaConfig { capacity_bytes: 16 << 20, ..ArenaConfig::default() });
        let tensor = |value: f32| flat_copy(&Tensor::from_slice(&[value; 3], [3]).unwrap(), &arena).unwrap();
        let meta = Meta::of(&Key::from("w"), &tensor(1.0));
        let function: Function = std::sync::Arc::new(|_, sum, value| value.reduce_from(Op::Prod, sum));
        let merges = [
            (Merge::Assign, 2.0),
            (Merge::Sum, 3.0),
            (Merge::Function(function), 2.0),
            (Merge::Optimizer(Box::new(Rule::sgd(0.5).into())), 0.0),
        ];
        for (merge, expected) in merges {
            let mut slot = Slot::new(meta.clone(), 0, &tensor(1.0), &arena).unwrap();
            let answer = slot.snapshot(&arena).unwrap();
            assert!(answer.buffer().is_same(slot.value.buffer()), "nothing is copied before that is needed");
            for lease in [Some(answer.read_lease("send").unwrap()), None] {
                let before = slot.value.to_vec::<f32>().unwrap();
                slot.merge(&merge, &mut Total::Dense(tensor(2.0)), &arena).unwrap();
                if lease.is_some() {
                    assert_eq!((before, slot.value.to_vec::<f32>().unwrap()), (vec![1.0; 3], vec![expected; 3]));
                }
                assert_eq!(answer.to_vec::<f32>().unwrap(), [1.0; 3]);
            }
        }
    }

    #[test]
    fn an_answer_that_has_left_costs_the_next_merge_no_copy() {
        let arena = Arena::new(ArenaConfig { capacity_bytes: 16 << 20, ..ArenaConfig::default() });
        let value = Tensor::from_slice(&[1.0f32; 3], [3]).unwrap();
        let mut slot = Slot::new(Meta::of(&Key::from("w"), &value), 0, &value, &arena).unwrap();
        drop(slot.snapshot(&arena).unwrap());
        let allocations = arena.stats().allocations;
        slot.merge(&Merge::Sum, &mut Total::Dense(value), &arena).unwrap();
        assert_eq!((arena.stats().allocations, slot.value.to_vec::<f32>().unwrap()), (allocations, vec![2.0; 3]));
    }
}
