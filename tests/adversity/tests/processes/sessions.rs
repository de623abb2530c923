//! Sessions of two machines, and what a network does to them.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::hosts::Hosts;
use super::network::{both, cut, lossy, soon};
use super::players::{
    DEATH_BOUND, Job, MINORITY_BOUND, PROGRAM, Player, SILENCE_BOUND, all_end, all_end_well, all_name, say,
};
use super::wire::Trouble;
use crate::need;

/// A controller near and the other machine far, with two workers each. It takes `steps` times `pause_ms` at least.
fn session(hosts: &Hosts, steps: u64, pause_ms: u64) -> Vec<Player> {
    let job = Job::new(hosts.near.address, "", 0, 0);
    let start = |is_far: bool| {
        let host = if is_far { &hosts.far } else { &hosts.near };
        let mut command = Command::new(PROGRAM);
        command.args(if is_far { ["node", &job.root] } else { ["lead", &job.root] });
        if !is_far {
            command.args([steps.to_string(), pause_ms.to_string()]);
        }
        command.env("SHEAVE_SECRET", &job.secret).env("SHEAVE_INSECURE", "1").env("SHEAVE_JOIN_TIMEOUT_MS", "20000");
        command.env("SHEAVE_BIND", host.address.to_string());
        Player::start(Some(host), if is_far { "node" } else { "controller" }, command)
    };
    [false, true].map(start).into()
}

#[test]
#[ignore = "adversity suite: needs root"]
fn sessions_bear_delay_loss_and_reordering() {
    let hosts = need!(Hosts::new());
    both(&hosts, lossy());
    all_end_well(&mut session(&hosts, 60, 10), soon());
}

#[test]
#[ignore = "adversity suite: needs root"]
fn sessions_end_when_their_machines_are_parted() {
    let hosts = need!(Hosts::new());
    let mut players = session(&hosts, 100_000, 1);
    players[0].wait_joined(1);
    let trouble = Instant::now();
    both(&hosts, Trouble { is_blocked: true, ..Trouble::default() });
    let (controller, other) = players.split_at_mut(1);
    all_name(controller, &["node-00001.0"], trouble, SILENCE_BOUND + DEATH_BOUND);
    // Without the first member the other machine is a minority, which waits for somebody who has seen more.
    all_name(other, &["node-00000.0"], trouble, MINORITY_BOUND);
}

#[test]
#[ignore = "adversity suite: needs root"]
fn a_machine_that_is_killed_is_named_by_its_session() {
    let hosts = need!(Hosts::new());
    let mut players = session(&hosts, 100_000, 1);
    players[0].wait_joined(1);
    let trouble = Instant::now();
    players[1].signal(Signal::KILL);
    all_end(&mut players, trouble + DEATH_BOUND + Duration::from_secs(1));
    all_name(&mut players[..1], &["node-00001.0"], trouble, DEATH_BOUND + Duration::from_secs(1));
}

/// The wire is gone for less than a member may be silent.
#[test]
#[ignore = "adversity suite: needs root"]
fn sessions_bear_a_short_cut() {
    let hosts = need!(Hosts::new());
    let mut players = session(&hosts, 300, 10);
    players[0].wait_joined(1);
    cut(&hosts, Duration::from_millis(1500), (true, true));
    say("mended");
    all_end_well(&mut players, soon());
}
