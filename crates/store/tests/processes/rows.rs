//! Real processes that wait for rows when one that they need is killed.

use crate::common::{PATIENCE, hear, job, part, roles, say, start_all, until, wait};
use sheave_base::ErrorKind;
use sheave_base::config::Transport;
use sheave_mesh::{Mesh, Role};
use sheave_store::{Key, Kind, KvStore, Rows, Server, ServerConfig, Updater};
use sheave_tensor::{Dtype, Shape, Tensor};
use std::time::{Duration, Instant};

/// The bound of the design: who needs a process that was killed learns it within this time.
const BOUND: Duration = Duration::from_secs(1);
const SIGKILL: i32 = 9;
const VICTIM: &str = "SHEAVE_TEST_VICTIM";

fn rows(ids: &[i64]) -> Rows {
    let values = Tensor::private(Dtype::F32, [ids.len() as u64, 8]).expect("memory");
    Rows::new(Tensor::from_slice(ids, [ids.len() as u64]).expect("it fits"), values).expect("they fit")
}

#[test]
fn actor() {
    let Some(config) = part() else { return };
    let me = std::env::var("SHEAVE_TEST_PART").expect("this is a part");
    let victim = std::env::var(VICTIM).expect("the test names it");
    let mesh = Mesh::join(config).expect("everybody comes");
    match mesh.me().introduction.role {
        Role::Worker => worker(&mesh, me == victim),
        Role::Server => {
            let server = Server::start(&mesh, ServerConfig::default()).expect("it is the first");
            say(&format!("ready {}", std::process::id()));
            let _ = server.run();
            let _ = mesh.leave();
        }
        _ => {
            let _ = mesh.until_gone(|member| member.introduction.role == Role::Worker);
            let _ = mesh.leave();
        }
    }
}

/// All but worker 1 push and pull a table that is cut over both servers; worker 1 never does.
fn worker(mesh: &Mesh, is_victim: bool) {
    let store = KvStore::open(mesh, sheave_store::Config { cut_elements: 100, ..Kind::DistSync.into() });
    let store = store.expect("all servers serve");
    let key = Key::from("table");
    store.init_rows(&[(key.clone(), Shape::new(&[1000, 8]).expect("it is short"), rows(&[]))]).expect("it is new");
    store.set_updater(Updater::Sum).expect("servers add");
    store.barrier().expect("all are there");
    if store.rank() == 1 {
        say(&format!("ready {}", std::process::id()));
        if is_victim {
            loop {
                std::thread::park();
            }
        }
        until("somebody dies", || mesh.num_dead_node(|_| true) > 0);
        let _ = mesh.leave();
        return;
    }
    let ids = Tensor::from_slice(&[999i64, 0, 500], [3]).expect("it fits");
    let place = Tensor::private(Dtype::F32, [3, 8]).expect("memory");
    let works = [
        ("push", store.push_rows(&[(key.clone(), rows(&[5, 995]))]).expect("it is sent")),
        ("pull", store.pull_rows(&[(key, ids, place)]).expect("it is sent")),
    ];
    assert!(works.iter().all(|(_, work)| !work.is_done()), "worker 1 has not pushed");
    say(&format!("ready {}", std::process::id()));
    for (label, work) in works {
        let error = wait(&work).expect_err("it needs who was killed");
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        say(&format!("{label}: {error}"));
    }
    let _ = mesh.leave();
    say("left");
}

#[test]
fn a_pull_of_rows_that_waits_ends_when_somebody_dies() {
    for (victim, transport) in
        [("worker-1", Transport::Shm), ("server-1", Transport::Shm), ("worker-1", Transport::Tcp)]
    {
        let job = job();
        let children = start_all(&job, roles(2, 2), transport, &[(VICTIM, victim)]);
        let by_name = |name: &str| children.iter().find(|child| child.name() == name).expect("it was started");
        for name in ["server-0", "server-1", "worker-1", "worker-0"] {
            hear(by_name(name), "ready");
        }
        let killed = Instant::now();
        by_name(victim).kill(SIGKILL).expect("it runs");
        for label in ["push", "pull"] {
            let error = hear(by_name("worker-0"), label);
            assert!(error.contains(victim), "{error}");
        }
        let took = killed.elapsed();
        assert!(took < BOUND, "{victim} over {transport:?}: {took:?}");
        hear(by_name("worker-0"), "left");
        for child in children.iter().filter(|child| child.name().starts_with("worker")) {
            until("it has ended", || child.exit().is_some());
        }
        assert!(killed.elapsed() < PATIENCE);
    }
}
