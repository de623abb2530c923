//! `sheave.particle.Answer`: what will come of a message.

use super::derived::Derived;
use super::parcel::{Exchange, Outcome, Parcel};
use super::seat;
use crate::enter::{enter, may_wait, span};
use crate::errors;
use crate::value::Opener;
use crate::work::{PyWork, now_ns};
use crate::{awaiting, enter as entering, life};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use sheave_base::fork::ForkMark;
use sheave_base::{Error, ErrorKind, limits};
use sheave_particle::Answer;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What opens an answer from another node.
pub(crate) type Source = Option<Opener>;

/// Where an answer comes from.
enum Origin {
    Message(Answer<Parcel>, Source),
    /// A message to what serves the particles of a node: sheave's own errors are raised as what they are.
    Served(Answer<Parcel>, Source),
    Derived(Derived),
}

/// What will come of a message to a particle. It can be waited for again and again, by any thread; what its handler has
/// returned, or raised, stays until nobody has the answer any more. Dropping it does not keep the message from being
/// handled. An error that nobody has looked at then is told on standard error, once.
///
/// A wait without a timeout runs the handler itself where it can, and may run handlers of messages before it. It lets
/// other Python threads run while it sleeps, and ends at Ctrl-C. In asyncio, `await` it.
///
/// >>> with sheave.particle.Particles() as particles:
/// ...     doubler = particles.create(receive={"double": lambda particle, number: 2 * number})
/// ...     answer = particles.send(doubler, "double", 21)
/// ...     answer.wait(), answer.done(), answer.wait()
/// (42, True, 42)
#[pyclass(name = "Answer", module = "sheave.particle", frozen, weakref, generic)]
pub(crate) struct PyAnswer {
    origin: Origin,
    exchange: Arc<Exchange>,
    mark: ForkMark,
}

/// What came of a message, which lies in its exchange from then on.
fn settled(
    py: Python<'_>,
    exchange: &Exchange,
    (source, is_served): (&Source, bool),
    result: sheave_base::Result<Parcel>,
) -> PyResult<Py<PyAny>> {
    if let Some(outcome) = exchange.outcome(py) {
        return outcome;
    }
    let outcome = match (result, source) {
        (Ok(Parcel::Come(value, tensors)), Some(opener)) => {
            Outcome::of(py, opener.unpack(py, value, &tensors).map(Bound::unbind))
        }
        (Ok(_), _) => Outcome::Failed(Error::new(ErrorKind::Internal, "an answer without contents")),
        (Err(error), Some(_)) if is_served && own(&error).is_some() => raised_there(py, &error),
        (Err(error), source) => match source.as_ref().and_then(|opener| opener.explanation()(py, &error)) {
            Some(raised) => Outcome::of(py, Err(raised)),
            None => Outcome::Failed(error),
        },
    };
    exchange.put(py, outcome);
    exchange.outcome(py).unwrap_or_else(|| Ok(py.None()))
}

/// What the code that serves the particles of another node has raised of sheave's, if it has.
fn own(error: &Error) -> Option<&Error> {
    let cause = error.causes().next().filter(|_| error.kind() == ErrorKind::Remote)?;
    (cause.kind() != ErrorKind::Remote).then_some(cause)
}

/// The same here, with the node that says so, caused by the error of the call.
fn raised_there(py: Python<'_>, error: &Error) -> Outcome {
    let Some(cause) = own(error) else { return Outcome::Failed(error.clone()) };
    let mut same = Error::new(cause.kind(), cause.what().to_owned()).operation("send");
    if let Some(peer) = error.about().or(error.happened_on()) {
        same = same.origin(peer.clone());
    }
    let raised = errors::to_python(py, &same);
    raised.set_cause(py, Some(errors::to_python(py, error)));
    Outcome::of(py, Err(raised))
}

/// What is left of the seconds of a wait that has begun then.
fn left(timeout_s: Option<f64>, begun: Instant) -> Option<f64> {
    timeout_s.map(|timeout_s| (timeout_s - begun.elapsed().as_secs_f64()).max(0.0))
}

