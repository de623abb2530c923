//! User code that takes its time on a server: nobody is held up who does not need what it does.

use crate::common;
use crate::common::{PATIENCE, job_of, until, wait};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, Result};
use sheave_store::{Config, Key, Kind, KvStore, Options, Server, ServerConfig, Updater};
use sheave_tensor::{Op, Tensor};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// A door that user code stands at until it is opened.
#[derive(Clone, Default)]
struct Door(Arc<(Mutex<bool>, Condvar, AtomicUsize)>);

impl Door {
    fn open(&self) {
        *self.0.0.lock().expect("nobody panics") = true;
        self.0.1.notify_all();
    }

    /// How often somebody came.
    fn came(&self) -> usize {
        self.0.2.load(SeqCst)
    }

    fn pass(&self) -> Result<()> {
        self.0.2.fetch_add(1, SeqCst);
        let closed = self.0.0.lock().expect("nobody panics");
        let waited = self.0.1.wait_timeout_while(closed, PATIENCE, |open| !*open).expect("nobody panics").1;
        match waited.timed_out() {
            true => Err(Error::new(ErrorKind::DeadlineExceeded, "nobody has opened the door")),
            false => Ok(()),
        }
    }
}

/// A server whose updater adds, and stands at the door first if the key is "slow".
fn slow(door: &Door) -> ServerConfig {
    let door = door.clone();
    ServerConfig::default().function("slow", move |key, sum, value| {
        if *key == Key::from("slow") {
            // What it writes before is not seen while it stands there.
            value.as_mut_slice::<f32>()?.fill(f32::NAN);
            door.pass()?;
            value.as_mut_slice::<f32>()?.fill(0.0);
        }
        value.reduce_from(Op::Sum, sum)
    })
}

fn pair(key: &str, value: f32) -> [(Key, Tensor); 1] {
    [(Key::from(key), Tensor::from_slice(&[value; 3], [3]).expect("it fits"))]
}

fn get(store: &KvStore, key: &str) -> f32 {
    let place = pair(key, -1.0);
    wait(&store.pull(&place).expect("it is sent")).expect("it is there");
    place[0].1.to_vec::<f32>().expect("floats")[0]
}

fn open(mesh: &sheave_mesh::Mesh, kind: Kind) -> KvStore {
    let store = KvStore::open(mesh, kind).expect("all servers serve");
    for key in ["slow", "fast"] {
        store.init(&pair(key, 0.0)).expect("it is new");
    }
    store.set_updater(Updater::Named("slow".into())).expect("it is offered");
    store.barrier().expect("all are there");
    store
}

/// Of all kinds: other keys go on, requests that are no pushes are answered, and nobody sees what is half written.
#[test]
fn f22_user_code_that_blocks_holds_up_its_own_key_alone() {
    for transport in [Transport::Shm, Transport::Tcp] {
        for kind in [Kind::DistSync, Kind::DistAsync, Kind::DistSsp] {
            let door = Door::default();
            let at = door.clone();
            job_of(1, 2, transport, slow(&door), move |mesh| {
                let store = open(mesh, kind);
                let pushed = store.push(&pair("slow", 1.0)).expect("it is sent");
                until("the updater runs", || at.came() > 0);
                // Its lane has one thread; what has not to wait for it goes on, and the value is the one before.
                store.barrier().expect("all are there");
                if store.rank() == 1 {
                    assert!(!pushed.is_done(), "{kind}: the updater has not ended");
                }
                store.init(&pair("other", 5.0)).expect("it is new");
                assert_eq!(get(&store, "other"), 5.0);
                assert_eq!(get(&store, "fast"), 0.0);
                store.barrier().expect("all are there");
                at.open();
                wait(&pushed).expect("it is merged");
                wait(&store.push(&pair("fast", 1.0)).expect("it is sent")).expect("it is merged");
                store.barrier().expect("all are there");
                let last = get(&store, "fast");
                assert!(last == 2.0, "{kind}: {last}");
                // The slow one was filled anew before each sum.
                let last = get(&store, "slow");
                assert!(last == if kind == Kind::DistSync { 2.0 } else { 1.0 }, "{kind}: {last}");
            });
        }
    }
}

