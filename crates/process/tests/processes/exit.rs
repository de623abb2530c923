//! How children start and end, and what the job says about it.

use crate::common;
use crate::common::{lives, new_tag, soon, tagged, until};
use sheave_base::{ErrorKind, limits};
use sheave_process::{Command, Job, Outcome, Output, Status};
use std::time::{Duration, Instant};

fn shell(script: &str) -> Command {
    Command::new("sh").args(["-c", script])
}

fn capturing() -> Job {
    Job::builder().output(Output::Capture).start().unwrap()
}

#[test]
fn the_first_failure_is_reported_with_status_and_last_words() {
    let job = Job::start().unwrap();
    job.spawn(shell("trap 'exit 9' TERM; while :; do sleep 0.01; done").name("server-0").background()).unwrap();
    job.spawn(shell("exit 0").name("worker-0")).unwrap();
    job.spawn(shell("for n in $(seq 30); do echo word $n >&2; done; kill -KILL $$").name("worker-1")).unwrap();
    let Some(Outcome::Failed(exit)) = job.wait_first_failure_or_all(Some(soon())).unwrap() else {
        panic!("no failure was seen");
    };
    assert_eq!((exit.name.as_str(), exit.status), ("worker-1", Status::Signal(9)));
    let report = job.end(Duration::from_secs(20));
    let failure = report.first_failure.as_ref().unwrap();
    assert_eq!(failure.exit, exit);
    let expected: Vec<_> = (11..=30).map(|number| format!("word {number}")).collect();
    assert_eq!(failure.last_stderr_lines, expected);
    let text = report.to_string();
    assert!(text.starts_with(&format!("worker-1 (pid {}) killed by signal 9 (SIGKILL); its last", exit.pid)), "{text}");
    assert!(text.ends_with("\n  word 30"), "{text}");
    assert_eq!(report.exit_code(), 137, "what the server answers to SIGTERM does not count: {report:?}");
    assert_eq!(report.exits.len(), 3);
}

#[test]
fn the_worst_exit_code_counts_and_the_first_failure_stays_the_first() {
    let job = Job::start().unwrap();
    let first = job.spawn(shell("exit 3").name("first")).unwrap();
    first.wait(Some(soon())).unwrap().unwrap();
    let second = job.spawn(shell("kill -TERM $$").name("second")).unwrap();
    second.wait(Some(soon())).unwrap().unwrap();
    let report = job.end(Duration::ZERO);
    assert_eq!(report.first_failure.as_ref().unwrap().exit.name, "first");
    assert_eq!(report.exit_code(), 143);
}

#[test]
fn all_ended_does_not_wait_for_the_background() {
    let job = Job::start().unwrap();
    assert_eq!(job.wait_first_failure_or_all(None).unwrap(), Some(Outcome::AllEnded));
    let server = job.spawn(Command::new("sleep").arg("60").name("server-0").background()).unwrap();
    let worker = job.spawn(Command::new("sleep").arg("60").name("worker-0")).unwrap();
    let short = Some(Instant::now() + Duration::from_millis(20));
    assert_eq!(job.wait_first_failure_or_all(short).unwrap(), None);
    assert_eq!(worker.wait(short).unwrap(), None);
    drop(worker);
    let quick = job.spawn(shell("exit 0").name("worker-1")).unwrap();
    quick.wait(Some(soon())).unwrap().unwrap();
    assert!(lives(server.pid()), "the server was to run on");
    let job = Job::start().unwrap();
    job.spawn(Command::new("sleep").arg("60").background()).unwrap();
    job.spawn(shell("exit 0")).unwrap();
    assert_eq!(job.wait_first_failure_or_all(Some(soon())).unwrap(), Some(Outcome::AllEnded));
}

