//! Waiting on the caller's thread: spin, yield, sleep. [`crate::progress`] has the argument why nothing is lost.

use crate::cores;
use crate::counters::Counters;
use crate::entry::Entry;
use crate::intake::Intake;
use crate::link::Polled;
use crate::node::{Inner, Node};
use crate::patience::Course;
use crate::pollers::Noted;
use crate::polling::Polling;
use crate::progress::{Interest, Progress, Watched, span_until};
use crate::waits::Waiting;
use sheave_base::clock;
use sheave_base::park::{Parker, current_parker};
use sheave_base::work::{Drive, IDLE, Interrupt, Target, blocking};
use sheave_base::{LinkId, Result, Work, contain};
use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Messages taken from one link before the others get a turn.
const BUDGET: usize = 16;

/// Turns of one link that a thread takes at a time which does not wait for it.
pub(crate) const SERVED_TURNS: usize = 8;

/// Looks at the only link of a wait before it is polled for the first time, and again when a message has come: about
/// as many as a round trip takes.
const LOOKS: u32 = 32;

/// A wait polls for so long at most before time, the interrupt and all descriptors are looked at, however much arrives.
const SPIN_MAX: Duration = Duration::from_millis(2);

/// How long a sleep lasts at most before the interrupt is asked and time is looked at.
const SLICE: Duration = Duration::from_millis(100);

/// How long any other sleep lasts at most.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// An interrupt is not asked more often than this.
const INTERRUPT_PAUSE: Duration = Duration::from_millis(20);

impl Drive for Inner {
    fn drive(&self, target: &dyn Target, until: Option<Instant>, interrupt: Option<Interrupt<'_>>) -> Result<bool> {
        self.fork.check("work")?;
        self.progress.note_activity();
        let mut course = self.patience.begin();
        if self.spin(&mut course, &Polling::begin(self, target.link()), target, until) {
            course.is_over();
            return Ok(true);
        }
        self.sleep_until_done(target, until, interrupt)
    }
}

/// Whether a peer of these links waits for the core that this thread polls on, or another thread polls there for the
/// same node.
fn keeps_core_from_others<'a>(inner: &'a Inner, polling: &Polling<'_>, noted: &mut Noted<'a>) -> bool {
    let Some(core) = cores::current() else { return false };
    // All of them are asked, for that tells them where this side is.
    let shared = polling.entries().iter().filter(|entry| entry.link.shares_core(core)).count();
    inner.pollers.note(noted, core) || shared > 0
}

thread_local! {
    /// The node that this thread polls a link of, or whose endpoints it lets attend; null if there is none.
    static POLLS: Cell<*const Inner> = const { Cell::new(ptr::null()) };
}

thread_local! {
    /// The node that a wait of this thread leads. It is one at most, for whoever leads and comes to sleep in one more
    /// wait [gives the lead up](take_lead) first.
    static LED: RefCell<Option<Weak<Inner>>> = const { RefCell::new(None) };
}

/// Takes the lead from the wait of this thread that has it, and returns its node, for which
/// [`Progress::step_down`](crate::progress::Progress::step_down) is to follow.
///
/// What a leader runs between two sleeps, a task for example, may wait too, for the same node or for another one. Who
/// sleeps in that wait sleeps on the descriptors of at most one of the nodes, and leads no other.
pub(crate) fn take_lead() -> Option<Arc<Inner>> {
    LED.try_with(|led| led.borrow_mut().take()).ok().flatten()?.upgrade()
}

/// A wait's part in who leads its node.
struct Leading<'a> {
    inner: &'a Inner,
}

impl Leading<'_> {
    /// Whether this thread leads the node. A wait within the last poll may have given that up.
    fn leads(&self) -> bool {
        LED.with_borrow(|led| led.as_ref().is_some_and(|led| self.inner.is_behind(led)))
    }

    fn try_to_lead(&self) -> bool {
        if self.leads() {
            return true;
        }
        let leads = self.inner.progress.lead();
        if leads {
            LED.set(Some(Weak::clone(&self.inner.weak)));
        }
        leads
    }

    /// Somebody else may lead.
    fn step_down(&self) {
        if self.leads()
            && let Some(inner) = take_lead()
        {
            inner.progress.step_down();
        }
    }
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        match self.leads() {
            true => self.step_down(),
            false => self.inner.progress.promote(),
        }
    }
}

