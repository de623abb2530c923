//! Laplace approximations beside closed forms that are computed without eigenvalues.
use nalgebra::{DMatrix, DVector};
use sheave_bayes::laplace::{Classification, Regression, RegressionFit, Workspace};
use sheave_bayes::random::Generator;

const DATA: usize = 15;
const FEATURES: usize = 4;
const OUTPUTS: usize = 2;

fn normals(seed: u64, count: usize) -> Vec<f64> {
    let mut values = vec![0.0; count];
    Generator::new(seed).fill_normal(&mut values);
    values
}

/// Features and targets, by rows; targets are linear but for noise.
fn regression() -> (DMatrix<f64>, DMatrix<f64>) {
    let features = DMatrix::from_row_slice(DATA, FEATURES, &normals(1, DATA * FEATURES));
    let weights = DMatrix::from_row_slice(FEATURES, OUTPUTS, &normals(2, FEATURES * OUTPUTS));
    let noise = DMatrix::from_row_slice(DATA, OUTPUTS, &normals(3, DATA * OUTPUTS)) * 0.4;
    let targets = &features * weights + noise;
    (features, targets)
}

fn by_rows(matrix: &DMatrix<f64>) -> Vec<f64> {
    matrix.transpose().as_slice().to_vec()
}

fn fit() -> RegressionFit {
    let (features, targets) = regression();
    let (features, targets) = (by_rows(&features), by_rows(&targets));
    let mut sums = Regression::new(FEATURES, OUTPUTS).unwrap();
    // In two batches.
    sums.add(&features[..FEATURES * 6], &targets[..OUTPUTS * 6]).unwrap();
    sums.add(&features[FEATURES * 6..], &targets[OUTPUTS * 6..]).unwrap();
    sums.fit().unwrap()
}

fn log_determinant(matrix: DMatrix<f64>) -> f64 {
    let root = matrix.cholesky().unwrap();
    2.0 * root.l().diagonal().iter().map(|value| value.ln()).sum::<f64>()
}

#[test]
fn a_regression_is_the_exact_posterior() {
    let (features, targets) = regression();
    let (alpha, noise) = (0.7, 0.3);
    let precision = features.transpose() * &features / noise + DMatrix::identity(FEATURES, FEATURES) * alpha;
    let covariance = precision.try_inverse().unwrap();
    let mean = &covariance * features.transpose() * &targets / noise;

    let posterior = fit().posterior(alpha, noise).unwrap();
    let found = DMatrix::from_row_slice(OUTPUTS, FEATURES, posterior.mean());
    assert!((found.transpose() - &mean).amax() < 1e-12);
    let found = DMatrix::from_row_slice(FEATURES, FEATURES, &posterior.covariance());
    assert!((found - &covariance).amax() < 1e-12);

    let places = normals(4, 2 * FEATURES);
    let (mut means, mut variances) = ([0.0; 2 * OUTPUTS], [0.0; 2]);
    posterior.predict(&places, &mut means, &mut variances).unwrap();
    for (index, place) in places.chunks(FEATURES).enumerate() {
        let place = DVector::from_row_slice(place);
        let expected = mean.transpose() * &place;
        let variance = noise + (place.transpose() * &covariance * &place)[0];
        assert!((variances[index] - variance).abs() < 1e-12);
        for output in 0..OUTPUTS {
            assert!((means[index * OUTPUTS + output] - expected[output]).abs() < 1e-12);
        }
    }
}

#[test]
fn the_evidence_of_a_regression_is_exact() {
    let (features, targets) = regression();
    for (alpha, noise) in [(0.7, 0.3), (10.0, 2.0), (1e-3, 0.05)] {
        let covariance = DMatrix::identity(DATA, DATA) * noise + &features * features.transpose() / alpha;
        let inverse = covariance.clone().try_inverse().unwrap();
        let misfit: f64 = targets.column_iter().map(|target| (target.transpose() * &inverse * target)[0]).sum();
        let constant = DATA as f64 * std::f64::consts::TAU.ln() + log_determinant(covariance);
        let exact = -0.5 * (OUTPUTS as f64 * constant + misfit);
        let found = fit().log_evidence(alpha, noise).unwrap();
        assert!((found - exact).abs() < 1e-8 * exact.abs(), "{found} is not {exact}");
    }
}

