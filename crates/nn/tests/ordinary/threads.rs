//! The number of threads changes no bit: the same training in processes with one thread and with several.
use std::time::{Duration, Instant};

use sheave_nn::{Digits, Model, Schedule};
use sheave_optim::{Adam, Rule};
use sheave_process::{Command, Job, Output};

/// Says that this process plays its part in the test below.
const PART: &str = "SHEAVE_TEST_PART";

#[test]
fn actor() {
    if std::env::var_os(PART).is_none() {
        return;
    }
    let training = Digits::embedded().unwrap().training();
    let model = Model::new(11).unwrap();
    // Batches so large that candle shares every product among threads, and an odd number of images.
    let schedule = Schedule::new(11, training.len(), 1, 1195).unwrap();
    let rule = Rule::Adam(Adam::default());
    let mut weights = model.weights().unwrap();
    let mut states: Vec<_> = weights.iter().map(|weight| rule.state(weight.elements())).collect();
    for epoch in 0..3 {
        let batch = training.batch(&schedule.indices(epoch, 0, 0).unwrap(), 1195).unwrap();
        let (_, gradients) = model.gradients(&batch).unwrap();
        for ((weight, state), gradient) in weights.iter_mut().zip(&mut states).zip(&gradients) {
            rule.step(state, weight.as_mut_slice::<f32>().unwrap(), &gradient.as_slice::<f32>().unwrap()).unwrap();
        }
        model.set_weights(&weights).unwrap();
    }
    let bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.bytes().unwrap().to_vec()).collect();
    println!("digest {:08x} of {} bytes", crc32fast::hash(&bytes), bytes.len());
}

#[test]
fn threads_change_no_bit() {
    let deadline = Instant::now() + Duration::from_secs(60);
    let job = Job::builder().output(Output::Capture).start().unwrap();
    let spawned = ["1", "2", "3", "8"].map(|threads| {
        let name = ["threads::actor", "--exact", "--nocapture"];
        let command = Command::new(std::env::current_exe().unwrap()).args(name).env(PART, "trains");
        job.spawn(command.env("RAYON_NUM_THREADS", threads)).unwrap()
    });
    // The harness writes the test's name in front, without a line's end.
    let digests = spawned.map(|child| {
        let line = child.wait_for_stdout("digest", deadline).unwrap();
        line.split_once("digest").unwrap().1.to_owned()
    });
    assert!(digests[0].ends_with(" of 69032 bytes"), "{digests:?}");
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
}
