//! A small convolutional network, its gradients and its accuracy.
//!
//! Layers and loss are written out in a few of candle's operations, which is all of candle-nn that they would use. The
//! convolution is a product of matrices: its input is data and needs no gradient, so its patches are gathered once per
//! batch in plain code. The four corners of each pooled cell are gathered apart, so that pooling is three element-wise
//! maxima, of which candle splits the gradient evenly where two are equal; the gradient of its maximum along a
//! dimension counts each of them in full.

use std::borrow::Cow;

use candle_core::{CpuStorage, D, Device, Storage, Var};
use sheave_base::clock::{Entropy, SeededEntropy};
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{Arena, Dtype, Shape, Tensor};

use crate::digits::{Batch, CLASSES, PIXELS, Split};

/// Rows and columns of an image.
const SIDE: usize = 8;

/// Cells of 2x2 pixels in an image.
const CELLS: usize = PIXELS / 4;

/// Pixels under a filter: 3x3.
const PATCH: usize = 9;

const FILTERS: usize = 16;

const HIDDEN: usize = 64;

/// Names and dimensions of the parameters in their fixed order. Weights are inputs by outputs.
const PARAMETERS: [(&str, &[usize]); 6] = [
    ("filter.weight", &[PATCH, FILTERS]),
    ("filter.bias", &[FILTERS]),
    ("hidden.weight", &[CELLS * FILTERS, HIDDEN]),
    ("hidden.bias", &[HIDDEN]),
    ("output.weight", &[HIDDEN, CLASSES]),
    ("output.bias", &[CLASSES]),
];

/// Images that are judged at a time, so few that candle's products stay on one thread.
const JUDGED_AT_A_TIME: usize = 32;

/// A network for the digits, 17,258 weights in f32: 16 filters of 3x3 over the image (zero beyond its edge), the
/// largest of each 2x2, 64 hidden units, 10 classes; rectifiers (`max(0, x)`) in between. Its loss is the cross-entropy
/// of the softmax.
///
/// It never moves its weights by itself: they are read with [`weights`](Self::weights), stepped by whoever keeps them,
/// and come back through [`set_weights`](Self::set_weights). Nothing here waits for anybody; an operation takes the
/// time of its arithmetic.
///
/// In 30 epochs of global batches of 64, seeds 0 to 9: SGD with momentum 0.9, weight decay 0.001 and a learning rate
/// of 0.2, then 0.02 in the last ten, brings it to 97.8 to 99.0 % of the held-out digits; Adam with a learning rate of
/// 0.005 to 97.3 to 98.5 %. Without its decay SGD ends as low as 97.3 %.
///
/// ```
/// use sheave_nn::Model;
///
/// let (model, copy) = (Model::new(1)?, Model::new(2)?);
/// let names: Vec<String> = model.parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names[..3], ["filter.weight", "filter.bias", "hidden.weight"]);
/// copy.set_weights(&model.weights()?)?;
/// assert_eq!(copy.weights()?[0].to_vec::<f32>()?, model.weights()?[0].to_vec::<f32>()?);
/// # Ok::<(), sheave_base::Error>(())
/// ```
pub struct Model {
    /// One per entry of [`PARAMETERS`].
    variables: Vec<Var>,
    arena: Option<Arena>,
}

impl Model {
    /// A network with fresh weights: uniform within `sqrt(6 / inputs)` (He et al. 2015, for rectifiers), biases zero.
    /// They are drawn from [`SeededEntropy`] and scaled by operations that round alike everywhere, so that a seed
    /// determines every bit.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] when candle fails.
    pub fn new(seed: u64) -> Result<Self> {
        let mut entropy = SeededEntropy::new(seed);
        let mut variables = Vec::new();
        for (_, dimensions) in PARAMETERS {
            let values: Vec<f32> = match *dimensions {
                [inputs, outputs] => {
                    let bound = (6.0 / inputs as f32).sqrt();
                    (0..inputs * outputs).map(|_| bound * uniform(&mut entropy)).collect()
                }
                _ => vec![0.0; dimensions.iter().product()],
            };
            variables.push(Var::from_vec(values, dimensions, &Device::Cpu).map_err(failed)?);
        }
        Ok(Self { variables, arena: None })
    }

