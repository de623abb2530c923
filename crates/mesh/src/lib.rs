//! Who is there: the nodes of a job, their roles, ranks and groups, and what becomes of them when one dies; calls
//! between them, and counted references to each other's objects.
//!
//! [`Mesh::join`] makes a process one of a [`Mesh`], as its [`Config`] or its launcher's environment says.
//! [`Guest::attach`] makes one a [`Guest`] of a member, by which the mesh is none the wiser.
//! [`environment`] reads that environment. [`engine`] is the pure core, a state machine without I/O, threads or clocks;
//! a driver joins it with the links of a node. A [`Runtime`] has the timers and tasks that services stand on.

mod awaited;
mod call;
mod company;
mod config;
mod departure;
mod driver;
mod ended;
mod endpoints;
pub mod engine;
pub mod environment;
#[doc(hidden)]
pub mod fuzz;
mod group;
mod group_news;
mod guest;
mod hosts;
mod joining;
mod losses;
mod meeting;
mod mesh;
mod reference;
mod rendezvous;
mod routes;
pub(crate) mod runtime;
mod time;
mod told;
mod weak;

pub use call::Written;
pub use call::{
    Answer, AnswerOf, ArgList, Call, CallOptions, Callers, Lane, Leases, Mark, Method, Methods, Reply, Request,
};
pub use call::{Room, Service, ServiceName, TypedReply, TypedRequest, TypedService};
pub use config::{Config, check_environment};
pub use engine::{Death, Expected, GroupId, GroupRecord, Member, Role};
pub use group::Group;
pub use group_news::GroupNews;
pub use guest::{AttachedGuest, Guest, GuestConfig, Invitation, WeakGuest};
pub use meeting::{MEETING_KEY, Meet, Meeting};
pub use mesh::Mesh;
pub use reference::{Promises, Ref};
pub use runtime::{Runtime, Sleep, Task, Timer};
pub use weak::WeakMesh;
