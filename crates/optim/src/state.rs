//! What a rule remembers of one slice.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind, Result};

use crate::{Rule, Wide};

/// Moments and the number of steps, of one slice of weights under one rule.
///
/// Made by [`Rule::state`](crate::Rule::state) or [`State::from_parts`], changed by the steps of a
/// [`Rule`](crate::Rule) alone. Its floats are of the type that steps are computed in: `f32` for `f32` and 16-bit
/// weights, `f64` for `f64`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct State<W = f32> {
    pub(crate) elements: usize,
    pub(crate) steps: u64,
    pub(crate) layout: Layout,
    /// One for each name of the layout, each with one value per element.
    pub(crate) parts: Vec<Vec<W>>,
}

impl<W: Clone> Clone for State<W> {
    fn clone(&self) -> Self {
        let Self { elements, steps, layout, ref parts } = *self;
        Self { elements, steps, layout, parts: parts.clone() }
    }

    /// Copies `source` into the memory that is there.
    fn clone_from(&mut self, source: &Self) {
        (self.elements, self.steps, self.layout) = (source.elements, source.steps, source.layout);
        self.parts.clone_from(&source.parts);
    }
}

/// What kind of rule a state belongs to. Two kinds may remember parts of the same names and mean different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Layout {
    /// SGD without momentum.
    Sgd,
    Momentum,
    Adam,
    AdamW,
    AdaGrad,
    RmsProp,
    RmsPropCentered,
    Lamb,
    Test,
}

impl Layout {
    pub(crate) fn names(self) -> &'static [&'static str] {
        match self {
            Self::Sgd | Self::Test => &[],
            Self::Momentum => &["momentum"],
            Self::Adam | Self::AdamW | Self::Lamb => &["mean", "variance"],
            Self::AdaGrad | Self::RmsProp => &["squares"],
            Self::RmsPropCentered => &["squares", "mean", "momentum"],
        }
    }
}

impl<W: Wide> State<W> {
    /// A state that was saved as its [`parts`](Self::parts), in any order.
    ///
    /// ```
    /// use sheave_optim::{Rule, State};
    ///
    /// let rule = Rule::adam(0.001);
    /// let (mut state, mut weights) = (rule.state(2), [1.0_f32, 2.0]);
    /// rule.step(&mut state, &mut weights, &[0.5, 0.25])?;
    /// let saved = state.parts().into_iter().map(|(name, part)| (name.to_owned(), part.to_vec())).collect();
    /// assert_eq!(State::from_parts(&rule, 2, state.steps(), saved)?, state);
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] when a part is missing, there twice, unknown to the rule or not of `elements` values.
    pub fn from_parts(rule: &Rule, elements: usize, steps: u64, parts: Vec<(String, Vec<W>)>) -> Result<Self> {
        let has = |layout: &&Layout| {
            let names = layout.names();
            names.len() == parts.len() && names.iter().all(|name| parts.iter().any(|(part, _)| part == name))
        };
        let Some(&layout) = rule.layouts().iter().find(has) else {
            let given: Vec<_> = parts.iter().map(|(name, _)| name.as_str()).collect();
            let wanted: Vec<_> = rule.layouts().iter().map(|layout| layout.names().join(", ")).collect();
            let what = format!(
                "the saved state has the parts [{}], and {} remembers [{}]",
                given.join(", "),
                rule.name(),
                wanted.join("] or [")
            );
            return Err(Error::new(ErrorKind::Mismatch, what).hint("load it with the rule that it was saved with"));
        };
        if let Some((name, part)) = parts.iter().find(|(_, part)| part.len() != elements) {
            let what = format!("the saved {name} has {} values for {elements} elements", part.len());
            return Err(Error::new(ErrorKind::Mismatch, what));
        }
        let place = |name: &str| layout.names().iter().position(|known| *known == name);
        let mut parts = parts;
        parts.sort_by_key(|(name, _)| place(name));
        Ok(Self { elements, steps, layout, parts: parts.into_iter().map(|(_, part)| part).collect() })
    }

    /// Steps taken so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Elements of the slice that this is the state of.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// The moments by name, each with one value per element.
    ///
    /// SGD has `momentum` (none without momentum); Adam, AdamW and LAMB have `mean` and `variance`; AdaGrad and RMSProp
    /// `squares`, and a centered RMSProp `mean` and `momentum` too.
    #[must_use]
    pub fn parts(&self) -> Vec<(&'static str, &[W])> {
        self.layout.names().iter().copied().zip(self.parts.iter().map(Vec::as_slice)).collect()
    }

    /// The state of the elements in a range, with as many steps: what a server keeps of the state of a whole tensor.
    /// Slices are joined by joining their parts.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when the range is not within the elements, [`ErrorKind::Mismatch`] for a damaged
    /// state.
    pub fn slice(&self, range: Range<usize>) -> Result<Self> {
        self.check()?;
        if range.start > range.end || range.end > self.elements {
            let what = format!("elements {} to {} of a state of {}", range.start, range.end, self.elements);
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let parts = self.parts.iter().map(|part| part[range.clone()].to_vec()).collect();
        Ok(Self { elements: range.len(), steps: self.steps, layout: self.layout, parts })
    }

    /// Refuses a state that was not read back as it was written.
    pub(crate) fn check(&self) -> Result<()> {
        let names = self.layout.names();
        if self.parts.len() == names.len() && self.parts.iter().all(|part| part.len() == self.elements) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Mismatch, "the state is damaged"))
    }
}
