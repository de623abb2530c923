//! Jobs that are started, stopped, continued and killed as a whole, and what is left of them.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::hosts::Host;
use super::players::{DEATH_BOUND, PATIENCE, PROGRAM, Player, all_end, all_end_well, say, signal_to, until};
use crate::need;

/// `sheave launch` with these arguments, of a job that takes steps of this kind.
pub(crate) fn launch(host: Option<&Host>, arguments: &[&str], play: &str) -> Player {
    let mut command = Command::new(PROGRAM);
    command.arg("launch").args(arguments).args(["--", PROGRAM, "play"]).args(play.split(' '));
    Player::start(host, "launch", command)
}

/// The processes that descend from this one.
pub(crate) fn descendants(of: u32) -> Vec<u32> {
    let pids =
        || std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let parent = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
    };
    let pairs: Vec<(u32, u32)> = pids().filter_map(|pid: u32| Some((pid, parent(pid)?))).collect();
    let mut found = vec![of];
    let mut at = 0;
    while at < found.len() {
        let above = found[at];
        found.extend(pairs.iter().filter(|(_, parent)| *parent == above).map(|(pid, _)| *pid));
        at += 1;
    }
    found.split_off(1)
}

fn is_there(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}/exe")).exists()
}

/// The files in the places where shared memory and sockets of programs lie.
fn files() -> BTreeSet<String> {
    let folders = ["/dev/shm", "/tmp", "/run"];
    let entries = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let names = entries.filter_map(|entry| Some(entry.ok()?.path().to_string_lossy().into_owned()));
    names.filter(|name| name.contains("sheave") || name.starts_with("/dev/shm")).collect()
}

const PLAYS: [(&str, &[&str]); 3] = [
    ("reduce 3000 10", &["-n", "3"]),
    ("store 3000 10", &["-n", "2", "-s", "2"]),
    ("exchange 3000 10", &["-n", "2", "-s", "1"]),
];

/// All processes of a job are stopped for longer than a member may be silent, as by a suspended machine, and continued.
#[test]
#[ignore = "adversity suite: takes half a minute"]
fn a_job_that_is_stopped_as_a_whole_goes_on() {
    for (play, arguments) in PLAYS {
        let kind = play.split(' ').next().unwrap();
        // Short pauses, so that the stop finds some in the middle of a step.
        let launcher = launch(None, arguments, &format!("{kind} 600 2"));
        let number = |at: usize| arguments.get(at).map_or(0, |it| it.parse::<usize>().unwrap());
        let count = number(1) + number(3) + usize::from(number(3) > 0);
        launcher.wait_joined(count);
        until(Instant::now() + Duration::from_millis(300), || false);
        let all = descendants(launcher.pid());
        assert!(all.len() >= count, "{kind}: {} processes of {count}: {}", all.len(), launcher.words());
        all.iter().chain([&launcher.pid()]).for_each(|pid| signal_to(*pid, Signal::STOP));
        until(Instant::now() + Duration::from_secs(20), || false);
        all.iter().chain([&launcher.pid()]).for_each(|pid| signal_to(*pid, Signal::CONT));
        let mut players = [launcher];
        say(kind);
        all_end_well(&mut players, Instant::now() + PATIENCE);
    }
}

/// A launcher that is killed takes its job along: no process, no file and no port is left, a hundred times.
#[test]
#[ignore = "adversity suite: takes a minute"]
fn a_killed_launcher_leaves_nothing_a_hundred_times() {
    let host = need!(Host::alone());
    let before = files();
    let mut longest = Duration::ZERO;
    for cycle in 0..100 {
        let (play, arguments) = PLAYS[cycle % PLAYS.len()];
        let launcher = launch(Some(&host), arguments, play);
        // In the join, right after it, and in the middle of the steps.
        match cycle / PLAYS.len() % 3 {
            0 => drop(until(Instant::now() + Duration::from_millis(2 * cycle as u64), || false)),
            1 => launcher.wait_joined(1),
            _ => {
                launcher.wait_joined(3);
                until(Instant::now() + Duration::from_millis(cycle as u64), || false);
            }
        }
        let all = descendants(launcher.pid());
        assert!(
            all.len() >= 2 || (cycle / PLAYS.len()).is_multiple_of(3),
            "cycle {cycle} of {play}: nobody is there to be left"
        );
        launcher.signal(Signal::KILL);
        let killed = Instant::now();
        let mut players = [launcher];
        all_end(&mut players, killed + PATIENCE);
        let left = || all.iter().copied().filter(|pid| is_there(*pid)).collect::<Vec<_>>();
        let is_gone = until(killed + DEATH_BOUND, || left().is_empty());
        assert!(is_gone, "cycle {cycle} of {play}: processes {:?} are left after {DEATH_BOUND:?}", left());
        longest = longest.max(killed.elapsed());
        let is_free = until(killed + DEATH_BOUND, || host.listening().is_empty());
        assert!(is_free, "cycle {cycle} of {play}: somebody listens on {:?}", host.listening());
    }
    let after = files();
    let left: Vec<&String> = after.difference(&before).collect();
    assert!(left.is_empty(), "files are left: {left:?}");
    say(&format!("at most {longest:.2?} from the kill to the end of the last process"));
}
