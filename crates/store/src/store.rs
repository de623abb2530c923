//! The store as its users see it.

mod rows;

use crate::client::{Client, First};
use crate::command;
use crate::compress::Compression;
use crate::dead::num_dead_node;
use crate::key::Key;
use crate::kind::Kind;
use crate::local::Local;
use crate::protocol::OnWorkerLoss;
use crate::updater::{Function, Updater, with_learning_rate};
use parking_lot::ReentrantMutex;
use sheave_base::work::Interrupt;
use sheave_base::{Error, ErrorKind, Result, Work, limits};
use sheave_mesh::Mesh;
use sheave_optim::Optimizer;
use sheave_tensor::Tensor;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// How a distributed store is set up. All workers must say the same.
#[derive(Clone, Debug)]
pub struct Config {
    /// The kind of store.
    pub kind: Kind,
    /// Tensors of so many elements and more are cut over all servers; smaller ones live whole on one.
    pub cut_elements: u64,
    /// What a server has of a tensor is cut again into slices of so many elements, which travel and are merged each for
    /// itself.
    pub slice_elements: u64,
    /// For the kind `dist_ssp`: how many pushes of a key the slowest worker may be behind one that pulls it.
    pub staleness: u64,
    /// What becomes of the store when a worker dies.
    pub on_worker_loss: OnWorkerLoss,
    /// How long a server may take to start its part.
    pub open_timeout: Duration,
}

impl Config {
    /// The default settings for a kind of this name ([`Kind::parse`]).
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a name that is not known.
    pub fn of_kind(name: &str) -> Result<Self> {
        Ok(Self::from(Kind::parse(name)?))
    }
}

impl From<Kind> for Config {
    fn from(kind: Kind) -> Self {
        Self {
            kind,
            cut_elements: 1_000_000,
            // 1 MiB of f32: the cache of a core holds it, and its message is long beside its head.
            slice_elements: 1 << 18,
            staleness: 3,
            on_worker_loss: OnWorkerLoss::default(),
            open_timeout: limits::JOIN_TIMEOUT,
        }
    }
}

/// How an operation is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// What is more important leaves first: slices of tensors that are queued for a server overtake those of less
    /// priority, except slices of the same key. Without one, 0, an operation leaves at once, unless others are queued.
    pub priority: i32,
}

pub(crate) enum Place {
    /// Reentrant, so that an updater that uses its own store gets an error and does not wait for itself.
    Local(Box<ReentrantMutex<RefCell<Local>>>),
    Servers(Box<Client>),
}

/// A key-value store of tensors, as one worker of it. Clones are handles to the same store.
///
/// Operations take many keys at once, and one call is few messages. Keys may repeat: values of equal keys of one push
/// are summed in the order in which they are given, and every place of a pull is filled. Shapes and dtypes are checked
/// before anything moves.
///
/// A push captures its values before it returns; a pull leases its places until its work has ended. A worker's pull
/// sees all that the worker has pushed before. Every operation on servers ends with `PeerLost` when a server that it
/// needs is gone. When a worker is gone, every push of a store that counts workers does (`dist_sync` and `dist_ssp`),
/// and so does every later pull of those whose pushes came to nothing, unless the store bears the loss
/// ([`OnWorkerLoss::Shrink`]). Cancelling an operation does not take it back.
#[derive(Clone)]
pub struct KvStore {
    pub(crate) place: Arc<Place>,
    kind: Kind,
    barrier_before_exit: Arc<AtomicBool>,
}

impl KvStore {
    /// A store within this process, of a kind that needs no servers.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a kind that is not known or needs servers.
    pub fn local(kind: &str) -> Result<Self> {
        let kind = Kind::parse(kind)?;
        if kind.is_distributed() {
            return Err(Error::new(ErrorKind::InvalidArgument, format!("a {kind} store needs a mesh with servers"))
                .operation("open")
                .hint("join a mesh and open the store on it, or use the kind local"));
        }
        Ok(Self::of(Place::Local(Box::new(ReentrantMutex::new(RefCell::new(Local::new(kind))))), kind))
    }

