//! Tables and rows in every store, against a map that adds one row after the other.

use crate::common::{job_of, wait};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind};
use sheave_optim::{Rule, State, Target};
use sheave_store::{Config, Key, Kind, KvStore, Options, Rows, ServerConfig, Updater};
use sheave_tensor::{Dtype, Shape, Tensor};
use std::collections::BTreeMap;

const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];

/// A table, a dense key whose slices begin within rows, and one whose rows are single elements.
const KEYS: [(&str, u64, u64); 3] = [("table", 60, 5), ("dense", 41, 7), ("flat", 300, 1)];

fn config(kind: Kind) -> Config {
    Config { cut_elements: 100, slice_elements: 64, staleness: 1, ..Config::from(kind) }
}

fn shape(rows: u64, columns: u64) -> Shape {
    if columns == 1 { [rows].into() } else { [rows, columns].into() }
}

fn tensor(values: &[f32], shape: impl Into<Shape>) -> Tensor {
    Tensor::from_slice(values, shape).expect("it fits")
}

fn ids_of(ids: &[i64]) -> Tensor {
    Tensor::from_slice(ids, [ids.len() as u64]).expect("it fits")
}

fn rows_of(ids: &[i64], values: &[f32], columns: u64) -> Rows {
    Rows::new(ids_of(ids), tensor(values, shape(ids.len() as u64, columns))).expect("they fit")
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec::<f32>().expect("floats")
}

/// A small generator of numbers; the seed makes a run repeatable.
struct Draw(u64);

