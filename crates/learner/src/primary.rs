//! The part of the primary: it adds up the sums of the secondaries, makes steps and has parameters published.
//!
//! [`State::is_stepping`] is changed under the lock and says that somebody makes a step, which the lock is not held
//! for: so steps are made one after the other, each behind a version that it alone raises, whichever thread makes them.
//! They are made on a lane of their own, so that sums are taken and questions are answered meanwhile. Who makes a step
//! looks for the next one when it is done; so nothing that was queued meanwhile is left behind.

use crate::flushes::Flushes;
use crate::ledger::Ledger;
use crate::protocol::{Forward, LOOK, LOOK_TIMEOUT, Outcome, Settle, short, wide};
use crate::questions::Questions;
use crate::reducer::{Contribution, GradientId, Method, Overflow, Pushed, Reducer, sum};
use crate::server::{QUESTIONS, Registration, SUMS, Shared};
use crate::step::{Publish, Stepper, panicked};
use parking_lot::Mutex;
use sheave_base::clock::Time;
use sheave_base::collections::HashSet;
use sheave_base::planted::{self, Bug};
use sheave_base::{Error, ErrorKind, NodeId, Result, contain, limits};
use sheave_mesh::{Call, Mesh, Reply, Request, Timer};
use sheave_wire::Value;
use std::sync::Arc;

pub(crate) struct Primary {
    pub(crate) state: Mutex<State>,
    learning: Mutex<Learning>,
    /// Which start of it this is, on its node.
    started: u64,
}

/// What makes a step, one at a time.
struct Learning {
    stepper: Stepper,
    publish: Option<Publish>,
}

pub(crate) struct State {
    pub(crate) reducer: Reducer<Reply>,
    pub(crate) ledger: Ledger,
    is_stepping: bool,
    pub(crate) version: u64,
    /// Gradients of clients in all steps so far.
    pub(crate) applied: u64,
    /// So many sums are to leave the queue though no batch is full.
    hurried: u64,
    /// Who waits until so many sums have left the queue, and are applied.
    flushes: Flushes<Reply>,
    questions: Questions<Reply>,
    /// Looks at the questions when the first has waited long enough.
    question_timer: Option<Timer>,
    timer: Option<Timer>,
    pub(crate) ended: Option<Error>,
}

impl Primary {
    pub(crate) fn new(
        reducer: Reducer<Reply>,
        version: u64,
        (stepper, publish): (Stepper, Option<Publish>),
        started: u64,
    ) -> Self {
        let state = State {
            reducer,
            ledger: Ledger::default(),
            is_stepping: false,
            version,
            applied: 0,
            hurried: 0,
            flushes: Flushes::new(),
            questions: Questions::new(),
            question_timer: None,
            timer: None,
            ended: None,
        };
        Self { state: Mutex::new(state), learning: Mutex::new(Learning { stepper, publish }), started }
    }
}

impl State {
    /// What is there leaves the queue though no batch is full.
    pub(crate) fn hurry(&mut self) -> u64 {
        self.hurried = self.reducer.taken() + self.reducer.waiting() as u64;
        self.hurried
    }

    /// The next batch, if there is one and nobody makes a step.
    fn next(&mut self, is_due: bool) -> Option<Vec<Contribution>> {
        if self.is_stepping || self.ended.is_some() {
            return None;
        }
        let is_hurried = self.hurried > self.reducer.gone() && !planted::strikes(Bug::FlushForgotten);
        let partial = is_due || is_hurried;
        let batch = self.reducer.take(partial)?;
        self.is_stepping = true;
        Some(batch)
    }

    fn flushed(&mut self) -> Vec<Reply> {
        if self.is_stepping {
            return Vec::new();
        }
        self.flushes.flushed(self.reducer.gone())
    }

    /// Whether this may be taken, and if not why. What is refused will never be applied.
    fn check(&mut self, from: NodeId, forward: &Forward, started: u64) -> Result<()> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        if self.ledger.is_fenced(from) {
            let what = "a sum of a secondary that is gone";
            return Err(Error::new(ErrorKind::NotPermitted, what));
        }
        if forward.started.is_some_and(|other| other != started) {
            let what = "the primary was started again after this secondary had begun to work for it";
            return Err(Error::new(ErrorKind::Closed, what).hint("start the secondary again too"));
        }
        let mut ids = HashSet::default();
        let repeated = forward.ids.iter().find(|id| !ids.insert(**id)).copied();
        match repeated.or_else(|| self.ledger.known(&forward.ids)) {
            Some(id) => Err(came_twice(id)),
            None => Ok(()),
        }
    }
}

