//! Orderly leaves, and signs of life.

use super::meshes::{LIVENESS, Meshes, id};
use sheave_base::{Error, ErrorKind};
use sheave_mesh::engine::{Effect, Event, FIRST_EPOCH, Message, Outcome};
use std::time::Duration;

fn deaths_declared(meshes: &Meshes) -> usize {
    meshes.asked.iter().filter(|(_, effect)| matches!(effect, Effect::DeclareDead { .. } | Effect::Failed(_))).count()
}

/// The usual end of a job. No time passes, so nobody waits for a beat.
#[test]
fn everybody_leaves_at_once_after_a_barrier() {
    for count in 1..=8 {
        for seed in 0..200 {
            let (mut meshes, world) = Meshes::joined(count, seed);
            if seed % 2 == 0 {
                meshes.link_all();
            }
            let nodes = 0..count as usize;
            let barriers: Vec<_> = nodes.clone().map(|node| meshes.barrier(node, world)).collect();
            let mut leaves = vec![None; barriers.len()];
            // Each leaves as soon as its own barrier is passed, while others still wait for their release.
            while leaves.contains(&None) {
                meshes.step();
                for node in nodes.clone().filter(|node| leaves[*node].is_none()).collect::<Vec<_>>() {
                    match meshes.end_of(barriers[node]) {
                        Some(Ok(Outcome::Passed)) => leaves[node] = Some(meshes.leave(node)),
                        Some(end) => panic!("{count} nodes, seed {seed}: barrier of {node}: {end:?}"),
                        None => {}
                    }
                }
            }
            meshes.settle();
            for (node, leave) in leaves.into_iter().flatten().enumerate() {
                let end = meshes.end_of(leave);
                assert!(matches!(end, Some(Ok(Outcome::Left))), "{count} nodes, seed {seed}: {node}: {end:?}");
                assert!(meshes.nodes[node].has_left() && meshes.nodes[node].failure().is_none());
                assert_eq!(meshes.nodes[node].num_dead(), 0);
            }
            assert_eq!(deaths_declared(&meshes), 0, "{count} nodes, seed {seed}");
        }
    }
}

#[test]
fn the_coordinator_leaves_first_and_the_next_takes_over() {
    for seed in 0..50 {
        let (mut meshes, _) = Meshes::joined(4, seed);
        let leave = meshes.leave(0);
        meshes.settle();
        assert!(matches!(meshes.end_of(leave), Some(Ok(Outcome::Left))));
        for node in 1..4 {
            assert_eq!(meshes.nodes[node].coordinator(), Some(id(1)));
            assert_eq!((meshes.nodes[node].num_dead(), meshes.nodes[node].num_left()), (0, 1));
            assert!(meshes.asked.iter().any(|(who, effect)| {
                *who == node && matches!(effect, Effect::Departed { node } if *node == id(0))
            }));
        }
        let rest = meshes.group("rest", &[1, 2, 3]);
        let barriers: Vec<_> = (1..4).map(|node| meshes.barrier(node, rest)).collect();
        let leaves: Vec<_> = (1..4).map(|node| meshes.leave(node)).collect();
        meshes.settle();
        assert!(leaves.into_iter().all(|leave| matches!(meshes.end_of(leave), Some(Ok(Outcome::Left)))));
        assert!(barriers.into_iter().all(|barrier| meshes.end_of(barrier).is_some()));
        assert_eq!(deaths_declared(&meshes), 0);
    }
}

