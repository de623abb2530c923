//! Batch normalisation.
//!
//! **Networks together have the bits of each alone**: every sum is over the rows of one column of one network, in their
//! order and in f64, and each element is computed from its own column.

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Storage, Tensor, bail};
use sheave_base::{Error, ErrorKind};

use crate::bias::numbers;
use crate::layers::expect_width;
use crate::module::{Buffer, Module, Parameter, Pass, Start};

/// Batch normalisation of each number of a row (Ioffe and Szegedy, ICML 2015, arXiv:1502.03167): `outputs = (inputs -
/// mean) / sqrt(variance + epsilon) · scale + shift`.
///
/// In a training mean and variance are those of the rows of the batch, which must be two at least, and gradients go
/// through them. Elsewhere they are running means, which each batch of a training moves: `running += momentum · (of
/// batch - running)`, where the variance of a batch is the unbiased one. The running means are
/// [buffers](Module::buffers) of the network and no parameters: a pass needs them beside these
/// ([`Mode::TrainWith`](crate::Mode::TrainWith), [`Mode::EvaluateWith`](crate::Mode::EvaluateWith)).
///
/// ```
/// use sheave_nn::{BatchNorm, Dataset, Loss, Mode, Network, Targets};
///
/// let network = Network::new(BatchNorm::new(1)?, 1, Loss::MeanSquared)?;
/// let data = Dataset::new(vec![1.0, 3.0], 1, Targets::Values(vec![0.0, 0.0]))?;
/// let (parameters, mut buffers) = (network.start(1), vec![network.start_buffers()]);
/// assert_eq!(buffers[0], [0.0, 1.0]);
/// let mode = Mode::TrainWith { generators: &mut [], buffers: &mut buffers };
/// network.value_and_gradient(&parameters, &data, mode, &mut [0.0; 2])?;
/// // A tenth of the way to a mean of 2 and a variance of 2.
/// assert!((buffers[0][0] - 0.2).abs() < 1e-6 && (buffers[0][1] - 1.1).abs() < 1e-6);
/// let mut outputs = Vec::new();
/// network.outputs(&parameters, &[0.2], Mode::EvaluateWith(&buffers), &mut outputs)?;
/// assert!(outputs[0].abs() < 1e-6);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNorm {
    width: usize,
    momentum: f32,
    epsilon: f32,
}

impl BatchNorm {
    /// Makes the layer, with a momentum of 0.1 and an epsilon of 1e-5. Its scale begins at one, its shift at zero, and
    /// the running means and variances at zero and one.
    ///
    /// # Errors
    /// `InvalidArgument` for a width of 0.
    pub fn new(width: usize) -> sheave_base::Result<Self> {
        Self::with(width, 0.1, 1e-5)
    }

    /// As [`new`](Self::new), with another momentum and epsilon.
    ///
    /// # Errors
    /// As [`new`](Self::new); `InvalidArgument` for a momentum that is not from above 0 to 1, or an epsilon that is not
    /// a finite number above zero.
    pub fn with(width: usize, momentum: f32, epsilon: f32) -> sheave_base::Result<Self> {
        let refuse = |field: &str, value: String, expected: &str| {
            let what = format!("{field} is {value}; expected {expected}");
            Err(Error::new(ErrorKind::InvalidArgument, what).operation("batch normalisation layer"))
        };
        if width == 0 {
            return refuse("width", width.to_string(), "one number at least");
        }
        if !(momentum > 0.0 && momentum <= 1.0) {
            return refuse("momentum", momentum.to_string(), "a number from above 0 to 1");
        }
        if !(epsilon > 0.0 && epsilon.is_finite()) {
            return refuse("epsilon", epsilon.to_string(), "a finite number above zero");
        }
        Ok(Self { width, momentum, epsilon })
    }

    fn inverse(&self, variance: f32) -> f32 {
        (1.0 / (f64::from(variance) + f64::from(self.epsilon)).sqrt()) as f32
    }
}

impl Module for BatchNorm {
    fn parameters(&self) -> Vec<Parameter> {
        let parameter = |name: &str, start| Parameter { name: name.into(), dimensions: vec![self.width], start };
        vec![parameter("scale", Start::One), parameter("shift", Start::Zero)]
    }

    fn buffers(&self) -> Vec<Buffer> {
        let buffer = |name: &str, start| Buffer { name: name.into(), elements: self.width, start };
        vec![buffer("mean", 0.0), buffer("variance", 1.0)]
    }

    fn width(&self, inputs: usize) -> std::result::Result<usize, String> {
        expect_width("a batch normalisation", inputs, self.width)?;
        Ok(inputs)
    }

    fn forward(&self, input: &Tensor, pass: &mut Pass<'_>) -> Result<Tensor> {
        let (scale, shift) = (pass.parameter()?, pass.parameter()?);
        let (networks, rows, width) = input.dims3()?;
        let input = input.contiguous()?;
        let (mut means, mut inverses) = (Vec::with_capacity(networks * width), Vec::with_capacity(networks * width));
        let mut buffers = pass.buffers(2 * width);
        if let Some(share) = buffers.share(self.momentum) {
            if rows < 2 {
                bail!("a batch of {rows} rows has no variance; expected two at least")
            }
            let (storage, layout) = input.storage_and_layout();
            let Storage::Cpu(storage) = &*storage else { bail!("inputs that are not in the memory of the host") };
            for (network, matrix) in numbers(storage, layout)?.chunks_exact(rows * width).enumerate() {
                let (mean, variance) = moments(matrix, width);
                let (running_mean, running_variance) = buffers.of_mut(network)?.split_at_mut(width);
                let unbiased = rows as f64 / (rows as f64 - 1.0);
                for column in 0..width {
                    let moved = |running: f32, new: f64| running + share * (new as f32 - running);
                    running_mean[column] = moved(running_mean[column], mean[column]);
                    running_variance[column] = moved(running_variance[column], variance[column] * unbiased);
                }
                means.extend(mean.iter().map(|mean| *mean as f32));
                inverses.extend(variance.iter().map(|variance| self.inverse(*variance as f32)));
            }
        } else {
            for network in 0..networks {
                let (mean, variance) = buffers.of(network)?.split_at(width);
                means.extend_from_slice(mean);
                inverses.extend(variance.iter().map(|variance| self.inverse(*variance)));
            }
        }
        let is_of_batch = buffers.share(self.momentum).is_some();
        input.apply_op3(scale, shift, Normalize { means, inverses, is_of_batch })
    }
}

