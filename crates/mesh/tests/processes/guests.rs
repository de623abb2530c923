//! Guests and hosts that are processes, killed and stopped.

use crate::common;
use crate::common::{PART, attach, free_port, guest_config, hear, job, note, part, say, start, until, wait};
use sheave_base::config::Transport;
use sheave_base::{Epoch, Error, ErrorKind, NodeId, Rank};
use sheave_mesh::{Callers, Expected, Guest, Invitation, Lane, Mesh, Request, Service};
use sheave_process::{Child, Job};
use sheave_wire::Value;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The bound of the design: who needs a process that was killed learns it within this time.
const BOUND: Duration = Duration::from_secs(1);

const SIGKILL: i32 = 9;
const SIGSTOP: i32 = 19;

const INVITATION: &str = "SHEAVE_TEST_INVITATION";
/// How many guests the host has.
const COUNT: &str = "SHEAVE_TEST_VICTIM";

/// Shorter than usual, so that a silence is over soon.
const BEAT: Duration = Duration::from_millis(200);
const TIMEOUT: Duration = Duration::from_secs(1);

/// How often a guest comes and goes.
const TURNS: usize = 300;

/// Keeps every request but an echo, so that its caller waits.
#[derive(Default)]
struct Keeper(Mutex<Vec<Request>>);

impl Service for Keeper {
    fn handle(&self, request: Request) {
        match request.method.as_str() {
            "echo" => request.reply.value(1),
            _ => self.0.lock().expect("nobody panics").push(request),
        }
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }

    fn callers(&self, _: &str) -> Callers {
        Callers::MembersAndGuests
    }
}

#[test]
fn actor() {
    match std::env::var(PART).unwrap_or_default().as_str() {
        "" => {}
        "guest-0" => be_guest(),
        "rank-9" => come_and_go(),
        _ => be_member(),
    }
}

/// Calls that are pending, each of which says how it ends as soon as it does.
fn keep(called: sheave_base::Result<sheave_base::Work<sheave_mesh::Answer>>, whose: &str) {
    let whose = whose.to_owned();
    called.expect("it is sent").on_complete(move |answer| {
        if let Err(error) = answer {
            say(&format!("lost {whose} {}", kind(error)));
        }
    });
}

fn kind(error: &Error) -> String {
    format!("{:?} {error}", error.kind())
}

fn be_guest() {
    let invitation: Invitation = std::env::var(INVITATION).expect("it is invited").parse().expect("it is one");
    let transport = match std::env::var(common::TRANSPORT).expect("it is given").as_str() {
        "Tcp" => Transport::Tcp,
        _ => Transport::Shm,
    };
    let mut config = guest_config(&invitation, transport);
    (config.node.liveness.beat, config.node.liveness.timeout) = (BEAT, TIMEOUT);
    let guest = Guest::attach(config).expect("it is invited");
    guest.serve("it", Keeper::default()).expect("the name is free");
    keep(guest.call("it", "keep", Value::None), "host");
    guest.call("it", "echo", Value::None).and_then(|work| wait(&work)).expect("the host is there");
    say(&format!("attached {}", std::process::id()));
    let gone = guest.until_gone();
    say(&format!("until-gone {gone:?}"));
    guest.leave().expect("there is nobody to wait for");
    say("left");
}

