//! Pools of real processes: what they compute, and what becomes of tasks whose workers die.

use crate::common::{PART, PATIENCE, SIGKILL, host, lives, playing, say, until};
use sheave_base::{Error, ErrorKind, ProcessEnd, Result, Work};
use sheave_mesh::{Guest, GuestConfig, Mesh};
use sheave_net::{Part, Parts, Tensors};
use sheave_pool::{Function, Functions, Named, Packet, Pool, PoolBuilder, Program, Settings, Turn, work, work_with};
use sheave_process::{Job, Output, Slate};
use sheave_tensor::{Mode, Tensor};
use sheave_wire::Value;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The bound of the design for the loss of a process that was killed.
const BOUND: Duration = Duration::from_secs(1);

/// The part of a process that a test has started.
#[test]
fn actor() {
    match std::env::var(PART).unwrap_or_default().as_str() {
        "" => {}
        "worker" => ended(&work_with(functions())),
        "set up" => be_set_up(),
        "fails" => fail(),
        "host" => be_host(),
        other => panic!("no part {other}"),
    }
}

fn ended(worked: &Result<()>) {
    std::process::exit(if worked.is_ok() { 0 } else { 9 });
}

#[expect(clippy::print_stderr, reason = "it is what the test looks for")]
fn fail() -> ! {
    eprintln!("one\nno such model");
    std::process::exit(3);
}

fn functions() -> Functions {
    Functions::new()
        .on("square", |(number,): (i64,)| Ok(number * number))
        .on("pid", |()| Ok(i64::from(std::process::id())))
        .on("refuse", |(number,): (i64,)| -> Result<()> {
            Err(Error::new(ErrorKind::Mismatch, format!("no {number}")).hint("as planned"))
        })
        .on("panic", |()| -> Result<()> { panic!("it was to") })
        .on("exit", |()| -> Result<()> { fail() })
        .on("long", |(bytes,): (i64,)| Ok("x".repeat(bytes as usize)))
        .on("sum", |(tensor,): (Tensor,)| Ok(tensor.to_vec::<f32>()?.iter().sum::<f32>()))
        .on("echo", |(tensor,): (Tensor,)| Ok(tensor))
        .on("sleep", |(milliseconds, number): (u64, i64)| {
            std::thread::sleep(Duration::from_millis(milliseconds));
            Ok(number)
        })
        // Says that it has begun, and goes on when the file is gone.
        .on("hold", |(path, number): (String, i64)| {
            std::fs::write(&path, std::process::id().to_string()).map_err(Error::from)?;
            let begun = Instant::now();
            while Path::new(&path).exists() && begun.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(number)
        })
        // Dies the first time.
        .on("stumble", |(path,): (String,)| {
            if !Path::new(&path).exists() {
                std::fs::write(&path, "").map_err(Error::from)?;
                fail();
            }
            Ok(7)
        })
}

/// A worker that adds what it was set up with.
struct Adds(Named, std::sync::Mutex<i64>);

impl Program for Adds {
    type Function = <Named as Program>::Function;

    fn set_up(&self, setup: Option<Packet>) -> Result<()> {
        match setup.map(|setup| setup.value()).transpose()? {
            Some(Value::Int(number)) => {
                *self.1.lock().expect("nobody panics") = number;
                Ok(())
            }
            Some(Value::Str(_)) => fail(),
            other => Err(Error::new(ErrorKind::InvalidArgument, format!("{other:?}; expected a number"))),
        }
    }

    fn function(&self, definition: Packet) -> Result<Self::Function> {
        self.0.function(definition)
    }

    fn run(&self, _: &Self::Function, args: Packet) -> Result<Packet> {
        let Value::Tuple(items) = args.value()? else { panic!("a tuple") };
        let [Value::Int(number)] = items[..] else { panic!("one number") };
        Packet::new(&Value::Int(number + *self.1.lock().expect("nobody panics")), Tensors::new())
    }
}

fn be_set_up() {
    let turn = Turn::shared(Slate::of_this_process().expect("it was given one"));
    let config = GuestConfig::from_env().expect("it makes sense").expect("it is invited");
    let guest = Guest::attach(config).expect("it is invited");
    let adds = Adds(Named::new(functions(), guest.node()), std::sync::Mutex::default());
    ended(&work(&guest, turn, adds, None));
}

