//! Queues: items that any node puts, and each of which one node takes.
//!
//! A queue lives on one node, its *home*; members of its mesh and guests of it attach themselves as *ends*. The home
//! knows all items, and leases them to ends ([`state`]), on the same host by words of shared memory ([`words`]), so
//! that an end can be given items ahead of need and lose them again to one whose user waits.
//!
//! **The dead.** What an end had put stays. What it was given and had not taken goes to others; what it held is lost
//! and reported ([`Queue::lost`]): items that it had taken, and whose users had not come back for another. So no item
//! is taken twice. When the home is gone everybody who waits is told.

mod end;
mod home;
mod protocol;
mod state;
mod words;

pub use state::Lost;
pub(crate) use words::Words;

use crate::packet::Packet;
use end::End;
use home::Home;
use sheave_base::work::{Interrupt, reborrowed};
use sheave_base::{Error, ErrorKind, NodeId, Result, Work, clock, limits};
use sheave_mesh::{Guest, Mesh};
use sheave_net::Parts;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An item has so many tensors at most, and so many bytes beside them.
const ITEM_TENSORS_MAX: usize = limits::PARTS_MAX / 2;
const ITEM_BYTES_MAX: usize = limits::CONTROL_BYTES_MAX / 2;

/// So often an end looks for an item that is somewhere, and does not come to it.
const LOOKS: usize = 3;

/// A queue, at its home or at one of its ends; a handle, cheap to clone.
///
/// Items are [`Packet`]s, which anybody may put, and each of which one taker gets. One taker alone gets them in the
/// order in which they came. Where there are several, what was given to one of them ahead of need may go to another
/// one, out of its order; and what lay with an end that is gone comes before all that was put later.
///
/// ```
/// use sheave_pool::Queue;
/// use sheave_wire::Value;
/// # use sheave_mesh::{Config, Expected, Mesh, Role};
/// # use sheave_base::config::Endpoint;
/// # use std::time::Duration;
///
/// # let root = Endpoint { host: "127.0.0.1".into(), port: sheave_base::port::free()? };
/// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
/// let queue = Queue::new(&mesh, "results", None)?;
/// let packet = queue.packet(&Value::from("first"), Default::default())?;
/// queue.put(packet, None, None)?;
/// let item = queue.get(Some(Duration::from_secs(1)), None)?;
/// assert_eq!(item.value()?, Value::from("first"));
/// assert!(queue.is_empty()?);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone)]
pub struct Queue(Side);

#[derive(Clone)]
enum Side {
    Home(Arc<Home>, Mesh),
    End(Arc<End>, Mesh),
}

/// The outcome of putting an item without waiting.
#[derive(Debug)]
pub enum Put {
    /// Ends when the item is in the queue, which it is already unless the queue has a capacity and its home is another
    /// node. Cancelling it takes no item back.
    Begun(Work<()>),
    /// There was no room for it.
    Refused(Packet),
}

/// An item that was taken. As long as it lives its taker *holds* it: if its process dies meanwhile, the queue reports
/// it as lost.
pub struct Item {
    packet: Packet,
    number: u64,
    held: Option<(Arc<End>, u32)>,
}

impl Item {
    /// Returns how many items were put before it.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The contents. The item is held no more.
    #[must_use]
    pub fn into_packet(mut self) -> Packet {
        std::mem::take(&mut self.packet)
    }

    /// Takes the contents, and goes on holding the item.
    #[must_use]
    pub fn take_packet(&mut self) -> Packet {
        std::mem::take(&mut self.packet)
    }
}

impl Deref for Item {
    type Target = Packet;

