//! Promises as the node sees them that makes them, and as the handler does that fills them.
//!
//! Whoever calls a service may draw the name of an object that the owner will have, send it along with the call that is
//! to fill it ([`Ref::to_fill`]), and use it at once. One call is that call; its end without the object is the
//! promise's: the drawer says `Broken` to the owner, which heeds the first word that settles a promise and no later
//! one.

use super::name::{Mention, Name};
use super::owner::Owned;
use super::table::{Holding, References, Refusal, Tables, full};
use super::words::{Cause, Word};
use super::{Object, Ref, Refs};
use sheave_base::planted::{self, Bug};
use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_wire::Value;
use smallvec::SmallVec;
use std::any::Any;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A name that this node has drawn, while it holds it.
#[derive(Clone, Copy, Default)]
pub(super) struct Drawn {
    is_asked: bool,
    /// It may still be filled, as far as this node knows.
    is_open: bool,
}

/// The promises that one message is to fill.
pub(crate) type Fills = SmallVec<[Name; 1]>;

/// The request that is to fill a promise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asking {
    pub(crate) from: NodeId,
    pub(crate) number: u64,
    pub(crate) method: String,
}

pub(super) fn given_up(name: Name) -> Error {
    let what = format!("{name} was dropped by who promised it before a call was sent that fills it");
    Error::new(ErrorKind::Cancelled, what).operation("object")
}

pub(super) fn not_the_owner() -> Error {
    Error::new(ErrorKind::InvalidArgument, "only a request to its owner can ask for a promise to be filled")
        .hint("pass `Ref::to_fill` in a call to the owner, and `Ref::value` everywhere else")
}

impl References {
    /// Draws the name of an object that `owner` will have.
    pub(crate) fn promise(self: &Arc<Self>, owner: NodeId) -> Result<Ref> {
        let drawn = self.draw(&mut self.tables.lock(), owner);
        drawn.map_err(|refusal| self.refusal(refusal).operation("promise"))
    }

    /// As [`References::promise`], of an object of each of these nodes: none of those that are named behind them, each
    /// with why there is none.
    pub(crate) fn promise_each(self: &Arc<Self>, owners: &[NodeId]) -> (Vec<Option<Ref>>, Vec<(NodeId, Error)>) {
        let (mut drawn, mut refusals) = (Vec::with_capacity(owners.len()), Vec::new());
        {
            let mut tables = self.tables.lock();
            for &owner in owners {
                let refused = |refusal| refusals.push((owner, refusal));
                drawn.push(self.draw(&mut tables, owner).map_err(refused).ok());
            }
        }
        // Nodes are not named under the lock.
        let explained = |(owner, refusal)| (owner, self.refusal(refusal).operation("promise"));
        (drawn, refusals.into_iter().map(explained).collect())
    }

    /// Whether so many names of each of these owners can be drawn, as far as the limits are concerned.
    pub(crate) fn can_promise(&self, owners: &[NodeId], count: usize) -> bool {
        let tables = self.tables.lock();
        let more = |there: usize, most: usize, by: usize| count.saturating_mul(by) <= most.saturating_sub(there);
        let open = |owner: &NodeId| tables.draws.get(owner).map_or(0, |(_, open)| *open);
        let own = usize::from(owners.contains(&self.me));
        let unfilled = tables.unfilled.get(&self.me).copied().unwrap_or_default();
        more(tables.holds.len(), self.bounds.held, owners.len() - own)
            && more(tables.owned.len(), self.bounds.owned, own)
            && more(unfilled, self.bounds.promised, own)
            && owners.iter().all(|owner| more(open(owner), self.bounds.promised, 1))
    }

