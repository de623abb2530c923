//! What members predict together: models of an ensemble, samples of a posterior, or samples of each of several models.
//!
//! Predictions of a member are one slice: of numbers for regression, of logits or probabilities by rows for
//! classification. All members count alike; samples of several models are members one by one.
//!
//! **Probabilities are averaged, never logits.** The posterior predictive is `p(y) = 1/M Σ_m p_m(y)`. A mean of logits
//! is that of another model, which is surer than its members are together.

use sheave_base::Result;

use crate::Real;
use crate::check::{common_length, finite, length, number, refuse, rows};

const OPERATION: &str = "prediction";

/// Writes the mean over members. `members` holds one slice for each, all as long as `out`.
///
/// # Errors
/// `InvalidArgument` for no members, or slices of different lengths.
pub fn mean<T: Real, P: AsRef<[T]>>(members: &[P], out: &mut [T]) -> Result<()> {
    check(members, out.len(), 1)?;
    for (place, value) in out.iter_mut().enumerate() {
        *value = T::nearest(moments(members, place).0);
    }
    Ok(())
}

/// Writes the unbiased standard deviation over members, whose squares are divided by one less than their number. One
/// member has none, and is refused: its deviation is unknown, not zero.
///
/// ```
/// use sheave_bayes::predict::deviation;
///
/// let mut out = [0.0];
/// deviation(&[[1.0_f64], [3.0]], &mut out)?;
/// assert_eq!(out, [2.0_f64.sqrt()]);
/// assert!(deviation(&[[1.0_f64]], &mut out).is_err());
/// # Ok::<(), sheave_base::Error>(())
/// ```
///
/// # Errors
/// `InvalidArgument` for fewer than two members, or slices of different lengths.
pub fn deviation<T: Real, P: AsRef<[T]>>(members: &[P], out: &mut [T]) -> Result<()> {
    check(members, out.len(), 2)?;
    for (place, value) in out.iter_mut().enumerate() {
        *value = T::nearest((moments(members, place).1 / (members.len() - 1) as f64).sqrt());
    }
    Ok(())
}

/// Writes the median over members: of an even number the mean of the two in the middle. `scratch` grows to one element
/// for each member.
///
/// # Errors
/// Those of [`quantile`].
pub fn median<T: Real, P: AsRef<[T]>>(members: &[P], scratch: &mut Vec<T>, out: &mut [T]) -> Result<()> {
    quantile(members, 0.5, scratch, out)
}

/// Writes a quantile over members, from 0 for the least to 1 for the largest. Between two members it is linear: of `M`
/// sorted values it is the one at `q (M - 1)`, which is the definition of numpy and torch. `scratch` grows to one
/// element for each member.
///
/// ```
/// use sheave_bayes::predict::quantile;
///
/// let mut out = [0.0];
/// quantile(&[[4.0_f64], [1.0], [2.0]], 0.75, &mut Vec::new(), &mut out)?;
/// assert_eq!(out, [3.0]);
/// # Ok::<(), sheave_base::Error>(())
/// ```
///
/// # Errors
/// `InvalidArgument` for no members, slices of different lengths, numbers that are not finite, or a quantile outside
/// 0 to 1. `out` is undefined after a number that is not finite.
pub fn quantile<T: Real, P: AsRef<[T]>>(
    members: &[P],
    quantile: f64,
    scratch: &mut Vec<T>,
    out: &mut [T],
) -> Result<()> {
    check(members, out.len(), 1)?;
    number(OPERATION, "quantile", quantile, (0.0..=1.0).contains(&quantile), "a number from 0 to 1")?;
    let at = quantile * (members.len() - 1) as f64;
    let (lower, upper, share) = (at.floor() as usize, at.ceil() as usize, at.fract());
    for (place, value) in out.iter_mut().enumerate() {
        scratch.clear();
        scratch.extend(members.iter().map(|member| member.as_ref()[place]));
        finite(OPERATION, "the members at one place", scratch)?;
        scratch.sort_unstable_by(|one, other| one.to_double().total_cmp(&other.to_double()));
        let (below, above) = (scratch[lower].to_double(), scratch[upper].to_double());
        *value = T::nearest(if lower == upper { below } else { below * (1.0 - share) + above * share });
    }
    Ok(())
}

