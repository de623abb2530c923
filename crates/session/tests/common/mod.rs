//! Sessions of every kind, whose workers have functions for tests. Processes are copies of the running test binary.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "../../../process/tests/common/callers.rs"]
mod callers;
pub(crate) mod together;

use sheave_base::config::Endpoint;
use sheave_base::{Error, ErrorKind, Secret};
use sheave_process::Command;
use sheave_session::{Args, Function, Held, Node, Register, Session, Worker, register_function, work, work_on_node};
use sheave_tensor::Tensor;
use sheave_wire::Value;
use std::io::Write;
use std::sync::Once;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PART: &str = "SHEAVE_TEST_PART";

/// Far enough for a loaded machine; nothing waits that long when all is well.
pub(crate) const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

/// What a process of a session does, if this is one; called by the test function `actor` of each binary.
#[track_caller]
pub(crate) fn act() {
    match std::env::var(PART).as_deref() {
        Ok("worker") => {
            functions();
            let status = match work() {
                Ok(()) => 0,
                Err(error) => {
                    writeln!(std::io::stderr(), "{error}").expect("somebody listens");
                    1
                }
            };
            std::process::exit(status);
        }
        Ok("controller") => {
            functions();
            let session = Session::processes(3, 1, &playing("worker")).expect("there is room for some workers");
            let pid = session.function("pid").expect("it is sent");
            let pids = session.call(&pid, &Args::new()).expect("it is sent");
            let pids: Vec<u32> = (1..3).map(|worker| pids.get(worker, PATIENCE).expect("it lives")).collect();
            writeln!(std::io::stdout(), "workers {} {}", pids[0], pids[1]).expect("somebody listens");
            loop {
                session.sync_all(PATIENCE).expect("all live");
            }
        }
        Ok("node") => {
            functions();
            let said = |name: &str| std::env::var(name).ok();
            let node = Node {
                root: Endpoint::parse(&said(ROOT).expect("the test says it")).expect("an endpoint"),
                workers: said(WORKERS).expect("the test says it").parse().expect("a number"),
                number: said(NUMBER).map(|number| number.parse().expect("a number")),
                secret: Some(secret()),
            };
            let status = match work_on_node(&node, &playing("worker")) {
                Ok(()) => 0,
                Err(error) => {
                    writeln!(std::io::stderr(), "{error}").expect("somebody listens");
                    1
                }
            };
            std::process::exit(status);
        }
        Ok("early") => {
            writeln!(std::io::stderr(), "no luck").expect("somebody listens");
            std::process::exit(5);
        }
        _ => {}
    }
}

/// What the nodes of one session are told, in variables.
pub(crate) const ROOT: &str = "SHEAVE_TEST_ROOT";
pub(crate) const WORKERS: &str = "SHEAVE_TEST_WORKERS";
pub(crate) const NUMBER: &str = "SHEAVE_TEST_NUMBER";

pub(crate) fn secret() -> Secret {
    Secret::new(b"only these tests know it").expect("it is long enough")
}

/// This binary once more, as which the test function `actor` plays `part`.
#[track_caller]
pub(crate) fn playing(part: &str) -> Command {
    let program = std::env::current_exe().expect("this program has a path");
    let actor = callers::in_this_file("actor");
    Command::new(program).args(["--exact", &actor, "--nocapture", "--quiet"]).env(PART, part)
}

/// Has `test` tried by sessions of each kind, which must end without failures of which nobody was told.
#[track_caller]
pub(crate) fn each(workers: u32, groups: u32, test: impl Fn(&Session)) {
    functions();
    for session in [Session::threads(workers, groups), Session::processes(workers, groups, &playing("worker"))] {
        let session = session.expect("there is room for some workers");
        test(&session);
        session.shutdown().expect("all failures were told");
    }
}

/// Has each worker tell one failure, which says `text`, and no more.
pub(crate) fn told_by_all(session: &Session, kind: ErrorKind, text: &str) {
    for worker in 0..session.workers() {
        let error = session.sync(worker, PATIENCE).expect_err("it has failed");
        assert_eq!(error.kind(), kind, "worker {worker}: {error}");
        assert!(error.to_string().contains(text), "worker {worker}: {text} is not in {error}");
        session.sync(worker, PATIENCE).expect("it was told");
    }
}

/// On each worker `length` elements, of which the first is its number times `by`, and the others one more each.
pub(crate) fn own(session: &Session, length: u64, by: f32) -> Register {
    let own = session.function("own").unwrap();
    session.call(&own, &Args::new().value(length).value(by)).unwrap()
}

