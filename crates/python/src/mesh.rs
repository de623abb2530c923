//! `sheave.Mesh`: the nodes of a job, as one of them, and the mesh that a program means when it names none.
//!
//! The arguments of a mesh are said in the words of its settings: each that is given stands for the variable of the
//! same meaning, and what is not given is read from the environment, in whatever way its launcher has written it.

use crate::aside::end_aside;
use crate::enter::enter;
use crate::errors::{self, OrRaise};
use crate::group::PyGroup;
use crate::link::PyPeer;
use crate::meeting::PyMeet;
use crate::references::{self, PyRef};
use crate::rpc::PyRpcGroup;
use crate::tensor::PyTensor;
use crate::value::{Opener, Opens};
use crate::{calls, life, places};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use sheave_base::config::Role;
use sheave_base::fork::ForkMark;
use sheave_base::{Error, ErrorKind, NodeId, Result, Work, secret};
use sheave_collective::Collectives;
use sheave_mesh::{Death, Meeting, Member, Mesh, check_environment};
use sheave_rpc::Rpc;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// What changes in a mesh while it lives.
struct Fate {
    epoch: u64,
    deaths: Vec<Death>,
}

impl Fate {
    fn of(mesh: &Mesh) -> Self {
        Self { epoch: u64::from(mesh.epoch().0), deaths: mesh.deaths() }
    }
}

/// Where a mesh is until it is left. Its groups hold it too: as long as somebody has one, this node stays.
pub(crate) struct Home {
    mesh: Mutex<Option<Mesh>>,
    /// Who is there never changes, and is told even when the mesh was left.
    own: Member,
    members: Vec<Member>,
    /// What was known when it was left.
    last: OnceLock<Fate>,
    collectives: Mutex<Option<Collectives>>,
    /// The barrier of a `finish` that was given up; the next one goes on with it.
    finishing: Mutex<Option<Work<()>>>,
    mark: ForkMark,
    /// Whether it opens what other members have pickled.
    opens: Opens,
    rpc: Rpc,
}

impl Home {
    pub(crate) fn mesh(&self) -> Result<Mesh> {
        self.mark.check("mesh")?;
        let mesh = self.mesh.lock().unwrap_or_else(PoisonError::into_inner);
        mesh.clone().ok_or_else(|| Error::new(ErrorKind::Closed, "this node has left the mesh"))
    }

    /// This node's part in groups of rpc.
    pub(crate) fn rpc(&self) -> &Rpc {
        &self.rpc
    }

    /// What opens values that come over this mesh.
    pub(crate) fn opener(&self, mesh: &Mesh) -> Opener {
        Opener::new(mesh.downgrade(), self.opens.clone())
    }

    /// The mesh's collective operations, made with the first group.
    pub(crate) fn collectives(&self) -> Result<Collectives> {
        let mesh = self.mesh()?;
        let mut collectives = self.collectives.lock().unwrap_or_else(PoisonError::into_inner);
        match &*collectives {
            Some(known) => Ok(known.clone()),
            None => Ok(collectives.insert(Collectives::new(&mesh)?).clone()),
        }
    }

    /// This node and all members, of a mesh that this process has joined, left or not.
    fn table(&self) -> Result<(&Member, &[Member])> {
        self.mark.check("mesh").map(|()| (&self.own, &*self.members))
    }

    /// How things are or, when it was left, how they were then.
    fn fate<T>(&self, get: impl FnOnce(&Fate) -> T) -> Result<T> {
        match self.mesh() {
            Ok(mesh) => Ok(get(&Fate::of(&mesh))),
            Err(error) => self.last.get().filter(|_| error.kind() == ErrorKind::Closed).map(get).ok_or(error),
        }
    }

