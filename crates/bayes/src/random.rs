//! A private generator of random numbers, and seeds that differ.
//!
//! The generator is xoshiro256++ (Blackman and Vigna, "Scrambled linear pseudorandom number generators", ACM
//! Transactions on Mathematical Software, 2021, arXiv:1805.01407), seeded by SplitMix64 (Steele, Lea and Flood, "Fast
//! splittable pseudorandom number generators", OOPSLA 2014). It is written out here, because its state is part of what
//! a run saves, and its numbers must not change with the version of a library. It is not for secrets.

use serde::{Deserialize, Serialize};
use sheave_base::Result;

use crate::Real;
use crate::check::refuse;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Two to the power of -53: the distance between the uniform numbers.
const UNIFORM_STEP: f64 = 1.0 / (1_u64 << 53) as f64;

/// A generator of random numbers, whose whole state can be saved and loaded.
///
/// ```
/// use sheave_bayes::random::Generator;
///
/// let mut one = Generator::new(7);
/// let mut same = Generator::new(7);
/// assert_eq!(one.normal(), same.normal());
/// assert!((0.0..1.0).contains(&one.uniform()));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generator {
    words: [u64; 4],
    /// The second of two normal numbers, which are made together.
    spare: Option<f64>,
}

impl Generator {
    /// Makes the generator of a seed; any seed is as good as another.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let word = |place: u64| mixed(seed.wrapping_add(GOLDEN.wrapping_mul(place)));
        Self { words: [word(1), word(2), word(3), word(4)], spare: None }
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let words = &mut self.words;
        let drawn = words[0].wrapping_add(words[3]).rotate_left(23).wrapping_add(words[0]);
        let shifted = words[1] << 17;
        words[2] ^= words[0];
        words[3] ^= words[1];
        words[1] ^= words[2];
        words[0] ^= words[3];
        words[2] ^= shifted;
        words[3] = words[3].rotate_left(45);
        drawn
    }

    /// Returns a number from 0 to below 1, a multiple of 2⁻⁵³.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * UNIFORM_STEP
    }

    /// Returns a whole number below `end`, each as likely as another (Lemire, "Fast random integer generation in an
    /// interval", 2019, arXiv:1805.10941).
    ///
    /// # Errors
    /// `InvalidArgument` where `end` is 0.
    pub fn below(&mut self, end: u64) -> Result<u64> {
        if end == 0 {
            return Err(refuse("drawing a number", "end", end, "a number above zero"));
        }
        let surplus = end.wrapping_neg() % end;
        loop {
            let wide = u128::from(self.bits()) * u128::from(end);
            if wide as u64 >= surplus {
                return Ok((wide >> 64) as u64);
            }
        }
    }

    /// Returns a number of the standard normal distribution, by the polar method (Marsaglia and Bray, "A convenient
    /// method for generating normal variables", SIAM Review, 1964).
    pub fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        loop {
            let (x, y) = (2.0 * self.uniform() - 1.0, 2.0 * self.uniform() - 1.0);
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                let factor = (-2.0 * square.ln() / square).sqrt();
                self.spare = Some(y * factor);
                return x * factor;
            }
        }
    }

    /// Fills a slice with numbers of the standard normal distribution.
    pub fn fill_normal<T: Real>(&mut self, values: &mut [T]) {
        values.fill_with(|| T::nearest(self.normal()));
    }
}

/// Returns the seed of the particle, member or chain `index` of a run with a master seed. Different indices have
/// different seeds under one master, so that no two members begin alike.
///
/// ```
/// use sheave_bayes::random::seed_of;
/// assert_ne!(seed_of(42, 0), seed_of(42, 1));
/// assert_ne!(seed_of(42, 0), seed_of(43, 0));
/// ```
#[must_use]
pub fn seed_of(master: u64, index: u64) -> u64 {
    // An odd factor, a sum and a mix are one-to-one each, hence different indices never meet.
    mixed(mixed(master ^ GOLDEN).wrapping_add(GOLDEN.wrapping_mul(index)))
}

/// The output function of SplitMix64: one-to-one on 64 bits.
fn mixed(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of a seed are part of what a saved run means: they never change.
    #[test]
    fn the_numbers_of_a_seed_stay() {
        // SplitMix64 from seed 0, as published.
        assert_eq!(Generator::new(0).words[0], 0xe220_a839_7b1d_cdaf);
        let mut generator = Generator { words: [1, 2, 3, 4], spare: None };
        let drawn: Vec<u64> = (0..4).map(|_| generator.bits()).collect();
        assert_eq!(drawn, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
    }

    #[test]
    fn moments() {
        let mut generator = Generator::new(11);
        let count = 200_000;
        let draws: Vec<f64> = (0..count).map(|_| generator.normal()).collect();
        let moment = |power: i32| draws.iter().map(|draw| draw.powi(power)).sum::<f64>() / f64::from(count);
        // Six standard errors of each: the moments have variances 1, 2, 15 and 96 over the count.
        for (power, exact, variance) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)] {
            let bound = 6.0 * (variance / f64::from(count)).sqrt();
            assert!((moment(power) - exact).abs() < bound, "moment {power} is {}", moment(power));
        }
    }

    #[test]
    fn whole_numbers_are_equally_likely() {
        let mut generator = Generator::new(3);
        let mut counts = [0_u32; 7];
        for _ in 0..70_000 {
            counts[generator.below(7).unwrap() as usize] += 1;
        }
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 600), "{counts:?}");
        assert!(generator.below(0).unwrap_err().to_string().contains("end is 0; expected a number above zero"));
    }

    #[test]
    fn a_saved_generator_goes_on() {
        let mut generator = Generator::new(5);
        generator.normal();
        let text = serde_json::to_string(&generator).unwrap();
        let mut loaded: Generator = serde_json::from_str(&text).unwrap();
        assert_eq!(loaded.normal().to_bits(), generator.normal().to_bits());
        assert_eq!(loaded.bits(), generator.bits());
    }
}
