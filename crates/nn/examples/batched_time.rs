//! Times gradients of perceptrons together, and of each alone, in turn:
//! `RAYON_NUM_THREADS=1 cargo run --release -p sheave-nn --example batched_time -- 8 64 64 128 128 10`, for networks,
//! rows of each batch, and widths, on one thread.
#![expect(clippy::print_stdout, reason = "a program of its own")]

use std::time::{Duration, Instant};

use sheave_base::Result;
use sheave_nn::{Dataset, Digits, Loss, Mode, Network, mlp};

const TURNS: usize = 100;

fn main() -> Result<()> {
    let arguments: Vec<usize> = std::env::args().skip(1).flat_map(|argument| argument.parse()).collect();
    let arguments = if arguments.len() < 4 { vec![8, 64, 64, 128, 128, 10] } else { arguments };
    let (networks, rows, widths) = (arguments[0], arguments[1], &arguments[2..]);
    let network = Network::new(mlp(widths)?, widths[0], Loss::CrossEntropy)?;
    let data = Digits::embedded()?.training().dataset()?;
    let batch = |start: usize| data.batch(&(start..start + rows).collect::<Vec<_>>());
    let batches = (0..networks).map(|place| batch(place * rows % 512)).collect::<Result<Vec<Dataset>>>()?;
    let batches: Vec<&Dataset> = batches.iter().collect();
    let parameters: Vec<Vec<f32>> = (0..networks as u64).map(|seed| network.start(seed)).collect();
    let mut gradients = vec![vec![0.0; network.dimension()]; parameters.len()];
    let mut losses = vec![0.0; parameters.len()];
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        let begun = Instant::now();
        network.values_and_gradients(&parameters, &batches, Mode::Evaluate, &mut gradients, &mut losses)?;
        times[0].push(begun.elapsed());
        let begun = Instant::now();
        network.values_and_gradients(&parameters, &batches[..1], Mode::Evaluate, &mut gradients, &mut losses)?;
        times[1].push(begun.elapsed());
        let begun = Instant::now();
        for ((parameters, batch), gradient) in parameters.iter().zip(&batches).zip(&mut gradients) {
            network.value_and_gradient(parameters, batch, Mode::Evaluate, gradient)?;
        }
        times[2].push(begun.elapsed());
    }
    let [together, shared, alone] = times.map(median);
    let ratio = |time: Duration| alone.as_secs_f64() / time.as_secs_f64();
    println!("{networks} networks of {} parameters, {rows} rows each, medians of {TURNS}:", network.dimension());
    println!("  each alone             {alone:>10.1?}");
    println!("  together               {together:>10.1?}  {:.2} times as fast", ratio(together));
    println!("  together, same batch   {shared:>10.1?}  {:.2} times as fast", ratio(shared));
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
