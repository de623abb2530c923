//! What one link has lent and borrowed.
//!
//! A *loan* is a block that the peer may use: this side keeps the buffer's handle in [`Lent`] until the peer gives the
//! loan back, over the ring, as soon as its last handle is dropped. The peer's end, not the link's, ends a loan for
//! sure: after a link has ended, its loans are kept until the peer's process is known to be gone.
//!
//! A *debt* is a block that the peer lent us. Dropping its buffer only notes the loan's number here ([`Debts`]),
//! whatever thread does it; the link sends the numbers with its next progress.

use crossbeam_queue::SegQueue;
use sheave_base::work::Completer;
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{Arena, Buffer, Lender, ReadLease, Segment};
use std::collections::HashMap;
use std::sync::Arc;

/// A buffer that the peer may use.
pub(crate) struct Loan {
    pub(crate) buffer: Buffer,
    /// Counted against the arena's cap.
    pub(crate) counted_bytes: u64,
    /// Set for a tensor that its sender lends only until the peer has copied it.
    pub(crate) borrowed: Option<Borrowed>,
}

/// A sender that waits until the peer has copied its tensor.
pub(crate) struct Borrowed {
    pub(crate) done: Completer<()>,
    /// Keeps writers away meanwhile.
    pub(crate) _lease: Option<ReadLease>,
}

/// All loans of a link.
#[derive(Default)]
pub(crate) struct Lent {
    loans: HashMap<u64, Loan>,
    next: u64,
}

impl Lent {
    /// Notes a loan and gives it a number.
    pub(crate) fn add(&mut self, loan: Loan) -> u64 {
        self.next += 1;
        self.loans.insert(self.next, loan);
        self.next
    }

    /// Ends a loan. The caller drops the buffer, and completes its sender's work, with no lock held.
    pub(crate) fn end(&mut self, number: u64, arena: &Arena) -> Result<Loan> {
        let loan = self.loans.remove(&number).ok_or_else(|| {
            Error::new(ErrorKind::Protocol, format!("the peer gave back loan {number}, which it does not have"))
        })?;
        arena.lend_ended(loan.counted_bytes);
        Ok(loan)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.loans.is_empty()
    }

    /// The senders that wait for a peer that will not answer any more. Their tensors stay set aside with the loans.
    pub(crate) fn abandon_borrowed(&mut self) -> Vec<Completer<()>> {
        self.loans.values_mut().filter_map(|loan| loan.borrowed.take()).map(|borrowed| borrowed.done).collect()
    }
}

/// Loans and segments of a peer that is declared dead but may still be running, set aside until it is gone.
pub(crate) struct SetAside {
    lent: Lent,
    /// Slots whose last chunks the peer may not have copied yet.
    slots: Option<Buffer>,
    segments: Vec<Arc<Segment>>,
    arena: Arena,
    /// False once the peer is gone; what is dropped before that is leaked on purpose.
    dangerous: bool,
}

impl SetAside {
    pub(crate) fn new(lent: Lent, slots: Option<Buffer>, segments: Vec<Arc<Segment>>, arena: Arena) -> Self {
        for segment in &segments {
            segment.retire();
        }
        Self { lent, slots, segments, arena, dangerous: true }
    }

    /// The peer's process has ended: everything may be used again.
    pub(crate) fn peer_is_gone(mut self) {
        self.dangerous = false;
    }
}

impl Drop for SetAside {
    fn drop(&mut self) {
        let loans = std::mem::take(&mut self.lent.loans);
        if self.dangerous {
            // The peer may write these blocks at any time: nobody else may ever get them.
            std::mem::forget(loans);
            std::mem::forget(self.slots.take());
            return;
        }
        for loan in loans.into_values() {
            self.arena.lend_ended(loan.counted_bytes);
        }
        for segment in &self.segments {
            segment.release();
        }
    }
}

/// Loans of the peer's that this side is done with and has not given back yet.
#[derive(Default)]
pub(crate) struct Debts {
    done: SegQueue<u64>,
}

impl Debts {
    pub(crate) fn is_empty(&self) -> bool {
        self.done.is_empty()
    }

    /// Up to `most` numbers.
    pub(crate) fn take(&self, most: usize) -> Vec<u64> {
        std::iter::from_fn(|| self.done.pop()).take(most).collect()
    }
}

impl Lender for Debts {
    fn give_back(&self, loan: u64) {
        self.done.push(loan);
    }

    fn token(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }
}
