//! The element types, and their matrix products.

use nalgebra::{DMatrixView, DMatrixViewMut};
use sheave_optim::Wide;

/// A float that parameters may be made of: `f32` or `f64`.
pub trait Real: Wide + std::fmt::Debug + Send + Sync + 'static {
    /// `out = left · right`, all by rows: `left` is rows × inner, `right` inner × columns, `out` rows × columns.
    #[doc(hidden)]
    fn product(out: &mut [Self], left: &[Self], right: &[Self], shape: [usize; 3]);

    /// `out = matrix · matrixᵀ`, by rows: `matrix` is rows × columns, `out` rows × rows, and `transposed` as long as
    /// `matrix`, to compute in.
    #[doc(hidden)]
    fn gram(out: &mut [Self], matrix: &[Self], transposed: &mut [Self], shape: [usize; 2]);
}

/// Writes the transposed of a matrix, in stripes of columns that a cache holds.
///
/// The product could read the matrix as its own transposed, by a view with strides. But `nalgebra` 0.35 walks beyond
/// the end of such views in small products: only views without gaps are safe.
fn transpose<T: Copy>(out: &mut [T], matrix: &[T], [rows, columns]: [usize; 2]) {
    for start in (0..columns).step_by(STRIPE_COLUMNS) {
        let stripe = start..columns.min(start + STRIPE_COLUMNS);
        for (row, values) in matrix.chunks_exact(columns).enumerate() {
            let places = out[start * rows + row..].iter_mut().step_by(rows);
            for (place, value) in places.zip(&values[stripe.clone()]) {
                *place = *value;
            }
        }
    }
}

/// The columns that are transposed at a time.
const STRIPE_COLUMNS: usize = 16;

/// A matrix by rows is its transposed by columns, which is how the library has them.
macro_rules! real {
    ($float:ty) => {
        impl Real for $float {
            fn product(out: &mut [Self], left: &[Self], right: &[Self], [rows, inner, columns]: [usize; 3]) {
                let left = DMatrixView::from_slice(left, inner, rows);
                let right = DMatrixView::from_slice(right, columns, inner);
                DMatrixViewMut::from_slice(out, columns, rows).gemm(1.0, &right, &left, 0.0);
            }

            fn gram(out: &mut [Self], matrix: &[Self], transposed: &mut [Self], [rows, columns]: [usize; 2]) {
                transpose(transposed, matrix, [rows, columns]);
                Self::product(out, matrix, transposed, [rows, columns, rows]);
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
        f64::gram(&mut out, &left, &mut [0.0; 6], [2, 3]);
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
        f64::gram(&mut gram, &left, &mut vec![f64::NAN; rows * inner], [rows, inner]);
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
