//! How the workers of an operation agree on it before anything moves.

use super::descriptor::{Descriptor, NUMBERS, check};
use sheave_base::planted::{self, Bug};
use sheave_base::{Error, ErrorKind, Result};
use sheave_collective::Communicator;
use sheave_tensor::{Dtype, Tensor};
use sheave_wire::{from_control, to_control};

/// Bytes that a worker tells of an error at most.
const ERROR_BYTES_MAX: usize = 16 << 10;

/// Tells the others what this worker is about to do, or why it cannot, and returns what all do. `first` is the number
/// of the worker of rank 0. Blocks until all have told.
///
/// # Errors
///
/// The same on all workers: that of the first worker that has one, or what does not fit. All else is the group's.
pub(super) fn agree(
    communicator: &Communicator,
    first: u32,
    own: Descriptor,
    failed: Option<&Error>,
) -> Result<Vec<Descriptor>> {
    if let Some(error) = failed.filter(|_| planted::strikes(Bug::MissingUntold)) {
        return Err(error.clone());
    }
    let error = failed.map(|error| written(error, ERROR_BYTES_MAX)).transpose()?.unwrap_or_default();
    let own = Descriptor { error_bytes: error.len() as u64, ..own };
    let size = communicator.size() as usize;
    let input = Tensor::from_slice(&own.encode(), [NUMBERS as u64])?;
    let output = Tensor::private(Dtype::U64, [(size * NUMBERS) as u64])?;
    let named = |error: Error| error.asked_for(own.operation.name());
    communicator.all_gather(&input, &output).join().map_err(named)?;
    let numbers = output.to_vec::<u64>()?;
    let told = numbers.chunks_exact(NUMBERS).map(Descriptor::decode).collect::<Result<Vec<_>>>()?;
    if told.iter().any(|one| one.error_bytes > 0) {
        return Err(first_error(communicator, first, &told, &error)?);
    }
    let worker = |rank: usize| first + rank as u32;
    let hint = "the tensors of an operation have one dtype and lengths that fit; shapes do not matter";
    check(&told, worker).map_err(|error| named(error).hint(hint))?;
    Ok(told)
}

/// The error of the first worker that has one, once all have told theirs.
fn first_error(communicator: &Communicator, first: u32, told: &[Descriptor], own: &[u8]) -> Result<Error> {
    let strange = |bytes: u64| Error::new(ErrorKind::Protocol, format!("an error of {bytes} bytes"));
    let length = |one: &Descriptor| match usize::try_from(one.error_bytes) {
        Ok(bytes) if bytes <= ERROR_BYTES_MAX => Ok(bytes),
        _ => Err(strange(one.error_bytes)),
    };
    let lengths = told.iter().map(length).collect::<Result<Vec<_>>>()?;
    let input = Tensor::from_slice(own, [own.len() as u64])?;
    let output = Tensor::private(Dtype::U8, [lengths.iter().sum::<usize>() as u64])?;
    communicator.all_gather_v(&input, &output, &lengths).join()?;
    let rank = lengths.iter().position(|bytes| *bytes > 0).unwrap_or_default();
    let error = read(&output.bytes()?[..lengths[rank]])?;
    Ok(error.context(format!("worker {}", first + rank as u32)))
}

/// The bytes of an error: of its kind and words alone where all of it takes more than `bytes_max`.
pub(super) fn written(error: &Error, bytes_max: usize) -> Result<Vec<u8>> {
    let whole = to_control(error).ok().filter(|bytes| bytes.len() <= bytes_max);
    whole.map_or_else(
        || {
            let ends = error.what().char_indices().map(|(at, char)| at + char.len_utf8());
            let end = ends.take_while(|end| *end <= bytes_max / 2).last().unwrap_or_default();
            to_control(&Error::new(error.kind(), error.what()[..end].to_owned()))
        },
        Ok,
    )
}

/// The error of these bytes.
pub(super) fn read(bytes: &[u8]) -> Result<Error> {
    from_control(bytes)
}

/// Breaks a group where this worker cannot do its part of an operation on which all have agreed, so that nobody waits
/// for it: whatever they are in is another operation than a barrier.
pub(super) fn not_alone<T>(communicator: &Communicator, outcome: Result<T>) -> Result<T> {
    if outcome.is_err() && communicator.broken().is_none() {
        let _ = communicator.barrier().join();
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Args, Function, Scope, Session, Worker, register_function};
    use sheave_collective::Operator;

    #[test]
    fn a_worker_that_fails_after_all_have_agreed_keeps_nobody_waiting() {
        let play = |(length,): (u64,)| {
            let (worker, tensor) = (Worker::current()?, Tensor::private(Dtype::F32, [length])?);
            let world = worker.world()?;
            match worker.id {
                0 => not_alone(&world, Err(Error::new(ErrorKind::LimitExceeded, "no memory"))),
                _ => world.all_reduce(&tensor, &tensor, Operator::Sum).join(),
            }
        };
        register_function(Function::typed("fail late", play)).unwrap();
        let session = Session::threads(3, 1).unwrap();
        let fail = session.function("fail late").unwrap();
        let patience = Some(std::time::Duration::from_secs(60));
        for length in [4, 1 << 20] {
            session.call(&fail, &Args::new().value(length)).unwrap();
            assert_eq!(session.sync(0, patience).unwrap_err().kind(), ErrorKind::LimitExceeded);
            for worker in 1..3 {
                assert_eq!(session.sync(worker, patience).unwrap_err().kind(), ErrorKind::Mismatch, "{length}");
            }
            session.renew_collectives().unwrap();
            let sent = session.broadcast(&Tensor::private(Dtype::F32, [3]).unwrap(), None, Scope::World).unwrap();
            assert_eq!(sent.get::<Tensor>(2, patience).unwrap().elements(), 3, "made again they work");
        }
        session.shutdown().unwrap();
    }

    #[test]
    fn long_errors_are_cut() {
        let short = Error::new(ErrorKind::Mismatch, "too short").context("here").hint("make it longer");
        assert_eq!(read(&written(&short, 400).unwrap()).unwrap(), short);
        let long = Error::new(ErrorKind::Mismatch, "ä".repeat(1000)).cause(short);
        let bytes = written(&long, 401).unwrap();
        assert!(bytes.len() <= 401, "{}", bytes.len());
        let cut = read(&bytes).unwrap();
        assert_eq!((cut.kind(), cut.what()), (ErrorKind::Mismatch, &*"ä".repeat(100)));
    }
}
