//! Optimizer steps on flat slices: what a store's server, or a worker that trains alone, does with a summed gradient.
//!
//! A [`Rule`] says how weights follow gradients; a [`State`] is what the rule remembers between steps of one slice; a
//! [`Target`] is the weights, with or without master copies. None knows tensors, keys or links, so a server steps its
//! piece of a tensor exactly as a worker steps the whole. An [`Optimizer`] adds a [`Schedule`] of the learning rate.
//!
//! **Cutting does not show.** A new weight is a function of the old weight, gradient and moments at the same index and
//! of the number of steps, and of nothing else. The operations on it have one order, each rounded on its own (Rust
//! never fuses a multiplication with an addition unasked), and a vector unit rounds as a scalar one does. So a tensor
//! cut anywhere, each piece stepped with a state of its own, gets the same bits as the uncut one, on any number of
//! servers. [`Lamb`] alone needs norms of the whole tensor. Its step has two halves, [`Rule::prepare`] and
//! [`Rule::finish`], between which the servers exchange sums of squares; they are summed by place and not by server, so
//! that a tensor cut at multiples of [`BLOCK_ELEMENTS`] gets the same bits as the uncut one too.
//!
//! The formulas are those of Apache MXNet 1.9.1 where it has the rule: of its `optimizer_op-inl.h`, and of its Python
//! classes `Adam` (for the bias correction), `AdaGrad` and `Test`. AdamW is that of its paper and of PyTorch. Where a
//! gradient is clipped differs from rule to rule, as it does there: Adam and RMSProp clip the sum of rescaled gradient
//! and weight decay, all others the rescaled gradient alone. What differs from MXNet: it rounds each setting to f32
//! before it computes `1 - beta`, here settings stay f64 until the value that a loop needs is known; f16 weights are
//! stepped in f32, with f32 moments; and [`RmsProp`] guards a root.

mod arithmetic;
mod float;
mod norms;
mod optimizer;
mod pass;
mod rule;
mod rules;
mod schedule;
mod settings;
mod state;
mod target;

pub use float::{Float, Wide, widen};
pub use norms::{BLOCK_ELEMENTS, BlockSums, Norms};
pub use optimizer::Optimizer;
pub use rule::Rule;
pub use rules::{AdaGrad, Adam, AdamW, Lamb, RmsProp, Sgd, Test};
pub use schedule::{Decay, Schedule, WarmUp};
pub use state::State;
pub use target::Target;
