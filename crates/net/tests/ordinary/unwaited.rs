//! Messages that nobody waits for: they come in all the same, though waits have come and gone in between.

use crate::common::{config, wanted};
use sheave_base::Tag;
use sheave_net::{Envelope, Node, NodeConfig, Outgoing, Transport, inproc};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

/// A node that sleeps on where it should not is woken by its next beat, and no test waits for that.
const BEAT: Duration = Duration::from_secs(600);
const ENOUGH: Duration = Duration::from_secs(20);
const ROUNDS: u64 = 100;
/// So many come after each wait: at first the progress thread ticks, then it sleeps as the leader.
const MESSAGES: u64 = 6;

struct Tells(Sender<()>);

impl Wake for Tells {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

fn node(name: &str) -> Node {
    let mut config: NodeConfig = config(name, Transport::Auto);
    config.liveness.beat = BEAT;
    Node::start(config).expect("a node")
}

#[test]
fn a_message_that_nobody_waits_for_comes_in_after_a_wait_that_has_led() {
    let (one, other) = (node("one"), node("other"));
    let (link, back) = inproc::connect(&one, &other).expect("two nodes");
    let never = one.irecv(wanted(Some(link), 0), SmallVec::new()).expect("there is room");
    for round in 0..ROUNDS {
        // The first takes the lead from the progress thread, sleeps, and leaves; the second polls, so that the other
        // node is not asked to ring any more.
        for patience in [Duration::from_micros(500), Duration::ZERO] {
            assert!(!never.wait_until(Some(Instant::now() + patience), None).expect("the link stands"));
        }
        for message in 1..=MESSAGES {
            let received = one.irecv(wanted(Some(link), message), SmallVec::new()).expect("there is room");
            let (tell, told) = channel();
            let waker = Waker::from(Arc::new(Tells(tell)));
            assert!(received.poll_done(&Context::from_waker(&waker)).is_pending());
            let sent = Outgoing::control(Envelope::data(0, Tag(message)), Vec::new());
            other.send(back, sent, None, None).expect("it goes");
            told.recv_timeout(ENOUGH).unwrap_or_else(|_| panic!("message {message} of round {round} did not come in"));
        }
    }
}
