//! What once hung, failed for all or was lost, each with the smallest program that shows it.

use crate::common::{PATIENCE, config_over, free_port, together, together_with, wait};
use sheave_base::{Error, ErrorKind, Rank};
use sheave_collective::{Collectives, Communicator, Operator, Table};
use sheave_mesh::Mesh;
use sheave_net::{Medium, Neighbourhood};
use sheave_tensor::{Dtype, Shape, Tensor};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// How soon ranks that wait for each other in a circle are told: two beats and a moment.
const SOON: Duration = Duration::from_secs(5);

fn floats(value: f32, count: usize) -> Tensor {
    Tensor::from_slice(&vec![value; count], [count as u64]).expect("memory")
}

fn is_mismatch(error: &Error, sides: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    assert!(sides.iter().all(|side| error.to_string().contains(side)), "{error}");
}

/// Runs `act` as both ranks of a mesh; it gives the error that both must have.
fn both_disagree(medium: Medium, sides: &'static [&str], act: fn(&Mesh, &Communicator) -> Error) {
    together(2, medium, move |mesh, world| {
        let begun = Instant::now();
        is_mismatch(&act(mesh, world), sides);
        assert!(begun.elapsed() < SOON, "after {:?}", begun.elapsed());
    });
}

fn two_barriers(mesh: &Mesh, world: &Communicator, of_mesh: u32) -> Error {
    if world.rank().0 == of_mesh {
        let work = mesh.world().begin_barrier(None);
        work.wait_timeout(PATIENCE / 6).expect_err("the other one is in another barrier")
    } else {
        world.barrier().wait_timeout(PATIENCE / 6).expect_err("the other one is in another barrier")
    }
}

