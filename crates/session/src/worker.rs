//! What a worker does with its commands.

use crate::abort::Abort;
use crate::collective::{Communicators, Scope};
use crate::commands::{COMMANDS, MARK, SYNC};
use crate::functions::{self, Function};
use crate::held::{Held, Slot, picked};
use crate::kept::SAME;
use crate::lost::Lost;
use parking_lot::Mutex;
use sheave_base::planted::{self, Bug};
use sheave_base::{Error, ErrorKind, Result, contain};
use sheave_collective::{Collectives, Communicator};
use sheave_mesh::{Lane, Member, Mesh, Promises, Ref, Request, Service, ServiceName, WeakMesh};
use sheave_net::Parts;
use sheave_tensor::{Mode, Tensor};
use sheave_wire::Value;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::convert::Infallible;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The service that each node of a session has.
pub(crate) const SESSION: ServiceName = ServiceName::new("session");

/// The number of a session's first command.
pub(crate) const FIRST: u64 = 1;

/// Causes of failures that a worker keeps until somebody waits for it; of others it keeps the number.
const CAUSES_MAX: usize = 16;

thread_local! {
    static CURRENT: RefCell<Option<Worker>> = const { RefCell::new(None) };
}

/// Who a worker is. Its thread alone knows ([`Worker::current`]), for as long as it runs commands.
///
/// ```
/// use sheave_collective::Operator;
/// use sheave_session::{Args, Function, Session, Worker, register_function};
/// use sheave_tensor::Tensor;
///
/// register_function(Function::typed("mean", |(own,): (f32,)| {
///     let (worker, tensor) = (Worker::current()?, Tensor::from_slice(&[own], [1])?);
///     worker.world()?.all_reduce(&tensor, &tensor, Operator::Avg).wait()?;
///     Ok(tensor.to_vec::<f32>()?[0] + worker.id as f32)
/// }))?;
/// let session = Session::threads(2, 1)?;
/// let means = session.call(&session.function("mean")?, &Args::new().value(3.0))?;
/// assert_eq!(means.get::<f32>(1, None)?, 4.0);
/// # session.shutdown()?;
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Worker {
    /// Its number in the session.
    pub id: u32,
    /// The workers of the session.
    pub workers: u32,
    /// The groups that they are divided into, each of as many workers with consecutive numbers.
    pub groups: u32,
    /// The workers of each node. Those of a session that is of one node alone are all of that.
    pub workers_per_node: u32,
    communicators: Arc<Communicators>,
}

impl Worker {
    /// Returns who the worker is on whose thread this is called.
    ///
    /// # Errors
    ///
    /// `NotFound` on any other thread.
    pub fn current() -> Result<Self> {
        let current = CURRENT.with_borrow(Clone::clone);
        current.ok_or_else(|| {
            let error = Error::new(ErrorKind::NotFound, "this thread is no worker's of a session");
            error.hint("ask in the function that a worker runs, before it starts threads of its own")
        })
    }

    /// Returns the workers of each group.
    #[must_use]
    pub fn group_size(&self) -> u32 {
        self.workers / self.groups
    }

    /// Returns the group that it is in.
    #[must_use]
    pub fn group(&self) -> u32 {
        self.id / self.group_size()
    }

    /// Returns the operations of all workers together. Ranks are the numbers of workers.
    ///
    /// An operation that fails otherwise than on the spot breaks them, until the controller has them
    /// [made again](crate::Session::renew_collectives).
    ///
    /// # Errors
    ///
    /// `PeerLost` if a worker is gone, `Closed` if this node has left the session.
    pub fn world(&self) -> Result<Communicator> {
        self.communicators.get(Scope::World)
    }

    /// Returns the operations of its group. Its first worker has rank 0.
    ///
    /// # Errors
    ///
    /// As [`Worker::world`].
    pub fn within_group(&self) -> Result<Communicator> {
        self.communicators.get(Scope::Group)
    }

    /// Returns its number among the workers of its node.
    #[must_use]
    pub fn local_id(&self) -> u32 {
        self.id % self.workers_per_node
    }

    /// Returns the node that it is of: 0 is the controller's. Several may be on one host.
    #[must_use]
    pub fn node(&self) -> u32 {
        self.id / self.workers_per_node
    }

    pub(crate) fn communicators(&self) -> &Communicators {
        &self.communicators
    }
}

