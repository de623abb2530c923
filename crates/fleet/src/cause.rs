//! The process to blame for a job that failed: the one that ended first by what the processes know, which need not be
//! the one whose end was seen first.
//!
//! A process that loses another one notes that before any of its operations fails for it ([`Losses`]), so that the note
//! is there when its own end is seen. One that failed and has noted the loss of another one that failed is a
//! consequence. What is left is a cause. A process that ended with 0, and not in order, is one too for those who lost
//! it. Where nobody has noted anything, because the processes talk over something else, the first end counts, and
//! SIGKILL before all others: nobody sends it to itself.

use crate::died::worker_died;
use crate::handed::Losses;
use sheave_base::{Error, Peer, loss::Loss};
use sheave_process::{Child, Exit, Failure, Job, Status, signal_name};
use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

/// How long is waited for other ends once somebody has failed: those of one moment are seen in any order.
const MOMENT: Duration = Duration::from_millis(300);
/// How long is waited for the end of a process that others have lost and failed for. It may have things to do after it
/// has left; one that hangs is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(10);

const SIGKILL: i32 = 9;

/// Waits until the cause of a first failure can be told: until all who are missed have ended too. Ends early with all
/// processes, with a signal, and where the job's guard is gone.
pub(crate) fn await_cause(job: &Job, children: &[Child], losses: &Losses) {
    let begun = Instant::now();
    loop {
        let limit = if missed(children, &losses.known()) { PATIENCE } else { MOMENT };
        let now = Instant::now();
        if now >= begun + limit || !matches!(job.wait_all_ended(Some(now + LOOK)), Ok(None)) {
            return;
        }
    }
}

/// Whether somebody who has failed has lost one that still runs.
fn missed(children: &[Child], losses: &BTreeSet<Loss>) -> bool {
    let runs = |name: &str| children.iter().any(|child| child.name() == name && child.exit().is_none());
    let failed = |name: &str| {
        children.iter().any(|child| child.name() == name && child.exit().is_some_and(|exit| exit.is_failure()))
    };
    losses.iter().any(|loss| failed(&loss.by) && runs(&loss.of))
}

/// The first failure of a job, in the order of what the processes know.
#[derive(Debug, PartialEq)]
pub struct Cause {
    exit: Exit,
    /// The end of one that failed for it, if it ended with 0.
    witness: Option<Exit>,
}

impl Cause {
    /// Finds the cause among the ends of a job, in the order in which they were seen.
    #[must_use]
    pub fn find(exits: &[Exit], losses: &BTreeSet<Loss>) -> Option<Self> {
        let ended = |name: &str| exits.iter().find(|exit| exit.name == name && !exit.asked_for);
        let failed = |name: &str| ended(name).filter(|exit| exit.is_failure());
        let witness = |exit: &Exit| {
            let of_it = || losses.iter().filter(|loss| loss.of == exit.name);
            // Whoever has seen it leave knows better than one that has seen the end of a link alone.
            let is_early = exit.status.success() && !exit.asked_for && !of_it().any(|loss| loss.is_left);
            of_it().find_map(|loss| failed(&loss.by)).filter(|_| is_early)
        };
        let is_bad = |exit: &Exit| exit.is_failure() || witness(exit).is_some();
        let is_consequence = |exit: &Exit| {
            let mut lost = losses.iter().filter(|loss| loss.by == exit.name && loss.of != exit.name);
            lost.any(|loss| ended(&loss.of).is_some_and(&is_bad))
        };
        let bad = || exits.iter().filter(|exit| is_bad(exit));
        let causes = || bad().filter(|exit| !is_consequence(exit));
        let killed = causes().find(|exit| exit.status == Status::Signal(SIGKILL));
        let exit = killed.or_else(|| causes().next()).or_else(|| bad().next())?;
        Some(Self { exit: exit.clone(), witness: witness(exit).cloned() })
    }

    /// The end that is the cause.
    #[must_use]
    pub fn exit(&self) -> &Exit {
        &self.exit
    }

