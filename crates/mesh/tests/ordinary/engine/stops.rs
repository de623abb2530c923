//! Members that stand still for longer than the others wait, and go on then.

use super::meshes::{LIVENESS, Meshes, id};
use sheave_base::ErrorKind;
use sheave_mesh::engine::Event;

/// Stops some of five, lets the others go on for a while, and has some of these suspect all that were stopped, whose
/// links end for that. All go on then.
fn stopped(seed: u64, still: &[usize], accusers: &[usize]) -> Meshes {
    let (mut meshes, _) = Meshes::joined(5, seed);
    meshes.pass(LIVENESS.beat);
    meshes.stopped.extend(still);
    meshes.pass(LIVENESS.timeout * 3 / 5);
    for (one, other) in accusers.iter().flat_map(|one| still.iter().map(move |other| (*one, *other))) {
        meshes.tell(one, Event::LinkLost { peer: id(other), reason: "no sign of life".into() });
    }
    meshes.settle();
    meshes.stopped.clear();
    for (one, other) in accusers.iter().flat_map(|one| still.iter().map(move |other| (*one, *other))) {
        meshes.tell(other, Event::HeldDead { peer: id(one), reason: "this process was silent".into() });
    }
    meshes.settle();
    meshes.pass(LIVENESS.beat * 2);
    meshes
}

fn assert_goes_on(meshes: &Meshes, members: &[usize]) {
    let expected: Vec<_> = members.iter().copied().map(id).collect();
    for node in members {
        let engine = &meshes.nodes[*node];
        assert!(engine.is_active(), "node {node}: {:?}", engine.failure());
        assert_eq!(engine.living().collect::<Vec<_>>(), expected, "as node {node} sees it");
    }
}

/// With two that have noticed and two that have not, it would have a majority against those who are right.
#[test]
fn a_coordinator_that_was_stopped_takes_nobody_out_for_having_noticed() {
    for seed in 0..100 {
        for accusers in [&[2, 4][..], &[1], &[3], &[1, 2], &[1, 2, 3, 4]] {
            let meshes = stopped(seed, &[0], accusers);
            assert_goes_on(&meshes, &[1, 2, 3, 4]);
            let error = meshes.nodes[0].failure().expect("the others went on");
            let is_told = matches!(error.kind(), ErrorKind::DeclaredDead | ErrorKind::PeerLost);
            assert!(is_told, "{error}");
        }
    }
}

#[test]
fn any_other_member_that_was_stopped_is_taken_out_alone() {
    for seed in 0..100 {
        for accusers in [&[0][..], &[2], &[4], &[2, 4]] {
            assert_goes_on(&stopped(seed, &[3], accusers), &[0, 1, 2, 4]);
        }
    }
}

/// Those who have noticed are too few to go on, so they are who goes.
#[test]
fn a_majority_that_was_stopped_together_goes_on() {
    for seed in 0..100 {
        assert_goes_on(&stopped(seed, &[0, 1, 2], &[3, 4]), &[0, 1, 2]);
    }
}

/// A member that was not stopped itself suspects those who hold it for dead, as ever.
#[test]
fn a_link_that_breaks_between_two_that_go_on_costs_one_of_them() {
    let (mut meshes, _) = Meshes::joined(5, 1);
    meshes.pass(LIVENESS.timeout);
    meshes.tell(3, Event::LinkLost { peer: id(0), reason: "no sign of life".into() });
    meshes.tell(0, Event::HeldDead { peer: id(3), reason: "this process was silent".into() });
    meshes.settle();
    assert_goes_on(&meshes, &[0, 1, 2, 4]);
}
