//! What a network is made of: parameters with names and shapes, and a way from inputs to outputs.

use std::fmt::Debug;

use candle_core::{Result, Tensor, bail};
use sheave_bayes::random::Generator;

/// How a parameter begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Start {
    /// All elements are zero.
    Zero,
    /// Each element is uniform from `-bound` to `bound`.
    Uniform {
        /// The bound, above zero.
        bound: f32,
    },
}

/// A parameter of a module: its name, its dimensions, and how it begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The name, such as `0.weight`.
    pub name: String,
    /// The dimensions. Weights are inputs by outputs.
    pub dimensions: Vec<usize>,
    /// How it begins.
    pub start: Start,
}

impl Parameter {
    /// Returns how many elements it has.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.dimensions.iter().product()
    }
}

/// A part of a network, or a whole one. It holds no numbers: its parameters come with every pass.
///
/// **Shapes.** A pass takes several networks of one architecture through the module at once. Inputs and outputs are
/// `[networks, rows, width]`, a parameter of dimensions `[...]` is `[networks, ...]`. Networks never mix, so that each
/// of them gets the same numbers as by itself.
pub trait Module: Debug + Send + Sync {
    /// Returns the parameters, in the order in which [`forward`](Self::forward) takes them from the pass.
    fn parameters(&self) -> Vec<Parameter>;

    /// Returns the width of the outputs for inputs of a width.
    ///
    /// # Errors
    /// A text that says which width was expected.
    fn width(&self, inputs: usize) -> std::result::Result<usize, String>;

    /// Computes the outputs.
    ///
    /// # Errors
    /// Those of candle.
    fn forward(&self, input: &Tensor, pass: &mut Pass<'_>) -> Result<Tensor>;
}

/// Whether a pass is one of a training, in which units are dropped, or not.
#[derive(Debug, Default)]
pub enum Mode<'a> {
    /// No units are dropped, and nothing is random.
    #[default]
    Evaluate,
    /// Units are dropped. The masks of each network are drawn from a generator of its own.
    Train(&'a mut [Generator]),
}

impl<'a> Mode<'a> {
    /// Returns the mode of a training of one network.
    #[must_use]
    pub fn train(generator: &'a mut Generator) -> Self {
        Self::Train(std::slice::from_mut(generator))
    }

    /// Cuts the mode of several networks into that of the first ones and that of the others.
    pub(crate) fn split(self, networks: usize) -> (Self, Self) {
        match self {
            Self::Evaluate => (Self::Evaluate, Self::Evaluate),
            Self::Train(generators) => {
                let (first, others) = generators.split_at_mut(networks);
                (Self::Train(first), Self::Train(others))
            }
        }
    }
}

/// One pass through a network: the parameters that its modules take, one after the other, and the mode.
#[derive(Debug)]
pub struct Pass<'a> {
    parameters: &'a [Tensor],
    taken: usize,
    mode: Mode<'a>,
    features: Option<Tensor>,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(parameters: &'a [Tensor], mode: Mode<'a>) -> Self {
        Self { parameters, taken: 0, mode, features: None }
    }

    /// Takes the next parameter: `[networks, ...]`.
    ///
    /// # Errors
    /// Where there is none left: a module takes as many as it says it has.
    pub fn parameter(&mut self) -> Result<&'a Tensor> {
        let Some(parameter) = self.parameters.get(self.taken) else {
            bail!("a module takes more than the {} parameters of its network", self.parameters.len())
        };
        self.taken += 1;
        Ok(parameter)
    }

    /// Returns the generators of the networks in a training, one for each.
    pub fn generators(&mut self) -> Option<&mut [Generator]> {
        match &mut self.mode {
            Mode::Evaluate => None,
            Mode::Train(generators) => Some(generators),
        }
    }

    /// Notes what a dense layer was given; that of the last one is kept.
    pub(crate) fn note_features(&mut self, input: &Tensor) {
        self.features = Some(input.clone());
    }

    /// What the last dense layer was given.
    pub(crate) fn into_features(self) -> Option<Tensor> {
        self.features
    }
}

/// Where each parameter is in a flat vector.
///
/// ```
/// use sheave_nn::{Layout, mlp};
///
/// let layout = Layout::of(&mlp(&[2, 3, 1])?);
/// let names: Vec<_> = layout.entries().iter().map(|entry| (entry.parameter.name.as_str(), entry.offset)).collect();
/// assert_eq!(names, [("0.weight", 0), ("0.bias", 6), ("2.weight", 9), ("2.bias", 12)]);
/// assert_eq!(layout.dimension(), 13);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    entries: Vec<LayoutEntry>,
    dimension: usize,
}

/// A parameter and its place in the flat vector.
#[derive(Clone, Debug, PartialEq)]
pub struct LayoutEntry {
    /// The parameter.
    pub parameter: Parameter,
    /// The index of its first element. The others follow, row by row.
    pub offset: usize,
}

impl Layout {
    /// Lays the parameters of a module one behind the other.
    #[must_use]
    pub fn of(module: &dyn Module) -> Self {
        let mut dimension = 0;
        let place = |parameter: Parameter| {
            let offset = dimension;
            dimension += parameter.elements();
            LayoutEntry { parameter, offset }
        };
        let entries = module.parameters().into_iter().map(place).collect();
        Self { entries, dimension }
    }

    /// Returns the parameters in their order.
    #[must_use]
    pub fn entries(&self) -> &[LayoutEntry] {
        &self.entries
    }

    /// Returns the number of elements of the flat vector.
    #[must_use]
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// Fills a flat vector with fresh parameters. Every bit of them is determined by the state of the generator: they
    /// are scaled by operations that round alike everywhere.
    pub(crate) fn start(&self, generator: &mut Generator, parameters: &mut [f32]) {
        for entry in &self.entries {
            let values = &mut parameters[entry.offset..entry.offset + entry.parameter.elements()];
            match entry.parameter.start {
                Start::Zero => values.fill(0.0),
                Start::Uniform { bound } => {
                    values.fill_with(|| bound * (2.0 * generator.uniform() - 1.0) as f32);
                }
            }
        }
    }
}