fn be_host() {
    let mesh = host();
    let pool = workers(3).start(&mesh).expect("they are started");
    pool.started().wait_timeout(PATIENCE).expect("they come");
    let pids: Vec<String> = pool.children().iter().map(|child| child.pid().to_string()).collect();
    say(&format!("pids {}", pids.join(" ")));
    std::thread::sleep(PATIENCE);
}

fn workers(count: usize) -> PoolBuilder {
    Pool::processes(count, |_| playing("worker"))
}

fn started(count: usize) -> (Mesh, Pool) {
    let mesh = host();
    let pool = workers(count).start(&mesh).expect("they are started");
    pool.started().wait_timeout(PATIENCE).expect("they come");
    (mesh, pool)
}

fn named(pool: &Pool, name: &str) -> Function {
    pool.named(name).expect("a short name")
}

fn status(error: &Error) -> Option<i32> {
    assert_eq!(error.kind(), ErrorKind::WorkerDied, "{error}");
    error.process_end().and_then(ProcessEnd::status)
}

fn call(pool: &Pool, name: &str, args: impl sheave_rpc::IntoValue) -> Work<i64> {
    pool.call(&named(pool, name), args).expect("it is submitted")
}

fn held(pool: &Pool, path: &Path, number: i64) -> Work<i64> {
    call(pool, "hold", (path.to_str().expect("a text").to_owned(), number))
}

/// Waits until a task holds at this file, and returns its process.
fn holder(path: &Path) -> u32 {
    let read = || std::fs::read_to_string(path).ok().and_then(|text| text.parse().ok());
    until("the task has begun", || read().is_some());
    read().expect("it is there")
}

#[test]
fn tasks_come_back_with_their_results() {
    let (_mesh, pool) = started(2);
    let square = named(&pool, "square");
    let works: Vec<Work<i64>> =
        (0..5_000).map(|number| pool.call(&square, (number,)).expect("it is submitted")).collect();
    for (number, work) in (0..).zip(works) {
        assert_eq!(work.wait_timeout(PATIENCE).expect("it is a number"), number * number);
    }
    let pids: std::collections::BTreeSet<i64> =
        (0..50).map(|_| call(&pool, "sleep", (2, 0))).map(|work| work.wait().expect("it ends")).collect();
    assert_eq!(pids.len(), 1);
    pool.end(PATIENCE, None).expect("the node is there");
    assert_eq!(pool.call::<i64>(&square, (1,)).map(drop).expect_err("it is closed").kind(), ErrorKind::Closed);
    let exits: Vec<_> = pool.children().iter().map(|child| child.exit().map(|exit| exit.status)).collect();
    assert_eq!(exits, [Some(sheave_process::Status::Code(0)); 2]);
}

#[test]
fn a_job_gives_outcomes_in_order_or_as_they_come() {
    let (_mesh, pool) = started(2);
    let sleep = named(&pool, "sleep");
    for is_ordered in [true, false] {
        let job = pool.job(is_ordered).expect("the node is there");
        for (milliseconds, number) in [(300_u64, 0_i64), (0, 1), (0, 2), (0, 3)] {
            let value = Value::Tuple(vec![Value::Int(milliseconds as i64), Value::Int(number)]);
            let args = pool.packet(&value, Parts::new()).expect("it is short");
            pool.submit_to(&job, &sleep, args, 0).expect("it is submitted");
        }
        let mut places = Vec::new();
        while job.left() > 0 {
            job.next().wait_timeout(PATIENCE).expect("it comes");
            let (place, outcome) = job.take().expect("it is there");
            assert_eq!(outcome.and_then(|packet| packet.value()).expect("a number"), Value::Int(place as i64));
            places.push(place);
        }
        job.all().wait_timeout(PATIENCE).expect("all are there");
        if is_ordered {
            assert_eq!(places, [0, 1, 2, 3]);
        } else {
            assert_eq!(places.last(), Some(&0), "the long one is the last: {places:?}");
        }
    }
}

