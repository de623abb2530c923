//! Networks on flat vectors: gradients against an independent network in f64, networks together against each alone,
//! dropout, and what is refused.
use sheave_base::ErrorKind;
use sheave_bayes::random::{Generator, seed_of};
use sheave_nn::{Activation, Dataset, Dense, Dropout, Loss, Mode, Network, Sequential, Targets, mlp, mlp_with};

const ACTIVATIONS: [Activation; 3] = [Activation::Relu, Activation::Tanh, Activation::Gelu];
const LOSSES: [Loss; 4] =
    [Loss::CrossEntropy, Loss::MeanSquared, Loss::Gaussian { deviation: 0.3 }, Loss::GaussianHead];
const ROWS: usize = 5;
const WIDTHS: [usize; 4] = [3, 7, 5, 4];

fn data(loss: Loss, seed: u64, rows: usize) -> Dataset {
    let mut generator = Generator::new(seed);
    let mut numbers = |count: usize| (0..count).map(|_| generator.normal() as f32).collect::<Vec<_>>();
    let inputs = numbers(rows * WIDTHS[0]);
    let targets = match loss {
        Loss::CrossEntropy => Targets::Classes((0..rows as u32).map(|row| row * 7 % 4).collect()),
        Loss::GaussianHead => Targets::Values(numbers(rows * 2)),
        _ => Targets::Values(numbers(rows * 4)),
    };
    Dataset::new(inputs, WIDTHS[0], targets).unwrap()
}

/// The error function, by its series.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Relu => x.max(0.0),
        Activation::Tanh => x.tanh(),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x / 2.0_f64.sqrt())),
    }
}

/// The loss of a perceptron of [`WIDTHS`], unit by unit.
fn oracle(parameters: &[f64], data: &Dataset, activation: Activation, loss: Loss) -> f64 {
    let nll = |row: usize, outputs: &[f64]| -> f64 {
        let gaussian =
            |error: f64, variance: f64| 0.5 * (error * error / variance + (2.0 * std::f64::consts::PI * variance).ln());
        match (loss, data.targets()) {
            (Loss::CrossEntropy, Targets::Classes(classes)) => {
                outputs.iter().map(|output| output.exp()).sum::<f64>().ln() - outputs[classes[row] as usize]
            }
            (Loss::MeanSquared, Targets::Values(values)) => {
                (0..4).map(|place| (outputs[place] - f64::from(values[row * 4 + place])).powi(2)).sum::<f64>() / 4.0
            }
            (Loss::Gaussian { deviation }, Targets::Values(values)) => {
                let of =
                    |place: usize| gaussian(outputs[place] - f64::from(values[row * 4 + place]), deviation.powi(2));
                (0..4).map(of).sum()
            }
            (Loss::GaussianHead, Targets::Values(values)) => {
                let of = |place: usize| {
                    gaussian(outputs[place] - f64::from(values[row * 2 + place]), outputs[2 + place].exp())
                };
                (0..2).map(of).sum()
            }
            _ => panic!("targets that do not fit"),
        }
    };
    let mut sum = 0.0;
    for row in 0..data.rows() {
        let mut units: Vec<f64> = data.inputs()[row * 3..row * 3 + 3].iter().map(|&input| f64::from(input)).collect();
        let mut at = 0;
        for (layer, pair) in WIDTHS.windows(2).enumerate() {
            let (inputs, outputs) = (pair[0], pair[1]);
            let (weight, bias) = (&parameters[at..], &parameters[at + inputs * outputs..]);
            let unit = |unit: usize| {
                let sum = (0..inputs).map(|input| units[input] * weight[input * outputs + unit]).sum::<f64>();
                let value = sum + bias[unit];
                if layer + 2 < WIDTHS.len() { activate(activation, value) } else { value }
            };
            units = (0..outputs).map(unit).collect();
            at += (inputs + 1) * outputs;
        }
        sum += nll(row, &units);
    }
    sum / data.rows() as f64
}

#[test]
fn gradients_are_slopes_of_the_loss() {
    for activation in ACTIVATIONS {
        for loss in LOSSES {
            let network = Network::new(mlp_with(&WIDTHS, activation).unwrap(), 3, loss).unwrap();
            let data = data(loss, 5, ROWS);
            let mut parameters = network.start(3);
            // Biases too are somewhere.
            let mut generator = Generator::new(8);
            parameters.iter_mut().for_each(|value| *value += 0.1 * generator.normal() as f32);
            let wide: Vec<f64> = parameters.iter().map(|&value| f64::from(value)).collect();
            let mut gradient = vec![f32::NAN; network.dimension()];
            let value = network.value_and_gradient(&parameters, &data, Mode::Evaluate, &mut gradient).unwrap();
            let expected = oracle(&wide, &data, activation, loss);
            let scale = 1.0 + expected.abs();
            assert!((value - expected).abs() < 1e-5 * scale, "{activation:?} {loss:?}: {value} is not {expected}");
            let largest = gradient.iter().fold(1.0_f32, |most, slope| most.max(slope.abs()));
            for place in 0..wide.len() {
                let at = |change: f64| {
                    let mut moved = wide.clone();
                    moved[place] += change;
                    oracle(&moved, &data, activation, loss)
                };
                let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
                let error = (slope - f64::from(gradient[place])).abs();
                let bound = 1e-5 * f64::from(largest);
                assert!(error < bound, "{activation:?} {loss:?} {place}: {} is not {slope}", gradient[place]);
            }
        }
    }
}

