//! Exchanges for tests: of threads with nodes of their own, or of processes.

#![allow(dead_code, unused_imports, reason = "each test binary uses its part")]

#[path = "../../../mesh/tests/common/meshes.rs"]
mod meshes;
#[path = "../../../mesh/tests/common/seeds.rs"]
mod seeds;

pub(crate) use meshes::*;
pub(crate) use seeds::fresh_seeds;
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, Result};
use sheave_exchange::{Batch, Config, Handle, Server, Worker};
use sheave_mesh::{Mesh, Role};
use sheave_net::{Medium, Neighbourhood};
use sheave_tensor::{Dtype, Tensor};

/// What the links of an exchange of threads may run over.
pub(crate) const MEDIA: [Medium; 3] = [Medium::InProcess, Medium::SharedMemory, Medium::Tcp];

/// Runs an exchange of threads: every worker and every server on one of its own, and a scheduler. Returns what the
/// workers returned, by rank.
pub(crate) fn play<T: Send + 'static>(
    (servers, workers): (u32, u32),
    medium: Medium,
    config: Config,
    worker: impl Fn(&Mesh, &Worker) -> T + Clone + Send + 'static,
    server: impl Fn(&Mesh, &Server) + Clone + Send + 'static,
) -> Vec<T> {
    let here = Neighbourhood::default();
    let transport = match medium {
        Medium::Tcp => Transport::Tcp,
        Medium::SharedMemory => Transport::Shm,
        _ => Transport::Auto,
    };
    let change = |config: &mut sheave_mesh::Config| {
        config.node.neighbourhood = Some(here.clone());
        config.node.arena.capacity_bytes = 256 << 20;
    };
    let outcomes = together_with(roles(servers, workers), transport, change, move |mesh| {
        let outcome = match mesh.me().introduction.role {
            Role::Worker => {
                let end = Worker::open(&mesh, config).expect("everybody comes");
                let outcome = worker(&mesh, &end);
                end.close();
                Some(outcome)
            }
            Role::Server => {
                let end = Server::open(&mesh, config).expect("everybody comes");
                server(&mesh, &end);
                end.close();
                None
            }
            _ => {
                mesh.until_gone(|_| true).expect("nobody dies");
                None
            }
        };
        mesh.leave().expect("the others agree");
        outcome
    });
    outcomes.into_iter().flatten().collect()
}

/// The next batch, unless all workers have left.
pub(crate) fn next_batch(server: &Server) -> Option<Batch> {
    match server.get_batch(Some(soon()), None) {
        Ok(batch) => Some(batch),
        Err(error) if error.kind() == ErrorKind::Closed => None,
        Err(error) => panic!("no batch: {error}"),
    }
}

/// Waits for a request as long as a test may.
pub(crate) fn done(worker: &Worker, request: Handle) -> Result<()> {
    worker.wait(request, Some(soon()), None)
}

/// Answers every request with its own pushes, in order, until the workers have left.
pub(crate) fn echo(server: &Server) {
    while let Some(batch) = next_batch(server) {
        for request in &batch {
            server.respond(request.handler, &request.tensors).expect("as many pulls as pushes");
        }
    }
}

pub(crate) fn floats(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, [values.len() as u64]).expect("memory")
}

pub(crate) fn zeros(count: usize) -> Tensor {
    Tensor::private(Dtype::F32, [count as u64]).expect("memory")
}

pub(crate) fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().expect("nobody writes it")
}

/// That an error is of this kind and says all of this.
pub(crate) fn says(error: &Error, kind: ErrorKind, words: &[&str]) {
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}
