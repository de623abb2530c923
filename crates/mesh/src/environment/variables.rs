//! Single variables of other launchers: text, numbers, and the errors about them.

use std::ffi::OsString;

use sheave_base::config::{Endpoint, refusal};
use sheave_base::{Error, ErrorKind, Result, limits};

use super::Launcher;

/// The highest number of anything that a job counts.
pub(super) const COUNT_MAX: u32 = limits::LINKS_MAX as u32;

/// An environment, as the one who asks passes it in.
pub(super) struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<OsString>,
}

impl<'a> Variables<'a> {
    pub(super) fn new(lookup: &'a dyn Fn(&str) -> Option<OsString>) -> Self {
        Self { lookup }
    }

    fn raw(&self, name: &str) -> Option<OsString> {
        (self.lookup)(name).filter(|value| !value.is_empty())
    }

    /// Whether it is set to anything, allowed or not.
    pub(super) fn has(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }

    /// The value without the blanks around it.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>> {
        let Some(value) = self.raw(name) else { return Ok(None) };
        match value.to_str() {
            Some(text) if text.trim().is_empty() => Ok(None),
            Some(text) => Ok(Some(text.trim().to_owned())),
            None => Err(refusal(name, &value.to_string_lossy(), "text in UTF-8")),
        }
    }

    /// What `read` makes of the value; `allowed` says what that is.
    pub(super) fn read<T>(&self, name: &str, allowed: &str, read: impl Fn(&str) -> Option<T>) -> Result<Option<T>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        read(&text).map(Some).ok_or_else(|| refusal(name, &text, allowed))
    }

    /// A whole number between two others, both included.
    pub(super) fn number(&self, name: &str, least: u32, most: u32) -> Result<Option<u32>> {
        let allowed = format!("a whole number from {least} to {most}");
        self.read(name, &allowed, |text| text.parse().ok().filter(|number| (least..=most).contains(number)))
    }

    /// How many there are of something that a job counts.
    pub(super) fn count(&self, name: &str) -> Result<Option<u32>> {
        self.number(name, 1, COUNT_MAX)
    }

    /// Which of them a process is.
    pub(super) fn index(&self, name: &str) -> Result<Option<u32>> {
        self.number(name, 0, COUNT_MAX - 1)
    }

    pub(super) fn host(&self, name: &str) -> Result<Option<String>> {
        self.read(name, "a host name or an IP address", |text| {
            let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
            Endpoint::is_host(bare).then(|| bare.to_owned())
        })
    }

    pub(super) fn port(&self, name: &str) -> Result<Option<u16>> {
        self.read(name, "a port from 1 to 65535", |text| text.parse().ok().filter(|port| *port != 0))
    }
}

/// The value of a variable that `launcher` always sets.
pub(super) fn needed<T>(value: Option<T>, name: &str, launcher: Launcher) -> Result<T> {
    value.ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument, format!("{name} is not set"))
            .hint(format!("other variables of {launcher} are there and this one belongs to them: set it, or none"))
    })
}
