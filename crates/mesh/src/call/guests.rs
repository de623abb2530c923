//! What services hear of guests, and in which turn.

use super::Calls;
use super::serving::Queued;
use crate::guest::AttachedGuest;
use sheave_base::{Error, NodeId, contain};

impl Calls {
    /// This node has taken a guest in.
    pub(crate) fn guest_attached(&self, guest: &AttachedGuest) {
        for service in self.all_services() {
            contain::told("a service that heard of a guest", || service.guest_attached(guest));
        }
    }

    /// A guest of this node is gone, and all that it has asked for has had its turn.
    pub(crate) fn guest_lost(&self, guest: &AttachedGuest, error: &Error) {
        self.failures.forget(guest.node);
        for service in self.all_services() {
            contain::told("a service that heard of a loss", || service.guest_lost(guest, error));
        }
    }

    /// The host of this node is gone: nobody calls any more, so the threads that work here go.
    pub(crate) fn host_lost(&self) {
        self.requests.desks.close_all();
    }

    /// Queues the news that an attached node is gone, behind the requests that were taken off its link.
    pub(crate) fn queue_departure(&self, node: NodeId, error: Error) {
        self.requests.push(Queued::Departure(node, error));
    }
}
