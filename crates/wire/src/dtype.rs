//! Element types as they are written on the wire: the codes of [`Dtype`], which are append-only.

use sheave_tensor::Dtype;

/// Bytes of one element of the dtype with this code; `None` if nobody knows the code.
///
/// ```
/// use sheave_tensor::Dtype;
///
/// assert_eq!(sheave_wire::dtype_size(Dtype::F32.code()), Some(4));
/// assert_eq!(sheave_wire::dtype_size(200), None);
/// ```
#[must_use]
pub fn dtype_size(code: u8) -> Option<u8> {
    Dtype::from_code(code).and_then(|dtype| u8::try_from(dtype.size_bytes()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is on the wire stays what it was, whatever happens to the enumeration.
    #[test]
    fn the_codes_are_those_of_the_first_version() {
        let sizes: Vec<_> = (0..=17).map(dtype_size).collect();
        let expected = [1, 1, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16, 1, 1, 2, 4, 8].map(Some);
        assert_eq!(sizes[..17], expected);
        assert_eq!(sizes[17], None);
        assert_eq!(Dtype::from_code(8), Some(Dtype::F32));
    }
}
