//! Ensembles, SWAG, dropout and last layers: against trainings without particles, and against formulas.

use crate::common::{NOISE, alone, bits, digits, exact, failed, inference, line};
use sheave_base::ErrorKind;
use sheave_bayes::random::Generator;
use sheave_bayes::swag::Swag;
use sheave_nn::{Dataset, Loss, Mode, Network, Targets, mlp};
use sheave_optim::{Decay, Optimizer, Rule, Sgd};
use sheave_particle::Message;
use sheave_posterior::{
    Batches, Ensemble, EnsembleSettings, LastLayerLaplace, MonteCarloDropout, MultiSwag, MultiSwagSettings, Order,
    Scores, Seeds,
};
use sheave_tensor::Tensor;
use sheave_wire::Value;

const SEED: u64 = 11;

fn optimizer() -> Optimizer {
    let decay = Decay::Step { every: 5, factor: 0.5, floor: 0.0 };
    Optimizer { schedule: decay.into(), ..Rule::adam(0.01).into() }
}

/// A member by itself, without particles: parameters after some steps, and the last loss.
fn trained(network: &Network, data: &Dataset, batches: Batches, member: u64, steps: usize) -> (Vec<f32>, Vec<f64>) {
    let seeds = Seeds::of(SEED, member);
    let order = if batches == Batches::Shared { Seeds::shared_order(SEED) } else { seeds.order };
    let mut order = Order::new(data.rows(), 32, order, batches == Batches::Bootstrap).unwrap();
    let (mut parameters, mut dropout) = (network.start(seeds.start), Generator::new(seeds.dropout));
    let mut gradient = vec![0.0; network.dimension()];
    let mut state = optimizer().rule.state(network.dimension());
    let losses = (0..steps).map(|_| {
        let batch = data.batch(order.next_batch()).unwrap();
        let mode = Mode::train(&mut dropout);
        let loss = network.value_and_gradient(&parameters, &batch, mode, &mut gradient).unwrap();
        optimizer().at(state.steps()).step(&mut state, &mut parameters, &gradient).unwrap();
        loss
    });
    let losses = losses.collect();
    (parameters, losses)
}

#[test]
fn members_have_the_bits_of_trainings_alone() {
    alone(|_, particles| {
        let (network, data) = digits();
        let inference = inference(particles, digits());
        for batches in [Batches::Shared, Batches::Own, Batches::Bootstrap] {
            let settings = EnsembleSettings { batches, seed: SEED, ..EnsembleSettings::new(5, 32, optimizer()) };
            let ensemble = Ensemble::new(&inference, &settings).unwrap();
            let mut seen = Vec::new();
            let last = ensemble.fit(3, |progress| seen.push((progress.epoch, progress.losses.to_vec()))).unwrap();
            assert_eq!((seen.len(), seen[2].0, &seen[2].1), (3, 3, &last));
            let parameters = ensemble.parameters().unwrap();
            for (member, parameters) in parameters.iter().enumerate() {
                // 150 rows have 4 batches of 32.
                let (alone, losses) = trained(&network, &data, batches, member as u64, 12);
                assert_eq!(bits(&[alone]), bits(std::slice::from_ref(parameters)), "{batches:?} {member}");
                assert_eq!(losses[8..].iter().sum::<f64>() / 4.0, last[member], "{batches:?} {member}");
            }
            // Predictions change nothing.
            let inputs = &data.inputs()[..640];
            let first = ensemble.predict(inputs).unwrap();
            assert_eq!(bits(first.samples()), bits(ensemble.predict(inputs).unwrap().samples()));
            assert_eq!(bits(&parameters), bits(&ensemble.parameters().unwrap()));
            ensemble.fit(1, |_| ()).unwrap();
            let (alone, _) = trained(&network, &data, batches, 4, 16);
            assert_eq!(bits(&[alone]), bits(&ensemble.parameters().unwrap()[4..]));
        }
        assert_eq!(particles.ids(), [], "members are gone with their ensemble");
    });
}

