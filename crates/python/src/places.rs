//! What a mesh is joined with: arguments over environment.

use pyo3::prelude::*;
use sheave_base::config::Settings;
use sheave_base::secret::{Resolved, Secret};
use sheave_base::{Error, ErrorKind, Result, limits, port};
use sheave_mesh::{Config, Meeting};
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

/// A secret as Python gives it.
#[derive(FromPyObject)]
pub(crate) enum Secrecy {
    #[pyo3(transparent)]
    Text(String),
    #[pyo3(transparent)]
    Bytes(Vec<u8>),
}

impl Secrecy {
    pub(crate) fn secret(&self) -> Result<Secret> {
        Secret::new(match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        })
    }
}

/// What a program says about its place, each as the variable that means the same.
#[derive(Default)]
pub(crate) struct Place {
    said: Vec<(&'static str, OsString)>,
    host: Option<String>,
    secret: Option<Secrecy>,
    /// Where it learns where the job meets, if that is no address.
    meeting: Option<Meeting>,
}

impl Place {
    pub(crate) fn new(host: Option<String>, secret: Option<Secrecy>) -> Self {
        Self { said: Vec::new(), host, secret, meeting: None }
    }

    pub(crate) fn say(&mut self, name: &'static str, value: Option<impl ToString>) {
        self.said.extend(value.map(|value| (name, value.to_string().into())));
    }

    pub(crate) fn say_path(&mut self, name: &'static str, value: Option<PathBuf>) {
        self.said.extend(value.map(|value| (name, value.into_os_string())));
    }

    pub(crate) fn meet(&mut self, meeting: Meeting) {
        self.meeting = Some(meeting);
    }

    /// A span given in seconds.
    pub(crate) fn say_ms(&mut self, name: &'static str, what: &str, value_s: Option<f64>) -> Result<()> {
        let Some(value_s) = value_s else { return Ok(()) };
        let span = Duration::try_from_secs_f64(value_s).ok().filter(|span| span.as_millis() > 0);
        let span = span.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, format!("a {what} of {value_s} s")))?;
        self.say(name, Some(span.as_millis()));
        Ok(())
    }

    /// The time after which a silent member is dead; signs of life come five times as often at least.
    pub(crate) fn say_liveness(&mut self, timeout_s: Option<f64>) -> Result<()> {
        self.say_ms("SHEAVE_LIVENESS_TIMEOUT_MS", "liveness timeout", timeout_s)?;
        if let Some(timeout_s) = timeout_s {
            let beat_s = (timeout_s / 5.0).clamp(0.001, limits::LIVENESS_BEAT.as_secs_f64());
            self.say_ms("SHEAVE_LIVENESS_BEAT_MS", "liveness beat", Some(beat_s))?;
        }
        Ok(())
    }

    fn lookup(&self, name: &str) -> Option<OsString> {
        let said = self.said.iter().find(|said| said.0 == name).map(|said| said.1.clone());
        said.or_else(|| std::env::var_os(name))
    }

    fn said_root(&self) -> Option<OsString> {
        self.said.iter().find(|said| said.0 == "SHEAVE_ROOT").map(|said| said.1.clone())
    }

    /// What to join with. A program that nobody has launched, and that says nothing about others, is a job of its own.
    pub(crate) fn config(&self) -> Result<Config> {
        if let Some(meeting) = &self.meeting {
            return self.meeting_config(meeting.clone());
        }
        let size = self.lookup("SHEAVE_WORLD_SIZE");
        let is_said = self.said.iter().any(|said| said.0 == "SHEAVE_WORLD_SIZE");
        let root = if is_said { self.said_root() } else { self.lookup("SHEAVE_ROOT") };
        // One process needs no place to meet, wherever a job around it meets.
        let is_alone = size.is_some_and(|size| size == "1") && root.is_none();
        let config = if is_alone { None } else { Config::from_lookup(|name| self.lookup(name))? };
        let mut config = match config {
            Some(config) => config,
            None => self.alone()?,
        };
        self.finish(&mut config)?;
        Ok(config)
    }

    fn meeting_config(&self, meeting: Meeting) -> Result<Config> {
        if let Some(root) = self.said_root() {
            let what = format!("both meet= and root=\"{}\" say where the mesh meets", root.display());
            return Err(Error::new(ErrorKind::InvalidArgument, what).operation("join").hint("give one of them"));
        }
        let mut config = Config::meeting(|name| self.lookup(name), meeting)?;
        self.finish(&mut config)?;
        Ok(config)
    }

    /// Adds what no variable says.
    fn finish(&self, config: &mut Config) -> Result<()> {
        config.host = self.host.clone().or_else(|| config.host.take());
        if let Some(secret) = &self.secret {
            config.node.secret = Some(Resolved { secret: secret.secret()?, source: "an argument".into() });
        }
        Ok(())
    }

    fn alone(&self) -> Result<Config> {
        let port = port::free().map_err(|error| error.operation("finding a free port"))?;
        let root = format!("{}:{port}", Ipv4Addr::LOCALHOST);
        let job = [("SHEAVE_RANK", "0"), ("SHEAVE_WORLD_SIZE", "1"), ("SHEAVE_ROOT", &root)];
        let lookup = |name: &str| {
            let own = job.iter().find(|own| own.0 == name).map(|own| own.1.into());
            own.or_else(|| self.lookup(name))
        };
        Settings::from_lookup(lookup)?;
        let none = || Error::new(ErrorKind::Internal, "a job of one process was not understood");
        Config::from_lookup(lookup)?.ok_or_else(none)
    }
}
