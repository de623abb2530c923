//! What was measured, as JSON lines or as a table.

use crate::Failure;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// One case of one size over one transport among so many ranks.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) bench: &'static str,
    pub(super) case: &'static str,
    pub(super) bytes: usize,
    pub(super) ranks: u32,
    pub(super) transport: &'static str,
    pub(super) language: &'static str,
    /// The peer's case and transport that this row is compared with.
    pub(super) compared_with: Option<(&'static str, &'static str)>,
    /// What this row's median should be at most, in the peer's.
    pub(super) target: Option<f64>,
    /// Nanoseconds of every round trip, or message of a stream.
    pub(super) times: Histogram<u64>,
}

/// A line of JSON; the keys are the same for every benchmark of sheave.
#[derive(Serialize)]
struct Line<'a> {
    bench: &'static str,
    case: &'a str,
    bytes: usize,
    ranks: u32,
    transport: &'a str,
    language: &'a str,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    max_us: f64,
    iterations: u64,
    /// The median in the peer's, where it was measured too.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<Verdict>,
}

/// How a ratio stands to its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Met,
    /// Above it by less than machines differ from run to run, which meets it too.
    Tie,
    Missed,
}

impl Verdict {
    /// From here on the time is that of the bytes, below it that of the steps, which differs more.
    const LONG_BYTES: usize = 64 << 10;

    pub(super) fn of(ratio: f64, target: f64, bytes: usize) -> Self {
        let tied = if bytes >= Self::LONG_BYTES { 1.3 } else { 1.5 };
        match ratio / target {
            ratio if ratio <= 1.0 => Self::Met,
            ratio if ratio < tied => Self::Tie,
            _ => Self::Missed,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Tie => "tie",
            Self::Missed => "missed",
        }
    }
}

/// The place of the row of this one's case, size, transport and ranks; this one is added if there is none.
pub(super) fn place(rows: &mut Vec<Row>, row: Row) -> usize {
    let is_it = |other: &Row| {
        (other.case, other.bytes, other.transport, other.ranks) == (row.case, row.bytes, row.transport, row.ranks)
    };
    rows.iter().position(is_it).unwrap_or_else(|| {
        rows.push(row);
        rows.len() - 1
    })
}

impl Row {
    fn line(&self, rows: &[Self]) -> Line<'_> {
        Line {
            bench: self.bench,
            case: self.case,
            bytes: self.bytes,
            ranks: self.ranks,
            transport: self.transport,
            language: self.language,
            p50_us: self.quantile_us(0.5),
            p90_us: self.quantile_us(0.9),
            p99_us: self.quantile_us(0.99),
            max_us: microseconds(self.times.max()),
            iterations: self.times.len(),
            ratio: self.ratio(rows),
            target: self.target,
            verdict: self.verdict(rows),
        }
    }

    /// The row of the same size and ranks that this one is compared with.
    pub(super) fn peer<'a>(&self, rows: &'a [Self]) -> Option<&'a Self> {
        self.compared_with.and_then(|(case, transport)| self.beside(case, transport, rows))
    }

    /// The row of the same size and ranks of another case and transport, if anything was measured.
    pub(super) fn beside<'a>(&self, case: &str, transport: &str, rows: &'a [Self]) -> Option<&'a Self> {
        let is_it = |row: &&Self| {
            (row.bytes, row.ranks) == (self.bytes, self.ranks) && (row.case, row.transport) == (case, transport)
        };
        rows.iter().find(is_it).filter(|row| !row.times.is_empty())
    }

    /// The median in the peer's.
    pub(super) fn ratio(&self, rows: &[Self]) -> Option<f64> {
        self.peer(rows).map(|peer| self.quantile_us(0.5) / peer.quantile_us(0.5))
    }

    pub(super) fn verdict(&self, rows: &[Self]) -> Option<Verdict> {
        self.target.and_then(|target| Some(Verdict::of(self.ratio(rows)?, target, self.bytes)))
    }

    pub(super) fn quantile_us(&self, quantile: f64) -> f64 {
        microseconds(self.times.value_at_quantile(quantile))
    }

    fn cells(&self, rows: &[Self]) -> Vec<String> {
        let p50_us = self.quantile_us(0.5);
        let mut cells =
            vec![self.case.to_owned(), readable(self.bytes), self.transport.to_owned(), self.ranks.to_string()];
        let mean_us = self.times.mean() / 1e3;
        let times_us = [p50_us, self.quantile_us(0.9), self.quantile_us(0.99), microseconds(self.times.max()), mean_us];
        cells.extend(times_us.map(|time_us| format!("{time_us:.2}")));
        cells.push(self.times.len().to_string());
        cells.push(self.ratio(rows).map_or_else(String::new, |ratio| format!("{ratio:.2}")));
        let verdict = self.verdict(rows).map_or_else(String::new, |verdict| format!(" {}", verdict.name()));
        cells.push(self.target.map_or_else(String::new, |target| format!("≤ {target}{verdict}")));
        cells
    }
}

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

pub(super) fn readable(bytes: usize) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1_000_000 && bytes.is_multiple_of(10_000) => format!("{} MB", bytes as f64 / 1e6),
        bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

/// Writes one JSON object per line.
pub(super) fn json(rows: &[Row], target: &mut dyn Write) -> Result<(), Failure> {
    for row in rows {
        let line = serde_json::to_string(&row.line(rows)).map_err(|error| Failure::Run(error.to_string()))?;
        writeln!(target, "{line}").map_err(|error| unwritten(&error))?;
    }
    target.flush().map_err(|error| unwritten(&error))
}

