//! A program for hostile surroundings. `player play KIND STEPS PAUSE_MS` is one process of a job that checks each of
//! its results, `player lead …`, `player node …` and `player work` are those of a session, `player deny CALL …` does
//! the same without a system call, and anything else is the program `sheave`.
//!
//! It prints `joined` once it is a member, `done` and the longest step at the end, and otherwise `error: …`, and says
//! nothing else.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the test reads it")]

mod deny;
mod session;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use sheave_base::{Error, ErrorKind, Result};
use sheave_collective::{Collectives, Operator};
use sheave_exchange::{Pull, Push};
use sheave_mesh::{Config, Mesh, Role};
use sheave_store::{Key, Kind, KvStore, Server, ServerConfig};
use sheave_tensor::{Dtype, Tensor};

/// The elements of the steps, in turn: small, of several packets, and of several hundred.
const COUNTS: [usize; 3] = [1, 3_000, 200_000];

fn main() -> ExitCode {
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let is = |at: usize, word: &str, arguments: &[OsString]| arguments.get(at).is_some_and(|it| it == word);
    if is(0, "deny", &arguments) && arguments.len() > 2 {
        if let Err(error) = deny::deny(&arguments[1].to_string_lossy()) {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
        arguments.drain(..2);
    }
    let is_of_session = ["lead", "node", "work"].iter().any(|word| is(0, word, &arguments));
    if !is(0, "play", &arguments) && !is_of_session {
        return ExitCode::from(sheave_cli::main(arguments, Vec::new()));
    }
    let words: Vec<String> = arguments.iter().map(|it| it.to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match if is_of_session { session::play(&words) } else { play(&words[1..]) } {
        Ok(longest) => {
            println!("done, longest step {} ms", longest.as_millis());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What the processes of a job do.
struct Part {
    kind: String,
    steps: usize,
    pause: Duration,
}

impl Part {
    fn read(words: &[&str]) -> Result<Part> {
        let wrong = || Error::new(ErrorKind::InvalidArgument, "expected: play reduce|store|exchange STEPS PAUSE_MS");
        let [kind, steps, pause_ms] = words else { return Err(wrong()) };
        let steps = steps.parse().map_err(|_| wrong())?;
        let pause = Duration::from_millis(pause_ms.parse().map_err(|_| wrong())?);
        Ok(Part { kind: (*kind).to_owned(), steps, pause })
    }

    /// Takes all steps in turn, and returns how long the longest took.
    fn steps(&self, mut step: impl FnMut(usize) -> Result<()>) -> Result<Duration> {
        let mut longest = Duration::ZERO;
        for number in 0..self.steps {
            let begun = Instant::now();
            step(number)?;
            longest = longest.max(begun.elapsed());
            // A part of the load, so that a job lasts as long as its trouble: nobody waits for anything here.
            std::thread::sleep(self.pause);
        }
        Ok(longest)
    }
}

fn play(words: &[&str]) -> Result<Duration> {
    let part = Part::read(words)?;
    let config =
        Config::from_env()?.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "this process is in no job"))?;
    let mesh = Mesh::join(config)?;
    println!("joined");
    let longest = match (part.kind.as_str(), mesh.me().introduction.role) {
        (_, Role::Scheduler) => mesh.until_gone(|_| true).map(|()| Duration::ZERO)?,
        ("reduce", _) => reduce(&mesh, &part)?,
        ("store", Role::Server) => Server::start(&mesh, ServerConfig::default())?.run().map(|()| Duration::ZERO)?,
        ("store", _) => store(&mesh, &part)?,
        ("exchange", Role::Server) => serve(&mesh)?,
        ("exchange", _) => ask(&mesh, &part)?,
        (kind, _) => return Err(Error::new(ErrorKind::InvalidArgument, format!("no kind is called {kind}"))),
    };
    // Roles end when the others are gone, ranks together.
    if mesh.me().introduction.role == Role::Rank {
        mesh.finish()?;
    } else {
        mesh.leave()?;
    }
    Ok(longest)
}

/// A result that is not what it must be.
fn wrong(what: &str, step: usize) -> Error {
    Error::new(ErrorKind::Internal, format!("a wrong result of {what} in step {step}"))
}

fn filled(value: f32, count: usize) -> Result<Tensor> {
    Tensor::from_slice(&vec![value; count], [count as u64])
}

fn holds(tensor: &Tensor, value: f32) -> Result<bool> {
    Ok(tensor.to_vec::<f32>()?.iter().all(|element| *element == value))
}

fn reduce(mesh: &Mesh, part: &Part) -> Result<Duration> {
    let world = Collectives::new(mesh)?.group(&mesh.world())?;
    let (rank, size) = (world.rank().0, world.size());
    part.steps(|number| {
        let count = COUNTS[number % COUNTS.len()];
        let (input, output) = (filled((rank + 1) as f32 + number as f32, count)?, filled(0.0, count)?);
        world.all_reduce(&input, &output, Operator::Sum).wait()?;
        let sum = (size * (size + 1) / 2) as f32 + size as f32 * number as f32;
        if holds(&output, sum)? { Ok(()) } else { Err(wrong("all_reduce", number)) }
    })
}

fn store(mesh: &Mesh, part: &Part) -> Result<Duration> {
    let store = KvStore::open(mesh, Kind::DistSync)?;
    let workers = mesh.of_role(Role::Worker).count() as f32;
    let tensors = |value: f32| -> Result<Vec<(Key, Tensor)>> {
        COUNTS.iter().zip(0_i64..).map(|(count, key)| Ok((Key::from(key), filled(value, *count)?))).collect()
    };
    store.init(&tensors(0.0)?)?;
    let longest = part.steps(|number| {
        let (gradients, places) = (tensors(number as f32 + 1.0)?, tensors(0.0)?);
        store.push_pull(&gradients, &places)?.wait()?;
        for (_, place) in &places {
            if !holds(place, (number as f32 + 1.0) * workers)? {
                return Err(wrong("push_pull", number));
            }
        }
        Ok(())
    })?;
    store.close()?;
    Ok(longest)
}

fn ask(mesh: &Mesh, part: &Part) -> Result<Duration> {
    let worker = sheave_exchange::Worker::open(mesh, sheave_exchange::Config::default())?;
    let longest = part.steps(|number| {
        let count = COUNTS[number % COUNTS.len()];
        let (pushed, place) = (filled(number as f32, count)?, filled(-1.0, count)?);
        let request = worker.push_pull([Push::new(0, &pushed)], [Pull::into(0, &place)])?;
        worker.wait(request, None, None)?;
        if holds(&place, number as f32 + 1.0)? { Ok(()) } else { Err(wrong("exchange", number)) }
    })?;
    worker.close();
    Ok(longest)
}

fn serve(mesh: &Mesh) -> Result<Duration> {
    let server = sheave_exchange::Server::open(mesh, sheave_exchange::Config::default())?;
    loop {
        let batch = match server.get_batch(None, None) {
            Err(error) if error.kind() == ErrorKind::Closed => break,
            batch => batch?,
        };
        for request in batch {
            let pushed = request.tensors[0].to_vec::<f32>()?;
            let answer = Tensor::empty(mesh.node().arena(), Dtype::F32, [pushed.len() as u64])?;
            let mut answer = answer;
            answer.as_mut_slice::<f32>()?.iter_mut().zip(&pushed).for_each(|(place, value)| *place = value + 1.0);
            server.respond(request.handler, [&answer])?;
        }
    }
    server.close();
    Ok(Duration::ZERO)
}