#[test]
fn the_end_is_asked_for_before_it_is_forced() {
    let job = capturing();
    let polite = job.spawn(shell("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done")).unwrap();
    let deaf = job.spawn(shell("trap '' TERM; echo up; while :; do sleep 0.01; done")).unwrap();
    let stopped = job.spawn(shell("trap 'exit 5' TERM; echo up; kill -STOP $$; while :; do sleep 0.01; done")).unwrap();
    for child in [&polite, &deaf, &stopped] {
        child.wait_for_stdout("up", soon()).unwrap();
    }
    until("the third stands still", soon(), || common::stat(stopped.pid()).is_some_and(|(state, _)| state == 'T'));
    let started = Instant::now();
    let report = job.end(Duration::from_millis(500));
    assert!(started.elapsed() >= Duration::from_millis(500), "the deaf one has its time");
    assert_eq!(polite.stdout_lines(), ["up", "bye"]);
    let status = |child: &sheave_process::Child| child.exit().unwrap().status;
    assert_eq!(status(&polite), Status::Code(0));
    assert_eq!(status(&deaf), Status::Signal(libc::SIGKILL));
    assert_eq!(status(&stopped), Status::Code(5));
    assert!(report.first_failure.is_none() && report.exits.iter().all(|exit| exit.asked_for));
    assert_eq!(job.end(Duration::ZERO).exits, report.exits, "ending twice says the same");
    assert_eq!(job.spawn(shell("exit 0")).unwrap_err().kind(), ErrorKind::Closed);
    polite.kill(libc::SIGTERM).unwrap();
}

#[test]
fn signals_reach_the_whole_group_of_a_child() {
    let tag = new_tag();
    let job = Job::start().unwrap();
    let child = job.spawn(shell(&format!("sleep {tag} & sleep {tag}; exit 0"))).unwrap();
    until("both sleep", soon(), || tagged(&tag).len() == 2);
    child.kill(libc::SIGTERM).unwrap();
    assert_eq!(child.wait(Some(soon())).unwrap().unwrap().status, Status::Signal(libc::SIGTERM));
    until("the background is gone too", soon(), || tagged(&tag).is_empty());
    child.kill(libc::SIGKILL).unwrap();
    assert_eq!(child.kill(0).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn children_that_cannot_start_say_why_and_are_no_failure_of_the_job() {
    let job = Job::start().unwrap();
    let kind = |command: Command| job.spawn(command).unwrap_err();
    let missing = kind(Command::new("no-such-program-anywhere"));
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(missing.to_string().contains("no-such-program-anywhere"), "{missing}");
    assert_eq!(kind(Command::new("/no/such/program")).kind(), ErrorKind::NotFound);
    assert_eq!(kind(Command::new("/proc/self/status")).kind(), ErrorKind::Io);
    let directory = kind(Command::new("true").current_dir("/no/such/directory"));
    assert!(directory.to_string().contains("working directory"), "{directory}");
    let sleeper = || Command::new("sleep").arg("60").name("twin");
    job.spawn(sleeper()).unwrap();
    assert_eq!(kind(sleeper()).kind(), ErrorKind::AlreadyExists);
    let report = job.end(Duration::ZERO);
    assert!(report.first_failure.is_none() && report.exit_code() == 0, "{report:?}");
    assert_eq!(report.exits.len(), 1);
}

#[test]
fn a_name_is_free_again_when_its_child_has_ended() {
    let job = Job::start().unwrap();
    for _ in 0..3 {
        let child = job.spawn(shell("exit 0").name("worker-0")).unwrap();
        assert!(child.wait(Some(soon())).unwrap().unwrap().status.success());
    }
}

#[test]
fn the_surroundings_of_a_child_are_what_was_asked_for() {
    let job = capturing();
    let command = shell("echo $ROLE-${HOME-none}; pwd; cat; grep -E '^Sig(Blk|Ign)' /proc/self/status; exec sleep 60")
        .env("ROLE", "worker")
        .env_remove("HOME")
        .current_dir("/usr");
    let child = job.spawn(command).unwrap();
    for name in ["SigBlk", "SigIgn"] {
        let line = child.wait_for_stdout(name, soon()).unwrap();
        let set = u64::from_str_radix(line.rsplit('\t').next().unwrap(), 16).unwrap();
        // The C library keeps 32 and 33 for itself and lets nobody change them.
        assert_eq!(set & !(0b11 << 31), 0, "{line}");
    }
    assert_eq!(child.stdout_lines()[..2], ["worker-none", "/usr"]);
    // A program that is still loading its libraries has files of its own open.
    until("nothing is inherited but the standard streams", soon(), || {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", child.pid())).unwrap();
        let mut names: Vec<_> = descriptors.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names == ["0", "1", "2"]
    });
}

#[test]
fn a_large_environment_and_many_children_fit() {
    let job = capturing();
    let large = "x".repeat(100_000);
    let child = job.spawn(shell("echo ${#LARGE}").env("LARGE", &large)).unwrap();
    child.wait_for_stdout("100000", soon()).unwrap();
    let children: Vec<_> =
        (0..64).map(|rank| job.spawn(shell("exit $RANK").env("RANK", rank.to_string())).unwrap()).collect();
    for (rank, child) in children.iter().enumerate() {
        let status = child.wait(Some(soon())).unwrap().unwrap().status;
        assert_eq!(status, Status::Code(i32::try_from(rank).unwrap()));
    }
    assert_eq!(job.end(Duration::ZERO).exit_code(), 63);
    const { assert!(limits::JOB_CHILDREN_MAX >= 64) };
}

#[test]
fn spawning_from_many_threads_at_once_mixes_nothing_up() {
    let job = capturing();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let job = &job;
            scope.spawn(move || {
                for round in 0..8 {
                    let word = format!("thread {thread} round {round}");
                    let child = job.spawn(Command::new("echo").arg(&word).name(&word)).unwrap();
                    assert!(child.wait(Some(soon())).unwrap().unwrap().status.success());
                    assert!(child.wait_for_output_end(soon()));
                    assert_eq!(child.stdout_lines(), [word]);
                }
            });
        }
    });
}

