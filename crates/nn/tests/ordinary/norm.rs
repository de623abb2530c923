//! Batch normalisation: against formulas, an independent network in f64, and each network alone.
use sheave_base::ErrorKind;
use sheave_bayes::random::Generator;
use sheave_nn::{Activation, BatchNorm, Dataset, Dense, Dropout, Loss, Mode, Network, Sequential, Targets};

const INPUTS: usize = 3;
const UNITS: usize = 4;
const OUTPUTS: usize = 2;
const ROWS: usize = 6;
const EPSILON: f64 = 1e-5;

/// Dense, normalised, bent, dense; with units that are dropped if `rate` is above zero.
fn network(rate: f64) -> Network {
    let module = Sequential::new()
        .with(Dense::new(INPUTS, UNITS).unwrap())
        .with(BatchNorm::new(UNITS).unwrap())
        .with(Activation::Tanh)
        .with(Dropout::new(rate).unwrap())
        .with(Dense::new(UNITS, OUTPUTS).unwrap());
    Network::new(module, INPUTS, Loss::MeanSquared).unwrap()
}

fn data(seed: u64, rows: usize) -> Dataset {
    let mut generator = Generator::new(seed);
    let mut numbers = |count: usize| (0..count).map(|_| generator.normal() as f32 + 0.5).collect::<Vec<_>>();
    let inputs = numbers(rows * INPUTS);
    Dataset::new(inputs, INPUTS, Targets::Values(numbers(rows * OUTPUTS))).unwrap()
}

/// Parameters where nothing is zero.
fn parameters(network: &Network, seed: u64) -> Vec<f32> {
    let mut generator = Generator::new(seed ^ 0xabc);
    network.start(seed).into_iter().map(|value| value + 0.3 * generator.normal() as f32).collect()
}

fn moments(column: &[f64]) -> (f64, f64) {
    let mean = column.iter().sum::<f64>() / column.len() as f64;
    (mean, column.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / column.len() as f64)
}

/// The loss of [`network`] without dropped units, unit by unit, with these moments or those of the batch.
fn oracle(parameters: &[f64], data: &Dataset, fixed: Option<&[f32]>) -> f64 {
    let (weight, rest) = parameters.split_at(INPUTS * UNITS);
    let (bias, rest) = rest.split_at(UNITS);
    let (scale, rest) = rest.split_at(UNITS);
    let (shift, rest) = rest.split_at(UNITS);
    let (last_weight, last_bias) = rest.split_at(UNITS * OUTPUTS);
    let input = |row: usize, place: usize| f64::from(data.inputs()[row * INPUTS + place]);
    let unit = |unit: usize| -> Vec<f64> {
        let sum = |row: usize| (0..INPUTS).map(|place| input(row, place) * weight[place * UNITS + unit]).sum::<f64>();
        let column: Vec<f64> = (0..data.rows()).map(|row| sum(row) + bias[unit]).collect();
        let (mean, variance) = match fixed {
            Some(buffers) => (f64::from(buffers[unit]), f64::from(buffers[UNITS + unit])),
            None => moments(&column),
        };
        let normal = |value: f64| (value - mean) / (variance + EPSILON).sqrt() * scale[unit] + shift[unit];
        column.into_iter().map(|value| normal(value).tanh()).collect()
    };
    let units: Vec<Vec<f64>> = (0..UNITS).map(unit).collect();
    let Targets::Values(targets) = data.targets() else { panic!("numbers") };
    let mut sum = 0.0;
    for (place, target) in targets.iter().enumerate() {
        let (row, output) = (place / OUTPUTS, place % OUTPUTS);
        let value: f64 = (0..UNITS).map(|unit| units[unit][row] * last_weight[unit * OUTPUTS + output]).sum();
        sum += (value + last_bias[output] - f64::from(*target)).powi(2);
    }
    sum / targets.len() as f64
}

fn train(network: &Network, parameters: &[f32], data: &Dataset, buffers: &mut [Vec<f32>]) -> (f64, Vec<f32>) {
    let mut gradient = vec![0.0; network.dimension()];
    let mode = Mode::TrainWith { generators: &mut [], buffers };
    let loss = network.value_and_gradient(parameters, data, mode, &mut gradient).unwrap();
    (loss, gradient)
}

