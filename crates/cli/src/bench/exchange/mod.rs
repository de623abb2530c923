//! `sheave bench exchange`: batches go from workers to servers, and answers back.
//!
//! [`job`] is one job, [`case`] what is measured and what it may take, [`python`] a job of Python programs.

mod case;
mod job;
mod python;

use super::child::no_times;
use super::link::show_progress;
use super::report::{self, Row};
use super::{ExchangeArguments, Transport};
use crate::Failure;
pub(crate) use case::Case;
use clap::ValueEnum;
use hdrhistogram::Histogram;
pub(super) use job::follow;
use std::collections::BTreeMap;
use std::time::Duration;

/// Where what a measurement may take stands in the column of transports, in Rust and in Python.
const ALLOWED: [&str; 2] = ["allowed", "allowed, python"];
/// Where the published reading of another implementation stands.
const PS_LITE: [&str; 2] = ["ps-lite, read", "ps-lite, read once"];

/// Numbers of workers and servers.
const SHAPES: [(u32, u32); 2] = [(1, 1), (2, 2)];

/// Times by shape, case, size, transport, language and phase, in the order of the report: the phases in their own
/// order, which the number before them tells, the whole first; Rust before Python.
type Times = BTreeMap<(u32, Case, usize, &'static str, Language, (usize, &'static str)), Histogram<u64>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Language {
    Rust,
    Python,
}

impl Language {
    fn name(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::Python => "python",
        }
    }
}

/// Measures and reports.
pub(super) fn run(arguments: &ExchangeArguments) -> Result<(), Failure> {
    if arguments.transport.contains(&Transport::Inproc) {
        return Err(Failure::Usage("the processes of an exchange do not meet inproc; use shm or tcp".to_owned()));
    }
    let is_chosen = |transport: &Transport| arguments.transport.is_empty() || arguments.transport.contains(transport);
    let transports = [Transport::Shm, Transport::Tcp].into_iter().filter(is_chosen);
    let transports: Vec<Transport> = transports.collect();
    let is_chosen = |(workers, _): &(u32, u32)| arguments.workers.is_empty() || arguments.workers.contains(workers);
    let shapes: Vec<(u32, u32)> = SHAPES.into_iter().filter(is_chosen).collect();
    let is_chosen = |case: &Case| arguments.case.is_empty() || arguments.case.contains(case);
    let cases: Vec<Case> = Case::value_variants().iter().copied().filter(is_chosen).collect();
    let thrift = if arguments.quick { 10 } else { 2 };
    let turns = arguments.turns.unwrap_or(if arguments.quick { 1 } else { 3 });
    let python = arguments.python.as_deref().map(python::Programs::new).transpose()?;
    let mut times = Times::new();
    for turn in 1..=turns {
        for &(workers, servers) in &shapes {
            for &transport in &transports {
                let name = transport.name();
                show_progress(&format!("turn {turn} of {turns}: {workers} x {servers} over {name}"));
                let cells = case::cells(&cases, &arguments.bytes, (workers, servers), transport, thrift);
                let plan = job::Plan { workers, servers, transport, cells, pin: arguments.pin };
                let measured =
                    job::measure(&plan).map_err(|error| error.context(format!("{workers} x {servers} over {name}")))?;
                for (cell, phases) in plan.cells.iter().zip(measured) {
                    for (order, (phase, measured)) in phases.into_iter().enumerate() {
                        let key = (workers, cell.case, cell.bytes, name, Language::Rust, (order, phase));
                        let all = times.entry(key).or_insert_with(no_times);
                        // Histograms of the same digits; it grows with its values.
                        let _ = all.add(measured);
                    }
                }
                let Some(python) = &python else { continue };
                for (case, bytes, taken_ns) in python.measure(&plan, thrift)? {
                    let key = (workers, case, bytes, name, Language::Python, (0, case.name()));
                    let all = times.entry(key).or_insert_with(no_times);
                    taken_ns.into_iter().for_each(|ns| super::child::record(all, Duration::from_nanos(ns)));
                }
            }
        }
    }
    show_progress("");
    let rows = rows(&times);
    let mut stdout = std::io::stdout().lock();
    if arguments.json { report::json(&rows, &mut stdout) } else { report::table(&rows, &mut stdout) }
}

fn rows(times: &Times) -> Vec<Row> {
    let mut rows = Vec::new();
    for (&(workers, case, bytes, transport, language, (_, phase)), times) in times {
        let is_whole = phase == case.name();
        let language = language.name();
        let goal = case.goal(workers, bytes, transport, language).filter(|_| is_whole);
        rows.push(Row {
            bench: "exchange",
            case: phase,
            bytes,
            ranks: workers,
            transport: if language == "python" { in_python(transport) } else { transport },
            language,
            compared_with: goal.map(|goal| (phase, goal.beside)),
            target: goal.map(|goal| goal.target),
            times: times.clone(),
        });
        if let Some(goal) = goal {
            let mut one = no_times();
            super::child::record(&mut one, Duration::from_nanos(goal.reading_ns));
            let (transport, language) = (goal.beside, "");
            let (compared_with, target) = (None, None);
            rows.push(Row {
                bench: "exchange",
                case: phase,
                bytes,
                ranks: workers,
                transport,
                language,
                compared_with,
                target,
                times: one,
            });
        }
    }
    rows
}

/// How a row of Python's stands in the column of transports.
fn in_python(transport: &str) -> &'static str {
    if transport == "tcp" { "tcp, python" } else { "shm, python" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_beside_what_they_may_take() {
        let mut times = Times::new();
        for (case, bytes, transport) in
            [(Case::Registered, 1 << 10, "shm"), (Case::Registered, 896 << 10, "tcp"), (Case::Private, 8, "shm")]
        {
            times.insert((1, case, bytes, transport, Language::Rust, (0, case.name())), no_times());
            times.insert((1, case, bytes, transport, Language::Rust, (1, "process")), no_times());
            times.insert((1, case, bytes, transport, Language::Python, (0, case.name())), no_times());
        }
        let rows = rows(&times);
        let goals: Vec<_> = rows.iter().filter_map(|row| Some((row.transport, row.bytes, row.target?))).collect();
        let small = [("shm", 1 << 10, 1.0), ("shm, python", 1 << 10, 1.0)];
        let batch = [("tcp", 896 << 10, 0.75), ("tcp, python", 896 << 10, 0.75)];
        assert_eq!(goals, [small, batch].concat());
        for row in rows.iter().filter(|row| row.target.is_some()) {
            assert!(row.peer(&rows).is_some(), "{} has nothing beside it", row.bytes);
        }
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        for case in Case::value_variants() {
            assert_eq!(case.to_possible_value().map(|value| value.get_name().to_owned()), Some(case.name().to_owned()));
        }
    }
}
