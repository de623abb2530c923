//! The functions that every worker has.

use super::descriptor::Operation;
use super::operations::{Moved, run};
use super::pairs::{Side, exchange};
use super::{Placement, Scope, local};
use crate::functions::{Arguments, Function};
use crate::held::Held;
use crate::shards;
use crate::worker::Worker;
use sheave_base::collections::HashMap;
use sheave_base::{Error, ErrorKind, Result};
use sheave_collective::Operator;
use sheave_tensor::{Dtype, Shape, Tensor};
use sheave_wire::Value;
use std::sync::LazyLock;
use std::time::Duration;

static ALL: LazyLock<HashMap<String, Function>> = LazyLock::new(|| {
    let functions = identity().into_iter().chain(moves()).chain(messages()).chain(terms()).chain(shards::functions());
    functions.map(|function| (function.name().to_owned(), function)).collect()
});

/// The built-in function of this name.
pub(crate) fn built_in(name: &str) -> Option<Function> {
    ALL.get(name).cloned()
}

fn identity() -> Vec<Function> {
    let number =
        |name: &str, number: fn(&Worker) -> Result<u32>| Function::typed(name, move |()| number(&Worker::current()?));
    vec![
        number("sheave.worker_id", |worker| Ok(worker.id)),
        number("sheave.local_id", |worker| Ok(worker.local_id())),
        number("sheave.group", |worker| Ok(worker.group())),
        number("sheave.rank_in_group", |worker| Ok(worker.id % worker.group_size())),
        number("sheave.workers", |worker| Ok(worker.workers)),
        number("sheave.groups", |worker| Ok(worker.groups)),
    ]
}

fn moves() -> Vec<Function> {
    let operation = |name: &str, operation: Operation| {
        Function::despite_poison(name, move |mut arguments| {
            let scope = take_scope(&mut arguments)?;
            join_in(scope, operation, None, arguments)
        })
    };
    vec![
        Function::new("sheave.empty", empty),
        Function::despite_poison("sheave.copy_to_first", copy_to_first),
        Function::despite_poison("sheave.copy_from_first", copy_from_first),
        operation("sheave.broadcast_from_first", Operation::Broadcast),
        operation("sheave.scatter_from_first", Operation::Scatter),
        operation("sheave.gather_to_first", Operation::Gather),
        operation("sheave.all_gather", Operation::AllGather),
        Function::despite_poison("sheave.all_reduce", |mut arguments| {
            let scope = take_scope(&mut arguments)?;
            let operator = take_operator(&mut arguments)?;
            join_in(scope, Operation::AllReduce, Some(operator), arguments)
        }),
    ]
}

fn messages() -> Vec<Function> {
    vec![
        Function::despite_poison("sheave.send_to_worker", |mut arguments| {
            let tensor = local::tensor(arguments.take_held(), local::SOURCE);
            let to = take_peer(&mut arguments)?;
            message(Side::Sends(to, tensor)).map(|_| Held::default())
        }),
        Function::despite_poison("sheave.recv_from_worker", |mut arguments| {
            let target = take_target(&mut arguments);
            let from = take_peer(&mut arguments)?;
            message(Side::Receives(from, target)).map(local::held)
        }),
        Function::despite_poison("sheave.recv_from_first", |mut arguments| {
            let target = take_target(&mut arguments);
            message(Side::Receives(peer(0)?, target)).map(local::held)
        }),
        Function::despite_poison("sheave.send_to_next_group", |mut arguments| {
            let tensor = local::tensor(arguments.take_held(), local::SOURCE);
            let next = neighbours()?.1.ok_or_else(|| at_the_end("next"))?;
            message(Side::Sends(next, tensor)).map(|_| Held::default())
        }),
        Function::despite_poison("sheave.recv_from_previous_group", |mut arguments| {
            let target = take_target(&mut arguments);
            let previous = neighbours()?.0.ok_or_else(|| at_the_end("previous"))?;
            message(Side::Receives(previous, target)).map(local::held)
        }),
        Function::despite_poison("sheave.pass_to_next_group", pass_to_next_group),
        Function::despite_poison("sheave.send_between", send_between),
    ]
}

fn terms() -> Vec<Function> {
    vec![
        Function::typed("sheave.limit_collectives", |(nanoseconds,): (Option<u64>,)| {
            Worker::current()?.communicators().limit(nanoseconds.map(Duration::from_nanos));
            Ok(())
        }),
        Function::typed("sheave.renew_collectives", |()| {
            Worker::current()?.communicators().renew();
            Ok(())
        }),
    ]
}

fn take_scope(arguments: &mut Arguments) -> Result<Scope> {
    Scope::from_name(&arguments.take::<String>()?)
}

fn take_operator(arguments: &mut Arguments) -> Result<Operator> {
    let name: String = arguments.take()?;
    let is_it = |operator: &Operator| operator.name() == name || *operator == Operator::Product && name == "prod";
    Operator::ALL.into_iter().find(is_it).ok_or_else(|| {
        let known: Vec<&str> = Operator::ALL.iter().map(|operator| operator.name()).collect();
        Error::new(ErrorKind::InvalidArgument, format!("operator \"{name}\"; expected one of {}", known.join(", ")))
    })
}

/// Another worker, by its number.
fn take_peer(arguments: &mut Arguments) -> Result<u32> {
    peer(arguments.take()?)
}

fn peer(number: u32) -> Result<u32> {
    let worker = Worker::current()?;
    if number < worker.workers && number != worker.id {
        return Ok(number);
    }
    let what = format!("worker {number}; expected another one than {} of {} workers", worker.id, worker.workers);
    Err(Error::new(ErrorKind::InvalidArgument, what))
}

