//! Adding a row to all rows, for several networks at once.
//!
//! Candle finds the fast way for a row that is broadcast over one matrix, and walks element by element where there are
//! several: for eight networks that took more time than their products. Each sum over rows is made in their order, for
//! one network as for many.

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor, bail};

/// `input + bias` for an input of `[networks, rows, width]` and a bias of `[networks, width]`.
pub(crate) fn add_bias(input: &Tensor, bias: &Tensor) -> Result<Tensor> {
    input.apply_op2(bias, AddBias)
}

struct AddBias;

impl CustomOp2 for AddBias {
    fn name(&self) -> &'static str {
        "add bias"
    }

    fn cpu_fwd(&self, input: &CpuStorage, of: &Layout, bias: &CpuStorage, by: &Layout) -> Result<(CpuStorage, Shape)> {
        let (networks, rows, width) = of.shape().dims3()?;
        if by.shape().dims() != [networks, width] {
            bail!("a bias of {:?} for outputs of {:?}", by.shape(), of.shape())
        }
        let (input, bias) = (numbers(input, of)?, numbers(bias, by)?);
        let mut sums = Vec::with_capacity(input.len());
        for (input, bias) in input.chunks_exact((rows * width).max(1)).zip(bias.chunks_exact(width.max(1))) {
            for row in input.chunks_exact(width) {
                sums.extend(row.iter().zip(bias).map(|(value, bias)| value + bias));
            }
        }
        Ok((CpuStorage::F32(sums), of.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor, slope: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let of_bias = slope.contiguous()?.apply_op1_no_bwd(&SumRows)?;
        Ok((Some(slope.clone()), Some(of_bias)))
    }
}

/// `[networks, rows, width]` to `[networks, width]`.
struct SumRows;

impl CustomOp1 for SumRows {
    fn name(&self) -> &'static str {
        "sum rows"
    }

    fn cpu_fwd(&self, input: &CpuStorage, of: &Layout) -> Result<(CpuStorage, Shape)> {
        let (networks, rows, width) = of.shape().dims3()?;
        let mut sums = vec![0.0; networks * width];
        let matrices = numbers(input, of)?.chunks_exact((rows * width).max(1));
        for (matrix, sums) in matrices.zip(sums.chunks_exact_mut(width.max(1))) {
            for row in matrix.chunks_exact(width) {
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
        }
        Ok((CpuStorage::F32(sums), Shape::from((networks, width))))
    }
}

/// The numbers of a tensor whose elements are one behind the other.
pub(crate) fn numbers<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(values), Some((start, end))) => Ok(&values[start..end]),
        _ => bail!("an operation on numbers that are not f32, or not one behind the other"),
    }
}
