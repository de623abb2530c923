//! How a [`Value`] and structured control messages are written.
//!
//! A value is one tag byte and its content. Numbers are in groups of seven bits (integers with the sign in the lowest
//! bit), floats in eight little-endian bytes, texts and bytes behind their length, lists and maps behind their count.
//! Tags are append-only. Each value has exactly one encoding, and each accepted input is the encoding of its value.
//!
//! **Why decoding allocates linearly.** A list is asked for its count before its items are seen, and lists nest; if
//! each level could claim all that is left of the input, a small input would claim it thirty-two times over. So the
//! decoder keeps the number of bytes that it *owes*: what the items announced by the enclosing lists need at least. A
//! count is believed only if its items fit into what is left *beyond* that. So all reservations together stay below the
//! input's length times the size of one item per its shortest encoding, 32 bytes for each byte of input.

use std::fmt;

use serde::de::{self, DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use sheave_base::{Error, ErrorKind, NodeId, Result, limits};

use crate::dtype::dtype_size;
use crate::reader::{Reader, protocol, put_bytes, put_varint, unzigzag, zigzag};
use crate::value::Value;

mod tag {
    pub(super) const NONE: u8 = 0;
    pub(super) const FALSE: u8 = 1;
    pub(super) const TRUE: u8 = 2;
    pub(super) const INT: u8 = 3;
    pub(super) const FLOAT: u8 = 4;
    pub(super) const STR: u8 = 5;
    pub(super) const BYTES: u8 = 6;
    pub(super) const DTYPE: u8 = 7;
    pub(super) const DEVICE: u8 = 8;
    pub(super) const SHAPE: u8 = 9;
    pub(super) const TENSOR: u8 = 10;
    pub(super) const REF: u8 = 11;
    pub(super) const LIST: u8 = 12;
    pub(super) const MAP: u8 = 13;
    pub(super) const PICKLE: u8 = 14;
    pub(super) const TUPLE: u8 = 15;
    pub(super) const SET: u8 = 16;
    pub(super) const DICT: u8 = 17;
    pub(super) const INTEGER: u8 = 18;
    pub(super) const SLICE: u8 = 19;
    pub(super) const SCALAR: u8 = 20;
    pub(super) const TAGGED: u8 = 21;
}

/// Shortest encoding of a list's item: a tag.
const ITEM_BYTES_MIN: usize = 1;

/// Shortest encoding of an entry: the length of an empty name, or a tag, and a tag.
const ENTRY_BYTES_MIN: usize = 2;

/// Fewest bytes of a whole number that [`Value::Int`] has no room for.
const INTEGER_BYTES_MIN: usize = 9;

/// The bytes of `value`.
///
/// # Errors
///
/// `LimitExceeded` if it is nested too deeply, has too many items in one place or is too long for a message;
/// `InvalidArgument` if it holds a dtype or shape that does not exist.
pub fn encode(value: &Value) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    encode_to(value, &mut out)?;
    Ok(out)
}

/// Appends the bytes of `value` to `out`.
///
/// # Errors
///
/// As [`encode`]; `out` then holds an undefined part of the value.
pub fn encode_to(value: &Value, out: &mut Vec<u8>) -> Result<()> {
    let start = out.len();
    put_value(value, out, 0)?;
    match out.len() - start {
        length_bytes if length_bytes > limits::CONTROL_BYTES_MAX => Err(too_long(length_bytes)),
        _ => Ok(()),
    }
}

/// Appends what a [`Value::List`] of so many items begins with. They follow, each by [`encode_to`].
///
/// ```
/// use sheave_wire::{Value, codec};
///
/// let (mut bytes, items) = (Vec::new(), [Value::Int(7), Value::from("text")]);
/// codec::encode_list_head_to(items.len(), &mut bytes)?;
/// items.iter().try_for_each(|item| codec::encode_to(item, &mut bytes))?;
/// assert_eq!(codec::decode(&bytes)?, Value::List(items.to_vec()));
/// # Ok::<(), sheave_base::Error>(())
/// ```
///
/// # Errors
///
/// `LimitExceeded` for more items than a list may have.
pub fn encode_list_head_to(count: usize, out: &mut Vec<u8>) -> Result<()> {
    put_count(out, tag::LIST, count, 0)
}

