//! What a node says of itself in a handshake, and whom it believes to have met.

use crate::node::Inner;
use sheave_base::limits::HANDSHAKE_TEXT_BYTES_MAX;
use sheave_base::secret::{Resolved, resolve};
use sheave_base::{Peer, Result, process, random};
use sheave_wire::handshake::{Hello, Medium, NONCE_BYTES};

impl Inner {
    /// The job's secret: the configured one, or the one that the environment leads to, found at the first call.
    pub(crate) fn secret(&self) -> Result<Resolved> {
        if let Some(secret) = &self.config.secret {
            return Ok(secret.clone());
        }
        let mut known = self.secret.lock();
        if let Some(secret) = &*known {
            return Ok(secret.clone());
        }
        let found = resolve(|name| std::env::var_os(name)).map_err(|error| error.operation("finding the secret"))?;
        Ok(known.insert(found).clone())
    }

    /// The host's boot id, with the network name space in which this node is: containers of one host with networks of
    /// their own reach each other as hosts do. Empty where the system does not tell.
    pub(crate) fn boot_id(&self) -> &str {
        self.boot_id.get_or_init(|| {
            if let Some(host_id) = &self.config.host_id {
                return host_id.clone();
            }
            let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
            let text = text.trim();
            let space = std::fs::read_link("/proc/self/ns/net").ok();
            // As in `net:[4026531840]`.
            let space = space.as_deref().and_then(std::path::Path::to_str).unwrap_or_default();
            let number: String = space.chars().filter(char::is_ascii_digit).collect();
            if text.is_empty() { String::new() } else { format!("{text}.{number}") }
        })
    }

    /// This node's hello for a link over `medium`. Strangers read it: it names no path, nor the host's boot id, by
    /// which a host could be recognised.
    pub(crate) fn hello(&self, medium: Medium, secret: &Resolved) -> Hello {
        Hello {
            role: self.config.role.to_string(),
            host: self.peer.host.clone().unwrap_or_default(),
            pid: process::id(),
            secret_source: shortened(&without_path(&secret.source)),
            payload: self.config.rank.map(u32::to_le_bytes).map(Vec::from).unwrap_or_default(),
            ..Hello::new(self.id, self.config.name.as_str(), medium)
        }
    }
}

/// Who sent `hello`, as errors name it.
pub(crate) fn peer_of(hello: &Hello) -> Peer {
    let rank = hello.payload.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    Peer { rank, ..hello.peer() }
}

/// Fresh randomness for one handshake.
pub(crate) fn nonce() -> Result<[u8; NONCE_BYTES]> {
    let mut nonce = [0; NONCE_BYTES];
    random::fill("drawing a nonce", &mut nonce)?;
    Ok(nonce)
}

/// The kind of a source, as in `cookie file`, without where it lies.
fn without_path(source: &str) -> String {
    let words: Vec<&str> = source.split(' ').take_while(|word| !word.contains(['/', '~'])).collect();
    if words.is_empty() { "a file".to_owned() } else { words.join(" ") }
}

/// A text that a hello can carry: the end of a long path says more than its start.
fn shortened(text: &str) -> String {
    let printable: String = text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect();
    let mut begin = printable.len().saturating_sub(HANDSHAKE_TEXT_BYTES_MAX);
    while !printable.is_char_boundary(begin) {
        begin += 1;
    }
    printable[begin..].to_owned()
}
