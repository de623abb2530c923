//! What a worker is about to do, as it tells the others, and whether all of that fits.

use sheave_base::{Error, ErrorKind, Result};
use sheave_collective::Operator;
use sheave_tensor::{Dtype, Tensor};
use std::fmt;

/// An operation of all workers of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Operation {
    Broadcast = 1,
    Scatter = 2,
    Gather = 3,
    AllGather = 4,
    AllReduce = 5,
}

impl Operation {
    const ALL: [Self; 5] = [Self::Broadcast, Self::Scatter, Self::Gather, Self::AllGather, Self::AllReduce];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Broadcast => "broadcast_from_first",
            Self::Scatter => "scatter_from_first",
            Self::Gather => "gather_to_first",
            Self::AllGather => "all_gather",
            Self::AllReduce => "all_reduce",
        }
    }

    /// Whether the worker of this rank gives something.
    pub(crate) fn reads(self, rank: u32) -> bool {
        rank == 0 || !matches!(self, Self::Broadcast | Self::Scatter)
    }

    /// Whether the worker of this rank gets something.
    pub(crate) fn writes(self, rank: u32) -> bool {
        rank == 0 || self != Self::Gather
    }

    /// Elements that a worker gets for each that one gives: so many times as many, and so many parts of them.
    fn ratio(self, size: u64) -> (u64, u64) {
        match self {
            Self::Broadcast | Self::AllReduce => (1, 1),
            Self::Scatter => (1, size),
            Self::Gather | Self::AllGather => (size, 1),
        }
    }
}

/// Numbers that a descriptor is told by.
pub(crate) const NUMBERS: usize = 8;

/// Dtype and number of elements of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) dtype: Dtype,
    pub(crate) elements: u64,
}

impl Extent {
    pub(crate) fn of(tensor: &Tensor) -> Self {
        Self { dtype: tensor.dtype(), elements: tensor.elements() as u64 }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.dtype, self.elements)
    }
}

/// What one worker tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// Bytes of the error that this worker has instead of arguments; none if it has these.
    pub(crate) error_bytes: u64,
    pub(crate) operation: Operation,
    pub(crate) operator: Option<Operator>,
    /// What it gives, if it does.
    pub(crate) source: Option<Extent>,
    /// What it has room for; none if that is made, or not needed.
    pub(crate) target: Option<Extent>,
    /// Dimensions of what it gives.
    pub(crate) dimensions: u64,
}

impl Descriptor {
    pub(crate) fn encode(&self) -> [u64; NUMBERS] {
        let operator = self.operator.and_then(|operator| Operator::ALL.iter().position(|other| *other == operator));
        let code = |extent: Option<Extent>| extent.map_or(0, |extent| u64::from(extent.dtype.code()) + 1);
        let elements = |extent: Option<Extent>| extent.map_or(0, |extent| extent.elements);
        [
            self.error_bytes,
            self.operation as u64,
            operator.map_or(0, |place| place as u64 + 1),
            code(self.source),
            elements(self.source),
            code(self.target),
            elements(self.target),
            self.dimensions,
        ]
    }

    pub(crate) fn decode(numbers: &[u64]) -> Result<Self> {
        let strange = || {
            let what = "a worker tells something else than an operation of a session";
            Error::new(ErrorKind::Protocol, what).hint("run the same release of sheave on all sides")
        };
        let &[error_bytes, operation, operator, source, given, target, room, dimensions] = numbers else {
            return Err(strange());
        };
        let extent = |code: u64, elements| -> Result<Option<Extent>> {
            let Some(code) = code.checked_sub(1) else { return Ok(None) };
            let dtype = u8::try_from(code).ok().and_then(Dtype::from_code).ok_or_else(strange)?;
            Ok(Some(Extent { dtype, elements }))
        };
        let place = usize::try_from(operation).ok().and_then(|operation| operation.checked_sub(1));
        let operator = match operator.checked_sub(1) {
            None => None,
            Some(place) => Some(*Operator::ALL.get(place as usize).ok_or_else(strange)?),
        };
        Ok(Self {
            error_bytes,
            operation: place.and_then(|place| Operation::ALL.get(place).copied()).ok_or_else(strange)?,
            operator,
            source: extent(source, given)?,
            target: extent(target, room)?,
            dimensions,
        })
    }

    /// What it does, for errors.
    fn doing(&self) -> String {
        let operator = self.operator.map(|operator| format!(" {}", operator.name())).unwrap_or_default();
        format!("{}{operator}", self.operation.name())
    }
}

