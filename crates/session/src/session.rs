//! The controller's side of a session.

use crate::args::Args;
use crate::commands::{self, Callee, Command, Commands, Pause, SYNC};
use crate::lost::Lost;
use crate::nodes::NODE;
use crate::register::Register;
use crate::results::Results;
use crate::threads::WorkerThread;
use crate::unheard::Unheard;
use crate::worker::{SESSION, introduction};
use parking_lot::Mutex;
use sheave_base::work::{Interrupt, reborrowed};
use sheave_base::{Error, ErrorKind, NodeId, Result, Work, clock, limits};
use sheave_fleet::MemberFleet;
use sheave_mesh::{Answer, Call, Mesh};
use sheave_wire::Value;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long it may take until it is known what the process of a lost worker has died of.
pub(crate) const DEATH_PATIENCE: Duration = Duration::from_millis(800);

/// How long workers may take to end once they were told to.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// One controller and its workers. Clones are the same session; it ends with the last of them and of its registers.
///
/// It may be used from any thread: all workers get the commands of all threads in one order.
///
/// ```
/// use sheave_session::{Args, Function, Session, register_function};
///
/// register_function(Function::typed("add one", |(number,): (i64,)| Ok(number + 1)))?;
/// let session = Session::threads(2, 1)?;
/// let add = session.function("add one")?;
/// let three = session.call(&add, &Args::new().value(2))?;
/// let four = session.call(&add, &Args::new().register(&three))?;
/// assert_eq!(four.get::<i64>(1, None)?, 4);
/// session.shutdown()?;
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone)]
pub struct Session(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    mesh: Mesh,
    pub(crate) commands: Arc<Commands>,
    pub(crate) unheard: Unheard,
    groups: u32,
    /// As many in a row are on one machine.
    workers_per_node: u32,
    lost: Arc<Lost>,
    /// The workers that are processes of this machine.
    processes: Option<Arc<MemberFleet>>,
    /// Those that are threads of this process.
    threads: Mutex<Vec<WorkerThread>>,
}

/// What a session is made of.
pub(crate) struct Ground {
    pub(crate) mesh: Mesh,
    pub(crate) groups: u32,
    pub(crate) workers_per_node: u32,
    pub(crate) lost: Arc<Lost>,
    pub(crate) processes: Option<Arc<MemberFleet>>,
    pub(crate) threads: Vec<WorkerThread>,
}

impl Session {
    /// Tells all workers who they are. Blocks until they know.
    pub(crate) fn begin(ground: Ground) -> Result<Self> {
        let Ground { mesh, groups, workers_per_node, lost, processes, threads } = ground;
        let commands = Commands::new(mesh.clone(), Arc::clone(&lost));
        let (count, threads) = (commands.workers().len() as u32, Mutex::new(threads));
        let unheard = Unheard::of(commands.workers().len());
        let shared = Shared { mesh, commands, unheard, groups, workers_per_node, lost, processes, threads };
        let session = Self(Arc::new(shared));
        // Workers are the members in their order.
        let told = (0..count).map(|id| {
            let call = Call::of(introduction(id, 0..count, groups, workers_per_node)).deadline(limits::JOIN_TIMEOUT);
            session.0.mesh.call(session.0.node(id), SESSION, "begin", call)
        });
        let told: Vec<_> = told.collect::<Result<_>>()?;
        told.into_iter().try_for_each(|work| work.wait().map(drop))?;
        Ok(session)
    }

