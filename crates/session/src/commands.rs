//! How commands get to the workers.
//!
//! Commands of all threads stand in one order, which is that of the turns that threads take. The names of the registers
//! that a command fills are drawn in its turn, so it means something at once, whenever it leaves.
//!
//! **In batches.** A message costs more than a command. One that comes right behind another, or while others are kept,
//! is kept for those that follow, until there are [`BATCH_MAX`] or somebody waits for a worker; none is kept for longer
//! than [`BATCH_SPAN`], or [`BATCH_SPAN_AWAITED`], for the timer is set with the first. One that comes alone leaves at
//! once, and so does one with tensors or long values, behind what was kept. A message has what was issued for one
//! worker, in order, and leaves when all workers have room for it: no command gets to some of them alone because others
//! are busy. A wait for all workers asks each in the message that has what was kept for it ([`SYNC`]).
//!
//! **Written when it is issued.** A message is one flat list: the number of its first command, those behind which have
//! the next ones, and of each command how many arguments it has, the register that it fills, the function, and the
//! arguments. What is kept is that list, written but for what differs from worker to worker, and the handles to what it
//! names ([`kept`](crate::kept)): so no values are made of a command here, and no name is looked up at either end.
//!
//! **Named when it is wanted.** A register that is dropped before its command leaves has no names, and costs nothing
//! here or there. All that are kept may get some, by the limits of this node; where they might not, names are drawn as
//! commands are issued, and who issues one too many is told.
//!
//! **Bounds.** Each worker is asked now and then to say how far it has come ([`MARK_EVERY`]), and nobody gets further
//! ahead of it than [`MARKS_MAX`] of these; the windows of calls bound messages and bytes besides.
//!
//! **All or none.** Operations of several workers meet by the order of commands, so what has got to some of the workers
//! alone breaks the session ([`abort`](crate::abort)), but for those that are dead: every call fails from then on, and
//! says which worker lacks which command. Where the very first worker does not take a command that is sent at once, no
//! worker has it: then its call fails and that is all.
//!
//! What is kept holds the registers that it names. It holds no session: who drops that ends it, and so sends it.

use crate::abort::ABORT;
use crate::args::Args;
use crate::kept::{self, Kept};
use crate::lost::Lost;
use crate::register::Register;
use crate::results::Results;
use crate::worker::{FIRST, SESSION};
use parking_lot::{Mutex, MutexGuard};
use sheave_base::work::{Interrupt, reborrowed};
use sheave_base::{Error, ErrorKind, NodeId, Result, Work, clock, limits};
use sheave_mesh::{Answer, ArgList, Call, Mesh, Ref};
use sheave_net::Parts;
use sheave_wire::{Value, codec};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The method of all commands.
pub(crate) const COMMANDS: &str = "do";

/// The method of commands behind which the worker is to say whether all is well.
pub(crate) const SYNC: &str = "sync";

/// The hint of errors that name a worker which is late.
pub(crate) const BUSY: &str = "its function takes long, or waits for something that does not come";

/// Commands in one message at most: about as many as come within [`BATCH_SPAN`].
const BATCH_MAX: usize = 160;

/// Commands between questions of how far the workers have come.
const MARK_EVERY: u64 = 4096;

/// Such questions that are not answered at most: whoever issues more commands waits.
const MARKS_MAX: usize = 2;

/// The method of such a question.
pub(crate) const MARK: &str = "mark";

/// Longest name of a function in a command that is kept.
const NAME_BYTES_MAX: usize = 256;

/// Bytes of a command at most beside the name of its function and its arguments: of the method, of numbers, and of what
/// names registers.
const HEAD_BYTES_MAX: usize = 256;

/// How long a command is kept for others at most.
const BATCH_SPAN: Duration = Duration::from_micros(100);

/// The same where whoever has issued some has always waited for a worker so far, and so sent them: each time that it is
/// looked takes a core away from those who work.
const BATCH_SPAN_AWAITED: Duration = Duration::from_millis(1);

/// How soon after another one a command comes that is kept.
const BURST_SPAN: Duration = Duration::from_micros(50);

/// How long what was kept waits on if a worker has no room, or a thread has the turn.
const AGAIN_SPAN: Duration = Duration::from_millis(1);

/// How often who waits for room looks whether the session is shut down.
const CLOSED_LOOK: Duration = Duration::from_millis(100);