    fn deref(&self) -> &Packet {
        &self.packet
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        if let Some((end, number)) = self.held.take() {
            end.settle(number);
        }
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Queue {
    /// Makes a queue of this name, whose home is this node. With a `capacity` it has so many items at most, and each
    /// put waits until its item is one of them; without one those who put wait where there are very many
    /// ([`limits::QUEUE_ITEMS_MAX`], [`limits::QUEUE_BYTES_MAX`]) alone.
    ///
    /// When the last handle at home is dropped the queue ends, with what is in it.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` for a name that is taken; `InvalidArgument` for one that is too long, and for a capacity of 0;
    /// `Closed` once the node has left.
    pub fn new(mesh: &Mesh, name: &str, capacity: Option<usize>) -> Result<Self> {
        Self::made(mesh, name, capacity, false)
    }

    /// Makes a queue as [`Queue::new`] does, of items that are programs, as pickles are: nodes that this one does not
    /// trust ([`Mesh::trusts`]) are refused.
    ///
    /// # Errors
    ///
    /// As [`Queue::new`].
    pub fn of_trusted(mesh: &Mesh, name: &str, capacity: Option<usize>) -> Result<Self> {
        Self::made(mesh, name, capacity, true)
    }

    fn made(mesh: &Mesh, name: &str, capacity: Option<usize>, is_for_trusted: bool) -> Result<Self> {
        if capacity == Some(0) {
            let what = "a queue with a capacity of 0; expected 1 at least, or none";
            return Err(Error::new(ErrorKind::InvalidArgument, what).operation("make queue"));
        }
        let home = Home::new(mesh, name, capacity, is_for_trusted);
        let home = home.map_err(|error| error.asked_for("make queue"))?;
        Ok(Self(Side::Home(home, mesh.clone())))
    }

    /// Attaches this node to a queue of another member. Blocks until that answers; `interrupt` is asked at least every
    /// 100 ms, and its error ends this.
    ///
    /// # Errors
    ///
    /// `NotFound` if it has no queue of this name; `InvalidArgument` for this node itself; `PeerLost` if it is gone;
    /// `LimitExceeded` for more ends than a queue has.
    pub fn attach(mesh: &Mesh, home: NodeId, name: &str, interrupt: Option<Interrupt<'_>>) -> Result<Self> {
        if home == mesh.me().node {
            let error = Error::new(ErrorKind::InvalidArgument, format!("queue {name} lives on this node"));
            return Err(error.operation("attach to queue").hint("clone the handle that made it"));
        }
        Ok(Self(Side::End(End::attach(mesh, home, name, interrupt)?, mesh.clone())))
    }

    /// Attaches this node to a queue of its host. As [`Queue::attach`].
    ///
    /// # Errors
    ///
    /// As [`Queue::attach`].
    pub fn attach_guest(guest: &Guest, name: &str, interrupt: Option<Interrupt<'_>>) -> Result<Self> {
        Self::attach(guest.mesh(), guest.host().node.unwrap_or_default(), name, interrupt)
    }

    /// The queue's name.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.0 {
            Side::Home(home, _) => &home.name,
            Side::End(end, _) => &end.name,
        }
    }

    /// Returns whether this node is the queue's home.
    #[must_use]
    pub fn is_home(&self) -> bool {
        matches!(self.0, Side::Home(..))
    }

    /// Returns whether each put waits until its item was taken in: at an end of a queue with a capacity.
    #[must_use]
    pub fn is_strict(&self) -> bool {
        match &self.0 {
            Side::Home(..) => false,
            Side::End(end, _) => end.is_strict(),
        }
    }

    /// Writes an item, and captures the tensors that are sent by copy: their owners may write them from then on.
    ///
    /// # Errors
    ///
    /// As [`Packet::captured`].
    pub fn packet(&self, value: &sheave_wire::Value, parts: Parts) -> Result<Packet> {
        let (Side::Home(_, mesh) | Side::End(_, mesh)) = &self.0;
        Packet::captured(mesh.node(), value, parts)
    }

    /// Puts an item, if there is room. Does not block.
    ///
    /// # Errors
    ///
    /// `Closed` once the queue was closed; `PeerLost` once its home is gone; `InvalidArgument` for an item that is too
    /// long. A failure after an earlier put has returned is told by the next one.
    pub fn try_put(&self, packet: Packet) -> Result<Put> {
        check(&packet)?;
        self.begin_put(packet, None)
    }

    fn begin_put(&self, packet: Packet, deadline: Option<Duration>) -> Result<Put> {
        match &self.0 {
            Side::Home(home, _) => {
                let put = || Put::Begun(Work::ready("put", Ok(())));
                Ok(home.put(packet)?.map_or_else(put, Put::Refused))
            }
            Side::End(end, _) => end.put(packet, deadline),
        }
    }

