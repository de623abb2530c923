//! Pools whose workers are threads of this process.

use crate::functions::Functions;
use crate::packet::Packet;
use sheave_base::{Error, ErrorKind, Result, Work};
use sheave_mesh::{Call, Lane, Mesh, Request, Service};
use sheave_net::{Part, Parts};
use sheave_rpc::{FromValue, IntoValue};
use sheave_tensor::Mode;
use std::fmt;

/// Threads of a node that run functions: at most so many at a time. A function that waits for others of the same pool
/// makes room for one of them meanwhile, so that they never wait for each other for ever.
///
/// ```
/// use sheave_pool::{Functions, ThreadPool};
/// # use sheave_mesh::{Config, Expected, Mesh, Role};
/// # use sheave_base::config::Endpoint;
///
/// # let root = Endpoint { host: "127.0.0.1".into(), port: sheave_base::port::free()? };
/// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
/// let functions = Functions::new().on("square", |(number,): (i64,)| Ok(number * number));
/// let pool = ThreadPool::start(&mesh, 2, functions)?;
/// let works: Vec<_> = (0..10).map(|number| pool.call::<i64>("square", (number,))).collect::<Result<_, _>>()?;
/// let sum: i64 = works.iter().map(|work| work.wait()).sum::<Result<i64, _>>()?;
/// assert_eq!(sum, 285);
/// # Ok::<(), sheave_base::Error>(())
/// ```
pub struct ThreadPool {
    mesh: Mesh,
    service: String,
}

struct Desk {
    functions: Functions,
    lane: Lane,
}

impl Service for Desk {
    fn handle(&self, request: Request) {
        let Request { method, args, tensors, reply, .. } = request;
        let function = self.functions.find(&method);
        let result = function.and_then(|function| function(args, &tensors)).and_then(Packet::into_value);
        reply.send(result.map(|(value, tensors)| {
            (value, tensors.into_iter().map(|tensor| Part::new(tensor, Mode::Copy)).collect())
        }));
    }

    fn lane(&self) -> Lane {
        self.lane
    }
}

impl ThreadPool {
    /// Makes one of `count` threads at most, which the node starts as there is something to do.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` without a thread; `Closed` once the node has left.
    pub fn start(mesh: &Mesh, count: usize, functions: Functions) -> Result<Self> {
        if count == 0 {
            let what = "a pool of 0 threads; expected one at least";
            return Err(Error::new(ErrorKind::InvalidArgument, what).operation("start pool"));
        }
        let service = format!("sheave.pool.threads.{}", mesh.next_number("pool of threads"));
        mesh.serve(&service, Desk { functions, lane: Lane::Concurrent(count) })?;
        Ok(Self { mesh: mesh.clone(), service })
    }

    /// Calls the function of this name, whose arguments are a tuple of values of Rust; tensors among them are captured.
    /// Does not block. A panic in it, and a result of another type, are errors of the work.
    ///
    /// # Errors
    ///
    /// As [`Mesh::call`].
    pub fn call<R: FromValue + Clone + Send + 'static>(&self, function: &str, args: impl IntoValue) -> Result<Work<R>> {
        let mut tensors = Parts::new();
        let args = args.into_value(&mut tensors);
        let call = Call { args, tensors, ..Call::default() };
        let work = self.mesh.call(self.mesh.me().node, self.service.clone(), function, call)?;
        Ok(work.map(|answer| R::from_value(answer.value, &answer.tensors).map_err(|error| error.context("the result"))))
    }
}

impl Drop for ThreadPool {
    /// What has not begun is refused; what runs goes on.
    fn drop(&mut self) {
        self.mesh.serve_no_more(&self.service);
    }
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadPool").field("service", &self.service).finish_non_exhaustive()
    }
}
