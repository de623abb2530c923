//! The table of ratios: what was measured of ours, each beside the same of others.

use super::case::{Memory, Operation};
use super::{gloo, limit};
use crate::Failure;
use crate::bench::report::{Row, Verdict, aligned, readable, unwritten};
use std::io::Write;

/// What the bare loop's time allows.
const LIMIT_TARGET: f64 = 1.3;

/// The columns of text.
const TEXTS: [usize; 2] = [0, 3];

/// Writes a line for each row of ours.
pub(super) fn write(rows: &[Row], target: &mut dyn Write) -> Result<(), Failure> {
    let mut lines = vec![titles()];
    let ours = || rows.iter().filter(|row| row.compared_with.is_some());
    lines.extend(ours().map(|row| cells(row, rows)));
    // What was not measured at all has no column.
    let is_empty = |column: usize| lines.iter().skip(1).all(|cells| cells[column].is_empty());
    let kept: Vec<usize> = (0..titles().len()).filter(|column| !is_empty(*column)).collect();
    let lines: Vec<Vec<String>> =
        lines.iter().map(|cells| kept.iter().map(|column| cells[*column].clone()).collect()).collect();
    aligned(&lines, |column| TEXTS.contains(&column), target)?;
    let verdicts: Vec<Verdict> = ours().filter_map(|row| row.verdict(rows)).collect();
    let of = |verdict: Verdict| verdicts.iter().filter(|other| **other == verdict).count();
    if !verdicts.is_empty() {
        let counts = [Verdict::Met, Verdict::Tie, Verdict::Missed].map(|each| format!("{} {}", of(each), each.name()));
        writeln!(target, "targets: {}", counts.join(", ")).map_err(|error| unwritten(&error))?;
    }
    target.flush().map_err(|error| unwritten(&error))
}

fn titles() -> Vec<String> {
    let titles = ["case", "size", "ranks", "over", "sheave µs", "p90 µs", "openmpi µs", "ratio", "target", "verdict"];
    let others = ["gloo µs", "ratio", "bare loop µs", "ratio", "≤ 1.3"];
    titles.into_iter().chain(others).map(str::to_owned).collect()
}

fn cells(row: &Row, rows: &[Row]) -> Vec<String> {
    let p50_us = |row: &Row| row.quantile_us(0.5);
    let time = |row: Option<&Row>| row.map_or_else(String::new, |row| microseconds(p50_us(row)));
    let ratio = |other: Option<&Row>| other.map(|other| p50_us(row) / p50_us(other));
    let shown = |ratio: Option<f64>| ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
    let (openmpi, gloo, limit) = (row.peer(rows), gloo_of(row, rows), limit_of(row, rows));
    let is_within = |ratio: f64| if ratio <= LIMIT_TARGET { "met" } else { "missed" };
    vec![
        row.case.to_owned(),
        readable(row.bytes),
        row.ranks.to_string(),
        row.transport.to_owned(),
        microseconds(p50_us(row)),
        microseconds(row.quantile_us(0.9)),
        time(openmpi),
        shown(row.ratio(rows)),
        row.target.map_or_else(String::new, |target| format!("≤ {target:.2}")),
        row.verdict(rows).map_or_else(String::new, |verdict| verdict.name().to_owned()),
        time(gloo),
        shown(ratio(gloo)),
        time(limit),
        shown(ratio(limit)),
        ratio(limit).map_or_else(String::new, |ratio| is_within(ratio).to_owned()),
    ]
}

fn microseconds(time_us: f64) -> String {
    let digits = if time_us < 100.0 { 2 } else { 0 };
    format!("{time_us:.digits$}")
}

fn gloo_of<'a>(row: &Row, rows: &'a [Row]) -> Option<&'a Row> {
    row.compared_with.and_then(|(operation, _)| row.beside(operation, gloo::TRANSPORT, rows))
}

/// The bare loop sums among two ranks in shared memory.
fn limit_of<'a>(row: &Row, rows: &'a [Row]) -> Option<&'a Row> {
    let is_summed = row.compared_with.is_some_and(|(operation, _)| operation == Operation::AllReduce.name());
    let memory = if row.case == Operation::AllReduce.name() { Memory::Arena } else { Memory::Private };
    if is_summed { row.beside(limit::case(memory), row.transport, rows) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::child::no_times;

    fn row(case: &'static str, transport: &'static str, time_ns: u64) -> Row {
        let mut times = no_times();
        times.record(time_ns).unwrap();
        let ours = transport == "shm" && !case.starts_with("limit");
        let compared_with = ours.then_some(("all_reduce", "openmpi-shm"));
        let (bench, bytes, ranks, language) = ("collective", 1 << 20, 2, "rust");
        Row { bench, case, bytes, ranks, transport, language, compared_with, target: ours.then_some(0.3), times }
    }

    fn text(rows: &[Row]) -> String {
        let mut text = Vec::new();
        write(rows, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_line_has_all_others_beside_ours() {
        let rows = [
            row("all_reduce", "shm", 50_000),
            row("all_reduce_private", "shm", 190_000),
            row("all_reduce", "openmpi-shm", 200_000),
            row("all_reduce", gloo::TRANSPORT, 2_000_000),
            row("limit_arena", "shm", 40_000),
            row("limit_private", "shm", 100_000),
        ];
        let text = text(&rows);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert_eq!(lines[1][..4], ["all_reduce", "1", "MiB", "2"]);
        let arena = ["200", "0.25", "≤", "0.30", "met", "2001", "0.02", "40.03", "1.25", "met"];
        assert_eq!(lines[1][7..], arena, "{text}");
        let private = ["200", "0.95", "≤", "0.30", "missed", "2001", "0.09", "100", "1.90", "missed"];
        assert_eq!(lines[2][7..], private, "{text}");
        assert_eq!(text.lines().last(), Some("targets: 1 met, 0 tie, 1 missed"));
    }

    #[test]
    fn what_was_not_measured_has_no_column() {
        let text = text(&[row("all_reduce", "shm", 50_000)]);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(!text.contains("openmpi") && !text.contains("gloo") && !text.contains("loop"), "{text}");
        assert!(text.contains("≤ 0.30"), "{text}");
    }
}
