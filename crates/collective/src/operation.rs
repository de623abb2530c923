//! What an operation is: its kind, its operator, and the header by which ranks find out that they mean the same.
//!
//! Every message of an operation carries the header of the rank that sent it, and every receive compares it with its
//! own. Two headers agree when they are equal in all but the sender and the length of this message's part.

use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{Dtype, Op};
use std::fmt;

/// What a group does together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Everybody waits for everybody.
    Barrier = 1,
    /// One rank's tensor goes to all.
    Broadcast = 2,
    /// All tensors are reduced at one rank.
    Reduce = 3,
    /// All tensors are reduced everywhere.
    AllReduce = 4,
    /// The tensors of all ranks, one behind the other, at one rank.
    Gather = 5,
    /// The tensors of all ranks, one behind the other, everywhere.
    AllGather = 6,
    /// As `AllGather`, with lengths that differ.
    AllGatherV = 7,
    /// The pieces of one rank's tensor go one to each.
    Scatter = 8,
    /// All tensors are reduced, and each rank gets its piece.
    ReduceScatter = 9,
    /// Each rank sends one piece to each.
    AllToAll = 10,
    /// As `AllToAll`, with lengths that differ.
    AllToAllV = 11,
}

impl Kind {
    /// Every kind, in the order of their codes.
    pub const ALL: [Self; 11] = [
        Self::Barrier,
        Self::Broadcast,
        Self::Reduce,
        Self::AllReduce,
        Self::Gather,
        Self::AllGather,
        Self::AllGatherV,
        Self::Scatter,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::AllToAllV,
    ];

    /// The name under which users know it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllReduce => "all_reduce",
            Self::Gather => "gather",
            Self::AllGather => "all_gather",
            Self::AllGatherV => "all_gather_v",
            Self::Scatter => "scatter",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::AllToAllV => "all_to_all_v",
        }
    }

    /// The kind of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }
}

/// How elements of several ranks become one.
///
/// | operator | dtypes |
/// |---|---|
/// | sum, product | integers (they wrap around), floats, complex |
/// | avg | floats, complex: the sum, multiplied once by 1/ranks |
/// | min, max | integers, floats, bool |
/// | band, bor, bxor | integers, bool |
///
/// Sums, products and averages of f16 and bf16 are computed in f32, across all hops, and rounded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Operator {
    /// Addition.
    Sum = 1,
    /// Multiplication.
    Product = 2,
    /// The smaller one.
    Min = 3,
    /// The larger one.
    Max = 4,
    /// The sum divided by the number of ranks.
    Avg = 5,
    /// Bitwise and.
    Band = 6,
    /// Bitwise or.
    Bor = 7,
    /// Bitwise exclusive or.
    Bxor = 8,
}

impl Operator {
    /// Every operator, in the order of their codes.
    pub const ALL: [Self; 8] =
        [Self::Sum, Self::Product, Self::Min, Self::Max, Self::Avg, Self::Band, Self::Bor, Self::Bxor];

    /// The name under which users know it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Product => "product",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
            Self::Band => "band",
            Self::Bor => "bor",
            Self::Bxor => "bxor",
        }
    }

    /// How two elements are combined on the way.
    #[must_use]
    pub const fn step(self) -> Op {
        match self {
            Self::Sum | Self::Avg => Op::Sum,
            Self::Product => Op::Prod,
            Self::Min => Op::Min,
            Self::Max => Op::Max,
            Self::Band => Op::Band,
            Self::Bor => Op::Bor,
            Self::Bxor => Op::Bxor,
        }
    }

    /// Refuses what has no meaning, before anything moves.
    ///
    /// # Errors
    ///
    /// `Unsupported` that says what to use instead.
    pub fn require(self, dtype: Dtype) -> Result<()> {
        if self == Self::Avg && dtype.is_integer() {
            return Err(Error::new(ErrorKind::Unsupported, format!("avg of {dtype} has no meaning"))
                .hint("the average of whole numbers is no whole number: use sum and divide as you need"));
        }
        self.step().require(dtype)
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}

/// The first byte of every header; another layout gets another number.
const VERSION: u8 = 1;

const HEADER_BYTES: usize = 48;
/// Where a header has a byte that means nothing yet, and is zero.
const RESERVED_AT: usize = 13;

/// How many tensors of a rank an operation is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Form {
    /// One.
    #[default]
    One = 0,
    /// A list, each for itself.
    List = 1,
    /// Replicas on several devices.
    Devices = 2,
}

