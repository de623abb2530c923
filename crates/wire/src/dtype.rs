//! Element types as they are written on the wire.

/// Bytes of one element by dtype code; the codes are append-only.
const SIZES: [u8; 14] = [
    1,  // 0 bool
    1,  // 1 u8
    1,  // 2 i8
    2,  // 3 i16
    4,  // 4 i32
    8,  // 5 i64
    2,  // 6 f16
    2,  // 7 bf16
    4,  // 8 f32
    8,  // 9 f64
    8,  // 10 complex64
    16, // 11 complex128
    1,  // 12 fp8 e4m3
    1,  // 13 fp8 e5m2
];

/// Bytes of one element of the dtype with this code; `None` if nobody knows the code.
///
/// Codes: 0 bool, 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 6 f16, 7 bf16, 8 f32, 9 f64, 10 complex64, 11 complex128,
/// 12 fp8 e4m3, 13 fp8 e5m2.
///
/// ```
/// assert_eq!(sheave_wire::dtype_size(8), Some(4));
/// assert_eq!(sheave_wire::dtype_size(200), None);
/// ```
#[must_use]
pub fn dtype_size(code: u8) -> Option<u8> {
    SIZES.get(usize::from(code)).copied()
}
