//! The posterior of the last layer of one network.

use sheave_base::{Error, ErrorKind, Result};
use sheave_bayes::laplace::{
    Classification, ClassificationPosterior, Evidence, Regression, RegressionPosterior, Workspace,
};
use sheave_nn::{Loss, Mode, Targets};

use crate::inference::Problem;

/// The normal posterior of the weights of a last layer.
pub(crate) struct Curvature {
    posterior: Posterior,
    evidence: Evidence,
}

enum Posterior {
    Classes(ClassificationPosterior),
    Values(RegressionPosterior),
}

/// What the fixed points of the evidence begin with.
const FIRST_PRECISION: f64 = 1.0;

impl Curvature {
    /// Goes through all data once, and finds the precision of the prior, and the variance of the noise, of the largest
    /// evidence.
    pub(crate) fn fit(problem: &Problem, parameters: &[f32], buffers: &[Vec<f32>]) -> Result<Self> {
        let data = &problem.data;
        let mut features = Vec::new();
        let mode = Mode::EvaluateWith(buffers);
        let width = problem.network.features(parameters, data.inputs(), mode, &mut features)?;
        let features = with_constant(&features, width);
        match (problem.network.loss(), data.targets()) {
            (Loss::CrossEntropy, Targets::Classes(_)) => {
                let classes = problem.network.output_width();
                let mut sums = Classification::new(classes, &last_weights(parameters, width, classes))?;
                sums.add(&features, &data.labels())?;
                let fit = sums.fit()?;
                let evidence = fit.maximize_evidence(FIRST_PRECISION)?;
                let posterior = Posterior::Classes(fit.posterior(evidence.prior_precision)?);
                Ok(Self { posterior, evidence })
            }
            (Loss::MeanSquared | Loss::Gaussian { .. }, Targets::Values(targets)) => {
                let mut sums = Regression::new(width + 1, data.target_width())?;
                sums.add(&features, targets)?;
                let fit = sums.fit()?;
                let evidence = fit.maximize_evidence(FIRST_PRECISION, 1.0)?;
                let posterior = fit.posterior(evidence.prior_precision, evidence.noise_variance)?;
                Ok(Self { posterior: Posterior::Values(posterior), evidence })
            }
            (loss, _) => {
                let what = format!("the loss is {loss:?}; expected one of a last layer that is linear in its targets");
                let hint = "take the cross-entropy, or a squared error";
                Err(Error::new(ErrorKind::Unsupported, what).hint(hint))
            }
        }
    }

    pub(crate) fn prior_precision(&self) -> f64 {
        self.evidence.prior_precision
    }

    pub(crate) fn log_evidence(&self) -> f64 {
        self.evidence.log_evidence
    }

    pub(crate) fn predict(
        &self,
        problem: &Problem,
        parameters: &[f32],
        buffers: &[Vec<f32>],
        inputs: &[f32],
    ) -> Result<(Vec<f64>, Vec<f64>)> {
        let mut features = Vec::new();
        let mode = Mode::EvaluateWith(buffers);
        let width = problem.network.features(parameters, inputs, mode, &mut features)?;
        let features = with_constant(&features, width);
        let rows = features.len() / (width + 1);
        let mut values = vec![0.0; rows * problem.network.output_width()];
        match &self.posterior {
            Posterior::Classes(posterior) => {
                posterior.probit(&features, &mut Workspace::default(), &mut values)?;
                Ok((values, Vec::new()))
            }
            Posterior::Values(posterior) => {
                let mut variances = vec![0.0; rows];
                posterior.predict(&features, &mut values, &mut variances)?;
                Ok((values, variances))
            }
        }
    }
}

/// Rows of features with a constant 1 behind them, which makes the bias a weight.
fn with_constant(features: &[f32], width: usize) -> Vec<f32> {
    features.chunks_exact(width).flat_map(|row| row.iter().copied().chain([1.0])).collect()
}

/// The last layer as classes × (features and a bias); a network has inputs × outputs, then biases.
fn last_weights(parameters: &[f32], features: usize, classes: usize) -> Vec<f32> {
    let last = &parameters[parameters.len() - (features + 1) * classes..];
    (0..classes).flat_map(|class| (0..=features).map(move |feature| last[feature * classes + class])).collect()
}
