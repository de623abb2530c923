//! A job that infers a posterior with members on three nodes, of which one may die.
//!
//! Either the first process has an ensemble whose members live on all nodes, or all of them descend together, cut over
//! the parameters. What comes of it has the bits of a run that nothing has befallen: of an ensemble of the same
//! settings on one node, and of the first job whose descent has come to its end. Otherwise an error says who has died,
//! to all who live, within the time in which that must be known; and those go on with members of their own.

use super::ledger::Ledger;
use super::scenario::Scenario;
use super::start::{await_others, join};
use crate::jobs::pause;
use parking_lot::Mutex;
use sheave_base::clock::SeededEntropy;
use sheave_base::{NodeId, Result, clock};
use sheave_collective::Collectives;
use sheave_mesh::Mesh;
use sheave_nn::{Dataset, Loss, Network, Targets, mlp};
use sheave_optim::Rule;
use sheave_particle::Particles;
use sheave_posterior::{Batches, Ensemble, EnsembleSettings, Inference, SteinVgd, SteinVgdSettings};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Epochs of a fit, with a pause before each.
const EPOCHS: usize = 12;
const MEMBERS: usize = 6;

/// The particles of a descent, in bits.
type Bits = Vec<Vec<u32>>;

/// By the number of nodes and the process, where a descent has ended.
static DESCENDED: Mutex<BTreeMap<(u32, usize), Bits>> = Mutex::new(BTreeMap::new());

pub(super) fn run(scenario: &Scenario, process: usize, ledger: &Arc<Ledger>) {
    let Some(mesh) = join(scenario, process, ledger) else { return };
    let particles = Particles::new(&mesh, "members").expect("nobody did before");
    let part = Part { process, ledger, inference: inference(&particles), seed: scenario.seed };
    await_others(process, ledger);
    let nodes: Vec<NodeId> = mesh.members().iter().map(|member| member.node).collect();
    match (SeededEntropy::new(scenario.seed ^ 0x9057).below(2), process) {
        (0, 0) => part.ensemble(&nodes),
        (0, _) => {}
        _ => part.descent(&mesh),
    }
    super::particles::leaves(scenario, &mesh, process, ledger);
}

/// Points of a curve, and a small network.
fn inference(particles: &Particles) -> Inference {
    let inputs: Vec<f32> = (0..16).map(|row| row as f32 / 8.0 - 1.0).collect();
    let targets = Targets::Values(inputs.iter().map(|x| x * x - 0.5).collect());
    let network = mlp(&[1, 3, 1]).and_then(|layers| Network::new(layers, 1, Loss::Gaussian { deviation: 0.5 }));
    let data = Dataset::new(inputs, 1, targets).expect("as many");
    Inference::new(particles, "curve", network.expect("it is small"), data).expect("it fits")
}

fn bits(vectors: &[Vec<f32>]) -> Vec<Vec<u32>> {
    vectors.iter().map(|vector| vector.iter().map(|value| value.to_bits()).collect()).collect()
}

struct Part<'a> {
    process: usize,
    ledger: &'a Arc<Ledger>,
    inference: Inference,
    seed: u64,
}

impl Part<'_> {
    /// Runs something that all or some must be there for. It ends in time, and fails with the name of who is not.
    fn judged<T>(&self, what: &str, act: impl FnOnce() -> Result<T>) -> Option<T> {
        let begun = clock::now();
        let outcome = act();
        self.ledger.ends_in_time(self.process, what, clock::since(begun));
        match outcome {
            Ok(result) => Some(result),
            Err(error) => {
                if !self.ledger.may_fail(self.process, &error) {
                    let what = format!("{what} of {} accuses the wrong one, or nobody: {error:?}", self.process);
                    self.ledger.fault(what);
                }
                self.ledger.counts(&format!("{what}: {:?}", error.kind()));
                None
            }
        }
    }

    /// A pause that all have in common, so that deaths come between epochs and within them.
    fn pauses(&self) -> impl FnMut() + use<> {
        let mut dice = SeededEntropy::new(self.seed ^ 0x7a05);
        let most = [1, 20, 90][dice.below(3) as usize];
        move || pause(Duration::from_millis(dice.below(most)))
    }

    fn fitted(&self, inference: &Inference) -> Option<Vec<Vec<u32>>> {
        let settings = EnsembleSettings::new(MEMBERS, 4, Rule::adam(0.01));
        let settings = EnsembleSettings { batches: Batches::Own, seed: 5, ..settings };
        let ensemble = self.judged("an ensemble", || Ensemble::new(inference, &settings))?;
        let mut rests = self.pauses();
        for _ in 0..EPOCHS {
            rests();
            self.judged("a fit", || ensemble.fit(1, |_| ()))?;
        }
        self.judged("parameters", || ensemble.parameters()).map(|parameters| bits(&parameters))
    }

    fn ensemble(&self, nodes: &[NodeId]) {
        let spread = self.fitted(&self.inference.on(nodes).expect("there are some"));
        let alone = self.fitted(&self.inference);
        if spread.is_some() && spread != alone {
            self.ledger.fault("an ensemble of three nodes has other bits than that of one".to_owned());
        }
        if alone.is_none() && !self.ledger.is_doomed(self.process) {
            self.ledger.fault("members of a node that lives do not go on".to_owned());
        }
        self.ledger.counts(if spread.is_some() { "fits" } else { "fits that failed" });
    }

    fn descent(&self, mesh: &Mesh) {
        let group = self.judged("a group", || Collectives::new(mesh)?.group(&mesh.world()));
        let Some(group) = group else { return };
        let settings = SteinVgdSettings { seed: 9, ..SteinVgdSettings::new(MEMBERS, 8, Rule::adam(0.01)) };
        let svgd = self.judged("a descent", || SteinVgd::sharded(&self.inference, &group, &settings));
        let Some(svgd) = svgd else { return };
        let mut rests = self.pauses();
        for _ in 0..EPOCHS {
            rests();
            if self.judged("a descent", || svgd.fit(1, |_| ())).is_none() {
                return self.ledger.counts("descents that failed");
            }
        }
        let Some(own) = self.judged("parameters", || svgd.parameters()) else { return };
        let own = bits(&own);
        let expected = DESCENDED.lock().entry((group.size(), self.process)).or_insert_with(|| own.clone()).clone();
        if own != expected {
            self.ledger.fault(format!("the descent of {} has other bits than one that nothing befell", self.process));
        }
        self.ledger.counts("descents");
    }
}
