//! The real binary, run within a limit of time.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest time for one run, on a machine that does something else too.
const LIMIT: Duration = Duration::from_secs(100);

pub(crate) fn start(arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_sheave"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built for this test")
}

/// Waits until `is_so`; false after the limit.
pub(crate) fn wait_until(mut is_so: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > LIMIT {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// What it prints here fits into a pipe, so it never waits for a reader.
pub(crate) fn finish(mut child: Child) -> Output {
    if !wait_until(|| child.try_wait().expect("it is our child").is_some()) {
        child.kill().expect("it is our child");
        panic!("it did not end: {:?}", child.wait_with_output());
    }
    child.wait_with_output().expect("it has ended")
}

pub(crate) fn sheave(arguments: &[&str]) -> Output {
    finish(start(arguments))
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("people read it")
}