/// Who a worker is, as the controller tells it: its number, the groups, how many workers each node has, and the ranks
/// of all workers in the mesh.
pub(crate) fn introduction(id: u32, ranks: impl Iterator<Item = u32>, groups: u32, per_node: u32) -> Value {
    let number = |name: &str, number: u32| (name.to_owned(), Value::Int(number.into()));
    let ranks = Value::List(ranks.map(|rank| Value::Int(rank.into())).collect());
    let numbers = [number("id", id), number("groups", groups), number("workers_per_node", per_node)];
    Value::Map(numbers.into_iter().chain([("ranks".to_owned(), ranks)]).collect())
}

fn unreadable() -> Error {
    Error::new(ErrorKind::Protocol, "a command that cannot be read").hint("run the same release of sheave on all sides")
}

/// What came with some commands.
struct Arguments<'a> {
    args: &'a Value,
    /// In the order in which they stand in the arguments.
    refs: &'a [Ref],
    tensors: &'a [Tensor],
}

/// An item of a command, and the register that it is, if it is one.
type Item<'a> = (&'a Value, Option<&'a Ref>);

/// A command.
struct Command<'a> {
    /// Nothing, if nobody wants what comes of it.
    fill: Option<&'a Value>,
    callee: Item<'a>,
    /// Without them the function is not called, but is the result.
    args: Option<SmallVec<[Item<'a>; 4]>>,
}

/// Reads commands, which stand one behind the other: how many arguments, the register to fill, the function, or that it
/// is the one of the command before, and the arguments. The handles to registers come beside them, so nothing is looked
/// up.
struct Reader<'a> {
    items: &'a [Value],
    refs: slice::Iter<'a, Ref>,
    /// The function of the last one.
    callee: Option<Item<'a>>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Command<'a>> {
        let [count, rest @ ..] = self.items else { return Err(unreadable()) };
        let count = match count {
            Value::None => None,
            Value::Int(count) => Some(usize::try_from(*count).map_err(|_| unreadable())?),
            _ => return Err(unreadable()),
        };
        self.items = rest;
        let (fill, _) = self.item()?;
        let callee = match self.item()? {
            (value, _) if *value == SAME => self.callee.ok_or_else(unreadable)?,
            callee => *self.callee.insert(callee),
        };
        let args = count.map(|count| (0..count).map(|_| self.item()).collect::<Result<_>>()).transpose()?;
        let fill = Some(fill).filter(|fill| !matches!(fill, Value::None));
        Ok(Command { fill, callee, args })
    }

    fn item(&mut self) -> Result<Item<'a>> {
        let [value, rest @ ..] = self.items else { return Err(unreadable()) };
        self.items = rest;
        let mut names = 0;
        let Ok(()) = value.try_visit(&mut |value| {
            names += usize::from(matches!(value, Value::Ref { .. }));
            Ok::<_, Infallible>(())
        });
        let register = self.refs.by_ref().take(names).last();
        Ok((value, register.filter(|_| matches!(value, Value::Ref { .. }))))
    }
}

/// Failures of commands since somebody was told.
#[derive(Default)]
struct Failures {
    causes: Vec<Error>,
    count: usize,
}

/// The commands of one worker.
pub(crate) struct Desk {
    mesh: WeakMesh,
    failures: Mutex<Failures>,
    /// What the controller knows of those who have died, on its own node.
    lost: Option<Arc<Lost>>,
    collectives: Collectives,
    /// The number that the next command has. The thread that does commands alone looks at it.
    next: AtomicU64,
    /// The session is broken, or its controller has died.
    abort: Arc<Abort>,
}

impl Desk {
    pub(crate) fn new(mesh: &Mesh, lost: Option<Arc<Lost>>, collectives: Collectives, abort: Arc<Abort>) -> Self {
        let (mesh, failures, next) = (mesh.downgrade(), Mutex::default(), AtomicU64::new(FIRST));
        Self { mesh, failures, lost, collectives, next, abort }
    }

    fn mesh(&self) -> Result<Mesh> {
        self.mesh.upgrade().ok_or_else(|| Error::new(ErrorKind::Closed, "this node has left the session"))
    }

    /// Does some commands, one after the other. Each fills its register, or poisons it. `end` says what the answer is.
    fn act(&self, request: Request, end: impl FnOnce(Result<()>) -> Result<()>) {
        let Request { args, tensors, refs, promises, reply, .. } = request;
        let tensors: Vec<Tensor> = tensors.into_iter().collect();
        let done = self.act_all(&Arguments { args: &args, refs: &refs, tensors: &tensors }, &promises);
        reply.send(end(done).map(|()| Default::default()));
        drop(promises);
        Ref::drop_all(refs);
    }

