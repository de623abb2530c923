//! Versioned objects among real processes, some of which are killed: whoever waits for the server is told within a
//! second who it was, what a client held is free, and what was accepted is there, whole.

use crate::common;
use crate::common::{PATIENCE, failed, free_port, hear, job, note, park, part, say, start_with, until, wait};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind};
use sheave_mesh::{Expected, Mesh};
use sheave_rpc::{Contents, Entry, Pulled, Rpc, Versions, VersionsClient, VersionsSettings, Wanted};
use sheave_tensor::{Mode, Tensor};
use sheave_wire::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The bound of the design for everything that a killed process is needed for.
const BOUND: Duration = Duration::from_secs(1);
const RANKS: u32 = 4;
const SIGKILL: i32 = 9;
const LONG: Option<Duration> = Some(PATIENCE);
const LEASE: Duration = Duration::from_secs(600);
/// Elements of each of two tensors, which are large enough to go through shared memory.
const COUNT: usize = 40_000;

/// The contents of a version of a key: its number, everywhere.
fn contents(number: i64) -> Entry {
    let tensor = || Tensor::from_slice(&vec![number; COUNT], [COUNT as u64]).expect("memory");
    Entry::of(["one", "other"].into_iter().map(|name| (name.to_owned(), tensor())).collect::<BTreeMap<_, _>>())
}

/// Checks that a version has its contents, and returns its number.
fn number(mesh: &Mesh, pulled: &Pulled) -> i64 {
    let Value::Int(number) = pulled.version else { panic!("{pulled:?}") };
    let Contents::Whole { tensors, .. } = &pulled.contents else { panic!("{pulled:?}") };
    assert_eq!(tensors.len(), 2);
    for tensor in tensors {
        let elements = mesh.node().capture(tensor).expect("memory").to_vec::<i64>().expect("it is i64");
        assert!(elements.iter().all(|element| *element == number), "version {number}");
    }
    number
}

fn about(error: &Error) -> (ErrorKind, Option<&str>) {
    (error.kind(), error.about().map(|peer| peer.name.as_str()))
}

/// Rank 0 serves. One is killed.
#[test]
fn actor() {
    let Some(config) = part(Expected::ranks(RANKS)) else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    let rpc = Rpc::serve(&mesh).expect("once");
    mesh.world().barrier().expect("all are there");
    let nodes: Vec<_> = mesh.members().iter().map(|member| member.node).collect();
    let group = rpc.create_group("training", &nodes, LONG).wait().expect("all make it");
    let (own, victim) = (mesh.me().rank.0, std::env::var("SHEAVE_TEST_VICTIM").expect("a victim"));
    let settings = VersionsSettings { depth: 1, ..VersionsSettings::default() };
    let versions = (own == 0).then(|| Versions::new(&mesh, settings).expect("it makes sense"));
    if let Some(versions) = &versions {
        group.register("models", versions.service(), LONG).expect("a member").wait().expect("it is free");
        assert!(versions.push("kept", contents(1), 1_i64, None).expect("there is room").is_accepted());
    }
    mesh.world().barrier().expect("all come");
    let client = group.versions("models", LONG).expect("begun").wait().expect("it is registered");
    match (versions, victim.as_str()) {
        (Some(_), "rank-0") => {
            until("all watch", || wait(&client.report().expect("sent")).expect("it is here").watches == 3);
            say("holding");
            park();
        }
        (None, "rank-0") => outlive_the_server(&mesh, &client),
        (Some(versions), _) => serve(&mesh, &versions),
        (None, _) if mesh.name() == victim => push_until_killed(&client),
        (None, _) => push_beside(&mesh, &client),
    }
    if victim != "rank-0" {
        // The server must not leave before the others are through.
        let left: Vec<_> =
            mesh.members().iter().filter(|member| member.peer().name != victim).map(|member| member.node).collect();
        let left = rpc.create_group("left", &left, LONG).wait().expect("they live");
        left.barrier(LONG).expect("a member").wait().expect("all come");
        say("done");
    }
    mesh.finish().expect_err("one is gone");
}

fn outlive_the_server(mesh: &Mesh, client: &VersionsClient) {
    let dead = (ErrorKind::PeerLost, Some("rank-0"));
    let pulled = wait(&client.pull("kept", Wanted::Newest, Mode::Share).expect("sent")).expect("it is there");
    let pulled = pulled.expect("it is there");
    let watch = client.watch("kept", Some(Value::Int(1)), Mode::Copy).expect("sent");
    let pin = wait(&client.pin("kept", None, LEASE).expect("sent")).expect("there is room").expect("it is there");
    say("waiting");
    let error = failed(wait(&watch));
    assert_eq!(about(&error), dead, "{error}");
    assert!(error.to_string().contains("watch"), "{error}");
    say("told");
    let later = client.push("kept", contents(2), 2_i64, Some(Value::Int(1))).and_then(|work| wait(&work));
    let error = failed(later);
    assert_eq!(about(&error), dead, "{error}");
    drop(pin);
    // The snapshot is as it was.
    assert_eq!(number(mesh, &pulled), 1);
    say("done");
}

