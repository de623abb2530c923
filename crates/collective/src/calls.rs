//! The operations of a group: what is checked before an operation begins, and what each rank's part of it is.

use crate::communicator::Communicator;
use crate::job::{Job, Pieces};
use crate::memory::Region;
use crate::numbers::Numbers;
use crate::operation::{Form, Header, Kind, Operator, digest};
use sheave_base::{Error, ErrorKind, Rank, Result, Work};
use sheave_tensor::{Dtype, Tensor};
use std::ops::Range;

impl Communicator {
    /// Ends when every member has entered.
    pub fn barrier(&self) -> Work<()> {
        self.start(self.header(Kind::Barrier, Dtype::U8, 0), Ok(Job::nothing()))
    }

    /// Root's tensor goes to all, who give one of the same length and dtype.
    pub fn broadcast(&self, tensor: &Tensor, root: Rank) -> Work<()> {
        let kind = Kind::Broadcast;
        let job = || {
            let job = Job { input_bytes_max: Some(tensor.len_bytes()), ..Job::nothing() };
            Ok(match self.is(root)? {
                true => Job { input: Some(Region::reading(tensor, kind.name())?), ..job },
                false => Job { output: Some(Region::writing(tensor, kind.name())?), ..job },
            })
        };
        self.start(Header { root: root.0, ..self.header(kind, tensor.dtype(), tensor.elements()) }, job())
    }

    /// All inputs are reduced to root's output, which only root gives.
    pub fn reduce(&self, input: &Tensor, output: Option<&Tensor>, operator: Operator, root: Rank) -> Work<()> {
        let kind = Kind::Reduce;
        let job = || {
            operator.require(input.dtype())?;
            let (read, written) = self.rooted(kind, input, output, root, 1)?;
            let numbers = Some(Numbers::new(input.dtype(), operator, self.size()));
            Ok(Job { input: Some(read), output: written, numbers, pieces: None, input_bytes_max: None }.even(input))
        };
        let header = self.header(kind, input.dtype(), input.elements());
        self.start(Header { root: root.0, operator: Some(operator), ..header }, job())
    }

    /// All inputs are reduced to everybody's output. Both have the same dtype and length, and may be the same tensor.
    pub fn all_reduce(&self, input: &Tensor, output: &Tensor, operator: Operator) -> Work<()> {
        let kind = Kind::AllReduce;
        let job = || {
            operator.require(input.dtype())?;
            let (read, written) = pair(kind, input, output, input.elements(), true)?;
            let numbers = Some(Numbers::new(input.dtype(), operator, self.size()));
            Ok(Job::between(read, written, numbers, None).even(input))
        };
        let header = self.header(kind, input.dtype(), input.elements());
        self.start(Header { operator: Some(operator), ..header }, job())
    }

    /// All inputs, of the same length, one behind the other in root's output, which only root gives.
    pub fn gather(&self, input: &Tensor, output: Option<&Tensor>, root: Rank) -> Work<()> {
        let kind = Kind::Gather;
        let job = || {
            let (read, written) = self.rooted(kind, input, output, root, self.size())?;
            if written.as_ref().is_some_and(|written| written.overlaps(&read)) {
                return Err(overlap(kind));
            }
            Ok(Job { input: Some(read), output: written, ..Job::nothing() }.even(input))
        };
        self.start(Header { root: root.0, ..self.header(kind, input.dtype(), input.elements()) }, job())
    }

    /// All inputs, of the same length, one behind the other in everybody's output. The input may be this rank's part of
    /// the output.
    pub fn all_gather(&self, input: &Tensor, output: &Tensor) -> Work<()> {
        let lengths = vec![input.elements(); self.size() as usize];
        self.gather_all(Kind::AllGather, input, output, &lengths)
    }

    /// As [`Communicator::all_gather`], with as many elements from each rank as `lengths` says, which is the same
    /// everywhere.
    pub fn all_gather_v(&self, input: &Tensor, output: &Tensor, lengths: &[usize]) -> Work<()> {
        self.gather_all(Kind::AllGatherV, input, output, lengths)
    }

