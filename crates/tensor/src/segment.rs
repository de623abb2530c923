//! Shared memory files that peers on the same host map.
//!
//! A segment is a memfd that is fully allocated and sealed against shrinking, growing and further sealing *before*
//! anybody maps it. That order is what makes access safe: a file that cannot shrink cannot turn a load into SIGBUS,
//! whatever the process at the other end does. A received descriptor is believed only after the kernel has confirmed
//! all of this.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create,
};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use sheave_base::limits::PART_BYTES_MAX;
use sheave_base::{Error, ErrorKind, Result, shortage};

use crate::mapping::Mapping;

/// A segment's name, drawn at random so that two processes never mean different memory by the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u64);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A mapped, sealed piece of shared memory. The mapping lives as long as its last [`Arc`].
pub struct Segment {
    id: SegmentId,
    /// Of one that was made here; one of a peer's needs none, once it is mapped.
    file: Option<OwnedFd>,
    inode: u64,
    mapping: Mapping,
    retirements: AtomicU32,
}

impl Segment {
    /// Makes a segment of `len_bytes` (rounded up to whole pages), with all pages present. Blocks while the kernel
    /// zeroes them: some 0.6 ms per MiB.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] when the machine has no memory or descriptors left, else [`ErrorKind::Io`].
    pub fn create(len_bytes: usize) -> Result<Arc<Self>> {
        let failed = |errno: Errno| creation_error(errno, len_bytes);
        let len_bytes = len_bytes.max(1).checked_next_multiple_of(rustix::param::page_size()).ok_or(Errno::NOMEM);
        let len_bytes = len_bytes.map_err(failed)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("sheave", flags).map_err(failed)?;
        fallocate(&file, FallocateFlags::empty(), 0, len_bytes as u64).map_err(failed)?;
        fcntl_add_seals(&file, SEALS).map_err(failed)?;
        let inode = fstat(&file).map_err(failed)?.st_ino;
        let mut id = [0_u8; 8];
        getrandom(&mut id, GetRandomFlags::empty()).map_err(failed)?;
        let mapping = Mapping::shared(file.as_fd(), len_bytes).map_err(failed)?;
        let id = SegmentId(u64::from_ne_bytes(id));
        Ok(Arc::new(Self { id, file: Some(file), inode, mapping, retirements: AtomicU32::new(0) }))
    }

    /// Maps a segment that a peer made, after checking with the kernel that it is what the peer says.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] when the descriptor is not a memfd, lacks a seal, has another length or has holes;
    /// [`ErrorKind::LimitExceeded`] when there is no address space for it.
    pub fn import(file: OwnedFd, id: SegmentId, expected_len_bytes: u64) -> Result<Arc<Self>> {
        let refused = |what: String| Error::new(ErrorKind::Protocol, format!("segment {id} is refused: {what}"));
        let seals = fcntl_get_seals(&file).map_err(|errno| refused(format!("it has no seals ({errno})")))?;
        if !seals.contains(SEALS) {
            return Err(refused(format!(
                "it is not sealed against a change of its length (seals {:#x})",
                seals.bits()
            )));
        }
        let stat = fstat(&file).map_err(|errno| refused(errno.to_string()))?;
        let len_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        if len_bytes != expected_len_bytes || len_bytes == 0 || len_bytes > PART_BYTES_MAX {
            return Err(refused(format!("it has {len_bytes} bytes instead of {expected_len_bytes}")));
        }
        // Pages that exist need no memory when they are touched; a hole would, and none might be left.
        let allocated_bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
        if allocated_bytes < len_bytes {
            return Err(refused(format!("only {allocated_bytes} of its {len_bytes} bytes are allocated")));
        }
        let mapping = usize::try_from(len_bytes).map_err(|_| Errno::NOMEM);
        let mapping = mapping.and_then(|len_bytes| Mapping::shared(file.as_fd(), len_bytes)).map_err(|errno| {
            let what = format!("segment {id} of {len_bytes} bytes cannot be mapped");
            let refused = || Error::new(ErrorKind::Protocol, errno.to_string());
            shortage::of(errno).unwrap_or_else(refused).context(what)
        })?;
        // The mapping keeps the memory, and a process may have few descriptors.
        drop(file);
        Ok(Arc::new(Self { id, file: None, inode: stat.st_ino, mapping, retirements: AtomicU32::new(0) }))
    }

    /// Its name, the same in every process.
    #[must_use]
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// The descriptor, to be sent to a peer; none for a segment that a peer made.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Its length.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.mapping.len_bytes() as u64
    }

    /// The file's inode number: equal on both sides exactly when they map the same memory.
    #[must_use]
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// First byte of the mapping in this process. What is written there is a matter between the processes that map it.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.mapping.start()
    }

    /// Takes the segment out of use: no new allocation comes from it until [`release`](Self::release) was called as
    /// often. For peers that were declared dead but may go on writing.
    pub fn retire(&self) {
        self.retirements.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends one [`retire`](Self::retire). One too many has no effect.
    pub fn release(&self) {
        let _ = self.retirements.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1));
    }

    /// Whether a retirement is in force.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.retirements.load(Ordering::Acquire) > 0
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({}, {} bytes, inode {})", self.id, self.len_bytes(), self.inode)
    }
}

fn creation_error(errno: Errno, len_bytes: usize) -> Error {
    let what = format!("a shared memory segment of {len_bytes} bytes cannot be made");
    if let Some(error) = shortage::of(errno) {
        return error.context(what);
    }
    let what = format!("{what}: {errno}");
    match errno {
        Errno::NOSPC | Errno::FBIG => Error::new(ErrorKind::LimitExceeded, what)
            .hint("free memory, or give the arena a smaller capacity")
            .shortage(),
        _ => Error::new(ErrorKind::Io, what),
    }
}
