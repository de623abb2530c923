//! Pools: many tasks for a few workers, which are processes of this machine.
//!
//! A [`Pool`] starts its workers as guests of a node. A task is a call of a [`Function`] that they have, and its
//! outcome a work, or one of many that are taken together ([`Job`]). Several tasks travel in one message, and so do
//! several outcomes; a worker has the next task before it has ended one, and loses it to another worker that has none.
//!
//! A worker that dies fails the task that it had begun with `WorkerDied`, is replaced, and disturbs nothing else: one
//! word of memory that it shares with its host says what it had begun ([`Turn`]).
//!
//! A [`Queue`] has items that any process puts and each of which one takes.
//!
//! Workers in Rust call [`work_with`]; those of another language bring a [`Program`] to [`work`].

mod functions;
mod hand;
mod job;
mod packet;
mod pool;
mod processes;
mod protocol;
mod queue;
mod state;
mod task;
mod threads;
mod turn;
mod worker;
mod workers;

pub use functions::{Functions, Named, work_with};
pub use job::Job;
pub use packet::Packet;
pub use pool::{Settings, Tasker};
pub use processes::{Pool, PoolBuilder};
pub use queue::{Item, Lost, Put, Queue};
pub use task::{Function, Outcome};
pub use threads::ThreadPool;
pub use turn::Turn;
pub use worker::{Program, work};
pub use workers::Workers;
