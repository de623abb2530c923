//! What a pool and its workers say to each other, all of it by one-way calls.
//!
//! | to | method | contents |
//! |---|---|---|
//! | worker | `begin` | the service that it answers to, and a packet, or nothing, that it is set up with |
//! | worker | `tasks` | functions that it has not got, those that it need not keep, and tasks, in order |
//! | pool | `ready` | nothing: the worker is set up |
//! | pool | `broken` | the error that setting it up has failed with |
//! | pool | `outcomes` | how long the tasks took together, and what came of each, in order |
//!
//! Lists are flat: a packet in one is its number of tensors and its bytes, and its tensors are the next ones of the
//! message. So what was written once is not looked into on its way.

use crate::packet::Packet;
use crate::task::Outcome;
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::Call;
use sheave_net::{Part, Parts, Tensors};
use sheave_tensor::{Mode, Tensor};
use sheave_wire::{Value, from_control, to_control};

/// The service of a worker. A process is a worker of one pool.
pub(crate) const WORKER: &str = "sheave.pool.worker";

pub(crate) const BEGIN: &str = "begin";
pub(crate) const TASKS: &str = "tasks";
pub(crate) const READY: &str = "ready";
pub(crate) const BROKEN: &str = "broken";
pub(crate) const OUTCOMES: &str = "outcomes";

/// Stands where a packet has its number of tensors, for an error.
const FAILED: i64 = -1;

/// Tasks for a worker.
#[derive(Debug)]
pub(crate) struct Tasks<P> {
    /// The number of the first.
    pub(crate) first: u32,
    /// Functions that it has not got, with their numbers.
    pub(crate) functions: Vec<(u64, P)>,
    /// Functions that no task will name any more.
    pub(crate) dropped: Vec<u64>,
    /// The function of each, and its arguments.
    pub(crate) tasks: Vec<(u64, P)>,
}

impl<P> Tasks<P> {
    /// None yet.
    pub(crate) fn from(first: u32) -> Self {
        Self { first, functions: Vec::new(), dropped: Vec::new(), tasks: Vec::new() }
    }
}

impl Tasks<&Packet> {
    /// Writes the message. `part` says how a tensor leaves.
    pub(crate) fn to_call(&self, part: impl Fn(&Tensor) -> Part) -> Call {
        let lists = 3 * (self.functions.len() + self.tasks.len()) + self.dropped.len();
        let mut list = Writer { items: Vec::with_capacity(3 + lists), tensors: Parts::new() };
        list.number(self.first.into());
        list.number(self.functions.len() as i64);
        list.number(self.dropped.len() as i64);
        for (number, packet) in &self.functions {
            list.number(number.cast_signed());
            list.packet(packet, &part);
        }
        self.dropped.iter().for_each(|number| list.number(number.cast_signed()));
        for (number, packet) in &self.tasks {
            list.number(number.cast_signed());
            list.packet(packet, &part);
        }
        list.into_call()
    }
}

impl Tasks<Packet> {
    pub(crate) fn read(args: Value, tensors: Tensors) -> Result<Self> {
        let mut list = Reader::of(args, tensors)?;
        let first = u32::try_from(list.number()?).map_err(|_| unreadable())?;
        let (functions, dropped) = (list.number()?, list.number()?);
        let mut read = Self::from(first);
        for _ in 0..functions {
            read.functions.push((list.number()?.cast_unsigned(), list.packet()?));
        }
        for _ in 0..dropped {
            read.dropped.push(list.number()?.cast_unsigned());
        }
        while !list.is_empty() {
            read.tasks.push((list.number()?.cast_unsigned(), list.packet()?));
        }
        Ok(read)
    }
}

/// What came of tasks.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// How long they took together.
    pub(crate) spent_ns: u64,
    /// Of each the number, and what came of it.
    pub(crate) outcomes: Vec<(u32, Outcome)>,
}

impl Outcomes {
    pub(crate) fn to_call(&self) -> Call {
        let mut list = Writer { items: Vec::with_capacity(1 + 3 * self.outcomes.len()), tensors: Parts::new() };
        list.number(self.spent_ns.cast_signed());
        for (number, outcome) in &self.outcomes {
            list.number((*number).into());
            match outcome {
                Ok(packet) => list.packet(packet, |tensor| Part::new(tensor.clone(), Mode::Copy)),
                Err(error) => {
                    list.number(FAILED);
                    list.items.push(Value::Bytes(error_bytes(error)));
                }
            }
        }
        list.into_call()
    }

