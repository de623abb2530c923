//! A mesh of engines on ordered links and a clock that stands still unless a test moves it.

use sheave_base::clock::{SeededEntropy, Time};
use sheave_base::{NodeId, Result};
use sheave_mesh::engine::{
    Config, Effect, Engine, Event, Expected, GroupId, Introduction, Liveness, OperationId, Outcome, Role,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Deliveries in one test. More are messages that beget messages without end.
const DELIVERIES_MAX: usize = 1_000_000;

pub(crate) const LIVENESS: Liveness = Liveness { beat: Duration::from_secs(1), timeout: Duration::from_secs(5) };

/// A rank without a name, as most launchers start them.
pub(crate) fn introduction(rank: u32) -> Introduction {
    Introduction {
        name: String::new(),
        role: Role::Rank,
        wanted_rank: Some(rank),
        host: format!("host-{rank}"),
        pid: 100 + rank,
        secret_source: format!("the cookie of host-{rank}"),
        address: format!("127.0.0.1:{}", 7000 + rank),
        process: String::new(),
    }
}

pub(crate) fn config(introduction: Introduction, count: u32, hosts: bool) -> Config {
    let join_timeout = Duration::from_secs(60);
    Config { introduction, expected: Expected::ranks(count), hosts, liveness: LIVENESS, join_timeout }
}

pub(crate) struct Meshes {
    pub(crate) now: Time,
    pub(crate) nodes: Vec<Engine>,
    /// What nodes asked for besides messages and timers.
    pub(crate) asked: Vec<(usize, Effect)>,
    links: BTreeMap<(usize, usize), VecDeque<Event>>,
    used: BTreeSet<(usize, usize)>,
    gone: BTreeSet<usize>,
    silent: BTreeSet<(usize, usize)>,
    /// Nodes whose processes stand still.
    pub(crate) stopped: BTreeSet<usize>,
    /// Whether the processes of those who left stay to answer.
    pub(crate) has_lingerers: bool,
    /// Whether all processes are of one host, which knows those that have ended.
    pub(crate) sees_ends: bool,
    /// Chooses which link is served next.
    dice: SeededEntropy,
    operations: u64,
}

impl Meshes {
    /// `count` ranks that have not been polled yet; node ids are ranks and a hundred.
    pub(crate) fn new(count: u32, seed: u64) -> Self {
        let node = |rank: u32| Engine::new(config(introduction(rank), count, rank == 0), id(rank as usize), Time(0));
        Self {
            now: Time(0),
            nodes: (0..count).map(node).collect(),
            asked: Vec::new(),
            links: BTreeMap::new(),
            used: BTreeSet::new(),
            gone: BTreeSet::new(),
            silent: BTreeSet::new(),
            stopped: BTreeSet::new(),
            has_lingerers: false,
            sees_ends: false,
            dice: SeededEntropy::new(seed),
            operations: 0,
        }
    }

    /// `count` ranks that have joined, and the group of all.
    pub(crate) fn joined(count: u32, seed: u64) -> (Self, GroupId) {
        let mut meshes = Self::new(count, seed);
        for node in 0..meshes.nodes.len() {
            meshes.tell(node, Event::Reached(id(0)));
        }
        meshes.settle();
        let world = meshes.group("world", &(0..count as usize).collect::<Vec<_>>());
        (meshes, world)
    }

    /// Makes a group on all its nodes.
    pub(crate) fn group(&mut self, label: &str, members: &[usize]) -> GroupId {
        let ids: Vec<NodeId> = members.iter().map(|node| id(*node)).collect();
        let made: BTreeSet<_> =
            members.iter().map(|node| self.nodes[*node].group(label, &ids).expect("all are members")).collect();
        *made.first().expect("a group has members")
    }

    pub(crate) fn operation(&mut self) -> OperationId {
        self.operations += 1;
        OperationId(self.operations)
    }

    pub(crate) fn barrier(&mut self, node: usize, group: GroupId) -> OperationId {
        let operation = self.operation();
        self.tell(node, Event::Barrier { operation, group, deadline: None });
        operation
    }

    pub(crate) fn shrink(&mut self, node: usize, group: GroupId) -> OperationId {
        let operation = self.operation();
        self.tell(node, Event::Shrink { operation, group });
        operation
    }

    pub(crate) fn leave(&mut self, node: usize) -> OperationId {
        let operation = self.operation();
        self.tell(node, Event::Leave { operation });
        operation
    }

    pub(crate) fn tell(&mut self, node: usize, event: Event) {
        self.nodes[node].handle(self.now, event);
        self.poll(node);
    }

    /// How an operation ended, if it has; ending twice is an error.
    pub(crate) fn end_of(&self, wanted: OperationId) -> Option<Result<Outcome>> {
        let mut ends = self.asked.iter().filter_map(|(_, effect)| match effect {
            Effect::Complete { operation, outcome } if *operation == wanted => Some(outcome.clone()),
            _ => None,
        });
        let end = ends.next();
        assert!(ends.next().is_none(), "{wanted:?} ended twice");
        end
    }

    /// The text of an operation's error.
    pub(crate) fn error_of(&self, operation: OperationId) -> String {
        self.end_of(operation).expect("it has ended").expect_err("it has failed").to_string()
    }

    pub(crate) fn poll(&mut self, node: usize) {
        if self.sees_ends {
            for peer in self.nodes[node].suspects_that_may_live() {
                if self.gone.contains(&number(peer)) {
                    self.nodes[node].handle(self.now, Event::Ended { peer });
                }
            }
        }
        for effect in self.nodes[node].poll(self.now) {
            match effect {
                Effect::Send { to, message } => {
                    self.carry(node, number(to), Event::Received { from: id(node), message });
                }
                Effect::Farewell { nodes, message } => {
                    for other in nodes.into_iter().map(number) {
                        if self.used.contains(&(node, other)) || self.used.contains(&(other, node)) {
                            self.carry(node, other, Event::Received { from: id(node), message: message.clone() });
                        }
                    }
                }
                Effect::SetTimer(_) => {}
                other => self.asked.push((node, other)),
            }
        }
        if self.nodes[node].has_left() && !self.has_lingerers && self.gone.insert(node) {
            self.close_all(node);
        }
    }

    fn carry(&mut self, from: usize, to: usize, event: Event) {
        self.used.insert((from, to));
        if self.gone.contains(&to) {
            let event = Event::LinkLost { peer: id(to), reason: "nobody listens there".into() };
            self.links.entry((to, from)).or_default().push_back(event);
        } else {
            self.links.entry((from, to)).or_default().push_back(event);
        }
    }

    fn close_all(&mut self, node: usize) {
        for other in 0..self.nodes.len() {
            if self.used.contains(&(node, other)) || self.used.contains(&(other, node)) {
                let event = Event::LinkLost { peer: id(node), reason: "the link ended".into() };
                self.links.entry((node, other)).or_default().push_back(event);
            }
        }
    }

    /// The process ends without a word.
    pub(crate) fn kill(&mut self, node: usize) {
        self.gone.insert(node);
        self.close_all(node);
    }

    /// From now on nothing gets from one node to the other, and neither learns it.
    pub(crate) fn silence(&mut self, from: usize, to: usize) {
        self.silent.insert((from, to));
    }

    pub(crate) fn end_silence(&mut self) {
        self.silent.clear();
    }

    /// Makes links between all, as services do.
    pub(crate) fn link_all(&mut self) {
        for node in 0..self.nodes.len() {
            self.used.extend((0..self.nodes.len()).filter(|other| *other != node).map(|other| (node, other)));
        }
    }

    /// Whether one of them has ever sent something to the other.
    pub(crate) fn has_talked(&self, one: usize, other: usize) -> bool {
        self.used.contains(&(one, other)) || self.used.contains(&(other, one))
    }

    /// Delivers what is on the way from one node to another.
    pub(crate) fn deliver(&mut self, from: usize, to: usize) {
        for event in self.links.remove(&(from, to)).unwrap_or_default() {
            self.tell(to, event);
        }
    }

    /// What is on the way from one node to another never arrives.
    pub(crate) fn lose(&mut self, from: usize, to: usize) {
        self.links.remove(&(from, to));
    }

    /// Delivers one message; false if there is none.
    pub(crate) fn step(&mut self) -> bool {
        let moves = |link: &(usize, usize)| !self.stopped.contains(&link.1);
        let busy = self.links.iter().filter(|(link, events)| !events.is_empty() && moves(link));
        let busy: Vec<_> = busy.map(|(link, _)| *link).collect();
        if busy.is_empty() {
            return false;
        }
        let link = busy[self.dice.below(busy.len() as u64) as usize];
        let event = self.links.get_mut(&link).and_then(VecDeque::pop_front).expect("it is busy");
        if !self.gone.contains(&link.1) && !self.silent.contains(&link) {
            self.tell(link.1, event);
        }
        true
    }

    /// Delivers all messages, those about to be sent included, at this very time.
    pub(crate) fn settle(&mut self) {
        assert!((0..DELIVERIES_MAX).any(|_| !self.step()), "{DELIVERIES_MAX} deliveries were not enough");
    }

    /// Lets time pass, in which everybody who is there polls.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now.after(time);
        while self.now < end {
            self.now = self.now.after(Duration::from_millis(250)).min(end);
            for node in 0..self.nodes.len() {
                if !self.gone.contains(&node) && !self.stopped.contains(&node) {
                    self.poll(node);
                }
            }
            self.settle();
        }
    }
}

pub(crate) fn id(node: usize) -> NodeId {
    NodeId(node as u64 + 100)
}

fn number(id: NodeId) -> usize {
    (id.0 - 100) as usize
}
