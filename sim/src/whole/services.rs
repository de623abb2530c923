//! What each process serves, on lanes of all kinds.

use super::ledger::{Counted, Intent, Ledger};
use crate::jobs::pause;
use sheave_base::{Error, ErrorKind, NodeId, Result, clock};
use sheave_mesh::{Answer, Call, Callers, Guest, Lane, Mesh, Promises, Ref, Request, Service, WeakMesh};
use sheave_wire::Value;
use std::sync::Arc;
use std::time::Duration;

/// The names of all services.
pub(super) const NAMES: [&str; 3] = ["inline", "serial", "pool"];
/// What guests may call.
const GUESTS_METHODS: [&str; 3] = ["echo", "nap", "back"];
/// Longer than anything may last that a handler waits for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Offers them.
pub(super) fn serve(mesh: &Mesh, process: usize, ledger: &Arc<Ledger>) {
    let lanes = [Lane::Inline, Lane::Serial, Lane::default()];
    for (name, lane) in NAMES.into_iter().zip(lanes) {
        let service = Desk { mesh: Some(mesh.downgrade()), process, ledger: Arc::clone(ledger), lane };
        mesh.serve(name, service).expect("the name is free");
    }
}

/// Offers what a guest does.
pub(super) fn serve_as_guest(guest: &Guest, process: usize, ledger: &Arc<Ledger>) {
    let service = Desk { mesh: None, process, ledger: Arc::clone(ledger), lane: Lane::Inline };
    guest.serve("inline", service).expect("the name is free");
}

struct Desk {
    /// None on a guest.
    mesh: Option<WeakMesh>,
    process: usize,
    ledger: Arc<Ledger>,
    lane: Lane,
}

/// One step of a circle: how many are left, and what they are drawn from.
pub(super) fn step(left: i64, dice: i64) -> Value {
    Value::List(vec![Value::Int(left), Value::Int(dice)])
}

/// The next node and service of a circle.
pub(super) fn next_of(mesh: &Mesh, dice: i64) -> (NodeId, &'static str) {
    let mixed = dice.unsigned_abs().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let members = mesh.members();
    let service = if mixed.is_multiple_of(2) { "serial" } else { "pool" };
    (members[(mixed >> 8) as usize % members.len()].node, service)
}

impl Service for Desk {
    fn handle(&self, request: Request) {
        let Request { from, method, args, refs, promises, reply, .. } = request;
        let (number, rest) = self.ledger.begins(args);
        let _in_mailbox = (self.lane == Lane::Serial && method != "down").then(|| {
            self.ledger.begins_in_order(number, self.process);
            self.ledger.enters_mailbox(self.process)
        });
        match method.as_str() {
            "echo" => reply.value(rest),
            "down" => {
                let answer = self.down(&rest);
                reply.send(answer.map(|depth| (Value::Int(depth), Default::default())));
            }
            "nap" => {
                // Until its caller has given it up.
                let is_sound = !self.ledger.is_doomed(self.process) && !self.ledger.is_call_of_doomed(number);
                if !reply.is_wanted() && is_sound {
                    self.ledger.fault(format!("call {number} has begun though it was given up before"));
                }
                let begun = clock::now();
                while reply.is_wanted() {
                    assert!(clock::since(begun) < PATIENCE, "a nap is wanted for ever");
                    pause(Duration::from_micros(300));
                }
                reply.value(Value::None);
            }
            "fail" => reply.error(Error::new(ErrorKind::Mismatch, "a handler of a test")),
            "keep" => {
                self.ledger.keep(self.process, refs);
                reply.value(Value::None);
            }
            "make" => {
                self.make(&rest, &promises);
                reply.value(Value::None);
            }
            "look" => {
                let seen = refs.first().map(|held| self.wait_for(held));
                let seen = seen.unwrap_or_else(|| Err(Error::new(ErrorKind::NotFound, "no reference came along")));
                reply.send(seen.map(|()| Default::default()));
            }
            "use" => {
                let made = refs.first().map(|promised| self.wait_for(promised));
                let made = made.unwrap_or_else(|| Err(Error::new(ErrorKind::NotFound, "no reference came along")));
                reply.send(made.map(|()| Default::default()));
            }
            "back" => {
                let answer = self.back(from);
                reply.send(answer.map(|answer| (answer.value, Default::default())));
            }
            other => reply.error(Error::new(ErrorKind::NotFound, format!("no method {other}"))),
        }
    }

    fn callers(&self, method: &str) -> Callers {
        if GUESTS_METHODS.contains(&method) { Callers::MembersAndGuests } else { Callers::Members }
    }

    fn lane(&self) -> Lane {
        self.lane
    }

    fn patience(&self) -> Duration {
        // That of the pool is shorter than its naps, and longer than its echoes.
        if self.lane == Lane::default() { Duration::from_micros(200) } else { Duration::ZERO }
    }

    fn mailbox(&self, request: &Request) -> u64 {
        // The number of the call: what waits for others must not wait for its own mailbox.
        match &request.args {
            Value::List(list) => match list.first() {
                Some(Value::Int(number)) if request.method == "down" => number.unsigned_abs(),
                _ => 0,
            },
            _ => 0,
        }
    }
}

impl Desk {
    fn mesh(&self) -> Result<Mesh> {
        self.mesh.as_ref().and_then(WeakMesh::upgrade).ok_or_else(|| Error::new(ErrorKind::Closed, "this node is gone"))
    }

    /// Goes on with a circle.
    fn down(&self, args: &Value) -> Result<i64> {
        let Value::List(list) = args else { panic!("{args:?} where a step was expected") };
        let [Value::Int(left), Value::Int(dice)] = list.as_slice() else { panic!("{list:?} is no step") };
        if *left == 0 {
            return Ok(0);
        }
        let mesh = self.mesh()?;
        let (to, service) = next_of(&mesh, *dice);
        let call = Call::from(step(left - 1, dice.wrapping_add(1)));
        let work = self.ledger.call(self.process, call, Intent::Wait, |call| mesh.call(to, service, "down", call))?;
        match work.wait()?.value {
            Value::Int(depth) => Ok(depth + 1),
            other => panic!("{other:?} where a depth was expected"),
        }
    }

    /// Fills what was promised, poisons it, or forgets it.
    fn make(&self, args: &Value, promises: &Promises) {
        let Value::List(list) = args else { panic!("{args:?} where a promise was expected") };
        let [Value::Int(dice), name] = list.as_slice() else { panic!("{list:?} is no promise") };
        let made = match dice % 3 {
            0 => {
                let filled = promises.fulfil(name, Counted::new(&self.ledger, self.process));
                if promises.fulfil(name, Counted::new(&self.ledger, self.process)).is_ok() {
                    self.ledger.fault(format!("{} has filled a promise twice", self.process));
                }
                filled
            }
            1 => promises.poison(name, &Error::new(ErrorKind::Mismatch, "a handler of a test")),
            _ => Ok(()),
        };
        // Whoever has made it void before is gone.
        drop(made);
    }

    fn wait_for(&self, promised: &Ref) -> Result<()> {
        self.mesh()?.object::<Counted>(promised, None).wait().map(drop)
    }

    /// Asks the caller something while it waits.
    fn back(&self, from: NodeId) -> Result<Answer> {
        let mesh = self.mesh()?;
        let call = Call::from(Value::Int(7));
        let make = |call| mesh.call(from, "inline", "echo", call);
        self.ledger.call(self.process, call, Intent::Wait, make)?.wait()
    }
}
