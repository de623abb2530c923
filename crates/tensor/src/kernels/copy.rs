//! Copying large pieces past the cache.

/// From here on a copy that goes around the cache is faster: it saves reading the target's lines before overwriting
/// them, and leaves the cache to others.
pub(super) const STREAM_BYTES_MIN: usize = 4 << 20;

/// Copies bytes, with stores around the cache for 4 MiB and more where the processor has them. When it returns the
/// bytes are visible to other threads and processes as after a plain copy.
///
/// # Safety
/// `source` must be readable and `target` writable for `len_bytes`; they must not overlap; nobody may write the source
/// or touch the target meanwhile.
pub unsafe fn copy_bytes(target: *mut u8, source: *const u8, len_bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_piece(target, source, len_bytes, len_bytes) }
}

/// Copies a piece of a longer copy, which has `whole_bytes` in all: as [`copy_bytes`] copies the whole.
///
/// # Safety
///
/// As for [`copy_bytes`], for the piece.
pub unsafe fn copy_piece(target: *mut u8, source: *const u8, len_bytes: usize, whole_bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if whole_bytes >= STREAM_BYTES_MIN && super::Level::detected() != super::Level::Plain {
        // SAFETY: every level but the plain one has AVX2; the rest is the caller's promise.
        unsafe { stream(target, source, len_bytes) };
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(source, target, len_bytes) };
}

/// # Safety
/// As for [`copy_bytes`]; the processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn stream(target: *mut u8, source: *const u8, len_bytes: usize) {
    use std::arch::x86_64::{_mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};

    const LINE_BYTES: usize = 64;
    let head_bytes = target.align_offset(LINE_BYTES).min(len_bytes);
    let lines = (len_bytes - head_bytes) / LINE_BYTES;
    let done_bytes = head_bytes + lines * LINE_BYTES;
    // SAFETY: head, lines and tail lie one behind the other within the caller's range; streaming stores need the target
    // aligned to 32 bytes, which it is after the head; loads need no alignment.
    unsafe {
        std::ptr::copy_nonoverlapping(source, target, head_bytes);
        for line in 0..lines {
            let offset = head_bytes + line * LINE_BYTES;
            let first = _mm256_loadu_si256(source.add(offset).cast());
            let second = _mm256_loadu_si256(source.add(offset + 32).cast());
            _mm256_stream_si256(target.add(offset).cast(), first);
            _mm256_stream_si256(target.add(offset + 32).cast(), second);
        }
        // Streaming stores are weakly ordered: without a fence a flag that is set next could overtake the bytes.
        _mm_sfence();
        std::ptr::copy_nonoverlapping(source.add(done_bytes), target.add(done_bytes), len_bytes - done_bytes);
    }
}
