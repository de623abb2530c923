//! The loader as workers hold it.

use super::cut::cut;
use super::files::Files;
use super::info::{self, Infos};
use crate::collective::{Moved, Operation, Scope, local, run};
use crate::functions::{Arguments, Function};
use crate::held::Held;
use crate::worker::Worker;
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::Tensor;
use sheave_wire::{Value, codec};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// Where parameters come from, on one worker.
struct Loader {
    paths: Vec<String>,
    infos: Infos,
    /// Of the parameters, as worker 0 has found them.
    names: Vec<String>,
    /// Worker 0 has them from the beginning, others when they read their own shards.
    files: OnceLock<Files>,
}

pub(crate) fn functions() -> Vec<Function> {
    vec![
        Function::despite_poison("sheave.shard_loader", make),
        Function::new("sheave.shard_loader.names", |mut arguments| {
            Ok(Held::of(arguments.take_object::<Loader>()?.names.clone()))
        }),
        Function::despite_poison("sheave.shard_loader.load", |mut arguments| {
            let loader = arguments.take_object::<Loader>();
            let name: Result<String> = arguments.take();
            load(loader.as_deref(), name.as_deref()).map(local::held)
        }),
        Function::despite_poison("sheave.shard_loader.load_all", |mut arguments| {
            let loader = arguments.take_object::<Loader>();
            let Ok(known) = &loader else { return load(loader.as_deref(), Ok("")).map(local::held) };
            by_name(&known.names, |name| load(Ok(known), Ok(name)))
        }),
        Function::new("sheave.shard_loader.load_presharded", |mut arguments| {
            let loader = arguments.take_object::<Loader>()?;
            loader.presharded(&arguments.take::<String>()?).map(local::held)
        }),
        Function::new("sheave.shard_loader.load_all_presharded", load_all_presharded),
        Function::new("sheave.shard_loader.load_on_first", |mut arguments| {
            let loader = arguments.take_object::<Loader>()?;
            let name: String = arguments.take()?;
            if Worker::current()?.id > 0 {
                return Ok(Held::default());
            }
            loader.files()?.read(&name).map(local::held)
        }),
    ]
}

/// Opens the files on worker 0, which tells the others what is in them.
fn make(mut arguments: Arguments) -> Result<Held> {
    let worker = Worker::current()?;
    let given = take_given(&mut arguments);
    let opened = given.as_ref().map_err(Clone::clone).and_then(|(paths, infos)| open(&worker, paths, infos));
    let (source, files) = match opened {
        Ok(Some((names, files))) => (Ok(Some(names)), Some(files)),
        Ok(None) => (Ok(None), None),
        Err(error) => (Err(error), None),
    };
    let target = given.as_ref().map(|_| None).map_err(Clone::clone);
    let moved = Moved { operation: Operation::Broadcast, operator: None, source, target };
    let names = run(worker.communicators(), Scope::World, moved)?;
    let lost = || Error::new(ErrorKind::Internal, "nothing has come of the names of parameters");
    let names = match codec::decode(&names.ok_or_else(lost)?.bytes()?)? {
        Value::List(names) => names.into_iter().map(|name| Held::of(name).read()).collect::<Result<_>>()?,
        other => return Err(Error::new(ErrorKind::Protocol, format!("a {} for names", other.kind_name()))),
    };
    let (paths, infos) = given?;
    let loader = Loader { paths, infos, names, files: OnceLock::new() };
    if let Some(files) = files {
        let _ = loader.files.set(files);
    }
    Ok(Held::Object(Arc::new(loader)))
}

fn take_given(arguments: &mut Arguments) -> Result<(Vec<String>, Infos)> {
    let paths = arguments.take()?;
    let (infos, _) = arguments.take_held()?.to_value()?;
    Ok((paths, info::from_value(&infos)?))
}

/// The files, and the names in them as a tensor; on worker 0 alone.
fn open(worker: &Worker, paths: &[String], infos: &Infos) -> Result<Option<(Tensor, Files)>> {
    if worker.id > 0 {
        return Ok(None);
    }
    let files = Files::open(paths)?;
    if let Some(name) = infos.keys().find(|name| !files.has(name)) {
        let what = format!("the shard info names a parameter {name}, which the files do not hold");
        return Err(Error::new(ErrorKind::NotFound, what));
    }
    let names = codec::encode(&Value::List(files.names().map(Value::from).collect()))?;
    Ok(Some((Tensor::from_slice(&names, [names.len() as u64])?, files)))
}

/// A parameter as all workers together load it. One that has no loader says so, and all fail.
fn load(loader: Result<&Loader, &Error>, name: Result<&str, &Error>) -> Result<Tensor> {
    let worker = Worker::current()?;
    let wanted = loader.and_then(|loader| name.map(|name| (loader, name)));
    let info = wanted.ok().and_then(|(loader, name)| loader.infos.get(name));
    let operation = if info.is_some() { Operation::Scatter } else { Operation::Broadcast };
    let source = match wanted {
        Err(error) => Err(error.clone()),
        Ok(_) if worker.id > 0 => Ok(None),
        Ok((loader, name)) => loader.files().and_then(|files| files.read(name)).and_then(|whole| match info {
            Some(info) => {
                let cut = cut(&worker.communicators().mesh()?, whole, info, worker.workers);
                cut.map(Some).map_err(|error| error.context(format!("parameter {name}")))
            }
            None => Ok(Some(whole)),
        }),
    };
    let target = wanted.map(|_| None).map_err(Clone::clone);
    let moved = run(worker.communicators(), Scope::World, Moved { operation, operator: None, source, target })?;
    moved.ok_or_else(|| Error::new(ErrorKind::Internal, "nothing has come of a parameter"))
}

/// Tensors by their names.
fn by_name(names: &[String], tensor: impl Fn(&str) -> Result<Tensor>) -> Result<Held> {
    let tensors = names.iter().map(|name| Ok((name.clone(), tensor(name)?)));
    Ok(Held::of(tensors.collect::<Result<BTreeMap<_, _>>>()?))
}

fn load_all_presharded(mut arguments: Arguments) -> Result<Held> {
    let loader = arguments.take_object::<Loader>()?;
    let suffix = suffix(&Worker::current()?);
    let own = loader.names.iter().filter_map(|name| name.strip_suffix(&suffix)).map(str::to_owned);
    let own: Vec<String> = own.collect();
    if own.is_empty() {
        let what = format!("the files hold no tensor whose name ends in {suffix}");
        return Err(Error::new(ErrorKind::NotFound, what));
    }
    by_name(&own, |name| loader.presharded(name))
}

/// How the name of what this worker has of a parameter ends.
fn suffix(worker: &Worker) -> String {
    format!("_shard-{}-of-{}", worker.id + 1, worker.workers)
}

impl Loader {
    /// What this worker reads itself.
    fn presharded(&self, name: &str) -> Result<Tensor> {
        self.files()?.read(&format!("{name}{}", suffix(&Worker::current()?)))
    }

    fn files(&self) -> Result<&Files> {
        if let Some(files) = self.files.get() {
            return Ok(files);
        }
        let files = Files::open(&self.paths)?;
        Ok(self.files.get_or_init(|| files))
    }
}
