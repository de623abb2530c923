//! The one list of the environment variables that sheave reads, and their values.
//!
//! Each variable is declared once, in this module: its name, type, unit, default and meaning. [`Settings`], the checks,
//! the messages about bad values and the page `docs/configuration.md` all come from that declaration, so that they
//! cannot disagree. Nothing here reads the environment: a face passes it in, and a program that wants to decide for
//! itself fills in a [`Settings`] in code.
//!
//! A variable that is set to nothing counts as not set. A name that begins with `SHEAVE_` and is not on the list is
//! found by [`check_names`], because a misspelt setting that is ignored looks exactly like one that does not work. It
//! is told and no more, for others may put such names there; `SHEAVE_STRICT` makes it an error.
//!
//! ```
//! use sheave_base::config::{Settings, Transport, check_names};
//!
//! # fn main() -> sheave_base::Result<()> {
//! let environment = [("SHEAVE_TRANSPORT", "tcp"), ("SHEAVE_ARENA_BYTES", "256MiB")];
//! assert!(check_names(environment)?.is_empty());
//! let lookup = |name: &str| environment.iter().find(|entry| entry.0 == name).map(|entry| entry.1.into());
//! let settings = Settings::from_lookup(lookup)?;
//! assert_eq!(settings, Settings { transport: Transport::Tcp, arena_bytes: 256 << 20, ..Settings::default() });
//!
//! let warnings = check_names([("SHEAVE_TRANPORT", "tcp")])?;
//! let expected = "SHEAVE_TRANPORT is no setting of sheave; hint: did you mean SHEAVE_TRANSPORT?";
//! assert_eq!(warnings[0].to_string(), expected);
//! # Ok(())
//! # }
//! ```

mod foreign;
mod form;
mod names;
mod page;
mod place;

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::limits;
use crate::secret::{SECRET_FILE_VARIABLE, SECRET_VARIABLE};
use crate::{Error, ErrorKind, Result};
pub use foreign::{FOREIGN, Foreign};
use form::{
    Address, Bytes, Count, Form, Fraction, Medium, Microseconds, Milliseconds, Optional, Output, Switch, Whose,
};
pub use names::{check_names, unknown_names};
pub use page::documentation;
pub use place::{Endpoint, Place, Role, Root};

/// The most characters of a foreign name or value that a message shows.
const SHOWN_CHARACTERS_MAX: usize = 80;

/// The variable that tells a process of a job where to note whom it has lost; see [`crate::loss`].
pub const LOSSES_VARIABLE: &str = "SHEAVE_PROCESS_LOSSES";

/// The variable that hands a process its invitation, by which it attaches itself to a node of a job as its guest.
pub const INVITATION_VARIABLE: &str = "SHEAVE_INVITATION";

/// How messages travel between two processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Shared memory where both are on one host, else TCP.
    #[default]
    Auto,
    /// Shared memory; a peer on another host is refused.
    Shm,
    /// TCP, even between processes of one host.
    Tcp,
}

/// Whose pickles a process opens. A pickle is a program that runs where it is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pickles {
    /// Those of members of its mesh, of its host, and of guests that it has started itself.
    #[default]
    Members,
    /// None, whatever the program asks for.
    Never,
}

/// A variable that sheave reads, as its documentation describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// The variable's name.
    pub name: &'static str,
    /// What a value looks like, for people.
    pub kind: &'static str,
    /// The unit of a number; empty where there is none.
    pub unit: &'static str,
    /// The value when the variable is not set, as one would write it; empty when it stays unset.
    pub default: String,
    /// What it sets, in one sentence.
    pub doc: &'static str,
    /// The room that reads it.
    pub read_by: &'static str,
}