    /// A store on the servers of a mesh, as one of its workers; every worker opens it. Blocks until every server
    /// serves. A kind that needs no servers gives a local store.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` on a node that is no worker, or without servers; `Mismatch` if another worker has opened it
    /// differently; `PeerLost` if a server is gone.
    pub fn open(mesh: &Mesh, config: impl Into<Config>) -> Result<Self> {
        let config = config.into();
        if !config.kind.is_distributed() {
            return Self::local(&config.kind.to_string());
        }
        let client = Client::open(mesh, &config)?;
        Ok(Self::of(Place::Servers(Box::new(client)), config.kind))
    }

    fn of(place: Place, kind: Kind) -> Self {
        Self { place: Arc::new(place), kind, barrier_before_exit: Arc::new(AtomicBool::new(true)) }
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// This worker's rank among the workers; 0 for a local store.
    #[must_use]
    pub fn rank(&self) -> u32 {
        match &*self.place {
            Place::Local(_) => 0,
            Place::Servers(client) => client.rank() as u32,
        }
    }

    /// How many workers there are; 1 for a local store. In a store that shrinks, how many are left: an operation that
    /// has ended well without some of them has made them known.
    #[must_use]
    pub fn group_size(&self) -> usize {
        match &*self.place {
            Place::Local(_) => 1,
            Place::Servers(client) => client.group_size(),
        }
    }

    /// Whether this worker's word counts where only one worker's does, as in [`KvStore::set_updater`]: it is worker 0,
    /// or in a store that shrinks the first one that is left. True for a local store.
    ///
    /// ```
    /// assert!(sheave_store::KvStore::local("local")?.is_first());
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    #[must_use]
    pub fn is_first(&self) -> bool {
        match &*self.place {
            Place::Local(_) => true,
            Place::Servers(client) => client.is_first(),
        }
    }

    /// New keys and their first values. With servers every worker must call it, with the same keys; it blocks until all
    /// have. The values of worker 0 count, in a store that shrinks those of the first one that is left, and the others'
    /// must have their shapes and dtypes.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` for a key that was initialised before; `Mismatch` for another shape or dtype than worker 0's;
    /// `LimitExceeded` for a key of more than 2^20 slices, or beyond 2^22 slices of one store on one server.
    pub fn init(&self, pairs: &[(Key, Tensor)]) -> Result<()> {
        match &*self.place {
            Place::Local(local) => within(local, |local| local.init(pairs)),
            Place::Servers(client) => {
                let first = |(key, value): &(Key, Tensor)| (key.clone(), First::Dense(value.clone()));
                let pairs: Vec<_> = pairs.iter().map(first).collect();
                client.init(&pairs)
            }
        }
    }

    /// As [`KvStore::init`] on a worker other than 0, whose values do not count anyway.
    ///
    /// # Errors
    ///
    /// As [`KvStore::init`]; `InvalidArgument` on worker 0 and on a local store.
    pub fn init_without_values(&self, keys: &[Key]) -> Result<()> {
        match &*self.place {
            Place::Local(_) => {
                Err(Error::new(ErrorKind::InvalidArgument, "a local store needs the values").operation("init"))
            }
            Place::Servers(client) => {
                client.init(&keys.iter().map(|key| (key.clone(), First::Nothing)).collect::<Vec<_>>())
            }
        }
    }

    /// Merges values into the stored ones. In a synchronous store the work ends when all workers have pushed and the
    /// sum is merged.
    ///
    /// # Errors
    ///
    /// `NotFound` for a key that was not initialised, `Mismatch` for another shape or dtype, `BufferInUse` for a value
    /// that is being written. The work may end with the updater's error.
    pub fn push(&self, pairs: &[(Key, Tensor)]) -> Result<Work<()>> {
        self.push_with(pairs, Options::default())
    }

    /// [`KvStore::push`] with options. With a priority the values are captured by a copy, and the call waits only while
    /// more is queued than a model has.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn push_with(&self, pairs: &[(Key, Tensor)], options: Options) -> Result<Work<()>> {
        match &*self.place {
            Place::Local(local) => Ok(Work::ready("push", within(local, |local| local.push(pairs)))),
            Place::Servers(client) => client.update("push", pairs, &[], options),
        }
    }

    /// Copies stored values into places, which are overwritten.
    ///
    /// # Errors
    ///
    /// `NotFound` for a key that was not initialised, `Mismatch` for another shape or dtype, `BufferInUse` for a place
    /// that is in use or given twice; `LimitExceeded` for a table of which a server has more than 1 GiB, whose rows are
    /// pulled with [`KvStore::pull_rows`].
    pub fn pull(&self, pairs: &[(Key, Tensor)]) -> Result<Work<()>> {
        self.pull_with(pairs, Options::default())
    }

