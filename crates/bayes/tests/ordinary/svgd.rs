//! Stein variational gradient descent beside its definition, cut and whole, and on posteriors with known moments.
use proptest::prelude::*;
use sheave_bayes::Real;
use sheave_bayes::random::Generator;
use sheave_bayes::svgd::{Flow, Gram, Kernel, Lengthscale, PARTICLES_MAX, Svgd, Workspace};
use sheave_optim::{AdaGrad, Rule};

fn matrix<T: Real>(generator: &mut Generator, rows: usize, columns: usize) -> Vec<Vec<T>> {
    let mut row = || {
        let mut values = vec![T::default(); columns];
        generator.fill_normal(&mut values);
        values
    };
    (0..rows).map(|_| row()).collect()
}

fn kernel(kind: Kernel, length: f64, one: &[f64], other: &[f64]) -> f64 {
    let square: f64 = one.iter().zip(other).map(|(one, other)| (one - other).powi(2)).sum();
    match kind {
        Kernel::Rbf => (-square / (2.0 * length * length)).exp(),
        Kernel::InverseMultiquadric => 1.0 / (1.0 + square / (length * length)).sqrt(),
    }
}

/// The definition, by a double loop, with slopes of the kernel by differences: nothing of its algebra.
fn by_definition(kind: Kernel, length: f64, places: &[Vec<f64>], gradients: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let (count, step) = (places.len() as f64, 1e-5 * length);
    let mut directions = vec![vec![0.0; places[0].len()]; places.len()];
    for (direction, place) in directions.iter_mut().zip(places) {
        for (other, gradient) in places.iter().zip(gradients) {
            let known = kernel(kind, length, other, place);
            for index in 0..place.len() {
                let moved = |change: f64| {
                    let mut moved = other.clone();
                    moved[index] += change;
                    kernel(kind, length, &moved, place)
                };
                let slope = (moved(step) - moved(-step)) / (2.0 * step);
                direction[index] += (known * gradient[index] - slope) / count;
            }
        }
    }
    directions
}

/// The same with the slope in closed form, for many parameters.
fn by_double_loop(length: f64, places: &[Vec<f64>], gradients: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let count = places.len() as f64;
    let mut directions = vec![vec![0.0; places[0].len()]; places.len()];
    for (direction, place) in directions.iter_mut().zip(places) {
        for (other, gradient) in places.iter().zip(gradients) {
            let known = kernel(Kernel::Rbf, length, other, place);
            for index in 0..place.len() {
                let slope = -known * (other[index] - place[index]) / (length * length);
                direction[index] += (known * gradient[index] - slope) / count;
            }
        }
    }
    directions
}

fn furthest(one: &[Vec<f64>], other: &[Vec<f64>]) -> f64 {
    let apart = one.iter().flatten().zip(other.iter().flatten()).map(|(one, other)| (one - other).abs());
    apart.fold(0.0, |most, value| if value.is_nan() { value } else { most.max(value) })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn directions_are_those_of_the_definition(
        seed: u64, particles in 1_usize..10, dimension in 1_usize..8, length in 0.3_f64..3.0, is_rbf: bool,
    ) {
        let mut generator = Generator::new(seed);
        let places = matrix(&mut generator, particles, dimension);
        let gradients = matrix(&mut generator, particles, dimension);
        let kind = if is_rbf { Kernel::Rbf } else { Kernel::InverseMultiquadric };
        let mut found = gradients.clone();
        let svgd = Svgd { kernel: kind, lengthscale: Lengthscale::Fixed(length) };
        svgd.directions(&places, &mut found, &mut Workspace::new()).unwrap();
        prop_assert!(furthest(&found, &by_definition(kind, length, &places, &gradients)) < 1e-7);
    }

    #[test]
    fn cut_anywhere_it_is_the_whole(seed: u64, particles in 1_usize..12, cut in 0_usize..=70) {
        let mut generator = Generator::new(seed);
        let (places, gradients) = (matrix::<f64>(&mut generator, particles, 70), matrix(&mut generator, particles, 70));
        let (svgd, mut workspace) = (Svgd::default(), Workspace::new());
        let mut whole = gradients.clone();
        svgd.directions(&places, &mut whole, &mut workspace).unwrap();

        let halves = |rows: &[Vec<f64>]| -> [Vec<Vec<f64>>; 2] {
            [rows.iter().map(|row| row[..cut].to_vec()).collect(), rows.iter().map(|row| row[cut..].to_vec()).collect()]
        };
        let mut gram = Gram::new(particles).unwrap();
        for half in &halves(&places) {
            // As an all-reduce adds the numbers alone.
            let part = Gram::of_slice(half, &mut workspace).unwrap();
            gram.values_mut().iter_mut().zip(part.values()).for_each(|(sum, part)| *sum += part);
        }
        let forces = svgd.forces(&gram).unwrap();
        let mut parts = halves(&gradients);
        for (half, part) in halves(&places).iter().zip(&mut parts) {
            forces.apply(half, part, &mut workspace).unwrap();
        }
        let joined = parts[0].iter().zip(&parts[1]).map(|(one, other)| [one.as_slice(), other].concat());
        let joined: Vec<Vec<f64>> = joined.collect();
        prop_assert!(furthest(&joined, &whole) < 1e-12);
    }
}

