//! Memory that a server has named for pushes to land in.
//!
//! Registered memory is cut into equal pieces, one for each pair of a worker and a key. The exchange holds the write
//! lease of the tensor for as long as anything of it is registered or looked at, so nobody has a slice of it through
//! the tensor itself. There are other buffers over the same bytes instead: for each piece one that links write to,
//! which nobody else ever has; *views* of a piece; and *merged views* of neighbouring pieces. Views are read-only, so
//! the only writer is a landing. It happens when the request that lies in the piece is answered, and every view of
//! these bytes is then either in nobody's hands or has expired: who still has one gets an error from it. A view that
//! somebody looks at right now cannot expire; then the push waits on its link.

use parking_lot::Mutex;
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{Buffer, Dtype, Shape, Tensor, WriteLease};
use sheave_wire::Part;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

const EXPIRED: &str = "its request was answered, and the next push has landed there";

/// A tensor and the right to write it, for as long as anything of it is used.
struct Held {
    tensor: Tensor,
    _lease: WriteLease,
}

/// Registered memory.
pub(crate) struct Memory {
    held: Arc<Held>,
    piece_bytes: usize,
    views: Mutex<Views>,
}

#[derive(Default)]
struct Views {
    of_pieces: Vec<Option<Buffer>>,
    merged: Vec<(Range<usize>, Buffer)>,
}

/// One piece, as the worker's inbound side has it.
pub(crate) struct Piece {
    memory: Arc<Memory>,
    index: usize,
    /// What links write to.
    landing: Buffer,
    /// The number of the request that lies here and is not answered.
    pub(crate) holder: Option<u64>,
}

/// Memory that a server has registered, and by which it is unregistered. Dropping it leaves it registered.
#[derive(Clone)]
pub struct Registration {
    /// Gone when it was unregistered.
    pub(crate) memory: Weak<Memory>,
    pub(crate) places: Arc<[(u32, u64)]>,
}

impl Memory {
    pub(crate) fn new(tensor: &Tensor, pieces: usize) -> Result<Arc<Self>> {
        let refuse = |what: String, hint: &'static str| Err(Error::new(ErrorKind::InvalidArgument, what).hint(hint));
        if pieces == 0 {
            return refuse("memory for no worker and no key".into(), "name a worker and a key for each part of it");
        }
        if tensor.len_bytes() == 0 || !tensor.len_bytes().is_multiple_of(pieces) {
            let what = format!("{} bytes cannot be cut into {pieces} equal parts", tensor.len_bytes());
            return refuse(what, "give each worker and key as many bytes");
        }
        Ok(Arc::new(Self {
            held: Arc::new(Held { _lease: tensor.write_lease("register")?, tensor: tensor.clone() }),
            piece_bytes: tensor.len_bytes() / pieces,
            views: Mutex::new(Views { of_pieces: vec![None; pieces], merged: Vec::new() }),
        }))
    }

    fn range(&self, index: usize) -> Range<usize> {
        index * self.piece_bytes..(index + 1) * self.piece_bytes
    }

    /// Another buffer over part of the memory.
    fn buffer(&self, range: Range<usize>, read_only: bool) -> Result<Buffer> {
        let start = NonNull::new(self.held.tensor.ptr().wrapping_add(range.start));
        let start = start.ok_or_else(|| Error::new(ErrorKind::Internal, "a tensor at no address"))?;
        let owner = Box::new(Arc::clone(&self.held));
        // SAFETY: the range is inside the tensor, which the owner keeps alive together with its write lease, so that
        // nobody reads or writes these bytes through the tensor. Among the buffers made here only those of pieces'
        // landings are writable; they are written only while no view of the same bytes can be looked at (see the
        // module), and a view that is made meanwhile is refused, as its piece is busy or its parts have expired.
        Ok(unsafe { Buffer::foreign(start, range.len(), read_only, owner) })
    }

    /// Makes sure that nobody looks at a piece, now or later, through views that exist. False if somebody does now.
    fn expire(&self, index: usize) -> bool {
        let range = self.range(index);
        let mut views = self.views.lock();
        let is_clear = |view: &Buffer| view.is_unique() || view.expire(EXPIRED).is_ok();
        let overlapping = |other: &Range<usize>| other.start < range.end && range.start < other.end;
        if !views.of_pieces[index].iter().all(is_clear) {
            return false;
        }
        if !views.merged.iter().filter(|(other, _)| overlapping(other)).all(|(_, view)| is_clear(view)) {
            return false;
        }
        views.of_pieces[index].take_if(|view| view.require_current().is_err());
        // Of parts that vary in size there are many merged ranges; those of before are of no use to the next batch.
        views.merged.retain(|(other, _)| !overlapping(other));
        true
    }

    /// A view of what has landed in a piece.
    fn view(&self, index: usize, dtype: Dtype, shape: Shape) -> Result<Tensor> {
        let mut views = self.views.lock();
        let view = match &views.of_pieces[index] {
            Some(view) => view.clone(),
            None => {
                let view = self.buffer(self.range(index), true)?;
                views.of_pieces[index] = Some(view.clone());
                view
            }
        };
        Tensor::from_buffer(view, 0, dtype, shape)
    }

