//! Lists of tensors in one operation.
//!
//! A list is one operation with one number, one entry and one header, whose digest is of the dtypes and lengths of all
//! its tensors: ranks that disagree find out before anything of another length moves. Its buckets go one after the
//! other through the same algorithms that single tensors take, chosen by the bucket's bytes; [`crate::buckets`] says
//! which tensors share one. So the first bucket's algorithm shows that everybody has entered, and the last one's end
//! that the result is whole. An empty list is a barrier.
//!
//! **Memory.** A packed bucket lies in memory of the operation's own, which no other bucket uses; what is sent from
//! there keeps it alive. Tensors of the list are read when their bucket is packed and filled when it is unpacked, or
//! are the bucket themselves. No two outputs overlap, and no output overlaps another tensor's input, so buckets do not
//! touch each other's bytes.

use crate::buckets::{Bucket, plan};
use crate::carrier::Carrier;
use crate::communicator::Communicator;
use crate::memory::Region;
use crate::numbers::Numbers;
use crate::operation::{Form, Header, Kind, Operator, digest};
use sheave_base::limits::LIST_TENSORS_MAX;
use sheave_base::{Error, ErrorKind, Rank, Result, Work};
use sheave_tensor::{Dtype, Tensor};
use std::future::Future;

/// A list as its operation works on it.
struct List {
    /// What is read; of a broadcast nothing.
    read: Vec<Region>,
    /// What is filled.
    written: Vec<Region>,
    buckets: Vec<Bucket>,
}

/// Which part of one of two regions of a tensor the other one may be, in bytes.
#[derive(Clone, Copy)]
pub(crate) enum Sharing {
    /// Nothing.
    Apart,
    /// All of it.
    Whole,
    /// The read one a part of the written one.
    ReadInWritten(usize),
    /// The written one a part of the read one.
    WrittenInRead(usize),
}

impl Communicator {
    /// As [`Communicator::all_reduce`], of every input into the output of the same index, in one operation. Lists have
    /// the same dtypes and lengths on all ranks. Small tensors of one dtype travel together, so that many of them take
    /// no more messages than one large one.
    ///
    /// ```
    /// # use sheave_collective::{Collectives, Operator};
    /// # use sheave_mesh::{Config, Expected, Mesh, Role};
    /// # use sheave_tensor::Tensor;
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let root = sheave_base::config::Endpoint { host: "127.0.0.1".into(), port };
    /// # let mut config = Config::new(Role::Rank, Some(0), Expected::ranks(1), root);
    /// # let secret = sheave_base::Secret::new(b"only this example knows it")?;
    /// # config.node.secret = Some(sheave_base::secret::Resolved { secret, source: "an example".into() });
    /// # let mesh = Mesh::join(config)?;
    /// let world = Collectives::new(&mesh)?.group(&mesh.world())?;
    /// let gradients = [Tensor::from_slice(&[1.0_f32, 2.0], [2])?, Tensor::from_slice(&[3.0_f64], [1])?];
    /// world.all_reduce_list(&gradients, &gradients, Operator::Avg).wait()?;
    /// assert_eq!(gradients[1].to_vec::<f64>()?, [3.0], "the average of one rank's");
    /// # mesh.finish()?;
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    pub fn all_reduce_list(&self, inputs: &[Tensor], outputs: &[Tensor], operator: Operator) -> Work<()> {
        let header = self.list_header(Kind::AllReduce, Some(operator), inputs);
        let list = || {
            inputs.iter().try_for_each(|input| operator.require(input.dtype()))?;
            self.list(&header, inputs, outputs, [1, 1], |_| Sharing::Whole)
        };
        self.start_list(&header, list(), move |mut carrier, list| async move {
            all_reduce(&mut carrier, operator, &list).await
        })
    }

    /// As [`Communicator::broadcast`], of every tensor of the list, in one operation.
    pub fn broadcast_list(&self, tensors: &[Tensor], root: Rank) -> Work<()> {
        let header = Header { root: root.0, ..self.list_header(Kind::Broadcast, None, tensors) };
        let list = || match self.is(root)? {
            true => self.list(&header, tensors, &[], [1, 1], |_| Sharing::Whole),
            false => self.list(&header, &[], tensors, [1, 1], |_| Sharing::Whole),
        };
        self.start_list(&header, list(), |mut carrier, list| async move { broadcast(&mut carrier, &list).await })
    }

