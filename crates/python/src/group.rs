//! `sheave.Group`: an ordered set of members that do things together.
//!
//! A blocking operation is one call into Rust and back: it begins and is waited for with the interpreter let go, and
//! where the others are as quick it never sees a clock, a queue or another thread. What an operation works on is held
//! by the operation itself, so a wait that Ctrl-C ends leaves it going, in step with the other members.

use crate::aside::aside;
use crate::collectives::{self, Request};
use crate::devices;
use crate::enter::{enter, span};
use crate::errors::{self, OrRaise};
use crate::guarded::Guarded;
use crate::mesh::{Home, PyMember};
use crate::work::{PyWork, now_ns};
use pyo3::prelude::*;
use pyo3::types::PyList;
use sheave_base::{Rank, Result, Work};
use sheave_collective::Communicator;
use sheave_mesh::Group;
use sheave_tensor::Arena;
use std::sync::Arc;

/// An ordered set of members of a mesh that do things together. Ranks are counted from 0 in its own order.
///
/// All members make the same calls in the same order. Arrays are flat to an operation: numbers of elements matter,
/// shapes do not. They are the operation's until it ends. Whatever fails after it has begun breaks the group on all
/// members, and every later operation of it fails too.
///
/// Calls may come from any thread, but the order is the group's: threads of a member begin operations in the same order
/// as those of every other member. A call that comes while another thread is in one, or waits for what it has begun, is
/// Mismatch on all members, for nobody can know which of them comes first. Threads that take turns without ever meeting
/// so, in another order on each member, are not found: their arrays are mixed. Give each thread a group of its own
/// (`subgroup`), or see to the order and say so (`ordered_by_caller`).
///
/// Every operation takes `timeout`, in seconds: a deadline, which names who is missing with DeadlineExceeded and breaks
/// the group. Without one it waits for as long as all members live. PeerLost names a member that is gone, Mismatch
/// shows both sides where members disagree, InvalidArgument and Unsupported say what cannot be done before anything has
/// begun. With `async_op` an operation returns a Work at once, whose result is what it returns otherwise; Ctrl-C in a
/// wait leaves it going. All dtypes of Tensor travel; operators take those that they make sense for.
///
/// all_reduce, broadcast, all_gather and reduce_scatter also take a list of arrays, of any dtypes, as one operation;
/// the result is a list too. Many small arrays go faster so than one by one.
///
/// >>> world.all_reduce([np.array([1.0, 2.0]), np.array([3])])
/// [array([1., 2.]), array([3])]
///
/// all_gather and gather fill a list of one array for each member, if `out` is one, and scatter, reduce_scatter with an
/// `out`, and all_to_all take one. Each is the same operation as with one array that holds all. Results land in the
/// listed arrays, by one copy each of memory of sheave's own; arrays to be filled must be contiguous. What does not fit
/// is refused before anything moves, by its index.
///
/// In the examples `world` is the group of a mesh of one, and `one` and `other` are the same group of two, as its two
/// members see it.
///
/// >>> world
/// <sheave.Group world rank 0 of 1>
/// >>> world.rank, world.size, world.label, world.members[0].name
/// (0, 1, 'world', 'rank-0')
#[pyclass(name = "Group", module = "sheave", frozen, weakref)]
pub(crate) struct PyGroup {
    communicator: Guarded<Communicator>,
    home: Arc<Home>,
}

impl PyGroup {
    pub(crate) fn new(py: Python<'_>, home: &Arc<Home>, group: &Group) -> PyResult<Self> {
        let communicator = home.collectives().and_then(|collectives| collectives.group(group)).or_raise(py)?;
        Ok(Self::of(home, communicator))
    }

    fn of(home: &Arc<Home>, communicator: Communicator) -> Self {
        Self { communicator: Guarded::new(communicator), home: Arc::clone(home) }
    }

    pub(crate) fn communicator(&self) -> Result<&Communicator> {
        self.communicator.check("group")
    }

    pub(crate) fn is_rank(&self, rank: u32) -> bool {
        self.communicator.rank().0 == rank
    }

    /// Where new arrays are made.
    pub(crate) fn arena(&self) -> Result<Arena> {
        Ok(self.home.mesh()?.node().arena().clone())
    }

