//! What users and broken peers do at the edges: nothing hangs, nothing is silently wrong, and servers live on.

use crate::common::raw::ask_raw;
use crate::common::{job_of, roles, together, until, wait};
use sha2::{Digest, Sha256};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, NodeId, Work};
use sheave_mesh::{Answer, Mesh, Role};
use sheave_net::Part;
use sheave_store::{Config, Key, Kind, KvStore, OnWorkerLoss, Rows, Server, ServerConfig, Updater};
use sheave_tensor::{Dtype, Mode, Shape, Tensor};
use sheave_wire::to_control;
use std::sync::{Arc, OnceLock};

const CUT_ELEMENTS: u64 = 1000;

fn tensor(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, [values.len() as u64]).expect("it fits")
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec::<f32>().expect("floats")
}

fn open(mesh: &Mesh, kind: Kind) -> KvStore {
    KvStore::open(mesh, Config { cut_elements: CUT_ELEMENTS, ..Config::from(kind) }).expect("all servers serve")
}

fn kind_of<T: Clone>(outcome: Result<Work<T>, Error>) -> ErrorKind {
    outcome.and_then(|work| wait(&work)).map(drop).expect_err("it is a mistake").kind()
}

fn on_each(act: impl Fn(&KvStore) + Clone + Send + 'static) {
    act(&KvStore::local("local").expect("it is known"));
    for (servers, workers, transport) in [(1, 1, Transport::Shm), (2, 3, Transport::Shm), (3, 2, Transport::Tcp)] {
        let act = act.clone();
        job_of(servers, workers, transport, ServerConfig::default(), move |mesh| act(&open(mesh, Kind::DistSync)));
    }
}

#[test]
fn a_place_may_be_what_is_pushed() {
    on_each(|store| {
        for (key, elements) in [(0, 3), (1, 900), (2, 50_000)] {
            let own = tensor(&vec![store.rank() as f32 + 1.0; elements]);
            store.init(&[(key.into(), tensor(&vec![0.0; elements]))]).expect("it is new");
            let pair = [(key.into(), own.clone())];
            wait(&store.push_pull(&pair, &pair).expect("values are captured first")).expect("all push");
            let sum: f32 = (1..=store.group_size()).map(|worker| worker as f32).sum();
            assert_eq!(values(&own), vec![sum; elements]);
        }
    });
}

#[test]
fn places_that_overlap_are_refused() {
    on_each(|store| {
        let zeros = |elements| tensor(&vec![0.0; elements]);
        store.init(&[(1.into(), zeros(20)), (2.into(), zeros(20)), (3.into(), zeros(9000))]).expect("they are new");
        let whole = zeros(9010);
        let part = |from: u64, to: u64| whole.slice_rows(from..to).expect("it is within");
        for pairs in [
            [(1.into(), part(0, 20)), (2.into(), part(0, 20))],
            [(1.into(), part(0, 20)), (2.into(), part(19, 39))],
            [(3.into(), part(0, 9000)), (2.into(), part(8990, 9010))],
        ] {
            assert_eq!(kind_of(store.pull(&pairs)), ErrorKind::BufferInUse);
        }
        // Beside each other in one buffer they are fine.
        let apart = [(1.into(), part(0, 20)), (2.into(), part(20, 40))];
        wait(&store.pull(&apart).expect("it is sent")).expect("they are there");
    });
}

#[test]
fn a_dtype_without_sums_is_refused_by_every_round() {
    job_of(2, 3, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = open(mesh, Kind::DistSync);
        for elements in [5, 3001] {
            let flags = |value: bool| {
                let bytes = Tensor::from_slice(&vec![u8::from(value); elements], [elements as u64]).expect("it fits");
                Tensor::from_buffer(bytes.into_buffer(), 0, Dtype::Bool, [elements as u64]).expect("it fits")
            };
            store.init(&[(Key::from(elements as i64), flags(false))]).expect("it is new");
            for _ in 0..3 {
                let pair = [(Key::from(elements as i64), flags(true))];
                assert_eq!(kind_of(store.push(&pair)), ErrorKind::Unsupported);
            }
            let place = flags(true);
            wait(&store.pull(&[(Key::from(elements as i64), place.clone())]).expect("it is sent"))
                .expect("it is there");
            assert!(place.bytes().expect("flags").iter().all(|flag| *flag == 0), "nothing was merged");
        }
    });
}