/// Pushes one version after the other, with a pin and a watch, until the process ends.
fn push_until_killed(client: &VersionsClient) {
    let pin = wait(&client.pin("kept", None, LEASE).expect("sent")).expect("there is room");
    let watch = client.watch("never", None, Mode::Copy).expect("sent");
    let mut newest: Option<i64> = None;
    for count in 0_u64.. {
        if count == 5 {
            say("holding");
        }
        let next = newest.unwrap_or_default() + 1;
        let pushed = client.push("busy", contents(next), next, newest.map(Value::Int)).expect("sent");
        let pushed = wait(&pushed).expect("the server lives");
        newest = match pushed.newest {
            Some(Value::Int(number)) => Some(number),
            ref other => panic!("{other:?}"),
        };
    }
    drop((pin, watch));
}

fn push_beside(mesh: &Mesh, client: &VersionsClient) {
    until("somebody pushes", || wait(&client.report().expect("sent")).expect("it lives").keys == 2);
    say("waiting");
    // One is killed while these go on; what it has pushed in part is not there.
    let (mut seen, mut after) = (0, None);
    loop {
        let newest = wait(&client.pull("busy", Wanted::Newest, Mode::Share).expect("sent")).expect("it lives");
        let newest = number(mesh, &newest.expect("it was pushed"));
        assert!(newest >= seen, "{newest} after {seen}");
        seen = newest;
        let pushed = client.push("busy", contents(newest + 1), newest + 1, Some(Value::Int(newest))).expect("sent");
        wait(&pushed).expect("the server lives");
        if !mesh.deaths().is_empty() {
            let first = *after.get_or_insert(newest);
            if newest > first + 20 {
                break;
            }
        }
    }
    say("told");
}

fn serve(mesh: &Mesh, versions: &Versions) {
    until("the victim has a pin and watches", || {
        let report = versions.report();
        (report.pins, report.watches) == (1, 1)
    });
    assert!(versions.push("kept", contents(2), 2_i64, Some(Value::Int(1))).expect("there is room").is_accepted());
    assert_eq!(versions.versions("kept").expect("a key").len(), 2, "one is pinned");
    say("waiting");
    until("what it held is free", || {
        let report = versions.report();
        (report.pins, report.watches) == (0, 0)
    });
    say("told");
    assert_eq!(versions.versions("kept").expect("a key"), [Value::Int(2)]);
    until("all know who has died", || mesh.deaths().len() == 1);
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
    hear(survivors[0], "told");
    if victim == 0 {
        survivors.iter().for_each(|child| drop(hear(child, "told")));
    }
    let told = killed.elapsed();
    note(&format!("rank {victim} killed: told within {told:?}"));
    assert!(told < BOUND, "told {told:?}");
    for child in &survivors {
        hear(child, "done");
        let exit = child.wait(Some(common::soon())).expect("it ends").expect("in time");
        assert!(exit.status.success(), "{exit:?}: {}", child.stderr_lines().join("\n"));
    }
}

#[test]
fn the_server_dies() {
    kill(0, Transport::Auto);
}

#[test]
fn the_server_dies_behind_tcp() {
    kill(0, Transport::Tcp);
}

#[test]
fn a_pusher_dies() {
    kill(2, Transport::Auto);
}

#[test]
fn a_pusher_dies_behind_tcp() {
    kill(2, Transport::Tcp);
}

/// Four clients, each a node of this process, push as fast as they can; that none is lost is checked, and how many
/// there are is told.
#[test]
fn many_compare_and_push() {
    const EACH: i64 = 1_000;
    let together = common::together(Expected::ranks(RANKS + 1), Transport::Auto, move |mesh| {
        let rpc = Rpc::serve(&mesh).expect("once");
        mesh.world().barrier().expect("all are there");
        let nodes: Vec<_> = mesh.members().iter().map(|member| member.node).collect();
        let group = rpc.create_group("training", &nodes, LONG).wait().expect("all make it");
        let own = mesh.me().rank.0;
        if own == 0 {
            let versions = Versions::new(&mesh, VersionsSettings::default()).expect("it makes sense");
            group.register("models", versions.service(), LONG).expect("a member").wait().expect("it is free");
        }
        mesh.world().barrier().expect("all come");
        let client = group.versions("models", LONG).expect("begun").wait().expect("it is registered");
        let begun = Instant::now();
        let mut accepted = 0;
        let mut newest = None;
        for _ in 0..if own == 0 { 0 } else { EACH } {
            let next = newest.clone().map_or(0, |newest| if let Value::Int(number) = newest { number + 1 } else { -1 });
            let pushed = client.push("count", Entry::of(next), next, newest).expect("sent");
            let pushed = wait(&pushed).expect("the server lives");
            accepted += i64::from(pushed.is_accepted());
            newest = pushed.newest;
        }
        mesh.world().barrier().expect("all come");
        let newest = wait(&client.versions("count").expect("sent")).expect("the server lives");
        mesh.finish().expect("all end");
        (accepted, newest, begun.elapsed())
    });
    let accepted: i64 = together.iter().map(|(accepted, ..)| accepted).sum();
    assert!(together.iter().all(|(_, newest, _)| newest == &[Value::Int(accepted - 1)]), "{accepted} accepted");
    let took = together[0].2;
    let rate = (i64::from(RANKS) * EACH) as f64 / took.as_secs_f64();
    note(&format!("{rate:.0} compare-and-push in a second, of which {accepted} were accepted in {took:?}"));
}
