//! Where a node can be reached, as one line of text.
//!
//! ```
//! use sheave_net::Address;
//!
//! let address: Address = "sheave://127.0.0.1:4711/?node=00000000000000ff&name=worker-0".parse()?;
//! assert_eq!(address.tcp.unwrap().port(), 4711);
//! assert_eq!(address.to_string().parse::<Address>()?, address);
//! assert!("http://127.0.0.1:4711/".parse::<Address>().is_err());
//! # Ok::<(), sheave_base::Error>(())
//! ```

use sheave_base::{Error, ErrorKind, NodeId, Result};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

const SCHEME: &str = "sheave://";
/// Longest text that is read as an address; a real one is far shorter.
const TEXT_BYTES_MAX: usize = 4096;

/// Where a node listens, and who it is.
///
/// As text it is `sheave://HOST:PORT/?node=…&name=…&boot=…&unix=…`, with everything left out that is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Address {
    /// The node that must answer; zero if any may.
    pub node: NodeId,
    /// Its name; for people.
    pub name: String,
    /// Its host's boot id: a node with the same one may try shared memory.
    pub boot_id: String,
    /// The abstract Unix socket that it listens on.
    pub unix: Option<String>,
    /// The TCP socket that it listens on.
    pub tcp: Option<SocketAddr>,
}

impl Address {
    /// The address of whoever listens on `tcp`.
    #[must_use]
    pub fn of_socket(tcp: SocketAddr) -> Self {
        Self { tcp: Some(tcp), ..Self::default() }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SCHEME)?;
        if let Some(tcp) = self.tcp {
            write!(f, "{tcp}")?;
        }
        f.write_str("/")?;
        let node = if self.node == NodeId::default() { String::new() } else { format!("{:016x}", self.node.0) };
        let unix = self.unix.as_deref().unwrap_or_default();
        let mut separator = '?';
        for (key, value) in [("node", node.as_str()), ("name", &self.name), ("boot", &self.boot_id), ("unix", unix)] {
            if !value.is_empty() {
                write!(f, "{separator}{key}={}", Escaped(value))?;
                separator = '&';
            }
        }
        Ok(())
    }
}

/// A text in which everything that could mean something in an address is written as `%` and two digits.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &byte in self.0.as_bytes() {
            if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
                write!(f, "{}", char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

fn unescaped(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = tail.first_chunk::<2>().filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let value = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(value.ok_or_else(|| wrong("a `%` without two digits"))?);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).map_err(|_| wrong("a text that is not UTF-8"))
}

fn wrong(what: impl fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("not the address of a node: it has {what}"))
        .hint("an address looks like sheave://127.0.0.1:4711/ and is printed by the node that listens")
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(wrong(format!("{} bytes", text.len())));
        }
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| wrong(format!("no `{SCHEME}` at its start")))?;
        let (place, query) = rest.split_once('/').unwrap_or((rest, ""));
        let mut address = Self::default();
        if !place.is_empty() {
            let parsed = place.parse().map_err(|_| wrong(format!("`{place}` in place of a socket address")))?;
            address.tcp = Some(parsed);
        }
        let query = match query.strip_prefix('?') {
            Some(query) => query,
            None if query.is_empty() => "",
            None => return Err(wrong(format!("a path, `{query}`"))),
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| wrong(format!("`{pair}` without a value")))?;
            let value = unescaped(value)?;
            match key {
                "node" => {
                    let parsed = u64::from_str_radix(&value, 16).map_err(|_| wrong("an unreadable node id"))?;
                    address.node = NodeId(parsed);
                }
                "name" => address.name = value,
                "boot" => address.boot_id = value,
                "unix" => address.unix = Some(value).filter(|name| !name.is_empty()),
                // Later versions may say more.
                _ => {}
            }
        }
        if address.tcp.is_none() && address.unix.is_none() {
            return Err(wrong("neither a TCP nor a Unix socket"));
        }
        // What is read here is passed on as text, in which most letters are longer than they may stand here.
        let written_bytes = address.to_string().len();
        if written_bytes > TEXT_BYTES_MAX {
            return Err(wrong(format!("{written_bytes} bytes when it is written out")));
        }
        Ok(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_printed_is_read(node in any::<u64>(), name in ".{0,20}", unix in proptest::option::of(".{1,20}")) {
            let tcp = Some(SocketAddr::from(([127, 0, 0, 1], 7)));
            let address = Address { node: NodeId(node), name, boot_id: "a-b".into(), unix, tcp };
            prop_assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
        }

        #[test]
        fn nothing_panics(text in ".{0,60}") {
            let _ = text.parse::<Address>();
            let _ = format!("sheave://{text}").parse::<Address>();
            let _ = format!("sheave://[::1]:7/?{text}").parse::<Address>();
        }
    }

    /// Each of these letters is written as nine, so the text of what is read here is longer than any that is read.
    #[test]
    fn f43_what_is_read_can_be_written_and_read_again() {
        let longest = |letters: usize| format!("sheave://1.2.3.4:5/?name={}", "\u{2713}".repeat(letters));
        for letters in [0, 1, 400, 450, 455, 1300] {
            match longest(letters).parse::<Address>() {
                Ok(address) => assert_eq!(address.to_string().parse::<Address>().ok(), Some(address), "{letters}"),
                Err(error) => assert!(error.kind() == ErrorKind::InvalidArgument && letters > 450, "{error}"),
            }
        }
    }

    #[test]
    fn bad_texts_are_the_callers_mistake() {
        for text in
            ["", "sheave://", "sheave:///", "sheave://nohost:1/", "sheave://1.2.3.4:5/path", "sheave:///?unix=%4"]
        {
            assert_eq!(text.parse::<Address>().unwrap_err().kind(), ErrorKind::InvalidArgument, "{text}");
        }
    }
}
