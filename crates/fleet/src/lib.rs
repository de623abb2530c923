//! Processes that are started, watched and ended together, as the members of a job or as guests of a node.
//!
//! A [`MemberFleet`] is a job of its own: it has a [`JobPlan`], and none of its processes is replaced. A [`GuestFleet`]
//! belongs to one node of a job, which need not have other members: its processes are that node's guests, they are
//! replaced when they end, and no other member hears of them.
//!
//! In both, a process that has ended without being asked to is an error of kind
//! [`WorkerDied`](sheave_base::ErrorKind::WorkerDied), with its exit status and what it said last; and nothing is left
//! behind when the fleet or the process that has started it ends in whatever way.

mod cause;
mod died;
mod guests;
mod handed;
mod members;
mod plan;
mod sheet;

pub use cause::Cause;
pub use guests::{FleetEvent, GuestFleet, GuestFleetBuilder, Restarts};
pub use handed::{Losses, draw_secret};
pub use members::{MemberFleet, names_of};
pub use plan::{JobMember, JobPart, JobPlan, Setter, setter_of, variables_of_jobs};
pub use sheet::{Answer, Sheet};