    fn draw(self: &Arc<Self>, tables: &mut Tables, owner: NodeId) -> std::result::Result<Ref, Refusal> {
        let members = self.members.get().filter(|members| members.has(owner));
        let rank = members.and_then(|members| members.rank(self.me)).ok_or_else(|| {
            let what = format!("node {owner} is not a member of the mesh");
            Refusal::Other(Error::new(ErrorKind::NotFound, what))
        })?;
        if tables.is_lost(owner) {
            return Err(Refusal::Lost(owner));
        }
        if tables.holds.len() >= self.bounds.held {
            return Err(full("references to other nodes' objects", self.bounds.held, "drop some").into());
        }
        if tables.is_deaf(owner) {
            return Err(
                Error::new(ErrorKind::Closed, "this node has left the mesh, or loses the owner just now").into()
            );
        }
        let (last, open) = tables.draws.get(&owner).copied().unwrap_or_default();
        if open >= self.bounds.promised {
            let what = "promises of one owner that are not filled";
            return Err(full(what, self.bounds.promised, "wait for some calls").into());
        }
        let name = Name::drawn(owner, rank, last + 1)
            .ok_or_else(|| Error::new(ErrorKind::LimitExceeded, "no name is left"))?;
        let drawn = Some(Drawn { is_open: true, ..Drawn::default() });
        let hold = if owner == self.me {
            // The entry is written whole and not read: the next to read it is often another thread, on another core.
            let mut hold = None;
            let make = || {
                let own = Arc::downgrade(hold.insert(self.new_hold(name, None)));
                Owned { own, drawn, ..Owned::promised(owner) }
            };
            self.begin(tables, owner, name, make)?;
            // Nobody else has this name, so there was no entry.
            hold.map(Ref).ok_or_else(|| Error::new(ErrorKind::Internal, format!("{name} is there already")))?
        } else {
            let hold = self.new_hold(name, None);
            // The owner counts the drawer by itself, when it first hears of the name from it.
            hold.counts.store(1, Relaxed);
            tables.holds.insert(name, Holding { hold: Arc::downgrade(&hold), drawn });
            Ref(hold)
        };
        tables.draws.insert(owner, (last + 1, open + 1));
        tables.drawn_count += 1;
        Ok(hold)
    }

    /// A call to `to` with these names is about to be made. Returns those that it is to fill, which no other call may
    /// fill from now on.
    pub(crate) fn begin_filling(&self, to: NodeId, names: &[Mention]) -> Result<Fills> {
        let mut begun = Fills::new();
        if !names.iter().any(|mention| mention.fills) {
            return Ok(begun);
        }
        let mut tables = self.tables.lock();
        for name in names.iter().filter(|mention| mention.fills).map(|mention| mention.name) {
            if let Err(error) = tables.begin_filling(to, name) {
                // Nothing was sent.
                for name in begun {
                    tables.drawn_mut(&name).into_iter().for_each(|drawn| drawn.is_asked = false);
                }
                return Err(error);
            }
            begun.push(name);
        }
        Ok(begun)
    }

    /// The call that was to fill these has been answered.
    pub(crate) fn filling_ended(&self, names: &[Name]) {
        let mut tables = self.tables.lock();
        // Most are of one owner.
        for names in names.chunk_by(|one, other| one.owner == other.owner) {
            let was_open = |name: &&Name| tables.close(name);
            let closed = names.iter().filter(was_open).count();
            tables.closed(names[0].owner, closed);
        }
    }

    /// The call that was to fill these has failed. `was_sent` is false if the owner has never heard of it.
    pub(crate) fn filling_failed(self: &Arc<Self>, names: &[Name], call: &str, error: &Error, was_sent: bool) {
        let cause = Cause::of_call(call, error);
        let mut tables = self.tables.lock();
        for name in names {
            let closed = tables.close(name);
            tables.closed(name.owner, closed.into());
            if !was_sent
                && tables.drawn_mut(name).is_some()
                && let Ok(held) = self.find_in(&mut tables, *name)
            {
                // One call is to fill it, and one reason is enough.
                let _ = held.0.failed.set(cause.error(*name));
                tables.garbage.refs.push(held);
            }
            if name.owner == self.me {
                let _ = tables.settle(*name, &Err(cause.error(*name)));
            } else {
                tables.say(name.owner, Word::Broken { id: name.id, cause: cause.clone() });
            }
        }
        let garbage = std::mem::take(&mut tables.garbage);
        self.let_go(tables);
        drop(garbage);
    }

    /// The promises that a call of this node to itself is to fill, among the references of these names.
    pub(crate) fn promises_here(
        self: &Arc<Self>,
        names: &[Mention],
        held: &[Ref],
        number: u64,
        method: &str,
    ) -> Promises {
        let asking = Arc::new(Asking { from: self.me, number, method: method.to_owned() });
        let mut tables = self.tables.lock();
        let mut refs = Vec::new();
        for (Mention { name, .. }, held) in names.iter().zip(held).filter(|(mention, _)| mention.fills) {
            refs.push(held.clone());
            if let Some(promised) = tables.owned.get_mut(&name.id).and_then(super::owner::Owned::promise) {
                promised.asking = Some(Arc::clone(&asking));
            }
        }
        drop(tables);
        Promises::of(self, refs, asking)
    }

