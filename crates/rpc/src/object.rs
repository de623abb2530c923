//! Objects of Rust whose methods others call by their names, with arguments of Rust's own types.

use crate::group::RpcGroup;
use crate::values::{FromArguments, FromValue, IntoValue, call_of};
use sheave_base::{Error, ErrorKind, Result, Work};
use sheave_mesh::{Answer, Call, Lane, Request, Service};
use sheave_net::Parts;
use sheave_tensor::Tensor;
use sheave_wire::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A type whose values others call. [`Object::of`] makes a service of one.
///
/// ```
/// # use sheave_mesh::{Config, Expected, Mesh, Role};
/// # use sheave_base::config::Endpoint;
/// use sheave_rpc::{Object, ObjectMethods, RemoteObject, Rpc};
/// use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
///
/// #[derive(Default)]
/// struct Counter(AtomicI64);
///
/// impl RemoteObject for Counter {
///     fn methods(methods: ObjectMethods<Self>) -> ObjectMethods<Self> {
///         methods
///             .on("add", |counter, (number,): (i64,)| Ok(counter.0.fetch_add(number, SeqCst) + number))
///             .on("get", |counter, ()| Ok(counter.0.load(SeqCst)))
///     }
/// }
///
/// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
/// # let root = Endpoint { host: "127.0.0.1".into(), port };
/// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
/// let group = Rpc::serve(&mesh)?.create_group("counters", &[mesh.me().node], None).wait()?;
/// group.register("steps", Object::of(Counter::default()), None)?.wait()?;
/// assert_eq!(group.invoke::<i64>("steps", "add", (5,))?.wait()?, 5);
/// assert_eq!(group.invoke::<i64>("steps", "get", ())?.wait()?, 5);
/// # Ok::<(), sheave_base::Error>(())
/// ```
pub trait RemoteObject: Send + Sync + Sized + 'static {
    /// Adds its methods to `methods`, which has none. Asked once, when a service is made of a value.
    fn methods(methods: ObjectMethods<Self>) -> ObjectMethods<Self>;

    /// Returns where its methods run, as [`Service::lane`]. One of [`Lane::Serial`] has one mailbox.
    fn lane(&self) -> Lane {
        Lane::default()
    }
}

/// Reads the arguments of a call, runs the method and writes its result.
type Run<S> = Box<dyn Fn(&S, Value, &[Tensor]) -> Result<(Value, Parts)> + Send + Sync>;

/// Methods of a [`RemoteObject`], each with its name.
pub struct ObjectMethods<S> {
    by_name: BTreeMap<&'static str, Run<S>>,
}

impl<S> ObjectMethods<S> {
    /// Adds a method. Its arguments are a tuple, and the empty one for none; the method without a name is the object
    /// itself, called as a function.
    ///
    /// # Panics
    ///
    /// If there is one of that name already: a mistake in the program, which its first start shows.
    #[must_use]
    pub fn on<A: FromArguments, R: IntoValue>(
        mut self,
        name: &'static str,
        method: impl Fn(&S, A) -> Result<R> + Send + Sync + 'static,
    ) -> Self {
        let run = move |object: &S, args: Value, tensors: &[Tensor]| {
            let result = method(object, A::from_arguments(args, tensors)?)?;
            let mut parts = Parts::new();
            let value = result.into_value(&mut parts);
            Ok((value, parts))
        };
        assert!(self.by_name.insert(name, Box::new(run)).is_none(), "two methods have the name {name:?}");
        self
    }
}

/// A service made of an object, or of a function.
pub struct Object<S> {
    object: Arc<S>,
    methods: ObjectMethods<S>,
    lane: Lane,
}

impl<S: RemoteObject> Object<S> {
    /// Returns the service of an object.
    #[must_use]
    pub fn of(object: S) -> Self {
        Self::shared(Arc::new(object))
    }

    /// Returns the service of an object that others have too.
    #[must_use]
    pub fn shared(object: Arc<S>) -> Self {
        let methods = S::methods(ObjectMethods { by_name: BTreeMap::new() });
        Self { lane: object.lane(), object, methods }
    }
}

/// Returns the service of a function, which others call without naming a method.
///
/// ```
/// # use sheave_mesh::{Config, Expected, Mesh, Role};
/// # use sheave_base::config::Endpoint;
/// use sheave_rpc::{Rpc, function};
///
/// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
/// # let root = Endpoint { host: "127.0.0.1".into(), port };
/// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
/// let group = Rpc::serve(&mesh)?.create_group("sums", &[mesh.me().node], None).wait()?;
/// group.register("add", function(|(one, other): (i64, i64)| Ok(one + other)), None)?.wait()?;
/// assert_eq!(group.invoke::<i64>("add", "", (2, 3))?.wait()?, 5);
/// let error = group.invoke::<i64>("add", "", (2, "three"))?.wait().unwrap_err();
/// assert!(error.to_string().contains("argument 2: a string; expected an int"), "{error}");
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[must_use]
pub fn function<A: FromArguments + 'static, R: IntoValue + 'static>(
    function: impl Fn(A) -> Result<R> + Send + Sync + 'static,
) -> Object<()> {
    let methods = ObjectMethods { by_name: BTreeMap::new() }.on("", move |(), args: A| function(args));
    Object { object: Arc::new(()), methods, lane: Lane::default() }
}

impl<S: Send + Sync + 'static> Service for Object<S> {
    fn handle(&self, request: Request) {
        let Request { method, args, tensors, promises, reply, .. } = request;
        if !promises.is_empty() {
            let what = "a result that is to stay where it is, which functions of Rust do not return";
            return reply.error(Error::new(ErrorKind::Unsupported, what).hint("wait for the result instead"));
        }
        let Some(run) = self.methods.by_name.get(method.as_str()) else {
            let known: Vec<String> = self.methods.by_name.keys().map(|name| format!("{name:?}")).collect();
            let what = format!("no method {method:?}; it has {}", known.join(", "));
            return reply.error(Error::new(ErrorKind::NotFound, what));
        };
        reply.send(run(&self.object, args, &tensors));
    }

    fn lane(&self) -> Lane {
        self.lane
    }
}

impl RpcGroup {
    /// Calls a method of the service of this key, in whatever language it is, and reads its result; as
    /// [`RpcGroup::call`] in everything else. Arguments are a tuple, and the empty one for none.
    ///
    /// # Errors
    ///
    /// As [`RpcGroup::call`]; the work fails with `InvalidArgument` for a result of another type.
    pub fn invoke<R: FromValue + Clone + Send + 'static>(
        &self,
        key: impl Into<Value>,
        method: &str,
        args: impl IntoValue,
    ) -> Result<Work<R>> {
        self.invoke_within(key, method, args, None)
    }

    /// As [`RpcGroup::invoke`], ended with `DeadlineExceeded` after `timeout`.
    ///
    /// # Errors
    ///
    /// As [`RpcGroup::invoke`].
    pub fn invoke_within<R: FromValue + Clone + Send + 'static>(
        &self,
        key: impl Into<Value>,
        method: &str,
        args: impl IntoValue,
        timeout: Option<Duration>,
    ) -> Result<Work<R>> {
        let work = self.call(key, method, Call { deadline: timeout, ..call_of(args) })?;
        let read = |answer: Answer| R::from_value(answer.value, &answer.tensors);
        Ok(work.map(move |answer| read(answer).map_err(|error| error.context("the result"))))
    }
}
