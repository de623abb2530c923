//! `sheave bench python`: what a Python program gets, beside mpi4py and MXNet.
//!
//! Everything is measured by one script that this binary carries, `benches/python/measure.py`, in the Python in which
//! sheave is installed.

use super::child::{no_times, record};
use super::peer::parse;
use super::report::{self, Row};
use super::runs::Runs;
use super::script::Script;
use super::store::{MXNET, Mxnet};
use super::{Transport, parse_bytes};
use crate::{Failure, own};
use clap::ValueEnum;
use sheave_base::Result;
use std::path::PathBuf;
use std::time::Duration;

const PROGRAM: &str = include_str!("../../../../../benches/python/measure.py");
const MPI4PY_PROGRAM: &str = include_str!("../../../../../benches/peers/mpi4py_collective.py");

/// Where the peer's rows stand in the column of transports.
const MPI4PY: &str = "mpi4py-shm";
/// Where the times stand that the import and the start may take.
const ALLOWED: &str = "allowed";

const SIZES_BYTES: [usize; 5] = [8, 64 << 10, 1 << 20, 16 << 20, 64 << 20];
const KEY_BYTES: usize = 5_760_000;
/// Processes of a start.
const STARTED: u32 = 4;

/// A run that takes longer has hung.
const LIMIT: Duration = Duration::from_secs(300);

/// Beyond what a bare interpreter takes.
const IMPORT_TARGET: Duration = Duration::from_millis(60);
const START_TARGET: Duration = Duration::from_millis(400);

/// What `sheave bench python` measures.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// The Python in which sheave is installed.
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    python: PathBuf,
    /// Run mpi4py beside, by a Python in which it is installed.
    #[arg(long, value_name = "PYTHON")]
    mpi4py: Option<PathBuf>,
    /// Run MXNet's store beside, by a Python in which it is installed.
    #[arg(long, value_name = "PYTHON")]
    mxnet: Option<PathBuf>,
    /// Measure this case only; may be given several times.
    #[arg(long, value_name = "NAME")]
    case: Vec<Case>,
    /// Measure arrays of this size only, such as 8, 64KiB or 16MiB; may be given several times.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    bytes: Vec<usize>,
    /// Measure this transport of the store only, shm or tcp; may be given several times.
    #[arg(long, value_name = "NAME")]
    transport: Vec<Transport>,
    #[command(flatten)]
    runs: Runs,
    /// Keep each rank of an all_reduce on a core of its own, counted round, those of the peer too.
    #[arg(long)]
    pin: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Case {
    /// Sums of arrays in the arena.
    AllReduce,
    /// Sums of plain arrays.
    AllReduceNumpy,
    /// A push and a pull of one key.
    PushPull,
    /// The import of sheave.
    Import,
    /// The start of a job.
    Start,
}

impl Case {
    fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllReduceNumpy => "all_reduce_numpy",
            Self::PushPull => "push_pull",
            Self::Import => "import",
            Self::Start => "start",
        }
    }

    /// What our median should be at most, in the peer's.
    fn target(self, transport: &str, bytes: usize) -> Option<f64> {
        match (self, bytes) {
            (Self::AllReduce | Self::AllReduceNumpy, 8) | (Self::Import | Self::Start, _) => Some(1.0),
            (Self::AllReduce, 0x400_0000) => Some(0.25),
            (Self::AllReduceNumpy, 0x400_0000) => Some(0.6),
            (Self::PushPull, _) if transport == Transport::Tcp.name() => Some(0.5),
            (Self::PushPull, _) => Some(0.25),
            _ => None,
        }
    }

    fn ranks(self) -> u32 {
        match self {
            Self::AllReduce | Self::AllReduceNumpy | Self::PushPull => 2,
            Self::Import => 1,
            Self::Start => STARTED,
        }
    }

    /// The peer's case and transport.
    fn compared_with(self) -> (&'static str, &'static str) {
        match self {
            Self::AllReduce | Self::AllReduceNumpy => (Self::AllReduce.name(), MPI4PY),
            Self::PushPull => (self.name(), MXNET),
            Self::Import | Self::Start => (self.name(), ALLOWED),
        }
    }
}

/// What runs, and how often.
struct Bench<'a> {
    arguments: &'a Arguments,
    ours: Script,
    mpi4py: Option<Script>,
    mxnet: Option<Mxnet>,
    rows: Vec<Row>,
}