    /// The call, as its callee knows it.
    pub(super) fn title(&self, asking: &Asking) -> String {
        let (name, method) = (self.name_of(asking.from), &asking.method);
        match asking.number {
            0 => format!("a one-way call of {name} ({method})"),
            number => format!("call {number} of {name} ({method})"),
        }
    }

    pub(super) fn name_of(&self, node: NodeId) -> String {
        self.shared.upgrade().map_or_else(|| format!("node {node}"), |shared| shared.name_of(node))
    }
}

impl Tables {
    fn begin_filling(&mut self, to: NodeId, name: Name) -> Result<()> {
        if name.owner != to {
            return Err(not_the_owner());
        }
        let Some(drawn) = self.drawn_mut(&name) else {
            let what = format!("this node has not promised {name}, or has dropped it");
            return Err(Error::new(ErrorKind::NotPermitted, what).hint("only who has promised an object asks for it"));
        };
        if drawn.is_asked {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("another call was to fill {name} already")));
        }
        drawn.is_asked = true;
        Ok(())
    }

    /// What this node knows of a name that it has drawn and still holds.
    pub(super) fn drawn_mut(&mut self, name: &Name) -> Option<&mut Drawn> {
        match name.owner == self.me {
            true => self.owned.get_mut(&name.id)?.drawn.as_mut(),
            false => self.holds.get_mut(name)?.drawn.as_mut(),
        }
    }

    /// A promise is filled, or never will be, as far as its drawer knows.
    /// True if it was open, which counts ([`Tables::closed`]).
    fn close(&mut self, name: &Name) -> bool {
        self.drawn_mut(name).is_some_and(|drawn| std::mem::take(&mut drawn.is_open))
    }

    /// So many promises of that owner are not open any more.
    fn closed(&mut self, owner: NodeId, count: usize) {
        if count > 0
            && let Some((_, open)) = self.draws.get_mut(&owner)
        {
            *open -= count;
        }
    }

    /// The drawer of a name has no handle any more.
    pub(super) fn give_back(&mut self, owner: NodeId, drawn: &Drawn) {
        self.drawn_count -= 1;
        self.closed(owner, drawn.is_open.into());
    }

    /// The last `Ref` of a hold is dropped. Returns whether this node has drawn the name.
    pub(super) fn end_holding(&mut self, name: Name) -> bool {
        let Entry::Occupied(mut entry) = self.holds.entry(name) else { return false };
        // Meanwhile another hold may have taken its place.
        let is_held = entry.get().hold.strong_count() > 0;
        let drawn = if is_held { entry.get_mut().drawn.take() } else { entry.remove().drawn };
        if let Some(drawn) = &drawn {
            self.give_back(name.owner, drawn);
        }
        drawn.is_some()
    }
}

/// The objects that a request is to fill: those whose names its caller has drawn and sent by [`Ref::to_fill`].
///
/// Each is filled or poisoned once, at any time and from any thread. An answer that is an error poisons those that are
/// left, with that error; so does the drop of the last handle when the request is answered. Those who wait for them go
/// on at once.
///
/// ```
/// # use sheave_mesh::{Config, Expected, Mesh, Request, Role};
/// # use sheave_base::config::Endpoint;
/// # use std::sync::Arc;
/// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
/// # let root = Endpoint { host: "127.0.0.1".into(), port };
/// # let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
/// mesh.serve("maker", |request: Request| {
///     let made = request.promises.fulfil(&request.args, Arc::new(7_u32));
///     request.reply.send(made.map(|()| Default::default()));
/// })?;
/// let owner = mesh.me().node;
/// let promised = mesh.promise(owner)?;
/// let call = mesh.call(owner, "maker", "seven", promised.to_fill())?;
/// // The name means something at once, here and wherever it is sent.
/// assert_eq!(*mesh.object::<u32>(&promised, None).wait()?, 7);
/// call.wait()?;
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Promises(Option<Arc<Filling>>);

