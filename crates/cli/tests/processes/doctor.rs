//! `sheave doctor` as users run it, with this machine and with a broken one.

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest time for one run, on a machine that does something else too.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs it with a home of its own and no settings but these variables.
fn doctor(home: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sheave"));
    command.arg("doctor").args(arguments).env("HOME", home).env_remove("XDG_CONFIG_HOME");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SHEAVE_")) {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    // What it prints fits into a pipe, so it never waits for a reader.
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("it did not end: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn finding<'a>(findings: &'a [Value], check: &str) -> &'a Value {
    findings.iter().find(|finding| finding["check"] == check).unwrap()
}

#[test]
fn this_machine_is_well_and_the_secret_is_not_shown() {
    let home = tempfile::tempdir().unwrap();
    let output = doctor(home.path(), &["--json"], &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let mut checks: Vec<&str> = findings.iter().map(|finding| finding["check"].as_str().unwrap()).collect();
    for finding in &findings {
        let mut keys: Vec<&str> = finding.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["check", "fact", "hint", "status"]);
        assert!(["ok", "warn"].contains(&finding["status"].as_str().unwrap()), "{finding}");
        assert!(!finding["fact"].as_str().unwrap().is_empty());
        assert_eq!(finding["hint"].is_null(), finding["status"] == "ok", "{finding}");
    }
    for check in ["shared memory link", "tcp link"] {
        let fact = finding(&findings, check)["fact"].as_str().unwrap();
        let time_us: f64 = fact.split(' ').find_map(|word| word.contains('.').then(|| word.parse().unwrap())).unwrap();
        assert!(time_us > 0.01 && time_us < 5e6, "{fact}");
    }
    let secret = finding(&findings, "secret")["fact"].as_str().unwrap();
    assert!(secret.contains("cookie file ~/.config/sheave/cookie") && secret.contains("0600"), "{secret}");
    let cookie = std::fs::read_to_string(home.path().join(".config/sheave/cookie")).unwrap();
    assert!(!text(&output.stdout).contains(cookie.trim()));
    checks.sort_unstable();
    checks.dedup();
    assert_eq!(checks.len(), findings.len(), "a check has a name of its own");
}

#[test]
fn people_get_one_line_per_check() {
    let home = tempfile::tempdir().unwrap();
    let secret = "a secret that is certainly long enough";
    let output = doctor(home.path(), &[], &[("SHEAVE_SECRET", secret), ("SHEAVE_LOCAL_RANKS", "16384")]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert!(lines.len() > 10 && lines.iter().all(|line| line.starts_with("ok    ") || line.starts_with("warn  ")));
    assert!(lines.contains(&"ok    secret: from SHEAVE_SECRET"), "{lines:?}");
    assert!(lines.contains(&"ok    settings: set are SHEAVE_SECRET, SHEAVE_LOCAL_RANKS"), "{lines:?}");
    for warned in ["warn  cores: ", "warn  memory: "] {
        assert!(lines.iter().any(|line| line.starts_with(warned)), "{warned}: {lines:?}");
    }
    assert!(!text(&output.stdout).contains(secret));
    assert!(output.stderr.is_empty());
}

#[test]
fn what_fails_is_told_with_a_hint_and_the_exit_code() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("secret");
    std::fs::write(&file, "everybody can read this secret").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let variables = [("SHEAVE_SECRET_FILE", file.to_str().unwrap()), ("SHEAVE_BIND", address.as_str())];
    let output = doctor(home.path(), &["--json"], &variables);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let failed: Vec<&str> = findings
        .iter()
        .filter(|finding| finding["status"] == "fail")
        .map(|finding| finding["check"].as_str().unwrap())
        .collect();
    assert_eq!(failed, ["bind", "secret"]);
    let secret = finding(&findings, "secret");
    assert!(secret["fact"].as_str().unwrap().contains("0644") && secret["hint"].as_str().unwrap().contains("chmod"));
    assert_eq!(text(&output.stderr), format!("sheave: 2 of {} checks failed\n", findings.len()));
}

#[test]
fn a_broken_setting_is_one_line_and_exit_code_2() {
    let home = tempfile::tempdir().unwrap();
    for (name, value) in [("SHEAVE_ARENA_BYTES", "banana"), ("SHEAVE_ARENA_BYTE", "1MiB")] {
        let output = doctor(home.path(), &[], &[(name, value), ("SHEAVE_STRICT", "1")]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let complaint = text(&output.stderr);
        assert!(complaint.starts_with("sheave: ") && complaint.contains(name), "{complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
        assert!(output.stdout.is_empty());
    }
}

/// The status and the fact of one check, in the text for people.
fn line<'a>(output: &'a Output, check: &str) -> Option<&'a str> {
    let of_check = |line: &&str| line.get(6..).is_some_and(|rest| rest.starts_with(&format!("{check}: ")));
    text(&output.stdout).lines().find(of_check)
}

#[test]
fn f90_a_job_that_cannot_be_joined_is_told() {
    let home = tempfile::tempdir().unwrap();
    let secret = ("SHEAVE_SECRET", "a secret that is certainly long enough");
    let job = [("SHEAVE_RANK", "0"), ("SHEAVE_WORLD_SIZE", "2")];
    for (variables, check, parts) in [
        (&[("SHEAVE_RANK", "1")][..], "job", ["SHEAVE_ROOT", "SHEAVE_ROOT"]),
        (&[("RANK", "0"), ("WORLD_SIZE", "2")], "job", ["MASTER_ADDR", "MASTER_ADDR"]),
        (&[("RANK", "0")], "job", ["RANK is set", "WORLD_SIZE"]),
        (&[job[0], job[1], ("SHEAVE_ROOT", "no.such.host.invalid:7000")], "root", ["no.such.host.invalid", "resolved"]),
        (&[("SHEAVE_COLLECTIVE_TABLE", "/no/such/table")], "collective table", ["/no/such/table", "SHEAVE_COLLECTIVE"]),
    ] {
        let output = doctor(home.path(), &[], &[&[secret], variables].concat());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let line = line(&output, check).unwrap_or_else(|| panic!("{check}: {output:?}"));
        assert!(line.starts_with("fail  ") && parts.iter().all(|part| line.contains(part)), "{line}");
    }
    let output = doctor(home.path(), &[], &[secret, job[0], job[1], ("SHEAVE_ROOT", "127.0.0.1:7000")]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(line(&output, "job"), Some("ok    job: rank 0 of 2, by the variables of sheave"));
    assert_eq!(line(&output, "root"), Some("ok    root: 127.0.0.1:7000 is 127.0.0.1"));
}

#[test]
fn f90_few_open_files_are_a_failure() {
    let home = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_sheave");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 16 && exec \"$0\" doctor", program]).env("HOME", home.path());
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let line = line(&output, "open files").unwrap_or_else(|| panic!("{output:?}"));
    assert!(line.starts_with("fail  open files: 16 per process") && line.contains("2 ranks take 22"), "{line}");
}
