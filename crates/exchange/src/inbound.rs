//! What comes from one worker, until a batch takes it.
//!
//! Messages of a worker come over one link, one after the other: [`Inbound::admit`] says where the tensors of a request
//! land, perhaps several times until there is room, and [`Inbound::take`] has it when it is whole. Nothing of the same
//! worker comes between the two, so what was decided waits in `arriving`.

use crate::clock::monotonic_ns;
use crate::lane::WINDOW_MAX;
use crate::place::Piece;
use crate::plan::{PLANS_MAX, Plan};
use sheave_base::numbers::Numbered;
use sheave_base::{Error, ErrorKind, LinkId, Result};
use sheave_net::{Admission, Arrival, Ground, Message, Tensors, WriteLeases};
use sheave_tensor::{Arena, Buffer, Dtype, Shape, Tensor};
use sheave_wire::Part;
use std::collections::VecDeque;
use std::sync::Arc;

/// Requests up to this size land in memory that is kept for their keys: links carry so much within a record.
pub const KEPT_BYTES_MAX: usize = 2048;
/// Keys for which such memory is kept.
const KEPT_MAX: usize = 1024;

/// What a request is, besides its tensors.
pub(crate) struct Head {
    pub(crate) number: u64,
    pub(crate) plan: Arc<Plan>,
    pub(crate) step: Option<u32>,
    pub(crate) wants_stamps: bool,
    /// Why nobody gets it, as far as its arrival tells.
    pub(crate) refusal: Option<Error>,
}

/// A whole request.
pub(crate) struct Arrived {
    pub(crate) head: Head,
    pub(crate) tensors: Tensors,
    pub(crate) link: LinkId,
    pub(crate) arrived_ns: u64,
}

/// Why the next message of a worker stays on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// A request that is not answered lies where this key's push is to land.
    Unanswered(u64),
    /// Somebody looks at what lies there, though it is answered.
    Viewed(u64),
    /// More requests than a worker may have in flight.
    Full,
}

#[derive(Default)]
pub(crate) struct Inbound {
    plans: Vec<Option<Arc<Plan>>>,
    pub(crate) pieces: Numbered<u64, Piece>,
    kept: Numbered<u64, Buffer>,
    arriving: Option<Head>,
    pub(crate) queue: VecDeque<Arrived>,
    next: u64,
    pub(crate) blocked: Option<Blocked>,
    /// Why nothing more comes.
    pub(crate) gone: Option<Error>,
    /// It has said farewell.
    pub(crate) has_left: bool,
}

fn strange(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Protocol, format!("a worker sent {what}"))
        .hint("the worker runs another version or its memory is damaged; restart it")
}

impl Inbound {
    /// The number of the request that comes next.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Takes a plan.
    pub(crate) fn learn(&mut self, number: u16, plan: Plan) -> Result<()> {
        let number = usize::from(number);
        if number >= PLANS_MAX {
            return Err(strange(format!("plan {number}")));
        }
        if self.plans.len() <= number {
            self.plans.resize(number + 1, None);
        }
        self.plans[number] = Some(Arc::new(plan));
        Ok(())
    }

    /// Says where the tensors of a request land.
    pub(crate) fn admit(
        &mut self,
        (number, plan, step, wants_stamps): (u64, u16, Option<u32>, bool),
        arrival: &Arrival<'_>,
        arena: &Arena,
    ) -> Result<Admission> {
        if number != self.next {
            return Err(strange(format!("request {number} after {} requests", self.next)));
        }
        let plan = self.plans.get(usize::from(plan)).cloned().flatten();
        let plan = plan.filter(|plan| plan.push_keys.len() == arrival.parts.len());
        let plan = plan.ok_or_else(|| strange("a request of another plan"))?;
        if self.queue.len() >= WINDOW_MAX {
            self.blocked = Some(Blocked::Full);
            return Ok(Admission::Pause);
        }
        let (ground, refusal) = match self.ground(&plan, arrival, arena) {
            Ok(Ok(ground)) => (ground, None),
            Ok(Err(blocked)) => {
                self.blocked = Some(blocked);
                return Ok(Admission::Pause);
            }
            Err(error) => (Ground::default(), Some(error)),
        };
        self.blocked = None;
        self.arriving = Some(Head { number, plan, step, wants_stamps, refusal });
        Ok(Admission::Land(ground))
    }

