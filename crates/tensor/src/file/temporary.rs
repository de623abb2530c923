//! The one way in which a file comes to be or changes: as another one beside it, which takes its name at the end.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sheave_base::{Error, ErrorKind, Result};

/// Bytes of the target's name that the temporary name repeats, so that a short name stays a name.
const REPEATED_BYTES: usize = 200;

/// Names that are tried: a second one only if somebody has drawn the same 64 bits.
const ATTEMPTS: usize = 8;

/// A file that vanishes unless it gets its final name.
pub(super) struct Temporary {
    pub(super) file: File,
    path: PathBuf,
    named: bool,
}

impl Temporary {
    /// Makes a file in the folder of `path`. Its name cannot be foretold, and it is a new file: where somebody has put
    /// a link or another file, nothing is opened.
    pub(super) fn beside(path: &Path) -> Result<Self> {
        let Some(name) = path.file_name() else {
            return Err(Error::new(ErrorKind::InvalidArgument, "the path names no file"));
        };
        let repeated = &name.as_bytes()[..name.len().min(REPEATED_BYTES)];
        let mut attempt = 0;
        loop {
            let mut hidden = std::ffi::OsString::from(".");
            hidden.push(OsStr::from_bytes(repeated));
            hidden.push(format!(".{:016x}.tmp", random()?));
            let path = path.with_file_name(hidden);
            let mut options = File::options();
            // `create_new` is O_EXCL, which follows no link either; the flag says so where that is not honoured.
            let made = options.write(true).create_new(true).custom_flags(libc::O_NOFOLLOW).open(&path);
            match made {
                Ok(file) => return Ok(Self { file, path, named: false }),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes the name `path` once the disk has the bytes.
    pub(super) fn finish(mut self, path: &Path) -> Result<()> {
        self.file.sync_all()?;
        std::fs::rename(&self.path, path)?;
        self.named = true;
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        // The new name itself is on disk only when the folder is.
        File::open(folder)?.sync_all()?;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.named {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn random() -> Result<u64> {
    let mut bytes = [0_u8; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        let drawn = rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty());
        match drawn {
            Ok(drawn) => filled += drawn,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
    }
    Ok(u64::from_le_bytes(bytes))
}
