//! What the ends of a queue and its home say to each other.
//!
//! | to | method | contents |
//! |---|---|---|
//! | home | `attach` | the service of the end; the answer has its number, whether each put waits, and the words |
//! | home | `enter` | the end's number: it has knocked; the answer says whether that was heard |
//! | home | `closed` | the end's number; answered when there is nothing any more |
//! | home | `put` | an item: one-way, or answered when there was room for it |
//! | home | `offer` | an item, for which nobody waits; the answer says whether there was room |
//! | home | `want` | what an end wants ([`Want`]) |
//! | home | `back` | the end's number, and of items that it does not take its number of the first, and how many |
//! | home | `length` | nothing; the answer says how many items nobody has taken |
//! | home | `detach` | the end's number, and its number of the first item that it has not taken |
//! | end | `items` | [`Items`] |
//! | end | `state` | [`Shown`] |
//!
//! An end that does not reach the memory of its home is given no [words](super::words).

use crate::packet::Packet;
use crate::protocol::{Reader, Writer};
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::Call;
use sheave_net::{Part, Parts, Tensors};
use sheave_tensor::Tensor;
use sheave_wire::Value;

pub(super) const ATTACH: &str = "attach";
pub(super) const ENTER: &str = "enter";
pub(super) const CLOSED: &str = "closed";
pub(super) const PUT: &str = "put";
pub(super) const OFFER: &str = "offer";
pub(super) const WANT: &str = "want";
pub(super) const BACK: &str = "back";
pub(super) const LENGTH: &str = "length";
pub(super) const DETACH: &str = "detach";
pub(super) const ITEMS: &str = "items";
pub(super) const STATE: &str = "state";

/// What an end wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    pub(crate) end: u64,
    /// Below this number it holds nothing any more.
    pub(crate) settled: u32,
    /// The number behind the last that it has taken.
    pub(crate) begun: u32,
    pub(crate) most: usize,
    pub(crate) is_waiting: bool,
    /// Which of the end's words of this kind it is: threads may send theirs in another order than they have come to
    /// them, and the last one counts.
    pub(crate) turn: u64,
}

impl Want {
    pub(super) fn to_call(self) -> Call {
        Call::of(Value::List(vec![
            Value::Int(self.end.cast_signed()),
            Value::Int(self.settled.into()),
            Value::Int(self.begun.into()),
            Value::Int(self.most as i64),
            Value::Bool(self.is_waiting),
            Value::Int(self.turn.cast_signed()),
        ]))
    }

    pub(super) fn read(args: Value) -> Result<Self> {
        let [end, settled, begun, most, is_waiting, turn] = listed(args)?;
        Ok(Self {
            end: number(&end)?,
            settled: short(&settled)?,
            begun: short(&begun)?,
            most: usize::try_from(number(&most)?).map_err(|_| unreadable())?,
            is_waiting: truth(&is_waiting)?,
            turn: number(&turn)?,
        })
    }
}

/// An end, one of its numbers, and how many items from that on are meant.
pub(super) fn about(end: u64, first: u32, count: u32) -> Call {
    Call::of(Value::List(vec![Value::Int(end.cast_signed()), Value::Int(first.into()), Value::Int(count.into())]))
}

pub(super) fn read_about(args: Value) -> Result<(u64, u32, u32)> {
    let [end, first, count] = listed(args)?;
    Ok((number(&end)?, short(&first)?, short(&count)?))
}

/// The answer to an end that attaches itself.
pub(super) fn attached(end: u64, is_strict: bool, has_words: bool) -> Value {
    let words = if has_words { Value::Tensor(0) } else { Value::None };
    Value::List(vec![Value::Int(end.cast_signed()), Value::Bool(is_strict), words])
}

/// The end's number alone.
pub(super) fn read_number(attached: &Value) -> Result<u64> {
    match attached {
        Value::List(items) => items.first().ok_or_else(unreadable).and_then(number),
        _ => Err(unreadable()),
    }
}

pub(super) fn read_attached(value: Value, tensors: &[Tensor]) -> Result<(u64, bool, Option<Tensor>)> {
    let [end, is_strict, words] = listed(value)?;
    let words = match words {
        Value::None => None,
        Value::Tensor(at) => Some(tensors.get(at as usize).cloned().ok_or_else(unreadable)?),
        _ => return Err(unreadable()),
    };
    Ok((number(&end)?, truth(&is_strict)?, words))
}

/// The state of a queue, as its ends are told of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shown {
    /// Whether it is so full that nobody should put more.
    pub(super) is_full: bool,
    /// Whether nothing is put any more: whoever has taken all that it was given says so then.
    pub(super) is_closed: bool,
    /// Which word of this kind it is: words may overtake each other, and the last one counts.
    pub(super) turn: u64,
}

impl Shown {
    pub(super) fn to_call(self) -> Call {
        let Self { is_full, is_closed, turn } = self;
        Call::of(Value::List(vec![Value::Bool(is_full), Value::Bool(is_closed), Value::Int(turn.cast_signed())]))
    }

    pub(super) fn read(args: Value) -> Result<Self> {
        let [is_full, is_closed, turn] = listed(args)?;
        Ok(Self { is_full: truth(&is_full)?, is_closed: truth(&is_closed)?, turn: number(&turn)? })
    }
}

