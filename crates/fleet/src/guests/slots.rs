//! The slots of a fleet: who runs in each, and who waits for it.

use super::Restarts;
use parking_lot::Mutex;
use sheave_base::work::Completer;
use sheave_base::{Error, ErrorKind, Result, Work};
use sheave_mesh::{AttachedGuest, Mesh};
use sheave_net::Node;
use sheave_process::Child;
use std::collections::VecDeque;
use std::time::Instant;

/// One slot. Its arrival ends when its guest is attached, and begins anew when that is lost.
struct Slot {
    arrival: Work<AttachedGuest>,
    arriving: Option<Completer<AttachedGuest>>,
    /// The name of the guest that runs or is awaited.
    name: Option<String>,
    guest: Option<AttachedGuest>,
    child: Option<Child>,
    /// The last replacements, of which there are no more than may be.
    replaced: VecDeque<Instant>,
    /// Replacements since the last guest that was attached.
    unattached: u32,
    is_over: bool,
}

pub(super) struct Slots {
    node: Node,
    slots: Mutex<Vec<Slot>>,
}

impl Slots {
    pub(super) fn new(mesh: &Mesh, count: usize) -> Self {
        let node = mesh.node().clone();
        let slot = || {
            let (arriving, arrival) = node.pair("fleet guest", None);
            Slot {
                arrival,
                arriving: Some(arriving),
                name: None,
                guest: None,
                child: None,
                replaced: VecDeque::new(),
                unattached: 0,
                is_over: false,
            }
        };
        let slots = (0..count).map(|_| slot()).collect();
        Self { slots: Mutex::new(slots), node }
    }

    pub(super) fn count(&self) -> usize {
        self.slots.lock().len()
    }

    pub(super) fn guests(&self) -> Vec<AttachedGuest> {
        self.slots.lock().iter().filter_map(|slot| slot.guest.clone()).collect()
    }

    pub(super) fn children(&self) -> Vec<Child> {
        self.slots.lock().iter().filter_map(|slot| slot.child.clone()).collect()
    }

    pub(super) fn arrival(&self, number: usize) -> Result<Work<AttachedGuest>> {
        let slots = self.slots.lock();
        slots.get(number).map(|slot| slot.arrival.clone()).ok_or_else(|| {
            let what = format!("slot {number} of a fleet; expected a number below {}", slots.len());
            Error::new(ErrorKind::InvalidArgument, what)
        })
    }

    /// A process runs in this slot.
    pub(super) fn runs(&self, number: usize, name: &str, child: Child) {
        if let Some(slot) = self.slots.lock().get_mut(number) {
            (slot.name, slot.child) = (Some(name.to_owned()), Some(child));
        }
    }

    /// The process of this slot has become a guest. Returns whether all slots have one.
    pub(super) fn attached(&self, number: usize, guest: &AttachedGuest) -> bool {
        let (arriving, all) = {
            let mut slots = self.slots.lock();
            let Some(slot) = slots.get_mut(number) else { return false };
            (slot.guest, slot.unattached) = (Some(guest.clone()), 0);
            let arriving = slot.arriving.take();
            (arriving, slots.iter().all(|slot| slot.guest.is_some()))
        };
        if let Some(arriving) = arriving {
            arriving.complete(Ok(guest.clone()));
        }
        all
    }

    /// The guest of this slot is gone, or never came.
    pub(super) fn vacate(&self, number: usize) {
        if let Some(slot) = self.slots.lock().get_mut(number) {
            (slot.name, slot.guest) = (None, None);
        }
    }

    /// Somebody is to come to this slot, where nobody is. Returns why not, if that may not be.
    pub(super) fn replace(&self, number: usize, restarts: Restarts) -> std::result::Result<(), String> {
        let Restarts { most, within } = restarts;
        let mut slots = self.slots.lock();
        let Some(slot) = slots.get_mut(number) else { return Err(format!("there is no slot {number}")) };
        let now = Instant::now();
        while slot.replaced.front().is_some_and(|at| now.saturating_duration_since(*at) >= within) {
            slot.replaced.pop_front();
        }
        if slot.is_over {
            return Err(format!("slot {number} has ended"));
        }
        if slot.arriving.is_none() {
            let (arriving, arrival) = self.node.pair("fleet guest", None);
            (slot.arriving, slot.arrival) = (Some(arriving), arrival);
        }
        if most == 0 {
            return Err(format!("the process of slot {number} has ended, and this fleet replaces none"));
        }
        if slot.replaced.len() >= most as usize {
            return Err(format!("the processes of slot {number} ended more than {most} times within {within:?}"));
        }
        if slot.unattached >= most {
            return Err(format!("{most} replacements in a row ended in slot {number} before they were attached"));
        }
        slot.replaced.push_back(now);
        slot.unattached += 1;
        Ok(())
    }

    /// Nobody will be started in this slot any more. Its arrival ends with this error, for those who ask later too. Who
    /// runs there, or is on its way, is known until the fleet is closed.
    pub(super) fn over(&self, number: usize, error: &Error) {
        let arriving = {
            let mut slots = self.slots.lock();
            let Some(slot) = slots.get_mut(number).filter(|slot| !slot.is_over) else { return };
            slot.is_over = true;
            let arriving = slot.arriving.take();
            if arriving.is_none() {
                slot.arrival = Work::ready("fleet guest", Err(error.clone()));
            }
            arriving
        };
        if let Some(arriving) = arriving {
            arriving.complete(Err(error.clone()));
        }
    }

    pub(super) fn end_all(&self, error: &Error) {
        (0..self.count()).for_each(|number| self.over(number, error));
    }

    /// Takes the names of those who are invited, and the guests that are there.
    pub(super) fn take_all(&self) -> (Vec<String>, Vec<AttachedGuest>) {
        let (mut invited, mut guests) = (Vec::new(), Vec::new());
        for slot in self.slots.lock().iter_mut() {
            match (slot.name.take(), slot.guest.take()) {
                (_, Some(guest)) => guests.push(guest),
                (name, None) => invited.extend(name),
            }
        }
        (invited, guests)
    }
}
