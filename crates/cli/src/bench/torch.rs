//! `sheave bench torch`: torch.distributed over sheave, beside gloo.
//!
//! Both are measured by one script that this binary carries, `benches/python/process_group.py`, in turn, in one Python
//! that has torch and sheave, and started by one launcher.

use super::rows::{Place, Rows};
use super::runs::Runs;
use super::script::Script;
use crate::Failure;
use clap::ValueEnum;
use sheave_base::Result;
use std::path::PathBuf;
use std::time::Duration;

const PROGRAM: &str = include_str!("../../../../benches/python/process_group.py");

const OURS: &str = "sheave";
const GLOO: &str = "gloo";
/// Column of the times that a case may take.
const ALLOWED: &str = "allowed";

const SHORT_BYTES: usize = 8;
const MIDDLE_BYTES: usize = 1 << 20;

/// A run that takes longer has hung.
const LIMIT: Duration = Duration::from_secs(300);

/// Choices of `sheave bench torch`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// The Python in which torch and sheave are installed.
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    python: PathBuf,
    /// Measure this case only; may be given several times.
    #[arg(long, value_name = "NAME")]
    case: Vec<Case>,
    /// Do not run gloo beside.
    #[arg(long)]
    no_peer: bool,
    #[command(flatten)]
    runs: Runs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Case {
    /// Sums of tensors of 8 bytes, 1 MiB and 64 MiB in torch's memory.
    AllReduce,
    /// Sums of tensors of 8 bytes without torch's flight recorder.
    AllReduceUnrecorded,
    /// Sums of tensors in sheave's memory.
    AllReduceArena,
    /// What FSDP2 does with gradients of 16 MiB.
    ReduceScatter,
    /// What FSDP2 does with parameters of 16 MiB.
    AllGather,
    /// A step of DistributedDataParallel with eight layers of 1024 by 1024.
    Ddp,
    /// The start of a process group whose backend is imported.
    Init,
    /// The start of a process group in a program that has imported torch alone.
    InitByName,
    /// The start of a process group whose backend is imported, and its first barrier.
    InitAndBarrier,
}

/// What a row should be at most.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    /// So long.
    Within(Duration),
    /// This share of gloo's.
    Beside(f64),
}

impl Case {
    fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllReduceUnrecorded => "all_reduce_unrecorded",
            Self::AllReduceArena => "all_reduce_arena",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Ddp => "ddp",
            Self::Init => "init",
            Self::InitByName => "init_by_name",
            Self::InitAndBarrier => "init_and_barrier",
        }
    }

    /// Whether it measures how a group begins.
    fn begins(self) -> bool {
        matches!(self, Self::Init | Self::InitByName | Self::InitAndBarrier)
    }

    /// How often, and how often in a quick run.
    fn rounds(self) -> (u32, u32) {
        match self {
            Self::AllReduce | Self::AllReduceUnrecorded | Self::AllReduceArena => (200, 10),
            Self::ReduceScatter | Self::AllGather | Self::Ddp => (50, 5),
            Self::Init | Self::InitByName | Self::InitAndBarrier => (3, 1),
        }
    }

    /// Processes that are started for `rounds`, and the rounds of each: a process starts its first group only once.
    fn launches(self, rounds: u32) -> (u32, u32) {
        if self.begins() { (rounds, 1) } else { (1, rounds) }
    }

    fn ranks(self) -> &'static [u32] {
        match self {
            Self::Ddp => &[2, 4],
            case if case.begins() => &[4],
            _ => &[2],
        }
    }

    fn target(self, bytes: usize) -> Option<Target> {
        let within = |micros| Some(Target::Within(Duration::from_micros(micros)));
        match self {
            Self::AllReduceUnrecorded => within(20),
            Self::AllReduce if bytes <= SHORT_BYTES => within(50),
            Self::AllReduce if bytes <= MIDDLE_BYTES => Some(Target::Beside(0.15)),
            Self::AllReduce => Some(Target::Beside(0.25)),
            Self::AllReduceArena => None,
            Self::ReduceScatter | Self::AllGather => Some(Target::Beside(0.3)),
            Self::Ddp => Some(Target::Beside(0.7)),
            Self::Init | Self::InitByName | Self::InitAndBarrier => Some(Target::Beside(1.0)),
        }
    }
}

