//! `sheave._core.Store`: a store as one of its workers has it.

#![expect(clippy::needless_pass_by_value, reason = "arguments from Python are made for the call")]

use crate::aside::aside;
use crate::enter::enter;
use crate::enter::span;
use crate::errors::OrRaise;
use crate::guarded::Guarded;
use crate::import::Access;
use crate::mesh::{self, PyMesh};
use crate::store::arguments::{self, Objects};
use crate::store::server;
use crate::store::unseen::Unseen;
use crate::store::{rows, updater};
use crate::work::{PyWork, now_ns};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3::{PyTraverseError, PyVisit};
use sheave_base::{Error, ErrorKind, Result, Work};
use sheave_mesh::Mesh;
use sheave_store::{Config, Kind, KvStore, Options, Updater};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A key-value store under flat lists of keys and values. `sheave.KVStore` is what people use.
#[pyclass(name = "Store", module = "sheave._core", frozen, weakref)]
pub(crate) struct PyStore {
    /// None once it is dropped.
    parts: Option<Guarded<Parts>>,
    kind: Kind,
    /// Functions of this process that update it: those that were offered under names, and the one that is set.
    functions: Mutex<HashMap<Option<String>, Arc<updater::Held>>>,
}

struct Parts {
    store: KvStore,
    /// Of a store on servers.
    mesh: Option<Mesh>,
    unseen: Unseen,
}

impl Drop for PyStore {
    fn drop(&mut self) {
        // The last handle of a mesh leaves it, which may take a while.
        let mut parts = self.parts.take();
        Python::try_attach(|py| py.detach(|| drop(parts.take())));
    }
}

impl PyStore {
    fn of(parts: Parts, kind: Kind) -> Self {
        Self { parts: Some(Guarded::new(parts)), kind, functions: Mutex::default() }
    }

    fn parts(&self, py: Python<'_>) -> PyResult<&Parts> {
        let closed = || Error::new(ErrorKind::Closed, "the store is gone");
        let parts = self.parts.as_ref().ok_or_else(closed).and_then(|parts| parts.check("store"));
        parts.or_raise(py)
    }

    /// The store, unless it is the parent's.
    fn store(&self, py: Python<'_>) -> PyResult<KvStore> {
        Ok(self.parts(py)?.store.clone())
    }

    fn is_local(&self) -> bool {
        !self.kind.is_distributed()
    }

    /// Keeps the function of a name in place of the one before it.
    fn keep(&self, name: Option<String>, held: Option<Arc<updater::Held>>) {
        let before = {
            let mut functions = self.functions.lock();
            match held {
                Some(held) => functions.insert(name, held),
                None => functions.remove(&name),
            }
        };
        drop(before);
    }

    /// Begins an operation and returns its work, whose result will be `result`. In a local store it is over then, and
    /// raises what went wrong.
    pub(crate) fn begin(
        &self,
        py: Python<'_>,
        result: Option<Py<PyAny>>,
        operation: impl FnOnce(&KvStore) -> Result<Work<()>> + Send,
    ) -> PyResult<PyWork> {
        let (store, begun_ns) = (self.store(py)?, now_ns());
        let work = enter(py, None, |_, interrupt| {
            // Where Ctrl-C ends it: the operation waits for room too, but for one who is not asked.
            store.wait_for_room(interrupt)?;
            operation(&store)
        })?;
        if let (true, Some(Err(error))) = (self.is_local(), work.result()) {
            return Err(updater::because(py, &error));
        }
        let unseen = self.parts(py)?.unseen.clone();
        let (look, watch) = unseen.watch(&work);
        let convert = move |py: Python<'_>, ()| {
            drop(watch);
            let Some(result) = result else { return Ok(py.None()) };
            unseen.raise().or_raise(py).map(|()| result)
        };
        Ok(PyWork::had_by(work, begun_ns, move |work| look.take(work), convert))
    }

    /// Does something that may wait for others, after which it is time to look at what nobody has looked at.
    fn meet(&self, py: Python<'_>, operation: impl FnOnce(&KvStore) -> Result<()> + Send + 'static) -> PyResult<()> {
        let outcome = self.wait(py, operation);
        let unseen = self.parts(py)?.unseen.raise().or_raise(py);
        // Who is told of one failure need not be told of an earlier one.
        outcome.and(unseen)
    }

    /// Does something that may wait for others.
    fn wait<T: Send + 'static>(
        &self,
        py: Python<'_>,
        operation: impl FnOnce(&KvStore) -> Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let store = self.store(py)?;
        // Nothing waits in a local store, and its updaters need this thread.
        if self.is_local() { enter(py, None, |_, _| operation(&store)) } else { aside(py, move || operation(&store)) }
    }
}

