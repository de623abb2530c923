//! One job of a measurement: a scheduler, servers and workers, of which this process is the first worker.
//!
//! The others are this binary again, as in `bench link`. All of them know beforehand how often what is pushed. A worker
//! rewrites what it pushes before each request, outside the timer, and a server what it answers right after the answer
//! before, so that all bytes really cross cores. Every cell runs twice: as it is, and with the eight points in time of
//! each request, from which the phases are.

use super::case::{Case, Cell};
use crate::Failure;
use crate::bench::Transport;
use crate::bench::child::{self, Follower, no_times, record};
use crate::bench::pair::{node_config, pin_to_core};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use sheave_base::config::Endpoint;
use sheave_base::{Error, ErrorKind, Result};
use sheave_exchange::{Answer, Batch, Config as Exchange, Pull, Push, Scope, Server, Stamps, Worker};
use sheave_fleet::draw_secret;
use sheave_mesh::{Config, Expected, Mesh, Role};
use sheave_tensor::{Dtype, Tensor};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// A request that takes longer than this is a fault, not a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// A job that has not ended by then has hung.
const JOB_TIMEOUT: Duration = Duration::from_secs(300);

/// What a job measures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) workers: u32,
    pub(super) servers: u32,
    pub(super) transport: Transport,
    pub(super) cells: Vec<Cell>,
    pub(super) pin: bool,
}

/// What another process of the job must know.
#[derive(Serialize, Deserialize)]
struct Part {
    role: String,
    rank: u32,
    port: u16,
    secret: String,
    plan: Plan,
}

