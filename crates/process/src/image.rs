//! Everything that `execve` needs, laid out by the supervisor, which may allocate, for the guard, which may not.
//!
//! The image is a memory file of machine words and strings: `[arguments, variables, program, directory]`, the table of
//! arguments with its closing zero, the table of variables with its closing zero, then the strings. Tables and the two
//! single entries hold byte offsets (0: none); the guard maps the file privately and turns offsets into pointers in
//! place. The supervisor never writes after sending.

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::{CStr, CString, c_char};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

const HEADER_WORDS: usize = 4;
const WORD_BYTES: usize = size_of::<usize>();

/// Lays out an image and returns the memory file.
pub(crate) fn write(
    program: &CStr,
    arguments: &[CString],
    variables: &[CString],
    directory: Option<&CStr>,
) -> std::io::Result<OwnedFd> {
    let table_words = arguments.len() + 1 + variables.len() + 1;
    let strings_at = (HEADER_WORDS + table_words) * WORD_BYTES;
    let mut strings = Vec::new();
    let mut place = |string: &CStr| {
        let offset = strings_at + strings.len();
        strings.extend_from_slice(string.to_bytes_with_nul());
        offset
    };
    let mut words = vec![arguments.len(), variables.len(), place(program), directory.map_or(0, &mut place)];
    words.extend(arguments.iter().map(|argument| place(argument)));
    words.push(0);
    words.extend(variables.iter().map(|variable| place(variable)));
    words.push(0);
    let file = rustix::fs::memfd_create(c"sheave-exec", MemfdFlags::CLOEXEC)?;
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.append(&mut strings);
    let mut file = std::fs::File::from(file);
    file.write_all(&bytes)?;
    Ok(file.into())
}

/// An image in the guard's memory, with pointers in the place of offsets; unmapped when dropped.
pub(crate) struct Image {
    words: *mut usize,
    length_bytes: usize,
    arguments: usize,
}

impl Image {
    /// Maps the memory file `file`. Allocates nothing.
    pub(crate) fn map(file: impl AsFd) -> Result<Self, Errno> {
        let length_bytes = usize::try_from(rustix::fs::fstat(&file)?.st_size).map_err(|_| Errno::INVAL)?;
        if length_bytes < (HEADER_WORDS + 2) * WORD_BYTES {
            return Err(Errno::INVAL);
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice touches no memory that is in use.
        let words = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), length_bytes, protection, MapFlags::PRIVATE, &file, 0)?.cast()
        };
        let mut image = Self { words, length_bytes, arguments: 0 };
        image.relocate()?;
        Ok(image)
    }

    fn relocate(&mut self) -> Result<(), Errno> {
        // SAFETY: the mapping holds this many aligned words, any bits are valid ones, and nobody else knows of it.
        let words = unsafe { std::slice::from_raw_parts_mut(self.words, self.length_bytes / WORD_BYTES) };
        let (Some(&arguments), Some(&variables)) = (words.first(), words.get(1)) else { return Err(Errno::INVAL) };
        let table_words = arguments.checked_add(variables).and_then(|sum| sum.checked_add(4)).ok_or(Errno::INVAL)?;
        let entries = words.get_mut(2..).and_then(|rest| rest.get_mut(..table_words)).ok_or(Errno::INVAL)?;
        for entry in entries {
            match *entry {
                0 => {}
                offset if offset < self.length_bytes => *entry = self.words as usize + offset,
                _ => return Err(Errno::INVAL),
            }
        }
        self.arguments = arguments;
        Ok(())
    }

    fn entry(&self, index: usize) -> *const usize {
        // SAFETY: `relocate` has found that header and tables lie inside the mapping; callers ask for nothing else.
        unsafe { self.words.add(index) }
    }

    /// The program's path.
    pub(crate) fn program(&self) -> *const c_char {
        // SAFETY: see `entry`; the header is always there.
        unsafe { *self.entry(2) as *const c_char }
    }

    /// The working directory, or null.
    pub(crate) fn directory(&self) -> *const c_char {
        // SAFETY: as above.
        unsafe { *self.entry(3) as *const c_char }
    }

    /// The arguments, closed by a null pointer.
    pub(crate) fn arguments(&self) -> *const *const c_char {
        self.entry(HEADER_WORDS).cast()
    }

    /// The variables, closed by a null pointer.
    pub(crate) fn variables(&self) -> *const *const c_char {
        self.entry(HEADER_WORDS + self.arguments + 1).cast()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and the pointers into it do not outlive this value.
        let _ = unsafe { rustix::mm::munmap(self.words.cast(), self.length_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(mut table: *const *const c_char) -> Vec<String> {
        let mut found = Vec::new();
        // SAFETY: the tables of a mapped image hold valid strings and end with a null pointer.
        unsafe {
            while !(*table).is_null() {
                found.push(CStr::from_ptr(*table).to_str().unwrap().to_owned());
                table = table.add(1);
            }
        }
        found
    }

    #[test]
    fn an_image_reads_back_as_it_was_written() {
        let arguments = [c"tool".to_owned(), c"".to_owned(), c"-x".to_owned()];
        let variables = [c"A=1".to_owned(), c"B=".to_owned()];
        let image = Image::map(write(c"/bin/tool", &arguments, &variables, Some(c"/tmp")).unwrap()).unwrap();
        assert_eq!(list(image.arguments()), ["tool", "", "-x"]);
        assert_eq!(list(image.variables()), ["A=1", "B="]);
        // SAFETY: both point at strings inside the living image.
        unsafe {
            assert_eq!(CStr::from_ptr(image.program()), c"/bin/tool");
            assert_eq!(CStr::from_ptr(image.directory()), c"/tmp");
        }
        let bare = Image::map(write(c"/bin/tool", &[], &[], None).unwrap()).unwrap();
        assert!(bare.directory().is_null() && list(bare.variables()).is_empty());
    }

    #[test]
    fn garbage_is_refused() {
        for words in [vec![], vec![1_usize; 3], vec![usize::MAX; 8], vec![0, 0, 1 << 40, 0, 0, 0], vec![9; 8]] {
            let file = rustix::fs::memfd_create(c"garbage", MemfdFlags::CLOEXEC).unwrap();
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            rustix::io::write(&file, &bytes).unwrap();
            assert!(matches!(Image::map(file), Err(Errno::INVAL)));
        }
    }
}