    /// As [`Communicator::all_gather`], of every input into the output of the same index, in one operation.
    pub fn all_gather_list(&self, inputs: &[Tensor], outputs: &[Tensor]) -> Work<()> {
        let header = self.list_header(Kind::AllGather, None, inputs);
        let (size, rank) = (self.size() as usize, self.rank().0 as usize);
        let sharing = |len_bytes| Sharing::ReadInWritten(rank * len_bytes);
        let list = self.list(&header, inputs, outputs, [size, 1], sharing);
        self.start_list(&header, list, |mut carrier, list| async move { all_gather(&mut carrier, &list).await })
    }

    /// As [`Communicator::reduce_scatter`], of every input into the output of the same index, in one operation.
    pub fn reduce_scatter_list(&self, inputs: &[Tensor], outputs: &[Tensor], operator: Operator) -> Work<()> {
        let header = self.list_header(Kind::ReduceScatter, Some(operator), outputs);
        let (size, rank) = (self.size() as usize, self.rank().0 as usize);
        let list = || {
            inputs.iter().try_for_each(|input| operator.require(input.dtype()))?;
            let sharing = |len_bytes| Sharing::WrittenInRead(rank * len_bytes);
            self.list(&header, inputs, outputs, [1, size], sharing)
        };
        self.start_list(&header, list(), move |mut carrier, list| async move {
            reduce_scatter(&mut carrier, operator, &list).await
        })
    }

    /// What this rank means by an operation on a list of which each rank has such `tensors`.
    fn list_header(&self, kind: Kind, operator: Option<Operator>, tensors: &[Tensor]) -> Header {
        let numbers = |tensor: &Tensor| [u64::from(tensor.dtype().code()), tensor.elements() as u64];
        let total = tensors.iter().map(Tensor::elements).fold(0_usize, usize::saturating_add);
        Header {
            operator,
            form: Form::List,
            // Longer lists are refused.
            tensors: u16::try_from(tensors.len()).unwrap_or(u16::MAX),
            digest: digest(tensors.iter().flat_map(numbers)),
            ..self.header(kind, tensors.first().map_or(Dtype::U8, Tensor::dtype), total)
        }
    }

    /// Takes hold of a list, of which `times[0]` inputs are as long as `times[1]` outputs of the same index. A
    /// broadcast has one or the other.
    fn list(
        &self,
        header: &Header,
        inputs: &[Tensor],
        outputs: &[Tensor],
        times: [usize; 2],
        sharing: impl Fn(usize) -> Sharing,
    ) -> Result<List> {
        if header.kind != Kind::Broadcast {
            check_lengths(inputs, outputs, times)?;
        }
        let longest = inputs.len().max(outputs.len());
        if longest > LIST_TENSORS_MAX {
            let what = format!("a list of {longest} tensors; the limit is {LIST_TENSORS_MAX}");
            return Err(Error::new(ErrorKind::LimitExceeded, what).hint("cut the list into several"));
        }
        let (read, written) = Region::lists(inputs, outputs, header.name())?;
        check_overlaps(&read, &written, sharing)?;
        // What each rank gives or gets: the shorter one of both.
        let units = if times[1] > 1 || inputs.is_empty() { outputs } else { inputs };
        let buckets = plan(units.iter().map(|unit| (unit.dtype(), unit.len_bytes())), times[0] * times[1]);
        Ok(List { read, written, buckets })
    }

    fn start_list<F>(
        &self,
        header: &Header,
        list: Result<List>,
        run: impl FnOnce(Carrier, List) -> F + Send + 'static,
    ) -> Work<()>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        match list {
            Ok(list) => {
                let parts = list.buckets.len();
                self.state().start_parts(*header, parts, self.conditions(), |carrier| run(carrier, list))
            }
            Err(error) => {
                let error = error.operation(header.name()).group(self.group().label());
                Work::ready(header.name(), Err(error))
            }
        }
    }
}

async fn all_reduce(carrier: &mut Carrier, operator: Operator, list: &List) -> Result<()> {
    for bucket in &list.buckets {
        let numbers = Numbers::new(bucket.dtype, operator, carrier.size() as u32);
        if let Some(only) = bucket.only() {
            carrier.all_reduce(numbers, &list.read[only], &list.written[only]).await?;
            continue;
        }
        let memory = carrier.scratch(bucket.len_bytes())?;
        bucket.pack(&list.read, 0, &memory)?;
        carrier.all_reduce(numbers, &memory, &memory).await?;
        bucket.unpack(&memory, &list.written, 0)?;
    }
    Ok(())
}

async fn broadcast(carrier: &mut Carrier, list: &List) -> Result<()> {
    // The root's are read, all others' are filled.
    let (tensors, is_root) = if list.written.is_empty() { (&list.read, true) } else { (&list.written, false) };
    for bucket in &list.buckets {
        if let Some(only) = bucket.only() {
            carrier.broadcast(bucket.dtype, &tensors[only]).await?;
            continue;
        }
        let memory = carrier.scratch(bucket.len_bytes())?;
        if is_root {
            bucket.pack(tensors, 0, &memory)?;
        }
        carrier.broadcast(bucket.dtype, &memory).await?;
        if !is_root {
            bucket.unpack(&memory, tensors, 0)?;
        }
    }
    Ok(())
}

