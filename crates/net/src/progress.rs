//! Who makes progress, and who sleeps.
//!
//! **Spinning.** A thread that waits polls the links that can end its wait, on its own time. While it does, each of
//! those links counts it as a *poller*: nobody arms their doorbells and the progress thread leaves them alone, so that
//! a message reaches exactly the thread that waits for it.
//!
//! **Sleeping.** At most one thread sleeps on the node's descriptors: the *leader*. It arms every link that has no
//! poller, looks once more, and sleeps in `epoll_wait`. Other sleepers are followers; the completion of their own work
//! wakes them, or a leader that leaves and promotes one of them. Traffic brings more traffic: a leader that was woken
//! and whose own wait is not over does not sleep again at once but spins, as a poller of all links, for as long as
//! waits spin after the last message. So a node whose threads all wait, for the next call say, is not woken for each.
//! It leaves links to other pollers where there are some, and looks at the descriptors and its interrupt every 2 ms.
//!
//! **Waits within waits.** What a poll finds may wait in its turn, for a work of this node, of another one or of none.
//! Before that wait sleeps, its thread counts as a poller of nothing and leads nothing ([`crate::polling`]): links go
//! from (a) to (b) or (c) below as if the outer waits had ended, and do so back when the inner one has. A leader that
//! has lost the lead so does not sleep on the descriptors, where it might hear what is rung for its successor; if it
//! may have heard some already, it rings again.
//!
//! **The progress thread** leads when nobody else does. A caller that needs the lead takes it away and rings once;
//! afterwards the progress thread is *masked*. While callers are active it only ticks, every 2 ms, to see whether they
//! still are; if a caller sleeps as leader it sleeps too, until that caller leaves. So between two calls of a busy user
//! no thread hand-over happens, and at most one tick later somebody serves the links again. Callers that keep at it
//! from tick to tick, none of which finds anything, are looked after every 8 ms; whoever begins something that nobody
//! waits for calls for the next tick at once. Where it finds the polled endpoint at work that nobody waits for, as a
//! long collective operation is whose caller computes meanwhile, it polls on for as long as a wait would, until one
//! begins: peers' steps follow each other, and a ring and a sleep for each would take longer than they do.
//!
//! **No lost message.** Every link is at any time (a) being polled, (b) armed by a leader that looked after arming, or
//! (c) covered by the next tick. (a) → (b): a poller that leaves while somebody leads arms the link itself and looks
//! once more; it decrements the poller count before it reads who leads, and a leader announces itself before it reads
//! poller counts, both sequentially consistent, so at least one of the two arms. (a) → (c): the progress thread goes
//! from ticking to leading only, never to a long sleep, while no caller leads.

mod lead;

use crate::doorbell::Doorbell;
use lead::Lead;
use rustix::event::epoll;
use sheave_base::collections::HashMap;
use sheave_base::park::{Bell, Parker};
#[cfg(feature = "simulated")]
use sheave_base::simulated;
use sheave_base::{Error, Result};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Waits after which callers count as busy and the progress thread is told to step back.
const HOT_WAITS: u32 = 16;

/// Something whose descriptor the leader watches.
pub(crate) trait Watched: Send + Sync {
    /// The descriptor is ready. Never blocks.
    fn ready(&self);
}

/// The waiting machinery of one node.
pub(crate) struct Progress {
    epoll: OwnedFd,
    pub(crate) doorbell: Arc<Doorbell>,
    bell: Arc<dyn Bell>,
    watched: Mutex<HashMap<u64, Arc<dyn Watched>>>,
    next_watch: AtomicU64,
    lead: Lead,
    /// Grows with every wait of a caller.
    activity: AtomicU64,
    heat: AtomicU32,
    /// The progress thread leaves the links alone for longer than [`PAUSE_MIN`].
    patient: AtomicBool,
}

/// How long the progress thread leaves the links to busy callers before it looks at them: at first, and when callers
/// have kept at it and nothing was ever found. Each look takes a core from a caller for some 20 µs, which is seen in
/// the slowest of a hundred round trips if it comes too often.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(8);

/// Waits within a pause that make the next one longer.
const BUSY_WAITS: u64 = 32;

/// What the progress thread remembers from turn to turn.
pub(crate) struct Rhythm {
    /// Waits of callers that it knows of.
    waits: u64,
    pause: Duration,
}

impl Default for Rhythm {
    fn default() -> Self {
        Self { waits: 0, pause: PAUSE_MIN }
    }
}

impl Rhythm {
    /// A look at the links that nobody polls has found something, or nothing.
    pub(crate) fn looked(&mut self, found: bool) {
        if found {
            self.pause = PAUSE_MIN;
        }
    }
}

/// The doorbell's key among the watched descriptors.
const DOORBELL: u64 = 0;

