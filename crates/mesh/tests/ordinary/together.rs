//! Joining, groups, barriers and leaving, with real links between the nodes.

use crate::common::{config, free_port, roles, secret, together, together_with, until, wait};
use sheave_base::ErrorKind;
use sheave_base::config::Transport;
use sheave_mesh::{Config, Expected, Mesh, Role};
use sheave_net::{Medium, Neighbourhood};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[test]
fn ranks_are_those_that_were_wanted_over_every_transport() {
    for transport in [Transport::Shm, Transport::Tcp, Transport::Auto] {
        let seen = together(Expected::ranks(4), transport, |mesh| {
            mesh.world().barrier().expect("all are there");
            let names: Vec<String> = mesh.members().iter().map(|member| member.introduction.name.clone()).collect();
            let rank = mesh.me().rank.0;
            mesh.finish().expect("all are well");
            (rank, names)
        });
        for (rank, (own, names)) in (0..).zip(&seen) {
            assert_eq!(*own, rank);
            assert_eq!(names, &["rank-0", "rank-1", "rank-2", "rank-3"], "{transport:?}");
        }
    }
}

#[test]
fn a_join_that_is_begun_goes_on_beside_the_program_and_can_be_cancelled() {
    let expected = Expected::ranks(3);
    let port = free_port();
    let begin = |rank| Mesh::begin_join(config(Role::Rank, Some(rank), expected, port, Transport::Auto)).unwrap();
    let [first, second] = [0, 1].map(begin);
    assert!(!first.is_done() && !second.is_done(), "one is missing");
    let begun = Instant::now();
    second.cancel();
    let error = wait_for(second).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // Another one may take its place.
    let others = [1, 2].map(begin);
    let joined: Vec<_> = std::iter::once(first).chain(others).map(wait_for).collect();
    let finishing = joined.into_iter().map(|joined| {
        let mesh = joined.expect("all have come");
        assert_eq!(mesh.members().len(), 3);
        std::thread::spawn(move || mesh.finish())
    });
    let finishing: Vec<_> = finishing.collect();
    finishing.into_iter().for_each(|thread| thread.join().expect("no panic").expect("all are well"));
}

fn wait_for(joined: sheave_base::Work<Mesh>) -> sheave_base::Result<Mesh> {
    joined.join_timeout(Duration::from_secs(60))
}

#[test]
fn threads_of_one_neighbourhood_are_linked_within_the_process_alone() {
    for _ in 0..10 {
        let neighbourhood = Neighbourhood::default();
        let change = |config: &mut Config| config.node.neighbourhood = Some(neighbourhood.clone());
        let media = together_with(Expected::ranks(4), Transport::Auto, change, |mesh| {
            mesh.world().barrier().expect("all are there");
            let others = mesh.members().iter().filter(|member| member.node != mesh.me().node);
            others.for_each(|other| assert!(mesh.link_to(other.node).is_ok()));
            mesh.world().barrier().expect("all are there");
            let node = mesh.node();
            let media = node.links().into_iter().map(|link| node.link(link).expect("nobody has left").medium());
            let media: Vec<_> = media.collect();
            mesh.world().barrier().expect("all are there");
            mesh.finish().expect("all are well");
            media
        });
        for media in media {
            // Two who want a link at the same time may have one each.
            assert!(media.len() >= 3 && media.iter().all(|medium| *medium == Medium::InProcess), "{media:?}");
        }
        assert!(neighbourhood.is_empty());
    }
}

#[test]
fn a_neighbour_that_is_dropped_is_missed_at_once() {
    let neighbourhood = Neighbourhood::default();
    let change = |config: &mut Config| config.node.neighbourhood = Some(neighbourhood.clone());
    let dropped = Arc::new(Mutex::new(None));
    together_with(Expected::ranks(3), Transport::Auto, change, move |mesh| {
        mesh.world().barrier().expect("all are there");
        if mesh.me().rank.0 == 1 {
            *dropped.lock().expect("no panic") = Some(Instant::now());
            return drop(mesh);
        }
        let error = mesh.world().barrier().expect_err("rank 1 does not come");
        let since = dropped.lock().expect("no panic").expect("rank 1 has gone").elapsed();
        assert!(since < Duration::from_secs(1) && error.to_string().contains("rank-1"), "{error}, after {since:?}");
    });
}

