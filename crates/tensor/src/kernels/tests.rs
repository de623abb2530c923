//! Every level against the plain one and against a per-element oracle that shares no code with the loops.

use half::{bf16, f16};
use proptest::prelude::*;
use sheave_base::ErrorKind;

use super::elementwise::{Operands, reduce_at};
use super::level::Level;
use super::scale::scale_at;
use super::{Op, copy_bytes, copy_piece, reduce, reduce_raw, scale};
use crate::Dtype;

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, cases: if cfg!(miri) { 4 } else { 64 }, ..ProptestConfig::default() }
}

/// Elements of one case. Under miri each byte that is drawn takes a long time.
const ELEMENTS_MAX: usize = if cfg!(miri) { 40 } else { 600 };

/// Bytes with many special values: infinities, NaNs with payloads, zeros of both signs, subnormals.
fn bytes(len_bytes: usize) -> impl Strategy<Value = Vec<u8>> {
    let special = prop::sample::select(vec![0x00_u8, 0x80, 0x7f, 0xff, 0x7c, 0xfc, 0x01, 0xf0]);
    prop::collection::vec(prop_oneof![any::<u8>(), special], len_bytes)
}

fn reduced(level: Level, op: Op, dtype: Dtype, left: &[u8], right: &[u8]) -> Vec<u8> {
    let mut target = left.to_vec();
    let pointer = target.as_mut_ptr();
    let elements = left.len() / dtype.size_bytes();
    let operands = Operands { target: pointer, left: pointer, right: right.as_ptr(), elements };
    // SAFETY: both sides have that many elements, and the level is available.
    unsafe { reduce_at(level, op, dtype, operands) };
    target
}

macro_rules! read {
    ($type:ty, $bytes:expr) => {
        <$type>::from_ne_bytes($bytes.try_into().unwrap())
    };
}

/// One element, computed the obvious way.
fn oracle(op: Op, dtype: Dtype, left: &[u8], right: &[u8]) -> Vec<u8> {
    macro_rules! integer {
        ($type:ty) => {{
            let (a, b) = (read!($type, left), read!($type, right));
            let result = match op {
                Op::Sum => a.wrapping_add(b),
                Op::Prod => a.wrapping_mul(b),
                Op::Min => Ord::min(a, b),
                Op::Max => Ord::max(a, b),
                Op::Band => a & b,
                Op::Bor => a | b,
                Op::Bxor => a ^ b,
            };
            result.to_ne_bytes().to_vec()
        }};
    }
    match dtype {
        Dtype::Bool => {
            let (a, b) = (left[0] != 0, right[0] != 0);
            let result = match op {
                Op::Min | Op::Band => a && b,
                Op::Max | Op::Bor => a || b,
                _ => a != b,
            };
            vec![u8::from(result)]
        }
        Dtype::U8 => integer!(u8),
        Dtype::U16 => integer!(u16),
        Dtype::U32 => integer!(u32),
        Dtype::U64 => integer!(u64),
        Dtype::I8 => integer!(i8),
        Dtype::I16 => integer!(i16),
        Dtype::I32 => integer!(i32),
        Dtype::I64 => integer!(i64),
        Dtype::Complex64 | Dtype::Complex128 => complex_oracle(op, dtype, left, right),
        _ => float_oracle(op, dtype, left, right),
    }
}

fn float_oracle(op: Op, dtype: Dtype, left: &[u8], right: &[u8]) -> Vec<u8> {
    // Widening to f64 is exact, so choosing there is choosing here; sums and products are those of the narrow type.
    let result = |a: f64, b: f64, sum: f64, prod: f64| match op {
        Op::Sum => sum,
        Op::Prod => prod,
        _ if a.is_nan() || b.is_nan() => f64::NAN,
        _ if (op == Op::Min) == a.total_cmp(&b).is_lt() => a,
        _ => b,
    };
    let single = |a: f32, b: f32| result(a.into(), b.into(), (a + b).into(), (a * b).into()) as f32;
    macro_rules! float {
        ($result:expr, $narrow:expr, $nan:expr) => {{
            let result = $result;
            (if result.is_nan() { $nan } else { $narrow(result) }).to_ne_bytes().to_vec()
        }};
    }
    match dtype {
        Dtype::F16 => {
            let (a, b) = (read!(f16, left).to_f32_const(), read!(f16, right).to_f32_const());
            float!(single(a, b), f16::from_f32_const, f16::from_bits(0x7e00))
        }
        Dtype::Bf16 => {
            let (a, b) = (read!(bf16, left).to_f32_const(), read!(bf16, right).to_f32_const());
            float!(single(a, b), bf16::from_f32_const, bf16::from_bits(0x7fc0))
        }
        Dtype::F32 => float!(single(read!(f32, left), read!(f32, right)), |x| x, f32::from_bits(0x7fc0_0000)),
        _ => {
            let (a, b) = (read!(f64, left), read!(f64, right));
            float!(result(a, b, a + b, a * b), |x| x, f64::from_bits(0x7ff8 << 48))
        }
    }
}

