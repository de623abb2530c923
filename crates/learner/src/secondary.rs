//! The part of a secondary: it sums gradients of clients and sends the sums to the primary.
//!
//! One sum is on its way at a time. Meanwhile gradients are queued, as many as the settings say, so a primary that is
//! slow, or a link, slows down those who push, or has the oldest dropped. [`Secondary::is_forwarding`] says that a sum
//! is made or on its way, and is changed under the lock: so one thread at a time sums, in the order of the queue,
//! whichever thread it is. The lock is not held meanwhile.

use crate::flushes::Flushes;
use crate::primary::came_twice;
use crate::protocol::{Forward, Push, STATE, number};
use crate::reducer::{Contribution, GradientId, Overflow, Pushed, Reducer, sum};
use crate::server::{PUSHES, Shared};
use crate::{ledger::Losses, protocol};
use sheave_base::clock::Time;
use sheave_base::planted::{self, Bug};
use sheave_base::{Error, ErrorKind, Result, contain, limits};
use sheave_mesh::{Call, Member, Reply, Request, Timer};
use sheave_net::Part;
use sheave_tensor::Mode;
use sheave_wire::Value;
use std::sync::Arc;

pub(crate) struct Secondary {
    pub(crate) reducer: Reducer<Pusher>,
    is_forwarding: bool,
    /// So many are to leave the queue though no batch is full.
    hurried: u64,
    /// Who waits until so many have left the queue, and the primary has them.
    flushes: Flushes<Reply>,
    timer: Option<Timer>,
    /// What the primary has not been told of yet: these will be in no sum.
    untold: Vec<GradientId>,
    /// Which start of the primary this one works for.
    started: Option<u64>,
    pub(crate) ended: Option<Error>,
    pub(crate) forwarded: u64,
    pub(crate) dropped: Losses,
}

/// Who waits for the answer to a push.
pub(crate) struct Pusher {
    reply: Reply,
    /// It waits no longer then.
    until: Option<Time>,
}

impl Pusher {
    fn waits(&self, now: Time) -> bool {
        self.reply.is_wanted() && self.until.is_none_or(|until| now < until)
    }
}

/// A batch that is to be summed and sent, and who was let into the queue in its place.
struct Next {
    batch: Vec<Contribution>,
    dropped: Vec<GradientId>,
    started: Option<u64>,
    admitted: Vec<Pusher>,
}

impl Secondary {
    pub(crate) fn new(reducer: Reducer<Pusher>) -> Self {
        Self {
            reducer,
            is_forwarding: false,
            hurried: 0,
            flushes: Flushes::new(),
            timer: None,
            untold: Vec::new(),
            started: None,
            ended: None,
            forwarded: 0,
            dropped: Losses::default(),
        }
    }

    /// What is queued leaves though no batch is full.
    pub(crate) fn hurry(&mut self) -> u64 {
        self.hurried = self.reducer.taken();
        self.hurried
    }

    fn push(&mut self, overflow: Overflow, push: Contribution, pusher: Pusher, now: Time) -> Pushed<Pusher> {
        let id = push.ids[0];
        if self.reducer.has(id) {
            // In a sum it would cost all others that are in that.
            return Pushed::Refused(pusher, came_twice(id));
        }
        if !pusher.waits(now) {
            // Its client has given up, and asks the primary what became of it.
            self.untold.push(id);
            return Pushed::Waits;
        }
        // What is dropped while the primary takes nothing is bounded too.
        let has_room = self.untold.len() < limits::LEARNER_QUEUE_MAX;
        let overflow = if has_room { overflow } else { Overflow::PushBack };
        let pushed = self.reducer.push_as(overflow, push, pusher, now);
        if let Pushed::Taken(_, dropped) = &pushed {
            if !planted::strikes(Bug::DropUntold) {
                self.untold.extend(dropped);
            }
            self.dropped.add(dropped.iter().copied());
        }
        pushed
    }

    /// What is to be sent now, if anything is and nothing is on its way.
    fn next(&mut self, is_due: bool, now: Time) -> Option<Next> {
        if self.is_forwarding || self.ended.is_some() {
            return None;
        }
        let partial = is_due || self.hurried > self.reducer.gone();
        let batch = self.reducer.take(partial).unwrap_or_default();
        if batch.is_empty() && self.untold.is_empty() {
            return None;
        }
        let (admitted, given_up) = self.reducer.admit(now, |pusher| pusher.waits(now));
        self.is_forwarding = true;
        let dropped = std::mem::replace(&mut self.untold, given_up);
        Some(Next { batch, dropped, started: self.started, admitted })
    }

