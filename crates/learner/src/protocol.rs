//! What clients, secondaries and the primary say to each other.
//!
//! | from | to | method | contents |
//! |---|---|---|---|
//! | client | primary | `hello` | the client's number on its node; the answer has the model |
//! | client | primary | `bye` | the client's number: one-way |
//! | client | secondary | `push` | [`Push`], and the segments of a gradient; answered when it is taken |
//! | client | secondary | `flush` | nothing; answered when the primary has all that was taken before |
//! | client | primary | `step` | nothing; answered with the version when all that was there is applied |
//! | client | primary | `settle` | [`Settle`]; the answer has an [`Outcome`] for each question |
//! | secondary | primary | `forward` | [`Forward`], and the segments of a sum; the answer has the primary's start |
//! | primary | secondary | `look` | nothing: the primary has failed or was stopped; answered when it was asked why |
//! | secondary | primary | `state` | nothing; answered with the version, or with what has stopped the primary |

use crate::reducer::GradientId;
use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_wire::Value;
use std::time::Duration;

pub(crate) const HELLO: &str = "hello";
pub(crate) const BYE: &str = "bye";
pub(crate) const PUSH: &str = "push";
pub(crate) const FLUSH: &str = "flush";
pub(crate) const STEP: &str = "step";
pub(crate) const SETTLE: &str = "settle";
pub(crate) const FORWARD: &str = "forward";
pub(crate) const LOOK: &str = "look";
pub(crate) const STATE: &str = "state";

/// How long a secondary may take to ask the primary why it has ended.
pub(crate) const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

/// What became of a gradient, as the primary knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is with its secondary, or on its way.
    Pending = 0,
    /// The primary has it.
    Queued = 1,
    /// It is in the parameters.
    Applied = 2,
    /// A full queue has dropped it, or a server that was stopped.
    Dropped = 3,
    /// It has died with its secondary.
    Lost = 4,
}

impl Outcome {
    const ALL: [Self; 5] = [Self::Pending, Self::Queued, Self::Applied, Self::Dropped, Self::Lost];

    pub(crate) fn to_value(outcomes: &[Self]) -> Value {
        Value::Bytes(outcomes.iter().map(|outcome| *outcome as u8).collect())
    }

    pub(crate) fn read(value: Value) -> Result<Vec<Self>> {
        let Value::Bytes(codes) = value else { return Err(unreadable()) };
        codes.iter().map(|code| Self::ALL.get(usize::from(*code)).copied().ok_or_else(unreadable)).collect()
    }
}

/// A question for a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) number: u64,
    /// The secondary that it went to, if that is gone.
    pub(crate) gone: Option<NodeId>,
    /// That had answered that it has it.
    pub(crate) was_taken: bool,
}

/// A client's questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settle {
    pub(crate) client: u32,
    /// Of gradients below this number it knows what became of them.
    pub(crate) floor: u64,
    pub(crate) asked: Vec<Asked>,
}

impl Settle {
    pub(crate) fn to_value(&self) -> Value {
        let question = |asked: &Asked| {
            let gone = asked.gone.map_or(Value::None, |node| wide(node.0));
            [wide(asked.number), gone, Value::Bool(asked.was_taken)]
        };
        let asked = self.asked.iter().flat_map(question).collect();
        Value::List(vec![Value::Int(self.client.into()), wide(self.floor), Value::List(asked)])
    }

    pub(crate) fn read(value: Value) -> Result<Self> {
        let [client, floor, asked] = listed(value)?;
        let Value::List(items) = asked else { return Err(unreadable()) };
        let question = |item: &[Value]| {
            let [asked, gone, was_taken] = item else { return Err(unreadable()) };
            let gone = match gone {
                Value::None => None,
                node => Some(NodeId(number(node)?)),
            };
            let Value::Bool(was_taken) = *was_taken else { return Err(unreadable()) };
            Ok(Asked { number: number(asked)?, gone, was_taken })
        };
        let asked = items.chunks(3).map(question).collect::<Result<_>>()?;
        Ok(Self { client: short(&client)?, floor: number(&floor)?, asked })
    }
}

/// A gradient on its way, beside its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Push {
    pub(crate) client: u32,
    pub(crate) number: u64,
    pub(crate) fingerprint: u64,
    /// For how long its client waits for room.
    pub(crate) patience: Option<Duration>,
}