#[test]
fn f55_two_barriers_of_one_group_end_in_a_mismatch_that_names_both() {
    let sides = &["rank-0", "rank-1", "barrier"];
    let threads = [Medium::SharedMemory, Medium::Tcp].map(|medium| {
        std::thread::spawn(move || {
            both_disagree(medium, sides, |mesh, world| two_barriers(mesh, world, 0));
            both_disagree(medium, sides, |mesh, world| two_barriers(mesh, world, 1));
        })
    });
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

#[test]
fn f55_both_barriers_of_a_group_may_be_used_in_one_order() {
    together(2, Medium::SharedMemory, |mesh, world| {
        for _ in 0..20 {
            mesh.world().barrier().expect("all come");
            wait(&world.barrier()).expect("all come");
            let work = mesh.world().begin_barrier(None);
            let tensor = floats(1.0, 10_000);
            wait(&world.all_reduce(&tensor, &tensor, Operator::Sum)).expect("all come");
            wait(&work).expect("all come");
        }
    });
}

#[test]
fn f55_members_in_another_order_end_in_a_mismatch() {
    let sides = &["group twisted", "rank-0", "rank-1", "order"];
    both_disagree(Medium::SharedMemory, sides, |_, world| {
        let order = if world.rank().0 == 0 { [0, 1] } else { [1, 0] };
        let group = world.subgroup("twisted", &order.map(Rank)).expect("it is in it");
        group.barrier().wait_timeout(PATIENCE / 6).expect_err("they mean different groups")
    });
}

#[test]
fn f55_one_label_may_have_two_orders_if_all_mean_the_same() {
    together(2, Medium::SharedMemory, |_, world| {
        for order in [[0, 1], [1, 0], [0, 1]] {
            let group = world.subgroup("both", &order.map(Rank)).expect("it is in it");
            wait(&group.barrier()).expect("all come");
        }
    });
}

/// A long send that nobody receives ends at its deadline, for the receiver too.
#[test]
fn f62_a_send_whose_deadline_has_passed_is_gone() {
    for medium in [Medium::SharedMemory, Medium::Tcp] {
        let late = Arc::new(Barrier::new(2));
        together(2, medium, move |_, world| {
            if world.rank().0 == 0 {
                let ghost = world.within(Duration::from_millis(300)).send(&floats(1.0, 1_000_000), Rank(1), 7);
                let error = ghost.wait_timeout(PATIENCE).expect_err("nobody receives");
                assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
                late.wait();
                let work = world.within(SOON * 2).send(&floats(2.0, 1_000_000), Rank(1), 7);
                work.wait_timeout(PATIENCE).expect("it is received");
            } else {
                late.wait();
                let place = floats(0.0, 1_000_000);
                let work = world.within(SOON * 2).recv(&place, Some(Rank(0)), 7);
                assert_eq!(work.wait_timeout(PATIENCE).expect("it is sent"), Rank(0));
                assert!(place.to_vec::<f32>().expect("free").iter().all(|value| *value == 2.0));
            }
            wait(&world.barrier()).expect("all come");
        });
    }
}

/// The receive waits while the first of two sends gives up, at any moment of its handshake.
#[test]
fn f62_a_send_may_give_up_at_any_moment() {
    together(2, Medium::SharedMemory, move |_, world| {
        for round in 0..40_u32 {
            wait(&world.barrier()).expect("all come");
            let micros = u64::from(round) * 25;
            if world.rank().0 == 0 {
                let given_up = world.within(Duration::from_micros(micros)).send(&floats(1.0, 200_000), Rank(1), 1);
                let outcome = given_up.wait_timeout(PATIENCE);
                let work = world.within(SOON * 2).send(&floats(2.0, 200_000), Rank(1), 1);
                let second = work.wait_timeout(PATIENCE);
                // What was under way when the time had passed arrives; then the other one finds no receive.
                assert!(second.is_ok() || outcome.is_err(), "{outcome:?}, {second:?}");
            } else {
                std::thread::sleep(Duration::from_micros(500));
                for expected in [[1.0, 2.0], [2.0, 2.0]] {
                    let place = floats(0.0, 200_000);
                    let work = world.within(Duration::from_millis(300)).recv(&place, None, 1);
                    let Ok(_) = work.wait_timeout(PATIENCE) else { break };
                    let found = place.to_vec::<f32>().expect("free");
                    assert!(expected.contains(&found[0]) && found.iter().all(|value| *value == found[0]));
                }
            }
        }
    });
}

/// A receive whose time is over leaves the message, or its rest, to nobody's harm.
#[test]
fn f62_a_receive_whose_deadline_has_passed_takes_no_message_along() {
    let late = Arc::new(Barrier::new(2));
    together(2, Medium::SharedMemory, move |_, world| {
        let place = floats(0.0, 1_000_000);
        if world.rank().0 == 1 {
            let work = world.within(Duration::from_millis(200)).recv(&place, Some(Rank(0)), 3);
            let error = work.wait_timeout(PATIENCE).expect_err("nobody sends");
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
            late.wait();
            let work = world.within(SOON * 2).recv(&place, Some(Rank(0)), 3);
            work.wait_timeout(PATIENCE).expect("it is sent");
        } else {
            late.wait();
            let work = world.within(SOON * 2).send(&floats(2.0, 1_000_000), Rank(1), 3);
            work.wait_timeout(PATIENCE).expect("it is received");
        }
        wait(&world.barrier()).expect("all come");
    });
}

/// Takes all that an arena has.
fn fill(mesh: &Mesh) -> Vec<Tensor> {
    let mut held = Vec::new();
    for len_bytes in [8 << 20, 1 << 20, 64 << 10, 4096, 64] {
        let shape = || Shape::new(&[len_bytes]).expect("a shape");
        while let Ok(tensor) = Tensor::empty(mesh.node().arena(), Dtype::U8, shape()) {
            held.push(tensor);
        }
    }
    held
}

/// Sums, moves and a list, of memory that others cannot map.
fn everything(world: &Communicator) {
    let size = world.size() as usize;
    let tensor = floats(1.0, 300_000);
    for _ in 0..3 {
        let output = floats(0.0, 300_000);
        wait(&world.all_reduce(&tensor, &output, Operator::Sum)).expect("there is another way");
        assert!(output.to_vec::<f32>().expect("free").iter().all(|sum| *sum == size as f32));
    }
    let all = floats(0.0, 300_000 * size);
    wait(&world.all_gather(&tensor, &all)).expect("there is another way");
    assert!(all.to_vec::<f32>().expect("free").iter().all(|value| *value == 1.0));
    let moved = floats(world.rank().0 as f32, 300_000);
    wait(&world.broadcast(&moved, Rank(1))).expect("there is another way");
    assert!(moved.to_vec::<f32>().expect("free").iter().all(|value| *value == 1.0));
    let list = [floats(1.0, 100_000), floats(2.0, 100_000)];
    wait(&world.all_reduce_list(&list, &list, Operator::Max)).expect("there is another way");
    assert!(list[1].to_vec::<f32>().expect("free").iter().all(|value| *value == 2.0));
}

#[test]
fn f24_a_rank_whose_arena_is_full_goes_by_links_with_all() {
    let capacity = |_: u32, config: &mut sheave_mesh::Config| config.node.arena.capacity_bytes = 32 << 20;
    together_with(
        3,
        Medium::SharedMemory,
        capacity,
        |_| Table::default(),
        |mesh, world| {
            wait(&world.barrier()).expect("all come");
            let held = if world.rank().0 == 1 { fill(mesh) } else { Vec::new() };
            everything(world);
            drop(held);
            everything(world);
        },
    );
}

#[test]
fn f93_the_smallest_arena_reduces() {
    let capacity = |_: u32, config: &mut sheave_mesh::Config| config.node.arena.capacity_bytes = 1 << 20;
    together_with(2, Medium::SharedMemory, capacity, |_| Table::default(), |_, world| everything(world));
}

/// Meshes that come and go leave no memory of their groups behind.
#[test]
fn f81_a_mesh_that_was_left_keeps_no_group() {
    let segments = || {
        let all = std::fs::read_dir("/proc/self/fd").expect("it is there").filter_map(Result::ok);
        let names = all.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        names.filter(|name| name.to_string_lossy().contains("memfd")).count()
    };
    let cycle = || {
        let (port, here) = (free_port(), Neighbourhood::default());
        let threads = [0, 1].map(|rank| {
            let config = config_over(rank, 2, port, Medium::SharedMemory, &here);
            std::thread::spawn(move || {
                let mesh = Mesh::join(config).expect("everybody comes");
                let world = Collectives::new(&mesh).expect("the first").group(&mesh.world()).expect("few");
                let tensor = floats(1.0, 1000);
                wait(&world.all_reduce(&tensor, &tensor, Operator::Sum)).expect("all come");
                drop(world);
                mesh.finish().expect("all come");
            })
        });
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    };
    (0..3).for_each(|_| cycle());
    let before = segments();
    (0..15).for_each(|_| cycle());
    let until = Instant::now() + SOON;
    while segments() > before + 4 {
        assert!(Instant::now() < until, "{before} segments have become {}", segments());
        std::thread::sleep(Duration::from_millis(10));
    }
}
