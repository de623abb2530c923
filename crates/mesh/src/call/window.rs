//! Room for requests at those who are called.
//!
//! A service takes so many requests of each link, and so many bytes of them, before it has begun with them: the
//! caller's *window*, which both ends know from the number of members; between a host and a guest it has one size. The
//! callee says how many it has begun so far: in its answers, and in words of their own where half of a window has begun
//! since it said so last. Beyond its window a caller keeps requests here, in order, and sends them as room appears. One
//! request is always let go, however large.
//!
//! **Questions.** One-way calls have no answers, and of less than half of a window the callee says nothing. A request
//! that is so large that it waits for less than that would wait for ever. Whoever keeps such a one asks, and has a word
//! when there is news; it asks again if that was not enough.
//!
//! **No deadlock.** Requests never hold up a link, so answers always come through. And a window waits for no handler's
//! *end*: one that waits gives its permit back, the next request begins, and where none can it is refused, which counts
//! as begun. So nodes whose handlers call each other in circles go on.
//!
//! **Order and locks.** Whoever sends marks the window and lets its lock go meanwhile, for works of other messages may
//! complete there and call again. Whoever finds the mark leaves its request behind those that wait, and the marker
//! looks at them once more when it has taken the mark off. So requests of one window leave one by one, in order.
//!
//! **Who does not want to fill the queue** waits for [`room`](super::room) first.
//!
//! **Counts** begin with the link and are modulo 2³². An answer or a word may tell less than an earlier one; only what
//! is new counts, and what is more than was sent does not.

use super::ASKS;
use super::one_way::OneWay;
use super::room::{RoomWait, RoomWaits};
use super::unlinked::Unlinked;
use crate::driver::Shared;
use crate::endpoints::ROOM;
use crate::reference::{Name, Ref, Refs};
use parking_lot::{Mutex, RwLock};
use sheave_base::clock;
use sheave_base::collections::HashMap;
use sheave_base::planted::{self, Bug};
use sheave_base::work::{Completer, IDLE};
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Result, Tag, limits};
use sheave_net::{Envelope, Hold, Outgoing, Part};
use sheave_tensor::Mode;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// What a window holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(super) requests: u32,
    pub(super) bytes: u64,
}

impl Size {
    /// The size of each window between a host and a guest: they do not know of how many there will be.
    pub(crate) fn of_guests() -> Self {
        Self::among(limits::GUESTS_MAX)
    }

    /// The size of each window among so many members.
    pub(super) fn among(members: usize) -> Self {
        let members = members.max(1);
        let requests = (limits::REQUESTS_PENDING_MAX / members).max(limits::WINDOW_REQUESTS_MIN);
        let bytes = (limits::REQUEST_BYTES_MAX / members as u64).max(limits::WINDOW_BYTES_MIN);
        Self { requests: u32::try_from(requests).unwrap_or(u32::MAX), bytes }
    }
}

/// A request that is to be sent.
pub(super) struct Leaving {
    pub(super) to: NodeId,
    pub(super) message: Outgoing,
    /// When its caller waits no longer, where the callee is to know.
    pub(super) until: Option<Instant>,
    pub(super) runs_anyway: bool,
    /// What it passes on.
    pub(super) refs: Refs,
    /// The one-way call that it is, for whose answer nobody waits.
    pub(super) one_way: Option<Box<OneWay>>,
}

impl Leaving {
    fn bytes(&self) -> u64 {
        let tensors = self.message.parts.iter().map(|part| part.tensor().len_bytes() as u64);
        tensors.sum::<u64>() + self.message.control.len() as u64
    }
}