/// Rank 0 is the host; the others are members who hear nothing of guests, and a majority without it.
fn be_member() {
    let mut config = part(Expected::ranks(3)).expect("it has a part");
    (config.node.liveness.beat, config.node.liveness.timeout) = (BEAT, TIMEOUT);
    let mesh = Mesh::join(config).expect("all come");
    mesh.serve("it", Keeper::default()).expect("the name is free");
    mesh.world().barrier().expect("all are there");
    if mesh.me().rank != Rank(0) {
        say("ready");
        let passed = mesh.world().barrier();
        say(&format!("passed {}", passed.as_ref().map_or_else(kind, |()| format!("epoch {}", mesh.epoch()))));
        let _ = mesh.finish();
        return;
    }
    let count: usize = std::env::var(COUNT).expect("it is told").parse().expect("a number");
    let invitations: Vec<Invitation> = (0..count).map(|_| mesh.invite("guest").expect("there is room")).collect();
    for (number, invitation) in invitations.iter().enumerate() {
        say(&format!("invitation-{number}: {}", invitation.to_text()));
    }
    for invitation in &invitations {
        let arrival = mesh.guest_arrival(invitation.name()).expect("it is invited");
        let guest = wait(&arrival).expect("it comes");
        serves(&mesh, guest.node);
        keep(mesh.call(guest.node, "it", "keep", Value::None), invitation.name());
    }
    say("ready");
    // The guests that the test leaves alive come last, and end when this node does.
    let killed = std::env::var("SHEAVE_TEST_KILLED").map_or(count, |killed| killed.parse().expect("a number"));
    if killed == 0 {
        // It is the host that will be killed.
        until("it is killed", || false);
    }
    until("they are gone", || mesh.guests().len() == count - killed);
    assert_eq!((mesh.epoch(), mesh.deaths()), (Epoch(1), Vec::new()));
    for guest in mesh.guests() {
        serves(&mesh, guest.node);
    }
    mesh.world().barrier().expect("the members have noticed nothing");
    say("went-on");
    mesh.finish().expect("all finish");
    say("finished");
}

/// Waits until a guest answers: it may not have offered its service yet.
fn serves(mesh: &Mesh, guest: NodeId) {
    until("it serves", || mesh.call(guest, "it", "echo", Value::None).and_then(|work| wait(&work)).is_ok());
}

/// A host and its guests in one process: nothing is left of those that are gone.
fn come_and_go() {
    let mesh = common::host(Transport::Shm);
    mesh.serve("it", Keeper::default()).expect("the name is free");
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).expect("it is there").count();
    let mut before = (0, 0);
    for turn in 0..TURNS {
        let transport = if turn % 2 == 0 { Transport::Shm } else { Transport::Auto };
        let (guest, known) = attach(&mesh, transport);
        guest.call("it", "echo", Value::None).and_then(|work| wait(&work)).expect("it answers");
        guest.leave().expect("nothing is in its way");
        wait(&mesh.guest_end(known.node).expect("it is known")).expect("it has left in order");
        if turn == 20 {
            before = (count("fd"), count("task"));
        }
    }
    // What ends on threads of its own needs a moment.
    until("descriptors are given back", || count("fd") <= before.0 + 2);
    until("threads end", || count("task") <= before.1 + 2);
    say(&format!("flat {before:?} {:?}", (count("fd"), count("task"))));
    mesh.leave().expect("it is alone");
}

struct Cast {
    _job: Job,
    host: Child,
    others: [Child; 2],
    guests: Vec<Child>,
    pids: Vec<String>,
}

/// Starts a host, another member and guests; `killed` of them will not be there at the end.
fn cast(count: usize, killed: usize, transport: Transport) -> Cast {
    let (job, port) = (job(), free_port());
    let member = |part: &str| {
        let command = common::actor(part, port, transport).env(COUNT, count.to_string());
        job.spawn(command.env("SHEAVE_TEST_KILLED", killed.to_string())).expect("a process")
    };
    let (host, others) = (member("rank-0"), ["rank-1", "rank-2"].map(member));
    others.iter().for_each(|other| drop(hear(other, "ready")));
    let guest = |number: usize| {
        let invitation = hear(&host, &format!("invitation-{number}:"));
        let command = common::actor("guest-0", port, transport).name(format!("guest-{number}"));
        job.spawn(command.env(INVITATION, invitation)).expect("a process")
    };
    let guests: Vec<Child> = (0..count).map(guest).collect();
    let pids = guests.iter().map(|guest| hear(guest, "attached")).collect();
    hear(&host, "ready");
    Cast { _job: job, host, others, guests, pids }
}

fn name(number: usize) -> String {
    format!("rank-0.guest-{}", number + 1)
}

