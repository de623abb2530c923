//! Memory that an operation works on, and the only unsafe code of this room beside the slots.
//!
//! An operation takes its leases when it begins: a write lease for what it fills, a read lease for what it only reads.
//! From then on nobody else may touch these buffers, and the operation alone decides what happens to which bytes. It
//! names them by [`Region`]s: ranges of bytes that hold the leases, and with them the memory, until the last of them is
//! dropped, on whatever thread. A message borrows a region by [`Region::tensor`], a buffer of its own over the same
//! bytes, whose lease the link holds for as long as it reads or writes there; so a buffer of the user is in use until
//! the last link has let go of it, however the operation ended.
//!
//! **What keeps regions apart.** One task runs an operation, one step at a time, so two of its own accesses never
//! overlap in time. Links read and write in the background. An algorithm therefore never writes a region that a send
//! may still read, and neither reads nor writes one that a receive may still fill: it waits for the receive, or, for
//! sends, for [`crate::exchange::Exchange::flush`], or it works on fresh scratch memory. Every algorithm's
//! documentation says which.

use crate::halves;
use sheave_base::{Error, ErrorKind, Result};
use sheave_net::Tensors;
use sheave_tensor::kernels::reduce_raw;
use sheave_tensor::{Arena, Buffer, Dtype, Op, ReadLease, Segment, Shape, Tensor, WriteLease, copy_bytes, scale};
use smallvec::{SmallVec, smallvec};
use std::collections::HashMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// What an operation holds.
enum Hold {
    Write(WriteLease),
    Read(ReadLease),
    Own(Tensor),
    Nothing,
}

/// Bytes of an operation's memory. Clones name the same bytes.
#[derive(Clone)]
pub(crate) struct Region {
    start: *mut u8,
    len_bytes: usize,
    hold: Arc<Hold>,
}

