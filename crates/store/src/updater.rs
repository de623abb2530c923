//! What a push does to a stored value.

use crate::key::Key;
use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind, Result};
use sheave_optim::{Optimizer, Rule};
use sheave_tensor::Tensor;
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

/// User code that merges a pushed sum into a stored value: the key, the sum, and the value, both flat. On servers a big
/// tensor comes in slices, each with its key, and of pushed rows both are packed; so it must treat every element for
/// itself. [`slice_start`] tells slices apart.
pub type Function = Arc<dyn Fn(&Key, &Tensor, &mut Tensor) -> Result<()> + Send + Sync>;

thread_local! {
    /// Of the slice that an updater on this thread is given.
    static SLICE_START: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Returns the index, in its whole tensor, of the first element of the slice that the updater on this thread is given,
/// and None where no updater runs. With the key it names the slice: an updater that remembers something of each slice
/// keeps it by these two, because a value moves in memory while answers still hold what it was. Pushed rows are packed,
/// and begin where their slice begins.
///
/// ```
/// use sheave_store::{KvStore, Updater, slice_start};
/// use sheave_tensor::Tensor;
/// use std::sync::Arc;
///
/// let store = KvStore::local("local")?;
/// let value = Tensor::from_slice(&[1.0f32], [1])?;
/// store.init(&[("w".into(), value.clone())])?;
/// store.set_updater(Updater::Function(Arc::new(|_, _, _| {
///     assert_eq!(slice_start(), Some(0));
///     Ok(())
/// })))?;
/// store.push(&[("w".into(), value)])?.wait()?;
/// assert_eq!(slice_start(), None);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[must_use]
pub fn slice_start() -> Option<u64> {
    SLICE_START.get()
}

/// Says where a slice begins until it is dropped, which a panic of the updater does too.
pub(crate) struct Within(Option<u64>);

impl Within {
    pub(crate) fn slice(start: u64) -> Self {
        Self(SLICE_START.replace(Some(start)))
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        SLICE_START.set(self.0);
    }
}

/// What becomes of a stored value when a sum is pushed to it.
#[derive(Clone, Default)]
pub enum Updater {
    /// The sum takes its place. In an asynchronous store the last arrival wins.
    #[default]
    Assign,
    /// The sum is added to it.
    Sum,
    /// The sum is a gradient, and an optimizer takes a step. Its state lives with the value, and so do the steps that
    /// its schedule counts.
    Optimizer(Box<Optimizer>),
    /// A closure decides; in this process only.
    Function(Function),
    /// A function decides that was registered under this name where the values are: on every server, or in this
    /// process.
    Named(String),
}

impl fmt::Debug for Updater {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Assign => f.write_str("Assign"),
            Self::Sum => f.write_str("Sum"),
            Self::Optimizer(optimizer) => f.debug_tuple("Optimizer").field(optimizer).finish(),
            Self::Function(_) => f.write_str("Function"),
            Self::Named(name) => f.debug_tuple("Named").field(name).finish(),
        }
    }
}

/// An updater as it travels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Spec {
    Assign,
    Sum,
    Optimizer(Box<Optimizer>),
    Named(String),
}

impl Updater {
    pub(crate) fn to_spec(&self) -> Result<Spec> {
        Ok(match self {
            Self::Assign => Spec::Assign,
            Self::Sum => Spec::Sum,
            Self::Optimizer(optimizer) => {
                optimizer.check()?;
                Spec::Optimizer(optimizer.clone())
            }
            Self::Named(name) => Spec::Named(name.clone()),
            Self::Function(_) => {
                return Err(Error::new(ErrorKind::Unsupported, "a closure cannot travel to the servers")
                    .operation("set_updater")
                    .hint("register the function on every server, and name it here"));
            }
        })
    }
}

impl From<Spec> for Updater {
    fn from(spec: Spec) -> Self {
        match spec {
            Spec::Assign => Self::Assign,
            Spec::Sum => Self::Sum,
            Spec::Optimizer(optimizer) => Self::Optimizer(optimizer),
            Spec::Named(name) => Self::Named(name),
        }
    }
}

impl From<Optimizer> for Updater {
    fn from(optimizer: Optimizer) -> Self {
        Self::Optimizer(Box::new(optimizer))
    }
}

impl From<Rule> for Updater {
    fn from(rule: Rule) -> Self {
        Optimizer::from(rule).into()
    }
}

/// The optimizer with another learning rate.
pub(crate) fn with_learning_rate(mut optimizer: Optimizer, learning_rate: f64) -> Result<Optimizer> {
    if let Rule::Test(_) = optimizer.rule {
        return Err(Error::new(ErrorKind::Unsupported, "the optimizer test has no learning rate")
            .operation("set_learning_rate")
            .hint("set another optimizer"));
    }
    optimizer.rule.set_learning_rate(learning_rate);
    optimizer.check().map_err(|error| error.operation("set_learning_rate"))?;
    Ok(optimizer)
}

pub(crate) fn no_optimizer() -> Error {
    Error::new(ErrorKind::NotFound, "the store has no optimizer").hint("call set_optimizer first")
}
