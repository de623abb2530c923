//! Tensors in safetensors files.
//!
//! Saving is atomic: the bytes go to a temporary file beside the target, are forced to disk, and only then take its
//! name, so that a crash at any moment leaves the old file or the new one. The same tensors give the same bytes.
//!
//! A file has a checksum among its metadata, and one that does not fit it is refused. Files of others have none, and
//! are taken as they are.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use safetensors::Dtype as FileDtype;
use safetensors::tensor::{Metadata, TensorInfo};
use sheave_base::limits::{CONTROL_BYTES_MAX, VALUE_ITEMS_MAX};
use sheave_base::{Error, ErrorKind, Result};

use crate::{Dtype, Shape, Tensor};

mod checksum;
mod stream;
mod temporary;

pub use stream::{Reader, Writer};
use temporary::Temporary;

/// The key under which the format keeps free text; no tensor can have this name.
const METADATA_KEY: &str = "__metadata__";

/// What a file holds.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// The tensors by name, each in private memory of its own.
    pub tensors: BTreeMap<String, Tensor>,
    /// Free text by key.
    pub metadata: BTreeMap<String, String>,
}

/// Writes tensors to a file, atomically. Blocks until the disk has them.
///
/// ```
/// use sheave_tensor::{Tensor, file};
///
/// let path = std::env::temp_dir().join(format!("sheave-doc-{}.safetensors", std::process::id()));
/// let weights = Tensor::from_slice(&[1.0_f32, 2.0], [2])?;
/// file::save(&path, &[("weights", &weights)], &[("epoch", "3")])?;
/// let contents = file::load(&path)?;
/// assert_eq!(contents.tensors["weights"].to_vec::<f32>()?, [1.0, 2.0]);
/// assert_eq!(contents.metadata["epoch"], "3");
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), sheave_base::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Unsupported`] for a dtype that the format does not have (complex128), [`ErrorKind::InvalidArgument`]
/// for names that are reserved or occur twice, [`ErrorKind::LimitExceeded`] beyond [`CONTROL_BYTES_MAX`] of names and
/// shapes; [`ErrorKind::Io`]. After an error the file is what it was before.
pub fn save(path: impl AsRef<Path>, tensors: &[(&str, &Tensor)], metadata: &[(&str, &str)]) -> Result<()> {
    let path = path.as_ref();
    save_to(path, tensors, metadata).map_err(|error| error.context(path.display()).operation("save"))
}

fn save_to(path: &Path, tensors: &[(&str, &Tensor)], metadata: &[(&str, &str)]) -> Result<()> {
    let heads: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor.dtype(), tensor.shape())).collect();
    let mut writer = Writer::begin(path, &heads, metadata)?;
    for (name, tensor) in tensors {
        writer.put(name, 0, tensor).map_err(|error| error.context(format!("tensor {name}")))?;
    }
    writer.end()
}

/// The header, and where in the data each tensor is.
fn header(tensors: &[(&str, Dtype, &Shape)], metadata: &[(&str, &str)]) -> Result<(Vec<u8>, Vec<Range<u64>>)> {
    let refused = |what: String| Error::new(ErrorKind::InvalidArgument, what);
    let mut infos = Vec::with_capacity(tensors.len());
    let mut ranges = Vec::with_capacity(tensors.len());
    let mut end_bytes = 0u64;
    let mut names = std::collections::HashSet::new();
    for &(name, dtype, shape) in tensors {
        if name == METADATA_KEY || !names.insert(name) {
            return Err(refused(format!("a tensor cannot be named {name:?} here: reserved, or there twice")));
        }
        let file_dtype = to_file(dtype).ok_or_else(|| {
            let what = format!("safetensors has no {dtype} (tensor {name})");
            Error::new(ErrorKind::Unsupported, what).hint("save real and imaginary parts as two tensors")
        })?;
        let len_bytes = shape.elements().and_then(|elements| elements.checked_mul(dtype.size_bytes() as u64));
        let end = len_bytes.and_then(|len_bytes| len_bytes.checked_add(end_bytes));
        let end = end.ok_or_else(|| refused(format!("tensor {name} is larger than any file")))?;
        let data_offsets = (end_bytes as usize, end as usize);
        let shape = shape.dimensions().iter().map(|&dimension| dimension as usize).collect();
        ranges.push(end_bytes..end);
        end_bytes = end;
        infos.push((name.to_owned(), TensorInfo { dtype: file_dtype, shape, data_offsets }));
    }
    let mut text: HashMap<_, _> = metadata.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    if text.len() < metadata.len() {
        return Err(refused("a metadata key occurs twice".to_owned()));
    }
    if text.insert(checksum::KEY.to_owned(), checksum::NONE.to_owned()).is_some() {
        return Err(refused(format!("the metadata key {} is reserved", checksum::KEY)));
    }
    let described = Metadata::new(Some(text), infos).map_err(|error| refused(error.to_string()))?;
    // Through a value, whose keys are sorted: the same tensors give the same bytes.
    let value = serde_json::to_value(&described).map_err(|error| refused(error.to_string()))?;
    let mut bytes = value.to_string().into_bytes();
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    if bytes.len() > CONTROL_BYTES_MAX {
        let what = format!("names and shapes take {} bytes, at most {CONTROL_BYTES_MAX} are possible", bytes.len());
        return Err(Error::new(ErrorKind::LimitExceeded, what).hint("save in several files"));
    }
    Ok((bytes, ranges))
}

/// Reads all tensors of a file. Blocks while the disk delivers them.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] when the file is not whole, does not fit its checksum or is not a safetensors file,
/// [`ErrorKind::Unsupported`] for a dtype that sheave does not have, [`ErrorKind::LimitExceeded`],
/// [`ErrorKind::NotFound`], [`ErrorKind::Io`]; all of them name the file.
pub fn load(path: impl AsRef<Path>) -> Result<Contents> {
    let path = path.as_ref();
    load_from(path).map_err(|error| error.context(path.display()).operation("load"))
}

fn load_from(path: &Path) -> Result<Contents> {
    let reader = Reader::begin(path)?;
    let mut contents = Contents { metadata: reader.metadata().clone(), ..Contents::default() };
    for name in reader.names() {
        let tensor = reader.whole(&name).map_err(|error| error.context(format!("tensor {name}")))?;
        contents.tensors.insert(name, tensor);
    }
    Ok(contents)
}

fn read_header(file: &mut File, file_bytes: u64) -> Result<Metadata> {
    let mut length = [0_u8; 8];
    file.read_exact(&mut length).map_err(|error| corrupt(format!("it has no header: {error}")))?;
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > CONTROL_BYTES_MAX as u64 {
        let what = format!("its header has {header_bytes} bytes, at most {CONTROL_BYTES_MAX} are possible");
        return Err(Error::new(ErrorKind::LimitExceeded, what).hint("is this a safetensors file?"));
    }
    if header_bytes > file_bytes.saturating_sub(8) {
        return Err(corrupt(format!("its header of {header_bytes} bytes is cut off at {file_bytes}")));
    }
    let mut header = vec![0_u8; header_bytes as usize];
    file.read_exact(&mut header)?;
    checksum::check(length, &header, file)?;
    let described: Metadata = serde_json::from_slice(&header).map_err(|error| corrupt(format!("header: {error}")))?;
    let tensors = described.tensors();
    if tensors.len() > VALUE_ITEMS_MAX {
        let what = format!("it has {} tensors, at most {VALUE_ITEMS_MAX} are possible", tensors.len());
        return Err(Error::new(ErrorKind::LimitExceeded, what));
    }
    // Parsing has checked that the tensors follow each other without gaps and fit their shapes.
    let declared_bytes = (described.data_len() as u64).saturating_add(8 + header_bytes);
    if declared_bytes != file_bytes {
        return Err(corrupt(format!("it has {file_bytes} bytes and its header declares {declared_bytes}")));
    }
    Ok(described)
}

fn corrupt(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidArgument, what).hint("the file is damaged or is not a safetensors file")
}

fn to_file(dtype: Dtype) -> Option<FileDtype> {
    Some(match dtype {
        Dtype::Bool => FileDtype::BOOL,
        Dtype::U8 => FileDtype::U8,
        Dtype::U16 => FileDtype::U16,
        Dtype::U32 => FileDtype::U32,
        Dtype::U64 => FileDtype::U64,
        Dtype::I8 => FileDtype::I8,
        Dtype::I16 => FileDtype::I16,
        Dtype::I32 => FileDtype::I32,
        Dtype::I64 => FileDtype::I64,
        Dtype::F16 => FileDtype::F16,
        Dtype::Bf16 => FileDtype::BF16,
        Dtype::F32 => FileDtype::F32,
        Dtype::F64 => FileDtype::F64,
        Dtype::Complex64 => FileDtype::C64,
        Dtype::Complex128 => return None,
        Dtype::Fp8E4M3 => FileDtype::F8_E4M3,
        Dtype::Fp8E5M2 => FileDtype::F8_E5M2,
    })
}

fn from_file(dtype: FileDtype) -> Option<Dtype> {
    Dtype::ALL.into_iter().find(|&ours| to_file(ours) == Some(dtype))
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn every_dtype_comes_back() {
        let folder = folder();
        let path = folder.path().join("all.safetensors");
        let made = Dtype::ALL.into_iter().filter(|dtype| to_file(*dtype).is_some()).map(|dtype| {
            let mut tensor = Tensor::private(dtype, [3, 5]).unwrap();
            tensor.bytes_mut().unwrap().iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8 ^ dtype.code());
            (dtype.name(), tensor)
        });
        let mut made: Vec<_> = made.collect();
        made.push(("scalar", Tensor::from_slice(&[1_i64], []).unwrap()));
        made.push(("nothing", Tensor::private(Dtype::F32, [4, 0]).unwrap()));
        let named: Vec<_> = made.iter().map(|(name, tensor)| (*name, tensor)).collect();
        save(&path, &named, &[("b", "2"), ("a", "1")]).unwrap();
        let contents = load(&path).unwrap();
        assert_eq!((contents.tensors.len(), contents.metadata["a"].as_str()), (made.len(), "1"));
        for (name, tensor) in &made {
            let loaded = &contents.tensors[*name];
            assert_eq!((loaded.dtype(), loaded.shape()), (tensor.dtype(), tensor.shape()));
            assert_eq!(loaded.bytes().unwrap()[..], tensor.bytes().unwrap()[..]);
        }
        let bytes = std::fs::read(&path).unwrap();
        let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(theirs.tensor("f32").unwrap().data(), &made[8].1.bytes().unwrap()[..]);
        save(&path, &named, &[("a", "1"), ("b", "2")]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "the same tensors give the same bytes");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn what_cannot_be_saved_leaves_the_old_file() {
        let folder = folder();
        let path = folder.path().join("kept.safetensors");
        let good = Tensor::from_slice(&[1_u8], [1]).unwrap();
        save(&path, &[("good", &good)], &[]).unwrap();
        let complex = Tensor::private(Dtype::Complex128, [1]).unwrap();
        let shared = Tensor::private(Dtype::U8, [1]).unwrap();
        shared.buffer().share().unwrap();
        for (tensors, kind) in [
            (vec![("x", &complex)], ErrorKind::Unsupported),
            (vec![("good", &good), ("x", &shared)], ErrorKind::Unsupported),
            (vec![(METADATA_KEY, &good)], ErrorKind::InvalidArgument),
            (vec![("x", &good), ("x", &good)], ErrorKind::InvalidArgument),
        ] {
            let error = save(&path, &tensors, &[]).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains("kept.safetensors"), "{error}");
        }
        assert!(save(folder.path().join("no/such/folder"), &[], &[]).is_err());
        assert!(save("/", &[], &[]).is_err());
        assert_eq!(load(&path).unwrap().tensors["good"].to_vec::<u8>().unwrap(), [1]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn f31_a_link_where_the_temporary_file_is_to_be_is_not_followed() {
        let folder = folder();
        let (path, precious) = (folder.path().join("new.safetensors"), folder.path().join("precious"));
        std::fs::write(&precious, "of somebody else").unwrap();
        for number in 0..256 {
            let expected = format!(".new.safetensors.{}-{number}.tmp", std::process::id());
            std::os::unix::fs::symlink(&precious, folder.path().join(expected)).unwrap();
        }
        let tensor = Tensor::from_slice(&[1_u8, 2], [2]).unwrap();
        save(&path, &[("x", &tensor)], &[]).unwrap();
        assert_eq!(std::fs::read(&precious).unwrap(), b"of somebody else");
        assert!(!std::fs::symlink_metadata(&path).unwrap().is_symlink());
        assert_eq!(load(&path).unwrap().tensors["x"].to_vec::<u8>().unwrap(), [1, 2]);
    }

    #[test]
    fn f31_a_flipped_bit_anywhere_behind_the_length_is_noticed() {
        let folder = folder();
        let path = folder.path().join("x");
        let tensor = Tensor::from_slice(&[1.5_f32; 9], [3, 3]).unwrap();
        save(&path, &[("w", &tensor), ("v", &tensor)], &[("steps", "17")]).unwrap();
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(load(&path).unwrap().metadata.into_iter().collect::<Vec<_>>(), [("steps".into(), "17".into())]);
        // Without its name a checksum is none, as in files of others.
        let name = b"\"sheave.crc32\"";
        let named = whole.windows(name.len()).position(|bytes| bytes == name).map_or(0..0, |at| at..at + name.len());
        for place in (8..whole.len()).filter(|place| !named.contains(place)) {
            let mut flipped = whole.clone();
            flipped[place] ^= 1;
            std::fs::write(&path, &flipped).unwrap();
            let error = load(&path).expect_err("it is damaged");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "byte {place}: {error}");
        }
    }

    #[test]
    fn f31_an_element_that_is_written_twice_in_place_of_another_is_noticed() {
        let folder = folder();
        let mut writer = Writer::create(folder.path().join("x"), &[("w", Dtype::U8, &[4].into())], &[]).unwrap();
        let pair = Tensor::from_slice(&[1_u8, 2], [2]).unwrap();
        writer.write("w", 0, &pair).unwrap();
        writer.write("w", 1, &pair).unwrap();
        assert_eq!(writer.finish().unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    fn file_of(header: &str, data_bytes: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + data_bytes, 7);
        bytes
    }

    #[test]
    fn damaged_files_are_errors_that_name_the_file() {
        let folder = folder();
        let path = folder.path().join("damaged.safetensors");
        let many = format!(r#"{{"x":{{"dtype":"U8","shape":[{}1],"data_offsets":[0,1]}}}}"#, "1,".repeat(64));
        for (bytes, kind) in [
            (vec![], ErrorKind::InvalidArgument),
            (vec![1; 7], ErrorKind::InvalidArgument),
            (u64::MAX.to_le_bytes().to_vec(), ErrorKind::LimitExceeded),
            (1000_u64.to_le_bytes().to_vec(), ErrorKind::InvalidArgument),
            (file_of("not json", 0), ErrorKind::InvalidArgument),
            (file_of(&"[".repeat(100_000), 0), ErrorKind::InvalidArgument),
            (file_of("{}", 1), ErrorKind::InvalidArgument),
            (file_of(r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 7), ErrorKind::InvalidArgument),
            (file_of(r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#, 4), ErrorKind::InvalidArgument),
            (file_of(r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#, 8), ErrorKind::InvalidArgument),
            (file_of(r#"{"x":{"dtype":"F8_E8M0","shape":[1],"data_offsets":[0,1]}}"#, 1), ErrorKind::Unsupported),
            (file_of(&many, 1), ErrorKind::LimitExceeded),
        ] {
            std::fs::write(&path, &bytes).unwrap();
            let error = load(&path).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains("damaged.safetensors"), "{error}");
        }
        assert_eq!(load(folder.path().join("none")).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(load(folder.path()).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

        /// One flipped byte anywhere in the header, or a cut anywhere, never panics; a cut is always noticed.
        #[test]
        fn no_damage_panics(place in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let folder = folder();
            let path = folder.path().join("x");
            let tensor = Tensor::from_slice(&[1.5_f32; 9], [3, 3]).unwrap();
            save(&path, &[("w", &tensor), ("v", &tensor)], &[("k", "v")]).unwrap();
            let whole = std::fs::read(&path).unwrap();
            let mut flipped = whole.clone();
            let place = place.index(whole.len());
            flipped[place] ^= byte;
            std::fs::write(&path, &flipped).unwrap();
            let _ = load(&path);
            std::fs::write(&path, &whole[..place]).unwrap();
            prop_assert!(load(&path).is_err());
        }
    }
}
