//! Pushes and pulls of rows.
//!
//! Rows are brought into normal form once, and each slice gets its part of them: two pieces, ids and rows, also where
//! there are none, so that servers can count pushes. Of a pull only distinct rows travel, and only slices with some of
//! them are asked: ids go out among what is pushed, and all answers together are the rows in ascending order. If they
//! were wanted so they land in the place itself, else in a staging tensor, from which they are brought into order.

use super::batch::{Batch, with_room};
use super::places::Scatter;
use super::update::{Ahead, Leaving, Plan};
use super::{Client, Known, Pieces};
use crate::key::Key;
use crate::layout::{PACKED_BELOW_BYTES, Slice};
use crate::local::{check_apart, grouped_rows, unknown};
use crate::protocol::{Form, Piece};
use crate::rows::cut::Cut;
use crate::rows::want::wanted_ids;
use crate::rows::{Rows, distinct, is_normal, local_ids};
use crate::slot::{Meta, empty};
use crate::store::Options;
use sheave_base::{Result, Work};
use sheave_tensor::Tensor;

/// A key, the ids that are wanted of it, and where their rows go.
pub(crate) type Wanted = (Key, Tensor, Tensor);

impl Client {
    /// Pushes rows and pulls rows, in this order for each key.
    pub(crate) fn update_rows(
        &self,
        operation: &'static str,
        push: &[(Key, Rows)],
        pull: &[Wanted],
        options: Options,
    ) -> Result<Work<()>> {
        self.check_usable(operation)?;
        self.check_not_done(operation, !push.is_empty())?;
        let _turn = if push.is_empty() { None } else { Some(self.turn(operation)?) };
        let leaving = self.leaving(options, 0)?;
        check_apart(operation, pull.iter().map(|(_, _, place)| place))?;
        let known = self.known.read();
        let find = |key: &Key| known.get(key).ok_or_else(|| unknown(key, operation));
        for (key, rows) in push {
            find(key)?.meta.check_rows(operation, rows)?;
        }
        let asked = pull.iter().map(|(key, ids, place)| wanted_ids(operation, &find(key)?.meta, ids, place));
        let asked = asked.collect::<Result<Vec<_>>>()?;
        let mut batches: Vec<Vec<Batch>> = self.servers.iter().map(|_| Vec::new()).collect();
        let mut ahead = Ahead::default();
        let mut keys = Vec::with_capacity(push.len() + pull.len());
        for (key, rows) in grouped_rows(push, self.mesh.node().arena())? {
            let known = find(key)?;
            if self.counts_pushes() {
                ahead.add(known, self.is_synchronous())?;
            }
            keys.push(known.number);
            for (slice, pieces) in self.row_pieces(known.number, &known.meta, &rows)? {
                let batch = with_room(&mut batches[slice.server], 0, leaving.message_bytes);
                pieces.iter().for_each(|(piece, _)| batch.count(piece));
                batch.push.extend(pieces);
            }
        }
        let mut scatters = Vec::new();
        for ((key, _, place), ids) in pull.iter().zip(asked) {
            let known = find(key)?;
            keys.push(known.number);
            scatters.extend(self.ask_rows(known, ids, place, &mut batches, leaving)?);
        }
        drop(known);
        self.carry_out(Plan { operation, keys, batches, ahead, scatters }, options, leaving)
    }

    /// The slices of a tensor, each with two pieces: the ids of its rows among these normal ones, and the rows.
    pub(super) fn row_pieces(&self, number: u64, meta: &Meta, rows: &Rows) -> Result<Vec<(Slice, Pieces)>> {
        let slices = meta.slices(number, &self.open.cutting).into_iter();
        slices
            .map(|slice| {
                let part = rows.part(&slice.range, self.mesh.node().arena())?;
                let piece = |tensor: &Tensor, form| piece_of(slice.number, tensor.len_bytes() as u64, form);
                let pieces =
                    vec![(piece(&part.ids, Form::Ids), part.ids), (piece(&part.values, Form::Rows), part.values)];
                Ok((slice, pieces))
            })
            .collect()
    }

    /// Asks for the rows of these ids, and says what is left to do when they are there.
    fn ask_rows(
        &self,
        known: &Known,
        ids: Vec<i64>,
        place: &Tensor,
        batches: &mut [Vec<Batch>],
        leaving: Leaving,
    ) -> Result<Option<Scatter>> {
        let (meta, arena) = (&known.meta, self.mesh.node().arena());
        let (row_elements, size_bytes) = (meta.row_elements(), meta.dtype.size_bytes() as u64);
        let (ids, target, scatter) = match is_normal(&ids) {
            true => (ids, place.reshape([place.elements() as u64])?, None),
            false => {
                let (ids, order) = distinct(&ids);
                let staging = empty(arena, meta.dtype, ids.len() as u64 * row_elements)?;
                let row_bytes = (row_elements * size_bytes) as usize;
                (ids, staging.clone(), Some(Scatter { staging, row_bytes, order, place: place.clone() }))
            }
        };
        for slice in meta.slices(known.number, &self.open.cutting) {
            let cut = Cut::of(&ids, row_elements, &slice.range);
            if cut.len() == 0 {
                continue;
            }
            let asked = local_ids(&cut, &ids, arena)?;
            let target = target.slice_rows(cut.elements.clone())?;
            let pieces = [(asked, Form::Asked), (target, Form::Rows)];
            let [asked, rows] =
                pieces.map(|(tensor, form)| (piece_of(slice.number, tensor.len_bytes() as u64, form), tensor));
            let batch = with_room(&mut batches[slice.server], rows.0.len_bytes, leaving.message_bytes);
            batch.count(&asked.0);
            batch.count(&rows.0);
            batch.pulled_bytes += rows.0.len_bytes;
            batch.push.push(asked);
            batch.pull.push(rows);
        }
        Ok(scatter)
    }
}

fn piece_of(number: u64, len_bytes: u64, form: Form) -> Piece {
    Piece { number, len_bytes, packed: len_bytes < PACKED_BELOW_BYTES, form }
}