#[test]
fn the_largest_evidence_is_found() {
    let fit = fit();
    let best = fit.maximize_evidence(1.0, 1.0).unwrap();
    assert!(best.converged && best.determined < (FEATURES * OUTPUTS) as f64, "{best:?}");
    let at = |alpha: f64, noise: f64| fit.log_evidence(alpha, noise).unwrap();
    assert!((best.log_evidence - at(best.prior_precision, best.noise_variance)).abs() < 1e-12);
    for (one, other) in [(1.01, 1.0), (0.99, 1.0), (1.0, 1.01), (1.0, 0.99), (3.0, 3.0), (0.1, 0.5)] {
        assert!(at(best.prior_precision * one, best.noise_variance * other) < best.log_evidence, "{one} {other}");
    }
    // From elsewhere it is the same one.
    let again = fit.maximize_evidence(100.0, 0.01).unwrap();
    assert!((again.prior_precision / best.prior_precision - 1.0).abs() < 1e-6);
}

#[test]
fn samples_of_a_regression() {
    let posterior = fit().posterior(0.7, 0.3).unwrap();
    let (mut generator, mut weights, count) = (Generator::new(9), [0.0; FEATURES * OUTPUTS], 20_000);
    let mut sums = DMatrix::zeros(FEATURES * OUTPUTS, FEATURES * OUTPUTS);
    for _ in 0..count {
        posterior.sample(&mut generator, &mut weights).unwrap();
        let apart = DVector::from_row_slice(&weights) - DVector::from_row_slice(posterior.mean());
        sums += &apart * apart.transpose() / f64::from(count);
    }
    let covariance = posterior.covariance();
    let largest = covariance.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
    for one in 0..FEATURES * OUTPUTS {
        for other in 0..FEATURES * OUTPUTS {
            let same = one / FEATURES == other / FEATURES;
            let exact = if same { covariance[(one % FEATURES) * FEATURES + other % FEATURES] } else { 0.0 };
            assert!((sums[(one, other)] - exact).abs() < 0.05 * largest);
        }
    }
}

const CLASSES: usize = 3;
const INPUTS: usize = 2;

struct Trained {
    features: Vec<f64>,
    labels: Vec<usize>,
    weights: Vec<f64>,
}

fn trained() -> Trained {
    let labels = (0..20).map(|place| place * 7 % CLASSES).collect();
    Trained { features: normals(5, 20 * INPUTS), labels, weights: normals(6, CLASSES * INPUTS) }
}

impl Trained {
    fn sums(&self) -> Classification {
        let mut sums = Classification::new(CLASSES, &self.weights).unwrap();
        sums.add(&self.features, &self.labels).unwrap();
        sums
    }

    /// The cross entropy of all data, at other weights.
    fn loss(&self, weights: &[f64]) -> f64 {
        let of = |(datum, &label): (&[f64], &usize)| {
            let logits: Vec<f64> = weights.chunks(INPUTS).map(|row| row[0] * datum[0] + row[1] * datum[1]).collect();
            logits.iter().map(|logit| logit.exp()).sum::<f64>().ln() - logits[label]
        };
        self.features.chunks(INPUTS).zip(&self.labels).map(of).sum()
    }

    /// Second derivatives by differences.
    fn hessian(&self) -> DMatrix<f64> {
        let (count, step) = (CLASSES * INPUTS, 1e-4);
        DMatrix::from_fn(count, count, |one, other| {
            let at = |first: f64, second: f64| {
                let mut moved = self.weights.clone();
                moved[one] += first * step;
                moved[other] += second * step;
                self.loss(&moved)
            };
            (at(1.0, 1.0) - at(1.0, -1.0) - at(-1.0, 1.0) + at(-1.0, -1.0)) / (4.0 * step * step)
        })
    }
}

#[test]
fn a_classification_has_the_curvature_of_its_loss() {
    let (trained, alpha) = (trained(), 0.8);
    let precision = trained.hessian() + DMatrix::identity(CLASSES * INPUTS, CLASSES * INPUTS) * alpha;
    let fit = trained.sums().fit().unwrap();
    let covariance = fit.posterior(alpha).unwrap().covariance();
    let found = DMatrix::from_row_slice(CLASSES * INPUTS, CLASSES * INPUTS, &covariance);
    assert!((found - precision.clone().try_inverse().unwrap()).amax() < 1e-6);

    // The integral of the posterior's density, which Laplace takes for normal.
    let norm: f64 = trained.weights.iter().map(|weight| weight * weight).sum();
    let count = (CLASSES * INPUTS) as f64;
    let exact =
        -trained.loss(&trained.weights) + 0.5 * (count * alpha.ln() - alpha * norm - log_determinant(precision));
    assert!((fit.log_evidence(alpha).unwrap() - exact).abs() < 1e-5);
    let best = fit.maximize_evidence(1.0).unwrap();
    assert!(best.converged);
    for factor in [0.9, 0.99, 1.01, 1.1] {
        assert!(fit.log_evidence(best.prior_precision * factor).unwrap() < best.log_evidence);
    }
}

