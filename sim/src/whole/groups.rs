//! Processes that make groups, and register, find and take away in them.

use super::entries::Entries;
use super::ledger::Ledger;
use super::scenario::{End, Quit, Scenario};
use super::start::{await_others, join};
use crate::jobs::pause;
use sheave_base::clock::SeededEntropy;
use sheave_base::{Error, ErrorKind, NodeId, Result, clock};
use sheave_mesh::{Mesh, Request};
use sheave_rpc::{Rpc, RpcGroup};
use sheave_wire::Value;
use std::sync::Arc;
use std::time::Duration;

/// Keys of a group at most: few, so that several want the same.
const KEYS: u64 = 4;
/// As long as a death may stay unknown, and a little more.
const KNOWN: Duration = Duration::from_millis(2700);
/// As long as others may look for keys of the dead later than the first member.
const STAY: Duration = Duration::from_millis(100);
/// How long a process waits for the others to make a group, where they may never come.
const PATIENCE: Duration = Duration::from_secs(4);

pub(super) fn run(scenario: &Scenario, process: usize, ledger: &Arc<Ledger>, entries: &Arc<Entries>) {
    let Some(mesh) = join(scenario, process, ledger) else { return };
    let rpc = Rpc::serve(&mesh).expect("nobody did before");
    await_others(process, ledger);
    let dice = SeededEntropy::new(scenario.seed ^ (process as u64) << 40);
    let (keys, ledger, entries) = (1 + scenario.seed % KEYS, Arc::clone(ledger), Arc::clone(entries));
    Part { mesh, rpc, process, ledger, entries, dice, keys, last: 0 }.play(scenario);
}

struct Part {
    mesh: Mesh,
    rpc: Rpc,
    process: usize,
    ledger: Arc<Ledger>,
    entries: Arc<Entries>,
    dice: SeededEntropy,
    keys: u64,
    /// The generation of the last group.
    last: u64,
}

impl Part {
    fn play(mut self, scenario: &Scenario) {
        // Not all have been in as many groups.
        for _ in 0..self.dice.below(4) {
            let own = self.rpc.create_group("own", &[self.mesh.me().node], None).wait();
            self.last = own.map_or(self.last, |own| {
                own.destroy();
                own.generation()
            });
        }
        for round in 0..scenario.rounds {
            match self.ledger.quit_in(self.process, round) {
                Some(Quit::Fails) => {
                    self.ledger.quits(self.process);
                    return self.mesh.fail("on purpose");
                }
                Some(Quit::Returns) => return self.ledger.quits(self.process),
                None => {}
            }
            let Some(group) = self.make(round + 1) else { continue };
            for _ in 0..1 + self.dice.below(2 * scenario.steps) {
                if !self.mesh.is_member() {
                    break;
                }
                self.act(&group);
            }
            self.look_for_the_dead(&group, scenario.seed + round);
            self.leave(&group);
        }
        self.ledger.comes_to_its_end(self.process);
        let left = match scenario.end {
            End::Finish => self.mesh.finish(),
            End::Leave => self.mesh.leave(),
        };
        if let Err(error) = left {
            self.judge("leave", &error);
        }
    }

    /// A failure is a fault unless somebody may be blamed for it.
    fn judge(&self, what: &str, error: &Error) {
        if !self.ledger.may_fail(self.process, error) {
            self.ledger.fault(format!("{what} of {} accuses the wrong one, or nobody: {error:?}", self.process));
        }
    }

    /// All who are there make a group.
    fn make(&mut self, round: u64) -> Option<RpcGroup> {
        let gone: Vec<NodeId> = self.mesh.deaths().iter().map(|death| death.node).collect();
        let nodes: Vec<NodeId> =
            self.mesh.members().iter().map(|member| member.node).filter(|node| !gone.contains(node)).collect();
        self.entries.enters(self.process, round);
        // Where somebody fails the others do not keep step, and may wait for those who never come.
        let timeout = self.ledger.is_troubled().then_some(PATIENCE);
        match self.rpc.create_group("group", &nodes, timeout).wait() {
            Ok(group) => {
                let members: Vec<usize> = nodes.iter().filter_map(|node| self.ledger.process_of(*node)).collect();
                let absent = self.entries.absent(&members, round);
                if !absent.is_empty() && !self.ledger.is_troubled() {
                    self.ledger.fault(format!("{} has made group {round}, and {absent:?} have not", self.process));
                }
                if group.generation() <= self.last {
                    let what = format!("{} is in generation {} after {}", self.process, group.generation(), self.last);
                    self.ledger.fault(what);
                }
                self.last = group.generation();
                Some(group)
            }
            Err(error) => {
                // Where somebody fails not all come, nor with the same members.
                let is_apart = matches!(error.kind(), ErrorKind::DeadlineExceeded | ErrorKind::Mismatch);
                if !(is_apart && self.ledger.is_troubled()) {
                    self.judge("making a group", &error);
                }
                None
            }
        }
    }

    fn act(&mut self, group: &RpcGroup) {
        let key = self.dice.below(self.keys).cast_signed();
        let (at, begun) = ((group.generation(), key), clock::now());
        let what = match self.dice.below(8) {
            0..3 if !self.entries.has(at, self.process) => {
                self.register(group, at);
                "registering"
            }
            0..3 => {
                self.take_away(group, at);
                "taking away"
            }
            7 => return pause(Duration::from_micros(self.dice.below(100_000))),
            _ => {
                self.find(group, at);
                "finding"
            }
        };
        self.ledger.ends_in_time(self.process, what, clock::since(begun));
    }

