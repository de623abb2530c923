use super::*;
use sheave_base::clock::SeededEntropy;
use sheave_tensor::Tensor;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// A tensor of one number, and the value that stands for it.
const ITEM_BYTES: u64 = 8 + 32;

type Entries = Vec<(String, i64)>;

fn name(number: i64) -> Name {
    Name::version(Value::Int(number)).expect("a number")
}

fn key(at: usize) -> Name {
    Name::key(Value::from(["x", "y", "z"][at])).expect("a text")
}

fn number_of(name: &Name) -> i64 {
    match name.value {
        Value::Int(number) => number,
        ref other => panic!("{other:?}"),
    }
}

fn written(entries: &[(String, i64)]) -> (Value, Vec<Tensor>) {
    let tensors = entries.iter().map(|(_, number)| Tensor::from_slice(&[*number], [1]).expect("it fits")).collect();
    let named = entries.iter().enumerate().map(|(at, (name, _))| (name.clone(), Value::Tensor(at as u32)));
    (Value::Map(named.collect()), tensors)
}

fn read((value, tensors): (Value, Vec<Tensor>)) -> Entries {
    let Value::Map(entries) = value else { panic!("{value:?}") };
    let number = |value: &Value| match value {
        Value::Tensor(at) => tensors[*at as usize].to_vec::<i64>().expect("it is i64")[0],
        other => panic!("{other:?}"),
    };
    entries.iter().map(|(name, value)| (name.clone(), number(value))).collect()
}

fn table(settings: VersionsSettings) -> Table<u64> {
    Table::new(settings)
}

fn push(table: &mut Table<u64>, key: &Name, version: i64, previous: Option<i64>, number: i64) -> Result<Pushed> {
    let (value, tensors) = written(&[("a".to_owned(), number)]);
    let content = Content::Whole(Stored::of(&value, &tensors)?);
    let previous = previous.map(name);
    table.push(key, name(version), previous.as_ref(), content).map(|(pushed, _)| pushed)
}

/// A version as the naive table has it: its number, its entries, when it was accepted, and its pins.
#[derive(Clone, Debug)]
struct Plain {
    version: i64,
    entries: Entries,
    order: u64,
    pins: usize,
}

/// The same table, without any thought of cost.
#[derive(Clone)]
struct Naive {
    settings: VersionsSettings,
    keys: Vec<Vec<Plain>>,
    order: u64,
    pins: Vec<(Owned, usize, u64)>,
}

impl Naive {
    fn bytes(&self) -> u64 {
        let numbers = self.keys.iter().flatten().flat_map(|plain| plain.entries.iter().map(|(_, number)| *number));
        ITEM_BYTES * numbers.collect::<std::collections::BTreeSet<_>>().len() as u64
    }

    fn judge(&self, at: usize, version: i64, previous: Option<i64>) -> PushOutcome {
        let (versions, is_strict) = (&self.keys[at], self.settings.rules == Rules::Strict);
        let known = versions.iter().find(|plain| plain.version == version);
        let newest = versions.last().map(|plain| plain.version);
        match known {
            Some(_) if is_strict => PushOutcome::AlreadyExists,
            _ if newest != previous && (newest.is_some() || is_strict) => PushOutcome::Stale,
            Some(known) if known.pins > 0 => PushOutcome::Pinned,
            Some(_) => PushOutcome::Overwritten,
            None => PushOutcome::Accepted,
        }
    }

    /// Returns the keys and versions that were dropped, or that there is no room.
    fn push(&mut self, at: usize, version: i64, entries: Entries) -> Result<Vec<(usize, i64)>, ()> {
        let before = self.clone();
        let order = self.order;
        match self.keys[at].iter_mut().find(|plain| plain.version == version) {
            Some(plain) => plain.entries = entries,
            None => {
                self.order += 1;
                self.keys[at].push(Plain { version, entries, order, pins: 0 });
            }
        }
        let mut dropped = Vec::new();
        while self.bytes() > self.settings.bytes_max {
            let is_new = self.order > order;
            let droppable = |key: usize| {
                let versions = &self.keys[key];
                let older = &versions[..versions.len().saturating_sub(1)];
                older.iter().filter(|plain| plain.pins == 0).map(move |plain| (plain.order, key)).collect::<Vec<_>>()
            };
            let own = droppable(at).into_iter().min().filter(|_| is_new);
            let all = (0..3).flat_map(droppable).filter(|(order, key)| {
                let is_it = |plain: &&Plain| plain.order == *order && plain.version == version && *key == at;
                !self.keys[*key].iter().any(|plain| is_it(&plain))
            });
            let Some((order, key)) = own.or_else(|| all.min()) else {
                *self = before;
                return Err(());
            };
            dropped.push(self.drop_one(key, order));
        }
        dropped.extend(self.keep_depth(at));
        Ok(dropped)
    }