#[test]
fn tensors_travel_of_any_size() {
    let (mesh, pool) = started(2);
    let (sum, echo) = (named(&pool, "sum"), named(&pool, "echo"));
    for elements in [0_usize, 1, 1_000, 100_000, 4 << 20] {
        let tensor = Tensor::from_slice(&vec![1.0_f32; elements], [elements as u64]).expect("memory");
        let work = pool.call::<f32>(&sum, (tensor.clone(),)).expect("it is submitted");
        // What was submitted is what it was.
        tensor.overwrite(&vec![0; 4 * elements], "the test").expect("nobody reads it any more");
        assert_eq!(work.wait_timeout(PATIENCE).expect("a sum"), elements as f32);
        let back = pool.call::<Tensor>(&echo, (tensor.clone(),)).expect("it is submitted");
        assert_eq!(back.wait_timeout(PATIENCE).expect("a tensor").len_bytes(), 4 * elements);
    }
    let shared = Tensor::empty(mesh.node().arena(), sheave_tensor::Dtype::F32, [1 << 20]).expect("memory");
    shared.overwrite(&1.0_f32.to_le_bytes().repeat(1 << 20), "the test").expect("nobody has it");
    let value = Value::Tuple(vec![Value::Tensor(0)]);
    for _ in 0..3 {
        let parts: Parts = [Part::new(shared.clone(), Mode::Share)].into_iter().collect();
        let work = pool.submit(&sum, pool.packet(&value, parts).expect("it lies in the arena"), 0).expect("it leaves");
        assert_eq!(
            work.wait_timeout(PATIENCE).and_then(|packet| packet.value()).expect("a sum"),
            Value::Float(1_048_576.0)
        );
    }
    let private: Parts =
        [Part::new(Tensor::from_slice(&[1_u8], [1]).expect("memory"), Mode::Share)].into_iter().collect();
    assert_eq!(pool.packet(&value, private).expect_err("nobody reaches it").kind(), ErrorKind::InvalidArgument);
}

#[test]
fn errors_come_back_and_end_one_task_each() {
    let (_mesh, pool) = started(2);
    let error = call(&pool, "refuse", (3,)).wait_timeout(PATIENCE).expect_err("it refuses");
    assert_eq!((error.kind(), error.what(), error.advice()), (ErrorKind::Mismatch, "no 3", Some("as planned")));
    let error = call(&pool, "panic", ()).wait_timeout(PATIENCE).expect_err("it panics");
    assert!(error.to_string().contains("the task panicked: it was to"), "{error}");
    let error = call(&pool, "nothing", ()).wait_timeout(PATIENCE).expect_err("there is none");
    assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("\"nothing\""), "{error}");
    let error = call(&pool, "square", ("a",)).wait_timeout(PATIENCE).expect_err("it is no number");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let error = call(&pool, "long", (9 << 20,)).wait_timeout(PATIENCE).expect_err("it is too long");
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    let long = pool.call::<i64>(&named(&pool, "square"), ("x".repeat(9 << 20),));
    assert_eq!(long.map(drop).expect_err("it is too long").kind(), ErrorKind::InvalidArgument);
    assert_eq!(call(&pool, "square", (4,)).wait_timeout(PATIENCE).expect("it goes on"), 16);
}

#[test]
fn a_task_that_ends_its_worker_fails_alone() {
    let (_mesh, pool) = started(2);
    let before: Vec<Work<i64>> = (0..200).map(|number| call(&pool, "square", (number,))).collect();
    let died = call(&pool, "exit", ());
    let after: Vec<Work<i64>> = (0..200).map(|number| call(&pool, "square", (number,))).collect();
    let error = died.wait_timeout(PATIENCE).expect_err("its worker has ended");
    assert_eq!(status(&error), Some(3), "{error}");
    assert!(error.to_string().contains("no such model") && error.at_sequence() == Some(200), "{error}");
    for (number, work) in (0..200).chain(0..200).zip(before.into_iter().chain(after)) {
        assert_eq!(work.wait_timeout(PATIENCE).expect("another worker does it"), number * number);
    }
}

