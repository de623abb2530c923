//! Collective operations of a session: what workers do together with the tensors in their registers.
//!
//! The controller issues them as commands, like calls of functions: each worker runs the same one, at its place in the
//! order of commands, so that all come to the same operation without further agreement. They are built-in functions,
//! which workers find by names that begin with `sheave.`; [`Session`](crate::Session) has a method for each.
//!
//! **Scope.** An operation is one of all workers ([`Scope::World`]), or each group has one of its own
//! ([`Scope::Group`]). The *first* worker of an operation is worker 0, or the first of each group, its *leader*.
//!
//! **Tensors** are flat: a register that is given as target has to have the dtype and the number of elements that
//! arrive, in whatever shape. It is written in place, and so is the object of another language that it holds. Without a
//! target one is made. Either way the register that the method returns holds it, and is poisoned if the operation has
//! failed.
//!
//! **Nothing moves before all agree.** A worker whose argument is missing, poisoned or of another dtype or length must
//! neither leave the others waiting nor break the operations to come. So the workers first tell each other, in one
//! exchange of 64 bytes each, what they are about to do, and compare that in the same way: they all go on, or all fail
//! with the same error, which names the worker that does not fit and what it has (`Mismatch`), or what has poisoned its
//! argument. Then the targets are what they were, and the next operation works. What comes after the exchange can only
//! fail with the group itself: by a death, which all survivors learn as `PeerLost`, by a
//! [limit](crate::Session::limit_collectives), or for want of memory; the last breaks the group deliberately, so that
//! nobody waits, and [`Session::renew_collectives`](crate::Session::renew_collectives) makes it again.
//!
//! Messages between two workers are agreed on in the same way, by the two, and go through a group of these two alone:
//! the death of a third one ends none of them.
//!
//! **Numbers.** Elements are reduced in the dtype of the tensors: sums and products of integers wrap around, those of
//! f16 and bf16 are computed in f32 and rounded once. The average of integers is their sum, which may wrap, divided and
//! cut off towards zero. Minimum and maximum are of bool too, the others are not; complex numbers have no order. All
//! dtypes move ([`Operator`](sheave_collective::Operator)).
//!
//! | function | arguments | result |
//! |---|---|---|
//! | `sheave.worker_id`, `sheave.local_id`, `sheave.workers` | | an int |
//! | `sheave.group`, `sheave.rank_in_group`, `sheave.groups` | | an int |
//! | `sheave.empty` | shape, dtype, `"all"`, `"leaders"` or `"first"` | the tensor, or none |
//! | `sheave.copy_to_first` | tensor, target? | the target on worker 0 |
//! | `sheave.copy_from_first` | source, tensor on worker 0 | none |
//! | `sheave.broadcast_from_first` | scope, source, target? | the target |
//! | `sheave.scatter_from_first` | scope, source, target? | the target |
//! | `sheave.gather_to_first` | scope, source, target? | the target on the first, else none |
//! | `sheave.all_gather` | scope, source, target? | the target |
//! | `sheave.all_reduce` | scope, operator, source, target? | the target |
//! | `sheave.send_to_worker` | tensor, worker | none |
//! | `sheave.recv_from_worker` | target or none, worker | the target |
//! | `sheave.recv_from_first` | target or none | the target |
//! | `sheave.send_to_next_group` | tensor | none |
//! | `sheave.recv_from_previous_group` | target or none | the target |
//! | `sheave.pass_to_next_group` | source, target? | the target, or none in the first group |
//! | `sheave.send_between` | from, source, to, target? | the target on the receiver, else none |
//! | `sheave.limit_collectives` | nanoseconds or none | none |
//! | `sheave.renew_collectives` | | none |
//!
//! A scope is `"group"` or `"world"`, an operator its [name](sheave_collective::Operator::name) (`"prod"` is one of
//! product too). Scopes, operators and numbers of workers are values, the same for all workers, never registers: they
//! say with whom a worker has to agree. Functions of a program find these functions by
//! [`registered_function`](crate::registered_function), and the operations themselves by
//! [`Worker::world`](crate::Worker::world).
//!
//! Source: the data plane of TVM's Disco (`tvm.runtime.disco`). Departures: with several groups a broadcast or scatter
//! within groups sends the data to every leader; dtypes and lengths are checked on every worker; what fails is an
//! error.

mod agree;
mod built_in;
mod communicators;
mod descriptor;
pub(crate) mod local;
mod operations;
mod pairs;
mod placed;
mod session;

pub(crate) use built_in::{built_in, dtype_named, shape_value};
pub(crate) use communicators::Communicators;
pub(crate) use descriptor::Operation;
pub(crate) use operations::{Moved, run};
pub use placed::{Placement, Scope};
