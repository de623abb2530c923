//! What a group does, with tensors of what size, and what of it the page of targets promises.

use crate::bench::Transport;
use serde::{Deserialize, Serialize};

/// From here on an operation is timed alone, after everybody has rewritten its input, so that bytes really cross
/// cores; shorter ones are timed many in a row.
pub(super) const REWRITTEN_BYTES: usize = 64 << 10;

const SIZES_BYTES: [usize; 6] = [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];

/// Largest tensor of an operation that has as many of them as ranks, unless the user names a size.
const GATHERED_BYTES_MAX: usize = 16 << 20;

/// Bytes of an element: everything is f32.
pub(super) const ELEMENT_BYTES: usize = 4;

/// What the ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Operation {
    AllReduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    Reduce,
    Gather,
    Scatter,
    AllToAll,
    Barrier,
    PingPong,
}

impl Operation {
    pub(super) const ALL: [Self; 10] = [
        Self::AllReduce,
        Self::Broadcast,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Reduce,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
        Self::Barrier,
        Self::PingPong,
    ];

    /// Its name, which is that of the case whose tensors lie in the arena, and the one that the peers' programs take.
    pub(super) fn name(self) -> &'static str {
        self.names()[0]
    }

    fn names(self) -> [&'static str; 2] {
        match self {
            Self::AllReduce => ["all_reduce", "all_reduce_private"],
            Self::Broadcast => ["broadcast", "broadcast_private"],
            Self::AllGather => ["all_gather", "all_gather_private"],
            Self::ReduceScatter => ["reduce_scatter", "reduce_scatter_private"],
            Self::Reduce => ["reduce", "reduce_private"],
            Self::Gather => ["gather", "gather_private"],
            Self::Scatter => ["scatter", "scatter_private"],
            Self::AllToAll => ["all_to_all", "all_to_all_private"],
            // It has no tensors.
            Self::Barrier => ["barrier", "barrier"],
            Self::PingPong => ["ping_pong", "ping_pong_private"],
        }
    }

    /// Tensors of the case's size in an input and in an output.
    pub(super) fn tensors(self, ranks: u32) -> [usize; 2] {
        match self {
            Self::AllGather | Self::Gather => [1, ranks as usize],
            Self::Scatter => [ranks as usize, 1],
            _ => [1, 1],
        }
    }

    /// Whether so many ranks can do it with tensors of this size.
    pub(super) fn fits(self, bytes: usize, ranks: u32) -> bool {
        match self {
            Self::Barrier => bytes == 0,
            Self::PingPong => ranks == 2 && bytes.is_multiple_of(ELEMENT_BYTES),
            // The tensor is cut into equal pieces.
            Self::ReduceScatter | Self::AllToAll => bytes.is_multiple_of(ELEMENT_BYTES * ranks as usize),
            _ => bytes.is_multiple_of(ELEMENT_BYTES),
        }
    }

    /// Those of these sizes, or of the usual ones, that so many ranks can do.
    pub(super) fn sizes_bytes(self, chosen: &[usize], ranks: u32) -> Vec<usize> {
        if self == Self::Barrier {
            return vec![0];
        }
        let most = if self.tensors(ranks) == [1, 1] { usize::MAX } else { GATHERED_BYTES_MAX };
        let usual = SIZES_BYTES.into_iter().filter(|bytes| *bytes <= most);
        let mut sizes: Vec<usize> = if chosen.is_empty() { usual.collect() } else { chosen.to_vec() };
        sizes.retain(|bytes| self.fits(*bytes, ranks));
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}

/// Where tensors lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Memory {
    Arena,
    Private,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Case {
    pub(super) operation: Operation,
    pub(super) memory: Memory,
}

impl Case {
    /// Those that are measured unless the user names some.
    pub(super) const USUAL: [Self; 7] = [
        Self::new(Operation::AllReduce, Memory::Arena),
        Self::new(Operation::AllReduce, Memory::Private),
        Self::new(Operation::Broadcast, Memory::Arena),
        Self::new(Operation::AllGather, Memory::Arena),
        Self::new(Operation::ReduceScatter, Memory::Arena),
        Self::new(Operation::Barrier, Memory::Arena),
        Self::new(Operation::PingPong, Memory::Arena),
    ];

    pub(super) const fn new(operation: Operation, memory: Memory) -> Self {
        Self { operation, memory }
    }

