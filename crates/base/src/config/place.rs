//! Which place in a job this process has, as sheave's own variables say it.

use std::ffi::OsString;
use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::time::Duration;

use super::form::{
    Form, Host, Index, Meeting, Milliseconds, Name, Optional, Part, Processes, ProcessesOrAny, ProcessesOrNone,
};
use super::{Key, check, read, settings};
use crate::{Result, limits};

/// What a process is in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum Role {
    /// The one that the others meet at; it coordinates and holds no data.
    Scheduler,
    /// Holds a part of the keys.
    Server,
    /// Computes, and talks to the servers.
    Worker,
    /// One of equals, in a job without schedulers and servers.
    Rank,
}

impl Role {
    /// Every role, in the order in which mesh ranks are given out.
    pub const ALL: [Self; 4] = [Self::Scheduler, Self::Server, Self::Worker, Self::Rank];

    /// The role that has this name, in letters of either case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.to_string().eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheduler => "scheduler",
            Self::Server => "server",
            Self::Worker => "worker",
            Self::Rank => "rank",
        })
    }
}

/// A host and a port. The host may be a name: each process resolves it for itself, when it connects.
///
/// ```
/// use sheave_base::config::Endpoint;
///
/// let endpoint = Endpoint::parse("[::1]:7000").unwrap();
/// assert_eq!((endpoint.host.as_str(), endpoint.port), ("::1", 7000));
/// assert_eq!(endpoint.to_string(), "[::1]:7000");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// A host name or an IP address, without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl Endpoint {
    /// Reads `host:port`, where an IPv6 address stands in brackets. A port of 0 is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if bare.is_some() != host.contains(':') {
            return None;
        }
        let host = bare.unwrap_or(host);
        let port = port.parse().ok().filter(|port| *port != 0)?;
        Self::is_host(host).then(|| Self { host: host.to_owned(), port })
    }

    /// Whether `text` can be a host: an IP address without brackets, or a name of letters, digits, `-`, `_` and `.`.
    #[must_use]
    pub fn is_host(text: &str) -> bool {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_short = (1..=limits::HANDSHAKE_TEXT_BYTES_MAX).contains(&text.len());
        text.parse::<Ipv6Addr>().is_ok() || (is_short && text.bytes().all(is_name) && !text.starts_with(['-', '.']))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Where a job meets.
///
/// ```
/// use sheave_base::config::Root;
///
/// let root = Root::parse("file:///shared/job42").unwrap();
/// assert_eq!(root, Root::File("/shared/job42".into()));
/// assert_eq!(Root::parse("node1:7000").unwrap().to_string(), "node1:7000");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Root {
    /// An address that the scheduler, or rank 0, listens at.
    Endpoint(Endpoint),
    /// A file, in a folder that all processes see, in which that process writes where it listens.
    File(PathBuf),
}

impl Root {
    /// Reads `host:port`, as [`Endpoint::parse`] does, or `file://` and an absolute path.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix("file://") {
            Some(path) => Some(Self::File(PathBuf::from(path))).filter(Self::is_allowed),
            None => Endpoint::parse(text).map(Self::Endpoint),
        }
    }

    /// Whether processes can meet there: at a host and a port, or in a file with an absolute path.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        match self {
            Self::Endpoint(endpoint) => Endpoint::is_host(&endpoint.host) && endpoint.port != 0,
            Self::File(path) => path.is_absolute() && path.file_name().is_some(),
        }
    }

    /// The address, if it is one.
    #[must_use]
    pub fn endpoint(&self) -> Option<&Endpoint> {
        match self {
            Self::Endpoint(endpoint) => Some(endpoint),
            Self::File(_) => None,
        }
    }
}

impl From<Endpoint> for Root {
    fn from(endpoint: Endpoint) -> Self {
        Self::Endpoint(endpoint)
    }
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoint(endpoint) => endpoint.fmt(f),
            Self::File(path) => write!(f, "file://{}", path.display()),
        }
    }
}

