//! Tensors from one worker to another, on which the two agree before anything moves.
//!
//! Each side sends the other one message of a fixed length, which says what it gives or has room for, or why it cannot,
//! and waits for the other's; then both know whether the tensor moves. So a receiver whose sender has failed is told
//! instead of waiting, and the other way round. A worker that is in several transfers at once, as between groups,
//! begins all of them before it waits for any: none waits for another, whatever chain they form.

use super::agree::{read, written};
use super::communicators::Communicators;
use super::descriptor::Extent;
use super::{Scope, local};
use sheave_base::limits::DIMENSIONS_MAX;
use sheave_base::{Error, ErrorKind, Rank, Result, Work};
use sheave_collective::Communicator;
use sheave_tensor::{Dtype, Shape, Tensor};

/// Tags of the session's own messages: what a sender says, what a receiver says, and the tensors.
const SENDER_SAYS: u64 = u64::MAX;
const RECEIVER_SAYS: u64 = u64::MAX - 1;
const BYTES: u64 = u64::MAX - 2;

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
pub(super) fn exchange(communicators: &Communicators, sides: Vec<Side>) -> Result<Vec<Result<Tensor>>> {
    let world = communicators.get(Scope::World)?;
    let begun: Vec<_> = sides.into_iter().map(|side| Talk::begin(&world, side.checked())).collect();
    let begins = |talk: Result<Talk>| talk.and_then(|talk| talk.move_bytes(communicators, &world));
    let moving: Vec<_> = begun.into_iter().map(begins).collect();
    let ended = moving.into_iter().map(|moving| {
        let (tensor, work) = moving?;
        work.join().map(|()| tensor)
    });
    Ok(ended.collect())
}

/// A transfer of which both sides are being told.
struct Talk {
    side: Side,
    sent: Work<()>,
    received: Work<Rank>,
    said: Tensor,
}

impl Talk {
    fn begin(world: &Communicator, side: Side) -> Result<Self> {
        let (peer, tags, own) = match &side {
            Side::Sends(peer, tensor) => (*peer, [SENDER_SAYS, RECEIVER_SAYS], say(tensor.as_ref().map(Some))?),
            Side::Receives(peer, tensor) => {
                (*peer, [RECEIVER_SAYS, SENDER_SAYS], say(tensor.as_ref().map(Option::as_ref))?)
            }
        };
        let said = Tensor::private(Dtype::U8, [SAID_BYTES as u64])?;
        let received = world.recv(&said, Some(Rank(peer)), tags[1]);
        Ok(Self { side, sent: world.send(&own, Rank(peer), tags[0]), received, said })
    }

    /// Begins to move the tensor, if both sides have one that fits.
    fn move_bytes(self, communicators: &Communicators, world: &Communicator) -> Result<(Tensor, Work<()>)> {
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
        let me = world.rank().0;
        let ends = if is_sender { (me, peer) } else { (peer, me) };
        let extents = (own.as_ref().map(Extent::of), said.extent);
        let (given, room) = if is_sender { extents } else { (extents.1, extents.0) };
        if let (Some(given), Some(room)) = (given, room)
            && given != room
        {
            let what = format!("worker {} has room for {room}; expected {given}", ends.1);
            return Err(Error::new(ErrorKind::Mismatch, format!("{what}, for worker {} sends {given}", ends.0)));
        }
        match (own, given) {
            (Some(tensor), _) if is_sender => {
                let sent = send(world, &tensor, peer)?;
                Ok((tensor, sent))
            }
            (Some(tensor), _) => {
                let received = receive(world, &tensor, peer)?;
                Ok((tensor, received))
            }
            (None, Some(given)) => {
                let tensor = local::make(&communicators.mesh()?, given.dtype, said.shape)?;
                let received = receive(world, &tensor, peer)?;
                Ok((tensor, received))
            }
            (None, None) => Err(Error::new(ErrorKind::Protocol, format!("worker {peer} sends nothing"))),
        }
    }
}

/// Begins to send what both have agreed on. Where that is refused on the spot, because somebody has taken hold of the
/// tensor in between, the receiver gets something else, which it refuses: it does not wait.
fn send(world: &Communicator, tensor: &Tensor, peer: u32) -> Result<Work<()>> {
    let sent = world.send(tensor, Rank(peer), BYTES);
    if let Some(error) = refusal(&sent) {
        let other = if tensor.dtype() == Dtype::U8 { Dtype::I8 } else { Dtype::U8 };
        let _ = world.send(&Tensor::private(other, [1])?, Rank(peer), BYTES).join();
        return Err(error);
    }
    Ok(sent)
}

/// Why an operation was refused on the spot, for the sake of the tensor it was given. Whatever else it ends with, a
/// message of the other side may have been its end.
fn refusal<T: Clone>(work: &Work<T>) -> Option<Error> {
    let error = work.result()?.err()?;
    matches!(error.kind(), ErrorKind::BufferInUse | ErrorKind::InvalidArgument).then_some(error)
}

/// Begins to receive what both have agreed on. Where that is refused on the spot, what comes goes elsewhere.
fn receive(world: &Communicator, tensor: &Tensor, peer: u32) -> Result<Work<()>> {
    let received = world.recv(tensor, Some(Rank(peer)), BYTES);
    if let Some(error) = refusal(&received) {
        let elsewhere = Tensor::private(tensor.dtype(), tensor.shape())?;
        let _ = world.recv(&elsewhere, Some(Rank(peer)), BYTES).join();
        return Err(error);
    }
    Ok(received.map(|_| Ok(())))
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
