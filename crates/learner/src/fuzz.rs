//! What the fuzz target of gradient servers does with its input. The tests here replay the corpus.
//!
//! It takes any bytes and panics only if sheave is wrong: a decoder panicked, what it accepted is read otherwise than
//! it is written, or what it refused is no error of a peer's.

use crate::model::Model;
use crate::protocol::{Forward, Outcome, Push, Settle};
use sheave_base::{ErrorKind, Result};
use sheave_wire::{Value, codec};

/// The value of a message of a client, a secondary or the primary, which is read as each of them.
pub fn learner_words(data: &[u8]) {
    let Ok((value, _)) = codec::decode_first(data) else { return };
    check(Push::read(value.clone()), |push| push.to_value(), Push::read);
    check(Forward::read(value.clone()), Forward::to_value, Forward::read);
    check(Settle::read(value.clone()), Settle::to_value, Settle::read);
    check(Outcome::read(value.clone()), |outcomes| Outcome::to_value(outcomes), Outcome::read);
    if let Some(model) = Model::read(value) {
        assert_eq!(Model::read(model.to_value()), Some(model));
    }
}

fn check<T: PartialEq + std::fmt::Debug>(
    outcome: Result<T>,
    write: impl Fn(&T) -> Value,
    read: impl Fn(Value) -> Result<T>,
) {
    match outcome {
        Ok(word) => assert_eq!(read(write(&word)).expect("what was written can be read"), word),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Protocol, "{error}"),
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::Target;
    use super::*;
    use crate::protocol::Asked;
    use crate::reducer::GradientId;
    use sheave_base::NodeId;
    use sheave_tensor::Dtype;
    use std::time::Duration;

    const WORDS: Target = Target { name: "learner_words", run: learner_words, fixed_bytes: 64 << 10, ratio: 4096 };

    #[test]
    fn words_of_gradient_servers_replay() {
        let id = |number| GradientId { node: NodeId(u64::MAX), client: 3, number };
        let push = Push { client: 7, number: u64::MAX, fingerprint: 1 << 63, patience: None };
        let patient = Push { patience: Some(Duration::from_millis(5)), ..push };
        let forward = Forward { started: Some(2), fingerprint: 3, ids: vec![id(1), id(2)], dropped: vec![id(9)] };
        let first = Forward { started: None, ids: Vec::new(), ..forward.clone() };
        let gone = Asked { number: 5, gone: Some(NodeId(1)), was_taken: true };
        let asked = vec![gone, Asked { number: 6, gone: None, was_taken: false }];
        let outcomes = [Outcome::Pending, Outcome::Queued, Outcome::Applied, Outcome::Dropped, Outcome::Lost];
        let model = Model::new([("a", Dtype::F32, [2, 3].into()), ("b", Dtype::F64, [1].into())]).expect("a model");
        let seeds = [
            ("push", push.to_value()),
            ("push_with_patience", patient.to_value()),
            ("forward", forward.to_value()),
            ("forward_of_drops", first.to_value()),
            ("settle", Settle { client: 1, floor: 4, asked }.to_value()),
            ("outcomes", Outcome::to_value(&outcomes)),
            ("model", model.to_value()),
        ];
        WORDS.seeds_are_current(&seeds.map(|(name, value)| (name, codec::encode(&value).expect("it can be written"))));
        WORDS.replay();
    }
}
