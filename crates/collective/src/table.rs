//! Which algorithm an operation runs: the first rule of a table that fits agreed values.
//!
//! The choice is a pure function of what all ranks know to be the same: the kind, the number of ranks and the bytes of
//! one rank's tensor. The table itself is part of every header, by its digest, so ranks that were configured with
//! different ones get an error that says so. A table is written as text, one rule a line:
//!
//! ```
//! use sheave_collective::{Algorithm, Kind, Table};
//!
//! let table: Table = "all_reduce ranks<=8 bytes<=4096 doubling\nall_reduce ring".parse()?;
//! assert_eq!(table.choose(Kind::AllReduce, 4, 4096), Algorithm::Doubling);
//! assert_eq!(table.choose(Kind::AllReduce, 4, 4097), Algorithm::Ring);
//! assert_eq!(table.to_string().parse::<Table>()?, table);
//! # Ok::<(), sheave_base::Error>(())
//! ```

use crate::operation::{Kind, digest};
use sheave_base::{Error, ErrorKind, Result};
use std::fmt;
use std::str::FromStr;

/// Rules of one table: more are a mistake.
const RULES_MAX: usize = 256;

/// How an operation is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Dissemination: [`crate::algorithm::barrier`].
    Dissemination,
    /// Recursive doubling: [`crate::algorithm::doubling`].
    Doubling,
    /// Ring: [`crate::algorithm::ring`].
    Ring,
    /// Binomial tree: [`crate::algorithm::tree`].
    Tree,
    /// Pairwise: [`crate::algorithm::pairwise`].
    Pairwise,
}

impl Algorithm {
    const ALL: [Self; 5] = [Self::Dissemination, Self::Doubling, Self::Ring, Self::Tree, Self::Pairwise];

    /// The name under which tables know it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dissemination => "dissemination",
            Self::Doubling => "doubling",
            Self::Ring => "ring",
            Self::Tree => "tree",
            Self::Pairwise => "pairwise",
        }
    }

    /// Whether it can carry out that kind.
    #[must_use]
    pub const fn does(self, kind: Kind) -> bool {
        match self {
            Self::Dissemination => matches!(kind, Kind::Barrier),
            Self::Doubling => matches!(kind, Kind::AllReduce),
            Self::Ring => matches!(kind, Kind::AllReduce | Kind::AllGather | Kind::AllGatherV | Kind::ReduceScatter),
            Self::Tree => matches!(kind, Kind::Broadcast | Kind::Reduce | Kind::Gather | Kind::Scatter),
            Self::Pairwise => matches!(kind, Kind::AllToAll | Kind::AllToAllV),
        }
    }

    /// What carries out a kind that no rule names.
    const fn usual(kind: Kind) -> Self {
        match kind {
            Kind::Barrier => Self::Dissemination,
            Kind::AllReduce | Kind::AllGather | Kind::AllGatherV | Kind::ReduceScatter => Self::Ring,
            Kind::Broadcast | Kind::Reduce | Kind::Gather | Kind::Scatter => Self::Tree,
            Kind::AllToAll | Kind::AllToAllV => Self::Pairwise,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    kind: Kind,
    ranks_max: u32,
    bytes_max: u64,
    algorithm: Algorithm,
}

/// Rules by which algorithms are chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    rules: Vec<Rule>,
}

impl Default for Table {
    /// Recursive doubling sends the whole tensor log2(ranks) times and the ring twice in pieces: below some 16 KiB the
    /// number of messages decides, above it their bytes.
    fn default() -> Self {
        let rule =
            |ranks_max, bytes_max| Rule { kind: Kind::AllReduce, ranks_max, bytes_max, algorithm: Algorithm::Doubling };
        Self { rules: vec![rule(2, 8 << 10), rule(u32::MAX, 16 << 10)] }
    }
}

impl Table {
    /// The algorithm for an operation on `bytes` of one rank's tensor.
    #[must_use]
    pub fn choose(&self, kind: Kind, ranks: u32, bytes: u64) -> Algorithm {
        let fits = |rule: &&Rule| rule.kind == kind && ranks <= rule.ranks_max && bytes <= rule.bytes_max;
        self.rules.iter().find(fits).map_or(Algorithm::usual(kind), |rule| rule.algorithm)
    }

    /// Equal for equal tables.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let numbers = |rule: &Rule| [rule.kind as u64, rule.ranks_max.into(), rule.bytes_max, rule.algorithm as u64];
        digest(self.rules.iter().flat_map(numbers))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rule in &self.rules {
            f.write_str(rule.kind.name())?;
            if rule.ranks_max != u32::MAX {
                write!(f, " ranks<={}", rule.ranks_max)?;
            }
            if rule.bytes_max != u64::MAX {
                write!(f, " bytes<={}", rule.bytes_max)?;
            }
            writeln!(f, " {}", rule.algorithm.name())?;
        }
        Ok(())
    }
}

impl FromStr for Table {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let rules = lines.map(parse).collect::<Result<Vec<_>>>()?;
        if rules.len() > RULES_MAX {
            let what = format!("a table of {} rules; the limit is {RULES_MAX}", rules.len());
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        Ok(Self { rules })
    }
}

fn parse(line: &str) -> Result<Rule> {
    let refuse = || {
        Error::new(ErrorKind::InvalidArgument, format!("{line:?} is no rule of a table"))
            .hint("write a rule as: all_reduce ranks<=8 bytes<=4096 doubling")
    };
    let mut words = line.split_ascii_whitespace();
    let kind = words.next().and_then(Kind::from_name).ok_or_else(refuse)?;
    let mut rule = Rule { kind, ranks_max: u32::MAX, bytes_max: u64::MAX, algorithm: Algorithm::usual(kind) };
    let mut is_named = false;
    for word in words {
        if let Some(ranks) = word.strip_prefix("ranks<=") {
            rule.ranks_max = ranks.parse().map_err(|_| refuse())?;
        } else if let Some(bytes) = word.strip_prefix("bytes<=") {
            rule.bytes_max = bytes.parse().map_err(|_| refuse())?;
        } else {
            let named = Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == word);
            rule.algorithm = named.filter(|named| named.does(kind) && !is_named).ok_or_else(refuse)?;
            is_named = true;
        }
    }
    if is_named { Ok(rule) } else { Err(refuse()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_rule_is_refused() {
        for text in [
            "all_reduce",
            "all_reduce tree",
            "all_reduce ranks<=x ring",
            "sum bytes<=1 ring",
            "all_reduce ring ring",
            "all_reduce bytes<=-1 ring",
        ] {
            assert_eq!(text.parse::<Table>().unwrap_err().kind(), ErrorKind::InvalidArgument, "{text}");
        }
        assert!("all_reduce ring\n".repeat(257).parse::<Table>().is_err());
    }

    #[test]
    fn the_default_table_can_be_read_back_and_does_everything() {
        let table = Table::default();
        assert_eq!(table.to_string().parse::<Table>().unwrap(), table);
        for kind in Kind::ALL {
            for bytes in [0, 1 << 10, 1 << 20] {
                assert!(table.choose(kind, 5, bytes).does(kind));
            }
        }
        let other: Table = "all_reduce ring".parse().unwrap();
        assert_ne!(other.digest(), table.digest());
    }
}