#[test]
fn after_a_leave_everything_ends_with_closed() {
    let (mut meshes, world) = Meshes::joined(3, 1);
    let pending = meshes.barrier(2, world);
    let (leave, again) = (meshes.leave(2), meshes.leave(2));
    let refused = meshes.barrier(2, world);
    assert!(meshes.error_of(refused).contains("about to leave"));
    meshes.settle();
    assert!(matches!(meshes.end_of(leave), Some(Ok(Outcome::Left))));
    assert!(matches!(meshes.end_of(again), Some(Ok(Outcome::Left))));
    let late = [meshes.barrier(2, world), meshes.shrink(2, world), meshes.leave(2), pending];
    for operation in late {
        let error = meshes.end_of(operation).expect("it has ended").expect_err("it has failed");
        assert_eq!((error.kind(), error.what()), (ErrorKind::Closed, "this node has left the mesh"));
    }
    assert_eq!(meshes.nodes[2].group("new", &[id(2)]).expect_err("it has left").kind(), ErrorKind::Closed);
    // Whoever does not know yet is told, and nothing else.
    let beat = Message::Beat { epoch: FIRST_EPOCH, answer: false };
    meshes.nodes[2].handle(meshes.now, Event::Received { from: id(1), message: beat });
    let effects = meshes.nodes[2].poll(meshes.now);
    assert!(matches!(effects.as_slice(), [Effect::Send { message: Message::Commit { .. }, .. }]), "{effects:?}");
}

#[test]
fn partners_of_a_leaver_learn_that_it_left() {
    for (first, seed) in [(0, 0), (0, 1), (1, 2), (1, 3), (2, 4), (2, 5)] {
        let (mut meshes, _) = Meshes::joined(3, seed);
        meshes.has_lingerers = seed % 2 == 0;
        let group = meshes.group("three", &[first, (first + 1) % 3, (first + 2) % 3]);
        let waiting = [meshes.barrier(0, group), meshes.barrier(1, group)];
        meshes.settle();
        let _ = meshes.leave(2);
        meshes.settle();
        for barrier in waiting {
            let text = meshes.error_of(barrier);
            let start = "barrier on group three: peer rank-2 (rank 2, host host-2, pid 102) was lost: rank-2 left";
            assert!(text.starts_with(start) && text.contains("[sequence 0, after"), "{text}");
        }
        let shrinks = [meshes.shrink(0, group), meshes.shrink(1, group)];
        let ends = shrinks.map(|shrink| meshes.end_of(shrink));
        let [Some(Ok(Outcome::Group(one))), Some(Ok(Outcome::Group(other)))] = ends else { panic!("{ends:?}") };
        assert_eq!(one, other);
        let barriers = [meshes.barrier(0, one), meshes.barrier(1, one)];
        meshes.settle();
        assert!(barriers.iter().all(|barrier| matches!(meshes.end_of(*barrier), Some(Ok(Outcome::Passed)))));
    }
}

/// A group that its first member never made: nobody there can know that the leave breaks it.
#[test]
fn who_breaks_a_group_and_leaves_is_known_for_why_it_broke() {
    for seed in 0..200 {
        let (mut meshes, world) = Meshes::joined(4, seed);
        meshes.link_all();
        let error = Error::new(ErrorKind::Mismatch, "they disagree");
        meshes.nodes[2].break_because(world, error, 0);
        meshes.leave(2);
        meshes.settle();
        for node in [0, 1, 3] {
            let broken = meshes.nodes[node].broken(world).expect("it is broken").to_string();
            assert!(broken.contains("they disagree"), "seed {seed}, node {node}: {broken}");
        }
    }
}

/// One that fails because it has lost another is not what the rest may name, whichever news comes first.
#[test]
fn f52_who_fails_for_a_loss_is_not_named_for_it() {
    for seed in 0..200 {
        let (mut meshes, world) = Meshes::joined(4, seed);
        meshes.link_all();
        meshes.kill(3);
        meshes.deliver(3, 1);
        meshes.tell(1, Event::Fail { reason: "its mesh was dropped".into() });
        meshes.kill(1);
        // Node 2 hears of it from node 1 alone.
        meshes.deliver(1, 2);
        let broken = meshes.nodes[2].broken(world).expect("it is broken").to_string();
        assert!(broken.contains("rank-3"), "{broken}");
        meshes.settle();
        for node in [0, 2] {
            let broken = meshes.nodes[node].broken(world).expect("it is broken").to_string();
            assert!(broken.contains("rank-3"), "seed {seed}, node {node}: {broken}");
        }
    }
}

