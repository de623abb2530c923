//! How this program is started once more: as the file that runs, unless it is a part of another program.

use std::ffi::OsString;
use std::sync::OnceLock;

static LINE: OnceLock<Vec<OsString>> = OnceLock::new();

/// Remembers the command line of a program that this one is a part of; empty if it is a program itself.
pub(crate) fn name(line: Vec<OsString>) {
    // A process has one; a second call can only repeat it.
    let _ = LINE.set(line);
}

/// The program and its first arguments; just `file` for a program of its own.
pub(crate) fn line(file: impl Into<OsString>) -> Vec<OsString> {
    match LINE.get() {
        Some(line) if !line.is_empty() => line.clone(),
        _ => vec![file.into()],
    }
}
