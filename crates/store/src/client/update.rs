//! Pushes and pulls: what goes to which server, and what comes back.

use super::batch::{Batch, Parcel, Ready, with_room};
use super::coding::Draft;
use super::lane::{Announced, Item, What, torn};
use super::places::{Places, Scatter, Unpack, address};
use super::{Client, Known};
use crate::compress::Compression;
use crate::key::Key;
use crate::layout::{Layout, Spot};
use crate::local::{check_apart, grouped, unknown};
use crate::protocol::{Begin, Form, OnWorkerLoss, Piece, Told, Update};
use crate::round::AHEAD_MAX;
use crate::slot::{empty, flat_copy};
use crate::store::Options;
use sheave_base::{Error, ErrorKind, NodeId, Result, Work};
use sheave_mesh::{CallOptions, Leases};
use sheave_net::{Part, Parts, Tensors};
use sheave_tensor::{Dtype, Mode, Tensor};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Pushes of one operation that have not ended; they are no more when this is dropped.
#[derive(Default)]
pub(super) struct Ahead(Vec<Arc<Known>>);

impl Ahead {
    /// One more push of this key.
    pub(super) fn add(&mut self, known: &Arc<Known>, is_limited: bool) -> Result<()> {
        let before = known.ahead.fetch_add(1, SeqCst);
        self.0.push(Arc::clone(known));
        if before < AHEAD_MAX || !is_limited {
            return Ok(());
        }
        let what = format!("{AHEAD_MAX} pushes of key {} have not ended", known.meta.key);
        Err(Error::new(ErrorKind::LimitExceeded, what).operation("push").hint("wait for earlier pushes first"))
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.0.iter().for_each(|known| {
            known.ahead.fetch_sub(1, SeqCst);
        });
    }
}

/// What an operation comes to.
pub(super) struct Plan {
    pub(super) operation: &'static str,
    /// The keys' numbers.
    pub(super) keys: Vec<u64>,
    /// By server.
    pub(super) batches: Vec<Vec<Batch>>,
    pub(super) ahead: Ahead,
    /// What is left to do when all is received.
    pub(super) scatters: Vec<Scatter>,
}

/// An operation whose calls are being made.
#[derive(Default)]
struct Begun {
    calls: Vec<Work<Told>>,
    unpacks: Vec<Unpack>,
    scatters: Vec<Scatter>,
    /// The first of all.
    failure: Option<Error>,
    /// The first that is no loss of a server: those who live must get what all other workers send them.
    refusal: Option<Error>,
    ahead: Ahead,
    /// Whether a server has a part of a push, or waits for one.
    has_pushed: bool,
    /// Whether a server that lives was to have a part of a push, and did not get it.
    lacks_pushed: bool,
    /// Whether a server is lost that was to have a part of anything.
    has_lost: bool,
    /// If its slices are queued.
    announced: Option<Arc<Announced>>,
}

impl Begun {
    /// Notes a call that was made, or why it could not be made, and whether it pushes.
    fn add(&mut self, pushes: bool, call: Result<(Work<Told>, Vec<Unpack>)>) -> bool {
        match call {
            Ok((call, unpacks)) => {
                self.calls.push(call);
                self.unpacks.extend(unpacks);
                self.has_pushed |= pushes;
                true
            }
            Err(error) => {
                if error.kind().is_loss() {
                    self.has_lost = true;
                } else {
                    self.lacks_pushed |= pushes;
                    self.refusal.get_or_insert_with(|| error.clone());
                }
                self.failure.get_or_insert(error);
                false
            }
        }
    }

    /// Whether all that was to be pushed was, to all servers.
    fn is_whole(&self) -> bool {
        self.has_pushed && !self.lacks_pushed && !self.has_lost
    }

    /// Whether a call is still made, once another one was refused: only if it pushes what other servers have of a push
    /// that is whole so far.
    fn goes_on(&self, pushes: bool) -> bool {
        self.refusal.is_none() || pushes && self.has_pushed && !self.lacks_pushed
    }
}

/// What an operation that is queued pushes to one server.
#[derive(Default)]
struct Captured {
    /// How many slices the server is to wait for.
    contributions: u64,
    items: Vec<Item>,
}

/// Bytes from which on a message that is queued takes no more slices.
const QUEUED_MESSAGE_BYTES: u64 = 1 << 20;

/// As much of a message that is not queued: the server adds what it has, and answers, while the rest is on its way.
const MESSAGE_BYTES: u64 = 256 << 10;

/// Most messages that one operation becomes, about: a large tensor must not fill tables that are made for many keys.
const MESSAGES_MAX: u64 = 32;