/// How long who waits for the turn of other threads goes on before it asks whether to.
const TURN_LOOK: Duration = Duration::from_millis(20);

/// A part of a command that blocks, and asks whether to go on.
pub type Blocking<'a> = &'a mut (dyn FnMut(Option<Interrupt<'_>>) -> Result<()> + Send);

/// Makes the waits of a command: it calls each part that blocks, after it has let go of what the workers may need
/// meanwhile, such as the lock of an interpreter. An error of its own ends the command.
pub type Pause<'a> = &'a mut dyn FnMut(Blocking<'_>) -> Result<()>;

/// What all workers are to do.
pub(crate) struct Command<'a> {
    pub(crate) callee: Callee<'a>,
    /// Without arguments the function is not called, but is the result.
    pub(crate) args: Option<&'a Args>,
}

/// The function of a command.
pub(crate) enum Callee<'a> {
    Named(&'a str),
    Held(&'a Register),
}

impl Command<'_> {
    pub(crate) fn name(&self) -> &'static str {
        if self.args.is_some() { "call" } else { "function" }
    }

    /// The title of the command, for errors, behind its number.
    fn title(&self) -> String {
        match (&self.callee, self.args) {
            (Callee::Named(name), Some(_)) => format!(", a call of {name}"),
            (Callee::Named(name), None) => format!(", the function {name}"),
            (Callee::Held(_), _) => String::new(),
        }
    }

    /// What this worker gets, to fill this register.
    fn of_worker(&self, worker: usize, held: &Ref, number: u64) -> (Value, Parts) {
        let callee = match self.callee {
            Callee::Named(name) => Value::from(name),
            Callee::Held(register) => register.value(worker),
        };
        let count = kept::count(self.args.map(Args::len));
        let mut items = vec![Value::Int(number.cast_signed()), count, held.to_fill(), callee];
        let (args, parts) = self.args.map(|args| args.of_worker(worker)).unwrap_or_default();
        items.extend(args);
        (Value::List(items), parts)
    }

    /// Sees to it that its registers have names.
    fn draw(&self, commands: &Commands) -> Result<()> {
        if let Callee::Held(register) = self.callee {
            register.results().refs(commands)?;
        }
        let mut registers = self.args.into_iter().flat_map(Args::registers);
        registers.try_for_each(|register| register.results().refs(commands).map(drop))
    }

    /// Refuses what is too long for a message to this worker.
    fn check_length(&self, worker: usize, held: &Ref, number: u64) -> Result<()> {
        let mut control = Vec::new();
        codec::encode_text_to(COMMANDS, &mut control)?;
        codec::encode_to(&self.of_worker(worker, held, number).0, &mut control)?;
        if control.len() <= limits::CONTROL_BYTES_MAX {
            return Ok(());
        }
        let what = format!("a command of {} bytes; the limit is {}", control.len(), limits::CONTROL_BYTES_MAX);
        Err(Error::new(ErrorKind::LimitExceeded, what).hint("send what is long as a tensor"))
    }

    /// Returns how many bytes it takes at most.
    fn bytes_max(&self) -> usize {
        let name_bytes = match self.callee {
            Callee::Named(name) => name.len(),
            Callee::Held(_) => 0,
        };
        name_bytes.saturating_add(self.args.map_or(0, Args::bytes_max)).saturating_add(HEAD_BYTES_MAX)
    }

    /// Whether it is worth being kept, and surely can be sent.
    fn is_short(&self) -> bool {
        let has_short_name = match self.callee {
            Callee::Named(name) => name.len() <= NAME_BYTES_MAX,
            Callee::Held(_) => true,
        };
        has_short_name && self.args.is_none_or(Args::are_short)
    }
}

/// What has been issued and has not left.
#[derive(Default)]
struct Turn {
    /// The number of the last command.
    number: u64,
    kept: Kept,
    /// Whether registers of what is kept get their names when it leaves.
    draws_later: bool,
    /// By worker: memory for what it gets.
    lists: Vec<ArgList>,
    dropped: Dropped,
    /// Questions of how far the workers have come, each to all of them.
    marks: VecDeque<Vec<(u32, Work<Answer>)>>,
    /// When the last one came that found none kept, or when what was kept left in time.
    last: Option<Instant>,
    is_timed: bool,
    /// Whether the timer has found nothing kept when it ran last.
    is_awaited: bool,
}

/// Commands that have left, and those that were not sent when the session broke. They go once the turn is over, for
/// they may hold the last handles to objects of this node, and their drops may do anything.
#[derive(Default)]
struct Dropped {
    kept: Vec<Kept>,
    lists: Vec<ArgList>,
}

impl Turn {
    /// Whether the command that comes now comes soon after another one: behind those that are kept, or shortly after
    /// the last one that was not.
    fn is_burst(&mut self) -> bool {
        !self.kept.is_empty() || {
            let now = clock::now();
            self.last.replace(now).is_some_and(|last| now.saturating_duration_since(last) < BURST_SPAN)
        }
    }

    /// The number of the first command of these, which are the last ones.
    fn first_of(&self, kept: &Kept) -> u64 {
        self.number + FIRST - kept.len() as u64
    }
}

/// The way of a session's commands.
pub(crate) struct Commands {
    mesh: Mesh,
    workers: Vec<NodeId>,
    lost: Arc<Lost>,
    /// Whoever holds this issues a command, to all workers.
    turn: Mutex<Turn>,
    is_closed: AtomicBool,
    /// Why nothing is issued any more: a worker lacks a command that others may have.
    broken: OnceLock<Error>,
}

impl Commands {
    pub(crate) fn new(mesh: Mesh, lost: Arc<Lost>) -> Arc<Self> {
        let workers: Vec<NodeId> = mesh.members().iter().map(|member| member.node).collect();
        let lists = workers.iter().map(|_| ArgList::default()).collect();
        let turn = Mutex::new(Turn { lists, ..Turn::default() });
        let (is_closed, broken) = Default::default();
        Arc::new(Self { mesh, workers, lost, turn, is_closed, broken })
    }

    /// The workers' nodes.
    pub(crate) fn workers(&self) -> &[NodeId] {
        &self.workers
    }

    /// Fails if the session is broken.
    pub(crate) fn check_whole(&self) -> Result<()> {
        self.broken.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Refuses a worker that there is not, and everything after the end or once the session is broken.
    pub(crate) fn check(&self, worker: u32) -> Result<()> {
        if self.is_closed.load(SeqCst) {
            return Err(Error::new(ErrorKind::Closed, "the session was shut down"));
        }
        self.check_whole()?;
        if (worker as usize) < self.workers.len() {
            return Ok(());
        }
        let what = format!("worker {worker} of {}; they are counted from 0", self.workers.len());
        Err(Error::new(ErrorKind::InvalidArgument, what))
    }

    /// Takes no more commands, and sends what was kept, for which it waits until then at most. False if it has done so
    /// before.
    pub(crate) fn close(&self, until: Instant) -> bool {
        if self.is_closed.swap(true, SeqCst) {
            return false;
        }
        // Whoever issues a command has done so, or has seen the mark.
        let mut turn = self.turn.lock();
        let kept = std::mem::take(&mut turn.kept);
        kept.draw_wanted(self);
        let has_room = |worker: usize| self.mesh.room(self.workers[worker], SESSION, None);
        // One that is stuck holds up nobody else. What it does not get breaks the registers that it was to fill.
        let workers = (0..self.workers.len()).filter(|_| !kept.is_empty());
        let (ready, late): (Vec<_>, Vec<_>) = workers.partition(|worker| has_room(*worker).is_done());
        let mut send = |worker: usize, list: &mut ArgList| self.cast(worker, list);
        for worker in ready.into_iter().chain(late) {
            let is_due = has_room(worker).wait_until(Some(until), None).unwrap_or(false);
            if is_due && let Err(error) = self.send_list(&mut turn, worker, &kept, &mut send) {
                // The end of the session tells it.
                let _ = self.break_off(&mut turn, worker, "its last commands", error);
                break;
            }
        }
        turn.dropped.kept.push(kept);
        Self::end_turn(turn);
        true
    }

    /// Issues a command to all workers that live, each with a register to fill.
    pub(crate) fn issue(
        self: &Arc<Self>,
        command: &Command<'_>,
        timeout: Option<Duration>,
        pause: Pause<'_>,
    ) -> Result<Arc<Results>> {
        let until = timeout.and_then(|timeout| clock::now().checked_add(timeout));
        let mut turn = self.take_turn(until, pause)?;
        let issued = self.issue_in(&mut turn, command, until, pause);
        Self::end_turn(turn);
        issued
    }

    fn issue_in(
        self: &Arc<Self>,
        turn: &mut Turn,
        command: &Command<'_>,
        until: Option<Instant>,
        pause: Pause<'_>,
    ) -> Result<Arc<Results>> {
        self.check(0).map_err(|error| error.operation(command.name()))?;
        let is_kept = turn.is_burst() && command.is_short();
        if !is_kept || turn.kept.len() >= BATCH_MAX {
            self.flush(turn, until, pause)?;
        }
        if !is_kept {
            self.await_rooms(until, pause)?;
        }
        if (turn.number + 1).is_multiple_of(MARK_EVERY) {
            self.mark(turn, until, pause)?;
        }
        command.draw(self)?;
        if is_kept {
            return self.keep(turn, command);
        }
        let refs = self.draw()?;
        self.send_to_all(turn, command, &refs)?;
        Ok(Results::drawn(refs))
    }

    /// Ends a turn, and only then drops what it has left: that may do anything.
    fn end_turn(mut turn: MutexGuard<'_, Turn>) {
        let dropped = std::mem::take(&mut turn.dropped);
        drop(turn);
        drop(dropped);
    }

    /// Keeps a command for others to come.
    fn keep(self: &Arc<Self>, turn: &mut Turn, command: &Command<'_>) -> Result<Arc<Results>> {
        if turn.kept.is_empty() {
            turn.draws_later = self.mesh.can_promise(&self.workers, BATCH_MAX);
        }
        let results = if turn.draws_later { Results::undrawn() } else { Results::drawn(self.draw()?) };
        turn.kept.push(command, &results)?;
        turn.number += 1;
        self.time(turn)?;
        Ok(results)
    }

    /// Sends a command to all workers that live.
    fn send_to_all(&self, turn: &mut Turn, command: &Command<'_>, refs: &[Option<Ref>]) -> Result<()> {
        let number = turn.number + 1;
        self.check_lengths(command, refs, number)?;
        let mut have_some = false;
        for (worker, held) in refs.iter().enumerate() {
            let Some(held) = held else { continue };
            let (args, tensors) = command.of_worker(worker, held, number);
            match self.send(worker, Call { tensors, ..Call::of(args) }) {
                Ok(is_sent) => have_some |= is_sent,
                // No worker has it, so none lacks it: all are where they were, and the next command has its number. Its
                // caller is told, has no register of it, and may issue it again.
                Err(error) if !have_some => return Err(error),
                Err(error) => {
                    let what = format!("command {number}{}", command.title());
                    return Err(self.break_off(turn, worker, &what, error));
                }
            }
        }
        turn.number = number;
        Ok(())
    }

    /// Refuses a command that is too long for a message before any worker has it: the one on this node, which is the
    /// first, would take it all the same.
    fn check_lengths(&self, command: &Command<'_>, refs: &[Option<Ref>], number: u64) -> Result<()> {
        if command.bytes_max() <= limits::CONTROL_BYTES_MAX {
            return Ok(());
        }
        let me = self.mesh.me().node;
        let elsewhere = refs.iter().enumerate().filter(|(worker, _)| self.workers[*worker] != me);
        let mut elsewhere = elsewhere.filter_map(|(worker, held)| Some((worker, held.as_ref()?)));
        let checked = elsewhere.try_for_each(|(worker, held)| command.check_length(worker, held, number));
        checked.map_err(|error| error.operation(command.name()))
    }

    /// Breaks the session, in which a worker lacks commands: nothing is issued any more, and those that wait for that
    /// worker are ended. Returns what everybody is told from now on.
    fn break_off(&self, turn: &mut Turn, worker: usize, what: &str, error: Error) -> Error {
        let error = error.context(format_args!("the session is broken: worker {worker} has not got {what}"));
        let error = error.hint("the workers would not do the same any more; shut it down, and begin another one");
        let error = self.broken.get_or_init(|| error).clone();
        let kept = std::mem::take(&mut turn.kept);
        turn.dropped.kept.push(kept);
        self.tell_broken();
        error
    }

    /// Tells all workers that the session is broken, for what it is worth: one that cannot be told is ended in the end.
    pub(crate) fn tell_broken(&self) {
        for node in self.workers.iter().filter(|node| !self.lost.has(**node)) {
            let _ = self.mesh.cast(*node, ABORT, "", Value::None);
        }
    }

    /// Asks how far the workers have come, once they have said so often enough.
    fn mark(&self, turn: &mut Turn, until: Option<Instant>, pause: Pause<'_>) -> Result<()> {
        self.flush(turn, until, pause)?;
        while let Some(marks) = turn.marks.front().filter(|_| turn.marks.len() >= MARKS_MAX) {
            for (worker, mark) in marks.iter().filter(|(_, mark)| !mark.is_done()) {
                pause(&mut |interrupt| self.wait_in(*worker, mark, until, interrupt))?;
            }
            turn.marks.pop_front();
        }
        let living = (0..).zip(&self.workers).filter(|(_, node)| !self.lost.has(**node));
        // Of one that is gone whoever waits for it hears.
        let ask = |(worker, node): (u32, &NodeId)| {
            self.mesh.call(*node, SESSION, MARK, Call::default()).ok().map(|mark| (worker, mark))
        };
        let marks = living.filter_map(ask).collect();
        turn.marks.push_back(marks);
        Ok(())
    }

    /// Sends what was kept, for those who wait for a worker: what they ask comes behind it. Returns the number of the
    /// last command.
    pub(crate) fn flush_until(&self, until: Option<Instant>, mut interrupt: Option<Interrupt<'_>>) -> Result<u64> {
        let pause: Pause<'_> = &mut |blocking| blocking(reborrowed(&mut interrupt));
        let mut turn = self.take_turn(until, pause)?;
        let flushed = self.check_whole().and_then(|()| self.flush(&mut turn, until, pause));
        let number = turn.number;
        Self::end_turn(turn);
        flushed.map(|()| number)
    }

    /// Sends what was kept, and asks each worker that gets some whether all is well, in the same message: the answer
    /// comes behind all commands. There is none where nothing was kept, and of a worker that is gone. Returns the
    /// number of the last command too.
    pub(crate) fn begin_sync(
        &self,
        until: Option<Instant>,
        mut interrupt: Option<Interrupt<'_>>,
    ) -> Result<(u64, Vec<Option<Work<Answer>>>)> {
        let pause: Pause<'_> = &mut |blocking| blocking(reborrowed(&mut interrupt));
        let mut turn = self.take_turn(until, pause)?;
        let asked = self.check_whole().and_then(|()| self.sync_in(&mut turn, until, pause));
        let number = turn.number;
        Self::end_turn(turn);
        Ok((number, asked?))
    }

    fn sync_in(&self, turn: &mut Turn, until: Option<Instant>, pause: Pause<'_>) -> Result<Vec<Option<Work<Answer>>>> {
        let mut asked: Vec<_> = self.workers.iter().map(|_| None).collect();
        if !turn.kept.is_empty() {
            self.await_rooms(until, pause)?;
            self.send_kept_by(turn, |worker, list| {
                asked[worker] = Some(self.mesh.call_list(self.workers[worker], SESSION, SYNC, list, None)?);
                Ok(())
            })?;
        }
        Ok(asked)
    }

    fn flush(&self, turn: &mut Turn, until: Option<Instant>, pause: Pause<'_>) -> Result<()> {
        if turn.kept.is_empty() {
            return Ok(());
        }
        self.await_rooms(until, pause)?;
        self.send_kept(turn)
    }

    /// Sends what was kept, for which all have room.
    fn send_kept(&self, turn: &mut Turn) -> Result<()> {
        if turn.kept.is_empty() {
            return Ok(());
        }
        self.send_kept_by(turn, |worker, list| self.cast(worker, list))
    }

    fn cast(&self, worker: usize, list: &mut ArgList) -> Result<()> {
        self.mesh.cast_list(self.workers[worker], SESSION, COMMANDS, list)
    }

    /// As [`Commands::send_kept`], in a message to each worker that `send` sends.
    fn send_kept_by(&self, turn: &mut Turn, mut send: impl FnMut(usize, &mut ArgList) -> Result<()>) -> Result<()> {
        let kept = std::mem::take(&mut turn.kept);
        kept.draw_wanted(self);
        let sent = (0..self.workers.len()).try_for_each(|worker| {
            self.send_list(turn, worker, &kept, &mut send).map_err(|error| {
                // Even if no worker has got any: their callers have their registers, and take them for issued.
                let (first, last) = (turn.first_of(&kept), turn.number);
                let what =
                    if first == last { format!("command {last}") } else { format!("commands {first} to {last}") };
                self.break_off(turn, worker, &what, error)
            })
        });
        turn.dropped.kept.push(kept);
        sent
    }

    /// Sends a worker what was kept, unless it is gone. What that names is held until it has left.
    fn send_list(
        &self,
        turn: &mut Turn,
        worker: usize,
        kept: &Kept,
        send: &mut impl FnMut(usize, &mut ArgList) -> Result<()>,
    ) -> Result<()> {
        let node = self.workers[worker];
        if self.lost.has(node) {
            return Ok(());
        }
        self.check_earlier(node)?;
        let first = turn.first_of(kept);
        let list = &mut turn.lists[worker];
        let sent = kept.write_to(list, worker, first).and_then(|()| send(worker, list));
        if !list.is_empty() {
            turn.dropped.lists.push(std::mem::take(list));
        }
        sent.or_else(|error| self.unless_lost(node, error))
    }

    /// Sends a worker a command. False if it is gone.
    fn send(&self, worker: usize, call: Call) -> Result<bool> {
        let node = self.workers[worker];
        if self.lost.has(node) {
            return Ok(false);
        }
        self.check_earlier(node)?;
        let sent = self.mesh.cast(node, SESSION, COMMANDS, call).map(|()| true);
        sent.or_else(|error| self.unless_lost(node, error).map(|()| false))
    }

    /// Sees to it that what is kept leaves soon.
    fn time(self: &Arc<Self>, turn: &mut Turn) -> Result<()> {
        if turn.is_timed {
            return Ok(());
        }
        let (weak, runtime) = (Arc::downgrade(self), self.mesh.runtime().clone());
        let mut span = if turn.is_awaited { BATCH_SPAN_AWAITED } else { BATCH_SPAN };
        let timed = self.mesh.spawn("commands", async move {
            loop {
                runtime.sleep_until(runtime.after(span))?.await;
                match weak.upgrade() {
                    Some(commands) if !commands.flush_in_time() => span = AGAIN_SPAN,
                    _ => return Ok(()),
                }
            }
        });
        turn.is_timed = timed.is_ok();
        if turn.is_timed { Ok(()) } else { self.send_kept(turn) }
    }

    /// Sends what was kept unless that has to wait. Does not block.
    fn flush_in_time(&self) -> bool {
        let Some(mut turn) = self.turn.try_lock() else { return false };
        let is_ready = turn.kept.is_empty() || self.have_room();
        if is_ready {
            turn.is_timed = false;
            turn.is_awaited = turn.kept.is_empty();
            if !turn.is_awaited {
                // Who has issued so many is likely to go on.
                turn.last = Some(clock::now());
            }
            // If this breaks the session, whatever comes next says so.
            let _ = self.send_kept(&mut turn);
        }
        Self::end_turn(turn);
        is_ready
    }

    /// Whether all workers that live take one more message.
    fn have_room(&self) -> bool {
        let busy = || Err(Error::new(ErrorKind::LimitExceeded, "a worker takes no more commands"));
        self.rooms(|room, worker| if room.is_done() { self.room_ended(worker, room) } else { busy() }).is_ok()
    }

    /// Takes the turn to issue a command. Who pauses holds nothing that the thread may need that has the turn.
    fn take_turn(&self, until: Option<Instant>, pause: Pause<'_>) -> Result<MutexGuard<'_, Turn>> {
        loop {
            if let Some(turn) = self.turn.try_lock() {
                return Ok(turn);
            }
            pause(&mut |interrupt| {
                drop(self.turn.try_lock_for(TURN_LOOK));
                if until.is_some_and(|until| clock::now() >= until) {
                    let what = "another thread waits until the workers take more commands";
                    return Err(Error::new(ErrorKind::DeadlineExceeded, what).operation("call"));
                }
                interrupt.map_or(Ok(()), |interrupt| interrupt())
            })?;
        }
    }

    /// Draws the registers of a command, one of each worker that lives. [`MARKS_MAX`] bounds those that are not filled.
    pub(crate) fn draw(&self) -> Result<Vec<Option<Ref>>> {
        if !self.lost.is_any() {
            let (drawn, refusals) = self.mesh.promise_each(&self.workers);
            refusals.into_iter().try_for_each(|(node, error)| self.unless_lost(node, error))?;
            return Ok(drawn);
        }
        let draw = |node: &NodeId| {
            if self.lost.has(*node) {
                return Ok(None);
            }
            self.mesh.promise(*node).map(Some).or_else(|error| self.unless_lost(*node, error).map(|()| None))
        };
        self.workers.iter().map(draw).collect()
    }

    /// Does something with the room of each worker that lives.
    fn rooms(&self, mut act: impl FnMut(Work<()>, u32) -> Result<()>) -> Result<()> {
        let living = (0..).zip(&self.workers).filter(|(_, node)| !self.lost.has(**node));
        living.into_iter().try_for_each(|(worker, node)| act(self.mesh.room(*node, SESSION, None), worker))
    }

    /// Waits until all workers take one more message, are gone, or the session is shut down. Of all before any has the
    /// message: they are to get the same.
    fn await_rooms(&self, until: Option<Instant>, pause: Pause<'_>) -> Result<()> {
        self.rooms(|room, worker| {
            if room.is_done() {
                return self.room_ended(worker, room);
            }
            let mut room = Some(room);
            pause(&mut |interrupt| match room.take() {
                Some(room) => {
                    self.wait_in(worker, &room, until, interrupt)?;
                    self.room_ended(worker, room)
                }
                None => Ok(()),
            })
        })
    }

    fn wait_in<T: Send + 'static>(
        &self,
        worker: u32,
        work: &Work<T>,
        until: Option<Instant>,
        mut interrupt: Option<Interrupt<'_>>,
    ) -> Result<()> {
        let begun = clock::now();
        loop {
            let look = clock::now() + CLOSED_LOOK;
            let look = until.map_or(look, |until| until.min(look));
            if work.wait_until(Some(look), reborrowed(&mut interrupt))? {
                return Ok(());
            }
            self.check_time(worker, begun, until)?;
        }
    }

    /// Whether a wait for a worker that takes no more goes on: the session has not ended, and its time is not up.
    fn check_time(&self, worker: u32, begun: Instant, until: Option<Instant>) -> Result<()> {
        self.check(worker)?;
        if until.is_none_or(|until| clock::now() < until) {
            return Ok(());
        }
        let what = format!("worker {worker} takes no more commands");
        let error = Error::new(ErrorKind::DeadlineExceeded, what).operation("call").elapsed(clock::since(begun));
        let error = error.hint(BUSY);
        let member = self.mesh.member(self.workers[worker as usize]);
        Err(member.into_iter().fold(error, |error, member| error.peer(member.peer())))
    }

    fn room_ended(&self, worker: u32, room: Work<()>) -> Result<()> {
        room.join().or_else(|ended| self.unless_lost(self.workers[worker as usize], ended))
    }

    /// Fails with what an earlier one-way call to a worker has failed with, which its next one is not to tell: that may
    /// be the loss of any node at any time, and is no death of this worker. Of one that is dead it does not matter.
    fn check_earlier(&self, node: NodeId) -> Result<()> {
        let is_dead = || self.mesh.deaths().iter().any(|death| death.node == node);
        self.mesh.check_one_way(node, SESSION).or_else(|error| if is_dead() { Ok(()) } else { Err(error) })
    }

    /// A worker that is gone is no failure of what was asked of all; whoever waits next is told.
    fn unless_lost(&self, node: NodeId, error: Error) -> Result<()> {
        let is_of_another = error.about().and_then(|peer| peer.node).is_some_and(|about| about != node);
        if error.kind() != ErrorKind::PeerLost || is_of_another {
            return Err(error);
        }
        self.lost.note(node, &error);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Function, Held, Session, Worker, register_function};
    use sheave_mesh::Request;
    use std::sync::atomic::AtomicU64;

    static IS_DROPPED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

    /// An object with a drop of its own, which might want a turn.
    struct Probe(usize);

    impl Drop for Probe {
        fn drop(&mut self) {
            IS_DROPPED[self.0].store(true, SeqCst);
        }
    }

    /// Begins a session that keeps a command with the last handle to a probe, which `meet` has the first worker refuse.
    fn refuses(number: usize, name: &'static str, meet: impl FnOnce(&Session) -> String) {
        let probe = move |_| match Worker::current()?.id {
            0 => Ok(Held::Object(Arc::new(Probe(number)))),
            _ => Ok(Held::default()),
        };
        register_function(Function::new(name, probe)).unwrap();
        let session = Session::threads(2, 1).unwrap();
        let commands = &session.0.commands;
        let made = session.call_named(name, &Args::new(), None, &mut |blocking| blocking(None)).unwrap();
        session.sync_all(None).unwrap();
        let mut turn = commands.turn.lock();
        let args = Args::new().register(&made);
        let command = Command { callee: Callee::Named(name), args: Some(&args) };
        commands.keep(&mut turn, &command).unwrap();
        drop((args, made));
        let why = meet(&session);
        let error = commands.send_kept(&mut turn).expect_err("it is refused");
        assert!(error.to_string().contains(&why), "{error}");
        assert!(!IS_DROPPED[number].load(SeqCst), "somebody has the turn");
        Commands::end_turn(turn);
        assert!(IS_DROPPED[number].load(SeqCst));
        session.shutdown().expect_err("it is broken");
    }

    #[test]
    fn what_a_worker_refuses_is_dropped_when_the_turn_is_over() {
        refuses(0, "probe", |session| {
            let worker = session.0.commands.workers[0];
            session.mesh().cast(worker, SESSION, "no such", Value::None).unwrap();
            session.mesh().call(worker, SESSION, MARK, Value::None).unwrap().wait().unwrap();
            "no command \"no such\"".to_owned()
        });
    }

    #[test]
    fn what_a_message_that_is_refused_names_is_dropped_when_the_turn_is_over() {
        let unanswered = Arc::new(Mutex::new(Vec::new()));
        refuses(1, "another probe", |session| {
            let keeps = Arc::clone(&unanswered);
            session.mesh().serve("silent", move |request: Request| keeps.lock().push(request)).unwrap();
            let worker = session.0.commands.workers[0];
            // Until this node makes no more calls to itself.
            while session.mesh().cast(worker, "silent", "wait", Value::None).is_ok() {}
            "of this node to itself have not ended".to_owned()
        });
    }

    /// An object that counts how many of its worker live together.
    struct Living(&'static AtomicU64);

    impl Drop for Living {
        fn drop(&mut self) {
            self.0.fetch_sub(1, SeqCst);
        }
    }

    #[test]
    fn what_nobody_holds_has_no_name_and_is_let_go_behind_its_command() {
        static LIVING: [(AtomicU64, AtomicU64); 2] = [const { (AtomicU64::new(0), AtomicU64::new(0)) }; 2];
        let make = |_| {
            let (living, most) = &LIVING[Worker::current()?.id as usize];
            most.fetch_max(living.fetch_add(1, SeqCst) + 1, SeqCst);
            Ok(Held::Object(Arc::new(Living(living))))
        };
        register_function(Function::new("make", make)).unwrap();
        let session = Session::threads(2, 1).unwrap();
        let commands = &session.0.commands;
        let none = Args::new();
        let command = Command { callee: Callee::Named("make"), args: Some(&none) };
        let mut turn = commands.turn.lock();
        let all: Vec<_> = (0..100).map(|_| commands.keep(&mut turn, &command).unwrap()).collect();
        let known: Vec<_> = all.iter().map(Arc::downgrade).collect();
        let held = all.into_iter().nth(7).unwrap();
        commands.send_kept(&mut turn).unwrap();
        for (number, known) in known.iter().enumerate() {
            let has_name = known.upgrade().is_some_and(|results| results.of(1).is_some());
            assert_eq!(has_name, number == 7, "command {number}");
        }
        Commands::end_turn(turn);
        session.sync_all(None).unwrap();
        for (living, most) in &LIVING {
            assert_eq!((living.load(SeqCst), most.load(SeqCst)), (1, 2), "one is held");
        }
        drop(held);
        session.shutdown().unwrap();
    }

    #[test]
    fn a_wait_for_all_workers_is_one_message_with_what_was_kept() {
        register_function(Function::new("fails", |_| Err(Error::new(ErrorKind::Remote, "it was kept")))).unwrap();
        let session = Session::threads(2, 1).unwrap();
        let (commands, none) = (&session.0.commands, Args::new());
        let command = Command { callee: Callee::Named("fails"), args: Some(&none) };
        let sent = || session.mesh().node().counts().messages_sent;
        for count in 1..4 {
            let mut turn = commands.turn.lock();
            // So that no timer sends it.
            turn.is_timed = true;
            (0..count).for_each(|_| drop(commands.keep(&mut turn, &command).unwrap()));
            Commands::end_turn(turn);
            let before = sent();
            let error = session.sync_all(None).expect_err("they have failed");
            assert!(error.to_string().contains("it was kept"), "{error}");
            assert_eq!(sent() - before, 1, "{count} commands and a question for worker 1");
        }
        session.sync_all(None).expect("it is told once");
        session.shutdown().unwrap();
    }
}
