//! Stores in files: a training that is broken off and resumed elsewhere ends with the same bits, and files that do not
//! fit are refused before anything changes.

use crate::common;
use crate::common::{job_of, wait};
use crate::rules;
use crate::rules::numbers;
use half::{bf16, f16};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, Result};
use sheave_optim::{Decay, Optimizer, Rule, Sgd};
use sheave_store::{Config, Key, Kind, KvStore, Rows, ServerConfig, Updater};
use sheave_tensor::{Dtype, Shape, Tensor, file};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const WORKERS: u32 = 2;
const STEPS: u64 = 2;
const NOBODY: u64 = 9;

fn config() -> Config {
    Config { cut_elements: 10_000, slice_elements: 8192, ..Kind::DistSync.into() }
}

fn jobs() -> impl Iterator<Item = (u32, Transport)> {
    [1, 2, 3].into_iter().flat_map(|servers| [(servers, Transport::Shm), (servers, Transport::Tcp)])
}

/// A folder of this test's own, which is gone when this is.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sheave-checkpoints-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Keys of both kinds, with names that look alike, of all floats, some cut and one without elements.
fn keys() -> Vec<(Key, Dtype, Vec<u64>)> {
    vec![
        (Key::from(3), Dtype::F32, vec![60_000]),
        (Key::from("3"), Dtype::F32, vec![3, 4097]),
        (Key::from("layer/0.weight \u{e9}\n"), Dtype::F32, vec![7]),
        (Key::from("half"), Dtype::F16, vec![12_300]),
        (Key::from("brain"), Dtype::Bf16, vec![5, 5]),
        (Key::from("double"), Dtype::F64, vec![12_289]),
        (Key::from("scalar"), Dtype::F32, vec![]),
        (Key::from("empty"), Dtype::F32, vec![0, 4]),
        (Key::from(-1), Dtype::F64, vec![2]),
    ]
}

fn drawn(dtype: Dtype, shape: &[u64], seed: u64) -> Tensor {
    let numbers = numbers(seed, shape.iter().product::<u64>() as usize);
    let shape = Shape::new(shape).expect("it is small");
    match dtype {
        Dtype::F16 => Tensor::from_slice(&numbers.into_iter().map(f16::from_f64).collect::<Vec<_>>(), shape),
        Dtype::Bf16 => Tensor::from_slice(&numbers.into_iter().map(bf16::from_f64).collect::<Vec<_>>(), shape),
        Dtype::F64 => Tensor::from_slice(&numbers, shape),
        _ => Tensor::from_slice(&numbers.into_iter().map(|number| number as f32).collect::<Vec<_>>(), shape),
    }
    .expect("it fits")
}

fn pairs(worker: u64, step: u64) -> Vec<(Key, Tensor)> {
    let pair = |(at, (key, dtype, shape)): (usize, (Key, Dtype, Vec<u64>))| {
        (key, drawn(dtype, &shape, 1 + at as u64 + 20 * worker + 1000 * step))
    };
    keys().into_iter().enumerate().map(pair).collect()
}

fn places() -> Vec<(Key, Tensor)> {
    let place = |(key, dtype, shape): (Key, Dtype, Vec<u64>)| {
        (key, Tensor::private(dtype, Shape::new(&shape).expect("it is small")).expect("it fits"))
    };
    keys().into_iter().map(place).collect()
}

type Weights = BTreeMap<Key, Vec<u8>>;

fn pulled(store: &KvStore) -> Weights {
    let places = places();
    wait(&store.pull(&places).expect("it is sent")).expect("they are there");
    let bytes = |(key, place): (Key, Tensor)| (key, place.bytes().expect("nobody writes").to_vec());
    places.into_iter().map(bytes).collect()
}

fn train(store: &KvStore, steps: impl Iterator<Item = u64>) -> Weights {
    let workers = if store.kind().is_distributed() { vec![store.rank().into()] } else { (0..WORKERS.into()).collect() };
    for step in steps {
        let gradients: Vec<_> = workers.iter().flat_map(|worker| pairs(*worker, step)).collect();
        wait(&store.push(&gradients).expect("it is sent")).expect("it is merged");
    }
    pulled(store)
}

