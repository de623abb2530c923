//! What a small request costs once everything is warm: no allocation, no lock that somebody waits for, few messages, no
//! growth.

use crate::common;
use crate::common::{done, floats, next_batch, play, soon, zeros};
use sheave_exchange::{Batch, Config, Pull, Push, Scope};
use sheave_net::Medium;
use sheave_tensor::Tensor;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Counts what each thread allocates.
struct Counting;

static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is the system's allocator's own; the count is a plain cell of the calling thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends has no cell any more, and nobody asks for its count.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: handed on.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

const WARM_UP: usize = 500;
const COUNTED: usize = 2_000;

/// How often this thread has gone to sleep, for a lock or for anything else.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("it is Linux");
    let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).expect("it is there");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

/// What an end has spent on all the requests that count.
#[derive(Clone, Copy, Debug)]
struct Cost {
    allocations: u64,
    sleeps: u64,
    counts: sheave_net::Counts,
    /// The clock at the beginning, or the time that it took.
    time: Duration,
}

impl Cost {
    fn so_far(mesh: &sheave_mesh::Mesh) -> Self {
        // The reading of the sleeps allocates.
        let sleeps = sleeps();
        Self { allocations: allocations(), sleeps, counts: mesh.node().counts(), time: BEGUN.elapsed() }
    }

    fn since(mesh: &sheave_mesh::Mesh, before: &Self) -> Self {
        let allocations = allocations() - before.allocations;
        let sleeps = sleeps() - before.sleeps;
        let time = BEGUN.elapsed() - before.time;
        Self { allocations, sleeps, counts: mesh.node().counts() - before.counts, time }
    }
}

/// The costs of a worker and of its server.
fn measure(medium: Medium, pushes: u64, registered: bool) -> (Cost, Cost) {
    let (sender, served) = std::sync::mpsc::channel();
    let counted = play(
        (1, 1),
        medium,
        Config::default(),
        move |mesh, worker| {
            let x: Vec<Tensor> = (0..pushes).map(|key| floats(&[key as f32; 64])).collect();
            let y = zeros(64);
            worker.barrier(Scope::All, false, Some(soon()), None).expect("everybody comes");
            let ask = || {
                let pushes = x.iter().zip(0..).map(|(tensor, key)| Push::new(key, tensor));
                let request = worker.push_pull(pushes, [Pull::into(0, &y)]).expect("it is valid");
                done(worker, request).expect("an answer");
            };
            (0..WARM_UP).for_each(|_| ask());
            let before = Cost::so_far(mesh);
            (0..COUNTED).for_each(|_| ask());
            Cost::since(mesh, &before)
        },
        move |mesh, server| {
            if registered {
                let places: Vec<(u32, u64)> = (0..pushes).map(|key| (0, key)).collect();
                server.register(&zeros(64 * pushes as usize), &places).expect("free places");
            }
            server.barrier(Scope::All, false, Some(soon()), None).expect("everybody comes");
            let (answer, mut batch) = (zeros(64), Batch::default());
            let mut before = Cost::so_far(mesh);
            for number in 0..WARM_UP + COUNTED {
                server.get_batch_into(&mut batch, Some(soon()), None).expect("a request");
                server.respond(batch[0].handler, [&answer]).expect("it fits");
                if number + 1 == WARM_UP {
                    before = Cost::so_far(mesh);
                }
            }
            sender.send(Cost::since(mesh, &before)).expect("the test waits");
            assert!(next_batch(server).is_none());
        },
    );
    (counted[0], served.recv().expect("the server has told"))
}

/// What a wait that goes to sleep may allocate, as on a busy machine some do: a list of sleepers may grow for it.
const PER_PARK: u64 = 1;
/// How often a wait that goes to sleep may do so: for itself, and once more as the one that looks after the links.
const SLEEPS_PER_PARK: u64 = 2;