/// Appends the bytes of a [`Value::Str`] of this text to `out`: what [`encode_to`] appends, without the value.
///
/// # Errors
///
/// As [`encode`].
pub fn encode_text_to(text: &str, out: &mut Vec<u8>) -> Result<()> {
    if text.len() > limits::CONTROL_BYTES_MAX {
        return Err(too_long(text.len()));
    }
    put_tagged(out, tag::STR, text.as_bytes());
    Ok(())
}

fn put_value(value: &Value, out: &mut Vec<u8>, depth: usize) -> Result<()> {
    match value {
        Value::None => out.push(tag::NONE),
        Value::Bool(false) => out.push(tag::FALSE),
        Value::Bool(true) => out.push(tag::TRUE),
        Value::Int(number) => {
            out.push(tag::INT);
            put_varint(out, zigzag(*number));
        }
        Value::Float(number) => {
            out.push(tag::FLOAT);
            out.extend_from_slice(&number.to_bits().to_le_bytes());
        }
        Value::Str(text) => put_tagged(out, tag::STR, text.as_bytes()),
        Value::Bytes(bytes) => put_tagged(out, tag::BYTES, bytes),
        Value::Pickle(bytes) => put_tagged(out, tag::PICKLE, bytes),
        Value::Dtype(code) => {
            if dtype_size(*code).is_none() {
                return Err(Error::new(ErrorKind::InvalidArgument, format!("unknown dtype {code}")));
            }
            out.extend_from_slice(&[tag::DTYPE, *code]);
        }
        Value::Device { kind, index } => {
            out.extend_from_slice(&[tag::DEVICE, *kind]);
            put_varint(out, u64::from(*index));
        }
        Value::Shape(dims) => put_shape(dims, out)?,
        Value::Tensor(index) => {
            out.push(tag::TENSOR);
            put_varint(out, u64::from(*index));
        }
        Value::Ref { node, id } => {
            out.push(tag::REF);
            out.extend_from_slice(&node.0.to_le_bytes());
            put_varint(out, *id);
        }
        Value::Integer(bytes) => {
            check_integer(bytes).map_err(|what| Error::new(ErrorKind::InvalidArgument, what))?;
            put_tagged(out, tag::INTEGER, bytes);
        }
        Value::Scalar { dtype, bytes } => put_scalar(*dtype, bytes, out)?,
        Value::List(_) | Value::Tuple(_) | Value::Set(_) | Value::Map(_) | Value::Dict(_) => {
            put_nested(value, out, depth)?;
        }
        Value::Slice(_) | Value::Tagged(_) => put_nested(value, out, depth)?,
    }
    Ok(())
}

/// Appends what holds other values.
fn put_nested(value: &Value, out: &mut Vec<u8>, depth: usize) -> Result<()> {
    match value {
        Value::Tagged(tagged) => {
            check_depth(depth)?;
            put_tagged(out, tag::TAGGED, tagged.0.as_bytes());
            put_value(&tagged.1, out, depth + 1)?;
        }
        Value::Slice(bounds) => {
            check_depth(depth)?;
            out.push(tag::SLICE);
            for bound in bounds.iter() {
                put_value(bound, out, depth + 1)?;
            }
        }
        Value::List(items) => put_items(items, tag::LIST, out, depth)?,
        Value::Tuple(items) => put_items(items, tag::TUPLE, out, depth)?,
        Value::Set(items) => put_items(items, tag::SET, out, depth)?,
        Value::Dict(entries) => {
            put_count(out, tag::DICT, entries.len(), depth)?;
            for (key, item) in entries {
                put_value(key, out, depth + 1)?;
                put_value(item, out, depth + 1)?;
            }
        }
        Value::Map(entries) => {
            put_count(out, tag::MAP, entries.len(), depth)?;
            for (name, item) in entries {
                put_bytes(out, name.as_bytes());
                put_value(item, out, depth + 1)?;
            }
        }
        atom => return Err(Error::new(ErrorKind::Internal, format!("a {} holds nothing", atom.kind_name()))),
    }
    Ok(())
}

fn put_items(items: &[Value], tag: u8, out: &mut Vec<u8>, depth: usize) -> Result<()> {
    put_count(out, tag, items.len(), depth)?;
    items.iter().try_for_each(|item| put_value(item, out, depth + 1))
}

