//! How commands get to the workers.
//!
//! Commands of all threads stand in one order, which is that of the turns that threads take. The names of the registers
//! that a command fills are drawn in its turn, so it means something at once, whenever it leaves.
//!
//! **In batches.** A message costs more than a command. One that comes right behind another is kept for those that
//! follow, until there are [`BATCH_MAX`] or somebody waits for a worker, and for [`BATCH_SPAN`] at most; one that comes
//! alone leaves at once, and so does one with tensors or long values, behind what was kept. A message has what was
//! issued for one worker, in order, and leaves when all workers have room for it: no command gets to some of them
//! alone because others are busy.
//!
//! **Bounds.** Each worker is asked now and then to say how far it has come ([`MARK_EVERY`]), and nobody gets further
//! ahead of it than [`MARKS_MAX`] of these; the windows of calls bound messages and bytes besides.
//!
//! What is kept holds the registers that it names. It holds no session: who drops that ends it, and so sends it.

use crate::args::Args;
use crate::lost::Lost;
use crate::register::Register;
use crate::worker::SESSION;
use parking_lot::{Mutex, MutexGuard};
use sheave_base::work::Interrupt;
use sheave_base::{Error, ErrorKind, NodeId, Result, Work, clock};
use sheave_mesh::{Answer, Call, Mesh, Ref};
use sheave_net::Parts;
use sheave_wire::Value;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The method of all commands.
pub(crate) const COMMANDS: &str = "do";

/// Commands in one message at most.
const BATCH_MAX: usize = 32;

/// Commands between questions of how far the workers have come.
const MARK_EVERY: u64 = 4096;

/// Such questions that are not answered at most: whoever issues more commands waits.
const MARKS_MAX: usize = 2;

/// The method of such a question.
pub(crate) const MARK: &str = "mark";

/// How long a command is kept for others at most.
const BATCH_SPAN: Duration = Duration::from_micros(100);

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

    /// What this worker gets, to fill this register.
    fn of_worker(&self, worker: usize, held: &Ref, number: u64) -> (Value, Parts) {
        let callee = match self.callee {
            Callee::Named(name) => Value::from(name),
            Callee::Held(register) => register.value(worker),
        };
        let (fill, number) = (held.to_fill(), Value::Int(number.cast_signed()));
        match self.args.map(|args| args.of_worker(worker)) {
            Some((args, parts)) => (Value::List(vec![fill, number, callee, args]), parts),
            None => (Value::List(vec![fill, number, callee]), Parts::new()),
        }
    }

    /// The registers that it names, on this worker.
    fn named(&self, worker: usize) -> impl Iterator<Item = Ref> {
        let callee = match self.callee {
            Callee::Held(register) => Some(register),
            Callee::Named(_) => None,
        };
        let args = self.args.into_iter().flat_map(Args::registers);
        callee.into_iter().chain(args).filter_map(move |register| register.held(worker).cloned())
    }

    /// Whether it is worth being kept, and surely can be sent.
    fn is_short(&self) -> bool {
        self.args.is_none_or(Args::are_short)
    }
}

/// What has been issued and has not left.
#[derive(Default)]
struct Turn {
    /// The number of the last command.
    number: u64,
    /// By worker: commands, and the registers in them.
    kept: Vec<(Vec<Value>, Vec<Ref>)>,
    count: usize,
    /// Questions of how far the workers have come, each to all of them.
    marks: VecDeque<Vec<(u32, Work<Answer>)>>,
    last: Option<Instant>,
    is_timed: bool,
}

/// The way of a session's commands.
pub(crate) struct Commands {
    mesh: Mesh,
    workers: Vec<NodeId>,
    lost: Arc<Lost>,
    /// Whoever holds this issues a command, to all workers.
    turn: Mutex<Turn>,
    is_closed: AtomicBool,
}

impl Commands {
    pub(crate) fn new(mesh: Mesh, lost: Arc<Lost>) -> Arc<Self> {
        let workers: Vec<NodeId> = mesh.members().iter().map(|member| member.node).collect();
        let kept = workers.iter().map(|_| Default::default()).collect();
        let turn = Mutex::new(Turn { kept, ..Turn::default() });
        Arc::new(Self { mesh, workers, lost, turn, is_closed: AtomicBool::new(false) })
    }

    /// The workers' nodes.
    pub(crate) fn workers(&self) -> &[NodeId] {
        &self.workers
    }

    /// Refuses a worker that there is not, and everything after the end.
    pub(crate) fn check(&self, worker: u32) -> Result<()> {
        if self.is_closed.load(SeqCst) {
            return Err(Error::new(ErrorKind::Closed, "the session was shut down"));
        }
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
        turn.count = 0;
        let kept: Vec<_> = turn.kept.iter_mut().map(std::mem::take).enumerate().collect();
        let has_room = |worker: usize| self.mesh.room(self.workers[worker], SESSION, None);
        // One that is stuck holds up nobody else. What it does not get breaks the registers that it was to fill.
        let (ready, late): (Vec<_>, Vec<_>) = kept.into_iter().partition(|(worker, _)| has_room(*worker).is_done());
        for (worker, (items, named)) in ready.into_iter().chain(late) {
            if !items.is_empty() && has_room(worker).wait_until(Some(until), None).unwrap_or(false) {
                let _ = self.send(worker, items, Parts::new());
            }
            drop(named);
        }
        true
    }

