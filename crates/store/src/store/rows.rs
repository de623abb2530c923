//! Rows of tables.

use super::{KvStore, Options, Place, within};
use crate::client::First;
use crate::key::Key;
use crate::rows::Rows;
use sheave_base::{Result, Work};
use sheave_tensor::{Shape, Tensor};

/// Tables, of which workers push and pull some rows.
///
/// Any key of at least one dimension has rows, the entries of its first dimension, and takes pushes and pulls of rows
/// as well as dense ones, also mixed in one synchronous round. A key of [`KvStore::init_rows`] differs in that its
/// first value need not be written out, that it is cut between rows, and that its memory is used as far as it is
/// written.
///
/// What a push of rows does: with [`crate::Updater::Assign`] all other rows become zero; with [`crate::Updater::Sum`]
/// and a function they stay as they are; with an optimizer so do their moments, and steps are counted for the whole key
/// (MXNet's lazy update). A function is given the pushed rows and the stored ones they belong to, both packed and flat.
impl KvStore {
    /// New keys, each a table of this shape, with some first rows; all others are zero. Several rows of one id are
    /// summed. With servers every worker must call it, with the same keys and shapes; it blocks until all have. The
    /// rows of worker 0 count; the others may give none.
    ///
    /// ```
    /// use sheave_store::{KvStore, Rows};
    /// use sheave_tensor::{Dtype, Tensor};
    ///
    /// let store = KvStore::local("local")?;
    /// let rows = Rows::new(Tensor::from_slice(&[2i64], [1])?, Tensor::from_slice(&[1.5f32, 2.5], [1, 2])?)?;
    /// store.init_rows(&[("embedding".into(), [1_000_000, 2].into(), rows)])?;
    /// let place = Tensor::private(Dtype::F32, [2, 2])?;
    /// store.pull_rows(&[("embedding".into(), Tensor::from_slice(&[2i64, 7], [2])?, place.clone())])?.wait()?;
    /// assert_eq!(place.to_vec::<f32>()?, [1.5, 2.5, 0.0, 0.0]);
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `AlreadyExists` for a key that was initialised before; `Mismatch` for rows of another shape than the table's, or
    /// another table than worker 0's; `InvalidArgument` for an id that is not in the table; `LimitExceeded` if there is
    /// no memory for it.
    #[doc(alias = "row_sparse")]
    pub fn init_rows(&self, tables: &[(Key, Shape, Rows)]) -> Result<()> {
        match &*self.place {
            Place::Local(local) => within(local, |local| local.init_rows(tables)),
            Place::Servers(client) => {
                let first =
                    |(key, shape, rows): &(Key, Shape, Rows)| (key.clone(), First::Rows(shape.clone(), rows.clone()));
                client.init(&tables.iter().map(first).collect::<Vec<_>>())
            }
        }
    }

    /// Merges rows into the stored tensors. Ids may come in any order and several times: rows of one id are summed in
    /// the order in which they are given, also those of equal keys; there may be none at all. In a synchronous store
    /// the work ends when all workers have pushed, those without rows too.
    ///
    /// ```
    /// use sheave_store::{KvStore, Rows, Updater};
    /// use sheave_tensor::{Dtype, Tensor};
    ///
    /// let store = KvStore::local("local")?;
    /// store.init(&[("w".into(), Tensor::from_slice(&[10.0f32, 20.0, 30.0], [3, 1])?)])?;
    /// store.set_updater(Updater::Sum)?;
    /// let ids = Tensor::from_slice(&[2i64, 0, 2], [3])?;
    /// let rows = Rows::new(ids, Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3, 1])?)?;
    /// store.push_rows(&[("w".into(), rows)])?.wait()?;
    /// let place = Tensor::private(Dtype::F32, [3, 1])?;
    /// store.pull(&[("w".into(), place.clone())])?.wait()?;
    /// assert_eq!(place.to_vec::<f32>()?, [12.0, 20.0, 34.0]);
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `NotFound` for a key that was not initialised, `Mismatch` for rows of another shape or dtype, `InvalidArgument`
    /// for an id that is not in the tensor, `BufferInUse` for rows that are being written; nothing has moved then. The
    /// work may end with the updater's error; that of LAMB is `Unsupported`, because it needs the norm of the whole.
    pub fn push_rows(&self, pairs: &[(Key, Rows)]) -> Result<Work<()>> {
        self.update_rows("push_rows", pairs, &[], Options::default())
    }

