//! Stores in files.
//!
//! A file has whole tensors, and does not tell how they were cut: what was saved on some servers is loaded on any
//! number of others, or within one process, to the same bits. It is safetensors, so that others can read it. The value
//! of a key is called `value/…`, the moments of its optimizer by their names (`mean/…`), and the f32 copy of a 16-bit
//! value `master/…`, with the key behind it: `text:w` or `int:3`. What they mean is said in the free text ([`head`]).
//!
//! Slice after slice goes into the file or comes out of it, so a big store needs no big memory. **Saving** asks how all
//! slices stand before and after it, and is refused if anything has changed between: a file is of one moment.
//! **Loading** checks all that it can before anything changes: the file as a whole, every key, dtype and shape, and
//! that the optimizer can go on with the moments.

mod head;
mod load;
mod save;

use crate::key::Key;
use crate::layout::{Slice, Slices};
use crate::local::Local;
use crate::protocol::{Head, Import};
use crate::slot::{Merge, Meta};
use crate::store::{KvStore, Place, within};
use crate::updater::Updater;
use sheave_base::{Error, ErrorKind, Result};
use sheave_optim::Optimizer;
use sheave_tensor::{Dtype, Tensor};
use smallvec::smallvec;
use std::path::Path;

/// What a file takes from a store and gives to it.
pub(crate) trait Shelf {
    /// What is known of all keys, in their order.
    fn metas(&self) -> Vec<Meta>;

    /// The slices of a key.
    fn slices(&self, meta: &Meta) -> Slices;

    /// For each of these keys, how each of its slices stands.
    fn examine(&mut self, metas: &[Meta]) -> Result<Vec<Vec<Head>>>;

    /// How a slice stands, its value if `with_value`, its moments and its master copy.
    fn export(&mut self, meta: &Meta, slice: &Slice, with_value: bool) -> Result<(Head, Vec<Tensor>)>;

    /// A slice becomes what was exported. The store's number is set by whoever knows it.
    fn import(&mut self, meta: &Meta, slice: &Slice, import: Import, tensors: Vec<Tensor>) -> Result<()>;

    fn optimizer(&mut self) -> Result<Option<Optimizer>>;

    fn set_optimizer(&mut self, optimizer: &Optimizer) -> Result<()>;
}

impl KvStore {
    /// Writes all values, the optimizer and its states to a file, atomically: after an error the file is what it was.
    /// Blocks until the disk has it.
    ///
    /// One worker saves. Every worker waits for its pushes and comes to a barrier before it, and to another one after
    /// it; who pushes meanwhile makes it fail. The file does not depend on the number of servers.
    ///
    /// # Errors
    ///
    /// `BufferInUse` if the store is being updated; `Unsupported` for complex128, which safetensors does not have;
    /// `LimitExceeded` for too many keys; `Io`; `PeerLost` if a server is gone. All of them name the file.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.on_shelf(|shelf| save::save(shelf, path, save::What { values: true, optimizer: true }))
            .map_err(|error| named(error, path, "save"))
    }

    /// Gives every key the value that [`KvStore::save`] has written, its optimizer state and the optimizer. The store
    /// has the keys of the file and no others, initialised with the same dtypes and shapes. Blocks.
    ///
    /// One worker loads, as one saves. Everything is checked before anything changes. If a server is lost in between,
    /// the error says so, and the values are partly those of before.
    ///
    /// # Errors
    ///
    /// `NotFound` without such a file; `InvalidArgument` for one that is damaged or not of a store; `Mismatch` for
    /// other keys, dtypes or shapes; `BufferInUse` if the store is being updated; `PeerLost`. All name the file.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.on_shelf(|shelf| load::load(shelf, path, true)).map_err(|error| named(error, path, "load"))
    }

    /// As [`KvStore::save`] without the values, and without the optimizer unless `dump_optimizer`.
    ///
    /// # Errors
    ///
    /// As there; `NotFound` without an optimizer.
    pub fn save_optimizer_states(&self, path: impl AsRef<Path>, dump_optimizer: bool) -> Result<()> {
        let path = path.as_ref();
        let what = save::What { values: false, optimizer: dump_optimizer };
        self.on_shelf(|shelf| save::save(shelf, path, what))
            .map_err(|error| named(error, path, "save_optimizer_states"))
    }

    /// As [`KvStore::load`], and leaves the values as they are; the optimizer too, if it was not saved with the states.
    ///
    /// # Errors
    ///
    /// As there; `NotFound` if neither file nor store have an optimizer, `Mismatch` if the store's cannot go on with
    /// the states.
    pub fn load_optimizer_states(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.on_shelf(|shelf| load::load(shelf, path, false))
            .map_err(|error| named(error, path, "load_optimizer_states"))
    }

    fn on_shelf(&self, act: impl FnOnce(&mut dyn Shelf) -> Result<()>) -> Result<()> {
        match &*self.place {
            Place::Local(local) => within(local, |local| act(local)),
            Place::Servers(client) => client.on_shelf(act),
        }
    }
}

