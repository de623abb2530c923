//! Fleets of guests that are processes: killed, failing, late, and dismissed.

use crate::common::{PART, PATIENCE, SIGKILL, host, lives, playing, refused, say, until};
use sheave_base::{Error, ErrorKind, NodeId, ProcessEnd, limits};
use sheave_fleet::{FleetEvent, GuestFleet, GuestFleetBuilder, Restarts};
use sheave_mesh::{AttachedGuest, Guest, GuestConfig, Lane, Mesh, Request, Service, WeakGuest};
use sheave_process::{Child, Command, Job, Output, Status};
use sheave_wire::Value;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A file that is there once guests are to fail at once.
const MARK: &str = "SHEAVE_TEST_MARK";

/// The bound of the design for the loss of a process that was killed.
const BOUND: Duration = Duration::from_secs(1);

/// The part of a process that a test has started.
#[test]
fn actor() {
    match std::env::var(PART).unwrap_or_default().as_str() {
        "" => {}
        "host" => be_host(),
        "fails" => fail(),
        "deaf" => std::thread::sleep(PATIENCE),
        _ => be_guest(),
    }
}

#[expect(clippy::print_stderr, reason = "it is what the test looks for")]
fn fail() {
    eprintln!("one\nno such model");
    std::process::exit(3);
}

struct Worker(WeakGuest);

impl Service for Worker {
    fn handle(&self, request: Request) {
        match request.method.as_str() {
            "pid" => request.reply.value(i64::from(std::process::id())),
            "fail" => fail(),
            "stay" => {
                // It leaves, and its process runs on.
                let guest = self.0.upgrade().expect("it has not left");
                request.reply.value(0);
                guest.leave().expect("the host takes what it was sent");
                std::thread::sleep(PATIENCE);
            }
            _ => std::thread::sleep(PATIENCE),
        }
    }

    fn lane(&self) -> Lane {
        Lane::Concurrent(4)
    }
}

fn be_guest() {
    if std::env::var_os(MARK).is_some_and(|mark| std::path::Path::new(&mark).exists()) {
        fail();
    }
    let config = GuestConfig::from_env().expect("it makes sense").expect("it is invited");
    assert!(std::env::var_os("SHEAVE_RANK").is_none(), "the place of another process");
    let guest = Guest::attach(config).expect("it is invited");
    match std::env::var(PART).as_deref() {
        Ok("unready") => fail(),
        Ok("slow") => std::thread::sleep(PATIENCE),
        _ => {}
    }
    guest.serve("worker", Worker(guest.downgrade())).expect("the name is free");
    guest.ready().and_then(|said| said.wait()).expect("the host is there");
    let gone = guest.until_gone();
    let _ = guest.leave();
    let has_left = gone.as_ref().is_err_and(|error| error.kind() == ErrorKind::Closed);
    if has_left || std::env::var(PART).is_ok_and(|part| part == "stubborn") {
        std::thread::sleep(PATIENCE);
    }
    std::process::exit(if gone.is_ok() { 0 } else { 9 });
}

/// Runs a fleet until it is killed.
fn be_host() {
    let mesh = host();
    let fleet = builder(3, "guest").start(&mesh).expect("they come");
    let pids: Vec<String> = fleet.children().iter().map(|child| child.pid().to_string()).collect();
    say(&format!("pids {}", pids.join(" ")));
    std::thread::sleep(PATIENCE);
}

fn builder(count: usize, part: &'static str) -> GuestFleetBuilder {
    // A place that guests must not take for theirs.
    GuestFleet::builder(count, move |_| playing(part).env("SHEAVE_RANK", "7")).label("worker").awaiting_ready()
}

/// As [`builder`], with what happens.
fn watched(builder: GuestFleetBuilder) -> (GuestFleetBuilder, Receiver<FleetEvent>) {
    let (sender, events) = channel();
    let sender = std::sync::Mutex::new(sender);
    let watch = move |event: &FleetEvent| drop(sender.lock().expect("nobody panics").send(event.clone()));
    (builder.watch(watch), events)
}

