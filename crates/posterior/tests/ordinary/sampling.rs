//! Samplers against the exact posterior of a line.

use crate::common::{alone, bits, exact, failed, inference, line, note};
use sheave_base::ErrorKind;
use sheave_bayes::langevin::{Cyclical, Sghmc, Sgld};
use sheave_bayes::prior::Normal;
use sheave_nn::{Dataset, Loss, Network, Targets, mlp};
use sheave_optim::Rule;
use sheave_posterior::{Langevin, LangevinSettings, Prediction, Sampler, SteinVgd, SteinVgdSettings};

const ROWS: usize = 40;

/// Compares the spread of lines at some places with that of the exact posterior.
fn compare(what: &str, prediction: &Prediction, mean_bound: f64, ratios: std::ops::Range<f64>) {
    let ([slope, intercept], [of_slope, of_intercept, covariance]) = exact(&line(ROWS).1);
    for (place, x) in INPUTS.iter().map(|input| f64::from(*input)).enumerate() {
        let values: Vec<f64> = prediction.samples().iter().map(|sample| f64::from(sample[place])).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64;
        let exact_mean = slope * x + intercept;
        let exact_variance = of_slope * x * x + of_intercept + 2.0 * covariance * x;
        let (error, ratio) = ((mean - exact_mean) / exact_variance.sqrt(), variance / exact_variance);
        note(&format!("{what} at {x}: mean off by {error:.3} deviations, variance {ratio:.3} of the exact one"));
        assert!(error.abs() < mean_bound, "{what} at {x}: {mean} is not {exact_mean}");
        assert!(ratios.contains(&ratio), "{what} at {x}: {variance} is not {exact_variance}");
    }
}

const INPUTS: [f32; 3] = [-1.0, 0.0, 1.5];

#[test]
fn particles_of_a_descent_have_the_moments_of_the_posterior() {
    alone(|_, particles| {
        let settings =
            SteinVgdSettings { prior: Some(Normal::default()), ..SteinVgdSettings::new(40, ROWS, Rule::adam(0.05)) };
        let svgd = SteinVgd::new(&inference(particles, line(ROWS)), &settings).unwrap();
        let mut epochs = 0;
        svgd.fit(300, |progress| epochs += progress.losses.len() / 40).unwrap();
        assert_eq!(epochs, 300);
        compare("svgd", &svgd.predict(&INPUTS).unwrap(), 0.1, 0.75..1.15);
    });
}

/// One particle has nobody to keep apart from: it goes to the mode.
#[test]
fn one_particle_finds_the_mode() {
    alone(|_, particles| {
        let settings =
            SteinVgdSettings { prior: Some(Normal::default()), ..SteinVgdSettings::new(1, ROWS, Rule::adam(0.02)) };
        let svgd = SteinVgd::new(&inference(particles, line(ROWS)), &settings).unwrap();
        svgd.fit(600, |_| ()).unwrap();
        let ([slope, intercept], _) = exact(&line(ROWS).1);
        let found = &svgd.parameters().unwrap()[0];
        assert!((f64::from(found[0]) - slope).abs() < 1e-3 && (f64::from(found[1]) - intercept).abs() < 1e-3);
    });
}

fn chains(sampler: Sampler) -> LangevinSettings {
    let prior = Some(Normal::default());
    LangevinSettings { prior, burn_in: 100, thin: 5, capacity: 400, ..LangevinSettings::new(4, ROWS, sampler) }
}

#[test]
fn chains_have_the_moments_of_the_posterior() {
    // The precisions are up to 160, with a step size of 0.002 the variance is up to a twelfth larger.
    let sgld = Sampler::Sgld(Sgld { step_size: 0.002, temperature: 1.0 });
    let sghmc = Sampler::Sghmc(Sghmc { step_size: 0.0004, friction: 0.2, noise: 0.0, temperature: 1.0 });
    for sampler in [sgld, sghmc] {
        alone(move |_, particles| {
            let langevin = Langevin::new(&inference(particles, line(ROWS)), &chains(sampler)).unwrap();
            let error = failed(langevin.predict(&INPUTS));
            assert!(error.to_string().contains("the number of samples is 0"), "{error}");
            langevin.fit(2100, |_| ()).unwrap();
            let before = langevin.parameters().unwrap();
            let prediction = langevin.predict(&INPUTS).unwrap();
            assert_eq!(prediction.samples().len(), 1600);
            compare(&format!("{sampler:?}"), &prediction, 0.15, 0.8..1.25);
            assert_eq!(bits(&before), bits(&langevin.parameters().unwrap()));
        });
    }
}

/// Samples are those of the ends of cycles alone.
#[test]
fn cycles_sample_at_their_ends() {
    alone(|_, particles| {
        let cyclical = Cyclical { step_size: 0.004, steps: 400, cycles: 4, exploration: 0.75 };
        let settings = LangevinSettings { burn_in: 0, thin: 1, ..chains(Sampler::Cyclical(cyclical)) };
        let langevin = Langevin::new(&inference(particles, line(ROWS)), &settings).unwrap();
        langevin.fit(75, |_| ()).unwrap();
        assert_eq!(failed(langevin.predict(&INPUTS)).kind(), ErrorKind::InvalidArgument, "none has been taken");
        langevin.fit(325, |_| ()).unwrap();
        let prediction = langevin.predict(&INPUTS).unwrap();
        assert_eq!(prediction.samples().len(), 4 * 4 * 25);
        let ([slope, intercept], [of_slope, of_intercept, covariance]) = exact(&line(ROWS).1);
        let (x, values) = (1.5, prediction.samples().iter().map(|sample| f64::from(sample[2])));
        let mean = values.sum::<f64>() / prediction.samples().len() as f64;
        let deviation = (of_slope * x * x + of_intercept + 2.0 * covariance * x).sqrt();
        assert!((mean - slope * x - intercept).abs() < 0.5 * deviation, "{mean}");
    });
}

#[test]
fn a_loss_that_is_no_likelihood_is_refused() {
    alone(|_, particles| {
        let data = Dataset::new(vec![0.0, 1.0], 1, Targets::Values(vec![0.0, 1.0])).unwrap();
        let network = Network::new(mlp(&[1, 1]).unwrap(), 1, Loss::MeanSquared).unwrap();
        let inference = inference(particles, (network, data));
        let sgld = Sampler::Sgld(Sgld { step_size: 0.1, temperature: 1.0 });
        let errors = [
            failed(Langevin::new(&inference, &LangevinSettings::new(1, 1, sgld))),
            failed(SteinVgd::new(&inference, &SteinVgdSettings::new(2, 1, Rule::adam(0.1)))),
        ];
        for error in errors {
            assert!(error.to_string().contains("expected the negative logarithm of a likelihood"), "{error}");
        }
        let thin = LangevinSettings { thin: 0, ..chains(sgld) };
        let line = sheave_posterior::Inference::new(particles, "line", line(ROWS).0, line(ROWS).1).unwrap();
        assert!(failed(Langevin::new(&line, &thin)).to_string().contains("thin is 0; expected 1 or more"));
    });
}