impl Draw {
    fn of(parts: &[u64]) -> Self {
        Self(parts.iter().fold(0x5eed, |seed, part| (seed ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed >> 29) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Sums of such numbers depend on their order.
    fn values(&mut self, count: u64) -> Vec<f32> {
        (0..count).map(|_| (self.below(2000) as f32 - 1000.0) * 0.1).collect()
    }

    fn ids(&mut self, rows: u64, most: u64) -> Vec<i64> {
        (0..self.below(most + 1)).map(|_| self.below(rows) as i64).collect()
    }
}

/// What a worker pushes to one key in one round.
enum Given {
    Rows(Vec<i64>, Vec<f32>),
    Dense(Vec<f32>),
}

impl Given {
    fn draw(round: u64, rank: u64, workers: u64, key: usize) -> Self {
        let (_, rows, columns) = KEYS[key];
        let mut draw = Draw::of(&[round, rank, key as u64]);
        // One worker never has any row of one key.
        if key == 0 && workers > 1 && rank == 1 {
            return Self::Rows(Vec::new(), Vec::new());
        }
        if draw.below(4) == 0 {
            return Self::Dense(draw.values(rows * columns));
        }
        let ids = draw.ids(rows, 20);
        let values = draw.values(ids.len() as u64 * columns);
        Self::Rows(ids, values)
    }

    /// Rows of the same id are summed in their order.
    fn by_row(&self, columns: usize) -> BTreeMap<i64, Vec<f32>> {
        let mut sums = BTreeMap::new();
        match self {
            Self::Rows(ids, values) => {
                ids.iter().zip(values.chunks(columns)).for_each(|(id, row)| add(&mut sums, *id, row));
            }
            Self::Dense(values) => (0..).zip(values.chunks(columns)).for_each(|(id, row)| add(&mut sums, id, row)),
        }
        sums
    }
}

fn add(sums: &mut BTreeMap<i64, Vec<f32>>, id: i64, row: &[f32]) {
    match sums.get_mut(&id) {
        Some(sum) => sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value),
        None => drop(sums.insert(id, row.to_vec())),
    }
}

/// One key of an oracle.
struct Oracle {
    columns: usize,
    value: Vec<f32>,
    state: Option<State>,
}

impl Oracle {
    fn new(key: usize) -> Self {
        let (_, rows, columns) = KEYS[key];
        Self { columns: columns as usize, value: first_value(key, rows, columns), state: None }
    }

    /// One round, with what each worker gives in the order of the ranks.
    fn merge(&mut self, updater: &Updater, given: &[Given]) {
        let mut sums = BTreeMap::new();
        for one in given {
            one.by_row(self.columns).iter().for_each(|(id, row)| add(&mut sums, *id, row));
        }
        let columns = self.columns;
        if let Updater::Assign = updater {
            self.value.fill(0.0);
        }
        if let Updater::Optimizer(optimizer) = updater {
            let rule = &optimizer.rule;
            let state = self.state.get_or_insert_with(|| rule.state(self.value.len()));
            let packed: Vec<f32> = sums.values().flatten().copied().collect();
            if given.iter().any(|one| matches!(one, Given::Dense(_))) {
                return rule.step(state, &mut self.value, &packed).expect("it steps");
            }
            let rows: Vec<u64> = sums.keys().map(|id| *id as u64).collect();
            let mut target = Target::new(&mut self.value);
            return rule.step_rows(state, &mut target, columns, &rows, &packed).expect("it steps");
        }
        for (id, row) in sums {
            let at = id as usize * columns;
            for (value, sum) in self.value[at..at + columns].iter_mut().zip(row) {
                match updater {
                    Updater::Assign => *value = sum,
                    Updater::Sum => *value += sum,
                    _ => *value = *value * 0.5 + sum,
                }
            }
        }
    }

    fn rows(&self, ids: &[i64]) -> Vec<f32> {
        let row = |id: &i64| &self.value[*id as usize * self.columns..(*id as usize + 1) * self.columns];
        ids.iter().flat_map(row).copied().collect()
    }
}

/// Some rows of the table, all of the others.
fn first_value(key: usize, rows: u64, columns: u64) -> Vec<f32> {
    let mut values = Draw::of(&[key as u64]).values(rows * columns);
    if key == 0 {
        let is_first = |row: usize| FIRST_ROWS.contains(&(row as i64));
        values.chunks_mut(columns as usize).enumerate().for_each(|(row, values)| {
            if !is_first(row) {
                values.fill(0.0);
            }
        });
    }
    values
}

const FIRST_ROWS: [i64; 4] = [59, 0, 33, 7];

fn init(store: &KvStore) {
    for (key, (name, rows, columns)) in KEYS.into_iter().enumerate() {
        let values = first_value(key, rows, columns);
        if key > 0 {
            store.init(&[(name.into(), tensor(&values, shape(rows, columns)))]).expect("it is new");
            continue;
        }
        let row = |id: &i64| values[*id as usize * columns as usize..][..columns as usize].to_vec();
        let first = match store.rank() {
            0 => rows_of(&FIRST_ROWS, &FIRST_ROWS.iter().flat_map(row).collect::<Vec<_>>(), columns),
            _ => rows_of(&[], &[], columns),
        };
        store.init_rows(&[(name.into(), shape(rows, columns), first)]).expect("it is new");
    }
}

fn halve(_: &Key, sum: &Tensor, value: &mut Tensor) -> Result<(), Error> {
    let sum = sum.as_slice::<f32>()?;
    value.as_mut_slice::<f32>()?.iter_mut().zip(sum.iter()).for_each(|(value, sum)| *value = *value * 0.5 + sum);
    Ok(())
}

fn server() -> ServerConfig {
    ServerConfig::default().function("halve", halve)
}

fn updaters() -> Vec<Updater> {
    let momentum = Rule::Sgd(sheave_optim::Sgd { learning_rate: 0.1, momentum: 0.9, ..Default::default() });
    let mut updaters = vec![Updater::Assign, Updater::Sum, Updater::Named("halve".into())];
    updaters.extend([momentum, Rule::adam(0.01), Rule::sgd(0.5)].map(Updater::from));
    updaters
}

/// Rounds of pushes and pulls of all keys, several of them in flight, as one worker. Every pull sees just its round.
fn play(store: &KvStore, updater: &Updater, is_queued: bool) {
    const ROUNDS: u64 = 8;
    init(store);
    store.set_updater(updater.clone()).expect("it is there");
    store.barrier().expect("all are there");
    let (rank, workers) = (u64::from(store.rank()), store.group_size() as u64);
    let mut oracles: Vec<Oracle> = (0..KEYS.len()).map(Oracle::new).collect();
    let (mut works, mut checks) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for (key, (name, rows, columns)) in KEYS.into_iter().enumerate() {
            let given: Vec<Given> = (0..workers).map(|rank| Given::draw(round, rank, workers, key)).collect();
            oracles[key].merge(updater, &given);
            let mut draw = Draw::of(&[round, rank, key as u64, 77]);
            let wanted = draw.ids(rows, 30);
            let place = tensor(&vec![f32::NAN; wanted.len() * columns as usize], shape(wanted.len() as u64, columns));
            let pull = [(name.into(), ids_of(&wanted), place.clone())];
            let options = Options { priority: if is_queued { draw.below(5) as i32 - 2 } else { 0 } };
            match &given[rank as usize] {
                Given::Dense(values) => {
                    let values = tensor(values, shape(rows, columns));
                    works.push(store.push_with(&[(name.into(), values)], options).expect("it is sent"));
                    works.push(store.pull_rows(&pull).expect("it is sent"));
                }
                Given::Rows(ids, values) if round % 2 == 0 => {
                    let given = [(name.into(), rows_of(ids, values, columns))];
                    works.push(store.push_pull_rows_with(&given, &pull, options).expect("it is sent"));
                }
                Given::Rows(ids, values) => {
                    // The same in two parts, summed in the order given.
                    let half = ids.len() / 2;
                    let (first, second) = values.split_at(half * columns as usize);
                    let parts = [rows_of(&ids[..half], first, columns), rows_of(&ids[half..], second, columns)];
                    works.push(store.push_rows(&parts.map(|rows| (name.into(), rows))).expect("it is sent"));
                    works.push(store.pull_rows(&pull).expect("it is sent"));
                }
            }
            let whole = tensor(&vec![f32::NAN; (rows * columns) as usize], shape(rows, columns));
            works.push(store.pull(&[(name.into(), whole.clone())]).expect("it is sent"));
            checks.push((place, oracles[key].rows(&wanted), format!("rows of {name}, round {round}")));
            checks.push((whole, oracles[key].value.clone(), format!("all of {name}, round {round}")));
        }
        if round % 3 == 2 || round + 1 == ROUNDS {
            works.drain(..).for_each(|work| wait(&work).expect("all push"));
            for (place, expected, label) in checks.drain(..) {
                assert_eq!(bits(&floats(&place)), bits(&expected), "{updater:?}: {label}");
            }
        }
    }
}

#[test]
fn a_local_store_is_the_oracle() {
    for updater in updaters() {
        let store = KvStore::local("local").expect("it is known");
        store.register("halve", std::sync::Arc::new(halve)).expect("it is here");
        play(&store, &updater, false);
    }
}

/// The oracle knows of no servers: so every number of them gives the same bits, and so do priorities.
#[test]
fn stores_on_servers_are_the_oracle() {
    for transport in TRANSPORTS {
        for servers in 1..=3 {
            for workers in 1..=3 {
                job_of(servers, workers, transport, server(), move |mesh| {
                    for updater in updaters() {
                        let store = KvStore::open(mesh, config(Kind::DistSync)).expect("all servers serve");
                        play(&store, &updater, servers == 2);
                        store.close().expect("all come");
                    }
                });
            }
        }
    }
}

/// Whole numbers, whose sums depend on no order: what all have pushed is there in the end, and the own at once.
#[test]
fn pushes_in_any_order_are_all_there() {
    const STEPS: u64 = 12;
    for (kind, transport) in [Kind::DistAsync, Kind::DistSsp].into_iter().zip(TRANSPORTS) {
        for servers in 1..=3 {
            job_of(servers, 3, transport, server(), move |mesh| {
                let store = KvStore::open(mesh, config(kind)).expect("all servers serve");
                store.init_rows(&[("t".into(), shape(90, 4), rows_of(&[], &[], 4))]).expect("it is new");
                store.set_updater(Updater::Sum).expect("servers add");
                store.barrier().expect("all are there");
                let given = |rank: u64, step: u64| Draw::of(&[rank, step]).ids(90, 25);
                let mut own = BTreeMap::new();
                for step in 0..STEPS {
                    let ids = given(u64::from(store.rank()), step);
                    let rows = rows_of(&ids, &vec![1.0; ids.len() * 4], 4);
                    drop(store.push_rows(&[("t".into(), rows)]).expect("it is sent"));
                    ids.iter().for_each(|id| *own.entry(*id).or_insert(0.0) += 1.0);
                    let place = tensor(&vec![f32::NAN; ids.len() * 4], shape(ids.len() as u64, 4));
                    wait(&store.pull_rows(&[("t".into(), ids_of(&ids), place.clone())]).expect("it is sent"))
                        .expect("nobody is too far behind");
                    for (id, row) in ids.iter().zip(floats(&place).chunks(4)) {
                        assert!(row.iter().all(|value| *value >= own[id]), "{row:?} has not all of {}", own[id]);
                    }
                }
                store.wait(&[]).expect("all is merged");
                store.barrier().expect("all have pushed");
                let mut expected = vec![0.0; 90 * 4];
                for (rank, step) in (0..3).flat_map(|rank| (0..STEPS).map(move |step| (rank, step))) {
                    for id in given(rank, step) {
                        expected[id as usize * 4..][..4].iter_mut().for_each(|value| *value += 1.0);
                    }
                }
                let whole = tensor(&vec![f32::NAN; 90 * 4], shape(90, 4));
                wait(&store.pull(&[("t".into(), whole.clone())]).expect("it is sent")).expect("it is there");
                assert_eq!(floats(&whole), expected);
                store.close().expect("all come");
            });
        }
    }
}

/// Runs `act` on a local store and as two workers of two servers.
fn on_each(act: impl Fn(&KvStore) + Clone + Send + 'static) {
    act(&KvStore::local("local").expect("it is known"));
    job_of(2, 2, Transport::Shm, server(), move |mesh| {
        let store = KvStore::open(mesh, config(Kind::DistSync)).expect("all servers serve");
        act(&store);
        // A worker that left would end what the other one has still to do.
        store.close().expect("all come");
    });
}

fn refusal<T>(outcome: Result<T, Error>, kind: ErrorKind) -> String {
    let Err(error) = outcome else { panic!("it was taken") };
    assert_eq!(error.kind(), kind, "{error}");
    error.to_string()
}

#[test]
fn what_a_table_has_not_is_refused_before_anything_moves() {
    on_each(|store| {
        let first = rows_of(&[1, 8], &[1.0; 8], 4);
        store.init_rows(&[("t".into(), shape(10, 4), first.clone())]).expect("it is new");
        store.set_updater(Updater::Sum).expect("it is there");
        store.barrier().expect("all are there");
        let init = |key: &str, rows, table: Shape| store.init_rows(&[(key.into(), table, rows)]);
        refusal(init("t", first.clone(), shape(10, 4)), ErrorKind::AlreadyExists);
        refusal(init("u", first.clone(), shape(10, 5)), ErrorKind::Mismatch);
        refusal(init("u", first.clone(), Shape::new(&[]).expect("a scalar")), ErrorKind::Mismatch);
        assert!(refusal(init("u", first, shape(8, 4)), ErrorKind::InvalidArgument).contains("the id 8"));

        let push = |key: &str, rows| store.push_rows(&[("t".into(), rows_of(&[2], &[1.0; 4], 4)), (key.into(), rows)]);
        let push = |key: &str, rows| push(key, rows).and_then(|work| wait(&work));
        refusal(push("u", rows_of(&[1], &[1.0; 4], 4)), ErrorKind::NotFound);
        refusal(push("t", rows_of(&[1], &[1.0; 5], 5)), ErrorKind::Mismatch);
        let doubles = Tensor::from_slice(&[1.0f64; 4], [1, 4]).expect("it fits");
        refusal(push("t", Rows::new(ids_of(&[1]), doubles).expect("they fit")), ErrorKind::Mismatch);
        for id in [10, -1, i64::MAX, i64::MIN] {
            let error = refusal(push("t", rows_of(&[3, id], &[1.0; 8], 4)), ErrorKind::InvalidArgument);
            assert!(error.contains(&format!("key \"t\" has 10 rows, and none of the id {id}")), "{error}");
        }

        let pull = |key: &str, ids: Tensor, place: &Tensor| {
            store.pull_rows(&[(key.into(), ids, place.clone())]).and_then(|work| wait(&work))
        };
        let place = tensor(&[7.0; 8], [2, 4]);
        refusal(pull("u", ids_of(&[1, 2]), &place), ErrorKind::NotFound);
        for id in [10, -1] {
            refusal(pull("t", ids_of(&[1, id]), &place), ErrorKind::InvalidArgument);
        }
        let narrow = Tensor::from_slice(&[1i32, 2], [2]).expect("it fits");
        assert!(refusal(pull("t", narrow, &place), ErrorKind::Mismatch).contains("must be i64"));
        refusal(pull("t", ids_of(&[1]), &place), ErrorKind::Mismatch);
        refusal(pull("t", ids_of(&[1, 2]), &tensor(&[7.0; 8], [8])), ErrorKind::Mismatch);
        refusal(pull("t", ids_of(&[1, 2]), &Tensor::private(Dtype::F64, [2, 4]).expect("memory")), ErrorKind::Mismatch);
        let twice = [("t".into(), ids_of(&[1, 2]), place.clone()), ("t".into(), ids_of(&[3, 4]), place.clone())];
        refusal(store.pull_rows(&twice).and_then(|work| wait(&work)), ErrorKind::BufferInUse);
        assert_eq!(floats(&place), [7.0; 8], "nothing was received");

        // No round has begun: one push of each worker ends it.
        wait(&store.push_rows(&[("t".into(), rows_of(&[2], &[1.0; 4], 4))]).expect("it is sent")).expect("all push");
        let ids = Tensor::from_slice(&[1i64, 2, 3, 2], [2, 2]).expect("it fits");
        let place = tensor(&[7.0; 16], [2, 2, 4]);
        wait(&store.pull_rows(&[("t".into(), ids, place.clone())]).expect("it is sent")).expect("it is there");
        let workers = store.group_size() as f32;
        let expected = [1.0, workers, 0.0, workers].map(|value| [value; 4]).concat();
        assert_eq!(floats(&place), expected);
        // None at all.
        let nothing = tensor(&[], [0, 4]);
        wait(&store.pull_rows(&[("t".into(), ids_of(&[]), nothing)]).expect("it is sent")).expect("it is there");
        wait(&store.push_rows(&[]).expect("it is sent")).expect("nothing is pushed");
    });
}

#[test]
fn lamb_refuses_rows_and_the_table_stays() {
    on_each(|store| {
        store.init_rows(&[("t".into(), shape(100, 4), rows_of(&[3], &[5.0; 4], 4))]).expect("it is new");
        store.set_optimizer(Rule::Lamb(sheave_optim::Lamb::default())).expect("it is known");
        store.barrier().expect("all are there");
        let push = store.push_rows(&[("t".into(), rows_of(&[3], &[1.0; 4], 4))]).and_then(|work| wait(&work));
        refusal(push, ErrorKind::Unsupported);
        let place = tensor(&[0.0; 4], [1, 4]);
        wait(&store.pull_rows(&[("t".into(), ids_of(&[3]), place.clone())]).expect("it is sent")).expect("it is there");
        assert_eq!(floats(&place), [5.0; 4]);
    });
}

#[test]
fn workers_that_initialise_other_tables_are_told() {
    job_of(2, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = KvStore::open(mesh, config(Kind::DistSync)).expect("all servers serve");
        let given = |rows: u64| (Key::from(rows as i64), shape(50 + rows * u64::from(store.rank()), 4));
        for rows in [0, 1] {
            let (key, table) = given(rows);
            let outcome = store.init_rows(&[(key, table, rows_of(&[0], &[1.0; 4], 4))]);
            match (rows, store.rank()) {
                (1, 1) => assert!(refusal(outcome, ErrorKind::Mismatch).contains("rows of f32[50, 4]")),
                _ => outcome.expect("they agree"),
            }
        }
        let dense = tensor(&[0.0; 8], [2, 4]);
        let outcome = match store.rank() {
            0 => store.init(&[("d".into(), dense)]),
            _ => store.init_rows(&[("d".into(), shape(2, 4), rows_of(&[0], &[1.0; 4], 4))]),
        };
        match store.rank() {
            0 => outcome.expect("it is new"),
            _ => drop(refusal(outcome, ErrorKind::Mismatch)),
        }
        // Who knows nothing of it, and who has no row of it.
        let outcome = match store.rank() {
            0 => store.init_rows(&[("e".into(), shape(200, 4), rows_of(&[199, 4], &[2.0; 8], 4))]),
            _ => store.init_without_values(&["e".into()]),
        };
        outcome.expect("it is new");
        let place = tensor(&[0.0; 8], [2, 4]);
        wait(&store.pull_rows(&[("e".into(), ids_of(&[199, 5]), place.clone())]).expect("it is sent"))
            .expect("it is there");
        assert_eq!(floats(&place), [[2.0; 4], [0.0; 4]].concat());
    });
}