    /// Returns how many workers there are.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.0.count()
    }

    /// Returns the mesh of the session, whose members are the workers in their order; this node is the first of them.
    #[must_use]
    pub fn mesh(&self) -> &Mesh {
        &self.0.mesh
    }

    /// Returns how many groups they are divided into.
    #[must_use]
    pub fn groups(&self) -> u32 {
        self.0.groups
    }

    /// Names a function, which each worker looks up in its own process
    /// ([`register_function`](crate::register_function)). Does not wait for them: where there is none, what calls it
    /// fails.
    ///
    /// # Errors
    ///
    /// As [`Session::call`].
    pub fn function(&self, name: &str) -> Result<Register> {
        self.function_pausing(name, &mut |blocking| blocking(None))
    }

    /// As [`Session::function`]; `pause` makes the waits for room.
    ///
    /// # Errors
    ///
    /// As [`Session::function`], and what `pause` says.
    pub fn function_pausing(&self, name: &str, pause: Pause<'_>) -> Result<Register> {
        let command = Command { callee: Callee::Named(name), args: None };
        self.0.issue(&command, None, pause).map(|results| Register::new(&self.0, results))
    }

    /// Has all workers call a function, each with its own values of the registers among the arguments. Does not wait
    /// for them, but for room where very many commands are under way, until the session is shut down at most
    /// ([`Session::call_within`] takes a timeout). Tensors are captured before it returns.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a register of another session or a value that cannot be sent, `BufferInUse` for a tensor
    /// that is being written, and then no worker has got the command; `Closed` after the session was shut
    /// down. What the workers say comes later.
    ///
    /// If a command cannot be sent to one of the workers, and others may have got it, the session is broken, for they
    /// would not do the same any more: this and everything that is asked of the session later fails with what says
    /// which worker lacks which command, and the workers do no more. A worker that is dead breaks nothing.
    pub fn call(&self, function: &Register, args: &Args) -> Result<Register> {
        self.call_within(function, args, None)
    }

    /// As [`Session::call`], and fails if there is no room after `timeout`; then no worker has got the command.
    ///
    /// # Errors
    ///
    /// As [`Session::call`], and `DeadlineExceeded` that names the worker which takes no more.
    pub fn call_within(&self, function: &Register, args: &Args, timeout: Option<Duration>) -> Result<Register> {
        self.call_pausing(function, args, timeout, &mut |blocking| blocking(None))
    }

    /// As [`Session::call_within`]; `pause` makes the waits for room. Nothing else of it blocks.
    ///
    /// # Errors
    ///
    /// As [`Session::call_within`], and what `pause` says; then no worker has got the command.
    pub fn call_pausing(
        &self,
        function: &Register,
        args: &Args,
        timeout: Option<Duration>,
        pause: Pause<'_>,
    ) -> Result<Register> {
        std::iter::once(function).chain(args.registers()).try_for_each(|register| register.check(&self.0))?;
        let _leases = args.hold()?;
        let command = Command { callee: Callee::Held(function), args: Some(args) };
        self.0.issue(&command, timeout, pause).map(|results| Register::new(&self.0, results))
    }

    /// Waits until a worker has done all commands that were issued before. After `timeout` this fails, and the commands
    /// go on.
    ///
    /// # Errors
    ///
    /// What commands have failed with since somebody was told: the first cause, which names the worker, the function
    /// and the number of the command, and how many there were. All else as [`Register::get`].
    pub fn sync(&self, worker: u32, timeout: Option<Duration>) -> Result<()> {
        self.sync_interruptible(worker, timeout, None)
    }

    /// As [`Session::sync`]; `interrupt` is asked at least every 100 ms, and its error ends the wait. The commands go
    /// on then.
    ///
    /// # Errors
    ///
    /// As [`Session::sync`], and what `interrupt` says.
    pub fn sync_interruptible(
        &self,
        worker: u32,
        timeout: Option<Duration>,
        mut interrupt: Option<Interrupt<'_>>,
    ) -> Result<()> {
        let (shared, until) = (&self.0, until(timeout));
        shared.check(worker)?;
        shared.tell_untold()?;
        let number = shared.commands.flush_until(until, reborrowed(&mut interrupt))?;
        let mut look = || interrupt.as_mut().map_or(Ok(()), |interrupt| interrupt());
        shared.end_sync(worker, number, shared.begin_sync(worker, number), until, &mut look)
    }

    /// As [`Session::sync`], of all workers, with one `timeout` for them together. Waits for all before it fails.
    ///
    /// # Errors
    ///
    /// As [`Session::sync`], of the first worker that has one.
    pub fn sync_all(&self, timeout: Option<Duration>) -> Result<()> {
        self.sync_all_interruptible(timeout, None)
    }

    /// As [`Session::sync_all`]; `interrupt` is asked at least every 100 ms, and its error ends the wait. The commands
    /// go on then.
    ///
    /// # Errors
    ///
    /// As [`Session::sync_all`], and what `interrupt` says.
    pub fn sync_all_interruptible(
        &self,
        timeout: Option<Duration>,
        mut interrupt: Option<Interrupt<'_>>,
    ) -> Result<()> {
        let (shared, until) = (&self.0, until(timeout));
        let (number, asked) = shared.commands.begin_sync(until, reborrowed(&mut interrupt))?;
        let begin =
            |(worker, asked): (u32, Option<_>)| (worker, asked.map_or_else(|| shared.begin_sync(worker, number), Ok));
        let begun: Vec<_> = (0..).zip(asked).map(begin).collect();
        let mut interrupted = None;
        let mut end = |(worker, work): (u32, Result<Work<Answer>>)| {
            if let Some(error) = &interrupted {
                // What nobody waits for any more is for whoever waits next.
                work.into_iter().for_each(|work| shared.unheard.keep(worker, (number, work)));
                return Err(Error::clone(error));
            }
            let mut look = || {
                let asked = interrupt.as_mut().map_or(Ok(()), |interrupt| interrupt());
                asked.inspect_err(|error| interrupted = Some(error.clone()))
            };
            shared.end_sync(worker, number, work, until, &mut look)
        };
        let ends: Vec<_> = begun.into_iter().map(&mut end).collect();
        ends.into_iter().collect()
    }

    /// Ends the session: workers do what was issued, and leave. Blocks until they have, or for ten seconds; then they
    /// are ended. Idempotent.
    ///
    /// # Errors
    ///
    /// What commands have failed with of which nobody was told, and deaths of which nobody was told; of a broken
    /// session what has broken it ([`Session::call`]). The session has ended all the same.
    pub fn shutdown(&self) -> Result<()> {
        self.0.shutdown()
    }
}

