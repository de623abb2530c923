//! Operations that take or give a list of one tensor for each rank, instead of one tensor that holds them all.
//!
//! On the wire they are the operations on whole tensors: members may give either form to the same gather, scatter or
//! reduce-scatter. What differs is this rank's memory. The algorithms want one contiguous piece of it, so a list whose
//! tensors do not follow each other in one buffer is packed into scratch memory before this rank enters, or unpacked
//! from there when the operation has ended: one copy of each piece, from or to its tensor, before the work completes,
//! and not within the call where that takes long. A list whose tensors do follow each other is used where it lies. The
//! scratch memory comes from the arena while that has room, where peers on this host reach it without a window.
//!
//! **Lengths.** An all-gather into tensors of one length is [`Kind::AllGather`], into other ones
//! [`Kind::AllGatherV`], whose header carries the digest of all lengths; an all-to-all is always [`Kind::AllToAllV`],
//! since only the two ends of a piece know its length. Gather, scatter and reduce-scatter have one length.
//!
//! **Memory.** Outputs overlap no other output. A tensor that is read overlaps an output only where the documentation
//! of the operation says so: as the very same bytes of the same rank. Inputs that were packed are not read again; their
//! leases end with the operation all the same, so that what is in use does not depend on where the list lies.

use crate::communicator::Communicator;
use crate::job::{Job, Pieces};
use crate::lists::{Sharing, check_overlaps};
use crate::long::outside_calls;
use crate::memory::Region;
use crate::numbers::Numbers;
use crate::operation::{Header, Kind, Operator, digest};
use sheave_base::limits::{COLLECTIVE_CALL_BYTES_MAX, COLLECTIVE_TURN_BYTES};
use sheave_base::{Error, ErrorKind, Rank, Result, Work};
use sheave_tensor::{Dtype, Tensor};
use std::future::poll_fn;
use std::ops::Range;
use std::slice::from_ref;
use std::task::Poll;

/// The memory of one side of an operation: the tensors of a list, and the contiguous region that stands for them.
struct Side {
    tensors: Vec<Region>,
    whole: Region,
    is_scratch: bool,
}

impl Communicator {
    /// Gathers as [`Communicator::all_gather`], into a list: the input of rank i into output i, on every rank. Outputs
    /// may differ in length, which is the same on all ranks. The input may be this rank's own output.
    ///
    /// ```
    /// # use sheave_collective::Collectives;
    /// # use sheave_mesh::{Config, Expected, Mesh, Role};
    /// # use sheave_tensor::{Dtype, Tensor};
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let root = sheave_base::config::Endpoint { host: "127.0.0.1".into(), port };
    /// # let mut config = Config::new(Role::Rank, Some(0), Expected::ranks(1), root);
    /// # let secret = sheave_base::Secret::new(b"only this example knows it")?;
    /// # config.node.secret = Some(sheave_base::secret::Resolved { secret, source: "an example".into() });
    /// # let mesh = Mesh::join(config)?;
    /// let world = Collectives::new(&mesh)?.group(&mesh.world())?;
    /// let own = Tensor::from_slice(&[1.0_f32, 2.0], [2])?;
    /// let outputs = [Tensor::private(Dtype::F32, [2])?];
    /// world.all_gather_pieces(&own, &outputs).wait()?;
    /// assert_eq!(outputs[0].to_vec::<f32>()?, [1.0, 2.0]);
    /// # mesh.finish()?;
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    pub fn all_gather_pieces(&self, input: &Tensor, outputs: &[Tensor]) -> Work<()> {
        let lengths: Vec<usize> = outputs.iter().map(Tensor::elements).collect();
        let header = match lengths.iter().all(|length| *length == input.elements()) {
            true => self.header(Kind::AllGather, input.dtype(), input.elements()),
            false => Header {
                digest: digest(lengths.iter().map(|length| *length as u64)),
                ..self.header(Kind::AllGatherV, input.dtype(), 0)
            },
        };
        let kind = header.kind;
        self.start_pieces(header, || {
            self.check_count("outputs", outputs)?;
            alike("output", outputs, input.dtype(), None)?;
            let own = self.rank().0 as usize;
            if lengths[own] != input.elements() {
                return Err(wrong_length("output", own, lengths[own], input.elements()));
            }
            let (read, written) = self.hold(kind, from_ref(input), outputs, Sharing::Whole)?;
            let output = self.side(written)?;
            let received = self.pieces(kind, &lengths, input.dtype())?;
            let input_bytes_max = received.iter().map(ExactSizeIterator::len).max();
            let pieces = Some(Pieces { sent: Vec::new(), received, differ: false });
            let job = Job { pieces, ..Job::of(read.first(), Some(&output.whole), None, input_bytes_max) };
            // The input that lies in its place already may still be read there by a link.
            let mut after = output.unpacking();
            after.retain(|(_, to)| !read.iter().any(|input| input.is_same(to)));
            Ok((job, Around { after, held: [read, output.tensors].concat(), ..Around::default() }))
        })
    }

