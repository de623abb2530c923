//! Ensembles, their predictions and metrics, on small cases made by hand.
use std::collections::HashSet;

use proptest::prelude::*;
use sheave_bayes::ensemble::{Dropout, GaussianHead, bootstrap, mixture};
use sheave_bayes::metrics::{Bin, accuracy, brier, calibration_error, coverage, gaussian_nll, nll};
use sheave_bayes::predict::{
    classify, deviation, log_softmax, mean, mean_log_probabilities, mean_probabilities, median, mode,
    probability_deviation, quantile,
};
use sheave_bayes::random::{Generator, seed_of};

fn is_near(one: f64, other: f64) -> bool {
    (one - other).abs() < 1e-12
}

#[test]
fn members_have_seeds_of_their_own() {
    let seeds: HashSet<u64> = (0..10).flat_map(|master| (0..1000).map(move |index| seed_of(master, index))).collect();
    assert_eq!(seeds.len(), 10_000);
    let draw = |member: u64| Generator::new(seed_of(42, member)).normal();
    assert_eq!(draw(3).to_bits(), draw(3).to_bits());
    assert_ne!(draw(0).to_bits(), draw(1).to_bits());
}

#[test]
fn a_bootstrap_leaves_a_share_of_the_data_out() {
    let mut indices = vec![0; 20_000];
    bootstrap(&mut Generator::new(1), 20_000, &mut indices).unwrap();
    let distinct = indices.iter().collect::<HashSet<_>>().len() as f64 / 20_000.0;
    assert!((distinct - (1.0 - (-1.0_f64).exp())).abs() < 0.015, "{distinct}");
    assert!(bootstrap(&mut Generator::new(1), 0, &mut indices).is_err());
}

proptest! {
    #[test]
    fn the_gradient_of_a_gaussian_head_is_its_slope(
        means in prop::collection::vec(-3.0_f64..3.0, 4), logs in prop::collection::vec(-2.0_f64..2.0, 4),
        targets in prop::collection::vec(-3.0_f64..3.0, 4),
    ) {
        let (mut of_mean, mut of_log) = ([0.0; 4], [0.0; 4]);
        GaussianHead { mean: &means, log_variance: &logs }.gradient(&targets, &mut of_mean, &mut of_log).unwrap();
        let variances: Vec<f64> = logs.iter().map(|log| log.exp()).collect();
        let loss = GaussianHead { mean: &means, log_variance: &logs }.nll(&targets).unwrap();
        prop_assert!((loss - gaussian_nll(&means, &variances, &targets).unwrap()).abs() < 1e-9);
        for place in 0..4 {
            let at = |change: f64, of_log: bool| {
                let (mut means, mut logs) = (means.clone(), logs.clone());
                if of_log { logs[place] += change } else { means[place] += change };
                GaussianHead { mean: &means, log_variance: &logs }.nll(&targets).unwrap()
            };
            let slope = |of_log: bool| (at(1e-5, of_log) - at(-1e-5, of_log)) / 2e-5;
            prop_assert!((slope(false) - of_mean[place]).abs() < 1e-5);
            prop_assert!((slope(true) - of_log[place]).abs() < 1e-5);
        }
    }

    #[test]
    fn quantiles_are_in_order_and_within_members(
        rows in prop::collection::vec(prop::collection::vec(-9.0_f64..9.0, 3), 1..8), one in 0.0_f64..=1.0,
        other in 0.0_f64..=1.0,
    ) {
        let mut scratch = Vec::new();
        let mut at = |share: f64| {
            let mut out = [0.0; 3];
            quantile(&rows, share, &mut scratch, &mut out).unwrap();
            out
        };
        let (lower, upper, least, most) = (at(one.min(other)), at(one.max(other)), at(0.0), at(1.0));
        for place in 0..3 {
            let column = || rows.iter().map(|row| row[place]);
            prop_assert!(lower[place] <= upper[place] + 1e-12);
            prop_assert_eq!(least[place], column().fold(f64::INFINITY, f64::min));
            prop_assert_eq!(most[place], column().fold(f64::NEG_INFINITY, f64::max));
        }
    }

    #[test]
    fn mean_probabilities_are_probabilities_and_know_no_offset(
        rows in prop::collection::vec(prop::collection::vec(-700.0_f64..700.0, 6), 1..6), offset in -1e4_f64..1e4,
    ) {
        let (mut whole, mut moved, mut expected) = ([0.0; 6], [0.0; 6], [0.0; 6]);
        mean_probabilities(&rows, 3, &mut whole).unwrap();
        for row in &rows {
            let mut logs = row.clone();
            log_softmax(&mut logs, 3).unwrap();
            expected.iter_mut().zip(&logs).for_each(|(sum, log)| *sum += log.exp() / rows.len() as f64);
        }
        let shifted: Vec<Vec<f64>> = rows.iter().map(|row| row.iter().map(|value| value + offset).collect()).collect();
        mean_probabilities(&shifted, 3, &mut moved).unwrap();
        for place in 0..6 {
            prop_assert!((whole[place] - expected[place]).abs() < 1e-10);
            prop_assert!((whole[place] - moved[place]).abs() < 1e-8);
        }
        prop_assert!(whole.chunks(3).all(|row| (row.iter().sum::<f64>() - 1.0).abs() < 1e-10));
    }
}

