//! A dtype and a shape over a range of a buffer.

use std::fmt;
use std::ops::Range;

use sheave_base::{Error, ErrorKind, Result};

use crate::kernels::{Op, Operands, reduce_and_hand_over, scale};
use crate::{Arena, Buffer, Device, Dtype, Element, ReadLease, Shape, View, WriteLease};

/// Elements in row-major order without gaps, in memory that clones of the tensor share.
///
/// Cloning, reshaping and slicing rows make another handle to the same memory. The in-use flag belongs to the whole
/// buffer, whatever part of it a tensor covers.
///
/// ```
/// use sheave_tensor::{Arena, ArenaConfig, Dtype, Op, Tensor};
///
/// let arena = Arena::new(ArenaConfig::default());
/// let mut sum = Tensor::empty(&arena, Dtype::F32, [2, 2])?;
/// sum.as_mut_slice::<f32>()?.copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
/// sum.reduce_from(Op::Sum, &Tensor::from_slice(&[10.0_f32; 4], [2, 2])?)?;
/// assert_eq!(sum.slice_rows(1..2)?.to_vec::<f32>()?, [13.0, 14.0]);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    buffer: Buffer,
    dtype: Dtype,
    shape: Shape,
    device: Device,
    offset_bytes: usize,
    len_bytes: usize,
}

impl Tensor {
    /// A tensor in the arena, where peers on this host can reach it without a copy. Its elements are whatever lay
    /// there.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] when the arena is used up or the shape is too large.
    pub fn empty(arena: &Arena, dtype: Dtype, shape: impl Into<Shape>) -> Result<Self> {
        Self::empty_within(arena, dtype, shape, u64::MAX)
    }

    /// As [`empty`](Self::empty), in an arena that maps at most `growth_bytes_max` bytes more for it.
    ///
    /// # Errors
    /// As [`Arena::allocate_within`], and [`ErrorKind::InvalidArgument`] for a shape that is too large.
    pub fn empty_within(arena: &Arena, dtype: Dtype, shape: impl Into<Shape>, growth_bytes_max: u64) -> Result<Self> {
        let shape = shape.into();
        let len_bytes = len_bytes(dtype, &shape)?;
        Ok(Self {
            buffer: arena.allocate_within(len_bytes, growth_bytes_max)?,
            dtype,
            shape,
            device: Device::default(),
            offset_bytes: 0,
            len_bytes,
        })
    }

    /// A tensor of zeros in memory of this process alone.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] when there is no memory or the shape is too large.
    pub fn private(dtype: Dtype, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        let len_bytes = len_bytes(dtype, &shape)?;
        Ok(Self {
            buffer: Buffer::private(len_bytes)?,
            dtype,
            shape,
            device: Device::default(),
            offset_bytes: 0,
            len_bytes,
        })
    }

    /// A copy of `values` in memory of this process alone.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] when the shape has another number of elements; [`ErrorKind::LimitExceeded`] when there
    /// is no memory.
    pub fn from_slice<T: Element>(values: &[T], shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        if shape.elements() != Some(values.len() as u64) {
            let what = format!("{} values do not fill the shape {shape}", values.len());
            return Err(Error::new(ErrorKind::Mismatch, what));
        }
        let mut tensor = Self::private(T::DTYPE, shape)?;
        tensor.bytes_mut()?.copy_from_slice(bytemuck::cast_slice(values));
        Ok(tensor)
    }

    /// A tensor over part of a buffer.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when the range is not inside the buffer or not aligned as its elements must be.
    pub fn from_buffer(buffer: Buffer, offset_bytes: usize, dtype: Dtype, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        let len_bytes = len_bytes(dtype, &shape)?;
        let end_bytes = offset_bytes.checked_add(len_bytes);
        if end_bytes.is_none_or(|end_bytes| end_bytes > buffer.len_bytes()) {
            let what = format!("{dtype}{shape} at byte {offset_bytes} is not inside {buffer:?}");
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let address = (buffer.ptr() as usize).wrapping_add(offset_bytes);
        if len_bytes > 0 && !address.is_multiple_of(dtype.align_bytes()) {
            let what = format!("{dtype}{shape} at byte {offset_bytes} of {buffer:?} is not aligned to its elements");
            return Err(Error::new(ErrorKind::InvalidArgument, what).hint("copy the bytes to an aligned place first"));
        }
        Ok(Self { buffer, dtype, shape, device: Device::default(), offset_bytes, len_bytes })
    }

    /// What the elements are.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The device that the elements belong to; cpu:0 unless [`on`](Self::on) says otherwise.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// The same elements under the label of another device. Nothing moves: several labels of one host stand for parts
    /// of a program that each work on tensors of their own.
    ///
    /// ```
    /// use sheave_tensor::{Device, Tensor};
    ///
    /// let tensor = Tensor::from_slice(&[1.0_f32, 2.0], [2])?.on(Device::Cpu(1));
    /// assert_eq!(tensor.reshape([1, 2])?.device().to_string(), "cpu:1");
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    #[must_use]
    pub fn on(self, device: Device) -> Self {
        Self { device, ..self }
    }

    /// The extent in each dimension.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.len_bytes / self.dtype.size_bytes()
    }