/// Turns logits into logarithms of probabilities in place: rows of `classes` elements. Stable for any finite logits,
/// and for some of negative infinity in a row that has others.
///
/// ```
/// use sheave_bayes::predict::log_softmax;
///
/// let mut logits = [1000.0_f32, 1000.0];
/// log_softmax(&mut logits, 2)?;
/// assert!((logits[0] + std::f32::consts::LN_2).abs() < 1e-6);
/// # Ok::<(), sheave_base::Error>(())
/// ```
///
/// # Errors
/// `InvalidArgument` for a length that is no whole number of rows, or a row whose largest logit is not finite.
pub fn log_softmax<T: Real>(logits: &mut [T], classes: usize) -> Result<()> {
    rows(OPERATION, "logits", logits.len(), classes)?;
    check_logits(logits, classes)?;
    for row in logits.chunks_exact_mut(classes) {
        let total = log_sum_exp(row.iter().map(|logit| logit.to_double()));
        for logit in row {
            *logit = T::nearest(logit.to_double() - total);
        }
    }
    Ok(())
}

/// Writes the mean over members of the probabilities that their logits give, by rows of `classes`: the posterior
/// predictive. All slices are as long as `out`. Allocates nothing.
///
/// ```
/// use sheave_bayes::predict::mean_probabilities;
///
/// // Two sure members that disagree are not sure together.
/// let mut out = [0.0; 2];
/// mean_probabilities(&[[100.0_f64, 0.0], [0.0, 50.0]], 2, &mut out)?;
/// assert_eq!(out, [0.5, 0.5]);
/// # Ok::<(), sheave_base::Error>(())
/// ```
///
/// # Errors
/// `InvalidArgument` for no members, slices of different lengths or of no whole rows, or logits that [`log_softmax`]
/// refuses.
pub fn mean_probabilities<T: Real, P: AsRef<[T]>>(members: &[P], classes: usize, out: &mut [T]) -> Result<()> {
    check_members(members, classes, out.len())?;
    let share = 1.0 / members.len() as f64;
    out.fill(T::default());
    for member in members {
        for (row, logits) in out.chunks_exact_mut(classes).zip(member.as_ref().chunks_exact(classes)) {
            let total = log_sum_exp(logits.iter().map(|logit| logit.to_double()));
            for (value, logit) in row.iter_mut().zip(logits) {
                *value = T::nearest(value.to_double() + share * (logit.to_double() - total).exp());
            }
        }
    }
    Ok(())
}

/// Writes the logarithms of [`mean_probabilities`], by log-sum-exp over the members, so that none is lost to underflow.
///
/// # Errors
/// Those of [`mean_probabilities`].
pub fn mean_log_probabilities<T: Real, P: AsRef<[T]>>(members: &[P], classes: usize, out: &mut [T]) -> Result<()> {
    check_members(members, classes, out.len())?;
    let count = (members.len() as f64).ln();
    out.fill(T::nearest(f64::NEG_INFINITY));
    for member in members {
        for (row, logits) in out.chunks_exact_mut(classes).zip(member.as_ref().chunks_exact(classes)) {
            let total = log_sum_exp(logits.iter().map(|logit| logit.to_double())) + count;
            for (value, logit) in row.iter_mut().zip(logits) {
                let terms = [value.to_double(), logit.to_double() - total];
                *value = T::nearest(log_sum_exp(terms.into_iter()));
            }
        }
    }
    Ok(())
}

/// Writes the unbiased standard deviation over members of the probability of each class, by rows of `classes`.
/// `scratch` grows to two elements for each class.
///
/// # Errors
/// Those of [`mean_probabilities`]; `InvalidArgument` for fewer than two members.
pub fn probability_deviation<T: Real, P: AsRef<[T]>>(
    members: &[P],
    classes: usize,
    scratch: &mut Vec<f64>,
    out: &mut [T],
) -> Result<()> {
    check_members(members, classes, out.len())?;
    check(members, out.len(), 2)?;
    for (row, values) in out.chunks_exact_mut(classes).enumerate() {
        scratch.clear();
        scratch.resize(2 * classes, 0.0);
        let (means, squares) = scratch.split_at_mut(classes);
        for (seen, member) in members.iter().enumerate() {
            let logits = &member.as_ref()[row * classes..(row + 1) * classes];
            let total = log_sum_exp(logits.iter().map(|logit| logit.to_double()));
            for (class, logit) in logits.iter().enumerate() {
                let probability = (logit.to_double() - total).exp();
                let before = probability - means[class];
                means[class] += before / (seen + 1) as f64;
                squares[class] += before * (probability - means[class]);
            }
        }
        for (value, &square) in values.iter_mut().zip(&*squares) {
            *value = T::nearest((square / (members.len() - 1) as f64).sqrt());
        }
    }
    Ok(())
}

