//! Who is there: the nodes of a job, their roles, ranks and groups, and what becomes of them when one dies; calls
//! between them, and counted references to each other's objects.
//!
//! [`Mesh::join`] makes a process one of a [`Mesh`], as its [`Config`] or its launcher's environment says.
//! [`environment`] reads that environment. [`engine`] is the pure core, a state machine without I/O, threads or clocks;
//! a driver joins it with the links of a node.

mod attend;
mod call;
mod company;
mod config;
mod departure;
mod driver;
mod ended;
pub mod engine;
pub mod environment;
mod group;
mod hosts;
mod losses;
mod mesh;
mod reference;
mod rendezvous;
mod routes;
mod time;
mod weak;

pub use attend::Attendant;
pub use call::{Answer, Call, Leases, Reply, Request, Service};
pub use config::{Config, check_environment};
pub use engine::{Death, Expected, GroupId, GroupRecord, Member, Role};
pub use group::Group;
pub use mesh::Mesh;
pub use reference::Ref;
pub use weak::WeakMesh;
