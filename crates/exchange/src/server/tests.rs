//! What only the inside of a server can bring about.

#[path = "../../../mesh/tests/common/meshes.rs"]
mod meshes;

use super::*;
use crate::{Pull, Push, Worker};
use meshes::{roles, soon, together, until};
use sheave_base::config::Transport;
use sheave_tensor::Dtype;

/// Whether a thread sleeps, by its folder in /proc.
fn is_asleep(thread: &Path) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(thread).join("stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
}

/// Runs `act` on a thread, and returns once that waits for a lock.
fn held_up<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> std::thread::JoinHandle<T> {
    let (says, hears) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        says.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
        act()
    });
    let id = hears.recv().unwrap();
    let mut naps = 0;
    until("the thread waits", || {
        naps = if is_asleep(&id) { naps + 1 } else { 0 };
        naps > 50
    });
    thread
}

#[test]
fn f06_a_worker_that_is_lost_while_a_batch_is_taken_leaves_nobody_without_an_answer() {
    together(roles(1, 2), Transport::Shm, |mesh| {
        match mesh.me().introduction.role {
            Role::Worker => {
                let worker = Worker::open(&mesh, Config::default()).unwrap();
                let one = Tensor::private(Dtype::F32, [1]).unwrap();
                let place = Tensor::private(Dtype::F32, [1]).unwrap();
                let request = worker.push_pull([Push::new(0, &one)], [Pull::into(0, &place)]).unwrap();
                if worker.rank() == 0 {
                    let error = worker.wait(request, Some(soon()), None).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
                    assert!(error.to_string().contains("on purpose"), "{error}");
                } else {
                    worker.wait(request, Some(soon()), None).unwrap_err();
                }
            }
            Role::Server => {
                let server = Server::open(&mesh, Config::default()).unwrap();
                let end = Arc::clone(&server.end);
                until("both have asked", || end.ready.load(SeqCst) == 2);
                let held = end.workers[1].lock();
                let loser = Arc::clone(&end);
                let lost = Error::new(ErrorKind::PeerLost, "lost on purpose");
                let loser = held_up(move || loser.lose(1, lost, false));
                let taker = held_up(move || server.get_batch(Some(soon()), None).map(|_| ()));
                drop(held);
                loser.join().unwrap();
                let error = taker.join().unwrap().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
            }
            _ => mesh.until_gone(|_| true).unwrap(),
        }
        mesh.leave().unwrap();
    });
}

#[test]
fn f05_the_place_of_a_dead_worker_is_taken_back() {
    together(roles(1, 2), Transport::Shm, |mesh| {
        let memory = || Tensor::private(Dtype::F32, [2]).unwrap();
        match (mesh.me().introduction.role, mesh.me().role_rank) {
            (Role::Server, _) => {
                let server = Server::open(&mesh, Config::default()).unwrap();
                let memory = memory();
                let registration = server.register(&memory, &[(0, 0), (1, 0)]).unwrap();
                server.barrier(Scope::All, false, Some(soon()), None).unwrap();
                until("worker 1 has asked", || server.end.ready.load(SeqCst) == 1);
                let unanswered = server.unregister(&registration).unwrap_err();
                assert_eq!(unanswered.kind(), ErrorKind::BufferInUse, "{unanswered}");
                server.barrier(Scope::All, false, Some(soon()), None).unwrap();
                until("worker 1 is lost", || server.end.workers[1].lock().gone.is_some());
                assert!(!server.end.workers[1].lock().has_left);
                server.unregister(&registration).expect("nobody can answer what lies there");
                assert_eq!(memory.to_vec::<f32>().unwrap().len(), 2, "it is free");
                server.close();
            }
            (Role::Worker, rank) => {
                let worker = Worker::open(&mesh, Config::default()).unwrap();
                worker.barrier(Scope::All, false, Some(soon()), None).unwrap();
                let (one, place) = (memory().slice_rows(0..1).unwrap(), memory());
                if rank == 1 {
                    worker.push_pull([Push::new(0, &one)], [Pull::into(0, &place)]).unwrap();
                }
                worker.barrier(Scope::All, false, Some(soon()), None).unwrap();
                if rank == 1 {
                    // It ends without a word.
                    mesh.abandon();
                    std::mem::forget(worker);
                    return;
                }
                worker.close();
            }
            _ => drop(mesh.until_gone(|_| true)),
        }
        let _ = mesh.leave();
    });
}

/// Whoever has called for an answer has not called for the send of which it is made.
#[test]
fn an_answer_that_cannot_be_sent_fails_by_its_own_name() {
    together(roles(1, 1), Transport::Shm, |mesh| {
        let memory = || Tensor::private(Dtype::F32, [1]).unwrap();
        match mesh.me().introduction.role {
            Role::Server => {
                let server = Server::open(&mesh, Config::default()).unwrap();
                let handler = server.get_batch(Some(soon()), None).unwrap().requests.remove(0).handler;
                let answer = memory();
                let lease = answer.write_lease("test").unwrap();
                let error = server.respond(handler, [&answer]).unwrap_err();
                assert_eq!((error.kind(), error.operation_name()), (ErrorKind::BufferInUse, Some(RESPOND)), "{error}");
                drop(lease);
                server.respond(handler, [&answer]).expect("nothing was sent before");
                server.close();
            }
            Role::Worker => {
                let worker = Worker::open(&mesh, Config::default()).unwrap();
                let (one, place) = (memory(), memory());
                let request = worker.push_pull([Push::new(0, &one)], [Pull::into(0, &place)]).unwrap();
                worker.wait(request, Some(soon()), None).unwrap();
                worker.close();
            }
            _ => drop(mesh.until_gone(|_| true)),
        }
        mesh.leave().unwrap();
    });
}
