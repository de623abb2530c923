//! Sampling by noisy gradient steps.

use super::array::{Array, Width, numpy, refuse, require_disjoint, with_float};
use super::random::PyGenerator;
use crate::errors::OrRaise;
use pyo3::prelude::*;
use sheave_bayes::langevin::{Chain, Cyclical, Sghmc, Sgld};

/// Stochastic gradient Langevin dynamics (Welling and Teh, ICML 2011): parameters -= step_size / 2 * gradient, and
/// noise of variance step_size * temperature.
///
/// The gradient is that of the negative log posterior of the whole data, (N / B) * sum of a batch - log prior; at a
/// temperature of 1 samples are the posterior's.
///
/// >>> sgld = sheave.bayes.Sgld(step_size=0.1)
/// >>> parameters = np.zeros(3, np.float32)
/// >>> sgld.step(sheave.bayes.Generator(1), parameters, parameters.copy())
/// >>> bool(parameters.any())
/// True
#[pyclass(name = "Sgld", module = "sheave.bayes", frozen)]
pub(super) struct PySgld(Sgld);

#[pymethods]
impl PySgld {
    #[new]
    #[pyo3(signature = (step_size, temperature = 1.0))]
    fn new(py: Python<'_>, step_size: f64, temperature: f64) -> PyResult<Self> {
        let sgld = Sgld { step_size, temperature };
        sgld.check().or_raise(py)?;
        Ok(Self(sgld))
    }

    /// The step size.
    #[getter]
    fn step_size(&self) -> f64 {
        self.0.step_size
    }

    /// The temperature; 1 for the posterior.
    #[getter]
    fn temperature(&self) -> f64 {
        self.0.temperature
    }

    /// Step flat parameters along a gradient of one length and dtype, in place.
    fn step(
        &self,
        py: Python<'_>,
        generator: &mut PyGenerator,
        parameters: &Bound<'_, PyAny>,
        gradient: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (parameters, gradient) = (Array::write("parameters", parameters)?, Array::read("gradient", gradient)?);
        let width = parameters.width(py)?;
        gradient.expect(py, width, parameters.shape())?;
        require_disjoint(py, [&parameters], [&gradient])?;
        with_float!(width, T => {
            let mut lease = parameters.lease().or_raise(py)?;
            let values = parameters.elements_mut::<T>(&mut lease).or_raise(py)?;
            let view = gradient.view::<T>().or_raise(py)?;
            let slopes: &[T] = &view;
            py.detach(|| self.0.step(&mut generator.0, values, slopes)).or_raise(py)
        })
    }

    fn __repr__(&self) -> String {
        format!("Sgld(step_size={:?}, temperature={:?})", self.0.step_size, self.0.temperature)
    }
}

/// Stochastic gradient Hamiltonian Monte Carlo (Chen, Fox and Guestrin, ICML 2014, arXiv:1402.4102, equation 15):
/// velocity = (1 - friction) * velocity - step_size * gradient + noise of variance 2 * (friction - noise) * step_size *
/// temperature, parameters += velocity.
///
/// `noise` is an estimate of what the gradients have of their own, 0 on the safe side of small steps.
///
/// >>> sghmc = sheave.bayes.Sghmc(step_size=0.01, friction=0.1)
/// >>> parameters, velocity = np.ones(2), np.zeros(2)
/// >>> sghmc.step(sheave.bayes.Generator(1), parameters, velocity, np.ones(2))
/// >>> bool((parameters == 1 + velocity).all())
/// True
#[pyclass(name = "Sghmc", module = "sheave.bayes", frozen)]
pub(super) struct PySghmc(Sghmc);

#[pymethods]
impl PySghmc {
    #[new]
    #[pyo3(signature = (step_size, friction = 0.1, noise = 0.0, temperature = 1.0))]
    fn new(py: Python<'_>, step_size: f64, friction: f64, noise: f64, temperature: f64) -> PyResult<Self> {
        let sghmc = Sghmc { step_size, friction, noise, temperature };
        sghmc.check().or_raise(py)?;
        Ok(Self(sghmc))
    }

