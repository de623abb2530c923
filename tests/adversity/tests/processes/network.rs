//! Jobs on two hosts, and what a network does to them.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use super::hosts::Hosts;
use super::players::{
    BEAT, Job, MINORITY_BOUND, PATIENCE, Player, SILENCE_BOUND, TIMEOUT, all_end, all_end_well, all_name, say, until,
};
use super::wire::{Rewrite, Trouble};
use crate::need;

const MS: Duration = Duration::from_millis(1);

/// A job on both hosts that lasts about `steps` times `pause_ms`: ranks 0 and 2 are near, rank 1 is far.
fn reducing(hosts: &Hosts, steps: usize, pause_ms: u64, variables: &[(&str, &str)]) -> Vec<Player> {
    let job = Job::new(hosts.near.address, "reduce", steps, pause_ms).env("SHEAVE_INSECURE", "1");
    let job = variables.iter().fold(job, |job, (name, value)| job.env(name, value));
    let start = |rank: u32| {
        let host = if rank == 1 { &hosts.far } else { &hosts.near };
        let mut command = job.rank(rank, 3);
        command.env("SHEAVE_BIND", host.address.to_string());
        Player::start(Some(host), &format!("rank-{rank}"), command)
    };
    (0..3).map(start).collect()
}

/// A job with servers: the scheduler, server 0 and worker 0 are near, server 1 and worker 1 far.
fn serving(hosts: &Hosts, kind: &str, steps: usize, pause_ms: u64) -> Vec<Player> {
    let job = Job::new(hosts.near.address, kind, steps, pause_ms).env("SHEAVE_INSECURE", "1");
    // An exchange pulls from every server; one is enough for it here, and it is far from one of the workers.
    let servers = if kind == "exchange" { 1 } else { 2 };
    let names = ["scheduler", "server-0", "server-1", "worker-0", "worker-1"];
    let start = |name: &&str| {
        let host = if name.ends_with("-1") { &hosts.far } else { &hosts.near };
        let mut command = job.part(name, servers, 2);
        command.env("SHEAVE_BIND", host.address.to_string());
        Player::start(Some(host), name, command)
    };
    names.iter().filter(|name| servers == 2 || **name != "server-1").map(start).collect()
}

pub(crate) fn soon() -> Instant {
    Instant::now() + PATIENCE
}

pub(crate) fn both(hosts: &Hosts, trouble: Trouble) {
    hosts.there.set(trouble);
    hosts.back.set(trouble);
}

/// Blocks the ways for `time`, and returns when it began.
pub(crate) fn cut(hosts: &Hosts, time: Duration, ways: (bool, bool)) -> Instant {
    let began = Instant::now();
    hosts.there.set(Trouble { is_blocked: ways.0, ..Trouble::default() });
    hosts.back.set(Trouble { is_blocked: ways.1, ..Trouble::default() });
    until(began + time, || false);
    both(hosts, Trouble::default());
    began
}

pub(crate) fn lossy() -> Trouble {
    Trouble { delay: 5 * MS, jitter: 5 * MS, loss_per_mille: 10, ..Trouble::default() }
}

#[test]
#[ignore = "adversity suite: needs root"]
fn ranks_bear_delay_loss_and_reordering() {
    let hosts = need!(Hosts::new());
    both(&hosts, lossy());
    all_end_well(&mut reducing(&hosts, 60, 10, &[]), soon());
}

#[test]
#[ignore = "adversity suite: needs root"]
fn stores_bear_delay_loss_and_reordering() {
    let hosts = need!(Hosts::new());
    both(&hosts, lossy());
    all_end_well(&mut serving(&hosts, "store", 30, 10), soon());
}

#[test]
#[ignore = "adversity suite: needs root"]
fn exchanges_bear_delay_loss_and_reordering() {
    let hosts = need!(Hosts::new());
    both(&hosts, lossy());
    all_end_well(&mut serving(&hosts, "exchange", 60, 10), soon());
}

