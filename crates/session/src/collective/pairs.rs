//! Tensors from one worker to another, on which the two agree before anything moves.
//!
//! Each side sends the other one message of a fixed length, which says what it gives or has room for, or why it cannot,
//! and waits for the other's; then both know whether the tensor moves. So a receiver whose sender has failed is told
//! instead of waiting, and the other way round. A worker that is in several transfers at once, as between groups,
//! begins all of them before it waits for any: none waits for another, whatever chain they form.

use super::agree::{read, written};
use super::communicators::Communicators;
use super::descriptor::Extent;
use super::local;
use sheave_base::limits::DIMENSIONS_MAX;
use sheave_base::{Error, ErrorKind, Rank, Result, Work};
use sheave_collective::Communicator;
use sheave_tensor::{Dtype, Shape, Tensor};

/// Tags of messages: what a sender says, what a receiver says, and the tensors.
const SENDER_SAYS: u64 = 0;
const RECEIVER_SAYS: u64 = 1;
const BYTES: u64 = 2;

/// Bytes of what each side says, and where its error begins: behind the lengths of that and of the shape, the dtype,
/// the number of elements, and the shape.
const SAID_BYTES: usize = 2048;
const HEAD_NUMBERS: usize = 4;
const ERROR_AT: usize = (HEAD_NUMBERS + DIMENSIONS_MAX) * size_of::<u64>();

/// One side of a transfer.
pub(super) enum Side {
    /// The worker of this number gets this tensor.
    Sends(u32, Result<Tensor>),
    /// The worker of this number gives what fits into this tensor, or into one that is made.
    Receives(u32, Result<Option<Tensor>>),
}

impl Side {
    /// Finds out what the message itself would refuse, while the other side can still be told.
    fn checked(self) -> Self {
        match self {
            Self::Sends(peer, tensor) => Self::Sends(
                peer,
                tensor.and_then(|tensor| local::check_memory(Some(&tensor), None, false).map(|()| tensor)),
            ),
            Self::Receives(peer, tensor) => Self::Receives(
                peer,
                tensor.and_then(|tensor| local::check_memory(None, tensor.as_ref(), false).map(|()| tensor)),
            ),
        }
    }
}

/// What one side has said.
struct Said {
    error: Option<Error>,
    extent: Option<Extent>,
    shape: Shape,
}

/// Does this worker's sides of transfers, all at once, and returns what came of each: the tensor. Blocks.
pub(super) fn exchange(communicators: &Communicators, sides: Vec<Side>) -> Vec<Result<Tensor>> {
    let begun: Vec<_> = sides.into_iter().map(|side| Talk::begin(communicators, side.checked())).collect();
    let begins = |talk: Result<Talk>| talk.and_then(|talk| talk.move_bytes(communicators));
    let moving: Vec<_> = begun.into_iter().map(begins).collect();
    let ended = moving.into_iter().map(|moving| {
        let (tensor, work) = moving?;
        work.join().map(|()| tensor)
    });
    ended.collect()
}

/// A transfer of which both sides are being told.
struct Talk {
    side: Side,
    pair: Pair,
    sent: Work<()>,
    received: Work<Rank>,
    said: Tensor,
}

impl Talk {
    fn begin(communicators: &Communicators, side: Side) -> Result<Self> {
        let (peer, tags, own) = match &side {
            Side::Sends(peer, tensor) => (*peer, [SENDER_SAYS, RECEIVER_SAYS], say(tensor.as_ref().map(Some))?),
            Side::Receives(peer, tensor) => {
                (*peer, [RECEIVER_SAYS, SENDER_SAYS], say(tensor.as_ref().map(Option::as_ref))?)
            }
        };
        let pair = Pair::of(communicators, peer)?;
        let said = Tensor::private(Dtype::U8, [SAID_BYTES as u64])?;
        let received = pair.communicator.recv(&said, Some(pair.other), tags[1]);
        let sent = pair.communicator.send(&own, pair.other, tags[0]);
        Ok(Self { side, pair, sent, received, said })
    }