#[test]
fn probabilities_are_averaged() {
    alone(|_, particles| {
        let (network, data) = digits();
        let ensemble =
            Ensemble::new(&inference(particles, digits()), &EnsembleSettings::new(3, 50, Rule::adam(0.01))).unwrap();
        ensemble.fit(20, |_| ()).unwrap();
        let prediction = ensemble.predict(data.inputs()).unwrap();
        let probabilities = prediction.probabilities().unwrap();
        let parameters = ensemble.parameters().unwrap();
        let mut mean = vec![0.0; probabilities.len()];
        for member in &parameters {
            let mut outputs = Vec::new();
            network.outputs(member, data.inputs(), Mode::Evaluate, &mut outputs).unwrap();
            for (row, outputs) in mean.chunks_exact_mut(10).zip(outputs.chunks_exact(10)) {
                let sum: f64 = outputs.iter().map(|output| f64::from(*output).exp()).sum();
                row.iter_mut().zip(outputs).for_each(|(mean, output)| *mean += f64::from(*output).exp() / sum / 3.0);
            }
        }
        for (probability, mean) in probabilities.iter().zip(&mean) {
            assert!((probability - mean).abs() < 1e-9, "{probability} is not {mean}");
        }
        let (scores, of_mean) =
            (prediction.scores(&data.labels()).unwrap(), Scores::of(&mean, 10, &data.labels()).unwrap());
        assert!((scores.nll - of_mean.nll).abs() < 1e-9 && scores.accuracy == of_mean.accuracy);
        assert!(scores.accuracy > 0.8, "{scores:?}");
        assert_eq!(failed(prediction.normal()).kind(), ErrorKind::Unsupported);
    });
}

#[test]
fn swag_is_the_gaussian_of_the_snapshots() {
    alone(|_, particles| {
        let (network, data) = digits();
        let ensemble = EnsembleSettings { seed: SEED, ..EnsembleSettings::new(2, 32, optimizer()) };
        let settings = MultiSwagSettings { ensemble, learning_rate: 0.005, rank: 3 };
        let swag = MultiSwag::new(&inference(particles, digits()), &settings).unwrap();
        let error = failed(swag.predict(data.inputs(), 1));
        assert!(error.to_string().contains("the number of snapshots is 0"), "{error}");
        swag.fit(1, |_| ()).unwrap();
        assert_eq!(swag.parameters().unwrap()[1], trained(&network, &data, Batches::Shared, 1, 4).0);
        let mut gaussians = vec![Swag::<f32>::new(network.dimension(), 3); 2];
        let mut epochs = Vec::new();
        for _ in 0..5 {
            swag.collect(1, |progress| epochs.push(progress.epoch)).unwrap();
            let parameters = swag.parameters().unwrap();
            gaussians.iter_mut().zip(&parameters).for_each(|(gaussian, member)| gaussian.collect(member).unwrap());
        }
        let before = swag.parameters().unwrap();
        let (inputs, samples) = (&data.inputs()[..640], 4);
        let prediction = swag.predict(inputs, samples).unwrap();
        assert_eq!(prediction.samples().len(), 8);
        for (member, gaussian) in gaussians.iter().enumerate() {
            let mut generator = Generator::new(Seeds::of(SEED, member as u64).prediction);
            for sample in 0..samples {
                let (mut drawn, mut outputs) = (vec![0.0; network.dimension()], Vec::new());
                gaussian.sample(0.5, &mut generator, &mut drawn).unwrap();
                network.outputs(&drawn, inputs, Mode::Evaluate, &mut outputs).unwrap();
                assert_eq!(bits(&[outputs]), bits(&prediction.samples()[member * samples + sample..][..1]));
            }
        }
        assert_eq!(bits(&before), bits(&swag.parameters().unwrap()), "weights are what they were");
        let means = swag.predict_at(inputs, 2, 0.0).unwrap();
        assert_eq!(means.samples()[0], means.samples()[1]);
    });
}