/// More columns than a block, and more particles than the library multiplies by simple loops.
#[test]
fn many_parameters_in_single_precision() {
    let mut generator = Generator::new(3);
    let (places, gradients) = (matrix::<f32>(&mut generator, 9, 2500), matrix::<f32>(&mut generator, 9, 2500));
    let wide = |rows: &[Vec<f32>]| -> Vec<Vec<f64>> {
        rows.iter().map(|row| row.iter().map(|&value| f64::from(value)).collect()).collect()
    };
    let svgd = Svgd { lengthscale: Lengthscale::Fixed(50.0), ..Svgd::default() };
    let mut found = gradients.clone();
    svgd.directions(&places, &mut found, &mut Workspace::new()).unwrap();
    let expected = by_double_loop(50.0, &wide(&places), &wide(&gradients));
    assert!(furthest(&wide(&found), &expected) < 2e-6, "{}", furthest(&wide(&found), &expected));
}

#[test]
fn without_a_loss_particles_go_apart() {
    let mut places = [[0.0_f64, 0.0], [0.6, 0.8]];
    let distance = |places: &[[f64; 2]; 2]| (places[0][0] - places[1][0]).hypot(places[0][1] - places[1][1]);
    let svgd = Svgd { lengthscale: Lengthscale::Fixed(1.0), ..Svgd::default() };
    let mut workspace = Workspace::new();
    for _ in 0..20 {
        let (before, mut directions) = (distance(&places), [[0.0; 2]; 2]);
        svgd.directions(&places, &mut directions, &mut workspace).unwrap();
        for (place, direction) in places.iter_mut().zip(&directions) {
            place.iter_mut().zip(direction).for_each(|(value, change)| *value -= 0.1 * change);
        }
        // Each goes by lr d exp(-d²/2) / 2 away from the other.
        let expected = before * (1.0 + 0.1 * (-0.5 * before * before).exp());
        assert!((distance(&places) - expected).abs() < 1e-12);
    }
}

/// A normal posterior with the mean (1, -1) and the covariance ((2, 1.2), (1.2, 1.5)).
fn normal_gradient(place: &[f64]) -> Vec<f64> {
    let (x, y, determinant) = (place[0] - 1.0, place[1] + 1.0, 2.0 * 1.5 - 1.2 * 1.2);
    vec![(1.5 * x - 1.2 * y) / determinant, (2.0 * y - 1.2 * x) / determinant]
}

/// The mixture of the paper: a third of N(-2, 1) and two thirds of N(2, 1).
fn mixture_gradient(place: &[f64]) -> Vec<f64> {
    let parts = [(1.0 / 3.0, -2.0, 1.0), (2.0 / 3.0, 2.0, 1.0_f64)].map(|(share, mean, deviation)| {
        let scaled = (place[0] - mean) / deviation;
        (share / deviation * (-0.5 * scaled * scaled).exp(), scaled / deviation)
    });
    let total = parts[0].0 + parts[1].0;
    vec![(parts[0].0 * parts[0].1 + parts[1].0 * parts[1].1) / total]
}

fn adagrad() -> Rule {
    Rule::AdaGrad(AdaGrad { learning_rate: 0.3, ..AdaGrad::default() })
}

fn descend(particles: &mut [Vec<f64>], steps: usize, gradient: impl Fn(&[f64]) -> Vec<f64>) {
    let mut flow = Flow::new(Svgd::default(), adagrad(), particles.len(), particles[0].len()).unwrap();
    for _ in 0..steps {
        let mut gradients: Vec<Vec<f64>> = particles.iter().map(|place| gradient(place)).collect();
        flow.step(particles, &mut gradients).unwrap();
    }
}

fn moments(particles: &[Vec<f64>], one: usize, other: usize) -> (f64, f64) {
    let count = particles.len() as f64;
    let mean = |index: usize| particles.iter().map(|place| place[index]).sum::<f64>() / count;
    let (first, second) = (mean(one), mean(other));
    (first, particles.iter().map(|place| (place[one] - first) * (place[other] - second)).sum::<f64>() / count)
}

