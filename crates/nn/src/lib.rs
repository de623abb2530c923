//! Native training: a small network on candle, and real data for it that is always at hand.
//!
//! [`Digits`] are 1,797 handwritten digits inside the library, [`Schedule`] says which worker trains on which of them
//! when, and a [`Model`] computes what its images say about the weights. How weights follow the gradients, and where
//! they are kept, is not decided here: gradients leave as tensors of sheave and weights come back as such.
//!
//! **The same bits everywhere.** Weights at the start, the order of images and every gradient are functions of a seed
//! and of the batch. No random number, clock or address enters them, and the number of threads does not: candle's
//! matrix products are cut into threads along rows and columns, never along the sum, and all else runs on one thread.
//! The processes must be of one build and run on one kind of processor, which decides how candle blocks its sums and
//! how the system's library rounds an exponential.
//!
//! ```
//! use sheave_nn::{Digits, Model, Schedule};
//!
//! let digits = Digits::embedded()?;
//! let (training, held_out) = (digits.training(), digits.held_out());
//! let schedule = Schedule::new(7, training.len(), 2, 32)?;
//! let model = Model::new(7)?;
//! // What worker 1 of 2 contributes to the first step.
//! let batch = training.batch(&schedule.indices(0, 0, 1)?, schedule.global_images())?;
//! let (loss, gradients) = model.gradients(&batch)?;
//! assert!(loss > 0.5 && gradients.len() == model.parameters().len());
//! assert!(model.accuracy(&held_out)? < 0.5);
//! # Ok::<(), sheave_base::Error>(())
//! ```

mod bias;
mod dataset;
mod digits;
mod layers;
mod loss;
mod model;
mod module;
mod network;
mod norm;
mod schedule;

pub use dataset::{Dataset, Targets};
pub use digits::{Batch, CLASSES, Digits, PIXELS, Split};
pub use layers::{Activation, Dense, Dropout, Sequential, mlp, mlp_with};
pub use loss::Loss;
pub use model::Model;
pub use module::{Buffer, Buffers, Layout, LayoutEntry, Mode, Module, Parameter, Pass, Start};
pub use network::Network;
pub use norm::BatchNorm;
pub use schedule::Schedule;
