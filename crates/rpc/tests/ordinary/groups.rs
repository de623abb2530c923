//! Groups, services and values among nodes of one process, over real links.

use crate::common;
use crate::common::{PATIENCE, failed, together};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, NodeId, Result};
use sheave_mesh::{Call, Expected, Mesh, Request};
use sheave_rpc::{Rpc, RpcGroup};
use sheave_tensor::{Mode, Tensor};
use sheave_wire::Value;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const LONG: Option<Duration> = Some(PATIENCE);

/// The nodes of these ranks.
fn nodes(mesh: &Mesh, ranks: &[usize]) -> Vec<NodeId> {
    ranks.iter().map(|rank| mesh.members()[*rank].node).collect()
}

fn group(rpc: &Rpc, mesh: &Mesh, name: &str, ranks: &[usize]) -> Result<RpcGroup> {
    rpc.create_group(name, &nodes(mesh, ranks), LONG).wait()
}

/// A node that can make groups, as all others can.
fn begin(mesh: &Mesh) -> Rpc {
    let rpc = Rpc::serve(mesh).expect("once");
    mesh.world().barrier().expect("all are there");
    rpc
}

/// Answers with who it is.
fn who(mesh: &Mesh) -> impl Fn(Request) + Send + Sync + 'static {
    let name = mesh.name().to_owned();
    move |request| request.reply.value(name.as_str())
}

fn register(group: &RpcGroup, key: impl Into<Value>, service: impl sheave_mesh::Service) -> Result<()> {
    group.register(key, service, LONG)?.wait()
}

fn take_away(group: &RpcGroup, key: impl Into<Value>) -> Result<()> {
    group.deregister(key, LONG)?.wait()
}

fn asked(group: &RpcGroup, key: impl Into<Value>) -> Result<Value> {
    Ok(group.call(key, "", Call::of(Value::None).deadline(PATIENCE))?.wait()?.value)
}

#[test]
fn what_a_member_registers_all_members_find_and_call() {
    for transport in [Transport::Shm, Transport::Tcp] {
        together(Expected::ranks(3), transport, |mesh| {
            let rpc = begin(&mesh);
            // In whatever order it is said.
            let order = if mesh.me().rank.0 == 1 { [2, 0, 1] } else { [0, 1, 2] };
            let group = group(&rpc, &mesh, "actors", &order).expect("all make it");
            assert_eq!(group.members(), nodes(&mesh, &[0, 1, 2]));
            let own = mesh.me().rank.0;
            register(&group, Value::Int(own.into()), who(&mesh)).expect("it is free");
            group.barrier(LONG).expect("a member").wait().expect("all come");
            for rank in 0..3 {
                for _ in 0..3 {
                    let answer = asked(&group, Value::Int(rank)).expect("it is registered");
                    assert_eq!(answer, Value::from(format!("rank-{rank}")));
                }
            }
            let error = failed(asked(&group, Value::Int(3)));
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.to_string().contains("service 3"), "{error}");
            mesh.finish().expect("all end");
        });
    }
}

#[test]
fn a_key_has_one_owner() {
    together(Expected::ranks(3), Transport::Shm, |mesh| {
        let rpc = begin(&mesh);
        let group = group(&rpc, &mesh, "actors", &[0, 1, 2]).expect("all make it");
        // All at once, again and again: each time one of them gets it.
        for round in 0..20 {
            group.barrier(LONG).expect("a member").wait().expect("all come");
            let got = register(&group, "one", who(&mesh));
            group.barrier(LONG).expect("a member").wait().expect("all come");
            let owner = asked(&group, "one").expect("somebody has it");
            assert_eq!(got.is_ok(), owner == Value::from(mesh.name()), "round {round}");
            match got {
                Ok(()) => {
                    let twice = failed(register(&group, "one", who(&mesh)));
                    assert_eq!(twice.kind(), ErrorKind::AlreadyExists);
                    group.barrier(LONG).expect("a member").wait().expect("all come");
                    take_away(&group, "one").expect("it has it");
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
                    assert!(error.to_string().contains("service \"one\""), "{error}");
                    assert_eq!(failed(take_away(&group, "one")).kind(), ErrorKind::NotFound);
                    group.barrier(LONG).expect("a member").wait().expect("all come");
                }
            }
        }
        mesh.finish().expect("all end");
    });
}