macro_rules! settings {
    ($(#[$about:meta])+ struct $Settings:ident { $(
        $(#[doc = $doc:literal])+
        $field:ident: $type:ty as $form:ty = $default:expr, $name:literal, $read_by:literal;
    )+ }) => {
        $(#[$about])+
        #[derive(Clone, Debug, PartialEq)]
        pub struct $Settings {
            $($(#[doc = $doc])+ #[doc = concat!("\n\nSet by `", $name, "`.")] pub $field: $type,)+
        }

        impl Default for $Settings {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        impl $Settings {
            fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
                let mut settings = Self::default();
                $(if let Some(value) = lookup($name).filter(|value| !value.is_empty()) {
                    settings.$field = read::<$type, $form>($name, &value)?;
                })+
                Ok(settings)
            }

            fn check_each(&self) -> Result<()> {
                $(check::<$type, $form>($name, &self.$field)?;)+
                Ok(())
            }

            /// The variables behind the fields.
            pub(super) fn declared() -> Vec<Key> {
                let default = Self::default();
                vec![$(Key {
                    name: $name,
                    kind: <$form as Form<$type>>::KIND,
                    unit: <$form as Form<$type>>::UNIT,
                    default: <$form as Form<$type>>::show(&default.$field),
                    doc: concat!($($doc),+).trim_ascii(),
                    read_by: $read_by,
                }),+]
            }
        }
    };
}

use settings;

settings! {
    /// The values of all settings of one process; which place it has in a job, [`Place`] says.
    ///
    /// Made by [`Settings::from_lookup`], or in code by changing what [`Settings::default`] says.
    struct Settings {
        /// How messages travel: `auto` takes shared memory on one host and TCP between hosts.
        transport: Transport as Medium = Transport::Auto, "SHEAVE_TRANSPORT", "net";

        /// The address to listen on; port 0 means any that is free.
        bind: SocketAddr as Address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0), "SHEAVE_BIND", "net";

        /// Permits to listen on a routable address without TLS: whoever sees the network sees the tensors.
        insecure: bool as Switch = false, "SHEAVE_INSECURE", "net";

        /// How long the other end of a new link may take to prove who it is.
        handshake_timeout: Duration as Milliseconds = limits::HANDSHAKE_TIMEOUT, "SHEAVE_HANDSHAKE_TIMEOUT_MS", "net";

        /// The time between two signs of life.
        liveness_beat: Duration as Milliseconds = limits::LIVENESS_BEAT, "SHEAVE_LIVENESS_BEAT_MS", "net";

        /// How long a peer may be silent before it is declared dead; more than the time between two signs of life.
        liveness_timeout: Duration as Milliseconds = limits::LIVENESS_TIMEOUT, "SHEAVE_LIVENESS_TIMEOUT_MS", "net";

        /// Whether a silent peer on this host is killed when it is declared dead.
        kill_silent: bool as Switch = true, "SHEAVE_KILL_SILENT", "net";

        /// The most memory that tensors may take in the arena of one process.
        arena_bytes: u64 as Bytes = limits::ARENA_BYTES_MAX, "SHEAVE_ARENA_BYTES", "tensor";

        /// The part of the arena that peers may hold; beyond it receivers get private copies.
        arena_lent_fraction: f64 as Fraction = limits::ARENA_LENT_FRACTION, "SHEAVE_ARENA_LENT_FRACTION", "tensor";

        /// The processes of the job on this host; unless set, they are counted once they have met. Where those that are
        /// no schedulers outnumber the cores that they may use together, waits give a core away at once.
        local_ranks: Option<usize> as Optional<Count> = None, "SHEAVE_LOCAL_RANKS", "net";

        /// The longest that a wait polls without giving its core away; unless set, by local ranks and cores. Waits
        /// learn from those before them how much of it pays.
        wait_spin: Option<Duration> as Optional<Microseconds> = None, "SHEAVE_WAIT_SPIN_US", "net";

        /// The longest that a wait then polls with its core given away in between; unless set, by local ranks and
        /// cores.
        wait_yield: Option<Duration> as Optional<Microseconds> = None, "SHEAVE_WAIT_YIELD_US", "net";

        /// The file with the rules by which collective operations choose their algorithms, the same on all ranks;
        /// unless set, the rules that `sheave tune` shows.
        collective_table: Option<PathBuf> as Optional<Output> = None, "SHEAVE_COLLECTIVE_TABLE", "collective";

        /// Whose pickles a Python program opens: those of `members` of the job, of its host, and of guests that a Fleet
        /// of its own has started; or `never` any.
        pickles: Pickles as Whose = Pickles::Members, "SHEAVE_PICKLE", "python";
    }
}

impl Settings {
    /// The settings that an environment describes; `lookup` returns a variable's value. Pure: it reads nothing else.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the variable, its value and what is allowed.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let settings = Self::read(lookup)?;
        settings.check()?;
        Ok(settings)
    }

    /// Checks that every value is allowed and that they fit together. Settings that were read are checked already;
    /// those that were made in code are checked by calling this.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the variable which stands for the value, and what is allowed.
    pub fn check(&self) -> Result<()> {
        self.check_each()?;
        if self.liveness_timeout > self.liveness_beat {
            return Ok(());
        }
        let [beat_ms, timeout_ms] = [self.liveness_beat, self.liveness_timeout].map(|span| span.as_millis());
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("SHEAVE_LIVENESS_TIMEOUT_MS is {timeout_ms} and SHEAVE_LIVENESS_BEAT_MS is {beat_ms}"),
        )
        .hint("the timeout must be longer than the time between two beats; five beats are usual"))
    }
}

