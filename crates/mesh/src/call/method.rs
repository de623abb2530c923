//! Methods that are known when the program is compiled, by number.
//!
//! A [`Method`] says once what its callers and its handler must agree on: the service, the number, the types of its
//! arguments and of its result, who may call it, and whether it runs though its caller has gone. Arguments are written
//! once, in the compact codec, straight into the request. A [`TypedService`] finds the handler by the number, without a
//! string, refuses whoever may not call it, and only then reads the arguments.
//!
//! Numbers are append-only, like all codes on the wire: a method that goes leaves its number unused.

use super::callers::Callers;
use super::form::{Written, read_args};
use super::lane::Lane;
use super::name::{Text, number_of};
use super::service::{self, Replies, Reply};
use super::serving::{Begins, Delivery, Serves};
use super::{Answer, Leases};
use crate::driver::Shared;
use crate::engine::Member;
use crate::guest::AttachedGuest;
use crate::reference::{Brought, Promises, Ref};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sheave_base::{Error, ErrorKind, NodeId, Result, limits};
use sheave_net::{Hold, Parts, Tensors};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// A method of a service that has a number. Most are declared together, by [`methods!`](crate::methods).
pub trait Method: 'static {
    /// The name of the service.
    const SERVICE: &'static str;
    /// Its number among the methods of the service, from 1 to [`limits::METHODS_MAX`].
    const ID: u32;
    /// Its name, for errors and notices.
    const NAME: &'static str;
    /// Who may call it. Nobody else's arguments are decoded.
    const CALLERS: Callers;
    /// What a caller gives. No sequence in it may have elements that take no bytes ([`sheave_wire::from_control`]).
    type Args: Serialize + DeserializeOwned + Send + 'static;
    /// What the handler returns, with the same restriction.
    type Answer: Serialize + DeserializeOwned + Clone + Send + 'static;

    /// Whether the handler runs though the call ends before it has begun, by its deadline or by a cancellation: for
    /// parts of something that others see whole or not at all.
    fn runs_anyway(args: &Self::Args) -> bool {
        let _ = args;
        false
    }
}

/// Declares methods of one service: number, name, type, arguments, result and callers, and in which cases the method
/// [runs anyway](Method::runs_anyway). A type whose values are the arguments may be the method itself.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use sheave_mesh::{Callers, Method};
///
/// #[derive(Serialize, Deserialize)]
/// struct Add(i64, i64);
///
/// struct Forget;
///
/// sheave_mesh::methods! {
///     service "sums";
///     1, "add": Add[Add] -> i64, Members;
///     2, "forget": Forget[u32] -> (), Workers, runs anyway if |_| true;
/// }
/// assert_eq!((Add::ID, Forget::NAME, Forget::CALLERS), (1, "forget", Callers::Workers));
/// assert!(Forget::runs_anyway(&7) && !Add::runs_anyway(&Add(1, 2)));
/// ```
#[macro_export]
macro_rules! methods {
    (
        service $service:expr;
        $($id:literal, $name:literal: $method:ty[ $args:ty ] -> $answer:ty, $callers:ident
            $(, runs anyway if $anyway:expr)?;)*
    ) => {
        $(impl $crate::Method for $method {
            const SERVICE: &'static str = $service;
            const ID: u32 = $id;
            const NAME: &'static str = $name;
            const CALLERS: $crate::Callers = $crate::Callers::$callers;
            type Args = $args;
            type Answer = $answer;

            $(fn runs_anyway(args: &Self::Args) -> bool {
                let runs_anyway: fn(&Self::Args) -> bool = $anyway;
                runs_anyway(args)
            })?
        })*
    };
}