#[test]
fn roles_are_ranked_in_their_order_and_named_by_the_coordinator() {
    let change = |config: &mut Config| {
        // As a launcher that gives no ranks: names decide.
        config.name = config.rank.filter(|_| config.role == Role::Worker).map(|rank| format!("w{}", 9 - rank));
        config.rank = None;
    };
    let seen = together_with(roles(2, 3), Transport::Auto, change, |mesh| {
        let me = mesh.me();
        let peer = me.peer();
        let about = (me.rank.0, me.introduction.role, me.role_rank, me.introduction.name.clone());
        assert_eq!((peer.role, peer.pid), (Some(me.introduction.role), Some(std::process::id())));
        mesh.finish().expect("all are well");
        about
    });
    let mut seen = seen;
    seen.sort_unstable_by_key(|about| about.0);
    let names: Vec<&str> = seen.iter().map(|about| about.3.as_str()).collect();
    assert_eq!(names, ["scheduler", "server-0", "server-1", "w7", "w8", "w9"]);
    assert_eq!(seen.iter().map(|about| about.2).collect::<Vec<_>>(), [0, 0, 1, 0, 1, 2]);
}

#[test]
fn a_barrier_waits_for_the_last_one() {
    let entered = Arc::new(AtomicU32::new(0));
    together(Expected::ranks(3), Transport::Auto, move |mesh| {
        let world = mesh.world();
        for round in 1..=200 {
            entered.fetch_add(1, SeqCst);
            world.barrier().expect("all are there");
            assert!(entered.load(SeqCst) >= 3 * round, "nobody passes before all have entered");
        }
        mesh.finish().expect("all are well");
    });
}

#[test]
fn groups_keep_their_own_barriers_and_conversions() {
    together(Expected::ranks(4), Transport::Auto, |mesh| {
        let nodes: Vec<_> = mesh.members().iter().map(|member| member.node).collect();
        let odd = mesh.me().rank.0 % 2 == 1;
        let mine: Vec<_> = nodes.iter().copied().skip(usize::from(odd)).step_by(2).collect();
        let group = mesh.group("halves", &mine).expect("they are members");
        assert_eq!((group.size(), group.rank().0), (2, mesh.me().rank.0 / 2));
        assert_eq!(group.node(group.rank()), Some(mesh.me().node));
        let others: Vec<_> = nodes.iter().copied().filter(|node| !mine.contains(node)).collect();
        let error = mesh.group("halves", &others).expect_err("this node is not one of them");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        for _ in 0..50 {
            group.barrier().expect("both are there");
        }
        mesh.finish().expect("all are well");
    });
}

#[test]
fn a_late_member_is_named_when_the_deadline_has_passed() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&told);
    together(Expected::ranks(3), Transport::Auto, move |mesh| {
        let world = mesh.world();
        if mesh.me().rank.0 < 2 {
            let deadline = (mesh.me().rank.0 == 0).then_some(Duration::from_millis(100));
            let error = wait(&world.begin_barrier(deadline)).expect_err("rank 2 does not come");
            notes.lock().unwrap().push((mesh.me().rank.0, error));
        }
        // The deadline of one breaks the group for all.
        until("the group is broken", || world.broken().is_some());
        assert!(world.barrier().is_err(), "a broken group stays broken");
        let name = "the rest";
        let nodes: Vec<_> = mesh.members().iter().map(|member| member.node).collect();
        mesh.group(name, &nodes).expect("all live").barrier().expect("another group is whole");
        mesh.leave().expect("all agree");
    });
    let told = told.lock().unwrap();
    assert_eq!(told.len(), 2);
    for (rank, error) in told.iter() {
        assert_eq!(error.kind() == ErrorKind::DeadlineExceeded, *rank == 0, "{error}");
        assert!(error.what().contains("rank-2"), "the late one is named: {error}");
    }
}

