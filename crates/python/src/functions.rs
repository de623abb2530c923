//! The operations of `sheave` itself, which act on the default mesh: `sheave.init`, `sheave.all_reduce` and the like.

use crate::collectives::{self, Request};
use crate::errors::{self, OrRaise};
use crate::group::PyGroup;
use crate::mesh::{self, PyMesh};
use crate::placement;
use crate::rpc;
use crate::tensor::PyTensor;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sheave_base::{Error, ErrorKind};
use std::ffi::OsString;

/// Adds them to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    #[rustfmt::skip]
    let functions = [
        wrap_pyfunction!(init, module)?, wrap_pyfunction!(default_mesh, module)?, wrap_pyfunction!(empty, module)?,
        wrap_pyfunction!(barrier, module)?, wrap_pyfunction!(all_reduce, module)?, wrap_pyfunction!(reduce, module)?,
        wrap_pyfunction!(broadcast, module)?, wrap_pyfunction!(all_gather, module)?,
        wrap_pyfunction!(all_gather_v, module)?, wrap_pyfunction!(gather, module)?, wrap_pyfunction!(scatter, module)?,
        wrap_pyfunction!(reduce_scatter, module)?, wrap_pyfunction!(all_to_all, module)?,
        wrap_pyfunction!(all_to_all_v, module)?, wrap_pyfunction!(send, module)?, wrap_pyfunction!(recv, module)?,
        wrap_pyfunction!(isend, module)?, wrap_pyfunction!(irecv, module)?, wrap_pyfunction!(main, module)?,
        wrap_pyfunction!(placement::place_models, module)?,
    ];
    functions.into_iter().try_for_each(|function| module.add_function(function))?;
    // Not one of the names that the module offers.
    module.setattr("_open_rpc_group", wrap_pyfunction!(rpc::open_rpc_group, module)?)?;
    module.setattr("_free_port", wrap_pyfunction!(free_port, module)?)?;
    module.setattr("_variables_of_jobs", wrap_pyfunction!(variables_of_jobs, module)?)
}

fn no_mesh(py: Python<'_>) -> PyErr {
    let error = Error::new(ErrorKind::NotFound, "there is no default mesh");
    errors::to_python(py, &error.hint("call sheave.init() first"))
}

/// The group that is meant: the one given, or that of this process's role in the default mesh.
fn within<R>(
    py: Python<'_>,
    group: Option<&Bound<'_, PyGroup>>,
    act: impl FnOnce(&PyGroup) -> PyResult<R>,
) -> PyResult<R> {
    match group {
        Some(group) => act(group.get()),
        None => {
            let mesh = mesh::default_mesh(py).ok_or_else(|| no_mesh(py))?;
            act(mesh.get().default_group(py)?.get())
        }
    }
}

/// Join a mesh and remember it as the default one, which functions without a group or mesh act on: on the members of
/// this process's role, so among the workers in a worker. All members, servers included, are the group mesh.world.
///
/// Takes the arguments of Mesh. Without any it joins as the environment of whatever launched this process says; a
/// process that nobody has launched is a mesh of its own. While the default mesh lives, a call without arguments
/// returns it, and one with arguments raises AlreadyExists.
///
/// >>> with sheave.init() as mesh:
/// ...     sheave.all_reduce(np.array([1.0, 2.0]))
/// array([1., 2.])
#[pyfunction]
#[pyo3(signature = (**settings))]
fn init(py: Python<'_>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Py<PyMesh>> {
    let Some(settings) = settings.filter(|settings| !settings.is_empty()) else {
        return mesh::default_or_join(py);
    };
    if mesh::default_mesh(py).is_some() {
        let error = Error::new(ErrorKind::AlreadyExists, "this process has joined its default mesh already");
        let error = error.operation("init").hint("close that one first, or make another one with sheave.Mesh");
        return Err(errors::to_python(py, &error));
    }
    let joined = py.get_type::<PyMesh>().call((), Some(settings))?;
    mesh::remember_default(py, joined.cast_into::<PyMesh>()?.unbind())
}

/// The mesh that sheave.init joined. Raises NotFound if there is none, or it was left.
///
/// >>> sheave.default_mesh() is sheave.init()
/// True
#[pyfunction]
fn default_mesh(py: Python<'_>) -> PyResult<Py<PyMesh>> {
    mesh::default_mesh(py).ok_or_else(|| no_mesh(py))
}

