//! Memory from the kernel, unmapped when dropped.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// A readable and writable mapping; its bytes are initialised (zeros from the kernel, or what others wrote).
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len_bytes: usize,
}

impl Mapping {
    /// Private zeroed memory on huge pages where the kernel has them: a fresh page costs microseconds.
    pub(crate) fn anonymous(len_bytes: usize) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without a fixed address the kernel picks an unused range, so no existing memory is affected.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len_bytes, protection, MapFlags::PRIVATE)? };
        // SAFETY: the range was mapped just now; the advice changes cost, not contents. Kernels without huge pages
        // refuse.
        let _ = unsafe { madvise(start, len_bytes, Advice::LinuxHugepage) };
        Self::of(start, len_bytes)
    }

    /// The whole of a shared memory file, every page present in our page table before the call returns.
    ///
    /// The caller has made sure that the file is at least that long and can never shrink: otherwise an access would end
    /// the process with SIGBUS.
    pub(crate) fn shared(file: BorrowedFd<'_>, len_bytes: usize) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: without a fixed address the kernel picks an unused range, so no existing memory is affected.
        let start = unsafe { mmap(std::ptr::null_mut(), len_bytes, protection, flags, file, 0)? };
        Self::of(start, len_bytes)
    }

    fn of(start: *mut std::ffi::c_void, len_bytes: usize) -> Result<Self, Errno> {
        NonNull::new(start.cast()).map(|start| Self { start, len_bytes }).ok_or(Errno::NOMEM)
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the range, and whoever borrows from it holds it alive.
        let outcome = unsafe { munmap(self.start.as_ptr().cast(), self.len_bytes) };
        debug_assert!(outcome.is_ok(), "munmap of our own mapping: {outcome:?}");
    }
}

// SAFETY: the mapping is plain memory that belongs to the process, not to a thread; access rules are its owners'
// business.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` only tells the address.
unsafe impl Sync for Mapping {}
