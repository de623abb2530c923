//! Hierarchical operations, for groups over several hosts of which some have several ranks.
//!
//! The ranks of one host are a group of their own, the *host group*, in which operations go through shared memory; the
//! lowest rank of each host is its leader, and the leaders are a group, between which links carry what is left.
//!
//! | operation | steps |
//! |---|---|
//! | all-reduce | reduce to the leader on each host; all-reduce among the leaders; broadcast on each host |
//! | broadcast | on the root's host to all; among the leaders; on each other host |
//! | barrier | on each host; among the leaders; on each host |
//!
//! * **Cost** for B bytes and h hosts: between hosts that of the leaders' operation among h ranks, whatever the number
//!   of ranks on each; on a host, two direct operations of B bytes. Of f16 and bf16 sums, f32 goes up to the leaders
//!   and between them, and is rounded once.
//! * **Chosen** for these three in every such group. Other operations go over links as if each rank had its own host.
//! * **The same bits**: each host's part is reduced in the order of its ranks, and the parts as the leaders' algorithm
//!   does it; each leader has the same bits, and hands them out.
//! * **Everybody entered**: a leader enters the leaders' operation after all ranks of its host have entered theirs, and
//!   nobody ends before its own leader has ended that.
//! * **One after the other**: the steps of several such operations in flight are operations of the same two groups, so
//!   an operation begins its first when those before it have ended ([`crate::turns`]). Its entry does not wait.
//! * Ranks that disagree find out by the entry of the whole operation ([`crate::exchange`]), which goes on meanwhile.
//!   When the group breaks, so do its host group and its leaders.

use crate::communicator::Communicator;
use crate::exchange::Exchange;
use crate::group::State;
use crate::group::start::Conditions;
use crate::job::Job;
use crate::memory::Region;
use crate::numbers::Numbers;
use crate::operation::{Header, Kind, Operator};
use crate::turns::Place;
use sheave_base::{Error, ErrorKind, Rank, Result};
use sheave_mesh::Mesh;
use sheave_net::Address;
use sheave_tensor::Dtype;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The groups by which a rank takes part in a group over several hosts.
pub(crate) struct Hosts {
    /// The ranks of this host, if they are several.
    host: Option<Arc<State>>,
    /// The leaders, if this rank is one.
    leaders: Option<Arc<State>>,
    /// Of each rank of the whole group: its host, and its rank there.
    places: Vec<(u32, u32)>,
}

/// What a member has said when it joined about the host that it runs on.
pub(crate) fn host_of(mesh: &Mesh, state: &State, rank: u32) -> Option<String> {
    address_of(mesh, state, rank).map(|address| address.boot_id).filter(|boot_id| !boot_id.is_empty())
}

/// As [`host_of`], of a member that links over shared memory may be made to: it listens for them.
pub(crate) fn shared_host_of(mesh: &Mesh, state: &State, rank: u32) -> Option<String> {
    address_of(mesh, state, rank)?.unix?;
    host_of(mesh, state, rank)
}

fn address_of(mesh: &Mesh, state: &State, rank: u32) -> Option<Address> {
    mesh.member(state.group.node(Rank(rank))?)?.introduction.address.parse().ok()
}

impl Hosts {
    /// The groups of this rank; none if all ranks are on one host, or no two are.
    pub(crate) async fn of(state: &State) -> Result<Option<Self>> {
        let Some(mesh) = state.hub.mesh() else { return Ok(None) };
        let mut members: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut first: BTreeMap<String, u32> = BTreeMap::new();
        let mut places = Vec::new();
        for rank in 0..state.size() {
            let next = members.len() as u32;
            // Who says nothing is alone.
            let host = match host_of(&mesh, state, rank) {
                Some(name) => *first.entry(name).or_insert(next),
                None => next,
            };
            let there = members.entry(host).or_default();
            places.push((host, there.len() as u32));
            there.push(rank);
        }
        drop(mesh);
        if members.len() == 1 || members.len() == state.size() as usize {
            return Ok(None);
        }
        let label = state.group.label();
        let (own, at) = places[state.group.rank().0 as usize];
        let here = members.get(&own).map(Vec::as_slice).unwrap_or_default();
        let host = if here.len() > 1 { Some(group(state, &format!("{label}/host {own}"), here).await?) } else { None };
        let first: Vec<u32> = members.values().filter_map(|ranks| ranks.first().copied()).collect();
        let leaders = if at == 0 { Some(group(state, &format!("{label}/leaders"), &first).await?) } else { None };
        Ok(Some(Self { host, leaders, places }))
    }

    /// The group of the whole is broken. What this rank has done of earlier operations is all that the others need for
    /// these.
    pub(crate) fn break_because(&self, error: &Error) {
        for state in self.host.iter().chain(&self.leaders) {
            state.break_because(error, state.first_open());
        }
    }
}

