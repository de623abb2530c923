//! The ground of `sheave.MemberFleet`: processes that are the members of a job, and what they say came of their work.

use crate::aside::aside;
use crate::enter::enter;
use crate::errors::OrRaise;
use crate::fleet::{command_of, output_named};
use crate::guarded::Guarded;
use crate::life;
use crate::link::PyPeer;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use sheave_base::{Error, ErrorKind, Result};
use sheave_fleet::{Answer, JobPlan, MemberFleet, Sheet};
use sheave_process::{Command, Job};
use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A program of the processes of one role: a command, and what they find on their sheets, if they are to have some.
type Program<C> = (C, Option<PyBackedBytes>);

/// A fleet and the sheets of its processes, by their places.
struct Members {
    fleet: MemberFleet,
    sheets: Vec<Option<Sheet>>,
}

/// Processes that are the members of a job: what `sheave.MemberFleet` stands on.
#[pyclass(name = "Members", module = "sheave._core", frozen)]
pub(crate) struct PyMembers(Mutex<Option<Guarded<Arc<Members>>>>);

impl PyMembers {
    fn get(&self, py: Python<'_>) -> PyResult<Arc<Members>> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = || Error::new(ErrorKind::Closed, "the fleet was closed");
        held.as_ref().ok_or_else(closed).and_then(|held| held.check("fleet").cloned()).or_raise(py)
    }
}

impl Drop for PyMembers {
    fn drop(&mut self) {
        let mut held = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if life::is_ending() {
            return drop(held);
        }
        // Killing takes a moment, which is not the other threads' affair.
        Python::try_attach(|py| py.detach(|| drop(held.take())));
        drop(held);
    }
}

/// Starts the processes of a plan, each with the program of its role.
fn start(plan: JobPlan, job: Job, programs: &HashMap<String, Program<Command>>) -> Result<Members> {
    let (mut commands, mut sheets) = (VecDeque::new(), Vec::new());
    for member in plan.members() {
        let role = member.role.to_string();
        let unknown = || Error::new(ErrorKind::Internal, format!("no program for the role {role}"));
        let (command, order) = programs.get(&role).ok_or_else(unknown)?;
        let sheet = order.as_deref().map(Sheet::new).transpose()?;
        commands.push_back(sheet.as_ref().map_or_else(|| Ok(command.clone()), |sheet| sheet.hand(command.clone()))?);
        sheets.push(sheet);
    }
    // There is one for each of them.
    let fleet = MemberFleet::start(plan, job, |_| commands.pop_front().unwrap_or_else(|| Command::new("false")))?;
    Ok(Members { fleet, sheets })
}

#[pymethods]
impl PyMembers {
    /// Starts the processes of a job, each with the program of its role.
    #[new]
    fn new(
        py: Python<'_>,
        workers: u32,
        servers: u32,
        programs: HashMap<String, Program<Vec<OsString>>>,
        env: HashMap<OsString, OsString>,
        output: &str,
    ) -> PyResult<Self> {
        let plan = JobPlan::new(workers, servers).or_raise(py)?;
        let output = output_named(output).or_raise(py)?;
        let command = move |words| command_of(words).map(|command| command.envs(&env));
        let programs = programs.into_iter().map(|(role, (words, order))| Ok((role, (command(words)?, order))));
        let programs = programs.collect::<Result<HashMap<_, _>>>().or_raise(py)?;
        let members = enter(py, None, |_, _| start(plan, Job::builder().output(output).start()?, &programs))?;
        Ok(Self(Mutex::new(Some(Guarded::new(Arc::new(members))))))
    }

    /// The processes in the order in which they were started.
    fn peers(&self, py: Python<'_>) -> PyResult<Vec<PyPeer>> {
        let members = self.get(py)?;
        let fleet = &members.fleet;
        let started = fleet.plan().members().iter().zip(fleet.children());
        Ok(started.map(|(member, child)| member.peer().pid(child.pid()).into()).collect())
    }

    /// Waits until all have ended well.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let members = self.get(py)?;
        let timeout = crate::enter::span(timeout)?;
        enter(py, None, |_, interrupt| members.fleet.wait_interruptible(timeout, interrupt))
    }

    /// The names of those that have neither ended nor answered.
    fn unfinished(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let members = self.get(py)?;
        let has_returned = |sheet: &Option<Sheet>| sheet.as_ref().is_some_and(Sheet::has_returned);
        let processes = members.fleet.children().iter().zip(&members.sheets);
        let waited = processes.filter(|(child, sheet)| child.exit().is_none() && !has_returned(sheet));
        Ok(waited.map(|(child, _)| child.name().to_owned()).collect())
    }

    /// The last word of the process of this name: whether it has succeeded, and what came of its work; none if it
    /// has said nothing.
    fn answer<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<(bool, Bound<'py, PyBytes>)>> {
        let members = self.get(py)?;
        let named = members.fleet.children().iter().position(|child| child.name() == name);
        let sheet = named.and_then(|at| members.sheets.get(at)).and_then(Option::as_ref);
        let answer = py.detach(|| sheet.map_or(Ok(None), Sheet::answer)).or_raise(py)?;
        Ok(answer.map(|answer| match answer {
            Answer::Returned(text) => (true, PyBytes::new(py, &text)),
            Answer::Failed(text) => (false, PyBytes::new(py, &text)),
        }))
    }

    /// Ends the processes: they are asked to, and killed after `grace` seconds. Idempotent.
    fn end(&self, py: Python<'_>, grace: f64) -> PyResult<()> {
        let members = self.get(py)?;
        let grace = crate::enter::span(Some(grace))?.unwrap_or(Duration::MAX);
        aside(py, move || {
            members.fleet.end(grace);
            Ok(())
        })
    }
}

/// The sheet of this process: its order from the fleet that has started it, and where it says what came of it.
#[pyclass(name = "Sheet", module = "sheave._core", frozen)]
pub(crate) struct PySheet(Sheet);

#[pymethods]
impl PySheet {
    /// Takes that of this process from its standard input.
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        Sheet::of_this_process().map(Self).or_raise(py)
    }

    /// The order, which is taken once.
    fn take_order<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.0.take_order().or_raise(py)?))
    }

    /// Says whether it has succeeded, and what came of it.
    fn answer(&self, py: Python<'_>, has_succeeded: bool, text: &[u8]) -> PyResult<()> {
        let text = text.to_vec();
        let answer = if has_succeeded { Answer::Returned(text) } else { Answer::Failed(text) };
        py.detach(|| self.0.write_answer(&answer)).or_raise(py)
    }
}
