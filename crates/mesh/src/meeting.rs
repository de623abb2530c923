//! How processes learn where their mesh meets.
//!
//! Either all of them know an address beforehand, or the one that the others meet at listens at any free port and puts
//! its address into a store that all of them reach: a file, or whatever a program has ([`Meet`]).
//!
//! **Why nobody meets the wrong mesh.** The address in a record carries the id of its node, which is drawn anew for
//! every join, and a handshake with another node fails. A record that an earlier attempt has left leads to a port where
//! nobody listens, or to another node; in both cases whoever has read it waits for another record. The host of a
//! meeting takes its record back as soon as the mesh stands, or its join has failed.

mod file;

use crate::Config;
use sheave_base::config::{Endpoint, Root};
use sheave_base::secret::{self, Resolved, Secret};
use sheave_base::work::Interrupt;
use sheave_base::{Error, ErrorKind, Result, clock, random};
use sheave_net::Address;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use file::FileMeet;

/// The key under which a store has the record of a meeting.
pub const MEETING_KEY: &str = "sheave/root";

/// The first line of a record.
const HEAD: &str = "sheave meeting 1";

/// What the second line begins with where the host has failed.
const FAILED: &str = "failed ";

/// The most bytes that a record may have.
pub(crate) const RECORD_BYTES_MAX: usize = 16 << 10;

/// How long one look at a store may last before the caller is asked whether to go on.
const SLICE: Duration = Duration::from_millis(50);

/// How long a record that leads nowhere is left alone before it is read again.
const STALE_PAUSE: Duration = Duration::from_millis(100);

/// How many random bytes a published secret has.
const SECRET_BYTES: usize = 32;

/// A store through which the processes of a job learn where they meet: what one sets, all others get.
///
/// It is asked by one thread at a time.
pub trait Meet: Send + Sync + fmt::Debug {
    /// Returns what the store is called, for errors.
    fn name(&self) -> String;

    /// Sets the value of a key, whether it has one or not. May block as long as the store needs.
    ///
    /// # Errors
    ///
    /// Those of the store.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;

    /// Returns the value of a key; `None` if it has none after `timeout`, which is short.
    ///
    /// # Errors
    ///
    /// Those of the store.
    fn get(&self, key: &str, timeout: Duration) -> Result<Option<Vec<u8>>>;

    /// Forgets a key whose value is this one. A store that cannot may leave it.
    ///
    /// # Errors
    ///
    /// Those of the store, which end nothing.
    fn remove(&self, key: &str, value: &[u8]) -> Result<()>;

    /// Returns whether a secret may be put in.
    fn takes_secrets(&self) -> bool {
        true
    }

    /// Returns whether all that is found in it is of this attempt to meet, as in what only this attempt knows.
    fn is_fresh(&self) -> bool {
        false
    }
}

/// Where a mesh meets.
#[derive(Clone, Debug)]
pub enum Meeting {
    /// At an address that the scheduler, or rank 0, listens at.
    Root(Endpoint),
    /// At an address that the scheduler, or rank 0, puts into a store. It listens as the others do, at `bind`.
    Store(Arc<dyn Meet>),
}

impl From<Endpoint> for Meeting {
    fn from(root: Endpoint) -> Self {
        Self::Root(root)
    }
}

impl From<Root> for Meeting {
    fn from(root: Root) -> Self {
        match root {
            Root::Endpoint(endpoint) => Self::Root(endpoint),
            Root::File(path) => Self::Store(Arc::new(FileMeet::new(path))),
        }
    }
}

impl fmt::Display for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(endpoint) => endpoint.fmt(f),
            Self::Store(store) => f.write_str(&store.name()),
        }
    }
}

/// What the host of a meeting says.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) address: Address,
    /// The secret of the job, where that is published with the address.
    secret: Option<Secret>,
    bytes: Vec<u8>,
}

impl Record {
    fn new(address: Address, secret: Option<Secret>) -> Self {
        let mut text = format!("{HEAD}\n{address}\n");
        if let Some(secret) = &secret {
            text.push_str("secret ");
            text.extend(secret.expose().iter().map(|byte| format!("{byte:02x}")));
            text.push('\n');
        }
        Self { address, secret, bytes: text.into_bytes() }
    }

    /// Reads a record; the error that the host has left instead of one ends the join.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        let wrong = |what: &str| Error::new(ErrorKind::Protocol, format!("the record of the meeting {what}"));
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(wrong(&format!("has {} bytes; expected {RECORD_BYTES_MAX} at most", bytes.len())));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| wrong("is no text"))?;
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            return Err(wrong(&format!("does not begin with \"{HEAD}\"")).hint("use a key, or a file, of its own"));
        }
        let second = lines.next().unwrap_or_default();
        if let Some(what) = second.strip_prefix(FAILED) {
            return Err(Error::new(ErrorKind::PeerLost, format!("the process that the others meet at failed: {what}")));
        }
        let address = second.parse()?;
        let secret = match lines.next().and_then(|line| line.strip_prefix("secret ")) {
            Some(digits) => Some(Secret::new(&from_hex(digits).ok_or_else(|| wrong("has no readable secret"))?)?),
            None => None,
        };
        Ok(Self { address, secret, bytes: bytes.to_vec() })
    }

    /// Whether both lead to the same place with the same secret.
    pub(crate) fn has_same_secret(&self, other: &Self) -> bool {
        let exposed = |record: &Self| record.secret.as_ref().map(|secret| secret.expose().to_vec());
        exposed(self) == exposed(other)
    }
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    pairs.map(|pair| u8::from_str_radix(pair.filter(|pair| pair.len() == 2)?, 16).ok()).collect()
}