fn dropping(widths: [usize; 3]) -> Sequential {
    Sequential::new()
        .with(Dense::new(widths[0], widths[1]).unwrap())
        .with(Activation::Relu)
        .with(Dropout::new(0.25).unwrap())
        .with(Dense::new(widths[1], widths[2]).unwrap())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn networks_together_have_the_bits_of_each_alone() {
    // Some products are below the sizes that candle blocks, some above; some go through together, some in groups.
    for (widths, rows, networks) in
        [([3, 7, 4], 5, 3), ([3, 33, 4], 17, 8), ([3, 100, 4], 100, 5), ([3, 300, 4], 130, 2)]
    {
        for loss in LOSSES {
            let network = Network::new(dropping(widths), 3, loss).unwrap();
            let parameters: Vec<Vec<f32>> = (0..networks).map(|place| network.start(seed_of(1, place))).collect();
            let generators = || (0..networks).map(|place| Generator::new(seed_of(2, place))).collect::<Vec<_>>();
            let own: Vec<Dataset> = (0..networks).map(|place| data(loss, seed_of(3, place), rows)).collect();
            for batches in [own.iter().collect::<Vec<_>>(), vec![&own[0]]] {
                let mut gradients = vec![vec![f32::NAN; network.dimension()]; networks as usize];
                let mut losses = vec![f64::NAN; networks as usize];
                let mut drawn = generators();
                let mode = Mode::Train(&mut drawn);
                network.values_and_gradients(&parameters, &batches, mode, &mut gradients, &mut losses).unwrap();
                let mut outputs = Vec::new();
                let inputs = own[0].inputs();
                network.many_outputs(&parameters, inputs, Mode::Train(&mut drawn), &mut outputs).unwrap();
                let mut alone = vec![f32::NAN; network.dimension()];
                for (place, mut generator) in generators().into_iter().enumerate() {
                    let batch = batches[place % batches.len()];
                    let mode = Mode::train(&mut generator);
                    let value = network.value_and_gradient(&parameters[place], batch, mode, &mut alone).unwrap();
                    assert_eq!(value.to_bits(), losses[place].to_bits(), "{loss:?} {widths:?} {place}");
                    assert_eq!(bits(&alone), bits(&gradients[place]), "{loss:?} {widths:?} {place}");
                    let mut single = Vec::new();
                    let mode = Mode::train(&mut generator);
                    network.outputs(&parameters[place], inputs, mode, &mut single).unwrap();
                    let size = single.len();
                    assert_eq!(bits(&single), bits(&outputs[place * size..(place + 1) * size]));
                    assert_eq!(generator, drawn[place], "as many numbers were drawn");
                }
            }
        }
    }
}

#[test]
fn units_are_dropped_in_a_training_alone() {
    let network = Network::new(dropping([3, 40, 4]), 3, Loss::MeanSquared).unwrap();
    let (parameters, inputs) = (network.start(1), data(Loss::MeanSquared, 2, 1).inputs().to_vec());
    let outputs = |mode: Mode<'_>| {
        let mut outputs = Vec::new();
        network.outputs(&parameters, &inputs, mode, &mut outputs).unwrap();
        outputs
    };
    let whole = outputs(Mode::Evaluate);
    assert_eq!(whole, outputs(Mode::Evaluate));
    let mut generator = Generator::new(4);
    let drawn = outputs(Mode::train(&mut generator));
    assert_ne!(drawn, whole);
    assert_eq!(drawn, outputs(Mode::train(&mut Generator::new(4))), "a seed says what is dropped");
    assert_ne!(drawn, outputs(Mode::train(&mut generator)), "each pass drops others");
    // The last layer is linear, so the mean over masks is what nothing dropped gives.
    let count = 4000;
    let samples: Vec<Vec<f32>> = (0..count).map(|_| outputs(Mode::train(&mut generator))).collect();
    for (place, expected) in whole.iter().enumerate() {
        let values: Vec<f64> = samples.iter().map(|sample| f64::from(sample[place])).collect();
        let mean = values.iter().sum::<f64>() / f64::from(count);
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / f64::from(count);
        let bound = 6.0 * (variance / f64::from(count)).sqrt();
        assert!((mean - f64::from(*expected)).abs() < bound && variance > 0.0, "{mean} is not {expected}");
    }
}

