//! The private generator of random numbers, and what is drawn with it alone.

use super::array::{Array, filled, refuse, with_float};
use crate::errors::{self, OrRaise};
use pyo3::prelude::*;
use pyo3::types::PyType;
use sheave_base::{Error, ErrorKind};
use sheave_bayes::ensemble::Dropout;
use sheave_bayes::random::{self, Generator};

/// A generator of random numbers (xoshiro256++) of its own: it shares nothing with those of numpy, torch and Python.
///
/// The same seed gives the same numbers on every machine and in every version. It can be pickled and copied, and goes
/// on then where it was. It is not for secrets.
///
/// >>> one, same = sheave.bayes.Generator(7), sheave.bayes.Generator(7)
/// >>> one.normal() == same.normal()
/// True
#[pyclass(name = "Generator", module = "sheave.bayes")]
pub(super) struct PyGenerator(pub(super) Generator);

#[pymethods]
impl PyGenerator {
    #[new]
    fn new(seed: u64) -> Self {
        Self(Generator::new(seed))
    }

    /// The generator whose state() this is.
    #[classmethod]
    fn load(_class: &Bound<'_, PyType>, py: Python<'_>, state: &str) -> PyResult<Self> {
        let read = serde_json::from_str(state).map_err(|error| {
            let what = format!("the state of a generator cannot be read: {error}");
            errors::to_python(py, &Error::new(ErrorKind::InvalidArgument, what).hint("give what its state() returned"))
        });
        read.map(Self)
    }

    /// The whole state as text, for load.
    fn state(&self, py: Python<'_>) -> PyResult<String> {
        let text = serde_json::to_string(&self.0);
        let text = text.map_err(|error| Error::new(ErrorKind::Internal, format!("a generator as text: {error}")));
        text.or_raise(py)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        let state = slf.borrow().state(slf.py())?;
        Ok((slf.get_type().getattr("load")?, (state,)))
    }

    /// A number from 0 to below 1.
    fn uniform(&mut self) -> f64 {
        self.0.uniform()
    }

    /// A number of the standard normal distribution.
    fn normal(&mut self) -> f64 {
        self.0.normal()
    }

    /// A whole number from 0 to below `end`.
    fn below(&mut self, py: Python<'_>, end: u64) -> PyResult<u64> {
        self.0.below(end).or_raise(py)
    }

    /// Fill an array of float32 or float64 with numbers of the standard normal distribution, in place.
    fn fill_normal(&mut self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let array = Array::write("array", array)?;
        with_float!(array.width(py)?, T => {
            let mut lease = array.lease().or_raise(py)?;
            let values = array.elements_mut::<T>(&mut lease).or_raise(py)?;
            py.detach(|| self.0.fill_normal(values));
        });
        Ok(())
    }

    fn __repr__(&self) -> &'static str {
        "Generator(...)"
    }
}

/// Seed of the particle, member or chain `index` of a run with the seed `master`: different for every index, so that no
/// two members begin alike. Both are from 0 to 2**64 - 1.
///
/// >>> sheave.bayes.seed_of(42, 0) != sheave.bayes.seed_of(42, 1)
/// True
#[pyfunction]
fn seed_of(master: u64, index: u64) -> u64 {
    random::seed_of(master, index)
}

/// Indices of a bootstrap sample: `count` numbers below `data`, or as many as there are data, each drawn with
/// replacement: int64. About a third of the data, 1/e, are in none of so many draws.
///
/// >>> sheave.bayes.bootstrap(sheave.bayes.Generator(1), 5).shape
/// (5,)
#[pyfunction]
#[pyo3(signature = (generator, data, count = None))]
fn bootstrap(py: Python<'_>, generator: &mut PyGenerator, data: usize, count: Option<usize>) -> PyResult<Py<PyAny>> {
    if i64::try_from(data).is_err() {
        return Err(refuse(py, "data", &data.to_string(), "below 2**63"));
    }
    filled::<i64>(py, &[count.unwrap_or(data) as u64], |out| {
        let mut drawn = vec![0; out.len()];
        sheave_bayes::ensemble::bootstrap(&mut generator.0, data, &mut drawn)?;
        out.iter_mut().zip(drawn).for_each(|(place, index)| *place = index as i64);
        Ok(())
    })
}

/// Fill an array with a mask of dropout in place: 0 with probability `rate`, else 1 / (1 - rate), so that its mean is
/// 1.
///
/// One mask for a whole batch makes its predictions those of one member of an ensemble (Gal and Ghahramani, ICML 2016).
///
/// >>> mask = np.empty(4, np.float32)
/// >>> sheave.bayes.dropout_mask(sheave.bayes.Generator(1), 0.5, mask)
/// >>> set(mask.tolist()) <= {0.0, 2.0}
/// True
#[pyfunction]
fn dropout_mask(py: Python<'_>, generator: &mut PyGenerator, rate: f64, mask: &Bound<'_, PyAny>) -> PyResult<()> {
    let mask = Array::write("mask", mask)?;
    with_float!(mask.width(py)?, T => {
        let mut lease = mask.lease().or_raise(py)?;
        let values = mask.elements_mut::<T>(&mut lease).or_raise(py)?;
        py.detach(|| Dropout { rate }.mask(&mut generator.0, values)).or_raise(py)
    })
}

/// Adds the class and the functions to the module.
pub(super) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyGenerator>()?;
    let functions = [
        wrap_pyfunction!(seed_of, module)?,
        wrap_pyfunction!(bootstrap, module)?,
        wrap_pyfunction!(dropout_mask, module)?,
    ];
    functions.into_iter().try_for_each(|function| module.add_function(function))
}