fn complex_oracle(op: Op, dtype: Dtype, left: &[u8], right: &[u8]) -> Vec<u8> {
    let part = if dtype == Dtype::Complex64 { Dtype::F32 } else { Dtype::F64 };
    let half = part.size_bytes();
    let ((a, b), (c, d)) = (left.split_at(half), right.split_at(half));
    if op == Op::Sum {
        return [oracle(op, part, a, c), oracle(op, part, b, d)].concat();
    }
    let product = |x: &[u8], y: &[u8]| oracle(Op::Prod, part, x, y);
    let negative = |mut x: Vec<u8>| {
        x[half - 1] ^= if cfg!(target_endian = "little") { 0x80 } else { 0 };
        x
    };
    [
        oracle(Op::Sum, part, &product(a, c), &negative(product(b, d))),
        oracle(Op::Sum, part, &product(a, d), &product(b, c)),
    ]
    .concat()
}

fn supported() -> Vec<(Op, Dtype)> {
    let pairs = Dtype::ALL.into_iter().flat_map(|dtype| Op::ALL.map(|op| (op, dtype)));
    pairs.filter(|(op, dtype)| op.supports(*dtype)).collect()
}

proptest! {
    #![proptest_config(config())]

    /// All operations and dtypes, any length, any misalignment on both sides.
    #[test]
    fn every_level_gives_the_oracles_bits(
        elements in 0..ELEMENTS_MAX,
        shifts in (0_usize..17, 0_usize..17),
        left in bytes(16 * ELEMENTS_MAX + 17),
        right in bytes(16 * ELEMENTS_MAX + 17),
    ) {
        for (op, dtype) in supported() {
            let len_bytes = elements * dtype.size_bytes();
            let left = &left[shifts.0..shifts.0 + len_bytes];
            let right = &right[shifts.1..shifts.1 + len_bytes];
            let size = dtype.size_bytes();
            let expected: Vec<u8> =
                left.chunks(size).zip(right.chunks(size)).flat_map(|(a, b)| oracle(op, dtype, a, b)).collect();
            for level in Level::available() {
                prop_assert!(reduced(level, op, dtype, left, right) == expected, "{op} of {dtype} at {level:?}");
            }
        }
    }

    /// Out of place at odd addresses, with the target on either input, and nothing written beside it.
    #[test]
    fn targets_may_be_inputs(
        elements in 0..ELEMENTS_MAX,
        shift in 0_usize..9,
        left in bytes(4 * ELEMENTS_MAX),
        right in bytes(4 * ELEMENTS_MAX),
    ) {
        let len_bytes = elements * 4;
        let expected = reduced(Level::Plain, Op::Min, Dtype::F32, &left[..len_bytes], &right[..len_bytes]);
        let mut apart = vec![0xa5; shift + len_bytes + 64];
        let mut onto_right = right.clone();
        // SAFETY: all ranges have that many elements, and the target is apart or exactly an input.
        unsafe {
            let (a, b) = (left.as_ptr(), right.as_ptr());
            reduce_raw(Op::Min, Dtype::F32, apart.as_mut_ptr().add(shift), a, b, elements).unwrap();
            let target = onto_right.as_mut_ptr();
            reduce_raw(Op::Min, Dtype::F32, target, a, target, elements).unwrap();
        }
        prop_assert_eq!(&apart[shift..shift + len_bytes], &expected);
        prop_assert!(apart[..shift].iter().chain(&apart[shift + len_bytes..]).all(|&byte| byte == 0xa5));
        prop_assert_eq!(&onto_right[..len_bytes], &expected);
        prop_assert_eq!(&onto_right[len_bytes..], &right[len_bytes..]);
    }

    #[test]
    fn scaling_has_the_same_bits_everywhere(
        elements in 0..ELEMENTS_MAX,
        factor in any::<f64>(),
        values in bytes(16 * ELEMENTS_MAX),
    ) {
        for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64, Dtype::Complex64, Dtype::Complex128] {
            let mut plain = values[..elements * dtype.size_bytes()].to_vec();
            let original = plain.clone();
            scale_at(Level::Plain, dtype, &mut plain, factor).unwrap();
            for level in Level::available() {
                let mut scaled = original.clone();
                scale_at(level, dtype, &mut scaled, factor).unwrap();
                prop_assert!(scaled == plain, "{dtype} at {level:?}");
            }
        }
    }
}

