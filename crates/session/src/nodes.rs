//! Sessions of several machines.
//!
//! The controller's machine has the first workers, and each other one is started by a command that calls
//! [`work_on_node`]. That process is the first worker of its machine and starts the others; all are members of the
//! session's mesh, and the controller reaches each of them directly. What a machine's process knows besides is how its
//! neighbours have ended, and that the controller asks when it has lost one.

use crate::kinds::{Joined, check, join, refused};
use crate::lost::Lost;
use crate::session::Session;
use crate::worker::SESSION;
use sheave_base::config::Endpoint;
use sheave_base::work::{Interrupt, reborrowed};
use sheave_base::{Error, ErrorKind, Result, Secret, clock};
use sheave_fleet::{JobPart, JobPlan, MemberFleet};
use sheave_mesh::{Member, Mesh, Request, Service, ServiceName};
use sheave_process::{Builder, Command, Job};
use sheave_wire::Value;
use std::sync::Arc;
use std::time::Duration;

/// The service of each machine's first worker, but for the controller's own.
pub(crate) const NODE: ServiceName = ServiceName::new("session.node");

/// How long a process may take to end once its session has.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// Of a host's name, in that of a worker.
const HOST_CHARACTERS_MAX: usize = 24;

/// A session of several machines, as its controller begins it.
#[derive(Clone, Debug)]
pub struct Nodes {
    /// Where the machines meet: an address and a port of the controller's machine, which listens there.
    pub root: Endpoint,
    /// How many machines there are, the controller's included.
    pub nodes: u32,
    /// How many workers each of them has.
    pub workers_per_node: u32,
    /// How many groups the workers are divided into.
    pub groups: u32,
    /// What all machines know, and nobody else; if `None`, what the environment says (`SHEAVE_SECRET_FILE`).
    pub secret: Option<Secret>,
}

/// One of the other machines, as the command there knows it.
#[derive(Clone, Debug)]
pub struct Node {
    /// Where the machines meet.
    pub root: Endpoint,
    /// How many workers this one has: as many as each.
    pub workers: u32,
    /// Which of the machines it is, counted from 0, which is the controller's. Those that do not say come behind, by
    /// the names of their hosts.
    pub number: Option<u32>,
    /// As [`Nodes::secret`].
    pub secret: Option<Secret>,
}

impl Session {
    /// Begins a session of several machines, and waits until all have come, for as long as a join may take
    /// (`SHEAVE_JOIN_TIMEOUT_MS`). The workers of this machine are a thread for the first and processes of `command`,
    /// as with [`Session::processes`]; on the others somebody calls [`work_on_node`].
    ///
    /// Who does not know the secret is turned away. Without leave (`SHEAVE_INSECURE`) only addresses of this machine
    /// are listened at.
    ///
    /// # Errors
    ///
    /// As [`Session::processes`]; `InvalidArgument` without machines or workers; `DeadlineExceeded` that says who is
    /// missing; `Mismatch` for a machine with another number of workers.
    pub fn on_nodes(nodes: &Nodes, command: &Command) -> Result<Self> {
        Self::on_nodes_interruptible(nodes, Job::builder(), |_| command.clone(), None)
    }