    /// Copies rows into places, which are overwritten: of each key those with the given ids, `i64` of any shape, in
    /// their order and as often as they are given. A place has the shape `[n, …row]` for `n` ids, or that of the ids
    /// followed by that of a row. Only distinct rows travel. It is ordered after this worker's own pushes as
    /// [`KvStore::pull`] is.
    ///
    /// ```
    /// use sheave_store::KvStore;
    /// use sheave_tensor::{Dtype, Tensor};
    ///
    /// let store = KvStore::local("local")?;
    /// store.init(&[("w".into(), Tensor::from_slice(&[10.0f32, 20.0, 30.0], [3])?)])?;
    /// let ids = Tensor::from_slice(&[2i64, 0, 2, 1], [2, 2])?;
    /// let place = Tensor::private(Dtype::F32, [2, 2])?;
    /// store.pull_rows(&[("w".into(), ids, place.clone())])?.wait()?;
    /// assert_eq!(place.to_vec::<f32>()?, [30.0, 10.0, 30.0, 20.0]);
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `NotFound` for a key that was not initialised; `Mismatch` for ids that are not `i64` and for a place of another
    /// shape or dtype; `InvalidArgument` for an id that is not in the tensor; `BufferInUse` for a place that is in use
    /// or given twice. Nothing has moved then.
    #[doc(alias = "row_sparse_pull")]
    pub fn pull_rows(&self, wanted: &[(Key, Tensor, Tensor)]) -> Result<Work<()>> {
        self.update_rows("pull_rows", &[], wanted, Options::default())
    }

    /// [`KvStore::push_rows`] and then [`KvStore::pull_rows`], in one message to each server.
    ///
    /// ```
    /// use sheave_store::{KvStore, Rows, Updater};
    /// use sheave_tensor::{Dtype, Tensor};
    ///
    /// let store = KvStore::local("local")?;
    /// store.init(&[("w".into(), Tensor::from_slice(&[10.0f32, 20.0, 30.0], [3])?)])?;
    /// store.set_updater(Updater::Sum)?;
    /// let ids = Tensor::from_slice(&[1i64], [1])?;
    /// let rows = Rows::new(ids.clone(), Tensor::from_slice(&[5.0f32], [1])?)?;
    /// let place = Tensor::private(Dtype::F32, [1])?;
    /// store.push_pull_rows(&[("w".into(), rows)], &[("w".into(), ids, place.clone())])?.wait()?;
    /// assert_eq!(place.to_vec::<f32>()?, [25.0]);
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As both.
    pub fn push_pull_rows(&self, pairs: &[(Key, Rows)], wanted: &[(Key, Tensor, Tensor)]) -> Result<Work<()>> {
        self.push_pull_rows_with(pairs, wanted, Options::default())
    }

    /// [`KvStore::push_pull_rows`], [`KvStore::push_rows`] or [`KvStore::pull_rows`] with options; what is not wanted
    /// is empty.
    ///
    /// ```
    /// use sheave_store::{KvStore, Options, Rows};
    /// use sheave_tensor::Tensor;
    ///
    /// let store = KvStore::local("local")?;
    /// store.init(&[("w".into(), Tensor::from_slice(&[10.0f32, 20.0], [2])?)])?;
    /// let rows = Rows::new(Tensor::from_slice(&[1i64], [1])?, Tensor::from_slice(&[5.0f32], [1])?)?;
    /// store.push_pull_rows_with(&[("w".into(), rows)], &[], Options { priority: 3 })?.wait()?;
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As those.
    pub fn push_pull_rows_with(
        &self,
        pairs: &[(Key, Rows)],
        wanted: &[(Key, Tensor, Tensor)],
        options: Options,
    ) -> Result<Work<()>> {
        self.update_rows("push_pull_rows", pairs, wanted, options)
    }

    fn update_rows(
        &self,
        operation: &'static str,
        push: &[(Key, Rows)],
        pull: &[(Key, Tensor, Tensor)],
        options: Options,
    ) -> Result<Work<()>> {
        match &*self.place {
            Place::Local(local) => {
                let outcome = within(local, |local| {
                    local.push_rows(operation, push)?;
                    local.pull_rows(operation, pull)
                });
                Ok(Work::ready(operation, outcome))
            }
            Place::Servers(client) => client.update_rows(operation, push, pull, options),
        }
    }
}