#[test]
fn who_is_too_far_ahead_is_told_before_anything_moves() {
    const AHEAD: usize = 64;
    job_of(2, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = open(mesh, Kind::DistSync);
        let pair = || [("w".into(), tensor(&vec![1.0; 3000])), ("v".into(), tensor(&[1.0; 2]))];
        store.init(&pair()).expect("they are new");
        store.set_updater(Updater::Sum).expect("servers add");
        store.barrier().expect("all are there");
        let mut works = Vec::new();
        if store.rank() == 0 {
            works.extend((0..AHEAD).map(|_| store.push(&pair()).expect("there is room")));
            for _ in 0..3 {
                assert_eq!(kind_of(store.push(&pair())), ErrorKind::LimitExceeded);
            }
        }
        store.barrier().expect("all are there");
        if store.rank() == 1 {
            works.extend((0..AHEAD).map(|_| store.push(&pair()).expect("there is room")));
        }
        works.iter().for_each(|work| wait(work).expect("both have pushed as often"));
        // No slice is out of step: both may go on.
        let places = [("w".into(), tensor(&vec![0.0; 3000])), ("v".into(), tensor(&[0.0; 2]))];
        wait(&store.push_pull(&pair(), &places).expect("there is room again")).expect("both push");
        assert_eq!(values(&places[0].1), vec![1.0 + 2.0 * (AHEAD as f32 + 1.0); 3000]);
    });
}

#[test]
fn long_names_of_many_keys_travel_and_longer_ones_are_refused() {
    on_each(|store| {
        let name = |number: usize, len: usize| Key::from(format!("{number:0>len$}"));
        let one = || tensor(&[store.rank() as f32]);
        let pairs: Vec<(Key, Tensor)> = (0..20_000).map(|number| (name(number, 1000), one())).collect();
        store.init(&pairs).expect("they are new");
        wait(&store.push(&pairs).expect("it is sent")).expect("all push");
        let error = store.init(&[(name(1, 1025), one())]).expect_err("it is too long");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let unknown = store
            .pull(&[("x".repeat(100_000).into(), one())])
            .and_then(|work| wait(&work))
            .expect_err("nobody knows it");
        assert_eq!(unknown.kind(), ErrorKind::NotFound);
        assert!(error.to_string().len() < 400 && unknown.to_string().len() < 400, "{error}\n{unknown}");
    });
}

#[test]
fn an_updater_that_uses_its_own_store_gets_an_error() {
    let store = KvStore::local("local").expect("it is known");
    store.init(&[(1.into(), tensor(&[1.0]))]).expect("it is new");
    let own: Arc<OnceLock<KvStore>> = Arc::default();
    let inner = Arc::clone(&own);
    store
        .set_updater(Updater::Function(Arc::new(move |_, _, _| {
            let store = inner.get().expect("it is set");
            wait(&store.pull(&[(1.into(), tensor(&[0.0]))])?)
        })))
        .expect("it is here");
    own.set(store.clone()).expect("once");
    assert_eq!(kind_of(store.push(&[(1.into(), tensor(&[1.0]))])), ErrorKind::InvalidArgument);
}

