//! Optimizer steps on flat slices: what a store's server, or a worker that trains alone, does with a summed gradient.
//!
//! A [`Rule`] says how weights follow gradients; a [`State`] is what the rule remembers between steps of one slice.
//! Neither knows tensors, keys or links, so a server steps its piece of a tensor exactly as a worker steps the whole.
//!
//! **Cutting does not show.** A new weight is a function of the old weight, gradient and moments at the same index and
//! of the number of steps, and of nothing else: no norm, no sum over elements. The operations on it have one order,
//! each rounded on its own (Rust never fuses a multiplication with an addition unasked), and a vector unit rounds as a
//! scalar one does. So a tensor cut anywhere, each piece stepped with a state of its own, gets the same bits as the
//! uncut one, on any number of servers.
//!
//! The formulas are those of Apache MXNet 1.9.1 without gradient clipping: `sgd_update`, `sgd_mom_update` and
//! `adam_update` of its `optimizer_op-inl.h`, and the bias correction of its Python class `Adam`. Two things differ in
//! the last bits: MXNet rounds each setting to f32 before it computes `1 - beta`, here settings stay f64 until the
//! value that a loop needs is known; and f16 weights are stepped in f32, with f32 moments.

mod float;
mod loops;
mod rule;
mod state;

pub use float::{Float, Wide};
pub use rule::{Adam, Rule, Sgd};
pub use state::State;