    fn ground(&mut self, plan: &Plan, arrival: &Arrival<'_>, arena: &Arena) -> Result<Result<Ground, Blocked>> {
        let keyed = || plan.push_keys.iter().copied().zip(arrival.parts);
        if keyed().all(|(key, _)| !self.pieces.contains_key(&key)) {
            return Ok(Ok(self.kept_ground(plan, arrival, arena).unwrap_or_default()));
        }
        let mut places = Tensors::with_capacity(arrival.parts.len());
        for (key, part) in keyed() {
            places.push(match self.pieces.get(&key) {
                Some(piece) => piece.place(key, part)?,
                None => fresh(part, arena)?,
            });
        }
        for (key, piece) in keyed().filter_map(|(key, _)| Some((key, self.pieces.get(&key)?))) {
            if piece.holder.is_some() {
                return Ok(Err(Blocked::Unanswered(key)));
            }
            if !piece.clear() {
                return Ok(Err(Blocked::Viewed(key)));
            }
        }
        for key in &plan.push_keys {
            if let Some(piece) = self.pieces.get_mut(key) {
                piece.holder = Some(self.next);
            }
        }
        leased(places).map(Ok)
    }

    /// Memory that was used for small pushes of these keys before, and that nobody looks at any more. `None` to let the
    /// link choose.
    fn kept_ground(&mut self, plan: &Plan, arrival: &Arrival<'_>, arena: &Arena) -> Option<Ground> {
        if arrival.payload_bytes > KEPT_BYTES_MAX as u64 || arrival.parts.is_empty() {
            return None;
        }
        let mut places = Tensors::with_capacity(arrival.parts.len());
        for (key, part) in plan.push_keys.iter().zip(arrival.parts) {
            let length_bytes = usize::try_from(part.spec.length_bytes().ok()?).ok()?;
            let reusable = self.kept.get(key).filter(|buffer| buffer.is_unique() && buffer.len_bytes() >= length_bytes);
            let buffer = match reusable {
                Some(buffer) => buffer.clone(),
                None => {
                    let buffer = arena.allocate(length_bytes.next_power_of_two().max(64)).ok()?;
                    if self.kept.len() < KEPT_MAX || self.kept.contains_key(key) {
                        self.kept.insert(*key, buffer.clone());
                    }
                    buffer
                }
            };
            let dtype = Dtype::from_code(part.spec.dtype)?;
            places.push(Tensor::from_buffer(buffer, 0, dtype, Shape::new(&part.spec.dims).ok()?).ok()?);
        }
        leased(places).ok()
    }

    /// Takes the request that was admitted.
    pub(crate) fn take(&mut self, message: Message) -> Result<()> {
        let head = self.arriving.take().ok_or_else(|| strange("a request that was not announced"))?;
        self.next += 1;
        let arrived_ns = if head.wants_stamps { monotonic_ns() } else { 0 };
        let mut tensors = Tensors::with_capacity(message.parts.len());
        if head.refusal.is_none() {
            for (key, part) in head.plan.push_keys.iter().zip(message.parts) {
                tensors.push(match self.pieces.get(key) {
                    Some(piece) => piece.view(part)?,
                    None => part,
                });
            }
        }
        self.queue.push_back(Arrived { head, tensors, link: message.source, arrived_ns });
        Ok(())
    }

    /// Forgets what nobody can answer any more, because the worker is lost. True if a request was there to be given
    /// out. What was given out lies in its places for as long as somebody looks.
    pub(crate) fn forget(&mut self) -> bool {
        self.arriving = None;
        self.blocked = None;
        self.pieces.values_mut().for_each(|piece| piece.holder = None);
        let queue = std::mem::take(&mut self.queue);
        !queue.is_empty()
    }

    /// A request was answered: what lay in registered places may go. True if the worker's next message waited for it.
    pub(crate) fn release(&mut self, number: u64, plan: &Plan) -> bool {
        for key in &plan.push_keys {
            if let Some(piece) = self.pieces.get_mut(key).filter(|piece| piece.holder == Some(number)) {
                piece.holder = None;
            }
        }
        self.blocked.take().is_some()
    }
}

fn fresh(part: &Part, arena: &Arena) -> Result<Tensor> {
    let dtype = Dtype::from_code(part.spec.dtype)
        .ok_or_else(|| strange(format!("a tensor of unknown dtype {}", part.spec.dtype)))?;
    let shape = Shape::new(&part.spec.dims)?;
    Tensor::empty(arena, dtype, shape.clone()).or_else(|_| Tensor::private(dtype, shape))
}

fn leased(places: Tensors) -> Result<Ground> {
    let leases = WriteLeases::with_capacity(places.len());
    let mut ground = Ground { places, leases, ..Ground::default() };
    for place in &ground.places {
        ground.leases.push(place.write_lease("push_pull")?);
    }
    Ok(ground)
}
