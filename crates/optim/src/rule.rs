//! How weights follow gradients: one of the rules, and the steps that it takes.

use std::iter;

use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind, Result};

use crate::norms::{BlockSums, Norms};
use crate::pass::{Run, drive};
use crate::rules::{
    AdaGrad, AdaGradStep, Adam, AdamStep, AdamW, AdamWStep, CenteredStep, Heavy, Lamb, Nesterov, Plain, RmsProp,
    RmsPropStep, Sgd, Test, TestStep,
};
use crate::settings::Settings;
use crate::state::{Layout, State};
use crate::target::Target;
use crate::{Float, Wide};

const STEP: &str = "optimizer step";

/// An optimizer and its settings.
///
/// Settings may change between the steps of a state; [`accepts`](Self::accepts) says where a new state is needed.
///
/// ```
/// use sheave_optim::{Rule, Sgd};
///
/// let rule = Rule::Sgd(Sgd { momentum: 0.5, ..Sgd::default() });
/// let mut weights = [1.0_f32, 2.0];
/// let mut state = rule.state(weights.len());
/// rule.step(&mut state, &mut weights, &[100.0, -100.0])?;
/// rule.step(&mut state, &mut weights, &[0.0, 0.0])?;
/// assert_eq!(weights, [-0.5, 3.5]);
/// assert_eq!(state.parts(), [("momentum", &[-0.5, 0.5][..])]);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Rule {
    /// Stochastic gradient descent, with momentum or Nesterov's.
    Sgd(Sgd),
    /// Adam.
    Adam(Adam),
    /// Adam with decoupled weight decay.
    AdamW(AdamW),
    /// AdaGrad.
    AdaGrad(AdaGrad),
    /// RMSProp.
    RmsProp(RmsProp),
    /// LAMB, which needs norms of whole tensors.
    Lamb(Lamb),
    /// The `test` optimizer of MXNet.
    Test(Test),
}

impl Rule {
    /// SGD without momentum, everything else by default.
    #[must_use]
    pub fn sgd(learning_rate: f64) -> Self {
        Self::Sgd(Sgd { learning_rate, ..Sgd::default() })
    }

    /// Adam, everything else by default.
    #[must_use]
    pub fn adam(learning_rate: f64) -> Self {
        Self::Adam(Adam { learning_rate, ..Adam::default() })
    }

    fn settings(&self) -> &dyn Settings {
        match self {
            Self::Sgd(rule) => rule,
            Self::Adam(rule) => rule,
            Self::AdamW(rule) => rule,
            Self::AdaGrad(rule) => rule,
            Self::RmsProp(rule) => rule,
            Self::Lamb(rule) => rule,
            Self::Test(rule) => rule,
        }
    }

    fn learning_rate_mut(&mut self) -> Option<&mut f64> {
        match self {
            Self::Sgd(rule) => Some(&mut rule.learning_rate),
            Self::Adam(rule) => Some(&mut rule.learning_rate),
            Self::AdamW(rule) => Some(&mut rule.learning_rate),
            Self::AdaGrad(rule) => Some(&mut rule.learning_rate),
            Self::RmsProp(rule) => Some(&mut rule.learning_rate),
            Self::Lamb(rule) => Some(&mut rule.learning_rate),
            Self::Test(_) => None,
        }
    }