    /// Those whose gradients the primary has.
    fn flushed(&mut self) -> Vec<Reply> {
        let is_early = planted::strikes(Bug::FlushEarly);
        if self.is_forwarding && !is_early {
            return Vec::new();
        }
        if is_early { self.flushes.clear() } else { self.flushes.flushed(self.reducer.gone()) }
    }
}

impl Shared {
    pub(crate) fn take_push(&self, request: Request) -> Result<()> {
        let secondary = self.secondary()?;
        let Request { from, args, tensors, reply, .. } = request;
        let read = Push::read(args).and_then(|push| {
            let segments = tensors.into_vec();
            self.model.check_segments(push.fingerprint, &segments)?;
            let id = GradientId { node: from, client: push.client, number: push.number };
            Ok((Contribution { segments, ids: vec![id] }, push.patience))
        });
        let (contribution, patience) = match read {
            Ok(read) => read,
            Err(error) => {
                reply.error(error);
                return Ok(());
            }
        };
        let now = self.now()?;
        let pushed = {
            let mut secondary = secondary.lock();
            if let Some(error) = secondary.ended.clone() {
                drop(secondary);
                reply.error(error);
                return Ok(());
            }
            let until = patience.map(|patience| now.after(patience));
            secondary.push(self.settings.overflow, contribution, Pusher { reply, until }, now)
        };
        match pushed {
            Pushed::Taken(pusher, dropped) => {
                pusher.reply.value(Value::None);
                self.tell_dropped(&dropped);
            }
            Pushed::Waits => {}
            Pushed::Refused(pusher, error) => pusher.reply.error(error),
        }
        self.drain_secondary();
        Ok(())
    }

    fn tell_dropped(&self, dropped: &[GradientId]) {
        if let Some(on_drop) = self.on_drop.as_ref().filter(|_| !dropped.is_empty())
            && let Err(text) = contain::run(|| on_drop(dropped))
        {
            self.fail(crate::step::panicked("on_drop", &text));
        }
    }

    /// Answers when the primary has all that was taken before.
    pub(crate) fn flush_secondary(&self, reply: Reply) -> Result<()> {
        let flushed = {
            let mut secondary = self.secondary()?.lock();
            if let Some(error) = secondary.ended.clone() {
                drop(secondary);
                reply.error(error);
                return Ok(());
            }
            let target = secondary.hurry();
            if let Err((reply, error)) = secondary.flushes.add(target, reply, Reply::is_wanted) {
                drop(secondary);
                reply.error(error);
                return Ok(());
            }
            secondary.flushed()
        };
        flushed.into_iter().for_each(|reply| reply.value(Value::None));
        self.drain_secondary();
        Ok(())
    }

    /// Sums the next batch and sends it, if there is one and it is its turn.
    pub(crate) fn drain_secondary(&self) {
        let (Some(secondary), Ok(now)) = (&self.secondary, self.now()) else { return };
        let next = {
            let mut secondary = secondary.lock();
            let is_due = self.is_due(secondary.reducer.oldest(), now);
            let next = secondary.next(is_due, now);
            if next.is_none() && !secondary.is_forwarding && secondary.ended.is_none() {
                let oldest = secondary.reducer.oldest();
                match self.timer(oldest, PUSHES, Self::drain_secondary) {
                    Ok(timer) => secondary.timer = timer,
                    Err(error) => {
                        drop(secondary);
                        return self.fail(error);
                    }
                }
            }
            next
        };
        let Some(Next { batch, dropped, started, admitted }) = next else { return };
        admitted.into_iter().for_each(|pusher| pusher.reply.value(Value::None));
        let summed = match (batch.is_empty(), self.mesh()) {
            (true, _) => Ok(None),
            (false, Ok(mesh)) => sum(batch, mesh.node().arena()).map(Some),
            (false, Err(error)) => Err(error),
        };
        match summed {
            Ok(total) => self.send(total, dropped, started),
            Err(error) => self.fail(error),
        }
    }