#[test]
fn an_updater_that_one_server_lacks_changes_none() {
    together(roles(2, 1), Transport::Shm, |mesh| {
        match mesh.me().introduction.role {
            Role::Server => {
                let config = ServerConfig::default();
                let known = |_: &Key, _: &Tensor, value: &mut Tensor| value.fill_with_zeros();
                let config = if mesh.me().role_rank == 0 { config.function("zero", known) } else { config };
                Server::start(&mesh, config).and_then(|server| server.run()).expect("no worker dies");
            }
            Role::Worker => {
                let store = open(&mesh, Kind::DistSync);
                store.init(&[("w".into(), tensor(&vec![1.0; 2000]))]).expect("it is new");
                let error = store.set_updater(Updater::Named("zero".into())).expect_err("server-1 lacks it");
                assert_eq!(error.kind(), ErrorKind::NotFound);
                let place = [("w".into(), tensor(&vec![0.0; 2000]))];
                let work = store.push_pull(&[("w".into(), tensor(&vec![3.0; 2000]))], &place);
                wait(&work.expect("it is sent")).expect("it is merged");
                assert_eq!(values(&place[0].1), vec![3.0; 2000]);
            }
            _ => mesh.until_gone(|_| true).expect("nobody dies"),
        }
        mesh.leave().expect("the others agree");
    });
}

trait Zeros {
    fn fill_with_zeros(&mut self) -> Result<(), Error>;
}

impl Zeros for Tensor {
    fn fill_with_zeros(&mut self) -> Result<(), Error> {
        self.as_mut_slice::<f32>().map(|values| values.fill(0.0))
    }
}

/// The request of a peer that may be broken.
fn ask(
    mesh: &Mesh,
    server: NodeId,
    method: &str,
    head: Vec<u8>,
    tensors: &[Tensor],
) -> Result<Work<Answer<()>>, Error> {
    let tensors = tensors.iter().map(|tensor| Part::new(tensor.clone(), Mode::Copy)).collect();
    ask_raw(mesh, server, method, head, tensors)
}

fn first_server(mesh: &Mesh) -> NodeId {
    mesh.of_role(Role::Server).next().expect("there is one").node
}

/// The number of a slice, its bytes, whether it is packed, and its form: 0 is plain elements, 2 ids of rows, 3 rows,
/// and 4 ids of rows that are pulled.
type Piece = (u64, u64, bool, u32);

/// A key, a dtype, a shape and how it is stored, 1 as a table of rows; the index of the slice, and that of its first
/// element.
type Described = ((Key, u8, Vec<u64>, u32), u64, u64);

#[test]
fn a_refused_push_ends_the_rounds_of_all_and_no_other_store() {
    job_of(1, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let (store, other) = (open(mesh, Kind::DistSync), open(mesh, Kind::DistSync));
        for store in [&store, &other] {
            store.init(&[(1.into(), tensor(&[0.0; 4]))]).expect("it is new");
        }
        let pair = [(1.into(), tensor(&[1.0; 4]))];
        if store.rank() == 0 {
            let error = wait(&store.push(&pair).expect("it is sent")).expect_err("the other one is broken");
            assert!(error.to_string().contains("worker 1"), "{error}");
        } else {
            let head =
                to_control(&(0u32, [(7u64, 4u64, true, 0u32)].to_vec(), Vec::<Piece>::new())).expect("it is short");
            let refused = ask(mesh, first_server(mesh), "update", head, &[tensor(&[1.0; 4])]);
            assert_eq!(kind_of(refused), ErrorKind::NotFound);
        }
        assert_eq!(kind_of(store.push(&pair)), ErrorKind::NotFound);
        wait(&other.push(&pair).expect("it is sent")).expect("this store is whole");
    });
}

#[test]
fn a_store_that_is_opened_after_a_loss_knows_of_it() {
    job_of(1, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        if mesh.me().role_rank == 1 {
            // So that the other one need not ask whether the server serves.
            drop(open(mesh, Kind::DistAsync));
            return;
        }
        until("the other one has left", || mesh.deaths().len() == 1);
        let server = first_server(mesh);
        let described: Described = ((Key::from("w"), Dtype::F32.code(), [4u64].to_vec(), 0), 0, 0);
        let number = number_of("w");
        for (method, head, tensors) in [
            ("open", to_control(&(5u32, Kind::DistSync, (1u32, CUT_ELEMENTS, 1u64 << 18), 0u64, 0u32)), vec![]),
            (
                "init",
                to_control(&(5u32, [described].to_vec(), [(number, 16u64, true, 0u32)].to_vec())),
                vec![tensor(&[0.0; 4])],
            ),
        ] {
            let _ = ask(mesh, server, method, head.expect("it is short"), &tensors).and_then(|work| wait(&work));
        }
        let push =
            to_control(&(5u32, [(number, 16u64, true, 0u32)].to_vec(), Vec::<Piece>::new())).expect("it is short");
        let pushed = ask(mesh, server, "update", push, &[tensor(&[1.0; 4])]);
        assert_eq!(kind_of(pushed), ErrorKind::PeerLost);
    });
}