    /// Bytes of all elements.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The memory.
    #[must_use]
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// The memory alone, for handing it over by move.
    #[must_use]
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    /// Where in the buffer the first element lies.
    #[must_use]
    pub fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }

    /// First byte; the rules of [`Buffer::ptr`] hold.
    #[must_use]
    pub fn ptr(&self) -> *mut u8 {
        self.buffer.ptr().wrapping_add(self.offset_bytes)
    }

    /// Begins an operation that reads; see [`Buffer::read_lease`].
    ///
    /// # Errors
    /// Those of [`Buffer::read_lease`].
    pub fn read_lease(&self, operation: &'static str) -> Result<ReadLease> {
        self.buffer.read_lease(operation)
    }

    /// Begins an operation that writes; see [`Buffer::write_lease`].
    ///
    /// # Errors
    /// Those of [`Buffer::write_lease`].
    pub fn write_lease(&self, operation: &'static str) -> Result<WriteLease> {
        self.buffer.write_lease(operation)
    }

    /// The bytes of all elements, safely.
    ///
    /// # Errors
    /// [`ErrorKind::BufferInUse`] while a writer holds the buffer, [`ErrorKind::Unsupported`] when it is a shared
    /// alias.
    pub fn bytes(&self) -> Result<View<'_, u8>> {
        self.view()
    }

    /// The elements, safely. Bool and fp8 tensors are read as `u8`, complex ones as pairs.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] when the elements are not of that type; else those of [`bytes`](Self::bytes).
    pub fn as_slice<T: Element>(&self) -> Result<View<'_, T>> {
        self.require::<T>()?;
        self.view()
    }

    /// A copy of the elements.
    ///
    /// # Errors
    /// Those of [`as_slice`](Self::as_slice).
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        Ok(self.as_slice::<T>()?.to_vec())
    }

    /// The bytes to write, through the only handle to the buffer.
    ///
    /// # Errors
    /// [`ErrorKind::BufferInUse`] when other handles exist, [`ErrorKind::Unsupported`] when it is a shared alias,
    /// [`ErrorKind::InvalidArgument`] when it is read-only.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        let range = self.range();
        Ok(&mut self.buffer.bytes_mut()?[range])
    }

    /// The elements to write, through the only handle to the buffer.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] when the elements are not of that type; else those of [`bytes_mut`](Self::bytes_mut).
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.require::<T>()?;
        if self.len_bytes == 0 {
            return Ok(&mut []);
        }
        Ok(bytemuck::cast_slice_mut(self.bytes_mut()?))
    }

    /// The same elements in another shape.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] when the shape has another number of elements.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        if shape.elements() != Some(self.elements() as u64) {
            let what = format!("{}{} cannot take the shape {shape}", self.dtype, self.shape);
            return Err(Error::new(ErrorKind::Mismatch, what));
        }
        Ok(Self { shape, ..self.clone() })
    }

    /// Some rows, that is entries of the outermost dimension, in the same memory.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when there are no such rows.
    pub fn slice_rows(&self, rows: Range<u64>) -> Result<Self> {
        let dimensions = self.shape.dimensions();
        let Some((&count, inner)) = dimensions.split_first().filter(|_| rows.start <= rows.end) else {
            let what = format!("{}{} has no rows {rows:?}", self.dtype, self.shape);
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        };
        if rows.end > count {
            let what = format!("rows {rows:?} are not inside {}{}", self.dtype, self.shape);
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let row_bytes = if count == 0 { 0 } else { self.len_bytes / count as usize };
        let mut sliced = vec![rows.end - rows.start];
        sliced.extend_from_slice(inner);
        Ok(Self {
            shape: Shape::new(&sliced)?,
            offset_bytes: self.offset_bytes + row_bytes * rows.start as usize,
            len_bytes: row_bytes * (rows.end - rows.start) as usize,
            ..self.clone()
        })
    }

    /// Copies bytes over those of this tensor, whoever else has a handle to it. `operation` is what others are told
    /// meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] when there are more or fewer bytes; those of [`write_lease`](Self::write_lease).
    pub fn overwrite(&self, bytes: &[u8], operation: &'static str) -> Result<()> {
        let mut lease = self.write_lease(operation)?;
        self.overwrite_under(&mut lease, bytes)
    }

    /// As [`overwrite`](Self::overwrite), under a lease that is held already.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] when there are more or fewer bytes, or the lease is for another buffer.
    pub fn overwrite_under(&self, lease: &mut WriteLease, bytes: &[u8]) -> Result<()> {
        if !lease.buffer().is_same(&self.buffer) || bytes.len() != self.len_bytes {
            let what = format!("{} bytes for {}{} under its lease", bytes.len(), self.dtype, self.shape);
            return Err(Error::new(ErrorKind::Mismatch, what));
        }
        let range = self.range();
        let target = lease.bytes_mut()?.get_mut(range);
        target
            .ok_or_else(|| Error::new(ErrorKind::Internal, "a tensor lies outside its buffer"))?
            .copy_from_slice(bytes);
        Ok(())
    }

    /// `self[i] = self[i] op other[i]`, through the only handle to this buffer; written as what peers read next.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] when dtypes or shapes differ, [`ErrorKind::Unsupported`] when the dtype has no such
    /// operation; else those of [`bytes`](Self::bytes) and [`bytes_mut`](Self::bytes_mut).
    pub fn reduce_from(&mut self, op: Op, other: &Self) -> Result<()> {
        if (self.dtype, &self.shape) != (other.dtype, &other.shape) {
            let what = format!("{}{} cannot be reduced with {}{}", self.dtype, self.shape, other.dtype, other.shape);
            return Err(Error::new(ErrorKind::Mismatch, what));
        }
        let (dtype, elements) = (self.dtype, self.elements());
        let (target, other) = (self.bytes_mut()?.as_mut_ptr(), other.bytes()?);
        // SAFETY: both have as many elements; the target is borrowed exclusively, and so overlaps no other one.
        unsafe { reduce_and_hand_over(op, dtype, Operands { target, left: target, right: other.as_ptr(), elements }) }
    }

    /// `self[i] = left[i] op right[i]`, through the only handle to this buffer; written as what peers read next.
    ///
    /// # Errors
    /// As [`reduce_from`](Self::reduce_from).
    pub fn reduce_both(&mut self, op: Op, left: &Self, right: &Self) -> Result<()> {
        for other in [left, right] {
            if (self.dtype, &self.shape) != (other.dtype, &other.shape) {
                let what =
                    format!("{}{} cannot hold what {}{} gives", self.dtype, self.shape, other.dtype, other.shape);
                return Err(Error::new(ErrorKind::Mismatch, what));
            }
        }
        let (dtype, elements) = (self.dtype, self.elements());
        let (target, left, right) = (self.bytes_mut()?.as_mut_ptr(), left.bytes()?, right.bytes()?);
        let (left, right) = (left.as_ptr(), right.as_ptr());
        // SAFETY: all three have as many elements; the target is borrowed exclusively, so that it overlaps neither.
        unsafe { reduce_and_hand_over(op, dtype, Operands { target, left, right, elements }) }
    }

    /// Multiplies every element, through the only handle to this buffer; see [`scale`].
    ///
    /// # Errors
    /// Those of [`scale`] and [`bytes_mut`](Self::bytes_mut).
    pub fn scale(&mut self, factor: f64) -> Result<()> {
        let dtype = self.dtype;
        scale(dtype, self.bytes_mut()?, factor)
    }

    fn range(&self) -> Range<usize> {
        self.offset_bytes..self.offset_bytes + self.len_bytes
    }

    fn view<T: bytemuck::Pod>(&self) -> Result<View<'_, T>> {
        let view = self.buffer.bytes()?;
        // Range and alignment were checked when the tensor was made.
        view.narrow(self.range()).ok_or_else(|| Error::new(ErrorKind::Internal, "a tensor lies outside its buffer"))
    }

    fn require<T: Element>(&self) -> Result<()> {
        if T::reads(self.dtype) {
            return Ok(());
        }
        let what = format!("elements of {}{} are not {}", self.dtype, self.shape, std::any::type_name::<T>());
        Err(Error::new(ErrorKind::Mismatch, what))
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({}{} at byte {} of {:?})", self.dtype, self.shape, self.offset_bytes, self.buffer)
    }
}