impl Shared {
    fn count(&self) -> u32 {
        self.commands.workers().len() as u32
    }

    fn node(&self, worker: u32) -> NodeId {
        self.commands.workers()[worker as usize]
    }

    /// Refuses a worker that there is not, and everything after the end.
    pub(crate) fn check(&self, worker: u32) -> Result<()> {
        self.commands.check(worker)
    }

    /// Issues a command to all workers that live, each with a register to fill.
    pub(crate) fn issue(
        &self,
        command: &Command<'_>,
        timeout: Option<Duration>,
        pause: Pause<'_>,
    ) -> Result<Arc<Results>> {
        self.commands.issue(command, timeout, pause)
    }

    /// Asks one worker and waits for its answer, which comes behind all commands that were issued before.
    pub(crate) fn ask(
        &self,
        worker: u32,
        method: &str,
        call: Call,
        timeout: Option<Duration>,
        mut interrupt: Option<Interrupt<'_>>,
    ) -> Result<Answer> {
        self.check(worker)?;
        self.tell_untold()?;
        let until = until(timeout);
        self.commands.flush_until(until, reborrowed(&mut interrupt))?;
        let node = self.node(worker);
        let begun = self.mesh.call(node, SESSION, method, Call { deadline: left(until), ..call });
        self.end_ask(worker, begun, interrupt)
    }

    /// Asks a worker whether all is well, once the command of this number has been issued.
    fn begin_sync(&self, worker: u32, number: u64) -> Result<Work<Answer>> {
        self.check(worker)?;
        if let Some(work) = self.unheard.take_last(worker, number) {
            return Ok(work);
        }
        self.mesh.call(self.node(worker), SESSION, SYNC, Call::default())
    }

    /// Waits for the answer until then. What does not come is for whoever waits next.
    fn end_sync(
        &self,
        worker: u32,
        number: u64,
        begun: Result<Work<Answer>>,
        until: Option<Instant>,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let (work, since) = (begun.map_err(|error| self.explained(worker, error))?, clock::now());
        let mut look = || self.commands.check_whole().and_then(|()| interrupt());
        let ended = work.wait_until(until, Some(&mut look));
        if let Ok(true) = ended {
            // A worker that has heard that the session is broken leaves commands out, and has nothing to complain of.
            return self.answered(worker, work.join()).and_then(|_| self.commands.check_whole());
        }
        self.unheard.keep(worker, (number, work));
        self.hear(worker)?;
        ended?;
        let error = Error::new(ErrorKind::DeadlineExceeded, format!("worker {worker} has not done its commands"));
        let error = error.operation(SYNC).elapsed(clock::since(since));
        let member = self.mesh.member(self.node(worker));
        Err(member.into_iter().fold(error, |error, member| error.peer(member.peer())).hint(commands::BUSY))
    }

    /// The answer; the call has its own deadline, and ends when the worker is gone or the session breaks.
    fn end_ask(
        &self,
        worker: u32,
        begun: Result<Work<Answer>>,
        mut interrupt: Option<Interrupt<'_>>,
    ) -> Result<Answer> {
        let mut look = || {
            self.commands.check_whole()?;
            interrupt.as_mut().map_or(Ok(()), |interrupt| interrupt())
        };
        self.end_wait(worker, begun, Some(&mut look))
    }

    /// As [`Shared::end_ask`], in a session that is broken too.
    fn end_wait(&self, worker: u32, begun: Result<Work<Answer>>, interrupt: Option<Interrupt<'_>>) -> Result<Answer> {
        let ended = begun.and_then(|work| match work.wait_until(None, interrupt) {
            Ok(_) => work.join(),
            Err(interrupted) => {
                // What the worker would tell is told to whoever waits next.
                work.cancel();
                Err(interrupted)
            }
        });
        self.answered(worker, ended)
    }