    /// Gathers as [`Communicator::gather`], into a list that only root gives: the input of rank i into output i. All
    /// have the same length.
    pub fn gather_pieces(&self, input: &Tensor, outputs: Option<&[Tensor]>, root: Rank) -> Work<()> {
        let kind = Kind::Gather;
        let header = Header { root: root.0, ..self.header(kind, input.dtype(), input.elements()) };
        self.start_pieces(header, || {
            match (self.is(root)?, outputs) {
                (true, None) => return Err(refused("the root gives a list of outputs")),
                (false, Some(_)) => return Err(refused("only the root gives outputs")),
                _ => {}
            }
            let bytes = Some(input.len_bytes());
            let Some(outputs) = outputs else {
                let read = Region::reading(input, kind.name())?;
                return Ok((Job::of(Some(&read), None, None, bytes), Around::default()));
            };
            self.check_count("outputs", outputs)?;
            alike("output", outputs, input.dtype(), Some(input.elements()))?;
            let (read, written) = self.hold(kind, from_ref(input), outputs, Sharing::Apart)?;
            let output = self.side(written)?;
            let job = Job::of(read.first(), Some(&output.whole), None, bytes);
            Ok((job, Around { after: output.unpacking(), held: [read, output.tensors].concat(), ..Around::default() }))
        })
    }

    /// Scatters as [`Communicator::scatter`], from a list that only root gives: input i goes to rank i. All have the
    /// length of the output.
    pub fn scatter_pieces(&self, inputs: Option<&[Tensor]>, output: &Tensor, root: Rank) -> Work<()> {
        let kind = Kind::Scatter;
        let header = Header { root: root.0, ..self.header(kind, output.dtype(), output.elements()) };
        self.start_pieces(header, || {
            match (self.is(root)?, inputs) {
                (true, None) => return Err(refused("the root gives a list of inputs")),
                (false, Some(_)) => return Err(refused("only the root gives inputs")),
                _ => {}
            }
            let bytes = Some(output.len_bytes() * self.size() as usize);
            let Some(inputs) = inputs else {
                let written = Region::writing(output, kind.name())?;
                return Ok((Job::of(None, Some(&written), None, bytes), Around::default()));
            };
            self.check_count("inputs", inputs)?;
            alike("input", inputs, output.dtype(), Some(output.elements()))?;
            let (read, written) = self.hold(kind, inputs, from_ref(output), Sharing::Apart)?;
            let input = self.side(read)?;
            let job = Job::of(Some(&input.whole), written.first(), None, bytes);
            Ok((job, Around { before: input.packing(), held: input.tensors, ..Around::default() }))
        })
    }

