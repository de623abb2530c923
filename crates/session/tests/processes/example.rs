//! The example of inference by several workers, as users run it.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

fn program() -> PathBuf {
    let test = std::env::current_exe().expect("this program has a path");
    let build = test.parent().and_then(|folder| folder.parent()).expect("it lies in a folder of the build");
    build.join("examples/tensor_parallel")
}

/// Runs it to its end, and returns what it has said.
fn run(kind: &str) -> String {
    let mut command = Command::new(program());
    command.arg(kind).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it is built with the tests");
    let begun = Instant::now();
    while child.try_wait().expect("it is ours").is_none() {
        if begun.elapsed() > PATIENCE {
            child.kill().expect("it is ours");
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().expect("it is ours");
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && told.is_empty(), "{kind}: {}\n{said}{told}", output.status);
    said.into_owned()
}

#[test]
fn blocks_of_four_workers_make_what_one_makes() {
    for kind in ["threads", "processes"] {
        let said = run(kind);
        assert!(said.starts_with("2 blocks of 4 workers in "), "{kind}: {said}");
    }
}

#[test]
fn without_a_kind_it_says_what_it_expects() {
    let output = Command::new(program()).stdin(Stdio::null()).output().expect("it is built with the tests");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("threads or processes"), "{output:?}");
}