struct Filling {
    references: Arc<References>,
    /// They keep the entries for as long as they may be filled.
    refs: Refs,
    asking: Arc<Asking>,
    /// Where the next name is looked for first: most handlers fill one after the other.
    next: AtomicUsize,
}

impl Promises {
    pub(super) fn of(references: &Arc<References>, refs: Vec<Ref>, asking: Arc<Asking>) -> Self {
        if refs.is_empty() {
            return Self(None);
        }
        let (references, refs, next) = (Arc::clone(references), refs.into(), AtomicUsize::new(0));
        Self(Some(Arc::new(Filling { references, refs, asking, next })))
    }

    /// Whether the request is to fill nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The references that the request is to fill.
    #[must_use]
    pub fn refs(&self) -> &[Ref] {
        self.0.as_ref().map_or(&[], |filling| &filling.refs)
    }

    /// Fills the promise of this name with an object, which belongs to this node from now on. Those who wait for it go
    /// on, on this thread as far as they are callbacks. Does not block.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if it is filled, what has poisoned it if it is poisoned, `InvalidArgument` for a name that this
    /// request is not to fill.
    pub fn fulfil(&self, name: &Value, object: Arc<dyn Any + Send + Sync>) -> Result<()> {
        self.settle(name, &Ok(object)).map_err(|error| error.operation("fulfil"))
    }

    /// Says that there will be no such object: who waits for it or uses it later gets this error, about this request.
    /// Does not block.
    ///
    /// # Errors
    ///
    /// As [`Promises::fulfil`].
    pub fn poison(&self, name: &Value, error: &Error) -> Result<()> {
        let outcome = self.0.as_ref().map(|filling| filling.failure(error));
        self.settle(name, &Err(outcome.unwrap_or_else(not_the_owner))).map_err(|error| error.operation("poison"))
    }

    fn settle(&self, name: &Value, outcome: &Result<Object>) -> Result<()> {
        let Value::Ref { node, id } = *name else {
            let what = format!("a {} is no reference", name.kind_name());
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        };
        let name = Mention::of(node, id).name;
        let filling = self.0.as_ref().filter(|filling| filling.has(name));
        let Some(filling) = filling else {
            let what = format!("this request is not to fill {name}");
            let hint = "its caller sends what is to be filled by `Ref::to_fill`";
            return Err(Error::new(ErrorKind::InvalidArgument, what).hint(hint));
        };
        filling.references.settle(name, outcome)
    }

    /// The request was answered with an error: so nothing more is filled. Returns whether that poisons anything.
    pub(crate) fn fail(&self, error: &Error) -> bool {
        self.0.as_ref().is_some_and(|filling| filling.fail(error))
    }
}

impl Filling {
    fn has(&self, name: Name) -> bool {
        let next = self.next.load(Relaxed);
        let (before, behind) = self.refs.split_at(next.min(self.refs.len()));
        let at = behind.iter().chain(before).position(|held| held.0.name == name);
        // Where it is found guards nothing: it says where to begin.
        at.inspect(|at| self.next.store((next + at + 1) % self.refs.len(), Relaxed)).is_some()
    }

    fn failure(&self, error: &Error) -> Error {
        // With its causes, and what user code has said.
        let title = self.references.title(&self.asking);
        let poison = error.clone().unnamed().context(format_args!("{title}, which was to fill it, failed"));
        poison.operation("object").hint("look at the outcome of that call")
    }

    fn fail(&self, error: &Error) -> bool {
        let open: Vec<&Ref> = self.refs.iter().filter(|held| held.0.object.get().is_none()).collect();
        if open.is_empty() || planted::strikes(Bug::PromiseOpen) {
            return false;
        }
        let poison = Err(self.failure(error));
        for held in open {
            // It may be settled in this moment, and stays so.
            let _ = self.references.settle(held.0.name, &poison);
        }
        true
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        self.fail(&Error::new(ErrorKind::Remote, "the handler has ended without it"));
    }
}

impl std::fmt::Debug for Promises {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Promises").field(&self.refs()).finish()
    }
}

#[cfg(test)]
impl Promises {
    pub(super) fn names(&self) -> Vec<Name> {
        self.refs().iter().map(|held| held.0.name).collect()
    }
}
