//! Memory that a process shares with a child of its own: a few words, and some bytes that the child notes.
//!
//! It is a memory file, which the child has as its standard input. What is written there stays in whatever way the
//! child ends, and nobody has to read meanwhile. The file begins with a mark, by which the child knows it; the words
//! stand behind that, and then the notes.
//!
//! **Notes** have one writer, the child. Their length is a word of its own, which is written behind the bytes that it
//! counts. Who reads them while the child lives may find that it has begun anew meanwhile; once it has ended they are
//! what they were. They are copied out, and mean what their reader makes of them: a child may write anything.

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use sheave_base::{Error, ErrorKind, Result};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::Command;

const MARK: [u8; 8] = *b"sheave s";
const WORD_BYTES: usize = size_of::<AtomicU64>();

/// Behind the mark: the word that is free for both sides, and the length of the notes.
const WORD_AT_BYTES: usize = MARK.len();
const LENGTH_AT_BYTES: usize = WORD_AT_BYTES + WORD_BYTES;
const NOTES_AT_BYTES: usize = LENGTH_AT_BYTES + WORD_BYTES;
const BYTES: usize = 64 << 10;

/// Memory that this process shares with a child, which finds it by [`Slate::of_this_process`]; a handle, cheap to
/// clone.
///
/// ```
/// use sheave_process::{Command, Job, Slate};
/// use std::sync::atomic::Ordering::SeqCst;
/// use std::time::{Duration, Instant};
///
/// # fn main() -> sheave_base::Result<()> {
/// let slate = Slate::new()?;
/// let job = Job::start()?;
/// // The word is the second eight bytes of its standard input.
/// let write = "exec 3<&0; printf a | dd of=/proc/self/fd/3 bs=1 seek=8 conv=notrunc 2>/dev/null";
/// let program = Command::new("sh").args(["-c", write]);
/// let child = job.spawn(slate.hand(program)?)?;
/// child.wait(Some(Instant::now() + Duration::from_secs(20)))?;
/// assert_eq!(slate.word().load(SeqCst), u64::from(b'a'));
/// assert!(slate.note(b"seen") && slate.notes() == b"seen");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Slate {
    map: Arc<memmap2::MmapRaw>,
    file: Arc<OwnedFd>,
}

impl Slate {
    /// Bytes of the notes at most.
    pub const NOTES_BYTES_MAX: usize = BYTES - NOTES_AT_BYTES;

    /// Makes one, whose word is zero, without notes.
    ///
    /// # Errors
    ///
    /// `Io` if the system has no memory for it, `LimitExceeded` if this process has no descriptor left.
    pub fn new() -> Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("sheave-slate", flags)?);
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        file.set_len(BYTES as u64)?;
        file.write_all_at(&MARK, 0)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(file.into())
    }

    /// Has the process of this command find it.
    ///
    /// # Errors
    ///
    /// `LimitExceeded` if this process has no descriptor left.
    pub fn hand(&self, command: Command) -> Result<Command> {
        Ok(command.input(self.file.try_clone()?))
    }

    /// Takes the one that this process was given, which has nothing to read on its standard input then, nor has what it
    /// starts.
    ///
    /// # Errors
    ///
    /// `NotFound` if it was given none, or has taken it.
    pub fn of_this_process() -> Result<Self> {
        let file = File::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
        let mut mark = [0; MARK.len()];
        // Whose size could change would end this process at an access.
        let seals = rustix::fs::fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
        let is_ours = seals.contains(SealFlags::SHRINK | SealFlags::GROW)
            && file.metadata()?.len() == BYTES as u64
            && file.read_exact_at(&mut mark, 0).is_ok()
            && mark == MARK;
        if !is_ours {
            let error = Error::new(ErrorKind::NotFound, "this process was given no slate on its standard input");
            return Err(error.hint("it is to be started by the process that it works for"));
        }
        let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::stdio::dup2_stdin(&null)?;
        Self::map(file.into())
    }

    fn map(file: OwnedFd) -> Result<Self> {
        let map = memmap2::MmapOptions::new()
            .len(BYTES)
            .map_raw(&file)
            .map_err(|error| Error::from(error).context("mapping memory that processes share"))?;
        Ok(Self { map: Arc::new(map), file: Arc::new(file) })
    }

    /// The word that both sides may write.
    #[must_use]
    pub fn word(&self) -> &AtomicU64 {
        self.word_at(WORD_AT_BYTES)
    }

    fn word_at(&self, at_bytes: usize) -> &AtomicU64 {
        assert!(at_bytes.is_multiple_of(WORD_BYTES) && at_bytes + WORD_BYTES <= NOTES_AT_BYTES, "no word is there");
        // SAFETY: the mapping is `BYTES` long and page aligned, so the word is aligned and inside; the file is sealed
        // against shrinking, and mapped for as long as `self`. The other process changes it by atomic instructions or,
        // if it breaks the protocol, as plain bytes, which the atomic loads and stores of this side tolerate.
        unsafe { &*self.map.as_mut_ptr().add(at_bytes).cast::<AtomicU64>() }
    }

    /// Adds bytes to the notes; false if there is no room for them. One thread of the child's calls it at a time.
    #[must_use]
    pub fn note(&self, bytes: &[u8]) -> bool {
        let length = self.length();
        if bytes.len() > Self::NOTES_BYTES_MAX - length {
            return false;
        }
        // SAFETY: the bytes lie in the mapping, as was seen above, and behind those that were noted. This is their only
        // writer, and no reference to them exists: they are read by copying from the mapping.
        unsafe {
            let free = self.map.as_mut_ptr().add(NOTES_AT_BYTES + length);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), free, bytes.len());
        }
        self.word_at(LENGTH_AT_BYTES).store((length + bytes.len()) as u64, SeqCst);
        true
    }

    /// Forgets what was noted.
    pub fn clear(&self) {
        self.word_at(LENGTH_AT_BYTES).store(0, SeqCst);
    }

    /// A copy of what was noted.
    #[must_use]
    pub fn notes(&self) -> Vec<u8> {
        let mut copy = vec![0; self.length()];
        // SAFETY: the bytes lie in the mapping, for the length is no more than that of the notes. If their writer lives
        // it may change them meanwhile, as another process does: the copy is then of no use, and is plain bytes.
        unsafe {
            let noted = self.map.as_mut_ptr().add(NOTES_AT_BYTES).cast_const();
            std::ptr::copy_nonoverlapping(noted, copy.as_mut_ptr(), copy.len());
        }
        copy
    }

    /// The length of the notes, whatever the other side has written.
    fn length(&self) -> usize {
        let length = self.word_at(LENGTH_AT_BYTES).load(SeqCst);
        usize::try_from(length).unwrap_or(usize::MAX).min(Self::NOTES_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_have_a_bound_and_are_read_by_copy() {
        let slate = Slate::new().expect("memory");
        assert!(slate.note(b"one") && slate.note(b"") && slate.note(b"two"));
        assert_eq!(slate.notes(), b"onetwo");
        assert!(!slate.note(&vec![1; Slate::NOTES_BYTES_MAX - 5]), "there is no room");
        assert!(slate.note(&vec![1; Slate::NOTES_BYTES_MAX - 6]));
        slate.clear();
        assert!(slate.notes().is_empty() && slate.word().load(SeqCst) == 0);
        slate.word_at(LENGTH_AT_BYTES).store(u64::MAX, SeqCst);
        assert_eq!(slate.notes().len(), Slate::NOTES_BYTES_MAX, "whatever is written there");
    }
}
