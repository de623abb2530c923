//! The extent of a tensor in each dimension.

use std::fmt;

use sheave_base::{Error, ErrorKind, Result, limits::DIMENSIONS_MAX};
use smallvec::SmallVec;

/// Dimensions of a row-major tensor, outermost first. No dimensions at all is a scalar of one element.
///
/// ```
/// use sheave_tensor::Shape;
///
/// let shape = Shape::from([2, 3]);
/// assert_eq!(shape.elements(), Some(6));
/// assert_eq!(shape.to_string(), "[2, 3]");
/// assert_eq!(Shape::from([u64::MAX, 2]).elements(), None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shape(SmallVec<[u64; 4]>);

impl Shape {
    /// A shape of these dimensions.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] beyond [`DIMENSIONS_MAX`].
    pub fn new(dimensions: &[u64]) -> Result<Self> {
        if dimensions.len() > DIMENSIONS_MAX {
            let what = format!("{} dimensions, at most {DIMENSIONS_MAX} are possible", dimensions.len());
            return Err(Error::new(ErrorKind::LimitExceeded, what));
        }
        Ok(Self(SmallVec::from_slice(dimensions)))
    }

    /// The dimensions, outermost first.
    #[must_use]
    pub fn dimensions(&self) -> &[u64] {
        &self.0
    }

    /// Number of elements; `None` when it does not fit. An empty dimension makes it zero whatever the others are.
    #[must_use]
    pub fn elements(&self) -> Option<u64> {
        if self.0.contains(&0) {
            return Some(0);
        }
        self.0.iter().try_fold(1_u64, |product, &dimension| product.checked_mul(dimension))
    }
}

impl<const N: usize> From<[u64; N]> for Shape {
    fn from(dimensions: [u64; N]) -> Self {
        const { assert!(N <= DIMENSIONS_MAX, "too many dimensions") };
        Self(SmallVec::from_slice(&dimensions))
    }
}

impl TryFrom<&[u64]> for Shape {
    type Error = Error;

    fn try_from(dimensions: &[u64]) -> Result<Self> {
        Self::new(dimensions)
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Self {
        shape.clone()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_have_one_element_and_empty_ones_none() {
        assert_eq!(Shape::default().elements(), Some(1));
        assert_eq!(Shape::from([u64::MAX, u64::MAX, 0]).elements(), Some(0));
    }

    #[test]
    fn too_many_dimensions_are_refused() {
        assert!(Shape::new(&[1; DIMENSIONS_MAX]).is_ok());
        let error = Shape::new(&[1; DIMENSIONS_MAX + 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    }
}
