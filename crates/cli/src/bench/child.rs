//! The other processes of a measurement: this binary again, invited over its standard input.
//!
//! It ends with its parent, however that one ends: the kernel kills it when the thread that started it is gone, and the
//! end of standard input says the same if that happened before it could ask.

use super::Transport;
use super::pair::{node_config, pin_to_core};
use super::traffic::{DIGITS, Side};
use crate::Failure;
use crate::own;
use hdrhistogram::Histogram;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind, LinkId, Result, Work};
use sheave_net::{Address, Node};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Time for a process to start and to link itself, and to end when it is told to.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// What the child must know, as one line of JSON. It holds the secret, so it is no argument.
#[derive(Serialize, Deserialize)]
pub(super) struct Invitation {
    pub(super) address: String,
    pub(super) secret: String,
    pub(super) transport: Transport,
    pub(super) pin: bool,
}

/// Another process, as the first one sees it. It is killed when dropped early.
pub(super) struct Follower {
    process: Child,
    ended: bool,
    words: Option<BufReader<ChildStdout>>,
}

impl Follower {
    /// Starts this binary once more, on behalf of the calling thread, which must outlive it.
    pub(super) fn start(command: &str, invitation: &impl Serialize) -> Result<Self> {
        Self::start_with(command, invitation, Stdio::null())
    }

    /// As [`Follower::start`]; its standard output is read here, line by line.
    pub(super) fn start_speaking(command: &str, invitation: &impl Serialize) -> Result<Self> {
        Self::start_with(command, invitation, Stdio::piped())
    }

    fn start_with(command: &str, invitation: &impl Serialize, stdout: Stdio) -> Result<Self> {
        // The same file, even if it was replaced on disk meanwhile.
        let own = own::line("/proc/self/exe");
        let (program, first) = own.split_first().ok_or_else(|| Error::new(ErrorKind::Internal, "no program"))?;
        let mut again = Command::new(program);
        if first.is_empty() {
            again.arg0("sheave");
        }
        let process = again
            .args(first)
            .args(["bench", command])
            .stdin(Stdio::piped())
            .stdout(stdout)
            .spawn()
            .map_err(|error| Error::from(error).context("starting another process"))?;
        let mut follower = Self { process, ended: false, words: None };
        follower.words = follower.process.stdout.take().map(BufReader::new);
        let line =
            serde_json::to_string(invitation).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        let stdin = follower.process.stdin.as_mut();
        let stdin = stdin.ok_or_else(|| Error::new(ErrorKind::Internal, "the other process has no input"))?;
        writeln!(stdin, "{line}").map_err(|error| Error::from(error).context("inviting another process"))?;
        Ok(follower)
    }

    /// The next line that the process says; empty when it has ended. It ends itself when it takes too long.
    pub(super) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if let Some(words) = &mut self.words {
            words.read_line(&mut line)?;
        }
        Ok(line.trim_end().to_owned())
    }

    /// Waits for the link that the process makes.
    pub(super) fn link(&mut self, accepting: &Work<LinkId>) -> Result<LinkId> {
        let until = Instant::now() + PATIENCE;
        while !accepting.wait_until(Some(Instant::now() + Duration::from_millis(20)), None)? {
            if let Some(status) = self.process.try_wait()? {
                self.ended = true;
                return Err(Error::new(ErrorKind::PeerLost, format!("the second process ended at once ({status})")));
            }
            if Instant::now() >= until {
                let what = "the second process made no link in time";
                return Err(Error::new(ErrorKind::DeadlineExceeded, what).elapsed(PATIENCE));
            }
        }
        accepting.taken()
    }

    /// Waits for the end of the process, which was told to end or has lost its link.
    pub(super) fn finish(mut self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait()? {
                self.ended = true;
                let failed = || Error::new(ErrorKind::PeerLost, format!("the second process failed ({status})"));
                return if status.success() { Ok(()) } else { Err(failed()) };
            }
            if Instant::now() >= until {
                let what = "the second process did not end in time and was killed";
                return Err(Error::new(ErrorKind::DeadlineExceeded, what).elapsed(PATIENCE));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if !self.ended {
            // It may have ended meanwhile, which is as good.
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

/// What this process is invited to, by the process that started it and that it ends with.
pub(super) fn invited<T: DeserializeOwned>(instead: &str) -> std::result::Result<T, Failure> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|errno| Error::from(errno).context("asking to end with the parent"))?;
    let mut line = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut line)
        .map_err(|error| Error::from(error).context("reading the invitation"))?;
    let invitation = serde_json::from_str(&line)
        .map_err(|_| Failure::Usage(format!("this command is for sheave itself; use '{instead}'")))?;
    std::thread::spawn(|| {
        // Nothing more comes; the end does.
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
    Ok(invitation)
}

/// Ends this process, which will have done its part long before or has hung.
pub(super) fn end_after(patience: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(patience);
        std::process::exit(1);
    });
}

/// A histogram of nanoseconds that grows with its values.
pub(super) fn no_times() -> Histogram<u64> {
    Histogram::new(DIGITS).expect("three digits are within the histogram's range")
}

pub(super) fn record(times: &mut Histogram<u64>, span: Duration) {
    // It grows with its values, so that it refuses none.
    let _ = times.record(nanoseconds(span));
}

pub(super) fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// The hidden command: follows the process that started this one.
pub(super) fn run() -> std::result::Result<(), Failure> {
    let invitation: Invitation = invited("sheave bench link")?;
    match follow(&invitation) {
        // The parent knows why.
        Err(error) if error.kind().is_loss() => std::process::exit(1),
        outcome => Ok(outcome?),
    }
}

fn follow(invitation: &Invitation) -> Result<()> {
    let node = Node::start(node_config("follower", invitation.transport, &invitation.secret)?)?;
    if invitation.pin {
        pin_to_core(1)?;
    }
    let address: Address = invitation.address.parse()?;
    let link = node.connect(&address, Instant::now() + PATIENCE)?;
    Side { node, link }.follow()
}
