//! Processes that are the members of a job of their own.

use crate::cause::{Cause, await_cause};
use crate::died::worker_died;
use crate::plan::{JobMember, JobPlan};
use sheave_base::limits::{DRAIN_TIMEOUT, WAIT_NOTICES};
use sheave_base::work::Interrupt;
use sheave_base::{Error, ErrorKind, Result};
use sheave_net::Notices;
use sheave_process::{Child, Command, Job, Outcome, Report};
use std::io::Write;
use std::time::{Duration, Instant};

/// How often the notes of the processes about each other are read.
const NOTES_READ: Duration = Duration::from_secs(1);

/// How often a wait asks whether it is to be interrupted.
const INTERRUPT_LOOK: Duration = Duration::from_millis(100);

/// How long the others may take to end once one has failed.
const GRACE: Duration = Duration::from_secs(1);

/// Processes that one line names.
const NAMED_MAX: usize = 8;

/// The processes of one job on this machine, its members: ranks, or a scheduler with servers and workers. None is
/// replaced, for the others have agreed on who they are: when one fails the job has failed.
///
/// Dropping the fleet kills what is left of it, as the end of this process does.
///
/// ```
/// use sheave_fleet::{JobPlan, MemberFleet};
/// use sheave_process::{Command, Job};
/// use std::time::Duration;
///
/// # fn main() -> sheave_base::Result<()> {
/// let program = Command::new("sh").args(["-c", "test $SHEAVE_WORLD_SIZE = 2 && exit $SHEAVE_RANK"]);
/// let fleet = MemberFleet::start(JobPlan::new(2, 0)?, Job::start()?, |_| program.clone())?;
/// let error = fleet.wait(Some(Duration::from_secs(20))).unwrap_err();
/// assert_eq!(error.about().map(|peer| &*peer.name), Some("rank-1"));
/// assert_eq!(error.process_end().and_then(|end| end.status()), Some(1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MemberFleet {
    job: Job,
    children: Vec<Child>,
    plan: JobPlan,
}

impl MemberFleet {
    /// Starts a process for each member, as long as all is well, with the command that `command` makes for it. Blocks
    /// for some milliseconds for each.
    ///
    /// # Errors
    ///
    /// As [`Job::spawn`]; then nothing is left of those that were started before.
    pub fn start(plan: JobPlan, job: Job, command: impl FnMut(&JobMember) -> Command) -> Result<Self> {
        Self::start_from(0, plan, job, command)
    }

    /// As [`MemberFleet::start`], of all but the first member, which is this process: it joins by
    /// [`JobPlan::config`].
    ///
    /// # Errors
    ///
    /// As [`MemberFleet::start`].
    pub fn start_beside(plan: JobPlan, job: Job, command: impl FnMut(&JobMember) -> Command) -> Result<Self> {
        Self::start_from(1, plan, job, command)
    }

    fn start_from(
        first: usize,
        plan: JobPlan,
        job: Job,
        mut command: impl FnMut(&JobMember) -> Command,
    ) -> Result<Self> {
        let mut fleet = Self { job, children: Vec::new(), plan };
        for (local_rank, member) in fleet.plan.members().iter().enumerate().skip(first) {
            let outcome = fleet.job.wait_first_failure_or_all(Some(Instant::now()))?;
            if matches!(outcome, Some(Outcome::Failed(_) | Outcome::Signal(_))) {
                break;
            }
            fleet.children.push(fleet.job.spawn(fleet.plan.place(local_rank, command(member)))?);
        }
        Ok(fleet)
    }

    /// The job that holds the processes.
    #[must_use]
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The processes in the order of [`JobPlan::members`], as far as they were started.
    #[must_use]
    pub fn children(&self) -> &[Child] {
        &self.children
    }

    /// The plan by which they were started.
    #[must_use]
    pub fn plan(&self) -> &JobPlan {
        &self.plan
    }

