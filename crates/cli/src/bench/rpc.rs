//! `sheave bench rpc`: calls between Python processes, beside torch's, Ray's and Monarch's.
//!
//! Everything is measured by one script that this binary carries, `benches/python/rpc.py`, in the Python in which
//! sheave is installed, started by `sheave launch`.

use super::rows::{Place, Rows};
use super::runs::Runs;
use super::script::Script;
use super::{Transport, parse_bytes};
use crate::Failure;
use clap::ValueEnum;
use sheave_base::Result;
use std::path::PathBuf;
use std::time::Duration;

const PROGRAM: &str = include_str!("../../../../benches/python/rpc.py");
const TORCH_PROGRAM: &str = include_str!("../../../../benches/peers/torch_rpc.py");
const RAY_PROGRAM: &str = include_str!("../../../../benches/peers/ray_rpc.py");
const MONARCH_PROGRAM: &str = include_str!("../../../../benches/peers/monarch_rpc.py");

/// Column of the times that a case may take.
const ALLOWED: &str = "allowed";
const TORCH: &str = "torch";
/// Its rows, by the transport that it is told to take.
const TORCH_ROWS: [(Transport, &str); 2] = [(Transport::Shm, "torch-shm"), (Transport::Tcp, "torch-tcp")];
const RAY: &str = "ray";
const MONARCH: &str = "monarch";

/// Longer arrays are echoed less often, and may take longer.
const LONG_BYTES: usize = 4 << 20;
const ECHO_BYTES: [usize; 2] = [1 << 20, 16 << 20];

/// A run that takes longer has hung.
const LIMIT: Duration = Duration::from_secs(120);

/// Choices of `sheave bench rpc`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// The Python in which sheave is installed.
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    python: PathBuf,
    /// Run torch.distributed.rpc beside, by a Python in which torch is installed.
    #[arg(long, value_name = "PYTHON")]
    torch: Option<PathBuf>,
    /// Run Ray beside, by a Python in which it is installed.
    #[arg(long, value_name = "PYTHON")]
    ray: Option<PathBuf>,
    /// Run Monarch beside, by a Python in which it is installed.
    #[arg(long, value_name = "PYTHON")]
    monarch: Option<PathBuf>,
    /// Measure this case only; may be given several times.
    #[arg(long, value_name = "NAME")]
    case: Vec<Case>,
    /// Echo arrays of this size only, such as 1MiB; may be given several times.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    bytes: Vec<usize>,
    /// Measure this transport only, shm or tcp; may be given several times.
    #[arg(long, value_name = "NAME")]
    transport: Vec<Transport>,
    #[command(flatten)]
    runs: Runs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Case {
    /// A service by its key, with plain values.
    Registered,
    /// A function that is sent along.
    Pickled,
    /// An array there and back.
    Echo,
    /// A hundred calls in flight: the time per call.
    Outstanding,
    /// A group of eight is made.
    Groups,
    /// A thousand services are registered and found.
    Services,
}

impl Case {
    fn name(self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::Pickled => "pickled",
            Self::Echo => "echo",
            Self::Outstanding => "outstanding",
            Self::Groups => "groups",
            Self::Services => "services",
        }
    }

    fn ranks(self) -> u32 {
        if self == Self::Groups { 8 } else { 2 }
    }

    fn place(self, bytes: usize, at: &'static str) -> Place {
        Place { case: self.name(), bytes, ranks: self.ranks(), at, language: "python" }
    }

    /// How often, and how often in a quick run.
    fn rounds(self, bytes: usize) -> (u32, u32) {
        match self {
            Self::Registered | Self::Pickled => (3000, 300),
            Self::Echo if bytes > LONG_BYTES => (50, 10),
            Self::Echo => (300, 30),
            Self::Outstanding => (100, 10),
            Self::Groups => (50, 5),
            Self::Services => (5, 2),
        }
    }

    /// The time that it may take, where one is set.
    fn allowed(self, transport: Transport, bytes: usize) -> Option<Duration> {
        let micros = match self {
            Self::Registered | Self::Pickled if transport == Transport::Tcp => 40,
            Self::Echo | Self::Outstanding if transport == Transport::Tcp => return None,
            Self::Registered => 12,
            Self::Pickled => 18,
            Self::Echo if bytes > LONG_BYTES => 3000,
            Self::Echo => 250,
            Self::Outstanding => 10,
            Self::Groups => 10_000,
            Self::Services => 100_000,
        };
        Some(Duration::from_micros(micros))
    }

    /// Whether others have such a thing.
    fn has_peers(self) -> bool {
        !matches!(self, Self::Groups | Self::Services)
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
    if arguments.transport.contains(&Transport::Inproc) {
        return Err(Failure::Usage("the nodes of a mesh are processes: use shm or tcp".to_owned()));
    }
    let mut bench = Bench::new(arguments)?;
    arguments.runs.in_turn(&arguments.case, |case| {
        bench.sizes(case).into_iter().try_for_each(|bytes| bench.measure(case, bytes))
    })?;
    bench.rows.print(arguments.runs.json)
}

