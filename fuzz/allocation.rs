//! A global allocator that counts what a thread asks for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static REQUESTED_BYTES: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(bytes: usize) {
    // A thread that is ending has no counter any more, and nobody measures there.
    let _ = REQUESTED_BYTES.try_with(|requested| requested.set(requested.get().wrapping_add(bytes)));
}

// SAFETY: every request goes unchanged to the system's allocator; counting touches one plain cell and never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Runs `work` and returns its result and the bytes that this thread asked for meanwhile; what was given back counts
/// too, so the figure is never below the peak.
pub(crate) fn requested_bytes<R>(work: impl FnOnce() -> R) -> (R, usize) {
    let before = REQUESTED_BYTES.with(Cell::get);
    let result = work();
    (result, REQUESTED_BYTES.with(Cell::get).wrapping_sub(before))
}

#[test]
fn the_counter_counts() {
    let (held, bytes) = requested_bytes(|| std::hint::black_box(vec![0u8; 12_345]));
    assert_eq!(held.len(), 12_345);
    assert_eq!(bytes, 12_345);
    assert_eq!(requested_bytes(|| ()).1, 0);
}
