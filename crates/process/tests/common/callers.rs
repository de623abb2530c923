//! Which file of a test binary calls: its own function `actor` is the one that a copy of the binary runs for it.

use std::panic::Location;

/// The name under which the binary runs `function` of the file that calls, as `kills::actor`. What stands between
/// that file and this function is marked with `#[track_caller]`, and calls outside of closures.
#[track_caller]
pub(crate) fn in_this_file(function: &str) -> String {
    let file = Location::caller().file();
    let (_, path) = file.rsplit_once("/tests/").expect("the caller is a file of tests");
    let (binary, module) = path.split_once('/').expect("a test binary is a folder");
    assert_ne!(binary, "common", "{file} acts for a file of tests, and is marked with #[track_caller] nowhere");
    let module = module.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
    format!("{module}::{function}")
}