    /// The step size: the square of a step of Hamilton's equations.
    #[getter]
    fn step_size(&self) -> f64 {
        self.0.step_size
    }

    /// The share of the velocity that a step takes away.
    #[getter]
    fn friction(&self) -> f64 {
        self.0.friction
    }

    /// The estimate of the noise that gradients have of their own.
    #[getter]
    fn noise(&self) -> f64 {
        self.0.noise
    }

    /// The temperature; 1 for the posterior.
    #[getter]
    fn temperature(&self) -> f64 {
        self.0.temperature
    }

    /// Step flat parameters and their velocity along a gradient, all of one length and dtype, in place. The velocity is
    /// zeros at first, and kept from one step to the next.
    fn step(
        &self,
        py: Python<'_>,
        generator: &mut PyGenerator,
        parameters: &Bound<'_, PyAny>,
        velocity: &Bound<'_, PyAny>,
        gradient: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (parameters, velocity) = (Array::write("parameters", parameters)?, Array::write("velocity", velocity)?);
        let (gradient, width) = (Array::read("gradient", gradient)?, parameters.width(py)?);
        velocity.expect(py, width, parameters.shape())?;
        gradient.expect(py, width, parameters.shape())?;
        require_disjoint(py, [&parameters, &velocity], [&gradient])?;
        with_float!(width, T => {
            let mut of_parameters = parameters.lease().or_raise(py)?;
            let values = parameters.elements_mut::<T>(&mut of_parameters).or_raise(py)?;
            let mut of_velocity = velocity.lease().or_raise(py)?;
            let speeds = velocity.elements_mut::<T>(&mut of_velocity).or_raise(py)?;
            let view = gradient.view::<T>().or_raise(py)?;
            let slopes: &[T] = &view;
            py.detach(|| self.0.step(&mut generator.0, values, speeds, slopes)).or_raise(py)
        })
    }

    fn __repr__(&self) -> String {
        let Sghmc { step_size, friction, noise, temperature } = self.0;
        format!("Sghmc(step_size={step_size:?}, friction={friction:?}, noise={noise:?}, temperature={temperature:?})")
    }
}

/// Step sizes that go down and begin again (cSG-MCMC, Zhang et al., ICLR 2020, arXiv:1902.03932): of `steps` steps in
/// `cycles` cycles of length L the step k, from 1, has step_size / 2 * (cos(pi * ((k - 1) % L) / L) + 1).
///
/// The first `exploration` of a cycle descends without noise, at a temperature of 0; the rest samples, at 1.
///
/// >>> cyclical = sheave.bayes.Cyclical(step_size=0.1, steps=100, cycles=4)
/// >>> cyclical.at(1), cyclical.at(26) == cyclical.at(1)
/// ((0.1, 0.0, False, False), True)
#[pyclass(name = "Cyclical", module = "sheave.bayes", frozen)]
pub(super) struct PyCyclical(Cyclical);

#[pymethods]
impl PyCyclical {
    #[new]
    #[pyo3(signature = (step_size, steps, cycles, exploration = 0.5))]
    fn new(py: Python<'_>, step_size: f64, steps: u64, cycles: u64, exploration: f64) -> PyResult<Self> {
        let cyclical = Cyclical { step_size, steps, cycles, exploration };
        cyclical.check().or_raise(py)?;
        Ok(Self(cyclical))
    }

    /// How step `step` is taken, counted from 1: its size, its temperature, whether it is a sample, and whether it is
    /// the last of its cycle. Steps beyond the last go on with further cycles.
    fn at(&self, py: Python<'_>, step: u64) -> PyResult<(f64, f64, bool, bool)> {
        let step = self.0.at(step).or_raise(py)?;
        Ok((step.step_size, step.temperature, step.samples, step.ends_cycle))
    }

