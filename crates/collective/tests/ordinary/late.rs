//! What comes late: members who make the others wait, about which a notice is given, and messages for a group that is
//! broken, which nobody will ask for.

use crate::common::{together, together_with, until, wait};
use sheave_base::{ErrorKind, Rank};
use sheave_collective::{Communicator, Operator, Table};
use sheave_mesh::Mesh;
use sheave_net::Medium;
use sheave_tensor::Tensor;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

fn floats(count: usize) -> Tensor {
    Tensor::from_slice(&vec![1.0_f32; count], [count as u64]).expect("memory")
}

static NOTICES: Mutex<Vec<(Instant, String)>> = Mutex::new(Vec::new());

fn note(text: &str) {
    NOTICES.lock().expect("no panic").push((Instant::now(), text.to_owned()));
}

fn notices() -> Vec<(Instant, String)> {
    NOTICES.lock().expect("no panic").clone()
}

#[test]
fn f64_who_waits_for_ten_seconds_says_for_whom() {
    let begun = Instant::now();
    let body = |_: &Mesh, world: &Communicator| {
        wait(&world.barrier()).expect("all come");
        if world.rank().0 == 2 {
            // Both others have spoken by then: rank 0 about two things.
            until("three notices", || notices().len() >= 3);
        }
        let tensor = floats(5);
        let message = (world.rank().0 == 0).then(|| {
            let (world, place) = (world.clone(), floats(1));
            std::thread::spawn(move || wait(&world.subgroup("pair", &[Rank(0), Rank(1)])?.recv(&place, None, 4)))
        });
        wait(&world.all_reduce(&tensor, &tensor, Operator::Sum)).expect("all come");
        assert_eq!(tensor.to_vec::<f32>().expect("free"), [3.0; 5]);
        if world.rank().0 == 1 {
            let pair = world.subgroup("pair", &[Rank(0), Rank(1)]).expect("it is in it");
            wait(&pair.send(&floats(1), Rank(0), 4)).expect("it goes");
        }
        message.map(|message| message.join().expect("no panic").expect("it comes"));
        wait(&world.barrier()).expect("all come");
    };
    together_with(3, Medium::SharedMemory, |_, config| config.node.notice = note, |_| Table::default(), body);
    let notices = notices();
    for rank in [0, 1] {
        let what = "all_reduce on group world, sequence 1, has been waiting for rank 2 (rank-2) to enter, for 10 s";
        let expected = format!("rank-{rank}: {what}");
        let (at, _) = notices.iter().find(|(_, text)| *text == expected).unwrap_or_else(|| panic!("{notices:?}"));
        let elapsed = at.duration_since(begun);
        assert!(elapsed >= Duration::from_secs(10) && elapsed < Duration::from_secs(20), "after {elapsed:?}");
    }
    let expected = "rank-0: recv with tag 4 on group pair has been waiting for rank 1 (rank-1), for 10 s";
    assert!(notices.iter().any(|(_, text)| text == expected), "{notices:?}");
    assert_eq!(notices.len(), 3, "each wait says it once: {notices:?}");
}

#[test]
fn what_comes_for_a_broken_group_is_thrown_away() {
    for medium in [Medium::SharedMemory, Medium::Tcp] {
        let quiet = Arc::new(Barrier::new(3));
        together(3, medium, move |mesh, world| {
            let all = [Rank(0), Rank(1), Rank(2)];
            let group = world.subgroup("doomed", &all).expect("all");
            wait(&group.barrier()).expect("all come");
            let tensors: Vec<_> = (0..60).map(|at| floats(1 + at * 40)).collect();
            let works: Vec<_> = match group.rank().0 {
                // It does not take part, and the others' first messages wait with it.
                1 => Vec::new(),
                _ => tensors.iter().map(|tensor| group.all_reduce(tensor, tensor, Operator::Sum)).collect(),
            };
            wait(&group.send(&floats(3), Rank((group.rank().0 + 1) % 3), 9)).expect("it goes without being asked for");
            wait(&world.barrier()).expect("all come");
            if group.rank().0 == 1 {
                // In shared memory the operations send none, and only what is sent by hand waits.
                let least = if medium == Medium::Tcp { 60 } else { 1 };
                until("messages that nobody wants", || mesh.node().unexpected().0 >= least);
            }
            wait(&world.barrier()).expect("all come");
            if group.rank().0 == 0 {
                works[0].cancel();
            }
            for work in &works {
                assert_eq!(wait(work).expect_err("it is cancelled").kind(), ErrorKind::Cancelled);
            }
            until("the news", || group.broken().is_some());
            wait(&world.barrier()).expect("this group is whole");
            // From here on nobody sends anything until all have looked.
            quiet.wait();
            until("nothing left", || mesh.node().unexpected() == (0, 0));
            quiet.wait();
            wait(&world.barrier()).expect("this group is whole");
        });
    }
}
