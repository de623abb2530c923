//! Which handler this thread runs.
//!
//! A thread that waits within a handler polls tasks of the node meanwhile, and what those wait for is no wait of that
//! handler: so a handler is noted together with the [depth](Task::depth) at which it runs.

use crate::message::Payload;
use crate::particle::Particle;
use sheave_mesh::Task;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// A message whose handler runs: the runtime of its particle, by its address, and the numbers of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Current {
    pub(crate) runtime: usize,
    pub(crate) particle: u64,
    pub(crate) number: u64,
}

/// A handler that runs, its particle, which may have been removed meanwhile, and how deep in polls.
struct Handling {
    current: Current,
    particle: Arc<dyn Any + Send + Sync>,
    depth: usize,
}

thread_local! {
    static CURRENT: RefCell<Option<Handling>> = const { RefCell::new(None) };
    /// How many waits of this thread run what they wait for, one within the other.
    static NESTED: Cell<usize> = const { Cell::new(0) };
    /// The particle of which this thread takes messages: its address.
    static TURN: Cell<usize> = const { Cell::new(0) };
}

/// Sets a cell of this thread until it is dropped.
struct Within<T: Copy + 'static> {
    cell: &'static std::thread::LocalKey<Cell<T>>,
    before: T,
}

impl<T: Copy + 'static> Within<T> {
    fn new(cell: &'static std::thread::LocalKey<Cell<T>>, now: T) -> Self {
        Self { cell, before: cell.replace(now) }
    }
}

impl<T: Copy + 'static> Drop for Within<T> {
    fn drop(&mut self) {
        self.cell.set(self.before);
    }
}

/// The handler of this runtime that this thread runs, and its particle, if there is one.
pub(crate) fn handler<M: Payload>(runtime: usize) -> Option<(Current, Arc<Particle<M>>)> {
    CURRENT.with_borrow(|handling| {
        let here = |handling: &&Handling| handling.current.runtime == runtime && handling.depth == Task::depth();
        let handling = handling.as_ref().filter(here)?;
        let particle = Arc::clone(&handling.particle).downcast().ok()?;
        Some((handling.current, particle))
    })
}

/// Whether this thread runs any handler.
pub(crate) fn has_handler() -> bool {
    CURRENT.with_borrow(Option::is_some)
}

/// What this thread ran before.
struct Before(Option<Handling>);

impl Drop for Before {
    fn drop(&mut self) {
        let ended = CURRENT.replace(self.0.take());
        drop(ended);
    }
}

/// Runs code of this handler of this particle.
pub(crate) fn within<M: Payload, T>(current: Current, particle: &Arc<Particle<M>>, act: impl FnOnce() -> T) -> T {
    let particle: Arc<dyn Any + Send + Sync> = Arc::<Particle<M>>::clone(particle);
    let _before = Before(CURRENT.replace(Some(Handling { current, particle, depth: Task::depth() })));
    act()
}

/// Runs what a wait waits for, unless too many of this thread do so already.
pub(crate) fn nested<T>(most: usize, act: impl FnOnce() -> T) -> Option<T> {
    let depth = NESTED.get();
    (depth < most).then(|| {
        let _within = Within::new(&NESTED, depth + 1);
        act()
    })
}

/// Takes messages of the particle at this address.
pub(crate) fn turn<T>(particle: usize, act: impl FnOnce() -> T) -> T {
    let _within = Within::new(&TURN, particle);
    act()
}

/// Whether this thread takes messages of any particle, and whether of this one, without anything in between.
pub(crate) fn has_turn() -> bool {
    TURN.get() != 0
}

/// Whether what this thread does last is to take messages of this particle.
pub(crate) fn has_turn_of(particle: usize) -> bool {
    TURN.get() == particle
}
