//! The first operation of a group makes its ranks see each other's memory, by messages that nobody has called for: what
//! fails there is an error of the operation that was called. Over TCP nothing is set up; whether the operation itself
//! finds room on a link that was full a moment ago, or waits for the stopped peer and loses it, is open there.

use crate::common::{hear, job, part, say, start_all};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, Rank, Result, Tag};
use sheave_collective::{Collectives, Operator};
use sheave_mesh::Mesh;
use sheave_net::{Envelope, Outgoing};
use sheave_tensor::Tensor;

/// A context of nobody else.
const CONTEXT: u64 = 0x5e7;

/// Sends to a rank that takes nothing until its link takes nothing more either.
fn fill_link(mesh: &Mesh, rank: Rank) -> Result<Error> {
    let link = mesh.world().link_to(rank).wait()?;
    loop {
        let message = Outgoing::control(Envelope::data(CONTEXT, Tag(0)), vec![0; 1024]);
        if let Err(error) = mesh.node().isend(link, message) {
            return Ok(error);
        }
    }
}

#[test]
fn actor() {
    let Some(config) = part() else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    mesh.world().barrier().expect("everybody lives");
    if mesh.me().rank == Rank(1) {
        // SAFETY: the signal has no handler, and stops this process until the test ends it.
        assert_eq!(unsafe { libc::raise(libc::SIGSTOP) }, 0);
    }
    let full = fill_link(&mesh, Rank(1)).expect("there is a link");
    assert_eq!(full.kind(), ErrorKind::LimitExceeded, "{full}");
    let world = Collectives::new(&mesh).and_then(|collectives| collectives.group(&mesh.world())).expect("a group");
    let tensor = Tensor::from_slice(&[1.0_f32], [1]).expect("memory");
    let error = world.all_reduce(&tensor, &tensor, Operator::Sum).wait().expect_err("the link is full");
    say(&format!("failed {:?} {:?} {error}", error.kind(), error.operation_name()));
    mesh.abandon();
}

#[test]
fn what_fails_in_a_setup_is_an_error_of_what_was_called() {
    let ways = [(Transport::Shm, &["LimitExceeded"][..]), (Transport::Tcp, &["LimitExceeded", "PeerLost"])];
    for (transport, kinds) in ways {
        let job = job();
        let children = start_all(&job, 2, transport, &[]);
        let words = hear(&children[0], "failed");
        let (kind, rest) = words.split_once(' ').expect("a kind and its words");
        assert!(kinds.contains(&kind), "{words}");
        assert!(rest.starts_with("Some(\"all_reduce\") all_reduce on group world: "), "{words}");
    }
}