fn put_scalar(dtype: u8, bytes: &[u8; 16], out: &mut Vec<u8>) -> Result<()> {
    let Some(size) = dtype_size(dtype) else {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("unknown dtype {dtype}")));
    };
    let (element, rest) = bytes.split_at(usize::from(size).min(bytes.len()));
    if rest.iter().any(|byte| *byte != 0) {
        let what = format!("a scalar of {size} bytes with something behind them");
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    out.extend_from_slice(&[tag::SCALAR, dtype]);
    out.extend_from_slice(element);
    Ok(())
}

/// Whether these are the bytes of a whole number beyond 64 bits, with none that says nothing.
fn check_integer(bytes: &[u8]) -> std::result::Result<(), String> {
    let says_nothing = match bytes {
        [.., before, 0x00] => *before < 0x80,
        [.., before, 0xff] => *before >= 0x80,
        _ => false,
    };
    if bytes.len() < INTEGER_BYTES_MIN || says_nothing {
        return Err(format!("an integer in {} bytes, which has a shorter form", bytes.len()));
    }
    Ok(())
}

fn put_tagged(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    put_bytes(out, bytes);
}

fn put_shape(dims: &[u64], out: &mut Vec<u8>) -> Result<()> {
    if dims.len() > limits::DIMENSIONS_MAX {
        return Err(too_many("dimensions of a shape", dims.len(), limits::DIMENSIONS_MAX));
    }
    out.extend_from_slice(&[tag::SHAPE, dims.len() as u8]);
    for dim in dims {
        put_varint(out, *dim);
    }
    Ok(())
}

fn put_count(out: &mut Vec<u8>, tag: u8, count: usize, depth: usize) -> Result<()> {
    check_depth(depth)?;
    if count > limits::VALUE_ITEMS_MAX {
        return Err(too_many("items in one list or map", count, limits::VALUE_ITEMS_MAX));
    }
    out.push(tag);
    put_varint(out, count as u64);
    Ok(())
}

/// The value that `bytes` are, all of them.
///
/// # Errors
///
/// `Protocol` if they are no value, `LimitExceeded` if it is nested too deeply or has too many items in one place.
pub fn decode(bytes: &[u8]) -> Result<Value> {
    let (value, rest) = decode_first(bytes)?;
    match rest.len() {
        0 => Ok(value),
        left => Err(protocol(format!("{left} bytes follow a value"))),
    }
}

/// The value that `bytes` start with, and what follows it. Arguments stand behind the name of a method like this.
///
/// # Errors
///
/// As [`decode`].
pub fn decode_first(bytes: &[u8]) -> Result<(Value, &[u8])> {
    if bytes.len() > limits::CONTROL_BYTES_MAX {
        return Err(too_long(bytes.len()));
    }
    let mut decoder = Decoder { reader: Reader::new(bytes), owed_bytes: 0 };
    let value = decoder.value(0)?;
    Ok((value, decoder.reader.rest()))
}

/// The text that `bytes` start with, if they start with one, and what follows it: as [`decode_first`], without a value.
#[must_use]
pub fn first_text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let mut reader = Reader::new(bytes);
    let is_text = bytes.len() <= limits::CONTROL_BYTES_MAX && reader.u8().ok()? == tag::STR;
    let text = if is_text { reader.text().ok()? } else { return None };
    Some((text, reader.rest()))
}

/// Calls `visit` with each [`Value::Ref`] in the value that `bytes` are, all of them, as often as it occurs and in the
/// order in which it is found there, without making the value. It allocates nothing.
///
/// # Errors
///
/// As [`decode`], of the same bytes; some may have been visited.
///
/// ```
/// use sheave_base::NodeId;
/// use sheave_wire::{Value, codec};
///
/// let name = Value::Ref { node: NodeId(7), id: 3 };
/// let bytes = codec::encode(&Value::List(vec![Value::from("a text"), name]))?;
/// let mut seen = Vec::new();
/// codec::visit_references(&bytes, &mut |node, id| seen.push((node, id)))?;
/// assert_eq!(seen, [(NodeId(7), 3)]);
/// # Ok::<(), sheave_base::Error>(())
/// ```
pub fn visit_references(bytes: &[u8], visit: &mut dyn FnMut(NodeId, u64)) -> Result<()> {
    if bytes.len() > limits::CONTROL_BYTES_MAX {
        return Err(too_long(bytes.len()));
    }
    let mut decoder = Decoder { reader: Reader::new(bytes), owed_bytes: 0 };
    decoder.pass_over(0, visit)?;
    match decoder.reader.remaining_bytes() {
        0 => Ok(()),
        left => Err(protocol(format!("{left} bytes follow a value"))),
    }
}

