//! Data of a supervised training, and batches of them.

use sheave_base::{Error, ErrorKind, Result};

use crate::digits::{PIXELS, Split};

/// What a network should say about each row of inputs.
#[derive(Clone, Debug, PartialEq)]
pub enum Targets {
    /// The class of each row, from 0.
    Classes(Vec<u32>),
    /// Numbers, equally many for each row, one row behind the other.
    Values(Vec<f32>),
}

impl Targets {
    /// The same kind of targets, without any.
    fn empty(&self) -> Self {
        match self {
            Self::Classes(_) => Self::Classes(Vec::new()),
            Self::Values(_) => Self::Values(Vec::new()),
        }
    }
}

/// Rows of inputs, all of one width, and their targets. A [`Dataset`] is also what a batch is: some of its rows.
///
/// ```
/// use sheave_nn::{Dataset, Targets};
///
/// let data = Dataset::new(vec![0.0, 0.1, 1.0, 1.1, 2.0, 2.1], 2, Targets::Values(vec![0.0, 10.0, 20.0]))?;
/// assert_eq!((data.rows(), data.width(), data.target_width()), (3, 2, 1));
/// let mut batch = data.batch(&[2, 0])?;
/// assert_eq!(batch.inputs(), [2.0, 2.1, 0.0, 0.1]);
/// // Another one, in the same memory.
/// data.gather(&[1], &mut batch)?;
/// assert_eq!(batch.targets(), &Targets::Values(vec![10.0]));
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    rows: usize,
    width: usize,
    inputs: Vec<f32>,
    targets: Targets,
}

impl Dataset {
    /// Makes a dataset of inputs of rows of `width` numbers, one row behind the other, and a target for each.
    ///
    /// # Errors
    /// `InvalidArgument` for lengths that do not fit, no rows, or numbers that are not finite.
    pub fn new(inputs: Vec<f32>, width: usize, targets: Targets) -> Result<Self> {
        if width == 0 || inputs.is_empty() || !inputs.len().is_multiple_of(width) {
            let what = format!("the length of inputs is {}; expected a multiple of {width} above zero", inputs.len());
            return Err(refuse(what));
        }
        let rows = inputs.len() / width;
        let (has_fitting_targets, count) = match &targets {
            Targets::Classes(classes) => (classes.len() == rows, classes.len()),
            Targets::Values(values) => (values.len() >= rows && values.len().is_multiple_of(rows), values.len()),
        };
        if !has_fitting_targets {
            return Err(refuse(format!("the number of targets is {count}; expected one for each of {rows} rows")));
        }
        let values = if let Targets::Values(values) = &targets { values.as_slice() } else { &[] };
        for (field, numbers) in [("inputs", inputs.as_slice()), ("targets", values)] {
            if let Some(place) = numbers.iter().position(|number| !number.is_finite()) {
                return Err(refuse(format!("{field}[{place}] is {}; expected a finite number", numbers[place])));
            }
        }
        Ok(Self { rows, width, inputs, targets })
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns how many numbers a row of inputs has.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns how many targets a row has.
    #[must_use]
    pub fn target_width(&self) -> usize {
        match &self.targets {
            Targets::Classes(_) => 1,
            Targets::Values(values) => values.len() / self.rows,
        }
    }

    /// Returns the inputs, one row behind the other.
    #[must_use]
    pub fn inputs(&self) -> &[f32] {
        &self.inputs
    }

    /// Returns the targets.
    #[must_use]
    pub fn targets(&self) -> &Targets {
        &self.targets
    }

    /// Returns the classes of all rows, as [metrics](sheave_bayes::metrics) take them; none where targets are numbers.
    #[must_use]
    pub fn labels(&self) -> Vec<usize> {
        match &self.targets {
            Targets::Classes(classes) => classes.iter().map(|&class| class as usize).collect(),
            Targets::Values(_) => Vec::new(),
        }
    }

    /// Returns some of the rows, in that order; a row may come several times.
    ///
    /// # Errors
    /// `InvalidArgument` for an index that is none, or no indices.
    pub fn batch(&self, indices: &[usize]) -> Result<Self> {
        let mut batch = Self { rows: 0, width: self.width, inputs: Vec::new(), targets: self.targets.empty() };
        self.gather(indices, &mut batch)?;
        Ok(batch)
    }

    /// Writes some of the rows into a batch of this dataset, whose memory is used again.
    ///
    /// # Errors
    /// Those of [`batch`](Self::batch); the batch is unchanged then.
    pub fn gather(&self, indices: &[usize], batch: &mut Self) -> Result<()> {
        if let Some(index) = indices.iter().find(|index| **index >= self.rows) {
            return Err(refuse(format!("an index is {index}; expected one below {}, the number of rows", self.rows)));
        }
        if indices.is_empty() {
            return Err(refuse("the number of indices is 0; expected one at least".to_owned()));
        }
        batch.inputs.clear();
        for &index in indices {
            batch.inputs.extend_from_slice(&self.inputs[index * self.width..(index + 1) * self.width]);
        }
        match (&self.targets, &mut batch.targets) {
            (Targets::Classes(from), Targets::Classes(to)) => {
                to.clear();
                to.extend(indices.iter().map(|&index| from[index]));
            }
            (Targets::Values(from), Targets::Values(to)) => {
                to.clear();
                let width = from.len() / self.rows;
                indices.iter().for_each(|&index| to.extend_from_slice(&from[index * width..(index + 1) * width]));
            }
            (targets, other) => {
                *other = targets.empty();
                return self.gather(indices, batch);
            }
        }
        (batch.rows, batch.width) = (indices.len(), self.width);
        Ok(())
    }
}

impl Split {
    /// Returns the digits as a dataset: rows of 64 pixels, and their classes.
    ///
    /// # Errors
    /// `InvalidArgument` where there is no digit.
    pub fn dataset(&self) -> Result<Dataset> {
        let (mut inputs, mut classes) = (Vec::with_capacity(self.len() * PIXELS), Vec::with_capacity(self.len()));
        for index in 0..self.len() {
            inputs.extend_from_slice(self.pixels(index).unwrap_or_default());
            classes.extend(self.label(index).map(u32::from));
        }
        Dataset::new(inputs, PIXELS, Targets::Classes(classes))
    }
}

fn refuse(what: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, what).operation("dataset")
}
