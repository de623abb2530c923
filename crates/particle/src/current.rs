//! Which handler this thread runs.

use std::cell::Cell;

/// A message whose handler runs: the runtime of its particle, by its address, and the numbers of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Current {
    pub(crate) runtime: usize,
    pub(crate) particle: u64,
    pub(crate) number: u64,
}

thread_local! {
    static CURRENT: Cell<Option<Current>> = const { Cell::new(None) };
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

/// The handler that this thread runs, if there is one.
pub(crate) fn handler() -> Option<Current> {
    CURRENT.get()
}

/// Runs code of this handler.
pub(crate) fn within<T>(current: Current, act: impl FnOnce() -> T) -> T {
    let _within = Within::new(&CURRENT, Some(current));
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