    /// Begins to move the tensor, if both sides have one that fits.
    fn move_bytes(self, communicators: &Communicators) -> Result<(Tensor, Work<()>)> {
        let heard = self.received.join();
        self.sent.join()?;
        heard?;
        let said = hear(&self.said)?;
        let (peer, is_sender) = match &self.side {
            Side::Sends(peer, _) => (*peer, true),
            Side::Receives(peer, _) => (*peer, false),
        };
        if let Some(error) = said.error {
            return Err(error.context(format!("worker {peer}")));
        }
        let own = match self.side {
            Side::Sends(_, tensor) => Some(tensor?),
            Side::Receives(_, tensor) => tensor?,
        };
        let me = communicators.id();
        let ends = if is_sender { (me, peer) } else { (peer, me) };
        let extents = (own.as_ref().map(Extent::of), said.extent);
        let (given, room) = if is_sender { extents } else { (extents.1, extents.0) };
        let Some(given) = given else {
            return Err(Error::new(ErrorKind::Protocol, format!("worker {} sends nothing", ends.0)));
        };
        if let Some(room) = room.filter(|room| *room != given) {
            let what = format!("worker {} has room for {room}; expected {given}", ends.1);
            return Err(Error::new(ErrorKind::Mismatch, format!("{what}, for worker {} sends {given}", ends.0)));
        }
        match own {
            Some(tensor) if is_sender => self.pair.send(&tensor).map(|sent| (tensor, sent)),
            Some(tensor) => self.pair.receive(Ok(tensor), given.dtype),
            None => {
                let made = communicators.mesh().and_then(|mesh| local::make(&mesh, given.dtype, said.shape));
                self.pair.receive(made, given.dtype)
            }
        }
    }
}

/// Two workers, between whom no third one that dies ends anything.
struct Pair {
    communicator: Communicator,
    other: Rank,
}

impl Pair {
    fn of(communicators: &Communicators, peer: u32) -> Result<Self> {
        let communicator = communicators.pair(peer)?;
        let other = Rank(1 - communicator.rank().0);
        Ok(Self { communicator, other })
    }

    /// Begins to send what both have agreed on. Where that is refused on the spot, because somebody has taken hold of
    /// the tensor in between, the receiver gets something else, which it refuses: it does not wait.
    fn send(&self, tensor: &Tensor) -> Result<Work<()>> {
        let sent = self.communicator.send(tensor, self.other, BYTES);
        if let Some(error) = refusal(&sent) {
            let _ = self.communicator.send(&misfit(tensor.dtype())?, self.other, BYTES).join();
            return Err(error);
        }
        Ok(sent)
    }

    /// Begins to receive what both have agreed on, into this tensor if there is one. Else, and where that is refused on
    /// the spot, what comes is refused: the sender does not wait.
    fn receive(&self, tensor: Result<Tensor>, dtype: Dtype) -> Result<(Tensor, Work<()>)> {
        let received = tensor.and_then(|tensor| {
            let received = self.communicator.recv(&tensor, Some(self.other), BYTES);
            refusal(&received).map_or(Ok((tensor, received)), Err)
        });
        match received {
            Ok((tensor, received)) => Ok((tensor, received.map(|_| Ok(())))),
            Err(error) => {
                let _ = self.communicator.recv(&misfit(dtype)?, Some(self.other), BYTES).join();
                Err(error)
            }
        }
    }
}

/// Something of another dtype, which nobody takes for a tensor of this one.
fn misfit(dtype: Dtype) -> Result<Tensor> {
    Tensor::private(if dtype == Dtype::I8 { Dtype::Bool } else { Dtype::I8 }, [1])
}

/// Why an operation was refused on the spot, for the sake of the tensor it was given. Whatever else it ends with, a
/// message of the other side may have been its end.
fn refusal<T: Clone>(work: &Work<T>) -> Option<Error> {
    let error = work.result()?.err()?;
    matches!(error.kind(), ErrorKind::BufferInUse | ErrorKind::InvalidArgument).then_some(error)
}

/// What this worker says of its side.
fn say(tensor: Result<Option<&Tensor>, &Error>) -> Result<Tensor> {
    let mut bytes = vec![0; SAID_BYTES];
    let mut put = |at: usize, number: u64| bytes[8 * at..8 * at + 8].copy_from_slice(&number.to_le_bytes());
    match tensor {
        Err(error) => {
            let error = written(error, SAID_BYTES - ERROR_AT)?;
            put(0, error.len() as u64);
            bytes[ERROR_AT..ERROR_AT + error.len()].copy_from_slice(&error);
        }
        Ok(Some(tensor)) => {
            let dimensions = tensor.shape().dimensions();
            put(1, dimensions.len() as u64);
            put(2, u64::from(tensor.dtype().code()) + 1);
            put(3, tensor.elements() as u64);
            dimensions.iter().enumerate().for_each(|(at, extent)| put(HEAD_NUMBERS + at, *extent));
        }
        Ok(None) => {}
    }
    Tensor::from_slice(&bytes, [SAID_BYTES as u64])
}