#[test]
fn a_service_that_has_moved_is_called_where_it_is() {
    together(Expected::ranks(3), Transport::Shm, |mesh| {
        let rpc = begin(&mesh);
        let group = group(&rpc, &mesh, "actors", &[0, 1, 2]).expect("all make it");
        let step = || group.barrier(LONG).expect("a member").wait().expect("all come");
        for owner in [0, 1, 2, 1] {
            if mesh.me().rank.0 == owner {
                register(&group, "it", who(&mesh)).expect("it is free");
            }
            step();
            let expected = Value::from(format!("rank-{owner}"));
            assert_eq!(asked(&group, "it").expect("it is there"), expected);
            // What cannot be called twice finds it as well.
            let tensor = Tensor::from_slice(&[1.0_f32], [1]).expect("it fits");
            let call = Call::of(Value::Tensor(0)).tensor(tensor, Mode::Copy);
            assert_eq!(group.call("it", "", call).expect("sent").wait().expect("it is there").value, expected);
            step();
            if mesh.me().rank.0 == owner {
                take_away(&group, "it").expect("it has it");
            }
            step();
        }
        assert_eq!(failed(asked(&group, "it")).kind(), ErrorKind::NotFound);
        let has = group.is_registered("it", LONG).expect("begun").wait();
        assert!(!has.expect("the index answers"));
        mesh.finish().expect("all end");
    });
}

#[test]
fn paired_values_are_references_and_live_while_they_are_held() {
    together(Expected::ranks(3), Transport::Shm, |mesh| {
        let rpc = begin(&mesh);
        let group = group(&rpc, &mesh, "actors", &[0, 1, 2]).expect("all make it");
        let step = || group.barrier(LONG).expect("a member").wait().expect("all come");
        let object = Arc::new(7_u32);
        if mesh.me().rank.0 == 1 {
            group.pair_object("seven", Arc::clone(&object) as _, LONG).expect("a member").wait().expect("it is free");
        }
        step();
        let held = group.get_paired("seven", LONG).expect("begun").wait().expect("it is there");
        assert_eq!(held.owner(), mesh.members()[1].node);
        assert!(group.is_paired("seven", LONG).expect("begun").wait().expect("the index answers"));
        if mesh.me().rank.0 == 1 {
            assert_eq!(*held.get::<u32>().expect("it is here"), 7);
        } else {
            let foreign = failed(group.pair("other", held.clone(), LONG));
            assert_eq!(foreign.kind(), ErrorKind::InvalidArgument, "{foreign}");
            assert_eq!(failed(group.unpair("seven", LONG)).kind(), ErrorKind::NotFound);
        }
        step();
        if mesh.me().rank.0 == 1 {
            group.unpair("seven", LONG).expect("it has it").wait().expect("it is heard");
        }
        step();
        let error = failed(group.get_paired("seven", LONG).expect("begun").wait());
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        if mesh.me().rank.0 == 1 {
            assert!(Arc::strong_count(&object) > 1, "others hold it");
        }
        step();
        drop(held);
        if mesh.me().rank.0 == 1 {
            common::until("it is free", || Arc::strong_count(&object) == 1);
        }
        mesh.finish().expect("all end");
    });
}

