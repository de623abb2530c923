//! Maps from numbers that nobody chooses: halves of SHA-256 digests, and counters.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map whose keys are spread already, or will be by one multiplication. Not for numbers that a peer may choose and
/// that are stored unchecked.
pub(crate) type Numbered<V> = HashMap<u64, V, BuildHasherDefault<Spread>>;

/// Multiplies by 2^64 divided by the golden ratio, after Knuth (The Art of Computer Programming, vol. 3, 6.4).
#[derive(Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
