//! What a network is trained for.

use candle_core::{D, Device, Result, Tensor};

use crate::dataset::{Dataset, Targets};

/// A loss of a batch: the mean over its rows of a number that is smaller the better the outputs fit the targets.
///
/// All but [`MeanSquared`](Self::MeanSquared) are negative logarithms of a likelihood, in nats. Times the number of all
/// data they are what a posterior is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// The cross-entropy of the softmax of the outputs, one for each class: `log Σ exp(o) - o[class]`.
    CrossEntropy,
    /// `(o - y)²`, a mean over outputs and rows.
    MeanSquared,
    /// Normal targets about the outputs, with a deviation that is known: `((o - y)² / deviation² + ln(2π deviation²)) /
    /// 2`, summed over the targets of a row.
    Gaussian {
        /// The standard deviation of the noise, above zero.
        deviation: f64,
    },
    /// Normal targets, whose deviation is predicted too: the outputs of a row are a mean `μ` for each target, and then
    /// a logarithm `s` of the variance for each. `((y - μ)² exp(-s) + s + ln 2π) / 2`, summed over the targets of a row
    /// (Nix and Weigend 1994).
    GaussianHead,
}

impl Loss {
    /// Returns whether it is the negative logarithm of a likelihood.
    #[must_use]
    pub fn is_likelihood(&self) -> bool {
        !matches!(self, Self::MeanSquared)
    }

    /// Returns how many targets a row has for outputs of a width.
    pub(crate) fn targets(&self, outputs: usize) -> usize {
        match self {
            Self::CrossEntropy => 1,
            Self::MeanSquared | Self::Gaussian { .. } => outputs,
            Self::GaussianHead => outputs / 2,
        }
    }

    /// Says what is wrong with the loss for outputs of a width.
    pub(crate) fn check(&self, outputs: usize) -> std::result::Result<(), String> {
        match self {
            Self::CrossEntropy if outputs < 2 => {
                Err(format!("the number of classes is {outputs}; expected two or more"))
            }
            Self::Gaussian { deviation } if !(*deviation > 0.0 && deviation.is_finite()) => {
                Err(format!("deviation is {deviation}; expected a finite number above zero"))
            }
            Self::GaussianHead if outputs == 0 || !outputs.is_multiple_of(2) => {
                Err(format!("the number of outputs is {outputs}; expected a mean and a log variance for each target"))
            }
            _ => Ok(()),
        }
    }

    /// Says what is wrong with a batch for outputs of a width.
    pub(crate) fn check_targets(&self, outputs: usize, batch: &Dataset) -> std::result::Result<(), String> {
        match (self, batch.targets()) {
            (Self::CrossEntropy, Targets::Classes(classes)) => {
                match classes.iter().position(|&class| class as usize >= outputs) {
                    Some(place) => Err(format!("targets[{place}] is {}; expected below {outputs}", classes[place])),
                    None => Ok(()),
                }
            }
            (Self::CrossEntropy, Targets::Values(_)) => Err("targets are numbers; expected classes".to_owned()),
            (_, Targets::Classes(_)) => Err("targets are classes; expected numbers".to_owned()),
            (_, Targets::Values(_)) if batch.target_width() != self.targets(outputs) => {
                let expected = self.targets(outputs);
                Err(format!("the number of targets of a row is {}; expected {expected}", batch.target_width()))
            }
            _ => Ok(()),
        }
    }

    /// The loss of each network: `[networks]`, of outputs `[networks, rows, width]`. `batches` has one batch for each
    /// network, or one for all.
    pub(crate) fn of(&self, outputs: &Tensor, batches: &[&Dataset]) -> Result<Tensor> {
        let (networks, rows, width) = outputs.dims3()?;
        let batch_of = |network: usize| batches[if batches.len() == 1 { 0 } else { network }];
        if let Self::CrossEntropy = self {
            let classes = (0..networks).flat_map(|network| match batch_of(network).targets() {
                Targets::Classes(classes) => classes.as_slice(),
                Targets::Values(_) => &[],
            });
            let classes = Tensor::from_vec(classes.copied().collect(), (networks, rows, 1), &Device::Cpu)?;
            return per_row(&cross_entropy(outputs, &classes)?, rows);
        }
        let values = (0..networks).flat_map(|network| match batch_of(network).targets() {
            Targets::Values(values) => values.as_slice(),
            Targets::Classes(_) => &[],
        });
        let values: Vec<f32> = values.copied().collect();
        let values = Tensor::from_vec(values, (networks, rows, self.targets(width)), &Device::Cpu)?;
        match self {
            Self::GaussianHead => {
                let means = outputs.narrow(D::Minus1, 0, width / 2)?;
                let log_variances = outputs.narrow(D::Minus1, width / 2, width / 2)?;
                let squares = (values - means)?.sqr()?.mul(&log_variances.neg()?.exp()?)?;
                let terms = squares.add(&log_variances)?.affine(0.5, 0.5 * std::f64::consts::TAU.ln())?;
                per_row(&terms, rows)
            }
            Self::Gaussian { deviation } => {
                let variance = deviation * deviation;
                let normalizer = 0.5 * (std::f64::consts::TAU * variance).ln();
                per_row(&(values - outputs)?.sqr()?.affine(0.5 / variance, normalizer)?, rows)
            }
            _ => per_row(&(values - outputs)?.sqr()?.affine(1.0 / width as f64, 0.0)?, rows),
        }
    }
}

/// Less the largest output, so that no exponential overflows; what is subtracted cancels out, so it needs no gradient.
fn cross_entropy(outputs: &Tensor, classes: &Tensor) -> Result<Tensor> {
    let outputs = outputs.broadcast_sub(&outputs.max_keepdim(D::Minus1)?.detach())?;
    let right = outputs.gather(classes, D::Minus1)?;
    outputs.exp()?.sum_keepdim(D::Minus1)?.log()? - right
}

/// The mean over rows of the sums of rows: `[networks]`.
fn per_row(terms: &Tensor, rows: usize) -> Result<Tensor> {
    terms.flatten_from(1)?.sum(1)? / rows as f64
}
