//! Stein variational gradient descent on particles of Python's.

use super::array::{Array, Rows, Width, numpy, refuse, require_disjoint, with_float};
use crate::errors::OrRaise;
use crate::store::optimizer;
use pyo3::prelude::*;
use sheave_base::Result;
use sheave_bayes::Real;
use sheave_bayes::svgd::{Gram, Kernel, Lengthscale, Svgd, Workspace};
use sheave_optim::{Float, Optimizer, State};
use sheave_tensor::Element;

/// What passes over parameters compute in, and what the optimizer remembers of each particle.
struct Memory<T> {
    workspace: Workspace<T>,
    states: Vec<State<T>>,
}

impl<T: Real> Memory<T> {
    fn new() -> Self {
        Self { workspace: Workspace::new(), states: Vec::new() }
    }

    /// Turns gradients into directions; returns the length of the kernel.
    fn direct<P: AsRef<[T]>>(
        &mut self,
        svgd: &Svgd,
        gram: Option<Gram>,
        particles: &[P],
        gradients: &mut [&mut [T]],
    ) -> Result<f64> {
        let gram = gram.map_or_else(|| Gram::of_slice(particles, &mut self.workspace), Ok)?;
        let forces = svgd.forces(&gram)?;
        forces.apply(particles, gradients, &mut self.workspace)?;
        Ok(forces.lengthscale())
    }
}

/// Memory of either float; that which is not used is empty.
struct Both {
    single: Memory<f32>,
    double: Memory<f64>,
}

trait Chosen: Real + Element + Float<Wide = Self> {
    fn of(both: &mut Both) -> &mut Memory<Self>;
}

impl Chosen for f32 {
    fn of(both: &mut Both) -> &mut Memory<Self> {
        &mut both.single
    }
}

impl Chosen for f64 {
    fn of(both: &mut Both) -> &mut Memory<Self> {
        &mut both.double
    }
}

/// Stein variational gradient descent. `sheave.bayes.Svgd` is its face.
#[pyclass(name = "SvgdSteps", module = "sheave._core")]
pub(super) struct PySvgdSteps {
    svgd: Svgd,
    optimizer: Optimizer,
    steps: u64,
    lengthscale: f64,
    both: Both,
    /// Of the particles of the first step.
    shape: Option<(Width, [usize; 2])>,
}

#[pymethods]
impl PySvgdSteps {
    /// kernel is "rbf" or "imq"; lengthscale is by the median if it is None.
    #[new]
    fn new(py: Python<'_>, kernel: &str, lengthscale: Option<f64>, optimizer: &str) -> PyResult<Self> {
        let kernel = match kernel {
            "rbf" => Kernel::Rbf,
            "imq" => Kernel::InverseMultiquadric,
            _ => return Err(refuse(py, "kernel", &format!("{kernel:?}"), "\"rbf\" or \"imq\"")),
        };
        let svgd = Svgd { kernel, lengthscale: lengthscale.map_or(Lengthscale::Median, Lengthscale::Fixed) };
        svgd.check().or_raise(py)?;
        let optimizer = self::optimizer(py, optimizer)?;
        optimizer.check().or_raise(py)?;
        let both = Both { single: Memory::new(), double: Memory::new() };
        Ok(Self { svgd, optimizer, steps: 0, lengthscale: 0.0, both, shape: None })
    }

    /// The length of the kernel in the last step; 0 before the first.
    #[getter]
    fn lengthscale(&self) -> f64 {
        self.lengthscale
    }

    /// How many steps were taken.
    #[getter]
    fn steps(&self) -> u64 {
        self.steps
    }

    /// Inner products of particles, or of a slice of their parameters.
    fn gram(&mut self, py: Python<'_>, particles: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let particles = Rows::read("particles", particles)?;
        let gram = with_float!(particles.width(), T => {
            let views = particles.views::<T>().or_raise(py)?;
            let rows = particles.split(&views);
            let workspace = &mut <T as Chosen>::of(&mut self.both).workspace;
            py.detach(|| Gram::of_slice(&rows, workspace)).or_raise(py)?
        });
        numpy(py, gram.values(), &[gram.particles() as u64; 2])
    }

