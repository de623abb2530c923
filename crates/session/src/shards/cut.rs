//! Tensors that are cut on worker 0.

use super::info::{ShardFunction, ShardInfo};
use crate::collective::local;
use crate::functions;
use crate::held::Held;
use sheave_base::{Error, ErrorKind, Result, contain};
use sheave_mesh::Mesh;
use sheave_tensor::{Shape, Tensor};
use sheave_wire::Value;

/// A tensor with one row for each worker.
pub(super) fn cut(mesh: &Mesh, whole: Tensor, info: &ShardInfo, workers: u32) -> Result<Tensor> {
    let made = match info {
        ShardInfo::Dimension(dimension) => along(&whole, *dimension as usize, workers)?,
        ShardInfo::Functions(functions) => {
            functions.iter().try_fold(whole, |tensor, function| called(mesh, tensor, function))?
        }
    };
    if made.shape().dimensions().first() == Some(&u64::from(workers)) {
        return Ok(made);
    }
    let what = format!("its shards are {}{}; expected {workers} rows, one for each worker", made.dtype(), made.shape());
    Err(Error::new(ErrorKind::Mismatch, what))
}

/// What a function makes of a tensor. The other workers wait for this one, which therefore does not panic.
fn called(mesh: &Mesh, tensor: Tensor, function: &ShardFunction) -> Result<Tensor> {
    let ShardFunction { name, shape, dtype, numbers } = function;
    let call = || {
        let target = local::make(mesh, *dtype, shape)?;
        let mut arguments = vec![local::held(tensor)];
        arguments.extend(numbers.iter().map(|number| Held::of(*number)));
        arguments.push(local::held(target.clone()));
        let made = match functions::found(name)?.call(arguments)? {
            Held::Value(Value::None, _) => target,
            made => made.read()?,
        };
        if (made.dtype(), made.shape()) == (*dtype, shape) {
            return Ok(made);
        }
        let what = format!("it has made {}{}; expected {dtype}{shape}", made.dtype(), made.shape());
        Err(Error::new(ErrorKind::Mismatch, what))
    };
    let called =
        contain::run(call).unwrap_or_else(|text| Err(Error::new(ErrorKind::Remote, format!("it panicked: {text}"))));
    called.map_err(|error| error.context(format!("function {name}")))
}

/// Equal parts of one dimension, one behind the other.
fn along(whole: &Tensor, dimension: usize, parts: u32) -> Result<Tensor> {
    let (dimensions, parts) = (whole.shape().dimensions(), u64::from(parts));
    let extent = dimensions.get(dimension).filter(|extent| extent.is_multiple_of(parts)).ok_or_else(|| {
        let what = format!("{}{} cut along dimension {dimension}", whole.dtype(), whole.shape());
        Error::new(ErrorKind::Mismatch, format!("{what}; expected a multiple of {parts} there"))
    })?;
    let mut shape = vec![parts];
    shape.extend_from_slice(dimensions);
    shape[dimension + 1] = extent / parts;
    let mut made = Tensor::private(whole.dtype(), Shape::new(&shape)?)?;
    if made.len_bytes() == 0 {
        return Ok(made);
    }
    let inner: u64 = dimensions[dimension + 1..].iter().product();
    // The bytes of one part where all dimensions before are fixed, and of all its parts there.
    let piece_bytes = (extent / parts * inner) as usize * whole.dtype().size_bytes();
    let line_bytes = piece_bytes * parts as usize;
    let bytes = whole.bytes()?;
    let shard_bytes = bytes.len() / parts as usize;
    for (part, shard) in made.bytes_mut()?.chunks_exact_mut(shard_bytes).enumerate() {
        for (piece, line) in shard.chunks_exact_mut(piece_bytes).zip(bytes.chunks_exact(line_bytes)) {
            piece.copy_from_slice(&line[part * piece_bytes..][..piece_bytes]);
        }
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_are_cut_in_equal_parts() {
        let numbers: Vec<i16> = (0..24).collect();
        let whole = Tensor::from_slice(&numbers, [2, 4, 3]).unwrap();
        let cut = |dimension, parts| {
            along(&whole, dimension, parts).map(|made| (made.shape().clone(), made.to_vec::<i16>().unwrap()))
        };
        assert_eq!(cut(0, 2).unwrap(), (Shape::from([2, 1, 4, 3]), numbers.clone()));
        let (shape, made) = cut(1, 2).unwrap();
        assert_eq!(shape, Shape::from([2, 2, 2, 3]));
        assert_eq!(made[..12], [0, 1, 2, 3, 4, 5, 12, 13, 14, 15, 16, 17]);
        let (shape, made) = cut(2, 3).unwrap();
        assert_eq!(shape, Shape::from([3, 2, 4, 1]));
        assert_eq!(made[..8], [0, 3, 6, 9, 12, 15, 18, 21]);
        assert_eq!(made[16..], [2, 5, 8, 11, 14, 17, 20, 23]);
        for (dimension, parts) in [(0, 3), (3, 1)] {
            assert_eq!(cut(dimension, parts).unwrap_err().kind(), ErrorKind::Mismatch);
        }
        let empty = Tensor::private(whole.dtype(), [4, 0]).unwrap();
        assert_eq!(along(&empty, 0, 2).unwrap().shape(), &Shape::from([2, 2, 0]));
    }
}