/// Mean and biased variance of each column.
fn moments(matrix: &[f32], width: usize) -> (Vec<f64>, Vec<f64>) {
    let share = 1.0 / (matrix.len() / width) as f64;
    let (mut mean, mut variance) = (vec![0.0; width], vec![0.0; width]);
    for row in matrix.chunks_exact(width) {
        mean.iter_mut().zip(row).for_each(|(mean, value)| *mean += f64::from(*value));
    }
    mean.iter_mut().for_each(|mean| *mean *= share);
    for row in matrix.chunks_exact(width) {
        for ((variance, value), mean) in variance.iter_mut().zip(row).zip(&mean) {
            *variance += (f64::from(*value) - mean).powi(2);
        }
    }
    variance.iter_mut().for_each(|variance| *variance *= share);
    (mean, variance)
}

/// With the moments of each column of each network. Those of the batch depend on the inputs.
struct Normalize {
    means: Vec<f32>,
    inverses: Vec<f32>,
    is_of_batch: bool,
}

impl Normalize {
    /// The moments of a network.
    fn of(&self, network: usize, width: usize) -> (&[f32], &[f32]) {
        let range = network * width..(network + 1) * width;
        (&self.means[range.clone()], &self.inverses[range])
    }

    /// Gradients of one network: `slope` is that of the outputs, and becomes that of the inputs. Those of the scale and
    /// the shift are returned.
    fn backward(&self, network: usize, input: &[f32], scale: &[f32], slope: &mut [f32]) -> [Vec<f64>; 2] {
        let width = scale.len();
        let (means, inverses) = self.of(network, width);
        let centred = |row: &[f32], column: usize| (row[column] - means[column]) * inverses[column];
        let (mut of_scale, mut of_shift) = (vec![0.0; width], vec![0.0; width]);
        for (row, slope) in input.chunks_exact(width).zip(slope.chunks_exact(width)) {
            for column in 0..width {
                of_scale[column] += f64::from(slope[column]) * f64::from(centred(row, column));
                of_shift[column] += f64::from(slope[column]);
            }
        }
        let share = if self.is_of_batch { 1.0 / (input.len() / width) as f64 } else { 0.0 };
        for (row, slope) in input.chunks_exact(width).zip(slope.chunks_exact_mut(width)) {
            for column in 0..width {
                let through = of_shift[column] + f64::from(centred(row, column)) * of_scale[column];
                let own = f64::from(slope[column]) - share * through;
                slope[column] = (own * f64::from(scale[column]) * f64::from(inverses[column])) as f32;
            }
        }
        [of_scale, of_shift]
    }
}

impl CustomOp3 for Normalize {
    fn name(&self) -> &'static str {
        "batch normalisation"
    }

    fn cpu_fwd(
        &self,
        input: &CpuStorage,
        of: &Layout,
        scale: &CpuStorage,
        of_scale: &Layout,
        shift: &CpuStorage,
        of_shift: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (_, rows, width) = of.shape().dims3()?;
        let (input, scale, shift) = (numbers(input, of)?, numbers(scale, of_scale)?, numbers(shift, of_shift)?);
        let mut out = Vec::with_capacity(input.len());
        for (network, matrix) in input.chunks_exact((rows * width).max(1)).enumerate() {
            let (means, inverses) = self.of(network, width);
            let range = network * width..(network + 1) * width;
            let (scale, shift) = (&scale[range.clone()], &shift[range]);
            for row in matrix.chunks_exact(width) {
                let element =
                    |column: usize| (row[column] - means[column]) * inverses[column] * scale[column] + shift[column];
                out.extend((0..width).map(element));
            }
        }
        Ok((CpuStorage::F32(out), of.shape().clone()))
    }

    fn bwd(
        &self,
        input: &Tensor,
        scale: &Tensor,
        _: &Tensor,
        _: &Tensor,
        slope: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (networks, rows, width) = input.dims3()?;
        let flat = |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<f32>();
        let (input, scales, mut slopes) = (flat(input)?, flat(scale)?, flat(slope)?);
        let (mut of_scale, mut of_shift) = (Vec::with_capacity(scales.len()), Vec::with_capacity(scales.len()));
        let matrices = input.chunks_exact(rows * width).zip(slopes.chunks_exact_mut(rows * width));
        for (network, ((input, slope), scale)) in matrices.zip(scales.chunks_exact(width)).enumerate() {
            let [scale, shift] = self.backward(network, input, scale, slope);
            of_scale.extend(scale.iter().map(|sum| *sum as f32));
            of_shift.extend(shift.iter().map(|sum| *sum as f32));
        }
        let device = slope.device();
        let tensor = |values: Vec<f32>| Tensor::from_vec(values, (networks, width), device);
        let slope = Tensor::from_vec(slopes, (networks, rows, width), device)?;
        Ok((Some(slope), Some(tensor(of_scale)?), Some(tensor(of_shift)?)))
    }
}