/// Refuses what does not fit together. All workers find the same, for they look at the same descriptors in the same
/// order. `worker` says which worker has a rank.
pub(crate) fn check(told: &[Descriptor], worker: impl Fn(usize) -> u32) -> Result<()> {
    let Some(first) = told.first() else { return Ok(()) };
    let refuse = |what: String| Err(Error::new(ErrorKind::Mismatch, what));
    for (rank, other) in told.iter().enumerate() {
        if (other.operation, other.operator) != (first.operation, first.operator) {
            let (doing, expected) = (other.doing(), first.doing());
            return refuse(format!(
                "worker {} is in {doing}; expected {expected}, as worker {} is",
                worker(rank),
                worker(0)
            ));
        }
    }
    // The first gives something in every operation.
    let Some(given) = first.source else {
        return refuse(format!("worker {} gives nothing; expected a tensor", worker(0)));
    };
    let (times, parts) = first.operation.ratio(told.len() as u64);
    let Some(whole) = given.elements.checked_mul(times).filter(|whole| whole.is_multiple_of(parts)) else {
        let what = format!("worker {} gives {given}; expected a multiple of {parts} elements", worker(0));
        return refuse(format!("{what}, one part for each worker"));
    };
    let wanted = Extent { elements: whole / parts, ..given };
    for (rank, other) in told.iter().enumerate() {
        let source = other.source.filter(|_| first.operation.reads(rank as u32));
        if let Some(source) = source.filter(|source| *source != given) {
            let what = format!("worker {} gives {source}; expected {given}", worker(rank));
            return refuse(format!("{what}, as worker {} gives", worker(0)));
        }
        let target = other.target.filter(|_| first.operation.writes(rank as u32));
        if let Some(target) = target.filter(|target| *target != wanted) {
            let what = format!("worker {} has room for {target}; expected {wanted}", worker(rank));
            return refuse(format!("{what}, for worker {} gives {given}", worker(0)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(elements: u64) -> Option<Extent> {
        Some(Extent { dtype: Dtype::F32, elements })
    }

    fn told(operation: Operation, source: Option<Extent>, target: Option<Extent>) -> Descriptor {
        Descriptor { error_bytes: 0, operation, operator: None, source, target, dimensions: 1 }
    }

    #[test]
    fn a_descriptor_survives_the_way() {
        for operation in Operation::ALL {
            for operator in Operator::ALL.map(Some).into_iter().chain([None]) {
                for target in [None, extent(0), extent(u64::MAX)] {
                    let one = Descriptor { operator, error_bytes: 7, ..told(operation, extent(3), target) };
                    assert_eq!(Descriptor::decode(&one.encode()).unwrap(), one);
                }
            }
        }
    }

    #[test]
    fn numbers_that_are_no_descriptor_are_refused() {
        let good = told(Operation::AllReduce, extent(3), None).encode();
        for (at, number) in [(1, 0), (1, 6), (1, u64::MAX), (2, 9), (3, 300), (5, 1000)] {
            let mut bad = good;
            bad[at] = number;
            assert_eq!(Descriptor::decode(&bad).unwrap_err().kind(), ErrorKind::Protocol, "{at}");
        }
        assert!(Descriptor::decode(&good[1..]).is_err());
    }

    #[test]
    fn lengths_that_fit_are_taken_and_others_named() {
        let fits = |told: &[Descriptor]| check(told, |rank| rank as u32 + 4);
        let broadcast = |source, target| told(Operation::Broadcast, source, target);
        assert!(
            fits(&[broadcast(extent(4), None), broadcast(extent(9), extent(4))]).is_ok(),
            "what others give is void"
        );
        let error = fits(&[broadcast(extent(4), extent(4)), broadcast(None, extent(3))]).unwrap_err();
        assert_eq!(error.what(), "worker 5 has room for f32[3]; expected f32[4], for worker 4 gives f32[4]");
        let scatter = |source, target| told(Operation::Scatter, source, target);
        assert!(fits(&[scatter(extent(4), extent(2)), scatter(None, None)]).is_ok());
        let error = fits(&[scatter(extent(5), None), scatter(None, None)]).unwrap_err();
        assert!(error.what().contains("expected a multiple of 2 elements"), "{error}");
        let gather = |source, target| told(Operation::Gather, source, target);
        assert!(fits(&[gather(extent(4), extent(8)), gather(extent(4), extent(1))]).is_ok());
        let error = fits(&[gather(extent(4), None), gather(extent(5), None)]).unwrap_err();
        assert_eq!(error.what(), "worker 5 gives f32[5]; expected f32[4], as worker 4 gives");
        let huge = told(Operation::AllGather, extent(u64::MAX), None);
        assert_eq!(fits(&[huge, huge]).unwrap_err().kind(), ErrorKind::Mismatch, "it does not wrap");
        let sum = Descriptor { operator: Some(Operator::Sum), ..told(Operation::AllReduce, extent(1), None) };
        let error = fits(&[sum, Descriptor { operator: Some(Operator::Max), ..sum }]).unwrap_err();
        assert_eq!(error.what(), "worker 5 is in all_reduce max; expected all_reduce sum, as worker 4 is");
    }
}
