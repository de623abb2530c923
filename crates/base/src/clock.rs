//! Injected time and randomness: state machines take a [`Time`] and an [`Entropy`], never the system's.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A point in time, in nanoseconds since an origin that only its [`Clock`] knows. Never compared across hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The time that passed since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The point in time that is `span` later.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Tells the time. It never goes backwards.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> Time;
}

/// The time by the system's monotonic clock.
#[must_use]
#[inline]
pub fn now() -> Instant {
    #[cfg(feature = "simulated")]
    if let Some(system) = crate::simulated::current() {
        return system.now();
    }
    Instant::now()
}

/// How long ago that was.
#[must_use]
#[inline]
pub fn since(earlier: Instant) -> Duration {
    now().saturating_duration_since(earlier)
}

/// The system's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { origin: now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Time {
        Time::default().after(since(self.origin))
    }
}

/// A clock that moves only when told to.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Moves the clock forward.
    pub fn advance(&self, span: Duration) {
        self.0.fetch_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Time {
        Time(self.0.load(Ordering::SeqCst))
    }
}

/// A source of random bytes.
pub trait Entropy: Send {
    /// Fills `bytes`.
    fn fill(&mut self, bytes: &mut [u8]);

    /// Eight random bytes as a number.
    fn next_u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

/// The same bytes for the same seed (SplitMix64, Steele et al. 2014). For simulation and chaos, never for secrets.
#[derive(Clone, Debug)]
pub struct SeededEntropy(u64);

impl SeededEntropy {
    /// A source that `seed` determines.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `bound`, or zero when `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }
}

impl Entropy for SeededEntropy {
    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = ManualClock::default();
        let before = clock.now();
        clock.advance(Duration::from_millis(3));
        assert_eq!(clock.now().since(before), Duration::from_millis(3));
        assert_eq!(before.since(clock.now()), Duration::ZERO);
    }

    #[test]
    fn a_seed_determines_every_byte() {
        let (mut one, mut other) = (SeededEntropy::new(7), SeededEntropy::new(7));
        let (mut left, mut right) = ([0; 21], [0; 21]);
        one.fill(&mut left);
        other.fill(&mut right);
        assert_eq!(left, right);
        assert_ne!(SeededEntropy::new(8).next_u64(), SeededEntropy::new(7).next_u64());
    }
}