    fn gather_all(&self, kind: Kind, input: &Tensor, output: &Tensor, lengths: &[usize]) -> Work<()> {
        let rank = self.rank().0 as usize;
        let job = || {
            let received = self.pieces(kind, lengths, input.dtype())?;
            let total = received.last().map_or(0, |piece| piece.end) / input.dtype().size_bytes();
            if lengths[rank] != input.elements() {
                return Err(wrong_length(kind, "input", input.elements(), lengths[rank]));
            }
            let (read, written) = pair(kind, input, output, total, false)?;
            if read.overlaps(&written) && !read.is_same(&written.part(received[rank].clone())) {
                return Err(overlap(kind));
            }
            let input_bytes_max = received.iter().map(ExactSizeIterator::len).max();
            let pieces = Some(Pieces { sent: Vec::new(), received, differ: false });
            Ok(Job { input_bytes_max, ..Job::between(read, written, None, pieces) })
        };
        let header = match kind {
            Kind::AllGather => self.header(kind, input.dtype(), input.elements()),
            _ => Header {
                digest: digest(lengths.iter().map(|length| *length as u64)),
                ..self.header(kind, input.dtype(), 0)
            },
        };
        self.start(header, job())
    }

    /// Root's input, which only root gives, is cut into as many pieces as there are ranks, and each gets its own.
    pub fn scatter(&self, input: Option<&Tensor>, output: &Tensor, root: Rank) -> Work<()> {
        let kind = Kind::Scatter;
        let wanted = output.elements() * self.size() as usize;
        let job = || {
            let (read, written) = match (self.is(root)?, input) {
                (true, Some(input)) => {
                    if input.elements() != wanted {
                        return Err(wrong_length(kind, "input", input.elements(), wanted));
                    }
                    let (read, written) = pair(kind, input, output, output.elements(), false)?;
                    if read.overlaps(&written) {
                        return Err(overlap(kind));
                    }
                    (Some(read), written)
                }
                (true, None) => return Err(refused(kind, "the root gives an input")),
                (false, Some(_)) => return Err(refused(kind, "only the root gives an input")),
                (false, None) => (None, Region::writing(output, kind.name())?),
            };
            let input_bytes_max = Some(wanted * output.dtype().size_bytes());
            Ok(Job { input: read, output: Some(written), input_bytes_max, ..Job::nothing() })
        };
        self.start(Header { root: root.0, ..self.header(kind, output.dtype(), output.elements()) }, job())
    }

    /// All inputs are reduced and cut into as many pieces as there are ranks; each rank's output gets its own.
    pub fn reduce_scatter(&self, input: &Tensor, output: &Tensor, operator: Operator) -> Work<()> {
        let kind = Kind::ReduceScatter;
        let wanted = output.elements() * self.size() as usize;
        let job = || {
            operator.require(input.dtype())?;
            if input.elements() != wanted {
                return Err(wrong_length(kind, "input", input.elements(), wanted));
            }
            let (read, written) = pair(kind, input, output, output.elements(), false)?;
            let at = written.len_bytes() * self.rank().0 as usize;
            if read.overlaps(&written) && !written.is_same(&read.part(at..at + written.len_bytes())) {
                return Err(overlap(kind));
            }
            let numbers = Some(Numbers::new(output.dtype(), operator, self.size()));
            Ok(Job::between(read, written, numbers, None).even(input))
        };
        let header = self.header(kind, output.dtype(), output.elements());
        self.start(Header { operator: Some(operator), ..header }, job())
    }

    /// Input and output are cut into as many pieces as there are ranks: piece i of rank j's input becomes piece j of
    /// rank i's output. Both may be the same tensor.
    pub fn all_to_all(&self, input: &Tensor, output: &Tensor) -> Work<()> {
        let kind = Kind::AllToAll;
        let size = self.size() as usize;
        let (count, rest) = (input.elements() / size, input.elements() % size);
        let lengths = vec![count; size];
        let job = || match rest {
            0 => Ok(self.exchanged(kind, [input, output], [&lengths, &lengths], false)?.even(input)),
            _ => {
                let what = format!("an input of {} elements cannot be cut into {size} pieces", input.elements());
                Err(refused(kind, what))
            }
        };
        self.start(self.header(kind, input.dtype(), count), job())
    }

    /// As [`Communicator::all_to_all`], with `sent[i]` elements to rank i and `received[j]` from rank j. What one sends
    /// and the other expects is compared before it moves.
    pub fn all_to_all_v(&self, input: &Tensor, sent: &[usize], output: &Tensor, received: &[usize]) -> Work<()> {
        let kind = Kind::AllToAllV;
        self.start(self.header(kind, input.dtype(), 0), self.exchanged(kind, [input, output], [sent, received], true))
    }

