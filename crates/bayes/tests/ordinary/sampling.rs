//! Samplers and SWAG on linear regressions, whose posteriors and stationary distributions are known.
use nalgebra::{Matrix2, Matrix3, Vector2, Vector3};
use proptest::prelude::*;
use sheave_bayes::langevin::{Chain, Sghmc, Sgld};
use sheave_bayes::prior::Normal;
use sheave_bayes::random::Generator;
use sheave_bayes::swag::{SCALE, Swag};

const NOISE_VARIANCE: f64 = 0.5;
const PRIOR: Normal = Normal { mean: 0.0, deviation: 2.0 };

/// A regression of 12 data with two weights.
struct Problem {
    features: Vec<[f64; 2]>,
    targets: Vec<f64>,
}

impl Problem {
    fn new() -> Self {
        let features: Vec<[f64; 2]> = (0..12).map(|place| [1.0, f64::from(place) / 5.5 - 0.8]).collect();
        let targets =
            features.iter().enumerate().map(|(place, row)| row[0] - 2.0 * row[1] + [0.5, -0.4, 0.1][place % 3]);
        Self { targets: targets.collect(), features }
    }

    /// The gradient of the negative log posterior.
    fn gradient(&self, weights: &[f64]) -> [f64; 2] {
        let mut gradient = [0.0; 2];
        for (row, target) in self.features.iter().zip(&self.targets) {
            let error = row[0] * weights[0] + row[1] * weights[1] - target;
            gradient[0] += error * row[0] / NOISE_VARIANCE;
            gradient[1] += error * row[1] / NOISE_VARIANCE;
        }
        PRIOR.add_gradient(weights, &mut gradient).unwrap();
        gradient
    }

    /// Mean and covariance of the posterior, in closed form.
    fn posterior(&self) -> (Vector2<f64>, Matrix2<f64>) {
        let mut precision = Matrix2::identity() / (PRIOR.deviation * PRIOR.deviation);
        let mut cross = Vector2::zeros();
        for (row, target) in self.features.iter().zip(&self.targets) {
            let row = Vector2::from(*row);
            precision += row * row.transpose() / NOISE_VARIANCE;
            cross += row * *target / NOISE_VARIANCE;
        }
        let covariance = precision.try_inverse().unwrap();
        (covariance * cross, covariance)
    }
}

/// Compares samples with the closed form: means within a tenth of a standard deviation, covariances within 12 %.
fn assert_samples(name: &str, samples: &[[f64; 2]], (mean, covariance): (Vector2<f64>, Matrix2<f64>)) {
    let count = samples.len() as f64;
    let sum = samples.iter().fold(Vector2::zeros(), |sum, sample| sum + Vector2::from(*sample));
    let found = sum / count;
    let spread = samples.iter().fold(Matrix2::zeros(), |sum, sample| {
        let apart = Vector2::from(*sample) - found;
        sum + apart * apart.transpose()
    }) / count;
    for one in 0..2 {
        let deviation = covariance[(one, one)].sqrt();
        assert!((found[one] - mean[one]).abs() < 0.1 * deviation, "{name}: mean {found} is not {mean}");
        for other in 0..2 {
            let scale = (covariance[(one, one)] * covariance[(other, other)]).sqrt();
            let apart = (spread[(one, other)] - covariance[(one, other)]).abs();
            assert!(apart < 0.12 * scale, "{name}: covariance {spread} is not {covariance}");
        }
    }
}

#[test]
fn sgld_samples_the_posterior() {
    let problem = Problem::new();
    let sgld = Sgld { step_size: 0.005, temperature: 1.0 };
    let (mut generator, mut weights) = (Generator::new(1), [0.0_f64; 2]);
    let mut chain = Chain::new(2, 2_000, 5, 60_000).unwrap();
    for _ in 0..300_000 {
        let gradient = problem.gradient(&weights);
        sgld.step(&mut generator, &mut weights, &gradient).unwrap();
        chain.offer(&weights).unwrap();
    }
    let samples: Vec<[f64; 2]> = chain.samples().map(|sample| [sample[0], sample[1]]).collect();
    assert_samples("sgld", &samples, problem.posterior());
}

fn run_sghmc(sghmc: &Sghmc, gradient_variance: f64) -> Vec<[f64; 2]> {
    let problem = Problem::new();
    let (mut generator, mut weights, mut velocity) = (Generator::new(2), [0.0_f64; 2], [0.0; 2]);
    let mut samples = Vec::new();
    for step in 0..200_000 {
        let gradient = problem.gradient(&weights).map(|slope| slope + gradient_variance.sqrt() * generator.normal());
        sghmc.step(&mut generator, &mut weights, &mut velocity, &gradient).unwrap();
        if step >= 2_000 {
            samples.push(weights);
        }
    }
    samples
}

