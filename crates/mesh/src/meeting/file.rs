//! A meeting in a file: written aside and renamed, so that whoever reads it reads all of it.

use super::{Meet, RECORD_BYTES_MAX};
use sheave_base::{Error, Result, random};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Pause between two looks at the file.
const PAUSE: Duration = Duration::from_millis(20);

/// A file in a folder that all processes of a job see. It holds the record of one meeting, whatever the key.
#[derive(Debug)]
pub(crate) struct FileMeet {
    path: PathBuf,
}

impl FileMeet {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// A name beside the file that nobody else takes.
    fn aside(&self) -> Result<PathBuf> {
        let mut nonce = [0; 8];
        random::fill("a name for a file", &mut nonce)?;
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let nonce = u64::from_le_bytes(nonce);
        Ok(self.path.with_file_name(format!(".{name}.{nonce:016x}")))
    }

    fn failed(&self, error: std::io::Error) -> Error {
        let folder = self.path.parent().unwrap_or(Path::new("/")).display().to_string();
        Error::from(error).hint(format!("name a file in a folder that all processes can read and write, not {folder}"))
    }

    fn read(&self) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        // One byte more than a record can have tells a longer file apart.
        File::open(&self.path)?.take(RECORD_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl Meet for FileMeet {
    fn name(&self) -> String {
        format!("file://{}", self.path.display())
    }

    fn set(&self, _key: &str, value: &[u8]) -> Result<()> {
        let aside = self.aside()?;
        let write = || {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&aside)?;
            file.write_all(value)?;
            file.sync_all()?;
            fs::rename(&aside, &self.path)
        };
        write().map_err(|error| {
            // It may not be there.
            let _ = fs::remove_file(&aside);
            self.failed(error)
        })
    }

    fn get(&self, _key: &str, timeout: Duration) -> Result<Option<Vec<u8>>> {
        match self.read() {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                sheave_base::thread::sleep(timeout.min(PAUSE));
                Ok(None)
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    fn remove(&self, _key: &str, value: &[u8]) -> Result<()> {
        // That of another job, which began meanwhile, stays.
        if self.read().is_ok_and(|bytes| bytes == value) {
            fs::remove_file(&self.path).map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    /// Not in a file: who may read it is not known here, and a file with a secret is `SHEAVE_SECRET_FILE`.
    fn takes_secrets(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_base::ErrorKind;

    #[test]
    fn what_is_set_is_got_until_it_is_removed_and_nothing_is_left_aside() {
        let folder = std::env::temp_dir().join(format!("sheave-meeting-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let store = FileMeet::new(folder.join("job"));
        assert_eq!(store.get("root", Duration::ZERO).unwrap(), None);
        store.set("root", b"one").unwrap();
        store.set("root", b"other").unwrap();
        assert_eq!(store.get("root", Duration::ZERO).unwrap().as_deref(), Some(&b"other"[..]));
        store.remove("root", b"one").unwrap();
        assert!(store.get("root", Duration::ZERO).unwrap().is_some(), "it is another job's");
        store.remove("root", b"other").unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        fs::remove_dir(&folder).unwrap();
        let error = store.set("root", b"one").unwrap_err();
        assert!(error.kind() == ErrorKind::NotFound || error.kind() == ErrorKind::Io, "{error}");
        assert!(error.advice().unwrap().contains("folder"), "{error}");
    }
}
