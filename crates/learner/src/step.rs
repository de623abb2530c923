//! Steps: how parameters follow reduced gradients.

use crate::model::{Model, Parameter, Tensors};
use crate::reducer::{Contribution, writable};
use half::{bf16, f16};
use sheave_base::{Error, ErrorKind, Result, contain};
use sheave_optim::{Float, Optimizer, Rule, State, Target, Wide, widen};
use sheave_tensor::{Arena, Dtype, Element, Tensor};

/// A step in the user's own code: it is given reduced gradients by the names of their parameters, and how many
/// gradients of learners are in them, and returns what is to be published, if there is something.
pub type Step = Box<dyn FnMut(Tensors, u64) -> Result<Option<Tensors>> + Send>;

/// A callback that is told the parameters and their version after each step. Tensors that it keeps are not written any
/// more: the next step is made in other memory then.
pub type Publish = Box<dyn FnMut(Tensors, u64) -> Result<()> + Send>;

/// What makes steps.
pub(crate) enum Stepper {
    Native(Box<Native>),
    User(Step),
}

impl Stepper {
    /// Makes the step behind `version`, and returns what is to be published.
    pub(crate) fn step(
        &mut self,
        model: &Model,
        gradient: &Contribution,
        version: u64,
        arena: &Arena,
    ) -> Result<Option<Tensors>> {
        match self {
            Self::Native(native) => {
                native.step(&gradient.segments, version, arena)?;
                native.parameters().map(Some)
            }
            Self::User(step) => {
                let (tensors, count) = (model.split(&gradient.segments)?, gradient.ids.len() as u64);
                contain::run(|| step(tensors, count)).map_err(|text| panicked("step", &text))?
            }
        }
    }
}

/// The user's code has panicked.
pub(crate) fn panicked(whose: &str, text: &str) -> Error {
    Error::new(ErrorKind::Remote, format!("the callback of {whose} panicked: {text}"))
}

/// Parameters, and an optimizer with what it remembers of them.
pub(crate) struct Native {
    optimizer: Optimizer,
    model: Model,
    segments: Vec<Tensor>,
    /// In the order of the parameters.
    memories: Vec<Memory>,
}

/// What an optimizer remembers of one parameter, and its master copy, if it has one.
enum Memory {
    Single(State<f32>, Option<Vec<f32>>),
    Double(State<f64>),
}

impl Native {
    pub(crate) fn new(optimizer: Optimizer, model: &Model, parameters: &Tensors, arena: &Arena) -> Result<Self> {
        optimizer.check()?;
        let segments = model.pack(parameters, arena)?;
        let has_master = optimizer.multi_precision;
        let memory = |(name, parameter): (&str, &Parameter)| {
            let (rule, elements) = (&optimizer.rule, parameter.elements);
            Ok(match parameter.dtype {
                Dtype::F64 => Memory::Double(rule.state(elements)),
                Dtype::F16 if has_master => {
                    Memory::Single(rule.state(elements), Some(widen(&parameters[name].as_slice::<f16>()?)))
                }
                Dtype::Bf16 if has_master => {
                    Memory::Single(rule.state(elements), Some(widen(&parameters[name].as_slice::<bf16>()?)))
                }
                _ => Memory::Single(rule.state(elements), None),
            })
        };
        let memories = model.parameters().map(memory).collect::<Result<_>>()?;
        Ok(Self { optimizer, model: model.clone(), segments, memories })
    }

    pub(crate) fn parameters(&self) -> Result<Tensors> {
        self.model.split(&self.segments)
    }

    /// The learning rate is that of the step behind `version`, whoever has made the steps before.
    fn step(&mut self, gradient: &[Tensor], version: u64, arena: &Arena) -> Result<()> {
        let rule = self.optimizer.at(version);
        for segment in &mut self.segments {
            *segment = writable(segment.clone(), arena)?;
        }
        for ((_, parameter), memory) in self.model.parameters().zip(&mut self.memories) {
            let (weights, gradient) = (&mut self.segments[parameter.segment], &gradient[parameter.segment]);
            match (memory, parameter.dtype) {
                (Memory::Double(state), Dtype::F64) => {
                    step_parameter::<f64>(&rule, state, None, (weights, gradient, parameter))?;
                }
                (Memory::Single(state, _), Dtype::F32) => {
                    step_parameter::<f32>(&rule, state, None, (weights, gradient, parameter))?;
                }
                (Memory::Single(state, master), Dtype::F16) => {
                    step_parameter::<f16>(&rule, state, master.as_deref_mut(), (weights, gradient, parameter))?;
                }
                (Memory::Single(state, master), Dtype::Bf16) => {
                    step_parameter::<bf16>(&rule, state, master.as_deref_mut(), (weights, gradient, parameter))?;
                }
                (_, dtype) => {
                    return Err(Error::new(ErrorKind::Internal, format!("no memory of an optimizer for {dtype}")));
                }
            }
        }
        Ok(())
    }
}

