//! Copying what children write: one thread reads all pipes of a job and passes on whole lines.
//!
//! *Lines never interleave*, because one thread writes them all, each batch in one call. *Memory is bounded*: there is
//! at most [`limits::OUTPUT_LINE_BYTES_MAX`] of a line without an end per stream; what is longer is passed on in
//! pieces, each on a line of its own, and pieces after the first are marked with `+` instead of `|`. When the reader of
//! *our* output is slow, the children's pipes fill and the children wait.
//!
//! *Of the bytes only the line feed is interpreted*, and the carriage return in a line that has no end yet: it is how a
//! progress bar draws itself anew. What such a line shows last is passed on once in [`REDRAW`], on a line of its own.

use crate::child::Record;
use crate::log::StreamLog;
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use sheave_base::{Error, Result, limits};
use std::io::{IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes taken from one pipe in one turn: the usual size of a pipe.
const READ_BYTES: usize = 64 << 10;

/// How often a line that overwrites itself is passed on: often enough to see that it goes on, and few lines in a log.
const REDRAW: Duration = Duration::from_secs(1);

/// Whether names before lines are coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Colour {
    /// On a terminal, unless the variable `NO_COLOR` is set to something.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Colour {
    fn wanted(self, terminal: bool) -> bool {
        match self {
            Self::Auto => terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// What becomes of the children's standard output and error.
#[derive(Default)]
#[non_exhaustive]
pub enum Output {
    /// To this process's standard output and error, each line after `name | `.
    Prefixed {
        /// Whether the names are coloured, each child's in a colour of its own.
        colour: Colour,
    },
    /// Both streams to one writer, each line after `name | `, without colours; a progress bar can draw around it.
    PrefixedInto(Box<dyn Write + Send>),
    /// Into bounded memory, for [`Child::stdout_lines`](crate::Child::stdout_lines) and its like.
    Capture,
    /// Nowhere; only the last lines of standard error are kept for the report.
    #[default]
    Quiet,
    /// Children write directly to this process's standard output and error as they are when the job starts. No last
    /// lines are known.
    Inherit,
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Prefixed { .. } => "Prefixed",
            Self::PrefixedInto(_) => "PrefixedInto",
            Self::Capture => "Capture",
            Self::Quiet => "Quiet",
            Self::Inherit => "Inherit",
        })
    }
}

/// Which of the two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Output,
    Error,
}

enum Sink {
    Standard { colour: [bool; 2] },
    Writer(Box<dyn Write + Send>),
    Nowhere,
}

impl Sink {
    fn from_output(output: Output) -> Self {
        match output {
            Output::Prefixed { colour } => {
                let terminals = [std::io::stdout().is_terminal(), std::io::stderr().is_terminal()];
                Self::Standard { colour: terminals.map(|terminal| colour.wanted(terminal)) }
            }
            Output::PrefixedInto(writer) => Self::Writer(writer),
            Output::Capture | Output::Quiet | Output::Inherit => Self::Nowhere,
        }
    }

    fn write(&mut self, which: Which, batch: &[u8]) -> std::io::Result<()> {
        match (self, which) {
            (Self::Standard { .. }, Which::Output) => write_flushed(&mut std::io::stdout().lock(), batch),
            (Self::Standard { .. }, Which::Error) => write_flushed(&mut std::io::stderr().lock(), batch),
            (Self::Writer(writer), _) => write_flushed(writer, batch),
            (Self::Nowhere, _) => Ok(()),
        }
    }

    fn prefixes(&self, name: &str, colour_number: u32, which: Which) -> Option<[Vec<u8>; 2]> {
        let coloured = match self {
            Self::Nowhere => return None,
            Self::Writer(_) => false,
            Self::Standard { colour } => colour[usize::from(which == Which::Error)],
        };
        Some(["|", "+"].map(|mark| match coloured {
            // Cyan, green, yellow, blue, magenta and their bright sisters: all but red, which means failure elsewhere.
            true => {
                let code = [36, 32, 33, 34, 35, 96, 92, 93, 94, 95][colour_number as usize % 10];
                format!("\x1b[{code}m{name} {mark}\x1b[0m ").into_bytes()
            }
            false => format!("{name} {mark} ").into_bytes(),
        }))
    }
}

fn write_flushed(writer: &mut dyn Write, batch: &[u8]) -> std::io::Result<()> {
    writer.write_all(batch)?;
    writer.flush()
}

