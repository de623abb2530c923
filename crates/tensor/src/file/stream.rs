//! Files that are written and read piece by piece, so that no more than a piece is in memory.

use super::checksum::{self, Sums};
use super::{Temporary, corrupt, from_file, header, read_header};
use crate::{Dtype, Shape, Tensor};
use safetensors::tensor::{Metadata, TensorInfo};
use sheave_base::limits::PART_BYTES_MAX;
use sheave_base::{Error, ErrorKind, Result};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A file that takes shape beside its place, and gets its name when all of it is on disk. One that is dropped before
/// leaves nothing.
///
/// ```
/// use sheave_tensor::{Dtype, Tensor, file};
///
/// let path = std::env::temp_dir().join(format!("sheave-doc-stream-{}.safetensors", std::process::id()));
/// let mut writer = file::Writer::create(&path, &[("weights", Dtype::F32, &[3].into())], &[])?;
/// writer.write("weights", 1, &Tensor::from_slice(&[2.0_f32, 3.0], [2])?)?;
/// writer.write("weights", 0, &Tensor::from_slice(&[1.0_f32], [1])?)?;
/// writer.finish()?;
/// let reader = file::Reader::open(&path)?;
/// assert_eq!(reader.read("weights", 1..3)?.to_vec::<f32>()?, [2.0, 3.0]);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), sheave_base::Error>(())
/// ```
pub struct Writer {
    temporary: Temporary,
    path: PathBuf,
    tensors: HashMap<String, Place>,
    sums: Sums,
}

struct Place {
    dtype: Dtype,
    bytes: Range<u64>,
    left_bytes: u64,
}

impl Writer {
    /// Begins a file with tensors of these names, dtypes and shapes, and this free text. Blocks on the disk.
    ///
    /// # Errors
    /// Those of [`save`](super::save).
    pub fn create(
        path: impl AsRef<Path>,
        tensors: &[(&str, Dtype, &Shape)],
        metadata: &[(&str, &str)],
    ) -> Result<Self> {
        let path = path.as_ref();
        Self::begin(path, tensors, metadata).map_err(|error| error.context(path.display()).operation("save"))
    }

    pub(super) fn begin(path: &Path, tensors: &[(&str, Dtype, &Shape)], metadata: &[(&str, &str)]) -> Result<Self> {
        let mut ordered = tensors.to_vec();
        // Widest elements first, so that every tensor in the file is aligned to its elements.
        ordered.sort_by_key(|(name, dtype, _)| (std::cmp::Reverse(dtype.size_bytes()), *name));
        let (header, ranges) = header(&ordered, metadata)?;
        let data_start = 8 + header.len() as u64;
        let temporary = Temporary::beside(path)?;
        let length = (header.len() as u64).to_le_bytes();
        temporary.file.write_all_at(&length, 0)?;
        temporary.file.write_all_at(&header, 8)?;
        let sums = Sums::new(length, &header)?;
        let place = |((name, dtype, _), range): (&(&str, Dtype, &Shape), Range<u64>)| {
            let bytes = data_start + range.start..data_start + range.end;
            ((*name).to_owned(), Place { dtype: *dtype, left_bytes: bytes.end - bytes.start, bytes })
        };
        let tensors = ordered.iter().zip(ranges).map(place).collect();
        Ok(Self { temporary, path: path.to_owned(), tensors, sums })
    }

    /// Writes the elements of `piece`, the first of which is this one of the tensor. Each element is written once.
    /// Blocks on the disk.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a name that is not in the file or elements beyond the last, or more than
    /// there are; [`ErrorKind::Mismatch`] for another dtype; [`ErrorKind::BufferInUse`], [`ErrorKind::Io`].
    pub fn write(&mut self, name: &str, first_element: u64, piece: &Tensor) -> Result<()> {
        let outcome = self.put(name, first_element, piece);
        outcome.map_err(|error| error.context(format!("tensor {name}")).context(self.path.display()).operation("save"))
    }

    pub(super) fn put(&mut self, name: &str, first_element: u64, piece: &Tensor) -> Result<()> {
        let place = self.tensors.get_mut(name);
        let place = place.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "the file has no such tensor"))?;
        if place.dtype != piece.dtype() {
            let what = format!("a piece of {} for a tensor of {}", piece.dtype(), place.dtype);
            return Err(Error::new(ErrorKind::Mismatch, what));
        }
        let len_bytes = piece.len_bytes() as u64;
        let start = first_element.checked_mul(place.dtype.size_bytes() as u64);
        let start = start.and_then(|start| start.checked_add(place.bytes.start));
        let fits = start.and_then(|start| start.checked_add(len_bytes)).is_some_and(|end| end <= place.bytes.end);
        let Some(start) = start.filter(|_| fits && len_bytes <= place.left_bytes) else {
            let what = format!("{} elements from element {first_element} on have no room", piece.elements());
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        };
        let bytes = piece.bytes()?;
        self.temporary.file.write_all_at(&bytes, start)?;
        self.sums.add(start, &bytes);
        place.left_bytes -= len_bytes;
        Ok(())
    }

    /// Gives the file its name, once the disk has it. Blocks.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when elements are missing or were written twice, [`ErrorKind::Io`]; there is no
    /// new file then.
    pub fn finish(self) -> Result<()> {
        let path = self.path.clone();
        self.end().map_err(|error| error.context(path.display()).operation("save"))
    }

    pub(super) fn end(self) -> Result<()> {
        let missing = self.tensors.iter().filter(|(_, place)| place.left_bytes > 0).map(|(name, _)| name).min();
        if let Some(name) = missing {
            return Err(Error::new(ErrorKind::InvalidArgument, format!("tensor {name} was not written whole")));
        }
        let (at, digits) = self.sums.digits()?;
        self.temporary.file.write_all_at(digits.as_bytes(), at)?;
        self.temporary.finish(&self.path)
    }
}

