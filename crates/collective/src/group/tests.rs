//! Operations whose members die: one blames who has died, though it takes its first step when all know of that, and
//! one ends well whose dead members had done their part.

use super::start::{Conditions, go_on};
use super::{State, Terms};
use crate::communicator::{Collectives, Communicator};
use crate::job::Job;
use crate::operation::Kind;
use sheave_base::config::Endpoint;
use sheave_base::secret::Resolved;
use sheave_base::{ErrorKind, Rank, Secret};
use sheave_mesh::{Config, Expected, Mesh, Role};
use sheave_tensor::Dtype;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The ranks of a mesh, each with the group of all.
fn three() -> Vec<(Mesh, Communicator)> {
    let port = sheave_base::port::free().expect("there are thousands");
    let join = move |rank| {
        let root = Endpoint { host: "127.0.0.1".into(), port };
        let mut config = Config::new(Role::Rank, Some(rank), Expected::ranks(3), root);
        let secret = Secret::new(b"known to the tests alone").expect("it is long enough");
        config.node.secret = Some(Resolved { secret, source: "the test".into() });
        config.node.local_ranks = 3;
        let mesh = Mesh::join(config).expect("all come");
        let world = Collectives::new(&mesh).expect("the first").group(&mesh.world()).expect("few groups");
        // What finds out whether ranks share memory is over.
        world.barrier().wait().expect("all come");
        (mesh, world)
    };
    let threads: Vec<_> = (0..3).map(|rank| std::thread::spawn(move || join(rank))).collect();
    threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what}: it never was");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn who_has_died_is_blamed_and_not_who_left_for_that() {
    let mut ranks = three();
    let (last, middle, (_first, world)) = (ranks.remove(2), ranks.remove(1), ranks.remove(0));
    let state: &Arc<State> = world.state();
    let header = world.header(Kind::Barrier, Dtype::U8, 0);
    let terms = Conditions::default().terms(&header);
    let reserved = state.reserve(&terms, 1).expect("all are well");
    let _call = state.callers.until_dropped(reserved.begun);
    // The one that dies has entered, and so has this one, on whose thread nothing happens until all know of the death.
    let entered = middle.1.barrier();
    let board = state.lasting.board().expect("they share memory");
    let mut run = state.on_board(board, header, reserved.number, Job::nothing());
    assert!(run.poll(&mut false).is_pending() && !entered.is_done(), "the last one has not entered");
    middle.0.abandon();
    until("the last one knows of the death", || last.1.broken().is_some());
    drop(last.1);
    last.0.leave().expect("the first one agrees");
    until("everything of the last one is here", || state.group.has_said_all(Rank(2)));
    let own = Arc::clone(state);
    let work = state.begin_reserved(terms, reserved, drop, move |awaited| Box::pin(go_on(own, run, awaited)));
    let error = work.wait().expect_err("two are gone");
    let blamed = error.about().and_then(|peer| peer.node);
    assert_eq!((error.kind(), blamed), (ErrorKind::PeerLost, Some(middle.0.me().node)), "{error}");
}

#[test]
fn what_the_dead_had_done_before_counts() {
    let mut ranks = three();
    let (_first, world) = ranks.remove(0);
    let state = world.state();
    let own = Rank(0);
    // Words in shared memory, which wake nobody: the first operation finds its own written, the other one does not.
    let words = [Arc::new(AtomicBool::new(false)), Arc::default()];
    let mut works = words.iter().map(|word| {
        let word = Arc::clone(word);
        let polled = move |_: &mut Context<'_>| if word.load(SeqCst) { Poll::Ready(Ok(own)) } else { Poll::Pending };
        let terms = Conditions::default().terms(&world.header(Kind::Barrier, Dtype::U8, 0));
        let reserved = state.reserve(&Terms { is_ordered: true, ..terms }, 1).expect("all are well");
        state.begin_reserved(terms, reserved, drop, move |_| Box::pin(poll_fn(polled)))
    });
    let (ended, open) = (works.next().expect("two"), works.next().expect("two"));
    assert!(!ended.is_done() && !open.is_done(), "both wait");
    words[0].store(true, SeqCst);
    ranks.remove(0).0.abandon();
    let error = open.wait().expect_err("one is dead");
    assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
    ended.wait().expect("its word was there before the death was known");
}