fn alone() -> KvStore {
    KvStore::local("local").expect("it is known")
}

/// All rules, with a schedule that has an effect at once, and master copies.
fn optimizers() -> Vec<Optimizer> {
    let decay = Decay::Step { every: 1, factor: 0.7, floor: 0.1 };
    let optimizer = |rule| Optimizer { schedule: decay.clone().into(), multi_precision: true, ..Optimizer::from(rule) };
    rules::rules().into_iter().map(optimizer).collect()
}

/// Does something as the first worker, while all others wait.
fn as_first(store: &KvStore, act: impl FnOnce()) {
    store.barrier().expect("all are there");
    if store.rank() == 0 {
        act();
    }
    store.barrier().expect("all are there");
}

fn begin(store: &KvStore, optimizer: &Optimizer) {
    store.init(&pairs(NOBODY, 0)).expect("they are new");
    store.set_optimizer(optimizer.clone()).expect("it has a meaning");
    store.barrier().expect("all are there");
}

#[test]
fn a_training_that_is_resumed_elsewhere_ends_with_the_same_bits() {
    let folder = Folder::new("resumed");
    let mut expected = Vec::new();
    for (at, optimizer) in optimizers().iter().enumerate() {
        let (store, path) = (alone(), folder.file(&format!("local-{at}")));
        begin(&store, optimizer);
        train(&store, 1..=STEPS);
        store.save(&path).expect("nobody updates it");
        expected.push(train(&store, STEPS + 1..=2 * STEPS));
        // Another store, which is nothing like it before.
        let resumed = alone();
        resumed.init(&places()).expect("they are new");
        resumed.load(&path).expect("it was saved");
        assert!(train(&resumed, STEPS + 1..=2 * STEPS) == expected[at], "{optimizer:?} resumed");
    }
    for (servers, transport) in jobs() {
        let (folder, expected) = (folder.0.clone(), expected.clone());
        job_of(servers, WORKERS, transport, ServerConfig::default(), move |mesh| {
            for (at, optimizer) in optimizers().iter().enumerate() {
                let what = format!("{optimizer:?} on {servers} servers over {transport:?}");
                let local = folder.join(format!("local-{at}"));
                let own = folder.join(format!("{servers}-{transport:?}-{at}"));
                let store = KvStore::open(mesh, config()).expect("all servers serve");
                begin(&store, optimizer);
                train(&store, 1..=STEPS);
                as_first(&store, || {
                    store.save(&own).expect("nobody updates it");
                    let same = std::fs::read(&own).expect("a file") == std::fs::read(&local).expect("a file");
                    assert!(same, "{what}: a file does not depend on where it was saved");
                });
                assert!(train(&store, STEPS + 1..=2 * STEPS) == expected[at], "{what} goes on");
                let resumed = KvStore::open(mesh, config()).expect("all servers serve");
                resumed.init(&places()).expect("they are new");
                as_first(&resumed, || resumed.load(&local).expect("it was saved"));
                assert!(train(&resumed, STEPS + 1..=2 * STEPS) == expected[at], "{what} resumed");
                as_first(&store, || std::fs::remove_file(&own).expect("it is there"));
            }
        });
    }
}