#[test]
fn who_leaves_is_not_dead_and_the_rest_goes_on() {
    together(Expected::ranks(3), Transport::Auto, |mesh| {
        let world = mesh.world();
        world.barrier().expect("all are there");
        if mesh.me().rank.0 == 0 {
            // The coordinator goes first.
            return mesh.leave().expect("all agree");
        }
        let error = world.barrier().expect_err("one has left");
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        assert!(error.to_string().contains("rank-0") && error.to_string().contains("left"), "{error}");
        let rest = world.shrink().expect("two are left");
        assert_eq!(rest.size(), 2);
        rest.barrier().expect("both are there");
        assert_eq!(mesh.num_dead_node(|_| true), 0);
        assert_eq!(mesh.coordinator(), rest.node(sheave_base::Rank(0)));
        assert!(mesh.epoch().0 > 1);
        rest.barrier().expect("both are there");
        let error = mesh.world().barrier().expect_err("a group that is made too late is broken from the start");
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        let late = mesh.world().shrink().expect("two are left");
        assert_eq!((late.id(), late.nodes()), (rest.id(), rest.nodes()), "it shrinks like any other");
        late.barrier().expect("both are there");
        mesh.leave().expect("all agree");
        let error = world.barrier().expect_err("this node has left");
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    });
}

#[test]
fn everybody_may_leave_at_once_and_by_dropping() {
    for count in 1..=6 {
        together(Expected::ranks(count), Transport::Auto, |mesh| {
            mesh.world().barrier().expect("all are there");
            let begun = Instant::now();
            drop(mesh);
            assert!(begun.elapsed() < Duration::from_millis(900), "nobody waits for a beat: {:?}", begun.elapsed());
        });
    }
}

#[test]
fn a_join_says_who_is_missing_and_where_secrets_came_from() {
    let port = free_port();
    let join = move |role, rank| {
        let mut config = config(role, Some(rank), roles(2, 2), port, Transport::Auto);
        config.join_timeout = Duration::from_millis(1500);
        std::thread::spawn(move || Mesh::join(config).expect_err("not all come"))
    };
    let errors = [join(Role::Scheduler, 0), join(Role::Worker, 1), join(Role::Server, 0)];
    for thread in errors {
        let error = thread.join().expect("no panic");
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
        let text = error.to_string();
        for part in ["1 of 2 servers", "1 of 2 workers", "the test", &std::process::id().to_string()] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(error.operation_name(), Some("join"));
    }
}

#[test]
fn a_stranger_with_another_secret_is_told_and_told_of() {
    let port = free_port();
    let mut host = config(Role::Rank, Some(0), Expected::ranks(2), port, Transport::Auto);
    host.join_timeout = Duration::from_millis(1500);
    let mut other = config(Role::Rank, Some(1), Expected::ranks(2), port, Transport::Auto);
    other.node.secret = secret("something else entirely");
    let hosting = std::thread::spawn(move || Mesh::join(host).expect_err("nobody else comes"));
    let error = Mesh::join(other).expect_err("another secret");
    assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
    let error = hosting.join().expect("no panic");
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
    assert!(error.to_string().contains("secret"), "{error}");
}

#[test]
fn a_busy_port_is_said() {
    let port = free_port();
    let _busy = std::net::TcpListener::bind(("127.0.0.1", port)).expect("it is free");
    let config = config(Role::Rank, Some(0), Expected::ranks(1), port, Transport::Auto);
    let error = Mesh::join(config).expect_err("it is busy");
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    assert!(error.to_string().contains(&port.to_string()), "{error}");
}