#[test]
fn a_mixture_of_members() {
    let (mut middle, mut variance) = ([0.0_f64; 2], [0.0; 2]);
    mixture(&[[0.0, 5.0], [6.0, 5.0], [0.0, 5.0]], &[[1.0, 0.5], [2.0, 0.5], [3.0, 0.5]], &mut middle, &mut variance)
        .unwrap();
    // Means (0, 6, 0): mean 2 and variance 8; and no disagreement in the second target.
    assert_eq!((middle, variance), ([2.0, 5.0], [10.0, 0.5]));
    assert!(mixture(&[[0.0]], &[[1.0], [2.0]], &mut [0.0], &mut [0.0_f64]).is_err());
}

#[test]
fn dropout_keeps_the_mean() {
    let mut mask = vec![0.0_f32; 50_000];
    Dropout { rate: 0.2 }.mask(&mut Generator::new(1), &mut mask).unwrap();
    assert!(mask.iter().all(|&factor| factor == 0.0 || factor == 1.25));
    let mean = mask.iter().map(|&factor| f64::from(factor)).sum::<f64>() / 50_000.0;
    assert!((mean - 1.0).abs() < 0.015, "{mean}");
    Dropout { rate: 0.0 }.mask(&mut Generator::new(1), &mut mask).unwrap();
    assert!(mask.iter().all(|&factor| factor == 1.0));
    let error = Dropout { rate: 1.0 }.mask(&mut Generator::new(1), &mut mask).unwrap_err().to_string();
    assert!(error.contains("dropout: rate is 1; expected a number from 0 to below 1"), "{error}");
}

#[test]
fn regression_by_hand() {
    let members = [[1.0_f64, 10.0], [4.0, 10.0], [2.0, 10.0], [9.0, 10.0]];
    let (mut out, mut scratch) = ([0.0; 2], Vec::new());
    mean(&members, &mut out).unwrap();
    assert_eq!(out, [4.0, 10.0]);
    deviation(&members, &mut out).unwrap();
    assert!(is_near(out[0], (38.0_f64 / 3.0).sqrt()) && out[1] == 0.0);
    median(&members, &mut scratch, &mut out).unwrap();
    assert_eq!(out, [3.0, 10.0]);
    let one = &members[..1];
    median(one, &mut scratch, &mut out).unwrap();
    assert_eq!(out, [1.0, 10.0]);
    let error = deviation(one, &mut out).unwrap_err().to_string();
    assert!(error.contains("the number of members is 1; expected 2 at least"), "{error}");
    assert!(quantile(&members, 1.5, &mut scratch, &mut out).is_err());
    assert!(median(&[[f64::NAN, 0.0]], &mut scratch, &mut out).is_err());
    assert!(mean(&members, &mut [0.0]).is_err());
}

#[test]
fn classification_by_hand() {
    let (third, log) = (1.0_f64 / 3.0, f64::ln);
    let members = [[log(0.8), log(0.2), 0.0, 0.0], [log(0.2) + 7.0, log(0.8) + 7.0, log(3.0), 0.0]];
    let (mut out, mut scratch) = ([0.0; 4], Vec::new());
    mean_probabilities(&members, 2, &mut out).unwrap();
    for (value, expected) in out.iter().zip([0.5, 0.5, 0.625, 0.375]) {
        assert!(is_near(*value, expected), "{out:?}");
    }
    probability_deviation(&members, 2, &mut scratch, &mut out).unwrap();
    for (value, expected) in out.iter().zip([0.6, 0.6, 0.25, 0.25]) {
        assert!(is_near(*value, expected / 2.0_f64.sqrt()), "{out:?}");
    }
    assert!(probability_deviation(&members[..1], 2, &mut scratch, &mut out).is_err());
    let (mut classes, mut votes) = ([9; 2], Vec::new());
    classify(&[third, third, third, 0.1, 0.2, 0.7], 3, &mut classes).unwrap();
    assert_eq!(classes, [0, 2]);
    // One vote each: the smallest class. Then two of three.
    let rows = [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 2.0]];
    mode(&rows[..2], 3, &mut votes, &mut classes[..1]).unwrap();
    assert_eq!(classes[0], 1);
    mode(&rows, 3, &mut votes, &mut classes[..1]).unwrap();
    assert_eq!(classes[0], 2);
    assert!(classify(&[f64::NAN, 0.0], 2, &mut classes[..1]).is_err());
    assert!(mode(&[[f64::NAN, 0.0]], 2, &mut votes, &mut classes[..1]).is_err());
}

