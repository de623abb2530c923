//! Processes that leave as soon as their own part is done, many on few cores: nobody fails for it.

use crate::common::{hear, job, part, say, start_all};
use sheave_base::config::Transport;
use sheave_collective::{Collectives, Operator};
use sheave_mesh::Mesh;
use sheave_tensor::Tensor;
use std::time::Duration;

const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;
const ROUNDS: usize = 6;
const ELEMENTS: usize = 1 << 18;

#[test]
fn actor() {
    let Some(config) = part() else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    let world = Collectives::new(&mesh).expect("the first").group(&mesh.world()).expect("few");
    let tensor = Tensor::from_slice(&vec![1.0f32; ELEMENTS], [ELEMENTS as u64]).expect("memory");
    for _ in 0..ROUNDS {
        world.all_reduce(&tensor, &tensor, Operator::Avg).wait().expect("all take part");
    }
    assert!(tensor.to_vec::<f32>().expect("floats").iter().all(|value| (*value - 1.0).abs() < 1e-5));
    say("through");
    mesh.leave().expect("the others agree");
    say("left");
}

/// So many ranks leave after their last operation; one is stopped for a while in the middle of that.
fn leave(ranks: u32, stopped: Option<(usize, Duration)>) {
    let job = job();
    let children = start_all(&job, ranks, Transport::Tcp, &[]);
    if let Some((rank, span)) = stopped {
        hear(&children[rank], "through");
        children[rank].kill(SIGSTOP).expect("it lives");
        std::thread::sleep(span);
        children[rank].kill(SIGCONT).expect("it lives");
    }
    for child in &children {
        hear(child, "left");
    }
}

#[test]
fn f01_ranks_that_leave_after_their_part_fail_nobody() {
    leave(12, None);
}

#[test]
fn f01_a_rank_that_is_stopped_while_it_leaves_fails_nobody() {
    leave(4, Some((2, Duration::from_secs(3))));
}

#[test]
#[ignore = "soak suite: 64 processes, many times"]
fn f01_sixty_four_ranks_leave_fifty_times() {
    for run in 0..50 {
        eprintln!("run {run}");
        leave(64, (run % 5 == 4).then_some((run, Duration::from_secs(3))));
    }
}
