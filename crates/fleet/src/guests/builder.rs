//! Settings that a fleet of guests is made from.

use super::{FleetEvent, GuestFleet, Settings};
use crate::handed::JobSecret;
use sheave_base::work::{Completer, Interrupt};
use sheave_base::{Error, ErrorKind, Result, limits};
use sheave_mesh::Mesh;
use sheave_process::{Command, Job, Output};
use std::fmt;
use std::time::Duration;

/// How often the process of one slot may be replaced before the slot is given up: so many times within this time, and
/// so many times in a row if it never attaches itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restarts {
    /// How many replacements there may be.
    pub most: u32,
    /// Within how long.
    pub within: Duration,
}

impl Restarts {
    /// No process is replaced.
    pub const NEVER: Self = Self { most: 0, within: Duration::ZERO };
}

impl Default for Restarts {
    /// Five within a minute: a program that fails as soon as it runs is given up within seconds.
    fn default() -> Self {
        Self { most: 5, within: Duration::from_secs(60) }
    }
}

/// Starts a [`GuestFleet`].
#[must_use = "nothing is started yet"]
pub struct GuestFleetBuilder {
    count: usize,
    settings: Settings,
    output: Output,
}

impl GuestFleetBuilder {
    pub(super) fn new(count: usize, command: Box<dyn Fn(usize) -> Command + Send + Sync>) -> Self {
        let settings = Settings {
            command,
            label: "guest".to_owned(),
            attach_timeout: limits::JOIN_TIMEOUT,
            awaits_ready: false,
            restarts: Restarts::default(),
            watch: None,
        };
        Self { count, settings, output: Output::Quiet }
    }

    /// Names the guests, as in `rank-0.worker-3`; see [`Mesh::invite`]. The default is `guest`.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.settings.label = label.into();
        self
    }

    /// Says how long a process may take from its start until it is attached; [`limits::JOIN_TIMEOUT`] by default. Then
    /// it is killed, and counts as one that has ended.
    pub fn attach_timeout(mut self, timeout: Duration) -> Self {
        self.settings.attach_timeout = timeout;
        self
    }

    /// Takes a process for attached when it has said that it is ready ([`Guest::ready`](sheave_mesh::Guest::ready)),
    /// for which the time is that of the attach.
    pub fn awaiting_ready(mut self) -> Self {
        self.settings.awaits_ready = true;
        self
    }

    /// Says how often processes are replaced.
    pub fn restarts(mut self, restarts: Restarts) -> Self {
        self.settings.restarts = restarts;
        self
    }

    /// Says what becomes of the processes' output; [`Output::Quiet`] by default. With [`Output::Inherit`] errors do not
    /// know what a process said last.
    pub fn output(mut self, output: Output) -> Self {
        self.output = output;
        self
    }

    /// Has `watch` told of whatever happens to the processes, in order for each slot, on a thread of the node: it must
    /// be short and never block. A panic in it is told on standard error and ends there.
    pub fn watch(mut self, watch: impl Fn(&FleetEvent) + Send + Sync + 'static) -> Self {
        self.settings.watch = Some(Box::new(watch));
        self
    }

    /// Starts the processes as guests of this node, and waits until all are attached.
    ///
    /// # Errors
    ///
    /// `WorkerDied` with exit status and the end of its standard error for a process that ends before it is attached;
    /// `DeadlineExceeded` for one that is not in time; `InvalidArgument` for a label that is none; `LimitExceeded` for
    /// more guests than a node has; as [`Job::spawn`] for a program that cannot be started; whatever ended this node's
    /// membership. In all cases nothing is left of the other processes.
    pub fn start(self, mesh: &Mesh) -> Result<GuestFleet> {
        self.start_interruptible(mesh, None)
    }

    /// Like [`GuestFleetBuilder::start`]; `interrupt` is asked at least every 100 ms, and its error ends the attempt.
    ///
    /// # Errors
    ///
    /// As [`GuestFleetBuilder::start`], and whatever `interrupt` says.
    pub fn start_interruptible(self, mesh: &Mesh, interrupt: Option<Interrupt<'_>>) -> Result<GuestFleet> {
        let (completer, started) = mesh.node().pair("start fleet", None);
        let fleet = self.begun(mesh, Some(completer))?;
        let waited = started.wait_until(None, interrupt).and_then(|_| started.wait());
        waited.map(|()| fleet).map_err(|error| error.asked_for("start fleet"))
    }

    /// Has the processes started as guests of this node, and does not wait for them. Here a process that ends before it
    /// is attached is replaced as any other one is.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`, `LimitExceeded` and what ended this node's membership, as [`GuestFleetBuilder::start`]. Who
    /// waits for a guest has the others.
    pub fn begin(self, mesh: &Mesh) -> Result<GuestFleet> {
        self.begun(mesh, None)
    }

    fn begun(self, mesh: &Mesh, starting: Option<Completer<()>>) -> Result<GuestFleet> {
        let Self { count, settings, output } = self;
        let most = limits::GUESTS_MAX;
        if count > most {
            let what = format!("a fleet of {count} guests; a node has {most} at most");
            return Err(Error::new(ErrorKind::LimitExceeded, what).operation("start fleet"));
        }
        let begun = || {
            let secret = mesh.secret().ok_or_else(|| {
                Error::new(ErrorKind::Unsupported, "this node has no secret, by which a guest could link to it")
            })?;
            let handed = (Job::builder().output(output).start()?, JobSecret::of(&secret)?);
            GuestFleet::begin(mesh, handed, count, settings, starting)
        };
        begun().map_err(|error| error.asked_for("start fleet"))
    }
}

impl fmt::Debug for GuestFleetBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (label, count) = (&self.settings.label, self.count);
        f.debug_struct("GuestFleetBuilder").field("label", label).field("count", &count).finish_non_exhaustive()
    }
}
