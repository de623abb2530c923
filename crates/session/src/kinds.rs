//! Where the workers of a session are: threads of this process, or processes of their own.

use crate::abort::{ABORT, Abort, AbortService};
use crate::lost::Lost;
use crate::session::{Ground, Session};
use crate::threads::WorkerThread;
use crate::worker::{Desk, SESSION};
use sheave_base::work::{Interrupt, reborrowed};
use sheave_base::{Error, ErrorKind, Result};
use sheave_collective::Collectives;
use sheave_fleet::{JobPlan, MemberFleet};
use sheave_mesh::{Config, Mesh};
use sheave_process::{Builder, Command, Job};
use std::sync::Arc;
use std::time::Duration;

impl Session {
    /// Begins a session whose workers are threads of this process, in so many groups.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` without a worker or a group, or for workers that cannot be divided into groups of the same
    /// size; `LimitExceeded` and `Io` if the system refuses threads or links.
    pub fn threads(workers: u32, groups: u32) -> Result<Self> {
        Self::threads_interruptible(workers, groups, None)
    }

    /// As [`Session::threads`]; `interrupt` is asked at least every 100 ms, and its error ends this.
    ///
    /// # Errors
    ///
    /// As [`Session::threads`], and what `interrupt` says.
    pub fn threads_interruptible(workers: u32, groups: u32, mut interrupt: Option<Interrupt<'_>>) -> Result<Self> {
        let plan = planned(workers, groups)?;
        let mut threads = Vec::new();
        for worker in 1..workers {
            let config = plan.config(worker as usize)?;
            threads.push(WorkerThread::start(worker, move || work_as(config))?);
        }
        // Else it would wait for the join's own deadline.
        let mut look = || {
            threads.iter().find_map(WorkerThread::failure).map_or(Ok(()), Err)?;
            interrupt.as_mut().map_or(Ok(()), |interrupt| interrupt())
        };
        let joined = join(plan.config(0)?, Some(Arc::default()), Some(&mut look), |_| Ok(()))?;
        Self::lead_with(joined, groups, workers, None, threads)
    }

    /// Begins a session whose workers but the first are processes of `command`, which call [`work`]; the first is a
    /// thread of this process. They end with the session, and with this process, in whatever way that ends.
    ///
    /// # Errors
    ///
    /// As [`Session::threads`]; `WorkerDied` for a process that ends before it has joined, and what the start says.
    pub fn processes(workers: u32, groups: u32, command: &Command) -> Result<Self> {
        Self::processes_interruptible(workers, groups, Job::builder(), |_| command.clone(), None)
    }

    /// As [`Session::processes`], in a job of one's own, each of the command that `command` says for its worker;
    /// `interrupt` is asked at least every 100 ms, and its error ends this.
    ///
    /// # Errors
    ///
    /// As [`Session::processes`], and what `interrupt` says.
    pub fn processes_interruptible(
        workers: u32,
        groups: u32,
        job: Builder,
        mut command: impl FnMut(u32) -> Command,
        mut interrupt: Option<Interrupt<'_>>,
    ) -> Result<Self> {
        let plan = planned(workers, groups)?;
        let config = plan.config(0)?;
        let fleet = Arc::new(MemberFleet::start_beside(plan, job.start()?, |member| command(member.rank))?);
        // Else it would wait for the join's own deadline.
        let mut look = || match early_end(&fleet) {
            Some(error) => Err(error),
            None => interrupt.as_mut().map_or(Ok(()), |interrupt| interrupt()),
        };
        let joined = join(config, Some(Arc::default()), Some(&mut look), |_| Ok(()))?;
        Self::lead_with(joined, groups, workers, Some(fleet), Vec::new())
    }

    /// Begins a session with the members of a mesh, which this node joins as the first of them: the controller, and
    /// worker 0 on a thread of its own. The others call [`work_as`], wherever they are. Blocks until all have joined.
    ///
    /// # Errors
    ///
    /// As [`Session::threads`], and what [`Mesh::join`] says.
    pub fn lead(config: Config, groups: u32) -> Result<Self> {
        let workers = config.expected.total();
        check(workers, groups)?;
        Self::lead_with(join(config, Some(Arc::default()), None, |_| Ok(()))?, groups, workers, None, Vec::new())
    }