pub(crate) fn numbers(register: &Register, worker: u32) -> Vec<f32> {
    register.get::<Tensor>(worker, PATIENCE).unwrap().to_vec().unwrap()
}

pub(crate) fn shape(register: &Register, worker: u32) -> Vec<u64> {
    register.get::<Tensor>(worker, PATIENCE).unwrap().shape().dimensions().to_vec()
}

pub(crate) fn is_none(register: &Register, worker: u32) -> bool {
    register.get::<Value>(worker, PATIENCE).unwrap() == Value::None
}

pub(crate) fn matrix(rows: u64, columns: u64) -> Tensor {
    let all: Vec<f32> = (0..rows * columns).map(|number| number as f32).collect();
    Tensor::from_slice(&all, [rows, columns]).unwrap()
}

fn of_worker(
    run: impl Fn(&Worker) -> Held + Send + Sync + 'static,
) -> impl Fn(sheave_session::Arguments) -> sheave_base::Result<Held> {
    move |_| Worker::current().map(|worker| run(&worker))
}

/// Registers what workers are to find, once.
pub(crate) fn functions() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        for function in all().into_iter().chain(together::all()) {
            register_function(function).expect("the names differ");
        }
    });
}

fn all() -> Vec<Function> {
    vec![
        Function::typed("add one", |(number,): (i64,)| Ok(number + 1)),
        Function::typed("sum", |(tensor, by): (Tensor, f32)| {
            Ok(tensor.to_vec::<f32>()?.into_iter().map(|one| one * by).sum::<f32>())
        }),
        Function::new("echo", |mut arguments| arguments.take_held()),
        Function::typed("torn", |(value,): (Value,)| Ok(value)),
        Function::typed("tensor", |(length,): (u64,)| Tensor::from_slice(&vec![1.5_f32; length as usize], [length])),
        Function::new("nothing", |_| Ok(Held::default())),
        Function::new("id", of_worker(|worker| Held::of(worker.id))),
        Function::new("group", of_worker(|worker| Held::of((worker.group(), worker.group_size())))),
        Function::new("thread", of_worker(|_| Held::of(format!("{:?}", std::thread::current().id())))),
        Function::new("host", of_worker(|_| Held::of(std::env::var("SHEAVE_NAME").unwrap_or_default()))),
        Function::new("pid", of_worker(|_| Held::of(std::process::id()))),
        Function::typed("fail on", |(unlucky, text): (u32, String)| {
            let worker = Worker::current()?;
            if worker.id == unlucky { Err(Error::new(ErrorKind::Mismatch, text)) } else { Ok(worker.id) }
        }),
        Function::typed("hears of a loss", |(unlucky,): (u32,)| match Worker::current()?.id == unlucky {
            true => Err(Error::new(ErrorKind::PeerLost, "another one is gone")),
            false => Ok(()),
        }),
        Function::typed("tensor unless", |(unlucky, length): (u32, u64)| {
            if Worker::current()?.id == unlucky {
                return Err(Error::new(ErrorKind::Remote, "it has no tensor"));
            }
            Tensor::from_slice(&vec![0.5_f32; length as usize], [length])
        }),
        Function::typed("panic", |()| -> sheave_base::Result<()> { panic!("no luck") }),
        Function::typed("die on", |(unlucky,): (u32,)| {
            if Worker::current()?.id == unlucky {
                writeln!(std::io::stderr(), "the last words of {unlucky}")?;
                std::process::exit(7);
            }
            Ok(())
        }),
        Function::typed("sleep", |(span_ms,): (u64,)| {
            std::thread::sleep(Duration::from_millis(span_ms));
            Ok(())
        }),
        Function::new("log", |_| Ok(Held::Object(Arc::new(Log::default())))),
        Function::new("write", |mut arguments| {
            let log = arguments.take_object::<Log>()?;
            log.0.lock().expect("nobody has panicked").push(arguments.take()?);
            Ok(Held::default())
        }),
        Function::new("read", |mut arguments| {
            let log = arguments.take_object::<Log>()?;
            Ok(Held::of(log.0.lock().expect("nobody has panicked").clone()))
        }),
        Function::new("adder", |mut arguments| {
            let by: i64 = arguments.take()?;
            Ok(Held::Function(Function::typed("add", move |(number,): (i64,)| Ok(number + by))))
        }),
        Function::new("apply", |mut arguments| {
            let function = arguments.take_function()?;
            function.call(vec![arguments.take_held()?])
        }),
    ]
}

#[derive(Default)]
struct Log(Mutex<Vec<i64>>);