    fn drop_one(&mut self, key: usize, order: u64) -> (usize, i64) {
        let place = self.keys[key].iter().position(|plain| plain.order == order).expect("it is there");
        (key, self.keys[key].remove(place).version)
    }

    fn keep_depth(&mut self, key: usize) -> Vec<(usize, i64)> {
        let mut dropped = Vec::new();
        while self.keys[key].len() > self.settings.depth {
            let older = &self.keys[key][..self.keys[key].len() - 1];
            let Some(order) = older.iter().find(|plain| plain.pins == 0).map(|plain| plain.order) else { break };
            dropped.push(self.drop_one(key, order));
        }
        dropped
    }

    fn unpin(&mut self, owned: &[Owned]) -> bool {
        let ended: Vec<_> = self.pins.extract_if(.., |(own, ..)| owned.contains(own)).collect();
        for (_, key, order) in &ended {
            self.keys[*key].iter_mut().filter(|plain| plain.order == *order).for_each(|plain| plain.pins -= 1);
        }
        ended.iter().for_each(|(_, key, _)| drop(self.keep_depth(*key)));
        !ended.is_empty()
    }
}

/// Both tables, and what is drawn for them.
struct Pair {
    table: Table<u64>,
    naive: Naive,
    dice: SeededEntropy,
    numbers: i64,
    watches: Vec<(usize, Option<i64>, u64)>,
}

impl Pair {
    fn new(seed: u64) -> Self {
        let mut dice = SeededEntropy::new(seed);
        let settings = VersionsSettings {
            depth: 1 + dice.below(4) as usize,
            bytes_max: [u64::MAX, ITEM_BYTES * (8 + dice.below(20))][dice.below(2) as usize],
            rules: [Rules::Strict, Rules::Machin][dice.below(2) as usize],
            ..VersionsSettings::default()
        };
        let naive = Naive { settings: settings.clone(), keys: vec![Vec::new(); 3], order: 0, pins: Vec::new() };
        Self { table: Table::new(settings), naive, dice, numbers: 0, watches: Vec::new() }
    }

    fn below(&mut self, count: usize) -> usize {
        self.dice.below(count as u64) as usize
    }

    fn fresh(&mut self) -> i64 {
        self.numbers += 1;
        self.numbers
    }

    fn entries(&mut self) -> Entries {
        let names: Vec<&str> = NAMES.into_iter().filter(|_| self.dice.below(2) == 0).collect();
        names.into_iter().map(|name| (name.to_owned(), self.fresh())).collect()
    }

    fn push(&mut self) {
        let at = self.below(3);
        let newest = self.naive.keys[at].last().cloned();
        let version = match self.below(4) {
            0 => self.below(self.numbers as usize + 1) as i64,
            _ => self.fresh(),
        };
        let previous = match self.below(5) {
            0 => None,
            1 => Some(self.below(self.numbers as usize + 1) as i64),
            _ => newest.as_ref().map(|plain| plain.version),
        };
        let mut entries = self.entries();
        let (value, tensors) = written(&entries);
        let content = match (newest, self.below(2)) {
            (Some(newest), 0) => {
                let is_set = |name: &str| entries.iter().any(|(set, _)| set == name);
                let (mut kept, mut removed) = (Vec::new(), Vec::new());
                for (name, number) in newest.entries {
                    match (is_set(&name), self.dice.below(4)) {
                        (false, 0) => removed.push(name),
                        _ => kept.push((name, number)),
                    }
                }
                let changes = Changes::of(&value, removed, &tensors).expect("they make sense");
                for (name, number) in &mut kept {
                    if let Some(place) = entries.iter().position(|(set, _)| set == name) {
                        *number = entries.remove(place).1;
                    }
                }
                entries = [kept, entries].concat();
                Content::Changes(changes)
            }
            _ => Content::Whole(Stored::of(&value, &tensors).expect("a map")),
        };
        let outcome = self.naive.judge(at, version, previous);
        let previous = previous.map(name);
        let pushed = self.table.push(&key(at), name(version), previous.as_ref(), content);
        self.compare(at, version, outcome, entries, pushed);
    }