    fn register(&self, group: &RpcGroup, key: (u64, i64)) {
        let step = self.entries.begins(key, self.process);
        let serve = |request: Request| request.reply.value(());
        let registered = group.register(Value::Int(key.1), serve, None).and_then(|work| work.wait());
        match registered {
            Ok(()) => {
                let others = self.entries.owns(key, self.process);
                let others: Vec<usize> = others.into_iter().filter(|other| !self.ledger.is_doomed(*other)).collect();
                if !others.is_empty() && !self.ledger.is_doomed(self.process) {
                    self.ledger.fault(format!("{key:?} is {}'s, and {others:?} have it", self.process));
                }
            }
            Err(error) => {
                let was_taken = self.entries.another_had_since(key, self.process, step);
                self.entries.lost(key, self.process);
                if error.kind() != ErrorKind::AlreadyExists || !was_taken {
                    self.judge("registering", &error);
                }
            }
        }
    }

    fn take_away(&self, group: &RpcGroup, key: (u64, i64)) {
        self.entries.begins(key, self.process);
        let taken = group.deregister(Value::Int(key.1), None).and_then(|work| work.wait());
        self.entries.lost(key, self.process);
        if let Err(error) = taken {
            self.judge("taking away", &error);
        }
    }

    fn find(&self, group: &RpcGroup, key: (u64, i64)) {
        let step = self.entries.now(key);
        let found: Result<Option<NodeId>> = match group.find(Value::Int(key.1), None).and_then(|work| work.wait()) {
            Ok((owner, _)) => Ok(Some(owner)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let is_sound = !self.ledger.is_doomed(self.process);
        match found {
            Ok(Some(owner)) => {
                let Some(owner) = self.ledger.process_of(owner) else { return };
                if !self.entries.had_since(key, owner, step) {
                    self.ledger.fault(format!("{} has found {key:?} at {owner}, which had it not", self.process));
                }
                if is_sound && self.ledger.is_long_gone(owner) {
                    self.ledger.fault(format!("{} has found {key:?} at {owner}, which is gone", self.process));
                }
            }
            Ok(None) => {
                let owner = self.entries.owner_since(key, step).filter(|owner| !self.ledger.is_doomed(*owner));
                if let Some(owner) = owner.filter(|_| is_sound) {
                    self.ledger.fault(format!("{} has not found {key:?}, which {owner} has", self.process));
                }
                self.ought_to_know(group, key, step);
            }
            Err(error) => {
                self.judge("finding", &error);
                self.blames_rightly(key, step, &error);
            }
        }
    }

    /// Nobody has a key, as an index says. If that is the first one still it must have known who died with it.
    fn ought_to_know(&self, group: &RpcGroup, key: (u64, i64), step: u64) {
        let Some(owner) = self.entries.last_owner_since(key, step).filter(|owner| self.ledger.is_killed(*owner)) else {
            return;
        };
        let first = self.ledger.process_of(group.members()[0]);
        let is_there = first.is_some_and(|first| !self.ledger.is_doomed(first)) && self.entries.has_first(key.0);
        if is_there && !self.ledger.is_doomed(self.process) && !self.ledger.may_be_dead(self.process) {
            self.ledger.fault(format!("{} is not told that {key:?} was lost with {owner}", self.process));
        }
    }

    /// Who is said to have died with a key has died and has had it, and nobody else after it.
    fn blames_rightly(&self, key: (u64, i64), step: u64, error: &Error) {
        let is_sound = !self.ledger.is_doomed(self.process) && !self.ledger.may_be_dead(self.process);
        if error.kind() != ErrorKind::PeerLost || !error.what().starts_with("it had ") || !is_sound {
            return;
        }
        let owner = error.about().and_then(|peer| peer.node).and_then(|node| self.ledger.process_of(node));
        let Some(owner) = owner else {
            return self.ledger.fault(format!("{} is told that {key:?} was lost with nobody: {error}", self.process));
        };
        if !self.ledger.may_be_dead(owner) {
            self.ledger.fault(format!("{} is told that {owner} has died with {key:?}, and it lives", self.process));
        }
        let (has_had, heir) = self.entries.heir_by(key, owner, step);
        // What this process has found itself was so then.
        let heir = heir.filter(|heir| !self.ledger.is_doomed(*heir) && !error.what().contains("when it was found"));
        if !has_had || heir.is_some() {
            let what = format!("that {key:?} was lost with {owner}, which had it: {has_had}, and after it {heir:?}");
            self.ledger.fault(format!("{} is told {what}", self.process));
        }
    }

    /// Keys of the dead are found by nobody once their deaths are known. All look in the same rounds, and the first
    /// member, which knows who has died with them, stays for a moment.
    fn look_for_the_dead(&mut self, group: &RpcGroup, seed: u64) {
        if self.ledger.is_troubled() && seed.is_multiple_of(3) {
            pause(KNOWN);
            (0..self.keys.cast_signed()).for_each(|key| self.find(group, (group.generation(), key)));
            if group.members()[0] == self.mesh.me().node {
                pause(STAY);
            }
        }
    }

    /// Comes to the end of a group. The first member, who is the index, leaves it while others register.
    fn leave(&mut self, group: &RpcGroup) {
        let key = (group.generation(), 0);
        pause(Duration::from_micros(self.dice.below(2000)));
        if group.members()[0] != self.mesh.me().node && !self.entries.has(key, self.process) {
            self.register(group, key);
            self.find(group, key);
        }
        let own = (0..self.keys.cast_signed()).map(|key| (group.generation(), key));
        let own: Vec<_> = own.filter(|key| self.entries.has(*key, self.process)).collect();
        own.iter().for_each(|key| _ = self.entries.begins(*key, self.process));
        if group.members()[0] == self.mesh.me().node {
            self.entries.first_leaves(group.generation());
        }
        group.destroy();
    }
}
