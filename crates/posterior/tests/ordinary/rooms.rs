//! Members that have to share the room of their node: the same bits however little there is.

use crate::common::{alone, bits, digits, failed, line, until};
use sheave_base::ErrorKind;
use sheave_bayes::langevin::{Cyclical, Sghmc, Sgld};
use sheave_nn::{Activation, BatchNorm, Dataset, Dense, Loss, Mode, Network, Sequential};
use sheave_optim::Rule;
use sheave_particle::{CacheOptions, CacheStatistics, Message, Particles, Policy};
use sheave_posterior::{
    Batches, Ensemble, EnsembleSettings, Inference, Langevin, LangevinSettings, LastLayerLaplace, MonteCarloDropout,
    MultiSwag, MultiSwagSettings, Sampler, SteinVgd, SteinVgdSettings,
};

const MEMBERS: usize = 4;

/// All rooms for some of the members, up to one for all.
fn rooms() -> impl Iterator<Item = CacheOptions> {
    [Policy::Lru, Policy::Direct].into_iter().flat_map(|policy| (1..=MEMBERS).map(move |size| room(size, policy)))
}

fn room(size: usize, policy: Policy) -> CacheOptions {
    CacheOptions { device: "test".into(), particles: Some(size), policy, ..CacheOptions::default() }
}

fn within(particles: &Particles, (network, data): (Network, Dataset), room: CacheOptions) -> Inference {
    Inference::within(particles, "test", network, data, room).unwrap()
}

fn settings() -> EnsembleSettings {
    EnsembleSettings { batches: Batches::Own, seed: 4, ..EnsembleSettings::new(MEMBERS, 50, Rule::adam(0.01)) }
}

/// What `act` makes of an inference is the same in all rooms, and members are parked where they have to be.
fn same_in_all_rooms(
    problem: impl Fn() -> (Network, Dataset) + Clone + Send + 'static,
    act: impl Fn(&Inference) -> Vec<Vec<u32>> + Clone + Send + 'static,
) {
    alone(move |_, particles| {
        let unbounded = within(particles, problem(), CacheOptions::default());
        let expected = act(&unbounded);
        assert_eq!(unbounded.room().evictions, 0);
        for room in rooms() {
            let size = room.particles.unwrap();
            let name = format!("{size} of {:?}", room.policy);
            let inference = within(particles, problem(), room);
            assert!(act(&inference) == expected, "{name}");
            // The thread that has handled its last message may be the last one to let a member go.
            until("members are forgotten", || inference.room().known == 0);
            let CacheStatistics { evictions, failures, resident, .. } = inference.room();
            assert_eq!((failures, resident), (0, 0), "{name}");
            assert_eq!(evictions > 0, size < MEMBERS, "{name}: {evictions}");
        }
    });
}

#[test]
fn ensembles() {
    same_in_all_rooms(digits, |inference| {
        let ensemble = Ensemble::new(inference, &settings()).unwrap();
        ensemble.fit(3, |_| ()).unwrap();
        let samples = ensemble.predict(&inference.data().inputs()[..640]).unwrap();
        [bits(samples.samples()), bits(&ensemble.parameters().unwrap())].concat()
    });
}

/// With running means, which are part of what is parked.
fn normalised() -> (Network, Dataset) {
    let (_, data) = digits();
    let module = Sequential::new()
        .with(Dense::new(64, 12).unwrap())
        .with(BatchNorm::new(12).unwrap())
        .with(Activation::Relu)
        .with(Dense::new(12, 10).unwrap());
    (Network::new(module, 64, Loss::CrossEntropy).unwrap(), data)
}

#[test]
fn samples_of_snapshots() {
    same_in_all_rooms(normalised, |inference| {
        let settings = MultiSwagSettings { ensemble: settings(), learning_rate: 0.01, rank: 2 };
        let swag = MultiSwag::new(inference, &settings).unwrap();
        swag.fit(1, |_| ()).unwrap();
        swag.collect(3, |_| ()).unwrap();
        let samples = swag.predict(&inference.data().inputs()[..640], 2).unwrap();
        [bits(samples.samples()), bits(&swag.parameters().unwrap())].concat()
    });
}

#[test]
fn descents() {
    same_in_all_rooms(digits, |inference| {
        let svgd = SteinVgd::new(inference, &SteinVgdSettings::new(MEMBERS, 50, Rule::adam(0.01))).unwrap();
        svgd.fit(2, |_| ()).unwrap();
        let samples = svgd.predict(&inference.data().inputs()[..640]).unwrap();
        [bits(samples.samples()), bits(&svgd.parameters().unwrap())].concat()
    });
}

/// Noise, velocities and samples of chains go with them.
#[test]
fn chains() {
    let sgld = Sampler::Sgld(Sgld { step_size: 0.002, temperature: 1.0 });
    let sghmc = Sampler::Sghmc(Sghmc { step_size: 0.0004, friction: 0.2, noise: 0.0, temperature: 1.0 });
    let cyclical = Cyclical { step_size: 0.004, steps: 16, cycles: 2, exploration: 0.5 };
    for sampler in [sgld, sghmc, Sampler::Cyclical(cyclical)] {
        let settings =
            LangevinSettings { burn_in: 3, thin: 2, capacity: 3, ..LangevinSettings::new(MEMBERS, 10, sampler) };
        same_in_all_rooms(
            || line(40),
            move |inference| {
                let langevin = Langevin::new(inference, &settings).unwrap();
                langevin.fit(4, |_| ()).unwrap();
                let samples = langevin.predict(&[-1.0, 0.5]).unwrap();
                [bits(samples.samples()), bits(&langevin.parameters().unwrap())].concat()
            },
        );
    }
}

