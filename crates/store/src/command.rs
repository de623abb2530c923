//! Commands: words of the user's own to the user's own code on the servers.
//!
//! They have a service of their own beside the store's, so that every number is the user's. Controllers may block, so
//! they run on a lane, and one at a time, so that they need no locks.

use sheave_base::{Error, ErrorKind, NodeId, Result, contain};
use sheave_mesh::{Callers, Lane, Mesh, Request, Role, Service};
use sheave_wire::Value;
use std::sync::Arc;

/// The name of the service.
pub(crate) const SERVICE: &str = "store.command";

/// A command's method is this and its number.
const METHOD: &str = "command ";

/// User code that a server runs for each command: its number, its text, and what is answered.
pub type Controller = Arc<dyn Fn(i32, &[u8]) -> Result<Vec<u8>> + Send + Sync>;

/// Takes commands of workers.
struct Commands(Option<Controller>);

impl Commands {
    fn run(&self, method: &str, args: &Value) -> Result<Vec<u8>> {
        let number = method.strip_prefix(METHOD).and_then(|number| number.parse::<i32>().ok());
        let (Some(number), Value::Bytes(body)) = (number, args) else {
            return Err(Error::new(ErrorKind::Protocol, "a command without a number or a text"));
        };
        let Some(controller) = &self.0 else {
            return Err(Error::new(ErrorKind::NotFound, format!("nobody takes command {number} here"))
                .hint("give every server a controller: ServerConfig::controller"));
        };
        contain::run(|| controller(number, body)).unwrap_or_else(|text| {
            Err(Error::new(ErrorKind::Remote, format!("the controller panicked on command {number}"))
                .cause(Error::new(ErrorKind::Remote, text))
                .hint("look at the output of the server"))
        })
    }
}

impl Service for Commands {
    fn handle(&self, request: Request) {
        let outcome = self.run(&request.method, &request.args);
        request.reply.send(outcome.map(|answer| (Value::Bytes(answer), Default::default())));
    }

    fn lane(&self) -> Lane {
        Lane::Serial
    }

    fn callers(&self, _: &str) -> Callers {
        Callers::Workers
    }
}

/// Serves the commands of a node.
pub(crate) fn serve(mesh: &Mesh, controller: Option<Controller>) -> Result<()> {
    mesh.serve(SERVICE, Commands(controller))
}

/// Sends a command to all servers and waits for their answers, which come in the order of their ranks.
pub(crate) fn send(mesh: &Mesh, number: i32, body: &[u8]) -> Result<Vec<Vec<u8>>> {
    let servers: Vec<NodeId> = mesh.of_role(Role::Server).map(|member| member.node).collect();
    let method = format!("{METHOD}{number}");
    let call = |server: &NodeId| mesh.call(*server, SERVICE, &method, Value::Bytes(body.to_vec()));
    let calls = servers.iter().map(call).collect::<Result<Vec<_>>>()?;
    let answer = |answer: sheave_mesh::Answer| match answer.value {
        Value::Bytes(bytes) => Ok(bytes),
        other => Err(Error::new(ErrorKind::Protocol, format!("a {} in place of an answer", other.kind_name()))),
    };
    // All have ended before the first error is told: no server still runs the command then.
    let outcomes: Vec<Result<Vec<u8>>> = calls.iter().map(|call| call.wait().and_then(answer)).collect();
    outcomes.into_iter().collect()
}
