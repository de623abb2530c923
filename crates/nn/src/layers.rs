//! The layers that networks are composed of.

use candle_core::{Device, Result, Tensor, bail};
use sheave_base::{Error, ErrorKind};
use sheave_bayes::ensemble;

use crate::bias::add_bias;
use crate::module::{Buffer, Module, Parameter, Pass, Start};

/// A dense layer: `outputs = inputs · weight + bias`, with a weight of inputs × outputs.
#[derive(Clone, Debug)]
pub struct Dense {
    inputs: usize,
    outputs: usize,
}

impl Dense {
    /// Makes the layer. Its weight begins uniform within `sqrt(6 / inputs)` (He et al. 2015, for rectifiers), its bias
    /// at zero.
    ///
    /// # Errors
    /// `InvalidArgument` for no inputs or no outputs.
    pub fn new(inputs: usize, outputs: usize) -> sheave_base::Result<Self> {
        if inputs == 0 || outputs == 0 {
            let what = format!("inputs and outputs are {inputs} and {outputs}; expected one of each at least");
            return Err(Error::new(ErrorKind::InvalidArgument, what).operation("dense layer"));
        }
        Ok(Self { inputs, outputs })
    }
}

impl Module for Dense {
    fn parameters(&self) -> Vec<Parameter> {
        let bound = (6.0 / self.inputs as f32).sqrt();
        vec![
            Parameter {
                name: "weight".into(),
                dimensions: vec![self.inputs, self.outputs],
                start: Start::Uniform { bound },
            },
            Parameter { name: "bias".into(), dimensions: vec![self.outputs], start: Start::Zero },
        ]
    }

    fn width(&self, inputs: usize) -> std::result::Result<usize, String> {
        expect_width("a dense layer", inputs, self.inputs)?;
        Ok(self.outputs)
    }

    fn forward(&self, input: &Tensor, pass: &mut Pass<'_>) -> Result<Tensor> {
        pass.note_features(input);
        let (weight, bias) = (pass.parameter()?, pass.parameter()?);
        add_bias(&input.matmul(weight)?, bias)
    }
}

/// The function of a unit, applied to each number by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `max(0, x)`.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
    /// `x Φ(x)` with the distribution function `Φ` of the standard normal distribution (Hendrycks and Gimpel 2016,
    /// arXiv:1606.08415).
    Gelu,
}

impl Module for Activation {
    fn parameters(&self) -> Vec<Parameter> {
        Vec::new()
    }

    fn width(&self, inputs: usize) -> std::result::Result<usize, String> {
        Ok(inputs)
    }

    fn forward(&self, input: &Tensor, _pass: &mut Pass<'_>) -> Result<Tensor> {
        match self {
            Self::Relu => input.relu(),
            Self::Tanh => input.tanh(),
            Self::Gelu => input.gelu_erf(),
        }
    }
}

/// Drops each number with a probability in a training, and scales the others by `1 / (1 - rate)`; elsewhere it changes
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout(ensemble::Dropout);

impl Dropout {
    /// Makes the layer.
    ///
    /// # Errors
    /// `InvalidArgument` for a rate that is not from 0 to below 1.
    pub fn new(rate: f64) -> sheave_base::Result<Self> {
        if (0.0..1.0).contains(&rate) {
            return Ok(Self(ensemble::Dropout { rate }));
        }
        let what = format!("rate is {rate}; expected a number from 0 to below 1");
        Err(Error::new(ErrorKind::InvalidArgument, what).operation("dropout layer"))
    }
}

impl Module for Dropout {
    fn parameters(&self) -> Vec<Parameter> {
        Vec::new()
    }

    fn width(&self, inputs: usize) -> std::result::Result<usize, String> {
        Ok(inputs)
    }

