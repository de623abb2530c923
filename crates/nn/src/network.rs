//! Networks as functions of a flat vector: outputs, and the gradient of a loss.
//!
//! **Several at once.** Networks of one architecture go through candle as one: their inputs are
//! `[networks, rows, width]`, and each product of matrices is a batch of products, one for each network. One network is
//! a batch of one, by the same operations in the same order. No operation mixes networks, and candle computes each
//! product and each sum of a batch as it computes it alone: so networks together have the bits that each has alone, and
//! it does not show how many go at a time.

use std::borrow::Cow;

use candle_core::{CpuStorage, Device, Storage, Tensor, Var};
use sheave_base::{Error, ErrorKind, Result};
use sheave_bayes::random::Generator;
use smallvec::SmallVec;

use crate::bias::add_bias;
use crate::dataset::Dataset;
use crate::loss::Loss;
use crate::module::{Buffer, Layout, LayoutEntry, Mode, Module, Pass};

/// Networks go through candle together up to this size of one of their tensors. Larger ones are not faster together:
/// the system's allocator takes their memory from the kernel in each pass, page by page.
const TENSOR_BYTES: usize = 128 << 10;

/// Parameters of one network; more of them than this cost an allocation in each pass.
const PARAMETERS_IN_PLACE: usize = 16;

type Parameters<T> = SmallVec<[T; PARAMETERS_IN_PLACE]>;

/// A module and a loss as a function of a flat vector of f32, which is the caller's. It is immutable: any number of
/// threads may use it at once.
///
/// A pass takes the time of its arithmetic, and waits for nobody. Nothing is allocated in it but what candle allocates
/// for its tensors.
///
/// ```
/// use sheave_nn::{Dataset, Loss, Mode, Network, Targets, mlp};
/// use sheave_optim::Rule;
///
/// let network = Network::new(mlp(&[1, 16, 1])?, 1, Loss::MeanSquared)?;
/// let data = Dataset::new(vec![-1.0, 0.0, 1.0], 1, Targets::Values(vec![1.0, 0.0, 1.0]))?;
/// let mut parameters = network.start(7);
/// let mut gradient = vec![0.0; network.dimension()];
/// let rule = Rule::adam(0.05);
/// let mut state = rule.state(network.dimension());
/// for _ in 0..100 {
///     network.value_and_gradient(&parameters, &data, Mode::Evaluate, &mut gradient)?;
///     rule.step(&mut state, &mut parameters, &gradient)?;
/// }
/// let mut outputs = Vec::new();
/// network.outputs(&parameters, &[1.0], Mode::Evaluate, &mut outputs)?;
/// assert!((outputs[0] - 1.0).abs() < 0.1);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Debug)]
pub struct Network {
    module: Box<dyn Module>,
    loss: Loss,
    layout: Layout,
    buffers: Vec<Buffer>,
    inputs: usize,
    outputs: usize,
}

impl Network {
    /// Makes a network of a module, for inputs of a width.
    ///
    /// # Errors
    /// `InvalidArgument` for inputs that the module does not take, or outputs that do not fit the loss.
    pub fn new(module: impl Module + 'static, inputs: usize, loss: Loss) -> Result<Self> {
        let refuse = |what: String| Error::new(ErrorKind::InvalidArgument, what).operation("network");
        let outputs = module.width(inputs).map_err(refuse)?;
        loss.check(outputs).map_err(refuse)?;
        let (layout, buffers) = (Layout::of(&module), module.buffers());
        Ok(Self { module: Box::new(module), loss, layout, buffers, inputs, outputs })
    }

    /// Returns where each parameter is in the flat vector.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the number of elements of the flat vector.
    #[must_use]
    pub fn dimension(&self) -> usize {
        self.layout.dimension()
    }

    /// Returns the buffers, in the order in which they are in a flat vector of their own; none of most networks.
    #[must_use]
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// Returns fresh buffers of one network, for [`Mode::TrainWith`] and [`Mode::EvaluateWith`].
    #[must_use]
    pub fn start_buffers(&self) -> Vec<f32> {
        self.buffers.iter().flat_map(|buffer| std::iter::repeat_n(buffer.start, buffer.elements)).collect()
    }

