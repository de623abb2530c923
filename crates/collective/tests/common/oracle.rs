//! What operations must give. Inputs are small whole numbers, for which every order of floating-point additions and
//! multiplications gives the same; numbers are kept as `f64` (complex ones as two) and written as the dtype's bytes.

use half::{bf16, f16};
use sheave_collective::Operator;
use sheave_tensor::{Arena, Dtype, Shape, Tensor};

/// The numbers of one element.
pub(crate) fn width(dtype: Dtype) -> usize {
    if matches!(dtype, Dtype::Complex64 | Dtype::Complex128) { 2 } else { 1 }
}

/// The number at `index` of what `rank` gives to the operation that `salt` stands for: −1, 0, 1 or 2, or 0 and 1.
pub(crate) fn number(dtype: Dtype, rank: u32, index: usize, salt: u64) -> f64 {
    let mixed = (u64::from(rank) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (index as u64 + 7).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        ^ salt.wrapping_mul(0x94d0_49bb_1331_11eb);
    let drawn = mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 40;
    match dtype {
        Dtype::Bool => (drawn % 2) as f64,
        Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 | Dtype::Fp8E4M3 | Dtype::Fp8E5M2 => (drawn % 4) as f64,
        Dtype::Complex64 | Dtype::Complex128 => (drawn % 3) as f64 - 1.0,
        _ => (drawn % 4) as f64 - 1.0,
    }
}

pub(crate) fn numbers(dtype: Dtype, rank: u32, count: usize, salt: u64) -> Vec<f64> {
    (0..count * width(dtype)).map(|index| number(dtype, rank, index, salt)).collect()
}

/// Numbers as the dtype's bytes; whole numbers that do not fit wrap around.
pub(crate) fn encode(dtype: Dtype, numbers: &[f64]) -> Vec<u8> {
    let numbers = numbers.iter().copied();
    match dtype {
        Dtype::Bool | Dtype::U8 | Dtype::I8 | Dtype::Fp8E4M3 | Dtype::Fp8E5M2 => {
            numbers.map(|n| n as i64 as u8).collect()
        }
        Dtype::U16 => numbers.flat_map(|n| (n as i64 as u16).to_ne_bytes()).collect(),
        Dtype::U32 => numbers.flat_map(|n| (n as i64 as u32).to_ne_bytes()).collect(),
        Dtype::U64 => numbers.flat_map(|n| (n as i64 as u64).to_ne_bytes()).collect(),
        Dtype::I16 => numbers.flat_map(|n| (n as i64 as i16).to_ne_bytes()).collect(),
        Dtype::I32 => numbers.flat_map(|n| (n as i64 as i32).to_ne_bytes()).collect(),
        Dtype::I64 => numbers.flat_map(|n| (n as i64).to_ne_bytes()).collect(),
        Dtype::F16 => numbers.flat_map(|n| f16::from_f32(n as f32).to_ne_bytes()).collect(),
        Dtype::Bf16 => numbers.flat_map(|n| bf16::from_f32(n as f32).to_ne_bytes()).collect(),
        Dtype::F32 | Dtype::Complex64 => numbers.flat_map(|n| (n as f32).to_ne_bytes()).collect(),
        Dtype::F64 | Dtype::Complex128 => numbers.flat_map(f64::to_ne_bytes).collect(),
    }
}

/// All inputs reduced, element by element, in the order of the ranks.
pub(crate) fn reduced(dtype: Dtype, operator: Operator, inputs: &[Vec<f64>]) -> Vec<f64> {
    let mut result = inputs[0].clone();
    for input in &inputs[1..] {
        if operator == Operator::Product && width(dtype) == 2 {
            for (own, right) in result.chunks_mut(2).zip(input.chunks(2)) {
                let [re, im] = [own[0], own[1]];
                own[0] = re * right[0] - im * right[1];
                own[1] = re * right[1] + im * right[0];
            }
            continue;
        }
        result.iter_mut().zip(input).for_each(|(own, right)| *own = combine(operator, *own, *right));
    }
    if operator == Operator::Avg {
        result.iter_mut().for_each(|number| *number *= 1.0 / inputs.len() as f64);
    }
    // A zero that came out as −0 is written as the sum of whole numbers gives it.
    result.iter().map(|number| number + 0.0).collect()
}

fn combine(operator: Operator, left: f64, right: f64) -> f64 {
    let (whole_left, whole_right) = (left as i64, right as i64);
    match operator {
        Operator::Sum | Operator::Avg => left + right,
        Operator::Product => left * right,
        Operator::Min => left.min(right),
        Operator::Max => left.max(right),
        Operator::Band => (whole_left & whole_right) as f64,
        Operator::Bor => (whole_left | whole_right) as f64,
        Operator::Bxor => (whole_left ^ whole_right) as f64,
    }
}

/// The bytes without the sign of zeros, which products of whole numbers do not agree about with anybody.
pub(crate) fn unsigned_zeros(dtype: Dtype, mut bytes: Vec<u8>) -> Vec<u8> {
    let part = match dtype {
        Dtype::F16 | Dtype::Bf16 => 2,
        Dtype::F32 | Dtype::Complex64 => 4,
        Dtype::F64 | Dtype::Complex128 => 8,
        _ => return bytes,
    };
    for number in bytes.chunks_mut(part) {
        if number[part - 1] == 0x80 && number[..part - 1].iter().all(|byte| *byte == 0) {
            number[part - 1] = 0;
        }
    }
    bytes
}

/// Where tensors of a rank lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Arena,
    Private,
    /// One rank so, the next one so.
    Mixed,
}

impl Memory {
    pub(crate) const ALL: [Self; 3] = [Self::Arena, Self::Private, Self::Mixed];

    pub(crate) fn tensor(self, arena: &Arena, rank: u32, dtype: Dtype, count: usize) -> Tensor {
        let shape = Shape::new(&[count as u64]).expect("one dimension");
        match (self, rank % 2) {
            (Self::Arena, _) | (Self::Mixed, 0) => Tensor::empty(arena, dtype, shape),
            _ => Tensor::private(dtype, shape),
        }
        .expect("memory")
    }

    pub(crate) fn filled(self, arena: &Arena, rank: u32, dtype: Dtype, numbers: &[f64]) -> Tensor {
        let tensor = self.tensor(arena, rank, dtype, numbers.len() / width(dtype));
        tensor.overwrite(&encode(dtype, numbers), "test").expect("nobody else has it");
        tensor
    }
}
