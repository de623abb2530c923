//! `sheave bench particle`: particles, in Rust and from Python, beside plain loops and PusH.
//!
//! What Python does is measured by scripts that this binary carries: `benches/python/particle.py` in the Python in
//! which sheave is installed, and `benches/peers/push_particles.py`, a program of PusH, with the original and with the
//! face that sheave has for it.

use super::rows::{Place, Rows};
use super::runs::Runs;
use super::script::Script;
use crate::Failure;
use clap::ValueEnum;
use sheave_base::config::Endpoint;
use sheave_base::{Error, ErrorKind, Result, port};
use sheave_mesh::{Config, Expected, Mesh, Role};
use sheave_particle::{Answer, Behavior, ParticleId, Particles};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const PROGRAM: &str = include_str!("../../../../benches/python/particle.py");
const PUSH_PROGRAM: &str = include_str!("../../../../benches/peers/push_particles.py");

/// Ours from Python, and in Rust.
const OURS: &str = "sheave";
const IN_RUST: &str = "sheave-rust";
/// The program of PusH with sheave's face for it, and with the original.
const FACE: &str = "face";
const PUSH: &str = "push";
/// What two processes stand beside.
const ONE_PROCESS: &str = "one-process";
/// Rows of the times that a case may take.
const ALLOWED: &str = "allowed";
const ALLOWED_RUST: &str = "allowed-rust";

const WARM_ROUNDS: u32 = 20;
/// Messages that are sent in a row, and particles that are created.
const SENT: u32 = 1000;

/// A run that takes longer has hung.
const LIMIT: Duration = Duration::from_secs(180);

/// Choices of `sheave bench particle`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// The Python in which sheave is installed, and torch for `epoch`; without one Rust alone is measured.
    #[arg(long, value_name = "PYTHON")]
    python: Option<PathBuf>,
    /// Run a program of PusH beside, with the original, whose package `push` is in this folder, and with sheave's face.
    #[arg(long, value_name = "DIRECTORY", requires = "python")]
    push: Option<PathBuf>,
    /// The Python of the original, in which torch is installed; that of --python unless given.
    #[arg(long, value_name = "PYTHON", requires = "push")]
    push_python: Option<PathBuf>,
    /// Measure this case only; may be given several times.
    #[arg(long, value_name = "NAME")]
    case: Vec<Case>,
    #[command(flatten)]
    runs: Runs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Case {
    /// A thousand messages that do nothing are sent: the time per message.
    Send,
    /// A message that does nothing, until its answer is there.
    SendWait,
    /// The parameters of a particle, 1 MB that have changed.
    Get,
    /// The same where they have not changed.
    GetUnchanged,
    /// A thousand particles are created.
    Create,
    /// A message that does nothing, to a particle of another process.
    Across,
    /// An epoch of an ensemble of eight small networks on one thread.
    Epoch,
    /// The same in two processes, with a thread each, beside one.
    Processes,
    /// The update of Stein variational gradient descent of 32 particles of a million parameters on one thread.
    Svgd,
}

impl Case {
    fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::SendWait => "send_wait",
            Self::Get => "get",
            Self::GetUnchanged => "get_unchanged",
            Self::Create => "create",
            Self::Across => "across",
            Self::Epoch => "epoch",
            Self::Processes => "processes",
            Self::Svgd => "svgd",
        }
    }

    /// How often, and how often in a quick run.
    fn rounds(self) -> (u32, u32) {
        match self {
            Self::Send => (100, 20),
            Self::SendWait | Self::Across => (5000, 300),
            Self::Get | Self::GetUnchanged => (300, 30),
            Self::Create | Self::Epoch | Self::Processes | Self::Svgd => (5, 2),
        }
    }

    /// The time that it may take, where one is set.
    fn allowed(self, is_python: bool) -> Option<Duration> {
        let nanos = match self {
            Self::Send if !is_python => 500,
            Self::SendWait if is_python => 5000,
            Self::Get => 200_000,
            Self::GetUnchanged => 20_000,
            Self::Create if is_python => 1_000_000_000,
            Self::Across => 25_000,
            _ => return None,
        };
        Some(Duration::from_nanos(nanos))
    }

    /// What the script does in another way too, and the share of that time that ours may take.
    fn beside(self) -> Option<(&'static str, f64)> {
        match self {
            Self::Epoch => Some(("loop", 0.6)),
            // 1.8 times as fast.
            Self::Processes => Some((ONE_PROCESS, 0.56)),
            Self::Svgd => Some(("products", 2.0)),
            _ => None,
        }
    }

    /// What the script calls it.
    fn word(self) -> &'static str {
        if self == Self::Processes { "ensemble" } else { self.name() }
    }

    /// Processes that take part.
    fn ranks(self) -> u32 {
        if matches!(self, Self::Across | Self::Processes) { 2 } else { 1 }
    }

    /// Processes that the script is launched as for this row; without a number it is started without a launcher.
    fn launched(self, way: &str) -> Option<u32> {
        match self {
            Self::Processes if way == ONE_PROCESS => Some(1),
            Self::Across | Self::Processes => Some(self.ranks()),
            _ => None,
        }
    }

    fn is_of_rust(self) -> bool {
        matches!(self, Self::Send | Self::SendWait | Self::Create)
    }

    /// Whether PusH does it.
    fn is_of_push(self) -> bool {
        match self {
            Self::SendWait | Self::Get | Self::Create | Self::Across | Self::Epoch | Self::Processes => true,
            Self::Send | Self::GetUnchanged | Self::Svgd => false,
        }
    }
}