#[derive(Default)]
pub(super) struct Window {
    is_sending: bool,
    /// The callee was asked how many it has begun, and has not said so.
    is_asking: bool,
    /// The callee.
    pub(super) to: NodeId,
    /// Its size, where that does not follow from the number of members.
    size: Option<Size>,
    /// The link has ended.
    pub(super) is_over: bool,
    begun: u32,
    /// Bytes of each request that was sent and has not begun, as far as is known.
    sizes: VecDeque<u64>,
    bytes: u64,
    /// How many requests were sent in all, and of how many the callee has said that they have begun.
    sent: u64,
    sent_and_begun: u64,
    /// How many one-way calls have failed, as the callee says.
    pub(super) failed: u64,
    /// One-way calls among those that have not begun, as far as is known, and how many requests were sent before.
    one_way: VecDeque<(u64, Box<OneWay>)>,
    pub(super) waiting: VecDeque<Leaving>,
    /// Bytes of those.
    waiting_bytes: u64,
    /// How many have left `waiting` so far.
    pub(super) left: u64,
    pub(super) room_waits: RoomWaits,
}

impl Window {
    /// A window of requests to a node to which there is no link yet.
    pub(super) fn unlinked(to: NodeId) -> Self {
        Self { to, ..Self::default() }
    }

    /// The numbers of the requests that are kept.
    pub(super) fn waiting_numbers(&self) -> Vec<u64> {
        self.waiting.iter().map(|request| request.message.envelope.correlation).collect()
    }

    pub(super) fn has_room(&self, bytes: u64, size: Size) -> bool {
        let fits = self.bytes.saturating_add(bytes) <= size.bytes && self.sizes.len() < size.requests as usize;
        self.sizes.is_empty() || fits
    }

    /// Whether a request waits to be sent, or somebody for room.
    fn somebody_waits(&self) -> bool {
        !self.waiting.is_empty() || !self.room_waits.is_empty()
    }

    /// How many requests were sent and have not begun, as far as is known, and their bytes.
    pub(super) fn outstanding(&self) -> (usize, u64) {
        (self.sizes.len(), self.bytes)
    }

    /// Whether to ask the callee how many it has begun: a request waits, and those under way are so few that it might
    /// say nothing though it has begun with all of them. Once; the number of the service.
    fn asks(&mut self, size: Size) -> Option<u64> {
        let is_little = self.sizes.len() < size.requests as usize / 2 && self.bytes < size.bytes / 2;
        let first = self.waiting.front().filter(|_| is_little && !self.is_asking && !self.is_sending)?;
        self.is_asking = true;
        Some(first.message.envelope.context)
    }

    /// Keeps a request until there is room for it.
    pub(super) fn keep(&mut self, request: Leaving) -> Result<()> {
        let bytes = self.waiting_bytes.saturating_add(request.bytes());
        let what = if self.waiting.len() >= limits::OUTBOUND_MESSAGES_MAX {
            format!("{} calls", limits::OUTBOUND_MESSAGES_MAX)
        } else if !self.waiting.is_empty() && bytes > limits::OUTBOUND_BYTES_MAX {
            format!("calls of {} bytes, of at most {},", self.waiting_bytes, limits::OUTBOUND_BYTES_MAX)
        } else {
            self.waiting_bytes = bytes;
            self.waiting.push_back(request);
            return Ok(());
        };
        Err(Error::new(ErrorKind::LimitExceeded, format!("{what} wait for their callee"))
            .hint("wait for some before calling again"))
    }

    /// Takes the requests that another one keeps, behind its own.
    fn take_over(&mut self, other: &mut Self) {
        self.waiting.append(&mut other.waiting);
        self.waiting_bytes += std::mem::take(&mut other.waiting_bytes);
    }

    /// Takes out the first request that waits, if it is to be sent now.
    fn next(&mut self, size: Size) -> Option<Leaving> {
        let bytes = self.waiting.front()?.bytes();
        if self.is_sending || !self.has_room(bytes, size) {
            return None;
        }
        let mut first = self.take_first()?;
        self.enter(bytes, &mut first);
        Some(first)
    }

    /// Takes out the first request that was kept.
    fn take_first(&mut self) -> Option<Leaving> {
        let request = self.waiting.pop_front()?;
        self.waiting_bytes -= request.bytes();
        self.left += 1;
        Some(request)
    }

    fn enter(&mut self, bytes: u64, request: &mut Leaving) {
        self.is_sending = true;
        self.sizes.push_back(bytes);
        self.bytes += bytes;
        self.one_way.extend(request.one_way.take().map(|one_way| (self.sent, one_way)));
        self.sent += 1;
    }

