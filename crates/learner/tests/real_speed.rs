//! How long gradients of eight learners take from their memory into a sum: a figure, and no bound but that it ends.

#[path = "../../mesh/tests/common/mod.rs"]
mod common;

use common::{PATIENCE, free_port, hear, job, note, part, say, start_with};
use sheave_base::config::Transport;
use sheave_learner::{Choice, GradientClient, GradientServer, Model, Servers, Settings, Tensors};
use sheave_mesh::{Expected, Mesh};
use sheave_rpc::Rpc;
use sheave_tensor::Tensor;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const LONG: Option<Duration> = Some(PATIENCE);
const LEARNERS: usize = 8;
const RANKS: u32 = LEARNERS as u32 + 1;
/// 5.76 MB.
const ELEMENTS: usize = 1_440_000;
const WARM: usize = 5;
const ROUNDS: usize = 40;

#[test]
fn actor() {
    let Some(config) = part(Expected::ranks(RANKS)) else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    let rpc = Rpc::serve(&mesh).expect("once");
    mesh.world().barrier().expect("all are there");
    let nodes: Vec<_> = mesh.members().iter().map(|member| member.node).collect();
    let group = rpc.create_group("learners", &nodes, LONG).wait().expect("all make it");
    // The secondary sums those of all learners, and a step takes two such sums.
    let servers = Servers { name: "gradients".into(), primary: nodes[0], secondaries: vec![nodes[0]] };
    let settings = Settings { batch: LEARNERS, queue_max: 2 * LEARNERS, ..Settings::default() };
    let values = vec![0.5_f32; ELEMENTS];
    let gradient =
        Tensors::from([("weight".to_owned(), Tensor::from_slice(&values, [ELEMENTS as u64]).expect("memory"))]);
    let barrier = || group.barrier(LONG).expect("a member").wait().expect("all come");
    let is_server = mesh.me().rank.0 == 0;
    let (stepped, steps) = channel();
    let server = is_server.then(|| {
        let model = Model::of(&gradient).expect("a model");
        let builder = GradientServer::builder(&mesh, &group, &servers, &model).settings(settings);
        let step = move |_, count| {
            let _ = stepped.send(count);
            Ok(None)
        };
        builder.step(step).start(LONG).expect("once").wait().expect("its key is free")
    });
    barrier();
    if is_server {
        barrier();
        let began = Instant::now();
        barrier();
        let took = began.elapsed();
        let sums = server.expect("it serves").report();
        assert_eq!(sums.forwarded, (LEARNERS * (WARM + ROUNDS)) as u64);
        drop(steps);
        say(&format!("round {}", took.as_micros() / ROUNDS as u128));
    } else {
        let client = GradientClient::connect(&mesh, &group, &servers, Choice::Fixed(0), LONG).expect("servers");
        let client = client.wait().expect("they live");
        let push = |_: usize| {
            client.push(&gradient).expect("sent").wait_timeout(PATIENCE).expect("there is room");
        };
        (0..WARM).for_each(push);
        client.flush().expect("sent").wait().expect("it lives");
        barrier();
        (0..ROUNDS).for_each(push);
        client.flush().expect("sent").wait().expect("it lives");
        barrier();
    }
    mesh.finish().expect("all end");
}

#[test]
fn gradients_of_eight_learners_are_summed() {
    let (job, port) = (job(), free_port());
    let start = |rank: u32| start_with(&job, &format!("rank-{rank}"), port, Transport::Auto, "nobody");
    let children: Vec<_> = (0..RANKS).map(start).collect();
    let took = hear(&children[0], "round");
    note(&format!("{LEARNERS} gradients of {ELEMENTS} f32: {took} us from push to sum, beside their learners"));
    for child in &children {
        let exit = child.wait(Some(common::soon())).expect("it ends").expect("in time");
        assert!(exit.status.success(), "{exit:?}: {}", child.stderr_lines().join("\n"));
    }
}
