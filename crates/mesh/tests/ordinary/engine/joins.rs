//! The rendezvous, and what it says when it fails.

use super::meshes::{Meshes, config, id, introduction};
use sheave_base::{Error, ErrorKind, clock::Time};
use sheave_mesh::engine::{Effect, Engine, Event, Member, Message, Role};
use std::time::Duration;

fn failure(meshes: &Meshes, node: usize) -> Error {
    meshes.nodes[node].failure().expect("its deadline has passed").clone()
}

#[test]
fn the_table_names_everybody_and_carries_addresses() {
    let (meshes, _) = Meshes::joined(3, 8);
    for node in &meshes.nodes {
        let table: Vec<_> = node.table().iter().map(|member| member.introduction.clone()).collect();
        assert_eq!(table.iter().map(|about| about.name.as_str()).collect::<Vec<_>>(), ["rank-0", "rank-1", "rank-2"]);
        assert_eq!(table[2].address, "127.0.0.1:7002");
    }
}

#[test]
fn the_table_is_the_same_whatever_the_order() {
    for seed in 0..20 {
        let (meshes, _) = Meshes::joined(6, seed);
        for node in &meshes.nodes {
            assert_eq!(node.table(), meshes.nodes[0].table());
        }
    }
}

#[test]
fn a_failed_join_says_who_is_missing_and_whose_secret_is_whose() {
    let mut meshes = Meshes::new(4, 0);
    for node in [0, 1] {
        meshes.tell(node, Event::Reached(id(0)));
    }
    meshes.tell(0, Event::Turned { what: "10.0.0.7 sent no greeting".into() });
    meshes.tell(0, Event::Turned { what: "10.0.0.8 knows another secret,\nfrom SHEAVE_SECRET".into() });
    // The two that are missing were never reached, or not let in.
    meshes.tell(3, Event::Turned { what: "connection refused".into() });
    meshes.tell(3, Event::Turned { what: "not authenticated".into() });
    meshes.settle();
    meshes.pass(Duration::from_secs(61));
    let missing = "join: deadline exceeded: missing: 2 of 4 ranks (rank 2, 3); joined: \
        a rank from host-0 (pid 100, secret from the cookie of host-0), \
        a rank from host-1 (pid 101, secret from the cookie of host-1); \
        2 strangers were turned away, the last: 10.0.0.8 knows another secret, from SHEAVE_SECRET; \
        this node's secret came from the cookie of host-";
    for node in [0, 1] {
        let text = failure(&meshes, node).to_string();
        assert!(text.starts_with(&format!("{missing}{node}; hint: ")), "{text}");
    }
    let start = "join: deadline exceeded: the coordinator was not reached";
    let text = failure(&meshes, 2).to_string();
    assert!(text.starts_with(&format!("{start}; this node's secret came from the cookie of host-2; hint: ")), "{text}");
    let text = failure(&meshes, 3).to_string();
    assert!(text.starts_with(&format!("{start} in 2 attempts, the last: not authenticated; this node's")), "{text}");
}

#[test]
fn the_error_of_a_large_join_stays_one_line() {
    let mut meshes = Meshes::new(100, 0);
    for node in 0..99 {
        meshes.tell(node, Event::Reached(id(0)));
    }
    meshes.tell(0, Event::Turned { what: "\u{1f480}".repeat(5000) });
    meshes.settle();
    meshes.pass(Duration::from_secs(61));
    let text = failure(&meshes, 7).to_string();
    assert!(text.contains("and 91 more; 1 stranger was turned away: "), "{text}");
    assert!(text.len() < 1500 && !text.contains('\n'), "{} bytes: {text}", text.len());
}

