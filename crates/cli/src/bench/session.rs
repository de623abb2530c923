//! `sheave bench session`: the commands of a session, in Rust and from Python, beside TVM's.
//!
//! What Python does is measured by scripts that this binary carries, `benches/python/session.py` in the Python in which
//! sheave is installed, and `benches/peers/tvm_session.py` in one that has TVM.

use super::parse_bytes;
use super::rows::{Place, Rows};
use super::runs::Runs;
use super::script::Script;
use crate::{Failure, own};
use clap::ValueEnum;
use sheave_base::config::Endpoint;
use sheave_base::{Error, ErrorKind, Result, Secret, port};
use sheave_process::{Command, Job};
use sheave_session::{
    Args, Function, Node, Nodes, Placement, Register, Session, register_function, work, work_on_node,
};
use sheave_tensor::Dtype;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const PROGRAM: &str = include_str!("../../../../benches/python/session.py");
const TVM_PROGRAM: &str = include_str!("../../../../benches/peers/tvm_session.py");

const WORKERS: u32 = 2;
const WARM_ROUNDS: u32 = 20;
/// Commands that are issued before one is waited for.
const PIPELINED: u32 = 10_000;
const FETCH_BYTES: usize = 4 << 20;

/// A run that takes longer has hung.
const LIMIT: Duration = Duration::from_secs(180);
/// A wait that takes longer has hung.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

/// What the command of another node is told.
const ROOT: &str = "SHEAVE_BENCH_ROOT";
const SECRET: &str = "SHEAVE_BENCH_SECRET";

/// The function that workers of Rust have.
const ADD_ONE: &str = "add one";

/// Choices of `sheave bench session`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// The Python in which sheave is installed; without one Rust alone is measured.
    #[arg(long, value_name = "PYTHON")]
    python: Option<PathBuf>,
    /// Run TVM's Disco beside, by a Python in which it is installed.
    #[arg(long, value_name = "PYTHON")]
    tvm: Option<PathBuf>,
    /// Measure this case only; may be given several times.
    #[arg(long, value_name = "NAME")]
    case: Vec<Case>,
    /// Measure workers of this kind only; may be given several times.
    #[arg(long, value_name = "NAME")]
    kind: Vec<Kind>,
    /// So many workers, of Rust; 2 unless given. More are all of this machine.
    #[arg(long, value_name = "NUMBER", default_value_t = WORKERS)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=64))]
    workers: u32,
    /// Fetch a tensor of this size, such as 1MiB; 4MiB unless given.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    bytes: Option<usize>,
    #[command(flatten)]
    runs: Runs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Case {
    /// A command, and a wait for all workers.
    Call,
    /// Ten thousand commands, of which no register is kept, and a wait for all workers: the time per command.
    Pipelined,
    /// The same, and all registers are kept until the wait is over.
    PipelinedKept,
    /// A tensor is fetched from the last worker.
    Fetch,
    /// The same, of which worker and controller see the same memory then.
    FetchShared,
    /// A session begins, and its first result is there.
    Start,
}

/// Where the workers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Kind {
    /// Threads of the controller's process.
    Threads,
    /// Processes, over shared memory.
    Processes,
    /// Processes of two nodes, over TCP.
    Sockets,
}

impl Case {
    fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Pipelined => "pipelined",
            Self::PipelinedKept => "pipelined_kept",
            Self::Fetch => "fetch",
            Self::FetchShared => "fetch_shared",
            Self::Start => "start",
        }
    }

    /// How often, and how often in a quick run. Calls often enough for the first 50 ms to be few of them: for as long
    /// waits sleep where the start of the workers has taken their core away.
    fn rounds(self) -> (u32, u32) {
        match self {
            Self::Call => (10_000, 300),
            Self::Pipelined | Self::PipelinedKept | Self::Start => (10, 3),
            Self::Fetch | Self::FetchShared => (200, 20),
        }
    }

    fn bytes(self, arguments: &Arguments) -> usize {
        if matches!(self, Self::Fetch | Self::FetchShared) { arguments.bytes.unwrap_or(FETCH_BYTES) } else { 0 }
    }

    /// The time that it may take, where one is set.
    fn allowed(self, kind: Kind, is_python: bool, bytes: usize) -> Option<Duration> {
        let micros = match (self, kind) {
            (Self::Call, Kind::Sockets) => 60,
            (Self::Call, Kind::Threads) => 15,
            (Self::Call, Kind::Processes) if is_python => 20,
            (Self::Call, Kind::Processes) => 10,
            (Self::Pipelined, Kind::Processes) if is_python => 5,
            (Self::Pipelined, Kind::Processes) => 1,
            (Self::Fetch, Kind::Processes) if bytes == FETCH_BYTES => 700,
            (Self::FetchShared, Kind::Processes) if bytes == FETCH_BYTES => 100,
            (Self::Start, Kind::Processes) => 250_000,
            _ => return None,
        };
        Some(Duration::from_micros(micros))
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Processes => "processes",
            Self::Sockets => "sockets",
        }
    }

    /// The name of a row: of Rust's, of Python's, of what each may take, of TVM's.
    fn row(self, of: Of) -> &'static str {
        let names = match self {
            Self::Threads => ["threads", "py-threads", "allowed-threads", "allowed-py-threads", "tvm-threads"],
            Self::Processes => {
                ["processes", "py-processes", "allowed-processes", "allowed-py-processes", "tvm-processes"]
            }
            Self::Sockets => ["sockets", "py-sockets", "allowed-sockets", "allowed-py-sockets", "tvm-sockets"],
        };
        names[of as usize]
    }
}