/// The group of some ranks. It may be waited for, but not on this thread, which polls.
async fn group(state: &State, label: &str, ranks: &[u32]) -> Result<Arc<State>> {
    let nodes: Vec<_> = ranks.iter().filter_map(|rank| state.group.node(Rank(*rank))).collect();
    let mesh = state.hub.mesh().ok_or_else(|| Error::new(ErrorKind::Closed, "this node has left the mesh"));
    // A task must not keep this node in the mesh while it waits.
    let (made, ready) = mesh.and_then(|mesh| mesh.begin_group(label, &nodes))?;
    ready.await?;
    Communicator::of(&state.hub, &made.renewed()).map(|made| Arc::clone(made.state()))
}

/// What this rank means in one of the two groups.
fn header(state: &State, whole: &Header, kind: Kind, root: u32) -> Header {
    Header { kind, operator: None, root, rank: state.group.rank().0, ..*whole }
}

async fn barrier(state: Option<&Arc<State>>, whole: &Header) -> Result<()> {
    let Some(state) = state else { return Ok(()) };
    let header = Header { dtype: Dtype::U8, count: 0, ..header(state, whole, Kind::Barrier, 0) };
    state.start(header, Job::nothing(), Conditions::STEPS).await
}

async fn broadcast(state: Option<&Arc<State>>, whole: &Header, root: u32, tensor: &Region) -> Result<()> {
    let Some(state) = state else { return Ok(()) };
    let header = header(state, whole, Kind::Broadcast, root);
    let (input, output) = if header.rank == root { (Some(tensor), None) } else { (None, Some(tensor)) };
    state.start(header, Job::of(input, output, None, Some(tensor.len_bytes())), Conditions::STEPS).await
}

/// Runs this rank's part. What does not fit in one of the two groups is for the entry of the whole to explain.
pub(crate) async fn run(exchange: &Exchange, hosts: &Hosts, job: &Job, place: &Place) -> Result<()> {
    place.first().await;
    let outcome = steps(exchange, hosts, job).await;
    if outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Mismatch) {
        exchange.note_misfit();
    }
    outcome
}

async fn steps(exchange: &Exchange, hosts: &Hosts, job: &Job) -> Result<()> {
    let whole = &exchange.header;
    let (host, leaders) = (hosts.host.as_ref(), hosts.leaders.as_ref());
    match whole.kind {
        Kind::Barrier => {
            barrier(host, whole).await?;
            barrier(leaders, whole).await?;
            barrier(host, whole).await
        }
        Kind::Broadcast => {
            let tensor = job.input.as_ref().or(job.output.as_ref()).ok_or_else(incomplete)?;
            let (root_host, root_there) = hosts.places[whole.root as usize];
            if hosts.places[whole.rank as usize].0 == root_host {
                broadcast(host, whole, root_there, tensor).await?;
                broadcast(leaders, whole, root_host, tensor).await?;
                return barrier(host, whole).await;
            }
            barrier(host, whole).await?;
            broadcast(leaders, whole, root_host, tensor).await?;
            broadcast(host, whole, 0, tensor).await
        }
        _ => all_reduce(exchange, hosts, job).await,
    }
}

async fn all_reduce(exchange: &Exchange, hosts: &Hosts, job: &Job) -> Result<()> {
    let whole = &exchange.header;
    let (host, leaders) = (hosts.host.as_ref(), hosts.leaders.as_ref());
    let numbers = job.numbers.ok_or_else(incomplete)?;
    let (input, output) = (job.input.as_ref().ok_or_else(incomplete)?, job.output.as_ref().ok_or_else(incomplete)?);
    let operator = whole.operator.unwrap_or(Operator::Sum);
    let elements = numbers.elements(input);
    // Partial results, in the dtype that they are combined in.
    let (dtype, source, partial) = if numbers.are_widened() {
        let wide = exchange.scratch(numbers.work_bytes(elements))?;
        numbers.load(&wide, input)?;
        (Dtype::F32, wide.clone(), wide)
    } else {
        (whole.dtype, input.clone(), output.clone())
    };
    let whole = &Header { dtype, ..*whole };
    match host {
        Some(host) => {
            // Only the whole is divided.
            let step = if operator == Operator::Avg { Operator::Sum } else { operator };
            let header = Header { operator: Some(step), ..header(host, whole, Kind::Reduce, 0) };
            let numbers = Some(Numbers::new(dtype, step, host.size()));
            let target = leaders.map(|_| &partial);
            host.start(header, Job::of(Some(&source), target, numbers, Some(source.len_bytes())), Conditions::STEPS)
                .await?;
        }
        None => partial.copy_from(&source)?,
    }
    if let Some(leaders) = leaders {
        let header = Header { operator: Some(operator), ..header(leaders, whole, Kind::AllReduce, 0) };
        let across = Some(Numbers::new(dtype, operator, exchange.size()));
        let job = Job::of(Some(&partial), Some(&partial), across, Some(partial.len_bytes()));
        leaders.start(header, job, Conditions::STEPS).await?;
        if numbers.are_widened() {
            output.narrow_from(numbers.dtype(), &partial)?;
        }
    }
    broadcast(host, &Header { dtype: numbers.dtype(), ..*whole }, 0, output).await
}

fn incomplete() -> Error {
    Error::new(ErrorKind::Internal, "an operation over several hosts was begun without all its memory")
}
