//! The operations as the controller issues them.

use super::built_in::shape_value;
use super::{Placement, Scope};
use crate::args::Args;
use crate::commands::{Callee, Command, Pause};
use crate::held::{Held, Slot};
use crate::register::Register;
use crate::results::Results;
use crate::session::Session;
use sheave_base::{Error, ErrorKind, Result};
use sheave_collective::Operator;
use sheave_tensor::{Dtype, Shape, Tensor};
use sheave_wire::Value;
use std::time::Duration;

/// Operations on what registers hold. They are commands: none waits for the workers, and what fails there is told by
/// the next wait and by the register that is returned ([`collective`](crate::collective)).
impl Session {
    /// Has workers make a tensor whose elements are whatever lay there. The others hold none.
    ///
    /// # Errors
    ///
    /// As [`Session::call`]; on the workers `LimitExceeded` where there is no memory.
    pub fn empty(&self, shape: impl Into<Shape>, dtype: Dtype, placement: Placement) -> Result<Register> {
        let args = Args::new().value(shape_value(&shape.into())).value(dtype.name()).value(placement.name());
        self.built_in("sheave.empty", &args)
    }

    /// Copies a tensor of the controller's to worker 0: over what `target` holds there, which has its dtype and number
    /// of elements, or into a register that the other workers hold none in. The tensor is captured before this returns.
    ///
    /// # Errors
    ///
    /// As [`Session::call`]; on worker 0 `Mismatch` for a target of another dtype or length.
    pub fn copy_to_first(&self, tensor: &Tensor, target: Option<&Register>) -> Result<Register> {
        let args = Args::new().placed(tensor, Placement::First, self.group_size());
        self.built_in("sheave.copy_to_first", &with_target(args, target))
    }