impl Shared {
    pub(crate) fn take_forward(&self, request: Request) -> Result<()> {
        let primary = self.primary()?;
        let Request { from, args, tensors, reply, .. } = request;
        let read = Forward::read(args).and_then(|forward| {
            let segments = tensors.into_vec();
            if !self.servers.secondaries.contains(&from) {
                return Err(Error::new(ErrorKind::NotPermitted, "a sum of a node that is no secondary of this server"));
            }
            if !forward.ids.is_empty() || !segments.is_empty() {
                self.model.check_segments(forward.fingerprint, &segments)?;
            }
            Ok((forward, segments))
        });
        let (forward, segments) = match read {
            Ok(read) => read,
            Err(error) => {
                reply.error(error);
                return Ok(());
            }
        };
        let now = self.now()?;
        let (answer, outcome) = {
            let mut state = primary.state.lock();
            // Of one that is fenced its clients have been told that it is lost, and have sent to others.
            if !state.ledger.is_fenced(from) && !planted::strikes(Bug::DropUncounted) {
                state.ledger.note(&forward.dropped, Outcome::Dropped);
            }
            match state.check(from, &forward, primary.started) {
                Err(error) => {
                    if !state.ledger.is_fenced(from) {
                        state.ledger.refuse(forward.ids);
                    }
                    (Some(reply), Err(error))
                }
                Ok(()) if forward.ids.is_empty() || planted::strikes(Bug::SumLost) => (Some(reply), Ok(())),
                Ok(()) => {
                    state.ledger.note(&forward.ids, Outcome::Queued);
                    let contribution = Contribution { segments, ids: forward.ids };
                    match state.reducer.push_as(Overflow::PushBack, contribution, reply, now) {
                        Pushed::Taken(reply, _) => (Some(reply), Ok(())),
                        Pushed::Waits => (None, Ok(())),
                        Pushed::Refused(reply, error) => (Some(reply), Err(error)),
                    }
                }
            }
        };
        if let Some(reply) = answer {
            reply.send(outcome.map(|()| (wide(primary.started), Default::default())));
        }
        self.submit(SUMS, Self::drain_primary);
        Ok(())
    }

    /// Answers with the version when all that is queued is applied.
    pub(crate) fn flush_primary(&self, reply: Reply) -> Result<()> {
        let primary = self.primary()?;
        {
            let mut state = primary.state.lock();
            if let Some(error) = state.ended.clone() {
                drop(state);
                reply.error(error);
                return Ok(());
            }
            let target = state.hurry();
            if let Err((reply, error)) = state.flushes.add(target, reply, Reply::is_wanted) {
                drop(state);
                reply.error(error);
            }
        }
        self.submit(SUMS, Self::drain_primary);
        Ok(())
    }

    /// Makes steps for as long as there is something for one.
    pub(crate) fn drain_primary(&self) {
        let (Some(primary), Ok(mesh)) = (&self.primary, self.mesh()) else { return };
        loop {
            let (next, admitted, flushed, version) = {
                let (mut state, now) = (primary.state.lock(), mesh.runtime().now());
                let flushed = state.flushed();
                let is_due = self.is_due(state.reducer.oldest(), now);
                let next = state.next(is_due);
                let admitted = if next.is_some() { state.reducer.admit(now, |_| true).0 } else { Vec::new() };
                if next.is_none() && !state.is_stepping && state.ended.is_none() {
                    match self.timer(state.reducer.oldest(), SUMS, Self::drain_primary) {
                        Ok(timer) => state.timer = timer,
                        Err(error) => {
                            drop(state);
                            return self.fail(error);
                        }
                    }
                }
                (next, admitted, flushed, state.version)
            };
            flushed.into_iter().for_each(|reply| reply.value(wide(version)));
            let Some(batch) = next else { return };
            admitted.into_iter().for_each(|reply| reply.value(wide(primary.started)));
            let ids: Vec<_> = batch.iter().flat_map(|sum| sum.ids.iter().copied()).collect();
            let outcome = self.make_step(&mut primary.learning.lock(), batch, version, mesh.node().arena());
            let mut state = primary.state.lock();
            state.is_stepping = false;
            match outcome {
                Ok(()) => {
                    state.version += if planted::strikes(Bug::VersionTwice) { 2 } else { 1 };
                    state.applied += ids.len() as u64;
                    if !planted::strikes(Bug::StepUncounted) {
                        state.ledger.note(&ids, Outcome::Applied);
                    }
                }
                Err(error) => {
                    state.ledger.note(&ids, Outcome::Dropped);
                    drop(state);
                    return self.fail(error);
                }
            }
        }
    }