// SAFETY: the pointer names memory that `hold` keeps alive and that belongs to one operation, which runs one step at a
// time (see the module's documentation).
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// No bytes.
    pub(crate) fn none() -> Self {
        Self { start: NonNull::<u64>::dangling().as_ptr().cast(), len_bytes: 0, hold: Arc::new(Hold::Nothing) }
    }

    /// A tensor that is only read.
    pub(crate) fn reading(tensor: &Tensor, operation: &'static str) -> Result<Self> {
        let hold = Arc::new(Hold::Read(tensor.read_lease(operation)?));
        Ok(Self { start: tensor.ptr(), len_bytes: tensor.len_bytes(), hold })
    }

    /// A tensor that is filled, and perhaps read.
    pub(crate) fn writing(tensor: &Tensor, operation: &'static str) -> Result<Self> {
        let hold = Arc::new(Hold::Write(tensor.write_lease(operation)?));
        Ok(Self { start: tensor.ptr(), len_bytes: tensor.len_bytes(), hold })
    }

    /// Input and output of an operation. They may be the same bytes, or lie apart in one buffer.
    pub(crate) fn pair(input: &Tensor, output: &Tensor, operation: &'static str) -> Result<(Self, Self)> {
        let written = Self::writing(output, operation)?;
        if !input.buffer().is_same(output.buffer()) {
            return Ok((Self::reading(input, operation)?, written));
        }
        let read = Self { start: input.ptr(), len_bytes: input.len_bytes(), hold: Arc::clone(&written.hold) };
        Ok((read, written))
    }

    /// Tensors that are read and tensors that are filled, with one lease for each buffer that they lie in. Where they
    /// overlap is for the caller to look at.
    pub(crate) fn lists(
        read: &[Tensor],
        written: &[Tensor],
        operation: &'static str,
    ) -> Result<(Vec<Self>, Vec<Self>)> {
        // By address, which few buffers have in common.
        let mut holds: HashMap<usize, Vec<(Buffer, Arc<Hold>)>> = HashMap::new();
        let mut region = |tensor: &Tensor, is_written: bool| {
            let len_bytes = tensor.len_bytes();
            if len_bytes == 0 {
                return Ok(Self::none());
            }
            let known = holds.entry(tensor.buffer().ptr() as usize).or_default();
            if let Some((_, hold)) = known.iter().find(|(buffer, _)| buffer.is_same(tensor.buffer())) {
                return Ok(Self { start: tensor.ptr(), len_bytes, hold: Arc::clone(hold) });
            }
            let region = if is_written { Self::writing(tensor, operation) } else { Self::reading(tensor, operation) }?;
            known.push((tensor.buffer().clone(), Arc::clone(&region.hold)));
            Ok(region)
        };
        // What is written first: its lease covers what is read in the same buffer.
        let written = written.iter().map(|tensor| region(tensor, true)).collect::<Result<Vec<_>>>()?;
        let read = read.iter().map(|tensor| region(tensor, false)).collect::<Result<Vec<_>>>()?;
        Ok((read, written))
    }

    /// All of these regions as one, if they follow each other in one buffer; none of them holds no bytes then.
    pub(crate) fn joined(regions: &[Self]) -> Option<Self> {
        let first = regions.first()?;
        let mut end = first.start;
        for region in regions {
            if region.start != end || region.len_bytes == 0 || !Arc::ptr_eq(&region.hold, &first.hold) {
                return None;
            }
            end = end.wrapping_add(region.len_bytes);
        }
        let len_bytes = end as usize - first.start as usize;
        Some(Self { start: first.start, len_bytes, hold: Arc::clone(&first.hold) })
    }

    /// Memory of the operation's own: in the arena while that has room. Its bytes are whatever lay there.
    pub(crate) fn scratch(arena: &Arena, len_bytes: usize) -> Result<Self> {
        if len_bytes == 0 {
            return Ok(Self::none());
        }
        let shape = || Shape::new(&[len_bytes as u64]);
        let tensor = match Tensor::empty(arena, Dtype::U8, shape()?) {
            Err(error) if error.kind() == ErrorKind::LimitExceeded => Tensor::private(Dtype::U8, shape()?)?,
            other => other?,
        };
        let start = tensor.ptr();
        Ok(Self { start, len_bytes, hold: Arc::new(Hold::Own(tensor)) })
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// The segment of shared memory in which these bytes lie, if they do, and where in it.
    pub(crate) fn location(&self) -> Option<(Arc<Segment>, u64)> {
        let buffer = match &*self.hold {
            Hold::Write(lease) => lease.buffer(),
            Hold::Read(lease) => lease.buffer(),
            Hold::Own(tensor) => tensor.buffer(),
            Hold::Nothing => return None,
        };
        let location = buffer.location()?;
        let into = (self.start as usize).checked_sub(buffer.ptr() as usize)?;
        Some((location.segment, location.offset_bytes + into as u64))
    }

    /// Where it begins, to put regions in order.
    pub(crate) fn address(&self) -> usize {
        self.start as usize
    }

    /// Whether two regions begin at the same byte.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.start == other.start
    }

    /// Whether two regions have bytes in common.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let range = |region: &Self| region.start as usize..region.start as usize + region.len_bytes;
        let (one, two) = (range(self), range(other));
        one.start.max(two.start) < one.end.min(two.end)
    }

    /// Some of these bytes. A range that is not inside is cut off: algorithms compute ranges from agreed values.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        debug_assert!(range.start <= range.end && range.end <= self.len_bytes, "{range:?} of {}", self.len_bytes);
        let from = range.start.min(self.len_bytes);
        let len_bytes = range.end.min(self.len_bytes).saturating_sub(from);
        Self { start: self.start.wrapping_add(from), len_bytes, hold: Arc::clone(&self.hold) }
    }

    /// A handle to these bytes for a message, with a lease of its own.
    pub(crate) fn tensor(&self) -> Result<Tensor> {
        let Some(start) = NonNull::new(self.start).filter(|_| self.len_bytes > 0) else {
            return Tensor::from_buffer(Buffer::empty(), 0, Dtype::U8, Shape::new(&[0])?);
        };
        let owner: Box<dyn Send + Sync> = Box::new(self.clone());
        // SAFETY: the bytes are alive and initialised while the region's hold is, which the owner keeps; while the
        // message's lease lasts nobody writes them, by the rule of the module's documentation.
        let buffer = unsafe { Buffer::foreign(start, self.len_bytes, false, owner) };
        Tensor::from_buffer(buffer, 0, Dtype::U8, Shape::new(&[self.len_bytes as u64])?)
    }

    fn same_length(&self, other: &Self) -> Result<()> {
        if self.len_bytes == other.len_bytes {
            return Ok(());
        }
        let what = format!("{} bytes meet {} bytes inside an operation", self.len_bytes, other.len_bytes);
        Err(Error::new(ErrorKind::Internal, what))
    }

    /// Takes over the bytes of another region, which is the same one or does not overlap.
    pub(crate) fn copy_from(&self, source: &Self) -> Result<()> {
        self.same_length(source)?;
        if !self.is_same(source) && self.len_bytes > 0 {
            // SAFETY: both are alive, of that length, and at rest by the rule of the module's documentation; callers
            // have checked that they do not overlap.
            unsafe { copy_bytes(self.start, source.start, self.len_bytes) };
        }
        Ok(())
    }

    /// Takes over bytes that arrived elsewhere.
    pub(crate) fn fill(&self, bytes: &[u8]) -> Result<()> {
        if bytes.len() != self.len_bytes {
            let what = format!("{} bytes came where {} were agreed", bytes.len(), self.len_bytes);
            return Err(Error::new(ErrorKind::Mismatch, what));
        }
        if !bytes.is_empty() {
            // SAFETY: as in `copy_from`; the slice is a message's own memory.
            unsafe { copy_bytes(self.start, bytes.as_ptr(), bytes.len()) };
        }
        Ok(())
    }

    /// `self = left op right`; the target may be one of the two.
    pub(crate) fn reduce(&self, op: Op, dtype: Dtype, left: &Self, right: &Self) -> Result<()> {
        self.same_length(left)?;
        self.same_length(right)?;
        let elements = self.len_bytes / dtype.size_bytes();
        // SAFETY: all three are alive, of that length, and at rest; the target is exactly an input or apart from it,
        // since regions of one operation are cut at the same places.
        unsafe { reduce_raw(op, dtype, self.start, left.start, right.start, elements) }
    }

    /// Multiplies every element.
    pub(crate) fn scale(&self, dtype: Dtype, factor: f64) -> Result<()> {
        // SAFETY: as for `slice_mut`.
        scale(dtype, unsafe { self.slice_mut() }, factor)
    }

    /// The elements of a region of f16 or bf16 as f32.
    pub(crate) fn widen_from(&self, dtype: Dtype, source: &Self) -> Result<()> {
        // SAFETY: the target is scratch memory of the operation's own, and the source is at rest.
        unsafe { halves::widen(dtype, source.slice(), self.slice_mut()) }
    }

    /// The elements of a region of f32, rounded to f16 or bf16, to nearest, ties to even.
    pub(crate) fn narrow_from(&self, dtype: Dtype, source: &Self) -> Result<()> {
        // SAFETY: the output is alive and at rest, nobody else has a slice of it, and so is the scratch memory that is
        // the source.
        unsafe { halves::narrow(dtype, source.slice(), self.slice_mut()) }
    }

    /// # Safety
    /// Nobody may write these bytes meanwhile.
    unsafe fn slice(&self) -> &[u8] {
        // SAFETY: the bytes are alive and initialised; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start, self.len_bytes) }
    }

    /// # Safety
    /// No other slice of these bytes may exist, and no link may use them.
    #[expect(clippy::mut_from_ref, reason = "regions are handles to memory, not owners of it")]
    unsafe fn slice_mut(&self) -> &mut [u8] {
        // SAFETY: the bytes are alive and initialised; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len_bytes) }
    }
}

