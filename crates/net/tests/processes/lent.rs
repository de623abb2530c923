//! What is lent when a link or a node ends: memory that is given back, and tensors that stay as they were sent.

use crate::common;
use crate::common::{accepted, config, hear, job, listening, number, receive, say, send, soon, start};
use crate::held::held;
use sheave_base::{LinkId, Tag};
use sheave_net::{Envelope, Node, Outgoing, Transport, shm};
use sheave_process::Child;
use sheave_tensor::{Dtype, Mode, Tensor};
use std::collections::VecDeque;

const BYTES: u64 = 1 << 20;
const BORROWED_BYTES: u64 = 64 << 10;
const NODES: u64 = 40;
const LINKS: u64 = 300;
const WARM: u64 = 8;
const KEPT: usize = 8;

/// What another copy of this binary does.
#[test]
fn actor() {
    let Some(role) = common::role() else { return };
    match role.as_str() {
        "keeper" => keep_from_many_nodes(),
        "visitor" => visit(),
        "sleeper" => sleep(),
        other => panic!("unknown part {other}"),
    }
}

fn filled(node: &Node, length_bytes: u64, value: u8) -> Tensor {
    let mut tensor = Tensor::empty(node.arena(), Dtype::U8, [length_bytes]).expect("room");
    tensor.as_mut_slice::<u8>().expect("fresh").fill(value);
    tensor
}

/// Connects to every node that the test makes, and keeps what it was given for as long as it lives.
fn keep_from_many_nodes() {
    let node = Node::start(config("keeper", Transport::Shm)).expect("a node");
    let inbox = node.connect(&common::address(0), soon()).expect("the test listens");
    let mut kept = Vec::new();
    for round in 0..NODES {
        let address = receive(&node, Some(inbox), 1).expect("an address").control;
        let address = String::from_utf8(address).expect("a text").parse().expect("an address");
        let link = node.connect(&address, soon()).expect("the test listens");
        kept.push(receive(&node, Some(link), 1).expect("a tensor").into_tensor().expect("one"));
        send(&node, inbox, 2, number(&node, round), Mode::Copy).expect("sent");
        receive(&node, Some(link), 9).expect_err("the test ends its node");
    }
    let intact = |(round, tensor): (usize, &Tensor)| {
        tensor.as_slice::<u8>().expect("ours").iter().all(|byte| *byte == round as u8)
    };
    assert!(kept.iter().enumerate().all(intact), "what was given has changed");
    say("all intact");
    receive(&node, Some(inbox), 9).expect_err("the end");
}

/// A node that ends while its peer holds what it was lent gives its memory back to the system.
#[test]
fn f13_nodes_that_end_give_their_memory_back() {
    let (base, address) = listening(config("base", Transport::Shm));
    let job = job();
    let keeper = start(&job, "keeper", &[&address]);
    let link = accepted(&base);
    let mut before = (0, 0);
    for round in 0..NODES {
        if round == WARM {
            before = held();
        }
        let (node, address) = listening(config("test", Transport::Shm));
        let words = Outgoing::control(Envelope::data(0, Tag(1)), address.to_string().into_bytes());
        base.send(link, words, Some(soon()), None).expect("sent");
        let to_keeper = accepted(&node);
        send(&node, to_keeper, 1, filled(&node, BYTES, round as u8), Mode::Move).expect("sent");
        receive(&base, Some(link), 2).expect("it keeps the tensor");
    }
    let after = held();
    common::note(&format!("{before:?} descriptors and bytes after {WARM} nodes, {after:?} after {NODES}"));
    hear(&keeper, "all intact");
    assert!(after.0 <= before.0 + 2, "descriptors grew from {} to {}", before.0, after.0);
    assert!(after.1 <= before.1, "shared memory grew from {} to {} bytes", before.1, after.1);
}

/// Makes one link after the other, and keeps the last things that it was given until some links later.
fn visit() {
    let node = Node::start(config("visitor", Transport::Shm)).expect("a node");
    let mut kept = VecDeque::new();
    for _ in 0..LINKS {
        let link = node.connect(&common::address(0), soon()).expect("the test listens");
        kept.push_back(receive(&node, Some(link), 1).expect("a tensor"));
        if kept.len() > KEPT {
            kept.pop_front();
        }
        send(&node, link, 2, number(&node, 1), Mode::Copy).expect("sent");
        receive(&node, Some(link), 9).expect_err("the test ends the link");
    }
    let (descriptors, _) = held();
    say(&format!("descriptors {descriptors}"));
    let link = node.connect(&common::address(0), soon()).expect("the test listens");
    receive(&node, Some(link), 9).expect_err("the end");
}

/// Links to a process that lives on leave nothing behind, though it keeps what it was lent over them.
#[test]
fn f13_links_that_end_leave_nothing_behind() {
    let (node, address) = listening(config("test", Transport::Shm));
    let job = job();
    let visitor = start(&job, "visitor", &[&address]);
    let mut before = (0, 0);
    for round in 0..LINKS {
        if round == LINKS / 2 {
            before = held();
        }
        let link = accepted(&node);
        send(&node, link, 1, filled(&node, BYTES, round as u8), Mode::Move).expect("sent");
        receive(&node, Some(link), 2).expect("it keeps the tensor");
        node.close(link).expect("it stands");
    }
    let (after, stats) = (held(), node.arena().stats());
    common::note(&format!("{before:?} descriptors and bytes after {} links, {after:?} after {LINKS}", LINKS / 2));
    assert!(after.0 <= before.0 + 4, "descriptors grew from {} to {}", before.0, after.0);
    // More than the arena's next segments would be what was lent since.
    assert!(after.1 <= before.1 + (64 << 20), "shared memory grew from {} to {} bytes", before.1, after.1);
    assert!(stats.lent_bytes <= 16 << 20, "{} bytes count as lent", stats.lent_bytes);
    let theirs: u64 = hear(&visitor, "descriptors").parse().expect("a number");
    // What it keeps a tensor of it has mapped, each by a descriptor of its own.
    assert!(theirs < 40, "the visitor has {theirs} descriptors");
}