#[test]
fn dropout_is_another_network_each_time() {
    alone(|_, particles| {
        let (_, data) = digits();
        let settings = || EnsembleSettings::new(2, 32, optimizer());
        let inference = inference(particles, digits());
        let (dropout, quiet) = (
            MonteCarloDropout::new(&inference, &settings()).unwrap(),
            MonteCarloDropout::new(&inference, &settings()).unwrap(),
        );
        dropout.fit(3, |_| ()).unwrap();
        let prediction = dropout.predict(data.inputs(), 6).unwrap();
        let mut distinct = bits(prediction.samples());
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 12);
        assert!(prediction.scores(&data.labels()).unwrap().accuracy > 0.2);
        // Who predicts in between is trained as who does not.
        dropout.fit(2, |_| ()).unwrap();
        quiet.fit(5, |_| ()).unwrap();
        assert_eq!(bits(&dropout.parameters().unwrap()), bits(&quiet.parameters().unwrap()));

        let (network, data) = line(20);
        let without = sheave_posterior::Inference::new(particles, "line", network, data).unwrap();
        let without = MonteCarloDropout::new(&without, &EnsembleSettings::new(1, 20, Rule::adam(0.1))).unwrap();
        let error = failed(without.predict(&[0.0], 2));
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("Dropout"), "{error}");
    });
}

/// Of a line the last layer is the whole network, so that its posterior is exact where the noise is known.
#[test]
fn a_last_layer_of_a_line_is_its_posterior() {
    alone(|_, particles| {
        let (_, data) = line(200);
        let settings = EnsembleSettings::new(1, 200, Rule::adam(0.05));
        let laplace = LastLayerLaplace::new(&inference(particles, line(200)), &settings).unwrap();
        let error = failed(laplace.normal(&[0.0]));
        assert!(error.to_string().contains("fit before predictions"), "{error}");
        laplace.fit(5, |_| ()).unwrap();
        let layers = laplace.fit_last_layer().unwrap();
        assert!(layers[0].prior_precision > 0.0 && layers[0].log_evidence.is_finite());
        let ([slope, intercept], [of_slope, of_intercept, covariance]) = exact(&data);
        let inputs = [-2.0, 0.0, 0.5, 3.0];
        let (mean, variance) = laplace.normal(&inputs).unwrap();
        for (place, x) in inputs.iter().map(|input| f64::from(*input)).enumerate() {
            let exact_mean = slope * x + intercept;
            let exact_variance = NOISE * NOISE + of_slope * x * x + of_intercept + 2.0 * covariance * x;
            // Prior and noise are estimated, from 200 data.
            assert!((mean[place] - exact_mean).abs() < 0.03, "{} is not {exact_mean}", mean[place]);
            assert!(
                (variance[place] / exact_variance - 1.0).abs() < 0.3,
                "{} is not {exact_variance}",
                variance[place]
            );
        }
        assert_eq!(failed(laplace.probabilities(&inputs)).kind(), ErrorKind::Unsupported);
        laplace.fit(1, |_| ()).unwrap();
        assert!(failed(laplace.normal(&inputs)).to_string().contains("have changed since"));
    });
}

#[test]
fn a_last_layer_of_classes_is_less_sure_where_there_are_no_data() {
    alone(|_, particles| {
        let (_, data) = digits();
        let settings = EnsembleSettings::new(2, 50, Rule::adam(0.01));
        let laplace = LastLayerLaplace::new(&inference(particles, digits()), &settings).unwrap();
        laplace.fit(20, |_| ()).unwrap();
        laplace.fit_last_layer().unwrap();
        let scores = |inputs: &[f32]| laplace.probabilities(inputs).unwrap();
        let here = Scores::of(&scores(data.inputs()), 10, &data.labels()).unwrap();
        assert!(here.accuracy > 0.8, "{here:?}");
        let largest = |probabilities: &[f64]| {
            let rows = probabilities.chunks_exact(10).map(|row| row.iter().copied().fold(0.0, f64::max));
            rows.sum::<f64>() / (probabilities.len() / 10) as f64
        };
        // Far away a network by itself is surer than anywhere; the posterior is not sure of itself.
        let far: Vec<f32> = data.inputs().iter().map(|input| 20.0 * input).collect();
        let members =
            Ensemble::new(&inference(particles, digits()), &EnsembleSettings::new(1, 50, Rule::adam(0.01))).unwrap();
        members.fit(20, |_| ()).unwrap();
        let plain = members.predict(&far).unwrap().probabilities().unwrap();
        assert!(largest(&scores(&far)) < largest(&plain) - 0.01, "{} {}", largest(&scores(&far)), largest(&plain));
        assert_eq!(failed(laplace.normal(&far)).kind(), ErrorKind::Unsupported);
    });
}

