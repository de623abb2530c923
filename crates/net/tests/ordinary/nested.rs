//! Waits within what a wait has found: the thread sleeps in the inner one, and its links ring for it.

use crate::support::*;
use sheave_base::work::{Completer, Drive, driven};
use sheave_base::{LinkId, Tag, Work};
use sheave_net::{Endpoint, Envelope, ListenConfig, Message, Node, NodeConfig, Outgoing, Transport, inproc};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

/// A node that sleeps on where it should not is woken by its next beat, and no test waits for that.
const BEAT: Duration = Duration::from_secs(600);
const ENOUGH: Duration = Duration::from_secs(10);
const ROUNDS: u64 = 40;
const NUMBER: u8 = 5;

/// Waits for a message of its own when one has come.
struct Waits {
    node: Node,
    link: LinkId,
    has_come: AtomicBool,
    heard: Mutex<Option<bool>>,
    /// Waits of the node that had slept when its own began, and one; zero before.
    begins: AtomicU64,
}

impl Endpoint for Waits {
    fn take(&self, _message: Message) {
        self.has_come.store(true, SeqCst);
    }

    fn attend(&self) {
        if !self.has_come.swap(false, SeqCst) {
            return;
        }
        let inner = self.node.irecv(wanted(self.link, 2), Default::default()).expect("there is room");
        self.begins.store(1 + self.node.counts().waits_parked, SeqCst);
        let outcome = inner.wait_until(Some(Instant::now() + ENOUGH), None).expect("the link stands");
        *self.heard.lock().unwrap() = Some(outcome);
    }
}

fn node(name: &str, transport: Transport) -> Node {
    let mut config = NodeConfig { transport, ..config(name) };
    config.liveness.beat = BEAT;
    Node::start(config).expect("a node")
}

fn word(tag: u64) -> Outgoing {
    Outgoing::control(Envelope::data(0, Tag(tag)), Vec::new())
}

/// One wait polls, finds a word, and the wait that begins then sleeps until the next.
fn rings_for_the_inner_wait(what: &str, one: &Node, link: LinkId, other: &Node, back: LinkId) {
    let (has_come, begins) = (AtomicBool::new(false), AtomicU64::new(0));
    let waits = Arc::new(Waits { node: one.clone(), link, has_come, heard: Mutex::new(None), begins });
    let endpoint = waits.clone() as Arc<dyn Endpoint>;
    assert!(one.register(NUMBER, &endpoint));
    for round in 0..ROUNDS {
        let outer = one.irecv(wanted(link, 1), Default::default()).expect("there is room");
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                barrier.wait();
                outer.wait_until(Some(Instant::now() + 2 * ENOUGH), None)
            });
            barrier.wait();
            let first = Outgoing::control(Envelope::of(NUMBER, Tag(0), 0), vec![1]);
            other.send(back, first, Some(soon()), None).unwrap();
            eventually("the inner wait", || waits.begins.load(SeqCst) > 0);
            let sleeps = waits.begins.swap(0, SeqCst);
            eventually("the sleep of the inner wait", || one.counts().waits_parked >= sleeps);
            other.send(back, word(2), Some(soon()), None).unwrap();
            eventually("the end of the inner wait", || waits.heard.lock().unwrap().is_some());
            let heard = waits.heard.lock().unwrap().take();
            assert_eq!(heard, Some(true), "{what}: no ring for the inner wait of round {round}");
            other.send(back, word(1), Some(soon()), None).unwrap();
            let heard = waiting.join().unwrap().expect("the link stands");
            assert!(heard, "{what}: no ring for the outer wait of round {round}");
        });
    }
    one.unregister(&endpoint);
}

#[test]
fn a_wait_within_a_poll_is_rung_for() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let (one, other) = (node("one", transport), node("other", transport));
        let address = other.listen(ListenConfig::default()).unwrap();
        let link = one.connect(&address, soon()).unwrap();
        let back = other.accept().wait_timeout(LIMIT).unwrap();
        rings_for_the_inner_wait(&format!("{transport:?}"), &one, link, &other, back);
    }
    let (one, other) = (node("one", Transport::Auto), node("other", Transport::Auto));
    let (link, back) = inproc::connect(&one, &other).expect("two nodes");
    rings_for_the_inner_wait("in process", &one, link, &other, back);
}

