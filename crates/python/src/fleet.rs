//! The ground of `sheave.Fleet`: processes that are guests of a mesh of Python.
//!
//! Events come on threads of the node, which do not enter the interpreter: they wait in a list of bounded length until
//! they are asked for.

use crate::enter::enter;
use crate::errors::{self, OrRaise};
use crate::guarded::Guarded;
use crate::life;
use crate::link::PyPeer;
use crate::mesh::PyMesh;
use pyo3::prelude::*;
use sheave_base::{Error, ErrorKind, Peer, Result};
use sheave_fleet::{FleetEvent, GuestFleet, Restarts};
use sheave_mesh::{AttachedGuest, Mesh};
use sheave_process::{Colour, Command, Output};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Events that are kept for those who ask; of more, the last.
const EVENTS_MAX: usize = 1024;

/// The fate of the processes' output, by its name.
pub(crate) fn output_named(name: &str) -> Result<Output> {
    match name {
        "prefix" => Ok(Output::Prefixed { colour: Colour::Auto }),
        "inherit" => Ok(Output::Inherit),
        "quiet" => Ok(Output::Quiet),
        _ => {
            let what = format!("output is {name:?}; expected \"prefix\", \"inherit\" or \"quiet\"");
            Err(Error::new(ErrorKind::InvalidArgument, what).operation("start fleet"))
        }
    }
}

/// The command of these words.
pub(crate) fn command_of(words: Vec<OsString>) -> Result<Command> {
    let mut words = words.into_iter();
    let program = words.next().ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument, "an empty command").operation("start fleet").hint("name a program")
    })?;
    Ok(Command::new(program).args(words))
}

/// Processes that are guests of a mesh: what `sheave.Fleet` stands on.
#[pyclass(name = "GuestFleet", module = "sheave._core", frozen)]
pub(crate) struct PyGuestFleet {
    fleet: Mutex<Option<Guarded<Arc<GuestFleet>>>>,
    mesh: Py<PyMesh>,
    events: Arc<Mutex<VecDeque<FleetEvent>>>,
}

impl PyGuestFleet {
    fn fleet(&self, py: Python<'_>) -> PyResult<Arc<GuestFleet>> {
        let fleet = self.fleet.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = || Error::new(ErrorKind::Closed, "the fleet was closed");
        let fleet = fleet.as_ref().ok_or_else(closed).and_then(|fleet| fleet.check("fleet").cloned());
        fleet.or_raise(py)
    }

    fn peer(mesh: &Mesh, guest: &AttachedGuest) -> PyPeer {
        let named = || Peer::named(guest.name.clone()).pid(guest.pid);
        mesh.peer_of(guest.node).unwrap_or_else(named).into()
    }
}

impl Drop for PyGuestFleet {
    fn drop(&mut self) {
        let mut fleet = self.fleet.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if life::is_ending() {
            return drop(fleet);
        }
        // Killing takes a moment, which is not the other threads' affair.
        Python::try_attach(|py| py.detach(|| drop(fleet.take())));
        drop(fleet);
    }
}

#[pymethods]
impl PyGuestFleet {
    /// Starts `command` so often, and waits until all are attached.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "one face alone calls it")]
    fn new(
        py: Python<'_>,
        mesh: Py<PyMesh>,
        count: usize,
        command: Vec<OsString>,
        env: Vec<(OsString, OsString)>,
        label: String,
        timeout: Option<f64>,
        restarts: (u32, f64),
        output: &str,
    ) -> PyResult<Self> {
        let command = command_of(command).or_raise(py)?.envs(env);
        let output = output_named(output).or_raise(py)?;
        let within = crate::enter::span(Some(restarts.1))?.unwrap_or(Duration::MAX);
        let events = Arc::new(Mutex::new(VecDeque::new()));
        let heard = Arc::clone(&events);
        let builder = GuestFleet::builder(count, move |_| command.clone())
            .label(label)
            .awaiting_ready()
            .output(output)
            .restarts(Restarts { most: restarts.0, within })
            .watch(move |event| {
                let mut events = heard.lock().unwrap_or_else(PoisonError::into_inner);
                if events.len() == EVENTS_MAX {
                    events.pop_front();
                }
                events.push_back(event.clone());
            });
        let builder = match crate::enter::span(timeout)? {
            Some(timeout) => builder.attach_timeout(timeout),
            None => builder,
        };
        let host = mesh.get().mesh().or_raise(py)?;
        let fleet = enter(py, None, |_, interrupt| builder.start_interruptible(&host, interrupt))?;
        Ok(Self { fleet: Mutex::new(Some(Guarded::new(Arc::new(fleet)))), mesh, events })
    }

    /// The guests that are attached now, by slot.
    fn guests(&self, py: Python<'_>) -> PyResult<Vec<PyPeer>> {
        let (fleet, mesh) = (self.fleet(py)?, self.mesh.get().mesh().or_raise(py)?);
        Ok(fleet.guests().iter().map(|guest| Self::peer(&mesh, guest)).collect())
    }

    /// Waits for the guest of a slot.
    fn guest(&self, py: Python<'_>, slot: usize, timeout: Option<f64>) -> PyResult<PyPeer> {
        let (fleet, mesh) = (self.fleet(py)?, self.mesh.get().mesh().or_raise(py)?);
        let work = fleet.guest(slot).or_raise(py)?;
        let guest = enter(py, timeout, |until, interrupt| {
            if work.wait_until(until, interrupt)? {
                return work.wait();
            }
            let what = format!("the process of slot {slot} has not attached itself");
            Err(Error::new(ErrorKind::DeadlineExceeded, what).operation("fleet guest"))
        })?;
        Ok(Self::peer(&mesh, &guest))
    }

    /// Takes the events that have not been taken: what has happened, the slot, the name, the process id, and an error.
    #[expect(clippy::type_complexity, reason = "one face alone calls it")]
    fn events(
        &self,
        py: Python<'_>,
    ) -> PyResult<Vec<(&'static str, usize, Option<String>, Option<u32>, Option<Py<PyAny>>)>> {
        let events = std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner));
        let raised = |error: &Error| Some(errors::to_python(py, error).into_value(py).into_any());
        let about = |error: &Error| error.about().map(|peer| peer.name.clone()).filter(|name| !name.is_empty());
        let pid_of = |error: &Error| error.about().and_then(|peer| peer.pid);
        let told = |event| match event {
            FleetEvent::Started { slot, name, pid, .. } => ("started", slot, Some(name), Some(pid), None),
            FleetEvent::Attached { slot, guest } => ("attached", slot, Some(guest.name), Some(guest.pid), None),
            FleetEvent::Ended { slot, error, .. } => ("ended", slot, about(&error), pid_of(&error), raised(&error)),
            FleetEvent::GivenUp { slot, error } => ("given up", slot, about(&error), pid_of(&error), raised(&error)),
            // Such as are added later are told by what is known of all.
            _ => ("other", 0, None, None, None),
        };
        Ok(events.into_iter().map(told).collect())
    }

    /// Lets the guests go, and kills those that have not ended after `grace` seconds. Idempotent.
    fn close(&self, py: Python<'_>, grace: f64) -> PyResult<()> {
        let fleet = self.fleet.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(fleet) = fleet else { return Ok(()) };
        let fleet = fleet.check("fleet").cloned().or_raise(py)?;
        let grace = crate::enter::span(Some(grace))?.unwrap_or(Duration::MAX);
        enter(py, None, |_, interrupt| fleet.close_interruptible(grace, interrupt).map(drop))
    }
}