    /// Turn gradients into directions in place; returns the length of the kernel.
    #[pyo3(signature = (particles, gradients, gram = None))]
    fn directions(
        &mut self,
        py: Python<'_>,
        particles: &Bound<'_, PyAny>,
        gradients: &Bound<'_, PyAny>,
        gram: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<f64> {
        let (particles, gradients) = (Rows::read("particles", particles)?, Rows::write("gradients", gradients)?);
        let shape = [particles.count(), particles.row_elements()];
        particles.expect(py, "particles", particles.width(), shape)?;
        gradients.expect(py, "gradients", particles.width(), shape)?;
        require_disjoint(py, gradients.arrays(), particles.arrays())?;
        let gram = summed(py, gram, particles.count())?;
        let svgd = self.svgd;
        self.lengthscale = with_float!(particles.width(), T => {
            let views = particles.views::<T>().or_raise(py)?;
            let rows = particles.split(&views);
            let mut leases = gradients.leases().or_raise(py)?;
            let mut slopes = gradients.split_mut::<T>(&mut leases).or_raise(py)?;
            let memory = <T as Chosen>::of(&mut self.both);
            py.detach(|| memory.direct(&svgd, gram, &rows, &mut slopes)).or_raise(py)?
        });
        Ok(self.lengthscale)
    }

    /// Turn gradients into directions, and move the particles against them with the optimizer, both in place.
    #[pyo3(signature = (particles, gradients, gram = None))]
    fn step(
        &mut self,
        py: Python<'_>,
        particles: &Bound<'_, PyAny>,
        gradients: &Bound<'_, PyAny>,
        gram: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<f64> {
        let (particles, gradients) = (Rows::write("particles", particles)?, Rows::write("gradients", gradients)?);
        let found = [particles.count(), particles.row_elements()];
        let (width, shape) = self.shape.unwrap_or((particles.width(), found));
        particles.expect(py, "particles", width, shape)?;
        gradients.expect(py, "gradients", width, shape)?;
        require_disjoint(py, particles.arrays().iter().chain(gradients.arrays()), [])?;
        let gram = summed(py, gram, particles.count())?;
        let (svgd, steps) = (self.svgd, self.steps + 1);
        let (optimizer, both) = (&self.optimizer, &mut self.both);
        self.lengthscale = with_float!(width, T => {
            let mut of_particles = particles.leases().or_raise(py)?;
            let mut rows = particles.split_mut::<T>(&mut of_particles).or_raise(py)?;
            let mut of_gradients = gradients.leases().or_raise(py)?;
            let mut slopes = gradients.split_mut::<T>(&mut of_gradients).or_raise(py)?;
            let memory = <T as Chosen>::of(both);
            py.detach(|| moved(memory, &svgd, &optimizer.at(steps), gram, &mut rows, &mut slopes)).or_raise(py)?
        });
        (self.steps, self.shape) = (steps, Some((width, shape)));
        Ok(self.lengthscale)
    }
}

/// A step of all particles; returns the length of the kernel.
fn moved<T: Chosen>(
    memory: &mut Memory<T>,
    svgd: &Svgd,
    rule: &sheave_optim::Rule,
    gram: Option<Gram>,
    particles: &mut [&mut [T]],
    gradients: &mut [&mut [T]],
) -> Result<f64> {
    if memory.states.len() != particles.len() {
        memory.states = particles.iter().map(|particle| rule.state(particle.len())).collect();
    }
    let lengthscale = memory.direct(svgd, gram, particles, gradients)?;
    for ((particle, direction), state) in particles.iter_mut().zip(gradients).zip(&mut memory.states) {
        rule.step(state, particle, direction)?;
    }
    Ok(lengthscale)
}

/// A Gram matrix that was summed over the owners of slices.
fn summed(py: Python<'_>, gram: Option<&Bound<'_, PyAny>>, particles: usize) -> PyResult<Option<Gram>> {
    let Some(gram) = gram else { return Ok(None) };
    let gram = Array::read("gram", gram)?;
    gram.expect(py, Width::Double, &[particles as u64; 2])?;
    let mut made = Gram::new(particles).or_raise(py)?;
    made.values_mut().copy_from_slice(&gram.view::<f64>().or_raise(py)?);
    Ok(Some(made))
}