/// How an operation leaves.
#[derive(Clone, Copy)]
pub(super) struct Leaving {
    is_queued: bool,
    /// Bytes from which on a message takes no more slices.
    pub(super) message_bytes: u64,
}

impl Client {
    /// Pushes and pulls, in this order for each key.
    pub(crate) fn update(
        &self,
        operation: &'static str,
        push: &[(Key, Tensor)],
        pull: &[(Key, Tensor)],
        options: Options,
    ) -> Result<Work<()>> {
        self.check_usable(operation)?;
        self.check_not_done(operation, !push.is_empty())?;
        let _turn = if push.is_empty() { None } else { Some(self.turn(operation)?) };
        let bytes = push.iter().chain(pull).map(|(_, tensor)| tensor.len_bytes() as u64).sum();
        let leaving = self.leaving(options, bytes)?;
        check_apart(operation, pull.iter().map(|(_, place)| place))?;
        let known = self.known.read();
        let find = |key: &Key, tensor: &Tensor| {
            let known = known.get(key).ok_or_else(|| unknown(key, operation))?;
            known.meta.check(operation, tensor).map(|()| known)
        };
        let mut batches: Vec<Vec<Batch>> = self.servers.iter().map(|_| Vec::new()).collect();
        let mut ahead = Ahead::default();
        let mut keys = Vec::with_capacity(push.len() + pull.len());
        push.iter().chain(pull).try_for_each(|(key, tensor)| find(key, tensor).map(drop))?;
        // What is pulled of a slice comes with the answer to what is pushed to it.
        let mut pushed = HashMap::new();
        for (key, sum) in grouped(push, self.mesh.node().arena())? {
            let known = find(key, &sum)?;
            if self.counts_pushes() {
                ahead.add(known, self.is_synchronous())?;
            }
            keys.push(known.number);
            // Under the key's lock, so that its pushes choose in the order in which codes are set.
            let choice = known.coding.lock().choose(&known.meta, self.compression.lock().push);
            for (slice, piece, value) in self.pieces(known.number, &known.meta, &sum, choice.code)? {
                let (value, draft) = known.encode(&piece, value, choice, self.mesh.node().arena())?;
                let batches = &mut batches[slice.server];
                let batch = with_room(batches, 0, leaving.message_bytes);
                batch.count(&piece);
                batch.push.push((piece, value));
                batch.drafts.extend(draft);
                if !piece.packed && !pull.is_empty() {
                    pushed.insert(piece.number, batches.len() - 1);
                }
            }
        }
        let pull_code = self.compression.lock().pull;
        for (key, place) in pull {
            let known = find(key, place)?;
            keys.push(known.number);
            let code = if pull_code.require(known.meta.dtype).is_ok() { pull_code } else { Compression::None };
            for (slice, piece, place) in self.pieces(known.number, &known.meta, place, code)? {
                let batches = &mut batches[slice.server];
                let pushed = pushed.get(&piece.number).and_then(|at| batches.get_mut(*at));
                let batch = match pushed.filter(|batch| batch.has_room(piece.len_bytes, u64::MAX)) {
                    Some(batch) => batch,
                    None => with_room(batches, piece.len_bytes, leaving.message_bytes),
                };
                batch.count(&piece);
                batch.pulled_bytes += piece.len_bytes;
                batch.pull.push((piece, place));
            }
        }
        drop(known);
        let plan = Plan { operation, keys, batches, ahead, scatters: Vec::new() };
        self.carry_out(plan, options, leaving)
    }

    /// Refuses a push of a worker that has said that it has none.
    pub(super) fn check_not_done(&self, operation: &'static str, pushes: bool) -> Result<()> {
        if !pushes || !self.is_done.load(SeqCst) {
            return Ok(());
        }
        let what = "this worker has said that it is done, and others are not";
        Err(Error::new(ErrorKind::InvalidArgument, what)
            .operation(operation)
            .hint("wait for the work of done before pushing again"))
    }

    /// How an operation of so many bytes leaves. Blocks until there is room in the queue, if that is where it goes.
    ///
    /// What leaves at once is cut into messages where servers make rounds of it, slice by slice. A store that does
    /// without a worker that dies would lose what that has pushed in part, and one without rounds would show it; there
    /// an operation is one message.
    pub(super) fn leaving(&self, options: Options, bytes: u64) -> Result<Leaving> {
        // What is queued would be overtaken by what is not.
        if options.priority != 0 || !self.lane.is_empty() {
            self.lane.wait_for_room(&self.mesh, None)?;
            return Ok(Leaving { is_queued: true, message_bytes: QUEUED_MESSAGE_BYTES });
        }
        let is_cut = self.is_synchronous() && self.open.on_worker_loss == OnWorkerLoss::Fail;
        let message_bytes = if is_cut { MESSAGE_BYTES.max(bytes / MESSAGES_MAX) } else { u64::MAX };
        Ok(Leaving { is_queued: false, message_bytes })
    }