#[test]
fn a_correlated_normal() {
    let mut particles = matrix(&mut Generator::new(8), 80, 2);
    descend(&mut particles, 1500, normal_gradient);
    let exact = [(0, 0, 1.0, 2.0), (1, 1, -1.0, 1.5), (0, 1, 1.0, 1.2)];
    for (one, other, mean, covariance) in exact {
        let found = moments(&particles, one, other);
        // So few particles lack the tails: their covariance is some percent too small.
        assert!((found.0 - mean).abs() < 0.05 && (found.1 / covariance - 1.0).abs() < 0.12, "{found:?}");
    }
}

#[test]
fn a_mixture() {
    let mut particles = matrix(&mut Generator::new(2), 60, 1);
    descend(&mut particles, 2000, mixture_gradient);
    let (mean, variance) = moments(&particles, 0, 0);
    // Variances of 1 each, and means that are 4 apart.
    let exact = (2.0 / 3.0, 1.0 + 16.0 * 2.0 / 9.0);
    assert!((mean - exact.0).abs() < 0.1, "{mean} is not {}", exact.0);
    assert!((variance / exact.1 - 1.0).abs() < 0.1, "{variance} is not {}", exact.1);
    let left = particles.iter().filter(|place| place[0] < 0.0).count();
    assert!((18..=22).contains(&left), "{left} of 60 are at the left mode, which has a third");
}

/// The opposite sign of the second term: all particles meet at the mode.
#[test]
fn attraction_is_not_the_posterior() {
    let mut particles = matrix::<f64>(&mut Generator::new(8), 40, 2);
    let (svgd, mut workspace) = (Svgd::default(), Workspace::new());
    let rule = adagrad();
    let mut states: Vec<_> = particles.iter().map(|_| rule.state(2)).collect();
    for _ in 0..1500 {
        let mut directions: Vec<Vec<f64>> = particles.iter().map(|place| normal_gradient(place)).collect();
        let mut repulsion = vec![vec![0.0; 2]; particles.len()];
        svgd.directions(&particles, &mut directions, &mut workspace).unwrap();
        svgd.directions(&particles, &mut repulsion, &mut workspace).unwrap();
        for (place, particle) in particles.iter_mut().enumerate() {
            let turned: Vec<f64> =
                directions[place].iter().zip(&repulsion[place]).map(|(whole, second)| whole - 2.0 * second).collect();
            rule.step(&mut states[place], particle, &turned).unwrap();
        }
    }
    assert!(moments(&particles, 0, 0).1 < 0.02 && moments(&particles, 1, 1).1 < 0.02);
}

#[test]
fn the_same_input_gives_the_same_bits() {
    let run = || {
        let mut particles = matrix(&mut Generator::new(5), 10, 2);
        descend(&mut particles, 50, normal_gradient);
        particles.iter().flatten().map(|value| value.to_bits()).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

#[test]
fn refusals() {
    let mut workspace = Workspace::new();
    let text = |result: sheave_base::Result<Gram>| result.unwrap_err().to_string();
    assert!(text(Gram::new(PARTICLES_MAX + 1)).contains("the number of particles is 4097; expected 1 to 4096"));
    let ragged = text(Gram::of_slice(&[vec![0.0_f32; 2], vec![0.0; 3]], &mut workspace));
    assert!(ragged.contains("the length of parameters[1] is 3; expected 2"), "{ragged}");
    let nowhere: [[f32; 1]; 0] = [];
    assert!(Gram::of_slice(&nowhere, &mut workspace).is_err());

    let svgd = Svgd { lengthscale: Lengthscale::Fixed(0.0), ..Svgd::default() };
    let gram = Gram::of_slice(&[[0.0_f32], [1.0]], &mut workspace).unwrap();
    assert!(svgd.forces(&gram).unwrap_err().to_string().contains("lengthscale is 0; expected"));
    let lost = Gram::of_slice(&[[f32::NAN], [1.0]], &mut workspace).unwrap();
    assert!(Svgd::default().forces(&lost).unwrap_err().to_string().contains("gram[0] is NaN"));

    let forces = Svgd::default().forces(&gram).unwrap();
    let mut gradients = [[7.0_f32, 7.0], [7.0, 7.0]];
    assert!(forces.apply(&[[0.0_f32], [1.0]], &mut gradients, &mut workspace).is_err());
    assert_eq!(gradients, [[7.0; 2]; 2]);
    let mut flow = Flow::<f32>::new(Svgd::default(), Rule::sgd(0.1), 2, 1).unwrap();
    assert!(flow.step(&mut [[0.0]], &mut [[0.0]]).is_err());
    assert!(flow.step(&mut [[f32::INFINITY], [0.0]], &mut [[0.0], [0.0]]).is_err());
}