/// Each prediction goes on with the generator where the one before has left it.
#[test]
fn dropped_units() {
    same_in_all_rooms(digits, |inference| {
        let dropout = MonteCarloDropout::new(inference, &settings()).unwrap();
        dropout.fit(1, |_| ()).unwrap();
        let predict = || bits(dropout.predict(&inference.data().inputs()[..640], 2).unwrap().samples());
        let (first, second) = (predict(), predict());
        assert_ne!(first, second);
        [first, second].concat()
    });
}

/// The posterior of a last layer is there when its member has been away.
#[test]
fn last_layers() {
    same_in_all_rooms(normalised, |inference| {
        let laplace = LastLayerLaplace::new(inference, &settings()).unwrap();
        laplace.fit(2, |_| ()).unwrap();
        laplace.fit_last_layer().unwrap();
        let probabilities = laplace.probabilities(&inference.data().inputs()[..640]).unwrap();
        vec![probabilities.iter().flat_map(|value| [value.to_bits() as u32, (value.to_bits() >> 32) as u32]).collect()]
    });
}

/// Whoever reads parameters has those of one version for ever, and brings nobody.
#[test]
fn parameters_are_snapshots_of_members_that_are_parked() {
    alone(|_, particles| {
        let inference = within(particles, digits(), room(1, Policy::Lru));
        let ensemble = Ensemble::new(&inference, &settings()).unwrap();
        ensemble.fit(1, |_| ()).unwrap();
        let get = |member: usize| particles.send(ensemble.ids()[member], "parameters", Message::default()).wait();
        let before = inference.room();
        let first: Vec<Message> = (0..MEMBERS).map(|member| get(member).unwrap()).collect();
        assert_eq!(inference.room(), before, "nobody moved");
        assert_eq!((before.resident, before.known), (1, MEMBERS));
        let values: Vec<Vec<f32>> = first.iter().map(|message| message.tensors[0].to_vec().unwrap()).collect();
        ensemble.fit(1, |_| ()).unwrap();
        for (member, message) in first.iter().enumerate() {
            assert_eq!(bits(&[message.tensors[0].to_vec().unwrap()]), bits(&values[member..=member]));
            let later = get(member).unwrap();
            assert!(version(&later) > version(message));
            assert!(later.tensors[0].to_vec::<f32>().unwrap() != values[member]);
        }
    });
}

fn version(message: &Message) -> u64 {
    let sheave_wire::Value::Int(version) = message.value else { panic!("{message:?}") };
    version.unsigned_abs()
}

#[test]
fn rooms_of_bytes() {
    alone(|_, particles| {
        let (network, data) = digits();
        let dimension = network.dimension() as u64;
        // Parameters, gradient, two moments, mean and variance of snapshots, and a batch of 50 rows.
        let least = 4 * (6 * dimension + 50 * 64);
        let sized = |bytes| CacheOptions { bytes: Some(bytes), ..CacheOptions::default() };
        let inference = within(particles, (network, data), sized(2 * least));
        let ensemble = Ensemble::new(&inference, &settings()).unwrap();
        ensemble.fit(2, |_| ()).unwrap();
        let statistics = inference.room();
        assert_eq!((statistics.resident, statistics.resident_bytes), (2, 2 * least));
        let small = within(particles, digits(), sized(1000));
        let error = failed(Ensemble::new(&small, &settings()));
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
        assert_eq!(small.room().known, 0);
        let (network, data) = digits();
        let none = Inference::within(particles, "test", network, data, sized(0)).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::InvalidArgument, "{none}");
    });
}

/// The moments of a sample are those of all data under it, and those of the training stay what they are.
#[test]
fn samples_have_moments_of_their_own() {
    alone(|_, particles| {
        let inference = within(particles, normalised(), CacheOptions::default());
        let settings = MultiSwagSettings { ensemble: settings(), learning_rate: 0.01, rank: 2 };
        let swag = MultiSwag::new(&inference, &settings).unwrap();
        swag.fit(2, |_| ()).unwrap();
        swag.collect(1, |_| ()).unwrap();
        // One snapshot at the scale of zero is the parameters.
        let (network, data) = normalised();
        let found = swag.predict_at(data.inputs(), 1, 0.0).unwrap();
        for (parameters, found) in swag.parameters().unwrap().iter().zip(found.samples()) {
            let (mut buffers, mut outputs) = ([network.start_buffers()], Vec::new());
            network.refresh(parameters, &data, 50, &mut buffers[0]).unwrap();
            network.outputs(parameters, data.inputs(), Mode::EvaluateWith(&buffers), &mut outputs).unwrap();
            assert_eq!(bits(&[outputs]), bits(std::slice::from_ref(found)));
        }
        swag.fit(1, |_| ()).unwrap();
        let quiet = MultiSwag::new(&inference, &settings).unwrap();
        quiet.fit(2, |_| ()).unwrap();
        quiet.collect(1, |_| ()).unwrap();
        quiet.fit(1, |_| ()).unwrap();
        assert_eq!(bits(&swag.parameters().unwrap()), bits(&quiet.parameters().unwrap()));
    });
}
