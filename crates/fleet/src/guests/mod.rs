//! Processes that are guests of a node.
//!
//! A fleet has *slots*, one for each guest that there is to be. The process of a slot that ends without being asked to
//! is replaced, until it has done so too often ([`Restarts`]); then the slot is given up. Each slot is kept by a task
//! of the node ([`keeper`]), which waits for what the node says of the guest and for what the job says of the process;
//! processes are started on a thread of the node that may block. So a fleet has no threads but those of its
//! [`Job`](sheave_process::Job).

mod builder;
mod keeper;
mod slots;

pub use builder::{GuestFleetBuilder, Restarts};
use keeper::Keeper;
use parking_lot::Mutex;
use sheave_base::work::{Completer, Interrupt};
use sheave_base::{Error, ErrorKind, NodeId, Result, Work, contain};
use sheave_mesh::{AttachedGuest, Mesh, WeakMesh};
use sheave_process::{Child, Command, Job, Report};
use slots::Slots;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::handed::JobSecret;

/// How often a wait for processes asks whether it is to be interrupted.
const INTERRUPT_LOOK: Duration = Duration::from_millis(100);

/// How long the links of processes that have ended may take to end too, unless others hold their sockets open.
const LINKS_END: Duration = Duration::from_millis(500);

/// Something that has happened to a process of a [`GuestFleet`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FleetEvent {
    /// A process runs, and has not attached itself yet.
    Started {
        /// Its slot, counted from 0.
        slot: usize,
        /// The name that it will have as a guest.
        name: String,
        /// Its process id.
        pid: u32,
        /// The name of the one that it replaces.
        replaces: Option<String>,
    },
    /// A process has become a guest, and is ready if that is awaited.
    Attached {
        /// Its slot.
        slot: usize,
        /// The guest, as its host knows it.
        guest: AttachedGuest,
    },
    /// A process has ended that nobody asked to, or could not be started.
    Ended {
        /// Its slot.
        slot: usize,
        /// Its node, if it was attached.
        node: Option<NodeId>,
        /// `WorkerDied` with its exit status and the end of its standard error, or why it could not be started.
        error: Error,
    },
    /// No process will run in this slot any more.
    GivenUp {
        /// The slot.
        slot: usize,
        /// The reason, caused by what happened last.
        error: Error,
    },
}

/// Hears of what happens.
type Watch = Box<dyn Fn(&FleetEvent) + Send + Sync>;

/// How a fleet is made, and what it is told; shared by its handles and tasks.
struct Settings {
    command: Box<dyn Fn(usize) -> Command + Send + Sync>,
    label: String,
    attach_timeout: Duration,
    awaits_ready: bool,
    restarts: Restarts,
    watch: Option<Watch>,
}

/// State that handles and tasks share. Tasks hold it weakly: its processes must not live for as long as the node does.
struct Shared {
    mesh: WeakMesh,
    job: Job,
    secret: JobSecret,
    settings: Settings,
    slots: Slots,
    is_closing: AtomicBool,
    /// Ends when all slots have had their first guest, if somebody waits for that.
    starting: Mutex<Option<Completer<()>>>,
}

impl Shared {
    fn is_closing(&self) -> bool {
        self.is_closing.load(SeqCst)
    }

    fn tell(&self, event: &FleetEvent) {
        if let Some(watch) = &self.settings.watch {
            contain::told("the watch of a fleet", || watch(event));
        }
    }

    /// From now on nobody is started, and nobody comes who was invited. Returns the guests that are there, once.
    fn close_door(&self) -> Vec<AttachedGuest> {
        self.is_closing.store(true, SeqCst);
        let (invited, mut guests) = self.slots.take_all();
        if let Some(mesh) = self.mesh.upgrade() {
            let come = invited.iter().filter(|name| !mesh.withdraw_invitation(name));
            let there = mesh.guests();
            guests.extend(come.filter_map(|name| there.iter().find(|guest| guest.name == *name)).cloned());
        }
        guests
    }

    /// Ends the start, if it has not ended.
    fn started(&self, outcome: Result<()>) {
        let starting = self.starting.lock().take();
        if let Some(starting) = starting {
            starting.complete(outcome);
        }
    }
}

/// Processes that are guests of this node, each replaced when it ends. They are started by [`GuestFleetBuilder`], and
/// are those of its guests that this node trusts ([`Mesh::trusts`]).
///
/// Dropping the fleet kills them at once, as the end of this process does; [`GuestFleet::close`] lets them go in order.
/// When the node leaves its mesh they hear that their host has left, and are replaced no more.
///
/// ```no_run
/// use sheave_fleet::GuestFleet;
/// use sheave_process::Command;
/// # use sheave_mesh::{Config, Expected, Mesh, Role};
/// # use sheave_base::config::Endpoint;
/// # use sheave_wire::Value;
/// use std::time::Duration;
///
/// # fn main() -> sheave_base::Result<()> {
/// # let root = Endpoint { host: "127.0.0.1".into(), port: sheave_base::port::free()? };
/// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
/// let fleet = GuestFleet::builder(4, |_| Command::new("./worker")).label("worker").start(&mesh)?;
/// for guest in fleet.guests() {
///     mesh.call(guest.node, "worker", "work", Value::from("a task"))?.wait()?;
/// }
/// fleet.close(Duration::from_secs(5));
/// # Ok(())
/// # }
/// ```
pub struct GuestFleet {
    shared: Arc<Shared>,
}

