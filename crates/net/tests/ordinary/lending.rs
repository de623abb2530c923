//! Lending: tensors that a peer reads where they lie, and what happens where a node may lend no more of its memory.

use crate::common::{config, receive, send, soon, wanted};
use sheave_base::{LinkId, Result, Tag, Work};
use sheave_net::{Envelope, Message, Node, Outgoing, Transport, shm};
use sheave_tensor::{ArenaConfig, Dtype, Mode, Tensor};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

const BYTES: usize = 64 << 10;

/// Two nodes and their link. The first may lend nothing.
fn without_credit() -> (Node, LinkId, Node, LinkId) {
    let mut poor = config("poor", Transport::Shm);
    poor.arena = ArenaConfig { lent_fraction: 0.0, ..ArenaConfig::default() };
    let poor = Node::start(poor).expect("a node");
    let other = Node::start(config("other", Transport::Shm)).expect("a node");
    let (forth, back) = shm::connect(&poor, &other).expect("two nodes of one host");
    (poor, forth, other, back)
}

fn filled(node: &Node, length_bytes: usize, value: u8) -> Tensor {
    let mut tensor = Tensor::empty(node.arena(), Dtype::U8, [length_bytes as u64]).expect("room");
    tensor.as_mut_slice::<u8>().expect("fresh").fill(value);
    tensor
}

fn message(tag: u64, tensor: Tensor, mode: Mode) -> Outgoing {
    Outgoing::tensor(Envelope::data(0, Tag(tag)), tensor, mode)
}

/// What is shared beyond the cap arrives as a copy of the receiver's own.
#[test]
fn f04_share_beyond_the_lending_cap_is_a_copy() {
    let (poor, forth, other, back) = without_credit();
    for (tag, length_bytes) in [(1, 8), (2, BYTES), (3, 3 << 20)] {
        send(&poor, forth, tag, filled(&poor, length_bytes, tag as u8), Mode::Share).expect("a copy comes instead");
        let got = receive(&other, Some(back), tag).expect("a tensor").into_tensor().expect("one");
        assert!(!got.buffer().is_shared_alias(), "it is the receiver's own");
        assert_eq!(got.to_vec::<u8>().expect("ours"), vec![tag as u8; length_bytes]);
    }
    assert_eq!(poor.arena().stats().lent_bytes, 0);
}

/// One that waits behind a stream ends no link, and nobody else's send.
#[test]
fn f04_a_share_that_waits_ends_nobody_elses_send() {
    let (poor, forth, other, back) = without_credit();
    // More than the slots of a stream and the ring hold, so that what follows waits.
    let long = Tensor::from_slice(&vec![7_u8; 32 << 20], [32 << 20]).expect("memory");
    let long = poor.isend(forth, message(1, long, Mode::Copy)).expect("the link stands");
    let shared = poor.isend(forth, message(2, filled(&poor, BYTES, 2), Mode::Share)).expect("a copy comes instead");
    let last = poor.isend(forth, message(3, filled(&poor, BYTES, 3), Mode::Copy)).expect("not the error of another");
    for tag in 1..=3 {
        let got = receive(&other, Some(back), tag).expect("the link stands").into_tensor().expect("one");
        let value = if tag == 1 { 7 } else { tag as u8 };
        assert!(got.as_slice::<u8>().expect("ours").iter().all(|byte| *byte == value), "message {tag}");
    }
    for work in [long, shared, last] {
        assert!(work.wait_until(Some(soon()), None).expect("no interrupt"), "it has left");
        work.wait().expect("it was sent");
    }
    assert_eq!((poor.links().len(), other.links().len()), (1, 1), "the link stands");
}

/// Does something as soon as a work is done, on the thread that completes it.
struct AtOnce<F>(Mutex<Option<F>>);

impl<F: FnOnce() + Send + 'static> AtOnce<F> {
    fn after<T>(work: &Work<T>, act: F) {
        let waker = Waker::from(Arc::new(Self(Mutex::new(Some(act)))));
        assert!(work.poll_done(&Context::from_waker(&waker)).is_pending(), "nothing has been sent");
    }
}

impl<F: FnOnce() + Send + 'static> Wake for AtOnce<F> {
    fn wake(self: Arc<Self>) {
        let act = self.0.lock().expect("nobody panics").take();
        act.into_iter().for_each(|act| act());
    }
}

