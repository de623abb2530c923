//! What the fuzz target of members does with its input. The tests here replay the corpus.
//!
//! It takes any bytes and panics only if sheave is wrong: a decoder or a member panicked, or what was accepted is read
//! otherwise than it is written.

use std::sync::{Arc, OnceLock};

use sheave_nn::{Dataset, Loss, Network, Targets, mlp};
use sheave_wire::codec;

use crate::inference::Problem;
use crate::member::Member;
use crate::settings::MemberSettings;

/// A small network and its data, made once.
fn problem() -> &'static Arc<Problem> {
    static MADE: OnceLock<Arc<Problem>> = OnceLock::new();
    MADE.get_or_init(|| {
        let data = Dataset::new(vec![0.0, 0.5, 1.0], 1, Targets::Values(vec![1.0, 0.0, 1.0])).expect("three rows");
        let network = mlp(&[1, 1]).and_then(|layers| Network::new(layers, 1, Loss::Gaussian { deviation: 0.5 }));
        Arc::new(Problem { network: network.expect("it is small"), data })
    })
}

/// The value with the settings of a member that a peer has made, which is made and moved.
pub fn member_settings(data: &[u8]) {
    let Ok((value, _)) = codec::decode_first(data) else { return };
    let Ok(settings) = MemberSettings::read(&value) else { return };
    let written = settings.write().expect("what was read can be written");
    let again = MemberSettings::read(&written).and_then(|settings| settings.write());
    // By their bits: a number may be none.
    assert_eq!(again.expect("what was written can be read"), written);
    if let Ok(mut member) = Member::new(Arc::clone(problem()), settings) {
        // Steps may fail, as where a number overflows.
        (0..2).for_each(|_| drop(member.step()));
        drop(member.snapshot());
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::Target;
    use super::*;
    use crate::settings::{Batches, Method, Sampler};
    use sheave_bayes::langevin::{Cyclical, Sghmc, Sgld};
    use sheave_bayes::prior::Normal;
    use sheave_optim::{Decay, Optimizer, Rule, Schedule, WarmUp};

    const SETTINGS: Target =
        Target { name: "member_settings", run: member_settings, fixed_bytes: 512 << 10, ratio: 4096 };

    #[test]
    fn settings_of_members_replay() {
        let sghmc = Sghmc { step_size: 1e-4, friction: 0.1, noise: 0.01, temperature: 1.0 };
        let cyclical = Cyclical { step_size: 1e-3, steps: 100, cycles: 4, exploration: 0.5 };
        let seeds = [
            ("optimize", settings(Batches::Shared, Method::Optimize { optimizer: Rule::adam(0.01).into(), rank: 20 })),
            ("optimize_by_sgd", settings(Batches::Bootstrap, Method::Optimize { optimizer: sgd(), rank: 0 })),
            ("sample_sgld", sample(Sampler::Sgld(Sgld { step_size: 1e-3, temperature: 1.0 }), Some(Normal::default()))),
            ("sample_sghmc", sample(Sampler::Sghmc(sghmc), None)),
            ("sample_cyclical", sample(Sampler::Cyclical(cyclical), None)),
            ("follow", settings(Batches::Own, Method::Follow { prior: Some(Normal { mean: 0.5, deviation: 2.0 }) })),
            ("follow_without_prior", settings(Batches::Own, Method::Follow { prior: None })),
        ];
        for (name, settings) in &seeds {
            Member::new(Arc::clone(problem()), settings.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let written = |settings: &MemberSettings| {
            codec::encode(&settings.write().expect("it can be written")).expect("it can be encoded")
        };
        SETTINGS.seeds_are_current(&seeds.map(|(name, settings)| (name, written(&settings))));
        SETTINGS.replay();
    }

    /// Plain steps whose rate rises, and falls at some of them.
    fn sgd() -> Optimizer {
        let decay = Decay::MultiStep { at: vec![10, 20], factor: 0.5 };
        let schedule = Schedule { decay, warm_up: Some(WarmUp { steps: 4, from: 0.1 }) };
        Optimizer { schedule, ..Rule::sgd(0.1).into() }
    }

    fn sample(sampler: Sampler, prior: Option<Normal>) -> MemberSettings {
        settings(Batches::Shared, Method::Sample { sampler, prior, burn_in: 1, thin: 1, capacity: 4 })
    }

    fn settings(batches: Batches, method: Method) -> MemberSettings {
        MemberSettings { seed: 1 << 40, member: 3, batches, batch_rows: 2, method }
    }
}
