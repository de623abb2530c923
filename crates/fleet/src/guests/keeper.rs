//! The task that keeps one slot: it starts a process, sees it attach itself, waits for its end, and begins again.

use super::{FleetEvent, Shared};
use crate::died::worker_died;
use crate::plan::variables_of_jobs;
use sheave_base::{Error, ErrorKind, NodeId, Peer, Result, Work, limits, work};
use sheave_mesh::{AttachedGuest, Invitation, Runtime, ServiceName};
use sheave_process::{Child, Command, Exit};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

/// The lane on whose threads processes are started, one after the other: that blocks for some milliseconds.
const STARTS: ServiceName = ServiceName::new("sheave.fleet");

/// How long a process may take to end by itself once it is no guest any more; then it is killed.
const FAREWELL: Duration = Duration::from_secs(5);

/// How long the last lines of a process that has ended are waited for, and the end of its link: others may hold its
/// standard error and its sockets open.
const LAST_LINES: Duration = Duration::from_millis(500);

const SIGKILL: i32 = 9;

/// A process that was started, and what will be known of it.
#[derive(Clone)]
struct Started {
    name: String,
    child: Child,
    arrival: Work<AttachedGuest>,
    at: Instant,
}

/// How a process ended that nobody asked to.
struct Lost {
    name: Option<String>,
    node: Option<NodeId>,
    error: Error,
}

/// The one of two futures that was ready first.
enum First<A, B> {
    One(A),
    Other(B),
}

/// Waits for one of two futures; if both are ready it is the first.
async fn first<A: Future, B: Future>(one: A, other: B) -> First<A::Output, B::Output> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|context| {
        if let Poll::Ready(outcome) = one.as_mut().poll(context) {
            return Poll::Ready(First::One(outcome));
        }
        other.as_mut().poll(context).map(First::Other)
    })
    .await
}

/// Keeps one slot. Dropped with its task, by which nobody waits for a slot that nobody keeps.
pub(super) struct Keeper {
    fleet: Weak<Shared>,
    runtime: Runtime,
    slot: usize,
}

impl Keeper {
    pub(super) fn new(fleet: &Arc<Shared>, runtime: &Runtime, slot: usize) -> Self {
        Self { fleet: Arc::downgrade(fleet), runtime: runtime.clone(), slot }
    }

    /// The fleet, unless it ends, or its host has left.
    fn fleet(&self) -> Option<Arc<Shared>> {
        let stands = |fleet: &Shared| fleet.mesh.upgrade().is_some_and(|mesh| mesh.is_member());
        self.fleet.upgrade().filter(|fleet| !fleet.is_closing() && stands(fleet))
    }

    pub(super) async fn run(self) {
        let mut replaces = None;
        loop {
            let Some(lost) = self.live(replaces.take()).await else { return };
            let Some(fleet) = self.fleet() else { return };
            let Lost { name, node, error } = lost;
            let slot = self.slot;
            // Before it is told: who hears of it finds the slot empty.
            let replaced = fleet.slots.replace(slot, fleet.settings.restarts);
            fleet.tell(&FleetEvent::Ended { slot, node, error: error.clone() });
            if fleet.starting.lock().is_some() {
                // A program that does not start once is not tried again.
                fleet.slots.over(slot, &error);
                return fleet.started(Err(error));
            }
            if let Err(what) = replaced {
                let error = given_up(what, error);
                fleet.slots.over(slot, &error);
                return fleet.tell(&FleetEvent::GivenUp { slot, error });
            }
            replaces = name;
        }
    }