/// The next end among the events.
fn end(events: &Receiver<FleetEvent>) -> (usize, Option<NodeId>, Error) {
    loop {
        if let FleetEvent::Ended { slot, node, error } = events.recv_timeout(PATIENCE).expect("there is one") {
            return (slot, node, error);
        }
    }
}

/// Calls a guest, and returns its process id.
fn pid_of(mesh: &Mesh, guest: &AttachedGuest) -> u32 {
    let called = mesh.call(guest.node, "worker", "pid", Value::None).expect("it is sent");
    match called.wait_timeout(PATIENCE).expect("it serves").value {
        Value::Int(pid) => u32::try_from(pid).expect("it is one"),
        other => panic!("{other:?}"),
    }
}

fn status(error: &Error) -> Option<i32> {
    assert_eq!(error.kind(), ErrorKind::WorkerDied, "{error}");
    error.process_end().and_then(ProcessEnd::status)
}

#[test]
fn guests_come_serve_and_go_with_the_fleet() {
    let mesh = host();
    let (builder, events) = watched(builder(3, "guest"));
    let fleet = builder.start(&mesh).expect("they come");
    let guests = fleet.guests();
    let names: Vec<&str> = guests.iter().map(|guest| &*guest.name).collect();
    assert_eq!(fleet.slots(), 3);
    assert!(names.iter().all(|name| name.starts_with("rank-0.worker-")), "{names:?}");
    let pids: Vec<u32> = guests.iter().map(|guest| pid_of(&mesh, guest)).collect();
    assert_eq!(pids, fleet.children().iter().map(Child::pid).collect::<Vec<_>>());
    assert!(guests.iter().all(|guest| mesh.trusts(guest.node) && guest.node != mesh.me().node));
    let ends: Vec<_> = guests.iter().map(|guest| mesh.guest_end(guest.node).expect("it is there")).collect();
    let report = fleet.close(PATIENCE);
    assert!(report.exits.len() == 3 && report.exits.iter().all(|exit| exit.status == Status::Code(0)), "{report:?}");
    ends.iter().for_each(|end| end.wait_timeout(PATIENCE).expect("an end in order"));
    assert!(mesh.guests().is_empty() && fleet.guests().is_empty());
    assert_eq!(refused(fleet.guest(0).expect("there is one").wait_timeout(PATIENCE)).0, ErrorKind::Closed);
    assert_eq!(refused(fleet.guest(3)).0, ErrorKind::InvalidArgument);
    assert_eq!(fleet.close(Duration::ZERO).exits.len(), 3, "it may be closed again");
    drop(fleet);
    let told: Vec<FleetEvent> = events.try_iter().collect();
    let is_good =
        |event: &FleetEvent| matches!(event, FleetEvent::Started { replaces: None, .. } | FleetEvent::Attached { .. });
    assert!(told.len() == 6 && told.iter().all(is_good), "{told:?}");
    mesh.leave().expect("it is alone");
}

#[test]
fn a_fleet_that_has_ended_leaves_no_guest() {
    let mesh = host();
    for _ in 0..10 {
        let fleet = builder(4, "guest").start(&mesh).expect("they come");
        assert_eq!(mesh.guests().len(), 4);
        // All are killed, and it is for the mesh to find out.
        drop(fleet);
        assert!(mesh.guests().is_empty(), "{:?}", mesh.guests());
    }
    mesh.leave().expect("it is alone");
}