struct Bench<'a> {
    arguments: &'a Arguments,
    script: Script,
    rows: Rows,
    /// Jobs that were started: each has a file of its own, by which its ranks meet.
    jobs: u32,
}

/// Measures and reports.
pub(super) fn run(arguments: &Arguments) -> std::result::Result<(), Failure> {
    let script = Script::checked("torch", PROGRAM, &arguments.python, "--python", "sheave, torch.distributed")?;
    let mut bench = Bench { arguments, script, rows: Rows::new("torch"), jobs: 0 };
    arguments.runs.in_turn(&arguments.case, |case| bench.measure(case))?;
    bench.rows.print(arguments.runs.json)
}

impl Bench<'_> {
    fn measure(&mut self, case: Case) -> Result<()> {
        for &ranks in case.ranks() {
            self.measure_backend(case, ranks, OURS)?;
            if !self.arguments.no_peer && case != Case::AllReduceArena {
                self.measure_backend(case, ranks, GLOO)?;
            }
        }
        Ok(())
    }

    fn measure_backend(&mut self, case: Case, ranks: u32, backend: &'static str) -> Result<()> {
        let (launches, rounds) = case.launches(self.arguments.runs.rounds(case.rounds()));
        for _ in 0..launches {
            self.jobs += 1;
            let meet = self.script.path().with_file_name(format!("meet-{}", self.jobs));
            let mut command = self.script.launched(ranks)?;
            command.args([case.name(), backend, &rounds.to_string()]).arg(meet);
            // One thread for each process: together they have the cores.
            command.envs(["OMP_NUM_THREADS", "MKL_NUM_THREADS"].map(|name| (name, "1")));
            command.env_remove("TORCH_FR_BUFFER_SIZE");
            command.envs((case == Case::AllReduceUnrecorded).then_some(("TORCH_FR_BUFFER_SIZE", "0")));
            for (bytes, times_ns) in self.script.times(&mut command, LIMIT)? {
                self.add(case, bytes, ranks, backend, &times_ns);
            }
        }
        Ok(())
    }

    /// Adds times to the row that they belong to; ours stand beside what they should be.
    fn add(&mut self, case: Case, bytes: usize, ranks: u32, backend: &'static str, times_ns: &[u64]) {
        let place = Place { case: case.name(), bytes, ranks, at: backend, language: "python" };
        match case.target(bytes).filter(|_| backend == OURS) {
            Some(Target::Within(allowed)) => self.rows.add_within(place, ALLOWED, allowed, times_ns),
            Some(Target::Beside(share)) => self.rows.add_beside(place, GLOO, share, times_ns),
            None => self.rows.add(place, times_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_knows_all_cases() {
        for case in Case::value_variants() {
            assert_eq!(case.to_possible_value().map(|value| value.get_name().to_owned()), Some(case.name().to_owned()));
            assert!(PROGRAM.contains(&format!("`{}`", case.name())), "{}", case.name());
            assert!(PROGRAM.contains(&format!("\"{}\"", case.name())), "{}", case.name());
        }
        assert!(PROGRAM.contains(&format!("SHORT_BYTES, MIDDLE_BYTES, LONG_BYTES = {SHORT_BYTES}, 1 << 20, ")));
    }

    #[test]
    fn targets_follow_the_size() {
        let within = |micros| Some(Target::Within(Duration::from_micros(micros)));
        assert_eq!(
            [8, 1 << 20, 64 << 20].map(|bytes| Case::AllReduce.target(bytes)),
            [within(50), Some(Target::Beside(0.15)), Some(Target::Beside(0.25)),]
        );
        assert_eq!(Case::AllReduceUnrecorded.target(8), within(20));
    }
}