    /// Copies what worker 0 has in a register over a tensor of the controller's, which has its dtype and number of
    /// elements, when the worker gets there: this does not wait. The tensor may be read after a
    /// [`sync`](Session::sync) of worker 0, which tells what has failed. Until then it holds what it held, or is in use
    /// (`BufferInUse`); so does the copy fail while something else uses it.
    ///
    /// ```
    /// # use sheave_session::{Scope, Session};
    /// # use sheave_tensor::Tensor;
    /// let session = Session::threads(2, 1)?;
    /// let rows = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// let row = session.scatter(&rows, None, Scope::World)?;
    /// let all = session.gather_to_first(&row, None, Scope::World)?;
    /// let back = Tensor::private(rows.dtype(), [4])?;
    /// session.copy_from_first(&back, &all)?;
    /// session.sync(0, None)?;
    /// assert_eq!(back.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
    /// # session.shutdown()?;
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Session::call`], and `LimitExceeded` for too many copies under way; on worker 0 `InvalidArgument` if the
    /// register holds no tensor there, and `Mismatch` for one of another dtype or length.
    pub fn copy_from_first(&self, tensor: &Tensor, source: &Register) -> Result<()> {
        self.copy_from_first_pausing(tensor, source, &mut |blocking| blocking(None))
    }

    /// As [`Session::copy_from_first`]; `pause` makes the waits for room.
    ///
    /// # Errors
    ///
    /// As [`Session::copy_from_first`], and what `pause` says.
    pub fn copy_from_first_pausing(&self, tensor: &Tensor, source: &Register, pause: Pause<'_>) -> Result<()> {
        // Worker 0 is on this node: what it is named is this tensor itself.
        let slot = Slot::new(Held::Value(Value::Tensor(0), vec![tensor.clone()]));
        let mut refs = vec![None; self.workers() as usize];
        refs[0] = Some(self.mesh().export(slot)?);
        let target = Register::new(&self.0, Results::drawn(refs));
        let args = Args::new().register(source).register(&target);
        self.call_named("sheave.copy_from_first", &args, None, pause).map(drop)
    }

    /// Sends a tensor of the controller's to all workers: to the first ones of the scope, and from there on. Each has
    /// it in `target`, or in a tensor of the same shape.
    ///
    /// # Errors
    ///
    /// As [`Session::call`], and the [workers'](crate::collective).
    pub fn broadcast(&self, tensor: &Tensor, target: Option<&Register>, scope: Scope) -> Result<Register> {
        let args = Args::new().value(scope.name()).placed(tensor, scope.firsts(), self.group_size());
        self.built_in("sheave.broadcast_from_first", &with_target(args, target))
    }

    /// Sends what the first workers of the scope have in `source` to the others. What those have there is not looked
    /// at. Each, the first too, has it in `target`, or in a tensor of the same shape.
    ///
    /// # Errors
    ///
    /// As [`Session::broadcast`].
    pub fn broadcast_from_first(&self, source: &Register, target: Option<&Register>, scope: Scope) -> Result<Register> {
        self.moved("sheave.broadcast_from_first", source, target, scope)
    }

    /// Sends each worker its row of a tensor of the controller's: row i of the outermost dimension to worker i, or, of
    /// [`Scope::Group`], to the i-th of each group. It has that in `target`, or in a tensor of the row's shape.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if there is not one row for each worker of an operation, and then no worker has got the
    /// command; else as [`Session::broadcast`].
    pub fn scatter(&self, tensor: &Tensor, target: Option<&Register>, scope: Scope) -> Result<Register> {
        self.scatter_pausing(tensor, target, scope, &mut |blocking| blocking(None))
    }

    /// As [`Session::scatter`]; `pause` makes the waits for room.
    ///
    /// # Errors
    ///
    /// As [`Session::scatter`], and what `pause` says.
    pub fn scatter_pausing(
        &self,
        tensor: &Tensor,
        target: Option<&Register>,
        scope: Scope,
        pause: Pause<'_>,
    ) -> Result<Register> {
        let receivers = match scope {
            Scope::World => self.workers(),
            Scope::Group => self.group_size(),
        };
        if tensor.shape().dimensions().first() != Some(&u64::from(receivers)) {
            let what = format!("a tensor of {}{}; expected {receivers} rows", tensor.dtype(), tensor.shape());
            let whom = match scope {
                Scope::World => "one for each worker",
                Scope::Group => "one for each worker of a group",
            };
            return Err(Error::new(ErrorKind::InvalidArgument, format!("{what}, {whom}")).operation("scatter"));
        }
        let args = Args::new().value(scope.name()).placed(tensor, scope.firsts(), self.group_size());
        self.call_named("sheave.scatter_from_first", &with_target(args, target), None, pause)
    }

    /// Sends each worker of the scope its part of what the first has in `source`, in the order of the elements: these
    /// are a multiple of the number of workers. It has that in `target`, of any shape, or in a tensor of the shape of a
    /// row, if there is one row for each worker, and else in a flat one.
    ///
    /// # Errors
    ///
    /// As [`Session::broadcast`].
    pub fn scatter_from_first(&self, source: &Register, target: Option<&Register>, scope: Scope) -> Result<Register> {
        self.moved("sheave.scatter_from_first", source, target, scope)
    }

    /// Sends what all workers of the scope have in `source` to the first, one behind the other in the order of the
    /// workers. It has that in `target`, or in a tensor with one row for each; the others hold none in the register
    /// that is returned.
    ///
    /// # Errors
    ///
    /// As [`Session::broadcast`].
    pub fn gather_to_first(&self, source: &Register, target: Option<&Register>, scope: Scope) -> Result<Register> {
        self.moved("sheave.gather_to_first", source, target, scope)
    }

    /// Sends what each worker of the scope has in `source` to all, one behind the other in the order of the workers.
    /// Each has that in `target`, or in a tensor with one row for each worker.
    ///
    /// # Errors
    ///
    /// As [`Session::broadcast`].
    pub fn all_gather(&self, source: &Register, target: Option<&Register>, scope: Scope) -> Result<Register> {
        self.moved("sheave.all_gather", source, target, scope)
    }

    /// Reduces what the workers of the scope have in `source`, element by element. Each has the result in `target`,
    /// which may be the same register, or in a tensor of the same shape.
    ///
    /// ```
    /// use sheave_collective::Operator;
    /// use sheave_session::{Args, Scope, Session};
    /// # use sheave_session::{Function, Worker, register_function};
    /// # use sheave_tensor::Tensor;
    /// # register_function(Function::typed("own", |()| Tensor::from_slice(&[Worker::current()?.id as f32], [1])))?;
    ///
    /// let session = Session::threads(4, 2)?;
    /// // Each worker's number, in a tensor.
    /// let own = session.call(&session.function("own")?, &Args::new())?;
    /// let sums = session.all_reduce(&own, None, Operator::Sum, Scope::Group)?;
    /// assert_eq!(sums.get::<Tensor>(1, None)?.to_vec::<f32>()?, [1.0]);
    /// assert_eq!(sums.get::<Tensor>(2, None)?.to_vec::<f32>()?, [5.0]);
    /// # session.shutdown()?;
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Session::broadcast`], and on the workers `Unsupported` for an operator that the dtype does not have.
    pub fn all_reduce(
        &self,
        source: &Register,
        target: Option<&Register>,
        operator: Operator,
        scope: Scope,
    ) -> Result<Register> {
        let args = Args::new().value(scope.name()).value(operator.name()).register(source);
        self.built_in("sheave.all_reduce", &with_target(args, target))
    }

    /// Sends what one worker has in `source` to another one, which has it in `target`, or in a tensor of the same
    /// shape; all others go on and hold none in the register that is returned.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the two are not two workers of the session, and then no worker has got the command; else as
    /// [`Session::broadcast`], told by the two.
    pub fn send_between(&self, from: u32, source: &Register, to: u32, target: Option<&Register>) -> Result<Register> {
        self.send_between_pausing(from, source, to, target, &mut |blocking| blocking(None))
    }

    /// As [`Session::send_between`]; `pause` makes the waits for room.
    ///
    /// # Errors
    ///
    /// As [`Session::send_between`], and what `pause` says.
    pub fn send_between_pausing(
        &self,
        from: u32,
        source: &Register,
        to: u32,
        target: Option<&Register>,
        pause: Pause<'_>,
    ) -> Result<Register> {
        self.0.check(from)?;
        self.0.check(to)?;
        if from == to {
            let what = format!("worker {from} sends to itself; expected two workers");
            return Err(Error::new(ErrorKind::InvalidArgument, what).operation("send_between"));
        }
        let args = Args::new().value(from).register(source).value(to);
        self.call_named("sheave.send_between", &with_target(args, target), None, pause)
    }

    /// Sends what each worker has in `source` to the one of the same rank in the next group, which has it in `target`,
    /// or in a tensor of the same shape. Those of the last group send nothing, those of the first get nothing and hold
    /// none in the register that is returned.
    ///
    /// # Errors
    ///
    /// As [`Session::broadcast`], told by the two ends of each message.
    pub fn pass_to_next_group(&self, source: &Register, target: Option<&Register>) -> Result<Register> {
        self.built_in("sheave.pass_to_next_group", &with_target(Args::new().register(source), target))
    }

    /// Has operations end that take longer, from the next command on, those that functions begin on
    /// [`Worker::world`](crate::Worker::world) and [`Worker::within_group`](crate::Worker::within_group) too. Where
    /// functions do not call the same operations on all workers, the first that gives up says who is missing
    /// (`DeadlineExceeded`), and so are those told that wait with it (`Cancelled`). It breaks the operations of that
    /// scope until they are [made again](Session::renew_collectives). Without a limit, as at the beginning, a worker
    /// waits for as long as all live.
    ///
    /// # Errors
    ///
    /// As [`Session::call`].
    pub fn limit_collectives(&self, limit: Option<Duration>) -> Result<()> {
        let nanoseconds = limit.map(|limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        self.built_in("sheave.limit_collectives", &Args::new().value(nanoseconds)).map(drop)
    }

    /// Has the workers make the groups of their operations again, from the next command on, where an operation has
    /// broken them: by a limit, or because functions have called different ones. A dead worker is no reason: its
    /// groups fail with its loss as before.
    ///
    /// # Errors
    ///
    /// As [`Session::call`].
    pub fn renew_collectives(&self) -> Result<()> {
        self.built_in("sheave.renew_collectives", &Args::new()).map(drop)
    }

    fn moved(
        &self,
        name: &'static str,
        source: &Register,
        target: Option<&Register>,
        scope: Scope,
    ) -> Result<Register> {
        self.built_in(name, &with_target(Args::new().value(scope.name()).register(source), target))
    }

    /// Has all workers call a built-in function.
    pub(crate) fn built_in(&self, name: &'static str, args: &Args) -> Result<Register> {
        self.call_named(name, args, None, &mut |blocking| blocking(None))
    }

    /// As [`Session::call_pausing`], of the function that each worker has under this name: it is no register, and needs
    /// no command of its own.
    ///
    /// # Errors
    ///
    /// As [`Session::call_pausing`].
    pub fn call_named(&self, name: &str, args: &Args, timeout: Option<Duration>, pause: Pause<'_>) -> Result<Register> {
        args.registers().try_for_each(|register| register.check(&self.0))?;
        let _leases = args.hold()?;
        let command = Command { callee: Callee::Named(name), args: Some(args) };
        self.0.issue(&command, timeout, pause).map(|results| Register::new(&self.0, results))
    }

    /// Returns the workers of each group.
    #[must_use]
    pub fn group_size(&self) -> u32 {
        self.workers() / self.groups()
    }
}

fn with_target(args: Args, target: Option<&Register>) -> Args {
    match target {
        Some(target) => args.register(target),
        None => args,
    }
}
