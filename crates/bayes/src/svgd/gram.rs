//! The inner products of particles.

use sheave_base::Result;

use super::PARTICLES_MAX;
use super::workspace::{BLOCK_COLUMNS, Workspace, pack_centred};
use crate::Real;
use crate::check::{common_length, length, refuse};

const OPERATION: &str = "gram matrix";

/// The inner products of particles less their mean: `n × n` numbers, by rows. Those of slices of the parameters add up
/// to those of the whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Gram {
    particles: usize,
    products: Vec<f64>,
}

impl Gram {
    /// Makes the matrix of so many particles without parameters: zeros.
    ///
    /// # Errors
    /// `InvalidArgument` for no particles, or more than [`PARTICLES_MAX`].
    pub fn new(particles: usize) -> Result<Self> {
        if particles == 0 || particles > PARTICLES_MAX {
            let expected = format!("1 to {PARTICLES_MAX}");
            return Err(refuse(OPERATION, "the number of particles", particles, expected));
        }
        Ok(Self { particles, products: vec![0.0; particles * particles] })
    }

    /// Computes the matrix of a slice of the parameters, or of all: `n` slices of one length.
    ///
    /// # Errors
    /// Those of [`new`](Self::new) and [`add_slice`](Self::add_slice).
    pub fn of_slice<T: Real, P: AsRef<[T]>>(parameters: &[P], workspace: &mut Workspace<T>) -> Result<Self> {
        let mut gram = Self::new(parameters.len())?;
        gram.add_slice(parameters, workspace)?;
        Ok(gram)
    }

    /// Adds the matrix of one more slice of the parameters, in one pass over it.
    ///
    /// # Errors
    /// `InvalidArgument` for another number of particles, or slices of different lengths.
    pub fn add_slice<T: Real, P: AsRef<[T]>>(&mut self, parameters: &[P], workspace: &mut Workspace<T>) -> Result<()> {
        let particles = self.particles;
        length(OPERATION, "parameters", parameters.len(), particles)?;
        let dimension = common_length(OPERATION, "parameters", parameters)?;
        workspace.stack.resize(particles * BLOCK_COLUMNS, T::default());
        workspace.product.resize(particles * particles, T::default());
        for start in (0..dimension).step_by(BLOCK_COLUMNS) {
            let columns = BLOCK_COLUMNS.min(dimension - start);
            let block = &mut workspace.stack[..particles * columns];
            pack_centred(block, parameters, start, columns);
            T::gram(&mut workspace.product, block, [particles, columns]);
            for (sum, product) in self.products.iter_mut().zip(&workspace.product) {
                *sum += product.to_double();
            }
        }
        Ok(())
    }

    /// Adds the matrix of other parameters of the same particles.
    ///
    /// # Errors
    /// `InvalidArgument` for another number of particles.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        length(OPERATION, "other", other.particles, self.particles)?;
        for (sum, product) in self.products.iter_mut().zip(&other.products) {
            *sum += product;
        }
        Ok(())
    }

    /// Sets all products to zero, to begin another matrix in the same memory.
    pub fn clear(&mut self) {
        self.products.fill(0.0);
    }

    /// Returns the number of particles.
    #[must_use]
    pub fn particles(&self) -> usize {
        self.particles
    }

    /// Returns the products: `n × n`, by rows.
    #[must_use]
    pub fn values(&self) -> &[f64] {
        &self.products
    }

    /// Returns the products to change them, such as to sum them over the owners of slices.
    pub fn values_mut(&mut self) -> &mut [f64] {
        &mut self.products
    }

    /// The squared distance of two particles. Rounding never makes it negative.
    pub(super) fn squared_distance(&self, one: usize, other: usize) -> f64 {
        let at = |row: usize, column: usize| self.products[row * self.particles + column];
        // Both triangles, lest a product that rounds them differently make the kernel asymmetric.
        (at(one, one) + at(other, other) - (at(one, other) + at(other, one))).max(0.0)
    }
}
