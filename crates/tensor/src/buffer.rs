//! Reference-counted memory, wherever it comes from.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crossbeam_queue::SegQueue;
use parking_lot::Mutex;
use rustix::io::Errno;
use sheave_base::contain::Kept;
use sheave_base::{Error, ErrorKind, Result, shortage};

use crate::lease::{ReadLease, Usage, View, WriteLease};
use crate::mapping::Mapping;
use crate::segment::Segment;

/// Alignment of all memory that sheave allocates: a cache line, which is also the widest vector.
pub(crate) const ALIGN_BYTES: usize = 64;

/// From here on private memory comes from the kernel directly, on huge pages.
const MAPPED_BYTES_MIN: usize = 1 << 20;

/// Who asks for so much or more asks for what no machine has: that is no shortage.
const ADDRESSABLE_BYTES: usize = 1 << 46;

/// The other end of a loan: who wants a lent block back.
pub trait Lender: Send + Sync {
    /// Takes back the block of that loan. Called once per loan, from any thread and at any time, interpreter exit
    /// included: it must neither block nor take a lock, only note the loan and return.
    fn give_back(&self, loan: u64);

    /// The identity of the link that the loan came over, unique in this process.
    fn token(&self) -> usize;
}

/// Where in shared memory a buffer lies.
#[derive(Clone, Debug)]
pub struct Location {
    /// The segment.
    pub segment: Arc<Segment>,
    /// First byte in it.
    pub offset_bytes: u64,
    /// How many bytes.
    pub length_bytes: u64,
}

/// A block of an arena, and the list onto which it goes when it is free.
pub(crate) struct ArenaBlock {
    pub(crate) segment: Arc<Segment>,
    pub(crate) returned: ReturnedBlock,
    pub(crate) returns: Arc<SegQueue<ReturnedBlock>>,
}

/// What the arena needs to know to reuse a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReturnedBlock {
    pub(crate) slot: usize,
    pub(crate) offset_bytes: u64,
    pub(crate) block_bytes: u64,
}

impl Drop for ArenaBlock {
    fn drop(&mut self) {
        self.returns.push(self.returned);
    }
}

struct LentBlock {
    segment: Arc<Segment>,
    offset_bytes: u64,
    loan: u64,
    /// `None` once the block went home by another way.
    lender: Option<Arc<dyn Lender>>,
}

impl Drop for LentBlock {
    fn drop(&mut self) {
        if let Some(lender) = self.lender.take() {
            lender.give_back(self.loan);
        }
    }
}

struct HeapBlock {
    start: NonNull<u8>,
    layout: Layout,
}