struct Decoder<'a> {
    reader: Reader<'a>,
    /// What the announced but not yet read items of the enclosing lists and maps need at least.
    owed_bytes: usize,
}

impl Decoder<'_> {
    fn value(&mut self, depth: usize) -> Result<Value> {
        Ok(match self.reader.u8()? {
            tag::NONE => Value::None,
            tag::FALSE => Value::Bool(false),
            tag::TRUE => Value::Bool(true),
            tag::INT => Value::Int(unzigzag(self.reader.varint()?)),
            tag::FLOAT => Value::Float(f64::from_bits(self.reader.u64()?)),
            tag::STR => Value::Str(self.reader.text()?.to_owned()),
            tag::BYTES => Value::Bytes(self.reader.bytes()?.to_vec()),
            tag::TENSOR => Value::Tensor(self.index("tensor")?),
            tag::REF => Value::Ref { node: NodeId(self.reader.u64()?), id: self.reader.varint()? },
            tag::LIST => Value::List(self.items(depth)?),
            tag::TUPLE => Value::Tuple(self.items(depth)?),
            tag::SET => Value::Set(self.items(depth)?),
            tag::MAP => Value::Map(self.entries(depth, |decoder, _| Ok(decoder.reader.text()?.to_owned()))?),
            tag::DICT => Value::Dict(self.entries(depth, Self::value)?),
            tag::SLICE => {
                check_depth(depth)?;
                Value::Slice(Box::new([self.value(depth + 1)?, self.value(depth + 1)?, self.value(depth + 1)?]))
            }
            tag::TAGGED => {
                check_depth(depth)?;
                Value::Tagged(Box::new((self.reader.text()?.to_owned(), self.value(depth + 1)?)))
            }
            tag::PICKLE => Value::Pickle(self.reader.bytes()?.to_vec()),
            other => self.atom(other)?,
        })
    }

    /// A value of one of the kinds that are rare, and hold no other.
    fn atom(&mut self, kind: u8) -> Result<Value> {
        Ok(match kind {
            tag::DTYPE => match self.reader.u8()? {
                code if dtype_size(code).is_some() => Value::Dtype(code),
                code => return Err(protocol(format!("unknown dtype {code}"))),
            },
            tag::DEVICE => Value::Device { kind: self.reader.u8()?, index: self.index("device")? },
            tag::SHAPE => self.shape()?,
            tag::INTEGER => {
                let bytes = self.reader.bytes()?;
                check_integer(bytes).map_err(protocol)?;
                Value::Integer(bytes.to_vec())
            }
            tag::SCALAR => self.scalar()?,
            other => return Err(protocol(format!("unknown kind {other} of value"))),
        })
    }

    /// Reads a value that nobody wants but for the references in it.
    fn pass_over(&mut self, depth: usize, visit: &mut dyn FnMut(NodeId, u64)) -> Result<()> {
        match self.reader.u8()? {
            tag::REF => visit(NodeId(self.reader.u64()?), self.reader.varint()?),
            tag::NONE | tag::FALSE | tag::TRUE => {}
            tag::INT => drop(self.reader.varint()?),
            tag::FLOAT => drop(self.reader.u64()?),
            tag::STR => drop(self.reader.text()?),
            tag::BYTES | tag::PICKLE => drop(self.reader.bytes()?),
            tag::TENSOR => drop(self.index("tensor")?),
            tag::LIST | tag::TUPLE | tag::SET => {
                for _ in 0..self.announced(ITEM_BYTES_MIN, depth)? {
                    self.owed_bytes -= ITEM_BYTES_MIN;
                    self.pass_over(depth + 1, visit)?;
                }
            }
            kind @ (tag::MAP | tag::DICT) => {
                for _ in 0..self.announced(ENTRY_BYTES_MIN, depth)? {
                    self.owed_bytes -= ENTRY_BYTES_MIN;
                    match kind {
                        tag::MAP => drop(self.reader.text()?),
                        _ => self.pass_over(depth + 1, visit)?,
                    }
                    self.pass_over(depth + 1, visit)?;
                }
            }
            tag::SLICE => {
                check_depth(depth)?;
                (0..3).try_for_each(|_| self.pass_over(depth + 1, visit))?;
            }
            tag::TAGGED => {
                check_depth(depth)?;
                self.reader.text()?;
                self.pass_over(depth + 1, visit)?;
            }
            other => drop(self.atom(other)?),
        }
        Ok(())
    }

    fn index(&mut self, what: &str) -> Result<u32> {
        let index = self.reader.varint()?;
        u32::try_from(index).map_err(|_| protocol(format!("{what} {index} has a number of more than 32 bits")))
    }

    fn shape(&mut self) -> Result<Value> {
        let count = usize::from(self.reader.u8()?);
        if count > limits::DIMENSIONS_MAX {
            return Err(too_many("dimensions of a shape", count, limits::DIMENSIONS_MAX));
        }
        let mut dims = Vec::with_capacity(count.min(self.reader.remaining_bytes()));
        for _ in 0..count {
            dims.push(self.reader.varint()?);
        }
        Ok(Value::Shape(dims))
    }

    fn scalar(&mut self) -> Result<Value> {
        let dtype = self.reader.u8()?;
        let Some(size) = dtype_size(dtype) else { return Err(protocol(format!("unknown dtype {dtype}"))) };
        let mut bytes = [0; 16];
        for byte in bytes.iter_mut().take(usize::from(size)) {
            *byte = self.reader.u8()?;
        }
        Ok(Value::Scalar { dtype, bytes })
    }

    fn items(&mut self, depth: usize) -> Result<Vec<Value>> {
        let count = self.announced(ITEM_BYTES_MIN, depth)?;
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            self.owed_bytes -= ITEM_BYTES_MIN;
            items.push(self.value(depth + 1)?);
        }
        Ok(items)
    }

    /// Entries, whose keys are read by `key`.
    fn entries<K>(&mut self, depth: usize, key: impl Fn(&mut Self, usize) -> Result<K>) -> Result<Vec<(K, Value)>> {
        let count = self.announced(ENTRY_BYTES_MIN, depth)?;
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            self.owed_bytes -= ENTRY_BYTES_MIN;
            let key = key(self, depth + 1)?;
            entries.push((key, self.value(depth + 1)?));
        }
        Ok(entries)
    }

    /// The count of a list or map, once it is known that its items can be there; they are owed from here on.
    fn announced(&mut self, each_bytes: usize, depth: usize) -> Result<usize> {
        check_depth(depth)?;
        let count = self.reader.count(each_bytes)?;
        if count > limits::VALUE_ITEMS_MAX {
            return Err(too_many("items in one list or map", count, limits::VALUE_ITEMS_MAX));
        }
        let owed_bytes = self.owed_bytes + count * each_bytes;
        if owed_bytes > self.reader.remaining_bytes() {
            let left = self.reader.remaining_bytes();
            return Err(protocol(format!("cut off: {owed_bytes} bytes of items announced, {left} bytes left")));
        }
        self.owed_bytes = owed_bytes;
        Ok(count)
    }
}

