//! Functions that workers run, and where they are found by their names.

use crate::collective::built_in;
use crate::held::{Foreign, Held, shifted};
use parking_lot::RwLock;
use sheave_base::collections::HashMap;
use sheave_base::{Error, ErrorKind, Result};
use sheave_rpc::{FromArguments, FromValue, IntoValue};
use sheave_wire::Value;
use std::any::Any;
use std::fmt;
use std::sync::{Arc, LazyLock};

/// The functions of this process, by their names.
static FUNCTIONS: LazyLock<RwLock<HashMap<String, Function>>> = LazyLock::new(RwLock::default);

/// How the names of built-in functions begin.
const BUILT_IN_PREFIX: &str = "sheave.";

/// Names that an error about an unknown one lists.
const NAMED_MAX: usize = 8;

type Run = dyn Fn(Arguments) -> Result<Held> + Send + Sync;

/// Something that a worker calls.
///
/// ```
/// use sheave_session::{Function, Held};
///
/// let add = Function::typed("add", |(one, other): (i64, i64)| Ok(one + other));
/// assert_eq!(add.call(vec![Held::of(2), Held::of(3)])?.read::<i64>()?, 5);
/// // One that makes functions, which stay on their worker.
/// let adder = Function::new("adder", |mut arguments| {
///     let one: i64 = arguments.take()?;
///     Ok(Held::Function(Function::typed("add one", move |(other,): (i64,)| Ok(one + other))))
/// });
/// let Held::Function(two) = adder.call(vec![Held::of(2)])? else { unreachable!("it makes functions") };
/// assert_eq!(two.call(vec![Held::of(5)])?.read::<i64>()?, 7);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone)]
pub struct Function(Arc<Inner>);

struct Inner {
    name: Arc<str>,
    run: Arc<Run>,
    /// What it is in another language.
    foreign: Option<Arc<dyn Foreign>>,
    /// It is called with what poisons its arguments too, for others wait for it.
    takes_poison: bool,
}

impl Function {
    /// Makes one of a closure that takes its arguments itself: those that are functions or objects too.
    #[must_use]
    pub fn new(name: &str, run: impl Fn(Arguments) -> Result<Held> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { name: name.into(), run: Arc::new(run), foreign: None, takes_poison: false }))
    }

    /// Says what it is in another language, whose functions get that where this is among their arguments.
    #[must_use]
    pub fn with_foreign(self, foreign: Arc<dyn Foreign>) -> Self {
        let Inner { name, run, takes_poison, .. } = &*self.0;
        let (name, run, takes_poison) = (Arc::clone(name), Arc::clone(run), *takes_poison);
        Self(Arc::new(Inner { name, run, foreign: Some(foreign), takes_poison }))
    }

    /// What it is in another language, if it is of one.
    #[must_use]
    pub fn foreign(&self) -> Option<&Arc<dyn Foreign>> {
        self.0.foreign.as_ref()
    }

    /// Makes one that is called even where arguments are poisoned; taking such a one fails.
    pub(crate) fn despite_poison(name: &str, run: impl Fn(Arguments) -> Result<Held> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { name: name.into(), run: Arc::new(run), foreign: None, takes_poison: true }))
    }

    /// Makes one of a closure whose arguments, a tuple, and result are values of Rust. A [`Value`] among them has left
    /// its tensors behind, and cannot be a result with some in it: [`Function::new`] passes such on.
    #[must_use]
    pub fn typed<A: FromArguments, R: IntoValue>(
        name: &str,
        run: impl Fn(A) -> Result<R> + Send + Sync + 'static,
    ) -> Self {
        Self::new(name, move |arguments| {
            let held = Held::of(run(arguments.read_all()?)?);
            if let Held::Value(value, tensors) = &held {
                value.check_tensors(tensors.len()).map_err(|error| error.context("the result"))?;
            }
            Ok(held)
        })
    }

    /// The name that errors say.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Calls it on this thread.
    ///
    /// # Errors
    ///
    /// Its own, and `InvalidArgument` for arguments that it does not take.
    pub fn call(&self, arguments: Vec<Held>) -> Result<Held> {
        self.call_with(arguments.into_iter().map(Ok).collect())
    }

    /// As [`Function::call`], with what has poisoned arguments: the first of these is the outcome, unless the function
    /// is one that must run all the same.
    pub(crate) fn call_with(&self, arguments: Vec<Result<Held>>) -> Result<Held> {
        if !self.0.takes_poison
            && let Some(Err(poison)) = arguments.iter().find(|argument| argument.is_err())
        {
            return Err(poison.clone());
        }
        (self.0.run)(Arguments { count: arguments.len(), left: arguments.into_iter() })
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Function").field(&self.name()).finish()
    }
}

/// The arguments of a call, which are taken one after the other.
pub struct Arguments {
    count: usize,
    left: std::vec::IntoIter<Result<Held>>,
}

impl Arguments {
    /// Takes the next one as a value of Rust.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if it is something else, or there is none.
    pub fn take<T: FromValue>(&mut self) -> Result<T> {
        let held = self.take_held()?;
        held.read().map_err(|error| error.context(format!("argument {}", self.taken())))
    }

