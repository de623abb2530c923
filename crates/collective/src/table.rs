//! Which algorithm an operation runs: the first rule of a table that fits agreed values.
//!
//! The choice is a pure function of what all ranks know to be the same: the kind, whether all are on one host, the
//! number of ranks and the bytes of one rank's tensor. The table itself is part of every header, by its digest, so
//! ranks that were configured with different ones get an error that says so. A table is written as text, one rule a
//! line:
//!
//! ```
//! use sheave_collective::{Algorithm, Kind, Table, Topology};
//!
//! let table: Table = "all_reduce links ranks<=8 bytes<=4096 doubling\nall_reduce links ring".parse()?;
//! assert_eq!(table.choose(Kind::AllReduce, Topology::Links, 4, 4096), Algorithm::Doubling);
//! assert_eq!(table.choose(Kind::AllReduce, Topology::Links, 4, 4097), Algorithm::Ring);
//! assert_eq!(table.choose(Kind::AllReduce, Topology::Host, 4, 4096), Algorithm::Direct);
//! assert_eq!(table.to_string().parse::<Table>()?, table);
//! # Ok::<(), sheave_base::Error>(())
//! ```

use crate::operation::{Kind, digest};
use sheave_base::{Error, ErrorKind, Result};
use std::fmt;
use std::path::Path;
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
    /// On desks in shared memory: [`crate::shared`].
    Flat,
    /// In each other's memory: [`crate::shared`].
    Direct,
    /// On each host by itself, and between the hosts' leaders.
    Hierarchical,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Dissemination,
        Self::Doubling,
        Self::Ring,
        Self::Tree,
        Self::Pairwise,
        Self::Flat,
        Self::Direct,
        Self::Hierarchical,
    ];

    /// The name under which tables know it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dissemination => "dissemination",
            Self::Doubling => "doubling",
            Self::Ring => "ring",
            Self::Tree => "tree",
            Self::Pairwise => "pairwise",
            Self::Flat => "flat",
            Self::Direct => "direct",
            Self::Hierarchical => "hierarchical",
        }
    }

    /// Whether all ranks must be on one host.
    #[must_use]
    pub const fn needs_one_host(self) -> bool {
        matches!(self, Self::Flat | Self::Direct)
    }

    /// Whether it can run in such a group.
    #[must_use]
    pub const fn suits(self, topology: Topology) -> bool {
        match topology {
            Topology::Host => !matches!(self, Self::Hierarchical),
            Topology::Hosts => !self.needs_one_host(),
            Topology::Links => !self.needs_one_host() && !matches!(self, Self::Hierarchical),
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
            Self::Flat => !matches!(kind, Kind::AllToAllV),
            Self::Direct => true,
            Self::Hierarchical => matches!(kind, Kind::Barrier | Kind::AllReduce | Kind::Broadcast),
        }
    }

    /// What carries out a kind that no rule names.
    const fn usual(kind: Kind, topology: Topology) -> Self {
        match kind {
            Kind::Barrier if matches!(topology, Topology::Host) => Self::Flat,
            _ if matches!(topology, Topology::Host) => Self::Direct,
            Kind::Barrier | Kind::AllReduce | Kind::Broadcast if matches!(topology, Topology::Hosts) => {
                Self::Hierarchical
            }
            Kind::Barrier => Self::Dissemination,
            Kind::AllReduce | Kind::AllGather | Kind::AllGatherV | Kind::ReduceScatter => Self::Ring,
            Kind::Broadcast | Kind::Reduce | Kind::Gather | Kind::Scatter => Self::Tree,
            Kind::AllToAll | Kind::AllToAllV => Self::Pairwise,
        }
    }
}

/// How the ranks of a group lie to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Topology {
    /// All on one host, with memory that all can map.
    Host = 1,
    /// Every rank on a host of its own, or without memory that others can map: links carry everything.
    Links = 2,
    /// On several hosts, some of which have several.
    Hosts = 3,
}

impl Topology {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Host, Self::Hosts, Self::Links];

    /// The name under which tables know it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Links => "links",
            Self::Hosts => "hosts",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    kind: Kind,
    /// Everywhere if none.
    topology: Option<Topology>,
    ranks_max: u32,
    bytes_max: u64,
    algorithm: Algorithm,
}

/// Rules by which algorithms are chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    rules: Vec<Rule>,
}

/// Up to here an operation of one host is flat: a slot's bytes are copied in and out of the desks in the time that a
/// direct one takes to say that it is through.
const FLAT_BYTES_MAX: u64 = 4 << 10;

impl Default for Table {
    /// Recursive doubling sends the whole tensor log2(ranks) times and the ring twice in pieces: for short ones the
    /// number of messages decides, for long ones their bytes. Between two ranks both send as much. Where one begins to
    /// be faster was measured with `sheave tune --measure` over TCP on one machine.
    fn default() -> Self {
        let doubles = |ranks_max, bytes_max| Rule {
            kind: Kind::AllReduce,
            topology: Some(Topology::Links),
            ranks_max,
            bytes_max,
            algorithm: Algorithm::Doubling,
        };
        let is_flat = |kind| Rule {
            kind,
            topology: Some(Topology::Host),
            ranks_max: u32::MAX,
            bytes_max: FLAT_BYTES_MAX,
            algorithm: Algorithm::Flat,
        };
        let flat = Kind::ALL.into_iter().filter(|kind| Algorithm::Flat.does(*kind)).map(is_flat);
        Self { rules: flat.chain([doubles(2, 1 << 20), doubles(u32::MAX, 128 << 10)]).collect() }
    }
}

