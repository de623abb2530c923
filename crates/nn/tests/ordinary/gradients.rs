//! Loss and gradients against an independent network in f64, and what is promised about batches and weights.
use sheave_base::ErrorKind;
use sheave_base::clock::SeededEntropy;
use sheave_nn::{Batch, Digits, Model, Split};
use sheave_tensor::{Arena, ArenaConfig, Dtype, Op, Tensor};

const IMAGES: [usize; 7] = [0, 3, 5, 11, 500, 801, 1197];

fn batch(training: &Split, global_images: usize) -> Batch {
    training.batch(&IMAGES, global_images).unwrap()
}

fn floats(tensors: &[Tensor]) -> Vec<Vec<f32>> {
    tensors.iter().map(|tensor| tensor.to_vec().unwrap()).collect()
}

fn bits(tensors: &[Tensor]) -> Vec<u32> {
    floats(tensors).concat().into_iter().map(f32::to_bits).collect()
}

/// The summed loss of [`IMAGES`], computed output by output, unit by unit, pixel by pixel.
fn oracle(weights: &[Vec<f64>], training: &Split) -> f64 {
    let [filter, filter_bias, hidden, hidden_bias, output, output_bias] = weights else { panic!("six parameters") };
    let mut loss = 0.0;
    for image in IMAGES {
        let pixels = training.pixels(image).unwrap();
        let pixel = |y: i32, x: i32| {
            let is_inside = (0..8).contains(&y) && (0..8).contains(&x);
            if is_inside { f64::from(pixels[(y * 8 + x) as usize]) } else { 0.0 }
        };
        let seen = |y: i32, x: i32, map: usize| {
            let taps = (0..9).map(|tap| pixel(y + tap / 3 - 1, x + tap % 3 - 1) * filter[tap as usize * 16 + map]);
            (taps.sum::<f64>() + filter_bias[map]).max(0.0)
        };
        let cell = |input: usize| {
            let (y, x, map) = ((input / 16 / 4 * 2) as i32, (input / 16 % 4 * 2) as i32, input % 16);
            [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().map(|(dy, dx)| seen(y + dy, x + dx, map)).fold(0.0, f64::max)
        };
        let cells: Vec<f64> = (0..256).map(cell).collect();
        let unit = |unit: usize| {
            let inputs = cells.iter().enumerate().map(|(input, cell)| cell * hidden[input * 64 + unit]);
            (inputs.sum::<f64>() + hidden_bias[unit]).max(0.0)
        };
        let units: Vec<f64> = (0..64).map(unit).collect();
        let class = |class: usize| {
            let inputs = units.iter().enumerate().map(|(input, unit)| unit * output[input * 10 + class]);
            inputs.sum::<f64>() + output_bias[class]
        };
        let exponentials: f64 = (0..10).map(|index| class(index).exp()).sum();
        loss += exponentials.ln() - class(training.label(image).unwrap().into());
    }
    loss
}

#[test]
fn gradients_are_slopes_of_the_loss() {
    let training = Digits::embedded().unwrap().training();
    let model = Model::new(3).unwrap();
    let mut start = model.weights().unwrap();
    // Biases that are not zero, or a blank patch would lie on the rectifier's edge, where there is no slope.
    for (part, bias) in [(1, 0.03), (3, -0.02), (5, 0.01)] {
        start[part].as_mut_slice::<f32>().unwrap().fill(bias);
    }
    model.set_weights(&start).unwrap();
    let (loss, gradients) = model.gradients(&batch(&training, 7)).unwrap();
    let mut weights: Vec<Vec<f64>> =
        floats(&model.weights().unwrap()).into_iter().map(|part| part.into_iter().map(f64::from).collect()).collect();
    assert!((f64::from(loss) - oracle(&weights, &training) / 7.0).abs() < 1e-5, "{loss}");

    let mut entropy = SeededEntropy::new(1);
    for (parameter, gradient) in floats(&gradients).into_iter().enumerate() {
        let mut is_flat = true;
        for _ in 0..24 {
            let index = entropy.below(gradient.len() as u64) as usize;
            let weight = weights[parameter][index];
            let mut at = |change: f64| {
                weights[parameter][index] = weight + change;
                oracle(&weights, &training) / 7.0
            };
            let slope = (at(1e-6) - at(-1e-6)) / 2e-6;
            weights[parameter][index] = weight;
            let gradient = f64::from(gradient[index]);
            assert!((gradient - slope).abs() < 1e-5, "{parameter}, {index}: {gradient} is not {slope}");
            is_flat &= slope.abs() < 1e-4;
        }
        assert!(!is_flat, "nothing was compared in parameter {parameter}");
    }
}

#[test]
fn parts_of_a_global_batch_add_up() {
    let training = Digits::embedded().unwrap().training();
    let model = Model::new(4).unwrap();
    let (loss, whole) = model.gradients(&batch(&training, 7)).unwrap();
    let (first, mut sum) = model.gradients(&training.batch(&IMAGES[..3], 7).unwrap()).unwrap();
    let (second, rest) = model.gradients(&training.batch(&IMAGES[3..], 7).unwrap()).unwrap();
    assert!((loss - first - second).abs() < 1e-5);
    for ((sum, rest), whole) in sum.iter_mut().zip(&rest).zip(&whole) {
        sum.reduce_from(Op::Sum, rest).unwrap();
        let pairs = sum.to_vec::<f32>().unwrap().into_iter().zip(whole.to_vec::<f32>().unwrap());
        assert!(pairs.into_iter().all(|(sum, whole)| (sum - whole).abs() < 1e-6));
    }
    // As part of a batch of twice as many images it weighs exactly half.
    let (half, halves) = model.gradients(&batch(&training, 14)).unwrap();
    assert!((2.0 * half - loss).abs() < 1e-6);
    let pairs = floats(&halves).concat().into_iter().zip(floats(&whole).concat());
    assert!(pairs.into_iter().all(|(half, whole)| (2.0 * half - whole).abs() < 1e-6));
}

#[test]
fn a_seed_determines_weights_and_gradients() {
    let training = Digits::embedded().unwrap().training();
    let (one, same, other) = (Model::new(5).unwrap(), Model::new(5).unwrap(), Model::new(6).unwrap());
    let of = |model: &Model| bits(&model.weights().unwrap());
    assert!(of(&one) == of(&same) && of(&one) != of(&other));
    let gradients = |model: &Model| bits(&model.gradients(&batch(&training, 7)).unwrap().1);
    assert!(gradients(&one) == gradients(&same) && gradients(&one) != gradients(&other));
    let bounds = [6.0 / 9.0, 0.0, 6.0 / 256.0, 0.0, 6.0 / 64.0, 0.0_f32];
    for (weights, bound) in floats(&one.weights().unwrap()).into_iter().zip(bounds) {
        let furthest = weights.into_iter().map(f32::abs).fold(0.0, f32::max);
        assert!(furthest <= bound.sqrt() && furthest >= 0.9 * bound.sqrt());
    }
}

#[test]
fn tensors_leave_in_the_arena() {
    let training = Digits::embedded().unwrap().training();
    let arena = Arena::new(ArenaConfig { capacity_bytes: 16 << 20, ..ArenaConfig::default() });
    let model = Model::new(5).unwrap().in_arena(&arena);
    let (_, gradients) = model.gradients(&batch(&training, 7)).unwrap();
    let weights = model.weights().unwrap();
    for ((tensor, gradient), (name, shape)) in weights.iter().zip(&gradients).zip(model.parameters()) {
        assert!(tensor.buffer().location().is_some() && gradient.buffer().location().is_some(), "{name}");
        assert!(*tensor.shape() == shape && *gradient.shape() == shape, "{name}");
    }
    let private = Model::new(5).unwrap();
    assert_eq!(bits(&weights), bits(&private.weights().unwrap()));
    assert_eq!(bits(&gradients), bits(&private.gradients(&batch(&training, 7)).unwrap().1));
    assert!(private.weights().unwrap()[0].buffer().location().is_none());
    drop((weights, gradients));
    assert_eq!(arena.stats().used_bytes, 0, "the model keeps no block");
}

#[test]
fn weights_that_do_not_fit_change_nothing() {
    let model = Model::new(7).unwrap();
    let before = model.weights().unwrap();
    let mut missing = Model::new(8).unwrap().weights().unwrap();
    missing.pop();
    let mut reshaped = Model::new(8).unwrap().weights().unwrap();
    reshaped[5] = reshaped[5].reshape([10, 1]).unwrap();
    let mut double = Model::new(8).unwrap().weights().unwrap();
    double[5] = Tensor::private(Dtype::F64, [10]).unwrap();
    for (wrong, named) in [(&missing, "6 parameters"), (&reshaped, "output.bias"), (&double, "output.bias")] {
        let error = model.set_weights(wrong).unwrap_err();
        assert!(error.kind() == ErrorKind::Mismatch && error.to_string().contains(named), "{error}");
        assert_eq!(bits(&before), bits(&model.weights().unwrap()));
    }
    model.set_weights(&Model::new(8).unwrap().weights().unwrap()).unwrap();
    assert_ne!(bits(&before), bits(&model.weights().unwrap()));
}

#[test]
fn what_is_not_a_number_is_never_right() {
    let training = Digits::embedded().unwrap().training();
    let model = Model::new(9).unwrap();
    let mut weights = model.weights().unwrap();
    weights[5] = Tensor::from_slice(&[f32::NAN; 10], [10]).unwrap();
    model.set_weights(&weights).unwrap();
    assert_eq!(model.accuracy(&training).unwrap(), 0.0);
    // An output beyond all others is the answer for every image: a tenth or so is right.
    let zeros = model.parameters().into_iter().map(|(_, shape)| Tensor::private(Dtype::F32, &shape).unwrap());
    let mut weights: Vec<Tensor> = zeros.collect();
    weights[5].as_mut_slice::<f32>().unwrap()[4] = 1.0;
    model.set_weights(&weights).unwrap();
    let fours = (0..training.len()).filter(|&index| training.label(index) == Some(4)).count();
    assert_eq!(model.accuracy(&training).unwrap(), fours as f64 / training.len() as f64);
}