    fn make_step(
        &self,
        learning: &mut Learning,
        batch: Vec<Contribution>,
        version: u64,
        arena: &sheave_tensor::Arena,
    ) -> Result<()> {
        let sums = batch.len();
        let mut total = sum(batch, arena)?;
        if planted::strikes(Bug::MeanOfSums) {
            total.ids.truncate(sums);
        }
        if self.settings.method == Method::Mean {
            total = total.into_mean(arena)?;
        }
        let stepped = learning.stepper.step(&self.model, &total, version, arena);
        let parameters = stepped.map_err(|error| error.context(format!("step {}", version + 1)))?;
        let (Some(parameters), Some(publish)) = (parameters, &mut learning.publish) else { return Ok(()) };
        let published = contain::run(|| publish(parameters, version + 1));
        let published = published.unwrap_or_else(|text| Err(panicked("publish", &text)));
        published.map_err(|error| error.context(format!("publishing version {}", version + 1)))
    }

    pub(crate) fn welcome(&self, from: NodeId, client: &Value) -> Result<Value> {
        let mut state = self.primary()?.state.lock();
        if let Some(error) = &state.ended {
            return Err(error.clone());
        }
        state.ledger.open(from, short(client)?)?;
        Ok(self.model.to_value())
    }

    pub(crate) fn part_from(&self, from: NodeId, client: &Value) -> Result<()> {
        self.primary()?.state.lock().ledger.close(from, short(client)?);
        Ok(())
    }

    /// The version, or why there will be no other.
    pub(crate) fn state_of_primary(&self) -> Result<Value> {
        let state = self.primary()?.state.lock();
        state.ended.clone().map_or(Ok(wide(state.version)), Err)
    }

    /// Answers what became of gradients, though this server may have ended.
    pub(crate) fn settle(&self, from: NodeId, args: Value, reply: Reply) -> Result<()> {
        let settle = match Settle::read(args).and_then(|settle| self.checked(settle)) {
            Ok(settle) => settle,
            Err(error) => {
                reply.error(error);
                return Ok(());
            }
        };
        let (primary, now) = (self.primary()?, self.now()?);
        if primary.state.lock().questions.is_full() {
            self.answer_questions();
        }
        let added = primary.state.lock().questions.add(from, settle, reply, now);
        if let Err(reply) = added {
            let what = format!("{} clients wait to hear of their gradients", limits::LEARNER_CLIENTS_MAX);
            reply.error(Error::new(ErrorKind::LimitExceeded, what));
        }
        self.answer_questions();
        Ok(())
    }

    /// Refuses questions that take one for gone of whom nothing would ever be heard.
    fn checked(&self, settle: Settle) -> Result<Settle> {
        let mut gone = settle.asked.iter().filter_map(|asked| asked.gone);
        match gone.find(|node| !self.servers.secondaries.contains(node)) {
            Some(node) => {
                let what = format!("{node} is taken for a secondary of {} that is gone", self.servers.name);
                Err(Error::new(ErrorKind::InvalidArgument, what).hint("give all nodes the same servers"))
            }
            None => Ok(settle),
        }
    }