    /// A view of neighbouring bytes, all of which belong to views that have not expired.
    fn merged(&self, parts: &[&Tensor], range: Range<usize>) -> Result<Buffer> {
        let mut views = self.views.lock();
        parts.iter().try_for_each(|part| part.buffer().require_current())?;
        if let Some((_, view)) = views.merged.iter().find(|(other, _)| *other == range) {
            return Ok(view.clone());
        }
        let view = self.buffer(range.clone(), true)?;
        views.merged.push((range, view.clone()));
        Ok(view)
    }
}

impl Piece {
    pub(crate) fn new(memory: &Arc<Memory>, index: usize) -> Result<Self> {
        let landing = memory.buffer(memory.range(index), false)?;
        Ok(Self { memory: Arc::clone(memory), index, landing, holder: None })
    }

    pub(crate) fn is_of(&self, registration: &Registration) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.memory), registration.memory.as_ptr())
    }

    /// The place of a pushed tensor, if it fits.
    pub(crate) fn place(&self, key: u64, part: &Part) -> Result<Tensor> {
        let dtype = Dtype::from_code(part.spec.dtype)
            .ok_or_else(|| Error::new(ErrorKind::Protocol, format!("a tensor of unknown dtype {}", part.spec.dtype)))?;
        let length_bytes = part.spec.length_bytes()?;
        if length_bytes > self.memory.piece_bytes as u64 {
            let what = format!(
                "the push of key {key} has {length_bytes} bytes, and its registered place {}",
                self.memory.piece_bytes
            );
            return Err(Error::new(ErrorKind::Mismatch, what).hint("register as much as the largest push needs"));
        }
        Tensor::from_buffer(self.landing.clone(), 0, dtype, Shape::new(&part.spec.dims)?)
    }

    /// Takes the views of what lies here away. False if somebody looks at it right now.
    pub(crate) fn clear(&self) -> bool {
        self.memory.expire(self.index)
    }

    /// What has landed, for the program. A tensor that landed elsewhere stays as it is.
    pub(crate) fn view(&self, landed: Tensor) -> Result<Tensor> {
        if !landed.buffer().is_same(&self.landing) {
            return Ok(landed);
        }
        self.memory.view(self.index, landed.dtype(), landed.shape().clone())
    }
}

impl Registration {
    /// The workers and keys whose pushes land here, in the order of their parts.
    #[must_use]
    pub fn places(&self) -> &[(u32, u64)] {
        &self.places
    }

    /// One tensor of all these parts, pushed tensors of one batch that lie side by side in this memory, without a copy.
    /// Their rows follow each other. It expires as the parts do.
    ///
    /// # Errors
    ///
    /// `Mismatch` if they do not lie here side by side, differ in dtype or the shape of a row, or have no rows;
    /// `BufferInUse` if one of them has expired.
    pub fn merged(&self, parts: &[&Tensor]) -> Result<Tensor> {
        let refuse = |what: String| {
            Err(Error::new(ErrorKind::Mismatch, what)
                .hint("give the pushes of one batch in the order in which their places were registered"))
        };
        let Some(memory) = self.memory.upgrade() else {
            return Err(Error::new(ErrorKind::Closed, "this memory is not registered any more"));
        };
        let Some(first) = parts.first() else { return refuse("no parts to merge".into()) };
        let (start, length_bytes) = (memory.held.tensor.ptr() as usize, memory.held.tensor.len_bytes());
        let offset = (first.ptr() as usize).wrapping_sub(start);
        let (mut rows, mut end) = (0, offset);
        for part in parts {
            let Some((count, row)) = part.shape().dimensions().split_first() else {
                return refuse("a scalar has no rows".into());
            };
            let same_row = first.shape().dimensions().get(1..) == Some(row);
            if part.dtype() != first.dtype() || !same_row {
                let (one, other) = (first.shape(), part.shape());
                return refuse(format!("{}{one} and {}{other} have no common rows", first.dtype(), part.dtype()));
            }
            if (part.ptr() as usize).wrapping_sub(start) != end || end + part.len_bytes() > length_bytes {
                return refuse(format!("{}{} does not lie behind the part before it", part.dtype(), part.shape()));
            }
            rows += count;
            end += part.len_bytes();
        }
        let mut dimensions = first.shape().dimensions().to_vec();
        dimensions[0] = rows;
        let view = memory.merged(parts, offset..end)?;
        Tensor::from_buffer(view, 0, first.dtype(), Shape::new(&dimensions)?)
    }
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registration").field("places", &self.places).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_wire::TensorSpec;

    fn part(dims: &[u64]) -> Part {
        Part::inline(TensorSpec::new(Dtype::F32.code(), dims))
    }

