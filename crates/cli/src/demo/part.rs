//! What each process of a demo does: the scheduler and the servers wait for the workers' end, the workers train.

use super::Arguments;
use super::job::Run;
use super::progress::Progress;
use super::train::{Recorder, Setting, Trained, Training, train};
use super::words::{Done, Epoch, Word, say, say_trace};
use crate::Failure;
use sheave_base::clock::{Clock, SystemClock};
use sheave_base::limits::TRACE_EVENTS_MAX;
use sheave_base::trace::{Process, Trace, wall_clock_offset_ns};
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::{Config, Mesh, Role};
use sheave_nn::Digits;
use sheave_store::{KvStore, Server, ServerConfig};
use sheave_tensor::{Arena, ArenaConfig};
use std::sync::Arc;

/// Where a process's events go, and what they are exported with.
struct Tracing {
    clock: Arc<SystemClock>,
    trace: Trace,
}

impl Tracing {
    fn start() -> Self {
        let clock = Arc::new(SystemClock::default());
        let trace = Trace::new(TRACE_EVENTS_MAX, Arc::clone(&clock) as Arc<dyn Clock>);
        Self { clock, trace }
    }

    fn export(&self, name: &str) -> Result<String> {
        let clock_offset_ns = wall_clock_offset_ns(&*self.clock);
        let process = Process { pid: std::process::id(), name: name.to_owned(), clock_offset_ns };
        let mut json = Vec::new();
        self.trace.export(&process, &mut json)?;
        String::from_utf8(json).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
    }
}

fn setting(arguments: &Arguments) -> Result<Setting, Failure> {
    let Arguments { seed, epochs, workers, batch, .. } = *arguments;
    Ok(Setting { seed, epochs, workers, batch: batch as usize, compression: arguments.compression()? })
}

/// One process of a job.
pub(super) fn run(arguments: &Arguments, digits: &Digits) -> Result<(), Failure> {
    let config = Config::from_env().map_err(|error| Failure::Usage(error.to_string()))?;
    let config = config.ok_or_else(|| Failure::Usage("--part is for sheave itself; use 'sheave demo'".to_owned()))?;
    let mesh = Mesh::join(config)?;
    match mesh.me().introduction.role {
        Role::Scheduler => mesh.until_gone(|_| true)?,
        Role::Server => Server::start(&mesh, ServerConfig::default())?.run()?,
        Role::Worker | Role::Rank => work(&mesh, arguments, digits)?,
    }
    Ok(mesh.leave()?)
}

fn work(mesh: &Mesh, arguments: &Arguments, digits: &Digits) -> Result<(), Failure> {
    let tracing = Tracing::start();
    let store = KvStore::open(mesh, arguments.config()?)?;
    let rank = store.rank();
    let (setting, recorder) = (setting(arguments)?, Recorder::new(&tracing.trace));
    let training = Training { store: &store, arena: mesh.node().arena(), digits, setting, recorder };
    let trained = train(&training, rank..rank + 1, &mut |epoch| say(&Word::Epoch(epoch)))?;
    say_trace(&tracing.export(&mesh.me().introduction.name)?);
    let Trained { weights_sha256, gradient_bytes } = trained;
    say(&Word::Done(Done { worker: rank, weights_sha256, gradient_bytes }));
    Ok(store.barrier()?)
}

/// The whole job in this process: all micro-batches, one after the other, and a local store.
pub(super) fn run_alone(arguments: &Arguments, digits: &Digits) -> Result<Run, Failure> {
    let tracing = Tracing::start();
    let store = KvStore::local(&arguments.kind.to_string())?;
    let arena = Arena::new(ArenaConfig::default());
    let mut progress = Progress::new(arguments.epochs, arguments.json);
    let mut epochs = Vec::new();
    let (setting, recorder) = (setting(arguments)?, Recorder::new(&tracing.trace));
    let training = Training { store: &store, arena: &arena, digits, setting, recorder };
    let mut report = |epoch: Epoch| {
        progress.show(&epoch);
        epochs.push(epoch);
    };
    let trained = train(&training, 0..arguments.workers, &mut report)?;
    progress.finish();
    let Trained { weights_sha256, gradient_bytes } = trained;
    Ok(Run { epochs, weights_sha256, gradient_bytes, traces: vec![tracing.export("local")?] })
}
