//! Meshes that are made, used and left, again and again: a process ends with what it began with.

mod common;

use common::{PATIENCE, free_port, hear, job, part, say, start_all};
use sheave_base::config::Transport;
use sheave_collective::{Collectives, Operator};
use sheave_mesh::{Config, Mesh};
use sheave_tensor::Tensor;

const PORTS: &str = "SHEAVE_TEST_PORTS";
const CYCLES: usize = 24;
const WARM: usize = 6;

/// Open descriptors of this process, and the bytes of shared memory that it has mapped.
fn held() -> (usize, u64) {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("proc").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc");
    let mapped = maps.lines().filter(|line| line.contains("/memfd:sheave")).map(|line| {
        let (from, to) = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
        let address = |text| u64::from_str_radix(text, 16).expect("an address");
        address(to) - address(from)
    });
    (descriptors, mapped.sum())
}

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
        config.root.port = port.parse().expect("a number");
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