#[test]
fn a_handle_that_travels_finds_the_group_from_anywhere() {
    let told = Arc::new(OnceLock::new());
    together(Expected::ranks(3), Transport::Shm, move |mesh| {
        let rpc = begin(&mesh);
        let (rank, world) = (mesh.me().rank.0, mesh.world());
        let members = [0, 1];
        if rank < 2 {
            let group = group(&rpc, &mesh, "pair", &members).expect("both make it");
            if rank == 1 {
                told.set(group.handle()).expect("said once");
                register(&group, "it", who(&mesh)).expect("it is free");
                group.pair_object("one", Arc::new(1_u8), LONG).expect("a member").wait().expect("it is free");
            }
            world.barrier().expect("all come");
            world.barrier().expect("all come");
            group.destroy();
            group.destroy();
            assert!(!group.is_member());
            world.barrier().expect("all come");
        } else {
            world.barrier().expect("all come");
            // Its generation is not always the first: members that enter before the first of them move it on.
            let handle = told.get().expect("said before the barrier");
            assert_eq!((handle.name.as_str(), &handle.members), ("pair", &nodes(&mesh, &members)));
            let group = rpc.open(handle).expect("they are members");
            assert!(!group.is_member());
            assert_eq!(asked(&group, "it").expect("it is there"), Value::from("rank-1"));
            let held = group.get_paired("one", LONG).expect("begun").wait().expect("it is there");
            assert_eq!(held.owner(), mesh.members()[1].node);
            let refused = [
                failed(register(&group, "mine", who(&mesh))),
                failed(group.barrier(LONG)),
                failed(take_away(&group, "it")),
            ];
            for error in refused {
                assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
            }
            world.barrier().expect("all come");
            world.barrier().expect("all come");
            let error = failed(asked(&group, "it"));
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            assert!(error.to_string().contains("no member is in the group any more"), "{error}");
        }
        mesh.finish().expect("all end");
    });
}

#[test]
fn a_name_is_used_again_after_its_group_was_destroyed() {
    together(Expected::ranks(3), Transport::Shm, |mesh| {
        let rpc = begin(&mesh);
        let mut last = 0;
        for round in 0..30 {
            let group = group(&rpc, &mesh, "again", &[0, 1, 2]).expect("all make it");
            assert!(group.generation() > last);
            last = group.generation();
            let own = format!("{}", mesh.me().rank);
            register(&group, own.as_str(), who(&mesh)).expect("what was there before is gone");
            if round % 3 == 0 {
                group.barrier(LONG).expect("a member").wait().expect("all come");
                assert!(asked(&group, "0").is_ok() && asked(&group, "2").is_ok());
                group.barrier(LONG).expect("a member").wait().expect("all come");
            }
            let again = failed(rpc.create_group("again", &nodes(&mesh, &[0, 1, 2]), LONG).wait());
            assert_eq!(again.kind(), ErrorKind::AlreadyExists);
            group.destroy();
        }
        mesh.finish().expect("all end");
    });
}

