//! Some nodes' tables, joined by queues that a seed empties in any order that links permit.

use super::name::Mention;
use super::promise::Asking;
use super::table::Bounds;
use super::words::Word;
use super::*;
use sheave_base::{Peer, Work};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Weak;
use std::sync::atomic::Ordering::SeqCst;

enum Item {
    /// With the number of the call that is to fill what it mentions so.
    Message(Vec<Mention>, Option<u64>),
    /// The answer to that call.
    Answer(u64, bool),
    Words(Vec<Word>),
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

struct Node {
    references: Arc<References>,
    refs: Vec<Ref>,
    /// Calls whose handlers have begun: who has made them, and what they are to fill.
    handling: Vec<(usize, u64, Promises)>,
    waits: Vec<(Name, Work<Arc<u64>>)>,
    is_alive: bool,
}

/// A call that is to fill promises, and is not answered.
struct Call {
    from: usize,
    to: usize,
    names: Vec<Name>,
}

struct World {
    nodes: Vec<Node>,
    queues: BTreeMap<(usize, usize), VecDeque<Item>>,
    objects: BTreeMap<Name, std::sync::Weak<u64>>,
    calls: BTreeMap<u64, Call>,
    last_call: u64,
    /// Who has not yet heard of whose end.
    unheard: Vec<(usize, usize)>,
    random: Random,
    passes: usize,
    /// Promises that were filled, and that were poisoned by their handlers.
    settled: (usize, usize),
}

fn id(node: usize) -> NodeId {
    NodeId(node as u64 + 1)
}

fn at(node: NodeId) -> usize {
    usize::try_from(node.0).expect("small") - 1
}

fn joined(node: usize, bounds: Bounds) -> Arc<References> {
    let references = References::bounded(id(node), Weak::new(), bounds);
    references.joined((0..5).map(id));
    references
}

fn plain(name: Name) -> Mention {
    Mention { name, fills: false }
}

impl World {
    fn new(count: usize, seed: u64) -> Self {
        let node = |at| {
            let references = joined(at, Bounds::default());
            Node { references, refs: Vec::new(), handling: Vec::new(), waits: Vec::new(), is_alive: true }
        };
        let nodes = (0..count).map(node).collect();
        let (queues, objects, calls) = Default::default();
        let (unheard, random) = (Vec::new(), Random(seed));
        Self { nodes, queues, objects, calls, last_call: 0, unheard, random, passes: 0, settled: (0, 0) }
    }

    fn any(&mut self) -> usize {
        loop {
            let node = self.random.below(self.nodes.len());
            if self.nodes[node].is_alive {
                return node;
            }
        }
    }

    /// Any reference that a node has.
    fn any_ref(&mut self, node: usize) -> Option<Ref> {
        let refs = &self.nodes[node].refs;
        (!refs.is_empty()).then(|| refs[self.random.below(refs.len())].clone())
    }

    fn step(&mut self) {
        let node = self.any();
        match self.random.below(16) {
            0 => {
                let object = Arc::new(7u64);
                let held = self.nodes[node].references.export(object.clone()).expect("there is room");
                self.objects.insert(held.0.name, Arc::downgrade(&object));
                self.nodes[node].refs.push(held);
            }
            1 | 2 => {
                let owner = self.any();
                // One whose end was not heard of yet is promised something too.
                let promised = self.nodes[node].references.promise(id(owner));
                self.nodes[node].refs.extend(promised);
            }
            3 | 4 => self.ask(node),
            5..=7 => self.pass(node),
            8 | 9 if !self.nodes[node].refs.is_empty() => {
                let at = self.random.below(self.nodes[node].refs.len());
                drop(self.nodes[node].refs.swap_remove(at));
            }
            10 => self.flush(node),
            11 => self.handle(node),
            12 => self.wait(node),
            _ => self.deliver_any(),
        }
        if self.random.one_in(100) && !self.calls.is_empty() {
            let at = self.random.below(self.calls.len());
            let number = *self.calls.keys().nth(at).expect("so many");
            self.end_call(number, Some(ErrorKind::Cancelled));
        }
        if self.random.one_in(4) && !self.unheard.is_empty() {
            let at = self.random.below(self.unheard.len());
            let (hearer, gone) = self.unheard.swap_remove(at);
            self.hear_of_end(hearer, gone);
        }
    }

