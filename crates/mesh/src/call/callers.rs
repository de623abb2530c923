//! Who may call what.
//!
//! That a peer has proven to know the job's secret says only that its user may run jobs here: with a secret for all
//! jobs of a user, as the cookie file is, it may belong to another one. So a node hears members of its own mesh alone,
//! and of these whom the method names. The name of a method is read before anybody is refused, its arguments are not.

use crate::driver::Shared;
use crate::engine::{Engine, Member};
use sheave_base::config::Role;
use sheave_base::{Error, ErrorKind, NodeId, Result};
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
}

impl fmt::Display for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Members => "members of the mesh",
            Self::Workers => "workers",
            Self::Servers => "servers",
            Self::Coordinator => "the coordinator of the mesh",
        })
    }
}

impl Shared {
    /// Refuses who is not among those who may call the method.
    pub(super) fn check_caller(&self, callers: Callers, method: &str, from: NodeId) -> Result<()> {
        let caller = self.member(from);
        let may_call = caller.is_some_and(|caller| match callers {
            Callers::Members => true,
            Callers::Workers => matches!(caller.introduction.role, Role::Worker | Role::Rank),
            Callers::Servers => caller.introduction.role == Role::Server,
            Callers::Coordinator => self.look(Engine::coordinator) == Some(from),
        });
        if may_call {
            return Ok(());
        }
        let who = caller.map_or_else(|| "no member of this mesh".to_owned(), Self::describe);
        let what = format!("\"{method}\" is for {callers}, and the caller is {who}");
        let hint = "look which job, and which role in it, the calling process has";
        Err(Error::new(ErrorKind::NotPermitted, what).hint(hint))
    }

    fn describe(member: &Member) -> String {
        format!("{}, a {}", member.introduction.name, member.introduction.role)
    }
}
