//! The workers of a store as its server sees them: who is waited for, who has come to a barrier, who is done.
//!
//! A barrier is counted by the first server alone: each worker's n-th barrier is the n-th, and it is over when all who
//! are waited for have come to it. The work of [`crate::KvStore::done`] is counted by every server for itself: it is
//! over when nobody is active any more, and from then on all are active again. Both are words of distinct workers.

use crate::waiter::RequestId;

/// How a worker stands to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It pushes, and is waited for.
    Active,
    /// It pushes no more until all others are done too.
    Done,
    /// It closes the store: it pushes no more, and meets the others once more.
    Closing,
    /// It has closed the store.
    Closed,
    /// It has died, and the servers do not agree yet on what it had pushed: it is waited for.
    Leaving,
    /// It has died, or left the mesh.
    Gone,
}

struct Entered {
    number: u64,
    request: RequestId,
}

pub(super) struct Members {
    standings: Vec<Standing>,
    counted: Vec<bool>,
    /// How many barriers each worker has come to.
    barriers: Vec<u64>,
    entered: Vec<Entered>,
    done: Vec<RequestId>,
}

impl Members {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            standings: vec![Standing::Active; workers],
            counted: vec![true; workers],
            barriers: vec![0; workers],
            entered: Vec::new(),
            done: Vec::new(),
        }
    }

    pub(super) fn standing(&self, worker: usize) -> Standing {
        self.standings[worker]
    }

    /// By rank, who is waited for.
    pub(super) fn counted(&self) -> &[bool] {
        &self.counted
    }

    pub(super) fn set(&mut self, worker: usize, standing: Standing) {
        self.standings[worker] = standing;
        self.counted[worker] = matches!(standing, Standing::Active | Standing::Leaving);
    }

    /// Returns the ranks of the workers that are gone, in ascending order.
    pub(super) fn gone(&self) -> Vec<usize> {
        let standings = self.standings.iter().enumerate();
        standings.filter(|(_, standing)| **standing == Standing::Gone).map(|(rank, _)| rank).collect()
    }

    /// One that has closed the store, and will not come to any barrier.
    pub(super) fn closed(&self) -> Option<usize> {
        self.standings.iter().position(|standing| *standing == Standing::Closed)
    }

    /// Whether everybody has closed it or is gone.
    pub(super) fn is_over(&self) -> bool {
        self.standings.iter().all(|standing| matches!(standing, Standing::Closed | Standing::Gone))
    }

    /// A worker comes to its next barrier.
    pub(super) fn enter(&mut self, worker: usize, request: RequestId) {
        self.barriers[worker] += 1;
        self.entered.push(Entered { number: self.barriers[worker], request });
    }

    /// Takes those out whose barrier is over.
    pub(super) fn through(&mut self) -> Vec<RequestId> {
        if self.entered.is_empty() {
            return Vec::new();
        }
        let counts = self.barriers.iter().zip(&self.standings);
        let present = counts.filter(|(_, standing)| **standing != Standing::Gone).map(|(count, _)| *count);
        let reached = present.min().unwrap_or(u64::MAX);
        let (over, waiting) = std::mem::take(&mut self.entered).into_iter().partition(|one| one.number <= reached);
        self.entered = waiting;
        over.into_iter().map(|one: Entered| one.request).collect()
    }

    /// The number of the barrier at which a request waits, counted from 1, and who has not come to it.
    pub(super) fn lacks_at_barrier(&self, request: RequestId) -> Option<(u64, Vec<usize>)> {
        let number = self.entered.iter().find(|one| one.request == request)?.number;
        let counts = self.barriers.iter().zip(&self.standings).enumerate();
        let lacks = counts.filter(|(_, (count, standing))| **count < number && **standing != Standing::Gone);
        Some((number, lacks.map(|(rank, _)| rank).collect()))
    }

    /// Who is active while a request waits until all are done.
    pub(super) fn not_done(&self, request: RequestId) -> Option<Vec<usize>> {
        self.done.iter().find(|one| **one == request)?;
        Some((0..self.counted.len()).filter(|rank| self.counted[*rank]).collect())
    }

    /// Takes all out who wait at a barrier.
    pub(super) fn take_entered(&mut self) -> Vec<RequestId> {
        std::mem::take(&mut self.entered).into_iter().map(|one| one.request).collect()
    }

    /// Takes all out who wait for other workers, at a barrier or because they are done.
    pub(super) fn take_waiting(&mut self) -> Vec<RequestId> {
        let mut waiting = self.take_entered();
        waiting.append(&mut self.done);
        waiting
    }

    /// A worker says that it is done.
    pub(super) fn done(&mut self, worker: usize, request: RequestId) {
        self.set(worker, Standing::Done);
        self.done.push(request);
    }

    /// If nobody is active any more, all who are done become active again; they are to be told.
    pub(super) fn begin_anew(&mut self) -> Option<Vec<RequestId>> {
        if self.done.is_empty() || self.counted.contains(&true) {
            return None;
        }
        for worker in 0..self.standings.len() {
            if self.standings[worker] == Standing::Done {
                self.set(worker, Standing::Active);
            }
        }
        Some(std::mem::take(&mut self.done))
    }
}