    /// Makes the buffers those of other parameters, such as a sample of a posterior: each becomes the mean over all
    /// batches of `batch_rows` rows of data, in their order, of what a training would move it to. A last batch of a
    /// single row is left out. Nothing is dropped, and nothing is left of what the buffers were. Does nothing for a
    /// network without buffers.
    ///
    /// # Errors
    /// Those of [`outputs`](Self::outputs); `InvalidArgument` for data with less than two rows, or batches of them.
    pub fn refresh(&self, parameters: &[f32], data: &Dataset, batch_rows: usize, buffers: &mut Vec<f32>) -> Result<()> {
        if self.buffers.is_empty() {
            return Ok(());
        }
        if batch_rows < 2 || data.rows() < 2 {
            let what = format!("batches have {batch_rows} rows, of {}; expected two at least", data.rows());
            return Err(Error::new(ErrorKind::InvalidArgument, what).operation("network"));
        }
        // The first batch has a share of one: its moments take the place of zeros, and only of zeros without rounding.
        buffers.fill(0.0);
        let (mut out, mut seen) = (Vec::new(), 0);
        for inputs in data.inputs().chunks(batch_rows * self.inputs) {
            let rows = inputs.len() / self.inputs;
            if rows < 2 {
                break;
            }
            seen += rows;
            out.clear();
            let share = rows as f32 / seen as f32;
            self.outputs(
                parameters,
                inputs,
                Mode::Refresh { buffers: std::slice::from_mut(buffers), share },
                &mut out,
            )?;
        }
        Ok(())
    }

    /// Returns the width of a row of inputs.
    #[must_use]
    pub fn input_width(&self) -> usize {
        self.inputs
    }

    /// Returns the width of a row of outputs.
    #[must_use]
    pub fn output_width(&self) -> usize {
        self.outputs
    }

    /// Returns the loss.
    #[must_use]
    pub fn loss(&self) -> Loss {
        self.loss
    }

    /// Fills a flat vector with fresh parameters, which the state of the generator determines to the bit.
    ///
    /// # Errors
    /// `InvalidArgument` for another length.
    pub fn initialize(&self, generator: &mut Generator, parameters: &mut [f32]) -> Result<()> {
        self.check_length("parameters", parameters.len())?;
        self.layout.start(generator, parameters);
        Ok(())
    }

    /// Returns fresh parameters of a seed.
    #[must_use]
    pub fn start(&self, seed: u64) -> Vec<f32> {
        let mut parameters = vec![0.0; self.dimension()];
        self.layout.start(&mut Generator::new(seed), &mut parameters);
        parameters
    }

    /// Checks that data are what the network is for.
    ///
    /// # Errors
    /// `InvalidArgument` for another width of inputs, or targets that do not fit the loss.
    pub fn check(&self, data: &Dataset) -> Result<()> {
        let refuse = |what: String| Error::new(ErrorKind::InvalidArgument, what).operation("network");
        if data.width() != self.inputs {
            return Err(refuse(format!("the width of inputs is {}; expected {}", data.width(), self.inputs)));
        }
        self.loss.check_targets(self.outputs, data).map_err(refuse)
    }

    /// Writes the gradient of the loss of a batch, and returns the loss.
    ///
    /// # Errors
    /// `InvalidArgument` for slices of another length than [`dimension`](Self::dimension), and those of
    /// [`check`](Self::check); [`ErrorKind::Internal`] when candle fails.
    pub fn value_and_gradient(
        &self,
        parameters: &[f32],
        batch: &Dataset,
        mode: Mode<'_>,
        gradient: &mut [f32],
    ) -> Result<f64> {
        let mut loss = [0.0];
        self.values_and_gradients(&[parameters], &[batch], mode, &mut [gradient], &mut loss)?;
        Ok(loss[0])
    }

