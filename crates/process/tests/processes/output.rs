//! What children write arrives whole.

use crate::common::{Actor, part, soon};
use sheave_base::{ErrorKind, limits};
use sheave_process::{Child, Colour, Command, Job, Outcome, Output};
use std::io::Write;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const NOISE: &str =
    "i=0; while [ $i -lt 3000 ]; do echo $NAME out $i $FILLER; echo $NAME err $i $FILLER >&2; i=$((i+1)); done";

fn noisy(name: &str) -> Command {
    let filler = name.repeat(20);
    Command::new("sh").args(["-c", NOISE]).env("NAME", name).env("FILLER", filler).name(name)
}

fn finish(job: &Job) {
    assert_eq!(job.wait_first_failure_or_all(Some(soon())).unwrap(), Some(Outcome::AllEnded));
}

/// A writer whose content stays in reach.
#[derive(Clone, Default)]
struct Shelf(Arc<Mutex<Vec<u8>>>);

impl Write for Shelf {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn lines_of(text: &str, name: &str, stream: &str) -> Vec<String> {
    let start = format!("{name} | {name} {stream} ");
    text.lines().filter(|line| line.starts_with(&start)).map(str::to_owned).collect()
}

fn expected(name: &str, stream: &str) -> Vec<String> {
    let filler = name.repeat(20);
    (0..3000).map(|number| format!("{name} | {name} {stream} {number} {filler}")).collect()
}

#[test]
fn lines_of_noisy_children_are_whole_and_in_order() {
    let shelf = Shelf::default();
    let job = Job::builder().output(Output::PrefixedInto(Box::new(shelf.clone()))).start().unwrap();
    job.spawn(noisy("worker-0")).unwrap();
    job.spawn(noisy("server-1")).unwrap();
    finish(&job);
    assert!(job.end(Duration::ZERO).trouble.is_none());
    let text = String::from_utf8(shelf.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.lines().count(), 4 * 3000);
    for name in ["worker-0", "server-1"] {
        for stream in ["out", "err"] {
            assert_eq!(lines_of(&text, name, stream), expected(name, stream));
        }
    }
}

#[test]
fn role_printer() {
    let Some((part, _)) = part() else { return };
    let colour = if part == "colour" { Colour::Always } else { Colour::Auto };
    let job = Job::builder().output(Output::Prefixed { colour }).start().unwrap();
    println!();
    match part.as_str() {
        "noise" => {
            job.spawn(noisy("worker-0")).unwrap();
            job.spawn(noisy("worker-1")).unwrap();
        }
        _ => drop(job.spawn(Command::new("printf").arg("caf\\351\\nno end").name("worker-0")).unwrap()),
    }
    finish(&job);
    assert!(job.end(Duration::ZERO).trouble.is_none());
}

#[test]
fn standard_output_gets_whole_lines_too() {
    let mut actor = Actor::start_with("output::role_printer", "noise", "", Stdio::null());
    let text = String::from_utf8(actor.rest()).unwrap();
    for name in ["worker-0", "worker-1"] {
        assert_eq!(lines_of(&text, name, "out"), expected(name, "out"));
        assert!(lines_of(&text, name, "err").is_empty(), "standard error does not go to standard output");
    }
}

#[test]
fn bytes_and_partial_lines_pass_and_colour_is_off_without_a_terminal() {
    let plain = Actor::start("output::role_printer", "plain", "").rest();
    let find = |haystack: &[u8], needle: &[u8]| haystack.windows(needle.len()).any(|window| window == needle);
    assert!(find(&plain, b"worker-0 | caf\xe9\nworker-0 | no end\n"), "{}", plain.escape_ascii());
    assert!(!plain.contains(&0x1b));
    let coloured = Actor::start("output::role_printer", "colour", "").rest();
    assert!(find(&coloured, b"\x1b[36mworker-0 |\x1b[0m caf\xe9\n"), "{}", coloured.escape_ascii());
}

#[test]
fn a_line_without_end_comes_in_pieces() {
    let shelf = Shelf::default();
    let job = Job::builder().output(Output::PrefixedInto(Box::new(shelf.clone()))).start().unwrap();
    let length = 10 * limits::OUTPUT_LINE_BYTES_MAX + 7;
    job.spawn(Command::new("sh").args(["-c", &format!("head -c {length} /dev/zero | tr '\\0' x")]).name("w")).unwrap();
    finish(&job);
    job.end(Duration::ZERO);
    let bytes = shelf.0.lock().unwrap().clone();
    let text = String::from_utf8(bytes).unwrap();
    let pieces: Vec<_> = text.lines().map(|line| line.split_at(4)).collect();
    assert_eq!(pieces.len(), 11);
    assert_eq!(pieces[0].0, "w | ");
    assert!(pieces[1..].iter().all(|(prefix, _)| *prefix == "w + "));
    assert_eq!(pieces.iter().map(|(_, piece)| piece.len()).sum::<usize>(), length);
}

fn capture(script: &str) -> (Job, Child) {
    let job = Job::builder().output(Output::Capture).start().unwrap();
    let child = job.spawn(Command::new("sh").args(["-c", script]).name("worker-0")).unwrap();
    (job, child)
}

#[test]
fn captured_lines_can_be_waited_for() {
    let (_job, child) = capture("echo port 4711; echo oops >&2; sleep 60");
    assert_eq!(child.wait_for_stdout("port", soon()).unwrap(), "port 4711");
    assert_eq!(child.wait_for_stdout("port", soon()).unwrap(), "port 4711", "a line can be found again");
    assert_eq!(child.wait_for_stdout_line(|line| line.ends_with('1'), soon()).unwrap(), "port 4711");
    child.wait_for_stderr("oops", soon()).unwrap();
    let late = child.wait_for_stdout("other", Instant::now()).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
    let text = late.to_string();
    assert!(text.contains("\"other\"") && text.contains("worker-0") && text.contains("oops"), "{text}");
}

#[test]
fn a_line_that_will_never_come_is_not_waited_for() {
    let (_job, child) = capture("echo one; exit 3");
    let started = Instant::now();
    assert_eq!(child.wait_for_stdout("two", soon()).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(started.elapsed() < Duration::from_secs(20));
    let job = Job::start().unwrap();
    let child = job.spawn(Command::new("true")).unwrap();
    assert_eq!(child.wait_for_stdout("x", soon()).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn a_flood_is_captured_in_bounded_memory() {
    let (job, child) = capture("yes 0123456789abcdef | head -c 30000000; echo; echo last");
    child.wait(Some(soon())).unwrap().unwrap();
    job.end(Duration::ZERO);
    let bytes = child.stdout_bytes();
    assert!(bytes.len() <= 2 * limits::OUTPUT_CAPTURED_BYTES_MAX, "{} bytes were kept", bytes.len());
    assert!(bytes.ends_with(b"\nlast\n"));
}
