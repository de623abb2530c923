//! Calls of a member to which there is no link yet, and which cannot make one: it is stopped. They do not wait for it;
//! it goes on or is killed then.

use crate::common::{PATIENCE, actor as command, failed, free_port, hear, job, note, park, part, say, until};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, NodeId, Work};
use sheave_mesh::{Answer, Call, Expected, Lane, Mesh, Ref, Request, Service};
use sheave_process::{Child, Job};
use sheave_wire::Value;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The bound of the design for everything that a killed process is needed for.
const BOUND: Duration = Duration::from_secs(1);

const SIGKILL: i32 = 9;
const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;
const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];
const WHAT: &str = "SHEAVE_TEST_WHAT";
const CALLS: i64 = 100;
const DEADLINE: Duration = Duration::from_millis(20);

/// Tells how many numbers it was told before, and keeps them.
#[derive(Clone, Default)]
struct Counts(Arc<Mutex<Vec<i64>>>);

impl Service for Counts {
    fn handle(&self, request: Request) {
        match (&request.args, request.method.as_str()) {
            (Value::Int(number), "count") => {
                let mut told = self.0.lock().expect("nobody panics");
                told.push(*number);
                request.reply.value(told.len() as i64 - 1);
            }
            (name, "fill") => {
                request.promises.fulfil(name, Arc::new(7_i64)).expect("it is open");
                request.reply.value(Value::None);
            }
            (_, "read") => request.reply.value(*request.refs[0].get::<i64>().expect("it is an integer")),
            _ => request.reply.error(Error::new(ErrorKind::NotFound, "no such method")),
        }
    }

    fn lane(&self) -> Lane {
        Lane::Serial
    }
}

#[test]
fn actor() {
    let Some(config) = part(Expected::ranks(3)) else { return };
    let mesh = Mesh::join(config).expect("all come");
    let counts = Counts::default();
    mesh.serve("it", counts.clone()).expect("the name is free");
    mesh.world().barrier().expect("all are there");
    say("ready");
    let what = std::env::var(WHAT).expect("what to do");
    match (mesh.me().rank.0, what.as_str()) {
        (1, "leave") => {
            let they = stopped(&mesh);
            (0..CALLS).for_each(|number| mesh.cast(they, "it", "count", Value::Int(number)).expect("it is kept"));
            say("called");
            mesh.leave().expect("it is let go");
            return say("left");
        }
        (1, what) => call_the_stopped(&mesh, what.starts_with("kill")),
        (0, "kill") => park(),
        (2, "leave") => {
            until("all were told", || counts.0.lock().expect("nobody panics").len() == CALLS as usize);
            assert!(counts.0.lock().expect("nobody panics").iter().copied().eq(0..CALLS), "in order");
        }
        (2, _) => {
            until("the call after all others is made", || counts.0.lock().expect("nobody panics").contains(&CALLS));
            assert!(
                counts.0.lock().expect("nobody panics").iter().copied().eq(0..=CALLS),
                "what has ended never begins"
            );
        }
        _ => {}
    }
    mesh.leave().expect("it is let go");
    say("left");
}

/// Waits until rank 2 is stopped, all its threads, and rank 0 has left if it is to.
fn stopped(mesh: &Mesh) -> NodeId {
    let member = &mesh.members()[2];
    let tasks = format!("/proc/{}/task", member.introduction.pid);
    until("it is stopped", || {
        let states = std::fs::read_dir(&tasks).expect("it lives").flatten().map(|task| task.path().join("stat"));
        states.map(std::fs::read_to_string).all(|stat| stat.is_ok_and(|stat| stat.contains(") T ")))
    });
    if std::env::var(WHAT).is_ok_and(|what| what == "kill without a coordinator") {
        until("the coordinator has left", || mesh.deaths().len() == 1);
    }
    member.node
}