/// A pull of its own worker waits for what that has pushed; one of another worker does not.
#[test]
fn f22_pulls_see_their_own_pushes_and_no_half_of_others() {
    let door = Door::default();
    let at = door.clone();
    job_of(1, 2, Transport::Shm, slow(&door), move |mesh| {
        let store = open(mesh, Kind::DistAsync);
        if store.rank() == 0 {
            let first = store.push(&pair("slow", 1.0)).expect("it is sent");
            let second = store.push(&pair("slow", 2.0)).expect("it is sent");
            let place = pair("slow", -1.0);
            let pulled = store.pull(&place).expect("it is sent");
            until("the updater runs", || at.came() > 0);
            store.barrier().expect("all are there");
            store.barrier().expect("the other one has looked");
            assert!(!first.is_done() && !second.is_done() && !pulled.is_done());
            at.open();
            [&first, &second, &pulled].into_iter().for_each(|work| wait(work).expect("it is merged"));
            assert_eq!(place[0].1.to_vec::<f32>().expect("floats"), [2.0; 3]);
        } else {
            store.barrier().expect("all are there");
            assert_eq!(get(&store, "slow"), 0.0);
            store.barrier().expect("both are there");
        }
    });
}

/// As many pushes as anybody likes, in order, with user code for which the order matters.
#[test]
fn f22_pushes_that_come_faster_than_they_are_merged_stay_in_order() {
    const PUSHES: usize = 2000;
    for (kind, priority) in [(Kind::DistAsync, 0), (Kind::DistAsync, 1), (Kind::DistSsp, 0)] {
        let (merged, seen) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let (notes, at_once) = (Arc::clone(&merged), Arc::clone(&seen));
        let server = ServerConfig::default().function("note", move |_, sum, _| {
            assert_eq!(at_once.fetch_add(1, SeqCst), 0, "one at a time");
            notes.lock().expect("nobody panics").push(sum.as_slice::<f32>()?[0]);
            at_once.fetch_sub(1, SeqCst);
            Ok(())
        });
        job_of(1, 1, Transport::Shm, server, move |mesh| {
            let store = KvStore::open(mesh, kind).expect("all servers serve");
            store.init(&pair("w", 0.0)).expect("it is new");
            store.set_updater(Updater::Named("note".into())).expect("it is offered");
            let options = Options { priority };
            let push = |number: usize| store.push_with(&pair("w", number as f32), options).expect("it is sent");
            let works: Vec<_> = (0..PUSHES).map(push).collect();
            works.iter().for_each(|work| wait(work).expect("it is merged"));
        });
        let expected: Vec<f32> = (0..PUSHES).map(|number| number as f32).collect();
        assert_eq!(*merged.lock().expect("nobody panics"), expected, "{kind}, priority {priority}");
    }
}

/// A worker that is too fast is held up: what it has pushed stays with it.
#[test]
fn f22_what_waits_for_user_code_is_bounded() {
    const ELEMENTS: usize = 1 << 18;
    const SLICES: usize = 64;
    let door = Door::default();
    let (at, bytes) = (door.clone(), Arc::new(AtomicUsize::new(0)));
    let config = Config { slice_elements: ELEMENTS as u64, cut_elements: ELEMENTS as u64, ..Kind::DistAsync.into() };
    let landed = Arc::clone(&bytes);
    job_of(1, 1, Transport::Shm, slow(&door), move |mesh| {
        let store = KvStore::open(mesh, config.clone()).expect("all servers serve");
        let big = |value: f32| {
            let whole = vec![value; ELEMENTS * SLICES];
            [(Key::from("slow"), Tensor::from_slice(&whole, [whole.len() as u64]).expect("it fits"))]
        };
        store.init(&big(0.0)).expect("it is new");
        store.set_updater(Updater::Named("slow".into())).expect("it is offered");
        let before = mesh.node().counts().messages_sent;
        // One that leaves slice by slice.
        let pushed = store.push_with(&big(1.0), Options { priority: -1 }).expect("it is queued");
        until("the updater runs", || at.came() > 0);
        let sent = || mesh.node().counts().messages_sent - before;
        // Nothing more leaves once what may be in flight is.
        let (mut last, mut quiet_since) = (sent(), Instant::now());
        while quiet_since.elapsed() < Duration::from_millis(300) {
            if sent() != last {
                (last, quiet_since) = (sent(), Instant::now());
            }
            std::thread::yield_now();
        }
        landed.store(last as usize, SeqCst);
        assert!(!pushed.is_done());
        at.open();
        wait(&pushed).expect("it is merged");
    });
    let sent = bytes.load(SeqCst);
    assert!(sent < SLICES / 2, "{sent} messages of {SLICES} slices had left while the first was merged");
}