/// Every variable that sheave reads, in the order of the documentation.
#[must_use]
pub fn keys() -> Vec<Key> {
    let mut keys = vec![
        Key {
            name: SECRET_VARIABLE,
            kind: "text of 16 to 1024 bytes",
            unit: "",
            default: String::new(),
            doc: "The job's secret itself; never shown. Unless set, the file below, then the user's cookie file.",
            read_by: "base",
        },
        Key {
            name: SECRET_FILE_VARIABLE,
            kind: "path of a private file",
            unit: "",
            default: String::new(),
            doc: "The file that holds the job's secret; it must not be readable by other users.",
            read_by: "base",
        },
    ];
    keys.extend(Place::declared());
    keys.extend(Settings::declared());
    keys.push(Key {
        name: names::STRICT,
        kind: <form::Switch as Form<bool>>::KIND,
        unit: "",
        default: false.to_string(),
        doc: "Makes a name that begins with `SHEAVE_` and is no setting an error; else it is told once and ignored.",
        read_by: "the faces",
    });
    keys.push(Key {
        name: "SHEAVE_PROCESS_JOB",
        kind: "text",
        unit: "",
        default: String::new(),
        doc: "Marks the processes of a job for its cleaner; set by sheave itself, not by you.",
        read_by: "process",
    });
    keys.push(Key {
        name: LOSSES_VARIABLE,
        kind: "path of a pipe",
        unit: "",
        default: String::new(),
        doc: "Where a process of a job notes whom it has lost, for its launcher; set by sheave itself, not by you.",
        read_by: "base",
    });
    keys.push(Key {
        name: INVITATION_VARIABLE,
        kind: "text",
        unit: "",
        default: String::new(),
        doc: "The invitation of a guest, good for one attach; set by the process that starts the guest, not by you.",
        read_by: "mesh",
    });
    keys
}

fn read<T, F: Form<T>>(name: &str, text: &OsStr) -> Result<T> {
    F::read(text).filter(F::allows).ok_or_else(|| refused::<T, F>(name, &text.to_string_lossy()))
}

fn check<T, F: Form<T>>(name: &str, value: &T) -> Result<()> {
    if F::allows(value) { Ok(()) } else { Err(refused::<T, F>(name, &F::show(value))) }
}

fn refused<T, F: Form<T>>(name: &str, value: &str) -> Error {
    let unit = if F::UNIT.is_empty() { String::new() } else { format!(" ({})", F::UNIT) };
    refusal(name, value, format_args!("{}{unit}", F::KIND))
}

/// The error about a variable whose value is not allowed: its name, the value's beginning on one line, and what is
/// `allowed`.
///
/// ```
/// let error = sheave_base::config::refusal("WORLD_SIZE", "many", "a whole number");
/// assert_eq!(error.to_string(), "WORLD_SIZE is \"many\", which is not allowed; hint: allowed is a whole number");
/// ```
#[must_use]
pub fn refusal(name: &str, value: &str, allowed: impl Display) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("{name} is \"{}\", which is not allowed", shown(value)))
        .hint(format!("allowed is {allowed}"))
}

