//! How a setting's value is written: the types of the configuration, each with what it accepts.

use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::{Endpoint, Pickles, Role, Root, Transport};
use crate::limits;

/// A way to write a `T` in an environment variable.
pub(super) trait Form<T> {
    /// What is accepted, for people.
    const KIND: &'static str;
    /// The unit of a number; empty where there is none.
    const UNIT: &'static str = "";
    /// The value that `text`, which is not empty, stands for, whether allowed or not.
    fn read(text: &OsStr) -> Option<T>;
    /// Whether the value is within its range.
    fn allows(_value: &T) -> bool {
        true
    }
    /// The value as [`Form::read`] takes it.
    fn show(value: &T) -> String;
}

fn trimmed(text: &OsStr) -> Option<&str> {
    text.to_str().map(str::trim)
}

fn number(text: &OsStr) -> Option<u64> {
    trimmed(text)?.parse().ok()
}

/// A duration that a person chooses in milliseconds.
pub(super) struct Milliseconds;

impl Form<Duration> for Milliseconds {
    const KIND: &'static str = "a whole number from 1 to 86400000";
    const UNIT: &'static str = "ms";

    fn read(text: &OsStr) -> Option<Duration> {
        number(text).map(Duration::from_millis)
    }

    fn allows(value: &Duration) -> bool {
        (1..=86_400_000).contains(&value.as_millis())
    }

    fn show(value: &Duration) -> String {
        value.as_millis().to_string()
    }
}

/// A duration so short that polling for it makes sense.
pub(super) struct Microseconds;

impl Form<Duration> for Microseconds {
    const KIND: &'static str = "a whole number from 0 to 1000000";
    const UNIT: &'static str = "µs";

    fn read(text: &OsStr) -> Option<Duration> {
        number(text).map(Duration::from_micros)
    }

    fn allows(value: &Duration) -> bool {
        value.as_micros() <= 1_000_000
    }

    fn show(value: &Duration) -> String {
        value.as_micros().to_string()
    }
}

/// An amount of memory. Only the binary suffixes are taken: `4GB` means two different things to two people.
pub(super) struct Bytes;

/// The suffixes and what each stands for, as a power of two; the last is the empty one.
const SUFFIXES: [(&str, u32); 5] = [("tib", 40), ("gib", 30), ("mib", 20), ("kib", 10), ("", 0)];

impl Form<u64> for Bytes {
    const KIND: &'static str = "a whole number, alone or with KiB, MiB, GiB or TiB, from 1MiB to 16TiB";
    const UNIT: &'static str = "bytes";

    fn read(text: &OsStr) -> Option<u64> {
        let text = trimmed(text)?.to_ascii_lowercase();
        let (digits, shift) = SUFFIXES.iter().find_map(|(suffix, shift)| Some((text.strip_suffix(suffix)?, shift)))?;
        digits.trim_end().parse::<u64>().ok()?.checked_mul(1 << shift)
    }

    fn allows(value: &u64) -> bool {
        (1 << 20..=1 << 44).contains(value)
    }

    fn show(value: &u64) -> String {
        match value {
            value if value % (1 << 30) == 0 => format!("{}GiB", value >> 30),
            value if value % (1 << 20) == 0 => format!("{}MiB", value >> 20),
            value => value.to_string(),
        }
    }
}

/// A part of a whole.
pub(super) struct Fraction;

impl Form<f64> for Fraction {
    const KIND: &'static str = "a number from 0 to 1";

    fn read(text: &OsStr) -> Option<f64> {
        trimmed(text)?.parse().ok()
    }

    fn allows(value: &f64) -> bool {
        (0.0..=1.0).contains(value)
    }

    fn show(value: &f64) -> String {
        value.to_string()
    }
}

/// How many there are of something that each node may be linked with.
pub(super) struct Count;

impl Form<usize> for Count {
    const KIND: &'static str = "a whole number from 1 to 16384";

    fn read(text: &OsStr) -> Option<usize> {
        trimmed(text)?.parse().ok()
    }

    fn allows(value: &usize) -> bool {
        (1..=limits::LINKS_MAX).contains(value)
    }

    fn show(value: &usize) -> String {
        value.to_string()
    }
}

