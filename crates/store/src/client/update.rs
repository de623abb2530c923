//! Pushes and pulls: what goes to which server, and what comes back.

use super::batch::{Batch, Parcel, with_room};
use super::places::{Places, Scatter, Unpack, address};
use super::{Client, Known};
use crate::compress::Compression;
use crate::gather::gather;
use crate::key::Key;
use crate::layout::{Layout, Spot};
use crate::local::{check_apart, grouped, unknown};
use crate::protocol::{self, Form, Piece, SERVICE, UPDATE, Update};
use crate::round::AHEAD_MAX;
use crate::slot::{empty, flat_copy};
use sheave_base::{Error, ErrorKind, NodeId, Result, Work};
use sheave_mesh::{Answer, Call, Leases};
use sheave_net::Part;
use sheave_tensor::{Dtype, Mode, Tensor};
use smallvec::SmallVec;
use std::collections::HashSet;
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

impl Client {
    /// Pushes and pulls, in this order for each key.
    pub(crate) fn update(
        &self,
        operation: &'static str,
        push: &[(Key, Tensor)],
        pull: &[(Key, Tensor)],
    ) -> Result<Work<()>> {
        self.check_usable(operation)?;
        self.check_not_done(operation, !push.is_empty())?;
        check_apart(operation, pull.iter().map(|(_, place)| place))?;
        let known = self.known.read();
        let find = |key: &Key, tensor: &Tensor| {
            let known = known.get(key).ok_or_else(|| unknown(key, operation))?;
            known.meta.check(operation, tensor).map(|()| known)
        };
        let mut batches: Vec<Vec<Batch>> = self.servers.iter().map(|_| Vec::new()).collect();
        let mut ahead = Ahead::default();
        let mut keys = Vec::with_capacity(push.len() + pull.len());
        // A gradient that is coded has changed what is left over, so nothing may be refused after that.
        push.iter().chain(pull).try_for_each(|(key, tensor)| find(key, tensor).map(drop))?;
        let codes = *self.compression.lock();
        for (key, sum) in grouped(push, self.mesh.node().arena())? {
            let known = find(key, &sum)?;
            if self.counts_pushes() {
                ahead.add(known, self.is_synchronous())?;
            }
            keys.push(known.number);
            let mut coding = known.coding.lock();
            let code = coding.code(&known.meta, codes.push);
            for (slice, piece, value) in self.pieces(known.number, &known.meta, &sum, code)? {
                let value = coding.encode(&known.meta, piece.form, value, &slice.range, self.mesh.node().arena())?;
                let batch = with_room(&mut batches[slice.server], 0);
                batch.count(&piece);
                batch.push.push((piece, value));
            }
        }
        for (key, place) in pull {
            let known = find(key, place)?;
            keys.push(known.number);
            let code = if codes.pull.require(known.meta.dtype).is_ok() { codes.pull } else { Compression::None };
            for (slice, piece, place) in self.pieces(known.number, &known.meta, place, code)? {
                let batch = with_room(&mut batches[slice.server], piece.len_bytes);
                batch.count(&piece);
                batch.pulled_bytes += piece.len_bytes;
                batch.pull.push((piece, place));
            }
        }
        drop(known);
        self.send(operation, keys, batches, ahead, Vec::new())
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

    /// Sends the batches of each server, and fills `scatters` when all is received.
    pub(super) fn send(
        &self,
        operation: &'static str,
        keys: Vec<u64>,
        batches: Vec<Vec<Batch>>,
        ahead: Ahead,
        scatters: Vec<Scatter>,
    ) -> Result<Work<()>> {
        let pulls = batches.iter().flatten().flat_map(|batch| &batch.pull).map(|(_, place)| place);
        let scattered = || scatters.iter().map(|scatter| &scatter.place);
        let mut targets: HashSet<usize> = pulls.map(address).collect();
        targets.extend(scattered().map(address));
        // What lies where something will be received is captured first.
        let mut parcels = Vec::new();
        for (server, batches) in self.servers.iter().zip(batches) {
            for batch in batches {
                parcels.push(self.wrap(*server, batch, &targets)?);
            }
        }
        let pulls = parcels.iter().flat_map(|parcel| parcel.update.pull.iter().zip(&parcel.places));
        let places = Places::lease(operation, pulls, scattered())?;
        let mut calls = Vec::new();
        let mut unpacks = Vec::new();
        let mut failure = None;
        // Also after a failure: those who live must get what all other workers send them.
        for parcel in parcels {
            match self.begin(parcel, &places.large) {
                Ok((call, unpack)) => {
                    calls.push(call);
                    unpacks.extend(unpack);
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if let Some(error) = failure {
            let is_torn = !calls.is_empty() && !ahead.0.is_empty() && error.kind() != ErrorKind::PeerLost;
            if is_torn {
                let context = "a push has reached some servers and not others, and the store is of no more use";
                let _ = self.broken.set(error.clone().context(context));
            }
            calls.iter().for_each(Work::cancel);
            return Err(error);
        }
        let (completer, work) = self.mesh.node().pair(operation, None);
        let entry = self.outstanding.begin(keys, &work);
        let held = (ahead, entry);
        gather(calls, completer, move || {
            drop(held);
            let mut leases = places.into_leases()?;
            unpacks.into_iter().try_for_each(|unpack| unpack.run(&mut leases))?;
            scatters.into_iter().try_for_each(|scatter| scatter.run(&mut leases))
        });
        Ok(work)
    }

    /// Packs what is pushed. Values that lie in one of the buffers `targets` are copied.
    fn wrap(&self, server: NodeId, batch: Batch, targets: &HashSet<usize>) -> Result<Parcel> {
        let (pull, places) = batch.pull.into_iter().unzip();
        let push = batch.push.iter().map(|(piece, _)| *piece).collect();
        let update = Update { store: self.open.store, push, pull };
        let tensors = self.pack(batch.push, targets)?;
        Ok(Parcel { server, update, tensors, places })
    }

    fn begin(&self, parcel: Parcel, leases: &Leases) -> Result<(Work<Answer>, Vec<Unpack>)> {
        let Parcel { server, update, tensors, places: targets } = parcel;
        let arena = self.mesh.node().arena();
        let layout = Layout::of(&update.pull)?;
        let mut places: SmallVec<[Tensor; 1]> = SmallVec::new();
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
        let args = protocol::encode(&update)?;
        let call = Call { args, tensors, places, leases, ..Call::default() };
        Ok((self.mesh.call(server, SERVICE, UPDATE, call)?, unpacks))
    }

    /// The tensors of a message with these pieces: the packed ones are copied into one, codes and ids that are
    /// asked for are handed over, the others leave by copy. Those in the buffers `targets` are copied here and now.
    pub(super) fn pack(&self, pieces: Vec<(Piece, Tensor)>, targets: &HashSet<usize>) -> Result<SmallVec<[Part; 1]>> {
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
                false if targets.contains(&address(&tensor)) => {
                    Part::new(flat_copy(&tensor, self.mesh.node().arena())?, Mode::Move)
                }
                false => Part::new(tensor, Mode::Copy),
            });
        }
        Ok(parts)
    }
}
