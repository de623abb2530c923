//! What a node makes of the last word of a peer, the same for every link between processes.

use sheave_base::{Error, ErrorKind, Peer};
use sheave_wire::CloseReason;

/// What is said of a link whose peer has said all.
const IN_ORDER: &str = "the peer closed the link";

/// Whether a link ended with this reason because its peer closed it in order: the peer lives, or lived until then.
#[must_use]
pub fn was_closed_in_order(reason: &Error) -> bool {
    reason.kind() == ErrorKind::PeerLost && reason.what() == IN_ORDER
}

/// The reason of a link that its other end has closed with `code`, a [`CloseReason`] or something unknown.
pub(crate) fn closed_by_peer(code: u64, peer: &Peer) -> Error {
    match u8::try_from(code).ok().and_then(CloseReason::from_code) {
        Some(CloseReason::DeclaredDead) => {
            Error::new(ErrorKind::DeclaredDead, "it showed no sign of life for too long, and the others went on")
                .hint("this process must join again; the operations of its old membership are void")
                .operation("link")
        }
        Some(CloseReason::Protocol) => {
            Error::new(ErrorKind::Protocol, "the peer closed the link: it could not make sense of what we sent")
        }
        Some(CloseReason::Failed) => Error::new(ErrorKind::PeerLost, "the peer failed and closed the link"),
        _ => Error::new(ErrorKind::PeerLost, IN_ORDER),
    }
    .peer(peer.clone())
}

/// What the peer is told when this side cannot go on because of `error`.
pub(crate) fn code_for(error: &Error) -> CloseReason {
    match error.kind() {
        ErrorKind::Protocol | ErrorKind::LimitExceeded | ErrorKind::Mismatch => CloseReason::Protocol,
        ErrorKind::PeerLost | ErrorKind::DeclaredDead => CloseReason::Finished,
        _ => CloseReason::Failed,
    }
}
