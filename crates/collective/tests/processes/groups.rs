//! Processes that make and drop groups for as long as they live.

use crate::common::{PATIENCE, hear, job, part, say, start_all, until};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, Rank, Result};
use sheave_collective::{Collectives, Operator};
use sheave_mesh::Mesh;
use sheave_tensor::Tensor;
use std::time::Duration;

const RANKS: u32 = 2;
const GROUPS: &str = "SHEAVE_TEST_GROUPS";
/// Groups after which nothing grows any more.
const WARM: u64 = 1000;
/// By how much a process may have grown since then, in kibibytes: what its allocator does not give back.
const GROWTH_MAX_KIB: u64 = 24 << 10;

/// Kibibytes that are resident, and open descriptors.
fn held() -> (u64, usize) {
    let status = std::fs::read_to_string("/proc/self/status").expect("it is there");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
    let resident = line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number");
    (resident, std::fs::read_dir("/proc/self/fd").expect("it is there").count())
}

fn play(mesh: &Mesh, groups: u64) -> Result<()> {
    let world = Collectives::new(mesh)?.group(&mesh.world())?;
    let all: Vec<Rank> = (0..RANKS).map(Rank).collect();
    let mut warm = None;
    for number in 0..groups {
        if number == WARM {
            warm = Some(held());
        }
        let group = match number % 3 {
            0 => world.split(Some(0), 0)?.expect("it has a colour"),
            1 => world.subgroup(&format!("group {number}"), &all)?,
            _ => world.subgroup("the same", &all)?,
        };
        let tensor = Tensor::from_slice(&[1.0_f32], [1])?;
        group.all_reduce(&tensor, &tensor, Operator::Sum).wait()?;
        assert_eq!(tensor.to_vec::<f32>()?, [RANKS as f32]);
        if number % 500 == 7 {
            // A receive that was given up holds no group either.
            let late = group.within(Duration::from_millis(1)).recv(&tensor, None, 5).wait_timeout(PATIENCE);
            assert_eq!(late.expect_err("nobody sends").kind(), ErrorKind::DeadlineExceeded);
        }
    }
    let ((before_kib, open_before), (after_kib, open_after)) = (warm.expect("there are many"), held());
    say(&format!("grew {} {}", after_kib.saturating_sub(before_kib), open_after.saturating_sub(open_before)));
    world.barrier().wait()
}

#[test]
fn actor() {
    let Some(config) = part() else { return };
    let groups = std::env::var(GROUPS).expect("the test has set it").parse().expect("a number");
    let mesh = Mesh::join(config).expect("everybody comes");
    play(&mesh, groups).expect("all come");
    mesh.finish().expect("all come");
}

fn stays_flat(transport: Transport, groups: u64) {
    let job = job();
    let children = start_all(&job, RANKS, transport, &[(GROUPS, &groups.to_string())]);
    for child in &children {
        let words = hear(child, "grew");
        let (kib, open) = words.split_once(' ').expect("two numbers");
        let (kib, open): (u64, usize) = (kib.parse().expect("a number"), open.parse().expect("a number"));
        assert!(kib < GROWTH_MAX_KIB && open < 8, "after {groups} groups: {kib} KiB and {open} descriptors more");
        until("it has ended", || child.exit().is_some());
        assert!(child.exit().is_some_and(|exit| exit.status.success()), "{:?}", child.stderr_lines());
    }
}

#[test]
fn f12_thousands_of_groups_come_and_go_through_shared_memory() {
    stays_flat(Transport::Shm, 7000);
}

#[test]
fn f12_thousands_of_groups_come_and_go_over_tcp() {
    stays_flat(Transport::Tcp, 7000);
}

#[test]
#[ignore = "soak suite: takes a minute"]
fn f12_groups_come_and_go_for_ever() {
    stays_flat(Transport::Shm, 60_000);
    stays_flat(Transport::Tcp, 60_000);
}
