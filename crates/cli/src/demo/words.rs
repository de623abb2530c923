//! What the processes of a demo tell the one that started them, each as one line of standard output.

use serde::{Deserialize, Serialize};
use std::io::Write;

/// What such a line begins with.
const MARK: &str = "@demo ";

/// Longest piece of a trace in one line, well below what the output of children may have in one.
const TRACE_PIECE_BYTES: usize = 4 << 10;

/// One epoch of training.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Epoch {
    /// From 1.
    pub(super) number: u32,
    /// Mean over the images of the epoch.
    pub(super) loss: f64,
    /// Share of the held-out images that are told right.
    pub(super) accuracy: f64,
    /// Since the training began.
    pub(super) seconds: f64,
    /// Seen since then by all workers.
    pub(super) images: u64,
    /// Pushed and pulled since then by all workers.
    pub(super) bytes: u64,
}

/// Bytes of one worker's gradients of one step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct GradientBytes {
    /// As they are.
    pub(super) plain: u64,
    /// As they travel.
    pub(super) sent: u64,
}

/// What a worker has in the end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Done {
    pub(super) worker: u32,
    pub(super) weights_sha256: String,
    pub(super) gradient_bytes: GradientBytes,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Word {
    Epoch(Epoch),
    Done(Done),
    /// A piece of a trace, in order.
    Trace(String),
}

/// Says a word. Nobody to hear it is no reason to fail: whoever started this process ends it, if it lives.
pub(super) fn say(word: &Word) {
    if let Ok(text) = serde_json::to_string(word) {
        let mut stdout = std::io::stdout().lock();
        let _ = writeln!(stdout, "{MARK}{text}").and_then(|()| stdout.flush());
    }
}

/// Says a trace, which has no line breaks.
pub(super) fn say_trace(trace: &str) {
    let mut rest = trace;
    while !rest.is_empty() {
        let mut end = rest.len().min(TRACE_PIECE_BYTES);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (piece, left) = rest.split_at(end);
        say(&Word::Trace(piece.to_owned()));
        rest = left;
    }
}

/// The word in a line, if it holds one.
pub(super) fn hear(line: &str) -> Option<Word> {
    serde_json::from_str(line.strip_prefix(MARK)?).ok()
}
