//! Processes with members of a posterior, one of which is killed while they are fitted.

use crate::common;
use crate::common::{digits, failed, free_port, hear, inference, job, note, park, part, say, soon, until};
use sheave_base::ErrorKind;
use sheave_base::config::Transport;
use sheave_collective::Collectives;
use sheave_mesh::Expected;
use sheave_optim::Rule;
use sheave_particle::{CacheOptions, Particles};
use sheave_posterior::{Ensemble, EnsembleSettings, Inference, SteinVgd, SteinVgdSettings};
use std::time::{Duration, Instant};

/// The bound of the design for everything that a killed process is needed for.
const BOUND: Duration = Duration::from_secs(1);
const RANKS: u32 = 3;
const VICTIM: usize = 1;
const SIGKILL: i32 = 9;
/// More than anybody waits for.
const FOR_EVER: usize = 1_000_000;

/// Rank 0 fits an ensemble with members on all nodes. After the first epoch it says so, and the victim is killed. Then
/// survivors descend together, cut over the parameters, with a victim that is dead: they cannot even begin.
#[test]
fn actor() {
    let Some(config) = part(Expected::ranks(RANKS)) else { return };
    let mesh = sheave_mesh::Mesh::join(config).unwrap();
    let particles = Particles::new(&mesh, "test").unwrap();
    let victim = std::env::var("SHEAVE_TEST_VICTIM").unwrap();
    let inference = if victim == "is crowded" {
        let (network, data) = digits();
        let room = CacheOptions { device: "test".into(), particles: Some(1), ..CacheOptions::default() };
        Inference::within(&particles, "test", network, data, room).unwrap()
    } else {
        inference(&particles, digits())
    };
    let rank = mesh.me().rank.0 as usize;
    let group = Collectives::new(&mesh).unwrap().group(&mesh.world()).unwrap();
    let svgd = SteinVgd::sharded(&inference, &group, &SteinVgdSettings::new(6, 50, Rule::adam(0.01))).unwrap();
    let own = particles.ids().len();
    mesh.world().barrier().unwrap();
    if rank == VICTIM && victim != "descends" {
        park();
    }
    let ends = |error: sheave_base::Error| {
        let about = error.about().map(|peer| peer.name.clone());
        assert_eq!((error.kind(), about.as_deref()), (ErrorKind::PeerLost, Some("rank-1")), "{error}");
        say("told");
    };
    if victim != "descends" {
        if rank == 0 {
            let all: Vec<_> = mesh.members().iter().map(|member| member.node).collect();
            let settings = EnsembleSettings::new(6, 50, Rule::adam(0.01));
            let ensemble = Ensemble::new(&inference.on(&all).unwrap(), &settings).unwrap();
            let fitted = ensemble.fit(FOR_EVER, |progress| {
                if progress.epoch == 2 {
                    say("fitting");
                }
            });
            ends(failed(fitted));
            drop(ensemble);
            let left = Ensemble::new(&inference, &EnsembleSettings::new(2, 50, Rule::adam(0.01))).unwrap();
            left.fit(2, |_| ()).unwrap();
        } else {
            until("the members of the ensemble come", || particles.ids().len() > own);
            until("they are gone again", || particles.ids().len() == own);
        }
    } else {
        let fitted = svgd.fit(FOR_EVER, |progress| {
            if progress.epoch == 2 {
                say("fitting");
            }
        });
        ends(failed(fitted));
    }
    let left = [mesh.members()[0].node, mesh.members()[2].node];
    mesh.group("left", &left).and_then(|left| left.barrier()).unwrap();
    say("done");
    mesh.finish().expect_err("one is gone");
}

fn kill(transport: Transport, victim: &str, told: &[usize]) {
    let (job, port) = (job(), free_port());
    let begin = |rank: u32| common::start_with(&job, &format!("rank-{rank}"), port, transport, victim);
    let children: Vec<_> = (0..RANKS).map(begin).collect();
    told.iter().for_each(|rank| drop(hear(&children[*rank], "fitting")));
    let killed = Instant::now();
    children[VICTIM].kill(SIGKILL).unwrap();
    told.iter().for_each(|rank| drop(hear(&children[*rank], "told")));
    let after = killed.elapsed();
    note(&format!("{victim}: told within {after:?}"));
    assert!(after < BOUND, "told {after:?}");
    for child in [&children[0], &children[2]] {
        hear(child, "done");
        let exit = child.wait(Some(soon())).unwrap().unwrap();
        assert!(exit.status.success(), "{exit:?}: {}", child.stderr_lines().join("\n"));
    }
}

#[test]
fn a_node_with_members_dies_while_they_are_fitted() {
    kill(Transport::Auto, "serves", &[0]);
}

#[test]
fn a_node_with_members_dies_behind_tcp() {
    kill(Transport::Tcp, "serves", &[0]);
}

/// Each node has room for one of its members, so that some wait for it when the victim dies.
#[test]
fn a_node_with_members_dies_where_they_share_its_room() {
    kill(Transport::Auto, "is crowded", &[0]);
}

#[test]
fn a_node_with_a_slice_dies() {
    kill(Transport::Auto, "descends", &[0, 2]);
}
