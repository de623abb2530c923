//! Who is named, and with which code, when one process of a job ends before its time: the one that ended first, however
//! it ended, and never one of those who failed because of that.

use crate::common::{finish, text};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Every way to end that the program knows, with the code of a job that ended so. An end with 0 is a failure only for
/// the others, who are left with 1.
const WAYS: [(&str, i32); 9] = [
    ("error", 1),
    ("panic", 101),
    ("exit-3", 3),
    ("_exit-3", 3),
    ("abort", 134),
    ("sigkill", 137),
    ("sigsegv", 139),
    ("sigterm", 143),
    ("exit-0", 1),
];

const MOMENTS: [&str; 3] = ["before", "in", "after"];

/// Who ends, in a job of how many workers and servers.
const ROLES: [(&str, &str, &str); 3] = [("rank-1", "3", "0"), ("worker-1", "2", "2"), ("server-0", "2", "2")];

fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(|folder| folder.parent()).unwrap().join("examples/endings")
}

fn launch(workers: &str, servers: &str, arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sheave"));
    command.args(["launch", "-n", workers, "-s", servers, "--"]).arg(program()).args(arguments);
    command.env("SHEAVE_TEST_MARK", folder.path().join("mark"));
    finish(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// The first failure is named with its code and its last words, and the code is the job's.
fn check(who: &str, workers: &str, servers: &str, (how, code): (&str, i32), moment: &str) -> Result<(), String> {
    let begun = Instant::now();
    let output = launch(workers, servers, &[who, how, moment]);
    let told = text(&output.stderr);
    let verdict: Vec<&str> = told.lines().skip_while(|line| !line.starts_with("sheave: ")).collect();
    let names = verdict.first().is_some_and(|line| line.starts_with(&format!("sheave: {who} (pid ")));
    let quotes = verdict.iter().any(|line| line.starts_with("  ") && line.contains(&format!("{who} ends by {how}")));
    if output.status.code() == Some(code) && names && quotes && begun.elapsed() < Duration::from_secs(10) {
        return Ok(());
    }
    Err(format!("{who} {how} {moment}: {:?} after {:?}\n{told}", output.status.code(), begun.elapsed()))
}

fn check_all(times: usize, picks: impl Fn(&str, &str, &str) -> bool) {
    let mut wrong = Vec::new();
    for (who, workers, servers) in ROLES {
        for way in WAYS {
            for moment in MOMENTS.into_iter().filter(|moment| picks(who, way.0, moment)) {
                for _ in 0..times {
                    wrong.extend(check(who, workers, servers, way, moment).err());
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn f52_f66_whoever_ends_first_is_named_among_ranks() {
    check_all(1, |who, _, _| who == "rank-1");
}

#[test]
fn f52_f66_whoever_ends_first_is_named_among_workers() {
    check_all(1, |who, _, _| who == "worker-1");
}

#[test]
fn f52_f66_whoever_ends_first_is_named_among_servers() {
    check_all(1, |who, _, _| who == "server-0");
}

macro_rules! each_time {
    ($($name:ident: $who:literal $moment:literal;)+) => {
        $(
            #[test]
            #[ignore = "soak suite: 180 jobs take half a minute"]
            fn $name() {
                check_all(20, |who, _, moment| (who, moment) == ($who, $moment));
            }
        )+
    };
}

each_time! {
    f52_f66_each_time_among_ranks_before_an_operation: "rank-1" "before";
    f52_f66_each_time_among_ranks_in_an_operation: "rank-1" "in";
    f52_f66_each_time_among_ranks_after_an_operation: "rank-1" "after";
    f52_f66_each_time_among_workers_before_an_operation: "worker-1" "before";
    f52_f66_each_time_among_workers_in_an_operation: "worker-1" "in";
    f52_f66_each_time_among_workers_after_an_operation: "worker-1" "after";
    f52_f66_each_time_among_servers_before_an_operation: "server-0" "before";
    f52_f66_each_time_among_servers_in_an_operation: "server-0" "in";
    f52_f66_each_time_among_servers_after_an_operation: "server-0" "after";
}

#[test]
fn a_job_whose_processes_all_end_well_says_nothing() {
    for (workers, servers) in [("3", "0"), ("2", "2")] {
        let output = launch(workers, servers, &[]);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{workers} {servers}");
    }
}