    /// What has entered last is sent, or could not be. Returns a one-way call that was not.
    fn sent(&mut self, is_sent: bool) -> Option<Box<OneWay>> {
        self.is_sending = false;
        if is_sent {
            return None;
        }
        self.bytes -= self.sizes.pop_back().unwrap_or(0);
        self.sent -= 1;
        let is_it = self.one_way.back().is_some_and(|(before, _)| *before == self.sent);
        if is_it { self.one_way.pop_back().map(|(_, one_way)| one_way) } else { None }
    }

    /// The callee has begun so many in all. Notes what one-way calls among the new ones were to fill.
    fn begun(&mut self, total: u32, filling: &mut Vec<Name>) {
        self.is_asking = false;
        let new = total.wrapping_sub(self.begun) as usize;
        if new <= self.sizes.len() {
            self.begun = total;
            let new = match new {
                0 => 0,
                _ if planted::strikes(Bug::CreditForgotten) => new - 1,
                _ if planted::strikes(Bug::CreditTwice) => (new + 1).min(self.sizes.len()),
                _ => new,
            };
            self.bytes -= self.sizes.drain(..new).sum::<u64>();
            self.sent_and_begun += new as u64;
            let begun = self.sent_and_begun;
            while self.one_way.front().is_some_and(|(before, _)| *before < begun) {
                let one_way = self.one_way.pop_front();
                filling.extend(one_way.into_iter().flat_map(|(_, one_way)| one_way.into_fills()));
            }
        }
    }
}

/// Windows by the link and the service's number, and how many each link has.
#[derive(Default)]
struct ByService {
    windows: HashMap<(LinkId, u64), Arc<Mutex<Window>>>,
    counts: HashMap<LinkId, usize>,
}

impl ByService {
    /// The window of this link and service, which is made if there is none.
    fn entry(&mut self, key: (LinkId, u64), made: impl FnOnce() -> Arc<Mutex<Window>>) -> Arc<Mutex<Window>> {
        match self.windows.entry(key) {
            Entry::Occupied(known) => Arc::clone(known.get()),
            Entry::Vacant(free) => {
                *self.counts.entry(key.0).or_default() += 1;
                Arc::clone(free.insert(made()))
            }
        }
    }

    fn is_full(&self, link: LinkId) -> bool {
        self.counts.get(&link).is_some_and(|count| *count >= limits::SERVICES_MAX)
    }
}

/// The windows of a node as a caller: one for each link and service that it has called.
#[derive(Default)]
pub(super) struct Windows {
    by_service: RwLock<ByService>,
    /// Those to whose node there is no link yet.
    pub(super) unlinked: Unlinked,
    /// Requests that wait in any of them.
    waiting: AtomicUsize,
    /// Waits for room in any of them.
    pub(super) room_waits: AtomicUsize,
    pub(super) last_room: AtomicU64,
    /// Those who wait until there are none.
    idle: Mutex<Vec<Completer<()>>>,
}

impl Windows {
    /// The window of requests to a service over this link. A link has so many of them as its other end counts.
    fn of(
        &self,
        to: NodeId,
        link: LinkId,
        service: u64,
        size: impl FnOnce() -> Option<Size>,
    ) -> Result<Arc<Mutex<Window>>> {
        if let Some(window) = self.find(link, service) {
            return Ok(window);
        }
        let mut by_service = self.by_service.write();
        if by_service.is_full(link) && !by_service.windows.contains_key(&(link, service)) {
            let what = format!("this node has called {} services of the other one", limits::SERVICES_MAX);
            return Err(Error::new(ErrorKind::LimitExceeded, what).hint("call services by names that are used again"));
        }
        let made = || Arc::new(Mutex::new(Window { to, size: size(), ..Window::default() }));
        Ok(by_service.entry((link, service), made))
    }

    pub(super) fn find(&self, link: LinkId, service: u64) -> Option<Arc<Mutex<Window>>> {
        self.by_service.read().windows.get(&(link, service)).map(Arc::clone)
    }

