//! Every fuzz input that is checked in, with cuts and flipped bits, through every decoder, on stable Rust.
//!
//! Seeds are written by the tests themselves with `SHEAVE_BLESS=1`; inputs that long fuzzing finds are added beside
//! them by hand and replay too.

use std::fs;
use std::path::PathBuf;

use crate::golden::is_blessing;
use crate::hostile::check_allocations;
use crate::{fuzz, samples};

/// The whole corpus is replayed with changed bits, so an input has to be small.
const SEED_BYTES_MAX: usize = 4096;

fn directory(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

#[test]
fn seeds_are_what_the_current_format_makes() {
    for (target, seeds) in samples::seeds() {
        let directory = directory(target);
        if is_blessing() {
            fs::create_dir_all(&directory).unwrap();
        }
        for (name, bytes) in seeds {
            let path = directory.join(&name);
            if is_blessing() {
                fs::write(&path, &bytes).unwrap();
            }
            assert_eq!(fs::read(&path).unwrap(), bytes, "fuzz/corpus/{target}/{name}");
        }
    }
}

fn replay(target: &str, run: fn(&[u8])) {
    let mut count = 0;
    for entry in fs::read_dir(directory(target)).unwrap() {
        let path = entry.unwrap().path();
        let mut input = fs::read(&path).unwrap();
        assert!(input.len() <= SEED_BYTES_MAX, "{} is too long for a seed", path.display());
        count += 1;
        run(&input);
        check_allocations(&input);
        for length_bytes in 0..input.len() {
            run(&input[..length_bytes]);
            check_allocations(&input[..length_bytes]);
        }
        for bit in 0..input.len() * 8 {
            input[bit / 8] ^= 1 << (bit % 8);
            run(&input);
            check_allocations(&input);
            input[bit / 8] ^= 1 << (bit % 8);
        }
    }
    assert!(count > 0, "no corpus for {target}");
}

#[test]
fn header() {
    replay("header", fuzz::header);
}

#[test]
fn parts() {
    replay("parts", fuzz::parts);
}

#[test]
fn value() {
    replay("value", fuzz::value);
}

#[test]
fn error() {
    replay("error", fuzz::error);
}

#[test]
fn handshake() {
    replay("handshake", fuzz::handshake);
}