    fn compare(
        &mut self,
        at: usize,
        version: i64,
        outcome: PushOutcome,
        entries: Entries,
        pushed: Result<(Pushed, Vec<Released<u64>>)>,
    ) {
        if !matches!(outcome, PushOutcome::Accepted | PushOutcome::Overwritten) {
            let (pushed, released) = pushed.expect("refused pushes are no errors");
            assert!(pushed.outcome == outcome && released.is_empty() && pushed.dropped.is_empty(), "{pushed:?}");
            return;
        }
        match self.naive.push(at, version, entries) {
            Err(()) => assert_eq!(pushed.map(drop).expect_err("no room").kind(), ErrorKind::LimitExceeded),
            Ok(dropped) => {
                let (pushed, released) = pushed.expect("there is room");
                let is_same = |(dropped, (at, version)): (&Dropped, &(usize, i64))| {
                    dropped.key == key(*at).value && dropped.version == Value::Int(*version)
                };
                assert_eq!(pushed.outcome, outcome);
                assert_eq!(pushed.dropped.len(), dropped.len(), "{pushed:?} {dropped:?}");
                assert!(pushed.dropped.iter().zip(&dropped).all(is_same), "{pushed:?} {dropped:?}");
                let newest = self.naive.keys[at].last().map(|plain| plain.version);
                let is_due = |watch: &mut (usize, Option<i64>, u64)| watch.0 == at && watch.1 != newest;
                let mut due: Vec<u64> = self.watches.extract_if(.., is_due).map(|(.., number)| number).collect();
                let mut released: Vec<u64> = released.into_iter().map(|(number, _)| number).collect();
                due.sort_unstable();
                released.sort_unstable();
                assert_eq!(released, due);
            }
        }
    }

    fn watch(&mut self) {
        let (at, number) = (self.below(3), self.fresh() as u64);
        let newest = self.naive.keys[at].last().map(|plain| plain.version);
        let newer_than = if self.below(3) == 0 { None } else { newest };
        let has_other = self.table.has_other(&key(at), newer_than.map(name).as_ref());
        assert_eq!(has_other, newest.is_some() && newest != newer_than);
        if !has_other {
            let owned = (NodeId(number % 3), number);
            let watched = self.table.watch(&key(at), newer_than.map(name), owned, number, |_| true);
            watched.map_err(|(_, error)| error).expect("there is room");
            self.watches.push((at, newer_than, number));
        }
    }

    fn pin(&mut self) {
        let (at, owned) = (self.below(3), (NodeId(self.dice.below(3)), self.fresh() as u64));
        let count = self.naive.keys[at].len();
        let place = if count == 0 { 0 } else { self.below(count) };
        let found = self.naive.keys[at].get_mut(place);
        let version = found.as_ref().map(|plain| name(plain.version));
        let pinned = self.table.pin(&key(at), version.as_ref(), owned).expect("there is room");
        assert_eq!(pinned, version);
        if let Some(plain) = found {
            plain.pins += 1;
            let order = plain.order;
            self.naive.pins.push((owned, at, order));
        }
    }

    fn unpin(&mut self) {
        let count = self.naive.pins.len();
        let owned = if count == 0 { (NodeId(9), 9) } else { self.naive.pins[self.dice.below(count as u64) as usize].0 };
        assert_eq!(self.table.unpin(owned), self.naive.unpin(&[owned]));
    }