    fn exchanged(
        &self,
        kind: Kind,
        [input, output]: [&Tensor; 2],
        [sent, received]: [&[usize]; 2],
        differ: bool,
    ) -> Result<Job> {
        let pieces = Pieces {
            sent: self.pieces(kind, sent, input.dtype())?,
            received: self.pieces(kind, received, input.dtype())?,
            differ,
        };
        let total = |pieces: &[Range<usize>]| pieces.last().map_or(0, |piece| piece.end) / input.dtype().size_bytes();
        if input.elements() != total(&pieces.sent) {
            return Err(wrong_length(kind, "input", input.elements(), total(&pieces.sent)));
        }
        let (read, written) = pair(kind, input, output, total(&pieces.received), false)?;
        if read.overlaps(&written) && !read.is_same(&written) {
            return Err(overlap(kind));
        }
        if read.overlaps(&written) && sent.get(self.rank().0 as usize) != received.get(self.rank().0 as usize) {
            return Err(wrong_length(kind, "own piece", sent.len(), received.len()));
        }
        Ok(Job::between(read, written, None, Some(pieces)))
    }

    pub(crate) fn header(&self, kind: Kind, dtype: Dtype, count: usize) -> Header {
        Header {
            kind,
            operator: None,
            dtype,
            root: 0,
            form: Form::One,
            tensors: 0,
            count: count as u64,
            digest: 0,
            table: self.state().hub.table_digest,
            rank: self.rank().0,
            part: 0,
        }
    }

    /// Whether this rank is the root.
    pub(crate) fn is(&self, root: Rank) -> Result<bool> {
        if root.0 < self.size() {
            return Ok(root == self.rank());
        }
        let what = format!("root {root} is outside a group of {}", self.size());
        Err(Error::new(ErrorKind::InvalidArgument, what))
    }

    /// The regions of an operation with an output at the root alone, `times` as long as the input.
    fn rooted(
        &self,
        kind: Kind,
        input: &Tensor,
        output: Option<&Tensor>,
        root: Rank,
        times: u32,
    ) -> Result<(Region, Option<Region>)> {
        match (self.is(root)?, output) {
            (true, Some(output)) => {
                let (input, output) = pair(kind, input, output, input.elements() * times as usize, times == 1)?;
                Ok((input, Some(output)))
            }
            (true, None) => Err(refused(kind, "the root gives an output")),
            (false, Some(_)) => Err(refused(kind, "only the root gives an output")),
            (false, None) => Ok((Region::reading(input, kind.name())?, None)),
        }
    }

    /// Where each rank's elements lie, in bytes.
    pub(crate) fn pieces(&self, kind: Kind, lengths: &[usize], dtype: Dtype) -> Result<Vec<Range<usize>>> {
        if lengths.len() != self.size() as usize {
            let what = format!("{} lengths were given for {} ranks", lengths.len(), self.size());
            return Err(refused(kind, what));
        }
        let mut end = 0_usize;
        let piece = |length: &usize| {
            let start = end;
            let bytes = length.checked_mul(dtype.size_bytes());
            end = bytes.and_then(|bytes| start.checked_add(bytes)).ok_or_else(|| refused(kind, "lengths too large"))?;
            Ok(start..end)
        };
        lengths.iter().map(piece).collect()
    }

    fn start(&self, header: Header, job: Result<Job>) -> Work<()> {
        match job {
            Ok(job) => self.state().start(header, job, self.conditions()),
            Err(error) => {
                let error = error.operation(header.kind.name()).group(self.state().group.label());
                Work::ready(header.kind.name(), Err(error))
            }
        }
    }
}

impl Job {
    fn between(input: Region, output: Region, numbers: Option<Numbers>, pieces: Option<Pieces>) -> Self {
        Self { input: Some(input), output: Some(output), numbers, pieces, input_bytes_max: None }
    }

    /// An operation in which all ranks have inputs of the same length.
    fn even(self, input: &Tensor) -> Self {
        Self { input_bytes_max: Some(input.len_bytes()), ..self }
    }
}

fn refused(kind: Kind, what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidArgument, what).operation(kind.name())
}

fn overlap(kind: Kind) -> Error {
    refused(kind, "input and output overlap").hint("give the same tensor or one that lies elsewhere")
}

fn wrong_length(kind: Kind, which: &str, elements: usize, wanted: usize) -> Error {
    refused(kind, format!("the {which} has {elements} elements where {wanted} are needed"))
}

/// Input and output of the same dtype, the latter of `wanted` elements. If they `may_be_same`, they overlap only if
/// they are; otherwise the caller looks.
fn pair(kind: Kind, input: &Tensor, output: &Tensor, wanted: usize, may_be_same: bool) -> Result<(Region, Region)> {
    if input.dtype() != output.dtype() {
        let what = format!("the input is {} and the output {}", input.dtype(), output.dtype());
        return Err(refused(kind, what));
    }
    if output.elements() != wanted {
        return Err(wrong_length(kind, "output", output.elements(), wanted));
    }
    let (read, written) = Region::pair(input, output, kind.name())?;
    if may_be_same && read.overlaps(&written) && !read.is_same(&written) {
        return Err(overlap(kind));
    }
    Ok((read, written))
}