#[test]
fn a_second_one_of_a_name_or_a_rank_is_refused() {
    let named = |name: &str, rank| {
        let mut about = introduction(rank);
        about.name = name.into();
        about
    };
    let refusal = |one, other| {
        let mut meshes = Meshes::new(3, 0);
        meshes.nodes[1] = Engine::new(config(one, 3, false), id(1), Time(0));
        meshes.nodes[2] = Engine::new(config(other, 3, false), id(2), Time(0));
        for node in 0..3 {
            meshes.tell(node, Event::Reached(id(0)));
            meshes.settle();
        }
        let error = failure(&meshes, 2);
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert!(!meshes.asked.iter().any(|(_, effect)| matches!(effect, Effect::Joined)));
        error.what().to_owned()
    };
    assert_eq!(refusal(named("ann", 1), named("ann", 2)), "the name ann is taken by pid 101 on host-1");
    let expected = "a rank from host-1 (pid 101) has the rank that a rank from host-1 (pid 101) wants";
    assert_eq!(refusal(introduction(1), introduction(1)), expected);
    assert_eq!(refusal(introduction(1), named("bob", 1)), "a rank from host-1 (pid 101) has the rank that bob wants");
}

/// Who is right nobody knows, so everybody who has come is told both sides.
#[test]
fn f85_other_numbers_than_the_coordinators_are_a_mismatch_on_both_sides() {
    let mut meshes = Meshes::new(3, 0);
    for node in 0..3 {
        let count = if node == 2 { 4 } else { 3 };
        meshes.nodes[node] = Engine::new(config(introduction(node as u32), count, node == 0), id(node), Time(0));
        meshes.tell(node, Event::Reached(id(0)));
    }
    meshes.settle();
    meshes.pass(Duration::from_millis(1250));
    for node in 0..3 {
        let error = failure(&meshes, node);
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        for side in [
            "a rank from host-2 (pid 102) expects 4 ranks",
            "a rank from host-0 (pid 100), the coordinator, expects 3 ranks",
        ] {
            assert!(error.what().contains(side), "{error}");
        }
    }
    assert!(!meshes.asked.iter().any(|(_, effect)| matches!(effect, Effect::Joined)));
}

/// The last ones to join have lost the coordinator before they had the table, and without their votes nobody goes on.
#[test]
fn the_table_is_passed_on_if_the_coordinator_dies_amid_its_welcome() {
    for seed in 0..50 {
        let mut meshes = Meshes::new(5, seed);
        for node in 0..5 {
            meshes.tell(node, Event::Reached(id(0)));
        }
        (1..5).for_each(|node| meshes.deliver(node, 0));
        (3..5).for_each(|node| meshes.lose(0, node));
        meshes.kill(0);
        meshes.settle();
        meshes.pass(Duration::from_secs(2));
        for node in 1..5 {
            assert!(meshes.nodes[node].is_active(), "{seed}: node {node}");
            assert_eq!(meshes.nodes[node].living().collect::<Vec<_>>(), (1..5).map(id).collect::<Vec<_>>());
        }
        let joined = meshes.asked.iter().filter(|(_, effect)| matches!(effect, Effect::Joined)).count();
        assert_eq!(joined, 5);
    }
}

#[test]
fn a_table_that_its_sender_is_not_in_is_not_taken() {
    let (meshes, _) = Meshes::joined(4, 0);
    let table = meshes.nodes[0].table().to_vec();
    let mut engine = Engine::new(config(introduction(2), 4, false), id(2), Time(0));
    engine.handle(Time(0), Event::Received { from: id(9), message: Message::Welcome { table: table.clone() } });
    engine.poll(Time(0));
    assert!(!engine.is_active() && engine.failure().is_none());
    engine.handle(Time(0), Event::Received { from: id(3), message: Message::Welcome { table } });
    engine.poll(Time(0));
    assert!(engine.is_active());
}

/// What becomes of a joiner that is sent this table, made of the sound one of four ranks.
fn welcomed(change: impl FnOnce(&mut Vec<Member>)) -> Engine {
    let (meshes, _) = Meshes::joined(4, 0);
    let mut table = meshes.nodes[0].table().to_vec();
    change(&mut table);
    let mut engine = Engine::new(config(introduction(2), 4, false), id(2), Time(0));
    engine.handle(Time(0), Event::Reached(id(0)));
    engine.handle(Time(0), Event::Received { from: id(0), message: Message::Welcome { table } });
    engine.poll(Time(0));
    engine
}

