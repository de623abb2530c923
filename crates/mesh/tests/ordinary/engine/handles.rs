//! Groups whose handles are dropped: all members forget them together, or none does.

use super::meshes::{Meshes, id};
use sheave_base::NodeId;
use sheave_base::clock::SeededEntropy;
use sheave_mesh::engine::{Event, GroupId, OperationId};
use std::time::Duration;

const NODES: usize = 3;

/// Makes a group on one node and holds it; an operation to wait for if the node is not sure of it.
fn hold(meshes: &mut Meshes, node: usize, label: &str) -> (GroupId, Option<OperationId>) {
    let nodes: Vec<NodeId> = (0..NODES).map(id).collect();
    let group = meshes.nodes[node].group(label, &nodes).expect("all live");
    if meshes.nodes[node].hold(group) {
        return (group, None);
    }
    meshes.poll(node);
    let operation = meshes.operation();
    meshes.tell(node, Event::Confirm { operation, group });
    (group, Some(operation))
}

fn release(meshes: &mut Meshes, node: usize, group: GroupId) {
    meshes.nodes[node].release(group);
    meshes.poll(node);
}

fn know(meshes: &Meshes, group: GroupId) -> [bool; NODES] {
    [0, 1, 2].map(|node| meshes.nodes[node].nodes_of(group).is_some())
}

/// A group that all hold and in which all have met once.
fn met(meshes: &mut Meshes) -> GroupId {
    let group = [0, 1, 2].map(|node| hold(meshes, node, "some").0)[0];
    let barriers = [0, 1, 2].map(|node| meshes.barrier(node, group));
    meshes.settle();
    assert!(barriers.iter().all(|barrier| matches!(meshes.end_of(*barrier), Some(Ok(_)))));
    group
}

#[test]
fn f12_what_all_have_dropped_is_forgotten_by_all() {
    let (mut meshes, _) = Meshes::joined(3, 1);
    let group = met(&mut meshes);
    for node in 0..NODES {
        release(&mut meshes, node, group);
        meshes.pass(Duration::from_secs(3));
        assert_eq!(know(&meshes, group), [node < 2; NODES], "after {node}");
    }
    assert_eq!(meshes.nodes.iter_mut().map(|node| node.take_forgotten().len()).sum::<usize>(), NODES);
    // Who makes it again begins anew.
    assert_eq!(met(&mut meshes), group);
}

#[test]
fn f12_what_one_still_holds_goes_on_for_all() {
    for holder in 0..NODES {
        let (mut meshes, _) = Meshes::joined(3, 2);
        let group = met(&mut meshes);
        let others: Vec<usize> = (0..NODES).filter(|node| *node != holder).collect();
        others.iter().for_each(|node| release(&mut meshes, *node, group));
        meshes.pass(Duration::from_secs(5));
        assert_eq!(know(&meshes, group), [true; NODES]);
        let first = meshes.barrier(holder, group);
        meshes.settle();
        assert!(meshes.end_of(first).is_none(), "the others have not entered");
        for node in others {
            let (again, unsure) = hold(&mut meshes, node, "some");
            assert_eq!((again, unsure.is_some()), (group, node != 0), "the first member need not ask");
            meshes.settle();
            assert!(unsure.is_none_or(|operation| matches!(meshes.end_of(operation), Some(Ok(_)))));
            meshes.barrier(node, group);
        }
        meshes.settle();
        assert!(matches!(meshes.end_of(first), Some(Ok(_))), "{:?}", meshes.end_of(first));
    }
}

#[test]
fn f12_groups_that_were_never_used_or_have_lost_a_member_are_forgotten_alone() {
    let (mut meshes, _) = Meshes::joined(3, 3);
    let (unused, _) = hold(&mut meshes, 1, "unused");
    release(&mut meshes, 1, unused);
    assert!(meshes.nodes[1].nodes_of(unused).is_none());
    let group = met(&mut meshes);
    meshes.kill(2);
    meshes.settle();
    for node in 0..2 {
        release(&mut meshes, node, group);
        assert!(meshes.nodes[node].nodes_of(group).is_none());
    }
}

/// A user of the group: makes it, meets the others, and lets it go or not, again and again.
#[derive(Default)]
struct User {
    round: u64,
    holds: bool,
    confirms: Option<OperationId>,
    meets: Option<OperationId>,
}

const ROUNDS: u64 = 12;