/// What a typed call takes along beside its arguments.
#[derive(Default)]
pub struct CallOptions {
    /// Tensors, and how they leave.
    pub tensors: Parts,
    /// References, which the callee holds from then on.
    pub refs: Vec<Ref>,
    /// Promises of the callee's objects ([`Mesh::promise`](crate::Mesh::promise)) that this call is to fill.
    pub fills: Vec<Ref>,
    /// As [`Call::places`](crate::Call::places).
    pub places: Tensors,
    /// As [`Call::leases`](crate::Call::leases).
    pub leases: Option<Leases>,
    /// As [`Call::deadline`](crate::Call::deadline).
    pub deadline: Option<Duration>,
}

/// A call of a [`Method`] that has arrived.
#[derive(Debug)]
pub struct TypedRequest<M: Method> {
    /// Who calls: one of those who may.
    pub from: NodeId,
    /// The arguments.
    pub args: M::Args,
    /// The tensors that came along; they belong to this node.
    pub tensors: Tensors,
    /// The references that came along, and behind them those that are to be filled. They are this node's.
    pub refs: Vec<Ref>,
    /// Those of them that the caller asks to be filled. They may be kept and filled after the answer.
    pub promises: Promises,
    /// How it is answered.
    pub reply: TypedReply<M::Answer>,
}

impl<M: Method> Replies for TypedRequest<M> {
    fn reply(&self) -> &Reply {
        &self.reply.reply
    }

    fn into_reply(self) -> Reply {
        self.reply.reply
    }
}

/// The place of a request in its caller's window, for an inline service that puts some requests aside, for user code
/// say: while it is kept the caller has so much less room for calls of this service, so that what is put aside is
/// bounded, in number and in bytes, as what waits for a lane is. The place is free when this is dropped, on any thread.
///
/// What is waited for while it is kept must not depend on other requests of the same caller: they may find no room.
/// Where handlers run on a lane a request has begun with its handler, and this is empty.
#[must_use = "the place is free when this is dropped"]
pub struct Room {
    _place: Begins,
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room").finish_non_exhaustive()
    }
}

/// The way back to the caller of a [`Method`] whose result is an `A`. Answered once; dropped without an answer it says
/// so.
#[derive(Debug)]
pub struct TypedReply<A> {
    reply: Reply,
    answers: PhantomData<fn(A)>,
}

impl<A: Serialize> TypedReply<A> {
    fn of(reply: Reply) -> Self {
        Self { reply, answers: PhantomData }
    }

    /// Whether the caller still waits for the answer, as [`Reply::is_wanted`].
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.reply.is_wanted()
    }

    /// Returns the number that the caller has given to the call: with the caller it names the call.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.reply.number()
    }

    /// Answers with a result. Does not block. That the caller is gone is no error.
    pub fn ok(self, result: &A) {
        self.with(result, Parts::new(), &[]);
    }

    /// Answers with what a handler returned.
    pub fn send(self, outcome: Result<A>) {
        match outcome {
            Ok(result) => self.ok(&result),
            Err(error) => self.error(error),
        }
    }

    /// Answers with an error, which keeps its kind and text.
    pub fn error(self, error: Error) {
        self.reply.error(error);
    }

    /// Answers with a result, tensors and references.
    pub fn with(self, result: &A, tensors: Parts, refs: &[Ref]) {
        self.reply.written(Written::typed(result, tensors, refs), Hold::Capture);
    }

    /// Answers with a result and tensors. Those that are sent by copy are borrowed, not captured, until the answer has
    /// left: who writes them before is refused.
    pub fn borrowed(self, result: &A, tensors: Parts) {
        self.reply.written(Written::typed(result, tensors, &[]), Hold::Borrow);
    }
}

