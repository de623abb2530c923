//! Who may call what.
//!
//! That a peer has proven to know the job's secret says only that its user may run jobs here: with a secret for all
//! jobs of a user, as the cookie file is, it may belong to another one. So a node hears members of its own mesh and
//! nodes that are attached to it, and of these whom the method names. The name of a method is read before anybody is
//! refused, its arguments are not.

use crate::driver::Shared;
use crate::engine::{Engine, Member};
use crate::guest::Standing;
use sheave_base::config::Role;
use sheave_base::planted::{self, Bug};
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Result};
use std::fmt;

/// Who may call a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Callers {
    /// All members of the mesh.
    Members,
    /// Members that train: workers, and ranks of a job without roles.
    Workers,
    /// Servers.
    Servers,
    /// The member that coordinates the mesh at that moment.
    Coordinator,
    /// Guests of this node.
    Guests,
    /// All members of the mesh, and guests of this node.
    MembersAndGuests,
    /// Whoever has proven to know the job's secret: the door alone hears them.
    #[doc(hidden)]
    Strangers,
}

impl Callers {
    /// Whether a member of this role is one of them.
    fn have(self, role: Role, coordinates: impl FnOnce() -> bool) -> bool {
        match self {
            Self::Members | Self::MembersAndGuests | Self::Strangers => true,
            Self::Workers => matches!(role, Role::Worker | Role::Rank),
            Self::Servers => role == Role::Server,
            Self::Coordinator => coordinates(),
            Self::Guests => false,
        }
    }
}

impl fmt::Display for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Members => "members of the mesh",
            Self::Workers => "workers",
            Self::Servers => "servers",
            Self::Coordinator => "the coordinator of the mesh",
            Self::Guests => "guests of this node",
            Self::MembersAndGuests => "members of the mesh and guests of this node",
            Self::Strangers => "whoever knows the secret",
        })
    }
}

impl Shared {
    /// Refuses who is not among those who may call the method.
    pub(super) fn check_caller(&self, callers: Callers, method: &str, (from, link): (NodeId, LinkId)) -> Result<()> {
        let caller = self.member(from);
        let attached = if caller.is_none() { self.attached.speaks(from, link) } else { None };
        let may_call = match (caller, attached) {
            (_, _) if callers == Callers::Strangers => true,
            (Some(caller), _) => {
                let coordinates = || self.look(Engine::coordinator) == Some(from);
                callers.have(caller.introduction.role, coordinates)
            }
            (None, Some(Standing::Guest)) => matches!(callers, Callers::Guests | Callers::MembersAndGuests),
            // A guest does not hear who coordinates its host's mesh.
            (None, Some(Standing::Host(role))) => callers.have(role, || false),
            (None, None) => false,
        };
        if may_call || planted::strikes(Bug::GateOpen) {
            return Ok(());
        }
        let who = match (caller, attached.and_then(|_| self.attached.peer(from))) {
            (Some(caller), _) => Self::describe(caller),
            (None, Some(peer)) if attached == Some(Standing::Guest) => format!("{}, a guest", peer.name),
            (None, Some(peer)) => format!("{}, the host of this guest", peer.name),
            (None, None) => "no member of this mesh".to_owned(),
        };
        let what = format!("\"{method}\" is for {callers}, and the caller is {who}");
        let hint = "look which job, and which role in it, the calling process has";
        Err(Error::new(ErrorKind::NotPermitted, what).hint(hint))
    }

    fn describe(member: &Member) -> String {
        format!("{}, a {}", member.introduction.name, member.introduction.role)
    }
}
