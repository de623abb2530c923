//! How good predictions are, and how well they know it. Data are rows: probabilities of `classes` for each datum, and
//! its label.

use sheave_base::Result;

use crate::Real;
use crate::check::{finite, length, refuse, rows};

const OPERATION: &str = "metrics";

/// How far a row of probabilities may be from a sum of 1: what `f32` and `f16` models leave of it.
const SUM_TOLERANCE: f64 = 1e-2;

/// Returns the mean of `-log p(label)` over data, in nats, from logarithms of probabilities, which know probabilities
/// that underflow ([`mean_log_probabilities`](crate::predict::mean_log_probabilities)). Infinite where a label has
/// probability zero.
///
/// ```
/// use sheave_bayes::metrics::nll;
/// let log_probabilities = [0.5_f64.ln(), 0.5_f64.ln(), 0.2_f64.ln(), 0.8_f64.ln()];
/// let expected = -(0.5_f64.ln() + 0.8_f64.ln()) / 2.0;
/// assert!((nll(&log_probabilities, 2, &[0, 1])? - expected).abs() < 1e-15);
/// # Ok::<(), sheave_base::Error>(())
/// ```
///
/// # Errors
/// `InvalidArgument` for lengths that do not fit, labels that are no class, or a row whose probabilities do not sum to
/// 1 within 0.01.
pub fn nll<T: Real>(log_probabilities: &[T], classes: usize, labels: &[usize]) -> Result<f64> {
    check(log_probabilities, "log_probabilities", classes, labels, f64::exp)?;
    let of = |(row, &label): (&[T], &usize)| -row[label].to_double();
    Ok(log_probabilities.chunks_exact(classes).zip(labels).map(of).sum::<f64>() / labels.len() as f64)
}

/// Returns the share of data whose most probable class is the label; of several classes the smallest counts.
///
/// # Errors
/// Those of [`brier`].
pub fn accuracy<T: Real>(probabilities: &[T], classes: usize, labels: &[usize]) -> Result<f64> {
    check(probabilities, "probabilities", classes, labels, |value| value)?;
    let right = probabilities.chunks_exact(classes).zip(labels).filter(|(row, label)| confidence(row).0 == **label);
    Ok(right.count() as f64 / labels.len() as f64)
}

/// Returns the Brier score (1950), the mean over data of `Σ_c (p_c - [c is the label])²`: 0 is the best, 2 the worst.
///
/// # Errors
/// `InvalidArgument` for lengths that do not fit, labels that are no class, a probability outside 0 to 1, or a row that
/// does not sum to 1 within 0.01.
pub fn brier<T: Real>(probabilities: &[T], classes: usize, labels: &[usize]) -> Result<f64> {
    check(probabilities, "probabilities", classes, labels, |value| value)?;
    let of = |(row, &label): (&[T], &usize)| {
        let hit = |class: usize| if class == label { 1.0 } else { 0.0 };
        row.iter().enumerate().map(|(class, value)| (value.to_double() - hit(class)).powi(2)).sum::<f64>()
    };
    Ok(probabilities.chunks_exact(classes).zip(labels).map(of).sum::<f64>() / labels.len() as f64)
}

/// One bin of a calibration: the data whose confidence, the probability of their most probable class, is in it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bin {
    /// How many data are in it.
    pub count: usize,
    /// Their mean confidence; 0 where there are none.
    pub confidence: f64,
    /// The share of them whose most probable class is the label; 0 where there are none.
    pub accuracy: f64,
}

/// Fills bins of equal width with data by their confidence, and returns the expected calibration error
/// `Σ_b count_b / n |accuracy_b - confidence_b|` (Guo et al., ICML 2017, arXiv:1706.04599).
///
/// Of `B` bins the bin `b`, from 0, has confidences above `b / B` up to and with `(b + 1) / B`; 15 are usual. The bins
/// are a reliability diagram.
///
/// ```
/// use sheave_bayes::metrics::{Bin, calibration_error};
///
/// let mut bins = [Bin::default(); 2];
/// let error = calibration_error(&[0.75_f64, 0.25, 0.25, 0.75], 2, &[0, 0], &mut bins)?;
/// assert_eq!((error, bins[1].count, bins[1].accuracy), (0.25, 2, 0.5));
/// # Ok::<(), sheave_base::Error>(())
/// ```
///
/// # Errors
/// Those of [`brier`]; `InvalidArgument` for no bins.
pub fn calibration_error<T: Real>(
    probabilities: &[T],
    classes: usize,
    labels: &[usize],
    bins: &mut [Bin],
) -> Result<f64> {
    check(probabilities, "probabilities", classes, labels, |value| value)?;
    if bins.is_empty() {
        return Err(refuse(OPERATION, "the number of bins", 0, "one at least"));
    }
    bins.fill(Bin::default());
    let count = bins.len();
    for (row, &label) in probabilities.chunks_exact(classes).zip(labels) {
        let (class, confidence) = confidence(row);
        let place = ((confidence * count as f64).ceil() as usize).clamp(1, count) - 1;
        let bin = &mut bins[place];
        bin.count += 1;
        bin.confidence += confidence;
        bin.accuracy += if class == label { 1.0 } else { 0.0 };
    }
    let mut error = 0.0;
    for bin in bins.iter_mut().filter(|bin| bin.count > 0) {
        error += (bin.accuracy - bin.confidence).abs() / labels.len() as f64;
        bin.confidence /= bin.count as f64;
        bin.accuracy /= bin.count as f64;
    }
    Ok(error)
}

