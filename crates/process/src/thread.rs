//! Threads of our own: named, and deaf to signals, which belong to the program that we are part of.

use crate::sys::SignalsBlocked;

/// Starts a thread that blocks all signals for its whole life.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<std::thread::JoinHandle<()>> {
    // A new thread inherits the mask, so there is no moment in which it could take a signal.
    let _blocked = SignalsBlocked::new();
    std::thread::Builder::new().name(name.to_owned()).spawn(body)
}