const TITLES: [&str; 12] = [
    "case",
    "size",
    "transport",
    "ranks",
    "p50 µs",
    "p90 µs",
    "p99 µs",
    "max µs",
    "mean µs",
    "iterations",
    "p50 / peer's",
    "target",
];

/// Writes an aligned table, the transports of one case and size below each other.
pub(super) fn table(rows: &[Row], target: &mut dyn Write) -> Result<(), Failure> {
    let mut lines = vec![TITLES.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(|row| row.cells(rows)));
    if rows.iter().all(|row| row.target.is_none()) {
        lines.iter_mut().for_each(|cells| drop(cells.pop()));
    }
    aligned(&lines, |column| column == 0 || column == 2, target)
}

/// Writes lines of as many cells each, aligned on the right unless a column `is_text`.
pub(super) fn aligned(
    lines: &[Vec<String>],
    is_text: impl Fn(usize) -> bool,
    target: &mut dyn Write,
) -> Result<(), Failure> {
    let columns = lines.first().map_or(0, Vec::len);
    let widths: Vec<usize> =
        (0..columns).map(|column| lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0)).collect();
    for cells in lines {
        let padded = cells.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match is_text(column) {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        });
        let text = padded.collect::<Vec<_>>().join("  ");
        writeln!(target, "{}", text.trim_end()).map_err(|error| unwritten(&error))?;
    }
    target.flush().map_err(|error| unwritten(&error))
}

pub(super) fn unwritten(error: &std::io::Error) -> Failure {
    if error.kind() == ErrorKind::BrokenPipe {
        return Failure::Unread;
    }
    Failure::Run(format!("writing to standard output: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(transport: &'static str, times_ns: &[u64]) -> Row {
        let mut times = Histogram::new(3).unwrap();
        for time_ns in times_ns {
            times.record(*time_ns).unwrap();
        }
        let ours = !transport.starts_with("openmpi");
        let (language, compared_with) = if ours { ("rust", Some(("ping_pong", "openmpi-shm"))) } else { ("c", None) };
        let (case, target) = ("ping_pong", None);
        Row { bench: "link", case, bytes: 65_536, ranks: 2, transport, language, compared_with, target, times }
    }

    #[test]
    fn a_line_has_exactly_the_agreed_keys() {
        let mut text = Vec::new();
        json(&[row("shm", &[1000, 1000, 3000])], &mut text).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        let mut agreed = [
            "bench",
            "case",
            "bytes",
            "ranks",
            "transport",
            "language",
            "p50_us",
            "p90_us",
            "p99_us",
            "max_us",
            "iterations",
        ];
        agreed.sort_unstable();
        assert_eq!(keys, agreed);
        assert_eq!((&value["bench"], &value["case"]), (&"link".into(), &"ping_pong".into()));
        assert_eq!((&value["bytes"], &value["ranks"], &value["iterations"]), (&65_536.into(), &2.into(), &3.into()));
        assert!((value["p50_us"].as_f64().unwrap() - 1.0).abs() < 0.01);
        assert!((value["max_us"].as_f64().unwrap() - 3.0).abs() < 0.01);
    }

    #[test]
    fn the_table_is_aligned_and_compares_with_the_peer() {
        let mut text = Vec::new();
        table(&[row("shm", &[500, 500]), row("openmpi-shm", &[1000, 1000])], &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].contains("64 KiB") && lines[1].trim_end().ends_with("0.50"), "{text}");
        assert!(lines[2].trim_end().ends_with(" 2"), "the peer itself has no ratio: {text}");
        let column = lines[0].chars().position(|letter| letter == 'µ').unwrap();
        assert_eq!(lines[1].chars().nth(column + 1), Some('0'), "{text}");
    }

    #[test]
    fn a_target_has_a_column_where_there_is_one() {
        let mut text = Vec::new();
        let rows = [Row { target: Some(0.2), bytes: 5_760_000, ..row("shm", &[500]) }, row("openmpi-shm", &[1000])];
        table(&rows, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("target") && lines[1].ends_with("≤ 0.2"), "{text}");
        assert!(lines[1].contains("5.76 MB") && lines[1].contains(" 1  "), "no ratio to another size: {text}");
    }

    #[test]
    fn a_line_says_whether_its_target_is_met() {
        let rows = [Row { target: Some(0.3), ..row("shm", &[350]) }, row("openmpi-shm", &[1000])];
        let mut text = Vec::new();
        json(&rows, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&lines[0]["target"], &lines[0]["verdict"]), (&0.3.into(), &"tie".into()));
        assert!((lines[0]["ratio"].as_f64().unwrap() - 0.35).abs() < 0.01);
        assert!(lines[1].get("ratio").is_none() && lines[1].get("verdict").is_none());
        let mut text = Vec::new();
        table(&rows, &mut text).unwrap();
        assert!(String::from_utf8(text).unwrap().contains("≤ 0.3 tie"));
    }

    #[test]
    fn a_tie_is_wider_for_short_messages() {
        let verdicts = |bytes| [0.3, 0.38, 0.42, 0.46].map(|ratio| Verdict::of(ratio, 0.3, bytes));
        assert_eq!(verdicts(1 << 20), [Verdict::Met, Verdict::Tie, Verdict::Missed, Verdict::Missed]);
        assert_eq!(verdicts(8), [Verdict::Met, Verdict::Tie, Verdict::Tie, Verdict::Missed]);
    }

    #[test]
    fn a_reader_that_went_away_is_not_an_error_message() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        assert!(matches!(json(&[row("shm", &[1])], &mut Gone), Err(Failure::Unread)));
        assert!(matches!(table(&[row("shm", &[1])], &mut Gone), Err(Failure::Unread)));
    }
}