fn act(meshes: &mut Meshes, users: &mut [User], node: usize, dice: &mut SeededEntropy) {
    let group = sheave_mesh::engine::group_id("some", &(0..NODES).map(id).collect::<Vec<_>>());
    let least = users.iter().map(|user| user.round + u64::from(user.meets.is_some())).min().unwrap_or_default();
    let user = &mut users[node];
    if let Some(operation) = user.confirms {
        user.confirms = user.confirms.filter(|_| meshes.end_of(operation).is_none());
    } else if let Some(operation) = user.meets {
        let Some(end) = meshes.end_of(operation) else { return };
        assert!(end.is_ok(), "{end:?}");
        assert!(least > user.round, "a barrier ended before all had entered it");
        user.meets = None;
        user.round += 1;
        if dice.below(4) > 0 {
            user.holds = false;
            release(meshes, node, group);
        }
    } else if !user.holds && user.round < ROUNDS {
        user.holds = true;
        user.confirms = hold(meshes, node, "some").1;
    } else if user.round < ROUNDS {
        user.meets = Some(meshes.barrier(node, group));
    } else if std::mem::take(&mut user.holds) {
        release(meshes, node, group);
    }
}

#[test]
fn f12_members_that_come_and_go_in_any_order_always_meet() {
    for seed in 0..300 {
        let (mut meshes, _) = Meshes::joined(3, seed);
        let mut dice = SeededEntropy::new(seed);
        let mut users: [User; NODES] = Default::default();
        let mut steps = 0;
        while users.iter().any(|user| user.round < ROUNDS || user.holds) {
            steps += 1;
            assert!(steps < 100_000, "seed {seed} never ends");
            match dice.below(40) {
                0 => meshes.pass(Duration::from_millis(250 + dice.below(3000))),
                1..15 => drop(meshes.step()),
                _ => act(&mut meshes, &mut users, dice.below(NODES as u64) as usize, &mut dice),
            }
        }
        meshes.pass(Duration::from_secs(5));
        let group = sheave_mesh::engine::group_id("some", &(0..NODES).map(id).collect::<Vec<_>>());
        assert_eq!(know(&meshes, group), [false; NODES], "seed {seed}");
    }
}

/// Members that wait for each other are told, whoever they are; those that are only late are not.
#[test]
fn f55_members_of_two_orders_are_told_and_late_ones_are_not() {
    let (mut meshes, world) = Meshes::joined(3, 4);
    let late = meshes.barrier(2, world);
    meshes.pass(Duration::from_secs(30));
    assert!(meshes.end_of(late).is_none());
    let ids = |order: [usize; 3]| order.map(id).to_vec();
    let one = meshes.nodes[1].group("twisted", &ids([1, 2, 0])).expect("all live");
    let other = meshes.nodes[2].group("twisted", &ids([2, 1, 0])).expect("all live");
    let barriers = [meshes.barrier(1, one), meshes.barrier(2, other)];
    meshes.pass(Duration::from_secs(3));
    for barrier in barriers {
        let text = meshes.error_of(barrier);
        assert!(text.contains("group twisted has its members in another order"), "{text}");
        assert!(text.contains("rank-1") && text.contains("rank-2"), "{text}");
    }
    assert!(meshes.end_of(late).is_none(), "the world is whole");
}

/// The handles of a group that was dropped by force are not those of one that is made in its place.
#[test]
fn f12_handles_outlive_a_group_that_was_dropped_by_force() {
    let (mut meshes, _) = Meshes::joined(3, 5);
    let (group, _) = hold(&mut meshes, 0, "forced");
    meshes.nodes[0].drop_group(group);
    meshes.poll(0);
    assert!(meshes.nodes[0].nodes_of(group).is_none());
    hold(&mut meshes, 0, "forced");
    release(&mut meshes, 0, group);
    assert!(meshes.nodes[0].nodes_of(group).is_some(), "it has a handle");
    release(&mut meshes, 0, group);
    assert!(meshes.nodes[0].nodes_of(group).is_none());
}

/// Who is about to leave gives back memory, and still meets the others where it left off.
#[test]
fn f12_a_node_that_is_about_to_leave_keeps_its_numbers() {
    let (mut meshes, _) = Meshes::joined(3, 6);
    let group = met(&mut meshes);
    release(&mut meshes, 1, group);
    meshes.nodes[1].empty_idle_groups();
    assert_eq!(meshes.nodes[1].take_forgotten().len(), 1);
    hold(&mut meshes, 1, "some");
    let barrier = meshes.barrier(1, group);
    meshes.settle();
    assert!(meshes.end_of(barrier).is_none(), "the others have not entered");
}