/// 800 kB of every third step take a second and more: longer than any patience in milliseconds, and no silence.
#[test]
#[ignore = "adversity suite: needs root"]
fn a_slow_wire_carries_everything() {
    let hosts = need!(Hosts::new());
    both(&hosts, Trouble { bytes_per_s: Some(1 << 20), ..Trouble::default() });
    all_end_well(&mut reducing(&hosts, 9, 0, &[]), soon());
}

#[test]
#[ignore = "adversity suite: needs root"]
fn a_slow_wire_carries_everything_of_a_store() {
    let hosts = need!(Hosts::new());
    both(&hosts, Trouble { bytes_per_s: Some(1 << 20), ..Trouble::default() });
    all_end_well(&mut serving(&hosts, "store", 3, 0), soon());
}

/// The last rank to send leaves at once; what it sent still passes the wire for seconds.
#[test]
#[ignore = "adversity suite: needs root"]
fn who_leaves_over_a_slow_wire_fails_nobody() {
    let hosts = need!(Hosts::new());
    for round in 0..3 {
        both(&hosts, Trouble { bytes_per_s: Some(600 << 10), ..Trouble::default() });
        let mut players = reducing(&hosts, 3, 0, &[]);
        all_end_well(&mut players, soon());
        say(&format!("round {round}"));
    }
}

/// A sign of life may have been sent a beat before the cut, so a cut that is shorter than the timeout by that is no
/// silence of the timeout.
fn heals(cut_ms: u64, beat_ms: u64, ways: (bool, bool)) {
    let hosts = need!(Hosts::new());
    assert!(cut_ms + beat_ms < TIMEOUT.as_millis() as u64, "it would be a silence");
    let beat = beat_ms.to_string();
    let mut players = reducing(&hosts, 450, 20, &[("SHEAVE_LIVENESS_BEAT_MS", &beat)]);
    players.iter().for_each(|player| player.wait_joined(1));
    // In the middle of the traffic, which lasts nine seconds.
    until(Instant::now() + 500 * MS, || false);
    cut(&hosts, Duration::from_millis(cut_ms), ways);
    all_end_well(&mut players, soon());
}

macro_rules! cuts_that_heal {
    ($($name:ident: $cut_ms:literal ms, beats of $beat_ms:literal ms, $ways:expr;)*) => {
        $(
            #[test]
            #[ignore = "adversity suite: needs root"]
            fn $name() {
                heals($cut_ms, $beat_ms, $ways);
            }
        )*
    };
}

cuts_that_heal! {
    a_cut_of_1_s_heals: 1000 ms, beats of 1000 ms, (true, true);
    a_cut_of_2500_ms_heals: 2500 ms, beats of 1000 ms, (true, true);
    a_cut_of_3300_ms_heals: 3300 ms, beats of 1000 ms, (true, true);
    a_cut_of_3900_ms_heals: 3900 ms, beats of 1000 ms, (true, true);
    a_cut_of_4500_ms_heals: 4500 ms, beats of 250 ms, (true, true);
    a_cut_of_4900_ms_heals: 4900 ms, beats of 50 ms, (true, true);
    a_deaf_host_of_3900_ms_heals: 3900 ms, beats of 1000 ms, (true, false);
    a_mute_host_of_3900_ms_heals: 3900 ms, beats of 1000 ms, (false, true);
}

/// Everybody learns of a cut that stays, on both sides of it, and says who is lost.
fn stays(ways: (bool, bool)) {
    let hosts = need!(Hosts::new());
    let mut players = reducing(&hosts, 3000, 20, &[]);
    players.iter().for_each(|player| player.wait_joined(1));
    until(Instant::now() + 500 * MS, || false);
    let began = Instant::now();
    hosts.there.set(Trouble { is_blocked: ways.0, ..Trouble::default() });
    hosts.back.set(Trouble { is_blocked: ways.1, ..Trouble::default() });
    // The near side loses rank 1, the far one its majority: rank 0, rank 2, or both.
    all_name(&mut players, &["rank-0", "rank-1", "rank-2"], began, SILENCE_BOUND);
    for near in [0, 2] {
        assert!(players[near].words().contains("rank-1"), "the near side loses rank 1: {}", players[near].words());
    }
}

#[test]
#[ignore = "adversity suite: needs root"]
fn a_cut_that_stays_is_told_on_both_sides() {
    stays((true, true));
}