fn step_parameter<T: Float + Element>(
    rule: &Rule,
    state: &mut State<T::Wide>,
    master: Option<&mut [T::Wide]>,
    (weights, gradient, parameter): (&mut Tensor, &Tensor, &Parameter),
) -> Result<()>
where
    T::Wide: Wide,
{
    let range = parameter.first..parameter.first + parameter.elements;
    let gradient = gradient.as_slice::<T>()?;
    let weights = &mut weights.as_mut_slice::<T>()?[range.clone()];
    let mut target = match master {
        Some(master) => Target::with_master(master, weights),
        None => Target::new(weights),
    };
    rule.step_on(state, &mut target, &gradient[range])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reducer::GradientId;
    use sheave_base::NodeId;
    use sheave_optim::Decay;
    use sheave_tensor::ArenaConfig;

    fn tensors(a: &[f32], b: &[f64]) -> Tensors {
        let a = Tensor::from_slice(a, [a.len() as u64]).unwrap();
        let b = Tensor::from_slice(b, [b.len() as u64]).unwrap();
        [("a".to_owned(), a), ("b".to_owned(), b)].into()
    }

    fn contribution(model: &Model, gradient: &Tensors, arena: &Arena) -> Contribution {
        let id = GradientId { node: NodeId(1), client: 0, number: 1 };
        Contribution::new(model, id, gradient, arena).unwrap()
    }

    #[test]
    fn all_parameters_are_stepped_and_what_was_published_stays() {
        let arena = Arena::new(ArenaConfig::default());
        let (start, gradient) = (tensors(&[1.0, 2.0], &[3.0]), tensors(&[1.0, 1.0], &[0.5]));
        let model = Model::of(&start).unwrap();
        let decay = Decay::Step { every: 1, factor: 0.5, floor: 0.0 };
        let optimizer = Optimizer { schedule: decay.into(), ..Rule::sgd(1.0).into() };
        let native = Native::new(optimizer, &model, &start, &arena).unwrap();
        let mut stepper = Stepper::Native(Box::new(native));
        let gradient = contribution(&model, &gradient, &arena);
        let mut step = |version| stepper.step(&model, &gradient, version, &arena).unwrap().unwrap();
        let first = step(0);
        assert_eq!(first["a"].to_vec::<f32>().unwrap(), [0.0, 1.0]);
        let kept = step(1);
        assert_eq!(first["a"].to_vec::<f32>().unwrap(), [0.0, 1.0], "it was kept");
        assert_eq!(kept["b"].to_vec::<f64>().unwrap(), [2.25]);
        let place = kept["a"].ptr() as usize;
        drop((first, kept));
        assert_eq!(step(2)["a"].ptr() as usize, place, "in the same memory");
    }

    #[test]
    fn master_copies_keep_what_is_small() {
        let arena = Arena::new(ArenaConfig::default());
        let start = Tensors::from([("h".to_owned(), Tensor::from_slice(&[f16::ONE], [1]).unwrap())]);
        let model = Model::of(&start).unwrap();
        let optimizer = Optimizer { multi_precision: true, ..Rule::sgd(2.0_f64.powi(-13)).into() };
        let mut stepper = Stepper::Native(Box::new(Native::new(optimizer, &model, &start, &arena).unwrap()));
        let gradient = contribution(&model, &start, &arena);
        for version in 0..8 {
            stepper.step(&model, &gradient, version, &arena).unwrap();
        }
        let weights = stepper.step(&model, &gradient, 8, &arena).unwrap().unwrap();
        assert_eq!(weights["h"].to_vec::<f16>().unwrap(), [f16::from_f32(1.0 - 9.0 / 8192.0)]);
    }

    #[test]
    fn a_user_panics() {
        let arena = Arena::new(ArenaConfig::default());
        let gradient = tensors(&[1.0], &[1.0]);
        let model = Model::of(&gradient).unwrap();
        let mut stepper = Stepper::User(Box::new(|_, _| panic!("no luck")));
        let error = stepper.step(&model, &contribution(&model, &gradient, &arena), 0, &arena).unwrap_err();
        assert!(error.to_string().contains("step panicked: no luck"), "{error}");
    }
}