/// A tensor in the default mesh's arena, where peers on this host reach it without a copy. Its elements are whatever
/// lay there.
///
/// shape is a number or a sequence of them; dtype a name or a dtype of numpy, torch or jax, float32 if None.
///
/// >>> tensor = sheave.empty((2, 3), "int32")
/// >>> tensor.numpy()[:] = 7
/// >>> sheave.all_reduce(tensor) is tensor
/// True
#[pyfunction]
#[pyo3(signature = (shape, dtype = None))]
fn empty(py: Python<'_>, shape: &Bound<'_, PyAny>, dtype: Option<&Bound<'_, PyAny>>) -> PyResult<PyTensor> {
    let mesh = mesh::default_mesh(py).ok_or_else(|| no_mesh(py))?;
    mesh.get().empty(py, shape, dtype)
}

/// Wait until every member of this process's role has come here. See Mesh.barrier for all members.
///
/// >>> sheave.barrier()
#[pyfunction]
#[pyo3(signature = (*, group = None, async_op = false, timeout = None))]
fn barrier(
    py: Python<'_>,
    group: Option<&Bound<'_, PyGroup>>,
    async_op: bool,
    timeout: Option<f64>,
) -> PyResult<Py<PyAny>> {
    within(py, group, |group| collectives::barrier(group, py, Request::new(async_op, timeout)))
}

/// Reduce the arrays of all members to all of them: into `out`, or in place. See Group.all_reduce.
///
/// >>> array = np.array([1.0, 2.0])
/// >>> sheave.all_reduce(array) is array
/// True
/// >>> sheave.all_reduce(array, "max", async_op=True).wait(timeout=10)
/// array([1., 2.])
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
#[pyo3(signature = (array, op = "sum", out = None, *, group = None, async_op = false, timeout = None))]
fn all_reduce(
    py: Python<'_>,
    array: &Bound<'_, PyAny>,
    op: &str,
    out: Option<&Bound<'_, PyAny>>,
    group: Option<&Bound<'_, PyGroup>>,
    async_op: bool,
    timeout: Option<f64>,
) -> PyResult<Py<PyAny>> {
    within(py, group, |group| collectives::all_reduce(group, array, op, out, Request::new(async_op, timeout)))
}

/// Reduce the arrays of all members to one, `dst`. See Group.reduce.
///
/// >>> sheave.reduce(np.array([1.0, 2.0]), dst=0)
/// array([1., 2.])
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
#[pyo3(signature = (array, op = "sum", out = None, dst = 0, *, group = None, async_op = false, timeout = None))]
fn reduce(
    py: Python<'_>,
    array: &Bound<'_, PyAny>,
    op: &str,
    out: Option<&Bound<'_, PyAny>>,
    dst: u32,
    group: Option<&Bound<'_, PyGroup>>,
    async_op: bool,
    timeout: Option<f64>,
) -> PyResult<Py<PyAny>> {
    within(py, group, |group| collectives::reduce(group, array, op, out, dst, Request::new(async_op, timeout)))
}

/// The array of member `src` goes to all. See Group.broadcast.
///
/// >>> sheave.broadcast(np.array([1.0, 2.0]), src=0)
/// array([1., 2.])
#[pyfunction]
#[pyo3(signature = (array, src = 0, *, group = None, async_op = false, timeout = None))]
fn broadcast(
    py: Python<'_>,
    array: &Bound<'_, PyAny>,
    src: u32,
    group: Option<&Bound<'_, PyGroup>>,
    async_op: bool,
    timeout: Option<f64>,
) -> PyResult<Py<PyAny>> {
    within(py, group, |group| collectives::broadcast(group, array, src, Request::new(async_op, timeout)))
}

/// The arrays of all members, one behind the other, on all of them. See Group.all_gather.
///
/// >>> sheave.all_gather(np.array([1.0, 2.0]))
/// array([[1., 2.]])
#[pyfunction]
#[pyo3(signature = (array, out = None, *, group = None, async_op = false, timeout = None))]
fn all_gather(
    py: Python<'_>,
    array: &Bound<'_, PyAny>,
    out: Option<&Bound<'_, PyAny>>,
    group: Option<&Bound<'_, PyGroup>>,
    async_op: bool,
    timeout: Option<f64>,
) -> PyResult<Py<PyAny>> {
    within(py, group, |group| collectives::all_gather(group, array, out, Request::new(async_op, timeout)))
}

