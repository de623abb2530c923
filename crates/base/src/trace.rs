//! What a node did and when: a bounded store of small events that any thread may write to without waiting.
//!
//! A [`Trace`] holds a fixed number of slots of 32 bytes. Recording claims an index, fills that slot and publishes it.
//! When all slots are taken, later events are dropped and counted; the traced operation neither waits nor fails.
//! While a trace is off, recording is one relaxed load and one branch: not even the clock is read.
//!
//! **Why no lock is needed.** `claimed` only grows, so an index is handed out once and each slot has one writer in all
//! its life. The writer stores the slot's last word, which is never zero, with release order after the three others; a
//! reader that loads it with acquire order and finds it not zero therefore sees the whole event, and it takes a zero
//! for an event that is still being written. The count of dropped events is how far `claimed` went beyond the slots,
//! and so it is exact.
//!
//! ```
//! use sheave_base::LinkId;
//! use sheave_base::clock::SystemClock;
//! use sheave_base::trace::{Process, Trace};
//! use std::sync::Arc;
//!
//! # fn main() -> sheave_base::Result<()> {
//! let trace = Trace::new(1024, Arc::new(SystemClock::default()));
//! let (send, lane) = (trace.name("send"), trace.lane("main"));
//! {
//!     let mut span = trace.span(lane, send);
//!     span.link(LinkId(3)).value(4096);
//!     // What is done here is what takes the span's time.
//! }
//! trace.instant(lane, trace.name("retry"), None, 1);
//! assert_eq!((trace.recorded(), trace.dropped()), (2, 0));
//!
//! let process = Process { pid: 4242, name: "worker-1".into(), clock_offset_ns: 0 };
//! let mut json = Vec::new();
//! trace.export(&process, &mut json)?;
//! assert!(String::from_utf8_lossy(&json).contains(r#""name":"send","ph":"X""#));
//! # Ok(())
//! # }
//! ```

mod export;

use std::fmt;
use std::time::Duration;

use crate::LinkId;
use crate::clock::{Clock, ManualClock, Time};
use crate::limits::{TRACE_EVENTS_MAX, TRACE_LANES_MAX, TRACE_NAMES_MAX};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
pub use export::{Process, merge, wall_clock_offset_ns};

/// What an event is called, as its [`Trace`] knows it. The default is `other`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Name(u16);

/// The row in which an event is shown, usually one per thread, as its [`Trace`] knows it. The default is `other`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lane(u16);

/// What the first name and the first lane are called, which also stand for all that found no room.
const OTHER: &str = "other";

/// What part of an operation an event marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Something begins that an [`Phase::End`] of the same lane ends; pairs are nested.
    Begin,
    /// The latest thing that began in this lane ends.
    End,
    /// Something without an extent in time.
    Instant,
    /// Something that began at the event's time and took so long. Longer than two years counts as two years.
    Complete(Duration),
}

/// One entry of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it happened or began, by the trace's clock.
    pub time: Time,
    /// What part of an operation it marks.
    pub phase: Phase,
    /// What it is called.
    pub name: Name,
    /// Where it is shown.
    pub lane: Lane,
    /// The link that it is about. `LinkId(u32::MAX)` counts as none.
    pub link: Option<LinkId>,
    /// A number that belongs to it: bytes, a sequence, a count.
    pub value: u64,
}

/// Words of a slot: time; name, lane and link; value; duration and phase. The last is zero until all are there.
#[derive(Default)]
struct Slot([AtomicU64; 4]);

const NO_LINK: u32 = u32::MAX;
const DURATION_NS_MAX: u64 = u64::MAX >> 8;
const BEGIN: u64 = 1;
const END: u64 = 2;
const INSTANT: u64 = 3;
const COMPLETE: u64 = 4;

