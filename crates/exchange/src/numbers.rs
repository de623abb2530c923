//! Tables whose keys are numbers of the job's own: nobody chooses them to collide, and each is looked up per request.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) type Table<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

#[derive(Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        // Multiplicative hashing by the golden ratio; the upper half of the product brings high bits down.
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
