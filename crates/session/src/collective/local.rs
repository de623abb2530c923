//! What a worker does with tensors of its own.

use crate::held::Held;
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::Mesh;
use sheave_tensor::{Dtype, Shape, Tensor};
use sheave_wire::Value;

/// What errors call the two sides of an operation.
pub(crate) const SOURCE: &str = "the source";
pub(super) const TARGET: &str = "the target";

/// The tensor of an argument, which is the memory of what the register holds.
pub(crate) fn tensor(held: Result<Held>, which: &str) -> Result<Tensor> {
    held.and_then(|held| held.read::<Tensor>()).map_err(|error| error.context(which))
}

/// The tensor of an argument that an operation writes.
pub(super) fn target(held: Result<Held>) -> Result<Tensor> {
    held.and_then(|held| held.to_target()).map_err(|error| error.context(TARGET))
}

/// A tensor as a register holds it.
pub(crate) fn held(tensor: Tensor) -> Held {
    Held::Value(Value::Tensor(0), vec![tensor])
}

/// A new tensor, where peers on this host reach it without a copy while there is room.
pub(crate) fn make(mesh: &Mesh, dtype: Dtype, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    match Tensor::empty(mesh.node().arena(), dtype, shape.clone()) {
        Err(error) if error.kind() == ErrorKind::LimitExceeded => Tensor::private(dtype, shape),
        other => other,
    }
}

/// `shape` once for each of so many.
pub(super) fn stacked(shape: &Shape, size: u32) -> Result<Shape> {
    let dimensions: Vec<u64> = std::iter::once(u64::from(size)).chain(shape.dimensions().iter().copied()).collect();
    Shape::new(&dimensions)
}

/// The parts of a tensor of this shape, of which there are `size`: its rows, if it has so many; else they are flat.
pub(super) fn part(shape: &Shape, elements: u64, size: u32) -> Result<Shape> {
    match shape.dimensions() {
        [rows, row @ ..] if *rows == u64::from(size) => Shape::new(row),
        _ => Shape::new(&[elements]),
    }
}

/// Copies a tensor over another one of the same dtype and length. They may be the same, but not overlap otherwise.
pub(super) fn copy(source: &Tensor, target: &Tensor) -> Result<()> {
    const NAME: &str = "copy";
    let (from, to) = (source, target);
    if from.dtype() != to.dtype() || from.elements() != to.elements() {
        let what = format!("{TARGET} is {}{}; expected {}{}", to.dtype(), to.shape(), from.dtype(), from.shape());
        return Err(Error::new(ErrorKind::Mismatch, what).hint("shapes may differ, dtype and number of elements not"));
    }
    if is_same(source, target) {
        return Ok(());
    }
    if source.buffer().is_same(target.buffer()) {
        let bytes = source.bytes()?.to_vec();
        return target.overwrite(&bytes, NAME);
    }
    target.overwrite(&source.bytes()?, NAME)
}

fn is_same(one: &Tensor, other: &Tensor) -> bool {
    one.ptr() == other.ptr() && one.len_bytes() == other.len_bytes()
}

/// Whether two tensors have memory in common.
pub(super) fn is_shared(one: &Tensor, other: &Tensor) -> bool {
    one.buffer().is_same(other.buffer()) || overlap(one, other)
}

/// Whether two tensors have bytes in common.
fn overlap(one: &Tensor, other: &Tensor) -> bool {
    let end = |tensor: &Tensor| tensor.ptr() as usize + tensor.len_bytes();
    (one.ptr() as usize) < end(other) && (other.ptr() as usize) < end(one)
}

/// The same elements elsewhere.
pub(super) fn copied(mesh: &Mesh, source: &Tensor) -> Result<Tensor> {
    let target = make(mesh, source.dtype(), source.shape())?;
    copy(source, &target).map(|()| target)
}

/// Refuses what an operation would refuse on the spot, while the others can still be told.
pub(super) fn check_memory(source: Option<&Tensor>, target: Option<&Tensor>, may_be_same: bool) -> Result<()> {
    const NAME: &str = "look";
    if let Some(target) = target {
        drop(target.write_lease(NAME).map_err(|error| error.context(TARGET))?);
    }
    if let Some(source) = source {
        drop(source.read_lease(NAME).map_err(|error| error.context(SOURCE))?);
    }
    let (Some(source), Some(target)) = (source, target) else { return Ok(()) };
    if !overlap(source, target) || may_be_same && is_same(source, target) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidArgument, "source and target overlap").hint("give one that lies elsewhere"))
}