#[test]
fn a_guest_that_is_killed_is_an_error_and_is_replaced() {
    let mesh = host();
    let (builder, events) = watched(builder(2, "guest"));
    let fleet = builder.start(&mesh).expect("they come");
    let [victim, other] = <[AttachedGuest; 2]>::try_from(fleet.guests()).expect("two");
    let pending = mesh.call(victim.node, "worker", "never", Value::None).expect("it is sent");
    let begun = Instant::now();
    fleet.children()[0].kill(SIGKILL).expect("it lives");
    let (kind, error) = refused(pending.wait_timeout(PATIENCE));
    assert!(kind == ErrorKind::PeerLost && begun.elapsed() < BOUND, "{error}");
    let (slot, node, error) = end(&events);
    assert!(begun.elapsed() < BOUND + Duration::from_millis(500), "{:?}", begun.elapsed());
    assert_eq!((slot, node, status(&error)), (0, Some(victim.node), Some(-SIGKILL)));
    let about = error.about().expect("it names the process");
    assert_eq!((&*about.name, about.pid), (&*victim.name, Some(victim.pid)));
    assert!(error.after().is_some() && error.operation_name() == Some("fleet"), "{error}");
    assert!(error.to_string().contains("(signal 9)") && error.causes().count() == 0, "{error}");
    let heir = fleet.guest(0).expect("a slot").wait_timeout(PATIENCE).expect("another one comes");
    assert!(heir.node != victim.node && heir.name != victim.name && mesh.trusts(heir.node));
    assert_eq!(pid_of(&mesh, &heir), heir.pid);
    let replaces = events.try_iter().find_map(|event| match event {
        FleetEvent::Started { slot: 0, replaces, .. } => replaces,
        _ => None,
    });
    assert_eq!(replaces, Some(victim.name));
    assert_eq!(fleet.guests().get(1), Some(&other), "the other one has noticed nothing");
    // One that fails by itself has said why.
    drop(mesh.call(other.node, "worker", "fail", Value::None).expect("it is sent"));
    let (slot, node, error) = end(&events);
    assert_eq!((slot, node, status(&error)), (1, Some(other.node), Some(3)));
    let said = error.process_end().map(ProcessEnd::last_lines);
    assert!(said.is_some_and(|said| said.ends_with("one\nno such model")), "{said:?}");
    assert!(error.to_string().contains("no such model"), "{error}");
    fleet.close(PATIENCE);
}

#[test]
fn all_that_are_killed_at_once_are_replaced() {
    let mesh = host();
    let (builder, events) = watched(builder(6, "guest"));
    let fleet = builder.start(&mesh).expect("they come");
    let before = fleet.guests();
    fleet.children().iter().for_each(|child| child.kill(SIGKILL).expect("it lives"));
    let mut ended: Vec<usize> = (0..6).map(|_| end(&events).0).collect();
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 2, 3, 4, 5]);
    for slot in 0..6 {
        let heir = fleet.guest(slot).expect("a slot").wait_timeout(PATIENCE).expect("another one comes");
        assert!(before.iter().all(|guest| guest.node != heir.node));
        assert_eq!(pid_of(&mesh, &heir), heir.pid);
    }
    assert_eq!(mesh.guests().len(), 6);
    drop(fleet);
    until("they are gone", || mesh.guests().is_empty());
}

#[test]
fn a_program_that_fails_at_once_is_an_error_at_once() {
    let mesh = host();
    let begun = Instant::now();
    let deaf_but_one = GuestFleet::builder(3, |slot| playing(if slot == 1 { "fails" } else { "deaf" }));
    let (_, error) = refused(deaf_but_one.start(&mesh));
    assert_eq!(status(&error), Some(3));
    assert!(error.to_string().contains("no such model"), "{error}");
    assert!(begun.elapsed() < limits::JOIN_TIMEOUT / 4, "{:?}", begun.elapsed());
    assert!(mesh.guests().is_empty());
    let (kind, error) = refused(GuestFleet::builder(1, |_| Command::new("/no/such/program")).start(&mesh));
    assert_eq!(kind, ErrorKind::NotFound, "{error}");
    let (kind, error) = refused(builder(1, "guest").label("No label").start(&mesh));
    assert_eq!(kind, ErrorKind::InvalidArgument, "{error}");
    let (kind, error) = refused(builder(limits::GUESTS_MAX + 1, "guest").start(&mesh));
    assert_eq!(kind, ErrorKind::LimitExceeded, "{error}");
    let (_, error) = refused(builder(2, "unready").start(&mesh));
    assert_eq!(status(&error), Some(3), "{error}");
    let (kind, error) = refused(builder(1, "slow").attach_timeout(Duration::from_millis(500)).start(&mesh));
    assert_eq!(kind, ErrorKind::DeadlineExceeded, "{error}");
    until("it is gone", || mesh.guests().is_empty());
    let (kind, error) = refused(builder(1, "deaf").attach_timeout(Duration::from_millis(300)).start(&mesh));
    assert_eq!(kind, ErrorKind::DeadlineExceeded, "{error}");
    let mut asked = 0;
    let mut interrupt = || {
        asked += 1;
        if asked > 2 { Err(Error::new(ErrorKind::Interrupted, "enough")) } else { Ok(()) }
    };
    let (kind, error) = refused(builder(1, "deaf").start_interruptible(&mesh, Some(&mut interrupt)));
    assert_eq!(kind, ErrorKind::Interrupted, "{error}");
    // No invitation of them is open: there is room for as many as ever.
    let invitations: Vec<_> = (0..limits::GUESTS_MAX).map(|_| mesh.invite("x").expect("there is room")).collect();
    drop(invitations);
}