    pub(crate) fn layouts(&self) -> &'static [Layout] {
        self.settings().layouts()
    }

    /// As MXNet and PyTorch call it: `sgd`, `adam`, `adamw`, `adagrad`, `rmsprop`, `lamb`, `test`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.settings().name()
    }

    /// The learning rate; 1 for [`Test`], which has none.
    #[must_use]
    pub fn learning_rate(&self) -> f64 {
        self.settings().learning_rate()
    }

    /// Changes the learning rate, which keeps states usable; changes nothing in [`Test`], which has none.
    pub fn set_learning_rate(&mut self, learning_rate: f64) {
        if let Some(place) = self.learning_rate_mut() {
            *place = learning_rate;
        }
    }

    /// Whether a step needs norms of the whole tensor, so that slices must be stepped by [`prepare`](Self::prepare) and
    /// [`finish`](Self::finish).
    #[must_use]
    pub fn needs_norms(&self) -> bool {
        matches!(self, Self::Lamb(_))
    }

    /// Whether the settings have a meaning.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a setting that is not a number or too large for an `f32`, a negative learning
    /// rate, weight decay or bound, a momentum, decay or beta outside 0 to below 1, an epsilon or a clip that is not
    /// above zero, a lower bound above the upper one.
    pub fn check(&self) -> Result<()> {
        self.settings().check()
    }

    /// The state of a slice of so many elements before its first step.
    #[must_use]
    pub fn state<W: Wide>(&self, elements: usize) -> State<W> {
        let layout = self.layouts()[0];
        let parts = layout.names().iter().map(|_| vec![W::default(); elements]).collect();
        State { elements, steps: 0, layout, parts }
    }

    /// Whether a state can be stepped by this rule, whatever settings it was stepped with before: not one of another
    /// kind of rule, not one without momentum where there is some now, not a centered one where that has changed.
    #[must_use]
    pub fn accepts<W: Wide>(&self, state: &State<W>) -> bool {
        self.layouts().contains(&state.layout)
    }

    /// Moves the weights one step along a gradient, which is usually the sum of the workers'. Does not block; neither
    /// weights nor state change when it fails. What is not a number in the gradient is not one in the weight after.
    ///
    /// A rule that [needs norms](Self::needs_norms) takes the weights for a whole tensor.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] when weights, gradient and state are not of one length, or the rule does not
    /// [accept](Self::accepts) the state; else those of [`check`](Self::check).
    pub fn step<T: Float>(&self, state: &mut State<T::Wide>, weights: &mut [T], gradient: &[T]) -> Result<()> {
        self.step_on(state, &mut Target::new(weights), gradient)
    }

    /// [`step`](Self::step) of weights that may have a master copy, along a gradient that may be of another float type
    /// that is computed in the same one.
    ///
    /// # Errors
    /// Those of [`step`](Self::step); [`ErrorKind::Mismatch`] for a master copy of another length.
    pub fn step_on<T, G>(&self, state: &mut State<T::Wide>, target: &mut Target<'_, T>, gradient: &[G]) -> Result<()>
    where
        T: Float,
        G: Float<Wide = T::Wide>,
    {
        if self.needs_norms() {
            let norms = Norms::combine([self.prepare(state, target, gradient, 0)?])?;
            return self.finish(state, target, &norms);
        }
        self.fit(state, target, gradient.len(), target.elements())?;
        let run = Run { start: 0, gradient_start: 0, length: gradient.len() };
        self.run(state, target, gradient, iter::once(run))
    }

    /// [`step_on`](Self::step_on) for some rows of a matrix alone, with a gradient of one row for each: the weights and
    /// moments of all others stay as they are. This is MXNet's lazy update: what decays does not decay in a row without
    /// a gradient, and the number of steps is that of the whole state.
    ///
    /// `rows` are indices of rows of `row_elements`, each larger than the last.
    ///
    /// ```
    /// use sheave_optim::{Rule, Target};
    ///
    /// let rule = Rule::sgd(1.0);
    /// let mut weights = [0.0_f32; 6];
    /// rule.step_rows(&mut rule.state(6), &mut Target::new(&mut weights), 2, &[0, 2], &[1.0_f32, 2.0, 3.0, 4.0])?;
    /// assert_eq!(weights, [-1.0, -2.0, 0.0, 0.0, -3.0, -4.0]);
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`step_on`](Self::step_on); [`ErrorKind::InvalidArgument`] for rows that are not in order, not unique
    /// or beyond the last, or elements that make no whole rows; [`ErrorKind::Unsupported`] for a rule that
    /// [needs norms](Self::needs_norms).
    pub fn step_rows<T, G>(
        &self,
        state: &mut State<T::Wide>,
        target: &mut Target<'_, T>,
        row_elements: usize,
        rows: &[u64],
        gradient: &[G],
    ) -> Result<()>
    where
        T: Float,
        G: Float<Wide = T::Wide>,
    {
        if self.needs_norms() {
            let what = format!("{} cannot step single rows: it needs the norm of the whole tensor", self.name());
            return Err(Error::new(ErrorKind::Unsupported, what)
                .operation(STEP)
                .hint("use adamw for sparse gradients, or push dense ones"));
        }
        check_rows(target.elements(), row_elements, rows)?;
        self.fit(state, target, gradient.len(), rows.len() * row_elements)?;
        let runs = rows.iter().enumerate().map(|(place, &row)| Run {
            start: row as usize * row_elements,
            gradient_start: place * row_elements,
            length: row_elements,
        });
        self.run(state, target, gradient, runs)
    }

    /// The first half of a step of a slice of a tensor, for a rule that [needs norms](Self::needs_norms): moves the
    /// moments and counts the step, and returns sums of squares of the slice's weights and of their direction.
    /// `first_element` is where the slice begins in the whole tensor.
    ///
    /// ```
    /// use sheave_optim::{BLOCK_ELEMENTS, Lamb, Norms, Rule, Target};
    ///
    /// let rule = Rule::Lamb(Lamb::default());
    /// let (mut whole, gradient) = (vec![0.5_f32; 10_000], vec![0.25_f32; 10_000]);
    /// let mut weights = whole.clone();
    /// rule.step(&mut rule.state(10_000), &mut whole, &gradient)?;
    ///
    /// // Two servers, cut between blocks: the same bits.
    /// let (head, tail) = weights.split_at_mut(2 * BLOCK_ELEMENTS);
    /// let (mut head, mut tail) = (Target::new(head), Target::new(tail));
    /// let (mut one, mut other) = (rule.state(head.elements()), rule.state(tail.elements()));
    /// let sums = [
    ///     rule.prepare(&mut one, &head, &gradient[..2 * BLOCK_ELEMENTS], 0)?,
    ///     rule.prepare(&mut other, &tail, &gradient[2 * BLOCK_ELEMENTS..], 2 * BLOCK_ELEMENTS as u64)?,
    /// ];
    /// let norms = Norms::combine(&sums)?;
    /// rule.finish(&one, &mut head, &norms)?;
    /// rule.finish(&other, &mut tail, &norms)?;
    /// assert_eq!(weights, whole);
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`step_on`](Self::step_on); [`ErrorKind::Unsupported`] for a rule that needs no norms. Nothing changes
    /// then.
    pub fn prepare<T, G>(
        &self,
        state: &mut State<T::Wide>,
        target: &Target<'_, T>,
        gradient: &[G],
        first_element: u64,
    ) -> Result<BlockSums>
    where
        T: Float,
        G: Float<Wide = T::Wide>,
    {
        let lamb = self.lamb()?;
        self.fit(state, target, gradient.len(), target.elements())?;
        if first_element.checked_add(target.elements() as u64).is_none() {
            let what = format!("a slice of {} elements cannot begin at {first_element}", target.elements());
            return Err(Error::new(ErrorKind::InvalidArgument, what).operation(STEP));
        }
        Ok(lamb.prepare(state, target, gradient, first_element))
    }

    /// The second half of a step: moves the weights, which must be those that [`prepare`](Self::prepare) saw, and the
    /// settings those that it had. A state that is prepared and never finished has moments that are one step ahead.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] for norms of another step; else those of [`prepare`](Self::prepare). Nothing changes
    /// then.
    pub fn finish<T: Float>(&self, state: &State<T::Wide>, target: &mut Target<'_, T>, norms: &Norms) -> Result<()> {
        let lamb = self.lamb()?;
        self.fit(state, target, target.elements(), target.elements())?;
        if norms.steps() != state.steps || state.steps == 0 {
            let what = format!("norms of step {} do not fit a state at step {}", norms.steps(), state.steps);
            return Err(Error::new(ErrorKind::Mismatch, what).operation(STEP));
        }
        lamb.finish(state, target, norms)
    }

    fn lamb(&self) -> Result<&Lamb> {
        let Self::Lamb(lamb) = self else {
            let what = format!("{} has no halves of a step: it needs no norms", self.name());
            return Err(Error::new(ErrorKind::Unsupported, what).operation(STEP).hint("use `Rule::step`"));
        };
        Ok(lamb)
    }

    /// Refuses settings without a meaning, and what does not fit together. The gradient has `given` elements and should
    /// have `wanted`.
    fn fit<T: Float>(&self, state: &State<T::Wide>, target: &Target<'_, T>, given: usize, wanted: usize) -> Result<()> {
        self.check()?;
        if given != wanted || target.elements() != state.elements {
            let what = format!(
                "{} weights, a gradient of {given} and a state of {} elements do not fit",
                target.elements(),
                state.elements
            );
            return Err(Error::new(ErrorKind::Mismatch, what).operation(STEP));
        }
        target.check().and_then(|()| state.check()).map_err(|error| error.operation(STEP))?;
        if self.accepts(state) {
            return Ok(());
        }
        let what = format!("the state was made by another kind of rule than {}", self.name());
        Err(Error::new(ErrorKind::Mismatch, what).operation(STEP).hint("make a new state with `Rule::state`"))
    }

    /// Steps all runs; everything fits.
    fn run<T, G>(
        &self,
        state: &mut State<T::Wide>,
        target: &mut Target<'_, T>,
        gradient: &[G],
        runs: impl Iterator<Item = Run>,
    ) -> Result<()>
    where
        T: Float,
        G: Float<Wide = T::Wide>,
    {
        let steps = state.steps.saturating_add(1);
        let parts = &mut state.parts[..];
        match self {
            Self::Sgd(rule) if parts.is_empty() => drive(Plain::new(rule), parts, target, gradient, runs),
            Self::Sgd(rule) if rule.nesterov => drive(Nesterov::new(rule), parts, target, gradient, runs),
            Self::Sgd(rule) => drive(Heavy::new(rule), parts, target, gradient, runs),
            Self::Adam(rule) => drive(AdamStep::new(rule, steps), parts, target, gradient, runs),
            Self::AdamW(rule) => drive(AdamWStep::new(rule, steps), parts, target, gradient, runs),
            Self::AdaGrad(rule) => drive(AdaGradStep::new(rule), parts, target, gradient, runs),
            Self::RmsProp(rule) if rule.centered => drive(CenteredStep::new(rule), parts, target, gradient, runs),
            Self::RmsProp(rule) => drive(RmsPropStep::new(rule), parts, target, gradient, runs),
            Self::Test(rule) => drive(TestStep::new(rule), parts, target, gradient, runs),
            Self::Lamb(_) => {
                return Err(Error::new(ErrorKind::Internal, "lamb has no formula of one element").operation(STEP));
            }
        }
        state.steps = steps;
        Ok(())
    }
}

fn check_rows(elements: usize, row_elements: usize, rows: &[u64]) -> Result<()> {
    let refuse = |what: String| Err(Error::new(ErrorKind::InvalidArgument, what).operation(STEP));
    if row_elements == 0 || !elements.is_multiple_of(row_elements) {
        return refuse(format!("{elements} elements do not make whole rows of {row_elements}"));
    }
    let count = (elements / row_elements) as u64;
    if let Some(pair) = rows.windows(2).find(|pair| pair[0] >= pair[1]) {
        return refuse(format!("row {} is followed by row {}: rows must be in order and unique", pair[0], pair[1]));
    }
    match rows.last() {
        Some(&last) if last >= count => refuse(format!("there is no row {last} of {count}")),
        _ => Ok(()),
    }
}
