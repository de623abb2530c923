//! Notes of the processes of a job about the peers that they have lost, for whoever has started them.
//!
//! When one process of a job fails, most of the others fail for it, and which end is seen first is chance. So a process
//! that is part of a job notes the loss of a peer before its operations fail for it, at the path that
//! [`LOSSES_VARIABLE`](crate::config::LOSSES_VARIABLE) names: a pipe of the launcher. A note is shorter than what a
//! pipe takes in one piece, so that notes of many processes never mix; where there is no room it is dropped.

use crate::limits::HANDSHAKE_TEXT_BYTES_MAX;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// One process has lost another one, both by their names in the mesh.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Loss {
    /// Who lost.
    pub by: String,
    /// Whom.
    pub of: String,
    /// Whether the lost one has left in order.
    pub is_left: bool,
}

impl Loss {
    /// The longest note, its end included; less than the 4,096 bytes that a pipe takes in one piece.
    pub const BYTES_MAX: usize = 2 * HANDSHAKE_TEXT_BYTES_MAX + 16;

    /// Writes this note to the pipe at `path`. Never blocks; what hinders it is no reason for the process to fail, so
    /// there is no error.
    ///
    /// ```
    /// let loss = sheave_base::loss::Loss { by: "rank-0".into(), of: "rank-1".into(), is_left: false };
    /// loss.note("/nowhere".as_ref());
    /// ```
    pub fn note(&self, path: &Path) {
        let verb = if self.is_left { "left" } else { "lost" };
        let line = format!("{verb}\t{}\t{}\n", self.by, self.of);
        if line.len() > Self::BYTES_MAX || [&self.by, &self.of].iter().any(|name| name.contains(['\t', '\n'])) {
            return;
        }
        let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
        let Ok(mut pipe) = OpenOptions::new().write(true).custom_flags(flags).open(path) else { return };
        // The number of a launcher that has ended may be somebody else's by now.
        if pipe.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo()) {
            let _ = pipe.write_all(line.as_bytes());
        }
    }

    /// Reads one note without its line end; `None` if it is none.
    ///
    /// ```
    /// use sheave_base::loss::Loss;
    ///
    /// let loss = Loss::read(b"left\trank-0\trank-1").unwrap();
    /// assert_eq!((loss.by.as_str(), loss.of.as_str(), loss.is_left), ("rank-0", "rank-1", true));
    /// assert_eq!(Loss::read(b"left"), None);
    /// ```
    #[must_use]
    pub fn read(line: &[u8]) -> Option<Self> {
        let mut fields = std::str::from_utf8(line).ok()?.split('\t');
        let is_left = match fields.next()? {
            "left" => true,
            "lost" => false,
            _ => return None,
        };
        let (by, of) = (fields.next()?.to_owned(), fields.next()?.to_owned());
        fields.next().is_none().then_some(Self { by, of, is_left })
    }
}
