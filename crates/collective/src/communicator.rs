//! The operations of a group, as its members call them.

use crate::algorithm::pairwise::Pieces;
use crate::algorithm::{barrier, doubling, pairwise, ring, tree};
use crate::exchange::{Exchange, entered};
use crate::group::{State, Terms};
use crate::hub::{Hub, Known};
use crate::memory::Region;
use crate::numbers::Numbers;
use crate::operation::{Form, Header, Kind, Operator, digest};
use crate::table::{Algorithm, Table};
use sheave_base::{Error, ErrorKind, NodeId, Rank, Result, Work, limits};
use sheave_mesh::{Group, Mesh};
use sheave_tensor::{Dtype, Tensor};
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Groups that one node has made for operations: more are a leak.
const GROUPS_MAX: usize = 4096;

/// Collective operations on one node of a mesh: where its groups come from. Clones are handles to the same.
///
/// ```
/// use sheave_collective::{Collectives, Operator};
/// use sheave_mesh::{Config, Expected, Mesh, Role};
/// use sheave_tensor::Tensor;
/// # use sheave_base::config::Endpoint;
/// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
/// # let secret = sheave_base::Secret::new(b"only this example knows it")?;
/// # let secret = Some(sheave_base::secret::Resolved { secret, source: "an example".into() });
/// # let root = Endpoint { host: "127.0.0.1".into(), port };
/// let rank = |rank: u32| {
///     let mut config = Config::new(Role::Rank, Some(rank), Expected::ranks(2), root.clone());
///     # config.node.secret = secret.clone();
///     std::thread::spawn(move || {
///         let mesh = Mesh::join(config)?;
///         let world = Collectives::new(&mesh)?.group(&mesh.world())?;
///         let tensor = Tensor::from_slice(&[rank as f32, 1.0], [2])?;
///         world.all_reduce(&tensor, &tensor, Operator::Sum).wait()?;
///         assert_eq!(tensor.to_vec::<f32>()?, [1.0, 2.0]);
///         mesh.finish()
///     })
/// };
/// let (one, other) = (rank(0), rank(1));
/// one.join().unwrap()?;
/// other.join().unwrap()?;
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone)]
pub struct Collectives(Arc<Hub>);

impl Collectives {
    /// Makes them, with the default table. Once for each node.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if this node has made them before.
    pub fn new(mesh: &Mesh) -> Result<Self> {
        Self::with_table(mesh, Table::default())
    }

    /// As [`Collectives::new`], with a table of algorithms that all members must have.
    ///
    /// # Errors
    ///
    /// As [`Collectives::new`].
    pub fn with_table(mesh: &Mesh, table: Table) -> Result<Self> {
        Hub::new(mesh, table).map(Self)
    }

    /// The operations of a group. Nobody else is asked. Handles of the same group share its sequence numbers.
    ///
    /// # Errors
    ///
    /// `LimitExceeded` for too many groups. A group with a dead member is made, and its operations fail.
    pub fn group(&self, group: &Group) -> Result<Communicator> {
        Communicator::of(&self.0, group)
    }

    /// The table by which algorithms are chosen.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.0.table
    }
}

impl std::fmt::Debug for Collectives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collectives").finish_non_exhaustive()
    }
}

/// The operations of one group. Clones are handles to the same group.
///
/// **Calls.** All members make the same calls in the same order. Each call returns a [`Work`] at once: `wait` on it
/// blocks until this rank's part is done, from any thread. Several may be in flight; they are numbered in the order of
/// the calls and end independently. Dropping a work does not end its operation. Ranks are ranks of the group.
///
/// **Tensors** are flat: shapes do not matter, numbers of elements do. They are borrowed until the work ends: nobody
/// may write what an operation reads, nor touch what it writes (`BufferInUse`). Input and output may be the same tensor
/// where both have the same length; otherwise they must not overlap. Operations without an operator carry every dtype.
///
/// **Errors.** Wrong arguments are refused on the spot, and then this rank has not entered. Whatever fails later breaks
/// the group, on all members: `Mismatch` that shows both sides when ranks disagree, `PeerLost` that names who died,
/// `DeadlineExceeded` that names who is missing, `Cancelled`. Every later operation of the group fails too. After an
/// error outputs are undefined; inputs are untouched unless they are the output. Whoever gets no error has the whole
/// result, and every member had entered and meant the same.
///
/// **Waiting** has no limit while all members live, unless [`Communicator::within`] sets one; after 10 s it says whom
/// it waits for.
#[derive(Clone)]
pub struct Communicator {
    state: Arc<State>,
    limit: Option<Duration>,
}

