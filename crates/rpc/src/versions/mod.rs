//! Versioned objects: a table of keys whose values have versions, served to those who have a group.
//!
//! [`Versions`] is the table on the node that serves it, [`VersionsClient`] its face everywhere else, in which every
//! method returns a [`Work`](sheave_base::Work) and does not block. A *version* is a plain value, such as a number or a
//! text; two are the same if they are written alike, so that `1`, `1.0` and `true` are three. They have no order of
//! their own: the *newest* version of a key is the one that was accepted last. Whoever pushes chooses it, and should
//! not use one twice.
//!
//! **Compare and push.** A push names the version that it was made from, and is accepted if that is the newest. Pushes
//! and pulls of a key are linearizable: each takes effect at one moment between its call and its end, under the lock of
//! the table. A call that fails otherwise than by an answer of the table may have had its effect or not.
//!
//! **Nothing that is stored is ever written.** A push brings tensors that belong to the table from then on: what comes
//! from outside is copied once, into memory of the server that other processes of its host reach. An overwritten
//! version gets other tensors. So any number of readers see one snapshot, each for as long as it likes, and a version
//! that is dropped from the table lives on in the hands of those who have it.
//!
//! **Shared pulls.** A pull by [`Mode::Share`](sheave_tensor::Mode) gets that memory itself where the reader reaches
//! it, and a copy over TCP. It is seen by the server and all who share it, so nobody may write it: there is no safe
//! slice of such a tensor, and [`Node::capture`](sheave_net::Node::capture) makes a copy that has one.
//!
//! **Deltas.** The entries of a map are kept one by one. [`VersionsClient::push_changes`] sends those that differ from
//! the version before, and a pull of what is newer than a version that the server still has is sent those that differ;
//! versions share the rest. An entry has changed if it was pushed again, whatever is in it.
//!
//! **The lane.** Handlers run where the request is found ([`Lane::Inline`](sheave_mesh::Lane)): they never wait, and
//! their lock is held for as long as handles are moved about. The one thing that takes long is to copy the tensors of a
//! push: that is done without the lock, and where it is
//! [much](sheave_base::limits::VERSIONS_INLINE_BYTES_MAX) on a thread of the node's own, on which each pusher has a
//! mailbox. A push counts when it is copied, so a call that is made before it has ended may be answered first.
//!
//! **Guests.** A table is for members, unless [`VersionsSettings::has_guests`] says otherwise. What a guest pushes is
//! read by all who read the table, and they cannot tell who has pushed it: where values may be programs, such as
//! pickles, [`VersionsSettings::is_for_trusted`] keeps out those guests that the server does not trust.
//!
//! **The dead.** When the server dies or leaves, every work fails and names it, watches included. When a client does,
//! the server forgets its watches and pins.

mod client;
mod contents;
#[doc(hidden)]
pub mod fuzz;
mod protocol;
mod service;
mod table;

pub use client::{Pin, VersionsClient};
pub use contents::{Contents, Entry, Pulled};
pub use service::{Versions, VersionsService};

use sheave_base::{Error, ErrorKind, Result, limits};
use sheave_wire::Value;

/// Which pushes are accepted, beside those that name the newest version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rules {
    /// A key that is not known takes a push that names no version, and a version that is there is never pushed again.
    #[default]
    Strict,
    /// Those of `machin.parallel.server`: a key that is not known takes any push, and a push of a version that is there
    /// overwrites it where it stands, so that it does not become the newest.
    Machin,
}

/// What a table may have.
///
/// ```
/// use sheave_rpc::{Rules, VersionsSettings};
///
/// let settings = VersionsSettings { depth: 4, rules: Rules::Machin, ..VersionsSettings::default() };
/// assert_eq!((settings.depth, VersionsSettings::default().depth), (4, 1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionsSettings {
    /// Versions that are kept of a key, the newest included; those that are pinned are kept besides.
    pub depth: usize,
    /// Bytes of all values together.
    pub bytes_max: u64,
    /// Keys.
    pub keys_max: usize,
    /// Which pushes are accepted.
    pub rules: Rules,
    /// Guests of the server may use the table too, see [`VersionsClient::of_host`].
    pub has_guests: bool,
    /// Of the guests, those alone that this process has started itself ([`Mesh::trusts`](sheave_mesh::Mesh::trusts)):
    /// for tables whose values are opened as programs, by the server or by other members.
    pub is_for_trusted: bool,
}

impl Default for VersionsSettings {
    fn default() -> Self {
        let (bytes_max, keys_max) = (limits::VERSIONS_BYTES, limits::VERSIONS_KEYS);
        Self { depth: 1, bytes_max, keys_max, rules: Rules::Strict, has_guests: false, is_for_trusted: false }
    }
}

impl VersionsSettings {
    fn check(&self) -> Result<()> {
        let check = |name: &str, value: usize, most: usize| {
            if (1..=most).contains(&value) {
                return Ok(());
            }
            let what = format!("{name} is {value}; expected 1 to {most}");
            Err(Error::new(ErrorKind::InvalidArgument, what).operation("make versions"))
        };
        check("depth", self.depth, limits::VERSIONS_DEPTH_MAX)?;
        check("keys_max", self.keys_max, limits::VERSIONS_KEYS_MAX)
    }
}

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushOutcome {
    /// The version is the newest.
    Accepted,
    /// The version was there, and has this value now ([`Rules::Machin`]).
    Overwritten,
    /// Refused: the push was made from another version than the newest.
    Stale,
    /// Refused: the version is there. A pusher that tries again, after a failure that may have come behind the push,
    /// learns so that it was accepted the first time. Only versions that are kept are known.
    AlreadyExists,
    /// Refused: the version would be overwritten, and somebody has pinned it.
    Pinned,
}

/// What the table says to a push.
#[derive(Clone, Debug, PartialEq)]
pub struct Pushed {
    /// What became of it.
    pub outcome: PushOutcome,
    /// The newest version of the key from then on, if it has one.
    pub newest: Option<Value>,
    /// Versions that were dropped to make room.
    pub dropped: Vec<Dropped>,
}

impl Pushed {
    /// Returns whether the table has the value.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        matches!(self.outcome, PushOutcome::Accepted | PushOutcome::Overwritten)
    }
}

/// A version that is not there any more.
#[derive(Clone, Debug, PartialEq)]
pub struct Dropped {
    /// Its key.
    pub key: Value,
    /// The version.
    pub version: Value,
}

/// Which version is wanted.
#[derive(Clone, Debug, PartialEq)]
pub enum Wanted {
    /// The newest.
    Newest,
    /// This one.
    Version(Value),
    /// The newest, for a reader that has this one: nothing moves if it is the newest, and the changes alone if it is a
    /// map and the server still has that version, not overwritten.
    NewerThan(Value),
}

/// What a table has, and has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionsReport {
    /// Keys that it has.
    pub keys: usize,
    /// Versions of all of them.
    pub versions: usize,
    /// Bytes of their values, what several versions share counted once.
    pub bytes: u64,
    /// Those who wait for a newer version.
    pub watches: usize,
    /// Versions that are held, by each holder.
    pub pins: usize,
    /// Pushes that were accepted, those that have overwritten a version among them.
    pub accepted: u64,
    /// Pushes that were refused, because of their versions.
    pub refused: u64,
    /// Versions that were dropped because their key had more than the depth.
    pub dropped_for_depth: u64,
    /// Versions that were dropped because the table had too many bytes.
    pub dropped_for_bytes: u64,
    /// Versions that went with their keys.
    pub removed: u64,
}
