//! Children: processes that are spawned, watched and ended together, and of which nothing is left behind.
//!
//! ```
//! use sheave_process::{Command, Job, Outcome, Output};
//! use std::time::{Duration, Instant};
//!
//! # fn main() -> sheave_base::Result<()> {
//! let job = Job::builder().output(Output::Capture).start()?;
//! let worker = job.spawn(Command::new("sh").args(["-c", "echo rank $RANK"]).env("RANK", "0").name("worker-0"))?;
//! job.spawn(Command::new("sleep").arg("1000").name("server-0").background())?;
//!
//! let deadline = Instant::now() + Duration::from_secs(20);
//! assert_eq!(worker.wait_for_stdout("rank", deadline)?, "rank 0");
//! assert_eq!(job.wait_first_failure_or_all(Some(deadline))?, Some(Outcome::AllEnded));
//!
//! let report = job.end(Duration::from_secs(1));
//! assert_eq!((report.exit_code(), report.exits.len()), (0, 2));
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! - When a [`Job`] has ended or was dropped, none of its processes is left: children, grandchildren, background
//!   processes of shells, daemons that forked twice and made sessions of their own.
//! - The same when the supervising process ends in any way, SIGKILL included; within milliseconds.
//! - A child lives on when the thread that spawned it ends.
//! - The supervising process is not changed: no signal handler (unless [`Job::forward_signals`] is called), no SIGCHLD,
//!   no child that a foreign `waitpid(-1)` could see or take.
//!
//! The `guard` module, the process between supervisor and children, argues why this holds and where it ends:
//! processes that the guard may not signal (set-user-id programs) and those that the kernel cannot kill (hanging disks)
//! stay; and the guard must not be killed in the same moment as its supervisor.
//!
//! # What it costs
//!
//! One process and two threads per job, one `fork` per child, one copy of each byte of output that is passed on.
//! Linux 5.4 or newer.

#![cfg(target_os = "linux")]

mod child;
mod command;
mod exit;
mod guard;
mod image;
mod job;
mod kin;
mod log;
mod memory;
mod output;
mod protocol;
mod signals;
mod slate;
mod start;
mod sweep;
mod sys;
mod thread;
mod watch;

pub use child::Child;
pub use command::Command;
pub use exit::{Exit, Failure, Report, Status, signal_name};
pub use job::{Builder, Job, Outcome};
pub use output::{Colour, Output};
pub use signals::Forwarding;
pub use slate::Slate;