#[test]
fn killed_workers_lose_what_they_had_begun_and_nothing_else() {
    let (_mesh, pool) = started(3);
    let folder = tempfile::tempdir().expect("a folder");
    let paths: Vec<_> = (0..3).map(|number| folder.path().join(number.to_string())).collect();
    let begun: Vec<_> = paths.iter().zip(0..).map(|(path, number)| held(&pool, path, number)).collect();
    let pids: Vec<u32> = paths.iter().map(|path| holder(path)).collect();
    let waiting: Vec<_> = (0..100).map(|number| call(&pool, "square", (number,))).collect();
    let killed = Instant::now();
    for child in pool.children() {
        child.kill(SIGKILL).expect("it runs");
    }
    for work in begun {
        let error = work.wait_timeout(PATIENCE).expect_err("it was killed");
        assert_eq!((error.kind(), status(&error)), (ErrorKind::WorkerDied, Some(-9)));
    }
    assert!(killed.elapsed() < BOUND, "{:?}", killed.elapsed());
    for (number, work) in (0..).zip(waiting) {
        assert_eq!(work.wait_timeout(PATIENCE).expect("others do it"), number * number);
    }
    assert!(pids.iter().all(|pid| !lives(*pid)));
}

/// That all die while they start, as when memory is short, says nothing about the program.
#[test]
fn all_workers_may_be_killed_while_they_start() {
    let mesh = host();
    let pool = workers(8).start(&mesh).expect("they are started");
    for _ in 0..2 {
        until("all run", || pool.children().len() == 8);
        for child in pool.children() {
            child.kill(SIGKILL).expect("it runs, or has ended");
            child.wait(Some(Instant::now() + PATIENCE)).expect("it ends");
        }
    }
    pool.started().wait_timeout(PATIENCE).expect("others come");
    assert_eq!(call(&pool, "square", (9,)).wait_timeout(PATIENCE).expect("it goes on"), 81);
}

#[test]
fn workers_that_die_at_rest_are_replaced() {
    let (_mesh, pool) = started(2);
    let tensor = Tensor::from_slice(&vec![1.0_f32; 1 << 20], [1 << 20]).expect("memory");
    for round in 0..5 {
        for child in pool.children() {
            child.kill(SIGKILL).expect("it runs");
            child.wait(Some(Instant::now() + PATIENCE)).expect("it ends");
        }
        // They may be given tasks before the node has noticed.
        let sums: Vec<Work<f32>> =
            (0..4).map(|_| pool.call(&named(&pool, "sum"), (tensor.clone(),)).expect("it is submitted")).collect();
        for sum in sums {
            assert_eq!(sum.wait_timeout(PATIENCE).expect("it had not begun"), 1_048_576.0, "round {round}");
        }
    }
}

/// Waits until all three workers of a pool are set up: each holds a task.
fn all_hold(pool: &Pool) {
    let folder = tempfile::tempdir().expect("a folder");
    let paths: Vec<_> = (0..3).map(|number| folder.path().join(number.to_string())).collect();
    let works: Vec<_> = paths.iter().map(|path| held(pool, path, 0)).collect();
    paths.iter().for_each(|path| _ = holder(path));
    drop(folder);
    works.into_iter().for_each(|work| assert_eq!(work.wait_timeout(PATIENCE).expect("it ends"), 0));
}

/// Workers are killed again and again, whatever they do, also while they start: each costs one task at most, and no
/// other. Three in a row of one slot that never were set up would break the pool, so at most two are killed like that.
#[test]
fn each_kill_costs_one_task_at_most() {
    const KILLS: usize = 42;
    let (_mesh, pool) = started(3);
    let mut works: Vec<(i64, Work<i64>)> = Vec::new();
    let mut number = 0;
    for round in 0..KILLS {
        if round % 6 == 0 {
            all_hold(&pool);
        }
        for _ in 0..25 {
            number += 1;
            let spell = if number % 7 == 0 { 2 } else { 0 };
            works.push((number, call(&pool, "sleep", (spell, number))));
        }
        let child = &pool.children()[round % 3];
        child.kill(SIGKILL).expect("it runs, or has ended");
        if round % 2 == 0 {
            child.wait(Some(Instant::now() + PATIENCE)).expect("it ends");
        }
    }
    let mut died = 0;
    for (number, work) in works {
        match work.wait_timeout(PATIENCE) {
            Ok(result) => assert_eq!(result, number),
            Err(error) => {
                assert_eq!(status(&error), Some(-9), "{error}");
                died += 1;
            }
        }
    }
    assert!(died <= KILLS, "{died} tasks died of {KILLS} kills");
    assert_eq!(call(&pool, "square", (9,)).wait_timeout(PATIENCE).expect("it goes on"), 81);
}