    /// Makes the call that is to fill something that this node was promised.
    fn ask(&mut self, from: usize) {
        let Some(held) = self.any_ref(from) else { return };
        let (name, to) = (held.0.name, at(held.owner()));
        let mut mentions = vec![Mention { name, fills: true }];
        mentions.extend(self.any_ref(from).map(|other| plain(other.0.name)));
        let references = Arc::clone(&self.nodes[from].references);
        let Ok(names) = references.begin_filling(id(to), &mentions) else { return };
        self.last_call += 1;
        let number = self.last_call;
        let passed = references.pass(id(to), &mentions);
        let is_sent = !self.random.one_in(8);
        let Some(refs) = passed.ok().filter(|refs| {
            is_sent || {
                references.take_back(id(to), refs.iter().map(Ref::name));
                false
            }
        }) else {
            let error = Error::new(ErrorKind::LimitExceeded, "no room");
            return references.filling_failed(&names, "a test", &error, false);
        };
        self.calls.insert(number, Call { from, to, names: names.to_vec() });
        if from == to {
            references.take_back(id(to), refs.iter().map(Ref::name));
            let promises =
                references.promises_here(&[Mention { name, fills: true }], std::slice::from_ref(&held), number, "fill");
            return self.nodes[to].handling.push((from, number, promises));
        }
        self.queues.entry((from, to)).or_default().push_back(Item::Message(mentions, Some(number)));
    }

    /// A handler fills, poisons, answers or forgets.
    fn handle(&mut self, node: usize) {
        if self.nodes[node].handling.is_empty() {
            return;
        }
        let at = self.random.below(self.nodes[node].handling.len());
        let (from, number, promises) = self.nodes[node].handling.swap_remove(at);
        let mut is_fine = true;
        match self.random.below(4) {
            0 | 1 => {
                for name in promises.names() {
                    let object = Arc::new(number);
                    if promises.fulfil(&name.to_fill(), object.clone()).is_ok() {
                        assert!(promises.fulfil(&name.to_fill(), Arc::new(0u64)).is_err(), "{name} is filled twice");
                        self.objects.insert(name, Arc::downgrade(&object));
                        self.settled.0 += 1;
                    }
                }
            }
            2 => {
                for name in promises.names() {
                    let error = Error::new(ErrorKind::Remote, "no luck");
                    self.settled.1 += usize::from(promises.poison(&name.to_fill(), &error).is_ok());
                    assert!(promises.fulfil(&name.to_fill(), Arc::new(0u64)).is_err(), "{name} is filled after all");
                }
            }
            // Dropped as it is.
            _ => is_fine = self.random.one_in(2),
        }
        drop(promises);
        if from == node {
            return self.end_call(number, (!is_fine).then_some(ErrorKind::Remote));
        }
        self.queues.entry((node, from)).or_default().push_back(Item::Answer(number, is_fine));
    }

    fn end_call(&mut self, number: u64, error: Option<ErrorKind>) {
        let Some(call) = self.calls.remove(&number) else { return };
        let references = &self.nodes[call.from].references;
        match error {
            Some(kind) => references.filling_failed(&call.names, "a test", &Error::new(kind, "it ended"), true),
            None => references.filling_ended(&call.names),
        }
    }

    fn wait(&mut self, node: usize) {
        let own = self.nodes[node].refs.iter().find(|held| held.owner() == id(node));
        let Some(held) = own.cloned() else { return };
        let work = self.nodes[node].references.object::<u64>(&held, None);
        if self.random.one_in(8) {
            work.cancel();
            assert!(work.is_done());
        }
        self.nodes[node].waits.push((held.0.name, work));
    }

