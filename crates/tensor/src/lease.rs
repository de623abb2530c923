//! Who uses a buffer right now: many readers or one writer.
//!
//! An operation in flight owns a lease, and the lease owns a handle to the buffer, so neither the memory nor the flag
//! can go before the operation does. Safe slices ([`View`]) count as readers for as long as they are looked at. That
//! is the whole argument for their soundness: a safe `&[T]` exists only while no writer's lease can be granted, and a
//! safe `&mut [T]` only under a writer's lease or through the unique handle. Memory that others may write by an
//! explicit share ([`Mode::Share`](crate::Mode)) never yields a safe slice, and it cannot be marked so while anybody
//! looks at it.

use std::fmt;
use std::ops::Deref;

use sheave_base::{Error, ErrorKind, Result};

use crate::buffer::Buffer;

/// The in-use flag of one buffer.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    readers: u32,
    writing: bool,
    shared: bool,
    /// The operation that took a lease last.
    holder: &'static str,
    /// Why nobody may use it through this buffer any more.
    expired: Option<&'static str>,
}

impl Usage {
    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    pub(crate) fn begin_read(&mut self, operation: &'static str) -> Result<()> {
        self.require_current()?;
        if self.writing {
            return Err(self.refusal("written", operation));
        }
        self.readers += 1;
        self.holder = operation;
        Ok(())
    }

    pub(crate) fn begin_write(&mut self, operation: &'static str) -> Result<()> {
        self.require_current()?;
        if self.writing || self.readers > 0 {
            return Err(self.refusal(if self.writing { "written" } else { "read" }, operation));
        }
        self.writing = true;
        self.holder = operation;
        Ok(())
    }

    pub(crate) fn expire(&mut self, why: &'static str) -> Result<()> {
        self.require_idle("expire")?;
        self.expired.get_or_insert(why);
        Ok(())
    }

    pub(crate) fn require_current(&self) -> Result<()> {
        match self.expired {
            None => Ok(()),
            Some(why) => Err(Error::new(ErrorKind::BufferInUse, format!("the tensor has expired: {why}"))
                .hint("copy what is needed for longer")),
        }
    }

    pub(crate) fn share(&mut self) -> Result<()> {
        self.require_current()?;
        if !self.shared && (self.writing || self.readers > 0) {
            return Err(self.refusal(if self.writing { "written" } else { "read" }, "share"));
        }
        self.shared = true;
        Ok(())
    }

    pub(crate) fn require_unshared(&self) -> Result<()> {
        if !self.shared {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unsupported, "the buffer is shared with somebody who may write it at any time")
            .hint("copy the tensor and look at the copy"))
    }

    pub(crate) fn require_idle(&self, operation: &'static str) -> Result<()> {
        match (self.writing, self.readers) {
            (false, 0) => Ok(()),
            (writing, _) => Err(self.refusal(if writing { "written" } else { "read" }, operation)),
        }
    }

    fn refusal(&self, how: &str, operation: &'static str) -> Error {
        Error::new(ErrorKind::BufferInUse, format!("the buffer is being {how} by {}", self.holder))
            .operation(operation)
            .hint("wait for that operation's work first, or use another buffer")
    }
}

/// The right to read a buffer until dropped, from any thread. It holds the buffer alive.
pub struct ReadLease {
    buffer: Buffer,
}

impl ReadLease {
    pub(crate) fn new(buffer: Buffer, operation: &'static str) -> Result<Self> {
        buffer.usage().lock().begin_read(operation)?;
        Ok(Self { buffer })
    }

    /// The buffer it is for.
    #[must_use]
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// The bytes, safely.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the buffer is shared with somebody who may write it.
    pub fn bytes(&self) -> Result<&[u8]> {
        self.buffer.usage().lock().require_unshared()?;
        // SAFETY: the memory is initialised and alive with the handle; this reader keeps writers and sharing out (see
        // the module's documentation) while the slice, which borrows from the lease, exists.
        Ok(unsafe { self.buffer.slice() })
    }
}

impl Drop for ReadLease {
    fn drop(&mut self) {
        self.buffer.usage().lock().readers -= 1;
    }
}

/// The right to write a buffer until dropped, from any thread. It holds the buffer alive.
pub struct WriteLease {
    buffer: Buffer,
}

impl WriteLease {
    pub(crate) fn new(buffer: Buffer, operation: &'static str) -> Result<Self> {
        buffer.require_writable()?;
        buffer.usage().lock().begin_write(operation)?;
        Ok(Self { buffer })
    }

    /// The buffer it is for.
    #[must_use]
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// The bytes, safely.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the buffer is shared with somebody who may write it.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        self.buffer.usage().lock().require_unshared()?;
        // SAFETY: the memory is initialised, writable and alive with the handle; this writer keeps readers, other
        // writers and sharing out while the slice exists, and the slice borrows the lease exclusively.
        Ok(unsafe { self.buffer.slice_mut() })
    }
}