/// The times of a cell, as a whole and by phase.
pub(super) type Phases = Vec<(&'static str, Histogram<u64>)>;

/// Runs one job and returns the times of each cell.
pub(super) fn measure(plan: &Plan) -> Result<Vec<Phases>> {
    let port = sheave_base::port::free()?;
    let secret = draw_secret()?;
    let part =
        |role: Role, rank| Part { role: role.to_string(), rank, port, secret: secret.clone(), plan: plan.clone() };
    let servers = (0..plan.servers).map(|rank| part(Role::Server, rank));
    let workers = (1..plan.workers).map(|rank| part(Role::Worker, rank));
    let others = std::iter::once(part(Role::Scheduler, 0)).chain(servers).chain(workers);
    let followers: Vec<Follower> =
        others.map(|part| Follower::start("exchange-child", &part)).collect::<Result<_>>()?;
    // On a thread of its own, so that a core it is kept on is not the next job's.
    let me = part(Role::Worker, 0);
    let worker = std::thread::Builder::new().name("worker".into()).spawn(move || {
        let mesh = me.join()?;
        let times = me.work(&mesh)?;
        mesh.leave().map(|()| times)
    })?;
    let times = worker.join().map_err(|_| Error::new(ErrorKind::Internal, "the worker panicked"))??;
    followers.into_iter().try_for_each(Follower::finish).map(|()| times)
}

/// The hidden command: one of the other processes.
pub(crate) fn follow() -> std::result::Result<(), Failure> {
    let part: Part = child::invited("sheave bench exchange")?;
    child::end_after(JOB_TIMEOUT);
    match part.play() {
        // The parent knows why.
        Err(error) if error.kind().is_loss() => std::process::exit(1),
        outcome => Ok(outcome?),
    }
}

impl Part {
    fn join(&self) -> Result<Mesh> {
        let unknown = || Error::new(ErrorKind::InvalidArgument, format!("there is no role {}", self.role));
        let role = Role::from_name(&self.role).ok_or_else(unknown)?;
        let Plan { workers, servers, .. } = self.plan;
        let expected = Expected { schedulers: 1, servers, workers, ranks: 0 };
        let root = Endpoint { host: Ipv4Addr::LOCALHOST.to_string(), port: self.port };
        let mut config = Config::new(role, Some(self.rank), expected, root);
        config.join_timeout = child::PATIENCE;
        config.node = node_config("", self.plan.transport, &self.secret)?;
        // The scheduler has nothing to do.
        config.node.local_ranks = (workers + servers) as usize;
        let mesh = Mesh::join(config)?;
        if self.plan.pin && role != Role::Scheduler {
            let first = if role == Role::Worker { 0 } else { workers };
            // Only now, so that the node has seen all the cores that there are.
            pin_to_core((first + self.rank) as usize)?;
        }
        Ok(mesh)
    }

    fn play(&self) -> Result<()> {
        let mesh = self.join()?;
        match mesh.me().introduction.role {
            Role::Server => self.serve(&mesh)?,
            Role::Worker => self.work(&mesh).map(drop)?,
            _ => mesh.until_gone(|_| true)?,
        }
        mesh.leave()
    }

    fn work(&self, mesh: &Mesh) -> Result<Vec<Phases>> {
        let mut all = Vec::new();
        for cell in &self.plan.cells {
            let mut phases = Vec::new();
            for stamps in [false, true] {
                let worker = Worker::open(mesh, Exchange { stamps, ..Exchange::default() })?;
                // The server has registered its memory.
                worker.barrier(Scope::All, false, Some(Instant::now() + PATIENCE), None)?;
                phases.extend(requests(mesh, &worker, cell, stamps)?);
                worker.barrier(Scope::All, false, Some(Instant::now() + PATIENCE), None)?;
            }
            all.push(phases);
        }
        Ok(all)
    }

    fn serve(&self, mesh: &Mesh) -> Result<()> {
        for cell in &self.plan.cells {
            for _ in [false, true] {
                let server = Server::open(mesh, Exchange::default())?;
                batches(mesh, &server, cell)?;
            }
        }
        Ok(())
    }
}

/// Requests that are not counted, before those that are.
fn warm_up(cell: &Cell) -> usize {
    cell.iterations / 10 + 2
}

fn tensor(mesh: &Mesh, cell: &Cell) -> Result<Tensor> {
    let shape = [cell.bytes as u64];
    match cell.case {
        Case::Private => Tensor::private(Dtype::U8, shape),
        _ => Tensor::empty(mesh.node().arena(), Dtype::U8, shape),
    }
}

fn rewrite(tensor: &Tensor, value: u8) -> Result<()> {
    tensor.write_lease("bench")?.bytes_mut()?.fill(value);
    Ok(())
}

fn requests(mesh: &Mesh, worker: &Worker, cell: &Cell, stamps: bool) -> Result<Phases> {
    let mut times = no_times();
    let mut phases: Vec<Stamps> = Vec::with_capacity(cell.iterations * worker.servers());
    let mut pushed = tensor(mesh, cell)?;
    let pulled: Vec<Tensor> = (0..worker.servers()).map(|_| tensor(mesh, cell)).collect::<Result<_>>()?;
    pulled.iter().try_for_each(|tensor| rewrite(tensor, 0))?;
    for number in 0..warm_up(cell) + cell.iterations {
        rewrite(&pushed, number as u8)?;
        let until = Instant::now() + PATIENCE;
        let begun = Instant::now();
        let request = if cell.case == Case::Moved {
            let pull = Pull::taken(0, Dtype::U8, [cell.bytes as u64]);
            let request = worker.push_pull([Push::moved(0, pushed)], [pull])?;
            worker.wait(request, Some(until), None)?;
            let returned = worker.take(request)?.pop();
            pushed = returned.ok_or_else(|| Error::new(ErrorKind::Internal, "no tensor came back"))?;
            request
        } else {
            let request = worker.push_pull([Push::new(0, &pushed)], pulled.iter().map(|place| Pull::into(0, place)))?;
            worker.wait(request, Some(until), None)?;
            request
        };
        let span = begun.elapsed();
        if number >= warm_up(cell) {
            record(&mut times, span);
            if stamps {
                phases.extend(worker.stamps(request)?);
            }
        }
    }
    let expected = if cell.case == Case::Moved { &pushed } else { &pulled[0] };
    let last = (warm_up(cell) + cell.iterations - 1) as u8;
    if expected.bytes()?.iter().any(|byte| *byte != last) {
        return Err(Error::new(ErrorKind::Internal, "the last answer is not what the server sent"));
    }
    if stamps { Ok(by_phase(&phases)) } else { Ok(vec![(cell.case.name(), times)]) }
}

/// The phases of all requests, as the table that StepMesh prints has them.
fn by_phase(stamps: &[Stamps]) -> Phases {
    type Span = (&'static str, fn(&Stamps) -> u64);
    let spans: [Span; 6] = [
        ("request_send", |it| it.sent.saturating_sub(it.begun)),
        ("request_take", |it| it.taken.saturating_sub(it.arrived)),
        ("process", |it| it.answered.saturating_sub(it.taken)),
        ("answer_send", |it| it.answer_sent.saturating_sub(it.answered)),
        ("answer_take", |it| it.ended.saturating_sub(it.answer_arrived)),
        // Differences of one clock each, so that it does not matter how far the clocks are apart.
        ("network", |it| {
            let away = it.answer_arrived.saturating_sub(it.sent);
            away.saturating_sub(it.answer_sent.saturating_sub(it.arrived))
        }),
    ];
    let of = |span: fn(&Stamps) -> u64| {
        let mut times = no_times();
        stamps.iter().for_each(|stamps| record(&mut times, Duration::from_nanos(span(stamps))));
        times
    };
    spans.into_iter().map(|(name, span)| (name, of(span))).collect()
}

fn batches(mesh: &Mesh, server: &Server, cell: &Cell) -> Result<()> {
    let workers = server.workers() as u32;
    let shape = [u64::from(workers), cell.bytes as u64];
    let landing = match cell.case {
        Case::Private => Tensor::private(Dtype::U8, shape)?,
        _ => Tensor::empty(mesh.node().arena(), Dtype::U8, shape)?,
    };
    rewrite(&landing, 0)?;
    if cell.case != Case::Moved {
        let places: Vec<(u32, u64)> = (0..workers).map(|worker| (worker, 0)).collect();
        server.register(&landing, &places)?;
    }
    // One is read by the workers while the other is written.
    let answers = [tensor(mesh, cell)?, tensor(mesh, cell)?];
    answers.iter().try_for_each(|answer| rewrite(answer, 0))?;
    server.barrier(Scope::All, false, Some(Instant::now() + PATIENCE), None)?;
    let mut batch = Batch::default();
    for number in 0..warm_up(cell) + cell.iterations {
        server.get_batch_into(&mut batch, Some(Instant::now() + PATIENCE), None)?;
        let answer = &answers[number % 2];
        for request in std::mem::take(&mut batch) {
            if cell.case == Case::Moved {
                let mut tensors = request.tensors;
                server.respond(request.handler, tensors.pop().map(Answer::moved))?;
            } else {
                server.respond(request.handler, [answer])?;
            }
        }
        if cell.case != Case::Moved {
            rewrite(&answers[(number + 1) % 2], (number + 1) as u8)?;
        }
    }
    server.barrier(Scope::All, false, Some(Instant::now() + PATIENCE), None)
}
