//! What the fuzz target of tensors does with its input. The tests here replay the corpus.

use crate::file::{Contents, Reader, load};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::write;
use sheave_base::limits::{DIMENSIONS_MAX, VALUE_ITEMS_MAX};
use sheave_base::{Error, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};

/// A file that claims to be one of tensors, whole. Panics only if sheave is wrong: a decoder panicked, or what it found
/// does not fit what it says of it, or it refused the file in another way than it documents.
pub fn safetensors(data: &[u8]) {
    let file = memory_file(data);
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let contents = load(&path);
    let reader = match Reader::open(&path) {
        Ok(reader) => reader,
        Err(error) => {
            assert_documented(&error);
            return assert!(contents.is_err(), "what cannot be opened cannot be loaded: {error}");
        }
    };
    let names = reader.names();
    assert!(names.len() <= VALUE_ITEMS_MAX);
    let mut data_bytes = 0;
    for name in &names {
        let described = reader.describe(name);
        let (dtype, shape) = match described {
            Ok(described) => described,
            Err(error) => {
                assert_documented(&error);
                assert!(contents.is_err(), "tensor {name}: {error}");
                continue;
            }
        };
        assert!(shape.dimensions().len() <= DIMENSIONS_MAX);
        let elements = shape.elements().expect("it was counted when the file was opened");
        data_bytes += elements as usize * dtype.size_bytes();
        let last = reader.read(name, elements.saturating_sub(1)..elements).expect("it is there");
        assert_eq!(last.elements() as u64, elements.min(1));
        let beyond = reader.read(name, elements..elements.saturating_add(1)).map(|_| ()).expect_err("it ends there");
        assert_eq!(beyond.kind(), ErrorKind::InvalidArgument, "{beyond}");
        if let Ok(Contents { tensors, .. }) = &contents {
            assert_eq!((tensors[name].dtype(), tensors[name].shape()), (dtype, &shape));
        }
    }
    match contents {
        Ok(contents) => assert!(contents.tensors.len() == names.len() && data_bytes <= data.len()),
        Err(error) => assert_documented(&error),
    }
}

fn assert_documented(error: &Error) {
    let kinds = [ErrorKind::InvalidArgument, ErrorKind::Unsupported, ErrorKind::LimitExceeded];
    assert!(kinds.contains(&error.kind()), "{error}");
}

/// A file of these bytes that lies in memory.
fn memory_file(data: &[u8]) -> OwnedFd {
    let file = memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("there is memory");
    let mut rest = data;
    while !rest.is_empty() {
        let written = write(&file, rest).expect("there is memory");
        rest = &rest[written..];
    }
    file
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
#[cfg(not(miri))]
mod replay;

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::replay::Target;
    use super::*;
    use crate::{Dtype, Tensor, file};

    /// `load` and `open` each sum the file through a buffer, and hold its head once as text and once as what it says.
    const TARGET: Target = Target { name: "safetensors", run: safetensors, fixed_bytes: 3 << 20, ratio: 512 };

    fn saved(tensors: &[(&str, &Tensor)], metadata: &[(&str, &str)]) -> Vec<u8> {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("seed");
        file::save(&path, tensors, metadata).expect("it can be saved");
        std::fs::read(&path).expect("it is there")
    }

    /// A file as others write it: without a checksum, so that what is damaged in it gets far.
    fn foreign(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
    }

    #[test]
    fn f43_safetensors_files_replay() {
        let weights = Tensor::from_slice(&[1.0_f32, 2.0, 3.0], [3]).expect("memory");
        let bytes = Tensor::private(Dtype::U8, [0, 4]).expect("memory");
        let two = r#"{"a":{"dtype":"F16","shape":[2,1],"data_offsets":[0,4]},"b":{"dtype":"I64","shape":[],"#;
        let unknown = r#"{"x":{"dtype":"U64","shape":[1],"data_offsets":[0,8]}}"#;
        TARGET.seeds_are_current(&[
            ("nothing", saved(&[], &[])),
            ("one", saved(&[("w", &weights)], &[])),
            ("several", saved(&[("w", &weights), ("empty", &bytes)], &[("step", "7")])),
            ("foreign", foreign(&format!(r#"{two}"data_offsets":[4,12]}}}}"#), &[7; 12])),
            ("foreign_dtype", foreign(unknown, &[1; 8])),
            ("foreign_text", foreign(r#"{"__metadata__":{"a":"b"}}"#, &[])),
        ]);
        TARGET.replay();
    }
}