fn check_depth(depth: usize) -> Result<()> {
    if depth >= limits::VALUE_DEPTH_MAX {
        return Err(too_many("lists and maps inside each other", depth + 1, limits::VALUE_DEPTH_MAX));
    }
    Ok(())
}

#[cold]
fn too_many(what: &str, count: usize, limit: usize) -> Error {
    Error::new(ErrorKind::LimitExceeded, format!("{count} {what}; the limit is {limit}"))
}

#[cold]
fn too_long(length_bytes: usize) -> Error {
    too_many("bytes in a control part", length_bytes, limits::CONTROL_BYTES_MAX)
        .hint("send large data as tensors, which travel beside the control part")
}

/// In structured control messages a value is a byte string, so that all of the decoder's limits hold there too.
impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&encode(self).map_err(ser::Error::custom)?)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the bytes of a value")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> std::result::Result<Value, E> {
                decode(bytes).map_err(E::custom)
            }
        }

        deserializer.deserialize_bytes(Bytes)
    }
}

/// The bytes of a structured control message.
///
/// # Errors
///
/// `LimitExceeded` if it is too long for a control part, `InvalidArgument` if its type or a value in it cannot be
/// written.
pub fn to_control<T: Serialize + ?Sized>(message: &T) -> Result<Vec<u8>> {
    to_control_behind(Vec::new(), message)
}

