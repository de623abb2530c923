//! The threads that run handlers which may block.
//!
//! A thread without work waits on a work that is driven by the node: so it makes progress on the links itself, and a
//! request that it finds there is often run by it at once, without a hand-over. Once it runs a handler the others go on
//! polling.
//!
//! **Lanes.** Threads are the node's, but each service has a lane of its own with so many *permits*: handlers that run
//! at the same time. One that waits, for another call say, gives its permit back for as long as it waits, and another
//! thread may start; so nodes that call each other in circles do not starve. A lane has at most
//! [`limits::LANE_THREADS_MAX`] threads, and the node [`limits::EXECUTOR_THREADS_MAX`], beyond which a lane still gets
//! as many as it has permits: so however many handlers of one service wait, each other one gets its share.
//!
//! **Patience.** A lane may say for how long a handler runs alone, before another one begins beside it: where handlers
//! share a lock, as those in Python share their interpreter's, several threads would only hand it round. So one thread
//! runs all handlers that are shorter, one after the other; one that takes longer delays those behind it by no more
//! than that, once. The mesh's own thread looks at it.
//!
//! **At the bound.** Where every thread of a lane waits and it may have no more, those that wait may wait for just what
//! is queued. If none of them goes on for [`limits::LANE_STUCK`], what is queued is refused, so that such a circle ends
//! with an error and not with a hang. The mesh's own thread looks at it.
//!
//! **Mailboxes.** A job of a mailbox is queued only when the one before it has ended; so one mailbox is at most one of
//! the queue, and its order is kept whichever thread runs it.

use crate::driver::Shared;
use parking_lot::Mutex;
use sheave_base::clock;
use sheave_base::collections::HashMap;
use sheave_base::planted::{self, Bug};
use sheave_base::work::{Completer, IDLE, blocking};
use sheave_base::{Error, ErrorKind, contain, limits};
use sheave_net::Node;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// A handler and its request.
pub(crate) struct Job {
    /// What runs it, or answers it with this error.
    pub(crate) act: Box<dyn FnOnce(Option<Error>) + Send>,
    /// The mailbox that it is one of, in a lane of mailboxes.
    pub(crate) mailbox: Option<u64>,
}

/// How many handlers of a lane run at the same time, and when.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) permits: usize,
    /// For how long a handler runs before another one begins beside it.
    pub(crate) patience: Duration,
    /// They run on the thread of the service.
    pub(crate) is_own: bool,
}

pub(crate) struct Executor {
    pool: Arc<Pool>,
}

struct Pool {
    state: Mutex<State>,
    /// Whose time thread looks at lanes that are stuck.
    shared: Weak<Shared>,
}

#[derive(Default)]
struct State {
    /// The lanes of services that have something to run or that runs.
    lanes: HashMap<u64, LaneState>,
    /// Lanes that may have something to start, each at most once; whoever was served goes to the end.
    turns: VecDeque<u64>,
    /// Threads that wait for a job; the last one to come is the first to go.
    idle: Vec<(ThreadId, Completer<Started>)>,
    threads: usize,
    /// Jobs so far.
    started: u64,
    /// Lanes that the time thread will look at, to see whether their patience is over.
    watched: usize,
    stopped: bool,
}

struct LaneState {
    queue: VecDeque<Job>,
    /// What waits behind a job of the same mailbox that is queued or runs.
    mailboxes: HashMap<u64, VecDeque<Job>>,
    permits: usize,
    /// For how long a handler runs before another one begins beside it.
    patience: Duration,
    /// The last job that began, until it ends or waits, and when it began; kept where there is patience.
    youngest: Option<(u64, Instant)>,
    /// The time thread will look whether the youngest takes long.
    is_watched: bool,
    /// Handlers that run and do not wait.
    running: usize,
    /// Handlers that run or wait.
    begun: usize,
    /// It stands in `turns`.
    has_turn: bool,
    /// All its threads have waited since then, and it may have no more.
    stuck_since: Option<Instant>,
}

/// A job that has a permit of this lane.
struct Started {
    lane: u64,
    /// Among those that the node has started.
    number: u64,
    job: Job,
}

/// What a job needs to be started, found under the lock and done without it.
enum Start {
    Wake(Completer<Started>, Started),
    Spawn(Started),
    /// A lane is stuck, or has patience, and is to be looked at after this time.
    Look(Duration),
    Nothing,
}

/// Outcome of a lane's turn.
enum Turn {
    Begins(Started),
    Look(Duration),
    Nothing,
}