    fn lose(&mut self) {
        let node = NodeId(self.dice.below(3));
        let (mut gone, mut pins) = self.table.lose(node);
        let is_own = |(.., number): &mut (usize, Option<i64>, u64)| *number % 3 == node.0;
        let mut own: Vec<u64> = self.watches.extract_if(.., is_own).map(|(.., number)| number).collect();
        own.sort_unstable();
        gone.sort_unstable();
        assert_eq!(gone, own);
        let mut own: Vec<Owned> =
            self.naive.pins.iter().map(|(owned, ..)| *owned).filter(|own| own.0 == node).collect();
        assert_eq!(self.naive.unpin(&own), !own.is_empty());
        own.sort_unstable();
        pins.sort_unstable();
        assert_eq!(pins, own);
    }

    fn remove(&mut self) {
        let at = self.below(3);
        let was_there = !std::mem::take(&mut self.naive.keys[at]).is_empty();
        assert_eq!(self.table.remove(&key(at)), was_there);
    }

    fn step(&mut self) {
        match self.dice.below(20) {
            0..10 => self.push(),
            10..13 => self.watch(),
            13..16 => self.pin(),
            16..18 => self.unpin(),
            18 => self.lose(),
            _ if self.dice.below(4) == 0 => self.remove(),
            _ => {}
        }
        self.table.garbage.clear();
    }

    fn check(&self) {
        for (at, versions) in self.naive.keys.iter().enumerate() {
            let key = key(at);
            let numbers: Vec<Value> = versions.iter().map(|plain| Value::Int(plain.version)).collect();
            assert_eq!(self.table.versions(&key), numbers);
            let Some(newest) = versions.last() else {
                assert!(self.table.pull(&key, &Want::Newest).is_none());
                continue;
            };
            for plain in versions {
                let whole = match self.table.pull(&key, &Want::Version(name(plain.version))) {
                    Some((_, Found::Whole(stored))) => stored,
                    other => panic!("{other:?}"),
                };
                assert_eq!(read(whole.composed()), plain.entries);
                let (version, found) =
                    self.table.pull(&key, &Want::NewerThan(name(plain.version))).expect("there is one");
                assert_eq!(number_of(&version), newest.version);
                let after = match found {
                    Found::Unchanged => whole,
                    Found::Whole(stored) => stored,
                    Found::Changes(changes) => whole.with(&changes).expect("it is what they are of"),
                };
                let sorted = |mut entries: Entries| {
                    entries.sort();
                    entries
                };
                assert_eq!(sorted(read(after.composed())), sorted(newest.entries.clone()));
            }
        }
        let report = self.table.report();
        assert_eq!((report.bytes, report.watches), (self.naive.bytes(), self.watches.len()));
        assert_eq!(report.versions, self.naive.keys.iter().map(Vec::len).sum::<usize>());
        assert_eq!(report.pins, self.naive.pins.len());
        assert!(report.bytes <= self.naive.settings.bytes_max);
    }
}

#[test]
fn a_table_does_what_a_naive_one_does() {
    for seed in 0..300 {
        let mut pair = Pair::new(seed);
        for _ in 0..200 {
            pair.step();
            pair.check();
        }
    }
}

#[test]
fn a_push_is_accepted_from_the_newest_version_alone() {
    let mut table = table(VersionsSettings { depth: 2, ..VersionsSettings::default() });
    let key = key(0);
    let mut outcome = |version, previous| push(&mut table, &key, version, previous, version).expect("there is room");
    assert_eq!(outcome(1, Some(7)).outcome, PushOutcome::Stale, "nobody knows the key");
    assert_eq!(outcome(1, None).outcome, PushOutcome::Accepted);
    assert_eq!(outcome(2, None).outcome, PushOutcome::Stale);
    assert_eq!(outcome(-1, Some(1)).outcome, PushOutcome::Accepted, "versions have no order");
    let again = outcome(-1, Some(1));
    assert_eq!((again.outcome, again.newest), (PushOutcome::AlreadyExists, Some(Value::Int(-1))));
    let third = outcome(5, Some(-1));
    let dropped = vec![Dropped { key: key.value.clone(), version: Value::Int(1) }];
    assert_eq!((third.outcome, third.dropped), (PushOutcome::Accepted, dropped));
    assert_eq!(table.versions(&key), [Value::Int(-1), Value::Int(5)]);
}

