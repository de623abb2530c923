//! Copying to where another core reads next.
//!
//! Memory that two cores take turns with, a window, a slot, a block that comes back, stands in the cache of the reader
//! when its writer writes it again, and the reader's copies must be called in first. Between cores with one last-level
//! cache that costs little. Between those of different ones, of two core complexes or two sockets, a store waits for
//! it line by line: 1.7 GB/s were seen where stores around the cache, which wait for nobody, made 27 GB/s and their
//! reader was as fast as before. With one cache between the cores both ways take as long in all, and with both on one
//! core's threads the plain way is faster. Which of these it is can change whenever a thread moves. So the speed of
//! plain pieces says it: some that are too slow, one after the other, as a thread that has lost its core once is not,
//! are followed by many around the cache, and these by a plain one that looks again. The worst that a wrong guess costs
//! is some megabytes by the way that is slower there.

use super::copy::{STREAM_BYTES_MIN, copy_bytes, copy_piece};
use super::elementwise::Operands;
use super::{Op, reduce_raw};
use crate::Dtype;
use sheave_base::Result;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// Bytes that are copied or reduced between two decisions.
const PIECE_BYTES: usize = 64 << 10;
/// Shorter pieces end in the store buffer, which hides what they cost.
const TIMED_BYTES_MIN: usize = 16 << 10;
/// Shorter ones take longer around the cache.
const STREAMED_BYTES_MIN: usize = 2 << 10;
/// A plain piece of fewer bytes in a microsecond went between caches, or came from far away itself.
const NEAR_BYTES_PER_US: u128 = 2500;
/// So many of them, one after the other, are believed.
const SLOW_PIECES: u32 = 3;
/// Bytes that go around the cache before a plain piece looks again.
const STREAMED_BYTES: usize = 16 << 20;
/// Bytes that are reduced at once before they go around the cache: few enough to stay in the first one until then.
const BLOCK_BYTES: usize = 16 << 10;

/// The reach of this process, as its last plain pieces have shown it.
static REACH: Reach = Reach::near();

/// How far away the readers of what this process writes are.
struct Reach {
    /// Bytes that are still to go around the cache.
    streamed: AtomicUsize,
    /// Plain pieces that were slow, since the last one that was not.
    slow: AtomicU32,
}

// Threads that count at once may lose each other's counts; nothing but the speed depends on the numbers.
impl Reach {
    const fn near() -> Self {
        Self { streamed: AtomicUsize::new(0), slow: AtomicU32::new(0) }
    }

    /// Whether a piece goes around the cache.
    fn takes_turn(&self, len_bytes: usize) -> bool {
        if len_bytes < STREAMED_BYTES_MIN {
            return false;
        }
        let left = self.streamed.load(Ordering::Relaxed);
        if left > 0 {
            self.streamed.store(left.saturating_sub(len_bytes), Ordering::Relaxed);
        }
        left > 0
    }

    /// Makes a plain piece, and learns from it.
    fn watch<T>(&self, len_bytes: usize, make: impl FnOnce() -> T) -> T {
        if len_bytes < TIMED_BYTES_MIN {
            return make();
        }
        let begun = sheave_base::clock::now();
        let made = make();
        self.saw(len_bytes, sheave_base::clock::since(begun));
        made
    }

    fn saw(&self, len_bytes: usize, took: Duration) {
        let is_slow = len_bytes as u128 * 1000 < NEAR_BYTES_PER_US * took.as_nanos();
        let slow = if is_slow { (self.slow.load(Ordering::Relaxed) + 1).min(SLOW_PIECES) } else { 0 };
        self.slow.store(slow, Ordering::Relaxed);
        if slow == SLOW_PIECES {
            self.streamed.store(STREAMED_BYTES, Ordering::Relaxed);
        }
    }
}

/// Copies bytes to where another core reads them next, and has read what lay there before: as
/// [`copy_bytes`], in the way that is faster for the pair of cores.
///
/// # Safety
///
/// As for [`copy_bytes`].
pub unsafe fn hand_over(target: *mut u8, source: *const u8, len_bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { hand_over_within(&REACH, target, source, len_bytes) }
}

/// # Safety
///
/// As for [`copy_bytes`].
unsafe fn hand_over_within(reach: &Reach, target: *mut u8, source: *const u8, len_bytes: usize) {
    if len_bytes >= STREAM_BYTES_MIN {
        // SAFETY: the caller's promise.
        return unsafe { copy_bytes(target, source, len_bytes) };
    }
    for done in (0..len_bytes).step_by(PIECE_BYTES) {
        let piece_bytes = PIECE_BYTES.min(len_bytes - done);
        // SAFETY: the piece lies within what the caller promises.
        unsafe {
            let (target, source) = (target.add(done), source.add(done));
            if reach.takes_turn(piece_bytes) {
                // Whatever goes around the cache goes as this long copy would.
                copy_piece(target, source, piece_bytes, STREAM_BYTES_MIN);
            } else {
                reach.watch(piece_bytes, || copy_bytes(target, source, piece_bytes));
            }
        }
    }
}

/// Reduces into memory that another core reads next, and has read before: as [`reduce_raw`], in the way that is faster
/// for the pair of cores.
///
/// # Errors
///
/// As for [`reduce_raw`].
///
/// # Safety
///
/// As for [`reduce_raw`].
pub(crate) unsafe fn reduce_and_hand_over(op: Op, dtype: Dtype, operands: Operands) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { reduce_within(&REACH, op, dtype, operands) }
}

