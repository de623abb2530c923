//! `sheave.Guest`: this process as a guest of the one that has started it.

use crate::aside::end_aside;
use crate::enter::enter;
use crate::errors::OrRaise;
use crate::link::PyPeer;
use crate::mesh::{end_with_status, failure_of};
use crate::references::{self, PyRef};
use crate::value::{Opener, Opens};
use crate::versions::PyVersionsClient;
use crate::{calls, life, rpc};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sheave_base::fork::ForkMark;
use sheave_base::secret::Resolved;
use sheave_base::{Error, ErrorKind, NodeId, Result, Secret};
use sheave_mesh::{Guest, GuestConfig, Invitation, check_environment};
use sheave_rpc::VersionsClient;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The guest until it has left.
struct Stay {
    guest: Mutex<Option<Guest>>,
    mark: ForkMark,
}

impl Stay {
    fn guest(&self) -> Result<Guest> {
        self.mark.check("guest")?;
        let guest = self.guest.lock().unwrap_or_else(PoisonError::into_inner);
        guest.clone().ok_or_else(|| Error::new(ErrorKind::Closed, "this guest has left its host"))
    }

    fn take(&self) -> Option<Guest> {
        if self.mark.is_stale() { None } else { self.guest.lock().unwrap_or_else(PoisonError::into_inner).take() }
    }
}

/// The guests that this process is. Locked with the interpreter held only, so that a fork never finds it locked.
static STAYS: Mutex<Vec<Weak<Stay>>> = Mutex::new(Vec::new());

/// The nodes of this process that are guests, while they are attached.
pub(crate) fn attached() -> Vec<Guest> {
    let stays: Vec<_> = STAYS.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect();
    stays.iter().filter_map(|stay| stay.guest().ok()).filter(Guest::is_attached).collect()
}

impl life::Living for Stay {
    fn end(&self, how: life::End) {
        let Some(guest) = self.take() else { return };
        match how {
            life::End::Uncaught => guest.fail("an exception that nobody caught ended its program"),
            // Nobody is left to be told.
            life::End::Waited => drop(guest.leave()),
            life::End::Quiet => life::when_status_is_known(move |status| end_with_status(guest.mesh(), status)),
        }
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        if self.mark.is_stale() {
            // What a forked child inherits is not its own to give back.
            std::mem::forget(self.guest.get_mut().unwrap_or_else(PoisonError::into_inner).take());
            return;
        }
        let Some(guest) = self.take() else { return };
        if life::is_ending() {
            return life::when_status_is_known(move |status| end_with_status(guest.mesh(), status));
        }
        // Ending may take a moment, which is not the other threads' affair. What is dropped has failed.
        let mut dropped = Some(guest);
        Python::try_attach(|py| py.detach(|| drop(dropped.take())));
        drop(dropped);
    }
}

/// This process as a guest of a member of a mesh, its host: it calls its host and is called by it, each holds
/// references to the other's objects, and no other member hears of it. A Fleet starts such processes.
///
/// Attaches by the invitation in the environment (SHEAVE_INVITATION), and blocks until the host has taken it in, for a
/// minute or `timeout` seconds at most. Waits let other Python threads run and end at Ctrl-C. As a context manager the
/// guest leaves at the end, and has failed after an exception. When the host is gone, calls raise PeerLost that names
/// it, and until_gone returns.
///
/// Raises NotFound without an invitation; NotPermitted if it was used before or is open no more; Unauthenticated for
/// another secret; PeerLost if the host is gone.
///
/// >>> with sheave.Fleet(1) as fleet:
/// ...     fleet.call(fleet.guests[0], lambda: sheave.fleet.current_guest().host.name)
/// 'rank-0'
#[pyclass(name = "Guest", module = "sheave", frozen, weakref)]
pub(crate) struct PyGuest {
    stay: Arc<Stay>,
    name: String,
    host: PyPeer,
    host_node: NodeId,
    opens: Opens,
}