    fn take(&self) -> Option<Mesh> {
        if self.mark.is_stale() {
            return None;
        }
        if let Ok(mesh) = self.mesh() {
            self.last.get_or_init(|| Fate::of(&mesh));
        }
        drop(self.collectives.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(self.finishing.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.mesh.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl life::Living for Home {
    fn end(&self, how: life::End) {
        let Some(mesh) = self.take() else { return };
        match how {
            life::End::Uncaught => mesh.fail("an exception that nobody caught ended its program"),
            // Nobody is left to be told.
            life::End::Waited => drop(mesh.leave()),
            life::End::Quiet => life::when_status_is_known(move |status| end_with_status(&mesh, status)),
        }
    }
}

/// Ends a mesh with its process.
pub(crate) fn end_with_status(mesh: &Mesh, status: i32) {
    if status == 0 {
        // Nobody is left to be told.
        let _ = mesh.leave();
    } else {
        mesh.fail(&format!("its program ended with exit status {status}"));
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.mark.is_stale() {
            // What a forked child inherits is not its own to give back.
            std::mem::forget(self.mesh.get_mut().unwrap_or_else(PoisonError::into_inner).take());
            std::mem::forget(self.collectives.get_mut().unwrap_or_else(PoisonError::into_inner).take());
            std::mem::forget(self.finishing.get_mut().unwrap_or_else(PoisonError::into_inner).take());
            return;
        }
        let Some(mesh) = self.take() else { return };
        if life::is_ending() {
            // It was made while the interpreter ended.
            return life::when_status_is_known(move |status| end_with_status(&mesh, status));
        }
        // Ending may take a moment, which is not the other threads' affair. What is dropped has failed.
        let mut dropped = Some(mesh);
        Python::try_attach(|py| py.detach(|| drop(dropped.take())));
        drop(dropped);
    }
}

/// A member of a mesh. Members that have died or left stay in the list.
///
/// >>> member = mesh.members[0]
/// >>> member.name, member.role, member.rank, member.role_rank
/// ('rank-0', 'rank', 0, 0)
#[pyclass(name = "Member", module = "sheave", frozen, eq, hash, get_all)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct PyMember {
    /// Its name, unique in the mesh.
    pub(crate) name: String,
    /// What it is there for: `worker`, `server`, `scheduler` or `rank`.
    role: String,
    /// Its rank among all members: schedulers first, then servers, workers and plain ranks.
    rank: u32,
    /// Its rank among the members of its role.
    role_rank: u32,
    /// The name of its host.
    host: String,
    /// Its process id on that host.
    pid: u32,
}

impl From<&Member> for PyMember {
    fn from(member: &Member) -> Self {
        let about = &member.introduction;
        Self {
            name: about.name.clone(),
            role: about.role.to_string(),
            rank: member.rank.0,
            role_rank: member.role_rank,
            host: about.host.clone(),
            pid: about.pid,
        }
    }
}

#[pymethods]
impl PyMember {
    fn __repr__(&self) -> String {
        let Self { name, rank, host, pid, .. } = self;
        format!("<sheave.Member {name} (rank {rank}, host {host}, pid {pid})>")
    }
}

/// A member that is gone: who, whether it `left` in order, the first `epoch` without it, and the `reason` seen.
///
/// >>> [death.member.name for death in mesh.deaths() if not death.left]
/// []
#[pyclass(name = "Death", module = "sheave", frozen, get_all)]
pub(crate) struct PyDeath {
    /// Who is gone.
    member: Py<PyMember>,
    /// True if it left in order, which is no death at all.
    left: bool,
    /// The first epoch without it.
    epoch: u64,
    /// What was seen.
    reason: String,
}

#[pymethods]
impl PyDeath {
    fn __repr__(&self) -> String {
        let how = if self.left { "left" } else { "died" };
        format!("<sheave.Death {} {how} in epoch {}: {}>", self.member.get().name, self.epoch, self.reason)
    }
}

/// The nodes of a job, as one of them.
///
/// Every method may be called from any thread. Waits let other Python threads run, end at Ctrl-C, and fail with
/// PeerLost as soon as a member that they need is gone. A program ends its part with finish or leave. As a context
/// manager the mesh is left at the end, and has failed after an exception; a program that ends with status 0 leaves,
/// and any other has failed, as has one that drops the mesh and all its groups: the others are told. What it says of
/// itself and its members it still says when it was left, as it was then; whatever does something raises Closed.
///
/// Each argument that is given stands for the variable of the environment of the same meaning, and what is not given is
/// read from there, as the launcher of this process has written it (SHEAVE_*, DMLC_*, torchrun's, MPI's or Slurm's).
///
/// - rank, size: this process among plain ranks. root: "host:port" where they meet, which rank 0 listens at.
/// - role, workers, servers: "scheduler", "server" or "worker" in a job with a scheduler, which listens at root.
/// - name: unique in the mesh. host: what the others are told to reach this process at. bind: the address to listen on.
/// - insecure: permits addresses that other hosts can reach, without TLS.
/// - join_timeout, liveness_timeout: seconds for the join, and of silence after which a member is dead.
/// - transport: "auto", "shm" or "tcp". arena_bytes: the most memory for tensors. local_ranks: busy processes here.
/// - collective_table: a file with rules for algorithms. secret: text or bytes of at least 16, the same on all.
/// - meet: a store with set(key, bytes) and a blocking get(key), for plain ranks that know no root: rank 0 listens at
///   any free port and sets its address, which the others get. See sheave.meet.
///
/// Blocks until all members are there. Raises DeadlineExceeded that says who is missing; Unauthenticated for another
/// secret; AlreadyExists for a rank, name or port that is taken; InvalidArgument for what makes no sense.
///
/// >>> with sheave.Mesh(rank=0, size=1) as mesh:
/// ...     mesh.rank, mesh.size, mesh.role, mesh.name
/// (0, 1, 'rank', 'rank-0')
#[pyclass(name = "Mesh", module = "sheave", frozen, weakref)]
pub(crate) struct PyMesh {
    home: Arc<Home>,
    world: PyOnceLock<Py<PyGroup>>,
    /// That of this node's role, where there are several.
    peers: PyOnceLock<Py<PyGroup>>,
}

impl PyMesh {
    /// The mesh, for other rooms' faces.
    pub(crate) fn mesh(&self) -> Result<Mesh> {
        self.home.mesh()
    }

    pub(crate) fn rpc(&self) -> &Rpc {
        self.home.rpc()
    }

    pub(crate) fn opener(&self, mesh: &Mesh) -> Opener {
        self.home.opener(mesh)
    }

    pub(crate) fn join(py: Python<'_>, place: &places::Place) -> PyResult<Self> {
        // Here and not in the wait: others may write the environment while the interpreter is let go.
        check_environment().or_raise(py)?;
        let opens = calls::opens();
        let mut config = place.config().or_raise(py)?;
        // In a store the secret may be found too.
        if config.node.secret.is_none() && matches!(config.meeting, Meeting::Root(_)) {
            let resolved = secret::resolve(|name| std::env::var_os(name));
            config.node.secret = Some(resolved.map_err(|error| error.operation("finding the secret")).or_raise(py)?);
        }
        let opens = opens.or_raise(py)?;
        let mut rpc = None;
        // Before the others know that this node is there: they may call at once.
        let serve = |mesh: &Mesh| {
            let opener = || Opener::new(mesh.downgrade(), opens.clone());
            references::serve(mesh, opener())?;
            calls::serve_functions(mesh, opener())?;
            rpc = Some(Rpc::serve(mesh)?);
            Ok(())
        };
        let mesh = enter(py, None, |_, interrupt| Mesh::join_serving(config, interrupt, serve))?;
        let rpc = rpc.ok_or_else(|| Error::new(ErrorKind::Internal, "a mesh without rpc")).or_raise(py)?;
        let home = Arc::new(Home {
            own: mesh.me().clone(),
            members: mesh.members().to_vec(),
            mesh: Mutex::new(Some(mesh)),
            last: OnceLock::new(),
            collectives: Mutex::default(),
            finishing: Mutex::default(),
            mark: ForkMark::here(),
            opens,
            rpc,
        });
        let living: Weak<Home> = Arc::downgrade(&home);
        remember_home(&living);
        life::remember(living);
        Ok(Self { home, world: PyOnceLock::new(), peers: PyOnceLock::new() })
    }

    fn is_alive(&self) -> bool {
        !self.home.mark.is_stale() && self.home.mesh.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn me<T>(&self, py: Python<'_>, get: impl FnOnce(&Member) -> T) -> PyResult<T> {
        self.home.table().map(|(own, _)| get(own)).or_raise(py)
    }

    pub(crate) fn world_group(&self, py: Python<'_>) -> PyResult<&Py<PyGroup>> {
        if let Some(world) = self.world.get(py) {
            return Ok(world);
        }
        let group = self.mesh().map(|mesh| mesh.world()).or_raise(py)?;
        let made = Py::new(py, PyGroup::new(py, &self.home, &group)?)?;
        Ok(self.world.get_or_init(py, || made))
    }

    /// The group that functions act on which are given none: the members of this node's role.
    pub(crate) fn default_group(&self, py: Python<'_>) -> PyResult<&Py<PyGroup>> {
        if let Some(peers) = self.peers.get(py) {
            return Ok(peers);
        }
        let mesh = self.mesh().or_raise(py)?;
        let role = mesh.me().introduction.role;
        if mesh.of_role(role).count() == mesh.members().len() {
            return self.world_group(py);
        }
        let group = py.detach(|| mesh.role_group(role)).or_raise(py)?;
        let made = Py::new(py, PyGroup::new(py, &self.home, &group)?)?;
        Ok(self.peers.get_or_init(py, || made))
    }

    /// The member of this node's role that has this rank among them.
    fn node(mesh: &Mesh, rank: u32) -> Result<NodeId> {
        let role = mesh.me().introduction.role;
        let found = mesh.of_role(role).find(|member| member.role_rank == rank).map(|member| member.node);
        found.ok_or_else(|| {
            let what = format!("rank {rank} is outside the {} {role}s of the mesh", mesh.of_role(role).count());
            Error::new(ErrorKind::InvalidArgument, what).operation("group")
        })
    }
}

/// Why a node has failed whose block has ended with this exception; nothing if that ends the program with status 0.
pub(crate) fn failure_of(kind: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> Option<String> {
    if kind.is_none() || is_orderly_exit(value) {
        return None;
    }
    let name = kind.getattr("__name__").and_then(|name| name.extract::<String>());
    let text = value.str().map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
    Some(format!("{}: {text}", name.unwrap_or_else(|_| "an exception".to_owned())))
}

/// Whether an exception ends the program with status 0.
fn is_orderly_exit(exception: &Bound<'_, PyAny>) -> bool {
    let is_exit = exception.is_instance_of::<pyo3::exceptions::PySystemExit>();
    is_exit
        && exception
            .getattr("code")
            .is_ok_and(|code| code.is_none() || code.extract::<i64>().is_ok_and(|code| code == 0))
}

pub(crate) fn role_named(name: &str) -> Result<Role> {
    Role::from_name(name).ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument, format!("there is no role {name:?}"))
            .hint("roles are scheduler, server, worker and rank")
    })
}

#[pymethods]
impl PyMesh {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    #[pyo3(signature = (
        *, rank = None, size = None, root = None, role = None, workers = None, servers = None, name = None,
        host = None, bind = None, insecure = None, join_timeout = None, liveness_timeout = None, transport = None,
        arena_bytes = None, local_ranks = None, collective_table = None, secret = None, meet = None
    ))]
    fn new(
        py: Python<'_>,
        rank: Option<u32>,
        size: Option<u32>,
        root: Option<String>,
        role: Option<String>,
        workers: Option<u32>,
        servers: Option<u32>,
        name: Option<String>,
        host: Option<String>,
        bind: Option<String>,
        insecure: Option<bool>,
        join_timeout: Option<f64>,
        liveness_timeout: Option<f64>,
        transport: Option<String>,
        arena_bytes: Option<u64>,
        local_ranks: Option<u32>,
        collective_table: Option<std::path::PathBuf>,
        secret: Option<places::Secrecy>,
        meet: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut place = places::Place::new(host, secret);
        place.say("SHEAVE_RANK", rank);
        place.say("SHEAVE_WORLD_SIZE", size);
        place.say("SHEAVE_ROOT", root);
        place.say("SHEAVE_ROLE", role);
        place.say("SHEAVE_WORKERS", workers);
        place.say("SHEAVE_SERVERS", servers);
        place.say("SHEAVE_NAME", name);
        place.say("SHEAVE_BIND", bind);
        place.say("SHEAVE_INSECURE", insecure.map(u8::from));
        place.say("SHEAVE_TRANSPORT", transport);
        place.say("SHEAVE_ARENA_BYTES", arena_bytes);
        place.say("SHEAVE_LOCAL_RANKS", local_ranks);
        place.say_path("SHEAVE_COLLECTIVE_TABLE", collective_table);
        place.say_ms("SHEAVE_JOIN_TIMEOUT_MS", "join timeout", join_timeout).or_raise(py)?;
        place.say_liveness(liveness_timeout).or_raise(py)?;
        let Some(store) = meet else { return Self::join(py, &place) };
        let (store, raised) = PyMeet::new(store)?;
        place.meet(Meeting::Store(Arc::new(store)));
        Self::join(py, &place).map_err(|error| raised.or(error))
    }

    /// This node's rank among the members of its role: that of a worker among the workers. Its rank among all members
    /// is `mesh.world.rank`.
    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<u32> {
        self.me(py, |me| me.role_rank)
    }

    /// The same as `rank`.
    #[getter]
    fn role_rank(&self, py: Python<'_>) -> PyResult<u32> {
        self.me(py, |me| me.role_rank)
    }

    /// The number of members of this node's role, those who are gone included: of workers for a worker. That of all
    /// members is `mesh.world.size`.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<usize> {
        let table = self.home.table().or_raise(py)?;
        let role = table.0.introduction.role;
        Ok(table.1.iter().filter(|member| member.introduction.role == role).count())
    }

    /// What this node is there for: "worker", "server", "scheduler" or "rank".
    #[getter]
    fn role(&self, py: Python<'_>) -> PyResult<String> {
        self.me(py, |me| me.introduction.role.to_string())
    }

    /// This node's name, unique in the mesh.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        self.me(py, |me| me.introduction.name.clone())
    }

    /// All members by rank, those who are gone included.
    #[getter]
    fn members(&self, py: Python<'_>) -> PyResult<Vec<PyMember>> {
        self.home.table().map(|(_, members)| members.iter().map(PyMember::from).collect()).or_raise(py)
    }

    /// A number that grows whenever members die or leave.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.home.fate(|fate| fate.epoch).or_raise(py)
    }

    /// True once this node has left, or if this is a forked child of the process that joined.
    #[getter]
    fn closed(&self) -> bool {
        !self.is_alive()
    }

    /// The group of all members, schedulers and servers included.
    ///
    /// >>> mesh.world.size
    /// 1
    #[getter]
    fn world(&self, py: Python<'_>) -> PyResult<Py<PyGroup>> {
        self.mesh().or_raise(py)?;
        self.world_group(py).map(|world| world.clone_ref(py))
    }

    /// The group of the members of these ranks, in this order, this node among them. Nobody else is asked.
    ///
    /// Ranks are those of this node's role, as `rank` is; members of several roles are a subgroup of mesh.world. Every
    /// member of the group makes it for itself; the same label and ranks are the same group.
    ///
    /// >>> mesh.group([0], "alone").all_reduce(np.array([3]))
    /// array([3])
    #[pyo3(signature = (ranks, label = "group"))]
    fn group(&self, py: Python<'_>, ranks: Vec<u32>, label: &str) -> PyResult<PyGroup> {
        let mesh = self.mesh().or_raise(py)?;
        let nodes = ranks.into_iter().map(|rank| Self::node(&mesh, rank)).collect::<Result<Vec<_>>>().or_raise(py)?;
        let group = py.detach(|| mesh.group(label, &nodes)).or_raise(py)?;
        PyGroup::new(py, &self.home, &group)
    }

    /// The group of all members of a role, this node's own if None, in the order of their ranks.
    ///
    /// >>> mesh.role_group("rank").size
    /// 1
    #[pyo3(signature = (role = None))]
    fn role_group(&self, py: Python<'_>, role: Option<&str>) -> PyResult<PyGroup> {
        let mesh = self.mesh().or_raise(py)?;
        let role = role.map_or(Ok(mesh.me().introduction.role), role_named).or_raise(py)?;
        let group = py.detach(|| mesh.role_group(role)).or_raise(py)?;
        PyGroup::new(py, &self.home, &group)
    }

    /// Wait until every member has come here as often as this one.
    ///
    /// With a timeout, in seconds, it raises DeadlineExceeded that names who is missing when they have not all come by
    /// then, and this barrier and all later ones of the mesh fail everywhere.
    ///
    /// >>> mesh.barrier(timeout=10)
    #[pyo3(signature = (timeout = None))]
    fn barrier(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let mesh = self.mesh().or_raise(py)?;
        let limit = crate::enter::span(timeout)?;
        enter(py, None, |_, interrupt| {
            let work = mesh.world().begin_barrier(limit);
            work.wait_until(None, interrupt)?;
            work.taken()
        })
    }

    /// Let the members call `service` under this name: its public methods if it is an object, or itself if it is a
    /// function. A name has no dots.
    ///
    /// Handlers run on threads of this node, several at a time, also of one caller; with lane="serial" one after the
    /// other, in the order in which each caller has called. Functions, classes and methods may say so themselves
    /// (sheave.lane). Handlers may wait for whatever they like. Those that are coroutines (async def) run in an event
    /// loop on a thread of its own, one loop for the process. What a handler raises is raised at the caller. Raises
    /// AlreadyExists for a name that is served, InvalidArgument for a lane that there is not.
    ///
    /// >>> mesh.serve("double", lambda number: 2 * number)
    #[pyo3(signature = (name, service, *, lane = None))]
    fn serve(&self, name: &str, service: &Bound<'_, PyAny>, lane: Option<&str>) -> PyResult<()> {
        let mesh = self.mesh().or_raise(service.py())?;
        calls::serve(&mesh, name, service, lane, self.home.opener(&mesh))
    }

    /// Let nobody call the service of this name any more. Handlers that run go on.
    ///
    /// >>> mesh.serve_no_more("double")
    fn serve_no_more(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let mesh = self.mesh().or_raise(py)?;
        py.detach(|| mesh.serve_no_more(name));
        Ok(())
    }

    /// Call a function, or a method of an object ("name.method"), that a member or a guest serves: by its rank in the
    /// mesh, its name, a Member, or a Peer; this node itself is one.
    ///
    /// Arguments and result may be whatever pickles. Plain values keep their type, arrays are new ones at the other
    /// end, of the same kind; both are captured before the call returns. With async_op=True it returns a Work.
    ///
    /// Raises what the function has raised, caused by a Remote error with the traceback of there; that error itself
    /// where the exception cannot be rebuilt here, or is one of sheave's or ends programs. Raises PeerLost when the
    /// member is gone, NotFound where it serves no such thing; DeadlineExceeded after `timeout` seconds, and then the
    /// function does not begin any more.
    ///
    /// >>> mesh.serve("power", pow)
    /// >>> mesh.call(0, "power", (2, 10), timeout=10)
    /// 1024
    /// >>> mesh.call(0, "power", (2,), {"exp": 3}, async_op=True).wait(timeout=10)
    /// 8
    #[pyo3(signature = (to, what, args = None, kwargs = None, *, timeout = None, async_op = false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn call(
        &self,
        py: Python<'_>,
        to: &Bound<'_, PyAny>,
        what: &str,
        args: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
        timeout: Option<f64>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let mesh = self.mesh().or_raise(py)?;
        let to = calls::callee(&mesh, to)?;
        let args = calls::positional(py, args)?;
        let deadline = crate::enter::span(timeout)?;
        calls::call(&self.home.opener(&mesh), to, what, (&args, kwargs), deadline)?.given(py, async_op)
    }

    /// Call what a member serves, as `call` does, and keep the result there: returns a Ref to it at once, which may be
    /// used and passed on before the result exists. Whoever uses it raises what the function has raised. Raises
    /// Unsupported for a guest: what it serves may return an exported object, whose Ref is the result of `call`.
    ///
    /// >>> mesh.serve("numbers", lambda count: list(range(count)))
    /// >>> numbers = mesh.remote(0, "numbers", (3,))
    /// >>> numbers.call("append", (7,)), numbers.get(timeout=10)
    /// (None, [0, 1, 2, 7])
    #[pyo3(signature = (to, what, args = None, kwargs = None))]
    fn remote(
        &self,
        py: Python<'_>,
        to: &Bound<'_, PyAny>,
        what: &str,
        args: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyRef> {
        let mesh = self.mesh().or_raise(py)?;
        let to = calls::callee(&mesh, to)?;
        let args = calls::positional(py, args)?;
        calls::remote(self.home.opener(&mesh), to, what, (&args, kwargs))
    }

    /// Keep an object of this process for whoever gets the Ref that is returned, until the last one is dropped on
    /// whatever node.
    ///
    /// >>> mesh.export([1, 2]).get()
    /// [1, 2]
    fn export(&self, object: &Bound<'_, PyAny>) -> PyResult<PyRef> {
        let mesh = self.mesh().or_raise(object.py())?;
        references::export(&mesh, object, self.home.opener(&mesh))
    }

    /// Make the group of this name with the members of these ranks in the mesh, names or Members, this process among
    /// them; with all members if None. Returns an RpcGroup when all of them have made it, with the same members in
    /// whatever order.
    ///
    /// Raises DeadlineExceeded after `timeout` seconds, naming who is missing; PeerLost when one is gone; Mismatch
    /// where another one names other members; AlreadyExists if this process is in a group of that name.
    ///
    /// >>> group = mesh.rpc_group("players", [0], timeout=10)
    /// >>> group.name, group.size, group.is_member
    /// ('players', 1, True)
    #[pyo3(signature = (name, members = None, *, timeout = None))]
    fn rpc_group(
        &self,
        py: Python<'_>,
        name: &str,
        members: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        PyRpcGroup::make(py, self, name, members, timeout)
    }

    /// A tensor in the mesh's arena, where peers on this host reach it without a copy. Its elements are whatever lay
    /// there. dtype is a name or a dtype of numpy, torch or jax; float32 if None.
    ///
    /// >>> mesh.empty((2, 3), "float64").shape
    /// (2, 3)
    #[pyo3(signature = (shape, dtype = None))]
    pub(crate) fn empty(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyTensor> {
        let mesh = self.mesh().or_raise(py)?;
        PyTensor::empty(py, mesh.node().arena(), shape, dtype)
    }

    /// The guests of this node: processes that are attached to it, such as those of a Fleet, and are no members. They
    /// are called as members are, by name or by their Peer.
    ///
    /// >>> mesh.guests()
    /// []
    fn guests(&self, py: Python<'_>) -> PyResult<Vec<PyPeer>> {
        let mesh = self.mesh().or_raise(py)?;
        Ok(mesh.guests().into_iter().filter_map(|guest| mesh.peer_of(guest.node)).map(PyPeer::from).collect())
    }

    /// Invite a process that somebody else starts, for one attach as a guest of this node; a Fleet does so itself. It
    /// finds the text that is returned in its SHEAVE_INVITATION, and needs the job's secret besides.
    ///
    /// Such a guest is called, but calls nothing of Python here, and what it has pickled is not opened.
    ///
    /// >>> "rank-0.guest-" in mesh.invite()
    /// True
    #[pyo3(signature = (label = "guest"))]
    fn invite(&self, py: Python<'_>, label: &str) -> PyResult<String> {
        let mesh = self.mesh().or_raise(py)?;
        mesh.invite(label).map(|invitation| invitation.to_text()).or_raise(py)
    }

    /// Who has died or left, in the order in which it was agreed.
    ///
    /// >>> mesh.deaths()
    /// []
    fn deaths(&self, py: Python<'_>) -> PyResult<Vec<PyDeath>> {
        let mut deaths = Vec::new();
        for death in self.home.fate(|fate| fate.deaths.clone()).or_raise(py)? {
            let who = self.home.members.iter().find(|member| member.node == death.node);
            let Some(member) = who.map(PyMember::from) else { continue };
            let (member, epoch) = (Py::new(py, member)?, u64::from(death.epoch.0));
            deaths.push(PyDeath { member, left: death.left, epoch, reason: death.reason });
        }
        Ok(deaths)
    }

    /// Wait until all other members, or those of a role, have left in order: what servers and schedulers do.
    ///
    /// Meanwhile this node serves the others. Raises PeerLost that names the first of them who died.
    ///
    /// >>> mesh.until_gone()
    #[pyo3(signature = (role = None))]
    fn until_gone(&self, py: Python<'_>, role: Option<&str>) -> PyResult<()> {
        let mesh = self.mesh().or_raise(py)?;
        let role = role.map(role_named).transpose().or_raise(py)?;
        let picks = |member: &Member| role.is_none_or(|role| member.introduction.role == role);
        enter(py, None, |_, interrupt| mesh.until_gone_interruptible(picks, interrupt))
    }

    /// Wait for everybody and leave: what a job does at its end.
    ///
    /// Raises PeerLost if somebody is gone before; this node has left all the same. Raises DeadlineExceeded that names
    /// who is missing when `timeout` seconds have passed, and then this node is still a member and can try again.
    ///
    /// >>> sheave.Mesh().finish(timeout=10)
    #[pyo3(signature = (timeout = None))]
    fn finish(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let mesh = self.mesh().or_raise(py)?;
        let work = {
            let mut finishing = self.home.finishing.lock().unwrap_or_else(PoisonError::into_inner);
            finishing.get_or_insert_with(|| mesh.begin_finish()).clone()
        };
        let ended = enter(py, timeout, |until, interrupt| {
            if !work.wait_until(until, interrupt)? {
                return Ok(None);
            }
            Ok(Some(mesh.end_finish(work.wait())))
        })?;
        let Some(outcome) = ended else {
            let late = py.detach(|| mesh.late_finish());
            return Err(errors::to_python(py, &late));
        };
        drop(self.home.take());
        outcome.or_raise(py)
    }

    /// Leave in order: the others agree that this node is gone, which is no death.
    ///
    /// Operations of this node that are pending fail with Closed. Raises DeadlineExceeded if the others do not agree
    /// within the liveness timeout; this node has left all the same.
    ///
    /// >>> sheave.Mesh().leave()
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let Some(mesh) = self.home.take() else { return Ok(()) };
        end_aside(py, move || mesh.leave())
    }

    /// Leave, and raise nothing but KeyboardInterrupt at Ctrl-C. Tensors and their views stay. Idempotent.
    ///
    /// >>> with sheave.Mesh() as mesh:
    /// ...     mesh.close()
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(mesh) = self.home.take() else { return Ok(()) };
        end_aside(py, move || {
            // Who closes does not care whether anybody was there to agree.
            let _ = mesh.leave();
            Ok(())
        })
    }

    /// This node as its peers see it.
    #[getter]
    fn identity(&self, py: Python<'_>) -> PyResult<PyPeer> {
        self.me(py, |me| me.peer().into())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Leaves; after an exception this node has failed, and the others are told of it.
    #[pyo3(signature = (kind, value, _traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let Some(reason) = failure_of(kind, value) else { return self.close(py) };
        if let Some(mesh) = self.home.take() {
            py.detach(|| mesh.fail(&reason));
        }
        Ok(())
    }

    fn __repr__(&self) -> String {
        let left = if self.is_alive() { "" } else { ", left" };
        match self.home.table() {
            Ok((own, members)) => format!("<sheave.Mesh {} of {} members{left}>", own.peer(), members.len()),
            Err(_) => "<sheave.Mesh of the parent process>".to_owned(),
        }
    }
}