impl Executor {
    pub(crate) fn new(shared: Weak<Shared>) -> Self {
        Self { pool: Arc::new(Pool { state: Mutex::default(), shared }) }
    }

    /// Starts what waits behind handlers that take long, and refuses what waits for threads that have all waited for
    /// too long. Returns when to look again, if ever.
    pub(crate) fn look_at_lanes(&self, node: &Node, now: Instant) -> Option<Instant> {
        let mut refused = Vec::new();
        let mut next = None;
        {
            let mut state = self.pool.state.lock();
            if state.watched > 0 {
                state.look_at_watched(now, &mut next);
            }
            for lane in state.lanes.values_mut() {
                let Some(due) = lane.stuck_since.map(|since| since + limits::LANE_STUCK) else { continue };
                if due <= now {
                    lane.stuck_since = None;
                    refused.extend(lane.refuse_all());
                } else {
                    next = next.into_iter().chain([due]).min();
                }
            }
        }
        self.pool.start_all(node);
        let what = "all threads that the service may have wait";
        let hint = "its handlers wait for calls, perhaps in circles: let fewer of them wait at a time";
        for job in refused {
            (job.act)(Some(Error::new(ErrorKind::LimitExceeded, what).hint(hint)));
        }
        next
    }

    /// Runs the job of that service as soon as there is a permit. Does not block.
    pub(crate) fn submit(&self, node: &Node, service: u64, pace: Pace, job: Job) {
        let mut state = self.pool.state.lock();
        if state.stopped {
            drop(state);
            // Which answers it.
            return drop(job);
        }
        state.queue(service, pace, job);
        drop(state);
        self.pool.start_all(node);
    }

    /// Ends idle threads; running handlers finish what they do. Jobs in the queue are dropped, which answers them.
    pub(crate) fn stop(&self) {
        let (idle, lanes) = {
            let mut state = self.pool.state.lock();
            state.stopped = true;
            let lanes: Vec<_> = state.lanes.values_mut().map(LaneState::empty).collect();
            (std::mem::take(&mut state.idle), lanes)
        };
        drop(lanes);
        // A dropped completer ends its work with an error, and its thread.
        drop(idle);
    }
}

impl LaneState {
    fn new(pace: Pace) -> Self {
        let Pace { permits, patience, .. } = pace;
        let (queue, mailboxes, youngest) = (VecDeque::new(), HashMap::default(), None);
        let (running, begun, has_turn, is_watched, stuck_since) = (0, 0, false, false, None);
        Self { queue, mailboxes, permits, patience, youngest, is_watched, running, begun, has_turn, stuck_since }
    }

    /// A job ends or waits: it keeps no other from beginning any more.
    fn makes_room(&mut self, number: u64) {
        self.running -= 1;
        self.youngest = self.youngest.filter(|(youngest, _)| *youngest != number);
    }

    /// Until when another job may not begin beside the youngest.
    fn patient_until(&self) -> Option<Instant> {
        self.youngest.map(|(_, began)| began + self.patience)
    }

    /// Takes out everything that has not begun.
    fn empty(&mut self) -> (VecDeque<Job>, Vec<VecDeque<Job>>) {
        (std::mem::take(&mut self.queue), self.mailboxes.values_mut().map(std::mem::take).collect())
    }

    fn push(&mut self, job: Job) {
        match job.mailbox.map(|mailbox| self.mailboxes.entry(mailbox)) {
            Some(Entry::Occupied(_)) if planted::strikes(Bug::MailboxShared) => {}
            Some(Entry::Occupied(mut waiting)) => return waiting.get_mut().push_back(job),
            Some(Entry::Vacant(free)) => drop(free.insert(VecDeque::new())),
            None => {}
        }
        self.queue.push_back(job);
    }

    /// A job of this mailbox has ended: the next one may begin.
    fn free(&mut self, mailbox: u64) {
        let waiting = self.mailboxes.get_mut(&mailbox);
        let is_turned = planted::strikes(Bug::MailboxTurned);
        match waiting.and_then(|waiting| if is_turned { waiting.pop_back() } else { waiting.pop_front() }) {
            Some(next) => self.queue.push_back(next),
            None => drop(self.mailboxes.remove(&mailbox)),
        }
    }

    /// Takes out everything that has not begun, in order.
    fn refuse_all(&mut self) -> Vec<Job> {
        let mut refused = Vec::with_capacity(self.queue.len());
        while let Some(job) = self.queue.pop_front() {
            if let Some(mailbox) = job.mailbox {
                self.free(mailbox);
            }
            refused.push(job);
        }
        refused
    }

