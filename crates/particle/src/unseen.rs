//! Errors that nobody has looked at.
//!
//! A message that is sent and not waited for may fail, and a program would go on as if it had not. So an answer whose
//! last handle is dropped unseen tells its error to the user, or has whoever ends it do so. What was cancelled, or has
//! ended with its node or its particles, was to end: there is nothing to tell.

use crate::id::ParticleId;
use crate::message::Payload;
use crate::particles::Inner;
use sheave_base::{Error, ErrorKind, Work, limits};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

/// Has the error of a work, if there is one, told when it is there. Nobody else looks at it any more.
pub(crate) fn watch<M: Payload>(work: &Work<M>, runtime: &Arc<Inner<M>>, (to, name): (ParticleId, Arc<str>)) {
    let runtime = Arc::downgrade(runtime);
    work.on_complete(move |outcome| {
        if let Err(error) = outcome {
            tell(&runtime, to, &name, error);
        }
    });
}

fn tell<M: Payload>(runtime: &Weak<Inner<M>>, to: ParticleId, name: &str, error: &Error) {
    if matches!(error.kind(), ErrorKind::Cancelled | ErrorKind::Closed) {
        return;
    }
    let Some(runtime) = runtime.upgrade() else { return };
    let told = runtime.unseen.fetch_add(1, Relaxed);
    if told >= limits::PARTICLE_UNSEEN_TOLD {
        return;
    }
    let last = if told + 1 == limits::PARTICLE_UNSEEN_TOLD { "; further ones are not told" } else { "" };
    let whom = runtime.shown(to);
    if let Ok(mesh) = runtime.mesh() {
        mesh.node().notice(&format!("\"{name}\" of {whom} failed, and nobody looked at its answer: {error}{last}"));
    }
}