    /// All of them.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let both = |operation| [Memory::Arena, Memory::Private].map(|memory| Self::new(operation, memory));
        let all = Operation::ALL.into_iter().flat_map(both);
        all.filter(|case| case.operation != Operation::Barrier || case.memory == Memory::Arena)
    }

    pub(super) fn name(self) -> &'static str {
        self.operation.names()[usize::from(self.memory == Memory::Private)]
    }

    /// The case of that name, as the command line has it.
    pub(crate) fn from_name(name: &str) -> Result<Self, String> {
        let names = || Self::all().map(Self::name).collect::<Vec<_>>().join(", ");
        Self::all().find(|case| case.name() == name).ok_or_else(|| format!("the cases are {}", names()))
    }

    /// What our median should be at most, in OpenMPI's over the same transport.
    pub(super) fn target(self, transport: Transport, ranks: u32, bytes: usize) -> Option<f64> {
        match self.operation {
            Operation::AllReduce => self.target_of_all_reduce(transport, ranks, bytes),
            _ if transport != Transport::Shm => None,
            Operation::Broadcast | Operation::AllGather | Operation::ReduceScatter => {
                (bytes >= 1 << 10 && matches!(ranks, 2 | 4)).then_some(1.0)
            }
            Operation::Barrier => matches!(ranks, 2 | 4).then_some(1.0),
            Operation::PingPong => match bytes {
                8 => Some(1.0),
                0x10_0000 => Some(0.7),
                0x400_0000 => Some(0.5),
                _ => None,
            },
            Operation::Reduce | Operation::Gather | Operation::Scatter | Operation::AllToAll => None,
        }
    }

    fn target_of_all_reduce(self, transport: Transport, ranks: u32, bytes: usize) -> Option<f64> {
        match (transport, ranks, bytes, self.memory) {
            (Transport::Tcp, 2, ..) | (Transport::Shm, 2 | 4, 8, _) => Some(1.0),
            (Transport::Shm, 2, 0x400_0000.., Memory::Arena) => Some(0.25),
            (Transport::Shm, 2, 0x400_0000.., Memory::Private) => Some(0.6),
            (Transport::Shm, 2, REWRITTEN_BYTES.., Memory::Arena) => Some(0.3),
            (Transport::Shm, 2, REWRITTEN_BYTES.., Memory::Private) => Some(1.0),
            (Transport::Shm, 4, 0x10_0000.., Memory::Arena) => Some(0.3),
            (Transport::Shm, 4, 0x400_0000.., Memory::Private) => Some(0.6),
            (Transport::Shm, 4, 0x10_0000.., Memory::Private) => Some(0.8),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_again_and_others_refused() {
        assert_eq!(Case::all().count(), 19);
        for case in Case::all() {
            assert_eq!(Case::from_name(case.name()), Ok(case));
        }
        assert!(Case::from_name("barrier_private").unwrap_err().contains("all_to_all_private"));
        assert!(Case::USUAL.into_iter().all(|usual| Case::all().any(|case| case == usual)));
    }

    #[test]
    fn sizes_are_those_that_can_be_cut() {
        assert_eq!(Operation::AllReduce.sizes_bytes(&[], 4), SIZES_BYTES);
        assert_eq!(Operation::AllGather.sizes_bytes(&[], 2), SIZES_BYTES[..5]);
        assert_eq!(Operation::ReduceScatter.sizes_bytes(&[], 4), SIZES_BYTES[1..]);
        assert_eq!(Operation::ReduceScatter.sizes_bytes(&[], 2), SIZES_BYTES);
        assert_eq!(Operation::Barrier.sizes_bytes(&[8], 2), [0]);
        assert_eq!(Operation::AllGather.sizes_bytes(&[64 << 20, 6, 4, 4], 2), [4, 64 << 20]);
        assert!(Operation::PingPong.sizes_bytes(&[], 4).is_empty());
    }

    #[test]
    fn targets_are_the_published_ones() {
        let target = |name, transport, ranks, bytes| Case::from_name(name).unwrap().target(transport, ranks, bytes);
        let (shm, tcp) = (Transport::Shm, Transport::Tcp);
        for (size, arena, private) in [
            (8, Some(1.0), Some(1.0)),
            (1 << 10, None, None),
            (64 << 10, Some(0.3), Some(1.0)),
            (1 << 20, Some(0.3), Some(1.0)),
            (16 << 20, Some(0.3), Some(1.0)),
            (64 << 20, Some(0.25), Some(0.6)),
        ] {
            assert_eq!(target("all_reduce", shm, 2, size), arena, "{size}");
            assert_eq!(target("all_reduce_private", shm, 2, size), private, "{size}");
            assert_eq!(target("all_reduce", tcp, 2, size), Some(1.0), "{size}");
        }
        let of_four = [8, 64 << 10, 1 << 20, 64 << 20]
            .map(|size| (target("all_reduce", shm, 4, size), target("all_reduce_private", shm, 4, size)));
        assert_eq!(of_four, [(Some(1.0), Some(1.0)), (None, None), (Some(0.3), Some(0.8)), (Some(0.3), Some(0.6))]);
        assert_eq!(target("all_reduce", shm, 3, 8), None);
        assert_eq!(target("broadcast", shm, 4, 1 << 10), Some(1.0));
        assert_eq!((target("broadcast", shm, 2, 8), target("broadcast", tcp, 2, 1 << 20)), (None, None));
        assert_eq!(target("barrier", shm, 4, 0), Some(1.0));
        let ping_pong = [8, 64 << 10, 1 << 20, 64 << 20].map(|size| target("ping_pong", shm, 2, size));
        assert_eq!(ping_pong, [Some(1.0), None, Some(0.7), Some(0.5)]);
        assert_eq!(target("gather", shm, 2, 1 << 20), None);
    }
}