    fn forward(&self, input: &Tensor, pass: &mut Pass<'_>) -> Result<Tensor> {
        let (networks, rows, width) = input.dims3()?;
        let Some(generators) = pass.generators() else { return Ok(input.clone()) };
        if generators.len() != networks {
            bail!("{networks} networks have {} generators", generators.len());
        }
        let mut mask = vec![0.0_f32; networks * rows * width];
        for (generator, mask) in generators.iter_mut().zip(mask.chunks_exact_mut(rows * width)) {
            self.0.mask(generator, mask).map_err(candle_core::Error::wrap)?;
        }
        input.mul(&Tensor::from_vec(mask, (networks, rows, width), &Device::Cpu)?)
    }
}

/// Modules one after the other. Parameters are named by the place of their module, such as `0.weight`.
#[derive(Debug, Default)]
pub struct Sequential {
    modules: Vec<Box<dyn Module>>,
}

impl Sequential {
    /// Makes one without modules, which returns its inputs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a module behind the others.
    ///
    /// ```
    /// use sheave_nn::{Activation, Dense, Dropout, Module, Sequential};
    ///
    /// let network = Sequential::new()
    ///     .with(Dense::new(64, 32)?)
    ///     .with(Activation::Relu)
    ///     .with(Dropout::new(0.1)?)
    ///     .with(Dense::new(32, 10)?);
    /// assert_eq!(network.width(64), Ok(10));
    /// assert_eq!(network.parameters()[2].name, "3.weight");
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    #[must_use]
    pub fn with(mut self, module: impl Module + 'static) -> Self {
        self.modules.push(Box::new(module));
        self
    }
}

impl Module for Sequential {
    fn parameters(&self) -> Vec<Parameter> {
        let mut all = Vec::new();
        for (place, module) in self.modules.iter().enumerate() {
            for Parameter { name, dimensions, start } in module.parameters() {
                all.push(Parameter { name: format!("{place}.{name}"), dimensions, start });
            }
        }
        all
    }

    fn buffers(&self) -> Vec<Buffer> {
        let mut all = Vec::new();
        for (place, module) in self.modules.iter().enumerate() {
            for Buffer { name, elements, start } in module.buffers() {
                all.push(Buffer { name: format!("{place}.{name}"), elements, start });
            }
        }
        all
    }

    fn width(&self, inputs: usize) -> std::result::Result<usize, String> {
        self.modules.iter().enumerate().try_fold(inputs, |width, (place, module)| {
            module.width(width).map_err(|what| format!("module {place}: {what}"))
        })
    }

    fn forward(&self, input: &Tensor, pass: &mut Pass<'_>) -> Result<Tensor> {
        self.modules.iter().try_fold(input.clone(), |input, module| module.forward(&input, pass))
    }
}

/// Returns a perceptron of these widths, from inputs to outputs, with rectifiers between its dense layers.
///
/// ```
/// use sheave_nn::{Layout, mlp};
/// assert_eq!(Layout::of(&mlp(&[64, 128, 128, 10])?).dimension(), 26_122);
/// # Ok::<(), sheave_base::Error>(())
/// ```
///
/// # Errors
/// `InvalidArgument` for fewer than two widths, or one of 0.
pub fn mlp(widths: &[usize]) -> sheave_base::Result<Sequential> {
    mlp_with(widths, Activation::Relu)
}

/// As [`mlp`], with another function between the dense layers.
///
/// # Errors
/// Those of [`mlp`].
pub fn mlp_with(widths: &[usize], activation: Activation) -> sheave_base::Result<Sequential> {
    if widths.len() < 2 {
        let what = format!("the number of widths is {}; expected two at least, of inputs and outputs", widths.len());
        return Err(Error::new(ErrorKind::InvalidArgument, what).operation("perceptron"));
    }
    let mut network = Sequential::new();
    for (place, pair) in widths.windows(2).enumerate() {
        if place > 0 {
            network = network.with(activation);
        }
        network = network.with(Dense::new(pair[0], pair[1])?);
    }
    Ok(network)
}

pub(crate) fn expect_width(who: &str, found: usize, expected: usize) -> std::result::Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("the width of {who}'s inputs is {found}; expected {expected}")) }
}