/// Measures and reports.
pub(super) fn run(arguments: &Arguments) -> std::result::Result<(), Failure> {
    if arguments.transport.contains(&Transport::Inproc) {
        return Err(Failure::Usage("the processes of a store do not meet inproc; use shm or tcp".to_owned()));
    }
    let mut bench = Bench::new(arguments)?;
    arguments.runs.in_turn(&arguments.case, |case| bench.measure(case))?;
    let rows = sorted(bench.rows);
    let mut stdout = std::io::stdout().lock();
    if arguments.runs.json { report::json(&rows, &mut stdout) } else { report::table(&rows, &mut stdout) }
}

impl<'a> Bench<'a> {
    fn new(arguments: &'a Arguments) -> std::result::Result<Self, Failure> {
        let ours = Script::checked("sheave", PROGRAM, &arguments.python, "--python", "sheave, numpy")?;
        let mpi4py = arguments.mpi4py.as_deref();
        let mpi4py = mpi4py.map(|python| Script::checked("mpi4py", MPI4PY_PROGRAM, python, "--mpi4py", "mpi4py"));
        let mxnet = match &arguments.mxnet {
            Some(python) if python.is_file() => Some(Mxnet::new(python.clone())?),
            Some(python) => return Err(Failure::Usage(format!("--mxnet: there is no file {}", python.display()))),
            None => None,
        };
        Ok(Self { arguments, ours, mpi4py: mpi4py.transpose()?, mxnet, rows: Vec::new() })
    }

    fn budget_us(&self) -> String {
        if self.arguments.runs.quick { "20000" } else { "200000" }.to_owned()
    }

    fn sizes(&self) -> Vec<String> {
        let is_chosen = |bytes: &usize| self.arguments.bytes.is_empty() || self.arguments.bytes.contains(bytes);
        SIZES_BYTES.into_iter().filter(is_chosen).map(|bytes| bytes.to_string()).collect()
    }

    fn measure(&mut self, case: Case) -> Result<()> {
        match case {
            Case::AllReduce => self.all_reduce(case, "arena"),
            Case::AllReduceNumpy => self.all_reduce(case, "numpy"),
            Case::PushPull => self.push_pull(),
            Case::Import => self.import(),
            Case::Start => self.start(),
        }
    }

    /// What the script prints.
    fn times(&self, arguments: &[String], transport: Option<Transport>) -> Result<Vec<(usize, Vec<u64>)>> {
        let mut command = self.ours.command();
        command.args(arguments);
        command.envs(transport.map(|transport| ("SHEAVE_TRANSPORT", transport.name())));
        command.envs(self.arguments.pin.then_some(("BENCH_PYTHON_PIN", "1")));
        self.ours.output(&mut command, LIMIT)?.lines().map(parse).collect()
    }

    fn all_reduce(&mut self, case: Case, memory: &str) -> Result<()> {
        let mut arguments = vec!["all_reduce".to_owned(), memory.to_owned(), "2".to_owned(), self.budget_us()];
        arguments.extend(self.sizes());
        for (bytes, times) in self.times(&arguments, Some(Transport::Shm))? {
            self.add(case, bytes, Transport::Shm.name(), &times);
        }
        self.measure_mpi4py();
        Ok(())
    }

    fn push_pull(&mut self) -> Result<()> {
        let (rounds, thrift) = if self.arguments.runs.quick { (10, 10) } else { (100, 2) };
        let arguments = ["push_pull".to_owned(), KEY_BYTES.to_string(), rounds.to_string()];
        for transport in [Transport::Shm, Transport::Tcp] {
            if self.arguments.transport.is_empty() || self.arguments.transport.contains(&transport) {
                for (bytes, times) in self.times(&arguments, Some(transport))? {
                    self.add(Case::PushPull, bytes, transport.name(), &times);
                }
            }
        }
        match self.mxnet.as_ref().map(|mxnet| mxnet.run("dist_sync", thrift, 2, 1)) {
            Some(Ok(measured)) => {
                let of_this_size = measured.into_iter().filter(|(bytes, _)| *bytes == KEY_BYTES);
                of_this_size.for_each(|(bytes, times)| self.add(Case::PushPull, bytes, MXNET, &times));
            }
            Some(Err(error)) => crate::say(&format!("a run of mxnet is left out: {error}"), true),
            None => {}
        }
        Ok(())
    }

    fn import(&mut self) -> Result<()> {
        let times = if self.arguments.runs.quick { "5" } else { "20" };
        let of = |module: &str| ["import", module, times].map(str::to_owned);
        let bare = self.times(&of("sys"), None)?;
        let ours = self.times(&of("sheave"), None)?;
        self.add_beyond(Case::Import, &ours, &bare, IMPORT_TARGET);
        Ok(())
    }