fn call_the_stopped(mesh: &Mesh, is_killed: bool) {
    let they = stopped(mesh);
    let begun = Instant::now();
    let count = |number| mesh.call(they, "it", "count", Value::Int(number)).expect("it is kept");
    let calls: Vec<Work<Answer>> = (0..CALLS).map(count).collect();
    count(-1).cancel();
    let late = Call { args: Value::Int(-2), deadline: Some(DEADLINE), ..Call::default() };
    let late = mesh.call(they, "it", "count", late).expect("it is kept");
    let held = mesh.promise(they).expect("there is room");
    mesh.cast(they, "it", "fill", held.to_fill()).expect("it is kept");
    let room = mesh.room(they, "it", None);
    let called = begun.elapsed();
    note(&format!("{} calls of a stopped member made in {called:?}", CALLS + 3));
    assert!(called < BOUND / 2, "{called:?}");
    for error in
        [failed(late.wait_timeout(PATIENCE)), failed(mesh.room(they, "it", Some(DEADLINE)).wait_timeout(PATIENCE))]
    {
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
        assert!(error.to_string().contains("rank-2"), "{error}");
    }
    assert!(calls.iter().all(|call| !call.is_done()) && !room.is_done());
    say("called");
    match is_killed {
        true => all_end(mesh, they, &calls, &held, &room),
        false => all_are_answered(they, mesh, &calls, &held, &room),
    }
}

fn all_are_answered(they: NodeId, mesh: &Mesh, calls: &[Work<Answer>], held: &Ref, room: &Work<()>) {
    for (call, number) in calls.iter().zip(0..) {
        assert_eq!(call.wait_timeout(PATIENCE).expect("it goes on").value, Value::Int(number));
    }
    room.wait_timeout(PATIENCE).expect("all have left");
    let ask = |method, args| mesh.call(they, "it", method, args).expect("it is sent").wait_timeout(PATIENCE);
    assert_eq!(ask("read", held.value()).expect("the promise is kept").value, Value::Int(7));
    ask("count", Value::Int(CALLS)).expect("it goes on");
}

fn all_end(mesh: &Mesh, they: NodeId, calls: &[Work<Answer>], held: &Ref, room: &Work<()>) {
    let room = failed(room.wait_timeout(PATIENCE));
    let errors = calls.iter().map(|call| failed(call.wait_timeout(PATIENCE))).chain([room]);
    errors.for_each(|error| {
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        assert!(error.to_string().contains("rank-2"), "{error}");
    });
    say("told");
    until("its end is agreed", || mesh.deaths().iter().any(|death| death.node == they && !death.left));
    for outcome in [held.get::<i64>().map(drop), mesh.call(they, "it", "count", Value::Int(0)).map(drop)] {
        assert_eq!(failed(outcome).kind(), ErrorKind::PeerLost);
    }
}

fn start_all(job: &Job, transport: Transport, what: &str) -> Vec<Child> {
    let port = free_port();
    let start = |rank: u32| job.spawn(command(&format!("rank-{rank}"), port, transport).env(WHAT, what));
    let children: Vec<Child> = (0..3).map(|rank| start(rank).expect("a process")).collect();
    children.iter().for_each(|child| drop(hear(child, "ready")));
    children[2].kill(SIGSTOP).expect("it lives");
    hear(&children[1], "called");
    children
}

#[test]
fn calls_do_not_wait_for_the_link_to_their_callee() {
    for transport in TRANSPORTS {
        for what in ["go on", "leave"] {
            let job = job();
            let children = start_all(&job, transport, what);
            children[2].kill(SIGCONT).expect("it lives");
            children.iter().for_each(|child| drop(hear(child, "left")));
        }
    }
}

#[test]
fn calls_end_when_the_link_to_their_callee_cannot_be_made() {
    for transport in TRANSPORTS {
        for what in ["kill", "kill without a coordinator"] {
            let job = job();
            let children = start_all(&job, transport, what);
            let begun = Instant::now();
            children[2].kill(SIGKILL).expect("it lives");
            hear(&children[1], "told");
            let told = begun.elapsed();
            note(&format!("{what} by {transport:?}: told {told:?} after the end of the callee"));
            assert!(told < BOUND, "{what} by {transport:?}: {told:?}");
        }
    }
}
