//! Notes about lost peers for the launcher of this process, who is to blame the one that ended first.
//!
//! A note is written when a link ends, and when the mesh has agreed that a member is gone, in both cases before any
//! operation of this node fails for it: whoever sees this process end because of that finds the note already there.

use crate::driver::Shared;
use sheave_base::NodeId;
use sheave_base::loss::Loss;
use std::sync::atomic::Ordering::SeqCst;

impl Shared {
    /// Notes that `node` is gone, unless this node is about to go itself, or nobody wants to know.
    pub(crate) fn note_loss(&self, node: NodeId, is_left: bool) {
        let is_going = self.is_going.load(SeqCst) || self.stopping.load(SeqCst);
        let Some(path) = self.losses.get().filter(|_| !is_going) else { return };
        let name = |node| self.member(node).map(|member| member.introduction.name.clone());
        if let (Some(by), Some(of)) = (name(self.me), name(node)) {
            Loss { by, of, is_left }.note(path);
        }
    }
}
