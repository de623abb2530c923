//! Nothing is left behind, however the supervisor, its threads or the guard end.

use crate::common;
use crate::common::{Actor, lives, new_tag, part, send_signal, soon, tagged, until};
use sheave_base::ErrorKind;
use sheave_process::{Child, Command, Job, Outcome, Output, Status};
use std::time::{Duration, Instant};

/// What nobody may outlive.
const BOUND: Duration = Duration::from_secs(1);

/// Foreign commands that try, on purpose or not, to leave processes behind; with how many `sleep` processes each makes.
fn foreign_commands(tag: &str) -> Vec<(Command, usize)> {
    let shell = |script: &str| Command::new("sh").args(["-c", &script.replace("TAG", tag)]);
    vec![
        (Command::new("sleep").arg(tag), 1),
        (shell("sleep TAG & sleep TAG"), 2),
        (shell("setsid sleep TAG & wait"), 1),
        // A daemon by the book: fork, session, fork, and both forebears gone.
        (shell("(setsid sh -c 'sleep TAG & exit 0' &); exec sleep TAG"), 2),
        // Orphans of a child that has long ended.
        (shell("setsid sh -c 'sleep TAG & setsid sleep TAG & exit 0' & exit 0"), 2),
        (shell("trap '' TERM INT HUP; sleep TAG; sleep TAG"), 1),
    ]
}

fn spawn_foreign(job: &Job, tag: &str) -> (Vec<Child>, usize) {
    let commands = foreign_commands(tag);
    let sleepers = commands.iter().map(|(_, sleepers)| sleepers).sum();
    let children = commands.into_iter().map(|(command, _)| job.spawn(command).unwrap()).collect();
    until("the foreign commands run", soon(), || tagged(tag).len() == sleepers);
    (children, sleepers)
}

#[test]
fn role_supervisor() {
    let Some((part, tag)) = part() else { return };
    let job = Job::start().unwrap();
    spawn_foreign(&job, &tag);
    println!("\nguard {}", job.guard_pid());
    match part.as_str() {
        "stay" => common::stay(),
        // The descriptors of the job are held open by a fork that lives on: their closing must not be what counts.
        "forked" => {
            let copy = fork_sleeper();
            println!("copy {copy}");
            common::stay()
        }
        "abort" => std::process::abort(),
        "exit" => std::process::exit(3),
        other => panic!("no part {other}"),
    }
}

fn fork_sleeper() -> i32 {
    // SAFETY: the child calls `pause` and `_exit` only.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::alarm(60);
            libc::pause();
            libc::_exit(0);
        }
        pid
    }
}

fn gone_within_bound(tag: &str, guard: u32) {
    let deadline = Instant::now() + BOUND;
    until("all descendants are gone", deadline, || tagged(tag).is_empty());
    until("the guard is gone", deadline, || !lives(guard));
}

#[test]
fn a_killed_supervisor_takes_everybody_with_it() {
    for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGQUIT] {
        let tag = new_tag();
        let mut actor = Actor::start("guard::role_supervisor", "stay", &tag);
        let guard = actor.line_after("guard ").parse().unwrap();
        assert!(!tagged(&tag).is_empty() && lives(guard));
        send_signal(actor.pid(), signal);
        gone_within_bound(&tag, guard);
    }
}

#[test]
fn a_supervisor_that_ends_by_itself_takes_everybody_with_it() {
    for part in ["abort", "exit"] {
        let tag = new_tag();
        let mut actor = Actor::start("guard::role_supervisor", part, &tag);
        let guard = actor.line_after("guard ").parse().unwrap();
        assert!(!actor.wait().success());
        gone_within_bound(&tag, guard);
    }
}

#[test]
fn a_fork_of_the_supervisor_does_not_hide_its_death() {
    let tag = new_tag();
    let mut actor = Actor::start("guard::role_supervisor", "forked", &tag);
    let guard = actor.line_after("guard ").parse().unwrap();
    let copy: u32 = actor.line_after("copy ").parse().unwrap();
    send_signal(actor.pid(), libc::SIGKILL);
    gone_within_bound(&tag, guard);
    assert!(lives(copy), "the fork was to stay, or this test shows nothing");
    send_signal(copy, libc::SIGKILL);
}

#[test]
fn a_child_lives_on_when_the_thread_that_spawned_it_has_ended() {
    let job = Job::builder().output(Output::Capture).start().unwrap();
    let script = "trap 'echo alive' USR1; echo ready; while :; do sleep 0.01; done";
    let (child, thread_id) = std::thread::scope(|scope| {
        let spawner = scope.spawn(|| {
            let child = job.spawn(Command::new("sh").args(["-c", script])).unwrap();
            child.wait_for_stdout("ready", soon()).unwrap();
            // SAFETY: no preconditions.
            (child, unsafe { libc::gettid() })
        });
        spawner.join().unwrap()
    });
    until("the thread is gone", soon(), || !std::path::Path::new(&format!("/proc/self/task/{thread_id}")).exists());
    for round in 1..=20 {
        child.kill(libc::SIGUSR1).unwrap();
        until("the child answers", soon(), || child.stdout_lines().len() > round);
    }
    assert_eq!(child.exit(), None);
}

