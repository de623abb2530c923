//! A job of which one process ends in a chosen way and moment, while the others go on until they notice. The tests of
//! `sheave launch` are made from it: `sheave launch -n 3 -- target/debug/examples/endings rank-1 exit-3 before`.
//!
//! Without arguments all go through one operation and end well. A file that is named by the variable
//! `SHEAVE_TEST_MARK` is made by `worker-0` after its first operation, and awaited by a server that ends in the middle.

use sheave_mesh::{Config, Mesh, Role};
use sheave_store::{Kind, KvStore, Rule, Server, ServerConfig};
use sheave_tensor::Tensor;
use std::error::Error;
use std::io::Write;
use std::time::{Duration, Instant};

/// Longest time for the others to notice.
const LIMIT: Duration = Duration::from_secs(60);

/// When the chosen process ends.
#[derive(Clone, Copy, PartialEq)]
enum When {
    Never,
    Before,
    In,
    After,
}

/// What this process has to do.
struct Part {
    name: String,
    how: Option<String>,
    when: When,
    /// Whether somebody ends early, so that the others go on until they notice.
    is_endless: bool,
}

impl Part {
    fn of(name: &str) -> Result<Self, Box<dyn Error>> {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let (name, is_endless) = (name.to_owned(), !arguments.is_empty());
        let [who, how, when] = arguments.as_slice() else {
            return Ok(Self { name, how: None, when: When::Never, is_endless });
        };
        let when = match when.as_str() {
            "before" => When::Before,
            "in" => When::In,
            "after" => When::After,
            other => return Err(format!("the moment is {other}; expected before, in or after").into()),
        };
        let is_chosen = *who == name;
        let when = if is_chosen { when } else { When::Never };
        Ok(Self { name, how: is_chosen.then(|| how.clone()), when, is_endless })
    }

    /// Ends the process, if this is the moment.
    fn reach(&self, moment: When) -> Result<(), Box<dyn Error>> {
        match &self.how {
            Some(how) if self.when == moment => end(&self.name, how),
            _ => Ok(()),
        }
    }
}

fn end(name: &str, how: &str) -> Result<(), Box<dyn Error>> {
    let words = format!("{name} ends by {how}");
    match how {
        "error" => return Err(words.into()),
        "panic" => panic!("{words}"),
        _ => writeln!(std::io::stderr(), "{words}")?,
    }
    let signal = |signal| loop {
        // The first SIGSEGV is taken by the handler of Rust's runtime, which then gives it up.
        let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
    };
    match how {
        "exit-3" => std::process::exit(3),
        "exit-0" => std::process::exit(0),
        // SAFETY: it has no preconditions.
        "_exit-3" => unsafe { libc::_exit(3) },
        "abort" => std::process::abort(),
        "sigkill" => signal(rustix::process::Signal::KILL),
        "sigsegv" => signal(rustix::process::Signal::SEGV),
        "sigterm" => signal(rustix::process::Signal::TERM),
        other => Err(format!("the way is {other}, which is none").into()),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let config = Config::from_env()?.ok_or("no launcher has started this process; try `sheave launch`")?;
    let mesh = Mesh::join(config)?;
    let part = Part::of(&mesh.me().introduction.name)?;
    match mesh.me().introduction.role {
        Role::Rank => meet(&mesh, &part)?,
        Role::Worker => work(&mesh, &part)?,
        Role::Server => serve(&mesh, &part)?,
        Role::Scheduler => mesh.until_gone(|_| true)?,
    }
    Ok(mesh.leave()?)
}

fn meet(mesh: &Mesh, part: &Part) -> Result<(), Box<dyn Error>> {
    let until = Instant::now() + LIMIT;
    part.reach(When::Before)?;
    let barrier = mesh.world().begin_barrier(None);
    part.reach(When::In)?;
    barrier.wait()?;
    part.reach(When::After)?;
    while part.is_endless && Instant::now() < until {
        mesh.world().barrier()?;
    }
    Ok(mesh.world().barrier()?)
}

fn work(mesh: &Mesh, part: &Part) -> Result<(), Box<dyn Error>> {
    let until = Instant::now() + LIMIT;
    part.reach(When::Before)?;
    let store = KvStore::open(mesh, Kind::DistSync)?;
    let weights = Tensor::from_slice(&[0.0f32; 1000], [1000])?;
    store.init(&[("w".into(), weights.clone())])?;
    store.set_optimizer(Rule::sgd(0.1))?;
    let step = || {
        let gradient = Tensor::from_slice(&[1.0f32; 1000], [1000])?;
        store.push_pull(&[("w".into(), gradient)], &[("w".into(), weights.clone())])
    };
    let first = step()?;
    part.reach(When::In)?;
    first.wait()?;
    if let Some(mark) = std::env::var_os("SHEAVE_TEST_MARK").filter(|_| part.name == "worker-0") {
        std::fs::write(mark, "")?;
    }
    part.reach(When::After)?;
    while part.is_endless && !ends_after_the_workers() && Instant::now() < until {
        step()?.wait()?;
    }
    Ok(store.barrier()?)
}

/// Whether it is a server that ends when the workers have left, so that these must not wait for that.
fn ends_after_the_workers() -> bool {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    matches!(arguments.as_slice(), [who, _, when] if who.starts_with("server") && when == "after")
}

fn serve(mesh: &Mesh, part: &Part) -> Result<(), Box<dyn Error>> {
    part.reach(When::Before)?;
    let server = Server::start(mesh, ServerConfig::default())?;
    if part.when != When::In {
        server.run()?;
        return part.reach(When::After);
    }
    let thread = std::thread::spawn(move || server.run());
    let mark = std::env::var_os("SHEAVE_TEST_MARK").ok_or("SHEAVE_TEST_MARK is not set")?;
    let until = Instant::now() + LIMIT;
    while !std::path::Path::new(&mark).exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    part.reach(When::In)?;
    thread.join().map_err(|_| "the server panicked")??;
    Ok(())
}