/// A service whose methods have numbers.
///
/// A handler takes the [`TypedRequest`] and answers through its [`TypedReply`], at once or later and from any thread. A
/// request that is dropped without an answer, or whose handler panics, is answered with an error.
///
/// ```
/// # use sheave_mesh::{Config, Expected, Mesh, Role};
/// # use sheave_base::config::Endpoint;
/// # use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
/// # use std::sync::Arc;
/// use sheave_mesh::{Methods, TypedService};
///
/// struct Add;
/// sheave_mesh::methods! {
///     service "sum";
///     1, "add": Add[i64] -> i64, Members;
/// }
///
/// #[derive(Default)]
/// struct Sum(AtomicI64);
///
/// impl TypedService for Sum {
///     const NAME: &'static str = "sum";
///
///     fn methods(methods: Methods<Self>) -> Methods<Self> {
///         methods.on::<Add>(|sum, request| {
///             request.reply.ok(&(sum.0.fetch_add(request.args, SeqCst) + request.args));
///         })
///     }
/// }
/// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
/// # let root = Endpoint { host: "127.0.0.1".into(), port };
/// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
/// mesh.serve_typed(Arc::new(Sum::default()))?;
/// assert_eq!(mesh.ask::<Add>(mesh.me().node, &7)?.wait()?.value, 7);
/// assert_eq!(mesh.ask::<Add>(mesh.me().node, &-2)?.wait()?.value, 5);
/// # Ok::<(), sheave_base::Error>(())
/// ```
pub trait TypedService: Send + Sync + Sized + 'static {
    /// The name under which it is found, which is that of its methods.
    const NAME: &'static str;

    /// Adds its methods and their handlers to `methods`, which has none. Asked once, when the service is offered.
    fn methods(methods: Methods<Self>) -> Methods<Self>;

    /// Returns where handlers run, as [`Service::lane`](crate::Service::lane). A service of [`Lane::Serial`] has one
    /// mailbox.
    fn lane(&self) -> Lane {
        Lane::default()
    }

    /// Hears that a member is gone, as [`Service::lost`](crate::Service::lost).
    fn lost(self: &Arc<Self>, member: &Member, error: &Error) {
        let _ = (member, error);
    }

    /// Hears of a guest, as [`Service::guest_attached`](crate::Service::guest_attached).
    fn guest_attached(self: &Arc<Self>, guest: &AttachedGuest) {
        let _ = guest;
    }

    /// Hears that a guest is gone, as [`Service::guest_lost`](crate::Service::guest_lost).
    fn guest_lost(self: &Arc<Self>, guest: &AttachedGuest, error: &Error) {
        let _ = (guest, error);
    }

    /// Returns what a call waits for, as [`Service::awaited`](crate::Service::awaited).
    fn awaited(&self, from: NodeId, number: u64) -> Option<String> {
        let _ = (from, number);
        None
    }
}

/// Reads the arguments of a request and runs its handler.
type Run<S> = Box<dyn Fn(&Arc<S>, &Arc<Shared>, Delivery) + Send + Sync>;

struct Entry<S> {
    name: &'static str,
    callers: Callers,
    run: Run<S>,
}

/// The methods of a service, each with its handler.
pub struct Methods<S> {
    /// By number, less one.
    entries: Vec<Option<Entry<S>>>,
}

impl<S: TypedService> Methods<S> {
    /// Adds a method. That its number is in range and that it is one of this service is checked by the compiler.
    ///
    /// # Panics
    ///
    /// If another method has the number: a mistake in the program, which its first start shows.
    #[must_use]
    pub fn on<M: Method>(self, handle: impl Fn(&Arc<S>, TypedRequest<M>) + Copy + Send + Sync + 'static) -> Self {
        self.on_with_room(move |service, request, room| {
            drop(room);
            handle(service, request);
        })
    }

    /// Adds a method as [`Methods::on`] does, whose handler says itself when a request has begun: it keeps the
    /// [`Room`] of one that it puts aside.
    ///
    /// # Panics
    ///
    /// As [`Methods::on`].
    #[must_use]
    pub fn on_with_room<M: Method>(
        mut self,
        handle: impl Fn(&Arc<S>, TypedRequest<M>, Room) + Copy + Send + Sync + 'static,
    ) -> Self {
        const {
            assert!(M::ID > 0 && M::ID as usize <= limits::METHODS_MAX, "the number of a method is out of range");
            assert!(number_of(M::SERVICE) == number_of(S::NAME), "the method is one of another service");
        }
        let at = M::ID as usize - 1;
        self.entries.resize_with(self.entries.len().max(at + 1), || None);
        let run = Box::new(move |service: &Arc<S>, shared: &Arc<Shared>, delivery: Delivery| {
            deliver(service, shared, delivery, handle);
        });
        let before = self.entries[at].replace(Entry { name: M::NAME, callers: M::CALLERS, run });
        assert!(before.is_none(), "two methods of service \"{}\" have the number {}", S::NAME, M::ID);
        self
    }