    pub(crate) fn read(args: Value, tensors: Tensors) -> Result<Self> {
        let mut list = Reader::of(args, tensors)?;
        let mut read = Self { spent_ns: list.number()?.cast_unsigned(), outcomes: Vec::new() };
        while !list.is_empty() {
            let number = u32::try_from(list.number()?).map_err(|_| unreadable())?;
            let outcome = match list.number()? {
                FAILED => Err(from_control(&list.bytes()?)?),
                tensors => Ok(list.packet_of(tensors)?),
            };
            read.outcomes.push((number, outcome));
        }
        Ok(read)
    }
}

/// The error as it is written. One that cannot be, for its length say, is told by its text.
pub(crate) fn error_bytes(error: &Error) -> Vec<u8> {
    let written = to_control(error).or_else(|_| to_control(&Error::new(error.kind(), error.to_string())));
    written.unwrap_or_default()
}

/// An outcome without tensors as a worker notes it.
pub(crate) fn note_of(number: u32, outcome: &Outcome) -> Vec<u8> {
    let (sign, bytes) = match outcome {
        Ok(packet) => (0, packet.bytes.clone()),
        Err(error) => (FAILED, error_bytes(error)),
    };
    let mut note = Vec::with_capacity(NOTE_HEAD_BYTES + bytes.len());
    note.extend_from_slice(&number.to_le_bytes());
    note.extend_from_slice(&(sign as i32).to_le_bytes());
    note.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    note.extend(bytes);
    note
}

/// Number, sign and length, four bytes each.
const NOTE_HEAD_BYTES: usize = 12;

