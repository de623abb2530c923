//! A world: its processes, its troubles and its end.

use super::network::{Network, Sent, Way};
use super::scheduler::{Place, Scheduler, Status};
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use sheave_base::clock::{Entropy, SeededEntropy};
use sheave_base::planted::Bug;
use sheave_base::simulated::{self, Dial, System};
use sheave_base::{Error, ErrorKind, Result, contain};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a thread of a simulated process may put on its stack.
const STACK_BYTES: usize = 512 << 10;
/// Numbers of simulated processes begin here.
const FIRST_PROCESS: u32 = 100;

/// A bug that is planted shows one in so many times.
const STRIKES_IN: u64 = 6;

/// Something that goes wrong. Processes are numbered as they were started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The process is killed; the system of its host closes its connections.
    Kill(usize),
    /// The host of this process is gone, and everything on it.
    Crash(usize),
    /// The process does nothing for so long.
    Stop(usize, Duration),
    /// The connections between these two break.
    Cut(usize, usize),
    /// Nothing passes from the host of the first to that of the second.
    Silence(usize, usize),
    /// What could not pass does.
    Heal,
}

enum What {
    Sent(Sent),
    Trouble(Trouble),
}

struct Process {
    name: String,
    main: usize,
}

/// How a world has ended.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What went wrong that no user could understand: panics of programs, processes that never ended.
    pub failures: Vec<String>,
    /// The time that has passed in the world.
    pub lasted: Duration,
    /// How often a thread gave way to another.
    pub switches: u64,
    /// Everything that happened, if it was to be kept.
    pub log: String,
}

struct State {
    scheduler: Scheduler,
    network: Network,
    random: SeededEntropy,
    processes: Vec<Process>,
    events: BTreeMap<(u64, u64), What>,
    tickets: u64,
    running: Option<usize>,
    limit_ns: u64,
    is_over: bool,
    outcome: Outcome,
    keeps_log: bool,
    bug: Option<Bug>,
}

struct Inner {
    state: Mutex<State>,
    over: parking_lot::Condvar,
    origin: Instant,
}

/// Some processes and the network between them. A handle.
#[derive(Clone)]
pub struct World(Arc<Inner>);

impl World {
    /// A world that this seed determines, whose hosts reach each other like this.
    #[must_use]
    pub fn new(seed: u64, usual: Way) -> Self {
        let state = State {
            scheduler: Scheduler::new(seed),
            network: Network::new(seed, usual),
            random: SeededEntropy::new(seed ^ 0x7261_6e64),
            processes: Vec::new(),
            events: BTreeMap::new(),
            tickets: 0,
            running: None,
            limit_ns: u64::MAX,
            is_over: false,
            outcome: Outcome::default(),
            keeps_log: false,
            bug: None,
        };
        // Its own times are counted from here; what that is makes no difference.
        let origin = Instant::now();
        Self(Arc::new(Inner { state: Mutex::new(state), over: parking_lot::Condvar::new(), origin }))
    }

    /// Keeps what happens, for the outcome.
    pub fn keep_log(&self) {
        self.0.state.lock().keeps_log = true;
    }

    /// Has the product be wrong in this way, now and then.
    pub fn plant(&self, bug: Bug) {
        self.0.state.lock().bug = Some(bug);
    }

    /// Notes something in the log.
    pub fn note(&self, text: &str) {
        self.0.state.lock().note(|| text.to_owned());
    }

    /// Starts a process on a host, before the world runs or from one of its threads. It ends when its program does.
    pub fn start(&self, name: &str, host: usize, program: impl FnOnce() + Send + 'static) -> usize {
        let (number, main) = {
            let mut state = self.0.state.lock();
            let number = state.processes.len();
            state.network.hosts.push(host);
            state.network.has_ended.push(false);
            let main = state.scheduler.add("main".into(), number);
            state.processes.push(Process { name: name.to_owned(), main });
            (number, main)
        };
        self.0.launch(main, number, Box::new(program)).expect("the system has threads");
        number
    }

