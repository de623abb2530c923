//! A store on servers, as a file sees it.

use super::Client;
use crate::checkpoint::Shelf;
use crate::layout::{KEYS_MAX, Slice, Slices};
use crate::protocol::{Examine, Export, Head, Import};
use crate::slot::Meta;
use crate::updater::Spec;
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::CallOptions;
use sheave_net::Part;
use sheave_optim::Optimizer;
use sheave_tensor::{Mode, Tensor};

impl Client {
    /// Lets a file take from the store or give to it, when no operation of this worker is on its way and none begins.
    pub(crate) fn on_shelf(&self, act: impl FnOnce(&mut dyn Shelf) -> Result<()>) -> Result<()> {
        self.check_usable("save")?;
        let _turn = self.pushes.write();
        // Who waits for them learns of their errors.
        let _ = self.outstanding.wait(None);
        act(&mut &*self)
    }

    /// Why a file will not come to its end: a server is gone, whose slices may come much later.
    fn check_servers(&self) -> Result<()> {
        let deaths = self.mesh.deaths();
        let Some(death) = deaths.into_iter().find(|death| self.servers.contains(&death.node)) else { return Ok(()) };
        let error = Error::new(ErrorKind::PeerLost, death.reason);
        Err(self.mesh.member(death.node).map_or_else(|| error.clone(), |member| error.clone().peer(member.peer())))
    }
}

impl Shelf for &Client {
    fn metas(&self) -> Vec<Meta> {
        let mut metas: Vec<Meta> = self.known.read().values().map(|known| known.meta.clone()).collect();
        metas.sort_by(|one, other| one.key.cmp(&other.key));
        metas
    }

    fn slices(&self, meta: &Meta) -> Slices {
        meta.slices(meta.key.number(), &self.open.cutting)
    }

    fn examine(&mut self, metas: &[Meta]) -> Result<Vec<Vec<Head>>> {
        let mut asked: Vec<Vec<(usize, u64)>> = vec![Vec::new(); self.servers.len()];
        let mut heads: Vec<Option<Head>> = Vec::new();
        let mut counts = Vec::with_capacity(metas.len());
        for meta in metas {
            let slices = self.slices(meta);
            counts.push(slices.len());
            for slice in slices {
                asked[slice.server].push((heads.len(), slice.number));
                heads.push(None);
            }
        }
        for (server, asked) in self.servers.iter().zip(asked) {
            for chunk in asked.chunks(KEYS_MAX) {
                let numbers = chunk.iter().map(|(_, number)| *number).collect();
                let examine = Examine { store: self.open.store, numbers };
                let found = self.mesh.ask::<Examine>(*server, &examine)?.join()?.value;
                chunk.iter().zip(found).for_each(|((at, _), head)| heads[*at] = Some(head));
            }
        }
        let mut heads = heads.into_iter();
        let mut next = || {
            heads.next().flatten().ok_or_else(|| Error::new(ErrorKind::Protocol, "a server is silent about a slice"))
        };
        counts.into_iter().map(|count| (0..count).map(|_| next()).collect()).collect()
    }

    fn export(&mut self, _: &Meta, slice: &Slice, with_value: bool) -> Result<(Head, Vec<Tensor>)> {
        self.check_servers()?;
        let export = Export { store: self.open.store, number: slice.number, with_value };
        let answer = self.mesh.ask::<Export>(self.servers[slice.server], &export)?.join()?;
        Ok((answer.value, answer.tensors))
    }

    fn import(&mut self, _: &Meta, slice: &Slice, import: Import, tensors: Vec<Tensor>) -> Result<()> {
        self.check_servers()?;
        let import = Import { store: self.open.store, ..import };
        let tensors = tensors.into_iter().map(|tensor| Part::new(tensor, Mode::Copy)).collect();
        let options = CallOptions { tensors, ..CallOptions::default() };
        self.mesh.ask_with::<Import>(self.servers[slice.server], &import, options)?.wait().map(drop)
    }

    fn optimizer(&mut self) -> Result<Option<Optimizer>> {
        match Client::optimizer(self) {
            Ok(optimizer) => Ok(Some(optimizer)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn set_optimizer(&mut self, optimizer: &Optimizer) -> Result<()> {
        self.tell_updater(&Spec::Optimizer(Box::new(optimizer.clone())))
    }
}
