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
}

impl Row {
    fn line(&self) -> Line<'_> {
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
        }
    }

    fn quantile_us(&self, quantile: f64) -> f64 {
        microseconds(self.times.value_at_quantile(quantile))
    }

    fn cells(&self, rows: &[Self]) -> Vec<String> {
        let p50_us = self.quantile_us(0.5);
        let is_peer = |row: &&Self| {
            let matches = (row.bytes, row.ranks) == (self.bytes, self.ranks);
            matches && self.compared_with == Some((row.case, row.transport)) && !row.times.is_empty()
        };
        let peer = rows.iter().find(is_peer);
        let mut cells =
            vec![self.case.to_owned(), readable(self.bytes), self.transport.to_owned(), self.ranks.to_string()];
        let mean_us = self.times.mean() / 1e3;
        let times_us = [p50_us, self.quantile_us(0.9), self.quantile_us(0.99), microseconds(self.times.max()), mean_us];
        cells.extend(times_us.map(|time_us| format!("{time_us:.2}")));
        cells.push(self.times.len().to_string());
        cells.push(peer.map_or_else(String::new, |peer| format!("{:.2}", p50_us / peer.quantile_us(0.5))));
        cells.push(self.target.map_or_else(String::new, |target| format!("≤ {target}")));
        cells
    }
}

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

fn readable(bytes: usize) -> String {
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
        let line = serde_json::to_string(&row.line()).map_err(|error| Failure::Run(error.to_string()))?;
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
    let widths: Vec<usize> = (0..lines[0].len())
        .map(|column| lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0))
        .collect();
    for cells in &lines {
        let padded = cells.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 | 2 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        let text = padded.collect::<Vec<_>>().join("  ");
        writeln!(target, "{}", text.trim_end()).map_err(|error| unwritten(&error))?;
    }
    target.flush().map_err(|error| unwritten(&error))
}

fn unwritten(error: &std::io::Error) -> Failure {
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