/// Whose row it is.
#[derive(Clone, Copy)]
enum Of {
    Rust,
    Python,
    AllowedRust,
    AllowedPython,
    Tvm,
}

struct Bench<'a> {
    arguments: &'a Arguments,
    ours: Option<Script>,
    tvm: Option<Script>,
    rows: Rows,
}

/// Measures and reports.
pub(super) fn run(arguments: &Arguments) -> std::result::Result<(), Failure> {
    let checked = |whose, program, python: &Option<PathBuf>, flag, modules| {
        python.as_deref().map(|python| Script::checked(whose, program, python, flag, modules)).transpose()
    };
    let ours = checked("sheave", PROGRAM, &arguments.python, "--python", "sheave, numpy")?;
    let tvm = checked("TVM", TVM_PROGRAM, &arguments.tvm, "--tvm", "tvm, numpy")?;
    let mut bench = Bench { arguments, ours, tvm, rows: Rows::new("session") };
    register()?;
    arguments.runs.in_turn(&arguments.case, |case| bench.measure(case))?;
    bench.rows.print(arguments.runs.json)
}

/// The hidden command: a worker, or the other node of a session over sockets.
pub(super) fn run_child() -> std::result::Result<(), Failure> {
    register()?;
    let Ok(root) = std::env::var(ROOT) else { return Ok(work()?) };
    let wrong = || Failure::Usage("this command is for sheave itself; use 'sheave bench session'".to_owned());
    let secret = std::env::var(SECRET).map_err(|_| wrong())?;
    let root = Endpoint::parse(&root).ok_or_else(wrong)?;
    let node = Node { root, workers: 1, number: Some(1), secret: Some(Secret::new(secret.as_bytes())?) };
    Ok(work_on_node(&node, &again())?)
}

fn register() -> Result<()> {
    register_function(Function::typed(ADD_ONE, |(number,): (i64,)| Ok(number + 1)))
}

/// This program once more, as a worker.
fn again() -> Command {
    let line = own::line("/proc/self/exe");
    let (program, first) = line.split_first().expect("a program has a name");
    Command::new(program).args(first).args(["bench", "session-child"])
}

/// A session of one kind, and the other node of one over sockets.
struct Begun {
    session: Session,
    other: Option<Job>,
}

impl Begun {
    fn new(kind: Kind, workers: u32) -> Result<Self> {
        match kind {
            Kind::Threads => Ok(Self { session: Session::threads(workers, 1)?, other: None }),
            Kind::Processes => Ok(Self { session: Session::processes(workers, 1, &again())?, other: None }),
            Kind::Sockets => Self::over_sockets(),
        }
    }

    fn over_sockets() -> Result<Self> {
        let root = Endpoint { host: "127.0.0.1".to_owned(), port: port::free()? };
        let text = sheave_fleet::draw_secret()?;
        let secret = Some(Secret::new(text.as_bytes())?);
        let job = Job::start()?;
        let node = again().name("node-1").env(ROOT, root.to_string()).env(SECRET, text).env("SHEAVE_TRANSPORT", "tcp");
        job.spawn(node)?;
        let nodes = Nodes { root, nodes: WORKERS, workers_per_node: 1, groups: 1, secret };
        Ok(Self { session: Session::on_nodes(&nodes, &again())?, other: Some(job) })
    }

    fn end(self) -> Result<()> {
        self.session.shutdown()?;
        if let Some(job) = self.other {
            job.wait_all_ended(Some(Instant::now() + Duration::from_secs(10)))?;
        }
        Ok(())
    }
}

