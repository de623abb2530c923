//! `sheave demo` as users run it: the real binary, its real processes, and what becomes of it when one of them is
//! killed.

use serde_json::Value;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest time for one run, on a machine that does something else too.
const LIMIT: Duration = Duration::from_secs(60);
/// The bound of the demo: within this time after a kill it has ended.
const BOUND: Duration = Duration::from_secs(2);

struct Demo {
    folder: TempDir,
}

impl Demo {
    fn new() -> Self {
        Self { folder: TempDir::new().unwrap() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sheave"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SHEAVE_")) {
            command.env_remove(name);
        }
        command.env("XDG_CONFIG_HOME", self.folder.path()).env("RUST_BACKTRACE", "1");
        command.arg("demo").args(arguments).arg("--out").arg(self.out());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        finish(self.command(arguments).spawn().unwrap())
    }

    /// The summary of a run that must end well.
    fn summary(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let line = text(&output.stdout);
        assert_eq!(line.trim_end().lines().count(), 1, "the summary alone: {line}");
        serde_json::from_str(line).unwrap()
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Waits until `is_so`; false after the limit.
fn wait_until(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Waits for the end. What is printed here fits into a pipe, so nobody waits for a reader.
fn finish(mut child: Child) -> Output {
    if !wait_until(LIMIT, || child.try_wait().unwrap().is_some()) {
        child.kill().unwrap();
        panic!("it did not end: {:?}", child.wait_with_output());
    }
    child.wait_with_output().unwrap()
}

fn hash(summary: &Value) -> String {
    summary["weights_sha256"].as_str().unwrap().to_owned()
}

#[test]
fn it_trains_to_97_percent_and_leaves_a_picture_and_a_trace() {
    let demo = Demo::new();
    let summary = demo.summary(&[]);
    assert!(summary["test_accuracy"].as_f64().unwrap() >= 0.97, "{summary}");
    assert!(summary["seconds"].as_f64().unwrap() <= 30.0, "{summary}");
    for rate in ["images_per_s", "bytes_per_s"] {
        assert!(summary[rate].as_f64().unwrap() > 0.0, "{summary}");
    }
    assert_eq!(hash(&summary).len(), 64);
    let picture = std::fs::read_to_string(summary["chart"].as_str().unwrap()).unwrap();
    assert!(picture.starts_with("<svg ") && picture.contains("<polyline "));
    let trace = std::fs::read(summary["trace"].as_str().unwrap()).unwrap();
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let processes: std::collections::HashSet<&str> = events
        .iter()
        .filter(|event| event["name"] == "process_name")
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    for worker in ["worker-0", "worker-1", "worker-2", "worker-3"] {
        assert!(processes.contains(worker), "{processes:?}");
    }
    assert!(events.iter().filter(|event| event["name"] == "push and pull").count() > 100);
}

#[test]
fn a_table_and_progress_are_for_people() {
    let demo = Demo::new();
    let output = demo.run(&["--epochs", "2", "--workers", "2", "--servers", "1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for part in ["test accuracy", "dist_sync: 2 workers, 1 servers, over shm", "learning-curve.svg", "trace.json"] {
        assert!(text(&output.stdout).contains(part), "{part}: {}", text(&output.stdout));
    }
    for part in ["epoch   1/2", "epoch   2/2", "images/s", "B/s", "loss"] {
        assert!(text(&output.stderr).contains(part), "{part}: {}", text(&output.stderr));
    }
}

#[test]
fn servers_give_the_bits_of_one_process_and_other_workers_give_others() {
    let demo = Demo::new();
    let run = |line: &[&str]| hash(&demo.summary(&[&["--epochs", "3", "--batch", "8"], line].concat()));
    for workers in ["1", "3"] {
        let local = run(&["--kind", "local", "--workers", workers]);
        for servers in ["1", "2", "3"] {
            for transport in ["shm", "tcp"] {
                let line = ["--workers", workers, "--servers", servers, "--transport", transport];
                assert_eq!(run(&line), local, "{line:?}");
            }
        }
        assert_eq!(run(&["--kind", "local", "--workers", workers]), local, "the same in every run");
    }
    let others = [["--workers", "2"], ["--seed", "1"]].map(|line| run(&[&["--kind", "local"], &line[..]].concat()));
    let first = run(&["--kind", "local", "--workers", "3"]);
    assert!(others.iter().all(|other| *other != first), "another number of workers and another seed count");
}

#[test]
fn an_asynchronous_store_learns_too() {
    let demo = Demo::new();
    let summary = demo.summary(&["--kind", "DIST_ASYNC", "--epochs", "15"]);
    assert!(summary["test_accuracy"].as_f64().unwrap() >= 0.9, "{summary}");
}

#[test]
fn a_store_of_bounded_staleness_learns_as_well() {
    let demo = Demo::new();
    let summary = demo.summary(&["--kind", "dist_ssp", "--staleness", "2"]);
    assert!(summary["test_accuracy"].as_f64().unwrap() >= 0.97, "{summary}");
    assert_eq!((&summary["staleness"], &summary["deterministic"]), (&2.into(), &false.into()));
}

#[test]
fn gradients_in_two_bits_train_as_well_and_to_the_same_weights_in_every_run() {
    let demo = Demo::new();
    let summary = demo.summary(&["--compress", "2bit"]);
    assert!(summary["test_accuracy"].as_f64().unwrap() >= 0.97, "{summary}");
    // 17,258 weights in six tensors, each of a whole number of words of 16 values.
    assert_eq!((&summary["gradient_bytes"], &summary["sent_gradient_bytes"]), (&69_032.into(), &4_316.into()));
    let short = |servers| hash(&demo.summary(&["--compress", "2bit", "--epochs", "2", "--servers", servers]));
    let one = short("1");
    assert_eq!(one, short("3"), "what is left over belongs to a worker, not to a server");
    assert_ne!(one, hash(&demo.summary(&["--epochs", "2"])), "codes lose something at first");
}

/// The processes of a demo that was started with this seed: pid, and role with rank, by their environment.
fn parts(seed: &str) -> Vec<(i32, String)> {
    let of = |entry: std::fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let words: Vec<&str> =
            line.split(|byte| *byte == 0).filter_map(|word| std::str::from_utf8(word).ok()).collect();
        let is_ours = words.contains(&"--part") && words.windows(2).any(|pair| pair == ["--seed", seed]);
        let environment = std::fs::read(entry.path().join("environ")).ok().filter(|_| is_ours)?;
        let mut variables = environment.split(|byte| *byte == 0).filter_map(|one| std::str::from_utf8(one).ok());
        let name = variables.find_map(|variable| variable.strip_prefix("SHEAVE_NAME="))?;
        Some((pid, name.to_owned()))
    };
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(of).collect()
}

fn kill(pid: i32) {
    let status = Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

/// Shared memory by name, of which there should be none at all.
fn named_memory() -> usize {
    std::fs::read_dir("/dev/shm").map_or(0, |entries| {
        entries.flatten().filter(|entry| entry.file_name().to_string_lossy().contains("sheave")).count()
    })
}

/// Starts an endless training, kills `victim` in the middle of it and looks at what is left.
fn killed(victim: &str, transport: &str, number: u32) {
    let demo = Demo::new();
    let seed = (u64::from(std::process::id()) << 16 | u64::from(number)).to_string();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let line = ["--epochs", "10000", "--workers", "2", "--servers", "2", "--seed", &seed, "--transport", transport];
    let mut command = demo.command(&[&line[..], &["--port", &port.to_string()]].concat());
    let errors = demo.folder.path().join("errors");
    // It draws an epoch every few milliseconds, more than fits into a pipe.
    command.stderr(std::fs::File::create(&errors).unwrap());
    let child = command.spawn().unwrap();
    let epochs = || std::fs::read_to_string(&errors).unwrap().matches("epoch").count();
    assert!(wait_until(LIMIT, || epochs() >= 2), "it trains: {}", std::fs::read_to_string(&errors).unwrap());
    let all = parts(&seed);
    assert_eq!(all.len(), 5, "{all:?}");
    let pid = if victim == "demo" {
        i32::try_from(child.id()).unwrap()
    } else {
        all.iter().find(|(_, name)| name == victim).unwrap_or_else(|| panic!("{victim} of {all:?}")).0
    };
    let begun = Instant::now();
    kill(pid);
    let output = finish(child);
    let took = begun.elapsed();
    assert!(took < BOUND, "{victim}: {took:?}");
    assert!(!output.status.success(), "{victim}");
    let said = std::fs::read_to_string(&errors).unwrap();
    let last: Vec<&str> = said.lines().filter(|line| line.starts_with("sheave: ")).collect();
    if victim != "demo" {
        assert_eq!(output.status.code(), Some(1));
        let [line] = last[..] else { panic!("one line: {said}") };
        for part in [victim, &pid.to_string(), "SIGKILL"] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
    assert!(!said.contains("panicked") && !said.contains("stack backtrace"), "{said}");
    assert!(wait_until(BOUND, || parts(&seed).is_empty()), "{victim}: processes are left: {:?}", parts(&seed));
    assert_eq!(named_memory(), 0);
    assert!(wait_until(BOUND, || TcpListener::bind(("127.0.0.1", port)).is_ok()), "{victim}: the port is held");
    assert!(!demo.out().exists(), "nothing is written of a run that failed");
}

#[test]
fn a_kill_in_any_role_ends_it_with_one_line_and_leaves_nothing_over_shm() {
    for (number, victim) in (0..).zip(["scheduler", "server-0", "server-1", "worker-0", "worker-1", "demo"]) {
        killed(victim, "shm", number);
    }
}

#[test]
fn a_kill_in_any_role_ends_it_with_one_line_and_leaves_nothing_over_tcp() {
    for (number, victim) in (100..).zip(["scheduler", "server-0", "server-1", "worker-0", "worker-1", "demo"]) {
        killed(victim, "tcp", number);
    }
}

/// A mistake: exit code 2, one line with each of `parts`, and no backtrace.
fn refused(output: &Output, parts: &[&str]) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    assert!(said.starts_with("sheave: ") && !said.contains("panicked"), "{said}");
    for part in parts {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(output.stdout.is_empty());
}

#[test]
fn mistakes_are_one_line_with_a_hint() {
    let demo = Demo::new();
    for (line, part) in [
        (["--kind", "dist_magic"], "dist_sync"),
        (["--workers", "0"], "--workers"),
        (["--workers", "many"], "many"),
        (["--servers", "0"], "--servers"),
        (["--transport", "pigeon"], "shm"),
        (["--seed", "x"], "--seed"),
        (["--epochs", "0"], "--epochs"),
        (["--nonsense", "1"], "--nonsense"),
        (["--port", "0"], "--port"),
    ] {
        refused(&demo.run(&line), &[part]);
    }
    refused(&demo.run(&["--workers", "64", "--batch", "64"]), &["--workers 64", "images"]);
    for (line, parts) in [
        (&["--kind", "local", "--compress", "2bit"][..], ["local", "hint"]),
        (&["--staleness", "2"], ["dist_sync", "dist_ssp"]),
        (&["--kind", "dist_async", "--staleness", "2"], ["dist_async", "dist_ssp"]),
        (&["--compress", "3bit"], ["3bit", "2bit"]),
        (&["--compress", "2bit", "--threshold", "0"], ["--threshold 0", "hint"]),
        (&["--compress", "fp16", "--threshold", "1"], ["--threshold 1", "fp16"]),
        (&["--threshold", "1"], ["--threshold 1", "none"]),
    ] {
        refused(&demo.run(line), &parts);
    }
    let mut command = demo.command(&[]);
    command.envs([("SHEAVE_TRANPORT", "tcp"), ("SHEAVE_STRICT", "1")]);
    refused(&finish(command.spawn().unwrap()), &["SHEAVE_TRANPORT", "SHEAVE_TRANSPORT"]);
    let mut command = demo.command(&[]);
    refused(&finish(command.env("SHEAVE_ARENA_BYTES", "lots").spawn().unwrap()), &["SHEAVE_ARENA_BYTES", "hint"]);
}

#[test]
fn a_busy_port_is_one_line_with_a_hint() {
    let demo = Demo::new();
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = busy.local_addr().unwrap().port().to_string();
    refused(&demo.run(&["--port", &port]), &[&port, "hint"]);
}

#[test]
fn a_bad_data_file_is_one_line_with_a_hint() {
    let demo = Demo::new();
    let refuse =
        |path: &Path| refused(&demo.run(&["--data", path.to_str().unwrap()]), &[path.to_str().unwrap(), "hint"]);
    refuse(&demo.folder.path().join("missing"));
    refuse(demo.folder.path());
    let corrupt = demo.folder.path().join("corrupt");
    for contents in [&b""[..], b"PNG", &[0xff; 100_000]] {
        std::fs::write(&corrupt, contents).unwrap();
        refuse(&corrupt);
    }
    let good = concat!(env!("CARGO_MANIFEST_DIR"), "/../nn/data/digits.bin");
    let mut bytes = std::fs::read(good).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&corrupt, bytes).unwrap();
    refuse(&corrupt);
    demo.summary(&["--data", good, "--epochs", "1"]);
}

#[test]
fn a_place_where_nothing_can_be_written_is_found_before_the_work() {
    let demo = Demo::new();
    let file = demo.folder.path().join("out");
    std::fs::write(&file, "in the way").unwrap();
    refused(&demo.run(&[]), &["--out", "hint"]);
}

#[test]
fn f93_a_file_of_ours_that_is_a_folder_and_a_place_that_takes_no_files_are_found_before_the_work() {
    let demo = Demo::new();
    std::fs::create_dir_all(demo.out().join("trace.json")).unwrap();
    refused(&demo.run(&[]), &["--out", "trace.json", "hint"]);
    let run = |out: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sheave"));
        command.args(["demo", "--epochs", "1", "--out", out]).stdin(std::process::Stdio::null());
        finish(command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap())
    };
    // Root may write everywhere, and yet not there.
    refused(&run("/proc/sheave-demo"), &["--out", "/proc/sheave-demo", "hint"]);
}

#[test]
fn f93_a_signal_makes_the_exit_code() {
    for (signal, code) in [("-TERM", 143), ("-INT", 130)] {
        let demo = Demo::new();
        let errors = demo.folder.path().join("errors");
        let mut command = demo.command(&["--epochs", "10000", "--workers", "1", "--servers", "1"]);
        let child = command.stderr(std::fs::File::create(&errors).unwrap()).spawn().unwrap();
        let said = || std::fs::read_to_string(&errors).unwrap();
        assert!(wait_until(LIMIT, || said().matches("epoch").count() >= 2), "it trains: {}", said());
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        let output = finish(child);
        assert_eq!(output.status.code(), Some(code), "{}", said());
        assert!(said().contains("asked to end by signal"), "{}", said());
    }
}
