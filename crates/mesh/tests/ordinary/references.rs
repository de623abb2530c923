//! References with real links between the nodes: who holds what, what is freed when, and what is refused.

use crate::common::{together, until, wait};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, NodeId, Rank};
use sheave_mesh::{Expected, Lane, Mesh, Ref, Request, Service};
use sheave_wire::Value;
use smallvec::smallvec;
use std::sync::{Arc, Mutex, Weak};

const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];

/// What a node holds. "take" puts into it what comes, "give" answers with what the others ask for, by its place.
#[derive(Clone)]
struct Bag {
    refs: Arc<Mutex<Vec<Ref>>>,
    is_inline: bool,
}

impl Bag {
    fn new(is_inline: bool) -> Self {
        Self { refs: Arc::default(), is_inline }
    }

    fn len(&self) -> usize {
        self.refs.lock().expect("nobody panics").len()
    }

    fn clear(&self) {
        // Dropped without the lock, like anything that runs foreign code.
        let refs = std::mem::take(&mut *self.refs.lock().expect("nobody panics"));
        drop(refs);
    }

    fn at(&self, place: usize) -> Option<Ref> {
        let refs = self.refs.lock().expect("nobody panics");
        if refs.is_empty() { None } else { Some(refs[place % refs.len()].clone()) }
    }
}

impl Service for Bag {
    fn handle(&self, request: Request) {
        let Request { method, args, refs, reply, .. } = request;
        match (method.as_str(), args) {
            ("take", _) => {
                self.refs.lock().expect("nobody panics").extend(refs);
                reply.value(());
            }
            ("give", Value::Int(place)) => {
                // Held until it is answered: another thread may drop what the bag has.
                let held = self.at(usize::try_from(place).expect("a place"));
                reply.value(held.as_ref().map_or(Value::None, Ref::value));
            }
            ("ignore", _) => reply.value(()),
            (_, args) => reply.ok(args, smallvec![]),
        }
    }

    fn lane(&self) -> Lane {
        if self.is_inline { Lane::Inline } else { Lane::default() }
    }
}

fn other(mesh: &Mesh, rank: usize) -> NodeId {
    mesh.members()[rank].node
}

fn exported<T: Send + Sync + 'static>(mesh: &Mesh, object: T) -> (Ref, Weak<T>) {
    let object = Arc::new(object);
    let weak = Arc::downgrade(&object);
    (mesh.export(object).expect("there is room"), weak)
}

fn is_freed<T>(weak: &Weak<T>) {
    until("the object is freed", || weak.strong_count() == 0);
}

#[test]
fn an_object_lives_as_long_as_somebody_holds_it() {
    for (transport, is_inline) in TRANSPORTS.into_iter().zip([true, false]) {
        let bags = [Bag::new(is_inline), Bag::new(is_inline)];
        together(Expected::ranks(2), transport, move |mesh| {
            let rank = mesh.me().rank.0 as usize;
            mesh.serve("bag", bags[rank].clone()).expect("the name is free");
            let world = mesh.world();
            world.barrier().expect("both are there");
            if rank == 0 {
                let (held, weak) = exported(&mesh, String::from("weights"));
                let name = held.value();
                wait(&mesh.call(other(&mesh, 1), "bag", "take", held.value()).expect("sent")).expect("taken");
                // The same again, twice in one value: one hold, three counts.
                let twice = Value::Map(vec![("a".into(), held.value()), ("b".into(), Value::List(vec![name.clone()]))]);
                wait(&mesh.call(other(&mesh, 1), "bag", "take", twice).expect("sent")).expect("taken");
                drop(held);
                assert_eq!(bags[1].len(), 3);
                assert_eq!(weak.strong_count(), 1, "the other node holds it");
                // The owner can take it up again by its name, and gets it back by an answer.
                let again = mesh.hold(&name).expect("it lives");
                assert_eq!(*again.get::<String>().expect("here"), "weights");
                assert_eq!(again.get::<u8>().expect_err("another type").kind(), ErrorKind::Mismatch);
                drop(again);
                let answer = wait(&mesh.call(other(&mesh, 1), "bag", "give", Value::Int(1)).expect("sent"));
                let answer = answer.expect("it has some");
                assert_eq!((answer.value, answer.refs.len()), (name.clone(), 1));
                drop(answer.refs);
                bags[1].clear();
                is_freed(&weak);
                let error = mesh.hold(&name).expect_err("it is freed");
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                let error = mesh.call(other(&mesh, 1), "bag", "take", name).expect_err("it is freed");
                assert_eq!((error.kind(), error.operation_name()), (ErrorKind::NotFound, Some("take")), "{error}");
                assert_eq!(mesh.hold(&Value::Int(1)).expect_err("no name").kind(), ErrorKind::InvalidArgument);
            }
            world.barrier().expect("both are there");
            mesh.finish().expect("all are well");
        });
    }
}