/// Receives message 2, and says whether its receiver may write a tensor where the message is delivered.
fn write_when_told(node: &Node, link: LinkId, tensor: &Tensor) -> (Work<Message>, Receiver<Result<()>>) {
    let (tell, told) = std::sync::mpsc::channel();
    let written = tensor.clone();
    let answer = node.irecv(wanted(Some(link), 2), Default::default()).expect("the link stands");
    AtOnce::after(&answer, move || {
        tell.send(written.write_lease("test").map(drop)).expect("somebody listens");
    });
    (answer, told)
}

/// The receiver answers before the poll that has taken the tensor is over, and the sender looks at its tensor where the
/// answer is delivered: nothing but the order on the link says that it may write there again.
#[test]
fn a_borrowed_tensor_is_free_for_whoever_hears_that_it_has_come() {
    let one = Node::start(config("one", Transport::Shm)).expect("a node");
    let other = Node::start(config("other", Transport::Shm)).expect("a node");
    let (forth, back) = shm::connect(&one, &other).expect("two nodes of one host");
    for round in 0..100 {
        let tensor = filled(&one, BYTES, 1);
        let (answer, told) = write_when_told(&one, forth, &tensor);
        let answering = other.clone();
        let taken = other.irecv(wanted(Some(back), 1), Default::default()).expect("the link stands");
        AtOnce::after(&taken, move || {
            let small = Tensor::from_slice(&[2_u8], [1]).expect("it fits");
            drop(answering.isend(back, message(2, small, Mode::Copy)).expect("the link stands"));
        });
        let sent = one.isend_borrowed(forth, message(1, tensor, Mode::Copy)).expect("the link stands");
        assert!(answer.wait_until(Some(soon()), None).expect("no interrupt"), "round {round}: no answer");
        told.recv_timeout(std::time::Duration::from_secs(10)).expect("it was told").expect("nobody reads it");
        assert!(sent.wait_until(Some(soon()), None).expect("no interrupt"), "round {round}: not sent");
    }
}

/// As above, where the sender has read nothing for a while, so that the ring back to it is more than half full.
#[test]
fn a_borrowed_tensor_is_free_for_whoever_hears_it_behind_many_messages() {
    let one = Node::start(config("one", Transport::Shm)).expect("a node");
    let other = Node::start(config("other", Transport::Shm)).expect("a node");
    let (forth, back) = shm::connect(&one, &other).expect("two nodes of one host");
    for count in 8..14 {
        // Who polls the link is held up where it delivers this.
        let (go_on, held_up) = std::sync::mpsc::channel::<()>();
        let (stop, stopped) = std::sync::mpsc::channel();
        let first = one.irecv(wanted(Some(forth), 3), Default::default()).expect("the link stands");
        AtOnce::after(&first, move || {
            stop.send(()).expect("somebody listens");
            held_up.recv().expect("somebody goes on");
        });
        send(&other, back, 3, filled(&other, 8, 0), Mode::Copy).expect("the link stands");
        stopped.recv_timeout(std::time::Duration::from_secs(10)).expect("it is delivered");
        let many: Vec<_> = (0..count)
            .map(|_| other.isend(back, message(4, filled(&other, 1 << 10, 0), Mode::Copy)).expect("the link stands"))
            .collect();
        let tensor = filled(&one, BYTES, 1);
        let (answer, told) = write_when_told(&one, forth, &tensor);
        let sent = one.isend_borrowed(forth, message(1, tensor, Mode::Copy)).expect("the link stands");
        let got = receive(&other, Some(back), 1).expect("the link stands").into_tensor().expect("one");
        drop(got);
        let small = other.isend(back, message(2, filled(&other, 8, 2), Mode::Copy)).expect("the link stands");
        go_on.send(()).expect("it waits");
        assert!(answer.wait_until(Some(soon()), None).expect("no interrupt"), "{count} messages: no answer");
        told.recv_timeout(std::time::Duration::from_secs(10)).expect("it was told").expect("nobody reads it");
        for _ in 0..count {
            receive(&one, Some(forth), 4).expect("the link stands");
        }
        for work in many.into_iter().chain([small, sent]) {
            assert!(work.wait_until(Some(soon()), None).expect("no interrupt"), "{count} messages: not sent");
        }
    }
}
