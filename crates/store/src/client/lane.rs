//! Pushes and pulls that leave in the order of their priority.
//!
//! An operation of a priority is taken apart into its slices. Each is captured and queued for its server, and the most
//! important one leaves first, those of equal importance in the order in which they came. What has left and was not
//! taken by the server yet is bounded ([`IN_FLIGHT_BYTES`]), so an important slice overtakes a big tensor of less
//! importance but for that much; and it does not wait for the less important ones in flight at all, because only those
//! of its own importance and more count against the bound.
//!
//! **Order.** Slices of one key never overtake each other, or rounds would mix them: an operation is at most as
//! important as what is queued of any of its keys. So a pull leaves after the pushes before it.
//!
//! **No deadlock.** A server takes a slice at once, whatever other workers do ([`crate::protocol::Slices`]); pulls,
//! which may wait for others, do not count against the bound. So whatever is queued leaves as fast as servers take it.
//! What is queued is bounded too ([`QUEUED_BYTES_MAX`]): beyond it the caller waits, for the servers alone.
//!
//! **Slices that cannot be sent.** Servers that know of a push wait for its slices. Where one cannot be sent the push
//! has failed ([`Announced`]): nobody waits for what the servers would say, those slices of it that are still queued
//! are not sent, and the servers are told ([`tell_torn`]). A store that counts pushes is broken then; in any other one
//! the servers forget the push, and what its unsent slices took of residuals is given back.

use super::coding::Draft;
use crate::protocol::{Piece, SERVICE, Slices, Told, Torn, Update};
use parking_lot::Mutex;
use sheave_base::work::awaited::{Account, Awaited, Describe, Which, listed};
use sheave_base::work::{Completer, Interrupt, reborrowed};
use sheave_base::{Error, ErrorKind, NodeId, Result, Work};
use sheave_mesh::{CallOptions, Mesh, Method, WeakMesh};
use sheave_net::Parts;
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock, Weak};

/// Bytes of one server's slices that have left and are not taken: a few slices, so that the server is never idle.
const IN_FLIGHT_BYTES: u64 = 4 << 20;

/// Bytes that are captured and have not left. A model of this size waits for its network, whatever the order.
const QUEUED_BYTES_MAX: u64 = 1 << 30;

/// How often a word is told again because another one's failure came in its place, or room while it was refused.
const TELLS_MAX: usize = 4;

pub(super) struct Lane {
    mesh: WeakMesh,
    store: u32,
    servers: Vec<NodeId>,
    state: Mutex<State>,
    me: Weak<Lane>,
}

#[derive(Default)]
struct State {
    queues: Vec<Queue>,
    last: u64,
    queued_bytes: u64,
    /// Of each key, how many items are queued, and the least of their priorities.
    keys: HashMap<u64, (usize, i32)>,
    /// Those who wait for room.
    waiting: Vec<Completer<()>>,
}

/// What waits for one server.
#[derive(Default)]
struct Queue {
    items: BTreeMap<(Reverse<i32>, u64), Item>,
    /// By priority, the bytes that have left and are not taken.
    in_flight: BTreeMap<i32, u64>,
    /// Somebody sends right now, and will look again.
    is_sending: bool,
}

/// Something that leaves in one message.
pub(super) struct Item {
    pub(super) server: usize,
    /// The keys' numbers.
    pub(super) keys: SmallVec<[u64; 1]>,
    pub(super) bytes: u64,
    pub(super) what: What,
}

impl Item {
    /// Its slices are queued, for good where a store is of no more use without one of them.
    pub(super) fn queue(&mut self, is_for_good: bool) {
        let What::Slices { drafts, .. } = &mut self.what else { return };
        match is_for_good {
            true => drafts.drain(..).for_each(Draft::leave),
            false => drafts.iter_mut().for_each(Draft::queue),
        }
    }

    /// Returns the bytes that it keeps while it is queued.
    fn queued_bytes(&self) -> u64 {
        match &self.what {
            What::Slices { drafts, .. } => self.bytes + drafts.iter().map(Draft::queued_bytes).sum::<u64>(),
            What::Pull { .. } => self.bytes,
        }
    }
}

#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each message")]
pub(super) enum What {
    /// Slices of a push that the server knows of, and of those that may come back what they took of residuals.
    Slices { announced: Arc<Announced>, push: Vec<Piece>, tensors: Parts, drafts: Vec<Draft> },
    /// A pull, and who is told of its answer.
    Pull { update: Update, options: CallOptions, completer: Completer<Told> },
}

