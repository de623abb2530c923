//! Gradient servers of real processes, of which one is killed: learners go to another secondary, no gradient is applied
//! twice, and what was lost is reported by its number; and when the primary dies every push says so.

use crate::common;
use crate::common::{PATIENCE, failed, free_port, hear, job, note, park, part, say, start_with, until};
use sheave_base::ErrorKind;
use sheave_base::config::Transport;
use sheave_learner::{Choice, ClientReport, GradientClient, GradientServer, Model, Servers, Settings, Tensors};
use sheave_mesh::{Expected, Mesh};
use sheave_optim::Rule;
use sheave_process::Child;
use sheave_rpc::{Rpc, RpcGroup};
use sheave_tensor::Tensor;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The bound of the design for everything that a killed process is needed for.
const BOUND: Duration = Duration::from_secs(1);
const LONG: Option<Duration> = Some(PATIENCE);
const SIGKILL: i32 = 9;
/// The primary, two secondaries, and two learners.
const RANKS: u32 = 5;

fn gradient() -> Tensors {
    let values = vec![1.0_f32; 20_000];
    Tensors::from([("weight".to_owned(), Tensor::from_slice(&values, [20_000]).expect("memory"))])
}

/// What the test does to whom.
fn scenario() -> String {
    std::env::var("SHEAVE_TEST_VICTIM").expect("a scenario")
}

#[test]
fn actor() {
    let Some(config) = part(Expected::ranks(RANKS)) else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    let rpc = Rpc::serve(&mesh).expect("once");
    mesh.world().barrier().expect("all are there");
    let nodes: Vec<_> = mesh.members().iter().map(|member| member.node).collect();
    let group = rpc.create_group("learners", &nodes, LONG).wait().expect("all make it");
    let servers = Servers { name: "gradients".into(), primary: nodes[0], secondaries: nodes[1..3].to_vec() };
    let batch = if scenario() == "idle" { 64 } else { 4 };
    let settings = Settings { batch, queue_max: 2 * batch, ..Settings::default() };
    let last = Arc::new(Mutex::new(0.0_f32));
    let rank = mesh.me().rank.0;
    let server = (rank < 3).then(|| {
        let zero =
            Tensors::from([("weight".to_owned(), Tensor::from_slice(&[0.0_f32; 20_000], [20_000]).expect("fits"))]);
        let model = Model::of(&zero).expect("a model");
        let builder = GradientServer::builder(&mesh, &group, &servers, &model).settings(settings);
        let (builder, last) = (builder.optimizer(Rule::sgd(1.0).into()).start_from(0, zero), Arc::clone(&last));
        let publish = move |parameters: Tensors, _| {
            let weights = parameters["weight"].to_vec::<f32>()?;
            assert!(weights.iter().all(|weight| *weight == weights[0]), "each gradient is there as a whole");
            *last.lock().expect("nobody panics") = weights[0];
            Ok(())
        };
        builder.publish(publish).start(LONG).expect("once").wait().expect("its key is free")
    });
    group.barrier(LONG).expect("a member").wait().expect("all come");
    let victim = if scenario() == "primary" { 0 } else { 1 };
    if rank == victim {
        say("ready");
        park();
    }
    let left: Vec<_> = nodes.iter().copied().filter(|node| *node != nodes[victim as usize]).collect();
    let group_of_servers = group;
    let group = rpc.create_group("left", &left, LONG).wait().expect("all others make it");
    match (rank, scenario().as_str()) {
        (0, _) => be_primary(&group, &server.expect("it serves"), &last),
        (1 | 2, scenario) => be_secondary(&group, &server.expect("it serves"), scenario),
        (_, scenario) => {
            let connected = GradientClient::connect(&mesh, &group_of_servers, &servers, Choice::RoundRobin, LONG);
            let client = connected.expect("servers").wait().expect("they live");
            match scenario {
                "idle" => be_idle_learner(&group, &client),
                "busy" => be_busy_learner(&group, &client),
                _ => be_orphan(&group, &client),
            }
        }
    }
    mesh.finish().expect_err("one is gone");
}

/// Waits for all others that live.
fn meet(left: &RpcGroup) {
    left.barrier(LONG).expect("a member").wait().expect("all come");
}

fn be_primary(group: &RpcGroup, server: &GradientServer, last: &Mutex<f32>) {
    // The learners have flushed and reported.
    meet(group);
    let report = server.report().primary.expect("it is the primary");
    assert_eq!(*last.lock().expect("nobody panics"), -(report.applied as f32), "none is applied twice");
    say(&format!("applied {} lost {}", report.applied, report.lost.count));
    meet(group);
}

fn be_secondary(group: &RpcGroup, server: &GradientServer, scenario: &str) {
    if scenario == "primary" {
        let error = failed(server.watch().wait_timeout(PATIENCE));
        assert_eq!(about(&error), (ErrorKind::PeerLost, Some("rank-0")), "{error}");
        say("told");
    }
    meet(group);
    meet(group);
}

fn about(error: &sheave_base::Error) -> (ErrorKind, Option<&str>) {
    (error.kind(), error.about().map(|peer| peer.name.as_str()))
}

fn push(client: &GradientClient) {
    client.push(&gradient()).expect("sent").wait_timeout(PATIENCE).expect("a secondary lives");
}