    fn may_start(&self) -> bool {
        !self.queue.is_empty() && self.running < self.permits
    }
}

impl State {
    fn queue(&mut self, service: u64, pace: Pace, job: Job) {
        let lane = self.lanes.entry(service).or_insert_with(|| LaneState::new(pace));
        // A service of the same name may have come after another.
        (lane.permits, lane.patience) = (pace.permits, pace.patience);
        lane.push(job);
        self.give_turn(service);
    }

    fn give_turn(&mut self, service: u64) {
        let Some(lane) = self.lanes.get_mut(&service) else { return };
        if lane.may_start() && !lane.has_turn {
            lane.has_turn = true;
            self.turns.push_back(service);
        }
    }

    /// What to do so that a job runs that may.
    fn next_start(&mut self) -> Start {
        match self.next_turn(false) {
            Turn::Nothing => Start::Nothing,
            Turn::Look(after) => Start::Look(after),
            Turn::Begins(started) => {
                // The thread that found the request takes it, if it is one of ours.
                let own = std::thread::current().id();
                let at = self.idle.iter().position(|(thread, _)| *thread == own).or(self.idle.len().checked_sub(1));
                match at {
                    Some(at) => Start::Wake(self.idle.remove(at).1, started),
                    None => {
                        self.threads += 1;
                        Start::Spawn(started)
                    }
                }
            }
        }
    }

    /// The next job that may begin, on a thread that is free if there is one already.
    fn next_turn(&mut self, is_free: bool) -> Turn {
        while !self.stopped
            && let Some(service) = self.turns.pop_front()
        {
            match self.turn_of(service, is_free) {
                // Whatever changes that gives it another turn.
                Turn::Nothing => {}
                Turn::Look(after) => return Turn::Look(after),
                begins => {
                    self.give_turn(service);
                    return begins;
                }
            }
        }
        Turn::Nothing
    }

    fn turn_of(&mut self, service: u64, is_free: bool) -> Turn {
        let Some(lane) = self.lanes.get_mut(&service) else { return Turn::Nothing };
        lane.has_turn = false;
        if !lane.may_start() {
            return Turn::Nothing;
        }
        if let Some(until) = lane.patient_until() {
            let left = until.saturating_duration_since(clock::now());
            if !left.is_zero() {
                // Whoever runs takes it next, unless that takes too long.
                let is_news = !std::mem::replace(&mut lane.is_watched, true);
                self.watched += usize::from(is_news);
                return if is_news { Turn::Look(left) } else { Turn::Nothing };
            }
        }
        let has_share = lane.begun < lane.permits;
        let may_spawn = has_share || (self.threads < limits::EXECUTOR_THREADS_MAX);
        let has_thread = is_free || may_spawn || !self.idle.is_empty();
        if lane.begun >= limits::LANE_THREADS_MAX.max(lane.permits) || !has_thread {
            if lane.running > 0 {
                // Whoever runs ends some time, or waits, and looks again.
                return Turn::Nothing;
            }
            let is_news = lane.stuck_since.is_none();
            lane.stuck_since.get_or_insert_with(clock::now);
            return if is_news { Turn::Look(limits::LANE_STUCK) } else { Turn::Nothing };
        }
        let Some(job) = lane.queue.pop_front() else { return Turn::Nothing };
        lane.running += 1;
        lane.begun += 1;
        self.started += 1;
        let number = self.started;
        lane.youngest = (!lane.patience.is_zero()).then(|| (number, clock::now()));
        Turn::Begins(Started { lane: service, number, job })
    }

    /// Gives a turn to the lanes whose patience is over; `next` is when to look at the others.
    fn look_at_watched(&mut self, now: Instant, next: &mut Option<Instant>) {
        let mut over = Vec::new();
        for (service, lane) in &mut self.lanes {
            if !lane.is_watched {
                continue;
            }
            match lane.patient_until().filter(|until| *until > now && !lane.queue.is_empty()) {
                Some(until) => *next = (*next).into_iter().chain([until]).min(),
                None => {
                    lane.is_watched = false;
                    over.push(*service);
                }
            }
        }
        self.watched -= over.len();
        over.into_iter().for_each(|service| self.give_turn(service));
    }