settings! {
    /// What sheave's own variables say about this process's place in a job. Whether they fit together, and what other
    /// launchers say, is read by the mesh.
    struct Place {
        /// What this process is; unless set, a worker where workers or servers are counted, else a plain rank.
        role: Option<Role> as Optional<Part> = None, "SHEAVE_ROLE", "mesh";

        /// Where the job meets: the address of the scheduler or of rank 0, or a file in which that process writes where
        /// it listens. It wins over every other launcher's.
        root: Option<Root> as Optional<Meeting> = None, "SHEAVE_ROOT", "mesh";

        /// The number of workers in a job with a scheduler.
        workers: Option<u32> as Optional<Processes> = None, "SHEAVE_WORKERS", "mesh";

        /// The number of servers in a job with a scheduler.
        servers: Option<u32> as Optional<ProcessesOrNone> = None, "SHEAVE_SERVERS", "mesh";

        /// The rank of this process among those of its role; unless set, a scheduler gives one.
        rank: Option<u32> as Optional<Index> = None, "SHEAVE_RANK", "mesh";

        /// The number of plain ranks in a job without a scheduler; `any` in a process that rank 0 tells how many there
        /// are and which it is.
        world_size: Option<u32> as Optional<ProcessesOrAny> = None, "SHEAVE_WORLD_SIZE", "mesh";

        /// The rank of this process among those of the job on its host. It wins over every other launcher's.
        local_rank: Option<u32> as Optional<Index> = None, "SHEAVE_LOCAL_RANK", "mesh";

        /// What this process is called in the mesh; unless set, by its role and rank.
        name: Option<String> as Optional<Name> = None, "SHEAVE_NAME", "mesh";

        /// The host, a name or an address, that the others reach this process at, where that is not the address it
        /// listens on, as behind a translation of addresses.
        host: Option<String> as Optional<Host> = None, "SHEAVE_HOST", "mesh";

        /// How long a join may take; then it says who is missing.
        join_timeout: Duration as Milliseconds = limits::JOIN_TIMEOUT, "SHEAVE_JOIN_TIMEOUT_MS", "mesh";
    }
}

impl Place {
    /// The place that an environment describes; `lookup` returns a variable's value. Pure: it reads nothing else.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the variable, its value and what is allowed.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        Self::read(lookup)
    }

    /// Checks that every value is allowed, for a place that was made in code.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the variable which stands for the value, and what is allowed.
    pub fn check(&self) -> Result<()> {
        self.check_each()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(environment: &[(&str, &str)]) -> Result<Place> {
        Place::from_lookup(|name| environment.iter().find(|entry| entry.0 == name).map(|entry| entry.1.into()))
    }

    #[test]
    fn every_variable_sets_its_own_field() {
        let read = place(&[
            ("SHEAVE_ROLE", "Server"),
            ("SHEAVE_ROOT", "node1.example:7000"),
            ("SHEAVE_WORKERS", "4"),
            ("SHEAVE_SERVERS", "0"),
            ("SHEAVE_RANK", "3"),
            ("SHEAVE_WORLD_SIZE", "16384"),
            ("SHEAVE_LOCAL_RANK", "1"),
            ("SHEAVE_NAME", "the third"),
            ("SHEAVE_HOST", "gate.example"),
            ("SHEAVE_JOIN_TIMEOUT_MS", "1500"),
        ]);
        let expected = Place {
            role: Some(Role::Server),
            root: Root::parse("node1.example:7000"),
            workers: Some(4),
            servers: Some(0),
            rank: Some(3),
            world_size: Some(16384),
            local_rank: Some(1),
            name: Some("the third".into()),
            host: Some("gate.example".into()),
            join_timeout: Duration::from_millis(1500),
        };
        assert_eq!(read.unwrap(), expected);
        assert!(expected.check().is_ok());
        assert_eq!(place(&[]).unwrap(), Place::default());
    }

    #[test]
    fn bad_values_are_refused_with_what_is_allowed() {
        let long = "n".repeat(limits::HANDSHAKE_TEXT_BYTES_MAX + 1);
        let bad: [(&str, &[&str]); 10] = [
            ("SHEAVE_ROLE", &["boss", "worker,server"]),
            ("SHEAVE_ROOT", &["node1", "node1:", "node1:0", "node1:65536", ":7000", "::1:7000", "[node1]:7", "a b:7"]),
            ("SHEAVE_ROOT", &["file://", "file://job", "file:///", "file:/job"]),
            ("SHEAVE_WORKERS", &["0", "16385", "-1", "two"]),
            ("SHEAVE_SERVERS", &["-1", "16385"]),
            ("SHEAVE_RANK", &["16384", "1.0"]),
            ("SHEAVE_WORLD_SIZE", &["0", "16385", "all"]),
            ("SHEAVE_NAME", &["a\tb", &long]),
            ("SHEAVE_HOST", &["a b", "node1:7000", "[::1]", "-x"]),
            ("SHEAVE_JOIN_TIMEOUT_MS", &["0"]),
        ];
        for (name, values) in bad {
            for value in values {
                let error = place(&[(name, value)]).unwrap_err();
                assert!(error.what().starts_with(&format!("{name} is \"")), "{error}");
                assert!(error.advice().unwrap().starts_with("allowed is "), "{error}");
            }
        }
        let in_code = Place { workers: Some(0), ..Place::default() };
        assert!(in_code.check().unwrap_err().what().starts_with("SHEAVE_WORKERS is \"0\""));
    }

    #[test]
    fn an_endpoint_reads_back_as_it_is_shown() {
        for text in ["localhost:1", "10.0.0.1:65535", "[fe80::1]:29500", "gpu-5.rack_2:80"] {
            assert_eq!(Endpoint::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_root_reads_back_as_it_is_shown() {
        for text in ["localhost:1", "[fe80::1]:29500", "file:///shared/a job/42"] {
            assert_eq!(Root::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Root::parse("file:///a/b").unwrap().endpoint(), None);
    }
}
