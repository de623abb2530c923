//! The ground of `sheave.placement`: models onto devices.

use crate::errors::OrRaise;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};
use sheave_base::{Error, ErrorKind};
use sheave_placement::{Labels, Options, Problem, Weights, picture, solve, table};

/// Which device each model is on, and how good that is. Printed it is a table, in a notebook a picture.
///
/// >>> devices = {"cuda:0": 4 << 30, "cuda:1": 4 << 30}
/// >>> placement = sheave.placement.assign({"actor": 3 << 30, "critic": 1 << 30}, devices)
/// >>> print(placement)
/// device  used     memory   work  share  models
/// cuda:0  3.0 GiB  4.0 GiB  75 %  50 %   actor
/// cuda:1  1.0 GiB  4.0 GiB  25 %  50 %   critic
/// objective 0.0625, which is the optimum
#[pyclass(name = "Placement", module = "sheave.placement", frozen)]
pub(crate) struct PyPlacement {
    problem: Problem,
    placement: sheave_placement::Placement,
    labels: Labels,
}

#[pymethods]
impl PyPlacement {
    /// By model: the number of its device.
    #[getter]
    fn device_of(&self) -> Vec<usize> {
        self.placement.device_of.clone()
    }

    /// By the name of a model, which is its number where it has none: the name of its device.
    #[getter]
    fn by_name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let name = |names: &[String], number: usize| names.get(number).cloned().unwrap_or_else(|| number.to_string());
        let pair =
            |(model, &device): (usize, &usize)| (name(&self.labels.models, model), name(&self.labels.devices, device));
        self.placement.device_of.iter().enumerate().map(pair).into_py_dict(py)
    }

    /// What the placement costs; the least is best.
    #[getter]
    fn objective(&self) -> f64 {
        self.placement.objective
    }

    /// What no placement can cost less than.
    #[getter]
    fn lower_bound(&self) -> f64 {
        self.placement.lower_bound
    }

    /// By how much the objective may be above the optimum, as a share of the objective.
    #[getter]
    fn gap(&self) -> f64 {
        self.placement.gap
    }

    /// Whether it is proven to be the best.
    #[getter]
    fn exact(&self) -> bool {
        self.placement.exact
    }

    /// The picture that a notebook shows: an SVG.
    fn svg(&self) -> String {
        picture(&self.problem, &self.placement, &self.labels)
    }

    fn _repr_svg_(&self) -> String {
        self.svg()
    }

    fn __str__(&self) -> String {
        table(&self.problem, &self.placement, &self.labels).trim_end().to_owned()
    }

    fn __repr__(&self) -> String {
        let sheave_placement::Placement { device_of, objective, gap, .. } = &self.placement;
        format!("Placement(device_of={device_of:?}, objective={objective:?}, gap={gap:?})")
    }
}

/// A placement of models on devices. See sheave.placement.assign.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "what a problem consists of")]
pub(crate) fn place_models(
    py: Python<'_>,
    model_bytes: Vec<u64>,
    model_complexity: Vec<f64>,
    connections: Vec<f64>,
    device_bytes: Vec<u64>,
    device_complexity: Vec<f64>,
    distances: Vec<f64>,
    weights: (f64, f64),
    names: (Vec<String>, Vec<String>),
    effort: Option<u64>,
    seed: u64,
) -> PyResult<PyPlacement> {
    let weights = Weights { connection: weights.0, complexity: weights.1 };
    let problem =
        Problem { model_bytes, model_complexity, connections, device_bytes, device_complexity, distances, weights };
    let options = Options { effort: effort.unwrap_or(Options::default().effort), seed };
    // It computes for a second or two and waits for nothing.
    let placement = py.detach(|| solve(&problem, &options)).map_err(|error| told(&error)).or_raise(py)?;
    Ok(PyPlacement { problem, placement, labels: Labels { models: names.0, devices: names.1 } })
}

fn told(error: &sheave_placement::Error) -> Error {
    use sheave_placement::Error as Wrong;
    let does_not_fit = matches!(
        error,
        Wrong::ModelTooLarge { .. }
            | Wrong::TotalTooLarge { .. }
            | Wrong::Infeasible { .. }
            | Wrong::NothingFound { .. }
    );
    let kind = if does_not_fit { ErrorKind::LimitExceeded } else { ErrorKind::InvalidArgument };
    Error::new(kind, error.to_string()).operation("place models")
}