    /// Has something go wrong at that time.
    pub fn trouble(&self, at: Duration, trouble: Trouble) {
        self.0.state.lock().push(nanoseconds(at), What::Trouble(trouble));
    }

    /// Has something go wrong now: when the thread of the world that says so waits. It holds on to nothing then.
    pub fn strike(&self, trouble: Trouble) {
        let mut state = self.0.state.lock();
        let now_ns = state.scheduler.now_ns;
        state.push(now_ns, What::Trouble(trouble));
    }

    /// Keeps the threads that this one starts from now on to one core, which makes their turns cheaper.
    pub fn keep_to_core(number: usize) {
        let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
        let cores: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
        let mut one = rustix::thread::CpuSet::new();
        one.set(cores[number % cores.len()]);
        // Where that is not permitted it takes longer.
        let _ = rustix::thread::sched_setaffinity(None, &one);
    }

    /// Runs until all processes have ended, or for at most `limit` of the world's time.
    #[must_use]
    pub fn run(&self, limit: Duration) -> Outcome {
        let mut state = self.0.state.lock();
        state.limit_ns = nanoseconds(limit);
        match self.0.next(&mut state) {
            Some(thread) => self.0.give_turn(&mut state, thread),
            None => state.is_over = true,
        }
        while !state.is_over {
            self.0.over.wait(&mut state);
        }
        state.outcome.lasted = Duration::from_nanos(state.scheduler.now_ns);
        state.outcome.switches = state.scheduler.switches;
        // Threads that never run again keep the rest.
        state.network.close();
        std::mem::take(&mut state.outcome)
    }
}

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl State {
    fn push(&mut self, at_ns: u64, what: What) {
        self.tickets += 1;
        self.events.insert((at_ns, self.tickets), what);
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        if self.keeps_log {
            // Writing to a string cannot fail.
            let _ = writeln!(self.outcome.log, "{} {}", self.scheduler.now_ns, text());
        }
    }

    /// Takes over what the network has brought about.
    fn gather(&mut self) {
        self.network.look(self.scheduler.now_ns);
        for sent in std::mem::take(&mut self.network.sent) {
            self.push(sent.at_ns, What::Sent(sent));
        }
        for process in std::mem::take(&mut self.network.stirred) {
            self.scheduler.wake(process, Place::Descriptors);
        }
    }

    fn happen(&mut self, what: What) {
        let now_ns = self.scheduler.now_ns;
        match what {
            What::Sent(Sent { way, arrival, .. }) => self.network.arrive(now_ns, way, arrival),
            What::Trouble(trouble) => {
                self.note(|| format!("{trouble:?}"));
                self.strike(&trouble);
            }
        }
    }

    fn strike(&mut self, trouble: &Trouble) {
        let now_ns = self.scheduler.now_ns;
        match *trouble {
            Trouble::Kill(process) => self.end_process(process),
            Trouble::Crash(process) => {
                let host = self.network.hosts[process];
                let hosts = self.network.hosts.clone();
                for (number, other) in hosts.into_iter().enumerate() {
                    self.network.silence((host, other));
                    self.network.silence((other, host));
                    if other == host {
                        self.end_threads(number);
                    }
                }
            }
            Trouble::Stop(process, span) => self.scheduler.stop(process, now_ns + nanoseconds(span)),
            Trouble::Cut(one, other) => self.network.cut(one, other),
            Trouble::Silence(from, to) => {
                let way = (self.network.hosts[from], self.network.hosts[to]);
                self.network.silence(way);
            }
            Trouble::Heal => self.network.heal(now_ns),
        }
    }

    fn end_threads(&mut self, process: usize) {
        self.scheduler.of_process(process).into_iter().for_each(|thread| self.scheduler.end(thread));
    }

    fn end_process(&mut self, process: usize) {
        self.end_threads(process);
        if !self.network.has_ended[process] {
            self.network.end(self.scheduler.now_ns, process);
        }
    }

    fn is_anybody_there(&self) -> bool {
        self.processes.iter().any(|process| self.scheduler.threads[process.main].status != Status::Ended)
    }

    /// Says who has not come to an end.
    fn blame(&mut self, why: &str) {
        for (number, process) in self.processes.iter().enumerate() {
            let threads = self.scheduler.of_process(number);
            let told: Vec<String> = threads
                .iter()
                .map(|thread| &self.scheduler.threads[*thread])
                .map(|thread| format!("{} {:?}", thread.name, thread.status))
                .collect();
            if !told.is_empty() {
                self.outcome.failures.push(format!("{why}: {} has not ended: {}", process.name, told.join(", ")));
            }
        }
    }
}

