//! What a posterior knows that a single network does not: on handwritten digits, and on a curve.
//!
//! ```text
//! cargo run --release -p sheave-posterior --example posteriors -- [--quick] [--seeds N] [--svg FILE]
//! ```
//!
//! Prints accuracy, negative log likelihood, calibration error and Brier score of single networks, an ensemble,
//! multi-SWAG and Stein variational gradient descent on digits that none of them has seen: means over `--seeds`, 1 by
//! default. Then an ensemble whose members predict their own noise learns a curve with a gap in its data: `--svg` draws
//! what it is sure of. `--quick` takes a few seconds without optimisation. Members live on all processes of a job:
//! `sheave launch -n 2 -- …`.
#![expect(clippy::print_stdout, reason = "a program of its own")]

use std::fmt::Write;
use std::path::PathBuf;

use sheave_base::config::Endpoint;
use sheave_base::{Error, ErrorKind, Result};
use sheave_bayes::prior::Normal;
use sheave_bayes::random::Generator;
use sheave_mesh::{Config, Expected, Mesh, Role};
use sheave_nn::{Activation, Dataset, Digits, Loss, Network, Targets, mlp, mlp_with};
use sheave_optim::Rule;
use sheave_particle::Particles;
use sheave_posterior::{
    Batches, Ensemble, EnsembleSettings, Inference, MultiSwag, MultiSwagSettings, Prediction, Scores, SteinVgd,
    SteinVgdSettings,
};

/// The largest input of the curve that is drawn, and its data's.
const REACH: f32 = 6.0;

/// The learning rate on the digits.
const RATE: f64 = 0.01;

struct Settings {
    members: usize,
    epochs: usize,
    /// Posteriors of the digits of this many seeds.
    seeds: u64,
    /// Epochs of the curve.
    curve_epochs: usize,
    svg: Option<PathBuf>,
}

impl Settings {
    fn read() -> Result<Self> {
        let mut settings = Self { members: 8, epochs: 40, seeds: 1, curve_epochs: 600, svg: None };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--quick" => settings = Self { members: 5, epochs: 20, curve_epochs: 150, ..settings },
                "--svg" => settings.svg = Some(arguments.next().ok_or_else(|| usage("--svg without a file"))?.into()),
                "--seeds" => {
                    let seeds = arguments.next().and_then(|text| text.parse().ok()).filter(|seeds| *seeds > 0);
                    settings.seeds = seeds.ok_or_else(|| usage("--seeds without a number above zero"))?;
                }
                _ => return Err(usage(&argument)),
            }
        }
        Ok(settings)
    }
}

fn usage(found: &str) -> Error {
    let what = format!("{found}; expected --quick, --seeds and a number, or --svg and a file");
    Error::new(ErrorKind::InvalidArgument, what)
}

fn main() -> Result<()> {
    let settings = Settings::read()?;
    let mesh = Mesh::join(match Config::from_env()? {
        Some(config) => config,
        None => {
            let root = Endpoint { host: "127.0.0.1".into(), port: sheave_base::port::free()? };
            Config::new(Role::Rank, Some(0), Expected::ranks(1), root)
        }
    })?;
    let particles = Particles::new(&mesh, "particles")?;
    // Each process has the data; they are not sent.
    let digits = Digits::embedded()?;
    let network = Network::new(mlp(&[64, 32, 10])?, 64, Loss::CrossEntropy)?;
    let digits_of = Inference::new(&particles, "digits", network, digits.training().dataset()?)?;
    let network = Network::new(mlp_with(&[1, 32, 32, 2], Activation::Tanh)?, 1, Loss::GaussianHead)?;
    let curve_of = Inference::new(&particles, "curve", network, curve(160)?)?;
    mesh.world().barrier()?;
    if mesh.me().rank.0 == 0 {
        let nodes: Vec<_> = mesh.members().iter().map(|member| member.node).collect();
        classify(&digits_of.on(&nodes)?, &digits.held_out().dataset()?, &settings)?;
        regress(&curve_of.on(&nodes)?, &settings)?;
    }
    mesh.world().barrier()?;
    mesh.finish()
}

