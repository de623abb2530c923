//! What this worker's pushes and pulls are coded in.
//!
//! **What a code leaves out** of a gradient waits for the next push of its slice, and a push that is refused must
//! change nothing of it: its caller pushes the same gradient again. So a push takes the residual of each slice that it
//! codes with it, as a [`Draft`], and gives back what it was, or what is left over once the slice has left. No lock is
//! held meanwhile. Another thread that pushes the slice meanwhile finds nothing left over, and what both give back is
//! added. A slice that was queued and cannot be sent after all gives back what it has taken along.
//!
//! **Another code** of a key begins with nothing left over. Pushes of several threads may leave in another order than
//! that in which they were coded, so each knows which [`Choice`] of its key's code is its own: one of an earlier code
//! that leaves later changes nothing of what the later code leaves over.

use super::{Client, Known};
use crate::compress::Compression;
use crate::key::Key;
use crate::protocol::Piece;
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
    /// That of the last push.
    last: Choice,
    /// What the residuals belong to: the first choice of those with this code in a row.
    choice: Choice,
    /// The number of the last choice of which a push has left. Earlier ones are of no account any more.
    latest: u64,
    /// What was not sent yet of each element of a slice, by the slice's number.
    residuals: HashMap<u64, Vec<f32>>,
}

/// The code of some pushes of a key in a row.
#[derive(Clone, Copy, Default)]
pub(super) struct Choice {
    pub(super) code: Compression,
    /// Counts those of the key.
    number: u64,
}

impl Coding {
    /// Chooses the code of a push.
    pub(super) fn choose(&mut self, meta: &Meta, default: Compression) -> Choice {
        let code = match self.own {
            Some(own) => own,
            // What has no code travels as it is.
            None if default.require(meta.dtype).is_err() => Compression::None,
            None => default,
        };
        if code != self.last.code {
            self.last = Choice { code, number: self.last.number + 1 };
        }
        self.last
    }

    /// Whether the residuals are those of this choice, or of one with the same code before it.
    fn is_of(&self, choice: Choice) -> bool {
        self.choice.code == choice.code && self.choice.number <= choice.number
    }

    /// Takes what is left over of a slice; nothing if that belongs to another code.
    fn take(&mut self, slice: u64, choice: Choice) -> Vec<f32> {
        let taken = if self.is_of(choice) { self.residuals.remove(&slice) } else { None };
        taken.unwrap_or_default()
    }

    /// Makes the residuals those of a choice of which a push has left, unless they are those of a later one.
    fn turn_to(&mut self, choice: Choice) {
        if choice.number < self.latest {
            return;
        }
        self.latest = choice.number;
        if self.choice.code != choice.code {
            // Another code begins with nothing left over: what its predecessor has kept is of another scale.
            self.choice = choice;
            self.residuals.clear();
        }
    }

