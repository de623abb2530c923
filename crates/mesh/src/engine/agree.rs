//! Agreement on the end of an epoch: one single-decree Paxos (Lamport 1998) per epoch among that epoch's members.

use super::{Ballot, Death, Effect, Engine, Message};
use sheave_base::clock::Time;
use sheave_base::{Epoch, Error, ErrorKind, NodeId};
use std::collections::{BTreeMap, BTreeSet};

type Accepted = (Ballot, Vec<Death>);

/// What this member has promised and accepted, and what it is proposing, for the end of the current epoch.
#[derive(Default)]
pub(super) struct Agreement {
    promised: Option<Ballot>,
    accepted: Option<Accepted>,
    proposal: Option<Proposal>,
    /// Whether we told everybody how this epoch began, and how it ends.
    has_announced_start: bool,
    has_announced_end: bool,
    /// After a rejection: not before this time again.
    retry: Option<Time>,
}

struct Proposal {
    ballot: Ballot,
    stage: Stage,
    /// The members without which all others are a quorum.
    ended: BTreeSet<NodeId>,
}

enum Stage {
    Preparing(BTreeMap<NodeId, Option<Accepted>>),
    Accepting(Vec<Death>, BTreeSet<NodeId>),
}

impl Engine {
    /// Whether `nodes` decide: a majority, or all members but those whose processes have ended.
    pub(super) fn is_quorum(&self, nodes: &BTreeSet<NodeId>, ended: &BTreeSet<NodeId>) -> bool {
        self.is_majority(nodes) || self.living().all(|node| nodes.contains(&node) || ended.contains(&node))
    }

    /// Whether `nodes` are more than half of the epoch's members, or exactly half with the first of them. Two such sets
    /// always share a member.
    pub(super) fn is_majority(&self, nodes: &BTreeSet<NodeId>) -> bool {
        let (mut members, mut present) = (0, 0);
        for node in self.living() {
            members += 1;
            present += usize::from(nodes.contains(&node));
        }
        let has_first = self.living().next().is_some_and(|first| nodes.contains(&first));
        2 * present > members || (2 * present == members && has_first)
    }

    /// Starts or repeats our attempt to end the epoch without the suspected and without those who want to leave.
    pub(super) fn propose(&mut self) {
        if self.agreement.retry.is_some_and(|retry| self.now < retry) {
            return;
        }
        self.agreement.retry = None;
        let ended = self.ended_to_renounce();
        if let Some(old) = self.agreement.proposal.take_if(|old| !ended.is_subset(&old.ended)) {
            // The next attempt comes after this one, whoever has answered it.
            self.agreement.promised = self.agreement.promised.max(Some(old.ballot));
        }
        if self.agreement.proposal.is_none() {
            let rank = self.member(self.me).map_or(u32::MAX, |member| member.rank.0);
            let is_first = self.living().next() == Some(self.me);
            let (round, stage) = match self.agreement.promised {
                None if is_first => (0, Stage::Accepting(self.proposed_deaths(), BTreeSet::new())),
                promised => (promised.map_or(0, |ballot| ballot.round) + 1, Stage::Preparing(BTreeMap::new())),
            };
            self.agreement.proposal = Some(Proposal { ballot: Ballot { round, rank }, stage, ended });
        }
        self.repeat_proposal();
    }

    fn repeat_proposal(&mut self) {
        let epoch = self.epoch;
        let Some(proposal) = &self.agreement.proposal else { return };
        let (ballot, ended) = (proposal.ballot, proposal.ended.iter().copied().collect());
        let (message, answered): (Message, BTreeSet<NodeId>) = match &proposal.stage {
            Stage::Preparing(promises) => {
                (Message::Prepare { epoch, ballot, ended }, promises.keys().copied().collect())
            }
            Stage::Accepting(deaths, accepts) => {
                (Message::Accept { epoch, ballot, deaths: deaths.clone(), ended }, accepts.clone())
            }
        };
        let voters: Vec<NodeId> = self.living().filter(|node| !answered.contains(node)).collect();
        for voter in voters.into_iter().filter(|voter| !self.watch.suspects(*voter)).collect::<Vec<_>>() {
            // Our voters may not know yet how the epoch began, nor who is in the first one, if its coordinator ended
            // with the table on its way.
            if epoch > super::FIRST_EPOCH && !self.agreement.has_announced_start {
                self.send(voter, self.commit());
            } else if epoch == super::FIRST_EPOCH && !self.config.hosts {
                self.send(voter, Message::Welcome { table: self.table.clone() });
            }
            self.send(voter, message.clone());
        }
    }

    pub(super) fn agreement_timer(&self) -> Option<Time> {
        self.agreement.retry
    }

    pub(super) fn poll_agreement(&mut self) {
        if self.agreement.retry.is_some_and(|retry| self.now >= retry) {
            self.agreement.retry = None;
            self.reconsider();
        }
    }

    pub(super) fn prepare(&mut self, from: NodeId, ballot: Ballot, ended: &[NodeId]) {
        let epoch = self.epoch;
        self.renounce(ended);
        if !self.is_active() {
            return;
        }
        if let Some(promised) = self.agreement.promised.filter(|promised| *promised > ballot) {
            return self.send(from, Message::Rejected { epoch, promised });
        }
        self.agreement.promised = Some(ballot);
        self.send(from, Message::Promise { epoch, ballot, accepted: self.agreement.accepted.clone() });
    }

