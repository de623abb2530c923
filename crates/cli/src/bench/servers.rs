//! `sheave bench servers`: tables of versioned objects and gradient servers between Python processes, beside a table
//! over torch's calls and machin's gradient servers.
//!
//! Everything is measured by one script that this binary carries, `benches/python/servers.py`, in the Python in which
//! sheave is installed, started by `sheave launch`; the peer's does the same over `torch.distributed.rpc`.

use super::Transport;
use super::rows::{Place, Rows};
use super::runs::Runs;
use super::script::Script;
use crate::Failure;
use clap::ValueEnum;
use sheave_base::Result;
use std::path::PathBuf;
use std::time::Duration;

const PROGRAM: &str = include_str!("../../../../benches/python/servers.py");
const TORCH_PROGRAM: &str = include_str!("../../../../benches/peers/torch_servers.py");
const MACHIN_PROGRAM: &str = include_str!("../../../../benches/peers/machin_gradients.py");

/// Column of the times that a case may take.
const ALLOWED: &str = "allowed";
/// Column of machin's gradient servers.
const MACHIN: &str = "machin";

/// A run that takes longer has hung.
const LIMIT: Duration = Duration::from_secs(120);

/// Choices of `sheave bench servers`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// The Python in which sheave is installed.
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    python: PathBuf,
    /// Run a table over torch.distributed.rpc beside, by a Python in which torch is installed.
    #[arg(long, value_name = "PYTHON")]
    torch: Option<PathBuf>,
    /// Run machin's gradient servers beside, with --torch: the folder that holds the packages of machin 0.4.2.
    #[arg(long, value_name = "DIRECTORY", requires = "torch")]
    machin: Option<PathBuf>,
    /// Measure this case only; may be given several times.
    #[arg(long, value_name = "NAME")]
    case: Vec<Case>,
    /// Measure this transport only, shm or tcp; may be given several times.
    #[arg(long, value_name = "NAME")]
    transport: Vec<Transport>,
    #[command(flatten)]
    runs: Runs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Case {
    /// A new version of a state dictionary is pushed, and pulled into arrays of the client's.
    PushPull,
    /// A pull where there is nothing newer.
    Unchanged,
    /// Four clients compare and push one counter: the time from one accepted push to the next.
    Accepted,
    /// Eight learners push gradients through a tree of two levels: the time for each gradient of a step.
    Gradients,
}

impl Case {
    fn name(self) -> &'static str {
        match self {
            Self::PushPull => "push_pull",
            Self::Unchanged => "unchanged",
            Self::Accepted => "accepted",
            Self::Gradients => "gradients",
        }
    }

    /// The server, and its clients.
    fn ranks(self) -> u32 {
        match self {
            Self::PushPull | Self::Unchanged => 2,
            Self::Accepted => 5,
            Self::Gradients => 8,
        }
    }

    fn place(self, bytes: usize, at: &'static str) -> Place {
        Place { case: self.name(), bytes, ranks: self.ranks(), at, language: "python" }
    }

    /// How often, and how often in a quick run; a round of `accepted` is a thousand pushes.
    fn rounds(self) -> (u32, u32) {
        match self {
            Self::PushPull => (100, 20),
            Self::Unchanged => (3000, 300),
            Self::Accepted => (10, 3),
            Self::Gradients => (30, 5),
        }
    }

    /// The time that it may take, where one is set.
    fn allowed(self, transport: Transport) -> Option<Duration> {
        let micros = match self {
            _ if transport == Transport::Tcp || self == Self::Gradients => return None,
            Self::PushPull => 3000,
            Self::Unchanged => 20,
            Self::Accepted | Self::Gradients => 100,
        };
        Some(Duration::from_micros(micros))
    }
}

/// A run of the benchmark: its programs, and the rows so far.
struct Bench<'a> {
    arguments: &'a Arguments,
    ours: Script,
    torch: Option<Script>,
    machin: Option<Script>,
    rows: Rows,
}