impl Progress {
    pub(crate) fn new() -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| Error::from(errno).context("making the node's epoll"))?;
        let doorbell = Arc::new(Doorbell::new()?);
        epoll::add(&epoll, &*doorbell, epoll::EventData::new_u64(DOORBELL), epoll::EventFlags::IN)?;
        Ok(Self {
            epoll,
            bell: doorbell.clone(),
            doorbell,
            watched: Mutex::default(),
            next_watch: AtomicU64::new(DOORBELL + 1),
            lead: Lead::default(),
            activity: AtomicU64::new(0),
            heat: AtomicU32::new(0),
            patient: AtomicBool::new(false),
        })
    }

    /// Watches a descriptor for readability. The key stays valid until [`Progress::unwatch`], which must come before
    /// the descriptor is closed.
    pub(crate) fn watch(&self, descriptor: BorrowedFd<'_>, target: Arc<dyn Watched>) -> Result<u64> {
        let key = self.next_watch.fetch_add(1, Relaxed);
        self.watched.lock().insert(key, target);
        let added = epoll::add(&self.epoll, descriptor, epoll::EventData::new_u64(key), epoll::EventFlags::IN);
        if let Err(errno) = added {
            self.watched.lock().remove(&key);
            return Err(Error::from(errno).context("watching a descriptor"));
        }
        Ok(key)
    }

    /// Changes what a descriptor is watched for.
    pub(crate) fn rewatch(&self, key: u64, descriptor: BorrowedFd<'_>, interest: Interest) {
        let flags = match interest {
            // A hang-up is reported whatever is asked for; so that it does not keep the leader awake, once at most.
            Interest::Nothing => epoll::EventFlags::ONESHOT,
            Interest::Read => epoll::EventFlags::IN,
            Interest::ReadWrite => epoll::EventFlags::IN | epoll::EventFlags::OUT,
        };
        // It fails only for a descriptor that was unwatched meanwhile, by the link's end.
        let _ = epoll::modify(&self.epoll, descriptor, epoll::EventData::new_u64(key), flags);
    }

    /// Stops watching.
    pub(crate) fn unwatch(&self, key: u64, descriptor: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, descriptor);
        let target = self.watched.lock().remove(&key);
        drop(target);
    }

    /// Sleeps on the descriptors for at most `timeout` and serves those that are ready. True when there were any.
    /// `parker` is the caller's; a notification ends the sleep.
    pub(crate) fn sleep(&self, timeout: Duration, parker: Option<&Parker>) -> bool {
        let may_sleep = parker.is_none_or(|parker| parker.enter_elsewhere(&self.bell));
        let timeout = if may_sleep { timeout } else { Duration::ZERO };
        let mut events: [MaybeUninit<epoll::Event>; 64] = [const { MaybeUninit::uninit() }; 64];
        let found = self.wait_for_events(&mut events, timeout);
        if let Some(parker) = parker {
            parker.leave_elsewhere();
        }
        for event in &events[..found] {
            // SAFETY: `wait` initialised the first `found` entries.
            let key = unsafe { event.assume_init_ref() }.data.u64();
            self.serve(key);
        }
        found > 0
    }

    /// Waits for events for at most `timeout`, and returns how many it has put into `events`.
    fn wait_for_events(&self, events: &mut [MaybeUninit<epoll::Event>], timeout: Duration) -> usize {
        #[cfg(feature = "simulated")]
        if let Some(system) = simulated::current() {
            let found = self.take_events(events, Duration::ZERO);
            if found > 0 || timeout.is_zero() {
                return found;
            }
            system.wait_for_descriptors(simulated::until(&*system, Some(timeout)));
            return self.take_events(events, Duration::ZERO);
        }
        self.take_events(events, timeout)
    }

    fn take_events(&self, events: &mut [MaybeUninit<epoll::Event>], timeout: Duration) -> usize {
        // Rounded up to a millisecond by the kernel's older interface, which serves every kernel.
        let limit = rustix::event::Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()) as _,
        };
        // EINTR ends the sleep too, so that the caller asks its interrupt.
        epoll::wait(&self.epoll, events, Some(&limit)).map_or(0, |(ready, _)| ready.len())
    }

    /// Drops everything that is watched, for a node that ends.
    pub(crate) fn forget_all(&self) {
        let watched = std::mem::take(&mut *self.watched.lock());
        drop(watched);
    }

    fn serve(&self, key: u64) {
        if key == DOORBELL {
            self.doorbell.silence();
            return;
        }
        let target = self.watched.lock().get(&key).cloned();
        if let Some(target) = target {
            target.ready();
        }
    }

    /// A caller begins to wait. When callers are busy, the progress thread loses the lead.
    pub(crate) fn note_activity(&self) {
        // One that is lost where two begin at once is missed by nobody: it only tells that there are some.
        self.activity.store(self.activity.load(Relaxed).wrapping_add(1), Relaxed);
        if self.lead.is_with_thread() && self.heat.fetch_add(1, Relaxed) >= HOT_WAITS {
            self.lead.take_from_thread(&*self.doorbell);
        }
    }

    /// The number of waits that callers have begun, more or less.
    pub(crate) fn waits(&self) -> u64 {
        self.activity.load(Relaxed)
    }

    /// Makes whoever sleeps look at the links again: there is something new that no link was armed for.
    pub(crate) fn ring(&self) {
        self.doorbell.ring();
        self.hurry();
    }

    /// As [`Progress::ring`], but costs nothing while nobody sleeps.
    pub(crate) fn call(&self) {
        if self.is_led() {
            self.doorbell.ring();
        }
        self.hurry();
    }

    /// Something was begun that nobody may wait for: the progress thread looks at the links soon.
    pub(crate) fn hurry(&self) {
        if self.patient.load(SeqCst) && self.patient.swap(false, SeqCst) {
            self.wake_thread();
        }
    }

    /// Wakes the progress thread, wherever it sleeps.
    pub(crate) fn wake_thread(&self) {
        self.lead.thread.unpark();
    }

    /// True while somebody leads, so that links without a poller must be armed.
    pub(crate) fn is_led(&self) -> bool {
        self.lead.is_taken()
    }

    /// Tries to make the calling thread the leader.
    pub(crate) fn lead(&self) -> bool {
        self.lead.take(&*self.doorbell)
    }

    /// Registers a follower; it must try [`Progress::lead`] once more before it sleeps.
    pub(crate) fn follow(&self, parker: &Arc<Parker>) {
        self.lead.follow(parker);
    }

    pub(crate) fn unfollow(&self, parker: &Arc<Parker>) {
        self.lead.unfollow(parker);
    }

    /// The calling thread stops leading. Somebody else is promoted.
    pub(crate) fn step_down(&self) {
        self.lead.step_down(&*self.doorbell);
    }

    /// If nobody leads, wakes a follower or, failing that, the progress thread if it sleeps for long.
    pub(crate) fn promote(&self) {
        self.lead.promote(&*self.doorbell);
    }

    /// One turn of the progress thread: leads, ticks or rests, for at most `limit`.
    ///
    /// `busy` says that a caller polls right now.
    pub(crate) fn thread_turn(
        &self,
        rhythm: &mut Rhythm,
        limit: Duration,
        busy: bool,
        arm: impl FnOnce() -> bool,
    ) -> Turn {
        let activity = self.activity.load(Relaxed);
        let waits = activity.wrapping_sub(std::mem::replace(&mut rhythm.waits, activity));
        let quiet = waits == 0 && !busy;
        rhythm.pause = if waits < BUSY_WAITS { PAUSE_MIN } else { (rhythm.pause * 2).min(PAUSE_MAX) };
        if quiet && self.lead.begin_thread() {
            self.heat.store(0, Relaxed);
            let woken = if arm() { self.sleep(limit, None) } else { self.sleep(Duration::ZERO, None) };
            self.lead.end_thread(&*self.doorbell);
            return Turn::Led { woken };
        }
        if !quiet || !self.is_led() {
            self.pause(rhythm, limit);
            if !self.is_led() {
                self.look();
            }
            return Turn::Ticked;
        }
        self.lead.rest(limit);
        Turn::Rested
    }

    /// Handles what is ready, without a wait. A ring that was heard may have been for a caller that has taken the lead
    /// meanwhile, and sleeps: it is rung again.
    fn look(&self) {
        if self.sleep(Duration::ZERO, None) && self.is_led() {
            self.doorbell.ring();
        }
    }

    /// The progress thread has come out of a turn by a panic: if it led, it leads no more.
    pub(crate) fn thread_lets_go(&self) {
        self.lead.thread_lets_go(&*self.doorbell);
    }

    /// Leaves the links to busy callers for a while, unless somebody is in a hurry.
    fn pause(&self, rhythm: &mut Rhythm, limit: Duration) {
        let is_long = rhythm.pause > PAUSE_MIN;
        self.patient.store(is_long, SeqCst);
        self.lead.thread.park(Some(rhythm.pause.min(limit)));
        if is_long && !self.patient.swap(false, SeqCst) {
            rhythm.pause = PAUSE_MIN;
        }
    }
}

/// What the progress thread did in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It led; `woken` says whether by traffic.
    Led { woken: bool },
    /// It looked whether callers are still busy.
    Ticked,
    /// It slept because a caller leads.
    Rested,
}

/// What a descriptor is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Nothing: somebody else reads it.
    Nothing,
    /// Bytes to read.
    Read,
    /// Bytes to read or room to write.
    ReadWrite,
}

/// The least of some optional points in time, as a span from now.
pub(crate) fn span_until(now: Instant, limit: Duration, until: Option<Instant>) -> Duration {
    until.map_or(limit, |until| until.saturating_duration_since(now).min(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The progress thread looks at what is ready, and a caller takes the lead, arms everything and is rung meanwhile.
    #[test]
    fn a_ring_for_the_leader_that_another_thread_hears_is_rung_again() {
        let progress = Progress::new().expect("descriptors");
        progress.ring();
        progress.look();
        assert!(!progress.sleep(Duration::ZERO, None), "nobody leads: it is nobody else's");
        assert!(progress.lead());
        progress.ring();
        progress.look();
        assert!(progress.sleep(Duration::ZERO, None), "the leader hears it");
        assert!(!progress.sleep(Duration::ZERO, None), "once");
        progress.step_down();
    }
}
