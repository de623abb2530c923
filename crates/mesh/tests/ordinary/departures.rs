//! Waiting until others have gone: what servers and schedulers do with their main thread.

use crate::common::{roles, together, together_with, until, wait};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, Rank};
use sheave_mesh::{Config, Expected, Mesh, Request, Role};
use sheave_wire::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

#[test]
fn a_server_serves_until_all_workers_have_left() {
    let still_there = Arc::new(AtomicU32::new(3));
    together(roles(2, 3), Transport::Auto, move |mesh| {
        mesh.serve("it", |request: Request| request.reply.value(())).expect("the name is free");
        mesh.world().barrier().expect("all are there");
        if mesh.me().introduction.role != Role::Worker {
            mesh.until_gone(|member| member.introduction.role == Role::Worker).expect("nobody died");
            assert_eq!(still_there.load(SeqCst), 0, "all workers have left");
            mesh.until_gone(|member| member.introduction.role == Role::Worker).expect("they are still gone");
            return mesh.leave().expect("all agree");
        }
        for server in mesh.of_role(Role::Server) {
            for _ in 0..100 {
                wait(&mesh.call(server.node, "it", "work", Value::None).expect("sent")).expect("it serves");
            }
        }
        still_there.fetch_sub(1, SeqCst);
        mesh.leave().expect("all agree");
    });
}

#[test]
fn an_interrupt_and_an_own_leave_end_the_wait() {
    together(Expected::ranks(2), Transport::Auto, |mesh: Mesh| {
        mesh.world().barrier().expect("both are there");
        if mesh.me().rank == Rank(0) {
            let mut asked = 0;
            let begun = Instant::now();
            let mut interrupt = || {
                asked += 1;
                let stop = Error::new(ErrorKind::Interrupted, "the user wants to stop");
                if asked < 3 { Ok(()) } else { Err(stop) }
            };
            let error = mesh.until_gone_interruptible(|_| true, Some(&mut interrupt)).expect_err("it is interrupted");
            assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
            assert!(begun.elapsed() < Duration::from_secs(20));
            let own = mesh.clone();
            let waiting = std::thread::spawn(move || own.until_gone(|_| true));
            mesh.world().barrier().expect("both are there");
            mesh.leave().expect("all agree");
            let error = waiting.join().expect("no panic").expect_err("this node is no member any more");
            assert!(matches!(error.kind(), ErrorKind::Closed), "{error}");
            let error = mesh.until_gone(|_| true).expect_err("this node is no member any more");
            assert_eq!((error.kind(), error.operation_name()), (ErrorKind::Closed, Some("until_gone")), "{error}");
        } else {
            mesh.world().barrier().expect("both are there");
            until("rank 0 has left", || mesh.deaths().len() == 1);
            mesh.until_gone(|_| true).expect("it has left");
            mesh.leave().expect("alone");
        }
    });
}

/// What each of both is advised to do at its end meets what the others do.
#[test]
fn f84_finish_meets_until_gone() {
    together(roles(2, 2), Transport::Auto, |mesh| match mesh.me().introduction.role {
        Role::Worker => mesh.finish().expect("all come to the end"),
        Role::Server => {
            mesh.until_gone(|member| member.introduction.role == Role::Worker).expect("nobody died");
            mesh.finish().expect("it has waited for the others");
        }
        _ => {
            mesh.until_gone(|_| true).expect("nobody died");
            mesh.leave().expect("alone");
        }
    });
}

/// A mesh that is dropped, and one that says why it fails, are named as the cause, whatever the others do.
#[test]
fn f52_a_mesh_that_is_dropped_or_fails_is_named_with_its_reason() {
    for reason in [None, Some("the disk is full")] {
        together(Expected::ranks(3), Transport::Auto, move |mesh: Mesh| {
            mesh.world().barrier().expect("all are there");
            if mesh.me().rank == Rank(1) {
                return reason.map_or_else(|| drop(mesh.clone()), |reason| mesh.fail(reason));
            }
            let expected = format!("rank-1 failed: {}", reason.unwrap_or("its mesh was dropped"));
            let error = mesh.until_gone(|member| member.rank == Rank(1)).expect_err("it has not left");
            assert!(error.to_string().contains(&expected), "{error}");
            let error = mesh.world().barrier().expect_err("rank 1 enters no more");
            assert!(error.to_string().contains(&expected), "{error}");
            let death = mesh.deaths().into_iter().next().expect("one is gone");
            assert!(!death.left, "{death:?}");
            mesh.leave().expect("the rest agrees");
        });
    }
}

/// All leave at once while links are being made, in both directions, that nobody has needed before.
#[test]
fn all_leave_at_once_in_the_middle_of_making_links() {
    for _ in 0..10 {
        for transport in [Transport::Tcp, Transport::Shm] {
            together(roles(2, 3), transport, |mesh| {
                mesh.world().barrier().expect("all are there");
                // Without waiting for them: the leave comes in between.
                let own = mesh.clone();
                let linking = std::thread::spawn(move || {
                    let others = own.members().iter().map(|member| member.node).filter(|node| *node != own.me().node);
                    others.filter(|node| own.link_to(*node).is_ok()).count()
                });
                mesh.leave().expect("all agree");
                linking.join().expect("no panic");
            });
        }
    }
}

/// Whoever leaves tells the coordinator's successor so, which may have left before and be out of reach. With nobody
/// left to say so, that was waited for through a whole beat.
#[test]
fn nobody_who_finishes_waits_for_news_of_those_who_are_gone() {
    const BEAT: Duration = Duration::from_secs(30);
    let rest = |config: &mut Config| {
        (config.node.liveness.beat, config.node.liveness.timeout) = (BEAT, 5 * BEAT);
    };
    for _ in 0..4 {
        let lasted = together_with(Expected::ranks(8), Transport::Tcp, rest, |mesh| {
            mesh.world().barrier().expect("all are there");
            let begun = Instant::now();
            mesh.finish().expect("all are well");
            begun.elapsed()
        });
        assert!(lasted.iter().all(|lasted| *lasted < BEAT / 2), "{lasted:?}");
    }
}