/// The death of a worker is heard while user code runs, and the server still serves.
#[test]
fn f22_a_server_hears_of_a_death_while_user_code_runs() {
    let door = Door::default();
    let at = door.clone();
    let outcomes = common::together(common::roles(1, 2), Transport::Shm, move |mesh| {
        match mesh.me().introduction.role {
            sheave_mesh::Role::Server => {
                let server = Server::start(&mesh, slow(&at)).expect("it is the first");
                let error = server.run().expect_err("a worker has failed");
                // The code that runs does not matter to it.
                at.open();
                drop(mesh);
                Some(error)
            }
            sheave_mesh::Role::Worker => {
                let store = open(&mesh, Kind::DistSync);
                let slow = store.push(&pair("slow", 1.0)).expect("it is sent");
                until("the updater runs", || at.came() > 0);
                if store.rank() == 1 {
                    mesh.fail("on purpose");
                    return None;
                }
                let begun = Instant::now();
                let error = wait(&slow).expect_err("nobody has opened the door");
                assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
                mesh.fail(&error.to_string());
                Some(error)
            }
            _ => {
                let _ = mesh.until_gone(|_| true);
                None
            }
        }
    });
    let errors: Vec<Error> = outcomes.into_iter().flatten().collect();
    assert_eq!(errors.len(), 2);
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        assert!(error.to_string().contains("worker-1"), "{error}");
    }
}

/// Where pushes need no other worker, the death of one ends none of them: not those that wait for user code, and not
/// one that still comes slice by slice.
#[test]
fn pushes_that_wait_for_user_code_survive_the_death_of_another_worker() {
    const ELEMENTS: usize = 1 << 12;
    const SLICES: usize = 64;
    let door = Door::default();
    let at = door.clone();
    let config = Config { slice_elements: ELEMENTS as u64, cut_elements: ELEMENTS as u64, ..Kind::DistAsync.into() };
    let big = |value: f32| {
        let whole = vec![value; ELEMENTS * SLICES];
        [(Key::from("big"), Tensor::from_slice(&whole, [whole.len() as u64]).expect("it fits"))]
    };
    common::together(common::roles(1, 2), Transport::Shm, move |mesh| match mesh.me().introduction.role {
        sheave_mesh::Role::Server => {
            let server = Server::start(&mesh, slow(&at)).expect("it is the first");
            server.run().expect("the store bears it");
            mesh.leave().expect("all have been served");
        }
        sheave_mesh::Role::Worker => {
            let store = KvStore::open(&mesh, config.clone()).expect("all servers serve");
            store.init(&pair("slow", 0.0)).expect("it is new");
            store.init(&big(0.0)).expect("it is new");
            store.set_updater(Updater::Named("slow".into())).expect("it is offered");
            store.barrier().expect("all are there");
            if store.rank() == 1 {
                until("the updater runs", || at.came() > 0);
                store.barrier().expect("the other one has pushed");
                return mesh.fail("on purpose");
            }
            let pushed = store.push(&pair("slow", 1.0)).expect("it is sent");
            let sliced = store.push_with(&big(1.0), Options { priority: -1 }).expect("it is queued");
            store.barrier().expect("both are there");
            let error = store.barrier().expect_err("nobody comes");
            assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
            assert!(!pushed.is_done() && !sliced.is_done(), "the updater stands at the door");
            at.open();
            wait(&pushed).expect("it is merged");
            wait(&sliced).expect("it is merged");
            assert_eq!(get(&store, "slow"), 1.0);
            let place = big(-1.0);
            wait(&store.pull(&place).expect("it is sent")).expect("it is there");
            assert_eq!(place[0].1.to_vec::<f32>().expect("floats"), vec![1.0; ELEMENTS * SLICES]);
            mesh.leave().expect("what is left agrees");
        }
        _ => {
            let is_worker = |member: &sheave_mesh::Member| member.introduction.role == sheave_mesh::Role::Worker;
            mesh.until_gone_tolerating(is_worker, |_| true, None).expect("the death is tolerated");
            let _ = mesh.leave();
        }
    });
}