/// The record that the host of a meeting has published, which it takes back at the end.
#[derive(Debug)]
pub(crate) struct Published {
    store: Arc<dyn Meet>,
    bytes: Vec<u8>,
}

impl Drop for Published {
    fn drop(&mut self) {
        // What is left leads nowhere, and whoever finds it waits for another record.
        let _ = self.store.remove(MEETING_KEY, &self.bytes);
    }
}

/// Tells the others where this process listens.
pub(crate) fn publish(store: &Arc<dyn Meet>, address: Address, secret: Option<Secret>) -> Result<Published> {
    let bytes = Record::new(address, secret).bytes;
    store.set(MEETING_KEY, &bytes).map_err(|error| error.context(store.name()).operation("join"))?;
    Ok(Published { store: Arc::clone(store), bytes })
}

/// Tells the others, who would wait for a record, that there will be none.
pub(crate) fn publish_failure(store: &Arc<dyn Meet>, error: &Error) {
    let what: String = error.to_string().chars().filter(|sign| !sign.is_control()).take(1000).collect();
    // The others find out by their deadline.
    let _ = store.set(MEETING_KEY, format!("{HEAD}\n{FAILED}{what}\n").as_bytes());
}

/// Waits for a record that is not `stale`. A failure that is there from the start is of an earlier attempt, unless the
/// store is fresh.
pub(crate) fn find(
    store: &Arc<dyn Meet>,
    stale: Option<&Record>,
    (begun, until): (Instant, Instant),
    interrupt: &mut Option<Interrupt<'_>>,
) -> Result<Record> {
    let named = |error: Error| error.context(store.name()).operation("join");
    let mut ignored = stale.map(|stale| stale.bytes.clone());
    let mut is_first = stale.is_none();
    loop {
        let found = store.get(MEETING_KEY, SLICE).map_err(named)?;
        match found {
            Some(bytes) if ignored.as_ref() == Some(&bytes) => sheave_base::thread::sleep(STALE_PAUSE),
            Some(bytes) => match Record::read(&bytes) {
                Err(error) if is_first && !store.is_fresh() && error.kind() == ErrorKind::PeerLost => {
                    ignored = Some(bytes);
                }
                read => return read.map_err(named),
            },
            None => {}
        }
        is_first = false;
        if let Some(interrupt) = interrupt {
            interrupt()?;
        }
        if clock::now() >= until {
            let what = match (stale, ignored.as_deref().map(Record::read)) {
                (Some(stale), _) => {
                    format!("{} names {}, where nobody of this job listens", store.name(), stale.address)
                }
                (None, Some(Err(error))) => format!("{}: {}", store.name(), error.what()),
                (None, _) => format!("{} does not say where the mesh meets", store.name()),
            };
            let error = Error::new(ErrorKind::DeadlineExceeded, what).operation("join").elapsed(clock::since(begun));
            return Err(error.hint("was the scheduler, or rank 0, started, and with the same store or file?"));
        }
    }
}

/// The secret of a process: its own if the program or a variable gives one; else, where the config is insecure and
/// meets through a store, the one that is published there (`published`), or a new one to publish.
///
/// Returns it, and whether it is to be published.
pub(crate) fn secret_of(config: &Config, published: Option<&Record>) -> Result<(Resolved, bool)> {
    if let Some(secret) = &config.node.secret {
        return Ok((secret.clone(), false));
    }
    let lookup = |name: &str| std::env::var_os(name);
    let resolve = || secret::resolve(lookup).map_err(|error| error.operation("finding the secret"));
    let Meeting::Store(store) = &config.meeting else { return Ok((resolve()?, false)) };
    let is_told =
        [secret::SECRET_VARIABLE, secret::SECRET_FILE_VARIABLE].into_iter().any(|name| lookup(name).is_some());
    if is_told || !config.insecure || !store.takes_secrets() {
        return Ok((resolve()?, false));
    }
    if config.hosts() {
        let mut bytes = [0; SECRET_BYTES];
        random::fill("a secret", &mut bytes)?;
        return Ok((Resolved { secret: Secret::new(&bytes)?, source: store.name() }, true));
    }
    match published.and_then(|record| record.secret.clone()) {
        Some(secret) => Ok((Resolved { secret, source: store.name() }, false)),
        None => Ok((resolve()?, false)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> Address {
        Address::of_socket(([127, 0, 0, 1], 7000).into())
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        for secret in [None, Some(Secret::new(b"sixteen bytes at least").unwrap())] {
            let record = Record::new(address(), secret);
            let read = Record::read(&record.bytes).unwrap();
            assert_eq!(read.address.to_string(), record.address.to_string());
            assert!(read.has_same_secret(&record));
        }
        let other = Record::new(address(), Some(Secret::new(b"another secret of its own").unwrap()));
        assert!(!other.has_same_secret(&Record::new(address(), None)));
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let head = format!("{HEAD}\n");
        let cases = [
            (b"host:1".to_vec(), ErrorKind::Protocol),
            (vec![0xff; 4], ErrorKind::Protocol),
            (vec![b'a'; RECORD_BYTES_MAX + 1], ErrorKind::Protocol),
            (format!("{head}{}\nsecret 0g\n", address()).into_bytes(), ErrorKind::Protocol),
            (format!("{head}{}\nsecret 0\n", address()).into_bytes(), ErrorKind::Protocol),
            (format!("{head}failed no port\n").into_bytes(), ErrorKind::PeerLost),
        ];
        for (bytes, kind) in cases {
            assert_eq!(Record::read(&bytes).unwrap_err().kind(), kind, "{:?}", String::from_utf8_lossy(&bytes));
        }
        assert!(Record::read(format!("{head}nowhere\n").as_bytes()).is_err());
    }
}