fn classify(inference: &Inference, held_out: &Dataset, settings: &Settings) -> Result<()> {
    let members = settings.members;
    println!("digits: {} to learn from, {} held out", inference.data().rows(), held_out.rows());
    println!("{:<28} {:>9} {:>8} {:>8} {:>8}", "", "accuracy", "nll", "ece", "brier");
    let of_seeds = (1..=settings.seeds).map(|seed| of_seed(inference, held_out, settings, seed));
    let of_seeds = of_seeds.collect::<Result<Vec<_>>>()?;
    let names = [
        format!("single network, mean of {members}"),
        format!("ensemble of {members}"),
        format!("multi-swag, {members} × 8 samples"),
        format!("svgd of {members}"),
    ];
    for (place, name) in names.iter().enumerate() {
        let scores: Vec<Scores> = of_seeds.iter().map(|seed| seed[place]).collect();
        let Scores { accuracy, nll, calibration_error, brier } = mean(&scores);
        println!("{name:<28} {:>7.2} % {nll:>8.4} {calibration_error:>8.4} {brier:>8.4}", 100.0 * accuracy);
    }
    let is_better = |posterior: usize| {
        let better = |seed: &&[Scores; 4]| {
            let (one, other) = (seed[posterior], seed[0]);
            one.nll < other.nll && one.brier < other.brier && one.calibration_error < other.calibration_error
        };
        of_seeds.iter().filter(better).count()
    };
    if settings.seeds > 1 {
        println!(
            "with how many of {} seeds each is better than single networks in nll, ece and brier:",
            settings.seeds
        );
        println!("ensemble {}, multi-swag {}, svgd {}", is_better(1), is_better(2), is_better(3));
    }
    Ok(())
}

/// Scores of single networks, an ensemble, multi-SWAG and Stein variational gradient descent.
fn of_seed(inference: &Inference, held_out: &Dataset, settings: &Settings, seed: u64) -> Result<[Scores; 4]> {
    let Settings { members, epochs, .. } = *settings;
    let (inputs, labels) = (held_out.inputs(), held_out.labels());
    let shared =
        EnsembleSettings { batches: Batches::Own, seed, ..EnsembleSettings::new(members, 50, Rule::adam(RATE)) };

    let ensemble = Ensemble::new(inference, &shared.clone())?;
    ensemble.fit(epochs, |_| ())?;
    let ensemble = ensemble.predict(inputs)?;

    let swag = MultiSwag::new(inference, &MultiSwagSettings { ensemble: shared, learning_rate: RATE, rank: 20 })?;
    swag.fit(epochs - epochs / 3, |_| ())?;
    swag.collect(epochs / 3, |_| ())?;
    let swag = swag.predict(inputs, 8)?;

    let prior = Some(Normal { mean: 0.0, deviation: 1.0 });
    let svgd = SteinVgdSettings { prior, seed, ..SteinVgdSettings::new(members, 50, Rule::adam(RATE)) };
    let svgd = SteinVgd::new(inference, &svgd)?;
    svgd.fit(epochs, |_| ())?;
    let svgd = svgd.predict(inputs)?;
    Ok([mean(&alone(&ensemble, &labels)?), ensemble.scores(&labels)?, swag.scores(&labels)?, svgd.scores(&labels)?])
}

/// The scores of each sample by itself.
fn alone(prediction: &Prediction, labels: &[usize]) -> Result<Vec<Scores>> {
    let of = |sample: &Vec<f32>| {
        let mut probabilities: Vec<f64> = sample.iter().map(|logit| f64::from(*logit)).collect();
        sheave_bayes::predict::log_softmax(&mut probabilities, 10)?;
        probabilities.iter_mut().for_each(|value| *value = value.exp());
        Scores::of(&probabilities, 10, labels)
    };
    prediction.samples().iter().map(of).collect()
}

fn mean(scores: &[Scores]) -> Scores {
    let of = |field: fn(&Scores) -> f64| scores.iter().map(field).sum::<f64>() / scores.len() as f64;
    Scores {
        accuracy: of(|scores| scores.accuracy),
        nll: of(|scores| scores.nll),
        calibration_error: of(|scores| scores.calibration_error),
        brier: of(|scores| scores.brier),
    }
}

/// A wave with noise that grows, and no data in the middle.
fn curve(rows: usize) -> Result<Dataset> {
    let mut generator = Generator::new(2);
    let mut inputs = Vec::new();
    while inputs.len() < rows {
        let input = (8.0 * generator.uniform() - 4.0) as f32;
        if !(-0.5..1.5).contains(&input) {
            inputs.push(input);
        }
    }
    let noisy = |x: &f32| (1.5 * x).sin() + (0.05 + 0.05 * (x + 4.0)) * generator.normal() as f32;
    let targets = inputs.iter().map(noisy).collect();
    Dataset::new(inputs, 1, Targets::Values(targets))
}

