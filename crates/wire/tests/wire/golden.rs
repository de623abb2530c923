//! The bytes on the wire are a promise: these files say what they are, and change only with the protocol version.
//!
//! Each line of a file is a name and bytes in hexadecimal. To write them anew after a deliberate change, run the tests
//! with `SHEAVE_BLESS=1` and look at the difference.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use sheave_base::Error;
use sheave_wire::{Header, codec, from_control, parts, to_control};

use crate::samples;

/// Whether checked-in files are to be written rather than compared.
pub(crate) fn is_blessing() -> bool {
    std::env::var_os("SHEAVE_BLESS").is_some()
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name).with_extension("hex")
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes();
    assert!(digits.len().is_multiple_of(2), "half a byte");
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// Compares `current` with the file and returns what the file says, by name.
fn golden(file: &str, current: &[(&str, Vec<u8>)]) -> Vec<(String, Vec<u8>)> {
    let path = path(file);
    if is_blessing() {
        let text: String = current.iter().map(|(name, bytes)| format!("{name} {}\n", to_hex(bytes))).collect();
        fs::write(&path, text).unwrap();
    }
    let text = fs::read_to_string(&path).unwrap();
    let lines = text.lines().map(|line| line.split_once(' ').unwrap_or((line, "")));
    let stored: Vec<_> = lines.map(|(name, hex)| (name.to_owned(), from_hex(hex))).collect();
    assert_eq!(stored.len(), current.len(), "{file}: another number of samples");
    for ((stored_name, stored_bytes), (name, bytes)) in stored.iter().zip(current) {
        assert_eq!(stored_name, name, "{file}");
        assert_eq!(to_hex(stored_bytes), to_hex(bytes), "{file}: {name}");
    }
    stored
}

#[test]
fn headers() {
    let samples = samples::headers();
    let current: Vec<_> = samples.iter().map(|(name, header)| (*name, header.encode().to_vec())).collect();
    let stored = golden("header", &current);
    for ((name, bytes), (_, header)) in stored.iter().zip(samples) {
        let bytes: [u8; 64] = bytes.as_slice().try_into().unwrap();
        assert_eq!(Header::decode(&bytes).unwrap(), header, "{name}");
    }
}

#[test]
fn part_tables() {
    let samples = samples::tables();
    let current: Vec<_> = samples.iter().map(|(name, table)| (*name, samples::table_bytes(table))).collect();
    for ((name, bytes), (_, table)) in golden("parts", &current).iter().zip(samples) {
        let (decoded, rest) = parts::decode(bytes, table.len()).unwrap();
        assert_eq!((decoded.as_slice(), rest.len()), (table.as_slice(), 0), "{name}");
    }
}

#[test]
fn values_and_control() {
    let samples = samples::values();
    let mut current: Vec<_> = samples.iter().map(|(name, value)| (*name, codec::encode(value).unwrap())).collect();
    current.push(("control", samples::control_bytes()));
    let stored = golden("value", &current);
    for ((name, bytes), (_, value)) in stored.iter().zip(samples) {
        let decoded = codec::decode(bytes).unwrap();
        // Debug tells -0.0 from 0.0 and takes one NaN for another; the bits of both stand in the file.
        assert_eq!(format!("{decoded:?}"), format!("{value:?}"), "{name}");
    }
}

#[test]
fn errors() {
    let samples = samples::errors();
    let current: Vec<_> = samples.iter().map(|(name, error)| (*name, to_control(error).unwrap())).collect();
    for ((name, bytes), (_, error)) in golden("error", &current).iter().zip(samples) {
        assert_eq!(from_control::<Error>(bytes).unwrap(), error, "{name}");
    }
}

#[test]
fn handshake() {
    golden("handshake", &samples::conversation());
}
