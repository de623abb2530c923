//! Commands: words of the user's own to the user's own code on the servers.
//!
//! They have a service of their own beside the store's, so that every number is the user's. Controllers may block, so
//! they run on a lane, and one at a time, so that they need no locks.

use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind, NodeId, Result, contain};
use sheave_mesh::{Lane, Mesh, Methods, Role, TypedService};
use std::sync::Arc;

/// The name of the service.
const SERVICE: &str = "store.command";

/// A command: its number and its text. The answer is what the controller says.
#[derive(Debug, Serialize, Deserialize)]
struct Command {
    number: i32,
    body: Vec<u8>,
}

sheave_mesh::methods! {
    service SERVICE;
    1, "command": Command[Command] -> Vec<u8>, Workers;
}

/// User code that a server runs for each command: its number, its text, and what is answered.
pub type Controller = Arc<dyn Fn(i32, &[u8]) -> Result<Vec<u8>> + Send + Sync>;

/// Takes commands of workers.
struct Commands(Option<Controller>);

impl Commands {
    fn run(&self, Command { number, body }: &Command) -> Result<Vec<u8>> {
        let Some(controller) = &self.0 else {
            return Err(Error::new(ErrorKind::NotFound, format!("nobody takes command {number} here"))
                .hint("give every server a controller: ServerConfig::controller"));
        };
        let outcome = contain::run(|| controller(*number, body)).unwrap_or_else(|text| {
            Err(Error::new(ErrorKind::Remote, format!("the controller panicked on command {number}"))
                .cause(Error::new(ErrorKind::Remote, text))
                .hint("look at the output of the server"))
        });
        outcome.map_err(|error| error.operation(format!("command {number}")))
    }
}

impl TypedService for Commands {
    const NAME: &'static str = SERVICE;

    fn methods(methods: Methods<Self>) -> Methods<Self> {
        methods.on::<Command>(|commands, request| request.reply.send(commands.run(&request.args)))
    }

    fn lane(&self) -> Lane {
        Lane::Serial
    }
}

/// Serves the commands of a node.
pub(crate) fn serve(mesh: &Mesh, controller: Option<Controller>) -> Result<()> {
    mesh.serve_typed(Arc::new(Commands(controller)))
}

/// Sends a command to all servers and waits for their answers, which come in the order of their ranks.
pub(crate) fn send(mesh: &Mesh, number: i32, body: &[u8]) -> Result<Vec<Vec<u8>>> {
    let servers: Vec<NodeId> = mesh.of_role(Role::Server).map(|member| member.node).collect();
    let command = Command { number, body: body.to_vec() };
    let call = |server: &NodeId| mesh.ask::<Command>(*server, &command);
    let calls = servers.iter().map(call).collect::<Result<Vec<_>>>()?;
    // All have ended before the first error is told: no server still runs the command then.
    let outcomes: Vec<Result<Vec<u8>>> = calls.iter().map(|call| Ok(call.wait()?.value)).collect();
    outcomes.into_iter().collect()
}