/// A push that its servers have been told of, and whose slices come one by one.
pub(super) struct Announced {
    /// This worker's number for it.
    pub(super) operation: u64,
    /// The calls that told of it. They end when all slices are merged.
    calls: Mutex<Vec<Work<Told>>>,
    /// The first error of a slice that could not be sent.
    failure: OnceLock<Error>,
    /// The first one that is no loss of a server. Another server may have been lost before.
    refusal: OnceLock<Error>,
    /// Where a store is told of it that is of no more use without a slice.
    broken: Option<Arc<OnceLock<Error>>>,
}

impl Announced {
    pub(super) fn new(operation: u64, broken: Option<Arc<OnceLock<Error>>>) -> Arc<Self> {
        Arc::new(Self {
            operation,
            calls: Mutex::default(),
            failure: OnceLock::new(),
            refusal: OnceLock::new(),
            broken,
        })
    }

    /// Notes a call that has told a server.
    pub(super) fn told(&self, call: &Work<Told>) {
        self.calls.lock().push(call.clone());
    }

    /// A slice could not be sent: the servers wait for it in vain. True if they are to be told so.
    fn fail(&self, error: &Error) -> bool {
        let _ = self.failure.set(error.clone());
        let is_torn = !error.kind().is_loss() && self.refusal.set(error.clone()).is_ok();
        if let Some(broken) = self.broken.as_ref().filter(|_| is_torn) {
            let _ = broken.set(torn(error));
        }
        let calls = std::mem::take(&mut *self.calls.lock());
        calls.iter().for_each(Work::cancel);
        is_torn
    }

    /// Why its other slices are not sent any more. Those who live get theirs though another server is lost.
    fn check(&self) -> Result<()> {
        self.refusal.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Why the push has failed, if its calls have ended with this error.
    pub(super) fn why(&self, error: Error) -> Error {
        self.failure.get().cloned().unwrap_or(error)
    }
}

/// Why a store that counts pushes can be used no more.
pub(super) fn torn(error: &Error) -> Error {
    error.clone().context("a push has reached some servers and not others, and the store is of no more use")
}

/// Tells all servers of a store that a push has reached only some of them, so that nobody waits for the rest of it or
/// gets a sum with a part of it.
pub(super) fn tell_torn(mesh: &Mesh, servers: &[NodeId], torn: Torn) {
    let torn = Arc::new(torn);
    for server in servers {
        tell_server::<Torn>(mesh, *server, &torn).unwrap_or_else(|error| notice_untold(mesh, *server, &error));
    }
}

/// Tells one server. That takes no place among the calls that wait for answers, of which there may be none left. Where
/// too many wait for the server to begin with them, it is told behind those. A store that counts pushes tells it once
/// more when its worker closes it.
pub(super) fn tell_server<M: Method>(mesh: &Mesh, server: NodeId, args: &Arc<M::Args>) -> Result<()>
where
    M::Args: Sync,
{
    let mut told = Ok(());
    for _ in 0..TELLS_MAX {
        // What an earlier word has failed with, because its store was closed, is not to be told in the place of this.
        let _ = mesh.check_one_way(server, SERVICE);
        told = mesh.tell::<M>(server, args);
        if told.is_ok() {
            break;
        }
        let room = mesh.room(server, SERVICE, None);
        if !room.is_done() {
            tell_behind::<M>(mesh, server, args, &room);
            return Ok(());
        }
        // There may be room by now.
        room.taken()?;
    }
    told
}

/// Tells a server once there is room for that.
fn tell_behind<M: Method>(mesh: &Mesh, server: NodeId, args: &Arc<M::Args>, room: &Work<()>)
where
    M::Args: Sync,
{
    let (mesh, args) = (mesh.downgrade(), Arc::clone(args));
    room.on_complete(move |ended| {
        let Some(mesh) = mesh.upgrade() else { return };
        let told = ended.clone().and_then(|()| tell_server::<M>(&mesh, server, &args));
        told.unwrap_or_else(|error| notice_untold(&mesh, server, &error));
    });
}

/// Says that a server has not heard what it was to be told, where nobody waits for that. A lost one needs it no more.
fn notice_untold(mesh: &Mesh, server: NodeId, error: &Error) {
    if !matches!(error.kind(), ErrorKind::Closed) && !error.kind().is_loss() {
        mesh.node().notice(&format!("server {server} could not be told how this worker stands to a store: {error}"));
    }
}

impl Lane {
    pub(super) fn new(mesh: &Mesh, store: u32, servers: &[NodeId]) -> Arc<Self> {
        let queues = servers.iter().map(|_| Queue::default()).collect();
        let state = Mutex::new(State { queues, ..State::default() });
        let (mesh, servers) = (mesh.downgrade(), servers.to_vec());
        Arc::new_cyclic(|me| Self { mesh, store, servers, state, me: Weak::clone(me) })
    }