    /// Begins an operation and waits for it, or returns its work. `convert` makes the result.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        py: Python<'_>,
        request: Request,
        start: impl FnOnce(&Communicator) -> Work<T> + Send,
        convert: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Py<PyAny>> {
        let known = self.communicator().or_raise(py)?;
        let limited = span(request.timeout_s)?.map(|limit| known.within(limit));
        let communicator = limited.as_ref().unwrap_or(known);
        if request.is_async {
            let begun_ns = now_ns();
            let work = enter(py, None, |_, _| Ok(start(communicator)))?;
            return Ok(Py::new(py, PyWork::of(work, begun_ns, convert))?.into_any());
        }
        let value = enter(py, None, |_, interrupt| {
            let work = start(communicator);
            let waited = work.wait_until(None, interrupt);
            if request.ends_with_wait && waited.is_err() {
                work.cancel();
            }
            waited.and_then(|_| work.taken())
        })?;
        convert(py, value)
    }
}

#[pymethods]
impl PyGroup {
    /// This node's rank in the group.
    #[getter]
    fn rank(&self) -> u32 {
        self.communicator.rank().0
    }

    /// The number of members.
    #[getter]
    fn size(&self) -> u32 {
        self.communicator.size()
    }

    /// What the group is called.
    #[getter]
    fn label(&self) -> &str {
        self.communicator.group().label()
    }

    /// The members in the order of their ranks in the group.
    #[getter]
    fn members(&self, py: Python<'_>) -> PyResult<Vec<PyMember>> {
        let group = self.communicator().or_raise(py)?.group();
        Ok((0..self.size()).filter_map(|rank| group.member(Rank(rank))).map(PyMember::from).collect())
    }

    /// Why its operations fail: an exception, or None while they do not.
    ///
    /// >>> world.broken is None
    /// True
    #[getter]
    fn broken(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let broken = self.communicator().or_raise(py)?.broken();
        Ok(broken.map(|error| errors::to_python(py, &error).into_value(py).into_any()))
    }