    fn __repr__(&self) -> String {
        let Cyclical { step_size, steps, cycles, exploration } = self.0;
        format!("Cyclical(step_size={step_size:?}, steps={steps}, cycles={cycles}, exploration={exploration:?})")
    }
}

enum Chains {
    Single(Chain<f32>),
    Double(Chain<f64>),
}

/// Makes `$body` of the chain of either float.
macro_rules! with_chain {
    ($chains:expr, $chain:ident, $T:ident => $body:expr) => {
        match $chains {
            Chains::Single($chain) => {
                type $T = f32;
                $body
            }
            Chains::Double($chain) => {
                type $T = f64;
                $body
            }
        }
    };
}

/// Samples of a chain: of the steps after the first `burn_in` each `thin`-th is one, and the last `capacity` are kept.
/// Mean and variance are those of all samples, also of those that are kept no longer.
///
/// >>> chain = sheave.bayes.Chain(1, burn_in=2, thin=3)
/// >>> for step in range(9):
/// ...     _ = chain.offer(np.array([step], np.float32))
/// >>> chain.samples().tolist(), chain.mean().tolist(), chain.taken
/// ([[4.0], [7.0]], [5.5], 2)
#[pyclass(name = "Chain", module = "sheave.bayes")]
pub(super) struct PyChain {
    chains: Chains,
    dimension: usize,
}

#[pymethods]
impl PyChain {
    #[new]
    #[pyo3(signature = (dimension, burn_in = 0, thin = 1, capacity = 100, dtype = None))]
    fn new(
        py: Python<'_>,
        dimension: usize,
        burn_in: u64,
        thin: u64,
        capacity: usize,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let chains = match dtype.map_or(Ok(Width::Single), Width::named)? {
            Width::Single => Chain::new(dimension, burn_in, thin, capacity).map(Chains::Single),
            Width::Double => Chain::new(dimension, burn_in, thin, capacity).map(Chains::Double),
        };
        Ok(Self { chains: chains.or_raise(py)?, dimension })
    }

    /// Count a step, and take the flat parameters after it as a sample if it is its turn; returns whether it was.
    fn offer(&mut self, py: Python<'_>, parameters: &Bound<'_, PyAny>) -> PyResult<bool> {
        let parameters = Array::read("parameters", parameters)?;
        let width = match self.chains {
            Chains::Single(_) => Width::Single,
            Chains::Double(_) => Width::Double,
        };
        parameters.expect_vector(py, width, self.dimension)?;
        with_chain!(&mut self.chains, chain, T => {
            let view = parameters.view::<T>().or_raise(py)?;
            let values: &[T] = &view;
            py.detach(|| chain.offer(values)).or_raise(py)
        })
    }

    /// How many samples were taken, with those that are kept no longer.
    #[getter]
    fn taken(&self) -> u64 {
        with_chain!(&self.chains, chain, _T => chain.taken())
    }

    /// The samples that are kept, oldest first: one row for each.
    fn samples(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        with_chain!(&self.chains, chain, T => {
            let rows: Vec<&[T]> = chain.samples().collect();
            numpy(py, &rows.concat(), &[rows.len() as u64, self.dimension as u64])
        })
    }

    /// The mean of all samples: float64.
    fn mean(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        with_chain!(&self.chains, chain, _T => numpy(py, chain.mean(), &[self.dimension as u64]))
    }

    /// The unbiased variance of all samples: float64. There must be two at least.
    fn variance(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if self.taken() < 2 {
            return Err(refuse(py, "the number of samples", &self.taken().to_string(), "two at least"));
        }
        let mut variance = vec![0.0; self.dimension];
        with_chain!(&self.chains, chain, _T => chain.variance(&mut variance).or_raise(py))?;
        numpy(py, &variance, &[self.dimension as u64])
    }

    fn __repr__(&self) -> String {
        format!("Chain(dimension={}, taken={})", self.dimension, self.taken())
    }
}