/// A small generator of numbers; the seed makes a run repeatable.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn bytes(&mut self) -> Vec<u8> {
        (0..self.below(200)).map(|_| self.next() as u8).collect()
    }

    /// Mostly what could be, now and then what never is.
    fn length(&mut self) -> u64 {
        [0, 4, 16, 16, 16, 4000, 20_000, 1 << 40, u64::MAX][self.below(9) as usize]
    }

    fn pieces(&mut self, numbers: &[u64]) -> Vec<Piece> {
        let count = if self.below(50) == 0 { 70_000 } else { self.below(4) };
        (0..count)
            .map(|_| {
                let number = numbers[self.below(numbers.len() as u64) as usize];
                (number, self.length(), self.below(2) == 0, self.form())
            })
            .collect()
    }

    /// Mostly plain.
    fn form(&mut self) -> u32 {
        self.below(8).saturating_sub(3) as u32
    }

    /// Pieces that are pushed and pulled, of rows of four bytes: often right, often almost.
    fn rows(&mut self, number: u64) -> (Vec<Piece>, Vec<Piece>) {
        let (pushed, pulled) = (self.below(6), self.below(6));
        let mut piece = |len_bytes, form| {
            let is_odd = self.below(12) == 0;
            let len_bytes = if is_odd { self.length() } else { len_bytes };
            (number, len_bytes, self.below(2) == 0, if is_odd { self.form() } else { form })
        };
        let (ids, values) = (piece(pushed * 8, 2), piece(pushed * 4, 3));
        let (asked, answer) = (piece(pulled * 8, 4), piece(pulled * 4, 3));
        match self.below(8) {
            0..2 => ([ids, values].to_vec(), vec![]),
            2..4 => ([asked].to_vec(), [answer].to_vec()),
            4..6 => ([ids, values, asked].to_vec(), [answer].to_vec()),
            6 => ([ids, asked, values].to_vec(), [answer, answer].to_vec()),
            _ => ([values, ids, asked, asked].to_vec(), [answer].to_vec()),
        }
    }

    /// What comes with pieces of rows, as the packed tensor or parts: ids that ascend or not, and rows.
    fn row_tensors(&mut self, pieces: &[Piece]) -> Vec<Tensor> {
        let start = [0, 0, 1, 4990, -1][self.below(5) as usize];
        let step = [1, 1, 2, 3, 0, -1, 1 << 62][self.below(7) as usize];
        let mut packed = Vec::new();
        let mut parts = Vec::new();
        for (_, len_bytes, is_packed, form) in pieces {
            let words = (*len_bytes).min(4000) as i64 / 8 + 1;
            let word = |at: i64| match form {
                2 | 4 => at.wrapping_mul(step).wrapping_add(start).to_le_bytes(),
                _ => [1.0f32.to_le_bytes(); 2].concat().try_into().expect("eight bytes"),
            };
            let mut bytes: Vec<u8> = (0..words).flat_map(word).collect();
            bytes.truncate((*len_bytes).min(4000) as usize);
            if *is_packed {
                packed.extend(bytes);
                packed.resize(packed.len().next_multiple_of(16), 0);
            } else {
                parts.push(bytes);
            }
        }
        if pieces.iter().any(|(_, _, is_packed, _)| *is_packed) {
            parts.insert(0, packed);
        }
        parts.iter().map(|bytes| Tensor::from_slice(bytes, [bytes.len() as u64]).expect("it fits")).collect()
    }

    fn head(&mut self, method: &str, numbers: &[u64]) -> Vec<u8> {
        // A synchronous store, an asynchronous one, and one that is not there.
        let store = [0u32, 1, 9][self.below(3) as usize];
        let described = |draw: &mut Self| {
            let shape: Vec<u64> = (0..draw.below(70)).map(|_| draw.length()).collect();
            let key = Key::from(draw.next() as i64);
            ((key, draw.below(30) as u8, shape, draw.below(3) as u32), draw.below(3), draw.length())
        };
        let head = match method {
            "update" => to_control(&(store, self.pieces(numbers), self.pieces(numbers))),
            "begin" => to_control(&(store, self.below(5), self.below(4))),
            "slices" => to_control(&(store, self.below(5), self.pieces(numbers))),
            "describe" => to_control(&(store, (0..self.below(20_000)).map(|_| numbers[0]).collect::<Vec<_>>())),
            "open" => {
                let cutting = (self.below(3) as u32, self.next(), self.next());
                to_control(&(self.next() as u32, self.below(5) as u8, cutting, self.next(), self.below(3) as u32))
            }
            "barrier" | "done" | "close" => to_control(&store),
            "delete" => to_control(&(store, [self.next(), 99].to_vec())),
            "settle" => to_control(&(store, self.below(4), [0u8; 32])),
            "set_updater" => to_control(&(7u32, self.below(5) as u8, self.next(), self.next())),
            _ => {
                let keys: Vec<_> = (0..self.below(4)).map(|_| described(self)).collect();
                to_control(&(store, keys, self.pieces(numbers)))
            }
        };
        head.expect("it is short")
    }
}