impl PyGuest {
    fn guest(&self, py: Python<'_>) -> PyResult<Guest> {
        self.stay.guest().or_raise(py)
    }

    fn attach(py: Python<'_>, config: GuestConfig, opens: Opens) -> PyResult<Self> {
        let guest = enter(py, None, |_, interrupt| Guest::attach_interruptible(config, interrupt))?;
        let (name, host) = (guest.name().to_owned(), guest.host().clone());
        let host_node = host.node.unwrap_or_default();
        let stay = Arc::new(Stay { guest: Mutex::new(Some(guest)), mark: ForkMark::here() });
        let this = Self { stay, name, host: host.into(), host_node, opens };
        let guest = this.guest(py)?;
        references::serve(guest.mesh(), this.opener(&guest)).or_raise(py)?;
        let living: Weak<Stay> = Arc::downgrade(&this.stay);
        let mut stays = STAYS.lock().unwrap_or_else(PoisonError::into_inner);
        stays.retain(|stay| stay.strong_count() > 0);
        stays.push(Weak::clone(&living));
        drop(stays);
        life::remember(living);
        Ok(this)
    }

    fn opener(&self, guest: &Guest) -> Opener {
        Opener::new(guest.mesh().downgrade(), self.opens.clone())
    }

    /// The guest, and what opens the values that its host sends.
    pub(crate) fn parts(&self, py: Python<'_>) -> PyResult<(Guest, Opener)> {
        let guest = self.guest(py)?;
        let opener = self.opener(&guest);
        Ok((guest, opener))
    }
}

#[pymethods]
impl PyGuest {
    #[new]
    #[pyo3(signature = (*, timeout = None))]
    fn new(py: Python<'_>, timeout: Option<f64>) -> PyResult<Self> {
        // Here and not in the wait: others may write the environment while the interpreter is let go.
        check_environment().or_raise(py)?;
        let opens = calls::opens().or_raise(py)?;
        let Some(mut config) = GuestConfig::from_env().or_raise(py)? else {
            let what = format!("this process has no invitation: {} is not set", Invitation::VARIABLE);
            let error = Error::new(ErrorKind::NotFound, what).operation("attach");
            return Err(error.hint("guests are started by a sheave.Fleet")).or_raise(py);
        };
        if let Some(timeout) = crate::enter::span(timeout)? {
            config.timeout = timeout;
        }
        Self::attach(py, config, opens)
    }

    /// The name that the host has given to this guest.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The host.
    #[getter]
    fn host(&self) -> PyPeer {
        self.host.clone()
    }

    /// Whether the host is there and this guest has not left it.
    #[getter]
    fn is_attached(&self) -> bool {
        self.stay.guest().is_ok_and(|guest| guest.is_attached())
    }