#[test]
fn a_holder_is_told_where_the_object_is() {
    let bag = Bag::new(true);
    together(Expected::ranks(2), Transport::Auto, move |mesh| {
        let world = mesh.world();
        if mesh.me().rank == Rank(0) {
            let (held, weak) = exported(&mesh, 5u32);
            bag.refs.lock().expect("nobody panics").push(held);
            mesh.serve("bag", bag.clone()).expect("the name is free");
            world.barrier().expect("both are there");
            world.barrier().expect("both are there");
            bag.clear();
            world.barrier().expect("both are there");
            assert_eq!(weak.strong_count(), 1, "rank 1 holds it");
            mesh.leave().expect("all agree");
            return is_freed(&weak);
        }
        world.barrier().expect("both are there");
        let owner = other(&mesh, 0);
        let answer = wait(&mesh.call(owner, "bag", "give", Value::Int(0)).expect("sent")).expect("it has one");
        let held = mesh.hold(&answer.value).expect("the answer lives");
        let name = answer.value.clone();
        drop(answer);
        assert_eq!((held.owner(), held.value()), (owner, name.clone()));
        let error = held.get::<u32>().expect_err("it is elsewhere");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains("rank-0"), "{error}");
        world.barrier().expect("both are there");
        world.barrier().expect("both are there");
        until("the owner is gone", || mesh.deaths().len() == 1);
        let mut error = held.get::<u32>().expect_err("its owner is gone");
        until("this node knows that", || {
            error = held.get::<u32>().expect_err("its owner is gone");
            error.kind() == ErrorKind::PeerLost
        });
        assert!(error.to_string().contains("rank-0"), "{error}");
        let error = mesh.call(owner, "bag", "take", held.value()).expect_err("nobody is there");
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        drop(held);
        let error = mesh.hold(&name).expect_err("it was dropped");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        mesh.leave().expect("alone");
    });
}

#[test]
fn calls_to_oneself_carry_references_too() {
    together(Expected::ranks(1), Transport::Auto, |mesh| {
        let bag = Bag::new(false);
        mesh.serve("bag", bag.clone()).expect("the name is free");
        let (held, weak) = exported(&mesh, 1u8);
        let me = mesh.me().node;
        wait(&mesh.call(me, "bag", "take", held.value()).expect("sent")).expect("taken");
        drop(held);
        let answer = wait(&mesh.call(me, "bag", "give", Value::Int(0)).expect("sent")).expect("it has one");
        bag.clear();
        assert_eq!(*mesh.hold(&answer.value).expect("the answer lives").get::<u8>().expect("here"), 1);
        drop(answer);
        is_freed(&weak);
        mesh.finish().expect("all are well");
        // A reference outlives its mesh, and so does what it names.
        let (held, weak) = exported(&mesh, 2u8);
        drop(mesh);
        assert_eq!(*held.get::<u8>().expect("here"), 2);
        drop(held);
        assert_eq!(weak.strong_count(), 0);
    });
}

#[test]
fn an_answer_that_nobody_waits_for_gives_its_references_back() {
    let held_back: Arc<Mutex<Vec<Request>>> = Arc::default();
    together(Expected::ranks(2), Transport::Auto, move |mesh| {
        let world = mesh.world();
        let keeping = Arc::clone(&held_back);
        let keep = move |request: Request| keeping.lock().expect("nobody panics").push(request);
        mesh.serve("it", keep).expect("the name is free");
        world.barrier().expect("both are there");
        if mesh.me().rank == Rank(1) {
            let work = mesh.call(other(&mesh, 0), "it", "give", Value::None).expect("sent");
            until("it has come", || held_back.lock().expect("nobody panics").len() == 1);
            work.cancel();
            assert_eq!(wait(&work).expect_err("cancelled").kind(), ErrorKind::Cancelled);
            world.barrier().expect("both are there");
        } else {
            world.barrier().expect("both are there");
            let (held, weak) = exported(&mesh, 3u8);
            let request = held_back.lock().expect("nobody panics").pop().expect("it has come");
            request.reply.value(held.value());
            drop(held);
            is_freed(&weak);
        }
        mesh.finish().expect("all are well");
    });
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("small") % bound
    }
}

