//! What one poll of a link brings to its node.
//!
//! **One endpoint, looked up once.** Whoever polls finds the endpoint of a message in its slot and keeps it until the
//! poll is over: for the decision on the message, for the message itself, and for what is to be done about it
//! afterwards ([`Intake::attend`]). So what was taken here is attended to by this thread, and needs no mark that
//! something is due. Where that cannot be, because the link has ended, another endpoint's message comes next or the
//! poll panics, the mark is set when this is dropped at the latest. An endpoint that is unregistered meanwhile gets
//! what the poll still brings, as it gets a message that was taken a moment before.
//!
//! **Of a link that was cut meanwhile nothing counts.** It is marked before anybody is told that it has ended, and the
//! mark is looked at before each message is handed on.

use crate::announced;
use crate::counters::Counters;
use crate::endpoint::{Admission, Endpoint, Taker};
use crate::entry::Entry;
use crate::link::{Arrival, Landing, Sink, Verdict};
use crate::matching::meet;
use crate::message::Message;
use crate::node::Inner;
use sheave_base::{LinkId, Result, contain};
use sheave_tensor::Tensor;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Takes messages out of one link for its node.
pub(crate) struct Intake<'a> {
    inner: &'a Inner,
    entry: &'a Entry,
    found: RefCell<Option<Found>>,
    /// The endpoint that was found has taken something since it last attended.
    has_taken: Cell<bool>,
}

/// An endpoint under one of its numbers.
struct Found {
    number: u8,
    endpoint: Arc<dyn Endpoint>,
    home: u32,
}

impl<'a> Intake<'a> {
    pub(crate) fn new(inner: &'a Inner, entry: &'a Entry) -> Self {
        Self { inner, entry, found: RefCell::new(None), has_taken: Cell::new(false) }
    }

    /// Lets endpoints do what is due: that of the messages that were taken, and all others. No lock may be held.
    pub(crate) fn attend(&self) {
        if self.inner.announced.take_room() {
            // What goes on there may wait, and others attend to what was taken meanwhile.
            self.leave();
            self.inner.resume_paused();
        }
        if self.has_taken.take()
            && let Some(found) = self.found.take()
        {
            // It may run on a thread that waits for something else.
            contain::told("an endpoint of the node", || found.endpoint.attend());
        }
        self.inner.endpoints.attend();
    }

    /// Leaves what is to be done about what was taken to whoever attends next.
    pub(crate) fn leave(&self) {
        if self.has_taken.take()
            && let Some(found) = self.found.take()
        {
            self.inner.endpoints.note_due(found.home);
        }
    }

    /// Finds the endpoint of this number, if it is not the one that was found last. False if there is none.
    fn find(&self, number: u8) -> bool {
        if self.found.borrow().as_ref().is_some_and(|found| found.number == number) {
            return true;
        }
        let found = self.inner.endpoints.find(number).map(|(endpoint, home)| Found { number, endpoint, home });
        let is_there = found.is_some();
        let is_same = |last: &Found| found.as_ref().is_some_and(|found| Arc::ptr_eq(&found.endpoint, &last.endpoint));
        if !self.found.borrow().as_ref().is_some_and(is_same) {
            self.leave();
        }
        drop(self.found.replace(found));
        is_there
    }

    /// Whom a message is for, and where it goes.
    fn receiver_of(&self, link: LinkId, arrival: &Arrival<'_>, has_room: bool) -> Verdict {
        let number = arrival.envelope.endpoint;
        if number == 0 {
            return self.inner.matcher.lock().begin(link, arrival, has_room);
        }
        if !self.find(number) {
            return match self.inner.endpoints.taker_of_none(number) {
                Taker::Expected => Verdict::Pause,
                Taker::Nobody => Verdict::Land(Landing::default()),
            };
        }
        let admission = self.found.borrow().as_ref().map(|found| found.endpoint.admit(link, arrival));
        match admission {
            Some(Admission::Land(ground)) => Verdict::Land(Landing::at(ground)),
            Some(Admission::Pause) if !arrival.ending => Verdict::Pause,
            _ => Verdict::Land(Landing::default()),
        }
    }

    /// Hands a message to its endpoint. One that nobody takes is thrown away.
    fn take(&self, message: Message) {
        if self.entry.is_gone.load(SeqCst) || !self.find(message.envelope.endpoint) {
            return;
        }
        // Before it is handed on: a panic leaves the mark.
        self.has_taken.set(true);
        if let Some(found) = &*self.found.borrow() {
            found.endpoint.take_from(message, self.entry.link.peer());
        }
    }
}

impl Drop for Intake<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Sink for Intake<'_> {
    fn begin(&self, link: LinkId, arrival: &Arrival<'_>) -> Result<Verdict> {
        let announced = &self.inner.announced;
        let bytes = announced::bytes_to_come(arrival)?;
        let has_room = announced.reserve(link, bytes, arrival.ending);
        let verdict = self.receiver_of(link, arrival, has_room);
        if bytes == 0 {
            return Ok(verdict);
        }
        match verdict {
            Verdict::Land(landing) if !landing.has_places() => {
                if !has_room {
                    return Ok(Verdict::Pause);
                }
                if let Err(error) = announced::check_host(bytes) {
                    announced.give_back(link);
                    landing.fail(&error);
                    return Err(error);
                }
                Ok(Verdict::Land(landing))
            }
            verdict => {
                announced.give_back(link);
                Ok(verdict)
            }
        }
    }

    fn deliver(&self, landing: Landing, message: Message) {
        Counters::add(&self.inner.counters.messages_received, 1);
        // One without tensors was not counted, and if it is urgent another one may be on its way.
        if !message.parts.is_empty() {
            self.inner.received_whole(&message);
        }
        if message.envelope.endpoint != 0 {
            // Its places are free before anybody can learn that the message is there.
            drop(landing);
            return self.take(message);
        }
        match (landing.receive, landing.refusal) {
            (Some(posted), Some(refusal)) => posted.finish(Err(refusal)),
            (Some(posted), None) => posted.finish(Ok(message)),
            (None, _) => {
                let met = self.inner.matcher.lock().deliver(message);
                if let Some((posted, message)) = met {
                    meet(*posted, message);
                }
            }
        }
    }

    fn place(&self, spec: &sheave_wire::TensorSpec) -> Result<Tensor> {
        self.inner.place(spec)
    }

    fn is_empty(&self) -> bool {
        self.inner.matcher.is_empty()
    }
}
