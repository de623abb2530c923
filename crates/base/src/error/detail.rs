//! Details that an error carries of user code that has failed, or of a process that has ended.

use super::{bounds, written};
use crate::limits;
use serde::{Deserialize, Serialize};
use std::fmt;

/// An exception of user code as far as it is known, on whichever node it was raised.
///
/// The exception itself is carried as opaque bytes, for a program of the same language that trusts who sent them:
/// nothing here opens a pickle.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserError {
    #[serde(deserialize_with = "written::name")]
    class: String,
    #[serde(deserialize_with = "written::long_text")]
    traceback: String,
    #[serde(deserialize_with = "written::pickled")]
    pickled: Option<Vec<u8>>,
    /// Length of a pickled exception that is not carried.
    left_out_bytes: u64,
}

impl UserError {
    /// An exception of this class, such as `ValueError` or `package.module.Class`. Of a long traceback the end is kept.
    #[must_use]
    pub fn new(class: impl Into<String>, traceback: impl Into<String>) -> Self {
        let mut class = class.into();
        bounds::shorten(&mut class, bounds::NAME);
        let traceback = bounds::end_of(traceback.into(), limits::ERROR_LONG_TEXT_BYTES_MAX);
        Self { class, traceback, pickled: None, left_out_bytes: 0 }
    }

    /// Adds the pickled exception. One that is longer than [`limits::ERROR_PICKLED_BYTES_MAX`] is not carried.
    #[must_use]
    pub fn with_pickled(mut self, pickled: Vec<u8>) -> Self {
        if pickled.len() > limits::ERROR_PICKLED_BYTES_MAX {
            (self.pickled, self.left_out_bytes) = (None, pickled.len() as u64);
        } else {
            (self.pickled, self.left_out_bytes) = (Some(pickled), 0);
        }
        self
    }

    /// Returns the class of the exception.
    #[must_use]
    pub fn class(&self) -> &str {
        &self.class
    }

    /// Returns the text of its traceback: several lines, or none at all.
    #[must_use]
    pub fn traceback(&self) -> &str {
        &self.traceback
    }

    /// Returns the pickled exception, if it was sent along and is not too long. It comes from another node, and
    /// whoever opens a pickle runs what its sender wants.
    #[must_use]
    pub fn pickled(&self) -> Option<&[u8]> {
        self.pickled.as_deref()
    }

    /// Returns how many bytes the pickled exception has, where it is too long to be carried.
    #[must_use]
    pub fn left_out_bytes(&self) -> u64 {
        self.left_out_bytes
    }
}

impl fmt::Debug for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserError").field("class", &self.class).finish_non_exhaustive()
    }
}

/// How a process ended that worked for somebody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessEnd {
    status: Option<i32>,
    #[serde(deserialize_with = "written::long_text")]
    last_lines: String,
}

impl ProcessEnd {
    /// An end with this status, if it is known: the exit code, or the number of the signal that ended the process,
    /// negated. `last_lines` are what the process said last on its standard error; of many the last are kept.
    #[must_use]
    pub fn new(status: Option<i32>, last_lines: impl Into<String>) -> Self {
        Self { status, last_lines: bounds::end_of(last_lines.into(), limits::ERROR_LONG_TEXT_BYTES_MAX) }
    }

    /// Returns the exit code, or the number of the signal that ended the process, negated.
    #[must_use]
    pub fn status(&self) -> Option<i32> {
        self.status
    }

    /// Returns what the process said last on its standard error: several lines, or none at all.
    #[must_use]
    pub fn last_lines(&self) -> &str {
        &self.last_lines
    }
}

/// The status as people write it.
impl fmt::Display for ProcessEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            None => f.write_str("unknown status"),
            Some(status) if status < 0 => write!(f, "signal {}", status.unsigned_abs()),
            Some(status) => write!(f, "exit code {status}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Detail {
    User(UserError),
    Process(ProcessEnd),
}

impl Detail {
    /// Returns the bytes that count towards the details of an error: those that are there in any case, such as the note
    /// of a text that is left out, do not.
    pub(super) fn counted_bytes(&self) -> usize {
        match self {
            Self::User(user) => {
                user.traceback.len().saturating_sub(bounds::NOTE) + user.pickled.as_ref().map_or(0, Vec::len)
            }
            Self::Process(end) => end.last_lines.len().saturating_sub(bounds::NOTE),
        }
    }

    /// The same with so many counted bytes at most: without the pickled exception, and with less text if need be.
    pub(super) fn within(&self, counted_bytes: usize) -> Self {
        let text_bytes = counted_bytes.saturating_add(bounds::NOTE);
        match self {
            Self::User(user) => {
                let left_out_bytes = user.pickled.as_ref().map_or(user.left_out_bytes, |pickled| pickled.len() as u64);
                let (class, traceback) = (user.class.clone(), bounds::end_of(user.traceback.clone(), text_bytes));
                Self::User(UserError { class, traceback, pickled: None, left_out_bytes })
            }
            Self::Process(end) => {
                let last_lines = bounds::end_of(end.last_lines.clone(), text_bytes);
                Self::Process(ProcessEnd { status: end.status, last_lines })
            }
        }
    }
}
