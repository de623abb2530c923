//! How requests and answers are written, by name and by number.
//!
//! The tag of a request has two halves: the upper one is the number of the method, the lower one how many references
//! come along. No method has the number 0, which says instead that the method has a *name*:
//!
//! | form | control part of a request | control part of an answer |
//! |---|---|---|
//! | by number | the references, 16 bytes each; the arguments in the compact codec | 2, the references, the result |
//! | by name | the name and the arguments, each a [`Value`]; references stand in the value | 0, the value |
//! | both | | 1, an [`Error`]; or 3, alone: no such service |
//!
//! So neither end can take one form for the other. What is by number is encoded once, straight into the control part,
//! and its references can be found without knowing what the arguments are. Both ends count and adopt just these.

use super::Answer;
use super::answer;
use crate::endpoints::REQUESTS;
use crate::reference::{Brought, Mention, Ref, names_in};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sheave_base::{Error, ErrorKind, NodeId, Result, Tag, limits};
use sheave_net::{Message, Parts};
use sheave_wire::codec::{self, to_control_behind};
use sheave_wire::{Value, from_control};

/// First byte of an answer by number.
const BY_NUMBER: u8 = 2;

/// The whole of an answer where nobody serves.
const NO_SERVICE: u8 = 3;

/// Bytes of a reference beside arguments: its owner and its number there, little-endian.
const REFERENCE_BYTES: usize = 16;

/// Room for most requests and answers, so that their encoding allocates once.
const USUAL_BYTES: usize = 64;

/// The tag of a request: which method, and how many references come along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestTag {
    /// Zero if the method has a name.
    pub(super) method: u32,
    pub(super) references: u32,
}

impl RequestTag {
    pub(super) fn to_tag(self) -> Tag {
        Tag(u64::from(self.method) << 32 | u64::from(self.references))
    }

    pub(super) fn of(tag: Tag) -> Self {
        Self { method: (tag.0 >> 32) as u32, references: tag.0 as u32 }
    }
}

/// An answer as it leaves.
pub(super) struct Written {
    pub(super) control: Vec<u8>,
    /// The references in it.
    pub(super) names: Vec<Mention>,
    pub(super) parts: Parts,
}

impl Written {
    pub(super) fn value(value: &Value, parts: Parts) -> Result<Self> {
        value.check_tensors(parts.len())?;
        Ok(Self { control: answer::encode(Ok(value))?, names: names_in(value), parts })
    }

    pub(super) fn typed<A: Serialize>(result: &A, parts: Parts, refs: &[Ref]) -> Result<Self> {
        let names: Vec<Mention> = refs.iter().map(Ref::mention).collect();
        let mut control = Vec::with_capacity(USUAL_BYTES);
        control.push(BY_NUMBER);
        put_names(&names, &mut control);
        Ok(Self { control: to_control_behind(control, result)?, names, parts })
    }

    pub(super) fn error(error: &Error) -> Result<Self> {
        Ok(Self { control: answer::encode(Err(error))?, names: Vec::new(), parts: Parts::new() })
    }

    /// The answer of a node that has no such service. The caller knows the name, of which this node knows the hash.
    pub(super) fn no_service() -> Self {
        Self { control: vec![NO_SERVICE], names: Vec::new(), parts: Parts::new() }
    }
}

/// That a node has no service of this name.
pub(super) fn no_service(service: &str) -> Error {
    let hint = "is the node of the right role, and was its service started?";
    Error::new(ErrorKind::NotFound, format!("the node has no service \"{service}\"")).hint(hint).not_begun()
}

fn put_names(names: &[Mention], control: &mut Vec<u8>) {
    for mention in names {
        control.extend_from_slice(&mention.name.owner.0.to_le_bytes());
        control.extend_from_slice(&mention.id().to_le_bytes());
    }
}

/// Splits `bytes` behind so many references; `None` if they are not there.
fn split(bytes: &[u8], references: u64) -> Option<(&[u8], &[u8])> {
    bytes.split_at_checked(usize::try_from(references).ok()?.checked_mul(REFERENCE_BYTES)?)
}

fn names_of(bytes: &[u8]) -> Vec<Mention> {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let name = |bytes: &[u8]| Mention::of(NodeId(word(&bytes[..8])), word(&bytes[8..]));
    bytes.chunks_exact(REFERENCE_BYTES).map(name).collect()
}

