//! Promises as the node sees them that makes them, and as the handler does that fills them.
//!
//! Whoever calls a service may draw the name of an object that the owner will have, send it along with the call that is
//! to fill it ([`Ref::to_fill`]), and use it at once. One call is that call; its end without the object is the
//! promise's: the drawer says `Broken` to the owner, which heeds the first word that settles a promise and no later
//! one.

use super::name::{Mention, Name};
use super::table::{References, Tables, full};
use super::words::{Cause, Word};
use super::{Object, Ref};
use sheave_base::planted::{self, Bug};
use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_wire::Value;
use smallvec::SmallVec;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// A name that this node has drawn, while it holds it.
#[derive(Default)]
pub(super) struct Drawn {
    is_asked: bool,
    /// It may still be filled, as far as this node knows.
    is_open: bool,
    /// Why the call that was to fill it was never sent.
    pub(super) failed: Option<Error>,
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
        let members = self.members.get().filter(|members| members.has(owner));
        let rank = members.and_then(|members| members.rank(self.me)).ok_or_else(|| {
            let error = Error::new(ErrorKind::NotFound, format!("node {owner} is not a member of the mesh"));
            error.operation("promise")
        })?;
        let mut tables = self.tables.lock();
        if tables.is_lost(owner) {
            drop(tables);
            return Err(self.loss(owner).operation("promise"));
        }
        if tables.holds.len() >= self.bounds.held {
            return Err(full("references to other nodes' objects", self.bounds.held, "drop some").operation("promise"));
        }
        if tables.is_deaf(owner) {
            let error = Error::new(ErrorKind::Closed, "this node has left the mesh, or loses the owner just now");
            return Err(error.operation("promise"));
        }
        let (last, open) = tables.draws.get(&owner).copied().unwrap_or_default();
        if open >= self.bounds.promised {
            let error = full("promises of one owner that are not filled", self.bounds.promised, "wait for some calls");
            return Err(error.operation("promise"));
        }
        let name = Name::drawn(owner, rank, last + 1)
            .ok_or_else(|| Error::new(ErrorKind::LimitExceeded, "no name is left").operation("promise"))?;
        if owner == self.me {
            self.begin(&mut tables, owner, name).map_err(|error| error.operation("promise"))?;
        }
        tables.draws.insert(owner, (last + 1, open + 1));
        tables.drawn.insert(name, Drawn { is_open: true, ..Drawn::default() });
        if owner == self.me {
            return self.find_in(&mut tables, name);
        }
        let hold = self.new_hold(name, None);
        // The owner counts the drawer by itself, when it first hears of the name from it.
        hold.counts.store(1, SeqCst);
        tables.holds.insert(name, Arc::downgrade(&hold));
        Ok(Ref(hold))
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
                    tables.drawn.entry(name).and_modify(|drawn| drawn.is_asked = false);
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
        names.iter().for_each(|name| tables.close(*name));
    }

    /// The call that was to fill these has failed. `was_sent` is false if the owner has never heard of it.
    pub(crate) fn filling_failed(&self, names: &[Name], call: &str, error: &Error, was_sent: bool) {
        let cause = Cause::of_call(call, error);
        let mut tables = self.tables.lock();
        for name in names {
            tables.close(*name);
            if let Some(drawn) = tables.drawn.get_mut(name).filter(|_| !was_sent) {
                drawn.failed = Some(cause.error(*name));
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

    /// The promises that a call of this node to itself is to fill.
    pub(crate) fn promises_here(self: &Arc<Self>, names: &[Mention], number: u64, method: &str) -> Promises {
        let fills = names.iter().filter(|mention| mention.fills).map(|mention| mention.name);
        let asking = Arc::new(Asking { from: self.me, number, method: method.to_owned() });
        let mut tables = self.tables.lock();
        let mut refs = Vec::new();
        for name in fills {
            refs.extend(self.find_in(&mut tables, name));
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
        let Some(drawn) = self.drawn.get_mut(&name) else {
            let what = format!("this node has not promised {name}, or has dropped it");
            return Err(Error::new(ErrorKind::NotPermitted, what).hint("only who has promised an object asks for it"));
        };
        if drawn.is_asked {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("another call was to fill {name} already")));
        }
        drawn.is_asked = true;
        Ok(())
    }

    /// A promise is filled, or never will be, as far as its drawer knows.
    fn close(&mut self, name: Name) {
        let Some(drawn) = self.drawn.get_mut(&name).filter(|drawn| drawn.is_open) else { return };
        drawn.is_open = false;
        if let Some((_, open)) = self.draws.get_mut(&name.owner) {
            *open -= 1;
        }
    }

    /// The drawer has no handle any more. False if this node has not drawn the name.
    pub(super) fn undraw(&mut self, name: Name) -> bool {
        self.close(name);
        self.drawn.remove(&name).is_some()
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
    refs: Vec<Ref>,
    asking: Arc<Asking>,
}

impl Promises {
    pub(super) fn of(references: &Arc<References>, refs: Vec<Ref>, asking: Arc<Asking>) -> Self {
        let is_empty = refs.is_empty();
        Self((!is_empty).then(|| Arc::new(Filling { references: Arc::clone(references), refs, asking })))
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
        let filling = self.0.as_ref().filter(|filling| filling.refs.iter().any(|held| held.0.name == name));
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
