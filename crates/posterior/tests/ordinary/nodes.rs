//! Posteriors whose members live on several nodes of one process.

use crate::common;
use crate::common::{bits, digits, failed, inference, line, together};
use sheave_base::ErrorKind;
use sheave_base::config::Transport;
use sheave_bayes::prior::Normal;
use sheave_collective::Collectives;
use sheave_mesh::{Expected, Mesh};
use sheave_nn::{Dataset, Loss, Network, Targets, mlp};
use sheave_optim::{Lamb, Rule};
use sheave_particle::Particles;
use sheave_posterior::{
    Batches, Ensemble, EnsembleSettings, Inference, MultiSwag, MultiSwagSettings, SteinVgd, SteinVgdSettings,
};

/// Runs `act` on rank 0 of so many nodes that all have an inference, and returns what it returns.
fn led<T: Send + 'static>(nodes: u32, act: impl Fn(&Mesh, &Inference) -> T + Clone + Send + 'static) -> T {
    let done = together(Expected::ranks(nodes), Transport::Auto, move |mesh| {
        let particles = Particles::new(&mesh, "test").unwrap();
        let inference = inference(&particles, digits());
        mesh.world().barrier().unwrap();
        let all: Vec<_> = mesh.members().iter().map(|member| member.node).collect();
        let result = (mesh.me().rank.0 == 0).then(|| act(&mesh, &inference.on(&all).unwrap()));
        mesh.world().barrier().unwrap();
        common::until("no member is left", || particles.ids().is_empty());
        mesh.finish().unwrap();
        result
    });
    done.into_iter().flatten().next().unwrap()
}

fn settings() -> EnsembleSettings {
    EnsembleSettings { batches: Batches::Own, seed: 4, ..EnsembleSettings::new(5, 40, Rule::adam(0.01)) }
}

#[test]
fn nodes_change_no_bit_of_an_ensemble() {
    let fit = |nodes| {
        led(nodes, move |_, inference| {
            let ensemble = Ensemble::new(inference, &settings()).unwrap();
            let mut on: Vec<_> = ensemble.ids().iter().map(|id| id.node).collect();
            on.sort_unstable();
            on.dedup();
            assert_eq!(on.len(), nodes as usize, "members live on all nodes");
            let losses = ensemble.fit(3, |_| ()).unwrap();
            let samples = bits(ensemble.predict(&inference.data().inputs()[..128]).unwrap().samples());
            (losses, samples, bits(&ensemble.parameters().unwrap()))
        })
    };
    let alone = fit(1);
    assert_eq!(alone, fit(2));
    assert_eq!(alone, fit(3));
}

#[test]
fn nodes_change_no_bit_of_samples() {
    let fit = |nodes| {
        led(nodes, |_, inference| {
            let settings = MultiSwagSettings { ensemble: settings(), learning_rate: 0.01, rank: 2 };
            let swag = MultiSwag::new(inference, &settings).unwrap();
            swag.fit(1, |_| ()).unwrap();
            swag.collect(3, |_| ()).unwrap();
            bits(swag.predict(&inference.data().inputs()[..128], 2).unwrap().samples())
        })
    };
    assert_eq!(fit(1), fit(2));
}

#[test]
fn a_leader_descends_with_particles_of_other_nodes() {
    let fit = |nodes| {
        led(nodes, |_, inference| {
            let svgd = SteinVgd::new(inference, &SteinVgdSettings::new(4, 50, Rule::adam(0.01))).unwrap();
            svgd.fit(2, |_| ()).unwrap();
            bits(&svgd.parameters().unwrap())
        })
    };
    assert_eq!(fit(1), fit(2));
}

/// A node without an inference of the name is named, and members that were made elsewhere are removed.
#[test]
fn a_node_that_offers_nothing_is_an_error() {
    together(Expected::ranks(2), Transport::Auto, |mesh| {
        let particles = Particles::new(&mesh, "test").unwrap();
        mesh.world().barrier().unwrap();
        if mesh.me().rank.0 == 0 {
            let all: Vec<_> = mesh.members().iter().map(|member| member.node).collect();
            let inference = inference(&particles, digits()).on(&all).unwrap();
            let error = failed(Ensemble::new(&inference, &settings()));
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            assert!(error.to_string().contains("no kind \"posterior test\""), "{error}");
            assert_eq!(particles.ids(), []);
        }
        mesh.finish().unwrap();
    });
}

fn svgd() -> SteinVgdSettings {
    let prior = Some(Normal { mean: 0.0, deviation: 0.5 });
    SteinVgdSettings { prior, seed: 9, ..SteinVgdSettings::new(6, 50, Rule::adam(0.005)) }
}

