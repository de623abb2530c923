//! The words of an exchange, as they stand in the envelopes of messages for the endpoint [`NUMBER`].
//!
//! | word | number in the tag | what comes along |
//! |---|---|---|
//! | plan, worker → server | of the plan | the plan, as control part |
//! | request, worker → server | of the request | the pushed tensors |
//! | answer, server → worker | of the request | the answers; four stamps as control part if they are wanted |
//! | refusal, server → worker | of the request | the error, as control part |
//! | farewell, either way | none | the loss because of which it goes, if there is one, as control part |
//!
//! The context is the exchange. The correlation holds the word (8 bits), flags (8 bits) and, in a request, the number
//! of its plan (16 bits); aux holds the step, if there is one. Links keep messages in order, so a
//! plan is there before the first request that refers to it, and after the last that meant what it replaces.

use sheave_base::{Error, Tag};
use sheave_net::Envelope;
use sheave_wire::{from_control, to_control};

/// The number under which an exchange takes messages from its node. `docs/design` lists those of all services.
pub(crate) const NUMBER: u8 = 6;

const PLAN: u64 = 1;
const REQUEST: u64 = 2;
const ANSWER: u64 = 3;
const REFUSAL: u64 = 4;
const FAREWELL: u64 = 5;

const WANTS_STAMPS: u64 = 1 << 8;
const HAS_STEP: u64 = 1 << 9;

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// From now on this number stands for the plan that comes along.
    Plan(u16),
    Request {
        number: u64,
        plan: u16,
        step: Option<u32>,
        wants_stamps: bool,
    },
    /// The answer to the request of this number.
    Answer(u64),
    /// The request of this number gets no answer.
    Refusal(u64),
    /// Nothing more comes from here.
    Farewell,
}

impl Word {
    pub(crate) fn envelope(self, context: u64) -> Envelope {
        let (code, tag, step) = match self {
            Self::Plan(number) => (PLAN, u64::from(number), 0),
            Self::Request { number, plan, step, wants_stamps } => {
                let stamps = if wants_stamps { WANTS_STAMPS } else { 0 };
                let stepped = if step.is_some() { HAS_STEP } else { 0 };
                (REQUEST | stamps | stepped | u64::from(plan) << 16, number, step.unwrap_or(0))
            }
            Self::Answer(number) => (ANSWER, number, 0),
            Self::Refusal(number) => (REFUSAL, number, 0),
            Self::Farewell => (FAREWELL, 0, 0),
        };
        Envelope { correlation: code, aux: step, ..Envelope::of(NUMBER, Tag(tag), context) }
    }

    /// `None` if this version knows no such word, or would write it otherwise.
    pub(crate) fn of(envelope: &Envelope) -> Option<Self> {
        let (tag, bits) = (envelope.tag.0, envelope.correlation);
        let word = match bits & 0xff {
            PLAN => Self::Plan(tag as u16),
            REQUEST => Self::Request {
                number: tag,
                plan: (bits >> 16) as u16,
                step: (bits & HAS_STEP != 0).then_some(envelope.aux),
                wants_stamps: bits & WANTS_STAMPS != 0,
            },
            ANSWER => Self::Answer(tag),
            REFUSAL => Self::Refusal(tag),
            FAREWELL => Self::Farewell,
            _ => return None,
        };
        (word.envelope(envelope.context) == *envelope).then_some(word)
    }
}

/// What comes along with a refusal: the error, without the name that its operation has here.
pub(crate) fn refusal(error: &Error) -> Vec<u8> {
    // Every error can be written. One that could not be would be a refusal without a reason.
    to_control(&error.clone().unnamed()).unwrap_or_default()
}

/// The error of a refusal. It may be about a third node, as its peer says.
pub(crate) fn read_refusal(bytes: &[u8]) -> Error {
    from_control(bytes).unwrap_or_else(|error: Error| error.context("a refusal without a reason"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_base::{ErrorKind, NodeId};

    #[test]
    fn what_is_said_is_understood() {
        let request = |step, wants_stamps| Word::Request { number: u64::MAX, plan: u16::MAX, step, wants_stamps };
        for word in [
            Word::Plan(7),
            request(None, false),
            request(Some(u32::MAX), true),
            request(Some(0), false),
            Word::Answer(1),
            Word::Refusal(u64::MAX),
            Word::Farewell,
        ] {
            let envelope = word.envelope(99);
            assert_eq!((Word::of(&envelope), envelope.context, envelope.endpoint), (Some(word), 99, NUMBER));
        }
    }

    #[test]
    fn f48_a_refusal_says_all_that_the_error_said() {
        let peer = sheave_base::Peer::named("worker-1").node(NodeId(7));
        let disk = Error::new(ErrorKind::Io, "no space left on device");
        let error = Error::new(ErrorKind::PeerLost, "its process ended").peer(peer).hint("look there").cause(disk);
        let read = read_refusal(&refusal(&error.clone().operation("get_batch").sequence(3)));
        assert_eq!(read, error, "the operation is the server's own");
        for kind in ErrorKind::ALL {
            assert_eq!(read_refusal(&refusal(&Error::new(*kind, "no"))).kind(), *kind);
        }
        for nonsense in [&b""[..], &[0; 8], &[255; 9]] {
            let error = read_refusal(nonsense);
            assert_eq!(error.kind(), ErrorKind::Protocol);
            assert!(error.what().starts_with("a refusal without a reason"), "{error}");
        }
    }

    #[test]
    fn f43_what_nobody_says_is_no_word() {
        let envelope = Word::Farewell.envelope(1);
        assert_eq!(Word::of(&Envelope { correlation: 0, ..envelope }), None);
        assert_eq!(Word::of(&Envelope { correlation: 6, ..envelope }), None);
        assert_eq!(Word::of(&Envelope { correlation: REQUEST | 1 << 32, ..envelope }), None);
        assert_eq!(Word::of(&Envelope { correlation: PLAN, tag: Tag(1 << 16), ..envelope }), None);
        // Bits that mean nothing in a word.
        assert_eq!(Word::of(&Envelope { correlation: ANSWER | WANTS_STAMPS, ..envelope }), None);
        assert_eq!(Word::of(&Envelope { correlation: REQUEST | 1 << 10, ..envelope }), None);
        assert_eq!(Word::of(&Envelope { correlation: REQUEST, aux: 1, ..envelope }), None);
        assert_eq!(Word::of(&Envelope { tag: Tag(1), ..envelope }), None);
    }
}