    fn registered() -> (Registration, Vec<Piece>, *mut u8) {
        let tensor = Tensor::private(Dtype::F32, [4, 2]).expect("memory");
        let memory = Memory::new(&tensor, 2).expect("two halves");
        let pieces = (0..2).map(|index| Piece::new(&memory, index).expect("it is inside")).collect();
        let start = tensor.ptr();
        (Registration { memory: Arc::downgrade(&memory), places: Arc::from([(0, 7), (1, 7)]) }, pieces, start)
    }

    fn land(piece: &Piece, value: f32, dims: &[u64]) -> Tensor {
        let place = piece.place(7, &part(dims)).expect("it fits");
        let bytes: Vec<u8> = (0..place.elements()).flat_map(|_| value.to_ne_bytes()).collect();
        place.overwrite(&bytes, "a test").expect("nobody else writes");
        piece.view(place).expect("it has landed")
    }

    #[test]
    fn parts_of_all_workers_are_one_tensor() {
        let (registration, pieces, start) = registered();
        let parts = [land(&pieces[0], 1.0, &[2, 2]), land(&pieces[1], 2.0, &[2, 2])];
        let merged = registration.merged(&[&parts[0], &parts[1]]).expect("side by side");
        assert_eq!(merged.shape().dimensions(), [4, 2]);
        assert_eq!(merged.to_vec::<f32>().expect("f32"), [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]);
        assert_eq!(merged.ptr(), start);
        assert!(merged.buffer().is_read_only() && parts[0].buffer().is_read_only());
        for wrong in [&[&parts[1], &parts[0]][..], &[&parts[0], &parts[0]], &[]] {
            assert_eq!(registration.merged(wrong).expect_err("not in order").kind(), ErrorKind::Mismatch);
        }
        let short = land(&pieces[0], 1.0, &[1, 2]);
        assert_eq!(registration.merged(&[&short, &parts[1]]).expect_err("a gap").kind(), ErrorKind::Mismatch);
    }

    #[test]
    fn views_expire_when_the_next_push_lands() {
        let (registration, pieces, _) = registered();
        let view = land(&pieces[0], 1.0, &[2, 2]);
        let other = land(&pieces[1], 2.0, &[2, 2]);
        let merged = registration.merged(&[&view, &other]).expect("side by side");
        let looked_at = merged.bytes().expect("it is current");
        assert!(!pieces[0].clear(), "somebody looks");
        drop(looked_at);
        assert!(pieces[0].clear());
        let next = land(&pieces[0], 3.0, &[2, 2]);
        assert_eq!(next.to_vec::<f32>().expect("f32"), [3.0; 4]);
        for expired in [&view, &merged] {
            assert_eq!(expired.to_vec::<f32>().expect_err("it is old").kind(), ErrorKind::BufferInUse);
        }
        assert_eq!(other.to_vec::<f32>().expect("untouched"), [2.0; 4]);
        assert_eq!(registration.merged(&[&view, &other]).expect_err("one is old").kind(), ErrorKind::BufferInUse);
    }

    #[test]
    fn views_that_nobody_has_are_used_again() {
        let (_, pieces, _) = registered();
        let view = land(&pieces[0], 1.0, &[2, 2]);
        let same = view.buffer().clone();
        drop(view);
        assert!(!same.is_unique());
        drop(same);
        assert!(pieces[0].clear());
        assert!(pieces[0].memory.views.lock().of_pieces[0].is_some());
    }

    #[test]
    fn merged_views_of_batches_that_vary_in_size_do_not_pile_up() {
        let (registration, pieces, _) = registered();
        for rows in [1, 2, 1, 2] {
            assert!(pieces.iter().all(Piece::clear));
            let parts = [land(&pieces[0], 1.0, &[2, 2]), land(&pieces[1], 2.0, &[rows, 2])];
            let merged = registration.merged(&[&parts[0], &parts[1]]).expect("side by side");
            assert_eq!(merged.shape().dimensions(), [2 + rows, 2]);
            assert_eq!(pieces[0].memory.views.lock().merged.len(), 1);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let tensor = Tensor::private(Dtype::F32, [4, 2]).expect("memory");
        assert!(Memory::new(&tensor, 3).is_err() && Memory::new(&tensor, 0).is_err());
        let (_, pieces, _) = registered();
        assert_eq!(pieces[0].place(7, &part(&[5])).expect_err("20 of 16 bytes").kind(), ErrorKind::Mismatch);
        assert!(pieces[0].place(7, &part(&[3])).is_ok());
    }

    #[test]
    fn the_tensor_itself_is_in_use_until_the_last_view_is_gone() {
        let tensor = Tensor::private(Dtype::F32, [4]).expect("memory");
        let memory = Memory::new(&tensor, 1).expect("whole");
        let piece = Piece::new(&memory, 0).expect("it is inside");
        let view = land(&piece, 1.0, &[4]);
        drop((piece, memory));
        assert_eq!(tensor.bytes().map(drop).expect_err("still registered").kind(), ErrorKind::BufferInUse);
        drop(view);
        assert_eq!(tensor.to_vec::<f32>().expect("free again"), [1.0; 4]);
    }
}