impl<'a> Bench<'a> {
    fn new(arguments: &'a Arguments) -> std::result::Result<Self, Failure> {
        let ours = Script::checked("sheave", PROGRAM, &arguments.python, "--python", "sheave, numpy")?;
        let asked = [
            (TORCH, TORCH_PROGRAM, &arguments.torch, "--torch", "torch"),
            (RAY, RAY_PROGRAM, &arguments.ray, "--ray", "ray, numpy"),
            (MONARCH, MONARCH_PROGRAM, &arguments.monarch, "--monarch", "monarch.actor, numpy"),
        ];
        let mut peers = Vec::new();
        for (name, program, python, flag, modules) in asked {
            if let Some(python) = python {
                peers.push((name, Script::checked(name, program, python, flag, modules)?));
            }
        }
        Ok(Self { arguments, ours, peers, rows: Rows::new("rpc") })
    }

    /// The sizes that a case is measured with.
    fn sizes(&self, case: Case) -> Vec<usize> {
        match case {
            Case::Echo if !self.arguments.bytes.is_empty() => self.arguments.bytes.clone(),
            Case::Echo => ECHO_BYTES.to_vec(),
            _ => vec![0],
        }
    }

    fn transports(&self) -> impl Iterator<Item = Transport> {
        let chosen = &self.arguments.transport;
        [Transport::Shm, Transport::Tcp].into_iter().filter(|one| chosen.is_empty() || chosen.contains(one))
    }

    fn measure(&mut self, case: Case, bytes: usize) -> Result<()> {
        let rounds = self.arguments.runs.rounds(case.rounds(bytes));
        let words = [case.name().to_owned(), rounds.to_string(), bytes.to_string()];
        for transport in self.transports().collect::<Vec<_>>() {
            let mut command = self.ours.launched(case.ranks())?;
            command.args(&words).env("SHEAVE_TRANSPORT", transport.name());
            let way = if transport == Transport::Tcp { "allowed-tcp" } else { ALLOWED };
            for (bytes, times) in self.ours.times(&mut command, LIMIT)? {
                let place = case.place(bytes, transport.name());
                match case.allowed(transport, bytes) {
                    Some(allowed) => self.rows.add_within(place, way, allowed, &times),
                    None => self.rows.add(place, &times),
                }
            }
            for (way, row) in TORCH_ROWS {
                if way == transport {
                    self.measure_peer(case, (TORCH, row), &words, transport);
                }
            }
        }
        for name in [RAY, MONARCH] {
            self.measure_peer(case, (name, name), &words, Transport::Shm);
        }
        Ok(())
    }

    /// A peer that fails leaves its rows out.
    fn measure_peer(&mut self, case: Case, (peer, name): (&str, &'static str), words: &[String], transport: Transport) {
        let Some((_, script)) = self.peers.iter().find(|(one, _)| *one == peer && case.has_peers()) else { return };
        let mut command = script.command();
        command.args(words).env("SHEAVE_TRANSPORT", transport.name());
        match script.times(&mut command, LIMIT) {
            Ok(measured) => measured.iter().for_each(|(bytes, times)| self.rows.add(case.place(*bytes, name), times)),
            Err(error) => crate::say(&format!("a run of {name} is left out: {error}"), true),
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
    fn all_scripts_do_everything_as_often() {
        for name in ["WARM_ROUNDS = ", "OUTSTANDING = "] {
            let number = |program: &str| {
                let said = program.split(name).nth(1).expect("the program has this number");
                said.chars().take_while(char::is_ascii_digit).collect::<String>()
            };
            assert_eq!(number(PROGRAM), number(TORCH_PROGRAM), "{name}");
            assert_eq!(number(PROGRAM), number(RAY_PROGRAM), "{name}");
            assert_eq!(number(PROGRAM), number(MONARCH_PROGRAM), "{name}");
        }
    }
}
