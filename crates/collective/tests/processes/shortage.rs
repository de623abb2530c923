//! A rank that lacks descriptors, memory or a thread when a group of its host finds each other's memory, or later, says
//! so, and what raises it. The others lose it for that reason, nobody else is accused or harmed, and the rest goes on.

use crate::common::{hear, job, note, part, say, start_all, until};
use crate::shortages::{LACKS, LACKS_SOMETHING, NO_DESCRIPTOR, NO_MEMORY, NO_THREAD, WHEN, be_short, variable};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, Rank, Result};
use sheave_collective::{Collectives, Communicator, Operator};
use sheave_mesh::Mesh;
use sheave_tensor::{Dtype, Tensor};
use std::time::Duration;

const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];
const RANKS: u32 = 4;
const SHORT: usize = 3;
const SMALL: u64 = 100;
/// 16 MiB.
const BIG: u64 = 4 << 20;
/// Of a rank whose arena is full.
const ARENA_BYTES: u64 = 1 << 20;

/// After so long a silence a member is dead: no test waits for that.
const SILENCE: Duration = Duration::from_secs(30);

/// Before there is anything of a group.
const SETUP: &str = "setup";
/// When a group works.
const USE: &str = "use";

fn is_short(mesh: &Mesh) -> bool {
    mesh.me().rank == Rank(SHORT as u32)
}

/// Tensors for a sum of all ranks' numbers.
struct Sum {
    own: Tensor,
    total: Tensor,
}

impl Sum {
    fn new(mesh: &Mesh, count: u64) -> Result<Self> {
        let tensor = || match Tensor::empty(mesh.node().arena(), Dtype::F32, [count]) {
            Err(error) if error.kind() == ErrorKind::LimitExceeded => Tensor::private(Dtype::F32, [count]),
            other => other,
        };
        Ok(Self { own: tensor()?, total: tensor()? })
    }

    fn reduce(&mut self, group: &Communicator) -> Result<()> {
        self.own.as_mut_slice::<f32>()?.fill(group.rank().0 as f32 + 1.0);
        group.all_reduce(&self.own, &self.total, Operator::Sum).wait()?;
        let expected = (1..=group.size()).map(|rank| rank as f32).sum::<f32>();
        assert!(self.total.to_vec::<f32>()?.iter().all(|value| *value == expected), "a wrong sum");
        Ok(())
    }
}

fn work(mesh: &Mesh, collectives: &Collectives) -> Result<()> {
    let world = collectives.group(&mesh.world())?;
    Sum::new(mesh, SMALL)?.reduce(&world)?;
    let mut big = Sum::new(mesh, BIG)?;
    be_short(mesh, USE, is_short(mesh))?;
    big.reduce(&world)
}

#[test]
fn actor() {
    let Some(mut config) = part() else { return };
    config.node.liveness.timeout = SILENCE;
    if variable(LACKS) == "arena" && config.rank == Some(SHORT as u32) {
        config.node.arena.capacity_bytes = ARENA_BYTES;
    }
    let mesh = Mesh::join(config).expect("everybody comes");
    mesh.world().barrier().expect("all are there");
    let collectives = Collectives::new(&mesh).expect("it is the first");
    let outcome = be_short(&mesh, SETUP, is_short(&mesh)).and_then(|()| work(&mesh, &collectives));
    if variable(LACKS) == "arena" {
        outcome.expect("there is other memory");
        mesh.finish().expect("nobody is lost");
        return say("left");
    }
    if is_short(&mesh) {
        let error = outcome.expect_err("it lacks something");
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
        assert!(error.advice().is_some_and(|hint| hint.contains("raise the limit")), "{error}");
        say(&format!("failed {error}"));
        until("the end of this membership", || !mesh.is_member());
        return;
    }
    let error = outcome.expect_err("one is gone");
    // Whoever cannot do its part of an operation cancels it for the others, if they hear of that before they lose it.
    let may_be_cancelled = variable(WHEN) == USE && error.kind() == ErrorKind::Cancelled;
    assert!(may_be_cancelled || error.kind() == ErrorKind::PeerLost, "{error}");
    say(&format!("lost {error}"));
    until("the news of the death", || !mesh.deaths().is_empty());
    let deaths = mesh.deaths();
    assert!(deaths.len() == 1 && deaths[0].node == mesh.members()[SHORT].node, "{deaths:?}");
    let rest = collectives.group(&mesh.world().shrink().expect("one is gone")).expect("the others live");
    assert_eq!(rest.size(), RANKS - 1);
    Sum::new(&mesh, BIG).expect("there is memory").reduce(&rest).expect("the others live");
    mesh.leave().expect("the others agree");
    say("left");
}

/// The last rank says what it lacks, and the others read one of these reasons.
fn is_short_alone(transport: Transport, when: &str, lacks: &str, says: &[&str], others_read: &[&str]) {
    let job = job();
    let children = start_all(&job, RANKS, transport, &[(WHEN, when), (LACKS, lacks)]);
    let what = format!("{transport:?}, {when}, {lacks}");
    let failed = hear(&children[SHORT], "failed");
    note(&format!("{what}: failed: {failed}"));
    assert!(says.iter().any(|reason| failed.contains(reason)), "{what}: {failed}");
    for child in &children[..SHORT] {
        let lost = hear(child, "lost");
        note(&format!("{what}: {}: {lost}", child.name()));
        let is_told = others_read.iter().any(|reason| lost.contains(reason));
        assert!(is_told && lost.contains("rank-3"), "{what}: {}: {lost}", child.name());
    }
    children[..SHORT].iter().rev().for_each(|child| drop(hear(child, "left")));
    for child in &children {
        until("it has ended", || child.exit().is_some());
        let exit = child.exit().expect("it has ended");
        assert!(exit.status.success(), "{what}: {}: {exit:?}\n{}", child.name(), child.stderr_lines().join("\n"));
    }
}

#[test]
fn f86_who_has_no_descriptors_when_a_group_is_set_up_says_so() {
    for (transport, free) in [(Transport::Shm, 0), (Transport::Shm, 3), (Transport::Shm, 7), (Transport::Tcp, 0)] {
        let lacks = format!("descriptors {free}");
        is_short_alone(transport, SETUP, &lacks, &[NO_DESCRIPTOR], &[NO_DESCRIPTOR, LACKS_SOMETHING]);
    }
}

#[test]
fn f21_who_has_no_memory_when_a_group_is_set_up_says_so() {
    // For the thread that makes a link, or for what a peer shows that has made one before. Over TCP a rank that all
    // others have linked to first needs neither.
    let others_read = [NO_THREAD, NO_MEMORY, LACKS_SOMETHING];
    is_short_alone(Transport::Shm, SETUP, "memory", &others_read[..2], &others_read);
}

#[test]
fn f21_who_has_no_memory_for_an_operation_says_so() {
    // For what the others show it. Over TCP an operation in the arena needs no more than there is.
    is_short_alone(Transport::Shm, USE, "MiB 1", &[NO_MEMORY], &[NO_MEMORY, LACKS_SOMETHING]);
}

#[test]
fn f21_who_has_no_room_in_its_arena_takes_other_memory() {
    for transport in TRANSPORTS {
        let job = job();
        let children = start_all(&job, RANKS, transport, &[(WHEN, "never"), (LACKS, "arena")]);
        children.iter().for_each(|child| drop(hear(child, "left")));
    }
}