/// With two classes the probability is an integral over one number, the difference of logits.
#[test]
fn predictions_of_two_classes_are_near_their_integral() {
    let mut sums = Classification::new(2, &[-0.6_f64, 0.1, 0.7, -0.2]).unwrap();
    sums.add(&normals(7, 30), &(0..15).map(|place| place % 2).collect::<Vec<_>>()).unwrap();
    let posterior = sums.fit().unwrap().posterior(0.5).unwrap();
    let place = [1.5, -1.0];
    let direction = DVector::from_row_slice(&[-place[0], -place[1], place[0], place[1]]);
    let mean = direction.dot(&DVector::from_row_slice(posterior.mean()));
    let covariance = DMatrix::from_row_slice(4, 4, &posterior.covariance());
    let deviation = (direction.transpose() * covariance * &direction)[0].sqrt();
    let exact: f64 = (-8_000..=8_000)
        .map(|step| {
            let normal = f64::from(step) / 1_000.0;
            let density = (-0.5 * normal * normal).exp() / std::f64::consts::TAU.sqrt();
            density / 1_000.0 / (1.0 + (-(mean + deviation * normal)).exp())
        })
        .sum();
    let (mut workspace, mut out) = (Workspace::default(), [0.0; 2]);
    posterior.sampled(&place, 40_000, &mut Generator::new(8), &mut workspace, &mut out).unwrap();
    assert!((out[1] - exact).abs() < 0.01 && (out[0] + out[1] - 1.0).abs() < 1e-12, "{out:?} is not {exact}");
    posterior.probit(&place, &mut workspace, &mut out).unwrap();
    assert!((out[1] - exact).abs() < 0.05, "{out:?} is not near {exact}");
}

#[test]
fn the_probit_of_several_classes_is_near_its_samples() {
    let posterior = trained().sums().fit().unwrap().posterior(1.0).unwrap();
    let (mut workspace, places) = (Workspace::default(), normals(10, 4 * INPUTS));
    let (mut sampled, mut probit) = ([0.0; 4 * CLASSES], [0.0; 4 * CLASSES]);
    posterior.sampled(&places, 5_000, &mut Generator::new(11), &mut workspace, &mut sampled).unwrap();
    posterior.probit(&places, &mut workspace, &mut probit).unwrap();
    for (one, other) in sampled.iter().zip(&probit) {
        assert!((one - other).abs() < 0.06, "{sampled:?} is not near {probit:?}");
    }
    let mut weights = [0.0; CLASSES * INPUTS];
    posterior.sample(&mut Generator::new(1), &mut weights).unwrap();
    assert!(weights.iter().zip(posterior.mean()).all(|(one, other)| one != other && (one - other).abs() < 6.0));
}

#[test]
fn refusals() {
    let text = |error: sheave_base::Error| error.to_string();
    assert!(text(Regression::new(0, 1).unwrap_err()).contains("features is 0; expected 1 to 8192"));
    let mut sums = Regression::new(2, 1).unwrap();
    assert!(text(sums.fit().unwrap_err()).contains("the number of data is 0"));
    assert!(text(sums.add(&[1.0_f32; 3], &[1.0]).unwrap_err()).contains("the length of features is 3"));
    assert!(text(sums.add(&[1.0_f32, f32::NAN], &[1.0]).unwrap_err()).contains("features[1] is NaN"));
    sums.add(&[1.0_f32, 2.0], &[1.0]).unwrap();
    let fit = sums.fit().unwrap();
    assert!(text(fit.posterior(0.0, 1.0).unwrap_err()).contains("prior_precision is 0"));
    assert!(text(fit.log_evidence(1.0, f64::NAN).unwrap_err()).contains("noise_variance is NaN"));

    assert!(text(Classification::new(1, &[1.0_f32]).unwrap_err()).contains("classes is 1; expected 2 or more"));
    assert!(Classification::new(2, &[1.0_f32; 3]).is_err());
    let mut sums = Classification::new(2, &[1.0_f32; 2]).unwrap();
    assert!(text(sums.add(&[1.0_f32], &[2]).unwrap_err()).contains("labels[0] is 2; expected below 2"));
    assert!(text(sums.fit().unwrap_err()).contains("the number of data is 0"));
    sums.add(&[1.0_f32], &[1]).unwrap();
    let posterior = sums.fit().unwrap().posterior(1.0).unwrap();
    let mut workspace = Workspace::default();
    let nothing = posterior.sampled(&[1.0_f32], 0, &mut Generator::new(1), &mut workspace, &mut [0.0; 2]);
    assert!(text(nothing.unwrap_err()).contains("samples is 0; expected 1 or more"));
}
