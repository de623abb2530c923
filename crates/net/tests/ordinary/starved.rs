//! Large tensors that wait for the memory which others of this node pass through: nobody burns a core meanwhile.

use crate::common::{config, cpu_time, receive, send, soon};
use sheave_base::{LinkId, Tag};
use sheave_net::{Envelope, Node, Outgoing, Transport, shm};
use sheave_tensor::{Dtype, Mode, Tensor};
use std::time::{Duration, Instant};

/// The slots of one stream.
const SLOTS_BYTES: u64 = 1 << 20;

/// How often the slots of streams that have ended are given back.
const BEAT: Duration = Duration::from_secs(2);

const BYTES: usize = 8 << 20;

fn large(value: u8) -> Tensor {
    Tensor::from_slice(&vec![value; BYTES], [BYTES as u64]).expect("memory")
}

fn arrives(node: &Node, link: LinkId, value: u8) {
    let got = receive(node, Some(link), value.into()).expect("the link stands").into_tensor().expect("one");
    assert_eq!(got.dtype(), Dtype::U8);
    assert!(got.as_slice::<u8>().expect("ours").iter().all(|byte| *byte == value));
}

/// F18: the pool of slots is empty, and the ring has room; whoever waits sleeps, tries again, and goes on in the end.
#[test]
fn f18_who_waits_for_the_slots_of_another_stream_sleeps() {
    let mut poor = config("poor", Transport::Shm);
    (poor.stream_slots_bytes, poor.liveness.beat) = (SLOTS_BYTES, BEAT);
    let poor = Node::start(poor).expect("a node");
    let others: [Node; 2] = ["one", "other"].map(|name| Node::start(config(name, Transport::Shm)).expect("a node"));
    let links = others.each_ref().map(|other| shm::connect(&poor, other).expect("two nodes of one host"));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| arrives(&others[0], links[0].1, 1));
        send(&poor, links[0].0, 1, large(1), Mode::Copy).expect("it has the slots");
        first.join().expect("it is there");
    });
    // The first link keeps them until the next beat.
    let message = Outgoing::tensor(Envelope::data(0, Tag(2)), large(2), Mode::Move);
    let waiting = poor.isend(links[1].0, message).expect("the link stands");
    let (begun, before) = (Instant::now(), cpu_time());
    let has_left = waiting.wait_until(Some(begun + BEAT / 4), None).expect("no interrupt");
    let (lasted, computed) = (begun.elapsed(), cpu_time() - before);
    assert!(!has_left, "it has found slots after {lasted:?}, and this test has seen nothing");
    assert!(computed < lasted / 4, "waiting for {lasted:?} took {computed:?} of computing");
    std::thread::scope(|scope| {
        let second = scope.spawn(|| arrives(&others[1], links[1].1, 2));
        assert!(waiting.wait_until(Some(soon()), None).expect("no interrupt"), "it goes on when there are slots");
        second.join().expect("it is there");
    });
}
