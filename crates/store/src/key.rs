//! Keys, and their one identity on every node.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use sheave_base::{Error, ErrorKind, Result};
use std::fmt;

/// What a tensor is stored under: a whole number, or a text of at most 1,024 bytes. The two never name the same tensor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Key {
    /// A number, negative ones too.
    Int(i64),
    /// A text.
    Str(String),
}

/// Longest text of a key, as UTF-8: every message about keys has a bound.
const KEY_BYTES_MAX: usize = 1024;

/// Characters of a key that an error shows.
const SHOWN_CHARS_MAX: usize = 80;

impl Key {
    /// Refuses a text that is too long.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Str(text) if text.len() > KEY_BYTES_MAX => {
                let what = format!("the key {self} has {} bytes; the limit is {KEY_BYTES_MAX}", text.len());
                Err(Error::new(ErrorKind::InvalidArgument, what).operation("init"))
            }
            _ => Ok(()),
        }
    }

    /// The key's number on the wire: a hash over the key alone, so that all nodes agree on it without asking, whatever
    /// they initialised first. Servers hold every number against the key that it was made from.
    #[must_use]
    pub(crate) fn number(&self) -> u64 {
        let mut hasher = Sha256::new();
        match self {
            Self::Int(number) => {
                hasher.update([0]);
                hasher.update(number.to_le_bytes());
            }
            Self::Str(text) => {
                hasher.update([1]);
                hasher.update(text);
            }
        }
        hasher.finalize().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(number) => write!(f, "{number}"),
            Self::Str(text) => {
                let more = if text.chars().nth(SHOWN_CHARS_MAX).is_some() { "…" } else { "" };
                let shown: String = text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
                write!(f, "\"{shown}{more}\"")
            }
        }
    }
}

impl From<i64> for Key {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<i32> for Key {
    fn from(number: i32) -> Self {
        Self::Int(number.into())
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self::Str(text.to_owned())
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self::Str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_never_meet() {
        assert_ne!(Key::from(3).number(), Key::from("3").number());
        assert_ne!(Key::from(3).number(), Key::from(-3).number());
        assert_eq!(Key::from("w").number(), Key::from(String::from("w")).number());
        let many: std::collections::HashSet<u64> = (-50_000..50_000i64).map(|key| Key::from(key).number()).collect();
        assert_eq!(many.len(), 100_000);
    }
}
