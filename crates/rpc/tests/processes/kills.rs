//! Processes of a group that are killed in the middle of calls: whoever waits for one of them is told within a second
//! who it was, nothing that others have registered is lost, and what the dead had is free.

use crate::common;
use crate::common::{PATIENCE, failed, free_port, hear, job, note, park, part, say, start_with};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_mesh::{Call, Expected, Mesh, Request};
use sheave_rpc::{Rpc, RpcGroup};
use sheave_wire::Value;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The bound of the design for everything that a killed process is needed for.
const BOUND: Duration = Duration::from_secs(1);
const RANKS: u32 = 4;
const SIGKILL: i32 = 9;
const LONG: Option<Duration> = Some(PATIENCE);

fn victim() -> u32 {
    let victim = std::env::var("SHEAVE_TEST_VICTIM").expect("a victim");
    victim.strip_prefix("rank-").and_then(|rank| rank.parse().ok()).expect("its rank")
}

fn about(error: &Error) -> (ErrorKind, Option<&str>) {
    (error.kind(), error.about().map(|peer| peer.name.as_str()))
}

fn key_of(rank: u32) -> Value {
    Value::Int(rank.into())
}

fn asked(group: &RpcGroup, key: i64) -> Result<Value> {
    Ok(group.call(Value::Int(key), "who", Call::of(Value::None).deadline(PATIENCE))?.wait()?.value)
}

/// Each rank has a service and a value in a group of all, and one of the last three: there rank 1 is the index.
#[test]
fn actor() {
    let Some(config) = part(Expected::ranks(RANKS)) else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    let rpc = Rpc::serve(&mesh).expect("once");
    mesh.world().barrier().expect("all are there");
    let (own, victim) = (mesh.me().rank.0, victim());
    let nodes: Vec<NodeId> = mesh.members().iter().map(|member| member.node).collect();
    let make = |name, members: &[NodeId]| rpc.create_group(name, members, LONG).wait().expect("all make it");
    let mut groups = vec![make("all", &nodes)];
    if own > 0 {
        groups.push(make("some", &nodes[1..]));
    }
    let held: Arc<Mutex<Vec<Request>>> = Arc::default();
    for group in &groups {
        let (name, held) = (mesh.name().to_owned(), Arc::clone(&held));
        let serve = move |request: Request| match request.method.as_str() {
            "who" => request.reply.value(name.as_str()),
            _ => held.lock().expect("nobody panics").push(request),
        };
        group.register(Value::Int(own.into()), serve, LONG).expect("a member").wait().expect("it is free");
        group.pair_object(Value::Int(own.into()), Arc::new(own), LONG).expect("a member").wait().expect("it is free");
        group.barrier(LONG).expect("a member").wait().expect("all come");
    }
    if own == victim {
        let expected = if victim > 0 { 5 } else { 3 };
        common::until("all calls hang here", || held.lock().expect("nobody panics").len() == expected);
        say("holding");
        park();
    }
    survive(&mesh, &rpc, &groups, victim);
    mesh.finish().expect_err("one is gone");
}