/// This thread polls a link of a node, and lets its endpoints do what is due afterwards, until this is dropped.
pub(crate) struct Polls(*const Inner);

impl Polls {
    /// Begins that. The caller drops the returned value before its borrow of the node ends.
    pub(crate) fn begin(inner: &Inner) -> Self {
        Self(POLLS.replace(inner))
    }

    /// It sleeps first, in a wait of something that was found, until this is dropped.
    pub(crate) fn pause() -> Self {
        Self(POLLS.replace(ptr::null()))
    }

    /// Whether a poll goes on when this is dropped.
    pub(crate) fn is_pause_of_one(&self) -> bool {
        !self.0.is_null()
    }

    /// Returns the node whose poll goes on when this is dropped.
    pub(crate) fn paused(&self) -> Option<Arc<Inner>> {
        // SAFETY: the caller that has begun that poll borrows the node, further up the stack of this thread, for longer
        // than it is noted; while this lives that poll is paused, so the borrow lasts.
        let inner = unsafe { self.0.as_ref() }?;
        inner.weak.upgrade()
    }
}

impl Drop for Polls {
    fn drop(&mut self) {
        POLLS.set(self.0);
    }
}

/// The next wait of a caller, behind so many: done when it begins.
struct Callers<'a> {
    progress: &'a Progress,
    waits: u64,
}

impl Target for Callers<'_> {
    fn is_done(&self) -> bool {
        self.progress.waits() != self.waits
    }

    fn watch(&self, _: &Arc<Parker>) -> bool {
        !self.is_done()
    }

    fn unwatch(&self, _: &Arc<Parker>) {}

    fn link(&self) -> Option<LinkId> {
        None
    }

    fn operation(&self) -> &'static str {
        IDLE
    }
}

impl Node {
    /// Has [`attend`](crate::endpoint::Endpoint::attend) of the endpoint of this number called soon, as
    /// [`Node::remind`] does, and wakes a thread for that if those that look after this node sleep.
    ///
    /// Nothing is lost: the reminder is set before it is asked whether somebody leads, and whoever leads looks at the
    /// reminder before it sleeps. Where nobody leads, links are polled by waits or with the next tick.
    pub fn attend_soon(&self, number: u8) {
        self.remind(number);
        // A thread that polls a link attends by itself right after.
        if !ptr::eq(POLLS.get(), &*self.inner) {
            self.inner.progress.call();
        }
    }
}

/// Polls before the clock is read for the first time: a few microseconds.
pub(crate) const BRIEF_ROUNDS: u32 = 64;

impl Inner {
    /// Whether it is the node of this handle.
    pub(crate) fn is_behind(&self, node: &Weak<Self>) -> bool {
        std::ptr::eq(node.as_ptr(), self)
    }