fn check(what: &str, cost: &Cost, each: u64) -> Result<(), String> {
    let Cost { allocations, sleeps, counts, .. } = cost;
    common::note(&format!("{what}: {allocations} allocations, {sleeps} sleeps in {COUNTED} requests; {counts:?}"));
    // Each end waits once for each request, and a message rings at most once here, for itself, and there, for its room.
    let (parked, messages) = (counts.waits_parked, counts.messages_sent + counts.messages_received);
    assert!(parked <= COUNTED as u64 && counts.doorbells_rung <= messages, "{what}: {cost:?}");
    // A lock that somebody holds while a core is taken from it is waited for too.
    assert!(*sleeps <= parked * SLEEPS_PER_PARK + COUNTED as u64 / 100, "{what} waited for locks: {cost:?}");
    // A busy machine also cuts a message in two now and then, where they are a stream.
    let rare = if counts.bytes_streamed > 0 { COUNTED as u64 / 50 } else { 10 };
    let is_cheap = *allocations <= each * COUNTED as u64 + parked * PER_PARK + rare;
    if is_cheap { Ok(()) } else { Err(format!("{what}: {cost:?}")) }
}

/// Measures what the worker and the server spend, who may allocate so much for each request, and returns the worker's.
/// Once in a second a member looks after its mesh, which takes some memory on whatever thread polls; the requests take
/// a few hundredths, so some attempt sees nothing of that.
fn measure_cheap(medium: Medium, pushes: u64, registered: bool, [worker_each, server_each]: [u64; 2]) -> Cost {
    let mut failure = String::new();
    for _ in 0..5 {
        let (worker, server) = measure(medium, pushes, registered);
        match check("worker", &worker, worker_each).and(check("server", &server, server_each)) {
            Ok(()) => return worker,
            Err(text) => failure = text,
        }
    }
    panic!("{failure}");
}

#[test]
fn a_warm_request_allocates_nothing() {
    for registered in [false, true] {
        let worker = measure_cheap(Medium::SharedMemory, 1, registered, [0, 0]);
        let counts = worker.counts;
        // The mesh has its own words now and then, a few in a second.
        let own = 2 + worker.time.as_millis() as u64 / 100;
        for messages in [counts.messages_sent, counts.messages_received] {
            assert!((COUNTED as u64..=COUNTED as u64 + own).contains(&messages), "{worker:?}");
        }
        assert_eq!(counts.bytes_copied, 2 * 256 * COUNTED as u64);
    }
}

#[test]
fn a_request_of_two_tensors_allocates_nothing_either() {
    for (pushes, medium) in [(2, Medium::SharedMemory), (2, Medium::Tcp), (1, Medium::Tcp)] {
        measure_cheap(medium, pushes, true, [0, 0]);
    }
}

/// Lists of more tensors are pieces of memory, each of them one, however long they are.
#[test]
fn a_request_of_many_tensors_allocates_little() {
    measure_cheap(Medium::SharedMemory, 6, true, [5, 4]);
}

/// A million requests; the arena, what waits, and the process itself are no larger in the end than after a tenth.
#[test]
#[ignore = "soak suite: takes many seconds"]
fn nothing_grows_over_a_million_requests() {
    const REQUESTS: usize = 1_000_000;
    fn resident_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("it is Linux");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it is there");
        line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
    }
    let outcomes = play(
        (1, 1),
        Medium::SharedMemory,
        Config { stamps: true, ..Config::default() },
        |mesh, worker| {
            let (x, y) = (floats(&[1.0; 64]), [zeros(64), zeros(64), zeros(64)]);
            let sizes = || (mesh.node().arena().stats().mapped_bytes, mesh.node().unexpected(), resident_kib());
            let mut early = None;
            for number in 0..REQUESTS / 3 {
                // Three in flight, as in a pipeline, and now and then another plan.
                let key = number as u64 % 1000;
                let ask =
                    |place| worker.push_pull([Push::new(key, &x)], [Pull::into(key, place)]).expect("it is valid");
                let requests: Vec<_> = y.iter().map(ask).collect();
                requests.into_iter().for_each(|request| done(worker, request).expect("an answer"));
                if number == REQUESTS / 30 {
                    early = Some(sizes());
                }
            }
            (early.expect("it went on"), sizes())
        },
        |_, server| common::echo(server),
    );
    let (early, late) = outcomes[0];
    common::note(&format!("{early:?} after a tenth, {late:?} after all"));
    assert_eq!((early.0, early.1), (late.0, late.1));
    assert!(late.2 < early.2 + 2048, "{} KiB more are resident", late.2 - early.2);
}
