//! Pools whose workers are processes.

use crate::pool::{Settings, Tasker};
use crate::turn::Turn;
use crate::workers::Workers;
use parking_lot::Mutex;
use sheave_base::work::join_all;
use sheave_base::work::{Interrupt, reborrowed};
use sheave_base::{Error, ErrorKind, Result, Work};
use sheave_fleet::{FleetEvent, GuestFleet, Restarts};
use sheave_mesh::Mesh;
use sheave_process::{Child, Command, Output, Slate};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// Workers that never come, one after the other in one slot: then the pool is broken. Those that die of a task are
/// replaced without end.
const RESTARTS: Restarts = Restarts { most: 3, within: Duration::ZERO };

/// Starts a [`Pool`].
#[must_use = "nothing is started yet"]
pub struct PoolBuilder {
    count: usize,
    command: Box<dyn Fn(usize) -> Command + Send + Sync>,
    settings: Settings,
    label: String,
    output: Output,
    start_timeout: Option<Duration>,
}

impl PoolBuilder {
    /// Says what workers are set up with, and how long they stay.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Names the workers, as in `rank-0.worker-3`; `worker` by default.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Says what becomes of the workers' output; [`Output::Quiet`] by default.
    pub fn output(mut self, output: Output) -> Self {
        self.output = output;
        self
    }

    /// Says how long a worker may take to start.
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = Some(timeout);
        self
    }

    /// Has the workers started as guests of this node, and does not wait for them: tasks wait until they are there.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` without a worker and for a label that is none; `LimitExceeded` for more than a node has
    /// guests; whatever ended this node's membership. A program that cannot be started, or ends before it works, breaks
    /// the pool: tasks fail with that.
    pub fn start(self, mesh: &Mesh) -> Result<Pool> {
        let Self { count, command, settings, label, output, start_timeout } = self;
        if count == 0 {
            let what = "a pool of 0 workers; expected one at least";
            return Err(Error::new(ErrorKind::InvalidArgument, what).operation("start pool"));
        }
        let workers = Workers::new(mesh, count, settings).map_err(|error| error.asked_for("start pool"))?;
        let slates: Arc<Mutex<Vec<Option<Slate>>>> = Arc::new(Mutex::new(vec![None; count]));
        let watch = Watch { workers: workers.clone(), slates: Arc::clone(&slates) };
        let builder = GuestFleet::builder(count, move |slot| {
            let command = command(slot);
            let Ok(slate) = Slate::new() else { return command };
            // Without it the process says that it was given none, and so why it ends.
            let handed = slate.hand(command.clone()).unwrap_or(command);
            slates.lock()[slot] = Some(slate);
            handed
        });
        let builder = builder.label(label).output(output).restarts(RESTARTS).awaiting_ready();
        let builder = builder.watch(move |event| watch.hears(event));
        let builder = match start_timeout {
            Some(timeout) => builder.attach_timeout(timeout),
            None => builder,
        };
        let fleet = builder.begin(mesh).map_err(|error| error.asked_for("start pool"))?;
        let fleet = Arc::new(Fleet { fleet, workers });
        let known = Arc::downgrade(&fleet);
        // Those that come would die as those before have.
        let replace_no_more = move || known.upgrade().iter().for_each(|fleet| fleet.fleet.replace_no_more());
        fleet.workers.when_broken(replace_no_more);
        Ok(Pool { tasker: fleet.workers.tasker(), fleet })
    }
}

/// Hears what happens to the processes.
struct Watch {
    workers: Workers,
    slates: Arc<Mutex<Vec<Option<Slate>>>>,
}

impl Watch {
    fn hears(&self, event: &FleetEvent) {
        match event {
            FleetEvent::Attached { slot, guest } => {
                let slate = self.slates.lock()[*slot].take();
                let turn = slate.map_or_else(Turn::here, Turn::shared);
                // One that is gone again is told of.
                let _ = self.workers.hire(*slot, guest, turn);
            }
            FleetEvent::Ended { node: Some(node), error, .. } => self.workers.ended(*node, error),
            FleetEvent::GivenUp { error, .. } => self.workers.break_by(error),
            _ => {}
        }
    }
}