#[test]
fn states_are_saved_with_and_without_their_optimizer() {
    let act = |store: &KvStore, other: &KvStore, third: &KvStore, folder: &Path| {
        let optimizer = &optimizers()[5];
        begin(store, optimizer);
        let weights = train(store, 1..=STEPS);
        let (bare, dumped) = (folder.join("bare"), folder.join("dumped"));
        as_first(store, || {
            store.save_optimizer_states(&bare, false).expect("nobody updates it");
            store.save_optimizer_states(&dumped, true).expect("nobody updates it");
            let contents = file::load(&bare).expect("it is safetensors");
            assert!(!contents.metadata.contains_key("optimizer"));
            assert!(contents.tensors.keys().all(|name| !name.starts_with("value/")), "{:?}", contents.tensors.keys());
            assert_eq!(contents.tensors["master/text:half"].dtype(), Dtype::F32);
            assert_eq!(contents.tensors["variance/text:double"].dtype(), Dtype::F64);
            let error = store.load(&bare).expect_err("it has no values");
            assert!(error.to_string().contains("load_optimizer_states"), "{error}");
        });
        let expected = train(store, STEPS + 1..=2 * STEPS);
        let first: Vec<(Key, Tensor)> = places()
            .into_iter()
            .map(|(key, mut place)| {
                place.bytes_mut().expect("it is ours").copy_from_slice(&weights[&key]);
                (key, place)
            })
            .collect();
        other.init(&first).expect("they are new");
        as_first(other, || {
            assert_eq!(other.load_optimizer_states(&bare).expect_err("of what?").kind(), ErrorKind::NotFound);
        });
        other.set_optimizer(optimizer.clone()).expect("it has a meaning");
        as_first(other, || other.load_optimizer_states(&bare).expect("they fit"));
        assert!(train(other, STEPS + 1..=2 * STEPS) == expected);
        third.init(&first).expect("they are new");
        as_first(third, || third.load_optimizer_states(&dumped).expect("they fit"));
        assert!(train(third, STEPS + 1..=2 * STEPS) == expected);
        as_first(third, || {
            third.set_optimizer(Rule::Sgd(Sgd { momentum: 0.9, ..Sgd::default() })).expect("it has a meaning");
            let error = third.load_optimizer_states(&bare).expect_err("they are Adam's");
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            third.set_updater(Updater::Sum).expect("it is known");
            assert_eq!(
                third.save_optimizer_states(&bare, true).expect_err("there is none").kind(),
                ErrorKind::NotFound
            );
        });
    };
    let folder = Folder::new("states");
    act(&alone(), &alone(), &alone(), &folder.0);
    let path = folder.0.clone();
    job_of(2, WORKERS, Transport::Shm, ServerConfig::default(), move |mesh| {
        let open = || KvStore::open(mesh, config()).expect("all servers serve");
        act(&open(), &open(), &open(), &path);
    });
}

#[test]
fn values_are_saved_under_any_updater() {
    let folder = Folder::new("values");
    let (store, other, path) = (alone(), alone(), folder.file("values"));
    store.init(&[("n".into(), Tensor::from_slice(&[1i64, 2], [2]).expect("it fits"))]).expect("it is new");
    store.set_updater(Updater::Sum).expect("it is known");
    store.save(&path).expect("nobody updates it");
    other.init(&[("n".into(), Tensor::from_slice(&[0i64, 0], [2]).expect("it fits"))]).expect("it is new");
    other.load(&path).expect("it was saved");
    let place = Tensor::from_slice(&[0i64, 0], [2]).expect("it fits");
    wait(&other.pull(&[("n".into(), place.clone())]).expect("it is there")).expect("it is there");
    assert_eq!(place.to_vec::<i64>().expect("numbers"), [1, 2]);
}