/// Measures and reports.
pub(super) fn run(arguments: &Arguments) -> std::result::Result<(), Failure> {
    if arguments.transport.contains(&Transport::Inproc) {
        return Err(Failure::Usage("the nodes of a mesh are processes: use shm or tcp".to_owned()));
    }
    let ours = Script::checked("sheave", PROGRAM, &arguments.python, "--python", "sheave, numpy")?;
    let torch = arguments.torch.as_deref();
    let torch = torch.map(|python| Script::checked("torch", TORCH_PROGRAM, python, "--torch", "torch")).transpose()?;
    let machin = arguments.machin.as_ref().and(arguments.torch.as_deref());
    let machin = machin.map(|python| Script::checked("machin", MACHIN_PROGRAM, python, "--torch", "torch, dill"));
    let mut bench = Bench { arguments, ours, torch, machin: machin.transpose()?, rows: Rows::new("servers") };
    arguments.runs.in_turn(&arguments.case, |case| bench.measure(case))?;
    bench.rows.print(arguments.runs.json)
}

impl Bench<'_> {
    fn measure(&mut self, case: Case) -> Result<()> {
        let rounds = self.arguments.runs.rounds(case.rounds());
        let words = [case.name().to_owned(), rounds.to_string()];
        let chosen = &self.arguments.transport;
        for transport in [Transport::Shm, Transport::Tcp] {
            if !chosen.is_empty() && !chosen.contains(&transport) {
                continue;
            }
            let mut command = self.ours.launched(case.ranks())?;
            command.args(&words).env("SHEAVE_TRANSPORT", transport.name());
            for (bytes, times) in self.ours.times(&mut command, LIMIT)? {
                let place = case.place(bytes, transport.name());
                match case.allowed(transport) {
                    Some(allowed) => self.rows.add_within(place, ALLOWED, allowed, &times),
                    // Five times as fast as machin's, which chooses its own way.
                    None if case == Case::Gradients && transport == Transport::Shm => {
                        self.rows.add_beside(place, MACHIN, 0.2, &times);
                    }
                    None => self.rows.add(place, &times),
                }
            }
            match case {
                Case::Gradients => self.measure_machin(&words, transport),
                _ => self.measure_torch(case, &words, transport),
            }
        }
        Ok(())
    }

    /// A peer that fails leaves its rows out.
    fn measure_torch(&mut self, case: Case, words: &[String], transport: Transport) {
        let Some(script) = &self.torch else { return };
        let row = if transport == Transport::Tcp { "torch-tcp" } else { "torch-shm" };
        let mut command = script.command();
        command.args(words).env("SHEAVE_TRANSPORT", transport.name());
        match script.times(&mut command, LIMIT) {
            Ok(measured) => measured.iter().for_each(|(bytes, times)| self.rows.add(case.place(*bytes, row), times)),
            Err(error) => crate::say(&format!("a run of {row} is left out: {error}"), true),
        }
    }

    /// As it comes, over whatever torch chooses: beside our rows of shared memory.
    fn measure_machin(&mut self, words: &[String], transport: Transport) {
        let (Some(script), Some(directory), Transport::Shm) = (&self.machin, &self.arguments.machin, transport) else {
            return;
        };
        let mut command = script.command();
        command.args(&words[1..]).arg("--original").arg(directory);
        let place = |bytes| Case::Gradients.place(bytes, MACHIN);
        match script.times(&mut command, LIMIT) {
            Ok(measured) => measured.iter().for_each(|(bytes, times)| self.rows.add(place(*bytes), times)),
            Err(error) => crate::say(&format!("a run of machin is left out: {error}"), true),
        }
    }
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
    fn both_scripts_do_the_same_as_often() {
        for (from, to) in [("WARM_ROUNDS = ", "\n"), ("ACCEPTED = ", "\n"), ("SHAPES = {", "}")] {
            let said = |program: &'static str| {
                let rest = program.split(from).nth(1).expect("the program has this constant");
                rest.split(to).next().expect("it ends")
            };
            assert_eq!(said(PROGRAM), said(TORCH_PROGRAM), "{from}");
        }
    }
}