/// Tables of no rows, of rows without elements, of halves, of flags, and of one row.
#[test]
fn odd_tables_work() {
    on_each(|store| {
        let empty = |dtype, row: &[u64]| {
            let shape = Shape::new(&[&[0], row].concat()).expect("it is short");
            Rows::new(ids_of(&[]), Tensor::private(dtype, shape).expect("memory")).expect("they fit")
        };
        let tables: [(Key, Shape, Rows); 4] = [
            (0.into(), [0, 3].into(), empty(Dtype::F32, &[3])),
            (1.into(), [7, 0].into(), empty(Dtype::F32, &[0])),
            (2.into(), [1, 400].into(), empty(Dtype::F16, &[400])),
            (3.into(), [500].into(), empty(Dtype::Bool, &[])),
        ];
        store.init_rows(&tables).expect("they are new");
        store.barrier().expect("all are there");
        let is_first = store.rank() == 0;
        for (key, table, none) in &tables {
            let ids: &[i64] = if table.elements() == Some(0) && *key == 0.into() { &[] } else { &[0] };
            let mut dimensions = table.dimensions().to_vec();
            dimensions[0] = ids.len() as u64;
            let place =
                Tensor::private(none.values().dtype(), Shape::new(&dimensions).expect("short")).expect("memory");
            let mut ones =
                Tensor::private(none.values().dtype(), Shape::new(&dimensions).expect("short")).expect("memory");
            ones.bytes_mut().expect("its only handle").fill(1);
            // Flags have no sum, and need none if only one worker gives them.
            let rows = if is_first { Rows::new(ids_of(ids), ones.clone()).expect("they fit") } else { none.clone() };
            let work = store.push_pull_rows(&[(key.clone(), rows)], &[(key.clone(), ids_of(ids), place.clone())]);
            wait(&work.expect("it is sent")).expect("all push");
            assert_eq!(&*place.bytes().expect("nobody writes"), &*ones.bytes().expect("nobody writes"), "{key}");
        }
        store.delete(&[2.into(), 3.into()]).expect("they are there");
        store.init_rows(&tables[2..]).expect("they are new again");
    });
}

