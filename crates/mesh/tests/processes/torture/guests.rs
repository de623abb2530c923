//! Guests of some nodes: they call their hosts and are called back, and one of each host is killed.

use super::job::Media;
use super::ledger::{Intent, Ledger};
use crate::common::{secret, until};
use sheave_base::{Error, ErrorKind, Result, Work};
use sheave_mesh::{Answer, AttachedGuest, Call, Callers, Guest, GuestConfig, Mesh, Request, Service};
use sheave_net::Neighbourhood;
use sheave_wire::Value;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// The hosts, as numbers of nodes.
const HOSTS: std::ops::Range<usize> = 8..12;

/// The service of hosts and of guests for each other.
const NAME: &str = "guests";

/// Calls of one side to the other at a time.
const BURST: i64 = 50;

/// Answers members and guests, and asks back where it can.
struct Desk {
    mesh: Option<sheave_mesh::WeakMesh>,
    ledger: Arc<Ledger>,
}

impl Service for Desk {
    fn handle(&self, request: Request) {
        let Request { from, method, args, reply, .. } = request;
        let rest = self.ledger.begins(args);
        match method.as_str() {
            "echo" => reply.value(rest),
            "nap" => {
                until("it is not wanted", || !reply.is_wanted());
                reply.value(Value::None);
            }
            _ => reply.send(self.back(from).map(|answer| (answer.value, Default::default()))),
        }
    }

    fn callers(&self, _: &str) -> Callers {
        Callers::MembersAndGuests
    }
}

impl Desk {
    fn back(&self, from: sheave_base::NodeId) -> Result<Answer> {
        let gone = || Error::new(ErrorKind::Closed, "this node is gone");
        let mesh = self.mesh.as_ref().and_then(sheave_mesh::WeakMesh::upgrade).ok_or_else(gone)?;
        let call = Call::from(Value::Int(7));
        let make = |call| mesh.call(from, NAME, "echo", call);
        self.ledger.wait(&self.ledger.call(mesh.me().node, call, Intent::Wait, make)?)
    }
}

/// Attaches two guests to each host, and has both sides call each other.
pub(crate) fn begin(
    meshes: &[Mesh],
    ledger: &Arc<Ledger>,
    (media, here): (Media, &Neighbourhood),
    until_then: Instant,
) -> Vec<JoinHandle<()>> {
    let mut threads = Vec::new();
    for mesh in &meshes[HOSTS] {
        let desk = Desk { mesh: Some(mesh.downgrade()), ledger: Arc::clone(ledger) };
        mesh.serve(NAME, desk).expect("the name is free");
        for is_killed in [true, false] {
            let (guest, known) = attach(mesh, ledger, media, here);
            let (host, seen, own) = (mesh.clone(), known.clone(), Arc::clone(ledger));
            threads.push(std::thread::spawn(move || ask(&host, &seen, &own, until_then)));
            let own = Arc::clone(ledger);
            threads.push(std::thread::spawn(move || play(&guest, &known, &own, until_then, is_killed)));
        }
    }
    threads
}

fn attach(mesh: &Mesh, ledger: &Arc<Ledger>, media: Media, here: &Neighbourhood) -> (Guest, AttachedGuest) {
    let invitation = mesh.invite("guest").expect("there is room");
    let mut config = GuestConfig::new(invitation.to_text().parse().expect("it was written so"));
    config.node.secret = secret("known to the tests alone");
    media.settle(&mut config.node, here);
    let arrival = mesh.guest_arrival(invitation.name()).expect("it is invited");
    let guest = Guest::attach(config).expect("it is invited");
    guest.serve(NAME, Desk { mesh: None, ledger: Arc::clone(ledger) }).expect("the name is free");
    (guest, crate::common::wait(&arrival).expect("it has come"))
}

/// One thing after the other that `make` calls for.
fn burst(ledger: &Arc<Ledger>, me: sheave_base::NodeId, make: impl Fn(&str, Call) -> Result<Work<Answer>>) {
    for (method, intent) in [("echo", Intent::Wait), ("back", Intent::Wait), ("nap", Intent::Cancel)] {
        let call = |number| ledger.call(me, Call::from(Value::Int(number)), intent, |call| make(method, call)).ok();
        let works: Vec<_> = (0..BURST).filter_map(call).collect();
        if intent == Intent::Cancel {
            works.iter().for_each(Work::cancel);
        }
        works.iter().for_each(|work| drop(ledger.wait(work)));
    }
}

/// What a guest does, until then or until its host is gone.
fn play(guest: &Guest, known: &AttachedGuest, ledger: &Arc<Ledger>, until_then: Instant, is_killed: bool) {
    let half = until_then.saturating_duration_since(Instant::now()) / 2;
    let killed_at = Instant::now() + half;
    while Instant::now() < until_then && guest.is_attached() {
        if is_killed && Instant::now() > killed_at {
            ledger.will_die(known.node, &known.name);
            return guest.node().shut_down();
        }
        burst(ledger, guest.node().id(), |method, call| guest.call(NAME, method, call));
    }
    // What its host asks it for ends before.
    until("its host asks no more", || !guest.is_attached() || ledger.is_asked_no_more(known.node));
    let host = guest.host().node.expect("it is known");
    let left = guest.leave();
    assert!(left.is_ok() || ledger.may_die(host), "{left:?}");
}

/// What a host asks of a guest, until then or until one of them is gone.
fn ask(host: &Mesh, guest: &AttachedGuest, ledger: &Arc<Ledger>, until_then: Instant) {
    let is_there = || host.is_member() && host.guests().contains(guest);
    while Instant::now() < until_then && is_there() {
        let make = |method: &str, call| {
            let method = if method == "back" { "echo" } else { method };
            host.call(guest.node, NAME, method, call)
        };
        burst(ledger, host.me().node, make);
    }
    ledger.asks_no_more(guest.node);
}
