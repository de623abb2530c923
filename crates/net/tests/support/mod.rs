//! What the tests with real sockets have in common.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses a part of it, and all of it is test code")]

pub(crate) mod stranger;

use sheave_base::secret::Resolved;
use sheave_base::{LinkId, Secret, Tag};
use sheave_net::{Address, Envelope, ListenConfig, Node, NodeConfig, Outgoing, Tensors, Transport, Wanted};
use sheave_tensor::{Mode, Tensor};
use std::time::{Duration, Instant};

pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) const SECRET: &str = "a secret for these tests";

pub(crate) fn soon() -> Instant {
    Instant::now() + LIMIT
}

pub(crate) fn secret(text: &str, source: &str) -> Option<Resolved> {
    Some(Resolved { secret: Secret::new(text.as_bytes()).unwrap(), source: source.into() })
}

pub(crate) fn config(name: &str) -> NodeConfig {
    NodeConfig { secret: secret(SECRET, "the test"), ..NodeConfig::named(name) }
}

pub(crate) fn listening(name: &str) -> (Node, Address) {
    let node = Node::start(config(name)).unwrap();
    let address = node.listen(ListenConfig::default()).unwrap();
    (node, address)
}

/// Two linked nodes: the one that connected, its link, the one that listened, its link.
pub(crate) fn linked(transport: Transport) -> (Node, LinkId, Node, LinkId) {
    let (server, address) = listening("server");
    let worker = Node::start(NodeConfig { transport, ..config("worker") }).unwrap();
    let forth = worker.connect(&address, soon()).unwrap();
    let back = server.accept().wait_timeout(LIMIT).unwrap();
    (worker, forth, server, back)
}

pub(crate) fn wanted(source: LinkId, tag: u64) -> Wanted {
    Wanted { source: Some(source), context: 0, tag: Tag(tag) }
}

pub(crate) fn bytes_tensor(length_bytes: usize, seed: u8) -> Tensor {
    let values: Vec<u8> = (0..length_bytes).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect();
    Tensor::from_slice(&values, [length_bytes as u64]).unwrap()
}

pub(crate) fn copied(tag: u64, tensor: &Tensor) -> Outgoing {
    Outgoing::tensor(Envelope::data(0, Tag(tag)), tensor.clone(), Mode::Copy)
}

pub(crate) fn receive(node: &Node, link: LinkId, tag: u64, places: Tensors) -> sheave_base::Result<Tensor> {
    node.recv(wanted(link, tag), places, Some(soon()), None)?.into_tensor()
}

/// Waits until `condition` holds; panics when it never does.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = soon();
    while !condition() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::yield_now();
    }
}