#[test]
fn all_halves_are_widened_and_rounded_right() {
    let every = || (0..=u16::MAX).step_by(if cfg!(miri) { 257 } else { 1 });
    let all: Vec<u8> = every().flat_map(u16::to_ne_bytes).collect();
    // Adding −0 changes nothing but NaNs; so every value survives the way up and down.
    let negative_zeros: Vec<u8> = every().flat_map(|_| 0x8000_u16.to_ne_bytes()).collect();
    for level in Level::available() {
        for (dtype, nan) in [(Dtype::F16, 0x7e00_u16), (Dtype::Bf16, 0x7fc0)] {
            let sums = reduced(level, Op::Sum, dtype, &all, &negative_zeros);
            for (bits, sum) in every().zip(sums.chunks(2)) {
                let is_nan = match dtype {
                    Dtype::F16 => f16::from_bits(bits).is_nan(),
                    _ => bf16::from_bits(bits).is_nan(),
                };
                assert_eq!(u16::from_ne_bytes([sum[0], sum[1]]), if is_nan { nan } else { bits }, "{dtype} {level:?}");
            }
        }
    }
}

#[test]
fn ties_go_to_even_and_overflow_to_infinity() {
    let sum = |a: f32, b: f32| {
        let mut left = bf16::from_f32(a).to_ne_bytes();
        reduce(Op::Sum, Dtype::Bf16, &mut left, &bf16::from_f32(b).to_ne_bytes()).unwrap();
        bf16::from_ne_bytes(left)
    };
    // 256 + 1 lies halfway between 256 and 258, 258 + 1 between 258 and 260.
    assert_eq!((sum(256.0, 1.0).to_f32(), sum(258.0, 1.0).to_f32()), (256.0, 260.0));
    assert_eq!(sum(f32::MAX, f32::MAX), bf16::INFINITY);
}

#[test]
fn averages_are_divisions() {
    for count in [2.0_f32, 3.0, 5.0, 7.0, 48.0] {
        for value in [1.0_f32, 10.0, 0.1, 12345.678] {
            let mut bytes = value.to_ne_bytes();
            scale(Dtype::F32, &mut bytes, 1.0 / f64::from(count)).unwrap();
            assert_eq!(f32::from_ne_bytes(bytes), value / count);
        }
    }
}

#[test]
fn what_has_no_meaning_is_refused() {
    for (op, dtype) in [(Op::Sum, Dtype::Bool), (Op::Band, Dtype::F32), (Op::Max, Dtype::Complex64)] {
        let error = reduce(op, dtype, &mut [0; 16], &[0; 16]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(dtype.name()) && error.advice().is_some(), "{error}");
    }
    for op in Op::ALL {
        assert!(!op.supports(Dtype::Fp8E4M3) && !op.supports(Dtype::Fp8E5M2));
        assert_eq!((Op::from_code(op.code()), Op::from_name(op.name())), (Some(op), Some(op)));
    }
    assert_eq!((Op::from_code(0), Op::from_code(8)), (None, None));
    assert_eq!(reduce(Op::Sum, Dtype::F32, &mut [0; 8], &[0; 4]).unwrap_err().kind(), ErrorKind::Mismatch);
    assert_eq!(reduce(Op::Sum, Dtype::F32, &mut [0; 6], &[0; 6]).unwrap_err().kind(), ErrorKind::Mismatch);
    assert_eq!(scale(Dtype::I32, &mut [0; 4], 0.5).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(scale(Dtype::F32, &mut [0; 5], 0.5).unwrap_err().kind(), ErrorKind::Mismatch);
}

#[test]
#[cfg_attr(miri, ignore = "megabytes are too slow there")]
fn large_copies_are_whole_and_stay_inside() {
    let source: Vec<u8> = (0..(5 << 20) + 100_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for (shift, skip, cut) in [(0, 0, 0), (1, 0, 0), (63, 7, 1), (32, 5, 63), (17, 64, 1 << 20), (3, 3, 5 << 20)] {
        let len_bytes = source.len() - skip - cut;
        let mut target = vec![0xa5_u8; shift + len_bytes + 64];
        // SAFETY: both ranges have that many bytes, in vectors of their own.
        unsafe { copy_bytes(target.as_mut_ptr().add(shift), source.as_ptr().add(skip), len_bytes) };
        assert!(target[shift..shift + len_bytes] == source[skip..skip + len_bytes]);
        assert!(target[..shift].iter().chain(&target[shift + len_bytes..]).all(|&byte| byte == 0xa5));
    }
}

#[test]
fn pieces_of_large_copies_are_whole_and_stay_inside() {
    let source: Vec<u8> = (0..5000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for (shift, skip, len_bytes) in [(0, 0, 4096), (1, 0, 4097), (63, 7, 64), (32, 5, 63), (3, 3, 1), (9, 1, 0)] {
        let mut target = vec![0xa5_u8; shift + len_bytes + 64];
        // SAFETY: both ranges have that many bytes, in vectors of their own.
        unsafe { copy_piece(target.as_mut_ptr().add(shift), source.as_ptr().add(skip), len_bytes, 64 << 20) };
        assert!(target[shift..shift + len_bytes] == source[skip..skip + len_bytes]);
        assert!(target[..shift].iter().chain(&target[shift + len_bytes..]).all(|&byte| byte == 0xa5));
    }
}
