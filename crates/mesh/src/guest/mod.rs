//! Guests: nodes that are attached to one node of a mesh, their *host*, and stand outside the table of members.
//!
//! A pool's worker processes are such: they come and go while the job runs, nobody but the process that started them
//! needs them, and their deaths are nobody else's business. So a guest has no rank and no epoch, it has no part in
//! barriers and agreements, and no other member hears of it. Host and guest call each other, and hold references to
//! each other's objects, by the same calls, windows, lanes and counts as members.
//!
//! **Two tables, one of them small.** Both ends of such a link have a table of [attached](attached) nodes beside that
//! of the members: the host its guests, the guest its host. For its own engine a guest is a mesh of one node. The
//! engine of neither side is ever told of the other: what links and words say about attached nodes is sorted out before
//! it reaches the engine ([`Shared::sort_out`](crate::driver::Shared)).
//!
//! **Who comes in.** The link is authenticated by the job's secret, as all links are. That makes a peer a stranger who
//! is heard by nobody but the door: the service that takes [`Invitation`]s. Each of them has a name for the guest and a
//! random token, names its host, and is good for one attach over one link. Token and host are checked after the
//! secret, over the authenticated link, so no stranger sees a token, and a token without the secret is worth nothing.
//! From then on the guest is the node at the other end of that very link: what another link brings in its name is not
//! heard.
//!
//! **Who judges.** A guest is gone when its link ends, and so is its host, for either side alone and at once. The
//! system shows the end of a process in its link (by a pidfd over shared memory, by the end of the stream over TCP); a
//! silence shows in the beats of the link. Who ends in order says so before, by a word on the same link, so that the
//! end of the link means a leave or a failure with its reason.
//!
//! **In order.** A link is said to have ended when everything that came over it was taken. The news of a guest's end
//! then wait in the queue of requests for their turn, behind all that the guest has asked for; until then it counts as
//! one of those who may call. So a guest that leaves in order loses nothing that it sent.
//!
//! **References.** Neither side can be asked to count for a third node that it has no link to. So a host and its guest
//! pass each other what is their own or the other's, and nothing else; both the sender and the receiver see to that.

mod attached;
mod face;
mod host;
mod invitation;

pub(crate) use attached::{Attached, Standing};
pub use face::{Guest, GuestConfig, WeakGuest};
pub use host::AttachedGuest;
pub(crate) use host::leaving_word;
pub use invitation::Invitation;

/// The service by which a host takes its guests in.
const DOOR: &str = "sheave.door";

/// Shows an invitation: the guest's name, the token and the host's node. The answer is the host's rank.
const ATTACH: &str = "attach";

/// Says that the guest serves what it has to. The answer is the host's rank.
const READY: &str = "ready";

#[cfg(test)]
mod tests;