/// The bytes of a structured control message behind those of `head`, in the same memory if that has room.
///
/// # Errors
///
/// As [`to_control`].
///
/// ```
/// use sheave_wire::{codec::to_control_behind, to_control};
///
/// let bytes = to_control_behind(vec![7], "push").unwrap();
/// assert_eq!((bytes[0], &bytes[1..]), (7, &to_control("push").unwrap()[..]));
/// ```
pub fn to_control_behind<T: Serialize + ?Sized>(head: Vec<u8>, message: &T) -> Result<Vec<u8>> {
    let bytes = postcard::to_extend(message, head).map_err(|error| {
        Error::new(ErrorKind::InvalidArgument, format!("a control message cannot be written: {error}"))
    })?;
    if bytes.len() > limits::CONTROL_BYTES_MAX {
        return Err(too_long(bytes.len()));
    }
    Ok(bytes)
}

/// The structured control message that `bytes` are, all of them.
///
/// No sequence in a control message may have elements that take no bytes (such as `()`): their number would not be
/// bounded by the input's length.
///
/// # Errors
///
/// `Protocol` if they are no such message, `LimitExceeded` if they are too many.
///
/// ```
/// use sheave_wire::{from_control, to_control};
///
/// let bytes = to_control(&("push", 7u32)).unwrap();
/// assert_eq!(from_control::<(String, u32)>(&bytes).unwrap(), ("push".to_owned(), 7));
/// assert!(from_control::<String>(&bytes).is_err(), "a byte is left over");
/// ```
pub fn from_control<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    if bytes.len() > limits::CONTROL_BYTES_MAX {
        return Err(too_long(bytes.len()));
    }
    let (message, rest) = postcard::take_from_bytes(bytes)
        .map_err(|error| protocol(format!("a control message cannot be read: {error}")))?;
    match rest.len() {
        0 => Ok(message),
        left => Err(protocol(format!("{left} bytes follow a control message"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize) -> Value {
        (0..depth).fold(Value::None, |inner, _| Value::List(vec![inner]))
    }

    #[test]
    fn nesting_is_bounded_on_both_sides() {
        let deepest = nested(limits::VALUE_DEPTH_MAX);
        assert_eq!(decode(&encode(&deepest).unwrap()).unwrap(), deepest);
        let error = encode(&nested(limits::VALUE_DEPTH_MAX + 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);

        let mut bytes = [tag::LIST, 1].repeat(limits::VALUE_DEPTH_MAX + 1);
        bytes.push(tag::NONE);
        assert_eq!(decode(&bytes).unwrap_err().kind(), ErrorKind::LimitExceeded);
        // Far deeper than any stack: must be refused, not overflow.
        assert!(decode(&[tag::LIST, 1].repeat(1 << 20)).is_err());
    }

    #[test]
    fn nested_lists_cannot_announce_the_same_bytes_twice() {
        // The outer list owes three items; the inner one may not count on the bytes that those need.
        assert!(decode(&[tag::LIST, 3, tag::LIST, 2, 0, 0, 0, 0]).is_ok());
        assert!(decode(&[tag::LIST, 3, tag::LIST, 3, 0, 0, 0, 0]).is_err());
        assert!(decode(&[tag::MAP, 2, 0, tag::LIST, 3, 0, 0, 0]).is_err());
    }

    #[test]
    fn whole_numbers_and_scalars_have_one_form() {
        let long = |last: [u8; 2]| [&[1, 2, 3, 4, 5, 6, 7][..], &last].concat();
        for bytes in [long([8, 1]), long([0x80, 0]), long([0x7f, 0xff]), long([8, 0x80])] {
            let value = Value::Integer(bytes);
            assert_eq!(decode(&encode(&value).unwrap()).unwrap(), value);
        }
        for bytes in [vec![], vec![1; 8], long([8, 0]), long([0x80, 0xff])] {
            assert_eq!(encode(&Value::Integer(bytes.clone())).unwrap_err().kind(), ErrorKind::InvalidArgument);
            let mut encoded = vec![tag::INTEGER];
            put_bytes(&mut encoded, &bytes);
            assert_eq!(decode(&encoded).unwrap_err().kind(), ErrorKind::Protocol, "{bytes:?}");
        }
        assert!(encode(&Value::Scalar { dtype: 1, bytes: [1; 16] }).is_err(), "more than the dtype has");
        assert!(encode(&Value::Scalar { dtype: 99, bytes: [0; 16] }).is_err());
        assert!(decode(&[tag::SCALAR, 99, 0]).is_err() && decode(&[tag::SCALAR, 4, 0]).is_err());
    }

    #[test]
    fn whatever_nests_is_bounded() {
        let wraps: [fn(Value) -> Value; 6] = [
            |inner| Value::Tuple(vec![inner]),
            |inner| Value::Set(vec![inner]),
            |inner| Value::Dict(vec![(inner, Value::None)]),
            |inner| Value::Dict(vec![(Value::None, inner)]),
            |inner| Value::Slice(Box::new([Value::None, inner, Value::None])),
            |inner| Value::Tagged(Box::new((String::new(), inner))),
        ];
        for wrap in wraps {
            let nested = |depth| (0..depth).fold(Value::None, |inner, _| wrap(inner));
            let deepest = nested(limits::VALUE_DEPTH_MAX);
            assert_eq!(decode(&encode(&deepest).unwrap()).unwrap(), deepest);
            assert_eq!(encode(&nested(limits::VALUE_DEPTH_MAX + 1)).unwrap_err().kind(), ErrorKind::LimitExceeded);
        }
        for head in [&[tag::TUPLE, 1][..], &[tag::SET, 1], &[tag::DICT, 1], &[tag::SLICE], &[tag::TAGGED, 0]] {
            let error = decode(&head.repeat(1 << 20)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{head:?}: {error}");
        }
    }

    #[test]
    fn too_many_items_in_one_place_are_refused() {
        let mut bytes = vec![tag::LIST];
        put_varint(&mut bytes, limits::VALUE_ITEMS_MAX as u64 + 1);
        bytes.resize(bytes.len() + limits::VALUE_ITEMS_MAX + 1, tag::NONE);
        assert_eq!(decode(&bytes).unwrap_err().kind(), ErrorKind::LimitExceeded);
        assert!(encode(&Value::List(vec![Value::None; limits::VALUE_ITEMS_MAX + 1])).is_err());
        assert!(encode(&Value::Shape(vec![1; limits::DIMENSIONS_MAX + 1])).is_err());
        assert!(encode(&Value::Dtype(99)).is_err());
    }

    #[test]
    fn a_control_part_is_bounded_on_both_sides() {
        let bytes = Value::Bytes(vec![0; limits::CONTROL_BYTES_MAX]);
        assert_eq!(encode(&bytes).unwrap_err().kind(), ErrorKind::LimitExceeded);
        assert_eq!(to_control(&bytes).unwrap_err().kind(), ErrorKind::InvalidArgument);
        let over = vec![0; limits::CONTROL_BYTES_MAX + 1];
        assert_eq!(decode(&over).unwrap_err().kind(), ErrorKind::LimitExceeded);
        assert_eq!(from_control::<()>(&over).unwrap_err().kind(), ErrorKind::LimitExceeded);
    }

    #[test]
    fn a_value_inside_a_control_message_keeps_its_limits() {
        let message = (7u8, Value::Float(f64::from_bits(0x7ff8_dead_beef_0001)));
        let (number, value): (u8, Value) = from_control(&to_control(&message).unwrap()).unwrap();
        assert_eq!((number, encode(&value).unwrap()), (7, encode(&message.1).unwrap()));

        let mut bytes = vec![7];
        put_bytes(&mut bytes, &[tag::LIST, 1].repeat(limits::VALUE_DEPTH_MAX + 1));
        assert!(from_control::<(u8, Value)>(&bytes).is_err());
    }
}