#[test]
fn tables_of_rows_are_saved_with_their_states() {
    const ROWS: u64 = 500;
    const COLUMNS: u64 = 8;
    let folder = Folder::new("tables");
    let path = folder.file("tables");
    let rows = |seed: u64| {
        let ids: Vec<i64> = (0..40).map(|at| (at * 37 + seed as i64 * 11) % ROWS as i64).collect();
        let values = drawn(Dtype::F32, &[40, COLUMNS], seed);
        Rows::new(Tensor::from_slice(&ids, [40]).expect("it fits"), values).expect("they fit")
    };
    let shape = || Shape::new(&[ROWS, COLUMNS]).expect("it is small");
    let begin = move |store: &KvStore, seed: u64| {
        store.init_rows(&[("t".into(), shape(), rows(seed))]).expect("it is new");
        store.set_optimizer(Rule::adam(0.1)).expect("it has a meaning");
        store.barrier().expect("all are there");
    };
    let step = move |store: &KvStore, seed: u64| {
        wait(&store.push_rows(&[("t".into(), rows(seed))]).expect("it is sent")).expect("it is merged");
    };
    let whole = move |store: &KvStore| {
        let place = Tensor::private(Dtype::F32, shape()).expect("it fits");
        wait(&store.pull(&[("t".into(), place.clone())]).expect("it is sent")).expect("it is there");
        place.bytes().expect("nobody writes").to_vec()
    };
    let saved = path.clone();
    let on_servers = job_of(3, 1, Transport::Shm, ServerConfig::default(), move |mesh| {
        let store = KvStore::open(mesh, Config { cut_elements: 1000, ..config() }).expect("all servers serve");
        begin(&store, 1);
        (2..5).for_each(|seed| step(&store, seed));
        store.save(&saved).expect("nobody updates it");
        (5..8).for_each(|seed| step(&store, seed));
        whole(&store)
    });
    let store = alone();
    begin(&store, 9);
    store.load(&path).expect("it was saved");
    (5..8).for_each(|seed| step(&store, seed));
    assert!(whole(&store) == on_servers[0], "the resumed training has other bits");
}

/// Changes one entry of a file's free text.
fn rewrite(from: &Path, to: &Path, entry: &str, change: impl Fn(&str) -> String) {
    let contents = file::load(from).expect("it was saved");
    let mut metadata = contents.metadata.clone();
    let changed = change(metadata.get(entry).map_or("", String::as_str));
    metadata.insert(entry.to_owned(), changed);
    let tensors: Vec<(&str, &Tensor)> = contents.tensors.iter().map(|(name, tensor)| (&name[..], tensor)).collect();
    let metadata: Vec<(&str, &str)> = metadata.iter().map(|(key, text)| (&key[..], &text[..])).collect();
    file::save(to, &tensors, &metadata).expect("the disk has room");
}

/// Files that are refused, and why.
fn damaged(folder: &Path, good: &Path) -> Vec<(PathBuf, ErrorKind)> {
    let bytes = std::fs::read(good).expect("it was saved");
    let written = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.join(name), bytes).expect("the disk has room");
        folder.join(name)
    };
    let rewritten = |name: &str, entry: &str, from: &str, to: &str| {
        rewrite(good, &folder.join(name), entry, |text| {
            assert!(text.contains(from), "{text}");
            text.replacen(from, to, 1)
        });
        folder.join(name)
    };
    let foreign = folder.join("foreign");
    let tensor = Tensor::from_slice(&[1.0f32], [1]).expect("it fits");
    file::save(&foreign, &[("w", &tensor)], &[]).expect("the disk has room");
    let key = "{\"key\":{\"Int\":3},\"dtype\":\"f32\",\"shape\":[60000]";
    vec![
        (folder.join("none"), ErrorKind::NotFound),
        (folder.to_owned(), ErrorKind::InvalidArgument),
        (written("nothing", b""), ErrorKind::InvalidArgument),
        (written("text", b"not a file of tensors at all"), ErrorKind::LimitExceeded),
        (written("half", &bytes[..bytes.len() / 2]), ErrorKind::InvalidArgument),
        (written("short", &bytes[..bytes.len() - 1]), ErrorKind::InvalidArgument),
        (written("long", &[&bytes[..], b"x"].concat()), ErrorKind::InvalidArgument),
        (foreign, ErrorKind::InvalidArgument),
        (rewritten("later", "format", "1", "2"), ErrorKind::Unsupported),
        (rewritten("no-json", "keys", "[", "{"), ErrorKind::InvalidArgument),
        (rewritten("bad-rule", "optimizer", "\"learning_rate\":", "\"learning_rate\":-"), ErrorKind::InvalidArgument),
        (rewritten("other-key", "keys", "{\"Int\":3}", "{\"Int\":4}"), ErrorKind::Mismatch),
        (rewritten("twice", "keys", "{\"Int\":3}", "{\"Int\":-1}"), ErrorKind::InvalidArgument),
        (rewritten("other-dtype", "keys", key, &key.replace("f32", "f64")), ErrorKind::Mismatch),
        (rewritten("other-shape", "keys", key, &key.replace("60000", "60001")), ErrorKind::Mismatch),
        (rewritten("no-tensor", "keys", "\"mean\"", "\"mode\""), ErrorKind::NotFound),
        (rewritten("other-rule", "rule", "adam", "sgd"), ErrorKind::Mismatch),
        (rewritten("no-steps", "keys", "\"steps\":2", "\"steps\":null"), ErrorKind::InvalidArgument),
    ]
}