/// Waits for a work that is not the node's own when a message has come, and ends it when the next one has.
#[derive(Default)]
struct WaitsElsewhere {
    messages: AtomicU64,
    inner: Mutex<Option<(Work<()>, Completer<()>)>>,
    /// The inner wait is about to sleep, or sleeps.
    sleeps: AtomicBool,
    heard: Mutex<Option<bool>>,
}

impl Endpoint for WaitsElsewhere {
    fn take(&self, _message: Message) {
        self.messages.fetch_add(1, SeqCst);
    }

    fn attend(&self) {
        let begin = || self.messages.load(SeqCst) == 1 && !self.sleeps.load(SeqCst);
        let end = || self.messages.load(SeqCst) == 2;
        if begin() && !self.sleeps.swap(true, SeqCst) {
            let inner = self.inner.lock().unwrap().as_ref().map(|(work, _)| work.clone()).unwrap();
            let outcome = inner.wait_until(Some(Instant::now() + ENOUGH), None).expect("nothing interrupts it");
            *self.heard.lock().unwrap() = Some(outcome);
        } else if end() {
            let inner = self.inner.lock().unwrap().take();
            inner.into_iter().for_each(|(_, completer)| completer.complete(Ok(())));
        }
    }
}

/// A wait of this node finds a message and waits for a work that `elsewhere` drives, until the next message has come,
/// which others look after meanwhile. The outer wait polls when it finds the first one, or leads.
fn is_relieved_within(
    what: &str,
    one: &Node,
    link: LinkId,
    other: &Node,
    back: LinkId,
    drive: Option<&Arc<dyn Drive>>,
) {
    for round in 0..ROUNDS {
        let waits = Arc::new(WaitsElsewhere::default());
        let (completer, work) = driven("test", drive.cloned(), None);
        *waits.inner.lock().unwrap() = Some((work, completer));
        let endpoint = waits.clone() as Arc<dyn Endpoint>;
        assert!(one.register(NUMBER, &endpoint));
        let outer = one.irecv(wanted(link, 1), Default::default()).expect("there is room");
        let parked = one.counts().waits_parked;
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| outer.wait_until(Some(Instant::now() + 2 * ENOUGH), None));
            if round % 2 == 0 {
                eventually("the sleep of the outer wait", || one.counts().waits_parked > parked);
            }
            let news = || Outgoing::control(Envelope::of(NUMBER, Tag(0), 0), vec![1]);
            other.send(back, news(), Some(soon()), None).unwrap();
            eventually("the inner wait", || waits.sleeps.load(SeqCst));
            other.send(back, news(), Some(soon()), None).unwrap();
            eventually("the end of the inner wait", || waits.heard.lock().unwrap().is_some());
            let heard = waits.heard.lock().unwrap().take();
            assert_eq!(heard, Some(true), "{what}: nobody took in what ends the inner wait of round {round}");
            other.send(back, word(1), Some(soon()), None).unwrap();
            let heard = waiting.join().unwrap().expect("the link stands");
            assert!(heard, "{what}: no ring for the outer wait of round {round}");
        });
        one.unregister(&endpoint);
    }
}

#[test]
fn who_sleeps_in_a_wait_elsewhere_leaves_its_links_to_others() {
    for transport in [Transport::Shm, Transport::Tcp, Transport::Auto] {
        let (one, other, third) = (node("one", transport), node("other", transport), node("third", transport));
        let (link, back) = if transport == Transport::Auto {
            inproc::connect(&one, &other).expect("two nodes")
        } else {
            let address = other.listen(ListenConfig::default()).unwrap();
            (one.connect(&address, soon()).unwrap(), other.accept().wait_timeout(LIMIT).unwrap())
        };
        is_relieved_within(&format!("{transport:?}, for none"), &one, link, &other, back, None);
        is_relieved_within(&format!("{transport:?}, another"), &one, link, &other, back, Some(&third.driver()));
        is_relieved_within(&format!("{transport:?}, the same"), &one, link, &other, back, Some(&one.driver()));
    }
}
