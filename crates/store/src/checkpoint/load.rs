//! From a file to a store.

use super::head::{FileHead, Saved};
use super::{Shelf, common};
use crate::protocol::Import;
use crate::slot::Meta;
use crate::updater::no_optimizer;
use sheave_base::{Error, ErrorKind, Result};
use sheave_optim::{Optimizer, State};
use sheave_tensor::Dtype;
use sheave_tensor::file::Reader;
use std::collections::BTreeMap;
use std::path::Path;

pub(super) fn load(shelf: &mut dyn Shelf, path: &Path, with_values: bool) -> Result<()> {
    let reader = Reader::open(path)?;
    let head = FileHead::read(&reader)?;
    let metas = shelf.metas();
    let saved = pair(&metas, &head.keys)?;
    for (meta, saved) in metas.iter().zip(&saved) {
        check_key(&reader, meta, saved, with_values)?;
    }
    let optimizer = check_optimizer(shelf, &head, &saved, with_values)?;
    for (meta, heads) in metas.iter().zip(shelf.examine(&metas)?) {
        common(meta, &heads)?;
    }
    // From here on the store changes.
    if head.optimizer.is_some()
        && let Some(optimizer) = &optimizer
    {
        shelf.set_optimizer(optimizer)?;
    }
    for (meta, saved) in metas.iter().zip(&saved) {
        fill(shelf, &reader, meta, saved, with_values).map_err(|error| {
            error.context(format!("key {}: the store holds a part of the file now, load it again", meta.key))
        })?;
    }
    Ok(())
}

/// What the file has of each key of the store.
fn pair<'a>(metas: &[Meta], keys: &'a [Saved]) -> Result<Vec<&'a Saved>> {
    let mut by_key = BTreeMap::new();
    for saved in keys {
        if by_key.insert(&saved.key, saved).is_some() {
            return Err(Error::new(ErrorKind::InvalidArgument, format!("it has key {} twice", saved.key)));
        }
    }
    let mut found = Vec::with_capacity(metas.len());
    for meta in metas {
        let missing = || {
            Error::new(ErrorKind::Mismatch, format!("it does not have key {}, which the store has", meta.key))
                .hint("load it into a store with the keys that were saved")
        };
        found.push(by_key.remove(&meta.key).ok_or_else(missing)?);
    }
    match by_key.into_keys().next() {
        Some(key) => Err(Error::new(ErrorKind::Mismatch, format!("it has key {key}, and the store does not"))
            .hint("initialise the store with the keys that were saved, and load then")),
        None => Ok(found),
    }
}

fn check_key(reader: &Reader, meta: &Meta, saved: &Saved, with_values: bool) -> Result<()> {
    if saved.dtype != meta.dtype.name() || saved.shape != meta.shape.dimensions() {
        let what = format!(
            "key {} is {}{:?} there, and {}{} in the store",
            meta.key, saved.dtype, saved.shape, meta.dtype, meta.shape
        );
        return Err(Error::new(ErrorKind::Mismatch, what));
    }
    if with_values && !saved.has_value {
        return Err(Error::new(ErrorKind::InvalidArgument, "it has the states of an optimizer and no values")
            .hint("load it with load_optimizer_states"));
    }
    let is_half = matches!(meta.dtype, Dtype::F16 | Dtype::Bf16);
    let is_odd = saved.outline.steps.is_none() && (saved.outline.has_master || !saved.outline.parts.is_empty());
    if is_odd || saved.outline.has_master && !is_half {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("key {} has parts that it cannot have", meta.key)));
    }
    for (name, dtype, shape) in saved.tensors(meta) {
        let found = reader.describe(&name)?;
        if found != (dtype, shape.clone()) {
            let what = format!("tensor {name} is {}{} there, and should be {dtype}{shape}", found.0, found.1);
            return Err(Error::new(ErrorKind::InvalidArgument, what).hint("the file is damaged"));
        }
    }
    Ok(())
}

/// The optimizer that goes on with the states, if there are any.
fn check_optimizer(
    shelf: &mut dyn Shelf,
    head: &FileHead,
    saved: &[&Saved],
    with_values: bool,
) -> Result<Option<Optimizer>> {
    let optimizer = match &head.optimizer {
        Some(optimizer) => Some(optimizer.clone()),
        None => shelf.optimizer()?,
    };
    let Some(known) = &optimizer else {
        let needs_one = !with_values || saved.iter().any(|saved| saved.outline.steps.is_some());
        return if needs_one { Err(no_optimizer()) } else { Ok(None) };
    };
    if let Some(rule) = head.rule.as_ref().filter(|rule| *rule != known.rule.name()) {
        let what = format!("its states are those of {rule}, and the store's optimizer is {}", known.rule.name());
        return Err(Error::new(ErrorKind::Mismatch, what).hint("set the optimizer that they were saved with"));
    }
    for saved in saved {
        let Some(steps) = saved.outline.steps else { continue };
        let parts = saved.outline.parts.iter().map(|part| (part.clone(), Vec::new())).collect();
        State::<f32>::from_parts(&known.rule, 0, steps, parts)
            .map_err(|error| error.context(format!("key {}", saved.key)))?;
    }
    Ok(optimizer)
}

fn fill(shelf: &mut dyn Shelf, reader: &Reader, meta: &Meta, saved: &Saved, with_values: bool) -> Result<()> {
    let mut tensors = saved.tensors(meta);
    if saved.has_value && !with_values {
        tensors.remove(0);
    }
    for slice in &shelf.slices(meta) {
        let pieces = tensors.iter().map(|(name, ..)| reader.read(name, slice.range.clone()));
        let pieces = pieces.collect::<Result<Vec<_>>>()?;
        let outline = saved.outline.clone();
        let import = Import { store: 0, number: slice.number, with_value: with_values, outline };
        shelf.import(meta, slice, import, pieces)?;
    }
    Ok(())
}