fn check(parameters: &[f32], data: &Dataset, fixed: Option<&[f32]>, loss: f64, gradient: &[f32]) {
    let mut wide: Vec<f64> = parameters.iter().map(|value| f64::from(*value)).collect();
    assert!((loss - oracle(&wide, data, fixed)).abs() < 1e-5, "{loss}");
    for (place, slope) in gradient.iter().enumerate() {
        let value = wide[place];
        let mut at = |change: f64| {
            wide[place] = value + change;
            oracle(&wide, data, fixed)
        };
        let expected = (at(1e-5) - at(-1e-5)) / 2e-5;
        wide[place] = value;
        assert!((f64::from(*slope) - expected).abs() < 2e-5, "{place}: {slope} is not {expected}");
    }
}

#[test]
fn gradients_are_slopes_of_the_loss() {
    let network = network(0.0);
    for seed in 0..4 {
        let (data, parameters) = (data(seed, ROWS), parameters(&network, seed));
        let mut buffers = vec![network.start_buffers()];
        let (loss, gradient) = train(&network, &parameters, &data, &mut buffers);
        check(&parameters, &data, None, loss, &gradient);
        // A bias before a normalisation changes nothing.
        assert!(gradient[INPUTS * UNITS..][..UNITS].iter().all(|slope| slope.abs() < 1e-6), "{gradient:?}");
        // With moments that stay what they are.
        let mut gradient = vec![0.0; network.dimension()];
        let mode = Mode::EvaluateWith(&buffers);
        let loss = network.value_and_gradient(&parameters, &data, mode, &mut gradient).unwrap();
        check(&parameters, &data, Some(&buffers[0]), loss, &gradient);
    }
}

#[test]
fn running_moments_are_means_of_those_of_batches() {
    let network = Network::new(BatchNorm::with(2, 0.25, 1e-3).unwrap(), 2, Loss::MeanSquared).unwrap();
    assert_eq!((network.dimension(), network.start_buffers()), (4, vec![0.0, 0.0, 1.0, 1.0]));
    let names: Vec<_> = network.buffers().iter().map(|buffer| buffer.name.as_str()).collect();
    assert_eq!(names, ["mean", "variance"]);
    let parameters = network.start(3);
    assert_eq!(parameters, [1.0, 1.0, 0.0, 0.0]);
    let batch = Dataset::new(vec![1.0, -2.0, 2.0, 0.0, 6.0, 5.0], 2, Targets::Values(vec![0.0; 6])).unwrap();
    let mut buffers = vec![network.start_buffers()];
    let mut expected = [0.0, 0.0, 1.0, 1.0];
    for _ in 0..3 {
        train(&network, &parameters, &batch, &mut buffers);
        // Means 3 and 1, unbiased variances 7 and 13.
        for (running, new) in expected.iter_mut().zip([3.0, 1.0, 7.0, 13.0]) {
            *running += 0.25 * (new - *running);
        }
        for (found, expected) in buffers[0].iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-6, "{buffers:?} {expected}");
        }
    }
    let mut outputs = Vec::new();
    network.outputs(&parameters, &[4.0, 4.0], Mode::EvaluateWith(&buffers), &mut outputs).unwrap();
    for column in 0..2 {
        let normal = (4.0 - expected[column]) / (expected[2 + column] + 1e-3).sqrt();
        assert!((f64::from(outputs[column]) - normal).abs() < 1e-5, "{outputs:?} {normal}");
    }
}

#[test]
fn networks_together_have_the_bits_of_each_alone() {
    let network = network(0.3);
    let batches: Vec<Dataset> = (0..5).map(|seed| data(seed, ROWS)).collect();
    let many: Vec<Vec<f32>> = (0..5).map(|seed| parameters(&network, seed)).collect();
    for is_shared in [true, false] {
        let of = |place: usize| &batches[if is_shared { 0 } else { place }];
        let seen: Vec<&Dataset> = if is_shared { vec![&batches[0]] } else { batches.iter().collect() };
        let fresh = || (0..5).map(Generator::new).collect::<Vec<_>>();
        let (mut generators, mut buffers) = (fresh(), vec![network.start_buffers(); 5]);
        let (mut gradients, mut losses) = (vec![vec![0.0; network.dimension()]; 5], [0.0; 5]);
        let mode = Mode::TrainWith { generators: &mut generators, buffers: &mut buffers };
        network.values_and_gradients(&many, &seen, mode, &mut gradients, &mut losses).unwrap();
        let mut outputs = Vec::new();
        let inputs = batches[4].inputs();
        network.many_outputs(&many, inputs, Mode::EvaluateWith(&buffers), &mut outputs).unwrap();
        for (place, mut generator) in fresh().into_iter().enumerate() {
            let (mut own, mut gradient) = (vec![network.start_buffers()], vec![0.0; network.dimension()]);
            let mode = Mode::TrainWith { generators: std::slice::from_mut(&mut generator), buffers: &mut own };
            let loss = network.value_and_gradient(&many[place], of(place), mode, &mut gradient).unwrap();
            assert_eq!((loss, &gradient, &own[0]), (losses[place], &gradients[place], &buffers[place]), "{place}");
            assert_eq!(generator, generators[place]);
            let mut alone = Vec::new();
            network.outputs(&many[place], inputs, Mode::EvaluateWith(&own), &mut alone).unwrap();
            assert_eq!(alone, outputs[place * ROWS * OUTPUTS..][..ROWS * OUTPUTS]);
        }
    }
}