/// The beginning of a text from outside, without anything that would disturb a terminal or break the line.
fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARACTERS_MAX).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use proptest::prelude::*;

    use super::*;

    fn settings(environment: &[(&str, &str)]) -> Result<Settings> {
        Settings::from_lookup(|name| environment.iter().find(|entry| entry.0 == name).map(|entry| entry.1.into()))
    }

    #[test]
    fn an_empty_environment_gives_the_defaults_and_so_do_empty_values() {
        assert_eq!(settings(&[]).unwrap(), Settings::default());
        assert_eq!(Settings::from_lookup(|_| Some(OsString::new())).unwrap(), Settings::default());
        assert!(Settings::default().check().is_ok());
    }

    #[test]
    fn every_default_that_is_shown_reads_back_as_itself() {
        let shown =
            |name: &str| Settings::declared().into_iter().find(|key| key.name == name).map(|key| key.default.into());
        assert_eq!(Settings::from_lookup(shown).unwrap(), Settings::default());
    }

    #[test]
    fn every_variable_sets_its_own_field() {
        let read = settings(&[
            ("SHEAVE_TRANSPORT", "SHM"),
            ("SHEAVE_BIND", "[::1]:7000"),
            ("SHEAVE_INSECURE", "yes"),
            ("SHEAVE_HANDSHAKE_TIMEOUT_MS", "1"),
            ("SHEAVE_LIVENESS_BEAT_MS", "20"),
            ("SHEAVE_LIVENESS_TIMEOUT_MS", "300"),
            ("SHEAVE_KILL_SILENT", "0"),
            ("SHEAVE_ARENA_BYTES", "3 GiB"),
            ("SHEAVE_ARENA_LENT_FRACTION", "0.25"),
            ("SHEAVE_LOCAL_RANKS", "8"),
            ("SHEAVE_WAIT_SPIN_US", "0"),
            ("SHEAVE_WAIT_YIELD_US", "70"),
            ("SHEAVE_COLLECTIVE_TABLE", "/tmp/rules"),
            ("SHEAVE_PICKLE", "Never"),
        ]);
        let expected = Settings {
            transport: Transport::Shm,
            bind: "[::1]:7000".parse().unwrap(),
            insecure: true,
            handshake_timeout: Duration::from_millis(1),
            liveness_beat: Duration::from_millis(20),
            liveness_timeout: Duration::from_millis(300),
            kill_silent: false,
            arena_bytes: 3 << 30,
            arena_lent_fraction: 0.25,
            local_ranks: Some(8),
            wait_spin: Some(Duration::ZERO),
            wait_yield: Some(Duration::from_micros(70)),
            collective_table: Some("/tmp/rules".into()),
            pickles: Pickles::Never,
        };
        assert_eq!(read.unwrap(), expected);
    }

    #[test]
    fn a_bad_value_is_named_with_what_is_allowed() {
        let error = settings(&[("SHEAVE_LIVENESS_BEAT_MS", "soon")]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let expected = "SHEAVE_LIVENESS_BEAT_MS is \"soon\", which is not allowed; \
                        hint: allowed is a whole number from 1 to 86400000 (ms)";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn bad_values_of_every_type_are_refused() {
        let bad: [(&str, &[&str]); 11] = [
            ("SHEAVE_PICKLE", &["0", "false", "guests"]),
            ("SHEAVE_TRANSPORT", &["rdma", "shm,tcp"]),
            ("SHEAVE_BIND", &["localhost", "1.2.3.4:99999", ":80", "0"]),
            ("SHEAVE_INSECURE", &["2", "maybe"]),
            ("SHEAVE_HANDSHAKE_TIMEOUT_MS", &["0", "-1", "1.5", "86400001", "18446744073709551616"]),
            ("SHEAVE_ARENA_BYTES", &["0", "4GB", "MiB", "-1MiB", "1.5GiB", "17TiB", "99999999999999TiB"]),
            ("SHEAVE_ARENA_LENT_FRACTION", &["1.01", "-0.1", "NaN", "inf", "half"]),
            ("SHEAVE_LOCAL_RANKS", &["0", "16385"]),
            ("SHEAVE_WAIT_SPIN_US", &["1000001", "x"]),
            ("SHEAVE_WAIT_YIELD_US", &["-0.5"]),
            ("SHEAVE_KILL_SILENT", &["tru"]),
        ];
        for (name, values) in bad {
            for value in values {
                let error = settings(&[(name, value)]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                assert!(error.what().starts_with(&format!("{name} is \"{value}\"")), "{error}");
                assert!(error.advice().unwrap().starts_with("allowed is "), "{error}");
            }
        }
    }

    #[test]
    fn a_timeout_within_one_beat_is_refused_wherever_it_was_set() {
        let error = settings(&[("SHEAVE_LIVENESS_TIMEOUT_MS", "1000")]).unwrap_err();
        assert!(error.what().contains("SHEAVE_LIVENESS_BEAT_MS is 1000"), "{error}");
        let in_code = Settings { liveness_timeout: Duration::from_millis(1), ..Settings::default() };
        assert!(in_code.check().is_err());
        let in_code = Settings { arena_lent_fraction: f64::NAN, ..Settings::default() };
        assert!(in_code.check().unwrap_err().what().starts_with("SHEAVE_ARENA_LENT_FRACTION is \"NaN\""));
    }

    #[test]
    fn what_is_not_text_is_refused_where_text_is_needed_and_is_a_path_where_it_is_not() {
        let bytes = OsStr::from_bytes(b"caf\xe9\n");
        let lookup = |wanted: &'static str| move |name: &str| (name == wanted).then(|| bytes.to_os_string());
        let error = Settings::from_lookup(lookup("SHEAVE_TRANSPORT")).unwrap_err();
        assert!(error.what().contains("\"caf\u{fffd}\\n\""), "{error}");
        let settings = Settings::from_lookup(lookup("SHEAVE_COLLECTIVE_TABLE")).unwrap();
        assert_eq!(settings.collective_table.unwrap().as_os_str(), bytes);
    }

    #[test]
    fn the_secret_is_not_even_looked_at() {
        Settings::from_lookup(|name| {
            assert!(name != SECRET_VARIABLE && name != SECRET_FILE_VARIABLE);
            None
        })
        .unwrap();
    }

    proptest! {
        #[test]
        fn no_value_panics_and_a_message_stays_on_one_line(index in 0..13_usize, value in any::<Vec<u8>>()) {
            let wanted = Settings::declared()[index].name;
            let lookup = |name: &str| (name == wanted).then(|| OsStr::from_bytes(&value).to_os_string());
            if let Err(error) = Settings::from_lookup(lookup) {
                let text = error.to_string();
                prop_assert!(!text.contains(char::is_control) && text.contains(wanted), "{text:?}");
            }
        }
    }
}