    /// The answer of a worker, unless an earlier question has one that nobody has heard: it has come before.
    fn answered(&self, worker: u32, answer: Result<Answer>) -> Result<Answer> {
        let answer = answer.map_err(|error| self.explained(worker, error))?;
        self.hear(worker)?;
        Ok(answer)
    }

    /// Fails with what a worker has answered to earlier questions and nobody has heard.
    fn hear(&self, worker: u32) -> Result<()> {
        self.unheard.hear(worker).map_err(|error| self.explained(worker, error))
    }

    /// Why a worker has not answered.
    fn explained(&self, worker: u32, error: Error) -> Error {
        let is_its = error.about().is_some_and(|peer| self.name(worker) == peer.name);
        if error.kind() != ErrorKind::PeerLost || !is_its {
            return error;
        }
        self.lost.note(self.node(worker), &error);
        self.gone(worker)
    }

    /// A death of which nobody was told: that of the first such worker.
    fn tell_untold(&self) -> Result<()> {
        if !self.lost.is_any() {
            return Ok(());
        }
        let is_untold = |node: &NodeId| self.lost.is_untold(*node);
        let worker = self.commands.workers().iter().position(is_untold);
        worker.map_or(Ok(()), |worker| Err(self.gone(worker as u32)))
    }

    fn name(&self, worker: u32) -> String {
        self.mesh.member(self.node(worker)).map(|member| member.peer().name.to_string()).unwrap_or_default()
    }

    /// Why a worker is gone: what its process has died of, where somebody knows that.
    pub(crate) fn gone(&self, worker: u32) -> Error {
        let lost = self.lost.of(self.node(worker));
        let died = if worker < self.workers_per_node {
            self.processes.as_ref().and_then(|fleet| fleet.death_of(&self.name(worker), DEATH_PATIENCE))
        } else {
            self.death_elsewhere(worker)
        };
        let unknown = || Error::new(ErrorKind::PeerLost, "it is gone");
        died.or(lost).unwrap_or_else(unknown).context(format!("worker {worker}"))
    }

    /// What the process has died of, by the word of the first worker of its machine, which has started it.
    fn death_elsewhere(&self, worker: u32) -> Option<Error> {
        let first = self.node(worker - worker % self.workers_per_node);
        if first == self.node(worker) || self.lost.has(first) {
            return None;
        }
        let call = Call::of(Value::from(self.name(worker))).deadline(2 * DEATH_PATIENCE);
        let asked = self.mesh.call(first, NODE, "death", call).and_then(Work::join);
        asked.err().filter(|error| error.kind() == ErrorKind::WorkerDied)
    }

    fn shutdown(&self) -> Result<()> {
        let until = clock::now() + END_PATIENCE;
        // What one that is stuck does not take leaves time for the others to end.
        if !self.commands.close(clock::now() + END_PATIENCE / 2) {
            return Ok(());
        }
        let whole = self.commands.check_whole();
        if whole.is_err() {
            // Those that could not be told may have room now. Who waits for others would not end by itself.
            self.commands.tell_broken();
        }
        let untold = self.tell_untold();
        // Worker 0 is a thread of this process: the others leave first.
        let living = (0..self.count()).rev().filter(|worker| !self.lost.has(self.node(*worker)));
        let stops: Vec<_> = living
            .map(|worker| {
                let call = Call { deadline: left(Some(until)), ..Call::of(Value::Bool(whole.is_err())) };
                (worker, self.mesh.call(self.node(worker), SESSION, "stop", call))
            })
            .collect();
        let ends: Vec<_> =
            stops.into_iter().map(|(worker, begun)| self.end_wait(worker, begun, None).map(drop)).collect();
        // Who has died cannot finish; who lives has been told.
        let _ = self.mesh.begin_finish().wait_timeout(until.saturating_duration_since(clock::now()));
        let _ = self.mesh.leave();
        if let Some(fleet) = &self.processes {
            // One that has died is no reason to cut the others off.
            fleet.children().iter().for_each(|child| _ = child.wait(Some(until)));
            fleet.end(Duration::ZERO);
        }
        for thread in self.threads.lock().drain(..) {
            thread.end(until);
        }
        // What the workers say of a broken session comes of that.
        whole.and(ends.into_iter().fold(untold, Result::and))
    }
}

/// When a wait ends that may last so long.
fn until(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| clock::now().checked_add(timeout))
}

/// How long there is until then.
fn left(until: Option<Instant>) -> Option<Duration> {
    until.map(|until| until.saturating_duration_since(clock::now()))
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Whoever wants to know what has failed shuts it down.
        let _ = self.shutdown();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("workers", &self.workers()).field("groups", &self.groups()).finish()
    }
}
