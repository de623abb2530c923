//! One rank's part of an operation: the memory it reads and writes, and who gets what of it.

use crate::memory::Region;
use crate::numbers::Numbers;
use crate::operation::{Header, Kind};
use std::ops::Range;

/// Where each rank's piece lies in input and output, in bytes.
#[derive(Clone)]
pub(crate) struct Pieces {
    pub(crate) sent: Vec<Range<usize>>,
    pub(crate) received: Vec<Range<usize>>,
    /// Whether lengths may differ, so that they must be compared before anything moves.
    pub(crate) differ: bool,
}

/// What one rank does in an operation. Its kind is the header's.
pub(crate) struct Job {
    /// What others read.
    pub(crate) input: Option<Region>,
    /// What this rank gets. A broadcast's tensor is the root's input and everybody else's output.
    pub(crate) output: Option<Region>,
    /// How a reduction computes.
    pub(crate) numbers: Option<Numbers>,
    /// Of an all-gather and an all-to-all; the former only receives.
    pub(crate) pieces: Option<Pieces>,
    /// The most bytes of any rank's input, as far as all ranks know it.
    pub(crate) input_bytes_max: Option<usize>,
}

impl Job {
    /// Nothing to read and nothing to write.
    pub(crate) fn nothing() -> Self {
        Self { input: None, output: None, numbers: None, pieces: None, input_bytes_max: Some(0) }
    }

    /// Bytes by which the algorithm is chosen, the same on all ranks: of one rank's tensor.
    pub(crate) fn chosen_by_bytes(&self, header: &Header) -> u64 {
        match (header.kind, &self.pieces) {
            (Kind::AllGatherV, _) => self.input_bytes_max.unwrap_or_default() as u64,
            (Kind::AllToAllV, _) => 0,
            _ => header.count * header.dtype.size_bytes() as u64,
        }
    }
}