#[test]
fn files_that_do_not_fit_are_refused_before_anything_changes() {
    let folder = Folder::new("refused");
    let (good, optimizer) = (folder.file("good"), optimizers()[5].clone());
    let store = alone();
    begin(&store, &optimizer);
    train(&store, 1..=STEPS);
    store.save(&good).expect("nobody updates it");
    let files = damaged(&folder.0, &good);
    let act = move |store: &KvStore| {
        store.init(&pairs(NOBODY, 7)).expect("they are new");
        store.set_optimizer(Rule::sgd(0.5)).expect("it has a meaning");
        let before = pulled(store);
        as_first(store, || {
            for (path, kind) in &files {
                let error = store.load(path).expect_err("it does not fit");
                assert_eq!(error.kind(), *kind, "{error}");
                assert!(error.to_string().contains(path.to_str().expect("a text")), "{error}");
                assert!(pulled(store) == before, "{} has changed the store", path.display());
                assert_eq!(store.learning_rate().expect("there is one"), 0.5);
            }
        });
        // A store with another key, and with one key less.
        store.init(&[("more".into(), drawn(Dtype::F32, &[2], 1))]).expect("it is new");
        as_first(store, || assert_eq!(store.load(&good).expect_err("a key more").kind(), ErrorKind::Mismatch));
        store.delete(&["more".into()]).expect("it is there");
        as_first(store, || store.load(&good).expect("it fits"));
        store.delete(&["half".into()]).expect("it is there");
        as_first(store, || assert_eq!(store.load(&good).expect_err("a key less").kind(), ErrorKind::Mismatch));
    };
    act(&alone());
    job_of(2, WORKERS, Transport::Shm, ServerConfig::default(), move |mesh| {
        act(&KvStore::open(mesh, config()).expect("all servers serve"));
    });
}

#[test]
fn a_store_that_is_being_updated_is_neither_saved_nor_loaded() {
    let folder = Folder::new("busy");
    let (path, old) = (folder.file("new"), folder.file("old"));
    let store = alone();
    begin(&store, &Rule::sgd(0.1).into());
    store.save(&old).expect("nobody updates it");
    job_of(2, WORKERS, Transport::Shm, ServerConfig::default(), move |mesh| {
        let store = KvStore::open(mesh, config()).expect("all servers serve");
        begin(&store, &Rule::sgd(0.1).into());
        let mine = (store.rank() == 1).then(|| store.push(&pairs(1, 1)).expect("it is sent"));
        let kind_of = |outcome: Result<()>| outcome.expect_err("a push waits").kind();
        // What a worker pushes is there when its barrier is answered by the first server, and on its way to the other.
        as_first(&store, || {
            common::until("the push is seen", || store.save(&path).is_err());
            assert_eq!(kind_of(store.save(&path)), ErrorKind::BufferInUse);
            assert_eq!(kind_of(store.load(&old)), ErrorKind::BufferInUse);
            assert!(!path.exists(), "nothing is left");
        });
        if store.rank() == 0 {
            wait(&store.push(&pairs(0, 1)).expect("it is sent")).expect("all push");
        }
        mine.iter().for_each(|work| wait(work).expect("all push"));
        as_first(&store, || {
            store.save(&path).expect("nobody updates it");
            store.load(&old).expect("nobody updates it");
            let names = std::fs::read_dir(path.parent().expect("a folder")).expect("a folder").count();
            assert_eq!(names, 2, "no temporary file is left");
        });
    });
}