    /// Sends a sum to the primary. When that has it, the next one is made.
    fn send(&self, total: Option<Contribution>, dropped: Vec<GradientId>, started: Option<u64>) {
        let own = self.own.clone();
        let forwarding = async move {
            let Some(shared) = own.upgrade() else { return Ok(()) };
            let ids = total.as_ref().map_or_else(Vec::new, |total| total.ids.clone());
            match shared.forward(total, dropped, started).await {
                Ok(started) => shared.forwarded(Some(started), &ids),
                // Some client has given a number twice, which is no fault of others that push here.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    shared.forwarded(None, &ids);
                    // Or it is what the primary has ended with.
                    shared.look_at_primary(None);
                }
                Err(error) => shared.fail(shared.of_primary(error)),
            }
            Ok(())
        };
        if let Err(error) = self.mesh().and_then(|mesh| mesh.spawn("forward", forwarding).map(drop)) {
            self.fail(error);
        }
    }

    async fn forward(
        self: &Arc<Self>,
        total: Option<Contribution>,
        dropped: Vec<GradientId>,
        started: Option<u64>,
    ) -> Result<u64> {
        let (node, service) = self.find(self.servers.primary).await?;
        let (segments, ids) = total.map_or_else(Default::default, |total| (total.segments, total.ids));
        let forward = Forward { started, fingerprint: self.model.fingerprint(), ids, dropped };
        let tensors = segments.into_iter().map(|segment| Part::new(segment, Mode::Move)).collect();
        let call = Call { tensors, runs_anyway: true, ..Call::of(forward.to_value()) };
        let work = self.mesh()?.call(node, service, protocol::FORWARD, call)?;
        number(&work.await?.value)
    }

    /// The meaning of an error of a call of the primary: one that is not there any more was stopped.
    fn of_primary(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::NotFound {
            return error;
        }
        let what = format!("the primary of gradient servers {} was stopped", self.servers.name);
        let stopped = Error::new(ErrorKind::Closed, what).hint("start all servers again").cause(error);
        match self.mesh().ok().and_then(|mesh| mesh.member(self.servers.primary).map(Member::peer)) {
            Some(primary) => stopped.peer(primary),
            None => stopped,
        }
    }

    /// The primary has a sum, and says which start of it that is; or has refused it.
    fn forwarded(&self, started: Option<u64>, ids: &[GradientId]) {
        let Some(secondary) = &self.secondary else { return };
        let flushed = {
            let mut secondary = secondary.lock();
            secondary.is_forwarding = false;
            match started {
                Some(_) => secondary.forwarded += ids.len() as u64,
                None => secondary.dropped.add(ids.iter().copied()),
            }
            secondary.started = started.or(secondary.started);
            secondary.flushed()
        };
        if started.is_none() {
            self.tell_dropped(ids);
        }
        flushed.into_iter().for_each(|reply| reply.value(Value::None));
        self.submit(PUSHES, Self::drain_secondary);
    }

    /// The primary has failed, or was stopped: it is asked for the error. Then who has said so is answered.
    pub(crate) fn look_at_primary(&self, told: Option<Reply>) {
        let own = self.own.clone();
        let looking = async move {
            let Some(shared) = own.upgrade() else { return Ok(()) };
            let ask = async {
                let (node, service) = shared.find(shared.servers.primary).await?;
                shared.mesh()?.call(node, service, STATE, Call::default())?.await
            };
            if let Err(error) = ask.await {
                shared.fail(shared.of_primary(error));
            }
            told.into_iter().for_each(|reply| reply.value(Value::None));
            Ok(())
        };
        if let Err(error) = self.mesh().and_then(|mesh| mesh.spawn("look", looking).map(drop)) {
            self.fail(error);
        }
    }

    /// Nothing is taken any more. What was taken and not sent is in no sum, which the primary is told if it is there.
    pub(crate) fn end_secondary(&self, error: &Error) {
        let Some(secondary) = &self.secondary else { return };
        let (waiters, flushes, dropped, started, _timer) = {
            let mut secondary = secondary.lock();
            secondary.ended = Some(error.clone());
            let left = secondary.reducer.clear();
            secondary.dropped.add(left.queued.iter().copied());
            let mut dropped = std::mem::take(&mut secondary.untold);
            dropped.extend(left.queued.into_iter().chain(left.waited));
            let flushes = secondary.flushes.clear();
            (left.waiters, flushes, dropped, secondary.started, secondary.timer.take())
        };
        let waiters = waiters.into_iter().map(|pusher| pusher.reply);
        let replies = waiters.chain(flushes);
        replies.for_each(|reply| reply.error(error.clone()));
        let (Some(shared), Ok(mesh)) = (self.own.upgrade(), self.mesh()) else { return };
        if !dropped.is_empty() {
            // A primary that is gone has nobody who asks it.
            drop(mesh.spawn("forward", async move { shared.forward(None, dropped, started).await.map(drop) }));
        }
    }
}
