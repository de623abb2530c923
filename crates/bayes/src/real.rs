//! The element types, and their matrix products.

use gemm::Parallelism;
use sheave_optim::Wide;

/// A float that parameters may be made of: `f32` or `f64`.
pub trait Real: Wide + std::fmt::Debug + Send + Sync + 'static {
    /// `out = left · right`, all by rows: `left` is rows × inner, `right` inner × columns, `out` rows × columns.
    #[doc(hidden)]
    fn product(out: &mut [Self], left: &[Self], right: &[Self], shape: [usize; 3]);

    /// `out = matrix · matrixᵀ`, by rows: `matrix` is rows × columns, `out` rows × rows.
    #[doc(hidden)]
    fn gram(out: &mut [Self], matrix: &[Self], shape: [usize; 2]);
}

/// `out = left · right`, by rows, where `right` is inner × columns, or its transposed.
fn product<T: Real>(
    out: &mut [T],
    left: &[T],
    right: &[T],
    [rows, inner, columns]: [usize; 3],
    is_transposed: bool,
    [zero, one]: [T; 2],
) {
    let elements = |rows: usize, columns: usize| rows.checked_mul(columns);
    let expected = [elements(rows, columns), elements(rows, inner), elements(inner, columns)];
    assert_eq!([out.len(), left.len(), right.len()].map(Some), expected, "lengths of matrices");
    // No slice has more bytes than an `isize` counts, and so neither has a row.
    let stride = |columns: usize| columns as isize;
    let (right_column, right_row) = if is_transposed { (stride(inner), 1) } else { (1, stride(columns)) };
    // SAFETY: `T` is `f32` or `f64`, which the library multiplies. With these strides it reaches element `(i, j)` of
    // each matrix of the dimensions above, each of which is within its slice: that has as many elements. `out` is
    // borrowed alone, so nothing that is read is written. It is written only, as `read_dst` is false.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            out.as_mut_ptr(),
            1,
            stride(columns),
            false,
            left.as_ptr(),
            1,
            stride(inner),
            right.as_ptr(),
            right_column,
            right_row,
            zero,
            one,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

macro_rules! real {
    ($float:ty) => {
        impl Real for $float {
            fn product(out: &mut [Self], left: &[Self], right: &[Self], shape: [usize; 3]) {
                product(out, left, right, shape, false, [0.0, 1.0]);
            }

            fn gram(out: &mut [Self], matrix: &[Self], [rows, columns]: [usize; 2]) {
                product(out, matrix, matrix, [rows, columns, rows], true, [0.0, 1.0]);
            }
        }
    };
}

real!(f32);
real!(f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_by_rows() {
        let (left, right) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 0.0, 2.0, 1.0, 0.0, 3.0]);
        let mut out = [f64::NAN; 4];
        f64::product(&mut out, &left, &right, [2, 3, 2]);
        assert_eq!(out, [5.0, 11.0, 14.0, 23.0]);
        f64::gram(&mut out, &left, [2, 3]);
        assert_eq!(out, [14.0, 32.0, 32.0, 77.0]);
    }

    /// Beyond a few rows the library takes another way.
    #[test]
    fn large_products_are_the_same() {
        let (rows, inner, columns) = (7, 19, 11);
        let left: Vec<f64> = (0..rows * inner).map(|place| (place % 13) as f64 - 6.0).collect();
        let right: Vec<f64> = (0..inner * columns).map(|place| (place % 7) as f64 - 3.0).collect();
        let mut out = vec![f64::NAN; rows * columns];
        f64::product(&mut out, &left, &right, [rows, inner, columns]);
        let mut gram = vec![f64::NAN; rows * rows];
        f64::gram(&mut gram, &left, [rows, inner]);
        for row in 0..rows {
            for column in 0..columns {
                let sum: f64 = (0..inner).map(|k| left[row * inner + k] * right[k * columns + column]).sum();
                assert_eq!(out[row * columns + column], sum);
            }
            for other in 0..rows {
                let sum: f64 = (0..inner).map(|k| left[row * inner + k] * left[other * inner + k]).sum();
                assert_eq!(gram[row * rows + other], sum);
            }
        }
    }
}