/// The same of arrays of different lengths. See Group.all_gather_v.
///
/// >>> sheave.all_gather_v(np.array([1.0, 2.0]), lengths=[2])
/// array([1., 2.])
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
#[pyo3(signature = (array, lengths = None, out = None, *, group = None, async_op = false, timeout = None))]
fn all_gather_v(
    py: Python<'_>,
    array: &Bound<'_, PyAny>,
    lengths: Option<Vec<usize>>,
    out: Option<&Bound<'_, PyAny>>,
    group: Option<&Bound<'_, PyGroup>>,
    async_op: bool,
    timeout: Option<f64>,
) -> PyResult<Py<PyAny>> {
    within(py, group, |group| collectives::all_gather_v(group, array, lengths, out, Request::new(async_op, timeout)))
}

/// The arrays of all members, one behind the other, at `dst`. See Group.gather.
///
/// >>> sheave.gather(np.array([1.0, 2.0]), dst=0)
/// array([[1., 2.]])
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
#[pyo3(signature = (array, out = None, dst = 0, *, group = None, async_op = false, timeout = None))]
fn gather(
    py: Python<'_>,
    array: &Bound<'_, PyAny>,
    out: Option<&Bound<'_, PyAny>>,
    dst: u32,
    group: Option<&Bound<'_, PyGroup>>,
    async_op: bool,
    timeout: Option<f64>,
) -> PyResult<Py<PyAny>> {
    within(py, group, |group| collectives::gather(group, array, out, dst, Request::new(async_op, timeout)))
}

/// The pieces of member `src`'s array go one to each. See Group.scatter.
///
/// >>> sheave.scatter(np.array([[1.0, 2.0]]), out=np.zeros(2), src=0)
/// array([1., 2.])
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
#[pyo3(signature = (array, out = None, src = 0, *, group = None, async_op = false, timeout = None))]
fn scatter(
    py: Python<'_>,
    array: Option<&Bound<'_, PyAny>>,
    out: Option<&Bound<'_, PyAny>>,
    src: u32,
    group: Option<&Bound<'_, PyGroup>>,
    async_op: bool,
    timeout: Option<f64>,
) -> PyResult<Py<PyAny>> {
    within(py, group, |group| collectives::scatter(group, py, array, out, src, Request::new(async_op, timeout)))
}

/// Reduce the arrays of all members; each gets its piece. See Group.reduce_scatter.
///
/// >>> sheave.reduce_scatter(np.array([1.0, 2.0]))
/// array([1., 2.])
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
#[pyo3(signature = (array, op = "sum", out = None, *, group = None, async_op = false, timeout = None))]
fn reduce_scatter(
    py: Python<'_>,
    array: &Bound<'_, PyAny>,
    op: &str,
    out: Option<&Bound<'_, PyAny>>,
    group: Option<&Bound<'_, PyGroup>>,
    async_op: bool,
    timeout: Option<f64>,
) -> PyResult<Py<PyAny>> {
    within(py, group, |group| collectives::reduce_scatter(group, array, op, out, Request::new(async_op, timeout)))
}

/// Each member sends one piece to each. See Group.all_to_all.
///
/// >>> sheave.all_to_all(np.array([1.0, 2.0]))
/// array([1., 2.])
#[pyfunction]
#[pyo3(signature = (array, out = None, *, group = None, async_op = false, timeout = None))]
fn all_to_all(
    py: Python<'_>,
    array: &Bound<'_, PyAny>,
    out: Option<&Bound<'_, PyAny>>,
    group: Option<&Bound<'_, PyGroup>>,
    async_op: bool,
    timeout: Option<f64>,
) -> PyResult<Py<PyAny>> {
    within(py, group, |group| collectives::all_to_all(group, array, out, Request::new(async_op, timeout)))
}

