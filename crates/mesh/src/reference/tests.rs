//! Some nodes' tables, joined by queues that a seed empties in any order that links permit.

use super::table::Bounds;
use super::words::Word;
use super::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Weak;

enum Item {
    Message(Vec<Name>),
    Words(Vec<Word>),
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

struct Node {
    references: Arc<References>,
    refs: Vec<Ref>,
    is_alive: bool,
}

struct World {
    nodes: Vec<Node>,
    queues: BTreeMap<(usize, usize), VecDeque<Item>>,
    objects: BTreeMap<(usize, u64), std::sync::Weak<u64>>,
    /// Who has not yet heard of whose end.
    unheard: Vec<(usize, usize)>,
    random: Random,
    passes: usize,
}

fn id(node: usize) -> NodeId {
    NodeId(node as u64 + 1)
}

fn at(node: NodeId) -> usize {
    usize::try_from(node.0).expect("small") - 1
}

impl World {
    fn new(count: usize, seed: u64) -> Self {
        let node = |at| {
            let references = References::new(id(at), Weak::new());
            Node { references, refs: Vec::new(), is_alive: true }
        };
        let nodes = (0..count).map(node).collect();
        let (queues, objects) = (BTreeMap::new(), BTreeMap::new());
        Self { nodes, queues, objects, unheard: Vec::new(), random: Random(seed), passes: 0 }
    }

    fn any(&mut self) -> usize {
        loop {
            let node = self.random.below(self.nodes.len());
            if self.nodes[node].is_alive {
                return node;
            }
        }
    }

    fn step(&mut self) {
        let node = self.any();
        match self.random.below(10) {
            0 => {
                let object = Arc::new(7u64);
                let held = self.nodes[node].references.export(object.clone()).expect("there is room");
                self.objects.insert((node, held.0.name.id), Arc::downgrade(&object));
                self.nodes[node].refs.push(held);
            }
            1..=3 => self.pass(node),
            4..=6 if !self.nodes[node].refs.is_empty() => {
                let at = self.random.below(self.nodes[node].refs.len());
                drop(self.nodes[node].refs.swap_remove(at));
            }
            7 => self.flush(node),
            _ => self.deliver_any(),
        }
        if self.random.below(4) == 0 && !self.unheard.is_empty() {
            let at = self.random.below(self.unheard.len());
            let (hearer, gone) = self.unheard.swap_remove(at);
            self.nodes[hearer].references.lost(id(gone));
        }
    }

    fn pass(&mut self, from: usize) {
        let to = self.any();
        if to == from || self.nodes[from].refs.is_empty() {
            return;
        }
        let count = 1 + self.random.below(3);
        let names: Vec<Name> = (0..count)
            .map(|_| {
                let at = self.random.below(self.nodes[from].refs.len());
                self.nodes[from].refs[at].0.name
            })
            .collect();
        let Ok(refs) = self.nodes[from].references.pass(id(to), &names) else { return };
        if self.random.below(10) == 0 {
            return self.nodes[from].references.take_back(id(to), &refs);
        }
        self.passes += 1;
        self.queues.entry((from, to)).or_default().push_back(Item::Message(names));
    }

