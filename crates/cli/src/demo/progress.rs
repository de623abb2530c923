//! One line that grows: on a terminal it is drawn over and over, elsewhere each epoch has a line of its own.

use super::words::Epoch;
use std::io::{IsTerminal, Write};

const BAR_CELLS: usize = 24;

pub(super) struct Progress {
    epochs: u32,
    terminal: bool,
    silent: bool,
    drawn: bool,
}

impl Progress {
    /// Of so many epochs. With `summary_only` nothing is drawn unless standard error is a terminal.
    pub(super) fn new(epochs: u32, summary_only: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { epochs, terminal, silent: summary_only && !terminal, drawn: false }
    }

    pub(super) fn show(&mut self, epoch: &Epoch) {
        if self.silent {
            return;
        }
        let line = line(epoch, self.epochs);
        let mut stderr = std::io::stderr().lock();
        // Nobody who looks is no reason to fail.
        let _ = if self.terminal { write!(stderr, "\r\x1b[K{line}") } else { writeln!(stderr, "{line}") };
        let _ = stderr.flush();
        self.drawn = true;
    }

    /// Leaves the last state on a line of its own.
    pub(super) fn finish(&mut self) {
        if self.drawn && self.terminal {
            let _ = writeln!(std::io::stderr());
        }
        self.drawn = false;
    }
}

fn line(epoch: &Epoch, epochs: u32) -> String {
    let filled = BAR_CELLS * epoch.number.min(epochs) as usize / epochs.max(1) as usize;
    let bar = format!("{}{}", "█".repeat(filled), "░".repeat(BAR_CELLS - filled));
    let seconds = epoch.seconds.max(1e-9);
    format!(
        "{bar} epoch {:>3}/{epochs}  loss {:.4}  test accuracy {:.2} %  {:.0} images/s  {}/s",
        epoch.number,
        epoch.loss,
        epoch.accuracy * 100.0,
        epoch.images as f64 / seconds,
        bytes(epoch.bytes as f64 / seconds)
    )
}

/// A number of bytes as people write it.
pub(super) fn bytes(count: f64) -> String {
    match count {
        c if c < 1e3 => format!("{c:.0} B"),
        c if c < 1e6 => format!("{:.1} kB", c / 1e3),
        c if c < 1e9 => format!("{:.1} MB", c / 1e6),
        c => format!("{:.2} GB", c / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_there_is_to_say() {
        let epoch = Epoch { number: 5, loss: 0.25, accuracy: 0.975, seconds: 2.0, images: 4000, bytes: 6_000_000 };
        let line = line(&epoch, 10);
        assert_eq!(line.matches('█').count(), BAR_CELLS / 2);
        for part in ["epoch   5/10", "loss 0.2500", "97.50 %", "2000 images/s", "3.0 MB/s"] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}