#[test]
fn sghmc_samples_the_posterior() {
    let sghmc = Sghmc { step_size: 0.001, friction: 0.1, noise: 0.0, temperature: 1.0 };
    assert_samples("sghmc", &run_sghmc(&sghmc, 0.0), Problem::new().posterior());
}

#[test]
fn sghmc_takes_the_noise_of_gradients_into_account() {
    // The gradients' own noise has half of the strength of what friction needs.
    let (step_size, friction) = (0.001, 0.1);
    let (noise, variance) = (friction / 2.0, friction / step_size);
    let sghmc = Sghmc { step_size, friction, noise, temperature: 1.0 };
    let (mean, covariance) = Problem::new().posterior();
    assert_samples("estimated", &run_sghmc(&sghmc, variance), (mean, covariance));
    let blind = Sghmc { noise: 0.0, ..sghmc };
    assert_samples("not estimated", &run_sghmc(&blind, variance), (mean, covariance * 1.5));
}

#[test]
fn without_temperature_both_descend_to_the_mode() {
    let (problem, mut generator) = (Problem::new(), Generator::new(3));
    let (mode, _) = problem.posterior();
    let (mut one, mut other, mut velocity) = ([0.0_f64; 2], [0.0; 2], [0.0; 2]);
    let sgld = Sgld { step_size: 0.01, temperature: 0.0 };
    let sghmc = Sghmc { step_size: 0.001, friction: 0.1, noise: 0.0, temperature: 0.0 };
    for _ in 0..3_000 {
        let gradient = problem.gradient(&one);
        sgld.step(&mut generator, &mut one, &gradient).unwrap();
        let gradient = problem.gradient(&other);
        sghmc.step(&mut generator, &mut other, &mut velocity, &gradient).unwrap();
    }
    assert!((Vector2::from(one) - mode).norm() < 1e-9 && (Vector2::from(other) - mode).norm() < 1e-9);
    assert_eq!(generator, Generator::new(3));
}

/// Constant steps `θ ← θ - η (A θ + σ ξ)` have the stationary variance `η σ² / (λ (2 - η λ))` along each eigenvector of
/// `A` (Mandt, Hoffman and Blei, 2017, arXiv:1704.04289, without its limit of small steps).
#[test]
fn swag_has_the_stationary_variance_of_sgd() {
    let (rate, noise, curvatures) = (0.1, 0.7, [0.5, 1.0, 4.0]);
    let (mut generator, mut place) = (Generator::new(5), [0.0_f64; 3]);
    let mut swag = Swag::new(3, 400);
    for step in 0..200_400 {
        for (value, curvature) in place.iter_mut().zip(curvatures) {
            *value -= rate * (curvature * *value + noise * generator.normal());
        }
        if step >= 400 && step % 10 == 0 {
            swag.collect(&place).unwrap();
        }
    }
    for (index, curvature) in curvatures.into_iter().enumerate() {
        let exact = rate * noise * noise / (curvature * (2.0 - rate * curvature));
        let found = swag.variance[index];
        assert!((found / exact - 1.0).abs() < 0.08, "{found} is not {exact}");
        // The last deviations alone, which are 400 correlated ones.
        let low_rank = swag.deviations.iter().map(|row| row[index] * row[index]).sum::<f64>() / 399.0;
        assert!((low_rank / exact - 1.0).abs() < 0.5, "{low_rank} is not near {exact}");
    }
}

#[test]
fn samples_of_swag_have_its_covariance() {
    let mut swag = Swag::new(3, 4);
    for snapshot in [[1.0_f64, 2.0, 0.0], [2.0, 1.0, 0.5], [0.0, 3.5, 1.0], [1.5, 2.0, -1.0], [3.0, 0.0, 2.0]] {
        swag.collect(&snapshot).unwrap();
    }
    assert_eq!(swag.deviations.len(), 4);
    let (mut generator, mut sample, scale, count) = (Generator::new(6), [0.0; 3], 0.7, 60_000);
    let mean = Vector3::from_row_slice(&swag.mean);
    let (mut sums, mut products) = (Vector3::zeros(), Matrix3::zeros());
    for _ in 0..count {
        swag.sample(scale, &mut generator, &mut sample).unwrap();
        let apart = Vector3::from(sample) - mean;
        sums += apart;
        products += apart * apart.transpose();
    }
    let covariance = |one: usize, other: usize| {
        let low_rank = swag.deviations.iter().map(|row| row[one] * row[other]).sum::<f64>() / 3.0;
        scale * (low_rank + if one == other { swag.variance[one] } else { 0.0 })
    };
    for one in 0..3 {
        let deviation = covariance(one, one).sqrt();
        assert!((sums[one] / f64::from(count)).abs() < 0.03 * deviation);
        for other in 0..3 {
            let apart = (products[(one, other)] / f64::from(count) - covariance(one, other)).abs();
            assert!(apart < 0.03 * deviation * covariance(other, other).sqrt(), "{one} {other}: {apart}");
        }
    }
}