    /// Reduces as [`Communicator::reduce_scatter`], from a list: the inputs i of all ranks are reduced into the output
    /// of rank i. All have the length of the output, which may be this rank's own input.
    pub fn reduce_scatter_pieces(&self, inputs: &[Tensor], output: &Tensor, operator: Operator) -> Work<()> {
        let kind = Kind::ReduceScatter;
        let header = self.header(kind, output.dtype(), output.elements());
        self.start_pieces(Header { operator: Some(operator), ..header }, || {
            operator.require(output.dtype())?;
            self.check_count("inputs", inputs)?;
            alike("input", inputs, output.dtype(), Some(output.elements()))?;
            let (read, written) = self.hold(kind, inputs, from_ref(output), Sharing::Whole)?;
            let input = self.side(read)?;
            let numbers = Some(Numbers::new(output.dtype(), operator, self.size()));
            let job = Job::of(Some(&input.whole), written.first(), numbers, Some(input.whole.len_bytes()));
            Ok((job, Around { before: input.packing(), held: input.tensors, ..Around::default() }))
        })
    }

    /// Exchanges as [`Communicator::all_to_all_v`], between lists: input i goes to rank i, and output j comes from rank
    /// j. Lengths may differ; what one sends and the other expects is compared before it moves. Output i may be the
    /// same tensor as input i.
    pub fn all_to_all_pieces(&self, inputs: &[Tensor], outputs: &[Tensor]) -> Work<()> {
        let kind = Kind::AllToAllV;
        let dtype = inputs.first().map_or(Dtype::U8, Tensor::dtype);
        self.start_pieces(self.header(kind, dtype, 0), || {
            self.check_count("inputs", inputs)?;
            self.check_count("outputs", outputs)?;
            alike("input", inputs, dtype, None)?;
            alike("output", outputs, dtype, None)?;
            let own = self.rank().0 as usize;
            if inputs[own].elements() != outputs[own].elements() {
                return Err(wrong_length("output", own, outputs[own].elements(), inputs[own].elements()));
            }
            let pieces =
                |list: &[Tensor]| self.pieces(kind, &list.iter().map(Tensor::elements).collect::<Vec<_>>(), dtype);
            let (sent, received) = (pieces(inputs)?, pieces(outputs)?);
            let (read, written) = self.hold(kind, inputs, outputs, Sharing::Whole)?;
            let shares = read.iter().any(|input| written.iter().any(|output| input.overlaps(output)));
            // What is shared is read once, before anything is written.
            let input = if shares { self.scratch_side(read) } else { self.side(read) }?;
            let output = self.side(written)?;
            let pieces = Some(Pieces { sent, received, differ: true });
            let job = Job { pieces, ..Job::of(Some(&input.whole), Some(&output.whole), None, None) };
            let (before, after) = (input.packing(), output.unpacking());
            Ok((job, Around { before, after, held: [input.tensors, output.tensors].concat() }))
        })
    }

    /// Refuses a list that has not one tensor for each rank.
    fn check_count(&self, which: &str, tensors: &[Tensor]) -> Result<()> {
        if tensors.len() == self.size() as usize {
            return Ok(());
        }
        let what = format!("a list of {} {which} was given to a group of {} ranks", tensors.len(), self.size());
        Err(refused(what).hint("give one tensor for each rank"))
    }

    /// Takes hold of what is read and what is filled. A side of one tensor is this rank's own.
    fn hold(
        &self,
        kind: Kind,
        inputs: &[Tensor],
        outputs: &[Tensor],
        sharing: Sharing,
    ) -> Result<(Vec<Region>, Vec<Region>)> {
        let (read, written) = Region::lists(inputs, outputs, kind.name())?;
        let by_rank = |regions: &[Region]| match regions {
            [only] => {
                let mut all = vec![Region::none(); self.size() as usize];
                all[self.rank().0 as usize] = only.clone();
                all
            }
            list => list.to_vec(),
        };
        check_overlaps(&by_rank(&read), &by_rank(&written), |_| sharing)?;
        Ok((read, written))
    }

