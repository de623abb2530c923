//! What an algorithm costs, as its documentation in `sheave_collective::algorithm` states it.

use sheave_collective::{Algorithm, Kind};

/// Of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cost {
    /// Messages that must follow one another.
    pub(super) steps: u64,
    /// Bytes that the busiest rank sends.
    pub(super) bytes: u64,
}

/// The cost among `ranks` with `bytes` in one rank's tensor: its input, or of a scatter its output. `None` for an
/// algorithm whose cost is not stated in messages.
pub(super) fn of(kind: Kind, algorithm: Algorithm, ranks: u32, bytes: u64) -> Option<Cost> {
    let n = u64::from(ranks);
    if n < 2 {
        return Some(Cost { steps: 0, bytes: 0 });
    }
    let rounds = u64::from(n.next_power_of_two().trailing_zeros());
    let others = n - 1;
    let cost = |steps, bytes| Some(Cost { steps, bytes });
    match (algorithm.name(), kind) {
        ("dissemination", _) => cost(rounds, 0),
        ("doubling", _) if n.is_power_of_two() => cost(rounds, rounds * bytes),
        // Some step aside first and hear the result last.
        ("doubling", _) => cost(rounds - 1 + 2, rounds * bytes),
        ("ring", Kind::AllReduce) => cost(2 * others, 2 * others * bytes / n),
        ("ring", Kind::ReduceScatter) => cost(others, others * bytes / n),
        ("ring", _) => cost(others, others * bytes),
        ("tree", Kind::Broadcast) => cost(2 * rounds, rounds * bytes),
        ("tree", Kind::Reduce) => cost(2 * rounds, bytes),
        // What the largest subtree below the root passes on.
        ("tree", Kind::Gather) => {
            let half = n.next_power_of_two() / 2;
            cost(2 * rounds, bytes * (half / 2).max(n - half))
        }
        ("tree", _) => cost(2 * rounds, others * bytes),
        ("pairwise", _) => cost(others, others * bytes / n),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_the_documented_ones() {
        let of = |kind, algorithm, ranks| {
            let Cost { steps, bytes } = of(kind, algorithm, ranks, 1200).unwrap();
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
    }
}