/// An item on its way to the queue.
pub(super) fn put(packet: Packet, part: impl Fn(Tensor) -> Part) -> Call {
    let tensors: Parts = packet.tensors.into_iter().map(part).collect();
    Call { tensors, ..Call::of(Value::Bytes(packet.bytes)) }
}

pub(super) fn read_put(args: Value, tensors: Tensors) -> Result<Packet> {
    match args {
        Value::Bytes(bytes) => Ok(Packet { bytes, tensors }),
        _ => Err(unreadable()),
    }
}

/// Items on their way to an end.
#[derive(Debug)]
pub(super) struct Items<P> {
    /// The end's own number of the first.
    pub(super) first: u32,
    /// It is kept for somebody who waits.
    pub(super) is_kept: bool,
    /// Of each the number that the queue has given it, and the item.
    pub(super) items: Vec<(u64, P)>,
}

impl Items<&Packet> {
    /// Writes the message. `part` says how a tensor leaves.
    pub(super) fn to_call(&self, part: impl Fn(&Tensor) -> Part) -> Call {
        let mut list = Writer { items: Vec::with_capacity(2 + 3 * self.items.len()), tensors: Parts::new() };
        list.number(self.first.into());
        list.number(self.is_kept.into());
        for (number, packet) in &self.items {
            list.number(number.cast_signed());
            list.packet(packet, &part);
        }
        list.into_call()
    }
}

impl Items<Packet> {
    pub(super) fn read(args: Value, tensors: Tensors) -> Result<Self> {
        let mut list = Reader::of(args, tensors)?;
        let first = u32::try_from(list.number()?).map_err(|_| unreadable())?;
        let mut read = Self { first, is_kept: list.number()? != 0, items: Vec::new() };
        while !list.is_empty() {
            read.items.push((list.number()?.cast_unsigned(), list.packet()?));
        }
        Ok(read)
    }
}

fn listed<const COUNT: usize>(value: Value) -> Result<[Value; COUNT]> {
    let Value::List(items) = value else { return Err(unreadable()) };
    items.try_into().map_err(|_| unreadable())
}

pub(super) fn number(value: &Value) -> Result<u64> {
    match value {
        Value::Int(number) => Ok(number.cast_unsigned()),
        _ => Err(unreadable()),
    }
}

fn short(value: &Value) -> Result<u32> {
    u32::try_from(number(value)?).map_err(|_| unreadable())
}

pub(super) fn truth(value: &Value) -> Result<bool> {
    match value {
        Value::Bool(truth) => Ok(*truth),
        _ => Err(unreadable()),
    }
}

pub(super) fn unreadable() -> Error {
    Error::new(ErrorKind::Protocol, "a message of a queue that nobody has written").hint("run one release of sheave")
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_tensor::Mode;

    fn packet(text: &str, tensors: usize) -> Packet {
        let tensor = |at: usize| Tensor::from_slice(&[at as u32], [1]).expect("some bytes");
        Packet::new(&Value::from(text), (0..tensors).map(tensor).collect()).expect("a value")
    }

    fn arrived(call: Call) -> (Value, Tensors) {
        (call.args, call.tensors.into_iter().map(Part::into_tensor).collect())
    }

    #[test]
    fn words_arrive_as_they_were_sent() {
        let want = Want { end: u64::MAX, settled: u32::MAX, begun: 7, most: 64, is_waiting: true, turn: 3 };
        assert_eq!(Want::read(want.to_call().args).expect("it was written so"), want);
        assert_eq!(read_about(about(3, 9, 2).args).expect("it was written so"), (3, 9, 2));
        let shown = Shown { is_full: true, is_closed: false, turn: 4 };
        assert_eq!(Shown::read(shown.to_call().args).expect("it was written so"), shown);
        let (end, is_strict, words) = read_attached(attached(5, true, false), &[]).expect("it was written so");
        assert!((end, is_strict, words.is_none()) == (5, true, true));
        assert!(read_attached(attached(5, true, true), &[]).is_err(), "its tensor is missing");
    }

    #[test]
    fn items_arrive_as_they_were_sent() {
        let packets = [packet("one", 2), packet("two", 0), packet("three", 1)];
        let sent = Items { first: u32::MAX, is_kept: true, items: (7..).zip(&packets).collect() };
        let (args, tensors) = arrived(sent.to_call(|tensor| Part::new(tensor.clone(), Mode::Copy)));
        let Items { first, is_kept, items } = Items::read(args, tensors).expect("it was written so");
        let counts: Vec<_> = items.iter().map(|(number, packet)| (*number, packet.tensors.len())).collect();
        assert_eq!((first, is_kept, &counts[..]), (u32::MAX, true, &[(7, 2), (8, 0), (9, 1)][..]));
        let (args, tensors) = arrived(put(packet("one", 1), |tensor| Part::new(tensor, Mode::Copy)));
        assert_eq!(read_put(args, tensors).and_then(|packet| packet.value()).expect("a value"), Value::from("one"));
    }

    #[test]
    fn nonsense_is_refused() {
        for value in [Value::None, Value::List(Vec::new()), Value::List(vec![Value::Bool(true); 6])] {
            assert!(Want::read(value.clone()).is_err() && read_about(value.clone()).is_err());
            assert!(Items::read(value.clone(), Tensors::new()).is_err() && read_put(value, Tensors::new()).is_err());
        }
    }
}