impl Inner {
    fn system(self: &Arc<Self>, thread: usize, process: usize) -> Arc<dyn System> {
        Arc::new(Seat { inner: Arc::clone(self), thread, process })
    }

    /// Starts the system's thread for one of the world's, which waits for its turn.
    fn launch(self: &Arc<Self>, thread: usize, process: usize, run: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        let inner = Arc::clone(self);
        let begin = move || {
            inner.await_turn(&mut inner.state.lock(), thread);
            simulated::enter(Some(inner.system(thread, process)));
            let outcome = contain::run(run);
            simulated::enter(None);
            inner.has_ended(thread, process, outcome.err());
        };
        std::thread::Builder::new().stack_size(STACK_BYTES).spawn(begin).map(drop)
    }

    fn has_ended(&self, thread: usize, process: usize, panic: Option<String>) {
        let mut state = self.state.lock();
        if let Some(text) = panic {
            let name = format!("{}, thread {}", state.processes[process].name, state.scheduler.threads[thread].name);
            state.outcome.failures.push(format!("{name}: {text}"));
        }
        state.scheduler.end(thread);
        if state.processes[process].main == thread {
            state.note(|| format!("process {process} ends"));
            state.end_process(process);
        }
        if let Some(next) = self.next(&mut state) {
            self.give_turn(&mut state, next);
        }
    }

    /// Who runs next; nobody if the world is over.
    fn next(&self, state: &mut State) -> Option<usize> {
        loop {
            state.gather();
            if state.is_over {
                return None;
            }
            if let Some(thread) = state.scheduler.pick() {
                return Some(thread);
            }
            let event_ns = state.events.first_key_value().map(|((at_ns, _), _)| *at_ns);
            let time_ns = state.scheduler.next_ns();
            let next_ns = event_ns.into_iter().chain(time_ns).min();
            let why = match next_ns {
                _ if !state.is_anybody_there() => None,
                None => Some("nothing can happen any more"),
                Some(at_ns) if at_ns > state.limit_ns => Some("the time is up"),
                Some(at_ns) => {
                    state.scheduler.now_ns = state.scheduler.now_ns.max(at_ns);
                    if event_ns.is_some_and(|event_ns| time_ns.is_none_or(|time_ns| event_ns <= time_ns)) {
                        let event = state.events.pop_first();
                        event.into_iter().for_each(|(_, what)| state.happen(what));
                    } else {
                        state.scheduler.time_is_up();
                    }
                    continue;
                }
            };
            why.into_iter().for_each(|why| state.blame(why));
            state.is_over = true;
            self.over.notify_all();
            return None;
        }
    }

    fn give_turn(&self, state: &mut State, thread: usize) {
        state.running = Some(thread);
        if state.keeps_log {
            let entry = &state.scheduler.threads[thread];
            let (process, name) = (entry.process, entry.name.clone());
            state.note(|| format!("{process} {name}"));
        }
        state.scheduler.threads[thread].turn.notify_one();
    }

    fn await_turn(&self, state: &mut MutexGuard<'_, State>, thread: usize) {
        let turn = Arc::clone(&state.scheduler.threads[thread].turn);
        while state.running != Some(thread) {
            turn.wait(state);
        }
    }

    /// A thread goes round and round without waiting for anything: the world ends here.
    fn goes_round(&self, mut state: MutexGuard<'_, State>, thread: usize) -> Instant {
        let entry = &state.scheduler.threads[thread];
        let text = format!("{}, thread {}: it runs for ever", state.processes[entry.process].name, entry.name);
        state.outcome.failures.push(text);
        state.is_over = true;
        state.running = None;
        self.over.notify_all();
        self.await_turn(&mut state, thread);
        self.origin
    }

