//! `sheave tune`: which algorithm carries out what, by which rules, at what cost; and rules measured on this machine.

mod cost;
mod measure;

use crate::Failure;
use crate::bench::{Transport, parse_bytes};
use clap::Args;
use cost::Cost;
use sheave_collective::{Kind, Table};
use std::io::Write;
use std::path::PathBuf;

const RANKS: [u32; 2] = [2, 4];
const SIZES_BYTES: [usize; 5] = [8, 8 << 10, 64 << 10, 1 << 20, 64 << 20];

/// Shows the table by which collective operations choose their algorithms, or measures one.
///
/// The rules come first; then, for each operation, the algorithm that they choose, its steps one after the other, and
/// the bytes that the busiest rank sends. With --measure each algorithm that could do an operation is run on this
/// machine, and standard output has rules by which the fastest is chosen.
#[derive(Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// Show the table in this file.
    #[arg(long, value_name = "PATH", conflicts_with = "measure")]
    table: Option<PathBuf>,
    /// Measure what is fastest, and print a table that says so.
    #[arg(long)]
    measure: bool,
    /// Tensors of this size only, such as 8, 64KiB or 16MiB; may be given several times.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    bytes: Vec<usize>,
    /// So many ranks only; may be given several times.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: Vec<u32>,
    /// Measure over this transport, shm or tcp.
    #[arg(long, value_name = "NAME", default_value = "shm", requires = "measure")]
    transport: Transport,
    /// Measure this operation only; may be given several times.
    #[arg(long, value_name = "NAME", value_parser = kind_of_name)]
    operation: Vec<Kind>,
    /// Measure less often.
    #[arg(long, requires = "measure")]
    quick: bool,
}

impl Arguments {
    fn ranks(&self) -> Vec<u32> {
        sorted(if self.ranks.is_empty() { RANKS.to_vec() } else { self.ranks.clone() })
    }

    fn sizes_bytes(&self, usual: &[usize]) -> Vec<usize> {
        sorted(if self.bytes.is_empty() { usual.to_vec() } else { self.bytes.clone() })
    }

    fn kinds(&self) -> impl Iterator<Item = Kind> {
        Kind::ALL.into_iter().filter(|kind| self.operation.is_empty() || self.operation.contains(kind))
    }
}

fn sorted<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort_unstable();
    values.dedup();
    values
}

fn kind_of_name(name: &str) -> Result<Kind, String> {
    let names = || Kind::ALL.map(Kind::name).join(", ");
    Kind::from_name(name).ok_or_else(|| format!("the operations are {}", names()))
}

/// Shows or measures.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.measure {
        return measure::run(arguments);
    }
    let table = match &arguments.table {
        Some(path) => read(path)?,
        None => Table::default(),
    };
    let mut stdout = std::io::stdout().lock();
    let written = write!(stdout, "{}", text(&table, arguments)).and_then(|()| stdout.flush());
    written.map_err(|error| unwritten(&error))
}

/// A table that cannot be read is a mistake on the command line.
fn read(path: &std::path::Path) -> Result<Table, Failure> {
    let refuse = |what: String| Failure::Usage(format!("--table {}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    text.parse().map_err(|error: sheave_base::Error| refuse(error.to_string()))
}

fn unwritten(error: &std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::Unread,
        _ => Failure::Run(format!("writing to standard output: {error}")),
    }
}

fn text(table: &Table, arguments: &Arguments) -> String {
    let mut lines: Vec<String> = table.to_string().lines().map(str::to_owned).collect();
    lines.insert(0, "rules, of which the first that fits decides:".to_owned());
    lines.push(String::new());
    lines.push(line(["operation", "ranks", "bytes", "algorithm", "steps", "bytes sent"].map(str::to_owned)));
    for kind in arguments.kinds() {
        let sizes_bytes = match kind {
            Kind::Barrier => vec![0],
            _ => arguments.sizes_bytes(&SIZES_BYTES),
        };
        for ranks in arguments.ranks() {
            for bytes in &sizes_bytes {
                let bytes = *bytes as u64;
                let algorithm = table.choose(kind, ranks, bytes);
                let cost = cost::of(kind, algorithm, ranks, bytes);
                let shown = |of: fn(Cost) -> u64| cost.map_or_else(|| "–".to_owned(), |cost| of(cost).to_string());
                let (steps, sent) = (shown(|cost| cost.steps), shown(|cost| cost.bytes));
                let (kind, algorithm) = (kind.name().to_owned(), algorithm.name().to_owned());
                lines.push(line([kind, ranks.to_string(), bytes.to_string(), algorithm, steps, sent]));
            }
        }
    }
    lines.join("\n") + "\n"
}

fn line([kind, ranks, bytes, algorithm, steps, sent]: [String; 6]) -> String {
    format!("{kind:<14}  {ranks:>5}  {bytes:>9}  {algorithm:<13}  {steps:>5}  {sent:>10}")
}
