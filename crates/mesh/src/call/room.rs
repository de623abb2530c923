//! Waits for room at those who are called.
//!
//! Who makes more calls than their callee takes fills the queue of this node. One that waits for room before each is
//! held up instead. Such a wait stands beside the queue of its window and behind the requests that are in it: its turn
//! comes when those have left and the window has room. It takes nothing of that room, so one that is given up, or whose
//! caller calls nobody then, is in nobody's way; and as many requests may find no room all the same as wait at a time,
//! which wait in the queue like any other.
//!
//! **Nothing is lost.** A wait is noted under the lock under which it was seen that there is no room, and whoever
//! changes the window looks at its waits afterwards.
//!
//! **A wait ends once**, by whoever takes it out of the window: when its turn has come, at its deadline, when it is
//! cancelled, with its link, or with the mesh.

use super::name::ServiceName;
use super::window::{Size, Window, Windows};
use crate::awaited::Sort;
use crate::driver::Shared;
use crate::runtime::Timer;
use parking_lot::Mutex;
use sheave_base::work::Completer;
use sheave_base::work::awaited::Account;
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Result, Work, limits};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The operation's name.
const ROOM: &str = "room";

/// One wait.
pub(super) struct RoomWait {
    /// So many requests in all must have left the queue of the window.
    behind: u64,
    to: NodeId,
    service: ServiceName,
    completer: Completer<()>,
    timer: Option<Timer>,
}

impl RoomWait {
    fn end(self, outcome: Result<()>) {
        let Self { completer, timer, .. } = self;
        drop(timer);
        completer.complete(outcome.map_err(|error| error.operation(ROOM)));
    }
}

/// The waits of one window, by their numbers, which grow.
pub(super) type RoomWaits = BTreeMap<u64, RoomWait>;

impl Window {
    /// Takes out the waits whose turn has come.
    pub(super) fn take_due(&mut self, size: Size) -> Vec<RoomWait> {
        let mut due = Vec::new();
        if self.room_waits.is_empty() || !self.has_room(1, size) {
            return due;
        }
        while let Some(first) = self.room_waits.first_entry()
            && first.get().behind <= self.left
        {
            due.push(first.remove());
        }
        due
    }

    /// What a wait that stands here waits for, after the name of the callee.
    fn occupation(&self, wait: &RoomWait) -> String {
        let (unbegun, bytes) = self.outstanding();
        let first = wait.behind.saturating_sub(self.left);
        let queued = if first > 0 { format!(" and with {first} that wait here") } else { String::new() };
        format!("to begin with {unbegun} requests of {bytes} bytes{queued}")
    }
}

impl Windows {
    /// Tells waits that were taken out of their window.
    pub(super) fn end_rooms(&self, ended: Vec<RoomWait>, outcome: &Result<()>) {
        if !ended.is_empty() {
            self.room_waits.fetch_sub(ended.len(), SeqCst);
            ended.into_iter().for_each(|wait| wait.end(outcome.clone()));
        }
    }

    /// Ends waits that nobody has a handle to any more.
    fn forget_rooms(&self, window: &Mutex<Window>) {
        let forgotten: Vec<RoomWait> = {
            let waits = &mut window.lock().room_waits;
            let is_forgotten = |(_, wait): &(&u64, &RoomWait)| !wait.completer.is_awaited();
            let numbers: Vec<u64> = waits.iter().filter(is_forgotten).map(|(number, _)| *number).collect();
            numbers.iter().filter_map(|number| waits.remove(number)).collect()
        };
        self.end_rooms(forgotten, &Ok(()));
    }

    /// The mesh has ended for this node.
    pub(super) fn end_all_rooms(&self, error: &Error) {
        for window in self.all() {
            let ended = std::mem::take(&mut window.lock().room_waits);
            self.end_rooms(ended.into_values().collect(), &Err(error.clone()));
        }
    }

    /// Whom the wait of that number waits for, the service, and what the callee has to do.
    fn describe_room(&self, number: u64) -> Option<(NodeId, ServiceName, String)> {
        self.all().iter().find_map(|window| {
            let state = window.lock();
            let wait = state.room_waits.get(&number)?;
            Some((wait.to, wait.service.clone(), state.occupation(wait)))
        })
    }
}

impl Shared {
    /// Waits until there is room for a call of that service.
    pub(crate) fn room(self: &Arc<Self>, to: NodeId, service: ServiceName, deadline: Option<Duration>) -> Work<()> {
        let waiting = self.begin_room(to, service, deadline);
        waiting.unwrap_or_else(|error| Work::ready(ROOM, Err(error.operation(ROOM))))
    }

