//! What an algorithm costs, as its documentation in `sheave_collective::algorithm` and `shared` states it.

use sheave_collective::{Algorithm, Kind};

/// Of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cost {
    /// Messages that must follow one another; in shared memory, times that all must be through.
    pub(super) steps: u64,
    /// Bytes that the busiest rank sends; in shared memory, that it reads of others and writes for others, if all
    /// memory can be mapped.
    pub(super) bytes: u64,
}

/// The cost among `ranks` with `bytes` in one rank's tensor: its input, or of a scatter its output. Of lengths that
/// differ, for equal ones.
pub(super) fn of(kind: Kind, algorithm: Algorithm, ranks: u32, bytes: u64) -> Cost {
    let n = u64::from(ranks);
    if n < 2 {
        return Cost { steps: 0, bytes: 0 };
    }
    let rounds = u64::from(n.next_power_of_two().trailing_zeros());
    let others = n - 1;
    let cost = |steps, bytes| Cost { steps, bytes };
    match (algorithm, kind) {
        (Algorithm::Dissemination, _) => cost(rounds, 0),
        (Algorithm::Doubling, _) if n.is_power_of_two() => cost(rounds, rounds * bytes),
        // Some step aside first and hear the result last.
        (Algorithm::Doubling, _) => cost(rounds - 1 + 2, rounds * bytes),
        (Algorithm::Ring, Kind::AllReduce) => cost(2 * others, 2 * others * bytes / n),
        (Algorithm::Ring, Kind::ReduceScatter) => cost(others, others * bytes / n),
        (Algorithm::Ring, _) => cost(others, others * bytes),
        (Algorithm::Tree, Kind::Broadcast) => cost(2 * rounds, rounds * bytes),
        (Algorithm::Tree, Kind::Reduce) => cost(2 * rounds, bytes),
        // What the largest subtree below the root passes on.
        (Algorithm::Tree, Kind::Gather) => {
            let half = n.next_power_of_two() / 2;
            cost(2 * rounds, bytes * (half / 2).max(n - half))
        }
        (Algorithm::Tree, _) => cost(2 * rounds, others * bytes),
        (Algorithm::Pairwise, _) => cost(others, others * bytes / n),
        (Algorithm::Flat, _) => cost(1, flat(kind, n, bytes)),
        (Algorithm::Direct, _) => cost(1, direct(kind, n, bytes)),
        (Algorithm::Hierarchical, _) => hierarchical(kind, ranks, bytes),
    }
}

/// On two hosts with half of the ranks each.
fn hierarchical(kind: Kind, ranks: u32, bytes: u64) -> Cost {
    let here = ranks.div_ceil(2);
    let parts = match kind {
        Kind::AllReduce => [
            of(Kind::Reduce, Algorithm::Direct, here, bytes),
            of(Kind::AllReduce, Algorithm::Doubling, 2, bytes),
            of(Kind::Broadcast, Algorithm::Direct, here, bytes),
        ],
        Kind::Broadcast => [
            of(Kind::Broadcast, Algorithm::Direct, here, bytes),
            of(Kind::Broadcast, Algorithm::Tree, 2, bytes),
            of(Kind::Barrier, Algorithm::Flat, here, 0),
        ],
        _ => [
            of(Kind::Barrier, Algorithm::Flat, here, 0),
            of(Kind::Barrier, Algorithm::Dissemination, 2, 0),
            of(Kind::Barrier, Algorithm::Flat, here, 0),
        ],
    };
    Cost { steps: parts.iter().map(|part| part.steps).sum(), bytes: parts.iter().map(|part| part.bytes).sum() }
}

/// A rank writes its input on its desk, once, and reads what it needs on the others'.
fn flat(kind: Kind, n: u64, bytes: u64) -> u64 {
    let others = n - 1;
    match kind {
        Kind::Barrier => 0,
        Kind::Broadcast => bytes,
        Kind::AllReduce | Kind::Reduce | Kind::AllGather | Kind::AllGatherV | Kind::Gather => bytes + others * bytes,
        Kind::Scatter => n * bytes,
        Kind::ReduceScatter | Kind::AllToAll | Kind::AllToAllV => bytes + others * bytes / n,
    }
}

/// A rank reduces its piece of all inputs, and writes it where it is wanted; what only moves is copied once, of a
/// gather by its owner, else by its reader.
fn direct(kind: Kind, n: u64, bytes: u64) -> u64 {
    let others = n - 1;
    match kind {
        Kind::Barrier => 0,
        Kind::AllReduce => 2 * bytes,
        Kind::Reduce | Kind::ReduceScatter => bytes + bytes / n,
        Kind::Broadcast | Kind::Gather | Kind::Scatter => bytes,
        Kind::AllGather | Kind::AllGatherV => others * bytes,
        Kind::AllToAll | Kind::AllToAllV => others * bytes / n,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_the_documented_ones() {
        let of = |kind, algorithm, ranks| {
            let Cost { steps, bytes } = of(kind, algorithm, ranks, 1200);
            (steps, bytes)
        };
        assert_eq!(of(Kind::Barrier, Algorithm::Dissemination, 5), (3, 0));
        assert_eq!(of(Kind::AllReduce, Algorithm::Doubling, 8), (3, 3600));
        // Four go on; an odd one of a pair sends twice there and once back.
        assert_eq!(of(Kind::AllReduce, Algorithm::Doubling, 6), (4, 3600));
        assert_eq!(of(Kind::AllReduce, Algorithm::Ring, 4), (6, 1800));
        assert_eq!(of(Kind::ReduceScatter, Algorithm::Ring, 4), (3, 900));
        assert_eq!(of(Kind::AllGather, Algorithm::Ring, 4), (3, 3600));
        assert_eq!(of(Kind::Broadcast, Algorithm::Tree, 4), (4, 2400));
        assert_eq!(of(Kind::Reduce, Algorithm::Tree, 5), (6, 1200));
        // Rank 4 of 8 passes on its own and those of 5, 6 and 7.
        assert_eq!(of(Kind::Gather, Algorithm::Tree, 8), (6, 4800));
        assert_eq!(of(Kind::Gather, Algorithm::Tree, 5), (6, 2400));
        assert_eq!(of(Kind::Gather, Algorithm::Tree, 2), (2, 1200));
        assert_eq!(of(Kind::Scatter, Algorithm::Tree, 8), (6, 8400));
        assert_eq!(of(Kind::AllToAll, Algorithm::Pairwise, 3), (2, 800));
        assert_eq!(of(Kind::AllReduce, Algorithm::Ring, 1), (0, 0));
        assert_eq!(of(Kind::AllReduce, Algorithm::Flat, 4), (1, 4800));
        assert_eq!(of(Kind::ReduceScatter, Algorithm::Flat, 4), (1, 2100));
        assert_eq!(of(Kind::AllReduce, Algorithm::Direct, 4), (1, 2400));
        assert_eq!(of(Kind::ReduceScatter, Algorithm::Direct, 4), (1, 1500));
        assert_eq!(of(Kind::AllGather, Algorithm::Direct, 4), (1, 3600));
        assert_eq!(of(Kind::Barrier, Algorithm::Flat, 4), (1, 0));
    }
}
