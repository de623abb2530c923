//! The particles of a node, and how they are started.
//!
//! A message that is sent within a node is put into a mailbox, and nothing else happens, for whoever has sent it is
//! likely to wait for it and to handle it itself (see [`Answer`]). The particle is *listed*; what is listed is started
//! by the first of these: a thread that is about to sleep in a wait for an answer; the node's own task, which is woken
//! when a handler that is a future suspends; the end of a job on a thread of the node; and a timer, which is set with
//! the first that is listed and goes off after [a moment](sheave_base::limits::PARTICLE_START_AFTER). Futures are
//! polled by whoever starts them, and what may block is handed to threads of the node. A message from another node is
//! started at once, for nobody here waits for it.
//!
//! **The timer costs those who need none**: it wakes two threads, which take the core from the one that works. So each
//! time that it finds nothing to start the moment doubles, up to
//! [so many times](sheave_base::limits::PARTICLE_START_AFTER_FACTOR_MAX), and is the usual one again when it has found
//! something.
//!
//! When the node leaves, its task ends, and with it everything that has not begun.

use crate::answer::{Answer, Source};
use crate::behavior::Behavior;
use crate::id::ParticleId;
use crate::message::{Message, Payload};
use crate::particle::{End, Particle, Turn, gone};
use crate::service::{self, Served};
use crate::waits::Waits;
use parking_lot::{Mutex, RwLock};
use sheave_base::collections::HashMap;
use sheave_base::planted::{self, Bug};
use sheave_base::work::awaited::{Account, Awaited, Describe, Which};
use sheave_base::{Error, ErrorKind, NodeId, Result, Work, limits};
use sheave_mesh::{Mesh, ServiceName, Task, WeakMesh};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Poll;

/// Makes a particle of the arguments that it is created with.
pub(crate) type Kind<M> = Arc<dyn Fn(M) -> Result<Behavior<M>> + Send + Sync>;

/// The first number of those that stand apart: no node makes so many others.
const APART: u64 = 1 << 62;

pub(crate) struct Inner<M: Payload> {
    own: Weak<Self>,
    mesh: WeakMesh,
    pub(crate) node: NodeId,
    service: ServiceName,
    particles: RwLock<HashMap<u64, Arc<Particle<M>>>>,
    next: AtomicU64,
    next_apart: AtomicU64,
    kinds: RwLock<BTreeMap<String, Kind<M>>>,
    /// Those that have something to be started.
    listed: Mutex<VecDeque<Arc<Particle<M>>>>,
    /// A timer will start them.
    is_arranged: AtomicBool,
    /// How many times the usual moment it takes.
    factor: AtomicU32,
    /// Jobs on threads so far: each has a mailbox of its own there.
    jobs: AtomicU64,
    starter: OnceLock<Task>,
    over: Mutex<Option<Error>>,
    pub(crate) waits: Waits<M>,
    /// Errors so far that nobody has looked at.
    pub(crate) unseen: AtomicU64,
}

impl<M: Payload> Inner<M> {
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    pub(crate) fn mesh(&self) -> Result<Mesh> {
        self.mesh.upgrade().ok_or_else(gone)
    }

    pub(crate) fn find(&self, number: u64) -> Option<Arc<Particle<M>>> {
        self.particles.read().get(&number).cloned()
    }

    pub(crate) fn found(&self, number: u64) -> Result<Arc<Particle<M>>> {
        self.find(number).ok_or_else(|| {
            let what = format!("no particle {number} on this node, which has {}", self.particles.read().len());
            Error::new(ErrorKind::NotFound, what).hint("it was removed, or never made")
        })
    }

    pub(crate) fn create(&self, behavior: Behavior<M>) -> Result<ParticleId> {
        let id = ParticleId { node: self.node, number: self.next.fetch_add(1, Relaxed) };
        self.create_as(id, behavior).map(|()| id)
    }

