//! Programs of workers in Rust: functions that are found by their names.

use crate::packet::Packet;
use crate::pool::Tasker;
use crate::task::Function;
use crate::turn::Turn;
use crate::worker::{Program, work};
use sheave_base::collections::HashMap;
use sheave_base::{Error, ErrorKind, Result, Work};
use sheave_mesh::{Guest, GuestConfig};
use sheave_net::{Node, Part, Parts, Tensors};
use sheave_process::Slate;
use sheave_rpc::{FromArguments, FromValue, IntoValue};
use sheave_tensor::Tensor;
use sheave_wire::Value;
use std::sync::Arc;

/// Names that an error about an unknown one lists.
const NAMED_MAX: usize = 8;

pub(crate) type Run = dyn Fn(Value, &[Tensor]) -> Result<Packet> + Send + Sync;

/// The functions of a worker's program, by their names.
///
/// ```no_run
/// use sheave_pool::{Functions, work_with};
///
/// fn main() -> sheave_base::Result<()> {
///     work_with(Functions::new().on("square", |(number,): (i64,)| Ok(number * number)))
/// }
/// ```
#[derive(Clone, Default)]
pub struct Functions {
    by_name: HashMap<String, Arc<Run>>,
}

impl Functions {
    /// Returns no functions yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one whose arguments, a tuple, and result are values of Rust; in place of another one of this name.
    #[must_use]
    pub fn on<A: FromArguments, R: IntoValue>(
        mut self,
        name: &str,
        run: impl Fn(A) -> Result<R> + Send + Sync + 'static,
    ) -> Self {
        let run = move |args: Value, tensors: &[Tensor]| {
            let mut parts = Parts::new();
            let value = run(A::from_arguments(args, tensors)?)?.into_value(&mut parts);
            Packet::new(&value, parts.into_iter().map(Part::into_tensor).collect())
        };
        self.by_name.insert(name.to_owned(), Arc::new(run));
        self
    }

    /// The one of this name.
    pub(crate) fn find(&self, name: &str) -> Result<Arc<Run>> {
        self.by_name.get(name).cloned().ok_or_else(|| {
            let mut known: Vec<&str> = self.by_name.keys().map(String::as_str).collect();
            known.sort_unstable();
            let more = if known.len() > NAMED_MAX { ", …" } else { "" };
            known.truncate(NAMED_MAX);
            let error = Error::new(ErrorKind::NotFound, format!("the worker has no function \"{name}\""));
            error.hint(format!("add it to the worker's program; it has {}{more}", known.join(", ")))
        })
    }
}

impl std::fmt::Debug for Functions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.by_name.keys()).finish()
    }
}

/// The program of a worker with these functions.
pub struct Named {
    functions: Functions,
    node: Node,
}

impl Named {
    /// `node` is that of the worker.
    #[must_use]
    pub fn new(functions: Functions, node: &Node) -> Self {
        Self { functions, node: node.clone() }
    }
}

impl Program for Named {
    type Function = Arc<Run>;

    fn set_up(&self, _: Option<Packet>) -> Result<()> {
        Ok(())
    }

    fn function(&self, definition: Packet) -> Result<Arc<Run>> {
        let Value::Str(name) = definition.value()? else {
            return Err(Error::new(ErrorKind::InvalidArgument, "a function of this worker is found by its name"));
        };
        self.functions.find(&name)
    }

    fn run(&self, function: &Arc<Run>, args: Packet) -> Result<Packet> {
        let (value, tensors) = args.into_value()?;
        // What lies in memory that others reach yields no slice, and nobody else has it: a copy does.
        let owned = |tensor: Tensor| match tensor.buffer().is_shared_alias() {
            true => self.node.capture(&tensor),
            false => Ok(tensor),
        };
        let tensors: Tensors = tensors.into_iter().map(owned).collect::<Result<_>>()?;
        function(value, &tensors)
    }
}

/// Is a worker with these functions, in a process that a [`Pool`](crate::Pool) has started: does its tasks on this
/// thread until it is let go. Blocks.
///
/// # Errors
///
/// `NotFound` if no pool has started this process; as [`work`] in all else.
pub fn work_with(functions: Functions) -> Result<()> {
    let turn = Turn::shared(Slate::of_this_process()?);
    let nowhere = || Error::new(ErrorKind::NotFound, "this process has no invitation").hint("let a pool start it");
    let guest = Guest::attach(GuestConfig::from_env()?.ok_or_else(nowhere)?)?;
    let program = Named::new(functions, guest.node());
    let worked = work(&guest, turn, program, None);
    let left = guest.leave();
    worked.and(left)
}

impl Tasker {
    /// The function that workers in Rust have under this name.
    ///
    /// # Errors
    ///
    /// `LimitExceeded` for a name that is too long.
    pub fn named(&self, name: &str) -> Result<Function> {
        Ok(self.function(Packet::new(&Value::from(name), Tensors::new())?))
    }

    /// Submits a call of a function, whose arguments are a tuple of values of Rust; tensors among them are captured.
    /// As [`Tasker::submit`] in all else; a result of another type is `InvalidArgument`.
    ///
    /// # Errors
    ///
    /// As [`Tasker::submit`], and `LimitExceeded` for arguments that are too long.
    pub fn call<R: FromValue + Clone + Send + 'static>(
        &self,
        function: &Function,
        args: impl IntoValue,
    ) -> Result<Work<R>> {
        let mut parts = Parts::new();
        let value = args.into_value(&mut parts);
        let work = self.submit(function, self.packet(&value, parts)?, 0)?;
        Ok(work.map(|result| {
            let (value, tensors) = result.into_value()?;
            R::from_value(value, &tensors).map_err(|error| error.context("the result"))
        }))
    }
}
