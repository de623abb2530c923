//! `sheave tune`: which algorithm carries out what, by which rules, at what cost; and rules measured on this machine.

mod cost;
mod measure;

use crate::Failure;
use crate::bench::parse_bytes;
use clap::Args;
use sheave_base::config::Settings;
use sheave_collective::{Kind, Table, Topology};
use std::io::Write;
use std::path::PathBuf;

const RANKS: [u32; 2] = [2, 4];
const SIZES_BYTES: [usize; 5] = [8, 8 << 10, 64 << 10, 1 << 20, 64 << 20];

/// Shows the table by which collective operations choose their algorithms, or measures one.
///
/// The rules come first; then, for each operation, the algorithm that they choose, its steps one after the other, and
/// the bytes that the busiest rank sends, or copies where ranks share memory. With --measure each algorithm that could
/// do an operation is run on this machine, on one host through shared memory and between hosts through TCP over
/// loopback, and standard output has rules by which the fastest is chosen.
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
    /// Ranks on one host only (host), on two hosts with half of them each (hosts), or with links between all (links).
    #[arg(long, value_name = "NAME", value_parser = topology_of_name)]
    topology: Option<Topology>,
    /// This operation only; may be given several times.
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

    fn topologies(&self) -> impl Iterator<Item = Topology> {
        Topology::ALL.into_iter().filter(|topology| self.topology.is_none_or(|chosen| chosen == *topology))
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

fn topology_of_name(name: &str) -> Result<Topology, String> {
    let known = Topology::ALL.into_iter().find(|topology| topology.name() == name);
    known.ok_or_else(|| "the topologies are host, hosts and links".to_owned())
}

/// Shows or measures.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.measure {
        return measure::run(arguments);
    }
    let table = match &arguments.table {
        Some(path) => read(path)?,
        None => match Settings::from_lookup(|name| std::env::var_os(name))?.collective_table {
            Some(path) => Table::read(&path)?,
            None => Table::default(),
        },
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
    let mut lines = vec!["rules, of which the first that fits decides:".to_owned()];
    lines.extend(table.to_string().lines().map(str::to_owned));
    lines.push(String::new());
    lines.push(line(["operation", "topology", "ranks", "bytes", "algorithm", "steps", "moved"].map(str::to_owned)));
    for kind in arguments.kinds() {
        let sizes_bytes = match kind {
            Kind::Barrier => vec![0],
            _ => arguments.sizes_bytes(&SIZES_BYTES),
        };
        let pairs =
            arguments.topologies().flat_map(|each| arguments.ranks().into_iter().map(move |ranks| (each, ranks)));
        // Of several hosts one has several ranks.
        for (topology, ranks) in pairs.filter(|(topology, ranks)| *topology != Topology::Hosts || *ranks > 2) {
            for bytes in &sizes_bytes {
                let bytes = *bytes as u64;
                let algorithm = table.choose(kind, topology, ranks, bytes);
                let cost = cost::of(kind, algorithm, ranks, bytes);
                let names = [kind.name(), topology.name()].map(str::to_owned);
                let [kind, topology] = names;
                let numbers = [u64::from(ranks), bytes, cost.steps, cost.bytes].map(|number| number.to_string());
                let [ranks, bytes, steps, moved] = numbers;
                lines.push(line([kind, topology, ranks, bytes, algorithm.name().to_owned(), steps, moved]));
            }
        }
    }
    lines.join("\n") + "\n"
}

fn line([kind, topology, ranks, bytes, algorithm, steps, moved]: [String; 7]) -> String {
    format!("{kind:<14}  {topology:<8}  {ranks:>5}  {bytes:>9}  {algorithm:<13}  {steps:>5}  {moved:>10}")
}
