//! A program as one process of a job.

use sheave_base::config::Endpoint;
use sheave_base::{ErrorKind, Result, port};
use sheave_mesh::{Config, Expected, Mesh, Role};
use std::net::Ipv4Addr;
use std::process::ExitCode;

/// Exit status of a program that was started with settings that make no sense.
const BAD_INPUT: u8 = 2;

/// Runs `act` as one process of the job that the environment describes, in whatever way its launcher has written it
/// (`SHEAVE_*`, `DMLC_*`, torchrun's, MPI's or Slurm's); a program that nobody has launched is a job of its own. Blocks
/// until all members have joined, and returns what `main` is to return.
///
/// If `act` is fine this node leaves in order, unless it has left already, and the status is 0. If `act` fails the
/// error is printed on standard error, the other members are told of it at once, and the status is 1. If it panics the
/// others are told that this node has failed. Settings that make no sense are an error of status 2.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     sheave::run(|mesh| {
///         println!("{} is here", mesh.name());
///         mesh.world().barrier()
///     })
/// }
/// ```
#[must_use = "it is the exit status of the program"]
pub fn run(act: impl FnOnce(&Mesh) -> Result<()>) -> ExitCode {
    match environment() {
        Ok(config) => run_with(config, act),
        Err(error) => ended(Err(error)),
    }
}

/// As [`run`], with a config of the program's own.
#[must_use = "it is the exit status of the program"]
pub fn run_with(config: Config, act: impl FnOnce(&Mesh) -> Result<()>) -> ExitCode {
    ended(Mesh::join(config).and_then(|mesh| acted(&mesh, act)))
}

/// What the environment says, or a job of this process alone.
fn environment() -> Result<Config> {
    let is_set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    // One process needs no place to meet, wherever a job around it meets.
    let is_alone = is_set("SHEAVE_WORLD_SIZE").is_some_and(|size| size == "1") && is_set("SHEAVE_ROOT").is_none();
    if let Some(config) = if is_alone { None } else { Config::from_env()? } {
        return Ok(config);
    }
    let port = port::free().map_err(|error| error.operation("finding a free port"))?;
    let root = Endpoint { host: Ipv4Addr::LOCALHOST.to_string(), port };
    Ok(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))
}

fn acted(mesh: &Mesh, act: impl FnOnce(&Mesh) -> Result<()>) -> Result<()> {
    let outcome = act(mesh);
    match &outcome {
        Ok(()) if mesh.is_member() => mesh.leave(),
        Ok(()) => Ok(()),
        Err(error) => {
            mesh.fail(&error.to_string());
            outcome
        }
    }
}

#[expect(clippy::print_stderr, reason = "a program's last word is for its user")]
fn ended(outcome: Result<()>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    let is_input = error.kind() == ErrorKind::InvalidArgument && error.operation_name().is_none();
    if is_input { ExitCode::from(BAD_INPUT) } else { ExitCode::FAILURE }
}
