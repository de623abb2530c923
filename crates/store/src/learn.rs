//! What an optimizer remembers of one slot, and the steps that it takes there.
//!
//! The learning rate of a step follows from the number of steps that this slot has taken, so it does not depend on when
//! or where anybody counts. Master copies of 16-bit weights are made from the weights when they are first needed; they
//! end when the value is changed by anything but a step, because they would bring the old value back.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind, Result};
use sheave_optim::{BlockSums, Float, Norms, Optimizer, Rule, State, Target, Wide, widen};
use sheave_tensor::{Dtype, Element, Tensor};

/// What a gradient is of.
#[derive(Clone, Copy)]
pub(crate) enum Extent {
    /// All of a tensor.
    Whole,
    /// A slice of a tensor that begins at this element.
    Slice(u64),
}

/// The rows of a gradient.
#[derive(Clone, Copy)]
pub(crate) struct Picked<'a> {
    pub(crate) row_elements: usize,
    /// Ascending.
    pub(crate) ids: &'a [u64],
}

/// Moments, and master copies where there are some; half floats are computed in single precision.
#[derive(Default)]
pub(crate) enum Memory {
    #[default]
    Nothing,
    Single(Learned<f32>),
    Double(Learned<f64>),
}

pub(crate) struct Learned<W: Wide> {
    pub(crate) state: State<W>,
    pub(crate) master: Option<Vec<W>>,
    /// The rule of a step that waits for the norms of the whole tensor.
    halfway: Option<Rule>,
    /// The state before that step: if another slice fails, this one must not be a step ahead of it. Its memory is kept
    /// for the next step.
    before: Option<State<W>>,
}

/// What an optimizer remembers of a slice, without the numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outline {
    /// None before the first step.
    pub(crate) steps: Option<u64>,
    /// The names of the moments.
    pub(crate) parts: Vec<String>,
    pub(crate) has_master: bool,
}

impl Memory {
    /// Takes a step. Of a slice, by a rule that needs norms, it is the first half of one: the sums go to whoever puts
    /// the norms together for [`Memory::finish`].
    pub(crate) fn step(
        &mut self,
        optimizer: &Optimizer,
        value: &mut Tensor,
        gradient: &Tensor,
        extent: Extent,
    ) -> Result<Option<BlockSums>> {
        self.prepare(optimizer, value)?;
        match (self, value.dtype()) {
            (Self::Single(learned), Dtype::F32) => learned.step::<f32>(optimizer, value, gradient, extent),
            (Self::Single(learned), Dtype::F16) => learned.step::<f16>(optimizer, value, gradient, extent),
            (Self::Single(learned), Dtype::Bf16) => learned.step::<bf16>(optimizer, value, gradient, extent),
            (Self::Double(learned), Dtype::F64) => learned.step::<f64>(optimizer, value, gradient, extent),
            (_, dtype) => Err(no_optimizer(dtype)),
        }
    }

    /// Takes a step of these rows alone: weights and moments of all others stay as they are, and steps are counted for
    /// the whole slot.
    pub(crate) fn step_rows(
        &mut self,
        optimizer: &Optimizer,
        value: &mut Tensor,
        gradient: &Tensor,
        rows: Picked<'_>,
    ) -> Result<()> {
        self.prepare(optimizer, value)?;
        match (self, value.dtype()) {
            (Self::Single(learned), Dtype::F32) => learned.step_rows::<f32>(optimizer, value, gradient, rows),
            (Self::Single(learned), Dtype::F16) => learned.step_rows::<f16>(optimizer, value, gradient, rows),
            (Self::Single(learned), Dtype::Bf16) => learned.step_rows::<bf16>(optimizer, value, gradient, rows),
            (Self::Double(learned), Dtype::F64) => learned.step_rows::<f64>(optimizer, value, gradient, rows),
            (_, dtype) => Err(no_optimizer(dtype)),
        }
    }