/// What a key is called on the wire, by its documented hash.
fn number_of(text: &str) -> u64 {
    let digest = Sha256::new().chain_update([1]).chain_update(text).finalize();
    u64::from_be_bytes(digest[..8].try_into().expect("eight bytes"))
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("it is there");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

#[test]
fn whatever_a_broken_peer_sends_the_server_answers_and_lives() {
    const REQUESTS: usize = 4000;
    const GROWTH_MAX_KIB: u64 = 700 << 10;
    job_of(1, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let stores = [Kind::DistSync, Kind::DistAsync, Kind::DistSync].map(|kind| open(mesh, kind));
        for store in &stores {
            store.init(&[("w".into(), tensor(&[0.0; 4])), ("v".into(), tensor(&[0.0; 5000]))]).expect("they are new");
        }
        if mesh.me().role_rank == 1 {
            let before = peak_kib();
            let server = first_server(mesh);
            let mut draw = Draw(0x5eed);
            let (known, large) = (number_of("w"), number_of("v"));
            // One head of some megabytes that asks for twelve gigabytes.
            let head = to_control(&(1u32, Vec::<Piece>::new(), vec![(large, 20_000u64, false, 0u32); 600_000]));
            assert_eq!(kind_of(ask(mesh, server, "update", head.expect("it fits"), &[])), ErrorKind::Protocol);
            let mut refused = 0;
            let mut waiting = Vec::new();
            for _ in 0..REQUESTS {
                let methods = [
                    "update",
                    "update",
                    "update",
                    "init",
                    "describe",
                    "open",
                    "set_updater",
                    "nothing",
                    "delete",
                    "settle",
                    "barrier",
                    "done",
                ];
                let method = methods[draw.below(methods.len() as u64) as usize];
                let mut head = draw.head(method, &[known, known, known, 99]);
                match draw.below(4) {
                    0 => head = draw.bytes(),
                    1 if !head.is_empty() => {
                        let at = draw.below(head.len() as u64) as usize;
                        head[at] = draw.next() as u8;
                    }
                    _ => {}
                }
                // The third store is the one that shows in the end that the server lives: nobody speaks of it before.
                if head.starts_with(&to_control(&2u32).expect("it is short")) {
                    head[0] = 9;
                }
                let tensors: Vec<Tensor> = (0..draw.below(3)).map(|_| tensor(&[1.0; 4])).collect();
                let work = ask(mesh, server, method, head, &tensors).expect("it is sent");
                if matches!(method, "update" | "barrier" | "done" | "begin") {
                    waiting.push(work);
                } else {
                    refused += usize::from(wait(&work).is_err());
                }
            }
            // What is still waited for waits for the other worker's push, and for nothing else.
            let pending = waiting.iter().filter(|work| work.wait_timeout(std::time::Duration::ZERO).is_err()).count();
            assert!(refused > REQUESTS / 6, "{refused}, {pending}");
            let grown = peak_kib() - before;
            assert!(grown < GROWTH_MAX_KIB, "{grown} KiB for nothing");
        }
        stores[2].barrier().expect("all are there");
        let place = [("w".into(), tensor(&[0.0; 4]))];
        let work = stores[2].push_pull(&[("w".into(), tensor(&[1.0; 4]))], &place).expect("it is sent");
        wait(&work).expect("the server lives");
        assert_eq!(values(&place[0].1), [2.0; 4]);
    });
}

