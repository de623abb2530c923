//! Tensors in safetensors files.

use crate::enter::enter;
use crate::import::{self, Access};
use crate::tensor::PyTensor;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use sheave_base::{Error, Result};
use sheave_tensor::{Tensor, file};
use std::path::PathBuf;

/// Write tensors and texts to a file, whose folders are made; atomic.
#[pyfunction]
pub(crate) fn save_tensors(
    py: Python<'_>,
    path: PathBuf,
    tensors: &Bound<'_, PyDict>,
    texts: Vec<(String, String)>,
) -> PyResult<()> {
    let named = tensors.iter().map(|(name, array)| {
        let name: String = name.extract()?;
        Ok((name, import::tensor(&array, Access::Read)?))
    });
    let named = named.collect::<PyResult<Vec<(String, Tensor)>>>()?;
    enter(py, None, move |_, _| {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)
                .map_err(|error| Error::from(error).context(folder.display()).operation("save"))?;
        }
        let tensors: Vec<_> = named.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let texts: Vec<_> = texts.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
        file::save(&path, &tensors, &texts)
    })
}

/// The tensors and the texts of a file.
#[pyfunction]
pub(crate) fn load_tensors(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyTuple>> {
    let contents: file::Contents = enter(py, None, move |_, _| -> Result<_> { file::load(path) })?;
    let (tensors, texts) = (PyDict::new(py), PyDict::new(py));
    for (name, tensor) in contents.tensors {
        tensors.set_item(name, Py::new(py, PyTensor::new(tensor))?)?;
    }
    for (key, text) in contents.metadata {
        texts.set_item(key, text)?;
    }
    PyTuple::new(py, [tensors, texts])
}