#[test]
fn a_task_may_be_tried_again() {
    let (_mesh, pool) = started(2);
    let folder = tempfile::tempdir().expect("a folder");
    let value = Value::Tuple(vec![Value::from(folder.path().join("mark").to_str().expect("a text"))]);
    let args = pool.packet(&value, Parts::new()).expect("it is short");
    let work = pool.submit(&named(&pool, "stumble"), args, 1).expect("it is submitted");
    assert_eq!(work.wait_timeout(PATIENCE).and_then(|packet| packet.value()).expect("a number"), Value::Int(7));
    let args = pool.packet(&Value::Tuple(Vec::new()), Parts::new()).expect("it is short");
    let work = pool.submit(&named(&pool, "exit"), args, 2).expect("it is submitted");
    assert_eq!(status(&work.wait_timeout(PATIENCE).expect_err("it always does")), Some(3));
}

#[test]
fn what_lies_behind_a_long_task_goes_to_others() {
    let (_mesh, pool) = started(2);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("long");
    // Both have the pace of short tasks, and so get many at a time.
    let short: Vec<_> = (0..1000).map(|number| call(&pool, "square", (number,))).collect();
    short.into_iter().for_each(|work| assert!(work.wait_timeout(PATIENCE).is_ok()));
    let long = held(&pool, &path, 5);
    let behind: Vec<_> = (0..100).map(|number| call(&pool, "square", (number,))).collect();
    for (number, work) in (0..).zip(behind) {
        assert_eq!(work.wait_timeout(PATIENCE).expect("the other one does it"), number * number);
    }
    assert!(!long.is_done());
    let _ = holder(&path);
    std::fs::remove_file(&path).expect("it is there");
    assert_eq!(long.wait_timeout(PATIENCE).expect("it ends"), 5);
}

#[test]
fn a_task_that_has_not_begun_is_cancelled() {
    let (_mesh, pool) = started(1);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("held");
    let first = held(&pool, &path, 1);
    let _ = holder(&path);
    let others: Vec<_> = (0..10).map(|number| call(&pool, "square", (number,))).collect();
    others[9].cancel();
    assert_eq!(others[9].wait_timeout(PATIENCE).expect_err("it was cancelled").kind(), ErrorKind::Cancelled);
    std::fs::remove_file(&path).expect("it is there");
    assert_eq!(first.wait_timeout(PATIENCE).expect("it ends"), 1);
    others[..9].iter().for_each(|work| assert!(work.wait_timeout(PATIENCE).is_ok()));
}

#[test]
fn a_worker_is_replaced_after_its_tasks() {
    let mesh = host();
    let settings = Settings { tasks_per_worker: Some(3), ..Settings::default() };
    let pool = workers(2).settings(settings).start(&mesh).expect("they are started");
    let works: Vec<_> = (0..12).map(|_| call(&pool, "pid", ())).collect();
    let mut counts = std::collections::BTreeMap::<i64, usize>::new();
    for work in works {
        *counts.entry(work.wait_timeout(PATIENCE).expect("a number")).or_default() += 1;
    }
    assert!(counts.len() >= 4 && counts.values().all(|count| *count <= 3), "{counts:?}");
}

