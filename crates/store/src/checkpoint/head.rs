//! What a file says of itself, in the free text of its format.

use super::{name_of, wide};
use crate::key::Key;
use crate::learn::Outline;
use crate::slot::Meta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind, Result};
use sheave_optim::Optimizer;
use sheave_tensor::file::Reader;
use sheave_tensor::{Dtype, Shape};

/// What the entry `format` says.
const FORMAT: &str = "sheave-store 1";

/// The free text of a file.
pub(super) struct FileHead {
    /// As JSON in the entry `keys`, in the order of the keys.
    pub(super) keys: Vec<Saved>,
    /// As JSON in the entry `optimizer`.
    pub(super) optimizer: Option<Optimizer>,
    /// The name of the optimizer's rule, also where the optimizer is not saved; in the entry `rule`.
    pub(super) rule: Option<String>,
}

/// What a file has of a key.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Saved {
    pub(super) key: Key,
    pub(super) dtype: String,
    pub(super) shape: Vec<u64>,
    pub(super) has_value: bool,
    #[serde(flatten)]
    pub(super) outline: Outline,
}

impl Saved {
    /// The names, dtypes and shapes of its tensors, in the order in which slots give them away.
    pub(super) fn tensors(&self, meta: &Meta) -> Vec<(String, Dtype, Shape)> {
        let tensor = |what: &str, dtype: Dtype| (name_of(what, &self.key), dtype, meta.shape.clone());
        let mut tensors = Vec::new();
        if self.has_value {
            tensors.push(tensor("value", meta.dtype));
        }
        tensors.extend(self.outline.parts.iter().map(|part| tensor(part, wide(meta.dtype))));
        if self.outline.has_master {
            tensors.push(tensor("master", Dtype::F32));
        }
        tensors
    }
}

impl FileHead {
    pub(super) fn to_metadata(&self) -> Result<Vec<(&'static str, String)>> {
        let refused = |error: serde_json::Error| Error::new(ErrorKind::Internal, error.to_string());
        let mut metadata = vec![("format", FORMAT.to_owned())];
        metadata.push(("keys", serde_json::to_string(&self.keys).map_err(refused)?));
        if let Some(optimizer) = &self.optimizer {
            metadata.push(("optimizer", serde_json::to_string(optimizer).map_err(refused)?));
        }
        metadata.extend(self.rule.clone().map(|rule| ("rule", rule)));
        Ok(metadata)
    }

    pub(super) fn read(reader: &Reader) -> Result<Self> {
        let metadata = reader.metadata();
        match metadata.get("format").map(String::as_str) {
            Some(FORMAT) => {}
            Some(other) => {
                let shown: String = other.chars().take(80).flat_map(char::escape_debug).collect();
                return Err(Error::new(ErrorKind::Unsupported, format!("its format is \"{shown}\", not \"{FORMAT}\"")));
            }
            None => {
                return Err(Error::new(ErrorKind::InvalidArgument, "it was not saved by a store")
                    .hint("a safetensors file from elsewhere has no keys; read its tensors, and init the store"));
            }
        }
        let keys = metadata.get("keys").ok_or_else(|| damaged("keys", "it is missing"))?;
        let keys: Vec<Saved> = parse("keys", keys)?;
        let optimizer = metadata.get("optimizer").map(|text| parse::<Optimizer>("optimizer", text)).transpose()?;
        if let Some(optimizer) = &optimizer {
            optimizer.check()?;
        }
        Ok(Self { keys, optimizer, rule: metadata.get("rule").cloned() })
    }
}

fn parse<T: DeserializeOwned>(entry: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| damaged(entry, &error.to_string()))
}

fn damaged(entry: &str, what: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("its entry \"{entry}\" cannot be read: {what}"))
        .hint("the file is damaged")
}
