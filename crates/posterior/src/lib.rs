//! Posteriors of networks, made of particles: ready to fit and to predict with, on one node or many.
//!
//! | posterior | what its members are |
//! |---|---|
//! | [`Ensemble`] | trainings that differ by their start, and by their batches |
//! | [`MultiSwag`] | Gaussians about the snapshots of each training |
//! | [`SteinVgd`] | particles that keep each other apart, with a leader or cut over the parameters |
//! | [`Langevin`] | chains of SGLD, SGHMC or cyclical step sizes |
//! | [`MonteCarloDropout`] | trainings whose units are dropped for predictions too |
//! | [`LastLayerLaplace`] | trainings with a normal posterior of their last layer |
//!
//! An [`Inference`] is a network and its data on the nodes that shall have members. Members are
//! [particles](sheave_particle): each has its parameters, optimizer and generators, and does what it is told by
//! messages. The mathematics are those of [`sheave_bayes`], networks and gradients those of [`sheave_nn`].
//!
//! **Predictions average probabilities, never logits**, over all samples of all members ([`Prediction`]). They draw
//! from generators of their own and write to memory of their own: parameters and trainings are the same after them.
//!
//! **The same bits everywhere.** What a member does is a function of seeds, network and data. Neither threads nor nodes
//! nor other members enter, but where members tell each other something.
//!
//! **As many as there is room for.** A node may have room for some of its members only ([`Inference::within`]): others
//! are parked, as one block of bytes each, until they are sent a message. What they compute does not depend on it, and
//! their parameters can be read where they are.
//!
//! **When a node dies** everything that needs its members fails within a second, with an error that names it.
//!
//! # Messages
//!
//! Members answer to these messages too ([`Particles::send`](sheave_particle::Particles::send)). Vectors are tensors of
//! f32 beside the value.
//!
//! | message | value and tensors | answer |
//! |---|---|---|
//! | `step` | | the loss of one step, before it |
//! | `train` | a number of steps | the mean of their losses |
//! | `learning rate` | a float, for the steps that follow | |
//! | `collect` | | how many snapshots there are, with one of now |
//! | `parameters` | | the version, and the parameters |
//! | `set` | parameters | the version |
//! | `follow` | parameters, of a member of [`SteinVgd`] | the loss there, and the gradient of `-log p` |
//! | `predict` | `own`, `chain`, `dropout` and a count, or `swag`, a count, a scale; and inputs | all outputs |
//! | `fit curvature` | | precision of the prior and logarithm of the evidence of the last layer |
//! | `predict curved` | rows of inputs | values and variances, f64 |

mod behavior;
mod ensemble;
#[doc(hidden)]
pub mod fuzz;
mod home;
mod inference;
mod langevin;
mod laplace;
mod member;
mod members;
mod order;
mod prediction;
mod settings;
mod svgd;

pub use ensemble::{
    Ensemble, EnsembleSettings, LastLayer, LastLayerLaplace, MonteCarloDropout, MultiSwag, MultiSwagSettings,
};
pub use inference::Inference;
pub use langevin::{Langevin, LangevinSettings};
pub use members::{MEMBERS_MAX, Progress};
pub use order::{Order, Seeds};
pub use prediction::{Prediction, Scores};
pub use settings::{Batches, KEPT_MAX, Sampler};
pub use svgd::{SteinVgd, SteinVgdSettings};