/// What the other worker has said of its side.
fn hear(said: &Tensor) -> Result<Said> {
    let strange = || Error::new(ErrorKind::Protocol, "a worker says something else than what it sends or receives");
    let bytes = said.bytes()?;
    let number = |at: usize| {
        let mut number = [0; 8];
        number.copy_from_slice(&bytes[8 * at..8 * at + 8]);
        u64::from_le_bytes(number)
    };
    let counted =
        |number: u64, most: usize| usize::try_from(number).ok().filter(|number| *number <= most).ok_or_else(strange);
    let error_bytes = counted(number(0), SAID_BYTES - ERROR_AT)?;
    if error_bytes > 0 {
        let error = read(&bytes[ERROR_AT..ERROR_AT + error_bytes])?;
        return Ok(Said { error: Some(error), extent: None, shape: Shape::default() });
    }
    let dimensions = counted(number(1), DIMENSIONS_MAX)?;
    let extent = match number(2).checked_sub(1) {
        None => None,
        Some(code) => {
            let dtype = u8::try_from(code).ok().and_then(Dtype::from_code).ok_or_else(strange)?;
            Some(Extent { dtype, elements: number(3) })
        }
    };
    let dimensions: Vec<u64> = (0..dimensions).map(|at| number(HEAD_NUMBERS + at)).collect();
    Ok(Said { error: None, extent, shape: Shape::new(&dimensions)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Args, Function, Scope, Session, Worker, register_function};

    #[test]
    fn what_a_side_says_is_heard() {
        let tensor = Tensor::from_slice(&[1_i16; 6], [2, 3]).unwrap();
        let said = hear(&say(Ok(Some(&tensor))).unwrap()).unwrap();
        assert_eq!((said.extent, said.shape), (Some(Extent::of(&tensor)), Shape::from([2, 3])));
        let said = hear(&say(Ok(None)).unwrap()).unwrap();
        assert!(said.extent.is_none() && said.error.is_none());
        let error = Error::new(ErrorKind::NotFound, "x".repeat(5000));
        let said = hear(&say(Err(&error)).unwrap()).unwrap().error.unwrap();
        assert!(said.kind() == ErrorKind::NotFound && said.what().len() > 400, "{said}");
        let lease = tensor.read_lease("test").unwrap();
        let Side::Receives(_, checked) = Side::Receives(1, Ok(Some(tensor))).checked() else { unreachable!() };
        assert_eq!(checked.unwrap_err().kind(), ErrorKind::BufferInUse);
        drop(lease);
    }

    /// Of the two workers one has a tensor that something else holds, though it has said otherwise: neither waits.
    #[test]
    fn what_is_refused_after_all_ends_on_both_sides() {
        let play = |(is_sent, length): (bool, u64)| {
            let worker = Worker::current()?;
            let pair = Pair::of(worker.communicators(), 1 - worker.id)?;
            let tensor = Tensor::private(Dtype::F32, [length])?;
            // Worker 0 is the one that cannot.
            let lease = (worker.id == 0).then(|| tensor.write_lease("test")).transpose()?;
            let ended = match (worker.id == 0) == is_sent {
                true => pair.send(&tensor).and_then(Work::join),
                false => pair.receive(Ok(tensor), Dtype::F32).and_then(|(_, received)| received.join()),
            };
            drop(lease);
            Ok(ended.err().map_or_else(String::new, |error| format!("{:?}", error.kind())))
        };
        register_function(Function::typed("refuse", play)).unwrap();
        let session = Session::threads(2, 1).unwrap();
        let refuse = session.function("refuse").unwrap();
        let patience = Some(std::time::Duration::from_secs(60));
        for (is_sent, length, other) in
            [(true, 10, "Mismatch"), (true, 100_000, "Mismatch"), (false, 10, ""), (false, 100_000, "Mismatch")]
        {
            let ends = session.call(&refuse, &Args::new().value(is_sent).value(length)).unwrap();
            assert_eq!(ends.get::<String>(0, patience).unwrap(), "BufferInUse", "{is_sent} {length}");
            assert_eq!(
                ends.get::<String>(1, patience).unwrap(),
                other,
                "{is_sent} {length}: a short one is on its way"
            );
        }
        let source = session.broadcast(&Tensor::private(Dtype::F32, [3]).unwrap(), None, Scope::World).unwrap();
        let moved = session.send_between(0, &source, 1, None).unwrap();
        assert_eq!(moved.get::<Tensor>(1, patience).unwrap().elements(), 3, "the next one works");
        session.shutdown().unwrap();
    }

    #[test]
    fn strange_words_are_refused() {
        for (at, byte) in [(7, 1), (8, 200), (16, 200), (17, 1)] {
            let mut bytes = vec![0_u8; SAID_BYTES];
            bytes[at] = byte;
            let said = Tensor::from_slice(&bytes, [SAID_BYTES as u64]).unwrap();
            assert_eq!(hear(&said).err().unwrap().kind(), ErrorKind::Protocol, "{at}");
        }
    }
}
