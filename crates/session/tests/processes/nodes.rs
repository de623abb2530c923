//! Sessions of several machines, which here are several processes, each with processes of its own.

use crate::common;
use crate::common::{NUMBER, PATIENCE, ROOT, WORKERS, functions, playing, secret};
use sheave_base::config::Endpoint;
use sheave_base::{ErrorKind, ProcessEnd, port};
use sheave_process::{Child, Job};
use sheave_session::{Args, Nodes, Session};
use sheave_tensor::Tensor;
use std::time::{Duration, Instant};

#[test]
fn actor() {
    common::act();
}

/// The machines of a test besides the controller's.
struct Others {
    job: Job,
    children: Vec<Child>,
    root: Endpoint,
}

impl Others {
    /// Starts one for each number of workers, over TCP.
    fn start(workers: &[u32], numbers: &[u32]) -> Self {
        functions();
        let root = Endpoint { host: "127.0.0.1".into(), port: port::free().expect("some port is free") };
        let job = Job::start().expect("there is room for a guard");
        let children = workers.iter().enumerate().map(|(at, workers)| {
            let mut command = playing("node").env(ROOT, root.to_string()).env(WORKERS, workers.to_string());
            command = command
                .env("SHEAVE_TRANSPORT", "tcp")
                .env("SHEAVE_JOIN_TIMEOUT_MS", "5000")
                .name(format!("other {at}"));
            if let Some(number) = numbers.get(at) {
                command = command.env(NUMBER, number.to_string());
            }
            job.spawn(command).expect("there is room for a process")
        });
        let children = children.collect();
        Self { job, children, root }
    }

    fn session(&self, nodes: u32, workers_per_node: u32) -> sheave_base::Result<Session> {
        let (root, groups) = (self.root.clone(), nodes);
        let nodes = Nodes { root, nodes, workers_per_node, groups, secret: Some(secret()) };
        Session::on_nodes(&nodes, &playing("worker"))
    }

    /// Waits until all have ended, and returns how.
    fn ends(&self) -> Vec<bool> {
        let until = Instant::now() + Duration::from_secs(20);
        let end = |child: &Child| child.wait(Some(until)).expect("it is ours").expect("it ends").is_well;
        let ends = self.children.iter().map(end).collect();
        self.job.end(Duration::ZERO);
        ends
    }
}

#[test]
fn the_workers_of_all_machines_do_the_same() {
    // The last one first: their numbers say in which order they stand.
    let others = Others::start(&[2, 2], &[2, 1]);
    let session = others.session(3, 2).expect("all come");
    assert_eq!((session.workers(), session.groups()), (6, 3));
    let name = session.function("host").unwrap();
    let name = session.call(&name, &Args::new()).unwrap();
    let names: Vec<String> = (2..6).map(|worker| name.get(worker, PATIENCE).unwrap()).collect();
    assert_eq!(names[1], "node-00001.01");
    assert_eq!(names[3], "node-00002.01");
    let group = session.function("group").unwrap();
    let group = session.call(&group, &Args::new()).unwrap();
    assert_eq!(group.get::<(u32, u32)>(5, PATIENCE).unwrap(), (2, 2));
    // All are on this host.
    let local_id = session.function("sheave.local_id").unwrap();
    let local_id = session.call(&local_id, &Args::new()).unwrap();
    let local_ids: Vec<u32> = (0..6).map(|worker| local_id.get(worker, PATIENCE).unwrap()).collect();
    assert_eq!(local_ids, [0, 1, 0, 1, 0, 1]);
    let add = session.function("add one").unwrap();
    let mut number = session.call(&add, &Args::new().value(0)).unwrap();
    for _ in 0..1000 {
        number = session.call(&add, &Args::new().register(&number)).unwrap();
    }
    session.sync_all(PATIENCE).unwrap();
    assert!((0..6).all(|worker| number.get::<i64>(worker, PATIENCE).unwrap() == 1001));
    session.shutdown().expect("nothing has failed");
    assert_eq!(others.ends(), [true, true]);
}