/// However many links a node makes and ends, and whatever was lent over them, it has no more than half-way.
fn stays_flat(links: usize) {
    let [one, other] = ["one", "other"].map(|name| Node::start(config(name, Transport::Shm)).expect("a node"));
    let mut kept = Vec::new();
    let mut before = (0, 0);
    for round in 0..links {
        if round == links / 2 {
            before = held();
        }
        let (forth, back) = shm::connect(&one, &other).expect("two nodes of one host");
        send(&one, forth, 1, filled(&one, 64 << 10, round as u8), Mode::Move).expect("sent");
        let tensor = receive(&other, Some(back), 1).expect("a tensor").into_tensor().expect("one");
        // Some are dropped before the link ends, most afterwards, and a few are kept.
        if round % 5 != 0 {
            kept.push(tensor);
        }
        one.close(forth).expect("it stands");
        receive(&other, Some(back), 9).expect_err("it is closed");
        if round % 200 == 0 {
            kept.truncate(10);
        }
    }
    let after = held();
    common::note(&format!("{before:?} descriptors and bytes half-way, {after:?} after {links} links"));
    // Half of what was kept until a moment ago may be gone, or not yet.
    assert!(after.0 <= before.0 + 200, "descriptors grew from {} to {}", before.0, after.0);
    assert!(after.1 <= before.1 + (64 << 20), "shared memory grew from {} to {} bytes", before.1, after.1);
}

#[test]
fn f13_a_thousand_links_stay_flat() {
    stays_flat(1_001);
}

#[test]
#[ignore = "soak suite: 20,000 links take a minute"]
fn f13_twenty_thousand_links_stay_flat() {
    stays_flat(20_001);
}

/// Stops itself between its links, and says what it reads from the ring then.
fn sleep() {
    let node = Node::start(config("sleeper", Transport::Shm)).expect("a node");
    let link = node.connect(&common::address(0), soon()).expect("the test listens");
    send(&node, link, 2, number(&node, 1), Mode::Copy).expect("sent");
    // SAFETY: the signal has no handler, and stops this process until the test goes on.
    assert_eq!(unsafe { libc::raise(libc::SIGSTOP) }, 0);
    let first = receive(&node, Some(link), 1).expect("it was sent before the close").into_tensor().expect("one");
    assert_eq!(first.to_vec::<u8>().expect("ours"), [1; 8]);
    match receive(&node, Some(link), 1) {
        Ok(message) => {
            let tensor = message.into_tensor().expect("one");
            say(&format!("delivered {}", tensor.as_slice::<u8>().expect("ours").iter().max().expect("bytes")));
        }
        Err(error) => say(&format!("refused {:?}", error.kind())),
    }
}

fn until_stopped(child: &Child) {
    let stat = format!("/proc/{}/stat", child.pid());
    let until = soon();
    while !std::fs::read_to_string(&stat).expect("it lives").contains(") T ") {
        assert!(std::time::Instant::now() < until, "it never stopped");
        std::thread::yield_now();
    }
}

fn overwrite_after_the_end(node: &Node, link: LinkId, sleeper: &Child) {
    until_stopped(sleeper);
    let first = Tensor::from_slice(&[1_u8; 8], [8]).expect("memory");
    send(node, link, 1, first, Mode::Copy).expect("the ring has room");
    let tensor = filled(node, BORROWED_BYTES, 1);
    let message = Outgoing::tensor(Envelope::data(0, Tag(1)), tensor.clone(), Mode::Copy);
    let sending = node.isend_borrowed(link, message).expect("the ring has room");
    assert!(!sending.is_done(), "the peer has copied nothing");
    tensor.write_lease("test").expect_err("it is being read");
    node.close(link).expect("it stands");
    sending.wait().expect_err("the peer had not copied it");
    // It is the owner's again now, or the peer reads what was sent.
    if tensor.write_lease("test").is_ok() {
        // SAFETY: the tensor is that long, and by the lease nobody uses it.
        unsafe { std::ptr::write_bytes(tensor.ptr(), 2, tensor.len_bytes()) };
    }
    // SAFETY: no memory is involved; the process is our own actor.
    assert_eq!(unsafe { libc::kill(sleeper.pid() as i32, libc::SIGCONT) }, 0);
}

/// A tensor that the peer was to copy, and had not when the link ended, is not delivered with what its owner has
/// written there since.
#[test]
fn f03_a_borrowed_tensor_is_not_delivered_as_it_became_after_the_end() {
    let (node, address) = listening(config("test", Transport::Shm));
    let job = job();
    let sleeper = start(&job, "sleeper", &[&address]);
    let link = accepted(&node);
    receive(&node, Some(link), 2).expect("it is there");
    overwrite_after_the_end(&node, link, &sleeper);
    let said = sleeper.wait_for_stdout("[actor] ", soon()).expect("it goes on");
    assert!(!said.contains("delivered 2"), "{said}");
    assert!(said.contains("refused PeerLost") || said.contains("delivered 1"), "{said}");
}
