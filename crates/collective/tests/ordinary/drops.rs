//! A rank that drops its mesh in the middle of an operation: the others get an error at once, and when they have it
//! their memory, and the dropped rank's, is free again soon.

use crate::common::oracle::Memory;
use crate::common::{PATIENCE, config_over, free_port, until, wait};
use sheave_base::{Error, ErrorKind};
use sheave_collective::{Collectives, Communicator, Operator};
use sheave_mesh::Mesh;
use sheave_net::{Medium, Neighbourhood};
use sheave_tensor::{Dtype, Tensor};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

const RANKS: u32 = 4;
const VICTIM: u32 = 1;
/// How long after the drop the others may take to see it.
const BOUND: Duration = Duration::from_secs(1);

/// Where ranks work in each other's memory. Over TCP what is under way keeps an operation for longer.
fn on_both(act: fn(Medium)) {
    let threads = [Medium::InProcess, Medium::SharedMemory].map(|medium| std::thread::spawn(move || act(medium)));
    threads.into_iter().for_each(|thread| thread.join().expect("no rank panics"));
}

/// Waits until nobody uses the buffers of these tensors.
fn free(tensors: &[Tensor]) {
    until("the end of all leases", || tensors.iter().all(|tensor| tensor.write_lease("test").is_ok()));
}

/// Runs `act` as every rank; the last argument is the thread's mesh, which the victim drops.
fn ranks(medium: Medium, act: impl Fn(Communicator, Mesh) + Clone + Send + 'static) {
    let (port, neighbourhood) = (free_port(), Neighbourhood::default());
    let all = Arc::new(Barrier::new(RANKS as usize));
    let start = |rank: u32| {
        let (config, act) = (config_over(rank, RANKS, port, medium, &neighbourhood), act.clone());
        let all = Arc::clone(&all);
        std::thread::spawn(move || {
            let mesh = Mesh::join(config).expect("everybody comes");
            let world = Collectives::new(&mesh).expect("the first").group(&mesh.world()).expect("few");
            wait(&world.barrier()).expect("all come");
            // A drop is a death, which nobody is to see who is still on the way.
            all.wait();
            act(world, mesh);
        })
    };
    let threads: Vec<_> = (0..RANKS).map(start).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no rank panics"));
}

fn filled(mesh: &Mesh, memory: Memory, rank: u32, count: usize) -> [Tensor; 2] {
    let arena = mesh.node().arena();
    let input = memory.filled(arena, rank, Dtype::F32, &vec![1.0; count]);
    [input, memory.filled(arena, rank + 1, Dtype::F32, &vec![0.0; count])]
}

fn is_loss(error: &Error) {
    assert!(matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::Cancelled | ErrorKind::Closed), "{error}");
}

/// The victim has entered, and so have all but one, who comes when it has heard that the victim has gone. Before that
/// it may end a short operation well, for which the victim has given all.
fn dropped_between(medium: Medium, memory: Memory, count: usize) {
    let (dropped, gone) = (Arc::new(Mutex::new(None)), Arc::new(Barrier::new(2)));
    let under_way = Arc::new(Barrier::new(RANKS as usize - 1));
    ranks(medium, move |world, mesh| {
        let rank = world.rank().0;
        let [input, output] = filled(&mesh, memory, rank, count);
        if rank == 0 {
            gone.wait();
            until("the news of the victim", || world.broken().is_some());
        }
        let work = world.all_reduce(&input, &output, Operator::Sum);
        if rank != 0 {
            // A call has begun its operation when it returns.
            under_way.wait();
        }
        if rank == VICTIM {
            *dropped.lock().expect("no panic") = Some(Instant::now());
            drop((world, mesh));
            is_loss(&wait(&work).expect_err("rank 0 has not come"));
            gone.wait();
        } else {
            let error = wait(&work).expect_err("somebody has gone");
            let since = dropped.lock().expect("no panic").expect("it has gone").elapsed();
            is_loss(&error);
            assert!(since < BOUND, "{since:?} until {error}");
            is_loss(&wait(&world.barrier()).expect_err("the group is broken"));
            drop((world, mesh));
        }
        free(&[input, output]);
    });
}

#[test]
fn who_waits_for_a_dropped_rank_is_told_at_once() {
    on_both(|medium| {
        for (memory, count) in [(Memory::Arena, 1), (Memory::Private, 300_000), (Memory::Mixed, 5000)] {
            dropped_between(medium, memory, count);
        }
    });
}

/// All go from operation to operation, and the victim drops its mesh after some, at any point of the next one.
fn dropped_within(medium: Medium, round: u64) {
    let (count, memory) = ([3, 5000, 400_000][round as usize % 3], Memory::ALL[round as usize / 3]);
    let (dropped, delay) = (Arc::new(Mutex::new(None)), Duration::from_micros(130 * round * round));
    // How many operations the slowest and the fastest have ended well.
    let (least, most) = (Arc::new(AtomicU64::new(u64::MAX)), Arc::new(AtomicU64::new(0)));
    let ends = (Arc::clone(&least), Arc::clone(&most));
    ranks(medium, move |world, mesh| {
        let (rank, begun) = (world.rank().0, Instant::now());
        let tensors = filled(&mesh, memory, rank, count);
        let [input, output] = &tensors;
        let mut done = 0;
        if rank == VICTIM {
            let mut last = None;
            while begun.elapsed() < delay {
                if let Some(work) = last.take() {
                    wait(&work).expect("nobody else goes");
                    done += 1;
                }
                last = Some(world.all_reduce(input, output, Operator::Sum));
            }
            *dropped.lock().expect("no panic") = Some(Instant::now());
            drop((world, mesh));
            done += u64::from(last.is_some_and(|work| wait(&work).is_ok()));
        } else {
            let error = loop {
                match wait(&world.all_reduce(input, output, Operator::Sum)) {
                    Ok(()) => done += 1,
                    Err(error) => break error,
                }
                let sums = output.to_vec::<f32>().expect("it is free");
                assert!(sums.iter().all(|sum| *sum == RANKS as f32), "half a result");
                assert!(begun.elapsed() < PATIENCE, "nobody goes");
            };
            let since = dropped.lock().expect("no panic").expect("it has gone").elapsed();
            is_loss(&error);
            assert!(since < BOUND, "{since:?} until {error}");
            drop((world, mesh));
        }
        least.fetch_min(done, SeqCst);
        most.fetch_max(done, SeqCst);
        free(&tensors);
    });
    let (least, most) = (ends.0.load(SeqCst), ends.1.load(SeqCst));
    assert!(most - least <= 1, "an operation ended well before all had entered: {least} and {most}");
}

#[test]
fn a_rank_that_is_dropped_anywhere_in_an_operation_leaves_nothing_in_use() {
    on_both(|medium| (0..9).for_each(|round| dropped_within(medium, round)));
}