    /// As [`Session::on_nodes`], with the workers of this machine in a job of one's own, each of the command that
    /// `command` says for its number; `interrupt` is asked at least every 100 ms, and its error ends this.
    ///
    /// # Errors
    ///
    /// As [`Session::on_nodes`], and what `interrupt` says.
    pub fn on_nodes_interruptible(
        nodes: &Nodes,
        job: Builder,
        command: impl FnMut(u32) -> Command,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<Self> {
        let Nodes { root, nodes, workers_per_node, groups, secret } = nodes;
        if *nodes == 0 || *workers_per_node == 0 {
            return refused(format!("{nodes} nodes of {workers_per_node} workers; expected one of each at least"));
        }
        let workers = nodes.saturating_mul(*workers_per_node);
        check(workers, *groups)?;
        let name = name_of(Some(0));
        let (root, secret, first_of) = (root.clone(), secret.clone(), Some(workers));
        let part = JobPart { root, name, processes: *workers_per_node, first_of, secret };
        let plan = JobPlan::part(&part)?;
        let (joined, fleet) = begin(plan, job, command, Some(Arc::default()), interrupt, |_, _| Ok(()))?;
        check_nodes(&joined.0, *workers_per_node)?;
        Self::lead_with(joined, *groups, *workers_per_node, Some(fleet), Vec::new())
    }
}

/// Is a machine of a session that a controller [begins](Session::on_nodes) elsewhere: this thread is its first worker,
/// and the others are processes of `command`, which call [`work`](crate::work). They end with this process, in whatever
/// way that ends. Blocks until the session ends.
///
/// # Errors
///
/// `InvalidArgument` without workers, `WorkerDied` for a process that ends before it has joined, what [`Mesh::join`]
/// says, and `PeerLost` if the controller dies.
pub fn work_on_node(node: &Node, command: &Command) -> Result<()> {
    work_on_node_interruptible(node, Job::builder(), |_| command.clone(), None)
}

/// As [`work_on_node`], with the processes in a job of one's own, each of the command that `command` says for its
/// number on this machine; `interrupt` is asked at least every 100 ms while there is nothing to do, and its error ends
/// this.
///
/// # Errors
///
/// As [`work_on_node`], and what `interrupt` says.
pub fn work_on_node_interruptible(
    node: &Node,
    job: Builder,
    command: impl FnMut(u32) -> Command,
    mut interrupt: Option<Interrupt<'_>>,
) -> Result<()> {
    if node.number == Some(0) {
        return refused("node 0; expected 1 or more, for that is the controller's".to_owned());
    }
    let Node { root, workers: processes, number, secret } = node.clone();
    let plan = JobPlan::part(&JobPart { root, name: name_of(number), processes, first_of: None, secret })?;
    let serve = |mesh: &Mesh, fleet: &Arc<MemberFleet>| mesh.serve(NODE.as_str(), Deaths(Arc::clone(fleet)));
    let ((mesh, _), fleet) = begin(plan, job, command, None, reborrowed(&mut interrupt), serve)?;
    let worked = mesh.work(SESSION, interrupt).and_then(|()| mesh.finish());
    let until = clock::now() + END_PATIENCE;
    if worked.is_ok() {
        fleet.children().iter().for_each(|child| _ = child.wait(Some(until)));
    }
    fleet.end(Duration::ZERO);
    worked
}

/// What the workers of a machine are called, before their numbers there.
fn name_of(number: Option<u32>) -> String {
    match number {
        Some(number) => format!("node-{number:05}"),
        None => {
            // Behind those with numbers.
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            let host: String = host.chars().take(HOST_CHARACTERS_MAX).collect();
            format!("node-of-{host}-{}", std::process::id())
        }
    }
}

/// Starts the processes of this machine, and joins as the first of them.
fn begin(
    plan: JobPlan,
    job: Builder,
    mut command: impl FnMut(u32) -> Command,
    lost: Option<Arc<Lost>>,
    mut interrupt: Option<Interrupt<'_>>,
    serve: impl FnOnce(&Mesh, &Arc<MemberFleet>) -> Result<()>,
) -> Result<(Joined, Arc<MemberFleet>)> {
    let config = plan.config(0)?;
    let fleet = Arc::new(MemberFleet::start_beside(plan, job.start()?, |member| command(member.rank))?);
    // Else it would wait for the join's own deadline.
    let mut look = || match crate::kinds::early_end(&fleet) {
        Some(error) => Err(error),
        None => interrupt.as_mut().map_or(Ok(()), |interrupt| interrupt()),
    };
    let joined = join(config, lost, Some(&mut look), |mesh| serve(mesh, &fleet))?;
    Ok((joined, fleet))
}

/// Refuses machines that have brought another number of workers: theirs would not be numbered as the session says.
fn check_nodes(mesh: &Mesh, workers_per_node: u32) -> Result<()> {
    let members = mesh.members();
    let node = |member: &Member| {
        let name = member.peer().name;
        name.rsplit_once('.').map_or(name.to_string(), |(node, _)| node.to_owned())
    };
    for workers in members.chunk_by(|one, other| node(one) == node(other)) {
        if workers.len() as u32 != workers_per_node {
            let (name, count) = (node(&workers[0]), workers.len());
            let what = format!("{name} has {count} workers; expected {workers_per_node}");
            let error = Error::new(ErrorKind::Mismatch, what).operation("begin session");
            return Err(error.hint("start all nodes with the same number of workers"));
        }
    }
    Ok(())
}

/// Tells how the processes of a machine have ended.
struct Deaths(Arc<MemberFleet>);

impl Service for Deaths {
    fn handle(&self, request: Request) {
        let unknown = || Error::new(ErrorKind::NotFound, "it has not ended, or is none of this node's");
        let Value::Str(name) = &request.args else {
            return request.reply.error(Error::new(ErrorKind::Protocol, "a question that cannot be read"));
        };
        request.reply.error(self.0.death_of(name, crate::session::DEATH_PATIENCE).unwrap_or_else(unknown));
    }
}
