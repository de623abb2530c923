//! What a server gives away to be saved, and takes back.

use super::store::Store;
use super::{Holder, of};
use crate::held::Held;
use crate::layout::KEYS_MAX;
use crate::local::unknown;
use crate::protocol::{Examine, Export, Head, Import, being_updated};
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::TypedReply;
use sheave_net::Part;
use sheave_tensor::{Mode, Tensor};

impl Holder {
    pub(super) fn examine(&self, Examine { store, numbers }: &Examine) -> Result<Vec<Head>> {
        if numbers.len() > KEYS_MAX {
            return Err(Error::new(ErrorKind::Protocol, format!("{} slices in one request", numbers.len())));
        }
        let mut table = self.table.lock();
        let store = of(&mut table, *store)?;
        numbers.iter().map(|number| store.examine(*number)).collect()
    }

    pub(super) fn export(&self, Export { store, number, with_value }: &Export, reply: TypedReply<Head>) {
        let exported = of(&mut self.table.lock(), *store).and_then(|store| store.export(*number, *with_value));
        match exported {
            Ok((head, tensors)) => {
                let parts = tensors.into_iter().map(|tensor| Part::new(tensor, Mode::Move)).collect();
                reply.with(&head, parts, &[]);
            }
            Err(error) => reply.error(error),
        }
    }

    pub(super) fn import(&self, import: &Import, tensors: &[Tensor]) -> Result<()> {
        of(&mut self.table.lock(), import.store)?.import(import, tensors)
    }
}

impl Store {
    fn examine(&self, number: u64) -> Result<Head> {
        Ok(self.quiet(number)?.slot.head(&self.merge))
    }

    fn export(&self, number: u64, with_value: bool) -> Result<(Head, Vec<Tensor>)> {
        self.quiet(number)?.slot.export(&self.merge, with_value, &self.arena)
    }

    fn import(&mut self, import: &Import, tensors: &[Tensor]) -> Result<()> {
        self.quiet(import.number)?;
        let place = self.index.get(&import.number).copied();
        let held = place.and_then(|place| self.slots.get_mut(place));
        let held = held.ok_or_else(|| Error::new(ErrorKind::Internal, "a slot that was there"))?;
        held.slot.import(&self.merge, import.with_value, &import.outline, tensors, &self.arena)
    }

    /// A slot that nobody waits for.
    fn quiet(&self, number: u64) -> Result<&Held> {
        let held = self.index.get(&number).map(|place| &self.slots[*place]);
        let held = held.ok_or_else(|| unknown(&format!("number {number:016x}").into(), "save"))?;
        match held.is_busy() {
            true => Err(being_updated(&held.slot.meta.key)),
            false => Ok(held),
        }
    }
}