    /// Whether nothing is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().keys.is_empty()
    }

    /// Blocks until no more than `bytes` are queued, for the servers alone.
    fn wait_until(&self, mesh: &Mesh, bytes: u64, mut interrupt: Option<Interrupt<'_>>) -> Result<()> {
        loop {
            let work = {
                let mut state = self.state.lock();
                if state.queued_bytes <= bytes && (bytes > 0 || state.keys.is_empty()) {
                    return Ok(());
                }
                let (completer, work) = mesh.node().described("push", None, Awaited::new(self.me.clone(), [0; 2]));
                state.waiting.push(completer);
                work
            };
            work.wait_until(None, reborrowed(&mut interrupt))?;
            work.taken()?;
        }
    }

    /// Blocks until there is room for more.
    pub(super) fn wait_for_room(&self, mesh: &Mesh, interrupt: Option<Interrupt<'_>>) -> Result<()> {
        self.wait_until(mesh, QUEUED_BYTES_MAX, interrupt)
    }

    /// Blocks until everything has left.
    pub(super) fn drain(&self, mesh: &Mesh) -> Result<()> {
        self.wait_until(mesh, 0, None)
    }

    /// Queues the items of one operation.
    pub(super) fn add(self: &Arc<Self>, priority: i32, items: Vec<Item>) {
        let mut state = self.state.lock();
        let queued = items.iter().flat_map(|item| &item.keys).filter_map(|key| state.keys.get(key));
        let priority = queued.map(|(_, least)| *least).min().map_or(priority, |least| least.min(priority));
        let mut servers: SmallVec<[usize; 8]> = SmallVec::new();
        for item in items {
            state.last += 1;
            let number = state.last;
            state.queued_bytes += item.queued_bytes();
            for key in &item.keys {
                let (count, least) = state.keys.entry(*key).or_insert((0, priority));
                *count += 1;
                *least = priority.min(*least);
            }
            if !servers.contains(&item.server) {
                servers.push(item.server);
            }
            let server = item.server;
            state.queues[server].items.insert((Reverse(priority), number), item);
        }
        drop(state);
        servers.into_iter().for_each(|server| self.send(server));
    }

    /// Sends what may leave now.
    fn send(self: &Arc<Self>, server: usize) {
        {
            let mut state = self.state.lock();
            // A call that ends at once comes here again; whoever is sending sees what it has changed.
            if std::mem::replace(&mut state.queues[server].is_sending, true) {
                return;
            }
        }
        loop {
            let Some((priority, item)) = self.next(server) else { return };
            let (bytes, keys) = (item.queued_bytes(), item.keys.clone());
            self.send_item(server, priority, item);
            let waiting = self.state.lock().left(bytes, &keys);
            waiting.into_iter().for_each(|completer| completer.complete(Ok(())));
        }
    }

    /// The item that may leave next. If there is none, the sending is over.
    fn next(&self, server: usize) -> Option<(i32, Item)> {
        let mut state = self.state.lock();
        let queue = &mut state.queues[server];
        let Some(first) = queue.items.first_entry() else {
            queue.is_sending = false;
            return None;
        };
        let (Reverse(priority), _) = *first.key();
        let ahead: u64 = queue.in_flight.range(priority..).map(|(_, bytes)| *bytes).sum();
        let bytes = first.get().bytes;
        if ahead > 0 && ahead + bytes > IN_FLIGHT_BYTES && matches!(first.get().what, What::Slices { .. }) {
            queue.is_sending = false;
            return None;
        }
        let item = first.remove();
        if matches!(item.what, What::Slices { .. }) {
            *queue.in_flight.entry(priority).or_default() += bytes;
        }
        Some((priority, item))
    }