fn regress(inference: &Inference, settings: &Settings) -> Result<()> {
    let rule = Rule::adam(0.005);
    let ensemble = EnsembleSettings { batches: Batches::Own, ..EnsembleSettings::new(settings.members, 40, rule) };
    let ensemble = Ensemble::new(inference, &ensemble)?;
    let losses = ensemble.fit(settings.curve_epochs, |_| ())?;
    let inputs: Vec<f32> = (-100..=100).map(|step| step as f32 / 100.0 * REACH).collect();
    let prediction = ensemble.predict(&inputs)?;
    let bands = Bands::new(&inputs, &prediction)?;
    println!(
        "\na curve of {} data, nll {:.3}:",
        inference.data().rows(),
        losses.iter().sum::<f64>() / losses.len() as f64
    );
    println!("{:<28} {:>8} {:>16} {:>16}", "", "mean", "noise and model", "model alone");
    for (name, x) in
        [("quiet data, at -3", -3.0), ("noisy data, at 3", 3.0), ("the gap, at 0.5", 0.5), ("beyond, at 6", 6.0)]
    {
        let place = inputs.partition_point(|input| *input < x - 0.01);
        let (mean, total, model) = (bands.means[place], bands.totals[place], bands.models[place]);
        println!("{name:<28} {mean:>8.3} {:>16} {:>16}", format!("± {total:.3}"), format!("± {model:.3}"));
    }
    if let Some(path) = &settings.svg {
        std::fs::write(path, bands.draw(inference.data()))
            .map_err(|error| Error::new(ErrorKind::Io, format!("cannot write {}: {error}", path.display())))?;
        println!("drawn in {}", path.display());
    }
    Ok(())
}

/// What an ensemble says about each input.
struct Bands {
    inputs: Vec<f32>,
    means: Vec<f64>,
    /// Deviations of what is measured: the noise and what the members do not know.
    totals: Vec<f64>,
    /// Deviations of the members' means.
    models: Vec<f64>,
}

impl Bands {
    fn new(inputs: &[f32], prediction: &Prediction) -> Result<Self> {
        let (means, variances) = prediction.normal()?;
        let of_members: Vec<Vec<f64>> = prediction
            .samples()
            .iter()
            .map(|sample| sample.chunks_exact(2).map(|row| f64::from(row[0])).collect())
            .collect();
        let mut models = vec![0.0; inputs.len()];
        sheave_bayes::predict::deviation(&of_members, &mut models)?;
        let totals = variances.iter().map(|variance| variance.sqrt()).collect();
        Ok(Self { inputs: inputs.to_vec(), means, totals, models })
    }

    /// Draws two deviations to either side, and the data.
    fn draw(&self, data: &Dataset) -> String {
        let x = |input: f32| f64::from(input / REACH) * 380.0 + 400.0;
        let y = |output: f64| 200.0 - output.clamp(-5.0, 5.0) * 40.0;
        let band = |deviations: &[f64], color: &str| {
            let at = |place: usize, sign: f64| {
                format!("{:.1},{:.1}", x(self.inputs[place]), y(self.means[place] + sign * 2.0 * deviations[place]))
            };
            let upper = (0..self.inputs.len()).map(|place| at(place, 1.0));
            let lower = (0..self.inputs.len()).rev().map(|place| at(place, -1.0));
            let points: Vec<String> = upper.chain(lower).collect();
            format!("<polygon points=\"{}\" fill=\"{color}\"/>\n", points.join(" "))
        };
        let mut svg = String::from("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 400\">\n");
        svg.push_str("<rect width=\"800\" height=\"400\" fill=\"white\"/>\n");
        svg.push_str(&band(&self.totals, "#d6e4f5"));
        svg.push_str(&band(&self.models, "#9dbfe6"));
        let places = self.inputs.iter().zip(&self.means);
        let line: Vec<String> = places.map(|(input, mean)| format!("{:.1},{:.1}", x(*input), y(*mean))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"#1f4e8c\" stroke-width=\"2\"/>",
            line.join(" ")
        );
        if let Targets::Values(targets) = data.targets() {
            for (input, target) in data.inputs().iter().zip(targets) {
                let (x, y) = (x(*input), y(f64::from(*target)));
                let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"#333333\"/>");
            }
        }
        svg.push_str("</svg>\n");
        svg
    }
}
