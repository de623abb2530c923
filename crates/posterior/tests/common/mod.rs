//! What tests of posteriors share.

#![allow(dead_code, unused_imports, reason = "each test binary uses its part")]

#[path = "../../../mesh/tests/common/mod.rs"]
mod mesh;

pub(crate) use mesh::*;
use sheave_base::config::Transport;
use sheave_bayes::random::Generator;
use sheave_mesh::{Expected, Mesh};
use sheave_nn::{Activation, Dataset, Dense, Digits, Dropout, Loss, Network, Sequential, Targets, mlp};
use sheave_particle::Particles;
use sheave_posterior::Inference;

/// Runs `act` on a mesh of one node.
pub(crate) fn alone(act: impl Fn(&Mesh, &Particles) + Clone + Send + 'static) {
    together(Expected::ranks(1), Transport::Auto, move |mesh| {
        let particles = Particles::new(&mesh, "test").expect("once");
        act(&mesh, &particles);
        mesh.finish().expect("all end");
    });
}

/// The first digits, and a small network that drops units.
pub(crate) fn digits() -> (Network, Dataset) {
    let data = Digits::embedded().expect("they are").training().dataset().expect("there are some");
    let network = Sequential::new()
        .with(Dense::new(64, 16).expect("widths"))
        .with(Activation::Relu)
        .with(Dropout::new(0.1).expect("a rate"))
        .with(Dense::new(16, 10).expect("widths"));
    let network = Network::new(network, 64, Loss::CrossEntropy).expect("it fits");
    (network, data.batch(&(0..150).collect::<Vec<_>>()).expect("so many"))
}

/// The deviation of the noise of [`line`].
pub(crate) const NOISE: f64 = 0.5;

/// Points about a line, and a network that is a line: its posterior is a normal distribution.
pub(crate) fn line(rows: usize) -> (Network, Dataset) {
    let mut generator = Generator::new(3);
    let inputs: Vec<f32> = (0..rows).map(|row| row as f32 / rows as f32 * 2.0 - 1.0).collect();
    let targets = inputs.iter().map(|x| 1.5 * x - 0.5 + (NOISE * generator.normal()) as f32).collect();
    let network = Network::new(mlp(&[1, 1]).expect("widths"), 1, Loss::Gaussian { deviation: NOISE });
    (network.expect("it fits"), Dataset::new(inputs, 1, Targets::Values(targets)).expect("as many"))
}

/// The exact posterior of a line's slope and intercept under a standard normal prior: their means, and the variances of
/// both and their covariance.
pub(crate) fn exact(data: &Dataset) -> ([f64; 2], [f64; 3]) {
    let Targets::Values(targets) = data.targets() else { panic!("numbers") };
    let precision = 1.0 / (NOISE * NOISE);
    let (mut a, mut b, mut c, mut u, mut v) = (1.0, 0.0, 1.0, 0.0, 0.0);
    for (x, y) in data.inputs().iter().zip(targets) {
        let (x, y) = (f64::from(*x), f64::from(*y));
        (a, b, c) = (a + precision * x * x, b + precision * x, c + precision);
        (u, v) = (u + precision * x * y, v + precision * y);
    }
    let determinant = a * c - b * b;
    let (aa, bb, ab) = (c / determinant, a / determinant, -b / determinant);
    ([aa * u + ab * v, ab * u + bb * v], [aa, bb, ab])
}

pub(crate) fn bits(vectors: &[Vec<f32>]) -> Vec<Vec<u32>> {
    vectors.iter().map(|vector| vector.iter().map(|value| value.to_bits()).collect()).collect()
}

pub(crate) fn inference(particles: &Particles, (network, data): (Network, Dataset)) -> Inference {
    Inference::new(particles, "test", network, data).expect("it fits")
}
