//! Tables whose keys are numbers that nobody chooses to collide: counters, digests, numbers of the job's own.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map whose keys are spread by one multiplication each. Not for numbers that a stranger may choose and that are
/// stored unchecked.
///
/// ```
/// use sheave_base::LinkId;
/// use sheave_base::numbers::Numbered;
///
/// let mut names: Numbered<LinkId, &str> = Numbered::default();
/// names.insert(LinkId(7), "seven");
/// assert_eq!(names.get(&LinkId(7)), Some(&"seven"));
/// ```
pub type Numbered<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// Multiplies by 2^64 divided by the golden ratio, after Knuth (The Art of Computer Programming, vol. 3, 6.4).
///
/// The upper half of the product brings the high bits down, which a table takes its bucket from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        words.iter().for_each(|word| self.write_u64(u64::from_le_bytes(*word)));
        rest.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_that_differ_in_any_byte_fall_into_different_buckets() {
        let bucket = |key: u64| {
            let mut hasher = Spread::default();
            hasher.write_u64(key);
            hasher.finish() & 0xfff
        };
        for shift in [0, 8, 16, 24, 40, 56] {
            let buckets: HashSet<u64> = (0..256_u64).map(|number| bucket(number << shift)).collect();
            assert!(buckets.len() > 200, "{} buckets of 256 for shift {shift}", buckets.len());
        }
    }
}