    /// The contiguous memory for a list: its own, if its tensors follow each other in one buffer, or else scratch.
    fn side(&self, tensors: Vec<Region>) -> Result<Side> {
        match Region::joined(&tensors) {
            Some(whole) => Ok(Side { tensors, whole, is_scratch: false }),
            None => self.scratch_side(tensors),
        }
    }

    fn scratch_side(&self, tensors: Vec<Region>) -> Result<Side> {
        let total = tensors.iter().map(Region::len_bytes).fold(0_usize, usize::saturating_add);
        let whole = Region::scratch(self.state().hub.node.arena(), total)?;
        Ok(Side { tensors, whole, is_scratch: true })
    }

    fn start_pieces(&self, header: Header, prepare: impl FnOnce() -> Result<(Job, Around)>) -> Work<()> {
        match prepare() {
            Ok((job, Around { before, after, held })) => {
                let after = async move {
                    let outcome = copy(after).await;
                    drop(held);
                    outcome
                };
                self.state().start_between(header, job, self.conditions(), Box::pin(copy(before)), Box::pin(after))
            }
            Err(error) => {
                let error = error.operation(header.name()).group(self.group().label());
                Work::ready(header.name(), Err(error))
            }
        }
    }
}

impl Side {
    /// From every tensor to its place in the contiguous memory; nothing if they lie there.
    fn packing(&self) -> Copies {
        let places = || ranges(&self.tensors).map(|range| self.whole.part(range));
        if self.is_scratch { self.tensors.iter().cloned().zip(places()).collect() } else { Copies::new() }
    }

    /// From the contiguous memory to every tensor.
    fn unpacking(&self) -> Copies {
        self.packing().into_iter().map(|(tensor, place)| (place, tensor)).collect()
    }
}

/// Copies, from where to where.
type Copies = Vec<(Region, Region)>;

/// Work that a rank does itself, beside the operation on contiguous memory.
#[derive(Default)]
struct Around {
    before: Copies,
    after: Copies,
    /// Buffers that are in use until the end.
    held: Vec<Region>,
}

/// Copies all, a turn at a time where that takes long, and not within a call.
async fn copy(copies: Copies) -> Result<()> {
    if copies.iter().map(|(from, _)| from.len_bytes()).sum::<usize>() > COLLECTIVE_CALL_BYTES_MAX {
        outside_calls().await;
    }
    let mut left = COLLECTIVE_TURN_BYTES;
    for (from, to) in &copies {
        let mut at = 0;
        while at < from.len_bytes() {
            let end = (at + left).min(from.len_bytes());
            to.part(at..end).copy_from(&from.part(at..end))?;
            left -= end - at;
            at = end;
            if left == 0 {
                left = COLLECTIVE_TURN_BYTES;
                pause().await;
            }
        }
    }
    Ok(())
}

/// Lets others have a turn.
async fn pause() {
    let mut is_over = false;
    poll_fn(|context| {
        if std::mem::replace(&mut is_over, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The places of a list's tensors in memory that holds one behind the other, in bytes.
fn ranges(tensors: &[Region]) -> impl Iterator<Item = Range<usize>> + '_ {
    tensors.iter().scan(0, |end, tensor| {
        let start = *end;
        *end += tensor.len_bytes();
        Some(start..*end)
    })
}

/// Refuses a tensor of another dtype, or of another length if there is one for all.
fn alike(which: &str, tensors: &[Tensor], dtype: Dtype, elements: Option<usize>) -> Result<()> {
    for (index, tensor) in tensors.iter().enumerate() {
        if tensor.dtype() != dtype {
            return Err(refused(format!("{which} {index} is {}; expected {dtype}", tensor.dtype())));
        }
        if let Some(wanted) = elements.filter(|wanted| *wanted != tensor.elements()) {
            return Err(wrong_length(which, index, tensor.elements(), wanted));
        }
    }
    Ok(())
}

fn refused(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidArgument, what)
}

fn wrong_length(which: &str, index: usize, elements: usize, wanted: usize) -> Error {
    refused(format!("{which} {index} has {elements} elements; expected {wanted}"))
}
