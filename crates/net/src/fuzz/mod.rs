//! What the fuzz targets of links do with their input. The tests here replay the corpus.
//!
//! Each takes any bytes and panics only if sheave is wrong: a decoder panicked, it took what it should refuse or
//! refused it in another way than it documents, or a message came out other than it went in.

use crate::Address;
use sheave_base::ErrorKind;

#[cfg(all(test, not(loom)))]
mod seeds;
pub(crate) mod sink;

/// The text of an address.
pub fn address(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let address = match text.parse::<Address>() {
        Ok(address) => address,
        Err(error) => return assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}"),
    };
    assert!(address.tcp.is_some() || address.unix.is_some());
    let written = address.to_string();
    assert_eq!(written.parse::<Address>().expect("what was written can be read"), address);
    assert_eq!(written.parse::<Address>().expect("as before").to_string(), written);
}

/// A ring of records in shared memory: see the function of this name beside it.
pub fn ring(data: &[u8]) {
    crate::shm::ring_fuzz(data);
}

/// What comes to a node over a link through shared memory.
pub fn shm_records(data: &[u8]) {
    crate::shm::records_fuzz(data);
}

/// What comes to a node over a TCP link.
pub fn tcp_stream(data: &[u8]) {
    crate::tcp::stream_fuzz(data);
}

#[cfg(all(test, not(loom)))]
#[path = "../../../../fuzz/replay.rs"]
mod replay;
