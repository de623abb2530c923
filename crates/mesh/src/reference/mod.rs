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
//! place, so that both ends find them without knowing the types.
//!
//! * The owner passes to B: it counts B before the message leaves.
//! * A passes back to the owner: nothing is counted. A's `Release` follows the message on the same link.
//! * A passes an object of O to B: A keeps a hold of its own until it is told `Confirm`. B adopts the reference and
//!   says `Count` to O; O counts B, and says `Confirm` to A. B's `Release` follows its `Count` on the same link.
//!
//! So every count but the owner's own gift is made by a word of its holder, and words of one holder to one owner stay
//! in order: counts never go below what is held, and a holder that dies takes no count of anybody else with it. If A
//! dies before O has counted B, and A was the only holder, the object is freed with A; O says `Gone`, and B's use of
//! the reference fails with `NotFound`. A node that leaves in order waits for what it has passed to be confirmed first.
//!
//! **Deaths.** When the members agree that a node is gone, every owner forgets its counts and takes no more from it,
//! and whoever waits for its `Confirm` lets go. A message that is lost although its receiver lives, because one of two
//! links between the same nodes was cut, keeps its count until that receiver leaves.
//!
//! **Drops.** The drop of a `Ref` takes one short lock, queues a word and rings the mesh's own thread; it neither
//! blocks nor touches a link. Objects and references are dropped with no lock held; an object that panics then is told
//! on standard error and freed all the same.

mod table;
mod words;

pub(crate) use table::{Brought, References};
#[cfg(test)]
pub(crate) use words::Word;
pub(crate) use words::names_in;

use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_wire::Value;
use std::any::{Any, type_name};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Anything that others can hold references to.
pub(crate) type Object = Arc<dyn Any + Send + Sync>;

/// An object that may be freed on any thread.
type Kept = sheave_base::contain::Kept<Object>;

fn keep(object: Object) -> Kept {
    Kept::new("an exported object", object)
}

/// An object, by its owner and its name there. Names are never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) owner: NodeId,
    pub(crate) id: u64,
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
    /// On the owner.
    object: Option<Kept>,
    /// Counts of this node at the owner that this hold gives back.
    counts: AtomicU64,
    /// The owner has said that it has no such object any more.
    is_gone: AtomicBool,
}

impl Ref {
    /// The node where the object lives.
    #[must_use]
    pub fn owner(&self) -> NodeId {
        self.0.name.owner
    }

    pub(crate) fn name(&self) -> Name {
        self.0.name
    }

    /// The object's name, to be passed in a call or an answer. The name alone keeps nothing alive.
    #[must_use]
    pub fn value(&self) -> Value {
        Value::Ref { node: self.0.name.owner, id: self.0.name.id }
    }

    /// The object itself. Does not block.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the owner if that is another node, `PeerLost` if the owner is gone, `Mismatch` if
    /// the object has another type.
    pub fn get<T: Any + Send + Sync>(&self) -> Result<Arc<T>> {
        match &self.0.object {
            Some(object) => Arc::clone(&**object).downcast().map_err(|_| {
                Error::new(ErrorKind::Mismatch, format!("the referenced object is not of type {}", type_name::<T>()))
                    .operation("get")
            }),
            None => Err(self.0.elsewhere().operation("get")),
        }
    }

    /// Why nothing can be done with it, if so.
    fn check(&self) -> Result<()> {
        if self.0.is_gone.load(SeqCst) {
            let error = table::not_found(self.0.name);
            return Err(error.hint("the node that passed it on was its only holder, and is gone"));
        }
        self.0.references.loss_of(self.owner()).map_or(Ok(()), Err)
    }
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
        self.references.dropped(self);
    }
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
        write!(f, "Ref({} of node {})", self.0.name.id, self.0.name.owner)
    }
}

#[cfg(test)]
mod tests;
