//! Groups that break, and who is named for it.

use super::meshes::{LIVENESS, Meshes, id};
use sheave_base::{Error, ErrorKind, clock::Time};
use sheave_mesh::engine::{Event, Outcome};
use std::time::Duration;

/// Told through the group's first member, which has no part in it.
#[test]
fn a_broken_group_names_who_died() {
    let (mut meshes, world) = Meshes::joined(4, 3);
    meshes.now = Time(0).after(Duration::from_millis(5));
    let barrier = meshes.barrier(1, world);
    meshes.settle();
    meshes.now = meshes.now.after(Duration::from_millis(12));
    meshes.kill(3);
    meshes.settle();
    let error = meshes.end_of(barrier).expect("it has ended").expect_err("it has failed");
    assert_eq!(error.kind(), ErrorKind::PeerLost);
    let peer = error.about().expect("the peer is named");
    assert_eq!(
        (peer.name.as_str(), peer.rank, peer.host.as_deref(), peer.pid),
        ("rank-3", Some(3), Some("host-3"), Some(103))
    );
    assert_eq!(error.group_name(), Some("world"));
    assert_eq!((error.at_sequence(), error.after()), (Some(0), Some(Duration::from_millis(12))));
    assert!(error.advice().is_some_and(|hint| hint.contains("shrink")));
    // And so does what is tried later.
    let text = {
        let late = meshes.barrier(2, world);
        meshes.error_of(late)
    };
    assert!(text.starts_with("barrier on group world: peer rank-3 (rank 3, host host-3, pid 103) was lost"), "{text}");
    assert!(text.contains("[sequence 0, after 0"), "{text}");
}

#[test]
fn a_cancelled_barrier_breaks_the_group_and_names_who_gave_up() {
    let (mut meshes, world) = Meshes::joined(3, 4);
    let barriers = [1, 2].map(|node| meshes.barrier(node, world));
    meshes.settle();
    meshes.tell(2, Event::Cancel { operation: barriers[1] });
    meshes.settle();
    let own = meshes.end_of(barriers[1]).expect("it has ended").expect_err("it was cancelled");
    assert_eq!((own.kind(), own.about()), (ErrorKind::Cancelled, None));
    let text = meshes.error_of(barriers[0]);
    assert!(
        text.starts_with("barrier on group world: cancelled, peer rank-2 (rank 2, host host-2, pid 102)"),
        "{text}"
    );
    assert!(text.contains("the caller no longer waits"), "{text}");
    let late = meshes.barrier(0, world);
    assert!(meshes.error_of(late).contains("rank-2"));
    // Nobody died, so there is nothing to shrink to.
    let shrink = meshes.shrink(0, world);
    assert_eq!(
        meshes.end_of(shrink).expect("it has ended").expect_err("nobody died").kind(),
        ErrorKind::InvalidArgument
    );
}

#[test]
fn a_deadline_names_who_is_missing() {
    let (mut meshes, world) = Meshes::joined(3, 5);
    let operation = meshes.operation();
    let deadline = Some(meshes.now.after(Duration::from_secs(2)));
    meshes.tell(0, Event::Barrier { operation, group: world, deadline });
    let other = meshes.barrier(1, world);
    meshes.pass(Duration::from_secs(3));
    let text = meshes.error_of(operation);
    assert!(text.contains("deadline exceeded") && text.contains("not entered: rank-2"), "{text}");
    let text = meshes.error_of(other);
    assert!(text.contains("cancelled, peer rank-0") && text.contains("not entered: rank-2"), "{text}");
}

#[test]
fn a_dropped_group_is_broken_for_all_and_forgotten_here() {
    let (mut meshes, world) = Meshes::joined(3, 6);
    let barriers = [1, 2].map(|node| meshes.barrier(node, world));
    meshes.settle();
    meshes.nodes[1].drop_group(world);
    meshes.poll(1);
    meshes.settle();
    let own = meshes.end_of(barriers[0]).expect("it has ended").expect_err("the group is gone");
    assert_eq!((own.kind(), own.group_name(), own.at_sequence()), (ErrorKind::Closed, Some("world"), Some(0)));
    assert!(meshes.error_of(barriers[1]).contains("peer rank-1"), "{}", meshes.error_of(barriers[1]));
    assert_eq!(meshes.nodes[1].nodes_of(world), None);
    let late = meshes.barrier(1, world);
    assert_eq!(meshes.end_of(late).expect("it has ended").expect_err("unknown").kind(), ErrorKind::NotFound);
}

#[test]
fn a_barrier_of_one_passes_at_once() {
    let (mut meshes, _) = Meshes::joined(2, 9);
    let alone = meshes.nodes[1].group("alone", &[id(1)]).expect("it lives");
    let barrier = meshes.barrier(1, alone);
    assert!(matches!(meshes.end_of(barrier), Some(Ok(Outcome::Passed))));
}

