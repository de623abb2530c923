//! Programs of others beside us: OpenMPI's, compiled on the spot from what this binary carries, and what all have in
//! common.

use super::Effort;
use sheave_base::{Error, ErrorKind, Result};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = include_str!("ping_pong.c");

/// Time for starting two ranks and ending them, on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How OpenMPI carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerTransport {
    Shm,
    Tcp,
}

impl PeerTransport {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Shm => "openmpi-shm",
            Self::Tcp => "openmpi-tcp",
        }
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            // Its own choice on one host.
            Self::Shm => &[],
            Self::Tcp => &["--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"],
        }
    }
}

/// The compiled program; its folder goes with it.
pub(super) struct Peer {
    folder: tempfile::TempDir,
    pin: bool,
}

impl Peer {
    /// Compiles the program; `None` when OpenMPI is not installed.
    pub(super) fn build(pin: bool) -> Result<Option<Self>> {
        Self::compile(PROGRAM, pin)
    }

    /// As [`Peer::build`], for another program.
    pub(super) fn of(program: &str, pin: bool) -> Result<Option<Self>> {
        Self::compile(program, pin)
    }

    fn compile(program: &str, pin: bool) -> Result<Option<Self>> {
        if !is_installed("mpirun") {
            return Ok(None);
        }
        let folder = tempfile::tempdir().map_err(|error| Error::from(error).context("making a temporary folder"))?;
        let source = folder.path().join("program.c");
        std::fs::write(&source, program).map_err(|error| Error::from(error).context("writing openmpi's program"))?;
        let peer = Self { folder, pin };
        let compiler = Command::new("mpicc").arg("-O3").arg(&source).arg("-o").arg(peer.program()).output();
        match compiler {
            Ok(output) if output.status.success() => Ok(Some(peer)),
            Ok(output) => {
                let what = String::from_utf8_lossy(&output.stderr);
                let first = what.lines().next().unwrap_or_default();
                Err(Error::new(ErrorKind::Io, format!("mpicc failed ({}): {first}", output.status)))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::from(error).context("running mpicc")),
        }
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("program")
    }

    /// Runs the ping-pong over these sizes and iterations. Returns nanoseconds of every round trip per size.
    pub(super) fn run(
        &self,
        transport: PeerTransport,
        sizes: &[(usize, usize)],
        effort: Effort,
    ) -> Result<Vec<(usize, Vec<u64>)>> {
        let limit = START_TIMEOUT + effort.budget * 4 * u32::try_from(sizes.len()).unwrap_or(u32::MAX);
        let mut arguments = vec![effort.budget.as_micros().to_string()];
        arguments.extend(sizes.iter().map(|(bytes, iterations)| format!("{bytes}:{iterations}")));
        self.run_among(2, transport, &arguments, limit)
    }

    /// Runs the program among so many ranks, for at most `limit`. Returns the lines of numbers that it prints.
    pub(super) fn run_among(
        &self,
        ranks: u32,
        transport: PeerTransport,
        arguments: &[String],
        limit: Duration,
    ) -> Result<Vec<(usize, Vec<u64>)>> {
        let mut command = self.command(ranks, transport);
        command.args(arguments);
        // It refuses root otherwise, and containers often know nobody else.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        end_with_us(&mut command);
        let child = command.spawn().map_err(|error| Error::from(error).context("starting mpirun"))?;
        output_of("mpirun", child, limit)?.lines().map(parse).collect()
    }

    fn command(&self, ranks: u32, transport: PeerTransport) -> Command {
        let mut command = Command::new("mpirun");
        let binding = if self.pin { "core:overload-allowed" } else { "none" };
        command.args(["-np", &ranks.to_string(), "--oversubscribe", "--bind-to", binding]);
        command.args(transport.options()).arg(self.program());
        command
    }
}

/// The peer that was built; if there is none, people are told why.
pub(super) fn if_there(built: Result<Option<Peer>>) -> Option<Peer> {
    match built {
        Ok(Some(peer)) => Some(peer),
        Ok(None) => {
            crate::say("openmpi is not installed (no mpicc and mpirun): its column stays empty", true);
            None
        }
        Err(error) => {
            crate::say(&format!("openmpi is left out: {error}"), true);
            None
        }
    }
}

fn is_installed(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// Asks the kernel to end the program when this thread ends, however it does.
pub(super) fn end_with_us(command: &mut Command) {
    let ask = || {
        // It ends its own children when it is terminated in order.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes one system call and touches no memory of the parent's.
    unsafe { command.pre_exec(ask) };
}

/// What a program prints, once it has ended well; after `limit` it is terminated.
pub(super) fn output_of(name: &str, mut child: Child, limit: Duration) -> Result<String> {
    let read = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = String::new();
            // What cannot be read is missing from the text, and that is noticed.
            let _ = pipe.map(|mut pipe| pipe.read_to_string(&mut text));
            text
        })
    };
    let output = read(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let complaint = read(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    let until = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= until {
            terminate(&mut child);
            let what = format!("{name} did not end within {} s", limit.as_secs());
            return Err(Error::new(ErrorKind::DeadlineExceeded, what));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let complaint = complaint.join().unwrap_or_default();
    if !status.success() {
        return Err(Error::new(ErrorKind::Io, format!("{name} failed ({status}): {}", essence(&complaint))));
    }
    Ok(output.join().unwrap_or_default())
}

/// The line of a complaint that says most: the first one with words, or the last one of a Python's traceback.
fn essence(complaint: &str) -> &str {
    let mut lines = complaint.lines().map(str::trim).filter(|line| line.contains(char::is_alphabetic));
    let first = lines.next().unwrap_or_default();
    if first.starts_with("Traceback") { lines.next_back().unwrap_or(first) } else { first }
}

/// Lets the program end its own children; kills it if it does not within a second.
fn terminate(child: &mut Child) {
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        // It has not been waited for, so the number is still its own.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until {
        if matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Reads a line of numbers: bytes, then nanoseconds.
pub(super) fn parse(line: &str) -> Result<(usize, Vec<u64>)> {
    let strange = || Error::new(ErrorKind::Protocol, "a peer's program printed something else than numbers");
    let mut numbers = line.split_ascii_whitespace();
    let bytes = numbers.next().and_then(|bytes| bytes.parse().ok()).ok_or_else(strange)?;
    let times = numbers.map(str::parse).collect::<std::result::Result<Vec<u64>, _>>().map_err(|_| strange())?;
    Ok((bytes, times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_numbers_are_read_and_others_refused() {
        assert_eq!(parse("8 100 200").unwrap(), (8, vec![100, 200]));
        assert!(parse("").is_err());
        assert!(parse("8 100 fast").is_err());
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let mut command = Command::new("sleep");
        command.arg("60").stdout(Stdio::piped()).stderr(Stdio::piped());
        end_with_us(&mut command);
        let begun = Instant::now();
        let error = output_of("a program", command.spawn().unwrap(), Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        assert!(begun.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_complaint_is_quoted_by_its_best_line() {
        assert_eq!(essence("-----\n no such network\nmore"), "no such network");
        assert_eq!(
            essence("Traceback (most recent call last):\n  File\nImportError: no torch\n"),
            "ImportError: no torch"
        );
        assert_eq!(essence(""), "");
    }

    #[test]
    fn a_program_that_fails_is_quoted() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such network >&2; exit 3"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let error = output_of("a program", command.spawn().unwrap(), Duration::from_secs(20)).unwrap_err();
        assert!(error.to_string().contains("no such network"), "{error}");
    }
}
