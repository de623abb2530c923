//! The memory of one shared-memory link: two rings for each direction in one sealed memfd.

use super::ring::{LINES, Memory, URGENT_LINES, words};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use sheave_base::sync::AtomicU64;
use sheave_base::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Words of one direction: its ring for data, and behind that its urgent one.
const DIRECTION_WORDS: usize = words(LINES) + words(URGENT_LINES);
const BYTES: usize = 2 * DIRECTION_WORDS * size_of::<AtomicU64>();

/// Why there is no memory. What the system never lets this process do is no reason to try again.
fn not_made(errno: Errno) -> Error {
    if ![Errno::PERM, Errno::ACCESS, Errno::NOSYS].contains(&errno) {
        return errno.into();
    }
    let what = format!("the system denies memfd_create to this process: {}", std::io::Error::from(errno));
    Error::new(ErrorKind::Unsupported, what).hint("allow it, in the container's seccomp profile for example")
}

/// The mapped rings of a link. The mapping lives as long as anybody holds it.
pub(crate) struct Pair {
    map: memmap2::MmapRaw,
}

impl Pair {
    /// Fresh, zeroed rings, and the file for the peer to map. Neither side needs it any longer than that.
    pub(crate) fn create() -> Result<(Arc<Self>, OwnedFd)> {
        let file = rustix::fs::memfd_create("sheave-link", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|errno| not_made(errno).context("making the shared memory of a link"))?;
        rustix::fs::ftruncate(&file, BYTES as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::map(&file)?, file))
    }

    /// A peer's rings. Size and seals are checked first, so that no later access can fault.
    pub(crate) fn import(file: OwnedFd) -> Result<Arc<Self>> {
        let wrong = |what: String| Error::new(ErrorKind::Protocol, format!("the peer's link memory {what}"));
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|errno| wrong(format!("has no seals: {errno}")))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(wrong("can still change its size".into()));
        }
        let length = rustix::fs::fstat(&file)?.st_size;
        if length != BYTES as i64 {
            return Err(wrong(format!("has {length} bytes where {BYTES} were expected")));
        }
        let pair = Self::map(&file);
        // The mapping keeps the memory, and a process may have few descriptors.
        drop(file);
        pair
    }

    fn map(file: &OwnedFd) -> Result<Arc<Self>> {
        let map = memmap2::MmapOptions::new()
            .len(BYTES)
            .populate()
            .map_raw(file)
            .map_err(|error| Error::from(error).context("mapping the shared memory of a link"))?;
        Ok(Arc::new(Self { map }))
    }

    /// The ring for data of that direction.
    pub(crate) fn ring(self: &Arc<Self>, which: Which) -> DataMemory {
        RingMemory { pair: Arc::clone(self), first: which.first_word() }
    }

    /// The urgent ring of that direction.
    pub(crate) fn urgent(self: &Arc<Self>, which: Which) -> UrgentMemory {
        RingMemory { pair: Arc::clone(self), first: which.first_word() + words(LINES) }
    }
}

/// The directions of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    FromInitiator,
    FromResponder,
}

impl Which {
    fn first_word(self) -> usize {
        if self == Self::FromInitiator { 0 } else { DIRECTION_WORDS }
    }
}

/// The words of one ring of so many lines.
pub(crate) struct RingMemory<const RING_LINES: u64> {
    pair: Arc<Pair>,
    first: usize,
}

pub(crate) type DataMemory = RingMemory<LINES>;
pub(crate) type UrgentMemory = RingMemory<URGENT_LINES>;

impl<const RING_LINES: u64> Memory for RingMemory<RING_LINES> {
    const LINES: u64 = RING_LINES;

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < words(RING_LINES), "ring indices are reduced before use");
        // SAFETY: the mapping is `BYTES` long, page aligned, sealed against shrinking and alive as long as `self`; the
        // index is inside of this ring, which lies in it. Other processes change it only as atomic words or, if they
        // break the protocol, as plain bytes, which the atomic loads and stores of this side tolerate.
        unsafe { &*self.pair.map.as_mut_ptr().cast::<AtomicU64>().add(self.first + index) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::SeqCst;

    #[test]
    fn both_sides_see_the_same_words() {
        let (ours, file) = Pair::create().expect("memory");
        let theirs = Pair::import(file).expect("sound");
        ours.ring(Which::FromResponder).word(5).store(77, SeqCst);
        assert_eq!(theirs.ring(Which::FromResponder).word(5).load(SeqCst), 77);
        assert_eq!(theirs.ring(Which::FromInitiator).word(5).load(SeqCst), 0);
        for which in [Which::FromInitiator, Which::FromResponder] {
            assert_eq!(ours.urgent(which).word(5).load(SeqCst), 0);
            let last = words(URGENT_LINES) - 1;
            ours.urgent(which).word(last).store(last as u64, SeqCst);
            assert_eq!(theirs.urgent(which).word(last).load(SeqCst), last as u64);
        }
        assert_eq!(theirs.ring(Which::FromResponder).word(0).load(SeqCst), 0);
    }

    #[test]
    fn unsealed_or_short_memory_is_refused() {
        let plain = rustix::fs::memfd_create("plain", MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&plain, BYTES as u64).expect("room");
        assert_eq!(Pair::import(plain).err().map(|error| error.kind()), Some(ErrorKind::Protocol));
        let short = rustix::fs::memfd_create("short", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a file");
        rustix::fs::fcntl_add_seals(&short, SealFlags::SHRINK | SealFlags::GROW).expect("seals");
        assert_eq!(Pair::import(short).err().map(|error| error.kind()), Some(ErrorKind::Protocol));
    }
}