#[test]
fn a_slot_whose_processes_fail_again_and_again_is_given_up() {
    let mark = std::env::temp_dir().join(format!("sheave-fleet-{}.mark", std::process::id()));
    let path = mark.clone();
    let mesh = host();
    let restarts = Restarts { most: 3, within: Duration::from_secs(60) };
    let builder = GuestFleet::builder(1, move |_| playing("guest").env(MARK, &path)).restarts(restarts);
    let (builder, events) = watched(builder);
    let fleet = builder.start(&mesh).expect("it comes");
    std::fs::write(&mark, "").expect("there is room");
    fleet.children()[0].kill(SIGKILL).expect("it lives");
    let (mut started, mut ended) = (0, Vec::new());
    let given_up = loop {
        match events.recv_timeout(PATIENCE).expect("it goes on") {
            FleetEvent::Started { .. } => started += 1,
            FleetEvent::Ended { error, .. } => ended.push(status(&error)),
            FleetEvent::GivenUp { slot: 0, error } => break error,
            _ => {}
        }
    };
    std::fs::remove_file(&mark).expect("it is there");
    assert_eq!((started, ended), (4, vec![Some(-SIGKILL), Some(3), Some(3), Some(3)]));
    assert!(given_up.to_string().contains("more than 3 times"), "{given_up}");
    assert_eq!(status(&given_up), Some(3));
    let cause = given_up.causes().last().expect("what happened last");
    assert!(status(cause) == Some(3) && cause.to_string().contains("no such model"), "{cause}");
    let (_, error) = refused(fleet.guest(0).expect("a slot").wait_timeout(PATIENCE));
    assert_eq!(error.to_string(), given_up.to_string());
    assert!(mesh.guests().is_empty());
    fleet.close(Duration::ZERO);
}

#[test]
fn a_fleet_may_replace_none() {
    let mesh = host();
    let (builder, events) = watched(builder(1, "guest").restarts(Restarts::NEVER));
    let fleet = builder.start(&mesh).expect("it comes");
    fleet.children()[0].kill(SIGKILL).expect("it lives");
    assert_eq!(status(&end(&events).2), Some(-SIGKILL));
    let (_, error) = refused(fleet.guest(0).expect("a slot").wait_timeout(PATIENCE));
    assert!(error.to_string().contains("replaces none"), "{error}");
}

#[test]
fn a_process_that_is_no_guest_any_more_is_replaced_too() {
    let mesh = host();
    let (builder, events) = watched(builder(1, "guest"));
    let fleet = builder.start(&mesh).expect("it comes");
    let guest = fleet.guests().remove(0);
    pid_of(&mesh, &guest);
    let stays = mesh.call(guest.node, "worker", "stay", Value::None).expect("it is sent");
    stays.wait_timeout(PATIENCE).expect("it answers first");
    let (_, _, error) = end(&events);
    assert_eq!(status(&error), Some(-SIGKILL));
    assert!(error.to_string().contains("no guest any more"), "{error}");
    assert!(!lives(guest.pid));
    let heir = fleet.guest(0).expect("a slot").wait_timeout(PATIENCE).expect("another one comes");
    assert_eq!(pid_of(&mesh, &heir), heir.pid);
}