    fn pass(&mut self, from: usize) {
        let to = self.any();
        if to == from || self.nodes[from].refs.is_empty() {
            return;
        }
        let count = 1 + self.random.below(3);
        let names: Vec<Mention> =
            (0..count).filter_map(|_| self.any_ref(from)).map(|held| plain(held.0.name)).collect();
        let Ok(refs) = self.nodes[from].references.pass(id(to), &names) else { return };
        if self.random.one_in(10) {
            return self.nodes[from].references.take_back(id(to), refs.iter().map(Ref::name));
        }
        self.passes += 1;
        self.queues.entry((from, to)).or_default().push_back(Item::Message(names, None));
    }

    fn flush(&mut self, from: usize) {
        let references = Arc::clone(&self.nodes[from].references);
        drop(references.take_garbage());
        for to in references.begin_flush() {
            let most = 1 + self.random.below(3);
            let words = references.take_words(to, most);
            if self.random.one_in(8) {
                references.put_back(to, words);
            } else if self.nodes[at(to)].is_alive {
                self.queues.entry((from, at(to))).or_default().push_back(Item::Words(words));
            }
        }
    }

    fn deliver_any(&mut self) {
        let full: Vec<_> = self.queues.iter().filter(|(_, queue)| !queue.is_empty()).map(|(key, _)| *key).collect();
        if !full.is_empty() {
            let key = full[self.random.below(full.len())];
            self.deliver(key);
        }
    }

    fn deliver(&mut self, key: (usize, usize)) {
        let Some(item) = self.queues.get_mut(&key).and_then(VecDeque::pop_front) else { return };
        let nobody_died = self.unheard.is_empty() && self.nodes.iter().all(|node| node.is_alive);
        let node = &mut self.nodes[key.1];
        match item {
            Item::Words(words) => {
                assert!(node.references.check(id(key.0), &words).expect("all are members"));
                node.references.heard(id(key.0), words);
            }
            Item::Answer(number, is_fine) => self.end_call(number, (!is_fine).then_some(ErrorKind::Remote)),
            Item::Message(names, number) => {
                let asking = number.map(|number| Asking { from: id(key.0), number, method: "fill".into() });
                let brought = node.references.adopt(id(key.0), &names, asking.map(Arc::new));
                let is_cancelled = |error: &Error| error.kind() == ErrorKind::Cancelled;
                if nobody_died {
                    // A call that was given up before it came finds its promise poisoned.
                    assert!(brought.error.as_ref().is_none_or(is_cancelled), "{:?}", brought.error);
                }
                node.refs.extend(brought.refs);
                if let Some(number) = number {
                    node.handling.push((key.0, number, brought.promises));
                }
            }
        }
    }

    /// Ends a node: at once, with what it has said last unheard, or in order.
    fn end(&mut self, node: usize) {
        self.nodes[node].is_alive = false;
        self.nodes[node].references.end();
        assert!(self.nodes[node].waits.drain(..).all(|(_, work)| work.is_done()), "a wait outlives its node");
        self.nodes[node].handling.clear();
        self.nodes[node].refs.clear();
        let is_killed = self.random.one_in(2);
        for other in 0..self.nodes.len() {
            self.queues.remove(&(other, node));
            if is_killed && let Some(queue) = self.queues.get_mut(&(node, other)) {
                queue.truncate(self.random.0 as usize % 3);
                // A death is agreed on after its link has ended.
                while self.queues.get(&(node, other)).is_some_and(|queue| !queue.is_empty()) {
                    self.deliver((node, other));
                }
            }
            if self.nodes[other].is_alive {
                self.unheard.push((other, node));
            }
        }
        self.calls.retain(|_, call| call.from != node);
    }

    fn hear_of_end(&mut self, hearer: usize, gone: usize) {
        let ended = self.calls.iter().filter(|(_, call)| call.from == hearer && call.to == gone);
        for number in ended.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.end_call(number, Some(ErrorKind::PeerLost));
        }
        self.nodes[hearer].references.lost(id(gone));
    }

    /// Everything that was said arrives.
    fn settle(&mut self) {
        for (hearer, gone) in std::mem::take(&mut self.unheard) {
            self.hear_of_end(hearer, gone);
        }
        loop {
            for node in 0..self.nodes.len() {
                if self.nodes[node].is_alive {
                    self.flush(node);
                }
            }
            let is_over = self.queues.values().all(VecDeque::is_empty)
                && self.nodes.iter().all(|node| !node.is_alive || node.references.addressees().is_empty());
            if is_over {
                break;
            }
            self.deliver_any();
        }
        for node in &self.nodes {
            drop(node.references.take_garbage());
        }
    }