/// The outcomes that a worker has noted, up to where they make no sense.
pub(crate) fn read_notes(mut notes: &[u8]) -> Vec<(u32, Outcome)> {
    let mut outcomes = Vec::new();
    while let Some((head, rest)) = notes.split_at_checked(NOTE_HEAD_BYTES) {
        let word = |at: usize| head[4 * at..4 * at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        let Some((bytes, rest)) = rest.split_at_checked(word(2) as usize) else { break };
        let outcome = match word(1) {
            0 => Ok(Packet { bytes: bytes.to_vec(), tensors: Tensors::new() }),
            _ => match from_control(bytes) {
                Ok(error) => Err(error),
                Err(_) => break,
            },
        };
        outcomes.push((word(0), outcome));
        notes = rest;
    }
    outcomes
}

/// What setting up a worker has failed with.
pub(crate) fn read_error(args: Value) -> Result<Error> {
    match args {
        Value::Bytes(bytes) => from_control(&bytes),
        _ => Err(unreadable()),
    }
}

/// The message by which a worker begins.
pub(crate) fn begin(service: &str, setup: Option<&Packet>, parts: Parts) -> Call {
    let setup = setup.map_or(Value::None, |setup| Value::Bytes(setup.bytes.clone()));
    Call { tensors: parts, ..Call::of(Value::List(vec![Value::from(service), setup])) }
}

/// Reads [`begin`].
pub(crate) fn read_begin(args: Value, tensors: Tensors) -> Result<(String, Option<Packet>)> {
    let Value::List(items) = args else { return Err(unreadable()) };
    match <[Value; 2]>::try_from(items) {
        Ok([Value::Str(service), Value::None]) => Ok((service, None)),
        Ok([Value::Str(service), Value::Bytes(bytes)]) => Ok((service, Some(Packet { bytes, tensors }))),
        _ => Err(unreadable()),
    }
}

/// Writes a list of numbers, bytes and packets.
pub(crate) struct Writer {
    pub(crate) items: Vec<Value>,
    pub(crate) tensors: Parts,
}

impl Writer {
    pub(crate) fn number(&mut self, number: i64) {
        self.items.push(Value::Int(number));
    }

    pub(crate) fn packet(&mut self, packet: &Packet, part: impl Fn(&Tensor) -> Part) {
        self.number(packet.tensors.len() as i64);
        self.items.push(Value::Bytes(packet.bytes.clone()));
        self.tensors.extend(packet.tensors.iter().map(part));
    }

    pub(crate) fn into_call(self) -> Call {
        Call { tensors: self.tensors, ..Call::of(Value::List(self.items)) }
    }
}

/// Reads what a [`Writer`] has written.
pub(crate) struct Reader {
    items: std::vec::IntoIter<Value>,
    tensors: smallvec::IntoIter<[Tensor; 2]>,
}

impl Reader {
    pub(crate) fn of(args: Value, tensors: Tensors) -> Result<Self> {
        let Value::List(items) = args else { return Err(unreadable()) };
        Ok(Self { items: items.into_iter(), tensors: tensors.into_iter() })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.len() == 0
    }

    pub(crate) fn number(&mut self) -> Result<i64> {
        match self.items.next() {
            Some(Value::Int(number)) => Ok(number),
            _ => Err(unreadable()),
        }
    }

    fn bytes(&mut self) -> Result<Vec<u8>> {
        match self.items.next() {
            Some(Value::Bytes(bytes)) => Ok(bytes),
            _ => Err(unreadable()),
        }
    }

    pub(crate) fn packet(&mut self) -> Result<Packet> {
        let count = self.number()?;
        self.packet_of(count)
    }

    fn packet_of(&mut self, tensors: i64) -> Result<Packet> {
        let count = usize::try_from(tensors).ok().filter(|count| *count <= self.tensors.len());
        let bytes = self.bytes()?;
        let tensors = self.tensors.by_ref().take(count.ok_or_else(unreadable)?).collect();
        Ok(Packet { bytes, tensors })
    }
}

pub(crate) fn unreadable() -> Error {
    Error::new(ErrorKind::Protocol, "a message of a pool that nobody has written").hint("run one release of sheave")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(text: &str, tensors: usize) -> Packet {
        let tensor = |at: usize| Tensor::from_slice(&[at as u32], [1]).expect("some bytes");
        Packet::new(&Value::from(text), (0..tensors).map(tensor).collect()).expect("a value")
    }

    fn arrived(call: Call) -> (Value, Tensors) {
        (call.args, call.tensors.into_iter().map(Part::into_tensor).collect())
    }

    #[test]
    fn tasks_arrive_as_they_were_sent() {
        let packets = [packet("f", 1), packet("one", 0), packet("two", 2)];
        let sent = Tasks {
            first: u32::MAX,
            functions: vec![(7, &packets[0])],
            dropped: vec![3, 4],
            tasks: vec![(7, &packets[1]), (7, &packets[2])],
        };
        let copied = |tensor: &Tensor| Part::new(tensor.clone(), Mode::Copy);
        let (args, tensors) = arrived(sent.to_call(copied));
        let read = Tasks::read(args, tensors).expect("it was written so");
        assert_eq!((read.first, read.functions[0].0, &read.dropped[..]), (u32::MAX, 7, &[3, 4][..]));
        let texts: Vec<Value> = read.tasks.iter().map(|(_, packet)| packet.value().expect("a value")).collect();
        assert_eq!(texts, [Value::from("one"), Value::from("two")]);
        let last: Vec<u32> =
            read.tasks[1].1.tensors.iter().map(|tensor| tensor.to_vec().expect("it is read")[0]).collect();
        assert_eq!((read.functions[0].1.tensors.len(), &last[..]), (1, &[0, 1][..]));
    }

    #[test]
    fn outcomes_arrive_as_they_were_sent() {
        let error = Error::new(ErrorKind::Mismatch, "as planned").hint("none");
        let sent = Outcomes { spent_ns: 5, outcomes: vec![(1, Ok(packet("one", 1))), (2, Err(error.clone()))] };
        let (args, tensors) = arrived(sent.to_call());
        let read = Outcomes::read(args, tensors).expect("it was written so");
        assert_eq!((read.spent_ns, read.outcomes.len()), (5, 2));
        assert_eq!(read.outcomes[0].1.as_ref().expect("it has returned").tensors.len(), 1);
        let read = read.outcomes[1].1.as_ref().expect_err("it has failed");
        assert_eq!(read.to_string(), error.to_string());
    }

    #[test]
    fn what_was_noted_is_read_up_to_where_it_makes_no_sense() {
        let error = Error::new(ErrorKind::Mismatch, "as planned");
        let mut notes = note_of(u32::MAX, &Ok(packet("one", 0)));
        notes.extend(note_of(0, &Err(error.clone())));
        let whole = notes.len();
        notes.extend(&note_of(1, &Ok(packet("two", 0)))[..14]);
        let read = read_notes(&notes);
        assert_eq!(read.len(), 2);
        assert_eq!(
            (read[0].0, read[0].1.as_ref().expect("it has returned").value().expect("a text")),
            (u32::MAX, "one".into())
        );
        assert_eq!((read[1].0, read[1].1.as_ref().expect_err("it has failed").what()), (0, "as planned"));
        for length in 0..whole {
            assert!(read_notes(&notes[..length]).len() < 2);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let lists = [vec![], vec![Value::Int(-1)], vec![Value::Int(1), Value::Int(9), Value::Int(0)]];
        for items in lists {
            assert!(Tasks::read(Value::List(items), Tensors::new()).is_err());
        }
        let items = vec![Value::Int(0), Value::Int(1), Value::Int(3), Value::Bytes(Vec::new())];
        assert!(Outcomes::read(Value::List(items), Tensors::new()).is_err(), "it has no tensors");
        assert!(read_begin(Value::None, Tensors::new()).is_err() && read_error(Value::Int(1)).is_err());
    }
}