    /// Takes the second half of a step.
    pub(crate) fn finish(&mut self, value: &mut Tensor, norms: &Norms) -> Result<()> {
        match (self, value.dtype()) {
            (Self::Single(learned), Dtype::F32) => learned.finish::<f32>(value, norms),
            (Self::Single(learned), Dtype::F16) => learned.finish::<f16>(value, norms),
            (Self::Single(learned), Dtype::Bf16) => learned.finish::<bf16>(value, norms),
            (Self::Double(learned), Dtype::F64) => learned.finish::<f64>(value, norms),
            (_, dtype) => Err(no_optimizer(dtype)),
        }
    }

    /// Takes the first half of a step back, if one is taken.
    pub(crate) fn abandon(&mut self) {
        match self {
            Self::Nothing => {}
            Self::Single(learned) => learned.abandon(),
            Self::Double(learned) => learned.abandon(),
        }
    }

    /// Makes what the next step needs: moments where there are none that it can use, and master copies.
    fn prepare(&mut self, optimizer: &Optimizer, value: &Tensor) -> Result<()> {
        self.retain(&optimizer.rule);
        let elements = value.elements();
        if matches!(self, Self::Nothing) {
            *self = match value.dtype() {
                Dtype::F64 => Self::Double(Learned::new(optimizer.rule.state(elements))),
                Dtype::F32 | Dtype::F16 | Dtype::Bf16 => Self::Single(Learned::new(optimizer.rule.state(elements))),
                dtype => return Err(no_optimizer(dtype)),
            };
        }
        let Self::Single(learned) = self else { return Ok(()) };
        learned.master = match (optimizer.multi_precision, learned.master.take(), value.dtype()) {
            (true, None, Dtype::F16) => Some(widen(&value.as_slice::<f16>()?)),
            (true, None, Dtype::Bf16) => Some(widen(&value.as_slice::<bf16>()?)),
            (true, master, _) => master,
            (false, ..) => None,
        };
        Ok(())
    }

    /// Forgets what a rule cannot go on with. Other settings of the same rule can.
    pub(crate) fn retain(&mut self, rule: &Rule) {
        let is_of_use = match self {
            Self::Nothing => true,
            Self::Single(learned) => rule.accepts(&learned.state),
            Self::Double(learned) => rule.accepts(&learned.state),
        };
        if !is_of_use {
            *self = Self::Nothing;
        }
    }

    /// What there is to be saved.
    pub(crate) fn outline(&self) -> Outline {
        match self {
            Self::Nothing => Outline::default(),
            Self::Single(learned) => learned.outline(),
            Self::Double(learned) => learned.outline(),
        }
    }

    /// The moments, in the order of their names, and then the master copy.
    pub(crate) fn export(&self) -> Result<Vec<Tensor>> {
        match self {
            Self::Nothing => Ok(Vec::new()),
            Self::Single(learned) => learned.export(),
            Self::Double(learned) => learned.export(),
        }
    }

    /// What was exported, for a slice of so many elements under this rule.
    pub(crate) fn import(
        rule: &Rule,
        dtype: Dtype,
        elements: usize,
        outline: &Outline,
        tensors: &[Tensor],
    ) -> Result<Self> {
        match (outline.steps, dtype) {
            (None, _) => Ok(Self::Nothing),
            (Some(steps), Dtype::F64) => Ok(Self::Double(Learned::import(rule, elements, steps, outline, tensors)?)),
            (Some(steps), _) => Ok(Self::Single(Learned::import(rule, elements, steps, outline, tensors)?)),
        }
    }

    /// The value was changed by something else than a step.
    pub(crate) fn forget_master(&mut self) {
        if let Self::Single(learned) = self {
            learned.master = None;
        }
    }
}

impl<W: Wide + Element> Learned<W> {
    fn outline(&self) -> Outline {
        let parts = self.state.parts().into_iter().map(|(name, _)| name.to_owned()).collect();
        Outline { steps: Some(self.state.steps()), parts, has_master: self.master.is_some() }
    }