#[test]
fn moments_are_refreshed_by_all_data() {
    let network = Network::new(BatchNorm::new(INPUTS).unwrap(), INPUTS, Loss::MeanSquared).unwrap();
    let mut generator = Generator::new(8);
    let inputs: Vec<f32> = (0..11 * INPUTS).map(|_| generator.normal() as f32).collect();
    let data = Dataset::new(inputs, INPUTS, Targets::Values(vec![0.0; 11 * INPUTS])).unwrap();
    // Batches of 5, 5 and 1 rows, the last of which has no variance.
    let mut buffers = vec![7.0; 2 * INPUTS];
    network.refresh(&network.start(1), &data, 5, &mut buffers).unwrap();
    for column in 0..INPUTS {
        let of = |batch: usize| {
            let rows = (batch * 5..batch * 5 + 5).map(|row| f64::from(data.inputs()[row * INPUTS + column]));
            moments(&rows.collect::<Vec<_>>())
        };
        let (mean, variance) = ((of(0).0 + of(1).0) / 2.0, (of(0).1 + of(1).1) / 2.0 * 5.0 / 4.0);
        assert!((f64::from(buffers[column]) - mean).abs() < 1e-6, "{buffers:?} {mean}");
        assert!((f64::from(buffers[INPUTS + column]) - variance).abs() < 1e-6, "{buffers:?} {variance}");
    }
    // Whatever they were before.
    for before in [0.3, -1e6, f32::NAN] {
        let mut again = vec![before; 2 * INPUTS];
        network.refresh(&network.start(1), &data, 5, &mut again).unwrap();
        assert_eq!(again, buffers, "{before}");
    }
    // Without buffers there is nothing to do.
    let plain = Network::new(Dense::new(INPUTS, 1).unwrap(), INPUTS, Loss::MeanSquared).unwrap();
    plain.refresh(&plain.start(1), &data, 1, &mut Vec::new()).unwrap();
}

#[test]
fn refusals() {
    for (error, expected) in [
        (BatchNorm::new(0).unwrap_err(), "width is 0; expected one number at least"),
        (BatchNorm::with(1, 0.0, 1e-5).unwrap_err(), "momentum is 0; expected a number from above 0 to 1"),
        (BatchNorm::with(1, 0.1, f32::NAN).unwrap_err(), "epsilon is NaN; expected a finite number above zero"),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(expected), "{error}");
    }
    let network = network(0.0);
    let (data, parameters) = (data(1, ROWS), network.start(1));
    let refused = |mode: Mode<'_>, rows: &Dataset, expected: &str| {
        let mut gradient = vec![0.0; network.dimension()];
        let error = network.value_and_gradient(&parameters, rows, mode, &mut gradient).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    };
    refused(Mode::Evaluate, &data, "the mode has no buffers; expected 1.mean and others");
    refused(Mode::EvaluateWith(&[]), &data, "the number of buffers is 0; expected 1");
    refused(Mode::EvaluateWith(&[vec![0.0; 7]]), &data, "the length of buffers is 7; expected 8");
    let (mut buffers, row) = ([network.start_buffers()], data.batch(&[2]).unwrap());
    let before = buffers.clone();
    let mode = Mode::TrainWith { generators: &mut [], buffers: &mut buffers };
    refused(mode, &row, "a batch has 1 row; expected two at least to train a network with buffers");
    assert_eq!(buffers, before);
    let error = network.refresh(&parameters, &row, 2, &mut buffers[0]).unwrap_err();
    assert!(error.to_string().contains("batches have 2 rows, of 1; expected two at least"), "{error}");
}
