//! A server waits for workers, and one of them is killed instead of leaving.

use crate::common::{free_port, hear, job, note, part, roles, say, start};
use sheave_base::ErrorKind;
use sheave_base::config::Transport;
use sheave_mesh::{Member, Mesh, Role};
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_secs(1);
const SIGKILL: i32 = 9;

#[test]
fn actor() {
    let Some(config) = part(roles(1, 2)) else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    let world = mesh.world();
    world.barrier().expect("all are there");
    say("ready");
    let is_worker = |role| role == Role::Worker;
    match mesh.me() {
        me if !is_worker(me.introduction.role) => {
            let error = mesh.until_gone(|member| is_worker(member.introduction.role)).expect_err("one is killed");
            assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
            assert!(error.to_string().contains("worker-1"), "{error}");
            say("told");
            let is_picked = |member: &Member| is_worker(member.introduction.role);
            let dies = |member: &Member| member.introduction.name == "worker-1";
            let error = mesh.until_gone_tolerating(is_picked, |member| !dies(member), None).expect_err("it is dead");
            assert!(error.to_string().contains("worker-1"), "{error}");
            mesh.until_gone_tolerating(is_picked, dies, None).expect("the other one leaves");
            let other = mesh.of_role(Role::Worker).find(|member| !dies(member)).expect("there are two").node;
            assert!(mesh.deaths().iter().any(|death| death.left && death.node == other), "not before it has");
        }
        me if me.role_rank == 1 => loop {
            std::thread::park();
        },
        _ => {
            let error = world.barrier().expect_err("worker 1 never enters");
            assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        }
    }
    mesh.leave().expect("the rest agrees");
    say("left");
}

#[test]
fn who_waits_for_a_killed_worker_is_told() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let job = job();
        let port = free_port();
        let parts = ["scheduler-0", "server-0", "worker-0", "worker-1"];
        let children: Vec<_> = parts.into_iter().map(|part| start(&job, part, port, transport)).collect();
        children.iter().for_each(|child| drop(hear(child, "ready")));
        let begun = Instant::now();
        children[3].kill(SIGKILL).expect("it lives");
        children[..2].iter().for_each(|child| drop(hear(child, "told")));
        let took = begun.elapsed();
        note(&format!("{transport:?}: the others were told {:.1} ms after the kill", took.as_secs_f64() * 1e3));
        assert!(took < BOUND, "{transport:?}: {took:?}");
        children[..3].iter().for_each(|child| drop(hear(child, "left")));
    }
}