/// Cuts a stream of bytes into lines.
#[derive(Default)]
struct Splitter {
    partial: Vec<u8>,
    /// Whether `partial` goes on with a line whose first piece was passed on already.
    continued: bool,
    /// Whether what the line showed before was passed on already.
    redrawn: bool,
}

/// What a line that overwrites itself shows last.
fn shown_last(line: &[u8]) -> &[u8] {
    let end = line.iter().rposition(|byte| *byte != b'\r').map_or(0, |last| last + 1);
    let line = line.get(..end).unwrap_or(line);
    let begin = line.iter().rposition(|byte| *byte == b'\r').map_or(0, |last| last + 1);
    line.get(begin..).unwrap_or(line)
}

impl Splitter {
    /// Takes bytes and gives every line that they complete to `line`: its bytes, and whether it is a later piece.
    fn feed(&mut self, mut bytes: &[u8], mut line: impl FnMut(&[u8], bool)) {
        while !bytes.is_empty() {
            let room = limits::OUTPUT_LINE_BYTES_MAX - self.partial.len();
            let window = bytes.get(..room.min(bytes.len())).unwrap_or(bytes);
            let end = window.iter().position(|byte| *byte == b'\n');
            let taken = end.unwrap_or(window.len());
            self.partial.extend_from_slice(&window[..taken]);
            bytes = &bytes[taken + usize::from(end.is_some())..];
            if end.is_some() {
                // A line that ends exactly where a piece was cut has nothing more to say.
                if self.redrawn {
                    self.finish_redrawn(&mut line);
                } else if !self.continued || !self.partial.is_empty() {
                    line(&self.partial, self.continued);
                }
                self.partial.clear();
                (self.continued, self.redrawn) = (false, false);
            } else if self.partial.len() == limits::OUTPUT_LINE_BYTES_MAX {
                line(&self.partial, self.continued);
                self.partial.clear();
                self.continued = true;
            }
        }
    }

    /// Whether the line has no end yet and overwrites itself.
    fn overwrites(&self) -> bool {
        self.partial.contains(&b'\r')
    }

    /// Gives what the line shows now to `line`, as far as it overwrites itself.
    fn redraw(&mut self, mut line: impl FnMut(&[u8], bool)) {
        if self.overwrites() {
            self.finish_redrawn(&mut line);
            self.partial.clear();
            self.redrawn = true;
        }
    }

    fn finish_redrawn(&self, line: &mut impl FnMut(&[u8], bool)) {
        let shown = shown_last(&self.partial);
        if !shown.is_empty() {
            line(shown, false);
        }
    }

    fn finish(&mut self, mut line: impl FnMut(&[u8], bool)) {
        if self.redrawn {
            self.finish_redrawn(&mut line);
            self.partial.clear();
        } else if !self.partial.is_empty() {
            line(&self.partial, self.continued);
            self.partial.clear();
        }
    }
}

struct Stream {
    pipe: OwnedFd,
    record: Arc<Record>,
    which: Which,
    splitter: Splitter,
    prefixes: Option<[Vec<u8>; 2]>,
    /// When a line that overwrites itself is passed on next.
    redraw_at: Option<Instant>,
}

impl Stream {
    fn log(&self) -> &StreamLog {
        self.record.log(self.which)
    }

    /// Handles what one read returned; nothing means the end. Returns the batch to write.
    fn take(&mut self, bytes: &[u8]) -> Vec<u8> {
        let batch = self.cut(|splitter, line| match bytes.is_empty() {
            true => splitter.finish(line),
            false => splitter.feed(bytes, line),
        });
        if self.prefixes.is_none() || !self.splitter.overwrites() {
            self.redraw_at = None;
        } else if self.redraw_at.is_none() {
            self.redraw_at = Some(Instant::now() + REDRAW);
        }
        batch
    }

    /// What is to be written of a line that overwrites itself, if it is time.
    fn redraw(&mut self) -> Vec<u8> {
        if self.redraw_at.is_none_or(|at| Instant::now() < at) {
            return Vec::new();
        }
        self.redraw_at = None;
        self.cut(|splitter, line| splitter.redraw(line))
    }

    /// The lines that `act` takes out of the splitter, kept and made ready to be written.
    fn cut(&mut self, act: impl FnOnce(&mut Splitter, &mut dyn FnMut(&[u8], bool))) -> Vec<u8> {
        let mut batch = Vec::new();
        let (splitter, prefixes, log) = (&mut self.splitter, &self.prefixes, self.record.log(self.which));
        let mut line = |line: &[u8], continued: bool| {
            log.push(line);
            if let Some(prefixes) = prefixes {
                batch.extend_from_slice(&prefixes[usize::from(continued)]);
                batch.extend_from_slice(line);
                batch.push(b'\n');
            }
        };
        act(splitter, &mut line);
        batch
    }
}

