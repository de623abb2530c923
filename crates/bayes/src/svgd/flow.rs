//! Steps of all particles with an optimizer.

use sheave_base::Result;
use sheave_optim::{Rule, State};

use super::{Forces, Gram, Svgd, Workspace};
use crate::Real;
use crate::check::{common_length, length};

/// Particles that are stepped along their directions by an optimizer, such as AdaGrad, which the paper uses, or Adam.
/// It holds the state of the optimizer for each particle; the particles are the caller's.
///
/// ```
/// use sheave_bayes::svgd::{Flow, Svgd};
/// use sheave_optim::Rule;
///
/// // A standard normal posterior: the gradient of its loss is the place itself.
/// let mut particles = vec![vec![3.0_f32], vec![3.5]];
/// let mut flow = Flow::new(Svgd::default(), Rule::adam(0.1), 2, 1)?;
/// for _ in 0..300 {
///     let mut gradients = particles.clone();
///     flow.step(&mut particles, &mut gradients)?;
/// }
/// assert!(particles[0][0] < -0.3 && particles[1][0] > 0.3);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Debug)]
pub struct Flow<T> {
    svgd: Svgd,
    rule: Rule,
    dimension: usize,
    states: Vec<State<T>>,
    gram: Gram,
    forces: Forces,
    workspace: Workspace<T>,
}

impl<T: Real> Flow<T> {
    /// Begins a descent of so many particles of `dimension` parameters.
    ///
    /// # Errors
    /// Those of [`Svgd::check`], [`Rule::check`] and [`Gram::new`].
    pub fn new(svgd: Svgd, rule: Rule, particles: usize, dimension: usize) -> Result<Self> {
        svgd.check()?;
        rule.check()?;
        let gram = Gram::new(particles)?;
        let states = (0..particles).map(|_| rule.state(dimension)).collect();
        Ok(Self { svgd, rule, dimension, states, gram, forces: Forces::default(), workspace: Workspace::new() })
    }

    /// Changes the learning rate of the steps that follow.
    pub fn set_learning_rate(&mut self, learning_rate: f64) {
        self.rule.set_learning_rate(learning_rate);
    }

    /// Returns the length of the kernel in the last step; 0 before the first.
    #[must_use]
    pub fn lengthscale(&self) -> f64 {
        self.forces.lengthscale()
    }

    /// Takes a step: turns the gradients into directions in place, and moves the particles against them.
    ///
    /// # Errors
    /// `InvalidArgument` for another number of particles or parameters, or parameters that are not finite. No particle
    /// has moved then.
    pub fn step<P, G>(&mut self, particles: &mut [P], gradients: &mut [G]) -> Result<()>
    where
        P: AsRef<[T]> + AsMut<[T]>,
        G: AsRef<[T]> + AsMut<[T]>,
    {
        length("svgd", "particles", particles.len(), self.states.len())?;
        length("svgd", "particles[0]", common_length("svgd", "particles", particles)?, self.dimension)?;
        self.rule.check()?;
        self.gram.clear();
        self.gram.add_slice(particles, &mut self.workspace)?;
        self.forces.compute(&self.svgd, &self.gram)?;
        self.forces.apply(particles, gradients, &mut self.workspace)?;
        for ((particle, direction), state) in particles.iter_mut().zip(gradients).zip(&mut self.states) {
            self.rule.step(state, particle.as_mut(), direction.as_ref())?;
        }
        Ok(())
    }
}
