//! How strongly each particle moves along the gradient and the place of each.

use sheave_base::Result;

use super::workspace::{BLOCK_COLUMNS, Workspace, pack_centred};
use super::{Gram, Kernel, Lengthscale, Svgd};
use crate::Real;
use crate::check::{common_length, finite, length};

const OPERATION: &str = "svgd";

/// The coefficients of a step: the matrix `[K | W - diag(W 1)] / n`, with one row for each particle.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Forces {
    particles: usize,
    lengthscale: f64,
    /// `n × 2n`, by rows.
    coefficients: Vec<f64>,
    /// Distances, for their median.
    distances: Vec<f64>,
}

impl Forces {
    /// Returns the length `l` of the kernel.
    #[must_use]
    pub fn lengthscale(&self) -> f64 {
        self.lengthscale
    }

    /// Returns the number of particles.
    #[must_use]
    pub fn particles(&self) -> usize {
        self.particles
    }

    /// Computes the coefficients anew, in the same memory where there are as many particles.
    pub(super) fn compute(&mut self, svgd: &Svgd, gram: &Gram) -> Result<()> {
        svgd.check()?;
        finite(OPERATION, "gram", gram.values())?;
        let particles = gram.particles();
        self.particles = particles;
        self.lengthscale = match svgd.lengthscale {
            Lengthscale::Fixed(length) => length,
            Lengthscale::Median => median_lengthscale(gram, &mut self.distances),
        };
        self.coefficients.resize(2 * particles * particles, 0.0);
        let share = 1.0 / particles as f64;
        let precision = 1.0 / (self.lengthscale * self.lengthscale);
        for (one, row) in self.coefficients.chunks_exact_mut(2 * particles).enumerate() {
            let (kernels, weights) = row.split_at_mut(particles);
            let mut sum = 0.0;
            for other in 0..particles {
                let scaled = gram.squared_distance(one, other) * precision;
                let (kernel, weight) = match svgd.kernel {
                    Kernel::Rbf => {
                        let kernel = (-0.5 * scaled).exp();
                        (kernel, kernel)
                    }
                    Kernel::InverseMultiquadric => ((1.0 + scaled).sqrt().recip(), (1.0 + scaled).powf(-1.5)),
                };
                kernels[other] = kernel * share;
                weights[other] = weight * precision * share;
                if other != one {
                    sum += weights[other];
                }
            }
            weights[one] = -sum;
        }
        Ok(())
    }

    /// Turns the gradients of a slice of the parameters into the directions `U` in place, in one pass. `parameters` and
    /// `gradients` hold `n` slices, all of one length; a step goes against the direction: `θ ← θ - lr u`.
    ///
    /// What is not a number in the gradient of one particle is not one in the directions of all, at the same index.
    ///
    /// # Errors
    /// `InvalidArgument` for another number of particles, or slices of different lengths.
    pub fn apply<T: Real, P: AsRef<[T]>, G: AsMut<[T]> + AsRef<[T]>>(
        &self,
        parameters: &[P],
        gradients: &mut [G],
        workspace: &mut Workspace<T>,
    ) -> Result<()> {
        let particles = self.particles;
        length(OPERATION, "parameters", parameters.len(), particles)?;
        length(OPERATION, "gradients", gradients.len(), particles)?;
        let dimension = common_length(OPERATION, "parameters", parameters)?;
        let slopes = common_length(OPERATION, "gradients", gradients)?;
        length(OPERATION, "gradients[0]", slopes, dimension)?;
        let Workspace { stack, product, coefficients } = workspace;
        stack.resize(2 * particles * BLOCK_COLUMNS, T::default());
        product.resize(particles * BLOCK_COLUMNS, T::default());
        coefficients.clear();
        coefficients.extend(self.coefficients.iter().map(|&value| T::nearest(value)));
        for start in (0..dimension).step_by(BLOCK_COLUMNS) {
            let columns = BLOCK_COLUMNS.min(dimension - start);
            let (upper, lower) = stack[..2 * particles * columns].split_at_mut(particles * columns);
            for (row, gradient) in upper.chunks_exact_mut(columns).zip(&*gradients) {
                row.copy_from_slice(&gradient.as_ref()[start..start + columns]);
            }
            pack_centred(lower, parameters, start, columns);
            let directions = &mut product[..particles * columns];
            T::product(
                directions,
                coefficients,
                &stack[..2 * particles * columns],
                [particles, 2 * particles, columns],
            );
            for (row, gradient) in directions.chunks_exact(columns).zip(&mut *gradients) {
                gradient.as_mut()[start..start + columns].copy_from_slice(row);
            }
        }
        Ok(())
    }
}

/// The length by the median of the distances, as [`Lengthscale::Median`] has it.
fn median_lengthscale(gram: &Gram, distances: &mut Vec<f64>) -> f64 {
    let particles = gram.particles();
    distances.clear();
    for one in 0..particles {
        distances.extend((0..one).map(|other| gram.squared_distance(one, other).sqrt()));
    }
    distances.sort_unstable_by(f64::total_cmp);
    let apart = &distances[distances.partition_point(|&distance| distance == 0.0)..];
    let mut middle = median(distances);
    if middle == 0.0 {
        middle = median(apart);
    }
    let length = middle / (2.0 * (particles as f64 + 1.0).ln()).sqrt();
    // So close that the square is no number to divide by: nothing that can be told from being together.
    if (length * length).is_normal() { length } else { 1.0 }
}

fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        count if count.is_multiple_of(2) => 0.5 * (sorted[count / 2 - 1] + sorted[count / 2]),
        count => sorted[count / 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengthscale(places: &[f64]) -> f64 {
        let parameters: Vec<[f64; 1]> = places.iter().map(|&place| [place]).collect();
        let gram = Gram::of_slice(&parameters, &mut Workspace::new()).unwrap();
        Svgd::default().forces(&gram).unwrap().lengthscale()
    }

    #[test]
    fn the_median_of_distances() {
        let by = |median: f64, particles: f64| median / (2.0 * (particles + 1.0).ln()).sqrt();
        // Distances 1, 2 and 3; then 1, 2, 3, 4, 6 and 7.
        assert!((lengthscale(&[0.0, 1.0, 3.0]) - by(2.0, 3.0)).abs() < 1e-12);
        assert!((lengthscale(&[0.0, 1.0, 3.0, 7.0]) - by(3.5, 4.0)).abs() < 1e-12);
        // Three of one place and another: half of the pairs are apart, by 2.
        assert!((lengthscale(&[5.0, 5.0, 5.0, 5.0, 7.0]) - by(2.0, 5.0)).abs() < 1e-9);
        assert_eq!(lengthscale(&[4.0]), 1.0);
        assert_eq!(lengthscale(&[4.0, 4.0]), 1.0);
    }

    #[test]
    fn particles_far_from_zero_keep_their_distances() {
        let near = |offset: f32| {
            let parameters = [[offset], [offset + 0.25], [offset + 0.5]];
            let gram = Gram::of_slice(&parameters, &mut Workspace::new()).unwrap();
            Svgd::default().forces(&gram).unwrap().lengthscale()
        };
        // Without centring the squares, of 10^10, have no digits for distances of a quarter.
        assert!((near(0.0) - near(131_072.0)).abs() < 1e-6);
    }
}
