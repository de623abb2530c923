//! A job of servers and workers in a few lines. Run it as
//! `sheave launch -n 4 -s 2 -- target/release/examples/parameter_server`.

use sheave_mesh::{Config, Mesh, Role};
use sheave_store::{Kind, KvStore, Rule, ServerConfig, run_server};
use sheave_tensor::Tensor;
use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Every process learns its role from its environment.
    let config = Config::from_env()?.ok_or("no launcher has started this process; try `sheave launch`")?;
    let mesh = Mesh::join(config)?;
    match mesh.me().introduction.role {
        Role::Worker => {
            let store = KvStore::open(&mesh, Kind::DistSync)?;
            let weights = Tensor::from_slice(&[0.0f32; 1000], [1000])?;
            store.init(&[("w".into(), weights.clone())])?;
            store.set_optimizer(Rule::sgd(0.1))?;
            let gradient = Tensor::from_slice(&[1.0f32; 1000], [1000])?;
            // The sum of all workers' gradients moves the weights, and the new ones come back.
            store.push_pull(&[("w".into(), gradient)], &[("w".into(), weights.clone())])?.wait()?;
            writeln!(std::io::stdout(), "the first weight is {}", weights.to_vec::<f32>()?[0])?;
            store.barrier()?;
        }
        // Servers serve, and the scheduler waits, until the workers have left.
        _ => run_server(&mesh, ServerConfig::default())?,
    }
    Ok(mesh.leave()?)
}