/// Whatever has become of the guests, the members go on, and the guests that are left hear of the host's leave.
fn ends_well(cast: &Cast, killed: usize) {
    hear(&cast.host, "went-on");
    cast.others.iter().for_each(|other| assert_eq!(hear(other, "passed"), "epoch 1"));
    hear(&cast.host, "finished");
    for guest in &cast.guests[killed..] {
        assert_eq!(hear(guest, "until-gone"), "Ok(())");
        hear(guest, "left");
    }
}

#[test]
fn a_guest_that_is_killed_is_lost_to_its_host_at_once_and_to_nobody_else() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let cast = cast(3, 1, transport);
        let begun = Instant::now();
        cast.guests[0].kill(SIGKILL).expect("it lives");
        let said = hear(&cast.host, &format!("lost {}", name(0)));
        let took = begun.elapsed();
        note(&format!("{transport:?}: {:.1} ms: {said}", took.as_secs_f64() * 1e3));
        assert!(said.starts_with(&format!("{:?}", ErrorKind::PeerLost)), "{said}");
        assert!(said.contains(&name(0)) && said.contains(&format!("pid {}", cast.pids[0])), "{said}");
        assert!(took < BOUND, "{transport:?}: {took:?}");
        ends_well(&cast, 1);
    }
}

#[test]
fn twenty_guests_that_are_killed_at_once_cost_the_host_nothing() {
    let cast = cast(20, 20, Transport::Shm);
    let begun = Instant::now();
    cast.guests.iter().for_each(|guest| guest.kill(SIGKILL).expect("it lives"));
    for number in 0..20 {
        let said = hear(&cast.host, &format!("lost {} ", name(number)));
        assert!(said.starts_with("PeerLost") && said.contains(&format!("pid {}", cast.pids[number])), "{said}");
    }
    let took = begun.elapsed();
    note(&format!("20 guests killed at once were lost in {:.1} ms", took.as_secs_f64() * 1e3));
    assert!(took < BOUND, "{took:?}");
    ends_well(&cast, 20);
}

#[test]
fn a_guest_that_is_stopped_falls_to_the_liveness_timeout() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let cast = cast(2, 1, transport);
        let begun = Instant::now();
        cast.guests[0].kill(SIGSTOP).expect("it lives");
        let said = hear(&cast.host, &format!("lost {}", name(0)));
        let took = begun.elapsed();
        note(&format!("{transport:?}: {:.1} ms: {said}", took.as_secs_f64() * 1e3));
        assert!(said.starts_with("PeerLost") && said.contains("no sign of life"), "{said}");
        assert!(said.contains(&name(0)) && said.contains(&format!("pid {}", cast.pids[0])), "{said}");
        assert!(took > TIMEOUT / 2 && took < TIMEOUT * 3, "{transport:?}: {took:?}");
        ends_well(&cast, 1);
    }
}

#[test]
fn a_host_that_is_killed_is_lost_to_its_guests_at_once() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let cast = cast(3, 0, transport);
        let pid = cast.host.pid();
        let begun = Instant::now();
        cast.host.kill(SIGKILL).expect("it lives");
        for guest in &cast.guests {
            let said = hear(guest, "lost host");
            let took = begun.elapsed();
            note(&format!("{transport:?}: {:.1} ms: {said}", took.as_secs_f64() * 1e3));
            assert!(said.starts_with(&format!("{:?}", ErrorKind::PeerLost)), "{said}");
            assert!(said.contains("rank-0 (rank 0") && said.contains(&format!("pid {pid}")), "{said}");
            assert!(took < BOUND, "{transport:?}: {took:?}");
            let gone = hear(guest, "until-gone");
            assert!(gone.starts_with("Err") && gone.contains("rank-0"), "{gone}");
            hear(guest, "left");
        }
        for other in &cast.others {
            let said = hear(other, "passed");
            assert!(said.starts_with("PeerLost") && said.contains("rank-0"), "{said}");
        }
    }
}

#[test]
fn guests_that_come_and_go_leave_nothing_behind() {
    let job = job();
    let child = start(&job, "rank-9", free_port(), Transport::Shm);
    note(&hear(&child, "flat"));
    until("it has ended well", || child.exit().is_some_and(|exit| exit.status.success()));
}