    /// A work that ends when there may be room for this item, or there will be none.
    ///
    /// # Errors
    ///
    /// `Closed` once the node has left.
    pub fn room(&self, packet: &Packet) -> Result<Work<()>> {
        match &self.0 {
            Side::Home(home, _) => home.room(packet.weight_bytes()),
            Side::End(end, _) => end.room(),
        }
    }

    /// Puts an item, and waits for room. Blocks; `interrupt` is asked at least every 100 ms, and its error ends this.
    ///
    /// # Errors
    ///
    /// As [`Queue::try_put`]; `DeadlineExceeded` after `timeout`, all waits counted: then the item is not in the queue,
    /// unless the word that it was taken in was on its way. One that was interrupted may come to be.
    pub fn put(&self, mut packet: Packet, timeout: Option<Duration>, interrupt: Option<Interrupt<'_>>) -> Result<()> {
        check(&packet)?;
        let (began, mut interrupt) = (clock::now(), interrupt);
        let until = timeout.and_then(|timeout| began.checked_add(timeout));
        let late = || late("put", "there was no room", self.name(), began);
        loop {
            let left = until.map(|until| until.saturating_duration_since(clock::now()));
            let room = match self.begin_put(packet, left)? {
                Put::Begun(put) => {
                    // It ends by itself in time.
                    self.waits(&put, None, &mut interrupt)?;
                    return put
                        .wait()
                        .map_err(|error| if error.kind() == ErrorKind::DeadlineExceeded { late() } else { error });
                }
                Put::Refused(refused) => {
                    packet = refused;
                    self.room(&packet)?
                }
            };
            if !self.waits(&room, until, &mut interrupt)? {
                return Err(late());
            }
            room.wait()?;
        }
    }

    /// Puts an item if there is room, or says that there is none. Blocks until the home has answered, where the queue
    /// has a capacity and its home is another node; `interrupt` is asked at least every 100 ms, and its error ends
    /// this.
    ///
    /// # Errors
    ///
    /// As [`Queue::try_put`].
    pub fn put_now(&self, packet: Packet, interrupt: Option<Interrupt<'_>>) -> Result<bool> {
        check(&packet)?;
        match &self.0 {
            Side::End(end, _) if end.is_strict() => {
                let (offered, mut interrupt) = (end.offer(packet)?, interrupt);
                self.waits(&offered, None, &mut interrupt)?;
                offered.wait()
            }
            _ => Ok(matches!(self.begin_put(packet, None)?, Put::Begun(_))),
        }
    }

    fn waits<T>(&self, work: &Work<T>, until: Option<Instant>, interrupt: &mut Option<Interrupt<'_>>) -> Result<bool> {
        work.wait_until(until, reborrowed(interrupt))
    }

    /// Takes an item, if there is one. Does not block, and asks nobody: at an end none may have come yet.
    ///
    /// # Errors
    ///
    /// `Closed` once the queue was closed and is empty; `PeerLost` once its home is gone.
    pub fn try_get(&self) -> Result<Option<Item>> {
        match &self.0 {
            Side::Home(home, _) => {
                let item = home.get()?;
                Ok(item.map(|item| Item { packet: item.packet, number: item.number, held: None }))
            }
            Side::End(end, _) => {
                let item = end.get()?;
                Ok(item.map(|(at, number, packet)| Item { packet, number, held: Some((Arc::clone(end), at)) }))
            }
        }
    }

    /// A work that ends when there may be an item, or there will be none. Whoever stops waiting for it says so by
    /// [`Queue::give_up`].
    ///
    /// # Errors
    ///
    /// `Closed` once the node has left.
    pub fn available(&self) -> Result<Work<()>> {
        match &self.0 {
            Side::Home(home, _) => home.available(),
            Side::End(end, _) => end.available(),
        }
    }

    /// Lets the home know, if nobody waits here any more, that nobody does: what has come for whoever did goes to
    /// others.
    pub fn give_up(&self) {
        if let Side::End(end, _) = &self.0 {
            end.give_up();
        }
    }