impl Table {
    /// The table in a file.
    ///
    /// # Errors
    ///
    /// `Io` if the file cannot be read, `InvalidArgument` for lines that are no rules.
    pub fn read(path: &Path) -> Result<Self> {
        let about = || format!("reading the table of algorithms {}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| {
            let hint = "SHEAVE_COLLECTIVE_TABLE names a file as `sheave tune --measure` prints it";
            Error::from(error).context(about()).hint(hint)
        })?;
        text.parse().map_err(|error: Error| error.context(about()))
    }

    /// The algorithm for an operation on `bytes` of one rank's tensor, of an all-gather with differing lengths the
    /// longest one.
    #[must_use]
    pub fn choose(&self, kind: Kind, topology: Topology, ranks: u32, bytes: u64) -> Algorithm {
        let fits = |rule: &&Rule| {
            let is_there = rule.topology.is_none_or(|wanted| wanted == topology) && rule.algorithm.suits(topology);
            rule.kind == kind && is_there && ranks <= rule.ranks_max && bytes <= rule.bytes_max
        };
        self.rules.iter().find(fits).map_or(Algorithm::usual(kind, topology), |rule| rule.algorithm)
    }

    /// Equal for equal tables.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let numbers = |rule: &Rule| {
            let topology = rule.topology.map_or(0, |topology| topology as u64);
            [rule.kind as u64, topology, rule.ranks_max.into(), rule.bytes_max, rule.algorithm as u64]
        };
        digest(self.rules.iter().flat_map(numbers))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rule in &self.rules {
            f.write_str(rule.kind.name())?;
            if let Some(topology) = rule.topology {
                write!(f, " {}", topology.name())?;
            }
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

    /// One rule a line; what follows a `#` is for readers.
    fn from_str(text: &str) -> Result<Self> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let rules = lines.filter(|line| !line.is_empty()).map(parse).collect::<Result<Vec<_>>>()?;
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
            .hint("write a rule as: all_reduce links ranks<=8 bytes<=4096 doubling")
    };
    let mut words = line.split_ascii_whitespace();
    let kind = words.next().and_then(Kind::from_name).ok_or_else(refuse)?;
    let (mut topology, mut algorithm) = (None, None);
    let (mut ranks_max, mut bytes_max) = (u32::MAX, u64::MAX);
    for word in words {
        if let Some(ranks) = word.strip_prefix("ranks<=") {
            ranks_max = ranks.parse().map_err(|_| refuse())?;
        } else if let Some(bytes) = word.strip_prefix("bytes<=") {
            bytes_max = bytes.parse().map_err(|_| refuse())?;
        } else if let Some(named) = Topology::ALL.into_iter().find(|topology| topology.name() == word) {
            topology = Some(named);
        } else {
            let named = Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == word);
            let fits = named.filter(|named| named.does(kind) && algorithm.is_none());
            algorithm = Some(fits.ok_or_else(refuse)?);
        }
    }
    let is_possible = |algorithm: &Algorithm| topology.is_none_or(|topology| algorithm.suits(topology));
    let algorithm = algorithm.filter(is_possible).ok_or_else(refuse)?;
    Ok(Rule { kind, topology, ranks_max, bytes_max, algorithm })
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
            "all_reduce links flat",
        ] {
            assert_eq!(text.parse::<Table>().unwrap_err().kind(), ErrorKind::InvalidArgument, "{text}");
        }
        assert!("all_reduce ring\n".repeat(257).parse::<Table>().is_err());
    }

    #[test]
    fn a_file_is_read_or_named() {
        let path = std::env::temp_dir().join(format!("sheave-table-{}", std::process::id()));
        std::fs::write(&path, "# measured\nall_reduce host bytes<=64 direct\n").unwrap();
        assert_eq!(Table::read(&path).unwrap().rules.len(), 1);
        std::fs::write(&path, "all_reduce sideways").unwrap();
        let error = Table::read(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("sideways") && error.to_string().contains("sheave-table"), "{error}");
        std::fs::remove_file(&path).unwrap();
        assert!(Table::read(&path).unwrap_err().to_string().contains("sheave-table"));
    }

    #[test]
    fn the_default_table_can_be_read_back_and_does_everything() {
        let table = Table::default();
        assert_eq!(table.to_string().parse::<Table>().unwrap(), table);
        for kind in Kind::ALL {
            for bytes in [0, 1 << 10, 1 << 20] {
                for topology in Topology::ALL {
                    let chosen = table.choose(kind, topology, 5, bytes);
                    assert!(chosen.does(kind) && chosen.suits(topology));
                }
            }
        }
        let other: Table = "all_reduce ring".parse().unwrap();
        assert_ne!(other.digest(), table.digest());
    }
}