/// A file whose tensors are read piece by piece.
pub struct Reader {
    file: File,
    path: PathBuf,
    described: Metadata,
    metadata: BTreeMap<String, String>,
    data_start: u64,
}

impl Reader {
    /// Opens a file and checks that it is whole, which reads all of it where it has a checksum. Blocks on the disk.
    ///
    /// # Errors
    /// Those of [`load`](super::load).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::begin(path).map_err(|error| error.context(path.display()).operation("load"))
    }

    pub(super) fn begin(path: &Path) -> Result<Self> {
        let mut file = File::open(path).map_err(|error| {
            let kind = if error.kind() == std::io::ErrorKind::NotFound { ErrorKind::NotFound } else { ErrorKind::Io };
            Error::new(kind, error.to_string())
        })?;
        let stat = file.metadata()?;
        if !stat.is_file() {
            return Err(corrupt("it is not a regular file"));
        }
        let described = read_header(&mut file, stat.len())?;
        let texts = described.metadata().iter().flatten().filter(|(key, _)| *key != checksum::KEY);
        let metadata = texts.map(|(key, value)| (key.clone(), value.clone())).collect();
        let data_start = stat.len() - described.data_len() as u64;
        Ok(Self { file, path: path.to_owned(), described, metadata, data_start })
    }

    /// Free text by key.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The names of all tensors, in the order of the file.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.described.offset_keys()
    }

    /// Dtype and shape of a tensor.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a name that is not in the file, [`ErrorKind::Unsupported`] for a dtype that sheave
    /// does not have, [`ErrorKind::InvalidArgument`] when the file is damaged, [`ErrorKind::LimitExceeded`].
    pub fn describe(&self, name: &str) -> Result<(Dtype, Shape)> {
        let described = self.info(name).and_then(describe);
        described.map_err(|error| self.explain(name, error))
    }

    /// Some elements of a tensor, flat, in private memory. Blocks on the disk.
    ///
    /// # Errors
    /// Those of [`describe`](Self::describe); [`ErrorKind::InvalidArgument`] for elements beyond the last,
    /// [`ErrorKind::Io`].
    pub fn read(&self, name: &str, elements: Range<u64>) -> Result<Tensor> {
        self.get(name, elements).map_err(|error| self.explain(name, error))
    }

    pub(super) fn whole(&self, name: &str) -> Result<Tensor> {
        let (_, shape) = self.info(name).and_then(describe)?;
        self.get(name, 0..shape.elements().unwrap_or(0))?.reshape(shape)
    }

    fn get(&self, name: &str, elements: Range<u64>) -> Result<Tensor> {
        let info = self.info(name)?;
        let (dtype, shape) = describe(info)?;
        if elements.start > elements.end || shape.elements().is_none_or(|all| elements.end > all) {
            let what = format!("elements {} to {} of {shape}", elements.start, elements.end);
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let mut tensor = Tensor::private(dtype, [elements.end - elements.start])?;
        let at = self.data_start + info.data_offsets.0 as u64 + elements.start * dtype.size_bytes() as u64;
        self.file.read_exact_at(tensor.bytes_mut()?, at)?;
        Ok(tensor)
    }

    fn info(&self, name: &str) -> Result<&TensorInfo> {
        self.described.info(name).ok_or_else(|| Error::new(ErrorKind::NotFound, "the file has no such tensor"))
    }

    fn explain(&self, name: &str, error: Error) -> Error {
        error.context(format!("tensor {name}")).context(self.path.display()).operation("load")
    }
}

/// Dtype and shape of a tensor, whose length fits both.
fn describe(info: &TensorInfo) -> Result<(Dtype, Shape)> {
    let dtype = from_file(info.dtype).ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, format!("its dtype {} is not one of sheave's", info.dtype))
    })?;
    let dimensions: Vec<u64> = info.shape.iter().map(|&dimension| dimension as u64).collect();
    let shape = Shape::new(&dimensions)?;
    let len_bytes = (info.data_offsets.1 - info.data_offsets.0) as u64;
    if len_bytes > PART_BYTES_MAX {
        let what = format!("it has {len_bytes} bytes, at most {PART_BYTES_MAX} are possible");
        return Err(Error::new(ErrorKind::LimitExceeded, what));
    }
    if shape.elements().and_then(|elements| elements.checked_mul(dtype.size_bytes() as u64)) != Some(len_bytes) {
        return Err(corrupt(format!("{len_bytes} bytes do not fit its shape {shape}")));
    }
    Ok((dtype, shape))
}