impl GuestFleet {
    /// Describes a fleet of so many guests, each of which runs the command that is made for its slot. The program finds
    /// its invitation in its environment ([`GuestConfig::from_env`](sheave_mesh::GuestConfig::from_env)), and the job's
    /// secret.
    pub fn builder(count: usize, command: impl Fn(usize) -> Command + Send + Sync + 'static) -> GuestFleetBuilder {
        GuestFleetBuilder::new(count, Box::new(command))
    }

    /// Has the processes started. `starting` is completed when all are attached, or one has failed before.
    fn begin(
        mesh: &Mesh,
        (job, secret): (Job, JobSecret),
        count: usize,
        settings: Settings,
        starting: Option<Completer<()>>,
    ) -> Result<Self> {
        let shared = Arc::new(Shared {
            mesh: mesh.downgrade(),
            job,
            secret,
            settings,
            slots: Slots::new(mesh, count),
            is_closing: AtomicBool::new(false),
            starting: Mutex::new(starting),
        });
        let fleet = Self { shared };
        for slot in 0..count {
            let keeper = Keeper::new(&fleet.shared, mesh.runtime(), slot);
            mesh.runtime().spawn(keeper.run())?.detach();
        }
        if count == 0 {
            fleet.shared.started(Ok(()));
        }
        Ok(fleet)
    }

    /// How many slots there are.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.shared.slots.count()
    }

    /// The guests that are attached now, by slot.
    #[must_use]
    pub fn guests(&self) -> Vec<AttachedGuest> {
        self.shared.slots.guests()
    }

    /// A work that ends with the guest of this slot: at once if it is attached, else when it, or the one that replaces
    /// it, is. It ends with an error if the slot was given up or the fleet has ended.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if there is no such slot.
    pub fn guest(&self, slot: usize) -> Result<Work<AttachedGuest>> {
        self.shared.slots.arrival(slot)
    }

    /// The processes that run or were the last to run, by slot.
    #[must_use]
    pub fn children(&self) -> Vec<Child> {
        self.shared.slots.children()
    }

    /// Starts no more processes. Those that run go on until the fleet is closed; of their ends nobody is told. Does not
    /// block.
    pub fn replace_no_more(&self) {
        self.shared.is_closing.store(true, SeqCst);
    }

    /// Ends the fleet: its guests hear that their host has left them, and those that have not ended `grace` later are
    /// killed. When this returns no process of the fleet is left, and none is a guest of the mesh. May be called again,
    /// and then only reports.
    pub fn close(&self, grace: Duration) -> Report {
        // Without an interrupt there is no error.
        let _ = self.dismiss_all(grace, None);
        self.end()
    }

    /// Like [`GuestFleet::close`]; `interrupt` is asked at least every 100 ms. Its error ends the wait: then all are
    /// killed at once.
    ///
    /// # Errors
    ///
    /// Whatever `interrupt` says.
    pub fn close_interruptible(&self, grace: Duration, interrupt: Option<Interrupt<'_>>) -> Result<Report> {
        let waited = self.dismiss_all(grace, interrupt);
        let report = self.end();
        waited.map(|()| report)
    }

    fn dismiss_all(&self, grace: Duration, mut interrupt: Option<Interrupt<'_>>) -> Result<()> {
        let deadline = Instant::now().checked_add(grace);
        for guest in self.shared.close_door() {
            if let Some(mesh) = self.shared.mesh.upgrade() {
                // One that is gone needs no word.
                let _ = mesh.dismiss(guest.node);
            }
        }
        for child in self.shared.slots.children() {
            while child.exit().is_none() && deadline.is_none_or(|deadline| Instant::now() < deadline) {
                let next = Instant::now() + INTERRUPT_LOOK;
                child.wait(Some(deadline.map_or(next, |deadline| deadline.min(next))))?;
                if let Some(interrupt) = &mut interrupt {
                    interrupt()?;
                }
            }
        }
        Ok(())
    }

    /// Waits until the mesh knows of every process that has ended: it is no guest any more.
    fn until_all_are_gone(&self) {
        let Some(mesh) = self.shared.mesh.upgrade() else { return };
        let children = self.shared.slots.children();
        let deadline = Instant::now() + LINKS_END;
        for guest in mesh.guests() {
            if children.iter().any(|child| child.name() == guest.name && child.exit().is_some()) {
                let end = mesh.guest_end(guest.node);
                // How it was lost is told to those who ask.
                let _ = end.and_then(|end| end.wait_until(Some(deadline), None));
            }
        }
    }

    fn end(&self) -> Report {
        self.shared.close_door();
        let report = self.shared.job.end(Duration::ZERO);
        self.until_all_are_gone();
        let closed = Error::new(ErrorKind::Closed, "the fleet has ended").hint("start another one");
        self.shared.slots.end_all(&closed);
        self.shared.started(Err(closed));
        report
    }
}

impl Drop for GuestFleet {
    fn drop(&mut self) {
        // In a forked child nothing of this is alive.
        self.end();
    }
}

impl fmt::Debug for GuestFleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (label, guests) = (&self.shared.settings.label, self.guests().len());
        f.debug_struct("GuestFleet").field("label", label).field("guests", &guests).finish_non_exhaustive()
    }
}
