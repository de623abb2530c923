//! The processes of a demo, as the one that starts them sees them.
//!
//! They are the same binary, started with the environment that `sheave launch` would give them, and promised to leave
//! nothing behind however this process ends. Their output comes line by line; words are taken out of it. The job is
//! over when all workers have ended well, or as soon as any process has not.

use super::Arguments;
use super::progress::Progress;
use super::words::{Done, Epoch, GradientBytes, Word, hear};
use crate::launch;
use crate::own;
use crate::{Failure, one_line};
use sheave_fleet::MemberFleet;
use sheave_process::{Job, Outcome, Output, Report, signal_name};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Words that wait to be drawn; when there are more the processes' output waits.
const WORDS_MAX: usize = 1024;
/// How long a word is waited for before the processes are looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How long servers and scheduler may take to end after the workers have.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long the others may take to end once one has failed.
const GRACE: Duration = Duration::from_millis(300);

/// What came out of a training.
pub(super) struct Run {
    pub(super) epochs: Vec<Epoch>,
    pub(super) weights_sha256: String,
    pub(super) gradient_bytes: GradientBytes,
    /// One export for each process that has one.
    pub(super) traces: Vec<String>,
}

/// Starts everybody and listens until the end.
pub(super) fn run(arguments: &Arguments) -> Result<Run, Failure> {
    let launch = launch::Arguments::of(arguments.workers, arguments.servers, variables(arguments), command(arguments)?);
    let plan = launch::plan(&launch, arguments.port)?;
    let (sender, words) = sync_channel(WORDS_MAX);
    let relay = Relay { words: sender, line: Vec::new() };
    let job = Job::builder().output(Output::PrefixedInto(Box::new(relay))).start()?;
    let forwarding = job.forward_signals()?;
    let fleet = launch::start(plan, job, &launch)?;
    let mut listener = Listener::new(arguments);
    let outcome = listener.listen(fleet.job(), &words)?;
    if outcome == Outcome::AllEnded {
        for child in fleet.children() {
            child.wait(Some(Instant::now() + FAREWELL))?;
        }
    }
    if let Outcome::Failed(_) = &outcome {
        fleet.await_cause();
    }
    let report = fleet.end(GRACE);
    drop(forwarding);
    listener.progress.finish();
    words.try_iter().for_each(|(name, word)| listener.hear(&name, word));
    match verdict(&outcome, &report, &fleet) {
        Some((code, what)) => {
            Err(Failure::Ended { code, what: format!("demo: {what}; the other processes were ended too") })
        }
        None => listener.conclude(arguments),
    }
}

fn variables(arguments: &Arguments) -> Vec<(String, String)> {
    vec![("SHEAVE_TRANSPORT".to_owned(), arguments.transport.name().to_owned())]
}

/// This binary once more, with the same settings.
fn command(arguments: &Arguments) -> Result<Vec<OsString>, Failure> {
    let file = std::env::current_exe().map_err(|error| Failure::Run(format!("finding this program: {error}")))?;
    let Arguments { kind, staleness, compress, threshold, workers, servers, seed, epochs, batch, data, .. } = arguments;
    let mut line = own::line(file);
    line.extend(["demo".into(), "--part".into()]);
    let numbers = [("--workers", *workers), ("--servers", *servers), ("--epochs", *epochs), ("--batch", *batch)];
    for (flag, number) in numbers {
        line.extend([flag.into(), number.to_string().into()]);
    }
    line.extend(["--kind".into(), kind.to_string().into(), "--seed".into(), seed.to_string().into()]);
    line.extend(["--compress".into(), compress.name().into()]);
    line.extend(threshold.iter().flat_map(|threshold| ["--threshold".into(), threshold.to_string().into()]));
    line.extend(staleness.iter().flat_map(|staleness| ["--staleness".into(), staleness.to_string().into()]));
    if let Some(data) = data {
        line.extend(["--data".into(), data.into()]);
    }
    Ok(line)
}

/// Takes words out of the processes' output, which comes as `name | line`.
struct Relay {
    words: SyncSender<(String, Word)>,
    line: Vec<u8>,
}

impl Write for Relay {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        for byte in bytes {
            if *byte != b'\n' {
                self.line.push(*byte);
                continue;
            }
            let line = String::from_utf8_lossy(&self.line);
            let word = line.split_once(" | ").and_then(|(name, text)| Some((name.trim().to_owned(), hear(text)?)));
            self.line.clear();
            if let Some(word) = word {
                // Nobody listens any more when the job is being ended.
                let _ = self.words.send(word);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct Listener {
    progress: Progress,
    epochs: Vec<Epoch>,
    done: Vec<Done>,
    traces: BTreeMap<String, String>,
}

impl Listener {
    fn new(arguments: &Arguments) -> Self {
        let progress = Progress::new(arguments.epochs, arguments.json);
        Self { progress, epochs: Vec::new(), done: Vec::new(), traces: BTreeMap::new() }
    }

    /// Hears words until the job is over.
    fn listen(&mut self, job: &Job, words: &Receiver<(String, Word)>) -> Result<Outcome, Failure> {
        loop {
            match words.recv_timeout(LOOK) {
                Ok((name, word)) => self.hear(&name, word),
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(outcome) = job.wait_first_failure_or_all(Some(Instant::now()))? {
                return Ok(outcome);
            }
        }
    }

    fn hear(&mut self, name: &str, word: Word) {
        match word {
            Word::Epoch(epoch) => {
                self.progress.show(&epoch);
                self.epochs.push(epoch);
            }
            Word::Done(done) => self.done.push(done),
            Word::Trace(piece) => self.traces.entry(name.to_owned()).or_default().push_str(&piece),
        }
    }

    /// All workers have ended well: they must have said so, and agree.
    fn conclude(self, arguments: &Arguments) -> Result<Run, Failure> {
        let Self { epochs, done, traces, .. } = self;
        let Some(first) = done.first().filter(|_| done.len() == arguments.workers as usize) else {
            return Err(Failure::Run(format!("{} of {} workers said their results", done.len(), arguments.workers)));
        };
        if let Some(other) = done.iter().find(|other| other.weights_sha256 != first.weights_sha256) {
            let what = format!("worker-{} and worker-{} have different weights", first.worker, other.worker);
            return Err(Failure::Run(what));
        }
        let Done { weights_sha256, gradient_bytes, .. } = first.clone();
        Ok(Run { epochs, weights_sha256, gradient_bytes, traces: traces.into_values().collect() })
    }
}

/// The exit code, and one line about a job that did not end well.
fn verdict(outcome: &Outcome, report: &Report, fleet: &MemberFleet) -> Option<(u8, String)> {
    if let Outcome::Signal(signal) = outcome {
        let name = signal_name(*signal).map(|name| format!(" ({name})")).unwrap_or_default();
        let code = u8::try_from(128 + signal).unwrap_or(u8::MAX);
        return Some((code, format!("it was asked to end by signal {signal}{name}")));
    }
    let cause = fleet.cause(report)?;
    // One line: of what is quoted below it, the last.
    let told = cause.tell(fleet.children());
    let (head, lines) = told.split_once("; its last lines").unwrap_or((&told, ""));
    let last = lines.lines().skip(1).last().map(|line| format!(": {}", one_line(line))).unwrap_or_default();
    Some((1, format!("{head}{last}")))
}
