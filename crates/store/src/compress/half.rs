//! Values of 16 and 32 bits, little-endian.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// Values converted at a time: enough that asking what the processor can do costs nothing.
const BLOCK: usize = 256;

pub(super) fn copy(gradient: &[f32], out: &mut [u8]) {
    for (value, bytes) in gradient.iter().zip(out.as_chunks_mut::<4>().0) {
        *bytes = value.to_le_bytes();
    }
}

#[inline(always)]
pub(super) fn read(bytes: &[u8], target: &mut [f32], put: impl Fn(f32, f32) -> f32) {
    for (target, bytes) in target.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *target = put(*target, f32::from_le_bytes(*bytes));
    }
}

pub(super) fn encode_f16(gradient: &[f32], out: &mut [u8]) {
    for (values, bytes) in gradient.chunks(BLOCK).zip(out.chunks_mut(BLOCK * 2)) {
        let mut halves = [f16::ZERO; BLOCK];
        halves[..values.len()].convert_from_f32_slice(values);
        for (half, bytes) in halves.iter().zip(bytes.as_chunks_mut::<2>().0) {
            *bytes = half.to_le_bytes();
        }
    }
}

#[inline(always)]
pub(super) fn decode_f16(bytes: &[u8], target: &mut [f32], put: impl Fn(f32, f32) -> f32) {
    for (target, bytes) in target.chunks_mut(BLOCK).zip(bytes.chunks(BLOCK * 2)) {
        let (mut halves, mut values) = ([f16::ZERO; BLOCK], [0.0; BLOCK]);
        for (half, bytes) in halves.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *half = f16::from_le_bytes(*bytes);
        }
        halves[..target.len()].convert_to_f32_slice(&mut values[..target.len()]);
        target.iter_mut().zip(values).for_each(|(target, value)| *target = put(*target, value));
    }
}

pub(super) fn encode_bf16(gradient: &[f32], out: &mut [u8]) {
    for (value, bytes) in gradient.iter().zip(out.as_chunks_mut::<2>().0) {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        // A NaN stays one: rounding could carry it to infinity, and cutting could too.
        let bits = if value.is_nan() { bits | 0x0040_0000 } else { rounded };
        *bytes = ((bits >> 16) as u16).to_le_bytes();
    }
}

#[inline(always)]
pub(super) fn decode_bf16(bytes: &[u8], target: &mut [f32], put: impl Fn(f32, f32) -> f32) {
    for (target, bytes) in target.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *target = put(*target, f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16));
    }
}