/// Whatever comes first, the death or the group, its survivors meet in the same smaller one.
#[test]
fn survivors_get_a_working_group_in_every_order() {
    let (mut meshes, _) = Meshes::joined(4, 11);
    let nodes = [id(1), id(2), id(3), id(0)];
    let early = meshes.nodes[0].group("some", &nodes).expect("all live");
    meshes.poll(0);
    meshes.kill(3);
    // While it is being agreed, as far as node 1 knows.
    let between = meshes.nodes[1].group("some", &nodes);
    meshes.poll(1);
    meshes.settle();
    let late = meshes.nodes[2].group("some", &nodes).expect_err("one is dead");
    assert_eq!(late.kind(), ErrorKind::PeerLost, "{late}");
    assert!(between.is_ok_and(|between| between == early));
    let shrinks = [0, 1, 2].map(|node| meshes.shrink(node, early));
    meshes.settle();
    let mut groups = shrinks.map(|shrink| match meshes.end_of(shrink) {
        Some(Ok(Outcome::Group(group))) => group,
        other => panic!("no group: {other:?}"),
    });
    groups.sort();
    assert_eq!(groups[0], groups[2], "all have the same");
    assert_eq!(
        meshes.nodes[2].nodes_of(groups[0]),
        Some(&nodes[..2].iter().chain(&nodes[3..]).copied().collect::<Vec<_>>()[..])
    );
    let barriers = [0, 1, 2].map(|node| meshes.barrier(node, groups[0]));
    meshes.settle();
    for barrier in barriers {
        assert!(matches!(meshes.end_of(barrier), Some(Ok(Outcome::Passed))));
    }
}

/// Only the first member counts, but every member whose deadline passes learns who is missing.
#[test]
fn a_deadline_at_any_member_names_who_is_missing() {
    for waiting in [1, 3] {
        let (mut meshes, world) = Meshes::joined(4, 13);
        let operation = meshes.operation();
        let deadline = Some(meshes.now.after(Duration::from_secs(2)));
        meshes.tell(waiting, Event::Barrier { operation, group: world, deadline });
        let first = meshes.barrier(0, world);
        meshes.pass(Duration::from_secs(3));
        let error = meshes.end_of(operation).expect("it has ended").expect_err("two are missing");
        assert_eq!((error.kind(), error.at_sequence()), (ErrorKind::DeadlineExceeded, Some(0)), "{error}");
        let names = if waiting == 1 { "not entered: rank-2, rank-3" } else { "not entered: rank-1, rank-2" };
        assert!(error.what().contains(names), "{error}");
        assert!(error.after().is_some_and(|after| after < Duration::from_millis(2600)), "{error}");
        assert!(meshes.error_of(first).contains(names), "{}", meshes.error_of(first));
        let late = meshes.barrier(waiting, world);
        assert!(meshes.error_of(late).contains(names), "{}", meshes.error_of(late));
    }
}

#[test]
fn a_first_member_that_does_not_answer_is_named_itself() {
    let (mut meshes, world) = Meshes::joined(3, 14);
    let operation = meshes.operation();
    let deadline = Some(meshes.now.after(Duration::from_millis(500)));
    meshes.tell(1, Event::Barrier { operation, group: world, deadline });
    meshes.settle();
    meshes.silence(0, 1);
    meshes.pass(Duration::from_millis(1100));
    let error = meshes.end_of(operation).expect("it has ended").expect_err("nobody else has entered");
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
    assert_eq!(error.about().map(|peer| peer.name.as_str()), Some("rank-0"), "{error}");
}

/// News that is passed on without its number would end operations of earlier numbers, which may still succeed.
#[test]
fn nobody_learns_that_operations_failed_without_from_which_number_on() {
    for seed in 0..50 {
        for breaker in 0..4 {
            let (mut meshes, world) = Meshes::joined(4, seed);
            meshes.nodes[breaker].break_because(world, Error::new(ErrorKind::Mismatch, "they disagree"), 3);
            meshes.poll(breaker);
            while meshes.step() {
                for (node, engine) in meshes.nodes.iter().enumerate() {
                    let number = engine.broken(world).map(|_| engine.operations_failed_from(world));
                    assert_eq!(number.unwrap_or(Some(3)), Some(3), "seed {seed}, {breaker} broke it, node {node}");
                }
            }
            assert!(meshes.nodes.iter().all(|engine| engine.broken(world).is_some()));
        }
    }
}

/// The link of a pair has ended for one of them only, or the other has made a new one before it looked.
#[test]
fn who_makes_a_new_link_to_one_that_suspects_it_is_told_so() {
    for seed in 0..50 {
        let (mut meshes, world) = Meshes::joined(4, seed);
        let barriers: Vec<_> = (0..3).map(|node| meshes.barrier(node, world)).collect();
        meshes.settle();
        // Node 0 has not seen it end.
        meshes.tell(3, Event::LinkLost { peer: id(0), reason: "the link was cut".into() });
        meshes.settle();
        meshes.pass(LIVENESS.beat * 2);
        for barrier in barriers {
            let error = meshes.error_of(barrier);
            assert!(error.contains("the link was cut"), "seed {seed}: {error}");
        }
        let members: Vec<_> = meshes.nodes[1].living().collect();
        assert_eq!(members.len(), 3, "seed {seed}: one of the pair goes");
    }
}