    fn begin_room(self: &Arc<Self>, to: NodeId, service: ServiceName, deadline: Option<Duration>) -> Result<Work<()>> {
        let there_is = || Ok(Work::ready(ROOM, Ok(())));
        if let Some(error) = self.failure() {
            return Err(error.clone());
        }
        if to == self.me {
            return there_is();
        }
        if let Some(window) = self.calls.windows.unlinked.find(to, service.number()) {
            return self.wait_in(&window, (to, None), service, deadline);
        }
        let Some(link) = self.routes.get(to) else {
            return match self.death_of(to) {
                Some(error) => Err(error),
                None if self.peer_of(to).is_none() => {
                    Err(Error::new(ErrorKind::NotFound, format!("node {to} is not a member of the mesh")))
                }
                // Nothing was sent there.
                None => there_is(),
            };
        };
        match self.calls.windows.find(link, service.number()) {
            Some(window) => self.wait_in(&window, (to, Some(link)), service, deadline),
            None => there_is(),
        }
    }

    fn wait_in(
        self: &Arc<Self>,
        window: &Arc<Mutex<Window>>,
        (to, link): (NodeId, Option<LinkId>),
        service: ServiceName,
        deadline: Option<Duration>,
    ) -> Result<Work<()>> {
        let windows = &self.calls.windows;
        // Most find room, and need nothing else.
        if let Some(state) = window.try_lock()
            && !state.is_over
            && state.waiting.is_empty()
            && state.has_room(1, self.window_size(&state))
        {
            return Ok(Work::ready(ROOM, Ok(())));
        }
        let number = windows.last_room.fetch_add(1, SeqCst) + 1;
        let (completer, work) = self.node.described(ROOM, link, self.awaited(Sort::Room, number));
        let (weak, own) = (self.weak(), Arc::downgrade(window));
        completer.on_cancel(move || {
            let Some(shared) = weak.upgrade() else { return };
            shared.end_room(&own, number, |_| Error::new(ErrorKind::Cancelled, "the wait for room was cancelled"));
        });
        if windows.room_waits.load(SeqCst) >= limits::ROOM_WAITS_MAX {
            windows.forget_rooms(window);
        }
        let mut state = window.lock();
        if state.is_over {
            drop(state);
            return Err(self.about(Error::new(ErrorKind::PeerLost, "the link has ended"), to));
        }
        if state.waiting.is_empty() && state.has_room(1, self.window_size(&state)) {
            drop(state);
            completer.complete(Ok(()));
            return Ok(work);
        }
        if windows.room_waits.load(SeqCst) >= limits::ROOM_WAITS_MAX {
            let what = format!("this node has {} waits for room already", limits::ROOM_WAITS_MAX);
            return Err(Error::new(ErrorKind::LimitExceeded, what).hint("wait for some of them before beginning more"));
        }
        // Its action looks for the wait, for which it must wait until this lock is let go.
        let timer = deadline.map(|deadline| self.end_room_at(window, number, deadline)).transpose()?;
        let behind = state.left + state.waiting.len() as u64;
        state.room_waits.insert(number, RoomWait { behind, to, service, completer, timer });
        windows.room_waits.fetch_add(1, SeqCst);
        Ok(work)
    }

    /// The link of these waits has ended.
    pub(super) fn fail_rooms(&self, waits: Vec<RoomWait>, reason: &Error) {
        let Some(to) = waits.first().map(|wait| wait.to) else { return };
        let reason = self.death_of(to).unwrap_or_else(|| reason.clone());
        let error = if reason.about().is_some() { reason } else { self.about(reason, to) };
        self.calls.windows.end_rooms(waits, &Err(error));
    }

    fn end_room_at(self: &Arc<Self>, window: &Arc<Mutex<Window>>, number: u64, span: Duration) -> Result<Timer> {
        let (weak, own) = (self.weak(), Arc::downgrade(window));
        self.ticker.at(self.deadline(span), move || {
            let Some(shared) = weak.upgrade() else { return };
            shared.end_room(&own, number, |occupation| {
                let error = Error::new(ErrorKind::DeadlineExceeded, format!("the node has {occupation} first"));
                error.elapsed(span).hint("it may be busy; give it more time, or look at what it does")
            });
        })
    }

    /// Ends a wait, unless that has ended.
    fn end_room(&self, window: &Weak<Mutex<Window>>, number: u64, error: impl FnOnce(&str) -> Error) {
        let Some(window) = window.upgrade() else { return };
        let ended = {
            let mut state = window.lock();
            let Some(wait) = state.room_waits.remove(&number) else { return };
            (state.occupation(&wait), wait)
        };
        let (occupation, wait) = ended;
        let error = self.about(error(&occupation), wait.to);
        self.calls.windows.end_rooms(vec![wait], &Err(error));
    }

    /// What a wait for room waits for.
    pub(crate) fn awaited_room(&self, number: u64) -> Option<Account> {
        let (to, service, occupation) = self.calls.windows.describe_room(number)?;
        let what = Some(format!("room for a call of \"{}\"", service.as_str()));
        Some(Account { what, whom: Some(format!("{} {occupation}", self.name_of(to))) })
    }
}
