//! Rules for a table, from the algorithms' times on this machine.
//!
//! Each algorithm that can do an operation carries it out with a table of one rule. The rules that come out are for
//! rising numbers of ranks and, for each, rising sizes, so that the first that fits is the one for the next larger
//! number and size that was measured; beyond the largest, the last ones hold.

use super::{Arguments, unwritten};
use crate::Failure;
use crate::bench::{Transport, medians_ns};
use sheave_base::Result;
use sheave_collective::{Kind, Table};
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

/// Every name that a table may know; it refuses those that it does not, and those that cannot do an operation.
const NAMES: [&str; 7] = ["flat", "direct", "doubling", "ring", "tree", "pairwise", "dissemination"];

const SIZES_BYTES: [usize; 10] = [8, 512, 2 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// Another algorithm must be faster by so much, or the one for the next smaller size goes on: a table with few rules
/// is worth more than what two runs differ by.
const GAIN: f64 = 0.9;

/// What was measured among some ranks: each candidate's best median in nanoseconds, by bytes.
type Times = BTreeMap<usize, Vec<u64>>;

/// Measures and prints the rules.
pub(super) fn run(arguments: &Arguments) -> std::result::Result<(), Failure> {
    if arguments.transport == Transport::Inproc {
        return Err(Failure::Usage("the ranks of a collective are processes: use shm or tcp".to_owned()));
    }
    let mut rules = String::new();
    for kind in arguments.kinds() {
        let candidates = candidates(kind);
        if candidates.len() > 1 {
            rules += &rules_of(kind, &candidates, arguments)?;
        }
    }
    // What is printed can be read back.
    let table: Table = rules.parse()?;
    let mut stdout = std::io::stdout().lock();
    write!(stdout, "{table}").and_then(|()| stdout.flush()).map_err(|error| unwritten(&error))
}

/// The algorithms that can do it.
fn candidates(kind: Kind) -> Vec<&'static str> {
    let can = |name: &&'static str| format!("{} {name}", kind.name()).parse::<Table>().is_ok();
    NAMES.into_iter().filter(can).collect()
}

fn rules_of(kind: Kind, candidates: &[&str], arguments: &Arguments) -> Result<String> {
    let mut rules = String::new();
    let ranks = arguments.ranks();
    for (index, &ranks_max) in ranks.iter().enumerate() {
        let times = times(kind, ranks_max, candidates, arguments)?;
        tell(kind, ranks_max, candidates, &times);
        let bound = if index + 1 < ranks.len() { format!(" ranks<={ranks_max}") } else { String::new() };
        for (bytes_max, chosen) in fastest(&times) {
            let bytes = bytes_max.map_or_else(String::new, |bytes_max| format!(" bytes<={bytes_max}"));
            rules += &format!("{}{bound}{bytes} {}\n", kind.name(), candidates[chosen]);
        }
    }
    Ok(rules)
}

/// Each candidate in turn with the others, several times; the best counts, since a machine only ever adds time.
fn times(kind: Kind, ranks: u32, candidates: &[&str], arguments: &Arguments) -> Result<Times> {
    let (turns, budget_ms) = if arguments.quick { (1, 5) } else { (3, 50) };
    let sizes_bytes = arguments.sizes_bytes(&SIZES_BYTES);
    let mut times = Times::new();
    for _ in 0..turns {
        for (index, candidate) in candidates.iter().enumerate() {
            let table = format!("{} {candidate}", kind.name());
            let budget = Duration::from_millis(budget_ms);
            let medians = medians_ns(kind, ranks, arguments.transport, &sizes_bytes, &table, budget);
            for (bytes, median_ns) in medians.map_err(|error| error.context(table))? {
                let best = times.entry(bytes).or_insert_with(|| vec![u64::MAX; candidates.len()]);
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
fn tell(kind: Kind, ranks: u32, candidates: &[&str], times: &Times) {
    for (bytes, medians_ns) in times {
        let each = candidates.iter().zip(medians_ns);
        let each = each.map(|(name, time_ns)| format!("{name} {:.2} µs", *time_ns as f64 / 1e3));
        let each = each.collect::<Vec<_>>().join(", ");
        crate::say(&format!("{} of {ranks} ranks, {bytes} bytes: {each}", kind.name()), true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_those_that_tables_allow() {
        let all_reduce = candidates(Kind::AllReduce);
        assert!(all_reduce.contains(&"doubling") && all_reduce.contains(&"ring") && !all_reduce.contains(&"tree"));
        assert!(Kind::ALL.into_iter().all(|kind| !candidates(kind).is_empty()), "every kind can be done");
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
        assert!(fastest(&Times::new()).is_empty());
    }
}