/// A network that predicts its noise finds a noise that depends on the input.
#[test]
fn heads_find_the_noise() {
    alone(|_, particles| {
        let mut generator = Generator::new(5);
        let inputs: Vec<f32> = (0..400).map(|row| if row % 2 == 0 { -1.0 } else { 1.0 }).collect();
        let targets = inputs.iter().map(|x| ((if *x < 0.0 { 0.1 } else { 1.0 }) * generator.normal()) as f32).collect();
        let data = Dataset::new(inputs, 1, Targets::Values(targets)).unwrap();
        let network = Network::new(mlp(&[1, 16, 2]).unwrap(), 1, Loss::GaussianHead).unwrap();
        let ensemble =
            Ensemble::new(&inference(particles, (network, data)), &EnsembleSettings::new(2, 100, Rule::adam(0.01)));
        let ensemble = ensemble.unwrap();
        ensemble.fit(100, |_| ()).unwrap();
        let (mean, variance) = ensemble.predict(&[-1.0, 1.0]).unwrap().normal().unwrap();
        assert!(mean[0].abs() < 0.1 && mean[1].abs() < 0.3, "{mean:?}");
        assert!((0.05..0.2).contains(&variance[0].sqrt()) && (0.8..1.2).contains(&variance[1].sqrt()), "{variance:?}");
    });
}

#[test]
fn refusals() {
    alone(|_, particles| {
        let inference = inference(particles, digits());
        let refused = |settings: EnsembleSettings, expected: &str| {
            let error = failed(Ensemble::new(&inference, &settings));
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        };
        refused(EnsembleSettings::new(0, 10, Rule::sgd(0.1)), "members is 0; expected 1 to");
        refused(EnsembleSettings::new(1, 0, Rule::sgd(0.1)), "batch_rows is 0; expected 1 to 150");
        refused(EnsembleSettings::new(1, 151, Rule::sgd(0.1)), "batch_rows is 151; expected 1 to 150");
        refused(EnsembleSettings::new(1, 10, Rule::sgd(-1.0)), "learning rate");
        let swag = MultiSwagSettings {
            ensemble: EnsembleSettings::new(1, 10, Rule::sgd(0.1)),
            learning_rate: 0.1,
            rank: 1025,
        };
        assert!(failed(MultiSwag::new(&inference, &swag)).to_string().contains("rank is 1025; expected 0 to 1024"));
        assert!(failed(inference.on(&[])).to_string().contains("the number of nodes is 0"));
        let wild = Rule::Sgd(Sgd { learning_rate: 1e30, ..Sgd::default() });
        let ensemble = Ensemble::new(&inference, &EnsembleSettings::new(2, 10, wild)).unwrap();
        let error = failed(ensemble.fit(5, |_| ()));
        assert!(error.to_string().contains("the loss of member") && error.to_string().contains("hint: "), "{error}");
        let error = failed(ensemble.predict(&[0.0; 63]));
        assert!(error.to_string().contains("inputs is 63; expected a multiple of 64"), "{error}");
        assert_eq!(failed(ensemble.predict(&[])).kind(), ErrorKind::InvalidArgument);

        // Messages of others.
        let id = ensemble.ids()[0];
        let vector = Message::default().tensor(Tensor::from_slice(&[0.0_f32; 3], [3]).unwrap());
        let draw = Message::of(Value::List(vec!["swag".into(), Value::Int(-1), 0.5.into()]))
            .tensor(Tensor::from_slice(&[0.0_f32; 64], [1, 64]).unwrap());
        let cases: [(&str, Message, &str); 6] = [
            ("set", vector.clone(), "the length of parameters is 3"),
            ("set", Message::default(), "the number of tensors is 0"),
            ("train", Message::of("many"), "a string; expected a whole number"),
            ("follow", vector, "no message to a member that an optimizer moves"),
            ("predict", draw, "a int; expected a whole number that is not negative"),
            ("learning rate", Message::of(-1.0), "learning rate"),
        ];
        for (name, message, expected) in cases {
            let error = failed(particles.send(id, name, message).wait());
            assert!(error.to_string().contains(expected), "{name}: {error}");
        }
    });
}
