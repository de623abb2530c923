//! One file for each family of rules: its settings, and its formula for one element.

mod adagrad;
mod adam;
mod lamb;
mod rmsprop;
mod sgd;
mod test;

pub use adagrad::AdaGrad;
pub(crate) use adagrad::AdaGradStep;
pub use adam::{Adam, AdamW};
pub(crate) use adam::{AdamStep, AdamWStep};
pub use lamb::Lamb;
pub use rmsprop::RmsProp;
pub(crate) use rmsprop::{CenteredStep, RmsPropStep};
pub use sgd::Sgd;
pub(crate) use sgd::{Heavy, Nesterov, Plain};
pub use test::Test;
pub(crate) use test::TestStep;