fn named(error: Error, path: &Path, operation: &'static str) -> Error {
    let path = path.display().to_string();
    let error = if error.what().contains(&path) { error } else { error.context(path) };
    error.operation(operation)
}

impl Shelf for Local {
    fn metas(&self) -> Vec<Meta> {
        let mut metas: Vec<Meta> = self.slots.values().map(|slot| slot.meta.clone()).collect();
        metas.sort_by(|one, other| one.key.cmp(&other.key));
        metas
    }

    fn slices(&self, meta: &Meta) -> Slices {
        smallvec![Slice { server: 0, number: 0, range: 0..meta.shape.elements().unwrap_or(0) }]
    }

    fn examine(&mut self, metas: &[Meta]) -> Result<Vec<Vec<Head>>> {
        metas.iter().map(|meta| Ok(vec![self.slot(&meta.key)?.head(&self.merge)])).collect()
    }

    fn export(&mut self, meta: &Meta, _: &Slice, with_value: bool) -> Result<(Head, Vec<Tensor>)> {
        self.slot(&meta.key)?.export(&self.merge, with_value, &self.arena)
    }

    fn import(&mut self, meta: &Meta, _: &Slice, import: Import, tensors: Vec<Tensor>) -> Result<()> {
        let slot = self.slots.get_mut(&meta.key).ok_or_else(|| crate::local::unknown(&meta.key, "load"))?;
        slot.import(&self.merge, import.with_value, &import.outline, &tensors, &self.arena)
    }

    fn optimizer(&mut self) -> Result<Option<Optimizer>> {
        Ok(match &self.merge {
            Merge::Optimizer(optimizer) => Some((**optimizer).clone()),
            _ => None,
        })
    }

    fn set_optimizer(&mut self, optimizer: &Optimizer) -> Result<()> {
        self.set_updater(Updater::from(optimizer.clone()))
    }
}

/// The name of a tensor in a file.
fn name_of(what: &str, key: &Key) -> String {
    match key {
        Key::Int(number) => format!("{what}/int:{number}"),
        Key::Str(text) => format!("{what}/text:{text}"),
    }
}

/// What the moments of a value are made of.
fn wide(dtype: Dtype) -> Dtype {
    if dtype == Dtype::F64 { Dtype::F64 } else { Dtype::F32 }
}

/// How all slices of a key stand, if they stand alike.
fn common(meta: &Meta, heads: &[Head]) -> Result<Head> {
    let first = heads.first().ok_or_else(|| Error::new(ErrorKind::Internal, "a key without slices"))?;
    match heads.iter().find(|head| *head != first) {
        Some(other) => {
            let what = format!("its slices have changed {} and {} times", first.version, other.version);
            Err(crate::protocol::being_updated(&meta.key).context(what))
        }
        None => Ok(first.clone()),
    }
}