/// The lost one is read of by those too who share no group with it, through others that failed for it.
#[test]
fn f52_who_fails_for_a_loss_says_whom_it_had_lost() {
    for seed in 0..50 {
        let (mut meshes, _) = Meshes::joined(5, seed);
        meshes.link_all();
        meshes.kill(4);
        meshes.deliver(4, 3);
        for (failing, next) in [(3, 2), (2, 1)] {
            meshes.tell(failing, Event::Fail { reason: "its mesh was dropped".into() });
            meshes.kill(failing);
            meshes.deliver(failing, next);
        }
        let death = meshes.nodes[1].why_lost(id(2)).expect("it failed").to_string();
        assert!(death.contains("rank-2 failed: its mesh was dropped, after it had lost rank-4"), "{death}");
        assert!(!death.contains("rank-3"), "it failed for the loss itself: {death}");
    }
}

/// A failure names a lost member that it was only told of, whose group it has dropped since.
#[test]
fn f52_who_fails_for_a_loss_that_it_was_told_of_says_so() {
    let (mut meshes, world) = Meshes::joined(4, 1);
    meshes.link_all();
    meshes.kill(3);
    meshes.deliver(3, 0);
    meshes.deliver(0, 2);
    meshes.nodes[2].drop_group(world);
    meshes.tell(2, Event::Fail { reason: "its mesh was dropped".into() });
    meshes.deliver(2, 1);
    let death = meshes.nodes[1].why_lost(id(2)).expect("it failed").to_string();
    assert!(death.contains("its mesh was dropped, after it had lost rank-3"), "{death}");
}

#[test]
fn a_leave_ends_barriers_of_a_group_that_its_first_member_has_not_made() {
    let (mut meshes, _) = Meshes::joined(3, 7);
    let ids = [id(0), id(1), id(2)];
    let group = meshes.nodes[1].group("unmade", &ids).expect("all live");
    let barrier = meshes.barrier(1, group);
    meshes.settle();
    let _ = meshes.leave(2);
    meshes.settle();
    assert!(meshes.error_of(barrier).contains("rank-2"), "{}", meshes.error_of(barrier));
}

#[test]
fn the_coordinator_dies_in_the_middle_of_a_leave() {
    for deliveries in 0..40 {
        let (mut meshes, _) = Meshes::joined(5, deliveries);
        let leaves = [meshes.leave(3), meshes.leave(4)];
        for _ in 0..deliveries {
            meshes.step();
        }
        meshes.kill(0);
        meshes.settle();
        meshes.pass(LIVENESS.beat * 2);
        for leave in leaves {
            let end = meshes.end_of(leave);
            assert!(matches!(end, Some(Ok(Outcome::Left))), "after {deliveries} deliveries: {end:?}");
        }
        for node in 1..3 {
            let engine = &meshes.nodes[node];
            assert_eq!((engine.num_dead(), engine.num_left()), (1, 2), "after {deliveries} deliveries");
        }
    }
}

/// The leavers know the decision and go; nobody else has heard of it when the coordinator dies.
#[test]
fn leavers_pass_on_the_decision_that_lets_them_go() {
    let (mut meshes, _) = Meshes::joined(5, 0);
    meshes.silence(0, 1);
    meshes.silence(0, 2);
    let leaves = [meshes.leave(3), meshes.leave(4)];
    meshes.settle();
    assert!(leaves.into_iter().all(|leave| matches!(meshes.end_of(leave), Some(Ok(Outcome::Left)))));
    meshes.end_silence();
    meshes.kill(0);
    meshes.settle();
    meshes.pass(LIVENESS.beat * 2);
    for node in 1..3 {
        let engine = &meshes.nodes[node];
        assert!(engine.is_active(), "{:?}", engine.failure());
        assert_eq!((engine.num_dead(), engine.num_left()), (1, 2));
    }
}

/// The coordinator goes alone, and its successor takes all others out at once, whose wishes it was told.
#[test]
fn wishes_outlive_the_coordinator_that_heard_them() {
    for seed in 0..20 {
        let (mut meshes, _) = Meshes::joined(6, seed);
        let leaves: Vec<_> = (0..6).map(|node| meshes.leave(node)).collect();
        (1..6).for_each(|node| meshes.deliver(node, 0));
        meshes.settle();
        assert!(leaves.into_iter().all(|leave| matches!(meshes.end_of(leave), Some(Ok(Outcome::Left)))));
        let last = meshes.nodes.iter().map(|node| node.epoch().0).max();
        assert_eq!(last, Some(FIRST_EPOCH.0 + 2), "seed {seed}");
    }
}