    /// Give the group up for all its members: whatever is on its way in it ends with Cancelled.
    ///
    /// So does every later operation. It returns at once; the others learn of it soon, and whose doing it was. Other
    /// groups go on.
    ///
    /// >>> group = mesh.group([0], "given up")
    /// >>> work = group.irecv(np.zeros(3), tag=99)
    /// >>> group.cancel()
    /// >>> work.wait(timeout=10)
    /// Traceback (most recent call last):
    /// ...
    /// sheave.Cancelled: ...
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let communicator = self.communicator().or_raise(py)?;
        py.detach(|| communicator.cancel());
        Ok(())
    }

    /// The group of some members by their ranks in this one, in this order, this node among them. Nobody is asked.
    ///
    /// >>> world.subgroup([0], "alone").size
    /// 1
    #[pyo3(signature = (ranks, label = "group"))]
    fn subgroup(&self, py: Python<'_>, ranks: Vec<u32>, label: &str) -> PyResult<Self> {
        let ranks: Vec<Rank> = ranks.into_iter().map(Rank).collect();
        let communicator = self.communicator().or_raise(py)?;
        let made = py.detach(|| communicator.subgroup(label, &ranks)).or_raise(py)?;
        Ok(Self::of(&self.home, made))
    }

    /// This group, for threads that begin operations in an order which the program sees to, the same on all members.
    ///
    /// One may begin an operation while another one waits for what it has begun, which is refused otherwise.
    ///
    /// >>> ordered = world.ordered_by_caller()
    /// >>> work = ordered.all_reduce(np.array([1.0, 2.0]), async_op=True)
    /// >>> ordered.barrier()
    /// >>> work.wait(timeout=10)
    /// array([1., 2.])
    fn ordered_by_caller(&self, py: Python<'_>) -> PyResult<Self> {
        let communicator = self.communicator().or_raise(py)?;
        Ok(Self::of(&self.home, communicator.ordered_by_caller()))
    }

    /// The group of those who give the same colour, in the order of their keys and then of their ranks.
    ///
    /// Every member calls it, and it waits for all of them. Returns None for who gives None.
    ///
    /// >>> world.split(color=0, key=0).size
    /// 1
    #[pyo3(signature = (color, key = 0))]
    fn split(&self, py: Python<'_>, color: Option<u32>, key: i64) -> PyResult<Option<Self>> {
        let communicator = self.communicator().or_raise(py)?.clone();
        let made = aside(py, move || communicator.split(color, key))?;
        Ok(made.map(|made| Self::of(&self.home, made)))
    }

    /// The group of the survivors after a death. Waits until all of them agree who they are.
    ///
    /// Raises InvalidArgument if nobody has died.
    ///
    /// >>> world.shrink()
    /// Traceback (most recent call last):
    /// ...
    /// sheave.InvalidArgument: ...
    fn shrink(&self, py: Python<'_>) -> PyResult<Self> {
        let communicator = self.communicator().or_raise(py)?.clone();
        let made = aside(py, move || communicator.shrink())?;
        Ok(Self::of(&self.home, made))
    }

    /// Wait until every member has come here.
    ///
    /// >>> world.barrier()
    #[pyo3(signature = (*, async_op = false, timeout = None))]
    fn barrier(&self, py: Python<'_>, async_op: bool, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        collectives::barrier(self, py, Request::new(async_op, timeout))
    }

    /// Reduce the arrays of all members to all of them: into `out`, or in place. Returns what the result is in.
    ///
    /// op is "sum", "product", "min", "max", "avg", "band", "bor" or "bxor". Results are the same bits on all members
    /// and in every run.
    ///
    /// >>> array = np.array([1.0, 2.0])
    /// >>> world.all_reduce(array) is array
    /// True
    /// >>> world.all_reduce(array, "max", async_op=True).wait(timeout=10)
    /// array([1., 2.])
    #[pyo3(signature = (array, op = "sum", out = None, *, async_op = false, timeout = None))]
    fn all_reduce(
        &self,
        array: &Bound<'_, PyAny>,
        op: &str,
        out: Option<&Bound<'_, PyAny>>,
        async_op: bool,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        collectives::all_reduce(self, array, op, out, Request::new(async_op, timeout))
    }

    /// Reduce the arrays of all members to one, `dst`: into its `out`, or in place. Returns what the result is in
    /// there, and None elsewhere, where arrays are only read.
    ///
    /// >>> world.reduce(np.array([1.0, 2.0]), dst=0)
    /// array([1., 2.])
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    #[pyo3(signature = (array, op = "sum", out = None, dst = 0, *, async_op = false, timeout = None))]
    fn reduce(
        &self,
        array: &Bound<'_, PyAny>,
        op: &str,
        out: Option<&Bound<'_, PyAny>>,
        dst: u32,
        async_op: bool,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        collectives::reduce(self, array, op, out, dst, Request::new(async_op, timeout))
    }

    /// The array of member `src` goes to all, who give one of the same dtype and number of elements. Returns it.
    ///
    /// >>> world.broadcast(np.array([1.0, 2.0]), src=0)
    /// array([1., 2.])
    #[pyo3(signature = (array, src = 0, *, async_op = false, timeout = None))]
    fn broadcast(
        &self,
        array: &Bound<'_, PyAny>,
        src: u32,
        async_op: bool,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        collectives::broadcast(self, array, src, Request::new(async_op, timeout))
    }

    /// The arrays of all members, one behind the other, on all of them: in `out`, or in a new array of the shape
    /// (size, *shape). Returns it. `out` may be a list of one array for each member, of lengths that may differ.
    ///
    /// >>> world.all_gather(np.array([1.0, 2.0]))
    /// array([[1., 2.]])
    /// >>> world.all_gather(np.array([1.0, 2.0]), out=[np.zeros(2)])
    /// [array([1., 2.])]
    #[pyo3(signature = (array, out = None, *, async_op = false, timeout = None))]
    fn all_gather(
        &self,
        array: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        async_op: bool,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        collectives::all_gather(self, array, out, Request::new(async_op, timeout))
    }

    /// As all_gather, of arrays of different lengths: `lengths` has the number of elements of each member. Without it
    /// they are asked for first, which waits for all members. The new array has one dimension, or the trailing ones of
    /// `array` where the lengths allow it.
    ///
    /// >>> world.all_gather_v(np.array([1.0, 2.0]), lengths=[2])
    /// array([1., 2.])
    #[pyo3(signature = (array, lengths = None, out = None, *, async_op = false, timeout = None))]
    fn all_gather_v(
        &self,
        array: &Bound<'_, PyAny>,
        lengths: Option<Vec<usize>>,
        out: Option<&Bound<'_, PyAny>>,
        async_op: bool,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        collectives::all_gather_v(self, array, lengths, out, Request::new(async_op, timeout))
    }

    /// The arrays of all members, one behind the other, at `dst`: in its `out`, or in a new array of the shape
    /// (size, *shape). Returns it there, and None elsewhere. `out` may be a list of one array for each member.
    ///
    /// >>> world.gather(np.array([1.0, 2.0]), dst=0)
    /// array([[1., 2.]])
    /// >>> world.gather(np.array([1.0, 2.0]), out=[np.zeros(2)], dst=0)
    /// [array([1., 2.])]
    #[pyo3(signature = (array, out = None, dst = 0, *, async_op = false, timeout = None))]
    fn gather(
        &self,
        array: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        dst: u32,
        async_op: bool,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        collectives::gather(self, array, out, dst, Request::new(async_op, timeout))
    }

    /// The array of member `src` is cut into as many pieces as there are members, and each gets its own in `out`.
    ///
    /// `src` may give a list of the pieces instead; others give None. `src` may leave `out` away and gets a new array.
    /// Returns the piece.
    ///
    /// >>> world.scatter(np.array([[1.0, 2.0]]), out=np.zeros(2), src=0)
    /// array([1., 2.])
    /// >>> world.scatter([np.array([1.0, 2.0])], out=np.zeros(2), src=0)
    /// array([1., 2.])
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    #[pyo3(signature = (array, out = None, src = 0, *, async_op = false, timeout = None))]
    fn scatter(
        &self,
        py: Python<'_>,
        array: Option<&Bound<'_, PyAny>>,
        out: Option<&Bound<'_, PyAny>>,
        src: u32,
        async_op: bool,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        collectives::scatter(self, py, array, out, src, Request::new(async_op, timeout))
    }

    /// Reduce the arrays of all members and cut the result into as many pieces as there are members; each gets its own,
    /// in `out` or in a new array. Returns it. With one array as `out`, a list has the pieces of the array.
    ///
    /// >>> world.reduce_scatter(np.array([1.0, 2.0]))
    /// array([1., 2.])
    /// >>> world.reduce_scatter([np.array([1.0, 2.0])], out=np.zeros(2))
    /// array([1., 2.])
    #[pyo3(signature = (array, op = "sum", out = None, *, async_op = false, timeout = None))]
    fn reduce_scatter(
        &self,
        array: &Bound<'_, PyAny>,
        op: &str,
        out: Option<&Bound<'_, PyAny>>,
        async_op: bool,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        collectives::reduce_scatter(self, array, op, out, Request::new(async_op, timeout))
    }

    /// Every array is cut into as many pieces as there are members: piece i of member j becomes piece j of member i, in
    /// `out` or in place. Returns what the result is in. Both may be lists of the pieces, of lengths that may differ.
    ///
    /// >>> world.all_to_all(np.array([1.0, 2.0]))
    /// array([1., 2.])
    /// >>> world.all_to_all([np.array([1.0, 2.0])], out=[np.zeros(2)])
    /// [array([1., 2.])]
    #[pyo3(signature = (array, out = None, *, async_op = false, timeout = None))]
    fn all_to_all(
        &self,
        array: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        async_op: bool,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        collectives::all_to_all(self, array, out, Request::new(async_op, timeout))
    }

    /// As all_to_all, with `sent[i]` elements to member i and `received[j]` from member j, into `out` or a new array of
    /// one dimension. What one sends and the other expects is compared before anything moves.
    ///
    /// >>> world.all_to_all_v(np.array([1.0, 2.0]), sent=[2], received=[2])
    /// array([1., 2.])
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    #[pyo3(signature = (array, sent, received, out = None, *, async_op = false, timeout = None))]
    fn all_to_all_v(
        &self,
        array: &Bound<'_, PyAny>,
        sent: Vec<usize>,
        received: Vec<usize>,
        out: Option<&Bound<'_, PyAny>>,
        async_op: bool,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        collectives::all_to_all_v(self, array, (sent, received), out, Request::new(async_op, timeout))
    }

    /// Reduce all arrays that all members have, as on several devices, to all of them. They have one dtype and length;
    /// members may have different numbers of them, but for "avg". Returns the list.
    ///
    /// >>> world.all_reduce_devices([np.array([1.0]), np.array([2.0])])
    /// [array([3.]), array([3.])]
    #[pyo3(signature = (arrays, op = "sum", *, async_op = false, timeout = None))]
    fn all_reduce_devices(
        &self,
        arrays: &Bound<'_, PyList>,
        op: &str,
        async_op: bool,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        devices::all_reduce(self, arrays, op, Request::new(async_op, timeout))
    }

    /// As all_reduce_devices, to `out` of one member, `dst`, which may be one of its arrays. Others give none. Returns
    /// `out` there, and None elsewhere, where arrays are only read.
    ///
    /// >>> world.reduce_devices([np.array([1.0]), np.array([2.0])], out=np.zeros(1))
    /// array([3.])
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    #[pyo3(signature = (arrays, op = "sum", out = None, dst = 0, *, async_op = false, timeout = None))]
    fn reduce_devices(
        &self,
        arrays: &Bound<'_, PyList>,
        op: &str,
        out: Option<&Bound<'_, PyAny>>,
        dst: u32,
        async_op: bool,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        devices::reduce(self, arrays, op, out, dst, Request::new(async_op, timeout))
    }

    /// The first array of member `src` goes to all its others and to all arrays of all others. Returns the list.
    ///
    /// >>> world.broadcast_devices([np.array([1.0]), np.array([2.0])])
    /// [array([1.]), array([1.])]
    #[pyo3(signature = (arrays, src = 0, *, async_op = false, timeout = None))]
    fn broadcast_devices(
        &self,
        arrays: &Bound<'_, PyList>,
        src: u32,
        async_op: bool,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        devices::broadcast(self, arrays, src, Request::new(async_op, timeout))
    }

    /// Send an array to a member and return when it may be written again.
    ///
    /// Messages of one sender with the same tag arrive in order. A deadline ends just this message.
    ///
    /// >>> one.send(b"hello", dst=1)
    /// >>> text = bytearray(5)
    /// >>> other.recv(text), text
    /// (0, bytearray(b'hello'))
    #[pyo3(signature = (array, dst, tag = 0, *, timeout = None))]
    fn send(&self, array: &Bound<'_, PyAny>, dst: u32, tag: u64, timeout: Option<f64>) -> PyResult<()> {
        collectives::send(self, array, dst, tag, Request::new(false, timeout)).map(drop)
    }

    /// Receive into an array from one member, or from any if None. Returns the sender's rank.
    ///
    /// The sender's array has the same dtype and number of elements, or both get Mismatch. A deadline or Ctrl-C ends
    /// just this receive.
    ///
    /// >>> one.send(np.array([1.0, 2.0]), dst=1)
    /// >>> array = np.zeros(2)
    /// >>> other.recv(array, timeout=10), array
    /// (0, array([1., 2.]))
    #[pyo3(signature = (array, src = None, tag = 0, *, timeout = None))]
    fn recv(&self, array: &Bound<'_, PyAny>, src: Option<u32>, tag: u64, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        collectives::recv(self, array, src, tag, Request::new(false, timeout))
    }

    /// Start to send an array, which may be written again when the work has ended.
    ///
    /// >>> work = one.isend(np.array([1.0, 2.0]), dst=1, tag=7)
    /// >>> array = np.zeros(2)
    /// >>> other.recv(array, src=0, tag=7), array
    /// (0, array([1., 2.]))
    /// >>> work.wait(timeout=10)
    #[pyo3(signature = (array, dst, tag = 0, *, timeout = None))]
    fn isend(&self, array: &Bound<'_, PyAny>, dst: u32, tag: u64, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        collectives::send(self, array, dst, tag, Request::new(true, timeout))
    }

    /// Start to receive into an array. The work's result is the sender's rank.
    ///
    /// >>> array = np.zeros(2)
    /// >>> work = other.irecv(array)
    /// >>> one.send(np.array([1.0, 2.0]), dst=1)
    /// >>> work.wait(timeout=10), array
    /// (0, array([1., 2.]))
    #[pyo3(signature = (array, src = None, tag = 0, *, timeout = None))]
    fn irecv(&self, array: &Bound<'_, PyAny>, src: Option<u32>, tag: u64, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        collectives::recv(self, array, src, tag, Request::new(true, timeout))
    }

    fn __repr__(&self) -> String {
        format!("<sheave.Group {} rank {} of {}>", self.label(), self.rank(), self.size())
    }
}
