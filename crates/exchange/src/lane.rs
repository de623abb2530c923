//! Who exchanges with whom.

use crate::word;
use sheave_base::work::Interrupt;
use sheave_base::{Error, ErrorKind, NodeId, Peer, Result};
use sheave_mesh::{Group, Member, Mesh, Role};
use std::time::{Duration, Instant};

/// Most requests that a worker may have in flight at once.
pub const WINDOW_MAX: usize = 1024;

/// What both sides of an exchange are made from; `lanes` must be the same on all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How many processes each worker and each server stands for: lane `i` is made of the processes whose rank in their
    /// role is `i` modulo this.
    pub lanes: u32,
    /// Requests that a worker may have in flight, at most [`WINDOW_MAX`]; one more waits for the oldest. 64 by default:
    /// what several micro-batches of every layer need.
    pub window: usize,
    /// Take down the eight points in time of every request. Workers decide it; servers do what they ask for.
    pub stamps: bool,
    /// Record spans, as many as [`sheave_base::limits::TRACE_EVENTS_MAX`], of requests with stamps.
    pub trace: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { lanes: 1, window: 64, stamps: false, trace: false }
    }
}

/// Who waits for whom in a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The workers.
    Workers,
    /// The servers.
    Servers,
    /// Both.
    All,
}

/// One end's view of its lane.
pub(crate) struct Lane {
    pub(crate) mesh: Mesh,
    /// The workers and servers of the lane, by their ranks in it.
    pub(crate) workers: Vec<NodeId>,
    pub(crate) servers: Vec<NodeId>,
    /// This node's rank among those of its role.
    pub(crate) rank: u32,
    /// What words of this exchange carry.
    pub(crate) context: u64,
    lanes: u32,
    role: Role,
    everybody: Group,
}

impl Lane {
    pub(crate) fn new(mesh: &Mesh, config: &Config, role: Role) -> Result<Self> {
        let me = mesh.me();
        if me.introduction.role != role {
            let what = format!("this node is a {} and not a {role}", me.introduction.role);
            return Err(Error::new(ErrorKind::InvalidArgument, what).hint(format!("start it with the role {role}")));
        }
        if config.lanes == 0 || config.window == 0 || config.window > WINDOW_MAX {
            let what = format!("{} lanes and a window of {} requests", config.lanes, config.window);
            return Err(Error::new(ErrorKind::InvalidArgument, what)
                .hint(format!("there is at least one lane, and the window is from 1 to {WINDOW_MAX}")));
        }
        let lane = me.role_rank % config.lanes;
        let of = |role| -> Result<Vec<NodeId>> {
            let all: Vec<&Member> = mesh.of_role(role).collect();
            if all.is_empty() || !all.len().is_multiple_of(config.lanes as usize) {
                let what = format!("{} {role}s make no {} lanes", all.len(), config.lanes);
                return Err(Error::new(ErrorKind::InvalidArgument, what)
                    .hint("start as many workers, and as many servers, as a multiple of the number of lanes"));
            }
            let is_ours = |member: &&&Member| member.role_rank % config.lanes == lane;
            Ok(all.iter().filter(is_ours).map(|member| member.node).collect())
        };
        let (workers, servers) = (of(Role::Worker)?, of(Role::Server)?);
        let number = mesh.next_number("exchange");
        let nodes: Vec<NodeId> = workers.iter().chain(&servers).copied().collect();
        let everybody = mesh.group(&format!("exchange {number}"), &nodes)?;
        Ok(Self {
            context: everybody.id().0,
            rank: me.role_rank / config.lanes,
            lanes: config.lanes,
            mesh: mesh.clone(),
            workers,
            servers,
            role,
            everybody,
        })
    }

    /// Waits until every member of the lane is ready for words.
    pub(crate) fn meet(&self, until: Option<Instant>, interrupt: Option<Interrupt<'_>>) -> Result<()> {
        await_barrier(&self.everybody, until, interrupt)
    }

    /// A member as errors name it.
    pub(crate) fn peer(&self, node: NodeId) -> Peer {
        self.mesh.member(node).map(Member::peer).unwrap_or_default()
    }

    /// Why somebody says farewell: because another node was lost, as it may say, or as is known here, or else as `left`
    /// does.
    pub(crate) fn reason(&self, control: &[u8], left: Error) -> Error {
        if control.is_empty() {
            return self.loss().unwrap_or(left);
        }
        let error = word::read_refusal(control);
        match error.about().and_then(|peer| peer.node) {
            Some(node) => error.peer(self.peer(node)),
            None => left,
        }
    }

    /// The loss of a member of the lane that the mesh knows of, if it does. Those who left in order are none.
    pub(crate) fn loss(&self) -> Option<Error> {
        self.everybody.broken().filter(|error| error.kind().is_loss() && !self.everybody.was_left())
    }

    /// Blocks until everybody in `scope` has come; in this lane, or in all lanes.
    pub(crate) fn barrier(
        &self,
        scope: Scope,
        all_lanes: bool,
        until: Option<Instant>,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<()> {
        let (workers, servers) = (scope != Scope::Servers, scope != Scope::Workers);
        let is_in = match self.role {
            Role::Worker => workers,
            _ => servers,
        };
        if !is_in {
            let what = format!("a {} has no part in a barrier of {scope:?}", self.role);
            return Err(Error::new(ErrorKind::InvalidArgument, what.to_lowercase())
                .operation("barrier")
                .hint("include the role of the caller"));
        }
        let lane = self.mesh.me().role_rank % self.lanes;
        let of = |role: Role, wanted: bool| {
            let is_in = move |member: &&Member| wanted && (all_lanes || member.role_rank % self.lanes == lane);
            self.mesh.of_role(role).filter(is_in).map(|member| member.node)
        };
        let nodes: Vec<NodeId> = of(Role::Worker, workers).chain(of(Role::Server, servers)).collect();
        let label = format!("exchange {scope:?} of {}", if all_lanes { "all lanes" } else { "a lane" });
        await_barrier(&self.mesh.group(&label, &nodes)?, until, interrupt)
    }
}

/// A deadline ends the barrier for everybody, because its members would be out of step.
fn await_barrier(group: &Group, until: Option<Instant>, interrupt: Option<Interrupt<'_>>) -> Result<()> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)));
    let work = group.begin_barrier(left);
    work.wait_until(None, interrupt)?;
    work.taken()
}
