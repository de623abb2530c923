//! The services that run on a thread of their own: whoever says so lends it.
//!
//! A thread that has nothing to do waits on a work that is driven by the node, as those of the
//! [`executor`](super::executor) do: so it finds its requests on the links itself, and runs them without a hand-over.
//!
//! **Order.** Requests of a service are taken out of the node's queue by one thread at a time, and put into the queue
//! here in that order; its thread takes them out in the same order, one after the other. Either one is put in while the
//! thread waits, and the thread is given it under the lock, when the queue is empty; or the thread takes it before it
//! waits again.

use super::ServiceName;
use super::executor::Job;
use crate::Mesh;
use parking_lot::Mutex;
use sheave_base::collections::HashMap;
use sheave_base::planted::{self, Bug};
use sheave_base::work::{Completer, IDLE, Interrupt};
use sheave_base::{Error, ErrorKind, Result, contain};
use sheave_net::Node;
use std::collections::VecDeque;

/// The services of a node that run on threads of their own, by their numbers.
#[derive(Default)]
pub(crate) struct Desks {
    desks: Mutex<HashMap<u64, Desk>>,
}

#[derive(Default)]
struct Desk {
    queue: VecDeque<Job>,
    /// A thread works here.
    is_manned: bool,
    /// It waits for the next job.
    waiting: Option<Completer<Job>>,
}

impl Desks {
    /// A service of this number is offered.
    pub(super) fn open(&self, service: u64) {
        self.desks.lock().insert(service, Desk::default());
    }

    /// It is offered no more: what has not begun is dropped, which answers it, and its thread goes.
    pub(super) fn close(&self, service: u64) {
        // Not under the lock: drops may do anything.
        let closed = self.desks.lock().remove(&service);
        drop(closed);
    }

    /// As [`Desks::close`], of all.
    pub(super) fn close_all(&self) {
        let closed = std::mem::take(&mut *self.desks.lock());
        drop(closed);
    }

    /// Has the thread of this service run a job. Does not block.
    pub(super) fn submit(&self, service: u64, job: Job) {
        let mut desks = self.desks.lock();
        let Some(desk) = desks.get_mut(&service) else {
            drop(desks);
            // Which answers it.
            return drop(job);
        };
        let Some(waiting) = desk.waiting.take() else {
            if planted::strikes(Bug::DeskLost) && desk.queue.len() > 2 {
                drop(desks);
                return drop(job);
            }
            return desk.queue.push_back(job);
        };
        drop(desks);
        waiting.complete(Ok(job));
    }

    /// Runs what is asked of this service on this thread until the service is offered no more.
    pub(super) fn work(&self, service: u64, node: &Node, mut interrupt: Option<Interrupt<'_>>) -> Result<()> {
        self.take_place(service)?;
        loop {
            let asked = interrupt.as_mut().map(|interrupt| interrupt as Interrupt<'_>);
            match self.next(service, node, asked) {
                Ok(Some(job)) => drop(contain::told("a handler", || (job.act)(None))),
                Ok(None) => return Ok(()),
                Err(error) => {
                    if let Some(desk) = self.desks.lock().get_mut(&service) {
                        desk.is_manned = false;
                    }
                    return Err(error);
                }
            }
        }
    }

    fn take_place(&self, service: u64) -> Result<()> {
        let mut desks = self.desks.lock();
        let unknown = || Error::new(ErrorKind::NotFound, "this node has no such service on a thread of its own");
        let desk = desks.get_mut(&service).ok_or_else(unknown)?;
        if std::mem::replace(&mut desk.is_manned, true) {
            return Err(Error::new(ErrorKind::AlreadyExists, "another thread works for this service already"));
        }
        Ok(())
    }

    /// The next job; `None` when the service is offered no more.
    fn next(&self, service: u64, node: &Node, interrupt: Option<Interrupt<'_>>) -> Result<Option<Job>> {
        let work = {
            let mut desks = self.desks.lock();
            let Some(desk) = desks.get_mut(&service) else { return Ok(None) };
            let is_turned = planted::strikes(Bug::DeskTurned);
            let job = if is_turned { desk.queue.pop_back() } else { desk.queue.pop_front() };
            if let Some(job) = job {
                return Ok(Some(job));
            }
            let (completer, work) = node.pair(IDLE, None);
            desk.waiting = Some(completer);
            work
        };
        let waited = work.wait_until(None, interrupt);
        if waited.is_ok() {
            // A completer that was dropped ends the work with an error: the service is gone.
            return Ok(work.taken().ok());
        }
        let was_waiting = self.desks.lock().get_mut(&service).is_some_and(|desk| desk.waiting.take().is_some());
        // Else one came just now: whoever works here next does it first.
        if !was_waiting
            && let Ok(job) = work.join()
            && let Some(desk) = self.desks.lock().get_mut(&service)
        {
            desk.queue.push_front(job);
        }
        waited.map(|_| None)
    }
}

impl Mesh {
    /// Works for a service of [`Lane::Own`](crate::Lane::Own): runs its handlers on this thread, one after the other,
    /// until it is taken away ([`Mesh::serve_no_more`], which one of them may do), this node leaves, or the host whose
    /// guest it is is gone. Blocks; `interrupt` is asked at least every 100 ms while there is nothing to do, and its
    /// error ends this. What was asked for stays then, for the thread that works here next.
    ///
    /// # Errors
    ///
    /// `NotFound` if this node offers no such service, `AlreadyExists` if another thread works for it, and whatever
    /// `interrupt` says.
    ///
    /// ```
    /// # use sheave_mesh::{Config, Expected, Mesh, Request, Role};
    /// # use sheave_base::config::Endpoint;
    /// # use sheave_wire::Value;
    /// use sheave_mesh::Lane;
    ///
    /// struct Clerk(Mesh);
    ///
    /// impl sheave_mesh::Service for Clerk {
    ///     fn handle(&self, request: Request) {
    ///         self.0.serve_no_more("clerk");
    ///         request.reply.value(format!("on {:?}", std::thread::current().name()));
    ///     }
    ///
    ///     fn lane(&self) -> Lane {
    ///         Lane::Own
    ///     }
    /// }
    ///
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let root = Endpoint { host: "127.0.0.1".into(), port };
    /// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
    /// mesh.serve("clerk", Clerk(mesh.clone()))?;
    /// let asked = mesh.call(mesh.me().node, "clerk", "where", Value::None)?;
    /// mesh.work("clerk", None)?;
    /// assert_eq!(asked.wait()?.value, Value::from(format!("on {:?}", std::thread::current().name())));
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    pub fn work(&self, service: impl Into<ServiceName>, interrupt: Option<Interrupt<'_>>) -> Result<()> {
        let (shared, service) = (&self.shared, service.into());
        let worked = shared.calls.requests.desks.work(service.number(), &shared.node, interrupt);
        worked.map_err(|error| error.asked_for(format!("work for {}", service.as_str())))
    }
}