#[test]
fn nobody_at_the_root_is_said_with_its_address() {
    let port = free_port();
    let mut config = config(Role::Worker, Some(0), roles(1, 1), port, Transport::Auto);
    config.join_timeout = Duration::from_millis(300);
    let begun = Instant::now();
    let error = Mesh::join(config).expect_err("nobody is there");
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
    assert!(error.to_string().contains(&port.to_string()) && error.advice().is_some(), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn what_no_mesh_can_be_made_from_is_refused_at_once() {
    let port = free_port();
    let bad = [
        (Role::Server, Some(0), roles(0, 1)),
        (Role::Worker, Some(3), roles(1, 3)),
        (Role::Rank, None, Expected::ranks(2)),
        (Role::Worker, Some(0), Expected { workers: 1, ..Expected::default() }),
    ];
    for (role, rank, expected) in bad {
        let error = Mesh::join(config(role, rank, expected, port, Transport::Auto)).expect_err("it makes no sense");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

/// Joins as each of these environments says, all at once, and returns roles and names by mesh rank.
fn join_from(environments: &[Vec<(&'static str, String)>]) -> Vec<(Role, String)> {
    let join = |environment: &Vec<(&'static str, String)>| {
        let environment = environment.clone();
        let lookup = |name: &str| environment.iter().find(|one| one.0 == name).map(|one| one.1.clone().into());
        let mut config = Config::from_lookup(lookup).expect("it makes sense").expect("it describes a job");
        config.node.secret = secret("known to the tests alone");
        std::thread::spawn(move || {
            let mesh = Mesh::join(config).expect("everybody comes");
            mesh.world().barrier().expect("all are there");
            let members = mesh.members().iter().map(|member| {
                let about = &member.introduction;
                (about.role, about.name.clone())
            });
            let members: Vec<_> = members.collect();
            mesh.finish().expect("all are well");
            members
        })
    };
    let threads: Vec<_> = environments.iter().map(join).collect();
    let mut seen: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("no node panics")).collect();
    assert!(seen.iter().all(|members| *members == seen[0]), "all see the same: {seen:?}");
    seen.swap_remove(0)
}

#[test]
fn a_job_of_ps_lite_joins_by_its_own_variables() {
    let port = free_port().to_string();
    let of = |role: &str| {
        let pairs = [
            ("DMLC_ROLE", role),
            ("DMLC_PS_ROOT_URI", "127.0.0.1"),
            ("DMLC_PS_ROOT_PORT", port.as_str()),
            ("DMLC_NUM_WORKER", "2"),
            ("DMLC_NUM_SERVER", "1"),
        ];
        pairs.map(|(name, value)| (name, value.to_owned())).to_vec()
    };
    let members = join_from(&[of("worker"), of("server"), of("scheduler"), of("worker")]);
    let roles: Vec<Role> = members.iter().map(|member| member.0).collect();
    assert_eq!(roles, [Role::Scheduler, Role::Server, Role::Worker, Role::Worker]);
    assert_eq!(members[3].1, "worker-1", "no launcher gave names: {members:?}");
}

#[test]
fn a_job_of_torchrun_joins_beside_the_port_of_its_agent() {
    let port = free_port();
    // The agent owns MASTER_PORT, and torch.distributed must go on working beside us.
    let agent = std::net::TcpListener::bind(("127.0.0.1", port)).expect("it is free");
    let of = |rank: u32| {
        let pairs = [
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", port.to_string()),
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", "3".to_owned()),
            ("LOCAL_RANK", rank.to_string()),
        ];
        pairs.to_vec()
    };
    let members = join_from(&[of(2), of(0), of(1)]);
    assert_eq!(members.iter().map(|member| member.1.as_str()).collect::<Vec<_>>(), ["rank-0", "rank-1", "rank-2"]);
    drop(agent);
}

#[test]
fn a_job_of_sheave_joins_by_its_own_variables() {
    let port = free_port();
    let of = |role: &str, rank: &str| {
        let pairs = [
            ("SHEAVE_ROLE", role),
            ("SHEAVE_ROOT", "127.0.0.1"),
            ("SHEAVE_WORKERS", "2"),
            ("SHEAVE_SERVERS", "1"),
            ("SHEAVE_RANK", rank),
        ];
        let mut pairs = pairs.map(|(name, value)| (name, value.to_owned())).to_vec();
        pairs[1].1 = format!("127.0.0.1:{port}");
        pairs.retain(|(_, value)| !value.is_empty());
        pairs
    };
    let members = join_from(&[of("server", "0"), of("worker", "1"), of("scheduler", ""), of("worker", "0")]);
    let names: Vec<&str> = members.iter().map(|member| member.1.as_str()).collect();
    assert_eq!(names, ["scheduler", "server-0", "worker-0", "worker-1"]);
}
