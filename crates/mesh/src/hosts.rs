//! Whether the members of a mesh can reach each other, by what their launcher says and what they have said themselves.

use crate::config::Config;
use crate::engine::Member;
use sheave_base::{Error, ErrorKind, Result};
use sheave_net::Address;
use std::net::SocketAddr;

const HINT: &str =
    "set SHEAVE_BIND to an address of each host, or to 0.0.0.0, and SHEAVE_INSECURE=1 if you trust the network";

/// Refuses to meet where other hosts reach it in a job that the launcher has started on several, if nobody may listen
/// there: rank 0 could not, and the others would wait for it. All ranks come to the same answer, for a launcher gives
/// all the same variables.
pub(crate) fn check_root(config: &Config, root: SocketAddr) -> Result<()> {
    if !config.is_of_several_hosts || config.insecure || root.ip().is_loopback() {
        return Ok(());
    }
    let what = "the launcher has started ranks on several hosts, and none of them may listen where others reach it";
    let error = Error::new(ErrorKind::InvalidArgument, what).context(format!("meeting at {root}"));
    Err(error.operation("join").hint(HINT))
}

/// Refuses a mesh of several hosts of which one member listens at loopback. All members come to the same answer, for
/// all have the same table.
pub(crate) fn check(table: &[Member]) -> Result<()> {
    let places: Vec<(&Member, Address)> =
        table.iter().filter_map(|member| Some((member, member.introduction.address.parse().ok()?))).collect();
    let Some((other, _)) = places.iter().find(|(_, place)| {
        let first = places.first().map(|(_, first)| first.boot_id.as_str());
        !place.boot_id.is_empty() && first.is_some_and(|first| !first.is_empty() && first != place.boot_id)
    }) else {
        return Ok(());
    };
    let is_hidden = |place: &Address| place.tcp.is_some_and(|tcp| tcp.ip().is_loopback());
    let Some((hidden, place)) = places.iter().find(|(_, place)| is_hidden(place)) else { return Ok(()) };
    let at = place.tcp.map(|tcp| tcp.to_string()).unwrap_or_default();
    // Somebody on another host than the hidden one: the first member, or else the one found above.
    let far = places.first().filter(|(_, first)| first.boot_id != place.boot_id).map_or(*other, |(first, _)| *first);
    let (near, far) = (&hidden.introduction, &far.introduction);
    let what = format!(
        "{} on {} listens at {at}, which {} on {} cannot reach: members of several hosts need addresses of their hosts",
        near.name, near.host, far.name, far.host
    );
    Err(Error::new(ErrorKind::InvalidArgument, what).hint(HINT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Introduction, Role};
    use sheave_base::{NodeId, Rank};

    fn table(members: &[(&str, &str)]) -> Vec<Member> {
        let member = |(rank, (host, at)): (u32, &(&str, &str))| Member {
            node: NodeId(u64::from(rank) + 1),
            rank: Rank(rank),
            role_rank: rank,
            introduction: Introduction {
                name: format!("rank-{rank}"),
                role: Role::Rank,
                wanted_rank: Some(rank),
                host: (*host).to_owned(),
                pid: 100,
                secret_source: "a test".into(),
                address: Address { boot_id: (*host).to_owned(), ..Address::of_socket(at.parse().expect("it is one")) }
                    .to_string(),
                process: String::new(),
            },
        };
        (0..).zip(members).map(member).collect()
    }

    #[test]
    fn f87_members_of_several_hosts_must_not_listen_at_loopback() {
        check(&table(&[("a", "127.0.0.1:1"), ("a", "127.0.0.1:2")])).expect("one host");
        check(&table(&[("a", "10.0.0.1:1"), ("b", "10.0.0.2:1")])).expect("all can be reached");
        for members in [
            [("a", "10.0.0.1:1"), ("a", "10.0.0.1:2"), ("b", "127.0.0.1:45759")],
            [("b", "127.0.0.1:45759"), ("a", "10.0.0.1:1"), ("a", "10.0.0.1:2")],
        ] {
            let error = check(&table(&members)).expect_err("b cannot be reached");
            let text = error.to_string();
            assert!(text.contains(" on b listens at 127.0.0.1:45759, which rank-"), "{text}");
            assert!(text.contains(" on a cannot reach") && text.contains("SHEAVE_BIND"), "{text}");
        }
    }

    #[test]
    fn ranks_of_several_hosts_meet_where_they_may_listen() {
        let config = |more: &[(&'static str, &'static str)]| {
            let slurm = [
                ("SLURM_PROCID", "1"),
                ("SLURM_STEP_NUM_TASKS", "3"),
                ("SLURM_NODEID", "0"),
                ("SLURM_LOCALID", "1"),
                ("SLURM_STEP_TASKS_PER_NODE", "2,1"),
                ("SLURM_STEP_NODELIST", "n[1-2]"),
                ("SLURM_STEP_ID", "0"),
                ("SLURM_JOB_ID", "7"),
            ];
            // The later one counts.
            let lookup =
                |name: &str| slurm.iter().chain(more).rfind(|entry| entry.0 == name).map(|entry| entry.1.into());
            Config::from_lookup(lookup).expect("it holds together").expect("it is a job")
        };
        let (far, near) = ("10.0.0.1:20500".parse().expect("it is one"), "127.0.0.1:20500".parse().expect("it is one"));
        let error = check_root(&config(&[]), far).expect_err("nobody can listen there").to_string();
        assert!(error.contains("join: meeting at 10.0.0.1:20500: ") && error.ends_with(HINT), "{error}");
        check_root(&config(&[]), near).expect("two launchers of one host may meet at loopback");
        check_root(&config(&[("SHEAVE_INSECURE", "1")]), far).expect("it is permitted");
        check_root(&config(&[("SLURM_STEP_TASKS_PER_NODE", "3")]), far).expect("all are on one host");
    }
}