    fn create_as(&self, id: ParticleId, behavior: Behavior<M>) -> Result<()> {
        let mut particles = self.particles.write();
        // Whoever ends all particles says so before it looks which there are.
        if let Some(error) = &*self.over.lock() {
            return Err(error.clone());
        }
        if particles.len() >= limits::PARTICLES_MAX {
            let what = format!("a node has at most {} particles", limits::PARTICLES_MAX);
            return Err(Error::new(ErrorKind::LimitExceeded, what).hint("remove those that are not used"));
        }
        if particles.contains_key(&id.number) {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("{id} is there")));
        }
        particles.insert(id.number, Particle::new(id, self.own.clone(), behavior));
        Ok(())
    }

    pub(crate) fn create_kind(&self, kind: &str, arguments: M) -> Result<ParticleId> {
        let make = self.kinds.read().get(kind).cloned();
        let make = make.ok_or_else(|| {
            let known: Vec<String> = self.kinds.read().keys().map(|kind| format!("\"{kind}\"")).collect();
            let what = format!("no kind \"{kind}\" of particles on this node, which offers {}", listed(&known));
            Error::new(ErrorKind::NotFound, what).hint("offer it there before particles are created")
        })?;
        self.create(make(arguments)?)
    }

    pub(crate) fn remove(&self, number: u64) -> bool {
        let removed = self.particles.write().remove(&number);
        let was_there = removed.is_some();
        if let Some(particle) = removed {
            let error = Error::new(ErrorKind::NotFound, format!("{particle} was removed"));
            particle.refuse(&error, true);
        }
        was_there
    }

    pub(crate) fn numbers(&self) -> Vec<u64> {
        let is_listed = |number: &u64| *number < APART;
        let mut numbers: Vec<u64> = self.particles.read().keys().copied().filter(is_listed).collect();
        numbers.sort_unstable();
        numbers
    }

    /// The particle, with its node if that is another one.
    pub(crate) fn shown(&self, id: ParticleId) -> String {
        if id.node == self.node {
            return self.find(id.number).map_or_else(|| id.to_string(), |particle| particle.to_string());
        }
        let mesh = self.mesh().ok();
        match mesh.as_ref().and_then(|mesh| mesh.member(id.node)) {
            Some(member) => format!("{id} of {}", member.peer().name),
            None => format!("{id} of another node"),
        }
    }

    pub(crate) fn send(self: &Arc<Self>, to: ParticleId, name: &str, message: M) -> Answer<M> {
        self.sent(to, name, message, |particle, _| self.list(particle))
    }

    /// Sends a message, and handles it on this thread if it can begin.
    fn run(self: &Arc<Self>, to: ParticleId, name: &str, message: M) -> Answer<M> {
        self.sent(to, name, message, |particle, answer| {
            particle.unlist();
            // A circle is told by the wait for it.
            let _ = answer.help();
            particle.look();
        })
    }

    /// Sends a message. `start` is called where somebody is to start a particle of this node for it.
    fn sent(
        self: &Arc<Self>,
        to: ParticleId,
        name: &str,
        message: M,
        start: impl FnOnce(&Arc<Particle<M>>, &Answer<M>),
    ) -> Answer<M> {
        let sent = match to.node == self.node {
            true => self.send_here(to, name, message, start),
            false => self.send_there(to, name, message),
        };
        sent.unwrap_or_else(|error| {
            let work = Work::ready("send", Err(error.operation("send")));
            Answer::new(work, Arc::clone(self), (to, name.into()), Source::There)
        })
    }

    fn send_here(
        self: &Arc<Self>,
        to: ParticleId,
        name: &str,
        message: M,
        start: impl FnOnce(&Arc<Particle<M>>, &Answer<M>),
    ) -> Result<Answer<M>> {
        let (mesh, particle) = (self.mesh()?, self.found(to.number)?);
        let mut made = None;
        let pushed = particle.push(name, message, |number, name| {
            let knows: Weak<dyn Describe> = self.own.clone();
            let awaited = Awaited::new(knows, [to.number, number]);
            let (completer, work) = mesh.node().governed("send", None, awaited);
            made = Some((work, number, Arc::clone(name)));
            End::Here(completer)
        });
        let is_to_be_started = pushed.map_err(|(error, _)| error)?;
        let (work, number, name) = made.ok_or_else(gone)?;
        let answer = Answer::new(work, Arc::clone(self), (to, name), Source::Here(Arc::clone(&particle), number));
        if is_to_be_started {
            start(&particle, &answer);
        }
        Ok(answer)
    }

    fn send_there(self: &Arc<Self>, to: ParticleId, name: &str, message: M) -> Result<Answer<M>> {
        let call = service::send(to.number, name, message)?;
        let called = self.mesh()?.call(to.node, self.service.clone(), service::SEND, call)?;
        let work = called.map(|answer| M::read(answer.value, answer.tensors.into()));
        Ok(Answer::new(work, Arc::clone(self), (to, name.into()), Source::There))
    }

    pub(crate) fn prepare<F: Future<Output = ()> + Send + 'static>(&self, make: impl FnOnce() -> F) -> Result<Task> {
        self.mesh()?.runtime().prepare_with(make)
    }

    /// A particle has something to be started.
    pub(crate) fn list(&self, particle: &Arc<Particle<M>>) {
        self.listed.lock().push_back(Arc::clone(particle));
        if self.is_arranged.swap(true, SeqCst) {
            return;
        }
        let (own, mesh) = (self.own.clone(), self.mesh());
        let factor = self.factor.load(Relaxed);
        let arranged = mesh.and_then(|mesh| {
            mesh.at(mesh.runtime().after(limits::PARTICLE_START_AFTER * factor), move || {
                let Some(runtime) = own.upgrade() else { return };
                runtime.is_arranged.store(false, SeqCst);
                let is_vain = !runtime.keeps_what_waits();
                let factor = if is_vain { (2 * factor).min(limits::PARTICLE_START_AFTER_FACTOR_MAX) } else { 1 };
                runtime.factor.store(factor, Relaxed);
                runtime.start_soon();
            })
        });
        match arranged {
            Ok(timer) => timer.detach(),
            Err(_) => {
                self.is_arranged.store(false, SeqCst);
                self.start_soon();
            }
        }
    }

    /// Strikes off the list what somebody has begun by now. False if nothing is left.
    fn keeps_what_waits(&self) -> bool {
        let mut listed = self.listed.lock();
        let all = std::mem::take(&mut *listed).into_iter();
        let (kept, gone): (VecDeque<_>, VecDeque<_>) = all.partition(|particle| particle.stays_listed());
        let has_some = !kept.is_empty();
        *listed = kept;
        drop(listed);
        // It may be all that has a particle that was removed, and its state may do anything.
        drop(gone);
        has_some
    }

    /// Has the node's task start what is listed.
    pub(crate) fn start_soon(&self) {
        if let Some(starter) = self.starter.get()
            && !self.listed.lock().is_empty()
        {
            starter.wake();
        }
    }

    /// Has a particle started that has something for which nobody of this node waits. Does not block.
    ///
    /// What may block goes to a thread at once: the one that has found the request is likely to be it, and then nobody
    /// is woken. By way of the node's task whoever runs that would be first.
    pub(crate) fn start(self: &Arc<Self>, particle: &Arc<Particle<M>>) {
        if particle.is_blocking_next() {
            particle.unlist();
            return self.submit(particle);
        }
        self.list(particle);
        self.start_soon();
    }

    /// Starts what is listed: polls futures, and hands what may block to threads. Does not block.
    pub(crate) fn start_all(self: &Arc<Self>) {
        for _ in 0..limits::PARTICLE_TURN_MESSAGES {
            let Some(particle) = self.listed.lock().pop_front() else { return };
            if planted::strikes(Bug::ParticleForgotten) {
                continue;
            }
            particle.unlist();
            match particle.turn(false, None) {
                Turn::Over => particle.look(),
                Turn::Blocks => self.submit(&particle),
                Turn::Long => {
                    particle.look();
                    break;
                }
            }
        }
        self.start_soon();
    }

    /// Has a thread of the node handle what a particle has been sent.
    fn submit(self: &Arc<Self>, particle: &Arc<Particle<M>>) {
        let Ok(mesh) = self.mesh() else { return particle.refuse(&gone(), true) };
        if !particle.submits() {
            return;
        }
        let (runtime, coming) = (Arc::downgrade(self), Coming(Some(Arc::clone(particle))));
        mesh.submit(&self.service, self.jobs.fetch_add(1, Relaxed), move |turn| {
            let Some(particle) = coming.comes() else { return };
            match (turn, runtime.upgrade()) {
                (Err(error), _) => particle.refuse(&error, false),
                (Ok(()), None) => particle.refuse(&gone(), true),
                (Ok(()), Some(runtime)) => {
                    particle.turn(true, None);
                    particle.look();
                    runtime.start_all();
                }
            }
        });
    }

    /// Nothing that has not begun does any more.
    fn close(&self, error: &Error) {
        self.over.lock().get_or_insert_with(|| error.clone());
        let particles: Vec<_> = self.particles.read().values().cloned().collect();
        particles.iter().for_each(|particle| particle.refuse(error, true));
    }
}