impl Form {
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        [Self::One, Self::List, Self::Devices].get(usize::from(code)).copied()
    }
}

/// What a rank means by an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) operator: Option<Operator>,
    pub(crate) dtype: Dtype,
    pub(crate) root: u32,
    pub(crate) form: Form,
    /// Of a list, or on devices where their number must be the same everywhere; otherwise 0.
    pub(crate) tensors: u16,
    /// Elements of one rank's tensor, of a list in all; 0 where lengths differ.
    pub(crate) count: u64,
    /// Of the lengths, where they differ and everybody knows all of them; of a list, of the dtypes too.
    pub(crate) digest: u64,
    /// Of the table from which algorithms are chosen.
    pub(crate) table: u64,
    /// Who says so.
    pub(crate) rank: u32,
    /// Elements in what this message announces, where lengths differ between pairs.
    pub(crate) part: u64,
}

impl Header {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend([VERSION, self.kind as u8, self.operator.map_or(0, |operator| operator as u8)]);
        bytes.push(self.dtype.code());
        bytes.extend(self.root.to_le_bytes());
        bytes.extend(self.rank.to_le_bytes());
        bytes.extend([self.form as u8, 0]);
        bytes.extend(self.tensors.to_le_bytes());
        for number in [self.count, self.digest, self.table, self.part] {
            bytes.extend(number.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let strange = || Error::new(ErrorKind::Protocol, "a message of a collective operation without its header");
        let bytes: &[u8; HEADER_BYTES] = bytes.try_into().map_err(|_| strange())?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let operator = match bytes[2] {
            0 => None,
            code => Some(Operator::from_code(code).ok_or_else(strange)?),
        };
        if bytes[0] != VERSION {
            let what = format!("a rank speaks version {} of collective operations, this one {VERSION}", bytes[0]);
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        if bytes[RESERVED_AT] != 0 {
            return Err(strange());
        }
        Ok(Self {
            kind: Kind::from_code(bytes[1]).ok_or_else(strange)?,
            operator,
            dtype: Dtype::from_code(bytes[3]).ok_or_else(strange)?,
            root: word(4),
            rank: word(8),
            form: Form::from_code(bytes[12]).ok_or_else(strange)?,
            tensors: u16::from_le_bytes([bytes[14], bytes[15]]),
            count: long(16),
            digest: long(24),
            table: long(32),
            part: long(40),
        })
    }

    /// What the operation is called.
    pub(crate) fn name(&self) -> &'static str {
        match (self.form, self.kind) {
            (Form::List, Kind::Broadcast) => "broadcast_list",
            (Form::List, Kind::AllReduce) => "all_reduce_list",
            (Form::List, Kind::AllGather) => "all_gather_list",
            (Form::List, Kind::ReduceScatter) => "reduce_scatter_list",
            (Form::Devices, Kind::Broadcast) => "broadcast_devices",
            (Form::Devices, Kind::Reduce) => "reduce_devices",
            (Form::Devices, Kind::AllReduce) => "all_reduce_devices",
            (Form::Devices, Kind::AllGather) => "all_gather_devices",
            (_, kind) => kind.name(),
        }
    }

    /// Refuses what another rank means, if it is something else.
    pub(crate) fn check(&self, other: &Self, sequence: u64) -> Result<()> {
        if (Self { rank: self.rank, part: self.part, ..*other }) == *self {
            return Ok(());
        }
        let (kind, mut ours, mut theirs) = (ErrorKind::Mismatch, self.to_string(), other.to_string());
        if ours == theirs && self.table != other.table {
            (ours, theirs) =
                (format!("{ours} by table {:016x}", self.table), format!("{theirs} by {:016x}", other.table));
        } else if ours == theirs && self.form == Form::List {
            (ours, theirs) = (format!("{ours}, with its dtypes and lengths"), format!("{theirs}, but other ones"));
        } else if ours == theirs {
            (ours, theirs) = (format!("{ours} with its lengths"), format!("{theirs} with other lengths"));
        }
        let what =
            format!("rank {} called {theirs}, rank {} called {ours}, sequence {sequence}", other.rank, self.rank);
        Err(Error::new(kind, what).hint("all ranks must make the same calls in the same order"))
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        if let Some(operator) = self.operator {
            write!(f, " {}", operator.name())?;
        }
        match (self.form, self.kind) {
            (Form::List, _) => write!(f, " of {} tensors with {} elements in all", self.tensors, self.count)?,
            (_, Kind::Barrier) => {}
            (_, Kind::AllGatherV | Kind::AllToAllV) => write!(f, " {}", self.dtype)?,
            _ => write!(f, " {}[{}]", self.dtype, self.count)?,
        }
        if self.form == Form::Devices && self.tensors > 0 {
            write!(f, " on {} devices", self.tensors)?;
        }
        if self.kind.has_root() { write!(f, " with root {}", self.root) } else { Ok(()) }
    }
}

/// FNV-1a over some numbers: the same on every rank, and different enough to tell a mistake.
pub(crate) fn digest(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: Kind, operator: Option<Operator>, count: u64) -> Header {
        let (form, tensors) = (Form::One, 0);
        Header {
            kind,
            operator,
            dtype: Dtype::F32,
            root: 0,
            form,
            tensors,
            count,
            digest: 0,
            table: 7,
            rank: 0,
            part: 0,
        }
    }

