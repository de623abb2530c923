//! Operations of all workers of a scope, as one worker runs them.

use super::agree::{agree, not_alone};
use super::communicators::Communicators;
use super::descriptor::{Descriptor, Extent, Operation};
use super::{Scope, local};
use sheave_base::{Error, ErrorKind, Rank, Result};
use sheave_collective::{Communicator, Operator};
use sheave_tensor::{Dtype, Shape, Tensor};

/// The worker from which, or to which, tensors move.
const FIRST: Rank = Rank(0);

/// What a worker brings to an operation; what it need not bring is not looked at.
pub(crate) struct Moved {
    pub(crate) operation: Operation,
    pub(crate) operator: Option<Operator>,
    pub(crate) source: Result<Option<Tensor>>,
    /// Where the result goes; without one it is made.
    pub(crate) target: Result<Option<Tensor>>,
}

/// What it has, once that was looked at.
struct Ready {
    source: Option<Tensor>,
    target: Option<Tensor>,
    /// On the first: what the others get, if they have to make it.
    shape: Option<Shape>,
}

/// Runs an operation with the other workers of the scope. Returns the result, if this worker gets one. Blocks.
///
/// # Errors
///
/// `Mismatch` where the tensors of the workers do not fit, and what any of them has instead of its tensors: the same on
/// all, and nothing has moved. All else is the group's.
pub(crate) fn run(communicators: &Communicators, scope: Scope, moved: Moved) -> Result<Option<Tensor>> {
    let communicator = communicators.get(scope)?;
    let (operation, operator) = (moved.operation, moved.operator);
    let ready = ready(communicators, &communicator, moved);
    let told = describe(operation, operator, ready.as_ref().ok());
    let told = agree(&communicator, communicators.first(scope), told, ready.as_ref().err())?;
    // A worker without them has told so, and then all have failed.
    let mut ready = ready?;
    let moved = receive_shape(communicators, &communicator, &told, &mut ready)
        .and_then(|()| transfer(&communicator, operation, operator, &ready));
    not_alone(&communicator, moved)?;
    Ok(ready.target)
}

/// What this worker has for the operation.
fn ready(communicators: &Communicators, communicator: &Communicator, moved: Moved) -> Result<Ready> {
    let (operation, rank, size) = (moved.operation, communicator.rank().0, communicator.size());
    let missing = || Error::new(ErrorKind::InvalidArgument, "no tensor was given; expected one").context(local::SOURCE);
    let source = match operation.reads(rank) {
        true => Some(moved.source?.ok_or_else(missing)?),
        false => None,
    };
    let mut target = if operation.writes(rank) { moved.target? } else { None };
    let shape = source.as_ref().map(|source| result_shape(operation, source, size)).transpose()?;
    if let (Some(source), Some(operator)) = (&source, moved.operator) {
        step(operator, source.dtype()).require(source.dtype())?;
    }
    if let (Some(source), Some(shape), None, true) = (&source, &shape, &target, operation.writes(rank)) {
        target = Some(local::make(&communicators.mesh()?, source.dtype(), shape)?);
    }
    let may_be_same = matches!(operation, Operation::AllReduce | Operation::Broadcast);
    local::check_memory(source.as_ref(), target.as_ref(), may_be_same)?;
    Ok(Ready { source, target, shape })
}

/// The shape of a result that is made.
fn result_shape(operation: Operation, source: &Tensor, size: u32) -> Result<Shape> {
    match operation {
        Operation::Broadcast | Operation::AllReduce => Ok(source.shape().clone()),
        Operation::Scatter => local::part(source.shape(), source.elements() as u64 / u64::from(size), size),
        Operation::Gather | Operation::AllGather => local::stacked(source.shape(), size),
    }
}

fn describe(operation: Operation, operator: Option<Operator>, ready: Option<&Ready>) -> Descriptor {
    let extent = |tensor: fn(&Ready) -> Option<&Tensor>| ready.and_then(tensor).map(Extent::of);
    Descriptor {
        error_bytes: 0,
        operation,
        operator,
        source: extent(|ready| ready.source.as_ref()),
        target: extent(|ready| ready.target.as_ref()),
        dimensions: ready.and_then(|ready| ready.shape.as_ref()).map_or(0, |shape| shape.dimensions().len() as u64),
    }
}

/// Makes the target where only the first worker knows its shape, which it tells if any needs to hear it.
fn receive_shape(
    communicators: &Communicators,
    communicator: &Communicator,
    told: &[Descriptor],
    ready: &mut Ready,
) -> Result<()> {
    let Some(Descriptor { operation, dimensions, source: Some(given), .. }) = told.first() else { return Ok(()) };
    let lacks = |(rank, told): (usize, &Descriptor)| operation.writes(rank as u32) && told.target.is_none();
    if !told.iter().enumerate().any(lacks) {
        return Ok(());
    }
    let own = ready.shape.as_ref().filter(|_| communicator.rank() == FIRST);
    let numbers = match own {
        Some(shape) => Tensor::from_slice(shape.dimensions(), [*dimensions])?,
        None => Tensor::private(Dtype::U64, [*dimensions])?,
    };
    communicator.broadcast(&numbers, FIRST).join()?;
    if operation.writes(communicator.rank().0) && ready.target.is_none() {
        let shape = Shape::new(&numbers.to_vec::<u64>()?)?;
        ready.target = Some(local::make(&communicators.mesh()?, given.dtype, shape)?);
    }
    Ok(())
}

/// How elements are combined on the way: averages of whole numbers are divided afterwards.
fn step(operator: Operator, dtype: Dtype) -> Operator {
    if operator == Operator::Avg && dtype.is_integer() { Operator::Sum } else { operator }
}

fn transfer(
    communicator: &Communicator,
    operation: Operation,
    operator: Option<Operator>,
    ready: &Ready,
) -> Result<()> {
    let lost = || Error::new(ErrorKind::Internal, "a worker has agreed to an operation without its tensors");
    let source = || ready.source.as_ref().ok_or_else(lost);
    let target = || ready.target.as_ref().ok_or_else(lost);
    match operation {
        Operation::Broadcast if communicator.rank() == FIRST => {
            let sent = communicator.broadcast(source()?, FIRST);
            let copied = local::copy(source()?, target()?);
            sent.join().and(copied)
        }
        Operation::Broadcast => communicator.broadcast(target()?, FIRST).join(),
        Operation::Scatter => communicator.scatter(ready.source.as_ref(), target()?, FIRST).join(),
        Operation::Gather => communicator.gather(source()?, ready.target.as_ref(), FIRST).join(),
        Operation::AllGather => communicator.all_gather(source()?, target()?).join(),
        Operation::AllReduce => {
            let (source, target) = (source()?, target()?);
            let operator = operator.ok_or_else(lost)?;
            let step = step(operator, source.dtype());
            communicator.all_reduce(source, target, step).join()?;
            if step == operator { Ok(()) } else { local::divide(target, communicator.size()) }
        }
    }
}
