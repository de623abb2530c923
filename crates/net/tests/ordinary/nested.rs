//! Waits within what a wait has found: the thread sleeps in the inner one, and its links ring for it.

use crate::support::*;
use sheave_base::work::{Completer, Drive, driven};
use sheave_base::{LinkId, Result, Tag, Work};
use sheave_net::{Admission, Arrival, Endpoint, Envelope, Ground, ListenConfig, Message, Node, NodeConfig, Outgoing};
use sheave_net::{Transport, inproc};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{Scope, ScopedJoinHandle};
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

/// Begins a wait, and returns once its thread leads the node and sleeps in the kernel: it has armed everything.
fn leads_asleep<'scope, T: Send + 'static>(
    scope: &'scope Scope<'scope, '_>,
    node: &Node,
    work: &'scope Work<T>,
) -> ScopedJoinHandle<'scope, Result<bool>> {
    let parked = node.counts().waits_parked;
    let (tell, told) = std::sync::mpsc::channel();
    let waiting = scope.spawn(move || {
        tell.send(std::fs::canonicalize("/proc/thread-self").expect("a thread")).expect("it listens");
        work.wait_until(Some(Instant::now() + 2 * ENOUGH), None)
    });
    let stat = told.recv_timeout(LIMIT).expect("a thread").join("stat");
    let is_asleep = || std::fs::read_to_string(&stat).expect("it lives").contains(") S ");
    eventually("the sleep of the leader", || node.counts().waits_parked > parked && is_asleep());
    waiting
}

const OTHER: u8 = 6;

/// Waits for what the other endpoint does, which is due since this one has attended.
struct Reminds {
    node: Node,
    is_open: AtomicBool,
    has_refused: AtomicBool,
    awaited: Mutex<Option<Work<()>>>,
    heard: Mutex<Option<bool>>,
}

impl Endpoint for Reminds {
    fn admit(&self, _link: LinkId, _arrival: &Arrival<'_>) -> Admission {
        if self.is_open.load(SeqCst) {
            return Admission::Land(Ground::default());
        }
        self.has_refused.store(true, SeqCst);
        Admission::Pause
    }

    fn attend(&self) {
        let awaited = self.awaited.lock().unwrap().take_if(|_| self.is_open.load(SeqCst));
        if let Some(awaited) = awaited {
            self.node.remind(OTHER);
            let outcome = awaited.wait_until(Some(Instant::now() + ENOUGH), None).expect("nothing interrupts it");
            *self.heard.lock().unwrap() = Some(outcome);
        }
    }
}

/// Ends a work when it attends.
#[derive(Default)]
struct Ends(Mutex<Option<Completer<()>>>);

impl Endpoint for Ends {
    fn attend(&self) {
        let completer = self.0.lock().unwrap().take();
        completer.into_iter().for_each(|completer| completer.complete(Ok(())));
    }
}

/// A thread that does not wait for a node has one of its endpoints attend, by a poll or without, and comes to sleep
/// there. Another one, which leads and sleeps, attends to what is due meanwhile.
fn leaves_what_is_due(what: &str, one: &Node, link: LinkId, other: &Node, back: LinkId, polls: bool) {
    let (is_open, has_refused) = (AtomicBool::new(false), AtomicBool::new(false));
    let (awaited, heard) = (Mutex::new(None), Mutex::new(None));
    let reminds = Arc::new(Reminds { node: one.clone(), is_open, has_refused, awaited, heard });
    let ends = Arc::new(Ends::default());
    let endpoints = [reminds.clone() as Arc<dyn Endpoint>, ends.clone(), Arc::new(Ends::default())];
    assert!(one.register(NUMBER, &endpoints[0]) && one.register(OTHER, &endpoints[1]));
    let (completer, work) = driven("test", None, None);
    (*reminds.awaited.lock().unwrap(), *ends.0.lock().unwrap()) = (Some(work), Some(completer));
    if polls {
        let news = Outgoing::control(Envelope::of(NUMBER, Tag(0), 0), vec![1]);
        other.send(back, news, Some(soon()), None).unwrap();
        eventually("the pause of the link", || reminds.has_refused.load(SeqCst));
    }
    let outer = one.irecv(wanted(link, 1), Default::default()).expect("there is room");
    std::thread::scope(|scope| {
        let waiting = leads_asleep(scope, one, &outer);
        reminds.is_open.store(true, SeqCst);
        if polls {
            one.resume();
        } else {
            one.remind(NUMBER);
            assert!(one.register(OTHER + 1, &endpoints[2]));
        }
        eventually("the end of the inner wait", || reminds.heard.lock().unwrap().is_some());
        let heard = reminds.heard.lock().unwrap().take();
        assert_eq!(heard, Some(true), "{what}, polls: {polls}: nobody attended to what was due");
        other.send(back, word(1), Some(soon()), None).unwrap();
        assert!(waiting.join().unwrap().expect("the link stands"), "{what}: no ring for the outer wait");
    });
    endpoints.iter().for_each(|endpoint| one.unregister(endpoint));
}

#[test]
fn who_sleeps_in_a_poll_that_is_none_of_a_wait_leaves_what_is_due_to_others() {
    for (transport, polls) in [(Transport::Shm, true), (Transport::Tcp, true), (Transport::Shm, false)] {
        let (one, other) = (node("one", transport), node("other", transport));
        let address = other.listen(ListenConfig::default()).unwrap();
        let link = one.connect(&address, soon()).unwrap();
        let back = other.accept().wait_timeout(LIMIT).unwrap();
        leaves_what_is_due(&format!("{transport:?}"), &one, link, &other, back, polls);
    }
}

/// Has always something to do while it is fed.
#[derive(Default)]
struct Fed {
    is_fed: AtomicBool,
    polls: AtomicU64,
}

impl Endpoint for Fed {
    fn is_polled(&self) -> bool {
        true
    }

    fn poll(&self) -> bool {
        self.polls.fetch_add(1, SeqCst);
        self.is_fed.load(SeqCst)
    }

    fn arm(&self) -> bool {
        !self.is_fed.load(SeqCst)
    }
}

/// A thread that leaves what others feed for ever comes away, and whoever leads goes on with it.
#[test]
fn what_is_never_quiet_keeps_nobody_but_the_leader() {
    let (one, other) = (node("one", Transport::Auto), node("other", Transport::Auto));
    let (link, back) = inproc::connect(&one, &other).expect("two nodes");
    let fed = Arc::new(Fed::default());
    assert!(one.register(NUMBER, &(fed.clone() as Arc<dyn Endpoint>)));
    let outer = one.irecv(wanted(link, 1), Default::default()).expect("there is room");
    let (tell, told) = std::sync::mpsc::channel();
    let comes_away = std::thread::scope(|scope| {
        let waiting = leads_asleep(scope, &one, &outer);
        fed.is_fed.store(true, SeqCst);
        let visitor = one.clone();
        scope.spawn(move || {
            visitor.endpoint_waits();
            tell.send(()).expect("it listens");
        });
        let comes_away = told.recv_timeout(ENOUGH).is_ok();
        let polls = fed.polls.load(SeqCst);
        eventually("a poll of the leader", || fed.polls.load(SeqCst) > polls);
        fed.is_fed.store(false, SeqCst);
        other.send(back, word(1), Some(soon()), None).unwrap();
        assert!(waiting.join().unwrap().expect("the link stands"));
        comes_away
    });
    assert!(comes_away, "it polled for as long as it was fed");
}