    /// [`KvStore::pull`] with options.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn pull_with(&self, pairs: &[(Key, Tensor)], options: Options) -> Result<Work<()>> {
        match &*self.place {
            Place::Local(local) => Ok(Work::ready("pull", within(local, |local| local.pull(pairs)))),
            Place::Servers(client) => client.update("pull", &[], pairs, options),
        }
    }

    /// [`KvStore::push`] and then [`KvStore::pull`], in the same messages: what is pulled of a slice comes with the
    /// answer to what is pushed to it.
    ///
    /// # Errors
    ///
    /// As both.
    #[doc(alias = "pushpull")]
    pub fn push_pull(&self, values: &[(Key, Tensor)], places: &[(Key, Tensor)]) -> Result<Work<()>> {
        self.push_pull_with(values, places, Options::default())
    }

    /// [`KvStore::push_pull`] with options.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn push_pull_with(
        &self,
        values: &[(Key, Tensor)],
        places: &[(Key, Tensor)],
        options: Options,
    ) -> Result<Work<()>> {
        match &*self.place {
            Place::Local(local) => {
                let outcome = within(local, |local| local.push(values).and_then(|()| local.pull(places)));
                Ok(Work::ready("push_pull", outcome))
            }
            Place::Servers(client) => client.update("push_pull", values, places, options),
        }
    }

    /// [`KvStore::init`] with `values`, and then [`KvStore::pull`] into `places`: all workers begin with those of
    /// worker 0. Blocks until init is done.
    ///
    /// # Errors
    ///
    /// As both.
    pub fn broadcast(&self, values: &[(Key, Tensor)], places: &[(Key, Tensor)]) -> Result<Work<()>> {
        self.init(values)?;
        self.pull(places)
    }

    /// Says what pushes do from now on. With servers only worker 0's word counts. It blocks until that worker's pushes
    /// so far have ended, so that they are merged as before on every server, and all servers have heard it.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an optimizer's settings without a meaning, and on worker 0 if it has said that it is done;
    /// `Unsupported` for a closure with servers, `NotFound` for a name that a server does not offer.
    pub fn set_updater(&self, updater: Updater) -> Result<()> {
        match &*self.place {
            Place::Local(local) => within(local, |local| local.set_updater(updater)),
            Place::Servers(client) => client.set_updater(&updater),
        }
    }

    /// An optimizer where the values are: [`Updater::Optimizer`]. The same rule with other settings, such as the
    /// learning rate, goes on with its state; another rule begins anew. With
    /// [`multi_precision`](Optimizer::multi_precision) values of f16 and bf16 are stepped as copies of f32 beside them.
    ///
    /// [`Lamb`](sheave_optim::Lamb) needs norms of whole tensors. In a synchronous store servers put them together; the
    /// other kinds on servers have it only for tensors that are not cut.
    ///
    /// # Errors
    ///
    /// As [`KvStore::set_updater`]; `Unsupported` for LAMB where it cannot be had.
    pub fn set_optimizer(&self, optimizer: impl Into<Optimizer>) -> Result<()> {
        self.set_updater(optimizer.into().into())
    }

    /// The optimizer's learning rate, which its schedule multiplies. With servers it blocks until the first one has
    /// answered.
    ///
    /// # Errors
    ///
    /// `NotFound` without an optimizer, `PeerLost` if the server is gone.
    pub fn learning_rate(&self) -> Result<f64> {
        match &*self.place {
            Place::Local(local) => within(local, |local| Ok(local.optimizer()?.rule.learning_rate())),
            Place::Servers(client) => Ok(client.optimizer()?.rule.learning_rate()),
        }
    }

    /// Changes the optimizer's learning rate and nothing else: its states stay, and so does its schedule. As with
    /// [`KvStore::set_updater`], only the first worker's word counts.
    ///
    /// ```
    /// use sheave_store::{KvStore, Rule};
    ///
    /// let store = KvStore::local("local")?;
    /// store.set_optimizer(Rule::adam(0.1))?;
    /// store.set_learning_rate(0.01)?;
    /// assert_eq!(store.learning_rate()?, 0.01);
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `NotFound` without an optimizer, `InvalidArgument` for a rate below zero or not finite, `Unsupported` for the
    /// optimizer `test`, which has none; else those of [`KvStore::set_updater`].
    pub fn set_learning_rate(&self, learning_rate: f64) -> Result<()> {
        match &*self.place {
            Place::Local(local) => within(local, |local| {
                let optimizer = with_learning_rate(local.optimizer()?.clone(), learning_rate)?;
                local.set_updater(optimizer.into())
            }),
            Place::Servers(client) => client.set_learning_rate(learning_rate),
        }
    }

    /// How this worker's gradients travel from now on: all that are dense and of f32, except those of keys that have a
    /// compression of their own ([`KvStore::set_gradient_compression_of`]). What a coarse code leaves out of a gradient
    /// is added to the next one of its key. Values of init never are compressed, nor are those that are pulled, nor is
    /// anything in a local store of the kind `local`.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a threshold without a meaning, or in a local store of the kind `local`.
    pub fn set_gradient_compression(&self, compression: Compression) -> Result<()> {
        match &*self.place {
            Place::Local(local) => within(local, |local| local.set_compression(compression)),
            Place::Servers(client) => client.set_compression(None, compression),
        }
    }

    /// [`KvStore::set_gradient_compression`] of these keys alone, whatever is said for all others before or after.
    ///
    /// # Errors
    ///
    /// As there; `NotFound` for a key that was not initialised, `Unsupported` for one that is not of f32, and for a
    /// local store.
    pub fn set_gradient_compression_of(&self, keys: &[Key], compression: Compression) -> Result<()> {
        match &*self.place {
            Place::Local(_) => {
                Err(Error::new(ErrorKind::Unsupported, "a local store has one compression for all keys")
                    .operation("set_gradient_compression_of"))
            }
            Place::Servers(client) => client.set_compression(Some(keys), compression),
        }
    }

    /// How values of f32 travel to this worker from now on: as they are, or rounded to `fp16` or `bf16`. Values in the
    /// store stay as they are. In a local store nothing travels.
    ///
    /// # Errors
    ///
    /// `Unsupported` for `1bit` and `2bit`, which fit gradients only.
    pub fn set_pull_compression(&self, compression: Compression) -> Result<()> {
        match &*self.place {
            Place::Local(_) => compression.check_for_values(),
            Place::Servers(client) => client.set_pull_compression(compression),
        }
    }

    /// Offers a function by name to [`Updater::Named`] of a local store. Servers are given theirs at their start.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` with servers.
    pub fn register(&self, name: &str, function: Function) -> Result<()> {
        match &*self.place {
            Place::Local(local) => within(local, |local| {
                local.register(name, function);
                Ok(())
            }),
            Place::Servers(_) => Err(Error::new(ErrorKind::InvalidArgument, "functions are registered on the servers")
                .operation("register")
                .hint("give it to the ServerConfig of every server")),
        }
    }

    /// Blocks until every worker has come here. It does not wait for pushes and pulls.
    ///
    /// # Errors
    ///
    /// `PeerLost` if a worker is gone and the store does not bear that, or a server is; `Closed` if a worker has closed
    /// the store.
    pub fn barrier(&self) -> Result<()> {
        match &*self.place {
            Place::Local(_) => Ok(()),
            Place::Servers(client) => client.barrier().map(drop),
        }
    }

    /// Says that this worker has no more to push, because it has fewer batches than others: they go on without it. What
    /// it has pushed counts, and it may still pull. The work ends when all workers have come to that point; from then
    /// on all are waited for again, and push again. In a local store it has ended already.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if it has been said and has not ended; the work ends with `PeerLost` if a worker is gone and
    /// the store does not bear that, or a server is.
    #[doc(alias = "join")]
    pub fn done(&self) -> Result<Work<()>> {
        match &*self.place {
            Place::Local(_) => Ok(Work::ready("done", Ok(()))),
            Place::Servers(client) => client.done(),
        }
    }

    /// Blocks until every push and pull of this worker on these keys has ended; on all keys if there are none.
    ///
    /// # Errors
    ///
    /// The first error of those that had not ended; `NotFound` for a key that was not initialised.
    pub fn wait(&self, keys: &[Key]) -> Result<()> {
        match &*self.place {
            Place::Local(local) => within(local, |local| local.check_known(keys, "wait")),
            Place::Servers(client) => client.wait(keys),
        }
    }

    /// Blocks until there is room for a push or a pull that has a priority, or follows one that has: these wait in a
    /// queue of this worker, whose bytes are bounded. They wait by themselves; this is for callers that must be able to
    /// end the wait: `interrupt` is asked now and then. A local store has no queue.
    ///
    /// # Errors
    ///
    /// That of `interrupt`; `Closed` when this node has left the mesh.
    pub fn wait_for_room(&self, interrupt: Option<Interrupt<'_>>) -> Result<()> {
        match &*self.place {
            Place::Local(_) => Ok(()),
            Place::Servers(client) => client.wait_for_room(interrupt),
        }
    }

    /// Takes keys out of the store; they may be initialised anew, with another shape or dtype. With servers every
    /// worker must call it, with the same keys; it waits for this worker's operations on them, and blocks until all
    /// have come.
    ///
    /// # Errors
    ///
    /// `NotFound` for a key that was not initialised, and then none is deleted; `PeerLost` if somebody is gone.
    pub fn delete(&self, keys: &[Key]) -> Result<()> {
        match &*self.place {
            Place::Local(local) => within(local, |local| local.delete(keys)),
            Place::Servers(client) => client.delete(keys),
        }
    }

    /// Sends a command of the user's own to the controller of every server, and waits until all have run it. The number
    /// may be any. The answers come in the order of the servers' ranks; a local store has none.
    ///
    /// # Errors
    ///
    /// `NotFound` if a server has no controller; what the controller says; `PeerLost` if a server is gone.
    pub fn send_command_to_servers(&self, number: i32, body: impl AsRef<[u8]>) -> Result<Vec<Vec<u8>>> {
        match &*self.place {
            Place::Local(_) => Ok(Vec::new()),
            Place::Servers(client) => command::send(&client.mesh, number, body.as_ref()),
        }
    }

    /// How many nodes are dead: of one node or of groups, by the numbers of ps-lite. 1 is the scheduler, 2 all servers,
    /// 4 all workers, and sums of these are several groups; 8 + 2 r is server r, and 9 + 2 r worker r. A node whose
    /// links have closed counts at once, a silent one after `timeout` or the liveness timeout, whichever is shorter.
    /// Those who left in order do not count. Any node may ask; 0 for a local store. Blocks for at most `timeout`, and
    /// only where that is shorter than the liveness timeout: the nodes are asked then whether they live
    /// ([`Mesh::num_dead_or_silent`]).
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a number that names nobody, and whatever ends this node's membership.
    pub fn num_dead_node(&self, node_id: i32, timeout: Duration) -> Result<usize> {
        match &*self.place {
            Place::Local(_) => Ok(0),
            Place::Servers(client) => num_dead_node(&client.mesh, node_id, timeout),
        }
    }

    /// Whether [`KvStore::close`] meets the other workers first; it does unless this says otherwise.
    pub fn set_barrier_before_exit(&self, meets: bool) {
        self.barrier_before_exit.store(meets, SeqCst);
    }

    /// Ends this worker's part: nobody waits for pushes of this worker from now on. Waits for its pushes and pulls,
    /// meets the other workers unless [`KvStore::set_barrier_before_exit`] says otherwise, and lets the servers forget
    /// the store once all have closed it. Workers may have made different numbers of steps: rounds go on without those
    /// who close, until the last one comes. Again it does nothing. Dropping the last handle does not close it: a worker
    /// that goes astray must not look like one that has finished.
    ///
    /// # Errors
    ///
    /// The first error of what was outstanding, or what the barrier says; the store is closed all the same.
    pub fn close(&self) -> Result<()> {
        match &*self.place {
            Place::Local(_) => Ok(()),
            Place::Servers(client) => client.close(self.barrier_before_exit.load(SeqCst)),
        }
    }
}

pub(crate) fn within<T>(
    local: &ReentrantMutex<RefCell<Local>>,
    act: impl FnOnce(&mut Local) -> Result<T>,
) -> Result<T> {
    let local = local.lock();
    let Ok(mut local) = local.try_borrow_mut() else {
        return Err(Error::new(ErrorKind::InvalidArgument, "an updater cannot use the store that it updates")
            .hint("it is given the sum and the value; use them alone"));
    };
    act(&mut local)
}

impl std::fmt::Debug for KvStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvStore").field("kind", &self.kind).finish_non_exhaustive()
    }
}
