//! Runs the engines of a scenario: delivers, cuts, kills, and plays the users who wait for barriers.

use crate::check::{BOUND, Check, Entry, KILL_BOUND, LEAVE_BOUND};
use crate::network::{Fate, Network};
use crate::scenario::{Scenario, Trouble};
use sheave_base::clock::{Entropy, SeededEntropy, Time};
use sheave_base::{ErrorKind, NodeId};
use sheave_mesh::engine::{
    Config, Effect, Engine, Event, Faults, GroupId, Introduction, Liveness, OperationId, Outcome, Role,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

const LIVENESS: Liveness = Liveness { beat: Duration::from_millis(200), timeout: Duration::from_millis(1000) };
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Things that happen in one run. More are messages that beget messages without end.
const STEPS_MAX: u64 = 5_000_000;

pub struct Node {
    pub engine: Engine,
    /// False once it was killed or has left.
    pub lives: bool,
    stopped_until: Time,
    timer: Time,
    introduction: Introduction,
    streams: Vec<Stream>,
    /// Its user wants it to leave and enters nothing more.
    wants_to_leave: bool,
}

/// One user of a group: a barrier, a thought, the next barrier.
struct Stream {
    label: &'static str,
    group: GroupId,
    next_sequence: u64,
    must_shrink: bool,
    pending: Option<OperationId>,
    last_ok: Time,
}

enum What {
    Deliver(NodeId, Event),
    Timer,
    /// The user of a stream goes on.
    Go(usize),
    Leave,
    /// The process ends: it has left.
    Exit,
}

enum Doing {
    Barrier(Entry, Vec<NodeId>),
    Shrink(Time),
    Leave(Time),
}

pub struct World {
    scenario: Scenario,
    faults: Faults,
    now: Time,
    nodes: Vec<Node>,
    index: BTreeMap<NodeId, usize>,
    network: Network,
    dice: SeededEntropy,
    queue: BTreeMap<(Time, u64), (usize, What)>,
    ticket: u64,
    steps: u64,
    doing: BTreeMap<OperationId, (usize, usize, Doing)>,
    crashed: BTreeMap<NodeId, Time>,
    /// Who was told that it has left.
    left: BTreeMap<NodeId, Time>,
    /// Who was declared dead to anybody.
    declared: BTreeSet<NodeId>,
    /// Links that the first has closed to the second while it lived.
    closed: BTreeSet<(NodeId, NodeId)>,
    last_trouble: Time,
    pub check: Check,
    /// Everything that happened, if it is to be kept.
    pub log: Option<String>,
}

fn milliseconds(count: u64) -> Duration {
    Duration::from_millis(count)
}

impl World {
    pub fn new(scenario: Scenario, faults: Faults) -> Self {
        let seed = scenario.seed;
        let mut world = Self {
            network: Network::new(seed, scenario.delay_ms_max),
            scenario,
            faults,
            now: Time(0),
            nodes: Vec::new(),
            index: BTreeMap::new(),
            dice: SeededEntropy::new(seed ^ 0x7573_6572),
            queue: BTreeMap::new(),
            ticket: 0,
            steps: 0,
            doing: BTreeMap::new(),
            crashed: BTreeMap::new(),
            left: BTreeMap::new(),
            declared: BTreeSet::new(),
            closed: BTreeSet::new(),
            last_trouble: Time(0),
            check: Check::default(),
            log: None,
        };
        for role in Role::ALL {
            for rank in 0..world.scenario.expected.of(role) {
                let introduction = Introduction {
                    name: if world.scenario.has_names { format!("the {role} {rank}") } else { String::new() },
                    role,
                    wanted_rank: Some(rank),
                    host: "sim".into(),
                    pid: rank,
                    secret_source: "the scenario".into(),
                    address: String::new(),
                    process: String::new(),
                };
                world.start(introduction);
            }
        }
        world
    }

    fn start(&mut self, introduction: Introduction) {
        let id = NodeId(self.dice.next_u64() >> 16);
        let config = Config {
            introduction: introduction.clone(),
            expected: self.scenario.expected,
            hosts: self.nodes.is_empty(),
            liveness: LIVENESS,
            join_timeout: JOIN_TIMEOUT,
        };
        let engine = Engine::new(config, id, self.now).with_faults(self.faults);
        let (stopped_until, timer, streams) = (Time(0), Time(0), Vec::new());
        let number = self.nodes.len();
        self.index.insert(id, number);
        let wants_to_leave = false;
        self.nodes.push(Node { engine, lives: true, stopped_until, timer, introduction, streams, wants_to_leave });
        let host = self.nodes[0].engine.me();
        let reached = self.now.after(milliseconds(self.dice.below(500)));
        self.push(self.now, number, What::Timer);
        self.push(reached, number, What::Deliver(host, Event::Reached(host)));
    }

    fn push(&mut self, at: Time, node: usize, what: What) {
        self.ticket += 1;
        self.queue.insert((at.max(self.now), self.ticket), (node, what));
    }

    fn note(&mut self, node: usize, what: &dyn std::fmt::Debug) {
        let now = self.now.0;
        if let Some(log) = &mut self.log {
            // Writing to a string cannot fail.
            let _ = writeln!(log, "{now} {node} {what:?}");
        }
    }

    /// Runs to the end.
    pub fn run(&mut self) -> Result<(), String> {
        let mut troubles = self.scenario.troubles.clone();
        troubles.reverse();
        let last = self.scenario.troubles.iter().map(|(at, trouble)| match trouble {
            Trouble::Stop(_, span) => at + span,
            _ => *at,
        });
        let end = Time(0).after(milliseconds(last.max().unwrap_or(3000))).after(BOUND).after(JOIN_TIMEOUT);
        while let Some((&(at, _), _)) = self.queue.first_key_value() {
            let trouble = troubles.last().map(|(at, _)| Time(0).after(milliseconds(*at)));
            if let Some(when) = trouble.filter(|when| *when <= at) {
                self.now = when;
                if let Some((_, trouble)) = troubles.pop() {
                    self.strike(&trouble)?;
                }
                continue;
            }
            if at > end {
                break;
            }
            let Some((_, (node, what))) = self.queue.pop_first() else { break };
            self.now = at;
            self.steps += 1;
            if self.steps > STEPS_MAX {
                return Err(format!("{STEPS_MAX} steps were not enough"));
            }
            self.step(node, what)?;
        }
        self.now = end;
        self.judge()
    }

    fn step(&mut self, number: usize, what: What) -> Result<(), String> {
        let node = &mut self.nodes[number];
        if !node.lives {
            return Ok(());
        }
        if self.now < node.stopped_until {
            let until = node.stopped_until;
            self.push(until, number, what);
            return Ok(());
        }
        match what {
            What::Deliver(from, event) => {
                if !self.network.carries(from, node.engine.me()) {
                    return Ok(());
                }
                self.note(number, &event);
                self.nodes[number].engine.handle(self.now, event);
            }
            What::Timer if node.timer > self.now => return Ok(()),
            What::Timer => {}
            What::Go(stream) => self.go(number, stream),
            What::Leave => self.leave(number),
            What::Exit => self.exit(number),
        }
        self.poll(number)
    }

    /// What the system knows of the processes of its host.
    fn tell_ends(&mut self, number: usize) {
        let suspects = self.nodes[number].engine.suspects_that_may_live();
        let me = self.nodes[number].engine.me();
        let has_ended = |peer: &NodeId| !self.nodes[self.index[peer]].lives && !self.closed.contains(&(*peer, me));
        let ended: Vec<NodeId> = suspects.into_iter().filter(has_ended).collect();
        for peer in ended {
            let event = Event::Ended { peer };
            self.note(number, &event);
            self.nodes[number].engine.handle(self.now, event);
        }
    }

    fn poll(&mut self, number: usize) -> Result<(), String> {
        if self.scenario.is_one_host {
            self.tell_ends(number);
        }
        let effects = self.nodes[number].engine.poll(self.now);
        for effect in effects {
            if !matches!(effect, Effect::SetTimer(_)) {
                self.note(number, &effect);
            }
            self.obey(number, effect)?;
        }
        if self.nodes[number].engine.is_active() || self.nodes[number].engine.has_left() {
            let crashed = &self.crashed;
            self.check.view(&self.nodes[number].engine, |node| crashed.contains_key(&node))?;
        }
        Ok(())
    }

    fn obey(&mut self, number: usize, effect: Effect) -> Result<(), String> {
        let me = self.nodes[number].engine.me();
        match effect {
            Effect::Send { to, message } => {
                let other = self.index[&to];
                let lives = self.nodes[other].lives && self.nodes[other].engine.failure().is_none();
                match self.network.send(self.now, me, to, lives) {
                    Fate::Arrives(at) => {
                        self.push(at, other, What::Deliver(me, Event::Received { from: me, message }));
                    }
                    Fate::Refused(at) => self.link_lost(at, number, to),
                    Fate::Swallowed => {}
                }
            }
            Effect::Joined => self.joined(number),
            Effect::Complete { operation, outcome } => self.completed(operation, outcome)?,
            Effect::CutLink { node } => {
                self.closed.insert((me, node));
                self.close(me, node);
            }
            Effect::Failed(_) => self.close_in_order(me),
            Effect::Farewell { nodes, message } => {
                let others: Vec<NodeId> = nodes.into_iter().filter(|to| self.network.is_linked(me, *to)).collect();
                for to in others {
                    self.obey(number, Effect::Send { to, message: message.clone() })?;
                }
            }
            Effect::DeclareDead { node, reason } => {
                self.declared.insert(node);
                // Of what was swallowed on the way nobody knows, nor of what one that was killed had not yet sent off.
                let is_told = !self.scenario.is_one_host || self.network.carries(node, me);
                let has_left =
                    |entry: &Node| entry.engine.deaths().iter().any(|death| death.node == node && death.left);
                let is_known = self.nodes.iter().any(|entry| entry.lives && has_left(entry));
                let is_told = is_told && (is_known || !self.crashed.contains_key(&node));
                if is_told && self.left.contains_key(&node) {
                    return Err(format!("node {me} is told that {node} died, which had left: {reason}"));
                }
            }
            Effect::Departed { node } if self.nodes[self.index[&node]].wants_to_leave => {}
            Effect::Departed { node } => return Err(format!("node {me} is told that {node} left, which never asked")),
            Effect::SetTimer(at) if at != self.nodes[number].timer || at <= self.now => {
                self.nodes[number].timer = at;
                // A timer that is due at once must not keep the clock from moving.
                let at = at.max(self.now.after(Duration::from_micros(1)));
                self.push(at, number, What::Timer);
            }
            Effect::SetTimer(_) => {}
        }
        Ok(())
    }

    fn link_lost(&mut self, at: Time, number: usize, peer: NodeId) {
        // Found out at this end, so no way is needed to carry the news.
        let me = self.nodes[number].engine.me();
        self.push(at, number, What::Deliver(me, Event::LinkLost { peer, reason: "the link ended".into() }));
    }

    fn close(&mut self, from: NodeId, to: NodeId) {
        if let Some(at) = self.network.close(self.now, from, to) {
            let number = self.index[&to];
            self.link_lost(at, number, from);
        }
    }

    /// The links of a node that ends by its own will.
    fn close_in_order(&mut self, node: NodeId) {
        let linked = self.index.keys().filter(|other| self.network.is_linked(node, **other));
        self.closed.extend(linked.map(|other| (node, *other)));
        self.close_all(node);
    }

    fn close_all(&mut self, node: NodeId) {
        let others: Vec<NodeId> = self.index.keys().copied().filter(|other| *other != node).collect();
        for other in others {
            self.close(node, other);
        }
    }

    fn strike(&mut self, trouble: &Trouble) -> Result<(), String> {
        self.note(usize::MAX, trouble);
        self.last_trouble = self.now;
        let id = |world: &Self, number: usize| world.nodes[number].engine.me();
        match trouble {
            // One that has exited has nothing left to lose.
            Trouble::Crash(number) if !self.nodes[*number].lives => {}
            Trouble::Crash(number) => {
                let node = id(self, *number);
                self.nodes[*number].lives = false;
                self.crashed.entry(node).or_insert(self.now);
                self.doing.retain(|_, (doer, ..)| doer != number);
                self.lose_what_is_under_way(node);
                self.close_all(node);
            }
            Trouble::Leave(number) => {
                if self.nodes[*number].lives && self.nodes[*number].engine.is_active() {
                    self.push(self.now, *number, What::Leave);
                }
            }
            Trouble::Restart(number) => {
                let introduction = self.nodes[*number].introduction.clone();
                self.start(introduction);
            }
            Trouble::Cut(one, other) => {
                let (one, other) = (id(self, *one), id(self, *other));
                self.close(one, other);
                let number = self.index[&one];
                self.link_lost(self.now.after(milliseconds(1)), number, other);
            }
            Trouble::Silence(one, other) => self.network.silence(id(self, *one), id(self, *other)),
            Trouble::Partition(side) => {
                for one in 0..self.scenario.nodes() {
                    for other in (0..self.scenario.nodes()).filter(|other| side.contains(&one) != side.contains(other))
                    {
                        self.network.silence(id(self, one), id(self, other));
                    }
                }
            }
            Trouble::Stop(number, span) => {
                self.nodes[*number].stopped_until = self.now.after(milliseconds(*span));
                self.last_trouble = self.nodes[*number].stopped_until;
            }
            Trouble::Cancel(number) => {
                let operation = self.nodes[*number].streams.first().and_then(|stream| stream.pending);
                if let Some(operation) = operation.filter(|_| self.nodes[*number].lives) {
                    self.nodes[*number].engine.handle(self.now, Event::Cancel { operation });
                    return self.poll(*number);
                }
            }
        }
        Ok(())
    }

    /// What a killed process had sent to some of the others was still in its own buffers.
    fn lose_what_is_under_way(&mut self, dead: NodeId) {
        let mut losers = BTreeSet::new();
        for number in 0..self.nodes.len() {
            if self.dice.below(2) == 0 {
                losers.insert(number);
            }
        }
        self.queue.retain(|_, (number, what)| {
            let is_from_dead = matches!(what, What::Deliver(_, Event::Received { from, .. }) if *from == dead);
            !(is_from_dead && losers.contains(number))
        });
    }

    fn leave(&mut self, number: usize) {
        self.ticket += 1;
        let operation = OperationId(self.ticket);
        self.nodes[number].wants_to_leave = true;
        self.doing.insert(operation, (number, 0, Doing::Leave(self.now)));
        self.nodes[number].engine.handle(self.now, Event::Leave { operation });
    }

    fn exit(&mut self, number: usize) {
        let me = self.nodes[number].engine.me();
        self.nodes[number].lives = false;
        self.close_in_order(me);
    }

    fn joined(&mut self, number: usize) {
        let members = self.nodes[number].engine.table().to_vec();
        let all: Vec<NodeId> = members.iter().map(|member| member.node).collect();
        if self.scenario.is_full_mesh {
            self.network.link_all(&all);
        }
        self.add_stream(number, "world", &all);
        if self.scenario.has_small_groups {
            // In reverse, so that not all groups are led by the coordinator.
            let parity = number % 2;
            let half = all.iter().skip(parity).step_by(2).rev().copied().collect::<Vec<_>>();
            self.add_stream(number, "half", &half);
        }
    }

    fn add_stream(&mut self, number: usize, label: &'static str, nodes: &[NodeId]) {
        let engine = &mut self.nodes[number].engine;
        let living: Vec<NodeId> = engine.living().filter(|node| nodes.contains(node)).collect();
        let nodes: Vec<NodeId> = nodes.iter().copied().filter(|node| living.contains(node)).collect();
        if let Ok(group) = engine.group(label, &nodes) {
            let stream = Stream { label, group, next_sequence: 0, must_shrink: false, pending: None, last_ok: Time(0) };
            self.nodes[number].streams.push(stream);
            let stream = self.nodes[number].streams.len() - 1;
            self.think(number, stream, self.scenario.think_ms_max);
        }
    }

    fn think(&mut self, number: usize, stream: usize, most_ms: u64) {
        let at = self.now.after(Duration::from_micros(self.dice.below(most_ms * 1000)));
        self.push(at, number, What::Go(stream));
    }

    /// The user of a stream enters the next barrier, or shrinks its broken group.
    fn go(&mut self, number: usize, which: usize) {
        self.ticket += 1;
        let operation = OperationId(self.ticket);
        let node = &mut self.nodes[number];
        if node.wants_to_leave {
            return;
        }
        let stream = &mut node.streams[which];
        stream.pending = Some(operation);
        let group = stream.group;
        let event = if stream.must_shrink {
            self.doing.insert(operation, (number, which, Doing::Shrink(self.now)));
            Event::Shrink { operation, group }
        } else {
            let sequence = stream.next_sequence;
            stream.next_sequence += 1;
            let entry = Entry { node: node.engine.me(), group, sequence, begun: self.now };
            let nodes = node.engine.nodes_of(group).unwrap_or_default().to_vec();
            if node.engine.broken(group).is_none() {
                self.check.began(&entry);
            }
            self.doing.insert(operation, (number, which, Doing::Barrier(entry, nodes)));
            Event::Barrier { operation, group, deadline: None }
        };
        self.nodes[number].engine.handle(self.now, event);
    }

    fn completed(&mut self, operation: OperationId, outcome: sheave_base::Result<Outcome>) -> Result<(), String> {
        let Some((number, which, doing)) = self.doing.remove(&operation) else {
            return Err(format!("operation {operation:?} ended twice or never began"));
        };
        if let Doing::Leave(begun) = doing {
            return self.left(number, begun, outcome);
        }
        self.nodes[number].streams[which].pending = None;
        if let Doing::Barrier(entry, nodes) = &doing {
            self.check.ended(entry, nodes, outcome.is_ok())?;
            self.in_time(entry.begun, nodes)?;
            let is_end = self.scenario.ends_after.is_some_and(|last| entry.sequence >= last) && which == 0;
            if is_end && outcome.is_ok() && !self.nodes[number].wants_to_leave {
                let at = self.now.after(Duration::from_micros(self.dice.below(3000)));
                self.nodes[number].wants_to_leave = true;
                self.push(at, number, What::Leave);
            }
            // Nobody is kept from a barrier by those who have passed it already.
            let only_ends = self.scenario.troubles.is_empty() && self.scenario.ends_after.is_some() && which == 0;
            if let Some(error) = outcome.as_ref().err().filter(|_| only_ends) {
                return Err(format!("node {} ended with an error before all left: {error}", entry.node));
            }
        }
        let node = &mut self.nodes[number];
        let has_failed = node.engine.failure().is_some();
        let stream = &mut node.streams[which];
        match outcome {
            Ok(Outcome::Passed) => stream.last_ok = self.now,
            Ok(Outcome::Group(group)) => (stream.group, stream.next_sequence, stream.must_shrink) = (group, 0, false),
            // Its job is over.
            Ok(Outcome::Left | Outcome::Silent(_)) => return Err("a barrier or a shrink ended as neither".into()),
            Err(_) if has_failed || node.wants_to_leave => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Internal => return Err(error.to_string()),
            Err(_) => stream.must_shrink = true,
        }
        self.think(number, which, self.scenario.think_ms_max);
        Ok(())
    }

    /// A leave has ended.
    fn left(&mut self, number: usize, begun: Time, outcome: sheave_base::Result<Outcome>) -> Result<(), String> {
        let me = self.nodes[number].engine.me();
        match outcome {
            Ok(Outcome::Left) if self.declared.contains(&me) => {
                return Err(format!("node {me} has left, but others were told that it died"));
            }
            Ok(Outcome::Left) => {
                self.check.left += 1;
                self.left.insert(me, self.now);
                // Some processes end at once, others answer for a while.
                let linger = [0, self.dice.below(300)][self.dice.below(2) as usize];
                self.push(self.now.after(milliseconds(linger)), number, What::Exit);
            }
            Ok(other) => return Err(format!("node {me} wanted to leave and got {other:?}")),
            Err(error) if self.scenario.survivors_go_on() && error.kind() != ErrorKind::Closed => {
                return Err(format!("node {me} could not leave although it could go on: {error}"));
            }
            Err(_) => {}
        }
        let took = self.now.since(begun);
        let is_quick = self.scenario.is_orderly() && self.scenario.delay_ms_max <= 20;
        if (is_quick && took > LEAVE_BOUND) || self.now.since(begun.max(self.last_trouble)) > BOUND {
            return Err(format!("node {me} took {took:?} to leave"));
        }
        Ok(())
    }

    fn in_time(&self, begun: Time, nodes: &[NodeId]) -> Result<(), String> {
        let crashed = nodes.iter().filter_map(|node| self.crashed.get(node)).min();
        let quick = self.scenario.survivors_go_on() && self.scenario.delay_ms_max <= 20;
        if let Some(crashed) = crashed.filter(|crashed| quick && self.now.since(begun.max(**crashed)) > KILL_BOUND) {
            let late = self.now.since(begun.max(*crashed));
            return Err(format!("a barrier that needs a killed node ended {late:?} after its end"));
        }
        if self.now.since(begun.max(self.last_trouble)) > BOUND {
            return Err(format!("an operation took {:?}", self.now.since(begun)));
        }
        Ok(())
    }

    fn judge(&mut self) -> Result<(), String> {
        for (number, which, doing) in self.doing.values() {
            let (begun, what) = match doing {
                Doing::Barrier(entry, _) => (entry.begun, "barrier"),
                Doing::Shrink(begun) => (*begun, "shrink"),
                Doing::Leave(begun) => (*begun, "leave"),
            };
            if self.now.since(begun.max(self.last_trouble)) > BOUND {
                let label = self.nodes[*number].streams.get(*which).map_or("nothing", |stream| stream.label);
                return Err(format!("a {what} of node {number} on {label} has not ended since {begun:?}"));
            }
        }
        self.check.end(&self.nodes)?;
        if self.scenario.survivors_go_on() {
            // One that was killed while it left, or before its last words had left it, may count as either.
            let (killed, leaving): (Vec<NodeId>, Vec<NodeId>) =
                self.crashed.keys().partition(|node| !self.nodes[self.index[node]].wants_to_leave);
            let all = self.crashed.keys().chain(self.left.keys()).collect::<BTreeSet<_>>().len();
            for node in self.nodes[..self.scenario.nodes()].iter().filter(|node| node.lives && !node.wants_to_leave) {
                let (me, dead) = (node.engine.me(), node.engine.num_dead());
                if let Some(error) = node.engine.failure() {
                    return Err(format!("node {me} failed although it could go on: {error}"));
                }
                if !(killed.len()..=killed.len() + leaving.len()).contains(&dead) {
                    return Err(format!("node {me} knows {dead} dead, there are {killed:?} and perhaps {leaving:?}"));
                }
                let gone = dead + node.engine.num_left();
                if gone != all {
                    return Err(format!("node {me} knows {gone} that are gone, there are {all}"));
                }
                let is_late = |stream: &Stream| stream.last_ok < self.last_trouble.after(KILL_BOUND);
                if let Some(stream) = node.streams.iter().find(|stream| is_late(stream)) {
                    return Err(format!("node {me} passed no barrier on {} after the last trouble", stream.label));
                }
            }
        }
        Ok(())
    }
}
