//! What an optimizer remembers of one slot, and the steps that it takes there.
//!
//! The learning rate of a step follows from the number of steps that this slot has taken, so it does not depend on when
//! or where anybody counts. Master copies of 16-bit weights are made from the weights when they are first needed; they
//! end when the value is changed by anything but a step, because they would bring the old value back.

use half::{bf16, f16};
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

    /// The value was changed by something else than a step.
    pub(crate) fn forget_master(&mut self) {
        if let Self::Single(learned) = self {
            learned.master = None;
        }
    }
}

impl<W: Wide> Learned<W> {
    fn new(state: State<W>) -> Self {
        Self { state, master: None, halfway: None }
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
                let sums = rule.prepare(&mut self.state, &target, &gradient, start)?;
                self.halfway = Some(rule);
                Ok(Some(sums))
            }
            Extent::Whole | Extent::Slice(_) => rule.step_on(&mut self.state, &mut target, &gradient).map(|()| None),
        }
    }

    fn finish<T: Float<Wide = W> + Element>(&mut self, value: &mut Tensor, norms: &Norms) -> Result<()> {
        let rule = self.halfway.take();
        let rule = rule.ok_or_else(|| Error::new(ErrorKind::Internal, "norms for a step that nobody takes"))?;
        rule.finish(&self.state, &mut target(&mut self.master, value.as_mut_slice::<T>()?), norms)
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