impl Communicator {
    pub(crate) fn of(hub: &Arc<Hub>, group: &Group) -> Result<Self> {
        let mut groups = hub.groups.lock();
        if let Some(state) = groups.get(&group.id()).and_then(|known| known.state.upgrade()) {
            return Ok(Self { state, limit: None });
        }
        if groups.len() >= GROUPS_MAX {
            let what = format!("this node has made {GROUPS_MAX} groups for collective operations");
            return Err(Error::new(ErrorKind::LimitExceeded, what).operation("group"));
        }
        let begun = groups.get(&group.id()).map_or_else(Arc::default, |known| Arc::clone(&known.begun));
        let state = State::new(Arc::clone(hub), group.clone(), Arc::clone(&begun));
        groups.insert(group.id(), Known { state: Arc::downgrade(&state), begun });
        drop(groups);
        // What broke it in between was told to those that were known.
        state.look();
        Ok(Self { state, limit: None })
    }

    /// This group, with operations that end after `limit` if they have not ended before. That breaks the group.
    #[must_use]
    pub fn within(&self, limit: Duration) -> Self {
        Self { state: Arc::clone(&self.state), limit: Some(limit) }
    }

    /// The mesh's group.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.state.group
    }

    /// This node's rank in the group.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.state.group.rank()
    }

    /// How many members the group has.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.state.size()
    }

    /// Why its operations fail, if they do.
    #[must_use]
    pub fn broken(&self) -> Option<Error> {
        self.state.broken().cloned().or_else(|| self.state.group.broken())
    }

    /// The table by which algorithms are chosen.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.state.hub.table
    }

    pub(crate) fn state(&self) -> &Arc<State> {
        &self.state
    }

    pub(crate) fn limit(&self) -> Option<Duration> {
        self.limit
    }

    fn mesh(&self) -> Result<Mesh> {
        self.state.hub.mesh().ok_or_else(|| Error::new(ErrorKind::Closed, "this node has left the mesh"))
    }

    /// The group of some members, in this order; each of them calls it. Nobody is asked.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the ranks are not distinct ranks of this group with this one among them; what
    /// [`Mesh::group`] says.
    pub fn subgroup(&self, label: &str, ranks: &[Rank]) -> Result<Self> {
        let node = |rank: &Rank| {
            let what = || format!("rank {rank} is outside a group of {}", self.size());
            self.state.group.node(*rank).ok_or_else(|| Error::new(ErrorKind::InvalidArgument, what()))
        };
        let nodes = ranks.iter().map(node).collect::<Result<Vec<NodeId>>>()?;
        Self::of(&self.state.hub, &self.mesh()?.group(label, &nodes)?)
    }

    /// The group of those who give the same colour, in the order of their keys and then of their ranks; none for those
    /// who give none. Every member calls it; blocks until all have.
    ///
    /// # Errors
    ///
    /// As every operation.
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>> {
        let own = [color.map_or(-1, i64::from), key];
        let input = Tensor::from_slice(&own, [2])?;
        let all = Tensor::private(Dtype::I64, [2 * u64::from(self.size())])?;
        let number = self.mesh()?.next_number(&format!("split {}", self.state.group.id()));
        self.all_gather(&input, &all).wait()?;
        let Some(color) = color else { return Ok(None) };
        let told = all.to_vec::<i64>()?;
        let mut members: Vec<(i64, u32)> = (0..self.size())
            .zip(told.chunks_exact(2))
            .filter(|(_, told)| told[0] == i64::from(color))
            .map(|(rank, told)| (told[1], rank))
            .collect();
        members.sort_unstable();
        let ranks: Vec<Rank> = members.into_iter().map(|(_, rank)| Rank(rank)).collect();
        let label = format!("{}/split {number}/{color}", self.state.group.label());
        self.subgroup(&label, &ranks).map(Some)
    }

    /// The group of the survivors after a death, once all agree who they are. Blocks until then.
    ///
    /// # Errors
    ///
    /// As [`Group::shrink`].
    pub fn shrink(&self) -> Result<Self> {
        self.state.await_verdict(Instant::now() + limits::LIVENESS_TIMEOUT);
        Self::of(&self.state.hub, &self.state.group.shrink()?)
    }

    /// Ends when every member has entered.
    pub fn barrier(&self) -> Work<()> {
        let header = self.header(Kind::Barrier, Dtype::U8, 0);
        self.start(&header, true, |exchange| async move { barrier::run(&exchange).await })
    }

    /// Root's tensor goes to all, who give one of the same length and dtype.
    pub fn broadcast(&self, tensor: &Tensor, root: Rank) -> Work<()> {
        let kind = Kind::Broadcast;
        let region = || match self.is(root)? {
            true => Region::reading(tensor, kind.name()),
            false => Region::writing(tensor, kind.name()),
        };
        let header = Header { root: root.0, ..self.header(kind, tensor.dtype(), tensor.elements()) };
        self.with(kind, region(), |region| {
            self.start(&header, false, |exchange| async move { tree::broadcast(&exchange, &region).await })
        })
    }

    /// All inputs are reduced to root's output, which only root gives.
    pub fn reduce(&self, input: &Tensor, output: Option<&Tensor>, operator: Operator, root: Rank) -> Work<()> {
        let kind = Kind::Reduce;
        let regions = || {
            operator.require(input.dtype())?;
            self.rooted(kind, input, output, root, 1)
        };
        let header = self.header(kind, input.dtype(), input.elements());
        let header = Header { root: root.0, operator: Some(operator), ..header };
        let numbers = Numbers::new(input.dtype(), operator, self.size());
        self.with(kind, regions(), |(input, output)| {
            self.start(&header, false, move |exchange| async move {
                tree::reduce(&exchange, numbers, &input, output.as_ref()).await
            })
        })
    }

    /// All inputs are reduced to everybody's output. Both have the same dtype and length, and may be the same tensor.
    pub fn all_reduce(&self, input: &Tensor, output: &Tensor, operator: Operator) -> Work<()> {
        let kind = Kind::AllReduce;
        let regions = || {
            operator.require(input.dtype())?;
            pair(kind, input, output, input.elements(), true)
        };
        let header = self.header(kind, input.dtype(), input.elements());
        let header = Header { operator: Some(operator), ..header };
        let numbers = Numbers::new(input.dtype(), operator, self.size());
        let algorithm = self.table().choose(kind, self.size(), input.len_bytes() as u64);
        self.with(kind, regions(), |(input, output)| match algorithm {
            Algorithm::Doubling => self.start(&header, self.size() == 2, move |exchange| async move {
                doubling::all_reduce(&exchange, numbers, &input, &output).await
            }),
            _ => self.start(&header, false, move |exchange| async move {
                ring::all_reduce(&exchange, numbers, &input, &output).await
            }),
        })
    }

    /// All inputs, of the same length, one behind the other in root's output, which only root gives.
    pub fn gather(&self, input: &Tensor, output: Option<&Tensor>, root: Rank) -> Work<()> {
        let kind = Kind::Gather;
        let header = Header { root: root.0, ..self.header(kind, input.dtype(), input.elements()) };
        let regions = || {
            let (input, output) = self.rooted(kind, input, output, root, self.size())?;
            if output.as_ref().is_some_and(|output| output.overlaps(&input)) {
                return Err(overlap(kind));
            }
            Ok((input, output))
        };
        self.with(kind, regions(), |(input, output)| {
            self.start(
                &header,
                false,
                move |exchange| async move { tree::gather(&exchange, &input, output.as_ref()).await },
            )
        })
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
        let regions = || {
            let pieces = self.pieces(kind, lengths, input.dtype())?;
            let total = pieces.last().map_or(0, |piece| piece.end) / input.dtype().size_bytes();
            if lengths[rank] != input.elements() {
                return Err(wrong_length(kind, "input", input.elements(), lengths[rank]));
            }
            let (input, output) = pair(kind, input, output, total, false)?;
            let own = output.part(pieces[rank].clone());
            if input.overlaps(&output) && !(input.is_same(&own)) {
                return Err(overlap(kind));
            }
            Ok((input, output, pieces))
        };
        let header = match kind {
            Kind::AllGather => self.header(kind, input.dtype(), input.elements()),
            _ => Header {
                digest: digest(lengths.iter().map(|length| *length as u64)),
                ..self.header(kind, input.dtype(), 0)
            },
        };
        self.with(kind, regions(), |(input, output, pieces)| {
            self.start(&header, false, move |exchange| async move {
                ring::all_gather(&exchange, &input, &output, &pieces).await
            })
        })
    }

    /// Root's input, which only root gives, is cut into as many pieces as there are ranks, and each gets its own.
    pub fn scatter(&self, input: Option<&Tensor>, output: &Tensor, root: Rank) -> Work<()> {
        let kind = Kind::Scatter;
        let regions = || {
            let is_root = self.is(root)?;
            let output_region = || Region::writing(output, kind.name());
            match (is_root, input) {
                (true, Some(input)) => {
                    let wanted = output.elements() * self.size() as usize;
                    if input.elements() != wanted {
                        return Err(wrong_length(kind, "input", input.elements(), wanted));
                    }
                    let (input, output) = pair(kind, input, output, output.elements(), false)?;
                    if input.overlaps(&output) {
                        return Err(overlap(kind));
                    }
                    Ok((Some(input), output))
                }
                (true, None) => Err(refused(kind, "the root gives an input")),
                (false, Some(_)) => Err(refused(kind, "only the root gives an input")),
                (false, None) => Ok((None, output_region()?)),
            }
        };
        let header = Header { root: root.0, ..self.header(kind, output.dtype(), output.elements()) };
        self.with(kind, regions(), |(input, output)| {
            self.start(&header, false, move |exchange| async move {
                tree::scatter(&exchange, input.as_ref(), &output).await
            })
        })
    }

    /// All inputs are reduced and cut into as many pieces as there are ranks; each rank's output gets its own.
    pub fn reduce_scatter(&self, input: &Tensor, output: &Tensor, operator: Operator) -> Work<()> {
        let kind = Kind::ReduceScatter;
        let wanted = output.elements() * self.size() as usize;
        let regions = || {
            operator.require(input.dtype())?;
            if input.elements() != wanted {
                return Err(wrong_length(kind, "input", input.elements(), wanted));
            }
            let (input, output) = pair(kind, input, output, output.elements(), false)?;
            let at = output.len_bytes() * self.rank().0 as usize;
            if input.overlaps(&output) && !output.is_same(&input.part(at..at + output.len_bytes())) {
                return Err(overlap(kind));
            }
            Ok((input, output))
        };
        let header = self.header(kind, output.dtype(), output.elements());
        let header = Header { operator: Some(operator), ..header };
        let numbers = Numbers::new(output.dtype(), operator, self.size());
        self.with(kind, regions(), |(input, output)| {
            self.start(&header, false, move |exchange| async move {
                ring::reduce_scatter(&exchange, numbers, &input, &output).await
            })
        })
    }

    /// Input and output are cut into as many pieces as there are ranks: piece i of rank j's input becomes piece j of
    /// rank i's output. Both may be the same tensor.
    pub fn all_to_all(&self, input: &Tensor, output: &Tensor) -> Work<()> {
        let kind = Kind::AllToAll;
        let size = self.size() as usize;
        let (count, rest) = (input.elements() / size, input.elements() % size);
        let lengths = vec![count; size];
        let regions = || match rest {
            0 => self.exchanged(kind, [input, output], [&lengths, &lengths], false),
            _ => {
                let what = format!("an input of {} elements cannot be cut into {size} pieces", input.elements());
                Err(refused(kind, what))
            }
        };
        self.exchange(self.header(kind, input.dtype(), count), regions())
    }

    /// As [`Communicator::all_to_all`], with `sent[i]` elements to rank i and `received[j]` from rank j. What one sends
    /// and the other expects is compared before it moves.
    pub fn all_to_all_v(&self, input: &Tensor, sent: &[usize], output: &Tensor, received: &[usize]) -> Work<()> {
        let kind = Kind::AllToAllV;
        let regions = || self.exchanged(kind, [input, output], [sent, received], true);
        self.exchange(self.header(kind, input.dtype(), 0), regions())
    }

    fn exchanged(
        &self,
        kind: Kind,
        [input, output]: [&Tensor; 2],
        [sent, received]: [&[usize]; 2],
        differ: bool,
    ) -> Result<(Region, Region, Pieces)> {
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
        Ok((read, written, pieces))
    }

    fn exchange(&self, header: Header, regions: Result<(Region, Region, Pieces)>) -> Work<()> {
        self.with(header.kind, regions, |(input, output, pieces)| {
            self.start(&header, false, move |exchange| async move {
                pairwise::run(&exchange, &input, &output, &pieces).await
            })
        })
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
            table: self.table().digest(),
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
    fn pieces(&self, kind: Kind, lengths: &[usize], dtype: Dtype) -> Result<Vec<Range<usize>>> {
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

    fn with<T>(&self, kind: Kind, regions: Result<T>, start: impl FnOnce(T) -> Work<()>) -> Work<()> {
        match regions {
            Ok(regions) => start(regions),
            Err(error) => {
                let error = error.operation(kind.name()).group(self.state.group.label());
                Work::ready(kind.name(), Err(error))
            }
        }
    }

    pub(crate) fn start<F>(&self, header: &Header, opens: bool, run: impl FnOnce(Arc<Exchange>) -> F) -> Work<()>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let terms = Terms { operation: header.name(), limit: self.limit, is_collective: true };
        let rank = self.rank();
        self.state.begin(terms, drop, |sequence, awaited| {
            let exchange = Arc::new(Exchange::new(Arc::clone(&self.state), *header, sequence, awaited));
            let steps = run(Arc::clone(&exchange));
            Box::pin(async move { entered(&exchange, opens, steps).await.map(|()| rank) })
        })
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Communicator").field("group", &self.state.group).finish_non_exhaustive()
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