impl Bench<'_> {
    fn measure(&mut self, case: Case) -> Result<()> {
        let rounds = self.arguments.runs.rounds(case.rounds());
        let bytes = case.bytes(self.arguments);
        let chosen = &self.arguments.kind;
        let kinds: Vec<Kind> =
            Kind::value_variants().iter().copied().filter(|kind| chosen.is_empty() || chosen.contains(kind)).collect();
        for kind in kinds {
            let workers = self.arguments.workers;
            if workers > WORKERS && kind == Kind::Sockets {
                continue;
            }
            let times = measured(case, kind, workers, rounds, bytes)?;
            self.add(case, bytes, kind, false, &times);
            if workers > WORKERS {
                continue;
            }
            let words = [case.name().to_owned(), kind.name().to_owned(), rounds.to_string(), bytes.to_string()];
            if let Some(script) = &self.ours {
                for (bytes, times) in printed(script, &words)? {
                    self.add(case, bytes, kind, true, &times);
                }
            }
            // TVM shares no memory with a worker, and its nodes meet only if the second one comes late.
            let has_such = case != Case::FetchShared && (case, kind) != (Case::Start, Kind::Sockets);
            let Some(script) = self.tvm.as_ref().filter(|_| has_such) else { continue };
            match printed(script, &words) {
                Ok(lines) => {
                    for (bytes, times) in lines {
                        self.rows.add(self.place(case, bytes, kind.row(Of::Tvm), "python"), &times);
                    }
                }
                Err(error) => crate::say(&format!("a run of TVM is left out: {error}"), true),
            }
        }
        Ok(())
    }

    /// Adds times to the row that they belong to, and what they may be to one beside it.
    fn add(&mut self, case: Case, bytes: usize, kind: Kind, is_python: bool, times_ns: &[u64]) {
        let (own, way) = if is_python { (Of::Python, Of::AllowedPython) } else { (Of::Rust, Of::AllowedRust) };
        let language = if is_python { "python" } else { "rust" };
        let (own, way) = (kind.row(own), kind.row(way));
        let allowed = case.allowed(kind, is_python, bytes).filter(|_| self.arguments.workers == WORKERS);
        let place = self.place(case, bytes, own, language);
        match allowed {
            Some(allowed) => self.rows.add_within(place, way, allowed, times_ns),
            None => self.rows.add(place, times_ns),
        }
    }

    fn place(&self, case: Case, bytes: usize, at: &'static str, language: &'static str) -> Place {
        Place { case: case.name(), bytes, ranks: self.arguments.workers, at, language }
    }
}

fn printed(script: &Script, words: &[String]) -> Result<Vec<(usize, Vec<u64>)>> {
    script.times(script.command().args(words), LIMIT)
}

/// Nanoseconds of each round of a session of Rust.
fn measured(case: Case, kind: Kind, workers: u32, rounds: u32, bytes: usize) -> Result<Vec<u64>> {
    if case == Case::Start {
        return (0..rounds).map(|_| start(kind, workers)).collect();
    }
    let begun = Begun::new(kind, workers)?;
    let session = &begun.session;
    let add = session.function(ADD_ONE)?;
    let tensor = session.empty([bytes as u64 / 4], Dtype::F32, Placement::All)?;
    let round = || match case {
        Case::Call => {
            session.call(&add, &Args::new().value(1))?;
            session.sync_all(PATIENCE)
        }
        Case::Pipelined | Case::PipelinedKept => pipelined(session, &add, case == Case::PipelinedKept),
        Case::FetchShared => tensor.fetch_shared(workers - 1, PATIENCE).map(drop),
        _ => tensor.fetch(workers - 1, PATIENCE).map(drop),
    };
    let cut = if matches!(case, Case::Pipelined | Case::PipelinedKept) { u64::from(PIPELINED) } else { 1 };
    for _ in 0..WARM_ROUNDS.min(rounds) {
        round()?;
    }
    let mut times = Vec::with_capacity(rounds as usize);
    for _ in 0..rounds {
        let began = Instant::now();
        round()?;
        times.push(nanoseconds(began) / cut);
    }
    drop((add, tensor));
    begun.end()?;
    Ok(times)
}

fn pipelined(session: &Session, add: &Register, keeps: bool) -> Result<()> {
    let mut kept = Vec::new();
    for number in 0..i64::from(PIPELINED) {
        let made = session.call(add, &Args::new().value(number))?;
        kept.extend(Some(made).filter(|_| keeps));
    }
    session.sync_all(PATIENCE)
}

fn start(kind: Kind, workers: u32) -> Result<u64> {
    let began = Instant::now();
    let begun = Begun::new(kind, workers)?;
    let add = begun.session.function(ADD_ONE)?;
    let two = begun.session.call(&add, &Args::new().value(1))?;
    if two.get::<i64>(workers - 1, PATIENCE)? != 2 {
        return Err(Error::new(ErrorKind::Internal, "one and one is two"));
    }
    let took = nanoseconds(began);
    drop((add, two));
    begun.end()?;
    Ok(took)
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        for case in Case::value_variants() {
            assert_eq!(case.to_possible_value().map(|value| value.get_name().to_owned()), Some(case.name().to_owned()));
        }
        for kind in Kind::value_variants() {
            assert_eq!(kind.to_possible_value().map(|value| value.get_name().to_owned()), Some(kind.name().to_owned()));
        }
    }

    #[test]
    fn both_scripts_do_everything_as_often() {
        for (name, ours) in [("WARM_ROUNDS = ", WARM_ROUNDS), ("PIPELINED = ", PIPELINED)] {
            for program in [PROGRAM, TVM_PROGRAM] {
                let said = program.split(name).nth(1).expect("the program has this number");
                let digits = said.chars().take_while(|one| one.is_ascii_digit() || *one == '_');
                assert_eq!(digits.filter(|one| *one != '_').collect::<String>(), ours.to_string(), "{name}");
            }
        }
    }
}