/// The place of a message that is received into a region; none for no bytes.
pub(crate) fn places(region: Option<&Region>) -> Result<Tensors> {
    match region.filter(|region| region.len_bytes > 0) {
        Some(region) => Ok(smallvec![region.tensor()?]),
        None => Ok(SmallVec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;
    use sheave_tensor::ArenaConfig;

    #[test]
    fn a_tensor_is_held_until_the_last_message_lets_go() {
        let tensor = Tensor::from_slice(&[1.0_f32, 2.0], [2]).unwrap();
        let region = Region::writing(&tensor, "all_reduce").unwrap();
        let message = region.part(4..8).tensor().unwrap();
        drop(region);
        let error = tensor.write_lease("recv").unwrap_err();
        assert!(error.to_string().contains("all_reduce"), "{error}");
        drop(message);
        assert!(tensor.write_lease("recv").is_ok());
    }

    #[test]
    fn parts_are_sent_and_filled_apart() {
        let tensor = Tensor::private(Dtype::U8, [8]).unwrap();
        let region = Region::writing(&tensor, "all_gather").unwrap();
        let (one, other) = (region.part(0..4).tensor().unwrap(), region.part(4..8).tensor().unwrap());
        let _reading = one.read_lease("send").unwrap();
        let _writing = other.write_lease("recv").unwrap();
        assert!(!region.part(0..4).overlaps(&region.part(4..8)) && region.overlaps(&region.part(4..8)));
    }

    #[test]
    fn halves_are_widened_and_rounded_once() {
        let arena = Arena::new(ArenaConfig { capacity_bytes: 16 << 20, ..ArenaConfig::default() });
        let wide = Region::scratch(&arena, 12).unwrap();
        let values = [f16::from_f32(1.0), f16::from_f32(65504.0), f16::NAN];
        let tensor = Tensor::from_slice(&values, [3]).unwrap();
        let half = Region::writing(&tensor, "reduce").unwrap();
        wide.widen_from(Dtype::F16, &half).unwrap();
        wide.reduce(Op::Sum, Dtype::F32, &wide, &wide).unwrap();
        wide.scale(Dtype::F32, 0.5).unwrap();
        half.narrow_from(Dtype::F16, &wide).unwrap();
        drop(half);
        let back = tensor.to_vec::<f16>().unwrap();
        assert_eq!(back[..2], values[..2]);
        assert_eq!(back[2].to_bits(), 0x7e00);
    }
}