impl Push {
    pub(crate) fn to_value(self) -> Value {
        let nanoseconds = |span: Duration| wide(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
        let patience = self.patience.map_or(Value::None, nanoseconds);
        Value::List(vec![Value::Int(self.client.into()), wide(self.number), wide(self.fingerprint), patience])
    }

    pub(crate) fn read(value: Value) -> Result<Self> {
        let [client, pushed, fingerprint, patience] = listed(value)?;
        let patience = match patience {
            Value::None => None,
            nanoseconds => Some(Duration::from_nanos(number(&nanoseconds)?)),
        };
        let (client, pushed) = (short(&client)?, number(&pushed)?);
        Ok(Self { client, number: pushed, fingerprint: number(&fingerprint)?, patience })
    }
}

/// A sum on its way, beside its segments; or nothing but what was dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Forward {
    /// Which start of the primary this is for; none before the first answer.
    pub(crate) started: Option<u64>,
    pub(crate) fingerprint: u64,
    /// Those in the sum.
    pub(crate) ids: Vec<GradientId>,
    /// Those that will be in none.
    pub(crate) dropped: Vec<GradientId>,
}

impl Forward {
    pub(crate) fn to_value(&self) -> Value {
        let started = self.started.map_or(Value::None, wide);
        Value::List(vec![started, wide(self.fingerprint), ids_to_value(&self.ids), ids_to_value(&self.dropped)])
    }

    pub(crate) fn read(value: Value) -> Result<Self> {
        let [started, fingerprint, ids, dropped] = listed(value)?;
        let started = match started {
            Value::None => None,
            started => Some(number(&started)?),
        };
        Ok(Self { started, fingerprint: number(&fingerprint)?, ids: read_ids(ids)?, dropped: read_ids(dropped)? })
    }
}

fn ids_to_value(ids: &[GradientId]) -> Value {
    let flat = |id: &GradientId| [wide(id.node.0), Value::Int(id.client.into()), wide(id.number)];
    Value::List(ids.iter().flat_map(flat).collect())
}

fn read_ids(value: Value) -> Result<Vec<GradientId>> {
    let Value::List(items) = value else { return Err(unreadable()) };
    let id = |item: &[Value]| match item {
        [node, client, pushed] => {
            Ok(GradientId { node: NodeId(number(node)?), client: short(client)?, number: number(pushed)? })
        }
        _ => Err(unreadable()),
    };
    items.chunks(3).map(id).collect()
}

fn listed<const COUNT: usize>(value: Value) -> Result<[Value; COUNT]> {
    let Value::List(items) = value else { return Err(unreadable()) };
    items.try_into().map_err(|_| unreadable())
}

pub(crate) fn wide(number: u64) -> Value {
    Value::Int(number.cast_signed())
}

pub(crate) fn number(value: &Value) -> Result<u64> {
    match value {
        Value::Int(number) => Ok(number.cast_unsigned()),
        _ => Err(unreadable()),
    }
}

pub(crate) fn short(value: &Value) -> Result<u32> {
    u32::try_from(number(value)?).map_err(|_| unreadable())
}

pub(crate) fn unreadable() -> Error {
    let what = "a message of a gradient server that none has written";
    Error::new(ErrorKind::Protocol, what).hint("run one release of sheave")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> GradientId {
        GradientId { node: NodeId(u64::MAX), client: u32::MAX, number }
    }

    #[test]
    fn what_is_written_is_read() {
        for patience in [None, Some(Duration::from_nanos(u64::MAX))] {
            let push = Push { client: 7, number: u64::MAX, fingerprint: 1 << 63, patience };
            assert_eq!(Push::read(push.to_value()).unwrap(), push);
        }
        for started in [None, Some(u64::MAX)] {
            let forward = Forward { started, fingerprint: 3, ids: vec![id(1), id(2)], dropped: vec![id(9)] };
            assert_eq!(Forward::read(forward.to_value()).unwrap(), forward);
        }
        let asked = |gone, was_taken| Asked { number: 5, gone, was_taken };
        let settle =
            Settle { client: 1, floor: 4, asked: vec![asked(None, true), asked(Some(NodeId(u64::MAX)), false)] };
        assert_eq!(Settle::read(settle.to_value()).unwrap(), settle);
        assert_eq!(Outcome::read(Outcome::to_value(&Outcome::ALL)).unwrap(), Outcome::ALL);
    }

    #[test]
    fn nonsense_is_refused() {
        let list = |items: &[Value]| Value::List(items.to_vec());
        let odd = list(&[Value::Int(1), Value::Int(2)]);
        for value in [Value::None, list(&[]), list(&[Value::Int(1), Value::Int(1), odd.clone()]), odd] {
            assert!(Settle::read(value.clone()).is_err() && Forward::read(value.clone()).is_err());
            assert!(Push::read(value.clone()).is_err() && Outcome::read(value.clone()).is_err());
        }
        assert!(Outcome::read(Value::Bytes(vec![5])).is_err() && short(&Value::Int(-1)).is_err());
    }
}