#[test]
fn a_leaver_without_an_answer_fails_in_the_end() {
    let (mut meshes, _) = Meshes::joined(2, 0);
    meshes.silence(0, 1);
    meshes.silence(1, 0);
    let leave = meshes.leave(1);
    meshes.pass(LIVENESS.timeout * 5 + LIVENESS.beat);
    assert!(meshes.error_of(leave).starts_with("leave: peer rank-0"), "{}", meshes.error_of(leave));
    assert!(meshes.nodes[1].failure().is_some());
}

/// The coordinator lives and never decides.
#[test]
fn a_leaver_waits_for_a_decision_as_long_as_for_one_about_a_suspect() {
    let (mut meshes, _) = Meshes::joined(2, 0);
    meshes.silence(1, 0);
    let leave = meshes.leave(1);
    for second in 0..25 {
        assert!(meshes.end_of(leave).is_none(), "it gave up after {second} s");
        meshes.tell(0, Event::Alive { peer: id(1) });
        meshes.tell(1, Event::Alive { peer: id(0) });
        meshes.pass(Duration::from_secs(1));
    }
    let text = "leave: deadline exceeded: the others did not decide that this node may leave [after 25.0 s]";
    assert_eq!(meshes.error_of(leave), text);
    assert!(meshes.nodes[1].failure().is_some());
}

#[test]
fn a_leaver_that_is_suspected_first_is_dead() {
    let (mut meshes, _) = Meshes::joined(3, 0);
    let leave = meshes.leave(2);
    meshes.kill(2);
    meshes.tell(0, Event::LinkLost { peer: id(2), reason: "the process ended".into() });
    meshes.settle();
    assert_eq!(meshes.end_of(leave).map(|_| ()), None);
    assert_eq!((meshes.nodes[0].num_dead(), meshes.nodes[0].num_left()), (1, 0));
    assert_eq!((meshes.nodes[1].num_dead(), meshes.nodes[1].num_left()), (1, 0));
}

#[test]
fn a_sign_of_life_on_the_link_is_as_good_as_a_message() {
    let (mut meshes, _) = Meshes::joined(2, 0);
    meshes.silence(1, 0);
    let step = Duration::from_secs(1);
    for _ in 0..20 {
        meshes.tell(0, Event::Alive { peer: id(1) });
        meshes.tell(1, Event::Alive { peer: id(0) });
        meshes.pass(step);
    }
    assert_eq!(meshes.nodes[0].num_dead(), 0);
    meshes.pass(LIVENESS.timeout + step);
    assert_eq!(meshes.nodes[0].num_dead(), 1);
}

/// A leave is told before the group that it broke, by the group's first member: the decision may still be on its way
/// from the coordinator, and without it the leave would be held for a death.
#[test]
fn a_broken_group_and_the_leave_that_broke_it_come_together() {
    let (mut meshes, _) = Meshes::joined(4, 3);
    let group = meshes.group("apart", &[1, 2, 3]);
    meshes.link_all();
    let _ = meshes.leave(3);
    // Node 0 and another one are enough to decide it.
    for (from, to) in [(3, 0), (0, 1), (1, 0), (0, 1), (1, 2)] {
        meshes.deliver(from, to);
    }
    assert!(meshes.nodes[2].broken(group).is_some(), "node 1 has told it");
    assert!(meshes.nodes[2].has_left_in_order(id(3)), "and why");
}

/// The reason of a failure stays short, however many are lost.
#[test]
fn a_failure_names_few_of_many_lost_members() {
    let (mut meshes, _) = Meshes::joined(20, 1);
    meshes.link_all();
    for lost in 2..9 {
        meshes.kill(lost);
        meshes.deliver(lost, 1);
    }
    meshes.tell(1, Event::Fail { reason: "its mesh was dropped".into() });
    meshes.deliver(1, 0);
    let death = meshes.nodes[0].why_lost(id(1)).expect("it failed").to_string();
    assert!(death.contains("after it had lost rank-2 and rank-3 and rank-4 and rank-5;"), "{death}");
}
