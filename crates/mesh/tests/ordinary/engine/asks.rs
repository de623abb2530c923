//! Who is silent, found out sooner than silence counts as death.

use super::meshes::{LIVENESS, Meshes, id};
use sheave_base::NodeId;
use sheave_mesh::engine::{Event, OperationId, Outcome};
use std::collections::BTreeSet;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(1);

fn ask(meshes: &mut Meshes, node: usize) -> OperationId {
    let operation = meshes.operation();
    let nodes = (0..meshes.nodes.len()).map(id).collect();
    let until = meshes.now.after(PATIENCE);
    meshes.tell(node, Event::Ask { operation, nodes, until });
    operation
}

fn silent(meshes: &Meshes, operation: OperationId) -> Option<BTreeSet<NodeId>> {
    match meshes.end_of(operation)? {
        Ok(Outcome::Silent(silent)) => Some(silent),
        other => panic!("{other:?}"),
    }
}

#[test]
fn whoever_lives_answers_at_once_and_whoever_asks_needs_no_new_links() {
    for count in 1..=5 {
        for seed in 0..50 {
            let (mut meshes, _) = Meshes::joined(count, seed);
            // Time passes without any talk.
            meshes.pass(Duration::from_millis(700));
            let asks: Vec<_> = (0..count as usize).map(|node| ask(&mut meshes, node)).collect();
            meshes.settle();
            assert!(asks.into_iter().all(|ask| silent(&meshes, ask) == Some(BTreeSet::new())));
            for (one, other) in (1..count as usize).flat_map(|one| (1..one).map(move |other| (one, other))) {
                assert!(!meshes.has_talked(one, other), "{one} and {other} have made a link");
            }
        }
    }
}

/// The first node coordinates, and the second one is the next.
#[test]
fn every_node_finds_the_one_that_is_silent_and_nobody_else() {
    for seed in 0..50 {
        for victim in 0..4 {
            let (mut meshes, _) = Meshes::joined(4, seed);
            for other in 0..4 {
                meshes.silence(victim, other);
                meshes.silence(other, victim);
            }
            let askers = || (0..4).filter(|node| *node != victim);
            let asks: Vec<_> = askers().map(|node| ask(&mut meshes, node)).collect();
            meshes.pass(PATIENCE - Duration::from_millis(250));
            assert!(asks.iter().all(|ask| silent(&meshes, *ask).is_none()), "they may answer yet");
            meshes.pass(Duration::from_millis(250));
            assert!(asks.iter().all(|ask| silent(&meshes, *ask) == Some(BTreeSet::from([id(victim)]))));
            assert!(askers().all(|node| meshes.nodes[node].num_dead() == 0), "nobody is dead for that");
            meshes.end_silence();
            meshes.pass(PATIENCE);
            let again: Vec<_> = (0..4).map(|node| ask(&mut meshes, node)).collect();
            meshes.settle();
            assert!(again.into_iter().all(|ask| silent(&meshes, ask) == Some(BTreeSet::new())));
        }
    }
}

#[test]
fn who_dies_or_leaves_meanwhile_is_not_silent_but_gone() {
    for seed in 0..50 {
        let (mut meshes, _) = Meshes::joined(5, seed);
        meshes.silence(3, 0);
        meshes.silence(4, 0);
        let asks: Vec<_> = [1, 2].map(|node| ask(&mut meshes, node)).into();
        meshes.settle();
        assert!(asks.iter().all(|ask| silent(&meshes, *ask).is_none()));
        meshes.end_silence();
        meshes.leave(4);
        meshes.kill(3);
        meshes.settle();
        meshes.pass(Duration::from_millis(250));
        assert!(asks.iter().all(|ask| silent(&meshes, *ask) == Some(BTreeSet::new())), "nobody is waited for");
    }
}

#[test]
fn asking_ends_when_the_asker_leaves_fails_or_gives_up() {
    let (mut meshes, _) = Meshes::joined(3, 1);
    meshes.silence(2, 0);
    meshes.silence(2, 1);
    let (cancelled, of_leaver) = (ask(&mut meshes, 1), ask(&mut meshes, 1));
    meshes.settle();
    meshes.tell(1, Event::Cancel { operation: cancelled });
    assert!(meshes.error_of(cancelled).contains("no longer waits"));
    meshes.leave(1);
    meshes.settle();
    assert!(meshes.error_of(of_leaver).contains("has left"));
    let late = ask(&mut meshes, 1);
    assert!(meshes.error_of(late).contains("has left"));
    // The first node is alone with a silent one: it has half of the votes and goes on.
    let of_survivor = ask(&mut meshes, 0);
    meshes.pass(LIVENESS.timeout * 2);
    assert_eq!(silent(&meshes, of_survivor), Some(BTreeSet::from([id(2)])));
}
