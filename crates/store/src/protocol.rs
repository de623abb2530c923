//! What workers ask of servers, and servers of each other: the methods of the service [`SERVICE`].

use crate::compress::Compression;
use crate::key::Key;
use crate::kind::Kind;
use crate::layout::Cutting;
use crate::learn::Outline;
use crate::updater::Spec;
use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind};
use sheave_mesh::Answer;
use sheave_optim::{BlockSums, Norms};
use std::fmt;

/// The name of the service.
pub(crate) const SERVICE: &str = "store";

sheave_mesh::methods! {
    service SERVICE;
    1, "open": Open[Open] -> (), Workers;
    2, "closing": Closing[OfStore] -> (), Workers, runs anyway if |_| true;
    3, "close": Close[OfStore] -> (), Workers, runs anyway if |_| true;
    4, "init": Init[Init] -> (), Workers;
    5, "delete": Delete[Delete] -> (), Workers;
    6, "describe": Describe[Describe] -> Vec<Option<Described>>, Workers;
    // All servers sum a push or none does, whatever becomes of its other calls.
    7, "update": Update[Update] -> Gone, Workers, runs anyway if Update::contributes;
    8, "begin": Begin[Begin] -> Gone, Workers, runs anyway if |_| true;
    9, "slices": Slices[Slices] -> (), Workers;
    10, "set_updater": SetUpdater[SetUpdater] -> (), Workers;
    11, "updater": Updater[OfStore] -> Spec, Workers;
    12, "barrier": Barrier[OfStore] -> Gone, Workers, runs anyway if |_| true;
    13, "done": Done[OfStore] -> Gone, Workers, runs anyway if |_| true;
    14, "settle": Settle[Settle] -> (), Servers;
    15, "norms": Sums[Sums] -> Norms, Servers;
    16, "examine": Examine[Examine] -> Vec<Head>, Workers;
    17, "export": Export[Export] -> Head, Workers;
    18, "import": Import[Import] -> (), Workers;
    19, "torn": Torn[Torn] -> (), Workers, runs anyway if |_| true;
}

/// What becomes of a store when one of its workers dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnWorkerLoss {
    /// Everything that needs it ends with an error that names it, and so does every later push of a store that counts
    /// workers.
    #[default]
    Fail,
    /// The others go on without it. What it had pushed before counts; if its last push has reached some of the servers
    /// and not others, the store fails as with [`OnWorkerLoss::Fail`], because no sum would be whole.
    Shrink,
}

/// A worker opens a store. All workers must say the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Open {
    /// Stores of one job are numbered in the order in which every worker opens them.
    pub(crate) store: u32,
    pub(crate) kind: Kind,
    pub(crate) cutting: Cutting,
    /// Of a store with bounded staleness.
    pub(crate) staleness: u64,
    pub(crate) on_worker_loss: OnWorkerLoss,
}

impl fmt::Display for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cutting { cut_elements, slice_elements, .. } = self.cutting;
        write!(f, "{} with tensors cut from {cut_elements} elements on and slices of {slice_elements}", self.kind)?;
        if self.kind == Kind::DistSsp {
            write!(f, ", a staleness of {}", self.staleness)?;
        }
        match self.on_worker_loss {
            OnWorkerLoss::Fail => Ok(()),
            OnWorkerLoss::Shrink => f.write_str(", to shrink when a worker dies"),
        }
    }
}

/// What the bytes of a piece are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Form {
    /// Elements, as they are stored.
    Plain,
    /// Elements in fewer bits: of a push a gradient, of a pull the value.
    Coded(Compression),
    /// Strictly ascending ids of a gradient's rows, as `i64`, counted from the slice's first one. The rows follow.
    Ids,
    /// Rows: of a push those of the ids before them, of a pull those that are asked for.
    Rows,
    /// Among what is pushed: strictly ascending ids of the rows of a pull, in the order of the pulls of rows.
    Asked,
}

impl Form {
    /// Whether its bytes are not those of elements.
    pub(crate) fn is_coded(self) -> bool {
        matches!(self, Self::Coded(_))
    }

    /// Whether a pushed piece is one that a slot merges, alone or with the ids before it.
    pub(crate) fn is_contribution(self) -> bool {
        !matches!(self, Self::Ids | Self::Asked)
    }
}

/// A slice of a key's tensor in a message.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Piece {
    /// The slice's.
    pub(crate) number: u64,
    pub(crate) len_bytes: u64,
    /// Whether it lies in the packed tensor.
    pub(crate) packed: bool,
    pub(crate) form: Form,
}

/// New keys and their first values.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Init {
    pub(crate) store: u32,
    pub(crate) slices: Vec<DescribedSlice>,
    pub(crate) pieces: Vec<Piece>,
}

