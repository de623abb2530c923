//! Taking tensors of foreign frameworks: zero-copy where their layout is ours, packed once where it is not.

use std::ptr::NonNull;

use sheave_base::{Error, ErrorKind, Result};
use smallvec::SmallVec;

use crate::tensor::len_bytes;
use crate::{Buffer, Dtype, Shape, Tensor};

/// One dimension as it lies in memory: its extent and the distance between neighbours.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    extent: usize,
    stride_bytes: isize,
}

type Axes = SmallVec<[Axis; 6]>;

impl Tensor {
    /// Takes a strided array of somebody else. `first` is the element whose indices are all zero; a stride may be
    /// negative (walking backwards) or zero (one element repeated).
    ///
    /// Row-major and aligned input is not copied: `owner` is held until the last handle is dropped. Anything else is
    /// packed into private memory at once, and `owner` is dropped before the call returns.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when there is not one stride per dimension; [`ErrorKind::LimitExceeded`] when the
    /// array would span more than the address space, or there is no memory to pack it.
    ///
    /// # Safety
    /// Every element that shape and strides reach from `first` must be initialised and readable, and, unless
    /// `read_only`, writable, until `owner` is dropped; and the promise of [`Buffer::foreign`] about writes by others
    /// must hold.
    pub unsafe fn pack(
        dtype: Dtype,
        shape: impl Into<Shape>,
        strides_elements: &[i64],
        first: NonNull<u8>,
        read_only: bool,
        owner: Box<dyn Send + Sync>,
    ) -> Result<Self> {
        let shape = shape.into();
        let total_bytes = len_bytes(dtype, &shape)?;
        if strides_elements.len() != shape.dimensions().len() {
            let what = format!("{} strides for the shape {shape}", strides_elements.len());
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        if total_bytes == 0 {
            return Self::from_buffer(Buffer::empty(), 0, dtype, shape);
        }
        let axes = axes(dtype, &shape, strides_elements)?;
        let aligned = first.addr().get().is_multiple_of(dtype.align_bytes());
        if aligned && is_contiguous(&axes, dtype.size_bytes()) {
            // SAFETY: row-major elements are exactly `total_bytes` from the first; the rest is the caller's promise.
            let buffer = unsafe { Buffer::foreign(first, total_bytes, read_only, owner) };
            return Self::from_buffer(buffer, 0, dtype, shape);
        }
        let mut tensor = Self::private(dtype, shape)?;
        // SAFETY: the axes reach only elements that the caller promises, and the target has as many elements.
        unsafe { gather(&axes, dtype.size_bytes(), first.as_ptr(), tensor.bytes_mut()?) };
        drop(owner);
        Ok(tensor)
    }
}

/// Axes of more than one element, outermost first, joined where two of them are one walk through memory.
fn axes(dtype: Dtype, shape: &Shape, strides_elements: &[i64]) -> Result<Axes> {
    let too_far = || {
        let what = format!("{dtype}{shape} with strides {strides_elements:?} spans more than the address space");
        Error::new(ErrorKind::LimitExceeded, what)
    };
    let mut joined = Axes::new();
    let mut reach_bytes = 0_i64;
    for (&extent, &stride) in shape.dimensions().iter().zip(strides_elements) {
        if extent == 1 {
            continue;
        }
        let stride_bytes = stride.checked_mul(dtype.size_bytes() as i64).ok_or_else(too_far)?;
        // The sum over all axes bounds every address on both sides of the first element.
        let walk_bytes =
            i64::try_from(extent - 1).ok().and_then(|steps| stride_bytes.checked_abs()?.checked_mul(steps));
        reach_bytes = walk_bytes.and_then(|walk_bytes| reach_bytes.checked_add(walk_bytes)).ok_or_else(too_far)?;
        let axis = Axis { extent: extent as usize, stride_bytes: stride_bytes as isize };
        match joined.last_mut() {
            Some(outer) if outer.stride_bytes as i64 == stride_bytes.saturating_mul(extent as i64) => {
                *outer = Axis { extent: outer.extent * axis.extent, ..axis };
            }
            _ => joined.push(axis),
        }
    }
    Ok(joined)
}

fn is_contiguous(axes: &Axes, element_bytes: usize) -> bool {
    match axes.as_slice() {
        [] => true,
        [only] => only.stride_bytes == element_bytes as isize,
        _ => false,
    }
}

/// Copies the elements in row-major order into `target`.
///
/// # Safety
/// Every element that the axes reach from `first` is readable, and `target` has room for exactly these.
unsafe fn gather(axes: &Axes, element_bytes: usize, first: *const u8, target: &mut [u8]) {
    let one = Axis { extent: 1, stride_bytes: element_bytes as isize };
    let (&inner, outer) = axes.split_last().unwrap_or((&one, &[]));
    let mut indices: SmallVec<[usize; 6]> = SmallVec::from_elem(0, outer.len());
    let mut row_start_bytes = 0_isize;
    for row in target.chunks_exact_mut(inner.extent * element_bytes) {
        // SAFETY: the offset is that of an element, which the caller promises, and no sum overflows (see `axes`).
        let source = unsafe { first.offset(row_start_bytes) };
        // SAFETY: the row's elements are among those promised.
        unsafe { gather_row(inner, element_bytes, source, row) };
        for (index, axis) in indices.iter_mut().zip(outer).rev() {
            *index += 1;
            row_start_bytes += axis.stride_bytes;
            if *index < axis.extent {
                break;
            }
            row_start_bytes -= axis.stride_bytes * axis.extent as isize;
            *index = 0;
        }
    }
}

/// # Safety
/// As for [`gather`], with a single axis.
unsafe fn gather_row(axis: Axis, element_bytes: usize, source: *const u8, row: &mut [u8]) {
    /// # Safety
    /// As for [`gather_row`]; `N` is the size of an element.
    unsafe fn strided<const N: usize>(stride_bytes: isize, source: *const u8, row: &mut [u8]) {
        for (index, element) in row.as_chunks_mut::<N>().0.iter_mut().enumerate() {
            // SAFETY: the offset is that of an element of the row; bytes have no alignment.
            *element = unsafe { source.offset(index as isize * stride_bytes).cast::<[u8; N]>().read() };
        }
    }
    if axis.stride_bytes == element_bytes as isize {
        // SAFETY: the elements lie side by side, and the target is fresh memory of ours.
        unsafe { std::ptr::copy_nonoverlapping(source, row.as_mut_ptr(), row.len()) };
        return;
    }
    // SAFETY: handed on.
    unsafe {
        match element_bytes {
            1 => strided::<1>(axis.stride_bytes, source, row),
            2 => strided::<2>(axis.stride_bytes, source, row),
            4 => strided::<4>(axis.stride_bytes, source, row),
            8 => strided::<8>(axis.stride_bytes, source, row),
            _ => strided::<16>(axis.stride_bytes, source, row),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    /// Packs from `first` elements into `values`; tells the tensor and how many owners are left.
    fn pack(values: &Arc<Vec<i32>>, first: usize, shape: &[u64], strides: &[i64]) -> Result<Tensor> {
        let start = NonNull::new(values.as_ptr().cast_mut()).unwrap();
        // SAFETY: the tests' shapes and strides stay inside the vector, which the owner holds and nobody writes.
        unsafe {
            let first = start.add(first).cast();
            Tensor::pack(Dtype::I32, Shape::new(shape)?, strides, first, true, Box::new(Arc::clone(values)))
        }
    }

    fn numbers(count: i32) -> Arc<Vec<i32>> {
        Arc::new((0..count).collect())
    }

    #[test]
    fn row_major_input_is_not_copied() {
        let values = numbers(24);
        for (shape, strides) in [
            (&[24][..], &[1][..]),
            (&[2, 3, 4], &[12, 4, 1]),
            (&[1, 6, 4, 1], &[999, 4, 1, -7]),
            (&[1, 1], &[0, 0]),
            (&[], &[]),
        ] {
            let tensor = pack(&values, 0, shape, strides).unwrap();
            assert_eq!((tensor.ptr() as usize, Arc::strong_count(&values)), (values.as_ptr() as usize, 2));
            assert!(tensor.buffer().is_read_only());
            drop(tensor);
            assert_eq!(Arc::strong_count(&values), 1);
        }
    }

    #[test]
    fn strided_input_is_packed_once() {
        let values = numbers(12);
        for (first, shape, strides, expected) in [
            (0, &[4, 3][..], &[1, 4][..], &[0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11][..]),
            (11, &[12], &[-1], &[11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]),
            (3, &[2, 3], &[0, 1], &[3, 4, 5, 3, 4, 5]),
            (5, &[4], &[0], &[5, 5, 5, 5]),
            (8, &[3, 2], &[-4, 2], &[8, 10, 4, 6, 0, 2]),
            (0, &[2, 2, 2], &[6, 1, 3], &[0, 3, 1, 4, 6, 9, 7, 10]),
        ] {
            let tensor = pack(&values, first, shape, strides).unwrap();
            assert_eq!(tensor.to_vec::<i32>().unwrap(), expected);
            assert_eq!((tensor.shape().dimensions(), Arc::strong_count(&values)), (shape, 1));
        }
    }

    #[test]
    fn misaligned_input_is_packed() {
        let bytes = Arc::new([0_u8; 17]);
        let start = NonNull::new(bytes.as_ptr().cast_mut()).unwrap();
        let shift = 1 + start.addr().get() % 2;
        // SAFETY: two elements of four bytes fit behind a shift of one or two.
        let tensor = unsafe { Tensor::pack(Dtype::F32, [2], &[1], start.add(shift), true, Box::new(bytes.clone())) };
        let tensor = tensor.unwrap();
        assert!(tensor.to_vec::<f32>().unwrap() == [0.0, 0.0] && (tensor.ptr() as usize).is_multiple_of(4));
    }

    #[test]
    fn impossible_layouts_are_errors() {
        let values = numbers(1);
        let refused = |shape: &[u64], strides: &[i64]| pack(&values, 0, shape, strides).unwrap_err().kind();
        assert_eq!(refused(&[1, 1], &[1]), ErrorKind::InvalidArgument);
        assert_eq!(refused(&[2], &[i64::MAX / 2]), ErrorKind::LimitExceeded);
        assert_eq!(refused(&[2], &[i64::MIN / 4]), ErrorKind::LimitExceeded);
        assert_eq!(refused(&[2, 2], &[i64::MAX / 4, i64::MAX / 4]), ErrorKind::LimitExceeded);
        assert_eq!(refused(&[1 << 40, 1 << 40], &[0, 0]), ErrorKind::LimitExceeded);
        assert_eq!(refused(&[u64::MAX], &[0]), ErrorKind::LimitExceeded);
        assert_eq!(pack(&values, 0, &[0, u64::MAX], &[1, 1]).unwrap().elements(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Against plain index arithmetic.
        #[test]
        fn packing_follows_the_strides(axes in prop::collection::vec((1_u64..5, -6_i64..7), 0..5)) {
            let reach: i64 = axes.iter().map(|&(extent, stride)| (extent as i64 - 1) * stride.abs()).sum();
            let values = numbers(2 * reach as i32 + 1);
            let (shape, strides): (Vec<_>, Vec<_>) = axes.iter().copied().unzip();
            let tensor = pack(&values, reach as usize, &shape, &strides).unwrap();
            for (flat, &value) in tensor.as_slice::<i32>().unwrap().iter().enumerate() {
                let mut rest = flat as i64;
                let mut index = reach;
                for &(extent, stride) in axes.iter().rev() {
                    index += rest % extent as i64 * stride;
                    rest /= extent as i64;
                }
                prop_assert_eq!(i64::from(value), index);
            }
        }
    }
}