struct Fleet {
    fleet: GuestFleet,
    workers: Workers,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let error = Error::new(ErrorKind::Closed, "the pool was dropped before its tasks had ended");
        self.workers.break_by(&error);
        self.workers.end();
    }
}

/// Processes that do tasks: guests of this node, each replaced when it ends; a handle, cheap to clone.
///
/// Tasks go to workers as [`Tasker`], which it is one of, says. One whose worker dies has failed with `WorkerDied`;
/// those that the worker had not begun go to others, and nothing else is disturbed.
///
/// Dropping the last handle kills the workers, as the end of this process does; [`Pool::end`] lets them go in order.
///
/// ```no_run
/// use sheave_pool::{Packet, Pool};
/// use sheave_process::Command;
/// # use sheave_mesh::{Config, Expected, Mesh, Role};
/// # use sheave_base::config::Endpoint;
/// use sheave_wire::Value;
///
/// # fn main() -> sheave_base::Result<()> {
/// # let root = Endpoint { host: "127.0.0.1".into(), port: sheave_base::port::free()? };
/// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
/// // A program that calls `sheave_pool::work_with`, with a function of the name "square".
/// let pool = Pool::processes(4, |_| Command::new("./worker")).start(&mesh)?;
/// let square = pool.named("square")?;
/// let works = (0..100).map(|number| pool.call(&square, (number,))).collect::<Result<Vec<_>, _>>()?;
/// let squares = works.into_iter().map(|work| work.wait()).collect::<Result<Vec<i64>, _>>()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Pool {
    fleet: Arc<Fleet>,
    tasker: Tasker,
}

impl Deref for Pool {
    type Target = Tasker;

    fn deref(&self) -> &Tasker {
        &self.tasker
    }
}

impl Pool {
    /// Describes a pool of so many workers, each of which is a process of the command that is made for its slot. The
    /// program calls [`work`](crate::work) or [`work_with`](crate::work_with).
    pub fn processes(count: usize, command: impl Fn(usize) -> Command + Send + Sync + 'static) -> PoolBuilder {
        PoolBuilder {
            count,
            command: Box::new(command),
            settings: Settings::default(),
            label: "worker".to_owned(),
            output: Output::Quiet,
            start_timeout: None,
        }
    }

    /// Returns how many workers it has.
    #[must_use]
    pub fn size(&self) -> usize {
        self.fleet.fleet.slots()
    }

    /// A work that ends when all workers have come, or one never does.
    #[must_use]
    pub fn started(&self) -> Work<()> {
        let arrivals = (0..self.size()).filter_map(|slot| self.fleet.fleet.guest(slot).ok());
        join_all("start pool", arrivals.collect()).map(|_| Ok(()))
    }

    /// The processes that run, or were the last to run, by slot.
    #[must_use]
    pub fn children(&self) -> Vec<Child> {
        self.fleet.fleet.children()
    }

    /// Takes no more tasks, waits until all have ended, and lets the workers go: those that have not ended `grace`
    /// after that are killed. Blocks; `interrupt` is asked at least every 100 ms, and its error ends the wait: the pool
    /// stays as it is then.
    ///
    /// # Errors
    ///
    /// `Closed` once the node has left, and what `interrupt` says.
    pub fn end(&self, grace: Duration, mut interrupt: Option<Interrupt<'_>>) -> Result<()> {
        self.close();
        let asked = reborrowed(&mut interrupt);
        self.all_ended()?.wait_until(None, asked)?;
        let ended = self.fleet.fleet.close_interruptible(grace, interrupt).map(drop);
        self.fleet.workers.end();
        ended
    }

    /// Kills the workers; all tasks that have not ended have failed with `Closed`. Idempotent.
    pub fn terminate(&self) {
        let error = Error::new(ErrorKind::Closed, "the pool was terminated").operation("pool task");
        self.fleet.workers.break_by(&error);
        self.fleet.fleet.close(Duration::ZERO);
        self.fleet.workers.end();
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("size", &self.size()).finish_non_exhaustive()
    }
}
