//! f16 and bf16 as f32 and back.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::Dtype;

/// The elements of f16 or bf16 as f32: as many as there are.
pub(crate) fn widen(dtype: Dtype, halves: &[u8], floats: &mut [u8]) -> Result<()> {
    let floats: &mut [f32] = bytemuck::try_cast_slice_mut(floats).map_err(unfit)?;
    let halves: &[u16] = bytemuck::try_cast_slice(halves).map_err(unfit)?;
    same(halves.len(), floats.len())?;
    match dtype {
        Dtype::F16 => bytemuck::cast_slice::<u16, f16>(halves).convert_to_f32_slice(floats),
        _ => bytemuck::cast_slice::<u16, bf16>(halves).convert_to_f32_slice(floats),
    }
    Ok(())
}

/// Floats, rounded to f16 or bf16, to nearest, ties to even: as many as there are.
pub(crate) fn narrow(dtype: Dtype, floats: &[u8], halves: &mut [u8]) -> Result<()> {
    let floats: &[f32] = bytemuck::try_cast_slice(floats).map_err(unfit)?;
    let halves: &mut [u16] = bytemuck::try_cast_slice_mut(halves).map_err(unfit)?;
    same(halves.len(), floats.len())?;
    match dtype {
        Dtype::F16 => bytemuck::cast_slice_mut::<u16, f16>(halves).convert_from_f32_slice(floats),
        _ => bytemuck::cast_slice_mut::<u16, bf16>(halves).convert_from_f32_slice(floats),
    }
    Ok(())
}

fn same(halves: usize, floats: usize) -> Result<()> {
    if halves == floats {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Internal, format!("{halves} halves meet {floats} floats inside an operation")))
}

fn unfit(error: bytemuck::PodCastError) -> Error {
    Error::new(ErrorKind::Internal, format!("elements of an operation are not whole: {error}"))
}
