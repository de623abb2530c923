//! Which worker trains on which images when.

use sheave_base::clock::{Entropy, SeededEntropy};
use sheave_base::{Error, ErrorKind, Result};

/// A fixed plan of training: each epoch goes through a new shuffle of the images, each step takes the next
/// `workers * micro_batch` of them, and each worker its own `micro_batch` of those, in rank order.
///
/// Workers never share an image within an epoch, and an epoch shows no image twice. What does not fill a whole step is
/// left out of that epoch. The plan depends on its four numbers alone, so that every process has the same; a worker
/// that joins later, or somebody who checks, needs nothing from the others.
///
/// ```
/// use sheave_nn::Schedule;
///
/// let schedule = Schedule::new(1, 100, 3, 8)?;
/// assert_eq!((schedule.steps(), schedule.global_images()), (4, 24));
/// assert_eq!(schedule.indices(0, 3, 2)?.len(), 8);
/// assert!(schedule.indices(0, 4, 0).is_err());
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    seed: u64,
    images: usize,
    workers: usize,
    micro_batch: usize,
    global_images: usize,
}

impl Schedule {
    /// A plan for images with indices below `images`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when no worker or no image per worker is asked for, or there are not enough
    /// images for one step.
    pub fn new(seed: u64, images: usize, workers: usize, micro_batch: usize) -> Result<Self> {
        match workers.checked_mul(micro_batch) {
            Some(global_images) if (1..=images).contains(&global_images) => {
                Ok(Self { seed, images, workers, micro_batch, global_images })
            }
            _ => {
                let what = format!("{workers} workers cannot take {micro_batch} images each out of {images}");
                Err(Error::new(ErrorKind::InvalidArgument, what).hint("use smaller micro-batches or fewer workers"))
            }
        }
    }

    /// Steps of an epoch.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.images / self.global_images
    }

    /// Images of all workers in one step.
    #[must_use]
    pub fn global_images(&self) -> usize {
        self.global_images
    }

    /// What `worker` trains on in that step of that epoch, all counted from 0. Takes time in proportion to the images,
    /// some microseconds for a thousand.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when there is no such step or worker.
    pub fn indices(&self, epoch: usize, step: usize, worker: usize) -> Result<Vec<usize>> {
        if step >= self.steps() || worker >= self.workers {
            let what = format!(
                "there is no step {step} of worker {worker}: an epoch has {} steps of {} workers",
                self.steps(),
                self.workers
            );
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let start = step * self.global_images + worker * self.micro_batch;
        Ok(self.shuffled(epoch)[start..start + self.micro_batch].to_vec())
    }

    /// All images in the order of an epoch (Fisher and Yates, from the end).
    fn shuffled(&self, epoch: usize) -> Vec<usize> {
        // The seed is mixed before the epoch is added, so that neighbouring seeds do not share epochs.
        let mixed = SeededEntropy::new(self.seed).next_u64();
        let mut entropy = SeededEntropy::new(mixed.wrapping_add(epoch as u64));
        // Neighbouring states give neighbouring sequences; a mixed one starts far away.
        let mut entropy = SeededEntropy::new(entropy.next_u64());
        let mut order: Vec<usize> = (0..self.images).collect();
        for last in (1..self.images).rev() {
            order.swap(last, entropy.below(last as u64 + 1) as usize);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_image_is_seen_twice(
            seed: u64, images in 1_usize..200, workers in 1_usize..6, micro_batch in 1_usize..12,
        ) {
            let schedule = match Schedule::new(seed, images, workers, micro_batch) {
                Ok(schedule) => schedule,
                Err(_) => {
                    prop_assert!(workers * micro_batch > images);
                    return Ok(());
                }
            };
            let mut seen = HashSet::new();
            for step in 0..schedule.steps() {
                for worker in 0..workers {
                    let indices = schedule.indices(3, step, worker).unwrap();
                    prop_assert_eq!(indices.len(), micro_batch);
                    prop_assert!(indices.into_iter().all(|index| index < images && seen.insert(index)));
                }
            }
            prop_assert!(images - seen.len() < workers * micro_batch, "only what fills no step is left out");
        }
    }

    #[test]
    fn the_plan_depends_on_seed_and_epoch_alone() {
        let order = |seed, epoch| Schedule::new(seed, 1000, 2, 500).unwrap().indices(epoch, 0, 0).unwrap();
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 1), order(2, 0));
        // A worker's images are the same however the step is cut before it.
        let wide = Schedule::new(1, 1000, 2, 10).unwrap().indices(0, 0, 1).unwrap();
        let narrow = Schedule::new(1, 1000, 4, 5).unwrap();
        assert_eq!(wide, [narrow.indices(0, 0, 2).unwrap(), narrow.indices(0, 0, 3).unwrap()].concat());
    }

    #[test]
    fn shuffles_are_even() {
        // 2,000 shuffles of 10: each image is first about 200 times (standard deviation 13).
        let schedule = Schedule::new(9, 10, 1, 1).unwrap();
        let mut counts = [0_i32; 10];
        (0..2000).for_each(|epoch| counts[schedule.indices(epoch, 0, 0).unwrap()[0]] += 1);
        assert!(counts.iter().all(|count| (count - 200).abs() < 70), "{counts:?}");
    }

    #[test]
    fn impossible_plans_are_refused() {
        for (images, workers, micro_batch) in [(10, 0, 1), (10, 1, 0), (10, 11, 1), (0, 1, 1), (10, usize::MAX, 2)] {
            let error = Schedule::new(0, images, workers, micro_batch).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        let schedule = Schedule::new(0, 10, 2, 2).unwrap();
        assert!(schedule.indices(0, 2, 0).is_err() && schedule.indices(0, 0, 2).is_err());
        assert!(schedule.indices(usize::MAX, 1, 1).is_ok());
    }
}
