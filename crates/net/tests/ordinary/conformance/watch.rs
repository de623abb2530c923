//! Limits in time.

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Runs `test` and ends the process with the test's name when it takes longer.
pub(crate) fn limited(name: &'static str, limit_s: u64, test: impl FnOnce()) {
    let (finished, watched) = channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if watched.recv_timeout(Duration::from_secs(limit_s)) == Err(RecvTimeoutError::Timeout) {
            let _ = writeln!(std::io::stderr(), "test {name} took more than {limit_s} s");
            std::process::abort();
        }
    });
    test();
    drop(finished);
    watchdog.join().expect("the watchdog only waits");
}

/// A deadline for one operation that should take no time at all.
pub(crate) fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(60))
}

/// Waits until `condition` holds; panics with `what` when it does not within 20 s.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(20), "still not: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
