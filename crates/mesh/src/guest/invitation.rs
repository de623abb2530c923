//! What lets a process attach itself to a host.

use sheave_base::config::{INVITATION_VARIABLE, refusal};
use sheave_base::{Error, ErrorKind, NodeId, Result, Secret, limits, random};
use sheave_net::Address;
use sheave_wire::handshake::NONCE_BYTES;
use std::fmt;
use std::fmt::Write;
use std::str::FromStr;

/// Length of a token: as long as a nonce, for nobody shall guess either.
const TOKEN_BYTES: usize = NONCE_BYTES;

/// Longest text that is read as an invitation: an address, a name and a token are shorter.
const TEXT_BYTES_MAX: usize = 8192;

/// What lets one process attach itself to a host, once: where the host is, what the guest is called, and a random token
/// that the host has drawn. Its text is handed to the process that is to come, in its environment or through a pipe;
/// whoever reads it must also know the job's secret to make any use of it.
#[derive(Clone)]
pub struct Invitation {
    /// The host, by its node's identity, its name and its sockets.
    pub(super) host: Address,
    pub(super) name: String,
    pub(super) token: Secret,
}

impl Invitation {
    /// The variable of the environment in which [`GuestConfig::from_env`](super::GuestConfig::from_env) looks for it.
    pub const VARIABLE: &'static str = INVITATION_VARIABLE;

    /// Draws a token.
    pub(super) fn draw(host: Address, name: String) -> Result<Self> {
        let mut token = [0; TOKEN_BYTES];
        random::fill("drawing a token", &mut token)?;
        Ok(Self { host, name, token: Secret::new(&token)? })
    }

    /// The name that the guest will have.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The node that has given it.
    #[must_use]
    pub fn host(&self) -> NodeId {
        self.host.node
    }

    /// The text for the process that is to come. Everything else prints an invitation without its token.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for byte in self.token.expose() {
            let _ = write!(text, "{byte:02x}");
        }
        // An address escapes what a name may contain.
        let _ = write!(text, "@{}#{}", self.host, self.name);
        text
    }
}

impl fmt::Debug for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invitation").field("name", &self.name).field("host", &self.host.name).finish_non_exhaustive()
    }
}

impl FromStr for Invitation {
    type Err = Error;

    /// Reads what [`Invitation::to_text`] has written.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that says what is wrong, without the token.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = |what: &str| {
            Error::new(ErrorKind::InvalidArgument, format!("not the invitation of a guest: {what}"))
                .hint("hand on the text as the host has written it, unchanged")
        };
        if text.len() > TEXT_BYTES_MAX {
            return Err(wrong(&format!("it has {} bytes; the limit is {TEXT_BYTES_MAX}", text.len())));
        }
        let (token, rest) = text.split_once('@').ok_or_else(|| wrong("it has no token"))?;
        let (host, name) = rest.split_once('#').ok_or_else(|| wrong("it has no name"))?;
        let token = token_of(token).ok_or_else(|| wrong(&format!("its token is not {TOKEN_BYTES} bytes")))?;
        let host: Address = host.parse()?;
        if host.node == NodeId::default() {
            return Err(wrong("it does not say which node its host is"));
        }
        let is_name = (1..=limits::HANDSHAKE_TEXT_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control);
        if !is_name {
            return Err(wrong(&format!("its name has {} bytes, or control characters", name.len())));
        }
        Ok(Self { host, name: name.to_owned(), token })
    }
}

fn token_of(digits: &str) -> Option<Secret> {
    let mut token = [0; TOKEN_BYTES];
    if digits.len() != 2 * TOKEN_BYTES || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in token.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Secret::new(&token).ok()
}

/// The invitation in a variable's value; the value itself is not repeated in errors.
pub(super) fn read_variable(value: &std::ffi::OsStr) -> Result<Invitation> {
    let text = value.to_str().ok_or_else(|| refusal(INVITATION_VARIABLE, "(not shown)", "an invitation"))?;
    text.parse::<Invitation>().map_err(|error| error.context(INVITATION_VARIABLE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn invitation(name: &str) -> Invitation {
        let address = "sheave://127.0.0.1:4711/?node=ff&name=rank%200&boot=a-b&unix=x%23y%40z";
        Invitation::draw(address.parse().expect("an address"), name.to_owned()).expect("a token")
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(name in "[^\\p{Cc}]{1,40}") {
            let written = invitation(&name);
            let read: Invitation = written.to_text().parse().expect("it was written so");
            prop_assert_eq!((&read.name, &read.host), (&written.name, &written.host));
            prop_assert_eq!(read.token.expose(), written.token.expose());
        }

        #[test]
        fn nothing_panics(text in ".{0,90}", token in "[0-9a-f]{64}") {
            let _ = text.parse::<Invitation>();
            let _ = format!("{token}@{text}").parse::<Invitation>();
            let _ = format!("{token}@sheave:///?unix=a&node=1#{text}").parse::<Invitation>();
        }
    }

    #[test]
    fn no_error_and_no_debug_text_shows_a_token() {
        let written = invitation("rank-0.worker-1");
        let text = written.to_text();
        let token = text.split('@').next().expect("it has one").to_owned();
        assert_eq!(token.len(), 2 * TOKEN_BYTES);
        assert!(!format!("{written:?}").contains(&token));
        for wrong in [
            text.replace('#', "?"),
            text.replace("node=", "nod="),
            text.replace('@', "0@"),
            text.replace("sheave:", "cheave:"),
            format!("{token}@sheave:///?unix=a&node=1#"),
            token.clone(),
            String::new(),
        ] {
            let error = wrong.parse::<Invitation>().expect_err("it is none");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{wrong}");
            assert!(!error.to_string().contains(&token), "{error}");
        }
    }
}