    /// Answers those whose questions can be answered.
    fn answer_questions(&self) {
        let (Some(primary), Ok(mesh)) = (&self.primary, self.mesh()) else { return };
        let (deaths, now) = (mesh.deaths(), mesh.runtime().now());
        let (answers, _timer) = {
            let mut state = primary.state.lock();
            let State { questions, question_timer, ledger, ended, .. } = &mut *state;
            for death in deaths {
                if !ledger.is_fenced(death.node) {
                    ledger.fence(death.node);
                }
            }
            // Each look for who still waits costs something.
            let is_full = questions.is_full();
            let answers = questions.answered(ledger, now, |reply| !is_full || reply.is_wanted());
            let for_all = |outcomes| if ended.is_some() { for_good(outcomes) } else { outcomes };
            let answer = |(reply, outcomes): (Reply, Result<_>)| (reply, outcomes.map(for_all));
            let answers: Vec<_> = answers.into_iter().map(answer).collect();
            // Without a timer, as the node leaves, all are answered too.
            let timer = questions.due().and_then(|due| self.question_timer(&mesh, due).ok());
            (answers, std::mem::replace(question_timer, timer))
        };
        for (reply, outcomes) in answers {
            reply.send(outcomes.map(|outcomes| (Outcome::to_value(&outcomes), Default::default())));
        }
    }

    fn question_timer(&self, mesh: &Mesh, due: Time) -> Result<Timer> {
        let own = self.own.clone();
        let fire = move || {
            if let Some(shared) = own.upgrade() {
                shared.submit(QUESTIONS, Self::answer_questions);
            }
        };
        mesh.at(due, fire)
    }

    /// A node is gone, and nothing that it has sent is taken any more.
    pub(crate) fn fence(&self, node: NodeId) {
        if let Some(primary) = &self.primary {
            primary.state.lock().ledger.fence(node);
            self.answer_questions();
        }
    }

    /// No step is made any more, which the secondaries are told.
    pub(crate) fn end_primary(&self, error: &Error, registration: Option<&Arc<Registration>>) {
        let Some(primary) = &self.primary else { return };
        let (waiters, flushes, _timer) = {
            let mut state = primary.state.lock();
            state.ended = Some(error.clone());
            let left = state.reducer.clear();
            state.ledger.note(&left.queued, Outcome::Dropped);
            state.ledger.note(&left.waited, Outcome::Dropped);
            (left.waiters, state.flushes.clear(), state.timer.take())
        };
        let replies = waiters.into_iter().chain(flushes);
        replies.for_each(|reply| reply.error(error.clone()));
        let (Some(shared), Ok(mesh)) = (self.own.upgrade(), self.mesh()) else { return };
        // One that does not hear of it is told when it sends something.
        for node in self.servers.secondaries.iter().copied().filter(|node| *node != self.node) {
            let shared = shared.clone();
            let registration = registration.cloned();
            let telling = async move {
                let runtime = shared.mesh()?.runtime().clone();
                let look = async {
                    let (node, service) = shared.find(node).await?;
                    let look = Call { deadline: Some(LOOK_TIMEOUT), ..Call::default() };
                    shared.mesh()?.call(node, service, LOOK, look)?.await
                };
                let looked = runtime.until(runtime.after(LOOK_TIMEOUT), look).await;
                // A server that has failed is there until it was asked for the error, though it is stopped meanwhile.
                drop(registration);
                looked.map(drop)
            };
            drop(mesh.spawn("tell of the end", telling));
        }
    }

    /// The node leaves: nobody hears any more what became of gradients.
    pub(crate) fn leave_questions(&self, error: &Error) {
        let Some(primary) = &self.primary else { return };
        let (replies, _timer) = {
            let mut state = primary.state.lock();
            (state.questions.clear(), state.question_timer.take())
        };
        replies.into_iter().for_each(|reply| reply.error(error.clone()));
    }
}

/// Why a sum, or a push, is refused of which a gradient has come before. No client gives a number twice, and none is
/// sent again that may have been taken: it is at fault, or a secondary is.
pub(crate) fn came_twice(id: GradientId) -> Error {
    let what = format!("gradient {} of client {} of {} came a second time", id.number, id.client, id.node);
    Error::new(ErrorKind::AlreadyExists, what).hint("give each gradient of a client a number of its own")
}

/// What became of gradients once nothing is taken any more: one that has not come will never be in a step. Its client
/// may have given up before it was refused, so that nobody tells of it.
fn for_good(outcomes: Vec<Outcome>) -> Vec<Outcome> {
    let settled = |outcome| if outcome == Outcome::Pending { Outcome::Dropped } else { outcome };
    outcomes.into_iter().map(settled).collect()
}