    /// Sends a plan, or queues it.
    pub(super) fn carry_out(&self, plan: Plan, options: Options, leaving: Leaving) -> Result<Work<()>> {
        if leaving.is_queued { self.queue(plan, options.priority) } else { self.send(plan) }
    }

    /// Sends everything now.
    fn send(&self, plan: Plan) -> Result<Work<()>> {
        let Plan { operation, keys, batches, ahead, scatters } = plan;
        let pulls = batches.iter().flatten().flat_map(|batch| &batch.pull).map(|(_, place)| place);
        let mut targets: HashSet<usize> = pulls.map(address).collect();
        targets.extend(scatters.iter().map(|scatter| address(&scatter.place)));
        // What lies where something will be received is captured first.
        let mut parcels = Vec::new();
        for (server, batches) in self.servers.iter().zip(batches) {
            for batch in batches {
                parcels.push(self.wrap(*server, batch, &targets)?);
            }
        }
        let pulls = parcels.iter().flat_map(|parcel| parcel.update.pull.iter().zip(&parcel.places));
        let places = Places::lease(operation, pulls, &scatters)?;
        let ready =
            parcels.into_iter().map(|parcel| self.prepare(parcel, &places.large)).collect::<Result<Vec<_>>>()?;
        // What is being written is refused before any server has its part; nobody begins to until all have theirs.
        let copied = ready.iter().flat_map(|ready| &ready.options.tensors).filter(|part| part.mode() == Mode::Copy);
        let _leases = copied.map(|part| part.tensor().read_lease(operation)).collect::<Result<Vec<_>>>()?;
        let mut begun = Begun { ahead, scatters, ..Begun::default() };
        for Ready { server, update, options, unpacks, drafts } in ready {
            let pushes = update.contributes();
            if !begun.goes_on(pushes) {
                continue;
            }
            let call = self.mesh.ask_with::<Update>(server, &update, options);
            if begun.add(pushes, call.map(|call| (call, unpacks))) {
                drafts.into_iter().for_each(Draft::leave);
            }
        }
        self.finish(operation, keys, places, begun)
    }

    /// The work of all calls of an operation.
    fn finish(&self, operation: &'static str, keys: Vec<u64>, places: Places, begun: Begun) -> Result<Work<()>> {
        let (is_whole, is_torn) = (begun.is_whole(), begun.has_pushed && begun.lacks_pushed && self.counts_pushes());
        let Begun { calls, unpacks, scatters, failure, refusal, ahead, announced, .. } = begun;
        let pushed_alone = match failure {
            // Whoever were told that it has failed would push the same again.
            Some(error) if is_whole => {
                Some(error.context("what was pushed counts, and may not be pushed again; it could not be pulled"))
            }
            Some(error) => {
                calls.iter().for_each(Work::cancel);
                // What was only asked for changes nothing there.
                if let Some(refusal) = refusal.filter(|refusal| is_torn && self.broken.set(torn(refusal)).is_ok()) {
                    self.tell_torn(&refusal);
                }
                return Err(error);
            }
            None => None,
        };
        let (completer, work) = self.mesh.node().pair(operation, None);
        let entry = self.outstanding.begin(keys, &work);
        let held = (ahead, entry);
        let mut joined = self.join(operation, calls);
        if let Some(announced) = announced {
            joined = joined.or_else(move |error| Err(announced.why(error)));
        }
        joined.pass_to(completer, move |_| {
            drop(held);
            pushed_alone.map_or(Ok(()), Err)?;
            let mut leases = places.into_leases()?;
            unpacks.into_iter().try_for_each(|unpack| unpack.run(&mut leases))?;
            scatters.into_iter().try_for_each(|scatter| scatter.run(&mut leases))
        });
        Ok(work)
    }

