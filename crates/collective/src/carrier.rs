//! Operations that are made of parts: lists, and tensors on several devices.
//!
//! The ranks agree about the whole once; then its parts go one after the other, each as an operation of its own would,
//! over links or, on one host, directly. The number of parts is a function of what has been agreed, so every rank takes
//! as many numbers for them; ranks that disagree find out before the first part.
//!
//! Over links all parts share the number, and with it the stream, of the whole. On a board each part has a number.

use crate::exchange::Exchange;
use crate::group::State;
use crate::group::start::go_on;
use crate::job::{Job, Pieces};
use crate::links;
use crate::memory::Region;
use crate::numbers::Numbers;
use crate::operation::Header;
use crate::shared::board::Board;
use crate::task::Awaited;
use sheave_base::Result;
use sheave_tensor::Dtype;
use std::ops::Range;
use std::sync::Arc;

/// What carries the parts of one operation.
pub(crate) struct Carrier {
    pub(crate) state: Arc<State>,
    /// Of the whole.
    pub(crate) header: Header,
    pub(crate) way: Way,
}

pub(crate) enum Way {
    Links(Arc<Exchange>),
    Board { board: Arc<Board>, next: u64, awaited: Arc<Awaited> },
}

impl Carrier {
    /// How many ranks there are.
    pub(crate) fn size(&self) -> usize {
        self.state.size() as usize
    }

    pub(crate) fn rank(&self) -> usize {
        self.header.rank as usize
    }

    /// Memory of the operation's own.
    pub(crate) fn scratch(&self, len_bytes: usize) -> Result<Region> {
        Region::scratch(self.state.hub.node.arena(), len_bytes)
    }

    /// Carries one part, of `elements` of each rank.
    async fn carry(&mut self, dtype: Dtype, elements: usize, job: Job) -> Result<()> {
        let header = Header { dtype, count: elements as u64, ..self.header };
        match &mut self.way {
            Way::Links(exchange) => links::part(exchange, &header, &job).await,
            Way::Board { board, next, awaited } => {
                let run = self.state.on_board(board, header, *next, job);
                *next += 1;
                go_on(Arc::clone(&self.state), run, Arc::clone(awaited)).await.map(drop)
            }
        }
    }

    /// All inputs are reduced to everybody's output.
    pub(crate) async fn all_reduce(&mut self, numbers: Numbers, input: &Region, output: &Region) -> Result<()> {
        let job = Job::of(Some(input), Some(output), Some(numbers), Some(input.len_bytes()));
        self.carry(numbers.dtype(), numbers.elements(input), job).await
    }

    /// All inputs are reduced to the root's output.
    pub(crate) async fn reduce(&mut self, numbers: Numbers, input: &Region, output: Option<&Region>) -> Result<()> {
        let job = Job::of(Some(input), output, Some(numbers), Some(input.len_bytes()));
        self.carry(numbers.dtype(), numbers.elements(input), job).await
    }

    /// The root's tensor goes to all.
    pub(crate) async fn broadcast(&mut self, dtype: Dtype, tensor: &Region) -> Result<()> {
        let (input, output) =
            if self.header.root == self.header.rank { (Some(tensor), None) } else { (None, Some(tensor)) };
        let job = Job::of(input, output, None, Some(tensor.len_bytes()));
        self.carry(dtype, tensor.len_bytes() / dtype.size_bytes(), job).await
    }

    /// All inputs, of the same length, one behind the other in everybody's output.
    pub(crate) async fn all_gather(&mut self, dtype: Dtype, input: &Region, output: &Region) -> Result<()> {
        let pieces = Pieces { sent: Vec::new(), received: self.blocks(input.len_bytes()), differ: false };
        let job = Job::of(Some(input), Some(output), None, Some(input.len_bytes()));
        self.carry(dtype, input.len_bytes() / dtype.size_bytes(), Job { pieces: Some(pieces), ..job }).await
    }

    /// All inputs are reduced, and each rank's output gets its piece.
    pub(crate) async fn reduce_scatter(&mut self, numbers: Numbers, input: &Region, output: &Region) -> Result<()> {
        let job = Job::of(Some(input), Some(output), Some(numbers), Some(input.len_bytes()));
        self.carry(numbers.dtype(), numbers.elements(output), job).await
    }

    /// The bytes of every rank's block in memory that holds one for each.
    pub(crate) fn blocks(&self, len_bytes: usize) -> Vec<Range<usize>> {
        (0..self.size()).map(|rank| rank * len_bytes..(rank + 1) * len_bytes).collect()
    }
}
