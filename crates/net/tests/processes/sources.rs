//! One receive, fed by shared memory and TCP at once.

use crate::common;
use crate::common::{accepted, config, hear, job, listening, number, number_in, receive, say, send, soon, start};
use sheave_net::Transport;
use sheave_net::{Medium, Node};
use sheave_tensor::Mode;
use std::collections::HashMap;

const MESSAGES: u64 = 10_000;

/// What another copy of this binary does.
#[test]
fn actor() {
    let Some(role) = common::role() else { return };
    let transport = if role == "over-shm" { Transport::Shm } else { Transport::Tcp };
    let node = Node::start(config(&role, transport)).expect("a node");
    let link = node.connect(&common::address(0), soon()).expect("the test listens");
    receive(&node, Some(link), 2).expect("the start");
    for value in 0..MESSAGES {
        send(&node, link, 1, number(&node, value), Mode::Copy).expect("sent");
    }
    say("sent");
    receive(&node, Some(link), 2).expect("the end");
}

#[test]
fn a_receive_from_anybody_takes_from_every_medium() {
    let (node, address) = listening(config("test", Transport::Auto));
    let job = job();
    let children = ["over-shm", "over-tcp"].map(|role| start(&job, role, &[&address]));
    let links = [accepted(&node), accepted(&node)];
    let media: HashMap<_, _> = links.iter().map(|link| (*link, node.link(*link).expect("alive").medium())).collect();
    assert!(media.values().any(|medium| *medium == Medium::SharedMemory));
    assert!(media.values().any(|medium| *medium == Medium::Tcp));
    for link in links {
        send(&node, link, 2, number(&node, 0), Mode::Copy).expect("sent");
    }
    let mut next: HashMap<_, u64> = links.iter().map(|link| (*link, 0)).collect();
    let mut changes = 0;
    let mut last = None;
    for _ in 0..2 * MESSAGES {
        let message = receive(&node, None, 1).expect("a message");
        let expected = next.get_mut(&message.source).expect("one of the two");
        assert_eq!(number_in(&message), *expected, "messages of one link stay in order");
        *expected += 1;
        changes += u32::from(last.replace(message.source) != Some(message.source));
    }
    assert!(next.values().all(|count| *count == MESSAGES));
    common::note(&format!("any source: the source changed {changes} times in {} messages", 2 * MESSAGES));
    for (child, link) in children.iter().zip(links) {
        hear(child, "sent");
        send(&node, link, 2, number(&node, 0), Mode::Copy).expect("sent");
    }
}