    fn act_all(&self, arguments: &Arguments<'_>, promises: &Promises) -> Result<()> {
        let Value::List(items) = arguments.args else { return Err(unreadable()) };
        let [Value::Int(number), commands @ ..] = items.as_slice() else { return Err(unreadable()) };
        let mut reader = Reader { items: commands, refs: arguments.refs.iter(), callee: None };
        let (mut number, mut settled) = (number.cast_unsigned(), Ok(()));
        self.abort.check_gap(self.next.load(Relaxed), number).map_err(|error| self.named(error))?;
        while !reader.items.is_empty() {
            // Without a controller nobody wants the rest, and in a broken session it might meet what it is not to.
            if self.abort.is_over() {
                break;
            }
            let command = reader.next()?;
            settled = settled.and(self.fill(&command, number, arguments.tensors, promises));
            number = number.wrapping_add(1);
            self.next.store(number, Relaxed);
        }
        settled
    }

    /// Fills the register of a command with what comes of it, or poisons it. Where nobody wants that it goes at once.
    fn fill(&self, command: &Command<'_>, number: u64, tensors: &[Tensor], promises: &Promises) -> Result<()> {
        let run = || match (&command.callee, &command.args) {
            ((Value::Str(name), _), None) => functions::found(name.as_str()).map(Held::Function),
            (callee, Some(args)) => Self::call(callee, args, tensors),
            _ => Err(unreadable()),
        };
        let made = contain::run(run);
        match made.unwrap_or_else(|text| Err(Error::new(ErrorKind::Remote, format!("it panicked: {text}")))) {
            Ok(held) => match command.fill {
                Some(fill) => promises.fulfil(fill, Slot::new(held)),
                None => {
                    drop(contain::Kept::new("a result that nobody wants", held));
                    Ok(())
                }
            },
            Err(error) => {
                let error = self.named(error).sequence(number);
                let poisoned = match command.fill {
                    Some(fill) if planted::strikes(Bug::PoisonLost) => {
                        promises.fulfil(fill, Slot::new(Held::default()))
                    }
                    Some(fill) => promises.poison(fill, &error),
                    None => Ok(()),
                };
                self.note(error);
                poisoned
            }
        }
    }

    /// Says which worker it was.
    fn named(&self, error: Error) -> Error {
        match Worker::current() {
            Ok(worker) => error.context(format!("worker {}", worker.id)),
            Err(_) => error,
        }
    }

    fn note(&self, error: Error) {
        if planted::strikes(Bug::FailureKept) {
            return;
        }
        let mut failures = self.failures.lock();
        failures.count += 1;
        if failures.causes.len() < CAUSES_MAX {
            failures.causes.push(error);
        }
    }

    /// What has failed since somebody was told; of a worker that lacks commands always that.
    fn check(&self) -> Result<()> {
        self.abort.check().map_err(|error| self.named(error))?;
        let Failures { causes, count } = std::mem::take(&mut *self.failures.lock());
        let mut causes = causes.into_iter();
        let Some(first) = causes.next() else { return Ok(()) };
        Err(match count - 1 {
            0 => first,
            more => first.context(format!("the first of {} commands that failed", more + 1)),
        })
    }

    /// What a register of this worker holds.
    fn slot(mesh: &Mesh, name: &Value) -> Result<Arc<Slot>> {
        mesh.hold(name)?.get()
    }