    /// Who holds a reference that is good has an object, if there ever was one.
    fn check(&self) {
        for held in self.nodes.iter().filter(|node| node.is_alive).flat_map(|node| &node.refs) {
            let owner = at(held.owner());
            let is_good = !held.0.is_gone.load(SeqCst) && held.0.references.loss_of(held.owner()).is_none();
            if self.nodes[owner].is_alive && is_good {
                let is_there = self.objects.get(&held.0.name).is_none_or(|object| object.strong_count() > 0);
                assert!(is_there, "{held:?} was freed too early");
            }
        }
    }

    /// Where everything has arrived an object is there if somebody holds it or its call goes on, and only then.
    fn check_exactly(&self) {
        let held = self.nodes.iter().flat_map(|node| &node.refs).map(|held| held.0.name);
        let open = self.nodes.iter().flat_map(|node| &node.handling).flat_map(|(_, _, promises)| promises.names());
        let waited = self.nodes.iter().flat_map(|node| &node.waits);
        let waited = waited.filter_map(|(_, work)| work.result()).filter_map(Result::ok);
        let kept: Vec<_> = waited.map(|object| Arc::as_ptr(&object)).collect();
        let names: std::collections::HashSet<Name> = held.chain(open).collect();
        for (name, object) in &self.objects {
            let is_needed = names.contains(name) || kept.contains(&object.as_ptr());
            assert_eq!(object.strong_count() > 0, is_needed, "{name}");
        }
        for node in &self.nodes {
            let tables = node.references.tables.lock();
            let entries = tables.owned.keys().map(|id| Name { owner: node.references.me, id: *id });
            let unneeded: Vec<_> = entries.filter(|name| !names.contains(name)).collect();
            let waited: Vec<_> = node.waits.iter().filter(|(_, work)| !work.is_done()).map(|(name, _)| *name).collect();
            assert!(unneeded.iter().all(|name| waited.contains(name)), "{unneeded:?} is kept for nobody");
        }
    }

    /// Drops everything, and nothing is left of it.
    fn drop_all(&mut self, about: &str) {
        for number in self.calls.keys().copied().collect::<Vec<_>>() {
            self.end_call(number, None);
        }
        for node in &mut self.nodes {
            node.refs.clear();
            node.handling.clear();
        }
        self.settle();
        // What a call has brought that was on its way.
        for node in &mut self.nodes {
            node.refs.clear();
            node.handling.clear();
        }
        self.settle();
        for (at, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_alive) {
            for (name, work) in &node.waits {
                assert!(work.is_done(), "{about}: a wait for {name} never ends");
            }
            assert_eq!(node.references.sizes(), [0; 7], "{about}");
            let tables = node.references.tables.lock();
            for (drawer, heard) in &tables.announced {
                assert_eq!(heard.ranges(), 1, "{about}: node {at} has missed a name of {drawer}");
            }
        }
        self.nodes.iter_mut().for_each(|node| node.waits.clear());
        assert!(self.objects.values().all(|object| object.strong_count() == 0), "{about}");
    }
}

#[test]
fn nothing_is_freed_too_early_and_all_in_the_end() {
    tables_are_right_for(1..=80);
}

#[test]
#[ignore = "soak suite: takes two minutes"]
fn nothing_is_freed_too_early_whatever_overtakes_what() {
    tables_are_right_for(81..=20_000);
}

fn tables_are_right_for(seeds: std::ops::RangeInclusive<u64>) {
    let (mut passes, mut settled) = (0, (0, 0));
    for seed in seeds {
        let mut world = World::new(4, seed);
        for _ in 0..3 {
            for _ in 0..300 {
                world.step();
                world.check();
            }
            let refs = world.nodes.iter().flat_map(|node| &node.refs);
            assert!(refs.into_iter().all(|held| !held.0.is_gone.load(SeqCst)), "nobody died, so nothing is gone");
            world.settle();
            world.check();
            world.check_exactly();
        }
        world.drop_all(&format!("seed {seed}"));
        passes += world.passes;
        settled = (settled.0 + world.settled.0, settled.1 + world.settled.1);
    }
    assert!(passes > 5000 && settled.0 > 500 && settled.1 > 200, "{passes} {settled:?}");
}

