//! The processes of a job, and what is asked of each: that it ends in time, well or with an error that names somebody.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::hosts::Host;

/// The time in which an undisturbed job of a few seconds ends on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How long a member may be silent, as jobs have it by default.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time between two signs of life.
pub(crate) const BEAT: Duration = Duration::from_secs(1);

/// The time from the end of all signs of life to the last error: the silence that is borne, a beat in which the last
/// sign may have come and one until somebody looks, and the second within which all know of a death.
pub(crate) const SILENCE_BOUND: Duration = Duration::from_secs(TIMEOUT.as_secs() + 2 * BEAT.as_secs() + 1);

/// The time from the end of all signs of life to the last error of a minority, which gives up when no new epoch has
/// come within five timeouts of its first suspicion.
pub(crate) const MINORITY_BOUND: Duration = Duration::from_secs(SILENCE_BOUND.as_secs() + 5 * TIMEOUT.as_secs());

/// The time from the death of a process to the last error: the second of the contract, and one for a machine of few
/// cores on which every process of the job ends at once.
pub(crate) const DEATH_BOUND: Duration = Duration::from_secs(2);

pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// The program that plays, and is `sheave` too.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_player");

/// A process that is gone, with its process group, when this is dropped.
pub(crate) struct Player {
    pub(crate) name: String,
    child: Child,
    words: Arc<Mutex<Vec<String>>>,
    joined: Receiver<()>,
    status: Option<(ExitStatus, Instant)>,
}

impl Player {
    /// Starts the command on this host, without the variables of whoever runs the tests.
    pub(crate) fn start(host: Option<&Host>, name: &str, mut command: Command) -> Player {
        let inherited = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
        let ours = |name: &String| ["SHEAVE_", "DMLC_"].iter().any(|start| name.starts_with(start));
        let set: Vec<_> = command.get_envs().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
        for name in inherited.filter(ours).filter(|name| !set.contains(name)) {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = match host {
            Some(host) => host.run(move || command.spawn()),
            None => command.spawn(),
        }
        .unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
        let words = Arc::new(Mutex::new(Vec::new()));
        let (sender, joined) = channel();
        let outputs: [Box<dyn std::io::Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for output in outputs {
            let (words, sender) = (Arc::clone(&words), sender.clone());
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if line.ends_with("joined") {
                        let _ = sender.send(());
                    }
                    words.lock().unwrap().push(line);
                }
            });
        }
        Player { name: name.to_owned(), child, words, joined, status: None }
    }

    /// Everything that it has said so far.
    pub(crate) fn words(&self) -> String {
        self.words.lock().unwrap().join("\n")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until so many processes of this player have become members of their job.
    pub(crate) fn wait_joined(&self, count: usize) {
        for _ in 0..count {
            let joined = self.joined.recv_timeout(PATIENCE);
            assert!(joined.is_ok(), "{} does not join: {}", self.name, self.words());
        }
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().unwrap().map(|status| (status, Instant::now()));
        }
        self.status.is_some()
    }

    /// How it ended; it has.
    pub(crate) fn status(&self) -> ExitStatus {
        self.status.expect("it has ended").0
    }

    /// When it ended; it has.
    pub(crate) fn ended(&self) -> Instant {
        self.status.expect("it has ended").1
    }

    /// Sends a signal to it alone.
    pub(crate) fn signal(&self, signal: Signal) {
        signal_to(self.pid(), signal);
    }

    /// What the kernel says that it waits for, for the report of a hang.
    fn where_it_is(&self) -> String {
        let mut text = String::new();
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{}/task", self.pid())) else { return text };
        for task in tasks.filter_map(Result::ok) {
            let read = |what: &str| std::fs::read_to_string(task.path().join(what)).unwrap_or_default();
            text += &format!("  {} in {}\n", read("comm").trim(), read("wchan").trim());
        }
        text
    }
}

/// Sends a signal to a process; one that is gone already is as good.
pub(crate) fn signal_to(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        if self.status.is_none() {
            if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
            let _ = self.child.wait();
        }
    }
}