    /// Takes an item, and waits for one. Blocks; `interrupt` is asked at least every 100 ms, and its error ends this.
    ///
    /// # Errors
    ///
    /// As [`Queue::try_get`]; `DeadlineExceeded` after `timeout`, all waits counted.
    pub fn get(&self, timeout: Option<Duration>, interrupt: Option<Interrupt<'_>>) -> Result<Item> {
        if let Some(item) = self.try_get()? {
            return Ok(item);
        }
        let (began, mut interrupt) = (clock::now(), interrupt);
        let until = timeout.and_then(|timeout| began.checked_add(timeout));
        loop {
            let available = self.available()?;
            let waited = self.waits(&available, until, &mut interrupt);
            drop(available);
            if !matches!(waited, Ok(true)) {
                // One that has come in this moment is not left behind. Whoever was interrupted takes nothing: it could
                // not say so.
                let taken = waited.and_then(|_| self.try_get());
                self.give_up();
                return taken?.ok_or_else(|| late("get", "nothing came", self.name(), began));
            }
            if let Some(item) = self.try_get()? {
                return Ok(item);
            }
        }
    }

    /// Takes an item, if there is one that nobody else takes in this moment. Blocks until the home has answered, where
    /// that is another node; `interrupt` is asked at least every 100 ms, and its error ends this.
    ///
    /// # Errors
    ///
    /// As [`Queue::try_get`].
    pub fn get_now(&self, interrupt: Option<Interrupt<'_>>) -> Result<Option<Item>> {
        let mut interrupt = interrupt;
        for _ in 0..LOOKS {
            if let Some(item) = self.try_get()? {
                return Ok(Some(item));
            }
            let Side::End(end, _) = &self.0 else { return Ok(None) };
            // The home gives what it has before it answers, to those who wait.
            let available = end.available()?;
            let length = end.length()?;
            let waited = self.waits(&length, None, &mut interrupt);
            drop(available);
            let item = waited.and_then(|_| self.try_get());
            self.give_up();
            let item = item?;
            if item.is_some() || length.wait()? == 0 {
                return Ok(item);
            }
        }
        Ok(None)
    }

    /// Returns how many items nobody has taken. Asks the home, and blocks until that answers.
    ///
    /// # Errors
    ///
    /// `Closed` once the node has left; `PeerLost` once the home is gone.
    pub fn len(&self) -> Result<usize> {
        self.length()?.wait()
    }

    /// Asks as [`Queue::len`] does, without the wait.
    ///
    /// # Errors
    ///
    /// As [`Queue::len`].
    pub fn length(&self) -> Result<Work<usize>> {
        match &self.0 {
            Side::Home(home, _) => Ok(Work::ready("length", Ok(home.length()))),
            Side::End(end, _) => end.length(),
        }
    }

    /// Returns whether nobody could take anything, as [`Queue::len`] does.
    ///
    /// # Errors
    ///
    /// As [`Queue::len`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Items that were lost because their holders died: how many in all, and the last ones, oldest first. Known at home
    /// alone.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` at an end.
    pub fn lost(&self) -> Result<(u64, Vec<Lost>)> {
        match &self.0 {
            Side::Home(home, _) => Ok(home.lost()),
            Side::End(end, _) => {
                let what = format!("what queue {} has lost is known to its home alone", end.name);
                Err(Error::new(ErrorKind::InvalidArgument, what).operation("lost"))
            }
        }
    }

    /// At home: nobody can put anything any more; what is there is taken still, and then all gets end with `Closed`. At
    /// an end: nothing is put or taken there any more. Idempotent.
    pub fn close(&self) {
        match &self.0 {
            Side::Home(home, _) => {
                let what = format!("queue {} was closed", home.name);
                home.close(&Error::new(ErrorKind::Closed, what));
            }
            Side::End(end, _) => end.close(),
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.name()).field("is_home", &self.is_home()).finish_non_exhaustive()
    }
}

fn late(operation: &'static str, what: &str, name: &str, began: Instant) -> Error {
    let error = Error::new(ErrorKind::DeadlineExceeded, format!("{what} in queue {name}"));
    error.operation(operation).elapsed(clock::since(began))
}

fn check(packet: &Packet) -> Result<()> {
    let (bytes, tensors) = (packet.bytes.len(), packet.tensors.len());
    if bytes <= ITEM_BYTES_MAX && tensors <= ITEM_TENSORS_MAX {
        return Ok(());
    }
    let what = format!(
        "an item of {bytes} bytes and {tensors} tensors; one has {ITEM_BYTES_MAX} and {ITEM_TENSORS_MAX} at most"
    );
    Err(Error::new(ErrorKind::InvalidArgument, what).operation("put"))
}
