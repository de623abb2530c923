//! One child, as its supervisor holds it.

use crate::command::{Command, Judge};
use crate::exit::Exit;
use crate::job::Shared;
use crate::log::{Keep, StreamLog};
use crate::output::Which;
use crate::protocol::Verb;
use parking_lot::Mutex;
use sheave_base::work::{Completer, pair};
use sheave_base::{Error, ErrorKind, Peer, Result, Work};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// What is known of one child, for as long as anybody asks.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) background: bool,
    pub(crate) judge: Option<Judge>,
    pub(crate) pid: OnceLock<u32>,
    pub(crate) exit: OnceLock<Exit>,
    ending: Mutex<Option<Completer<Exit>>>,
    ended: Work<Exit>,
    output: StreamLog,
    error: StreamLog,
}

impl Record {
    pub(crate) fn new(id: u32, name: String, command: &Command, keep: [Keep; 2]) -> Self {
        let [output, error] = keep.map(StreamLog::new);
        let (ending, ended) = pair("the end of a child");
        let (pid, exit, ending) = (OnceLock::new(), OnceLock::new(), Mutex::new(Some(ending)));
        let (background, judge) = (command.is_background(), command.judge());
        Self { id, name, background, judge, pid, exit, ending, ended, output, error }
    }

    /// Tells all who wait for the end of this child, which is known. No lock may be held: callbacks run.
    pub(crate) fn tell_end(&self) {
        let Some(exit) = self.exit.get() else { return };
        let ending = self.ending.lock().take();
        if let Some(ending) = ending {
            ending.complete(Ok(exit.clone()));
        }
    }

    pub(crate) fn log(&self, which: Which) -> &StreamLog {
        match which {
            Which::Output => &self.output,
            Which::Error => &self.error,
        }
    }

    pub(crate) fn pid_or_zero(&self) -> u32 {
        self.pid.get().copied().unwrap_or(0)
    }
}

/// A child of a [`Job`](crate::Job). Dropping it changes nothing: the child belongs to the job.
#[derive(Clone, Debug)]
pub struct Child {
    pub(crate) shared: Arc<Shared>,
    pub(crate) record: Arc<Record>,
}