    /// Call what the host serves; as `Mesh.call` in all else.
    #[pyo3(signature = (what, args = None, kwargs = None, *, timeout = None, async_op = false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn call(
        &self,
        py: Python<'_>,
        what: &str,
        args: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
        timeout: Option<f64>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let guest = self.guest(py)?;
        let (args, deadline) = (calls::positional(py, args)?, crate::enter::span(timeout)?);
        calls::call(&self.opener(&guest), self.host_node, what, (&args, kwargs), deadline)?.given(py, async_op)
    }

    /// Let the host call `service` under this name; as `Mesh.serve` in all else.
    #[pyo3(signature = (name, service, *, lane = None))]
    fn serve(&self, name: &str, service: &Bound<'_, PyAny>, lane: Option<&str>) -> PyResult<()> {
        let guest = self.guest(service.py())?;
        calls::serve(guest.mesh(), name, service, lane, self.opener(&guest))
    }

    /// Let the host call the service of this name no more. Handlers that run go on.
    fn serve_no_more(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let guest = self.guest(py)?;
        py.detach(|| guest.serve_no_more(name));
        Ok(())
    }

    /// Keep an object of this process for as long as the host has the Ref that is returned, or this process does.
    fn export(&self, object: &Bound<'_, PyAny>) -> PyResult<PyRef> {
        let guest = self.guest(object.py())?;
        references::export(guest.mesh(), object, self.opener(&guest))
    }

    /// A client of the table of versioned objects that the host has registered in this group under this key, and opened
    /// to guests by `has_guests`. Asks nobody: the methods of a client raise NotFound if there is no such table, and
    /// NotPermitted if it is not for guests. When this process ends, in whatever way, its watches and pins are free;
    /// when the host does, PeerLost names it.
    ///
    /// >>> def newest():
    /// ...     table = sheave.fleet.current_guest().versions("actors", "models")
    /// ...     return table.pull("policy", timeout=20).value
    /// >>> group = mesh.rpc_group("actors", [0])
    /// >>> models = sheave.versions.Versions(mesh, has_guests=True)
    /// >>> models.register(group, "models")
    /// >>> models.client().push("policy", {"steps": 9}, version=1).outcome
    /// 'accepted'
    /// >>> with sheave.Fleet(1, mesh=mesh) as fleet:
    /// ...     fleet.call(fleet.guests[0], newest)
    /// {'steps': 9}
    fn versions(&self, group: &str, key: &Bound<'_, PyAny>) -> PyResult<PyVersionsClient> {
        let (guest, opener) = self.parts(key.py())?;
        let client = VersionsClient::of_host(&guest, group, rpc::key(key)?).or_raise(key.py())?;
        Ok(PyVersionsClient::new(client, opener))
    }

    /// Tell the host that this guest serves what it is there for: a Fleet waits for that.
    fn ready(&self, py: Python<'_>) -> PyResult<()> {
        let guest = self.guest(py)?;
        enter(py, None, |_, interrupt| {
            let said = guest.ready()?;
            said.wait_until(None, interrupt)?;
            said.wait()
        })
    }

    /// Wait until the host has left, or has let this guest go; this guest serves it meanwhile.
    ///
    /// Raises PeerLost if the host has died or failed.
    fn until_gone(&self, py: Python<'_>) -> PyResult<()> {
        let guest = self.guest(py)?;
        enter(py, None, |_, interrupt| guest.until_gone_interruptible(interrupt))
    }

    /// Leave the host in order: it has all that was sent to it before. Idempotent.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let Some(guest) = self.stay.take() else { return Ok(()) };
        end_aside(py, move || guest.leave())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Leaves; after an exception this guest has failed, and the host is told of it.
    #[pyo3(signature = (kind, value, _traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let Some(guest) = self.stay.take() else { return Ok(()) };
        let reason = failure_of(kind, value);
        end_aside(py, move || {
            match reason {
                // Who closes does not care whether the host was there to hear it.
                None => drop(guest.leave()),
                Some(reason) => guest.fail(&reason),
            }
            Ok(())
        })
    }

    fn __repr__(&self) -> String {
        let left = if self.is_attached() { "" } else { ", left" };
        format!("<sheave.Guest {} of {}{left}>", self.name, self.host.name)
    }
}

/// Attaches this process by an invitation that has come in another way than through its environment; and with the
/// secret that has come so, if it has.
#[pyfunction]
pub(crate) fn attach_guest(py: Python<'_>, invitation: &str, secret: Option<&[u8]>) -> PyResult<PyGuest> {
    check_environment().or_raise(py)?;
    let opens = calls::opens().or_raise(py)?;
    let lookup =
        |name: &str| if name == Invitation::VARIABLE { Some(invitation.into()) } else { std::env::var_os(name) };
    let config = GuestConfig::from_lookup(lookup).or_raise(py)?;
    let without = || Error::new(ErrorKind::InvalidArgument, "an empty invitation");
    let mut config = config.ok_or_else(without).or_raise(py)?;
    if let Some(secret) = secret {
        let secret = Secret::new(secret).or_raise(py)?;
        config.node.secret = Some(Resolved { secret, source: "the process that has started this one".to_owned() });
    }
    PyGuest::attach(py, config, opens)
}
