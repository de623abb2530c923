//! What goes to one server in one message.

use super::coding::Draft;
use super::places::Unpack;
use crate::layout::{ANSWER_BYTES_MAX, KEYS_MAX, PACKED_BELOW_BYTES, PACKED_BYTES_MAX, PARTS_MAX, PIECES_MAX, padded};
use crate::protocol::{DescribedSlice, Piece, Update};
use sheave_base::NodeId;
use sheave_mesh::CallOptions;
use sheave_net::Parts;
use sheave_tensor::Tensor;

/// Slices of tensors, as they stand in a message.
pub(super) type Pieces = Vec<(Piece, Tensor)>;

/// What goes to one server in one message.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) push: Vec<(Piece, Tensor)>,
    pub(super) pull: Vec<(Piece, Tensor)>,
    /// Of the pushed pieces that are coded.
    pub(super) drafts: Vec<Draft>,
    packed_bytes: u64,
    pub(super) pulled_bytes: u64,
    parts: usize,
    /// Of all pieces.
    pub(super) bytes: u64,
}

/// A batch whose values are captured, or will be when it leaves.
pub(super) struct Parcel {
    pub(super) server: NodeId,
    pub(super) update: Update,
    pub(super) tensors: Parts,
    pub(super) places: Vec<Tensor>,
    pub(super) drafts: Vec<Draft>,
}

/// A parcel with all that it needs to leave, and what is unpacked when its answer has come.
pub(super) struct Ready {
    pub(super) server: NodeId,
    pub(super) update: Update,
    pub(super) options: CallOptions,
    pub(super) unpacks: Vec<Unpack>,
    pub(super) drafts: Vec<Draft>,
}

impl Batch {
    /// Whether a piece that pulls so many bytes may come along, or two of rows; the first one always may.
    pub(super) fn has_room(&self, pulled_bytes: u64, bytes_max: u64) -> bool {
        let pieces = self.push.len() + self.pull.len();
        let is_small = self.pulled_bytes.saturating_add(pulled_bytes) <= ANSWER_BYTES_MAX || self.pull.is_empty();
        is_small
            && self.bytes < bytes_max
            && self.packed_bytes + PACKED_BELOW_BYTES <= PACKED_BYTES_MAX
            && self.parts + 2 < PARTS_MAX
            && pieces + 1 < PIECES_MAX
    }

    pub(super) fn count(&mut self, piece: &Piece) {
        self.bytes += piece.len_bytes;
        if piece.packed {
            self.packed_bytes += padded(piece.len_bytes).unwrap_or(piece.len_bytes);
        } else {
            self.parts += 1;
        }
    }
}

/// The last batch, or a new one if that is full.
pub(super) fn with_room(batches: &mut Vec<Batch>, pulled_bytes: u64, bytes_max: u64) -> &mut Batch {
    if !batches.last().is_some_and(|batch| batch.has_room(pulled_bytes, bytes_max)) {
        batches.push(Batch::default());
    }
    let last = batches.len() - 1;
    &mut batches[last]
}

/// Splits what is initialised on one server into messages.
pub(super) fn in_chunks(slices: Vec<(DescribedSlice, Pieces)>) -> Vec<(Vec<DescribedSlice>, Pieces)> {
    let mut chunks: Vec<(Vec<DescribedSlice>, Batch)> = Vec::new();
    for (slice, pieces) in slices {
        if !chunks.last().is_some_and(|(slices, batch)| batch.has_room(0, u64::MAX) && slices.len() < KEYS_MAX) {
            chunks.push(Default::default());
        }
        if let Some((slices, batch)) = chunks.last_mut() {
            slices.push(slice);
            pieces.iter().for_each(|(piece, _)| batch.count(piece));
            batch.push.extend(pieces);
        }
    }
    chunks.into_iter().map(|(slices, batch)| (slices, batch.push)).collect()
}