async fn all_gather(carrier: &mut Carrier, list: &List) -> Result<()> {
    for bucket in &list.buckets {
        if let Some(only) = bucket.only() {
            carrier.all_gather(bucket.dtype, &list.read[only], &list.written[only]).await?;
            continue;
        }
        let pieces = carrier.blocks(bucket.len_bytes());
        let memory = carrier.scratch(bucket.len_bytes() * pieces.len())?;
        let own = memory.part(pieces[carrier.rank()].clone());
        bucket.pack(&list.read, 0, &own)?;
        carrier.all_gather(bucket.dtype, &own, &memory).await?;
        for (rank, piece) in pieces.into_iter().enumerate() {
            bucket.unpack(&memory.part(piece), &list.written, rank)?;
        }
    }
    Ok(())
}

async fn reduce_scatter(carrier: &mut Carrier, operator: Operator, list: &List) -> Result<()> {
    for bucket in &list.buckets {
        let numbers = Numbers::new(bucket.dtype, operator, carrier.size() as u32);
        if let Some(only) = bucket.only() {
            carrier.reduce_scatter(numbers, &list.read[only], &list.written[only]).await?;
            continue;
        }
        let pieces = carrier.blocks(bucket.len_bytes());
        let memory = carrier.scratch(bucket.len_bytes() * pieces.len())?;
        for (rank, piece) in pieces.iter().enumerate() {
            bucket.pack(&list.read, rank, &memory.part(piece.clone()))?;
        }
        let own = memory.part(pieces[carrier.rank()].clone());
        carrier.reduce_scatter(numbers, &memory, &own).await?;
        bucket.unpack(&own, &list.written, 0)?;
    }
    Ok(())
}

fn refused(what: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, what)
}

fn check_lengths(inputs: &[Tensor], outputs: &[Tensor], times: [usize; 2]) -> Result<()> {
    if inputs.len() != outputs.len() {
        return Err(refused(format!("{} inputs and {} outputs", inputs.len(), outputs.len())));
    }
    for (index, (input, output)) in inputs.iter().zip(outputs).enumerate() {
        if input.dtype() != output.dtype() {
            let what = format!("input {index} is {} and output {index} {}", input.dtype(), output.dtype());
            return Err(refused(what));
        }
        if input.elements().checked_mul(times[0]) != output.elements().checked_mul(times[1]) {
            let (given, got) = (input.elements(), output.elements());
            let what = format!("input {index} has {given} elements and output {index} {got}, of {} ranks", {
                times[0].max(times[1])
            });
            return Err(refused(what));
        }
    }
    Ok(())
}

/// Refuses tensors that are filled and overlap each other or an input, unless that is their own and lies just where it
/// may.
pub(crate) fn check_overlaps(read: &[Region], written: &[Region], sharing: impl Fn(usize) -> Sharing) -> Result<()> {
    let mut order: Vec<usize> = (0..written.len()).filter(|index| written[*index].len_bytes() > 0).collect();
    order.sort_by_key(|index| written[*index].address());
    for pair in order.windows(2) {
        if written[pair[0]].overlaps(&written[pair[1]]) {
            return Err(refused(format!("tensors {} and {} overlap", pair[0], pair[1])));
        }
    }
    for (index, input) in read.iter().enumerate().filter(|(_, input)| input.len_bytes() > 0) {
        let end = input.address() + input.len_bytes();
        // Outputs do not overlap, so only a few of those before the input's end can reach into it.
        let before = order.partition_point(|at| written[*at].address() < end);
        for at in order[..before].iter().rev().copied().take_while(|at| written[*at].overlaps(input)) {
            if at != index || !lies_right(input, &written[at], &sharing) {
                return Err(refused(format!("output {at} overlaps input {index}"))
                    .hint("give the same tensor or one that lies elsewhere"));
            }
        }
    }
    Ok(())
}

fn lies_right(read: &Region, written: &Region, sharing: impl Fn(usize) -> Sharing) -> bool {
    let is_part = |part: &Region, whole: &Region, at: usize| part.is_same(&whole.part(at..at + part.len_bytes()));
    match sharing(read.len_bytes().min(written.len_bytes())) {
        Sharing::Apart => false,
        Sharing::Whole => read.is_same(written),
        Sharing::ReadInWritten(at) => is_part(read, written, at),
        Sharing::WrittenInRead(at) => is_part(written, read, at),
    }
}