/// The target that an operation is given, if there is one: none is made of no argument and of none.
fn take_target(arguments: &mut Arguments) -> Result<Option<Tensor>> {
    if arguments.left() == 0 {
        return Ok(None);
    }
    match arguments.take_held() {
        Ok(Held::Value(Value::None, _)) => Ok(None),
        held => local::target(held).map(Some),
    }
}

/// Runs an operation on a source and perhaps a target. Where a target is given it has to be there.
fn join_in(scope: Scope, operation: Operation, operator: Option<Operator>, mut arguments: Arguments) -> Result<Held> {
    let worker = Worker::current()?;
    let source = arguments.take_held().and_then(|held| held.read()).map_err(|error| error.context(local::SOURCE));
    let target = match arguments.left() {
        0 => Ok(None),
        _ => local::target(arguments.take_held()).map(Some),
    };
    let moved = run(worker.communicators(), scope, Moved { operation, operator, source, target })?;
    Ok(moved.map_or_else(Held::default, local::held))
}

fn empty(mut arguments: Arguments) -> Result<Held> {
    let (dimensions, dtype): (Vec<u64>, String) = (arguments.take()?, arguments.take()?);
    let placement = Placement::from_name(&arguments.take::<String>()?)?;
    let dtype = dtype_named(&dtype)?;
    let worker = Worker::current()?;
    if !placement.holds(worker.id, worker.group_size()) {
        return Ok(Held::default());
    }
    local::make(&worker.communicators().mesh()?, dtype, Shape::new(&dimensions)?).map(local::held)
}

fn copy_to_first(mut arguments: Arguments) -> Result<Held> {
    if Worker::current()?.id > 0 {
        return Ok(Held::default());
    }
    let source = local::tensor(arguments.take_held(), local::SOURCE)?;
    if arguments.left() == 0 {
        return Ok(local::held(source));
    }
    let target = local::target(arguments.take_held())?;
    local::copy(&source, &target)?;
    Ok(local::held(target))
}

fn copy_from_first(mut arguments: Arguments) -> Result<Held> {
    if Worker::current()?.id == 0 {
        let source = local::tensor(arguments.take_held(), local::SOURCE)?;
        local::copy(&source, &local::target(arguments.take_held())?)?;
    }
    Ok(Held::default())
}

/// The workers of the same rank in the groups before and behind this worker's.
fn neighbours() -> Result<(Option<u32>, Option<u32>)> {
    let worker = Worker::current()?;
    let size = worker.group_size();
    Ok((worker.id.checked_sub(size), Some(worker.id + size).filter(|next| *next < worker.workers)))
}

fn at_the_end(which: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("this worker's group has no {which} one"))
        .hint("look at the number of the group before")
}

/// One side of one transfer.
fn message(side: Side) -> Result<Tensor> {
    let mut moved = exchange(Worker::current()?.communicators(), vec![side]);
    moved.pop().unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, "a transfer without an outcome")))
}

fn pass_to_next_group(mut arguments: Arguments) -> Result<Held> {
    let worker = Worker::current()?;
    let (previous, next) = neighbours()?;
    let source = local::tensor(arguments.take_held(), local::SOURCE);
    let target = take_target(&mut arguments);
    // What comes may take the place of what goes, and one buffer is not both sent and filled.
    let mesh = worker.communicators().mesh()?;
    let source = source.and_then(|source| match &target {
        Ok(Some(target)) if local::is_shared(&source, target) => local::copied(&mesh, &source),
        _ => Ok(source),
    });
    let receives = previous.map(|previous| Side::Receives(previous, target));
    let sends = next.map(|next| Side::Sends(next, source));
    let is_receiver = receives.is_some();
    let mut moved = exchange(worker.communicators(), receives.into_iter().chain(sends).collect()).into_iter();
    let received = if is_receiver { moved.next().transpose() } else { Ok(None) };
    // What it sends may have failed too.
    moved.try_for_each(|sent| sent.map(drop)).and(received).map(|tensor| tensor.map_or_else(Held::default, local::held))
}

fn send_between(mut arguments: Arguments) -> Result<Held> {
    let worker = Worker::current()?;
    let from: u32 = arguments.take()?;
    let source = local::tensor(arguments.take_held(), local::SOURCE);
    let to: u32 = arguments.take()?;
    match worker.id {
        id if id == from => message(Side::Sends(peer(to)?, source)).map(|_| Held::default()),
        id if id == to => {
            let target = take_target(&mut arguments);
            message(Side::Receives(peer(from)?, target)).map(local::held)
        }
        _ => Ok(Held::default()),
    }
}

/// The dtype of that name, or of NumPy's name of it.
pub(crate) fn dtype_named(name: &str) -> Result<Dtype> {
    let numpy = [("float16", Dtype::F16), ("bfloat16", Dtype::Bf16), ("float32", Dtype::F32), ("float64", Dtype::F64)];
    let known = Dtype::from_name(name).or_else(|| numpy.iter().find(|(known, _)| *known == name).map(|known| known.1));
    let whole = || {
        let (is_signed, bits) = match name.strip_prefix("uint") {
            Some(bits) => (false, bits),
            None => (true, name.strip_prefix("int")?),
        };
        Dtype::from_name(&format!("{}{bits}", if is_signed { "i" } else { "u" }))
    };
    known.or_else(whole).ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument, format!("dtype \"{name}\"; expected the name of one, as f32 or float32"))
    })
}

/// A shape as a built-in function takes it.
pub(crate) fn shape_value(shape: &Shape) -> Value {
    Value::List(shape.dimensions().iter().map(|extent| Value::Int(extent.cast_signed())).collect())
}