    /// Writes gradients and losses of several networks, as one computation. Each gets the bits that
    /// [`value_and_gradient`](Self::value_and_gradient) gives it alone. `batches` are one for all networks, or one for
    /// each, of equally many rows; in a training there is a generator for each.
    ///
    /// ```
    /// use sheave_nn::{Dataset, Loss, Mode, Network, Targets, mlp};
    ///
    /// let network = Network::new(mlp(&[1, 4, 1])?, 1, Loss::MeanSquared)?;
    /// let data = Dataset::new(vec![0.5, 1.0], 1, Targets::Values(vec![1.0, 0.0]))?;
    /// let parameters = [network.start(1), network.start(2)];
    /// let (mut gradients, mut losses) = ([vec![0.0; 13], vec![0.0; 13]], [0.0; 2]);
    /// network.values_and_gradients(&parameters, &[&data], Mode::Evaluate, &mut gradients, &mut losses)?;
    /// let mut alone = vec![0.0; 13];
    /// assert_eq!(network.value_and_gradient(&parameters[1], &data, Mode::Evaluate, &mut alone)?, losses[1]);
    /// assert_eq!(alone, gradients[1]);
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`value_and_gradient`](Self::value_and_gradient), and `InvalidArgument` for numbers of networks, batches,
    /// gradients, losses or generators that do not fit.
    pub fn values_and_gradients<P: AsRef<[f32]>, G: AsMut<[f32]> + AsRef<[f32]>>(
        &self,
        parameters: &[P],
        batches: &[&Dataset],
        mode: Mode<'_>,
        gradients: &mut [G],
        losses: &mut [f64],
    ) -> Result<()> {
        self.check_networks(parameters, &mode)?;
        self.check_batches(batches, parameters.len())?;
        let moves = matches!(mode, Mode::TrainWith { .. } | Mode::Refresh { .. }) && !self.buffers.is_empty();
        if moves && batches[0].rows() < 2 {
            let what = "a batch has 1 row; expected two at least to train a network with buffers";
            return Err(Error::new(ErrorKind::InvalidArgument, what).operation("network"));
        }
        expect("gradients", gradients.len(), parameters.len())?;
        expect("losses", losses.len(), parameters.len())?;
        gradients.iter().try_for_each(|gradient| self.check_length("gradient", gradient.as_ref().len()))?;
        let group = self.group(parameters.len(), batches[0].rows());
        let mut rest = mode;
        for start in (0..parameters.len()).step_by(group) {
            let end = parameters.len().min(start + group);
            let (mode, others) = rest.split(end - start);
            rest = others;
            let batches = if batches.len() == 1 { batches } else { &batches[start..end] };
            self.group_gradients(
                &parameters[start..end],
                batches,
                mode,
                &mut gradients[start..end],
                &mut losses[start..end],
            )?;
        }
        Ok(())
    }

    /// How many networks go through candle together: as many as keep every tensor within [`TENSOR_BYTES`].
    fn group(&self, networks: usize, rows: usize) -> usize {
        let of = |entry: &LayoutEntry| {
            let widest = entry.parameter.dimensions.iter().copied().max().unwrap_or(1);
            entry.parameter.elements().max(rows * widest)
        };
        let largest = self.layout.entries().iter().map(of).max().unwrap_or(1).max(1);
        (TENSOR_BYTES / (largest * size_of::<f32>())).clamp(1, networks)
    }

    /// Gradients of networks that go through candle together; everything fits.
    fn group_gradients<P: AsRef<[f32]>, G: AsMut<[f32]>>(
        &self,
        parameters: &[P],
        batches: &[&Dataset],
        mode: Mode<'_>,
        gradients: &mut [G],
        losses: &mut [f64],
    ) -> Result<()> {
        let (variables, tensors) = self.variables(parameters).map_err(failed)?;
        let compute = || {
            let mut pass = Pass::new(&tensors, mode);
            let outputs = self.module.forward(&self.input(batches, parameters.len())?, &mut pass)?;
            let each = self.loss.of(&outputs, batches)?;
            Ok((each.to_vec1::<f32>()?, each.sum_all()?.backward()?))
        };
        let (values, slopes) = compute().map_err(failed)?;
        for (loss, value) in losses.iter_mut().zip(values) {
            *loss = f64::from(value);
        }
        for (variable, entry) in variables.iter().zip(self.layout.entries()) {
            let (start, elements) = (entry.offset, entry.parameter.elements());
            let places = gradients.iter_mut().map(|gradient| &mut gradient.as_mut()[start..start + elements]);
            match slopes.get(variable) {
                Some(slope) => read(slope, |values| {
                    places.zip(values.chunks_exact(elements)).for_each(|(place, values)| place.copy_from_slice(values));
                })?,
                // The loss does not depend on it.
                None => places.for_each(|place| place.fill(0.0)),
            }
        }
        Ok(())
    }

    /// Appends the outputs for rows of inputs: rows × outputs.
    ///
    /// # Errors
    /// `InvalidArgument` for another length of the parameters, or inputs that are no whole rows;
    /// [`ErrorKind::Internal`] when candle fails.
    pub fn outputs(&self, parameters: &[f32], inputs: &[f32], mode: Mode<'_>, out: &mut Vec<f32>) -> Result<()> {
        self.many_outputs(&[parameters], inputs, mode, out)
    }

    /// Appends the outputs of several networks for the same inputs: networks × rows × outputs.
    ///
    /// # Errors
    /// Those of [`outputs`](Self::outputs); `InvalidArgument` for other than one generator for each network.
    pub fn many_outputs<P: AsRef<[f32]>>(
        &self,
        parameters: &[P],
        inputs: &[f32],
        mode: Mode<'_>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        self.check_networks(parameters, &mode)?;
        let rows = self.rows(inputs)?;
        let tensors = self.tensors(parameters).map_err(failed)?;
        let compute = || {
            let mut pass = Pass::new(&tensors, mode);
            self.module.forward(&shared(inputs, [parameters.len(), rows, self.inputs])?, &mut pass)
        };
        read(&compute().map_err(failed)?, |values| out.extend_from_slice(values))
    }

    /// Appends what the last layer is given for rows of inputs, rows × features, and returns how many features there
    /// are. The last layer must be dense; its parameters are the last two of the layout.
    ///
    /// # Errors
    /// Those of [`outputs`](Self::outputs); [`ErrorKind::Unsupported`] where the last layer is not dense.
    pub fn features(&self, parameters: &[f32], inputs: &[f32], mode: Mode<'_>, out: &mut Vec<f32>) -> Result<usize> {
        self.check_networks(&[parameters], &mode)?;
        let rows = self.rows(inputs)?;
        let tensors = self.tensors(&[parameters]).map_err(failed)?;
        let compute = || {
            let mut pass = Pass::new(&tensors, mode);
            let outputs = self.module.forward(&shared(inputs, [1, rows, self.inputs])?, &mut pass)?;
            let (Some(features), [.., weight, bias]) = (pass.into_features(), tensors.as_slice()) else {
                return Ok(None);
            };
            if weight.dims().len() != 3
                || features.dims()[2] != weight.dims()[1]
                || bias.dims()[1..] != weight.dims()[2..]
            {
                return Ok(None);
            }
            // Whatever stands behind the last dense layer would show.
            let again = add_bias(&features.matmul(weight)?, bias)?;
            let is_last = again.dims() == outputs.dims() && again.to_vec3::<f32>()? == outputs.to_vec3::<f32>()?;
            Ok(is_last.then_some(features))
        };
        let features = compute().map_err(failed)?.ok_or_else(|| {
            let what = "the last layer of the network is not dense";
            Error::new(ErrorKind::Unsupported, what).operation("features").hint("end the network with a `Dense`")
        })?;
        read(&features, |values| out.extend_from_slice(values))?;
        Ok(features.dims()[2])
    }

    /// The inputs of all networks: one copy of each batch, or one that all see.
    fn input(&self, batches: &[&Dataset], networks: usize) -> candle_core::Result<Tensor> {
        let rows = batches[0].rows();
        if let [batch] = batches {
            return shared(batch.inputs(), [networks, rows, self.inputs]);
        }
        let values = batches.iter().flat_map(|batch| batch.inputs().iter().copied()).collect();
        Tensor::from_vec(values, (networks, rows, self.inputs), &Device::Cpu)
    }

    /// Copies of the parameters that candle makes gradients for.
    fn variables<P: AsRef<[f32]>>(
        &self,
        parameters: &[P],
    ) -> candle_core::Result<(Parameters<Var>, Parameters<Tensor>)> {
        let tensors = self.tensors(parameters)?;
        let variables: Parameters<Var> = tensors.iter().map(Var::from_tensor).collect::<candle_core::Result<_>>()?;
        let tensors = variables.iter().map(|variable| variable.as_tensor().clone()).collect();
        Ok((variables, tensors))
    }

    fn tensors<P: AsRef<[f32]>>(&self, parameters: &[P]) -> candle_core::Result<Parameters<Tensor>> {
        let stacked = |entry: &LayoutEntry| {
            let elements = entry.parameter.elements();
            let mut values = Vec::with_capacity(parameters.len() * elements);
            for network in parameters {
                values.extend_from_slice(&network.as_ref()[entry.offset..entry.offset + elements]);
            }
            let dimensions: SmallVec<[usize; 6]> =
                std::iter::once(parameters.len()).chain(entry.parameter.dimensions.iter().copied()).collect();
            Tensor::from_vec(values, dimensions.as_slice(), &Device::Cpu)
        };
        self.layout.entries().iter().map(stacked).collect()
    }

    fn rows(&self, inputs: &[f32]) -> Result<usize> {
        if inputs.is_empty() || !inputs.len().is_multiple_of(self.inputs) {
            let what =
                format!("the length of inputs is {}; expected a multiple of {} above zero", inputs.len(), self.inputs);
            return Err(Error::new(ErrorKind::InvalidArgument, what).operation("network"));
        }
        Ok(inputs.len() / self.inputs)
    }

    fn check_networks<P: AsRef<[f32]>>(&self, parameters: &[P], mode: &Mode<'_>) -> Result<()> {
        if parameters.is_empty() {
            let what = "the number of networks is 0; expected one at least";
            return Err(Error::new(ErrorKind::InvalidArgument, what).operation("network"));
        }
        if let Some((expected, found)) = mode.generators(parameters.len()) {
            expect("generators", found, expected)?;
        }
        self.check_buffers(parameters.len(), mode)?;
        parameters.iter().try_for_each(|parameters| self.check_length("parameters", parameters.as_ref().len()))
    }

    fn check_buffers(&self, networks: usize, mode: &Mode<'_>) -> Result<()> {
        let refuse = |what: String| Error::new(ErrorKind::InvalidArgument, what).operation("network");
        let elements: usize = self.buffers.iter().map(|buffer| buffer.elements).sum();
        let Some(buffers) = mode.buffers() else {
            if elements == 0 {
                return Ok(());
            }
            let first = &self.buffers[0].name;
            let hint = "take `Mode::TrainWith` or `Mode::EvaluateWith`";
            return Err(refuse(format!("the mode has no buffers; expected {first} and others")).hint(hint));
        };
        expect("buffers", buffers.len(), networks)?;
        match buffers.iter().find(|buffers| buffers.len() != elements) {
            Some(other) => Err(refuse(format!("the length of buffers is {}; expected {elements}", other.len()))),
            None => Ok(()),
        }
    }

    fn check_batches(&self, batches: &[&Dataset], networks: usize) -> Result<()> {
        expect("batches", batches.len(), if batches.len() == 1 { 1 } else { networks })?;
        for batch in batches {
            self.check(batch)?;
            if batch.rows() != batches[0].rows() {
                let what = format!("a batch has {} rows; expected {} as the first", batch.rows(), batches[0].rows());
                return Err(Error::new(ErrorKind::InvalidArgument, what).operation("network"));
            }
        }
        Ok(())
    }

    fn check_length(&self, field: &str, found: usize) -> Result<()> {
        if found == self.dimension() {
            return Ok(());
        }
        let what = format!("the length of {field} is {found}; expected {}", self.dimension());
        Err(Error::new(ErrorKind::InvalidArgument, what).operation("network"))
    }
}