#[test]
fn groups_that_cannot_be_made_say_why() {
    let heard = together(Expected::ranks(3), Transport::Shm, |mesh| {
        let rpc = begin(&mesh);
        let rank = mesh.me().rank.0;
        let short = Some(Duration::from_millis(300));
        // One does not come.
        if rank < 2 {
            let error = failed(rpc.create_group("late", &nodes(&mesh, &[0, 1, 2]), short).wait());
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
            assert!(error.to_string().contains("rank-2") && error.to_string().contains("late"), "{error}");
        }
        mesh.world().barrier().expect("all come");
        assert_eq!(rpc.group("late").map(|group| group.name().to_owned()), None);
        group(&rpc, &mesh, "late", &[0, 1, 2]).expect("now all come");
        // They do not name the same members.
        let named: &[usize] = if rank == 1 { &[0, 1] } else { &[0, 1, 2] };
        let error = failed(rpc.create_group("who", &nodes(&mesh, named), Some(Duration::from_secs(2))).wait());
        // One that agrees with the first may come when both others have been told, and finds nobody.
        assert!(rank != 1 || error.kind() == ErrorKind::Mismatch, "{error}");
        match error.kind() {
            ErrorKind::Mismatch => {
                assert!(error.to_string().contains("says that its members are rank-0, rank-1"), "{error}");
            }
            kind => assert_eq!(kind, ErrorKind::DeadlineExceeded, "{error}"),
        }
        let has_heard = error.kind() == ErrorKind::Mismatch;
        let me = mesh.me().node;
        let wrong = [vec![], vec![me, me], vec![NodeId(12_345), me], nodes(&mesh, &[(rank as usize + 1) % 3])];
        for members in wrong {
            let error = failed(rpc.create_group("wrong", &members, LONG).wait());
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
        mesh.finish().expect("all end");
        has_heard
    });
    assert!(heard.iter().filter(|heard| **heard).count() >= 2, "both sides of a mismatch are told: {heard:?}");
}

#[test]
fn a_slow_service_does_not_delay_others() {
    together(Expected::ranks(2), Transport::Shm, |mesh| {
        let rpc = begin(&mesh);
        let group = group(&rpc, &mesh, "actors", &[0, 1]).expect("both make it");
        let (release, gate) = std::sync::mpsc::channel::<()>();
        let gate = std::sync::Mutex::new(gate);
        if mesh.me().rank.0 == 0 {
            let wait = move |request: Request| {
                let _ = gate.lock().expect("nobody panics").recv();
                request.reply.value(());
            };
            register(&group, "slow", wait).expect("it is free");
            register(&group, "quick", who(&mesh)).expect("it is free");
        }
        group.barrier(LONG).expect("both").wait().expect("both come");
        if mesh.me().rank.0 == 1 {
            // More than it has threads and than its window takes.
            let slow: Vec<_> =
                (0..5000).map(|_| group.call("slow", "", Call::default()).expect("there is room")).collect();
            for _ in 0..100 {
                assert_eq!(asked(&group, "quick").expect("it is there"), Value::from("rank-0"));
            }
            assert!(slow.iter().all(|work| !work.is_done()));
            group.barrier(LONG).expect("both").wait().expect("both come");
            slow.into_iter().for_each(|work| assert_eq!(work.wait().expect("it ends").value, Value::None));
        } else {
            group.barrier(LONG).expect("both").wait().expect("both come");
            drop(release);
        }
        mesh.finish().expect("all end");
    });
}

#[test]
fn a_thousand_services_are_registered_and_found() {
    together(Expected::ranks(2), Transport::Shm, |mesh| {
        let rpc = begin(&mesh);
        let group = group(&rpc, &mesh, "actors", &[0, 1]).expect("both make it");
        let begun = std::time::Instant::now();
        if mesh.me().rank.0 == 1 {
            let works: Vec<_> =
                (0..1000).map(|key| group.register(Value::Int(key), who(&mesh), LONG).expect("a member")).collect();
            works.into_iter().for_each(|work| work.wait().expect("it is free"));
        }
        group.barrier(LONG).expect("both").wait().expect("both come");
        if mesh.me().rank.0 == 0 {
            let works: Vec<_> = (0..1000).map(|key| group.find(Value::Int(key), LONG).expect("begun")).collect();
            works.into_iter().for_each(|work| assert_eq!(work.wait().expect("it is there").0, mesh.members()[1].node));
            common::note(&format!("1,000 services registered and found in {:?}", begun.elapsed()));
            for key in 0..1000 {
                assert_eq!(asked(&group, Value::Int(key)).expect("it is there"), Value::from("rank-1"));
            }
        }
        mesh.finish().expect("all end");
    });
}

#[test]
fn who_waits_for_an_index_says_for_which() {
    together(Expected::ranks(3), Transport::Shm, |mesh| {
        let rpc = begin(&mesh);
        // Rank 1 never makes it, so that rank 0 may yet be in it.
        let making = (mesh.me().rank.0 == 0).then(|| rpc.create_group("ghost", &nodes(&mesh, &[0, 1]), LONG));
        mesh.world().barrier().expect("all come");
        if mesh.me().rank.0 == 2 {
            let handle =
                sheave_rpc::GroupHandle { name: "ghost".into(), generation: 9, members: nodes(&mesh, &[0, 1]) };
            let group = rpc.open(&handle).expect("they are members");
            let late = group.find("it", Some(Duration::from_millis(200))).expect("begun");
            let account = late.awaited().and_then(|awaited| awaited.describe()).expect("it waits");
            assert_eq!(account.what.as_deref(), Some("look up of service \"it\" on group ghost"));
            assert!(account.whom.as_deref().is_some_and(|whom| whom.starts_with("rank-0, ")), "{account:?}");
            let error = failed(late.wait());
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
            assert!(error.to_string().contains("rank-0") && error.to_string().contains("service \"it\""), "{error}");
        }
        mesh.world().barrier().expect("all come");
        if let Some(making) = making {
            let account = making.awaited().expect("it waits");
            let told = account.ask().expect("rank 0 knows").wait().expect("it says");
            assert!(told.contains("group \"ghost\": rank-1 did not create it"), "{told}");
            making.cancel();
            assert_eq!(failed(making.wait()).kind(), ErrorKind::Cancelled);
        }
        mesh.finish().expect("all end");
    });
}