impl Slot {
    fn publish(&self, event: &Event) {
        let (phase, duration_ns) = match event.phase {
            Phase::Begin => (BEGIN, 0),
            Phase::End => (END, 0),
            Phase::Instant => (INSTANT, 0),
            Phase::Complete(duration) => {
                (COMPLETE, u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).min(DURATION_NS_MAX))
            }
        };
        let link = event.link.map_or(NO_LINK, |link| link.0);
        let what = u64::from(event.name.0) << 48 | u64::from(event.lane.0) << 32 | u64::from(link);
        let [time, whats, value, last] = &self.0;
        time.store(event.time.0, Ordering::Relaxed);
        whats.store(what, Ordering::Relaxed);
        value.store(event.value, Ordering::Relaxed);
        last.store(duration_ns << 8 | phase, Ordering::Release);
    }

    /// `None` while nobody has published it.
    fn read(&self) -> Option<Event> {
        let [time, what, value, last] = &self.0;
        let last = last.load(Ordering::Acquire);
        let phase = match last & 0xff {
            BEGIN => Phase::Begin,
            END => Phase::End,
            INSTANT => Phase::Instant,
            COMPLETE => Phase::Complete(Duration::from_nanos(last >> 8)),
            _ => return None,
        };
        let [name_high, name_low, lane_high, lane_low, link @ ..] = what.load(Ordering::Relaxed).to_be_bytes();
        let link = u32::from_be_bytes(link);
        Some(Event {
            time: Time(time.load(Ordering::Relaxed)),
            phase,
            name: Name(u16::from_be_bytes([name_high, name_low])),
            lane: Lane(u16::from_be_bytes([lane_high, lane_low])),
            link: (link != NO_LINK).then_some(LinkId(link)),
            value: value.load(Ordering::Relaxed),
        })
    }
}

/// The events of one node. Shared by reference; nothing that it does can fail or make its caller wait for a peer.
pub struct Trace {
    on: AtomicBool,
    claimed: AtomicU64,
    slots: Box<[Slot]>,
    names: Mutex<Vec<&'static str>>,
    lanes: Mutex<Vec<String>>,
    clock: std::sync::Arc<dyn Clock>,
}

impl Trace {
    /// A trace that is off and has no room either: what a node holds that is not traced.
    #[must_use]
    pub fn off() -> Self {
        Self::made(false, 0, std::sync::Arc::new(ManualClock::default()))
    }

    /// A trace that is on, with room for `capacity_events`, at most [`TRACE_EVENTS_MAX`]. It takes 32 bytes per event
    /// now and no more later.
    #[must_use]
    pub fn new(capacity_events: usize, clock: std::sync::Arc<dyn Clock>) -> Self {
        Self::made(true, capacity_events.min(TRACE_EVENTS_MAX), clock)
    }

    fn made(on: bool, capacity_events: usize, clock: std::sync::Arc<dyn Clock>) -> Self {
        Self {
            on: AtomicBool::new(on),
            claimed: AtomicU64::new(0),
            slots: (0..capacity_events).map(|_| Slot::default()).collect(),
            names: Mutex::new(vec![OTHER]),
            lanes: Mutex::new(vec![OTHER.to_owned()]),
            clock,
        }
    }

    /// Whether events are recorded now.
    #[inline]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Begins or stops recording. A thread that is recording at this moment may still finish its event.
    pub fn switch(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// The name of this text; the same text always has the same name. Takes a lock: ask once, not for each event. After
    /// [`TRACE_NAMES_MAX`] names every further one is `other`.
    pub fn name(&self, text: &'static str) -> Name {
        let mut names = self.names.lock();
        let known = names.iter().position(|known| *known == text);
        Name(index(known, &mut names, TRACE_NAMES_MAX, || text))
    }

    /// The lane of this title; the same title always has the same lane. Takes a lock: ask once, not for each event.
    /// After [`TRACE_LANES_MAX`] lanes every further one is `other`.
    pub fn lane(&self, title: &str) -> Lane {
        let mut lanes = self.lanes.lock();
        let known = lanes.iter().position(|known| known == title);
        Lane(index(known, &mut lanes, TRACE_LANES_MAX, || title.to_owned()))
    }

    /// Records an event whose time is known. Never blocks.
    #[inline]
    pub fn record(&self, event: &Event) {
        if self.is_on() {
            self.push(event);
        }
    }

    /// Records that something begins now.
    #[inline]
    pub fn begin(&self, lane: Lane, name: Name, link: Option<LinkId>, value: u64) {
        self.now(Phase::Begin, lane, name, link, value);
    }

    /// Records that what began last in this lane ends now.
    #[inline]
    pub fn end(&self, lane: Lane, name: Name, link: Option<LinkId>, value: u64) {
        self.now(Phase::End, lane, name, link, value);
    }

    /// Records that something happens now.
    #[inline]
    pub fn instant(&self, lane: Lane, name: Name, link: Option<LinkId>, value: u64) {
        self.now(Phase::Instant, lane, name, link, value);
    }

    /// Records, when the span is dropped, that something took from now until then. It takes one slot, so that a full
    /// trace loses it as a whole, and is therefore to be preferred to [`Trace::begin`] and [`Trace::end`].
    #[inline]
    pub fn span(&self, lane: Lane, name: Name) -> Span<'_> {
        let open = self.is_on().then(|| Open { trace: self, start: self.clock.now() });
        Span { open, lane, name, link: None, value: 0 }
    }