/// As the ordered server of machin, which keeps one version more than its depth says.
#[test]
fn machins_rules_are_kept() {
    let settings = VersionsSettings { depth: 2, rules: Rules::Machin, ..VersionsSettings::default() };
    let (mut table, key) = (table(settings), key(0));
    for (version, previous, number, outcome, versions) in [
        (1, Some(9), 10, PushOutcome::Accepted, &[1][..]),
        (2, Some(1), 20, PushOutcome::Accepted, &[1, 2]),
        (1, Some(1), 11, PushOutcome::Stale, &[1, 2]),
        (1, Some(2), 12, PushOutcome::Overwritten, &[1, 2]),
        (2, Some(2), 21, PushOutcome::Overwritten, &[1, 2]),
        (-1, Some(2), 30, PushOutcome::Accepted, &[2, -1]),
    ] {
        assert_eq!(push(&mut table, &key, version, previous, number).expect("there is room").outcome, outcome);
        let numbers: Vec<Value> = versions.iter().map(|number| Value::Int(*number)).collect();
        assert_eq!(table.versions(&key), numbers);
    }
    let Some((_, Found::Whole(stored))) = table.pull(&key, &Want::Version(name(2))) else { panic!("it is there") };
    assert_eq!(read(stored.composed())[0].1, 21, "it was overwritten");
    // Whoever has the version from before is sent all of it.
    push(&mut table, &key, -1, Some(-1), 31).expect("there is room");
    let found = table.pull(&key, &Want::NewerThan(name(-1)));
    assert!(matches!(found, Some((_, Found::Whole(_)))), "{found:?}");
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let bytes_max = 3 * ITEM_BYTES;
    let mut table = table(VersionsSettings { depth: 9, bytes_max, keys_max: 2, ..VersionsSettings::default() });
    push(&mut table, &key(0), 1, None, 1).expect("there is room");
    let owned = (NodeId(1), 1);
    assert_eq!(table.pin(&key(0), None, owned).expect("there is room"), Some(name(1)));
    push(&mut table, &key(0), 2, Some(1), 2).expect("there is room");
    push(&mut table, &key(1), 1, None, 3).expect("there is room");
    let error = push(&mut table, &key(1), 2, Some(1), 4).map(drop);
    assert!(error.is_ok(), "its own version before makes room: {error:?}");
    let large = written(&[("a".to_owned(), 5), ("b".to_owned(), 6)]);
    let content = Content::Whole(Stored::of(&large.0, &large.1).expect("a map"));
    let error = table.push(&key(1), name(3), Some(&name(2)), content).map(drop).expect_err("two do not fit");
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    let text = error.to_string();
    assert!(text.contains("\"y\"") && text.contains("2 newest versions") && text.contains("1 pins"), "{text}");
    assert_eq!(table.versions(&key(0)), [Value::Int(1), Value::Int(2)]);
    assert_eq!(table.versions(&key(1)), [Value::Int(2)]);
    assert!(table.unpin(owned));
    assert_eq!(table.report().bytes, bytes_max);
    let many = push(&mut table, &key(2), 1, None, 7).map(drop).expect_err("a third key");
    assert!(many.to_string().contains("one more than the table may have: 2"), "{many}");
}

#[test]
fn watches_and_pins_are_bounded() {
    let mut table = table(VersionsSettings::default());
    push(&mut table, &key(0), 1, None, 1).expect("there is room");
    let most = limits::VERSIONS_WATCHERS_MAX as u64;
    for number in 0..most {
        let watched = table.watch(&key(1), None, (NodeId(1), number), number, |_| true);
        watched.map_err(|(_, error)| error).expect("there is room");
    }
    let (_, error) = table.watch(&key(1), None, (NodeId(1), most), 0, |_| true).expect_err("there are too many");
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    // Those that nobody wants make room.
    let watched = table.watch(&key(1), None, (NodeId(1), most), 1, |number| number % 2 == 0);
    let unwanted = watched.map_err(|(_, error)| error).expect("there is room");
    assert_eq!((unwanted.len() as u64, table.report().watches as u64), (most / 2, most / 2 + 1));
    for number in 0..limits::VERSIONS_PINS_MAX as u64 {
        table.pin(&key(0), None, (NodeId(1), number)).expect("there is room");
    }
    let error = table.pin(&key(0), None, (NodeId(2), 0)).map(drop).expect_err("there are too many");
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    table.lose(NodeId(1));
    assert_eq!((table.report().watches, table.report().pins), (0, 0));
}