/// Bytes that a tensor of this dtype and shape needs.
pub(crate) fn len_bytes(dtype: Dtype, shape: &Shape) -> Result<usize> {
    let len_bytes = shape.elements().and_then(|elements| elements.checked_mul(dtype.size_bytes() as u64));
    let len_bytes = len_bytes.and_then(|len_bytes| isize::try_from(len_bytes).ok());
    len_bytes.map(|len_bytes| len_bytes as usize).ok_or_else(|| {
        Error::new(ErrorKind::LimitExceeded, format!("{dtype}{shape} has more bytes than an address space holds"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn ranges_and_alignment_are_checked() {
        let buffer = Buffer::private(100).unwrap();
        let made = |offset, dtype, shape: [u64; 1]| Tensor::from_buffer(buffer.clone(), offset, dtype, shape);
        assert!(made(0, Dtype::F32, [25]).is_ok());
        for (offset, dtype, shape) in [
            (0, Dtype::F32, [26]),
            (2, Dtype::F32, [1]),
            (97, Dtype::F32, [1]),
            (101, Dtype::U8, [0]),
            (usize::MAX, Dtype::U8, [1]),
        ] {
            assert_eq!(made(offset, dtype, shape).unwrap_err().kind(), ErrorKind::InvalidArgument, "{offset}");
        }
        assert_eq!(made(0, Dtype::F64, [u64::MAX / 2]).unwrap_err().kind(), ErrorKind::LimitExceeded);
        assert!(made(100, Dtype::F64, [0]).unwrap().as_slice::<f64>().is_ok());
        assert!(made(99, Dtype::F64, [0]).unwrap().as_slice::<f64>().is_ok());
    }

    #[test]
    fn rows_and_shapes_are_views() {
        let mut tensor = Tensor::from_slice(&[1_i32, 2, 3, 4, 5, 6], [3, 2]).unwrap();
        let rows = tensor.slice_rows(1..3).unwrap();
        assert_eq!((rows.shape().dimensions(), rows.to_vec::<i32>().unwrap()), (&[2, 2][..], vec![3, 4, 5, 6]));
        assert_eq!(rows.slice_rows(1..2).unwrap().reshape([2]).unwrap().to_vec::<i32>().unwrap(), [5, 6]);
        assert_eq!(rows.slice_rows(2..2).unwrap().elements(), 0);
        #[expect(clippy::reversed_empty_ranges, reason = "what is refused")]
        let reversed = tensor.slice_rows(2..1);
        assert!(reversed.is_err() && tensor.slice_rows(0..4).is_err());
        assert!(Tensor::from_slice(&[1_u8], []).unwrap().slice_rows(0..1).is_err());
        assert_eq!(tensor.reshape([5]).unwrap_err().kind(), ErrorKind::Mismatch);
        assert_eq!(tensor.as_mut_slice::<i32>().unwrap_err().kind(), ErrorKind::BufferInUse);
        drop(rows);
        tensor.as_mut_slice::<i32>().unwrap()[5] = 60;
        assert_eq!(tensor.reshape([6]).unwrap().to_vec::<i32>().unwrap()[5], 60);
    }

    #[test]
    fn elements_are_read_as_what_they_are() {
        let tensor = Tensor::from_slice(&[f16::ONE, f16::ZERO], [2]).unwrap();
        assert_eq!(tensor.as_slice::<bf16>().unwrap_err().kind(), ErrorKind::Mismatch);
        assert_eq!(tensor.bytes().unwrap().len(), 4);
        let pairs = Tensor::from_slice(&[[1.0_f32, -1.0]], []).unwrap();
        assert_eq!((pairs.dtype(), pairs.to_vec::<[f32; 2]>().unwrap()), (Dtype::Complex64, vec![[1.0, -1.0]]));
        assert!(Tensor::from_slice(&[1.0_f32], [2]).is_err());
        assert_eq!(Tensor::private(Dtype::Bool, [3]).unwrap().to_vec::<u8>().unwrap(), [0, 0, 0]);
    }

    #[test]
    fn reductions_need_the_same_shape() {
        let mut left = Tensor::from_slice(&[1.0_f32, 2.0], [2]).unwrap();
        let right = Tensor::from_slice(&[1.0_f32, 2.0], [2, 1]).unwrap();
        assert_eq!(left.reduce_from(Op::Sum, &right).unwrap_err().kind(), ErrorKind::Mismatch);
        left.reduce_from(Op::Prod, &right.reshape([2]).unwrap()).unwrap();
        left.scale(0.5).unwrap();
        assert_eq!(left.to_vec::<f32>().unwrap(), [0.5, 2.0]);
        let mut both = Tensor::from_slice(&[0.0_f32; 2], [2]).unwrap();
        assert_eq!(both.reduce_both(Op::Sum, &left, &right).unwrap_err().kind(), ErrorKind::Mismatch);
        both.reduce_both(Op::Sum, &left, &right.reshape([2]).unwrap()).unwrap();
        assert_eq!(both.to_vec::<f32>().unwrap(), [1.5, 4.0]);
        assert_eq!(both.clone().reduce_both(Op::Sum, &left, &left).unwrap_err().kind(), ErrorKind::BufferInUse);
        let again = left.clone();
        assert_eq!(left.reduce_from(Op::Sum, &again).unwrap_err().kind(), ErrorKind::BufferInUse);
    }
}
