//! `sheave.particle.Answer`: what will come of a message.

use super::parcel::{Exchange, Outcome, Parcel};
use super::seat;
use crate::enter::{enter, may_wait, still_running};
use crate::errors;
use crate::value::Opener;
use crate::work::{PyWork, now_ns};
use crate::{awaiting, enter as entering, life};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use sheave_base::fork::ForkMark;
use sheave_base::{Error, ErrorKind};
use sheave_particle::Answer;
use std::sync::Arc;

/// What opens an answer from another node.
pub(crate) type Source = Option<Opener>;

/// What will come of a message to a particle. It can be waited for again and again, by any thread; what its handler has
/// returned, or raised, stays until nobody has the answer any more. Dropping it does not keep the message from being
/// handled.
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
    answer: Answer<Parcel>,
    exchange: Arc<Exchange>,
    source: Source,
    mark: ForkMark,
}

/// What came of a message, which lies in its exchange from then on.
fn settled(
    py: Python<'_>,
    exchange: &Exchange,
    source: &Source,
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
        (Err(error), source) => match source.as_ref().and_then(|opener| opener.explanation()(py, &error)) {
            Some(raised) => Outcome::of(py, Err(raised)),
            None => Outcome::Failed(error),
        },
    };
    exchange.put(py, outcome);
    exchange.outcome(py).unwrap_or_else(|| Ok(py.None()))
}

impl PyAnswer {
    pub(crate) fn new(answer: Answer<Parcel>, exchange: Arc<Exchange>, source: Source) -> Self {
        Self { answer, exchange, source, mark: ForkMark::here() }
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.mark.check("answer").map_err(|error| errors::to_python(py, &error))
    }

    fn outcome(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if let Some(outcome) = self.exchange.outcome(py) {
            return outcome;
        }
        let missing = || Err(Error::new(ErrorKind::Internal, "the answer is not there"));
        settled(py, &self.exchange, &self.source, self.answer.result().unwrap_or_else(missing))
    }

    /// Waits for the end.
    fn ended(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<()> {
        self.check(py)?;
        if self.answer.is_done() {
            return Ok(());
        }
        may_wait(py)?;
        let is_done = match timeout_s {
            None => self.answer.help().map_err(|error| errors::raised(py, &error))?,
            Some(_) => false,
        };
        if is_done || enter(py, timeout_s, |until, interrupt| self.answer.wait_until(until, interrupt))? {
            return Ok(());
        }
        Err(errors::to_python(py, &still_running("send")))
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
    /// Wait until the message is handled. Returns what its handler has returned; raises what that has raised.
    ///
    /// Raises Deadlock if the handler that waits here waits, through others, for itself; NotFound for a particle or a
    /// message that is not known; PeerLost when the node of the particle dies. After `timeout` seconds it raises
    /// DeadlineExceeded, and the message is handled all the same; such a wait leaves the handler to other threads.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.ended_whole(py, timeout)?
    }

    /// The same as `wait`, under the name that futures have for it.
    #[pyo3(signature = (timeout = None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.wait(py, timeout)
    }

    /// Wait as `wait` does. Returns the exception that the handler has raised, or the error of the message, or None.
    #[pyo3(signature = (timeout = None))]
    fn exception(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        let outcome = self.ended_whole(py, timeout)?;
        Ok(outcome.err().map(|error| error.into_value(py).into_any()))
    }

    /// True once the message is handled, or has failed. Never waits.
    fn done(&self) -> bool {
        self.answer.is_done()
    }

    /// Fail it with Cancelled if its handler has not begun, which then never does. Never waits.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.check(py)?;
        py.detach(|| self.answer.cancel());
        Ok(())
    }

    /// Wait in asyncio, without blocking the loop; threads of the node run the handler.
    fn __await__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.check(py)?;
        let (exchange, source, failed) = (Arc::clone(&self.exchange), self.source.clone(), self.answer.clone());
        let taken = |work: &sheave_base::Work<Parcel>| match work.result() {
            // Failures are raised as a wait raises them, below.
            Some(Ok(parcel)) => Ok(parcel),
            _ => Ok(Parcel::Answered),
        };
        let convert = move |py: Python<'_>, parcel: Parcel| {
            let result = failed.result().unwrap_or(Ok(parcel));
            settled(py, &exchange, &source, result)
        };
        let work = Bound::new(py, PyWork::had_by(self.answer.work().clone(), now_ns(), taken, convert))?;
        let future = awaiting::future(&work)?;
        life::below(py, || future.call_method0("__await__"))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // What a message has that is on its way is the message's as well: it is not garbage when this is.
        if Arc::strong_count(&self.exchange) > 1 { Ok(()) } else { self.exchange.traverse(&visit) }
    }

    fn __clear__(&self) {
        // Nor is it cleared, though this is garbage.
        if Arc::strong_count(&self.exchange) == 1 {
            self.exchange.clear();
        }
    }

    fn __repr__(&self) -> String {
        let state = if self.answer.is_done() { "done" } else { "running" };
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