#[derive(Debug, Default)]
struct Orders {
    incoming: Vec<(OwnedFd, Arc<Record>, Which)>,
    finish_at: Option<Instant>,
    done: bool,
    /// Why something could not be written, the first time.
    trouble: Option<Error>,
}

/// The thread that reads the pipes, as its job sees it.
#[derive(Debug)]
pub(crate) struct Pump {
    orders: Mutex<Orders>,
    changed: Condvar,
    wake: OwnedFd,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Pump {
    /// Starts the thread. It ends after [`Pump::finish`].
    pub(crate) fn start(output: Output) -> Result<Arc<Self>> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let thread = Mutex::default();
        let pump = Arc::new(Self { orders: Mutex::default(), changed: Condvar::new(), wake, thread });
        let sink = Sink::from_output(output);
        let own = Arc::clone(&pump);
        *pump.thread.lock() = Some(crate::thread::spawn("sheave-output", move || own.run(sink))?);
        Ok(pump)
    }

    /// Reads `pipe` into the record's log from now on.
    pub(crate) fn add(&self, pipe: OwnedFd, record: Arc<Record>, which: Which) {
        self.orders.lock().incoming.push((pipe, record, which));
        self.wake();
    }

    /// Why some of the children's output could not be passed on.
    pub(crate) fn trouble(&self) -> Option<Error> {
        self.orders.lock().trouble.clone()
    }

    /// Writes what there is. A reader of ours that went away is no reason to stop reading from the children, and none
    /// to complain; a full disk is one to complain.
    fn write(&self, sink: &mut Sink, which: Which, batch: &[u8]) {
        if batch.is_empty() {
            return;
        }
        if let Err(error) = sink.write(which, batch)
            && error.kind() != std::io::ErrorKind::BrokenPipe
        {
            let about = Error::from(error).context("passing on the output of the processes");
            let about = about.hint("is there room where the output of this program goes?");
            self.orders.lock().trouble.get_or_insert(about);
        }
    }

    fn wake(&self) {
        // Full means that a wake-up is pending already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Waits until all pipes are at their ends and all lines are passed on, for `timeout` at most; whether they are.
    /// Then the thread ends, unless it hangs in writing to somebody who does not read: it ends when that one does.
    pub(crate) fn finish(&self, timeout: Duration) -> bool {
        let deadline = crate::log::in_time(timeout);
        let mut orders = self.orders.lock();
        orders.finish_at = Some(orders.finish_at.map_or(deadline, |earlier| earlier.min(deadline)));
        self.wake();
        while !orders.done {
            // The thread itself gives up at the deadline; a little later nobody waits for it any more.
            if self.changed.wait_until(&mut orders, deadline + Duration::from_millis(200)).timed_out() {
                return false;
            }
        }
        drop(orders);
        if let Some(thread) = self.thread.lock().take() {
            // It has said its last word: this takes no time, and a panic in a foreign writer is not ours.
            let _ = thread.join();
        }
        true
    }

    fn run(&self, mut sink: Sink) {
        let mut streams: Vec<Stream> = Vec::new();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let (incoming, finish_at) = {
                let mut orders = self.orders.lock();
                (std::mem::take(&mut orders.incoming), orders.finish_at)
            };
            streams.extend(incoming.into_iter().map(|(pipe, record, which)| {
                let prefixes = sink.prefixes(&record.name, record.id, which);
                Stream { pipe, record, which, splitter: Splitter::default(), prefixes, redraw_at: None }
            }));
            if finish_at.is_some_and(|at| streams.is_empty() || Instant::now() >= at) {
                break;
            }
            let ready = self.wait(&streams, finish_at);
            let mut index = 0;
            streams.retain_mut(|stream| {
                index += 1;
                let goes_on = !ready[index - 1] || self.pass_on(stream, &mut buffer, &mut sink);
                let redrawn = stream.redraw();
                self.write(&mut sink, stream.which, &redrawn);
                goes_on
            });
        }
        for stream in &mut streams {
            self.end_stream(stream, &mut sink);
        }
        self.orders.lock().done = true;
        self.changed.notify_all();
    }