    fn call(callee: &Item<'_>, args: &[Item<'_>], tensors: &[Tensor]) -> Result<Held> {
        let function = match callee {
            (Value::Str(name), _) => functions::found(name)?,
            (_, register) => Self::callee(register.ok_or_else(unreadable)?)?,
        };
        let argument = |(at, (value, register)): (usize, &Item<'_>)| match register {
            Some(register) => {
                let slot = register.get::<Slot>().map_err(|error| error.context(format!("argument {}", at + 1)))?;
                let held = slot.0.lock().clone();
                Ok(held)
            }
            None => Ok(picked(value, tensors)),
        };
        let called = function.call_with(args.iter().enumerate().map(argument).collect());
        called.map_err(|error| error.context(format!("call of {}", function.name())))
    }

    /// The function that a register holds.
    fn callee(register: &Ref) -> Result<Function> {
        let held = register.get::<Slot>()?.0.lock().clone();
        held.to_function().ok_or_else(|| {
            let what = format!("a call of {}; expected a function", held.kind_name());
            Error::new(ErrorKind::InvalidArgument, what)
        })
    }

    /// The value of a register, once all commands before have been done.
    fn get(&self, name: &Value, mode: impl Fn(&Tensor) -> Mode) -> Result<(Value, Parts)> {
        self.check()?;
        // Not under the lock: an object of another language may do anything.
        let held = Self::slot(&self.mesh()?, name)?.0.lock().clone();
        let (value, tensors) = held.to_value()?;
        let part = |tensor: Tensor| {
            let mode = mode(&tensor);
            sheave_net::Part::new(tensor, mode)
        };
        Ok((value, tensors.into_iter().map(part).collect()))
    }

    /// Gives the register of this worker alone another value.
    fn set(&self, args: &Value, tensors: Vec<Tensor>) -> Result<()> {
        let Value::List(items) = args else { return Err(unreadable()) };
        let [name, value] = items.as_slice() else { return Err(unreadable()) };
        let slot = Self::slot(&self.mesh()?, name)?;
        // Not under the lock: a drop may do anything.
        let before = std::mem::replace(&mut *slot.0.lock(), Held::Value(value.clone(), tensors));
        drop(before);
        self.check()
    }

    /// Learns who it is.
    fn begin(&self, args: &Value) -> Result<()> {
        let number = |value: Option<&Value>| match value {
            Some(Value::Int(number)) => u32::try_from(*number).map_err(|_| unreadable()),
            _ => Err(unreadable()),
        };
        let Some(Value::List(ranks)) = args.get("ranks") else { return Err(unreadable()) };
        let ranks: Vec<u32> = ranks.iter().map(|rank| number(Some(rank))).collect::<Result<_>>()?;
        let (id, workers, groups) = (number(args.get("id"))?, ranks.len() as u32, number(args.get("groups"))?);
        let workers_per_node = number(args.get("workers_per_node"))?;
        let divides = |parts: u32| parts > 0 && workers.is_multiple_of(parts);
        if id >= workers || !divides(groups) || !divides(workers_per_node) {
            return Err(unreadable());
        }
        let communicators = Communicators::new(&self.mesh()?, self.collectives.clone(), id, &ranks, groups)?;
        let communicators = Arc::new(communicators);
        self.abort.govern(&communicators);
        CURRENT.set(Some(Worker { id, workers, groups, workers_per_node, communicators }));
        Ok(())
    }

    fn stop(&self) -> Result<()> {
        CURRENT.set(None);
        self.mesh()?.serve_no_more(SESSION.as_str());
        Ok(())
    }
}

impl Service for Desk {
    fn handle(&self, request: Request) {
        let done = |result: Result<()>| result.map(|()| Default::default());
        match request.method.as_str() {
            COMMANDS => self.act(request, |done| done),
            "get" => request.reply.send(self.get(&request.args, |_| Mode::Copy)),
            "share" => {
                let mode = |tensor: &Tensor| if request.reply.can_share(tensor) { Mode::Share } else { Mode::Copy };
                let got = self.get(&request.args, mode);
                request.reply.send(got);
            }
            "set" => request.reply.send(done(self.set(&request.args, request.tensors.into_iter().collect()))),
            MARK => request.reply.send(Ok(Default::default())),
            SYNC if matches!(request.args, Value::None) => request.reply.send(done(self.check())),
            SYNC => self.act(request, |done| done.and_then(|()| self.check())),
            "begin" => request.reply.send(done(self.begin(&request.args))),
            "stop" => {
                // The word of it may come behind this one, and then there is nothing left to give up.
                if matches!(request.args, Value::Bool(true)) {
                    self.abort.begin();
                }
                let failed = self.check();
                let stopped = self.stop();
                request.reply.send(done(failed.and(stopped)));
            }
            other => {
                let what = format!("no command \"{other}\"");
                request.reply.error(Error::new(ErrorKind::NotFound, what));
            }
        }
    }

    fn lane(&self) -> Lane {
        Lane::Own
    }

    fn lost(&self, member: &Member, error: &Error) {
        match &self.lost {
            Some(lost) => lost.note(member.node, error),
            // The controller is the first: without it there is nothing to do.
            None if member.rank.0 == 0 => {
                self.abort.end();
                if let Ok(mesh) = self.mesh() {
                    mesh.serve_no_more(SESSION.as_str());
                }
            }
            None => {}
        }
    }
}
