//! References: counted names for objects that live on another node.
//!
//! An object is freed by its **owner** when no node holds a [`Ref`] to it any more: because the last one was dropped,
//! or because its holder died or left.
//!
//! **Counts.** The owner keeps a count per object and holder. A holder has one *hold* per object, however many `Ref`s
//! there are on that node, and the hold knows how many counts it has been given. When the last `Ref` drops, the hold
//! gives all of its counts back in one word, `Release`. A reference that is on its way to the holder in that moment has
//! a count of its own, which the word does not contain; so the object outlives the crossing.
//!
//! **Passing.** The call layer finds every [`Value::Ref`] in the arguments of a call and in its answer, and looks it up
//! among this node's holds. There is no list beside the value that could say something else than the value does: both
//! ends walk the same value, one counts what the other adopts. What is not held is refused, so nobody can send a name
//! that may mean nothing on arrival. An arriving message is adopted while its link's poll token is held, that is in the
//! order of the link; its holds live as long as its `Request` or `Answer`, and [`Mesh::hold`](crate::Mesh::hold) makes
//! lasting ones of them. Beside the arguments of a typed method references are a list, which the arguments refer to by
//! place, so that both ends find them without knowing the types. A list of arguments that is written as it comes
//! ([`ArgList`](crate::ArgList)) writes each name and keeps its handle in one step, so there too neither says something
//! else, and nothing is looked up.
//!
//! * The owner passes to B: it counts B before the message leaves.
//! * A passes back to the owner: nothing is counted. A's `Release` follows the message on the same link, and what A has
//!   not said of its counts by then is said to the owner in any case: until that arrives, which may be before the
//!   message or after it, whoever gave them to A keeps the object.
//! * A passes an object of O to B: A keeps a hold of its own until it is told `Confirm`. B adopts the reference and
//!   says `Count` to O; O counts B, and says `Confirm` to A. B's `Release` follows its `Count` on the same link. If B
//!   drops the reference before its `Count` has gone, and has sent nothing of it to O, it says nothing to O and
//!   `Confirm` to A itself.
//!
//! So every count but the owner's own gift is made by a word of its holder, and words of one holder to one owner stay
//! in order: counts never go below what is held, and a holder that dies takes no count of anybody else with it. If A
//! dies before O has counted B, and A was the only holder, the object is freed with A; O says `Gone`, and B's use of
//! the reference fails with `NotFound`. A node that leaves in order waits for what it has passed to be confirmed first.
//!
//! Between a host and a [guest](crate::guest) there is no third node: each passes what is its own or the other's, and
//! what names anything else is refused by the sender and again by the receiver. They promise each other nothing.
//!
//! **Promises.** A node may draw the name of an object that another one will have ([`promise`]), mention it for the one
//! call that is to fill it ([`Ref::to_fill`]) and use it at once. Its rank is in the name ([`name`]), so nobody else
//! draws it; the owner believes what is said about a promise of the node at the other end of the link alone, so nobody
//! else has it filled or poisoned, and what others say of it before its drawer does counts them and nothing more: it is
//! in nobody's way. The counts above hold for promises, with these additions:
//!
//! * *The drawer's own count.* Its hold begins with one count, and the owner adds one when it hears of the name from
//!   the drawer for the first time, by whatever: a request, an answer, `Broken` or `Release`. Each name is said so
//!   once, for a drawer that has said nothing of it gives its count back when its last `Ref` drops. The owner remembers
//!   which names it has heard of ([`announced`]), so it counts once.
//! * *A third node is first.* A draws, and passes to B before it calls O. B's `Count` begins the entry at O, which
//!   holds B and says `Confirm` to A. A's hold lives until then, so A says nothing that frees it before; and when A
//!   announces the name, it finds the entry. If B releases before that, the entry is forgotten: it has told nothing but
//!   that B holds it. What comes after the announcement and finds no entry means an object that was freed: `Gone`.
//! * *The release is first.* A releases a name without a call for it: then there will be none, for only the drawer
//!   makes it and it has dropped the right to. The entry is poisoned, for those who hold it still, and counts A once
//!   and back. A request that carries a name keeps a `Ref` until it has left, so no release overtakes it.
//! * *Overtaken.* A request that uses a name may come before the one that is to fill it, where that waits for room. It
//!   announces the name and fills nothing; the filling one is told by how it mentions the name.
//!
//! **Every promise is settled, once** ([`owner`]): the handler fills it, or whatever ends the call poisons it. The
//! right to fill is an object of the request ([`Promises`]), shared by its `Reply`; an answer that is an error, and the
//! drop of the last of both, poison what is left. A call that is refused, cut off, cancelled or never sent is ended at
//! the drawer, which says `Broken`. A drawer that is gone has left behind requests, which come to their ends here, and
//! names without one, which its end poisons. An owner that is gone is told by every use. So a wait ends with the call,
//! the drawer or the owner, and says meanwhile which of them it waits for ([`wait`]).
//!
//! **Deaths.** When the members agree that a node is gone, every owner forgets its counts and takes no more from it,
//! and whoever waits for its `Confirm` lets go. A message that is lost although its receiver lives, because one of two
//! links between the same nodes was cut, keeps its count until that receiver leaves.
//!
//! **Drops.** The drop of a `Ref` takes one short lock and notes a word; it neither blocks nor touches a link. Words
//! for one node are joined ([`outbox`]) and go with the next call or answer to it, or when a timer acts that the first
//! of them has set ([`words`]). So the later ones call no thread and make no system call. Those that are dropped
//! together, as a message's are when it has left, take the lock once. Objects and references are
//! dropped with no lock held; an object that panics then is told on standard error and freed all the same.

