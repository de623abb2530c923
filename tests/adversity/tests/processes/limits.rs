//! Jobs with too little of something, in places that they may not write to, and beside other users.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::hosts::Host;
use super::players::{
    DEATH_BOUND, Job, PATIENCE, PROGRAM, Player, SILENCE_BOUND, all_end, all_end_well, all_name, say,
};
use super::starts::launch;
use crate::need;

/// Users that are nobody: they own nothing, and need no entry anywhere.
const NOBODY: u32 = 65_534;
const SOMEBODY: u32 = 54_321;

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// The command behind these words: a program that runs what follows.
fn behind(words: &[&str], command: &Command) -> Command {
    let mut outer = Command::new(words[0]);
    outer.args(&words[1..]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

/// The command under a limit of the shell's, such as `-n 42`.
fn limited(limit: &str, command: &Command) -> Command {
    behind(&["sh", "-c", &format!("ulimit {limit} && exec \"$@\""), "sh"], command)
}

/// A copy of the program where every user may run it.
fn public_program() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("player");
    fs::copy(PROGRAM, &program).unwrap();
    for path in [folder.path(), &program] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    (folder, program)
}

/// The command as another user, run from a copy of the program.
fn as_user(user: u32, program: &Path, command: &Command) -> Command {
    let id = user.to_string();
    let mut moved = Command::new(program);
    moved.args(command.get_args()).envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    behind(&["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"], &moved)
}

/// Ranks of one host, of which rank `special` is started by `change`.
fn ranks(host: &Host, job: &Job, size: u32, special: u32, change: impl Fn(Command) -> Command) -> Vec<Player> {
    let start = |rank: u32| {
        let command = job.rank(rank, size);
        let command = if rank == special { change(command) } else { command };
        Player::start(Some(host), &format!("rank-{rank}"), command)
    };
    (0..size).map(start).collect()
}

/// One rank that lacks something is told so itself; the others name it, and nobody is killed or held for a liar.
fn only_it_is_short(mut players: Vec<Player>, short: usize, words: &[&str]) {
    let began = Instant::now();
    all_end(&mut players, began + PATIENCE);
    for player in &players {
        say(&format!("{}: {}: {}", player.name, player.status(), player.words().replace('\n', "; ")));
    }
    if players.iter().all(|player| player.status().success()) {
        // It had enough after all.
        return;
    }
    let name = players[short].name.clone();
    let said = players[short].words();
    assert!(said.contains("error: "), "{name} ended with {} and says nothing: {said}", players[short].status());
    assert!(words.iter().any(|word| said.contains(word)), "{name} does not say what it lacks: {said}");
    for player in players.iter().filter(|player| player.name != name) {
        let words = player.words();
        assert!(player.status().code() == Some(1), "{} ended with {}: {words}", player.name, player.status());
        // Who never came is told by who did.
        let is_named = words.contains(&name) || words.contains("missing: ");
        assert!(is_named, "{} does not name {name}: {words}", player.name);
        assert!(!words.contains("impossible"), "{} accuses somebody of lies: {words}", player.name);
    }
}

/// What an error says about a limit.
const LIMITS: [&str; 4] = ["limit", "descriptor", "memory", "thread"];

#[test]
#[ignore = "adversity suite: needs root"]
fn f86_a_rank_with_few_descriptors_is_told_so_itself() {
    let host = need!(Host::alone());
    for most in [12, 24, 42, 60] {
        say(&format!("{most} descriptors"));
        let job = Job::new(host.address, "reduce", 60, 5);
        // Root may raise its own limits, and so may the program: the hard one counts.
        let players = ranks(&host, &job, 8, 3, |command| limited(&format!("-n {most}"), &command));
        only_it_is_short(players, 3, &LIMITS);
    }
}

#[test]
#[ignore = "adversity suite: needs root"]
fn f86_a_rank_with_little_address_space_is_told_so_itself() {
    let host = need!(Host::alone());
    for kib in [300_000, 600_000, 1_200_000] {
        say(&format!("{kib} KiB of address space"));
        let job = Job::new(host.address, "reduce", 60, 5);
        let players = ranks(&host, &job, 4, 2, |command| limited(&format!("-v {kib}"), &command));
        only_it_is_short(players, 2, &LIMITS);
    }
}

/// The limit counts all threads of a user, and root has none: so all run as somebody who has nothing else to run.
#[test]
#[ignore = "adversity suite: needs root"]
fn f86_a_user_with_few_threads_is_told_so() {
    let host = need!(Host::alone());
    let (_folder, program) = public_program();
    for most in [3, 5, 8, 12] {
        say(&format!("{most} threads of the user"));
        let job = Job::new(host.address, "reduce", 60, 5);
        let limit = format!("--nproc={most}:{most}");
        let players =
            ranks(&host, &job, 4, 1, |command| behind(&["prlimit", &limit], &as_user(SOMEBODY, &program, &command)));
        only_it_is_short(players, 1, &LIMITS);
    }
}

/// A control group with this limit, which is removed when it is dropped.
struct Group(PathBuf);

impl Group {
    /// Makes a group with these limits: files and values of the kernel's first or second interface.
    fn new(controller: &str, limits: &[(&str, &str)], limits_of_v2: &[(&str, &str)]) -> Result<Group, String> {
        let name = format!("sheave-adversity-{}-{controller}", std::process::id());
        let old = Path::new("/sys/fs/cgroup").join(controller);
        let (path, limits) = if old.is_dir() {
            (old.join(name), limits)
        } else {
            (Path::new("/sys/fs/cgroup").join(name), limits_of_v2)
        };
        fs::create_dir(&path).map_err(|error| format!("control groups for {controller}: {error}"))?;
        let group = Group(path);
        for (file, value) in limits {
            let written = fs::write(group.0.join(file), value);
            written.map_err(|error| format!("the control group's {file}: {error}"))?;
        }
        Ok(group)
    }

    /// The command in this group.
    fn holds(&self, command: &Command) -> Command {
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.0.display());
        behind(&["sh", "-c", &script, "sh"], command)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel takes a moment to see that the last process has ended.
        super::players::until(soon(), || fs::remove_dir(&self.0).is_ok());
    }
}