#[test]
fn one_deviation_gives_the_diagonal() {
    let mut swag = Swag::new(1, 20);
    let mut sample = [9.0_f64];
    let error = swag.sample(SCALE, &mut Generator::new(1), &mut sample).unwrap_err().to_string();
    assert!(error.contains("the number of snapshots is 0; expected one at least"), "{error}");
    swag.collect(&[1.0]).unwrap();
    swag.sample(SCALE, &mut Generator::new(1), &mut sample).unwrap();
    assert_eq!(sample, [1.0]);
    swag.collect(&[3.0]).unwrap();
    assert_eq!((swag.variance[0], swag.deviations.len()), (1.0, 1));
    let mut generator = Generator::new(7);
    let squares = (0..40_000).map(|_| {
        swag.sample(SCALE, &mut generator, &mut sample).unwrap();
        (sample[0] - 2.0).powi(2)
    });
    assert!((squares.sum::<f64>() / 40_000.0 - 1.0).abs() < 0.05);
}

#[test]
fn models_count_on_their_own_and_can_be_loaded() {
    let (mut one, mut other) = (Swag::new(1, 2), Swag::new(1, 2));
    for value in [1.0_f32, 2.0, 6.0] {
        one.collect(&[value]).unwrap();
    }
    other.collect(&[5.0]).unwrap();
    assert_eq!((one.snapshots, other.snapshots, other.mean[0]), (3, 1, 5.0));
    let text = serde_json::to_string(&one).unwrap();
    let mut loaded: Swag<f32> = serde_json::from_str(&text).unwrap();
    loaded.check().unwrap();
    loaded.collect(&[0.5]).unwrap();
    one.collect(&[0.5]).unwrap();
    assert_eq!(loaded, one);
    let draw = |swag: &Swag<f32>| {
        let mut sample = [0.0];
        swag.sample(SCALE, &mut Generator::new(1), &mut sample).unwrap();
        sample
    };
    assert_eq!(draw(&loaded), draw(&one));
    loaded.variance.push(0.0);
    assert!(loaded.check().unwrap_err().to_string().contains("the length of variance is 2; expected 1"));
    one.variance[0] = -1.0;
    assert!(one.check().unwrap_err().to_string().contains("variance[0] is -1; expected"));
}

proptest! {
    #[test]
    fn moments_of_snapshots_are_exact(values in prop::collection::vec(-5.0_f64..5.0, 1..40), rank in 0_usize..6) {
        // In single precision, far from zero: a second moment less a square would have no digit left.
        let offset = 4096.0_f32;
        let mut swag = Swag::new(1, rank);
        let mut means = Vec::new();
        let rounded: Vec<f64> = values.iter().map(|&value| f64::from(value as f32 + offset)).collect();
        for value in &rounded {
            swag.collect(&[*value as f32]).unwrap();
            means.push(f64::from(swag.mean[0]));
        }
        let count = rounded.len() as f64;
        let mean = rounded.iter().sum::<f64>() / count;
        let variance = rounded.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        prop_assert!((f64::from(swag.mean[0]) - mean).abs() < 1e-2);
        prop_assert!((f64::from(swag.variance[0]) - variance).abs() < 1e-2);
        prop_assert_eq!(swag.deviations.len(), rank.min(rounded.len() - 1));
        let last = rounded.iter().zip(&means).rev().take(swag.deviations.len());
        for (row, (value, mean)) in swag.deviations.iter().rev().zip(last) {
            prop_assert_eq!(f64::from(row[0]), value - mean);
        }
    }
}

#[test]
fn refusals() {
    let mut generator = Generator::new(1);
    let wrong = Sgld { step_size: -1.0, temperature: 1.0 };
    let error = wrong.step(&mut generator, &mut [0.0_f32], &[0.0]).unwrap_err().to_string();
    assert!(error.contains("sgld: step_size is -1; expected a finite number that is not negative"), "{error}");
    let right = Sghmc { step_size: 0.1, friction: 0.1, noise: 0.0, temperature: 1.0 };
    let mut place = [1.0_f32];
    for wrong in [
        Sghmc { friction: 0.0, ..right },
        Sghmc { friction: 1.5, ..right },
        Sghmc { noise: 0.2, ..right },
        Sghmc { temperature: f64::NAN, ..right },
    ] {
        assert!(wrong.step(&mut generator, &mut place, &mut [0.0], &[0.0]).is_err(), "{wrong:?}");
    }
    assert!(right.step(&mut generator, &mut place, &mut [0.0; 2], &[0.0]).is_err());
    let mut swag = Swag::new(1, 1);
    assert!(swag.collect(&[f32::NAN]).unwrap_err().to_string().contains("parameters[0] is NaN"));
    assert_eq!((place, swag.snapshots), ([1.0], 0));
    swag.collect(&[1.0]).unwrap();
    assert!(swag.sample(-1.0, &mut generator, &mut place).is_err());
}