mod announced;
mod fuzz;
mod holders;
mod linking;
mod members;
mod name;
mod outbox;
mod owner;
mod promise;
mod table;
mod wait;
mod words;

pub(crate) use promise::Fills;
pub use promise::Promises;

#[cfg(test)]
pub(crate) use fuzz::seeds as words_seeds;
pub(crate) use fuzz::words as words_fuzz;
pub(crate) use name::{Mention, Name, names_in};
pub(crate) use table::{Brought, References};
#[cfg(test)]
pub(crate) use words::Word;

use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_wire::Value;
use smallvec::SmallVec;
use std::any::{Any, type_name};
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

/// Anything that others can hold references to.
pub(crate) type Object = Arc<dyn Any + Send + Sync>;

/// An object that may be freed on any thread.
type Kept = sheave_base::contain::Kept<Object>;

fn keep(object: Object) -> Kept {
    Kept::new("an exported object", object)
}

/// A counted name for an object that lives on another node, or on this one. The object lives until the last `Ref` to
/// it is dropped, on whatever node, or its holder is gone.
///
/// Clones are cheap and need no message. Dropping never blocks.
///
/// ```
/// # use sheave_mesh::{Config, Expected, Mesh, Role};
/// # use sheave_base::{ErrorKind, config::Endpoint};
/// # use std::sync::Arc;
/// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
/// # let root = Endpoint { host: "127.0.0.1".into(), port };
/// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
/// let reference = mesh.export(Arc::new(String::from("weights")))?;
/// let name = reference.value();
/// assert_eq!(*mesh.hold(&name)?.get::<String>()?, "weights");
/// drop(reference);
/// assert_eq!(mesh.hold(&name).unwrap_err().kind(), ErrorKind::NotFound);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone)]
pub struct Ref(Arc<Hold>);

/// What one node holds of one object.
pub(crate) struct Hold {
    references: Arc<References>,
    name: Name,
    /// On the owner: the object, or why there will be none, once that is known.
    object: OnceLock<Result<Kept>>,
    /// Counts of this node at the owner that this hold gives back.
    counts: AtomicU64,
    /// The owner has said that it has no such object any more.
    is_gone: AtomicBool,
    /// Its name went to the owner: a message that may be on its way still.
    went_back: AtomicBool,
    /// Why the call that was to fill it was never sent.
    failed: OnceLock<Error>,
    /// The tables know that it ends.
    is_told: bool,
}

impl Ref {
    /// Drops references together, which costs less than to drop each alone.
    pub fn drop_all(refs: impl IntoIterator<Item = Self>) {
        drop_all(refs);
    }

