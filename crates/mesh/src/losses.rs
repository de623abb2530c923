//! Notes about lost peers for the launcher of this process, who is to blame the one that ended first.
//!
//! A note is written when a link ends, when a member says that it failed, when the mesh has agreed that one is gone,
//! and when an error about a lost member is about to be handed to somebody: always before an operation of this node
//! fails for it. So whoever sees this process end because of that finds the note already there.

use crate::driver::Shared;
use parking_lot::Mutex;
use sheave_base::loss::Loss;
use sheave_base::{Error, NodeId};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;

/// How the mesh says that a member has gone in order, which its error shares with that of a death.
const LEFT: &str = "left the mesh";

/// What this node has noted.
#[derive(Default)]
pub(crate) struct Losses {
    /// Where to; unset if nobody wants to know.
    pub(crate) path: OnceLock<PathBuf>,
    noted: Mutex<BTreeSet<Loss>>,
}

impl Shared {
    /// Notes that `node` is gone.
    pub(crate) fn note_loss(&self, node: NodeId, is_left: bool) {
        if let Some(member) = self.losses.path.get().and_then(|_| self.member(node)) {
            self.note(&member.introduction.name, is_left);
        }
    }

    /// Notes whom an error is about that somebody is about to get.
    pub(crate) fn note_error(&self, error: &Error) {
        // Of guests the launcher knows nothing.
        if error.about().and_then(|peer| peer.node).is_some_and(|node| self.attached.has(node)) {
            return;
        }
        if let (true, Some(_), Some(peer)) = (error.kind().is_loss(), self.losses.path.get(), error.about()) {
            self.note(&peer.name, error.what().contains(LEFT));
        }
    }

    /// Once for each peer, and not when this node is about to go itself.
    fn note(&self, of: &str, is_left: bool) {
        let is_going = self.is_going.load(SeqCst) || self.stopping.load(SeqCst);
        let (Some(path), Some(me)) = (self.losses.path.get().filter(|_| !is_going), self.member(self.me)) else {
            return;
        };
        let loss = Loss { by: me.introduction.name.clone(), of: of.to_owned(), is_left };
        if loss.by != loss.of && self.losses.noted.lock().insert(loss.clone()) {
            loss.note(path);
        }
    }
}
