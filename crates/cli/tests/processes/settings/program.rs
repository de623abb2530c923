//! The settings that programs read: secrets, names, tables.

use super::{PATIENCE, Variables, join_all, lookup, secret as secret_of_the_tests};
use crate::checks;
use sheave_base::config::INVITATION_VARIABLE;
use sheave_base::secret;
use sheave_mesh::{Config, Guest, GuestConfig};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

/// Runs the binary with these variables and no other setting.
fn sheave(arguments: &[&str], variables: Variables<'_>) -> Output {
    run(Command::new(env!("CARGO_BIN_EXE_sheave")).args(arguments), variables)
}

fn run(command: &mut Command, variables: Variables<'_>) -> Output {
    let is_own =
        |name: &std::ffi::OsStr| ["SHEAVE_", "DMLC_"].iter().any(|own| name.to_string_lossy().starts_with(own));
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_own(name)) {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it was built for this test");
    let begun = Instant::now();
    // What it prints fits into a pipe, so that it never waits for a reader.
    while child.try_wait().expect("it is our child").is_none() {
        if begun.elapsed() > PATIENCE {
            child.kill().expect("it is our child");
            panic!("it did not end: {:?}", child.wait_with_output());
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.wait_with_output().expect("it has ended")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("people read it")
}

/// A copy of this binary, in which [`a_member_of_a_job`] plays its part.
fn member_line() -> Vec<String> {
    let own = std::env::current_exe().expect("this binary").to_str().expect("a path").to_owned();
    [&own, "--exact", "settings::program::a_member_of_a_job", "--nocapture", "--test-threads=1"]
        .map(str::to_owned)
        .to_vec()
}

#[test]
fn a_member_of_a_job() {
    if std::env::var("SHEAVE_TEST_MEMBER").is_err() {
        return;
    }
    for _ in 0..2 {
        // Asking twice tells nothing twice.
        Config::from_env().expect("the environment makes sense").expect("it is a job");
    }
    let mut stdout = std::io::stdout();
    writeln!(stdout, "[member] has a place").expect("the test listens");
}

/// Launches two members of a job with these variables.
fn launch(variables: Variables<'_>) -> Output {
    let line = member_line();
    let line: Vec<&str> = ["launch", "-n", "2", "--"].into_iter().chain(line.iter().map(String::as_str)).collect();
    sheave(&line, &[variables, &[("SHEAVE_TEST_MEMBER", "1")]].concat())
}

const MISSPELT: (&str, &str) = ("SHEAVE_TRANPORT", "tcp");
const TOLD: &str = "SHEAVE_TRANPORT is no setting of sheave; hint: did you mean SHEAVE_TRANSPORT?";

/// Every pod beside a service that is called sheave has these.
const INJECTED: Variables<'_> = &[
    ("SHEAVE_SERVICE_HOST", "10.96.0.17"),
    ("SHEAVE_SERVICE_PORT", "7000"),
    ("SHEAVE_PORT", "tcp://10.96.0.17:7000"),
    ("SHEAVE_PORT_7000_TCP", "tcp://10.96.0.17:7000"),
    ("SHEAVE_PORT_7000_TCP_PROTO", "tcp"),
    ("SHEAVE_PORT_7000_TCP_PORT", "7000"),
    ("SHEAVE_PORT_7000_TCP_ADDR", "10.96.0.17"),
];

#[test]
fn f38_an_unknown_name_is_told_once_and_ends_nothing() {
    let output = launch(&[MISSPELT]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(text(&output.stdout).matches("[member] has a place").count(), 2, "{output:?}");
    assert_eq!(text(&output.stderr).matches(TOLD).count(), 1, "{output:?}");
    let output = sheave(&["tune", "--bytes", "8"], &[MISSPELT]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(text(&output.stderr), format!("sheave: {TOLD}\n"));
}

#[test]
fn f38_what_kubernetes_injects_is_quiet_even_where_names_are_checked_strictly() {
    for strict in ["0", "1"] {
        let output = launch(&[INJECTED, &[("SHEAVE_STRICT", strict)]].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(text(&output.stdout).matches("[member] has a place").count(), 2, "{output:?}");
        assert!(!text(&output.stderr).contains("no setting of sheave"), "{output:?}");
    }
}

/// The secret that an environment leads to, as far as it differs from others.
fn source(variables: Variables<'_>) -> (String, secret::Resolved) {
    let resolved = secret::resolve(lookup(variables)).expect("it is there");
    (resolved.source.clone(), resolved)
}

fn file_with(secret: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("secret");
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).expect("a file");
    file.write_all(secret.as_bytes()).expect("room");
    folder
}

checks! {
    "SHEAVE_SECRET" secret_is_what_peers_must_know_too {
        let (said, one) = source(&[("SHEAVE_SECRET", "the first secret of all")]);
        assert!(said.contains("SHEAVE_SECRET"), "{said}");
        assert!(!links(&one, &source(&[("SHEAVE_SECRET", "another secret of mine")]).1));
        assert!(links(&one, &source(&[("SHEAVE_SECRET", "the first secret of all")]).1));
    }

    "SHEAVE_SECRET_FILE" secret_file_holds_it {
        let folder = file_with("the first secret of all");
        let path = folder.path().join("secret");
        let (said, one) = source(&[("SHEAVE_SECRET_FILE", path.to_str().expect("text"))]);
        assert!(said.contains("SHEAVE_SECRET_FILE") || said.contains(path.to_str().expect("text")), "{said}");
        assert!(links(&one, &source(&[("SHEAVE_SECRET", "the first secret of all")]).1));
    }

    "SHEAVE_INVITATION" invitation_makes_a_guest {
        assert!(GuestConfig::from_lookup(lookup(&[])).expect("nothing is wrong").is_none());
        let attached = join_all(&[&[("SHEAVE_RANK", "0"), ("SHEAVE_WORLD_SIZE", "1")]], |host| {
            let invitation = host.invite("check").expect("there is room");
            let text = invitation.to_text();
            let config = GuestConfig::from_lookup(lookup(&[(INVITATION_VARIABLE, &*text)]));
            let mut config = config.expect("it makes sense").expect("it is invited");
            config.node.secret = secret_of_the_tests();
            let guest = Guest::attach(config).expect("it is invited");
            let known: Vec<String> = host.guests().into_iter().map(|guest| guest.name).collect();
            assert_eq!(known, [guest.name()]);
            guest.leave().expect("nothing is in its way");
        });
        attached.into_iter().for_each(|outcome| outcome.expect("all is well"));
    }

    "SHEAVE_COLLECTIVE_TABLE" collective_table_has_the_rules {
        let usual = sheave(&["tune", "--bytes", "8"], &[]);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rules");
        std::fs::write(&path, "all_reduce links doubling\n").expect("room");
        let output = sheave(&["tune", "--bytes", "8"], &[("SHEAVE_COLLECTIVE_TABLE", path.to_str().expect("text"))]);
        assert_eq!(usual.status.code(), Some(0), "{usual:?}");
        assert_ne!(usual.stdout, output.stdout);
    }

    "SHEAVE_STRICT" strict_makes_an_unknown_name_an_error {
        for arguments in [&["tune", "--bytes", "8"][..], &["launch", "-n", "1", "--", "true"]] {
            let output = sheave(arguments, &[MISSPELT, ("SHEAVE_STRICT", "yes")]);
            assert_eq!(output.status.code(), Some(2), "{output:?}");
            assert_eq!(text(&output.stderr), format!("sheave: {TOLD}\n"));
        }
        assert_eq!(sheave(&["launch", "-n", "1", "--", "true"], &[MISSPELT]).status.code(), Some(0));
        let strict = [MISSPELT, ("SHEAVE_STRICT", "1"), ("SHEAVE_RANK", "0"), ("SHEAVE_WORLD_SIZE", "1")];
        let line = member_line();
        let strict = [&strict[..], &[("SHEAVE_TEST_MEMBER", "1")]].concat();
        let output = run(Command::new(&line[0]).args(&line[1..]), &strict);
        assert!(!output.status.success() && text(&output.stderr).contains("SHEAVE_TRANPORT"), "{output:?}");
    }

    "SHEAVE_PROCESS_JOB" process_job_marks_the_processes_of_a_job {
        let line = ["launch", "-n", "1", "--", "sh", "-c", "echo \"marked $SHEAVE_PROCESS_JOB.\""];
        let marks = [(); 2].map(|()| {
            let output = sheave(&line, &[("SHEAVE_PROCESS_JOB", "mine")]);
            let mark = text(&output.stdout).split("marked ").nth(1).expect("it says so").trim().to_owned();
            assert!(mark.len() > 8 && mark != "mine.", "{mark}");
            mark
        });
        assert_ne!(marks[0], marks[1]);
    }

    "SHEAVE_PROCESS_LOSSES" process_losses_is_where_a_loss_is_noted {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("losses");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).expect("a pipe");
        let mut pipe = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("it is there");
        let path = path.to_str().expect("text").to_owned();
        let rank = |rank| [("SHEAVE_RANK", rank), ("SHEAVE_WORLD_SIZE", "2"), ("SHEAVE_PROCESS_LOSSES", &*path)];
        let ranks = ["0", "1"].map(rank);
        let ended = super::join_all(&[&ranks[0], &ranks[1]], |mesh| {
            if mesh.me().rank.0 == 1 {
                mesh.fail("it had enough");
            } else {
                mesh.world().barrier().expect_err("the other fails");
            }
        });
        drop(ended);
        let mut noted = [0; 64];
        let count = pipe.read(&mut noted).expect("somebody has written");
        assert!(text(&noted[..count]).starts_with("lost\trank-0\trank-1\n"), "{:?}", text(&noted[..count]));
    }
}

/// Whether two nodes with these secrets link.
fn links(one: &secret::Resolved, other: &secret::Resolved) -> bool {
    use sheave_net::{ListenConfig, Node};
    let start = |name, secret: &secret::Resolved| {
        let config = sheave_net::NodeConfig { secret: Some(secret.clone()), ..super::node_config(name, &[]) };
        Node::start(config).expect("a node")
    };
    let (left, right) = (start("left", one), start("right", other));
    let address = right.listen(ListenConfig::default()).expect("a free port");
    left.connect(&address, super::soon()).is_ok()
}