    fn start(&mut self) -> Result<()> {
        let times = if self.arguments.runs.quick { "2" } else { "5" };
        let bare = self.times(&["start".to_owned(), STARTED.to_string(), times.to_owned()], None)?;
        let mut arguments = vec!["start".to_owned(), STARTED.to_string(), times.to_owned()];
        let file = std::env::current_exe()?;
        arguments.extend(own::line(file).into_iter().map(|word| word.to_string_lossy().into_owned()));
        arguments.extend(["launch", "-n", &STARTED.to_string(), "--"].map(str::to_owned));
        let ours = self.times(&arguments, None)?;
        self.add_beyond(Case::Start, &ours, &bare, START_TARGET);
        Ok(())
    }

    /// Adds what goes beyond the median of bare interpreters, and what it may take.
    fn add_beyond(&mut self, case: Case, ours: &[(usize, Vec<u64>)], bare: &[(usize, Vec<u64>)], allowed: Duration) {
        let mut bare: Vec<u64> = bare.iter().flat_map(|(_, times)| times).copied().collect();
        bare.sort_unstable();
        let median = bare.get(bare.len() / 2).copied().unwrap_or(0);
        let beyond: Vec<u64> =
            ours.iter().flat_map(|(_, times)| times).map(|time| time.saturating_sub(median)).collect();
        self.add(case, 0, Transport::Shm.name(), &beyond);
        self.add(case, 0, ALLOWED, &[u64::try_from(allowed.as_nanos()).unwrap_or(u64::MAX)]);
    }

    /// A peer that fails leaves its rows out.
    fn measure_mpi4py(&mut self) {
        let is_wanted = |row: &Row| row.compared_with.is_some_and(|(_, transport)| transport == MPI4PY);
        let Some(mpi4py) = self.mpi4py.as_ref().filter(|_| self.rows.iter().any(is_wanted)) else { return };
        let binding = if self.arguments.pin { "core:overload-allowed" } else { "none" };
        let mut command = mpi4py.run_by("mpirun", &["-np", "2", "--oversubscribe", "--bind-to", binding]);
        command.arg(self.budget_us()).args(self.sizes());
        // It refuses root otherwise, and containers often know nobody else.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        let output = mpi4py.output(&mut command, LIMIT);
        match output.and_then(|output| output.lines().map(parse).collect::<Result<Vec<_>>>()) {
            Ok(measured) => {
                for (bytes, times) in measured {
                    self.add(Case::AllReduce, bytes, MPI4PY, &times);
                }
            }
            Err(error) => crate::say(&format!("a run of mpi4py is left out: {error}"), true),
        }
    }

    /// Adds times to the row that they belong to.
    fn add(&mut self, case: Case, bytes: usize, transport: &'static str, times_ns: &[u64]) {
        let is_it = |row: &Row| (row.case, row.bytes, row.transport) == (case.name(), bytes, transport);
        let at = self.rows.iter().position(is_it).unwrap_or_else(|| {
            let is_ours = case.compared_with().1 != transport;
            self.rows.push(Row {
                bench: "python",
                case: case.name(),
                bytes,
                ranks: case.ranks(),
                transport,
                language: "python",
                compared_with: is_ours.then(|| case.compared_with()),
                target: if is_ours { case.target(transport, bytes) } else { None },
                times: no_times(),
            });
            self.rows.len() - 1
        });
        for time_ns in times_ns {
            record(&mut self.rows[at].times, Duration::from_nanos(*time_ns));
        }
    }
}

/// Cases and sizes in their order, ours before the peer's.
fn sorted(mut rows: Vec<Row>) -> Vec<Row> {
    let place = |row: &Row| Case::value_variants().iter().position(|case| case.name() == row.case);
    // Stable: ours were measured first.
    rows.sort_by_key(|row| (place(row), row.bytes));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        for case in Case::value_variants() {
            assert_eq!(case.to_possible_value().map(|value| value.get_name().to_owned()), Some(case.name().to_owned()));
        }
    }

    #[test]
    fn both_scripts_do_everything_as_often() {
        for name in ["WARM_ROUNDS = ", "ROUNDS_MIN = ", "ROUNDS_MAX = ", "LOOPED = ", "REWRITTEN_BYTES = "] {
            let number = |program: &str| {
                let said = program.split(name).nth(1).expect("the program has this number");
                said.chars().take_while(char::is_ascii_digit).collect::<String>()
            };
            assert_eq!(number(PROGRAM), number(MPI4PY_PROGRAM), "{name}");
        }
    }
}
