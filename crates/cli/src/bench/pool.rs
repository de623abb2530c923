//! `sheave bench pool`: tasks of pools of processes, beside those of the standard library, of loky and of torch; and
//! items of queues between processes, beside those of the standard library.
//!
//! Everything is measured by one script that this binary carries, `benches/python/pool.py`, in a Python in which sheave
//! is installed, and for the others in one that has them.

use super::rows::{Place, Rows};
use super::runs::Runs;
use super::script::Script;
use crate::Failure;
use clap::ValueEnum;
use sheave_base::Result;
use std::path::PathBuf;
use std::time::Duration;

const PROGRAM: &str = include_str!("../../../../benches/python/pool.py");

/// Column of the times that a case may take.
const ALLOWED: &str = "allowed";
const OURS: &str = "sheave";
const LOKY: &str = "loky";
const TORCH: &str = "torch";
/// Workers of each pool, as the script has them.
const WORKERS: u32 = 2;

/// A run that takes longer has hung.
const LIMIT: Duration = Duration::from_secs(120);

/// Choices of `sheave bench pool`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// The Python in which sheave is installed; the pools of its standard library run beside.
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    python: PathBuf,
    /// Run loky's pool beside, by a Python in which it is installed.
    #[arg(long, value_name = "PYTHON")]
    loky: Option<PathBuf>,
    /// Run torch.multiprocessing's pool beside, by a Python in which torch is installed.
    #[arg(long, value_name = "PYTHON")]
    torch: Option<PathBuf>,
    /// Measure this case only; may be given several times.
    #[arg(long, value_name = "NAME")]
    case: Vec<Case>,
    /// Run no other pool beside.
    #[arg(long)]
    no_peer: bool,
    #[command(flatten)]
    runs: Runs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Case {
    /// Tasks that do nothing, in chunks of one: the time per task.
    Tasks,
    /// One task that does nothing, until its result is there.
    Awaited,
    /// One task that takes an array of 16 MiB.
    Array,
    /// One task that takes such an array and returns it.
    Echoed,
    /// One task that takes such an array, which workers reach where it lies.
    Shared,
    /// Objects of 100 bytes in a queue, which a child takes: the time per object.
    QueuePut,
    /// Such objects, which a child puts.
    QueueGet,
    /// An array of 4 MiB in a queue, until a child says that it has it.
    QueueArray,
    /// An object of 100 bytes there and back, over two queues.
    QueuePingpong,
}

impl Case {
    fn name(self) -> &'static str {
        match self {
            Self::Tasks => "tasks",
            Self::Awaited => "awaited",
            Self::Array => "array",
            Self::Echoed => "echoed",
            Self::Shared => "shared",
            Self::QueuePut => "queue_put",
            Self::QueueGet => "queue_get",
            Self::QueueArray => "queue_array",
            Self::QueuePingpong => "queue_pingpong",
        }
    }

    fn place(self, bytes: usize, at: &'static str) -> Place {
        Place { case: self.name(), bytes, ranks: WORKERS, at, language: "python" }
    }

    /// How often, and how often in a quick run.
    fn rounds(self) -> (u32, u32) {
        match self {
            Self::Tasks => (7, 3),
            Self::Awaited | Self::QueuePingpong => (1000, 200),
            Self::Array | Self::Echoed | Self::Shared => (30, 7),
            Self::QueuePut | Self::QueueGet => (20, 5),
            Self::QueueArray => (100, 20),
        }
    }

    fn is_queue(self) -> bool {
        matches!(self, Self::QueuePut | Self::QueueGet | Self::QueueArray | Self::QueuePingpong)
    }

    /// Whether it is measured of that one beside.
    fn is_of(self, whose: &str) -> bool {
        match whose {
            "multiprocessing" => self != Self::Shared,
            "simple" => self.is_queue(),
            _ => !self.is_queue() && self != Self::Shared,
        }
    }

    /// The time that it may take.
    fn allowed(self) -> Duration {
        Duration::from_nanos(match self {
            Self::Tasks => 6_000,
            Self::Awaited | Self::QueuePingpong => 25_000,
            Self::Array => 4_000_000,
            Self::Echoed => 6_000_000,
            Self::Shared => 60_000,
            Self::QueuePut | Self::QueueGet => 1_500,
            Self::QueueArray => 1_000_000,
        })
    }
}

/// A run of the benchmark: its programs, and the rows so far.
struct Bench<'a> {
    arguments: &'a Arguments,
    ours: Script,
    /// Others by the names of their rows.
    peers: Vec<(&'static str, Script)>,
    rows: Rows,
}

/// Measures and reports.
pub(super) fn run(arguments: &Arguments) -> std::result::Result<(), Failure> {
    let mut bench = Bench::new(arguments)?;
    arguments.runs.in_turn(&arguments.case, |case| bench.measure(case))?;
    bench.rows.print(arguments.runs.json)
}

impl<'a> Bench<'a> {
    fn new(arguments: &'a Arguments) -> std::result::Result<Self, Failure> {
        let script = |whose, python, flag, modules| Script::checked(whose, PROGRAM, python, flag, modules);
        let ours = script(OURS, &arguments.python, "--python", "sheave.pool, numpy")?;
        let mut peers = Vec::new();
        if !arguments.no_peer {
            for whose in ["multiprocessing", "futures", "simple"] {
                peers.push((whose, script(whose, &arguments.python, "--python", "numpy")?));
            }
        }
        if let Some(python) = &arguments.loky {
            peers.push((LOKY, script(LOKY, python, "--loky", "loky, numpy")?));
        }
        if let Some(python) = &arguments.torch {
            peers.push((TORCH, script(TORCH, python, "--torch", "torch")?));
        }
        Ok(Self { arguments, ours, peers, rows: Rows::new("pool") })
    }

    fn measure(&mut self, case: Case) -> Result<()> {
        let rounds = self.arguments.runs.rounds(case.rounds());
        for (bytes, times) in printed(&self.ours, OURS, case, rounds)? {
            self.rows.add_within(case.place(bytes, OURS), ALLOWED, case.allowed(), &times);
        }
        for at in 0..self.peers.len() {
            let (whose, script) = &self.peers[at];
            let whose = *whose;
            if !case.is_of(whose) {
                continue;
            }
            // A peer that fails leaves its rows out.
            match printed(script, whose, case, rounds) {
                Ok(measured) => {
                    measured.iter().for_each(|(bytes, times)| self.rows.add(case.place(*bytes, whose), times));
                }
                Err(error) => crate::say(&format!("a run of {whose} is left out: {error}"), true),
            }
        }
        Ok(())
    }
}

fn printed(script: &Script, whose: &str, case: Case, rounds: u32) -> Result<Vec<(usize, Vec<u64>)>> {
    let mut command = script.command();
    command.args([whose, case.name(), &rounds.to_string()]);
    script.times(&mut command, LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_knows_all_cases_and_has_as_many_workers() {
        assert!(PROGRAM.contains(&format!("WORKERS = {WORKERS}\n")));
        for case in Case::value_variants() {
            assert_eq!(case.to_possible_value().map(|value| value.get_name().to_owned()), Some(case.name().to_owned()));
            assert!(PROGRAM.contains(&format!("`{}`", case.name())), "{}", case.name());
        }
    }
}
