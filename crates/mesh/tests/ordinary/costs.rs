//! What a call costs its caller: memory while it is pending, allocations once everything is warm.

use crate::common;
use crate::common::{together, until, wait};
use sheave_base::Rank;
use sheave_base::config::Transport;
use sheave_mesh::{CallOptions, Expected, Lane, Methods, TypedReply, TypedService};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Counts what each thread allocates and frees.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<i64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
}

// SAFETY: everything is the system's allocator's own; the counts are plain cells of the calling thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends has no cells any more, and nobody asks for its counts.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        let _ = BYTES.try_with(|bytes| bytes.set(bytes.get() + layout.size() as i64));
        // SAFETY: handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        let _ = BYTES.try_with(|bytes| bytes.set(bytes.get() - layout.size() as i64));
        // SAFETY: handed on.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Add;
struct Hold;
struct LetGo;

sheave_mesh::methods! {
    service "it";
    1, "add": Add[(u64, u64)] -> u64, Members;
    2, "hold": Hold[u64] -> u64, Members;
    3, "let_go": LetGo[()] -> (), Members;
}

#[derive(Default)]
struct It(Mutex<Vec<TypedReply<u64>>>);

impl TypedService for It {
    const NAME: &'static str = "it";

    fn methods(methods: Methods<Self>) -> Methods<Self> {
        methods
            .on::<Add>(|_, request| request.reply.ok(&(request.args.0 + request.args.1)))
            .on::<Hold>(|it, request| it.0.lock().expect("no panic").push(request.reply))
            .on::<LetGo>(|it, request| {
                it.0.lock().expect("no panic").drain(..).for_each(|reply| reply.ok(&1));
                request.reply.ok(&());
            })
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }
}

/// Bytes of the calling thread for each call that is not answered, the table of calls and the caller's handle included.
const PENDING_BYTES_MAX: i64 = 512;

/// What a deadline adds: an entry of the timetable, and what is done then.
const DEADLINE_BYTES_MAX: i64 = 256;

/// As many as fill the table of calls to just above a half of its room, which is the worst.
const PENDING: u64 = 1800;

#[test]
fn f51_a_pending_call_takes_at_most_512_bytes_of_its_caller() {
    let it = Arc::new(It::default());
    together(Expected::ranks(2), Transport::Shm, move |mesh| {
        if mesh.me().rank == Rank(1) {
            mesh.serve_typed(Arc::clone(&it)).expect("the name is free");
        }
        mesh.world().barrier().expect("both are there");
        if mesh.me().rank == Rank(0) {
            let to = mesh.members()[1].node;
            wait(&mesh.ask::<Add>(to, &(1, 2)).expect("it is sent")).expect("it answers");
            for deadline in [None, Some(Duration::from_secs(3600))] {
                let mut works = Vec::with_capacity(PENDING as usize);
                let before = BYTES.get();
                for number in 1..=PENDING {
                    let options = CallOptions { deadline, ..CallOptions::default() };
                    works.push(mesh.ask_with::<Hold>(to, &number, options).expect("it is sent"));
                    // What waits for room is sent, and freed, by other threads.
                    if number % 50 == 0 {
                        until("all are held", || it.0.lock().expect("no panic").len() as u64 == number);
                    }
                }
                let each = (BYTES.get() - before) / PENDING as i64;
                common::note(&format!("a pending call takes {each} bytes (deadline {deadline:?})"));
                let limit = PENDING_BYTES_MAX + if deadline.is_some() { DEADLINE_BYTES_MAX } else { 0 };
                assert!(each <= limit, "{each} bytes");
                wait(&mesh.ask::<LetGo>(to, &()).expect("it is sent")).expect("it answers");
                works.iter().for_each(|work| assert_eq!(wait(work).expect("it answers").value, 1));
            }
        }
        mesh.finish().expect("all are well");
    });
}

/// Three are the call's own: the request, what is pending, and the work. The rest are the link's and the wait's. With a
/// name there is one more, and with arguments in a value at least one more for each.
const ALLOCATIONS_MAX: i64 = 6;

#[test]
fn f51_a_warm_call_allocates_little() {
    const CALLS: i64 = 1000;
    together(Expected::ranks(2), Transport::Shm, |mesh| {
        if mesh.me().rank == Rank(1) {
            mesh.serve_typed(Arc::new(It::default())).expect("the name is free");
        }
        mesh.world().barrier().expect("both are there");
        if mesh.me().rank == Rank(0) {
            let to = mesh.members()[1].node;
            let call = || wait(&mesh.ask::<Add>(to, &(1, 2)).expect("it is sent")).expect("it answers").value;
            (0..CALLS).for_each(|_| assert_eq!(call(), 3));
            let before = ALLOCATIONS.get();
            (0..CALLS).for_each(|_| assert_eq!(call(), 3));
            // A wait that goes to sleep may need one more, now and then.
            let each = (ALLOCATIONS.get() - before) / CALLS;
            common::note(&format!("a warm call makes {each} allocations in its caller"));
            assert!(each <= ALLOCATIONS_MAX, "{each} allocations");
        }
        mesh.finish().expect("all are well");
    });
}