    fn flush(&mut self, from: usize) {
        let references = Arc::clone(&self.nodes[from].references);
        drop(references.take_garbage());
        for to in references.addressees() {
            let most = 1 + self.random.below(3);
            let words = references.take_words(to, most);
            if self.random.below(8) == 0 {
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
        let node = &mut self.nodes[key.1];
        match item {
            Item::Words(words) => node.references.heard(id(key.0), &words),
            Item::Message(names) => {
                let brought = node.references.adopt(id(key.0), &names);
                if self.unheard.is_empty() && self.nodes.iter().all(|node| node.is_alive) {
                    assert!(brought.error.is_none(), "{:?}", brought.error);
                }
                self.nodes[key.1].refs.extend(brought.refs);
            }
        }
    }

    /// Ends a node: at once, with what it has said last unheard, or in order.
    fn end(&mut self, node: usize) {
        self.nodes[node].is_alive = false;
        self.nodes[node].references.end();
        self.nodes[node].refs.clear();
        let is_killed = self.random.below(2) == 0;
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
    }

    /// Everything that was said arrives.
    fn settle(&mut self) {
        for (hearer, gone) in std::mem::take(&mut self.unheard) {
            self.nodes[hearer].references.lost(id(gone));
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

    /// Who holds a reference that is good has an object.
    fn check(&self) {
        for held in self.nodes.iter().filter(|node| node.is_alive).flat_map(|node| &node.refs) {
            let owner = at(held.owner());
            if self.nodes[owner].is_alive && held.check().is_ok() {
                let object = self.objects.get(&(owner, held.0.name.id)).expect("it was exported");
                assert!(object.strong_count() > 0, "{held:?} was freed too early");
            }
        }
    }
}

#[test]
fn nothing_is_freed_too_early_and_all_in_the_end() {
    let mut passes = 0;
    for seed in 1..=60 {
        let mut world = World::new(4, seed);
        for _ in 0..800 {
            world.step();
            world.check();
        }
        let refs = world.nodes.iter().flat_map(|node| &node.refs);
        assert!(refs.into_iter().all(|held| !held.0.is_gone.load(SeqCst)), "nobody died, so nothing is gone");
        world.settle();
        world.check();
        world.nodes.iter_mut().for_each(|node| node.refs.clear());
        world.settle();
        assert!(world.nodes.iter().all(|node| node.references.sizes() == (0, 0, 0)), "seed {seed}");
        assert!(world.objects.values().all(|object| object.strong_count() == 0), "seed {seed}");
        passes += world.passes;
    }
    assert!(passes > 5000, "{passes}");
}

#[test]
fn the_ends_of_nodes_leave_nothing_behind() {
    for seed in 1..=200 {
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
        world.nodes.iter_mut().for_each(|node| node.refs.clear());
        world.settle();
        for node in world.nodes.iter().filter(|node| node.is_alive) {
            assert_eq!(node.references.sizes(), (0, 0, 0), "seed {seed}");
        }
        assert!(world.objects.values().all(|object| object.strong_count() == 0), "seed {seed}");
    }
}

#[test]
fn full_tables_refuse_and_give_back_what_came() {
    let bounds = Bounds { owned: 1, held: 0, passing: 1 };
    let (owner, giver) = (References::new(id(0), Weak::new()), References::bounded(id(1), Weak::new(), bounds));
    let taker = References::bounded(id(2), Weak::new(), bounds);
    let first = taker.export(Arc::new(1u8)).expect("one fits");
    assert_eq!(taker.export(Arc::new(2u8)).expect_err("two do not").kind(), ErrorKind::LimitExceeded);
    drop(first);
    let object = Arc::new(3u8);
    let held = owner.export(object.clone()).expect("there is room");
    let names = [held.0.name];
    drop(owner.pass(id(2), &names).expect("it is held"));
    drop(held);
    let brought = taker.adopt(id(0), &names);
    assert_eq!(brought.error.expect("it is full").kind(), ErrorKind::LimitExceeded);
    owner.heard(id(2), &taker.take_words(id(0), 9));
    drop(owner.take_garbage());
    assert_eq!(Arc::strong_count(&object), 1, "the refused count came back");
    // A giver's table of what is on its way.
    let giver_of_two = References::bounded(id(1), Weak::new(), Bounds { held: 9, ..bounds });
    let held = owner.export(object).expect("there is room");
    drop(owner.pass(id(1), &[held.0.name]).expect("it is held"));
    let brought = giver_of_two.adopt(id(0), &[held.0.name]);
    let names = [held.0.name];
    drop(giver_of_two.pass(id(2), &names).expect("one fits"));
    let error = giver_of_two.pass(id(2), &names).expect_err("two do not");
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(taker.adopt(id(1), &names).error.is_some());
    giver_of_two.heard(id(2), &taker.take_words(id(1), 9));
    drop(giver_of_two.take_garbage());
    assert_eq!(giver_of_two.sizes().2, 0, "the refusal confirms");
    drop((brought, giver));
}