#[test]
fn workers_are_set_up_by_slot() {
    let mesh = host();
    let set_up = |values: &[Value]| Settings {
        setups: values.iter().map(|value| Packet::new(value, Tensors::new()).expect("it is short")).collect(),
        ..Settings::default()
    };
    let start = |values: &[Value]| {
        let builder = Pool::processes(2, |_| playing("set up")).settings(set_up(values));
        builder.start(&mesh).expect("they are started")
    };
    let pool = start(&[Value::Int(100), Value::Int(200)]);
    let sums: std::collections::BTreeSet<i64> = (0..2_000)
        .map(|_| call(&pool, "square", (1,)))
        .map(|work| work.wait_timeout(PATIENCE).expect("a sum"))
        .collect();
    assert!(sums.iter().all(|sum| [101, 201].contains(sum)), "{sums:?}");
    let pool = start(&[Value::None]);
    let error = call(&pool, "square", (1,)).wait_timeout(PATIENCE).expect_err("nobody is set up");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("expected a number"), "{error}");
    assert!(error.happened_on().is_some_and(|peer| peer.name.starts_with("rank-0.worker-")), "{error}");
    let again = pool.call::<i64>(&named(&pool, "square"), (1,)).map(drop).expect_err("it is broken");
    assert_eq!(again.kind(), ErrorKind::InvalidArgument);
    let begun = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&begun);
    let builder = Pool::processes(2, move |_| {
        counted.fetch_add(1, SeqCst);
        playing("set up")
    });
    let pool = builder.settings(set_up(&[Value::from("die")])).start(&mesh).expect("they are started");
    let error = call(&pool, "square", (1,)).wait_timeout(PATIENCE).expect_err("all die");
    assert_eq!(error.kind(), ErrorKind::WorkerDied, "{error}");
    assert!(error.to_string().contains("no such model"), "{error}");
    // Nobody is started for ever: another pool comes and goes meanwhile.
    let started = begun.load(SeqCst);
    for _ in 0..3 {
        let other = workers(1).start(&mesh).expect("it is started");
        assert_eq!(call(&other, "square", (2,)).wait_timeout(PATIENCE).expect("it works"), 4);
    }
    assert!(started <= 6 && begun.load(SeqCst) <= started + 1, "{started} and {}", begun.load(SeqCst));
}

#[test]
fn a_program_that_does_not_start_breaks_the_pool() {
    let mesh = host();
    for pool in [
        Pool::processes(2, |_| playing("fails")).start(&mesh).expect("it is begun"),
        Pool::processes(2, |_| sheave_process::Command::new("/no/such/program")).start(&mesh).expect("it is begun"),
    ] {
        let submitted = pool.call::<i64>(&named(&pool, "square"), (1,));
        let error = submitted.and_then(|work| work.wait_timeout(PATIENCE)).expect_err("nobody does it");
        assert!([ErrorKind::WorkerDied, ErrorKind::NotFound, ErrorKind::Io].contains(&error.kind()), "{error}");
    }
    assert_eq!(
        Pool::processes(0, |_| playing("worker")).start(&mesh).expect_err("none").kind(),
        ErrorKind::InvalidArgument
    );
}

#[test]
fn a_pool_that_is_terminated_or_dropped_fails_what_runs() {
    let (mesh, pool) = started(2);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("held");
    let work = held(&pool, &path, 1);
    let pid = holder(&path);
    pool.terminate();
    assert_eq!(work.wait_timeout(PATIENCE).expect_err("it was ended").kind(), ErrorKind::Closed);
    assert!(!lives(pid));
    let other = workers(2).start(&mesh).expect("they are started");
    std::fs::remove_file(&path).expect("it is there");
    let work = held(&other, &path, 1);
    let pid = holder(&path);
    drop(other);
    assert_eq!(work.wait_timeout(PATIENCE).expect_err("it was ended").kind(), ErrorKind::Closed);
    until("the worker is gone", || !lives(pid));
}

#[test]
fn no_worker_outlives_its_host() {
    let job = Job::builder().output(Output::Capture).start().expect("processes");
    let host = job.spawn(playing("host")).expect("it starts");
    let line = host.wait_for_stdout("pids", Instant::now() + PATIENCE).expect("it says so");
    let pids: Vec<u32> = line.split(' ').skip(1).map(|pid| pid.parse().expect("a number")).collect();
    assert!(pids.len() == 3 && pids.iter().all(|pid| lives(*pid)));
    host.kill(SIGKILL).expect("it runs");
    until("all are gone", || pids.iter().all(|pid| !lives(*pid)));
}