    /// The life of one process; nothing if the fleet has ended it.
    async fn live(&self, replaces: Option<String>) -> Option<Lost> {
        let started = self.start().await;
        let fleet = self.fleet()?;
        let started = match started {
            Ok(started) => started,
            Err(error) => return Some(Lost { name: None, node: None, error }),
        };
        let (name, pid) = (started.name.clone(), started.child.pid());
        fleet.tell(&FleetEvent::Started { slot: self.slot, name, pid, replaces });
        let timeout = fleet.settings.attach_timeout;
        drop(fleet);
        let guest = match self.attach(&started, timeout).await {
            Ok(guest) => guest,
            Err(error) => return self.lost(&started, None, error),
        };
        let fleet = self.fleet()?;
        let all = fleet.slots.attached(self.slot, &guest);
        fleet.tell(&FleetEvent::Attached { slot: self.slot, guest: guest.clone() });
        if all {
            fleet.started(Ok(()));
        }
        drop(fleet);
        let error = self.serve(&started, &guest).await;
        self.lost(&started, Some(guest.node), error)
    }

    fn lost(&self, started: &Started, node: Option<NodeId>, error: Error) -> Option<Lost> {
        self.fleet.upgrade().iter().for_each(|fleet| fleet.slots.vacate(self.slot));
        self.fleet()?;
        let error = error.operation("fleet").elapsed(started.at.elapsed());
        Some(Lost { name: Some(started.name.clone()), node, error })
    }

    /// Has a process started, on a thread that may block.
    async fn start(&self) -> Result<Started> {
        let closed = || Error::new(ErrorKind::Closed, "the fleet has ended");
        let Some(fleet) = self.fleet() else { return Err(closed()) };
        let Some(mesh) = fleet.mesh.upgrade() else { return Err(closed()) };
        let (completer, started) = work::pair("start process");
        let (fleet, slot) = (Arc::downgrade(&fleet), self.slot);
        mesh.submit(&STARTS, 0, move |turn| {
            let started = turn.and_then(|()| fleet.upgrade().ok_or_else(closed)?.spawn(slot));
            completer.complete(started);
        });
        drop(mesh);
        started.await
    }

    /// Waits until the process has become a guest, and is ready if that is awaited.
    async fn attach(&self, started: &Started, timeout: Duration) -> Result<AttachedGuest> {
        let Started { name, child, .. } = started;
        let until = self.runtime.after(timeout);
        let news = self.runtime.until(until, first(self.arrive(started), child.ended())).await?;
        let error = match news {
            Some(First::One(Ok(guest))) => return Ok(guest),
            Some(First::Other(exit)) => self.died("it ended before it was attached", name, child, exit?).await,
            // A link ends before its process does, which says more.
            Some(First::One(Err(error))) => self.over("it ended before it was ready", started, Err(error)).await,
            None => {
                let what = format!("it was not attached and ready within {timeout:?}, and was killed");
                let hint = "does its program attach itself as a guest? its output may say what it waits for";
                let error = Error::new(ErrorKind::DeadlineExceeded, what).peer(peer_of(name, child)).hint(hint);
                self.end(child).await;
                error
            }
        };
        if let Some(mesh) = self.fleet().and_then(|fleet| fleet.mesh.upgrade()) {
            mesh.withdraw_invitation(name);
        }
        Err(error)
    }

    async fn arrive(&self, started: &Started) -> Result<AttachedGuest> {
        let guest = started.arrival.clone().await?;
        let Some(fleet) = self.fleet().filter(|fleet| fleet.settings.awaits_ready) else { return Ok(guest) };
        let Some(mesh) = fleet.mesh.upgrade() else { return Ok(guest) };
        let ready = mesh.guest_ready(guest.node)?;
        drop((fleet, mesh));
        ready.await.map(|()| guest)
    }

    /// Waits until the process has ended, or is no guest any more.
    async fn serve(&self, started: &Started, guest: &AttachedGuest) -> Error {
        let Started { name, child, .. } = started;
        let Some(end) = self.fleet().and_then(|fleet| fleet.mesh.upgrade()?.guest_end(guest.node).ok()) else {
            return Error::new(ErrorKind::Closed, "the fleet has ended");
        };
        let what = "it ended, and nobody had asked it to";
        match first(child.ended(), end.clone()).await {
            First::One(Ok(exit)) => {
                // Before anybody hears of its end, what it has sent has its turn.
                let until = self.runtime.after(LAST_LINES);
                let _ = self.runtime.until(until, end).await;
                let _ = self.runtime.until(until, child.output_ended()).await;
                died(what, name, child, &exit)
            }
            First::One(Err(error)) => error,
            First::Other(left) => self.over(what, started, left).await,
        }
    }

