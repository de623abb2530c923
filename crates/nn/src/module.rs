//! What a network is made of: parameters with names and shapes, and a way from inputs to outputs.

use std::fmt::Debug;
use std::ops::Range;

use candle_core::{Result, Tensor, bail};
use sheave_bayes::random::Generator;

/// How a parameter begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Start {
    /// All elements are zero.
    Zero,
    /// All elements are one.
    One,
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

/// Numbers of a module that are no parameters: no gradient moves them, but passes of a training do, such as a running
/// mean. They are part of a network's state, and have the same place in a flat vector of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// The name, such as `1.mean`.
    pub name: String,
    /// How many numbers there are.
    pub elements: usize,
    /// What all of them begin with.
    pub start: f32,
}

/// A part of a network, or a whole one. It holds no numbers: its parameters come with every pass.
///
/// **Shapes.** A pass takes several networks of one architecture through the module at once. Inputs and outputs are
/// `[networks, rows, width]`, a parameter of dimensions `[...]` is `[networks, ...]`. Networks never mix, so that each
/// of them gets the same numbers as by itself.
pub trait Module: Debug + Send + Sync {
    /// Returns the parameters, in the order in which [`forward`](Self::forward) takes them from the pass.
    fn parameters(&self) -> Vec<Parameter>;

    /// Returns the buffers, in the order in which [`forward`](Self::forward) takes them from the pass; none by default.
    fn buffers(&self) -> Vec<Buffer> {
        Vec::new()
    }

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

/// Whether a pass is one of a training, in which units are dropped, or not; and the networks' buffers, if they have
/// any.
#[derive(Debug, Default)]
pub enum Mode<'a> {
    /// No units are dropped, and nothing is random.
    #[default]
    Evaluate,
    /// Units are dropped. The masks of each network are drawn from a generator of its own.
    Train(&'a mut [Generator]),
    /// As [`Evaluate`](Self::Evaluate), with the buffers of each network, which stay what they are.
    EvaluateWith(&'a [Vec<f32>]),
    /// As [`Train`](Self::Train), but with buffers that stay what they are: dropout at predictions.
    DropWith {
        /// A generator for each network.
        generators: &'a mut [Generator],
        /// The buffers of each network.
        buffers: &'a [Vec<f32>],
    },
    /// A training, with the buffers of each network, which the pass moves.
    TrainWith {
        /// A generator for each network; none where no units shall be dropped.
        generators: &'a mut [Generator],
        /// The buffers of each network.
        buffers: &'a mut [Vec<f32>],
    },
    /// No units are dropped, but buffers are moved as in a training, all by this share of the way.
    Refresh {
        /// The buffers of each network.
        buffers: &'a mut [Vec<f32>],
        /// From above 0 to 1.
        share: f32,
    },
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
            Self::EvaluateWith(buffers) => {
                let (first, others) = buffers.split_at(networks);
                (Self::EvaluateWith(first), Self::EvaluateWith(others))
            }
            Self::DropWith { generators, buffers } => {
                let (first, others) = generators.split_at_mut(networks);
                let (of_first, of_others) = buffers.split_at(networks);
                (
                    Self::DropWith { generators: first, buffers: of_first },
                    Self::DropWith { generators: others, buffers: of_others },
                )
            }
            Self::TrainWith { generators, buffers } => {
                // All have a generator, or none has.
                let (first, others) = generators.split_at_mut(networks.min(generators.len()));
                let (of_first, of_others) = buffers.split_at_mut(networks);
                (
                    Self::TrainWith { generators: first, buffers: of_first },
                    Self::TrainWith { generators: others, buffers: of_others },
                )
            }
            Self::Refresh { buffers, share } => {
                let (first, others) = buffers.split_at_mut(networks);
                (Self::Refresh { buffers: first, share }, Self::Refresh { buffers: others, share })
            }
        }
    }

