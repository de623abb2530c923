//! Who runs: threads, what they wait for, and the clock.

use sheave_base::clock::SeededEntropy;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Condvar;

/// What a look at the clock costs, so that nobody who waits by looking waits for ever.
const LOOK_NS: u64 = 50;
/// Looks at the clock that nobody needs who does something.
const LOOKS_MAX: u64 = 1_000_000;
/// One in so many threads that can go on is kept from its core, ...
const KEPT_IN: u64 = 64;
/// ... for at most so long.
const KEPT_NS_MAX: u64 = 3_000_000;

/// Where a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// At an address of the program's.
    At(usize),
    /// For a descriptor of its process.
    Descriptors,
    /// For the end of that thread.
    End(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// It can go on.
    Ready,
    Running,
    Waiting(Place),
    /// It can go on, but its process is stopped or its core is taken.
    Kept,
    Ended,
}

pub(super) struct Thread {
    pub(super) name: String,
    pub(super) process: usize,
    pub(super) status: Status,
    /// It was woken, and its time was not up.
    pub(super) was_woken: bool,
    /// Until when it waits or is kept.
    until_ns: Option<u64>,
    /// Where the system's thread sleeps while others run.
    pub(super) turn: Arc<Condvar>,
}

pub(super) struct Scheduler {
    pub(super) now_ns: u64,
    dice: SeededEntropy,
    pub(super) threads: Vec<Thread>,
    ready: Vec<usize>,
    times: BTreeSet<(u64, usize)>,
    places: BTreeMap<(usize, Place), Vec<usize>>,
    /// Until when a process does nothing.
    pub(super) stopped_until_ns: BTreeMap<usize, u64>,
    pub(super) switches: u64,
    /// Looks at the clock since then.
    looks: u64,
}

impl Scheduler {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            now_ns: 0,
            dice: SeededEntropy::new(seed ^ 0x7363_6865),
            threads: Vec::new(),
            ready: Vec::new(),
            times: BTreeSet::new(),
            places: BTreeMap::new(),
            stopped_until_ns: BTreeMap::new(),
            switches: 0,
            looks: 0,
        }
    }

    /// A look at the clock. `None` for a thread that does nothing else.
    pub(super) fn look(&mut self) -> Option<u64> {
        self.now_ns += LOOK_NS;
        self.looks += 1;
        (self.looks < LOOKS_MAX).then_some(self.now_ns)
    }

    pub(super) fn add(&mut self, name: String, process: usize) -> usize {
        let number = self.threads.len();
        let turn = Arc::new(Condvar::new());
        let status = Status::Ready;
        self.threads.push(Thread { name, process, status, was_woken: false, until_ns: None, turn });
        self.make_ready(number);
        number
    }

    /// The key of a place, which is of the thread's own process.
    fn key(&self, thread: usize, place: Place) -> (usize, Place) {
        (self.threads[thread].process, place)
    }

    /// The running thread waits.
    pub(super) fn wait(&mut self, thread: usize, place: Place, until_ns: Option<u64>) {
        let key = self.key(thread, place);
        self.places.entry(key).or_default().push(thread);
        let entry = &mut self.threads[thread];
        entry.status = Status::Waiting(place);
        entry.was_woken = false;
        entry.until_ns = until_ns;
        self.times.extend(until_ns.map(|until_ns| (until_ns, thread)));
    }

    /// Wakes all who wait there.
    pub(super) fn wake(&mut self, process: usize, place: Place) {
        for thread in self.places.remove(&(process, place)).unwrap_or_default() {
            self.threads[thread].was_woken = true;
            self.leave_times(thread);
            self.make_ready(thread);
        }
    }

    fn leave_times(&mut self, thread: usize) {
        if let Some(until_ns) = self.threads[thread].until_ns.take() {
            self.times.remove(&(until_ns, thread));
        }
    }

    fn leave_place(&mut self, thread: usize) {
        if let Status::Waiting(place) = self.threads[thread].status {
            let key = self.key(thread, place);
            if let Some(waiting) = self.places.get_mut(&key) {
                waiting.retain(|other| *other != thread);
                if waiting.is_empty() {
                    self.places.remove(&key);
                }
            }
        }
    }

    /// It can go on, now or when its process and its core let it.
    fn make_ready(&mut self, thread: usize) {
        let kept_ns = if self.dice.below(KEPT_IN) == 0 { self.dice.below(KEPT_NS_MAX) } else { 0 };
        let stopped_until_ns = self.stopped_until_ns.get(&self.threads[thread].process).copied().unwrap_or(0);
        let from_ns = stopped_until_ns.max(self.now_ns + kept_ns);
        if from_ns <= self.now_ns {
            self.threads[thread].status = Status::Ready;
            self.ready.push(thread);
        } else {
            self.threads[thread].status = Status::Kept;
            self.threads[thread].until_ns = Some(from_ns);
            self.times.insert((from_ns, thread));
        }
    }

    /// One of those that can go on.
    pub(super) fn pick(&mut self) -> Option<usize> {
        if self.ready.is_empty() {
            return None;
        }
        let at = self.dice.below(self.ready.len() as u64) as usize;
        let thread = self.ready.swap_remove(at);
        self.threads[thread].status = Status::Running;
        self.switches += 1;
        self.looks = 0;
        Some(thread)
    }

    /// When somebody's time is up.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.times.first().map(|(at_ns, _)| *at_ns)
    }

    /// The time of the first one is up.
    pub(super) fn time_is_up(&mut self) {
        let Some((_, thread)) = self.times.pop_first() else { return };
        self.threads[thread].until_ns = None;
        self.leave_place(thread);
        if self.threads[thread].status == Status::Kept {
            self.threads[thread].status = Status::Ready;
            self.ready.push(thread);
        } else {
            self.make_ready(thread);
        }
    }

    /// It runs no more.
    pub(super) fn end(&mut self, thread: usize) {
        self.leave_place(thread);
        self.leave_times(thread);
        self.ready.retain(|other| *other != thread);
        self.threads[thread].status = Status::Ended;
        let process = self.threads[thread].process;
        self.wake(process, Place::End(thread));
    }

    /// A process does nothing until then.
    pub(super) fn stop(&mut self, process: usize, until_ns: u64) {
        self.stopped_until_ns.insert(process, until_ns);
        let stopped: Vec<usize> =
            self.ready.iter().copied().filter(|thread| self.threads[*thread].process == process).collect();
        self.ready.retain(|thread| !stopped.contains(thread));
        stopped.into_iter().for_each(|thread| self.make_ready(thread));
    }

    /// What the threads of a process do that has not ended.
    pub(super) fn of_process(&self, process: usize) -> Vec<usize> {
        let of_it = |(_, thread): &(usize, &Thread)| thread.process == process && thread.status != Status::Ended;
        self.threads.iter().enumerate().filter(of_it).map(|(number, _)| number).collect()
    }
}
