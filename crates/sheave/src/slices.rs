//! Collectives on slices, for programs whose numbers are no tensors.

use sheave_base::{Rank, Result};
use sheave_collective::{Communicator, Operator};
use sheave_tensor::{Element, Tensor};

/// Collective operations on slices of numbers. Each blocks until it has ended, and copies the numbers into a tensor and
/// back: where that counts, keep them in a [`Tensor`].
///
/// After an error the slice is as it was.
pub trait Slices {
    /// Replaces the numbers of every rank by those of all ranks, combined element by element. All give as many.
    ///
    /// # Errors
    ///
    /// As [`Communicator::all_reduce`].
    fn all_reduce_slice<T: Element>(&self, numbers: &mut [T], operator: Operator) -> Result<()>;

    /// Replaces the numbers of every rank by those of `root`. All give as many.
    ///
    /// # Errors
    ///
    /// As [`Communicator::broadcast`].
    fn broadcast_slice<T: Element>(&self, numbers: &mut [T], root: Rank) -> Result<()>;

    /// Returns the numbers of all ranks, one rank's behind the other's. All give as many.
    ///
    /// # Errors
    ///
    /// As [`Communicator::all_gather`].
    fn all_gather_slice<T: Element>(&self, numbers: &[T]) -> Result<Vec<T>>;
}

impl Slices for Communicator {
    fn all_reduce_slice<T: Element>(&self, numbers: &mut [T], operator: Operator) -> Result<()> {
        let tensor = tensor(numbers)?;
        self.all_reduce(&tensor, &tensor, operator).wait()?;
        copied(&tensor, numbers)
    }

    fn broadcast_slice<T: Element>(&self, numbers: &mut [T], root: Rank) -> Result<()> {
        let tensor = tensor(numbers)?;
        self.broadcast(&tensor, root).wait()?;
        copied(&tensor, numbers)
    }

    fn all_gather_slice<T: Element>(&self, numbers: &[T]) -> Result<Vec<T>> {
        let input = tensor(numbers)?;
        let output = Tensor::private(input.dtype(), [self.size().into(), numbers.len() as u64])?;
        self.all_gather(&input, &output).wait()?;
        output.to_vec()
    }
}

fn tensor<T: Element>(numbers: &[T]) -> Result<Tensor> {
    Tensor::from_slice(numbers, [numbers.len() as u64])
}

fn copied<T: Element>(tensor: &Tensor, numbers: &mut [T]) -> Result<()> {
    numbers.copy_from_slice(&tensor.as_slice::<T>()?);
    Ok(())
}