#[test]
fn a_child_reads_what_it_is_given() {
    let (read, mut write) = std::io::pipe().unwrap();
    let job = capturing();
    let child = job.spawn(Command::new("cat").input(read)).unwrap();
    std::io::Write::write_all(&mut write, b"through a pipe\n").unwrap();
    child.wait_for_stdout("through a pipe", soon()).unwrap();
    drop(write);
    assert_eq!(job.wait_first_failure_or_all(Some(soon())).unwrap(), Some(Outcome::AllEnded), "nobody else writes");
}

#[test]
fn an_end_is_judged_by_whoever_knows_better_than_the_exit_code() {
    let job = Job::start().unwrap();
    job.spawn(shell("exit 3").name("worker-0").judged_by(|status| status == Status::Code(3))).unwrap();
    assert_eq!(job.wait_first_failure_or_all(Some(soon())).unwrap(), Some(Outcome::AllEnded));
    job.spawn(Command::new("sleep").arg("60").name("worker-1")).unwrap();
    job.spawn(shell("exit 0").name("worker-2").judged_by(|_| false)).unwrap();
    let Some(Outcome::Failed(exit)) = job.wait_first_failure_or_all(Some(soon())).unwrap() else {
        panic!("no failure was seen");
    };
    assert_eq!((exit.name.as_str(), exit.status, exit.is_well), ("worker-2", Status::Code(0), false));
    let report = job.end(Duration::ZERO);
    assert_eq!((report.exit_code(), report.exits.len()), (1, 3));
    assert!(report.exits[0].is_well && !report.exits[0].is_failure());
}

#[test]
fn a_foreign_wait_does_not_see_the_guard() {
    let job = Job::start().unwrap();
    let guard = i32::try_from(job.guard_pid()).unwrap();
    // SAFETY: the status is not wanted; asking for one process takes nobody else's child away.
    let seen = unsafe { libc::waitpid(guard, std::ptr::null_mut(), libc::WNOHANG) };
    assert_eq!((seen, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ECHILD)));
}

#[test]
fn the_end_of_a_child_is_a_work_for_those_who_do_not_wait() {
    let job = Job::start().unwrap();
    let child = job.spawn(shell("echo last >&2; exit 4").name("worker-0").inherit_input()).unwrap();
    let (sender, heard) = std::sync::mpsc::channel();
    child.ended().on_complete(move |exit| sender.send(exit.clone()).unwrap());
    assert_eq!(child.ended().wait_timeout(Duration::from_secs(30)).unwrap().status, Status::Code(4));
    assert_eq!(heard.recv_timeout(Duration::from_secs(30)).unwrap().unwrap(), child.exit().unwrap());
    child.output_ended().wait_timeout(Duration::from_secs(30)).unwrap();
    assert_eq!(child.last_stderr_lines(), ["last"]);
    let server = job.spawn(Command::new("sleep").arg("60").name("server-0").background()).unwrap();
    let (ended, quiet) = (server.ended(), server.output_ended());
    assert!(!ended.is_done() && !quiet.is_done());
    drop(job.end(Duration::ZERO));
    assert_eq!(ended.wait_timeout(Duration::from_secs(30)).unwrap().status, Status::Signal(9));
    quiet.wait_timeout(Duration::from_secs(30)).unwrap();
    let lost = Job::start().unwrap();
    let child = lost.spawn(Command::new("sleep").arg("60")).unwrap();
    common::send_signal(lost.guard_pid(), 9);
    assert_eq!(child.ended().wait_timeout(Duration::from_secs(30)).unwrap().status, Status::Lost);
}