/// The same with pieces of different lengths. See Group.all_to_all_v.
///
/// >>> sheave.all_to_all_v(np.array([1.0, 2.0]), sent=[2], received=[2])
/// array([1., 2.])
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
#[pyo3(signature = (array, sent, received, out = None, *, group = None, async_op = false, timeout = None))]
fn all_to_all_v(
    py: Python<'_>,
    array: &Bound<'_, PyAny>,
    sent: Vec<usize>,
    received: Vec<usize>,
    out: Option<&Bound<'_, PyAny>>,
    group: Option<&Bound<'_, PyGroup>>,
    async_op: bool,
    timeout: Option<f64>,
) -> PyResult<Py<PyAny>> {
    within(py, group, |group| {
        collectives::all_to_all_v(group, array, (sent, received), out, Request::new(async_op, timeout))
    })
}

/// Send an array to a member. See Group.send.
///
/// >>> sheave.send(b"hello", dst=1, group=one)
/// >>> sheave.recv(bytearray(5), group=other)
/// 0
#[pyfunction]
#[pyo3(signature = (array, dst, tag = 0, *, group = None, timeout = None))]
fn send(
    py: Python<'_>,
    array: &Bound<'_, PyAny>,
    dst: u32,
    tag: u64,
    group: Option<&Bound<'_, PyGroup>>,
    timeout: Option<f64>,
) -> PyResult<()> {
    within(py, group, |group| collectives::send(group, array, dst, tag, Request::new(false, timeout)).map(drop))
}

/// Receive into an array from one member, or from any. Returns the sender's rank. See Group.recv.
///
/// >>> sheave.send(b"hello", dst=1, group=one)
/// >>> sheave.recv(bytearray(5), src=0, group=other)
/// 0
#[pyfunction]
#[pyo3(signature = (array, src = None, tag = 0, *, group = None, timeout = None))]
fn recv(
    py: Python<'_>,
    array: &Bound<'_, PyAny>,
    src: Option<u32>,
    tag: u64,
    group: Option<&Bound<'_, PyGroup>>,
    timeout: Option<f64>,
) -> PyResult<Py<PyAny>> {
    within(py, group, |group| collectives::recv(group, array, src, tag, Request::new(false, timeout)))
}

/// Start to send an array. See Group.isend.
///
/// >>> work = sheave.isend(b"hello", dst=1, group=one)
/// >>> sheave.recv(bytearray(5), group=other)
/// 0
/// >>> work.wait(timeout=10)
#[pyfunction]
#[pyo3(signature = (array, dst, tag = 0, *, group = None, timeout = None))]
fn isend(
    py: Python<'_>,
    array: &Bound<'_, PyAny>,
    dst: u32,
    tag: u64,
    group: Option<&Bound<'_, PyGroup>>,
    timeout: Option<f64>,
) -> PyResult<Py<PyAny>> {
    within(py, group, |group| collectives::send(group, array, dst, tag, Request::new(true, timeout)))
}

/// Start to receive into an array. See Group.irecv.
///
/// >>> work = sheave.irecv(bytearray(5), group=other)
/// >>> sheave.send(b"hello", dst=1, group=one)
/// >>> work.wait(timeout=10)
/// 0
#[pyfunction]
#[pyo3(signature = (array, src = None, tag = 0, *, group = None, timeout = None))]
fn irecv(
    py: Python<'_>,
    array: &Bound<'_, PyAny>,
    src: Option<u32>,
    tag: u64,
    group: Option<&Bound<'_, PyGroup>>,
    timeout: Option<f64>,
) -> PyResult<Py<PyAny>> {
    within(py, group, |group| collectives::recv(group, array, src, tag, Request::new(true, timeout)))
}

/// The program `sheave` with these arguments; returns its exit code. `own` is how this process was started.
/// It expects a process of its own; `python -m sheave` is one.
///
/// >>> sheave._core.main([], ["--version"])
/// 0
#[pyfunction]
fn main(py: Python<'_>, own: Vec<OsString>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| sheave_cli::main(arguments, own))
}

/// A port for the processes of a job to meet at.
#[pyfunction]
#[pyo3(name = "_free_port")]
fn free_port(py: Python<'_>) -> PyResult<u16> {
    sheave_base::port::free().or_raise(py)
}

/// The variables by which processes find their place in a job, for who starts another job from within one.
#[pyfunction]
#[pyo3(name = "_variables_of_jobs")]
fn variables_of_jobs() -> Vec<&'static str> {
    sheave_cli::variables_of_jobs().collect()
}
