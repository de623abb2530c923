//! Programs of the facade as real processes: how they end, and what the others read.

use sheave::ErrorKind;
use sheave::base::config::Endpoint;
use sheave::mesh::{Config, Expected, Role};
use sheave::prelude::*;
use std::net::TcpListener;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// What a child does, by the variable that names it. Its status is that of the process.
fn act(what: &str, mesh: &Mesh) -> sheave::Result<()> {
    let all = Collectives::new(mesh)?.group(&mesh.world())?;
    let rank = mesh.me().rank;
    match what {
        "average" => {
            let mut numbers = [f64::from(rank.0), 1.0];
            all.all_reduce_slice(&mut numbers, Operator::Avg)?;
            assert_eq!(numbers, [1.0, 1.0]);
            let mut name = [rank.0 as i64 + 5];
            all.broadcast_slice(&mut name, Rank(2))?;
            assert_eq!(name, [7]);
            assert_eq!(all.all_gather_slice(&[rank.0 as i32])?, [0, 1, 2]);
            let told = ("rates".to_owned(), vec![0.1, 0.01]);
            let given = (rank == Rank(1)).then_some(&told);
            assert_eq!(all.broadcast_value(given, Rank(1))?, told);
            Ok(())
        }
        "finish" => mesh.finish(),
        "nothing to tell" => {
            let outcome = all.broadcast_value::<u32>(None, Rank(0));
            let kind = outcome.expect_err("rank 0 gives nothing").kind();
            assert_eq!(kind, if rank == Rank(0) { ErrorKind::InvalidArgument } else { ErrorKind::Remote });
            all.barrier().wait()
        }
        "fail" if rank == Rank(1) => Err(sheave::Error::new(ErrorKind::Io, "the disk is full")),
        "panic" if rank == Rank(1) => panic!("on purpose"),
        _ => mesh.world().barrier(),
    }
}

/// Runs as a child, if the environment says what it is to do.
#[test]
fn child() {
    let Ok(what) = std::env::var("RUN_TEST") else { return };
    let status = sheave::run(|mesh| act(&what, mesh));
    let statuses = [ExitCode::SUCCESS, ExitCode::FAILURE, ExitCode::from(2)];
    let code = statuses.iter().position(|known| *known == status).expect("one of them");
    std::process::exit(code as i32);
}

fn start(what: &str, environment: &[(&str, String)]) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("it runs"));
    command.args(["--exact", "child", "--nocapture"]).env("RUN_TEST", what);
    command.envs(environment.iter().map(|(name, value)| (*name, value.as_str())));
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// The exit codes of three processes that do the same, and what they said.
fn three(what: &str) -> Vec<(Option<i32>, String)> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let place = |rank: u32| {
        [
            ("SHEAVE_RANK", rank.to_string()),
            ("SHEAVE_WORLD_SIZE", "3".to_owned()),
            ("SHEAVE_ROOT", format!("127.0.0.1:{port}")),
            ("SHEAVE_SECRET", "a secret of these tests alone".to_owned()),
        ]
    };
    let children: Vec<Child> = (0..3).map(|rank| start(what, &place(rank))).collect();
    children.into_iter().map(ended).collect()
}

fn ended(mut child: Child) -> (Option<i32>, String) {
    let until = Instant::now() + LIMIT;
    while child.try_wait().expect("it is ours").is_none() {
        if Instant::now() > until {
            child.kill().expect("it is ours");
            panic!("a process did not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("it has ended");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn slices_and_values_go_round_and_the_program_ends_well() {
    for what in ["average", "finish", "nothing to tell"] {
        for (code, said) in three(what) {
            assert_eq!((code, said.as_str()), (Some(0), ""), "{what}");
        }
    }
}

#[test]
fn whoever_fails_says_why_and_the_others_name_it() {
    let ends = three("fail");
    assert_eq!(ends[1], (Some(1), "error: the disk is full\n".to_owned()));
    for (code, said) in [&ends[0], &ends[2]] {
        assert_eq!(*code, Some(1), "{said}");
        assert!(said.contains("rank-1") && said.contains("the disk is full"), "{said}");
    }
}

#[test]
fn whoever_panics_has_failed() {
    let ends = three("panic");
    assert!(ends[1].0 == Some(101) && ends[1].1.contains("on purpose"), "{ends:?}");
    for (code, said) in [&ends[0], &ends[2]] {
        assert!(*code == Some(1) && said.contains("rank-1"), "{said}");
    }
}

#[test]
fn settings_that_make_no_sense_are_bad_input() {
    let (code, said) = ended(start("finish", &[("SHEAVE_RANK", "seven".to_owned())]));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.starts_with("error: ") && said.contains("SHEAVE_RANK") && said.contains("seven"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_program_that_nobody_launched_is_a_job_of_its_own() {
    assert_eq!(ended(start("finish", &[])), (Some(0), String::new()));
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let root = Endpoint { host: "127.0.0.1".into(), port };
    let config = Config::new(Role::Rank, Some(0), Expected::ranks(1), root);
    let status = sheave::run_with(config, |mesh| {
        assert_eq!((mesh.name(), mesh.role()), ("rank-0", Role::Rank));
        Ok(())
    });
    assert_eq!(status, ExitCode::SUCCESS);
}