    /// Issues a command to all workers that live, each with a register to fill.
    pub(crate) fn issue(
        self: &Arc<Self>,
        command: &Command<'_>,
        timeout: Option<Duration>,
        pause: Pause<'_>,
    ) -> Result<Vec<Option<Ref>>> {
        let until = timeout.and_then(|timeout| clock::now().checked_add(timeout));
        let mut turn = self.take_turn(until, pause)?;
        self.check(0).map_err(|error| error.operation(command.name()))?;
        let now = clock::now();
        let is_burst = turn.last.replace(now).is_some_and(|last| now.saturating_duration_since(last) < BURST_SPAN);
        let is_kept = is_burst && command.is_short();
        if !is_kept || turn.count >= BATCH_MAX {
            self.flush(&mut turn, until, pause)?;
        }
        if !is_kept {
            self.await_rooms(until, pause)?;
        }
        if (turn.number + 1).is_multiple_of(MARK_EVERY) {
            self.mark(&mut turn, until, pause)?;
        }
        let refs = self.draw()?;
        turn.number += 1;
        let mut sent = Ok(());
        for (worker, held) in refs.iter().enumerate() {
            let Some(held) = held else { continue };
            let (item, tensors) = command.of_worker(worker, held, turn.number);
            if is_kept {
                let (items, named) = &mut turn.kept[worker];
                items.push(item);
                named.push(held.clone());
                named.extend(command.named(worker));
            } else {
                // All get it, whatever becomes of one.
                sent = sent.and(self.send(worker, vec![item], tensors));
            }
        }
        if is_kept {
            turn.count += 1;
            self.time(&mut turn);
        }
        sent.map(|()| refs)
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

    /// Sends what was kept, for those who wait for a worker: what they ask comes behind it.
    pub(crate) fn flush_until(&self, until: Option<Instant>, mut interrupt: Option<Interrupt<'_>>) -> Result<()> {
        let pause: Pause<'_> = &mut |blocking| blocking(reborrowed(&mut interrupt));
        let mut turn = self.take_turn(until, pause)?;
        self.flush(&mut turn, until, pause)
    }

    fn flush(&self, turn: &mut Turn, until: Option<Instant>, pause: Pause<'_>) -> Result<()> {
        if turn.count == 0 {
            return Ok(());
        }
        self.await_rooms(until, pause)?;
        self.send_kept(turn)
    }

    /// Sends what was kept, for which all have room. All get it, whatever becomes of one.
    fn send_kept(&self, turn: &mut Turn) -> Result<()> {
        turn.count = 0;
        let mut sent = Ok(());
        for (worker, kept) in turn.kept.iter_mut().enumerate() {
            // What is named is held until it has left.
            let (items, named) = std::mem::take(kept);
            if !items.is_empty() {
                sent = sent.and(self.send(worker, items, Parts::new()));
            }
            drop(named);
        }
        sent
    }

    fn send(&self, worker: usize, items: Vec<Value>, tensors: Parts) -> Result<()> {
        let node = self.workers[worker];
        if self.lost.has(node) {
            return Ok(());
        }
        let call = Call { tensors, ..Call::of(Value::List(items)) };
        let sent = self.mesh.cast(node, SESSION, COMMANDS, call);
        sent.or_else(|error| self.unless_lost(node, error))
    }

    /// Sees to it that what is kept leaves soon.
    fn time(self: &Arc<Self>, turn: &mut Turn) {
        if turn.is_timed {
            return;
        }
        let (weak, runtime) = (Arc::downgrade(self), self.mesh.runtime().clone());
        let timed = self.mesh.spawn("commands", async move {
            let mut span = BATCH_SPAN;
            loop {
                runtime.sleep_until(runtime.after(span))?.await;
                match weak.upgrade() {
                    Some(commands) if !commands.flush_in_time() => span = AGAIN_SPAN,
                    _ => return Ok(()),
                }
            }
        });
        turn.is_timed = timed.is_ok();
        if !turn.is_timed {
            // Registers that are not filled say why.
            let _ = self.send_kept(turn);
        }
    }

    /// Sends what was kept unless that has to wait. Does not block.
    fn flush_in_time(&self) -> bool {
        let Some(mut turn) = self.turn.try_lock() else { return false };
        let is_ready = turn.count == 0 || self.have_room();
        if is_ready {
            turn.is_timed = false;
            // Registers that are not filled say why.
            let _ = self.send_kept(&mut turn);
        }
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
    fn draw(&self) -> Result<Vec<Option<Ref>>> {
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
        let error = error.hint("its function takes long, or waits for something that does not come");
        let member = self.mesh.member(self.workers[worker as usize]);
        Err(member.into_iter().fold(error, |error, member| error.peer(member.peer())))
    }

    fn room_ended(&self, worker: u32, room: Work<()>) -> Result<()> {
        room.join().or_else(|ended| self.unless_lost(self.workers[worker as usize], ended))
    }

    /// A worker that is gone is no failure of what was asked of all; whoever waits next is told.
    fn unless_lost(&self, node: NodeId, error: Error) -> Result<()> {
        if error.kind() != ErrorKind::PeerLost {
            return Err(error);
        }
        self.lost.note(node, &error);
        Ok(())
    }
}

/// The same interrupt, for a wait that is not the last.
pub(crate) fn reborrowed<'a>(interrupt: &'a mut Option<Interrupt<'_>>) -> Option<Interrupt<'a>> {
    match interrupt {
        Some(interrupt) => Some(&mut **interrupt),
        None => None,
    }
}