    fn send_item(self: &Arc<Self>, server: usize, priority: i32, item: Item) {
        let gone = || Error::new(ErrorKind::Closed, "this node has left the mesh");
        let (mesh, to) = (self.mesh.upgrade().ok_or_else(gone), self.servers[server]);
        match item.what {
            What::Slices { announced, push, tensors, drafts } => {
                let slices = Slices { store: self.store, operation: announced.operation, push };
                let options = CallOptions { tensors, ..CallOptions::default() };
                let mesh = announced.check().and(mesh);
                match mesh.and_then(|mesh| mesh.ask_with::<Slices>(to, &slices, options)) {
                    Ok(work) => {
                        let lane = Arc::clone(self);
                        work.on_complete(move |outcome| {
                            if let Err(error) = outcome {
                                drafts.into_iter().for_each(Draft::give_back);
                                // What the server says of them it says of the push too.
                                if error.happened_on().is_none() {
                                    lane.fail(&announced, error);
                                }
                            }
                            lane.taken(server, priority, item.bytes);
                        });
                    }
                    Err(error) => {
                        drafts.into_iter().for_each(Draft::give_back);
                        self.fail(&announced, &error);
                        self.taken(server, priority, item.bytes);
                    }
                }
            }
            What::Pull { update, options, completer } => {
                match mesh.and_then(|mesh| mesh.ask_with::<Update>(to, &update, options)) {
                    Ok(work) => work.pass_to(completer, Ok),
                    Err(error) => completer.complete(Err(error)),
                }
            }
        }
    }

    /// A slice of this push could not be sent.
    pub(super) fn fail(&self, announced: &Announced, error: &Error) {
        if announced.fail(error)
            && let Some(mesh) = self.mesh.upgrade()
        {
            let torn = Torn { store: self.store, operation: Some(announced.operation), reason: error.clone() };
            tell_torn(&mesh, &self.servers, torn);
        }
    }

    /// The server has taken what it was sent.
    fn taken(self: &Arc<Self>, server: usize, priority: i32, bytes: u64) {
        {
            let mut state = self.state.lock();
            let in_flight = &mut state.queues[server].in_flight;
            if let Some(left) = in_flight.get_mut(&priority) {
                *left -= bytes;
                if *left == 0 {
                    in_flight.remove(&priority);
                }
            }
        }
        self.send(server);
    }
}

/// Servers that have not taken what is queued for them.
impl Describe for Lane {
    fn describe(&self, _: Which) -> Option<Account> {
        let mesh = self.mesh.upgrade()?;
        let slow: Vec<NodeId> = {
            let state = self.state.lock();
            let queues = self.servers.iter().zip(&state.queues);
            queues.filter(|(_, queue)| !queue.items.is_empty()).map(|(server, _)| *server).collect()
        };
        let names = slow.iter().filter_map(|node| mesh.member(*node)).map(|member| member.introduction.name.clone());
        Some(Account { what: None, whom: Some(format!("{} to take earlier pushes", listed(names))) })
    }
}

impl State {
    /// An item has left, and not a moment before: who waits for that looks again.
    fn left(&mut self, bytes: u64, keys: &[u64]) -> Vec<Completer<()>> {
        self.queued_bytes -= bytes;
        for key in keys {
            if let Some((count, _)) = self.keys.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    self.keys.remove(key);
                }
            }
        }
        if self.queued_bytes <= QUEUED_BYTES_MAX || self.keys.is_empty() {
            return std::mem::take(&mut self.waiting);
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_that_is_refused_after_another_server_was_lost_tears_its_push() {
        let broken: Arc<OnceLock<Error>> = Arc::default();
        let announced = Announced::new(1, Some(Arc::clone(&broken)));
        let lost = Error::new(ErrorKind::PeerLost, "a server is gone");
        assert!(!announced.fail(&lost), "those who live get their slices");
        announced.check().expect("they are still sent");
        let refused = Error::new(ErrorKind::LimitExceeded, "no room");
        assert!(announced.fail(&refused), "the server that lives waits for its slice");
        assert!(!announced.fail(&refused), "it was told");
        assert_eq!(announced.check().expect_err("no more are sent").kind(), ErrorKind::LimitExceeded);
        assert!(broken.get().is_some_and(|error| error.to_string().contains("some servers and not others")));
        // Its caller is told what came first.
        assert_eq!(announced.why(refused).kind(), ErrorKind::PeerLost);
    }
}