    /// The same network, whose weights and gradients leave in blocks of that arena, which peers on this host can reach
    /// without a copy. Without one they are in memory of this process alone.
    #[must_use]
    pub fn in_arena(mut self, arena: &Arena) -> Self {
        self.arena = Some(arena.clone());
        self
    }

    /// The parameters' names and shapes, in the order of all weights and gradients. All are f32.
    #[must_use]
    pub fn parameters(&self) -> Vec<(String, Shape)> {
        PARAMETERS.iter().map(|(name, dimensions)| ((*name).to_owned(), shape(dimensions))).collect()
    }

    /// A copy of the weights.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] when there is no memory.
    pub fn weights(&self) -> Result<Vec<Tensor>> {
        self.variables.iter().map(|variable| self.leave(variable)).collect()
    }

    /// Takes over weights, by copy.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] when they are not as many, not f32 or not of the shapes of
    /// [`parameters`](Self::parameters), and then no weight has changed; [`ErrorKind::BufferInUse`] and
    /// [`ErrorKind::Unsupported`] when they cannot be read now (see [`Tensor::bytes`]).
    pub fn set_weights(&self, weights: &[Tensor]) -> Result<()> {
        if weights.len() != self.variables.len() {
            let what = format!("the network has {} parameters, not {}", self.variables.len(), weights.len());
            return Err(Error::new(ErrorKind::Mismatch, what));
        }
        let mut arrived = Vec::new();
        for (weight, (name, dimensions)) in weights.iter().zip(PARAMETERS) {
            if weight.dtype() != Dtype::F32 || *weight.shape() != shape(dimensions) {
                let (dtype, shape) = (weight.dtype(), weight.shape());
                let what = format!("{name} is {}{dimensions:?}, not {dtype}{shape}", Dtype::F32);
                return Err(Error::new(ErrorKind::Mismatch, what));
            }
            let values = weight.as_slice::<f32>()?;
            arrived.push(candle_core::Tensor::from_slice(&values, dimensions, &Device::Cpu).map_err(failed)?);
        }
        self.variables.iter().zip(&arrived).try_for_each(|(variable, weight)| variable.set(weight)).map_err(failed)
    }

    /// The batch's part of the global batch's mean loss, and of its gradient by each parameter: the **sum over the
    /// batch's images, divided by the images of the global batch**. Summed over all workers in rank order, both are
    /// those of the global batch.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] when there is no memory for the gradients, [`ErrorKind::Internal`] when candle
    /// fails.
    pub fn gradients(&self, batch: &Batch) -> Result<(f32, Vec<Tensor>)> {
        let loss = self.loss(batch).map_err(failed)?;
        let gradients = loss.backward().map_err(failed)?;
        let of = |variable: &Var| {
            let gradient = gradients.get(variable).ok_or_else(|| Error::new(ErrorKind::Internal, "no gradient"))?;
            self.leave(gradient)
        };
        let gradients = self.variables.iter().map(of).collect::<Result<_>>()?;
        Ok((loss.to_scalar().map_err(failed)?, gradients))
    }

    /// The share of images, 0 to 1, for which the class of the largest output is the right one; 0 when there are none.
    /// An output that is not a number is never the largest.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] when candle fails.
    pub fn accuracy(&self, split: &Split) -> Result<f64> {
        let all: Vec<usize> = (0..split.len()).collect();
        let mut right = 0;
        for indices in all.chunks(JUDGED_AT_A_TIME) {
            let batch = split.batch(indices, indices.len())?;
            let outputs = self.outputs(&batch).and_then(|outputs| outputs.to_vec2::<f32>()).map_err(failed)?;
            right += outputs.iter().zip(&batch.labels).filter(|(row, label)| largest(row) == Some(**label)).count();
        }
        Ok(right as f64 / split.len().max(1) as f64)
    }

    /// What the network says about each image of the batch: `[images, 10]`, before the softmax.
    fn outputs(&self, batch: &Batch) -> candle_core::Result<candle_core::Tensor> {
        let [filter, filter_bias, hidden, hidden_bias, output, output_bias] = self.variables.as_slice() else {
            candle_core::bail!("a model without parameters")
        };
        let images = batch.labels.len();
        let seen = |corner| {
            let patches = patches(&batch.pixels, corner);
            candle_core::Tensor::from_vec(patches, (images * CELLS, PATCH), &Device::Cpu)?.matmul(filter)
        };
        let largest = seen((0, 0))?.maximum(&seen((0, 1))?)?.maximum(&seen((1, 0))?.maximum(&seen((1, 1))?)?)?;
        let cells = largest.broadcast_add(filter_bias)?.relu()?.reshape((images, CELLS * FILTERS))?;
        let units = cells.matmul(hidden)?.broadcast_add(hidden_bias)?.relu()?;
        units.matmul(output)?.broadcast_add(output_bias)
    }