/// What is taken is right, by a second reading of the rules; whatever else comes is refused, and changes nothing.
#[test]
fn pieces_of_rows_are_taken_if_they_are_right() {
    const REQUESTS: usize = 6000;
    const ROWS: u64 = 5000;
    job_of(1, 1, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = open(mesh, Kind::DistAsync);
        let zeros = || tensor(&vec![0.0; ROWS as usize]);
        store.init(&[("v".into(), zeros())]).expect("it is new");
        store.set_updater(Updater::Sum).expect("servers add");
        let mut draw = Draw(0x5eed);
        let mut expected = vec![0.0f32; ROWS as usize];
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..REQUESTS {
            let (push, pull) = draw.rows(number_of("v"));
            let tensors = draw.row_tensors(&push);
            let head = to_control(&(0u32, push.clone(), pull.clone())).expect("it is short");
            let work = ask(mesh, first_server(mesh), "update", head, &tensors).expect("it is sent");
            match (wait(&work), meaning(&push, &pull, &tensors, ROWS)) {
                (Ok(answer), Some(ids)) => {
                    taken += 1;
                    ids.iter().for_each(|id| expected[*id as usize] += 1.0);
                    assert_eq!(answer.tensors.is_empty(), pull.is_empty());
                }
                (Err(_), None) => refused += 1,
                (outcome, ids) => panic!("{outcome:?}, and not as {ids:?}: {push:?} {pull:?}"),
            }
        }
        assert!(taken > REQUESTS / 20 && refused > REQUESTS / 4, "{taken} and {refused}");
        let place = [("v".into(), zeros())];
        wait(&store.pull(&place).expect("it is sent")).expect("the server lives");
        assert_eq!(values(&place[0].1), expected);
    });
}

/// The ids of the rows that are pushed, if all is right.
fn meaning(push: &[Piece], pull: &[Piece], tensors: &[Tensor], rows: u64) -> Option<Vec<i64>> {
    let forms = |pieces: &[Piece]| pieces.iter().map(|piece| piece.3).collect::<Vec<_>>();
    let pulls = usize::from(push.last()?.3 == 4);
    let is_known = [vec![2, 3], vec![4], vec![2, 3, 4]].contains(&forms(push));
    if !is_known || forms(pull) != vec![3; pulls] || push.iter().chain(pull).any(|piece| piece.2 && piece.1 > 16_384) {
        return None;
    }
    let (mut packed_bytes, mut part) = (0, usize::from(push.iter().any(|piece| piece.2)));
    let mut ids = Vec::new();
    for (at, (_, len_bytes, is_packed, form)) in push.iter().enumerate() {
        let bytes = match is_packed {
            true => tensors[0].bytes().ok()?.get(packed_bytes..packed_bytes + *len_bytes as usize)?.to_vec(),
            false => tensors.get(part)?.bytes().ok()?.to_vec(),
        };
        match is_packed {
            true => packed_bytes += (*len_bytes as usize).next_multiple_of(16),
            false => part += 1,
        }
        if bytes.len() as u64 != *len_bytes {
            return None;
        }
        if *form == 3 {
            continue;
        }
        let values = if *form == 2 { push[at + 1] } else { pull[0] };
        let words: Vec<i64> =
            bytes.chunks_exact(8).map(|word| i64::from_le_bytes(word.try_into().expect("8"))).collect();
        let is_ascending = words.windows(2).all(|pair| pair[0] < pair[1]);
        let is_inside = words.iter().all(|id| (0..rows as i64).contains(id));
        if bytes.len() % 8 != 0 || values.1 != words.len() as u64 * 4 || !is_ascending || !is_inside {
            return None;
        }
        if *form == 2 {
            ids = words;
        }
    }
    Some(ids)
}