    fn export(&self) -> Result<Vec<Tensor>> {
        let parts = self.state.parts().into_iter().map(|(_, part)| part).chain(self.master.as_deref());
        parts.map(|part| Tensor::from_slice(part, [part.len() as u64])).collect()
    }

    fn import(rule: &Rule, elements: usize, steps: u64, outline: &Outline, tensors: &[Tensor]) -> Result<Self> {
        let mut values = tensors.iter().map(Tensor::to_vec::<W>);
        let mut next = || {
            values.next().unwrap_or_else(|| Err(Error::new(ErrorKind::Protocol, "a part of a state that did not come")))
        };
        let parts = outline.parts.iter().map(|name| Ok((name.clone(), next()?))).collect::<Result<Vec<_>>>()?;
        let master = if outline.has_master { Some(next()?) } else { None };
        let state = State::from_parts(rule, elements, steps, parts)?;
        if master.as_ref().is_some_and(|master| master.len() != elements) {
            return Err(Error::new(ErrorKind::Mismatch, "a master copy of another length"));
        }
        Ok(Self { state, master, halfway: None, before: None })
    }
}

impl<W: Wide> Learned<W> {
    fn new(state: State<W>) -> Self {
        Self { state, master: None, halfway: None, before: None }
    }

    fn abandon(&mut self) {
        if let (Some(_), Some(before)) = (self.halfway.take(), self.before.as_mut()) {
            std::mem::swap(&mut self.state, before);
        }
    }

    fn step<T: Float<Wide = W> + Element>(
        &mut self,
        optimizer: &Optimizer,
        value: &mut Tensor,
        gradient: &Tensor,
        extent: Extent,
    ) -> Result<Option<BlockSums>> {
        let rule = optimizer.at(self.state.steps());
        let gradient = gradient.as_slice::<T>()?;
        let mut target = target(&mut self.master, value.as_mut_slice::<T>()?);
        match extent {
            Extent::Slice(start) if rule.needs_norms() => {
                match &mut self.before {
                    Some(before) => before.clone_from(&self.state),
                    before => *before = Some(self.state.clone()),
                }
                // Before the moments move: a panic leaves them half way.
                self.halfway = Some(rule.clone());
                rule.prepare(&mut self.state, &target, &gradient, start).map(Some)
            }
            Extent::Whole | Extent::Slice(_) => rule.step_on(&mut self.state, &mut target, &gradient).map(|()| None),
        }
    }

    fn step_rows<T: Float<Wide = W> + Element>(
        &mut self,
        optimizer: &Optimizer,
        value: &mut Tensor,
        gradient: &Tensor,
        rows: Picked<'_>,
    ) -> Result<()> {
        let rule = optimizer.at(self.state.steps());
        let mut target = target(&mut self.master, value.as_mut_slice::<T>()?);
        rule.step_rows(&mut self.state, &mut target, rows.row_elements, rows.ids, &gradient.as_slice::<T>()?)
    }

    fn finish<T: Float<Wide = W> + Element>(&mut self, value: &mut Tensor, norms: &Norms) -> Result<()> {
        let rule = self.halfway.clone();
        let rule = rule.ok_or_else(|| Error::new(ErrorKind::Internal, "norms for a step that nobody takes"))?;
        rule.finish(&self.state, &mut target(&mut self.master, value.as_mut_slice::<T>()?), norms)?;
        self.halfway = None;
        Ok(())
    }
}

fn target<'a, T: Float>(master: &'a mut Option<Vec<T::Wide>>, weights: &'a mut [T]) -> Target<'a, T> {
    match master {
        Some(master) => Target::with_master(master, weights),
        None => Target::new(weights),
    }
}

fn no_optimizer(dtype: Dtype) -> Error {
    Error::new(ErrorKind::Unsupported, format!("no optimizer works on {dtype}"))
        .operation("push")
        .hint("keep the weights as floats")
}