#[test]
#[ignore = "adversity suite: needs root"]
fn a_way_there_that_is_blocked_is_told_on_both_sides() {
    stays((true, false));
}

#[test]
#[ignore = "adversity suite: needs root"]
fn a_way_back_that_is_blocked_is_told_on_both_sides() {
    stays((false, true));
}

/// The far side is a minority: two of five that hear each other. It looks for a successor of the coordinator that it
/// lost before it gives up, which takes longer.
#[test]
#[ignore = "adversity suite: needs root"]
fn a_store_that_is_cut_in_two_ends_on_both_sides() {
    let hosts = need!(Hosts::new());
    let mut near = serving(&hosts, "store", 3000, 20);
    near.iter().for_each(|player| player.wait_joined(1));
    until(Instant::now() + 500 * MS, || false);
    let began = Instant::now();
    both(&hosts, Trouble { is_blocked: true, ..Trouble::default() });
    let mut far = vec![near.pop().expect("worker 1"), near.remove(2)];
    all_name(&mut near, &["server-1", "worker-1"], began, SILENCE_BOUND);
    all_name(&mut far, &["scheduler", "server-0", "worker-0"], began, MINORITY_BOUND);
}

/// The hosts reach each other under addresses that they do not have themselves.
fn translated() -> Result<Hosts, String> {
    let (near, far) = (Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(192, 168, 7, 2));
    let public = Ipv4Addr::new(10, 77, 0, 2);
    let hosts = Hosts::with((near, far), (public, near))?;
    hosts.there.set(Trouble { rewrites: Some(Rewrite::Destination(far)), ..Trouble::default() });
    hosts.back.set(Trouble { rewrites: Some(Rewrite::Source(public)), ..Trouble::default() });
    Ok(hosts)
}

/// Rank 1 says under which address it is reached. Without that it may work, where rank 1 makes all links itself, and
/// otherwise the error names it.
#[test]
#[ignore = "adversity suite: needs root"]
fn a_host_behind_a_router_that_translates_addresses_says_its_own() {
    let hosts = need!(translated());
    let job = Job::new(hosts.near.address, "reduce", 60, 10).env("SHEAVE_INSECURE", "1");
    let start = |rank: u32, is_told: bool| {
        let host = if rank == 1 { &hosts.far } else { &hosts.near };
        let mut command = job.rank(rank, 3);
        command.env("SHEAVE_BIND", host.address.to_string());
        if rank == 1 && is_told {
            command.env("DMLC_NODE_HOST", "10.77.0.2");
        }
        Player::start(Some(host), &format!("rank-{rank}"), command)
    };
    all_end_well(&mut (0..3).map(|rank| start(rank, true)).collect::<Vec<_>>(), soon());
    let mut players: Vec<_> = (0..3).map(|rank| start(rank, false)).collect();
    all_end(&mut players, soon());
    for player in &players {
        let words = player.words();
        say(&format!("untold {}: {}: {words}", player.name, player.status()));
        assert!(player.status().success() || words.contains("rank-"), "{words}");
    }
}

/// Members on several hosts that listen where nobody else can reach them are refused in the join, with the cure.
#[test]
#[ignore = "adversity suite: needs root"]
fn f87_hosts_that_listen_on_loopback_only_are_refused_in_the_join() {
    let hosts = need!(Hosts::new());
    let job = Job::new(hosts.near.address, "reduce", 60, 10).env("SHEAVE_INSECURE", "1");
    let job = job.env("SHEAVE_JOIN_TIMEOUT_MS", "8000");
    let began = Instant::now();
    let start = |rank: u32| {
        let host = if rank == 2 { &hosts.far } else { &hosts.near };
        Player::start(Some(host), &format!("rank-{rank}"), job.rank(rank, 3))
    };
    let mut players: Vec<_> = (0..3).map(start).collect();
    all_name(&mut players, &["SHEAVE_BIND"], began, Duration::from_secs(10) + BEAT);
    let joined = players.iter().find(|player| player.words().contains("joined"));
    assert!(joined.is_none(), "{} joined what cannot work", joined.map_or("", |player| player.name.as_str()));
}