/// Inputs that all networks see, in one copy.
fn shared(inputs: &[f32], [networks, rows, width]: [usize; 3]) -> candle_core::Result<Tensor> {
    Tensor::from_slice(inputs, (1, rows, width), &Device::Cpu)?.broadcast_as((networks, rows, width))
}

/// Hands the numbers of candle's tensor over, row by row.
fn read(tensor: &Tensor, take: impl FnOnce(&[f32])) -> Result<()> {
    let tensor = tensor.contiguous().map_err(failed)?;
    let (storage, layout) = tensor.storage_and_layout();
    let values = match &*storage {
        Storage::Cpu(CpuStorage::F32(values)) => {
            layout.contiguous_offsets().and_then(|(start, end)| values.get(start..end))
        }
        _ => None,
    };
    take(values.ok_or_else(|| Error::new(ErrorKind::Internal, "candle moved a tensor"))?);
    Ok(())
}

fn expect(field: &str, found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let what = format!("the number of {field} is {found}; expected {expected}");
    Err(Error::new(ErrorKind::InvalidArgument, what).operation("network"))
}

#[expect(clippy::needless_pass_by_value, reason = "what `map_err` calls")]
fn failed(error: candle_core::Error) -> Error {
    Error::new(ErrorKind::Internal, Cow::from(format!("candle: {error}")))
}