/// The kernel kills a rank that needs more memory than its group has; the others name it in time.
#[test]
#[ignore = "adversity suite: needs root"]
fn a_rank_that_the_kernel_kills_for_its_memory_is_named() {
    let host = need!(Host::alone());
    let bytes = (6 << 20).to_string();
    let group = need!(Group::new("memory", &[("memory.limit_in_bytes", &bytes)], &[("memory.max", &bytes)]));
    let job = Job::new(host.address, "reduce", 3000, 5);
    let mut players = ranks(&host, &job, 4, 2, |command| group.holds(&command));
    let is_killed = super::players::until(soon(), || players[2].has_ended());
    if !is_killed {
        // It had enough: the limit is a guess at what a rank needs.
        say("skipped: 6 MiB are enough for a rank");
        return;
    }
    let died = players[2].ended();
    let killed = players.remove(2);
    say(&format!("rank-2: {}: {}", killed.status(), killed.words()));
    all_name(&mut players, &["rank-2"], died, DEATH_BOUND);
}

/// A twentieth of a core for all: everything takes long, and nobody is dead.
#[test]
#[ignore = "adversity suite: needs root"]
fn a_job_with_little_of_a_core_ends_well() {
    let host = need!(Host::alone());
    let old = [("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "10000")];
    let group = need!(Group::new("cpu", &old, &[("cpu.max", "10000 100000")]));
    let job = Job::new(host.address, "reduce", 30, 0);
    let start = |rank: u32| Player::start(Some(&host), &format!("rank-{rank}"), group.holds(&job.rank(rank, 3)));
    all_end_well(&mut (0..3).map(start).collect::<Vec<_>>(), soon());
}

/// A container's filter that denies a call to one rank: the job ends well by other means, or the rank says what is
/// denied.
fn denied(call: &'static str) {
    let host = need!(Host::alone());
    let job = Job::new(host.address, "reduce", 60, 5).env("SHEAVE_JOIN_TIMEOUT_MS", "8000");
    let players = ranks(&host, &job, 4, 1, |command| {
        let mut denied = behind(&[PROGRAM, "deny", call], &Command::new("play"));
        denied.args(command.get_args().skip(1)).envs(command.get_envs().filter_map(|(n, v)| Some((n, v?))));
        denied
    });
    only_it_is_short(players, 1, &["not permitted", "EPERM", "denied", call]);
}

macro_rules! denied_calls {
    ($($name:ident: $call:literal;)*) => {
        $(
            #[test]
            #[ignore = "adversity suite: needs root"]
            fn $name() {
                denied($call);
            }
        )*
    };
}

denied_calls! {
    a_rank_without_memfd_create_says_so_or_does_without: "memfd_create";
    a_rank_without_pidfd_open_says_so_or_does_without: "pidfd_open";
    a_rank_without_eventfd_says_so_or_does_without: "eventfd2";
    a_rank_without_sched_setaffinity_says_so_or_does_without: "sched_setaffinity";
    a_rank_without_fallocate_says_so_or_does_without: "fallocate";
    a_rank_without_madvise_says_so_or_does_without: "madvise";
}

/// A launcher that may not make a system call says so or does without, and leaves nothing behind.
#[test]
#[ignore = "adversity suite: needs root"]
fn a_launcher_that_may_not_make_a_system_call_says_so_or_does_without() {
    for call in ["memfd_create", "pidfd_open", "pidfd_send_signal", "signalfd4", "eventfd2"] {
        let mut command = Command::new(PROGRAM);
        command.args(["deny", call, "launch", "-n", "2", "--", PROGRAM, "play", "reduce", "30", "5"]);
        let mut players = [Player::start(None, "launch", command)];
        all_end(&mut players, soon());
        let (status, words) = (players[0].status(), players[0].words());
        say(&format!("{call}: {status}: {}", words.replace('\n', "; ")));
        let is_told = ["not permitted", "EPERM", "denied", call].iter().any(|word| words.contains(word));
        assert!(status.success() || is_told, "without {call}: {status}: {words}");
    }
}

/// Nothing can be written at home, in the folder for temporary files, nor in that of the session.
#[test]
#[ignore = "adversity suite: needs root"]
fn places_that_cannot_be_written_to_are_not_needed() {
    for (play, arguments) in [("reduce 60 5", &["-n", "3"][..]), ("store 30 5", &["-n", "2", "-s", "1"])] {
        let mut command = Command::new(PROGRAM);
        command.arg("launch").args(arguments).args(["--", PROGRAM, "play"]).args(play.split(' '));
        // Not even root makes files there.
        for name in ["HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"] {
            command.env(name, "/proc");
        }
        command.current_dir("/proc");
        all_end_well(&mut [Player::start(None, "launch", command)], soon());
    }
}

/// The secret of a user who has no place to keep it is asked for by name.
#[test]
#[ignore = "adversity suite: needs root"]
fn a_user_without_a_home_is_told_how_to_bring_a_secret() {
    let host = need!(Host::alone());
    let (_folder, program) = public_program();
    let mut command = Command::new(&program);
    command.args(["play", "reduce", "3", "1"]).env("SHEAVE_ROLE", "rank").env("SHEAVE_RANK", "0");
    command.env("SHEAVE_WORLD_SIZE", "2").env("SHEAVE_ROOT", "127.0.0.1:17017").env("SHEAVE_JOIN_TIMEOUT_MS", "2000");
    for name in ["HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"] {
        command.env(name, "/proc");
    }
    let began = Instant::now();
    let mut players = [Player::start(Some(&host), "rank-0", as_user(NOBODY, &program, &command))];
    all_name(&mut players, &["SHEAVE_SECRET"], began, Duration::from_secs(10));
}

/// Users of one job do not share memory, and need not.
#[test]
#[ignore = "adversity suite: needs root"]
fn ranks_of_several_users_end_well() {
    let host = need!(Host::alone());
    let (_folder, program) = public_program();
    let job = Job::new(host.address, "reduce", 60, 5);
    let users = [NOBODY, SOMEBODY, 0];
    let start = |rank: u32| {
        let command = as_user(users[rank as usize], &program, &job.rank(rank, 3));
        Player::start(Some(&host), &format!("rank-{rank}"), command)
    };
    all_end_well(&mut (0..3).map(start).collect::<Vec<_>>(), soon());
}

/// Somebody without the secret does not get in, learns so, and costs the job nothing.
#[test]
#[ignore = "adversity suite: needs root"]
fn a_stranger_is_refused_and_costs_nothing() {
    let host = need!(Host::alone());
    let (_folder, program) = public_program();
    let (job, strange) = (Job::new(host.address, "reduce", 60, 5), Job::new(host.address, "reduce", 60, 5));
    let strange = strange.env("SHEAVE_JOIN_TIMEOUT_MS", "4000");
    let began = Instant::now();
    let first = Player::start(Some(&host), "rank-0", job.rank(0, 2));
    let mut strangers: Vec<Player> = (0..3)
        .map(|_| Player::start(Some(&host), "stranger", as_user(NOBODY, &program, &strange.rank(1, 2))))
        .collect();
    all_name(&mut strangers, &["secret"], began, SILENCE_BOUND);
    let second = Player::start(Some(&host), "rank-1", job.rank(1, 2));
    all_end_well(&mut [first, second], soon());
}

/// Two jobs of two users on one host know nothing of each other.
#[test]
#[ignore = "adversity suite: needs root"]
fn jobs_of_two_users_do_not_meet() {
    let host = need!(Host::alone());
    let (_folder, program) = public_program();
    let one = launch(Some(&host), &["-n", "2"], "reduce 100 5");
    let mut command = Command::new(&program);
    command.args(["launch", "-n", "2", "--"]).arg(&program).args(["play", "reduce", "100", "5"]);
    let other = Player::start(Some(&host), "launch of another", as_user(SOMEBODY, &program, &command));
    all_end_well(&mut [one, other], soon());
}

/// A rank that is killed is named by all, in every model.
#[test]
#[ignore = "adversity suite: needs root"]
fn a_killed_rank_is_named_in_time() {
    let host = need!(Host::alone());
    let job = Job::new(host.address, "reduce", 3000, 5);
    let mut players = ranks(&host, &job, 4, 0, |command| command);
    players.iter().for_each(|player| player.wait_joined(1));
    players[3].signal(Signal::KILL);
    let died = Instant::now();
    players.truncate(3);
    all_name(&mut players, &["rank-3"], died, DEATH_BOUND);
}