/// TVM's proxy dies of a tensor that is fetched from its machine.
#[test]
fn item_6_tensors_come_from_and_go_to_other_machines() {
    let others = Others::start(&[1], &[]);
    let session = others.session(2, 1).expect("it comes");
    let make = session.function("tensor").unwrap();
    let tensor = session.call(&make, &Args::new().value(100_000_u64)).unwrap();
    let fetched: Tensor = tensor.get(1, PATIENCE).unwrap();
    assert_eq!(fetched.to_vec::<f32>().unwrap(), [1.5; 100_000]);
    let other = Tensor::from_slice(&[0.5_f32; 70_000], [70_000]).unwrap();
    tensor.set(1, other, PATIENCE).unwrap();
    let fetched: Tensor = tensor.get(1, PATIENCE).unwrap();
    assert_eq!(fetched.to_vec::<f32>().unwrap(), [0.5; 70_000]);
    let own: Tensor = tensor.get(0, PATIENCE).unwrap();
    assert_eq!(own.elements(), 100_000);
    session.shutdown().expect("nothing has failed");
    assert_eq!(others.ends(), [true]);
}

/// The process is no child of the controller's: the first worker of its machine tells how it has ended.
#[test]
fn a_death_on_another_machine_has_its_status_and_its_last_words() {
    let others = Others::start(&[3], &[]);
    let session = others.session(2, 3).expect("all come");
    let die = session.function("die on").unwrap();
    session.call(&die, &Args::new().value(4)).unwrap();
    let begun = Instant::now();
    let error = session.sync(4, PATIENCE).expect_err("it is dead");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(error.kind(), ErrorKind::WorkerDied, "{error}");
    assert_eq!(error.process_end().and_then(ProcessEnd::status), Some(7), "{error}");
    assert!(error.process_end().is_some_and(|end| end.last_lines().contains("the last words of 4")), "{error}");
    for worker in [0, 1, 2, 3, 5] {
        session.sync(worker, PATIENCE).expect("the others go on");
    }
    session.shutdown().expect("it was told");
    assert_eq!(others.ends().len(), 1);
}

#[test]
fn a_machine_that_dies_as_a_whole_is_named() {
    let others = Others::start(&[2], &[1]);
    let session = others.session(2, 2).expect("all come");
    others.job.end(Duration::ZERO);
    let begun = Instant::now();
    for worker in [2, 3] {
        let error = session.sync(worker, PATIENCE).expect_err("it is dead");
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        assert!(error.to_string().contains("node-00001.0"), "{error}");
    }
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    session.sync(1, PATIENCE).expect("it lives");
    session.shutdown().expect("they were told");
}

#[test]
fn item_18_a_machine_with_another_number_of_workers_is_refused() {
    let others = Others::start(&[1, 3], &[1, 2]);
    let error = others.session(3, 2).expect_err("they do not fit");
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    assert!(error.to_string().contains("node-00001 has 1 workers; expected 2"), "{error}");
    others.ends();
}

#[test]
fn item_18_who_does_not_know_the_secret_is_turned_away() {
    let others = Others::start(&[1], &[]);
    let secret = sheave_base::Secret::new(b"they do not know this one").expect("it is long enough");
    let (root, secret) = (others.root.clone(), Some(secret));
    let nodes = Nodes { root, nodes: 1, workers_per_node: 1, groups: 1, secret };
    let session = Session::on_nodes(&nodes, &playing("worker")).expect("it needs nobody else");
    session.sync_all(PATIENCE).expect("it works");
    assert_eq!(others.ends(), [false]);
    let said = others.children[0].last_stderr_lines().join("\n");
    assert!(said.contains("secret"), "{said}");
    session.shutdown().expect("nothing has failed");
}
