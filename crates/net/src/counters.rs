//! What a node has done, counted. Tests of cost read these, never a clock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Running counts of one node.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub(crate) $name: AtomicU64,)* }

        /// The counts of one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// The counts now.
            #[must_use]
            pub fn read(&self) -> Counts {
                Counts { $($name: self.$name.load(Relaxed),)* }
            }
        }

        impl std::ops::Sub for Counts {
            type Output = Counts;

            /// What happened between two readings.
            fn sub(self, earlier: Self) -> Self {
                Self { $($name: self.$name - earlier.$name,)* }
            }
        }
    };
}

counters! {
    /// Messages handed to links.
    messages_sent,
    /// Messages delivered by links.
    messages_received,
    /// Tensor bytes that this node copied in user space, in either direction.
    bytes_copied,
    /// Tensor bytes that this node handed to or took from the kernel's sockets.
    bytes_streamed,
    /// Tensor bytes that changed hands without a copy.
    bytes_lent,
    /// Times that this node woke a sleeping peer.
    doorbells_rung,
    /// Times that the progress thread was woken by traffic.
    progress_wakeups,
    /// Times that a waiting thread of the user went to sleep.
    waits_parked,
    /// Links that ended.
    links_ended,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Relaxed);
    }
}
