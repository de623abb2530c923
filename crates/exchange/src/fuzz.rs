//! What the fuzz targets of the exchange do with their input. The tests here replay the corpus.
//!
//! Each takes any bytes and panics only if sheave is wrong: a decoder panicked, or what it accepted is not read again
//! from what it is written as, or what it refused it for is no error of a peer's.

use crate::clock;
use crate::plan;
use crate::word::{Word, read_refusal, refusal};
use sheave_base::limits::{DIMENSIONS_MAX, PARTS_MAX};
use sheave_base::{ErrorKind, Tag};
use sheave_net::Envelope;

/// A plan, as a worker sends it to its servers.
pub fn exchange_plan(data: &[u8]) {
    let plan = match plan::decode(data) {
        Ok(plan) => plan,
        Err(error) => return assert_eq!(error.kind(), ErrorKind::Protocol, "{error}"),
    };
    assert!(plan.push_keys.len() <= PARTS_MAX && plan.pulls.len() <= PARTS_MAX);
    assert!(plan.pulls.iter().all(|slot| slot.shape.dimensions().len() <= DIMENSIONS_MAX));
    let written = plan::encode(&plan.push_keys, &plan.pulls).expect("what was read can be written");
    assert!(written.len() <= data.len(), "numbers are written in their shortest form");
    assert_eq!(plan::decode(&written).expect("what was written can be read"), plan);
}

/// A word: the tag, the correlation and the word `aux` of its envelope, then its control part, which is read as a
/// refusal and as stamps too.
pub fn exchange_word(data: &[u8]) {
    let Some((tag, rest)) = data.split_first_chunk() else { return };
    let Some((correlation, rest)) = rest.split_first_chunk() else { return };
    let Some((aux, control)) = rest.split_first_chunk() else { return };
    let (correlation, aux) = (u64::from_le_bytes(*correlation), u32::from_le_bytes(*aux));
    let envelope = Envelope { correlation, aux, ..Envelope::of(crate::word::NUMBER, Tag(u64::from_le_bytes(*tag)), 7) };
    if let Some(word) = Word::of(&envelope) {
        let written = word.envelope(envelope.context);
        assert_eq!(written, envelope, "{word:?} has one form");
        assert_eq!(Word::of(&written), Some(word));
    }
    let error = read_refusal(control);
    // A name that its operation has at the server is no part of it, and a reason that cannot be read is one too.
    assert_eq!(read_refusal(&refusal(&error)), error.unnamed());
    if let Some(stamps) = clock::decode(control) {
        assert_eq!(clock::encode(stamps), control);
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::Target;
    use super::*;
    use crate::plan::Slot;
    use sheave_base::{Error, NodeId, Peer};
    use sheave_tensor::{Dtype, Shape};

    /// Memory that serde reserves for a list of announced length before it has seen the items.
    const SERDE_BYTES: usize = 4 << 20;

    const PLAN: Target = Target { name: "exchange_plan", run: exchange_plan, fixed_bytes: SERDE_BYTES, ratio: 512 };
    const WORD: Target = Target { name: "exchange_word", run: exchange_word, fixed_bytes: 64 << 10, ratio: 64 };

    fn slot(key: u64, dtype: Dtype, shape: &[u64]) -> Slot {
        Slot { key, dtype, shape: Shape::new(shape).expect("few dimensions") }
    }

    #[test]
    fn f43_plans_replay() {
        let deep = slot(3, Dtype::Bool, &[1; DIMENSIONS_MAX]);
        let seeds = [
            ("empty", plan::encode(&[], &[])),
            ("one", plan::encode(&[7], &[slot(7, Dtype::F32, &[2, 3])])),
            ("several", plan::encode(&[1, u64::MAX], &[slot(1, Dtype::Bf16, &[0]), slot(u64::MAX, Dtype::I64, &[])])),
            ("deep", plan::encode(&[3], &[deep])),
        ];
        PLAN.seeds_are_current(&seeds.map(|(name, bytes)| (name, bytes.expect("it can be written"))));
        PLAN.replay();
    }

    #[test]
    fn f43_words_replay() {
        let request = |step, wants_stamps| Word::Request { number: 300, plan: 2, step, wants_stamps };
        let error = Error::new(ErrorKind::PeerLost, "it left").peer(Peer::named("worker-1").node(NodeId(7)));
        let stamps = clock::encode([1, 2, 3, u64::MAX]);
        let words = [
            ("plan", Word::Plan(2), Vec::new()),
            ("request", request(None, false), Vec::new()),
            ("request_of_a_step", request(Some(9), true), Vec::new()),
            ("answer", Word::Answer(300), stamps),
            ("refusal", Word::Refusal(300), refusal(&error)),
            ("farewell", Word::Farewell, Vec::new()),
        ];
        let seed = |(name, word, control): (_, Word, Vec<u8>)| {
            let Envelope { tag, correlation, aux, .. } = word.envelope(7);
            let words = [&tag.0.to_le_bytes()[..], &correlation.to_le_bytes(), &aux.to_le_bytes(), &control];
            (name, words.concat())
        };
        WORD.seeds_are_current(&words.map(seed));
        WORD.replay();
    }
}
