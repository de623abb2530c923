//! How many messages words cost, between nodes that are linked.

use super::words::RIDE_MIN;
use super::*;
use crate::{Config, Expected, Mesh, Request};
use sheave_base::config::{Endpoint, Role};
use sheave_base::secret::Resolved;
use sheave_base::{Secret, limits};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// The two nodes of a mesh, of which the second one is returned on this thread.
pub(super) fn two() -> [Mesh; 2] {
    let port = sheave_base::port::free().expect("there are thousands");
    let join = move |rank| {
        let root = Endpoint { host: "127.0.0.1".into(), port };
        let mut config = Config::new(Role::Rank, Some(rank), Expected::ranks(2), root);
        let secret = Secret::new(b"known to the tests alone").expect("it is long enough");
        config.node.secret = Some(Resolved { secret, source: "the test".into() });
        Mesh::join(config).expect("both come")
    };
    let first = std::thread::spawn(move || join(0));
    let second = join(1);
    [first.join().expect("no panic"), second]
}

pub(super) fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: it never was");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(super) fn finish(meshes: [Mesh; 2]) {
    let threads = meshes.map(|mesh| std::thread::spawn(move || mesh.finish().expect("all are well")));
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

fn messages(mesh: &Mesh) -> u64 {
    mesh.shared.references.messages.load(SeqCst)
}

const DROPS: usize = 10_000;

#[test]
fn ten_thousand_drops_are_told_in_few_messages_and_within_the_bound() {
    let [owner, holder] = two();
    let kept: Arc<parking_lot::Mutex<Vec<Ref>>> = Arc::default();
    let keeping = Arc::clone(&kept);
    let keep = move |request: Request| {
        keeping.lock().extend(request.refs);
        request.reply.value(());
    };
    holder.serve("it", keep).expect("the name is free");
    let objects: Vec<Arc<usize>> = (0..DROPS).map(Arc::new).collect();
    let weaks: Vec<_> = objects.iter().map(Arc::downgrade).collect();
    let refs: Vec<Ref> = objects.into_iter().map(|object| owner.export(object).expect("there is room")).collect();
    let names = Value::List(refs.iter().map(Ref::value).collect());
    owner.call(holder.me().node, "it", "keep", names).expect("sent").wait().expect("kept");
    drop(refs);
    until("they are held", || kept.lock().len() == DROPS);
    let (before, begun) = (messages(&holder), Instant::now());
    for held in std::mem::take(&mut *kept.lock()) {
        drop(held);
    }
    let dropped = begun.elapsed();
    until("all is freed", || weaks.iter().all(|weak| weak.strong_count() == 0));
    let sent = messages(&holder) - before;
    // Three are full, and a timer may act meanwhile, as often as its span passes.
    let spans = dropped.as_millis() / limits::REFERENCE_FLUSH.as_millis();
    assert!(u128::from(sent) <= 5 + spans, "{sent} messages in {dropped:?}");
    finish([owner, holder]);
}

#[test]
fn some_words_go_in_front_of_the_next_message_to_their_node_and_fewer_wait() {
    let [owner, holder] = two();
    owner.serve("it", |request: Request| request.reply.value(())).expect("the name is free");
    let objects: Vec<Arc<usize>> = (0..RIDE_MIN).map(Arc::new).collect();
    let weaks: Vec<_> = objects.iter().map(Arc::downgrade).collect();
    let held: Vec<Ref> = objects.into_iter().map(|object| owner.export(object).expect("there is room")).collect();
    let names: Vec<Mention> = held.iter().map(Ref::mention).collect();
    drop(owner.shared.references.pass(holder.me().node, &names).expect("they are held"));
    let references = &holder.shared.references;
    let mut brought = references.adopt(owner.me().node, &names, None);
    drop(held);
    // What says when words go is out of the way: none goes but in front of a call.
    references.has_words.store(true, SeqCst);
    let turn = references.telling.lock();
    let last = brought.refs.pop();
    drop(brought);
    std::thread::sleep(2 * limits::REFERENCE_FLUSH);
    let living = || weaks.iter().filter(|weak| weak.strong_count() > 0).count();
    assert_eq!((messages(&holder), living()), (0, RIDE_MIN), "somebody told it");
    drop(turn);
    let call = || {
        holder.call(owner.me().node, "it", "x", Value::None).expect("sent").wait().expect("answered");
        messages(&holder)
    };
    assert_eq!(call(), 0, "they are too few");
    drop(last);
    assert_eq!(call(), 1);
    until("all are freed", || living() == 0);
    finish([owner, holder]);
}