impl Drop for HeapBlock {
    fn drop(&mut self) {
        // SAFETY: `start` was allocated with exactly this layout and nobody else frees it.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// What is dropped when the last handle goes.
enum Storage {
    Empty,
    Heap(#[expect(dead_code, reason = "held for its drop")] HeapBlock),
    Mapped(#[expect(dead_code, reason = "held for its drop")] Mapping),
    Arena(ArenaBlock),
    Lent(LentBlock),
    Foreign(#[expect(dead_code, reason = "held for its drop")] Kept<Box<dyn Send + Sync>>),
}

struct Inner {
    start: NonNull<u8>,
    len_bytes: usize,
    read_only: bool,
    usage: Mutex<Usage>,
    storage: Storage,
}

// SAFETY: the pointer names memory that the storage owns and that no thread has a special claim on; what may be done
// with it at any time is decided by handles and leases, which are themselves thread-safe. The owners of storages are
// `Send + Sync`.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// A handle to memory: cheap to clone, freed with its last clone from whatever thread.
///
/// Memory that sheave allocates is initialised (fresh: zeros; reused from the arena: the bytes of its previous life)
/// and aligned to 64 bytes.
#[derive(Clone)]
pub struct Buffer(Arc<Inner>);

impl Buffer {
    fn new(start: NonNull<u8>, len_bytes: usize, read_only: bool, storage: Storage) -> Self {
        Self(Arc::new(Inner { start, len_bytes, read_only, usage: Mutex::default(), storage }))
    }

    /// Zeroed memory of this process alone.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] when the system has no memory, or for a length that no address space holds.
    pub fn private(len_bytes: usize) -> Result<Self> {
        let what = || format!("no memory for a private buffer of {len_bytes} bytes");
        let impossible = || Error::new(ErrorKind::LimitExceeded, what()).hint("use smaller tensors");
        // What this process lacks is nobody else's fault, whoever has sent it something that it can be asked for.
        let exhausted = |errno: Errno| match len_bytes < ADDRESSABLE_BYTES {
            true => shortage::of(errno).map_or_else(impossible, |error| error.context(what())),
            false => impossible(),
        };
        if len_bytes == 0 {
            return Ok(Self::empty());
        }
        if len_bytes >= MAPPED_BYTES_MIN && !cfg!(miri) {
            let mapping = Mapping::anonymous(len_bytes).map_err(exhausted)?;
            return Ok(Self::new(mapping.start(), len_bytes, false, Storage::Mapped(mapping)));
        }
        let layout = Layout::from_size_align(len_bytes, ALIGN_BYTES).map_err(|_| impossible())?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or_else(|| exhausted(Errno::NOMEM))?;
        Ok(Self::new(start, len_bytes, false, Storage::Heap(HeapBlock { start, layout })))
    }

    /// A buffer of no bytes.
    #[must_use]
    pub fn empty() -> Self {
        #[repr(align(64))]
        struct Line;
        Self::new(NonNull::<Line>::dangling().cast(), 0, false, Storage::Empty)
    }

    /// Memory of somebody else, such as a numpy array. `owner` is dropped with the last handle, on whatever thread; a
    /// panic in its drop is told on standard error and ends there.
    ///
    /// # Safety
    /// `len_bytes` bytes from `start` must be initialised, readable and, unless `read_only`, writable until `owner` is
    /// dropped. Nobody may write them behind sheave's back while a lease or [`View`] of this buffer exists, unless the
    /// buffer is marked with [`share`](Self::share) before anything else is done with it.
    #[must_use]
    pub unsafe fn foreign(start: NonNull<u8>, len_bytes: usize, read_only: bool, owner: Box<dyn Send + Sync>) -> Self {
        Self::new(start, len_bytes, read_only, Storage::Foreign(Kept::new("the owner of foreign memory", owner)))
    }

    /// A block that a peer lent us in its segment. When the last handle is dropped, `lender` gets the loan back.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] when the range is not inside the segment or not aligned to 64 bytes. The loan is not
    /// taken then: `give_back` is not called.
    pub fn lent(
        segment: Arc<Segment>,
        offset_bytes: u64,
        len_bytes: u64,
        loan: u64,
        lender: Arc<dyn Lender>,
    ) -> Result<Self> {
        let end_bytes = offset_bytes.checked_add(len_bytes).filter(|&end| end <= segment.len_bytes());
        if end_bytes.is_none() || !offset_bytes.is_multiple_of(ALIGN_BYTES as u64) {
            let what = format!("loan {loan}: {len_bytes} bytes at {offset_bytes} are not a block of {segment:?}");
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        // SAFETY: the offset is within the mapping, as checked above.
        let start = unsafe { segment.start().add(offset_bytes as usize) };
        let block = LentBlock { segment, offset_bytes, loan, lender: Some(lender) };
        Ok(Self::new(start, len_bytes as usize, false, Storage::Lent(block)))
    }

    pub(crate) fn from_arena(block: ArenaBlock, len_bytes: usize) -> Self {
        // SAFETY: the arena cuts blocks from inside the segment's mapping.
        let start = unsafe { block.segment.start().add(block.returned.offset_bytes as usize) };
        Self::new(start, len_bytes, false, Storage::Arena(block))
    }

    /// First byte. Who dereferences it must hold a lease, or know by other means that nobody interferes.
    #[must_use]
    pub fn ptr(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    /// Length.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.0.len_bytes
    }

    /// How many handles exist, leases included. Exact only while no other thread clones or drops one.
    #[must_use]
    pub fn handles(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Whether this is the only handle, so that nobody can make another one meanwhile.
    #[must_use]
    pub fn is_unique(&self) -> bool {
        self.handles() == 1
    }

    /// Whether two handles are of the same buffer.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether somebody else may write this memory because it was shared explicitly.
    #[must_use]
    pub fn is_shared_alias(&self) -> bool {
        self.0.usage.lock().is_shared()
    }

    /// Whether nobody may write it.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.0.read_only
    }

    /// Marks the memory as shared with somebody who may write it at any time, for ever: no safe slice of it exists from
    /// now on. Both sides of a [`Mode::Share`](crate::Mode) do so.
    ///
    /// # Errors
    /// [`ErrorKind::BufferInUse`] while a lease or view exists and it is not yet shared.
    pub fn share(&self) -> Result<()> {
        self.0.usage.lock().share()
    }

    /// Ends all use of the memory through this buffer, whoever has a handle to it: from now on every lease and slice is
    /// refused and says `why`. For views of memory that goes on to hold something else.
    ///
    /// # Errors
    /// [`ErrorKind::BufferInUse`] while a lease or view exists; nothing has changed then.
    pub fn expire(&self, why: &'static str) -> Result<()> {
        self.0.usage.lock().expire(why)
    }

    /// Refuses what has [expired](Self::expire).
    ///
    /// # Errors
    /// [`ErrorKind::BufferInUse`] that says why.
    pub fn require_current(&self) -> Result<()> {
        self.0.usage.lock().require_current()
    }

    /// Begins an operation that reads; `operation` is what others are told while it lasts. Does not block.
    ///
    /// # Errors
    /// [`ErrorKind::BufferInUse`] while a writer holds it.
    pub fn read_lease(&self, operation: &'static str) -> Result<ReadLease> {
        ReadLease::new(self.clone(), operation)
    }

    /// Begins an operation that writes; `operation` is what others are told while it lasts. Does not block.
    ///
    /// # Errors
    /// [`ErrorKind::BufferInUse`] while anybody reads or writes it, [`ErrorKind::InvalidArgument`] when it is
    /// read-only.
    pub fn write_lease(&self, operation: &'static str) -> Result<WriteLease> {
        WriteLease::new(self.clone(), operation)
    }

    /// The bytes, safely, for as long as the view is held.
    ///
    /// # Errors
    /// [`ErrorKind::BufferInUse`] while a writer holds it, [`ErrorKind::Unsupported`] when it is a shared alias.
    pub fn bytes(&self) -> Result<View<'_, u8>> {
        View::new(self)
    }

    /// The bytes to write, through the only handle.
    ///
    /// # Errors
    /// [`ErrorKind::BufferInUse`] when other handles exist, [`ErrorKind::Unsupported`] when it is a shared alias,
    /// [`ErrorKind::InvalidArgument`] when it is read-only.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        self.require_writable()?;
        {
            let usage = self.0.usage.lock();
            usage.require_current()?;
            usage.require_unshared()?;
            usage.require_idle("write")?;
        }
        let handles = self.handles();
        // `get_mut` also orders us after everything that the handles dropped last have done with the memory.
        let Some(inner) = Arc::get_mut(&mut self.0) else {
            let what = format!("the buffer has {handles} handles and only the single one may write");
            return Err(Error::new(ErrorKind::BufferInUse, what).hint("drop the other handles, or copy the tensor"));
        };
        // SAFETY: the only handle is borrowed exclusively, and leases own handles, so no other slice or operation
        // exists; the memory is initialised, writable and not shared.
        Ok(unsafe { std::slice::from_raw_parts_mut(inner.start.as_ptr(), inner.len_bytes) })
    }

    /// Where it lies in shared memory, when it does: a block of our own arena or one that a peer lent us.
    #[must_use]
    pub fn location(&self) -> Option<Location> {
        let (segment, offset_bytes) = match &self.0.storage {
            Storage::Arena(block) => (&block.segment, block.returned.offset_bytes),
            Storage::Lent(block) => (&block.segment, block.offset_bytes),
            _ => return None,
        };
        Some(Location { segment: Arc::clone(segment), offset_bytes, length_bytes: self.len_bytes() as u64 })
    }

    /// Consumes the only handle of a block lent over that link, so that it goes home by move: the loan's number is
    /// returned and `give_back` is not called.
    ///
    /// # Errors
    /// The buffer itself, unchanged, when it was not lent by that link, has other handles, or is a shared alias.
    pub fn into_loan(self, lender_token: usize) -> Result<u64, Self> {
        let lent_there = match &self.0.storage {
            Storage::Lent(block) => block.lender.as_ref().is_some_and(|lender| lender.token() == lender_token),
            _ => false,
        };
        if !lent_there || self.is_shared_alias() {
            return Err(self);
        }
        let mut inner = Arc::try_unwrap(self.0).map_err(Self)?;
        let Storage::Lent(block) = &mut inner.storage else { unreachable!("checked above, and storage never changes") };
        block.lender = None;
        Ok(block.loan)
    }

    /// The list onto which this buffer's block will return: the identity of its arena.
    pub(crate) fn returns(&self) -> Option<&Arc<SegQueue<ReturnedBlock>>> {
        match &self.0.storage {
            Storage::Arena(block) => Some(&block.returns),
            _ => None,
        }
    }

    pub(crate) fn usage(&self) -> &Mutex<Usage> {
        &self.0.usage
    }

    pub(crate) fn require_writable(&self) -> Result<()> {
        if !self.0.read_only {
            return Ok(());
        }
        Err(Error::new(ErrorKind::InvalidArgument, "the buffer is read-only")
            .hint("copy the tensor and write the copy"))
    }

    /// # Safety
    /// Nobody may write the memory while the slice lives.
    pub(crate) unsafe fn slice<'a>(&self) -> &'a [u8] {
        // SAFETY: memory of a buffer is initialised and lives as long as its handles; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.ptr(), self.len_bytes()) }
    }

    /// # Safety
    /// The buffer must be writable, and nobody else may read or write it while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "exclusive by the caller's promise")]
    pub(crate) unsafe fn slice_mut(&self) -> &mut [u8] {
        // SAFETY: as in `slice`.
        unsafe { std::slice::from_raw_parts_mut(self.ptr(), self.len_bytes()) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0.storage {
            Storage::Empty | Storage::Heap(_) | Storage::Mapped(_) => "private",
            Storage::Arena(_) => "arena",
            Storage::Lent(_) => "lent",
            Storage::Foreign(_) => "foreign",
        };
        write!(f, "Buffer({kind}, {} bytes, {} handles)", self.len_bytes(), self.handles())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn private_memory_is_zeroed_and_aligned() {
        for len_bytes in [0, 1, 63, 4096, MAPPED_BYTES_MIN + 1] {
            let buffer = Buffer::private(len_bytes).unwrap();
            assert_eq!((buffer.len_bytes(), buffer.ptr() as usize % ALIGN_BYTES), (len_bytes, 0));
            assert!(buffer.bytes().unwrap().iter().all(|&byte| byte == 0));
            assert!(buffer.location().is_none());
        }
    }

    #[test]
    fn impossible_lengths_are_errors() {
        for len_bytes in [usize::MAX, isize::MAX as usize, 1 << 60] {
            let error = Buffer::private(len_bytes).unwrap_err();
            assert!(error.kind() == ErrorKind::LimitExceeded && !error.is_shortage(), "{error}");
        }
    }

    #[test]
    fn only_the_single_handle_writes() {
        let mut buffer = Buffer::private(8).unwrap();
        let other = buffer.clone();
        assert_eq!(buffer.bytes_mut().unwrap_err().kind(), ErrorKind::BufferInUse);
        drop(other);
        buffer.bytes_mut().unwrap().fill(7);
        assert_eq!(buffer.bytes().unwrap()[..], [7; 8]);
    }

    #[test]
    fn a_foreign_owner_is_dropped_with_the_last_handle() {
        struct Owner(Vec<u8>, Arc<AtomicUsize>);
        impl Drop for Owner {
            fn drop(&mut self) {
                self.1.fetch_add(self.0.len(), Ordering::SeqCst);
            }
        }
        let drops = Arc::new(AtomicUsize::new(0));
        let mut owner = Box::new(Owner(vec![5; 10], Arc::clone(&drops)));
        let start = NonNull::new(owner.0.as_mut_ptr()).unwrap();
        // SAFETY: the vector's ten bytes live in the owner, and nobody touches them otherwise.
        let mut buffer = unsafe { Buffer::foreign(start, 10, true, owner) };
        assert_eq!(buffer.bytes().unwrap()[..], [5; 10]);
        assert_eq!(buffer.write_lease("recv").unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(buffer.bytes_mut().unwrap_err().kind(), ErrorKind::InvalidArgument);
        let clone = buffer.clone();
        drop(buffer);
        assert_eq!(drops.load(Ordering::SeqCst), 0);
        std::thread::spawn(move || drop(clone)).join().unwrap();
        assert_eq!(drops.load(Ordering::SeqCst), 10);
    }

    #[test]
    fn f53_a_panic_of_a_foreign_owner_ends_with_its_drop() {
        struct Touchy([u8; 10]);
        impl Drop for Touchy {
            fn drop(&mut self) {
                panic!("an owner of a test is dropped");
            }
        }
        let mut owner = Box::new(Touchy([5; 10]));
        let start = NonNull::new(owner.0.as_mut_ptr()).unwrap();
        // SAFETY: the ten bytes live in the owner, and nobody touches them otherwise.
        drop(unsafe { Buffer::foreign(start, 10, true, owner) });
    }
}
