//! `sheave launch` as users run it: the real binary, real processes, real signals.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest time for one run, on a machine that does something else too.
const LIMIT: Duration = Duration::from_secs(60);

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sheave"));
    command.arg("launch").args(arguments);
    let told =
        |name: &std::ffi::OsStr| ["SHEAVE_", "DMLC_"].iter().any(|start| name.to_string_lossy().starts_with(start));
    for (name, _) in std::env::vars_os().filter(|(name, _)| told(name)) {
        command.env_remove(name);
    }
    command.env("DMLC_ROLE", "stale");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until `is_so`; false after the limit.
fn wait_until(mut is_so: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > LIMIT {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// What is printed here fits into a pipe, so nobody waits for a reader.
fn finish(mut child: Child) -> Output {
    if !wait_until(|| child.try_wait().unwrap().is_some()) {
        child.kill().unwrap();
        panic!("it did not end: {:?}", child.wait_with_output());
    }
    child.wait_with_output().unwrap()
}

fn launch(arguments: &[&str]) -> Output {
    finish(start(arguments))
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A number of seconds that nobody else sleeps, so that processes can be found by it; about a minute, so that even what
/// a failed test leaves behind ends.
fn new_tag() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("61.{:07}{:03}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// How many processes sleep for `tag` seconds.
fn sleepers(tag: &str) -> usize {
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let line = |pid: String| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let sleeps = |line: &Vec<u8>| line == format!("sleep\0{tag}\0").as_bytes();
    pids.filter(|pid| pid.parse::<u32>().is_ok()).map(line).filter(sleeps).count()
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn when_all_do_well_the_exit_code_is_0_and_the_servers_are_ended() {
    let tag = new_tag();
    let script = format!("[ $SHEAVE_ROLE = worker ] || exec sleep {tag}; echo out of $SHEAVE_NAME; echo err >&2");
    let output = launch(&["-n", "2", "-s", "2", "--drain-timeout-ms", "0", "--", "sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let mut lines: Vec<&str> = text(&output.stdout).lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["worker-0 | out of worker-0", "worker-1 | out of worker-1"]);
    let mut lines: Vec<&str> = text(&output.stderr).lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["worker-0 | err", "worker-1 | err"]);
    assert_eq!(sleepers(&tag), 0);
}

/// What each process has in its environment, by its name.
fn environments(arguments: &[&str]) -> BTreeMap<String, BTreeMap<String, String>> {
    let script = "env | grep -E '^(SHEAVE|DMLC|FOR)_' > \"$0/$SHEAVE_NAME.part\" \
                  && mv \"$0/$SHEAVE_NAME.part\" \"$0/$SHEAVE_NAME\"; \
                  case $SHEAVE_ROLE in scheduler|server) exec sleep 60;; esac; \
                  until [ \"$(ls \"$0\" | grep -vc part)\" -ge \"$SHEAVE_LOCAL_RANKS\" ]; do sleep 0.01; done";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let output = launch(&[arguments, &["--drain-timeout-ms", "0", "--", "sh", "-c", script, path]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let read = |entry: std::fs::DirEntry| {
        let lines = std::fs::read_to_string(entry.path()).unwrap();
        let pairs = lines.lines().filter_map(|line| line.split_once('='));
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        (entry.file_name().into_string().unwrap(), pairs)
    };
    std::fs::read_dir(folder.path()).unwrap().map(|entry| read(entry.unwrap())).collect()
}

#[test]
fn each_role_is_told_who_it_is_and_where_the_others_are() {
    let variables = ["--env", "FOR_ALL=1", "--env-worker", "FOR_WORKERS=2", "--env-server", "FOR_SERVERS=3"];
    let all = environments(&[&["-n", "2", "-s", "1"][..], &variables].concat());
    let names: Vec<&str> = all.keys().map(String::as_str).collect();
    assert_eq!(names, ["scheduler", "server-0", "worker-0", "worker-1"]);
    let root = &all["scheduler"]["SHEAVE_ROOT"];
    let port = root.strip_prefix("127.0.0.1:").unwrap();
    assert!(port.parse::<u16>().unwrap() > 0);
    let (secret, losses) = (&all["scheduler"]["SHEAVE_SECRET_FILE"], &all["scheduler"]["SHEAVE_PROCESS_LOSSES"]);
    assert!(secret.starts_with("/proc/") && losses.starts_with("/proc/"), "{secret} {losses}");
    for (name, role, rank, local_rank) in [
        ("scheduler", "scheduler", None, "0"),
        ("server-0", "server", Some("0"), "1"),
        ("worker-0", "worker", Some("0"), "2"),
        ("worker-1", "worker", Some("1"), "3"),
    ] {
        let mut wanted = BTreeMap::from([
            ("SHEAVE_ROLE", role),
            ("SHEAVE_ROOT", root),
            ("SHEAVE_WORKERS", "2"),
            ("SHEAVE_SERVERS", "1"),
            ("SHEAVE_LOCAL_RANK", local_rank),
            ("SHEAVE_LOCAL_RANKS", "4"),
            ("SHEAVE_NAME", name),
            ("SHEAVE_SECRET_FILE", secret),
            ("SHEAVE_PROCESS_LOSSES", losses),
            ("DMLC_ROLE", role),
            ("DMLC_PS_ROOT_URI", "127.0.0.1"),
            ("DMLC_PS_ROOT_PORT", port),
            ("DMLC_NUM_WORKER", "2"),
            ("DMLC_NUM_SERVER", "1"),
            ("DMLC_NODE_HOST", "127.0.0.1"),
            ("FOR_ALL", "1"),
        ]);
        wanted.extend(rank.map(|rank| ("SHEAVE_RANK", rank)));
        wanted.extend((role == "worker").then_some(("FOR_WORKERS", "2")));
        wanted.extend((role == "server").then_some(("FOR_SERVERS", "3")));
        let mut found: BTreeMap<&str, &str> =
            all[name].iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert!(found.remove("SHEAVE_PROCESS_JOB").is_some());
        assert_eq!(found, wanted, "{name}");
    }
}

#[test]
fn plain_ranks_have_no_scheduler_and_each_job_has_its_own_secret() {
    let all = environments(&["-n", "2"]);
    let names: Vec<&str> = all.keys().map(String::as_str).collect();
    assert_eq!(names, ["rank-0", "rank-1"]);
    let own = &all["rank-1"];
    let values = ["SHEAVE_ROLE", "SHEAVE_RANK", "SHEAVE_WORLD_SIZE"].map(|name| own[name].as_str());
    assert_eq!(values, ["rank", "1", "2"]);
    assert!(!own.contains_key("SHEAVE_WORKERS") && !own.contains_key("SHEAVE_SERVERS"), "{own:?}");
    assert!(!own.keys().any(|name| name.starts_with("DMLC_")), "{own:?}");
    let other = environments(&["-n", "1", "--no-dmlc"]);
    assert_ne!(other["rank-0"]["SHEAVE_SECRET_FILE"], own["SHEAVE_SECRET_FILE"]);
    assert_eq!(other["rank-0"]["DMLC_ROLE"], "stale", "without our own variables the user's are left alone");
}

#[test]
fn a_failing_worker_ends_the_others_and_is_quoted() {
    let tag = new_tag();
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "[ $SHEAVE_NAME = worker-1 ] || {{ sleep {tag} & : > \"$0/$SHEAVE_NAME\"; wait; }}; \
         until [ $(ls \"$0\" | wc -l) -ge 3 ]; do sleep 0.01; done; echo no more >&2; exit 3"
    );
    let path = folder.path().to_str().unwrap();
    let mut child = start(&["-n", "2", "-s", "1", "--", "sh", "-c", &script, path]);
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let mut lines = stderr.lines().map(|line| line.unwrap());
    assert_eq!(lines.next().unwrap(), "worker-1 | no more");
    let begun = Instant::now();
    let output = finish(child);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let verdict = lines.next().unwrap();
    assert!(verdict.starts_with("sheave: worker-1 (pid ") && verdict.contains(") exited with code 3"), "{verdict}");
    assert_eq!(lines.collect::<Vec<_>>(), ["  no more"]);
    assert_eq!(sleepers(&tag), 0);
}

#[test]
fn a_worker_killed_by_a_signal_counts_128_and_more() {
    let output = launch(&["-n", "1", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(output.status.code(), Some(137), "{output:?}");
    let complaint = text(&output.stderr);
    assert!(complaint.starts_with("sheave: rank-0 (pid ") && complaint.contains("SIGKILL"), "{complaint}");
    assert_eq!(complaint.lines().count(), 1);
}

#[test]
fn a_server_that_fails_fails_the_job() {
    let tag = new_tag();
    let script = format!("[ $SHEAVE_ROLE = server ] && exit 7; exec sleep {tag}");
    let output = launch(&["-n", "2", "-s", "1", "--", "sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(text(&output.stderr).starts_with("sheave: server-0 "), "{output:?}");
    assert_eq!(sleepers(&tag), 0);
}

/// A job whose every process has a grandchild that sleeps; returns once all do.
fn start_sleepers(tag: &str) -> Child {
    let child = start(&["-n", "2", "-s", "1", "--", "sh", "-c", &format!("sleep {tag} & wait")]);
    if !wait_until(|| sleepers(tag) == 4) {
        panic!("{} processes sleep: {:?}", sleepers(tag), finish(child));
    }
    child
}

#[test]
fn sigterm_ends_everything_with_143() {
    let tag = new_tag();
    let child = start_sleepers(&tag);
    signal(&child, rustix::process::Signal::TERM);
    let output = finish(child);
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    assert_eq!(text(&output.stderr), "sheave: the job was ended by signal 15 (SIGTERM)\n");
    assert_eq!(sleepers(&tag), 0);
}

#[test]
fn a_signal_leaves_time_to_follow_it_and_comes_once() {
    let script = "trap 'echo told; n=0; while [ $n -lt 20 ]; do sleep 0.01; n=$((n+1)); done; echo saved; exit 0' TERM
                  echo ready; while :; do sleep 0.01; done";
    let mut child = start(&["-n", "1", "--grace-ms", "60000", "--", "sh", "-c", script]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    assert_eq!(lines.next().unwrap(), "rank-0 | ready");
    signal(&child, rustix::process::Signal::TERM);
    let output = finish(child);
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    assert_eq!(lines.collect::<Vec<_>>(), ["rank-0 | told", "rank-0 | saved"]);
}

#[test]
fn sigkill_leaves_nothing() {
    let tag = new_tag();
    let mut child = start_sleepers(&tag);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(wait_until(|| sleepers(&tag) == 0), "{} processes are left", sleepers(&tag));
}

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    for (arguments, word) in [
        (&["-n", "1", "--", "no-such-program"][..], "hint: "),
        (&["-n", "1", "--", "/no/such/program"], "/no/such/program"),
        (&["-n", "1", "--", "/dev/null"], "may be executed"),
        (&["-n", "1"], "COMMAND"),
        (&["-n", "0", "true"], "0"),
        (&["true"], "--workers"),
        (&["-n", "5000", "true"], "limit"),
        (&["-n", "1", "--env", "SHEAVE_RANK=3", "true"], "SHEAVE_RANK"),
        (&["-n", "1", "--env", "DMLC_ROLE=worker", "true"], "--no-dmlc"),
        (&["-n", "1", "--env-worker", "SHEAVE_TRANPORT=tcp", "true"], "SHEAVE_TRANSPORT"),
        (&["-n", "1", "--env-server", "SHEAVE_ARENA_BYTES=banana", "true"], "banana"),
        (&["-n", "1", "--env", "nothing", "true"], "NAME=VALUE"),
    ] {
        let output = launch(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        let complaint = text(&output.stderr);
        assert_eq!(complaint.lines().count(), 1, "{arguments:?}: {complaint}");
        assert!(complaint.starts_with("sheave: ") && complaint.contains(word), "{complaint}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn the_command_keeps_its_own_options() {
    let output = launch(&["-n", "1", "echo", "-n", "2", "--servers", "--", "-s"]);
    assert_eq!(text(&output.stdout), "rank-0 | 2 --servers -- -s\n", "{output:?}");
}

/// A server that writes a file of this many MiB once the workers have gone, in pieces, as checkpoints are written.
fn checkpoint(mib: u32, end: &str) -> (tempfile::TempDir, Output) {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "case $SHEAVE_ROLE in worker) until [ -e \"$0/up\" ]; do sleep 0.01; done; : > \"$0/gone\"; exit 0;; esac; \
         [ $SHEAVE_ROLE = server ] || exit 0; : > \"$0/up\"; until [ -e \"$0/gone\" ]; do sleep 0.01; done; \
         n=0; while [ $n -lt {} ]; do head -c 16777216 /dev/zero; n=$((n+1)); done > \"$0/checkpoint\"; {end}",
        mib / 16
    );
    let output = launch(&["-n", "2", "-s", "1", "--", "sh", "-c", &script, folder.path().to_str().unwrap()]);
    (folder, output)
}

#[test]
fn f80_a_server_that_saves_after_the_workers_end_is_not_cut_off() {
    let (folder, output) = checkpoint(208, "");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(folder.path().join("checkpoint").metadata().unwrap().len(), 208 << 20, "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
#[ignore = "soak suite: writes 1 GB"]
fn f80_a_server_that_saves_1_gb_is_not_cut_off() {
    let (folder, output) = checkpoint(1024, "");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(folder.path().join("checkpoint").metadata().unwrap().len(), 1 << 30, "{output:?}");
}

#[test]
fn f80_a_server_that_fails_after_the_workers_end_fails_the_job() {
    let (_folder, output) = checkpoint(16, "echo no room >&2; exit 7");
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let told = text(&output.stderr);
    assert!(told.contains("sheave: server-0 (pid ") && told.ends_with("\n  no room\n"), "{told}");
}

#[test]
fn f80_who_is_cut_off_is_told_and_fails_the_job() {
    let tag = new_tag();
    let script = format!("[ $SHEAVE_ROLE = worker ] || exec sleep {tag}");
    let output = launch(&["-n", "1", "-s", "1", "--drain-timeout-ms", "200", "--", "sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = text(&output.stderr);
    assert!(
        told.contains("server-0 (pid ") && told.contains("scheduler (pid ") && told.contains("still ran"),
        "{told}"
    );
    assert!(told.contains("--drain-timeout-ms") && told.lines().count() == 1, "{told}");
    assert_eq!(sleepers(&tag), 0);
}

#[test]
#[ignore = "soak suite: the notice comes after 10 s"]
fn f80_after_10_s_it_is_told_who_is_waited_for() {
    let script = "[ $SHEAVE_ROLE = server ] && sleep 11; exit 0";
    let output = launch(&["-n", "1", "-s", "1", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let told = text(&output.stderr);
    assert!(told.starts_with("sheave: all workers have ended; waiting for server-0 (pid "), "{told}");
    assert!(told.contains("--drain-timeout-ms") && told.lines().count() == 1, "{told}");
}

#[test]
fn f93_who_is_killed_because_it_does_not_end_is_told() {
    let script = "trap '' TERM; echo ready; while :; do sleep 0.01; done";
    let mut child = start(&["-n", "1", "--grace-ms", "100", "--", "sh", "-c", script]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    assert_eq!(lines.next().unwrap(), "rank-0 | ready");
    signal(&child, rustix::process::Signal::TERM);
    let output = finish(child);
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    let told: Vec<&str> = text(&output.stderr).lines().collect();
    assert!(told[0].starts_with("sheave: rank-0 (pid ") && told[0].contains("--grace-ms"), "{told:?}");
    assert_eq!(told[1..], ["sheave: the job was ended by signal 15 (SIGTERM)"]);
}

#[test]
fn f93_a_child_that_answers_a_signal_with_a_code_is_not_to_blame() {
    let script = "trap 'echo told >&2; exit 9' TERM; echo ready; while :; do sleep 0.01; done";
    for _ in 0..5 {
        let mut child = start(&["-n", "1", "--grace-ms", "60000", "--", "sh", "-c", script]);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
        assert_eq!(lines.next().unwrap(), "rank-0 | ready");
        signal(&child, rustix::process::Signal::TERM);
        let output = finish(child);
        assert_eq!(output.status.code(), Some(143), "{output:?}");
        // The shell may say besides that its sleep was terminated too.
        let told: Vec<&str> = text(&output.stderr).lines().filter(|line| line.starts_with("sheave: ")).collect();
        assert_eq!(told, ["sheave: the job was ended by signal 15 (SIGTERM)"], "{output:?}");
    }
}

#[test]
fn f93_output_that_cannot_be_written_is_a_failure() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sheave"));
    command.args(["launch", "-n", "1", "--", "echo", "important"]).stdin(Stdio::null()).stderr(Stdio::piped());
    command.stdout(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let output = finish(command.spawn().unwrap());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = text(&output.stderr);
    assert!(told.contains("No space left") && told.contains("hint: ") && told.lines().count() == 1, "{told}");
}

#[test]
fn f75_a_progress_bar_is_seen_while_it_moves() {
    let script = "n=0; until [ -e \"$0/seen\" ]; do n=$((n+1)); printf '\\r%s done' $n; sleep 0.05; done; echo";
    let folder = tempfile::tempdir().unwrap();
    let mut child = start(&["-n", "1", "--", "sh", "-c", script, folder.path().to_str().unwrap()]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    for _ in 0..2 {
        let line = lines.next().unwrap();
        assert!(line.starts_with("rank-0 | ") && line.ends_with(" done") && !line.contains('\r'), "{line:?}");
    }
    std::fs::write(folder.path().join("seen"), "").unwrap();
    assert!(lines.count() <= 2);
    assert_eq!(finish(child).status.code(), Some(0));
}

#[test]
fn f75_one_process_reads_standard_input_and_several_say_that_they_cannot() {
    let run = |workers: &str, command: &[&str]| {
        let mut launched = Command::new(env!("CARGO_BIN_EXE_sheave"));
        launched.args(["launch", "-n", workers, "--"]).args(command);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("program"), "echo it runs\n").unwrap();
        launched.stdin(std::fs::File::open(folder.path().join("program")).unwrap());
        finish(launched.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    for command in [&["sh"][..], &["sh", "-"], &["cat"]] {
        let output = run("1", command);
        let said = if command == ["cat"] { "rank-0 | echo it runs\n" } else { "rank-0 | it runs\n" };
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), said), "{output:?}");
    }
    for command in [&["python3", "-"][..], &["/bin/sh"]] {
        let output = run("2", command);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(told.contains("standard input") && told.contains("hint: ") && told.lines().count() == 1, "{told}");
    }
    assert_eq!(run("2", &["cat"]).status.code(), Some(0), "others find nothing there");
}

#[test]
fn f32_the_secret_is_in_no_environment() {
    let script =
        "tr '\\0' '\\n' < /proc/self/environ | grep -c \"$(cat $SHEAVE_SECRET_FILE)\"; stat -Lc %a $SHEAVE_SECRET_FILE";
    let output = launch(&["-n", "1", "--", "sh", "-c", script]);
    assert_eq!(text(&output.stdout), "rank-0 | 0\nrank-0 | 400\n", "{output:?}");
}
