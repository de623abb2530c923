//! Meshes that are made, used and left, again and again: a process ends with what it began with.

use crate::common::{PATIENCE, free_port, hear, job, part, say, start_all};
use crate::held::held;
use sheave_base::config::{Endpoint, Transport};
use sheave_collective::{Collectives, Operator};
use sheave_mesh::{Config, Mesh};
use sheave_tensor::Tensor;

const PORTS: &str = "SHEAVE_TEST_PORTS";
const CYCLES: usize = 24;
const WARM: usize = 6;

fn cycle(config: Config) {
    let mesh = Mesh::join(config).expect("everybody comes");
    let collectives = Collectives::new(&mesh).expect("the first");
    let world = collectives.group(&mesh.world()).expect("a group");
    let ones = Tensor::from_slice(&[1.0_f32; 1000], [1000]).expect("memory");
    world.all_reduce(&ones, &ones, Operator::Sum).wait_timeout(PATIENCE).expect("everybody lives");
    assert_eq!(ones.to_vec::<f32>().expect("ours")[999], 2.0);
    mesh.finish().expect("everybody lives");
}

#[test]
fn actor() {
    let Some(config) = part() else { return };
    let ports = std::env::var(PORTS).expect("the test has set it");
    let mut before = (0, 0);
    for (at, port) in ports.split(' ').enumerate() {
        if at == WARM {
            before = held();
        }
        let mut config = config.clone();
        let root = format!("127.0.0.1:{port}");
        config.meeting = Endpoint::parse(&root).expect("an address").into();
        cycle(config);
    }
    let after = held();
    say(&format!("{} {} {} {}", before.0, after.0, before.1, after.1));
}

#[test]
fn f81_meshes_that_were_used_and_left_leave_nothing() {
    let job = job();
    let ports: Vec<String> = (0..CYCLES).map(|_| free_port().to_string()).collect();
    let children = start_all(&job, 2, Transport::Shm, &[(PORTS, &ports.join(" "))]);
    for child in &children {
        let said = hear(child, "");
        let [descriptors, descriptors_after, mapped, mapped_after] =
            said.split(' ').map(|word| word.parse::<u64>().expect("a number")).collect::<Vec<_>>()[..]
        else {
            panic!("{said}");
        };
        assert!(descriptors_after <= descriptors + 2, "descriptors and bytes, before and after: {said}");
        assert!(mapped_after <= mapped, "descriptors and bytes, before and after: {said}");
    }
}