    #[test]
    fn a_header_survives_the_way() {
        for kind in Kind::ALL {
            for operator in Operator::ALL.map(Some).into_iter().chain([None]) {
                let header = Header { root: 3, digest: u64::MAX, rank: 9, part: 5, ..header(kind, operator, 1 << 40) };
                assert_eq!(Header::decode(&header.encode()).unwrap(), header);
                for form in [Form::List, Form::Devices] {
                    let header = Header { form, tensors: 0xabcd, ..header };
                    assert_eq!(Header::decode(&header.encode()).unwrap(), header);
                }
            }
            assert_eq!(Kind::from_name(kind.name()), Some(kind));
        }
    }

    #[test]
    fn f43_bytes_that_are_no_header_are_refused() {
        let good = header(Kind::AllReduce, Some(Operator::Sum), 4).encode();
        assert!(Header::decode(&good[1..]).is_err() && Header::decode(&[]).is_err());
        for (at, byte) in [(0, 2), (1, 0), (1, 12), (2, 9), (3, 17), (12, 3), (13, 1)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(Header::decode(&bad).unwrap_err().kind(), ErrorKind::Protocol, "{at}");
        }
    }

    #[test]
    fn a_mismatch_shows_both_sides() {
        let ours = header(Kind::Broadcast, None, 4);
        let theirs = Header { rank: 1, ..header(Kind::AllReduce, Some(Operator::Sum), 4) };
        let error = ours.check(&theirs, 17).unwrap_err();
        let expected = "rank 1 called all_reduce sum f32[4], rank 0 called broadcast f32[4] with root 0, sequence 17";
        assert_eq!((error.kind(), error.what()), (ErrorKind::Mismatch, expected));
        assert!(ours.check(&Header { rank: 5, part: 9, ..ours }, 17).is_ok());
        let other_table = ours.check(&Header { rank: 1, table: 8, ..ours }, 0).unwrap_err();
        assert!(other_table.what().contains("by table 0000000000000007"), "{other_table}");
        let other_lengths = ours.check(&Header { rank: 1, digest: 8, ..ours }, 0).unwrap_err();
        assert!(other_lengths.what().contains("other lengths"), "{other_lengths}");
        let list = Header { form: Form::List, tensors: 2, ..header(Kind::AllReduce, Some(Operator::Sum), 9) };
        let other_list = list.check(&Header { rank: 1, digest: 8, ..list }, 3).unwrap_err();
        let words = "all_reduce_list sum of 2 tensors with 9 elements in all";
        let expected = format!(
            "rank 1 called {words}, but other ones, rank 0 called {words}, with its dtypes and lengths, sequence 3"
        );
        assert_eq!(other_list.what(), expected);
    }

    #[test]
    fn what_has_no_meaning_is_refused_with_a_hint() {
        for (operator, dtype) in [
            (Operator::Avg, Dtype::I32),
            (Operator::Sum, Dtype::Bool),
            (Operator::Avg, Dtype::Bool),
            (Operator::Band, Dtype::F32),
            (Operator::Min, Dtype::Complex64),
            (Operator::Sum, Dtype::Fp8E4M3),
        ] {
            let error = operator.require(dtype).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.advice().is_some(), "{error}");
        }
        for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64, Dtype::Complex64, Dtype::Complex128] {
            assert!(Operator::Avg.require(dtype).is_ok());
        }
    }
}
