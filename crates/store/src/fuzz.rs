//! What the fuzz target of the store does with its input. The tests here replay the corpus.

use crate::layout::Layout;
use crate::protocol::{
    Barrier, Begin, Close, Closing, Delete, Describe, Done, Examine, Export, Import, Init, Open, SetUpdater, Settle,
    Slices, Sums, Update, Updater,
};
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
        _ => {}
    }
}

fn check<M: Method>(bytes: &[u8]) {
    let _ = read::<M>(bytes);
}

fn read<M: Method>(bytes: &[u8]) -> Option<M::Args> {
    let args = from_control::<M::Args>(bytes).ok()?;
    // Bytes, not arguments: a NaN differs from itself.
    let written = to_control(&args).ok();
    let again = written.as_ref().and_then(|bytes| from_control::<M::Args>(bytes).ok());
    let rewritten = again.and_then(|args| to_control(&args).ok());
    assert!(written.is_some() && rewritten == written, "{}: it is read otherwise than it is written", M::NAME);
    Some(args)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::Compression;
    use crate::key::Key;
    use crate::kind::Kind;
    use crate::layout::Cutting;
    use crate::protocol::{Described, DescribedSlice, Form, OfStore, OnWorkerLoss, Piece, Storage};
    use crate::updater::Spec;
    use std::path::PathBuf;

    /// The whole corpus is replayed with changed bits, so an input has to be small.
    const SEED_BYTES_MAX: usize = 4096;

    fn directory() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/store_request")
    }

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
        ]
    }

    #[test]
    fn seeds_are_what_the_current_format_makes() {
        let is_blessing = std::env::var_os("SHEAVE_BLESS").is_some();
        for (name, bytes) in seeds() {
            let path = directory().join(name);
            if is_blessing {
                std::fs::create_dir_all(directory()).expect("it can be made");
                std::fs::write(&path, &bytes).expect("it can be written");
            }
            assert_eq!(std::fs::read(&path).expect("it is there"), bytes, "fuzz/corpus/store_request/{name}");
            assert!(bytes.len() <= SEED_BYTES_MAX, "{name}");
        }
    }

    /// Every input that is checked in, cut off anywhere and with any bit flipped, on stable Rust.
    #[test]
    fn f51_the_corpus_replays() {
        let mut count = 0;
        for entry in std::fs::read_dir(directory()).expect("there is a corpus") {
            let mut input = std::fs::read(entry.expect("it can be read").path()).expect("it can be read");
            count += 1;
            (0..=input.len()).for_each(|length| store_request(&input[..length]));
            for bit in 0..input.len() * 8 {
                input[bit / 8] ^= 1 << (bit % 8);
                store_request(&input);
                input[bit / 8] ^= 1 << (bit % 8);
            }
        }
        assert!(count > 0, "no corpus");
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
        refuse::<Describe>(&Describe { store: 1, numbers: vec![1, 2] });
    }
}
