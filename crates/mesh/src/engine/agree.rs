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
    /// After a rejection: not before this time again.
    retry: Option<Time>,
}

struct Proposal {
    ballot: Ballot,
    stage: Stage,
}

enum Stage {
    Preparing(BTreeMap<NodeId, Option<Accepted>>),
    Accepting(Vec<Death>, BTreeSet<NodeId>),
}

impl Engine {
    /// Whether `nodes` decide: more than half of the epoch's members, or exactly half with the first of them. Two such
    /// sets always share a member.
    pub(super) fn is_quorum(&self, nodes: &BTreeSet<NodeId>) -> bool {
        let (mut members, mut present) = (0, 0);
        for node in self.living() {
            members += 1;
            present += usize::from(nodes.contains(&node));
        }
        let has_first = self.living().next().is_some_and(|first| nodes.contains(&first));
        2 * present > members || (2 * present == members && has_first)
    }

    /// Starts or repeats our attempt to end the epoch with all suspected members dead.
    pub(super) fn propose(&mut self) {
        if self.agreement.retry.is_some_and(|retry| self.now < retry) {
            return;
        }
        self.agreement.retry = None;
        if self.agreement.proposal.is_none() {
            let rank = self.member(self.me).map_or(u32::MAX, |member| member.rank.0);
            let is_first = self.living().next() == Some(self.me);
            let (round, stage) = match self.agreement.promised {
                None if is_first => (0, Stage::Accepting(self.suspected_deaths(), BTreeSet::new())),
                promised => (promised.map_or(0, |ballot| ballot.round) + 1, Stage::Preparing(BTreeMap::new())),
            };
            self.agreement.proposal = Some(Proposal { ballot: Ballot { round, rank }, stage });
        }
        self.repeat_proposal();
    }

    fn repeat_proposal(&mut self) {
        let epoch = self.epoch;
        let Some(proposal) = &self.agreement.proposal else { return };
        let ballot = proposal.ballot;
        let (message, answered): (Message, BTreeSet<NodeId>) = match &proposal.stage {
            Stage::Preparing(promises) => (Message::Prepare { epoch, ballot }, promises.keys().copied().collect()),
            Stage::Accepting(deaths, accepts) => {
                (Message::Accept { epoch, ballot, deaths: deaths.clone() }, accepts.clone())
            }
        };
        let voters: Vec<NodeId> = self.living().filter(|node| !answered.contains(node)).collect();
        for voter in voters.into_iter().filter(|voter| !self.watch.suspects(*voter)).collect::<Vec<_>>() {
            // A successor's voters may not know yet how the epoch began.
            if ballot.round > 0 && epoch > super::FIRST_EPOCH {
                self.send(voter, self.commit());
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

    pub(super) fn prepare(&mut self, from: NodeId, ballot: Ballot) {
        let epoch = self.epoch;
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
        let earlier = promises.values().flatten().max_by_key(|(ballot, _)| *ballot).map(|(_, deaths)| deaths.clone());
        if self.is_quorum(&voters) {
            // What may have been decided already must be decided again.
            let deaths = earlier.unwrap_or_else(|| self.suspected_deaths());
            let stage = Stage::Accepting(deaths, BTreeSet::new());
            self.agreement.proposal = Some(Proposal { ballot, stage });
            self.repeat_proposal();
        }
    }

    pub(super) fn accept(&mut self, from: NodeId, ballot: Ballot, deaths: Vec<Death>) {
        let epoch = self.epoch;
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
        let (deaths, accepts) = (deaths.clone(), accepts.clone());
        if self.is_quorum(&accepts) {
            let told: Vec<NodeId> = self.living().collect();
            let all = self.deaths.iter().cloned().chain(deaths).collect();
            self.adopt(Epoch(self.epoch.0 + 1), all);
            // To the dead as well: one that was only silent learns it from this.
            for node in told.into_iter().filter(|node| *node != self.me).collect::<Vec<_>>() {
                self.send(node, self.commit());
            }
        }
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
        Message::Commit { epoch: self.epoch, deaths: self.deaths.clone() }
    }

    /// A decision is known: the new epoch begins.
    pub(super) fn adopt(&mut self, epoch: Epoch, deaths: Vec<Death>) {
        let is_old = epoch < self.epoch && !self.faults.skip_epoch_check;
        if is_old || epoch == self.epoch {
            return;
        }
        self.epoch = epoch;
        self.agreement = Agreement::default();
        self.watch.epoch_began(self.now);
        let mut fresh: Vec<Death> = deaths.iter().filter(|death| self.is_living(death.node)).cloned().collect();
        self.deaths = deaths;
        if self.faults.drop_one_death_notice && !fresh.is_empty() {
            self.faults.drop_one_death_notice = false;
            let dropped = fresh.remove(0).node;
            self.deaths.retain(|death| death.node != dropped);
        }
        for Death { node, reason, .. } in fresh {
            if node == self.me {
                let what = format!("the others went on without this node: {reason}");
                let peer = self.member(self.me).map(super::Member::peer).unwrap_or_default();
                let error = Error::new(ErrorKind::DeclaredDead, what).peer(peer).hint("start this node again");
                return self.fail(error);
            }
            self.watch.forget(node);
            let error = self.lost(node, &reason);
            self.effects.push(Effect::DeclareDead { node, reason });
            self.break_groups_with_dead(node, &error);
        }
        self.finish_shrinks();
        self.reconsider();
    }
}