    /// Looks at a window while it is in the table. Whoever holds a window's lock never waits for the table.
    fn look<T>(&self, link: LinkId, service: u64, look: impl FnOnce(&mut Window) -> T) -> Option<T> {
        self.by_service.read().windows.get(&(link, service)).map(|window| look(&mut window.lock()))
    }

    /// Takes note of a callee's word, that it has begun so many requests in all.
    pub(super) fn note_begun(&self, link: LinkId, service: u64, total: u32) -> Begun {
        let mut filling = Vec::new();
        let waits = self.look(link, service, |state| {
            state.begun(total, &mut filling);
            state.somebody_waits()
        });
        Begun { filling, somebody_waits: waits.unwrap_or(false) }
    }

    /// All windows, those that wait for their link among them.
    pub(super) fn all(&self) -> Vec<Arc<Mutex<Window>>> {
        let unlinked = self.unlinked.all();
        self.by_service.read().windows.values().map(Arc::clone).chain(unlinked).collect()
    }

    /// Makes windows that have waited for a link those of this one, of this size, and returns them. Where a call that
    /// found the link has come first there is a window, which takes what they keep, and waits for room are over.
    pub(super) fn adopt(
        &self,
        link: LinkId,
        size: Option<Size>,
        unlinked: Vec<(u64, Arc<Mutex<Window>>)>,
    ) -> (Vec<Arc<Mutex<Window>>>, Vec<RoomWait>) {
        let mut by_service = self.by_service.write();
        let mut rooms = Vec::new();
        let adopt = |(service, window): (u64, Arc<Mutex<Window>>)| {
            let known = by_service.entry((link, service), || Arc::clone(&window));
            let mut state = window.lock();
            if Arc::ptr_eq(&known, &window) {
                state.size = size;
            } else {
                rooms.extend(std::mem::take(&mut state.room_waits).into_values());
                known.lock().take_over(&mut state);
            }
            drop(state);
            known
        };
        let adopted = unlinked.into_iter().map(adopt).collect();
        (adopted, rooms)
    }

    /// One request more waits.
    pub(super) fn more(&self) {
        self.waiting.fetch_add(1, SeqCst);
    }

    /// So many requests wait no longer.
    pub(super) fn fewer(&self, count: usize) {
        if count > 0 && self.waiting.fetch_sub(count, SeqCst) == count {
            let idle = std::mem::take(&mut *self.idle.lock());
            idle.into_iter().for_each(|completer| completer.complete(Ok(())));
        }
    }

    /// The link has ended: what waits for room on it will never be sent, and who waits for room waits in vain.
    #[must_use]
    fn end(&self, link: LinkId) -> Ended {
        let ended: Vec<_> = {
            let mut by_service = self.by_service.write();
            by_service.counts.remove(&link);
            by_service.windows.extract_if(|(of, _), _| *of == link).map(|(_, window)| window).collect()
        };
        let mut all = Ended::default();
        ended.iter().for_each(|window| all.add(window));
        all
    }
}

/// What a callee's word has changed, which has begun some requests.
#[derive(Default)]
pub(super) struct Begun {
    /// What one-way calls among them were to fill.
    filling: Vec<Name>,
    /// Somebody waits for the room that they have made.
    somebody_waits: bool,
}

/// The rest of windows that have ended.
#[derive(Default)]
pub(super) struct Ended {
    /// One-way calls that were sent, of which the callee has not said that they have begun.
    one_way: Vec<OneWay>,
    unsent: Vec<Leaving>,
    rooms: Vec<RoomWait>,
}

impl Ended {
    /// Ends a window.
    pub(super) fn add(&mut self, window: &Mutex<Window>) {
        let mut window = window.lock();
        window.is_over = true;
        self.one_way.extend(std::mem::take(&mut window.one_way).into_iter().map(|(_, one_way)| *one_way));
        self.unsent.extend(std::mem::take(&mut window.waiting));
        self.rooms.extend(std::mem::take(&mut window.room_waits).into_values());
    }

    /// The numbers of the requests that were not sent.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.unsent.iter().map(|request| request.message.envelope.correlation)
    }
}

impl Shared {
    pub(super) fn window_size(&self, window: &Window) -> Size {
        window.size.unwrap_or_else(|| Size::among(self.table().len()))
    }