#[test]
fn improbable_classes_are_not_lost() {
    let mut out = [0.0_f64; 2];
    mean_log_probabilities(&[[0.0, -900.0], [0.0, -1000.0]], 2, &mut out).unwrap();
    assert!((out[1] + 900.0 + 2.0_f64.ln()).abs() < 1e-9, "{out:?}");
    assert!((nll(&out, 2, &[1]).unwrap() - 900.0 - 2.0_f64.ln()).abs() < 1e-9);
    mean_log_probabilities(&[[0.0, f64::NEG_INFINITY]], 2, &mut out).unwrap();
    assert_eq!(out, [0.0, f64::NEG_INFINITY]);
    for wrong in [[f64::NAN, 0.0], [f64::INFINITY, 0.0], [f64::NEG_INFINITY; 2]] {
        let error = mean_log_probabilities(&[wrong], 2, &mut out).unwrap_err().to_string();
        assert!(error.contains("a logit of row 0 is"), "{error}");
    }
    assert!(log_softmax(&mut [0.0_f32; 3], 2).is_err());
}

#[test]
fn metrics_by_hand() {
    let probabilities = [0.6_f64, 0.4, 0.9, 0.1, 0.3, 0.7, 0.5, 0.5];
    let labels = [0, 1, 1, 1];
    assert_eq!(accuracy(&probabilities, 2, &labels).unwrap(), 0.5);
    // Squares: 0.32, 1.62, 0.18, 0.5.
    assert!(is_near(brier(&probabilities, 2, &labels).unwrap(), 2.62 / 4.0));
    let logs = probabilities.map(f64::ln);
    let expected = -(0.6_f64.ln() + 0.1_f64.ln() + 0.7_f64.ln() + 0.5_f64.ln()) / 4.0;
    assert!(is_near(nll(&logs, 2, &labels).unwrap(), expected));
    // Confidences 0.5 and 0.6 (a miss, a hit), 0.7 (a hit), 0.9 (a miss); the ends of bins belong to them.
    let mut bins = [Bin::default(); 5];
    let error = calibration_error(&probabilities, 2, &labels, &mut bins).unwrap();
    assert_eq!(bins.map(|bin| bin.count), [0, 0, 2, 1, 1]);
    assert!(is_near(bins[2].confidence, 0.55) && bins[2].accuracy == 0.5);
    assert!(is_near(error, (2.0 * 0.05 + 0.3 + 0.9) / 4.0), "{error}");
    assert!(is_near(gaussian_nll(&[1.0_f64], &[4.0], &[3.0]).unwrap(), 0.5 * (std::f64::consts::TAU * 4.0).ln() + 0.5));
    assert_eq!(
        coverage(&[0.0_f64, 1.0, 2.0, 3.0], &[1.0; 4].map(|one| one + 3.0), &[0.0, 0.5, 4.0, 5.0]).unwrap(),
        0.5
    );
}

#[test]
fn what_is_no_probability_is_refused() {
    let text = |result: sheave_base::Result<f64>| result.unwrap_err().to_string();
    let logits = text(brier(&[2.0_f64, -1.0], 2, &[0]));
    assert!(logits.contains("probabilities, row 0, is [2.0, -1.0]; expected probabilities from 0 to 1"), "{logits}");
    assert!(nll(&[0.5_f64, 0.5], 2, &[0]).is_err());
    assert!(text(accuracy(&[0.5_f64, 0.5], 2, &[2])).contains("labels[0] is 2; expected below 2"));
    assert!(text(accuracy(&[0.5_f64, 0.5], 2, &[0, 0])).contains("the length of labels is 2; expected 1"));
    assert!(text(calibration_error(&[0.5_f64, 0.5], 2, &[0], &mut [])).contains("the number of bins is 0"));
    assert!(text(gaussian_nll(&[0.0_f64], &[0.0], &[0.0])).contains("variances[0] is 0"));
    assert!(text(coverage(&[1.0_f64], &[0.0], &[0.0])).contains("lower[0] is 1; expected at most upper[0], 0"));
    let empty: [f64; 0] = [];
    assert!(coverage(&empty, &empty, &empty).is_err() && brier(&empty, 2, &[]).is_err());
}
