//! What this worker's pushes and pulls are coded in.
//!
//! **What a code leaves out** of a gradient waits for the next push of its slice, and a push that is refused must
//! change nothing of it: its caller pushes the same gradient again. So a push takes the residual of each slice that it
//! codes with it, as a [`Draft`], and gives back what it was, or what is left over once the slice has left. No lock is
//! held meanwhile. Another thread that pushes the slice meanwhile finds nothing left over, and what both give back is
//! added.

use super::{Client, Known};
use crate::compress::Compression;
use crate::key::Key;
use crate::protocol::{Form, Piece};
use crate::slot::{Meta, empty};
use sheave_base::Result;
use sheave_tensor::{Arena, Dtype, Tensor};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Of all keys that have none of their own.
#[derive(Clone, Copy, Default)]
pub(crate) struct Compressions {
    pub(crate) push: Compression,
    pub(crate) pull: Compression,
}

/// How one key's gradients are coded.
#[derive(Default)]
pub(super) struct Coding {
    /// If it is said for this key.
    own: Option<Compression>,
    /// What the residuals belong to.
    code: Compression,
    /// What was not sent yet of each element of a slice, by the slice's number.
    residuals: HashMap<u64, Vec<f32>>,
}

impl Coding {
    /// The code of the next push.
    pub(super) fn code(&self, meta: &Meta, default: Compression) -> Compression {
        match self.own {
            Some(own) => own,
            // What has no code travels as it is.
            None if default.require(meta.dtype).is_err() => Compression::None,
            None => default,
        }
    }

    /// Takes what is left over of a slice; nothing if that belongs to another code.
    fn take(&mut self, slice: u64, code: Compression) -> Vec<f32> {
        let taken = if self.code == code { self.residuals.remove(&slice) } else { None };
        taken.unwrap_or_default()
    }

    /// Adds what a push leaves over of a slice.
    fn put(&mut self, slice: u64, residual: Vec<f32>) {
        if residual.is_empty() {
            return;
        }
        match self.residuals.entry(slice) {
            Entry::Vacant(entry) => drop(entry.insert(residual)),
            // That of a push beside this one.
            Entry::Occupied(mut entry) => {
                entry.get_mut().iter_mut().zip(&residual).for_each(|(there, more)| *there += more);
            }
        }
    }
}

/// A slice that is coded and has not left, with the residual of its elements.
pub(super) struct Draft {
    known: Arc<Known>,
    slice: u64,
    code: Compression,
    /// What was left over; nothing if nothing was.
    before: Vec<f32>,
    after: Vec<f32>,
    has_left: bool,
}

impl Draft {
    fn begin(known: &Arc<Known>, slice: u64, code: Compression, elements: usize) -> Self {
        let elements = if code.has_residual() { elements } else { 0 };
        let before = known.coding.lock().take(slice, code);
        let after = if before.len() == elements { before.clone() } else { vec![0.0; elements] };
        Self { known: Arc::clone(known), slice, code, before, after, has_left: false }
    }

    /// The slice is on its way: what its code leaves out is left over from now on.
    pub(super) fn leave(mut self) {
        self.has_left = true;
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let mut coding = self.known.coding.lock();
        let is_other = coding.code != self.code;
        if !self.has_left {
            if !is_other {
                coding.put(self.slice, std::mem::take(&mut self.before));
            }
            return;
        }
        if is_other {
            // Another code begins with nothing left over: what its predecessor has kept is of another scale.
            coding.code = self.code;
            coding.residuals.clear();
        }
        coding.put(self.slice, std::mem::take(&mut self.after));
    }
}

impl Known {
    /// A piece as it travels, and its draft if that is coded.
    pub(super) fn encode(
        self: &Arc<Self>,
        piece: &Piece,
        value: Tensor,
        arena: &Arena,
    ) -> Result<(Tensor, Option<Draft>)> {
        let Form::Coded(code) = piece.form else { return Ok((value, None)) };
        let mut coded = empty(arena, Dtype::U8, piece.len_bytes)?;
        let mut draft = Draft::begin(self, piece.number, code, value.elements());
        code.encode(&value.as_slice::<f32>()?, &mut draft.after, coded.bytes_mut()?)?;
        Ok((coded, Some(draft)))
    }
}

impl Client {
    /// How the gradients of these keys travel from now on; of all that have none of their own if there are none.
    pub(crate) fn set_compression(&self, keys: Option<&[Key]>, code: Compression) -> Result<()> {
        code.check()?;
        let Some(keys) = keys else {
            self.compression.lock().push = code;
            return Ok(());
        };
        let found = keys.iter().map(|key| self.find("set_gradient_compression", key)).collect::<Result<Vec<_>>>()?;
        found.iter().try_for_each(|known| code.require(known.meta.dtype))?;
        found.iter().for_each(|known| known.coding.lock().own = Some(code));
        Ok(())
    }

    /// How values travel to this worker from now on.
    pub(crate) fn set_pull_compression(&self, code: Compression) -> Result<()> {
        code.check()?;
        code.check_for_values()?;
        self.compression.lock().pull = code;
        Ok(())
    }
}