fn told(report: &ClientReport) {
    assert_eq!(report.gone, ["rank-1"], "{report:?}");
    assert_eq!((report.pending, report.dropped, report.acknowledged), (0, 0, report.pushed), "{report:?}");
    assert_eq!(report.applied + report.lost, report.pushed, "{report:?}");
    say(&format!("applied {} lost {} moved {}", report.applied, report.lost, report.moved));
}

/// Pushes ten, of which each secondary has five when one of them dies.
fn be_idle_learner(group: &RpcGroup, client: &GradientClient) {
    (0..10).for_each(|_| push(client));
    say("ready");
    until("the death is known", || client.report().expect("sent").wait().expect("the primary lives").lost > 0);
    (0..10).for_each(|_| push(client));
    client.flush().expect("sent").wait().expect("the others live");
    let report = client.report().expect("sent").wait().expect("the primary lives");
    assert_eq!((&report.lost_numbers, report.applied), (&VecDeque::from([1, 3, 5, 7, 9]), 15), "{report:?}");
    told(&report);
    meet(group);
    meet(group);
}

/// Pushes, with some on their way, before and after one dies.
fn be_busy_learner(group: &RpcGroup, client: &GradientClient) {
    let (mut pushed, mut left) = (VecDeque::new(), 400);
    for number in 0.. {
        pushed.push_back(client.push(&gradient()).expect("sent"));
        if pushed.len() == 8 {
            pushed.pop_front().expect("it has eight").wait_timeout(PATIENCE).expect("a secondary lives");
        }
        if number == 100 {
            say("ready");
        }
        // Until long after it is known.
        left -= i32::from(!client.known().gone.is_empty());
        if left == 0 {
            break;
        }
    }
    for push in pushed {
        push.wait_timeout(PATIENCE).expect("a secondary lives");
    }
    client.flush().expect("sent").wait().expect("the others live");
    told(&client.report().expect("sent").wait().expect("the primary lives"));
    meet(group);
    meet(group);
}

/// Pushes until the primary is gone.
fn be_orphan(group: &RpcGroup, client: &GradientClient) {
    for number in 0.. {
        let pushed = client.push(&gradient()).and_then(|push| push.wait_timeout(PATIENCE));
        if let Err(error) = pushed {
            assert_eq!(about(&error), (ErrorKind::PeerLost, Some("rank-0")), "{error}");
            break;
        }
        if number == 20 {
            say("ready");
        }
    }
    say("told");
    for _ in 0..4 {
        let error = failed(client.push(&gradient()).and_then(|push| push.wait_timeout(PATIENCE)));
        assert_eq!(about(&error), (ErrorKind::PeerLost, Some("rank-0")), "{error}");
    }
    for error in
        [failed(client.flush().and_then(|flush| flush.wait())), failed(client.report().and_then(|told| told.wait()))]
    {
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
    }
    meet(group);
    meet(group);
}

fn begin(job: &sheave_process::Job, scenario: &str, transport: Transport) -> Vec<Child> {
    let port = free_port();
    (0..RANKS).map(|rank| start_with(job, &format!("rank-{rank}"), port, transport, scenario)).collect()
}

fn end(children: &[Child], victim: usize) {
    let others = || children.iter().enumerate().filter(|(rank, _)| *rank != victim).map(|(_, child)| child);
    let is_well = |child: &Child| child.wait(Some(common::soon())).expect("it ends").expect("in time").status.success();
    let ends: Vec<bool> = others().map(is_well).collect();
    if ends.contains(&false) {
        let last_words = others().map(|child| child.stderr_lines().join("\n"));
        panic!("{}", last_words.collect::<Vec<_>>().join("\n\n"));
    }
}

/// The numbers of what an actor says.
fn numbers(text: &str) -> Vec<u64> {
    text.split(' ').filter_map(|word| word.parse().ok()).collect()
}

fn kill_secondary(scenario: &str, transport: Transport) {
    let job = job();
    let children = begin(&job, scenario, transport);
    hear(&children[1], "ready");
    (3..5).for_each(|learner| drop(hear(&children[learner], "ready")));
    children[1].kill(SIGKILL).expect("it runs");
    let learners = [3, 4].map(|learner| numbers(&hear(&children[learner], "applied")));
    let primary = numbers(&hear(&children[0], "applied"));
    note(&format!("{scenario}, {transport:?}: applied, lost and moved {learners:?}, at the primary {primary:?}"));
    assert_eq!(learners[0][0] + learners[1][0], primary[0]);
    assert_eq!(learners[0][1] + learners[1][1], primary[1], "both report the same losses");
    end(&children, 1);
}

#[test]
fn a_secondary_dies_with_gradients() {
    [Transport::Auto, Transport::Tcp].into_iter().for_each(|transport| kill_secondary("idle", transport));
}

#[test]
fn a_secondary_dies_in_the_middle() {
    [Transport::Auto, Transport::Tcp].into_iter().for_each(|transport| kill_secondary("busy", transport));
}

#[test]
fn the_primary_dies() {
    for transport in [Transport::Auto, Transport::Tcp] {
        let job = job();
        let children = begin(&job, "primary", transport);
        (3..5).for_each(|learner| drop(hear(&children[learner], "ready")));
        let killed = Instant::now();
        children[0].kill(SIGKILL).expect("it runs");
        (1..5).for_each(|rank| drop(hear(&children[rank], "told")));
        let told = killed.elapsed();
        note(&format!("{transport:?}: all told within {told:?}"));
        assert!(told < BOUND, "{told:?}");
        end(&children, 0);
    }
}