/// The parameters of all particles after some epochs, cut over so many nodes, and their predictions.
fn sharded(nodes: u32, epochs: usize) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let parts = together(Expected::ranks(nodes), Transport::Auto, move |mesh| {
        let particles = Particles::new(&mesh, "test").unwrap();
        let inference = inference(&particles, digits());
        let group = Collectives::new(&mesh).unwrap().group(&mesh.world()).unwrap();
        let svgd = SteinVgd::sharded(&inference, &group, &svgd()).unwrap();
        assert_eq!(particles.ids().len(), 6 / nodes as usize);
        svgd.fit(epochs, |progress| assert_eq!(progress.losses.len(), 6 / nodes as usize)).unwrap();
        let samples = svgd.predict(&inference.data().inputs()[..64]).unwrap().samples().to_vec();
        let parameters = svgd.parameters().unwrap();
        drop(svgd);
        mesh.finish().unwrap();
        (parameters, samples)
    });
    let (parameters, samples): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
    (parameters.concat(), samples.concat())
}

#[test]
fn a_descent_cut_over_nodes_is_that_of_a_leader() {
    let led = led(1, |_, inference| {
        let svgd = SteinVgd::new(inference, &svgd()).unwrap();
        svgd.fit(3, |_| ()).unwrap();
        svgd.parameters().unwrap()
    });
    // One slice is the whole.
    assert_eq!(bits(&sharded(1, 3).0), bits(&led));
    for nodes in [2, 3] {
        // Slices end elsewhere than blocks of columns do, so that sums of the Gram matrix round differently. The
        // digits' network has 1,210 parameters, which are no multiple of 3.
        let (parameters, samples) = sharded(nodes, 3);
        assert_eq!((parameters.len(), samples.len()), (6, 6));
        for (member, led) in parameters.iter().zip(&led) {
            let largest = member.iter().zip(led).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
            // Nine steps of 0.005 each; Adam turns a direction near zero by rounding alone.
            assert!(largest < 2e-3, "{nodes} nodes: {largest}");
            let squares: f32 = member.iter().zip(led).map(|(one, other)| (one - other).powi(2)).sum();
            assert!(squares.sqrt() / (led.len() as f32).sqrt() < 1e-4, "{nodes} nodes: {squares}");
        }
    }
}

#[test]
fn what_a_group_cannot_share_is_refused_by_all() {
    together(Expected::ranks(2), Transport::Auto, |mesh| {
        let particles = Particles::new(&mesh, "test").unwrap();
        let inference = inference(&particles, line(10));
        let group = Collectives::new(&mesh).unwrap().group(&mesh.world()).unwrap();
        let odd = failed(SteinVgd::sharded(&inference, &group, &SteinVgdSettings::new(3, 10, Rule::adam(0.1))));
        assert!(odd.to_string().contains("members is 3; expected a multiple of 2"), "{odd}");
        let lamb = SteinVgdSettings::new(2, 10, Rule::Lamb(Lamb::default()));
        let error = failed(SteinVgd::sharded(&inference, &group, &lamb));
        assert!(error.to_string().contains("the rule is lamb; expected one that needs no norms"), "{error}");
        mesh.finish().unwrap();
    });
}

/// A node whose loss is not finite tells the others, which would wait for it otherwise.
#[test]
fn all_fail_where_one_does() {
    let errors = together(Expected::ranks(2), Transport::Auto, |mesh| {
        let particles = Particles::new(&mesh, "test").unwrap();
        // Only the second node's targets are beyond what a square of f32 holds.
        let target = if mesh.me().rank.0 == 1 { 1e30 } else { 1.0 };
        let data = Dataset::new(vec![0.0, 1.0], 1, Targets::Values(vec![target; 2])).unwrap();
        let network = Network::new(mlp(&[1, 1]).unwrap(), 1, Loss::Gaussian { deviation: 1.0 }).unwrap();
        let inference = inference(&particles, (network, data));
        let group = Collectives::new(&mesh).unwrap().group(&mesh.world()).unwrap();
        let svgd = SteinVgd::sharded(&inference, &group, &SteinVgdSettings::new(2, 2, Rule::adam(0.1))).unwrap();
        let error = failed(svgd.fit(1, |_| ()));
        drop(svgd);
        mesh.finish().unwrap();
        error.to_string()
    });
    assert!(errors[0].contains("member 1 came from rank 1 of the group, which has failed"), "{}", errors[0]);
    assert!(errors[1].contains("the loss of member 1 is"), "{}", errors[1]);
}
