//! Remote procedure calls: groups of members by name, and in them services and values by key.
//!
//! [`Rpc`] is a node's part in them. An [`RpcGroup`] is made by its members together, and is found by its name. A
//! member registers services and pairs values in it under keys; every node that has a handle of the group calls and
//! gets them by their keys alone. Calls are those of the mesh: each service has its own lane and window, so that a slow
//! one delays no other.
//!
//! **The directory.** Which member has a key is known to that member, the *owner*, and to the *index*: the member of
//! lowest rank that lives and has not left the group. An owner announces what it has after it has it, so that nobody
//! finds what is not there yet; and what it has is forgotten when it takes it away, leaves the group or dies. When the
//! index is gone every owner announces all that it has to the next one, which says that it knows no such key only when
//! all have. So no entry is lost with the index, and no key has two owners.
//!
//! **The dead.** A look-up of a key whose owner has died fails with `PeerLost`, which names that, until another member
//! has the key: an index remembers what it knew to be theirs, [so many keys](sheave_base::limits::RPC_LOST_MAX) of a
//! group. That is lost with the index; a handle then tells of those that it has found itself.
//!
//! **Generations.** Each time a group is made its members agree on a number that none of them has used before. Words
//! about an earlier group of the same name are told apart from those about the later one, so that a name can be used
//! again.
//!
//! **Versioned objects.** [`Versions`] is a service of a group that keeps values with versions under keys: to compare
//! and push, pull what has changed, watch and pin.
//!
//! Names, groups and directories follow `machin.parallel.distributed`'s `RpcGroup`, whose directory was a single
//! process's and never forgot.

mod creation;
mod directory;
mod entry;
mod group;
mod lost;
mod object;
mod protocol;
mod search;
mod state;
mod values;
mod versions;

#[doc(hidden)]
pub use versions::fuzz;

pub use directory::Rpc;
pub use group::{GroupHandle, RpcGroup};
pub use object::{Object, ObjectMethods, RemoteObject, function};
pub use values::{FromArguments, FromValue, IntoValue};
pub use versions::{Contents, Dropped, Entry, Pin, Pulled, PushOutcome, Pushed, Rules, Versions, VersionsClient};
pub use versions::{VersionsReport, VersionsService, VersionsSettings, Wanted};