/// Writes the class of the largest logit or probability of each row; of several the smallest class.
///
/// # Errors
/// `InvalidArgument` for lengths that do not fit, or a value that is not a number.
pub fn classify<T: Real>(values: &[T], classes: usize, out: &mut [usize]) -> Result<()> {
    let count = rows(OPERATION, "values", values.len(), classes)?;
    length(OPERATION, "out", out.len(), count)?;
    if let Some(place) = values.iter().position(|value| value.to_double().is_nan()) {
        return Err(refuse(OPERATION, &format!("values[{place}]"), f64::NAN, "a number"));
    }
    for (class, row) in out.iter_mut().zip(values.chunks_exact(classes)) {
        *class = largest(row);
    }
    Ok(())
}

/// Writes the class for which most members vote in each row, by their largest logit or probability; of several the
/// smallest class. `scratch` grows to one element for each class.
///
/// ```
/// use sheave_bayes::predict::mode;
///
/// let mut out = [9];
/// mode(&[[0.0_f32, 1.0, 0.0], [0.0, 0.0, 1.0]], 3, &mut Vec::new(), &mut out)?;
/// assert_eq!(out, [1]);
/// # Ok::<(), sheave_base::Error>(())
/// ```
///
/// # Errors
/// `InvalidArgument` for no members, lengths that do not fit, or a value that is not a number.
pub fn mode<T: Real, P: AsRef<[T]>>(
    members: &[P],
    classes: usize,
    scratch: &mut Vec<usize>,
    out: &mut [usize],
) -> Result<()> {
    let width = common_length(OPERATION, "members", members)?;
    length(OPERATION, "out", out.len(), rows(OPERATION, "members[0]", width, classes)?)?;
    for (place, member) in members.iter().enumerate() {
        if let Some(at) = member.as_ref().iter().position(|value| value.to_double().is_nan()) {
            return Err(refuse(OPERATION, &format!("members[{place}][{at}]"), f64::NAN, "a number"));
        }
    }
    for (row, winner) in out.iter_mut().enumerate() {
        scratch.clear();
        scratch.resize(classes, 0);
        for member in members {
            scratch[largest(&member.as_ref()[row * classes..(row + 1) * classes])] += 1;
        }
        *winner = (0..classes).rev().max_by_key(|&class| scratch[class]).unwrap_or(0);
    }
    Ok(())
}

/// The logarithm of a sum of exponentials; negative infinity for none, or for such terms alone.
pub(crate) fn log_sum_exp(terms: impl Iterator<Item = f64> + Clone) -> f64 {
    let largest = terms.clone().fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::NEG_INFINITY {
        return largest;
    }
    largest + terms.map(|term| (term - largest).exp()).sum::<f64>().ln()
}

/// The place of the largest value, the first of several.
fn largest<T: Real>(row: &[T]) -> usize {
    (1..row.len()).fold(0, |best, place| if row[place] > row[best] { place } else { best })
}

/// Mean and sum of squared deviations over members, at one place.
fn moments<T: Real, P: AsRef<[T]>>(members: &[P], place: usize) -> (f64, f64) {
    let values = || members.iter().map(|member| member.as_ref()[place].to_double());
    let mean = values().sum::<f64>() / members.len() as f64;
    (mean, values().map(|value| (value - mean) * (value - mean)).sum())
}

fn check<T: Real, P: AsRef<[T]>>(members: &[P], width: usize, least: usize) -> Result<()> {
    length(OPERATION, "members[0]", common_length(OPERATION, "members", members)?, width)?;
    if members.len() < least {
        return Err(refuse(OPERATION, "the number of members", members.len(), format!("{least} at least")));
    }
    Ok(())
}

fn check_members<T: Real, P: AsRef<[T]>>(members: &[P], classes: usize, width: usize) -> Result<()> {
    check(members, width, 1)?;
    rows(OPERATION, "out", width, classes)?;
    members.iter().try_for_each(|member| check_logits(member.as_ref(), classes))
}

fn check_logits<T: Real>(logits: &[T], classes: usize) -> Result<()> {
    for (place, row) in logits.chunks_exact(classes).enumerate() {
        let is_wrong = |value: f64| value.is_nan() || value == f64::INFINITY;
        let wrong = row.iter().map(|logit| logit.to_double()).find(|&value| is_wrong(value));
        let all_lost = row.iter().all(|logit| logit.to_double() == f64::NEG_INFINITY);
        if wrong.is_some() || all_lost {
            let value = wrong.unwrap_or(f64::NEG_INFINITY);
            return Err(refuse(OPERATION, &format!("a logit of row {place}"), value, "a finite number"));
        }
    }
    Ok(())
}
