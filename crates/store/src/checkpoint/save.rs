//! From a store to a file.

use super::head::{FileHead, Saved};
use super::{Shelf, common};
use crate::protocol::being_updated;
use crate::updater::no_optimizer;
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::Dtype;
use sheave_tensor::Shape;
use sheave_tensor::file::Writer;
use std::path::Path;

/// What is saved.
#[derive(Clone, Copy)]
pub(super) struct What {
    pub(super) values: bool,
    pub(super) optimizer: bool,
}

pub(super) fn save(shelf: &mut dyn Shelf, path: &Path, what: What) -> Result<()> {
    let optimizer = shelf.optimizer()?;
    if !what.values && optimizer.is_none() {
        return Err(no_optimizer());
    }
    let metas = shelf.metas();
    let before = shelf.examine(&metas)?;
    let mut keys = Vec::with_capacity(metas.len());
    for (meta, heads) in metas.iter().zip(&before) {
        let outline = common(meta, heads)?.outline;
        let (dtype, shape) = (meta.dtype.name().to_owned(), meta.shape.dimensions().to_vec());
        keys.push(Saved { key: meta.key.clone(), dtype, shape, has_value: what.values, outline });
    }
    let rule = optimizer.as_ref().map(|optimizer| optimizer.rule.name().to_owned());
    let head = FileHead { keys, optimizer: optimizer.filter(|_| what.optimizer), rule };
    let tensors: Vec<_> = head.keys.iter().zip(&metas).map(|(saved, meta)| saved.tensors(meta)).collect();
    let places: Vec<(&str, Dtype, &Shape)> =
        tensors.iter().flatten().map(|(name, dtype, shape)| (name.as_str(), *dtype, shape)).collect();
    let metadata = head.to_metadata()?;
    let metadata: Vec<(&str, &str)> = metadata.iter().map(|(key, text)| (*key, text.as_str())).collect();
    let mut writer = Writer::create(path, &places, &metadata)?;
    for ((meta, heads), tensors) in metas.iter().zip(&before).zip(&tensors) {
        for (slice, known) in shelf.slices(meta).iter().zip(heads) {
            let (head, pieces) = shelf.export(meta, slice, what.values)?;
            if head != *known {
                return Err(being_updated(&meta.key));
            }
            if pieces.len() != tensors.len() {
                return Err(Error::new(ErrorKind::Protocol, "a slice of other parts than it was said to have"));
            }
            for ((name, ..), piece) in tensors.iter().zip(&pieces) {
                writer.write(name, slice.range.start, piece)?;
            }
        }
    }
    let after = shelf.examine(&metas)?;
    if let Some(at) = before.iter().zip(&after).position(|(before, after)| before != after) {
        return Err(being_updated(&metas[at].key));
    }
    writer.finish()
}