    /// Captures everything, and sends it in the order of the priorities.
    fn queue(&self, plan: Plan, priority: i32) -> Result<Work<()>> {
        let Plan { operation, keys, batches, ahead, scatters } = plan;
        let pulls = batches.iter().flatten().flat_map(|batch| &batch.pull).map(|(piece, place)| (piece, place));
        let places = Places::lease(operation, pulls, &scatters)?;
        let broken = Some(&self.broken).filter(|_| !ahead.0.is_empty());
        let announced = Announced::new(self.operations.fetch_add(1, SeqCst), broken.cloned());
        // All that may be refused comes before the first word to a server: one that has heard of slices waits for them.
        let mut captured = Vec::new();
        let mut pulls = Vec::new();
        for (server, batches) in batches.into_iter().enumerate() {
            let mut slices = Captured::default();
            for batch in batches {
                pulls.extend(self.capture(server, batch, &announced, &mut slices)?.map(|parcel| (server, parcel)));
            }
            captured.push(slices);
        }
        let mut asked = Vec::new();
        for (server, parcel) in pulls {
            let keys = parcel.update.pull.iter().map(|piece| piece.number).collect();
            let Ready { update, options, unpacks, .. } = self.prepare(parcel, &places.large)?;
            let (completer, work) = self.mesh.node().pair("call", None);
            let item = Item { server, keys, bytes: 0, what: What::Pull { update, options, completer } };
            asked.push((item, work, unpacks));
        }
        let mut begun = Begun { ahead, scatters, ..Begun::default() };
        let mut items = Vec::new();
        for (server, Captured { contributions, items: mut slices }) in captured.into_iter().enumerate() {
            if contributions > 0 {
                let begin = Begin { store: self.open.store, operation: announced.operation, slices: contributions };
                let call = self.mesh.ask::<Begin>(self.servers[server], &begin);
                call.iter().for_each(|call| announced.told(call));
                match begun.add(true, call.map(|call| (call, Vec::new()))) {
                    true => {}
                    false if begun.refusal.is_some() => break,
                    false => continue,
                }
            }
            slices.iter_mut().for_each(|item| item.queue(self.counts_pushes()));
            items.extend(slices);
        }
        if let Some(error) = begun.refusal.as_ref().filter(|_| begun.has_pushed) {
            self.lane.fail(&announced, error);
        }
        // After a failure nobody waits for what would be pulled.
        for (item, work, unpacks) in asked.into_iter().filter(|_| begun.failure.is_none()) {
            items.push(item);
            begun.calls.push(work);
            begun.unpacks.extend(unpacks);
        }
        begun.announced = Some(announced);
        self.lane.add(priority, items);
        self.finish(operation, keys, places, begun)
    }

    /// Captures what a batch pushes, and returns what it pulls.
    fn capture(
        &self,
        server: usize,
        batch: Batch,
        announced: &Arc<Announced>,
        slices: &mut Captured,
    ) -> Result<Option<Parcel>> {
        let (pull, places): (Vec<Piece>, Vec<Tensor>) = batch.pull.into_iter().unzip();
        // Ids of rows go with the pull.
        let (asked, push): (Vec<_>, Vec<_>) = batch.push.into_iter().partition(|(piece, _)| piece.form == Form::Asked);
        let update = Update { store: self.open.store, push: asked.iter().map(|(piece, _)| *piece).collect(), pull };
        let (tensors, drafts) = (self.pack(asked, |_| true)?, Vec::new());
        let parcel = Parcel { server: self.servers[server], update, tensors, places, drafts };
        if !push.is_empty() {
            let values = push;
            let push: Vec<Piece> = values.iter().map(|(piece, _)| *piece).collect();
            let tensors = self.pack(values, |_| true)?;
            let keys = push.iter().map(|piece| piece.number).collect();
            let bytes = push.iter().map(|piece| piece.len_bytes).sum();
            slices.contributions += push.iter().filter(|piece| piece.form.is_contribution()).count() as u64;
            let what = What::Slices { announced: Arc::clone(announced), push, tensors, drafts: batch.drafts };
            slices.items.push(Item { server, keys, bytes, what });
        }
        Ok(Some(parcel).filter(|parcel| !parcel.places.is_empty()))
    }

    /// Packs what is pushed. Values that lie in one of the buffers `targets` are copied.
    fn wrap(&self, server: NodeId, batch: Batch, targets: &HashSet<usize>) -> Result<Parcel> {
        let (pull, places) = batch.pull.into_iter().unzip();
        let push = batch.push.iter().map(|(piece, _)| *piece).collect();
        let update = Update { store: self.open.store, push, pull };
        let tensors = self.pack(batch.push, |tensor| targets.contains(&address(tensor)))?;
        Ok(Parcel { server, update, tensors, places, drafts: batch.drafts })
    }