/// A thread that is to come for a particle. It never does if this is dropped: the mesh has ended for this node, which
/// may not have left yet.
struct Coming<M: Payload>(Option<Arc<Particle<M>>>);

impl<M: Payload> Coming<M> {
    fn comes(mut self) -> Option<Arc<Particle<M>>> {
        self.0.take().inspect(|particle| particle.unsubmit())
    }
}

impl<M: Payload> Drop for Coming<M> {
    fn drop(&mut self) {
        if let Some(particle) = self.0.take() {
            particle.unsubmit();
            particle.refuse(&gone(), true);
        }
    }
}

/// Texts in a row.
fn listed(texts: &[String]) -> String {
    if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
}

impl<M: Payload> Describe for Inner<M> {
    fn describe(&self, which: Which) -> Option<Account> {
        let particle = self.find(which[0])?;
        let (name, _) = particle.describe(which[1])?;
        let what = format!("send of \"{name}\" to {particle}");
        Some(Account { what: Some(what), whom: Some(particle.told_of(which[1])) })
    }

    fn cancel(&self, which: Which) {
        if let Some(particle) = self.find(which[0]) {
            particle.cancel(which[1]);
        }
    }
}

/// The end of the node's task: the node has left.
struct Ending<M: Payload>(Weak<Inner<M>>);

