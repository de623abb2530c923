//! Training in one process, as workers and a server would: micro-batches summed in rank order, then one step.
use std::time::Instant;

use sheave_nn::{Digits, Model, Schedule, Split};
use sheave_optim::{Adam, Rule, Sgd};
use sheave_tensor::{Op, Tensor};

const WORKERS: usize = 4;
const MICRO_BATCH: usize = 16;
const EPOCHS: usize = 30;

/// Trains by the rule of each epoch and returns the model and the mean loss of the last epoch.
fn train(rule: fn(usize) -> Rule, seed: u64, training: &Split, epochs: usize) -> (Model, f32) {
    let model = Model::new(seed).unwrap();
    let schedule = Schedule::new(seed, training.len(), WORKERS, MICRO_BATCH).unwrap();
    let mut weights = model.weights().unwrap();
    let mut states: Vec<_> = weights.iter().map(|weight| rule(0).state(weight.elements())).collect();
    let mut loss = 0.0;
    for epoch in 0..epochs {
        let rule = rule(epoch);
        loss = 0.0;
        for step in 0..schedule.steps() {
            let mut sums: Option<Vec<Tensor>> = None;
            for worker in 0..WORKERS {
                let indices = schedule.indices(epoch, step, worker).unwrap();
                let batch = training.batch(&indices, schedule.global_images()).unwrap();
                let (part, gradients) = model.gradients(&batch).unwrap();
                loss += part / schedule.steps() as f32;
                match &mut sums {
                    None => sums = Some(gradients),
                    Some(sums) => {
                        for (sum, gradient) in sums.iter_mut().zip(&gradients) {
                            sum.reduce_from(Op::Sum, gradient).unwrap();
                        }
                    }
                }
            }
            for ((weight, state), sum) in weights.iter_mut().zip(&mut states).zip(sums.unwrap()) {
                let gradient = sum.as_slice::<f32>().unwrap();
                rule.step(state, weight.as_mut_slice().unwrap(), &gradient).unwrap();
            }
            model.set_weights(&weights).unwrap();
        }
    }
    (model, loss)
}

fn reaches(rule: fn(usize) -> Rule, seeds: u64) {
    let digits = Digits::embedded().unwrap();
    let (training, held_out) = (digits.training(), digits.held_out());
    for seed in 0..seeds {
        let start = Instant::now();
        let (model, loss) = train(rule, seed, &training, EPOCHS);
        let seconds = start.elapsed().as_secs_f64();
        let accuracy = model.accuracy(&held_out).unwrap();
        println!("seed {seed}: held-out accuracy {accuracy:.4}, loss {loss:.4}, {EPOCHS} epochs in {seconds:.2} s");
        assert!(accuracy >= 0.97, "{:?} with seed {seed} reached {accuracy}", rule(0));
    }
}

/// The last third in small steps: large ones would go on jumping about the minimum.
fn sgd(epoch: usize) -> Rule {
    let learning_rate = if epoch < 20 { 0.2 } else { 0.02 };
    Rule::Sgd(Sgd { learning_rate, momentum: 0.9, weight_decay: 1e-3, ..Sgd::default() })
}

fn adam(_epoch: usize) -> Rule {
    Rule::Adam(Adam { learning_rate: 0.005, ..Adam::default() })
}

#[test]
fn sgd_with_momentum_learns_the_digits() {
    reaches(sgd, 2);
}

#[test]
fn adam_learns_the_digits() {
    reaches(adam, 2);
}

#[test]
#[ignore = "soak suite: takes a minute; for judging the network and its settings"]
fn every_seed_learns_the_digits() {
    reaches(sgd, 10);
    reaches(adam, 10);
}