const NODES: usize = 4;
const STEPS: usize = 3000;

/// One node's part of the great exchange. Returns weak handles to all that it exported.
fn exchange(mesh: &Mesh, bag: &Bag, seed: u64) -> Vec<Weak<u64>> {
    let rank = mesh.me().rank.0 as usize;
    let mut random = Random(seed * 97 + rank as u64);
    let mut objects = Vec::new();
    let mut works = Vec::new();
    for step in 0..STEPS {
        let to = other(mesh, random.below(NODES));
        match random.below(8) {
            0 | 1 => {
                let (held, weak) = exported(mesh, step as u64);
                objects.push(weak);
                bag.refs.lock().expect("nobody panics").push(held);
            }
            2 | 3 => {
                let Some(held) = bag.at(random.below(1 << 20)) else { continue };
                let method = if random.below(4) == 0 { "ignore" } else { "take" };
                works.push(mesh.call(to, "bag", method, held.value()).expect("it is held"));
            }
            4 => {
                let place = i64::try_from(random.below(1 << 20)).expect("small");
                let answer = wait(&mesh.call(to, "bag", "give", Value::Int(place)).expect("sent")).expect("given");
                if answer.value != Value::None {
                    let held = mesh.hold(&answer.value).expect("the answer lives");
                    if held.owner() == mesh.me().node {
                        held.get::<u64>().expect("it is here, and lives");
                    }
                    bag.refs.lock().expect("nobody panics").push(held);
                }
            }
            _ => {
                let mut refs = bag.refs.lock().expect("nobody panics");
                let count = refs.len();
                let dropped = if count > 0 { Some(refs.swap_remove(random.below(count))) } else { None };
                drop(refs);
                drop(dropped);
            }
        }
        if works.len() > 32 {
            works.drain(..).for_each(|work| drop(wait(&work).expect("it is answered")));
        }
    }
    works.drain(..).for_each(|work| drop(wait(&work).expect("it is answered")));
    objects
}

#[test]
fn thousands_of_passes_and_drops_among_four_leave_nothing() {
    for (seed, transport) in (1..).zip([Transport::Shm, Transport::Tcp, Transport::Auto]) {
        together(Expected::ranks(u32::try_from(NODES).expect("small")), transport, move |mesh| {
            let bag = Bag::new(mesh.me().rank.0 % 2 == 0);
            mesh.serve("bag", bag.clone()).expect("the name is free");
            let world = mesh.world();
            world.barrier().expect("all are there");
            let objects = exchange(&mesh, &bag, seed);
            assert!(objects.len() > STEPS / 8);
            world.barrier().expect("all are there");
            bag.clear();
            objects.iter().for_each(is_freed);
            mesh.finish().expect("all are well");
        });
    }
}

#[test]
fn who_passes_a_reference_on_may_leave_at_once() {
    for round in 0..20u64 {
        together(Expected::ranks(3), Transport::Auto, move |mesh| {
            let bag = Bag::new(true);
            mesh.serve("bag", bag.clone()).expect("the name is free");
            let world = mesh.world();
            world.barrier().expect("all are there");
            match mesh.me().rank.0 {
                0 => {
                    let (held, weak) = exported(&mesh, round);
                    wait(&mesh.call(other(&mesh, 1), "bag", "take", held.value()).expect("sent")).expect("taken");
                    drop(held);
                    until("rank 1 has left", || mesh.deaths().len() == 1);
                    assert_eq!(weak.strong_count(), 1, "rank 2 holds it");
                    let answer = wait(&mesh.call(other(&mesh, 2), "bag", "give", Value::Int(0)).expect("sent"));
                    assert_eq!(answer.expect("it has it").refs.len(), 1);
                    let rest = world.shrink().expect("two are left");
                    rest.barrier().expect("both are there");
                    is_freed(&weak);
                }
                1 => {
                    until("it has come", || bag.len() == 1);
                    let held = bag.at(0).expect("it has come");
                    let work = mesh.call(other(&mesh, 2), "bag", "take", held.value()).expect("sent");
                    wait(&work).expect("taken");
                    return mesh.leave().expect("all agree");
                }
                _ => {
                    until("it has come", || bag.len() == 1);
                    until("rank 1 has left", || mesh.deaths().len() == 1);
                    world.shrink().expect("two are left").barrier().expect("both are there");
                    bag.clear();
                }
            }
            mesh.leave().expect("all agree");
        });
    }
}