    /// `sum(log(sum(exp(outputs))) - output of the right class) / global images`.
    fn loss(&self, batch: &Batch) -> candle_core::Result<candle_core::Tensor> {
        let outputs = self.outputs(batch)?;
        // Less the largest, so that no exponential overflows; what is subtracted cancels out, so it needs no gradient.
        let outputs = outputs.broadcast_sub(&outputs.max_keepdim(D::Minus1)?.detach())?;
        let labels = candle_core::Tensor::from_slice(&batch.labels, (batch.labels.len(), 1), &Device::Cpu)?;
        let right = outputs.gather(&labels, 1)?;
        let surprise = (outputs.exp()?.sum_keepdim(D::Minus1)?.log()? - right)?;
        surprise.sum_all()? / batch.global_images as f64
    }

    /// A copy of candle's tensor as one of sheave.
    fn leave(&self, tensor: &candle_core::Tensor) -> Result<Tensor> {
        let mut left = match &self.arena {
            Some(arena) => Tensor::empty(arena, Dtype::F32, shape(tensor.dims()))?,
            None => Tensor::private(Dtype::F32, shape(tensor.dims()))?,
        };
        let tensor = tensor.contiguous().map_err(failed)?;
        let (storage, layout) = tensor.storage_and_layout();
        let values = match &*storage {
            Storage::Cpu(CpuStorage::F32(values)) => {
                layout.contiguous_offsets().and_then(|(start, end)| values.get(start..end))
            }
            _ => None,
        };
        let values = values.ok_or_else(|| Error::new(ErrorKind::Internal, "candle moved a tensor"))?;
        left.as_mut_slice::<f32>()?.copy_from_slice(values);
        Ok(left)
    }
}

/// From -1 to below 1, a multiple of 2^-23: exact in every format on the way.
fn uniform(entropy: &mut SeededEntropy) -> f32 {
    const STEPS: u64 = 1 << 24;
    (entropy.next_u64() % STEPS) as f32 / (STEPS / 2) as f32 - 1.0
}

fn largest(outputs: &[f32]) -> Option<u32> {
    let mut best: Option<(u32, f32)> = None;
    for (class, &output) in (0..).zip(outputs) {
        if !output.is_nan() && best.is_none_or(|(_, most)| output > most) {
            best = Some((class, output));
        }
    }
    best.map(|(class, _)| class)
}

/// The 3x3 pixels around one corner (row, column) of each cell of each image, row by row; zero beyond an edge.
fn patches(pixels: &[f32], corner: (usize, usize)) -> Vec<f32> {
    let mut patches = Vec::with_capacity(pixels.len() / PIXELS * CELLS * PATCH);
    for image in pixels.chunks_exact(PIXELS) {
        for (top, left) in (0..SIDE).step_by(2).flat_map(|top| (0..SIDE).step_by(2).map(move |left| (top, left))) {
            let (row, column) = (top + corner.0, left + corner.1);
            for (down, right) in (0..3).flat_map(|down| (0..3).map(move |right| (down, right))) {
                // Counted from one row and column before the image.
                let pixel = match (row + down, column + right) {
                    (y @ 1..=SIDE, x @ 1..=SIDE) => image[(y - 1) * SIDE + (x - 1)],
                    _ => 0.0,
                };
                patches.push(pixel);
            }
        }
    }
    patches
}

fn shape(dimensions: &[usize]) -> Shape {
    let dimensions: Vec<u64> = dimensions.iter().map(|&dimension| dimension as u64).collect();
    // Two dimensions are never too many.
    Shape::new(&dimensions).unwrap_or_default()
}

#[expect(clippy::needless_pass_by_value, reason = "what `map_err` calls")]
fn failed(error: candle_core::Error) -> Error {
    Error::new(ErrorKind::Internal, Cow::from(format!("candle: {error}")))
}