/// Divides whole numbers in place, cut off towards zero.
pub(super) fn divide(tensor: &Tensor, by: u32) -> Result<()> {
    const NAME: &str = "divide";
    macro_rules! divided {
        ($bytes:expr, $own:ty, $wide:ty) => {
            for element in $bytes.chunks_exact_mut(size_of::<$own>()) {
                let mut own = [0; size_of::<$own>()];
                own.copy_from_slice(element);
                let quotient = <$wide>::from(<$own>::from_ne_bytes(own)) / <$wide>::from(by);
                // It is no larger than what it comes of.
                element.copy_from_slice(&(quotient as $own).to_ne_bytes());
            }
        };
    }
    let mut lease = tensor.write_lease(NAME)?;
    let range = tensor.offset_bytes()..tensor.offset_bytes() + tensor.len_bytes();
    let bytes = &mut lease.bytes_mut()?[range];
    match tensor.dtype() {
        Dtype::U8 => divided!(bytes, u8, u32),
        Dtype::U16 => divided!(bytes, u16, u32),
        Dtype::U32 => divided!(bytes, u32, u32),
        Dtype::U64 => divided!(bytes, u64, u64),
        Dtype::I8 => divided!(bytes, i8, i64),
        Dtype::I16 => divided!(bytes, i16, i64),
        Dtype::I32 => divided!(bytes, i32, i64),
        Dtype::I64 => divided!(bytes, i64, i64),
        other => return Err(Error::new(ErrorKind::Unsupported, format!("{other} is no dtype of whole numbers"))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_cut_off_towards_zero() {
        let tensor = Tensor::from_slice(&[-7_i8, 7, -128, 0], [4]).unwrap();
        divide(&tensor, 2).unwrap();
        assert_eq!(tensor.to_vec::<i8>().unwrap(), [-3, 3, -64, 0]);
        divide(&tensor, 200).unwrap();
        assert_eq!(tensor.to_vec::<i8>().unwrap(), [0; 4], "also by more than the dtype can say");
        let tensor = Tensor::from_slice(&[u64::MAX, 5], [2]).unwrap();
        divide(&tensor.slice_rows(0..1).unwrap(), 3).unwrap();
        assert_eq!(tensor.to_vec::<u64>().unwrap(), [u64::MAX / 3, 5]);
        assert_eq!(
            divide(&Tensor::from_slice(&[1.0_f32], [1]).unwrap(), 2).unwrap_err().kind(),
            ErrorKind::Unsupported
        );
    }

    #[test]
    fn copies_are_flat_and_checked() {
        let source = Tensor::from_slice(&[1_i32, 2, 3, 4], [4]).unwrap();
        let target = Tensor::private(Dtype::I32, [2, 2]).unwrap();
        copy(&source, &target).unwrap();
        assert_eq!(target.to_vec::<i32>().unwrap(), [1, 2, 3, 4]);
        copy(&source.slice_rows(0..2).unwrap(), &source.slice_rows(2..4).unwrap()).unwrap();
        assert_eq!(source.to_vec::<i32>().unwrap(), [1, 2, 1, 2], "within one buffer");
        let error = copy(&source, &Tensor::private(Dtype::I32, [3]).unwrap()).unwrap_err();
        assert_eq!(error.what(), "the target is i32[3]; expected i32[4]");
    }

    #[test]
    fn memory_that_an_operation_would_refuse_is_refused_before() {
        let all = Tensor::from_slice(&[1_i32, 2, 3, 4], [4]).unwrap();
        let [low, high, middle] = [0..2, 2..4, 1..3].map(|rows| all.slice_rows(rows).unwrap());
        assert!(check_memory(Some(&low), Some(&high), false).is_ok());
        assert!(check_memory(Some(&low), Some(&low), true).is_ok());
        for (source, target, may_be_same) in [(&low, &low, false), (&low, &middle, true), (&all, &middle, true)] {
            let error = check_memory(Some(source), Some(target), may_be_same).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
        let lease = all.read_lease("test").unwrap();
        assert_eq!(check_memory(None, Some(&low), false).unwrap_err().kind(), ErrorKind::BufferInUse);
        assert!(check_memory(Some(&low), None, false).is_ok());
        drop(lease);
    }
}