#[test]
fn the_ends_of_nodes_leave_nothing_behind() {
    for seed in 1..=250 {
        let mut world = World::new(5, seed);
        for round in 0..600 {
            if round == 200 || round == 400 {
                let node = world.any();
                world.end(node);
            }
            world.step();
        }
        world.settle();
        // What is neither gone nor lost is there.
        world.check();
        world.drop_all(&format!("seed {seed}"));
    }
}

#[test]
fn full_tables_refuse_and_give_back_what_came() {
    let bounds = Bounds { owned: 1, held: 0, passing: 1, ..Bounds::default() };
    let (owner, giver) = (joined(0, Bounds::default()), joined(1, bounds));
    let taker = joined(2, bounds);
    let first = taker.export(Arc::new(1u8)).expect("one fits");
    assert_eq!(taker.export(Arc::new(2u8)).expect_err("two do not").kind(), ErrorKind::LimitExceeded);
    drop(first);
    let object = Arc::new(3u8);
    let held = owner.export(object.clone()).expect("there is room");
    let names = [plain(held.0.name)];
    drop(owner.pass(id(2), &names).expect("it is held"));
    drop(held);
    let brought = taker.adopt(id(0), &names, None);
    assert_eq!(brought.error.expect("it is full").kind(), ErrorKind::LimitExceeded);
    owner.heard(id(2), taker.take_words(id(0), 9));
    drop(owner.take_garbage());
    assert_eq!(Arc::strong_count(&object), 1, "the refused count came back");
    // A giver's table of what is on its way.
    let giver_of_two = joined(1, Bounds { held: 9, ..bounds });
    let held = owner.export(object).expect("there is room");
    let names = [plain(held.0.name)];
    drop(owner.pass(id(1), &names).expect("it is held"));
    let brought = giver_of_two.adopt(id(0), &names, None);
    drop(giver_of_two.pass(id(2), &names).expect("one fits"));
    let error = giver_of_two.pass(id(2), &names).expect_err("two do not");
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(taker.adopt(id(1), &names, None).error.is_some());
    giver_of_two.heard(id(2), taker.take_words(id(1), 9));
    drop(giver_of_two.take_garbage());
    assert_eq!(giver_of_two.sizes()[2], 0, "the refusal confirms");
    drop((brought, giver));
}

