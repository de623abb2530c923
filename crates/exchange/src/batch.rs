//! What a server is given: one request of every worker.

use crate::plan::Plan;
use crate::server::Handler;
use sheave_net::Tensors;
use sheave_tensor::{Dtype, Shape};
use smallvec::SmallVec;
use std::ops::Deref;
use std::sync::Arc;

/// A request that waits for its answer.
#[derive(Debug)]
pub struct Request {
    /// By which it is answered.
    pub handler: Handler,
    /// The worker's rank in the lane.
    pub worker: u32,
    /// The worker's number of it: the same for all requests of a batch.
    pub number: u64,
    /// The step that the worker named.
    pub step: Option<u32>,
    /// The pushed tensors in the worker's order, with their dtypes and shapes. Those that landed in registered memory
    /// are views of it, and expire when the request is answered and the next push to the same place lands.
    pub tensors: Tensors,
    pub(crate) plan: Arc<Plan>,
}

impl Request {
    /// The keys of the pushed tensors.
    #[must_use]
    pub fn keys(&self) -> &[u64] {
        &self.plan.push_keys
    }

    /// What the answers must be: key, dtype and shape of each, in order.
    pub fn pulls(&self) -> impl ExactSizeIterator<Item = (u64, Dtype, &Shape)> {
        self.plan.pulls.iter().map(|slot| (slot.key, slot.dtype, &slot.shape))
    }
}

/// One request of every worker of the lane, by rank.
#[derive(Debug, Default)]
pub struct Batch {
    pub(crate) requests: SmallVec<[Request; 2]>,
}

impl Deref for Batch {
    type Target = [Request];

    fn deref(&self) -> &[Request] {
        &self.requests
    }
}

impl IntoIterator for Batch {
    type Item = Request;
    type IntoIter = smallvec::IntoIter<[Request; 2]>;

    fn into_iter(self) -> Self::IntoIter {
        self.requests.into_iter()
    }
}

impl<'a> IntoIterator for &'a Batch {
    type Item = &'a Request;
    type IntoIter = std::slice::Iter<'a, Request>;

    fn into_iter(self) -> Self::IntoIter {
        self.requests.iter()
    }
}
