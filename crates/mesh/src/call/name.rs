//! Names of services and methods, and the number that a service has on the wire.
//!
//! A service is found by a hash of its name, which is computed where the name is written: in a constant, or once when a
//! [`ServiceName`] is made. It guards against nobody. Two services of one node whose names have the same hash are told
//! apart where they are offered: the second is refused.

use std::fmt;
use std::sync::Arc;

/// The number of a service, from its name: FNV-1a, whose bits are then mixed, so that short names differ in all of
/// them.
pub(super) const fn number_of(name: &str) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let bytes = name.as_bytes();
    let mut number = OFFSET;
    let mut at = 0;
    while at < bytes.len() {
        number = (number ^ bytes[at] as u64).wrapping_mul(PRIME);
        at += 1;
    }
    number ^= number >> 32;
    number = number.wrapping_mul(SPREAD);
    number ^ number >> 29
}

/// A text that is cheap to keep: most names are constants of the program.
#[derive(Clone)]
pub(super) enum Text {
    Constant(&'static str),
    Shared(Arc<str>),
}

impl Text {
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Constant(text) => text,
            Self::Shared(text) => text,
        }
    }

    /// Returns the text for an error, which borrows a constant.
    pub(super) fn to_cow(&self) -> std::borrow::Cow<'static, str> {
        match self {
            Self::Constant(text) => (*text).into(),
            Self::Shared(text) => text.to_string().into(),
        }
    }
}

/// The name of a service together with its number, which is computed once, where this is made.
///
/// ```
/// use sheave_mesh::ServiceName;
///
/// const GREETER: ServiceName = ServiceName::new("greeter");
/// assert_eq!(GREETER.as_str(), "greeter");
/// assert_eq!(GREETER, ServiceName::from(String::from("greeter")));
/// ```
#[derive(Clone)]
pub struct ServiceName {
    text: Text,
    number: u64,
}

impl ServiceName {
    /// Returns the handle of this name; at no cost at run time where it makes a constant.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { text: Text::Constant(name), number: number_of(name) }
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.text.as_str()
    }

    pub(super) fn text(&self) -> Text {
        self.text.clone()
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl PartialEq for ServiceName {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number && self.as_str() == other.as_str()
    }
}

impl Eq for ServiceName {}

impl From<&'static str> for ServiceName {
    fn from(name: &'static str) -> Self {
        Self::new(name)
    }
}

impl From<String> for ServiceName {
    fn from(name: String) -> Self {
        Self { number: number_of(&name), text: Text::Shared(name.into()) }
    }
}

impl From<&ServiceName> for ServiceName {
    fn from(name: &ServiceName) -> Self {
        name.clone()
    }
}

impl fmt::Debug for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServiceName").field(&self.as_str()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_that_differ_a_little_have_numbers_that_differ_a_lot() {
        let names = (0..100_000).map(|number| format!("service {number}"));
        let numbers: Vec<u64> = names.map(|name| number_of(&name)).collect();
        let distinct: HashSet<u64> = numbers.iter().copied().collect();
        assert_eq!(distinct.len(), numbers.len());
        let least = numbers.windows(2).map(|pair| (pair[0] ^ pair[1]).count_ones()).min();
        assert!(least > Some(8), "two neighbours differ in {least:?} bits");
        let low: HashSet<u64> = numbers[..256].iter().map(|number| number & 0xfff).collect();
        assert!(low.len() > 200, "{} of 256", low.len());
    }
}
