//! What each side says of itself before anybody is believed.

use sha2::{Digest, Sha256};
use sheave_base::config::Role;
use sheave_base::{Error, ErrorKind, NodeId, Peer, Result, limits};

use crate::header::{PROTOCOL_VERSION, coded};
use crate::reader::{Reader, protocol, put_bytes};

/// The first bytes of every hello. They and the two version bytes behind them stay as they are in all versions.
const HELLO_MAGIC: [u8; 6] = *b"sheave";

/// Length of a nonce in bytes.
pub const NONCE_BYTES: usize = 32;

coded! {
    /// What carries the link that a handshake opens. Codes are append-only.
    Medium {
        /// Shared memory, set up over a Unix socket.
        SharedMemory = 1,
        /// A TCP connection.
        Tcp = 2,
    }
}

/// What one side says of itself. It is proven to come from a holder of the secret only when the handshake is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Oldest protocol version that this side speaks.
    pub version_min: u8,
    /// Newest protocol version that this side speaks.
    pub version_max: u8,
    /// The node.
    pub node: NodeId,
    /// Its unique name in the mesh.
    pub name: String,
    /// Its role, such as `worker`.
    pub role: String,
    /// Its host's name.
    pub host: String,
    /// Its host's boot id: equal on both sides if they can share memory.
    pub boot_id: String,
    /// Its process id on that host.
    pub pid: u32,
    /// What carries the link.
    pub medium: Medium,
    /// The limits that both sides must agree on, see [`limits_hash`].
    pub limits_hash: u64,
    /// Where its secret came from, for people. Strangers can read it.
    pub secret_source: String,
    /// What the room above has to say before the first message. Strangers can read it.
    pub payload: Vec<u8>,
}

impl Hello {
    /// A hello of this node, in the version and with the limits of this crate; all else is empty.
    #[must_use]
    pub fn new(node: NodeId, name: impl Into<String>, medium: Medium) -> Self {
        Self {
            version_min: PROTOCOL_VERSION,
            version_max: PROTOCOL_VERSION,
            node,
            name: name.into(),
            role: String::new(),
            host: String::new(),
            boot_id: String::new(),
            pid: 0,
            medium,
            limits_hash: limits_hash(),
            secret_source: String::new(),
            payload: Vec::new(),
        }
    }

    /// The same node as errors name it.
    #[must_use]
    pub fn peer(&self) -> Peer {
        let mut peer = Peer::named(self.name.as_str()).node(self.node).pid(self.pid);
        peer.role = Role::from_name(&self.role);
        if self.host.is_empty() { peer } else { peer.host(self.host.as_str()) }
    }

    fn texts(&self) -> [&str; 5] {
        [&self.name, &self.role, &self.host, &self.boot_id, &self.secret_source]
    }

    pub(super) fn encode(&self, nonce: &[u8; NONCE_BYTES], length_bytes_max: usize) -> Result<Vec<u8>> {
        let mut out = HELLO_MAGIC.to_vec();
        out.extend_from_slice(&[self.version_min, self.version_max]);
        out.extend_from_slice(nonce);
        out.extend_from_slice(&self.node.0.to_le_bytes());
        out.extend_from_slice(&self.limits_hash.to_le_bytes());
        out.extend_from_slice(&self.pid.to_le_bytes());
        out.push(self.medium.code());
        for text in self.texts() {
            check_text(text).map_err(|what| Error::new(ErrorKind::InvalidArgument, what))?;
            put_bytes(&mut out, text.as_bytes());
        }
        put_bytes(&mut out, &self.payload);
        if out.len() > length_bytes_max {
            let length_bytes = out.len();
            return Err(Error::new(
                ErrorKind::LimitExceeded,
                format!("a hello of {length_bytes} bytes; the limit is {length_bytes_max}"),
            ));
        }
        Ok(out)
    }
}

/// The start of a hello, which every version can read.
#[derive(Clone, Copy)]
pub(super) struct Preamble {
    pub(super) version_min: u8,
    pub(super) version_max: u8,
}

impl Preamble {
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        if reader.array()? != HELLO_MAGIC {
            return Err(protocol("the other side does not greet as sheave does"));
        }
        Ok(Self { version_min: reader.u8()?, version_max: reader.u8()? })
    }

    /// The newest version that both speak.
    pub(super) fn agree(self, own: &Hello) -> Option<u8> {
        let newest = self.version_max.min(own.version_max);
        (newest >= self.version_min.max(own.version_min)).then_some(newest)
    }
}

/// Reads what follows the preamble.
pub(super) fn decode_rest(preamble: Preamble, mut reader: Reader<'_>) -> Result<(Hello, [u8; NONCE_BYTES])> {
    let nonce = reader.array()?;
    let node = NodeId(reader.u64()?);
    let limits_hash = reader.u64()?;
    let pid = reader.u32()?;
    let medium = reader.u8()?;
    let medium = Medium::from_code(medium).ok_or_else(|| protocol(format!("unknown medium {medium}")))?;
    let mut text = || {
        let text = reader.text()?;
        check_text(text).map_err(protocol)?;
        Ok::<_, Error>(text.to_owned())
    };
    let [name, role, host, boot_id, secret_source] = [text()?, text()?, text()?, text()?, text()?];
    let payload = reader.bytes()?.to_vec();
    reader.end()?;
    let Preamble { version_min, version_max } = preamble;
    let hello = Hello {
        version_min,
        version_max,
        node,
        name,
        role,
        host,
        boot_id,
        pid,
        medium,
        limits_hash,
        secret_source,
        payload,
    };
    Ok((hello, nonce))
}

/// Texts of a hello end up in error messages and on terminals, where a control character could do mischief.
fn check_text(text: &str) -> std::result::Result<(), &'static str> {
    if text.len() > limits::HANDSHAKE_TEXT_BYTES_MAX {
        return Err("a text of a hello is too long");
    }
    if text.chars().any(char::is_control) {
        return Err("a text of a hello has control characters");
    }
    Ok(())
}

/// A digest of the limits that both sides of a link must agree on, because one side's messages must fit the other's.
#[must_use]
pub fn limits_hash() -> u64 {
    let agreed: [u64; 7] = [
        limits::CONTROL_BYTES_MAX as u64,
        limits::PARTS_MAX as u64,
        limits::PART_BYTES_MAX,
        limits::DIMENSIONS_MAX as u64,
        limits::VALUE_DEPTH_MAX as u64,
        limits::VALUE_ITEMS_MAX as u64,
        limits::ENDPOINTS_MAX as u64,
    ];
    let mut digest = Sha256::new();
    for limit in agreed {
        digest.update(limit.to_le_bytes());
    }
    let digest: [u8; 32] = digest.finalize().into();
    let [a, b, c, d, e, f, g, h, ..] = digest;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}
