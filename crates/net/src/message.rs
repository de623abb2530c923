//! What travels: an envelope, a small control part, and tensors.

use sheave_base::{Error, ErrorKind, LinkId, Result, Tag};
use sheave_tensor::{Mode, ReadLease, Tensor, WriteLease};
use sheave_wire::{Header, Kind, TensorSpec};
use smallvec::{SmallVec, smallvec};

/// The tensors of a message, or places for them. As many as most messages have need no memory of their own.
pub type Tensors = SmallVec<[Tensor; 2]>;
/// The tensors of a message on its way out.
pub type Parts = SmallVec<[Part; 2]>;
/// Write leases for the places of a message.
pub type WriteLeases = SmallVec<[WriteLease; 2]>;

/// The part of a message that says what it is and whom it is for. It becomes the header on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The [endpoint](crate::Endpoint) that takes it, or 0 for a matched receive. The owner of an endpoint decides what
    /// the other fields mean.
    pub endpoint: u8,
    /// The key by which a receive is matched, besides source and context.
    pub tag: Tag,
    /// The group or service that the message belongs to; a receive is matched by it too.
    pub context: u64,
    /// The number that an answer has in common with its request; zero where nothing is answered.
    pub correlation: u64,
    /// A word that only the owner of the endpoint reads and writes; zero where it has no use for one.
    pub aux: u32,
}

impl Envelope {
    /// A message of group `context` for a matched receive.
    #[must_use]
    pub fn data(context: u64, tag: Tag) -> Self {
        Self::of(0, tag, context)
    }

    /// A message for an endpoint.
    #[must_use]
    pub const fn of(endpoint: u8, tag: Tag, context: u64) -> Self {
        Self { endpoint, tag, context, correlation: 0, aux: 0 }
    }

    /// The header of a message with this envelope; its lengths are zero.
    pub(crate) fn header(&self) -> Header {
        Header {
            tag: self.tag.0,
            context: self.context,
            correlation: self.correlation,
            aux: self.aux,
            endpoint: self.endpoint,
            ..Header::new(Kind::Data)
        }
    }

    /// The envelope of a message with this header.
    pub(crate) fn of_header(header: &Header) -> Self {
        let Header { tag, context, correlation, aux, endpoint, .. } = *header;
        Self { endpoint, tag: Tag(tag), context, correlation, aux }
    }

    /// The envelope of an urgent message with this header.
    pub(crate) fn of_urgent(header: &Header) -> Result<Self> {
        let Header { kind, part_count, payload_bytes, endpoint, .. } = *header;
        if kind != Kind::Urgent || part_count != 0 || payload_bytes != 0 || endpoint == 0 {
            let found = format!("{part_count} tensors of {payload_bytes} bytes for endpoint {endpoint}");
            let what =
                format!("the peer sent an urgent message of kind {kind:?} with {found}; expected none, and not 0");
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        Ok(Self::of_header(header))
    }
}

/// A tensor and how it leaves.
#[derive(Debug)]
pub struct Part {
    pub(crate) tensor: Tensor,
    pub(crate) mode: Mode,
    /// Keeps writers away from the tensor while it is on its way.
    pub(crate) lease: Option<ReadLease>,
}

impl Part {
    /// A tensor that leaves by `mode`.
    #[must_use]
    pub fn new(tensor: Tensor, mode: Mode) -> Self {
        Self { tensor, mode, lease: None }
    }

    /// The tensor.
    #[must_use]
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// The tensor alone.
    #[must_use]
    pub fn into_tensor(self) -> Tensor {
        self.tensor
    }

    /// How it leaves.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }
}

/// A message on its way out.
#[derive(Debug)]
pub struct Outgoing {
    /// What it is.
    pub envelope: Envelope,
    /// Small structured data beside the tensors.
    pub control: Vec<u8>,
    /// The tensors, in order.
    pub parts: Parts,
}

impl Outgoing {
    /// A message of one tensor.
    #[must_use]
    pub fn tensor(envelope: Envelope, tensor: Tensor, mode: Mode) -> Self {
        Self { envelope, control: Vec::new(), parts: smallvec![Part::new(tensor, mode)] }
    }

    /// A message without tensors.
    #[must_use]
    pub fn control(envelope: Envelope, control: Vec<u8>) -> Self {
        Self { envelope, control, parts: SmallVec::new() }
    }

    /// Refuses what no link carries.
    pub(crate) fn check_limits(&self) -> Result<()> {
        let part_count = u16::try_from(self.parts.len()).unwrap_or(u16::MAX);
        let control_bytes = u32::try_from(self.control.len()).unwrap_or(u32::MAX);
        let payload_bytes = self.payload_bytes();
        Header { part_count, control_bytes, payload_bytes, ..self.envelope.header() }.check_limits()
    }

    /// Bytes of all tensors.
    pub(crate) fn payload_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.tensor.len_bytes() as u64).sum()
    }
}

/// A tensor as the wire describes it.
pub(crate) fn spec_of(tensor: &Tensor) -> TensorSpec {
    TensorSpec::new(tensor.dtype().code(), tensor.shape().dimensions())
}

/// A message that arrived.
#[derive(Debug)]
pub struct Message {
    /// What it is.
    pub envelope: Envelope,
    /// The link that it came over.
    pub source: LinkId,
    /// Its number on that link.
    pub sequence: u64,
    /// Small structured data beside the tensors.
    pub control: Vec<u8>,
    /// The tensors, in order. Those that were received in place are handles to the memory that the receiver named.
    pub parts: Tensors,
}

impl Message {
    /// The only tensor of a message of one tensor.
    pub fn into_tensor(mut self) -> Result<Tensor> {
        if self.parts.len() != 1 {
            return Err(Error::new(
                ErrorKind::Mismatch,
                format!("a message with {} tensors where one was expected", self.parts.len()),
            ));
        }
        Ok(self.parts.remove(0))
    }
}
