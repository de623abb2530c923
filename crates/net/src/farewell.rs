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

/// Says that the other end of a link is gone without a word, as that of a process that was killed.
pub(crate) const DROPPED: &str = "its end of the link was dropped without a word";
pub(crate) const PROCESS_ENDED: &str = "its process ended";
/// What the reasons of broken connections begin with.
pub(crate) const CONNECTION_DROPPED: &str = "its end of the connection was dropped";
pub(crate) const CONNECTION_BROKE: &str = "the connection broke";

/// Whether a link ended with this reason because its peer, or the way to it, was gone: the peer has neither closed the
/// link nor been silent.
#[must_use]
pub fn was_dropped(reason: &Error) -> bool {
    let what = reason.what();
    let is_one = [DROPPED, PROCESS_ENDED, CONNECTION_DROPPED, CONNECTION_BROKE].iter().any(|one| what.starts_with(one));
    reason.kind() == ErrorKind::PeerLost && is_one
}

/// The reason of a link that its other end has closed with `code`, a [`CloseReason`] or something unknown.
pub(crate) fn closed_by_peer(code: u64, peer: &Peer) -> Error {
    match u8::try_from(code).ok().and_then(CloseReason::from_code) {
        Some(CloseReason::DeclaredDead) => {
            Error::new(ErrorKind::DeclaredDead, "it has ended the link, for this process was silent for too long")
                .hint("this process must join again; the operations of its old membership are void")
                .operation("link")
        }
        Some(CloseReason::Protocol) => {
            Error::new(ErrorKind::Protocol, "the peer closed the link: it could not make sense of what we sent")
        }
        Some(CloseReason::Short) => {
            Error::new(ErrorKind::PeerLost, "it has given up: it lacks file descriptors, memory or threads")
                .hint("its own output says what it lacks, and what raises the limit")
        }
        Some(CloseReason::Failed) => Error::new(ErrorKind::PeerLost, "the peer failed and closed the link"),
        _ => Error::new(ErrorKind::PeerLost, IN_ORDER),
    }
    .peer(peer.clone())
}

/// What the peer is told when this side cannot go on because of `error`.
pub(crate) fn code_for(error: &Error) -> CloseReason {
    match error.kind() {
        _ if error.is_shortage() => CloseReason::Short,
        ErrorKind::Protocol | ErrorKind::LimitExceeded | ErrorKind::Mismatch => CloseReason::Protocol,
        kind if kind.is_loss() || kind == ErrorKind::DeclaredDead => CloseReason::Finished,
        _ => CloseReason::Failed,
    }
}
