//! Whole processes in lockstep.

use sheave_mesh::{Mesh, Request};
use sheave_sim::jobs::rank_config;
use sheave_sim::lockstep::{Outcome, Way, World};
use sheave_wire::Value;
use std::time::Duration;

const LOCAL: Way = Way { delay_ns: 50_000, jitter_ns: 2_000_000, bytes_per_s: 100 << 20 };

fn job(seed: u64) -> Outcome {
    const RANKS: u32 = 3;
    let world = World::new(seed, LOCAL);
    world.keep_log();
    for rank in 0..RANKS as usize {
        world.start(&format!("rank-{rank}"), rank, move || {
            let mesh = Mesh::join(rank_config(rank, rank, RANKS)).expect("all come");
            mesh.serve("echo", |request: Request| request.reply.value(request.args)).expect("it is the first");
            let world = mesh.world();
            world.barrier().expect("all are there");
            for member in mesh.members() {
                let answer = mesh.call(member.node, "echo", "say", Value::Int(rank as i64)).expect("it is sent");
                assert_eq!(answer.wait().expect("it answers").value, Value::Int(rank as i64));
            }
            mesh.finish().expect("all go");
        });
    }
    world.run(Duration::from_secs(60))
}

#[test]
fn a_job_runs_to_its_end_and_the_same_way_each_time() {
    let (one, other) = (job(1), job(1));
    assert!(one.failures.is_empty(), "{:#?}", one.failures);
    println!("{:?} in {} switches", one.lasted, one.switches);
    assert!(one.log == other.log, "two runs differ");
    assert!(job(2).log != one.log);
}