    /// A job of this lane has ended, or could not begin.
    fn end(&mut self, service: u64, number: u64, mailbox: Option<u64>) {
        let Some(lane) = self.lanes.get_mut(&service) else { return };
        lane.makes_room(number);
        lane.begun -= 1;
        lane.stuck_since = None;
        if let Some(mailbox) = mailbox {
            lane.free(mailbox);
        }
        if lane.begun == 0 && lane.queue.is_empty() && lane.mailboxes.is_empty() && !lane.has_turn {
            self.watched -= usize::from(lane.is_watched);
            self.lanes.remove(&service);
        } else {
            self.give_turn(service);
        }
    }
}

impl Pool {
    /// Starts everything that may start.
    fn start_all(self: &Arc<Self>, node: &Node) {
        loop {
            let start = self.state.lock().next_start();
            match start {
                Start::Nothing => return,
                Start::Wake(completer, started) => completer.complete(Ok(started)),
                Start::Spawn(started) => self.spawn(started, node),
                Start::Look(after) => self.watch(after),
            }
        }
    }

    fn spawn(self: &Arc<Self>, started: Started, node: &Node) {
        let (pool, own) = (Arc::clone(self), node.clone());
        // It comes back where no thread can be had.
        let place = Arc::new(Mutex::new(Some(started)));
        let first = Arc::clone(&place);
        let spawned = sheave_base::thread::spawn("sheave-executor", move || pool.run(first.lock().take(), &own));
        let Err(error) = spawned else { return };
        let Some(Started { lane, number, job }) = place.lock().take() else { return };
        let mailbox = job.mailbox;
        let mut job = Some(job);
        {
            let mut state = self.state.lock();
            state.threads -= 1;
            if let Some(lane) = state.lanes.get_mut(&lane).filter(|lane| lane.running > 1) {
                // It waits for one of those that run; where all wait, it might be for this one.
                lane.makes_room(number);
                lane.begun -= 1;
                job.take().into_iter().for_each(|job| lane.queue.push_front(job));
            } else {
                state.end(lane, number, mailbox);
            }
        }
        if let Some(job) = job {
            (job.act)(Some(error));
        }
    }

    /// Has the lanes looked at after this time.
    fn watch(&self, after: Duration) {
        if let Some(shared) = self.shared.upgrade() {
            shared.ticker.ring_at(shared.deadline(after));
        }
    }

    fn run(self: &Arc<Self>, first: Option<Started>, node: &Node) {
        let mut next = first;
        while let Some(Started { lane, number, job }) = next {
            let (pool, own, mailbox) = (Arc::clone(self), node.clone(), job.mailbox);
            let listener: Rc<dyn Fn(bool)> = Rc::new(move |blocks| pool.permit((lane, number), blocks, &own));
            blocking::tell(Some(listener));
            contain::told("a handler", || (job.act)(None));
            blocking::tell(None);
            let turn = {
                let mut state = self.state.lock();
                state.end(lane, number, mailbox);
                state.next_turn(true)
            };
            next = match turn {
                Turn::Begins(started) => {
                    self.start_all(node);
                    Some(started)
                }
                Turn::Look(after) => {
                    self.watch(after);
                    self.next(node)
                }
                Turn::Nothing => self.next(node),
            };
        }
        self.state.lock().threads -= 1;
    }

    /// The next job, with a permit for it; `None` when the thread is to end.
    fn next(self: &Arc<Self>, node: &Node) -> Option<Started> {
        let work = {
            let mut state = self.state.lock();
            let is_needed = !state.stopped && state.idle.len() < limits::EXECUTOR_IDLE_MAX;
            is_needed.then(|| {
                let (completer, work) = node.pair(IDLE, None);
                state.idle.push((std::thread::current().id(), completer));
                work
            })
        };
        // What waited for a permit or for a thread: the first of it is often this one's.
        self.start_all(node);
        let work = work?;
        work.wait_until(None, None).ok()?;
        work.taken().ok()
    }

    /// A handler's thread begins or ends to wait.
    fn permit(self: &Arc<Self>, (service, number): (u64, u64), waits: bool, node: &Node) {
        let mut state = self.state.lock();
        let Some(lane) = state.lanes.get_mut(&service) else { return };
        if !waits {
            // It goes on at once: for a moment there may be one more than there are permits.
            lane.running += 1;
            lane.stuck_since = None;
            return;
        }
        if planted::strikes(Bug::PermitKept) {
            return;
        }
        lane.makes_room(number);
        state.give_turn(service);
        drop(state);
        self.start_all(node);
    }
}