/// A place and the values that are pushed in one buffer, and a place beside the ids.
#[test]
fn values_and_places_may_lie_side_by_side() {
    on_each(|store| {
        store.init(&[("w".into(), tensor(&vec![0.0; 4000 * 4], [4000, 4]))]).expect("it is new");
        let workers = store.group_size() as f32;
        for count in [3u64, 3900] {
            // Values behind the place; ids not in order, so that the place is filled in the end.
            let both = tensor(&vec![1.0; count as usize * 8], [2 * count, 4]);
            let (values, place) = (both.slice_rows(0..count).expect("it has"), both.slice_rows(count..2 * count));
            let ids: Vec<i64> = (0..count as i64).rev().collect();
            let rows = Rows::new(ids_of(&ids), values).expect("they fit");
            let pull = [("w".into(), ids_of(&ids), place.expect("it has"))];
            wait(&store.push_pull_rows(&[("w".into(), rows)], &pull).expect("it is sent")).expect("all push");
            assert_eq!(floats(&pull[0].2), vec![workers; count as usize * 4]);
        }
    });
}

/// A store that is used by nobody else.
#[test]
fn an_updater_that_fails_leaves_the_rows_as_they_were() {
    let store = KvStore::local("local").expect("it is known");
    store.init_rows(&[("t".into(), shape(9, 2), rows_of(&[4], &[1.0, 2.0], 2))]).expect("it is new");
    store
        .set_updater(Updater::Function(std::sync::Arc::new(|_, sum, value| {
            assert_eq!((floats(sum), floats(value)), (vec![3.0, 4.0, 5.0, 6.0], vec![0.0, 0.0, 1.0, 2.0]));
            value.as_mut_slice::<f32>()?.fill(9.0);
            Err(Error::new(ErrorKind::Remote, "it does not like them"))
        })))
        .expect("it is here");
    let rows = rows_of(&[4, 0], &[5.0, 6.0, 3.0, 4.0], 2);
    refusal(store.push_rows(&[("t".into(), rows)]).and_then(|work| wait(&work)), ErrorKind::Remote);
    let place = tensor(&[0.0; 4], [2, 2]);
    wait(&store.pull_rows(&[("t".into(), ids_of(&[0, 4]), place.clone())]).expect("it is sent")).expect("it is there");
    assert_eq!(floats(&place), [0.0, 0.0, 1.0, 2.0]);
}
