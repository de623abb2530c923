//! A program in Rust and one in Python that call each other.
//!
//! ```text
//! export SHEAVE_ROOT=127.0.0.1:7171 SHEAVE_WORLD_SIZE=2
//! SHEAVE_RANK=1 python examples/python/serve_rust.py &
//! SHEAVE_RANK=0 cargo run --example calls_python
//! ```
//!
//! The one in Python has a model, an object in a group of both. The one in Rust trains it by calls, with arrays as
//! arguments, and has the learning rate, which the model asks it for.

use sheave::prelude::*;
use sheave::rpc::{Rpc, function};
use std::process::ExitCode;

/// The line that the model is to find: y = 2 x + 1.
const SLOPE: f32 = 2.0;
const OFFSET: f32 = 1.0;

#[expect(clippy::print_stdout, reason = "what it prints is for whoever has started it")]
fn main() -> ExitCode {
    sheave::run(|mesh| {
        let rpc = Rpc::serve(mesh)?;
        // From here on the other one finds this node's part.
        mesh.world().barrier()?;
        let nodes: Vec<NodeId> = mesh.members().iter().map(|member| member.node).collect();
        let group = rpc.create_group("learners", &nodes, None).wait()?;
        group.register("rate", function(|(step,): (u32,)| Ok(0.5 / (1.0 + f64::from(step) / 100.0))), None)?.wait()?;
        group.barrier(None)?.wait()?;

        let inputs: Vec<f32> = (0..64).map(|number| number as f32 / 32.0 - 1.0).collect();
        let targets: Vec<f32> = inputs.iter().map(|input| SLOPE * input + OFFSET).collect();
        let batch = (Tensor::from_slice(&inputs, [64])?, Tensor::from_slice(&targets, [64])?);
        let mut loss = f64::INFINITY;
        for step in 0..200_u32 {
            let args = (batch.0.clone(), batch.1.clone(), step);
            loss = group.invoke("model", "train", args)?.wait()?;
        }
        let (slope, offset): (f32, f32) = group.invoke("model", "weights", ())?.wait()?;
        println!("y = {slope:.3} x + {offset:.3}, loss {loss:.2e}");
        if (slope - SLOPE).abs() > 0.01 || (offset - OFFSET).abs() > 0.01 {
            return Err(Error::new(ErrorKind::Internal, "the model has not learnt"));
        }
        // What cannot be is an error with the traceback of Python in it.
        let failed = group.invoke::<f64>("model", "train", ("no array",))?.wait();
        println!("{}", failed.err().map_or_else(String::new, |error| error.to_string()));
        group.barrier(None)?.wait()
    })
}