    /// The exit code of the job, which has failed.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        self.witness.as_ref().unwrap_or(&self.exit).status.exit_code().max(1)
    }

    /// Returns the error for those who wait for the job: of kind `WorkerDied`, about `peer`, the process that is the
    /// cause.
    #[must_use]
    pub fn error(&self, children: &[Child], peer: Peer) -> Error {
        let what = match &self.witness {
            None => match self.exit.status {
                Status::Signal(signal) if let Some(name) = signal_name(signal) => {
                    format!("{name} ended it before its work was done")
                }
                _ => "it ended before its work was done".to_owned(),
            },
            Some(witness) => format!("it ended without leaving the mesh, for which {} failed", witness.name),
        };
        worker_died(what, peer, &self.exit, &self.last_stderr_lines(children))
    }

    fn last_stderr_lines(&self, children: &[Child]) -> Vec<String> {
        let child = children.iter().find(|child| child.name() == self.exit.name && child.pid() == self.exit.pid);
        child.map(Child::last_stderr_lines).unwrap_or_default()
    }

    /// Returns a text for the user: one line, then the last lines of the cause.
    #[must_use]
    pub fn tell(&self, children: &[Child]) -> String {
        let failure = Failure { exit: self.exit.clone(), last_stderr_lines: self.last_stderr_lines(children) };
        match &self.witness {
            None => failure.to_string(),
            Some(witness) => Early { failure, witness }.to_string(),
        }
    }
}

/// An end with 0 that others did not expect.
struct Early<'a> {
    failure: Failure,
    witness: &'a Exit,
}

impl fmt::Display for Early<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { exit, .. } = &self.failure;
        write!(f, "{exit} without leaving the mesh, for which {} failed", self.witness.name)?;
        let told = self.failure.to_string();
        f.write_str(told.strip_prefix(&exit.to_string()).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(name: &str, status: Status) -> Exit {
        Exit { name: name.to_owned(), pid: 7, status, asked_for: false, is_well: status.success() }
    }

    fn loss(by: &str, of: &str, is_left: bool) -> Loss {
        Loss { by: by.to_owned(), of: of.to_owned(), is_left }
    }

    fn cause(exits: &[Exit], losses: &[Loss]) -> Option<(String, i32)> {
        let found = Cause::find(exits, &losses.iter().cloned().collect());
        found.map(|cause| (cause.exit.name.clone(), cause.exit_code()))
    }

    fn is(name: &str, code: i32) -> Option<(String, i32)> {
        Some((name.to_owned(), code))
    }

    #[test]
    fn f66_who_lost_somebody_that_failed_is_a_consequence() {
        let exits = [exit("a", Status::Code(1)), exit("b", Status::Code(3)), exit("c", Status::Code(1))];
        assert_eq!(cause(&exits, &[loss("a", "b", true), loss("c", "a", false), loss("c", "b", false)]), is("b", 3));
        assert_eq!(cause(&exits, &[]), is("a", 1), "without notes the first counts");
        assert_eq!(cause(&exits, &[loss("a", "d", false)]), is("a", 1), "d has not failed");
        let circle = [loss("a", "b", false), loss("b", "c", false), loss("c", "a", false)];
        assert_eq!(cause(&exits, &circle), is("a", 1));
        assert_eq!(cause(&[exit("a", Status::Code(0))], &[]), None);
    }

    #[test]
    fn an_end_with_0_is_a_cause_for_those_who_lost_it_and_not_if_it_left() {
        let exits = [exit("b", Status::Code(0)), exit("a", Status::Code(4))];
        assert_eq!(cause(&exits, &[loss("a", "b", false)]), is("b", 4));
        assert_eq!(cause(&exits, &[loss("a", "b", true)]), is("a", 4));
        assert_eq!(cause(&exits, &[loss("a", "b", false), loss("c", "b", true)]), is("a", 4));
    }

    #[test]
    fn an_end_that_is_judged_counts_as_that() {
        let early = Exit { is_well: false, ..exit("b", Status::Code(0)) };
        let late = Exit { is_well: true, ..exit("a", Status::Signal(11)) };
        assert_eq!(cause(&[late.clone(), early.clone()], &[]), is("b", 1));
        assert_eq!(cause(&[exit("c", Status::Code(4)), early], &[loss("c", "b", true)]), is("b", 1));
        assert_eq!(cause(&[late], &[]), None);
    }

    #[test]
    fn a_kill_counts_before_other_causes_and_never_one_that_was_asked_for() {
        let killed = exit("b", Status::Signal(9));
        let exits = [exit("a", Status::Code(1)), killed.clone()];
        assert_eq!(cause(&exits, &[]), is("b", 137));
        assert_eq!(cause(&exits, &[loss("b", "a", false)]), is("a", 1));
        let exits = [exit("a", Status::Code(1)), Exit { asked_for: true, ..killed }];
        assert_eq!(cause(&exits, &[]), is("a", 1));
    }
}