struct Bench<'a> {
    arguments: &'a Arguments,
    ours: Option<Script>,
    /// PusH's program for the original, and for the face.
    push: Option<(Script, Script)>,
    rows: Rows,
}

/// Measures and reports.
pub(super) fn run(arguments: &Arguments) -> std::result::Result<(), Failure> {
    let python = arguments.python.as_deref();
    if let (None, Some(case)) = (python, arguments.case.iter().find(|case| !case.is_of_rust())) {
        let what = format!("--case {} is of Python: name one in which sheave, numpy and torch are", case.name());
        return Err(Failure::Usage(format!("{what} installed, with --python PYTHON")));
    }
    let ours = python.map(|python| Script::checked("sheave", PROGRAM, python, "--python", "sheave, numpy"));
    let push = python.zip(arguments.push.as_deref()).map(|(python, folder)| pushed(arguments, python, folder));
    let (ours, push) = (ours.transpose()?, push.transpose()?);
    let mut bench = Bench { arguments, ours, push, rows: Rows::new("particle") };
    arguments.runs.in_turn(&arguments.case, |case| bench.measure(case))?;
    bench.rows.print(arguments.runs.json)
}

/// PusH's program for the original, and for the face.
fn pushed(arguments: &Arguments, python: &Path, folder: &Path) -> std::result::Result<(Script, Script), Failure> {
    if !folder.join("push").is_dir() {
        return Err(Failure::Usage(format!("--push: {} has no folder push, PusH's package", folder.display())));
    }
    let (theirs, flag) = match arguments.push_python.as_deref() {
        Some(theirs) => (theirs, "--push-python"),
        None => (python, "--python"),
    };
    let original = Script::checked("PusH", PUSH_PROGRAM, theirs, flag, "torch")?;
    Ok((original, Script::checked("sheave", PUSH_PROGRAM, python, "--python", "sheave.compat.push, torch")?))
}