    pub(crate) fn lead_with(
        joined: Joined,
        groups: u32,
        workers_per_node: u32,
        processes: Option<Arc<MemberFleet>>,
        mut threads: Vec<WorkerThread>,
    ) -> Result<Self> {
        let (mesh, lost) = joined;
        let own = mesh.clone();
        threads.push(WorkerThread::start(0, move || own.work(SESSION, None))?);
        Self::begin(Ground { mesh, groups, workers_per_node, lost: lost.unwrap_or_default(), processes, threads })
    }
}

/// A node that has joined, and what it knows of those who have died, if it is the controller.
pub(crate) type Joined = (Mesh, Option<Arc<Lost>>);

/// The end of a process before the session has begun.
pub(crate) fn early_end(fleet: &MemberFleet) -> Option<Error> {
    let child = fleet.children().iter().find(|child| child.exit().is_some())?;
    let ended = || Error::new(ErrorKind::WorkerDied, "a worker has ended before the session has begun");
    Some(fleet.death_of(child.name(), Duration::from_secs(1)).unwrap_or_else(ended))
}

pub(crate) fn refused<T>(what: String) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidArgument, what).operation("begin session"))
}

pub(crate) fn check(workers: u32, groups: u32) -> Result<()> {
    if workers == 0 || groups == 0 {
        return refused(format!("{workers} workers in {groups} groups; expected one of each at least"));
    }
    if !workers.is_multiple_of(groups) {
        return refused(format!("{workers} workers in {groups} groups; expected groups of the same size"));
    }
    Ok(())
}

fn planned(workers: u32, groups: u32) -> Result<JobPlan> {
    check(workers, groups)?;
    Ok(JobPlan::new(workers, 0)?.not_for_ps_lite())
}

/// Joins with the service of a worker, and what `serve` offers besides.
pub(crate) fn join(
    config: Config,
    lost: Option<Arc<Lost>>,
    interrupt: Option<Interrupt<'_>>,
    serve: impl FnOnce(&Mesh) -> Result<()>,
) -> Result<Joined> {
    let known = lost.clone();
    let offer = |mesh: &Mesh| {
        serve(mesh)?;
        let abort = Arc::<Abort>::default();
        mesh.serve(ABORT.as_str(), AbortService(Arc::clone(&abort)))?;
        // Before others know this node: what they send to its operations finds these.
        mesh.serve(SESSION.as_str(), Desk::new(mesh, known, Collectives::new(mesh)?, abort))
    };
    let mesh = Mesh::join_serving(config, interrupt, offer)?;
    // The controller and worker 0 are two threads of one member.
    mesh.node().share_cores();
    Ok((mesh, lost))
}

/// Is a worker, in a process that a session has started: joins it, and runs its commands on this thread until the
/// session ends. Functions that it is to find are [registered](crate::register_function) before. Blocks.
///
/// # Errors
///
/// `InvalidArgument` if this process was not started by a session, what [`Mesh::join`] says, and `PeerLost` if the
/// controller dies.
pub fn work() -> Result<()> {
    work_interruptible(None)
}

/// As [`work`]; `interrupt` is asked at least every 100 ms while there is nothing to do, and its error ends this.
///
/// # Errors
///
/// As [`work`], and what `interrupt` says.
pub fn work_interruptible(interrupt: Option<Interrupt<'_>>) -> Result<()> {
    let nowhere = || {
        Error::new(ErrorKind::InvalidArgument, "nothing in the environment says which session this process is for")
            .operation("work")
            .hint("let a session start it")
    };
    work_in(Config::from_env()?.ok_or_else(nowhere)?, interrupt)
}

/// As [`work`], of a session that is [led](Session::lead) over this mesh.
///
/// # Errors
///
/// As [`work`].
pub fn work_as(config: Config) -> Result<()> {
    work_in(config, None)
}

fn work_in(config: Config, mut interrupt: Option<Interrupt<'_>>) -> Result<()> {
    let asked = reborrowed(&mut interrupt);
    let (mesh, _) = join(config, None, asked, |_| Ok(()))?;
    mesh.work(SESSION, interrupt)?;
    mesh.finish()
}
