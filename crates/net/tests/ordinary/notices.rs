//! What a wait says of itself, and how often.

use crate::common::{config, wanted};
use sheave_base::{ErrorKind, Tag};
use sheave_net::{Envelope, Node, NodeConfig, Outgoing, Transport, inproc};
use smallvec::SmallVec;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const SPANS: &[Duration] = &[Duration::from_millis(100), Duration::from_millis(200)];

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn note(text: &str) {
    SAID.lock().expect("no panic").push(text.to_owned());
}

fn said(about: &str) -> Vec<String> {
    SAID.lock().expect("no panic").iter().filter(|text| text.contains(about)).cloned().collect()
}

fn node(name: &str) -> Node {
    Node::start(NodeConfig { notice: note, notices: SPANS, ..config(name, Transport::Auto) }).expect("a node")
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what} never came to be");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn f89_a_wait_says_what_it_waits_for_and_says_so_again() {
    let (one, other) = (node("one"), node("other"));
    let (link, back) = inproc::connect(&one, &other).expect("two nodes");
    let waiting = one.clone();
    let thread = std::thread::spawn(move || waiting.recv(wanted(Some(link), 7), SmallVec::new(), None, None));
    until("three notices", || said("one: recv").len() >= 3);
    let waits = one.waits();
    assert_eq!(waits.len(), 1, "{waits:?}");
    assert_eq!((waits[0].operation, waits[0].what.as_str()), ("recv", "recv of tag 7 in context 0"));
    assert!(waits[0].whom.starts_with("other ("), "{waits:?}");
    assert!(waits[0].elapsed >= SPANS[1], "{waits:?}");
    other.send(back, Outgoing::control(Envelope::data(0, Tag(7)), Vec::new()), None, None).expect("it goes");
    thread.join().expect("no panic").expect("it comes");
    assert!(one.waits().is_empty(), "a wait that has ended is in no table");
    let begin = "one: recv of tag 7 in context 0 has been waiting for other (";
    let spans: Vec<String> = said("one: recv")
        .iter()
        .map(|text| {
            assert!(text.starts_with(begin), "{text}");
            text.rsplit(", for ").next().expect("it ends so").to_owned()
        })
        .collect();
    // On a busy machine one may be skipped, but none is said twice.
    let known: Vec<String> = [100, 200, 400, 600, 800].iter().map(|millis| format!("{millis} ms")).collect();
    let known: Vec<String> =
        known.into_iter().chain((5..3000).map(|at| sheave_net::Span(SPANS[1] * at).to_string())).collect();
    let places: Vec<usize> =
        spans.iter().map(|span| known.iter().position(|one| one == span).expect("a span")).collect();
    assert!(places.is_sorted(), "{spans:?}");
    assert!(spans.windows(2).all(|pair| pair[0] != pair[1] || pair[0].ends_with(" s")), "{spans:?}");
}

#[test]
fn a_wait_that_is_over_in_time_says_nothing() {
    let (one, other) = (node("brief"), node("quiet"));
    let (link, _back) = inproc::connect(&one, &other).expect("two nodes");
    let until = Some(Instant::now() + SPANS[0] / 2);
    let late = one.recv(wanted(Some(link), 1), SmallVec::new(), until, None).expect_err("nobody sends");
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
    assert_eq!(said("brief: recv"), Vec::<String>::new());
}