    /// The node where the object lives.
    #[must_use]
    pub fn owner(&self) -> NodeId {
        self.0.name.owner
    }

    pub(crate) fn name(&self) -> Name {
        self.0.name
    }

    pub(crate) fn mention(&self) -> Mention {
        Mention { name: self.0.name, fills: false }
    }

    pub(crate) fn mention_to_fill(&self) -> Mention {
        Mention { name: self.0.name, fills: true }
    }

    /// The object's name, to be passed in a call or an answer. The name alone keeps nothing alive.
    #[must_use]
    pub fn value(&self) -> Value {
        Value::Ref { node: self.0.name.owner, id: self.0.name.id }
    }

    /// The name of an object that this node was [promised](crate::Mesh::promise), for the one call that is to fill it.
    /// It goes to the owner alone, once; in all other calls the name is [`Ref::value`].
    #[must_use]
    pub fn to_fill(&self) -> Value {
        self.0.name.to_fill()
    }

    /// The object itself. Does not block; [`Mesh::object`](crate::Mesh::object) waits for one that is promised.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the owner if that is another node, `PeerLost` if the owner is gone, `Mismatch` if
    /// the object has another type, `NotFound` if it is promised and not there yet, and what has poisoned the promise.
    pub fn get<T: Any + Send + Sync>(&self) -> Result<Arc<T>> {
        match self.0.object.get() {
            Some(Ok(object)) => downcast(object).map_err(|error| error.operation("get")),
            Some(Err(error)) => Err(error.clone()),
            None if self.owner() == self.0.references.me => {
                let error = Error::new(ErrorKind::NotFound, format!("{} is not there yet", self.0.name));
                Err(error.operation("get").hint("wait for it with Mesh::object"))
            }
            None => Err(self.0.elsewhere().operation("get")),
        }
    }
}

/// The object as one of that type.
fn downcast<T: Any + Send + Sync>(object: &Object) -> Result<Arc<T>> {
    Arc::clone(object).downcast().map_err(|_| {
        Error::new(ErrorKind::Mismatch, format!("the referenced object is not of type {}", type_name::<T>()))
    })
}

impl Hold {
    fn elsewhere(&self) -> Error {
        let owner = self.name.owner;
        self.references.loss_of(owner).unwrap_or_else(|| {
            let error = Error::new(ErrorKind::InvalidArgument, "the referenced object lives on another node");
            self.references.about(error, owner).hint("call a service of its owner with the reference")
        })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.is_told {
            self.references.dropped(self);
        }
    }
}

/// References that are dropped together, of which the tables hear together.
#[derive(Debug)]
pub(crate) struct Refs(SmallVec<[Ref; 4]>);

impl Refs {
    pub(crate) fn new() -> Self {
        Self(SmallVec::new())
    }

    pub(crate) fn push(&mut self, held: Ref) {
        self.0.push(held);
    }

    pub(crate) fn into_vec(mut self) -> Vec<Ref> {
        std::mem::take(&mut self.0).into_vec()
    }
}

impl Deref for Refs {
    type Target = [Ref];

    fn deref(&self) -> &[Ref] {
        &self.0
    }
}

impl From<Vec<Ref>> for Refs {
    fn from(refs: Vec<Ref>) -> Self {
        Self(SmallVec::from_vec(refs))
    }
}

impl Drop for Refs {
    fn drop(&mut self) {
        drop_all(std::mem::take(&mut self.0));
    }
}

fn drop_all(refs: impl IntoIterator<Item = Ref>) {
    let mut ended: SmallVec<[Hold; 4]> = SmallVec::new();
    ended.extend(refs.into_iter().filter_map(|held| Arc::into_inner(held.0)));
    let Some(references) = ended.first().map(|hold| Arc::clone(&hold.references)) else { return };
    references.all_dropped(&mut ended);
}

impl PartialEq for Ref {
    /// Whether both name the same object.
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Ref {}

impl fmt::Debug for Ref {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ref({})", self.0.name)
    }
}

#[cfg(test)]
mod live;
#[cfg(test)]
mod many;
#[cfg(test)]
mod tests;