    pub(super) fn promise(&mut self, from: NodeId, ballot: Ballot, accepted: Option<Accepted>) {
        let Some(proposal) = self.agreement.proposal.as_mut().filter(|proposal| proposal.ballot == ballot) else {
            return;
        };
        let Stage::Preparing(promises) = &mut proposal.stage else { return };
        promises.insert(from, accepted);
        let voters: BTreeSet<NodeId> = promises.keys().copied().collect();
        let ended = proposal.ended.clone();
        let earlier = promises.values().flatten().max_by_key(|(ballot, _)| *ballot).map(|(_, deaths)| deaths.clone());
        if self.is_quorum(&voters, &ended) {
            // What may have been decided already must be decided again.
            let deaths = earlier.unwrap_or_else(|| self.proposed_deaths());
            let stage = Stage::Accepting(deaths, BTreeSet::new());
            self.agreement.proposal = Some(Proposal { ballot, stage, ended });
            self.repeat_proposal();
        }
    }

    pub(super) fn accept(&mut self, from: NodeId, ballot: Ballot, deaths: Vec<Death>, ended: &[NodeId]) {
        let epoch = self.epoch;
        self.renounce(ended);
        if !self.is_active() {
            return;
        }
        if let Some(promised) = self.agreement.promised.filter(|promised| *promised > ballot) {
            return self.send(from, Message::Rejected { epoch, promised });
        }
        self.agreement.promised = Some(ballot);
        self.agreement.accepted = Some((ballot, deaths));
        self.send(from, Message::Accepted { epoch, ballot });
    }

    pub(super) fn accepted(&mut self, from: NodeId, ballot: Ballot) {
        let Some(proposal) = self.agreement.proposal.as_mut().filter(|proposal| proposal.ballot == ballot) else {
            return;
        };
        let Stage::Accepting(deaths, accepts) = &mut proposal.stage else { return };
        accepts.insert(from);
        let (deaths, accepts, ended) = (deaths.clone(), accepts.clone(), proposal.ended.clone());
        if self.is_quorum(&accepts, &ended) {
            let epoch = Epoch(self.epoch.0 + 1);
            let is_out = |node: &NodeId| deaths.iter().any(|death| death.node == *node);
            let leaving: Vec<NodeId> = self.leaving.wishes.iter().copied().filter(|node| !is_out(node)).collect();
            let deaths: Vec<Death> = self.deaths.iter().cloned().chain(deaths.iter().cloned()).collect();
            let message = Message::Commit { epoch, deaths: deaths.clone(), leaving };
            // To the dead as well: one that was only silent learns it from this. And before we may be gone ourselves.
            for node in self.living().filter(|node| *node != self.me).collect::<Vec<_>>() {
                self.send(node, message.clone());
            }
            self.agreement.has_announced_end = true;
            self.adopt(epoch, deaths, &[]);
        }
    }

    pub(super) fn is_proposing(&self) -> bool {
        self.agreement.proposal.is_some() || self.agreement.retry.is_some()
    }

    pub(super) fn rejected(&mut self, promised: Ballot) {
        let Some(proposal) = &self.agreement.proposal else { return };
        if proposal.ballot >= promised {
            return;
        }
        self.agreement.promised = self.agreement.promised.max(Some(promised));
        self.agreement.proposal = None;
        // Rivals wait for different times, so that one of them gets through.
        let rank = self.member(self.me).map_or(0, |member| member.rank.0);
        let share = f64::from(rank % 16 + 1) / 16.0;
        self.agreement.retry = Some(self.now.after(self.config.liveness.beat.mul_f64(share)));
    }

    pub(super) fn commit(&self) -> Message {
        let leaving = self.leaving.wishes.iter().copied().collect();
        Message::Commit { epoch: self.epoch, deaths: self.deaths.clone(), leaving }
    }

    /// A decision is known: the new epoch begins.
    pub(super) fn adopt(&mut self, epoch: Epoch, deaths: Vec<Death>, leaving: &[NodeId]) {
        let wishes: Vec<NodeId> = leaving.iter().copied().filter(|node| self.is_living(*node)).collect();
        self.leaving.wishes.extend(wishes);
        let is_old = epoch < self.epoch && !self.faults.skips_epoch_check();
        if is_old || epoch == self.epoch {
            return;
        }
        self.epoch = epoch;
        let has_announced_start = self.agreement.has_announced_end;
        self.agreement = Agreement { has_announced_start, ..Agreement::default() };
        self.watch.epoch_began(self.now);
        let mut fresh: Vec<Death> = deaths.iter().filter(|death| self.is_living(death.node)).cloned().collect();
        self.deaths = deaths;
        if !fresh.is_empty() && self.faults.drops_death_notice() {
            let dropped = fresh.remove(0).node;
            self.deaths.retain(|death| death.node != dropped);
        }
        for Death { node, .. } in &fresh {
            self.watch.forget(*node);
            self.away.forget(*node);
            self.leaving.wishes.remove(node);
        }
        match fresh.iter().find(|death| death.node == self.me) {
            Some(Death { left: true, .. }) => return self.depart(),
            Some(Death { reason, .. }) => {
                let what = format!("the others went on without this node: {reason}");
                return self.fail(Error::new(ErrorKind::DeclaredDead, what).hint("start this node again"));
            }
            None => {}
        }
        for Death { node, left, reason, .. } in fresh {
            if left {
                self.effects.push(Effect::Departed { node });
                self.break_groups_with_departed(node);
            } else {
                let error = self.lost(node, &reason);
                self.effects.push(Effect::DeclareDead { node, reason });
                self.break_groups_with(node, &error, false);
            }
            self.repeat_failures(node);
        }
        self.finish_shrinks();
        self.reconsider();
    }
}