    fn wait(&self, streams: &[Stream], finish_at: Option<Instant>) -> Vec<bool> {
        let mut events: Vec<_> = streams.iter().map(|stream| PollFd::new(&stream.pipe, PollFlags::IN)).collect();
        events.push(PollFd::new(&self.wake, PollFlags::IN));
        let redraw_at = streams.iter().filter_map(|stream| stream.redraw_at).min();
        let timeout = crate::sys::until(finish_at.into_iter().chain(redraw_at).min());
        // An interrupted wait is one without events.
        let polled = rustix::event::poll(&mut events, timeout.as_ref()).is_ok();
        let mut ready: Vec<_> = events.iter().map(|event| polled && !event.revents().is_empty()).collect();
        if ready.pop() == Some(true) {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        ready
    }

    /// Reads once; whether the stream goes on.
    fn pass_on(&self, stream: &mut Stream, buffer: &mut [u8], sink: &mut Sink) -> bool {
        match rustix::io::retry_on_intr(|| rustix::io::read(&stream.pipe, &mut *buffer)) {
            Ok(length @ 1..) => {
                let batch = stream.take(&buffer[..length]);
                self.write(sink, stream.which, &batch);
                true
            }
            Ok(0) | Err(_) => {
                self.end_stream(stream, sink);
                false
            }
        }
    }

    fn end_stream(&self, stream: &mut Stream, sink: &mut Sink) {
        let batch = stream.take(&[]);
        self.write(sink, stream.which, &batch);
        stream.log().close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(chunks: &[&[u8]]) -> Vec<(usize, Vec<u8>, bool)> {
        let mut splitter = Splitter::default();
        let mut lines = Vec::new();
        for chunk in chunks {
            splitter.feed(chunk, |line, continued| lines.push((line.len(), line.to_vec(), continued)));
        }
        splitter.finish(|line, continued| lines.push((line.len(), line.to_vec(), continued)));
        lines
    }

    #[test]
    fn chunks_do_not_matter_for_lines() {
        let text = b"one\n\ntwo\xff\nlast";
        let whole = split(&[text]);
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(split(&bytes), whole);
        let lines: Vec<&[u8]> = whole.iter().map(|(_, line, _)| line.as_slice()).collect();
        assert_eq!(lines, [b"one".as_slice(), b"", b"two\xff", b"last"]);
    }

    #[test]
    fn endless_lines_are_cut_and_marked() {
        let long = vec![b'x'; 2 * limits::OUTPUT_LINE_BYTES_MAX + 5];
        let mut text = long.clone();
        text.extend_from_slice(b"\nnext\n");
        let shape: Vec<_> = split(&[&text]).into_iter().map(|(length, _, continued)| (length, continued)).collect();
        let full = limits::OUTPUT_LINE_BYTES_MAX;
        assert_eq!(shape, [(full, false), (full, true), (5, true), (4, false)]);
        let mut exact = vec![b'x'; full];
        exact.push(b'\n');
        assert_eq!(split(&[&exact]).len(), 1);
    }

    #[test]
    fn f75_a_line_that_overwrites_itself_is_passed_on_as_it_looks_last() {
        let mut splitter = Splitter::default();
        let mut lines = Vec::new();
        let mut keep =
            |line: &[u8], continued: bool| lines.push((String::from_utf8_lossy(line).into_owned(), continued));
        splitter.feed(b"plain", &mut keep);
        splitter.redraw(&mut keep);
        splitter.feed(b" text\n\r 10%\r 20%", &mut keep);
        splitter.redraw(&mut keep);
        splitter.feed(b"\r 30%\r", &mut keep);
        splitter.redraw(&mut keep);
        splitter.redraw(&mut keep);
        splitter.feed(b"\n\r 40%\rdone\nnext\n", &mut keep);
        let said: Vec<_> = lines.iter().map(|(line, continued)| (line.as_str(), *continued)).collect();
        let whole = "\r 40%\rdone";
        assert_eq!(said, [("plain text", false), (" 20%", false), (" 30%", false), (whole, false), ("next", false)]);
    }

    #[test]
    fn colours_come_only_when_wanted() {
        assert!(Colour::Always.wanted(false) && !Colour::Never.wanted(true) && !Colour::Auto.wanted(false));
        let plain = Sink::Standard { colour: [false, true] };
        let [first, later] = plain.prefixes("worker-0", 0, Which::Output).unwrap();
        assert_eq!((first.as_slice(), later.as_slice()), (b"worker-0 | ".as_slice(), b"worker-0 + ".as_slice()));
        let [first, _] = plain.prefixes("worker-0", 0, Which::Error).unwrap();
        assert_eq!(first, b"\x1b[36mworker-0 |\x1b[0m ");
        assert!(Sink::Nowhere.prefixes("worker-0", 0, Which::Output).is_none());
    }
}