#[test]
fn f30_a_table_that_makes_no_sense_is_refused() {
    assert!(welcomed(|_| ()).is_active());
    type Change = fn(&mut Vec<Member>);
    let cases: [(Change, &str); 9] = [
        (Vec::clear, "lacks this node, a rank from host-2 (pid 102)"),
        (|table| drop(table.pop()), ""),
        (|table| table[2].node = id(9), "lacks this node"),
        (|table| table[3].node = id(1), "has rank 3, rank-3 (node "),
        (|table| table[3].introduction.name = "rank-0".into(), "has rank 3, rank-0 (node "),
        (|table| table[1].introduction.name.clear(), "names rank 1 in 0 bytes; expected 1 to 256"),
        (|table| table[1].introduction.name = "x".repeat(300), "names rank 1 in 300 bytes"),
        (|table| table.swap(0, 1), "gives rank-1 rank 1 and rank 1; expected rank 0 and rank 0"),
        (|table| table[3].role_rank = 7, "gives rank-3 rank 3 and rank 7; expected rank 3 and rank 3"),
    ];
    for (change, what) in cases {
        let engine = welcomed(change);
        if what.is_empty() {
            // How many there are is the coordinator's word.
            assert!(engine.is_active());
            continue;
        }
        let error = engine.failure().expect(what);
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        assert!(error.what().starts_with("the coordinator's table of members "), "{error}");
        assert!(error.what().contains(what), "{error}");
    }
    let others = |table: &mut Vec<Member>| table[2].introduction.role = Role::Server;
    assert!(welcomed(others).failure().is_some(), "this node is no server");
}

fn short() -> Event {
    let error = Error::new(ErrorKind::LimitExceeded, "this process has no file descriptor left").shortage();
    Event::FellShort { error }
}

#[test]
fn f21_who_lacks_something_accuses_itself_alone_and_all_learn_why() {
    for node in [0, 2, 3] {
        let (mut meshes, world) = Meshes::joined(4, 0);
        let other = (node + 1) % 4;
        let waits = meshes.barrier(other, world);
        let own = meshes.barrier(node, world);
        meshes.tell(node, short());
        meshes.settle();
        assert_eq!(meshes.nodes[node].failure().expect("it gave up").kind(), ErrorKind::LimitExceeded);
        assert!(meshes.error_of(own).contains("no file descriptor left"), "{}", meshes.error_of(own));
        meshes.kill(node);
        meshes.settle();
        let reason = "it has given up: this process has no file descriptor left";
        let text = meshes.error_of(waits);
        assert!(text.contains(reason) && text.contains(&format!("rank-{node}")), "{text}");
        for (rank, engine) in meshes.nodes.iter().enumerate().filter(|(rank, _)| *rank != node) {
            let deaths: Vec<_> = engine.deaths().iter().map(|death| (death.node, death.reason.as_str())).collect();
            assert_eq!(deaths, [(id(node), reason)], "as rank {rank} knows it");
        }
    }
}

/// The others may know sooner that a node has given up than its engine does, and tell it so: its operations end with
/// what it lacks, not with its own death.
#[test]
fn f21_who_lacks_something_reads_what_and_not_that_it_is_dead() {
    let (mut meshes, world) = Meshes::joined(4, 0);
    let own = meshes.barrier(3, world);
    let (epoch, reason) = (meshes.nodes[3].epoch(), "rank-3 looks dead: it has given up: it lacks memory");
    let error = Error::new(ErrorKind::Cancelled, reason);
    let message = Message::Broken { epoch, group: world, by_death: true, about: id(3), error, failed_from: None };
    meshes.tell(3, Event::Received { from: id(0), message });
    assert!(meshes.end_of(own).is_none(), "{}", meshes.error_of(own));
    meshes.tell(3, short());
    assert!(meshes.error_of(own).contains("no file descriptor left"), "{}", meshes.error_of(own));
}