/// Whatever a member says, or whoever says it: nothing panics, only members are told anything, and no more is kept than
/// was said.
#[test]
fn f43_words_that_anybody_may_make_up_break_nothing() {
    let mut heard = (0, 0);
    for seed in 1..=300 {
        let mut random = Random(seed);
        let references = joined(0, Bounds { owned: 64, promised: 16, ..Bounds::default() });
        let object = Arc::new(1u64);
        let own = references.export(object.clone()).expect("there is room");
        let promised = references.promise(id(1)).expect("there is room");
        for _ in 0..40 {
            let from = id(1 + random.below(7));
            let words: Vec<Word> = (0..random.below(12)).map(|_| any_word(&mut random)).collect();
            let mut bytes = sheave_wire::to_control(&words).expect("it is written");
            if random.one_in(3) && !bytes.is_empty() {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
            let Ok(read) = sheave_wire::from_control::<Vec<Word>>(&bytes) else { continue };
            let again = sheave_wire::to_control(&read).expect("what was read is written");
            assert_eq!(sheave_wire::from_control::<Vec<Word>>(&again).expect("and read"), read);
            let is_heard = references.check(from, &read);
            if !matches!(is_heard, Ok(true)) {
                assert!(is_heard.is_err() || at(from) > 4, "a member was not heard");
                heard.1 += 1;
                continue;
            }
            references.heard(from, read);
            heard.0 += 1;
            assert!(references.addressees().iter().all(|to| at(*to) <= 4), "who is no member is told something");
        }
        drop(references.take_garbage());
        let sizes = references.sizes();
        assert!(sizes[0] <= 64 && sizes[4] <= 16 * 5 && sizes[1..4] == [1, 0, 1], "{sizes:?}");
        assert_eq!(*own.get::<u64>().expect("it is held"), 1, "seed {seed}");
        (1..5).for_each(|node| references.lost(id(node)));
        drop((own, promised));
        drop(references.take_garbage());
        assert_eq!((references.sizes(), Arc::strong_count(&object)), ([0; 7], 1), "seed {seed}");
    }
    assert!(heard.0 > 500 && heard.1 > 500, "{heard:?}");
}

fn any_word(random: &mut Random) -> Word {
    let any_id = |random: &mut Random| match random.below(4) {
        0 => 4 * random.below(4) as u64,
        // What anybody may have promised, and two numbers that nobody has.
        1 | 2 => Name::drawn(id(0), random.below(7) as u32, random.below(30) as u64).expect("there are more").id,
        _ => random.0 & !1,
    };
    let (number, node) = (any_id(random), id(random.below(6)));
    let times = if random.one_in(9) { u64::MAX } else { random.below(3) as u64 };
    match random.below(5) {
        0 => Word::Count { id: number, giver: node, times },
        1 => Word::Confirm { holder: node, owner: id(random.below(6)), id: number, times },
        2 => Word::Release { id: number, counts: times },
        3 => Word::Gone { id: number },
        _ => Word::Broken { id: number, cause: super::words::Cause::new(ErrorKind::Cancelled, "made up") },
    }
}

/// Names that others have made up, in values and in words, leave nothing and lead nowhere.
#[test]
fn f17_names_of_nodes_that_are_no_members_leave_nothing() {
    let references = joined(0, Bounds::default());
    let strange = NodeId(1000);
    for number in 1..1000 {
        let mention = |owner| Mention { name: Name { owner, id: 4 * number }, fills: number % 3 == 0 };
        // A member that names a stranger, and a stranger that names a member.
        for (from, owner) in [(id(1), NodeId(1000 + number)), (strange, id(1)), (strange, id(0)), (strange, strange)] {
            let asking = Some(Arc::new(Asking { from, number, method: "x".into() }));
            let brought = references.adopt(from, &[mention(owner)], asking);
            assert_eq!(brought.error.expect("it means nothing").kind(), ErrorKind::NotPermitted);
            assert!(brought.refs.is_empty() && brought.promises.is_empty());
        }
        let word = Word::Count { id: 4 * number, giver: NodeId(1000 + number), times: 1 };
        assert_eq!(
            references.check(id(1), std::slice::from_ref(&word)).expect_err("no member").kind(),
            ErrorKind::Protocol
        );
        assert!(!references.check(strange, &[word]).expect("it is not listened to"));
    }
    assert_eq!((references.sizes(), references.addressees()), ([0; 7], Vec::new()));
    // And before it is known who is a member.
    let early = References::new(id(0), Weak::new());
    for number in 0..100_000 {
        let name = Name { owner: strange, id: 4 * number };
        assert!(early.adopt(strange, &[plain(name)], None).error.is_some());
    }
    let said = early.tables.lock().said_to(strange);
    assert!((1..=super::words::BATCH_MAX).contains(&said), "{said}");
    early.joined([id(0), id(1)]);
    assert_eq!((early.sizes(), early.addressees()), ([0; 7], Vec::new()));
}

/// A member that names promises which others may have made takes nothing from them, however many it names.
#[test]
fn promises_of_others_can_be_neither_taken_nor_filled_nor_poisoned() {
    let bounds = Bounds { promised: 8, ..Bounds::default() };
    let (owner, drawer) = (joined(0, bounds), joined(1, bounds));
    let ids: Vec<u64> = (1..100).map(|count| Name::drawn(id(0), 1, count).expect("there are more").id).collect();
    for number in &ids {
        owner.heard(id(2), vec![Word::Count { id: *number, giver: id(2), times: 1 }]);
    }
    assert_eq!(owner.sizes()[4], 8, "its own limit ends it");
    let held = drawer.promise(id(0)).expect("there is room");
    let fills = [Mention { name: held.0.name, fills: true }];
    let asking = |from| Some(Arc::new(Asking { from, number: 1, method: "x".into() }));
    let stolen = owner.adopt(id(2), &fills, asking(id(2)));
    assert_eq!(stolen.error.expect("it was promised to another").kind(), ErrorKind::NotPermitted);
    let broken = Word::Broken { id: held.0.name.id, cause: super::words::Cause::new(ErrorKind::Closed, "made up") };
    assert_eq!(owner.check(id(2), &[broken]).expect_err("it is not for it to say").kind(), ErrorKind::Protocol);
    let brought = owner.adopt(id(1), &fills, asking(id(1)));
    assert!(brought.error.is_none(), "{:?}", brought.error);
    let twice = owner.adopt(id(1), &fills, asking(id(1)));
    assert_eq!(twice.error.expect("one request fills it").kind(), ErrorKind::AlreadyExists);
    brought.promises.fulfil(&held.value(), Arc::new(5u64)).expect("it is open");
    assert_eq!(*brought.refs[0].get::<u64>().expect("it is there"), 5);
    // The drawer has a limit of its own, on both sides.
    let more: Vec<Ref> = (0..7).map(|_| drawer.promise(id(0)).expect("there is room")).collect();
    assert_eq!(drawer.promise(id(0)).expect_err("full").kind(), ErrorKind::LimitExceeded);
    drop(more);
    drawer.promise(id(0)).expect("there is room again");
}

/// Whoever uses what a failed call was to fill reads whom that failure was about: the drawer, where the owner has never
/// heard of the call, and others at the owner.
#[test]
fn a_broken_promise_names_whom_its_call_has_failed_for() {
    let bounds = Bounds::default();
    let (owner, drawer) = (joined(0, bounds), joined(1, bounds));
    let lost = Error::new(ErrorKind::PeerLost, "it looks dead").peer(Peer::named("rank-0").node(id(0)));
    let held = drawer.promise(id(0)).expect("there is room");
    let fills = [Mention { name: held.0.name, fills: true }];
    let names = drawer.begin_filling(id(0), &fills).expect("it was promised");
    drawer.filling_failed(&names, "make of it", &lost, false);
    let error = drawer.pass(id(2), &[plain(held.0.name)]).expect_err("nothing will fill it");
    let text = error.to_string();
    assert_eq!(error.about(), lost.about(), "{text}");
    assert!(text.contains("the call to make of it that was to fill it failed: it looks dead"), "{text}");
    let cause = super::words::Cause::of_call("make of it", &lost);
    owner.heard(id(1), vec![Word::Broken { id: held.0.name.id, cause }]);
    let used = owner.find(held.0.name).expect("its drawer holds it");
    assert_eq!(used.get::<u64>().expect_err("nothing will fill it").about(), lost.about());
}

/// A name that comes back to its drawer in the moment in which that drops it: a new hold begins before the old one has
/// ended. The drawer has given the right to ask up all the same, and its owner must be told.
#[test]
fn a_name_that_comes_back_while_its_drawer_drops_it_is_given_up() {
    let bounds = Bounds::default();
    let (owner, drawer, third) = (joined(0, bounds), joined(1, bounds), joined(2, bounds));
    let held = drawer.promise(id(0)).expect("there is room");
    let names = [plain(held.0.name)];
    drop(drawer.pass(id(2), &names).expect("it is held"));
    let with_third = third.adopt(id(1), &names, None);
    drop(third.pass(id(1), &names).expect("it is held"));
    owner.heard(id(2), third.take_words(id(0), 9));
    drawer.heard(id(0), owner.take_words(id(1), 9));
    drop(drawer.take_garbage());
    // The last handle is gone, and its end has not come to the table yet.
    let emptied = drawer.tables.lock().holds.get_mut(&held.0.name).map(|entry| std::mem::take(&mut entry.hold));
    assert!(emptied.is_some());
    let back = drawer.adopt(id(2), &names, None);
    drop(held);
    owner.heard(id(1), drawer.take_words(id(0), 9));
    let found = owner.find(names[0].name).expect("two hold it");
    assert_eq!(found.get::<u64>().expect_err("it is given up").kind(), ErrorKind::Cancelled);
    third.heard(id(0), owner.take_words(id(2), 9));
    drop((found, back, with_third, third.take_garbage()));
    owner.heard(id(1), drawer.take_words(id(0), 9));
    owner.heard(id(2), third.take_words(id(0), 9));
    drop((owner.take_garbage(), drawer.take_garbage()));
    assert_eq!([owner.sizes(), drawer.sizes(), third.sizes()], [[0; 7]; 3]);
}

/// A holder sends a reference on to the owner and drops it, before it has said that it was given any. What it says to
/// the giver may arrive first, and so may what the giver gives back: the name still means something.
#[test]
fn a_name_on_its_way_to_its_owner_outlives_its_sender_and_its_giver() {
    let bounds = Bounds::default();
    let (owner, giver, holder) = (joined(0, bounds), joined(1, bounds), joined(2, bounds));
    let made = owner.export(Arc::new(7u64)).expect("there is room");
    let names = [plain(made.0.name)];
    drop(owner.pass(id(1), &names).expect("it is held"));
    let given = giver.adopt(id(0), &names, None);
    drop(giver.pass(id(2), &names).expect("it is held"));
    drop((made, given));
    let with_holder = holder.adopt(id(1), &names, None);
    drop(holder.pass(id(0), &names).expect("it is held"));
    drop(with_holder);
    // The message to the owner is slow, and everything that others say is quick.
    giver.heard(id(2), holder.take_words(id(1), 9));
    drop(giver.take_garbage());
    owner.heard(id(1), giver.take_words(id(0), 9));
    let came = owner.adopt(id(2), &names, None);
    assert!(came.error.is_none(), "{:?}", came.error);
    assert_eq!(*came.refs[0].get::<u64>().expect("it lives"), 7);
    drop(came);
    owner.heard(id(2), holder.take_words(id(0), 9));
    giver.heard(id(0), owner.take_words(id(1), 9));
    drop(giver.take_garbage());
    owner.heard(id(1), giver.take_words(id(0), 9));
    drop(owner.take_garbage());
    assert_eq!([owner.sizes(), giver.sizes(), holder.sizes()], [[0; 7]; 3]);
}

/// A call that fails where its owner cannot see it: one that was never sent, and one whose handler goes on for ever.
/// The drawer says so, while it holds the name itself.
#[test]
fn what_ends_a_call_at_its_drawer_poisons_its_promise_at_the_owner() {
    for was_sent in [false, true] {
        let (owner, drawer) = (joined(0, Bounds::default()), joined(1, Bounds::default()));
        let held = drawer.promise(id(0)).expect("there is room");
        let fills = [Mention { name: held.0.name, fills: true }];
        let asked = drawer.begin_filling(id(0), &fills).expect("it is open");
        let asking = Arc::new(Asking { from: id(1), number: 1, method: "x".into() });
        let request = was_sent.then(|| owner.adopt(id(1), &fills, Some(asking)));
        // A third node has it, and waits for it at the owner.
        owner.heard(id(2), vec![Word::Count { id: held.0.name.id, giver: id(1), times: 1 }]);
        let own = owner.find(held.0.name).expect("it is held");
        let wait = owner.object::<u64>(&own, None);
        drawer.filling_failed(&asked, "x of y", &Error::new(ErrorKind::LimitExceeded, "no room"), was_sent);
        assert!(!wait.is_done(), "it is not told yet");
        owner.heard(id(1), drawer.take_words(id(0), 9));
        drop(owner.take_garbage());
        let error = wait.result().expect("it is told").expect_err("nothing fills it");
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        assert!(error.to_string().contains("the call to x of y that was to fill it failed: no room"), "{error}");
        if let Some(request) = request {
            let late = request.promises.fulfil(&held.value(), Arc::new(1u64)).expect_err("it is poisoned");
            assert_eq!(late.kind(), ErrorKind::LimitExceeded, "{late}");
        }
        // The drawer itself knows that nothing of it was sent.
        assert_eq!(drawer.pass(id(2), &[plain(held.0.name)]).is_ok(), was_sent);
    }
}