    /// Sends a request, now or when there is a link, and room for it.
    pub(super) fn send_request(self: &Arc<Self>, link: Option<LinkId>, mut request: Leaving) -> Result<()> {
        let Some(link) = link else { return self.wait_for_link(request) };
        let size = || self.attached.speaks(request.to, link).map(|_| Size::of_guests());
        let window = self.calls.windows.of(request.to, link, request.message.envelope.context, size);
        let window = window.map_err(|error| self.about(error, request.to))?;
        let (bytes, is_one_way) = (request.bytes(), request.one_way.is_some());
        {
            let mut state = window.lock();
            if state.is_sending || !state.waiting.is_empty() || !state.has_room(bytes, self.window_size(&state)) {
                drop(state);
                return self.wait_for_room(link, &window, request);
            }
            state.enter(bytes, &mut request);
        }
        let sent = self.node.dispatch(link, request.message, Hold::Capture);
        let (unsent, others_wait) = {
            let mut state = window.lock();
            (state.sent(sent.is_ok()), state.somebody_waits())
        };
        // One that is not there any more went with the link, and was told of.
        let is_told = is_one_way && sent.is_err() && unsent.is_none();
        match &sent {
            // The window may have been made after those of the link were ended.
            Err(error) if self.node.link(link).is_err() => self.end_windows(link, error),
            // Others may have come meanwhile, and left it to the mark.
            _ if others_wait => self.send_waiting(link, &window),
            _ => {}
        }
        if is_told { Ok(()) } else { sent.map(drop) }
    }

    fn wait_for_room(&self, link: LinkId, window: &Mutex<Window>, request: Leaving) -> Result<()> {
        let message = self.captured(request.message)?;
        {
            let mut state = window.lock();
            if state.is_over {
                return Err(self.about(Error::new(ErrorKind::PeerLost, "the link has ended"), request.to));
            }
            state.keep(Leaving { message, ..request })?;
            self.calls.windows.more();
        }
        self.send_waiting(link, window);
        Ok(())
    }

    /// The request, with copies of what its caller may change.
    pub(super) fn captured(&self, message: Outgoing) -> Result<Outgoing> {
        let capture = |part: Part| {
            let mode = if part.mode() == Mode::Copy { Mode::Move } else { part.mode() };
            self.capture(part).map(|tensor| Part::new(tensor, mode))
        };
        Ok(Outgoing { parts: message.parts.into_iter().map(capture).collect::<Result<_>>()?, ..message })
    }

    /// The callee has begun requests of this window, of which the window has been told.
    pub(super) fn requests_begun(&self, link: LinkId, service: u64, begun: &Begun) {
        if !begun.filling.is_empty() {
            self.references.filling_ended(&begun.filling);
        }
        if begun.somebody_waits
            && let Some(window) = self.calls.windows.find(link, service)
        {
            self.send_waiting(link, &window);
        }
    }

    /// Sends what there is room for, and tells who waits for some.
    pub(super) fn send_waiting(&self, link: LinkId, window: &Mutex<Window>) {
        loop {
            let (due, next, asks) = {
                let mut state = window.lock();
                if !state.somebody_waits() {
                    return;
                }
                let size = self.window_size(&state);
                let (due, next) = (state.take_due(size), state.next(size));
                let asks = if next.is_none() { state.asks(size) } else { None };
                (due, next, asks)
            };
            self.calls.windows.end_rooms(due, &Ok(()));
            if let Some(service) = asks {
                let envelope = Envelope { correlation: ASKS, ..Envelope::of(ROOM, Tag(service), 0) };
                let question = Outgoing::control(envelope, Vec::new());
                // Where the link has ended nobody waits for room.
                let _ = self.node.isend(link, question);
            }
            let Some(request) = next else { return };
            let sent = self.send_late(link, request);
            let unsent = window.lock().sent(sent.is_ok());
            if let (Err(error), Some(one_way)) = (sent, unsent) {
                self.one_way_failed(&one_way, &error, false);
            }
            self.calls.windows.fewer(1);
        }
    }