#[pymethods]
impl PyStore {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "one for each setting of a store")]
    #[pyo3(signature = (kind, mesh, cut_elements, slice_elements, staleness, on_worker_loss, open_timeout))]
    fn new(
        py: Python<'_>,
        kind: &str,
        mesh: Option<Py<PyMesh>>,
        cut_elements: Option<u64>,
        slice_elements: Option<u64>,
        staleness: Option<u64>,
        on_worker_loss: &str,
        open_timeout: Option<f64>,
    ) -> PyResult<Self> {
        let mut config = Config::of_kind(kind).or_raise(py)?;
        let kind = config.kind;
        config.on_worker_loss = arguments::on_worker_loss(on_worker_loss).or_raise(py)?;
        config.cut_elements = cut_elements.unwrap_or(config.cut_elements);
        config.slice_elements = slice_elements.unwrap_or(config.slice_elements);
        config.staleness = staleness.unwrap_or(config.staleness);
        config.open_timeout = span(open_timeout)?.unwrap_or(config.open_timeout);
        if !kind.is_distributed() {
            let store = KvStore::local(&kind.to_string()).or_raise(py)?;
            return Ok(Self::of(Parts { store, mesh: None, unseen: Unseen::default() }, kind));
        }
        let mesh = mesh.map_or_else(|| mesh::default_or_join(py), Ok)?.get().mesh().or_raise(py)?;
        let own = mesh.clone();
        let store = aside(py, move || KvStore::open(&own, config))?;
        Ok(Self::of(Parts { store, mesh: Some(mesh), unseen: Unseen::default() }, kind))
    }

    /// The name of the kind.
    #[getter]
    fn kind(&self) -> String {
        self.kind.to_string()
    }

    /// Whether it needs servers.
    #[getter]
    fn is_distributed(&self) -> bool {
        !self.is_local()
    }

    /// This worker's rank among the workers.
    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.store(py)?.rank())
    }

    /// How many workers there are.
    #[getter]
    fn num_workers(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.store(py)?.group_size())
    }

    /// New keys and their first values.
    fn init(&self, py: Python<'_>, keys: Objects<'_>, values: Objects<'_>) -> PyResult<()> {
        let pairs = arguments::pairs(py, &keys, &values, Access::Read)?;
        self.wait(py, move |store| store.init(&pairs))
    }

    /// New keys, whose first values another worker gives.
    fn init_without_values(&self, py: Python<'_>, keys: Objects<'_>) -> PyResult<()> {
        let keys = arguments::keys(&keys)?;
        self.wait(py, move |store| store.init_without_values(&keys))
    }

    /// Merges values into the stored ones.
    fn push(&self, py: Python<'_>, keys: Objects<'_>, values: Objects<'_>, priority: i32) -> PyResult<PyWork> {
        let pairs = arguments::pairs(py, &keys, &values, Access::Read)?;
        self.begin(py, None, |store| store.push_with(&pairs, Options { priority }))
    }

    /// Copies stored values into arrays. The work's result is `result`.
    fn pull(
        &self,
        py: Python<'_>,
        keys: Objects<'_>,
        outs: Objects<'_>,
        result: Py<PyAny>,
        priority: i32,
    ) -> PyResult<PyWork> {
        let places = arguments::pairs(py, &keys, &outs, Access::Write)?;
        self.begin(py, Some(result), |store| store.pull_with(&places, Options { priority }))
    }

    /// Pushes, and then pulls. The work's result is `result`.
    #[expect(clippy::too_many_arguments, reason = "two lists of keys and of arrays")]
    fn push_pull(
        &self,
        py: Python<'_>,
        keys: Objects<'_>,
        values: Objects<'_>,
        out_keys: Objects<'_>,
        outs: Objects<'_>,
        result: Py<PyAny>,
        priority: i32,
    ) -> PyResult<PyWork> {
        let pairs = arguments::pairs(py, &keys, &values, Access::Read)?;
        let places = arguments::pairs(py, &out_keys, &outs, Access::Write)?;
        self.begin(py, Some(result), |store| store.push_pull_with(&pairs, &places, Options { priority }))
    }

    /// New keys, each a table of this shape, with some first rows or of this dtype.
    #[expect(clippy::too_many_arguments, reason = "one list for each setting of a table")]
    fn init_rows(
        &self,
        py: Python<'_>,
        keys: Objects<'_>,
        shapes: Vec<Vec<u64>>,
        dtypes: Objects<'_>,
        ids: Vec<Option<Bound<'_, PyAny>>>,
        values: Vec<Option<Bound<'_, PyAny>>>,
    ) -> PyResult<()> {
        for others in [shapes.len(), dtypes.len(), ids.len(), values.len()] {
            arguments::same_length(py, keys.len(), others)?;
        }
        let tables = keys.iter().enumerate().map(|(at, key)| {
            let (ids, rows) = (ids[at].as_ref(), values[at].as_ref());
            let (shape, rows) = rows::First { shape: &shapes[at], dtype: &dtypes[at], ids, rows }.table(py)?;
            Ok((arguments::key(key)?, shape, rows))
        });
        let tables = tables.collect::<PyResult<Vec<_>>>()?;
        self.wait(py, move |store| store.init_rows(&tables))
    }

    /// Pushes rows and then pulls rows; either may be empty. The work's result is `result`.
    #[expect(clippy::too_many_arguments, reason = "three lists of what is pushed, and of what is pulled")]
    fn push_pull_rows(
        &self,
        py: Python<'_>,
        keys: Objects<'_>,
        ids: Objects<'_>,
        values: Objects<'_>,
        out_keys: Objects<'_>,
        out_ids: Objects<'_>,
        outs: Objects<'_>,
        result: Py<PyAny>,
        priority: i32,
    ) -> PyResult<PyWork> {
        let pushed = rows::rows(py, &keys, &ids, &values)?;
        let wanted = rows::places(py, &out_keys, &out_ids, &outs)?;
        let options = Options { priority };
        self.begin(py, Some(result), |store| store.push_pull_rows_with(&pushed, &wanted, options))
    }

    /// Sets an updater by its name.
    fn set_updater_named(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let updater = arguments::updater(name);
        self.wait(py, move |store| store.set_updater(updater))?;
        self.keep(None, None);
        Ok(())
    }

    /// Sets a Python function as the updater of a local store.
    fn set_updater_function(&self, py: Python<'_>, function: Py<PyAny>) -> PyResult<()> {
        let held = updater::Held::new(function);
        let updater = Updater::Function(updater::here(Arc::clone(&held)));
        self.wait(py, move |store| store.set_updater(updater))?;
        self.keep(None, Some(held));
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Who holds the lock will let it be seen another time.
        let Some(functions) = self.functions.try_lock() else { return Ok(()) };
        functions.values().try_for_each(|function| function.traverse(&visit))
    }

    fn __clear__(&self) {
        let functions = std::mem::take(&mut *self.functions.lock());
        functions.into_values().for_each(|function| function.clear());
    }

    /// Whether this worker's word counts where only one worker's does.
    #[getter]
    fn is_first(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.store(py)?.is_first())
    }

    /// Offers a pickled function under a name on all servers.
    fn ship(&self, py: Python<'_>, name: String, pickled: Vec<u8>) -> PyResult<()> {
        let Some(mesh) = self.parts(py)?.mesh.clone() else { return Ok(()) };
        aside(py, move || server::ship(&mesh, &name, &pickled))
    }

    /// Offers a Python function under a name in a local store.
    fn register(&self, py: Python<'_>, name: String, function: Py<PyAny>) -> PyResult<()> {
        let held = updater::Held::new(function);
        let (function, own) = (updater::here(Arc::clone(&held)), name.clone());
        self.wait(py, move |store| store.register(&name, function))?;
        self.keep(Some(own), Some(held));
        Ok(())
    }

    /// Sets an optimizer, written as `sheave.optim` writes it.
    fn set_optimizer(&self, py: Python<'_>, document: &str) -> PyResult<()> {
        let optimizer = arguments::optimizer(py, document)?;
        self.wait(py, move |store| store.set_optimizer(optimizer))?;
        self.keep(None, None);
        Ok(())
    }

    /// The optimizer's learning rate.
    fn learning_rate(&self, py: Python<'_>) -> PyResult<f64> {
        self.wait(py, KvStore::learning_rate)
    }

    /// Changes it.
    fn set_learning_rate(&self, py: Python<'_>, learning_rate: f64) -> PyResult<()> {
        self.wait(py, move |store| store.set_learning_rate(learning_rate))
    }

    /// How gradients travel: all, or those of some keys.
    #[pyo3(signature = (kind, threshold, keys))]
    fn set_gradient_compression(
        &self,
        py: Python<'_>,
        kind: &str,
        threshold: Option<f32>,
        keys: Option<Objects<'_>>,
    ) -> PyResult<()> {
        let compression = arguments::compression(kind, threshold).or_raise(py)?;
        let keys = keys.map(|keys| arguments::keys(&keys)).transpose()?;
        self.wait(py, move |store| match keys {
            Some(keys) => store.set_gradient_compression_of(&keys, compression),
            None => store.set_gradient_compression(compression),
        })
    }

    /// How values travel to this worker.
    fn set_pull_compression(&self, py: Python<'_>, kind: &str) -> PyResult<()> {
        let compression = arguments::compression(kind, None).or_raise(py)?;
        self.wait(py, move |store| store.set_pull_compression(compression))
    }

    /// Writes everything to a file.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.wait(py, move |store| store.save(path))
    }

    /// Reads it from a file.
    fn load(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.wait(py, move |store| store.load(path))
    }

    /// Writes the optimizer's states to a file.
    fn save_optimizer_states(&self, py: Python<'_>, path: PathBuf, dump_optimizer: bool) -> PyResult<()> {
        self.wait(py, move |store| store.save_optimizer_states(path, dump_optimizer))
    }

    /// Reads them from a file.
    fn load_optimizer_states(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.wait(py, move |store| store.load_optimizer_states(path))
    }

    /// Sends a command to the controller of every server.
    fn send_command_to_servers<'py>(
        &self,
        py: Python<'py>,
        number: i32,
        body: Vec<u8>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let answers = self.wait(py, move |store| store.send_command_to_servers(number, body))?;
        Ok(answers.iter().map(|answer| PyBytes::new(py, answer)).collect())
    }

    /// Meets all other workers.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.meet(py, KvStore::barrier)
    }

    /// Says that this worker has no more to push.
    fn done(&self, py: Python<'_>) -> PyResult<PyWork> {
        let begun_ns = now_ns();
        let work = self.wait(py, KvStore::done)?;
        Ok(PyWork::had_by(work, begun_ns, Work::wait, |py, ()| Ok(py.None())))
    }

    /// Waits for this worker's operations on some keys, or on all.
    fn wait_for(&self, py: Python<'_>, keys: Objects<'_>) -> PyResult<()> {
        let keys = arguments::keys(&keys)?;
        self.meet(py, move |store| store.wait(&keys))
    }

    /// Takes keys out of the store.
    fn delete(&self, py: Python<'_>, keys: Objects<'_>) -> PyResult<()> {
        let keys = arguments::keys(&keys)?;
        self.wait(py, move |store| store.delete(&keys))
    }

    /// How many of some nodes are dead.
    fn num_dead_node(&self, py: Python<'_>, node_id: i32, timeout: f64) -> PyResult<usize> {
        let span = Duration::try_from_secs_f64(timeout).map_err(|_| {
            Error::new(ErrorKind::InvalidArgument, format!("a timeout of {timeout} s")).operation("num_dead_node")
        });
        let timeout = span.or_raise(py)?;
        self.wait(py, move |store| store.num_dead_node(node_id, timeout))
    }

    /// Whether closing meets the other workers.
    fn set_barrier_before_exit(&self, py: Python<'_>, meets: bool) -> PyResult<()> {
        self.store(py)?.set_barrier_before_exit(meets);
        Ok(())
    }

    /// Ends this worker's part.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.meet(py, KvStore::close)
    }
}