    /// Polls for a moment without reading the clock. True when the work is done.
    pub(crate) fn spin_briefly<T>(&self, work: &Work<T>, link: Option<LinkId>) -> bool {
        if work.is_done() {
            return true;
        }
        self.progress.note_activity();
        let polling = Polling::begin(self, link);
        for _ in 0..if self.patience.may_keep() { BRIEF_ROUNDS } else { 1 } {
            for entry in polling.entries() {
                self.poll(entry);
            }
            polling.poll_endpoint();
            if work.is_done() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Polls until the work is done, `until` has passed, nothing has moved for as long as the course goes, or it has
    /// gone on for so long that the other descriptors must be looked at. True when the work is done.
    fn spin(
        &self,
        course: &mut Course<'_>,
        polling: &Polling<'_>,
        target: &dyn Target,
        until: Option<Instant>,
    ) -> bool {
        let (mut may_follow, mut noted) = (true, Noted::nowhere());
        loop {
            // What comes next often comes soon, and a look costs much less than a poll.
            if may_follow
                && course.may_look()
                && let Some(entry) = polling.only()
            {
                entry.link.look(LOOKS, &|| target.is_done());
            }
            let mut moved = polling.poll_endpoint();
            for entry in polling.entries().iter().filter(|entry| polling.is_ours(entry)) {
                moved |= self.poll(entry);
                if target.is_done() {
                    return true;
                }
            }
            if target.is_done() {
                return true;
            }
            if !course.goes_on(moved) || course.gives_way_in_vain() && keeps_core_from_others(self, polling, &mut noted)
            {
                return false;
            }
            may_follow = moved;
            if let (Some(begun), Some(now)) = (course.begun(), course.looked())
                && (until.is_some_and(|until| now >= until) || now.duration_since(begun) >= SPIN_MAX)
            {
                return false;
            }
        }
    }

    /// Polls for a moment, as a wait would, where the polled endpoint has something on the go that nobody waits for:
    /// its next step often comes soon, and to be rung for each costs both sides a system call and a sleep. Over as soon
    /// as a caller waits.
    pub(crate) fn linger(&self, until: Instant) {
        let callers = Callers { progress: &self.progress, waits: self.progress.waits() };
        if self.endpoints.unattended().is_some_and(|endpoint| endpoint.poll()) {
            self.spin(&mut self.patience.begin(), &Polling::lead(self), &callers, Some(until));
        }
    }

    fn sleep_until_done(
        &self,
        target: &dyn Target,
        until: Option<Instant>,
        mut interrupt: Option<Interrupt<'_>>,
    ) -> Result<bool> {
        let parker = current_parker();
        if !target.watch(&parker) {
            return Ok(true);
        }
        Counters::add(&self.counters.waits_parked, 1);
        let _blocked = blocking::begin();
        let mut waiting = self.enter_wait(target);
        let leading = Leading { inner: self };
        let mut asked: Option<Instant> = None;
        let outcome = loop {
            if target.is_done() {
                break Ok(true);
            }
            let now = clock::now();
            if until.is_some_and(|until| now >= until) {
                break Ok(false);
            }
            if let Some(interrupt) = interrupt.as_mut()
                && asked.is_none_or(|asked| now.duration_since(asked) >= INTERRUPT_PAUSE)
            {
                // It may take long, the interpreter's lock for example: somebody else must lead meanwhile.
                leading.step_down();
                asked = Some(now);
                if let Err(error) = interrupt() {
                    break Err(error);
                }
            }
            if let Some(waiting) = waiting.as_mut().filter(|waiting| waiting.is_due(now)) {
                // It asks services, and perhaps other nodes.
                leading.step_down();
                waiting.look(now, Some(&parker));
            }
            let longest = if interrupt.is_some() { SLICE } else { SLEEP_MAX };
            let longest = span_until(now, longest, waiting.as_ref().and_then(Waiting::next_at));
            self.sleep_once(target, &parker, &leading, span_until(now, longest, until));
        };
        target.unwatch(&parker);
        outcome
    }

    fn sleep_once(&self, target: &dyn Target, parker: &Arc<Parker>, leading: &Leading<'_>, limit: Duration) {
        if leading.try_to_lead() {
            let now = clock::now();
            let is_quiet = self.arm_all() && !target.is_done();
            if !leading.leads() {
                // A wait within that has given the lead up, and where somebody else may lead this thread must not hear
                // what is rung for that.
                return;
            }
            // Descriptors are looked at in any case, for traffic on the links may never end.
            let limit = if is_quiet { span_until(now, limit, self.next_due()) } else { Duration::ZERO };
            let woken = self.progress.sleep(limit, Some(parker));
            let moved = self.poll_all();
            if !leading.leads() {
                // As above, but this thread may have heard it, or polled what another one has armed since.
                self.progress.call();
                self.serve_all();
            } else if (moved || woken) && !target.is_done() {
                self.spin(&mut self.patience.begin(), &Polling::lead(self), target, None);
            }
            return;
        }
        self.progress.follow(parker);
        // A leader that left before we were in the list promoted nobody.
        if self.progress.is_led() && !target.is_done() {
            parker.park(Some(limit));
        }
        self.progress.unfollow(parker);
    }

    /// Says something to the user.
    pub(crate) fn notice(&self, text: &str) {
        let name = self.given_name.get().unwrap_or(&self.peer.name);
        contain::told("the node's notice", || (self.config.notice)(&format!("{name}: {text}")));
    }

    /// Polls one link once. True when something moved.
    pub(crate) fn poll(&self, entry: &Arc<Entry>) -> bool {
        let _polls = Polls::begin(self);
        let intake = Intake::new(self, entry);
        match entry.link.poll(&intake, BUDGET) {
            Polled::Busy => false,
            Polled::Idle => {
                self.go_on(entry);
                // The end of a send moves nothing, but somebody may wait for it.
                intake.attend();
                false
            }
            Polled::Moved => {
                self.go_on(entry);
                intake.attend();
                true
            }
            Polled::Paused => {
                // What came before the pause may be what room waits for.
                intake.attend();
                self.pause(entry)
            }
            Polled::Ended(reason) => {
                intake.leave();
                self.link_ended(entry, &reason);
                // An ended link says so at every poll; whoever polls until nothing moves must not go on for ever.
                false
            }
        }
    }

    /// The link is not stuck. Whoever marked it may have found it busy when it asked once more, and leaves it to us.
    fn go_on(&self, entry: &Entry) {
        if entry.paused.load(SeqCst) {
            self.unpause(entry);
        }
    }

    /// The link's next message finds no room. Room may have come before the mark was seen, so the link is asked once
    /// more; also where another thread has set the mark, which may have found the link busy then. Whoever finds it busy
    /// leaves it to the one that has it, who is on the way here or moves something.
    fn pause(&self, entry: &Arc<Entry>) -> bool {
        if !entry.paused.swap(true, SeqCst) {
            self.links.paused.fetch_add(1, SeqCst);
        }
        let intake = Intake::new(self, entry);
        match entry.link.poll(&intake, 1) {
            Polled::Paused | Polled::Busy => false,
            Polled::Idle | Polled::Moved => {
                intake.attend();
                self.unpause(entry);
                true
            }
            Polled::Ended(reason) => {
                intake.leave();
                // An ended link has nothing more to move: the loops that poll until nothing moves must end with it. Who
                // has told of its end before may not have seen the mark.
                self.link_ended(entry, &reason);
                self.unpause(entry);
                false
            }
        }
    }

    /// True when the link was paused until now.
    pub(crate) fn unpause(&self, entry: &Entry) -> bool {
        let was_paused = entry.paused.swap(false, SeqCst);
        if was_paused {
            self.links.paused.fetch_sub(1, SeqCst);
        }
        was_paused
    }

    /// Polls every link that nobody polls.
    pub(crate) fn poll_all(&self) -> bool {
        let mut moved = false;
        for entry in self.links.all().iter() {
            if entry.pollers.load(SeqCst) == 0 {
                moved |= self.poll(entry);
            }
        }
        // A node without links has something to do all the same.
        self.attend();
        moved | self.endpoints.unattended().is_some_and(|endpoint| endpoint.poll())
    }

    /// Polls every link that nobody polls, for a thread that is not the leader. True when something moved.
    pub(crate) fn serve_all(&self) -> bool {
        let mut moved = false;
        for entry in self.links.all().iter() {
            if entry.pollers.load(SeqCst) == 0 {
                // It may be long until the next time.
                moved |= (0..SERVED_TURNS).take_while(|_| self.poll(entry)).count() > 0;
                self.settle(entry);
            }
        }
        self.attend();
        self.endpoint_waits();
        moved
    }

    /// Whoever polled a link leaves it as a sleeping leader expects it: armed, with nothing in it. A ring that was
    /// meant for the leader may have been used up by the poll.
    pub(crate) fn settle(&self, entry: &Arc<Entry>) {
        if self.progress.is_led() && entry.pollers.load(SeqCst) == 0 {
            let is_settled = (0..SERVED_TURNS).any(|_| self.arm(entry) || !self.poll(entry));
            self.leave_busy(is_settled);
        }
    }

    /// Leaves what others feed as fast as it is polled to the leader, and rings it for that: a thread that only wants
    /// to leave it armed would not come away.
    pub(crate) fn leave_busy(&self, is_settled: bool) {
        if !is_settled {
            self.progress.call();
        }
    }

    /// When some link must be polled again though nobody rings.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.links.all().iter().filter_map(|entry| entry.link.next_due()).min()
    }

    /// Arms every link that nobody polls. False when there is something to do.
    pub(crate) fn arm_all(&self) -> bool {
        // Whoever calls for attention from now on sees that somebody leads, and rings.
        self.attend();
        let version = self.links.version();
        let mut quiet = true;
        for entry in self.links.all().iter() {
            if entry.pollers.load(SeqCst) == 0 {
                quiet &= self.arm(entry);
            }
        }
        quiet &= self.endpoints.unattended().is_none_or(|endpoint| endpoint.arm());
        quiet && version == self.links.version()
    }

    fn arm(&self, entry: &Arc<Entry>) -> bool {
        if entry.paused.load(SeqCst) {
            if entry.link.readiness().is_some_and(|readiness| readiness.while_paused) {
                self.set_interest(entry, None);
            }
            return entry.link.arm_urgent();
        }
        self.set_interest(entry, None);
        entry.link.arm()
    }

    /// Receives were posted or messages were taken: links whose next message waits for that go on.
    pub(crate) fn resume_paused(&self) {
        if self.links.paused.load(SeqCst) == 0 {
            return;
        }
        for entry in self.links.all().iter() {
            if self.unpause(entry) {
                self.poll(entry);
                self.settle(entry);
            }
        }
    }

    /// Starts to watch a new link's descriptor.
    pub(crate) fn watch(&self, entry: &Arc<Entry>) -> Result<()> {
        let mut interest = entry.interest.lock();
        if let Some(readiness) = entry.link.readiness() {
            let watch = Arc::new(LinkWatch { inner: self.weak.clone(), entry: Arc::clone(entry) });
            let key = self.progress.watch(readiness.descriptor, watch)?;
            *interest = Some((key, Interest::Read));
        }
        Ok(())
    }

    /// Watches a link's descriptor for what the link needs now, or for `wanted`.
    fn set_interest(&self, entry: &Arc<Entry>, wanted: Option<Interest>) {
        let mut interest = entry.interest.lock();
        let (Some((key, current)), Some(readiness)) = (interest.as_mut(), entry.link.readiness()) else { return };
        let wanted = wanted.unwrap_or(if readiness.writable { Interest::ReadWrite } else { Interest::Read });
        if *current != wanted {
            *current = wanted;
            self.progress.rewatch(*key, readiness.descriptor, wanted);
        }
    }

    /// Stops watching a link that has ended.
    pub(crate) fn unwatch(&self, entry: &Arc<Entry>) {
        let mut interest = entry.interest.lock();
        if let (Some((key, _)), Some(readiness)) = (interest.take(), entry.link.readiness()) {
            self.progress.unwatch(key, readiness.descriptor);
        }
    }
}

/// Serves a link's descriptor for the leader.
struct LinkWatch {
    inner: Weak<Inner>,
    entry: Arc<Entry>,
}

impl Watched for LinkWatch {
    fn ready(&self) {
        let Some(inner) = self.inner.upgrade() else { return };
        if !self.entry.is_told.load(SeqCst) {
            // It is polled in a moment, and the leader is rung for it.
            return;
        }
        self.entry.link.attend();
        let polled = self.entry.pollers.load(SeqCst) > 0;
        let may_read = || self.entry.link.readiness().is_some_and(|readiness| readiness.while_paused);
        if polled || self.entry.paused.load(SeqCst) && !may_read() {
            // Its poller reads it, or nobody may yet: the descriptor must not keep the leader awake. Whoever arms the
            // link again watches it again.
            inner.set_interest(&self.entry, Some(Interest::Nothing));
            if polled && self.entry.pollers.load(SeqCst) == 0 {
                inner.set_interest(&self.entry, None);
            }
            return;
        }
        inner.poll(&self.entry);
    }
}