    /// Makes the places of a parcel's answer.
    fn prepare(&self, parcel: Parcel, leases: &Leases) -> Result<Ready> {
        let Parcel { server, update, tensors, places: targets, drafts } = parcel;
        let arena = self.mesh.node().arena();
        let layout = Layout::of(&update.pull)?;
        let mut places: Tensors = SmallVec::new();
        let mut unpacks = Vec::new();
        if update.pull.iter().any(|piece| piece.packed) {
            places.push(empty(arena, Dtype::U8, layout.packed_bytes)?);
        }
        for ((place, piece), spot) in targets.into_iter().zip(&update.pull).zip(&layout.spots) {
            match (spot, piece.form) {
                (Spot::Packed(at), form) => {
                    let bytes = *at as usize..(*at + piece.len_bytes) as usize;
                    unpacks.push(Unpack { staging: places[0].clone(), bytes, form, place });
                }
                (Spot::Part(_), form) if !form.is_coded() => places.push(place),
                (Spot::Part(_), form) => {
                    let staging = empty(arena, Dtype::U8, piece.len_bytes)?;
                    places.push(staging.clone());
                    unpacks.push(Unpack { bytes: 0..staging.len_bytes(), staging, form, place });
                }
            }
        }
        let leases = (!places.is_empty()).then(|| Arc::clone(leases));
        let options = CallOptions { tensors, places, leases, ..CallOptions::default() };
        Ok(Ready { server, update, options, unpacks, drafts })
    }

    /// The tensors of a message with these pieces: the packed ones are copied into one, codes and ids that are asked
    /// for are handed over, the others leave by copy. Those that `captures` picks are copied here and now.
    pub(super) fn pack(&self, pieces: Vec<(Piece, Tensor)>, captures: impl Fn(&Tensor) -> bool) -> Result<Parts> {
        let heads: Vec<Piece> = pieces.iter().map(|(piece, _)| *piece).collect();
        let layout = Layout::of(&heads)?;
        let mut parts = SmallVec::new();
        if heads.iter().any(|piece| piece.packed) {
            let mut packed = empty(self.mesh.node().arena(), Dtype::U8, layout.packed_bytes)?;
            let bytes = packed.bytes_mut()?;
            for ((_, tensor), spot) in pieces.iter().zip(&layout.spots) {
                if let Spot::Packed(at) = spot {
                    let at = *at as usize;
                    bytes[at..at + tensor.len_bytes()].copy_from_slice(&tensor.bytes()?);
                }
            }
            parts.push(Part::new(packed, Mode::Move));
        }
        for (piece, tensor) in pieces.into_iter().filter(|(piece, _)| !piece.packed) {
            let is_own = matches!(piece.form, Form::Coded(_) | Form::Asked);
            parts.push(match is_own {
                true => Part::new(tensor, Mode::Move),
                false if captures(&tensor) => Part::new(flat_copy(&tensor, self.mesh.node().arena())?, Mode::Move),
                false => Part::new(tensor, Mode::Copy),
            });
        }
        Ok(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_base::work::pair;

    #[test]
    fn a_part_that_is_refused_after_another_server_was_lost_tears_its_push() {
        let mut begun = Begun::default();
        let (_completer, call) = pair("call");
        assert!(begun.add(true, Ok((call, Vec::new()))));
        assert!(!begun.add(true, Err(Error::new(ErrorKind::PeerLost, "a server is gone"))));
        assert!(begun.goes_on(true) && begun.has_pushed && !begun.lacks_pushed, "those who live get their parts");
        assert!(!begun.add(true, Err(Error::new(ErrorKind::LimitExceeded, "no room"))));
        assert!(begun.lacks_pushed && !begun.goes_on(true), "the server that lives has no part");
        assert_eq!(begun.refusal.as_ref().map(Error::kind), Some(ErrorKind::LimitExceeded));
        // Its caller is told what came first.
        assert_eq!(begun.failure.as_ref().map(Error::kind), Some(ErrorKind::PeerLost));
    }

    #[test]
    fn a_push_is_not_whole_where_a_server_was_lost_after_a_pull_was_refused() {
        let mut begun = Begun::default();
        let (_completer, call) = pair("call");
        assert!(begun.add(true, Ok((call, Vec::new()))));
        assert!(!begun.add(false, Err(Error::new(ErrorKind::LimitExceeded, "no room"))));
        assert!(begun.goes_on(true) && !begun.goes_on(false) && begun.is_whole(), "the rest of it is still to be sent");
        assert!(!begun.add(true, Err(Error::new(ErrorKind::PeerLost, "a server is gone"))));
        assert!(!begun.is_whole(), "the lost server has no part");
    }
}
