//! Merges by user code, which takes as long as it takes and may block.
//!
//! On a server such a merge leaves its slot: a lane runs it, away from the threads that serve the links, while the
//! server goes on with everything else. What the code changes is a copy. So whoever reads the slot meanwhile finds the
//! value before, and everybody does if the code fails half-way; [`Slot::take_back`] puts the result into the slot.
//!
//! A slot has one such merge at a time. Its pace ([`crate::round`], [`crate::clock`]) keeps what comes meanwhile in
//! order, and knows its own merge again by a ticket: one that comes back after the slot was cleared finds nobody.

use crate::key::Key;
use crate::rows::merge;
use crate::slot::{Slot, flat_copy, panicked};
use crate::sum::Total;
use crate::updater::{Function, Within};
use sheave_base::{Error, ErrorKind, Result, contain};
use sheave_tensor::{Arena, Tensor};
use std::sync::Arc;

/// A sum on its way through user code.
pub(crate) struct UserMerge {
    function: Function,
    key: Key,
    /// The index, in the tensor, of the slot's first element.
    start: u64,
    total: Total,
    /// The sum of rows as the code is given it: packed.
    packed: Option<Tensor>,
    /// A copy of the value, or of its rows that are in the sum, packed.
    value: Tensor,
    ticket: Ticket,
}

/// Tells one merge of a slot from all others.
#[derive(Clone, Debug)]
pub(crate) struct Ticket(Arc<()>);

impl PartialEq for Ticket {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl UserMerge {
    /// Runs the code. Blocks for as long as it does.
    pub(crate) fn run(&mut self) -> Result<()> {
        let Self { function, key, start, total, packed, value, .. } = self;
        let sum = match (&*packed, &*total) {
            (Some(packed), _) | (None, Total::Dense(packed)) => packed,
            (None, Total::Rows(_)) => return Err(Error::new(ErrorKind::Internal, "rows that were not packed")),
        };
        let _within = Within::slice(*start);
        contain::run(|| function(key, sum, value)).unwrap_or_else(|text| Err(panicked(key, text)))
    }

    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket.clone()
    }
}

impl Slot {
    /// Begins a merge by this code. [`Slot::take_back`] must follow.
    pub(crate) fn set_aside(&self, function: &Function, total: Total, arena: &Arena) -> Result<UserMerge> {
        let (packed, value) = match &total {
            Total::Dense(_) => (None, flat_copy(&self.value, arena)?),
            Total::Rows(rows) => {
                let (packed, value) = merge::pack(&self.value, rows, arena)?;
                (Some(packed), value)
            }
        };
        let (function, key, ticket) = (Arc::clone(function), self.meta.key.clone(), Ticket(Arc::default()));
        Ok(UserMerge { function, key, start: self.start, total, packed, value, ticket })
    }

    /// Ends a merge by user code, whose outcome this is: its value becomes the slot's, or nothing changes. Returns the
    /// sum too, whose memory may be used again.
    pub(crate) fn take_back(&mut self, merge: UserMerge, outcome: Result<()>, arena: &Arena) -> (Result<()>, Total) {
        let UserMerge { total, value, packed, .. } = merge;
        // It may be the sum's own memory.
        drop(packed);
        self.changes();
        let outcome = outcome.and_then(|()| match &total {
            Total::Dense(_) => self.replace(&value),
            Total::Rows(rows) => {
                self.own(arena)?;
                merge::unpack(&mut self.value, rows, &value)
            }
        });
        if outcome.is_ok() {
            self.is_all_present();
        }
        (outcome, total)
    }
}
