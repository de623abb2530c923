//! What the passes over the parameters compute in.

use crate::Real;

/// The columns that are taken at a time. A block of parameters and gradients of 32 particles of `f32` has 128 KiB,
/// which a second-level cache holds. Of 256 to 2,048 columns, these and fewer are the fastest: the product of a block
/// with its own transposed is made in one piece up to here.
pub(super) const BLOCK_COLUMNS: usize = 512;

/// Memory that passes over parameters share. It grows to what the largest of them needs, some blocks of 512 columns,
/// and is allocated no more then.
#[derive(Clone, Debug, Default)]
pub struct Workspace<T> {
    /// The rows of a block of gradients and those of parameters, or those of parameters alone.
    pub(super) stack: Vec<T>,
    /// A block of directions, or a Gram matrix.
    pub(super) product: Vec<T>,
    /// The coefficients of the rows in the stack.
    pub(super) coefficients: Vec<T>,
}

impl<T: Real> Workspace<T> {
    /// Makes an empty one.
    #[must_use]
    pub fn new() -> Self {
        Self { stack: Vec::new(), product: Vec::new(), coefficients: Vec::new() }
    }
}

/// Copies a range of columns into `rows`, less the mean of each column over the particles.
pub(super) fn pack_centred<T: Real, P: AsRef<[T]>>(rows: &mut [T], parameters: &[P], start: usize, columns: usize) {
    let share = T::nearest(1.0 / parameters.len() as f64);
    let (first, others) = rows.split_at_mut(columns);
    // The first row holds the sums until all others have had their mean taken away.
    first.copy_from_slice(&parameters[0].as_ref()[start..start + columns]);
    for (row, particle) in others.chunks_exact_mut(columns).zip(&parameters[1..]) {
        let source = &particle.as_ref()[start..start + columns];
        row.copy_from_slice(source);
        for (sum, &value) in first.iter_mut().zip(source) {
            *sum = *sum + value;
        }
    }
    for sum in first.iter_mut() {
        *sum = *sum * share;
    }
    for row in others.chunks_exact_mut(columns) {
        for (value, &mean) in row.iter_mut().zip(&*first) {
            *value = *value - mean;
        }
    }
    for (mean, &value) in first.iter_mut().zip(&parameters[0].as_ref()[start..]) {
        *mean = value - *mean;
    }
}