impl PyAnswer {
    /// The answer to a message; `is_served` says that it went to what serves the particles of a node.
    pub(crate) fn new(answer: Answer<Parcel>, exchange: Arc<Exchange>, source: Source, is_served: bool) -> Self {
        let origin = if is_served { Origin::Served(answer, source) } else { Origin::Message(answer, source) };
        Self { origin, exchange, mark: ForkMark::here() }
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.mark.check("answer").map_err(|error| errors::to_python(py, &error))
    }

    pub(crate) fn is_done(&self, py: Python<'_>) -> bool {
        match &self.origin {
            Origin::Message(answer, _) | Origin::Served(answer, _) => answer.is_done(),
            Origin::Derived(derived) => derived.is_done(py),
        }
    }

    pub(crate) fn outcome(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if let Some(outcome) = self.exchange.outcome(py) {
            return outcome;
        }
        let missing = || Err(Error::new(ErrorKind::Internal, "the answer is not there"));
        match &self.origin {
            Origin::Message(answer, source) => {
                settled(py, &self.exchange, (source, false), answer.result().unwrap_or_else(missing))
            }
            Origin::Served(answer, source) => {
                settled(py, &self.exchange, (source, true), answer.result().unwrap_or_else(missing))
            }
            Origin::Derived(_) => settled(py, &self.exchange, (&None, false), missing()),
        }
    }

    /// Waits for the end.
    fn ended(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<()> {
        self.check(py)?;
        let answer = match &self.origin {
            Origin::Message(answer, _) | Origin::Served(answer, _) => answer,
            Origin::Derived(derived) => {
                let begun = Instant::now();
                derived.base.bind(py).get().ended(py, timeout_s)?;
                return derived.run(py, &self.exchange, left(timeout_s, begun));
            }
        };
        if answer.is_done() {
            return Ok(());
        }
        may_wait(py)?;
        let is_done = match timeout_s {
            None => answer.help().map_err(|error| errors::raised(py, &error))?,
            Some(_) => false,
        };
        if is_done || enter(py, timeout_s, |until, interrupt| answer.wait_until(until, interrupt))? {
            return Ok(());
        }
        let elapsed = span(timeout_s)?.unwrap_or(Duration::ZERO);
        Err(errors::to_python(py, &answer.late(elapsed)))
    }

    /// Waits, and raises Ctrl-C that has ended another handler which this thread ran meanwhile.
    fn ended_whole(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<PyResult<Py<PyAny>>> {
        let ended = self.ended(py, timeout_s);
        let outcome = ended.map(|()| self.outcome(py));
        if !seat::is_handling() && entering::is_main_thread() && seat::was_interrupted() {
            match &outcome {
                Ok(Err(error)) | Err(error) if error.is_instance_of::<PyKeyboardInterrupt>(py) => {}
                _ => return Err(PyKeyboardInterrupt::new_err(())),
            }
        }
        outcome
    }
}

#[pymethods]
impl PyAnswer {
    /// Wait until the message is handled. Returns what its handler has returned; raises what that has raised. If that
    /// is an Answer in turn, as of a handler that passes a message on, `flatten` waits for it too, and for what that
    /// comes to, within the same `timeout`.
    ///
    /// Raises Deadlock if the handler that waits here waits, through others, for itself; NotFound for a particle or a
    /// message that is not known; PeerLost when the node of the particle dies. After `timeout` seconds it raises
    /// DeadlineExceeded, and the message is handled all the same; such a wait leaves the handler to other threads.
    #[pyo3(signature = (timeout = None, *, flatten = false))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>, flatten: bool) -> PyResult<Py<PyAny>> {
        let begun = Instant::now();
        let mut value = self.ended_whole(py, timeout)??;
        for _ in 0..limits::PARTICLE_ANSWERS_NESTED_MAX {
            let Some(answer) = value.bind(py).cast::<Self>().ok().filter(|_| flatten).cloned() else {
                return Ok(value);
            };
            value = answer.get().ended_whole(py, left(timeout, begun))??;
        }
        let what = format!("answers of {} answers, one within the other", limits::PARTICLE_ANSWERS_NESTED_MAX);
        let error = Error::new(ErrorKind::LimitExceeded, what).operation("wait").hint("is one its own answer?");
        Err(errors::to_python(py, &error))
    }

    /// Return an answer that is what `function(value)` makes of the value of this one. An exception of this one is
    /// that of the new one too, and the function is not called.
    ///
    /// The function has no thread of its own: it is called once, by the first that waits for the new answer, on its
    /// thread, when this one is there; in asyncio by the loop. If nobody waits it is never called. It may wait for
    /// other answers, but not for the one that it makes, which raises Deadlock.
    ///
    /// >>> with sheave.particle.Particles() as particles:
    /// ...     doubler = particles.create(receive={"double": lambda particle, number: 2 * number})
    /// ...     particles.send(doubler, "double", 21).then(str).wait()
    /// '42'
    fn then(own: Bound<'_, Self>, function: Py<PyAny>) -> PyResult<Self> {
        own.get().check(own.py())?;
        let origin = Origin::Derived(Derived::new(own.unbind(), function));
        Ok(Self { origin, exchange: Arc::default(), mark: ForkMark::here() })
    }

    /// The same as `wait`, under the name that futures have for it.
    #[pyo3(signature = (timeout = None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.wait(py, timeout, false)
    }

