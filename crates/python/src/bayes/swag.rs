//! A Gaussian from snapshots of a training.

use super::array::{Array, Width, filled, numpy, refuse};
use super::random::PyGenerator;
use crate::errors::OrRaise;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use sheave_base::Result;
use sheave_bayes::swag::Swag;

enum Floats {
    Single(Swag<f32>),
    Double(Swag<f64>),
}

/// Makes `$body` of the snapshots of either float.
macro_rules! with_swag {
    ($floats:expr, $swag:ident, $T:ident => $body:expr) => {
        match $floats {
            Floats::Single($swag) => {
                type $T = f32;
                $body
            }
            Floats::Double($swag) => {
                type $T = f64;
                $body
            }
        }
    };
}

/// A Gaussian from snapshots of one model's training with a constant or cyclical learning rate (Maddox et al., NeurIPS
/// 2019, arXiv:1902.02476).
///
/// A sample is mean + sqrt(scale) * (sqrt(variance) * z1 + deviations.T @ z2 / sqrt(K - 1)), with standard normal
/// z1 and z2 and the K deviations that are kept, `rank` at most; scale is a half in the paper. With fewer than two
/// deviations the diagonal counts twice instead, which is the paper's SWAG-Diagonal. `dtype` is float32 or float64.
///
/// >>> swag = sheave.bayes.Swag(2)
/// >>> for snapshot in ([1, 0], [2, 0.5], [3, 1]):
/// ...     swag.collect(np.array(snapshot, np.float32))
/// >>> swag.mean
/// array([2. , 0.5], dtype=float32)
/// >>> swag.sample(sheave.bayes.Generator(1)).shape
/// (2,)
#[pyclass(name = "Swag", module = "sheave.bayes")]
pub(super) struct PySwag(Floats);

#[pymethods]
impl PySwag {
    #[new]
    #[pyo3(signature = (dimension, rank = 20, dtype = None))]
    fn new(dimension: usize, rank: usize, dtype: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        Ok(Self(match dtype.map_or(Ok(Width::Single), Width::named)? {
            Width::Single => Floats::Single(Swag::new(dimension, rank)),
            Width::Double => Floats::Double(Swag::new(dimension, rank)),
        }))
    }

    /// The Gaussian whose state() this is.
    #[classmethod]
    fn load(_class: &Bound<'_, PyType>, py: Python<'_>, state: &Bound<'_, PyDict>) -> PyResult<Self> {
        let item = |name: &str| match state.get_item(name)? {
            Some(item) => Ok(item),
            None => Err(refuse(py, "state", &format!("without {name:?}"), "what state() returned")),
        };
        let (snapshots, rank) = (item("snapshots")?.extract()?, item("rank")?.extract()?);
        let mean = Array::read("mean", &item("mean")?)?;
        let width = mean.width(py)?;
        let variance = Array::read("variance", &item("variance")?)?;
        variance.expect(py, width, mean.shape())?;
        let deviations = Array::read("deviations", &item("deviations")?)?;
        let rows = deviations.expect_rank(py, 2, "a matrix")?[0];
        deviations.expect(py, width, &[rows, mean.elements() as u64])?;
        let floats = match width {
            Width::Single => Floats::Single(loaded(snapshots, rank, &mean, &variance, &deviations).or_raise(py)?),
            Width::Double => Floats::Double(loaded(snapshots, rank, &mean, &variance, &deviations).or_raise(py)?),
        };
        Ok(Self(floats))
    }

    /// All of its state: numbers and arrays, for load.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = PyDict::new(py);
        state.set_item("snapshots", self.snapshots())?;
        state.set_item("rank", self.rank())?;
        state.set_item("mean", self.mean(py)?)?;
        state.set_item("variance", self.variance(py)?)?;
        state.set_item("deviations", self.deviations(py)?)?;
        Ok(state)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyDict>,))> {
        let state = slf.borrow().state(slf.py())?;
        Ok((slf.get_type().getattr("load")?, (state,)))
    }

    /// How many snapshots were collected.
    #[getter]
    fn snapshots(&self) -> u64 {
        with_swag!(&self.0, swag, _T => swag.snapshots)
    }

    /// How many deviations are kept at most.
    #[getter]
    fn rank(&self) -> usize {
        with_swag!(&self.0, swag, _T => swag.rank)
    }

    /// The mean of all snapshots.
    #[getter]
    fn mean(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        with_swag!(&self.0, swag, _T => numpy(py, &swag.mean, &[swag.mean.len() as u64]))
    }

    /// The variance of all snapshots, divided by their number.
    #[getter]
    fn variance(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        with_swag!(&self.0, swag, _T => numpy(py, &swag.variance, &[swag.mean.len() as u64]))
    }

    /// The deviations that are kept, oldest first: one row for each.
    #[getter]
    fn deviations(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        with_swag!(&self.0, swag, _T => {
            let shape = [swag.deviations.len() as u64, swag.mean.len() as u64];
            numpy(py, &swag.deviations.concat(), &shape)
        })
    }

    /// Take flat parameters in as a snapshot.
    fn collect(&mut self, py: Python<'_>, parameters: &Bound<'_, PyAny>) -> PyResult<()> {
        let parameters = Array::read("parameters", parameters)?;
        let (width, elements) = (self.width(), with_swag!(&self.0, swag, _T => swag.mean.len()));
        parameters.expect_vector(py, width, elements)?;
        with_swag!(&mut self.0, swag, T => {
            let view = parameters.view::<T>().or_raise(py)?;
            let values: &[T] = &view;
            py.detach(|| swag.collect(values)).or_raise(py)
        })
    }

    /// Draw flat parameters, into a new array or into `out`, which is returned. A scale of 0 gives the mean.
    #[pyo3(signature = (generator, scale = 0.5, out = None))]
    fn sample(
        &self,
        py: Python<'_>,
        generator: &mut PyGenerator,
        scale: f64,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let elements = with_swag!(&self.0, swag, _T => swag.mean.len());
        let Some(out) = out else {
            return with_swag!(&self.0, swag, T => filled::<T>(py, &[elements as u64], |values| {
                swag.sample(scale, &mut generator.0, values)
            }));
        };
        let array = Array::write("out", out)?;
        array.expect_vector(py, self.width(), elements)?;
        with_swag!(&self.0, swag, T => {
            let mut lease = array.lease().or_raise(py)?;
            let values = array.elements_mut::<T>(&mut lease).or_raise(py)?;
            py.detach(|| swag.sample(scale, &mut generator.0, values)).or_raise(py)?;
        });
        Ok(out.clone().unbind())
    }

    fn __repr__(&self) -> String {
        format!("Swag(snapshots={}, rank={})", self.snapshots(), self.rank())
    }
}

impl PySwag {
    fn width(&self) -> Width {
        match self.0 {
            Floats::Single(_) => Width::Single,
            Floats::Double(_) => Width::Double,
        }
    }
}

fn loaded<T: sheave_bayes::Real + sheave_tensor::Element>(
    snapshots: u64,
    rank: usize,
    mean: &Array,
    variance: &Array,
    deviations: &Array,
) -> Result<Swag<T>> {
    let mean = mean.view::<T>()?.to_vec();
    let variance = variance.view::<T>()?.to_vec();
    let rows = deviations.view::<T>()?;
    let deviations = rows.chunks_exact(mean.len().max(1)).map(<[T]>::to_vec).collect();
    let swag = Swag { snapshots, rank, mean, variance, deviations };
    swag.check()?;
    Ok(swag)
}
