//! Element types as they are written on the wire.

/// Bytes of one element by dtype code; the codes are append-only, and zero is none.
const SIZES: [u8; 15] = [
    0,  // 0 none
    1,  // 1 bool
    1,  // 2 u8
    1,  // 3 i8
    2,  // 4 i16
    4,  // 5 i32
    8,  // 6 i64
    2,  // 7 f16
    2,  // 8 bf16
    4,  // 9 f32
    8,  // 10 f64
    8,  // 11 complex64
    16, // 12 complex128
    1,  // 13 fp8 e4m3
    1,  // 14 fp8 e5m2
];

/// Bytes of one element of the dtype with this code; `None` if nobody knows the code.
///
/// Codes, the same as in the tensor room: 1 bool, 2 u8, 3 i8, 4 i16, 5 i32, 6 i64, 7 f16, 8 bf16, 9 f32, 10 f64, 11
/// complex64, 12 complex128, 13 fp8 e4m3, 14 fp8 e5m2.
///
/// ```
/// assert_eq!(sheave_wire::dtype_size(9), Some(4));
/// assert_eq!(sheave_wire::dtype_size(0), None);
/// assert_eq!(sheave_wire::dtype_size(200), None);
/// ```
#[must_use]
pub fn dtype_size(code: u8) -> Option<u8> {
    SIZES.get(usize::from(code)).copied().filter(|size| *size > 0)
}