impl Child {
    /// The name, unique among the living children of the job.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.record.name
    }

    /// The process id. Once the child has ended it may belong to somebody else; [`Child::kill`] never hits that one.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.record.pid_or_zero()
    }

    /// How the child ended, if it has. Does not block.
    #[must_use]
    pub fn exit(&self) -> Option<Exit> {
        self.record.exit.get().cloned()
    }

    /// Waits until the child has ended, or until `deadline` (then `None`). Without a deadline it ends with the child or
    /// the job. May be called any number of times, from any thread.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`] in a forked copy of the process that made the job.
    pub fn wait(&self, deadline: Option<Instant>) -> Result<Option<Exit>> {
        self.shared.check_owner()?;
        self.shared.wait_until(deadline, |_| self.exit())
    }

    /// A work that ends with the child. Its callbacks run on the job's own thread: they must be short, and not end the
    /// job.
    ///
    /// ```
    /// use sheave_process::{Command, Job};
    ///
    /// # fn main() -> sheave_base::Result<()> {
    /// let job = Job::start()?;
    /// let child = job.spawn(Command::new("sh").args(["-c", "exit 3"]))?;
    /// assert_eq!(child.ended().wait()?.status.exit_code(), 3);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn ended(&self) -> Work<Exit> {
        self.record.ended.clone()
    }

    /// A work that ends when both output streams are at their ends and read, so that the kept lines are all there will
    /// be. Processes that the child left behind may hold the streams open. For its callbacks the same holds as for
    /// those of [`Child::ended`].
    #[must_use]
    pub fn output_ended(&self) -> Work<()> {
        let error = self.record.log(Which::Error).closed();
        self.record.log(Which::Output).closed().then(move |()| Ok(error))
    }

    /// Sends a signal to the child and its process group: what it started in the background hears it too, unless it
    /// left the group. No effect on a child that has ended. Returns before the signal has arrived.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for a number that is no signal, [`ErrorKind::Forked`] in a forked copy.
    pub fn kill(&self, signal: i32) -> Result<()> {
        self.shared.check_owner()?;
        if !(1..=64).contains(&signal) {
            return Err(Error::new(ErrorKind::InvalidArgument, format!("{signal} is not the number of a signal")));
        }
        match self.exit() {
            Some(_) => Ok(()),
            None => self.shared.ask_living(Verb::Signal, self.record.id, signal),
        }
    }

    /// The kept lines of standard output, oldest first; with [`Output::Capture`](crate::Output::Capture) all, up to
    /// [`OUTPUT_CAPTURED_BYTES_MAX`](sheave_base::limits::OUTPUT_CAPTURED_BYTES_MAX). Does not block.
    #[must_use]
    pub fn stdout_lines(&self) -> Vec<String> {
        self.record.log(Which::Output).lines()
    }

    /// The kept lines of standard error, as [`Child::stdout_lines`].
    #[must_use]
    pub fn stderr_lines(&self) -> Vec<String> {
        self.record.log(Which::Error).lines()
    }

    /// The kept lines of standard output with their bytes as they came. A last line without an end gets one.
    #[must_use]
    pub fn stdout_bytes(&self) -> Vec<u8> {
        self.record.log(Which::Output).bytes()
    }

    /// The last 20 lines of standard error, oldest first, as far as they have been read. Does not block.
    #[must_use]
    pub fn last_stderr_lines(&self) -> Vec<String> {
        self.record.log(Which::Error).last_lines()
    }

    /// Waits for the first line of standard output, from its beginning on, that contains `text`, and returns it.
    /// Needs [`Output::Capture`](crate::Output::Capture).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::DeadlineExceeded`]; [`ErrorKind::NotFound`] when the output ended without it. Both name the child
    /// and quote its last lines on standard error.
    pub fn wait_for_stdout(&self, text: &str, deadline: Instant) -> Result<String> {
        self.wait_for_line(Which::Output, &mut |line| line.contains(text), deadline).map_err(|e| e.context(quote(text)))
    }

    /// As [`Child::wait_for_stdout`], for standard error.
    ///
    /// # Errors
    ///
    /// As [`Child::wait_for_stdout`].
    pub fn wait_for_stderr(&self, text: &str, deadline: Instant) -> Result<String> {
        self.wait_for_line(Which::Error, &mut |line| line.contains(text), deadline).map_err(|e| e.context(quote(text)))
    }

    /// As [`Child::wait_for_stdout`], for the first line that `wanted` accepts.
    ///
    /// # Errors
    ///
    /// As [`Child::wait_for_stdout`].
    pub fn wait_for_stdout_line(&self, mut wanted: impl FnMut(&str) -> bool, deadline: Instant) -> Result<String> {
        self.wait_for_line(Which::Output, &mut wanted, deadline)
    }

    fn wait_for_line(&self, which: Which, wanted: &mut dyn FnMut(&str) -> bool, deadline: Instant) -> Result<String> {
        self.record.log(which).wait_for(wanted, deadline).map_err(|error| {
            let last_lines = self.last_stderr_lines();
            let error = error.peer(Peer::named(self.name()).pid(self.pid()));
            if last_lines.is_empty() {
                return error;
            }
            error.hint(format!("its last lines on standard error were:\n  {}", last_lines.join("\n  ")))
        })
    }

    /// Waits until both output streams are at their ends and read, so that the kept lines are all there will be; false
    /// if `deadline` passed before. Processes that the child left behind may hold the streams open.
    #[must_use]
    pub fn wait_for_output_end(&self, deadline: Instant) -> bool {
        self.record.log(Which::Output).wait_closed(deadline) && self.record.log(Which::Error).wait_closed(deadline)
    }
}

fn quote(text: &str) -> String {
    format!("waiting for {text:?}")
}