macro_rules! whole_number {
    ($(#[$doc:meta])+ $name:ident from $least:literal to $most:literal) => {
        $(#[$doc])+
        pub(super) struct $name;

        impl Form<u32> for $name {
            const KIND: &'static str = concat!("a whole number from ", $least, " to ", $most);

            fn read(text: &OsStr) -> Option<u32> {
                trimmed(text)?.parse().ok()
            }

            fn allows(value: &u32) -> bool {
                ($least..=$most).contains(value)
            }

            fn show(value: &u32) -> String {
                value.to_string()
            }
        }
    };
}

whole_number! {
    /// How many processes of one sort a job has, at least one.
    Processes from 1 to 16384
}
whole_number! {
    /// How many processes of one sort a job has, perhaps none.
    ProcessesOrNone from 0 to 16384
}
/// How many processes a job has, or 0 where somebody else knows.
pub(super) struct ProcessesOrAny;

impl Form<u32> for ProcessesOrAny {
    const KIND: &'static str = "a whole number from 1 to 16384, or `any`";

    fn read(text: &OsStr) -> Option<u32> {
        let text = trimmed(text)?;
        if text.eq_ignore_ascii_case("any") { Some(0) } else { text.parse().ok().filter(|count| *count != 0) }
    }

    fn allows(value: &u32) -> bool {
        *value == 0 || Processes::allows(value)
    }

    fn show(value: &u32) -> String {
        if *value == 0 { "any".to_owned() } else { value.to_string() }
    }
}

whole_number! {
    /// Which of them a process is.
    Index from 0 to 16383
}

/// Yes or no.
pub(super) struct Switch;

impl Form<bool> for Switch {
    const KIND: &'static str = "`true` or `false` (also `1`, `0`, `yes`, `no`, `on`, `off`)";

    fn read(text: &OsStr) -> Option<bool> {
        match trimmed(text)?.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Some(true),
            "false" | "0" | "no" | "off" => Some(false),
            _ => None,
        }
    }

    fn show(value: &bool) -> String {
        value.to_string()
    }
}

/// A medium by its name.
pub(super) struct Medium;

impl Form<Transport> for Medium {
    const KIND: &'static str = "`auto`, `shm` or `tcp`";

    fn read(text: &OsStr) -> Option<Transport> {
        match trimmed(text)?.to_ascii_lowercase().as_str() {
            "auto" => Some(Transport::Auto),
            "shm" => Some(Transport::Shm),
            "tcp" => Some(Transport::Tcp),
            _ => None,
        }
    }

    fn show(value: &Transport) -> String {
        let name = match value {
            Transport::Auto => "auto",
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
        };
        name.to_owned()
    }
}

/// Whose pickles are opened.
pub(super) struct Whose;

impl Form<Pickles> for Whose {
    const KIND: &'static str = "`members` or `never`";

    fn read(text: &OsStr) -> Option<Pickles> {
        match trimmed(text)?.to_ascii_lowercase().as_str() {
            "members" => Some(Pickles::Members),
            "never" => Some(Pickles::Never),
            _ => None,
        }
    }

    fn show(value: &Pickles) -> String {
        let name = match value {
            Pickles::Members => "members",
            Pickles::Never => "never",
        };
        name.to_owned()
    }
}

/// Where to listen. A host name is not taken: which of its addresses is meant would be a guess.
pub(super) struct Address;

impl Form<SocketAddr> for Address {
    const KIND: &'static str = "an IP address, alone or with a port as in `127.0.0.1:7000` or `[::1]:7000`";

    fn read(text: &OsStr) -> Option<SocketAddr> {
        let text = trimmed(text)?;
        text.parse().ok().or_else(|| Some(SocketAddr::new(text.parse::<IpAddr>().ok()?, 0)))
    }

    fn show(value: &SocketAddr) -> String {
        if value.port() == 0 { value.ip().to_string() } else { value.to_string() }
    }
}

/// What a process is in its job.
pub(super) struct Part;

impl Form<Role> for Part {
    const KIND: &'static str = "`scheduler`, `server`, `worker` or `rank`";

    fn read(text: &OsStr) -> Option<Role> {
        Role::from_name(trimmed(text)?)
    }

    fn show(value: &Role) -> String {
        value.to_string()
    }
}

/// Where a job meets. Unlike an address to listen on, a host name is right: each process resolves it for itself.
pub(super) struct Meeting;

impl Form<Root> for Meeting {
    const KIND: &'static str =
        "a host and a port, as in `node1:7000` or `[::1]:7000`, or a file, as in `file:///shared/job42`";

    fn read(text: &OsStr) -> Option<Root> {
        Root::parse(trimmed(text)?)
    }

    fn allows(value: &Root) -> bool {
        value.is_allowed()
    }

    fn show(value: &Root) -> String {
        value.to_string()
    }
}

/// A host without a port.
pub(super) struct Host;

impl Form<String> for Host {
    const KIND: &'static str = "a host name or an IP address, without a port";

    fn read(text: &OsStr) -> Option<String> {
        trimmed(text).map(str::to_owned)
    }

    fn allows(value: &String) -> bool {
        Endpoint::is_host(value)
    }

    fn show(value: &String) -> String {
        value.clone()
    }
}

/// What a process is called.
pub(super) struct Name;

impl Form<String> for Name {
    const KIND: &'static str = "printable text of 1 to 256 bytes";

    fn read(text: &OsStr) -> Option<String> {
        trimmed(text).map(str::to_owned)
    }

    fn allows(value: &String) -> bool {
        (1..=limits::HANDSHAKE_TEXT_BYTES_MAX).contains(&value.len()) && !value.contains(char::is_control)
    }

    fn show(value: &String) -> String {
        value.clone()
    }
}

/// A file. Any path is taken as it is, spaces and bytes that are not text included.
pub(super) struct Output;

impl Form<PathBuf> for Output {
    const KIND: &'static str = "a path";

    fn read(text: &OsStr) -> Option<PathBuf> {
        Some(text.into())
    }

    fn show(value: &PathBuf) -> String {
        value.display().to_string()
    }
}

/// A value that may stay unset; what that means, the setting's description says.
pub(super) struct Optional<F>(F);

impl<T, F: Form<T>> Form<Option<T>> for Optional<F> {
    const KIND: &'static str = F::KIND;
    const UNIT: &'static str = F::UNIT;

    fn read(text: &OsStr) -> Option<Option<T>> {
        F::read(text).map(Some)
    }

    fn allows(value: &Option<T>) -> bool {
        value.as_ref().is_none_or(F::allows)
    }

    fn show(value: &Option<T>) -> String {
        value.as_ref().map(F::show).unwrap_or_default()
    }
}
