//! The lines of one output stream of one child, as far as they are kept, for whoever waits for them.

use parking_lot::{Condvar, Mutex};
use sheave_base::work::{Completer, pair};
use sheave_base::{Error, ErrorKind, Result, Work, limits};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How much of a stream is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    Nothing,
    LastLines,
    Captured,
}

impl Keep {
    fn lines_max(self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::LastLines => limits::OUTPUT_LAST_LINES_MAX,
            // An empty line costs memory too: no more lines than half the bytes could hold at 32 each.
            Self::Captured => limits::OUTPUT_CAPTURED_BYTES_MAX / 64,
        }
    }
}

#[derive(Debug, Default)]
struct Lines {
    kept: VecDeque<Vec<u8>>,
    bytes: usize,
    /// How many lines were dropped before the first kept one.
    dropped: u64,
    closed: bool,
}

/// One stream's lines. Lines carry no line end; a line longer than [`limits::OUTPUT_LINE_BYTES_MAX`] counts as several.
#[derive(Debug)]
pub(crate) struct StreamLog {
    keep: Keep,
    lines: Mutex<Lines>,
    changed: Condvar,
    closing: Mutex<Option<Completer<()>>>,
    closed: Work<()>,
}

impl StreamLog {
    pub(crate) fn new(keep: Keep) -> Self {
        let (closing, closed) = pair("the end of a child's output");
        Self { keep, lines: Mutex::default(), changed: Condvar::new(), closing: Mutex::new(Some(closing)), closed }
    }

    pub(crate) fn push(&self, line: &[u8]) {
        if self.keep == Keep::Nothing {
            return;
        }
        let mut lines = self.lines.lock();
        lines.bytes += line.len();
        lines.kept.push_back(line.to_vec());
        while lines.kept.len() > self.keep.lines_max() || lines.bytes > limits::OUTPUT_CAPTURED_BYTES_MAX {
            let Some(oldest) = lines.kept.pop_front() else { break };
            lines.bytes -= oldest.len();
            lines.dropped += 1;
        }
        self.changed.notify_all();
    }

    /// No line will come any more.
    pub(crate) fn close(&self) {
        self.lines.lock().closed = true;
        self.changed.notify_all();
        let closing = self.closing.lock().take();
        if let Some(closing) = closing {
            closing.complete(Ok(()));
        }
    }

    /// A work that ends when no line can come any more.
    pub(crate) fn closed(&self) -> Work<()> {
        self.closed.clone()
    }

    /// Waits until no line can come any more; false if the deadline passed before.
    pub(crate) fn wait_closed(&self, deadline: Instant) -> bool {
        let mut lines = self.lines.lock();
        while !lines.closed {
            if self.changed.wait_until(&mut lines, deadline).timed_out() {
                return lines.closed;
            }
        }
        true
    }

    /// The kept lines, oldest first.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().kept.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect()
    }

    /// The kept bytes, each line with a line end.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let lines = self.lines.lock();
        let mut bytes = Vec::with_capacity(lines.bytes + lines.kept.len());
        for line in &lines.kept {
            bytes.extend_from_slice(line);
            bytes.push(b'\n');
        }
        bytes
    }

    /// The newest kept lines, oldest first.
    pub(crate) fn last_lines(&self) -> Vec<String> {
        let mut lines = self.lines();
        lines.split_off(lines.len().saturating_sub(limits::OUTPUT_LAST_LINES_MAX))
    }

    /// The first line, kept or still to come, that `wanted` accepts.
    pub(crate) fn wait_for(&self, wanted: &mut dyn FnMut(&str) -> bool, deadline: Instant) -> Result<String> {
        if self.keep != Keep::Captured {
            return Err(Error::new(ErrorKind::Unsupported, "this job does not capture its children's output")
                .hint("start the job with Output::Capture"));
        }
        let started = Instant::now();
        let mut next = 0;
        let mut lines = self.lines.lock();
        loop {
            while let Some(line) = lines.kept.get(usize::try_from(next - lines.dropped.min(next)).unwrap_or(usize::MAX))
            {
                let line = String::from_utf8_lossy(line).into_owned();
                next = next.max(lines.dropped) + 1;
                if wanted(&line) {
                    return Ok(line);
                }
            }
            if lines.closed {
                let what = format!("the output ended after {next} lines without the awaited one");
                return Err(Error::new(ErrorKind::NotFound, what).elapsed(started.elapsed()));
            }
            if self.changed.wait_until(&mut lines, deadline).timed_out() && Instant::now() >= deadline {
                let what = format!("the awaited line is not among the first {next} of the output");
                return Err(Error::new(ErrorKind::DeadlineExceeded, what).elapsed(started.elapsed()));
            }
        }
    }
}

/// Time that is left, for messages.
pub(crate) fn in_time(timeout: Duration) -> Instant {
    let now = Instant::now();
    // A timeout beyond what the clock can express is as good as a day.
    now.checked_add(timeout).unwrap_or(now + Duration::from_secs(86_400))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captured_lines_are_found_before_and_after_they_come() {
        let log = StreamLog::new(Keep::Captured);
        log.push(b"first");
        log.push(b"caf\xe9");
        assert_eq!(log.wait_for(&mut |line| line.starts_with("caf"), Instant::now()).unwrap(), "caf\u{fffd}");
        std::thread::scope(|scope| {
            let waiter =
                scope.spawn(|| log.wait_for(&mut |line| line == "third", in_time(Duration::from_secs(20))).unwrap());
            log.push(b"third");
            assert_eq!(waiter.join().unwrap(), "third");
        });
        let late = log.wait_for(&mut |line| line == "fourth", Instant::now()).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
        log.close();
        let ended = log.wait_for(&mut |line| line == "fourth", in_time(Duration::from_secs(20))).unwrap_err();
        assert_eq!(ended.kind(), ErrorKind::NotFound);
        assert_eq!(log.bytes(), b"first\ncaf\xe9\nthird\n");
    }

    #[test]
    fn memory_is_bounded_in_lines_and_bytes() {
        let log = StreamLog::new(Keep::LastLines);
        for number in 0..100 {
            log.push(format!("line {number}").as_bytes());
        }
        assert_eq!(log.lines().len(), limits::OUTPUT_LAST_LINES_MAX);
        assert_eq!(log.last_lines().last().unwrap(), "line 99");
        let log = StreamLog::new(Keep::Captured);
        let line = vec![b'x'; limits::OUTPUT_LINE_BYTES_MAX];
        for _ in 0..1000 {
            log.push(&line);
        }
        assert!(log.lines.lock().bytes <= limits::OUTPUT_CAPTURED_BYTES_MAX);
        assert_eq!(log.wait_for(&mut |_| false, Instant::now()).unwrap_err().kind(), ErrorKind::DeadlineExceeded);
        let unkept = StreamLog::new(Keep::Nothing);
        unkept.push(b"line");
        assert!(unkept.lines().is_empty());
    }
}
