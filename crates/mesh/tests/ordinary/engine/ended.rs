//! Members that go on without a majority, because they know of all others that their processes have ended.

use super::meshes::{Meshes, id};
use sheave_mesh::engine::{Event, Outcome};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn members(meshes: &Meshes, node: usize) -> Vec<usize> {
    meshes.nodes[node].living().map(|node| (node.0 - 100) as usize).collect()
}

#[test]
fn f23_a_parent_goes_on_when_its_workers_die_all_at_once() {
    for seed in 0..100 {
        let (mut meshes, world) = Meshes::joined(5, seed);
        let barrier = meshes.barrier(0, world);
        meshes.sees_ends = true;
        (1..5).for_each(|worker| meshes.kill(worker));
        meshes.settle();
        meshes.pass(SECOND);
        assert!(meshes.nodes[0].failure().is_none(), "{:?}", meshes.nodes[0].failure());
        assert!(meshes.error_of(barrier).contains("looks dead"), "{}", meshes.error_of(barrier));
        let shrink = meshes.shrink(0, world);
        assert!(matches!(meshes.end_of(shrink), Some(Ok(Outcome::Group(_)))), "{:?}", meshes.end_of(shrink));
        assert_eq!(members(&meshes, 0), [0]);
        assert_eq!(meshes.nodes[0].num_dead(), 4);
    }
}

/// A system that is busy may say that they have ended in the moment when the patience with their silence is over, and
/// it says it of one after the other.
#[test]
fn f23_ends_that_are_told_with_the_last_moment_of_patience_count() {
    let (mut meshes, world) = Meshes::joined(5, 1);
    (1..5).for_each(|worker| meshes.kill(worker));
    // The links end, and nobody looks at processes yet.
    meshes.settle();
    assert!(meshes.nodes[0].suspects_that_may_live().len() == 4 && meshes.nodes[0].failure().is_none());
    meshes.now = meshes.now.after(SECOND);
    meshes.sees_ends = true;
    meshes.pass(SECOND);
    assert!(meshes.nodes[0].failure().is_none(), "{:?}", meshes.nodes[0].failure());
    let shrink = meshes.shrink(0, world);
    assert!(matches!(meshes.end_of(shrink), Some(Ok(Outcome::Group(_)))), "{:?}", meshes.end_of(shrink));
    assert_eq!(members(&meshes, 0), [0]);
}

#[test]
fn f23_workers_that_fail_with_a_reason_need_no_witness() {
    let (mut meshes, world) = Meshes::joined(4, 1);
    for worker in 1..4 {
        meshes.tell(worker, Event::Fail { reason: "the disk is full".into() });
    }
    meshes.settle();
    meshes.pass(SECOND);
    assert!(meshes.nodes[0].failure().is_none(), "{:?}", meshes.nodes[0].failure());
    assert_eq!(members(&meshes, 0), [0]);
    let barrier = meshes.barrier(0, world);
    assert!(meshes.error_of(barrier).contains("failed: the disk is full"), "{}", meshes.error_of(barrier));
}

/// What the leavers know of the decision they take with them, and those whom they have told die too.
#[test]
fn f23_the_rest_goes_on_when_coordinator_and_successor_die_in_a_mass_leave() {
    for seed in 0..100 {
        let (mut meshes, _) = Meshes::joined(8, seed);
        meshes.sees_ends = true;
        let leaves: Vec<_> = (4..8).map(|node| meshes.leave(node)).collect();
        // One after the other: the wishes, the proposal, the votes; and the decision, but not to those who stay.
        (4..8).for_each(|node| meshes.deliver(node, 0));
        (1..8).for_each(|node| meshes.deliver(0, node));
        (1..8).for_each(|node| meshes.deliver(node, 0));
        (4..8).for_each(|node| meshes.deliver(0, node));
        let has_left = |meshes: &Meshes, leave| matches!(meshes.end_of(leave), Some(Ok(Outcome::Left)));
        // The first wish is decided before the others come, and they together.
        (4..8).for_each(|node| meshes.deliver(node, 0));
        (1..8).filter(|node| !(2..4).contains(node)).for_each(|node| meshes.deliver(0, node));
        for node in [2, 3] {
            meshes.lose(0, node);
        }
        meshes.kill(0);
        meshes.kill(1);
        meshes.settle();
        meshes.pass(SECOND * 2);
        for node in [2, 3] {
            assert!(meshes.nodes[node].failure().is_none(), "{:?}", meshes.nodes[node].failure());
        }
        assert_eq!(members(&meshes, 2), members(&meshes, 3));
        assert!(leaves.iter().any(|leave| has_left(&meshes, *leave)), "nobody has left: this tests nothing");
        let rest = meshes.group("rest", &[2, 3]);
        let barriers = [meshes.barrier(2, rest), meshes.barrier(3, rest)];
        meshes.settle();
        for barrier in barriers {
            assert!(matches!(meshes.end_of(barrier), Some(Ok(Outcome::Passed))), "{:?}", meshes.end_of(barrier));
        }
    }
}

/// Two of five see the other three end, and the one that cannot be reached does not.
#[test]
fn a_member_that_may_live_counts() {
    let (mut meshes, _) = Meshes::joined(5, 1);
    meshes.sees_ends = true;
    for other in 0..4 {
        meshes.silence(other, 4);
        meshes.silence(4, other);
    }
    (0..3).for_each(|node| meshes.kill(node));
    meshes.settle();
    // Neither the one nor the other, as long as both live: each may be the one that goes on.
    for _ in 0..40 {
        meshes.pass(SECOND);
    }
    for node in [3, 4] {
        let error = meshes.nodes[node].failure().expect("it is cut off").to_string();
        assert!(error.contains("cannot reach the majority of the 5 members of epoch 1"), "{error}");
        assert!(error.contains("what has not seen their processes end cannot know"), "{error}");
    }
}

/// The others hold it for dead, end their part and go. When it comes to itself it must not begin where it was.
#[test]
fn a_node_that_was_stopped_does_not_go_on_after_the_others() {
    let (mut meshes, _) = Meshes::joined(3, 1);
    for node in 0..2 {
        meshes.tell(node, Event::LinkLost { peer: id(2), reason: "it was silent".into() });
    }
    (0..2).for_each(|node| meshes.deliver(1 - node, node));
    for _ in 0..4 {
        meshes.deliver(0, 1);
        meshes.deliver(1, 0);
    }
    assert_eq!(members(&meshes, 0), [0, 1]);
    for node in 0..2 {
        meshes.kill(node);
        meshes.lose(node, 2);
    }
    meshes.now = meshes.now.after(SECOND * 20);
    meshes.sees_ends = true;
    meshes.poll(2);
    for node in 0..2 {
        meshes.tell(2, Event::LinkLost { peer: id(node), reason: "nobody listens there".into() });
    }
    meshes.pass(SECOND);
    assert!(meshes.nodes[2].failure().is_some(), "it goes on with {:?}", members(&meshes, 2));
}