    /// Sends a request that has waited for room, if anybody still waits for its answer.
    fn send_late(&self, link: LinkId, request: Leaving) -> Result<()> {
        let Leaving { to, mut message, until, runs_anyway, refs, .. } = request;
        let correlation = message.envelope.correlation;
        let is_wanted = || runs_anyway || self.calls.pending.lock().contains_key(&correlation);
        let sent = if is_wanted() {
            message.envelope.aux = super::patience_ms(until, clock::now());
            self.node.dispatch(link, message, Hold::Capture).map(drop)
        } else {
            Err(Error::new(ErrorKind::Cancelled, "nobody waits for it"))
        };
        let Err(error) = sent else {
            if !is_wanted() {
                // The word that it is cancelled may have gone before it.
                self.say_cancelled(link, correlation);
            }
            return Ok(());
        };
        self.references.take_back(to, refs.iter().map(Ref::name));
        let error = self.explain(self.death_of(to).unwrap_or(error));
        if let Some(call) = self.calls.take(correlation) {
            call.end(error.clone());
        }
        Err(error)
    }

    /// The link has ended for that reason, and its calls with it.
    pub(super) fn end_windows(&self, link: LinkId, reason: &Error) {
        self.end_kept(self.calls.windows.end(link), reason);
    }

    /// Ends what was left in windows.
    pub(super) fn end_kept(&self, ended: Ended, reason: &Error) {
        let Ended { one_way, unsent, rooms } = ended;
        unsent.iter().for_each(|request| self.references.take_back(request.to, request.refs.iter().map(Ref::name)));
        one_way.iter().for_each(|one_way| self.one_way_failed(one_way, reason, true));
        let unsent_one_way = unsent.iter().filter_map(|request| request.one_way.as_deref());
        unsent_one_way.for_each(|one_way| self.one_way_failed(one_way, reason, false));
        self.calls.windows.fewer(unsent.len());
        self.fail_rooms(rooms, reason);
    }

    /// Blocks until no request waits for room, for as long as some get it, and for `stalled` while none does.
    pub(crate) fn send_all_waiting(&self, stalled: Duration) {
        let windows = &self.calls.windows;
        loop {
            let (completer, idle) = self.node.pair(IDLE, None);
            windows.idle.lock().push(completer);
            let waiting = windows.waiting.load(SeqCst);
            if waiting == 0 {
                return;
            }
            let waited = idle.wait_until(Some(clock::now() + stalled), None);
            if waited.unwrap_or(true) || windows.waiting.load(SeqCst) >= waiting {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_tensor::{Dtype, Tensor};

    fn request(length_bytes: u64) -> Leaving {
        // Nobody writes to it, so it takes no memory.
        let tensor = Tensor::private(Dtype::U8, [length_bytes]).expect("it is only reserved");
        let message = Outgoing::tensor(Envelope::of(3, Tag(1), 1), tensor, Mode::Move);
        Leaving { to: NodeId(1), message, until: None, runs_anyway: false, refs: Refs::new(), one_way: None }
    }

    #[test]
    fn f15_requests_that_wait_for_room_are_bounded_in_bytes_and_in_number() {
        const GIB: u64 = 1 << 30;
        let mut window = Window::default();
        window.keep(request(limits::OUTBOUND_BYTES_MAX + 1)).expect("a single one is let in");
        assert_eq!(window.keep(request(1)).expect_err("no room").kind(), ErrorKind::LimitExceeded);
        assert!(window.take_first().is_some());
        for _ in 0..limits::OUTBOUND_BYTES_MAX / GIB {
            window.keep(request(GIB)).expect("there is room");
        }
        assert_eq!(window.keep(request(1)).expect_err("no room").kind(), ErrorKind::LimitExceeded);
        assert!(std::iter::from_fn(|| window.take_first()).count() > 0 && window.waiting_bytes == 0);
        (0..limits::OUTBOUND_MESSAGES_MAX).for_each(|_| window.keep(request(1)).expect("there is room"));
        assert_eq!(window.keep(request(1)).expect_err("no room").kind(), ErrorKind::LimitExceeded);
    }
}