#[test]
fn a_job_that_was_started_by_a_thread_outlives_it() {
    let job = std::thread::spawn(|| Job::start().unwrap()).join().unwrap();
    let child = job.spawn(Command::new("sh").args(["-c", "exit 4"])).unwrap();
    assert_eq!(child.wait(Some(soon())).unwrap().unwrap().status, Status::Code(4));
}

#[test]
fn ending_and_dropping_leave_nothing() {
    let tag = new_tag();
    let job = Job::start().unwrap();
    let guard = job.guard_pid();
    spawn_foreign(&job, &tag);
    let report = job.end(Duration::from_millis(200));
    assert!(tagged(&tag).is_empty() && !lives(guard));
    assert!(report.trouble.is_none(), "{report}");
    assert_eq!(report.exit_code(), 0, "ends that were asked for do not count: {report:?}");

    let tag = new_tag();
    let job = Job::start().unwrap();
    spawn_foreign(&job, &tag);
    drop(job);
    assert!(tagged(&tag).is_empty());
}

/// A process that is never there long enough to be looked at: each copy starts the next in a session of its own.
#[test]
fn a_process_that_hops_from_session_to_session_is_caught() {
    let tag = new_tag();
    let job = Job::start().unwrap();
    // Not for ever, in case that this test fails.
    let hop =
        format!(r#"[ $LEFT -gt 0 ] || exit; export LEFT=$((LEFT-1)); sleep {tag} & setsid sh -c "$HOP" & exit 0"#);
    job.spawn(Command::new("sh").args(["-c", &hop]).env("HOP", &hop).env("LEFT", "5000")).unwrap();
    until("it hops", soon(), || tagged(&tag).len() > 20);
    let report = job.end(Duration::ZERO);
    assert!(report.trouble.is_none(), "{report}");
    assert!(tagged(&tag).is_empty());
}

#[test]
fn the_guard_holds_neither_files_nor_shared_memory_of_its_supervisor() {
    let file = std::fs::File::open("/proc/self/status").unwrap();
    // SAFETY: a new mapping at an address of the kernel's choice; nobody uses it.
    let memory = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), 1 << 20, protection, flags, -1, 0)
    };
    assert_ne!(memory, libc::MAP_FAILED);
    let shared_mappings = |process: &str| {
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
        maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|mode| mode.ends_with('s'))).count()
    };
    assert!(shared_mappings("self") > 0);
    let job = Job::start().unwrap();
    let guard = job.guard_pid();
    assert_eq!(shared_mappings(&guard.to_string()), 0);
    let descriptors = std::fs::read_dir(format!("/proc/{guard}/fd")).unwrap().count();
    assert_eq!(descriptors, 6, "three streams, the socket, the supervisor's pidfd and the child signals");
    job.spawn(Command::new("true")).unwrap().wait(Some(soon())).unwrap().unwrap();
    drop((job, file));
    // SAFETY: the mapping was made above and is not used any more.
    unsafe { libc::munmap(memory, 1 << 20) };
}

#[test]
fn a_killed_guard_takes_everybody_with_it_and_is_reported() {
    let tag = new_tag();
    let job = Job::start().unwrap();
    let (children, _) = spawn_foreign(&job, &tag);
    let sleeper = &children[0];
    send_signal(job.guard_pid(), libc::SIGKILL);
    let deadline = Instant::now() + BOUND;
    until("all descendants are gone", deadline, || tagged(&tag).is_empty());
    assert_eq!(sleeper.wait(Some(soon())).unwrap().unwrap().status, Status::Lost);
    let outcome = job.wait_first_failure_or_all(Some(soon())).unwrap().unwrap();
    assert!(matches!(outcome, Outcome::Failed(exit) if exit.status == Status::Lost));
    assert_eq!(job.spawn(Command::new("true")).unwrap_err().kind(), ErrorKind::Closed);
    let report = job.end(Duration::from_secs(1));
    assert_eq!(report.trouble.as_ref().map(sheave_base::Error::kind), Some(ErrorKind::PeerLost));
    assert_eq!(report.exit_code(), 137);
}

#[test]
fn a_stopped_guard_does_not_stop_the_end() {
    let tag = new_tag();
    let job = Job::start().unwrap();
    job.spawn(Command::new("sh").args(["-c", &format!("sleep {tag} & wait")])).unwrap();
    until("the child runs", soon(), || tagged(&tag).len() == 1);
    send_signal(job.guard_pid(), libc::SIGSTOP);
    let _ = job.end(Duration::from_millis(10));
    assert!(tagged(&tag).is_empty());
}

#[test]
fn a_forked_copy_of_the_supervisor_cannot_end_the_job() {
    let job = Job::start().unwrap();
    let child = job.spawn(Command::new("sleep").arg("60")).unwrap();
    // SAFETY: the copy runs only what does nothing in a copy, and leaves by `_exit`.
    let copy = unsafe { libc::fork() };
    if copy == 0 {
        let refused = child.kill(libc::SIGKILL).is_err_and(|error| error.kind() == ErrorKind::Forked);
        drop(job);
        // SAFETY: no preconditions.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = -1;
    // SAFETY: the status is valid for a write.
    unsafe { libc::waitpid(copy, &raw mut status, 0) };
    assert_eq!(status, 0);
    assert!(lives(child.pid()) && child.exit().is_none());
}
