//! Norms of a whole tensor, of which each server holds a slice.
//!
//! A sum of floats depends on its order, so the order is fixed by the place of an element in the whole tensor: it is
//! cut into blocks of [`BLOCK_ELEMENTS`], each block is summed in one way, and the blocks are summed from the first to
//! the last. Whoever holds whole blocks computes their sums; nobody adds them before [`Norms::combine`] does. So a
//! tensor that is cut between blocks has the same norms to the bit as the uncut one. One that is cut within a block has
//! the block's sum in two parts, and may differ in the last bits.

use std::borrow::Borrow;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind, Result};

use crate::Wide;

/// Elements whose squares are summed together: large enough for sums to cost nothing beside a step, small enough for
/// tensors to be cut well between blocks.
pub const BLOCK_ELEMENTS: usize = 4096;

/// Independent sums, so that the compiler makes a vector of them.
const LANES: usize = 8;

/// Sums of squares of one slice, block by block: 16 bytes for each [`BLOCK_ELEMENTS`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockSums {
    first_element: u64,
    elements: u64,
    steps: u64,
    /// Of the weights, and of their directions.
    blocks: Vec<[f64; 2]>,
}

impl BlockSums {
    pub(crate) fn new(first_element: u64, elements: u64, steps: u64) -> Self {
        Self { first_element, elements, steps, blocks: Vec::new() }
    }

    pub(crate) fn push(&mut self, sums: [f64; 2]) {
        self.blocks.push(sums);
    }

    /// Where the slice begins in the whole tensor.
    #[must_use]
    pub fn first_element(&self) -> u64 {
        self.first_element
    }

    /// Elements of the slice.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.elements
    }
}

/// Norms of a whole tensor and of its direction, at one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Norms {
    elements: u64,
    steps: u64,
    /// Sums of squares.
    squares: [f64; 2],
}

impl Norms {
    /// The norms of the tensor that these are all slices of, in their order.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] when the first slice does not begin the tensor, one does not begin where the last ended,
    /// or they are not of one step.
    pub fn combine<S: Borrow<BlockSums>>(slices: impl IntoIterator<Item = S>) -> Result<Self> {
        let mut norms: Option<Self> = None;
        for slice in slices {
            let slice = slice.borrow();
            let norms = norms.get_or_insert(Self { elements: 0, steps: slice.steps, squares: [0.0; 2] });
            norms.add(slice)?;
        }
        norms.ok_or_else(|| mismatch("no sums were given to combine".to_owned()))
    }

    fn add(&mut self, slice: &BlockSums) -> Result<()> {
        if slice.first_element != self.elements {
            let (first, expected) = (slice.first_element, self.elements);
            return Err(mismatch(format!("a slice begins at element {first}, and {expected} comes next")));
        }
        if slice.steps != self.steps {
            return Err(mismatch(format!("slices are at steps {} and {}", self.steps, slice.steps)));
        }
        let end = self.elements.checked_add(slice.elements);
        let end = end.ok_or_else(|| mismatch(format!("a slice of {} elements has no end", slice.elements)))?;
        let block = BLOCK_ELEMENTS as u64;
        let count = if slice.elements == 0 { 0 } else { end.div_ceil(block) - self.elements / block };
        if slice.blocks.len() as u64 != count {
            let given = slice.blocks.len();
            return Err(mismatch(format!("a slice of {} elements has {given} blocks", slice.elements)));
        }
        for [weights, direction] in &slice.blocks {
            self.squares[0] += weights;
            self.squares[1] += direction;
        }
        self.elements = end;
        Ok(())
    }

    /// Elements of the whole tensor, if no slice was forgotten at its end.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// The step that these were computed for.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The Euclidean norm of the weights; infinite where a weight is so large that its square is.
    #[must_use]
    pub fn weights(&self) -> f64 {
        self.squares[0].sqrt()
    }

    /// The Euclidean norm of the direction.
    #[must_use]
    pub fn direction(&self) -> f64 {
        self.squares[1].sqrt()
    }
}

fn mismatch(what: String) -> Error {
    Error::new(ErrorKind::Mismatch, what).operation("combine norms")
}

/// The parts of a slice that lie in one block each.
pub(crate) fn blocks(first_element: u64, elements: usize) -> impl Iterator<Item = Range<usize>> {
    let into = (first_element % BLOCK_ELEMENTS as u64) as usize;
    let mut start = 0;
    std::iter::from_fn(move || {
        let length = if start == 0 { BLOCK_ELEMENTS - into } else { BLOCK_ELEMENTS };
        let range = start..elements.min(start + length);
        start = range.end;
        (!range.is_empty()).then_some(range)
    })
}

/// A sum of squares under way.
#[derive(Clone, Copy, Default)]
pub(crate) struct Accumulator([f64; LANES]);

impl Accumulator {
    pub(crate) fn add<W: Wide>(&mut self, values: &[W]) {
        let (chunks, rest) = values.as_chunks::<LANES>();
        for chunk in chunks {
            self.add_to_lanes(chunk);
        }
        self.add_to_lanes(rest);
    }

    fn add_to_lanes<W: Wide>(&mut self, values: &[W]) {
        for (lane, value) in self.0.iter_mut().zip(values) {
            let value = value.to_double();
            *lane += value * value;
        }
    }

    pub(crate) fn sum(self) -> f64 {
        self.0.into_iter().fold(0.0, |sum, lane| sum + lane)
    }
}
