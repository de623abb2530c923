//! Copying to where another core reads next.
//!
//! Memory that two cores take turns with, a window, a slot, a block that comes back, stands in the cache of the reader
//! when its writer writes it again, and the reader's copies must be called in first. Between cores with one last-level
//! cache that costs little. Between those of different ones, of two core complexes or two sockets, a store waits for
//! it line by line: 1.7 GB/s were seen where stores around the cache, which wait for nobody, made 27 GB/s and their
//! reader was as fast as before. With one cache between the cores both ways take as long in all, and with both on one
//! core's threads the plain way is faster. Which of these it is can change whenever a thread moves. So the speed of
//! plain copies says it: some that are too slow, one after the other, as a thread that has lost its core once is not,
//! are followed by many around the cache, and these by a plain one that looks again. The worst that a wrong guess costs
//! is a few megabytes by the way that is slower there.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Shorter copies end in the store buffer, which hides what they cost.
const TIMED_BYTES_MIN: usize = 16 << 10;
/// Shorter ones take longer around the cache.
const STREAMED_BYTES_MIN: usize = 2 << 10;
/// A plain copy of fewer bytes in a microsecond was between caches, or of bytes that came from far away themselves.
const NEAR_BYTES_PER_US: u128 = 2500;
/// So many of them, one after the other, are believed.
const SLOW_COPIES: u32 = 3;
/// Copies around the cache before a plain one looks again, which takes as long as some ten of them.
const STREAMED_COPIES: u32 = 256;

/// What the last plain copies of this process have shown.
static REACH: Reach = Reach::near();

/// How far away the readers of this process's copies are.
struct Reach {
    /// Copies around the cache that are still to come.
    streamed: AtomicU32,
    /// Plain copies that were slow, since the last one that was not.
    slow: AtomicU32,
}

// Threads that count at once may lose each other's counts; nothing but the speed depends on the numbers.
impl Reach {
    const fn near() -> Self {
        Self { streamed: AtomicU32::new(0), slow: AtomicU32::new(0) }
    }

    /// Whether a copy goes around the cache.
    fn take_turn(&self) -> bool {
        let left = self.streamed.load(Ordering::Relaxed);
        if left > 0 {
            self.streamed.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    /// Learns from a plain copy.
    fn saw(&self, len_bytes: usize, took: Duration) {
        let is_slow = len_bytes as u128 * 1000 < NEAR_BYTES_PER_US * took.as_nanos();
        let slow = if is_slow { (self.slow.load(Ordering::Relaxed) + 1).min(SLOW_COPIES) } else { 0 };
        self.slow.store(slow, Ordering::Relaxed);
        if slow == SLOW_COPIES {
            self.streamed.store(STREAMED_COPIES, Ordering::Relaxed);
        }
    }
}

/// Copies bytes to where another core reads them next, and has read what lay there before: as
/// [`copy_bytes`](super::copy_bytes), in the way that is faster for the pair of cores.
///
/// # Safety
///
/// As for [`copy_bytes`](super::copy_bytes).
pub unsafe fn hand_over(target: *mut u8, source: *const u8, len_bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { hand_over_within(&REACH, target, source, len_bytes) }
}

/// # Safety
///
/// As for [`copy_bytes`](super::copy_bytes).
unsafe fn hand_over_within(reach: &Reach, target: *mut u8, source: *const u8, len_bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len_bytes >= STREAMED_BYTES_MIN && super::Level::detected() != super::Level::Plain && reach.take_turn() {
        // SAFETY: every level but the plain one has AVX2; the rest is the caller's promise.
        unsafe { super::copy::stream(target, source, len_bytes) };
        return;
    }
    if len_bytes < TIMED_BYTES_MIN {
        // SAFETY: the caller's promise.
        unsafe { super::copy_bytes(target, source, len_bytes) };
        return;
    }
    let begun = sheave_base::clock::now();
    // SAFETY: the caller's promise.
    unsafe { super::copy_bytes(target, source, len_bytes) };
    reach.saw(len_bytes, sheave_base::clock::since(begun));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(reach: &Reach, shift: usize, skip: usize, len_bytes: usize) {
        let source: Vec<u8> = (0..skip + len_bytes).map(|at| (at * 31 >> 3) as u8).collect();
        let mut target = vec![0xa5_u8; shift + len_bytes + 64];
        // SAFETY: both ranges have that many bytes, in vectors of their own.
        unsafe { hand_over_within(reach, target.as_mut_ptr().add(shift), source.as_ptr().add(skip), len_bytes) };
        assert!(target[shift..shift + len_bytes] == source[skip..]);
        assert!(target[..shift].iter().chain(&target[shift + len_bytes..]).all(|&byte| byte == 0xa5));
    }

    fn far(copies: u32) -> Reach {
        Reach { streamed: AtomicU32::new(copies), slow: AtomicU32::new(0) }
    }

    #[test]
    fn copies_are_whole_either_way() {
        for streamed in [0, 1, STREAMED_COPIES] {
            for (shift, skip, len_bytes) in [(0, 0, 0), (1, 0, 100), (0, 3, 2048), (63, 7, 8193), (5, 0, 20_000)] {
                copied(&far(streamed), shift, skip, len_bytes);
            }
        }
    }

    #[test]
    fn slow_copies_are_followed_by_many_around_the_cache_and_a_look() {
        let reach = Reach::near();
        let (near, far) = (25_000, 24_999);
        let turns = |reach: &Reach| (0..STREAMED_COPIES + 10).filter(|_| reach.take_turn()).count() as u32;
        let saw = |len_bytes| {
            reach.saw(len_bytes, Duration::from_micros(10));
            turns(&reach)
        };
        assert_eq!([near, far, far, near, far, far].map(saw), [0; 6], "slow ones in a row alone count");
        assert_eq!([far, far, near, far].map(saw), [STREAMED_COPIES, STREAMED_COPIES, 0, 0], "each look decides");
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn long_enough_copies_take_turns() {
        if super::super::Level::detected() == super::super::Level::Plain {
            return;
        }
        let reach = far(2);
        let left = || reach.streamed.load(Ordering::Relaxed);
        copied(&reach, 0, 0, STREAMED_BYTES_MIN - 1);
        assert_eq!(left(), 2);
        copied(&reach, 0, 0, STREAMED_BYTES_MIN);
        assert_eq!(left(), 1);
    }
}