    fn find(&self, number: u32) -> Option<&Entry<S>> {
        self.entries.get(usize::try_from(number.checked_sub(1)?).ok()?)?.as_ref()
    }
}

fn deliver<S: TypedService, M: Method>(
    service: &Arc<S>,
    shared: &Arc<Shared>,
    delivery: Delivery,
    handle: impl Fn(&Arc<S>, TypedRequest<M>, Room) + Send + 'static,
) {
    let Delivery { from, tag, control, tensors, mut brought, reply, begins, service: number } = delivery;
    let args = match read_args(&control, tag.references, &mut brought) {
        Ok(args) => args,
        // Its place in the window is free when the caller knows.
        Err(error) => return reply.error(error),
    };
    let Brought { refs, promises, .. } = brought;
    let request = TypedRequest { from, args, tensors, refs, promises, reply: TypedReply::of(reply) };
    match service.lane() {
        Lane::Inline => service::run(request, |request| handle(service, request, Room { _place: begins })),
        lane => {
            let service = Arc::clone(service);
            let mailbox = (lane == Lane::Serial).then_some(0);
            let handle = move |request| handle(&service, request, Room { _place: Begins(None) });
            shared.submit((number, lane.pace(Duration::ZERO), mailbox), begins, request, handle);
        }
    }
}

/// A typed service as the node keeps it.
pub(super) struct ByNumber<S> {
    service: Arc<S>,
    methods: Methods<S>,
}

impl<S: TypedService> ByNumber<S> {
    pub(super) fn new(service: Arc<S>) -> Self {
        Self { service, methods: S::methods(Methods { entries: Vec::new() }) }
    }

    /// The method of a request whose caller may call it.
    fn method(&self, shared: &Shared, delivery: &Delivery) -> Result<&Entry<S>> {
        let number = delivery.tag.method;
        let found = self.methods.find(number);
        let callers = found.map_or(Callers::Members, |entry| entry.callers);
        shared.check_caller(callers, found.map_or(S::NAME, |entry| entry.name), delivery.caller())?;
        found.ok_or_else(|| {
            let what = match number {
                0 => format!("the methods of service \"{}\" have numbers, and the call gives a name", S::NAME),
                number => format!("service \"{}\" has no method {number}", S::NAME),
            };
            Error::new(ErrorKind::NotFound, what).hint("run the same release of sheave on all sides")
        })
    }
}

impl<S: TypedService> Serves for ByNumber<S> {
    fn lane(&self) -> Lane {
        self.service.lane()
    }

    fn deliver(self: Arc<Self>, shared: &Arc<Shared>, mut delivery: Delivery) {
        match self.method(shared, &delivery) {
            Ok(entry) => {
                delivery.reply.is_for(|| Text::Constant(entry.name));
                (entry.run)(&self.service, shared, delivery);
            }
            Err(error) => delivery.refuse(error),
        }
    }

    fn lost(&self, member: &Member, error: &Error) {
        self.service.lost(member, error);
    }

    fn guest_attached(&self, guest: &AttachedGuest) {
        self.service.guest_attached(guest);
    }

    fn guest_lost(&self, guest: &AttachedGuest, error: &Error) {
        self.service.guest_lost(guest, error);
    }

    fn awaited(&self, from: NodeId, number: u64) -> Option<String> {
        self.service.awaited(from, number)
    }
}

/// What a call of this method returns.
pub type AnswerOf<M> = Answer<<M as Method>::Answer>;