/// A slice of a key's tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DescribedSlice {
    pub(crate) described: Described,
    /// Which of all slices.
    pub(crate) slice: u64,
    /// The index of its first element in the tensor.
    pub(crate) start: u64,
}

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Described {
    pub(crate) key: Key,
    pub(crate) dtype: u8,
    /// Of the whole tensor.
    pub(crate) shape: Vec<u64>,
    pub(crate) storage: Storage,
}

/// How a key's tensor is cut, and what its first value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Storage {
    /// In even ranges of elements; one piece for each slice.
    Dense,
    /// Between rows; some rows for each slice, as two pieces.
    Rows,
}

/// Asks for the [`Described`] of keys; the answer has one for each, or none.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Describe {
    pub(crate) store: u32,
    pub(crate) numbers: Vec<u64>,
}

/// Takes slices out of the store; those that are not there are no error.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Delete {
    pub(crate) store: u32,
    pub(crate) numbers: Vec<u64>,
}

/// Values to merge and values to send. What is sent includes all that the worker has pushed before, and in this
/// request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Update {
    pub(crate) store: u32,
    pub(crate) push: Vec<Piece>,
    pub(crate) pull: Vec<Piece>,
}

impl Update {
    /// Whether anything is merged.
    pub(crate) fn contributes(&self) -> bool {
        self.push.iter().any(|piece| piece.form.is_contribution())
    }
}

/// A worker will push so many slices one by one, as [`Slices`]. Answered when all of them are merged.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Begin {
    pub(crate) store: u32,
    /// The worker's own number for it.
    pub(crate) operation: u64,
    pub(crate) slices: u64,
}

/// Some of the slices of an operation that was begun. Answered as soon as they are taken.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Slices {
    pub(crate) store: u32,
    pub(crate) operation: u64,
    pub(crate) push: Vec<Piece>,
}

/// Another updater for all keys of a store.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SetUpdater {
    pub(crate) store: u32,
    pub(crate) updater: Spec,
    /// Only says whether it could be done: all servers change, or none.
    pub(crate) is_trial: bool,
}

/// A push of a worker has reached some servers and not others, for this reason: no sum of it is whole, and what has not
/// come of it does not come. Told one way.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Torn {
    pub(crate) store: u32,
    /// The worker's own number for it, if it was [begun](Begin).
    pub(crate) operation: Option<u64>,
    pub(crate) reason: Error,
}

/// What is said of a store and nothing more.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct OfStore {
    pub(crate) store: u32,
}

/// A worker pushes no more, and will come to one more barrier.
pub(crate) struct Closing;

/// A worker needs the store no more.
pub(crate) struct Close;

/// Asks what pushes do.
pub(crate) struct Updater;

/// A worker comes to a barrier. The first server answers when all have come.
pub(crate) struct Barrier;

/// A worker pushes no more until all have come to that point, which is when it is answered.
pub(crate) struct Done;

/// The answer to what waits for other workers: in a store that shrinks the ranks of those it does without, so that a
/// worker that has an answer knows of every loss that the answer knows of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Gone(pub(crate) Vec<usize>);

/// An answer to what waits for other workers.
pub(crate) type Told = Answer<Gone>;

/// A server says what it has received of a worker that is lost; the answer comes when all living servers have, and is
/// an error if they do not agree.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Settle {
    pub(crate) store: u32,
    pub(crate) worker: u64,
    /// A digest over how often it has pushed each key that is cut.
    pub(crate) heard: [u8; 32],
}

/// A server says the sums of a slice to the server that has the first slice of the key; the answer comes when all
/// slices have said theirs, and is the [`sheave_optim::Norms`] of the whole tensor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Sums {
    pub(crate) store: u32,
    /// The key's number.
    pub(crate) key: u64,
    /// The index of the slice's first element in the tensor.
    pub(crate) start: u64,
    /// None if the merge of this slice has failed.
    pub(crate) sums: Option<BlockSums>,
}

/// How a slice stands: that of a key whose slices all stand alike, and do so later too, is whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// How often it was changed.
    pub(crate) version: u64,
    pub(crate) outline: Outline,
}

/// Asks for slice after slice how it stands; the answer has a [`Head`] for each, and is an error if one is waited for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Examine {
    pub(crate) store: u32,
    pub(crate) numbers: Vec<u64>,
}

/// Asks for all that is known of a slice; the answer is its [`Head`], and tensors: the value, if that is asked for, the
/// moments and the master copy.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Export {
    pub(crate) store: u32,
    pub(crate) number: u64,
    pub(crate) with_value: bool,
}

/// A slice becomes what these tensors say, which are those of [`Export`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Import {
    pub(crate) store: u32,
    pub(crate) number: u64,
    pub(crate) with_value: bool,
    pub(crate) outline: Outline,
}

pub(crate) fn being_updated(key: &Key) -> Error {
    Error::new(ErrorKind::BufferInUse, format!("key {key} is being updated"))
        .hint("every worker waits for its pushes and comes to a barrier before this, and to another one after it")
}