    /// Takes the next one as a function.
    ///
    /// # Errors
    ///
    /// As [`Arguments::take`].
    pub fn take_function(&mut self) -> Result<Function> {
        let held = self.take_held()?;
        held.to_function().ok_or_else(|| self.refused(&held, "a function"))
    }

    /// Takes the next one as an object of the worker's own.
    ///
    /// # Errors
    ///
    /// As [`Arguments::take`].
    pub fn take_object<T: Any + Send + Sync>(&mut self) -> Result<Arc<T>> {
        let held = self.take_held()?;
        let Held::Object(object) = &held else { return Err(self.refused(&held, "an object")) };
        Arc::clone(object).downcast().map_err(|_| self.refused(&held, std::any::type_name::<T>()))
    }

    /// Takes the next one, whatever it is.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if there is none; what has poisoned it, for a function that runs in spite of that.
    pub fn take_held(&mut self) -> Result<Held> {
        let missing = || Error::new(ErrorKind::InvalidArgument, format!("{} arguments; expected more", self.count));
        self.left.next().ok_or_else(missing)?
    }

    /// How many are left.
    pub(crate) fn left(&self) -> usize {
        self.left.len()
    }

    /// Takes all that are left, whatever they are, or what has poisoned them.
    pub fn take_all(&mut self) -> impl ExactSizeIterator<Item = Result<Held>> + '_ {
        self.left.by_ref()
    }

    fn taken(&self) -> usize {
        self.count - self.left.len()
    }

    fn refused(&self, held: &Held, expected: &str) -> Error {
        let what = format!("argument {}: {}; expected {expected}", self.taken(), held.kind_name());
        Error::new(ErrorKind::InvalidArgument, what)
    }

    /// Reads all that are left.
    fn read_all<A: FromArguments>(self) -> Result<A> {
        let (mut values, mut all) = (Vec::with_capacity(self.left.len()), Vec::new());
        let first = self.taken();
        for (at, held) in self.left.enumerate() {
            let (value, tensors) = match held? {
                Held::Value(value, tensors) => (value, tensors),
                Held::Foreign(object) => object.value()?,
                other => {
                    let what = format!("argument {}: {}; expected a value", first + at + 1, other.kind_name());
                    return Err(Error::new(ErrorKind::InvalidArgument, what));
                }
            };
            let by = u32::try_from(all.len()).unwrap_or(u32::MAX);
            values.push(shifted(value, by));
            all.extend(tensors);
        }
        A::from_arguments(Value::Tuple(values), &all)
    }
}

/// Lets the workers of this process find a function by its name.
///
/// ```
/// use sheave_session::{Function, register_function, registered_function};
///
/// register_function(Function::typed("double", |(number,): (i64,)| Ok(2 * number)))?;
/// assert!(registered_function("double").is_some());
/// assert!(register_function(Function::typed("double", |()| Ok(0))).is_err(), "there is one");
/// # Ok::<(), sheave_base::Error>(())
/// ```
///
/// # Errors
///
/// `AlreadyExists` if one has the name; `InvalidArgument` for a name that begins with `sheave.`, as those of
/// [built-in functions](crate::collective) do.
pub fn register_function(function: Function) -> Result<()> {
    check_name(&function)?;
    let mut functions = FUNCTIONS.write();
    if functions.contains_key(function.name()) {
        let what = format!("this process has a function \"{}\" already", function.name());
        return Err(Error::new(ErrorKind::AlreadyExists, what).operation("register function"));
    }
    functions.insert(function.name().to_owned(), function);
    Ok(())
}

/// As [`register_function`], in place of the one that has the name, if there is one. Registers that hold that keep it.
///
/// # Errors
///
/// `InvalidArgument` for a name that begins as those of built-in functions do.
pub fn replace_function(function: Function) -> Result<()> {
    check_name(&function)?;
    // Not under the lock: a drop may do anything.
    let former = FUNCTIONS.write().insert(function.name().to_owned(), function);
    drop(former);
    Ok(())
}

fn check_name(function: &Function) -> Result<()> {
    if !function.name().starts_with(BUILT_IN_PREFIX) {
        return Ok(());
    }
    let what = format!("the name \"{}\" begins as those of built-in functions do", function.name());
    Err(Error::new(ErrorKind::InvalidArgument, what).operation("register function"))
}

/// Lets nobody find a function of this process by its name any more. Registers that hold it keep it.
pub fn unregister_function(name: &str) {
    // Not under the lock: a drop may do anything.
    let removed = FUNCTIONS.write().remove(name);
    drop(removed);
}

/// Returns the function of this process that has this name, [built-in](crate::collective) ones among them.
#[must_use]
pub fn registered_function(name: &str) -> Option<Function> {
    if name.starts_with(BUILT_IN_PREFIX) {
        return built_in(name);
    }
    FUNCTIONS.read().get(name).cloned()
}

/// The function of this name, for a command.
pub(crate) fn found(name: &str) -> Result<Function> {
    registered_function(name).ok_or_else(|| {
        let mut known: Vec<String> = FUNCTIONS.read().keys().cloned().collect();
        known.sort_unstable();
        let more = if known.len() > NAMED_MAX { ", …" } else { "" };
        known.truncate(NAMED_MAX);
        let error = Error::new(ErrorKind::NotFound, format!("the worker has no function \"{name}\""));
        error.hint(format!("register it in the worker's program; it has {}{more}", known.join(", ")))
    })
}
