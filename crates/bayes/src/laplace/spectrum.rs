//! Eigenvalues of a curvature, and what follows from them for every precision of the prior.

use nalgebra::{DMatrix, SymmetricEigen};
use sheave_base::{Error, ErrorKind, Result};

use super::WEIGHTS_MAX;
use crate::check::refuse;
use crate::random::Generator;

/// Iterations for each row of a matrix; some two are usual.
const ITERATIONS_PER_ROW: usize = 1000;

/// The eigenvalues of a symmetric matrix without negative ones, and its eigenvectors.
#[derive(Clone, Debug)]
pub(super) struct Spectrum {
    values: Vec<f64>,
    /// One vector after another.
    vectors: Vec<f64>,
}

impl Spectrum {
    pub(super) fn of(symmetric: &[f64], rows: usize) -> Result<Self> {
        let matrix = DMatrix::from_column_slice(rows, rows, symmetric);
        let Some(eigen) = SymmetricEigen::try_new(matrix, f64::EPSILON, ITERATIONS_PER_ROW * rows) else {
            let what = format!("the eigenvalues of a curvature of {rows} weights were not found");
            return Err(Error::new(ErrorKind::InvalidArgument, what)
                .operation("laplace")
                .hint("look for features that are not finite or differ by very many orders of magnitude"));
        };
        // Rounding alone makes one negative.
        let values = eigen.eigenvalues.iter().map(|&value| value.max(0.0)).collect();
        Ok(Self { values, vectors: eigen.eigenvectors.as_slice().to_vec() })
    }

    pub(super) fn values(&self) -> &[f64] {
        &self.values
    }

    /// Each eigenvalue with its vector.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (f64, &[f64])> {
        self.values.iter().copied().zip(self.vectors.chunks_exact(self.values.len()))
    }

    /// Adds a sample of `N(0, (scale H + precision I)^-1)`.
    pub(super) fn add_sample(&self, scale: f64, precision: f64, generator: &mut Generator, out: &mut [f64]) {
        for (value, vector) in self.pairs() {
            let factor = generator.normal() / (scale * value + precision).sqrt();
            for (sum, part) in out.iter_mut().zip(vector) {
                *sum += factor * part;
            }
        }
    }

    /// `(scale H + precision I)^-1`, by rows.
    pub(super) fn covariance(&self, scale: f64, precision: f64) -> Vec<f64> {
        let rows = self.values.len();
        let mut covariance = vec![0.0; rows * rows];
        for (value, vector) in self.pairs() {
            let variance = 1.0 / (scale * value + precision);
            for (row, &left) in covariance.chunks_exact_mut(rows).zip(vector) {
                for (sum, &right) in row.iter_mut().zip(vector) {
                    *sum += variance * left * right;
                }
            }
        }
        covariance
    }
}

pub(super) fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}

/// Refuses a number of weights that has no covariance.
pub(super) fn check_weights(field: &str, weights: Option<usize>) -> Result<usize> {
    match weights {
        Some(weights @ 1..=WEIGHTS_MAX) => Ok(weights),
        _ => {
            let found = weights.map_or_else(|| "too large".to_owned(), |weights| weights.to_string());
            Err(refuse("laplace", field, found, format!("1 to {WEIGHTS_MAX}")))
        }
    }
}
