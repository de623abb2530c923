//! What members predict together.

use sheave_base::{Error, ErrorKind, Result};
use sheave_bayes::ensemble::mixture;
use sheave_bayes::metrics::{self, Bin};
use sheave_bayes::predict;
use sheave_nn::Loss;

/// Bins of the calibration error.
const BINS: usize = 15;

/// The outputs of all samples of a posterior for some rows of inputs: those of each member, or of several samples of
/// each. All count alike.
#[derive(Clone, Debug)]
pub struct Prediction {
    loss: Loss,
    rows: usize,
    width: usize,
    samples: Vec<Vec<f32>>,
}

impl Prediction {
    pub(crate) fn new(loss: Loss, rows: usize, width: usize, samples: Vec<Vec<f32>>) -> Result<Self> {
        if samples.is_empty() {
            let what = "the number of samples is 0; expected one at least";
            return Err(Error::new(ErrorKind::InvalidArgument, what)
                .operation("predict")
                .hint("fit longer, or take more"));
        }
        Ok(Self { loss, rows, width, samples })
    }

    /// Returns the number of rows of inputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the outputs of each sample: rows × outputs of the network.
    #[must_use]
    pub fn samples(&self) -> &[Vec<f32>] {
        &self.samples
    }

    /// Returns the posterior predictive of a classification, rows × classes: the mean of the samples' probabilities.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a network without classes; `InvalidArgument` for outputs that are not finite.
    pub fn probabilities(&self) -> Result<Vec<f64>> {
        self.classes()?;
        let mut probabilities = vec![0.0; self.rows * self.width];
        predict::mean_probabilities(&self.wide(), self.width, &mut probabilities)?;
        Ok(probabilities)
    }

    /// Returns how good the probabilities are for labels, one for each row.
    ///
    /// # Errors
    /// Those of [`probabilities`](Self::probabilities), and `InvalidArgument` for labels that do not fit.
    pub fn scores(&self, labels: &[usize]) -> Result<Scores> {
        self.classes()?;
        let mut logarithms = vec![0.0; self.rows * self.width];
        predict::mean_log_probabilities(&self.wide(), self.width, &mut logarithms)?;
        let nll = metrics::nll(&logarithms, self.width, labels)?;
        Ok(Scores { nll, ..Scores::of(&self.probabilities()?, self.width, labels)? })
    }

    /// Returns means and variances of a regression, rows × targets each: of the mixture of what the samples predict,
    /// each with the noise that the network knows. Of a network that knows no noise the variance is the disagreement of
    /// samples alone.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a network with classes.
    pub fn normal(&self) -> Result<(Vec<f64>, Vec<f64>)> {
        let (targets, noise) = match self.loss {
            Loss::CrossEntropy => return Err(self.wrong("a network of numbers")),
            Loss::MeanSquared => (self.width, 0.0),
            Loss::Gaussian { deviation } => (self.width, deviation * deviation),
            Loss::GaussianHead => (self.width / 2, 0.0),
        };
        let part = |sample: &[f64], start: usize, change: &dyn Fn(f64) -> f64| -> Vec<f64> {
            sample
                .chunks_exact(self.width)
                .flat_map(|row| row[start..start + targets].iter().map(|value| change(*value)))
                .collect()
        };
        let wide = self.wide();
        let means: Vec<_> = wide.iter().map(|sample| part(sample, 0, &|value| value)).collect();
        let variances: Vec<_> = match self.loss {
            Loss::GaussianHead => wide.iter().map(|sample| part(sample, targets, &f64::exp)).collect(),
            _ => vec![vec![noise; self.rows * targets]; wide.len()],
        };
        let (mut mean, mut variance) = (vec![0.0; self.rows * targets], vec![0.0; self.rows * targets]);
        mixture(&means, &variances, &mut mean, &mut variance)?;
        Ok((mean, variance))
    }

    fn wide(&self) -> Vec<Vec<f64>> {
        self.samples.iter().map(|sample| sample.iter().map(|value| f64::from(*value)).collect()).collect()
    }

    fn classes(&self) -> Result<()> {
        if self.loss == Loss::CrossEntropy { Ok(()) } else { Err(self.wrong("a network of classes")) }
    }

    fn wrong(&self, expected: &str) -> Error {
        let what = format!("the loss of the network is {:?}; expected {expected}", self.loss);
        Error::new(ErrorKind::Unsupported, what).operation("predict")
    }
}

/// How good probabilities are, and how well they know it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    /// The share of rows whose most probable class is the label.
    pub accuracy: f64,
    /// The mean of `-log p(label)`, in nats.
    pub nll: f64,
    /// The expected calibration error, in 15 bins of equal width.
    pub calibration_error: f64,
    /// The Brier score: 0 is the best, 2 the worst.
    pub brier: f64,
}

impl Scores {
    /// Returns the scores of probabilities, rows × classes, for labels, one for each row.
    ///
    /// ```
    /// use sheave_posterior::Scores;
    ///
    /// let scores = Scores::of(&[0.5, 0.5, 0.25, 0.75], 2, &[0, 1])?;
    /// assert_eq!((scores.accuracy, scores.brier), (1.0, 0.3125));
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for labels that do not fit, or rows that are no probabilities.
    pub fn of(probabilities: &[f64], classes: usize, labels: &[usize]) -> Result<Self> {
        let logarithms: Vec<f64> = probabilities.iter().map(|probability| probability.ln()).collect();
        Ok(Self {
            accuracy: metrics::accuracy(probabilities, classes, labels)?,
            nll: metrics::nll(&logarithms, classes, labels)?,
            calibration_error: metrics::calibration_error(probabilities, classes, labels, &mut [Bin::default(); BINS])?,
            brier: metrics::brier(probabilities, classes, labels)?,
        })
    }
}