#[test]
fn those_who_do_not_go_are_killed_after_the_grace() {
    let mesh = host();
    let fleet = builder(2, "stubborn").start(&mesh).expect("they come");
    let pids: Vec<u32> = fleet.children().iter().map(Child::pid).collect();
    let (begun, grace) = (Instant::now(), Duration::from_millis(300));
    let report = fleet.close(grace);
    assert!(begun.elapsed() >= grace && begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    assert!(report.exits.iter().all(|exit| exit.status == Status::Signal(SIGKILL)), "{report:?}");
    assert!(!pids.into_iter().any(lives));
}

#[test]
fn those_who_are_on_their_way_when_nobody_is_replaced_any_more_go_with_the_fleet() {
    let mesh = host();
    let (builder, events) = watched(builder(3, "guest"));
    let fleet = builder.begin(&mesh).expect("they are started");
    let mut started = 0;
    while started < 3 {
        match events.recv_timeout(PATIENCE).expect("they are started") {
            FleetEvent::Started { .. } => started += 1,
            FleetEvent::Attached { .. } => {}
            event => panic!("{event:?}"),
        }
    }
    fleet.replace_no_more();
    until("they are guests", || mesh.guests().len() == 3);
    for guest in mesh.guests() {
        mesh.guest_ready(guest.node).expect("it is a guest").wait_timeout(PATIENCE).expect("it says so");
    }
    let begun = Instant::now();
    let report = fleet.close(PATIENCE);
    assert!(begun.elapsed() < PATIENCE / 3, "{:?}", begun.elapsed());
    assert!(report.exits.iter().all(|exit| exit.status == Status::Code(0)), "{report:?}");
}

#[test]
fn when_the_host_leaves_its_guests_go_and_nobody_is_replaced() {
    let mesh = host();
    let (builder, events) = watched(builder(2, "guest"));
    let fleet = builder.start(&mesh).expect("they come");
    let arrival = fleet.guest(0).expect("a slot");
    mesh.leave().expect("it is alone");
    for child in fleet.children() {
        assert_eq!(child.ended().wait_timeout(PATIENCE).expect("it ends").status, Status::Code(0));
    }
    assert!(arrival.wait_timeout(PATIENCE).is_ok(), "that one had come");
    until("the slots are over", || fleet.guests().is_empty());
    assert_eq!(refused(fleet.guest(0).expect("a slot").wait_timeout(PATIENCE)).0, ErrorKind::Closed);
    assert_eq!(events.try_iter().filter(|event| !matches!(event, FleetEvent::Started { .. })).count(), 2);
    fleet.close(Duration::ZERO);
}

#[test]
fn guests_end_with_a_host_that_is_killed() {
    let job = Job::builder().output(Output::Capture).start().expect("a job");
    let host = job.spawn(playing("host")).expect("a process");
    let said = host.wait_for_stdout("pids ", Instant::now() + PATIENCE).expect("it says so");
    let pids = said.rsplit("pids ").next().expect("numbers").split(' ');
    let pids: Vec<u32> = pids.map(|pid| pid.parse().expect("a number")).collect();
    assert!(pids.len() == 3 && pids.iter().all(|pid| lives(*pid)), "{said}");
    let begun = Instant::now();
    host.kill(SIGKILL).expect("it lives");
    until("they end", || !pids.iter().any(|pid| lives(*pid)));
    assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
}

#[test]
fn fleets_that_come_and_go_leave_nothing_behind() {
    let mesh = host();
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).expect("it is there").count();
    let mut before = (0, 0);
    for turn in 0..8 {
        let fleet = builder(2, "guest").start(&mesh).expect("they come");
        let pids: Vec<u32> = fleet.children().iter().map(Child::pid).collect();
        match turn % 2 {
            0 => drop(fleet.close(PATIENCE)),
            _ => drop(fleet),
        }
        assert!(!pids.into_iter().any(lives));
        until("they are gone", || mesh.guests().is_empty());
        if turn == 3 {
            before = (count("fd"), count("task"));
        }
    }
    // What ends on threads of its own needs a moment.
    until("descriptors are given back", || count("fd") <= before.0 + 2);
    until("threads end", || count("task") <= before.1 + 2);
    until("tasks end", || mesh.runtime().tasks() == 0);
}
