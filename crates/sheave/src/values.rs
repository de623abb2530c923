//! Values of programs' own types, from one rank to all.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sheave_base::limits::CONTROL_BYTES_MAX;
use sheave_base::{Error, ErrorKind, Rank, Result};
use sheave_collective::Communicator;
use sheave_tensor::Tensor;
use sheave_wire::{from_control, to_control};

/// Collective operations on values that serde can write: settings, vocabularies, whatever is no tensor.
pub trait Values {
    /// Returns at every rank what `root` gives; all others give `None`. Blocks until it is there.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if `root` gives nothing, or another rank something; `LimitExceeded` for a value that takes
    /// more than [`limits::CONTROL_BYTES_MAX`](sheave_base::limits::CONTROL_BYTES_MAX) bytes; and those of
    /// [`Communicator::broadcast`]. The others fail too where `root` cannot write its value.
    fn broadcast_value<T: Serialize + DeserializeOwned>(&self, value: Option<&T>, root: Rank) -> Result<T>;
}

impl Values for Communicator {
    fn broadcast_value<T: Serialize + DeserializeOwned>(&self, value: Option<&T>, root: Rank) -> Result<T> {
        let is_root = self.rank() == root;
        let written = match (value, is_root) {
            (Some(value), true) => to_control(value),
            (None, false) => Ok(Vec::new()),
            (given, _) => {
                let what =
                    if given.is_some() { "a value of a rank that is not the root" } else { "the root gives none" };
                Err(Error::new(ErrorKind::InvalidArgument, what).operation("broadcast_value"))
            }
        };
        // The others are waiting: they learn by a length that cannot be that there is no value.
        let length = written.as_ref().map_or(-1, |bytes| bytes.len() as i64);
        let length = Tensor::from_slice(&[length], [1])?;
        self.broadcast(&length, root).wait()?;
        let mut bytes = written?;
        let length = usize::try_from(length.to_vec::<i64>()?[0]);
        let Some(length) = length.ok().filter(|length| *length <= CONTROL_BYTES_MAX) else {
            let what = format!("rank {root} could not write its value");
            return Err(Error::new(ErrorKind::Remote, what).operation("broadcast_value"));
        };
        bytes.resize(length, 0);
        let content = Tensor::from_slice(&bytes, [length as u64])?;
        self.broadcast(&content, root).wait()?;
        from_control(&content.to_vec::<u8>()?).map_err(|error| error.operation("broadcast_value"))
    }
}
