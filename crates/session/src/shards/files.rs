//! Files that together hold parameters.

use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{Tensor, file::Reader};
use std::collections::BTreeMap;

/// Open files, and which of them has which tensor.
pub(super) struct Files {
    readers: Vec<Reader>,
    places: BTreeMap<String, usize>,
}

impl Files {
    /// Opens them. Blocks on the disk.
    pub(super) fn open(paths: &[String]) -> Result<Self> {
        let readers = paths.iter().map(Reader::open).collect::<Result<Vec<_>>>()?;
        let mut places = BTreeMap::new();
        for (place, reader) in readers.iter().enumerate() {
            for name in reader.names() {
                if let Some(other) = places.insert(name.clone(), place) {
                    let what = format!("{} and {} both hold a tensor {name}", paths[other], paths[place]);
                    return Err(Error::new(ErrorKind::InvalidArgument, what));
                }
            }
        }
        Ok(Self { readers, places })
    }

    /// The names of all tensors, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// Reads a tensor. Blocks on the disk.
    pub(super) fn read(&self, name: &str) -> Result<Tensor> {
        let place = self.places.get(name).ok_or_else(|| {
            let error = Error::new(ErrorKind::NotFound, format!("the files hold no tensor {name}"));
            let some: Vec<&str> = self.names().take(8).collect();
            error.hint(format!(
                "they hold {}{}",
                some.join(", "),
                if self.places.len() > some.len() { ", …" } else { "" }
            ))
        })?;
        let reader = &self.readers[*place];
        let (_, shape) = reader.describe(name)?;
        reader.read(name, 0..shape.elements().unwrap_or(0))?.reshape(shape)
    }
}
