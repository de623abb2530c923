//! Processes that are killed or stopped in the middle of operations: everybody learns of it in time, nobody ends well
//! with half a result, and the survivors go on.

use crate::common::{hear, job, part, say, start_all, until};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, Result};
use sheave_collective::{Collectives, Communicator, Operator};
use sheave_mesh::Mesh;
use sheave_process::Child;
use sheave_tensor::{Dtype, Shape, Tensor};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const SIGKILL: i32 = 9;
const SIGSTOP: i32 = 19;
const COUNT: &str = "SHEAVE_TEST_COUNT";
const MEMORY: &str = "SHEAVE_TEST_MEMORY";

fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis()
}

/// A tensor of one number, in the arena or in memory of this process alone, as the test wants it.
fn tensor(mesh: &Mesh, value: f32, count: usize) -> Result<Tensor> {
    let values = vec![value; count];
    if std::env::var(MEMORY).is_ok_and(|memory| memory == "private") {
        return Tensor::from_slice(&values, [count as u64]);
    }
    let mut tensor = Tensor::empty(mesh.node().arena(), Dtype::F32, Shape::new(&[count as u64])?)?;
    tensor.as_mut_slice::<f32>()?.copy_from_slice(&values);
    Ok(tensor)
}

/// Reduces until it fails; every sum is right until then, and the input is as it was.
fn reduce_until_it_fails(world: &Communicator, input: &Tensor, output: &Tensor) -> Result<Error> {
    let own = world.rank().0 as f32 + 1.0;
    let expected = (1..=world.size()).map(|rank| rank as f32).sum::<f32>();
    let begun = Instant::now();
    for round in 0.. {
        let outcome = world.all_reduce(input, output, Operator::Sum).wait();
        if let Err(error) = outcome {
            assert!(input.to_vec::<f32>()?.iter().all(|value| *value == own), "the input was touched");
            return Ok(error);
        }
        assert!(output.to_vec::<f32>()?.iter().all(|value| *value == expected), "a wrong sum");
        if round == 20 {
            say("under way");
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody was killed");
    }
    unreachable!("the loop has no end");
}

fn play(mesh: &Mesh) -> Result<()> {
    let count: usize = std::env::var(COUNT).expect("the test has set it").parse().expect("a number");
    let collectives = Collectives::new(mesh)?;
    let world = collectives.group(&mesh.world())?;
    let own = tensor(mesh, world.rank().0 as f32 + 1.0, count)?;
    let output = tensor(mesh, 0.0, count)?;
    let error = reduce_until_it_fails(&world, &own, &output)?;
    say(&format!("failed {} {:?} {error}", now_ms(), error.kind()));
    assert_eq!(world.barrier().wait().expect_err("the group is broken").kind(), ErrorKind::PeerLost);
    let rest = world.shrink()?;
    assert_eq!(rest.size(), world.size() - 1);
    // Nobody holds the failed operation's tensors any more.
    for _ in 0..5 {
        let ones = tensor(mesh, 1.0, count)?;
        rest.all_reduce(&ones, &output, Operator::Sum).wait()?;
        assert!(output.to_vec::<f32>()?.iter().all(|value| *value == rest.size() as f32));
        rest.all_reduce(&ones, &ones, Operator::Sum).wait()?;
        assert!(ones.to_vec::<f32>()?.iter().all(|value| *value == rest.size() as f32));
    }
    say("went on");
    rest.barrier().wait()
}

#[test]
fn actor() {
    let Some(mut config) = part() else { return };
    config.node.liveness.timeout = Duration::from_secs(2);
    config.node.liveness.beat = Duration::from_millis(250);
    let mesh = Mesh::join(config).expect("everybody comes");
    play(&mesh).expect("the survivors go on");
    mesh.leave().expect("the others agree");
}

/// Ends one rank of three with a signal while all reduce; the survivors know it `within` and go on.
fn end_one(victim: usize, transport: Transport, count: usize, signal: i32, within: Duration) {
    for memory in if transport == Transport::Shm { &["arena", "private"][..] } else { &["private"] } {
        end_one_with(memory, victim, transport, count, signal, within);
    }
}

fn end_one_with(memory: &str, victim: usize, transport: Transport, count: usize, signal: i32, within: Duration) {
    let job = job();
    let children = start_all(&job, 3, transport, &[(COUNT, &count.to_string()), (MEMORY, memory)]);
    children.iter().for_each(|child| drop(hear(child, "under way")));
    let begun = now_ms();
    children[victim].kill(signal).expect("it lives");
    let survivors: Vec<&Child> = (0..3).filter(|rank| *rank != victim).map(|rank| &children[rank]).collect();
    for survivor in &survivors {
        let words = hear(survivor, "failed");
        let (at, what) = words.split_once(' ').expect("a time and an error");
        let elapsed = at.parse::<u128>().expect("a time").saturating_sub(begun);
        assert!(elapsed < within.as_millis(), "after {elapsed} ms: {what}");
        assert!(what.starts_with("PeerLost") && what.contains(&format!("rank-{victim}")), "{what}");
    }
    for survivor in survivors {
        hear(survivor, "went on");
        until("it has ended", || survivor.exit().is_some());
        assert!(survivor.exit().is_some_and(|exit| exit.status.success()), "{:?}", survivor.stderr_lines());
    }
}

#[test]
fn every_rank_may_be_killed() {
    for (victim, transport) in [(0, Transport::Shm), (1, Transport::Tcp), (2, Transport::Shm), (0, Transport::Tcp)] {
        for count in [1, 300_000] {
            end_one(victim, transport, count, SIGKILL, Duration::from_secs(1));
        }
    }
    end_one(1, Transport::Shm, 4_000_000, SIGKILL, Duration::from_secs(1));
}

#[test]
fn a_stopped_rank_is_found_in_time() {
    end_one(1, Transport::Shm, 1000, SIGSTOP, Duration::from_millis(3500));
    end_one(2, Transport::Shm, 1_000_000, SIGSTOP, Duration::from_millis(3500));
    end_one(0, Transport::Tcp, 1000, SIGSTOP, Duration::from_millis(3500));
}