    /// Wait as `wait` does. Returns the exception that the handler has raised, or the error of the message, or None.
    #[pyo3(signature = (timeout = None))]
    fn exception(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        let outcome = self.ended_whole(py, timeout)?;
        Ok(outcome.err().map(|error| error.into_value(py).into_any()))
    }

    /// True once the message is handled, or has failed, so that a wait does not sleep. Never waits.
    fn done(&self, py: Python<'_>) -> bool {
        self.is_done(py)
    }

    /// Fail it with Cancelled if its handler has not begun, which then never does. Never waits.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.check(py)?;
        match &self.origin {
            Origin::Message(answer, _) | Origin::Served(answer, _) => py.detach(|| answer.cancel()),
            Origin::Derived(derived) => derived.base.bind(py).get().cancel(py)?,
        }
        Ok(())
    }

    /// Wait in asyncio, without blocking the loop; threads of the node run the handler.
    fn __await__<'py>(own: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = own.py();
        let this = own.get();
        this.check(py)?;
        let (answer, source, is_served) = match &this.origin {
            Origin::Message(answer, source) => (answer, source, false),
            Origin::Served(answer, source) => (answer, source, true),
            Origin::Derived(derived) => {
                let awaited = py.import("sheave.particle._particle")?.getattr("awaited")?;
                return awaited.call1((derived.base.bind(py), own))?.call_method0("__await__");
            }
        };
        let (exchange, source, failed) = (Arc::clone(&this.exchange), source.clone(), answer.clone());
        let taken = |work: &sheave_base::Work<Parcel>| match work.result() {
            // Failures are raised as a wait raises them, below.
            Some(Ok(parcel)) => Ok(parcel),
            _ => Ok(Parcel::Answered),
        };
        let convert = move |py: Python<'_>, parcel: Parcel| {
            let result = failed.result().unwrap_or(Ok(parcel));
            settled(py, &exchange, (&source, is_served), result)
        };
        let work = Bound::new(py, PyWork::had_by(answer.work().clone(), now_ns(), taken, convert))?;
        let future = awaiting::future(&work)?;
        life::below(py, || future.call_method0("__await__"))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Origin::Derived(derived) = &self.origin {
            derived.traverse(&visit)?;
        }
        // What a message has that is on its way is the message's as well: it is not garbage when this is.
        if Arc::strong_count(&self.exchange) > 1 { Ok(()) } else { self.exchange.traverse(&visit) }
    }

    fn __clear__(&self) {
        if let Origin::Derived(derived) = &self.origin {
            derived.clear();
        }
        // Nor is it cleared, though this is garbage.
        if Arc::strong_count(&self.exchange) == 1 {
            self.exchange.clear();
        }
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let is_done = match &self.origin {
            // To show it is not to look at it.
            Origin::Message(answer, _) | Origin::Served(answer, _) => answer.has_ended(),
            Origin::Derived(derived) => derived.is_done(py),
        };
        let state = if is_done { "done" } else { "running" };
        format!("<sheave.particle.Answer {state}>")
    }
}

impl Drop for PyAnswer {
    fn drop(&mut self) {
        // The interpreter is held: what nobody else has goes at once, and not when somebody comes by.
        if !self.mark.is_stale() && Arc::strong_count(&self.exchange) == 1 {
            self.exchange.clear();
        }
    }
}
