//! A command whose output is read line by line, and which may not be silent for longer than it was told.
//!
//! This is how runners without a time limit of their own get one: a runner prints a line when a test ends, so a test
//! that hangs shows as silence.

use std::io::{BufRead, BufReader, PipeReader};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::group::Group;
use crate::shell::{Outcome, words};

/// Longer than any stage may take.
pub(crate) const FOREVER: Duration = Duration::from_secs(24 * 3600);

/// Lines in flight between the reader and the judge; a chatty command waits for us rather than fill our memory.
const LINES_IN_FLIGHT: usize = 1_024;

/// What a line says about the time the command may take until its next telling line.
pub(crate) enum Verdict {
    /// Progress: from now on the command has this long.
    Within(Duration),
    /// No progress: the limit that was running goes on.
    Same,
}

/// How a watched command ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Itself(ExitStatus),
    /// It was silent for too long and was killed with its process group.
    Killed,
}

/// Runs `command` with both its outputs in one stream, and shows each line to `judge`. `first` is the limit until the
/// first telling line.
pub(crate) fn watch(mut command: Command, first: Duration, mut judge: impl FnMut(&str) -> Verdict) -> Outcome<Ended> {
    let words = words(&command);
    let failure = |error: std::io::Error| format!("`{words}` cannot be read: {error}");
    let (reader, writer) = std::io::pipe().map_err(failure)?;
    command.stdout(writer.try_clone().map_err(failure)?).stderr(writer);
    let mut group = Group::spawn(command)?;
    let lines = lines(reader);
    let mut deadline = Instant::now() + first;
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => match judge(&line) {
                Verdict::Within(limit) => deadline = Instant::now() + limit,
                Verdict::Same => {}
            },
            Err(RecvTimeoutError::Timeout) => return Ok(Ended::Killed),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let rest = deadline.saturating_duration_since(Instant::now());
    Ok(group.wait(rest)?.map_or(Ended::Killed, Ended::Itself))
}

/// The lines of `reader` until it ends, read on a thread of its own, because a pipe cannot be read with a deadline.
fn lines(reader: PipeReader) -> Receiver<String> {
    let (sender, receiver) = sync_channel(LINES_IN_FLIGHT);
    std::thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n') {
            let Ok(line) = line else { return };
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn both_outputs_are_seen_and_the_status_comes_back() {
        let mut seen = Vec::new();
        let ended = watch(shell("echo one; echo two >&2; printf three; exit 4"), LIMIT, |line| {
            seen.push(line.to_owned());
            Verdict::Same
        });
        assert!(matches!(ended, Ok(Ended::Itself(status)) if status.code() == Some(4)));
        assert_eq!(seen, ["one", "two", "three"]);
    }

    #[test]
    fn silence_after_progress_is_a_hang() {
        let started = Instant::now();
        let ended = watch(shell("echo go; sleep 600"), LIMIT, |_| Verdict::Within(Duration::from_millis(50))).unwrap();
        assert_eq!(ended, Ended::Killed);
        assert!(started.elapsed() < LIMIT);
    }

    #[test]
    fn a_line_that_is_no_progress_buys_no_time() {
        let started = Instant::now();
        let chatter = "while echo still here; do sleep 0.01; done";
        let ended = watch(shell(chatter), Duration::from_millis(200), |_| Verdict::Same).unwrap();
        assert_eq!(ended, Ended::Killed);
        assert!(started.elapsed() < LIMIT);
    }
}
