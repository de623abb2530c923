//! What one link has lent and borrowed.
//!
//! A *loan* is a block that the peer may use: this side keeps the buffer's handle in [`Lent`] until the peer gives the
//! loan back, over the ring, as soon as its last handle is dropped. The peer's end, not the link's, ends a loan for
//! sure: after a link has ended, its loans are set aside until the peer's process is known to be gone ([`SetAside`]).
//!
//! A *borrowed* tensor is the exception: the peer copies it while its sender waits, and copies none any more once it
//! sees that the ring is closed. So its owner may write it as soon as the link has ended.
//!
//! A *debt* is a block that the peer lent us. Dropping its buffer only notes the loan's number here ([`Debts`]),
//! whatever thread does it; the link sends the numbers with its next progress.

use crossbeam_queue::SegQueue;
use sheave_base::collections::HashMap;
use sheave_base::work::Completer;
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{Arena, Buffer, Lender, ReadLease, Segment};
use std::sync::{Arc, Weak};

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
    pub(crate) lease: Option<ReadLease>,
    /// The line of the ring behind the record that names the tensor; none while there is no such record.
    pub(crate) behind: Option<u64>,
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

    /// Notes that the peer can read of a borrowed tensor, in the record that ends before this line of the ring.
    pub(crate) fn announced(&mut self, number: u64, behind: u64) {
        if let Some(borrowed) = self.loans.get_mut(&number).and_then(|loan| loan.borrowed.as_mut()) {
            borrowed.behind = Some(behind);
        }
    }

    /// Ends a loan. The caller drops the buffer, and completes its sender's work, with no lock held.
    pub(crate) fn end(&mut self, number: u64, arena: &Arena) -> Result<Loan> {
        let loan = self.loans.remove(&number).ok_or_else(|| {
            Error::new(ErrorKind::Protocol, format!("the peer gave back loan {number}, which it does not have"))
        })?;
        arena.lend_ended(loan.counted_bytes);
        Ok(loan)
    }

    /// Ends a loan whose block the peer sends back in a message. What it was only shown is not its to send.
    pub(crate) fn come_home(&mut self, number: u64, arena: &Arena) -> Result<Buffer> {
        if self.loans.get(&number).is_some_and(|loan| loan.borrowed.is_some()) {
            let what = format!("the peer sent back loan {number}, of which it may only take a copy");
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        Ok(self.end(number, arena)?.buffer)
    }

    /// Counts the borrowed tensors that the peer was told of and has not copied, having read up to this line.
    pub(crate) fn uncopied(&self, read_up_to: u64) -> usize {
        let waits =
            |loan: &&Loan| loan.borrowed.as_ref().and_then(|one| one.behind).is_some_and(|line| line > read_up_to);
        self.loans.values().filter(waits).count()
    }

    /// Takes out the borrowed tensors of a link that is closed, so that the peer copies none of them any more. The
    /// caller completes their senders' works, and drops them, with no lock held.
    pub(crate) fn take_borrowed(&mut self, arena: &Arena) -> Vec<(Buffer, Borrowed)> {
        let borrowed = self.loans.extract_if(|_, loan| loan.borrowed.is_some());
        let take = |(_, loan): (u64, Loan)| {
            arena.lend_ended(loan.counted_bytes);
            loan.borrowed.map(|borrowed| (loan.buffer, borrowed))
        };
        borrowed.filter_map(take).collect()
    }
}

/// Memory that a peer may still use after its link has ended: what it was lent, and, of one that is declared dead but
/// may go on, the segments that it can write. It is set aside until the peer's process is gone.
///
/// Dropped before that, it leaves its segments *retired*: their blocks come back to the arena, which cuts no other ones
/// from there and gives a segment back to the system when the last is back. What the peer writes in its own mapping of
/// it hurts nobody then.
pub(crate) struct SetAside {
    loans: Vec<Buffer>,
    bytes: u64,
    segments: Vec<Arc<Segment>>,
}

impl SetAside {
    /// What the peer may use of these. Loans that are set aside are counted as lent no more, for the peer cannot give
    /// them back.
    pub(crate) fn new(mut lent: Lent, slots: Option<Buffer>, segments: Vec<Arc<Segment>>, arena: &Arena) -> Self {
        for segment in &segments {
            segment.retire();
        }
        let loans = std::mem::take(&mut lent.loans).into_values();
        let loans = loans.map(|loan| {
            arena.lend_ended(loan.counted_bytes);
            loan.buffer
        });
        let loans: Vec<Buffer> = loans.chain(slots).collect();
        let bytes = loans.iter().map(|loan| loan.len_bytes() as u64).sum();
        Self { loans, bytes, segments }
    }

    /// Whether there is nothing that the peer may use.
    pub(crate) fn is_empty(&self) -> bool {
        self.loans.is_empty() && self.segments.is_empty()
    }

    /// Bytes of the blocks in it.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The peer's process has ended: everything may be used again.
    pub(crate) fn peer_is_gone(mut self) {
        self.loans.clear();
        for segment in std::mem::take(&mut self.segments) {
            segment.release();
        }
    }

    /// Gives the blocks up, as a drop does. Returns the segments that are retired, each once for every retirement.
    pub(crate) fn retire(mut self) -> Vec<Weak<Segment>> {
        self.retire_loans();
        std::mem::take(&mut self.segments).iter().map(Arc::downgrade).collect()
    }

    fn retire_loans(&mut self) {
        for loan in self.loans.drain(..) {
            let Some(location) = loan.location() else { continue };
            if !self.segments.iter().any(|segment| segment.id() == location.segment.id()) {
                // Before the block comes back, so that nobody else gets it.
                location.segment.retire();
                self.segments.push(location.segment);
            }
        }
    }
}

impl Drop for SetAside {
    fn drop(&mut self) {
        self.retire_loans();
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

    /// Takes back numbers for which there was no room.
    pub(crate) fn put_back(&self, numbers: Vec<u64>) {
        numbers.into_iter().for_each(|number| self.done.push(number));
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

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_base::work::pair;
    use sheave_tensor::{ArenaConfig, Dtype, Tensor};

    /// A peer that says of what it was only shown that it comes home would give its receiver a sender's own tensor.
    #[test]
    fn f43_what_is_only_borrowed_does_not_come_home() {
        let (arena, mut lent) = (Arena::new(ArenaConfig::default()), Lent::default());
        let tensor = Tensor::private(Dtype::U8, [64]).expect("memory");
        let (done, work) = pair::<()>("send");
        let loan = |borrowed| Loan { buffer: tensor.buffer().clone(), counted_bytes: 0, borrowed };
        let borrowed = lent.add(loan(Some(Borrowed { done, lease: None, behind: Some(1) })));
        let moved = lent.add(loan(None));
        let refused = lent.come_home(borrowed, &arena).map(|_| ()).expect_err("it is the sender's");
        assert_eq!(refused.kind(), ErrorKind::Protocol, "{refused}");
        assert!(!work.is_done(), "the sender waits for the end of the link");
        assert!(lent.come_home(moved, &arena).expect("it was given away").is_same(tensor.buffer()));
        assert!(lent.come_home(moved, &arena).is_err(), "once");
        lent.end(borrowed, &arena).expect("it is given back");
    }
}
