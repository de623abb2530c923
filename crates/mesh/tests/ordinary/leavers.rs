//! What a member has sent before it left is handled before services hear that it has left.

use crate::common::{roles, together, until, wait};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, NodeId, Rank, Work, limits};
use sheave_mesh::{Answer, Expected, Lane, Member, Mesh, Request, Role, Service};
use sheave_wire::Value;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];

/// Notes in which order it is told things.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn add(&self, what: String) {
        self.0.lock().expect("no panic").push(what);
    }

    fn read(&self) -> Vec<String> {
        self.0.lock().expect("no panic").clone()
    }
}

impl Service for Notes {
    fn handle(&self, request: Request) {
        self.add(format!("{} {:?}", request.method, request.args));
        request.reply.value(());
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }

    fn lost(&self, member: &Member, error: &Error) {
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        self.add(format!("lost {}", member.introduction.name));
    }
}

/// Sends a request as soon as there is room for it.
fn send(mesh: &Mesh, to: NodeId, service: &'static str, method: &str, args: &Value) -> Work<Answer> {
    let mut sent = None;
    until("there is room", || {
        sent = match mesh.call(to, service, method, args.clone()) {
            Err(error) if error.kind() == ErrorKind::LimitExceeded => None,
            outcome => Some(outcome.expect("it is sent")),
        };
        sent.is_some()
    });
    sent.expect("it was sent")
}

fn meet(mesh: &Mesh, nodes: &[NodeId]) {
    mesh.group("pair", nodes).expect("they are members").barrier().expect("both come");
}

/// More requests than a service lets in, so that many wait at the leaver when it begins to leave.
#[test]
fn a_service_without_room_holds_up_no_other_and_its_leaving_caller_loses_nothing() {
    for transport in TRANSPORTS {
        let (notes, go) = (Notes::default(), Arc::new(AtomicBool::new(false)));
        let handled = Arc::new(AtomicUsize::new(0));
        together(Expected::ranks(3), transport, move |mesh| {
            if mesh.me().rank == Rank(1) {
                let (sign, count) = (Arc::clone(&go), Arc::clone(&handled));
                let slow = move |request: Request| {
                    until("the sign", || sign.load(SeqCst));
                    count.fetch_add(1, SeqCst);
                    request.reply.value(());
                };
                mesh.serve("slow", slow).expect("the name is free");
                mesh.serve("notes", notes.clone()).expect("the name is free");
            }
            mesh.world().barrier().expect("all are there");
            let nodes: Vec<NodeId> = mesh.members().iter().map(|member| member.node).collect();
            match mesh.me().rank {
                Rank(1) => {
                    meet(&mesh, &nodes[1..]);
                    until("the other service was asked", || notes.read().len() == 1);
                    assert_eq!(handled.load(SeqCst), 0, "none is handled yet");
                    go.store(true, SeqCst);
                    until("services were told", || notes.read().len() == 2);
                    assert_eq!(notes.read(), ["last Int(7)", "lost rank-2"]);
                    until("all were handled", || handled.load(SeqCst) == limits::REQUESTS_PENDING_MAX);
                }
                Rank(2) => {
                    let slow = |_| send(&mesh, nodes[1], "slow", "wait", &Value::None);
                    let works: Vec<_> = (0..limits::REQUESTS_PENDING_MAX).map(slow).collect();
                    meet(&mesh, &nodes[1..]);
                    let _last = send(&mesh, nodes[1], "notes", "last", &Value::Int(7));
                    mesh.leave().expect("the others agree");
                    // Answers may come for as long as it leaves; what has none by then fails, and nothing waits on.
                    let ends = |work| !matches!(wait(work), Err(error) if error.kind() == ErrorKind::DeadlineExceeded);
                    assert!(works.iter().all(ends), "none waits on");
                    return;
                }
                _ => {}
            }
            meet(&mesh, &nodes[..2]);
            mesh.leave().expect("the others agree");
        });
    }
}

/// Who answers one that is gone already has not read all that it said.
#[test]
fn f67_what_a_leaver_has_asked_is_handled_though_nobody_waits_for_the_answers() {
    const REQUESTS: usize = 4000;
    for round in 0..10 {
        let notes = Notes::default();
        // The first one decides about the leave, and has no part in it.
        together(Expected::ranks(3), TRANSPORTS[round % 2], move |mesh| {
            let nodes: Vec<NodeId> = mesh.members().iter().map(|member| member.node).collect();
            if mesh.me().rank == Rank(1) {
                mesh.serve("notes", notes.clone()).expect("the name is free");
            }
            mesh.world().barrier().expect("all are there");
            match mesh.me().rank {
                Rank(1) => {
                    until("rank 2 has left", || notes.read().last().is_some_and(|last| last == "lost rank-2"));
                    assert_eq!(notes.read().len(), REQUESTS + 1, "the rest was lost");
                }
                Rank(2) => {
                    // More than is read at a time.
                    let text = Value::Str("a long story ".repeat(100));
                    let _notes: Vec<_> = (0..REQUESTS).map(|_| send(&mesh, nodes[1], "notes", "note", &text)).collect();
                    return mesh.leave().expect("the others agree");
                }
                _ => {}
            }
            meet(&mesh, &nodes[..2]);
            mesh.leave().expect("the other one agrees");
        });
    }
}

/// The leave is agreed while the last requests travel: whatever comes first, all of them are handled first.
#[test]
fn a_member_that_asks_and_leaves_at_once_is_heard() {
    const REQUESTS: i64 = 5;
    for round in 0..40 {
        let notes = Notes::default();
        together(roles(1, 2), TRANSPORTS[round % 2], move |mesh| {
            let me = mesh.me().introduction.clone();
            if me.role == Role::Server {
                mesh.serve("notes", notes.clone()).expect("the name is free");
            }
            mesh.world().barrier().expect("all are there");
            if me.role == Role::Worker {
                let server = mesh.of_role(Role::Server).next().expect("there is one").node;
                // From its answer on the server knows the link.
                wait(&mesh.call(server, "notes", "first", Value::None).expect("it is sent")).expect("it answers");
                let _works: Vec<_> = (0..REQUESTS)
                    .map(|number| mesh.call(server, "notes", &me.name, Value::Int(number)).expect("it is sent"))
                    .collect();
                return mesh.leave().expect("the others agree");
            }
            mesh.until_gone(|member| member.introduction.role == Role::Worker).expect("nobody dies");
            if me.role == Role::Server {
                until("services were told", || {
                    notes.read().iter().filter(|note| note.starts_with("lost w")).count() == 2
                });
                for worker in ["worker-0", "worker-1"] {
                    let of_it = notes.read().into_iter().filter(|note| note.contains(worker));
                    let asked = (0..REQUESTS).map(|number| format!("{worker} Int({number})"));
                    assert!(of_it.eq(asked.chain([format!("lost {worker}")])), "{:?}", notes.read());
                }
            }
            mesh.leave().expect("the others agree");
        });
    }
}

#[test]
fn a_leaver_without_a_link_is_told_of_too() {
    together(Expected::ranks(3), Transport::Shm, move |mesh| {
        let notes = Notes::default();
        mesh.serve("notes", notes.clone()).expect("the name is free");
        mesh.world().barrier().expect("all are there");
        let nodes: Vec<NodeId> = mesh.members().iter().map(|member| member.node).collect();
        if mesh.me().rank != Rank(2) {
            until("services were told", || !notes.read().is_empty());
            assert_eq!(notes.read(), ["lost rank-2"]);
            meet(&mesh, &nodes[..2]);
        }
        mesh.leave().expect("the others agree");
    });
}
