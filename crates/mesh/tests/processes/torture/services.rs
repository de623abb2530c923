//! What each node of a torture serves, on lanes of all kinds.

use super::ledger::{Counted, Intent, Ledger};
use crate::common::{PATIENCE, until};
use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_mesh::{Answer, Call, Lane, Mesh, Promises, Ref, Request, Service};
use sheave_wire::Value;
use std::sync::Arc;
use std::time::Instant;

/// The names of all services.
pub(crate) const NAMES: [&str; 3] = ["inline", "serial", "pool"];

/// Offers them.
pub(crate) fn serve(mesh: &Mesh, ledger: &Arc<Ledger>) {
    let lanes = [Lane::Inline, Lane::Serial, Lane::default()];
    for (name, lane) in NAMES.into_iter().zip(lanes) {
        let service = Node { mesh: mesh.downgrade(), me: mesh.me().node, ledger: Arc::clone(ledger), lane };
        mesh.serve(name, service).expect("the name is free");
    }
}

struct Node {
    mesh: sheave_mesh::WeakMesh,
    me: NodeId,
    ledger: Arc<Ledger>,
    lane: Lane,
}

/// One step of a circle: how many are left, and what they are drawn from.
pub(crate) fn step(left: i64, dice: i64) -> Value {
    Value::List(vec![Value::Int(left), Value::Int(dice)])
}

/// The next node and service of a circle. No two steps share a mailbox, for each keeps its own while it waits.
pub(crate) fn next_of(mesh: &Mesh, dice: i64) -> (NodeId, &'static str) {
    let mixed = dice.unsigned_abs().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let members = mesh.members();
    let service = if mixed.is_multiple_of(2) { "serial" } else { "pool" };
    (members[(mixed >> 8) as usize % members.len()].node, service)
}

impl Service for Node {
    fn handle(&self, request: Request) {
        let Request { from, method, args, refs, promises, reply, .. } = request;
        let rest = self.ledger.begins(args);
        match method.as_str() {
            "echo" => reply.value(rest),
            "down" => {
                let answer = self.down(&rest);
                reply.send(answer.map(|depth| (Value::Int(depth), Default::default())));
            }
            "nap" => {
                // Until its caller has given it up.
                until("it is not wanted", || !reply.is_wanted());
                reply.value(Value::None);
            }
            "keep" => {
                self.ledger.keep(self.me, refs);
                reply.value(Value::None);
            }
            "fail" => reply.error(Error::new(ErrorKind::Mismatch, "a handler of a test")),
            "make" => {
                self.make(&rest, &promises);
                reply.value(Value::None);
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

    fn lane(&self) -> Lane {
        self.lane
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

impl Node {
    fn mesh(&self) -> Result<Mesh> {
        self.mesh.upgrade().ok_or_else(|| Error::new(ErrorKind::Closed, "this node is gone"))
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
        let work = self.ledger.call(self.me, call, Intent::Wait, |call| mesh.call(to, service, "down", call))?;
        match self.ledger.wait(&work)?.value {
            Value::Int(depth) => Ok(depth + 1),
            other => panic!("{other:?} where a depth was expected"),
        }
    }

    /// Fills what was promised, poisons it, or forgets it.
    fn make(&self, args: &Value, promises: &Promises) {
        let Value::List(list) = args else { panic!("{args:?} where a promise was expected") };
        let [Value::Int(dice), name] = list.as_slice() else { panic!("{list:?} is no promise") };
        let made = match dice % 3 {
            0 => promises.fulfil(name, Counted::new(&self.ledger, self.me)),
            1 => promises.poison(name, &Error::new(ErrorKind::Mismatch, "a handler of a test")),
            _ => Ok(()),
        };
        // Whoever has made it void before is gone.
        drop(made);
    }

    fn wait_for(&self, promised: &Ref) -> Result<()> {
        let object = self.mesh()?.object::<Counted>(promised, None);
        assert!(object.wait_until(Some(Instant::now() + PATIENCE), None)?, "nobody settles {promised:?}");
        object.wait().map(drop)
    }

    /// Asks the caller something while it waits.
    fn back(&self, from: NodeId) -> Result<Answer> {
        let mesh = self.mesh()?;
        let call = Call::from(Value::Int(7));
        let work = self.ledger.call(self.me, call, Intent::Wait, |call| mesh.call(from, "inline", "echo", call))?;
        self.ledger.wait(&work)
    }
}