/// The references that a request or an answer brings. One that cannot be read brings none, and says so where it is read
/// for good.
pub(crate) fn references_in(message: &Message) -> Vec<Mention> {
    let (control, tag) = (&message.control[..], message.envelope.tag);
    let value = |bytes: &[u8]| {
        let mut names = Vec::new();
        let read = codec::visit_references(bytes, &mut |node, id| names.push(Mention::of(node, id)));
        if read.is_ok() { names } else { Vec::new() }
    };
    let listed = |bytes, count| split(bytes, count).map(|(names, _)| names_of(names)).unwrap_or_default();
    if message.envelope.endpoint == REQUESTS {
        return match RequestTag::of(tag) {
            RequestTag { references: 0, .. } => Vec::new(),
            RequestTag { method: 0, .. } => codec::first_text(control).map(|(_, rest)| value(rest)).unwrap_or_default(),
            RequestTag { references, .. } => listed(control, references.into()),
        };
    }
    match control.split_first() {
        Some((&BY_NUMBER, rest)) => listed(rest, tag.0),
        Some((_, rest)) if tag.0 > 0 => value(rest),
        _ => Vec::new(),
    }
}

/// The method of a request, for those who wait for what it is to do.
pub(crate) fn method_of(request: &Message) -> String {
    match (RequestTag::of(request.envelope.tag).method, codec::first_text(&request.control)) {
        (0, Some((method, _))) => method.to_owned(),
        (number, _) => format!("method {number}"),
    }
}

/// The control part of a request whose method has a name.
pub(super) fn named_request(method: &str, args: &Value) -> Result<Vec<u8>> {
    check_method(method)?;
    let mut control = Vec::with_capacity(USUAL_BYTES);
    codec::encode_text_to(method, &mut control)?;
    codec::encode_to(args, &mut control)?;
    Ok(control)
}

fn check_method(method: &str) -> Result<()> {
    if method.len() > limits::HANDSHAKE_TEXT_BYTES_MAX {
        let what =
            format!("a method's name of {} bytes; the limit is {}", method.len(), limits::HANDSHAKE_TEXT_BYTES_MAX);
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    Ok(())
}

/// The control part of a request whose method has a name, and whose arguments are a list of items that are written.
pub(super) fn named_list(method: &str, count: usize, items: &[u8]) -> Result<Vec<u8>> {
    check_method(method)?;
    let mut control = Vec::with_capacity(USUAL_BYTES + items.len());
    codec::encode_text_to(method, &mut control)?;
    codec::encode_list_head_to(count, &mut control)?;
    control.extend_from_slice(items);
    if control.len() > limits::CONTROL_BYTES_MAX {
        let what = format!("arguments of {} bytes; the limit is {}", items.len(), limits::CONTROL_BYTES_MAX);
        return Err(Error::new(ErrorKind::LimitExceeded, what));
    }
    Ok(control)
}

/// The control part of a request whose method has a number.
pub(super) fn numbered_request<A: Serialize>(names: &[Mention], args: &A) -> Result<Vec<u8>> {
    let mut control = Vec::with_capacity(USUAL_BYTES);
    put_names(names, &mut control);
    to_control_behind(control, args)
}

/// The arguments of a method that has a number.
pub(super) fn read_args<A: DeserializeOwned>(control: &[u8], references: u32, brought: &mut Brought) -> Result<A> {
    read_behind(control, references.into(), brought.refs.len(), brought.error.take(), "request")
}

/// What stands behind the references, if all of them mean something here.
fn read_behind<T: DeserializeOwned>(
    bytes: &[u8],
    announced: u64,
    adopted: usize,
    refusal: Option<Error>,
    what: &str,
) -> Result<T> {
    let Some((_, rest)) = split(bytes, announced) else {
        let what = format!("a {what} of {} bytes that announces {announced} references", bytes.len());
        return Err(Error::new(ErrorKind::Protocol, what));
    };
    let read = from_control(rest)?;
    match refusal {
        Some(error) => Err(error),
        None if adopted as u64 == announced => Ok(read),
        None => Err(Error::new(ErrorKind::Protocol, format!("{adopted} of {announced} references of a {what} came"))),
    }
}

/// How the result of one kind of call is read.
pub(super) type Read<T> = fn(Message, Brought) -> Result<Answer<T>>;

/// Reads the answer of a method that has a number.
pub(super) fn read_numbered<A: DeserializeOwned>(message: Message, mut brought: Brought) -> Result<Answer<A>> {
    let announced = message.envelope.tag.0;
    match message.control.split_first() {
        Some((&BY_NUMBER, rest)) => {
            let value = read_behind(rest, announced, brought.refs.len(), brought.error.take(), "answer")?;
            Ok(Answer { value, tensors: message.parts.into_vec(), refs: brought.refs })
        }
        // What has failed is written alike in both forms.
        _ => match answer::decode(message, brought) {
            Err(error) => Err(error),
            Ok(_) => Err(Error::new(ErrorKind::Protocol, "an answer by name to a request by number")),
        },
    }
}

/// Whether an answer says that there is no such service.
pub(super) fn says_no_service(message: &Message) -> bool {
    message.control == [NO_SERVICE]
}