    /// The buffers, where there are any.
    pub(crate) fn buffers(&self) -> Option<&[Vec<f32>]> {
        match self {
            Self::Evaluate | Self::Train(_) => None,
            Self::EvaluateWith(buffers) | Self::DropWith { buffers, .. } => Some(buffers),
            Self::TrainWith { buffers, .. } | Self::Refresh { buffers, .. } => Some(buffers),
        }
    }

    /// How many generators there must be, and how many there are, where it matters.
    pub(crate) fn generators(&self, networks: usize) -> Option<(usize, usize)> {
        match self {
            Self::Train(generators) | Self::DropWith { generators, .. } => Some((networks, generators.len())),
            Self::TrainWith { generators, .. } if !generators.is_empty() => Some((networks, generators.len())),
            Self::Evaluate | Self::EvaluateWith(_) | Self::TrainWith { .. } | Self::Refresh { .. } => None,
        }
    }
}

/// The buffers of one module, of all networks of a pass.
#[derive(Debug)]
pub struct Buffers<'p, 'a> {
    mode: &'p mut Mode<'a>,
    range: Range<usize>,
}

impl Buffers<'_, '_> {
    /// Returns by which share of the way the pass moves them, where it is `own` for the module: none where they stay
    /// what they are.
    #[must_use]
    pub fn share(&self, own: f32) -> Option<f32> {
        match &self.mode {
            Mode::TrainWith { .. } => Some(own),
            Mode::Refresh { share, .. } => Some(*share),
            Mode::Evaluate | Mode::Train(_) | Mode::EvaluateWith(_) | Mode::DropWith { .. } => None,
        }
    }

    /// Returns those of a network.
    ///
    /// # Errors
    /// Where the pass has none.
    pub fn of(&self, network: usize) -> Result<&[f32]> {
        let buffers = self.mode.buffers().and_then(|buffers| buffers.get(network));
        buffers.and_then(|buffers| buffers.get(self.range.clone())).map_or_else(|| bail!("a pass without buffers"), Ok)
    }

    /// Returns those of a network to move them.
    ///
    /// # Errors
    /// Where the pass has none, or they stay what they are.
    pub fn of_mut(&mut self, network: usize) -> Result<&mut [f32]> {
        let buffers = match &mut self.mode {
            Mode::TrainWith { buffers, .. } | Mode::Refresh { buffers, .. } => buffers.get_mut(network),
            Mode::Evaluate | Mode::Train(_) | Mode::EvaluateWith(_) | Mode::DropWith { .. } => None,
        };
        let range = self.range.clone();
        buffers.and_then(|buffers| buffers.get_mut(range)).map_or_else(|| bail!("a pass without buffers to move"), Ok)
    }
}

/// One pass through a network: the parameters and buffers that its modules take, one after the other, and the mode.
#[derive(Debug)]
pub struct Pass<'a> {
    parameters: &'a [Tensor],
    taken: usize,
    taken_buffers: usize,
    mode: Mode<'a>,
    features: Option<Tensor>,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(parameters: &'a [Tensor], mode: Mode<'a>) -> Self {
        Self { parameters, taken: 0, taken_buffers: 0, mode, features: None }
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

    /// Takes the next buffers: so many elements of each network.
    pub fn buffers(&mut self, elements: usize) -> Buffers<'_, 'a> {
        let range = self.taken_buffers..self.taken_buffers + elements;
        self.taken_buffers = range.end;
        Buffers { mode: &mut self.mode, range }
    }

    /// Returns the generators of the networks in a training, one for each.
    pub fn generators(&mut self) -> Option<&mut [Generator]> {
        match &mut self.mode {
            Mode::Train(generators) | Mode::DropWith { generators, .. } => Some(generators),
            Mode::TrainWith { generators, .. } if !generators.is_empty() => Some(generators),
            Mode::Evaluate | Mode::EvaluateWith(_) | Mode::TrainWith { .. } | Mode::Refresh { .. } => None,
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
                Start::One => values.fill(1.0),
                Start::Uniform { bound } => {
                    values.fill_with(|| bound * (2.0 * generator.uniform() - 1.0) as f32);
                }
            }
        }
    }
}