/// Meshes of this process, those that were left included until nobody has them any more.
static HOMES: Mutex<Vec<Weak<Home>>> = Mutex::new(Vec::new());

fn remember_home(home: &Weak<Home>) {
    let mut homes = HOMES.lock().unwrap_or_else(PoisonError::into_inner);
    homes.retain(|known| known.strong_count() > 0);
    homes.push(Weak::clone(home));
}

/// Meshes that this process has joined.
pub(crate) fn homes() -> Vec<Arc<Home>> {
    HOMES.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
}

/// The mesh that is meant where none is named.
static DEFAULT: Mutex<Option<Py<PyMesh>>> = Mutex::new(None);

/// The default mesh, unless there is none or it was left.
pub(crate) fn default_mesh(py: Python<'_>) -> Option<Py<PyMesh>> {
    let known = DEFAULT.lock().unwrap_or_else(PoisonError::into_inner);
    known.as_ref().filter(|mesh| mesh.get().is_alive()).map(|mesh| mesh.clone_ref(py))
}

/// The default mesh; joins as the environment says if there is none.
pub(crate) fn default_or_join(py: Python<'_>) -> PyResult<Py<PyMesh>> {
    match default_mesh(py) {
        Some(mesh) => Ok(mesh),
        None => remember_default(py, Py::new(py, PyMesh::join(py, &places::Place::default())?)?),
    }
}

/// Makes a mesh the default one.
pub(crate) fn remember_default(py: Python<'_>, mesh: Py<PyMesh>) -> PyResult<Py<PyMesh>> {
    let former = {
        let mut known = DEFAULT.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_some_and(|known| known.get().is_alive()) {
            let error = Error::new(ErrorKind::AlreadyExists, "another thread has joined a default mesh meanwhile");
            return Err(errors::to_python(py, &error.operation("init")));
        }
        known.replace(mesh.clone_ref(py))
    };
    drop(former);
    Ok(mesh)
}