    #[inline]
    fn now(&self, phase: Phase, lane: Lane, name: Name, link: Option<LinkId>, value: u64) {
        if self.is_on() {
            self.push(&Event { time: self.clock.now(), phase, name, lane, link, value });
        }
    }

    fn push(&self, event: &Event) {
        // Relaxed: the index is all that is agreed on here; the slot's own last word publishes the event.
        let index = self.claimed.fetch_add(1, Ordering::Relaxed);
        if let Some(slot) = usize::try_from(index).ok().and_then(|index| self.slots.get(index)) {
            slot.publish(event);
        }
    }

    /// Events that found room, those included that are being written at this moment.
    #[must_use]
    pub fn recorded(&self) -> u64 {
        self.claimed.load(Ordering::Relaxed).min(self.slots.len() as u64)
    }

    /// Events that found none and are lost.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.claimed.load(Ordering::Relaxed).saturating_sub(self.slots.len() as u64)
    }

    /// The events so far, in the order in which they found room. Others may go on recording; an event that is being
    /// written at this moment is left out.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        let taken = usize::try_from(self.recorded()).unwrap_or(self.slots.len());
        self.slots[..taken].iter().filter_map(Slot::read).collect()
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = formatter.debug_struct("Trace");
        text.field("on", &self.is_on()).field("recorded", &self.recorded()).field("dropped", &self.dropped());
        text.finish_non_exhaustive()
    }
}

/// The place of a text in its table, to which it is added when it is new and there is room.
fn index<T>(known: Option<usize>, table: &mut Vec<T>, length_max: usize, text: impl FnOnce() -> T) -> u16 {
    let index = known.or_else(|| {
        let has_room = table.len() < length_max;
        has_room.then(|| {
            table.push(text());
            table.len() - 1
        })
    });
    index.and_then(|index| u16::try_from(index).ok()).unwrap_or_default()
}

struct Open<'a> {
    trace: &'a Trace,
    start: Time,
}

/// Something that is going on; recorded as one event when dropped. Made by [`Trace::span`].
#[must_use = "a span that is dropped at once takes no time"]
pub struct Span<'a> {
    open: Option<Open<'a>>,
    lane: Lane,
    name: Name,
    link: Option<LinkId>,
    value: u64,
}

impl Span<'_> {
    /// The link that it is about.
    pub fn link(&mut self, link: LinkId) -> &mut Self {
        self.link = Some(link);
        self
    }

    /// A number that belongs to it.
    pub fn value(&mut self, value: u64) -> &mut Self {
        self.value = value;
        self
    }
}

impl Drop for Span<'_> {
    fn drop(&mut self) {
        if let Some(Open { trace, start }) = self.open {
            let phase = Phase::Complete(trace.clock.now().since(start));
            let Self { lane, name, link, value, .. } = *self;
            trace.record(&Event { time: start, phase, name, lane, link, value });
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::Arc;

    fn event(number: u32) -> Event {
        Event {
            time: Time(u64::from(number)),
            phase: Phase::Complete(Duration::from_nanos(u64::from(number))),
            name: Name::default(),
            lane: Lane::default(),
            link: Some(LinkId(number)),
            value: u64::from(number),
        }
    }

    /// Two writers and a reader: nothing torn is ever seen, and afterwards nothing is lost but what is counted.
    fn writers_and_a_reader(capacity_events: usize) {
        loom::model(move || {
            let trace = Arc::new(Trace::new(capacity_events, std::sync::Arc::new(ManualClock::default())));
            let writers = [1, 2].map(|number| {
                let trace = Arc::clone(&trace);
                loom::thread::spawn(move || trace.record(&event(number)))
            });
            for seen in trace.events() {
                assert_eq!(seen, event(u32::try_from(seen.value).expect("it was 1 or 2")));
            }
            for writer in writers {
                writer.join().expect("no panic");
            }
            assert_eq!(trace.events().len(), capacity_events.min(2));
            assert_eq!(trace.recorded() + trace.dropped(), 2);
        });
    }

    #[test]
    fn loom_trace_with_room() {
        writers_and_a_reader(2);
    }

    #[test]
    fn loom_trace_that_is_full() {
        writers_and_a_reader(1);
    }
}