impl<M: Payload> Drop for Ending<M> {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.close(&gone());
        }
    }
}

/// The particles of one name on this node, and the way to those of other nodes; a handle, cheap to clone. They live
/// until they are [removed](Particles::remove) or [stopped](Particles::stop), or the node leaves.
///
/// ```
/// # use sheave_mesh::{Config, Expected, Mesh, Role};
/// # use sheave_base::config::Endpoint;
/// use sheave_particle::{Behavior, Message, ParticleId, Particles};
/// use sheave_wire::Value;
///
/// # let root = Endpoint { host: "127.0.0.1".into(), port: sheave_base::port::free()? };
/// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
/// let particles: Particles = Particles::new(&mesh, "ensemble")?;
/// let number = |value: &Value| if let Value::Int(number) = value { *number } else { 0 };
/// let member = particles.create(Behavior::new(()).on("double", move |_, message: Message| async move {
///     Ok(Message::from(2 * number(&message.value)))
/// }))?;
/// let leader = particles.create(Behavior::new(member).on("ask", |context, message| async move {
///     context.send(*context.state::<ParticleId>()?, "double", message).await
/// }))?;
/// assert_eq!(particles.send(leader, "ask", 21).wait()?.value, Value::Int(42));
/// # Ok::<(), sheave_base::Error>(())
/// ```
pub struct Particles<M: Payload = Message>(Arc<Inner<M>>);

impl<M: Payload> Clone for Particles<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M: Payload> Particles<M> {
    /// Makes this node one that has particles of this name: others of the mesh that do so too reach them.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if the node has particles of that name, `Closed` once it has left.
    pub fn new(mesh: &Mesh, name: &str) -> Result<Self> {
        let service = format!("sheave.particles.{name}");
        let inner = Arc::new_cyclic(|own| Inner {
            own: own.clone(),
            mesh: mesh.downgrade(),
            node: mesh.me().node,
            service: service.clone().into(),
            particles: RwLock::default(),
            next: AtomicU64::new(0),
            next_apart: AtomicU64::new(APART),
            kinds: RwLock::default(),
            listed: Mutex::default(),
            is_arranged: AtomicBool::new(false),
            factor: AtomicU32::new(1),
            jobs: AtomicU64::new(0),
            starter: OnceLock::new(),
            over: Mutex::default(),
            waits: Waits::default(),
            unseen: AtomicU64::new(0),
        });
        let ending = Ending(Arc::downgrade(&inner));
        let starter = mesh.runtime().spawn(poll_fn(move |_| {
            if let Some(inner) = ending.0.upgrade() {
                inner.start_all();
            }
            Poll::Pending
        }));
        let named = |error: Error| error.operation("make particles");
        let _ = inner.starter.set(starter.map_err(named)?);
        mesh.serve(&service, Served(Arc::clone(&inner))).map_err(named)?;
        Ok(Self(inner))
    }

    pub(crate) fn of(inner: Arc<Inner<M>>) -> Self {
        Self(inner)
    }