/// Returns the mean over targets of the negative log likelihood of normal predictions, `(ln 2πσ² + (y - μ)² / σ²) / 2`,
/// in nats.
///
/// # Errors
/// `InvalidArgument` for slices of different lengths, none, numbers that are not finite, or a variance that is not
/// above zero.
pub fn gaussian_nll<T: Real>(means: &[T], variances: &[T], targets: &[T]) -> Result<f64> {
    check_targets(targets)?;
    length(OPERATION, "means", means.len(), targets.len())?;
    length(OPERATION, "variances", variances.len(), targets.len())?;
    finite(OPERATION, "means", means)?;
    finite(OPERATION, "variances", variances)?;
    let mut sum = 0.0;
    for (place, ((mean, variance), target)) in means.iter().zip(variances).zip(targets).enumerate() {
        let (variance, error) = (variance.to_double(), target.to_double() - mean.to_double());
        if variance <= 0.0 {
            return Err(refuse(OPERATION, &format!("variances[{place}]"), variance, "a number above zero"));
        }
        sum += std::f64::consts::TAU.ln() + variance.ln() + error * error / variance;
    }
    Ok(0.5 * sum / targets.len() as f64)
}

/// Returns the share of targets that are in their interval, with its ends: for intervals of probability `q` of a
/// calibrated model it is near `q`.
///
/// ```
/// use sheave_bayes::metrics::coverage;
/// assert_eq!(coverage(&[0.0_f32, 0.0], &[1.0, 1.0], &[1.0, 1.5])?, 0.5);
/// # Ok::<(), sheave_base::Error>(())
/// ```
///
/// # Errors
/// `InvalidArgument` for slices of different lengths, none, a target that is not finite, or an interval whose lower end
/// is not at most its upper one.
pub fn coverage<T: Real>(lower: &[T], upper: &[T], targets: &[T]) -> Result<f64> {
    check_targets(targets)?;
    length(OPERATION, "lower", lower.len(), targets.len())?;
    length(OPERATION, "upper", upper.len(), targets.len())?;
    if let Some(place) = (0..targets.len())
        .find(|&place| !matches!(lower[place].partial_cmp(&upper[place]), Some(order) if order.is_le()))
    {
        let expected = format!("at most upper[{place}], {:?}", upper[place]);
        return Err(refuse(OPERATION, &format!("lower[{place}]"), lower[place].to_double(), expected));
    }
    let inside = (0..targets.len()).filter(|&place| lower[place] <= targets[place] && targets[place] <= upper[place]);
    Ok(inside.count() as f64 / targets.len() as f64)
}

/// The most probable class, the smallest of several, and its probability.
fn confidence<T: Real>(row: &[T]) -> (usize, f64) {
    row.iter().enumerate().fold((0, f64::NEG_INFINITY), |best, (class, value)| {
        if value.to_double() > best.1 { (class, value.to_double()) } else { best }
    })
}

fn check_targets<T: Real>(targets: &[T]) -> Result<()> {
    if targets.is_empty() {
        return Err(refuse(OPERATION, "the number of targets", 0, "one at least"));
    }
    finite(OPERATION, "targets", targets)
}

/// Refuses what are no probabilities, such as logits, whose metrics would be numbers without a meaning.
fn check<T: Real>(
    values: &[T],
    name: &str,
    classes: usize,
    labels: &[usize],
    probability: impl Fn(f64) -> f64,
) -> Result<()> {
    length(OPERATION, "labels", labels.len(), rows(OPERATION, name, values.len(), classes)?)?;
    for (place, (row, &label)) in values.chunks_exact(classes).zip(labels).enumerate() {
        if label >= classes {
            return Err(refuse(OPERATION, &format!("labels[{place}]"), label, format!("below {classes}")));
        }
        let sum: f64 = row.iter().map(|value| probability(value.to_double())).sum();
        let in_range = |value: &T| (0.0..=1.0 + SUM_TOLERANCE).contains(&probability(value.to_double()));
        if !row.iter().all(in_range) || (sum - 1.0).abs() > SUM_TOLERANCE {
            let expected = "probabilities from 0 to 1 that sum to 1";
            return Err(refuse(OPERATION, &format!("{name}, row {place},"), format!("{row:?}"), expected));
        }
    }
    Ok(())
}
