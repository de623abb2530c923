//! The settings about this process's place in its job: what a mesh is joined with.

use super::{Variables, join_all, lookup};
use crate::checks;
use sheave_base::ErrorKind;
use sheave_mesh::environment::Membership;
use sheave_mesh::{Member, Mesh, Role};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Two ranks.
const RANKS: [Variables<'_>; 2] = [
    &[("SHEAVE_RANK", "0"), ("SHEAVE_WORLD_SIZE", "2"), ("SHEAVE_TRANSPORT", "tcp")],
    &[("SHEAVE_RANK", "1"), ("SHEAVE_WORLD_SIZE", "2"), ("SHEAVE_TRANSPORT", "tcp")],
];

/// A scheduler, a server and two workers.
const ROLES: [Variables<'_>; 4] = [
    &[("SHEAVE_ROLE", "scheduler"), ("SHEAVE_WORKERS", "2"), ("SHEAVE_SERVERS", "1")],
    &[("SHEAVE_ROLE", "server"), ("SHEAVE_WORKERS", "2"), ("SHEAVE_SERVERS", "1")],
    &[("SHEAVE_ROLE", "worker"), ("SHEAVE_WORKERS", "2"), ("SHEAVE_SERVERS", "1")],
    &[("SHEAVE_ROLE", "worker"), ("SHEAVE_WORKERS", "2"), ("SHEAVE_SERVERS", "1")],
];

/// Who each of these is, once all have met.
fn members(processes: &[Variables<'_>]) -> Vec<Member> {
    join_all(processes, |mesh| mesh.me().clone()).into_iter().map(|me| me.expect("all meet")).collect()
}

fn roles() -> Vec<(Role, u32)> {
    members(&ROLES).iter().map(|me| (me.introduction.role, me.role_rank)).collect()
}

/// The job of [`RANKS`], in which the second one has one more variable.
fn with(variable: (&'static str, &'static str)) -> [Vec<(&'static str, &'static str)>; 2] {
    [RANKS[0].to_vec(), [RANKS[1], &[variable]].concat()]
}

fn second(variable: (&'static str, &'static str)) -> Member {
    let [first, second] = with(variable);
    members(&[&first, &second]).remove(1)
}

checks! {
    "SHEAVE_ROLE" role_says_who_is_what {
        assert_eq!(roles().iter().map(|one| one.0).collect::<Vec<_>>(), [
            Role::Scheduler, Role::Server, Role::Worker, Role::Worker
        ]);
    }

    "SHEAVE_ROOT" root_is_where_somebody_listens {
        let port = sheave_base::port::free().expect("there are thousands");
        let root = format!("127.0.0.1:{port}");
        let alone = [("SHEAVE_RANK", "0"), ("SHEAVE_WORLD_SIZE", "1"), ("SHEAVE_ROOT", &*root)];
        let listens = move |_: &Mesh| TcpStream::connect(("127.0.0.1", port)).is_ok();
        assert!(!listens_now(port));
        assert!(join_all(&[&alone], listens)[0].as_ref().expect("it is alone"));
    }

    "SHEAVE_WORKERS" workers_are_counted {
        let workers = |roles: Vec<(Role, u32)>| roles.iter().filter(|one| one.0 == Role::Worker).count();
        assert_eq!(workers(roles()), 2);
        let fewer = ROLES[..3].iter().map(|one| [*one, &[("SHEAVE_WORKERS", "1")]].concat()).collect::<Vec<_>>();
        let fewer: Vec<Variables<'_>> = fewer.iter().map(Vec::as_slice).collect();
        assert_eq!(members(&fewer).len(), 3);
    }

    "SHEAVE_SERVERS" servers_are_counted {
        let without = [ROLES[0], ROLES[2], ROLES[3]].map(|one| [one, &[("SHEAVE_SERVERS", "0")]].concat());
        let without: Vec<Variables<'_>> = without.iter().map(Vec::as_slice).collect();
        assert!(members(&without).iter().all(|me| me.introduction.role != Role::Server));
        assert!(roles().contains(&(Role::Server, 0)));
    }

    "SHEAVE_RANK" rank_is_the_rank {
        let ranks: Vec<u32> = members(&[RANKS[0], RANKS[1]]).iter().map(|me| me.rank.0).collect();
        assert_eq!(ranks, [0, 1]);
    }

    "SHEAVE_WORLD_SIZE" world_size_is_awaited {
        let sizes = join_all(&RANKS, |mesh| mesh.members().len());
        assert!(sizes.iter().all(|size| *size.as_ref().expect("all meet") == 2));
        let alone = [("SHEAVE_RANK", "0"), ("SHEAVE_WORLD_SIZE", "1")];
        assert_eq!(join_all(&[&alone], |mesh| mesh.members().len())[0].as_ref().ok(), Some(&1));
    }

    "SHEAVE_LOCAL_RANK" local_rank_wins_over_the_launchers {
        let launched = [
            ("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1"), ("LOCAL_RANK", "0"),
        ];
        let local_rank = |variables: Variables<'_>| {
            Membership::from_lookup(lookup(variables)).expect("it makes sense").expect("it is a job").local_rank
        };
        assert_eq!(local_rank(&launched), Some(0));
        assert_eq!(local_rank(&[&launched[..], &[("SHEAVE_LOCAL_RANK", "1")]].concat()), Some(1));
    }

    "SHEAVE_NAME" name_is_what_the_others_call_it {
        assert_eq!(second(("SHEAVE_NAME", "the other")).introduction.name, "the other");
        assert_eq!(second(("SHEAVE_NAME", "")).introduction.name, "rank-1");
    }

    "SHEAVE_JOIN_TIMEOUT_MS" join_timeout_ends_a_join_that_lacks_somebody {
        let begun = Instant::now();
        let lonely = [RANKS[0], &[("SHEAVE_JOIN_TIMEOUT_MS", "100")]].concat();
        let error = join_all(&[&lonely], |_| ()).remove(0).expect_err("the other never comes");
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
        // It is a minute unless set.
        assert!(begun.elapsed() < Duration::from_secs(30), "{error}");
    }

    "SHEAVE_BIND" bind_is_the_address_that_is_told {
        assert!(second(("SHEAVE_BIND", "127.0.0.2")).introduction.address.contains("//127.0.0.2:"));
        assert!(second(("SHEAVE_BIND", "")).introduction.address.contains("//127.0.0.1:"));
    }

    "SHEAVE_HOST" host_is_told_instead_of_what_is_bound {
        assert!(second(("SHEAVE_HOST", "127.0.0.3")).introduction.address.contains("//127.0.0.3:"));
        assert!(second(("SHEAVE_HOST", "")).introduction.address.contains("//127.0.0.1:"));
    }

    "SHEAVE_INSECURE" insecure_permits_to_listen_everywhere {
        let everywhere = |insecure| {
            let [first, second] = with(("SHEAVE_BIND", "0.0.0.0"));
            let short = ("SHEAVE_JOIN_TIMEOUT_MS", "3000");
            let [first, second] =
                [first, second].map(|one| [&one[..], &[("SHEAVE_INSECURE", insecure), short]].concat());
            join_all(&[&first, &second], |_| ()).remove(1)
        };
        everywhere("1").expect("it may");
        let error = everywhere("0").expect_err("it may not");
        assert!(error.to_string().contains("insecure") || error.to_string().contains("INSECURE"), "{error}");
    }
}

fn listens_now(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}