/// Waits until `is_so`; false at the deadline.
pub(crate) fn until(deadline: Instant, mut is_so: impl FnMut() -> bool) -> bool {
    while !is_so() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Waits until all have ended. One that has not at the deadline hangs, and that is said of it.
pub(crate) fn all_end(players: &mut [Player], deadline: Instant) {
    let ended =
        until(deadline, || players.iter_mut().filter_map(|player| (!player.has_ended()).then_some(())).count() == 0);
    if ended {
        // What they said last is still to be read.
        until(Instant::now() + Duration::from_millis(50), || false);
        return;
    }
    let mut report = String::new();
    for player in players.iter_mut() {
        let how = if player.has_ended() { player.status().to_string() } else { "HANGS".to_owned() };
        report += &format!("{}: {how}\n{}\n", player.name, player.words());
        if !player.has_ended() {
            report += &player.where_it_is();
        }
    }
    panic!("not all have ended in time:\n{report}");
}

/// Waits until all have ended, and well.
pub(crate) fn all_end_well(players: &mut [Player], deadline: Instant) {
    all_end(players, deadline);
    let report: Vec<String> =
        players.iter().map(|it| format!("{}: {}\n{}", it.name, it.status(), it.words())).collect();
    assert!(players.iter().all(|player| player.status().success()), "not all ended well:\n{}", report.join("\n"));
    players.iter().for_each(|player| say(&format!("{}: {}", player.name, player.words().replace('\n', "; "))));
}

/// Waits until all have ended, each with an error that names one of the culprits, within `bound` of the trouble.
pub(crate) fn all_name(players: &mut [Player], culprits: &[&str], trouble: Instant, bound: Duration) {
    all_end(players, trouble + bound);
    for player in players.iter() {
        let (words, status) = (player.words(), player.status());
        let took = player.ended().saturating_duration_since(trouble);
        say(&format!("{} after {took:.1?}: {status}: {}", player.name, words.replace('\n', "; ")));
        assert!(!status.success(), "{} ended well: {words}", player.name);
        assert!(status.signal().is_none(), "{} was killed by a signal: {status}: {words}", player.name);
        let is_named = culprits.iter().any(|culprit| words.contains(culprit));
        assert!(words.contains("error: ") && is_named, "{} names none of {culprits:?}: {words}", player.name);
    }
}

/// A job without a launcher: each of its processes is told its place, as people do on several hosts.
pub(crate) struct Job {
    pub(crate) root: String,
    pub(crate) secret: String,
    variables: Vec<(String, String)>,
    kind: [String; 3],
}

impl Job {
    pub(crate) fn new(root: Ipv4Addr, kind: &str, steps: usize, pause_ms: u64) -> Job {
        let mut secret = [0; 16];
        std::io::Read::read_exact(&mut File::open("/dev/urandom").unwrap(), &mut secret).unwrap();
        Job {
            root: format!("{root}:17017"),
            secret: secret.map(|byte| format!("{byte:02x}")).concat(),
            variables: Vec::new(),
            kind: [kind.to_owned(), steps.to_string(), pause_ms.to_string()],
        }
    }

    /// A variable of all processes.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Job {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    fn command(&self, role: &str) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("play").args(&self.kind).env("SHEAVE_ROLE", role);
        command.env("SHEAVE_ROOT", &self.root).env("SHEAVE_SECRET", &self.secret);
        // So that a join that fails has ended before the patience with a job has.
        command.env("SHEAVE_JOIN_TIMEOUT_MS", "20000");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// One of `size` plain ranks.
    pub(crate) fn rank(&self, rank: u32, size: u32) -> Command {
        let mut command = self.command("rank");
        command.env("SHEAVE_RANK", rank.to_string()).env("SHEAVE_WORLD_SIZE", size.to_string());
        command
    }

    /// One process of a job with servers and workers, by its name: `scheduler`, `server-0`, `worker-1`.
    pub(crate) fn part(&self, name: &str, servers: u32, workers: u32) -> Command {
        let (role, rank) = name.split_once('-').unwrap_or((name, ""));
        let mut command = self.command(role);
        command.env("SHEAVE_SERVERS", servers.to_string()).env("SHEAVE_WORKERS", workers.to_string());
        if !rank.is_empty() {
            command.env("SHEAVE_RANK", rank);
        }
        command
    }
}