/// Far less than what is only declared, and more than a job of threads needs.
const DECLARED_GROWTH_MAX_KIB: u64 = 200 << 10;

#[test]
fn f16_slices_that_a_key_only_declares_cost_a_server_nothing() {
    const DECLARED: u64 = 1 << 24;
    let before = peak_kib();
    let outcomes = job_of(1, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let config = Config { slice_elements: 1, on_worker_loss: OnWorkerLoss::Shrink, ..Kind::DistSync.into() };
        let store = KvStore::open(mesh, config).expect("the server serves");
        store.barrier().expect("both come");
        if store.rank() == 1 {
            // A key of so many elements, of which the first one comes.
            let described = (Key::from("w"), Dtype::F32.code(), vec![DECLARED], 0u32);
            let head = (0u32, vec![(described, 0u64, 0u64)], vec![(number_of("w"), 4u64, true, 0u32)]);
            let one = Tensor::from_slice(&[0u8; 16], [16]).expect("it fits");
            let tensors = std::iter::once(Part::new(one, Mode::Copy)).collect();
            let head = to_control(&head).expect("it is short");
            let server = mesh.of_role(Role::Server).next().expect("there is one").node;
            let work = ask_raw(mesh, server, "init", head, tensors);
            return wait(&work.expect("it is sent")).map(drop).map_err(|error| error.kind());
        }
        until("the other one has left", || store.group_size() == 1);
        store.init(&[("v".into(), tensor(&[1.0; 4]))]).map_err(|error| error.kind())
    });
    let grown = peak_kib() - before;
    assert!(grown < DECLARED_GROWTH_MAX_KIB, "{grown} KiB for slices that nobody has sent");
    assert_eq!(outcomes, [Ok(()), Err(ErrorKind::LimitExceeded)], "nobody has that many slices");
}

#[test]
fn f16_a_table_that_is_almost_empty_is_not_copied_whole_for_a_pull() {
    const ROWS: u64 = 3 << 27;
    let before = peak_kib();
    job_of(1, 1, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = open(mesh, Kind::DistSync);
        let ids = |ids: &[i64]| Tensor::from_slice(ids, [ids.len() as u64]).expect("it fits");
        let one = Tensor::from_slice(&[7.0f32], [1, 1]).expect("it fits");
        let rows = Rows::new(ids(&[5]), one).expect("they fit");
        let shape = Shape::new(&[ROWS, 1]).expect("it is short");
        store.init_rows(&[("table".into(), shape, rows)]).expect("it is new");
        let whole = Tensor::private(Dtype::F32, [ROWS, 1]).expect("nobody writes to it");
        let error = store.pull(&[("table".into(), whole)]).and_then(|work| wait(&work)).expect_err("it is too much");
        let text = error.to_string();
        assert!(error.kind() == ErrorKind::LimitExceeded && text.contains("table") && text.contains("rows"), "{text}");
        let place = Tensor::private(Dtype::F32, [2, 1]).expect("memory");
        wait(&store.pull_rows(&[("table".into(), ids(&[5, 6]), place.clone())]).expect("it is sent"))
            .expect("they are");
        assert_eq!(values(&place), [7.0, 0.0]);
    });
    let grown = peak_kib() - before;
    assert!(grown < DECLARED_GROWTH_MAX_KIB, "{grown} KiB for rows that nobody has sent");
}
