//! The messages of members.

use sheave_base::{Error, ErrorKind, Result};
use sheave_particle::{Behavior, Message};
use sheave_tensor::Tensor;
use sheave_wire::Value;

use crate::home::Seat;
use crate::member::{Draw, Member};

/// Makes the behaviour of a member. All messages are handled one at a time.
pub(crate) fn of(seat: Seat) -> Behavior {
    let behavior = Behavior::new(seat).on_blocking("parameters", |context, _| {
        let snapshot = context.state::<Seat>()?.snapshot()?;
        Ok(Message::of(Value::Int(snapshot.version().cast_signed())).tensor(snapshot.tensor().clone()))
    });
    let behavior = on(behavior, "step", |member, _| Ok(member.step()?.into()));
    let behavior = on(behavior, "train", |member, message| Ok(member.train(count(&message.value)?)?.into()));
    let behavior = on(behavior, "learning rate", |member, message| {
        member.set_learning_rate(number(&message.value)?)?;
        Ok(Message::default())
    });
    let behavior = on(behavior, "collect", |member, _| Ok(Value::Int(member.collect()?.cast_signed()).into()));
    let behavior = on(behavior, "set", |member, message| {
        member.set(&tensor(&message)?.as_slice::<f32>()?)?;
        Ok(Value::Int(member.version().cast_signed()).into())
    });
    let behavior = on(behavior, "follow", |member, message| {
        let loss = member.follow(&tensor(&message)?.as_slice::<f32>()?)?;
        let gradient = member.gradient();
        Ok(Message::of(loss).tensor(Tensor::from_slice(gradient, [gradient.len() as u64])?))
    });
    let behavior = on(behavior, "predict", |member, message| {
        let (samples, outputs) = member.predict(&tensor(&message)?.as_slice::<f32>()?, read_draw(&message.value)?)?;
        let samples = samples as u64;
        let shape = [samples, (outputs.len() as u64).checked_div(samples).unwrap_or(0)];
        Ok(Message::of(Value::Int(samples.cast_signed())).tensor(Tensor::from_slice(&outputs, shape)?))
    });
    let behavior = on(behavior, "fit curvature", |member, _| {
        let (prior_precision, log_evidence) = member.fit_curvature()?;
        Ok(Value::List(vec![prior_precision.into(), log_evidence.into()]).into())
    });
    on(behavior, "predict curved", |member, message| {
        let (values, variances) = member.predict_curved(&tensor(&message)?.as_slice::<f32>()?)?;
        let flat = |values: &[f64]| Tensor::from_slice(values, [values.len() as u64]);
        Ok(Message::default().tensor(flat(&values)?).tensor(flat(&variances)?))
    })
}

fn on(
    behavior: Behavior,
    name: &str,
    handle: impl Fn(&mut Member, Message) -> Result<Message> + Send + Sync + 'static,
) -> Behavior {
    behavior.on_blocking(name, move |context, message| context.state::<Seat>()?.act(|member| handle(member, message)))
}

/// What a member is told to predict with.
pub(crate) fn write_draw(draw: Draw) -> Value {
    let count = |samples: usize| Value::Int(samples as i64);
    Value::List(match draw {
        Draw::Own => vec!["own".into()],
        Draw::Chain => vec!["chain".into()],
        Draw::Dropout { samples } => vec!["dropout".into(), count(samples)],
        Draw::Swag { samples, scale } => vec!["swag".into(), count(samples), scale.into()],
    })
}

fn read_draw(value: &Value) -> Result<Draw> {
    let Value::List(items) = value else { return Err(refuse(value, "a list that says what to predict with")) };
    match &items[..] {
        [Value::Str(kind)] if kind == "own" => Ok(Draw::Own),
        [Value::Str(kind)] if kind == "chain" => Ok(Draw::Chain),
        [Value::Str(kind), samples] if kind == "dropout" => Ok(Draw::Dropout { samples: count(samples)? as usize }),
        [Value::Str(kind), samples, scale] if kind == "swag" => {
            Ok(Draw::Swag { samples: count(samples)? as usize, scale: number(scale)? })
        }
        _ => Err(refuse(value, "\"own\", \"chain\", \"dropout\" with a count, or \"swag\" with a count and a scale")),
    }
}

pub(crate) fn count(value: &Value) -> Result<u64> {
    match value {
        Value::Int(count) if *count >= 0 => Ok(count.unsigned_abs()),
        _ => Err(refuse(value, "a whole number that is not negative")),
    }
}

pub(crate) fn number(value: &Value) -> Result<f64> {
    match value {
        Value::Float(number) => Ok(*number),
        _ => Err(refuse(value, "a float")),
    }
}

/// The first tensor of a message.
pub(crate) fn tensor(message: &Message) -> Result<&Tensor> {
    nth_tensor(message, 0)
}

pub(crate) fn nth_tensor(message: &Message, place: usize) -> Result<&Tensor> {
    message.tensors.get(place).ok_or_else(|| {
        let what = format!("the number of tensors is {}; expected {} or more", message.tensors.len(), place + 1);
        Error::new(ErrorKind::Mismatch, what)
    })
}

fn refuse(value: &Value, expected: &str) -> Error {
    Error::new(ErrorKind::Mismatch, format!("a {}; expected {expected}", value.kind_name()))
}