/// # Safety
///
/// As for [`reduce_raw`].
unsafe fn reduce_within(reach: &Reach, op: Op, dtype: Dtype, operands: Operands) -> Result<()> {
    let Operands { target, left, right, elements } = operands;
    // Of nothing at all too.
    op.require(dtype)?;
    let (size, at_once) = (dtype.size_bytes(), PIECE_BYTES / dtype.size_bytes());
    for done in (0..elements).step_by(at_once) {
        let (at, count) = (done * size, at_once.min(elements - done));
        // SAFETY: the piece lies within what the caller promises.
        unsafe {
            let piece = Operands { target: target.add(at), left: left.add(at), right: right.add(at), elements: count };
            if reach.takes_turn(count * size) {
                reduce_around_cache(op, dtype, piece)?;
            } else {
                let Operands { target, left, right, elements } = piece;
                reach.watch(count * size, || reduce_raw(op, dtype, target, left, right, elements))?;
            }
        }
    }
    Ok(())
}

/// # Safety
///
/// As for [`reduce_raw`].
unsafe fn reduce_around_cache(op: Op, dtype: Dtype, operands: Operands) -> Result<()> {
    let Operands { target, left, right, elements } = operands;
    let (size, at_once) = (dtype.size_bytes(), BLOCK_BYTES / dtype.size_bytes());
    let mut block = MaybeUninit::<[u8; BLOCK_BYTES]>::uninit();
    let block = block.as_mut_ptr().cast::<u8>();
    for done in (0..elements).step_by(at_once) {
        let (at, count) = (done * size, at_once.min(elements - done));
        // SAFETY: the offsets lie within what the caller promises, and the block holds as many elements. The target's
        // are written when both inputs, one of which it may be, have been read there.
        unsafe {
            reduce_raw(op, dtype, block, left.add(at), right.add(at), count)?;
            copy_piece(target.add(at), block, count * size, STREAM_BYTES_MIN);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn far(bytes: usize) -> Reach {
        Reach { streamed: AtomicUsize::new(bytes), slow: AtomicU32::new(0) }
    }

    fn copied(reach: &Reach, shift: usize, skip: usize, len_bytes: usize) {
        let source: Vec<u8> = (0..skip + len_bytes).map(|at| ((at * 31) >> 3) as u8).collect();
        let mut target = vec![0xa5_u8; shift + len_bytes + 64];
        // SAFETY: both ranges have that many bytes, in vectors of their own.
        unsafe { hand_over_within(reach, target.as_mut_ptr().add(shift), source.as_ptr().add(skip), len_bytes) };
        assert!(target[shift..shift + len_bytes] == source[skip..]);
        assert!(target[..shift].iter().chain(&target[shift + len_bytes..]).all(|&byte| byte == 0xa5));
    }

    #[test]
    fn copies_are_whole_either_way() {
        for streamed in [0, PIECE_BYTES, STREAMED_BYTES] {
            for (shift, skip, len_bytes) in [(0, 0, 0), (1, 0, 100), (0, 3, 2048), (63, 7, 8193), (5, 0, 200_000)] {
                copied(&far(streamed), shift, skip, len_bytes);
            }
        }
    }

    #[test]
    fn reductions_are_whole_in_place_and_elsewhere() {
        for (elements, streamed) in
            [0, 1, 4095, 4097, 40_000].into_iter().flat_map(|count| [(count, 0), (count, 99_999)])
        {
            let left: Vec<u8> = (0..elements).flat_map(|at| (at as f32).to_ne_bytes()).collect();
            let right: Vec<u8> = (0..elements).flat_map(|at| (at as f32 * 0.5 - 7.0).to_ne_bytes()).collect();
            let (mut expected, mut found, mut in_place) = (left.clone(), vec![0; left.len()], left.clone());
            super::super::reduce(Op::Sum, Dtype::F32, &mut expected, &right).unwrap();
            let (target, place) = (found.as_mut_ptr(), in_place.as_mut_ptr());
            let operands = Operands { target, left: left.as_ptr(), right: right.as_ptr(), elements };
            let onto_left = Operands { target: place, left: place, ..operands };
            // SAFETY: vectors of that many elements, of this thread; the last target is its left input.
            unsafe {
                reduce_within(&far(streamed), Op::Sum, Dtype::F32, operands).unwrap();
                reduce_within(&far(streamed), Op::Sum, Dtype::F32, onto_left).unwrap();
            }
            assert!(found == expected && in_place == expected, "{elements} elements, {streamed} streamed");
        }
    }

    #[test]
    fn slow_pieces_are_followed_by_many_around_the_cache_and_a_look() {
        let reach = Reach::near();
        let (near, far) = (25_000, 24_999);
        let streamed = |len_bytes| {
            reach.saw(len_bytes, Duration::from_micros(10));
            (0..STREAMED_BYTES / PIECE_BYTES + 10).filter(|_| reach.takes_turn(PIECE_BYTES)).count() * PIECE_BYTES
        };
        assert_eq!([near, far, far, near, far, far].map(streamed), [0; 6], "slow ones in a row alone count");
        assert_eq!([far, far, near, far].map(streamed), [STREAMED_BYTES, STREAMED_BYTES, 0, 0], "each look decides");
    }

    #[test]
    fn long_enough_pieces_take_turns() {
        let reach = far(PIECE_BYTES + 1);
        let left = || reach.streamed.load(Ordering::Relaxed);
        copied(&reach, 0, 0, STREAMED_BYTES_MIN - 1);
        assert_eq!(left(), PIECE_BYTES + 1);
        copied(&reach, 0, 0, PIECE_BYTES + STREAMED_BYTES_MIN);
        assert_eq!(left(), 0);
    }
}
