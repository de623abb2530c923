//! Every way of a tensor there and back: media, numbers of workers and servers, sizes, memory, batches in flight.

use crate::common::{MEDIA, done, next_batch, play, soon};
use sheave_exchange::{Answer, Config, Handle, Pull, Push, Registration, Scope, Server, Worker};
use sheave_mesh::Mesh;
use sheave_net::Medium;
use sheave_tensor::{Arena, Dtype, Tensor};

/// Where tensors lie, on both sides.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Memory {
    Private,
    Arena,
    /// Pushes land in registered memory.
    Registered,
    /// Pushes and answers are given away.
    Moved,
}

const MEMORIES: [Memory; 4] = [Memory::Private, Memory::Arena, Memory::Registered, Memory::Moved];

/// One element, a record of a ring, more than a record, and more than the slots of a stream.
const SIZES: [usize; 4] = [1, 256, 30_000, 400_000];

/// Micro-batches in flight.
const STAGES: u64 = 3;
const ROUNDS: u64 = 4;

fn pushed(worker: u64, stage: u64, round: u64, count: usize) -> impl Iterator<Item = f32> {
    (0..count).map(move |index| (worker * 1000 + stage * 100 + round) as f32 + index as f32 * 0.5)
}

/// What a server makes of what all workers pushed: for each worker its own values, plus the sum of everybody's first
/// value, plus the server's rank.
fn answered(worker: u64, server: u64, workers: u64, stage: u64, round: u64, count: usize) -> Vec<f32> {
    let first: f32 = (0..workers).map(|other| (other * 1000 + stage * 100 + round) as f32).sum();
    pushed(worker, stage, round, count).map(|value| value + first + server as f32).collect()
}

fn filled(arena: Option<&Arena>, values: impl Iterator<Item = f32>) -> Tensor {
    let values: Vec<f32> = values.collect();
    let shape = [values.len() as u64];
    let mut tensor = match arena {
        Some(arena) => Tensor::empty(arena, Dtype::F32, shape).expect("room"),
        None => Tensor::private(Dtype::F32, shape).expect("memory"),
    };
    tensor.as_mut_slice::<f32>().expect("the only handle").copy_from_slice(&values);
    tensor
}

fn work(mesh: &Mesh, worker: &Worker, memory: Memory, workers: u64, count: usize) {
    let (me, servers) = (u64::from(worker.rank()), worker.servers());
    let arena = Some(mesh.node().arena()).filter(|_| memory != Memory::Private);
    let places: Vec<Vec<Tensor>> =
        (0..STAGES).map(|_| (0..servers).map(|_| filled(arena, std::iter::repeat_n(-1.0, count))).collect()).collect();
    let check = |stage: u64, round: u64, request: Handle| {
        done(worker, request).expect("everybody lives");
        let taken = worker.take(request).expect("it is done");
        for (server, place) in places[stage as usize].iter().enumerate() {
            let got = taken.get(server).unwrap_or(place);
            let got = got.to_vec::<f32>().expect("it is f32");
            let wanted = answered(me, server as u64, workers, stage, round, count);
            assert!(got == wanted, "worker {me}, server {server}, stage {stage}, round {round}");
        }
    };
    // Places hold for what is pushed after they were registered.
    worker.barrier(Scope::All, false, Some(soon()), None).expect("everybody comes");
    let mut requests: Vec<Option<Handle>> = vec![None; STAGES as usize];
    for round in 0..ROUNDS {
        for stage in 0..STAGES {
            if let Some(request) = requests[stage as usize].take() {
                check(stage, round - 1, request);
            }
            let tensor = filled(arena, pushed(me, stage, round, count));
            let moves = memory == Memory::Moved && servers == 1;
            let push = if moves { Push::moved(stage, tensor) } else { Push::new(stage, &tensor) };
            let pulls = (0..servers).map(|server| match memory {
                Memory::Moved => Pull::taken(stage, Dtype::F32, [count as u64]),
                _ => Pull::into(stage, &places[stage as usize][server]),
            });
            requests[stage as usize] = Some(worker.push_pull([push], pulls).expect("it is valid"));
        }
    }
    for (stage, request) in requests.into_iter().enumerate() {
        check(stage as u64, ROUNDS - 1, request.expect("it was made"));
    }
}

fn register(mesh: &Mesh, server: &Server, count: usize) -> Vec<Registration> {
    let workers = server.workers() as u32;
    let places = |stage| (0..workers).map(|worker| (worker, stage)).collect::<Vec<_>>();
    (0..STAGES)
        .map(|stage| {
            let shape = [u64::from(workers), count as u64];
            let tensor = Tensor::empty(mesh.node().arena(), Dtype::F32, shape).expect("room");
            server.register(&tensor, &places(stage)).expect("they are free")
        })
        .collect()
}

fn serve(mesh: &Mesh, server: &Server, memory: Memory, count: usize) {
    let registered = if memory == Memory::Registered { register(mesh, server, count) } else { Vec::new() };
    let arena = Some(mesh.node().arena()).filter(|_| memory != Memory::Private);
    server.barrier(Scope::All, false, Some(soon()), None).expect("everybody comes");
    while let Some(batch) = next_batch(server) {
        let ranks: Vec<u32> = batch.iter().map(|request| request.worker).collect();
        assert_eq!(ranks, (0..server.workers() as u32).collect::<Vec<_>>());
        let first: f32 = batch.iter().map(|request| request.tensors[0].as_slice::<f32>().expect("f32")[0]).sum();
        if let Some(registration) = registered.get(batch[0].keys()[0] as usize) {
            let parts: Vec<&Tensor> = batch.iter().map(|request| &request.tensors[0]).collect();
            let merged = registration.merged(&parts).expect("side by side");
            let apart: Vec<f32> = parts.iter().flat_map(|part| part.to_vec::<f32>().expect("f32")).collect();
            assert!(merged.to_vec::<f32>().expect("f32") == apart);
        }
        for request in &batch {
            let mine = request.tensors[0].to_vec::<f32>().expect("f32");
            let answer = filled(arena, mine.iter().map(|value| value + first + server.rank() as f32));
            match memory {
                Memory::Moved => server.respond(request.handler, [Answer::moved(answer)]).expect("it fits"),
                _ => server.respond(request.handler, [&answer]).expect("it fits"),
            }
        }
    }
    assert_eq!(server.unanswered(), 0);
}

fn run(servers: u32, workers: u32, medium: Medium, memory: Memory, count: usize) {
    play(
        (servers, workers),
        medium,
        Config::default(),
        move |mesh, worker| work(mesh, worker, memory, u64::from(workers), count),
        move |mesh, server| serve(mesh, server, memory, count),
    );
}

fn all_of(medium: Medium) {
    for memory in MEMORIES {
        for count in SIZES {
            run(1, 1, medium, memory, count);
        }
        run(2, 3, medium, memory, 500);
        run(2, 2, medium, memory, 30_000);
    }
}

#[test]
fn in_process() {
    all_of(MEDIA[0]);
}

#[test]
fn over_shared_memory() {
    all_of(MEDIA[1]);
}

#[test]
fn over_tcp() {
    all_of(MEDIA[2]);
}

#[test]
fn more_workers_than_a_mask_has_bits() {
    run(1, 40, Medium::InProcess, Memory::Registered, 16);
}
