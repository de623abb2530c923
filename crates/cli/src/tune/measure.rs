//! Rules for a table, from the algorithms' times on this machine.
//!
//! Each algorithm that can do an operation carries it out with a table of one rule. The rules that come out are for
//! rising numbers of ranks and, for each, rising sizes, so that the first that fits is the one for the next larger
//! number and size that was measured; beyond the largest, the last ones hold.

use super::{Arguments, unwritten};
use crate::Failure;
use crate::bench::{Transport, medians_ns};
use sheave_base::Result;
use sheave_collective::{Algorithm, Kind, Table, Topology};
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

const SIZES_BYTES: [usize; 10] = [8, 512, 2 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// Longest input of a flat operation (`sheave_collective::shared`).
const FLAT_BYTES_MAX: usize = 8 << 10;

const NOT_MEASURED: u64 = u64::MAX;

/// Another algorithm must be faster by so much, or the one for the next smaller size goes on: a table with few rules
/// is worth more than what two runs differ by.
const GAIN: f64 = 0.9;

/// What was measured among some ranks: each candidate's best median in nanoseconds, by bytes.
type Times = BTreeMap<usize, Vec<u64>>;

/// Measures and prints the rules.
pub(super) fn run(arguments: &Arguments) -> std::result::Result<(), Failure> {
    let mut rules = String::new();
    for kind in arguments.kinds() {
        // There is one host here.
        for topology in arguments.topologies().filter(|topology| *topology != Topology::Hosts) {
            let candidates = candidates(kind, topology);
            if candidates.len() > 1 {
                rules += &rules_of(kind, topology, &candidates, arguments)?;
            }
        }
    }
    // What is printed can be read back.
    let table: Table = rules.parse()?;
    let mut stdout = std::io::stdout().lock();
    write!(stdout, "{table}").and_then(|()| stdout.flush()).map_err(|error| unwritten(&error))
}

/// The algorithms that can do it. A direct barrier is a flat one.
fn candidates(kind: Kind, topology: Topology) -> Vec<Algorithm> {
    let can = |algorithm: &Algorithm| {
        let is_another = (kind, *algorithm) != (Kind::Barrier, Algorithm::Direct);
        algorithm.does(kind) && algorithm.suits(topology) && is_another
    };
    Algorithm::ALL.into_iter().filter(can).collect()
}

/// Whether it carries out an operation of that size itself: longer flat ones turn out direct.
fn does_itself(algorithm: Algorithm, kind: Kind, ranks: u32, bytes: usize) -> bool {
    let input_bytes = if kind == Kind::Scatter { bytes * ranks as usize } else { bytes };
    algorithm != Algorithm::Flat || input_bytes <= FLAT_BYTES_MAX
}

/// The kind that is the same but for lengths that differ, which is not measured.
fn twin(kind: Kind) -> Option<Kind> {
    match kind {
        Kind::AllGather => Some(Kind::AllGatherV),
        Kind::AllToAll => Some(Kind::AllToAllV),
        _ => None,
    }
}

fn rules_of(kind: Kind, topology: Topology, candidates: &[Algorithm], arguments: &Arguments) -> Result<String> {
    let mut rules = String::new();
    let ranks = arguments.ranks();
    for (index, &ranks_max) in ranks.iter().enumerate() {
        let times = times(kind, topology, ranks_max, candidates, arguments)?;
        tell(kind, topology, ranks_max, candidates, &times);
        let bound = if index + 1 < ranks.len() { format!(" ranks<={ranks_max}") } else { String::new() };
        for (bytes_max, chosen) in fastest(&times) {
            let bytes = bytes_max.map_or_else(String::new, |bytes_max| format!(" bytes<={bytes_max}"));
            let algorithm = candidates[chosen];
            let kinds = [Some(kind), twin(kind)].into_iter().flatten().filter(|kind| algorithm.does(*kind));
            for kind in kinds.map(Kind::name) {
                rules += &format!("{kind} {}{bound}{bytes} {}\n", topology.name(), algorithm.name());
            }
        }
    }
    Ok(rules)
}

/// Each candidate in turn with the others, several times; the best counts, since a machine only ever adds time.
fn times(kind: Kind, topology: Topology, ranks: u32, candidates: &[Algorithm], arguments: &Arguments) -> Result<Times> {
    let (turns, budget_ms) = if arguments.quick { (1, 5) } else { (3, 50) };
    let transport = if topology == Topology::Host { Transport::Shm } else { Transport::Tcp };
    let mut times = Times::new();
    for _ in 0..turns {
        for (index, &candidate) in candidates.iter().enumerate() {
            let mut sizes_bytes = arguments.sizes_bytes(&SIZES_BYTES);
            sizes_bytes.retain(|bytes| does_itself(candidate, kind, ranks, *bytes));
            if sizes_bytes.is_empty() {
                continue;
            }
            let table = format!("{} {}", kind.name(), candidate.name());
            let budget = Duration::from_millis(budget_ms);
            let medians = medians_ns(kind, ranks, transport, &sizes_bytes, &table, budget);
            for (bytes, median_ns) in medians.map_err(|error| error.context(table))? {
                let best = times.entry(bytes).or_insert_with(|| vec![NOT_MEASURED; candidates.len()]);
                best[index] = median_ns.min(best[index]);
            }
        }
    }
    Ok(times)
}

/// For rising sizes: up to which one, if not all further ones, which candidate is taken.
fn fastest(times: &Times) -> Vec<(Option<usize>, usize)> {
    let mut ranges: Vec<(Option<usize>, usize)> = Vec::new();
    for (bytes, medians_ns) in times {
        let Some(best) = (0..medians_ns.len()).min_by_key(|candidate| medians_ns[*candidate]) else { continue };
        let goes_on =
            |&(_, chosen): &(Option<usize>, usize)| medians_ns[best] as f64 > medians_ns[chosen] as f64 * GAIN;
        match ranges.last_mut() {
            Some(last) if goes_on(last) => last.0 = Some(*bytes),
            _ => ranges.push((Some(*bytes), best)),
        }
    }
    if let Some(last) = ranges.last_mut() {
        last.0 = None;
    }
    ranges
}

/// Tells people what was measured; standard output has the rules alone.
fn tell(kind: Kind, topology: Topology, ranks: u32, candidates: &[Algorithm], times: &Times) {
    for (bytes, medians_ns) in times {
        let each = candidates.iter().zip(medians_ns).filter(|(_, time_ns)| **time_ns != NOT_MEASURED);
        let each = each.map(|(algorithm, time_ns)| format!("{} {:.2} µs", algorithm.name(), *time_ns as f64 / 1e3));
        let each = each.collect::<Vec<_>>().join(", ");
        let (kind, topology) = (kind.name(), topology.name());
        crate::say(&format!("{kind} of {ranks} ranks, {topology}, {bytes} bytes: {each}"), true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_those_that_can_do_it_there() {
        let (doubling, ring) = (Algorithm::Doubling, Algorithm::Ring);
        assert_eq!(candidates(Kind::AllReduce, Topology::Links), [doubling, ring]);
        let on_host = [doubling, ring, Algorithm::Flat, Algorithm::Direct];
        assert_eq!(candidates(Kind::AllReduce, Topology::Host), on_host);
        assert_eq!(candidates(Kind::Barrier, Topology::Host), [Algorithm::Dissemination, Algorithm::Flat]);
        assert!(!does_itself(Algorithm::Flat, Kind::Scatter, 4, 4 << 10));
        assert!(does_itself(Algorithm::Flat, Kind::Gather, 4, 8 << 10));
    }

    #[test]
    fn one_that_is_hardly_faster_does_not_take_over() {
        let times = |of_first: &[u64], of_second: &[u64]| -> Times {
            let pairs = of_first.iter().zip(of_second).enumerate();
            pairs.map(|(at, (first, second))| (8 << at, vec![*first, *second])).collect()
        };
        assert_eq!(fastest(&times(&[10, 20, 40], &[15, 25, 20])), [(Some(16), 0), (None, 1)]);
        assert_eq!(fastest(&times(&[10, 20, 40], &[15, 19, 39])), [(None, 0)]);
        assert_eq!(fastest(&times(&[10, 40, 10], &[20, 20, 20])), [(Some(8), 0), (Some(16), 1), (None, 0)]);
        assert_eq!(fastest(&times(&[10, NOT_MEASURED], &[20, 20])), [(Some(8), 0), (None, 1)]);
        assert!(fastest(&Times::new()).is_empty());
    }
}