/// One thread for each process, for ours as for what stands beside it.
fn on_one_thread(command: &mut Command) -> &mut Command {
    command.envs(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"].map(|name| (name, "1")))
}

impl Bench<'_> {
    fn measure(&mut self, case: Case) -> Result<()> {
        let rounds = self.arguments.runs.rounds(case.rounds());
        if case.is_of_rust() {
            let times = measured(case, rounds)?;
            let place = Place { case: case.name(), bytes: 0, ranks: case.ranks(), at: IN_RUST, language: "rust" };
            match case.allowed(false) {
                Some(allowed) => self.rows.add_within(place, ALLOWED_RUST, allowed, &times),
                None => self.rows.add(place, &times),
            }
        }
        if self.ours.is_some() {
            self.measure_script(case, OURS, rounds)?;
            if let Some((way, _)) = case.beside() {
                self.measure_script(case, way, rounds)?;
            }
        }
        if case.is_of_push() {
            self.measure_push(case, rounds)?;
        }
        Ok(())
    }

    fn measure_script(&mut self, case: Case, way: &'static str, rounds: u32) -> Result<()> {
        let Some(script) = &self.ours else { return Ok(()) };
        let mut command = match case.launched(way) {
            None => script.command(),
            Some(processes) => script.launched(processes)?,
        };
        // One process does as many do.
        let done = if way == ONE_PROCESS { OURS } else { way };
        command.args([case.word(), done, &rounds.to_string()]);
        let measured = script.times(on_one_thread(&mut command), LIMIT)?;
        if measured.is_empty() {
            return Err(Error::new(ErrorKind::Internal, format!("the script has no times of {}", case.word())));
        }
        for (bytes, times) in measured {
            self.add(case, (bytes, way), &times);
        }
        Ok(())
    }

    /// PusH's program, with the face and with the original; if that fails its row is left out.
    fn measure_push(&mut self, case: Case, rounds: u32) -> Result<()> {
        let (Some((original, face)), Some(folder)) = (&self.push, &self.arguments.push) else { return Ok(()) };
        let rounds = rounds.to_string();
        let place = |bytes, at| Place { case: case.name(), bytes, ranks: case.ranks(), at, language: "python" };
        let mut command = face.command_after(&["-m", "sheave.compat", "push"]);
        command.args([case.name(), &rounds]);
        for (bytes, times) in face.times(on_one_thread(&mut command), LIMIT)? {
            self.rows.add_compared(place(bytes, FACE), PUSH, &times);
        }
        let mut command = original.command();
        command.args([case.name(), &rounds, "--push"]).arg(folder);
        match original.times(on_one_thread(&mut command), LIMIT) {
            Ok(measured) => measured.iter().for_each(|(bytes, times)| self.rows.add(place(*bytes, PUSH), times)),
            Err(error) => crate::say(&format!("a run of PusH is left out: {error}"), true),
        }
        Ok(())
    }

    /// Adds times of Python to the row that they belong to, and what they may be to one beside it.
    fn add(&mut self, case: Case, (bytes, way): (usize, &'static str), times_ns: &[u64]) {
        let place = Place { case: case.name(), bytes, ranks: case.ranks(), at: way, language: "python" };
        match (case.allowed(true), case.beside()) {
            _ if way != OURS => self.rows.add(place, times_ns),
            (Some(allowed), _) => self.rows.add_within(place, ALLOWED, allowed, times_ns),
            (None, Some((way, share))) => self.rows.add_beside(place, way, share, times_ns),
            (None, None) => self.rows.add(place, times_ns),
        }
    }
}

/// Nanoseconds of each round in Rust.
fn measured(case: Case, rounds: u32) -> Result<Vec<u64>> {
    let root = Endpoint { host: "127.0.0.1".to_owned(), port: port::free()? };
    let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
    let particles: Particles = Particles::new(&mesh, "bench")?;
    let make = || Behavior::new(()).on("pass", |_, message| async move { Ok(message) });
    let first = particles.create(make())?;
    let round = || match case {
        Case::Send => sent(&particles, first),
        Case::Create => created(&particles, make),
        _ => timed(|| particles.send(first, "pass", ()).wait()).map(|(took, _)| took),
    };
    for _ in 0..WARM_ROUNDS.min(rounds) {
        round()?;
    }
    let times = (0..rounds).map(|_| round()).collect::<Result<_>>()?;
    particles.stop();
    mesh.finish()?;
    Ok(times)
}

/// Returns the nanoseconds that this takes, and what it returns.
fn timed<T>(act: impl FnOnce() -> Result<T>) -> Result<(u64, T)> {
    let began = Instant::now();
    let made = act()?;
    Ok((u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX), made))
}

/// Sends without waiting; what is sent is handled outside the timer.
fn sent(particles: &Particles, to: ParticleId) -> Result<u64> {
    let send = || (0..SENT).map(|_| particles.send(to, "pass", ())).collect::<Vec<Answer>>();
    let (took, answers) = timed(|| Ok(send()))?;
    answers.iter().try_for_each(|answer| answer.wait().map(drop))?;
    Ok(took / u64::from(SENT))
}

fn created(particles: &Particles, make: impl Fn() -> Behavior) -> Result<u64> {
    let (took, ids) = timed(|| (0..SENT).map(|_| particles.create(make())).collect::<Result<Vec<ParticleId>>>())?;
    match ids.into_iter().all(|id| particles.remove(id)) {
        true => Ok(took),
        false => Err(Error::new(ErrorKind::Internal, "a particle that was created is gone")),
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
    fn the_script_does_the_same_as_often() {
        fn said<'a>(program: &'a str, name: &str) -> Option<&'a str> {
            program.split(name).nth(1).and_then(|rest| rest.lines().next())
        }
        assert_eq!(said(PROGRAM, "WARM_ROUNDS = "), Some(&*WARM_ROUNDS.to_string()));
        assert_eq!(said(PROGRAM, "CREATED = "), Some(&*SENT.to_string()));
        for name in ["WARM_ROUNDS = ", "CREATED = ", "MEMBERS = ", "LAYERS = ", "ROWS, BATCH = "] {
            assert_eq!(said(PROGRAM, name), said(PUSH_PROGRAM, name), "{name}");
        }
    }
}
