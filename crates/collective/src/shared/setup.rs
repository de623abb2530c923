//! How the ranks of one host get a board.
//!
//! Whether all members are on one host, and may share memory there, every rank reads in what members have told about
//! themselves when they joined. So a group whose members talk over TCP needs no links for this. Else each sends its
//! desk to all others, as memory to share, or says that it has none to give; and then tells all whether it has got
//! everybody's. There is a board if all have got all; so either everybody has one or nobody. It takes two messages from
//! each rank to each other one, once in the life of a group, when its first operation begins.
//!
//! **One link for each pair.** All ranks come here at the same time, and two that both connected would have two
//! links. So a rank connects to those above it, all at once, and answers those below it over the link on which their
//! desks have come. Nobody waits in a circle: a rank gives its desk to all above before it waits, and then waits for
//! one below at a time, which has given its own or waits for lower ones still.
//!
//! A rank with another table of algorithms is no part of a board either: over links all are told how the tables differ.
//! A rank without shared memory, be it that its configuration or its container forbids it, makes the group use links.

use super::board::{Board, Seat, TensorWords};
use crate::group::State;
use crate::hosts::shared_host_of;
use crate::mail::Awaiting;
use sheave_base::{Error, ErrorKind, Rank, Result, Tag, Work};
use sheave_mesh::Mesh;
use sheave_net::{Envelope, Message, Neighbour, Outgoing, Part, Wanted};
use sheave_tensor::{Mode, Tensor};
use std::sync::Arc;

/// Contexts of these messages, apart from those of operations.
pub(crate) const SORT: u64 = 5;

/// The first byte of each; another layout of desks gets another number.
const VERSION: u8 = 1;

const DESKS: Tag = Tag(0);
const ANSWERS: Tag = Tag(1);

/// The board of this group, if all its members are on one host and can see each other's memory.
pub(crate) async fn board(state: &Arc<State>) -> Result<Option<Arc<Board>>> {
    let Some(mesh) = state.hub.mesh() else { return Err(Error::new(ErrorKind::Closed, "this node has left the mesh")) };
    if state.size() == 1 || !is_one_host(&mesh, state) {
        return Ok(None);
    }
    let own = state.group.rank().0;
    // A node without memory to give goes on with the others by links.
    let desk = TensorWords::memory(state.hub.node.arena()).ok();
    // All begin before the first one is waited for, which the next step does.
    (own + 1..state.size()).for_each(|rank| drop(state.group.link_to(Rank(rank))));
    let mut sends = Vec::new();
    for rank in own + 1..state.size() {
        sends.push(give(state, rank, desk.as_ref()).await?);
    }
    let mut seats = Vec::new();
    for rank in 0..state.size() {
        let (tensor, neighbour) = if rank == own {
            (desk.clone(), None)
        } else {
            let tensor = received(state, rank, DESKS).await?;
            if rank < own {
                sends.push(give(state, rank, desk.as_ref()).await?);
            }
            (tensor, neighbour(state, rank).await?)
        };
        seats.push(tensor.and_then(|tensor| Seat::new(rank, tensor, neighbour).ok()));
    }
    for send in sends {
        send.await?;
    }
    let seats: Option<Vec<Seat>> = seats.into_iter().collect();
    let seats = seats.filter(|seats| seats.iter().all(|seat| seat.rank == own || seat.neighbour.is_some()));
    tell(state, u8::from(seats.is_some())).await?;
    let mut all_have = seats.is_some();
    for rank in (0..state.size()).filter(|rank| *rank != own) {
        all_have &= answer(state, rank).await?;
    }
    let (arena, deferred) = (state.hub.node.arena().clone(), Arc::clone(&state.hub.deferred));
    Ok(seats.filter(|_| all_have).map(|seats| Arc::new(Board::new(own as usize, seats, arena, deferred))))
}

/// Whether all members say that they run on one host, and listen for links over shared memory.
fn is_one_host(mesh: &Mesh, state: &State) -> bool {
    let host = |rank: u32| shared_host_of(mesh, state, rank);
    let first = host(0);
    first.is_some() && (1..state.size()).all(|rank| host(rank) == first)
}

/// Another rank as one that shares memory with this node, if it does.
async fn neighbour(state: &State, rank: u32) -> Result<Option<Neighbour>> {
    let link = state.link(rank).await?;
    state.hub.node.neighbour(link)
}

/// Gives a rank this one's desk, if it has one and that rank can see it.
async fn give(state: &State, rank: u32, desk: Option<&Tensor>) -> Result<Work<()>> {
    let desk = neighbour(state, rank).await?.and(desk);
    let mut message = Outgoing::control(envelope(state, DESKS), words(state, u8::from(desk.is_some())));
    message.parts.extend(desk.map(|desk| Part::new(desk.clone(), Mode::Share)));
    state.hub.node.isend(state.link(rank).await?, message)
}

/// Tells all others whether this rank has everybody's desk.
async fn tell(state: &State, has_all: u8) -> Result<()> {
    let own = state.group.rank().0;
    let mut sends = Vec::new();
    for rank in (0..state.size()).filter(|rank| *rank != own) {
        let message = Outgoing::control(envelope(state, ANSWERS), words(state, has_all));
        sends.push(state.hub.node.isend(state.link(rank).await?, message)?);
    }
    for send in sends {
        send.await?;
    }
    Ok(())
}

fn envelope(state: &State, tag: Tag) -> Envelope {
    Envelope::data(state.context(state.group.rank().0, SORT), tag)
}

async fn message(state: &State, rank: u32, tag: Tag) -> Result<Message> {
    let wanted = Wanted { source: None, context: state.context(rank, SORT), tag };
    Awaiting::post(state, wanted, None)?.taken(state, rank).await
}

/// The desk of another rank: memory that both see, or nothing.
async fn received(state: &State, rank: u32, tag: Tag) -> Result<Option<Tensor>> {
    let message = message(state, rank, tag).await?;
    if message.control != words(state, 1) {
        return Ok(None);
    }
    // Where lending has reached its limit a copy comes instead.
    Ok(message.into_tensor().ok().filter(|tensor| tensor.buffer().is_shared_alias()))
}

async fn answer(state: &State, rank: u32) -> Result<bool> {
    Ok(message(state, rank, ANSWERS).await?.control == words(state, 1))
}

/// What a rank says: whether it has what is asked for, and by which table it chooses.
fn words(state: &State, has: u8) -> Vec<u8> {
    let mut words = vec![VERSION, has];
    words.extend(state.hub.table_digest.to_le_bytes());
    words
}