    /// The running thread waits, and others go on.
    fn wait(&self, thread: usize, place: Place, until: Option<Instant>) -> bool {
        let mut state = self.state.lock();
        let until_ns = until.map(|until| nanoseconds(until.saturating_duration_since(self.origin)));
        state.scheduler.wait(thread, place, until_ns);
        match self.next(&mut state) {
            Some(next) if next == thread => {}
            Some(next) => {
                self.give_turn(&mut state, next);
                self.await_turn(&mut state, thread);
            }
            None => {
                state.running = None;
                self.await_turn(&mut state, thread);
            }
        }
        state.scheduler.threads[thread].was_woken
    }
}

/// A thread's system.
struct Seat {
    inner: Arc<Inner>,
    thread: usize,
    process: usize,
}

impl System for Seat {
    fn now(&self) -> Instant {
        let mut state = self.inner.state.lock();
        let Some(now_ns) = state.scheduler.look() else { return self.inner.goes_round(state, self.thread) };
        self.inner.origin + Duration::from_nanos(now_ns)
    }

    fn fill(&self, bytes: &mut [u8]) {
        self.inner.state.lock().random.fill(bytes);
    }

    fn wait(&self, place: usize, until: Option<Instant>) -> bool {
        self.inner.wait(self.thread, Place::At(place), until)
    }

    fn wake(&self, place: usize) {
        self.inner.state.lock().scheduler.wake(self.process, Place::At(place));
    }

    fn wait_for_descriptors(&self, until: Option<Instant>) {
        self.inner.wait(self.thread, Place::Descriptors, until);
    }

    fn ring(&self) {
        self.inner.state.lock().scheduler.wake(self.process, Place::Descriptors);
    }

    fn spawn(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> Result<u64> {
        let thread = self.inner.state.lock().scheduler.add(name.to_owned(), self.process);
        match self.inner.launch(thread, self.process, run) {
            Ok(()) => Ok(thread as u64),
            Err(error) => {
                self.inner.state.lock().scheduler.end(thread);
                Err(Error::new(ErrorKind::LimitExceeded, error.to_string()))
            }
        }
    }

    fn join(&self, thread: u64) {
        let thread = thread as usize;
        let has_ended = || self.inner.state.lock().scheduler.threads[thread].status == Status::Ended;
        while !has_ended() {
            self.inner.wait(self.thread, Place::End(thread), None);
        }
    }

    fn thread(&self) -> u64 {
        self.thread as u64
    }

    fn process(&self) -> u32 {
        FIRST_PROCESS + self.process as u32
    }

    fn has_ended(&self, process: u32) -> bool {
        let state = self.inner.state.lock();
        let number = process.wrapping_sub(FIRST_PROCESS) as usize;
        let is_near = state.network.hosts.get(number) == state.network.hosts.get(self.process);
        is_near && state.network.has_ended.get(number).copied().unwrap_or(true)
    }

    fn strikes(&self, bug: Bug) -> bool {
        let mut state = self.inner.state.lock();
        state.bug == Some(bug) && state.random.below(STRIKES_IN) == 0
    }

    fn must_not_be(&self, what: &str) {
        let mut state = self.inner.state.lock();
        let name = state.processes[self.process].name.clone();
        state.outcome.failures.push(format!("{name}: {what}"));
    }

    fn listen(&self, at: SocketAddr) -> std::result::Result<(OwnedFd, SocketAddr), Errno> {
        self.inner.state.lock().network.listen(self.process, at)
    }

    fn dial(&self, to: SocketAddr) -> Dial {
        let mut state = self.inner.state.lock();
        let now_ns = state.scheduler.now_ns;
        state.network.dial(now_ns, self.process, to)
    }

    fn dialled(&self, dial: Dial) -> Option<std::result::Result<OwnedFd, Errno>> {
        self.inner.state.lock().network.dialled(dial)
    }
}