#[test]
fn a_seed_determines_the_start() {
    let network = Network::new(mlp(&[6, 5, 2]).unwrap(), 6, Loss::CrossEntropy).unwrap();
    let start = network.start(1);
    assert_eq!(start, network.start(1));
    assert_ne!(start, network.start(2));
    let entries = network.layout().entries();
    let values = |place: usize| {
        let (offset, elements) = (entries[place].offset, entries[place].parameter.elements());
        &start[offset..offset + elements]
    };
    assert!(values(1).iter().chain(values(3)).all(|&bias| bias == 0.0));
    assert!(values(0).iter().all(|weight| weight.abs() <= 1.0), "sqrt(6 / 6)");
    assert!(values(0).iter().any(|weight| weight.abs() > 0.8));
    let mut filled = vec![0.0; network.dimension()];
    network.initialize(&mut Generator::new(1), &mut filled).unwrap();
    assert_eq!(filled, start);
}

#[test]
fn features_are_what_the_last_layer_is_given() {
    let network = Network::new(mlp(&[3, 6, 2]).unwrap(), 3, Loss::CrossEntropy).unwrap();
    let parameters = network.start(5);
    let inputs = [0.5, -1.0, 2.0, 1.0, 0.0, -0.25];
    let (mut features, mut outputs) = (Vec::new(), Vec::new());
    assert_eq!(network.features(&parameters, &inputs, Mode::Evaluate, &mut features).unwrap(), 6);
    network.outputs(&parameters, &inputs, Mode::Evaluate, &mut outputs).unwrap();
    let (weight, bias) = parameters[24..].split_at(12);
    for row in 0..2 {
        for class in 0..2 {
            let sum: f32 = (0..6).map(|unit| features[row * 6 + unit] * weight[unit * 2 + class]).sum();
            assert!((sum + bias[class] - outputs[row * 2 + class]).abs() < 1e-5);
        }
    }
    let bent = Sequential::new().with(Dense::new(3, 2).unwrap()).with(Activation::Tanh);
    let network = Network::new(bent, 3, Loss::MeanSquared).unwrap();
    let error = network.features(&network.start(1), &inputs, Mode::Evaluate, &mut features).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn refusals() {
    let refused = |result: sheave_base::Result<()>, expected: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    };
    refused(mlp(&[3]).map(drop), "the number of widths is 1; expected two at least");
    refused(mlp(&[3, 0]).map(drop), "inputs and outputs are 3 and 0");
    refused(Dropout::new(1.0).map(drop), "rate is 1; expected a number from 0 to below 1");
    let make = |loss| Network::new(mlp(&[3, 5]).unwrap(), 3, loss).map(drop);
    refused(make(Loss::GaussianHead), "the number of outputs is 5; expected a mean and a log variance");
    refused(make(Loss::Gaussian { deviation: 0.0 }), "deviation is 0; expected a finite number above zero");
    let wide = Network::new(mlp(&[3, 5, 4]).unwrap(), 4, Loss::CrossEntropy);
    refused(wide.map(drop), "module 0: the width of a dense layer's inputs is 4; expected 3");

    let network = Network::new(mlp(&[3, 4]).unwrap(), 3, Loss::CrossEntropy).unwrap();
    let (parameters, right) = (network.start(1), data(Loss::CrossEntropy, 1, 4));
    let step = |parameters: &[f32], batch: &Dataset, mode: Mode<'_>| {
        network.value_and_gradient(parameters, batch, mode, &mut [0.0; 16]).map(drop)
    };
    refused(step(&parameters[1..], &right, Mode::Evaluate), "the length of parameters is 15; expected 16");
    refused(step(&parameters, &data(Loss::MeanSquared, 1, 4), Mode::Evaluate), "targets are numbers; expected classes");
    let classes = Dataset::new(vec![0.0; 3], 3, Targets::Classes(vec![4])).unwrap();
    refused(step(&parameters, &classes, Mode::Evaluate), "targets[0] is 4; expected below 4");
    let narrow = Dataset::new(vec![0.0; 2], 2, Targets::Classes(vec![0])).unwrap();
    refused(step(&parameters, &narrow, Mode::Evaluate), "the width of inputs is 2; expected 3");
    refused(step(&parameters, &right, Mode::Train(&mut [])), "the number of generators is 0; expected 1");
    refused(
        network.outputs(&parameters, &[0.0; 4], Mode::Evaluate, &mut Vec::new()),
        "inputs is 4; expected a multiple",
    );
    refused(Dataset::new(vec![f32::NAN; 3], 3, Targets::Classes(vec![1])).map(drop), "inputs[0] is NaN");
    refused(Dataset::new(vec![0.0; 3], 3, Targets::Classes(vec![1, 1])).map(drop), "the number of targets is 2");
    refused(right.batch(&[4]).map(drop), "an index is 4; expected one below 4");
    refused(right.batch(&[]).map(drop), "the number of indices is 0");
}