    /// Returns the node that these are the particles of.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.0.node
    }

    /// Makes a particle on this node. Does not block.
    ///
    /// # Errors
    ///
    /// `LimitExceeded` for more than [`PARTICLES_MAX`](limits::PARTICLES_MAX), `Closed` once they are stopped.
    pub fn create(&self, behavior: Behavior<M>) -> Result<ParticleId> {
        self.0.create(behavior).map_err(|error| error.operation("create particle"))
    }

    /// Returns the name of a particle that is made later, by [`Particles::create_as`], of what must know it.
    #[must_use]
    pub fn reserve(&self) -> ParticleId {
        ParticleId { node: self.0.node, number: self.0.next.fetch_add(1, Relaxed) }
    }

    /// Returns the name of a particle that is made later and is not listed: one that serves the others of its node.
    /// The first of a node has the same number on all nodes.
    #[must_use]
    pub fn reserve_apart(&self) -> ParticleId {
        ParticleId { node: self.0.node, number: self.0.next_apart.fetch_add(1, Relaxed) }
    }

    /// Makes a particle of this node that is known by a name which was reserved, or saved by an earlier run. Later ones
    /// have higher numbers. Does not block.
    ///
    /// # Errors
    ///
    /// As [`Particles::create`]; `AlreadyExists` for a name that is in use, `InvalidArgument` for one of another node.
    pub fn create_as(&self, id: ParticleId, behavior: Behavior<M>) -> Result<()> {
        let made = || {
            if id.node != self.0.node {
                return Err(Error::new(ErrorKind::InvalidArgument, format!("{id} is of another node")));
            }
            self.0.create_as(id, behavior)?;
            if id.number < APART {
                self.0.next.fetch_max(id.number + 1, Relaxed);
            }
            Ok(())
        };
        made().map_err(|error| error.operation("create particle"))
    }

    /// Offers a kind of particles, which others may [create](Particles::create_on) here: `make` is given their
    /// arguments. It must not block. One of the same name before is offered no more.
    pub fn offer(&self, kind: &str, make: impl Fn(M) -> Result<Behavior<M>> + Send + Sync + 'static) {
        let before = self.0.kinds.write().insert(kind.to_owned(), Arc::new(make));
        drop(before);
    }

    /// Makes a particle of a kind that a node offers, this one or another. Does not block.
    ///
    /// # Errors
    ///
    /// Those of [`Mesh::call`]. The work fails with `NotFound` for a kind that is not offered there, with the error of
    /// whoever offers it, as [`Particles::create`], and with `PeerLost` when the node is gone.
    pub fn create_on(&self, node: NodeId, kind: &str, arguments: impl Into<M>) -> Result<Work<ParticleId>> {
        let named = |error: Error| error.operation("create particle");
        if node == self.0.node {
            return Ok(Work::ready("create particle", self.0.create_kind(kind, arguments.into()).map_err(named)));
        }
        let begin = || {
            let call = service::create(kind, arguments.into())?;
            self.0.mesh()?.call(node, self.0.service.clone(), service::CREATE, call)
        };
        let called = begin().map_err(named)?.or_else(move |error| Err(named(error)));
        Ok(called.map(|answer| ParticleId::from_value(&answer.value)))
    }

    /// Sends a message to a particle of this node or of another. Does not block: what is wrong is told by the answer.
    /// What one thread, or one handler, sends to one particle is handled in that order.
    ///
    /// A message to a particle of this node is handled by whoever waits for the answer, or else by other threads after
    /// [a moment](limits::PARTICLE_START_AFTER); a longer one, [up to](limits::PARTICLE_START_AFTER_FACTOR_MAX), where
    /// whoever has sent something of late has waited for it.
    pub fn send(&self, to: ParticleId, name: &str, message: impl Into<M>) -> Answer<M> {
        self.0.send(to, name, message.into())
    }

    /// Sends a message, as [`Particles::send`], and handles it on the calling thread at once if its particle is of this
    /// node and idle: no other thread is started for it, however long the caller is kept from its core. Blocks for as
    /// long as its handler does; where the particle is busy it does not block. Whoever looks at no answer is told of no
    /// error.
    ///
    /// ```
    /// # use sheave_mesh::{Config, Expected, Mesh, Role};
    /// # use sheave_base::config::Endpoint;
    /// use sheave_particle::{Behavior, Message, Particles};
    /// use std::thread;
    ///
    /// # let root = Endpoint { host: "127.0.0.1".into(), port: sheave_base::port::free()? };
    /// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
    /// let particles: Particles = Particles::new(&mesh, "ensemble")?;
    /// let named = |_: &_, _| Ok(Message::from(format!("{:?}", thread::current().id())));
    /// let member = particles.create(Behavior::new(()).on_blocking("thread", named))?;
    /// let answer = particles.run(member, "thread", ());
    /// assert!(answer.is_done());
    /// assert_eq!(answer.wait()?.value, format!("{:?}", thread::current().id()).into());
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    #[must_use]
    pub fn run(&self, to: ParticleId, name: &str, message: impl Into<M>) -> Answer<M> {
        self.0.run(to, name, message.into())
    }

    /// Adds the handlers of `behavior` to a particle of this node, in place of those of the same names: for messages
    /// that are sent from then on. Its state stays.
    ///
    /// # Errors
    ///
    /// `NotFound` for a particle that is not here.
    pub fn register(&self, id: ParticleId, behavior: Behavior<M>) -> Result<()> {
        let particle = self.here(id, "register handler")?;
        behavior.handlers.into_iter().for_each(|(name, handler)| particle.register(name, handler));
        Ok(())
    }

    /// Returns the names of the messages that a particle of this node handles, in order.
    ///
    /// # Errors
    ///
    /// `NotFound` for a particle that is not here.
    pub fn names(&self, id: ParticleId) -> Result<Vec<Arc<str>>> {
        Ok(self.here(id, "list handlers")?.names())
    }

    /// Returns how many messages to a particle of this node have not begun.
    ///
    /// # Errors
    ///
    /// `NotFound` for a particle that is not here.
    pub fn queued(&self, id: ParticleId) -> Result<usize> {
        Ok(self.here(id, "count messages")?.queued())
    }

    fn here(&self, id: ParticleId, operation: &'static str) -> Result<Arc<Particle<M>>> {
        let found = match id.node == self.0.node {
            true => self.0.found(id.number),
            false => Err(Error::new(ErrorKind::NotFound, format!("{id} lives on another node"))),
        };
        found.map_err(|error| error.operation(operation))
    }

    /// Removes a particle of this node, and returns whether it was there. Messages that have not begun fail with
    /// `NotFound`; handlers that have begun go on.
    #[must_use]
    pub fn remove(&self, id: ParticleId) -> bool {
        id.node == self.0.node && self.0.remove(id.number)
    }

    /// Removes a particle of another node, or of this one; the work says whether it was there. Does not block.
    ///
    /// # Errors
    ///
    /// Those of [`Mesh::call`].
    pub fn remove_on(&self, id: ParticleId) -> Result<Work<bool>> {
        if id.node == self.0.node {
            return Ok(Work::ready("remove particle", Ok(self.remove(id))));
        }
        let called =
            self.0.mesh()?.call(id.node, self.0.service.clone(), service::REMOVE, service::number(id.number)?)?;
        Ok(called.map(|answer| Ok(answer.value == sheave_wire::Value::Bool(true))))
    }

    /// Returns the particles of this node, in the order in which they were made.
    #[must_use]
    pub fn ids(&self) -> Vec<ParticleId> {
        self.0.numbers().into_iter().map(|number| ParticleId { node: self.0.node, number }).collect()
    }

    /// Asks for the particles of a node, in the order in which they were made. Does not block.
    ///
    /// # Errors
    ///
    /// Those of [`Mesh::call`].
    pub fn ids_on(&self, node: NodeId) -> Result<Work<Vec<ParticleId>>> {
        if node == self.0.node {
            return Ok(Work::ready("list particles", Ok(self.ids())));
        }
        let call = sheave_mesh::Call::default();
        let called = self.0.mesh()?.call(node, self.0.service.clone(), service::LIST, call)?;
        Ok(called.map(move |answer| service::read_ids(node, &answer.value)))
    }

    /// Returns how many handlers of this node wait for particles of it.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.waits.len()
    }

    /// Ends all particles of this node: messages that have not begun fail with `Closed`, and others find none here.
    /// Handlers that have begun go on. Does not block. Idempotent.
    pub fn stop(&self) {
        if let Ok(mesh) = self.0.mesh() {
            mesh.serve_no_more(self.0.service.as_str());
        }
        self.0.close(&Error::new(ErrorKind::Closed, "the particles of this node were stopped"));
    }
}

impl<M: Payload> fmt::Debug for Particles<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Particles").field("service", &self.0.service.as_str()).finish_non_exhaustive()
    }
}
