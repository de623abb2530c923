//! What the fuzz targets of the store do with their input. The tests here replay the corpus.

use crate::compress::Compression;
use crate::layout::Layout;
use crate::protocol::{
    Barrier, Begin, Close, Closing, Delete, Describe, Done, Examine, Export, Import, Init, Open, SetUpdater, Settle,
    Slices, Sums, Torn, Update, Updater,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sheave_base::ErrorKind;
use sheave_base::fuzz::Input;
use sheave_mesh::Method;
use sheave_wire::{from_control, to_control};

/// Takes the first byte as the number of a method of the store, and the rest as its arguments. Panics only if sheave is
/// wrong: a decoder panicked, or what it accepted is not read again from what it is written as.
pub fn store_request(data: &[u8]) {
    let Some((&number, args)) = data.split_first() else { return };
    match u32::from(number) {
        Open::ID => check::<Open>(args),
        Closing::ID => check::<Closing>(args),
        Close::ID => check::<Close>(args),
        Init::ID => read::<Init>(args).iter().for_each(|init| drop(Layout::of(&init.pieces))),
        Delete::ID => check::<Delete>(args),
        Describe::ID => check::<Describe>(args),
        Update::ID => read::<Update>(args).iter().for_each(|update| {
            drop((Layout::of(&update.push), Layout::of(&update.pull), Update::runs_anyway(update)));
        }),
        Begin::ID => check::<Begin>(args),
        Slices::ID => read::<Slices>(args).iter().for_each(|slices| drop(Layout::of(&slices.push))),
        SetUpdater::ID => check::<SetUpdater>(args),
        Updater::ID => check::<Updater>(args),
        Barrier::ID => check::<Barrier>(args),
        Done::ID => check::<Done>(args),
        Settle::ID => check::<Settle>(args),
        Sums::ID => check::<Sums>(args),
        Examine::ID => check::<Examine>(args),
        Export::ID => check::<Export>(args),
        Import::ID => check::<Import>(args),
        Torn::ID => check::<Torn>(args),
        _ => {}
    }
}

/// Takes the first byte as the number of a method of the store, and the rest as what a server answers. As
/// [`store_request`].
pub fn store_answer(data: &[u8]) {
    let Some((&number, answer)) = data.split_first() else { return };
    match u32::from(number) {
        Describe::ID => drop(read_as::<<Describe as Method>::Answer>(answer, Describe::NAME)),
        Update::ID => drop(read_as::<<Update as Method>::Answer>(answer, Update::NAME)),
        Updater::ID => drop(read_as::<<Updater as Method>::Answer>(answer, Updater::NAME)),
        Sums::ID => drop(read_as::<<Sums as Method>::Answer>(answer, Sums::NAME)),
        Examine::ID => drop(read_as::<<Examine as Method>::Answer>(answer, Examine::NAME)),
        Export::ID => drop(read_as::<<Export as Method>::Answer>(answer, Export::NAME)),
        _ => {}
    }
}

/// Values that a compressed gradient of the fuzz target has at most.
const ELEMENTS_MAX: u16 = 1024;

/// Takes the first bytes as a codec, its threshold and how many values it has coded, and the rest as what it has coded
/// them to. Panics only if sheave is wrong: a codec panicked, took what no encoder writes, or decodes it otherwise than
/// it adds it.
pub fn store_compression(data: &[u8]) {
    let mut input = Input::new(data);
    let (which, threshold) = (input.byte(), f32::from_bits(input.word() as u32));
    let elements = usize::from(input.short() % ELEMENTS_MAX);
    let coded = input.bytes(usize::MAX);
    let codec = match which % 5 {
        0 => Compression::None,
        1 => Compression::Fp16,
        2 => Compression::Bf16,
        3 => Compression::OneBit { threshold },
        _ => Compression::TwoBit { threshold },
    };
    let name = codec.name();
    assert_eq!(Compression::parse(name).expect("it has a name").name(), name);
    if let Err(error) = codec.check() {
        return assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    let mut values = vec![7.0; elements];
    if let Err(error) = codec.decode_into(coded, &mut values) {
        let fits = coded.len() == codec.encoded_len_bytes(elements);
        assert_eq!(error.kind(), if fits { ErrorKind::Protocol } else { ErrorKind::Mismatch }, "{error}");
        return assert!(values.iter().all(|value| *value == 7.0), "nothing is changed where it is refused");
    }
    let mut sum = vec![0.0; elements];
    codec.add_into(coded, &mut sum).expect("what can be decoded can be added");
    let is_same = |(sum, value): (&f32, &f32)| sum == value || sum.is_nan() && value.is_nan();
    assert!(sum.iter().zip(&values).all(is_same), "{name}: added to zeros it is itself");
    let mut residual = vec![0.0; if codec.has_residual() { elements } else { 0 }];
    let mut again = vec![0xa5; coded.len()];
    codec.encode(&values, &mut residual, &mut again).expect("as many as were decoded");
    // A NaN may lose its payload, and one bit says nothing of a value that its threshold takes for the other.
    let is_exact = match codec {
        Compression::None => true,
        Compression::OneBit { threshold } => (-1.0..1.0).contains(&threshold),
        Compression::TwoBit { .. } => true,
        Compression::Fp16 | Compression::Bf16 => values.iter().all(|value| !value.is_nan()),
    };
    assert!(!is_exact || again == coded, "{name}: {values:?} has one form");
}

fn check<M: Method>(bytes: &[u8]) {
    let _ = read::<M>(bytes);
}

fn read<M: Method>(bytes: &[u8]) -> Option<M::Args> {
    read_as(bytes, M::NAME)
}

fn read_as<T: Serialize + DeserializeOwned>(bytes: &[u8], name: &str) -> Option<T> {
    let said = from_control::<T>(bytes).ok()?;
    // Bytes, not what they say: a NaN differs from itself.
    let written = to_control(&said).ok();
    let again = written.as_ref().and_then(|bytes| from_control::<T>(bytes).ok());
    let rewritten = again.and_then(|said| to_control(&said).ok());
    assert!(written.is_some() && rewritten == written, "{name}: it is read otherwise than it is written");
    Some(said)
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::Target;
    use super::*;
    use crate::key::Key;
    use crate::kind::Kind;
    use crate::layout::Cutting;
    use crate::learn::Outline;
    use crate::protocol::{Described, DescribedSlice, Form, Gone, Head, OfStore, OnWorkerLoss, Piece, Storage};
    use crate::updater::Spec;
    use sheave_base::Error;

    /// What serde reserves for a list of announced length before it has seen the items.
    const SERDE_BYTES: usize = 16 << 20;

    const REQUEST: Target =
        Target { name: "store_request", run: store_request, fixed_bytes: SERDE_BYTES, ratio: 1 << 10 };
    const ANSWER: Target = Target { name: "store_answer", run: store_answer, fixed_bytes: SERDE_BYTES, ratio: 1 << 10 };
    const COMPRESSION: Target =
        Target { name: "store_compression", run: store_compression, fixed_bytes: 64 << 10, ratio: 64 };

    fn seed<M: Method>(args: &M::Args) -> (&'static str, Vec<u8>) {
        let number = u8::try_from(M::ID).expect("there are few");
        (M::NAME, [vec![number], to_control(args).expect("it is short")].concat())
    }

    /// One request of each sort that has arguments of its own.
    fn seeds() -> Vec<(&'static str, Vec<u8>)> {
        let piece = |form| Piece { number: 7 << 40, len_bytes: 16, packed: form != Form::Rows, form };
        let pieces = vec![piece(Form::Plain), piece(Form::Ids), piece(Form::Rows), piece(Form::Asked)];
        let cutting = Cutting { servers: 2, cut_elements: 1000, slice_elements: 1 << 18 };
        let on_worker_loss = OnWorkerLoss::Shrink;
        let described = Described { key: Key::from("w"), dtype: 1, shape: vec![4, u64::MAX], storage: Storage::Rows };
        let slices = vec![DescribedSlice { described, slice: 3, start: 12 }];
        let coded = vec![piece(Form::Coded(Compression::Fp16))];
        let updater = Spec::Named("mean".into());
        let reason = Error::new(ErrorKind::LimitExceeded, "no room").operation("slices").hint("wait");
        vec![
            seed::<Open>(&Open { store: 1, kind: Kind::DistSsp, cutting, staleness: 3, on_worker_loss }),
            seed::<Close>(&OfStore { store: 300 }),
            seed::<Init>(&Init { store: 1, slices, pieces: pieces.clone() }),
            seed::<Describe>(&Describe { store: 1, numbers: vec![0, u64::MAX] }),
            seed::<Update>(&Update { store: 1, push: pieces.clone(), pull: coded }),
            seed::<Begin>(&Begin { store: 1, operation: 9, slices: 2 }),
            seed::<Slices>(&Slices { store: 1, operation: 9, push: pieces }),
            seed::<SetUpdater>(&SetUpdater { store: 1, updater, is_trial: true }),
            seed::<Settle>(&Settle { store: 1, worker: 2, heard: [0xa5; 32] }),
            seed::<Sums>(&Sums { store: 1, key: 5, start: 64, sums: None }),
            seed::<Export>(&Export { store: 1, number: 5, with_value: true }),
            seed::<Torn>(&Torn { store: 1, operation: Some(9), reason }),
        ]
    }

    #[test]
    fn f51_the_corpus_replays() {
        REQUEST.seeds_are_current(&seeds());
        REQUEST.replay();
    }

    #[test]
    fn f43_answers_replay() {
        fn answer<M: Method>(name: &'static str, answer: &M::Answer) -> (&'static str, Vec<u8>) {
            let number = u8::try_from(M::ID).expect("there are few");
            (name, [vec![number], to_control(answer).expect("it is short")].concat())
        }
        let described = Described { key: Key::from(7), dtype: 8, shape: vec![3, 4], storage: Storage::Dense };
        let outline = Outline { steps: Some(300), parts: vec!["momentum".into()], has_master: true };
        let (head, none) =
            (Head { version: 9, outline }, Outline { steps: None, parts: Vec::new(), has_master: false });
        let adam = Spec::Optimizer(Box::new(sheave_optim::Rule::adam(1e-3).into()));
        ANSWER.seeds_are_current(&[
            answer::<Describe>("describe", &vec![None, Some(described)]),
            answer::<Update>("update", &Gone(vec![0, 300])),
            answer::<Updater>("updater", &adam),
            answer::<Updater>("updater_named", &Spec::Named("mean".into())),
            answer::<Examine>("examine", &vec![Head { version: 0, outline: none }]),
            answer::<Export>("export", &head),
        ]);
        ANSWER.replay();
    }

    #[test]
    fn f43_compressed_gradients_replay() {
        let gradient: Vec<f32> = (0..37).map(|at| (at as f32 - 18.0) / 11.0).collect();
        let seed = |which: u8, codec: Compression| {
            let mut coded = vec![0; codec.encoded_len_bytes(gradient.len())];
            let mut residual = vec![0.0; gradient.len()];
            codec.encode(&gradient, &mut residual, &mut coded).expect("the lengths fit");
            let threshold = u64::from(codec.threshold().unwrap_or_default().to_bits());
            [&[which][..], &threshold.to_le_bytes(), &(gradient.len() as u16).to_le_bytes(), &coded].concat()
        };
        COMPRESSION.seeds_are_current(&[
            ("none", seed(0, Compression::None)),
            ("fp16", seed(1, Compression::Fp16)),
            ("bf16", seed(2, Compression::Bf16)),
            ("one_bit", seed(3, Compression::OneBit { threshold: 0.25 })),
            ("two_bit", seed(4, Compression::TwoBit { threshold: 0.5 })),
        ]);
        COMPRESSION.replay();
    }

    /// Each prefix of the arguments is refused: nothing is left to chance where a request is cut off.
    #[test]
    fn f51_no_request_is_taken_that_is_cut_off() {
        fn refuse<M: Method>(args: &M::Args) {
            let whole = to_control(args).expect("it is short");
            assert!(from_control::<M::Args>(&whole).is_ok(), "{}", M::NAME);
            for length in 0..whole.len() {
                assert!(from_control::<M::Args>(&whole[..length]).is_err(), "{} of {length} bytes", M::NAME);
            }
        }
        let piece = Piece { number: 7, len_bytes: 16, packed: true, form: Form::Plain };
        refuse::<Update>(&Update { store: 1, push: vec![piece], pull: vec![piece; 3] });
        refuse::<Slices>(&Slices { store: 1, operation: 2, push: vec![piece] });
        refuse::<Settle>(&Settle { store: 1, worker: 2, heard: [1; 32] });
        let reason = Error::new(ErrorKind::LimitExceeded, "no room");
        refuse::<Torn>(&Torn { store: 1, operation: None, reason });
        refuse::<Describe>(&Describe { store: 1, numbers: vec![1, 2] });
    }
}