fn survive(mesh: &Mesh, rpc: &Rpc, groups: &[RpcGroup], victim: u32) {
    let (own, name) = (mesh.me().rank.0, format!("rank-{victim}"));
    let dead = (ErrorKind::PeerLost, Some(name.as_str()));
    let nodes: Vec<NodeId> = mesh.members().iter().map(|member| member.node).collect();
    let of_victim: Vec<&RpcGroup> =
        groups.iter().filter(|group| group.members().contains(&nodes[victim as usize])).collect();
    let hanging: Vec<_> = of_victim
        .iter()
        .map(|group| group.call(Value::Int(victim.into()), "hang", Call::default()).expect("sent"))
        .collect();
    let barrier = groups[0].barrier(LONG).expect("a member");
    let making = rpc.create_group("never", &nodes, LONG);
    say("waiting");
    for work in hanging {
        assert_eq!(about(&failed(work.wait_timeout(PATIENCE))), dead);
    }
    for error in [failed(barrier.wait_timeout(PATIENCE)), failed(making.wait_timeout(PATIENCE))] {
        assert_eq!(about(&error), dead, "{error}");
    }
    say("told");
    for group in groups {
        for rank in (0..RANKS).filter(|rank| group.members().contains(&nodes[*rank as usize])) {
            let answer = asked(group, rank.into());
            let value = group.get_paired(key_of(rank), LONG).expect("begun").wait();
            if rank == victim {
                let (called, error) = (failed(answer), failed(value));
                assert_eq!(about(&called), dead, "it was called before: {called}");
                // What an index has paired nobody else knows of who has not got it.
                let was_index = group.members()[0] == nodes[victim as usize];
                assert!(about(&error) == dead || was_index && error.kind() == ErrorKind::NotFound, "{error}");
                let has = [group.is_registered(key_of(rank), LONG), group.is_paired(key_of(rank), LONG)];
                assert_eq!(has.map(|has| has.expect("begun").wait().expect("the index lives")), [false, false]);
            } else {
                assert_eq!(answer.expect("its owner lives"), Value::from(format!("rank-{rank}")));
                assert_eq!(value.expect("its owner lives").owner(), nodes[rank as usize]);
            }
        }
    }
    say("looked");
    // Those who are left make groups.
    let is_left = |(rank, node): (usize, &NodeId)| (rank as u32 != victim).then_some(*node);
    let left: Vec<NodeId> = nodes.iter().enumerate().filter_map(is_left).collect();
    let again = rpc.create_group("left", &left, LONG).wait().expect("they live");
    again.barrier(LONG).expect("a member").wait().expect("all come");
    // The key of the dead is free, for one of the others.
    let heir = (0..RANKS).rfind(|rank| *rank != victim).expect("there are others");
    let group = &groups[0];
    if own == heir {
        let serve = |request: Request| request.reply.value("heir");
        group.register(Value::Int(victim.into()), serve, LONG).expect("a member").wait().expect("it is free");
    }
    common::until("the key has another owner", || match asked(group, victim.into()) {
        Ok(answer) => answer == Value::from("heir"),
        Err(error) if about(&error) == dead => false,
        Err(error) => panic!("{error}"),
    });
    // The heir must not leave before all have asked it.
    again.barrier(LONG).expect("a member").wait().expect("all come");
    say("done");
}

fn kill(victim: u32, transport: Transport) {
    let (job, port) = (job(), free_port());
    let victim_name = format!("rank-{victim}");
    let start = |rank: u32| start_with(&job, &format!("rank-{rank}"), port, transport, &victim_name);
    let children: Vec<_> = (0..RANKS).map(start).collect();
    let survivors: Vec<_> = (0..RANKS).filter(|rank| *rank != victim).map(|rank| &children[rank as usize]).collect();
    for child in &survivors {
        hear(child, "waiting");
    }
    hear(&children[victim as usize], "holding");
    let killed = Instant::now();
    children[victim as usize].kill(SIGKILL).expect("it runs");
    for child in &survivors {
        hear(child, "told");
    }
    let told = killed.elapsed();
    for child in &survivors {
        hear(child, "looked");
    }
    let looked = killed.elapsed();
    note(&format!("rank {victim} killed: told within {told:?}, all found by {looked:?}"));
    assert!(told < BOUND && looked < 2 * BOUND, "told {told:?}, looked {looked:?}");
    for child in &survivors {
        hear(child, "done");
        let exit = child.wait(Some(common::soon())).expect("it ends").expect("in time");
        assert!(exit.status.success(), "{exit:?}: {}", child.stderr_lines().join("\n"));
    }
}

#[test]
fn rank_0_dies_with_the_directory() {
    kill(0, Transport::Auto);
}

#[test]
fn the_holder_of_a_directory_dies() {
    kill(1, Transport::Auto);
}

#[test]
fn a_member_dies() {
    kill(3, Transport::Tcp);
}
