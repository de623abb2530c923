//! Panics of users' code on a node's own thread, and on threads that wait for something else.

use crate::support::*;
use sheave_base::Tag;
use sheave_net::{Endpoint, Envelope, Node, NodeConfig, Outgoing, Wanted};
use sheave_tensor::{Mode, Tensor};
use smallvec::SmallVec;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Panics whenever it could do something.
#[derive(Default)]
struct Panicking {
    attended: AtomicUsize,
}

impl Endpoint for Panicking {
    fn attend(&self) {
        self.attended.fetch_add(1, SeqCst);
        panic!("an endpoint of a test");
    }
}

fn data() -> Outgoing {
    let tensor = Tensor::from_slice(&[1.0f32], [1]).unwrap();
    Outgoing::tensor(Envelope::data(0, Tag(7)), tensor, Mode::Copy)
}

fn control() -> Outgoing {
    let envelope = Envelope::of(1, Tag(0), 0);
    Outgoing::control(envelope, vec![1])
}

#[test]
fn f53_a_node_goes_on_whatever_panics_on_its_threads() {
    for connect in [sheave_net::inproc::connect, sheave_net::shm::connect] {
        let (one, other) = (Node::start(config("one")).unwrap(), Node::start(config("other")).unwrap());
        let panicking = Arc::new(Panicking::default());
        let endpoint = panicking.clone() as Arc<dyn Endpoint>;
        catch_unwind(AssertUnwindSafe(|| other.register(1, &endpoint))).expect("a panic came out of `register`");
        let (link, back) = connect(&one, &other).unwrap();
        let wanted = Wanted { source: Some(back), context: 0, tag: Tag(7) };
        for round in 1..=3 {
            let before = panicking.attended.load(SeqCst);
            one.send(link, control(), Some(soon()), None).unwrap();
            eventually(&format!("panic {round} on the node's own thread"), || panicking.attended.load(SeqCst) > before);
            let work = other.irecv(wanted, SmallVec::new()).unwrap();
            one.send(link, data(), Some(soon()), None).unwrap();
            eventually(&format!("message {round}, which nobody waits for"), || work.is_done());
            one.send(link, control(), Some(soon()), None).unwrap();
            one.send(link, data(), Some(soon()), None).unwrap();
            let waited = catch_unwind(AssertUnwindSafe(|| other.recv(wanted, SmallVec::new(), Some(soon()), None)));
            drop(waited.expect("a panic came out of a wait for something else").unwrap());
        }
    }
}

#[test]
fn f53_a_notice_that_panics_ends_there() {
    let notice = |_: &str| panic!("a notice of a test");
    let node = Node::start(NodeConfig { notice, ..config("one") }).unwrap();
    catch_unwind(AssertUnwindSafe(|| node.notice("it takes long"))).expect("a panic came out of the notice");
}