impl Drop for WriteLease {
    fn drop(&mut self) {
        self.buffer.usage().lock().writing = false;
    }
}

impl fmt::Debug for ReadLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadLease({:?})", self.buffer)
    }
}

impl fmt::Debug for WriteLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteLease({:?})", self.buffer)
    }
}

/// A safe slice of a buffer. While it exists no operation can begin to write there.
///
/// ```
/// use sheave_tensor::{Buffer, View};
/// use sheave_base::ErrorKind;
///
/// let buffer = Buffer::private(4)?;
/// let view: View<'_, u8> = buffer.bytes()?;
/// assert_eq!(view[..], [0; 4]);
/// assert_eq!(buffer.write_lease("recv").unwrap_err().kind(), ErrorKind::BufferInUse);
/// drop(view);
/// assert!(buffer.write_lease("recv").is_ok());
/// # Ok::<(), sheave_base::Error>(())
/// ```
pub struct View<'a, T> {
    buffer: &'a Buffer,
    values: &'a [T],
}

impl<'a> View<'a, u8> {
    pub(crate) fn new(buffer: &'a Buffer) -> Result<Self> {
        let mut usage = buffer.usage().lock();
        usage.require_unshared()?;
        usage.begin_read("a slice that is looked at")?;
        drop(usage);
        // SAFETY: as in `ReadLease::bytes`: the reader counted above keeps writers and sharing out until the view
        // drops.
        Ok(Self { buffer, values: unsafe { buffer.slice() } })
    }

    /// The same view of a part, as other elements; `None` when range, size or alignment do not fit.
    pub(crate) fn narrow<T: bytemuck::Pod>(self, range: std::ops::Range<usize>) -> Option<View<'a, T>> {
        let bytes = self.values.get(range)?;
        let values = if bytes.is_empty() { &[] } else { bytemuck::try_cast_slice(bytes).ok()? };
        let buffer = self.buffer;
        // The reader goes over to the new view.
        std::mem::forget(self);
        Some(View { buffer, values })
    }
}

impl<T> Drop for View<'_, T> {
    fn drop(&mut self) {
        self.buffer.usage().lock().readers -= 1;
    }
}

impl<T> Deref for View<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.values
    }
}

impl<T: fmt::Debug> fmt::Debug for View<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.values.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_readers_or_one_writer() {
        let buffer = Buffer::private(64).unwrap();
        let first = buffer.read_lease("send").unwrap();
        let second = buffer.read_lease("all_gather").unwrap();
        let error = buffer.write_lease("recv").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BufferInUse);
        assert!(error.to_string().contains("being read by all_gather"), "{error}");
        drop(first);
        assert!(buffer.write_lease("recv").is_err());
        drop(second);
        let writer = buffer.write_lease("recv").unwrap();
        let error = buffer.read_lease("send").unwrap_err();
        assert!(error.to_string().contains("being written by recv"), "{error}");
        assert!(buffer.bytes().is_err() && buffer.write_lease("recv").is_err());
        std::thread::spawn(move || drop(writer)).join().unwrap();
        assert!(buffer.bytes().is_ok());
    }

    #[test]
    fn an_expired_buffer_is_of_no_use_through_any_handle() {
        let mut buffer = Buffer::private(64).unwrap();
        let view = buffer.bytes().unwrap();
        assert_eq!(buffer.expire("somebody looks").unwrap_err().kind(), ErrorKind::BufferInUse);
        drop(view);
        let other = buffer.clone();
        buffer.expire("the next batch lies there").unwrap();
        for refused in [
            other.bytes().map(drop),
            other.read_lease("send").map(drop),
            other.write_lease("recv").map(drop),
            other.share(),
            other.require_current(),
        ] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BufferInUse);
            assert!(error.to_string().contains("the next batch lies there"), "{error}");
        }
        drop(other);
        assert_eq!(buffer.bytes_mut().unwrap_err().kind(), ErrorKind::BufferInUse);
    }

    #[test]
    fn a_lease_holds_the_memory() {
        let buffer = Buffer::private(64).unwrap();
        let mut lease = buffer.write_lease("recv").unwrap();
        drop(buffer);
        lease.bytes_mut().unwrap()[63] = 9;
        assert_eq!(lease.buffer().handles(), 1);
    }

    #[test]
    fn shared_memory_yields_no_safe_slice() {
        let mut buffer = Buffer::private(64).unwrap();
        let view = buffer.bytes().unwrap();
        assert_eq!(buffer.share().unwrap_err().kind(), ErrorKind::BufferInUse);
        drop(view);
        buffer.share().unwrap();
        assert!(buffer.is_shared_alias());
        assert_eq!(buffer.bytes().unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(buffer.bytes_mut().unwrap_err().kind(), ErrorKind::Unsupported);
        assert!(buffer.read_lease("send").unwrap().bytes().is_err());
        assert!(buffer.write_lease("recv").unwrap().bytes_mut().is_err());
        assert!(buffer.share().is_ok());
    }
}