    /// Adds what a push leaves over of a slice, unless the residuals are those of another code.
    fn put(&mut self, slice: u64, choice: Choice, residual: Vec<f32>) {
        if residual.is_empty() || !self.is_of(choice) {
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

/// A slice that is coded, with the residual of its elements.
pub(super) struct Draft {
    known: Arc<Known>,
    slice: u64,
    choice: Choice,
    /// What is given back if the slice does not get to its server; nothing if that is nothing.
    before: Vec<f32>,
    /// What is left over once it leaves.
    after: Vec<f32>,
    has_left: bool,
}

impl Draft {
    fn begin(known: &Arc<Known>, slice: u64, choice: Choice, elements: usize) -> Self {
        let elements = if choice.code.has_residual() { elements } else { 0 };
        let before = known.coding.lock().take(slice, choice);
        let after = if before.len() == elements { before.clone() } else { vec![0.0; elements] };
        Self { known: Arc::clone(known), slice, choice, before, after, has_left: false }
    }

    /// The slice is on its way: what its code leaves out is left over from now on.
    pub(super) fn leave(mut self) {
        self.leave_over();
    }

    /// As [`Draft::leave`], and the slice may yet [come back](Draft::give_back). The pushes behind it are coded as if
    /// it did not, or what they send would depend on when the server takes it.
    pub(super) fn queue(&mut self) {
        self.before.resize(self.after.len(), 0.0);
        self.before.iter_mut().zip(&self.after).for_each(|(before, after)| *before -= after);
        self.leave_over();
    }

    fn leave_over(&mut self) {
        self.has_left = true;
        let mut coding = self.known.coding.lock();
        coding.turn_to(self.choice);
        coding.put(self.slice, self.choice, std::mem::take(&mut self.after));
    }

    /// The slice was queued and has not got to its server, so its caller pushes the same again.
    pub(super) fn give_back(mut self) {
        let taken = std::mem::take(&mut self.before);
        self.known.coding.lock().put(self.slice, self.choice, taken);
    }

    /// Returns the bytes that it keeps while it is queued.
    pub(super) fn queued_bytes(&self) -> u64 {
        size_of_val(&self.before[..]) as u64
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.has_left {
            let before = std::mem::take(&mut self.before);
            self.known.coding.lock().put(self.slice, self.choice, before);
        }
    }
}

impl Known {
    /// A piece as it travels in the chosen code, and its draft if that is one.
    pub(super) fn encode(
        self: &Arc<Self>,
        piece: &Piece,
        value: Tensor,
        choice: Choice,
        arena: &Arena,
    ) -> Result<(Tensor, Option<Draft>)> {
        if !piece.form.is_coded() {
            return Ok((value, None));
        }
        let mut coded = empty(arena, Dtype::U8, piece.len_bytes)?;
        let mut draft = Draft::begin(self, piece.number, choice, value.elements());
        choice.code.encode(&value.as_slice::<f32>()?, &mut draft.after, coded.bytes_mut()?)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Storage;
    use parking_lot::Mutex;
    use sheave_tensor::Shape;

    const SLICE: u64 = 7;

    fn key() -> Arc<Known> {
        let meta =
            Meta { key: Key::from("w"), dtype: Dtype::F32, shape: Shape::new(&[1]).unwrap(), storage: Storage::Dense };
        Arc::new(Known { number: 1, meta, ahead: Default::default(), coding: Mutex::default() })
    }

    /// A push in this code that would leave so much over.
    fn push(known: &Arc<Known>, code: Compression, after: f32) -> Draft {
        let choice = known.coding.lock().choose(&known.meta, code);
        let mut draft = Draft::begin(known, SLICE, choice, 1);
        draft.after[0] = after;
        draft
    }

    /// What the next push in this code finds left over.
    fn left_over(known: &Arc<Known>, code: Compression) -> Vec<f32> {
        push(known, code, 0.0).before.clone()
    }

    fn codes() -> [Compression; 2] {
        [0.5, 0.25].map(|threshold| Compression::TwoBit { threshold })
    }

    #[test]
    fn a_push_of_the_code_before_that_leaves_later_takes_nothing_from_that_of_now() {
        let [one, other] = codes();
        for leaves in [false, true] {
            let known = key();
            push(&known, one, 0.375).leave();
            let late = push(&known, one, 0.125);
            push(&known, other, 0.0625).leave();
            match leaves {
                true => late.leave(),
                false => drop(late),
            }
            assert_eq!(left_over(&known, other), [0.0625], "{leaves}");
            // What is of another scale does not come back with its code.
            assert!(left_over(&known, one).is_empty(), "{leaves}");
        }
    }

    #[test]
    fn a_push_of_a_code_between_that_leaves_later_takes_nothing_either() {
        let [one, other] = codes();
        let known = key();
        push(&known, one, 0.375).leave();
        let late = push(&known, other, 0.0625);
        push(&known, one, 0.125).leave();
        late.leave();
        assert_eq!(left_over(&known, one), [0.125]);
    }

    #[test]
    fn a_queued_slice_that_comes_back_gives_back_what_it_took() {
        let [code, _] = codes();
        let known = key();
        push(&known, code, 0.375).leave();
        let mut queued = push(&known, code, 0.125);
        queued.queue();
        assert_eq!(left_over(&known, code), [0.125]);
        // One behind it has added to what was left over, and one has been taken by its server.
        push(&known, code, 0.25).leave();
        let mut taken = push(&known, code, 0.0);
        taken.queue();
        drop(taken);
        assert!(left_over(&known, code).iter().all(|left| *left == 0.0));
        queued.give_back();
        assert_eq!(left_over(&known, code), [0.25]);
    }
}