    /// Waits until the process of a guest that is gone has ended too, and kills it if it does not.
    async fn over(&self, what: &str, started: &Started, left: Result<()>) -> Error {
        let Started { name, child, .. } = started;
        match self.runtime.until(self.runtime.after(FAREWELL), child.ended()).await {
            Ok(Some(Ok(exit))) => return self.died(what, name, child, exit).await,
            Ok(None) if self.fleet().is_some() => {}
            // Nobody is killed who has to go because the host does.
            _ => return Error::new(ErrorKind::Closed, "the fleet has ended"),
        }
        let error = match self.end(child).await {
            Some(exit) => self.died("it ran on when it was no guest any more, and was killed", name, child, exit).await,
            None => Error::new(ErrorKind::WorkerDied, "it could not be killed").peer(peer_of(name, child)),
        };
        // Its status tells nothing about why.
        match left {
            Err(loss) if loss.kind() == ErrorKind::PeerLost => error.cause(loss),
            _ => error,
        }
    }

    /// Kills a process, and waits for its end.
    async fn end(&self, child: &Child) -> Option<Exit> {
        child.kill(SIGKILL).ok()?;
        let until = self.runtime.after(limits::KILL_TIMEOUT);
        self.runtime.until(until, child.ended()).await.ok().flatten()?.ok()
    }

    /// Returns the error about a process that has ended, with what it said last.
    async fn died(&self, what: &str, name: &str, child: &Child, exit: Exit) -> Error {
        let _ = self.runtime.until(self.runtime.after(LAST_LINES), child.output_ended()).await;
        died(what, name, child, &exit)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(fleet) = self.fleet.upgrade() {
            let error =
                Error::new(ErrorKind::Closed, "the host of the fleet has left its mesh, or the fleet has ended");
            fleet.slots.over(self.slot, &error);
            fleet.started(Err(error));
        }
    }
}

impl Shared {
    /// Starts a process for this slot and invites it.
    fn spawn(&self, slot: usize) -> Result<Started> {
        let closed = || Error::new(ErrorKind::Closed, "the fleet has ended");
        let mesh = self.mesh.upgrade().ok_or_else(closed)?;
        if self.is_closing() {
            return Err(closed());
        }
        let invitation = mesh.invite_own(&self.settings.label)?;
        let name = invitation.name().to_owned();
        let begun = || -> Result<Started> {
            let arrival = mesh.guest_arrival(&name)?;
            // A host's place would be taken for the guest's own.
            let command = variables_of_jobs().fold((self.settings.command)(slot), Command::env_remove);
            let (variable, value) = self.secret.variable();
            let command = command.env(variable, value).env(Invitation::VARIABLE, invitation.to_text());
            let child = self.job.spawn(command.name(&name))?;
            Ok(Started { name: name.clone(), child, arrival, at: Instant::now() })
        };
        let started = begun().inspect_err(|_| _ = mesh.withdraw_invitation(&name))?;
        self.slots.runs(slot, &name, started.child.clone());
        // A fleet that has begun to end meanwhile has not found this one in its slot.
        if self.is_closing() {
            mesh.withdraw_invitation(&name);
            return Err(closed());
        }
        Ok(started)
    }
}

fn died(what: &str, name: &str, child: &Child, exit: &Exit) -> Error {
    worker_died(what.to_owned(), Peer::named(name), exit, &child.last_stderr_lines())
}

fn peer_of(name: &str, child: &Child) -> Peer {
    Peer::named(name).pid(child.pid())
}

/// Returns the error about a slot that is given up for this reason, after this loss.
fn given_up(what: String, error: Error) -> Error {
    let kind = error.kind();
    let about = error.about().cloned().unwrap_or_default();
    let given_up = Error::new(kind, what).peer(about).operation("fleet").hint("what its program says last tells why");
    let given_up = match error.process_end() {
        Some(end) => given_up.ended(end.clone()),
        None => given_up,
    };
    given_up.cause(error)
}