    /// Waits until a process fails, all workers have ended well, or a signal was forwarded; `None` if `deadline` passed
    /// before.
    ///
    /// # Errors
    ///
    /// As [`Job::wait_first_failure_or_all`], and what `interrupt` says, which is asked at least every 100 ms.
    pub fn await_outcome(
        &self,
        deadline: Option<Instant>,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<Option<Outcome>> {
        self.watch(deadline, interrupt, |until| self.job.wait_first_failure_or_all(Some(until)))
    }

    /// Waits until servers and scheduler have ended by themselves after all workers have, or a signal came; `None` if
    /// some have not until then. One that fails does not end the others: they may be saving what is theirs. `notice` is
    /// called after 10 s, 1 min, 10 min and so on with those that are waited for and the time that is left.
    ///
    /// # Errors
    ///
    /// As [`Job::wait_all_ended`], and what `interrupt` says, which is asked at least every 100 ms.
    pub fn drain(
        &self,
        deadline: Instant,
        mut interrupt: Option<Interrupt<'_>>,
        mut notice: impl FnMut(&str, Duration),
    ) -> Result<Option<Outcome>> {
        let mut notices = Notices::new(&WAIT_NOTICES, Instant::now());
        loop {
            let next = notices.next_at().map_or(deadline, |next| deadline.min(next));
            let asked = interrupt.as_mut().map(|interrupt| interrupt as Interrupt<'_>);
            let outcome = self.watch(Some(next), asked, |until| self.job.wait_all_ended(Some(until)))?;
            if outcome.is_some() || next >= deadline {
                return Ok(outcome);
            }
            if notices.due(Instant::now()).is_some() {
                notice(&self.living(), deadline.saturating_duration_since(Instant::now()));
            }
        }
    }

    /// Waits in pieces, between which notes are read: those of many processes in a long job must not fill the pipe.
    fn watch(
        &self,
        deadline: Option<Instant>,
        mut interrupt: Option<Interrupt<'_>>,
        wait: impl Fn(Instant) -> Result<Option<Outcome>>,
    ) -> Result<Option<Outcome>> {
        let piece = if interrupt.is_some() { INTERRUPT_LOOK } else { NOTES_READ };
        loop {
            let now = Instant::now();
            let until = deadline.map_or(now + piece, |deadline| deadline.min(now + piece));
            let outcome = wait(until)?;
            if outcome.is_some() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(outcome);
            }
            if let Some(interrupt) = &mut interrupt {
                interrupt()?;
            }
            let _ = self.plan.losses().known();
        }
    }

    /// Returns the error about the process of this name, `WorkerDied` with its exit status and the end of its standard
    /// error, once it has ended; `None` if it has not after `patience`, or there is none of that name. For those who go
    /// on without it. Blocks until then.
    #[must_use]
    pub fn death_of(&self, name: &str, patience: Duration) -> Option<Error> {
        let child = self.children.iter().find(|child| child.name() == name)?;
        let member = self.plan.members().iter().find(|member| member.name() == name)?;
        let deadline = Instant::now() + patience;
        let exit = child.wait(Some(deadline)).ok().flatten()?;
        // What it has said is there a moment after its end.
        let _ = child.wait_for_output_end(deadline);
        Some(worker_died("it has ended".to_owned(), member.peer(), &exit, &child.last_stderr_lines()))
    }

    /// Waits until the cause of a first failure can be told.
    pub fn await_cause(&self) {
        await_cause(&self.job, &self.children, self.plan.losses());
    }

    /// Finds the failure that the processes hold for the first one.
    #[must_use]
    pub fn cause(&self, report: &Report) -> Option<Cause> {
        Cause::find(&report.exits, &self.plan.losses().known())
    }

    /// Names the processes that run, in one line.
    #[must_use]
    pub fn living(&self) -> String {
        names_of(self.children.iter().filter(|child| child.exit().is_none()))
    }

    /// Waits until all processes have ended well, servers and scheduler too, for which there is an hour after the last
    /// worker at most. May be called again when the time is up; once it has returned anything else, all have ended.
    ///
    /// # Errors
    ///
    /// `WorkerDied` about the process that failed first by what the processes know of each other, with its exit status
    /// and the end of its standard error; `DeadlineExceeded` after `timeout`; `Interrupted` when a signal was forwarded
    /// to them; `PeerLost` when their guard was killed.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        self.wait_interruptible(timeout, None)
    }

    /// Like [`MemberFleet::wait`]; `interrupt` is asked at least every 100 ms, and its error ends the wait.
    ///
    /// # Errors
    ///
    /// As [`MemberFleet::wait`], and whatever `interrupt` says.
    pub fn wait_interruptible(&self, timeout: Option<Duration>, interrupt: Option<Interrupt<'_>>) -> Result<()> {
        let begun = Instant::now();
        let deadline = timeout.and_then(|timeout| begun.checked_add(timeout));
        self.await_end(deadline, interrupt).map_err(|error| error.asked_for("wait").elapsed(begun.elapsed()))
    }

    fn await_end(&self, deadline: Option<Instant>, mut interrupt: Option<Interrupt<'_>>) -> Result<()> {
        let asked = interrupt.as_mut().map(|interrupt| interrupt as Interrupt<'_>);
        let mut outcome = self.await_outcome(deadline, asked)?;
        if outcome == Some(Outcome::AllEnded) {
            let last = Instant::now() + DRAIN_TIMEOUT;
            let until = deadline.map_or(last, |deadline| deadline.min(last));
            outcome = self.drain(until, interrupt, |names, left| {
                let limit_s = left.as_secs();
                let text = format!("sheave: all workers have ended; waiting for {names}, for {limit_s} s at most");
                // Nobody to tell is no reason to fail.
                let _ = writeln!(std::io::stderr(), "{text}");
            })?;
        }
        match outcome {
            None => {
                let what = format!("{} did not end in time", self.living());
                Err(Error::new(ErrorKind::DeadlineExceeded, what).hint("wait again, or end them"))
            }
            Some(outcome) => {
                if let Outcome::Failed(_) = outcome {
                    self.await_cause();
                }
                self.conclude(&self.job.end(GRACE))
            }
        }
    }

    fn conclude(&self, report: &Report) -> Result<()> {
        if let Some(cause) = self.cause(report) {
            let name = &cause.exit().name;
            let peer = self.plan.members().iter().map(JobMember::peer).find(|peer| peer.name == *name);
            return Err(cause.error(&self.children, peer.unwrap_or_default()));
        }
        match (report.signal, &report.trouble) {
            (Some(signal), _) => {
                Err(Error::new(ErrorKind::Interrupted, format!("the job was ended by signal {signal}")))
            }
            (None, Some(trouble)) => Err(trouble.clone()),
            (None, None) => Ok(()),
        }
    }

    /// Ends the processes: they are asked to, and killed after `grace`. When this returns none is left.
    pub fn end(&self, grace: Duration) -> Report {
        self.job.end(grace)
    }
}

/// Names these processes in one line.
#[must_use]
pub fn names_of<'a>(children: impl Iterator<Item = &'a Child>) -> String {
    let mut names: Vec<String> = children.map(|child| format!("{} (pid {})", child.name(), child.pid())).collect();
    let more = names.len().saturating_sub(NAMED_MAX);
    names.truncate(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    names.join(", ") + &more
}
